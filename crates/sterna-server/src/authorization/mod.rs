//! Who may publish and subscribe where: an ordered list of rules, the first that fits decides.
//!
//! The rules are taken apart when they are loaded, one list for each action; to ask them allocates
//! nothing. A topic name is decided by the first rule with a filter that matches it. So is a
//! subscription, by what it would deliver:
//!
//! - a rule that allows it must cover the whole filter, and a rule that denies the whole refuses it;
//! - a rule that denies only some of its topics leaves it standing. Each topic is then decided by its
//!   name when it is delivered, so the subscriber gets what it could subscribe to by name.
//!
//! A rule that asks leaves the decision to the webhook, which the front door asks before it acts
//! (`Rules::asks`). The rules know its answers of late; without one, it is a no.

mod answers;
mod conditions;
mod explain;
mod pattern;
mod recent;
mod standing;

use std::sync::Arc;

pub(crate) use answers::Answers;
use conditions::Conditions;
pub use conditions::{MessageKind, Origin};
pub use explain::{Decision, Reason, check_topic};
use pattern::Pattern;
pub(crate) use recent::Recent;
use rustc_hash::FxHashSet;
pub(crate) use standing::GivenRule;
pub use standing::{Standing, Standings};

use crate::config::{ANONYMOUS, ActionName, Authorization, Durability, Effect, Limit, Rule};

/// Topics of the server.
const SERVER_TOPICS: &str = "$SYS/";
/// What is told of single clients.
const CLIENT_TOPICS: &str = "$SYS/sterna/#";
/// Where bridges of Mosquitto tell whether they are connected.
const BRIDGE_STATES: &str = "$SYS/broker/connection/+/state";

/// A client as the rules see it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Subject<'a> {
    /// User name, if it gave one that was verified.
    pub user: Option<&'a str>,
    /// Client identifier.
    pub client: &'a str,
    /// From where it speaks.
    pub origin: Origin,
    /// What its token or the webhook has said of it beside the name.
    pub standing: Option<&'a Standing>,
}

/// What becomes of a subscription.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reading {
    /// It is refused.
    Refused,
    /// All its topics may be delivered.
    Whole,
    /// Some may not: each is decided by its name.
    Part,
    /// The webhook decides.
    Asked,
}

/// The rules in force.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    lists: Arc<Lists>,
    /// What the webhook has said of late, where there is one.
    answers: Option<Arc<Answers>>,
}

/// The rules of each action, in order.
#[derive(Debug, Default)]
struct Lists {
    default_allow: bool,
    /// Whether a rule says what acknowledgements wait for.
    has_durability: bool,
    publish: Box<[Compiled]>,
    subscribe: Box<[Compiled]>,
    delete: Box<[Compiled]>,
    admins: Users,
    limits: Box<[(Users, Arc<Limit>)]>,
    /// Whether a rule asks from where clients speak.
    look_at_origins: bool,
    /// Whether a rule asks for more of a message than its topic.
    look_at_messages: bool,
    /// Whether a rule asks for early data.
    look_at_early_data: bool,
    /// Whether a rule asks.
    has_questions: bool,
    /// What they were made from.
    source: Authorization,
}

/// A rule, taken apart.
#[derive(Clone, Debug)]
struct Compiled {
    /// Its place in the configuration; `None` for one of the broker's own.
    place: Option<usize>,
    users: Users,
    /// Empty for every client.
    clients: FxHashSet<Box<str>>,
    effect: Effect,
    is_idempotent: bool,
    /// What few rules ask beside.
    conditions: Option<Box<Conditions>>,
    durability: Option<Durability>,
    patterns: Box<[Pattern]>,
}

/// Whom a rule is about.
#[derive(Clone, Debug, Default)]
struct Users {
    anonymous: bool,
    /// Everybody who has a name.
    named: bool,
    names: FxHashSet<Box<str>>,
    /// Groups, for those of whom a token or the webhook says that they belong to one.
    groups: FxHashSet<Box<str>>,
}

