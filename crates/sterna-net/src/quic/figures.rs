//! Figures that a connection's statistics need and the library does not count.

use std::time::Instant;

use quinn_proto::{Connection, Dir, FrameStats};
use sterna_quic::Meter;

use super::connection::{Connected, Shared};
use crate::{EarlyData, PathStatistics};

/// Least time between two updates of the memory of a path in use.
const SAVE_INTERVAL_MS: u32 = 5_000;

/// Counts of one connection.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Figures {
    pub(super) received_payload_bytes: u64,
    pub(super) sent_payload_bytes: u64,
    pub(super) migrations: u32,
    /// Bytes to addresses that the peer has left without a proof.
    pub(super) unproved_bytes: u64,
    probe_timeouts: u32,
    /// Frames sent so far that ask for an acknowledgement; wraps.
    eliciting: u32,
    /// When the last of them was sent, in milliseconds of the driver's clock; wraps.
    elicited_ms: u32,
    /// When the path was last remembered, in milliseconds of the driver's clock; wraps.
    saved_ms: u32,
    /// The congestion window then.
    saved_window: u32,
    open_streams: u16,
    /// Length of the client's first datagram, which the library's figures leave out.
    pub(super) first_bytes: u16,
    /// Whether a timer has just come up that may have been the probe timeout.
    suspected: bool,
    /// Whether the client sent 0-RTT packets.
    pub(super) early_seen: bool,
    /// Whether the server had the keys to read them.
    pub(super) early_keys: bool,
    pub(super) resumed: bool,
}

/// Frames sent, or received, that ask for an acknowledgement (RFC 9000, section 13.2).
pub(super) fn eliciting(counted: &FrameStats) -> u32 {
    let frames = [
        u64::from(counted.handshake_done),
        counted.ack_frequency,
        counted.crypto,
        counted.data_blocked,
        counted.datagram,
        counted.immediate_ack,
        counted.max_data,
        counted.max_stream_data,
        counted.max_streams_bidi,
        counted.max_streams_uni,
        counted.new_connection_id,
        counted.new_token,
        counted.path_challenge,
        counted.path_response,
        counted.ping,
        counted.reset_stream,
        counted.retire_connection_id,
        counted.stream,
        counted.stop_sending,
        counted.stream_data_blocked,
        counted.streams_blocked_bidi,
        counted.streams_blocked_uni,
    ];
    frames
        .iter()
        .fold(0u32, |sum, n| sum.wrapping_add(*n as u32))
}

impl Figures {
    /// The fate of early data.
    pub(super) const fn early_data(&self) -> EarlyData {
        match (self.early_seen, self.early_keys) {
            (false, _) => EarlyData::None,
            (true, true) => EarlyData::Accepted,
            (true, false) => EarlyData::Rejected,
        }
    }

    /// Whether it is time to remember the path. A client that vanishes then returns with a memory
    /// of some seconds before. A window that did not change teaches nothing; that of a client with
    /// little traffic never does.
    fn is_to_save(&mut self, now_ms: u32, window: u64) -> bool {
        let window = u32::try_from(window).unwrap_or(u32::MAX);
        let due =
            window != self.saved_window && now_ms.wrapping_sub(self.saved_ms) >= SAVE_INTERVAL_MS;
        if due {
            self.saved_ms = now_ms;
            self.saved_window = window;
        }
        due
    }

    /// The client's first datagram, and whether early data came with it.
    pub(super) fn first_datagram(&mut self, bytes: usize, early: bool) {
        self.first_bytes = u16::try_from(bytes).unwrap_or(u16::MAX);
        self.early_seen = early;
    }

    /// Notes that a timer has come up, and losses before and after.
    pub(super) fn after_timer(&mut self, lost_before: u64, quic: &Connection) {
        self.suspected |= !quic.is_closed() && quic.stats().path.lost_packets == lost_before;
    }

    /// Whether everything that asks for an acknowledgement has one, as far as it was sent.
    fn is_settled(&self, quic: &Connection, origin: Instant) -> bool {
        if eliciting(&quic.stats().frame_tx) != self.eliciting {
            return false; // sent in this very turn
        }
        let meter = Meter::of(quic);
        let Some(acknowledged) = meter.acknowledged() else {
            return self.eliciting == 0;
        };
        let at_ms = acknowledged.saturating_duration_since(origin).as_millis() as u32;
        // Bytes of the same millisecond were sent later.
        let since_ms = at_ms.wrapping_sub(self.elicited_ms).cast_signed();
        meter.is_settled() && since_ms > 0
    }

    /// Updates the figures after the connection's turn; returns its congestion window.
    fn after_sending(&mut self, quic: &Connection, now_ms: u32, keep_alive_ms: u32) -> u64 {
        let stats = quic.stats();
        let eliciting = eliciting(&stats.frame_tx);
        let suspected = std::mem::take(&mut self.suspected);
        if eliciting != self.eliciting {
            let since_ms = now_ms.wrapping_sub(self.elicited_ms);
            // The other timers that make a connection send are pacing, which lets pass no round
            // trip, and the keep-alive.
            let silent = u128::from(since_ms) + 1 >= stats.path.rtt.as_millis();
            if suspected && self.eliciting != 0 && silent && since_ms < keep_alive_ms {
                self.probe_timeouts = self.probe_timeouts.saturating_add(1);
            }
            self.eliciting = eliciting;
            self.elicited_ms = now_ms;
        }
        stats.path.cwnd
    }
}

