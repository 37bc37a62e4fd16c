//! The front door of AMQP 1.0: between the engine's words and the broker's.
//!
//! `security.rs` decides which clients get in, and `early.rs` which frames need not wait for the handshake. `attach.rs`, `wanted.rs` and `target.rs` decide where links lead. `incoming.rs`
//! carries messages to the broker. `outgoing.rs` carries messages to the client, and its outcomes back.
//! `transactions.rs` holds both until a discharge. `acknowledge.rs` sends answers whose effects are kept.
//! `end.rs` ends links, sessions and connections, and `farewell.rs` says how long a client's own ends wait. `exact.rs` remembers deliveries that are taken exactly once, and
//! `departed.rs` for how long.
//! `stealing.rs` ends links that come back elsewhere. `recovery.rs` goes on with deliveries that were sent
//! before. `address.rs` reads addresses, `queues.rs` makes queues, `nodes.rs` ends those that were made for links, and `registry.rs` is the state that all shards
//! share.

mod acknowledge;
mod address;
mod ask;
mod attach;
mod claims;
mod client;
mod departed;
mod early;
mod end;
mod exact;
mod farewell;
mod incoming;
mod kept_nodes;
mod nodes;
mod outgoing;
mod owners;
mod queue_reader;
mod queues;
mod recovery;
mod registry;
mod security;
mod selection;
mod stealing;
mod target;
mod transactions;
mod view;
mod wanted;

pub(crate) use queue_reader::death;

use std::cell::Cell;
use std::sync::Arc;

use bytes::BytesMut;
use rustc_hash::FxHashMap;
use sterna_amqp::connection::{Connection, LinkId};
use sterna_amqp::frame::Unit;
use sterna_amqp::performatives::Error;
use sterna_amqp::types::{Encoded, MapWriter, Value};
use sterna_amqp::{Condition, Event, Lane, Limits, Scope, Violation};
use sterna_broker::{ConsumerId, EndCause, Origin, SessionKey};
use sterna_net::{Chunk, ConnectionId, StreamId, TransportKind, foreign};

use crate::authorization::KnownTopics;
use crate::config::Protocol;
use crate::context::Context;
use crate::door::{
    self, Asking, Early, Framers, Held, Promises, Service, Sips, held_bytes, hold_early, note_early,
};
use crate::policy::Policy;
use crate::rights::CHANGED_DURING_CHECK;
use acknowledge::Acknowledgement;
use client::{Client, Links, State};
use farewell::Farewell;

pub use registry::Registry;

/// Application error codes of streams and connections (`docs/amqp-over-quic.md`, section 11).
mod code {
    /// Ended in order.
    pub(super) const NO_ERROR: u64 = 0;
    /// The protocol was violated.
    pub(super) const VIOLATION: u64 = 1;
    /// A limit was exceeded.
    pub(super) const LIMIT: u64 = 2;
    /// The broker failed.
    pub(super) const INTERNAL: u64 = 3;
}

/// The front door of one shard.
pub(crate) type Door = door::Door<Amqp>;

/// The door's state beside its clients.
#[derive(Debug)]
pub(crate) struct Amqp {
    registry: Arc<Registry>,
    /// The connection and the link of each consumer that the broker knows.
    consumers: FxHashMap<u64, (ConnectionId, LinkId)>,
    next_consumer: u64,
    /// Queues for whose sessions this shard has seen to.
    anchors: Cell<u64>,
    /// Those of them that are connected sessions: of queues that are nodes of links.
    held_anchors: Cell<u64>,
    /// Queues of nodes of which the shard has the root.
    roots: nodes::Roots,
}

impl Service for Amqp {
    const IS_READ_TO_ITS_END: bool = true;

    type Id = ConnectionId;
    type Client = Client;
    type Acknowledgement = Acknowledgement;

