//! Deadlines of many connections, most of which never come due.
//!
//! Every packet moves a keep alive deadline, and none of them touches this heap: a connection has one
//! entry, and only when that comes due is the connection asked for its real deadline.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use sterna_net::ConnectionId;

/// Entries in the order in which they come due.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(u64, ConnectionId)>>,
}

impl Timers {
    /// Looks at a connection again at `deadline_ms`.
    pub(crate) fn set(&mut self, connection: ConnectionId, deadline_ms: u64) {
        self.heap.push(Reverse((deadline_ms, connection)));
    }

    /// When the first entry comes due.
    pub(crate) fn next_ms(&self) -> Option<u64> {
        self.heap
            .peek()
            .map(|Reverse((deadline_ms, _))| *deadline_ms)
    }

    /// The next entry that is due, with its deadline; it is gone from the heap.
    pub(crate) fn pop_due(&mut self, now_ms: u64) -> Option<(u64, ConnectionId)> {
        if self.next_ms()? > now_ms {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }
}