impl Connected {
    /// [`crate::Network::path`].
    pub(super) fn path(&self) -> PathStatistics {
        let stats = self.quic.stats();
        let us = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        PathStatistics {
            rtt_us: us(stats.path.rtt),
            min_rtt_us: us(stats.path.min_rtt),
            rtt_variance_us: us(Meter::of(&self.quic).variance()),
            lost_packets: stats.path.lost_packets,
            lost_bytes: stats.path.lost_bytes,
            probe_timeouts: self.figures.probe_timeouts,
            congestion_window_bytes: stats.path.cwnd,
            mtu_bytes: stats.path.current_mtu.into(),
            received_bytes: stats.udp_rx.bytes + u64::from(self.figures.first_bytes),
            sent_bytes: stats.udp_tx.bytes,
            received_datagrams: stats.udp_rx.datagrams + 1,
            sent_datagrams: stats.udp_tx.datagrams,
            received_payload_bytes: self.figures.received_payload_bytes,
            sent_payload_bytes: self.figures.sent_payload_bytes,
            early_data: self.figures.early_data(),
            resumed: self.figures.resumed,
            migrations: self.figures.migrations,
            open_streams: self.figures.open_streams.into(),
        }
    }

    /// Whether everything that was sent and asks for an acknowledgement has one.
    pub(super) fn is_settled(&self, shared: &Shared) -> bool {
        self.figures.is_settled(&self.quic, shared.origin)
    }

    /// Takes note of the connection's turn, and whether something was sent in it.
    pub(super) fn after_transmit(&mut self, shared: &Shared, sent: bool) {
        let streams = self.quic.streams();
        let open = [Dir::Bi, Dir::Uni].map(|dir| streams.remote_open_streams(dir));
        self.figures.open_streams = u16::try_from(open[0] + open[1]).unwrap_or(u16::MAX);
        self.figures.suspected &= sent;
        if !sent {
            return;
        }
        let keep_alive_ms = match shared.config.settings.keep_alive_interval_ms {
            0 => u32::MAX,
            ms => u32::try_from(ms).unwrap_or(u32::MAX),
        };
        let now_ms = shared.clock_ms();
        let window = self
            .figures
            .after_sending(&self.quic, now_ms, keep_alive_ms);
        if self.ticket.is_some() && self.figures.is_to_save(now_ms, window) {
            self.remember_path(shared);
        }
        self.trace_metrics(shared);
    }
}

/// Whether a datagram carries 0-RTT packets, alone or behind packets of the handshake (RFC 9000,
/// sections 12.2 and 17.2). Unencrypted fields show them.
pub(super) fn carries_early_data(datagram: &[u8]) -> bool {
    const INITIAL: u8 = 0;
    const ZERO_RTT: u8 = 1;
    const HANDSHAKE: u8 = 2;
    let mut rest = datagram;
    while let Some(&first) = rest.first() {
        // The second bit may be anything (RFC 9287).
        if first & 0x80 == 0 {
            return false;
        }
        let kind = first >> 4 & 3;
        if kind == ZERO_RTT {
            return true;
        }
        if kind != INITIAL && kind != HANDSHAKE {
            return false;
        }
        let Some(next) = after(rest, kind == INITIAL) else {
            return false;
        };
        rest = next;
    }
    false
}

/// The packets behind a packet in its datagram; Initial packets have a token.
fn after(packet: &[u8], has_token: bool) -> Option<&[u8]> {
    let mut rest = packet.get(5..)?;
    for _ in 0..2 {
        let (&length, after) = rest.split_first()?;
        rest = after.get(usize::from(length)..)?;
    }
    if has_token {
        let token = varint(&mut rest)?;
        rest = rest.get(token..)?;
    }
    let length = varint(&mut rest)?;
    rest.get(length..)
}

/// A variable-length integer (RFC 9000, section 16).
fn varint(bytes: &mut &[u8]) -> Option<usize> {
    let length = 1usize << (bytes.first()? >> 6);
    let (encoded, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    let value = encoded
        .iter()
        .fold(0u64, |value, byte| value << 8 | u64::from(*byte));
    usize::try_from(value & (u64::MAX >> (66 - 8 * length))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_data_is_found_behind_an_initial_packet() {
        let mut datagram = vec![0xc3, 0, 0, 0, 1, 2, 7, 7, 1, 9, 0, 0x40, 3, 1, 2, 3];
        assert!(!carries_early_data(&datagram));
        datagram.push(0xd0);
        assert!(carries_early_data(&datagram));
        for cut in 0..datagram.len() - 1 {
            assert!(!carries_early_data(&datagram[..cut]), "{cut}");
        }
        assert!(carries_early_data(&[0xd1, 0, 0, 0, 1]));
        assert!(carries_early_data(&[0x91, 0, 0, 0, 1]));
        assert!(!carries_early_data(&[0xe1, 0, 0, 0, 1]));
        assert!(carries_early_data(&[0xe1, 0, 0, 0, 1, 0, 0, 1, 9, 0xd1]));
        assert!(!carries_early_data(&[0x40, 0xd0]));
    }

    proptest::proptest! {
        /// With any claimed lengths in a datagram.
        #[test]
        fn no_datagram_is_too_strange(
            mut bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 1..80),
            kind in 0u8..4,
        ) {
            bytes[0] = 0xc0 | kind << 4;
            let early = carries_early_data(&bytes);
            proptest::prop_assert!(early || kind != 1);
            proptest::prop_assert!(!early || kind != 3, "nothing follows a Retry");
        }
    }

    #[test]
    fn integers_of_any_length_are_read() {
        for (encoded, value) in [
            (&[0x25][..], 37),
            (&[0x7b, 0xbd], 15_293),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (
                &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c],
                151_288_809_941_952_652,
            ),
        ] {
            let mut rest = encoded;
            assert_eq!(varint(&mut rest), Some(value));
            assert!(rest.is_empty());
        }
    }
}
