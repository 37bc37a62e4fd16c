//! The route log: every change of routes, in one order for all shards.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::fill::Fill;
use crate::hash::KeyedState;
use crate::nodes::NIL;
use crate::queue_rules::QueueRules;
use crate::route::{RouteFlags, RouteUpdate};

/// The log's record of a shared subscription.
#[derive(Debug)]
struct GroupRecord {
    id: u32,
    members: usize,
    /// Members that keep its queue, and how full that is since there was the first.
    keepers: usize,
    /// Members that outlive their connection, and take messages of QoS 1 and 2.
    durable: usize,
    /// Where the log of messages ended when there was the first of them.
    since: u64,
    fill: Option<Arc<Fill>>,
    rules: Option<Arc<QueueRules>>,
}

impl GroupRecord {
    /// The update to all shards about its queue.
    fn kept(&mut self, filter: &Arc<str>) -> RouteUpdate {
        let is_kept = self.keepers > 0;
        RouteUpdate::Kept {
            group: self.id,
            filter: Arc::clone(filter),
            fill: is_kept.then(|| Arc::clone(self.fill.get_or_insert_default())),
            rules: self.rules.clone(),
            is_durable: is_kept || self.durable > 0,
            since: self.since,
        }
    }
}

/// The part of the log that some shard has still to read, and the numbers it gives out.
#[derive(Debug)]
pub(crate) struct Log {
    updates: VecDeque<RouteUpdate>,
    /// Position of the first of them.
    start: u64,
    /// How far each shard has read, and whether it was told that it is behind.
    readers: Box<[(u64, bool)]>,
    free_ids: Vec<u32>,
    next_id: u32,
    next_group: u32,
    groups: HashMap<Arc<str>, GroupRecord, KeyedState>,
    /// Where the log of messages ends at this moment; set by who edits.
    pub(crate) position: u64,
}

impl Log {
    pub(crate) fn new(shards: u16, hashing: KeyedState) -> Self {
        Self {
            updates: VecDeque::new(),
            start: 0,
            readers: vec![(0, false); usize::from(shards)].into(),
            free_ids: Vec::new(),
            next_id: 0,
            next_group: 0,
            groups: HashMap::with_hasher(hashing),
            position: 0,
        }
    }

    pub(crate) fn head(&self) -> u64 {
        self.start + self.updates.len() as u64
    }

    pub(crate) fn push(&mut self, update: RouteUpdate) {
        self.updates.push_back(update);
    }

    /// A number for a new subscriber. It may have belonged to another: every shard reads of that
    /// one's end first.
    pub(crate) fn take_id(&mut self) -> u32 {
        self.free_ids.pop().unwrap_or_else(|| {
            self.next_id += 1;
            self.next_id - 1
        })
    }

    /// Gives a number back, after the updates that removed all its routes.
    pub(crate) fn release_id(&mut self, id: u32) {
        self.free_ids.push(id);
    }

    /// Counts a new member of a group, unless it has as many as may be. Returns the group's number. Numbers aren't
    /// used again (within four billion), since messages from a group may outlive it. They must not end up in
    /// another.
    pub(crate) fn join_group(&mut self, filter: &Arc<str>, limit: usize) -> Option<u32> {
        if let Some(record) = self.groups.get_mut(filter) {
            if record.members >= limit {
                return None;
            }
            record.members += 1;
            return Some(record.id);
        }
        let group = self.next_group;
        self.next_group = if group + 1 == NIL { 0 } else { group + 1 };
        self.groups.insert(
            Arc::clone(filter),
            GroupRecord {
                id: group,
                members: 1,
                keepers: 0,
                durable: 0,
                since: 0,
                fill: None,
                rules: None,
            },
        );
        Some(group)
    }

    /// Whether a group's queue is kept.
    pub(crate) fn keeps_queue(&self, filter: &str) -> bool {
        (self.groups.get(filter)).is_some_and(|record| record.keepers > 0)
    }

    /// Counts a member whose options change from `old` to `new`. It counts among those that keep the group's queue,
    /// and among those that outlive their connection. `None` stands for no member.
    pub(crate) fn keep_group(
        &mut self,
        filter: &Arc<str>,
        old: Option<RouteFlags>,
        new: Option<RouteFlags>,
    ) {
        let position = self.position;
        let Some(record) = self.groups.get_mut(filter) else {
            return;
        };
        let before = (record.keepers > 0, record.durable > 0);
        let count = |of: fn(RouteFlags) -> bool, flags: Option<RouteFlags>| {
            usize::from(flags.is_some_and(of))
        };
        record.keepers += count(RouteFlags::keeps, new);
        record.keepers -= count(RouteFlags::keeps, old);
        record.durable += count(RouteFlags::outlives, new);
        record.durable -= count(RouteFlags::outlives, old);
        if before == (false, false) {
            record.since = position;
        }
        if before != (record.keepers > 0, record.durable > 0) {
            let update = record.kept(filter);
            self.push(update);
        }
    }

    /// Gives the queue of a group its rules.
    pub(crate) fn set_rules(&mut self, filter: &Arc<str>, rules: Arc<QueueRules>) {
        let Some(record) = self.groups.get_mut(filter) else {
            return;
        };
        record.rules = Some(rules);
        if record.keepers == 0 {
            return; // they come with its first keeper
        }
        let update = record.kept(filter);
        self.push(update);
    }

    /// The number of a group; `None` where there is no such group.
    pub(crate) fn group(&self, filter: &str) -> Option<u32> {
        self.groups.get(filter).map(|record| record.id)
    }

    /// Counts a member out; with the last one, the group ends.
    pub(crate) fn leave_group(
        &mut self,
        filter: &Arc<str>,
        group: u32,
        member: u32,
        flags: RouteFlags,
    ) {
        self.keep_group(filter, Some(flags), None);
        self.push(RouteUpdate::Left { group, member });
        let Some(record) = self.groups.get_mut(filter) else {
            return;
        };
        debug_assert_eq!(record.id, group, "a group is left by its members");
        record.members -= 1;
        if record.members == 0 {
            self.groups.remove(filter);
            self.push(RouteUpdate::GroupEnded {
                group,
                filter: Arc::clone(filter),
            });
        }
    }

    pub(crate) fn read(&mut self, shard: u16, up_to: u64, updates: &mut Vec<RouteUpdate>) {
        let up_to = up_to.min(self.head());
        let Some((position, told)) = self.readers.get_mut(usize::from(shard)) else {
            return;
        };
        if *position < up_to {
            let from = (*position - self.start) as usize;
            let to = (up_to - self.start) as usize;
            updates.extend(self.updates.range(from..to).cloned());
            *position = up_to;
        }
        *told = false;
        let slowest = self
            .readers
            .iter()
            .map(|&(position, _)| position)
            .min()
            .unwrap_or(up_to);
        let read_by_all = slowest - self.start;
        self.updates.drain(..read_by_all as usize);
        self.start = slowest;
        if self.updates.is_empty() && self.updates.capacity() > 1024 {
            self.updates = VecDeque::new();
        }
    }

    /// Shards that are further behind than that and have not been told.
    pub(crate) fn behind(&mut self, backlog: u64) -> Vec<u16> {
        if self.updates.len() as u64 <= backlog {
            return Vec::new();
        }
        let head = self.head();
        let mut behind = Vec::new();
        for (shard, (position, told)) in self.readers.iter_mut().enumerate() {
            if head - *position > backlog && !*told {
                *told = true;
                behind.push(shard as u16);
            }
        }
        behind
    }
}
