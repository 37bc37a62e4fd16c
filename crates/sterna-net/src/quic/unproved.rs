//! Limit of the bytes to an unproved address: at most three times the bytes from it (RFC 9000,
//! section 8).
//!
//! The library checks that before it begins a datagram, and then fills it: it may exceed the limit
//! by almost a datagram. That datagram is held back here until more bytes arrive or the address is
//! proved.

use std::collections::VecDeque;
use std::net::SocketAddr;

use quinn_proto::Transmit;

use super::driver::Parcel;

/// Most bytes to an unproved address, as a multiple of the bytes from it.
pub(super) const AMPLIFICATION: usize = 3;

/// An address that has proved nothing.
#[derive(Debug)]
pub(super) struct Unproved {
    address: SocketAddr,
    received_bytes: usize,
    sent_bytes: usize,
    /// One datagram may go there in any case: a path challenge. The library always fills it up to
    /// 1,200 bytes (RFC 9000, section 8.2.1).
    is_challenge_due: bool,
    /// Datagrams that are held back, the oldest first. The library stops at its own limit, so that this
    /// is rarely more than one.
    held: VecDeque<Parcel>,
}

impl Unproved {
    /// A client whose first datagram came.
    pub(super) fn newcomer(address: SocketAddr, received_bytes: usize) -> Self {
        Self {
            address,
            received_bytes,
            sent_bytes: 0,
            is_challenge_due: false,
            held: VecDeque::new(),
        }
    }

    /// A client that sends from another address. `is_challenge_due` is whether a path challenge may go there in any
    /// case.
    pub(super) fn moved(address: SocketAddr, is_challenge_due: bool) -> Self {
        Self {
            is_challenge_due,
            ..Self::newcomer(address, 0)
        }
    }

    /// Bytes that have left.
    pub(super) const fn sent_bytes(&self) -> usize {
        self.sent_bytes
    }

    /// A datagram came.
    pub(super) fn received(&mut self, from: SocketAddr, bytes: usize) {
        if from == self.address {
            self.received_bytes = self.received_bytes.saturating_add(bytes);
        }
    }

    /// Counts a datagram that is to leave; false where that would be too much.
    fn admits(&mut self, bytes: usize) -> bool {
        let sent_bytes = self.sent_bytes.saturating_add(bytes);
        let most_bytes = self.received_bytes.saturating_mul(AMPLIFICATION);
        if sent_bytes > most_bytes && !self.is_challenge_due {
            return false;
        }
        self.is_challenge_due = false;
        self.sent_bytes = sent_bytes;
        true
    }

    /// Number of bytes, from the beginning, that may leave now. The rest is held back.
    pub(super) fn admit(&mut self, transmit: &Transmit, bytes: &[u8]) -> usize {
        if transmit.destination != self.address {
            return transmit.size;
        }
        let segment_bytes = transmit.segment_size.unwrap_or(transmit.size).max(1);
        let mut admitted = 0;
        for datagram in bytes[..transmit.size].chunks(segment_bytes) {
            if self.held.is_empty() && self.admits(datagram.len()) {
                admitted += datagram.len();
            } else {
                self.held.push_back(Parcel::of(transmit, datagram));
            }
        }
        admitted
    }

    /// A datagram that was held back and may leave now.
    pub(super) fn release(&mut self) -> Option<Parcel> {
        let bytes = self.held.front()?.size();
        if !self.admits(bytes) {
            return None;
        }
        self.held.pop_front()
    }

    /// Whether datagrams are held back.
    pub(super) fn holds_back(&self) -> bool {
        !self.held.is_empty()
    }

    /// The address is proved: everything that was held back may leave.
    pub(super) fn into_held(self) -> VecDeque<Parcel> {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transmit(to: SocketAddr, size: usize, segment_size: Option<usize>) -> Transmit {
        Transmit {
            destination: to,
            ecn: None,
            size,
            segment_size,
            src_ip: None,
        }
    }

    #[test]
    fn not_a_byte_more_leaves_until_more_has_come() {
        let address = SocketAddr::from(([192, 0, 2, 1], 1));
        let mut unproved = Unproved::newcomer(address, 1_200);
        let bytes = [0; 4_800];
        let batch = transmit(address, 3_590, Some(1_200));
        assert_eq!(unproved.admit(&batch, &bytes), 3_590);
        assert_eq!(unproved.admit(&transmit(address, 11, None), &bytes), 0);
        // In order: later datagrams wait, too.
        assert_eq!(unproved.admit(&transmit(address, 1, None), &bytes), 0);
        let elsewhere = SocketAddr::from(([192, 0, 2, 1], 2));
        assert_eq!(unproved.admit(&transmit(elsewhere, 9, None), &bytes), 9);
        unproved.received(elsewhere, 1_200);
        assert!(unproved.release().is_none());
        unproved.received(address, 1);
        assert_eq!(unproved.release().map(|parcel| parcel.size()), Some(11));
        assert_eq!(unproved.release().map(|parcel| parcel.size()), Some(1));
        assert!(unproved.release().is_none());
        assert_eq!(unproved.sent_bytes, 3_602);
        assert_eq!(unproved.admit(&transmit(address, 2, None), &bytes), 0);
        assert_eq!(unproved.into_held().len(), 1);
    }

    #[test]
    fn a_moved_client_gets_one_challenge() {
        let address = SocketAddr::from(([192, 0, 2, 1], 1));
        let mut unproved = Unproved::moved(address, true);
        unproved.received(address, 57);
        let bytes = [0; 2_400];
        let batch = transmit(address, 2_400, Some(1_200));
        assert_eq!(unproved.admit(&batch, &bytes), 1_200);
        unproved.received(address, 743);
        assert_eq!(unproved.release().map(|parcel| parcel.size()), Some(1_200));
    }
}
