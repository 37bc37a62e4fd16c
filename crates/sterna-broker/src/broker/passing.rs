//! Cursors that move past what their readers do not want.
//!
//! A cursor is written when something is settled. So a reader that gets nothing would hold the log from where its
//! cursor is. Once the log has grown long, the survey lists such readers, and their cursors are written anew. One
//! that is awake has had all that it wants. For a session that is away the store looks in its indexes for the
//! first message that its filters match.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::Broker;
use crate::api::DoorState;
use crate::group::GROUP_OWNER;
use crate::losses::LossReason;
use crate::session::BrokerSession;
use crate::store::{ReadAnswer, ReadRequest};

/// The reader number for these messages: no session has this slot.
const FOR_PASSING: u64 = GROUP_OWNER as u64 - 1;
/// Sessions that are listed in one survey.
const MOST_LISTED: usize = 1_024;
/// The first message is enough, unless it has expired.
const READ_MESSAGES: usize = 16;
/// Bytes of their bodies.
const READ_BYTES: usize = 64 << 10;

/// Readers that hold the log and get nothing.
#[derive(Debug, Default)]
pub(super) struct Passing {
    /// Those that are away, by slot.
    away: Vec<u32>,
    /// Those that are awake, by slot.
    awake: Vec<u32>,
    /// Where the listing goes on: so that those whose next message holds the log leave the others their turn.
    at: u32,
    /// Listed in this survey.
    listed: usize,
    /// Whether a cursor has moved since the last survey.
    has_moved: bool,
    /// Sessions for which the store was asked, by slot.
    asked: FxHashMap<u32, Asked>,
}

/// A session for which the store looks for a message.
#[derive(Clone, Copy, Debug)]
struct Asked {
    generation: u32,
    attendance: u32,
    /// Where it looks from.
    from: u64,
    to: u64,
}

impl Passing {
    /// Lists a session that is packed.
    pub(super) fn list_packed(&mut self, slot: u32) {
        if self.may_list(slot) && !self.asked.contains_key(&slot) {
            self.away.push(slot);
            self.listed += 1;
        }
    }

    /// Lists a session if it has nothing in memory.
    pub(super) fn list<P>(&mut self, slot: u32, session: &BrokerSession<P>) {
        if !(session.pending.is_empty() && session.ledger.is_empty()) {
            return;
        }
        let is_awake = (session.reader.as_ref()).is_some_and(|reader| reader.awake_from.is_some());
        if !is_awake && session.is_away() {
            self.list_packed(slot);
        } else if is_awake && self.may_list(slot) {
            self.awake.push(slot);
            self.listed += 1;
        }
    }

    fn may_list(&mut self, slot: u32) -> bool {
        if slot < self.at {
            return false;
        }
        if self.listed == MOST_LISTED {
            self.at = slot;
            self.listed += 1;
        }
        self.listed < MOST_LISTED
    }

    /// A survey has ended. Returns whether the next is to begin soon: more could move, and some have.
    pub(super) fn end_survey(&mut self) -> bool {
        let has_more = std::mem::take(&mut self.listed) > MOST_LISTED;
        if !has_more {
            self.at = 0;
        }
        std::mem::take(&mut self.has_moved) && has_more
    }
}

impl<P: DoorState> Broker<P> {
    /// Lists groups that hold the log before a position and have nothing.
    pub(super) fn list_idle_groups(&mut self, before: u64) {
        let queues = &mut self.queues;
        for (id, group) in &mut queues.groups {
            let is_empty = group.tail.is_empty();
            if let Some(log) = group.log.as_mut().filter(|_| is_empty)
                && log.needed() < before
                && log.touch()
            {
                queues.changed_groups.push(*id);
            }
        }
    }

    /// Moves the cursors of those that are listed.
    pub(super) fn pass(&mut self, now_ms: u64) {
        for slot in std::mem::take(&mut self.passing.awake) {
            if self.queues.sessions.is_open(slot) {
                self.queues.mark_changed(slot);
            }
        }
        for slot in std::mem::take(&mut self.passing.away) {
            self.queues.sessions.unpack(slot);
            self.seek(now_ms, slot);
        }
    }

