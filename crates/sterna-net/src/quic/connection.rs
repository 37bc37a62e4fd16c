//! One connection of a driver: what quinn-proto reports turned into events, and what the handler
//! asks for turned into streams.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Instant;

use bytes::Bytes;
use quinn_proto::{
    Connection, ConnectionError, ConnectionEvent, Dir, Event, ReadError, Side, StreamEvent,
    StreamId, TransportErrorCode, VarInt,
};

use super::config::code;
use super::event::{Counters, DriverEvent, EventKind, Key};
use super::half_open::HalfOpen;
use super::outgoing::{Outgoing, Pool};
use super::tls::Negotiated;
use super::{QuicConfig, refusals::Refusals};
use crate::{CloseReason, ConnectionInfo, PathStatistics, TransportKind};

/// Length of a client's first datagram (RFC 9000, section 14.1), as a rule.
const MIN_INITIAL_BYTES: u64 = 1_200;
/// Bytes read from a stream before others have their turn.
const READ_BATCH_BYTES: usize = 64 * 1024;
/// Streams that the handler may use before the peer has permitted them.
const MAX_WAITING_OPENS: u64 = 64;
/// TLS alert of a client that offers no protocol that is served (RFC 7301, section 3.2).
const NO_APPLICATION_PROTOCOL: u8 = 120;

/// What the connections of a driver share.
pub(super) struct Shared {
    pub(super) config: QuicConfig,
    pub(super) listener: u16,
    pub(super) now: Instant,
    pub(super) pool: Pool,
    pub(super) half_open: HalfOpen,
    pub(super) counters: Counters,
    pub(super) events: VecDeque<DriverEvent>,
    pub(super) refusals: Refusals,
}

/// How far a connection has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Neither opened nor confirmed.
    Handshake,
    /// Opened by early data.
    Early,
    /// Opened and confirmed.
    Open,
    /// Closed by the handler; what was queued is on its way.
    Lingering,
    /// Ended by the peer or the path; the library still answers late packets.
    Closed,
    /// Ended by us.
    Left,
}

/// What only a connection in its handshake needs.
struct Handshake {
    /// The address that the half-open connection is counted under.
    peer: SocketAddr,
    deadline: Instant,
    held: Vec<ConnectionEvent>,
    held_bytes: usize,
    /// Bytes that may still answer early data.
    allowance: usize,
    /// Whether the connection was over with its first datagram. The library (quinn-proto 0.11.19,
    /// `handle_first_packet`) sets no time for the removal of a connection whose first packet carries
    /// CONNECTION_CLOSE, which would stay until its idle timeout.
    stillborn: bool,
}

/// What only a connection that is being closed needs.
struct Closing {
    code: VarInt,
    /// Set at the end of the turn: the handler tells no time.
    deadline: Option<Instant>,
    /// Streams whose end has not been acknowledged.
    awaited: Vec<StreamId>,
}

pub(super) struct Connected {
    key: Key,
    pub(super) quic: Connection,
    stage: Stage,
    /// Whether the connection is in the driver's list of those that may have events.
    pub(super) ready: bool,
    /// Whether the connection is in the driver's list of those that may have something to send.
    pub(super) dirty: bool,
    paused: bool,
    /// Streams with bytes that were not read yet; holds something while paused only, as a rule.
    readable: Vec<StreamId>,
    outgoing: Option<Box<Outgoing>>,
    handshake: Option<Box<Handshake>>,
    closing: Option<Box<Closing>>,
    /// Streams that the client opened, per direction.
    accepted: [u64; 2],
    /// Streams that we opened, per direction.
    opened: [u64; 2],
    /// Streams that the client may have open at once, per direction; 0 before it opened one.
    limits: [u32; 2],
    migrations: u32,
}

impl Connected {
    pub(super) fn new(key: Key, quic: Connection, shared: &mut Shared) -> Box<Self> {
        let peer = quic.remote_address();
        let stillborn = quic.is_closed();
        shared.half_open.begin(peer);
        shared.counters.accepted += 1;
        Box::new(Self {
            key,
            quic,
            stage: Stage::Handshake,
            ready: false,
            dirty: false,
            paused: false,
            readable: Vec::new(),
            outgoing: None,
            handshake: Some(Box::new(Handshake {
                peer,
                deadline: shared.now + shared.config.handshake_timeout,
                held: Vec::new(),
                held_bytes: 0,
                allowance: shared.config.early_answer_bytes,
                stillborn,
            })),
            closing: None,
            accepted: [0; 2],
            opened: [0; 2],
            limits: [0; 2],
            migrations: 0,
        })
    }

