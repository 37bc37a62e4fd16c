//! The driver of one QUIC listener on one shard.

mod commands;

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use quinn_proto::{
    ConnectionEvent, ConnectionHandle, DatagramEvent, EcnCodepoint, Endpoint, EndpointEvent,
    Incoming, Transmit,
};

use super::connection::{Connected, Shared};
use super::figures::carries_early_data;
use super::half_open::{HalfOpen, Verdict};
use super::newcomers::{Newcomers, TurnedAway};
use super::outgoing::Pool;
use super::refusals;
use super::timers::Timers;
use super::tls::{self, TlsServer};
use super::unproved::{AMPLIFICATION, Unproved};
use super::{
    Counters, DatagramBatch, DriverEvent, EventKind, Flush, Key, QuicConfig, Sent, SetupError,
};
use crate::counters::RefusedConnection;
use crate::peers::{Peers, host_of, in_turns};
use crate::throttle::Throttle;
use crate::{Clock, RefusedPeers};

/// Answers outside of connections (Retry, version negotiation, resets) that may wait for the socket.
const MAX_RESPONSES: usize = 256;
/// The key of a handshake that did not become a connection.
const NO_CONNECTION: Key = Key {
    slot: 0,
    generation: 0,
};
/// Calls to the socket for one connection before others have their turn.
const TRANSMITS_PER_VISIT: usize = 16;
/// The bit that long headers have (RFC 9000, section 17.2) and 1-RTT packets lack.
const LONG_HEADER: u8 = 0x80;

/// Place of a driver among its siblings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// Index of the listener in the order of the configuration.
    pub listener: u16,
    /// Index of the shard, below `shards`.
    pub shard: u16,
    /// Number of shards, from 1 to 256: connection identifiers carry the shard in a byte.
    pub shards: u16,
    /// Address of the listener's sockets, the same on all shards. Stateless resets are this listener's alone.
    pub address: SocketAddr,
}

/// One QUIC listener on one shard: all its connections, without sockets or clocks.
///
/// In a turn of its loop the shard calls [`Driver::datagram`] for input, and [`Driver::timeout`]
/// when [`Driver::deadline`] has passed. Then it calls [`Driver::poll_event`] until it returns
/// `None`, and at the end [`Driver::transmit`].
pub struct Driver {
    endpoint: Endpoint,
    server: Arc<quinn_proto::ServerConfig>,
    shared: Shared,
    /// Connections by the endpoint's handle.
    slots: Vec<Slot>,
    live: usize,
    timers: Timers,
    /// Connections that may have events.
    ready: VecDeque<u32>,
    /// Connections that may have something to send.
    dirty: VecDeque<u32>,
    /// Some of them had no turn in the last one.
    is_crowded: bool,
    /// Connections that are over, until the events before were handed out.
    drained: Vec<(u32, EndpointEvent)>,
    responses: VecDeque<Parcel>,
    /// First packets that wait for their turn.
    waiting: Newcomers<Newcomer>,
    turned_away: Option<TurnedAway>,
    /// Handshakes that may still be begun in this turn.
    handshakes_left: usize,
    /// The part that the socket did not take.
    rest: Option<Parcel>,
    scratch: Vec<u8>,
    /// New connections are refused.
    refused: RefusedPeers,
}

/// A first packet.
struct Newcomer {
    incoming: Incoming,
    bytes: usize,
    /// Whether early data came with it.
    early: bool,
}

struct Slot {
    generation: u32,
    connection: Option<Box<Connected>>,
}

/// Datagrams that wait for the socket, or for leave.
#[derive(Debug)]
pub(super) struct Parcel {
    transmit: Transmit,
    bytes: Box<[u8]>,
}

impl Parcel {
    fn new(transmit: Transmit, bytes: &[u8]) -> Self {
        let bytes = bytes[..transmit.size].into();
        Self { transmit, bytes }
    }

    /// One datagram of those that are to leave together.
    pub(super) fn of(together: &Transmit, datagram: &[u8]) -> Self {
        let transmit = Transmit {
            destination: together.destination,
            ecn: together.ecn,
            size: datagram.len(),
            segment_size: None,
            src_ip: together.src_ip,
        };
        Self::new(transmit, datagram)
    }

    /// Its bytes.
    pub(super) const fn size(&self) -> usize {
        self.transmit.size
    }

    fn outgoing(&self) -> DatagramBatch<'_> {
        outgoing(&self.transmit, &self.bytes)
    }
}

