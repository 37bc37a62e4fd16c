//! The memory that one session holds, and whether it may take more.
//!
//! There are two accounts, so that neither kind of message takes the other's room. Messages of QoS 0 are
//! bounded by bytes and by age, the others by number and by bytes. A message of QoS 1 or 2 stays in its
//! account until it is settled. So a consumer that never acknowledges holds no more than one that never
//! reads.

use crate::counters::ENTRY_BYTES;
use crate::limits::QueueFull;
use crate::losses::LossReason;
use crate::message::Message;
use crate::nodes::{Entry, List, NIL, Nodes};
use crate::pressure::Pressure;
use crate::queues::{QueueKey, Queues};
use crate::session::BrokerSession;

/// The contents of a session's queue and ledger, in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Account {
    /// Bytes of the bodies that wait.
    pub(crate) pending_bytes: u64,
    /// Bytes of the bodies that were sent and not settled.
    pub(crate) sent_bytes: u64,
    /// Bytes of the bodies of QoS 0 that wait, see [`is_qos0`].
    qos0_bytes: u64,
    /// Their number.
    qos0_messages: u32,
    /// Of what waits: copies that a new subscription asked for.
    pub(crate) retained_messages: u32,
}

/// Whether an entry is in the account of QoS 0. Retained copies have a limit of their own, and what a
/// shared subscription assigns is limited there.
const fn is_qos0(entry: &Entry) -> bool {
    !entry.qos.is_acknowledged() && !entry.retained_copy && entry.group == NIL
}

impl Account {
    /// The account of a queue and a ledger.
    pub(crate) fn of(nodes: &Nodes, pending: List, ledger: List) -> Self {
        let mut account = Self::default();
        nodes.each(pending, |entry| account.waits(entry));
        nodes.each(ledger, |entry| account.sent_bytes += entry.body_bytes());
        account
    }

    /// Counts an entry that begins to wait.
    pub(crate) fn waits(&mut self, entry: &Entry) {
        let body_bytes = entry.body_bytes();
        self.pending_bytes += body_bytes;
        self.retained_messages += u32::from(entry.retained_copy);
        if is_qos0(entry) {
            self.qos0_bytes += body_bytes;
            self.qos0_messages += 1;
        }
    }

    /// Counts out an entry that waits no more.
    pub(crate) fn left(&mut self, entry: &Entry) {
        let body_bytes = entry.body_bytes();
        self.pending_bytes -= body_bytes;
        self.retained_messages -= u32::from(entry.retained_copy);
        if is_qos0(entry) {
            self.qos0_bytes -= body_bytes;
            self.qos0_messages -= 1;
        }
        debug_assert!(
            self.qos0_bytes <= self.pending_bytes,
            "those of QoS 0 are among those that wait"
        );
    }

    /// Bytes of all bodies that count against the limit on bytes.
    pub(crate) const fn held_bytes(&self) -> u64 {
        self.pending_bytes - self.qos0_bytes + self.sent_bytes
    }

    /// The cost of the messages of QoS 0, their entries included.
    fn qos0_cost_bytes(&self) -> u64 {
        self.qos0_bytes + u64::from(self.qos0_messages) * ENTRY_BYTES
    }
}

impl<P> Queues<P> {
    /// Whether a session may take another message of QoS 1 or 2; makes room where that is the rule.
    /// `was_on_way` says whether another shard has published it, or its publisher cannot wait.
    pub(crate) fn admits_acknowledged(
        &mut self,
        now_ms: u64,
        slot: u32,
        message: &Message,
        was_on_way: bool,
    ) -> bool {
        let session = &self.sessions[slot];
        let is_pressed = self.pressure >= Pressure::Drop && !self.is_light(slot, message);
        let keeps_up = session.is_connected() && session.pending.is_empty() && !is_pressed;
        if !keeps_up {
            let is_full =
                self.is_full(session, message) || (self.is_over_memory && session.is_active());
            if is_full
                && !(was_on_way && self.takes_on_way(QueueKey::Session(slot)))
                && !self.makes_room(slot, message)
            {
                self.lose(slot, Some(message), LossReason::Full);
                return false;
            }
        }
        let session = &self.sessions[slot];
        // One that keeps up takes this one; the next one waits where the ledger has no room.
        let has_half = (!keeps_up && session.pending.len() >= self.limits.queued_messages / 2)
            || session.account.held_bytes() >= self.limits.queued_bytes as u64 / 2;
        if has_half {
            self.crowd(now_ms, QueueKey::Session(slot));
        }
        true
    }

    /// Whether a queue has no place for a message of QoS 1 or 2.
    fn is_full(&self, session: &BrokerSession<P>, message: &Message) -> bool {
        let account = &session.account;
        let others = (account.qos0_messages + account.retained_messages) as usize;
        let held_bytes = account.held_bytes();
        let has_place = session.pending.is_empty()
            || session.pending.len() - others < self.limits.queued_messages;
        !has_place
            || (held_bytes > 0
                && held_bytes + message.body_bytes() as u64 > self.limits.queued_bytes as u64)
    }

    /// Makes room in a full queue for a message of QoS 1 or 2, if that is the rule.
    fn makes_room(&mut self, slot: u32, message: &Message) -> bool {
        let session = &self.sessions[slot];
        let sent_bytes = session.account.sent_bytes;
        let most_bytes = self.limits.queued_bytes as u64;
        // Dropping what waits gives no room that the ledger has.
        let may_drop = self.limits.queue_full == QueueFull::DropOldest
            && (sent_bytes == 0 || sent_bytes + message.body_bytes() as u64 <= most_bytes);
        if !may_drop || (self.is_over_memory && session.is_active()) {
            return false;
        }
        while self.is_full(&self.sessions[slot], message) {
            self.drop_first(slot, LossReason::Full);
        }
        true
    }

