//! QoS 2 messages that were received and not yet released.
//!
//! Lanes may have identifiers of their own, so several messages can have one identifier. A message is *live* while
//! the lane that it came on last is open. Otherwise it is of an earlier connection or a lost lane, and is *left*: it
//! may come again, or be released, on any lane. `docs/quic.md` says what clients have to observe.

use std::collections::VecDeque;
use std::ops::Deref;

use super::content::{Content, ReceivedId};
use crate::{Lane, PacketId};

/// A PUBREC with success has been sent, or waits for its turn.
const ACKNOWLEDGED: u8 = 0b01;

/// Its lane is open: counts against the Receive Maximum.
const LIVE: u8 = 0b10;

/// Not accepted, and the PUBREC that says so has not been sent.
const REFUSED: u8 = 0b100;

/// Numbers of lanes are below 2^62. The bits above tell messages apart that are equal in all else.
const LANE_BITS: u32 = 62;

/// Room that is given back when three quarters of it are unused.
const SPARE_ENTRIES: usize = 32;

/// Kind of a PUBLISH with QoS 2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Received {
    /// A new message.
    New(ReceivedId),
    /// A repetition of a message that was accepted: answer it with PUBREC.
    Repeated,
    /// A repetition of a message whose PUBREC is yet to come: do nothing.
    Pending,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    packet_id: PacketId,
    state: u8,
    /// The lane on which it came last.
    lane: u64,
    /// See [`ReceivedId::lane`].
    first_lane: u64,
    content: Content,
}

impl Entry {
    const fn is_live(&self) -> bool {
        self.state & LIVE != 0
    }

    const fn is_acknowledged(&self) -> bool {
        self.state & ACKNOWLEDGED != 0
    }

    const fn id(&self) -> ReceivedId {
        ReceivedId {
            packet_id: self.packet_id,
            lane: self.first_lane,
            content: self.content,
        }
    }

    const fn answer(&self) -> Received {
        if self.is_acknowledged() {
            Received::Repeated
        } else {
            Received::Pending
        }
    }
}

#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Incoming {
    entries: Entries,
    live: u32,
}

/// In the order of identifiers. Those of one identifier are in the order of their arrival. Most sessions have none, and
/// no memory for them.
#[expect(
    clippy::box_collection,
    reason = "each idle session has the pointer, and few have entries"
)]
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Entries(Option<Box<VecDeque<Entry>>>);

impl Deref for Entries {
    type Target = VecDeque<Entry>;

    fn deref(&self) -> &Self::Target {
        static NONE: VecDeque<Entry> = VecDeque::new();
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl Entries {
    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.0.iter_mut().flat_map(|entries| entries.iter_mut())
    }

    fn get_mut(&mut self, index: usize) -> Option<&mut Entry> {
        self.0.as_mut()?.get_mut(index)
    }

    fn insert(&mut self, index: usize, entry: Entry) {
        self.0.get_or_insert_default().insert(index, entry);
    }

    fn remove(&mut self, index: usize) -> Option<Entry> {
        self.0.as_mut()?.remove(index)
    }

    fn retain(&mut self, keeps: impl Fn(&Entry) -> bool) {
        if let Some(entries) = &mut self.0 {
            entries.retain(keeps);
        }
    }

    /// Gives memory back.
    fn shrink(&mut self) {
        let Some(entries) = &mut self.0 else {
            return;
        };
        let len = entries.len();
        if len == 0 {
            self.0 = None;
        } else if entries.capacity() > SPARE_ENTRIES && len <= entries.capacity() / 4 {
            entries.shrink_to(2 * len);
        }
    }
}

impl Incoming {
    pub(super) fn begin_connection(&mut self) {
        self.live = 0;
        // A refused message whose client was not told is new when it comes again. [MQTT-4.3.3-9]
        self.entries.retain(|entry| entry.state & REFUSED == 0);
        for entry in self.entries.iter_mut() {
            entry.state &= !LIVE;
        }
        self.entries.shrink();
    }

