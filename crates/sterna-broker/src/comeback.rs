//! Messages that come back to the queue of a shared subscription: to their places, to the dead letters, or after a
//! pause.

use std::sync::Arc;

use crate::attempts::{Attempts, Comeback, Failures, HoldBack};
use crate::far_group::Back;
use crate::hash::KeyedState;
use crate::losses::LossReason;
use crate::mail::Returned;
use crate::message::{Message, Qos};
use crate::nodes::Entry;
use crate::queues::{Dead, Queues};

impl<P> Queues<P> {
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
            position,
            redelivered,
            refused_by,
            why,
        } = returned;
        let limit = self.limits.group_queued_messages;
        self.branches.touch(id);
        if let Some(name) = self.branches.queue(id).cloned() {
            // Its root knows the queue as a whole.
            let (is_changed, back) = (
                message.is_changed(),
                Back::new(position, failures, redelivered),
            );
            let back = Back {
                is_lost: why == Comeback::Lost,
                is_refused: self.is_refused_by_all(&name, id, position, refused_by),
                changed: is_changed.then_some(message),
                ..back
            };
            return self.branches.give_back(&name, back);
        }
        let rests = why == Comeback::Lost && position != 0 && failures.pause_ms(&self.limits) > 0;
        if (rests || !self.groups.contains_key(&id))
            && let Some(name) = self.branches.name(id).cloned()
        {
            // Nothing waits in a branch, whose members may all leave: its root holds it back.
            let back = Back {
                is_lost: rests,
                ..Back::new(position, failures, redelivered)
            };
            return self.branches.give_back(&name, back);
        }
        if why != Comeback::Undead && self.bury_failed(id, &message, Some(tag), position, failures)
        {
            return;
        }
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        if let Some((member, attendance)) = refused_by {
            group.refuse(member, attendance, tag, limit, hashing);
        }
        // The root of a branch may know others.
        let is_for_nobody = group.is_for_nobody(message.topic()) && !group.has_resting_member();
        if is_for_nobody && !self.branches.is_on {
            self.settle_in_group(id, position);
            return;
        }
        let mut qos = message.qos();
        if group.is_kept || position != 0 {
            qos = qos.max(Qos::AtLeastOnce);
        }
        if group.attending == 0 && !qos.is_acknowledged() {
            self.lose_of_group(id, Some(&message), LossReason::Away);
            return;
        }
        let entry = Entry {
            qos,
            group: id,
            failures,
            redelivered,
            position,
            ..Entry::waiting(tag, message)
        };
        let attempts = Attempts {
            failures,
            was_sent: redelivered,
        };
        self.note_in_group(id, position, |log| log.take_back(position, attempts));
        self.count_into_group(now_ms, id, &entry);
        match self.hold_back_until(now_ms, id, failures, why) {
            Some(due_ms) => self.hold_in_group(id, due_ms, entry),
            None => self.wait_in_group(id, entry),
        }
    }

    /// Has a message go to the dead letters that has failed too often. False where it may be delivered again. Without a
    /// tag it gets the group's next one.
    pub(crate) fn bury_failed(
        &mut self,
        id: u32,
        message: &Arc<Message>,
        tag: Option<u64>,
        position: u64,
        failures: Failures,
    ) -> bool {
        let Some(group) = self.groups.get_mut(&id) else {
            return false;
        };
        let Some(cause) = failures.death(group.rules.as_deref(), &self.limits) else {
            return false;
        };
        self.dead.push(Dead {
            group: id,
            tag: tag.unwrap_or_else(|| group.next_tag(message)),
            message: Arc::clone(message),
            position,
            failures,
            cause,
        });
        true
    }

    /// When a message that comes back is delivered again at the earliest, if not at once. So what crashes its
    /// consumers, or is rejected into full dead letters, does not spin.
    fn hold_back_until(
        &mut self,
        now_ms: u64,
        id: u32,
        failures: Failures,
        why: Comeback,
    ) -> Option<u64> {
        let group = self.groups.get_mut(&id)?;
        let (reason, due_ms) = match why {
            Comeback::GivenBack => return None,
            Comeback::Lost => {
                let pause_ms = failures.pause_ms(&self.limits);
                (HoldBack::Lost, now_ms.saturating_add(pause_ms))
            }
            Comeback::Undead => {
                let due_ms = group.refusals.refuse(now_ms, &self.limits);
                (HoldBack::DeadLettersFull, due_ms)
            }
        };
        if due_ms <= now_ms {
            return None;
        }
        self.counters.held_back[reason as usize] += 1;
        let told = group.held_back.note(now_ms, reason);
        if let (Some(watcher), Some(messages)) = (&self.loss_watcher, told) {
            watcher.held_back(&group.filter, reason, messages, due_ms - now_ms);
        }
        Some(due_ms)
    }
}
