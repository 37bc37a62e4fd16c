//! Queues of a cluster: the queue that a root has as a whole, and what nodes know of it. See
//! [`far_group`](crate::far_group).

use std::sync::Arc;

use super::Broker;
use crate::api::{DoorState, PublishRefusal, SubscribeError, SubscribeOptions};
use crate::attempts::{Attempts, Comeback};
use crate::far_group::{
    Back, Given, Held, LONGEST_GROUP_BYTES, Peer, QueueRoot, Root, RootQueue, Word, group_number,
    group_of_root, is_full,
};
use crate::filter::Filter;
use crate::group::Group;
use crate::group_reader::GroupReader;
use crate::mail::{Letter, Returned};
use crate::message::{Message, Qos};
use crate::name::SessionName;
use crate::nodes::{Entry, NIL};
use crate::peers::stays;
use crate::queue_rules::{DeathCause, QueueRules};
use crate::queues::{Dead, Queues};
use crate::route::{RouteFlags, RouteUpdate};
use crate::session::{BrokerSession, NEVER_MS};
use crate::store::Share;

/// The key of the record that a root is a queue's, among the records of its session.
pub(crate) const QUEUE_KEY: &[u8] = b"queue";

/// Nodes are told again that a queue is full after this number of `group_seek_interval_ms`.
const SAY_FULL_INTERVALS: u64 = 2;

/// A queue is not full any more after this number of intervals, where nobody has said so again.
const FULL_INTERVALS: u64 = 10;

/// The owner of a queue of a cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueOwner(Option<Arc<str>>);

impl QueueOwner {
    /// The node's name; `None` where that is not known at the moment.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl<P: DoorState> Broker<P> {
    // Calls for the caller.

    /// Has a queue on this node of a cluster, and gives it its rules, in place of those that it had. Where a node
    /// has the root of that queue, it is the same queue; otherwise this node may get the root. To be called on any
    /// shard.
    ///
    /// # Errors
    /// [`SubscribeError::InvalidFilter`] where it is no shared subscription, or one that stays on its node.
    pub fn declare_queue(
        &mut self,
        now_ms: u64,
        filter: &str,
        rules: QueueRules,
    ) -> Result<(), SubscribeError> {
        let parsed = Filter::parse(filter, &self.queues.limits);
        let is_valid = parsed.is_some_and(|parsed| parsed.shared && !stays(parsed.topics));
        if !is_valid || filter.len() > LONGEST_GROUP_BYTES {
            return Err(SubscribeError::InvalidFilter);
        }
        let flags = RouteFlags::of(&SubscribeOptions {
            qos: Qos::ExactlyOnce,
            keep: true,
            ..SubscribeOptions::default()
        });
        let (filter, rules): (Arc<str>, _) = (filter.into(), Arc::new(rules));
        self.edit_log(|log| {
            if !log.keeps_queue(&filter) {
                // A member that never attends, and never leaves.
                let member = log.take_id();
                if let Some(group) = log.join_group(&filter, usize::MAX) {
                    log.push(RouteUpdate::Joined {
                        group,
                        filter: Arc::clone(&filter),
                        member,
                        flags,
                        context: None,
                    });
                    log.keep_group(&filter, None, Some(flags));
                }
            }
            log.set_rules(&filter, rules);
        });
        self.send(
            Share::home(&filter, self.directory.shards()),
            Letter::CatchUp,
        );
        self.finish(now_ms);
        Ok(())
    }