fn outgoing<'a>(transmit: &Transmit, bytes: &'a [u8]) -> DatagramBatch<'a> {
    DatagramBatch {
        destination: transmit.destination,
        source_ip: transmit.src_ip,
        ecn: transmit.ecn,
        segment_bytes: transmit.segment_size,
        bytes: &bytes[..transmit.size],
    }
}

impl Driver {
    /// Makes a driver. `tls` is best made by [`QuicConfig::prepare_tls`].
    ///
    /// # Errors
    ///
    /// A setting or the TLS configuration doesn't suit QUIC.
    pub fn new(
        config: QuicConfig,
        tls: Arc<rustls::ServerConfig>,
        placement: Placement,
        now: Instant,
    ) -> Result<Self, SetupError> {
        config.check()?;
        if !(1..=256).contains(&placement.shards) || placement.shard >= placement.shards {
            return Err(SetupError::Setting("shards, from 1 to 256".to_owned()));
        }
        let handshakes_left = config.handshakes_per_turn;
        let crypto = Arc::new(TlsServer::new(tls)?);
        let server = Arc::new(config.server(crypto.clone())?);
        let endpoint = Endpoint::new(
            Arc::new(config.endpoint(placement)?),
            Some(server.clone()),
            config.settings.mtu_discovery,
            None,
        );
        Ok(Self {
            endpoint,
            server,
            shared: Shared {
                config,
                listener: placement.listener,
                now,
                origin: now,
                clock: Clock::since(now, 0),
                crypto,
                pool: Pool::default(),
                half_open: HalfOpen::default(),
                peers: None,
                counters: Counters::default(),
                events: VecDeque::new(),
                released: VecDeque::new(),
                closed_over_data: Throttle::default(),
                early_bytes: 0,
                unread_bytes: 0,
            },
            slots: Vec::new(),
            live: 0,
            timers: Timers::default(),
            ready: VecDeque::new(),
            dirty: VecDeque::new(),
            is_crowded: false,
            drained: Vec::new(),
            responses: VecDeque::new(),
            waiting: Newcomers::default(),
            turned_away: None,
            handshakes_left,
            rest: None,
            scratch: Vec::new(),
            refused: RefusedPeers::None,
        })
    }

    /// Sets the clock that dates memories of paths; without one the time counts from the driver's
    /// creation. Drivers that share a store of sessions share a clock.
    pub fn set_clock(&mut self, clock: Clock) {
        self.shared.clock = clock;
    }

    /// Sets the counts of connections by address, for all drivers and shards together. Without it
    /// only the limits of [`QuicConfig`] hold.
    pub(crate) fn set_peers(&mut self, peers: Arc<Peers>) {
        self.shared.peers = Some(peers);
    }

    /// Replaces the TLS configuration for connections to come.
    ///
    /// # Errors
    ///
    /// The configuration doesn't suit QUIC; the one in force stays.
    pub fn set_tls(&mut self, tls: Arc<rustls::ServerConfig>) -> Result<(), SetupError> {
        // The key of Retry tokens stays, for clients that are under way.
        let mut server = quinn_proto::ServerConfig::clone(&self.server);
        self.shared.crypto = Arc::new(TlsServer::new(tls)?);
        server.crypto = self.shared.crypto.clone();
        self.server = Arc::new(server);
        self.endpoint.set_server_config(Some(self.server.clone()));
        Ok(())
    }

    // --- Input -----------------------------------------------------------------------------------

