//! Messages of a kept queue that are not due yet. They count as waiting, but nobody is given them.

use std::collections::BTreeSet;

use crate::group::GROUP_OWNER;
use crate::nodes::{Entry, List, Nodes};
use crate::session::NEVER_MS;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Delayed {
    list: List,
    /// When each comes due, and its node.
    due: BTreeSet<(u64, u32)>,
}

impl Delayed {
    /// Holds a message until it is due; returns its node.
    pub(crate) fn hold(&mut self, nodes: &mut Nodes, due_ms: u64, entry: Entry) -> u32 {
        let node = nodes.push_back(&mut self.list, GROUP_OWNER, entry);
        self.due.insert((due_ms, node));
        debug_assert_eq!(self.due.len(), self.list.len(), "each has its time");
        node
    }

    /// Takes out a message that is due.
    pub(crate) fn take_due(&mut self, nodes: &mut Nodes, now_ms: u64) -> Option<Entry> {
        let (due_ms, node) = *self.due.first()?;
        if due_ms > now_ms {
            return None;
        }
        self.due.pop_first();
        nodes.remove(&mut self.list, node)
    }

    /// When the first comes due.
    pub(crate) fn due_ms(&self) -> u64 {
        self.due.first().map_or(NEVER_MS, |&(due_ms, _)| due_ms)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    /// All of them.
    pub(crate) const fn list(&self) -> List {
        self.list
    }
}