impl Rules {
    /// Rules from the configuration.
    #[must_use]
    pub fn new(config: &Authorization) -> Self {
        let compiled = |action| {
            let rules = config.rules.iter().enumerate();
            let about = rules.filter(move |(_, rule)| is_about(rule, action));
            about.map(|(place, rule)| Compiled::new(place, rule, config))
        };
        let admins = Users::admins(&config.admins);
        let reads_server = Compiled::own(&admins, true, &format!("{SERVER_TOPICS}#"));
        let hides_clients = Compiled::own(&Users::EVERYBODY, false, CLIENT_TOPICS);
        let deletes = Compiled::own(&admins, true, "#");
        let lists = Lists {
            default_allow: config.default_allow,
            has_durability: config.rules.iter().any(|rule| rule.durability.is_some()),
            publish: compiled(ActionName::Publish).collect(),
            subscribe: ([reads_server, hides_clients].into_iter())
                .chain(compiled(ActionName::Subscribe))
                .collect(),
            delete: compiled(ActionName::Delete).chain([deletes]).collect(),
            admins,
            limits: (config.limits.iter())
                .map(|limit| {
                    let users = Users::of(&limit.users, &limit.groups, config);
                    (users, Arc::new(limit.clone()))
                })
                .collect(),
            look_at_origins: config.rules.iter().any(Rule::looks_at_origins),
            look_at_messages: config.rules.iter().any(Rule::looks_at_messages),
            look_at_early_data: config.rules.iter().any(|rule| rule.early_data.is_some()),
            has_questions: config.rules.iter().any(|rule| rule.effect == Effect::Ask),
            source: config.clone(),
        };
        Self {
            lists: Arc::new(lists),
            answers: None,
        }
    }

    /// The same rules with the answers of a webhook.
    #[must_use]
    pub(crate) fn with_answers(self, answers: Arc<Answers>) -> Self {
        Self {
            answers: Some(answers),
            ..self
        }
    }

    /// Whether the webhook has to be asked about an action first. `kind` is that of a message that is published.
    #[must_use]
    pub(crate) fn asks(
        &self,
        subject: Subject<'_>,
        action: ActionName,
        topic: &str,
        kind: MessageKind,
    ) -> bool {
        if !self.lists.has_questions {
            return false;
        }
        let decision = match action {
            ActionName::Publish => self.decide_publish(subject, topic, kind),
            ActionName::Subscribe => self.decide_subscribe(subject, topic, |_| ()),
            ActionName::Delete => self.decide_delete(subject, topic),
        };
        decision.0 == Reading::Asked && self.answer(subject, action, topic).is_none()
    }

    /// Whether any rule asks.
    #[must_use]
    pub(crate) fn have_questions(&self) -> bool {
        self.lists.has_questions
    }

    fn answer(&self, subject: Subject<'_>, action: ActionName, topic: &str) -> Option<bool> {
        (self.answers.as_ref())?.get(subject, action, topic)
    }

    /// Whether a client is an administrator: of this user, or without a name where that is `None`.
    #[must_use]
    pub fn is_admin(&self, user: Option<&str>) -> bool {
        self.lists.admins.has(user)
    }

    /// What they were made from.
    #[must_use]
    pub fn source(&self) -> &Authorization {
        &self.lists.source
    }

    /// Whether they are made from the same configuration.
    #[must_use]
    pub fn are_same(&self, other: &Self) -> bool {
        self.lists.source == other.lists.source
    }

    /// What a client may use at most, by its user and what is said of it; `None` for any amount.
    #[must_use]
    pub fn limit_of(&self, subject: Subject<'_>) -> Option<&Arc<Limit>> {
        let mut limits = self.lists.limits.iter();
        limits.find_map(|(users, limit)| users.have(subject).then_some(limit))
    }

    /// Whether a rule asks from where clients speak.
    #[must_use]
    pub fn look_at_origins(&self) -> bool {
        self.lists.look_at_origins
    }

    /// Whether a rule asks for more of a message than its topic.
    #[must_use]
    pub fn look_at_messages(&self) -> bool {
        self.lists.look_at_messages
    }

    /// Whether a rule asks for early data: then what is refused there waits for the handshake.
    #[must_use]
    pub fn look_at_early_data(&self) -> bool {
        self.lists.look_at_early_data
    }

    /// Whether the subject may publish such a message to a topic name. What the server tells of itself
    /// nobody may, but the state of a bridge.
    #[must_use]
    pub fn may_publish(&self, subject: Subject<'_>, topic: &str, kind: MessageKind) -> bool {
        match self.decide_publish(subject, topic, kind).0 {
            Reading::Asked => self.answer(subject, ActionName::Publish, topic) == Some(true),
            reading => reading == Reading::Whole,
        }
    }

