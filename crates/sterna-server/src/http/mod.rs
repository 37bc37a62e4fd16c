//! The front door of HTTP: publish-subscribe as `docs/http.md` describes it.
//!
//! `sterna-http` carries requests and responses and knows nothing of topics. `api/` answers them and
//! knows nothing of transports. `desk.rs` is between the two.

mod api;
mod claim;
mod created;
mod desk;
mod fields;
mod format;
mod openapi;
mod page;
mod problem;
mod registry;
mod view;

use std::net::SocketAddr;
use std::sync::Arc;

use sterna_broker::{ConsumerId, EndCause, EvictReason, SessionKey};
use sterna_http::{Carrier, Date, INTERNAL_ERROR, Limits, NO_ERROR, Responses, Settings};
use sterna_net::{Chunk, ConnectionId, StreamEnd, StreamId};

use crate::context::Context;
use crate::door::{self, Promises, Service, Sips};
use crate::identity::Outcome;
use crate::inspect;
use crate::mail::HttpLetter;
use crate::policy::{ListenerPolicy, Policy};
use crate::sys::Counts;
use api::{Acknowledgement, Api, Peer, Reply};
use desk::Desk;

pub(crate) use api::{
    Credentials, Trouble, Verdict, challenge, claimed_user, fail, is_consumer, names_etag, respond,
};
pub(crate) use page::{etag_of, resource as page_resource};
pub(crate) use problem::{Problem, ProblemKind};
pub use registry::Registry;

/// The code with which HTTP/3 ends a connection that costs too much (RFC 9114, section 8.1).
const EXCESSIVE_LOAD: u64 = 0x107;

/// The front door of one shard.
pub(crate) type Door = door::Door<Http>;

/// The door's state beside its connections.
#[derive(Debug)]
pub(crate) struct Http {
    api: Api,
    date: Date,
    /// The limits of connections since the last reload that changed them.
    limits: Option<Arc<Limits>>,
}

/// A client's connection.
#[derive(Debug)]
pub(crate) struct Connection {
    id: ConnectionId,
    carrier: Carrier,
    peer: Peer,
    /// Deadline of this connection's entry among the timers; older entries are void.
    timer_ms: u64,
}

impl Service for Http {
    const ENDS_WITH_ITS_CONNECTION: bool = true;

    type Id = ConnectionId;
    type Client = Connection;
    type Acknowledgement = Acknowledgement;

    fn greet(door: &mut Door, cx: &mut Context<'_>, id: ConnectionId) -> Option<Connection> {
        let listener = cx.net.info(id)?.listener;
        let ListenerPolicy {
            datagrams,
            http3_port,
            ..
        } = cx.policy.listener(listener);
        let settings = Settings {
            limits: limits(
                &mut door.service.limits,
                cx.policy,
                door.high_watermark_bytes,
            ),
            takes_datagrams: datagrams,
            http3_port,
        };
        let carrier = Carrier::new(cx.net, id, settings)?;
        let peer = Peer::new(cx, id);
        Some(Connection {
            id,
            carrier,
            peer,
            timer_ms: u64::MAX,
        })
    }

    fn begin(door: &mut Door, cx: &mut Context<'_>, client: &mut Connection) {
        client.carrier.begin(cx.net, &mut door.service.date);
    }

    fn settle(door: &mut Door, cx: &mut Context<'_>, client: &mut Connection) {
        if client.peer.waits_for_reader() && !client.peer.sips.is_held {
            client.work(door, cx, |carrier, desk| {
                let out = carrier.responses();
                desk.api.go_on(desk.cx, desk.peer, out);
            });
        }
        client.work(door, cx, |carrier, desk| carrier.settle(desk));
        let partial_bytes = client.carrier.partial_bytes();
        let is_held_back = client.peer.holds_back(cx, partial_bytes);
        let others_ms = client.peer.settle_others(cx.now_ms);
        let is_paced = door.stopping
            || is_held_back
            || others_ms.is_some()
            || client.peer.is_full(cx)
            || client.peer.promises.is_full(cx);
        door.out.sent_bytes += client.carrier.flush(cx.net, is_paced);
        let turned_away_for = client.peer.turned_away_for.take();
        if let Some(code) = client.carrier.close_code() {
            if let Some(cause) = turned_away_for {
                door.service.api.closed(cx, &mut client.peer, cause);
            }
            cx.net.close(client.id, code);
        } else {
            let own_ms = client.carrier.deadline_ms();
            let next_ms = (own_ms.into_iter())
                .chain(client.peer.deadline_ms())
                .chain(others_ms)
                .min();
            if let Some(next_ms) = next_ms
                && next_ms < client.timer_ms
            {
                door.set_timer(client, next_ms);
            }
        }
    }