    pub(super) const fn is_handshaking(&self) -> bool {
        self.handshake.is_some()
    }

    /// Whether the handler may still use the connection.
    pub(super) const fn is_usable(&self) -> bool {
        matches!(self.stage, Stage::Early | Stage::Open)
    }

    /// Whether the handler may learn what the peer sent: until it closes the connection itself.
    pub(super) const fn is_heard(&self) -> bool {
        matches!(self.stage, Stage::Early | Stage::Open | Stage::Closed)
    }

    pub(super) fn unsent_bytes(&self) -> usize {
        self.outgoing
            .as_ref()
            .map_or(0, |outgoing| outgoing.unsent_bytes())
    }

    pub(super) fn path(&self) -> PathStatistics {
        let stats = self.quic.stats();
        PathStatistics {
            rtt_us: u64::try_from(stats.path.rtt.as_micros()).unwrap_or(u64::MAX),
            lost_packets: stats.path.lost_packets,
            congestion_window_bytes: stats.path.cwnd,
            // The library's figure leaves the first datagram out.
            received_bytes: stats.udp_rx.bytes + MIN_INITIAL_BYTES,
            sent_bytes: stats.udp_tx.bytes,
            migrations: self.migrations,
        }
    }

    // --- Input -----------------------------------------------------------------------------------

    /// Takes in what the endpoint routed here.
    pub(super) fn input(&mut self, shared: &mut Shared, event: ConnectionEvent) {
        let before = self.quic.remote_address();
        self.quic.handle_event(event);
        self.notice_address(shared, before);
    }

    /// Keeps a 1-RTT datagram until the handshake is over (RFC 9001, section 5.7: such packets
    /// SHOULD be buffered). The library would drop it, and remember its number, so that not even a
    /// copy would count.
    pub(super) fn hold_back(&mut self, shared: &mut Shared, event: ConnectionEvent, bytes: usize) {
        let Some(handshake) = &mut self.handshake else {
            return;
        };
        if handshake.held.len() < shared.config.held_back_datagrams
            && handshake.held_bytes + bytes <= shared.config.held_back_bytes
        {
            handshake.held.push(event);
            handshake.held_bytes += bytes;
            shared.counters.held_back += 1;
        } else {
            shared.counters.held_back_dropped += 1;
        }
    }

