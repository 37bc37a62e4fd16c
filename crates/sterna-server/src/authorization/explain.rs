//! The explanation of a decision about a client's action, by the code that decides.

use super::{By, Compiled, MessageKind, Reading, Rules, Subject};
use crate::config::ActionName;

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
