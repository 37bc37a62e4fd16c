//! The section `authorization`: who may publish and subscribe where.

use serde::{Deserialize, Serialize};

use super::{AddressPrefix, Durability, Limit, Listener};

/// In a list of administrators: clients without a user name.
pub(crate) const ANONYMOUS: &str = "anonymous";

settings! {
    /// Rights of clients. The first rule that names the client and the topic decides: see
    /// [Rules](configuring.md#rules).
    #[derive(Eq)]
    pub struct Authorization {
        /// Whether actions are allowed that no rule names.
        reload default_allow: bool = true;
        /// Whether `default_allow` may hold on addresses that other hosts reach. Without it such a listener needs
        /// `default_allow = false`, or a rule for every client and `#`.
        reload allow_default_beyond_loopback: bool = false;
        /// Users who may read all of `$SYS/`, also `$SYS/sterna/` about single clients. They may `DELETE` topics in
        /// HTTP if no rule denies it, and have the role `admin` in the [admin API](admin.md#roles). `anonymous` stands
        /// for clients without a user name: a broker without users needs it to have administrators.
        reload admins: Vec<String>;
        /// Groups whose users are administrators, too.
        reload admin_groups: Vec<String>;
        /// Users whose [rates](configuring.md#limits-of-users) are remembered while they are away.
        reload maximum_remembered_users: u32 = 100_000;
        /// Effect on a connected client when the rules take the right of a subscription. `nothing`: the subscription
        /// gets nothing until the right is back. `disconnect`: its connection ends (MQTT 5.0: DISCONNECT 0x87; AMQP: its
        /// link, with `amqp:unauthorized-access`; HTTP: its response), and the subscription waits for the right, too.
        reload on_lost_right: OnLostRight = OnLostRight::Nothing;
        /// Groups of users, by which rules name them.
        section groups as "group": Vec<Group>;
        /// The rules, in order.
        section rules as "rule": Vec<Rule>;
        /// Limits of users; the first one that names the user holds.
        section limits as "limit": Vec<Limit>;
    }
}

/// Effect on a connected client when the rules take the right of one of its subscriptions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnLostRight {
    /// Nothing.
    #[default]
    Nothing,
    /// Its connection ends; in AMQP its link, and in HTTP its response.
    Disconnect,
}

settings! {
    /// Groups of users, for rules, limits and roles. Each group that one of them names needs an entry.
    #[derive(Eq)]
    pub struct Group {
        /// Name of the group in rules, limits and roles.
        reload name: String, said "required";
        /// Users of the group, named one by one. It needs none if tokens or the webhook give the group.
        reload users: Vec<String>;
    }
}

settings! {
    /// Rules. All conditions of a rule must hold, and the first rule that matches decides. [Rules](configuring.md#rules)
    /// has examples.
    #[derive(Eq)]
    pub struct Rule {
        /// Topic filters. `%u` and `%c` stand for the user name and the client identifier.
        reload topics: Vec<String>, said "required";
        /// User names. `*` is every client with a name.
        reload users: Vec<String>, said "every client";
        /// Names of groups. A rule with `users` and `groups` is for all of them.
        reload groups: Vec<String>;
        /// Client identifiers.
        reload clients: Vec<String>, said "every client";
        /// Decision of the rule. `ask`: the [webhook](webhook.md#what-a-client-may-do) decides.
        reload effect: Effect = Effect::Allow;
        /// Actions that the rule is about. `delete` is `DELETE` of a topic in HTTP, which ends everybody's
        /// subscriptions to it.
        reload actions: Vec<ActionName>, said "`publish` and `subscribe`; with `deny` also `delete`";
        /// Addresses and prefixes from which clients speak: `192.0.2.7`, `10.0.0.0/8`, `2001:db8::/32`.
        reload addresses: Vec<AddressPrefix>, said "every address";
        /// Transports over which clients speak. `quic` includes HTTP/3 and WebTransport.
        reload transports: Vec<TransportName>, said "every one";
        /// Names of the [listeners](#listener) by which clients speak.
        reload listeners: Vec<String>, said "every one";
        /// Whether only administrators are meant (true), or only others (false).
        reload admin: Option<bool>, said "every client";
        /// Whether only messages with the retain flag are meant (true), or only others (false).
        reload retain: Option<bool>, said "every message";
        /// Qualities of service of messages: 0, 1, 2.
        reload qos: Vec<u8>, said "every one";
        /// Whether only messages in early data are meant (true), or only others (false).
        reload early_data: Option<bool>, said "every message";
        /// Durability for which acknowledgements of messages wait at least that this rule allows. The strictest of
        /// listener, rule and [queues](durability.md#when-an-acknowledgement-leaves) wins. Only for a rule that allows
        /// to publish.
        reload durability: Option<Durability>;
        /// Whether messages of QoS 0 that this rule allows may take effect twice without harm. As early data they then
        /// do not wait for the handshake (see `quic.early_data`).
        reload idempotent: bool = false;
    }
}

