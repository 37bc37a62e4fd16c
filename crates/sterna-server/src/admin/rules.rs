//! The rules in force as the API shows them, and their decisions.

use std::str::FromStr;

use serde::Deserialize as _;
use serde::de::IntoDeserializer as _;
use serde_json::{Value, json};

use super::call::Call;
use crate::authorization::{
    Condition, MessageKind, Origin, Reading, Reason, Rules, Standing, Subject, check_topic,
};
use crate::config::{ActionName, Rule, TransportName};
use crate::http::{ProblemKind as Kind, Trouble};

/// All rules, in order.
pub(super) fn rules_value(rules: &Rules) -> Value {
    let source = rules.source();
    json!({
        "default_allow": source.default_allow,
        "admins": source.admins,
        "groups": source.groups,
        "rules": source.rules,
    })
}

/// The decision on an action, and the rule that decides.
///
/// # Errors
/// A parameter is missing or wrong.
pub(super) fn explain(rules: &Rules, call: &Call) -> Result<Value, Trouble> {
    let invalid = |detail: String| Trouble::new(Kind::InvalidParameter, detail);
    let action = match call.parameter("action") {
        Some("publish") => ActionName::Publish,
        Some("subscribe") => ActionName::Subscribe,
        Some("delete") => ActionName::Delete,
        Some(_) => return Err(invalid("action is publish, subscribe or delete".to_owned())),
        None => return Err(invalid("the parameter \"action\" is missing".to_owned())),
    };
    let topic = (call.parameter("topic"))
        .ok_or_else(|| invalid("the parameter \"topic\" is missing".to_owned()))?;
    check_topic(action, topic).map_err(invalid)?;
    let user = call.parameter("user").filter(|user| !user.is_empty());
    let given = call.parameter("groups").unwrap_or_default().split(',');
    let given: Vec<&str> = given.filter(|name| !name.is_empty()).collect();
    if !given.is_empty() && user.is_none() {
        return Err(invalid("groups are those of a user".to_owned()));
    }
    let standing = Standing::new(&given, Vec::new()).map_err(|why| invalid(why.to_owned()))?;
    let listener = |name: &str| {
        let known = rules.listener(name);
        known.ok_or_else(|| invalid(format!("no listener has the name `{name}`")))
    };
    let subject = Subject {
        user,
        client: call.parameter("client").unwrap_or_default(),
        origin: Origin {
            address: parsed(call, "address")?,
            transport: (call.parameter("transport").map(transport)).transpose()?,
            listener: (call.parameter("listener").map(listener)).transpose()?,
        },
        standing: (!given.is_empty()).then_some(&*standing),
    };
    let qos = parsed(call, "qos")?;
    if qos.is_some_and(|qos| qos > 2) {
        return Err(invalid("qos is a number from 0 to 2".to_owned()));
    }
    let kind = MessageKind {
        qos,
        retain: parsed(call, "retain")?,
        early_data: parsed(call, "early_data")?,
    };
    let (decision, open) = rules.explain_best(subject, action, topic, kind);
    let configured = rules.source().groups.iter().filter(|group| {
        let mut users = group.users.iter();
        users.any(|one| Some(one.as_str()) == user)
    });
    let mut groups: Vec<&str> = configured.map(|group| group.name.as_str()).collect();
    groups.extend(given);
    groups.sort_unstable();
    groups.dedup();
    let reason_value = |reason: Reason| reason_value(reason, rules);
    let denied_in_part = decision.denied_in_part.iter();
    Ok(json!({
        "decision": match decision.reading {
            Reading::Whole => "allowed",
            Reading::Part => "allowed_in_part",
            Reading::Refused => "refused",
            Reading::Asked => "asked",
        },
        "reason": reason_value(decision.reason),
        "denied_in_part": denied_in_part.copied().map(reason_value).collect::<Vec<_>>(),
        "groups": groups,
        "depends_on": open.into_iter().map(Condition::name).collect::<Vec<_>>(),
    }))
}

/// A parameter, if it is given.
fn parsed<T: FromStr>(call: &Call, name: &str) -> Result<Option<T>, Trouble> {
    let value = call.parameter(name).map(str::parse);
    let wrong = |_| Trouble::new(Kind::InvalidParameter, format!("{name} cannot be read"));
    value.transpose().map_err(wrong)
}

fn transport(name: &str) -> Result<TransportName, Trouble> {
    let read: Result<_, serde::de::value::Error> =
        TransportName::deserialize(name.into_deserializer());
    read.map_err(|_| {
        let detail = "transport is tcp, tls, ws, wss or quic";
        Trouble::new(Kind::InvalidParameter, detail)
    })
}

/// The reason of a decision; rules are counted from 1, as in `sterna acl explain`.
fn reason_value(reason: Reason, rules: &Rules) -> Value {
    let (by, rule) = match reason {
        Reason::Rule(at) => ("rule", Some(at + 1)),
        Reason::Administrators => ("administrators", None),
        Reason::Default => ("default", None),
        Reason::Server => ("server", None),
        Reason::Nothing => ("nothing", None),
    };
    let text = match reason {
        Reason::Rule(at) => rules.source().rules.get(at).map(Rule::summary),
        _ => None,
    };
    json!({ "by": by, "rule": rule, "text": text })
}
