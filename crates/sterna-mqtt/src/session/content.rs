//! Digests of messages of QoS 2. They tell repetitions from other messages with the same identifier.

use std::num::NonZeroU64;

use crate::{PacketId, PublishProperties};

/// Odd, with as many ones as zeros: the multiplier of the digest.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Digest of a message: topic, RETAIN flag, payload, and those properties that subscribers get.
///
/// Neither identifier, DUP flag, Topic Alias nor Message Expiry Interval count: they may differ when a client sends
/// the message again. The digest is the same in every process, so that it can be kept in a record. It is no
/// protection against a client that looks for two messages with one digest: only its own would be lost.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Content(NonZeroU64);

impl Content {
    /// The digest of a message with this topic.
    #[must_use]
    pub fn of(
        topic: &str,
        retain: bool,
        properties: &PublishProperties<'_>,
        payload: &[u8],
    ) -> Self {
        let mut state = mix(u64::from(retain), topic.len() as u64);
        state = add(state, topic.as_bytes());
        // One by one: how they are cut into slices depends on an alias between them.
        for &byte in properties.forward().slices().flatten() {
            state = mix(state, u64::from(byte));
        }
        state = mix(state, payload.len() as u64);
        state = add(state, payload);
        Self(NonZeroU64::new(state).unwrap_or(NonZeroU64::MIN))
    }

    /// As a number for a record.
    #[must_use]
    pub const fn number(self) -> NonZeroU64 {
        self.0
    }

    /// The digest with this [`number`](Self::number).
    #[must_use]
    pub const fn from_number(number: NonZeroU64) -> Self {
        Self(number)
    }
}

fn add(state: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let state = (words.iter()).fold(state, |state, word| mix(state, u64::from_le_bytes(*word)));
    let rest = (rest.iter().rev()).fold(0, |word, &byte| word << 8 | u64::from(byte));
    mix(state, rest)
}

/// Both halves of a product, so that each bit of the input reaches all bits.
fn mix(state: u64, word: u64) -> u64 {
    let product = u128::from(state ^ word ^ MULTIPLIER.rotate_left(32)) * u128::from(MULTIPLIER);
    (product as u64) ^ ((product >> 64) as u64)
}

/// A received message of QoS 2 that was not released. The caller may keep a record by it, which restores the session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReceivedId {
    /// The identifier.
    pub packet_id: PacketId,
    /// The lane on which it was first received. Where that would not be unique, the two highest bits are a number.
    pub lane: u64,
    /// Its digest.
    pub content: Content,
}
