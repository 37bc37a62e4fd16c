//! The front door of HTTP: publish-subscribe as `docs/http.md` describes it.
//!
//! What carries requests and responses (HTTP/3 on QUIC by an engine of our own in `http3/`, HTTP/2 and
//! HTTP/1.1 on TCP by a library in `tcp/`) knows nothing of topics; what answers them (`api/`) knows
//! nothing of either. `exchange.rs` is all that both know.

mod api;
mod date;
mod exchange;
mod format;
mod http3;
mod openapi;
mod page;
mod problem;
mod registry;
mod tcp;

use std::sync::Arc;

use sterna_broker::{ConsumerId, EvictReason, SessionKey};
use sterna_net::{Chunk, ConnectionId, Network, StreamId};

use crate::context::Context;
use crate::door::{self, Service};
use crate::identity::Outcome;
use crate::inspect;
use crate::mail::HttpLetter;
use crate::sys::Counts;
use api::{Api, Peer};
use date::Date;
use exchange::Responses;

pub(crate) use api::is_consumer;
pub use registry::Registry;

/// The front door of one shard.
pub(crate) type Door = door::Door<Http>;

/// What the door keeps beside its connections.
#[derive(Debug)]
pub(crate) struct Http {
    api: Api,
    date: Date,
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

/// What carries requests and responses.
#[derive(Debug)]
enum Carrier {
    Http3(Box<http3::Carrier>),
    Tcp(Box<tcp::Carrier>),
}

/// Where a carrier has requests answered.
struct Desk<'a, 'b> {
    api: &'a mut Api,
    cx: &'a mut Context<'b>,
    peer: &'a mut Peer,
}

/// What a carrier is told at the beginning of a step.
#[derive(Clone, Copy, Debug)]
struct Moment {
    now_ms: u64,
    date: [u8; date::BYTES],
    /// Bytes queued towards the client.
    unsent_bytes: usize,
}

/// Calls a carrier, whichever it is.
macro_rules! of_carrier {
    ($carrier_of:expr, $carrier:ident => $call:expr) => {
        match $carrier_of {
            Carrier::Http3($carrier) => $call,
            Carrier::Tcp($carrier) => $call,
        }
    };
}

impl Service for Http {
    type Id = ConnectionId;
    type Client = Connection;

    fn greet(door: &mut Door, cx: &mut Context<'_>, id: ConnectionId) -> Option<Connection> {
        let has_datagrams = cx.net.datagram_bytes(id) > 0;
        let info = cx.net.info(id)?;
        let high_watermark_bytes = door.high_watermark_bytes;
        let now_ms = cx.net.now_ms();
        let carrier = if &*info.protocol == b"h3" {
            let carrier = http3::Carrier::new(
                id,
                cx.policy,
                info,
                now_ms,
                has_datagrams,
                high_watermark_bytes,
            );
            Carrier::Http3(Box::new(carrier))
        } else {
            let carrier = tcp::Carrier::new(id, cx.policy, info, now_ms, high_watermark_bytes);
            Carrier::Tcp(Box::new(carrier))
        };
        let peer = Peer::new(cx, id);
        Some(Connection {
            id,
            carrier,
            peer,
            timer_ms: u64::MAX,
        })
    }

    fn begin(door: &mut Door, cx: &mut Context<'_>, client: &mut Connection) {
        let now_ms = cx.net.now_ms();
        let moment = Moment {
            now_ms,
            date: door.service.date.at(now_ms),
            unsent_bytes: cx.net.unsent_bytes(client.id),
        };
        match &mut client.carrier {
            Carrier::Http3(carrier) => carrier.begin(cx.net, moment),
            Carrier::Tcp(carrier) => carrier.begin(moment),
        }
    }

    fn settle(door: &mut Door, cx: &mut Context<'_>, client: &mut Connection) {
        client.work(door, cx, |carrier, desk| {
            of_carrier!(carrier, carrier => carrier.settle(desk));
        });
        let (id, carrier) = (client.id, &mut client.carrier);
        door.out.sent_bytes += of_carrier!(carrier, carrier => carrier.flush(cx.net));
        if let Some(code) = of_carrier!(carrier, carrier => carrier.close_code()) {
            cx.net.close(id, code);
        } else {
            let own_ms = of_carrier!(carrier, carrier => carrier.deadline_ms());
            let next_ms = own_ms.into_iter().chain(client.peer.deadline_ms()).min();
            if let Some(next_ms) = next_ms
                && next_ms < client.timer_ms
            {
                door.set_timer(client, next_ms);
            }
        }
    }

    fn due(door: &mut Door, cx: &mut Context<'_>, client: &mut Connection) {
        let now_ms = cx.net.now_ms();
        client.work(door, cx, |carrier, desk| {
            of_carrier!(carrier, carrier => carrier.timeout(desk));
            let due = desk.peer.deadline_ms();
            if due.is_some_and(|due_ms| due_ms <= now_ms) {
                desk.api.timeout(desk.cx, desk.peer, carrier.responses());
            }
        });
    }

