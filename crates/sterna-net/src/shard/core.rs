//! The shard as its handler sees it: connections and the calls that queue something on them.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::admission::Admission;
use super::connection::{
    CipherScratch, Connection, ConnectionEnd, Hangup, PeerSide, Phase, Pushed,
};
use super::deadlines::{Deadlines, Kind};
use crate::clock::Clock;
use crate::config::ShardConfig;
use crate::contain::contain;
use crate::counters::{RefusedConnection, ShardCounters};
use crate::outbox::Pool;
use crate::peers::{Peers, host_of, in_turns};
use crate::table::Table;
use crate::throttle::Throttle;
use crate::udp::{self, UdpListener};
use crate::websocket;
use crate::{
    CloseReason, ConnectionId, ConnectionInfo, FailedHandshake, HandshakeFault, Network,
    PathStatistics, RefusedPeers, StreamId, Trace,
};

/// Slots that a survey looks at for each connection that it may show.
const SLOTS_PER_SHOWN: usize = 8;
/// Times the linger time that a connection may take to close, however it goes on.
const MOST_LINGERS: u8 = 10;

/// See the module's description.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) config: Arc<ShardConfig>,
    clock: Clock,
    /// The time of this turn.
    pub(super) now: Instant,
    pub(super) now_ms: u64,
    pub(super) connections: Table<Connection>,
    pub(super) pool: Pool,
    pub(super) admission: Admission,
    /// Lines of the log about headers of balancers.
    pub(super) header_faults: Throttle,
    /// Lines of the log about connections that are turned away.
    pub(super) refusals: Throttle,
    /// Connections by address, of all shards.
    pub(super) peers: Arc<Peers>,
    pub(super) deadlines: Deadlines,
    /// Connections with something to read, or room to write, in the next turn.
    pub(super) ready: Vec<ConnectionId>,
    /// Connections to write to at the end of this turn.
    pub(super) dirty: Vec<ConnectionId>,
    /// Connections whose queue fell below the low watermark.
    pub(super) relieved: Vec<ConnectionId>,
    /// Connections whose end the handler is to be told.
    pub(super) ended: VecDeque<ConnectionId>,
    /// Handshakes that have failed, which the handler is to be told.
    pub(super) failed: Vec<FailedHandshake>,
    /// The shard's counts.
    pub(super) counters: Arc<ShardCounters>,
    /// QUIC.
    pub(super) udp: Vec<UdpListener>,
    /// Where the survey of paths goes on: a number of all slots, byte streams first.
    survey_at: usize,
    /// The new connections that the handler refuses.
    pub(super) refusing: Refusing,
    /// Bytes of all connections that wait to be sent and are copies.
    pub(super) unsent_bytes: usize,
}

/// The new connections that the handler refuses: of these listeners those of such peers.
#[derive(Debug, Default)]
pub(super) struct Refusing {
    listeners: Vec<u16>,
    peers: RefusedPeers,
}

impl Refusing {
    /// Whether a newcomer of a listener from this address is refused, and why.
    pub(super) fn refusal(&self, listener: u16, peer: IpAddr) -> Option<RefusedConnection> {
        let is_concerned = self.listeners.contains(&listener);
        is_concerned.then(|| self.peers.refusal(peer)).flatten()
    }
}

impl Core {
    pub(super) fn new(
        config: Arc<ShardConfig>,
        clock: Clock,
        peers: Arc<Peers>,
        udp: Vec<UdpListener>,
        counters: Arc<ShardCounters>,
    ) -> Self {
        let now = Instant::now();
        Self {
            pool: Pool::new(config.pooled_bytes),
            config,
            clock,
            now,
            now_ms: clock.at(now),
            connections: Table::new(),
            admission: Admission::default(),
            header_faults: Throttle::default(),
            refusals: Throttle::default(),
            peers,
            deadlines: Deadlines::default(),
            ready: Vec::new(),
            dirty: Vec::new(),
            relieved: Vec::new(),
            ended: VecDeque::new(),
            failed: Vec::new(),
            counters,
            udp,
            survey_at: 0,
            refusing: Refusing::default(),
            unsent_bytes: 0,
        }
    }

    /// Reads the clock, once per turn.
    pub(super) fn tick(&mut self) {
        self.clock.look();
        self.now = Instant::now();
        self.now_ms = self.clock.at(self.now);
    }

