//! One connection of a driver: turns quinn-proto's reports into events, and the handler's commands
//! into stream data.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use quinn_proto::{
    Connection, ConnectionError, ConnectionEvent, Event, StreamEvent, StreamId, Transmit,
    TransportErrorCode, VarInt,
};
use sterna_quic::{PathMemory, SavedPath};

use super::QuicConfig;
use super::driver::Parcel;
use super::event::{Counters, DriverEvent, EventKind, Key};
use super::figures::Figures;
use super::gaps::Gaps;
use super::half_open::HalfOpen;
use super::moving::Moving;
use super::outgoing::{Pool, StreamQueues};
use super::path_memory::{self, Noted, Ticket};
use super::refusals;
use super::stream_credit::StreamCredit;
use super::tickets;
use super::tls::{self, Negotiated, Refusal, TlsServer};
use super::trace::Tracer;
use super::unproved::{Strays, Unproved};
use crate::peers::{Peers, Place};
use crate::throttle::Throttle;
use crate::{
    Clock, CloseReason, ConnectionInfo, EarlyData, FailedHandshake, HandshakeFault, Trace,
    TransportKind,
};

/// State that the connections of a driver share.
pub(super) struct Shared {
    pub(super) config: QuicConfig,
    pub(super) listener: u16,
    pub(super) now: Instant,
    /// The origin of the driver's clock.
    pub(super) origin: Instant,
    pub(super) clock: Clock,
    pub(super) crypto: Arc<TlsServer>,
    pub(super) pool: Pool,
    pub(super) half_open: HalfOpen,
    /// Connections by address, of all drivers and shards.
    pub(super) peers: Option<Arc<Peers>>,
    pub(super) counters: Counters,
    pub(super) events: VecDeque<DriverEvent>,
    /// Datagrams that were held back, and whose address is proved now.
    pub(super) released: VecDeque<Parcel>,
    /// Lines about connections that were closed over data.
    pub(super) closed_over_data: Throttle,
    /// Bytes of early data of all connections in their handshake.
    pub(super) early_bytes: usize,
    /// Bytes of all connections that have come and are not read.
    pub(super) unread_bytes: u64,
}

/// Progress of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Neither opened nor confirmed.
    Handshake,
    /// Opened by early data.
    Early,
    /// Opened and confirmed.
    Open,
    /// Closed by the handler; queued bytes are on their way.
    Lingering,
    /// Ended by the peer or the path; the library still answers late packets.
    Closed,
    /// Ended by us.
    Left,
}

/// State that only a connection in its handshake needs.
pub(super) struct Handshake {
    /// The address that the half-open connection is counted under.
    pub(super) peer: SocketAddr,
    pub(super) deadline: Instant,
    /// Bytes to an address that has proved nothing yet.
    pub(super) unproved: Option<Unproved>,
    pub(super) held: Vec<ConnectionEvent>,
    pub(super) held_bytes: usize,
    /// Bytes of datagrams with early data, without the first one.
    pub(super) early_bytes: usize,
    /// Bytes that may still answer early data.
    pub(super) allowance: usize,
    /// Whether the connection ended with its first datagram. The library (quinn-proto 0.11.19,
    /// `handle_first_packet`) sets no time for the removal of a connection whose first packet
    /// carries CONNECTION_CLOSE. It would stay until its idle timeout.
    pub(super) stillborn: bool,
}

/// State that only a closing connection needs.
pub(super) struct Closing {
    pub(super) code: VarInt,
    /// Set at the end of the turn: the handler tells no time.
    pub(super) patience: Option<Patience>,
    /// Streams whose end has not been acknowledged.
    pub(super) awaited: Vec<StreamId>,
    /// Unacknowledged bytes exist on a stream without an end: one that lasts as long as the
    /// connection.
    pub(super) is_unsettled: bool,
}

/// Time limits of a closing connection.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    /// Without further progress.
    pub(super) deadline: Instant,
    /// In any case.
    pub(super) last: Instant,
    /// When the peer acknowledged something last.
    pub(super) acknowledged: Option<Instant>,
}

