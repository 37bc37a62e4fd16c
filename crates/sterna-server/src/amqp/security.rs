//! The admission of clients: the SASL layer and the open.

use sterna_amqp::Condition;
use sterna_amqp::connection::ServerOptions;
use sterna_amqp::performatives::{Error, Open};
use sterna_amqp::sasl::{PlainCredentials, SaslCode, mechanism};
use sterna_amqp::types::{Map, MapWriter, Multiple, Value};
use sterna_broker::{EndCause, Origin};
use sterna_net::ConnectionId;

use super::client::{Client, State};
use super::{Door, code, log_end};
use crate::audit::Login;
use crate::config::Protocol;
use crate::context::Context;
use crate::door::TooManyConnections;
use crate::identity::{Identity, OAUTHBEARER, Outcome, Refusal, is_client_id};
use crate::judge::{Claim, Verdict, admits_quiet, check_ban, finish, is_unproved, judge, loggable};
use crate::metrics::LoginFailure;
use crate::policy::Policy;
use crate::session::AMQP_PREFIX;

/// Key of the credit that a resuming client may count on (`docs/amqp-over-quic.md`, section 15).
const INITIAL_CREDIT: &str = "sterna:initial-credit";

/// The credit that a sending link of a client which resumes has at once.
pub(super) fn initial_credit(policy: &Policy) -> u32 {
    policy.amqp.link_credit.min(policy.amqp.incoming_window)
}

/// Extensions that the broker offers.
const CAPABILITIES: [&str; 2] = ["ANONYMOUS-RELAY", "SHARED-SUBS"];

/// The offer of a connection's SASL layer, as the listener and the certificate allow.
pub(super) fn server_options(cx: &Context<'_>, connection: ConnectionId) -> ServerOptions {
    let info = cx.net.info(connection);
    let has_users = cx.policy.users.are_configured();
    let takes_tokens = cx.policy.issuer.is_configured() || cx.policy.webhook.authenticates();
    let is_quiet_enough = admits_quiet(cx, connection);
    let mut mechanisms = Vec::new();
    if info.is_some_and(|info| !info.peer_certificates.is_empty()) {
        mechanisms.push(mechanism::EXTERNAL);
    }
    if has_users {
        mechanisms.push(mechanism::SCRAM_SHA_256);
    }
    if takes_tokens {
        mechanisms.push(OAUTHBEARER);
    }
    // Clients that were told a name give it even where nobody asks: it is taken and ignored.
    if has_users || takes_tokens || is_quiet_enough {
        mechanisms.push(mechanism::PLAIN);
    }
    if is_quiet_enough {
        mechanisms.push(mechanism::ANONYMOUS);
    }
    ServerOptions {
        container_id: cx.policy.amqp.container_id.clone(),
        require_sasl: !is_quiet_enough,
        mechanisms: if mechanisms.is_empty() {
            // Nobody can get in, and is to learn that in the SASL layer.
            vec![mechanism::PLAIN.to_owned()]
        } else {
            mechanisms.into_iter().map(str::to_owned).collect()
        },
    }
}

/// The claim of a client with its mechanism and its first message.
///
/// # Errors
/// Why that cannot be looked at.
pub(super) fn claim_of<'a>(
    mechanism: &'a str,
    response: &'a [u8],
) -> Result<Claim<'a>, &'static str> {
    Ok(match mechanism {
        mechanism::ANONYMOUS => Claim::Nothing,
        mechanism::EXTERNAL => {
            let name = std::str::from_utf8(response);
            Claim::Holder(name.map_err(|_| "malformed EXTERNAL message")?)
        }
        mechanism::PLAIN => {
            let given = PlainCredentials::parse(response).filter(|given| {
                given.authorization_identity.is_empty()
                    || given.authorization_identity == given.user
            });
            let given = given.ok_or("malformed PLAIN message")?;
            Claim::Password(given.user, given.password.as_bytes())
        }
        other => Claim::Exchange(other, response),
    })
}

