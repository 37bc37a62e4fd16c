//! Who gets in: the SASL layer, the open, and what may be done early.

use sterna_amqp::Condition;
use sterna_amqp::connection::ServerOptions;
use sterna_amqp::frame::{TYPE_AMQP, Unit};
use sterna_amqp::messaging::MessageView;
use sterna_amqp::performatives::{Error, Open, Performative};
use sterna_amqp::sasl::{PlainCredentials, SaslCode, mechanism};
use sterna_amqp::types::{Map, MapWriter, Multiple, Value};
use sterna_broker::Origin;
use sterna_net::ConnectionId;

use super::client::{Client, State, Target};
use super::{Door, code, log_end};
use crate::authentication::{Exchange, common_name};
use crate::config::EarlyData;
use crate::context::Context;
use crate::mail::Mail;
use crate::session::AMQP_PREFIX;

/// Key of the credit that a resuming client may count on (`docs/amqp-over-quic.md`, section 15).
const INITIAL_CREDIT: &str = "sterna:initial-credit";
/// Extensions that the broker offers.
const CAPABILITIES: [&str; 2] = ["ANONYMOUS-RELAY", "SHARED-SUBS"];

/// What a connection's SASL layer offers: what its listener and its certificate allow.
pub(super) fn server_options(cx: &Context<'_>, connection: ConnectionId) -> ServerOptions {
    let info = cx.net.info(connection);
    let listener = cx.policy.listener(info.map_or(0, |info| info.listener));
    let has_certificate = info.is_some_and(|info| !info.peer_certificates.is_empty());
    let mut mechanisms = Vec::new();
    if has_certificate {
        mechanisms.push(mechanism::EXTERNAL);
    }
    if !cx.policy.users.is_empty() {
        mechanisms.push(mechanism::SCRAM_SHA_256);
        mechanisms.push(mechanism::PLAIN);
    }
    if listener.anonymous {
        // Clients that were told a name give it even where nobody asks: it is taken and ignored.
        if cx.policy.users.is_empty() {
            mechanisms.push(mechanism::PLAIN);
        }
        mechanisms.push(mechanism::ANONYMOUS);
    }
    let must_name_itself = has_certificate && cx.policy.certificate_as_username;
    ServerOptions {
        container_id: cx.policy.amqp.container_id.clone(),
        require_sasl: !listener.anonymous || must_name_itself,
        mechanisms: if mechanisms.is_empty() {
            // Nobody can get in, and is to learn that in the SASL layer.
            vec![mechanism::PLAIN.to_owned()]
        } else {
            mechanisms.into_iter().map(str::to_owned).collect()
        },
    }
}

impl Door {
    pub(super) fn sasl_init(
        &mut self,
        cx: &Context<'_>,
        client: &mut Client,
        mechanism: &str,
        response: Option<&[u8]>,
    ) {
        let response = response.unwrap_or_default();
        match mechanism {
            mechanism::ANONYMOUS => self.admit(cx, client, None, None),
            mechanism::EXTERNAL => self.external(cx, client, response),
            mechanism::PLAIN => self.plain(cx, client, response),
            _ => match Exchange::start(&cx.policy.users, mechanism, response) {
                Ok((exchange, challenge)) => {
                    let challenge = challenge.as_bytes();
                    if client
                        .engine
                        .sasl_challenge(challenge, &mut self.out)
                        .is_ok()
                    {
                        client.state = State::Exchange(Box::new(exchange));
                    }
                }
                Err(_) => self.refuse(cx, client, SaslCode::Auth, "authentication failed"),
            },
        }
    }

    pub(super) fn sasl_response(&mut self, cx: &Context<'_>, client: &mut Client, response: &[u8]) {
        let State::Exchange(mut exchange) = std::mem::replace(&mut client.state, State::New) else {
            return self.refuse(cx, client, SaslCode::Auth, "no challenge was sent");
        };
        match exchange.finish(response) {
            Ok((user, last)) => self.admit(cx, client, Some(&user), Some(last.as_bytes())),
            Err(_) => self.refuse(cx, client, SaslCode::Auth, "authentication failed"),
        }
    }

    fn external(&mut self, cx: &Context<'_>, client: &mut Client, response: &[u8]) {
        let certificate = cx
            .net
            .info(client.id)
            .and_then(|info| info.peer_certificates.first().cloned());
        let name = certificate.as_deref().and_then(common_name);
        let acts_as = std::str::from_utf8(response).unwrap_or("\0");
        match name {
            _ if certificate.is_none() => {
                self.refuse(cx, client, SaslCode::Auth, "no client certificate");
            }
            Some(name) if acts_as.is_empty() || acts_as == name => {
                let user = cx.policy.certificate_as_username.then_some(&*name);
                self.admit(cx, client, user, None);
            }
            None if !cx.policy.certificate_as_username && acts_as.is_empty() => {
                self.admit(cx, client, None, None);
            }
            _ => {
                let detail = "the client certificate names another, or nobody";
                self.refuse(cx, client, SaslCode::Auth, detail);
            }
        }
    }

