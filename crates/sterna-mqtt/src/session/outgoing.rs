//! Identifiers of sent packets, in the order of sending.

use std::collections::VecDeque;

use super::inherited::Inherited;
use super::named::Named;
use crate::{Lane, PacketId, ReasonCode};

/// Number of Packet Identifiers.
const IDS: usize = 65_535;

/// Slots that chosen identifiers may leave out for the first time; it may be twice as many as are in use.
const SPARE_SLOTS: usize = 32;

/// Slots that an empty outbox keeps for its next message; more are given back at once.
const KEPT_SLOTS: usize = 32;

/// The use of a Packet Identifier, and the awaited packet.
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
    /// The awaited packet.
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
    /// An unacknowledged message stays so until its acknowledgement: [MQTT-4.3.2-3] [MQTT-4.3.3-3]
    /// [MQTT-4.3.3-5]. `None`: acknowledged, kept until everything before it is.
    stage: Option<Stage>,
    /// Sent (again) on this connection.
    sent: bool,
    /// Counts against the receiver's Receive Maximum.
    in_flight: bool,
    lane: LaneNumber,
}

impl Slot {
    const FREE: Self = Self {
        tag: 0,
        stage: None,
        sent: true,
        in_flight: false,
        lane: LaneNumber::CONTROL,
    };
}

/// The last bits of the number of the lane that a packet was sent on. So two of 4 billion streams of a connection are
/// taken for one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LaneNumber(u32);

impl LaneNumber {
    pub(super) const CONTROL: Self = Self::of(Lane::CONTROL);

    const fn of(lane: Lane) -> Self {
        Self(lane.0 as u32)
    }
}

/// Identifiers are issued in ascending order. So the slots are in the order of sending, and an
/// acknowledgement finds its slot by subtraction. Chosen identifiers that follow closely are among them, others apart.
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
    /// Chosen identifiers that do not follow the slots. The counts above are of both.
    named: Option<Box<Named>>,
}

