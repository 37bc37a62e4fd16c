//! Deadlines of many clients, most of which never come due.
//!
//! Every packet moves a keep alive deadline, and none touches this heap. A client has one entry. When that
//! is due, the client is asked for its real deadline.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Entries in the order in which they come due.
#[derive(Debug)]
pub(crate) struct Timers<I> {
    heap: BinaryHeap<Reverse<(u64, I)>>,
}

impl<I: Ord> Default for Timers<I> {
    fn default() -> Self {
        Self {
            heap: BinaryHeap::new(),
        }
    }
}

impl<I: Ord> Timers<I> {
    /// Looks at a client again at `deadline_ms`.
    pub(crate) fn set(&mut self, id: I, deadline_ms: u64) {
        self.heap.push(Reverse((deadline_ms, id)));
    }

    /// All entries, each with its deadline.
    pub(super) fn entries(&self) -> impl Iterator<Item = (u64, I)>
    where
        I: Copy,
    {
        self.heap.iter().map(|Reverse(entry)| *entry)
    }

    /// When the first entry comes due.
    pub(crate) fn next_ms(&self) -> Option<u64> {
        self.heap
            .peek()
            .map(|Reverse((deadline_ms, _))| *deadline_ms)
    }

    /// The next entry that is due, with its deadline; it is gone from the heap.
    pub(crate) fn pop_due(&mut self, now_ms: u64) -> Option<(u64, I)> {
        if self.next_ms()? > now_ms {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }
}