    fn greet(_: &mut Door, cx: &mut Context<'_>, id: ConnectionId) -> Option<Client> {
        let now_ms = cx.now_ms;
        let info = cx.net.info(id)?;
        let is_quic = info.transport == TransportKind::Quic;
        let options = security::server_options(cx, id);
        let limits = engine_limits(cx.policy, is_quic);
        Some(Client {
            id,
            engine: Connection::server(&options, &limits, now_ms),
            state: State::New,
            listener: info.listener,
            framers: Framers::default(),
            sessions: Vec::new(),
            finishing: Vec::new(),
            held: Vec::new(),
            farewell: Farewell::default(),
            early: Early::Over,
            asking: Asking::default(),
            known_topics: KnownTopics::default(),
            timer_ms: u64::MAX,
            container: Box::default(),
            identity: None,
            origin: Origin::NONE,
            sources: Links::default(),
            targets: Links::default(),
            unanswered: Vec::new(),
            suspended: Vec::new(),
            lingering: Vec::new(),
            transactions: transactions::Transactions::default(),
            traced: false,
            close_code: code::NO_ERROR,
            cause: EndCause::Client,
            accepted: None,
            promises: Promises::default(),
            owes_login: false,
            is_paced: false,
            sips: Sips::begun(cx.now_ms),
            is_starved: false,
        })
    }

    fn settle(door: &mut Door, cx: &mut Context<'_>, client: &mut Client) {
        let id = client.id;
        Door::look_at_ends(cx, client);
        door.release(cx, client);
        door.write_accepted(cx, client);
        client.pace(cx, door.stopping);
        door.out.flush(cx, id, |_| false);
        for stream in client.finishing.drain(..) {
            cx.net.finish(id, stream);
        }
        if client.engine.is_closed() && !matches!(client.state, State::Ended) {
            door.lost(cx, client, EndCause::Client);
        }
        if matches!(client.state, State::Ended) {
            cx.net.close(id, client.close_code);
        } else if let Some(deadline_ms) = client.next_ms()
            && deadline_ms < client.timer_ms
        {
            door.set_timer(client, deadline_ms);
        }
    }

    fn due(door: &mut Door, cx: &mut Context<'_>, client: &mut Client) {
        let now_ms = cx.now_ms;
        if client.is_paced {
            client.engine.input_resumed(now_ms);
        }
        let due = client.engine.on_timeout(now_ms, &mut door.out);
        if let Err(violation) = due {
            // It was silent for too long.
            door.violated(cx, client, &violation, EndCause::Lost, &[]);
        } else if client.has_expired(now_ms) {
            let detail = "the token has expired";
            let cause = EndCause::NotAllowed;
            door.close(cx, client, (Condition::UNAUTHORIZED_ACCESS, cause), detail);
        }
    }

    fn policy_changed(door: &mut Door, cx: &mut Context<'_>, client: &mut Client) {
        client.trace(cx);
        let info = cx.net.info(client.id);
        let stays = match client.state {
            State::Ended => Ok(()),
            State::Password(..) | State::Exchange(_) => Err(CHANGED_DURING_CHECK.into()),
            // A client that the SASL layer has let in may not have opened the connection yet. One that is open has an
            // identity.
            State::New | State::Denied | State::Open => match &client.identity {
                None => cx.policy.still_trusts(info),
                Some(identity) => cx.policy.still_admits(info, identity),
            },
        };
        if let Err(why) = stays {
            door.unwanted(cx, client, &why);
        } else if matches!(client.state, State::Open)
            && let Some(identity) = &mut client.identity
        {
            cx.policy.note_standing(identity, &client.container);
            client.sips.allow_again(cx, identity, client.id, None);
        }
    }

    fn stop(door: &mut Door, cx: &mut Context<'_>, client: &mut Client) {
        let forced = Error::new(Condition::CONNECTION_FORCED, "the broker shuts down");
        let elsewhere = cx.policy.amqp.redirect().map(redirect);
        let error = match elsewhere.as_ref().map(Encoded::value) {
            Some(Value::Map(info)) => Error {
                info: Some(info),
                ..Error::new(
                    Condition::CONNECTION_REDIRECT,
                    "the broker shuts down: use another one",
                )
            },
            _ => forced,
        };
        // Before its open a client is told nothing.
        let _ = client.engine.close(Some(error), &mut door.out);
        door.lost(cx, client, EndCause::Stop);
    }

    fn lost(door: &mut Door, cx: &mut Context<'_>, client: &mut Client, cause: EndCause) {
        door.end_at_once(cx, client);
        door.lost(cx, client, cause);
    }

    fn dismiss(door: &mut Door, cx: &mut Context<'_>, client: &mut Client, cause: EndCause) {
        door.dismissed(cx, client, cause);
    }

