//! Numbers of streams (RFC 9000, section 2.1), and which of them have been seen.

use std::fmt;

/// A QUIC stream within a connection. Its two low bits say who opened it and whether both ends send.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

impl StreamId {
    /// Whether both ends may send.
    #[must_use]
    pub const fn is_bidirectional(self) -> bool {
        self.0 & 2 == 0
    }

    /// Whether the client opened the stream.
    #[must_use]
    pub const fn is_client_initiated(self) -> bool {
        self.0 & 1 == 0
    }

    /// Whether the stream can carry a request (RFC 9114, section 6.1).
    #[must_use]
    pub const fn is_request(self) -> bool {
        self.is_bidirectional() && self.is_client_initiated()
    }
}

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

/// Which streams of one kind the peer has opened.
///
/// Streams are opened in order but may be seen in any. Numbers below the highest that were not seen
/// yet are remembered. So a late stream is told from one that is over.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The lowest stream above all that were heard of.
    next: u64,
    /// Streams below it that were not.
    skipped: Vec<u64>,
}

/// Knowledge of a stream before its input is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sighting {
    /// It was not heard of before.
    New,
    /// It was: it is open or over.
    Known,
    /// It is new and leaves more streams out than may be remembered.
    TooMany,
}

impl Seen {
    /// No stream; `first` is the first of its kind.
    pub(crate) const fn new(first: u64) -> Self {
        Self {
            next: first,
            skipped: Vec::new(),
        }
    }

    /// The lowest stream above all that were heard of.
    pub(crate) const fn next(&self) -> StreamId {
        StreamId(self.next)
    }

    /// Whether a stream may still be heard of for the first time.
    pub(crate) fn may_come(&self, id: StreamId) -> bool {
        id.0 >= self.next || self.skipped.binary_search(&id.0).is_ok()
    }

    /// Hears of a stream.
    pub(crate) fn see(&mut self, id: StreamId, max_skipped: u32) -> Sighting {
        if id.0 < self.next {
            return match self.skipped.binary_search(&id.0) {
                Ok(at) => {
                    self.skipped.remove(at);
                    Sighting::New
                }
                Err(_) => Sighting::Known,
            };
        }
        let skipped = (id.0 - self.next) / 4;
        if skipped + self.skipped.len() as u64 > u64::from(max_skipped) {
            return Sighting::TooMany;
        }
        self.skipped
            .extend((0..skipped).map(|nth| self.next + 4 * nth));
        self.next = id.0 + 4;
        Sighting::New
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_streams_are_new_once() {
        let mut seen = Seen::new(0);
        assert_eq!(seen.see(StreamId(8), 2), Sighting::New);
        assert!(seen.may_come(StreamId(0)) && seen.may_come(StreamId(12)));
        assert!(!seen.may_come(StreamId(8)));
        assert_eq!(seen.see(StreamId(4), 2), Sighting::New);
        assert_eq!(seen.see(StreamId(4), 2), Sighting::Known);
        assert_eq!(seen.see(StreamId(8), 2), Sighting::Known);
        assert_eq!(seen.see(StreamId(20), 2), Sighting::TooMany);
        assert_eq!(seen.see(StreamId(16), 2), Sighting::New);
        assert_eq!(seen.see(StreamId(0), 2), Sighting::New);
        assert_eq!(seen.next(), StreamId(20));
    }
}
