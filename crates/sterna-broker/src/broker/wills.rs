//! Wills: when they are kept, when they are due, and when they go.
//!
//! A will is kept with its CONNECT, so it outlives the broker. A connection that was open when the broker ended counts as
//! lost from the next start on. Its will is *orphaned*: it is due after its delay, or after
//! [`Limits::will_grace_ms`](crate::Limits::will_grace_ms) where that is longer, also where its session has ended by
//! then. A client that returns before takes it away.

use std::collections::VecDeque;

use super::Broker;
use super::rights::GIVEN_MS;
use crate::api::{DoorState, PublishRefusal, Routed, SessionKey, Will, WillFate};
use crate::directory::{Admission, Claimed, Owner, Principal, RetainedBy};
use crate::losses::LossReason;
use crate::message::Origin;
use crate::name::SessionName;
use crate::owned::{Ownership, encode_will};
use crate::records::{self, Kind};
use crate::session::{BrokerSession, NEVER_MS, State};
use crate::will::{SessionWill, Wait, WillRecord};

/// Time after which a will is tried again that a full store has refused, in milliseconds.
const REFUSED_PAUSE_MS: u64 = 1_000;

/// Wills that wait for a turn in which their copies can be made, so that the ends of many connections stop nobody.
#[derive(Debug, Default)]
pub(super) struct Postponed {
    wills: VecDeque<PostponedWill>,
    /// When to go on where the store took no messages, in milliseconds.
    not_before_ms: u64,
}

/// The key of a postponed will's record: the name of its session, and what tells it from the will of the next connection.
pub(super) type WillKey = (Box<str>, Box<[u8]>);

/// A will whose session may be gone, or another's.
#[derive(Debug)]
struct PostponedWill {
    will: Box<SessionWill>,
    /// Its holder, which has entered once more.
    principal: Principal,
    /// The key of its record, where it is kept.
    record: Option<WillKey>,
}

impl Postponed {
    pub(super) fn is_empty(&self) -> bool {
        self.wills.is_empty()
    }

    /// When to go on; `None` where nothing waits.
    pub(super) fn due_ms(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.not_before_ms)
    }
}

/// The will of a connection that begins, from a client with this origin.
pub(super) fn new_will(will: Will, origin: Origin) -> SessionWill {
    SessionWill {
        message: will.message.with_origin(origin),
        delay_s: will.delay_s,
        expiry_s: will.expiry_s,
        given_until_ms: will.is_given.then_some(NEVER_MS),
        due_ms: NEVER_MS,
        is_stored: false,
        is_unproved: will.is_unproved,
        is_orphaned: false,
    }
}

impl<P: DoorState> Broker<P> {
    /// Keeps the will of a client that can be no replay any more ([`Will::is_unproved`]).
    pub fn keep_will(&mut self, now_ms: u64, session: SessionKey) {
        let Some(known) = self.queues.attended_mut(session) else {
            return;
        };
        if let Some(will) = &mut known.will {
            will.is_unproved = false;
        }
        // One that is on its way here is kept when it is here.
        if known.state == State::Active {
            self.store_will(session.slot, Wait::Connection);
            self.finish(now_ms);
        }
    }

    /// From now on the kept wills of connections that end stay in the store: the process stops, and the next one
    /// publishes them, where their clients do not return before.
    pub const fn leave_wills(&mut self) {
        self.leaves_wills = true;
    }

    /// Gathers the record of a session's will, if it has one. In a cluster other nodes know the wills of connections
    /// that are open, and there is none.
    pub(super) fn store_will(&mut self, slot: u32, wait: Wait) {
        let is_open = wait == Wait::Connection;
        let keeps = if is_open {
            self.keeps_of_node()
        } else {
            !self.lacks_room() && self.queues.sessions[slot].is_stored
        };
        let session = &mut self.queues.sessions[slot];
        let Some(will) = &mut session.will else {
            return;
        };
        if will.is_unproved || !(keeps || will.is_stored) || (is_open && will.is_stored) {
            return;
        }
        will.is_stored = true;
        let value = will.record(wait);
        let change = records::put(Kind::Will, session.name.text(), &[], value);
        self.queues.changes.push(change);
    }

