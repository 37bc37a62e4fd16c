//! The stamp in a payload: it names the message, and shows whether a byte has changed.

use std::fmt::Write as _;

/// Most bytes of one payload in a hundred; so that records of the log span its blocks.
const MAX_BYTES: u64 = 24_000;
/// Most bytes of the others.
const MAX_USUAL_BYTES: u64 = 400;

/// The name of a message: its publisher and its sequence. The payload follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stamp {
    /// Number of the publisher in the ledger.
    pub publisher: u32,
    /// Number of the message among those of the publisher, from 0.
    pub sequence: u32,
}

impl Stamp {
    /// The payload: the stamp in digits, and bytes that follow from it.
    #[must_use]
    pub fn payload(self) -> Vec<u8> {
        let mut filler = Filler(u64::from(self.publisher) << 32 | u64::from(self.sequence));
        let is_long = filler.next().is_multiple_of(100);
        let limit = if is_long { MAX_BYTES } else { MAX_USUAL_BYTES };
        let filler_bytes = filler.next() % limit;
        let mut text = String::new();
        let _ = write!(text, "{} {} ", self.publisher, self.sequence);
        let mut payload = text.into_bytes();
        for _ in 0..filler_bytes {
            payload.push(b'a' + (filler.next() % 26) as u8);
        }
        payload
    }

    /// Reads a payload; `None` where it is not exactly one that a stamp has.
    #[must_use]
    pub fn of(payload: &[u8]) -> Option<Self> {
        let mut words = payload.splitn(3, |byte| *byte == b' ');
        let mut number = || std::str::from_utf8(words.next()?).ok()?.parse().ok();
        let stamp = Self {
            publisher: number()?,
            sequence: number()?,
        };
        (stamp.payload() == payload).then_some(stamp)
    }
}

/// Numbers that look random and follow from one (SplitMix64).
struct Filler(u64);

impl Filler {
    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_says_whose_it_is_unless_a_byte_changed() {
        let mut largest = 0;
        for sequence in 0..2_000 {
            let stamp = Stamp {
                publisher: 7,
                sequence,
            };
            let mut payload = stamp.payload();
            assert_eq!(Stamp::of(&payload), Some(stamp));
            largest = largest.max(payload.len());
            payload.push(b'x');
            assert_eq!(Stamp::of(&payload), None, "too long");
            payload.pop();
            if let Some(last) = payload.last_mut() {
                *last ^= 1;
            }
            assert_eq!(Stamp::of(&payload), None, "a bit flipped");
        }
        assert!(largest > 4_096, "{largest}");
        assert_eq!(Stamp::of(b""), None);
        assert_eq!(Stamp::of(b"7"), None);
    }
}