    /// Whether a message waits here for a session that is to come from another shard. Otherwise the session reads
    /// it in the log.
    pub(crate) fn waits_for_session(
        &mut self,
        slot: u32,
        position: u64,
        message: &Message,
    ) -> bool {
        let session = &self.sessions[slot];
        let missed = session.rare.as_ref().and_then(|rare| rare.missed_from);
        let waits = missed.is_none() && self.has_room(slot, message);
        if !waits {
            let missed = missed.unwrap_or(position).min(position);
            self.sessions[slot].rare_mut().missed_from = Some(missed);
        }
        waits
    }

    /// Whether the queue of a session that reads the log has room for a message.
    fn has_room(&self, slot: u32, message: &Message) -> bool {
        let session = &self.sessions[slot];
        if self.pressure >= Pressure::MoveToLog {
            return self.is_light(slot, message);
        }
        session.pending.is_empty() || {
            let Account {
                qos0_messages,
                retained_messages,
                ..
            } = session.account;
            let others = (qos0_messages + retained_messages) as usize;
            !self.is_over_memory
                && session.pending.len() - others < self.limits.queued_messages
                && session.account.held_bytes() + message.body_bytes() as u64
                    <= self.limits.queued_bytes as u64
        }
    }

    /// Whether a session that reads the log takes a message from its publisher's hand; otherwise it falls
    /// behind and reads it there.
    pub(crate) fn keeps_up(&mut self, slot: u32, position: u64, message: &Message) -> bool {
        let has_room = self.has_room(slot, message);
        if !has_room {
            self.fall_behind(slot, position);
        }
        has_room
    }

    /// Whether a session may take another message of QoS 0. Older ones make room where that is the rule,
    /// never one of QoS 1 or 2.
    pub(crate) fn admits_qos0(&mut self, now_ms: u64, slot: u32, message: &Message) -> bool {
        let session = &self.sessions[slot];
        if session.is_connected() {
            let Some(first) = self.nodes.first(session.pending) else {
                return true; // it keeps up
            };
            if !self.is_over_memory
                && !self.lacks_room_for_qos0(session, message)
                && !self.is_late(now_ms, session, first)
            {
                return true;
            }
        }
        self.makes_room_for_qos0(now_ms, slot, message)
    }

    /// Whether a message of QoS 0 is too much for a queue beside the others.
    fn lacks_room_for_qos0(&self, session: &BrokerSession<P>, message: &Message) -> bool {
        let account = &session.account;
        let cost_bytes = message.body_bytes() as u64 + ENTRY_BYTES;
        account.qos0_messages > 0
            && account.qos0_cost_bytes() + cost_bytes > self.limits.queued_qos0_bytes as u64
    }

    /// See [`admits_qos0`](Self::admits_qos0).
    fn makes_room_for_qos0(&mut self, now_ms: u64, slot: u32, message: &Message) -> bool {
        if self.sessions[slot].is_away() {
            self.lose(slot, Some(message), LossReason::Away);
            return false;
        }
        let has_no_room = loop {
            let session = &self.sessions[slot];
            let has_no_room = self.lacks_room_for_qos0(session, message);
            let entry = self.nodes.first(session.pending);
            let Some(entry) = entry.filter(|entry| is_qos0(entry)) else {
                break has_no_room;
            };
            let reason = if self.is_late(now_ms, session, entry) {
                LossReason::Late
            } else if has_no_room && self.limits.queue_full == QueueFull::DropOldest {
                LossReason::Full
            } else {
                break has_no_room;
            };
            self.drop_first(slot, reason);
        };
        if has_no_room || (self.is_over_memory && self.sessions[slot].is_active()) {
            self.lose(slot, Some(message), LossReason::Full);
            return false;
        }
        true
    }

    /// Whether an entry of a session's queue has waited longer than a message of QoS 0 may. Consumers on demand fetch
    /// messages when they please, so for them it may wait.
    pub(crate) fn is_late(&self, now_ms: u64, session: &BrokerSession<P>, entry: &Entry) -> bool {
        let published_ms = entry.message.as_ref().map(|message| message.published_ms());
        is_qos0(entry)
            && !session.is_on_demand
            && published_ms.is_some_and(|published_ms| {
                now_ms.saturating_sub(published_ms) > self.limits.queued_qos0_age_ms
            })
    }

    /// Whether the ledger of a session has room for a message of its queue, which waits until it has.
    pub(crate) fn may_send(&self, session: &BrokerSession<P>, entry: &Entry) -> bool {
        let sent_bytes = session.account.sent_bytes;
        !entry.qos.is_acknowledged()
            || (session.ledger.len() < self.limits.unacknowledged
                && (sent_bytes == 0
                    || sent_bytes + entry.body_bytes() <= self.limits.queued_bytes as u64))
    }

    /// Counts out what the ledger of a session no longer holds, and lets the session go on.
    pub(crate) fn ledger_has_room(&mut self, slot: u32, body_bytes: u64) {
        let session = &mut self.sessions[slot];
        debug_assert!(
            session.account.sent_bytes >= body_bytes,
            "what leaves a ledger was counted"
        );
        session.account.sent_bytes -= body_bytes;
        let was_blocked = std::mem::take(&mut session.is_blocked);
        if session.demand_mut().is_some_and(|demand| demand.is_full) {
            self.unbalanced.push(slot);
        }
        if was_blocked {
            self.list_if_ready(slot);
        }
    }
}