    /// Whether what was let through when it came may still be published, by a will.
    pub(crate) fn may_publish_still(
        &self,
        subject: Subject<'_>,
        topic: &str,
        kind: MessageKind,
    ) -> bool {
        self.decide_publish(subject, topic, kind).0 != Reading::Refused
    }

    fn decide_publish<'a>(
        &'a self,
        subject: Subject<'a>,
        topic: &str,
        kind: MessageKind,
    ) -> (Reading, By<'a>) {
        if topic.starts_with(SERVER_TOPICS) && !sterna_topic::matches(BRIDGE_STATES, topic) {
            return (Reading::Refused, By::Server);
        }
        let own = subject.standing.map_or(&[][..], |own| &own.publish);
        match deciding(own, &self.lists.publish, subject, topic, kind) {
            Some(rule) => (rule.reading(subject, kind), By::Rule(rule)),
            None => (whole(self.lists.default_allow), By::Default),
        }
    }

    /// Whether a PUBLISH of QoS 0 to a topic name may be done twice without harm: the rule that
    /// allows it says so.
    #[must_use]
    pub fn is_idempotent(&self, subject: Subject<'_>, topic: &str, kind: MessageKind) -> bool {
        let own = subject.standing.map_or(&[][..], |own| &own.publish);
        deciding(own, &self.lists.publish, subject, topic, kind)
            .is_some_and(|rule| rule.effect == Effect::Allow && rule.is_idempotent)
    }

    /// What the acknowledgement of the subject's message to a topic name waits for at least: the rule that
    /// allows it says so.
    #[must_use]
    pub fn durability(
        &self,
        subject: Subject<'_>,
        topic: &str,
        kind: MessageKind,
    ) -> Option<Durability> {
        if !self.lists.has_durability {
            return None;
        }
        let own = subject.standing.map_or(&[][..], |own| &own.publish);
        deciding(own, &self.lists.publish, subject, topic, kind).and_then(|rule| rule.durability)
    }

    /// What becomes of the subject's subscription to a filter (of a shared subscription: what follows
    /// the share name).
    #[must_use]
    pub fn reading(&self, subject: Subject<'_>, filter: &str) -> Reading {
        self.read(subject, filter, false).0
    }

    /// The same, with the place of the rule that has asked, if one has. A subscription that `stands` stays
    /// until the webhook says no.
    pub(crate) fn read(
        &self,
        subject: Subject<'_>,
        filter: &str,
        stands: bool,
    ) -> (Reading, Option<usize>) {
        let mut is_part = false;
        let (reading, by) = self.decide_subscribe(subject, filter, |_| is_part = true);
        if reading != Reading::Asked {
            return (reading, None);
        }
        let answer = self.answer(subject, ActionName::Subscribe, filter);
        let By::Rule(rule) = by else {
            return (Reading::Refused, None);
        };
        match (answer.unwrap_or(stands), is_part) {
            (false, _) => (Reading::Refused, None),
            (true, true) => (Reading::Part, rule.place),
            (true, false) => (Reading::Whole, rule.place),
        }
    }

    /// The same, with what decides. `denied_in_part` gets each rule that denies some topics.
    fn decide_subscribe<'a>(
        &'a self,
        subject: Subject<'a>,
        filter: &str,
        mut denied_in_part: impl FnMut(&'a Compiled),
    ) -> (Reading, By<'a>) {
        let mut all = Reading::Whole;
        let own = subject.standing.map_or(&[][..], |own| &own.subscribe);
        for rule in all_rules(own, &self.lists.subscribe) {
            if !rule.is_for(subject, MessageKind::UNKNOWN) {
                continue;
            }
            let mut patterns = rule.patterns.iter();
            if rule.effect == Effect::Allow {
                if patterns.any(|pattern| pattern.allows(subject, filter)) {
                    return (all, By::Rule(rule));
                }
                continue;
            }
            let reading = rule.reading(subject, MessageKind::UNKNOWN);
            for pattern in patterns {
                if pattern.denies(subject, filter) {
                    let is_let_through = reading == Reading::Whole;
                    return (if is_let_through { all } else { reading }, By::Rule(rule));
                }
                if reading != Reading::Whole && pattern.touches(subject, filter) {
                    all = Reading::Part;
                    denied_in_part(rule);
                }
            }
        }
        if self.lists.default_allow {
            (all, By::Default)
        } else {
            (Reading::Refused, By::Default)
        }
    }

    /// Whether the subject may subscribe to a filter (of a shared subscription: what follows the
    /// share name), wholly or in part.
    #[must_use]
    pub fn may_subscribe(&self, subject: Subject<'_>, filter: &str) -> bool {
        self.reading(subject, filter) != Reading::Refused
    }

    /// Whether a message of a topic name may be delivered to the subject.
    #[must_use]
    pub fn may_receive(&self, subject: Subject<'_>, topic: &str) -> bool {
        self.may_receive_by(subject, topic, |_| false)
    }

    /// The same; a rule that asks is one that allows where `is_answered` says so of its place.
    pub(crate) fn may_receive_by(
        &self,
        subject: Subject<'_>,
        topic: &str,
        is_answered: impl Fn(Option<usize>) -> bool,
    ) -> bool {
        let own = subject.standing.map_or(&[][..], |own| &own.subscribe);
        let kind = MessageKind::UNKNOWN;
        match deciding(own, &self.lists.subscribe, subject, topic, kind) {
            Some(rule) => match rule.reading(subject, kind) {
                Reading::Asked => is_answered(rule.place),
                reading => reading == Reading::Whole,
            },
            None => self.lists.default_allow,
        }
    }

    /// Whether the subject may delete a topic: its retained message, and everybody's subscriptions to
    /// exactly this topic. Only a rule or being an administrator gives this right.
    #[must_use]
    pub fn may_delete(&self, subject: Subject<'_>, topic: &str) -> bool {
        match self.decide_delete(subject, topic).0 {
            Reading::Asked => self.answer(subject, ActionName::Delete, topic) == Some(true),
            reading => reading == Reading::Whole,
        }
    }

    fn decide_delete<'a>(&'a self, subject: Subject<'a>, topic: &str) -> (Reading, By<'a>) {
        if topic.starts_with(SERVER_TOPICS) {
            return (Reading::Refused, By::Server);
        }
        let own = subject.standing.map_or(&[][..], |own| &own.delete);
        let kind = MessageKind::UNKNOWN;
        match deciding(own, &self.lists.delete, subject, topic, kind) {
            Some(rule) => (rule.reading(subject, kind), By::Rule(rule)),
            None => (Reading::Refused, By::Nothing),
        }
    }
}

