//! Messages of a group's queue that wait in the log: of each only its place is in memory.
//!
//! They are in the order of the queue, in chunks, so that a change anywhere moves little.

use std::collections::BTreeMap;
use std::collections::btree_map::OccupiedEntry;

use crate::message::Message;
use crate::session::NEVER_MS;

/// Messages of a chunk at most.
const CHUNK: usize = 128;

/// A time in seconds that never comes.
const NEVER_S: u32 = u32::MAX;

/// A message that waits in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Waiting {
    /// Its place in the queue, see [`Entry::tag`](crate::nodes::Entry::tag).
    pub(crate) tag: u64,
    /// Its place in the log.
    pub(crate) position: u64,
    /// Bytes of its body.
    pub(crate) body_bytes: u32,
    /// When it has expired, in seconds since the Unix epoch, rounded up.
    expires_s: u32,
}

/// The cost of a [`Waiting`], with its share of a chunk that is not full.
pub(crate) const WAITING_BYTES: u64 = 32;

impl Waiting {
    pub(crate) fn new(tag: u64, position: u64, message: &Message) -> Self {
        let expires_at_ms = message.expires_at_ms();
        let expires_s = expires_at_ms.map_or(u64::MAX, |at_ms| at_ms.div_ceil(1000));
        Self {
            tag,
            position,
            // A body has at most 4 GiB.
            body_bytes: u32::try_from(message.body_bytes()).unwrap_or(u32::MAX),
            expires_s: u32::try_from(expires_s).unwrap_or(NEVER_S),
        }
    }

    /// When it has expired, up to a second late.
    pub(crate) const fn expires_at_ms(&self) -> u64 {
        if self.expires_s == NEVER_S {
            NEVER_MS
        } else {
            self.expires_s as u64 * 1000
        }
    }
}

#[derive(Debug)]
struct Chunk {
    /// In the order of the queue; never empty.
    messages: Vec<Waiting>,
    /// The lowest of their positions.
    lowest: u64,
}

impl Chunk {
    fn of(messages: Vec<Waiting>) -> Self {
        let positions = messages.iter().map(|waiting| waiting.position);
        let lowest = positions.min().unwrap_or(u64::MAX);
        Self { messages, lowest }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    /// By a tag that is no higher than all in the chunk, and higher than all in the one before.
    chunks: BTreeMap<u64, Chunk>,
    len: usize,
}

impl Tail {
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first in the order of the queue.
    pub(crate) fn first(&self) -> Option<Waiting> {
        let (_, chunk) = self.chunks.first_key_value()?;
        chunk.messages.first().copied()
    }

    /// The last in the order of the queue.
    pub(crate) fn last(&self) -> Option<Waiting> {
        let (_, chunk) = self.chunks.last_key_value()?;
        chunk.messages.last().copied()
    }

    /// Those behind a tag, in the order of the queue.
    pub(crate) fn after(&self, tag: u64) -> impl Iterator<Item = Waiting> {
        let from = self.key_of(tag).unwrap_or(tag);
        let chunks = self.chunks.range(from..);
        chunks.flat_map(move |(_, chunk)| {
            let at = chunk.messages.partition_point(|known| known.tag <= tag);
            chunk.messages[at..].iter().copied()
        })
    }

    /// The lowest position; `None` where nothing waits.
    pub(crate) fn lowest(&self) -> Option<u64> {
        self.chunks.values().map(|chunk| chunk.lowest).min()
    }

    /// The positions before one, in no particular order.
    pub(crate) fn before(&self, position: u64) -> impl Iterator<Item = u64> {
        let chunks = self.chunks.values();
        let chunks = chunks.filter(move |chunk| chunk.lowest < position);
        chunks
            .flat_map(|chunk| chunk.messages.iter().map(|waiting| waiting.position))
            .filter(move |&known| known < position)
    }

    /// The key of the chunk that a tag belongs to.
    fn key_of(&self, tag: u64) -> Option<u64> {
        self.chunks.range(..=tag).next_back().map(|(&key, _)| key)
    }

    pub(crate) fn get(&self, tag: u64) -> Option<Waiting> {
        let messages = &self.chunks.get(&self.key_of(tag)?)?.messages;
        let at = messages.binary_search_by_key(&tag, |known| known.tag);
        Some(messages[at.ok()?])
    }

    pub(crate) fn insert(&mut self, waiting: Waiting) {
        self.len += 1;
        let tag = waiting.tag;
        let Some(key) = self.key_of(tag) else {
            // It goes before all: into the first chunk, which has another key then.
            let first = self.chunks.first_entry();
            let first = first.filter(|first| first.get().messages.len() < CHUNK);
            let mut chunk = first.map_or_else(|| Chunk::of(Vec::new()), OccupiedEntry::remove);
            chunk.messages.insert(0, waiting);
            chunk.lowest = chunk.lowest.min(waiting.position);
            self.chunks.insert(tag, chunk);
            return;
        };
        let Some(chunk) = self.chunks.get_mut(&key) else {
            return;
        };
        let at = chunk.messages.partition_point(|known| known.tag < tag);
        if chunk.messages.len() < CHUNK {
            chunk.messages.insert(at, waiting);
            chunk.lowest = chunk.lowest.min(waiting.position);
            return;
        }
        // A message that comes behind a full chunk begins a new one; a message that comes between halves it.
        let mut behind = chunk.messages.split_off(at.max(CHUNK / 2));
        if at < CHUNK / 2 {
            chunk.messages.insert(at, waiting);
        } else if behind.is_empty() || at == CHUNK / 2 {
            behind.insert(0, waiting);
        } else {
            chunk.messages.push(waiting);
        }
        *chunk = Chunk::of(std::mem::take(&mut chunk.messages));
        if let Some(first) = behind.first() {
            self.chunks.insert(first.tag, Chunk::of(behind));
        }
    }

