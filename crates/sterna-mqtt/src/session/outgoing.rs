//! Identifiers of what this end sends, in the order of sending.

use std::collections::VecDeque;

use crate::{PacketId, ReasonCode};

/// Number of Packet Identifiers.
const IDS: usize = 65_535;

/// Slots that an empty outbox keeps for its next message; what is above is given back at once.
const KEPT_SLOTS: usize = 32;

/// What a Packet Identifier is used for and what is awaited.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stage {
    /// A PUBLISH with QoS 1; PUBACK is awaited.
    PublishQoS1,
    /// A PUBLISH with QoS 2; PUBREC is awaited.
    PublishQoS2,
    /// A PUBREL; PUBCOMP is awaited.
    Release,
    /// A SUBSCRIBE; SUBACK is awaited. Ends with the connection.
    Subscribe,
    /// An UNSUBSCRIBE; UNSUBACK is awaited. Ends with the connection.
    Unsubscribe,
}

/// An identifier in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AwaitedAck {
    /// The identifier.
    pub packet_id: PacketId,
    /// The caller's own name of the delivery.
    pub tag: u64,
    /// What is awaited.
    pub stage: Stage,
}

/// An acknowledgement that does not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AckError {
    /// The identifier is not in use.
    Unknown,
    /// The identifier is in use and awaits something else.
    Unexpected,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Slot {
    tag: u64,
    /// What is unacknowledged stays so until the acknowledgement that it awaits: [MQTT-4.3.2-3]
    /// [MQTT-4.3.3-3] [MQTT-4.3.3-5]. `None`: acknowledged, kept until everything before it is.
    stage: Option<Stage>,
    /// Sent (again) on this connection.
    sent: bool,
    /// Counts against the receiver's Receive Maximum.
    in_flight: bool,
}

/// Identifiers are given out in ascending order, so that the slots are in the order of sending and
/// an acknowledgement finds its slot by subtraction.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Outbox {
    slots: VecDeque<Slot>,
    /// Identifier of the first slot, less one.
    first: u16,
    used: u16,
    in_flight: u16,
    /// Slots in use that are yet to be sent on this connection.
    unsent: u16,
    /// No slot before this one is to be sent again.
    resend_from: u16,
}

