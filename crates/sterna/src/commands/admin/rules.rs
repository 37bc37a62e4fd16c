//! `sterna admin rules`: the rules of a running broker, and what they decide.

use std::net::IpAddr;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use serde_json::Value;

use super::connection::{Admin, segment};
use super::table::Column;
use super::{Shown, one};
use crate::commands::acl::Transport;
use crate::commands::exit::Failure;

#[derive(Debug, Subcommand)]
pub(super) enum Rules {
    /// List them, in order
    List,
    /// Say whether a client may do something, and which rule decides
    Explain(Explain),
}

#[derive(ClapArgs, Debug)]
pub(super) struct Explain {
    /// User name; without it, a client without a name
    #[arg(long = "by", value_name = "USER")]
    user: Option<String>,
    /// Client identifier; HTTP has none
    #[arg(long, value_name = "ID")]
    client: Option<String>,
    /// Address of the client
    #[arg(long, value_name = "ADDRESS")]
    address: Option<IpAddr>,
    /// Transport of the client
    #[arg(long)]
    transport: Option<Transport>,
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

const RULES: [Column; 6] = [
    ("EFFECT", "/effect"),
    ("USERS", "/users"),
    ("GROUPS", "/groups"),
    ("CLIENTS", "/clients"),
    ("ACTIONS", "/actions"),
    ("TOPICS", "/topics"),
];

pub(super) async fn act(admin: &Admin, action: &Rules) -> Result<Shown, Failure> {
    match action {
        Rules::List => {
            let mut rules = admin.get("/rules").await?;
            Ok(match rules["rules"].take() {
                Value::Array(items) => Shown::List(&RULES, items, false),
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
                ("client", explain.client.clone()),
                (
                    "address",
                    explain.address.map(|address| address.to_string()),
                ),
                ("transport", explain.transport.and_then(Transport::name)),
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
            one(admin, &path).await
        }
    }
}
