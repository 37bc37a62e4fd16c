//! Opening, closing and ending sessions (MQTT 5.0, sections 3.1 and 4.1).

use core::net::SocketAddr;

use super::Broker;
use super::wills::new_will;
use crate::account::Account;
use crate::api::{
    Close, ConsumerId, DoorState, EvictReason, NEVER_EXPIRES_S, OpenError, OpenSession, Opened,
    SessionKey,
};
use crate::copies::ROUTE_COPIES;
use crate::directory::{Admission, Claimed, Owner, Principal};
use crate::far_group::group_of_root;
use crate::filter::is_topic;
use crate::losses::LossReason;
use crate::mail::{Address, Claim, Letter, Returned};
use crate::message::Qos;
use crate::nodes::{Entry, NIL, Phase};
use crate::owned::Ownership;
use crate::queues::{QueueKey, owned_key};
use crate::records::{self, Kind, SessionRecord};
use crate::rights::Holder;
use crate::route::RouteUpdate;
use crate::session::{BrokerSession, NEVER_MS, State};
use crate::will::Wait;

impl<P: DoorState> Broker<P> {
    /// Opens a session for a consumer, evicting the one that has it now, wherever it is.
    ///
    /// A session that another shard has is asked for, and arrives with an [`Event::Opened`](crate::Event::Opened).
    ///
    /// # Errors
    /// When a limit forbids it, or the will can't be published.
    pub fn open(&mut self, now_ms: u64, request: OpenSession) -> Result<Opened, OpenError> {
        self.open_from(now_ms, None, request)
    }

    /// The same for a client at an address. Where it has no user, its network is who holds the session
    /// ([`Principals`](crate::Principals)); without an address as well, that is the broker itself.
    ///
    /// # Errors
    /// See [`open`](Self::open).
    pub fn open_from(
        &mut self,
        now_ms: u64,
        peer: Option<SocketAddr>,
        request: OpenSession,
    ) -> Result<Opened, OpenError> {
        let address = peer.map(|peer| peer.ip());
        let is_own = request.name.user().is_none() && address.is_none();
        let principal = if is_own {
            Principal::BROKER
        } else {
            self.directory
                .principals()
                .enter(request.name.user(), address)
        };
        self.opener = peer;
        let opened = self.claim_and_open(now_ms, principal, request);
        self.opener = None;
        if opened.is_err() {
            self.directory.principals().leave(principal);
        }
        let opened = opened?;
        let (Opened::Ready { session, .. } | Opened::Pending { session }) = opened;
        self.judge_opened(now_ms, session);
        Ok(opened)
    }