    fn hang_up(cx: &mut Context<'_>, id: ConnectionId, failed: bool) {
        let code = if failed {
            code::INTERNAL
        } else {
            code::NO_ERROR
        };
        cx.net.close(id, code);
    }

    fn is_consumer_of(&self, consumer: ConsumerId, id: ConnectionId) -> bool {
        consumer_number(consumer).is_some_and(|number| {
            let link = self.consumers.get(&number);
            // Only a step that has failed leaves an anchor attended.
            number == ANCHOR || link.is_some_and(|(connection, _)| *connection == id)
        })
    }

    fn forget_consumers(&mut self, id: ConnectionId) {
        self.consumers
            .retain(|_, (connection, _)| *connection != id);
    }

    fn name(client: &Client) -> Option<&str> {
        client.live_name()
    }

    fn user(client: &Client) -> Option<&str> {
        client.user()
    }

    fn promises(client: &mut Client) -> &mut Promises<Acknowledgement> {
        &mut client.promises
    }

    fn acknowledge(
        door: &mut Door,
        cx: &mut Context<'_>,
        client: &mut Client,
        acknowledgement: Acknowledgement,
    ) {
        door.write_acknowledgement(cx, client, acknowledgement);
    }

    fn timer(client: &mut Client) -> (ConnectionId, &mut u64) {
        (client.id, &mut client.timer_ms)
    }

    fn partial_bytes(client: &Client) -> usize {
        client.partial_bytes()
    }

    fn kept_bytes(client: &Client) -> usize {
        client.kept_bytes()
    }

    fn each_session(client: &Client, visit: &mut dyn FnMut(SessionKey)) {
        let sources = client.sources.values();
        sources.for_each(|link| visit(link.session));
    }

    fn known_topics(client: &mut Client) -> Option<&mut KnownTopics> {
        Some(&mut client.known_topics)
    }

    fn sips(client: &mut Client) -> &mut Sips {
        &mut client.sips
    }

    fn shed(door: &mut Door, cx: &mut Context<'_>, client: &mut Client) {
        door.shed_client(cx, client);
    }

    fn check(door: &Door) {
        let consumers = &door.service.consumers;
        let links = door.clients.iter().map(|client| {
            client.check(|number| {
                let (connection, link) = consumers.get(&number)?;
                (*connection == client.id).then_some(*link)
            })
        });
        assert_eq!(
            links.sum::<usize>(),
            consumers.len(),
            "each consumer is a client's link"
        );
        door.service.registry.check();
    }
}

impl Door {
    /// A door without clients.
    pub(crate) fn new(registry: Arc<Registry>, high_watermark_bytes: usize) -> Self {
        let service = Amqp {
            registry,
            consumers: FxHashMap::default(),
            next_consumer: 0,
            anchors: Cell::new(0),
            held_anchors: Cell::new(0),
            roots: nodes::Roots::default(),
        };
        Self::open_for(service, high_watermark_bytes)
    }

    /// Links that are connected sessions of the broker, and the clients themselves. These are the links on which
    /// clients receive, anchors of queues that are nodes of links, and in a cluster also links on which they send exactly once.
    pub(crate) fn links_and_clients(&self) -> (usize, usize) {
        let anchors = self.service.held_anchors.get() as usize;
        (self.service.consumers.len() + anchors, self.clients.len())
    }

    /// Bytes arrived.
    pub(crate) fn received(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        chunk: Chunk<'_>,
    ) {
        self.with_client(cx, connection, |door, cx, client| {
            door.counts.bytes_received += chunk.bytes.len() as u64;
            let (early, listener) = (&mut client.early, client.listener);
            note_early(cx, early, Protocol::Amqp, listener, &chunk);
            if chunk.stream.is_bidirectional() {
                door.feed(cx, client, chunk.stream, chunk.bytes);
            } else {
                cx.net.abort(client.id, chunk.stream, code::VIOLATION);
            }
        });
    }

    /// Early data can no longer be a replay.
    pub(crate) fn confirmed(&mut self, cx: &mut Context<'_>, connection: ConnectionId) {
        self.with_client(cx, connection, |door, cx, client| {
            client.early = Early::Over;
            door.count_login(cx, client);
        });
    }