    fn due(door: &mut Door, cx: &mut Context<'_>, client: &mut Connection) {
        let now_ms = cx.now_ms;
        client.work(door, cx, |carrier, desk| {
            carrier.timeout(desk);
            let due = desk.peer.deadline_ms();
            if due.is_some_and(|due_ms| due_ms <= now_ms) {
                desk.api.timeout(desk.cx, desk.peer, carrier.responses());
            }
        });
    }

    fn policy_changed(door: &mut Door, cx: &mut Context<'_>, client: &mut Connection) {
        if let Err(why) = cx.policy.still_trusts(cx.net.info(client.id)) {
            if client.peer.has_open() {
                // Those who wait for an answer get one before the end.
                client.work(door, cx, |carrier, desk| {
                    desk.api
                        .end_unwanted(desk.cx, desk.peer, carrier.responses());
                });
            } else {
                inspect::log_distrust(cx, client.id, client.peer.name(), &why);
            }
            Self::lost(door, cx, client, EndCause::NotAllowed);
            return cx.net.close(client.id, NO_ERROR);
        }
        client.peer.read_again();
        if client.peer.has_open() {
            client.work(door, cx, |carrier, desk| {
                desk.api
                    .end_unwanted(desk.cx, desk.peer, carrier.responses());
            });
        }
    }

    fn stop(door: &mut Door, cx: &mut Context<'_>, client: &mut Connection) {
        client.work(door, cx, |carrier, desk| carrier.stop(desk));
    }

    fn lost(door: &mut Door, cx: &mut Context<'_>, client: &mut Connection, cause: EndCause) {
        if let Some(name) = client.peer.name()
            && tracing::enabled!(tracing::Level::DEBUG)
        {
            inspect::log_path(cx, client.id, name);
        }
        door.service.api.closed(cx, &mut client.peer, cause);
    }

    fn hang_up(cx: &mut Context<'_>, id: ConnectionId, failed: bool) {
        cx.net
            .close(id, if failed { INTERNAL_ERROR } else { NO_ERROR });
    }

    fn is_consumer_of(&self, consumer: ConsumerId, id: ConnectionId) -> bool {
        self.api.connection_of(consumer) == Some(id)
    }

    fn forget_consumers(&mut self, id: ConnectionId) {
        self.api.forget_consumers(id);
    }

    fn name(client: &Connection) -> Option<&str> {
        client.peer.name()
    }

    fn user(client: &Connection) -> Option<&str> {
        client.peer.name()
    }

    fn promises(client: &mut Connection) -> &mut Promises<Acknowledgement> {
        &mut client.peer.promises
    }

    fn acknowledge(
        door: &mut Door,
        cx: &mut Context<'_>,
        client: &mut Connection,
        acknowledgement: Acknowledgement,
    ) {
        client.work(door, cx, |carrier, desk| {
            let out = carrier.responses();
            (desk.api).acknowledged(desk.cx, desk.peer, out, acknowledgement);
        });
    }

    fn timer(client: &mut Connection) -> (ConnectionId, &mut u64) {
        (client.id, &mut client.timer_ms)
    }

    fn counts(&self) -> Counts {
        self.api.counts()
    }

    fn partial_bytes(client: &Connection) -> usize {
        client.carrier.partial_bytes()
    }

    fn each_session(client: &Connection, visit: &mut dyn FnMut(SessionKey)) {
        client.peer.sessions().for_each(visit);
    }

    fn sips(client: &mut Connection) -> &mut Sips {
        &mut client.peer.sips
    }