/// What decides.
#[derive(Clone, Copy, Debug)]
enum By<'a> {
    Rule(&'a Compiled),
    /// `authorization.default_allow`.
    Default,
    /// The topic is the server's.
    Server,
    /// No rule gives the right, and the default does not.
    Nothing,
}

/// What is allowed wholly, or refused.
const fn whole(is_allowed: bool) -> Reading {
    if is_allowed {
        Reading::Whole
    } else {
        Reading::Refused
    }
}

/// The rules for a client: what was given to it comes before what the configuration says, and after what
/// is the broker's.
fn all_rules<'a>(own: &'a [Compiled], rules: &'a [Compiled]) -> impl Iterator<Item = &'a Compiled> {
    let of_broker = rules.iter().take_while(|rule| rule.place.is_none()).count();
    let (first, rest) = rules.split_at(of_broker);
    first.iter().chain(own).chain(rest)
}

/// The first rule that fits a topic name.
fn deciding<'a>(
    own: &'a [Compiled],
    rules: &'a [Compiled],
    subject: Subject<'_>,
    topic: &str,
    kind: MessageKind,
) -> Option<&'a Compiled> {
    all_rules(own, rules).find(|rule| {
        rule.is_for(subject, kind)
            && rule.patterns.iter().any(|pattern| {
                if rule.effect == Effect::Allow {
                    pattern.allows(subject, topic)
                } else {
                    pattern.denies(subject, topic)
                }
            })
    })
}

fn is_about(rule: &Rule, action: ActionName) -> bool {
    if rule.actions.is_empty() {
        // Who may publish and subscribe may not, for that, take from others what they have.
        return action != ActionName::Delete || rule.effect == Effect::Deny;
    }
    rule.actions.contains(&action)
}

impl Compiled {
    fn new(place: usize, rule: &Rule, config: &Authorization) -> Self {
        Self {
            place: Some(place),
            users: Users::of(&rule.users, &rule.groups, config),
            clients: (rule.clients.iter())
                .map(|name| name.as_str().into())
                .collect(),
            effect: rule.effect,
            is_idempotent: rule.idempotent,
            conditions: Conditions::of(rule, config).map(Box::new),
            durability: rule.durability,
            patterns: rule
                .topics
                .iter()
                .map(|topic| Pattern::new(topic))
                .collect(),
        }
    }