    /// The connection's next deadline: the library's, the handshake's or the closing's.
    pub(super) fn deadline(&mut self) -> Option<Instant> {
        [self.quic.poll_timeout(), self.own_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    fn own_deadline(&self) -> Option<Instant> {
        match self.stage {
            Stage::Closed | Stage::Left => None,
            Stage::Lingering => self.closing.as_ref().and_then(|closing| closing.deadline),
            _ => self.handshake.as_ref().map(|handshake| handshake.deadline),
        }
    }

    /// Whether the connection is over and the library has set no time for its removal.
    pub(super) fn is_stillborn(&self) -> bool {
        self.handshake
            .as_ref()
            .is_some_and(|handshake| handshake.stillborn)
    }

    /// Lets happen what is due; returns whether anything was.
    pub(super) fn timeout(&mut self, shared: &mut Shared) -> bool {
        let now = shared.now;
        let mut due = false;
        if self.own_deadline().is_some_and(|deadline| deadline <= now) {
            due = true;
            if self.stage == Stage::Lingering {
                self.close_now(shared);
            } else {
                self.quic.close(
                    now,
                    VarInt::from_u32(0),
                    Bytes::from_static(b"handshake timeout"),
                );
                self.end(shared, CloseReason::TimedOut);
            }
        }
        if self
            .quic
            .poll_timeout()
            .is_some_and(|deadline| deadline <= now)
        {
            due = true;
            let before = self.quic.remote_address();
            self.quic.handle_timeout(now);
            self.notice_address(shared, before);
        }
        due
    }

    fn notice_address(&mut self, shared: &mut Shared, before: SocketAddr) {
        let peer = self.quic.remote_address();
        if peer != before {
            self.migrations = self.migrations.saturating_add(1);
            shared.counters.migrations += 1;
            // What is in flight counts per path, and the library (quinn-proto 0.11.19) leaves the
            // loss timer as it was: with nothing in flight on the path that counts now, what the
            // other one lost would not be sent again. A PING puts something in flight.
            self.quic.ping();
            self.emit(shared, EventKind::PeerAddressChanged { peer });
        }
    }

    // --- Events ----------------------------------------------------------------------------------

    fn emit(&self, shared: &mut Shared, kind: EventKind) {
        if self.is_usable() {
            shared.events.push_back(DriverEvent {
                connection: self.key,
                kind,
            });
        }
    }

    /// Turns one thing that happened into events; returns false when nothing is left.
    pub(super) fn step(&mut self, shared: &mut Shared) -> bool {
        if !self.paused
            && let Some(&stream) = self.readable.first()
        {
            self.readable.remove(0);
            self.read(shared, stream);
            return true;
        }
        let Some(event) = self.quic.poll() else {
            return false;
        };
        match event {
            Event::HandshakeDataReady | Event::DatagramsUnblocked => {}
            Event::Connected => self.confirm(shared),
            Event::ConnectionLost { reason } => self.lost(shared, &reason),
            Event::DatagramReceived => {
                while let Some(bytes) = self.quic.datagrams().recv() {
                    self.open_early(shared);
                    let confirmed = self.handshake.is_none();
                    let kind = EventKind::Datagram {
                        bytes,
                        early: !confirmed,
                        confirmed,
                    };
                    self.emit(shared, kind);
                }
            }
            Event::Stream(event) => self.stream_event(shared, &event),
        }
        true
    }

    fn stream_event(&mut self, shared: &mut Shared, event: &StreamEvent) {
        match *event {
            StreamEvent::Opened { dir } => {
                self.open_early(shared);
                while let Some(stream) = self.quic.streams().accept(dir) {
                    self.accepted[dir as usize] = stream.index() + 1;
                    self.read(shared, stream);
                }
                self.tend_limit(shared, dir);
            }
            StreamEvent::Readable { id } => self.read(shared, id),
            StreamEvent::Writable { id } => {
                if let Some(outgoing) = &mut self.outgoing {
                    outgoing.unblock(Some(id));
                    self.flush(shared);
                }
            }
            StreamEvent::Finished { id } => {
                if let Some(closing) = &mut self.closing {
                    closing.awaited.retain(|awaited| *awaited != id);
                }
                self.tend_limit(shared, id.dir());
            }
            StreamEvent::Stopped { id, error_code } => {
                if let Some(outgoing) = &mut self.outgoing {
                    outgoing.drop_stream(&mut shared.pool, id);
                    self.flush(shared);
                }
                if let Some(closing) = &mut self.closing {
                    closing.awaited.retain(|awaited| *awaited != id);
                }
                // RFC 9000, section 3.5: an endpoint that receives STOP_SENDING MUST send
                // RESET_STREAM, unless all was sent.
                let _ = self.quic.send_stream(id).reset(error_code);
                let code = error_code.into_inner();
                self.emit(
                    shared,
                    EventKind::Aborted {
                        stream: number(id),
                        code,
                    },
                );
            }
            StreamEvent::Available { .. } => {
                if let Some(outgoing) = &mut self.outgoing {
                    outgoing.unblock(None);
                    self.flush(shared);
                }
            }
        }
    }

    /// Opens the connection for the handler because it carries early data.
    fn open_early(&mut self, shared: &mut Shared) {
        if self.stage == Stage::Handshake {
            shared.counters.opened_early += 1;
            self.stage = Stage::Early;
            self.announce(shared, false);
        }
    }

    fn announce(&self, shared: &mut Shared, confirmed: bool) {
        let negotiated = self.quic.crypto_session().handshake_data();
        let negotiated = negotiated.and_then(|data| data.downcast::<Negotiated>().ok());
        let Negotiated {
            protocol,
            certificates,
        } = negotiated.map_or_else(Default::default, |n| *n);
        let info = Box::new(ConnectionInfo {
            listener: shared.listener,
            transport: TransportKind::Quic,
            protocol,
            peer: self.quic.remote_address(),
            peer_certificates: certificates,
        });
        self.emit(shared, EventKind::Opened { info, confirmed });
    }

    /// The handshake is over.
    fn confirm(&mut self, shared: &mut Shared) {
        let Some(handshake) = self.handshake.take() else {
            return;
        };
        shared.half_open.end(handshake.peer);
        shared.counters.confirmed += 1;
        match self.stage {
            Stage::Handshake => {
                self.stage = Stage::Open;
                self.announce(shared, true);
            }
            Stage::Early => {
                self.stage = Stage::Open;
                // A window that shrank in the meantime may be full of lost answers, and nothing
                // would ever empty it; see `QuicConfig::early_answer_bytes`.
                let congestion = self.quic.congestion_state();
                if congestion.window() < congestion.initial_window() {
                    self.quic.path_changed(shared.now);
                }
                if let Some(outgoing) = &mut self.outgoing {
                    outgoing.unblock(None);
                    self.flush(shared);
                }
                // Known already; fetched so that the session lets go of it.
                drop(self.quic.crypto_session().handshake_data());
                self.emit(shared, EventKind::Confirmed);
            }
            Stage::Open | Stage::Lingering | Stage::Closed | Stage::Left => {}
        }
        for event in handshake.held {
            // With the time of their arrival: a delay caused by missing keys belongs into the
            // acknowledgement's delay (RFC 9000, section 13.2.5).
            self.input(shared, event);
        }
    }

    fn lost(&mut self, shared: &mut Shared, reason: &ConnectionError) {
        if self.stage == Stage::Handshake {
            shared.refusal(self.quic.remote_address(), reason);
        }
        if self.is_usable() {
            // What arrived before the end is read even if the handler has paused.
            self.paused = false;
            while let Some(stream) = self.readable.pop() {
                self.read(shared, stream);
            }
        }
        self.end(shared, close_reason(reason));
    }

    /// Ends the connection for the handler.
    fn end(&mut self, shared: &mut Shared, reason: CloseReason) {
        let local = matches!(reason, CloseReason::Local | CloseReason::Shutdown);
        match self.stage {
            Stage::Closed | Stage::Left => return,
            Stage::Handshake => shared.counters.failed_handshakes += 1,
            Stage::Early | Stage::Open => {
                if self.handshake.is_some() {
                    shared.counters.failed_handshakes += 1;
                }
                self.emit(shared, EventKind::Closed { reason });
            }
            Stage::Lingering => {
                let kind = EventKind::Closed {
                    reason: CloseReason::Local,
                };
                shared.events.push_back(DriverEvent {
                    connection: self.key,
                    kind,
                });
            }
        }
        self.stage = if local { Stage::Left } else { Stage::Closed };
        self.closing = None;
        self.readable = Vec::new();
        if let Some(outgoing) = self.outgoing.take() {
            shared.pool.recycle(outgoing);
        }
        if let Some(handshake) = &mut self.handshake {
            handshake.held = Vec::new();
        }
    }

    /// Hands back what the connection is counted for; nothing follows.
    pub(super) fn retire(&mut self, shared: &mut Shared) {
        if let Some(handshake) = self.handshake.take() {
            shared.half_open.end(handshake.peer);
        }
    }

    // --- Reading ---------------------------------------------------------------------------------

    fn read(&mut self, shared: &mut Shared, stream: StreamId) {
        if !self.is_usable() {
            return;
        }
        if self.paused {
            if !self.readable.contains(&stream) {
                self.readable.push(stream);
            }
            return;
        }
        let confirmed = self.handshake.is_none();
        let connection = self.key;
        let name = number(stream);
        let mut emit = |kind| shared.events.push_back(DriverEvent { connection, kind });
        let mut over = false;
        let mut receiver = self.quic.recv_stream(stream);
        let Ok(mut chunks) = receiver.read(true) else {
            return;
        };
        let mut bytes = 0;
        while bytes < READ_BATCH_BYTES && !over {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => {
                    bytes += chunk.bytes.len();
                    emit(EventKind::Chunk {
                        stream: name,
                        bytes: chunk.bytes,
                        early: !confirmed,
                        confirmed,
                    });
                }
                Ok(None) => {
                    emit(EventKind::Finished { stream: name });
                    over = true;
                }
                Err(ReadError::Reset(code)) => {
                    let code = code.into_inner();
                    emit(EventKind::Aborted { stream: name, code });
                    over = true;
                }
                Err(ReadError::Blocked) => break,
            }
        }
        let _ = chunks.finalize();
        if bytes >= READ_BATCH_BYTES && !over {
            self.readable.push(stream);
        }
        if over {
            self.tend_limit(shared, stream.dir());
        }
    }

    /// Stops or resumes reading; returns whether there is something to read.
    pub(super) fn pause(&mut self, paused: bool) -> bool {
        self.paused = paused;
        !paused && !self.readable.is_empty()
    }

    /// Raises the number of streams that the client may have open, when it uses more than half of
    /// it, and renews it one half at a time.
    ///
    /// Permitted streams cost memory, so few are permitted at first. And the library would send
    /// MAX_STREAMS whenever an eighth of the limit was used up; with the target at one half, raised
    /// to the whole for a moment when that half is reached, one frame renews half the limit.
    fn tend_limit(&mut self, shared: &Shared, dir: Dir) {
        let limit = &mut self.limits[dir as usize];
        let (initial, max) = shared.config.streams(dir);
        if *limit == 0 {
            *limit = initial;
            self.quic
                .set_max_concurrent_streams(dir, (initial / 2).into());
        }
        let open = self.quic.streams().remote_open_streams(dir);
        let permitted = self.quic.max_concurrent_streams(dir);
        if open * 2 > u64::from(*limit) && *limit < max {
            *limit = limit.saturating_mul(2).min(max);
        } else if permitted * 2 > u64::from(*limit) {
            return;
        }
        let limit = *limit;
        self.quic.set_max_concurrent_streams(dir, limit.into());
        self.quic
            .set_max_concurrent_streams(dir, (limit / 2).into());
    }

    // --- Sending ---------------------------------------------------------------------------------

    /// Whether the handler may send on the stream: the client opened it, or we may.
    fn may_send(&self, stream: StreamId) -> bool {
        let dir = stream.dir() as usize;
        match stream.initiator() {
            Side::Client => stream.dir() == Dir::Bi && stream.index() < self.accepted[dir],
            Side::Server => stream.index() < self.opened[dir] + MAX_WAITING_OPENS,
        }
    }

    fn exists(&self, stream: StreamId) -> bool {
        let dir = stream.dir() as usize;
        match stream.initiator() {
            Side::Client => stream.index() < self.accepted[dir],
            Side::Server => stream.index() < self.opened[dir],
        }
    }

    fn queue(&mut self, pool: &mut Pool, stream: StreamId) -> Option<&mut Outgoing> {
        if !self.is_usable() || !self.may_send(stream) {
            tracing::debug!(connection = ?self.key, %stream, "nothing can be sent on this stream");
            return None;
        }
        Some(self.outgoing.get_or_insert_with(|| pool.take()))
    }

    pub(super) fn send(&mut self, shared: &mut Shared, stream: StreamId, bytes: &[u8]) {
        let high = shared.config.high_watermark_bytes;
        if let Some(outgoing) = self.queue(&mut shared.pool, stream) {
            outgoing.push(&mut shared.pool, stream, bytes, high);
            self.check_unsent(shared);
        }
    }

    pub(super) fn send_shared(&mut self, shared: &mut Shared, stream: StreamId, bytes: Bytes) {
        let high = shared.config.high_watermark_bytes;
        if let Some(outgoing) = self.queue(&mut shared.pool, stream) {
            outgoing.push_shared(&mut shared.pool, stream, bytes, high);
            self.check_unsent(shared);
        }
    }

    fn check_unsent(&mut self, shared: &mut Shared) {
        let unsent_bytes = self.unsent_bytes();
        if unsent_bytes > shared.config.max_unsent_bytes {
            self.quic.close(
                shared.now,
                VarInt::from_u32(0),
                Bytes::from_static(b"too slow"),
            );
            let why = format!("{unsent_bytes} bytes unsent: the peer takes nothing");
            self.end(shared, CloseReason::Failed(why));
        }
    }

    pub(super) fn send_datagram(&mut self, bytes: Bytes) -> bool {
        let length = bytes.len();
        if let Some(handshake) = &self.handshake
            && handshake.allowance < length
        {
            return false;
        }
        let sent = self.is_usable() && self.quic.datagrams().send(bytes, true).is_ok();
        if sent && let Some(handshake) = &mut self.handshake {
            handshake.allowance -= length;
        }
        sent
    }

    pub(super) fn finish(&mut self, shared: &mut Shared, stream: StreamId) {
        if let Some(outgoing) = self.queue(&mut shared.pool, stream) {
            outgoing.finish(&mut shared.pool, stream);
        }
    }

    pub(super) fn abort(&mut self, shared: &mut Shared, stream: StreamId, reason: u64) {
        if !self.is_usable() {
            return;
        }
        if let Some(outgoing) = &mut self.outgoing {
            outgoing.drop_stream(&mut shared.pool, stream);
        }
        if !self.exists(stream) {
            return;
        }
        let (ours, both) = (stream.initiator() == Side::Server, stream.dir() == Dir::Bi);
        // Either half may be over, which is fine.
        if ours || both {
            let _ = self.quic.send_stream(stream).reset(code(reason));
        }
        if !ours || both {
            let _ = self.quic.recv_stream(stream).stop(code(reason));
            self.readable.retain(|readable| *readable != stream);
            self.tend_limit(shared, stream.dir());
        }
    }

    /// Begins to close: what is queued is delivered first, as far as that works in time.
    pub(super) fn close(&mut self, reason: u64) {
        if !self.is_usable() {
            return;
        }
        self.stage = Stage::Lingering;
        self.readable = Vec::new();
        if let Some(outgoing) = &mut self.outgoing {
            outgoing.finish_all();
        }
        self.closing = Some(Box::new(Closing {
            code: code(reason),
            deadline: None,
            awaited: Vec::new(),
        }));
    }

    fn close_now(&mut self, shared: &mut Shared) {
        let code = self
            .closing
            .as_ref()
            .map_or(VarInt::from_u32(0), |closing| closing.code);
        self.quic.close(shared.now, code, Bytes::new());
        self.end(shared, CloseReason::Local);
    }

    /// Closes if that was asked for and everything queued has arrived; returns whether it did.
    pub(super) fn close_if_delivered(&mut self, shared: &mut Shared) -> bool {
        if let Some(closing) = &mut self.closing {
            closing
                .deadline
                .get_or_insert(shared.now + shared.config.linger);
        }
        let delivered = self.stage == Stage::Lingering
            && self.outgoing.is_none()
            && self
                .closing
                .as_ref()
                .is_none_or(|closing| closing.awaited.is_empty())
            && !self.quic.has_pending_retransmits();
        if delivered {
            self.close_now(shared);
        }
        delivered
    }

    /// Closes at once because the shard stops.
    pub(super) fn shut_down(&mut self, shared: &mut Shared, reason: u64) {
        if !matches!(self.stage, Stage::Closed | Stage::Left) {
            self.flush(shared);
            self.quic.close(shared.now, code(reason), Bytes::new());
            self.end(shared, CloseReason::Shutdown);
        }
    }

    /// Hands the library what it takes of what waits.
    pub(super) fn flush(&mut self, shared: &mut Shared) {
        let Some(mut outgoing) = self.outgoing.take() else {
            return;
        };
        let opened = &mut self.opened;
        let low = shared.config.low_watermark_bytes;
        let mut unlimited = usize::MAX;
        let allowance = match &mut self.handshake {
            Some(handshake) => &mut handshake.allowance,
            None => &mut unlimited,
        };
        let pool = &mut shared.pool;
        let flushed = outgoing.flush(pool, &mut self.quic, low, allowance, |quic, stream| {
            let opened = &mut opened[stream.dir() as usize];
            while stream.initiator() == Side::Server && stream.index() >= *opened {
                if quic.streams().open(stream.dir()).is_none() {
                    return false;
                }
                *opened += 1;
            }
            true
        });
        if outgoing.is_empty() {
            shared.pool.recycle(outgoing);
        } else {
            self.outgoing = Some(outgoing);
        }
        if let Some(closing) = &mut self.closing {
            closing.awaited.extend(flushed.finished);
        }
        if flushed.writable {
            self.emit(shared, EventKind::Writable);
        }
    }
}

impl Shared {
    /// Logs a handshake that failed, loudly if the client wants what nobody serves here.
    pub(super) fn refusal(&mut self, peer: SocketAddr, reason: &ConnectionError) {
        let no_protocol = match reason {
            ConnectionError::TransportError(error) => {
                error.code == TransportErrorCode::crypto(NO_APPLICATION_PROTOCOL)
            }
            _ => false,
        };
        if no_protocol {
            self.counters.refused_protocols += 1;
            self.refusals
                .log(self.now, peer, self.listener, &self.config);
        } else {
            tracing::debug!(%peer, %reason, "QUIC handshake failed");
        }
    }
}

/// The number of a stream.
fn number(stream: StreamId) -> crate::StreamId {
    crate::StreamId(stream.into())
}

fn close_reason(reason: &ConnectionError) -> CloseReason {
    match reason {
        ConnectionError::ApplicationClosed(close) => CloseReason::Peer {
            code: close.error_code.into_inner(),
        },
        ConnectionError::ConnectionClosed(close)
            if close.error_code == TransportErrorCode::NO_ERROR =>
        {
            CloseReason::Peer { code: 0 }
        }
        ConnectionError::TimedOut => CloseReason::TimedOut,
        ConnectionError::LocallyClosed => CloseReason::Local,
        other => CloseReason::Failed(other.to_string()),
    }
}
