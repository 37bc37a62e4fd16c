//! The queue of a branch's group: the root fills it, and gets back what no member takes.

use std::sync::Arc;

use crate::far_group::{Back, Given};
use crate::hash::KeyedState;
use crate::losses::LossReason;
use crate::message::Qos;
use crate::nodes::{Entry, NIL};
use crate::queues::Queues;
use crate::selecting::Taste;

impl<P> Queues<P> {
    /// How many messages a branch takes at this moment: as its members do, and as far as it may hold them.
    pub(super) fn room_of_branch(&self, name: &str) -> u64 {
        let Some(branch) = self.branches.get(name) else {
            return 0;
        };
        let group = branch.id.and_then(|id| self.groups.get(&id));
        let members = group.into_iter().flat_map(|group| group.members.iter());
        let attending = members.filter(|(_, member)| member.attendance != 0);
        let wanted: u64 = attending.map(|(_, member)| u64::from(member.credit)).sum();
        let room = (self.limits.branch_messages).saturating_sub(branch.held.len());
        wanted.min(room as u64)
    }

    /// How many members of a branch are connected.
    pub(super) fn members_of_branch(&self, name: &str) -> u32 {
        let branch = self.branches.get(name);
        let id = branch.and_then(|branch| branch.id);
        let group = id.and_then(|id| self.groups.get(&id));
        group.map_or(0, |group| {
            u32::try_from(group.attending).unwrap_or(u32::MAX)
        })
    }

    /// Puts a message that the root has given into the queue of a branch's group.
    pub(super) fn enter_branch(
        &mut self,
        now_ms: u64,
        id: u32,
        given: Given,
        (name, hashing): (&str, KeyedState),
    ) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let Given {
            position,
            failures,
            redelivered,
            message,
        } = given;
        let tag = group.next_tag(&message);
        let branch = self.branches.get(name);
        let refusals = branch.and_then(|branch| branch.refusals.get(&position));
        for &(member, attendance) in refusals.into_iter().flatten() {
            let limit = self.limits.group_queued_messages;
            group.refuse(member, attendance, tag, limit, hashing);
        }
        let qos = if position == 0 {
            message.qos()
        } else {
            message.qos().max(Qos::AtLeastOnce)
        };
        let entry = Entry {
            qos,
            group: id,
            failures,
            redelivered,
            position,
            ..Entry::waiting(tag, message)
        };
        self.count_into_group(now_ms, id, &entry);
        self.wait_in_group(id, entry);
    }

    /// Gives what no member of a branch takes back to the root.
    pub(super) fn return_leftovers(&mut self, name: &Arc<str>, id: u32) {
        if self.work.groups.contains(&id) {
            return; // a member may want it, which is known in the next turn
        }
        while let Some(group) = self.groups.get(&id) {
            let node = group.queue.first();
            if node == NIL {
                return;
            }
            let mut members = group.members.iter();
            let is_refused = members.any(|(_, member)| member.attendance != 0 && member.credit > 0);
            let tag = self.nodes.tag(node);
            let message = self
                .nodes
                .entry(node)
                .and_then(|entry| entry.message.as_ref());
            // Whether a member that has no room now would take it.
            let is_starved = is_refused
                && message.is_some_and(|message| {
                    group.members.iter().any(|(id, member)| {
                        let choice = group.choices.get(id);
                        member.attendance != 0
                            && member.credit == 0
                            && choice.is_none_or(|choice| {
                                choice.takes(message, tag, &self.work) != Taste::Unwanted
                            })
                    })
                });
            let is_forbidden = message.is_some_and(|message| group.is_for_nobody(message.topic()));
            let Some(entry) = self.remove_from_group(id, node) else {
                return;
            };
            if entry.position == 0 {
                self.lose_of_group(id, entry.message.as_deref(), LossReason::Away);
                continue;
            }
            if let Some(branch) = self.branches.get_mut(name) {
                branch.is_starved |= is_starved;
            }
            self.branches.give_back(
                name,
                Back {
                    is_refused,
                    is_forbidden,
                    ..Back::new(entry.position, entry.failures, entry.redelivered)
                },
            );
        }
    }
}
