//! Identifiers of QoS 2 messages that were received and not yet released.

use std::collections::BTreeMap;

use crate::{Lane, PacketId};

/// Stands for the lane of messages received on an earlier connection.
const EARLIER: u64 = u64::MAX;

/// Stands for the lane of messages received on a lost lane of this connection.
const ORPHAN: u64 = u64::MAX - 1;

/// A PUBREC with success has been sent, or waits for its turn.
const ACKNOWLEDGED: u8 = 0b01;

/// Received on this connection: counts against the Receive Maximum.
const IN_FLIGHT: u8 = 0b10;

/// Not accepted, and the PUBREC that says so has not been sent.
const REFUSED: u8 = 0b100;

/// Kind of a PUBLISH with QoS 2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Received {
    /// A new message.
    New,
    /// A repetition of a message that was accepted: answer it with PUBREC.
    Repeated,
    /// A repetition of a message whose PUBREC is yet to come: do nothing.
    Pending,
}

/// Ordered by identifier, then by lane: all lanes of an identifier lie side by side.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Incoming {
    ids: BTreeMap<(u16, u64), u8>,
    in_flight: u32,
}

impl Incoming {
    pub(super) fn begin_connection(&mut self) {
        self.in_flight = 0;
        let ids = std::mem::take(&mut self.ids);
        // A refused message whose client was not told is new when it comes again. [MQTT-4.3.3-9]
        let taken = ids.into_iter().filter(|(_, state)| state & REFUSED == 0);
        for ((id, _), state) in taken {
            // Of two lanes with one identifier, one that is acknowledged counts for both.
            *self.ids.entry((id, EARLIER)).or_default() |= state & ACKNOWLEDGED;
        }
    }

    pub(super) fn mark_all_received(&mut self) {
        for state in self.ids.values_mut() {
            *state |= ACKNOWLEDGED;
        }
    }

    pub(super) fn mark_earlier(&mut self, packet_id: PacketId) {
        if let Some(state) = self.ids.get_mut(&(packet_id.get(), EARLIER)) {
            *state |= ACKNOWLEDGED;
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(super) const fn in_flight(&self) -> usize {
        self.in_flight as usize
    }

    pub(super) fn receive(&mut self, lane: Lane, packet_id: PacketId, dup: bool) -> Received {
        let id = packet_id.get();
        if let Some(state) = self.ids.get(&(id, lane.0)) {
            // [MQTT-4.3.3-10]
            return if state & ACKNOWLEDGED != 0 {
                Received::Repeated
            } else {
                Received::Pending
            };
        }
        // Of an earlier connection: a repetition, with any DUP flag. Of a lost lane: a repetition
        // only with the DUP flag. Some clients give each lane identifiers of its own, and forget
        // them with it.
        if let Some(state) = self.ids.remove(&(id, EARLIER)) {
            self.insert(id, lane, state & ACKNOWLEDGED);
            return if state & ACKNOWLEDGED != 0 {
                Received::Repeated
            } else {
                Received::Pending
            };
        }
        if let Some(state) = self.ids.remove(&(id, ORPHAN)) {
            self.in_flight -= u32::from(state & IN_FLIGHT != 0);
            if dup {
                self.insert(id, lane, state & !IN_FLIGHT);
                return if state & ACKNOWLEDGED != 0 {
                    Received::Repeated
                } else {
                    Received::Pending
                };
            }
        }
        self.insert(id, lane, 0);
        Received::New
    }

    fn insert(&mut self, id: u16, lane: Lane, state: u8) {
        self.ids.insert((id, lane.0), state | IN_FLIGHT);
        self.in_flight += 1;
    }

    pub(super) fn mark_received(&mut self, lane: Lane, packet_id: PacketId) {
        if let Some(key) = self.find(lane, packet_id)
            && let Some(state) = self.ids.get_mut(&key)
        {
            *state |= ACKNOWLEDGED;
        }
    }

    pub(super) fn mark_refused(&mut self, lane: Lane, packet_id: PacketId) {
        if let Some(key) = self.find(lane, packet_id)
            && let Some(state) = self.ids.get_mut(&key)
        {
            *state |= REFUSED;
        }
    }

    pub(super) fn release(&mut self, lane: Lane, packet_id: PacketId) -> Option<bool> {
        let key = self.find(lane, packet_id)?;
        let state = self.ids.remove(&key)?;
        self.in_flight -= u32::from(state & IN_FLIGHT != 0);
        debug_assert!(
            self.in_flight as usize <= self.ids.len(),
            "identifiers in flight are known"
        );
        Some(state & ACKNOWLEDGED != 0)
    }

    /// The entry of an identifier on a lane. The lane's own comes first, then one of an earlier connection or of a lost
    /// lane, then one of another lane. Clients that publish on unidirectional streams release on another lane.
    fn find(&self, lane: Lane, packet_id: PacketId) -> Option<(u16, u64)> {
        let id = packet_id.get();
        let own = (id, lane.0);
        if self.ids.contains_key(&own) {
            return Some(own);
        }
        let mut entries = self
            .ids
            .range((id, 0)..=(id, u64::MAX))
            .map(|(&key, _)| key);
        let first = entries.next()?;
        Some(entries.find(|key| key.1 >= ORPHAN).unwrap_or(first))
    }

    pub(super) fn lane_closed(&mut self, lane: Lane) {
        if self.in_flight == 0 {
            return;
        }
        let lost: Vec<_> = self
            .ids
            .iter()
            .filter(|(key, _)| key.1 == lane.0)
            .map(|(&key, &state)| (key, state))
            .collect();
        for ((id, lane), state) in lost {
            self.ids.remove(&(id, lane));
            if let Some(older) = self.ids.insert((id, ORPHAN), state) {
                self.in_flight -= u32::from(older & IN_FLIGHT != 0);
            }
        }
    }

    /// See [`MqttSession::check`](super::MqttSession::check).
    pub(super) fn check(&self) {
        let states = self.ids.values();
        let in_flight = states.filter(|state| *state & IN_FLIGHT != 0).count();
        assert_eq!(in_flight, self.in_flight as usize, "received and in flight");
    }

    /// The identifiers that an earlier connection received and did not release.
    pub(super) fn of_earlier(ids: impl Iterator<Item = PacketId>) -> Self {
        let ids = ids.map(|id| ((id.get(), EARLIER), ACKNOWLEDGED)).collect();
        Self { ids, in_flight: 0 }
    }
}