    /// When the clock shows `now_ms`.
    pub(super) fn instant(&self, now_ms: u64) -> Instant {
        self.clock.instant(now_ms)
    }

    /// Whether there is work that needs no event.
    pub(super) fn is_busy(&self) -> bool {
        !(self.ready.is_empty()
            && self.dirty.is_empty()
            && self.relieved.is_empty()
            && self.ended.is_empty())
            || self.udp.iter().any(|udp| udp.readable)
    }

    /// The earliest deadline of any connection.
    pub(super) fn next_deadline_ms(&mut self) -> Option<u64> {
        let connections = &self.connections;
        self.deadlines
            .next_ms(|kind, id| connections.get(id).is_some_and(|c| concerns(kind, c)))
    }

    /// Puts a connection on the list of those to attend to.
    pub(super) fn enqueue(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(id)
            && !connection.queued
        {
            connection.queued = true;
            self.ready.push(id);
        }
    }

    /// Orders a list so that connections of each address have their turns.
    pub(super) fn take_turns_by_address(&mut self, list: fn(&mut Self) -> &mut Vec<ConnectionId>) {
        let unordered = std::mem::take(list(self));
        *list(self) = in_turns(unordered.into_iter(), |id| {
            let connection = self.connections.get(id)?;
            Some(host_of(connection.info.peer.ip()))
        });
    }

    /// Puts a connection on the list of those to write to.
    pub(super) fn mark_dirty(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(id)
            && !connection.dirty
        {
            connection.dirty = true;
            self.dirty.push(id);
        }
    }

    /// Ends a connection at once; its queue is dropped.
    pub(super) fn end(&mut self, id: ConnectionId, reason: CloseReason) {
        self.leave_handshake(id, |connection| fault_of(&reason, connection));
        self.end_announced(id, reason);
    }

    /// Ends a connection at once. If it is in its handshake, that has failed with this fault.
    pub(super) fn cut(&mut self, id: ConnectionId, fault: HandshakeFault, detail: String) {
        self.leave_handshake(id, |_| (fault, detail.clone()));
        self.end_announced(id, CloseReason::Failed(detail));
    }

    fn end_announced(&mut self, id: ConnectionId, reason: CloseReason) {
        let Some(connection) = self.connections.get_mut(id) else {
            return;
        };
        if connection.phase == Phase::Dead {
            return;
        }
        connection.phase = Phase::Dead;
        // A reason that was given earlier, with an orderly close, says more.
        let sent_bytes = connection.sent_bytes;
        let end = || Box::new(ConnectionEnd::new(reason, sent_bytes));
        connection.end.get_or_insert_with(end);
        connection.dissolve(&mut self.pool);
        connection.weigh(&mut self.unsent_bytes);
        self.ended.push_back(id);
    }

    /// Closes a connection in order: its queue is written first.
    pub(super) fn begin_close(&mut self, id: ConnectionId, reason: Option<CloseReason>) {
        let reason = reason.unwrap_or(CloseReason::Local);
        self.leave_handshake(id, |connection| fault_of(&reason, connection));
        self.close_announced(id, reason);
    }

    /// Closes a connection in order. If it is in its handshake, that has failed with this fault.
    pub(super) fn refuse(&mut self, id: ConnectionId, fault: HandshakeFault, detail: String) {
        self.leave_handshake(id, |_| (fault, detail.clone()));
        self.close_announced(id, CloseReason::Failed(detail));
    }

    fn close_announced(&mut self, id: ConnectionId, reason: CloseReason) {
        let Some(connection) = self.connections.get_mut(id) else {
            return;
        };
        match connection.phase {
            Phase::Handshake | Phase::Open => {}
            Phase::Closing | Phase::Lingering | Phase::Dead => return,
        }
        connection.phase = Phase::Closing;
        let end = ConnectionEnd::new(reason, connection.sent_bytes);
        connection.end = Some(Box::new(end));
        let deadline_ms = self.now_ms + self.config.linger_ms;
        self.deadlines.push(Kind::Closing, deadline_ms, id);
        self.mark_dirty(id);
    }

