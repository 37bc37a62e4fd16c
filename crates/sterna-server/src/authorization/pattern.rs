//! A rule's topic filter, taken apart once, when the rules are loaded.

use sterna_topic::{Level, LevelText, begins_wild, covers, is_reserved, overlaps, split};

use super::Subject;

/// A topic filter in whose levels `%u` and `%c` stand for names of the client.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    levels: Box<[Level<Text>]>,
    begins_wild: bool,
}

/// The text of a level, or what it is put together from.
#[derive(Clone, Debug)]
enum Text {
    Plain(Box<str>),
    Template(Box<[Part]>),
}

#[derive(Clone, Debug)]
enum Part {
    Plain(Box<str>),
    /// `%u`.
    User,
    /// `%c`.
    Client,
}

/// The text of a level for one client.
#[derive(Clone, Copy)]
enum Filled<'a> {
    Plain(&'a str),
    Template(&'a [Part], Subject<'a>),
}

impl Pattern {
    /// Takes a topic filter apart, which must be valid.
    pub(super) fn new(filter: &str) -> Self {
        let levels = split(filter).map(|level| match level {
            Level::Rest => Level::Rest,
            Level::Any => Level::Any,
            Level::Text(text) => Level::Text(Text::new(text)),
        });
        Self {
            levels: levels.collect(),
            begins_wild: begins_wild(filter),
        }
    }

    /// Whether a rule that allows the pattern allows a filter or name: every topic of it. A pattern
    /// with a name that the client has not, or that cannot be a level, allows nothing.
    pub(super) fn allows(&self, subject: Subject<'_>, topic: &str) -> bool {
        !(self.begins_wild && is_reserved(topic))
            && self.levels.iter().all(|level| level.is_fit(subject))
            && covers(self.levels_for(subject), topic)
    }

    /// Whether a rule that denies the pattern denies every topic of a filter or name.
    pub(super) fn denies(&self, subject: Subject<'_>, topic: &str) -> bool {
        covers(self.levels_for(subject), topic)
    }

    /// Whether a rule that denies the pattern denies some topics of a filter.
    pub(super) fn touches(&self, subject: Subject<'_>, filter: &str) -> bool {
        overlaps(self.levels_for(subject), filter)
    }

    /// The levels with the client's names in them. One that cannot be filled in is any level, so that
    /// a denial never becomes narrower by it.
    fn levels_for<'a>(
        &'a self,
        subject: Subject<'a>,
    ) -> impl Iterator<Item = Level<Filled<'a>>> + Clone {
        self.levels.iter().map(move |level| match level {
            Level::Rest => Level::Rest,
            Level::Text(Text::Plain(text)) => Level::Text(Filled::Plain(text)),
            Level::Text(Text::Template(parts)) if level.is_fit(subject) => {
                Level::Text(Filled::Template(parts, subject))
            }
            Level::Any | Level::Text(_) => Level::Any,
        })
    }
}

/// A level's demand on the client's names.
trait Fit {
    /// Whether the level can be filled in for a client.
    fn is_fit(&self, subject: Subject<'_>) -> bool;
}

impl Fit for Level<Text> {
    fn is_fit(&self, subject: Subject<'_>) -> bool {
        match self {
            Self::Text(Text::Template(parts)) => {
                (parts.iter()).all(|part| part.text(subject).is_some())
            }
            _ => true,
        }
    }
}

impl Text {
    fn new(text: &str) -> Self {
        let mut parts = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let at = [("%u", Part::User), ("%c", Part::Client)];
            let first = at
                .into_iter()
                .filter_map(|(mark, part)| Some((rest.find(mark)?, part)));
            let Some((at, part)) = first.min_by_key(|(at, _)| *at) else {
                break;
            };
            if at > 0 {
                parts.push(Part::Plain(rest[..at].into()));
            }
            parts.push(part);
            rest = &rest[at + 2..];
        }
        if parts.is_empty() {
            return Self::Plain(text.into());
        }
        if !rest.is_empty() {
            parts.push(Part::Plain(rest.into()));
        }
        Self::Template(parts.into())
    }
}

