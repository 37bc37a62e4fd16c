//! A session's state.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::account::Account;
use crate::api::{ConsumerId, DoorState, Selector, SessionKey};
use crate::cursor::Reader;
use crate::far_group::group_of_root;
use crate::list::KeyedList;
use crate::mail::Claim;
use crate::message::{Message, Origin};
use crate::name::SessionName;
use crate::nodes::{List, NIL};
use crate::records::SubscriptionRecord;
use crate::rights::{Endpoint, Holder};
use crate::route::{Context, Rest, RouteFlags};
use crate::store::Record;
use crate::weight::Weight;
use crate::will::SessionWill;

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
    /// Its record; messages before the position `since` are not its.
    pub(crate) fn stored(&self, since: u64) -> SubscriptionRecord {
        SubscriptionRecord {
            flags: self.flags,
            since,
            identifier: self
                .context
                .as_ref()
                .and_then(|context| context.identifiers.first().copied()),
            rest: self.rest(),
        }
    }

    /// The absence of its right, if its client does not have all that changed meanwhile.
    pub(crate) fn rest(&self) -> Option<Rest> {
        self.context.as_ref()?.rest
    }

    /// Whether it has no right.
    pub(crate) fn is_resting(&self) -> bool {
        (self.context.as_ref()).is_some_and(|context| context.is_resting())
    }

    /// Whether it delivers the same messages in the same way as another.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let options = |one: &Self| SubscriptionRecord {
            rest: None,
            ..one.stored(0)
        };
        options(self) == options(other) && self.is_resting() == other.is_resting()
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

/// The messages that one group has granted to a consumer which takes messages on demand.
#[derive(Debug)]
pub(crate) struct DemandShare {
    pub(crate) group: u32,
    /// Messages that the group may assign, has on their way, or has assigned and are pending here.
    pub(crate) outstanding: u32,
    /// Of these, the messages that are pending here.
    pub(crate) pending: u32,
    /// Requests to the group to take back unassigned messages that it has yet to answer.
    pub(crate) recalls: u32,
}

/// The demand of a consumer that takes messages on demand.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    /// Messages it would take now.
    pub(crate) credit: u32,
    /// Requests of the consumer to be told when all that was assigned is here.
    pub(crate) drains: u32,
    /// Groups are granted nothing until the consumer says again what it takes.
    pub(crate) is_withheld: bool,
    /// The session holds as many bytes as it may: groups are granted no more than what is pending.
    pub(crate) is_full: bool,
    pub(crate) shares: Vec<DemandShare>,
}

impl Demand {
    pub(crate) fn outstanding(&self) -> u32 {
        let each = self.shares.iter().map(|share| share.outstanding);
        each.fold(0, u32::saturating_add)
    }

    pub(crate) fn pending(&self) -> u32 {
        self.shares.iter().map(|share| share.pending).sum()
    }

    /// The most messages that groups may be granted in all.
    pub(crate) fn grantable(&self) -> u32 {
        if self.is_full {
            self.credit.min(self.pending())
        } else {
            self.credit
        }
    }

    pub(crate) fn share_mut(&mut self, group: u32) -> Option<&mut DemandShare> {
        self.shares.iter_mut().find(|share| share.group == group)
    }

    /// Notes that a message was handed out; true where what groups may assign is to be looked at.
    pub(crate) fn handed_out(&mut self, group: u32) -> bool {
        self.credit = self.credit.saturating_sub(1);
        if let Some(share) = self.share_mut(group) {
            share.pending = share.pending.saturating_sub(1);
            share.outstanding = share.outstanding.saturating_sub(1);
            debug_assert!(
                share.pending <= share.outstanding,
                "what is pending was granted"
            );
        }
        self.is_full || self.outstanding() > self.credit
    }
}

/// How far a browser of a kept queue has come.
#[derive(Debug)]
pub(crate) struct Browsing {
    pub(crate) group: u32,
    /// The tag of the last message that it has seen.
    pub(crate) after: Option<u64>,
    /// Messages that it has asked for and has no answer about.
    pub(crate) asked: u32,
    /// Of the answer: messages about which its selector is still to be asked.
    pub(crate) rest: VecDeque<Arc<Message>>,
}

