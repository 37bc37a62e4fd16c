//! The rules in force as the API shows them, and what they decide.

use serde_json::{Value, json};

use super::routes::Call;
use crate::authorization::{Reading, Reason, Rules, Subject, check_topic};
use crate::config::ActionName;
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

/// What becomes of an action, and which rule decides.
///
/// # Errors
/// A parameter is missing or wrong.
pub(super) fn explain(rules: &Rules, call: &Call) -> Result<Value, Trouble> {
    let invalid = |detail: String| Trouble::new(Kind::InvalidParameter, detail);
    let action = match call.parameter("action") {
        Some("publish") => ActionName::Publish,
        Some("subscribe") => ActionName::Subscribe,
        Some("delete") => ActionName::Delete,
        _ => return Err(invalid("action is publish, subscribe or delete".to_owned())),
    };
    let topic = call.parameter("topic").unwrap_or_default();
    check_topic(action, topic).map_err(invalid)?;
    let user = call.parameter("user").filter(|user| !user.is_empty());
    let subject = Subject {
        user,
        client: call.parameter("client").unwrap_or_default(),
    };
    let decision = rules.explain(subject, action, topic);
    let groups = rules.source().groups.iter().filter(|group| {
        let mut users = group.users.iter();
        users.any(|one| Some(one.as_str()) == user)
    });
    let denied_in_part = decision.denied_in_part.iter();
    Ok(json!({
        "decision": match decision.reading {
            Reading::Whole => "allowed",
            Reading::Part => "allowed_in_part",
            Reading::Refused => "refused",
        },
        "reason": reason_value(decision.reason),
        "denied_in_part": denied_in_part.copied().map(reason_value).collect::<Vec<_>>(),
        "groups": groups.map(|group| group.name.as_str()).collect::<Vec<_>>(),
    }))
}

/// What decides; rules are counted from 1, as in `sterna acl explain`.
fn reason_value(reason: Reason) -> Value {
    let (by, rule) = match reason {
        Reason::Rule(at) => ("rule", Some(at + 1)),
        Reason::Administrators => ("administrators", None),
        Reason::Default => ("default", None),
        Reason::Server => ("server", None),
        Reason::Nothing => ("nothing", None),
    };
    json!({ "by": by, "rule": rule })
}
