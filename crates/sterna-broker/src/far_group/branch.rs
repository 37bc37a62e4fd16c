//! A node's part of a group.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Back, LETTER_BYTES, Looking, Peer};
use crate::mail::Recall;
use crate::message::Message;

/// Most bytes of a position in a letter, and of a message that is returned as it was.
const POSITION_BYTES: usize = 10;
const BACK_BYTES: usize = 16;

/// The owner of the root that a branch attends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Owner {
    pub(crate) peer: Peer,
    pub(crate) epoch: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Branch {
    /// The group's number on this node; `None` where it has no member any more.
    pub(crate) id: Option<u32>,
    /// Whether the group is a queue.
    pub(crate) is_queue: bool,
    /// Of a queue: members that may not be given a message again, with their attendances, by its position.
    pub(crate) refusals: FxHashMap<u64, Vec<(u32, u32)>>,
    /// Of a queue: what members look at and have no answer about, and how many messages they take.
    pub(crate) looks: Vec<(Looking, u32)>,
    /// Of a queue: requests of members that wait until the root has given what they took, with their numbers.
    pub(crate) recalls: VecDeque<(u64, Recall)>,
    pub(crate) next_recall: u64,
    /// How many connected members the root was told of.
    pub(crate) told_members: u32,
    pub(crate) owner: Option<Owner>,
    /// Where the log ended when it began: what came after it is the group's, if that is new.
    pub(crate) began_at: u64,
    /// The number of its attendance, which no other process of its node has had.
    pub(crate) attendance: u64,
    pub(crate) is_welcome: bool,
    /// Messages that it was given in this attendance.
    pub(crate) received: u64,
    /// How many it has said that it takes.
    pub(crate) told: u64,
    /// Messages of the log that are with members, or on their way to them.
    pub(crate) held: BTreeSet<u64>,
    /// Messages to tell the root of: settled ones, and those that members have returned.
    pub(crate) settled: Vec<u64>,
    pub(crate) returned: Vec<Back>,
    /// Whether members have refused messages since it attended.
    pub(crate) has_refused: bool,
    /// Whether others had no room for one of them.
    pub(crate) is_starved: bool,
    /// When it gives back the messages of clients that are no members any more; 0 where there are none.
    pub(crate) gives_up_at_ms: u64,
    /// When it looks for a root, while it has none.
    pub(crate) seek_at_ms: u64,
    pub(crate) is_dirty: bool,
    /// Whether a letter with what is new is to be written at the end of the turn.
    pub(crate) is_reporting: bool,
}

impl Branch {
    /// A member looks at the queue, and takes `limit` messages. It has no other look: one of the same place in its shard
    /// is of a session that has ended.
    pub(crate) fn look(&mut self, looking: Looking, limit: u32) {
        let place = |look: &Looking| (look.address.shard, look.address.slot);
        self.looks
            .retain(|(known, _)| place(known) != place(&looking));
        self.looks.push((looking, limit));
    }

    /// Takes of what members have returned as much as fits one letter, with the positions that were settled. Those
    /// are first that are first in the queue, so that dead letters come in its order. Nothing waits for a change with
    /// more than `most_bytes`, which no letter can have: the message goes back as it was.
    pub(crate) fn take_news(&mut self, most_bytes: u64) -> (Vec<u64>, Vec<Back>) {
        let settled = std::mem::take(&mut self.settled);
        if !self.is_queue {
            // Positions alone.
            return (settled, std::mem::take(&mut self.returned));
        }
        for back in &mut self.returned {
            let is_small = |changed: &mut Arc<Message>| changed.body_bytes() as u64 <= most_bytes;
            back.changed = back.changed.take_if(is_small);
        }
        self.returned.sort_unstable_by_key(|back| back.position);
        let mut bytes = settled.len() * POSITION_BYTES;
        let mut fitting = 0;
        for back in &self.returned {
            let changed = back.changed.as_ref();
            let size = BACK_BYTES + changed.map_or(0, |changed| changed.body_bytes());
            if bytes > 0 && bytes + size > LETTER_BYTES {
                break;
            }
            bytes += size;
            fitting += 1;
        }
        (settled, self.returned.drain(..fitting).collect())
    }

    /// Gives back what clients have that are no members any more.
    pub(crate) fn give_up(&mut self) {
        self.gives_up_at_ms = 0;
        let held = std::mem::take(&mut self.held).into_iter();
        self.returned.extend(held.map(Back::sent));
    }
}

/// All branches of a shard.
#[derive(Debug, Default)]
pub(crate) struct Branches {
    /// Whether groups have branches at all: this is a node of a cluster.
    pub(crate) is_on: bool,
    /// The groups that are known to be queues, whether they have branches here or not.
    queues: FxHashSet<Arc<str>>,
    all: FxHashMap<Arc<str>, Branch>,
    /// By the numbers of groups; those of groups that have ended stay while the branch does.
    names: FxHashMap<u32, Arc<str>>,
    pub(crate) dirty: Vec<Arc<str>>,
    pub(crate) reporting: Vec<Arc<str>>,
}