pub(super) struct Connected {
    pub(super) key: Key,
    pub(super) quic: Connection,
    pub(super) stage: Stage,
    /// Whether the connection is in the driver's list of those that may have events.
    pub(super) ready: bool,
    /// Whether the connection is in the driver's list of those that may have something to send.
    pub(super) dirty: bool,
    pub(super) paused: bool,
    /// Bytes that have come since then, which are not read; no more than the window.
    pub(super) unread_bytes: u32,
    /// Unread bytes at which datagrams are dropped.
    pub(super) most_unread_bytes: u32,
    pub(super) gaps: Gaps,
    /// Streams with bytes that were not read yet; holds something while paused only, as a rule.
    pub(super) readable: Vec<StreamId>,
    pub(super) outgoing: Option<Box<StreamQueues>>,
    pub(super) handshake: Option<Box<Handshake>>,
    pub(super) closing: Option<Box<Closing>>,
    /// Streams that the client opened, per direction.
    pub(super) accepted: [u64; 2],
    /// Streams that we opened, per direction.
    pub(super) opened: [u64; 2],
    pub(super) credit: StreamCredit,
    pub(super) figures: Figures,
    pub(super) moving: Option<Box<Moving>>,
    strays: Option<Box<Strays>>,
    /// Whether the library puts a path challenge into each packet to the peer's address.
    pub(super) is_challenging: bool,
    pub(super) trace: Option<Box<Tracer>>,
    /// The ticket that the client holds, where paths are remembered.
    pub(super) ticket: Option<Ticket>,
    /// One of its address's.
    pub(super) place: Option<Place>,
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
            unread_bytes: 0,
            most_unread_bytes: u32::MAX,
            gaps: Gaps::default(),
            readable: Vec::new(),
            outgoing: None,
            handshake: Some(Box::new(Handshake {
                peer,
                deadline: shared.now + shared.config.handshake_timeout(),
                unproved: None,
                held: Vec::new(),
                held_bytes: 0,
                early_bytes: 0,
                allowance: shared.config.early_answer_bytes,
                stillborn,
            })),
            closing: None,
            accepted: [0; 2],
            opened: [0; 2],
            credit: StreamCredit::default(),
            figures: Figures::default(),
            moving: None,
            strays: None,
            is_challenging: false,
            trace: None,
            ticket: None,
            place: None,
        })
    }

    pub(super) const fn is_handshaking(&self) -> bool {
        self.handshake.is_some()
    }

    /// Whether the handler may still use the connection.
    pub(super) const fn is_usable(&self) -> bool {
        matches!(self.stage, Stage::Early | Stage::Open)
    }

    /// Whether the handler may still get the peer's bytes: until it closes the connection itself.
    pub(super) const fn is_heard(&self) -> bool {
        matches!(self.stage, Stage::Early | Stage::Open | Stage::Closed)
    }

    pub(super) fn unsent_bytes(&self) -> usize {
        self.outgoing
            .as_ref()
            .map_or(0, |outgoing| outgoing.unsent_bytes())
    }

    // --- Input -----------------------------------------------------------------------------------

    /// Takes a datagram that the endpoint routed here, from the given address.
    pub(super) fn input(&mut self, shared: &mut Shared, event: ConnectionEvent, from: SocketAddr) {
        let before = self.quic.remote_address();
        let asked = self.asked_while_challenging();
        tls::has_read_handshake();
        tickets::issue_to(self.quic.remote_address().ip());
        self.quic.handle_event(event);
        if tls::has_read_handshake() {
            self.prove_newcomer(shared);
        }
        self.heed_blocked(shared);
        self.notice_address(shared, before);
        self.heed_challenge(from, asked);
        self.trace_metrics(shared);
    }

    /// The client has shown that it reads at its address.
    fn prove_newcomer(&mut self, shared: &mut Shared) {
        let handshake = self.handshake.as_mut();
        if let Some(unproved) = handshake.and_then(|handshake| handshake.unproved.take()) {
            shared.released.extend(unproved.into_held());
        }
    }

    /// Whether the peer's address is a newcomer's that has neither shown a token nor sent a packet which only a
    /// reader at this address can send.
    fn is_newcomer_unproved(&self) -> bool {
        (self.handshake.as_ref()).is_some_and(|handshake| handshake.unproved.is_some())
    }

    /// Bytes to the peer's address, while it has proved nothing.
    pub(super) fn unproved(&mut self) -> Option<&mut Unproved> {
        match (&mut self.handshake, &mut self.moving) {
            (Some(handshake), _) => handshake.unproved.as_mut(),
            (None, Some(moving)) => Some(&mut moving.unproved),
            (None, None) => None,
        }
    }

    /// An address that the peer has proved, once the handshake is over: nothing is limited there.
    fn is_proved(&self, address: SocketAddr) -> bool {
        let moving = self.moving.as_ref();
        address == moving.map_or_else(|| self.quic.remote_address(), |moving| moving.known())
    }

    /// Counts a datagram for the address that it came from, after it was read.
    pub(super) fn note_received(&mut self, from: SocketAddr, bytes: usize) {
        let is_free = self.handshake.is_some() || self.is_proved(from);
        match self.unproved() {
            Some(unproved) if unproved.is_of(from) => unproved.received(from, bytes),
            _ if is_free => {}
            _ => self.strays().received(from, bytes),
        }
    }

    /// Number of bytes, from the beginning, that may leave now for where they go.
    pub(super) fn admit(&mut self, transmit: &Transmit, bytes: &[u8]) -> usize {
        let to = transmit.destination;
        let is_free = self.handshake.is_some() || self.is_proved(to);
        match self.unproved() {
            Some(unproved) if unproved.is_of(to) => unproved.admit(transmit, bytes),
            _ if is_free => transmit.size,
            _ => self.strays().admit(transmit, bytes),
        }
    }

    /// Addresses that have proved nothing, beside the peer's.
    pub(super) fn strays(&mut self) -> &mut Strays {
        self.strays.get_or_insert_default()
    }

    /// Counts a datagram with early data; returns false where it is too much.
    pub(super) fn may_come_early(&mut self, shared: &mut Shared, bytes: usize) -> bool {
        self.figures.early_seen = true;
        let Some(handshake) = &mut self.handshake else {
            return true; // late: the library drops it
        };
        let (own, all) = (handshake.early_bytes + bytes, shared.early_bytes + bytes);
        let config = &shared.config;
        if own > config.max_early_bytes || all > config.max_early_bytes_total {
            shared.counters.early_dropped += 1;
            return false;
        }
        handshake.early_bytes = own;
        shared.early_bytes = all;
        true
    }

    /// Keeps a 1-RTT datagram until the handshake is over (RFC 9001, section 5.7: such packets
    /// SHOULD be buffered). The library would drop it and remember its number, so even a copy would
    /// not count.
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
            Stage::Lingering => {
                let patience = self.closing.as_ref().and_then(|closing| closing.patience);
                patience.map(|patience| patience.deadline)
            }
            _ => self.handshake.as_ref().map(|handshake| handshake.deadline),
        }
    }

    /// Whether the connection is over and the library has set no time for its removal.
    pub(super) fn is_stillborn(&self) -> bool {
        self.handshake
            .as_ref()
            .is_some_and(|handshake| handshake.stillborn)
    }

    /// Handles expired timers; returns whether there were any.
    pub(super) fn timeout(&mut self, shared: &mut Shared) -> bool {
        let now = shared.now;
        let mut due = false;
        if self.own_deadline().is_some_and(|deadline| deadline <= now) {
            due = true;
            if self.stage == Stage::Lingering {
                self.lose_patience(shared);
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
            let lost = self.quic.stats().path.lost_packets;
            self.quic.handle_timeout(now);
            self.figures.after_timer(lost, &self.quic);
            self.notice_address(shared, before);
            // The address to which the library returns was validated before. The handler is told if
            // it knows another one: the client has moved on before its answer was seen to be right.
            if self.quic.remote_address() != before && self.moving.take().is_some() {
                self.moved(shared);
            }
            self.trace_metrics(shared);
        }
        due
    }

    // --- Trace -----------------------------------------------------------------------------------

    /// [`crate::Network::trace`].
    pub(super) fn trace(&mut self, shared: &Shared, trace: Option<Trace>) {
        let wall_ms = shared.clock.at(shared.now);
        let peer = self.quic.remote_address();
        self.trace = trace.map(|trace| Tracer::new(trace, shared.now, wall_ms, peer, &self.path()));
    }

    /// The trace, if there is one.
    pub(super) fn tracer(&mut self) -> Option<&mut Tracer> {
        self.trace.as_deref_mut()
    }

    pub(super) fn trace_metrics(&mut self, shared: &Shared) {
        if self.trace.is_some() {
            let path = self.path();
            if let Some(trace) = &mut self.trace {
                trace.metrics(shared.now, &self.quic, &path);
            }
        }
    }

    pub(super) fn trace_stream(&mut self, shared: &Shared, stream: StreamId, state: &str) {
        if let Some(trace) = &mut self.trace {
            trace.stream(shared.now, stream, state);
        }
    }

    // --- Events ----------------------------------------------------------------------------------

    pub(super) fn emit(&self, shared: &mut Shared, kind: EventKind) {
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
                    self.figures.received_payload_bytes += bytes.len() as u64;
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
                    self.trace_stream(shared, stream, "open");
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
                self.trace_stream(shared, id, "data_received");
                if let Some(closing) = &mut self.closing {
                    closing.awaited.retain(|awaited| *awaited != id);
                }
                self.tend_limit(shared, id.dir());
            }
            StreamEvent::Stopped { id, error_code } => {
                let is_watched = self.drop_queued(shared, id);
                self.flush(shared);
                if let Some(closing) = &mut self.closing {
                    closing.awaited.retain(|awaited| *awaited != id);
                }
                // RFC 9000, section 3.5: an endpoint that receives STOP_SENDING MUST send
                // RESET_STREAM, unless all was sent.
                let _ = self.quic.send_stream(id).reset(error_code);
                self.trace_stream(shared, id, "reset_sent");
                let code = error_code.into_inner();
                self.emit(
                    shared,
                    EventKind::Stopped {
                        stream: number(id),
                        code,
                    },
                );
                // Later than the end of the stream: only then does the handler wait for it no more.
                if is_watched {
                    self.emit(shared, EventKind::Writable);
                }
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

    fn announce(&mut self, shared: &mut Shared, confirmed: bool) {
        let negotiated = self.quic.crypto_session().handshake_data();
        let negotiated = negotiated.and_then(|data| data.downcast::<Negotiated>().ok());
        let Negotiated {
            protocol,
            certificates,
            resumed,
            early_keys,
            noted,
            refusal: _,
        } = negotiated.map_or_else(Default::default, |n| *n);
        self.figures.resumed = resumed;
        self.figures.early_keys = early_keys;
        self.keep_ticket(shared, noted);
        let info = Box::new(ConnectionInfo {
            listener: shared.listener,
            transport: TransportKind::Quic,
            protocol,
            peer: self.quic.remote_address(),
            is_peer_proved: confirmed || !self.is_newcomer_unproved(),
            peer_certificates: certificates,
        });
        self.emit(shared, EventKind::Opened { info, confirmed });
    }

    /// Takes over the handshake's effects on tickets. The memory of the used ticket goes to the
    /// congestion controller. The name of the new ticket is kept for a later memory.
    fn keep_ticket(&mut self, shared: &Shared, noted: Noted) {
        if let Some(path) = noted.path
            && let Some(memory) = PathMemory::of(&self.quic)
        {
            let now_ms = shared.clock.at(shared.now);
            let lifetime_ms = shared.config.settings.path_memory_lifetime_ms;
            if let Err(refused) = memory.fill(path, now_ms, lifetime_ms) {
                tracing::debug!(connection = ?self.key, %refused, "starts as on a new path");
            }
        }
        if noted.issued.is_some() {
            self.ticket = noted.issued;
        }
    }

    /// Remembers the path with the client's ticket.
    pub(super) fn remember_path(&self, shared: &Shared) {
        let Some(ticket) = &self.ticket else { return };
        let now_ms = shared.clock.at(shared.now);
        if let Some(path) = SavedPath::observe(&self.quic, shared.now, now_ms)
            && path.congestion_window_bytes > 0
        {
            tickets::issue_to(self.quic.remote_address().ip());
            path_memory::remember(shared.crypto.sessions(), ticket, path);
        }
    }

    /// The handshake is over.
    fn confirm(&mut self, shared: &mut Shared) {
        self.prove_newcomer(shared);
        let Some(handshake) = self.handshake.take() else {
            return;
        };
        shared.half_open.end(handshake.peer);
        shared.early_bytes -= handshake.early_bytes;
        shared.counters.confirmed += 1;
        if let Some(trace) = &mut self.trace {
            trace.confirmed(shared.now);
        }
        match self.stage {
            Stage::Handshake => {
                self.stage = Stage::Open;
                self.announce(shared, true);
            }
            Stage::Early => {
                self.stage = Stage::Open;
                self.lift_early_limit(shared);
                // Known already, except for the ticket; fetched so that the session releases it.
                let left = self.quic.crypto_session().handshake_data();
                if let Some(left) = left.and_then(|left| left.downcast::<Negotiated>().ok()) {
                    self.keep_ticket(shared, left.noted);
                }
                self.emit(shared, EventKind::Confirmed);
            }
            // Closed in early data: the rest of the last words waits for this.
            Stage::Lingering => self.lift_early_limit(shared),
            Stage::Open | Stage::Closed | Stage::Left => {}
        }
        shared.counters.resumed += u64::from(self.figures.resumed);
        let is_refused = self.figures.early_data() == EarlyData::Rejected;
        shared.counters.early_refused += u64::from(is_refused);
        for event in handshake.held {
            // With the time of their arrival: a delay caused by missing keys belongs into the
            // acknowledgement's delay (RFC 9000, section 13.2.5).
            let from = self.quic.remote_address();
            self.input(shared, event, from);
        }
    }

    /// Answers to early data may be as long as they are.
    fn lift_early_limit(&mut self, shared: &mut Shared) {
        // A window that shrank in the meantime may be full of lost answers, and nothing would ever empty it; see
        // `QuicConfig::early_answer_bytes`.
        let congestion = self.quic.congestion_state();
        if congestion.window() < congestion.initial_window() {
            self.quic.path_changed(shared.now);
        }
        if let Some(outgoing) = &mut self.outgoing {
            outgoing.unblock(None);
            self.flush(shared);
        }
    }

    fn lost(&mut self, shared: &mut Shared, reason: &ConnectionError) {
        if self.is_usable() {
            // Bytes that arrived before the end are read even if the handler has paused.
            self.paused = false;
            while let Some(stream) = self.readable.pop() {
                self.read(shared, stream);
            }
        }
        let refusal = self.refusal(reason);
        self.end_of(shared, close_reason(reason), refusal);
    }

    /// Why the handshake has failed; `None` where it is finished.
    fn refusal(&self, reason: &ConnectionError) -> Option<Refusal> {
        self.handshake.as_ref()?;
        let by_tls = match reason {
            ConnectionError::TransportError(_) => self.negotiated().and_then(|known| known.refusal),
            _ => None,
        };
        Some(by_tls.unwrap_or_else(|| refusals::of(reason)))
    }

    /// The handshake's knowledge of the client so far.
    fn negotiated(&self) -> Option<Box<Negotiated>> {
        let data = self.quic.crypto_session().handshake_data()?;
        data.downcast().ok()
    }

    /// Counts a handshake that has failed, and tells the handler.
    fn handshake_failed(&self, shared: &mut Shared, refusal: Refusal) {
        let protocol = self.negotiated().map(|known| known.protocol);
        let peer = self.quic.remote_address();
        shared.handshake_failed(self.key, peer, protocol.unwrap_or_default(), refusal);
    }

    /// Ends the connection for the handler.
    pub(super) fn end(&mut self, shared: &mut Shared, reason: CloseReason) {
        self.end_of(shared, reason, None);
    }

    /// Ends the connection for the handler. If its handshake has failed, the fault may be known.
    fn end_of(&mut self, shared: &mut Shared, reason: CloseReason, refusal: Option<Refusal>) {
        let is_late = reason == CloseReason::TimedOut;
        let refusal = || {
            refusal.unwrap_or_else(|| {
                let (fault, detail) = if is_late {
                    let detail = "it was not finished within the handshake's time";
                    (HandshakeFault::TimedOut, detail)
                } else {
                    (HandshakeFault::Shutdown, "the server ended it")
                };
                (fault, detail.to_owned())
            })
        };
        let local = matches!(reason, CloseReason::Local | CloseReason::Shutdown);
        self.remember_path(shared);
        match self.stage {
            Stage::Closed | Stage::Left => return,
            Stage::Handshake => self.handshake_failed(shared, refusal()),
            Stage::Early | Stage::Open => {
                if self.handshake.is_some() {
                    self.handshake_failed(shared, refusal());
                }
                if let Some(trace) = &mut self.trace {
                    trace.closed(shared.now, &reason);
                }
                self.emit(shared, EventKind::Closed { reason });
            }
            Stage::Lingering => {
                if let Some(trace) = &mut self.trace {
                    trace.closed(shared.now, &CloseReason::Local);
                }
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
        self.drop_unread(shared);
        if let Some(outgoing) = self.outgoing.take() {
            shared.pool.recycle(outgoing);
        }
        if let Some(handshake) = &mut self.handshake {
            handshake.held = Vec::new();
        }
    }

    /// Returns the connection's counts; nothing follows.
    pub(super) fn retire(&mut self, shared: &mut Shared) {
        if let Some(handshake) = self.handshake.take() {
            shared.half_open.end(handshake.peer);
            shared.early_bytes -= handshake.early_bytes;
        }
    }
}

impl Shared {
    /// The driver's clock in milliseconds; wraps.
    pub(super) fn clock_ms(&self) -> u32 {
        self.now.saturating_duration_since(self.origin).as_millis() as u32
    }

    /// Counts a handshake that has failed, and tells the handler.
    pub(super) fn handshake_failed(
        &mut self,
        connection: Key,
        peer: SocketAddr,
        protocol: Box<[u8]>,
        (fault, detail): Refusal,
    ) {
        self.counters.failed[fault as usize] += 1;
        let failed = Box::new(FailedHandshake {
            listener: self.listener,
            transport: TransportKind::Quic,
            protocol,
            peer,
            fault,
            detail,
        });
        let kind = EventKind::HandshakeFailed { failed };
        self.events.push_back(DriverEvent { connection, kind });
    }
}

/// The number of a stream.
pub(super) fn number(stream: StreamId) -> crate::StreamId {
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
