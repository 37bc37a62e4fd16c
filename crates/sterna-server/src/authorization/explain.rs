//! The explanation of a decision about a client's action, by the code that decides.

use rustc_hash::FxHashMap;

use super::{By, Compiled, MessageKind, Origin, Reading, Rules, Subject};
use crate::config::{ActionName, Rule, TransportName};

/// Answer of the rules to an action, with the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    /// Whether it is allowed; of a subscription, whether wholly or in part.
    pub reading: Reading,
    /// Reason of a decision.
    pub reason: Reason,
    /// Rules that deny some topics of a subscription which is allowed otherwise, in order.
    pub denied_in_part: Vec<Reason>,
}

/// Reason of a decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// A rule of the configuration, counted from 0.
    Rule(usize),
    /// A rule of the broker: only `authorization.admins` may do this.
    Administrators,
    /// `authorization.default_allow`: no rule fits.
    Default,
    /// Topics below `$SYS/` are the server's.
    Server,
    /// No rule gives the right, and it needs one.
    Nothing,
}

impl From<By<'_>> for Reason {
    fn from(by: By<'_>) -> Self {
        match by {
            By::Rule(rule) => Self::from(rule),
            By::Default => Self::Default,
            By::Server => Self::Server,
            By::Nothing => Self::Nothing,
        }
    }
}

impl From<&Compiled> for Reason {
    fn from(rule: &Compiled) -> Self {
        rule.place.map_or(Self::Administrators, Self::Rule)
    }
}

/// Condition on which a decision may depend, beside client, action and topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// The listener by which the client came.
    Listener,
    /// Its transport.
    Transport,
    /// The quality of service of a message.
    Qos,
    /// Whether it is to be retained.
    Retain,
    /// Whether it came in early data.
    EarlyData,
    /// The client's address.
    Address,
}

impl Condition {
    /// Its name as a parameter of the API; on the command line with `-` in the place of `_`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Listener => "listener",
            Self::Transport => "transport",
            Self::Qos => "qos",
            Self::Retain => "retain",
            Self::EarlyData => "early_data",
            Self::Address => "address",
        }
    }
}

/// Checks the topic of an action: a filter of a subscription, else a name.
///
/// # Errors
/// A sentence with the topic and its fault.
pub fn check_topic(action: ActionName, topic: &str) -> Result<(), String> {
    let checked = match action {
        ActionName::Subscribe => sterna_mqtt::topic::check_filter(topic),
        ActionName::Publish | ActionName::Delete => sterna_mqtt::topic::check_name(topic),
    };
    checked.map_err(|error| format!("`{topic}`: {error}"))
}