    fn shed(_: &mut Door, cx: &mut Context<'_>, client: &mut Connection) {
        let name = client.peer.name().unwrap_or_default();
        if let Some(line) = cx.repeats(client.id, name, "it is shed") {
            tracing::warn!(
                peer = line.peer,
                user = client.peer.name(),
                more = line.more,
                "client turned away: memory is short, and this client holds most of it"
            );
        }
        cx.net.close(client.id, EXCESSIVE_LOAD);
    }

    fn check(door: &Door) {
        (door.service.api).check(door.clients.iter().map(|client| &client.peer));
    }
}

impl Connection {
    /// A piece of work of a step.
    fn work(
        &mut self,
        door: &mut Door,
        cx: &mut Context<'_>,
        work: impl FnOnce(&mut Carrier, &mut Desk<'_, '_>),
    ) {
        let mut desk = Desk {
            connection: self.id,
            api: &mut door.service.api,
            cx,
            peer: &mut self.peer,
        };
        work(&mut self.carrier, &mut desk);
    }
}

/// The limits of a new connection, from the configuration. `shared` are those of the connections before,
/// which it shares where they are the same.
pub(crate) fn limits(
    shared: &mut Option<Arc<Limits>>,
    policy: &Policy,
    high_watermark_bytes: usize,
) -> Arc<Limits> {
    let http = &policy.http;
    let limits = Limits {
        max_fields_bytes: http.maximum_fields_bytes,
        max_target_bytes: http.maximum_target_bytes,
        max_content_bytes: http.maximum_content_bytes,
        max_assembling_bytes: http.maximum_assembling_bytes,
        max_requests: http.maximum_requests,
        max_resets: http.maximum_resets,
        max_control_frames: http.maximum_control_frames,
        max_sessions: http.maximum_webtransport_sessions,
        max_session_streams: http.maximum_webtransport_streams,
        connect_timeout_ms: policy.connect_timeout_ms,
        fields_timeout_ms: http.fields_timeout_ms.into(),
        content_timeout_ms: http.content_timeout_ms.into(),
        idle_timeout_ms: http.idle_timeout_ms.into(),
        stalled_timeout_ms: u64::from(http.stalled_timeout_s) * 1000,
        high_watermark_bytes,
    };
    let known = shared.take().filter(|known| **known == limits);
    let known = known.unwrap_or_else(|| Arc::new(limits));
    Arc::clone(shared.insert(known))
}

impl Door {
    /// A door without connections.
    pub(crate) fn new(registry: Arc<Registry>, high_watermark_bytes: usize) -> Self {
        let service = Http {
            api: Api::new(registry),
            date: Date::default(),
            limits: None,
        };
        Self::open_for(service, high_watermark_bytes)
    }

    /// Subscriptions that are open, each of which is a connected session of the broker; and the
    /// connections.
    pub(crate) fn subscriptions_and_clients(&self) -> (usize, usize) {
        (self.service.api.consumers(), self.clients.len())
    }

    /// Bytes arrived.
    pub(crate) fn received(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        chunk: Chunk<'_>,
    ) {
        self.counts.bytes_received += chunk.bytes.len() as u64;
        self.with_connection(cx, connection, |carrier, desk| {
            carrier.received(desk, &chunk);
        });
    }

    /// A datagram arrived.
    pub(crate) fn datagram(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        chunk: Chunk<'_>,
    ) {
        self.counts.bytes_received += chunk.bytes.len() as u64;
        self.with_connection(cx, connection, |carrier, desk| {
            carrier.datagram(desk, chunk.bytes);
        });
    }

    /// Early data can no longer be a replay.
    pub(crate) fn confirmed(&mut self, cx: &mut Context<'_>, connection: ConnectionId) {
        self.with_connection(cx, connection, |carrier, desk| {
            carrier.confirmed();
            (desk.api).confirmed(desk.cx, desk.peer, carrier.responses());
        });
    }

    /// A peer has ended one side of a stream.
    pub(crate) fn stream_ended(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        stream: StreamId,
        end: StreamEnd,
    ) {
        self.with_connection(cx, connection, |carrier, desk| {
            carrier.stream_ended(desk, stream, end);
        });
    }

