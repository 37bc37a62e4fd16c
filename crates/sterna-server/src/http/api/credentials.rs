//! The sender of a request: known by its credentials, the connection's certificate, or an earlier request on it.

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;

use super::answer::Trouble;
use super::target::{Target, Token};
use crate::authorization::Subject;
use crate::config::HttpAuthentication;
use crate::context::Context;
use crate::http::problem::ProblemKind as Kind;
use crate::identity::{Identity, Outcome, Pending, Refusal, Users, is_token};
use crate::judge::{self, Claim};
use crate::policy::Policy;
use sterna_http::Head;
use sterna_net::{ConnectionId, TransportKind};

impl Identity {
    /// The sender of a request on a connection as the rules see it. HTTP has no client identifiers.
    pub(super) fn subject(&self, cx: &Context<'_>, connection: ConnectionId) -> Subject<'_> {
        Subject {
            user: self.user(),
            client: "",
            origin: cx.origin(connection),
            standing: self.standing().map(|own| &**own),
        }
    }
}

/// A keyed digest of credentials: they themselves are not kept.
pub(super) type Digest = hmac::Tag;

/// The credentials that were verified last on a connection.
#[derive(Debug)]
pub(super) struct Verified {
    digest: Digest,
    identity: Identity,
    /// The users by which they were: others may be in force now.
    users: Arc<Users>,
}

/// A password that is being checked.
#[derive(Debug)]
struct Check {
    digest: Digest,
    pending: Pending,
}

/// The users that a connection has shown.
#[derive(Debug, Default)]
pub(crate) struct Credentials {
    verified: Option<Verified>,
    /// At most one at a time, so that one client keeps nobody else's password waiting.
    check: Option<Check>,
    /// Credentials that have just been refused, while the requests with them are answered.
    wrong: Option<(Digest, Refusal)>,
    /// The identity that an earlier request has shown.
    of_connection: Option<Identity>,
}

/// The judgement on a request's sender.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// The sender is known.
    Known(Identity),
    /// A password is being checked, and the request waits for that.
    Wait,
    /// The sender may not come in; the second value is the answer.
    Refused(Refusal, Trouble),
}