    /// A rule of the broker's own.
    fn own(users: &Users, is_allowed: bool, topics: &str) -> Self {
        let effect = if is_allowed {
            Effect::Allow
        } else {
            Effect::Deny
        };
        let rule = Rule {
            effect,
            topics: vec![topics.to_owned()],
            ..Rule::default()
        };
        Self::given(users, &rule)
    }

    /// A rule that is not of the configuration.
    fn given(users: &Users, rule: &Rule) -> Self {
        Self {
            place: None,
            users: users.clone(),
            clients: FxHashSet::default(),
            effect: rule.effect,
            is_idempotent: false,
            conditions: None,
            durability: None,
            patterns: (rule.topics.iter())
                .map(|topic| Pattern::new(topic))
                .collect(),
        }
    }

    /// What becomes of what it fits. A rule that asks lets through what it fits only by what is not known: that
    /// is asked about as soon as it is known.
    fn reading(&self, subject: Subject<'_>, kind: MessageKind) -> Reading {
        match self.effect {
            Effect::Deny => Reading::Refused,
            Effect::Ask if self.holds(subject, kind, false) => Reading::Asked,
            Effect::Allow | Effect::Ask => Reading::Whole,
        }
    }

    fn is_for(&self, subject: Subject<'_>, kind: MessageKind) -> bool {
        self.users.have(subject)
            && (self.clients.is_empty() || self.clients.contains(subject.client))
            && self.holds(subject, kind, self.effect != Effect::Deny)
    }

    fn holds(&self, subject: Subject<'_>, kind: MessageKind, unknown: bool) -> bool {
        (self.conditions.as_ref()).is_none_or(|conditions| conditions.hold(subject, kind, unknown))
    }
}

impl Users {
    const EVERYBODY: Self = Self {
        anonymous: true,
        named: true,
        names: FxHashSet::with_hasher(rustc_hash::FxBuildHasher),
        groups: FxHashSet::with_hasher(rustc_hash::FxBuildHasher),
    };

    /// The users whom a rule or a limit names.
    fn of(users: &[String], groups: &[String], config: &Authorization) -> Self {
        if users.is_empty() && groups.is_empty() {
            return Self::EVERYBODY;
        }
        let of_groups = (config.groups.iter()).filter(|group| groups.contains(&group.name));
        let of_groups = of_groups.flat_map(|group| &group.users);
        Self {
            anonymous: false,
            named: users.iter().any(|name| name == "*"),
            names: (users.iter().chain(of_groups))
                .map(|name| name.as_str().into())
                .collect(),
            groups: (groups.iter()).map(|name| name.as_str().into()).collect(),
        }
    }

    fn admins(names: &[String]) -> Self {
        let (anonymous, names): (Vec<&String>, Vec<&String>) =
            names.iter().partition(|name| *name == ANONYMOUS);
        Self {
            anonymous: !anonymous.is_empty(),
            named: false,
            names: names.into_iter().map(|name| name.as_str().into()).collect(),
            groups: FxHashSet::default(),
        }
    }

    /// Whether a client is one of them, by its name or by what is said of it.
    fn have(&self, subject: Subject<'_>) -> bool {
        self.has(subject.user) || subject.standing.is_some_and(|own| own.is_of(&self.groups))
    }