impl Door {
    pub(super) fn sasl_init(
        &mut self,
        cx: &Context<'_>,
        client: &mut Client,
        mechanism: &str,
        response: Option<&[u8]>,
    ) {
        match claim_of(mechanism, response.unwrap_or_default()) {
            Ok(claim) => self.claim(cx, client, claim),
            Err(detail) => self.malformed(cx, client, detail),
        }
    }

    /// Refuses a client whose mechanism was not offered. One that shows nothing learns so from the offer alone.
    pub(super) fn not_offered(&mut self, cx: &Context<'_>, client: &mut Client, mechanism: &str) {
        let refusal = match judge(cx, client.id, 0, Claim::Nothing) {
            Verdict::Refused(Refusal::NoCredentials) if mechanism != mechanism::ANONYMOUS => {
                Refusal::Method
            }
            Verdict::Refused(refusal) => refusal,
            _ => Refusal::Method,
        };
        self.refuse_claim(cx, client, None, refusal);
    }

    /// Notes a client that has shown nothing, where that is not enough.
    pub(super) fn log_quiet(cx: &Context<'_>, client: &Client) {
        if let Verdict::Refused(refusal) = judge(cx, client.id, 0, Claim::Nothing) {
            Self::log_refusal(cx, client, None, refusal);
        }
    }

    /// Counts the login of a client that was let in before its address was known.
    pub(super) fn count_login(&mut self, cx: &mut Context<'_>, client: &mut Client) {
        if !std::mem::take(&mut client.owes_login) || !matches!(client.state, State::Open) {
            return;
        }
        if let Some(identity) = &client.identity
            && let Err(refusal) = check_ban(cx, client.id, identity, Some(&client.container))
        {
            let detail = refusal.detail();
            log_end(cx, client, "amqp:unauthorized-access", detail);
            self.close(
                cx,
                client,
                (Condition::UNAUTHORIZED_ACCESS, EndCause::NotAllowed),
                detail,
            );
        }
    }

    fn claim(&mut self, cx: &Context<'_>, client: &mut Client, claim: Claim<'_>) {
        let user = loggable(cx.policy, claim);
        match judge(cx, client.id, 0, claim) {
            Verdict::Known(identity) => self.admit(cx, client, identity, None),
            Verdict::Pending(pending) => {
                let is_bearer = matches!(claim, Claim::Exchange(OAUTHBEARER, _));
                client.state = State::Password(Box::new(pending), is_bearer);
            }
            Verdict::Challenge(exchange, challenge) => {
                let challenge = challenge.as_bytes();
                if (client.engine)
                    .sasl_challenge(challenge, &mut self.out)
                    .is_ok()
                {
                    client.state = State::Exchange(exchange);
                }
            }
            Verdict::Refused(refusal) => {
                let is_bearer = matches!(claim, Claim::Exchange(OAUTHBEARER, _));
                if !(is_bearer && self.deny_token(cx, client, refusal)) {
                    self.refuse_claim(cx, client, user, refusal);
                }
            }
        }
    }