/// The challenges of a 401 (RFC 9110, section 11.6.1).
pub(crate) fn challenge(policy: &Policy) -> String {
    let mut challenges = Vec::new();
    if !policy.tokens.is_empty() || policy.issuer.is_configured() || policy.webhook.authenticates()
    {
        challenges.push(r#"Bearer realm="sterna""#);
    }
    if policy.users.are_configured() || policy.webhook.authenticates() || challenges.is_empty() {
        challenges.push(r#"Basic realm="sterna", charset="UTF-8""#);
    }
    challenges.join(", ")
}

/// Refuses credentials that are not of a form that is served.
fn refused(policy: &Policy, detail: &'static str) -> Verdict {
    let trouble = Trouble::unauthenticated(detail, challenge(policy));
    Verdict::Refused(Refusal::Method, trouble)
}

/// The answer to a client whose credentials are no longer good.
pub(super) fn unwanted(policy: &Policy, detail: &str) -> Trouble {
    Trouble::unauthenticated(detail, challenge(policy))
}

fn refused_claim(policy: &Policy, refusal: Refusal) -> Verdict {
    let detail = refusal.detail();
    let trouble = match refusal {
        Refusal::Banned => Trouble::new(Kind::Forbidden, detail),
        Refusal::Slowed => Trouble::new(Kind::TooManyRequests, detail),
        Refusal::Busy | Refusal::Unavailable | Refusal::Webhook => Trouble::new(Kind::Busy, detail),
        _ => Trouble::unauthenticated(detail, challenge(policy)),
    };
    Verdict::Refused(refusal, trouble)
}

/// The user name and the password of decoded Basic credentials.
fn parts(decoded: &[u8]) -> Option<(&str, &[u8])> {
    let colon = decoded.iter().position(|&byte| byte == b':')?;
    let user = std::str::from_utf8(&decoded[..colon]).ok()?;
    Some((user, &decoded[colon + 1..]))
}

/// The user that a request says to be from, for the log of refusals.
pub(crate) fn claimed_user(policy: &Policy, head: &Head) -> Option<String> {
    let text = std::str::from_utf8(head.field("authorization")?).ok()?;
    let (scheme, value) = text.trim().split_once(' ')?;
    let decoded = (scheme.eq_ignore_ascii_case("basic"))
        .then(|| STANDARD.decode(value.trim_start()).ok())
        .flatten()?;
    let (user, password) = parts(&decoded)?;
    judge::loggable(policy, Claim::Password(user, password)).map(str::to_owned)
}

/// Whether a text can stand behind `Bearer` (RFC 6750, section 2.1).
fn is_bearer(token: &str) -> bool {
    let text = token.trim_end_matches('=');
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/".contains(&byte);
    !text.is_empty() && text.bytes().all(is_part)
}

/// The credentials of a request: the value of the field Authorization, or a token of its target in the same form.
///
/// # Errors
/// When a token is in the target and may not be there.
pub(super) fn shown<'a>(
    policy: &Policy,
    head: &'a Head,
    target: &Target<'_>,
) -> Result<Option<Cow<'a, [u8]>>, Trouble> {
    let field = head.field("authorization").map(Cow::Borrowed);
    let refused = |detail: &'static str| Err(Trouble::new(Kind::InvalidParameter, detail));
    let token = match &target.token {
        Token::Absent => return Ok(field),
        _ if !policy.http.access_token_parameter => {
            return refused(
                "a token in the address is not looked at: send the field authorization, or set \
                 http.access_token_parameter",
            );
        }
        Token::Malformed => return refused("`access_token` is one token"),
        // RFC 6750, section 2: one way at a time.
        Token::Is(_) if field.is_some() => {
            return refused("`access_token` comes beside the field authorization");
        }
        Token::Is(_) if !matches!(head.method(), "GET" | "HEAD" | "CONNECT") => {
            return refused(
                "`access_token` is for requests that only read: others can send a field",
            );
        }
        Token::Is(token) if !is_bearer(token) => {
            return refused("`access_token` is one token");
        }
        Token::Is(token) => token,
    };
    Ok(Some(Cow::Owned(format!("Bearer {token}").into_bytes())))
}

/// Whether a request with these credentials waits until its client has shown that it is at its address: see
/// [`judge::waits_for_proof`].
pub(super) fn wait_for_proof(
    cx: &Context<'_>,
    connection: ConnectionId,
    shown: Option<&[u8]>,
) -> bool {
    let waits = |claim| judge::waits_for_proof(cx, connection, claim);
    let Some(value) = shown else {
        return waits(Claim::Nothing);
    };
    let value = std::str::from_utf8(value).unwrap_or_default().trim();
    let (scheme, value) = value.split_once(' ').unwrap_or_default();
    let value = value.trim_start();
    if scheme.eq_ignore_ascii_case("bearer") {
        return waits(Claim::Token(value.as_bytes()));
    }
    let decoded = STANDARD.decode(value).unwrap_or_default();
    match parts(&decoded).filter(|_| scheme.eq_ignore_ascii_case("basic")) {
        Some((user, password)) => waits(Claim::Password(user, password)),
        // It is refused.
        None => judge::is_unproved(cx, connection),
    }
}

impl Credentials {
    /// Judges a request with these credentials, in the form of the field Authorization, which the carriers let a request
    /// have once. A verdict that takes longer comes by a letter of this number.
    pub(crate) fn judge(
        &mut self,
        cx: &Context<'_>,
        key: &hmac::Key,
        connection: ConnectionId,
        number: u64,
        shown: Option<&[u8]>,
    ) -> Verdict {
        if let Some(value) = shown {
            return self.judge_field(cx, key, connection, number, value);
        }
        let quiet = judge::judge(cx, connection, number, Claim::Nothing);
        let info = cx.net.info(connection);
        let speaks_for_all = cx.policy.http.authentication == HttpAuthentication::Connection
            && info.is_some_and(|info| info.transport == TransportKind::Quic)
            && !matches!(&quiet, judge::Verdict::Known(known) if known.user().is_some());
        if speaks_for_all {
            if self.check.is_some() {
                return Verdict::Wait;
            }
            let known = (self.of_connection.as_ref())
                .filter(|identity| cx.policy.still_admits(info, identity).is_ok())
                .filter(|identity| !identity.has_ended(cx.now_ms));
            if let Some(identity) = known {
                return Verdict::Known(identity.clone());
            }
        }
        self.heard(cx, key, b"", quiet)
    }