/// Fields that few sessions have.
#[derive(Debug, Default)]
pub(crate) struct Rare {
    /// Where sent entries lie whose tags don't say it, because the session has moved.
    pub(crate) rehomed: FxHashMap<u64, u32>,
    /// The keys of the records that the front door keeps.
    pub(crate) kept: Vec<Box<[u8]>>,
    /// Those that a store had, until the front door takes them.
    pub(crate) restored: Vec<Record>,
    /// When to look for expired messages, while no consumer is connected.
    pub(crate) sweep_at_ms: Option<u64>,
    /// In a cluster: number of its last publication of QoS 2 that went to the log; 0 before the first.
    pub(crate) rounds: u64,
    /// Whether its consumer has more to send that is not in the queue.
    pub(crate) has_more: bool,
    /// The demand of its consumer, if that states one.
    pub(crate) demand: Option<Box<Demand>>,
    /// Which messages its consumer wants, if not all.
    pub(crate) selector: Option<Arc<dyn Selector>>,
    /// From where its client speaks, or has spoken last, if rules look at that.
    pub(crate) endpoint: Option<Endpoint>,
    /// The queue that its consumer browses.
    pub(crate) browsing: Option<Box<Browsing>>,
    /// Whether one of its shared subscriptions has lost its right since its consumer came.
    pub(crate) has_resting_group: bool,
    /// While claiming: filters whose subscriptions have ended for everybody.
    pub(crate) ended_filters: Vec<Arc<str>>,
    /// While claiming: the first position of the log that had no room here.
    pub(crate) missed_from: Option<u64>,
    /// While claiming: discard what comes.
    pub(crate) discard: bool,
    /// While claiming: the client has gone that has claimed it, and other nodes know of its will.
    pub(crate) is_will_other: bool,
    /// While claiming: who is to have the session next.
    pub(crate) next_claim: Option<Claim>,
}

impl Rare {
    pub(crate) fn is_empty(&self) -> bool {
        self.rehomed.is_empty()
            && self.kept.is_empty()
            && self.restored.is_empty()
            && self.sweep_at_ms.is_none()
            && self.rounds == 0
            && !self.has_more
            && self.demand.is_none()
            && self.selector.is_none()
            && self.endpoint.is_none()
            && self.browsing.is_none()
            && !self.has_resting_group
            && self.ended_filters.is_empty()
            && self.missed_from.is_none()
            && !self.discard
            && !self.is_will_other
            && self.next_claim.is_none()
    }
}

/// The number of no consumer.
const NO_CONSUMER: u64 = u64::MAX;

/// A session. Its size is what an idle one costs; what few need is behind a pointer.
#[derive(Debug)]
pub(crate) struct BrokerSession<P> {
    pub(crate) name: SessionName,
    pub(crate) protocol: P,
    pub(crate) subscriptions: KeyedList<Arc<str>, Subscription>,
    /// Its consumer's number, or [`NO_CONSUMER`]: half the size of an `Option`.
    consumer: u64,
    pub(crate) origin: Origin,
    /// When it ends, while no consumer is connected.
    pub(crate) expires_at_ms: u64,
    /// The timer that is set.
    pub(crate) timer_ms: u64,
    pub(crate) account: Account,
    /// How it reads the log; `None` where it ends with its connection, or nothing is kept.
    pub(crate) reader: Option<Box<Reader>>,
    pub(crate) will: Option<Box<SessionWill>>,
    pub(crate) rare: Option<Box<Rare>>,
    pub(crate) pending: List,
    pub(crate) ledger: List,
    pub(crate) next_sequence: u32,
    pub(crate) generation: u32,
    pub(crate) attendance: u32,
    /// Its number in the routing index, or [`NIL`] before its first subscription.
    pub(crate) subscriber: u32,
    pub(crate) expiry_s: u32,
    /// The number of the rules by which it was judged last.
    pub(crate) judged_by: u32,
    pub(crate) weight: Weight,
    pub(crate) state: State,
    pub(crate) is_parked: bool,
    /// Whether its ledger has no room for what is to be sent next.
    pub(crate) is_blocked: bool,
    /// Whether what is to be sent next waits until the store has it, or for the next turn, when its consumer's selector
    /// is asked about it.
    pub(crate) is_held: bool,
    /// Whether its consumer knows messages of the log by their places.
    pub(crate) names_places: bool,
    /// Whether it is in the list of ready sessions.
    pub(crate) is_listed: bool,
    /// Whether the store knows it.
    pub(crate) is_stored: bool,
    /// Whether its consumer says how many messages it takes.
    pub(crate) is_on_demand: bool,
}

