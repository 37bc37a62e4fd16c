//! Hashing of strings that clients choose.
//!
//! A fixed hash would let a client pick strings that collide and make every lookup linear. This one
//! is keyed with a secret; multiplying and folding is as fast as the unkeyed hash it replaces.
//! Nothing iterates over a table that uses it, so the key never changes behaviour.

use std::hash::{BuildHasher, Hasher};

const MIX_1: u64 = 0x9e37_79b9_7f4a_7c15;
const MIX_2: u64 = 0xa076_1d64_78bd_642f;
const MIX_3: u64 = 0xe703_7ed1_a0b4_28db;

fn fold(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    (product as u64) ^ ((product >> 64) as u64)
}

/// Makes hashers that share a secret.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyedState {
    start: u64,
    secret: u64,
}

impl KeyedState {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            start: fold(seed ^ MIX_1, MIX_2),
            secret: fold(seed ^ MIX_3, MIX_1) | 1,
        }
    }

    /// The hash of a string on its own.
    pub(crate) fn hash_text(self, text: &str) -> u64 {
        self.hash_bytes(text.as_bytes())
    }

    /// As [`hash_text`](Self::hash_text).
    pub(crate) fn hash_bytes(self, bytes: &[u8]) -> u64 {
        let mut hasher = self.build_hasher();
        hasher.write(bytes);
        hasher.finish()
    }
}

impl BuildHasher for KeyedState {
    type Hasher = KeyedHasher;

    fn build_hasher(&self) -> KeyedHasher {
        KeyedHasher {
            state: self.start,
            secret: self.secret,
        }
    }
}

/// See [`KeyedState`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyedHasher {
    state: u64,
    secret: u64,
}

fn word(bytes: &[u8]) -> u64 {
    let mut buffer = [0; 8];
    buffer.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(buffer)
}

fn half_word(bytes: &[u8]) -> u64 {
    let mut buffer = [0; 4];
    buffer.copy_from_slice(&bytes[..4]);
    u64::from(u32::from_le_bytes(buffer))
}

impl KeyedHasher {
    fn mix(&mut self, low: u64, high: u64) {
        self.state = fold(low ^ self.state, high ^ self.secret);
    }
}

impl Hasher for KeyedHasher {
    fn write(&mut self, bytes: &[u8]) {
        let len = bytes.len();
        let mut rest = bytes;
        while rest.len() > 16 {
            self.mix(word(rest), word(&rest[8..]));
            rest = &rest[16..];
        }
        // The last 1 to 16 bytes, read as two words that may overlap.
        let (low, high) = match rest.len() {
            8.. => (word(rest), word(&rest[rest.len() - 8..])),
            4..=7 => (half_word(rest), half_word(&rest[rest.len() - 4..])),
            1..=3 => (
                u64::from(rest[0]) | (u64::from(rest[rest.len() / 2]) << 8),
                u64::from(rest[rest.len() - 1]),
            ),
            0 => (0, 0),
        };
        self.mix(low, high);
        // The length tells apart what looks the same in words. On its own: combined with a word,
        // it would let texts of different lengths be made to collide without the key.
        self.mix(len as u64, MIX_1);
    }

    fn write_u8(&mut self, value: u8) {
        self.mix(u64::from(value), MIX_3);
    }

    fn write_u32(&mut self, value: u32) {
        self.mix(u64::from(value), MIX_3);
    }

    fn write_u64(&mut self, value: u64) {
        self.mix(value, MIX_3);
    }

    fn finish(&self) -> u64 {
        fold(self.state, MIX_2 ^ self.secret)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn similar_texts_and_seeds_hash_apart() {
        let mut seen = HashSet::new();
        for seed in 0..4 {
            let state = KeyedState::new(seed);
            for len in 0..70 {
                let text: String = std::iter::repeat_n('a', len).collect();
                assert!(seen.insert(state.hash_text(&text)));
                for position in 0..len {
                    let mut other = text.clone().into_bytes();
                    other[position] = b'b';
                    let other = String::from_utf8(other).unwrap();
                    assert!(seen.insert(state.hash_text(&other)), "{other}");
                }
            }
        }
    }
}
