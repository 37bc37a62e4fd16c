//! Warnings of rules that do nothing, or something else than they look like. Each is true for every client and topic.

use sterna_mqtt::topic::SHARE_PREFIX;
use sterna_topic::{begins_wild, covers, is_reserved, split};

use super::is_about;
use crate::config::{ActionName, Config, Effect, Rule};

/// The text that stands for names in the topics of a rule.
const MARKS: [&str; 2] = ["%u", "%c"];

const ACTIONS: [ActionName; 3] = [
    ActionName::Publish,
    ActionName::Subscribe,
    ActionName::Delete,
];

/// A sentence for each part of the rules, and of the lists of client identifiers, that has no effect as it is written.
pub(crate) fn without_effect(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    // The name in a certificate for many hosts has an asterisk.
    let users_have_asterisks = config.tls.certificate_as_username;
    let rules = &config.authorization.rules;
    for (at, rule) in rules.iter().enumerate() {
        let mut warn = |what: String| {
            let number = at + 1;
            warnings.push(format!("authorization.rule {number}: {what}"));
        };
        for topic in &rule.topics {
            if let Some(mark) = foreign_mark(topic) {
                warn(format!(
                    "`{mark}` in `{topic}` is text like any other: `%u` and `%c` alone stand for names"
                ));
            }
            if let Some(level) = topic.split('/').find(|it| matches!(*it, "*" | "**")) {
                warn(format!(
                    "`{level}` in `{topic}` is text like any other: `+` stands for one level, and `#` for all that follow"
                ));
            }
        }
        let mut shared = (rule.topics.iter()).filter(|topic| topic.starts_with(SHARE_PREFIX));
        if is_about(rule, ActionName::Subscribe)
            && let Some(topic) = shared.next()
        {
            warn(format!(
                "no subscription is judged by `{topic}`: of a shared one it is the filter behind the share name"
            ));
        }
        for user in rule.users.iter().filter(|user| *user != "*") {
            if is_pattern(user, !users_have_asterisks) {
                warn(format!(
                    "`{user}` in `users` is compared as it is written, and no pattern"
                ));
            }
        }
        for client in rule.clients.iter().filter(|it| is_pattern(it, true)) {
            warn(format!(
                "`{client}` in `clients` is compared as it is written, and no pattern"
            ));
        }
        let decided = |actions: &[ActionName]| {
            let first = rules[..at]
                .iter()
                .position(|it| decides_before(it, rule, actions));
            first.map(|first| first + 1)
        };
        if let Some(first) = decided(&ACTIONS) {
            warn(format!("rule {first} decides all of it before"));
        } else if rule.actions.is_empty()
            && let Some(first) = decided(&[ActionName::Publish, ActionName::Subscribe])
        {
            // A denial without actions is one of `delete`, too, and a permission is not.
            warn(format!(
                "rule {first} decides all of it before, but for `delete`"
            ));
        }
    }
    for (number, list) in (1..).zip(&config.authentication.client_ids) {
        let is_text = |pattern: &&String| {
            let beginning = pattern.strip_suffix('*').unwrap_or(pattern);
            beginning.contains(['*'])
                || beginning.contains("%c")
                || foreign_mark(beginning).is_some()
        };
        warnings.extend(list.patterns.iter().filter(is_text).map(|pattern| {
            format!(
                "authentication.client_ids {number}: `{pattern}` has text that looks like a pattern: `%u`, and `*` at \
                 the end, alone are some"
            )
        }));
    }
    warnings
}

/// A mark of other brokers, or of another case: `%` and one letter, or a name in braces behind `$`.
fn foreign_mark(text: &str) -> Option<&str> {
    let braces = text.find("${").and_then(|from| {
        let length = text[from..].find('}')?;
        Some(&text[from..=from + length])
    });
    let letter = || {
        text.match_indices('%').find_map(|(at, _)| {
            let mark = text.get(at..at + 2)?;
            let is_letter = mark.ends_with(|letter: char| letter.is_ascii_alphabetic());
            let is_alone = !text[at + 2..].starts_with(char::is_alphanumeric);
            (is_letter && is_alone && !MARKS.contains(&mark)).then_some(mark)
        })
    };
    braces.or_else(letter)
}

/// Whether a name looks like a pattern.
fn is_pattern(name: &str, has_asterisk: bool) -> bool {
    (has_asterisk && (name.starts_with('*') || name.ends_with('*')))
        || MARKS.iter().any(|mark| name.contains(mark))
}

