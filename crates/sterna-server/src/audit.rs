//! The audit log: logins, and refused ones with their reasons.
//!
//! Its target is a name of its own, and its level is the setting `log.audit`. Refusals have the level
//! `warn`, logins `debug`. Actions of operators have `info`, refused ones `warn`, those
//! without an object `info`, too. Signals are logged by the command `serve`.

use std::net::SocketAddr;

use serde_json::json;
use sterna_net::{ConnectionId, FailedHandshake, HandshakeFault, TransportKind};
use sterna_tls::CertificateSubject;

use crate::bans::Ban;
use crate::config::Protocol;
use crate::context::{Context, Cure, is_outage};
use crate::identity::{Identity, Refusal, Webhook, WebhookSubject};
use crate::last_refusal::command_that_lifts;
use crate::memory::Memory;
use crate::metrics::{Cause, LoginFailure, Meters};
use crate::repeats::{RepeatLimits, left_out};
use crate::session::own_name;

/// The target of the audit log.
pub const TARGET: &str = "sterna::audit";

/// A line of the audit log.
macro_rules! line {
    ($level:ident, $($rest:tt)*) => {
        tracing::event!(target: TARGET, tracing::Level::$level, $($rest)*)
    };
}

/// A change that an operator makes, or wants to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Action<'a> {
    pub(crate) name: &'a str,
    /// The object that is changed.
    pub(crate) target: &'a str,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) user: Option<&'a str>,
    pub(crate) role: Option<&'a str>,
    /// The time, and how often refusals may be alike.
    pub(crate) repeats: (u64, RepeatLimits),
    /// The change in more words than its object.
    pub(crate) detail: Option<&'a str>,
}

/// The end of a change.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome<'a> {
    Done,
    /// There was nothing to change: no reason to look, as such an action does no harm.
    Nothing(&'a str),
    Refused(&'a str),
}

impl Action<'_> {
    /// A line about it. `meters` are those of the shard.
    pub(crate) fn log(self, meters: &Meters, outcome: Outcome<'_>) {
        let Self {
            name: action,
            target: on,
            peer,
            user,
            role,
            repeats: (now_ms, limits),
            detail,
        } = self;
        let refusal = match outcome {
            Outcome::Done => None,
            Outcome::Nothing(reason) | Outcome::Refused(reason) => Some(reason),
        };
        let watch = &meters.watch;
        if watch.is_on() {
            let about = json!({
                "client": null, "user": user, "role": role, "action": action, "on": on, "reason": refusal,
            });
            watch.audited("action", user, &about);
        }
        let more = match refusal {
            None => Some(0),
            Some(reason) => {
                let line = ("action", user, action, on, reason);
                let address = peer.map(|peer| peer.ip());
                meters.repeats.pass(now_ms, limits, address, line)
            }
        };
        let Some(more) = more else {
            return;
        };
        let (peer, more) = (peer.map(tracing::field::display), left_out(more));
        match outcome {
            Outcome::Done => line!(INFO, peer, user, role, action, on, detail, "admin action"),
            Outcome::Nothing(reason) => {
                line!(
                    INFO,
                    peer,
                    user,
                    role,
                    action,
                    on,
                    reason,
                    more,
                    "admin action refused"
                );
            }
            Outcome::Refused(reason) => {
                line!(
                    WARN,
                    peer,
                    user,
                    role,
                    action,
                    on,
                    reason,
                    more,
                    "admin action refused"
                );
            }
        }
    }
}

/// A line about an export of the cluster, by `sterna cluster export`. `by` is what that says of itself.
pub(crate) fn cluster_exported(by: &str) {
    line!(INFO, by, "cluster export");
}

/// A line about a client that is banned because of its behaviour, by the ban of this number.
pub(crate) fn banned(number: u64, ban: &Ban) {
    line!(
        WARN,
        ban = number,
        freed_by = command_that_lifts(number),
        user = ban.banned.user.as_deref(),
        client = ban.banned.client.as_deref(),
        address = ban.banned.address.map(tracing::field::display),
        cause = &*ban.cause,
        reason = &*ban.reason,
        until_ms = ban.until_ms,
        "banned"
    );
}

/// A client that wants to come in.
#[derive(Clone, Copy)]
pub(crate) struct Login<'a> {
    meters: &'a Meters,
    peer: Option<SocketAddr>,
    transport: Option<TransportKind>,
    /// The URL of the listener, where no connection says it.
    listener: Option<&'a str>,
    protocol: Protocol,
    client: Option<&'a str>,
    user: Option<&'a str>,
    /// The method and the path of a request.
    asked: Option<(&'a str, &'a str)>,
    /// The webhook, which knows why it gives no good answers.
    webhook: Option<&'a Webhook>,
    /// The command that frees what it wants to have.
    freed_by: Option<&'a str>,
    /// How short memory is, where that may be why.
    memory: Option<&'a Memory>,
    /// Its connection, and the certificate that it has shown there.
    shown: Option<(ConnectionId, Option<&'a [u8]>)>,
    /// The time, in milliseconds since the Unix epoch, and how often lines may be alike.
    repeats: (u64, RepeatLimits),
}

impl<'a> Login<'a> {
    /// A client at the other end of a connection.
    pub(crate) fn of(cx: &'a Context<'_>, connection: ConnectionId, protocol: Protocol) -> Self {
        let info = cx.net.info(connection);
        Self {
            meters: cx.meters,
            peer: info.map(|info| info.peer),
            transport: info.map(|info| info.transport),
            listener: None,
            protocol,
            client: None,
            user: None,
            asked: None,
            webhook: Some(&cx.policy.webhook),
            freed_by: None,
            memory: Some(cx.memory),
            shown: info.map(|info| {
                let certificate = info.peer_certificates.first();
                (connection, certificate.map(|certificate| &**certificate))
            }),
            repeats: (cx.now_ms, cx.policy.repeats),
        }
    }

