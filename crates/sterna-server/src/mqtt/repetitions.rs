//! Messages that may come twice because a first flight of QUIC was copied on its way.
//!
//! A ticket works once, so of a flight and its copies the first alone is taken as early data. The TLS library
//! takes none that is older than a minute. One attack remains: an attacker on the path lets a copy through and
//! stops the original, or the other way round. The client then sends its messages again, over a connection that
//! the attacker cannot make. So each PUBLISH of QoS 1 and 2 with which a client begins is remembered for a while.
//! A message is known by the client's name, the Packet Identifier and its content:
//!
//! - A message may be done as early data of a connection that is never confirmed. If it comes again over a
//!   confirmed connection, it is acknowledged and not done again.
//! - A message may come as early data after it was done over another connection. It waits until its own
//!   connection is confirmed: a device that says the same twice is heard twice.
//!
//! The acknowledgement of a repetition waits for the append of the first: the client sends the message no more.

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, Hash as _, Hasher as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sterna_mqtt::{PacketId, PublishProperties, QoS};
use sterna_net::ConnectionId;

use crate::authorization::Subject;

/// How long a message is remembered, in milliseconds: twice as long as a flight can be held back.
const WINDOW_MS: u64 = 120_000;

/// Messages that are remembered, about 100 bytes each. Should there be more within the window, none is
/// done early until that has passed again.
const MAXIMUM_MESSAGES: usize = 100_000;

/// A connection, on any shard.
type Sender = (usize, ConnectionId);

/// Digest of a message with its client and its Packet Identifier, under a secret key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Digest(u64, u64);

/// The messages with which clients began lately; one for all shards.
#[derive(Debug)]
pub struct Repetitions {
    keys: [RandomState; 2],
    most: usize,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    messages: HashMap<Digest, Message>,
    /// In the order in which they came. An entry is void where the message has come again since.
    order: VecDeque<(u64, Digest)>,
    /// Messages of connections that are not confirmed.
    unconfirmed: HashMap<Sender, Vec<Digest>>,
    /// The time until which something may have been forgotten too early.
    blind_until_ms: u64,
    /// The append up to which a shard of a cluster's node has everything kept.
    kept: HashMap<usize, u64>,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    sender: Sender,
    is_confirmed: bool,
    came_ms: u64,
    /// The append that keeps what was done early, 0 for none; `None` where it is not done, or not yet.
    append: Option<u64>,
}

/// A message of a confirmed connection, compared with what was done early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Repetition {
    /// It is new.
    No,
    /// It was done, and is kept with this append; 0 for none.
    Done(u64),
    /// Another shard has done it, and this one cannot know when it is kept.
    Unsure,
}

impl Default for Repetitions {
    fn default() -> Self {
        Self::with_room_for(MAXIMUM_MESSAGES)
    }
}

impl Repetitions {
    fn with_room_for(most: usize) -> Self {
        Self {
            keys: [RandomState::new(), RandomState::new()],
            most,
            known: Mutex::default(),
        }
    }

    /// The digest by which a message is known.
    pub(super) fn digest(
        &self,
        client: Subject<'_>,
        packet_id: PacketId,
        (qos, retain): (QoS, bool),
        topic: &str,
        properties: &PublishProperties<'_>,
        payload: &[u8],
    ) -> Digest {
        let [first, second] = &self.keys;
        let of = |key: &RandomState| {
            let mut hasher = key.build_hasher();
            (client.user, client.client).hash(&mut hasher);
            (packet_id.get(), qos as u8, retain, topic).hash(&mut hasher);
            properties.message_expiry_s().hash(&mut hasher);
            for slice in properties.forward().slices() {
                hasher.write(slice);
            }
            payload.hash(&mut hasher);
            hasher.finish()
        };
        Digest(of(first), of(second))
    }

    /// Begins with a message although its connection is not confirmed, and remembers it as one of that connection.
    /// False where it has to wait for that.
    pub(super) fn begin_early(&self, sender: Sender, digest: Digest, now_ms: u64) -> bool {
        let mut known = self.known();
        known.forget(now_ms);
        let is_known = |message: &Message| message.sender != sender;
        if now_ms < known.blind_until_ms || known.messages.get(&digest).is_some_and(is_known) {
            return false;
        }
        known.unconfirmed.entry(sender).or_default().push(digest);
        let message = Message {
            sender,
            is_confirmed: false,
            came_ms: now_ms,
            append: None,
        };
        known.remember(digest, message, self.most);
        true
    }