impl<P: DoorState> BrokerSession<P> {
    pub(crate) fn new(name: SessionName, generation: u32, state: State) -> Self {
        Self {
            origin: Origin::of_client(name.text()),
            name,
            protocol: P::default(),
            subscriptions: KeyedList::default(),
            consumer: NO_CONSUMER,
            expires_at_ms: NEVER_MS,
            timer_ms: NEVER_MS,
            account: Account::default(),
            reader: None,
            will: None,
            rare: None,
            pending: List::default(),
            ledger: List::default(),
            next_sequence: 0,
            generation,
            attendance: generation,
            subscriber: NIL,
            expiry_s: 0,
            judged_by: 0,
            weight: Weight::NEW,
            state,
            is_parked: false,
            is_blocked: false,
            is_held: false,
            names_places: false,
            is_listed: false,
            is_stored: false,
            is_on_demand: false,
        }
    }
}

impl<P> BrokerSession<P> {
    pub(crate) const fn key(&self, slot: u32) -> SessionKey {
        SessionKey {
            slot,
            generation: self.generation,
            attendance: self.attendance,
        }
    }

    /// The consumer that reads its queue.
    pub(crate) fn consumer(&self) -> Option<ConsumerId> {
        Some(ConsumerId(self.consumer)).filter(|_| self.is_connected())
    }

    /// Whether it is the root of a shared subscription of the cluster.
    pub(crate) fn is_root(&self) -> bool {
        group_of_root(&self.name).is_some()
    }

    pub(crate) fn set_consumer(&mut self, consumer: Option<ConsumerId>) {
        self.consumer = consumer.map_or(NO_CONSUMER, |consumer| consumer.0);
        debug_assert_eq!(self.consumer(), consumer, "a number stands for nobody");
    }

    pub(crate) fn take_consumer(&mut self) -> Option<ConsumerId> {
        let consumer = self.consumer();
        self.set_consumer(None);
        consumer
    }

    pub(crate) const fn is_connected(&self) -> bool {
        self.consumer != NO_CONSUMER
    }

    pub(crate) const fn is_active(&self) -> bool {
        matches!(self.state, State::Active)
    }