    fn judge_field(
        &mut self,
        cx: &Context<'_>,
        key: &hmac::Key,
        connection: ConnectionId,
        number: u64,
        value: &[u8],
    ) -> Verdict {
        let policy = cx.policy;
        let shown = value;
        let text = std::str::from_utf8(value).unwrap_or_default().trim();
        let (scheme, value) = text.split_once(' ').unwrap_or((text, ""));
        let value = value.trim_start().as_bytes();
        let is_bearer = scheme.eq_ignore_ascii_case("bearer");
        if !is_bearer && !scheme.eq_ignore_ascii_case("basic") {
            return refused(policy, "credentials are Basic or Bearer");
        }
        if is_bearer && (!policy.webhook.authenticates() || is_token(value)) {
            let verdict = judge::judge(cx, connection, number, Claim::Token(value));
            return self.heard(cx, key, shown, verdict);
        }
        let is = |digest: &Digest| hmac::verify(key, shown, digest.as_ref()).is_ok();
        if let Some(verified) = &self.verified
            && Arc::ptr_eq(&verified.users, &policy.users)
            && !verified.identity.has_ended(cx.now_ms)
            && is(&verified.digest)
        {
            return Verdict::Known(verified.identity.clone());
        }
        if let Some((digest, refusal)) = &self.wrong
            && is(digest)
        {
            return refused_claim(policy, *refusal);
        }
        if self.check.is_some() {
            return Verdict::Wait;
        }
        if is_bearer {
            let verdict = judge::judge(cx, connection, number, Claim::Token(value));
            return self.heard(cx, key, shown, verdict);
        }
        let decoded = STANDARD.decode(value).unwrap_or_default();
        let Some((user, password)) = parts(&decoded) else {
            return refused(policy, "the credentials are not base64 of `user:password`");
        };
        let claim = Claim::Password(user, password);
        let verdict = judge::judge(cx, connection, number, claim);
        self.heard(cx, key, shown, verdict)
    }

    /// Puts the judge's word into that of a request with these credentials.
    fn heard(
        &mut self,
        cx: &Context<'_>,
        key: &hmac::Key,
        credentials: &[u8],
        verdict: judge::Verdict,
    ) -> Verdict {
        match verdict {
            judge::Verdict::Known(identity) => Verdict::Known(identity),
            judge::Verdict::Refused(refusal) => refused_claim(cx.policy, refusal),
            judge::Verdict::Pending(pending) => {
                self.check = Some(Check {
                    digest: hmac::sign(key, credentials),
                    pending,
                });
                Verdict::Wait
            }
            // Nothing that a request has asks for one.
            judge::Verdict::Challenge(..) => refused_claim(cx.policy, Refusal::Method),
        }
    }

    /// The verdict on a password; false if it is not the one that is waited for.
    pub(crate) fn decided(&mut self, policy: &Policy, number: u64, outcome: Outcome) -> bool {
        let is_it = |check: &mut Check| check.pending.number() == number;
        let Some(Check { digest, pending }) = self.check.take_if(is_it) else {
            return false;
        };
        match pending.decided(&policy.users, &policy.webhook, outcome) {
            Ok(identity) => {
                self.verified = Some(Verified {
                    digest,
                    identity,
                    users: Arc::clone(&policy.users),
                });
            }
            Err(refusal) => self.wrong = Some((digest, refusal)),
        }
        true
    }

    /// The requests that have waited for a verdict are answered.
    pub(crate) fn answered(&mut self) {
        self.wrong = None;
    }

    /// A request with these credentials was let in; whether it is the first of its user.
    pub(crate) fn admitted(&mut self, identity: &Identity) -> bool {
        let is_new = identity.user().is_some() && self.of_connection.as_ref() != Some(identity);
        if is_new {
            self.of_connection = Some(identity.clone());
        }
        is_new
    }

    /// The user of an earlier request, for the log.
    pub(crate) fn name(&self) -> Option<&str> {
        self.of_connection.as_ref()?.user()
    }
}
