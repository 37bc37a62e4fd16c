//! `sterna admin rules`: the rules of a running broker, and what they decide.

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use serde_json::Value;

use super::connection::{Admin, segment};
use super::table::Column;
use super::{Shown, one};
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
    /// What the client does
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
            for (name, value) in [("user", &explain.user), ("client", &explain.client)] {
                if let Some(value) = value {
                    path = format!("{path}&{name}={}", segment(value));
                }
            }
            one(admin, &path).await
        }
    }
}
