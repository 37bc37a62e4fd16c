//! The state that the root of a queue has beside that of another group.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::Peer;
use crate::attempts::{Attempts, Failures};
use crate::cursor::Cursor;
use crate::group::Group;
use crate::message::Message;

/// Tells the numbers of roots' queues from those of the groups of members.
const ROOT_QUEUES: u32 = 1 << 30;

/// The number that the queue of a root has among the groups of its shard, the queues there being counted.
pub(crate) const fn group_number(count: u32) -> u32 {
    ROOT_QUEUES | (count % ROOT_QUEUES)
}

/// A message that a branch has.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) message: Arc<Message>,
    pub(crate) failures: Failures,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct QueueRoot {
    /// The number of its queue among the groups of the shard.
    pub(crate) group: u32,
    /// The numbers of branches as members of the queue.
    members: BTreeMap<Peer, u32>,
    next_member: u32,
    /// Messages that branches have, by position.
    pub(crate) held: FxHashMap<u64, Held>,
    /// Branches that ask whether everything has been given, with their attendances and the numbers of their questions.
    pub(crate) asked: Vec<(Peer, u64, u64)>,
    /// Whether nodes were told that it has no room.
    pub(crate) is_full: bool,
    /// When they are told so again.
    pub(crate) say_full_at_ms: u64,
}

impl QueueRoot {
    pub(crate) fn new(group: u32) -> Self {
        Self {
            group,
            members: BTreeMap::new(),
            next_member: 0,
            held: FxHashMap::default(),
            asked: Vec::new(),
            is_full: false,
            say_full_at_ms: 0,
        }
    }

    /// The number of a branch as a member, which it has from now on.
    pub(crate) fn seat(&mut self, peer: &Peer) -> u32 {
        if let Some(&member) = self.members.get(peer) {
            return member;
        }
        self.next_member += 1;
        self.members.insert(peer.clone(), self.next_member);
        self.next_member
    }

    pub(crate) fn member(&self, peer: &Peer) -> Option<u32> {
        self.members.get(peer).copied()
    }

    /// The branch that is a member of this number.
    pub(crate) fn branch(&self, member: u32) -> Option<&Peer> {
        // There are as many as nodes.
        let mut all = self.members.iter();
        all.find(|(_, known)| **known == member)
            .map(|(peer, _)| peer)
    }

    pub(crate) fn remove(&mut self, peer: &Peer) -> Option<u32> {
        self.members.remove(peer)
    }
}

/// The state of a queue in the session of its root.
#[derive(Debug)]
pub(crate) struct RootQueue {
    /// The number of the queue among the groups of the shard.
    pub(crate) group: u32,
    /// How far an earlier owner had come.
    before: Cursor,
    /// The position behind all that `before` says something about.
    until: u64,
    /// Whether everything from before that is in the queue.
    pub(crate) has_all: bool,
}

impl RootQueue {
    pub(crate) fn new(group: u32, before: Cursor) -> Self {
        let failed = before.failed.back().map_or(0, |last| last.position + 1);
        let settled = before.settled.last().map_or(0, |&last| last + 1);
        Self {
            group,
            until: before.from.max(failed).max(settled),
            before,
            has_all: false,
        }
    }

    /// The deliveries of a message before this owner.
    pub(crate) fn attempts(&self, position: u64) -> Attempts {
        if self.has_all {
            return Attempts::default();
        }
        self.before.wants(position).unwrap_or_default()
    }

    /// Notes that everything before a position is in the queue. Returns whether all is there that an earlier owner
    /// had: until then the queue's cursor would leave some of it out.
    pub(crate) fn reach(&mut self, position: u64) -> bool {
        if !self.has_all && position >= self.until {
            self.has_all = true;
            self.before = Cursor::default();
        }
        self.has_all
    }
}

/// Whether a queue has no room for more; one that was full has some again when a sixteenth is free.
pub(crate) fn is_full(group: &Group, was_full: bool, most_messages: u64, most_bytes: u64) -> bool {
    let messages = (group.waiting() + group.delayed_len()) as u64;
    let bound = |most: u64| {
        if was_full { most - most / 16 } else { most }
    };
    messages > 0 && (messages >= bound(most_messages) || group.queued_bytes >= bound(most_bytes))
}
