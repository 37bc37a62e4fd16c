//! Which client identifiers a user may have.

use crate::config::ClientIds;

/// Stands for the user's name in a pattern.
const USER: &str = "%u";
/// Stands for any characters, or none, at the end of a pattern.
const REST: char = '*';

/// Whether a client may call itself so, by MQTT's Client Identifier or AMQP's container-id. Control
/// characters have no place in a name that is logged and that rules can contain.
pub(crate) fn is_client_id(client_id: &str) -> bool {
    !client_id.chars().any(char::is_control)
}

/// Whether a user may have a client identifier. Without a list every user may have each. With one a user may have only
/// those that an entry gives it.
pub(crate) fn may_have_client_id(lists: &[ClientIds], user: Option<&str>, client_id: &str) -> bool {
    lists.is_empty()
        || lists.iter().any(|list| {
            names(list, user)
                && (list.patterns.iter()).any(|pattern| fits(pattern, user, client_id))
        })
}

fn names(list: &ClientIds, user: Option<&str>) -> bool {
    list.users.is_empty()
        || user.is_some_and(|user| list.users.iter().any(|name| name == "*" || name == user))
}

/// Whether an identifier fits a pattern. Names are compared piece by piece and never become part of a
/// pattern: marks in a user's name mean themselves.
pub(super) fn fits(pattern: &str, user: Option<&str>, client_id: &str) -> bool {
    let (pattern, is_open) = match pattern.strip_suffix(REST) {
        Some(beginning) => (beginning, true),
        None => (pattern, false),
    };
    let mut rest = client_id;
    for (at, piece) in pattern.split(USER).enumerate() {
        if at > 0 {
            let Some(after) = user.and_then(|user| rest.strip_prefix(user)) else {
                return false;
            };
            rest = after;
        }
        let Some(after) = rest.strip_prefix(piece) else {
            return false;
        };
        rest = after;
    }
    is_open || rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Identity, Proof};

    #[test]
    fn marks_in_names_mean_themselves() {
        for (pattern, user, client_id, is_fit) in [
            ("%u", Some("ann"), "ann", true),
            ("%u", Some("ann"), "anna", false),
            ("%u-*", Some("ann"), "ann-1", true),
            ("%u-*", Some("ann"), "bob-1", false),
            ("%u*", Some("an"), "ann", true),
            ("%u", None, "", false),
            ("%u", None, "%u", false),
            ("%u", Some("%u"), "%u", true),
            ("%u", Some("%u"), "%u%u", false),
            ("%u", Some("*"), "anything", false),
            ("%u", Some("a*"), "a*", true),
            ("gw-*", None, "gw-", true),
            ("gw-*", None, "gw", false),
            ("*", None, "", true),
            ("a*b", None, "a*b", true),
            ("a*b", None, "axb", false),
            ("%u/%u", Some("a"), "a/a", true),
        ] {
            assert_eq!(
                fits(pattern, user, client_id),
                is_fit,
                "{pattern} {user:?} {client_id}"
            );
        }
    }

    #[test]
    fn a_list_gives_and_everything_else_is_kept_back() {
        let list = |users: &[&str], patterns: &[&str]| ClientIds {
            users: users.iter().map(|&user| user.to_owned()).collect(),
            patterns: patterns.iter().map(|&one| one.to_owned()).collect(),
        };
        let ann = Identity::of("ann", Proof::Password);
        let gateway = Identity::of("gateway", Proof::Certificate);
        assert!(may_have_client_id(&[], None, "x"));
        let lists = [list(&["*"], &["%u"]), list(&["gateway"], &["gw-*"])];
        for (identity, client_id, may) in [
            (&ann, "ann", true),
            (&ann, "gw-1", false),
            (&gateway, "gateway", true),
            (&gateway, "gw-1", true),
            (&gateway, "ann", false),
            (&Identity::NOBODY, "ann", false),
            (&Identity::NOBODY, "x", false),
        ] {
            let found = may_have_client_id(&lists, identity.user(), client_id);
            assert_eq!(found, may, "{identity:?} {client_id}");
        }
        let lists = [list(&[], &["public-*"])];
        assert!(may_have_client_id(&lists, None, "public-1"));
        assert!(!is_client_id("a\nb") && is_client_id("a b/+#%c"));
    }
}