    /// Counts a handshake that has failed, and notes it for the handler; nothing where it is finished. The caller ends or
    /// closes the connection.
    fn leave_handshake(
        &mut self,
        id: ConnectionId,
        fault: impl FnOnce(&Connection) -> (HandshakeFault, String),
    ) {
        let Some(connection) = self.connections.get_mut(id) else {
            return;
        };
        if connection.phase != Phase::Handshake {
            return;
        }
        self.admission.release(connection.half_open_address());
        let (fault, detail) = fault(connection);
        let ConnectionInfo {
            listener,
            transport,
            peer,
            ..
        } = connection.info;
        self.counters.listener(listener).fail(fault);
        self.failed.push(FailedHandshake {
            listener,
            transport,
            protocol: Box::default(),
            peer,
            fault,
            detail,
        });
    }

    /// A deadline of a connection has passed.
    pub(super) fn expire(&mut self, kind: Kind, id: ConnectionId) {
        match self.connections.get(id) {
            Some(connection) if concerns(kind, connection) => {}
            _ => return,
        }
        if kind == Kind::Closing && self.goes_on(id) {
            let deadline_ms = self.now_ms + self.config.linger_ms;
            self.deadlines.push(Kind::Closing, deadline_ms, id);
            return;
        }
        if kind == Kind::HalfClosed && self.is_at_work(id) {
            return self.limit_half_closed(id);
        }
        if kind == Kind::Header {
            return self.refuse_header(id, "it did not come in time");
        }
        let is_unread = |c: &Connection| kind == Kind::HalfClosed && !c.peer_side.has_ended();
        let reason = match self.connections.get(id) {
            Some(connection) if is_unread(connection) => connection.loss(),
            _ => CloseReason::TimedOut,
        };
        self.end(id, reason);
    }

    /// A paused connection does not read its end. Once the system has told of that, no pause may last for ever.
    pub(super) fn limit_pause(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(id)
            && connection.hides_its_end()
        {
            connection.hangup = Hangup::Expiring;
            self.limit_half_closed(id);
        }
    }

    /// Begins the time for which a connection stays open whose peer has ended its side.
    pub(super) fn limit_half_closed(&mut self, id: ConnectionId) {
        let deadline_ms = self.now_ms + self.config.half_closed_timeout_ms;
        self.deadlines.push(Kind::HalfClosed, deadline_ms, id);
    }

    /// Ends a balancer's connection because of its header, or for want of one.
    pub(super) fn refuse_header(&mut self, id: ConnectionId, detail: &'static str) {
        if let Some(connection) = self.connections.get(id) {
            let counters = self.counters.listener(connection.info.listener);
            counters.refuse(RefusedConnection::ProxyHeader, 1);
            if let Some(more) = self.header_faults.pass(self.now_ms) {
                let balancer = connection.info.peer;
                tracing::warn!(%balancer, detail, more, "a header of the PROXY protocol is refused");
            }
        }
        let detail = format!("PROXY protocol: {detail}");
        self.cut(id, HandshakeFault::ProxyHeader, detail);
    }

    /// Whether the handler still has to do with what came before the peer's end: it has an answer, or a pause of it lasts or
    /// has just ended.
    fn is_at_work(&mut self, id: ConnectionId) -> bool {
        let Some(connection) = self.connections.get_mut(id) else {
            return false;
        };
        if connection.peer_side == PeerSide::Awaiting {
            return true;
        }
        let half_closed_ms = self.config.half_closed_timeout_ms;
        let most_ms = if connection.pause.is_on() {
            self.config.paused_timeout_ms
        } else {
            half_closed_ms
        };
        let times = connection.pause.look();
        times.is_some_and(|times| u64::from(times) * half_closed_ms < most_ms)
    }

    /// Whether a closing connection has taken something since the last look, and may go on.
    fn goes_on(&mut self, id: ConnectionId) -> bool {
        let Some(connection) = self.connections.get_mut(id) else {
            return false;
        };
        let unsent_bytes = connection.unsent_bytes();
        let peer = connection.info.peer;
        let sent_bytes = connection.sent_bytes;
        if let Some(end) = &mut connection.end
            && end.sent_bytes != sent_bytes
            && end.waits < MOST_LINGERS
        {
            end.sent_bytes = sent_bytes;
            end.waits += 1;
            return true;
        }
        tracing::info!(%peer, unsent_bytes, "closed over data that the client has not taken");
        false
    }