    /// The whole filters of queues that other nodes have and this one has not declared, each once. To be called at the
    /// end of a turn.
    pub fn take_found_queues(&mut self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.far.found)
    }

    /// Names of sessions that were another node's and go on here, away, each once. To be called at the end of a
    /// turn.
    pub fn take_adopted(&mut self) -> Vec<SessionName> {
        std::mem::take(&mut self.far.adopted)
    }

    /// The owner of a queue as a whole, by its whole filter. `None` where it is no queue of a cluster, or another
    /// shard is its home.
    #[must_use]
    pub fn queue_owner(&self, filter: &str) -> Option<QueueOwner> {
        let branch = self.queues.branches.get(filter)?;
        let owner = branch.owner.as_ref();
        (branch.is_queue).then(|| QueueOwner(owner.map(|owner| Arc::clone(&owner.peer.node))))
    }

    // Known queues.

    /// A letter tells that a group is a queue.
    pub(super) fn queue_is_found(&mut self, name: &Arc<str>) {
        if !self.queues.branches.know_queue(name) {
            return;
        }
        self.keep_in_branch(name);
        if self.rules_of_queue(name).is_none() {
            self.far.found.push(Arc::clone(name));
        }
    }

    /// Has what a branch gives its members be as a queue has it.
    fn keep_in_branch(&mut self, name: &str) {
        let id = self.queues.branches.get(name).and_then(|branch| branch.id);
        if let Some(group) = id.and_then(|id| self.queues.groups.get_mut(&id)) {
            group.is_kept = true;
        }
    }

    /// The rules that this node has for a queue.
    fn rules_of_queue(&self, name: &str) -> Option<Arc<QueueRules>> {
        let branch = self.queues.branches.get(name)?;
        self.index.rules(branch.id?).map(Arc::clone)
    }

    /// A queue has its rules on this node, or other ones.
    pub(super) fn queue_is_declared(&mut self, now_ms: u64, name: &Arc<str>) {
        self.queues.branches.know_queue(name);
        self.keep_in_branch(name);
        let Some(rules) = self.rules_of_queue(name) else {
            return;
        };
        let Some(root) = self.roots.get(name).filter(|root| root.is_open) else {
            return self.queues.branches.touch_named(name);
        };
        let Some(queue) = &root.queue else {
            return self.become_queue(now_ms, name);
        };
        if let Some(group) = self.queues.groups.get_mut(&queue.group) {
            let fill = group.fill.clone();
            group.keep(fill.as_ref(), Some(&rules));
        }
    }

    /// Whether a root is a queue's, as its records say.
    pub(super) fn is_record_of_queue(key: &[u8]) -> bool {
        key == QUEUE_KEY
    }

    /// Makes the queue of a root that is open. False where this node is yet to have rules for it.
    pub(super) fn begin_queue(&mut self, name: &Arc<str>) -> bool {
        let Some(rules) = self.rules_of_queue(name) else {
            return false;
        };
        let Some(root) = self.roots.get_mut(name) else {
            return false;
        };
        let session = root.session;
        let reader = self.queues.sessions[session.slot].reader.as_ref();
        let before = reader.map(|reader| reader.cursor.clone());
        let before = before.unwrap_or_default();
        self.far.queues_begun = self.far.queues_begun.wrapping_add(1);
        let id = group_number(self.far.queues_begun);
        let mut group = Group::new(Arc::clone(name));
        group.root = Some(session.slot);
        group.log = Some(Box::new(GroupReader::restored(&before)));
        group.keep(Some(&Arc::default()), Some(&rules));
        root.queue = Some(Box::new(QueueRoot::new(id)));
        self.queues.groups.insert(id, group);
        let known = RootQueue::new(id, before);
        self.queues.roots.insert(session.slot, known);
        self.keep(session, QUEUE_KEY, &[1]);
        true
    }

    /// Forgets the queue of a root that is another node's from now on.
    pub(super) fn end_queue(&mut self, root: &Root) {
        let Some(queue) = &root.queue else {
            return;
        };
        let slot = root.session.slot;
        if (self.queues.roots.get(&slot)).is_some_and(|known| known.group == queue.group) {
            self.queues.roots.remove(&slot);
        }
        if let Some(group) = self.queues.groups.get_mut(&queue.group) {
            // The session has its cursor.
            group.log = None;
        }
        self.queues.end_group(queue.group);
    }

    /// Tells processes that have come which queues there are: they have them, too.
    pub(super) fn tell_of_queues(&mut self, peers: &[Peer]) {
        let known = self.roots.iter().filter(|(_, root)| root.is_known);
        let queues: Vec<_> = known
            .filter(|(_, root)| root.queue.is_some())
            .map(|(name, root)| (Arc::clone(name), root.epoch))
            .collect();
        for peer in peers {
            for (name, epoch) in &queues {
                self.tell_of_group(name, Some(peer), Word::Hello { epoch: *epoch });
            }
        }
    }

    /// Whether a letter comes from a node that does not know that a group is a queue. It is told.
    pub(super) fn is_unknowing(&mut self, group: &Arc<str>, from: &Peer, word: &Word) -> bool {
        if !self.queues.branches.is_queue(group) {
            return false;
        }
        match word {
            Word::Seek | Word::Leave { .. } => false,
            Word::Attend { .. } | Word::Report { .. } => {
                if let Some(epoch) = self.roots.get(group).map(|root| root.epoch) {
                    self.tell_of_group(group, Some(from), Word::Hello { epoch });
                }
                true
            }
            _ => {
                self.tell_of_group(group, Some(from), Word::Seek);
                true
            }
        }
    }

    /// Makes the root of a group that of a queue, which it is from now on. The messages that it has given are with
    /// its branches as after the death of its node.
    pub(super) fn become_queue(&mut self, now_ms: u64, group: &Arc<str>) {
        let Some(root) = self.roots.get_mut(group) else {
            return;
        };
        let slot = root.session.slot;
        let parked = std::mem::take(&mut root.parked);
        let own = self.far.own.clone();
        for (position, tag) in parked {
            if let Some(own) = &own {
                root.out.insert(position, (tag, own.clone()));
            }
        }
        let mut out: Vec<u64> = root.out.keys().copied().collect();
        out.sort_unstable_by(|one, other| other.cmp(one));
        let returned = out.into_iter().map(Back::sent).collect();
        let attendees = std::mem::take(&mut root.attendees);
        root.awaited.extend(attendees.into_keys());
        root.turns.clear();
        root.claimed.clear();
        root.returned_early.clear();
        root.epoch += 1;
        root.is_known = false;
        root.ends_at_ms = NEVER_MS;
        self.take_back_to_root(now_ms, group, returned);
        self.queues.write_cursor(slot);
        if self.begin_queue(group) {
            self.keep_root(group);
            self.far.unkept.push(Arc::clone(group));
            self.roots_kept();
        }
    }

    // Messages.

    /// Whether a root may give messages out.
    pub(super) fn may_give(&self, name: &str) -> bool {
        let root = self.roots.get(name);
        !self.is_unsure()
            && root.is_some_and(|root| root.is_open && root.is_known && root.awaited.is_empty())
    }

    /// Takes what has come by in the log into a root's queue.
    pub(super) fn fill_queue(&mut self, now_ms: u64, name: &Arc<str>, slot: u32) {
        // Before, a branch may say that it has some of it.
        if !self.may_give(name) {
            return;
        }
        let Some(root) = self
            .roots
            .get(name)
            .filter(|root| root.session.slot == slot)
        else {
            return;
        };
        let Some(id) = root.queue.as_ref().map(|queue| queue.group) else {
            return;
        };
        if self.queues.active_mut(root.session).is_none() {
            return;
        }
        loop {
            let node = self.queues.sessions[slot].pending.first();
            if node == NIL {
                break;
            }
            let Some(entry) = self.queues.remove_pending(slot, node) else {
                break;
            };
            self.queues.settle_position(slot, entry.position);
            self.enter_queue(now_ms, name, (slot, id), entry);
        }
        self.queues.mark_dirty(id);
    }

    fn enter_queue(&mut self, now_ms: u64, name: &str, (slot, id): (u32, u32), entry: Entry) {
        let Entry {
            position,
            message,
            redelivered,
            ..
        } = entry;
        let known = self.queues.roots.get(&slot);
        let attempts = known.map_or_else(Attempts::default, |known| known.attempts(position));
        let failures = attempts.failures;
        let (Some(root), Some(message)) = (self.roots.get_mut(name), message) else {
            return;
        };
        if root.settled_early.remove(&position) {
            return self.queues.settle_in_group(id, position);
        }
        let Some(holder) = root.claimed.remove(&position) else {
            if (self.queues).bury_failed(id, &message, None, position, failures) {
                // The earlier root had not come to it.
                return (self.queues)
                    .note_in_group(id, position, |log| log.enter(position, attempts));
            }
            let attempts = Attempts {
                was_sent: attempts.was_sent || redelivered,
                ..attempts
            };
            return (self.queues).enter_group(now_ms, id, &message, position, attempts);
        };
        // A branch has it since before this root.
        let Some(group) = self.queues.groups.get_mut(&id) else {
            return;
        };
        let tag = group.next_tag(&message);
        root.out.insert(position, (tag, holder));
        if let Some(queue) = &mut root.queue {
            (queue.held).insert(position, Held { message, failures });
        }
        let returned = root.returned_early.remove(&position);
        self.queues.note_in_group(id, position, |log| {
            let was_sent = true;
            log.enter(
                position,
                Attempts {
                    was_sent,
                    ..attempts
                },
            );
            log.assign(position);
        });
        // It has given it back meanwhile.
        if let Some(back) = returned {
            self.take_back_to_queue(now_ms, name, vec![back]);
        }
    }

    /// Gives a message of a root's queue to the branch whose turn it is.
    pub(super) fn assign_to_branch(&mut self, id: u32, member: u32, entry: &Entry) {
        let Some(group) = self.queues.groups.get_mut(&id) else {
            return;
        };
        let name = Arc::clone(&group.filter);
        if let Some(known) = group.members.get_mut(&member) {
            known.credit -= 1;
        }
        group.list_if_available(member);
        let (position, failures) = (entry.position, entry.failures);
        let (Some(root), Some(message)) = (self.roots.get_mut(&name), &entry.message) else {
            return;
        };
        let Some(queue) = &mut root.queue else {
            return;
        };
        let Some(peer) = queue.branch(member).cloned() else {
            return;
        };
        let held = Held {
            message: Arc::clone(message),
            failures,
        };
        queue.held.insert(position, held);
        root.out.insert(position, (entry.tag, peer.clone()));
        if let Some(attendee) = root.attendees.get_mut(&peer) {
            attendee.given += 1;
            attendee.giving.push(Given {
                position,
                failures,
                redelivered: entry.redelivered,
                message: Arc::clone(message),
            });
        }
        (self.queues).note_in_group(id, position, |log| log.assign(position));
    }

    /// A branch attends the root of a queue: it is a member from now on, that takes nothing yet.
    pub(super) fn seat_branch(&mut self, name: &str, peer: &Peer, attendance: u64) {
        let hashing = self.directory.hashing();
        let Some(queue) = self
            .roots
            .get_mut(name)
            .and_then(|root| root.queue.as_mut())
        else {
            return;
        };
        let (id, member) = (queue.group, queue.seat(peer));
        let Some(group) = self.queues.groups.get_mut(&id) else {
            return;
        };
        // It may by now take messages that it has refused.
        group.remove_member(member);
        let flags = RouteFlags::of(&SubscribeOptions {
            qos: Qos::ExactlyOnce,
            retain_as_published: true,
            ..SubscribeOptions::default()
        });
        group.add_member(member, flags, None, hashing);
        if let Some(known) = group.members.get_mut(&member) {
            known.attendance = attendance_of(attendance);
            known.window = u32::MAX;
            group.attending += 1;
        }
    }

    /// Says how many messages a branch takes that the root of a queue knows.
    pub(super) fn credit_branch(&mut self, name: &str, peer: &Peer) {
        let Some(root) = self.roots.get(name) else {
            return;
        };
        let (Some(queue), Some(attendee)) = (&root.queue, root.attendees.get(peer)) else {
            return;
        };
        let (id, Some(member)) = (queue.group, queue.member(peer)) else {
            return;
        };
        let credit = if attendee.is_welcome {
            attendee.most.saturating_sub(attendee.given)
        } else {
            0
        };
        if let Some(group) = self.queues.groups.get_mut(&id) {
            if let Some(known) = group.members.get_mut(&member) {
                known.credit = u32::try_from(credit).unwrap_or(u32::MAX);
            }
            group.list_if_available(member);
            self.queues.mark_dirty(id);
        }
    }

    /// A branch is none any more.
    pub(super) fn unseat_branch(&mut self, name: &str, peer: &Peer) {
        let Some(queue) = self
            .roots
            .get_mut(name)
            .and_then(|root| root.queue.as_mut())
        else {
            return;
        };
        if let Some(member) = queue.remove(peer)
            && let Some(group) = self.queues.groups.get_mut(&queue.group)
        {
            group.remove_member(member);
        }
    }

    /// A branch is done with a message of a queue, which is not out any more.
    pub(super) fn settle_in_queue(&mut self, name: &str, position: u64) {
        let Some(queue) = self
            .roots
            .get_mut(name)
            .and_then(|root| root.queue.as_mut())
        else {
            return;
        };
        queue.held.remove(&position);
        let id = queue.group;
        self.queues.settle_in_group(id, position);
    }

    /// Puts messages that branches give back into their places in a queue, or among its dead letters.
    pub(super) fn take_back_to_queue(&mut self, now_ms: u64, name: &str, returned: Vec<Back>) {
        let hashing = self.directory.hashing();
        let earlier = self.queues.dead.len();
        for back in returned {
            let position = back.position;
            let Some(root) = self.roots.get_mut(name) else {
                break;
            };
            let (Some(queue), Some((tag, peer))) =
                (root.queue.as_mut(), root.out.remove(&position))
            else {
                continue;
            };
            let Some(held) = queue.held.remove(&position) else {
                continue;
            };
            let id = queue.group;
            let failures = back.failures.max(held.failures);
            let message = match back.changed {
                Some(mut changed) => {
                    if let Some(changed) = Arc::get_mut(&mut changed) {
                        changed.charge_large(&self.gauge);
                        changed.set_changed();
                    }
                    changed
                }
                None => held.message,
            };
            if back.is_rejected {
                self.queues.dead.push(Dead {
                    group: id,
                    message,
                    tag,
                    position,
                    failures,
                    cause: DeathCause::Rejected,
                });
                continue;
            }
            let refuses = queue.member(&peer).filter(|_| back.is_refused);
            let attendance = root.attendees.get(&peer);
            let attendance = attendance.map(|attendee| attendance_of(attendee.attendance));
            let returned = Returned {
                message,
                tag,
                failures,
                position,
                redelivered: back.was_sent,
                refused_by: refuses.zip(attendance),
                why: if back.is_lost {
                    Comeback::Lost
                } else {
                    Comeback::GivenBack
                },
            };
            self.queues.take_back(now_ms, id, vec![returned], hashing);
        }
        // They come with the highest position first, as each goes to the front of the queue. Letters go to an end.
        self.queues.dead[earlier..].reverse();
    }

    /// Gives a rejected message of a branch's member to the root. False where the group is no branch of a queue.
    pub(super) fn reject_in_branch(&mut self, dead: &Dead) -> bool {
        let Some(name) = self.queues.branches.queue(dead.group).cloned() else {
            return false;
        };
        let changed = dead.message.is_changed().then(|| Arc::clone(&dead.message));
        let back = Back {
            is_rejected: true,
            changed,
            ..Back::new(dead.position, dead.failures, true)
        };
        self.queues.branches.give_back(&name, back);
        true
    }

    // Room.

    /// Tells nodes whether queues have room, where that has changed.
    pub(super) fn weigh_queues(&mut self, now_ms: u64) {
        for id in std::mem::take(&mut self.queues.weighed) {
            if let Some(group) = self.queues.groups.get(&id) {
                let name = Arc::clone(&group.filter);
                self.weigh_queue(now_ms, &name, false);
            }
        }
    }

    fn weigh_queue(&mut self, now_ms: u64, name: &Arc<str>, is_again: bool) {
        let limits = &self.queues.limits;
        let (messages, bytes) = (limits.group_queued_messages, limits.group_queued_bytes);
        let say_again_ms = SAY_FULL_INTERVALS * limits.group_seek_interval_ms;
        let Some(root) = self.roots.get_mut(name) else {
            return;
        };
        let epoch = root.epoch;
        let Some(queue) = root.queue.as_mut() else {
            return;
        };
        let Some(group) = self.queues.groups.get(&queue.group) else {
            return;
        };
        let was_full = queue.is_full;
        let is_full = is_full(group, was_full, messages as u64, bytes as u64);
        if is_full == was_full && !(is_full && is_again) {
            return;
        }
        queue.is_full = is_full;
        queue.say_full_at_ms = now_ms + say_again_ms;
        self.far.wake_by(queue.say_full_at_ms);
        self.tell_of_group(name, None, Word::Full { epoch, is_full });
    }

    /// Tells nodes again which queues are full.
    pub(super) fn say_full_again(&mut self, now_ms: u64) {
        let mut due = Vec::new();
        for (name, root) in &self.roots {
            let Some(queue) = root.queue.as_ref().filter(|queue| queue.is_full) else {
                continue;
            };
            if queue.say_full_at_ms <= now_ms {
                due.push(Arc::clone(name));
            } else {
                self.far.wake_by(queue.say_full_at_ms);
            }
        }
        for name in due {
            self.weigh_queue(now_ms, &name, true);
        }
    }

    /// The root of a queue tells whether it has room.
    pub(super) fn queue_is_full(&self, now_ms: u64, name: &Arc<str>, epoch: u64, is_full: bool) {
        let full_for_ms = FULL_INTERVALS * self.limits().group_seek_interval_ms;
        let until_ms = if is_full { now_ms + full_for_ms } else { 0 };
        self.directory.set_queue_full(name, epoch, until_ms);
    }

    /// Why a message of this node's is not taken: a queue of the cluster that it is for is full.
    pub(super) fn queues_refuse(&self, now_ms: u64, message: &Message) -> Option<PublishRefusal> {
        let is_refused =
            self.peers.is_some() && self.directory.is_queue_full(now_ms, message.topic());
        is_refused.then_some(PublishRefusal::QueueFull)
    }
}