    /// The queue towards a client has room again.
    pub(crate) fn writable(&mut self, cx: &mut Context<'_>, connection: ConnectionId) {
        self.with_client(cx, connection, |door, cx, client| {
            door.resume_all(cx, client);
        });
    }

    /// Cuts bytes of a stream into frames and handles them, or keeps them until they can be.
    fn feed(&mut self, cx: &mut Context<'_>, client: &mut Client, stream: StreamId, bytes: &[u8]) {
        if matches!(client.state, State::Ended) {
            return;
        }
        if client.holds(stream) || !client.accepts(stream) {
            self.hold(cx, client, Held::Bytes(stream, bytes.into()));
            return;
        }
        let lane = Lane(stream.0);
        let now_ms = cx.now_ms;
        let mut framer = client.framers.take(stream);
        let mut input = bytes;
        loop {
            match framer.next(&mut input, client.engine.max_frame_bytes()) {
                Ok(Some(unit)) => {
                    let waits = if client.early == Early::Allowed
                        && !self.may_be_early(cx, client, &unit)
                    {
                        hold_early(cx, &mut client.early, Protocol::Amqp);
                        true
                    } else {
                        ask::must_ask(cx, client, &unit)
                            || unit.is_transfer() && client.sips.must_wait(cx, Protocol::Amqp)
                            || self.must_hold(cx, client, &unit)
                            || self.must_be_last(cx, client, stream, &unit)
                    };
                    if waits {
                        let mut kept = BytesMut::new();
                        unit.copy_to(&mut kept);
                        kept.extend_from_slice(input);
                        self.hold(cx, client, Held::Bytes(stream, kept[..].into()));
                        break;
                    }
                    self.receive(cx, client, lane, &unit, now_ms);
                }
                Ok(None) => break,
                Err(error) => {
                    let violation = client.engine.decode_failed(error, &mut self.out);
                    self.violated(cx, client, &violation, EndCause::Violation, bytes);
                    break;
                }
            }
            if matches!(client.state, State::Ended) {
                break;
            }
            if !client.accepts(stream) {
                if !input.is_empty() {
                    self.hold(cx, client, Held::Bytes(stream, input.into()));
                }
                break;
            }
        }
        client.framers.put_back(stream, framer);
    }

    fn receive(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        lane: Lane,
        unit: &Unit<'_>,
        now_ms: u64,
    ) {
        self.counts.messages_received += 1;
        if !unit.is_transfer() {
            // An answer to the frame that comes now must not overtake earlier accepted deliveries.
            self.write_accepted(cx, client);
        }
        match client.engine.receive(lane, unit, now_ms, &mut self.out) {
            Ok(None) => {}
            Ok(Some(event)) => self.handle(cx, client, event),
            Err(violation) => self.violated(cx, client, &violation, EndCause::Violation, &[]),
        }
        self.handle_rest(cx, client);
    }

    /// Handles the further events of a frame or a command. Deliveries that go back to their queues go back
    /// together, the latest first, so that their order is kept.
    fn handle_rest(&mut self, cx: &mut Context<'_>, client: &mut Client) {
        let mut returned = Vec::new();
        while let Some(event) = client.engine.next_event() {
            match event {
                Event::Disposition {
                    link,
                    delivery_id,
                    token,
                    state,
                    settled,
                } => {
                    let disposed = outgoing::Disposed {
                        link,
                        delivery_id,
                        token,
                        state,
                        settled,
                    };
                    self.disposed(cx, client, &disposed, &mut returned);
                }
                event => {
                    outgoing::give_back(cx, &mut returned);
                    self.handle(cx, client, event);
                }
            }
        }
        outgoing::give_back(cx, &mut returned);
    }