    /// Takes in one datagram (batches of GRO are to be split before).
    ///
    /// # Parameters
    ///
    /// - `now`: must not go back.
    /// - `local_ip`: the address the datagram was sent to, where the socket is bound to several.
    /// - `remote`: where it came from.
    /// - `ecn`: its ECN codepoint, if known.
    /// - `bytes`: its payload. It is decrypted in place, and events point into it.
    pub fn datagram(
        &mut self,
        now: Instant,
        local_ip: Option<IpAddr>,
        remote: SocketAddr,
        ecn: Option<EcnCodepoint>,
        bytes: BytesMut,
    ) {
        self.shared.now = now;
        let Some(first) = bytes.first() else { return };
        let one_rtt = first & LONG_HEADER == 0;
        let length = bytes.len();
        let early = !one_rtt && carries_early_data(&bytes);
        self.scratch.clear();
        match self
            .endpoint
            .handle(now, remote, local_ip, ecn, bytes, &mut self.scratch)
        {
            None => {}
            Some(DatagramEvent::Response(transmit)) => self.respond(transmit, length),
            Some(DatagramEvent::NewConnection(incoming)) => {
                let newcomer = Newcomer {
                    incoming,
                    bytes: length,
                    early,
                };
                self.incoming(now, newcomer, false);
            }
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                let slot = handle.0 as u32;
                let Some(connection) = self.slots[handle.0].connection.as_deref_mut() else {
                    return;
                };
                if early && !connection.may_come_early(&mut self.shared, length) {
                    return;
                }
                if connection.drops_input() {
                    self.shared.counters.unread_dropped += 1;
                    return;
                }
                self.routed(slot, event, remote, one_rtt, length);
            }
        }
    }

    fn routed(
        &mut self,
        slot: u32,
        event: ConnectionEvent,
        from: SocketAddr,
        one_rtt: bool,
        length: usize,
    ) {
        let Some(connection) = self.slots[slot as usize].connection.as_deref_mut() else {
            return;
        };
        if let Some(trace) = connection.tracer() {
            trace.received(self.shared.now, length);
        }
        if one_rtt && connection.is_handshaking() {
            connection.hold_back(&mut self.shared, event, length);
        } else {
            connection.input(&mut self.shared, event, from);
            connection.note_unread(&mut self.shared, length);
            connection.gaps.arrived(length);
            // After a move it counts for the new address.
            connection.note_received(from, length);
            self.after_input(slot);
        }
    }

    /// Decides on a first packet, which may have `waited` for its turn.
    fn incoming(&mut self, now: Instant, newcomer: Newcomer, waited: bool) {
        let peer = newcomer.incoming.remote_address();
        if let Some(reason) = self.refused.refusal(peer.ip()) {
            self.turn_away(peer, reason);
            let transmit = self.endpoint.refuse(newcomer.incoming, &mut self.scratch);
            return self.respond(transmit, newcomer.bytes);
        }
        let (incoming, newcomer_bytes) = (&newcomer.incoming, newcomer.bytes);
        let validated = incoming.remote_address_validated();
        match self
            .shared
            .half_open
            .judge(&self.shared.config, self.live, peer, validated)
        {
            Verdict::Ignore(reason) => {
                self.turn_away(peer, reason);
                self.endpoint.ignore(newcomer.incoming);
            }
            Verdict::Retry => match self.endpoint.retry(newcomer.incoming, &mut self.scratch) {
                Ok(transmit) => {
                    self.shared.counters.retried += 1;
                    self.respond(transmit, newcomer_bytes);
                }
                // Comes from a Retry of ours, yet isn't validated: cannot happen, costs nothing.
                Err(error) => self.endpoint.ignore(error.into_incoming()),
            },
            // Those who wait come before those who arrive, lest they wait for ever.
            Verdict::Accept if !waited && (self.handshakes_left == 0 || self.waiting.len() > 0) => {
                if self.waiting.len() < self.shared.config.waiting_handshakes {
                    self.waiting.push(peer, newcomer);
                } else {
                    self.turn_away(peer, RefusedConnection::HalfOpen);
                    self.endpoint.ignore(newcomer.incoming);
                }
            }
            Verdict::Accept => self.accept(now, newcomer),
        }
    }

    fn turn_away(&mut self, peer: SocketAddr, reason: RefusedConnection) {
        self.shared.counters.ignored += 1;
        TurnedAway::add(&mut self.turned_away, peer, reason);
    }

    /// Newcomers that were turned away since the last call.
    pub(crate) const fn take_turned_away(&mut self) -> Option<TurnedAway> {
        self.turned_away.take()
    }

    fn accept(&mut self, now: Instant, newcomer: Newcomer) {
        let Newcomer {
            incoming,
            bytes,
            early,
        } = newcomer;
        let peer = incoming.remote_address();
        let peers = self.shared.peers.as_ref();
        let place = peers.map(|peers| peers.enter(peer.ip(), self.shared.listener));
        if let Some(Err(reason)) = place {
            self.turn_away(peer, reason);
            let transmit = self.endpoint.refuse(incoming, &mut self.scratch);
            return self.respond(transmit, bytes);
        }
        let is_proved = incoming.remote_address_validated();
        self.handshakes_left -= 1;
        // One that is older is another's.
        drop(tls::last_refusal());
        match self.endpoint.accept(incoming, now, &mut self.scratch, None) {
            Ok((handle, quic)) => {
                let slot = handle.0 as u32;
                while self.slots.len() <= handle.0 {
                    self.slots.push(Slot {
                        generation: 0,
                        connection: None,
                    });
                }
                let holder = &mut self.slots[handle.0];
                let key = Key {
                    slot,
                    generation: holder.generation,
                };
                let mut connection = Connected::new(key, quic, &mut self.shared);
                connection.figures.first_datagram(bytes, early);
                connection.place = place.and_then(Result::ok);
                if let (false, Some(handshake)) = (is_proved, &mut connection.handshake) {
                    handshake.unproved = Some(Unproved::newcomer(peer, bytes));
                }
                holder.connection = Some(connection);
                self.live += 1;
                self.after_input(slot);
            }
            Err(error) => {
                let refusal = tls::last_refusal().unwrap_or_else(|| refusals::of(&error.cause));
                (self.shared).handshake_failed(NO_CONNECTION, peer, Box::default(), refusal);
                if let Some(transmit) = error.response {
                    self.respond(transmit, bytes);
                }
            }
        }
    }

    /// Answers a datagram of N bytes outside of a connection.
    fn respond(&mut self, transmit: Transmit, asked_bytes: usize) {
        let is_amplified = transmit.size > AMPLIFICATION * asked_bytes;
        self.shared.counters.amplification_stops += u64::from(is_amplified);
        if !is_amplified && self.responses.len() < MAX_RESPONSES {
            self.responses
                .push_back(Parcel::new(transmit, &self.scratch));
        }
    }

    /// Lets everything happen that is due at `now`.
    pub fn timeout(&mut self, now: Instant) {
        self.shared.now = now;
        while self.handshakes_left > 0
            && let Some(newcomer) = self.waiting.pop()
        {
            self.scratch.clear();
            self.incoming(now, newcomer, true);
        }
        // Rounded down, while deadlines are rounded up: so entries that come up are due.
        let since = now.saturating_duration_since(self.shared.origin);
        let now_us = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        while let Some(slot) = self.timers.pop_due(now_us) {
            let Some(connection) = self.slots[slot as usize].connection.as_deref_mut() else {
                continue;
            };
            if connection.timeout(&mut self.shared) {
                self.after_input(slot);
            } else {
                self.set_timer(slot);
            }
        }
    }

    /// Time of the next call of [`Driver::timeout`]; `None` for never. In the past while there are
    /// events to poll, or datagrams to send that the socket didn't refuse.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let to_poll =
            !self.shared.events.is_empty() || !self.ready.is_empty() || !self.drained.is_empty();
        let to_begin = self.waiting.len() > 0 && self.handshakes_left > 0;
        if to_poll || to_begin || (self.has_to_send() && self.rest.is_none()) {
            return Some(self.shared.now);
        }
        self.timers
            .earliest_us()
            .map(|us| self.shared.origin + Duration::from_micros(us))
    }

    /// Whether a connection may have datagrams to send.
    pub(crate) fn has_to_send(&self) -> bool {
        let has_parcels = !self.responses.is_empty() || !self.shared.released.is_empty();
        !self.dirty.is_empty() || has_parcels
    }

    /// Microseconds from the origin, rounded up.
    fn since_origin_us(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.shared.origin);
        u64::try_from(since.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
    }

    fn set_timer(&mut self, slot: u32) {
        let Some(connection) = self.slots[slot as usize].connection.as_deref_mut() else {
            return;
        };
        if connection.is_stillborn() {
            // Its last bytes were sent right before.
            self.drained.push((slot, EndpointEvent::drained()));
        }
        let at_us = connection.deadline().map(|at| self.since_origin_us(at));
        self.timers.set(slot, at_us);
    }

    /// Work after each input of a connection.
    fn after_input(&mut self, slot: u32) {
        self.endpoint_events(slot);
        let Some(connection) = self.slots[slot as usize].connection.as_deref_mut() else {
            return;
        };
        if connection.is_handshaking() {
            // At once, so that early data is read, and known as such, before the next datagram may
            // finish the handshake.
            while connection.step(&mut self.shared) {}
            self.endpoint_events(slot);
        }
        self.mark_ready(slot);
        self.mark_dirty(slot);
    }

    fn endpoint_events(&mut self, slot: u32) {
        let Some(connection) = self.slots[slot as usize].connection.as_deref_mut() else {
            return;
        };
        while let Some(event) = connection.quic.poll_endpoint_events() {
            if event.is_drained() {
                self.drained.push((slot, event));
            } else if let Some(answer) = self
                .endpoint
                .handle_event(ConnectionHandle(slot as usize), event)
            {
                connection.quic.handle_event(answer);
            }
        }
    }

    fn mark_ready(&mut self, slot: u32) {
        if let Some(connection) = self.slots[slot as usize].connection.as_deref_mut()
            && !connection.ready
        {
            connection.ready = true;
            self.ready.push_back(slot);
        }
    }

    fn mark_dirty(&mut self, slot: u32) {
        if let Some(connection) = self.slots[slot as usize].connection.as_deref_mut()
            && !connection.dirty
        {
            connection.dirty = true;
            self.dirty.push_back(slot);
        }
    }

    // --- Events ----------------------------------------------------------------------------------

    /// The next event, in order per connection.
    pub fn poll_event(&mut self) -> Option<DriverEvent> {
        loop {
            while let Some(event) = self.shared.events.pop_front() {
                if self.is_wanted(&event) {
                    return Some(event);
                }
            }
            let Some(&slot) = self.ready.front() else {
                break;
            };
            let connection = self.slots[slot as usize].connection.as_deref_mut();
            let Some(connection) = connection else {
                self.ready.pop_front();
                continue;
            };
            if !connection.step(&mut self.shared) {
                connection.ready = false;
                connection.settle_unread(&mut self.shared);
                self.ready.pop_front();
                // Held back datagrams and reads have something to say to the endpoint and the peer.
                self.endpoint_events(slot);
                self.mark_dirty(slot);
            }
        }
        self.bury();
        None
    }

    /// Whether an event still means something: after a `close` only the end does.
    fn is_wanted(&self, event: &DriverEvent) -> bool {
        match event.kind {
            EventKind::Closed { .. } | EventKind::HandshakeFailed { .. } => true,
            EventKind::Chunk { .. }
            | EventKind::Finished { .. }
            | EventKind::Aborted { .. }
            | EventKind::Stopped { .. } => {
                self.get(event.connection).is_some_and(Connected::is_heard)
            }
            _ => self.get(event.connection).is_some(),
        }
    }

    /// Forgets connections that are over.
    fn bury(&mut self) {
        for (slot, event) in self.drained.drain(..) {
            let holder = &mut self.slots[slot as usize];
            let Some(mut connection) = holder.connection.take() else {
                continue;
            };
            connection.retire(&mut self.shared);
            holder.generation = holder.generation.wrapping_add(1);
            self.live -= 1;
            self.timers.set(slot, None);
            // From here on the endpoint may use the slot again.
            self.endpoint
                .handle_event(ConnectionHandle(slot as usize), event);
        }
    }

    // --- Output ----------------------------------------------------------------------------------

    /// Sends ready bytes. Events may come up (`Writable`): [`Driver::deadline`] tells.
    ///
    /// # Parameters
    ///
    /// - `now`: must not go back.
    /// - `max_segments`: datagrams per call to the socket; 1 without GSO.
    /// - `buffer`: where datagrams are built; best kept for the next call.
    /// - `sink`: hands datagrams to the socket.
    pub fn transmit(
        &mut self,
        now: Instant,
        max_segments: usize,
        buffer: &mut Vec<u8>,
        sink: &mut dyn FnMut(&DatagramBatch<'_>) -> Sent,
    ) -> Flush {
        self.shared.now = now;
        self.handshakes_left = self.shared.config.handshakes_per_turn;
        while let Some(parcel) = self
            .rest
            .take()
            .or_else(|| self.shared.released.pop_front())
            .or_else(|| self.responses.pop_front())
        {
            if sink(&parcel.outgoing()) == Sent::Blocked {
                self.rest = Some(parcel);
                return Flush::Blocked;
            }
        }
        if std::mem::take(&mut self.is_crowded) {
            self.take_turns_by_address();
        }
        let mut bytes_left = self.shared.config.sent_per_turn_bytes;
        while let Some(slot) = self.dirty.pop_front() {
            let Some(connection) = self.slots[slot as usize].connection.as_deref_mut() else {
                continue;
            };
            if bytes_left == 0 {
                self.dirty.push_front(slot);
                self.is_crowded = true;
                return Flush::Spent;
            }
            connection.dirty = false;
            connection.flush(&mut self.shared);
            let mut sent = false;
            while let Some(parcel) = connection.unproved().and_then(Unproved::release) {
                if sink(&parcel.outgoing()) == Sent::Blocked {
                    self.rest = Some(parcel);
                    connection.dirty = true;
                    self.dirty.push_front(slot);
                    return Flush::Blocked;
                }
            }
            for visit in 0.. {
                if visit == TRANSMITS_PER_VISIT {
                    connection.dirty = true;
                    self.dirty.push_back(slot);
                    break;
                }
                buffer.clear();
                let segments = max_segments.max(1);
                let built = connection.poll_transmit(&mut self.shared, segments, buffer);
                let Some(mut transmit) = built else {
                    if connection.close_if_delivered(&mut self.shared) {
                        continue;
                    }
                    break;
                };
                if let Some(trace) = connection.tracer() {
                    trace.sent(now, transmit.size, transmit.segment_size);
                }
                sent = true;
                let built_bytes = transmit.size;
                bytes_left = bytes_left.saturating_sub(built_bytes);
                transmit.size = connection.admit(&transmit, buffer);
                let is_stopped = transmit.size < built_bytes;
                self.shared.counters.amplification_stops += u64::from(is_stopped);
                if transmit.size == 0 {
                    continue;
                }
                if sink(&outgoing(&transmit, buffer)) == Sent::Blocked {
                    self.rest = Some(Parcel::new(transmit, buffer));
                    connection.after_transmit(&self.shared, sent);
                    connection.dirty = true;
                    self.dirty.push_front(slot);
                    self.set_timer(slot);
                    return Flush::Blocked;
                }
            }
            connection.after_transmit(&self.shared, sent);
            self.endpoint_events(slot);
            self.set_timer(slot);
        }
        Flush::Complete
    }

    /// Orders the connections that have something to send, so that those of each address have their turns.
    fn take_turns_by_address(&mut self) {
        let unordered = std::mem::take(&mut self.dirty);
        let host = |slot: u32| {
            let connection = self.slots[slot as usize].connection.as_deref()?;
            Some(host_of(connection.quic.remote_address().ip()))
        };
        self.dirty = in_turns(unordered.into_iter(), host).into();
    }

    /// Refuses new connections and closes those that exist, with an application error code; their
    /// `Closed` events say [`crate::CloseReason::Shutdown`].
    pub fn shutdown(&mut self, now: Instant, code: u64) {
        self.shared.now = now;
        self.refuse_newcomers();
        for slot in 0..self.slots.len() {
            if let Some(connection) = self.slots[slot].connection.as_deref_mut() {
                connection.shut_down(&mut self.shared, code);
                self.mark_dirty(slot as u32);
            }
        }
    }

    /// Refuses new connections from where it is said, and takes all others; those that exist go on.
    pub fn refuse_peers(&mut self, refused: RefusedPeers) {
        self.refused = refused;
    }

    /// Refuses new connections for good; those that exist go on.
    pub fn refuse_newcomers(&mut self) {
        self.endpoint.set_server_config(None);
        while let Some(newcomer) = self.waiting.pop() {
            self.endpoint.ignore(newcomer.incoming);
        }
    }

    // --- Figures -----------------------------------------------------------------------------------

    /// Index of the driver's listener in the configuration.
    #[must_use]
    pub fn listener(&self) -> u16 {
        self.shared.listener
    }

    /// Number of connections, those in their handshake or draining included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.live
    }

    /// Number of slots, free ones included.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The connection in a slot now.
    pub(crate) fn current(&self, slot: usize) -> Option<Key> {
        let holder = self.slots.get(slot)?;
        holder.connection.as_ref().map(|_| Key {
            slot: slot as u32,
            generation: holder.generation,
        })
    }

    /// Whether there is no connection.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Bytes that connections hold: copies that wait to be sent or to be acknowledged, and received
    /// bytes that are not read.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.shared.pool.held.bytes() + self.shared.unread_bytes
    }

    /// Number of connections in their handshake, failed ones that still drain included.
    #[must_use]
    pub fn half_open(&self) -> usize {
        self.shared.half_open.total()
    }

    /// The driver's counts since its creation.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.counters
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("listener", &self.shared.listener)
            .field("connections", &self.live)
            .field("counters", &self.shared.counters)
            .finish_non_exhaustive()
    }
}