    /// With a principal that has entered, and leaves with the session.
    fn claim_and_open(
        &mut self,
        now_ms: u64,
        principal: Principal,
        request: OpenSession,
    ) -> Result<Opened, OpenError> {
        // Its record could not be kept, and nobody would be told for as long.
        let is_kept = request.expiry_s > 0 || (request.will.is_some() && self.keeps_of_node());
        if is_kept && (self.queues.store.is_stuck() || self.lacks_room_for(&request.name)) {
            return Err(OpenError::StoreFull);
        }
        if request.expiry_s > 0 && self.is_unsure() {
            return Err(OpenError::ClusterAway);
        }
        let mut will_bytes = 0;
        if let Some(will) = &request.will {
            if !is_topic(will.message.topic(), self.limits()) {
                return Err(OpenError::InvalidWillTopic);
            }
            if self.is_too_large_for_peers(&will.message) {
                return Err(OpenError::WillTooLarge);
            }
            will_bytes = will.message.body_bytes();
            let admission = Admission::Limited;
            if !(self.directory).add_will(will_bytes, admission, principal) {
                return Err(OpenError::TooManyWills);
            }
        }
        let is_clean = request.clean_start;
        let slot = self.queues.sessions.vacant_slot();
        let generation = self.directory.next_opening();
        let shard = self.shard;
        let is_root = group_of_root(&request.name).is_some();
        let rights = self.rights.as_ref().filter(|_| !is_root);
        let most_of_user = rights.and_then(|rights| {
            rights.most_sessions(Holder {
                client_id: request.name.id(),
                owner: request.name.user(),
                endpoint: None,
            })
        });
        let admission = if is_root {
            Admission::Restored
        } else {
            Admission::Limited
        };
        let claimed = self.directory.claim(
            (&request.name, principal),
            shard,
            (admission, most_of_user),
            || Owner {
                shard,
                slot,
                generation,
            },
        );
        let opened = match claimed {
            Claimed::Here(owner) => match self.open_here(now_ms, owner, principal, request) {
                Ok(opened) => opened,
                Err(error) => {
                    self.directory.remove_will(will_bytes);
                    self.finish(now_ms);
                    return Err(error);
                }
            },
            Claimed::Elsewhere { name, old, new } => {
                let session = BrokerSession::new(name, generation, State::Claiming);
                self.queues.sessions.insert(session);
                let clean_start = request.clean_start;
                let key = self.seat(slot, principal, request);
                self.queues.counters.sessions_claimed += 1;
                let to = Address {
                    shard,
                    slot,
                    generation: new.generation,
                };
                let Owner {
                    shard,
                    slot,
                    generation,
                } = old;
                self.send(
                    shard,
                    Letter::Claim(Claim {
                        slot,
                        generation,
                        clean_start,
                        to,
                        by: self.opener,
                    }),
                );
                Opened::Pending { session: key }
            }
            Claimed::New { name, .. } => {
                let session = BrokerSession::new(name, generation, State::Active);
                self.queues.sessions.insert(session);
                let key = self.seat(slot, principal, request);
                self.begin_new(now_ms, slot, key, is_clean)
            }
            Claimed::Full => {
                self.directory.remove_will(will_bytes);
                return Err(OpenError::TooManySessions);
            }
        };
        self.finish(now_ms);
        Ok(opened)
    }

    /// Opens a session that this shard has, or is about to have.
    fn open_here(
        &mut self,
        now_ms: u64,
        owner: Owner,
        principal: Principal,
        request: OpenSession,
    ) -> Result<Opened, OpenError> {
        let slot = owner.slot;
        let state = self
            .queues
            .session(slot, owner.generation)
            .map(|session| session.state);
        if state == Some(State::Claiming) {
            return self.open_coming(owner, principal, request);
        }
        debug_assert_eq!(
            state,
            Some(State::Active),
            "a registered session is here or coming"
        );
        let session = &self.queues.sessions[slot];
        // A session without expiry interval has ended with its connection, even if the next one
        // came first. [MQTT-3.1.2-4] [MQTT-4.1.0-2]
        let present = !request.clean_start && session.expiry_s > 0;
        if present && self.is_unsure() {
            return Err(OpenError::ClusterAway);
        }
        self.evict_consumer(now_ms, slot, EvictReason::TakenOver);
        let session = &self.queues.sessions[slot];
        let slot = if present {
            // [MQTT-3.1.2-5] [MQTT-3.1.3-9]
            self.take_will(slot);
            self.queues.sessions[slot].attendance = self.directory.next_opening();
            slot
        } else {
            let name = session.name.clone();
            self.take_orphaned_will(slot);
            self.end_session(now_ms, slot, false);
            let slot = self.queues.sessions.vacant_slot();
            let generation = self.directory.next_opening();
            let new = Owner {
                shard: self.shard,
                slot,
                generation,
            };
            // Another shard may have registered since: its claim finds that the session has ended.
            if !self.directory.reregister(&name, owner, new) {
                return Err(OpenError::TakenOver);
            }
            let session = BrokerSession::new(name, generation, State::Active);
            self.queues.sessions.insert(session);
            slot
        };
        let key = self.seat(slot, principal, request);
        if !present {
            // The session that was here before has ended.
            return Ok(self.begin_new(now_ms, slot, key, true));
        }
        self.tell_will(slot);
        self.attend(now_ms, slot);
        Ok(Opened::Ready {
            session: key,
            present,
        })
    }

    /// Begins a new session, which has its consumer. In a cluster it waits until no other node has it.
    fn begin_new(&mut self, now_ms: u64, slot: u32, key: SessionKey, is_clean: bool) -> Opened {
        if self.is_in_cluster() {
            self.claim_in_cluster(slot, is_clean);
            return Opened::Pending { session: key };
        }
        self.attend(now_ms, slot);
        Opened::Ready {
            session: key,
            present: false,
        }
    }

