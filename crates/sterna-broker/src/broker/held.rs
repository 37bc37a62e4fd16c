//! Messages that may not leave before the store has them.
//!
//! A message of QoS 2 comes once, also to a session that outlives the process. So it leaves when the store has it:
//! otherwise the process could end in between. Its publisher would send it again, and the session would get it
//! twice. Or another message would get its place in the log, and with that its packet identifier. A message that a
//! group has assigned is claimed first, by a record that names the session whose alone it is. [MQTT-4.8.2-5]
//!
//! Later messages in the queue of the session wait, too, because its order is kept. No other session waits.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Broker;
use crate::api::{DoorState, SessionKey};
use crate::message::Qos;
use crate::nodes::{Entry, NIL};
use crate::store::Keeping;

/// The sessions that wait for the store.
#[derive(Debug, Default)]
pub(super) struct Held {
    keeping: Keeping,
    /// Appends up to this token are kept, as was last looked.
    reached: u64,
    /// Messages before this position are kept, as was last looked.
    kept_to: u64,
    /// By the token that they wait for: slot and generation.
    sessions: BinaryHeap<Reverse<(u64, u32, u32)>>,
}

impl Held {
    /// How far messages have to come before they leave exactly once.
    pub(super) const fn keeping(&self) -> Keeping {
        self.keeping
    }
}

/// Whether a group has assigned an entry to a session, and might assign it to another after a restart.
fn is_unclaimed(entry: &Entry) -> bool {
    entry.group != NIL
        && entry.qos == Qos::ExactlyOnce
        && entry.position != 0
        && !(entry.is_kept || entry.is_owned || entry.is_claimed)
}

impl<P: DoorState> Broker<P> {
    /// Sets how far a message of QoS 2 has to have come in the store. It is not sent before to a session that
    /// outlives its connection.
    pub fn set_keeping(&mut self, keeping: Keeping) {
        self.held.keeping = keeping;
        self.held.reached = 0;
        self.let_go();
    }

    /// Tells, until the session's next opening, whether its consumer knows messages of the log by their places. Then
    /// those of QoS 1 leave when they are kept, too: a place must not be another message's after a crash.
    pub fn set_names_places(&mut self, session: SessionKey, names_places: bool) {
        if let Some(session) = self.queues.attended_mut(session) {
            session.names_places = names_places;
        }
    }

    /// The node of the first message of a queue that can be sent now, and its level. Where it waits for the store, the
    /// session is listed as ready again when the store has it.
    pub(super) fn first_to_leave(&mut self, now_ms: u64, slot: u32) -> Option<(u32, Qos)> {
        let (node, qos) = self.first_permitted(now_ms, slot)?;
        if !qos.is_acknowledged() && !self.has_doubts() {
            self.queues.sessions[slot].is_held = false;
            return Some((node, qos));
        }
        let is_doubted = self.is_doubted(slot, node);
        if is_doubted {
            self.queues.sessions[slot].is_held = true;
            return None;
        }
        let awaited = self.awaited(slot, node);
        let session = &mut self.queues.sessions[slot];
        let was_held = std::mem::replace(&mut session.is_held, awaited.is_some());
        let Some(token) = awaited else {
            return Some((node, qos));
        };
        if let Some(reader) = &mut session.reader {
            reader.held_until = token;
        }
        if !was_held {
            let generation = session.generation;
            self.held.sessions.push(Reverse((token, slot, generation)));
            self.queues.store.wake_at(self.held.keeping.wish(token));
        }
        None
    }

    /// The append that has to be kept before an entry of a session's queue may leave; `None` where it may.
    fn awaited(&mut self, slot: u32, node: u32) -> Option<u64> {
        if self.held.keeping == Keeping::Nothing {
            return None;
        }
        let entry = self.queues.nodes.entry(node)?;
        let waits = entry.qos == Qos::ExactlyOnce
            || (entry.qos.is_acknowledged() && self.queues.sessions[slot].names_places);
        if !waits || entry.position == 0 {
            return None;
        }
        let (position, is_unclaimed) = (entry.position, is_unclaimed(entry));
        let session = &self.queues.sessions[slot];
        // Others end with the process.
        let held_until = session.reader.as_ref()?.held_until;
        if is_unclaimed && session.is_stored {
            self.claim(slot);
            return Some(self.token()).filter(|&token| !self.is_kept(token));
        }
        if !self.is_kept(held_until) {
            return Some(held_until);
        }
        if position < self.held.kept_to {
            return None;
        }
        let reached = self.held.keeping.reached(self.queues.store.committed());
        self.held.reached = reached;
        let awaited = self.directory.appends().keeps(position, reached);
        if awaited.is_none() {
            self.held.kept_to = position + 1;
        }
        awaited
    }

    /// Whether an append has come as far as is wanted.
    fn is_kept(&mut self, token: u64) -> bool {
        if token > self.held.reached {
            self.held.reached = self.held.keeping.reached(self.queues.store.committed());
        }
        token <= self.held.reached
    }

    /// Keeps that what groups have assigned to a session at QoS 2, and waits, is its alone.
    fn claim(&mut self, slot: u32) {
        let mut node = self.queues.sessions[slot].pending.first();
        while node != NIL {
            if let Some(entry) = self.queues.nodes.entry_mut(node)
                && is_unclaimed(entry)
            {
                entry.is_claimed = true;
                let group = self.index.filter_of_group(entry.group);
                self.queues.keep_owned(slot, node, group);
            }
            node = self.queues.nodes.next(node);
        }
        self.append_changes();
    }

    /// Lets sessions go on whose next message is kept.
    pub(super) fn let_go(&mut self) {
        if self.held.sessions.is_empty() {
            return;
        }
        let reached = self.held.keeping.reached(self.queues.store.committed());
        self.held.reached = reached;
        while let Some(&Reverse((token, slot, generation))) = self.held.sessions.peek() {
            if token > reached {
                self.queues.store.wake_at(self.held.keeping.wish(token));
                return;
            }
            self.held.sessions.pop();
            // A packed one has nothing to send.
            let session = self.queues.sessions.get_mut(slot);
            if let Some(session) = session.filter(|session| session.generation == generation) {
                session.is_held = false;
                self.queues.list_if_ready(slot);
            }
        }
    }
}
