//! Shared subscriptions (MQTT 5.0, section 4.8.2), on the shard that is a group's home.
//!
//! A group is one queue with several consumers. Its home hands each connected member up to N messages; when the
//! member settles one it may have another. So a slow member holds few messages up, and waiting messages can still
//! go to any other. Messages that a member hasn't sent when its connection ends come back.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::attempts::{Attempts, HeldBack, Refusals};
use crate::choice::Choice;
use crate::delayed::Delayed;
use crate::fill::Fill;
use crate::group_reader::GroupReader;
use crate::hash::KeyedState;
use crate::limits::QueueFull;
use crate::list::KeyedList;
use crate::losses::LossReason;
use crate::message::{Message, Qos};
use crate::nodes::{Entry, List, NIL, Nodes};
use crate::pressure::Pressure;
use crate::queue_rules::{HIGHEST_PRIORITY, QueueRules};
use crate::queues::{QueueKey, Queues, next_sweep_ms};
use crate::records::{self, Kind};
use crate::rights::Permit;
use crate::route::{Context, RouteFlags};
use crate::session::NEVER_MS;
use crate::tail::Tail;
use crate::watch::Step;
use crate::window::{Look, Reading};

/// The owner of the nodes in groups' queues: no session's slot, so no session's tag finds them.
pub(crate) const GROUP_OWNER: u32 = NIL - 1;

/// The upper bits of a tag are its class, so that the lowest goes first; the others count up.
const COUNT_BITS: u32 = 60;

/// Classes of a queue with priorities; in others all messages are of the first.
const CLASSES: usize = HIGHEST_PRIORITY as usize + 1;

