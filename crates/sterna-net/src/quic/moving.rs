//! A peer that sends from another address: what goes there before it has proved that it reads there, and how that shows.

use std::net::SocketAddr;

use quinn_proto::{Connection, Transmit};

use super::connection::{Connected, Shared};
use super::event::EventKind;
use super::figures::{Figures, eliciting};
use super::unproved::{AMPLIFICATION, Unproved};

/// Datagrams of a congestion window that has room for others beside one that is lost without a timer. The least window is
/// two of them (RFC 9002, section 7.2).
const ROOM_DATAGRAMS: u64 = 4;

/// A peer whose new address is not validated yet.
pub(super) struct Moving {
    /// The address that the handler knows.
    known: SocketAddr,
    /// Bytes to the new address.
    pub(super) unproved: Unproved,
    /// Those of them that left when the peer seemed to be there before.
    earlier_bytes: usize,
    /// Responses to path challenges at the last look.
    responses: u64,
    /// Whether one has come that may be the right one.
    is_answered: bool,
}

/// Counts of packets that were built, which show whether the library takes an address for validated.
///
/// The library (quinn-proto 0.11.19, `populate_packet`) puts a path challenge into each packet to an address until
/// it has got the right response from there. It does not tell of that otherwise. It also counts wrong responses.
/// Only probes of the size of datagrams carry no challenge in any case.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Built {
    challenges: u64,
    size_probes: u64,
}

impl Built {
    fn of(quic: &Connection) -> Self {
        let stats = quic.stats();
        Self {
            challenges: stats.frame_tx.path_challenge,
            size_probes: stats.path.sent_plpmtud_probes,
        }
    }
}

impl Moving {
    /// A peer that has left the address that the handler knows. To the new one go three times the bytes that came from
    /// there (RFC 9000, section 8). The limit holds over all times that the peer seems to be there: the library gives a
    /// new address up after a while, and begins again with the next datagram.
    ///
    /// A path challenge may have fewer than 1,200 bytes where that is more than the limit (section 8.2.1), but the library
    /// fills each. So one may leave in any case, if the handler wants that
    /// ([`challenge_at_once`](super::QuicConfig::challenge_at_once)). But all bytes to addresses without a proof keep to
    /// three times the bytes that the peer has sent, from any address. An answer earns more than the next challenge
    /// costs. A peer that forges addresses soon has nothing left.
    fn from(
        known: SocketAddr,
        quic: &Connection,
        (figures, at_once): (&Figures, bool),
        mut unproved: Unproved,
    ) -> Self {
        let stats = quic.stats();
        let received_bytes = stats.udp_rx.bytes + u64::from(figures.first_bytes);
        let unproved_bytes = figures.unproved_bytes + u64::from(stats.path.current_mtu);
        unproved.is_challenge_due =
            at_once && unproved_bytes <= AMPLIFICATION as u64 * received_bytes;
        Self {
            known,
            earlier_bytes: unproved.sent_bytes(),
            unproved,
            responses: stats.frame_rx.path_response,
            is_answered: false,
        }
    }

    /// The address that the peer has proved before.
    pub(super) const fn known(&self) -> SocketAddr {
        self.known
    }

    /// Takes note of a datagram from the new address; returns whether it has a response to a challenge. That need
    /// not be the right one, nor be to the challenge of this address.
    fn heard(&mut self, quic: &Connection) -> bool {
        let responses = quic.stats().frame_rx.path_response;
        let has_response = responses > self.responses;
        self.responses = responses;
        self.is_answered |= has_response;
        has_response
    }

    /// Takes note of packets to the new address that follow what was `built` before; returns whether they show that
    /// the answer was the right one.
    fn is_proved(&mut self, quic: &Connection, built: Built) -> bool {
        let now = Built::of(quic);
        if now.challenges != built.challenges {
            self.is_answered = false;
        }
        self.is_answered && now == built && !quic.is_closed()
    }
}

impl Connected {
    /// Frames so far that ask for an acknowledgement, while the peer's address is challenged; wraps.
    pub(super) fn asked_while_challenging(&self) -> Option<u32> {
        (self.is_challenging).then(|| eliciting(&self.quic.stats().frame_rx))
    }

