//! Readers that hold most of the log of a store that has little room left.
//!
//! Messages that are published while a session has its consumer count against no limit, so one that acknowledges nothing would
//! hold the log until the store is full, and all publishers were refused. Before that, the session that holds most loses
//! its consumer, once. From there on it is *limited*: what is published counts, also when its consumer is back, until it
//! has read all. The limits of sessions that are limited or away are applied here without waiting for their consumers, so
//! that the log need not keep what they will not get.

use rustc_hash::FxHashMap;

use super::Broker;
use crate::api::{DoorState, EvictReason};
use crate::away::Amount;
use crate::group::GROUP_OWNER;
use crate::limits::QueueFull;
use crate::losses::LossReason;
use crate::message::Message;
use crate::session::BrokerSession;
use crate::store::{ReadAnswer, ReadRequest};

/// The reader number for these messages: no session has this slot.
const FOR_TRIMMING: u64 = GROUP_OWNER as u64 - 2;
/// Sessions whose limits are applied at a time. The others follow when these need less.
const MOST_TRIMMED: usize = 256;
/// Messages that are read at once.
const READ_MESSAGES: usize = 1_024;
/// Bytes of their bodies.
const READ_BYTES: usize = 1 << 20;

/// Sessions that hold most of the log.
#[derive(Debug, Default)]
pub(super) struct Pinning {
    /// The one with a consumer that needs the lowest position, with that.
    first: Option<(u64, u32)>,
    /// Those that are away or limited, by slot.
    others: Vec<u32>,
    trims: FxHashMap<u32, Trim>,
}

/// A session whose limits are applied.
#[derive(Debug)]
struct Trim {
    generation: u32,
    attendance: u32,
    /// Where the session had come to.
    start: u64,
    /// All before is counted.
    counted: u64,
    /// Where the oldest are dropped: all that counts and is before is.
    first: u64,
    /// Messages that count and stay.
    unread: Amount,
    /// Where the newest are dropped: whether a message did not fit.
    is_full: bool,
    last_dropped: Option<u64>,
    is_asked: bool,
}

impl Pinning {
    /// Lists a session that is packed.
    pub(super) fn list_packed(&mut self, slot: u32) {
        if self.others.len() < MOST_TRIMMED {
            self.others.push(slot);
        }
    }

    /// Lists a session that needs the log from a position on.
    pub(super) fn list<P>(&mut self, slot: u32, session: &BrokerSession<P>, needed: u64) {
        let Some(reader) = &session.reader else {
            return;
        };
        if session.is_root() || !session.is_active() {
            return;
        }
        // One that owes nothing only has not said how far it has come, and is asked to.
        let is_behind = reader.awake_from.is_none();
        let owes = is_behind || !session.pending.is_empty() || !session.ledger.is_empty();
        if session.is_away() || reader.cursor.is_limited {
            self.list_packed(slot);
        } else if owes && self.first.is_none_or(|(lowest, _)| needed < lowest) {
            self.first = Some((needed, slot));
        }
    }
}

impl<P: DoorState> Broker<P> {
    /// Does at the end of a survey what the store's want of room asks for.
    pub(super) fn relieve_store(&mut self, now_ms: u64, pressed: u64) {
        let first = self.pinning.first.take();
        let others = std::mem::take(&mut self.pinning.others);
        if pressed <= 1 {
            self.pinning.trims.clear();
            return;
        }
        if let Some((_, slot)) = first {
            self.take_consumer_of(now_ms, slot, pressed);
        }
        for slot in others {
            if !self.end_if_missing(now_ms, slot) {
                self.trim(slot);
            }
        }
    }

    /// Takes a session's consumer away, and has all count that is published from here on.
    fn take_consumer_of(&mut self, now_ms: u64, slot: u32, pressed: u64) {
        // It may have gone since it was listed.
        let Some(session) = self.queues.sessions.get_mut(slot) else {
            return;
        };
        let is_it = session.is_connected() && session.is_active() && session.is_stored;
        let Some(reader) = session.reader.as_mut().filter(|_| is_it) else {
            return;
        };
        if reader.holds() >= pressed || reader.cursor.is_limited {
            return;
        }
        reader.cursor.is_limited = true;
        self.queues.counters.let_go += 1;
        if let Some(watcher) = &self.queues.loss_watcher {
            watcher.let_go(&session.name);
        }
        self.evict_consumer(now_ms, slot, EvictReason::FarBehind);
        self.leave(now_ms, slot);
    }

    /// A session has read all up to the end of the log: what is published to its consumer does not count any more.
    pub(super) fn end_limited(&mut self, slot: u32, end: u64) {
        if let Some(reader) = &mut self.queues.sessions[slot].reader
            && std::mem::take(&mut reader.cursor.is_limited)
        {
            reader.cursor.come_back(end);
            self.queues.write_cursor(slot);
        }
    }

