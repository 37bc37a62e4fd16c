//! Makes room when the process is short of memory: see [`Pressure`].

use super::Broker;
use crate::api::DoorState;
use crate::limits::QueueFull;
use crate::losses::LossReason;
use crate::message::Qos;
use crate::nodes::{Entry, NIL, Phase};
use crate::pressure::{PRESSED_BYTES, PRESSED_MESSAGES, Pressure};

/// Sessions that are looked at in one call.
const SESSIONS_PER_CALL: usize = 256;
/// Entries that are dropped or moved in one call, about.
const ENTRIES_PER_CALL: usize = 20_000;

/// Whether a message that must come once may expire: its receiver may have to be told then that it comes no more.
fn expires_once(entry: &Entry) -> bool {
    let message = entry.message.as_ref();
    entry.qos == Qos::ExactlyOnce
        && message.is_some_and(|message| message.expires_at_ms().is_some())
}

impl<P: DoorState> Broker<P> {
    /// Takes note of the directory's pressure, see
    /// [`Directory::set_pressure`](crate::Directory::set_pressure). Where it asks for room,
    /// [`relieve`](Self::relieve) is to be called until it has been at all sessions.
    pub fn feel_pressure(&mut self) {
        let pressure = self.directory.pressure();
        if pressure > self.queues.pressure && pressure >= Pressure::MoveToLog {
            self.begin_relief();
        }
        let is_over = self.queues.pressure > Pressure::None && pressure == Pressure::None;
        self.queues.pressure = pressure;
        if is_over {
            self.queues.list_hungry();
        }
        self.weigh();
    }

    /// Finds out whether only consumers that keep up get messages.
    pub(super) fn weigh(&mut self) {
        self.queues.is_over_memory = self.queues.pressure >= Pressure::Drop
            || self.directory.message_bytes() > self.queues.limits.message_bytes;
    }

    /// Makes room at some sessions, as the pressure asks. False where there is nothing more to do.
    pub fn relieve(&mut self, now_ms: u64) -> bool {
        if self.queues.pressure < Pressure::MoveToLog {
            self.relief_left = 0;
            self.relief_groups.clear();
        }
        let slots = self.queues.sessions.capacity();
        let mut entries = 0;
        while entries < ENTRIES_PER_CALL
            && let Some(id) = self.relief_groups.pop()
        {
            let waiting = (self.queues.groups.get(&id)).map_or(0, |group| group.queue.len());
            entries += 1 + waiting;
            self.queues.trim_window(id);
        }
        for _ in 0..SESSIONS_PER_CALL {
            if self.relief_left == 0 || slots == 0 || entries >= ENTRIES_PER_CALL {
                break;
            }
            self.relief_left -= 1;
            self.relief_at = (self.relief_at + 1) % slots;
            let slot = self.relief_at as u32;
            if self.queues.pressure >= Pressure::Drop && self.end_if_missing(now_ms, slot) {
                entries += 1;
                continue;
            }
            let Some(session) = self.queues.sessions.get(slot) else {
                continue;
            };
            if !session.is_active() || session.pending.is_empty() && session.ledger.is_empty() {
                continue;
            }
            entries += session.pending.len();
            if session.is_away() {
                entries += self.forget_sent(slot);
            }
            if self.queues.pressure >= Pressure::Drop {
                self.drop_qos0(slot);
            }
            self.move_to_log(slot);
            if self.queues.pressure >= Pressure::Drop
                && self.queues.limits.queue_full == QueueFull::DropOldest
            {
                self.drop_oldest(slot);
            }
        }
        self.finish(now_ms);
        self.report();
        self.relief_left > 0 || !self.relief_groups.is_empty()
    }

    /// Ends a session that is away and whose user is missing: it may be of no use again, and room is short.
    pub(super) fn end_if_missing(&mut self, now_ms: u64, slot: u32) -> bool {
        let ends = self.queues.sessions.look(slot, |session| {
            session.is_away() && !session.is_root() && !self.admits(session)
        });
        if ends != Some(true) {
            return false;
        }
        self.queues.sessions.unpack(slot);
        self.queues.counters.missing_ended += 1;
        self.end_session(now_ms, slot, true);
        true
    }