impl Part {
    /// The text of the part for a client. `None` if the name is missing, would be more than a part
    /// of one level, or makes a topic of the server's.
    fn text<'a>(&'a self, subject: Subject<'a>) -> Option<&'a str> {
        let name = match self {
            Self::Plain(text) => return Some(text),
            Self::User => subject.user?,
            Self::Client => subject.client,
        };
        let is_fit = !name.is_empty() && !name.contains(['/', '+', '#']) && !is_reserved(name);
        is_fit.then_some(name)
    }
}

impl LevelText for Filled<'_> {
    fn equals(&self, text: &str) -> bool {
        match self {
            Self::Plain(plain) => *plain == text,
            Self::Template(parts, subject) => {
                let rest = parts
                    .iter()
                    .try_fold(text, |rest, part| rest.strip_prefix(part.text(*subject)?));
                rest == Some("")
            }
        }
    }

    fn is_reserved(&self) -> bool {
        match self {
            Self::Plain(plain) => is_reserved(plain),
            Self::Template(parts, subject) => parts
                .first()
                .and_then(|part| part.text(*subject))
                .is_some_and(is_reserved),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sterna_topic::matches;

    use super::*;

    fn subject<'a>(user: Option<&'a str>, client: &'a str) -> Subject<'a> {
        Subject {
            user,
            client,
            ..Subject::default()
        }
    }

    #[test]
    fn a_level_is_put_together_from_names() {
        let pattern = Pattern::new("site/%u-%c/x");
        assert!(pattern.allows(subject(Some("ann"), "7"), "site/ann-7/x"));
        assert!(!pattern.allows(subject(Some("ann"), "7"), "site/ann-8/x"));
        assert!(!pattern.allows(subject(None, "7"), "site/-7/x"));
        assert!(Pattern::new("a/%d/%").allows(subject(None, ""), "a/%d/%"));
    }

    /// A user whose name is a mark is not the client of that mark.
    #[test]
    fn names_are_not_expanded_twice() {
        let pattern = Pattern::new("%u/#");
        assert!(pattern.allows(subject(Some("%c"), "victim"), "%c/x"));
        assert!(!pattern.allows(subject(Some("%c"), "victim"), "victim/x"));
    }

    #[test]
    fn a_name_that_cannot_be_a_level_widens_nothing_and_narrows_no_denial() {
        let pattern = Pattern::new("home/%u/#");
        for user in [
            None,
            Some(""),
            Some("+"),
            Some("#"),
            Some("a/b"),
            Some("a+"),
            Some("$a"),
        ] {
            let subject = subject(user, "c");
            for topic in ["home/+/#", "home/#", "home/a/b", "home//x", "home/+/x"] {
                assert!(!pattern.allows(subject, topic), "{user:?} {topic}");
            }
            assert!(pattern.denies(subject, "home/ann/x"), "{user:?}");
            assert!(pattern.touches(subject, "+/ann"), "{user:?}");
            assert!(!pattern.denies(subject, "work/ann"), "{user:?}");
        }
    }

    proptest! {
        /// Against the filter with the names put in as text.
        #[test]
        fn agrees_with_the_filled_in_filter(
            filter in "(a|%u|%c|x%u|%cy|\\+)(/(a|b|%u|%c|\\+)){0,2}(/#)?",
            user in prop::option::of("[ab%uc]{1,2}"),
            client in "[ab%uc]{1,2}",
            topic in "[abx%uc]{0,3}(/[ab%uc]{0,2}){0,3}",
        ) {
            prop_assume!(!topic.is_empty());
            let subject = subject(user.as_deref(), &client);
            let pattern = Pattern::new(&filter);
            let filled: Option<Vec<String>> = (filter.split('/'))
                .map(|level| match (level.replace("%u", "\u{1}").replace("%c", "\u{2}"), &user) {
                    (level, None) if level.contains('\u{1}') => None,
                    (level, user) => Some(
                        level
                            .replace('\u{2}', &client)
                            .replace('\u{1}', user.as_deref().unwrap_or_default()),
                    ),
                })
                .collect();
            let expected = filled.is_some_and(|levels| matches(&levels.join("/"), &topic));
            prop_assert_eq!(pattern.allows(subject, &topic), expected);
            // A topic that the pattern allows is denied by it, too, where the rule denies.
            prop_assert!(!expected || pattern.denies(subject, &topic));
            prop_assert_eq!(pattern.denies(subject, &topic), pattern.touches(subject, &topic));
        }
    }
}