    fn handle(&mut self, cx: &mut Context<'_>, client: &mut Client, event: Event<'_>) {
        match event {
            Event::Delivery(delivery) => self.delivery(cx, client, &delivery),
            Event::Credit {
                link,
                credit,
                drain,
                txn_id,
            } => self.credit(cx, client, link, credit, drain, txn_id.is_some()),
            Event::Window { session } => self.window(cx, client, session),
            Event::SaslInit {
                mechanism,
                is_offered: false,
                ..
            } => self.not_offered(cx, client, mechanism),
            Event::SaslInit {
                mechanism,
                initial_response,
                ..
            } => self.sasl_init(cx, client, mechanism, initial_response),
            Event::SaslResponse { response } => self.sasl_response(cx, client, response),
            Event::Open(open) => self.open(cx, client, &open),
            Event::Begin { session, .. } => {
                let lane = client.engine.lane_of(session).unwrap_or(Lane::CONTROL);
                client.sessions.push((session, lane));
            }
            Event::Attach { link, attach } => self.attach(cx, client, link, &attach),
            Event::Aborted { link } => self.renew_credit(cx, client, link),
            Event::Recover {
                link,
                delivery,
                recovery,
            } => {
                Self::recover(cx, client, link, delivery, recovery);
                self.renew_credit(cx, client, link);
            }
            Event::Detached {
                link,
                closed,
                unsettled,
                ..
            } => self.detached(cx, client, link, closed, unsettled),
            Event::Ended { session, .. } => self.ended(cx, client, session),
            Event::Closed { error } => {
                if let Some(error) = error {
                    tracing::debug!(
                        client = &*client.container,
                        condition = &*error.condition,
                        detail = error.description.as_deref(),
                        "closed by the client"
                    );
                }
            }
            // A server begins and attaches nothing, and is not authenticated; dispositions are handled
            // where they come from; a sender's state asks for nothing.
            Event::Begun { .. }
            | Event::Attached { .. }
            | Event::Authenticated
            | Event::Disposition { .. }
            | Event::SenderFlow { .. } => {}
        }
    }

    /// Keeps bytes until the decision that they wait for. The transport is paused meanwhile, so that
    /// not much more than one read comes.
    fn hold(&mut self, cx: &mut Context<'_>, client: &mut Client, held: Held) {
        let control = held.stream() == StreamId::FIRST;
        let mut most = cx.policy.amqp.maximum_held_bytes as usize;
        let is_frame = client.asking.is_waiting()
            || client.sips.is_waiting()
            || client.is_unanswered(held.stream())
            || client.farewell.is_waiting_on(held.stream());
        client.held.push(held);
        if is_frame {
            // The waiting input is a whole frame.
            most += client.engine.max_frame_bytes();
        }
        if held_bytes(&client.held) > most {
            log_end(
                cx,
                client,
                "amqp:resource-limit-exceeded",
                "too much before the open, the answer to an attach, that of the webhook, or the end of a pause",
            );
            client.close_code = code::LIMIT;
            self.lost(cx, client, EndCause::Limit);
        } else if (control || is_frame) && client.early != Early::Waiting {
            cx.net.pause(client.id, true);
        }
    }

    /// Handles the held input, if it can be handled now.
    fn release(&mut self, cx: &mut Context<'_>, client: &mut Client) {
        let ready = |held: &Held| client.accepts(held.stream());
        if !client.held.iter().any(ready) {
            return;
        }
        cx.net.pause(client.id, false);
        for held in std::mem::take(&mut client.held) {
            match held {
                Held::Bytes(stream, bytes) => self.feed(cx, client, stream, &bytes),
                Held::Finished(stream) => self.finished(cx, client, stream),
            }
        }
    }

    /// Tells the operator about a client's violation, which is in `input`; the engine has told the client.
    fn violated(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        violation: &Violation,
        cause: EndCause,
        input: &[u8],
    ) {
        // The engine lets nobody in without the SASL layer where credentials are asked for.
        let is_login =
            client.is_stranger() && violation.condition == Condition::UNAUTHORIZED_ACCESS;
        if is_login {
            Self::log_quiet(cx, client);
        } else {
            let is_first = client.is_stranger();
            let foreign = is_first.then(|| foreign(input, "AMQP 1.0")).flatten();
            let detail = match violation.detail {
                sterna_amqp::FRAME_TOO_LARGE => {
                    "frame is larger than max-frame-size (amqp.maximum_frame_bytes)"
                }
                other => other,
            };
            let detail = foreign.as_deref().unwrap_or(detail);
            log_end(cx, client, violation.condition.as_str(), detail);
        }
        // It may be a link or a session of the client that ends alone.
        let before = std::mem::replace(&mut client.cause, cause);
        self.handle_rest(cx, client);
        client.cause = before;
        if violation.scope == Scope::Connection {
            client.close_code = code::VIOLATION;
            self.lost(cx, client, cause);
        }
    }
}