    /// Applies the limits of a session, from where that has come to.
    fn trim(&mut self, slot: u32) {
        self.queues.sessions.unpack(slot);
        let end = self.queues.store.next_position();
        let limit = self.queues.away_limit();
        let Some(session) = self.queues.sessions.get(slot) else {
            return;
        };
        let reader = session.reader.as_ref().filter(|reader| {
            reader.awake_from.is_none()
                && reader.count.is_none()
                && session.is_active()
                && session.is_stored
                && !session.is_root()
        });
        let Some(reader) = reader else {
            self.pinning.trims.remove(&slot);
            return;
        };
        let start = reader.next;
        let is_known = self.pinning.trims.get(&slot).is_some_and(|trim| {
            (trim.generation, trim.attendance, trim.start)
                == (session.generation, session.attendance, start)
        });
        if !is_known {
            // Messages that it has in memory are unread, too.
            let mut unread = Amount::default();
            self.queues.nodes.each(session.pending, |entry| {
                let position = entry.own_position();
                if position != 0 && reader.cursor.counts(position) {
                    unread.add(entry.body_bytes() as usize);
                }
            });
            let trim = Trim {
                generation: session.generation,
                attendance: session.attendance,
                start,
                counted: start,
                first: start,
                unread,
                is_full: false,
                last_dropped: None,
                is_asked: false,
            };
            if self.pinning.trims.len() >= MOST_TRIMMED && !self.pinning.trims.contains_key(&slot) {
                // The next survey lists others first.
                self.pinning.trims.clear();
            }
            self.pinning.trims.insert(slot, trim);
        }
        let Some(trim) = self
            .pinning
            .trims
            .get_mut(&slot)
            .filter(|trim| !trim.is_asked)
        else {
            return;
        };
        let drops_oldest = self.queues.limits.queue_full == QueueFull::DropOldest;
        let (from, to) = if let Some(until) = reader.cursor.away.until(trim.counted, end) {
            (trim.counted, until)
        } else if drops_oldest && !trim.unread.fits(limit) && trim.first < trim.counted {
            (trim.first, trim.counted)
        } else {
            self.queues.mark_changed(slot);
            return;
        };
        let filters = session.log_filters();
        if filters.is_empty() {
            return;
        }
        trim.is_asked = true;
        self.queues.store.read(ReadRequest {
            reader: FOR_TRIMMING << 32 | u64::from(slot),
            from,
            to,
            filters,
            most_messages: READ_MESSAGES,
            most_bytes: READ_BYTES,
        });
        self.reads += 1;
    }

    /// Takes the store's answer; false where it is for somebody else.
    pub(super) fn trim_answered(&mut self, now_ms: u64, answer: &mut ReadAnswer) -> bool {
        let (reader, slot) = (answer.reader >> 32, answer.reader as u32);
        if reader != FOR_TRIMMING {
            return false;
        }
        let Some(mut trim) = self.pinning.trims.remove(&slot) else {
            return true;
        };
        let session = self.queues.session(slot, trim.generation);
        let start = trim.start;
        let is_same = session.is_some_and(|session| {
            let reader = session.reader.as_ref().filter(|reader| {
                reader.awake_from.is_none() && reader.count.is_none() && reader.next == start
            });
            session.attendance == trim.attendance && reader.is_some()
        });
        if !std::mem::take(&mut trim.is_asked) || !is_same {
            return true; // it is looked at anew in the next survey
        }
        let answer = std::mem::take(answer);
        let before = (trim.counted, trim.first);
        self.trim_by(now_ms, slot, &mut trim, answer);
        let has_moved = before != (trim.counted, trim.first);
        self.pinning.trims.insert(slot, trim);
        if has_moved {
            self.trim(slot);
        }
        true
    }

    fn trim_by(&mut self, now_ms: u64, slot: u32, trim: &mut Trim, mut answer: ReadAnswer) {
        let limit = self.queues.away_limit();
        let drops_oldest = self.queues.limits.queue_full == QueueFull::DropOldest;
        self.take_in(&mut answer.messages);
        let first_counted = trim.counted;
        // Some that are behind where it reads on may be in flight.
        let held = self.queues.held(slot);
        for (position, message) in answer.messages {
            let reader = self.queues.sessions[slot].reader.as_ref();
            let counts = reader.is_some_and(|reader| {
                reader.cursor.counts(position) && reader.cursor.wants(position).is_some()
            });
            if !counts
                || held.binary_search(&position).is_ok()
                || message.is_expired(now_ms)
                || self.targets_of(slot, position, &message).is_empty()
            {
                continue;
            }
            let body_bytes = message.body_bytes();
            if position >= first_counted {
                let mut with_it = trim.unread;
                with_it.add(body_bytes);
                trim.is_full |= !drops_oldest && !with_it.fits(limit);
                if trim.is_full {
                    self.drop_of_log(slot, trim, position, &message);
                } else {
                    trim.unread = with_it;
                }
            } else if trim.unread.fits(limit) {
                trim.first = position;
                return;
            } else {
                trim.unread.remove(body_bytes);
                self.drop_of_log(slot, trim, position, &message);
            }
        }
        if answer.next > first_counted {
            trim.counted = answer.next;
        } else {
            trim.first = answer.next;
        }
    }

    /// Drops a message that a session has not read.
    fn drop_of_log(&mut self, slot: u32, trim: &mut Trim, position: u64, message: &Message) {
        let after = trim.last_dropped.replace(position);
        if let Some(reader) = &mut self.queues.sessions[slot].reader {
            if let Some(allowance) = reader.allowance_at(position) {
                allowance.pass(message.body_bytes());
            }
            reader.cursor.drop_position(position, after);
            // Also where the rest is not looked at any more.
            self.queues.mark_changed(slot);
        }
        self.queues.lose(slot, Some(message), LossReason::Full);
    }
}
