//! Shared subscriptions (MQTT 5.0, section 4.8.2), on the shard that is a group's home.
//!
//! A group is one queue with several consumers. Its home hands each connected member so many
//! messages; when the member settles one it may have another. So a slow member holds few messages
//! up, and what waits can still go to any other. What a member hasn't sent when its connection ends
//! comes back.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::choice::Choice;
use crate::fill::Fill;
use crate::hash::KeyedState;
use crate::limits::QueueFull;
use crate::list::KeyedList;
use crate::mail::Returned;
use crate::message::{Message, Qos};
use crate::nodes::{Entry, List, NIL};
use crate::queues::{Queues, TimerKey, next_sweep_ms, stored_entry};
use crate::route::{Context, RouteFlags};
use crate::session::NEVER_MS;
use crate::store::{Phase, QueueName};

/// The owner of the nodes in groups' queues: no session's slot, so no session's tag finds them.
pub(crate) const GROUP_OWNER: u32 = NIL - 1;

/// Whether an entry of a group's queue was published before another. Tags count up, and around.
pub(crate) const fn is_older(tag: u64, other: u64) -> bool {
    sequence(tag).wrapping_sub(sequence(other)).cast_signed() < 0
}

pub(crate) const fn sequence(tag: u64) -> u32 {
    (tag >> 32) as u32
}

/// A session that has the shared subscription.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) flags: RouteFlags,
    pub(crate) context: Option<Arc<Context>>,
    /// Messages it may be given now.
    pub(crate) credit: u32,
    /// The most that may be.
    pub(crate) window: u32,
    /// The connection it attends with; zero while away.
    pub(crate) attendance: u32,
    /// Whether it is in the list of those available.
    pub(crate) is_available: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Group {
    /// The whole filter, `$share/NAME/FILTER`.
    pub(crate) filter: Arc<str>,
    pub(crate) members: KeyedList<u32, Member>,
    /// What those members choose that don't take everything, while they attend.
    pub(crate) choices: KeyedList<u32, Choice>,
    /// Members with credit, in the order of their turns.
    pub(crate) available: VecDeque<u32>,
    /// Members that are connected.
    pub(crate) attending: usize,
    pub(crate) queue: List,
    pub(crate) queued_bytes: u64,
    /// Whether a member keeps the queue.
    pub(crate) is_kept: bool,
    /// Counts the queue for publishers, since it was first kept.
    pub(crate) fill: Option<Arc<Fill>>,
    /// The entry in the queue that came back last, or [`NIL`].
    returned_last: u32,
    pub(crate) is_dirty: bool,
    sweep_at_ms: u64,
    next_sequence: u32,
}

impl Group {
    pub(crate) fn new(filter: Arc<str>) -> Self {
        Self {
            filter,
            members: KeyedList::default(),
            choices: KeyedList::default(),
            available: VecDeque::new(),
            attending: 0,
            queue: List::default(),
            queued_bytes: 0,
            is_kept: false,
            fill: None,
            returned_last: NIL,
            is_dirty: false,
            sweep_at_ms: NEVER_MS,
            next_sequence: 0,
        }
    }

    fn next_tag(&mut self) -> u64 {
        self.next_sequence = self.next_sequence.wrapping_add(1).max(1);
        (u64::from(self.next_sequence) << 32) | u64::from(NIL)
    }

    pub(crate) fn resume_sequence(&mut self, tag: u64) {
        self.next_sequence = (tag >> 32) as u32;
    }

    /// Keeps the queue from now on, or no longer.
    pub(crate) fn keep(&mut self, fill: Option<&Arc<Fill>>) {
        self.is_kept = fill.is_some();
        if let (None, Some(fill)) = (&self.fill, fill) {
            fill.add(self.queue.len() as u64, self.queued_bytes);
            self.fill = Some(Arc::clone(fill));
        }
    }

    /// The member whose turn it is.
    pub(crate) fn next_member(&mut self) -> Option<u32> {
        while let Some(id) = self.available.pop_front() {
            if let Some(member) = self.members.get_mut(&id) {
                member.is_available = false;
                if member.credit > 0 && member.attendance != 0 {
                    return Some(id);
                }
            }
        }
        None
    }

