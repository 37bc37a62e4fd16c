//! Consumers that say how many messages they take (AMQP link-credit), and the groups that serve them.
//!
//! A group's home assigns to such a member only what it was granted. The member's shard grants by
//! increments, and takes back by asking. For each group it counts what it has granted and not handed out,
//! which never exceeds what the consumer takes. The home's answer to a request comes behind all that it had
//! assigned before, so after it nothing unknown is under way.

use super::Broker;
use crate::api::{DoorState, Event, SessionKey};
use crate::mail::{Address, Letter, Recall, Returned};
use crate::nodes::NIL;
use crate::session::Demand;

impl<P: DoorState> Broker<P> {
    /// How many messages the consumer would take now, beyond those that
    /// [`next_delivery`](Self::next_delivery) has handed it; for sessions opened
    /// [`on_demand`](crate::OpenSession::on_demand), others ignore it.
    ///
    /// Zero at first. Each message handed out uses one; settling gives none. Less than before takes back
    /// what groups have not assigned. Messages beyond it that are assigned and still pending go back, the
    /// last ones first. Those on their way from another shard go back when they arrive.
    ///
    /// The credit of a session in several groups is divided among them. Where there is less than one for each, some
    /// have to wait for more.
    ///
    /// While the session holds more than [`Limits::queued_bytes`](crate::Limits::queued_bytes), pending
    /// and unsettled, groups assign nothing more.
    pub fn demand(&mut self, now_ms: u64, session: SessionKey, credit: u32) {
        let slot = session.slot;
        let Some(demand) = self.demand_of(session) else {
            return;
        };
        demand.credit = credit;
        demand.is_withheld = false;
        self.balance(slot);
        self.finish(now_ms);
    }

    /// Takes back what the session's groups have not assigned. When all that they assigned before
    /// has arrived, [`Event::Drained`] follows: at once where no other shard is asked. The front
    /// door hands out what is then pending before it tells its peer. Groups assign nothing more
    /// until the next [`demand`](Self::demand).
    pub fn drain(&mut self, now_ms: u64, session: SessionKey) {
        let slot = session.slot;
        let Some(attended) = self.queues.attended(session) else {
            return;
        };
        let consumer = attended.consumer();
        if let Some(demand) = self.demand_of(session) {
            demand.is_withheld = true;
            demand.drains += 1;
            let groups: Vec<_> = demand.shares.iter().map(|share| share.group).collect();
            for group in groups {
                self.recall(slot, group, u32::MAX);
            }
            self.browse_on(slot);
            self.tell_drained(slot);
        } else if let Some(consumer) = consumer {
            self.events.push_back(Event::Drained { consumer, session });
        }
        self.finish(now_ms);
    }

    fn demand_of(&mut self, session: SessionKey) -> Option<&mut Demand> {
        self.queues.attended_mut(session)?.demand_mut()
    }

    /// Grants what the consumer takes and nobody was granted, or takes back what it doesn't take.
    pub(super) fn balance(&mut self, slot: u32) {
        self.browse_on(slot);
        let session = &mut self.queues.sessions[slot];
        let (member, attendance) = (session.subscriber, session.attendance);
        let held_bytes = session.account.pending_bytes + session.account.sent_bytes;
        let most_bytes = self.queues.limits.queued_bytes as u64;
        let Some(demand) = session.demand_mut() else {
            return;
        };
        // A group no longer counts messages that it has assigned. Half has to be free before it goes on.
        let is_above = |bytes| held_bytes > bytes;
        demand.is_full = is_above(most_bytes) || (demand.is_full && is_above(most_bytes / 2));
        let outstanding = demand.outstanding();
        let credit = demand.grantable();
        if outstanding <= credit {
            if demand.is_withheld || demand.shares.is_empty() {
                return;
            }
            let mut more = credit - outstanding;
            let count = demand.shares.len() as u32;
            let mut grants = Vec::with_capacity(demand.shares.len());
            for (at, share) in demand.shares.iter_mut().enumerate() {
                let wanted = credit / count + u32::from((at as u32) < credit % count);
                let part = wanted.saturating_sub(share.outstanding).min(more);
                share.outstanding += part;
                more -= part;
                grants.push((share.group, part));
            }
            for (group, credit) in grants.into_iter().filter(|&(_, credit)| credit > 0) {
                if let Some(home) = self.index.home(group) {
                    self.send(
                        home,
                        Letter::Credit {
                            group,
                            member,
                            attendance,
                            credit,
                            settled: Vec::new(),
                        },
                    );
                }
            }
            self.even_out(slot);
        } else {
            let beyond = demand.pending().saturating_sub(credit);
            let given_back = self.latest_of_groups(slot, beyond);
            self.give_back(given_back);
            self.recall_excess(slot);
        }
    }

    /// Takes from groups that could assign more than their part what others lack of theirs.
    fn even_out(&mut self, slot: u32) {
        let Some(demand) = self.queues.sessions[slot].demand_mut() else {
            return;
        };
        let count = demand.shares.len() as u32;
        if count < 2 || demand.is_full || demand.outstanding() < demand.credit {
            return;
        }
        let part = demand.credit / count;
        let mut lacking: u32 = demand
            .shares
            .iter()
            .map(|share| part.saturating_sub(share.outstanding))
            .sum();
        let mut recalls = Vec::new();
        for share in &demand.shares {
            let unassigned = share.outstanding - share.pending;
            let surplus = share.outstanding.saturating_sub(part);
            let limit = surplus.min(unassigned).min(lacking);
            lacking -= limit;
            if limit > 0 && share.recalls == 0 {
                recalls.push((share.group, limit));
            }
        }
        for (group, limit) in recalls {
            self.recall(slot, group, limit);
        }
    }

