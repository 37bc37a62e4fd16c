//! Who may publish and subscribe where: an ordered list of rules, the first that fits decides.

use crate::config::{ActionName, Authorization, Effect, Rule};

/// A client as the rules see it.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// User name, if it gave one that was verified.
    pub user: Option<&'a str>,
    /// Client identifier.
    pub client: &'a str,
}

/// The rules in force.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    default_allow: bool,
    rules: Vec<Rule>,
}

impl Rules {
    /// Rules from the configuration.
    #[must_use]
    pub fn new(config: &Authorization) -> Self {
        Self {
            default_allow: config.default_allow,
            rules: config.rules.clone(),
        }
    }

    /// Whether the subject may publish to a topic name.
    #[must_use]
    pub fn may_publish(&self, subject: Subject<'_>, topic: &str) -> bool {
        self.decide(subject, ActionName::Publish, topic)
    }

    /// Whether a PUBLISH of QoS 0 to a topic name may be done twice without harm: the rule that
    /// allows it says so.
    #[must_use]
    pub fn is_idempotent(&self, subject: Subject<'_>, topic: &str) -> bool {
        self.deciding(subject, ActionName::Publish, topic)
            .is_some_and(|rule| rule.effect == Effect::Allow && rule.idempotent)
    }

    /// Whether the subject may subscribe to a filter (of a shared subscription: what follows the
    /// share name). The filter must lie wholly inside the rule's: `#` is not covered by `a/#`.
    #[must_use]
    pub fn may_subscribe(&self, subject: Subject<'_>, filter: &str) -> bool {
        self.decide(subject, ActionName::Subscribe, filter)
    }

    /// Whether the subject may delete a topic: its retained message, and everybody's subscriptions to
    /// exactly this topic.
    #[must_use]
    pub fn may_delete(&self, subject: Subject<'_>, topic: &str) -> bool {
        self.decide(subject, ActionName::Delete, topic)
    }

    fn decide(&self, subject: Subject<'_>, action: ActionName, topic: &str) -> bool {
        // The common case, a broker without rules, costs nothing on the road of a message.
        if self.rules.is_empty() {
            return self.default_allow;
        }
        self.deciding(subject, action, topic)
            .map_or(self.default_allow, |rule| rule.effect == Effect::Allow)
    }

    /// The first rule that fits.
    fn deciding(&self, subject: Subject<'_>, action: ActionName, topic: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| {
            is_about(rule, action)
                && names(rule, subject)
                && rule.topics.iter().any(|pattern| {
                    expand(pattern, subject).is_some_and(|filter| match rule.effect {
                        Effect::Allow => covers(&filter, topic),
                        // A subscription that merely touches what is denied would leak it.
                        Effect::Deny => covers(&filter, topic) || overlaps(&filter, topic),
                    })
                })
        })
    }
}

fn is_about(rule: &Rule, action: ActionName) -> bool {
    if rule.actions.is_empty() {
        // Who may publish and subscribe may not, for that, take from others what they have.
        return action != ActionName::Delete || rule.effect == Effect::Deny;
    }
    rule.actions.contains(&action)
}

fn names(rule: &Rule, subject: Subject<'_>) -> bool {
    let user = rule.users.is_empty()
        || rule.users.iter().any(|name| match subject.user {
            Some(user) => name == "*" || name == user,
            None => false,
        });
    let client = rule.clients.is_empty() || rule.clients.iter().any(|name| name == subject.client);
    user && client
}

/// Puts the subject's names into a pattern. A name with characters that mean something in a filter
/// would widen the rule, so it fits nothing.
fn expand(pattern: &str, subject: Subject<'_>) -> Option<String> {
    let mut filter = pattern.to_owned();
    for (mark, name) in [("%u", subject.user), ("%c", Some(subject.client))] {
        if filter.contains(mark) {
            let name = name.filter(|name| !name.is_empty() && !name.contains(['/', '+', '#']))?;
            filter = filter.replace(mark, name);
        }
    }
    Some(filter)
}

/// Whether every topic that `inner` matches is matched by `outer`.
fn covers(outer: &str, inner: &str) -> bool {
    if inner.starts_with('$') != outer.starts_with('$') {
        return false;
    }
    let mut inner = inner.split('/');
    let mut outer = outer.split('/');
    loop {
        match (outer.next(), inner.next()) {
            (Some("#"), _) | (None, None) => return true,
            (Some("+"), Some(level)) if level != "#" => {}
            (Some(a), Some(b)) if a == b => {}
            _ => return false,
        }
    }
}

/// Whether some topic is matched by both filters.
fn overlaps(a: &str, b: &str) -> bool {
    let mut a = a.split('/');
    let mut b = b.split('/');
    loop {
        match (a.next(), b.next()) {
            (Some("#"), _) | (_, Some("#")) | (None, None) => return true,
            (Some(x), Some(y)) if x == y || x == "+" || y == "+" => {}
            _ => return false,
        }
    }
}

