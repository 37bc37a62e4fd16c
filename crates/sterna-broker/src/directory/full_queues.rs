//! Queues of the cluster that have no room, for publishers of all shards.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::locked;
use crate::hash::KeyedState;
use crate::route::topics_of_shared;

/// The last word on a queue.
#[derive(Debug)]
struct Said {
    /// The epoch of the root that said it.
    epoch: u64,
    /// The time until which the queue is full.
    until_ms: u64,
}

/// See the module. Mostly there is none, which costs publishers nothing.
#[derive(Debug)]
pub(super) struct FullQueues {
    count: AtomicUsize,
    known: Mutex<HashMap<Arc<str>, Said, KeyedState>>,
}

impl FullQueues {
    pub(super) fn new(hashing: KeyedState) -> Self {
        Self {
            count: AtomicUsize::new(0),
            known: Mutex::new(HashMap::with_hasher(hashing)),
        }
    }

    /// Notes until when a queue is full, or with zero that it has room. An earlier word of a later root stays.
    pub(super) fn set(&self, filter: &Arc<str>, epoch: u64, until_ms: u64) {
        let mut known = locked(&self.known);
        if known.get(filter).is_some_and(|said| said.epoch > epoch) {
            return;
        }
        if until_ms == 0 {
            known.remove(filter);
        } else {
            known.insert(Arc::clone(filter), Said { epoch, until_ms });
        }
        self.count.store(known.len(), Ordering::Relaxed);
    }

    /// Whether a queue may be full.
    pub(super) fn is_some(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Whether a queue that takes messages of a topic is full.
    pub(super) fn is_for_full(&self, now_ms: u64, topic: &str) -> bool {
        if !self.is_some() {
            return false;
        }
        let mut known = locked(&self.known);
        known.retain(|_, said| said.until_ms > now_ms);
        self.count.store(known.len(), Ordering::Relaxed);
        let mut filters = known.keys();
        filters.any(|filter| sterna_topic::matches(topics_of_shared(filter), topic))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_full_until_its_time_is_over_or_its_root_says_otherwise() {
        let full = FullQueues::new(KeyedState::new(1));
        let filter: Arc<str> = "$share/q/a/+".into();
        assert!(!full.is_for_full(0, "a/b"));
        full.set(&filter, 2, 100);
        assert!(full.is_for_full(99, "a/b") && !full.is_for_full(99, "b/b"));
        full.set(&filter, 1, 0);
        assert!(full.is_for_full(99, "a/b"), "an earlier root");
        assert!(!full.is_for_full(100, "a/b"), "its time is over");
        full.set(&filter, 2, 200);
        full.set(&filter, 3, 0);
        assert!(!full.is_for_full(100, "a/b"));
    }
}
