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
    pub(super) is_challenge_due: bool,
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

    /// Whether this is of an address.
    pub(super) fn is_of(&self, address: SocketAddr) -> bool {
        self.address == address
    }

    /// Bytes that have left.
    pub(super) const fn sent_bytes(&self) -> usize {
        self.sent_bytes
    }

    /// The same without what is held back.
    fn emptied(mut self) -> Self {
        self.is_challenge_due = false;
        self.held = VecDeque::new();
        self
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

/// Addresses of one connection that have proved nothing, beside the one where its peer seems to be: it was there before,
/// or asks from there whether the path works.
#[derive(Debug, Default)]
pub(super) struct Strays(VecDeque<Unproved>);

impl Strays {
    /// A peer with more of them forges them, or begins anew with the first.
    const MOST: usize = 8;

    /// Puts an address away, which may come again.
    pub(super) fn put(&mut self, unproved: Unproved) {
        if self.0.len() == Self::MOST {
            self.0.pop_front();
        }
        self.0.push_back(unproved.emptied());
    }

    /// Takes out what was put away of an address, or begins with it.
    pub(super) fn take(&mut self, address: SocketAddr) -> Unproved {
        let at = self.0.iter().position(|stray| stray.is_of(address));
        let known = at.and_then(|at| self.0.remove(at));
        known.unwrap_or_else(|| Unproved::newcomer(address, 0))
    }

    /// A datagram came.
    pub(super) fn received(&mut self, from: SocketAddr, bytes: usize) {
        let mut stray = self.take(from);
        stray.received(from, bytes);
        self.put(stray);
    }

    /// Number of bytes, from the beginning, that may leave now. The rest is not sent: who asks for it asks again.
    pub(super) fn admit(&mut self, transmit: &Transmit, bytes: &[u8]) -> usize {
        let mut stray = self.take(transmit.destination);
        let admitted = stray.admit(transmit, bytes);
        self.put(stray);
        admitted
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
        let mut unproved = Unproved::newcomer(address, 0);
        unproved.is_challenge_due = true;
        unproved.received(address, 57);
        let bytes = [0; 2_400];
        let batch = transmit(address, 2_400, Some(1_200));
        assert_eq!(unproved.admit(&batch, &bytes), 1_200);
        unproved.received(address, 743);
        assert_eq!(unproved.release().map(|parcel| parcel.size()), Some(1_200));
    }

    #[test]
    fn an_address_that_comes_again_goes_on_where_it_was() {
        let address = |port: u16| SocketAddr::from(([192, 0, 2, 1], port));
        let bytes = [0; 1_200];
        let mut strays = Strays::default();
        strays.received(address(1), 300);
        assert_eq!(strays.admit(&transmit(address(1), 1_200, None), &bytes), 0);
        strays.received(address(1), 100);
        let mut unproved = strays.take(address(1));
        let challenge = transmit(address(1), 1_200, None);
        assert_eq!(unproved.admit(&challenge, &bytes), 1_200);
        assert_eq!(unproved.admit(&challenge, &bytes), 0);
        strays.put(unproved);
        assert!(
            !strays.take(address(1)).holds_back(),
            "that was of its time"
        );
        for port in 2..100 {
            strays.received(address(port), 400);
        }
        assert_eq!(strays.0.len(), Strays::MOST);
    }
}