    /// Opens a session that this shard has claimed from another and that is yet to come.
    fn open_coming(
        &mut self,
        owner: Owner,
        principal: Principal,
        request: OpenSession,
    ) -> Result<Opened, OpenError> {
        let mut slot = owner.slot;
        self.evict_claimer(slot, request.clean_start, EvictReason::TakenOver);
        let session = &mut self.queues.sessions[slot];
        let attendance = self.directory.next_opening();
        if session.rare.as_ref().is_some_and(|rare| rare.discard) {
            // The coming session is dropped, but messages may still be on their way to it. They must not reach the
            // new session, so it is another, and waits like one of another shard.
            let name = session.name.clone();
            let vacant = self.queues.sessions.vacant_slot();
            let new = Owner {
                shard: self.shard,
                slot: vacant,
                generation: attendance,
            };
            let to = Address {
                shard: new.shard,
                slot: new.slot,
                generation: new.generation,
            };
            let claim = Claim {
                slot,
                generation: owner.generation,
                clean_start: true,
                to,
                by: self.opener,
            };
            // Another shard may have registered since: its claim will wait here instead.
            if !self.directory.reregister(&name, owner, new) {
                return Err(OpenError::TakenOver);
            }
            self.queues.sessions[slot].rare_mut().next_claim = Some(claim);
            let session = BrokerSession::new(name, attendance, State::Claiming);
            slot = self.queues.sessions.insert(session);
        } else {
            session.attendance = attendance;
        }
        Ok(Opened::Pending {
            session: self.seat(slot, principal, request),
        })
    }

    /// Gives a session its new consumer.
    fn seat(&mut self, slot: u32, principal: Principal, request: OpenSession) -> SessionKey {
        self.queues.sessions.set_principal(slot, principal);
        let session = &mut self.queues.sessions[slot];
        debug_assert!(
            !session.is_connected() && session.will.is_none(),
            "a seat is free"
        );
        session.set_consumer(Some(request.consumer));
        session.is_parked = false;
        session.set_has_more(false);
        session.is_blocked = false;
        session.is_held = false;
        session.names_places = false;
        session.set_taste(request.on_demand, request.selector);
        session.expiry_s = request.expiry_s;
        let origin = session.origin;
        session.will = request.will.map(|will| Box::new(new_will(will, origin)));
        self.queues.counters.sessions_connected += 1;
        let key = session.key(slot);
        self.queues.sessions.reweigh(slot);
        key
    }

    /// Takes up work for a session that is here and has a consumer.
    pub(super) fn attend(&mut self, now_ms: u64, slot: u32) {
        let session = &mut self.queues.sessions[slot];
        session.expires_at_ms = NEVER_MS;
        session.set_sweep(NEVER_MS);
        let session_is_selective = session.selector().is_some();
        self.queues.set_session_timer(slot);
        self.store_presence(slot);
        self.store_will(slot, Wait::Connection);
        if session_is_selective {
            self.queues.drop_unselected(slot);
        }
        self.judge_sent(slot);
        self.attend_groups(slot);
        self.wake(slot);
        self.send_changed(now_ms, slot);
        // A consumer may have asked before its session was here.
        self.tell_drained(slot);
        self.queues.list_if_ready(slot);
    }

    /// Notes that a session has a consumer, if it outlives the connection or was to before.
    fn store_presence(&mut self, slot: u32) {
        if !self.queues.is_durable {
            return;
        }
        let session = &mut self.queues.sessions[slot];
        if session.expiry_s == 0 && !session.is_stored {
            return;
        }
        let is_new = !std::mem::replace(&mut session.is_stored, true);
        self.store_session(slot, None);
        if !is_new {
            return;
        }
        self.begin_reading(slot);
        // It outlives its connection only from now on.
        let session = &self.queues.sessions[slot];
        let subscriptions: Vec<_> = session.subscriptions.iter().cloned().collect();
        for (filter, subscription) in subscriptions {
            let is_shared = subscription.group != NIL;
            self.add_routes(slot, &filter, is_shared, subscription, None);
        }
    }

