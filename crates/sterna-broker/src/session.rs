//! A session's state.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::api::{ConsumerId, SessionKey};
use crate::list::KeyedList;
use crate::mail::Claim;
use crate::message::{Message, Origin};
use crate::nodes::{List, NIL};
use crate::route::{Context, RouteFlags};
use crate::store::StoredSubscription;

/// A time that never comes.
pub(crate) const NEVER_MS: u64 = u64::MAX;

/// A subscription, on the session's side.
#[derive(Clone, Debug)]
pub(crate) struct Subscription {
    pub(crate) flags: RouteFlags,
    /// The group it is a membership of, or [`NIL`].
    pub(crate) group: u32,
    pub(crate) context: Option<Arc<Context>>,
}

impl Subscription {
    pub(crate) fn stored(&self) -> StoredSubscription {
        StoredSubscription {
            qos: self.flags.qos(),
            no_local: self.flags.no_local(),
            retain_as_published: self.flags.retain_as_published(),
            identifier: self
                .context
                .as_ref()
                .and_then(|context| context.identifiers.first().copied()),
        }
    }
}

/// Where a session stands between shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// It is here.
    Active,
    /// It is to come from another shard.
    Claiming,
    /// It is to go to another shard, when all have answered the fence.
    Moving,
}

/// A will in waiting.
#[derive(Debug)]
pub(crate) struct SessionWill {
    pub(crate) message: Message,
    pub(crate) delay_s: u32,
    pub(crate) expiry_s: Option<u32>,
    /// When to publish it, once the connection is lost.
    pub(crate) due_ms: u64,
}

/// What few sessions have.
#[derive(Debug, Default)]
pub(crate) struct Rare {
    /// Where sent entries lie whose tags don't say it, because the session has moved.
    pub(crate) rehomed: FxHashMap<u64, u32>,
    /// The front door's state as restored.
    pub(crate) snapshot: Option<Box<[u8]>>,
    /// While claiming: discard what comes.
    pub(crate) discard: bool,
    /// While claiming: who is to have the session next.
    pub(crate) next_claim: Option<Claim>,
}

/// A session. Its size is what an idle one costs; what few need is behind a pointer.
#[derive(Debug)]
pub(crate) struct Session<P> {
    pub(crate) client_id: Arc<str>,
    pub(crate) protocol: P,
    pub(crate) subscriptions: KeyedList<Arc<str>, Subscription>,
    pub(crate) consumer: Option<ConsumerId>,
    pub(crate) origin: Origin,
    /// When it ends, while no consumer is connected.
    pub(crate) expires_at_ms: u64,
    /// When to look for expired messages, while no consumer is connected.
    pub(crate) sweep_at_ms: u64,
    /// The timer that is set.
    pub(crate) timer_ms: u64,
    pub(crate) pending_bytes: u64,
    pub(crate) will: Option<Box<SessionWill>>,
    pub(crate) rare: Option<Box<Rare>>,
    pub(crate) pending: List,
    pub(crate) ledger: List,
    /// Of the pending entries: copies that a new subscription asked for.
    pub(crate) retained_pending: u32,
    pub(crate) next_sequence: u32,
    pub(crate) generation: u32,
    pub(crate) attendance: u32,
    /// Its number in the routing index, or [`NIL`] before its first subscription.
    pub(crate) subscriber: u32,
    pub(crate) expiry_s: u32,
    pub(crate) state: State,
    pub(crate) is_parked: bool,
    /// Whether it is in the list of ready sessions.
    pub(crate) is_listed: bool,
    /// Whether the store knows it.
    pub(crate) is_stored: bool,
}

impl<P: Default> Session<P> {
    pub(crate) fn new(client_id: Arc<str>, generation: u32, state: State) -> Self {
        Self {
            origin: Origin::of_client(&client_id),
            client_id,
            protocol: P::default(),
            subscriptions: KeyedList::default(),
            consumer: None,
            expires_at_ms: NEVER_MS,
            sweep_at_ms: NEVER_MS,
            timer_ms: NEVER_MS,
            pending_bytes: 0,
            will: None,
            rare: None,
            pending: List::default(),
            ledger: List::default(),
            retained_pending: 0,
            next_sequence: 0,
            generation,
            attendance: generation,
            subscriber: NIL,
            expiry_s: 0,
            state,
            is_parked: false,
            is_listed: false,
            is_stored: false,
        }
    }
}

impl<P> Session<P> {
    pub(crate) const fn key(&self, slot: u32) -> SessionKey {
        SessionKey {
            slot,
            generation: self.generation,
            attendance: self.attendance,
        }
    }

    pub(crate) const fn is_connected(&self) -> bool {
        self.consumer.is_some()
    }

    /// Whether it can take its next message.
    pub(crate) const fn is_ready(&self) -> bool {
        self.is_connected()
            && !self.is_parked
            && !self.pending.is_empty()
            && matches!(self.state, State::Active)
    }

    /// Whether messages for it can only wait: QoS 0 ones don't. A session on its way to its next
    /// consumer isn't away.
    pub(crate) const fn is_away(&self) -> bool {
        !self.is_connected() && matches!(self.state, State::Active)
    }

    /// What a new entry is tagged with before it lies anywhere.
    pub(crate) fn next_tag(&mut self) -> u64 {
        // Zero is the tag of QoS 0 deliveries, so the count starts at one.
        self.next_sequence = self.next_sequence.wrapping_add(1).max(1);
        (u64::from(self.next_sequence) << 32) | u64::from(NIL)
    }

    /// When something is to be done while no consumer is connected.
    pub(crate) fn deadline_ms(&self) -> u64 {
        if !self.is_away() {
            return NEVER_MS;
        }
        let will_ms = self.will.as_ref().map_or(NEVER_MS, |will| will.due_ms);
        self.expires_at_ms.min(self.sweep_at_ms).min(will_ms)
    }

    pub(crate) fn rare_mut(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// Where a sent entry lies that isn't where its tag says.
    pub(crate) fn rehomed(&self, tag: u64) -> Option<u32> {
        self.rare.as_ref()?.rehomed.get(&tag).copied()
    }

    pub(crate) fn forget_rehomed(&mut self, tag: u64) {
        if let Some(rare) = &mut self.rare {
            rare.rehomed.remove(&tag);
            if rare.rehomed.is_empty()
                && rare.snapshot.is_none()
                && !rare.discard
                && rare.next_claim.is_none()
            {
                self.rare = None;
            }
        }
    }
}