    /// Begins another round over all sessions and queues: there is still too little room.
    pub fn relieve_again(&mut self) {
        if self.relief_left == 0 && self.queues.pressure >= Pressure::MoveToLog {
            self.begin_relief();
        }
    }

    /// All sessions and queues are to be looked at.
    fn begin_relief(&mut self) {
        self.relief_left = self.queues.sessions.capacity();
        self.relief_groups = self.queues.groups.keys().copied().collect();
    }

    /// Whether a session may have so many messages in memory, with so many bytes. Many may be away, each with a little.
    fn may_keep(&self, slot: u32, messages: usize, bytes: u64) -> bool {
        let is_little = messages <= PRESSED_MESSAGES && bytes <= PRESSED_BYTES;
        let gives_all =
            self.queues.pressure >= Pressure::Drop && self.queues.sessions[slot].is_away();
        messages == 0 || is_little && !gives_all
    }

    /// Lets a session read in the log what waits for it in memory and is there.
    fn move_to_log(&mut self, slot: u32) {
        let watermark = self.queues.watermark();
        let session = &self.queues.sessions[slot];
        let (messages, bytes) = (session.pending.len(), session.account.pending_bytes);
        let is_little = self.may_keep(slot, messages, bytes);
        let Some(reader) = &mut self.queues.sessions[slot].reader else {
            return;
        };
        // An answer that is under way fits what the session has now.
        if is_little || reader.is_asked {
            return;
        }
        if reader.awake_from.is_some() {
            reader.next = reader.bound(watermark);
            reader.awake_from = None;
            self.queues.counters.fallen_behind += 1;
            self.remove_routes(slot);
        }
        self.drop_logged(slot);
        self.queues.list_if_hungry(slot);
    }

    /// Lets a session that is away read in the log again what was sent to it and is not settled. Returns how many messages
    /// of that it had.
    fn forget_sent(&mut self, slot: u32) -> usize {
        let session = &self.queues.sessions[slot];
        let (sent, sent_bytes) = (session.ledger.len(), session.account.sent_bytes);
        let reads = session
            .reader
            .as_ref()
            .is_some_and(|reader| !reader.is_asked);
        if !reads || session.is_root() || self.may_keep(slot, sent, sent_bytes) {
            return 0;
        }
        let mut forgotten = Vec::new();
        let session = &mut self.queues.sessions[slot];
        let mut node = session.ledger.first();
        while node != NIL {
            let entry = self.queues.nodes.entry(node);
            if let Some(entry) = entry.filter(|entry| entry.phase == Phase::Sent)
                && entry.own_position() != 0
                && !expires_once(entry)
                && (session.protocol).forget_sent(entry.own_position(), entry.tag)
            {
                forgotten.push(node);
            }
            node = self.queues.nodes.next(node);
        }
        for node in forgotten.into_iter().rev() {
            self.queues.release(slot, node, false);
        }
        self.drop_logged(slot);
        sent
    }

    /// Drops what waits for a session at QoS 0.
    fn drop_qos0(&mut self, slot: u32) {
        let mut node = self.queues.sessions[slot].pending.first();
        while node != NIL {
            let next = self.queues.nodes.next(node);
            let is_qos0 = (self.queues.nodes.entry(node)).is_some_and(|entry| {
                !entry.qos.is_acknowledged() && !entry.retained_copy && entry.group == NIL
            });
            if is_qos0 && let Some(entry) = self.queues.remove_pending(slot, node) {
                let message = entry.message.as_deref();
                self.queues.lose(slot, message, LossReason::Full);
            }
            node = next;
        }
    }

    /// Drops the oldest that waits for a session which keeps nothing in the log.
    fn drop_oldest(&mut self, slot: u32) {
        while let Some(session) = self.queues.sessions.get(slot)
            && session.reader.is_none()
            && session.pending.len() > PRESSED_MESSAGES
        {
            self.queues.drop_first(slot, LossReason::Full);
        }
    }
}
