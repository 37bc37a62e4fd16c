//! The section `authorization`: who may publish and subscribe where.

use serde::{Deserialize, Serialize};

/// In a list of administrators: clients without a user name.
pub(crate) const ANONYMOUS: &str = "anonymous";

/// Who may publish and subscribe where. The first rule that names the client and the topic decides.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Authorization {
    /// Whether what no rule names is allowed.
    pub default_allow: bool,
    /// Allow what no rule names also on addresses that other hosts reach.
    pub allow_default_beyond_loopback: bool,
    /// Users who may read what is told of single clients (`$SYS/sterna/`), and delete topics in HTTP.
    /// `anonymous` stands for clients without a user name.
    pub admins: Vec<String>,
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
            rules: Vec::new(),
        }
    }
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rule {
    /// User names; `*` is every client that named itself, empty is every client.
    pub users: Vec<String>,
    /// Client identifiers; empty is every client.
    pub clients: Vec<String>,
    /// `allow` or `deny`.
    pub effect: Effect,
    /// `publish`, `subscribe`, `delete`. Empty, a rule that allows means the first two, and one that
    /// denies all.
    pub actions: Vec<ActionName>,
    /// Topic filters; `%u` and `%c` stand for the user name and the client identifier.
    pub topics: Vec<String>,
    /// Whether a PUBLISH of QoS 0 that this rule allows may be done twice without harm, so that it
    /// needs not wait for the handshake when it comes as early data.
    pub idempotent: bool,
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// The action is allowed.
    #[default]
    Allow,
    /// The action is refused.
    Deny,
}

/// What a client does with a topic.
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
    /// A sentence for each fault.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if (self.admins.iter()).any(|name| name == "*" || name.is_empty()) {
            problems.push(format!(
                "authorization.admins names users; `{ANONYMOUS}` are clients without a user name"
            ));
        }
        problems.extend(self.rules.iter().filter_map(|rule| rule.check().err()));
        problems
    }
}

impl Rule {
    fn check(&self) -> Result<(), String> {
        if self.topics.is_empty() {
            return Err("an authorization.rule without topics decides nothing".to_owned());
        }
        for topic in &self.topics {
            sterna_mqtt::topic::check_filter(topic)
                .map_err(|error| format!("authorization.rule: `{topic}`: {error}"))?;
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