    /// Tells a client why its token is refused, before the outcome says that it is (RFC 7628, sections
    /// 3.2.2 and 3.2.3). False where the refusal is not about the token.
    fn deny_token(&mut self, cx: &Context<'_>, client: &mut Client, refusal: Refusal) -> bool {
        let status = match refusal {
            Refusal::Token | Refusal::Disagreement => "invalid_token",
            Refusal::Exchange => "invalid_request",
            _ => return false,
        };
        let challenge = format!(r#"{{"status":"{status}"}}"#);
        let told = (client.engine).sasl_challenge(challenge.as_bytes(), &mut self.out);
        if told.is_ok() {
            Self::log_refusal(cx, client, None, refusal);
            client.state = State::Denied;
        }
        told.is_ok()
    }

    pub(super) fn sasl_response(&mut self, cx: &Context<'_>, client: &mut Client, response: &[u8]) {
        let exchange = match std::mem::replace(&mut client.state, State::New) {
            State::Exchange(exchange) => exchange,
            // The response does not matter: the log has the reason already.
            State::Denied => return self.refuse(client, SaslCode::Auth),
            _ => return self.malformed(cx, client, "no challenge was sent"),
        };
        let user = exchange.user().to_owned();
        match finish(cx, client.id, *exchange, response) {
            Ok((identity, last)) => self.admit(cx, client, identity, Some(last.as_bytes())),
            Err(refusal) => self.refuse_claim(cx, client, Some(&user), refusal),
        }
    }

    /// The verdict on a claim that took longer.
    pub(crate) fn judged(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        outcome: Outcome,
    ) {
        self.with_client(cx, connection, |door, cx, client| {
            if client.asking.answered() {
                return;
            }
            match std::mem::replace(&mut client.state, State::New) {
                State::Password(pending, is_bearer) => {
                    let claimed = pending.claimed();
                    match pending.decided(&cx.policy.users, &cx.policy.webhook, outcome) {
                        Ok(identity) => door.admit(cx, client, identity, None),
                        Err(refusal) if is_bearer && door.deny_token(cx, client, refusal) => {}
                        Err(refusal) => door.refuse_claim(cx, client, claimed.user(), refusal),
                    }
                }
                other => client.state = other,
            }
        });
    }

    fn admit(
        &mut self,
        cx: &Context<'_>,
        client: &mut Client,
        identity: Identity,
        last: Option<&[u8]>,
    ) {
        client.state = State::New;
        client.identity = Some(identity);
        if client
            .engine
            .sasl_outcome(SaslCode::Ok, last, &mut self.out)
            .is_err()
        {
            log_end(cx, client, "amqp:internal-error", "no outcome was due");
        }
    }

    fn refuse_claim(
        &mut self,
        cx: &Context<'_>,
        client: &mut Client,
        user: Option<&str>,
        refusal: Refusal,
    ) {
        let code = match refusal {
            Refusal::Slowed | Refusal::Busy | Refusal::Webhook => SaslCode::SysTemp,
            Refusal::Unavailable => SaslCode::Sys,
            _ => SaslCode::Auth,
        };
        Self::log_refusal(cx, client, user, refusal);
        self.refuse(client, code);
    }

    fn log_refusal(cx: &Context<'_>, client: &Client, user: Option<&str>, refusal: Refusal) {
        let login = Login::of(cx, client.id, Protocol::Amqp).by(user);
        login.refused(LoginFailure::Claim(refusal), refusal.detail());
    }

    /// Refuses a client whose words in the SASL layer make no sense.
    fn malformed(&mut self, cx: &Context<'_>, client: &mut Client, detail: &str) {
        Login::of(cx, client.id, Protocol::Amqp).refused(LoginFailure::Protocol, detail);
        self.refuse(client, SaslCode::Auth);
    }

    fn refuse(&mut self, client: &mut Client, code: SaslCode) {
        // The engine is closed by it, or was before.
        let _ = client.engine.sasl_outcome(code, None, &mut self.out);
        client.held = Vec::new();
        client.state = State::Ended;
    }

    pub(super) fn open(&mut self, cx: &mut Context<'_>, client: &mut Client, open: &Open<'_>) {
        let limit = cx.policy.amqp.maximum_container_id_bytes as usize;
        if open.container_id.len() > limit {
            let detail = "the container-id is too long";
            return self.close(
                cx,
                client,
                (Condition::INVALID_FIELD, EndCause::Violation),
                detail,
            );
        }
        if !is_client_id(open.container_id) {
            let detail = "the container-id has control characters";
            return self.close(
                cx,
                client,
                (Condition::INVALID_FIELD, EndCause::Violation),
                detail,
            );
        }
        if let Some(closed) = cx.closed() {
            return self.close(
                cx,
                client,
                (Condition::RESOURCE_LIMIT_EXCEEDED, EndCause::Limit),
                closed.detail(),
            );
        }
        client.container = open.container_id.into();
        // Where there was no SASL layer, the client shows nothing.
        let quiet = || judge(cx, client.id, 0, Claim::Nothing);
        let verdict = client.identity.take().map_or_else(quiet, Verdict::Known);
        let Verdict::Known(identity) = verdict else {
            let refusal = match verdict {
                Verdict::Refused(refusal) => refusal,
                _ => Refusal::NoCredentials,
            };
            let login = Login::of(cx, client.id, Protocol::Amqp).named(&client.container);
            login.refused(LoginFailure::Claim(refusal), refusal.detail());
            return self.close(
                cx,
                client,
                (Condition::UNAUTHORIZED_ACCESS, EndCause::NotAllowed),
                refusal.detail(),
            );
        };
        client.owes_login = is_unproved(cx, client.id);
        if let Err(refusal) = check_ban(cx, client.id, &identity, Some(open.container_id)) {
            let login = Login::of(cx, client.id, Protocol::Amqp).named(&client.container);
            let login = login.by(identity.user());
            login.refused(LoginFailure::Claim(refusal), refusal.detail());
            return self.close(
                cx,
                client,
                (Condition::UNAUTHORIZED_ACCESS, EndCause::NotAllowed),
                refusal.detail(),
            );
        }
        if !cx.policy.may_have_client_id(&identity, open.container_id) {
            let detail = "the container-id is not one of the user's client identifiers";
            let login = Login::of(cx, client.id, Protocol::Amqp).named(&client.container);
            let login = login.by(identity.user());
            login.refused(LoginFailure::NotAuthorized, detail);
            return self.close(
                cx,
                client,
                (Condition::UNAUTHORIZED_ACCESS, EndCause::NotAllowed),
                detail,
            );
        }
        if client.sips.allow(cx, &identity, client.id, None).is_err() {
            let detail = TooManyConnections::DETAIL;
            let login = Login::of(cx, client.id, Protocol::Amqp).named(&client.container);
            let login = login.by(identity.user());
            login.refused(LoginFailure::Quota, detail);
            return self.close(
                cx,
                client,
                (Condition::CONNECTION_FORCED, EndCause::Limit),
                detail,
            );
        }
        let identity = client.identity.insert(identity);
        cx.policy.note_standing(identity, &client.container);
        let user = identity.user().unwrap_or_default();
        client.origin = Origin::of_client(&format!(
            "{AMQP_PREFIX}{user}\0{}\0{}",
            client.container, client.id.generation
        ));
        let mut properties = bytes::BytesMut::new();
        let mut map = MapWriter::new(&mut properties);
        for (key, value) in [
            ("product", "Sterna"),
            ("version", env!("CARGO_PKG_VERSION")),
        ] {
            map.push(&Value::Symbol(key), &Value::String(value));
        }
        map.push(
            &Value::Symbol(INITIAL_CREDIT),
            &Value::Uint(initial_credit(cx.policy)),
        );
        map.finish();
        let properties = match Value::decode(&properties) {
            Ok(Value::Map(map)) => Some(map),
            _ => None::<Map<'_>>,
        };
        let answer = Open {
            offered_capabilities: Multiple::Slice(&CAPABILITIES),
            properties,
            ..Open::new(&cx.policy.amqp.container_id)
        };
        if client.engine.open(&answer, &mut self.out).is_err() {
            let detail = "the client takes not even an open";
            return self.close(
                cx,
                client,
                (Condition::FRAME_SIZE_TOO_SMALL, EndCause::Limit),
                detail,
            );
        }
        client.state = State::Open;
        self.counts.connections += 1;
        if let Some(identity) = &client.identity {
            let login = Login::of(cx, client.id, Protocol::Amqp).named(&client.container);
            login.accepted(identity);
        }
        client.trace(cx);
    }

    /// Ends a connection for a reason of the broker's own, with a line for the operator.
    pub(super) fn close(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        (condition, cause): (Condition, EndCause),
        detail: &str,
    ) {
        log_end(cx, client, condition.as_str(), detail);
        client.close_code = code::VIOLATION;
        client.cause = cause;
        // A closed connection needs no other close.
        let _ = client
            .engine
            .close(Some(Error::new(condition, detail)), &mut self.out);
        self.handle_rest(cx, client);
        self.lost(cx, client, cause);
    }
}