/// Zero for the highest priority.
const fn class_of(tag: u64) -> usize {
    (tag >> COUNT_BITS) as usize
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

impl Member {
    /// The topics it may get, if not all.
    pub(crate) fn permit(&self) -> Option<Arc<dyn Permit>> {
        self.context.as_ref()?.permit.clone()
    }

    fn permits(&self, topic: &str) -> bool {
        (self.context.as_ref()).is_none_or(|context| context.permits(topic))
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Group {
    /// The whole filter, `$share/NAME/FILTER`.
    pub(crate) filter: Arc<str>,
    pub(crate) members: KeyedList<u32, Member>,
    /// The choices of members that don't take everything, while they attend.
    pub(crate) choices: KeyedList<u32, Choice>,
    /// Members with credit, in the order of their turns.
    pub(crate) available: VecDeque<u32>,
    /// Members that are connected.
    pub(crate) attending: usize,
    /// Messages that wait in memory.
    pub(crate) queue: List,
    /// Of `queue`: messages that are in the log too, and their bytes.
    pub(crate) logged: (usize, u64),
    /// Messages that wait in the log.
    pub(crate) tail: Tail,
    /// The messages being read in the log for the queue.
    pub(crate) reading: Option<Box<Reading>>,
    /// The messages being read in the log for browsers, which take nothing.
    pub(crate) look: Option<Box<Look>>,
    /// Bytes of all that waits.
    pub(crate) queued_bytes: u64,
    /// Whether a member keeps the queue.
    pub(crate) is_kept: bool,
    /// The slot of the session whose queue it is, where that is a root of the cluster: its members are branches.
    pub(crate) root: Option<u32>,
    /// Counts the queue for publishers, since it was first kept.
    pub(crate) fill: Option<Arc<Fill>>,
    pub(crate) rules: Option<Arc<QueueRules>>,
    /// The last entry of each class, or [`NIL`]; of a queue with priorities.
    class_ends: Option<Box<[u32; CLASSES]>>,
    /// How it reads the log; `None` where all its members end with their connections, or nothing is kept.
    pub(crate) log: Option<Box<GroupReader>>,
    /// Messages that are not due yet.
    pub(crate) delayed: Option<Box<Delayed>>,
    /// The pause while its dead letters take nothing.
    pub(crate) refusals: Refusals,
    pub(crate) held_back: HeldBack,
    /// The entry in memory that came to its place last other than at the end, or [`NIL`].
    pub(crate) returned_last: u32,
    pub(crate) is_dirty: bool,
    /// When to look for expired messages.
    sweep_at_ms: u64,
    /// The timer that is set.
    timer_ms: u64,
    next_count: u64,
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
            logged: (0, 0),
            tail: Tail::default(),
            reading: None,
            look: None,
            queued_bytes: 0,
            is_kept: false,
            root: None,
            fill: None,
            rules: None,
            class_ends: None,
            log: None,
            delayed: None,
            refusals: Refusals::default(),
            held_back: HeldBack::default(),
            returned_last: NIL,
            is_dirty: false,
            sweep_at_ms: NEVER_MS,
            timer_ms: NEVER_MS,
            next_count: 0,
        }
    }

    /// The tag of a message that is new in the queue: those with lower tags go before.
    pub(crate) fn next_tag(&mut self, message: &Message) -> u64 {
        self.next_count += 1;
        // The lower half is not what an entry has whose tag is yet to be made.
        self.next_count += u64::from(self.next_count as u32 == NIL);
        let rules = self.rules.as_ref().filter(|rules| rules.has_priorities);
        let class = rules.map_or(0, |rules| {
            HIGHEST_PRIORITY - rules.reader.priority(message).min(HIGHEST_PRIORITY)
        });
        (u64::from(class) << COUNT_BITS) | self.next_count
    }

    /// A number that rises by one with each message that is new in the queue.
    pub(crate) const fn entered_count(&self) -> u64 {
        self.next_count
    }

    /// Messages that wait, in memory or in the log, and are due.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len() + self.tail.len()
    }

    /// The messages in memory that are not due yet.
    pub(crate) fn delayed_list(&self) -> List {
        (self.delayed.as_ref()).map_or_else(List::default, |delayed| delayed.list())
    }

    /// Messages that are not due yet.
    pub(crate) fn delayed_len(&self) -> usize {
        self.delayed.as_ref().map_or(0, |delayed| delayed.len())
    }

    /// # Panics
    /// Where a class does not end with its last entry.
    pub(crate) fn check_class_ends(&self, nodes: &Nodes) {
        if let Some(ends) = &self.class_ends {
            let mut found = [NIL; CLASSES];
            let mut node = self.queue.first();
            while node != NIL {
                found[class_of(nodes.tag(node))] = node;
                node = nodes.next(node);
            }
            assert_eq!(**ends, found, "the ends of the classes of {}", self.filter);
        }
    }

    /// Looks for expired messages when one expires.
    pub(crate) fn sweep_by(&mut self, now_ms: u64, expires_at_ms: u64) {
        let sweep_at_ms = next_sweep_ms(now_ms, expires_at_ms, self.waiting());
        self.sweep_at_ms = self.sweep_at_ms.min(sweep_at_ms);
    }

    /// When the first message that is not due yet comes due.
    fn due_ms(&self) -> u64 {
        (self.delayed.as_ref()).map_or(NEVER_MS, |delayed| delayed.due_ms())
    }

    /// Notes an entry that has been put into the queue.
    pub(crate) fn entered(&mut self, nodes: &Nodes, node: u32) {
        if let Some(entry) = nodes.entry(node).filter(|entry| entry.may_wait_in_log()) {
            self.logged.0 += 1;
            self.logged.1 += entry.body_bytes();
        }
        if let Some(ends) = &mut self.class_ends {
            let class = class_of(nodes.tag(node));
            let next = nodes.next(node);
            if next == NIL || class_of(nodes.tag(next)) != class {
                ends[class % CLASSES] = node;
            }
        }
    }

    /// Notes an entry that is about to leave the queue.
    pub(crate) fn leaves(&mut self, nodes: &Nodes, node: u32) {
        if self.returned_last == node {
            self.returned_last = NIL;
        }
        if let Some(entry) = nodes.entry(node).filter(|entry| entry.may_wait_in_log()) {
            self.logged.0 -= 1;
            self.logged.1 -= entry.body_bytes();
        }
        if let Some(ends) = &mut self.class_ends {
            let class = class_of(nodes.tag(node));
            let end = &mut ends[class % CLASSES];
            if *end == node {
                let previous = nodes.previous(node);
                let is_same = previous != NIL && class_of(nodes.tag(previous)) == class;
                *end = if is_same { previous } else { NIL };
            }
        }
    }

    /// The entry of the queue that goes behind one of this tag, or [`NIL`] where that is the last.
    ///
    /// Most returned messages are older than all that wait; otherwise the last that came back is mostly the
    /// neighbour. Only a consumer that returns many in a wild order causes long searches. They pass at most all
    /// messages of the class in the queue.
    pub(crate) fn successor(&self, nodes: &Nodes, tag: u64) -> u32 {
        let mut first = self.queue.first();
        if let Some(ends) = &self.class_ends {
            let class = class_of(tag).min(CLASSES - 1);
            let end = ends[class];
            if end != NIL && tag >= nodes.tag(end) {
                return nodes.next(end);
            }
            if let Some(end) = ends[..class].iter().rev().find(|&&end| end != NIL) {
                first = nodes.next(*end);
            }
        }
        if first == NIL || tag < nodes.tag(first) {
            return first;
        }
        let mut node = if self.returned_last == NIL {
            first
        } else {
            self.returned_last
        };
        while node != NIL && tag < nodes.tag(node) {
            node = nodes.previous(node);
        }
        // The first goes before, so this ends at one that does.
        while node != NIL && tag >= nodes.tag(node) {
            node = nodes.next(node);
        }
        node
    }

    /// Keeps the queue from now on, or no longer.
    pub(crate) fn keep(&mut self, fill: Option<&Arc<Fill>>, rules: Option<&Arc<QueueRules>>) {
        self.is_kept = fill.is_some();
        if let Some(rules) = rules {
            if rules.has_priorities && self.class_ends.is_none() {
                let mut ends = Box::new([NIL; CLASSES]);
                // Messages that wait without a priority are of the first class.
                ends[0] = self.queue.last();
                self.class_ends = Some(ends);
            }
            self.rules = Some(Arc::clone(rules));
        }
        if let (None, Some(fill)) = (&self.fill, fill) {
            fill.add(
                (self.waiting() + self.delayed_len()) as u64,
                self.queued_bytes,
            );
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

    /// Lists the members that choose as available if they are.
    pub(crate) fn list_choosers(&mut self) {
        for at in 0..self.choices.len() {
            if let Some((&member, _)) = self.choices.pair_at_mut(at) {
                self.list_if_available(member);
            }
        }
    }

    /// Lists a member as available if it is, and there may be something for it.
    pub(crate) fn list_if_available(&mut self, id: u32) {
        if !self.choices.is_empty()
            && self
                .choices
                .get(&id)
                .is_some_and(|choice| !choice.may_choose(&self.tail))
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
            let had_permit = known.permit().is_some();
            known.flags = flags;
            known.context = context;
            let permit = known.permit();
            if known.attendance != 0 && (had_permit || permit.is_some()) {
                let first = self.queue.first();
                if let Some(choice) = self.choices.get_mut(&id) {
                    choice.set_permit(permit, first);
                } else {
                    let choice = Choice::new(None, permit, first);
                    self.choices.insert(id, choice, hashing);
                }
                self.list_if_available(id);
            }
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
    pub(crate) fn refuse(
        &mut self,
        id: u32,
        attendance: u32,
        tag: u64,
        limit: usize,
        hashing: KeyedState,
    ) {
        let member = self.members.get(&id);
        if attendance == 0 || member.is_none_or(|member| member.attendance != attendance) {
            return;
        }
        if self.choices.get(&id).is_none() {
            let permit = self.members.get(&id).and_then(Member::permit);
            let choice = Choice::new(None, permit, self.queue.first());
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

    /// Whether a member has no right now, which may come back.
    pub(crate) fn has_resting_member(&self) -> bool {
        let is_resting =
            |member: &Member| (member.context.as_ref()).is_some_and(|context| context.is_resting());
        self.members.iter().any(|(_, member)| is_resting(member))
    }

    /// Whether no member, connected or away, may get messages of a topic. Those of a kept queue wait
    /// for members that are yet to come.
    pub(crate) fn is_for_nobody(&self, topic: &str) -> bool {
        !self.is_kept && !self.members.iter().any(|(_, member)| member.permits(topic))
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
            debug_assert!(self.attending < self.members.len(), "members attend");
        }
    }
}

impl<P> Queues<P> {
    /// Appends a message to a group's queue, if its limits allow. A kept queue has been asked before:
    /// the publisher has `reserved` its room. `was_on_way` says whether another shard has published it, or its
    /// publisher cannot wait.
    pub(crate) fn push_to_group(
        &mut self,
        now_ms: u64,
        id: u32,
        message: &Arc<Message>,
        position: u64,
        (reserved, was_on_way): (bool, bool),
    ) {
        self.read_unread(id);
        let Some(group) = self.groups.get(&id) else {
            return;
        };
        let body_bytes = message.body_bytes() as u64;
        if reserved && let Some(fill) = &group.fill {
            // Messages that enter the queue are counted then.
            fill.remove(1, body_bytes);
        }
        if !group.is_kept && !self.group_admits(now_ms, id, message, was_on_way) {
            if message.qos().is_acknowledged() {
                self.settle_in_group(id, position);
            }
            return;
        }
        let is_kept = (self.groups.get(&id)).is_some_and(|group| group.is_kept);
        let is_logged = is_kept || message.qos().is_acknowledged();
        let position = if is_logged { position } else { 0 };
        self.enter_group(now_ms, id, message, position, Attempts::default());
    }

    /// Puts a message into a group's queue, or among those that are not due yet. Attempts to deliver it have failed, or
    /// it may have been sent.
    pub(crate) fn enter_group(
        &mut self,
        now_ms: u64,
        id: u32,
        message: &Arc<Message>,
        position: u64,
        attempts: Attempts,
    ) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        // In a kept queue also messages of QoS 0 are settled.
        let qos = if group.is_kept || position != 0 {
            message.qos().max(Qos::AtLeastOnce)
        } else {
            message.qos()
        };
        let entry = Entry {
            qos,
            group: id,
            failures: attempts.failures,
            redelivered: attempts.was_sent,
            position: if group.log.is_some() { position } else { 0 },
            ..Entry::waiting(group.next_tag(message), Arc::clone(message))
        };
        let reader = group.rules.as_ref().map(|rules| &rules.reader);
        let due_ms = reader.and_then(|reader| reader.due_ms(message));
        if self.road.is_some()
            && let Some(group) = self.groups.get(&id)
        {
            let (reader, waiting) = (&*group.filter, group.waiting() + 1);
            self.saw(message, Step::Queued { reader, waiting });
        }
        self.note_in_group(id, entry.position, |log| log.enter(position, attempts));
        self.count_into_group(now_ms, id, &entry);
        match due_ms.filter(|&due_ms| due_ms > now_ms) {
            Some(due_ms) => self.hold_in_group(id, due_ms, entry),
            None => self.wait_in_group(id, entry),
        }
    }

    /// Whether a queue that isn't kept may take another message; makes room where that is the rule.
    fn group_admits(&mut self, now_ms: u64, id: u32, message: &Message, was_on_way: bool) -> bool {
        let Some(group) = self.groups.get(&id) else {
            return false;
        };
        if group.is_for_nobody(message.topic()) {
            return false;
        }
        if group.attending == 0 && !message.qos().is_acknowledged() {
            self.lose_of_group(id, Some(message), LossReason::Away);
            return false;
        }
        let is_pressed = if group.log.is_some() && message.qos().is_acknowledged() {
            self.pressure >= Pressure::Drop
        } else {
            self.is_over_memory || (group.log.is_some() && self.is_window_full(group))
        };
        if is_pressed && (group.attending == 0 || group.waiting() > 0) {
            self.lose_of_group(id, Some(message), LossReason::Full);
            return false;
        }
        let body_bytes = message.body_bytes() as u64;
        loop {
            let Some(group) = self.groups.get(&id) else {
                return false;
            };
            let fits = group.waiting() == 0
                || (group.waiting() < self.limits.group_queued_messages
                    && group.queued_bytes + body_bytes <= self.limits.group_queued_bytes as u64);
            if fits {
                let has_half = group.waiting() >= self.limits.group_queued_messages / 2
                    || group.queued_bytes >= self.limits.group_queued_bytes as u64 / 2;
                if has_half && message.qos().is_acknowledged() {
                    self.crowd(now_ms, QueueKey::Group(id));
                }
                return true;
            }
            if was_on_way
                && message.qos().is_acknowledged()
                && self.takes_on_way(QueueKey::Group(id))
            {
                return true;
            }
            if self.limits.queue_full == QueueFull::DropNewest {
                self.lose_of_group(id, Some(message), LossReason::Full);
                return false;
            }
            self.drop_first_of_group(id, Some(LossReason::Full));
        }
    }

    /// Counts an entry that a group's queue takes, and sees to what follows.
    pub(crate) fn count_into_group(&mut self, now_ms: u64, id: u32, entry: &Entry) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let body_bytes = entry.body_bytes();
        if group.root.is_some() {
            self.weighed.push(id);
        }
        group.queued_bytes += body_bytes;
        if let Some(fill) = &group.fill {
            fill.add(1, body_bytes);
        }
        let message = entry.message.as_ref();
        let expires_at_ms = message.and_then(|message| message.expires_at_ms());
        group.sweep_by(now_ms, expires_at_ms.unwrap_or(NEVER_MS));
        self.set_group_timer(id);
    }

    /// Counts out what has left a group's queue.
    pub(crate) fn count_out_of_group(&mut self, id: u32, body_bytes: u64) {
        if let Some(group) = self.groups.get_mut(&id) {
            if group.root.is_some() {
                self.weighed.push(id);
            }
            group.queued_bytes -= body_bytes;
            if let Some(fill) = &group.fill {
                fill.remove(1, body_bytes);
            }
            debug_assert!(
                group.queued_bytes == 0 || group.waiting() + group.delayed_len() > 0,
                "an empty queue has no bytes"
            );
        }
        if !self.holders.is_empty() {
            self.look_at_holder(QueueKey::Group(id));
        }
    }

    /// Notes that a group may have something to dispatch.
    pub(crate) fn mark_dirty(&mut self, id: u32) {
        if let Some(group) = self.groups.get_mut(&id)
            && !group.is_dirty
            && group.waiting() > 0
            && !group.available.is_empty()
        {
            group.is_dirty = true;
            self.dirty_groups.push(id);
        }
    }

    /// Takes an entry out of a group's queue; it is not settled by that.
    pub(crate) fn remove_from_group(&mut self, id: u32, node: u32) -> Option<Entry> {
        let entry = self.take_out(id, node)?;
        self.count_out_of_group(id, entry.body_bytes());
        Some(entry)
    }

    /// Drops what no member of a group may get any more.
    pub(crate) fn drop_forbidden(&mut self, id: u32) {
        let Some(group) = self.groups.get(&id) else {
            return;
        };
        let mut members = group.members.iter();
        if self.branches.is_on
            || group.is_kept
            || group.has_resting_member()
            || members.any(|(_, member)| member.permit().is_none())
        {
            return;
        }
        let mut node = group.queue.first();
        while node != NIL {
            let next = self.nodes.next(node);
            let entry = self.nodes.entry(node);
            let message = entry.and_then(|entry| entry.message.as_ref());
            let group = self.groups.get(&id);
            if let (Some(message), Some(group)) = (message, group)
                && group.is_for_nobody(message.topic())
                && let Some(entry) = self.remove_from_group(id, node)
            {
                self.settle_in_group(id, entry.position);
            }
            node = next;
        }
    }

    /// Drops a group with its queue.
    pub(crate) fn end_group(&mut self, id: u32) {
        self.forget_holder(QueueKey::Group(id));
        if let Some(group) = self.groups.remove(&id) {
            self.timers.remove(&(group.timer_ms, QueueKey::Group(id)));
            self.drain(group.queue);
            self.counters.logged_messages -= group.tail.len() as u64;
            if let Some(delayed) = group.delayed {
                self.counters.logged_messages -= delayed.logged_len() as u64;
                self.drain(delayed.list());
            }
            if group.log.is_some() || self.unread.remove(&id).is_some() {
                self.changes
                    .push(records::remove(Kind::Group, &group.filter, &[]));
            }
        }
    }

    /// Sets a group's one timer to what it waits for.
    pub(crate) fn set_group_timer(&mut self, id: u32) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let timer_ms = group.sweep_at_ms.min(group.due_ms());
        if timer_ms != group.timer_ms {
            self.timers.remove(&(group.timer_ms, QueueKey::Group(id)));
            if timer_ms != NEVER_MS {
                self.timers.insert((timer_ms, QueueKey::Group(id)));
            }
            group.timer_ms = timer_ms;
        }
    }

    /// Puts messages that have come due into a group's queue, and drops its expired ones.
    pub(crate) fn group_timeout(&mut self, now_ms: u64, id: u32) {
        self.release_due(now_ms, id);
        let sweeps = (self.groups.get(&id)).is_some_and(|group| group.sweep_at_ms <= now_ms);
        if sweeps {
            self.sweep_group(now_ms, id);
        }
        self.set_group_timer(id);
    }

    /// Drops the expired messages of a group.
    fn sweep_group(&mut self, now_ms: u64, id: u32) {
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
                    self.settle_in_group(id, entry.position);
                    self.lose_of_group(id, entry.message.as_deref(), LossReason::Expired);
                }
            } else {
                earliest_ms = earliest_ms.min(expires_at_ms);
            }
            node = next;
        }
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let (expired, next_ms) = group.tail.take_expired(now_ms);
        earliest_ms = earliest_ms.min(next_ms);
        for waiting in expired {
            self.left_log(id, &waiting);
            self.lose_of_group(id, None, LossReason::Expired);
        }
        if let Some(group) = self.groups.get_mut(&id) {
            group.sweep_at_ms = next_sweep_ms(now_ms, earliest_ms, group.waiting());
        }
    }
}