impl Outbox {
    /// Of a session that another process began.
    pub(super) fn inherited() -> Self {
        Self {
            named: Some(Box::new(Named::inherited())),
            ..Self::default()
        }
    }

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
        self.drop_finished();
        if let Some(named) = &mut self.named {
            named.begin_connection();
            self.used += named.values().count() as u16;
        }
        self.unsent = self.used;
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
        if stage == Stage::PublishQoS2 && self.heritage().is_some() {
            let packet_id = self.take_released()?;
            return (self.allocate_as(packet_id, tag, stage, true)).then_some(packet_id);
        }
        self.pass_over_named();
        let index = self.slots.len();
        if index >= IDS {
            return None;
        }
        self.push_slot(tag, stage);
        Some(self.packet_id(index))
    }

    /// Enters a packet that is sent under the identifier behind the last slot.
    fn push_slot(&mut self, tag: u64, stage: Stage) {
        let in_flight = matches!(stage, Stage::PublishQoS1 | Stage::PublishQoS2);
        self.slots.push_back(Slot {
            tag,
            stage: Some(stage),
            in_flight,
            ..Slot::FREE
        });
        self.used += 1;
        self.in_flight += u16::from(in_flight);
        self.assert_counts();
    }

    // ---- Sessions that another process began -----------------------------------------------

    fn heritage(&self) -> Option<&Inherited> {
        self.named.as_ref()?.inherited.as_ref()
    }

    fn heritage_mut(&mut self) -> Option<&mut Inherited> {
        self.named.as_mut()?.inherited.as_mut()
    }

    fn take_released(&mut self) -> Option<PacketId> {
        let mut inherited = self.named.as_mut()?.inherited.take()?;
        let taken = inherited.take(|packet_id| self.get(packet_id).is_some());
        self.named.as_mut()?.inherited = Some(inherited);
        taken
    }

    /// See [`MqttSession::has_identifier`](super::MqttSession::has_identifier).
    pub(super) fn has_released(&self) -> bool {
        self.heritage()
            .is_none_or(|inherited| inherited.has_free(|packet_id| self.get(packet_id).is_some()))
    }

    /// See [`MqttSession::ask_for_identifiers`](super::MqttSession::ask_for_identifiers).
    pub(super) fn ask_for_identifiers(&mut self, tag: u64, most: usize) -> Vec<PacketId> {
        let wanted = self
            .heritage()
            .filter(|_| !self.has_released())
            .map_or(0, |inherited| inherited.wanted(most));
        let mut asked = Vec::new();
        for _ in 0..wanted {
            let Some(packet_id) = self.allocate(tag, Stage::Release) else {
                break;
            };
            if let Some(inherited) = self.heritage_mut() {
                inherited.ask(packet_id);
            }
            asked.push(packet_id);
        }
        asked
    }

    /// Whether PUBCOMP is awaited to learn that the identifier is free.
    pub(super) fn is_asked(&self, packet_id: PacketId) -> bool {
        self.heritage()
            .is_some_and(|inherited| inherited.is_asked(packet_id))
    }

    /// The peer holds no message with QoS 2 under an identifier that was in use.
    pub(super) fn give_back(&mut self, packet_id: PacketId) {
        if let Some(inherited) = self.heritage_mut() {
            inherited.give_back(packet_id);
        }
    }

    /// The peer had no session from before.
    pub(super) fn disinherit(&mut self) {
        if let Some(named) = &mut self.named {
            named.inherited = None;
        }
        self.named.take_if(|named| named.is_empty());
    }

    // ---- Chosen identifiers ----------------------------------------------------------------

    /// See [`MqttSession::free_from`](super::MqttSession::free_from).
    pub(super) fn free_from(&self, packet_id: PacketId) -> Option<PacketId> {
        if usize::from(self.used) >= IDS {
            return None;
        }
        let from = usize::from(packet_id.get()) - 1;
        let mut ids = (from..from + IDS).filter_map(|at| PacketId::new((at % IDS + 1) as u16));
        ids.find(|&packet_id| self.get(packet_id).is_none())
    }

    /// Takes this very identifier; false where it is in use.
    pub(super) fn allocate_as(
        &mut self,
        packet_id: PacketId,
        tag: u64,
        stage: Stage,
        sent: bool,
    ) -> bool {
        if self.get(packet_id).is_some() {
            return false;
        }
        if self.slots.is_empty() && sent {
            self.first = packet_id.get() - 1;
        }
        let index = self.index(packet_id);
        if sent && index >= self.slots.len() && index < 2 * usize::from(self.used) + SPARE_SLOTS {
            self.slots.resize(index, Slot::FREE);
            self.push_slot(tag, stage);
            return true;
        }
        let named = self.named.get_or_insert_default();
        named.take(packet_id, tag, stage, sent, self.slots.len());
        self.used += 1;
        self.in_flight += u16::from(sent && stage != Stage::Release);
        self.unsent += u16::from(!sent);
        self.assert_counts();
        true
    }

    /// Leaves those identifiers out that come next and are in use.
    fn pass_over_named(&mut self) {
        while self.slots.len() < IDS
            && let Some(named) = &self.named
            && named.get(self.packet_id(self.slots.len())).is_some()
        {
            if self.slots.is_empty() {
                self.first = ((usize::from(self.first) + 1) % IDS) as u16;
            } else {
                self.slots.push_back(Slot::FREE);
            }
        }
    }

    pub(super) fn get(&self, packet_id: PacketId) -> Option<AwaitedAck> {
        if let Some(slot) = self.slots.get(self.index(packet_id))
            && let Some(stage) = slot.stage
        {
            return Some(AwaitedAck {
                packet_id,
                tag: slot.tag,
                stage,
            });
        }
        let slot = self.named.as_ref()?.get(packet_id)?;
        Some(slot.awaited(packet_id))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = AwaitedAck> + '_ {
        let slots = self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let stage = slot.stage?;
            let awaited = AwaitedAck {
                packet_id: self.packet_id(index),
                tag: slot.tag,
                stage,
            };
            Some((index, awaited))
        });
        let mut slots = slots.peekable();
        let mut named = (self.named.iter())
            .flat_map(|named| named.in_order())
            .peekable();
        std::iter::from_fn(move || {
            let before = named.peek().map(|(before, _)| *before);
            let goes_first = |(index, _): &(usize, AwaitedAck)| before.is_none_or(|b| *index < b);
            let next = slots.next_if(goes_first).or_else(|| named.next());
            next.map(|(_, awaited)| awaited)
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
        let unsent = self.slots.iter().skip(from).position(|slot| !slot.sent);
        let index = unsent.map_or(self.slots.len(), |offset| from + offset);
        self.resend_from = index as u16;
        if let Some(named) = &mut self.named
            && let Some((before, awaited)) = named.next_resend()
            && before <= index
        {
            return Some(awaited);
        }
        let slot = self.slots.get(index)?;
        Some(AwaitedAck {
            packet_id: self.packet_id(index),
            tag: slot.tag,
            stage: slot.stage?,
        })
    }

    pub(super) fn mark_resent(&mut self, packet_id: PacketId) {
        self.sent_on(packet_id, Lane::CONTROL);
        let index = self.index(packet_id);
        let (sent, in_flight, stage) = match self.slots.get_mut(index) {
            Some(slot) if slot.stage.is_some() => (&mut slot.sent, &mut slot.in_flight, slot.stage),
            _ => match self
                .named
                .as_mut()
                .and_then(|named| named.get_mut(packet_id))
            {
                Some(slot) => (&mut slot.sent, &mut slot.in_flight, Some(slot.stage)),
                None => return,
            },
        };
        if *sent {
            return;
        }
        *sent = true;
        self.unsent -= 1;
        if matches!(stage, Some(Stage::PublishQoS1 | Stage::PublishQoS2)) {
            *in_flight = true;
            self.in_flight += 1;
        }
        self.assert_counts();
    }

    /// The last packet of an identifier was sent on this lane. New ones are on control.
    pub(super) fn sent_on(&mut self, packet_id: PacketId, lane: Lane) {
        let index = self.index(packet_id);
        let number = LaneNumber::of(lane);
        match self.slots.get_mut(index) {
            Some(slot) if slot.stage.is_some() => slot.lane = number,
            _ => {
                let named = self.named.as_mut();
                if let Some(slot) = named.and_then(|named| named.get_mut(packet_id)) {
                    slot.lane = number;
                }
            }
        }
    }

    /// Messages that were sent on a lane are to be sent again. Calls `released` with those that the peer has: their
    /// last packet was PUBREL.
    pub(super) fn lane_lost(&mut self, lane: Lane, mut released: impl FnMut(PacketId)) {
        let number = LaneNumber::of(lane);
        let lost: Vec<_> = self
            .iter()
            .filter(|awaited| self.lane_of(awaited.packet_id) == Some(number))
            .collect();
        for awaited in lost {
            match awaited.stage {
                Stage::PublishQoS1 | Stage::PublishQoS2 => self.unsend(awaited.packet_id),
                Stage::Release => {
                    self.sent_on(awaited.packet_id, Lane::CONTROL);
                    released(awaited.packet_id);
                }
                Stage::Subscribe | Stage::Unsubscribe => {}
            }
        }
        self.assert_counts();
    }

    fn lane_of(&self, packet_id: PacketId) -> Option<LaneNumber> {
        match self.slots.get(self.index(packet_id)) {
            Some(slot) if slot.stage.is_some() => Some(slot.lane),
            _ => Some(self.named.as_ref()?.get(packet_id)?.lane),
        }
    }

    /// A message of this connection is to be sent again.
    fn unsend(&mut self, packet_id: PacketId) {
        let index = self.index(packet_id);
        let was_in_flight = match self.slots.get_mut(index) {
            Some(slot) if slot.stage.is_some() => {
                if !std::mem::replace(&mut slot.sent, false) {
                    return;
                }
                self.resend_from = self.resend_from.min(index as u16);
                std::mem::replace(&mut slot.in_flight, false)
            }
            _ => match self
                .named
                .as_mut()
                .and_then(|named| named.unsend(packet_id))
            {
                Some(was_in_flight) => was_in_flight,
                None => return,
            },
        };
        self.unsent += 1;
        self.in_flight -= u16::from(was_in_flight);
    }

    pub(super) fn remove(&mut self, packet_id: PacketId) -> Option<AwaitedAck> {
        let outgoing = self.get(packet_id)?;
        self.free(packet_id);
        Some(outgoing)
    }

    pub(super) fn finish(&mut self, packet_id: PacketId, stage: Stage) -> Result<u64, AckError> {
        let index = self.index(packet_id);
        let (tag, found) = if let Some(slot) = self.slots.get(index)
            && let Some(found) = slot.stage
        {
            (slot.tag, found)
        } else {
            let named = self.named.as_ref();
            let slot = named.and_then(|named| named.get(packet_id));
            let awaited = slot.ok_or(AckError::Unknown)?.awaited(packet_id);
            (awaited.tag, awaited.stage)
        };
        if found != stage {
            return Err(AckError::Unexpected);
        }
        self.free_at(index, packet_id);
        Ok(tag)
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
                self.free(packet_id);
                // [MQTT-4.3.3-9]
                self.give_back(packet_id);
                Ok((outgoing.tag, true))
            }
            Stage::PublishQoS2 => {
                // [MQTT-4.3.3-5] [MQTT-4.3.3-6]
                let index = self.index(packet_id);
                let sent = match self.slots.get_mut(index) {
                    Some(slot) if slot.stage.is_some() => {
                        slot.stage = Some(Stage::Release);
                        Some(&mut slot.sent)
                    }
                    _ => (self.named.as_mut())
                        .and_then(|named| named.get_mut(packet_id))
                        .map(|slot| {
                            slot.stage = Stage::Release;
                            &mut slot.sent
                        }),
                };
                if sent.is_some_and(|sent| !std::mem::replace(sent, true)) {
                    self.unsent -= 1;
                }
                Ok((outgoing.tag, true))
            }
            Stage::Release => Ok((outgoing.tag, false)),
            _ => Err(AckError::Unexpected),
        }
    }

    fn free(&mut self, packet_id: PacketId) {
        self.free_at(self.index(packet_id), packet_id);
    }

    /// The same where the identifier's index is known.
    #[inline]
    fn free_at(&mut self, index: usize, packet_id: PacketId) {
        let (in_flight, sent) = match self.slots.get_mut(index) {
            Some(slot) if slot.stage.is_some() => {
                slot.stage = None;
                let in_flight = std::mem::replace(&mut slot.in_flight, false);
                (in_flight, std::mem::replace(&mut slot.sent, true))
            }
            _ => {
                let named = self.named.as_mut();
                let Some(slot) = named.and_then(|named| named.remove(packet_id)) else {
                    return;
                };
                self.named.take_if(|named| named.is_empty());
                (slot.in_flight, slot.sent)
            }
        };
        self.used -= 1;
        self.in_flight -= u16::from(in_flight);
        self.unsent -= u16::from(!sent);
        if index == 0 {
            self.drop_finished();
        }
        self.assert_counts();
    }

    /// Checks of the counts that need no slots.
    fn assert_counts(&self) {
        debug_assert!(
            self.slots.len() <= IDS,
            "there are no more slots than identifiers"
        );
        debug_assert!(
            self.in_flight <= self.used && self.unsent <= self.used,
            "only used identifiers are in flight or to be sent again"
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
        let named = || self.named.iter().flat_map(|named| named.values());
        let used = count(|slot| slot.stage.is_some()) + named().count();
        let in_flight =
            count(|slot| slot.in_flight) + named().filter(|slot| slot.in_flight).count();
        let unsent = count(|slot| !slot.sent) + named().filter(|slot| !slot.sent).count();
        assert!(
            self.named.as_ref().is_none_or(|named| !named.is_empty()),
            "without chosen identifiers there is no memory for them"
        );
        let in_use = self.iter().map(|awaited| awaited.packet_id);
        let distinct: std::collections::BTreeSet<_> = in_use.collect();
        assert_eq!(distinct.len(), used, "no identifier is used twice");
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
            "identifiers to be sent again"
        );
    }

    /// Drops acknowledged slots from the front.
    fn drop_finished(&mut self) {
        while self.slots.front().is_some_and(|slot| slot.stage.is_none()) {
            self.slots.pop_front();
            if let Some(named) = &mut self.named {
                named.dropped += 1;
            }
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
}