    /// The queue towards a client has room again.
    pub(crate) fn writable(&mut self, cx: &mut Context<'_>, connection: ConnectionId) {
        self.with_connection(cx, connection, |carrier, desk| carrier.writable(desk));
    }

    /// The verdict on credentials that took longer.
    pub(crate) fn judged(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        number: u64,
        outcome: Outcome,
    ) {
        self.on_peer(cx, connection, |api, cx, peer, out| {
            api.judged(cx, peer, out, number, outcome);
        });
    }

    /// The broker has messages for a subscription.
    pub(crate) fn deliver(
        &mut self,
        cx: &mut Context<'_>,
        consumer: ConsumerId,
        session: SessionKey,
    ) {
        self.on_consumer(cx, consumer, |api, cx, peer, out| {
            api.deliver(cx, peer, out, consumer, session);
        });
    }

    /// The broker has given a subscription's session to another connection.
    pub(crate) fn evicted(
        &mut self,
        cx: &mut Context<'_>,
        consumer: ConsumerId,
        reason: EvictReason,
        by: Option<SocketAddr>,
    ) {
        self.on_consumer(cx, consumer, |api, cx, peer, out| {
            api.evicted(cx, peer, out, consumer, (reason, by));
        });
    }

    /// A session has come from another shard.
    pub(crate) fn session_opened(
        &mut self,
        cx: &mut Context<'_>,
        consumer: ConsumerId,
        session: SessionKey,
        present: bool,
    ) {
        self.on_consumer(cx, consumer, |api, cx, peer, out| {
            api.session_opened(cx, peer, out, consumer, session, present);
        });
    }

    /// Filters of a subscription have ended for everybody.
    pub(crate) fn unsubscribed(
        &mut self,
        cx: &mut Context<'_>,
        consumer: ConsumerId,
        session: SessionKey,
    ) {
        self.on_consumer(cx, consumer, |api, cx, peer, out| {
            api.unsubscribed(cx, peer, out, consumer, session);
        });
    }

    /// A subscription has lost the right to a filter.
    pub(crate) fn lost_right(
        &mut self,
        cx: &mut Context<'_>,
        consumer: ConsumerId,
        session: SessionKey,
    ) {
        self.on_consumer(cx, consumer, |api, cx, peer, out| {
            api.lost_right(cx, peer, out, consumer, session);
        });
    }

    /// A letter from another shard's API.
    pub(crate) fn mail(&mut self, cx: &mut Context<'_>, letter: HttpLetter) {
        let reply = self.service.api.mail(cx, letter);
        self.answer(cx, reply);
    }

    /// The store has come further: what it has is told to those who have asked.
    pub(crate) fn tell_kept(&mut self, cx: &mut Context<'_>) {
        let replies = self.service.api.tell_kept(cx);
        self.answer(cx, replies);
    }

    fn answer(
        &mut self,
        cx: &mut Context<'_>,
        replies: impl IntoIterator<Item = (ConnectionId, Reply)>,
    ) {
        for (connection, reply) in replies {
            self.on_peer(cx, connection, |api, cx, peer, out| {
                api.answered(cx, peer, out, reply);
            });
        }
    }

    /// Lets the API work for a consumer.
    fn on_consumer(
        &mut self,
        cx: &mut Context<'_>,
        consumer: ConsumerId,
        work: impl FnOnce(&mut Api, &mut Context<'_>, &mut Peer, &mut dyn Responses),
    ) {
        if let Some(connection) = self.service.api.connection_of(consumer) {
            self.on_peer(cx, connection, work);
        }
    }

    /// Lets the API work for a connection.
    fn on_peer(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        work: impl FnOnce(&mut Api, &mut Context<'_>, &mut Peer, &mut dyn Responses),
    ) {
        self.with_connection(cx, connection, |carrier, desk| {
            work(desk.api, desk.cx, desk.peer, carrier.responses());
        });
    }

    /// A step with a connection.
    fn with_connection(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        step: impl FnOnce(&mut Carrier, &mut Desk<'_, '_>),
    ) {
        self.with_client(cx, connection, |door, cx, client| {
            client.work(door, cx, step);
        });
    }
}