    /// Writes a connection's queue.
    pub(super) fn flush(&mut self, id: ConnectionId, scratch: &mut CipherScratch) {
        let Some(connection) = self.connections.get_mut(id) else {
            return;
        };
        connection.dirty = false;
        if connection.blocked
            || connection.is_write_failed()
            || matches!(connection.phase, Phase::Lingering | Phase::Dead)
        {
            return;
        }
        let (share, sent_before) = (self.config.write_bytes_per_turn, connection.sent_bytes);
        let pool = &mut self.pool;
        let pushed = contain(|| connection.push(share, scratch, pool));
        connection.weigh(&mut self.unsent_bytes);
        let counters = self.counters.listener(connection.info.listener);
        counters.sent_bytes.add(connection.sent_bytes - sent_before);
        let pushed = match pushed {
            Ok(pushed) => pushed,
            Err(panic) => return self.end_after_panic(id, &panic),
        };
        match pushed {
            Ok(Pushed::Blocked) => connection.blocked = true,
            Ok(Pushed::Enough) => {
                connection.dirty = true;
                self.dirty.push(id);
            }
            Ok(Pushed::Everything) if connection.finishing && !connection.shut => {
                connection.shut = true;
                // A peer that is gone shows in the next read.
                let _ = connection.socket.shutdown(std::net::Shutdown::Write);
                if connection.phase == Phase::Closing {
                    self.finish_close(id);
                    return;
                }
            }
            Ok(Pushed::Everything) if connection.phase == Phase::Closing => {
                self.finish_close(id);
                return;
            }
            Ok(Pushed::Everything) => {}
            Err(error) => {
                self.fail_write(id, &error);
                return;
            }
        }
        if connection.above_high && connection.unsent_bytes() < self.config.low_watermark_bytes {
            connection.above_high = false;
            self.relieved.push(id);
        }
    }

    /// A write has failed: the peer is gone, or cannot be reached. Its last words may still be in the socket, and among
    /// them its goodbye. Nothing more is written, and the connection ends when they are read.
    fn fail_write(&mut self, id: ConnectionId, error: &std::io::Error) {
        let Some(connection) = self.connections.get_mut(id) else {
            return;
        };
        if connection.phase != Phase::Open || connection.peer_side.has_ended() {
            return self.fail(id, error);
        }
        connection.fail_write(error, &mut self.pool);
        connection.weigh(&mut self.unsent_bytes);
        if std::mem::take(&mut connection.above_high) {
            // A handler that waits for room reads on.
            self.relieved.push(id);
        }
        self.limit_half_closed(id);
        self.enqueue(id);
    }

    /// Ends a connection that is read to its end, if a write has failed before.
    pub(super) fn end_unwritten(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get(id)
            && connection.is_write_failed()
        {
            // The error of the write is its reason.
            self.end(id, CloseReason::Peer { code: 0 });
        }
    }

    /// Everything that a closing connection had to say is with the kernel.
    fn finish_close(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(id) else {
            return;
        };
        connection.dissolve(&mut self.pool);
        connection.weigh(&mut self.unsent_bytes);
        let gone = connection.peer_side.has_ended() || connection.socket_shutdown().is_err();
        self.ended.push_back(id);
        if gone {
            connection.phase = Phase::Dead;
            return;
        }
        connection.phase = Phase::Lingering;
        let deadline_ms = self.now_ms + self.config.linger_ms;
        self.deadlines.push(Kind::Lingering, deadline_ms, id);
        if connection.readable {
            self.enqueue(id);
        }
    }

    /// A layer of a connection has panicked. Only that connection's state was changing.
    #[cold]
    pub(super) fn end_after_panic(&mut self, id: ConnectionId, panic: &str) {
        tracing::error!(?id, panic, "a panic ended a connection; this is a bug");
        self.cut(id, HandshakeFault::Internal, "internal error".into());
    }

    /// The system reported an error on a connection.
    pub(super) fn fail(&mut self, id: ConnectionId, error: &std::io::Error) {
        self.end(id, CloseReason::Failed(error.to_string()));
    }