/// Whether a rule decides everything that another one behind it is about, as far as it is about these actions. A no where
/// that is not sure.
fn decides_before(first: &Rule, rule: &Rule, actions: &[ActionName]) -> bool {
    let within = |inner: &[String], outer: &[String]| inner.iter().all(|it| outer.contains(it));
    let everybody = |rule: &Rule| rule.users.is_empty() && rule.groups.is_empty();
    let has_users = everybody(first)
        || (!everybody(rule)
            && within(&rule.groups, &first.groups)
            && (first.users.iter().any(|user| user == "*") || within(&rule.users, &first.users)));
    let has_clients = first.clients.is_empty()
        || (!rule.clients.is_empty() && within(&rule.clients, &first.clients));
    let is_narrow = first.looks_at_origins() || first.looks_at_messages() || first.admin.is_some();
    // Unknown facts speak for the client, so a denial does not fit where a permission does.
    let fits_unknown = first.effect != Effect::Deny || rule.effect == Effect::Deny;
    let topic_is_decided = |topic: &String| {
        let mut topics = first.topics.iter();
        topics.any(|outer| is_decided(first.effect, outer, rule.effect, topic))
    };
    (actions.iter()).all(|action| !is_about(rule, *action) || is_about(first, *action))
        && has_users
        && has_clients
        && (fits_unknown || (first.groups.is_empty() && !is_narrow))
        && (!is_narrow || has_same_conditions(first, rule))
        && rule.topics.iter().all(topic_is_decided)
}

fn has_same_conditions(first: &Rule, rule: &Rule) -> bool {
    first.addresses == rule.addresses
        && first.transports == rule.transports
        && first.listeners == rule.listeners
        && first.admin == rule.admin
        && first.qos == rule.qos
        && first.retain == rule.retain
        && first.early_data == rule.early_data
}

