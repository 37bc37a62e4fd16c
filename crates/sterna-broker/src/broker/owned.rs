//! Sessions in a cluster: see [`owned`](crate::owned).

use std::sync::Arc;

use super::Broker;
use super::branches::RootTold;
use super::takeover::Arrival;
use crate::api::{DoorState, Event, EvictReason, SessionKey};
use crate::directory::{Admission, Principal, RetainedBy};
use crate::far_group::group_of_root;
use crate::losses::LossReason;
use crate::mail::Letter;
use crate::message::Message;
use crate::name::SessionName;
use crate::nodes::NIL;
use crate::owned::{ClaimRefusal, Owned, Ownership, decode_will, encode_will};
use crate::peers::stays;
use crate::records::split_key;
use crate::rights::Holder;
use crate::route::RouteUpdate;
use crate::session::State;
use crate::store::{Change, Record};

/// Subscriptions after which it is summed up what they have, and the longest filter that may come between.
const SUMMED: usize = 16;
const SHORT_FILTER: usize = 256;

/// Bytes of a subscription's record beside its filter and the session's name.
const SUBSCRIPTION_BYTES: usize = 32;

impl<P: DoorState> Broker<P> {
    fn owned(&mut self) -> Option<&mut Owned> {
        Some(&mut self.peers.as_mut()?.owned)
    }

    /// Changes of sessions since the last call, in order. To be called at the end of a turn.
    pub fn take_ownership(&mut self) -> Vec<Ownership> {
        self.release_due_wills();
        self.owned()
            .map(|owned| std::mem::take(&mut owned.notes))
            .unwrap_or_default()
    }

    /// A will that waits for other nodes counts as one of a connected client, so
    /// [`Limits::will_bytes`](crate::Limits::will_bytes) bounds both together.
    pub(super) fn count_due_will(&mut self, will: &Arc<[u8]>, body_bytes: usize) {
        // It was within the limit until now.
        let admission = Admission::Restored;
        (self.directory).add_will(body_bytes, admission, Principal::BROKER);
        if let Some(owned) = self.owned() {
            (owned.due_wills).push_back((Arc::downgrade(will), body_bytes));
        }
    }

    /// Whether wills are due that other nodes are still to hear of, or this shard is to publish. A process that stops before
    /// takes them along.
    pub fn has_due_wills(&mut self) -> bool {
        self.release_due_wills();
        (self.owned()).is_some_and(|owned| !owned.due_wills.is_empty())
    }

    /// Counts wills no more that nobody holds: the engine has published them, or another node does. Those behind one
    /// that waits are looked at later.
    fn release_due_wills(&mut self) {
        let Some(owned) = self.owned() else {
            return;
        };
        let mut bytes = 0;
        while let Some((will, body_bytes)) = owned.due_wills.front()
            && will.strong_count() == 0
        {
            bytes += body_bytes;
            owned.due_wills.pop_front();
        }
        self.directory.remove_will(bytes);
    }

    /// Says whether this node is sure that its sessions are its own. While it is not, sessions that outlive
    /// their connections are not opened: [`OpenError::ClusterAway`](crate::OpenError::ClusterAway).
    pub fn set_unsure(&mut self, is_unsure: bool) {
        if let Some(owned) = self.owned() {
            owned.is_unsure = is_unsure;
        }
    }

    pub(super) fn is_unsure(&self) -> bool {
        (self.peers.as_ref()).is_some_and(|peers| peers.owned.is_unsure)
    }

    /// Whether a message cannot be in a record that other nodes keep.
    pub(super) fn is_too_large_for_peers(&self, message: &Message) -> bool {
        (self.peers.as_ref()).is_some_and(|peers| !peers.gate.is_small(message.body_bytes()))
    }

    /// Whether another subscription would make what a session has more than other nodes can be brought. A quarter of
    /// that is for everything that is no subscription.
    pub(super) fn is_too_much_for_peers(&self, slot: u32, filter: &str) -> bool {
        let Some(peers) = &self.peers else {
            return false;
        };
        let session = &self.queues.sessions[slot];
        // Summing up takes its time: for short filters there is room until the next time.
        let is_due =
            session.subscriptions.len().is_multiple_of(SUMMED) || filter.len() > SHORT_FILTER;
        if !session.is_stored || !is_due {
            return false;
        }
        let each = session.name.text().len() + SUBSCRIPTION_BYTES;
        let filters = session.subscriptions.iter().map(|(filter, _)| filter.len());
        let bytes: usize = filters.chain([filter.len()]).map(|len| len + each).sum();
        bytes as u64 > peers.gate.largest_body_bytes() / 4 * 3
    }

    /// Whether this is the broker of a cluster's node.
    #[must_use]
    pub const fn is_in_cluster(&self) -> bool {
        self.peers.is_some()
    }

    pub(super) fn note(&mut self, note: Ownership) {
        if let Some(owned) = self.owned() {
            owned.notes.push(note);
        }
    }