impl Outbox {
    pub(super) fn begin_connection(&mut self) {
        self.in_flight = 0;
        self.resend_from = 0;
        self.used = 0;
        for slot in &mut self.slots {
            if matches!(slot.stage, Some(Stage::Subscribe | Stage::Unsubscribe)) {
                slot.stage = None;
            }
            slot.sent = slot.stage.is_none();
            slot.in_flight = false;
            self.used += u16::from(slot.stage.is_some());
        }
        self.unsent = self.used;
        self.drop_finished();
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn compact(&mut self) {
        if self.slots.is_empty() {
            self.slots = VecDeque::new();
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.used as usize
    }

    pub(super) const fn in_flight(&self) -> usize {
        self.in_flight as usize
    }

    pub(super) fn span(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn allocate(&mut self, tag: u64, stage: Stage) -> Option<PacketId> {
        // [MQTT-2.2.1-3] [MQTT-2.2.1-4] [MQTT-4.3.2-1] [MQTT-4.3.3-1]
        // [MQTT311-2.3.1-1] [MQTT311-2.3.1-2] [MQTT311-2.3.1-4] [MQTT311-4.3.2-1] [MQTT311-4.3.3-1]
        let index = self.slots.len();
        if index >= IDS {
            return None;
        }
        let in_flight = matches!(stage, Stage::PublishQoS1 | Stage::PublishQoS2);
        self.slots.push_back(Slot {
            tag,
            stage: Some(stage),
            sent: true,
            in_flight,
        });
        self.used += 1;
        self.in_flight += u16::from(in_flight);
        self.assert_counts();
        Some(self.packet_id(index))
    }

    pub(super) fn get(&self, packet_id: PacketId) -> Option<AwaitedAck> {
        let slot = self.slots.get(self.index(packet_id))?;
        Some(AwaitedAck {
            packet_id,
            tag: slot.tag,
            stage: slot.stage?,
        })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = AwaitedAck> + '_ {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let stage = slot.stage?;
            Some(AwaitedAck {
                packet_id: self.packet_id(index),
                tag: slot.tag,
                stage,
            })
        })
    }

    pub(super) const fn has_resends(&self) -> bool {
        self.unsent > 0
    }

    pub(super) fn next_resend(&mut self) -> Option<AwaitedAck> {
        if self.unsent == 0 {
            return None;
        }
        // [MQTT-4.6.0-1] [MQTT311-4.6.0-1] the order of the slots is the order of sending
        let from = usize::from(self.resend_from);
        let offset = self.slots.iter().skip(from).position(|slot| !slot.sent)?;
        let index = from + offset;
        self.resend_from = index as u16;
        let slot = self.slots.get(index)?;
        Some(AwaitedAck {
            packet_id: self.packet_id(index),
            tag: slot.tag,
            stage: slot.stage?,
        })
    }

    pub(super) fn mark_resent(&mut self, packet_id: PacketId) {
        let index = self.index(packet_id);
        let Some(slot) = self.slots.get_mut(index) else {
            return;
        };
        if slot.sent {
            return;
        }
        slot.sent = true;
        self.unsent -= 1;
        if matches!(slot.stage, Some(Stage::PublishQoS1 | Stage::PublishQoS2)) {
            slot.in_flight = true;
            self.in_flight += 1;
        }
        self.assert_counts();
    }

    pub(super) fn remove(&mut self, packet_id: PacketId) -> Option<AwaitedAck> {
        let outgoing = self.get(packet_id)?;
        self.free(self.index(packet_id));
        Some(outgoing)
    }

    pub(super) fn finish(&mut self, packet_id: PacketId, stage: Stage) -> Result<u64, AckError> {
        let outgoing = self.get(packet_id).ok_or(AckError::Unknown)?;
        if outgoing.stage != stage {
            return Err(AckError::Unexpected);
        }
        self.free(self.index(packet_id));
        Ok(outgoing.tag)
    }

    pub(super) fn pubrec(
        &mut self,
        packet_id: PacketId,
        reason: ReasonCode,
    ) -> Result<(u64, bool), AckError> {
        let outgoing = self.get(packet_id).ok_or(AckError::Unknown)?;
        match outgoing.stage {
            // [MQTT-4.4.0-2] an error ends the delivery
            Stage::PublishQoS2 if reason.is_error() => {
                self.free(self.index(packet_id));
                Ok((outgoing.tag, true))
            }
            Stage::PublishQoS2 => {
                let index = self.index(packet_id);
                if let Some(slot) = self.slots.get_mut(index) {
                    // [MQTT-4.3.3-5] [MQTT-4.3.3-6]
                    slot.stage = Some(Stage::Release);
                    if !slot.sent {
                        slot.sent = true;
                        self.unsent -= 1;
                    }
                }
                Ok((outgoing.tag, true))
            }
            Stage::Release => Ok((outgoing.tag, false)),
            _ => Err(AckError::Unexpected),
        }
    }

    fn free(&mut self, index: usize) {
        let Some(slot) = self.slots.get_mut(index) else {
            return;
        };
        if slot.stage.take().is_none() {
            return;
        }
        self.used -= 1;
        self.in_flight -= u16::from(slot.in_flight);
        self.unsent -= u16::from(!slot.sent);
        slot.in_flight = false;
        slot.sent = true;
        if index == 0 {
            self.drop_finished();
        }
        self.assert_counts();
    }

    /// What can be told of the counts without looking at the slots.
    fn assert_counts(&self) {
        debug_assert!(
            usize::from(self.used) <= self.slots.len() && self.slots.len() <= IDS,
            "identifiers in use have slots"
        );
        debug_assert!(
            self.in_flight <= self.used && self.unsent <= self.used,
            "only what is in use is under way or to be sent again"
        );
        debug_assert!(
            self.slots.front().is_none_or(|slot| slot.stage.is_some()),
            "the first slot is in use"
        );
    }

    /// See [`MqttSession::check`](super::MqttSession::check).
    pub(super) fn check(&self) {
        self.assert_counts();
        let count = |counts: fn(&&Slot) -> bool| self.slots.iter().filter(counts).count();
        let used = count(|slot| slot.stage.is_some());
        let in_flight = count(|slot| slot.in_flight);
        let unsent = count(|slot| !slot.sent);
        assert_eq!(
            (used, in_flight, unsent),
            (
                usize::from(self.used),
                usize::from(self.in_flight),
                usize::from(self.unsent)
            ),
            "in use, in flight, to be sent again"
        );
        let resend_from = usize::from(self.resend_from);
        let before = self.slots.iter().take(resend_from);
        assert!(
            before.into_iter().all(|slot| slot.sent),
            "what is to be sent again"
        );
    }

    /// Drops acknowledged slots from the front.
    fn drop_finished(&mut self) {
        while self.slots.front().is_some_and(|slot| slot.stage.is_none()) {
            self.slots.pop_front();
            self.first = ((usize::from(self.first) + 1) % IDS) as u16;
            self.resend_from = self.resend_from.saturating_sub(1);
        }
        if self.slots.is_empty() && self.slots.capacity() > KEPT_SLOTS {
            self.slots = VecDeque::new();
        }
    }

    fn packet_id(&self, index: usize) -> PacketId {
        let id = (usize::from(self.first) + index) % IDS + 1;
        PacketId::new(id as u16).unwrap_or(PacketId::MIN)
    }

    /// Index of the slot of an identifier; beyond the last slot if it is not in use.
    fn index(&self, packet_id: PacketId) -> usize {
        (usize::from(packet_id.get()) - 1 + IDS - usize::from(self.first)) % IDS
    }

    /// Parts for a snapshot: the identifier of the first slot less one, and all slots.
    pub(super) fn parts(
        &self,
    ) -> (
        u16,
        impl ExactSizeIterator<Item = (u64, Option<Stage>)> + '_,
    ) {
        (
            self.first,
            self.slots.iter().map(|slot| (slot.tag, slot.stage)),
        )
    }

    /// The counterpart of [`Outbox::parts`].
    pub(super) fn from_parts(first: u16, slots: Vec<(u64, Option<Stage>)>) -> Option<Self> {
        if usize::from(first) >= IDS || slots.len() > IDS {
            return None;
        }
        let slots = slots
            .into_iter()
            .map(|(tag, stage)| Slot {
                tag,
                stage,
                sent: false,
                in_flight: false,
            })
            .collect();
        let mut outbox = Self {
            slots,
            first,
            ..Self::default()
        };
        outbox.begin_connection();
        Some(outbox)
    }
}
