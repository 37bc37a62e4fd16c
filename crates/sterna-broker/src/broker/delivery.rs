//! From a queue to its consumer, and what becomes of it (MQTT 5.0, sections 4.3 and 4.4).

use std::sync::Arc;

use super::Broker;
use crate::api::{ConsumerId, Delivery, DoorState, Outcome, SessionKey, Unacknowledged};
use crate::counters::Held;
use crate::losses::LossReason;
use crate::mail::Returned;
use crate::message::{Message, Qos};
use crate::name::SessionName;
use crate::nodes::{NIL, Phase};
use crate::queues::Dead;
use crate::session::State;
use crate::watch::Step;

/// The first message of a session's queue, which can be sent now. It stays there until it is taken.
#[derive(Debug)]
pub struct Next<'a, P: DoorState> {
    broker: &'a mut Broker<P>,
    now_ms: u64,
    slot: u32,
    node: u32,
    qos: Qos,
}

impl<P: DoorState> Next<'_, P> {
    /// The level at which it is delivered.
    #[must_use]
    pub const fn qos(&self) -> Qos {
        self.qos
    }

    /// Its place in the log, 0 where it has none; `None` where the session does not read the log.
    #[must_use]
    pub fn place(&self) -> Option<u64> {
        let queues = &self.broker.queues;
        queues.sessions[self.slot].reader.as_ref()?;
        Some(
            queues
                .nodes
                .entry(self.node)
                .map_or(0, |entry| entry.position),
        )
    }

    /// The broker, as it is now.
    #[must_use]
    pub fn broker(&self) -> &Broker<P> {
        self.broker
    }

    /// Takes it from the queue. At QoS 1 and 2 it enters the ledger as sent.
    #[must_use]
    pub fn take(self) -> Option<Delivery> {
        self.broker.queues.take_next(self.slot, self.node)
    }
}

impl<P: DoorState> Drop for Next<'_, P> {
    fn drop(&mut self) {
        self.broker.finish(self.now_ms);
    }
}

impl<P: DoorState> Broker<P> {
    /// The next session with something to send and a consumer that isn't parked. A session comes
    /// again, after the others, until it is drained or parked.
    pub fn next_ready(&mut self) -> Option<(ConsumerId, SessionKey)> {
        let Some(slot) = self.queues.next_ready() else {
            self.report();
            return None;
        };
        let session = &self.queues.sessions[slot];
        Some((session.consumer()?, session.key(slot)))
    }

