//! Moving a session from one shard to another, in order and without loss.
//!
//! A consumer connects on shard K; the session is on shard J. K registers itself as the owner and sends J a claim.
//! J evicts its consumer and writes the session's new place into the route log. From then on, a shard that has read
//! so far sends messages to K. There, deliveries wait behind those that are to come. A shard that hasn't read so
//! far still sends to J. So J sends every other shard a fence, and a shard answers when it has read the log. Mail
//! between two shards keeps its order: all that a shard had sent to J is there before its answer. When all have
//! answered, J hands the session over. K puts the deliveries that come with it in front of those that waited. Per
//! publisher, the order is kept: the older messages went to J, the younger to K.
//!
//! The fence is sent also if there is nothing to hand over. It then keeps the order of the client's own
//! publications: those through J before those through K.

use super::Broker;
use crate::account::Account;
use crate::api::{DoorState, EvictReason};
use crate::mail::{Address, Claim, Letter, Moved};
use crate::nodes::{List, NIL, Phase};
use crate::queues::QueueKey;
use crate::route::{Place, RouteUpdate};
use crate::session::{NEVER_MS, State};

/// A fence that shards have yet to answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fence {
    unanswered: u16,
    to: Address,
    /// The session to hand over, unless it has ended.
    slot: Option<u32>,
}

/// The arrival that a waiting session waits for.
pub(super) enum Arrival<P> {
    /// From another shard, what it had; `None` where it has ended there.
    Moved(Option<Box<Moved<P>>>),
    /// From the cluster: the session is this node's, and whether it goes on with what was kept of it.
    Claimed(bool),
}

impl<P: DoorState> Broker<P> {
    /// Another shard claims a session.
    pub(super) fn claimed(&mut self, now_ms: u64, claim: Claim) {
        self.opener = claim.by;
        self.leave_to(now_ms, claim);
        self.opener = None;
    }

    fn leave_to(&mut self, now_ms: u64, claim: Claim) {
        let Claim {
            slot,
            generation,
            clean_start,
            to,
            ..
        } = claim;
        let Some(session) = self.queues.session(slot, generation) else {
            // It ended while the claim was on its way.
            self.send(
                to.shard,
                Letter::Handover {
                    slot: to.slot,
                    generation: to.generation,
                    state: None,
                },
            );
            return;
        };
        if session.state == State::Claiming {
            // It is still to come from a third shard; then it goes on at once.
            debug_assert!(
                session
                    .rare
                    .as_ref()
                    .is_none_or(|rare| rare.next_claim.is_none()),
                "the registry names one owner at a time"
            );
            session.rare_mut().next_claim = Some(claim);
            self.evict_claimer(slot, clean_start, EvictReason::TakenOver);
            return;
        }
        debug_assert_eq!(
            session.state,
            State::Active,
            "the registry names one owner at a time"
        );
        self.evict_consumer(now_ms, slot, EvictReason::TakenOver);
        let session = &mut self.queues.sessions[slot];
        let moves = !clean_start && session.expiry_s > 0;
        if moves && session.judged_by != self.rights_version {
            // This shard may say at once that all its sessions are judged.
            self.judge_session(now_ms, slot, true);
        }
        let session = &mut self.queues.sessions[slot];
        if moves {
            session.state = State::Moving;
            session.expires_at_ms = NEVER_MS;
            session.set_sweep(NEVER_MS);
            let subscriber = session.subscriber;
            // [MQTT-3.1.3-9]
            self.take_will(slot);
            self.queues.set_session_timer(slot);
            if subscriber != NIL {
                let place = Place {
                    shard: to.shard,
                    slot: to.slot,
                    generation: to.generation,
                };
                let (position, _) = self.edit_log(|log| {
                    log.push(RouteUpdate::Placed {
                        id: subscriber,
                        place,
                        moved: true,
                    });
                    log.position
                });
                if let Some(reader) = &mut self.queues.sessions[slot].reader {
                    reader.leaves_at = position;
                }
            }
        } else {
            self.take_orphaned_will(slot);
            self.end_session(now_ms, slot, true);
        }
        self.next_fence = self.next_fence.wrapping_add(1);
        let fence = self.next_fence;
        let from = self.shard;
        let mut unanswered = 0;
        for shard in (0..self.directory.shards()).filter(|&shard| shard != from) {
            self.send(shard, Letter::Fence { from, fence });
            unanswered += 1;
        }
        self.fences.insert(
            fence,
            Fence {
                unanswered,
                to,
                slot: moves.then_some(slot),
            },
        );
    }