impl Rule {
    /// The rule on one line, without what it leaves open.
    #[must_use]
    pub fn summary(&self) -> String {
        let text = toml::to_string(self).unwrap_or_default();
        let says = |line: &&str| !line.ends_with("= []") && !line.ends_with("= false");
        text.lines().filter(says).collect::<Vec<_>>().join(", ")
    }
}

/// A transport in rules, as clients choose it by URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TransportName {
    /// TCP in the clear.
    Tcp,
    /// TLS on TCP.
    Tls,
    /// WebSocket in the clear.
    Ws,
    /// WebSocket on TLS.
    Wss,
    /// QUIC, HTTP/3 and WebTransport included.
    Quic,
}

impl TransportName {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Tcp, Self::Tls, Self::Ws, Self::Wss, Self::Quic];
}

/// Effect of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// The action is allowed.
    #[default]
    Allow,
    /// The action is refused.
    Deny,
    /// The webhook decides.
    Ask,
}

/// Action of a client on a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ActionName {
    /// PUBLISH, and a will.
    Publish,
    /// SUBSCRIBE.
    Subscribe,
    /// DELETE of a topic in HTTP, which ends everybody's subscriptions to it.
    Delete,
}

impl Authorization {
    /// The number of the first rule that asks the webhook, counted from 1.
    pub(super) fn first_that_asks(&self) -> Option<usize> {
        let at = (self.rules.iter()).position(|rule| rule.effect == Effect::Ask)?;
        Some(at + 1)
    }

    /// A sentence for each rule that names a listener which there is not.
    pub(super) fn unknown_listeners(&self, listeners: &[Listener]) -> Vec<String> {
        let is_known = |name: &&String| {
            let mut names = listeners.iter().filter_map(|it| it.name.as_ref());
            names.any(|known| known == *name)
        };
        let problem = |(at, rule): (usize, &Rule)| {
            let unknown = rule.listeners.iter().find(|name| !is_known(name))?;
            Some(format!(
                "authorization.rule {}: no listener has the name `{unknown}`",
                at + 1
            ))
        };
        self.rules.iter().enumerate().filter_map(problem).collect()
    }

    /// A sentence about the first of some groups that there is not.
    pub(super) fn unknown_group(&self, setting: &str, names: &[String]) -> Option<String> {
        let is_known = |name: &String| self.groups.iter().any(|group| group.name == *name);
        let unknown = names.iter().find(|name| !is_known(name))?;
        Some(format!(
            "{setting}: there is no authorization.group `{unknown}`"
        ))
    }