    fn push(&mut self, id: ConnectionId, add: impl FnOnce(&mut crate::outbox::Outbox, &mut Pool)) {
        let Some(connection) = self.connections.get_mut(id) else {
            return;
        };
        if !connection.takes_bytes() {
            return;
        }
        let pool = &mut self.pool;
        let outbox = connection.outbox.get_or_insert_with(|| pool.outbox());
        add(outbox, pool);
        let copied = outbox.copied();
        connection.weigh(&mut self.unsent_bytes);
        // Encrypted unsent bytes count, too, as they do for the handler.
        if connection.unsent_bytes() >= self.config.high_watermark_bytes {
            connection.above_high = true;
        }
        if !connection.dirty {
            connection.dirty = true;
            self.dirty.push(id);
        }
        if copied > self.config.copied_bytes {
            let reason = "the peer does not read the answers to its own bytes";
            self.end(id, CloseReason::Failed(reason.into()));
        }
    }
}

impl Core {
    /// The open connection in a slot, of all slots.
    fn open_in(&self, number: usize) -> Option<ConnectionId> {
        let mut slot = number;
        if slot < self.connections.slots() {
            return self.connections.current(slot as u32);
        }
        slot -= self.connections.slots();
        for (socket, udp) in self.udp.iter().enumerate() {
            if slot < udp.driver.slots() {
                let key = udp.driver.current(slot)?;
                return Some(udp::connection_id(socket, key));
            }
            slot -= udp.driver.slots();
        }
        None
    }
}

impl Connection {
    /// Ends this side of the TCP stream.
    fn socket_shutdown(&mut self) -> std::io::Result<()> {
        if self.shut {
            return Ok(());
        }
        self.shut = true;
        self.socket.shutdown(std::net::Shutdown::Write)
    }
}

/// The fault of a handshake that ends for this reason.
fn fault_of(reason: &CloseReason, connection: &Connection) -> (HandshakeFault, String) {
    let is_silent = connection.received_bytes == 0;
    let (fault, detail) = match reason {
        CloseReason::Shutdown | CloseReason::Local => {
            (HandshakeFault::Shutdown, "the server stops".to_owned())
        }
        CloseReason::TimedOut => {
            let detail = "it was not finished within network.handshake_timeout_ms";
            (HandshakeFault::TimedOut, detail.to_owned())
        }
        _ if is_silent => {
            let detail = "the client went without a byte";
            (HandshakeFault::NothingSent, detail.to_owned())
        }
        CloseReason::Failed(error) => (HandshakeFault::Abandoned, error.clone()),
        CloseReason::Peer { .. } => {
            let detail = "the client went in the middle, and did not say why";
            (HandshakeFault::Abandoned, detail.to_owned())
        }
    };
    (fault, detail)
}

/// Whether a deadline of this kind still has a meaning.
fn concerns(kind: Kind, connection: &Connection) -> bool {
    match kind {
        Kind::Header => connection.phase == Phase::Handshake && connection.awaits_header(),
        Kind::Handshake => connection.phase == Phase::Handshake,
        Kind::Closing => connection.phase == Phase::Closing,
        Kind::Lingering => connection.phase == Phase::Lingering,
        Kind::HalfClosed => {
            connection.phase == Phase::Open
                && (connection.peer_side.has_ended() || connection.hangup == Hangup::Expiring)
        }
    }
}

impl Network for Core {
    fn now_ms(&self) -> u64 {
        self.now_ms
    }

    fn ends_unseen(&self) -> bool {
        let sends = !self.dirty.is_empty() || self.udp.iter().any(|udp| udp.driver.has_to_send());
        !self.ready.is_empty() && !sends
    }

    fn info(&self, connection: ConnectionId) -> Option<&ConnectionInfo> {
        if let Some((socket, key)) = udp::key(connection) {
            return self.udp.get(socket)?.info(key);
        }
        let connection = self.connections.get(connection)?;
        connection.announced.then_some(&connection.info)
    }

    fn send(&mut self, connection: ConnectionId, stream: StreamId, bytes: &[u8]) {
        if let Some((socket, key)) = udp::key(connection) {
            if let Some(udp) = self.udp.get_mut(socket) {
                udp.driver.send(key, stream, bytes);
            }
        } else if stream == StreamId::FIRST && !bytes.is_empty() {
            self.push(connection, |outbox, pool| outbox.push(bytes, pool));
        }
    }