impl Rules {
    /// Explains the decision about an action on a topic name, or about a subscription to a filter.
    /// `kind` is that of a published message.
    #[must_use]
    pub fn explain<'a>(
        &'a self,
        subject: Subject<'a>,
        action: ActionName,
        topic: &str,
        kind: MessageKind,
    ) -> Decision {
        let mut denied_in_part = Vec::new();
        let (reading, by) = match action {
            ActionName::Publish => self.decide_publish(subject, topic, kind),
            ActionName::Delete => self.decide_delete(subject, topic),
            ActionName::Subscribe => self.decide_subscribe(subject, topic, |rule| {
                denied_in_part.push(Reason::from(rule));
            }),
        };
        // An action that is refused in the end is refused as a whole.
        if reading == Reading::Refused {
            denied_in_part.clear();
        }
        denied_in_part.dedup();
        Decision {
            reading,
            reason: by.into(),
            denied_in_part,
        }
    }

    /// Explains the decision in the best case for the client, of those that fit what is known of it, and says on what
    /// else the decision depends. A case is one listener, one transport and one kind of message. An address that is not
    /// known fits no rule that asks for one and denies, and each that allows.
    #[must_use]
    pub fn explain_best<'a>(
        &'a self,
        subject: Subject<'a>,
        action: ActionName,
        topic: &str,
        kind: MessageKind,
    ) -> (Decision, Vec<Condition>) {
        let publishes = action == ActionName::Publish;
        let rules = &self.source().rules;
        let asks = |for_it: fn(&Rule) -> bool| rules.iter().any(for_it);
        let is_named = |name: &Option<String>| {
            let is_it = |one: &String| Some(one) == name.as_ref();
            rules.iter().any(|rule| rule.listeners.iter().any(is_it))
        };
        // Those that no rule names are alike.
        let mut has_other = false;
        let listeners = (0..)
            .zip(&self.lists.listeners)
            .filter(|(_, name)| is_named(name) || !std::mem::replace(&mut has_other, true));
        let listeners: Vec<u16> = listeners.map(|(place, _)| place).collect();
        let origin = subject.origin;
        let cases = Cases {
            listener: candidates(
                origin.listener,
                asks(|rule| !rule.listeners.is_empty()),
                listeners,
            ),
            transport: candidates(
                origin.transport,
                asks(|rule| !rule.transports.is_empty()),
                TransportName::ALL,
            ),
            qos: candidates(
                kind.qos,
                publishes && asks(|rule| !rule.qos.is_empty()),
                0..=2,
            ),
            retain: candidates(
                kind.retain,
                publishes && asks(|rule| rule.retain.is_some()),
                [false, true],
            ),
            early_data: candidates(
                kind.early_data,
                publishes && asks(|rule| rule.early_data.is_some()),
                [false, true],
            ),
        };
        let mut readings = FxHashMap::default();
        let mut best = None;
        for place in cases.places() {
            let (origin, kind) = cases.at(place, origin.address);
            let decision = self.explain(Subject { origin, ..subject }, action, topic, kind);
            readings.insert(place, decision.reading);
            if best
                .as_ref()
                .is_none_or(|best| rank(&decision) > rank(best))
            {
                best = Some(decision);
            }
        }
        let is_open = |dimension: usize| {
            readings.iter().any(|(place, reading)| {
                let mut first = *place;
                first[dimension] = 0;
                readings.get(&first) != Some(reading)
            })
        };
        let all = [
            Condition::Listener,
            Condition::Transport,
            Condition::Qos,
            Condition::Retain,
            Condition::EarlyData,
        ];
        let open = (all.into_iter().enumerate()).filter(|(at, _)| is_open(*at));
        let mut open: Vec<Condition> = open.map(|(_, condition)| condition).collect();
        if origin.address.is_none() && asks(|rule| !rule.addresses.is_empty()) {
            open.push(Condition::Address);
        }
        // Without listeners there is no case.
        let decision = best.unwrap_or_else(|| self.explain(subject, action, topic, kind));
        (decision, open)
    }
}

/// How good a decision is for the client.
const fn rank(decision: &Decision) -> u8 {
    match decision.reading {
        Reading::Refused => 0,
        Reading::Asked => 1,
        Reading::Part => 2,
        Reading::Whole => 3,
    }
}

/// Possible values: the one that is known, or all where a rule asks for it.
fn candidates<T>(
    known: Option<T>,
    is_asked: bool,
    all: impl IntoIterator<Item = T>,
) -> Vec<Option<T>> {
    if known.is_some() || !is_asked {
        vec![known]
    } else {
        all.into_iter().map(Some).collect()
    }
}

/// The cases that fit what is known of a client and its message.
struct Cases {
    listener: Vec<Option<u16>>,
    transport: Vec<Option<TransportName>>,
    qos: Vec<Option<u8>>,
    retain: Vec<Option<bool>>,
    early_data: Vec<Option<bool>>,
}

impl Cases {
    /// The place of each case in these lists.
    fn places(&self) -> Vec<[usize; 5]> {
        let lengths = [
            self.listener.len(),
            self.transport.len(),
            self.qos.len(),
            self.retain.len(),
            self.early_data.len(),
        ];
        let mut places = vec![[0; 5]];
        for (at, length) in lengths.into_iter().enumerate() {
            let of_before = std::mem::take(&mut places);
            places = (of_before.into_iter())
                .flat_map(|place| {
                    (0..length).map(move |one| {
                        let mut place = place;
                        place[at] = one;
                        place
                    })
                })
                .collect();
        }
        places
    }