    /// A sentence for each fault.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if (self.admins.iter()).any(|name| name == "*" || name.is_empty()) {
            problems.push(format!(
                "authorization.admins names users; `{ANONYMOUS}` are clients without a user name"
            ));
        }
        for (at, group) in self.groups.iter().enumerate() {
            let (name, number) = (&group.name, at + 1);
            let faults = [
                (name.is_empty(), "it has no name".to_owned()),
                (
                    self.groups[..at].iter().any(|other| other.name == *name),
                    format!("there are two of `{name}`"),
                ),
                (
                    (group.users.iter()).any(|user| user == "*" || user.is_empty()),
                    format!("`{name}` names single users"),
                ),
            ];
            let faults = faults.into_iter().filter(|(is_fault, _)| *is_fault);
            problems
                .extend(faults.map(|(_, what)| format!("authorization.group {number}: {what}")));
        }
        problems.extend(self.unknown_group("authorization.admin_groups", &self.admin_groups));
        let is_known = |name: &&String| self.groups.iter().any(|group| group.name == **name);
        for (at, limit) in self.limits.iter().enumerate() {
            let number = at + 1;
            if let Some(name) = limit.groups.iter().find(|name| !is_known(name)) {
                problems.push(format!(
                    "authorization.limit {number}: there is no authorization.group `{name}`"
                ));
            }
            if let Some(problem) = limit.problem() {
                problems.push(format!("authorization.limit {number}: {problem}"));
            }
        }
        for (at, rule) in self.rules.iter().enumerate() {
            if let Some(name) = rule.groups.iter().find(|name| !is_known(name)) {
                let number = at + 1;
                problems.push(format!(
                    "authorization.rule {number}: there is no authorization.group `{name}`"
                ));
            }
        }
        let rules = self.rules.iter().enumerate();
        problems.extend(rules.filter_map(|(at, rule)| {
            let problem = rule.check().err()?;
            Some(format!("authorization.rule {}: {problem}", at + 1))
        }));
        problems
    }
}

impl Rule {
    /// Whether it asks from where a client speaks.
    pub(crate) fn looks_at_origins(&self) -> bool {
        !self.addresses.is_empty() || !self.transports.is_empty() || !self.listeners.is_empty()
    }

    /// Whether it asks for more of a message than its topic.
    pub(crate) fn looks_at_messages(&self) -> bool {
        self.retain.is_some() || !self.qos.is_empty() || self.early_data.is_some()
    }

    fn check(&self) -> Result<(), String> {
        if self.topics.is_empty() {
            return Err("it has no topics, and so decides nothing".to_owned());
        }
        let publishes = self.actions.is_empty() || self.actions.contains(&ActionName::Publish);
        if self.durability.is_some() && (self.effect == Effect::Deny || !publishes) {
            return Err("durability is for a rule that allows to publish".to_owned());
        }
        for topic in &self.topics {
            sterna_mqtt::topic::check_filter(topic)
                .map_err(|error| format!("`{topic}`: {error}"))?;
        }
        if self.qos.iter().any(|qos| *qos > 2) {
            return Err("qos has 0, 1 and 2".to_owned());
        }
        if self.looks_at_messages() && self.actions != [ActionName::Publish] {
            let detail =
                "retain, qos and early_data are about messages: they need actions = [\"publish\"]";
            return Err(detail.to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_checked() {
        let problems = |topics: &[&str]| {
            let rule = Rule {
                topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
                ..Rule::default()
            };
            let config = Authorization {
                rules: vec![rule],
                ..Authorization::default()
            };
            config.problems().len()
        };
        assert_eq!(problems(&["a/#/b"]), 1);
        assert_eq!(problems(&["a+"]), 1);
        assert_eq!(problems(&[]), 1);
        assert_eq!(problems(&["$SYS/#"]), 0);
    }

    #[test]
    fn groups_are_known_and_of_single_users() {
        let problems = |groups: &[(&str, &str)], named: &str| {
            let groups = groups.iter().map(|(name, user)| Group {
                name: (*name).to_owned(),
                users: vec![(*user).to_owned()],
            });
            let rule = Rule {
                groups: vec![named.to_owned()],
                topics: vec!["#".to_owned()],
                ..Rule::default()
            };
            let config = Authorization {
                groups: groups.collect(),
                rules: vec![rule],
                ..Authorization::default()
            };
            config.problems()
        };
        assert_eq!(problems(&[("a", "ann")], "a"), [""; 0]);
        for (groups, named) in [
            (&[("a", "ann")][..], "b"),
            (&[("a", "*")], "a"),
            (&[("a", "")], "a"),
            (&[("a", "ann"), ("a", "bob")], "a"),
            (&[("", "ann")], ""),
        ] {
            assert_eq!(problems(groups, named).len(), 1, "{groups:?} {named}");
        }
    }

    #[test]
    fn administrators_are_single_users() {
        for (name, problems) in [("ann", 0), (ANONYMOUS, 0), ("*", 1), ("", 1)] {
            let config = Authorization {
                admins: vec![name.to_owned()],
                ..Authorization::default()
            };
            assert_eq!(config.problems().len(), problems, "{name}");
        }
    }
}