/// A line for the operator about a link, session or connection that is ended because of its client.
fn log_end(cx: &Context<'_>, client: &Client, condition: &str, detail: &str) {
    let Some(line) = cx.repeats(client.id, &client.container, detail) else {
        return;
    };
    tracing::warn!(
        peer = line.peer,
        client = (!client.container.is_empty()).then_some(&*client.container),
        user = client.user(),
        condition,
        detail,
        more = line.more,
        "AMQP client turned away"
    );
}

/// The bits of a [`ConsumerId`] that tell a link from other consumers. Two bits tell it from an MQTT client,
/// whose lower half is a slot of the transport's tables of connections. Bit 31 of a slot is QUIC's, and no table
/// of byte streams has 2^30 slots. The highest bit tells a link from a subscription of HTTP.
const KIND_BITS: u64 = 1 << 63 | 0b11 << NUMBER_BITS;
/// The values of these bits for a link.
const LINK: u64 = 0b01 << NUMBER_BITS;
/// Bits below the lower two.
const NUMBER_BITS: u32 = 30;

/// The number of anchors, each of which is attended only while it is made.
const ANCHOR: u64 = 1 << 60;
/// The number of anchors that are attended as long as their queue is there.
const HELD_ANCHOR: u64 = ANCHOR + 1;
/// The number of sessions that keep such a queue in a cluster, each of which is attended only while it is made.
const KEEPER: u64 = ANCHOR + 2;

/// The broker's name for a link.
const fn consumer_id(number: u64) -> ConsumerId {
    ConsumerId((number >> NUMBER_BITS) << 32 | LINK | (number & (LINK - 1)))
}

/// The link behind the broker's name; `None` if it is a client of another protocol.
const fn consumer_number(consumer: ConsumerId) -> Option<u64> {
    if consumer.0 & KIND_BITS != LINK {
        return None;
    }
    Some((consumer.0 >> 32) << NUMBER_BITS | (consumer.0 & (LINK - 1)))
}

/// Whether the broker's name is that of an AMQP link.
pub(crate) const fn is_consumer(consumer: ConsumerId) -> bool {
    consumer_number(consumer).is_some()
}

/// The engine's limits for a new connection.
fn engine_limits(policy: &Policy, is_quic: bool) -> Limits {
    let amqp = &policy.amqp;
    let usual = Limits::default();
    Limits {
        // Part 5, section 5.3.1, allows 512 bytes, and few signed tokens are as short as that.
        max_sasl_frame_bytes: usual.max_sasl_frame_bytes + policy.issuer.max_token_bytes(),
        max_frame_bytes: amqp.maximum_frame_bytes,
        channel_max: amqp.maximum_sessions_per_connection.saturating_sub(1),
        links_per_session: amqp.maximum_links_per_session,
        max_link_name_bytes: amqp.maximum_link_name_bytes,
        unsettled_per_link: amqp.maximum_unsettled_deliveries,
        max_message_bytes: amqp.maximum_message_bytes,
        max_assembling_bytes: amqp.maximum_assembling_bytes,
        incoming_window: amqp.incoming_window,
        idle_timeout_ms: if is_quic { 0 } else { amqp.idle_timeout_ms },
        open_timeout_ms: policy.connect_timeout_ms.try_into().unwrap_or(u32::MAX),
        ..usual
    }
}

/// The information of an error that names another broker (part 2, section 2.8.16).
fn redirect((host, port): (&str, u16)) -> Encoded {
    Encoded::build(|out| {
        let mut map = MapWriter::new(out);
        map.push(&Value::Symbol("hostname"), &Value::String(host));
        map.push(&Value::Symbol("network-host"), &Value::String(host));
        map.push(&Value::Symbol("port"), &Value::Ushort(port));
        map.finish();
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumers_of_the_protocols_never_meet() {
        for number in [0, 1, LINK - 1, LINK, 1 << 40, ANCHOR, HELD_ANCHOR, KEEPER] {
            assert_eq!(consumer_number(consumer_id(number)), Some(number));
        }
        // Slots of byte streams, and of QUIC: on the first socket, and on the last.
        for slot in [0, LINK - 1, 1 << 31, (1 << 31) | 5, u64::from(u32::MAX)] {
            assert!(!is_consumer(ConsumerId(7 << 32 | slot)), "{slot:x}");
        }
    }
}