    fn policy_changed(door: &mut Door, cx: &mut Context<'_>, client: &mut Connection) {
        if client.peer.has_open() {
            client.work(door, cx, |carrier, desk| {
                desk.api
                    .end_unwanted(desk.cx, desk.peer, carrier.responses());
            });
        }
    }

    fn stop(door: &mut Door, cx: &mut Context<'_>, client: &mut Connection) {
        client.work(door, cx, |carrier, desk| {
            of_carrier!(carrier, carrier => carrier.stop(desk));
        });
    }

    fn lost(door: &mut Door, cx: &mut Context<'_>, client: &mut Connection) {
        if let Some(name) = client.peer.name()
            && tracing::enabled!(tracing::Level::DEBUG)
        {
            inspect::log_path(cx, client.id, name);
        }
        door.service.api.closed(cx, &mut client.peer);
    }

    fn hang_up(cx: &mut Context<'_>, id: ConnectionId, failed: bool) {
        let code = if failed {
            http3::INTERNAL_ERROR
        } else {
            http3::NO_ERROR
        };
        cx.net.close(id, code);
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

    fn timer(client: &mut Connection) -> (ConnectionId, &mut u64) {
        (client.id, &mut client.timer_ms)
    }

    fn counts(&self) -> Counts {
        self.api.counts()
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
            api: &mut door.service.api,
            cx,
            peer: &mut self.peer,
        };
        work(&mut self.carrier, &mut desk);
    }
}

impl Door {
    /// A door without connections.
    pub(crate) fn new(registry: Arc<Registry>, high_watermark_bytes: usize) -> Self {
        let service = Http {
            api: Api::new(registry),
            date: Date::default(),
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
        self.with_connection(cx, connection, |carrier, desk| match carrier {
            Carrier::Http3(carrier) => carrier.received(desk, &chunk),
            Carrier::Tcp(carrier) => carrier.received(desk, chunk.bytes),
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
        self.with_connection(cx, connection, |carrier, desk| match carrier {
            Carrier::Http3(carrier) => carrier.datagram(desk, chunk.bytes),
            Carrier::Tcp(_) => {}
        });
    }

    /// Early data can no longer be a replay.
    pub(crate) fn confirmed(&mut self, cx: &mut Context<'_>, connection: ConnectionId) {
        self.with_connection(cx, connection, |carrier, desk| {
            if let Carrier::Http3(carrier) = carrier {
                carrier.confirmed();
            }
            (desk.api).confirmed(desk.cx, desk.peer, carrier.responses());
        });
    }

    /// A peer ended its side of a stream.
    pub(crate) fn stream_finished(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        stream: StreamId,
    ) {
        self.with_connection(cx, connection, |carrier, desk| match carrier {
            Carrier::Http3(carrier) => carrier.finished(desk, stream),
            Carrier::Tcp(carrier) => carrier.finished(desk),
        });
    }

    /// A peer aborted what it sends on a stream.
    pub(crate) fn stream_aborted(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        stream: StreamId,
        code: u64,
    ) {
        self.with_connection(cx, connection, |carrier, desk| match carrier {
            Carrier::Http3(carrier) => carrier.peer_reset(desk, stream, code),
            Carrier::Tcp(carrier) => carrier.finished(desk),
        });
    }

    /// A peer reads no more of a stream.
    pub(crate) fn stream_stopped(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        stream: StreamId,
        code: u64,
    ) {
        self.with_connection(cx, connection, |carrier, desk| match carrier {
            Carrier::Http3(carrier) => carrier.peer_stopped(desk, stream, code),
            Carrier::Tcp(carrier) => carrier.finished(desk),
        });
    }

    /// What was queued towards a client has left.
    pub(crate) fn writable(&mut self, cx: &mut Context<'_>, connection: ConnectionId) {
        self.with_connection(cx, connection, |carrier, desk| {
            of_carrier!(carrier, carrier => carrier.writable(desk));
        });
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
    ) {
        self.on_consumer(cx, consumer, |api, cx, peer, out| {
            api.evicted(cx, peer, out, consumer, reason);
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

    /// A letter from another shard's API.
    pub(crate) fn mail(&mut self, cx: &mut Context<'_>, letter: HttpLetter) {
        if let Some((connection, reply)) = self.service.api.mail(cx, letter) {
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

impl Carrier {
    /// Where the API writes.
    fn responses(&mut self) -> &mut dyn Responses {
        match self {
            Self::Http3(carrier) => &mut **carrier,
            Self::Tcp(carrier) => &mut **carrier,
        }
    }
}

/// A line for the operator about a connection, or a request, that is ended because of what the client
/// did.
fn log_end(net: &dyn Network, connection: ConnectionId, peer: &Peer, code: &str, detail: &str) {
    let address = net.info(connection).map(|info| info.peer);
    tracing::warn!(
        peer = address.map(tracing::field::display),
        client = peer.name(),
        code,
        detail,
        "HTTP client turned away"
    );
}
