//! The ledger: messages that were sent and not settled.

use std::sync::Arc;

use crate::api::{Delivery, Unacknowledged};
use crate::limits::Limits;
use crate::nodes::{Entry, NIL, Phase};
use crate::queues::Queues;
use crate::route::Context;
use crate::session::BrokerSession;

/// A settled or dropped message of a shared subscription: its member may have another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owed {
    pub(crate) group: u32,
    /// The place in the log that the group has settled, or zero for nothing.
    pub(crate) position: u64,
    /// Zero where the group is only told what is settled.
    pub(crate) credit: u32,
    pub(crate) member: u32,
    pub(crate) attendance: u32,
}

/// The place in the log that a group has settled with an entry.
pub(crate) const fn group_position(entry: &Entry) -> u64 {
    if entry.is_owned { 0 } else { entry.position }
}

impl<P> Queues<P> {
    /// Notes that a group's member may have another message. If the member is `done` with this one, the group is
    /// done with it too.
    #[inline]
    pub(crate) fn note_owed(&mut self, slot: u32, entry: &Entry, done: bool) {
        if entry.group != NIL {
            self.owe(slot, entry, done);
        }
    }

    fn owe(&mut self, slot: u32, entry: &Entry, done: bool) {
        let session = &mut self.sessions[slot];
        let mut credit = 1;
        if session.is_on_demand {
            // The group may give it another for one that it never took.
            credit = u32::from(entry.phase == Phase::Pending);
            if credit > 0
                && let Some(demand) = session.demand_mut()
                && let Some(share) = demand.share_mut(entry.group)
            {
                share.pending = share.pending.saturating_sub(1);
            }
            if session.demand_mut().is_some_and(|demand| demand.is_full) {
                self.unbalanced.push(slot);
            }
        }
        self.owed.push(Owed {
            group: entry.group,
            position: if done { group_position(entry) } else { 0 },
            credit,
            member: session.subscriber,
            attendance: session.attendance,
        });
    }

    /// Tells a group that its member may have another message, for one that is not the group's any more.
    pub(crate) fn owe_credit(&mut self, slot: u32, group: u32) {
        let session = &self.sessions[slot];
        self.owed.push(Owed {
            group,
            position: 0,
            // A member that takes messages on demand has taken it.
            credit: u32::from(!session.is_on_demand),
            member: session.subscriber,
            attendance: session.attendance,
        });
    }

    /// Where a sent delivery lies.
    pub(crate) fn find_sent(&self, slot: u32, tag: u64) -> Option<u32> {
        let is_it = |node: &u32| {
            self.nodes
                .owned(*node, slot)
                .is_some_and(|entry| entry.tag == tag && entry.phase != Phase::Pending)
        };
        Some(tag as u32)
            .filter(is_it)
            .or_else(|| self.sessions[slot].rehomed(tag).filter(is_it))
    }

    /// An entry of the ledger, as told to the front door.
    pub(crate) fn unacknowledged(&self, slot: u32, node: u32) -> Option<Unacknowledged> {
        let entry = self.nodes.entry(node)?;
        if entry.phase == Phase::HandedOver {
            let (tag, position) = (entry.tag, entry.position);
            return Some(Unacknowledged::HandedOver { tag, position });
        }
        delivery(&self.sessions[slot], entry, &self.limits).map(Unacknowledged::Sent)
    }

    /// Puts a sent delivery back in front of its queue; `failed` if that counts as an attempt.
    pub(crate) fn release(&mut self, slot: u32, node: u32, failed: bool) {
        let session = &mut self.sessions[slot];
        let Some(entry) = self.nodes.entry_mut(node) else {
            return;
        };
        entry.phase = Phase::Pending;
        if failed {
            entry.failures.fail();
        }
        session.account.waits(entry);
        let body_bytes = entry.body_bytes();
        let (tag, position) = (entry.tag, entry.own_position());
        if position != 0
            && let Some(reader) = &mut session.reader
        {
            // It may be read in the log again.
            reader.cursor.note_sent(position);
        }
        self.nodes
            .move_front(&mut session.ledger, &mut session.pending, node);
        session.forget_rehomed(tag);
        self.ledger_has_room(slot, body_bytes);
        self.list_if_ready(slot);
    }
}

/// The stream that asked, if it is one of this attendance.
pub(crate) fn hint(context: Option<&Context>, attendance: u32) -> u64 {
    context.map_or(0, |context| {
        if context.attendance == attendance {
            context.hint
        } else {
            0
        }
    })
}

/// The delivery of a session's entry, for the front door.
pub(crate) fn delivery<P>(
    session: &BrokerSession<P>,
    entry: &Entry,
    limits: &Limits,
) -> Option<Delivery> {
    Some(Delivery {
        tag: entry.tag,
        message: Arc::clone(entry.message.as_ref()?),
        qos: entry.qos,
        retain: entry.retain,
        redelivered: entry.redelivered,
        hint: hint(entry.context.as_deref(), session.attendance),
        failures: entry.failures.counted(limits),
        known_failures: entry.failures,
        position: entry.position,
        context: entry.context.clone(),
    })
}
