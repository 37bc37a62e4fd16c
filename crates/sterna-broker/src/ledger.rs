//! The ledger: messages that were sent and not settled.

use std::sync::Arc;

use crate::api::{Delivery, Unacknowledged};
use crate::nodes::{Entry, Phase};
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

impl<P> Queues<P> {
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
        delivery(&self.sessions[slot], entry).map(Unacknowledged::Sent)
    }

    /// Puts a sent delivery back in front of its queue; `failed` if that counts as an attempt.
    pub(crate) fn release(&mut self, slot: u32, node: u32, failed: bool) {
        let session = &mut self.sessions[slot];
        let Some(entry) = self.nodes.entry_mut(node) else {
            return;
        };
        entry.phase = Phase::Pending;
        entry.failures = entry.failures.saturating_add(u16::from(failed));
        session.account.waits(entry);
        let body_bytes = entry.body_bytes();
        let tag = entry.tag;
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
pub(crate) fn delivery<P>(session: &BrokerSession<P>, entry: &Entry) -> Option<Delivery> {
    Some(Delivery {
        tag: entry.tag,
        message: Arc::clone(entry.message.as_ref()?),
        qos: entry.qos,
        retain: entry.retain,
        redelivered: entry.redelivered,
        hint: hint(entry.context.as_deref(), session.attendance),
        failures: entry.failures,
        position: entry.position,
        context: entry.context.clone(),
    })
}