    /// The connection of a session has ended: its will is due, waits, or is dropped.
    pub(super) fn connection_ended(&mut self, now_ms: u64, slot: u32, fate: WillFate) {
        let outlives = self.queues.sessions[slot].expiry_s > 0;
        let awaits_user = !outlives && self.awaits_user(slot);
        let Some(will) = &mut self.queues.sessions[slot].will else {
            return;
        };
        match fate {
            // [MQTT-3.14.4-3] [MQTT-3.1.2-10]
            WillFate::Discard => {
                self.take_will(slot);
                self.tell_will(slot);
            }
            WillFate::Publish if self.leaves_wills && will.is_stored => self.leave_will(slot),
            WillFate::Publish if awaits_user => self.have_await_user(now_ms, slot),
            WillFate::Publish if will.delay_s > 0 => {
                will.due_ms = now_ms + will.delay_ms();
                will.given_until_ms = will.given_until_ms.map(|_| now_ms + GIVEN_MS);
                let wait = Wait::Lost(will.due_ms);
                // Otherwise it is published at once, with the end of the session.
                if outlives {
                    self.store_will(slot, wait);
                }
            }
            WillFate::Publish => self.will_is_due(now_ms, slot),
        }
    }

    /// Whether the will of a session that ends with its connection is to wait for its user, who is missing.
    fn awaits_user(&self, slot: u32) -> bool {
        self.queues.sessions[slot].will.is_some()
            && self.queues.limits.will_grace_ms > 0
            && !self.is_in_cluster()
            && !self.is_admitted(slot)
    }

    /// Has a session's will wait for its user, who is missing, and for its client, as after the end of the broker: rules may
    /// be wrong for a moment.
    fn have_await_user(&mut self, now_ms: u64, slot: u32) {
        let due_ms = now_ms + self.queues.limits.will_grace_ms;
        if let Some(will) = &mut self.queues.sessions[slot].will {
            will.due_ms = due_ms;
            will.given_until_ms = will.given_until_ms.map(|_| now_ms + GIVEN_MS);
            will.is_orphaned = true;
            self.store_will(slot, Wait::Orphaned(due_ms));
        }
    }

    /// Forgets a session's will, and leaves its record to the next start.
    fn leave_will(&mut self, slot: u32) {
        if let Some(will) = self.queues.sessions[slot].will.take() {
            self.directory.remove_will(will.message.body_bytes());
            self.queues.sessions.reweigh(slot);
        }
    }

    /// Takes a session's will out without publishing it.
    pub(super) fn take_will(&mut self, slot: u32) -> Option<Box<SessionWill>> {
        let session = &mut self.queues.sessions[slot];
        let will = session.will.take()?;
        if will.is_stored {
            let change = records::remove(Kind::Will, session.name.text(), &[]);
            self.queues.changes.push(change);
        }
        self.directory.remove_will(will.message.body_bytes());
        self.queues.sessions.reweigh(slot);
        Some(will)
    }

    /// Takes a session's will out where its connection ended with the broker: its client has returned.
    /// [MQTT-3.1.3-9]
    pub(super) fn take_orphaned_will(&mut self, slot: u32) {
        let will = self.queues.sessions[slot].will.as_ref();
        if will.is_some_and(|will| will.is_orphaned) {
            self.take_will(slot);
        }
    }

    /// Publishes a session's will, if it has one. [MQTT-3.1.2-14] [MQTT-3.1.2-15]
    ///
    /// Not where its owner may not publish to its topic any more.
    pub(super) fn publish_will(&mut self, now_ms: u64, slot: u32) {
        let is_allowed = self.may_publish_will(now_ms, slot);
        if let Some(will) = self.take_will(slot) {
            if !is_allowed {
                return (self.queues).lose(slot, Some(&will.message), LossReason::Forbidden);
            }
            if self.is_in_cluster() {
                let name = self.queues.sessions[slot].name.clone();
                let body_bytes = will.message.body_bytes();
                let will = encode_will(&will);
                self.count_due_will(&will, body_bytes);
                return self.note(Ownership::PublishWill { name, will });
            }
            if self.must_postpone(&will) {
                return self.postpone_will(now_ms, slot, will);
            }
            let principal = self.queues.sessions[slot].weight.principal;
            self.route_will(now_ms, principal, &will);
        }
    }

    /// Whether a will has to wait for another turn.
    fn must_postpone(&mut self, will: &SessionWill) -> bool {
        self.has_copied() && !self.is_light(will.message.topic())
    }

