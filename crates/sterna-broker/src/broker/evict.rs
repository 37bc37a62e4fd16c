//! Consumers that the broker itself disconnects, and sessions that are ended from outside.

use super::Broker;
use super::branches::RootTold;
use crate::api::{Close, ConsumerId, DoorState, Event, EvictReason};
use crate::end_cause::EndCause;
use crate::far_group::group_of_root;
use crate::mail::Letter;
use crate::name::SessionName;
use crate::session::State;

impl<P: DoorState> Broker<P> {
    /// Disconnects the consumer of a session of this shard ([`Event::Evicted`]) and, if `end`, ends
    /// the session too. Returns whether this shard has the session.
    pub fn evict(&mut self, now_ms: u64, name: &SessionName, end: bool) -> bool {
        let cause = EndCause::Evicted(EvictReason::Administrative);
        self.evict_for(now_ms, name, end, cause)
    }

    /// As [`evict`](Self::evict), for this cause.
    pub fn evict_for(
        &mut self,
        now_ms: u64,
        name: &SessionName,
        end: bool,
        cause: EndCause,
    ) -> bool {
        let Some(owner) = self.directory.owner(name) else {
            return false;
        };
        if owner.shard != self.shard {
            return false;
        }
        let slot = owner.slot;
        let Some(session) = self.queues.session(slot, owner.generation) else {
            return false;
        };
        if session.state == State::Claiming {
            self.evict_claimer(slot, end, EvictReason::Administrative);
        } else {
            self.evict_consumer_for(now_ms, slot, EvictReason::Administrative, cause);
            if end {
                self.end_session(now_ms, slot, true);
            } else {
                self.leave(now_ms, slot);
            }
            self.finish(now_ms);
        }
        true
    }

    /// Whether there is a session of that name, connected or away, on any shard.
    #[must_use]
    pub fn owner_exists(&self, name: &SessionName) -> bool {
        self.directory.owner(name).is_some()
    }

    /// Ends a session, if it is on this shard. False where another shard has it, or nobody, or where it is on its way
    /// here: then it ends when it arrives.
    pub fn end_session_here(&mut self, now_ms: u64, name: &SessionName) -> bool {
        let Some(owner) = self.directory.owner(name) else {
            return false;
        };
        if owner.shard != self.shard {
            return false;
        }
        let session = self.queues.session(owner.slot, owner.generation);
        let is_coming = session.is_some_and(|session| session.state == State::Claiming);
        self.evict(now_ms, name, true) && !is_coming
    }

    /// Ends a session of any shard, with a consumer ([`Event::Evicted`], on the session's shard) or
    /// without. On another shard it is ended when the mail arrives. Returns whether there is one.
    pub fn end_session_of(&mut self, now_ms: u64, name: &SessionName) -> bool {
        let Some(owner) = self.directory.owner(name) else {
            return false;
        };
        if owner.shard == self.shard {
            return self.evict(now_ms, name, true);
        }
        let name = name.clone();
        self.send(owner.shard, Letter::End { name });
        true
    }

    /// Evicts the consumer of a session that is here. [MQTT-3.1.4-3]
    pub(super) fn evict_consumer(&mut self, now_ms: u64, slot: u32, reason: EvictReason) {
        self.evict_consumer_for(now_ms, slot, reason, EndCause::Evicted(reason));
    }

    fn evict_consumer_for(&mut self, now_ms: u64, slot: u32, reason: EvictReason, cause: EndCause) {
        let session = &self.queues.sessions[slot];
        if let Some(consumer) = session.consumer() {
            self.tell_evicted(slot, consumer, reason);
            self.disconnect(now_ms, slot, Close::of(cause));
        }
    }

    pub(super) fn tell_evicted(&mut self, slot: u32, consumer: ConsumerId, reason: EvictReason) {
        let session = &self.queues.sessions[slot];
        if let Some(group) = group_of_root(&session.name) {
            let (group, session) = (group.into(), session.key(slot));
            return self.far.told.push_back(RootTold::Lost { group, session });
        }
        let by = self.opener.filter(|_| reason == EvictReason::TakenOver);
        let evicted = Event::Evicted {
            consumer,
            reason,
            by,
        };
        self.events.push_back(evicted);
    }
}
