//! The questions of the broker and the answers of the webhook, in JSON (`docs/webhook.md`).

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::authorization::{Answer, GivenRule, Standing, words_of};
use crate::config::ActionName;
use crate::identity::grant::{Basis, Grant};
use crate::identity::{Identity, Proof};

/// The credentials that a client shows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Credentials<'a> {
    Password(&'a str, &'a [u8]),
    Token(&'a [u8]),
}

/// A question about a client that wants to come in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Login<'a> {
    pub(crate) credentials: Credentials<'a>,
    pub(crate) protocol: &'static str,
    pub(crate) transport: &'static str,
    pub(crate) address: std::net::IpAddr,
    /// The common name of a client certificate.
    pub(crate) certificate: Option<&'a str>,
    /// In milliseconds since the Unix epoch.
    pub(crate) now_ms: u64,
}

/// A question about an action of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) user: Option<Box<str>>,
    pub(crate) client: Box<str>,
    pub(crate) action: ActionName,
    pub(crate) topic: Box<str>,
}

#[derive(Serialize)]
struct LoginQuestion<'a> {
    request: &'static str,
    protocol: &'static str,
    transport: &'static str,
    address: std::net::IpAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    password: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    password_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'a str>,
}

#[derive(Serialize)]
struct AccessQuestion<'a> {
    request: &'static str,
    user: Option<&'a str>,
    client_id: &'a str,
    action: ActionName,
    topic: &'a str,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    Allow,
    Deny,
}

/// An answer about a login. A member that is not known could be a limit that is not kept.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LoginAnswer {
    result: Word,
    user: Option<String>,
    #[serde(default)]
    groups: Vec<String>,
    client_ids: Option<Vec<String>>,
    #[serde(default)]
    rules: Vec<GivenRule>,
    expires_in_s: Option<u32>,
    #[expect(
        dead_code,
        reason = "the client of a login learns no more than that it is refused"
    )]
    reason: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AccessAnswer {
    result: Word,
    reason: Option<String>,
}

impl Login<'_> {
    /// The question in JSON; `None` for a token that is no text, which nobody can know.
    pub(super) fn question(&self) -> Option<Vec<u8>> {
        let mut question = LoginQuestion {
            request: "authenticate",
            protocol: self.protocol,
            transport: self.transport,
            address: self.address,
            certificate: self.certificate,
            user: None,
            password: None,
            password_base64: None,
            token: None,
        };
        match self.credentials {
            Credentials::Password(user, password) => {
                question.user = Some(user);
                match std::str::from_utf8(password) {
                    // A service that binds to a directory with an empty one would let everybody in (RFC 4513, 5.1.2).
                    Ok("") => {}
                    Ok(password) => question.password = Some(password),
                    Err(_) => question.password_base64 = Some(STANDARD.encode(password)),
                }
            }
            Credentials::Token(token) => question.token = Some(std::str::from_utf8(token).ok()?),
        }
        serde_json::to_vec(&question).ok()
    }
}

impl Access {
    /// The question in JSON.
    pub(super) fn question(&self) -> Vec<u8> {
        let question = AccessQuestion {
            request: "authorize",
            user: self.user.as_deref(),
            client_id: &self.client,
            action: self.action,
            topic: &self.topic,
        };
        serde_json::to_vec(&question).unwrap_or_default()
    }
}

/// Reads an answer about a login: who it is, or `None` where it is refused. `asked` is the user name that the
/// client gives, if it gives one. An answer is about that user where it `is_bound`: a name alone may be a token, and so
/// the answer has to say whose it is.
///
/// # Errors
/// The fault of the answer, which then counts for nothing.
pub(super) fn read_login(
    answer: &str,
    asked: Option<&str>,
    is_bound: bool,
    now_ms: u64,
    url: &Arc<str>,
) -> Result<Option<Identity>, String> {
    let answer: LoginAnswer = serde_json::from_str(answer).map_err(|error| error.to_string())?;
    if answer.result == Word::Deny {
        return Ok(None);
    }
    let user = match (answer.user.as_deref(), asked) {
        (Some(user), Some(asked)) if is_bound && user != asked => {
            return Err("it names another user than the one that was asked about".to_owned());
        }
        (Some(user), _) => user,
        (None, Some(user)) if is_bound => user,
        // A service that knows nothing of names without a password may compare nothing with nothing.
        (None, _) => return Err("it names no user".to_owned()),
    };
    if !sterna_auth::is_user_name(user) {
        return Err("its user is no user name".to_owned());
    }
    let until_ms = (answer.expires_in_s).map(|seconds| now_ms + u64::from(seconds) * 1000);
    let groups: Vec<&str> = answer.groups.iter().map(String::as_str).collect();
    let standing = Standing::new(&groups, answer.rules)?;
    let client_ids =
        (answer.client_ids.as_ref()).map(|list| list.iter().map(String::as_str).collect());
    let basis = Basis::Webhook(Arc::clone(url));
    let grant = Grant::new(until_ms, client_ids, Some(standing), basis)?;
    Ok(Some(Identity::granted(
        user,
        Proof::Webhook,
        Arc::new(grant),
    )))
}