    pub(crate) fn remove(&mut self, tag: u64) -> Option<Waiting> {
        let key = self.key_of(tag)?;
        let chunk = self.chunks.get_mut(&key)?;
        let at = chunk
            .messages
            .binary_search_by_key(&tag, |known| known.tag)
            .ok()?;
        let waiting = chunk.messages.remove(at);
        self.len -= 1;
        if chunk.messages.is_empty() {
            self.chunks.remove(&key);
        } else if waiting.position == chunk.lowest {
            *chunk = Chunk::of(std::mem::take(&mut chunk.messages));
        }
        Some(waiting)
    }

    /// Takes out what has expired, and tells when the next does.
    pub(crate) fn take_expired(&mut self, now_ms: u64) -> (Vec<Waiting>, u64) {
        let mut expired = Vec::new();
        let mut next_ms = NEVER_MS;
        self.chunks.retain(|_, chunk| {
            let before = expired.len();
            chunk.messages.retain(|waiting| {
                let expires_at_ms = waiting.expires_at_ms();
                if expires_at_ms <= now_ms {
                    expired.push(*waiting);
                    return false;
                }
                next_ms = next_ms.min(expires_at_ms);
                true
            });
            if expired.len() > before {
                *chunk = Chunk::of(std::mem::take(&mut chunk.messages));
            }
            !chunk.messages.is_empty()
        });
        self.len -= expired.len();
        (expired, next_ms)
    }

    /// # Panics
    /// Where the order, the length or a lowest position is wrong.
    pub(crate) fn check(&self) {
        let (mut before, mut count) = (0, 0);
        for (&key, chunk) in &self.chunks {
            assert!(!chunk.messages.is_empty() && chunk.messages.len() <= CHUNK);
            assert!(key > before && key <= chunk.messages[0].tag, "the keys");
            let lowest = chunk.messages.iter().map(|waiting| waiting.position).min();
            assert_eq!(Some(chunk.lowest), lowest, "the lowest position");
            for waiting in &chunk.messages {
                assert!(waiting.tag > before, "the order of the tail");
                assert_ne!(waiting.position, 0, "what waits in the log is there");
                before = waiting.tag;
            }
            count += chunk.messages.len();
        }
        assert_eq!(self.len, count, "the length of the tail");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::btree_map::Entry;

    use super::*;

    fn waiting(tag: u64, position: u64, expires_s: u32) -> Waiting {
        Waiting {
            tag,
            position,
            body_bytes: 1,
            expires_s,
        }
    }

    #[test]
    fn behaves_like_a_sorted_map() {
        let mut tail = Tail::default();
        let mut model = BTreeMap::new();
        let mut random = 1_u64;
        let mut last = 1_000_000;
        for step in 0..60_000_u64 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let number = random >> 33;
            // Mostly the end grows and the front goes; some come back, to the front and between.
            let is_growing = step % 20_000 < 10_000;
            match number % 16 {
                0..=7 if is_growing => {
                    last += 1 + number % 3;
                    let new = waiting(last, number % 5_000 + 1, (number % 7) as u32 + 1);
                    tail.insert(new);
                    model.insert(last, new);
                }
                8 | 9 => {
                    let tag = model.first_key_value().map_or(last, |(&tag, _)| tag) - 1;
                    let new = waiting(tag, number + 1, u32::MAX);
                    tail.insert(new);
                    model.insert(tag, new);
                }
                10 => {
                    let tag = 900_000 + number % (last - 900_000);
                    if let Entry::Vacant(place) = model.entry(tag) {
                        let new = waiting(tag, number + 1, u32::MAX);
                        tail.insert(new);
                        place.insert(new);
                    }
                }
                11 => {
                    let tag = 900_000 + number % (last - 900_000);
                    assert_eq!(tail.remove(tag), model.remove(&tag));
                }
                _ => {
                    assert_eq!(
                        tail.first(),
                        model.first_key_value().map(|(_, &first)| first)
                    );
                    if let Some(first) = tail.first() {
                        assert_eq!(tail.remove(first.tag), model.remove(&first.tag));
                    }
                }
            }
            if step % 997 == 0 {
                tail.check();
                let now_ms = number % 3_000;
                let (expired, next_ms) = tail.take_expired(now_ms);
                let before = model.len();
                model.retain(|_, waiting| waiting.expires_at_ms() > now_ms);
                assert_eq!(expired.len(), before - model.len());
                let next = model.values().map(Waiting::expires_at_ms).min();
                assert_eq!(next_ms, next.unwrap_or(NEVER_MS));
                tail.check();
                let lowest = model.values().map(|waiting| waiting.position).min();
                assert_eq!(tail.lowest(), lowest);
                assert_eq!(tail.last(), model.last_key_value().map(|(_, &last)| last));
                let tag = 900_000 + number % (last - 900_000);
                assert!(
                    tail.after(tag)
                        .eq(model.range(tag + 1..).map(|(_, &known)| known))
                );
                assert_eq!(tail.get(tag), model.get(&tag).copied());
                let before = model
                    .values()
                    .filter(|known| known.position < number % 5_000);
                assert_eq!(tail.before(number % 5_000).count(), before.count());
            }
        }
    }

    #[test]
    fn a_message_that_waits_takes_24_bytes() {
        assert_eq!(size_of::<Waiting>(), 24);
        let mut tail = Tail::default();
        for tag in 1..=100 * CHUNK as u64 {
            tail.insert(waiting(tag, tag, NEVER_S));
        }
        assert_eq!(tail.chunks.len(), 100, "full chunks");
    }
}
