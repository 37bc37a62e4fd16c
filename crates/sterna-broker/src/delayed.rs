//! Messages of a kept queue that are not due yet. They count as waiting, but nobody is given them.

use std::collections::BTreeMap;

use crate::group::GROUP_OWNER;
use crate::nodes::{Entry, List, Nodes};
use crate::queues::Queues;
use crate::session::NEVER_MS;
use crate::tail::Waiting;

/// A message that is not due yet.
#[derive(Clone, Copy, Debug)]
enum Held {
    /// It is in memory.
    Node(u32),
    /// It is in the log.
    Logged(Waiting),
}

/// A message that has come due.
#[derive(Debug)]
pub(crate) enum Due {
    Entry(Box<Entry>),
    Logged(Waiting),
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Delayed {
    list: List,
    /// By the time when each comes due, or expires before, and by its tag.
    due: BTreeMap<(u64, u64), Held>,
}

impl Delayed {
    /// Holds a message until it is due or expires.
    fn hold(&mut self, nodes: &mut Nodes, due_ms: u64, entry: Entry) {
        let message = entry.message.as_ref();
        let expires_at_ms = message.and_then(|message| message.expires_at_ms());
        let due_ms = due_ms.min(expires_at_ms.unwrap_or(NEVER_MS));
        let tag = entry.tag;
        let held = match message.filter(|_| entry.may_wait_in_log()) {
            Some(message) => Held::Logged(Waiting::new(tag, entry.position, message)),
            None => Held::Node(nodes.push_back(&mut self.list, GROUP_OWNER, entry)),
        };
        self.due.insert((due_ms, tag), held);
    }

    /// Takes out a message that is due.
    fn take_due(&mut self, nodes: &mut Nodes, now_ms: u64) -> Option<Due> {
        let (&(due_ms, tag), &held) = self.due.first_key_value()?;
        if due_ms > now_ms {
            return None;
        }
        self.due.remove(&(due_ms, tag));
        match held {
            Held::Logged(waiting) => Some(Due::Logged(waiting)),
            Held::Node(node) => {
                let entry = nodes.remove(&mut self.list, node)?;
                Some(Due::Entry(Box::new(entry)))
            }
        }
    }

    /// When the first comes due.
    pub(crate) fn due_ms(&self) -> u64 {
        let first = self.due.first_key_value();
        first.map_or(NEVER_MS, |(&(due_ms, _), _)| due_ms)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.due.len()
    }

    /// How many of them are in the log and not in memory.
    pub(crate) fn logged_len(&self) -> usize {
        self.due.len() - self.list.len()
    }

    /// Bytes of the bodies of those in the log.
    pub(crate) fn logged_bytes(&self) -> u64 {
        let held = self.due.values().filter_map(|held| match held {
            Held::Logged(waiting) => Some(u64::from(waiting.body_bytes)),
            Held::Node(_) => None,
        });
        held.sum()
    }

    /// Those in memory.
    pub(crate) const fn list(&self) -> List {
        self.list
    }
}

impl<P> Queues<P> {
    /// Holds a message of a group, which is counted already, until it is due.
    pub(crate) fn hold_in_group(&mut self, id: u32, due_ms: u64, entry: Entry) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        if entry.may_wait_in_log() {
            self.counters.logged_messages += 1;
        } else {
            self.counters.stored(entry.held());
        }
        let delayed = group.delayed.get_or_insert_default();
        delayed.hold(&mut self.nodes, due_ms, entry);
        self.set_group_timer(id);
    }

    /// Puts the messages of a group that have come due into their places in its queue.
    pub(crate) fn release_due(&mut self, now_ms: u64, id: u32) {
        while let Some(group) = self.groups.get_mut(&id)
            && let Some(delayed) = &mut group.delayed
        {
            let due = delayed.take_due(&mut self.nodes, now_ms);
            if delayed.is_empty() {
                group.delayed = None;
            }
            let expires_at_ms = match due {
                None => break,
                Some(Due::Entry(entry)) => {
                    let message = entry.message.as_ref();
                    let expires_at_ms = message.and_then(|message| message.expires_at_ms());
                    self.counters.unstored(entry.held());
                    self.wait_in_group(id, *entry);
                    expires_at_ms.unwrap_or(NEVER_MS)
                }
                Some(Due::Logged(waiting)) => {
                    self.counters.logged_messages -= 1;
                    self.wait_in_log(id, waiting, None);
                    waiting.expires_at_ms()
                }
            };
            if let Some(group) = self.groups.get_mut(&id) {
                group.sweep_by(now_ms, expires_at_ms);
            }
        }
        self.mark_dirty(id);
    }
}