    /// Has a new session of this shard wait for its claim. It begins anew if `is_clean`; otherwise it goes on with
    /// what another node has kept of it.
    pub(super) fn claim_in_cluster(&mut self, slot: u32, is_clean: bool) {
        let session = &mut self.queues.sessions[slot];
        session.state = State::Claiming;
        let key = session.key(slot);
        let name = session.name.clone();
        let will = session.will.as_deref().map(encode_will);
        let outlives = session.expiry_s > 0;
        let if_free = session.is_root();
        if let Some(owned) = self.owned() {
            owned.claimed.insert((slot, key.generation));
        }
        self.note(Ownership::Claim {
            session: key,
            name,
            will,
            outlives,
            is_clean,
            if_free,
        });
    }

    /// Tells which will a session has that goes on.
    pub(super) fn tell_will(&mut self, slot: u32) {
        if self.is_in_cluster() {
            let session = &self.queues.sessions[slot];
            let name = session.name.clone();
            let will = session.will.as_deref().map(encode_will);
            self.note(Ownership::SetWill { name, will });
        }
    }

    /// Tells of this shard's sessions again, for the engine's records of them are lost. It tells of sessions in up
    /// to `places` places behind the first `from`, by an [`Ownership::Renew`] each. Returns where to go on; `None`
    /// at the end.
    pub fn renew_sessions(&mut self, now_ms: u64, from: usize, places: usize) -> Option<usize> {
        let end = self.queues.sessions.capacity();
        let until = end.min(from.saturating_add(places));
        for slot in from..until {
            let slot = slot as u32;
            self.queues.sessions.unpack(slot);
            let Some(session) = self.queues.sessions.get(slot) else {
                continue;
            };
            // A session that waits for its claim is not the engine's yet.
            if !matches!(session.state, State::Claiming) {
                let name = session.name.clone();
                let will = session.will.as_deref().map(encode_will);
                self.note(Ownership::Renew { name, will });
            }
        }
        self.finish(now_ms);
        (until < end).then_some(until)
    }

    /// A claim is settled: the session begins ([`Event::Opened`]), or its consumer is told why not
    /// ([`Event::Evicted`]).
    pub fn session_claimed(
        &mut self,
        now_ms: u64,
        session: SessionKey,
        result: Result<(), ClaimRefusal>,
    ) {
        self.claim_settled(now_ms, session, result.map(|()| Vec::new()));
    }

    /// As [`session_claimed`](Self::session_claimed), for a session that goes on with the records that another node
    /// has kept of it.
    pub fn session_restored(&mut self, now_ms: u64, session: SessionKey, records: Vec<Record>) {
        self.claim_settled(now_ms, session, Ok(records));
    }

    fn claim_settled(
        &mut self,
        now_ms: u64,
        session: SessionKey,
        result: Result<Vec<Record>, ClaimRefusal>,
    ) {
        let (slot, generation) = (session.slot, session.generation);
        let was_claimed =
            (self.owned()).is_some_and(|owned| owned.claimed.remove(&(slot, generation)));
        if !was_claimed || self.queues.session(slot, generation).is_none() {
            return;
        }
        match result {
            Ok(records) => {
                let goes_on = !records.is_empty() && self.install_kept(now_ms, slot, &records);
                self.handed_session(now_ms, slot, generation, Arrival::Claimed(goes_on));
            }
            Err(why) => self.claim_refused(now_ms, slot, why),
        }
        self.finish(now_ms);
    }

    fn claim_refused(&mut self, now_ms: u64, slot: u32, why: ClaimRefusal) {
        let reason = match why {
            ClaimRefusal::Away => EvictReason::ClusterAway,
            ClaimRefusal::TakenOver => EvictReason::TakenOver,
        };
        self.evict_claimer(slot, true, reason);
        let session = &mut self.queues.sessions[slot];
        session.state = State::Active;
        let next = session
            .rare
            .as_mut()
            .and_then(|rare| rare.next_claim.take());
        if let Some(claim) = next {
            // The next claimer asks by itself.
            self.send(
                claim.to.shard,
                Letter::Handover {
                    slot: claim.to.slot,
                    generation: claim.to.generation,
                    state: None,
                },
            );
        }
        // The result of the claim is the engine's: state that another node has kept does not end with it.
        let name = self.end_here(now_ms, slot);
        self.note(Ownership::Ended { name });
    }

    /// Ends a session on this node alone.
    fn end_here(&mut self, now_ms: u64, slot: u32) -> SessionName {
        let name = self.queues.sessions[slot].name.clone();
        self.end_session(now_ms, slot, true);
        if let Some(owned) = self.owned() {
            (owned.notes).pop_if(|note| matches!(note, Ownership::Release { .. }));
        }
        name
    }

    /// Removes now what waits to be removed of a session's records: the cursor that knows of it is written. Later the
    /// session may be another node's, or this one's again.
    fn remove_disowned(&mut self, name: &SessionName) {
        let is_its = |change: &mut Change| {
            split_key(&change.key).is_some_and(|(_, of, _)| of == name.text())
        };
        let waiting = self.queues.disowned.extract_if(.., is_its);
        let waiting = waiting.chain(self.disowning.extract_if(.., is_its));
        self.queues.changes.extend(waiting);
    }