    /// Gathers the record of a session.
    fn store_session(&mut self, slot: u32, expires_at_ms: Option<u64>) {
        let session = &self.queues.sessions[slot];
        let principals = self.directory.principals();
        let network = match session.weight.principal {
            _ if session.name.user().is_some() => None,
            Principal::OTHERS => Some(SessionRecord::UNNOTED),
            principal => principals.network(principal),
        };
        let record = SessionRecord {
            network,
            expiry_s: session.expiry_s,
            expires_at_ms,
        };
        let change = records::put(Kind::Session, session.name.text(), &[], record.encode());
        self.queues.changes.push(change);
    }

    /// Gathers the removal of all that is stored of a session.
    fn forget_session(&mut self, slot: u32) {
        let queues = &mut self.queues;
        let session = &mut queues.sessions[slot];
        if !std::mem::take(&mut session.is_stored) {
            session.reader = None;
            return;
        }
        let session = &queues.sessions[slot];
        let name = session.name.text();
        let mut removed = |kind: Kind, rest: &[u8]| {
            queues.changes.push(records::remove(kind, name, rest));
        };
        removed(Kind::Session, &[]);
        removed(Kind::Cursor, &[]);
        for (filter, _) in session.subscriptions.iter() {
            removed(Kind::Subscription, filter.as_bytes());
        }
        for past in session.reader.iter().flat_map(|reader| &reader.past) {
            removed(Kind::Past, &past.key());
        }
        for key in session.rare.iter().flat_map(|rare| &rare.kept) {
            removed(Kind::Door, key);
        }
        if session.rare.as_ref().is_some_and(|rare| rare.rounds > 0) {
            removed(Kind::Rounds, &[]);
        }
        let mut owned = |entry: &Entry| {
            let change = records::remove(Kind::Owned, name, &owned_key(entry));
            if entry.group == NIL {
                queues.changes.push(change);
            } else {
                // Its group is yet to write that it is done with the message.
                queues.disowned.push(change);
            }
        };
        queues.nodes.each(session.ledger, |entry| {
            if entry.position != 0 && (entry.is_owned || entry.phase == Phase::HandedOver) {
                owned(entry);
            }
        });
        queues.nodes.each(session.pending, |entry| {
            if entry.is_claimed {
                owned(entry);
            }
        });
        queues.sessions[slot].reader = None;
    }

    /// Ends a consumer's connection; the session lives on for its expiry interval. Does nothing
    /// for an outdated key.
    pub fn close(&mut self, now_ms: u64, session: SessionKey, close: Close) {
        let slot = session.slot;
        let Some(session) = self.queues.attended_mut(session) else {
            return;
        };
        if let Some(expiry_s) = close.expiry_s {
            session.expiry_s = expiry_s;
        }
        if session.state == State::Claiming {
            // The coming session becomes one that is away, or ends at once.
            let discard = session.expiry_s == 0;
            session.set_consumer(None);
            session.rare_mut().discard |= discard;
            self.queues.counters.sessions_connected -= 1;
            self.queues.forget_holder(QueueKey::Session(slot));
            // It was never told that it is connected, so its will was never in force.
            self.take_claimed_will(slot);
            return;
        }
        // A connection may end with very many of them, and so may many connections at once.
        self.copies.made(ROUTE_COPIES, 0);
        self.store_presence(slot);
        self.disconnect(now_ms, slot, close);
        self.leave(now_ms, slot);
        self.finish(now_ms);
    }

    /// Closes every session whose consumer is one of these, for a front door that has lost track of
    /// them. It looks at every session of the shard.
    pub fn close_all(&mut self, now_ms: u64, is_one: impl Fn(ConsumerId) -> bool, close: Close) {
        let sessions = self.queues.sessions.open();
        let theirs = sessions.filter(|(_, session)| session.consumer().is_some_and(&is_one));
        let keys: Vec<_> = theirs.map(|(slot, session)| session.key(slot)).collect();
        for key in keys {
            self.close(now_ms, key, close);
        }
    }