    fn plain(&mut self, cx: &Context<'_>, client: &mut Client, response: &[u8]) {
        let Some(credentials) = PlainCredentials::parse(response).filter(|given| {
            given.authorization_identity.is_empty() || given.authorization_identity == given.user
        }) else {
            return self.refuse(cx, client, SaslCode::Auth, "malformed PLAIN message");
        };
        if cx.policy.users.is_empty() {
            return if cx.policy.listener(client.listener).anonymous {
                self.admit(cx, client, None, None);
            } else {
                self.refuse(cx, client, SaslCode::Auth, "there are no users");
            };
        }
        let (Some(checker), Some(post)) = (cx.checker, cx.outbox.postbox(cx.shard)) else {
            return self.refuse(cx, client, SaslCode::Sys, "no password checker");
        };
        let connection = client.id;
        let started = checker.check(
            cx.policy.users.clone(),
            credentials.user.to_owned(),
            credentials.password.as_bytes().to_vec(),
            move |good| {
                post(Mail::PasswordChecked {
                    connection,
                    number: 0,
                    good,
                });
            },
        );
        if started {
            client.state = State::Password(credentials.user.into());
        } else {
            self.refuse(cx, client, SaslCode::SysTemp, "too many passwords to check");
        }
    }

    /// The verdict on a password.
    pub(crate) fn password_checked(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        good: bool,
    ) {
        self.with_client(cx, connection, |door, cx, client| {
            match std::mem::replace(&mut client.state, State::New) {
                State::Password(user) if good => door.admit(cx, client, Some(&user), None),
                State::Password(_) => {
                    door.refuse(cx, client, SaslCode::Auth, "wrong user name or password");
                }
                other => client.state = other,
            }
        });
    }

    fn admit(
        &mut self,
        cx: &Context<'_>,
        client: &mut Client,
        user: Option<&str>,
        last: Option<&[u8]>,
    ) {
        client.state = State::New;
        client.user = user.map(Into::into);
        if client
            .engine
            .sasl_outcome(SaslCode::Ok, last, &mut self.out)
            .is_err()
        {
            log_end(cx.net, client, "amqp:internal-error", "no outcome was due");
        }
    }

    fn refuse(&mut self, cx: &Context<'_>, client: &mut Client, code: SaslCode, detail: &str) {
        log_end(cx.net, client, "amqp:unauthorized-access", detail);
        // The engine is closed by it, or was before.
        let _ = client.engine.sasl_outcome(code, None, &mut self.out);
        client.held = Vec::new();
        client.state = State::Ended;
    }

    pub(super) fn open(&mut self, cx: &mut Context<'_>, client: &mut Client, open: &Open<'_>) {
        let limit = cx.policy.amqp.maximum_container_id_bytes as usize;
        if open.container_id.len() > limit {
            let detail = "the container-id is too long";
            return self.close(cx, client, Condition::INVALID_FIELD, detail);
        }
        client.container = open.container_id.into();
        let user = client.user.as_deref().unwrap_or_default();
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
            &Value::Uint(
                cx.policy
                    .amqp
                    .link_credit
                    .min(cx.policy.amqp.incoming_window),
            ),
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
            return self.close(cx, client, Condition::FRAME_SIZE_TOO_SMALL, detail);
        }
        client.state = State::Open;
        self.counts.connections += 1;
        let peer = cx
            .net
            .info(client.id)
            .map(|info| (info.peer, info.transport));
        tracing::debug!(
            peer = peer.map(|(peer, _)| tracing::field::display(peer)),
            transport = peer.map(|(_, transport)| tracing::field::debug(transport)),
            client = &*client.container,
            "connected"
        );
        client.trace(cx);
    }

    /// Ends a connection for a reason of the broker's own, with a line for the operator.
    pub(super) fn close(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        condition: Condition,
        detail: &str,
    ) {
        log_end(cx.net, client, condition.as_str(), detail);
        client.close_code = code::VIOLATION;
        // What is closed already needs no other close.
        let _ = client
            .engine
            .close(Some(Error::new(condition, detail)), &mut self.out);
        self.handle_rest(cx, client);
        self.lost(cx, client);
    }
}

/// Whether a frame may be handled although it can be a replay: a second connection, session or link
/// harms nobody, a second message does unless the rules say otherwise.
pub(super) fn may_be_early(cx: &Context<'_>, client: &Client, unit: &Unit<'_>) -> bool {
    if cx.policy.listener(client.listener).early_data == EarlyData::All {
        return true;
    }
    let Unit::Frame(frame) = unit else {
        return true;
    };
    if frame.frame_type() != TYPE_AMQP || frame.body().is_empty() {
        return true;
    }
    match Performative::decode(frame.body()) {
        Ok((Performative::Transfer(transfer), payload)) => {
            let link = client.engine.link_of(frame.channel(), transfer.handle);
            let target = link.and_then(|link| client.targets.get(&link));
            let rules = &cx.policy.rules;
            let is_whole = transfer.settled == Some(true)
                && transfer.state.is_none()
                && !transfer.more
                && !transfer.aborted;
            let to = || {
                let view = MessageView::parse(payload).ok()?;
                let to = view.properties().ok()??.to?;
                super::attach::topic_of_address(&cx.policy.amqp, to.as_text()?, None)
            };
            is_whole
                && match target.map(|target| &target.node) {
                    Some(Target::Topic(topic)) => rules.is_idempotent(client.subject(), topic),
                    Some(Target::Anonymous) => {
                        to().is_some_and(|topic| rules.is_idempotent(client.subject(), &topic))
                    }
                    _ => false,
                }
        }
        Ok((Performative::Disposition(_), _)) => false,
        _ => true,
    }
}
