use proptest::prelude::*;

use super::*;
use crate::config::ANONYMOUS;

const ANN: Subject<'static> = Subject {
    user: Some("ann"),
    client: "c1",
    origin: Origin::UNKNOWN,
    standing: None,
};
const NOBODY: Subject<'static> = Subject {
    user: None,
    client: "c2",
    origin: Origin::UNKNOWN,
    standing: None,
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
    let rules = Rules::new(
        &Authorization {
            default_allow: false,
            admins: Vec::new(),
            rules: vec![
                rule(Effect::Deny, &[], &["secret/#"]),
                rule(Effect::Allow, &["*"], &["home/%u/#", "secret/ann"]),
            ],
            ..Authorization::default()
        },
        &[],
    );
    assert!(rules.may_publish(ANN, "home/ann/door", MessageKind::UNKNOWN));
    assert!(!rules.may_publish(ANN, "home/bob/door", MessageKind::UNKNOWN));
    assert!(!rules.may_publish(ANN, "secret/ann", MessageKind::UNKNOWN));
    assert!(!rules.may_publish(NOBODY, "home/ann/door", MessageKind::UNKNOWN));
}

#[test]
fn a_subscription_must_lie_inside_what_is_allowed() {
    let rules = Rules::new(
        &Authorization {
            default_allow: false,
            admins: Vec::new(),
            rules: vec![rule(Effect::Allow, &[], &["a/+/c", "b/#"])],
            ..Authorization::default()
        },
        &[],
    );
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
fn a_subscription_that_touches_what_is_denied_stands_in_part() {
    let rules = Rules::new(
        &Authorization {
            default_allow: true,
            admins: Vec::new(),
            rules: vec![rule(Effect::Deny, &[], &["a/secret"])],
            ..Authorization::default()
        },
        &[],
    );
    assert_eq!(rules.reading(NOBODY, "a/+"), Reading::Part);
    assert_eq!(rules.reading(NOBODY, "#"), Reading::Part);
    assert_eq!(rules.reading(NOBODY, "a/secret"), Reading::Refused);
    assert_eq!(rules.reading(NOBODY, "b/#"), Reading::Whole);
    assert!(!rules.may_receive(NOBODY, "a/secret") && rules.may_receive(NOBODY, "a/b"));
}

const FILTERS: &[&str] = &["a", "a/b", "a/+", "+/b", "a/#", "#", "b/#", "%u/#", "%c/b"];

fn rules() -> impl Strategy<Value = Authorization> {
    let one = (
        any::<bool>(),
        prop::collection::vec(prop::sample::select(FILTERS), 1..3),
        prop::sample::select(vec![vec![], vec!["ann"], vec!["*"], vec!["a"]]),
    )
        .prop_map(|(allows, topics, users)| {
            let effect = if allows { Effect::Allow } else { Effect::Deny };
            rule(effect, &users, &topics)
        });
    (any::<bool>(), prop::collection::vec(one, 0..6)).prop_map(|(default_allow, rules)| {
        Authorization {
            default_allow,
            admins: Vec::new(),
            rules,
            ..Authorization::default()
        }
    })
}

proptest! {
    /// A subscription delivers nothing that its client could not subscribe to by name, and all of
    /// that where it stands whole.
    #[test]
    fn a_subscription_gives_no_more_than_names_do(
        config in rules(),
        user in prop::option::of(prop::sample::select(vec!["ann", "a", "b", "+", ""])),
        client in prop::sample::select(vec!["a", "b", "#", ""]),
        filter in prop::sample::select(vec!["#", "a/#", "a/+", "+/b", "+", "a/b", "b/#", "+/+/a"]),
    ) {
        let rules = Rules::new(&config, &[]);
        let subject = Subject {
            user,
            client,
            ..Subject::default()
        };
        let reading = rules.reading(subject, filter);
        for topic in ["a", "b", "c", "a/a", "a/b", "b/b", "c/b", "a/b/a", "a/", "/b"] {
            let by_name = rules.reading(subject, topic);
            prop_assert_ne!(by_name, Reading::Part, "a name is not decided in part");
            prop_assert_eq!(by_name == Reading::Whole, rules.may_receive(subject, topic));
            if sterna_topic::matches(filter, topic) && reading == Reading::Whole {
                prop_assert!(rules.may_receive(subject, topic), "{} {}", filter, topic);
            }
        }
    }
}

#[test]
fn a_denial_of_what_a_wildcard_does_not_reach_leaves_it_whole() {
    let rules = Rules::new(
        &Authorization {
            default_allow: true,
            admins: Vec::new(),
            rules: vec![rule(Effect::Deny, &[], &["$SYS/#"])],
            ..Authorization::default()
        },
        &[],
    );
    assert_eq!(rules.reading(NOBODY, "#"), Reading::Whole);
    assert_eq!(
        rules.reading(NOBODY, "$SYS/broker/uptime"),
        Reading::Refused
    );
}

#[test]
fn a_denial_that_cannot_be_filled_in_denies_everybodys() {
    let rules = Rules::new(
        &Authorization {
            default_allow: true,
            admins: Vec::new(),
            rules: vec![rule(Effect::Deny, &[], &["private/%u/#"])],
            ..Authorization::default()
        },
        &[],
    );
    assert!(!rules.may_publish(NOBODY, "private/ann/x", MessageKind::UNKNOWN));
    assert!(!rules.may_subscribe(NOBODY, "private/ann/x"));
    assert!(rules.may_publish(ANN, "private/bob/x", MessageKind::UNKNOWN));
    let strange = Subject {
        user: Some("a/b"),
        client: "c",
        origin: Origin::UNKNOWN,
        standing: None,
    };
    assert!(!rules.may_publish(strange, "private/a/b", MessageKind::UNKNOWN));
}

#[test]
fn what_is_told_of_clients_is_for_administrators() {
    let mut config = Authorization {
        admins: vec!["ann".to_owned()],
        ..Authorization::default()
    };
    let path = "$SYS/sterna/clients/+/path";
    let bob = Subject {
        user: Some("bob"),
        client: "c",
        origin: Origin::UNKNOWN,
        standing: None,
    };
    for rules in [Vec::new(), vec![rule(Effect::Allow, &[], &["$SYS/#"])]] {
        config.rules = rules;
        let rules = Rules::new(&config, &[]);
        assert_eq!(rules.reading(ANN, path), Reading::Whole);
        for subject in [NOBODY, bob] {
            assert_eq!(rules.reading(subject, path), Reading::Refused);
            assert_eq!(rules.reading(subject, "$SYS/#"), Reading::Part);
            assert_eq!(rules.reading(subject, "$SYS/broker/#"), Reading::Whole);
            assert_eq!(rules.reading(subject, "#"), Reading::Whole);
        }
    }
    config.admins = vec![ANONYMOUS.to_owned()];
    let rules = Rules::new(&config, &[]);
    assert_eq!(rules.reading(NOBODY, path), Reading::Whole);
    assert_eq!(rules.reading(bob, path), Reading::Refused);
}

#[test]
fn of_the_servers_topics_only_a_bridges_state_is_published_by_clients() {
    let state = "$SYS/broker/connection/edge/state";
    let open = Rules::new(&Authorization::default(), &[]);
    assert!(open.may_publish(NOBODY, state, MessageKind::UNKNOWN));
    for topic in [
        "$SYS/broker/uptime",
        "$SYS/broker/connection/state",
        "$SYS/broker/connection/a/b/state",
        "$SYS/broker/connection/a/state/b",
        "$SYS/",
    ] {
        assert!(
            !open.may_publish(NOBODY, topic, MessageKind::UNKNOWN),
            "{topic}"
        );
    }
    let mut config = Authorization {
        default_allow: false,
        admins: Vec::new(),
        rules: vec![rule(Effect::Allow, &[], &["#"])],
        ..Authorization::default()
    };
    assert!(!Rules::new(&config, &[]).may_publish(NOBODY, state, MessageKind::UNKNOWN));
    config.rules = vec![rule(
        Effect::Allow,
        &["ann"],
        &["$SYS/broker/connection/%c/state"],
    )];
    let rules = Rules::new(&config, &[]);
    assert!(rules.may_publish(
        Subject {
            user: Some("ann"),
            client: "edge",
            origin: Origin::UNKNOWN,
            standing: None,
        },
        state,
        MessageKind::UNKNOWN
    ));
    assert!(!rules.may_publish(ANN, state, MessageKind::UNKNOWN));
}

#[test]
fn only_the_rule_that_allows_says_what_is_idempotent() {
    let harmless = Rule {
        idempotent: true,
        ..rule(Effect::Allow, &[], &["sensors/#"])
    };
    let rules = Rules::new(
        &Authorization {
            default_allow: true,
            admins: Vec::new(),
            rules: vec![rule(Effect::Allow, &[], &["sensors/count"]), harmless],
            ..Authorization::default()
        },
        &[],
    );
    assert!(rules.is_idempotent(NOBODY, "sensors/temperature", MessageKind::UNKNOWN));
    assert!(!rules.is_idempotent(NOBODY, "sensors/count", MessageKind::UNKNOWN));
    assert!(
        rules.may_publish(NOBODY, "other", MessageKind::UNKNOWN)
            && !rules.is_idempotent(NOBODY, "other", MessageKind::UNKNOWN)
    );
}

#[test]
fn to_delete_has_to_be_allowed_by_name_and_is_denied_with_the_rest() {
    let may_delete = Rule {
        actions: vec![ActionName::Delete],
        ..rule(Effect::Allow, &["ann"], &["a/#"])
    };
    let rules = Rules::new(
        &Authorization {
            default_allow: false,
            admins: Vec::new(),
            rules: vec![
                rule(Effect::Deny, &[], &["a/kept"]),
                rule(Effect::Allow, &[], &["a/#"]),
                may_delete,
            ],
            ..Authorization::default()
        },
        &[],
    );
    assert!(rules.may_delete(ANN, "a/b") && !rules.may_delete(NOBODY, "a/b"));
    assert!(
        rules.may_publish(NOBODY, "a/b", MessageKind::UNKNOWN)
            && rules.may_subscribe(NOBODY, "a/b")
    );
    assert!(!rules.may_delete(ANN, "a/kept") && !rules.may_delete(ANN, "b"));
    let mut config = Authorization::default();
    let open = Rules::new(&config, &[]);
    assert!(!open.may_delete(NOBODY, "a") && !open.may_delete(ANN, "a"));
    config.admins = vec!["ann".to_owned()];
    let open = Rules::new(&config, &[]);
    assert!(open.may_delete(ANN, "a") && !open.may_delete(NOBODY, "a"));
    assert!(!open.may_delete(ANN, "$SYS/broker/uptime"));
}

#[test]
fn a_name_with_wildcards_widens_nothing() {
    let rules = Rules::new(
        &Authorization {
            default_allow: false,
            admins: Vec::new(),
            rules: vec![rule(Effect::Allow, &[], &["home/%u/#"])],
            ..Authorization::default()
        },
        &[],
    );
    let subject = Subject {
        user: Some("+"),
        client: "x",
        origin: Origin::UNKNOWN,
        standing: None,
    };
    assert!(!rules.may_subscribe(subject, "home/+/#"));
    assert!(!rules.may_publish(subject, "home/ann", MessageKind::UNKNOWN));
}