    /// Whether its consumer has more to send that is not in the queue.
    pub(crate) fn has_more(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.has_more)
    }

    /// Notes whether its consumer has more to send that is not in the queue.
    pub(crate) fn set_has_more(&mut self, has_more: bool) {
        if has_more {
            self.rare_mut().has_more = true;
        } else if let Some(rare) = &mut self.rare
            && rare.has_more
        {
            rare.has_more = false;
            self.drop_rare_if_empty();
        }
    }

    /// Whether it can take its next message.
    pub(crate) fn is_ready(&self) -> bool {
        let may_take = !self.is_blocked && !self.is_held && !self.pending.is_empty();
        self.is_connected()
            && !self.is_parked
            && (may_take || self.has_more())
            && matches!(self.state, State::Active)
    }

    /// Whether messages for it can only wait: QoS 0 ones don't. A session on its way to its next
    /// consumer isn't away.
    pub(crate) const fn is_away(&self) -> bool {
        !self.is_connected() && matches!(self.state, State::Active)
    }

    /// The tag of a new entry before it lies anywhere.
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
        self.expires_at_ms.min(self.sweep_at_ms()).min(will_ms)
    }

    /// Its holder, as rules ask.
    pub(crate) fn holder(&self) -> Holder<'_> {
        Holder {
            client_id: self.name.id(),
            owner: self.name.user(),
            endpoint: self.endpoint(),
        }
    }

    /// When to look for expired messages, while no consumer is connected.
    pub(crate) fn sweep_at_ms(&self) -> u64 {
        let sweep_at_ms = self.rare.as_ref().and_then(|rare| rare.sweep_at_ms);
        sweep_at_ms.unwrap_or(NEVER_MS)
    }

    /// Sets when to look for expired messages.
    pub(crate) fn set_sweep(&mut self, at_ms: u64) {
        if at_ms != NEVER_MS {
            self.rare_mut().sweep_at_ms = Some(at_ms);
        } else if let Some(rare) = &mut self.rare {
            rare.sweep_at_ms = None;
            self.drop_rare_if_empty();
        }
    }

    /// From where its client speaks, or has spoken last, if rules look at that.
    pub(crate) fn endpoint(&self) -> Option<Endpoint> {
        self.rare.as_ref()?.endpoint
    }

    pub(crate) fn rare_mut(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// Where a sent entry lies that isn't where its tag says.
    pub(crate) fn rehomed(&self, tag: u64) -> Option<u32> {
        self.rare.as_ref()?.rehomed.get(&tag).copied()
    }

    pub(crate) fn forget_rehomed(&mut self, tag: u64) {
        if let Some(rare) = &mut self.rare
            && !rare.rehomed.is_empty()
        {
            rare.rehomed.remove(&tag);
            self.drop_rare_if_empty();
        }
    }

    fn drop_rare_if_empty(&mut self) {
        if self.rare.as_ref().is_some_and(|rare| rare.is_empty()) {
            self.rare = None;
        }
    }

    /// Ends what its consumer took on demand, with its connection.
    pub(crate) fn end_demand(&mut self) {
        if self.is_on_demand
            && let Some(rare) = &mut self.rare
        {
            rare.demand = None;
            rare.browsing = None;
            self.drop_rare_if_empty();
        }
    }

    /// How far it has come with browsing; `None` where it does not browse.
    pub(crate) fn browsing_mut(&mut self) -> Option<&mut Browsing> {
        self.rare.as_mut()?.browsing.as_deref_mut()
    }

    /// The demand of its consumer; `None` where that states none.
    pub(crate) fn demand_mut(&mut self) -> Option<&mut Demand> {
        if !self.is_on_demand {
            return None;
        }
        self.rare.as_mut()?.demand.as_deref_mut()
    }

    /// Notes that a group has assigned it a message; false where it was not granted any.
    pub(crate) fn may_be_assigned(&mut self, group: u32) -> bool {
        if !self.is_on_demand {
            return true;
        }
        let share = self.demand_mut().and_then(|demand| demand.share_mut(group));
        share.is_some_and(|share| {
            let is_granted = share.pending < share.outstanding;
            share.pending += u32::from(is_granted);
            is_granted
        })
    }

    /// Sets how a new consumer takes messages, and which.
    pub(crate) fn set_taste(&mut self, on_demand: bool, selector: Option<Arc<dyn Selector>>) {
        self.is_on_demand = on_demand;
        if on_demand || selector.is_some() {
            let rare = self.rare_mut();
            rare.demand = on_demand.then(Box::default);
            rare.selector = selector;
        } else if let Some(rare) = &mut self.rare {
            rare.demand = None;
            rare.selector = None;
            self.drop_rare_if_empty();
        }
    }

    pub(crate) fn selector(&self) -> Option<&Arc<dyn Selector>> {
        self.rare.as_ref()?.selector.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Allocators have a class of 256 bytes, and the next one of 320. State of the front door takes 72 of them.
    #[test]
    fn a_session_is_small_enough_for_its_class_of_the_allocator() {
        assert_eq!(size_of::<BrokerSession<[u64; 9]>>(), 256);
    }
}
