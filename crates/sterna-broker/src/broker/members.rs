//! Shared subscriptions between the shard of a group and the shards of its members.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::Broker;
use super::branches::RootTold;
use crate::api::DoorState;
use crate::attempts::Comeback;
use crate::choice::{Choice, Pick};
use crate::group::Group;
use crate::ledger::Owed;
use crate::losses::LossReason;
use crate::mail::{Assign, Attend, Letter, Returned};
use crate::message::Qos;
use crate::nodes::NIL;
use crate::queues::{Item, QueueKey};
use crate::route::RouteUpdate;
use crate::selecting::Asked;
use crate::session::{BrokerSession, DemandShare, Subscription};

impl<P: DoorState> Broker<P> {
    // On the member's shard.

    /// The groups a session is a member of.
    pub(super) fn groups_of(&self, slot: u32) -> Vec<u32> {
        let session = &self.queues.sessions[slot];
        let groups = session
            .subscriptions
            .iter()
            .filter(|(_, subscription)| !subscription.is_resting())
            .map(|(_, subscription)| subscription.group);
        groups.filter(|&group| group != NIL).collect()
    }

    /// Tells all groups of a session that it is connected.
    pub(super) fn attend_groups(&mut self, slot: u32) {
        let groups = self.groups_of(slot);
        if groups.is_empty() {
            return;
        }
        // Messages that it holds from before take up its window.
        let mut held: FxHashMap<u32, u32> = FxHashMap::default();
        let session = &self.queues.sessions[slot];
        let mut node = session.ledger.first();
        while node != NIL {
            if let Some(entry) = self.queues.nodes.entry(node)
                && entry.group != NIL
            {
                *held.entry(entry.group).or_default() += 1;
            }
            node = self.queues.nodes.next(node);
        }
        for group in groups {
            self.attend_group(slot, group, held.get(&group).copied().unwrap_or(0));
        }
    }

    /// Tells a group that its member is connected.
    pub(super) fn attend_group(&mut self, slot: u32, group: u32, held: u32) {
        let session = &self.queues.sessions[slot];
        let (member, attendance) = (session.subscriber, session.attendance);
        let selector = session.selector().map(Arc::clone);
        let mut window = self.queues.limits.group_window;
        let mut credit = window.saturating_sub(held);
        let session = &mut self.queues.sessions[slot];
        if let Some(demand) = session.demand_mut() {
            (window, credit) = (u32::MAX, 0);
            demand.shares.push(DemandShare {
                group,
                outstanding: 0,
                pending: 0,
                recalls: 0,
            });
        }
        if let Some(home) = self.index.home(group) {
            let attend = Attend {
                group,
                member,
                attendance,
                credit,
                window,
                selector,
            };
            self.send(home, Letter::Attend(Box::new(attend)));
        }
        self.balance(slot);
    }

    /// Tells all groups of a session that it is no longer connected.
    pub(super) fn detach_groups(&mut self, slot: u32) {
        let session = &self.queues.sessions[slot];
        let (member, attendance) = (session.subscriber, session.attendance);
        for group in self.groups_of(slot) {
            if let Some(home) = self.index.home(group) {
                self.send(
                    home,
                    Letter::Detach {
                        group,
                        member,
                        attendance,
                    },
                );
            }
        }
    }

    /// Gives messages back to their groups.
    pub(super) fn give_back(&mut self, mut messages: Vec<(u32, Returned)>) {
        // Each goes to another member, which may end next.
        self.copies.made(messages.len(), 0);
        // Stable: the order within a group is kept.
        messages.sort_by_key(|&(group, _)| group);
        let mut messages = messages.into_iter().peekable();
        while let Some((group, first)) = messages.next() {
            let mut of_group = vec![first];
            while let Some((_, next)) = messages.next_if(|&(next, _)| next == group) {
                of_group.push(next);
            }
            if let Some(home) = self.index.home(group) {
                self.send(
                    home,
                    Letter::Return {
                        group,
                        messages: of_group,
                    },
                );
            }
        }
    }

    /// A group has chosen a session of this shard for a message.
    pub(super) fn assigned(&mut self, now_ms: u64, assign: Assign) {
        let Assign {
            home,
            group,
            slot,
            generation,
            attendance,
            message,
            redelivered,
            ..
        } = assign;
        let filter = self.index.filter_of_group(group);
        // The group may not have known yet.
        let rests = |session: &BrokerSession<P>| {
            let rare = session.rare.as_ref();
            rare.is_some_and(|rare| rare.has_resting_group)
                && filter
                    .and_then(|filter| session.subscriptions.get(filter))
                    .is_some_and(Subscription::is_resting)
        };
        let attends = self
            .queues
            .session(slot, generation)
            .is_some_and(|session| {
                session.is_connected()
                    && session.attendance == attendance
                    && session.is_active()
                    && !rests(session)
                    && session.may_be_assigned(group)
            });
        if !attends {
            let messages = vec![Returned {
                message,
                tag: assign.tag,
                failures: assign.failures,
                position: assign.position,
                redelivered,
                refused_by: None,
                why: Comeback::GivenBack,
            }];
            self.send(home, Letter::Return { group, messages });
            return;
        }
        self.queues.push(
            now_ms,
            slot,
            Item {
                message,
                context: assign.context,
                group,
                group_tag: assign.tag,
                failures: assign.failures,
                qos: assign.qos,
                retain: assign.retain,
                redelivered,
                retained_copy: false,
                is_kept: assign.is_kept,
                position: assign.position,
            },
        );
        // Where the consumer takes less by now than when the group was granted it.
        if self.queues.sessions[slot].is_on_demand {
            self.balance(slot);
        }
    }