    fn send_shared(&mut self, connection: ConnectionId, stream: StreamId, bytes: Bytes) {
        if let Some((socket, key)) = udp::key(connection) {
            if let Some(udp) = self.udp.get_mut(socket) {
                udp.driver.send_shared(key, stream, bytes);
            }
        } else if stream == StreamId::FIRST && !bytes.is_empty() {
            self.push(connection, |outbox, _| outbox.push_shared(bytes));
        }
    }

    fn send_datagram(&mut self, connection: ConnectionId, bytes: Bytes) -> bool {
        udp::key(connection).is_some_and(|(socket, key)| {
            self.udp
                .get_mut(socket)
                .is_some_and(|udp| udp.driver.send_datagram(key, bytes))
        })
    }

    fn datagram_bytes(&mut self, connection: ConnectionId) -> usize {
        udp::key(connection)
            .and_then(|(socket, key)| Some((self.udp.get_mut(socket)?, key)))
            .map_or(0, |(udp, key)| udp.driver.datagram_bytes(key))
    }

    fn unsent_bytes(&self, connection: ConnectionId) -> usize {
        if let Some((socket, key)) = udp::key(connection) {
            let udp = self.udp.get(socket);
            return udp.map_or(0, |udp| udp.driver.unsent_bytes(key));
        }
        match self.connections.get(connection) {
            // It takes nothing more: what is given to it now is lost, and belongs to the client's next connection.
            Some(connection) if connection.is_write_failed() => self.config.high_watermark_bytes,
            Some(connection) => connection.unsent_bytes(),
            None => 0,
        }
    }

    fn unread_bytes(&self, connection: ConnectionId) -> usize {
        let udp = udp::key(connection).and_then(|(socket, key)| Some((self.udp.get(socket)?, key)));
        udp.map_or(0, |(udp, key)| udp.driver.unread_bytes(key))
    }

    fn unsent_on(&self, connection: ConnectionId, stream: StreamId) -> usize {
        match udp::key(connection) {
            Some((socket, key)) => {
                let udp = self.udp.get(socket);
                udp.map_or(0, |udp| udp.driver.unsent_on(key, stream))
            }
            None => self.unsent_bytes(connection),
        }
    }

    fn watch(&mut self, connection: ConnectionId, stream: StreamId) {
        if let Some((socket, key)) = udp::key(connection)
            && let Some(udp) = self.udp.get_mut(socket)
        {
            udp.driver.watch(key, stream);
        }
    }

    fn finish(&mut self, connection: ConnectionId, stream: StreamId) {
        if let Some((socket, key)) = udp::key(connection) {
            if let Some(udp) = self.udp.get_mut(socket) {
                udp.driver.finish(key, stream);
            }
        } else if stream == StreamId::FIRST
            && let Some(entry) = self.connections.get_mut(connection)
            && entry.phase == Phase::Open
        {
            entry.finishing = true;
            self.mark_dirty(connection);
        }
    }

    fn abort(&mut self, connection: ConnectionId, stream: StreamId, code: u64) {
        if let Some((socket, key)) = udp::key(connection) {
            if let Some(udp) = self.udp.get_mut(socket) {
                udp.driver.abort(key, stream, code);
            }
        } else if stream == StreamId::FIRST
            && let Some(entry) = self.connections.get(connection)
            && entry.announced
        {
            self.end(connection, CloseReason::Local);
        }
    }

    fn reset(&mut self, connection: ConnectionId, stream: StreamId, code: u64) {
        if let Some((socket, key)) = udp::key(connection) {
            if let Some(udp) = self.udp.get_mut(socket) {
                udp.driver.reset(key, stream, code);
            }
        } else {
            self.abort(connection, stream, code);
        }
    }

    fn stop(&mut self, connection: ConnectionId, stream: StreamId, code: u64) {
        if let Some((socket, key)) = udp::key(connection) {
            if let Some(udp) = self.udp.get_mut(socket) {
                udp.driver.stop(key, stream, code);
            }
        } else {
            self.abort(connection, stream, code);
        }
    }

    fn close(&mut self, connection: ConnectionId, code: u64) {
        if let Some((socket, key)) = udp::key(connection) {
            if let Some(udp) = self.udp.get_mut(socket) {
                udp.driver.close(key, code);
            }
            return;
        }
        self.begin_close(connection, None);
    }

