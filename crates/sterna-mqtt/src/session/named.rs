//! Identifiers that the caller chooses itself, beside those that are given out in ascending order.

use std::collections::{BTreeMap, VecDeque};

use super::inherited::Inherited;
use super::outgoing::{AwaitedAck, LaneNumber, Stage};
use crate::PacketId;

/// See the module's description. Memory that a session without such identifiers does not have.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Named {
    ids: BTreeMap<PacketId, NamedSlot>,
    /// Identifiers of messages to be sent again, in order; some may be acknowledged meanwhile.
    resends: VecDeque<PacketId>,
    /// Ascending slots that were dropped since the first of these identifiers was taken.
    pub(super) dropped: u64,
    /// Identifiers taken so far.
    taken: u64,
    /// Where another process began the session: what is known of its identifiers.
    pub(super) inherited: Option<Inherited>,
}

/// The use of an identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NamedSlot {
    pub(super) tag: u64,
    pub(super) stage: Stage,
    /// Sent (again) on this connection.
    pub(super) sent: bool,
    /// Counts against the receiver's Receive Maximum.
    pub(super) in_flight: bool,
    pub(super) lane: LaneNumber,
    /// Its place in the order of sending: the number of ascending slots before it, and its number among its own.
    place: (u64, u64),
}

impl Named {
    /// Of a session that another process began.
    pub(super) fn inherited() -> Self {
        Self {
            inherited: Some(Inherited::default()),
            ..Self::default()
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty() && self.inherited.is_none()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &NamedSlot> {
        self.ids.values()
    }

    pub(super) fn get(&self, packet_id: PacketId) -> Option<&NamedSlot> {
        self.ids.get(&packet_id)
    }

    pub(super) fn get_mut(&mut self, packet_id: PacketId) -> Option<&mut NamedSlot> {
        self.ids.get_mut(&packet_id)
    }

    pub(super) fn remove(&mut self, packet_id: PacketId) -> Option<NamedSlot> {
        self.ids.remove(&packet_id)
    }

    /// Takes an identifier that is not in use, behind `slots` ascending ones that are there.
    pub(super) fn take(
        &mut self,
        packet_id: PacketId,
        tag: u64,
        stage: Stage,
        sent: bool,
        slots: usize,
    ) {
        let slot = NamedSlot {
            tag,
            stage,
            sent,
            in_flight: sent && stage != Stage::Release,
            lane: LaneNumber::CONTROL,
            place: (self.dropped + slots as u64, self.taken),
        };
        self.taken += 1;
        self.ids.insert(packet_id, slot);
        if !sent {
            self.resends.push_back(packet_id);
        }
    }

    /// Everything is to be sent again.
    pub(super) fn begin_connection(&mut self) {
        let mut order: Vec<_> = (self.ids.iter_mut())
            .map(|(&packet_id, slot)| {
                slot.sent = false;
                slot.in_flight = false;
                (slot.place, packet_id)
            })
            .collect();
        order.sort_unstable();
        self.resends = order.into_iter().map(|(_, packet_id)| packet_id).collect();
    }

    /// A message of this connection is to be sent again. Returns whether it was in flight; `None` where it is to be
    /// sent again already.
    pub(super) fn unsend(&mut self, packet_id: PacketId) -> Option<bool> {
        let slot = self.ids.get_mut(&packet_id)?;
        if !std::mem::replace(&mut slot.sent, false) {
            return None;
        }
        let was_in_flight = std::mem::replace(&mut slot.in_flight, false);
        // Others may wait already.
        let place = slot.place;
        let ids = &self.ids;
        let is_behind = |other: &PacketId| ids.get(other).is_some_and(|other| other.place > place);
        let at = self.resends.iter().position(is_behind);
        let end = self.resends.len();
        self.resends.insert(at.unwrap_or(end), packet_id);
        Some(was_in_flight)
    }

    /// The first that is to be sent again, and the number of ascending slots before it of those that are
    /// there.
    pub(super) fn next_resend(&mut self) -> Option<(usize, AwaitedAck)> {
        loop {
            let packet_id = *self.resends.front()?;
            if let Some(slot) = self.ids.get(&packet_id)
                && !slot.sent
            {
                let before = slot.place.0.saturating_sub(self.dropped) as usize;
                return Some((before, slot.awaited(packet_id)));
            }
            self.resends.pop_front();
        }
    }

    /// All identifiers in the order of sending, each with the number of ascending slots before it.
    pub(super) fn in_order(&self) -> impl Iterator<Item = (usize, AwaitedAck)> {
        let mut all: Vec<_> = self.ids.iter().collect();
        all.sort_unstable_by_key(|(_, slot)| slot.place);
        all.into_iter().map(|(&packet_id, slot)| {
            let before = slot.place.0.saturating_sub(self.dropped) as usize;
            (before, slot.awaited(packet_id))
        })
    }
}

impl NamedSlot {
    pub(super) const fn awaited(&self, packet_id: PacketId) -> AwaitedAck {
        AwaitedAck {
            packet_id,
            tag: self.tag,
            stage: self.stage,
        }
    }
}