    /// A shard has answered a fence.
    pub(super) fn fence_answered(&mut self, fence: u32) {
        let Some(waiting) = self.fences.get_mut(&fence) else {
            return;
        };
        waiting.unanswered -= 1;
        if waiting.unanswered > 0 {
            return;
        }
        let Fence { to, slot, .. } = *waiting;
        self.fences.remove(&fence);
        let state = slot.map(|slot| Box::new(self.extract(slot)));
        self.send(
            to.shard,
            Letter::Handover {
                slot: to.slot,
                generation: to.generation,
                state,
            },
        );
    }

    /// Takes a session out of this shard.
    fn extract(&mut self, slot: u32) -> Moved<P> {
        // Settled positions are written here, before records of them are removed.
        self.queues.write_cursor(slot);
        let mut session = self.queues.sessions.remove(slot);
        let lookups = (self.queues.work).take_lookups((slot, session.generation));
        self.queues
            .timers
            .remove(&(session.timer_ms, QueueKey::Session(slot)));
        for (_, subscription) in session.subscriptions.iter() {
            self.queues.counters.unsubscribed(subscription.group);
        }
        let (kept, restored, rounds) = session
            .rare
            .map(|rare| (rare.kept, rare.restored, rare.rounds))
            .unwrap_or_default();
        let mut reader = session.reader;
        if let Some(reader) = &mut reader {
            reader.interrupt();
            let holds = reader.holds();
            self.hand_over_log(holds);
        }
        Moved {
            reader,
            kept,
            restored,
            rounds,
            subscriptions: session.subscriptions.take(),
            ledger: self.queues.drain(session.ledger),
            pending: self.queues.drain(session.pending),
            protocol: session.protocol,
            subscriber: session.subscriber,
            next_sequence: session.next_sequence,
            is_stored: session.is_stored,
            judged_by: session.judged_by,
            lookups,
        }
    }

    /// The session that was claimed arrives from another shard, or no other node has it.
    pub(super) fn handed_session(
        &mut self,
        now_ms: u64,
        slot: u32,
        generation: u32,
        arrival: Arrival<P>,
    ) {
        let Some(session) = self.queues.session(slot, generation) else {
            debug_assert!(false, "a claiming session waits for what it claimed");
            return;
        };
        debug_assert_eq!(session.state, State::Claiming);
        if matches!(arrival, Arrival::Moved(None)) && session.is_connected() && self.is_in_cluster()
        {
            // It has ended on that shard.
            return self.claim_in_cluster(slot, true);
        }
        let session = &mut self.queues.sessions[slot];
        session.state = State::Active;
        let (discard, next_claim) = session
            .rare
            .as_mut()
            .map_or((false, None), |rare| (rare.discard, rare.next_claim.take()));
        let is_claimed = matches!(arrival, Arrival::Claimed(_));
        let rare = session.rare.as_mut();
        let is_will_other = rare.is_some_and(|rare| std::mem::take(&mut rare.is_will_other));
        let present = match arrival {
            Arrival::Moved(Some(state)) => {
                self.install(slot, *state);
                true
            }
            Arrival::Moved(None) => false,
            Arrival::Claimed(goes_on) => goes_on,
        };
        let unsubscribed = self.end_noted_subscriptions(slot);
        let has_lost = self.judge_arrived(now_ms, slot);
        // A shard that claimed it and whose client is gone again has never had a session. If none came,
        // there is none to pass on, and the next is told so.
        let ends = discard || !present;
        let keeps_wills = self.keeps_of_node();
        let session = &mut self.queues.sessions[slot];
        debug_assert!(
            session.consumer().is_none() || !discard,
            "a discarded session has no consumer"
        );
        let is_kept = session.expiry_s > 0 || (session.will.is_some() && keeps_wills);
        let is_kept_anew = session.is_connected() && is_kept && !session.is_stored;
        if is_kept_anew && self.lacks_room() {
            self.evict_claimer(slot, true, EvictReason::StoreFull);
            self.end_session(now_ms, slot, true);
        } else if self.queues.sessions[slot].is_connected() {
            if is_will_other || (present && !is_claimed) {
                self.tell_will(slot);
            }
            self.tell_opened(slot, present);
            if unsubscribed {
                self.tell_unsubscribed(slot);
            }
            if has_lost {
                self.tell_lost_right(slot);
            }
            self.attend(now_ms, slot);
        } else if let Some(claim) = next_claim {
            let clean_start = claim.clean_start || ends;
            self.claimed(
                now_ms,
                Claim {
                    clean_start,
                    ..claim
                },
            );
        } else if ends {
            self.end_session(now_ms, slot, true);
        } else {
            if is_will_other {
                self.tell_will(slot);
            }
            self.leave_after_handover(now_ms, slot);
        }
    }