    fn pause(&mut self, connection: ConnectionId, paused: bool) {
        if let Some((socket, key)) = udp::key(connection) {
            if let Some(udp) = self.udp.get_mut(socket) {
                udp.driver.pause(key, paused);
            }
        } else if let Some(entry) = self.connections.get_mut(connection) {
            entry.pause.set(paused);
            if entry.wants_input() {
                self.enqueue(connection);
            }
            self.limit_pause(connection);
        }
    }

    fn keep_half_closed(&mut self, connection: ConnectionId) {
        if let Some(entry) = self.connections.get_mut(connection)
            && entry.peer_side.has_ended()
        {
            entry.peer_side = PeerSide::Awaiting;
        }
    }

    fn refuse_newcomers(&mut self, listeners: &[u16], peers: &RefusedPeers) {
        self.refusing = Refusing {
            listeners: listeners.to_vec(),
            peers: peers.clone(),
        };
        for udp in &mut self.udp {
            let is_concerned = listeners.contains(&udp.driver.listener());
            let peers = is_concerned.then(|| peers.clone());
            udp.driver.refuse_peers(peers.unwrap_or_default());
        }
    }

    fn cap_unread(&mut self, connection: ConnectionId, most_bytes: u32) {
        if let Some((socket, key)) = udp::key(connection)
            && let Some(udp) = self.udp.get_mut(socket)
        {
            udp.driver.cap_unread(key, most_bytes);
        }
    }

    fn path(&self, connection: ConnectionId) -> PathStatistics {
        if let Some((socket, key)) = udp::key(connection) {
            let udp = self.udp.get(socket);
            return udp.map_or_else(PathStatistics::default, |udp| udp.driver.path(key));
        }
        let Some(connection) = self.connections.get(connection) else {
            return PathStatistics::default();
        };
        let tcp = crate::tcp_info::read(&connection.socket).unwrap_or_default();
        // Bytes added by TLS and WebSocket are not counted separately.
        let plain = connection.tls.is_none() && connection.websocket.is_none();
        let payload = |bytes: u64| if plain { bytes } else { 0 };
        PathStatistics {
            received_bytes: connection.received_bytes,
            sent_bytes: connection.sent_bytes,
            received_payload_bytes: payload(connection.received_bytes),
            sent_payload_bytes: payload(connection.sent_bytes),
            ..tcp
        }
    }

    fn connections(
        &self,
        from: usize,
        most: usize,
        each: &mut dyn FnMut(ConnectionId) -> bool,
    ) -> Option<usize> {
        let slots = self.slots();
        let until = slots.min(from.saturating_add(most));
        for at in from..until {
            if let Some(id) = self.open_in(at)
                && !each(id)
            {
                return (at + 1 < slots).then_some(at + 1);
            }
        }
        (until < slots).then_some(until)
    }

    fn survey(&mut self, most: usize, each: &mut dyn FnMut(&ConnectionInfo, &PathStatistics)) {
        let slots = self.slots();
        let mut shown = 0;
        for _ in 0..slots.min(most.saturating_mul(SLOTS_PER_SHOWN)) {
            if shown == most {
                break;
            }
            self.survey_at = (self.survey_at + 1) % slots;
            if let Some(id) = self.open_in(self.survey_at)
                && let Some(info) = self.info(id)
            {
                each(info, &self.path(id));
                shown += 1;
            }
        }
    }

    fn trace(&mut self, connection: ConnectionId, trace: Option<Trace>) {
        if let Some((socket, key)) = udp::key(connection)
            && let Some(udp) = self.udp.get_mut(socket)
        {
            udp.driver.trace(key, trace);
        }
    }
}

impl Core {
    /// Number of all slots, byte streams first.
    fn slots(&self) -> usize {
        let of_quic = self.udp.iter().map(|udp| udp.driver.slots());
        self.connections.slots() + of_quic.sum::<usize>()
    }

    /// Ends a WebSocket connection after a violation of its peer, with a Close frame.
    pub(super) fn violate(&mut self, id: ConnectionId, violation: websocket::Violation) {
        let reason = format!("WebSocket: {}", violation.what);
        self.begin_close(id, Some(CloseReason::Failed(reason)));
    }
}