    /// Lists a member as available if it is, and there may be something for it.
    pub(crate) fn list_if_available(&mut self, id: u32) {
        if !self.choices.is_empty()
            && self
                .choices
                .get(&id)
                .is_some_and(|choice| !choice.may_choose())
        {
            return;
        }
        if let Some(member) = self.members.get_mut(&id)
            && member.credit > 0
            && member.attendance != 0
            && !member.is_available
        {
            member.is_available = true;
            self.available.push_back(id);
        }
    }

    /// Adds a member, or changes its options.
    pub(crate) fn add_member(
        &mut self,
        id: u32,
        flags: RouteFlags,
        context: Option<Arc<Context>>,
        hashing: KeyedState,
    ) {
        if let Some(known) = self.members.get_mut(&id) {
            known.flags = flags;
            known.context = context;
        } else {
            let (credit, window, attendance, is_available) = (0, 0, 0, false);
            let member = Member {
                flags,
                context,
                credit,
                window,
                attendance,
                is_available,
            };
            self.members.insert(id, member, hashing);
        }
    }

    /// Keeps an entry from being given to a member again while it attends.
    fn refuse(&mut self, id: u32, attendance: u32, tag: u64, limit: usize, hashing: KeyedState) {
        let member = self.members.get(&id);
        if attendance == 0 || member.is_none_or(|member| member.attendance != attendance) {
            return;
        }
        if self.choices.get(&id).is_none() {
            let choice = Choice::new(None, self.queue.first());
            self.choices.insert(id, choice, hashing);
        }
        if let Some(choice) = self.choices.get_mut(&id) {
            choice.refuse(tag, limit);
        }
    }

    pub(crate) fn remove_member(&mut self, id: u32) {
        self.choices.remove(&id);
        if let Some((_, member)) = self.members.remove(&id) {
            self.attending -= usize::from(member.attendance != 0);
        }
    }

    /// Ends a member's attendance.
    pub(crate) fn detach(&mut self, id: u32, attendance: u32) {
        if let Some(member) = self.members.get_mut(&id)
            && member.attendance == attendance
            && attendance != 0
        {
            member.attendance = 0;
            member.credit = 0;
            self.attending -= 1;
            self.choices.remove(&id);
        }
    }
}

impl<P> Queues<P> {
    /// Appends a message to a group's queue, if its limits allow. A kept queue has been asked before:
    /// the publisher has `reserved` its room.
    pub(crate) fn push_to_group(
        &mut self,
        now_ms: u64,
        id: u32,
        message: &Arc<Message>,
        reserved: bool,
    ) {
        let Some(group) = self.groups.get(&id) else {
            return;
        };
        let body_bytes = message.body_bytes() as u64;
        if reserved && let Some(fill) = &group.fill {
            // What enters the queue is counted then.
            fill.remove(1, body_bytes);
        }
        if !group.is_kept && !self.group_admits(id, message) {
            return;
        }
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let qos = if group.is_kept {
            message.qos().max(Qos::AtLeastOnce)
        } else {
            message.qos()
        };
        let entry = Entry {
            tag: group.next_tag(),
            qos,
            retain: message.retain(),
            message: Some(Arc::clone(message)),
            context: None,
            group_tag: 0,
            group: id,
            failures: 0,
            phase: Phase::Pending,
            redelivered: false,
            retained_copy: false,
            is_kept: false,
            in_group_store: false,
        };
        let mut queue = group.queue;
        let node = self.nodes.push_back(&mut queue, GROUP_OWNER, entry);
        group.queue = queue;
        if let Some(entry) = self.nodes.entry(node)
            && self.is_durable
            && entry.qos.is_acknowledged()
        {
            let name = QueueName::Group(&group.filter);
            self.store.enqueued(name, stored_entry(entry));
        }
        self.offer_appended(id, node);
        self.entered_group(now_ms, id, node);
    }

