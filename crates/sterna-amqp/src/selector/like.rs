//! Patterns of `LIKE`.

/// One place of a pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// `%`: any number of characters.
    Any,
    /// `_`: one character.
    One,
    /// That character.
    Just(char),
}

/// A pattern that has been read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Pattern(Box<[Place]>);

impl Pattern {
    /// Reads a pattern; `None` if the escape character is the last, or escapes neither a wildcard
    /// nor itself.
    pub(super) fn parse(text: &str, escape: Option<char>) -> Option<Self> {
        let mut places = Vec::new();
        let mut characters = text.chars();
        while let Some(c) = characters.next() {
            places.push(match c {
                _ if Some(c) == escape => match characters.next()? {
                    escaped if escaped == '%' || escaped == '_' || Some(escaped) == escape => {
                        Place::Just(escaped)
                    }
                    _ => return None,
                },
                // Several in a row are one.
                '%' if places.last() == Some(&Place::Any) => continue,
                '%' => Place::Any,
                '_' => Place::One,
                _ => Place::Just(c),
            });
        }
        Some(Self(places.into()))
    }

    /// Whether the whole text fits. Takes time in proportion to the text times the pattern.
    pub(super) fn matches(&self, text: &str) -> bool {
        let places = &self.0;
        let mut rest = text.chars();
        let mut index = 0;
        // Position of the last `%`, and the rest of the text after it took one more character.
        let mut retry: Option<(usize, std::str::Chars<'_>)> = None;
        loop {
            let before = rest.clone();
            match (places.get(index), rest.next()) {
                (Some(Place::Any), _) => {
                    retry = Some((index, before.clone()));
                    rest = before;
                    index += 1;
                }
                (Some(Place::One), Some(_)) => index += 1,
                (Some(Place::Just(wanted)), Some(c)) if *wanted == c => index += 1,
                (None, None) => return true,
                _ => {
                    let Some((any, left)) = &mut retry else {
                        return false;
                    };
                    if left.next().is_none() {
                        return false;
                    }
                    index = *any + 1;
                    rest = left.clone();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_the_specification() {
        let fits = |pattern: &str, escape, text: &str| {
            Pattern::parse(pattern, escape).is_some_and(|pattern| pattern.matches(text))
        };
        assert!(fits("12%3", None, "123"));
        assert!(fits("12%3", None, "12993"));
        assert!(!fits("12%3", None, "1234"));
        assert!(fits("l_se", None, "lose"));
        assert!(!fits("l_se", None, "loose"));
        assert!(fits("\\_%", Some('\\'), "_foo"));
        assert!(!fits("\\_%", Some('\\'), "bar"));
        assert!(fits("%", None, ""));
        assert!(fits("", None, ""));
        assert!(!fits("", None, "a"));
        assert!(fits("%b%b%", None, "abcb"));
        assert!(!fits("%b%b%", None, "abc"));
        assert!(fits("_ä%", None, "xäy"));
        assert!(fits("100!%", Some('!'), "100%"));
        assert!(fits("a!!b", Some('!'), "a!b"));
        assert!(Pattern::parse("a!", Some('!')).is_none());
        assert!(Pattern::parse("a!b", Some('!')).is_none());
    }
}
