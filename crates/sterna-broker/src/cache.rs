//! A shard's memory of recent topics' matches.
//!
//! A topic has one place in the table, given by its hash. It enters when it misses twice in a row there, so a
//! stream of topics that are used once displaces nothing. A change of a wildcard filter outdates entries by
//! numbers, without visiting them. There is one number for each of 64 groups of first levels, and one for all. A
//! change of another filter removes the entry of its topic.

use std::sync::Arc;

use crate::fill::Fill;
use crate::filter::first_level;
use crate::hash::KeyedState;
use crate::message::Message;
use crate::peers::Wanted;
use crate::route::Target;

/// The queues that a topic's messages go to.
#[derive(Debug, Default)]
pub(crate) struct Matches {
    /// On this shard.
    pub(crate) local: Vec<Target>,
    /// On others.
    pub(crate) remote: Vec<(u16, Arc<[Target]>)>,
    /// Sessions and groups on all shards.
    pub(crate) total: usize,
    /// Sessions among them that are away, and read the log when they come back.
    pub(crate) asleep: usize,
    /// Other nodes.
    pub(crate) peers: Wanted,
    /// Of the kept queues among them, how full they are.
    pub(crate) kept: Vec<Arc<Fill>>,
    /// Whether some reader wants messages of QoS 1 and 2 in the log.
    pub(crate) is_durable: bool,
    /// Whether a queue of the cluster takes messages of any QoS.
    pub(crate) is_for_queue: bool,
}

impl Matches {
    /// Whether a message is to be appended to the log.
    pub(crate) fn wants_log(&self, message: &Message) -> bool {
        !self.kept.is_empty() || (self.is_durable && message.qos().is_acknowledged())
    }

    /// The number of queues of this node that get the message.
    pub(crate) fn targets(&self) -> usize {
        let remote = self.remote.iter().map(|(_, targets)| targets.len());
        self.local.len() + remote.sum::<usize>()
    }

    pub(crate) fn clear(&mut self) {
        self.local.clear();
        self.remote.clear();
        self.total = 0;
        self.asleep = 0;
        self.peers = Wanted::NOBODY;
        self.kept.clear();
        self.is_durable = false;
        self.is_for_queue = false;
    }
}

#[derive(Debug)]
struct Remembered {
    topic: Box<str>,
    bucket: u8,
    bucket_epoch: u32,
    epoch: u32,
    matches: Matches,
}

const BUCKETS: usize = 64;

/// See the module.
#[derive(Debug)]
pub(crate) struct MatchCache {
    table: Box<[Option<Box<Remembered>>]>,
    /// The upper half of the hash of the last topic that missed at each place.
    missed: Box<[u32]>,
    /// The place of the last hit. Publishers send in batches, and the next message is mostly of the same topic.
    last: usize,
    hashing: KeyedState,
    epoch: u32,
    buckets: [u32; BUCKETS],
}

/// The answer to a lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lookup {
    /// Remembered at this place.
    Hit(usize),
    /// Not remembered; worth it now if `enter`.
    Miss { place: usize, enter: bool },
}

impl MatchCache {
    pub(crate) fn new(topics: usize, hashing: KeyedState) -> Self {
        let len = topics.max(1).next_power_of_two();
        Self {
            table: std::iter::repeat_with(|| None).take(len).collect(),
            missed: vec![0; len].into(),
            last: 0,
            hashing,
            epoch: 0,
            buckets: [0; BUCKETS],
        }
    }

    fn bucket(&self, text: &str) -> usize {
        self.hashing.hash_text(first_level(text)) as usize % BUCKETS
    }

    /// Whether the entry of a place is this topic's and in force.
    #[inline]
    fn is_known(&self, place: usize, topic: &[u8]) -> bool {
        self.table[place].as_ref().is_some_and(|known| {
            known.topic.as_bytes() == topic
                && known.epoch == self.epoch
                && known.bucket_epoch == self.buckets[usize::from(known.bucket)]
        })
    }

    #[inline]
    pub(crate) fn look_up(&mut self, topic: &[u8]) -> Lookup {
        if self.is_known(self.last, topic) {
            return Lookup::Hit(self.last);
        }
        self.look_up_by_hash(topic)
    }

    fn look_up_by_hash(&mut self, topic: &[u8]) -> Lookup {
        let hash = self.hashing.hash_bytes(topic);
        let place = hash as usize & (self.table.len() - 1);
        if self.is_known(place, topic) {
            self.last = place;
            return Lookup::Hit(place);
        }
        let upper = (hash >> 32) as u32;
        let enter = std::mem::replace(&mut self.missed[place], upper) == upper;
        Lookup::Miss { place, enter }
    }

    pub(crate) fn matches(&self, place: usize) -> Option<&Matches> {
        self.table[place].as_ref().map(|known| &known.matches)
    }

    pub(crate) fn enter(&mut self, place: usize, topic: &str, matches: Matches) {
        let bucket = self.bucket(topic);
        self.table[place] = Some(Box::new(Remembered {
            topic: topic.into(),
            bucket: bucket as u8,
            bucket_epoch: self.buckets[bucket],
            epoch: self.epoch,
            matches,
        }));
    }

    /// The routes of a filter have changed.
    pub(crate) fn outdate(&mut self, filter: &str, wild: bool) {
        if !wild {
            let place = self.hashing.hash_text(filter) as usize & (self.table.len() - 1);
            if self.table[place]
                .as_ref()
                .is_some_and(|known| *known.topic == *filter)
            {
                self.table[place] = None;
            }
        } else if matches!(first_level(filter), "+" | "#") {
            self.outdate_all();
        } else {
            let bucket = self.bucket(filter);
            self.buckets[bucket] = self.buckets[bucket].wrapping_add(1);
        }
    }

    /// Places have changed.
    pub(crate) fn outdate_all(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
    }
}