    /// Has a will wait that was taken out of a session. It keeps its record, under another key.
    fn postpone_will(&mut self, now_ms: u64, slot: u32, mut will: Box<SessionWill>) {
        self.add_will_again(slot, will.message.body_bytes());
        will.due_ms = now_ms;
        let record: Option<WillKey> = will.is_stored.then(|| {
            let mut rest = now_ms.to_be_bytes().to_vec();
            rest.extend(self.directory.next_opening().to_be_bytes());
            let name = self.queues.sessions[slot].name.text();
            (name.into(), rest.into())
        });
        if let Some((name, rest)) = &record {
            let value = will.record(Wait::Lost(now_ms));
            (self.queues.changes).push(records::put(Kind::Will, name, rest, value));
        }
        let principal = self.queues.sessions[slot].weight.principal;
        self.directory.principals().enter_again(principal);
        (self.postponed_wills.wills).push_back(PostponedWill {
            will,
            principal,
            record,
        });
    }

    /// Publishes wills that have waited for this turn: one, and more while they make no more than half of its copies.
    pub(super) fn publish_postponed_wills(&mut self, now_ms: u64) {
        if self.postponed_wills.not_before_ms > now_ms {
            return;
        }
        while let Some(postponed) = self.postponed_wills.wills.pop_front() {
            let PostponedWill {
                will,
                principal,
                record,
            } = &postponed;
            let routed = self.route_will(now_ms, *principal, will);
            if routed.refused == Some(PublishRefusal::StoreFull) {
                self.postponed_wills.wills.push_front(postponed);
                self.postponed_wills.not_before_ms = now_ms + REFUSED_PAUSE_MS;
                break;
            }
            self.directory.remove_will(will.message.body_bytes());
            self.directory.principals().leave(*principal);
            if let Some((name, rest)) = record {
                (self.queues.changes).push(records::remove(Kind::Will, name, rest));
            }
            if self.copies_of_turn() >= self.queues.limits.copies_per_turn / 2 {
                break;
            }
        }
    }

    /// Restores a will that was postponed when the broker ended.
    pub(super) fn restore_postponed_will(&mut self, key: WillKey, record: WillRecord) {
        let body_bytes = record.message.body_bytes();
        (self.directory).add_will(body_bytes, Admission::Restored, Principal::OTHERS);
        let will = Box::new(SessionWill {
            message: record.message,
            delay_s: record.delay_s,
            expiry_s: record.expiry_s,
            given_until_ms: None,
            due_ms: 0,
            is_stored: true,
            is_unproved: false,
            is_orphaned: false,
        });
        (self.postponed_wills.wills).push_back(PostponedWill {
            will,
            principal: Principal::OTHERS,
            record: Some(key),
        });
    }

    fn route_will(&mut self, now_ms: u64, principal: Principal, will: &SessionWill) -> Routed {
        let expires_at_ms = will
            .expiry_s
            .map(|expiry_s| now_ms + u64::from(expiry_s) * 1000);
        let message = will.message.republished(now_ms, expires_at_ms);
        let by = RetainedBy::Here(principal);
        let routed = self.route_alone(now_ms, message, true, by);
        self.queues.counters.wills_published += u64::from(routed.refused.is_none());
        routed
    }

    /// As [`publish_will`](Self::publish_will), of a session that may wait. While the store takes no messages, the will
    /// waits as an orphaned one does.
    pub(super) fn publish_due_will(&mut self, now_ms: u64, slot: u32) {
        if self.is_in_cluster() || !self.may_publish_will(now_ms, slot) {
            return self.publish_will(now_ms, slot);
        }
        let Some(mut will) = self.take_will(slot) else {
            return;
        };
        if self.must_postpone(&will) {
            return self.postpone_will(now_ms, slot, will);
        }
        let principal = self.queues.sessions[slot].weight.principal;
        let routed = self.route_will(now_ms, principal, &will);
        let body_bytes = will.message.body_bytes();
        if routed.refused == Some(PublishRefusal::StoreFull)
            && self.add_will_again(slot, body_bytes)
        {
            will.due_ms = now_ms + REFUSED_PAUSE_MS;
            will.is_orphaned = true;
            self.queues.sessions[slot].will = Some(will);
            self.queues.sessions.reweigh(slot);
            // It was kept before, or its session is: the record replaces one.
            self.store_will(slot, Wait::Orphaned(now_ms + REFUSED_PAUSE_MS));
        }
    }

    /// Lets a session go whose will waits for its client alone, but for the will. False where there is no such will.
    pub(super) fn outlives_as_will(&mut self, now_ms: u64, slot: u32) -> bool {
        let will = self.queues.sessions[slot].will.as_ref();
        let Some(due_ms) = will
            .filter(|will| will.is_orphaned && will.due_ms > now_ms)
            .map(|will| will.due_ms)
        else {
            return false;
        };
        self.drop_state(slot);
        let session = &mut self.queues.sessions[slot];
        session.expiry_s = 0;
        session.expires_at_ms = due_ms;
        session.set_sweep(NEVER_MS);
        self.queues.set_session_timer(slot);
        true
    }