    /// Evicts the consumer of a session that is yet to come.
    pub(super) fn evict_claimer(&mut self, slot: u32, discard: bool, reason: EvictReason) {
        let session = &mut self.queues.sessions[slot];
        let mut discard = discard;
        if let Some(consumer) = session.take_consumer() {
            discard |= session.expiry_s == 0;
            self.queues.counters.sessions_connected -= 1;
            self.queues.forget_holder(QueueKey::Session(slot));
            self.tell_evicted(slot, consumer, reason);
        }
        let session = &mut self.queues.sessions[slot];
        if discard {
            session.rare_mut().discard = true;
        }
        self.take_claimed_will(slot);
    }

    /// Takes the will of a session that is yet to come. The claim has told other nodes of it.
    fn take_claimed_will(&mut self, slot: u32) {
        self.take_will(slot);
        if self.is_in_cluster() {
            self.queues.sessions[slot].rare_mut().is_will_other = true;
        }
    }

    /// Takes a session's consumer away. Messages that can't wait are dropped or given back; its will may be
    /// published.
    pub(super) fn disconnect(&mut self, now_ms: u64, slot: u32, close: Close) {
        let (will, cause) = (close.will, close.cause);
        let queues = &mut self.queues;
        queues.forget_holder(QueueKey::Session(slot));
        if let Some(watcher) = &queues.loss_watcher {
            watcher.ended(&queues.sessions[slot].name, cause);
        }
        let session = &mut queues.sessions[slot];
        debug_assert!(session.is_connected() && session.state == State::Active);
        session.set_consumer(None);
        session.end_demand();
        if let Some(reader) = &mut session.reader {
            // The store's answers come to nobody; the next consumer asks again.
            reader.interrupt();
        }
        queues.counters.sessions_connected -= 1;
        let mut earliest_ms = NEVER_MS;
        let mut given_back: Vec<(u32, Returned)> = Vec::new();
        let (mut node, first_pending) = (session.ledger.first(), session.pending.first());
        while node != NIL {
            let next = queues.nodes.next(node);
            if let Some(entry) = queues.nodes.entry_mut(node)
                && entry.phase == Phase::Sent
            {
                // An end in order is no failed delivery.
                if cause.is_loss() {
                    entry.failures.lose();
                }
                if entry.is_kept {
                    let entry = queues.remove_sent(slot, node);
                    given_back
                        .extend(entry.and_then(|entry| Returned::lost_if(cause.is_loss(), entry)));
                }
            }
            node = next;
        }
        let mut node = first_pending;
        while node != NIL {
            let next = queues.nodes.next(node);
            let (group, waits) = queues.nodes.entry(node).map_or((NIL, false), |entry| {
                (entry.group, entry.qos.is_acknowledged())
            });
            if group != NIL || !waits {
                if let Some(entry) = queues.remove_pending(slot, node) {
                    if group == NIL {
                        queues.forget_stored(slot, &entry);
                        queues.lose(slot, entry.message.as_deref(), LossReason::Away);
                    }
                    given_back.extend(Returned::of(entry));
                }
            } else {
                earliest_ms = earliest_ms.min(queues.expires_at_ms(node));
            }
            node = next;
        }
        queues.sessions[slot].set_sweep(earliest_ms);
        self.detach_groups(slot);
        self.give_back(given_back);
        self.connection_ended(now_ms, slot, will);
    }

    /// Sees to a session whose consumer is gone, where no other has come.
    pub(super) fn leave(&mut self, now_ms: u64, slot: u32) {
        if self.queues.sessions[slot].expiry_s == 0 {
            // [MQTT-4.1.0-2]
            if self.outlives_as_will(now_ms, slot) {
                return;
            }
            self.publish_due_will(now_ms, slot);
            if !self.outlives_as_will(now_ms, slot) {
                self.end_session(now_ms, slot, true);
            }
            return;
        }
        // The front door has left what its next client needs.
        self.queues.sessions.reweigh(slot);
        let session = &mut self.queues.sessions[slot];
        match session.expiry_s {
            // [MQTT-3.1.2-23]
            NEVER_EXPIRES_S => session.expires_at_ms = NEVER_MS,
            expiry_s => session.expires_at_ms = now_ms + u64::from(expiry_s) * 1000,
        }
        if session.is_stored {
            let expires_at_ms = Some(session.expires_at_ms).filter(|&at_ms| at_ms != NEVER_MS);
            self.store_session(slot, expires_at_ms);
            self.fall_asleep(slot);
        }
        self.queues.set_session_timer(slot);
    }

