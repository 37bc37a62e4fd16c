//! The beginning of a turn: selectors have steps again ([`selecting`](crate::selecting)), and some consumers are let go.

use super::Broker;
use crate::api::{DoorState, EvictReason};
use crate::mail::Letter;
use crate::nodes::NIL;

impl<P: DoorState> Broker<P> {
    /// A turn of the shard's loop begins: selectors have the steps of a turn, and what waited for that goes on. Without
    /// calls of this a broker has the steps of one turn in all.
    pub fn begin_turn(&mut self, now_ms: u64) {
        let work = &mut self.queues.work;
        work.renew();
        if !work.has_postponed() {
            return;
        }
        let groups = std::mem::take(&mut work.groups);
        let browsers = std::mem::take(&mut work.browsers);
        let recalls = std::mem::take(&mut work.recalls);
        for slot in std::mem::take(&mut work.sessions) {
            if let Some(session) = self.queues.sessions.get_mut(slot) {
                session.is_held = false;
                self.queues.list_if_ready(slot);
            }
        }
        for id in groups {
            if let Some(group) = self.queues.groups.get_mut(&id) {
                group.list_choosers();
                self.queues.mark_dirty(id);
            }
        }
        for slot in browsers {
            let session = self.queues.sessions.get_mut(slot);
            let browsing = session.and_then(|session| session.browsing_mut());
            if browsing.is_some_and(|browsing| !browsing.rest.is_empty()) {
                self.look_at_browsed(now_ms, slot);
            }
        }
        self.finish(now_ms);
        for recall in recalls {
            self.member_recalled(now_ms, recall);
        }
        self.finish(now_ms);
    }

    /// Whether something waits for the next turn.
    #[must_use]
    pub fn has_postponed(&self) -> bool {
        self.queues.work.has_postponed()
    }

    /// Lets those go whose selectors took too much work.
    pub(super) fn let_dear_go(&mut self, now_ms: u64) {
        for (subscriber, attendance) in self.queues.work.take_dear() {
            let Some(place) = (subscriber != NIL)
                .then(|| self.index.place(subscriber))
                .flatten()
            else {
                continue;
            };
            let letter = Letter::TooDear {
                slot: place.slot,
                generation: place.generation,
                attendance,
            };
            if place.shard == self.shard {
                self.selector_too_dear(now_ms, place.slot, place.generation, attendance);
            } else {
                self.send(place.shard, letter);
            }
        }
    }

    /// The selector of a session's consumer took too much work.
    pub(super) fn selector_too_dear(
        &mut self,
        now_ms: u64,
        slot: u32,
        generation: u32,
        attendance: u32,
    ) {
        let session = self.queues.session(slot, generation);
        let is_it = session.is_some_and(|session| {
            session.attendance == attendance && session.is_connected() && session.is_active()
        });
        if is_it {
            self.evict_consumer(now_ms, slot, EvictReason::SelectorTooDear);
            self.leave(now_ms, slot);
        }
    }
}