    /// Whether a queue that isn't kept may take another message; makes room where that is the rule.
    fn group_admits(&mut self, id: u32, message: &Message) -> bool {
        let Some(group) = self.groups.get(&id) else {
            return false;
        };
        if group.attending == 0 && !message.qos().is_acknowledged() {
            self.counters.dropped_away += 1;
            return false;
        }
        if self.is_over_memory && (group.attending == 0 || !group.queue.is_empty()) {
            self.counters.dropped_full += 1;
            return false;
        }
        let body_bytes = message.body_bytes() as u64;
        loop {
            let Some(group) = self.groups.get(&id) else {
                return false;
            };
            let fits = group.queue.is_empty()
                || (group.queue.len() < self.limits.group_queued_messages
                    && group.queued_bytes + body_bytes <= self.limits.group_queued_bytes as u64);
            if fits {
                return true;
            }
            self.counters.dropped_full += 1;
            if self.limits.queue_full == QueueFull::DropNewest {
                return false;
            }
            let first = group.queue.first();
            if let Some(entry) = self.remove_from_group(id, first) {
                self.forget_stored_in_group(id, &entry);
            }
        }
    }

    /// Counts an entry that a group's queue has taken, and sees to what follows.
    fn entered_group(&mut self, now_ms: u64, id: u32, node: u32) {
        let expires_at_ms = self.expires_at_ms(node);
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let body_bytes = self.nodes.entry(node).map_or(0, Entry::body_bytes);
        group.queued_bytes += body_bytes;
        self.counters.stored(body_bytes);
        if let Some(fill) = &group.fill {
            fill.add(1, body_bytes);
        }
        if expires_at_ms != NEVER_MS {
            let sweep_at_ms = next_sweep_ms(now_ms, expires_at_ms, group.queue.len());
            self.set_group_timer(id, sweep_at_ms, true);
        }
        self.mark_dirty(id);
    }

    /// Takes back what a member hasn't sent, or couldn't finish. Each message gets its old place in
    /// the queue, whatever order they come back in.
    pub(crate) fn take_back(
        &mut self,
        now_ms: u64,
        id: u32,
        messages: Vec<Returned>,
        hashing: KeyedState,
    ) {
        for returned in messages {
            self.take_back_one(now_ms, id, returned, hashing);
        }
    }

    fn take_back_one(&mut self, now_ms: u64, id: u32, returned: Returned, hashing: KeyedState) {
        let Returned {
            message,
            tag,
            failures,
            in_group_store,
            redelivered,
            refused_by,
        } = returned;
        let limit = self.limits.group_queued_messages;
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        if let Some((member, attendance)) = refused_by {
            group.refuse(member, attendance, tag, limit, hashing);
        }
        let mut qos = message.qos();
        if group.is_kept || in_group_store {
            qos = qos.max(Qos::AtLeastOnce);
        }
        if group.attending == 0 && !qos.is_acknowledged() {
            self.counters.dropped_away += 1;
            return;
        }
        let entry = Entry {
            tag,
            qos,
            retain: message.retain(),
            message: Some(message),
            context: None,
            group_tag: 0,
            group: id,
            failures,
            phase: Phase::Pending,
            redelivered,
            retained_copy: false,
            is_kept: false,
            in_group_store: false,
        };
        let (mut queue, returned_last) = (group.queue, group.returned_last);
        let successor = self.successor_in_queue(queue, returned_last, tag);
        let node = if successor == NIL {
            self.nodes.push_back(&mut queue, GROUP_OWNER, entry)
        } else {
            self.nodes
                .insert_before(&mut queue, successor, GROUP_OWNER, entry)
        };
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        group.queue = queue;
        group.returned_last = node;
        if let Some(entry) = self.nodes.entry(node)
            && self.is_durable
            && qos.is_acknowledged()
        {
            let name = QueueName::Group(&group.filter);
            if !in_group_store {
                self.store.enqueued(name, stored_entry(entry));
            }
            // What comes back is older than all that has not been out; those among themselves are
            // put in order when they are loaded.
            self.store.advanced(name, tag, Phase::Pending);
            if failures > 0 && in_group_store {
                self.store.failed(name, tag, failures);
            }
        }
        self.offer_returned(id, node);
        self.entered_group(now_ms, id, node);
    }