    /// A message that this connection has begun with early was done, and is kept with an append; 0 for none.
    pub(super) fn done_early(&self, sender: Sender, digest: Digest, append: u64) {
        let mut known = self.known();
        if let Some(message) = known.messages.get_mut(&digest)
            && message.sender == sender
        {
            message.append = Some(append);
        }
    }

    /// Whether a message of a confirmed connection was done already, as early data of one that was never
    /// confirmed. It is remembered as one that came now, unless that is unsure. `counts_alone` tells that each shard
    /// counts its own appends.
    pub(super) fn look(
        &self,
        sender: Sender,
        digest: Digest,
        now_ms: u64,
        counts_alone: bool,
    ) -> Repetition {
        let mut known = self.known();
        known.forget(now_ms);
        let before = known.messages.get(&digest).copied();
        let before = before.filter(|before| !before.is_confirmed && before.sender != sender);
        let repetition = before.map_or(Repetition::No, |before| {
            let is_here = before.sender.0 == sender.0;
            match before.append {
                // This thread does nothing else: who has begun with it has failed.
                None if is_here => Repetition::No,
                Some(append) if is_here || !counts_alone => Repetition::Done(append),
                Some(append) if append <= known.kept_of(before.sender.0) => Repetition::Done(0),
                None | Some(_) => Repetition::Unsure,
            }
        });
        if repetition != Repetition::Unsure {
            let message = Message {
                sender,
                is_confirmed: true,
                came_ms: now_ms,
                append: None,
            };
            known.remember(digest, message, self.most);
        }
        repetition
    }

    /// Everything up to an append of a shard is kept, where each shard counts its own.
    pub(super) fn kept_up_to(&self, shard: usize, append: u64) {
        self.known().kept.insert(shard, append);
    }

    /// A message that came as early data of this connection was not taken: it is new when it comes again.
    pub(super) fn refused(&self, sender: Sender, digest: Digest) {
        let mut known = self.known();
        if (known.messages.get(&digest)).is_some_and(|message| message.sender == sender) {
            known.messages.remove(&digest);
            if let Some(own) = known.unconfirmed.get_mut(&sender) {
                own.retain(|one| *one != digest);
                if own.is_empty() {
                    known.unconfirmed.remove(&sender);
                }
            }
        }
    }