/// Checks one rule of the configuration.
///
/// # Errors
/// A sentence that names the rule's fault.
pub fn check_rule(rule: &Rule) -> Result<(), String> {
    if rule.topics.is_empty() {
        return Err("an authorization.rule without topics decides nothing".to_owned());
    }
    for topic in &rule.topics {
        let levels: Vec<&str> = topic.split('/').collect();
        let last = levels.len() - 1;
        let bad = topic.is_empty()
            || levels.iter().enumerate().any(|(at, level)| {
                (level.contains('#') && (*level != "#" || at != last))
                    || (level.contains('+') && *level != "+")
            });
        if bad {
            return Err(format!(
                "authorization.rule: `{topic}` is not a topic filter"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: Subject<'static> = Subject {
        user: Some("ann"),
        client: "c1",
    };
    const NOBODY: Subject<'static> = Subject {
        user: None,
        client: "c2",
    };

    fn rule(effect: Effect, users: &[&str], topics: &[&str]) -> Rule {
        Rule {
            users: users.iter().map(|s| (*s).to_owned()).collect(),
            effect,
            topics: topics.iter().map(|s| (*s).to_owned()).collect(),
            ..Rule::default()
        }
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let rules = Rules::new(&Authorization {
            default_allow: false,
            rules: vec![
                rule(Effect::Deny, &[], &["secret/#"]),
                rule(Effect::Allow, &["*"], &["home/%u/#", "secret/ann"]),
            ],
            ..Authorization::default()
        });
        assert!(rules.may_publish(ANN, "home/ann/door"));
        assert!(!rules.may_publish(ANN, "home/bob/door"));
        assert!(!rules.may_publish(ANN, "secret/ann"));
        assert!(!rules.may_publish(NOBODY, "home/ann/door"));
    }

    #[test]
    fn a_subscription_must_lie_inside_what_is_allowed() {
        let rules = Rules::new(&Authorization {
            default_allow: false,
            rules: vec![rule(Effect::Allow, &[], &["a/+/c", "b/#"])],
            ..Authorization::default()
        });
        for (filter, allowed) in [
            ("a/x/c", true),
            ("a/+/c", true),
            ("a/#", false),
            ("#", false),
            ("b", true),
            ("b/+/x/#", true),
        ] {
            assert_eq!(rules.may_subscribe(NOBODY, filter), allowed, "{filter}");
        }
    }

    #[test]
    fn a_subscription_that_touches_what_is_denied_is_refused() {
        let rules = Rules::new(&Authorization {
            default_allow: true,
            rules: vec![rule(Effect::Deny, &[], &["a/secret"])],
            ..Authorization::default()
        });
        assert!(!rules.may_subscribe(NOBODY, "a/+"));
        assert!(!rules.may_subscribe(NOBODY, "#"));
        assert!(rules.may_subscribe(NOBODY, "b/#"));
    }

    #[test]
    fn only_the_rule_that_allows_says_what_is_idempotent() {
        let harmless = Rule {
            idempotent: true,
            ..rule(Effect::Allow, &[], &["sensors/#"])
        };
        let rules = Rules::new(&Authorization {
            default_allow: true,
            rules: vec![rule(Effect::Allow, &[], &["sensors/count"]), harmless],
            ..Authorization::default()
        });
        assert!(rules.is_idempotent(NOBODY, "sensors/temperature"));
        assert!(!rules.is_idempotent(NOBODY, "sensors/count"));
        assert!(rules.may_publish(NOBODY, "other") && !rules.is_idempotent(NOBODY, "other"));
    }

    #[test]
    fn to_delete_has_to_be_allowed_by_name_and_is_denied_with_the_rest() {
        let may_delete = Rule {
            actions: vec![ActionName::Delete],
            ..rule(Effect::Allow, &["ann"], &["a/#"])
        };
        let rules = Rules::new(&Authorization {
            default_allow: false,
            rules: vec![
                rule(Effect::Deny, &[], &["a/kept"]),
                rule(Effect::Allow, &[], &["a/#"]),
                may_delete,
            ],
            ..Authorization::default()
        });
        assert!(rules.may_delete(ANN, "a/b") && !rules.may_delete(NOBODY, "a/b"));
        assert!(rules.may_publish(NOBODY, "a/b") && rules.may_subscribe(NOBODY, "a/b"));
        assert!(!rules.may_delete(ANN, "a/kept") && !rules.may_delete(ANN, "b"));
        let open = Rules::new(&Authorization::default());
        assert!(open.may_delete(NOBODY, "a"));
    }

    #[test]
    fn a_name_with_wildcards_widens_nothing() {
        let rules = Rules::new(&Authorization {
            default_allow: false,
            rules: vec![rule(Effect::Allow, &[], &["home/%u/#"])],
            ..Authorization::default()
        });
        let subject = Subject {
            user: Some("+"),
            client: "x",
        };
        assert!(!rules.may_subscribe(subject, "home/+/#"));
        assert!(!rules.may_publish(subject, "home/ann"));
    }

    #[test]
    fn rules_are_checked() {
        assert!(check_rule(&rule(Effect::Allow, &[], &["a/#/b"])).is_err());
        assert!(check_rule(&rule(Effect::Allow, &[], &["a+"])).is_err());
        assert!(check_rule(&rule(Effect::Allow, &[], &[])).is_err());
        assert!(check_rule(&rule(Effect::Allow, &[], &["$SYS/#"])).is_ok());
    }
}