    /// The first entry of a group's queue that is younger than a tag, or [`NIL`].
    ///
    /// Most of what comes back is older than all that waits; otherwise the last that came back is
    /// mostly its neighbour. So only who gives many back in a wild order makes long ways, of at most
    /// what the queue holds.
    fn successor_in_queue(&self, queue: List, returned_last: u32, tag: u64) -> u32 {
        let tag_of = |node| self.nodes.tag(node);
        let first = queue.first();
        if first == NIL || is_older(tag, tag_of(first)) {
            return first;
        }
        let mut node = if returned_last == NIL {
            first
        } else {
            returned_last
        };
        while node != NIL && is_older(tag, tag_of(node)) {
            node = self.nodes.previous(node);
        }
        // The first is older, so this ends at one that is.
        while node != NIL && !is_older(tag, tag_of(node)) {
            node = self.nodes.next(node);
        }
        node
    }

    /// Notes that a group may have something to dispatch.
    pub(crate) fn mark_dirty(&mut self, id: u32) {
        if let Some(group) = self.groups.get_mut(&id)
            && !group.is_dirty
            && !group.queue.is_empty()
            && !group.available.is_empty()
        {
            group.is_dirty = true;
            self.dirty_groups.push(id);
        }
    }

    /// Tells the store that an entry is no longer a group's.
    pub(crate) fn forget_stored_in_group(&mut self, id: u32, entry: &Entry) {
        if let Some(group) = self.groups.get(&id)
            && self.is_durable
            && entry.qos.is_acknowledged()
        {
            self.store
                .settled(QueueName::Group(&group.filter), entry.tag);
        }
    }

    /// Takes an entry out of a group's queue, but not out of its store.
    pub(crate) fn remove_from_group(&mut self, id: u32, node: u32) -> Option<Entry> {
        if node == NIL {
            return None;
        }
        self.withdraw(id, node);
        let group = self.groups.get_mut(&id)?;
        if group.returned_last == node {
            group.returned_last = NIL;
        }
        let mut queue = group.queue;
        let entry = self.nodes.remove(&mut queue, node)?;
        group.queue = queue;
        let body_bytes = entry.body_bytes();
        group.queued_bytes -= body_bytes;
        if let Some(fill) = &group.fill {
            fill.remove(1, body_bytes);
        }
        self.counters.unstored(body_bytes);
        Some(entry)
    }

    /// Drops a group with its queue.
    pub(crate) fn end_group(&mut self, id: u32) {
        self.set_group_timer(id, NEVER_MS, false);
        if let Some(group) = self.groups.remove(&id) {
            self.drain(group.queue);
            if self.is_durable {
                self.store.group_ended(&group.filter);
            }
        }
    }

    /// Sets a group's timer; `only_earlier` leaves one that is due before.
    fn set_group_timer(&mut self, id: u32, sweep_at_ms: u64, only_earlier: bool) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        if sweep_at_ms == group.sweep_at_ms || (only_earlier && sweep_at_ms > group.sweep_at_ms) {
            return;
        }
        self.timers
            .remove(&(group.sweep_at_ms, TimerKey::Group(id)));
        if sweep_at_ms != NEVER_MS {
            self.timers.insert((sweep_at_ms, TimerKey::Group(id)));
        }
        group.sweep_at_ms = sweep_at_ms;
    }

    /// Drops the expired messages of a group.
    pub(crate) fn sweep_group(&mut self, now_ms: u64, id: u32) {
        let Some(group) = self.groups.get(&id) else {
            return;
        };
        let mut earliest_ms = NEVER_MS;
        let mut node = group.queue.first();
        while node != NIL {
            let next = self.nodes.next(node);
            let expires_at_ms = self.expires_at_ms(node);
            if expires_at_ms <= now_ms {
                if let Some(entry) = self.remove_from_group(id, node) {
                    self.forget_stored_in_group(id, &entry);
                }
                self.counters.dropped_expired += 1;
            } else {
                earliest_ms = earliest_ms.min(expires_at_ms);
            }
            node = next;
        }
        let entries = self.groups.get(&id).map_or(0, |group| group.queue.len());
        self.set_group_timer(id, next_sweep_ms(now_ms, earliest_ms, entries), false);
    }
}