    /// A client whose handshake has failed because of its certificate, at the listener of this URL. `meters` are those of
    /// the shard, and `repeats` the time, and how often lines may be alike.
    pub(crate) fn certificate_refused(
        (meters, repeats): (&Meters, (u64, RepeatLimits)),
        (protocol, listener): (Protocol, &str),
        failed: &FailedHandshake,
    ) {
        let login = Login {
            meters,
            peer: Some(failed.peer),
            transport: Some(failed.transport),
            listener: Some(listener),
            protocol,
            client: None,
            user: None,
            asked: None,
            webhook: None,
            freed_by: None,
            memory: None,
            shown: None,
            repeats,
        };
        let refusal = match failed.fault {
            HandshakeFault::NoClientCertificate => Refusal::NoCredentials,
            _ => Refusal::Certificate,
        };
        login.refused(LoginFailure::Claim(refusal), &failed.detail);
    }

    /// The same, with the client's own name; empty for none.
    pub(crate) fn named(self, client: &'a str) -> Self {
        Self {
            client: (!client.is_empty()).then_some(client),
            ..self
        }
    }

    /// The same, by a user that it says or has shown to be.
    pub(crate) const fn by(self, user: Option<&'a str>) -> Self {
        Self { user, ..self }
    }

    /// The same, by a request with this method and path.
    pub(crate) const fn asking(self, asked: (&'a str, &'a str)) -> Self {
        Self {
            asked: Some(asked),
            ..self
        }
    }

    /// The same, with the command that frees what it wants to have.
    pub(crate) const fn freed_by(self, command: &'a str) -> Self {
        Self {
            freed_by: Some(command),
            ..self
        }
    }

    /// Tells operators that look at the log.
    fn tell(
        &self,
        event: &'static str,
        user: Option<&str>,
        reason: Option<&str>,
        detail: Option<&str>,
    ) {
        let watch = &self.meters.watch;
        if watch.is_on() {
            let about = json!({
                "protocol": self.protocol.name(),
                "peer": self.peer.map(|peer| peer.to_string()),
                "client": self.client,
                "user": user,
                "reason": reason,
                "detail": detail,
            });
            watch.audited(event, self.client.or(user), &about);
        }
    }

    /// It may come in.
    pub(crate) fn accepted(self, identity: &Identity) {
        self.tell("login", identity.user(), None, None);
        line!(
            DEBUG,
            protocol = self.protocol.name(),
            peer = self.peer.map(tracing::field::display),
            transport = self.transport.map(tracing::field::debug),
            client = self.client,
            user = identity.user(),
            proof = ?identity.proof(),
            "login"
        );
    }

    /// The true cause of a refusal, beside what the client is told.
    fn cause(&self, failure: LoginFailure) -> Option<Cause> {
        let LoginFailure::Claim(refusal) = failure else {
            return None;
        };
        let (connection, certificate) = self.shown?;
        let said = |words: String| Cause {
            words,
            freed_by: None,
        };
        match refusal {
            Refusal::Webhook => {
                let last = self.webhook?.last_failure(WebhookSubject::Authentication);
                last.map(said)
            }
            _ => (self.meters.last_refusal)
                .take(connection, refusal)
                .or_else(|| {
                    // The webhook's answer came later, and names another one.
                    let is_of_certificate = refusal == Refusal::Disagreement;
                    let subject =
                        CertificateSubject::of(certificate.filter(|_| is_of_certificate)?)?;
                    Some(said(format!("the certificate has {subject}")))
                }),
        }
    }

    /// It may not come in. Counts that, too.
    pub(crate) fn refused(self, failure: LoginFailure, detail: &str) {
        let cause = self.cause(failure);
        let (cause, command) =
            cause.map_or((None, None), |cause| (Some(cause.words), cause.freed_by));
        self.meters.login_failed(self.protocol, failure);
        self.tell(
            "login_refused",
            self.user,
            Some(failure.name()),
            Some(detail),
        );
        let (now_ms, limits) = self.repeats;
        let repeats = &self.meters.repeats;
        let passed = if is_outage(detail) {
            // It strikes everybody, so one line is for all.
            repeats.pass(now_ms, limits, None, (failure.name(), detail))
        } else {
            let address = self.peer.map(|peer| peer.ip());
            let client = self.client.map(own_name);
            let line = (self.protocol.name(), client, self.user, (detail, &cause));
            repeats.pass(now_ms, limits, address, line)
        };
        let Some(more) = passed else {
            return;
        };
        let cure = (self.memory).map(|memory| Cure::of(memory, detail, self.user));
        let Cure { held_as, freed_by } = cure.unwrap_or_default();
        line!(
            WARN,
            protocol = self.protocol.name(),
            peer = self.peer.map(tracing::field::display),
            listener = self.listener,
            client = self.client,
            user = self.user,
            method = self.asked.map(|(method, _)| method),
            path = self.asked.map(|(_, path)| path),
            reason = failure.name(),
            detail,
            held_as,
            freed_by = (self.freed_by)
                .or(freed_by.as_deref())
                .or(command.as_deref()),
            cause,
            more = left_out(more),
            "login refused"
        );
    }
}
