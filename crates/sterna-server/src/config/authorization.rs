//! The section `authorization`: who may publish and subscribe where.

use serde::{Deserialize, Serialize};

use super::{AddressPrefix, Durability, Limit};

/// In a list of administrators: clients without a user name.
pub(crate) const ANONYMOUS: &str = "anonymous";

/// Rights of clients. The first rule that names the client and the topic decides.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Authorization {
    /// Whether actions are allowed that no rule names.
    pub default_allow: bool,
    /// Permits `default_allow` also on addresses that other hosts reach.
    pub allow_default_beyond_loopback: bool,
    /// Users who may read topics about single clients (`$SYS/sterna/`), and delete topics in HTTP.
    /// `anonymous` stands for clients without a user name.
    pub admins: Vec<String>,
    /// Groups whose users are administrators, too.
    pub admin_groups: Vec<String>,
    /// Groups of users, by which rules name them.
    #[serde(rename = "group")]
    pub groups: Vec<Group>,
    /// Limits of users; the first one that names the user holds.
    #[serde(rename = "limit")]
    pub limits: Vec<Limit>,
    /// Users whose rates are remembered while they are away, at most.
    pub maximum_remembered_users: u32,
    /// The rules, in order.
    #[serde(rename = "rule")]
    pub rules: Vec<Rule>,
}

impl Default for Authorization {
    fn default() -> Self {
        Self {
            default_allow: true,
            allow_default_beyond_loopback: false,
            admins: Vec::new(),
            admin_groups: Vec::new(),
            groups: Vec::new(),
            limits: Vec::new(),
            maximum_remembered_users: 100_000,
            rules: Vec::new(),
        }
    }
}

/// A group of users.
#[derive(Clone, Debug, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Group {
    /// Name of the group in rules.
    pub name: String,
    /// User names.
    pub users: Vec<String>,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rule {
    /// User names; `*` is every client that named itself, empty is every client.
    pub users: Vec<String>,
    /// Groups, whose users the rule names, too. Empty beside empty `users` is every client.
    pub groups: Vec<String>,
    /// Client identifiers; empty is every client.
    pub clients: Vec<String>,
    /// Addresses and prefixes from which clients speak; empty is every address.
    pub addresses: Vec<AddressPrefix>,
    /// Transports over which clients speak; empty is every one.
    pub transports: Vec<TransportName>,
    /// Only administrators (true), or only others (false).
    pub admin: Option<bool>,
    /// Only messages with (true) or without (false) the retain flag.
    pub retain: Option<bool>,
    /// Only messages of these qualities of service; empty is every one.
    pub qos: Vec<u8>,
    /// Only messages in early data (true), or only others (false).
    pub early_data: Option<bool>,
    /// `allow`, `deny`, or `ask` the webhook.
    pub effect: Effect,
    /// `publish`, `subscribe`, `delete`. Empty, a rule that allows means the first two, and one that
    /// denies all.
    pub actions: Vec<ActionName>,
    /// Topic filters; `%u` and `%c` stand for the user name and the client identifier.
    pub topics: Vec<String>,
    /// Whether a PUBLISH of QoS 0 that this rule allows may be done twice without harm. As early data it
    /// then does not wait for the handshake.
    pub idempotent: bool,
    /// Least durability for which acknowledgements of messages wait that this rule allows. The
    /// stricter of this and the listener's holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,
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
    /// Whether a rule asks the webhook.
    pub(super) fn asks(&self) -> bool {
        self.rules.iter().any(|rule| rule.effect == Effect::Ask)
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
            let name = &group.name;
            if name.is_empty() {
                problems.push("an authorization.group has no name".to_owned());
            }
            if self.groups[..at].iter().any(|other| other.name == *name) {
                problems.push(format!("authorization.group: there are two of `{name}`"));
            }
            if (group.users.iter()).any(|user| user == "*" || user.is_empty()) {
                problems.push(format!("authorization.group: `{name}` names single users"));
            }
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
        !self.addresses.is_empty() || !self.transports.is_empty()
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