    /// Tells a group that its member has done with a message.
    pub(super) fn pay(&mut self, owed: Owed) {
        let Owed {
            group,
            member,
            attendance,
            ..
        } = owed;
        let Some(home) = self.index.home(group) else {
            return;
        };
        // Several in a row become one letter.
        let (mut credit, mut settled) = (0, Vec::new());
        let mut next = Some(owed);
        while let Some(owed) = next {
            credit += owed.credit;
            if owed.position != 0 {
                settled.push(owed.position);
            }
            next = self.queues.owed.pop_if(|next| {
                (next.group, next.member, next.attendance) == (group, member, attendance)
            });
        }
        if credit == 0 && settled.is_empty() {
            return; // a consumer on demand has settled
        }
        self.send(
            home,
            Letter::Credit {
                group,
                member,
                attendance,
                credit,
                settled,
            },
        );
    }

    // On the group's shard.

    /// Keeps groups in step with the route log.
    pub(super) fn apply_to_groups(&mut self, update: &RouteUpdate) {
        match update {
            RouteUpdate::Joined {
                group,
                filter,
                member,
                flags,
                context,
            } => {
                if self.index.home(*group) != Some(self.shard) {
                    return;
                }
                let mut is_new = false;
                let known = self.queues.groups.entry(*group).or_insert_with(|| {
                    is_new = true;
                    Group::new(Arc::clone(filter))
                });
                known.add_member(*member, *flags, context.clone(), self.directory.hashing());
                known.is_kept |= is_new && self.queues.branches.is_queue(filter);
                if is_new && self.queues.branches.is_on {
                    let position = self.queues.store.next_position();
                    self.queues.branches.begin(*group, filter, position);
                }
                if !is_new && (context.as_ref()).is_some_and(|context| context.permit.is_some()) {
                    self.queues.drop_forbidden(*group);
                }
                self.queues.mark_dirty(*group);
            }
            RouteUpdate::Kept {
                group: id,
                fill,
                rules,
                is_durable,
                since,
                ..
            } => {
                if self.queues.branches.is_on {
                    // Its root reads the log.
                    if let Some(name) = self.queues.branches.name(*id).cloned()
                        && fill.is_some()
                    {
                        // Before the branch wants a root.
                        self.queues.branches.know_queue(&name);
                        self.far.told.push_back(RootTold::Declared { group: name });
                    }
                    return;
                }
                let watermark = self.queues.watermark();
                if let Some(group) = self.queues.groups.get_mut(id) {
                    let was_kept = group.is_kept;
                    group.keep(fill.as_ref(), rules.as_ref());
                    if group.is_kept != was_kept
                        && let Some(log) = &mut group.log
                    {
                        // Messages of QoS 0 are its too from now on, or no longer.
                        log.begin_anew(watermark);
                    }
                    let is_durable = *is_durable && self.queues.is_durable;
                    if !self.restore_group(*id, is_durable) {
                        self.queues.set_group_log(*id, is_durable, *since);
                    }
                }
            }
            RouteUpdate::Left { group: id, member } => {
                self.queues.branches.touch(*id);
                if let Some(group) = self.queues.groups.get_mut(id) {
                    group.remove_member(*member);
                    self.queues.note_left(*id);
                    self.queues.look_at_holder(QueueKey::Group(*id));
                    self.queues.drop_forbidden(*id);
                }
            }
            RouteUpdate::GroupEnded { group, .. } => {
                self.queues.end_group(*group);
                self.queues.branches.end(*group);
            }
            RouteUpdate::Placed { .. }
            | RouteUpdate::Subscribed { .. }
            | RouteUpdate::Slept { .. }
            | RouteUpdate::Unsubscribed { .. }
            | RouteUpdate::Peers { .. }
            | RouteUpdate::HandedOver { .. } => {}
        }
    }