    /// Asks groups for what they may assign beyond what the consumer takes.
    fn recall_excess(&mut self, slot: u32) {
        let session = &mut self.queues.sessions[slot];
        let Some(demand) = session.demand_mut() else {
            return;
        };
        let mut excess = demand.outstanding().saturating_sub(demand.grantable());
        let mut recalls = Vec::new();
        for share in &demand.shares {
            // A group that was asked already will answer; then it is looked at again.
            let unassigned = share.outstanding - share.pending;
            let limit = unassigned.min(excess);
            if limit > 0 && share.recalls == 0 {
                recalls.push((share.group, limit));
            }
            excess -= limit;
        }
        for (group, limit) in recalls {
            self.recall(slot, group, limit);
        }
    }

    fn recall(&mut self, slot: u32, group: u32, limit: u32) {
        let Some(home) = self.index.home(group) else {
            return;
        };
        let shard = self.shard;
        let session = &mut self.queues.sessions[slot];
        let (member, attendance) = (session.subscriber, session.attendance);
        let generation = session.generation;
        let Some(demand) = session.demand_mut() else {
            return;
        };
        if let Some(share) = demand.share_mut(group) {
            share.recalls += 1;
        }
        let from = Address {
            shard,
            slot,
            generation,
        };
        self.send(
            home,
            Letter::Recall(Recall {
                group,
                member,
                attendance,
                limit,
                from,
            }),
        );
    }

    /// Takes up to `count` messages of groups, those that came last, out of a session's queue.
    fn latest_of_groups(&mut self, slot: u32, count: u32) -> Vec<(u32, Returned)> {
        let queues = &mut self.queues;
        let mut taken = Vec::new();
        let mut node = queues.sessions[slot].pending.last();
        while node != NIL && (taken.len() as u32) < count {
            let previous = queues.nodes.previous(node);
            let group = queues.nodes.entry(node).map_or(NIL, |entry| entry.group);
            let demand = queues.sessions[slot].demand_mut();
            if let Some(share) = demand.and_then(|demand| demand.share_mut(group))
                && share.pending > 0
            {
                share.pending -= 1;
                share.outstanding -= 1;
                let entry = queues.remove_pending(slot, node);
                taken.extend(entry.and_then(Returned::of));
            }
            node = previous;
        }
        taken.reverse();
        taken
    }

    /// On the group's shard: takes credit back from a member, and says how much.
    pub(super) fn member_recalled(&mut self, now_ms: u64, recall: Recall) {
        if self.queues.is_undecided_member(recall.group, recall.member) {
            return self.queues.work.recalls.push(recall);
        }
        if !self.is_recalled_afar(now_ms, recall) {
            self.take_credit_back(recall);
        }
    }

    pub(super) fn take_credit_back(&mut self, recall: Recall) {
        let Recall {
            group,
            member,
            attendance,
            limit,
            from,
        } = recall;
        // For a session that is no member any more, the group has nothing left to assign.
        let mut taken = limit;
        self.queues.branches.touch(group);
        if let Some(known) = self
            .queues
            .groups
            .get_mut(&group)
            .and_then(|group| group.members.get_mut(&member))
            && known.attendance == attendance
        {
            taken = limit.min(known.credit);
            known.credit -= taken;
        }
        self.send(
            from.shard,
            Letter::Recalled {
                group,
                slot: from.slot,
                generation: from.generation,
                attendance,
                taken,
            },
        );
    }

    /// A group has answered; what it had assigned before is here.
    pub(super) fn recalled(
        &mut self,
        group: u32,
        slot: u32,
        generation: u32,
        attendance: u32,
        taken: u32,
    ) {
        let Some(share) = self
            .queues
            .session(slot, generation)
            .filter(|session| session.attendance == attendance)
            .and_then(|session| session.demand_mut()?.share_mut(group))
        else {
            return;
        };
        share.recalls = share.recalls.saturating_sub(1);
        share.outstanding -= taken.min(share.outstanding - share.pending);
        self.tell_drained(slot);
        self.balance(slot);
    }

    /// Forgets the share of a group that the session has left.
    pub(super) fn drop_share(&mut self, slot: u32, group: u32) {
        if let Some(demand) = self.queues.sessions[slot].demand_mut() {
            demand.shares.retain(|share| share.group != group);
            self.tell_drained(slot);
            self.balance(slot);
        }
    }

    /// Tells the consumer that its groups have answered, if they have and it waits for that.
    pub(super) fn tell_drained(&mut self, slot: u32) {
        let session = &mut self.queues.sessions[slot];
        let (consumer, key) = (session.consumer(), session.key(slot));
        let is_browsing = (session.browsing_mut()).is_some_and(|browsing| browsing.asked > 0);
        let is_here = session.is_active() && !is_browsing;
        let Some(demand) = session.demand_mut() else {
            return;
        };
        if !is_here || demand.shares.iter().any(|share| share.recalls > 0) {
            return;
        }
        for _ in 0..std::mem::take(&mut demand.drains) {
            self.events.extend(consumer.map(|consumer| Event::Drained {
                consumer,
                session: key,
            }));
        }
    }
}
