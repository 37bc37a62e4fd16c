//! Rights to publish and subscribe: an ordered list of rules, the first that fits decides.
//!
//! The rules are taken apart when they are loaded, one list for each action; to ask them allocates
//! nothing. A topic name is decided by the first rule with a filter that matches it. So is a
//! subscription, by what it would deliver:
//!
//! - a rule that allows it must cover the whole filter, and a rule that denies the whole refuses it;
//! - a rule that denies only some of its topics leaves it standing. Each topic is then decided by its name at the
//!   delivery. So the subscriber gets what it could subscribe to by name.
//!
//! A rule that asks leaves the decision to the webhook, which the front door asks before it acts
//! (`Rules::asks`). The rules know its answers of late; without one, it is a no.

mod answers;
mod compiled;
mod conditions;
mod denial;
mod explain;
mod known_topics;
mod pattern;
mod recent;
mod standing;
mod without_effect;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(crate) use answers::{Answer, Answers};
use compiled::{Compiled, Users, all_rules, deciding, is_about};
pub use conditions::{MessageKind, Origin};
pub(crate) use denial::{Denial, words_of};
pub use explain::{Condition, Decision, Reason, check_topic};
pub(crate) use known_topics::{KnownTopics, Owner};
pub(crate) use recent::Recent;
pub(crate) use standing::GivenRule;
pub use standing::{Standing, Standings};
pub(crate) use without_effect::without_effect;

use crate::config::{ActionName, Authorization, Durability, Effect, Limit, Listener, Rule};

/// Topics of the server.
const SERVER_TOPICS: &str = "$SYS/";
/// Topics about single clients.
const CLIENT_TOPICS: &str = "$SYS/sterna/#";

/// A client as the rules see it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Subject<'a> {
    /// User name, if it gave one that was verified.
    pub user: Option<&'a str>,
    /// Client identifier.
    pub client: &'a str,
    /// From where it speaks.
    pub origin: Origin,
    /// Further attributes of the client, from its token or the webhook.
    pub standing: Option<&'a Standing>,
}

/// Decision about a subscription.
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
    /// The webhook's latest answers; `None` without a webhook.
    answers: Option<Arc<Answers>>,
}

/// The rules of each action, in order.
#[derive(Debug, Default)]
struct Lists {
    /// Tells them from others, also from those that were made of the same configuration.
    number: u64,
    default_allow: bool,
    /// Whether a rule sets the durability that acknowledgements wait for.
    has_durability: bool,
    publish: Box<[Compiled]>,
    subscribe: Box<[Compiled]>,
    delete: Box<[Compiled]>,
    admins: Users,
    limits: Box<[(Users, Arc<Limit>)]>,
    /// Whether a rule asks from where clients speak.
    look_at_origins: bool,
    /// Whether a rule asks for the addresses of clients.
    look_at_addresses: bool,
    /// Whether a rule asks for more of a message than its topic.
    look_at_messages: bool,
    /// Whether a rule asks for early data.
    look_at_early_data: bool,
    /// Whether a rule asks.
    has_questions: bool,
    /// Configuration that the rules were made from.
    source: Authorization,
    /// Names of the listeners, by their places.
    listeners: Box<[Option<String>]>,
}

impl Rules {
    /// Rules from the configuration, with the listeners that they may name.
    #[must_use]
    pub fn new(config: &Authorization, listeners: &[Listener]) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let compiled = |action| {
            let rules = config.rules.iter().enumerate();
            let about = rules.filter(move |(_, rule)| is_about(rule, action));
            about.map(|(place, rule)| Compiled::new(place, rule, config, listeners))
        };
        let admins = Users::admins(config);
        let reads_server = Compiled::own(&admins, true, &format!("{SERVER_TOPICS}#"));
        let hides_clients = Compiled::own(&Users::EVERYBODY, false, CLIENT_TOPICS);
        let deletes = Compiled::own(&admins, true, "#");
        let lists = Lists {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
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
            look_at_addresses: config.rules.iter().any(|rule| !rule.addresses.is_empty()),
            look_at_messages: config.rules.iter().any(Rule::looks_at_messages),
            look_at_early_data: config.rules.iter().any(|rule| rule.early_data.is_some()),
            has_questions: config.rules.iter().any(|rule| rule.effect == Effect::Ask),
            source: config.clone(),
            listeners: listeners.iter().map(|it| it.name.clone()).collect(),
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
        Some(self.answer_for(subject, action, topic)?.0)
    }

    /// The webhook's answer, and for how long it holds.
    fn answer_for(
        &self,
        subject: Subject<'_>,
        action: ActionName,
        topic: &str,
    ) -> Option<(bool, Duration)> {
        (self.answers.as_ref())?.get(subject, action, topic)
    }