    /// Has a session's end on this shard be no end of what is kept of it: another node goes on with that. Messages
    /// for the session go to the log all the same.
    fn leave_kept(&mut self, slot: u32) {
        let session = &self.queues.sessions[slot];
        if session.reader.is_some() {
            let wanted = (session.subscriptions.iter())
                .filter(|(_, subscription)| subscription.flags.qos().is_acknowledged())
                .filter(|(_, subscription)| !subscription.is_resting())
                .filter(|(filter, subscription)| subscription.group == NIL && !stays(&**filter));
            let filters: Vec<Arc<str>> = wanted.map(|(filter, _)| Arc::clone(filter)).collect();
            self.edit_log(|log| {
                for filter in filters {
                    log.push(RouteUpdate::HandedOver {
                        filter,
                        holds: true,
                    });
                }
            });
        }
        self.queues.write_cursor(slot);
        let session = &mut self.queues.sessions[slot];
        session.is_stored = false;
        let name = session.name.clone();
        self.remove_disowned(&name);
    }

    /// Another node has a session now. It ends here, without its will, which is the other's. To be called on
    /// all shards; [`Ownership::Ended`] follows when that is done.
    pub fn lose_session(&mut self, now_ms: u64, name: &SessionName) {
        self.end_for(now_ms, name, EvictReason::TakenOver);
    }

    /// The state of a session cannot be kept. It ends here as it was kept last, and its client is told why. To be
    /// called on all shards, as [`lose_session`](Self::lose_session).
    pub fn drop_unkept_session(&mut self, now_ms: u64, name: &SessionName) {
        self.end_for(now_ms, name, EvictReason::TooLarge);
    }

    fn end_for(&mut self, now_ms: u64, name: &SessionName, reason: EvictReason) {
        let owner = self.directory.owner(name);
        if owner.is_some_and(|owner| owner.shard != self.shard)
            || (owner.is_none() && self.shard != 0)
        {
            // It may have been this shard's before.
            self.remove_disowned(name);
            return self.finish(now_ms);
        }
        if owner.is_none() {
            self.remove_disowned(name);
        }
        if let Some(owner) = owner {
            let slot = owner.slot;
            let is_claimed = (self.owned())
                .is_some_and(|owned| owned.claimed.contains(&(slot, owner.generation)));
            let state = (self.queues.session(slot, owner.generation)).map(|session| session.state);
            match state {
                // The session that was lost has ended already: this is another that is to begin.
                Some(State::Claiming) if is_claimed => {}
                Some(State::Claiming) => self.evict_claimer(slot, true, reason),
                Some(State::Active | State::Moving) => {
                    self.take_will(slot);
                    self.evict_consumer(now_ms, slot, reason);
                    self.leave_kept(slot);
                    self.end_here(now_ms, slot);
                }
                None => {}
            }
        }
        let name = name.clone();
        self.note(Ownership::Ended { name });
        self.finish(now_ms);
    }

    /// Publishes a will that is this node's to publish. That of another node's session is judged first: the rights are
    /// those of its `testator`, now and here. Returns false for bytes that are no will.
    pub fn publish_owned_will(
        &mut self,
        now_ms: u64,
        will: &[u8],
        testator: Option<&SessionName>,
    ) -> bool {
        let Some((message, expiry_s, is_given)) = decode_will(will) else {
            return false;
        };
        // It comes from a connection that has just ended.
        let given_ms = is_given.then_some(now_ms);
        let holder = testator.map(|testator| Holder {
            client_id: testator.id(),
            owner: testator.user(),
            endpoint: None,
        });
        if let Some(testator) = testator
            && holder.is_some_and(|holder| !self.permits_will(holder, &message, given_ms))
        {
            let reason = LossReason::Forbidden;
            (self.queues).lose_of_reader(testator.text(), Some(&message), reason);
            return true;
        }
        let expires_at_ms = expiry_s.map(|expiry_s| now_ms + u64::from(expiry_s) * 1000);
        self.queues.counters.wills_published += 1;
        let message = message.republished(now_ms, expires_at_ms);
        let directory = Arc::clone(&self.directory);
        let principals = directory.principals();
        let entered = principals.enter_briefly(testator.and_then(SessionName::user), None);
        let by = RetainedBy::Here(entered.principal);
        self.route_alone(now_ms, message, true, by);
        self.finish(now_ms);
        true
    }

    /// Tells consumers that their session is open.
    pub(super) fn tell_opened(&mut self, slot: u32, present: bool) {
        let session = &self.queues.sessions[slot];
        if let Some(consumer) = session.consumer() {
            let key = session.key(slot);
            if let Some(group) = group_of_root(&session.name) {
                return self.far.told.push_back(RootTold::Opened {
                    group: group.into(),
                    session: key,
                });
            }
            self.events.push_back(Event::Opened {
                consumer,
                session: key,
                present,
            });
        }
    }
}