/// Whether a rule with this effect and filter decides all topics that a filter behind it matches with its effect. A
/// permission leaves out topics of the server behind a wildcard, and names that cannot be put in.
fn is_decided(outer_effect: Effect, outer: &str, effect: Effect, topic: &str) -> bool {
    let has_mark = |text: &str| MARKS.iter().any(|mark| text.contains(mark));
    if !covers(split(outer), topic) {
        return false;
    }
    if outer_effect != Effect::Allow {
        return true;
    }
    let first = topic.split('/').next().unwrap_or_default();
    let may_be_reserved =
        is_reserved(topic) || (effect != Effect::Allow && (begins_wild(topic) || has_mark(first)));
    !(begins_wild(outer) && may_be_reserved) && (effect == Effect::Allow || !has_mark(outer))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{MessageKind, Origin, Rules, Standing, Subject};
    use super::*;
    use crate::config::{Authorization, TransportName};

    fn rule() -> impl Strategy<Value = Rule> {
        let level = || {
            prop::sample::select(vec!["a", "+", "%u", "%c", "$a", "x%u"]).prop_map(str::to_owned)
        };
        let topic =
            (prop::collection::vec(level(), 0..3), any::<bool>()).prop_map(|(levels, open)| {
                let rest = (open || levels.is_empty()).then(|| "#".to_owned());
                levels.into_iter().chain(rest).collect::<Vec<_>>().join("/")
            });
        let some = |names: &'static [&'static str]| {
            let names = prop::sample::subsequence(names, 0..=names.len());
            let names = names.prop_map(|names| names.into_iter().map(str::to_owned).collect());
            prop_oneof![Just(Vec::new()), names]
        };
        let effects = prop::sample::select(vec![Effect::Allow, Effect::Deny, Effect::Ask]);
        let actions = prop::sample::subsequence(ACTIONS.to_vec(), 0..=3);
        let transports = prop::sample::select(vec![vec![], vec![], vec![TransportName::Tcp]]);
        (
            prop::collection::vec(topic, 1..3),
            some(&["ann", "*"]),
            some(&["g"]),
            some(&["c", "a"]),
            effects,
            actions,
            transports,
        )
            .prop_map(
                |(topics, users, groups, clients, effect, actions, transports)| Rule {
                    topics,
                    users,
                    groups,
                    clients,
                    effect,
                    actions,
                    transports,
                    ..Rule::default()
                },
            )
    }

    /// Two rules that have some keys in common, so that one often decides before the other.
    fn alike() -> impl Strategy<Value = (Rule, Rule)> {
        (rule(), rule(), any::<[bool; 6]>()).prop_map(|(first, mut second, same)| {
            let [users, groups, clients, effect, actions, transports] = same;
            let keys = [
                (&first.users, &mut second.users, users),
                (&first.groups, &mut second.groups, groups),
                (&first.clients, &mut second.clients, clients),
            ];
            for (from, to, is_same) in keys {
                if is_same {
                    to.clone_from(from);
                }
            }
            if effect {
                second.effect = first.effect;
            }
            if actions {
                second.actions.clone_from(&first.actions);
            }
            if transports {
                second.transports.clone_from(&first.transports);
            }
            (first, second)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            max_global_rejects: 1 << 20,
            ..ProptestConfig::with_cases(128)
        })]

        /// Without a rule that is said to be decided before, nobody has other rights.
        #[test]
        fn what_is_decided_before_decides_nothing(
            (first, second) in alike(),
            user in prop::sample::select(vec![None, Some("ann"), Some("bob"), Some("$a"), Some("+")]),
            client in prop::sample::select(vec!["", "a", "c", "a/b"]),
            transport in prop::sample::select(vec![None, Some(TransportName::Tcp), Some(TransportName::Quic)]),
            standing in prop::sample::select(vec![None, Some(false), Some(true)]),
            default_allow in any::<bool>(),
            names in prop::collection::vec("(a|b|\\$a|ann|xann|c)(/(a|ann|c|xann)){0,2}", 8),
            filters in prop::collection::vec("(a|\\$a|ann|\\+|c)(/(a|ann|\\+|c)){0,2}(/#)?|#", 8),
        ) {
            prop_assume!(decides_before(&first, &second, &ACTIONS));
            let rules = |rules: &[&Rule]| {
                let config = Authorization {
                    rules: rules.iter().map(|rule| (*rule).clone()).collect(),
                    default_allow,
                    ..Authorization::default()
                };
                Rules::new(&config, &[])
            };
            let (both, one) = (rules(&[&first, &second]), rules(&[&first]));
            let standing = match standing {
                None => None,
                Some(false) => Some(Standing::new(&["g"], Vec::new()).unwrap()),
                Some(true) => Some(Standing::any()),
            };
            let subject = Subject {
                user,
                client,
                origin: Origin { transport, ..Origin::UNKNOWN },
                standing: standing.as_deref(),
            };
            let kind = MessageKind::new(0, false, false);
            for name in &names {
                prop_assert_eq!(both.may_publish(subject, name, kind), one.may_publish(subject, name, kind));
                prop_assert_eq!(both.may_receive(subject, name), one.may_receive(subject, name));
                prop_assert_eq!(both.may_delete(subject, name), one.may_delete(subject, name));
                prop_assert_eq!(both.denies(subject, name), one.denies(subject, name));
            }
            for filter in &filters {
                prop_assert_eq!(both.may_subscribe(subject, filter), one.may_subscribe(subject, filter));
            }
        }
    }

    #[test]
    fn a_rule_behind_a_wider_one_is_found() {
        let rule = |topic: &str, effect| Rule {
            topics: vec![topic.to_owned()],
            effect,
            ..Rule::default()
        };
        for (first, second, is_decided) in [
            (("#", Effect::Allow), ("a/%u", Effect::Allow), true),
            (("#", Effect::Allow), ("a/b", Effect::Deny), true),
            (("#", Effect::Allow), ("$SYS/#", Effect::Allow), false),
            (("#", Effect::Allow), ("+/b", Effect::Deny), false),
            (("#", Effect::Deny), ("$SYS/#", Effect::Allow), true),
            (("a/%u/#", Effect::Allow), ("a/%u/b", Effect::Allow), true),
            (("a/%u/#", Effect::Allow), ("a/%u/b", Effect::Deny), false),
            (("a/%u/#", Effect::Deny), ("a/%u/b", Effect::Allow), true),
            (("a/b", Effect::Deny), ("a/#", Effect::Allow), false),
        ] {
            let (first, second) = (rule(first.0, first.1), rule(second.0, second.1));
            let found = decides_before(&first, &second, &ACTIONS[..2]);
            assert_eq!(found, is_decided, "{first:?} {second:?}");
        }
    }
}
