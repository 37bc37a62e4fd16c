//! `sterna admin rules`: the rules of a running broker, and what they decide.

use std::fmt::Write as _;
use std::net::IpAddr;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use serde_json::Value;

use super::Shown;
use super::connection::{Admin, segment};
use super::table::{Column, cell};
use crate::commands::acl::{Transport, depends_on};
use crate::commands::exit::Failure;

#[derive(Debug, Subcommand)]
pub(super) enum Rules {
    /// List them, in order
    List,
    /// Say whether a client may do something, and which rule decides; exit code 2: it is refused
    Explain(Explain),
}

#[derive(ClapArgs, Debug)]
pub(super) struct Explain {
    /// User name; without it, a client without a name
    #[arg(long = "by", value_name = "USER")]
    user: Option<String>,
    /// A group of the user beside those of the configuration, as a token gives it; may be repeated
    #[arg(long = "group", value_name = "NAME", requires = "user")]
    groups: Vec<String>,
    /// Client identifier; HTTP has none
    #[arg(long, value_name = "ID")]
    client: Option<String>,
    /// Address of the client
    #[arg(long, value_name = "ADDRESS")]
    address: Option<IpAddr>,
    /// Transport of the client
    #[arg(long)]
    transport: Option<Transport>,
    /// Name of the listener by which the client speaks
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
    /// Quality of service of the message that is published
    #[arg(long, value_parser = clap::value_parser!(u8).range(..=2))]
    qos: Option<u8>,
    /// Whether the message is to be retained
    #[arg(long, value_name = "true|false")]
    retain: Option<bool>,
    /// Whether the message comes in early data
    #[arg(long, value_name = "true|false")]
    early_data: Option<bool>,
    /// Action of the client
    action: What,
    /// Topic name, or the filter of a subscription (of a shared one: what follows the share name)
    topic: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    Publish,
    Subscribe,
    Delete,
}

const RULES: [Column; 8] = [
    ("RULE", "/number"),
    ("EFFECT", "/effect"),
    ("USERS", "/users"),
    ("GROUPS", "/groups"),
    ("CLIENTS", "/clients"),
    ("ACTIONS", "/actions"),
    ("TOPICS", "/topics"),
    ("CONDITIONS", "/conditions"),
];

/// Conditions of a rule that have no column of their own.
const CONDITIONS: [&str; 7] = [
    "listeners",
    "addresses",
    "transports",
    "admin",
    "qos",
    "retain",
    "early_data",
];

pub(super) async fn act(admin: &Admin, action: &Rules) -> Result<Shown, Failure> {
    match action {
        Rules::List => {
            let mut rules = admin.get("/rules").await?;
            Ok(match rules["rules"].take() {
                Value::Array(mut items) => {
                    // By this number an explanation names it.
                    for (at, item) in items.iter_mut().enumerate() {
                        item["number"] = (at + 1).into();
                        let conditions =
                            CONDITIONS.into_iter().filter_map(|name| match &item[name] {
                                Value::Null => None,
                                Value::Array(values) if values.is_empty() => None,
                                value => Some(format!("{name}={value}")),
                            });
                        item["conditions"] = conditions.collect::<Vec<_>>().join(" ").into();
                    }
                    Shown::List(&RULES, items.into())
                }
                other => Shown::One(other),
            })
        }
        Rules::Explain(explain) => {
            let what = explain.action.to_possible_value();
            let what = what.as_ref().map_or("", |value| value.get_name());
            let mut path = format!(
                "/rules/explain?action={what}&topic={}",
                segment(&explain.topic)
            );
            for (name, value) in [
                ("user", explain.user.clone()),
                (
                    "groups",
                    (!explain.groups.is_empty()).then(|| explain.groups.join(",")),
                ),
                ("client", explain.client.clone()),
                (
                    "address",
                    explain.address.map(|address| address.to_string()),
                ),
                ("transport", explain.transport.and_then(Transport::name)),
                ("listener", explain.listener.clone()),
                ("qos", explain.qos.map(|qos| qos.to_string())),
                ("retain", explain.retain.map(|retain| retain.to_string())),
                (
                    "early_data",
                    explain.early_data.map(|early| early.to_string()),
                ),
            ] {
                if let Some(value) = value {
                    path = format!("{path}&{name}={}", segment(&value));
                }
            }
            let answer = admin.get(&path).await?;
            let text = told(&answer);
            Ok(if answer["decision"] == "refused" {
                Shown::Refused(answer, text)
            } else {
                Shown::Told(answer, text)
            })
        }
    }
}

/// An explanation for people.
fn told(answer: &Value) -> String {
    let verdict = match answer["decision"].as_str().unwrap_or_default() {
        "allowed_in_part" => "allowed in part",
        "asked" => "asked of the webhook",
        other => other,
    };
    let mut text = format!("{verdict}: {}\n", reason(&answer["reason"]));
    for part in answer["denied_in_part"].as_array().into_iter().flatten() {
        let _ = writeln!(text, "some of its topics are refused: {}", reason(part));
    }
    let groups = answer["groups"].as_array().into_iter().flatten();
    let groups: Vec<String> = groups.map(|group| cell(Some(group))).collect();
    if !groups.is_empty() {
        let _ = writeln!(text, "groups of the user: {}", groups.join(", "));
    }
    let open = answer["depends_on"].as_array().into_iter().flatten();
    text + &depends_on(open.filter_map(Value::as_str))
}

fn reason(reason: &Value) -> String {
    match reason["by"].as_str().unwrap_or_default() {
        "rule" => format!("rule {} ({})", reason["rule"], cell(reason.get("text"))),
        "administrators" => "the broker's own rule about authorization.admins".to_owned(),
        "default" => "no rule matches, and authorization.default_allow decides".to_owned(),
        "server" => "topics below $SYS/ are the broker's".to_owned(),
        "nothing" => {
            "no rule gives this right, and authorization.default_allow does not".to_owned()
        }
        other => cell(Some(&other.into())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_explanation_names_the_rule_and_leaves_out_what_is_empty() {
        let by = |rule: u64| json!({ "by": "rule", "rule": rule, "text": "topics = [\"a/#\"]" });
        let plain =
            json!({ "decision": "refused", "reason": by(2), "denied_in_part": [], "groups": [] });
        assert_eq!(told(&plain), "refused: rule 2 (topics = [\"a/#\"])\n");
        let part = json!({ "decision": "allowed_in_part", "reason": by(1), "denied_in_part": [by(2)],
            "groups": ["plant"] });
        assert_eq!(
            told(&part),
            "allowed in part: rule 1 (topics = [\"a/#\"])\n\
             some of its topics are refused: rule 2 (topics = [\"a/#\"])\n\
             groups of the user: plant\n"
        );
    }
}