    /// Puts an arriving session's state into its slot, in front of what has waited there.
    fn install(&mut self, slot: u32, state: Moved<P>) {
        if let Some(reader) = &state.reader {
            self.hold_log(reader.holds());
        }
        let hashing = self.directory.hashing();
        let queues = &mut self.queues;
        let mut ledger = List::default();
        let mut rehomed = Vec::with_capacity(state.ledger.len());
        for entry in state.ledger {
            let tag = entry.tag;
            rehomed.push((tag, queues.restore(&mut ledger, slot, entry)));
        }
        let mut pending = List::default();
        for entry in state.pending {
            debug_assert_eq!(entry.phase, Phase::Pending);
            queues.restore(&mut pending, slot, entry);
        }
        let session = &mut queues.sessions[slot];
        session.protocol = state.protocol;
        session.subscriber = state.subscriber;
        for (filter, subscription) in state.subscriptions {
            queues.counters.subscribed(subscription.group);
            session.subscriptions.insert(filter, subscription, hashing);
        }
        // Messages that have waited here were tagged from one on; they follow those that were tagged there.
        let mut node = session.pending.first();
        session.next_sequence = state.next_sequence;
        session.is_stored = state.is_stored;
        session.reader = state.reader;
        session.judged_by = state.judged_by;
        let of = (slot, session.generation);
        for lookup in state.lookups {
            (queues.work).postpone_lookup(of, lookup, queues.limits.retained_deliveries);
        }
        while node != NIL {
            let tag = (session.next_tag() & !u64::from(NIL)) | u64::from(node);
            if let Some(entry) = queues.nodes.entry_mut(node) {
                entry.tag = tag;
            }
            node = queues.nodes.next(node);
        }
        session.ledger = ledger;
        session.pending = queues.nodes.join(pending, session.pending);
        session.account = Account::of(&queues.nodes, session.pending, session.ledger);
        if !rehomed.is_empty() || !state.kept.is_empty() || !state.restored.is_empty() {
            let rare = session.rare_mut();
            rare.rehomed.extend(rehomed);
            rare.kept = state.kept;
            rare.restored = state.restored;
        }
        if state.rounds > 0 {
            session.rare_mut().rounds = state.rounds;
        }
        let missed = (session.rare.as_mut()).and_then(|rare| rare.missed_from.take());
        if let Some(reader) = &mut session.reader {
            reader.is_changed = false;
            reader.leaves_at = u64::MAX;
        }
        queues.mark_changed(slot);
        if let Some(position) = missed {
            queues.fall_behind(slot, position);
        }
        self.queues.sessions.reweigh(slot);
        if self.is_asleep(slot) {
            // Messages that have waited here would go before those it has yet to read.
            self.drop_logged(slot);
        }
    }
}