    fn has(&self, user: Option<&str>) -> bool {
        user.map_or(self.anonymous, |user| {
            self.named || self.names.contains(user)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
        let rules = Rules::new(&Authorization {
            default_allow: false,
            admins: Vec::new(),
            rules: vec![
                rule(Effect::Deny, &[], &["secret/#"]),
                rule(Effect::Allow, &["*"], &["home/%u/#", "secret/ann"]),
            ],
            ..Authorization::default()
        });
        assert!(rules.may_publish(ANN, "home/ann/door", MessageKind::UNKNOWN));
        assert!(!rules.may_publish(ANN, "home/bob/door", MessageKind::UNKNOWN));
        assert!(!rules.may_publish(ANN, "secret/ann", MessageKind::UNKNOWN));
        assert!(!rules.may_publish(NOBODY, "home/ann/door", MessageKind::UNKNOWN));
    }

    #[test]
    fn a_subscription_must_lie_inside_what_is_allowed() {
        let rules = Rules::new(&Authorization {
            default_allow: false,
            admins: Vec::new(),
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
    fn a_subscription_that_touches_what_is_denied_stands_in_part() {
        let rules = Rules::new(&Authorization {
            default_allow: true,
            admins: Vec::new(),
            rules: vec![rule(Effect::Deny, &[], &["a/secret"])],
            ..Authorization::default()
        });
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
            let rules = Rules::new(&config);
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
        let rules = Rules::new(&Authorization {
            default_allow: true,
            admins: Vec::new(),
            rules: vec![rule(Effect::Deny, &[], &["$SYS/#"])],
            ..Authorization::default()
        });
        assert_eq!(rules.reading(NOBODY, "#"), Reading::Whole);
        assert_eq!(
            rules.reading(NOBODY, "$SYS/broker/uptime"),
            Reading::Refused
        );
    }

    #[test]
    fn a_denial_that_cannot_be_filled_in_denies_everybodys() {
        let rules = Rules::new(&Authorization {
            default_allow: true,
            admins: Vec::new(),
            rules: vec![rule(Effect::Deny, &[], &["private/%u/#"])],
            ..Authorization::default()
        });
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
            let rules = Rules::new(&config);
            assert_eq!(rules.reading(ANN, path), Reading::Whole);
            for subject in [NOBODY, bob] {
                assert_eq!(rules.reading(subject, path), Reading::Refused);
                assert_eq!(rules.reading(subject, "$SYS/#"), Reading::Part);
                assert_eq!(rules.reading(subject, "$SYS/broker/#"), Reading::Whole);
                assert_eq!(rules.reading(subject, "#"), Reading::Whole);
            }
        }
        config.admins = vec![ANONYMOUS.to_owned()];
        let rules = Rules::new(&config);
        assert_eq!(rules.reading(NOBODY, path), Reading::Whole);
        assert_eq!(rules.reading(bob, path), Reading::Refused);
    }

    #[test]
    fn of_the_servers_topics_only_a_bridges_state_is_published_by_clients() {
        let state = "$SYS/broker/connection/edge/state";
        let open = Rules::new(&Authorization::default());
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
        assert!(!Rules::new(&config).may_publish(NOBODY, state, MessageKind::UNKNOWN));
        config.rules = vec![rule(
            Effect::Allow,
            &["ann"],
            &["$SYS/broker/connection/%c/state"],
        )];
        let rules = Rules::new(&config);
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
        let rules = Rules::new(&Authorization {
            default_allow: true,
            admins: Vec::new(),
            rules: vec![rule(Effect::Allow, &[], &["sensors/count"]), harmless],
            ..Authorization::default()
        });
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
        let rules = Rules::new(&Authorization {
            default_allow: false,
            admins: Vec::new(),
            rules: vec![
                rule(Effect::Deny, &[], &["a/kept"]),
                rule(Effect::Allow, &[], &["a/#"]),
                may_delete,
            ],
            ..Authorization::default()
        });
        assert!(rules.may_delete(ANN, "a/b") && !rules.may_delete(NOBODY, "a/b"));
        assert!(
            rules.may_publish(NOBODY, "a/b", MessageKind::UNKNOWN)
                && rules.may_subscribe(NOBODY, "a/b")
        );
        assert!(!rules.may_delete(ANN, "a/kept") && !rules.may_delete(ANN, "b"));
        let mut config = Authorization::default();
        let open = Rules::new(&config);
        assert!(!open.may_delete(NOBODY, "a") && !open.may_delete(ANN, "a"));
        config.admins = vec!["ann".to_owned()];
        let open = Rules::new(&config);
        assert!(open.may_delete(ANN, "a") && !open.may_delete(NOBODY, "a"));
        assert!(!open.may_delete(ANN, "$SYS/broker/uptime"));
    }

    #[test]
    fn a_name_with_wildcards_widens_nothing() {
        let rules = Rules::new(&Authorization {
            default_allow: false,
            admins: Vec::new(),
            rules: vec![rule(Effect::Allow, &[], &["home/%u/#"])],
            ..Authorization::default()
        });
        let subject = Subject {
            user: Some("+"),
            client: "x",
            origin: Origin::UNKNOWN,
            standing: None,
        };
        assert!(!rules.may_subscribe(subject, "home/+/#"));
        assert!(!rules.may_publish(subject, "home/ann", MessageKind::UNKNOWN));
    }
}