    /// As [`leave`](Self::leave), for a session that came without anybody waiting for it.
    pub(super) fn leave_after_handover(&mut self, now_ms: u64, slot: u32) {
        let mut earliest_ms = NEVER_MS;
        let mut node = self.queues.sessions[slot].pending.first();
        while node != NIL {
            earliest_ms = earliest_ms.min(self.queues.expires_at_ms(node));
            node = self.queues.nodes.next(node);
        }
        self.queues.sessions[slot].set_sweep(earliest_ms);
        self.leave(now_ms, slot);
    }

    /// Ends a session: its subscriptions, its queue, itself; and publishes its will if that is still
    /// due. `forget` is false where a new session takes its place in the registry.
    pub(super) fn end_session(&mut self, now_ms: u64, slot: u32, forget: bool) {
        self.drop_state(slot);
        self.publish_will(now_ms, slot);
        let session = self.queues.sessions.remove(slot);
        self.queues
            .timers
            .remove(&(session.timer_ms, QueueKey::Session(slot)));
        if session.is_connected() {
            self.queues.counters.sessions_connected -= 1;
        }
        if forget {
            let generation = session.generation;
            let owner = Owner {
                shard: self.shard,
                slot,
                generation,
            };
            if !self.queues.changes.is_empty() && !self.is_in_cluster() {
                // Another shard may have a session of the name from here on, with records.
                self.append_changes();
            }
            if self.directory.unregister(&session.name, owner) && self.is_in_cluster() {
                let name = session.name.clone();
                self.note(Ownership::Release { name });
            }
        }
    }

    /// Drops what a session has gathered: subscriptions, queue, ledger, protocol state.
    pub(super) fn drop_state(&mut self, slot: u32) {
        self.forget_session(slot);
        let session = &mut self.queues.sessions[slot];
        let subscriber = std::mem::replace(&mut session.subscriber, NIL);
        let subscriptions = session.subscriptions.take();
        let (ledger, pending) = (session.ledger, session.pending);
        session.ledger = crate::nodes::List::default();
        session.pending = crate::nodes::List::default();
        session.account = Account::default();
        session.is_blocked = false;
        session.is_held = false;
        session.protocol = P::default();
        if let Some(rare) = &mut session.rare {
            rare.rehomed.clear();
            rare.kept.clear();
            rare.restored.clear();
        }
        self.queues.sessions.reweigh(slot);
        // A shared subscription's QoS 1 messages that were sent and not settled go to another
        // member; QoS 2 ones must not. [MQTT-4.8.2-5]
        let mut given_back = Vec::new();
        for entry in self.queues.drain(ledger) {
            if entry.is_kept && entry.is_owned && entry.position != 0 {
                let name = self.queues.sessions[slot].name.text();
                let change = records::remove(Kind::Owned, name, &owned_key(&entry));
                self.queues.disowned.push(change);
            }
            if entry.qos != Qos::ExactlyOnce || entry.is_kept {
                let was_lost = entry.failures.lost > 0;
                given_back.extend(Returned::lost_if(was_lost, entry));
            }
        }
        given_back.extend(
            self.queues
                .drain(pending)
                .into_iter()
                .filter_map(Returned::of),
        );
        for (_, subscription) in &subscriptions {
            self.directory.remove_subscription();
            self.queues.counters.unsubscribed(subscription.group);
        }
        self.give_back(given_back);
        if subscriber != NIL {
            self.edit_log(|log| {
                for (filter, subscription) in subscriptions {
                    if subscription.group == NIL {
                        log.push(RouteUpdate::Unsubscribed {
                            id: subscriber,
                            filter,
                        });
                    } else {
                        let flags = subscription.flags;
                        log.leave_group(&filter, subscription.group, subscriber, flags);
                    }
                }
                log.release_id(subscriber);
            });
        }
    }
}
