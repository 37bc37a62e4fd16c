//! Consumers of a queue of the cluster that take back credit (AMQP drain), where the queue is on another node. They
//! are answered behind all messages that its root had given them.

use std::sync::Arc;

use super::Broker;
use crate::api::DoorState;
use crate::far_group::{Owner, Peer, Word};
use crate::mail::Recall;

impl<P: DoorState> Broker<P> {
    // On the shard of a branch.

    /// A member of a queue's branch takes credit back. True where the root on another node is asked first.
    pub(super) fn is_recalled_afar(&mut self, now_ms: u64, recall: Recall) -> bool {
        let Some(name) = self.queues.branches.queue(recall.group).cloned() else {
            return false;
        };
        let own = self.far.own.clone();
        let branch = self.queues.branches.get(&name);
        let owner = branch.and_then(|branch| branch.owner.clone().filter(|_| branch.is_welcome));
        let Some(Owner { peer, epoch }) = owner.filter(|owner| Some(&owner.peer) != own.as_ref())
        else {
            return false;
        };
        // It is told before what members take.
        self.look_after_branch(now_ms, &name);
        self.report_to_root(&name);
        let Some(branch) = self.queues.branches.get_mut(&name) else {
            return false;
        };
        branch.next_recall += 1;
        let (attendance, number) = (branch.attendance, branch.next_recall);
        branch.recalls.push_back((number, recall));
        let word = Word::Ask {
            epoch,
            attendance,
            number,
        };
        self.tell_of_group(&name, Some(&peer), word);
        true
    }

    /// Answers members whose questions have these numbers or lower ones; all of them for `None`.
    pub(super) fn recall_now(&mut self, name: &str, up_to: Option<u64>) {
        while let Some(branch) = self.queues.branches.get_mut(name)
            && let Some(&(number, recall)) = branch.recalls.front()
            && up_to.is_none_or(|up_to| number <= up_to)
        {
            branch.recalls.pop_front();
            self.take_credit_back(recall);
        }
    }

    // On the shard of the root.

    /// A branch asks whether everything has been given that it takes.
    pub(super) fn asked_by_branch(
        &mut self,
        name: &Arc<str>,
        from: &Peer,
        attendance: u64,
        number: u64,
    ) {
        if let Some(root) = self.roots.get_mut(name)
            && let Some(queue) = &mut root.queue
        {
            queue.asked.push((from.clone(), attendance, number));
            self.answer_later(name);
        }
    }

    fn answer_later(&mut self, name: &Arc<str>) {
        if !self.far.giving.contains(name) {
            self.far.giving.push(Arc::clone(name));
        }
    }

    /// Answers branches, behind what they were given in this turn. Where more is being read for them, that comes first.
    pub(super) fn answer_branches(&mut self, name: &Arc<str>) {
        let Some(root) = self.roots.get_mut(name) else {
            return;
        };
        let epoch = root.epoch;
        let Some(queue) = root.queue.as_mut().filter(|queue| !queue.asked.is_empty()) else {
            return;
        };
        let group = self.queues.groups.get(&queue.group);
        if group.is_some_and(|group| group.reading.is_some()) {
            return self.answer_later(name);
        }
        for (peer, attendance, number) in std::mem::take(&mut queue.asked) {
            let word = Word::Done {
                epoch,
                attendance,
                number,
            };
            self.tell_of_group(name, Some(&peer), word);
        }
    }
}