impl Branches {
    pub(crate) fn get(&self, name: &str) -> Option<&Branch> {
        self.all.get(name)
    }

    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut Branch> {
        self.all.get_mut(name)
    }

    /// Notes that a group is a queue; false where that was known.
    pub(crate) fn know_queue(&mut self, name: &Arc<str>) -> bool {
        if let Some(branch) = self.all.get_mut(name) {
            branch.is_queue = true;
        }
        self.queues.insert(Arc::clone(name))
    }

    /// Whether there are queues.
    pub(crate) fn has_queues(&self) -> bool {
        !self.queues.is_empty()
    }

    /// Whether a group is a queue.
    pub(crate) fn is_queue(&self, name: &str) -> bool {
        self.has_queues() && self.queues.contains(name)
    }

    pub(crate) fn name(&self, id: u32) -> Option<&Arc<str>> {
        self.names.get(&id)
    }

    /// The name of a queue, by the number that its group has or had.
    pub(crate) fn queue(&self, id: u32) -> Option<&Arc<str>> {
        let name = self.names.get(&id)?;
        self.all.get(name)?.is_queue.then_some(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Branch)> {
        self.all.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&Arc<str>, &mut Branch)> {
        self.all.iter_mut()
    }

    /// The numbers that a branch's group has, or had.
    pub(crate) fn ids(&self, name: &str) -> Vec<u32> {
        let names = self.names.iter();
        let ids = names.filter(|(_, known)| ***known == *name);
        ids.map(|(&id, _)| id).collect()
    }

    /// The group has its first member here, where the log ends at a position.
    pub(crate) fn begin(&mut self, id: u32, name: &Arc<str>, position: u64) {
        self.names.insert(id, Arc::clone(name));
        let branch = (self.all.entry(Arc::clone(name))).or_insert_with(|| Branch {
            began_at: position,
            ..Branch::default()
        });
        branch.id = Some(id);
        branch.is_queue = self.queues.contains(name);
        self.touch_named(name);
    }

    /// The group's last member here has left.
    pub(crate) fn end(&mut self, id: u32) {
        let Some(name) = self.names.get(&id).cloned() else {
            return;
        };
        if let Some(branch) = self.all.get_mut(&name)
            && branch.id == Some(id)
        {
            branch.id = None;
        }
        self.touch_named(&name);
    }

    pub(crate) fn remove(&mut self, name: &str) -> Option<Branch> {
        self.names.retain(|_, known| **known != *name);
        self.all.remove(name)
    }

    /// Notes that something of a group has changed that its root may have to know.
    pub(crate) fn touch(&mut self, id: u32) {
        if !self.is_on {
            return;
        }
        if let Some(name) = self.names.get(&id).cloned() {
            self.touch_named(&name);
        }
    }

    pub(crate) fn touch_named(&mut self, name: &Arc<str>) {
        if let Some(branch) = self.all.get_mut(name)
            && !std::mem::replace(&mut branch.is_dirty, true)
        {
            self.dirty.push(Arc::clone(name));
        }
    }

    /// Notes that members are done with a message of the log. False where the group is no branch.
    pub(crate) fn settle(&mut self, id: u32, position: u64) -> bool {
        let Some(name) = self.names.get(&id).filter(|_| self.is_on).cloned() else {
            return false;
        };
        if let Some(branch) = self.all.get_mut(&name)
            && branch.held.remove(&position)
        {
            branch.refusals.remove(&position);
            branch.settled.push(position);
        }
        self.touch_named(&name);
        true
    }

    /// Gives a message back to the root.
    pub(crate) fn give_back(&mut self, name: &Arc<str>, back: Back) {
        if let Some(branch) = self.all.get_mut(name)
            && branch.held.remove(&back.position)
        {
            branch.has_refused |= back.is_refused;
            branch.returned.push(back);
        }
        self.touch_named(name);
    }

    /// Notes that a branch has something to tell, at the end of the turn.
    pub(crate) fn report(&mut self, name: &Arc<str>) {
        if let Some(branch) = self.all.get_mut(name)
            && !std::mem::replace(&mut branch.is_reporting, true)
        {
            self.reporting.push(Arc::clone(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mail::Address;

    fn looking(slot: u32, generation: u32) -> Looking {
        Looking {
            address: Address {
                shard: 0,
                slot,
                generation,
            },
            attendance: 1,
            after: None,
        }
    }

    #[test]
    fn looks_of_sessions_that_have_ended_do_not_pile_up() {
        let mut branch = Branch::default();
        branch.look(looking(7, 0), 10);
        for generation in 0..1_000 {
            branch.look(looking(8, generation), 10);
        }
        let last: Vec<u32> = (branch.looks.iter())
            .map(|(look, _)| look.address.generation)
            .collect();
        assert_eq!(last, [0, 999]);
    }
}
