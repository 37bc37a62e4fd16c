//! QUIC in the shard's turn: datagrams to the drivers, their events to the handler.

use std::time::{Duration, Instant};

use super::{ENDS_TOLD, Shard};
use crate::counters::RefusedConnection;
use crate::quic::{DriverEvent, EventKind, Key, TurnedAway};
use crate::udp::canonical;
use crate::{Chunk, ConnectionId, Handler, StreamEnd, TransportKind};

/// Events that are handed over between two looks at the time.
const EVENTS_BETWEEN_LOOKS: usize = 16;

impl<H: Handler> Shard<H> {
    /// Notes the kernel's report about a UDP socket.
    pub(super) fn note_udp(&mut self, index: usize, event: &mio::event::Event) {
        if let Some(udp) = self.core.udp.get_mut(index) {
            udp.readable |= event.is_readable() || event.is_error();
            if event.is_writable() {
                udp.unblock();
            }
        }
    }

    /// Takes datagrams and lets deadlines pass; hands the events to the handler.
    pub(super) fn receive_datagrams(&mut self) {
        self.are_datagrams_held_back = false;
        if self.core.udp.is_empty() {
            return;
        }
        let now = self.core.now;
        let until = Instant::now() + Duration::from_millis(self.core.config.reading_per_turn_ms);
        // Input of the last turn goes first, and nothing is added to it.
        let mut is_over = std::mem::take(&mut self.is_quic_behind);
        let mut are_events_left = false;
        for batch in 0..self.core.config.datagram_batches_per_turn {
            let is_readable = self.core.udp.iter().any(|udp| udp.readable);
            if is_over {
                break;
            }
            if !self.handler.takes_input(&mut self.core) {
                self.are_datagrams_held_back = batch == 0 && is_readable;
                self.is_held_back |= is_readable;
                break;
            }
            for udp in &mut self.core.udp {
                if batch == 0 {
                    udp.take_strays(now);
                }
                udp.receive(now, &mut self.scratch.udp);
            }
            self.has_read |= is_readable;
            // Letters posted before the peers sent these datagrams go first.
            self.mail();
            self.drain_quic(Some(until));
            are_events_left = self.has_quic_events;
            is_over = !is_readable || are_events_left || Instant::now() >= until;
        }
        for udp in &mut self.core.udp {
            if udp.driver.deadline().is_some_and(|due: Instant| due <= now) {
                udp.driver.timeout(now);
            }
        }
        if !are_events_left {
            self.drain_quic(Some(until));
        }
        self.tell_turned_away();
    }

    /// Counts newcomers whom the drivers have turned away, and tells the operator.
    fn tell_turned_away(&mut self) {
        for socket in 0..self.core.udp.len() {
            let driver = &mut self.core.udp[socket].driver;
            let Some(TurnedAway { times, last }) = driver.take_turned_away() else {
                continue;
            };
            let (peer, last_reason) = last;
            let from = (driver.listener(), TransportKind::Quic, canonical(peer));
            for (reason, times) in RefusedConnection::ALL.into_iter().zip(times) {
                if reason != last_reason && times > 0 {
                    (self.core.counters.listener(from.0)).refuse(reason, times);
                }
            }
            let times = times[last_reason as usize];
            (self.core).turn_away(from, (last_reason, times), None, None);
        }
    }

    /// Hands all events of the drivers to the handler, but for those behind more ends of connections than it takes now, and
    /// those that are left at a time.
    pub(super) fn drain_quic(&mut self, until: Option<Instant>) {
        let (mut told, mut ends) = (0, 0);
        self.has_quic_events = false;
        for socket in 0..self.core.udp.len() {
            while let Some((id, event)) = self.core.udp[socket].poll_event(socket) {
                let is_end = matches!(event.kind, EventKind::Closed { .. });
                self.tell(socket, id, event);
                told += 1;
                ends += usize::from(is_end);
                self.is_quic_behind = told % EVENTS_BETWEEN_LOOKS == 0
                    && until.is_some_and(|until| Instant::now() >= until);
                let are_ends_left =
                    is_end && ends >= ENDS_TOLD && !self.handler.takes_ends(&mut self.core);
                if self.is_quic_behind || are_ends_left {
                    self.has_quic_events = true;
                    return;
                }
            }
        }
    }

    fn tell(&mut self, socket: usize, id: ConnectionId, event: DriverEvent) {
        let key: Key = event.connection;
        let (handler, core) = (&mut self.handler, &mut self.core);
        match event.kind {
            EventKind::Opened { info, confirmed } => {
                core.udp[socket].remember(key, info);
                handler.opened(core, id);
                // A connection that opens with early data is confirmed by an event of its own.
                let _ = confirmed;
            }
            EventKind::HandshakeFailed { failed } => handler.handshake_failed(core, *failed),
            EventKind::Chunk {
                stream,
                bytes,
                early,
                confirmed,
            } => {
                let chunk = Chunk {
                    stream,
                    bytes: &bytes,
                    early,
                    confirmed,
                };
                handler.received(core, id, chunk);
            }
            EventKind::Finished { stream } => {
                handler.stream_ended(core, id, stream, StreamEnd::Finished);
            }
            EventKind::Aborted { stream, code } => {
                handler.stream_ended(core, id, stream, StreamEnd::Aborted(code));
            }
            EventKind::Stopped { stream, code } => {
                handler.stream_ended(core, id, stream, StreamEnd::Stopped(code));
            }
            EventKind::Datagram {
                bytes,
                early,
                confirmed,
            } => {
                let chunk = Chunk {
                    stream: crate::StreamId::FIRST,
                    bytes: &bytes,
                    early,
                    confirmed,
                };
                handler.datagram(core, id, chunk);
            }
            EventKind::Confirmed => {
                core.udp[socket].proved(key);
                handler.confirmed(core, id);
            }
            EventKind::Writable => handler.writable(core, id),
            EventKind::PeerAddressChanged { peer } => {
                core.udp[socket].moved(key, peer);
                handler.migrated(core, id);
            }
            EventKind::Closed { reason } => {
                handler.closed(core, id, &reason);
                core.udp[socket].forget(key);
            }
        }
    }
}