    /// Takes note of a datagram from the given address, before which the peer had `asked` so often.
    pub(super) fn heed_challenge(&mut self, from: SocketAddr, asked: Option<u32>) {
        let is_here = from == self.quic.remote_address();
        let moving = self.moving.as_mut();
        let is_answered = moving.is_some_and(|moving| is_here && moving.heard(&self.quic));
        let mut moving = self.moving.iter();
        if is_answered && moving.any(|moving| moving.unproved.holds_back()) {
            // The next packet shows whether that was the right answer: as a rule, the acknowledgement of the answer.
            // Datagrams that are held back wait for it, and a PING makes it leave at once.
            self.quic.ping();
        }
        if asked.is_some() && asked != self.asked_while_challenging() {
            self.elicit(is_answered);
        }
    }

    /// Has the acknowledgement of what came from a challenged address ask for one itself.
    ///
    /// The library (quinn-proto 0.11.19) decides that in `poll_transmit`, and `populate_packet` adds the path challenge
    /// and its padding later. So an acknowledgement with a challenge counts as bytes in flight, and sets no loss timer.
    /// Where such packets are lost and fill the window, nothing is ever sent again. A PING makes them count in full.
    fn elicit(&mut self, is_answered: bool) {
        // An answer is the right one as a rule, and ends the challenge. The acknowledgement of a wrong one leaves room in a
        // window of that size, and every other client is spared a packet.
        let room_bytes = ROOM_DATAGRAMS * u64::from(self.quic.stats().path.current_mtu);
        if !is_answered || self.quic.congestion_state().window() < room_bytes {
            self.quic.ping();
        }
    }

    /// Builds the next datagrams, and notices by them that the client has proved its new address.
    pub(super) fn poll_transmit(
        &mut self,
        shared: &mut Shared,
        most: usize,
        buffer: &mut Vec<u8>,
    ) -> Option<Transmit> {
        if !self.is_challenging {
            return self.build(shared, most, buffer);
        }
        let built = Built::of(&self.quic);
        let transmit = self.build(shared, most, buffer)?;
        if transmit.destination == self.quic.remote_address() {
            self.is_challenging = Built::of(&self.quic) != built;
            if let Some(moving) = self.moving.take_if(|it| it.is_proved(&self.quic, built)) {
                shared.released.extend(moving.unproved.into_held());
                self.moved(shared);
            }
        }
        Some(transmit)
    }

    /// Notices that the peer sends from another address. Also notices that the library returned to
    /// the old one because the new one proved nothing.
    pub(super) fn notice_address(&mut self, shared: &Shared, before: SocketAddr) {
        let peer = self.quic.remote_address();
        if peer == before {
            return;
        }
        self.is_challenging = true;
        let known = self.moving.take().map_or(before, |moving| {
            let Moving {
                known,
                unproved,
                earlier_bytes,
                ..
            } = *moving;
            self.figures.unproved_bytes += (unproved.sent_bytes() - earlier_bytes) as u64;
            self.strays().put(unproved);
            known
        });
        if peer != known {
            let unproved = self.strays().take(peer);
            let terms = (&self.figures, shared.config.challenge_at_once);
            self.moving = Some(Box::new(Moving::from(known, &self.quic, terms, unproved)));
        }
        // Bytes in flight count per path, and the library (quinn-proto 0.11.19) leaves the loss
        // timer unchanged. With nothing in flight on the current path, losses of the other one
        // would not be sent again. A PING puts bytes in flight.
        self.quic.ping();
        if let Some(trace) = &mut self.trace {
            trace.path(shared.now, peer);
        }
    }

    /// Tells the handler of the peer's address.
    pub(super) fn moved(&mut self, shared: &mut Shared) {
        let peer = self.quic.remote_address();
        self.figures.migrations = self.figures.migrations.saturating_add(1);
        shared.counters.migrations += 1;
        self.emit(shared, EventKind::PeerAddressChanged { peer });
    }
}
