//! All sessions are judged: by rules that a reload brings, and at the start by rules that came meanwhile.
//!
//! A reload may find a million sessions that are away. They follow in parts, and whoever has asked for the reload hears of
//! it when the last of all shards is judged ([`Broker::is_judging`]). A record says by which rules they were judged. So a
//! start knows whether they are to be judged anew, and since when.

use std::sync::Arc;

use super::Broker;
use crate::api::DoorState;
use crate::records::{self, JudgedRecord, Kind};
use crate::rights::Rights;

/// Places of packed sessions that one call looks at. Others get their turn between.
const SLOTS_PER_CALL: u32 = 1_024;

/// Subscriptions after which a call judges no further session.
const SUBSCRIPTIONS_PER_CALL: usize = 4_096;

/// Time after which it is asked again whether the store has written what follows from the last part, in milliseconds.
const UNWRITTEN_MS: u64 = 5;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Judging {
    /// Where the log was when the rules came.
    pub(super) position: u64,
    /// When they came, in milliseconds since the Unix epoch; `None` where sessions are only judged as they are opened.
    pub(super) since_ms: Option<u64>,
    /// The walk over packed sessions; `None` where all are judged.
    walk: Option<Walk>,
    /// Whether a start has found other rules.
    has_found_others: bool,
}

#[derive(Clone, Copy, Default, Debug)]
struct Walk {
    /// The next slot.
    slot: u32,
    /// The store has written the last part's records when it has come so far. The next part waits for that.
    token: u64,
    due_ms: u64,
}

impl<P: DoorState> Broker<P> {
    /// Puts rules in force: from now on they are asked. Existing sessions and subscriptions are judged by
    /// [`judge`](Self::judge). All shards must be told of the same rules in the same order.
    pub fn set_rights(&mut self, rights: Arc<dyn Rights>) {
        self.rights = Some(rights);
        self.rights_version += 1;
        let end = self.queues.store.next_position();
        self.judging.position = (self.directory.judging()).came(self.rights_version, end);
        self.judging.since_ms = None;
    }

    /// Judges all sessions of this shard by the rules in force. Subscriptions that are not allowed any more lose their
    /// right ([`Event::LostRight`](crate::Event::LostRight)), and those that are allowed again get it back. A session whose
    /// user is missing loses its consumer ([`Event::Evicted`](crate::Event::Evicted)), and no subscription of it has a
    /// right. Messages that wait, or were sent, are judged when it is their turn.
    ///
    /// Sessions that are away with nothing in memory follow in calls of [`timeout`](Self::timeout), as long as
    /// [`is_judging`](Self::is_judging). One whose client returns before is judged then.
    pub fn judge(&mut self, now_ms: u64) {
        self.judging.since_ms = Some(now_ms);
        // It is in the store before anything that follows from the rules.
        self.note_judged(Some((self.judging.position, now_ms)));
        let open: Vec<u32> = (self.queues.sessions.open())
            .map(|(slot, _)| slot)
            .collect();
        for slot in open {
            self.judge_slot(now_ms, slot);
        }
        self.judging.walk = Some(Walk::default());
        self.finish(now_ms);
    }

    /// Whether sessions of this shard are still to be judged.
    #[must_use]
    pub const fn is_judging(&self) -> bool {
        self.judging.walk.is_some()
    }

    /// Judges some of the packed sessions that are still to be judged. Returns whether that was so.
    pub(super) fn judge_on(&mut self, now_ms: u64) -> bool {
        let Some(walk) = &mut self.judging.walk else {
            return false;
        };
        let (from, token) = (walk.slot, walk.token);
        if self.queues.store.committed().written < token {
            walk.due_ms = now_ms + UNWRITTEN_MS;
            return false;
        }
        let capacity = self.queues.sessions.capacity() as u32;
        let end = capacity.min(from.saturating_add(SLOTS_PER_CALL));
        let (mut slot, mut subscriptions) = (from, 0);
        while slot < end && subscriptions < SUBSCRIPTIONS_PER_CALL {
            let sessions = &self.queues.sessions;
            let is_meant = sessions.is_packed(slot)
                && sessions.look(slot, |session| session.judged_by != self.rights_version)
                    == Some(true);
            if is_meant {
                self.queues.sessions.unpack(slot);
                subscriptions += self.queues.sessions[slot].subscriptions.len();
                self.judge_slot(now_ms, slot);
                self.write_cursor_of_judged(slot);
                self.queues.pack_again();
            }
            slot += 1;
        }
        let walk = Walk {
            slot,
            ..Walk::default()
        };
        self.judging.walk = (slot < capacity).then_some(walk);
        true
    }

    /// Gathers the cursor's record of a session that was judged. Until it is written, the session takes the memory of one
    /// that is not packed.
    pub(super) fn write_cursor_of_judged(&mut self, slot: u32) {
        let session = self.queues.sessions.get(slot);
        let reader = session.and_then(|session| session.reader.as_ref());
        if reader.is_some_and(|reader| reader.is_changed) {
            self.queues.write_cursor(slot);
        }
    }

    /// The records of [`judge_on`](Self::judge_on) have gone to the store.
    pub(super) fn judged_on(&mut self) {
        let token = self.token();
        if let Some(walk) = &mut self.judging.walk {
            // Other nodes keep what a cluster has.
            walk.token = if self.peers.is_some() { 0 } else { token };
        } else if self.directory.judging().is_done(self.rights_version) {
            self.note_judged(None);
            self.append_changes();
        }
    }

    /// When [`judge_on`](Self::judge_on) is to be called.
    pub(super) fn judging_due_ms(&self) -> Option<u64> {
        self.judging.walk.map(|walk| walk.due_ms)
    }

    /// Gathers the record of the rules in force, and of where and when they came while sessions are still to be judged.
    fn note_judged(&mut self, since: Option<(u64, u64)>) {
        if self.keeps_of_node() {
            let record = JudgedRecord {
                digest: self.digest(),
                since,
            };
            let change = records::put(Kind::Judged, "", &[], record.encode());
            self.queues.changes.push(change);
        }
    }

    fn digest(&self) -> [u8; 32] {
        (self.rights.as_ref()).map_or([0; 32], |rights| rights.digest())
    }

    /// Whether restored sessions are judged, with the record of an earlier process: where the rules are others, or were new.
    /// Rules that changed while no process ran hold from the end of the log on.
    pub(super) fn judges_restored(&mut self, now_ms: u64, judged: Option<&JudgedRecord>) -> bool {
        let known = judged.filter(|judged| judged.digest == self.digest());
        let judging = &mut self.judging;
        // Retained messages of the store are dated back to now, and have not changed.
        let start = (self.queues.store.next_position(), now_ms + 1);
        let (position, since_ms) = known.and_then(|known| known.since).unwrap_or(start);
        judging.position = position.min(start.0);
        judging.since_ms = Some(since_ms.min(start.1));
        judging.has_found_others = known.is_none_or(|known| known.since.is_some());
        judging.has_found_others
    }

    /// All shards have judged what they have restored.
    pub(super) fn restored_are_judged(&mut self) {
        if self.shard == 0 && std::mem::take(&mut self.judging.has_found_others) {
            self.note_judged(None);
        }
    }
}
