//! The names of sessions.

use std::borrow::Borrow;
use std::sync::Arc;

/// The name of a session: the user whose it is, and an identifier that is the user's own. Clients without a user name
/// are one user.
///
/// So clients of two users never meet in a session, whatever identifiers they choose.
///
/// It is one text, by which stores and clusters keep it: the identifier's length in bytes, `:`, the identifier, and the
/// user's name behind `@`. Nothing follows for nobody, and `=` for a user of the same name as the identifier. The length
/// says where the identifier ends, so each pair has one text, and each text is of one pair.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionName(Arc<str>);

impl Borrow<str> for SessionName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Comes before the name of a user.
const OF: char = '@';
/// Stands for a user of the same name as the identifier: most devices have such a one, and there may be millions.
const NAMESAKE: &str = "=";

impl SessionName {
    /// The name of the session of a user (`None` for clients without a name) with an identifier. Both may be any texts.
    #[must_use]
    pub fn new(user: Option<&str>, id: &str) -> Self {
        let len = id.len();
        Self(Arc::from(match user {
            None => format!("{len}:{id}"),
            Some(user) if user == id => format!("{len}:{id}{NAMESAKE}"),
            Some(user) => format!("{len}:{id}{OF}{user}"),
        }))
    }

    /// The name with this text; `None` for what is no name's text.
    #[must_use]
    pub fn of_text(text: &str) -> Option<Self> {
        split(text).map(|_| Self(Arc::from(text)))
    }

    /// The identifier and the user in the text of a name, without a copy of it; `None` for what is no name's text.
    #[must_use]
    pub fn parts_of(text: &str) -> Option<(&str, Option<&str>)> {
        split(text)
    }

    /// Its text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The user whose session it is; `None` for clients without a name.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        split(&self.0)?.1
    }

    /// The identifier: that of the client, or the front door's own name of a session.
    #[must_use]
    pub fn id(&self) -> &str {
        split(&self.0).map_or("", |(id, _)| id)
    }

    /// Whether the user has the same name as the session.
    pub(crate) fn is_namesake(&self) -> bool {
        self.user() == Some(self.id())
    }
}

/// The identifier and the user in the text of a name; `None` for what is no name's text. The shortest form of the
/// length, and the mark of a namesake, are the only ones.
fn split(text: &str) -> Option<(&str, Option<&str>)> {
    let (len, rest) = text.split_once(':')?;
    let is_shortest = len == "0" || !len.starts_with(['0', '+']);
    let len = len.parse().ok().filter(|_| is_shortest)?;
    let (id, user) = rest.split_at_checked(len)?;
    let user = match user {
        "" => None,
        NAMESAKE => Some(id),
        _ => Some(user.strip_prefix(OF).filter(|&user| user != id)?),
    };
    Some((id, user))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_has_one_text() {
        for (user, id, text) in [
            (None, "sensor", "6:sensor"),
            (Some("ann"), "sensor", "6:sensor@ann"),
            (Some("sensor"), "sensor", "6:sensor="),
            (Some(""), "sensor", "6:sensor@"),
            (None, "", "0:"),
            (Some(""), "", "0:="),
            (None, "a@b", "3:a@b"),
            (Some("é"), "ü:1", "4:ü:1@é"),
        ] {
            let name = SessionName::new(user, id);
            assert_eq!(name.text(), text);
            assert_eq!((name.user(), name.id()), (user, id));
            assert_eq!(SessionName::of_text(text), Some(name));
        }
        for text in [
            "",
            "sensor",
            ":",
            "6:",
            "7:sensor",
            "06:sensor",
            "+6:sensor",
            "6:sensor@sensor",
            "0:@",
            "1:ü",
            "6:sensorann",
            "6:sensor==",
            "99999999999999999999:a",
            "-1:a",
        ] {
            assert_eq!(SessionName::of_text(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_two_pairs_have_one_name(
            a in prop::option::of("[a1:@=é]{0,4}"), b in prop::option::of("[a1:@=é]{0,4}"),
            x in "[a1:@=é]{0,4}", y in "[a1:@=é]{0,4}",
        ) {
            let name = SessionName::new(a.as_deref(), &x);
            let other = SessionName::new(b.as_deref(), &y);
            prop_assert_eq!(name == other, (&a, &x) == (&b, &y));
            prop_assert_eq!((name.user(), name.id()), (a.as_deref(), &*x));
            prop_assert_eq!(SessionName::of_text(name.text()), Some(name));
        }

        #[test]
        fn a_text_is_of_one_name_or_none(text in "[0-3]{0,2}[:]?[a1:@=é]{0,6}") {
            if let Some(name) = SessionName::of_text(&text) {
                let again = SessionName::new(name.user(), name.id());
                prop_assert_eq!(again.text(), &*text);
            }
        }
    }
}