/// Reads an answer about an action.
///
/// # Errors
/// The fault of the answer, which then counts for nothing.
pub(super) fn read_access(answer: &str) -> Result<Answer, String> {
    let answer: AccessAnswer = serde_json::from_str(answer).map_err(|error| error.to_string())?;
    Ok(match answer.result {
        Word::Allow => Answer::Allowed,
        Word::Deny => Answer::Denied(answer.reason.as_deref().and_then(words_of)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_answer_about_the_same_user_counts() {
        let url: Arc<str> = "u".into();
        let long = format!(r#"{{"result":"allow","client_ids":{:?}}}"#, ["a"; 65]);
        for (answer, asked, expected) in [
            (r#"{"result":"allow"}"#, Some("ann"), Ok(Some("ann"))),
            (
                r#"{"result":"allow","user":"ann"}"#,
                Some("ann"),
                Ok(Some("ann")),
            ),
            (r#"{"result":"allow","user":"ann"}"#, None, Ok(Some("ann"))),
            (r#"{"result":"deny"}"#, Some("ann"), Ok(None)),
            (
                r#"{"result":"allow","user":"bob"}"#,
                Some("ann"),
                Err("another user"),
            ),
            (r#"{"result":"allow"}"#, None, Err("no user")),
            (r#"{"result":"allow","user":""}"#, None, Err("no user name")),
            (r#"{"result":"yes"}"#, Some("ann"), Err("variant")),
            (
                r#"{"result":"allow","client_id":"a"}"#,
                Some("ann"),
                Err("unknown field"),
            ),
            (
                r#"{"result":"allow","rules":[{"topics":["a#"]}]}"#,
                Some("ann"),
                Err("filter"),
            ),
            (r#"{"result":"allow"} x"#, Some("ann"), Err("trailing")),
            ("[]", Some("ann"), Err("")),
            ("true", Some("ann"), Err("")),
            ("", Some("ann"), Err("")),
            (&long, Some("ann"), Err("64 client")),
        ] {
            match (read_login(answer, asked, true, 0, &url), expected) {
                (Ok(found), Ok(expected)) => {
                    let user = found.as_ref().and_then(Identity::user);
                    assert_eq!(user, expected, "{answer}");
                }
                (Err(why), Err(named)) => assert!(why.contains(named), "{answer}: {why}"),
                (found, _) => panic!("{answer}: {found:?}"),
            }
        }
        let ends = r#"{"result":"allow","expires_in_s":7}"#;
        let named = r#"{"result":"allow","user":"ann"}"#;
        let found = read_login(named, Some("a-token"), false, 0, &url).unwrap();
        assert_eq!(found.unwrap().user(), Some("ann"));
        let nameless = r#"{"result":"allow"}"#;
        assert!(read_login(nameless, Some("a-token"), false, 0, &url).is_err());
        let found = read_login(ends, Some("ann"), true, 1000, &url)
            .unwrap()
            .unwrap();
        assert_eq!(found.until_ms(), Some(8000));
        assert_eq!(read_access(r#"{"result":"allow"}"#), Ok(Answer::Allowed));
        let denied = |answer| read_access(answer).unwrap();
        assert_eq!(denied(r#"{"result":"deny"}"#), Answer::Denied(None));
        let long = format!(
            r#"{{"result":"deny","reason":" a\u0000\n b{}"}}"#,
            "c".repeat(300)
        );
        let expected = format!("a b{}", "c".repeat(196));
        assert_eq!(denied(&long), Answer::Denied(Some(expected.into())));
        let silent = r#"{"result":"deny","reason":" \u0007"}"#;
        assert_eq!(denied(silent), Answer::Denied(None));
        assert!(read_access(r#"{"result":"allow","user":"ann"}"#).is_err());
    }

    #[test]
    fn questions_are_json_whatever_clients_say() {
        let login = |credentials| Login {
            credentials,
            protocol: "mqtt",
            transport: "tls",
            address: [192, 0, 2, 1].into(),
            certificate: None,
            now_ms: 0,
        };
        let text = |credentials| String::from_utf8(login(credentials).question().unwrap()).unwrap();
        let strange = text(Credentials::Password("a\"n\\n", b"\"}\n"));
        let parsed: serde_json::Value = serde_json::from_str(&strange).unwrap();
        assert_eq!(
            (&parsed["user"], &parsed["password"]),
            (&"a\"n\\n".into(), &"\"}\n".into())
        );
        let bytes = text(Credentials::Password("ann", b"\xff"));
        assert!(bytes.contains(r#""password_base64":"/w==""#), "{bytes}");
        let alone = text(Credentials::Password("a-token", b""));
        assert!(!alone.contains("password"), "{alone}");
        assert!(login(Credentials::Token(b"\xff")).question().is_none());
    }
}