    pub(super) fn member_attends(&mut self, now_ms: u64, attend: Attend) {
        let Attend {
            group: id,
            member,
            attendance,
            credit,
            window,
            selector,
        } = attend;
        let hashing = self.directory.hashing();
        self.queues.branches.touch(id);
        if credit > 0 {
            self.queues.read_unread(id);
        }
        let Some(group) = self.queues.groups.get_mut(&id) else {
            return;
        };
        let mut is_first = false;
        if let Some(known) = group.members.get_mut(&member) {
            if known.attendance == 0 {
                group.attending += 1;
                is_first = group.attending == 1 && group.root.is_none();
            }
            known.attendance = attendance;
            known.credit = credit;
            known.window = window;
            group.choices.remove(&member);
            let permit = known.permit();
            if selector.is_some() || permit.is_some() {
                let selector = selector.map(|one| (Asked::Member(member, attendance), one));
                let choice = Choice::new(selector, permit, group.queue.first());
                group.choices.insert(member, choice, hashing);
            }
            group.list_if_available(member);
            self.queues.mark_dirty(id);
        }
        if is_first {
            // Messages that its members are sent until the process ends may come again.
            self.queues.write_group_cursor(id);
        }
        self.is_for_new_member(now_ms, id);
    }

    pub(super) fn member_credited(
        &mut self,
        now_ms: u64,
        id: u32,
        member: u32,
        attendance: u32,
        credit: u32,
        settled: &[u64],
    ) {
        for &position in settled {
            self.queues.settle_in_group(id, position);
        }
        self.queues.branches.touch(id);
        if credit > 0 {
            self.queues.read_unread(id);
            self.has_room_again(now_ms, id);
        }
        let Some(group) = self.queues.groups.get_mut(&id) else {
            return;
        };
        if let Some(known) = group.members.get_mut(&member)
            && known.attendance == attendance
        {
            known.credit = known.credit.saturating_add(credit).min(known.window);
            group.list_if_available(member);
            self.queues.mark_dirty(id);
        }
    }

    /// Hands a group's messages to the members whose turn it is.
    pub(super) fn dispatch(&mut self, now_ms: u64, id: u32) {
        let home = self.shard;
        self.queues.branches.touch(id);
        let root = self.queues.groups.get_mut(&id).and_then(|group| {
            group.is_dirty = false;
            group.root.map(|_| Arc::clone(&group.filter))
        });
        if (root.as_ref()).is_some_and(|name| !self.may_give(name)) {
            return;
        }
        let mut waits_for_log = Vec::new();
        loop {
            let Some(group) = self.queues.groups.get_mut(&id) else {
                return;
            };
            if group.waiting() == 0 {
                break;
            }
            let Some(member) = group.next_member() else {
                break;
            };
            let node = match self.queues.pick_from_group(now_ms, id, member) {
                Pick::Entry(node) => node,
                Pick::InLog => {
                    waits_for_log.push(member);
                    continue;
                }
                // It has its turn again when something comes that it hasn't seen, or in the next turn.
                Pick::Nothing | Pick::Later => continue,
            };
            let entry = self.queues.remove_from_group(id, node);
            let message = entry.as_ref().and_then(|entry| entry.message.clone());
            let (Some(entry), Some(message)) = (entry, message) else {
                return;
            };
            let Some(group) = self.queues.groups.get_mut(&id) else {
                return;
            };
            let expired = message.is_expired(now_ms);
            if root.is_some() && !expired {
                self.assign_to_branch(id, member, &entry);
                continue;
            }
            let place = self.index.place(member);
            let (Some(place), Some(known), false) =
                (place, group.members.get_mut(&member), expired)
            else {
                group.list_if_available(member);
                self.queues.settle_in_group(id, entry.position);
                if expired {
                    let reason = LossReason::Expired;
                    (self.queues).lose_of_group(id, Some(&message), reason);
                }
                continue;
            };
            debug_assert!(
                known.credit > 0 && known.credit <= known.window,
                "who has its turn may be given a message"
            );
            known.credit -= 1;
            let is_kept = group.is_kept;
            let qos = if is_kept {
                entry.qos.min(known.flags.qos()).max(Qos::AtLeastOnce)
            } else {
                message.qos().min(known.flags.qos()) // [MQTT-4.8.2-3]
            };
            let assign = Assign {
                home,
                group: id,
                tag: entry.tag,
                failures: entry.failures,
                is_kept,
                position: entry.position,
                slot: place.slot,
                generation: place.generation,
                attendance: known.attendance,
                qos,
                retain: message.retain() && known.flags.retain_as_published(),
                context: known.context.clone(),
                redelivered: entry.redelivered,
                message,
            };
            group.list_if_available(member);
            let position = entry.position;
            (self.queues).note_in_group(id, position, |log| log.assign(position));
            self.send(place.shard, Letter::Assign(Box::new(assign)));
        }
        if let Some(group) = self.queues.groups.get_mut(&id) {
            for member in waits_for_log {
                group.list_if_available(member);
            }
            if !group.tail.is_empty() {
                self.queues.hungry_groups.push(id);
            }
        }
        self.queues.trim_window(id);
        if let Some(name) = root {
            self.hand_out(&name);
        }
    }
}