    /// Whether sessions may have something to send.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        self.queues.has_ready()
    }

    /// Whether messages of QoS 1 or 2 have filled half of a queue since the last call. The front door then
    /// drains what is [ready](Self::next_ready), before more is published: all in the queue may have come in this turn.
    pub fn take_crowded(&mut self) -> bool {
        let is_crowded = std::mem::take(&mut self.queues.is_crowded);
        if is_crowded && let Some(peers) = &mut self.peers {
            peers.note_crowded();
        }
        is_crowded
    }

    /// The next message of a session's queue, so that the front door can see whether its window allows it. Expired
    /// messages are dropped on the way. `None` where nothing can be sent now.
    pub fn next(&mut self, now_ms: u64, session: SessionKey) -> Option<Next<'_, P>> {
        let slot = session.slot;
        self.queues.active_mut(session)?;
        let Some((node, qos)) = self.first_to_leave(now_ms, slot) else {
            self.finish(now_ms);
            return None;
        };
        Some(Next {
            broker: self,
            now_ms,
            slot,
            node,
            qos,
        })
    }

    /// Whether a session's consumer learns in the next turn if the first message of its queue is for it. Until then nothing
    /// says that there is none.
    #[must_use]
    pub fn is_undecided(&self, session: SessionKey) -> bool {
        self.queues.work.sessions.contains(&session.slot)
    }

    /// Takes the next message from the queue. At QoS 1 and 2 it enters the ledger as sent.
    pub fn next_delivery(&mut self, now_ms: u64, session: SessionKey) -> Option<Delivery> {
        self.next(now_ms, session)?.take()
    }

    /// Keeps a session from being ready, because its window or its transport is full.
    pub fn park(&mut self, session: SessionKey) {
        if let Some(session) = self.queues.attended_mut(session) {
            session.is_parked = true;
        }
    }

    /// Has a session be [ready](Self::next_ready) once more, though nothing may be in its queue: its consumer is in the
    /// middle of a message, or has some to send again.
    pub fn note_more(&mut self, session: SessionKey) {
        let slot = session.slot;
        if let Some(session) = self.queues.attended_mut(session) {
            session.set_has_more(true);
            self.queues.list_if_ready(slot);
        }
    }

    /// Lets a parked session be ready again.
    pub fn unpark(&mut self, session: SessionKey) {
        let slot = session.slot;
        if let Some(session) = self.queues.attended_mut(session)
            && std::mem::take(&mut session.is_parked)
        {
            self.queues.list_if_ready(slot);
        }
    }

    /// Where a delivery of a session lies; `None` for outdated keys and unknown tags.
    pub(super) fn find_sent(&mut self, session: SessionKey, tag: u64) -> Option<u32> {
        self.queues.active_mut(session)?;
        self.queues.find_sent(session.slot, tag)
    }

    /// Ends a delivery. False for an unknown tag.
    ///
    /// [`Outcome::Released`] puts it in front of its queue. Release the latest of several first to keep their
    /// order; a shared subscription's queue keeps it in any case. A message that was handed over can't be released:
    /// that counts as accepted.
    pub fn settle(&mut self, now_ms: u64, session: SessionKey, tag: u64, outcome: Outcome) -> bool {
        let Some(node) = self.find_sent(session, tag) else {
            return false;
        };
        let is_known = self.settle_node(session.slot, node, outcome);
        self.finish(now_ms);
        is_known
    }

    /// As [`settle`](Self::settle). Once this call's append is kept, a message of the log that is not given back is
    /// never delivered again. That holds after a crash, too. A receiver that settles second may be told then.
    pub fn settle_for_good(
        &mut self,
        now_ms: u64,
        session: SessionKey,
        tag: u64,
        outcome: Outcome,
    ) -> bool {
        if !self.stays(session, tag, outcome) {
            self.hand_over(session, tag, outcome);
        }
        self.settle(now_ms, session, tag, outcome)
    }

    /// Whether a delivery with this outcome goes on, or its end is kept elsewhere.
    pub(super) fn stays(&mut self, session: SessionKey, tag: u64, outcome: Outcome) -> bool {
        match outcome {
            Outcome::Accepted => false,
            // A dead letter is kept in one frame with its queue's cursor.
            Outcome::Rejected(_) => {
                let node = self.find_sent(session, tag);
                let entry = node.and_then(|node| self.queues.nodes.entry(node));
                entry.is_some_and(|entry| entry.is_kept)
            }
            Outcome::Released | Outcome::Failed | Outcome::Undeliverable | Outcome::Declined => {
                true
            }
        }
    }

    /// Ends deliveries that an earlier process has sent, by their places in the log: as
    /// [`settle_for_good`](Self::settle_for_good) with [`Outcome::Accepted`]. Places that the session is done
    /// with, or that are not there yet, are passed over.
    pub fn settle_places(&mut self, session: SessionKey, places: &[u64]) {
        if self.queues.attended(session).is_some() {
            self.settle_places_of(session.slot, places);
        }
    }

    /// The same for a session of this shard by its name, which may be away.
    pub fn settle_places_named(&mut self, now_ms: u64, name: &SessionName, places: &[u64]) {
        if let Some(slot) = self.active_slot(name) {
            self.queues.sessions.unpack(slot);
            self.settle_places_of(slot, places);
            self.finish(now_ms);
        }
    }

    /// Ends all deliveries of messages of the log up to a place, as [`settle_places_named`](Self::settle_places_named),
    /// and passes over those that were not sent. To be used where messages are sent in the order of their places, as
    /// in a cluster. Places that are not there yet are passed over.
    pub fn settle_up_to_named(&mut self, now_ms: u64, name: &SessionName, place: u64) {
        let Some(slot) = self.active_slot(name) else {
            return;
        };
        if place == 0 || place >= self.queues.store.next_position() {
            return;
        }
        self.queues.sessions.unpack(slot);
        let is_meant = |position: u64| (1..=place).contains(&position);
        self.remove_pending_places(slot, is_meant);
        if let Some(reader) = &mut self.queues.sessions[slot].reader {
            reader.cursor.settle_up_to(place);
            self.queues.write_cursor(slot);
            self.append_changes();
        }
        self.finish(now_ms);
    }

    fn settle_places_of(&mut self, slot: u32, places: &[u64]) {
        let wanted: Vec<u64> = (places.iter().copied())
            .filter(|&place| self.wants_place_of(slot, place))
            .collect();
        if wanted.is_empty() {
            return;
        }
        self.remove_pending_places(slot, |position| wanted.contains(&position));
        if let Some(reader) = &mut self.queues.sessions[slot].reader {
            for &place in &wanted {
                reader.settle(place);
            }
        }
        self.queues.write_cursor(slot);
        self.append_changes();
    }

    /// Removes messages from a session's queue by their places in the log.
    fn remove_pending_places(&mut self, slot: u32, is_meant: impl Fn(u64) -> bool) {
        let mut node = self.queues.sessions[slot].pending.first();
        while node != NIL {
            let next = self.queues.nodes.next(node);
            let entry = self.queues.nodes.entry(node);
            if entry.is_some_and(|entry| is_meant(entry.own_position())) {
                self.queues.remove_pending(slot, node);
            }
            node = next;
        }
    }

    /// Whether a session that reads the log is not done with the message of a place.
    #[must_use]
    pub fn wants_place(&self, session: SessionKey, place: u64) -> bool {
        self.queues.attended(session).is_some() && self.wants_place_of(session.slot, place)
    }

    fn wants_place_of(&self, slot: u32, place: u64) -> bool {
        let session = self.queues.sessions.get(slot);
        let reader = session.and_then(|session| session.reader.as_ref());
        place != 0
            && place < self.queues.store.next_position()
            && reader.is_some_and(|reader| reader.cursor.wants(place).is_some())
    }

    /// Tells the watcher how a delivery ended.
    fn saw_settled(&self, slot: u32, node: u32, outcome: Outcome) {
        let entry = self.queues.nodes.entry(node);
        if let Some(message) = entry.and_then(|entry| entry.message.as_deref()) {
            let reader = self.queues.sessions[slot].name.text();
            self.queues.saw(message, Step::Settled { reader, outcome });
        }
    }

    /// Ends the delivery of a node of a session's ledger.
    pub(super) fn settle_node(&mut self, slot: u32, node: u32, outcome: Outcome) -> bool {
        if self.queues.road.is_some() {
            self.saw_settled(slot, node, outcome);
        }
        let Some(entry) = self.queues.nodes.entry(node) else {
            return false;
        };
        let is_own = entry.group == NIL;
        let (released, failed) = match outcome {
            Outcome::Accepted | Outcome::Rejected(_) => (false, false),
            Outcome::Released => (true, false),
            Outcome::Failed => (true, true),
            Outcome::Undeliverable => (!is_own, true),
            Outcome::Declined => (!is_own, false),
        };
        let is_for_others = matches!(outcome, Outcome::Undeliverable | Outcome::Declined);
        let released = released && entry.phase == Phase::Sent;
        if released && is_own {
            self.queues.release(slot, node, failed);
        } else if let Some(mut entry) = self.queues.remove_sent(slot, node) {
            self.queues.forget_stored(slot, &entry);
            // A dead message is the group's until its letter is kept.
            let is_dead = matches!(outcome, Outcome::Rejected(_)) && entry.is_kept;
            self.queues.note_owed(slot, &entry, !released && !is_dead);
            if is_own && is_for_others {
                let reason = LossReason::Undeliverable;
                (self.queues).lose(slot, entry.message.as_deref(), reason);
            }
            if is_dead {
                self.queues.counters.rejected_messages += 1;
                self.queues.dead.extend(Dead::rejected(entry));
            } else if released {
                if failed {
                    entry.failures.fail();
                }
                let mut returned = Returned::of(entry);
                if let (Some((_, returned)), true) = (&mut returned, is_for_others) {
                    let session = &self.queues.sessions[slot];
                    returned.refused_by = Some((session.subscriber, session.attendance));
                }
                self.give_back(returned.into_iter().collect());
            }
        }
        true
    }

    /// Puts another message in the place of one that was sent: it is what is delivered once the delivery is
    /// given back. False for an unknown tag and for what was handed over. A store keeps the old one.
    pub fn replace(&mut self, session: SessionKey, tag: u64, mut message: Message) -> bool {
        let Some(node) = self.find_sent(session, tag) else {
            return false;
        };
        message.charge_large(&self.gauge);
        message.set_changed();
        let queues = &mut self.queues;
        let Some(known) = queues
            .nodes
            .entry_mut(node)
            .and_then(|entry| entry.message.as_mut())
        else {
            return false;
        };
        let (before, after) = (known.body_bytes() as u64, message.body_bytes() as u64);
        queues.counters.unstored(Held::of(Some(known)));
        queues.counters.stored(Held::of(Some(&message)));
        *known = Arc::new(message);
        let account = &mut queues.sessions[session.slot].account;
        account.sent_bytes = account.sent_bytes - before + after;
        true
    }

    /// The receiver has taken a QoS 2 delivery over (PUBREC): the message is dropped, the tag kept
    /// until it is settled. False for an unknown tag. [MQTT-4.3.3-6]
    pub fn handed_over(&mut self, session: SessionKey, tag: u64) -> bool {
        self.hand_over(session, tag, Outcome::Accepted)
    }

    /// The same; the watcher is told this outcome.
    fn hand_over(&mut self, session: SessionKey, tag: u64, outcome: Outcome) -> bool {
        let slot = session.slot;
        let Some(node) = self.find_sent(session, tag) else {
            return false;
        };
        if self.queues.road.is_some() {
            self.saw_settled(slot, node, outcome);
        }
        let Some(entry) = self.queues.nodes.entry_mut(node) else {
            return false;
        };
        entry.phase = Phase::HandedOver;
        entry.context = None;
        let (is_kept, own_position) = (entry.is_kept, entry.own_position());
        let group = entry.group;
        if let Some(message) = entry.message.take() {
            let body_bytes = message.body_bytes() as u64;
            self.queues.counters.handed_over(Held::of(Some(&message)));
            self.queues.ledger_has_room(slot, body_bytes);
        }
        if own_position != 0 {
            // The reader is done with it; what is left has a record of its own.
            self.queues.settle_position(slot, own_position);
        }
        // The session may have left the group since it was sent.
        let group = self.index.filter_of_group(group);
        if is_kept {
            // From now on it is this consumer's alone.
            self.queues.release_from_group(slot, node, group);
        } else {
            self.queues.keep_owned(slot, node, group);
        }
        if !self.queues.changes.is_empty() {
            self.append_changes();
        }
        true
    }

    /// Messages that were sent and not settled, in the order they were sent. They are to be sent again on resume,
    /// and at no other time. [MQTT-4.4.0-1] [MQTT-4.6.0-1]
    #[must_use]
    pub fn unacknowledged(&self, session: SessionKey) -> Vec<Unacknowledged> {
        let queues = &self.queues;
        let Some(attended) = queues.attended(session) else {
            return Vec::new();
        };
        if attended.state != State::Active {
            return Vec::new();
        }
        let mut entries = Vec::with_capacity(attended.ledger.len());
        let mut node = attended.ledger.first();
        while node != NIL {
            entries.extend(queues.unacknowledged(session.slot, node));
            node = queues.nodes.next(node);
        }
        entries
    }

    /// One entry of the ledger by its tag.
    #[must_use]
    pub fn unacknowledged_by_tag(&self, session: SessionKey, tag: u64) -> Option<Unacknowledged> {
        self.queues.attended(session)?;
        let node = self.queues.find_sent(session.slot, tag)?;
        self.queues.unacknowledged(session.slot, node)
    }
}
