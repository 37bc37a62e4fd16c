//! Who sends a request: its credentials, the certificate of its connection, or an earlier request of it.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;

use super::answer::Trouble;
use crate::authentication::{Users, common_name};
use crate::authorization::Subject;
use crate::config::HttpAuthentication;
use crate::context::Context;
use crate::http::exchange::Head;
use crate::policy::Policy;
use sterna_net::{ConnectionInfo, TransportKind};

/// Who sends a request: a user, or nobody in particular.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Identity {
    user: Option<Arc<str>>,
}

impl Identity {
    pub(super) const NOBODY: Self = Self { user: None };

    pub(super) fn of(user: &str) -> Self {
        Self {
            user: Some(user.into()),
        }
    }

    pub(super) fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The client as the rules see it. HTTP has no client identifiers.
    pub(super) fn subject(&self) -> Subject<'_> {
        Subject {
            user: self.user(),
            client: "",
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
pub(super) struct Check {
    pub(super) number: u64,
    digest: Digest,
    identity: Identity,
    users: Arc<Users>,
}

/// What a connection knows of who is at its other end.
#[derive(Debug, Default)]
pub(super) struct Credentials {
    verified: Option<Verified>,
    /// At most one at a time, so that one client keeps nobody else's password waiting.
    check: Option<Check>,
    /// Credentials that have just been found wrong, while the requests with them are answered.
    wrong: Option<Digest>,
    /// Whom an earlier request has shown.
    of_connection: Option<Identity>,
}

/// What is known of a request's sender.
#[derive(Debug)]
pub(super) enum Verdict {
    /// This is who it is.
    Known(Identity),
    /// A password is being checked, and the request waits for that.
    Wait,
    /// This password is to be checked, for this user.
    Check {
        user: String,
        password: Vec<u8>,
        digest: Digest,
    },
    /// It may not come in.
    Refused(Trouble),
}

/// The challenges of a 401 (RFC 9110, section 11.6.1).
fn challenge(policy: &Policy) -> String {
    let mut challenges = Vec::new();
    if !policy.tokens.is_empty() {
        challenges.push(r#"Bearer realm="sterna""#);
    }
    if !policy.users.is_empty() || challenges.is_empty() {
        challenges.push(r#"Basic realm="sterna", charset="UTF-8""#);
    }
    challenges.join(", ")
}

fn refused(policy: &Policy, detail: &str) -> Verdict {
    Verdict::Refused(Trouble::unauthenticated(detail, challenge(policy)))
}

impl Credentials {
    /// Judges a request.
    pub(super) fn judge(
        &self,
        policy: &Policy,
        key: &hmac::Key,
        info: Option<&ConnectionInfo>,
        head: &Head,
        now_ms: u64,
    ) -> Verdict {
        if let Some(value) = head.field("authorization") {
            return self.judge_field(policy, key, value, now_ms);
        }
        let certificate = info.and_then(|info| info.peer_certificates.first());
        if policy.certificate_as_username
            && let Some(certificate) = certificate
        {
            return match common_name(certificate) {
                Some(name) => Verdict::Known(Identity::of(&name)),
                None => refused(policy, "the client certificate has no common name"),
            };
        }
        let speaks_for_all = policy.http.authentication == HttpAuthentication::Connection
            && info.is_some_and(|info| info.transport == TransportKind::Quic);
        if speaks_for_all {
            if self.check.is_some() {
                return Verdict::Wait;
            }
            let known = (self.of_connection.as_ref())
                .filter(|identity| policy.still_admits(info, identity.user()));
            if let Some(identity) = known {
                return Verdict::Known(identity.clone());
            }
        }
        let listener = policy.listener(info.map_or(0, |info| info.listener));
        if listener.anonymous || certificate.is_some() {
            Verdict::Known(Identity::NOBODY)
        } else {
            refused(policy, "no credentials")
        }
    }

    fn judge_field(&self, policy: &Policy, key: &hmac::Key, value: &[u8], now_ms: u64) -> Verdict {
        let text = std::str::from_utf8(value).unwrap_or_default().trim();
        let (scheme, value) = text.split_once(' ').unwrap_or((text, ""));
        let value = value.trim_start();
        if scheme.eq_ignore_ascii_case("bearer") {
            return match policy.tokens.user_of(value.as_bytes(), now_ms) {
                Some(user) => Verdict::Known(Identity::of(user)),
                None => refused(policy, "the token is not known, or has expired"),
            };
        }
        if !scheme.eq_ignore_ascii_case("basic") {
            return refused(policy, "credentials are Basic or Bearer");
        }
        let is = |digest: &Digest| hmac::verify(key, value.as_bytes(), digest.as_ref()).is_ok();
        if let Some(verified) = &self.verified
            && Arc::ptr_eq(&verified.users, &policy.users)
            && is(&verified.digest)
        {
            return Verdict::Known(verified.identity.clone());
        }
        if self.wrong.as_ref().is_some_and(is) {
            return refused(policy, "wrong user name or password");
        }
        if self.check.is_some() {
            return Verdict::Wait;
        }
        let decoded = STANDARD.decode(value).unwrap_or_default();
        let colon = decoded.iter().position(|&byte| byte == b':');
        let parts = colon.and_then(|colon| {
            let user = std::str::from_utf8(&decoded[..colon]).ok()?;
            Some((user.to_owned(), decoded[colon + 1..].to_vec()))
        });
        match parts {
            None => refused(policy, "the credentials are not base64 of `user:password`"),
            Some(_) if policy.users.is_empty() => refused(policy, "there are no users"),
            Some((user, password)) => Verdict::Check {
                user,
                password,
                digest: hmac::sign(key, value.as_bytes()),
            },
        }
    }

    /// A password is being checked now.
    pub(super) fn started(&mut self, cx: &Context<'_>, number: u64, user: &str, digest: Digest) {
        self.check = Some(Check {
            number,
            digest,
            identity: Identity::of(user),
            users: Arc::clone(&cx.policy.users),
        });
    }

    /// The verdict on a password; false if it is not the one that is waited for.
    pub(super) fn decided(&mut self, number: u64, good: bool) -> bool {
        let Some(check) = self.check.take_if(|check| check.number == number) else {
            return false;
        };
        if good {
            self.verified = Some(Verified {
                digest: check.digest,
                identity: check.identity,
                users: check.users,
            });
        } else {
            self.wrong = Some(check.digest);
        }
        true
    }

    /// No password is checked after all.
    pub(super) fn given_up(&mut self) {
        self.check = None;
    }

    /// The requests that have waited for a verdict are answered.
    pub(super) fn answered(&mut self) {
        self.wrong = None;
    }

    /// A request with these credentials was let in.
    pub(super) fn admitted(&mut self, identity: &Identity) {
        if identity.user.is_some() && self.of_connection.as_ref() != Some(identity) {
            self.of_connection = Some(identity.clone());
        }
    }

    /// Whom an earlier request has shown, for the log.
    pub(super) fn name(&self) -> Option<&str> {
        self.of_connection.as_ref()?.user()
    }
}