    pub(super) fn mark_all_received(&mut self) {
        for entry in self.entries.iter_mut() {
            entry.state |= ACKNOWLEDGED;
        }
    }

    pub(super) fn mark_earlier(&mut self, packet_id: PacketId) {
        for index in self.range(packet_id) {
            if let Some(entry) = self.entries.get_mut(index)
                && !entry.is_live()
            {
                entry.state |= ACKNOWLEDGED;
            }
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) const fn in_flight(&self) -> usize {
        self.live as usize
    }

    pub(super) fn receive(
        &mut self,
        lane: Lane,
        packet_id: PacketId,
        dup: bool,
        content: Content,
    ) -> Received {
        let found = self.best(packet_id, |entry| {
            let is_same = entry.content == content;
            match (entry.is_live(), entry.lane == lane.0) {
                // [MQTT-4.3.3-10] an identifier in use on a lane is a repetition there, whatever it carries
                (true, true) => Some(0),
                (false, true) if is_same => Some(1),
                (false, _) if is_same && dup => Some(2),
                // The same of the one lane that goes on over all connections.
                (false, true) if lane.is_control() => Some(3),
                // It has overtaken the end of its first lane.
                (true, false) if is_same && dup => Some(4),
                _ => None,
            }
        });
        if let Some(entry) = found.and_then(|index| self.entries.get_mut(index)) {
            self.live += u32::from(!entry.is_live());
            entry.lane = lane.0;
            entry.state |= LIVE;
            return entry.answer();
        }
        let entry = Entry {
            packet_id,
            state: LIVE,
            lane: lane.0,
            first_lane: self.first_lane(lane, packet_id, content),
            content,
        };
        self.entries.insert(self.range(packet_id).end, entry);
        self.live += 1;
        Received::New(entry.id())
    }

    /// The lane, made unique among messages with this identifier and content.
    fn first_lane(&self, lane: Lane, packet_id: PacketId, content: Content) -> u64 {
        let known = || self.entries.range(self.range(packet_id));
        let names = (0..4).map(|number| lane.0 | number << LANE_BITS);
        let mut free = names.filter(|&name| {
            !known().any(|entry| entry.first_lane == name && entry.content == content)
        });
        free.next().unwrap_or(lane.0)
    }

    pub(super) fn mark_received(&mut self, lane: Lane, packet_id: PacketId) {
        self.mark(lane, packet_id, ACKNOWLEDGED);
    }

    pub(super) fn mark_refused(&mut self, lane: Lane, packet_id: PacketId) {
        self.mark(lane, packet_id, REFUSED);
    }

    fn mark(&mut self, lane: Lane, packet_id: PacketId, state: u8) {
        let index = self.unanswered(lane, packet_id);
        if let Some(entry) = index.and_then(|index| self.entries.get_mut(index)) {
            entry.state |= state;
        }
    }

    /// Forgets a message that was refused.
    pub(super) fn forget(&mut self, lane: Lane, packet_id: PacketId) {
        if let Some(index) = self.unanswered(lane, packet_id) {
            self.remove(index);
        }
    }

    pub(super) fn answer_lane(&self, lane: Lane, packet_id: PacketId) -> Option<Lane> {
        let entry = &self.entries[self.unanswered(lane, packet_id)?];
        entry.is_live().then_some(Lane(entry.lane))
    }

    /// The message that came on a lane and is answered now. It may have come again on another lane meanwhile.
    fn unanswered(&self, lane: Lane, packet_id: PacketId) -> Option<usize> {
        let is_first = |entry: &Entry| entry.first_lane << 2 == lane.0 << 2;
        self.best(packet_id, |entry| match entry.is_live() {
            true if entry.lane == lane.0 => Some(0),
            _ if entry.is_acknowledged() => None,
            false if entry.lane == lane.0 => Some(1),
            _ if is_first(entry) => Some(2),
            _ => Some(3),
        })
    }

    /// PUBREL names an identifier alone. So it means the message of its own lane, else one that is left, and that of
    /// an equally numbered lane first. At last it means one of another lane: some clients publish on unidirectional
    /// streams, and release elsewhere. It can overtake the end of a lane, too.
    pub(super) fn release(
        &mut self,
        lane: Lane,
        packet_id: PacketId,
    ) -> Option<(ReceivedId, bool)> {
        let index = self.best(packet_id, |entry| {
            // Unidirectional lanes are answered on control, and share its identifiers.
            let is_akin = Lane(entry.lane).reply().is_control() == lane.reply().is_control();
            match (entry.is_live(), entry.lane == lane.0) {
                (true, true) => Some(0),
                // Another message with this identifier has been released before.
                _ if !entry.is_acknowledged() => None,
                (false, true) => Some(1),
                (false, false) if is_akin => Some(2),
                (false, false) => Some(3),
                (true, false) if is_akin => Some(4),
                (true, false) => Some(5),
            }
        })?;
        let entry = self.remove(index)?;
        Some((entry.id(), entry.is_acknowledged()))
    }

    pub(super) fn lane_closed(&mut self, lane: Lane) {
        if self.live == 0 {
            return;
        }
        for entry in self.entries.iter_mut() {
            if entry.is_live() && entry.lane == lane.0 {
                entry.state &= !LIVE;
                self.live -= 1;
            }
        }
    }

    /// Forgets the oldest message with this identifier that is left.
    pub(super) fn displace(&mut self, packet_id: PacketId) -> Option<ReceivedId> {
        let is_left = |entry: &Entry| (!entry.is_live()).then_some(0);
        let index = self.best(packet_id, is_left)?;
        Some(self.remove(index)?.id())
    }

    /// The entries of an identifier.
    fn range(&self, packet_id: PacketId) -> std::ops::Range<usize> {
        let entries = &self.entries;
        let start = entries.partition_point(|entry| entry.packet_id < packet_id);
        let same = entries.range(start..);
        let count = same.take_while(|entry| entry.packet_id == packet_id);
        start..start + count.count()
    }

    /// The entry of an identifier with the lowest rank, of several the oldest.
    fn best(&self, packet_id: PacketId, rank: impl Fn(&Entry) -> Option<u8>) -> Option<usize> {
        let ranked = self.range(packet_id);
        let ranked = ranked.filter_map(|index| Some((rank(&self.entries[index])?, index)));
        ranked.min().map(|(_, index)| index)
    }

    fn remove(&mut self, index: usize) -> Option<Entry> {
        let entry = self.entries.remove(index)?;
        self.live -= u32::from(entry.is_live());
        debug_assert!(
            self.live as usize <= self.entries.len(),
            "messages in flight are known"
        );
        self.entries.shrink();
        Some(entry)
    }

    /// See [`MqttSession::check`](super::MqttSession::check).
    pub(super) fn check(&self) {
        let live = self.entries.iter().filter(|entry| entry.is_live()).count();
        assert_eq!(live, self.live as usize, "received and in flight");
        let ids = self.entries.iter().map(|entry| entry.packet_id);
        assert!(ids.is_sorted(), "in the order of identifiers");
    }

    /// Messages that an earlier connection received and did not release.
    pub(super) fn of_earlier(received: impl Iterator<Item = ReceivedId>) -> Self {
        let mut entries: Vec<_> = received
            .map(|id| Entry {
                packet_id: id.packet_id,
                state: ACKNOWLEDGED,
                lane: id.lane & ((1 << LANE_BITS) - 1),
                first_lane: id.lane,
                content: id.content,
            })
            .collect();
        entries.sort_by_key(|entry| (entry.packet_id, entry.first_lane, entry.content));
        entries.dedup();
        Self {
            entries: Entries((!entries.is_empty()).then(|| Box::new(entries.into()))),
            live: 0,
        }
    }
}