    /// Looks for the next message that a session wants which is away.
    fn seek(&mut self, now_ms: u64, slot: u32) {
        let to = self.queues.store.next_position();
        let Some(session) = (self.queues.sessions.get(slot)).filter(|session| rests(session))
        else {
            return;
        };
        let Some(reader) = &session.reader else {
            return;
        };
        let asked = Asked {
            generation: session.generation,
            attendance: session.attendance,
            from: reader.next,
            to,
        };
        let filters = session.log_filters();
        if filters.is_empty() || asked.from >= to {
            return self.passed(
                now_ms,
                slot,
                asked,
                ReadAnswer {
                    next: to,
                    ..ReadAnswer::default()
                },
            );
        }
        self.passing.asked.insert(slot, asked);
        self.queues.store.read(ReadRequest {
            reader: FOR_PASSING << 32 | u64::from(slot),
            from: asked.from,
            to,
            filters,
            most_messages: READ_MESSAGES,
            most_bytes: READ_BYTES,
        });
        self.reads += 1;
    }

    /// Takes the store's answer; false where it is for somebody else.
    pub(super) fn passing_answered(&mut self, now_ms: u64, answer: &mut ReadAnswer) -> bool {
        let (reader, slot) = (answer.reader >> 32, answer.reader as u32);
        if reader != FOR_PASSING {
            return false;
        }
        if let Some(asked) = self.passing.asked.remove(&slot)
            && self.queues.session(slot, asked.generation).is_some()
        {
            self.passed(now_ms, slot, asked, std::mem::take(answer));
        }
        true
    }

    /// Moves a session's cursor to the first message that it wants, or behind all that was looked at.
    fn passed(&mut self, now_ms: u64, slot: u32, asked: Asked, mut answer: ReadAnswer) {
        let session = self.queues.sessions.get(slot);
        let is_same = session.is_some_and(|session| {
            rests(session)
                && session.attendance == asked.attendance
                && (session.reader.as_ref()).is_some_and(|reader| reader.next == asked.from)
        });
        if !is_same {
            return; // its client was here meanwhile
        }
        self.take_in(&mut answer.messages);
        let mut reached = answer.next;
        for (position, message) in answer.messages {
            let reader = self.queues.sessions[slot].reader.as_ref();
            if reader.is_none_or(|reader| reader.cursor.wants(position).is_none()) {
                continue;
            }
            if !message.is_expired(now_ms) {
                reached = position;
                break;
            }
            self.queues.lose(slot, Some(&message), LossReason::Expired);
        }
        let is_all = reached < answer.next || answer.next >= asked.to;
        if let Some(reader) = &mut self.queues.sessions[slot].reader {
            if reached <= asked.from && reader.needed >= asked.from {
                return; // the next message is what it waits for
            }
            reader.next = reached.max(asked.from);
            let next = reader.next;
            (reader.cursor.unsettled).retain(|unsettled| unsettled.position >= next);
        }
        self.queues.write_cursor(slot);
        self.passing.has_moved = true;
        if !is_all && reached > asked.from {
            self.seek(now_ms, slot);
        }
    }
}

/// Whether a session is away, has nothing in memory, and reads the log when its client comes back.
fn rests<P>(session: &BrokerSession<P>) -> bool {
    session.is_away()
        && session.is_active()
        && session.is_stored
        && session.pending.is_empty()
        && session.ledger.is_empty()
        && (session.reader.as_ref())
            .is_some_and(|reader| reader.awake_from.is_none() && !reader.is_asked)
}

impl<P> BrokerSession<P> {
    /// The filters by which the log has messages for the session, those that have ended included.
    pub(super) fn log_filters(&self) -> Arc<[Box<str>]> {
        let own = self
            .subscriptions
            .iter()
            .filter(|(_, known)| known.group == crate::nodes::NIL)
            .filter(|(_, known)| known.flags.qos().is_acknowledged() && !known.is_resting())
            .map(|(filter, _)| filter);
        let past = self.reader.iter().flat_map(|reader| &reader.past);
        let past = past.filter(|past| past.subscription.flags.qos().is_acknowledged());
        own.chain(past.map(|past| &past.filter))
            .map(|filter| Box::from(&**filter))
            .collect()
    }
}