    fn at(&self, place: [usize; 5], address: Option<std::net::IpAddr>) -> (Origin, MessageKind) {
        let [listener, transport, qos, retain, early_data] = place;
        let origin = Origin {
            address,
            transport: self.transport[transport],
            listener: self.listener[listener],
        };
        let kind = MessageKind {
            qos: self.qos[qos],
            retain: self.retain[retain],
            early_data: self.early_data[early_data],
        };
        (origin, kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn rules(text: &str) -> Rules {
        let config = config::parse("x", text).unwrap();
        config.check().unwrap();
        Rules::new(&config.authorization, &config.listeners)
    }

    #[test]
    fn what_decides_is_named_and_is_what_decides() {
        let rules = rules(
            "[authorization]\ndefault_allow = false\nadmins = ['root']\n\
             [[authorization.group]]\nname = 'plant'\nusers = ['ann', 'bob']\n\
             [[authorization.group]]\nname = 'office'\nusers = ['eve']\n\
             [[authorization.rule]]\ngroups = ['plant']\neffect = 'deny'\ntopics = ['a/secret']\n\
             [[authorization.rule]]\ngroups = ['plant']\nusers = ['eve']\ntopics = ['a/#']\n\
             [[authorization.rule]]\nactions = ['publish']\ntopics = ['free/%c']\n",
        );
        let (publish, subscribe, delete) = (
            ActionName::Publish,
            ActionName::Subscribe,
            ActionName::Delete,
        );
        let (whole, part, refused) = (Reading::Whole, Reading::Part, Reading::Refused);
        for (user, action, topic, reading, reason, denied_in_part) in [
            (Some("ann"), publish, "a/x", whole, Reason::Rule(1), &[][..]),
            (
                Some("bob"),
                publish,
                "a/secret",
                refused,
                Reason::Rule(0),
                &[],
            ),
            (
                Some("eve"),
                publish,
                "a/secret",
                whole,
                Reason::Rule(1),
                &[],
            ),
            (
                Some("ann"),
                subscribe,
                "a/#",
                part,
                Reason::Rule(1),
                &[Reason::Rule(0)],
            ),
            (Some("eve"), subscribe, "a/#", whole, Reason::Rule(1), &[]),
            (Some("ann"), subscribe, "#", refused, Reason::Default, &[]),
            (None, subscribe, "a/#", refused, Reason::Default, &[]),
            (None, publish, "free/c1", whole, Reason::Rule(2), &[]),
            (None, publish, "free/c2", refused, Reason::Default, &[]),
            (None, publish, "$SYS/x", refused, Reason::Server, &[]),
            (None, delete, "a/x", refused, Reason::Nothing, &[]),
            (
                Some("root"),
                delete,
                "a/x",
                whole,
                Reason::Administrators,
                &[],
            ),
            (
                Some("root"),
                subscribe,
                "$SYS/#",
                whole,
                Reason::Administrators,
                &[],
            ),
            (
                Some("ann"),
                subscribe,
                "$SYS/sterna/x",
                refused,
                Reason::Administrators,
                &[],
            ),
        ] {
            let subject = Subject {
                user,
                client: "c1",
                ..Subject::default()
            };
            let kind = MessageKind::UNKNOWN;
            let found = rules.explain(subject, action, topic, kind);
            let expected = Decision {
                reading,
                reason,
                denied_in_part: denied_in_part.to_vec(),
            };
            assert_eq!(found, expected, "{user:?} {action:?} {topic}");
            let decided = match action {
                ActionName::Publish => rules.may_publish(subject, topic, kind),
                ActionName::Delete => rules.may_delete(subject, topic),
                ActionName::Subscribe => rules.may_subscribe(subject, topic),
            };
            assert_eq!(decided, reading != Reading::Refused);
        }
    }
}