    /// Whether a client is an administrator, by its user (`None` for clients without a name) or a group.
    #[must_use]
    pub fn is_admin(&self, subject: Subject<'_>) -> bool {
        self.lists.admins.have(subject)
    }

    /// Whether a client is in one of some groups, by the configuration, its token or the webhook.
    #[must_use]
    pub fn is_of(&self, subject: Subject<'_>, groups: &[String]) -> bool {
        let config = &self.lists.source;
        !groups.is_empty() && Users::of(&[], groups, config).have(subject)
    }

    /// Configuration that the rules were made from.
    #[must_use]
    pub fn source(&self) -> &Authorization {
        &self.lists.source
    }

    /// The place of the listener that has a name, for an [`Origin`].
    #[must_use]
    pub fn listener(&self, name: &str) -> Option<u16> {
        let mut places = (0..).zip(&self.lists.listeners);
        places.find_map(|(at, known)| (known.as_deref() == Some(name)).then_some(at))
    }

    /// Whether they are made from the same configuration.
    #[must_use]
    pub fn are_same(&self, other: &Self) -> bool {
        self.lists.source == other.lists.source
    }

    /// Limits of a client, by its user and its groups; `None` without limits.
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

    /// Whether a rule asks for the addresses of clients.
    #[must_use]
    pub fn look_at_addresses(&self) -> bool {
        self.lists.look_at_addresses
    }

    /// Whether a rule asks for more of a message than its topic.
    #[must_use]
    pub fn look_at_messages(&self) -> bool {
        self.lists.look_at_messages
    }

    /// Whether a rule asks for early data. If so, refused early data waits for the handshake.
    #[must_use]
    pub fn look_at_early_data(&self) -> bool {
        self.lists.look_at_early_data
    }

    /// Whether the subject may publish a message of this kind to a topic name. Of the server's own
    /// topics, only the state of a bridge can be allowed.
    #[must_use]
    pub fn may_publish(&self, subject: Subject<'_>, topic: &str, kind: MessageKind) -> bool {
        match self.decide_publish(subject, topic, kind).0 {
            Reading::Asked => self.answer(subject, ActionName::Publish, topic) == Some(true),
            reading => reading == Reading::Whole,
        }
    }

    /// Whether a message that was let through when it came may still be published, by a will.
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
        if sterna_broker::is_of_broker(topic) {
            return (Reading::Refused, By::Server);
        }
        let own = subject.standing.map_or(&[][..], |own| &own.publish);
        match deciding(own, &self.lists.publish, subject, topic, kind) {
            Some(rule) => (rule.reading(subject, kind), By::Rule(rule)),
            None => (whole(self.lists.default_allow), By::Default),
        }
    }

    /// Whether a PUBLISH of QoS 0 to a topic name may be done twice without harm. The rule that
    /// allows it says so.
    #[must_use]
    pub fn is_idempotent(&self, subject: Subject<'_>, topic: &str, kind: MessageKind) -> bool {
        let own = subject.standing.map_or(&[][..], |own| &own.publish);
        deciding(own, &self.lists.publish, subject, topic, kind)
            .is_some_and(|rule| rule.effect == Effect::Allow && rule.is_idempotent)
    }

    /// Least durability for which the acknowledgement of the subject's message to a topic name
    /// waits. The rule that allows the message says so.
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

    /// Decision about the subject's subscription to a filter. For a shared subscription, give the
    /// filter behind the share name.
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

    /// Whether the subject may subscribe to a filter, wholly or in part. For a shared subscription,
    /// give the filter behind the share name.
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

    /// Whether a rule denies the subject messages of a topic name. A right that is missing does not.
    pub(crate) fn denies(&self, subject: Subject<'_>, topic: &str) -> bool {
        let own = subject.standing.map_or(&[][..], |own| &own.subscribe);
        let kind = MessageKind::UNKNOWN;
        deciding(own, &self.lists.subscribe, subject, topic, kind)
            .is_some_and(|rule| rule.effect == Effect::Deny)
    }

    /// Whether a rule denies the subject any messages.
    pub(crate) fn deny_something(&self, subject: Subject<'_>) -> bool {
        let own = subject.standing.map_or(&[][..], |own| &own.subscribe);
        all_rules(own, &self.lists.subscribe)
            .any(|rule| rule.effect == Effect::Deny && rule.is_for(subject, MessageKind::UNKNOWN))
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

/// The source of a decision.
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

/// The reading of an action that is allowed wholly, or refused.
const fn whole(is_allowed: bool) -> Reading {
    if is_allowed {
        Reading::Whole
    } else {
        Reading::Refused
    }
}

#[cfg(test)]
mod tests;
