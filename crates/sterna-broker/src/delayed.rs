//! Messages of a kept queue that are not due yet. They count as waiting, but nobody is given them.

use std::collections::BTreeSet;

use crate::group::GROUP_OWNER;
use crate::nodes::{Entry, List, NIL, Nodes};
use crate::queues::Queues;
use crate::session::NEVER_MS;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Delayed {
    list: List,
    /// When each comes due, or expires before, and its node.
    due: BTreeSet<(u64, u32)>,
}

impl Delayed {
    /// Holds a message until it is due or expires; returns its node.
    pub(crate) fn hold(&mut self, nodes: &mut Nodes, due_ms: u64, entry: Entry) -> u32 {
        let expires_at_ms = entry
            .message
            .as_ref()
            .and_then(|message| message.expires_at_ms());
        let due_ms = due_ms.min(expires_at_ms.unwrap_or(NEVER_MS));
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

impl<P> Queues<P> {
    /// Puts the messages of a group that have come due into their places in its queue.
    pub(crate) fn release_due(&mut self, now_ms: u64, id: u32) {
        while let Some(group) = self.groups.get_mut(&id)
            && let Some(delayed) = &mut group.delayed
        {
            let Some(entry) = delayed.take_due(&mut self.nodes, now_ms) else {
                if delayed.is_empty() {
                    group.delayed = None;
                }
                break;
            };
            let node = self.place(id, entry);
            let expires_at_ms = self.expires_at_ms(node);
            if let Some(group) = self.groups.get_mut(&id) {
                group.sweep_by(now_ms, expires_at_ms);
            }
        }
        self.mark_dirty(id);
    }

    /// Applies the rules of a group to what a store had in its queue: the store has no rules, so these
    /// messages entered the queue before them. Each gets the place of its priority, or is held until it
    /// is due.
    pub(crate) fn apply_rules_to_restored(&mut self, now_ms: u64, id: u32) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let Some(rules) = group.rules.clone().filter(|_| group.is_restored) else {
            return;
        };
        group.is_restored = false;
        // In the order of their publication, which tags keep among equal priorities.
        let mut restored = Vec::with_capacity(group.queue.len());
        let mut node = group.queue.first();
        while node != NIL {
            let next = self.nodes.next(node);
            self.withdraw(id, node);
            let Some(group) = self.groups.get_mut(&id) else {
                return;
            };
            group.leaves(&self.nodes, node);
            restored.extend(self.nodes.remove(&mut group.queue, node));
            node = next;
        }
        for mut entry in restored {
            let Some(group) = self.groups.get_mut(&id) else {
                return;
            };
            let Some(message) = entry.message.clone() else {
                continue;
            };
            entry.tag = group.next_tag(&message);
            match rules.reader.due_ms(&message) {
                Some(due_ms) if due_ms > now_ms => {
                    let delayed = group.delayed.get_or_insert_default();
                    delayed.hold(&mut self.nodes, due_ms, entry);
                }
                _ => {
                    self.place(id, entry);
                }
            }
        }
        self.set_group_timer(id);
    }
}