    /// A connection is confirmed: its messages are the client's own.
    pub(super) fn confirmed(&self, sender: Sender) {
        let mut known = self.known();
        for digest in known.unconfirmed.remove(&sender).unwrap_or_default() {
            if let Some(message) = known.messages.get_mut(&digest)
                && message.sender == sender
            {
                message.is_confirmed = true;
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn kept_of(&self, shard: usize) -> u64 {
        self.kept.get(&shard).copied().unwrap_or_default()
    }

    fn remember(&mut self, digest: Digest, message: Message, most: usize) {
        self.messages.insert(digest, message);
        self.order.push_back((message.came_ms, digest));
        while self.order.len() > most {
            self.blind_until_ms = message.came_ms + WINDOW_MS;
            self.forget_first();
        }
    }

    /// Forgets messages that are older than the window.
    fn forget(&mut self, now_ms: u64) {
        while (self.order.front()).is_some_and(|(came_ms, _)| came_ms + WINDOW_MS <= now_ms) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        let Some((came_ms, digest)) = self.order.pop_front() else {
            return;
        };
        if let Entry::Occupied(entry) = self.messages.entry(digest)
            && entry.get().came_ms == came_ms
        {
            let message = entry.remove();
            if !message.is_confirmed {
                self.unconfirmed.remove(&message.sender);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Sender = (
        0,
        ConnectionId {
            slot: 1,
            generation: 1,
        },
    );
    const B: Sender = (
        1,
        ConnectionId {
            slot: 1,
            generation: 1,
        },
    );

    fn digest(of: &Repetitions, user: Option<&str>, client: &str, payload: &[u8]) -> Digest {
        let subject = Subject {
            user,
            client,
            ..Subject::default()
        };
        let none = PublishProperties::EMPTY;
        let flags = (QoS::AtLeastOnce, false);
        of.digest(subject, PacketId::MIN, flags, "t", &none, payload)
    }

    #[test]
    fn what_a_copy_did_is_not_done_again() {
        let known = Repetitions::default();
        let message = digest(&known, None, "c", b"x");
        assert!(known.begin_early(A, message, 0));
        assert!(known.begin_early(A, message, 0), "the same connection");
        known.done_early(B, message, 9);
        known.done_early(A, message, 5);
        assert_eq!(known.look(B, message, 1_000, false), Repetition::Done(5));
        assert_eq!(
            known.look(B, message, 1_001, false),
            Repetition::No,
            "said once more"
        );
        for other in [
            digest(&known, None, "d", b"x"),
            digest(&known, Some("u"), "c", b"x"),
            digest(&known, None, "c", b"y"),
        ] {
            assert_eq!(known.look(B, other, 1_000, false), Repetition::No);
        }
        // It was not taken, so nothing was done.
        let known = Repetitions::default();
        assert!(known.begin_early(A, message, 0));
        known.refused(B, message);
        known.refused(A, message);
        assert_eq!(known.look(B, message, 1_000, false), Repetition::No);
        known.forget_all(10 * WINDOW_MS);
        // The client itself was first: the next message is its own.
        let known = Repetitions::default();
        assert!(known.begin_early(A, message, 0));
        known.confirmed(A);
        assert_eq!(known.look(B, message, 1_000, false), Repetition::No);
    }

    #[test]
    fn what_was_begun_early_and_not_done_is_new() {
        let known = Repetitions::default();
        let message = digest(&known, None, "c", b"x");
        assert!(known.begin_early(A, message, 0));
        let at = ConnectionId {
            slot: 2,
            generation: 1,
        };
        // The other shard may be in the midst of it.
        assert_eq!(known.look(B, message, 1, false), Repetition::Unsure);
        assert_eq!(known.look((A.0, at), message, 1, false), Repetition::No);
        assert!(!known.begin_early(A, message, 2), "another has taken it up");
    }

    #[test]
    fn where_shards_count_alone_a_repetition_on_another_is_known_when_the_first_is_kept() {
        let known = Repetitions::default();
        let message = digest(&known, None, "c", b"x");
        assert!(known.begin_early(A, message, 0));
        known.done_early(A, message, 5);
        for kept in [None, Some((B.0, 9)), Some((A.0, 4))] {
            if let Some((shard, append)) = kept {
                known.kept_up_to(shard, append);
            }
            let repetition = known.look(B, message, 1, true);
            assert_eq!(repetition, Repetition::Unsure, "{kept:?}");
        }
        known.kept_up_to(A.0, 5);
        assert_eq!(known.look(B, message, 1, true), Repetition::Done(0));
        assert_eq!(known.look(B, message, 1, true), Repetition::No);
    }

    #[test]
    fn a_flight_that_was_held_back_waits() {
        let known = Repetitions::default();
        let message = digest(&known, None, "c", b"x");
        assert_eq!(known.look(A, message, 0, false), Repetition::No);
        assert!(!known.begin_early(B, message, 60_000));
        // Nor is a second one taken while nobody knows of the first whose it is.
        let other = digest(&known, None, "c", b"y");
        assert!(known.begin_early(A, other, 60_000));
        assert!(!known.begin_early(B, other, 60_001));
        assert!(known.begin_early(B, message, WINDOW_MS), "long ago");
        known.forget_all(10 * WINDOW_MS);
    }

    #[test]
    fn where_too_much_came_at_once_everything_waits() {
        let known = Repetitions::with_room_for(2);
        let message = |payload: &[u8]| digest(&known, None, "c", payload);
        for payload in [b"1", b"2"] {
            assert_eq!(known.look(A, message(payload), 0, false), Repetition::No);
        }
        assert!(
            known.begin_early(B, message(b"3"), 1),
            "the first is forgotten"
        );
        assert!(!known.begin_early(B, message(b"4"), 2));
        assert!(known.begin_early(B, message(b"4"), 1 + WINDOW_MS));
        known.forget_all(10 * WINDOW_MS);
    }

    impl Repetitions {
        /// Nothing is left when all is forgotten.
        fn forget_all(&self, now_ms: u64) {
            let mut known = self.known();
            known.forget(now_ms);
            assert!(known.messages.is_empty() && known.unconfirmed.is_empty());
        }
    }
}
