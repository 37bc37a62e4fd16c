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
mod session_state;
mod tcp;

use std::sync::Arc;

use sterna_broker::{ConsumerId, EvictReason, SessionKey};
use sterna_net::{Chunk, CloseReason, ConnectionId, Network, StreamId};

use crate::door::{Clients, Timers};
use crate::inspect;
use crate::shard::Context;
use crate::sys::Counts;
use api::{Api, Peer};
use date::Date;
use exchange::Responses;

pub use api::Letter;
pub(crate) use api::is_consumer;
pub(crate) use exchange::Head;
pub(crate) use format::frame::Frame;
pub use registry::Registry;
pub use session_state::HttpSession;

/// The front door of one shard.
#[derive(Debug)]
pub(crate) struct Door {
    api: Api,
    connections: Clients<Connection>,
    timers: Timers,
    bytes_received: u64,
    bytes_sent: u64,
    date: Date,
    high_watermark_bytes: usize,
    stopping: bool,
}

/// A client's connection.
#[derive(Debug)]
struct Connection {
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

impl Door {
    pub(crate) fn new(registry: Arc<Registry>, high_watermark_bytes: usize) -> Self {
        Self {
            api: Api::new(registry),
            connections: Clients::default(),
            timers: Timers::default(),
            bytes_received: 0,
            bytes_sent: 0,
            date: Date::default(),
            high_watermark_bytes,
            stopping: false,
        }
    }

    /// What was counted so far.
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            bytes_received: self.bytes_received,
            bytes_sent: self.bytes_sent,
            ..self.api.counts()
        }
    }

    /// Whether no connection is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// When `timeout` wants to be called.
    pub(crate) fn deadline_ms(&self) -> Option<u64> {
        self.timers.next_ms()
    }

    /// The connections of this door.
    pub(crate) fn connections(&self) -> impl Iterator<Item = ConnectionId> {
        self.connections.ids()
    }

    /// Subscriptions that are open, each of which is a connected session of the broker; and the
    /// connections.
    pub(crate) fn subscriptions_and_clients(&self) -> (usize, usize) {
        (self.api.consumers(), self.connections.len())
    }

    /// The name of who has authenticated on a connection.
    pub(crate) fn name_of(&self, connection: ConnectionId) -> Option<&str> {
        self.connections.get(connection)?.peer.name()
    }

    /// A connection is ready for requests.
    pub(crate) fn opened(&mut self, cx: &mut Context<'_>, connection: ConnectionId) {
        if self.stopping {
            cx.net.close(connection, http3::NO_ERROR);
            return;
        }
        let Some(info) = cx.net.info(connection) else {
            return;
        };
        let high_watermark_bytes = self.high_watermark_bytes;
        let now_ms = cx.net.now_ms();
        let carrier = if &*info.protocol == b"h3" {
            let (policy, info) = (cx.policy, info.clone());
            let has_datagrams = cx.net.datagram_bytes(connection) > 0;
            let carrier = http3::Carrier::new(
                connection,
                policy,
                &info,
                now_ms,
                has_datagrams,
                high_watermark_bytes,
            );
            Carrier::Http3(Box::new(carrier))
        } else {
            let carrier =
                tcp::Carrier::new(connection, cx.policy, info, now_ms, high_watermark_bytes);
            Carrier::Tcp(Box::new(carrier))
        };
        let peer = Peer::new(cx, connection);
        let opened = Connection {
            id: connection,
            carrier,
            peer,
            timer_ms: u64::MAX,
        };
        self.connections.insert(connection, opened);
        self.with_connection(cx, connection, |_, _| {});
    }

    /// Bytes arrived.
    pub(crate) fn received(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        chunk: Chunk<'_>,
    ) {
        self.bytes_received += chunk.bytes.len() as u64;
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
        self.bytes_received += chunk.bytes.len() as u64;
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

    /// Looks at connections whose time may be over.
    pub(crate) fn timeout(&mut self, cx: &mut Context<'_>) {
        let now_ms = cx.net.now_ms();
        while let Some((deadline_ms, connection)) = self.timers.pop_due(now_ms) {
            let Some(known) = self.connections.get_mut(connection) else {
                continue;
            };
            if known.timer_ms != deadline_ms {
                continue;
            }
            known.timer_ms = u64::MAX;
            self.with_connection(cx, connection, |carrier, desk| {
                of_carrier!(carrier, carrier => carrier.timeout(desk));
                let due = desk.peer.deadline_ms();
                if due.is_some_and(|due_ms| due_ms <= now_ms) {
                    desk.api.timeout(desk.cx, desk.peer, carrier.responses());
                }
            });
        }
    }

    /// The connection is gone.
    pub(crate) fn closed(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        reason: &CloseReason,
    ) {
        let Some(mut gone) = self.connections.remove(connection) else {
            return;
        };
        tracing::debug!(?connection, client = gone.peer.name(), ?reason, "closed");
        if let Some(name) = gone.peer.name()
            && tracing::enabled!(tracing::Level::DEBUG)
        {
            inspect::log_path(cx, connection, name);
        }
        self.api.closed(cx, &mut gone.peer);
    }

    /// Answers what can be answered, and ends every connection; new ones are turned away.
    pub(crate) fn stop(&mut self, cx: &mut Context<'_>) {
        self.stopping = true;
        let ids: Vec<ConnectionId> = self.connections.ids().collect();
        for id in ids {
            self.with_connection(cx, id, |carrier, desk| {
                of_carrier!(carrier, carrier => carrier.stop(desk));
            });
        }
    }

    /// A password was checked.
    pub(crate) fn password_checked(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        number: u64,
        good: bool,
    ) {
        self.on_peer(cx, connection, |api, cx, peer, out| {
            api.password_checked(cx, peer, out, number, good);
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
    pub(crate) fn mail(&mut self, cx: &mut Context<'_>, letter: Letter) {
        if let Some((connection, reply)) = self.api.mail(cx, letter) {
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
        if let Some(connection) = self.api.connection_of(consumer) {
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

    /// Takes a connection out of the table for one step, and hands over what the step has written.
    fn with_connection(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        step: impl FnOnce(&mut Carrier, &mut Desk<'_, '_>),
    ) {
        let Some(mut taken) = self.connections.take(connection) else {
            return;
        };
        let now_ms = cx.net.now_ms();
        let moment = Moment {
            now_ms,
            date: self.date.at(now_ms),
            unsent_bytes: cx.net.unsent_bytes(connection),
        };
        match &mut taken.carrier {
            Carrier::Http3(carrier) => carrier.begin(cx.net, moment),
            Carrier::Tcp(carrier) => carrier.begin(moment),
        }
        let mut desk = Desk {
            api: &mut self.api,
            cx,
            peer: &mut taken.peer,
        };
        step(&mut taken.carrier, &mut desk);
        of_carrier!(&mut taken.carrier, carrier => carrier.settle(&mut desk));
        self.bytes_sent += of_carrier!(&mut taken.carrier, carrier => carrier.flush(cx.net));
        if let Some(code) = of_carrier!(&mut taken.carrier, carrier => carrier.close_code()) {
            cx.net.close(connection, code);
        } else {
            let own_ms = of_carrier!(&mut taken.carrier, carrier => carrier.deadline_ms());
            let next_ms = own_ms.into_iter().chain(taken.peer.deadline_ms()).min();
            if let Some(next_ms) = next_ms
                && next_ms < taken.timer_ms
            {
                taken.timer_ms = next_ms;
                self.timers.set(taken.id, next_ms);
            }
        }
        self.connections.put_back(connection, taken);
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