/// The attendance of a branch as that of a member, which is never zero.
const fn attendance_of(attendance: u64) -> u32 {
    (attendance as u32) | 1 << 31
}

impl<P> Queues<P> {
    /// Whether a session is the root of a queue, which takes messages of QoS 0 as all others.
    pub(crate) fn is_for_queue_of(&self, session: &BrokerSession<P>) -> bool {
        self.branches.has_queues()
            && group_of_root(&session.name).is_some_and(|group| self.branches.is_queue(group))
    }

    /// Notes that a member may not be given a message of a branch's again. Whether it is so of all that are connected.
    pub(crate) fn is_refused_by_all(
        &mut self,
        name: &Arc<str>,
        id: u32,
        position: u64,
        refused_by: Option<(u32, u32)>,
    ) -> bool {
        let most = self.limits.group_queued_messages;
        let Some(branch) = self.branches.get_mut(name) else {
            return false;
        };
        if let Some(member) = refused_by {
            if branch.refusals.len() >= most {
                branch.refusals.clear();
            }
            branch.refusals.entry(position).or_default().push(member);
        }
        let Some(refused) = branch.refusals.get(&position) else {
            return false;
        };
        let Some(group) = self.groups.get(&id) else {
            return false;
        };
        let members = group.members.iter();
        let mut attending = members
            .filter(|(_, member)| member.attendance != 0)
            .peekable();
        attending.peek().is_some()
            && attending.all(|(id, member)| refused.contains(&(*id, member.attendance)))
    }
}