    /// Sees to the will of a session whose time is over. Returns whether the session ends later: its will waits on, or
    /// has just been published. In the latter case the letters with the will leave before another shard may have a client
    /// of that name.
    pub(super) fn will_goes_first(&mut self, now_ms: u64, slot: u32) -> bool {
        let session = &self.queues.sessions[slot];
        if session.will.is_none() {
            return false;
        }
        let is_session = session.expiry_s > 0;
        if !self.outlives_as_will(now_ms, slot) {
            self.publish_due_will(now_ms, slot);
            if !self.outlives_as_will(now_ms, slot) {
                self.queues.sessions[slot].expires_at_ms = now_ms + 1;
                return true;
            }
        }
        self.queues.counters.sessions_expired += u64::from(is_session);
        true
    }

    /// Counts a will that was counted before.
    fn add_will_again(&self, slot: u32, body_bytes: usize) -> bool {
        let principal = self.queues.sessions[slot].weight.principal;
        (self.directory).add_will(body_bytes, Admission::Restored, principal)
    }

    /// Gives a restored session that is away its will.
    pub(super) fn restore_will(&mut self, now_ms: u64, slot: u32, record: WillRecord) {
        let body_bytes = record.message.body_bytes();
        if self.queues.sessions[slot].will.is_some() || !self.add_will_again(slot, body_bytes) {
            return;
        }
        let session = &self.queues.sessions[slot];
        let delay_ms = u64::from(record.delay_s) * 1_000;
        let latest_ms = now_ms + delay_ms;
        let wait = match record.wait {
            Wait::Connection => Wait::Connection,
            Wait::Lost(due_ms) => Wait::Lost(self.queues.dated_anew(due_ms, delay_ms)),
            Wait::Orphaned(due_ms) => Wait::Orphaned(self.queues.dated_anew(due_ms, delay_ms)),
        };
        let grace_ms = now_ms + self.queues.limits.will_grace_ms;
        let due_ms = match wait {
            // The session's end may come before the end of the delay, and the client has its time in any case.
            Wait::Connection => latest_ms.min(session.expires_at_ms).max(grace_ms),
            // Not later than that after the start, also if the clock was set back.
            Wait::Lost(due_ms) => due_ms.min(latest_ms),
            Wait::Orphaned(due_ms) => due_ms.min(latest_ms).max(grace_ms),
        };
        let began_ms = match wait {
            Wait::Connection => now_ms,
            Wait::Lost(due_ms) | Wait::Orphaned(due_ms) => due_ms.saturating_sub(delay_ms),
        };
        let will = SessionWill {
            message: record.message,
            delay_s: record.delay_s,
            expiry_s: record.expiry_s,
            given_until_ms: record.is_given.then(|| began_ms.saturating_add(GIVEN_MS)),
            due_ms,
            is_stored: true,
            is_unproved: false,
            is_orphaned: !matches!(wait, Wait::Lost(_)),
        };
        self.queues.sessions[slot].will = Some(Box::new(will));
        self.queues.sessions.reweigh(slot);
        if wait == Wait::Connection && delay_ms > self.queues.limits.will_grace_ms {
            // A shorter one waits anew after each start.
            self.store_will(slot, Wait::Orphaned(due_ms));
        }
    }

    /// Restores the will of a client whose session ended with the broker. It has a session's place until it is
    /// published, or its client returns.
    pub(super) fn restore_lone_will(
        &mut self,
        now_ms: u64,
        name: &SessionName,
        record: WillRecord,
    ) {
        let slot = self.queues.sessions.vacant_slot();
        let generation = self.directory.next_opening();
        let shard = self.shard;
        let claimed = self.directory.claim(
            (name, Principal::OTHERS),
            shard,
            (Admission::Restored, None),
            || Owner {
                shard,
                slot,
                generation,
            },
        );
        // There twice, which no store has.
        let Claimed::New { name, .. } = claimed else {
            return;
        };
        let mut session = BrokerSession::new(name, generation, State::Active);
        session.expires_at_ms = now_ms;
        let principals = self.directory.principals();
        session.weight.principal = principals.enter(session.name.user(), None);
        self.queues.sessions.insert(session);
        self.restore_will(now_ms, slot, record);
        let session = &mut self.queues.sessions[slot];
        session.expires_at_ms = (session.will.as_ref()).map_or(now_ms, |will| will.due_ms);
        self.queues.set_session_timer(slot);
    }
}
