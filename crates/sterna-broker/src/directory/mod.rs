//! The state that all shards share.
//!
//! It has three things, each behind a short lock. They are the log of route updates that every shard's index
//! follows, the retained messages, and the registry. The registry knows which shard has which client's session.

mod appends;
mod full_queues;
mod judging;
mod log;
mod principals;
mod registry;
mod retained;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

pub(crate) use appends::Appends;
use full_queues::FullQueues;
use judging::Judging;
pub(crate) use log::Log;
pub(crate) use principals::{Entered, Name};
pub use principals::{Principal, Principals, network_of};
use registry::Registry;
pub(crate) use registry::{Claimed, Owner};
use retained::Retained;
pub(crate) use retained::RetainedBy;

use crate::api::{Retention, ShardId};
use crate::eras::Eras;
use crate::hash::KeyedState;
use crate::holding::Holds;
use crate::limits::Limits;
use crate::message::{Gauge, Message};
use crate::name::SessionName;
use crate::outbox::OnWay;
use crate::pressure::Pressure;
use crate::route::{Rest, RouteUpdate};

/// Places of retained messages that are moved at a time, while nobody else reads them.
const GATHERED_PLACES: usize = 256;

/// Shared by all shards: the route log, retained messages, the registry of sessions.
///
/// Every shard counted in `shards` must have its [`Broker`](crate::Broker) and carry its mail:
/// a session changes shards only when all have answered.
#[derive(Debug)]
pub struct Directory {
    limits: Limits,
    shards: u16,
    hashing: KeyedState,
    log: Mutex<Log>,
    appends: Mutex<Appends>,
    /// The log's length since the start. Set under the log's lock.
    head: AtomicU64,
    retained: RwLock<Retained>,
    /// When the first retained message expires; `u64::MAX` if none does.
    retained_deadline_ms: AtomicU64,
    registry: Registry,
    /// When the first shard restored what a store had, in milliseconds since the Unix epoch.
    started_ms: OnceLock<u64>,
    eras: OnceLock<Eras>,
    sessions: AtomicUsize,
    subscriptions: AtomicUsize,
    packed_sessions: AtomicUsize,
    packed_subscriptions: AtomicUsize,
    will_bytes: AtomicUsize,
    principals: Principals,
    pressure: AtomicU8,
    openings: AtomicU32,
    /// How often a limit of all principals was met.
    limit_hits: AtomicU32,
    gauges: Box<[Arc<Gauge>]>,
    /// Of messages that were read in the log.
    read_gauges: Box<[Arc<Gauge>]>,
    on_way: OnWay,
    holds: Arc<Holds>,
    /// Whether the first shard is to learn of every change of routes, for other nodes.
    is_clustered: AtomicBool,
    full_queues: FullQueues,
    judging: Judging,
}

/// A thread that panicked under a lock has left consistent data: every update is complete before anything
/// that can panic.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a limit holds for what is to be counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    /// It is new: it is refused beyond the limit.
    Limited,
    /// A store has it. It was admitted before a restart, and a limit that was lowered since does not end it.
    Restored,
}

impl Admission {
    const fn limit(self, limit: usize) -> usize {
        match self {
            Self::Limited => limit,
            Self::Restored => usize::MAX,
        }
    }
}

/// Meetings with limits of which one looks for the heaviest principal.
const JUDGED_HITS: u32 = 16;

/// Adds to a counter unless the sum would exceed the limit.
fn add_within(counter: &AtomicUsize, amount: usize, limit: usize) -> bool {
    counter
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
            count.checked_add(amount).filter(|&sum| sum <= limit)
        })
        .is_ok()
}

impl Directory {
    /// The time of the start, in milliseconds since the Unix epoch: that of the first shard that asks.
    pub(crate) fn started_ms(&self, now_ms: u64) -> u64 {
        *self.started_ms.get_or_init(|| now_ms)
    }

    /// How far the shards are with judging their sessions.
    pub(crate) const fn judging(&self) -> &Judging {
        &self.judging
    }

    /// Times for which the node's clock was behind, by which shards date what they restore. To be set before that; only
    /// the first call counts.
    pub fn set_eras(&self, eras: Eras) {
        let _ = self.eras.set(eras);
    }

    /// Times for which the node's clock was behind.
    pub fn eras(&self) -> &Eras {
        self.eras.get_or_init(Eras::default)
    }

    /// A directory for this number of shards. `hash_seed` keys the hash tables that clients' strings go into; it
    /// should be random, except where a run must be repeatable.
    #[must_use]
    pub fn new(shards: u16, limits: Limits, hash_seed: u64) -> Arc<Self> {
        let shards = shards.max(1);
        let hashing = KeyedState::new(hash_seed);
        Arc::new(Self {
            principals: Principals::new(limits.principals, hashing),
            limits,
            shards,
            hashing,
            log: Mutex::new(Log::new(shards, hashing)),
            appends: Mutex::default(),
            head: AtomicU64::new(0),
            retained: RwLock::new(Retained::new(hashing)),
            retained_deadline_ms: AtomicU64::new(u64::MAX),
            registry: Registry::new(hashing),
            started_ms: OnceLock::new(),
            eras: OnceLock::new(),
            sessions: AtomicUsize::new(0),
            subscriptions: AtomicUsize::new(0),
            packed_sessions: AtomicUsize::new(0),
            packed_subscriptions: AtomicUsize::new(0),
            will_bytes: AtomicUsize::new(0),
            pressure: AtomicU8::new(0),
            openings: AtomicU32::new(0),
            limit_hits: AtomicU32::new(0),
            gauges: (0..shards).map(|_| Arc::default()).collect(),
            read_gauges: (0..shards).map(|_| Arc::default()).collect(),
            on_way: OnWay::new(shards),
            holds: Arc::new(Holds::new(shards)),
            is_clustered: AtomicBool::new(false),
            full_queues: FullQueues::new(hashing),
            judging: Judging::new(shards),
        })
    }

    /// The messages that are on their way from shard to shard.
    pub(crate) fn on_way(&self) -> OnWay {
        self.on_way.clone()
    }

    /// The readers that hold publishers.
    pub(crate) fn holds(&self) -> Arc<Holds> {
        Arc::clone(&self.holds)
    }

    /// The limits that hold for all shards.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Notes until when a queue of the cluster is full, as its root of an epoch says; zero where it is not.
    pub(crate) fn set_queue_full(&self, filter: &Arc<str>, epoch: u64, until_ms: u64) {
        self.full_queues.set(filter, epoch, until_ms);
    }

    /// Whether a queue of the cluster may be full.
    pub(crate) fn has_full_queues(&self) -> bool {
        self.full_queues.is_some()
    }

    /// Whether a queue of the cluster that takes messages of a topic is full.
    pub(crate) fn is_queue_full(&self, now_ms: u64, topic: &str) -> bool {
        self.full_queues.is_for_full(now_ms, topic)
    }

    /// How many shards there are.
    #[must_use]
    pub const fn shards(&self) -> u16 {
        self.shards
    }

    /// Retained messages and the bytes of their bodies.
    #[must_use]
    pub fn retained(&self) -> (usize, usize) {
        let retained = self.retained.read().unwrap_or_else(PoisonError::into_inner);
        (retained.len(), retained.bytes())
    }

    /// The same, without the broker's reports about itself: limits count these alone.
    #[must_use]
    pub fn retained_of_clients(&self) -> (usize, usize) {
        let retained = self.retained.read().unwrap_or_else(PoisonError::into_inner);
        retained.of_clients()
    }

    /// Bytes that the topics of retained messages take, beyond those of short topics.
    #[must_use]
    pub fn retained_topic_bytes(&self) -> usize {
        let retained = self.retained.read().unwrap_or_else(PoisonError::into_inner);
        retained.topic_bytes()
    }

    /// Sessions on all shards.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.load(Ordering::Relaxed)
    }

    /// Subscriptions on all shards.
    #[must_use]
    pub fn subscriptions(&self) -> usize {
        self.subscriptions.load(Ordering::Relaxed)
    }

    /// The holders of memory: users and networks.
    #[must_use]
    pub const fn principals(&self) -> &Principals {
        &self.principals
    }

    /// Of the sessions on all shards, those that are away and take least memory, and their subscriptions.
    #[must_use]
    pub fn packed(&self) -> (usize, usize) {
        let sessions = self.packed_sessions.load(Ordering::Relaxed);
        (sessions, self.packed_subscriptions.load(Ordering::Relaxed))
    }

    /// Counts a session that was packed, with its number of subscriptions.
    pub(crate) fn add_packed(&self, subscriptions: usize) {
        self.packed_sessions.fetch_add(1, Ordering::Relaxed);
        (self.packed_subscriptions).fetch_add(subscriptions, Ordering::Relaxed);
    }

    /// Counts a session that was unpacked, with its number of subscriptions.
    pub(crate) fn remove_packed(&self, subscriptions: usize) {
        self.packed_sessions.fetch_sub(1, Ordering::Relaxed);
        (self.packed_subscriptions).fetch_sub(subscriptions, Ordering::Relaxed);
    }

    /// Bytes of all message bodies that are alive: queued, sent and not settled, or retained.
    #[must_use]
    pub fn message_bytes(&self) -> u64 {
        self.all_gauges().map(|gauge| gauge.bytes()).sum()
    }

    /// Of these, bytes of the latest messages of the log, which are at hand for all shards.
    #[must_use]
    pub fn latest_bytes(&self) -> u64 {
        self.appends().bytes() as u64
    }

    /// Messages whose bodies count once in this sum, however many queues have them. Those of one queue alone are in
    /// [`Counters::alone_messages`](crate::Counters::alone_messages).
    #[must_use]
    pub fn shared_messages(&self) -> u64 {
        self.all_gauges().map(|gauge| gauge.messages()).sum()
    }

    /// Says how short the process is of memory. Each shard's broker takes note in
    /// [`Broker::feel_pressure`](crate::Broker::feel_pressure).
    pub fn set_pressure(&self, pressure: Pressure) {
        self.pressure.store(pressure as u8, Ordering::Relaxed);
    }

    /// How short the process is of memory.
    #[must_use]
    pub fn pressure(&self) -> Pressure {
        Pressure::of_number(self.pressure.load(Ordering::Relaxed))
    }

    /// Bytes of the wills of all clients.
    #[must_use]
    pub fn will_bytes(&self) -> usize {
        self.will_bytes.load(Ordering::Relaxed)
    }

    /// The shard that a client's session is on, or is moving to.
    #[must_use]
    pub fn shard_of(&self, name: &SessionName) -> Option<ShardId> {
        self.owner(name).map(|owner| ShardId(owner.shard))
    }

    pub(crate) fn owner(&self, name: &SessionName) -> Option<Owner> {
        self.registry.owner(name)
    }

    /// The name with this text; the registry's own where there is a session of that name. `None` for what is no name's text.
    pub(crate) fn shared_name(&self, text: &str) -> Option<SessionName> {
        (self.registry.name(text)).or_else(|| SessionName::of_text(text))
    }

    /// Whether there are other nodes.
    pub(crate) fn is_clustered(&self) -> bool {
        self.is_clustered.load(Ordering::Relaxed)
    }

    pub(crate) fn set_clustered(&self) {
        self.is_clustered.store(true, Ordering::Relaxed);
    }

    pub(crate) const fn hashing(&self) -> KeyedState {
        self.hashing
    }

    fn all_gauges(&self) -> impl Iterator<Item = &Arc<Gauge>> {
        self.gauges.iter().chain(&self.read_gauges)
    }

    /// Counts what a shard has read in the log.
    pub(crate) fn read_gauge(&self, shard: u16) -> Arc<Gauge> {
        Arc::clone(&self.read_gauges[usize::from(shard) % self.read_gauges.len()])
    }

    pub(crate) fn gauge(&self, shard: u16) -> Arc<Gauge> {
        Arc::clone(&self.gauges[usize::from(shard) % self.gauges.len()])
    }

    /// A number that no other opening of a session has (within four billion).
    pub(crate) fn next_opening(&self) -> u32 {
        self.openings
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add(1)
    }

    /// The end of the log. A holder of it may take the other locks, never the other way round.
    pub(crate) fn appends(&self) -> MutexGuard<'_, Appends> {
        locked(&self.appends)
    }

    // The route log.

    /// How many updates there have been.
    pub(crate) fn head(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }

    /// Changes the log. Returns also the log's new length, and the shards that are far behind and
    /// are to be told, each once.
    pub(crate) fn edit_log<R>(&self, edit: impl FnOnce(&mut Log) -> R) -> (R, u64, Vec<u16>) {
        let mut log = locked(&self.log);
        let result = edit(&mut log);
        let head = log.head();
        let behind = log.behind(self.limits.route_backlog as u64);
        self.head.store(head, Ordering::Release);
        (result, head, behind)
    }

    /// Whether a shared subscription's queue is kept.
    pub(crate) fn keeps_queue(&self, filter: &str) -> bool {
        locked(&self.log).keeps_queue(filter)
    }

    /// The number of a shared subscription, by its whole filter; `None` where there is none.
    pub(crate) fn group(&self, filter: &str) -> Option<u32> {
        locked(&self.log).group(filter)
    }

    /// Copies to `updates` what a shard hasn't seen up to a position, and notes that it has.
    pub(crate) fn read_log(&self, shard: u16, up_to: u64, updates: &mut Vec<RouteUpdate>) {
        locked(&self.log).read(shard, up_to, updates);
    }

    // Retained messages.

    /// Moves retained messages together, those of a part of the places from one on, so that pages come free on which they are
    /// alone. Nobody else reads them meanwhile. `settle` has the allocator forget what it keeps for this thread. Returns the
    /// place to go on at; `None` at the end.
    pub fn gather_retained(&self, from: usize, settle: &dyn Fn()) -> Option<usize> {
        let retained = self.retained.write();
        let mut retained = retained.unwrap_or_else(PoisonError::into_inner);
        let has_more = retained.gather(from, GATHERED_PLACES, settle);
        has_more.then_some(from + GATHERED_PLACES)
    }

    /// Changes the retained messages. Their holders have places meanwhile, and keep them where they hold some.
    fn edit_retained<R>(&self, edit: impl FnOnce(&mut Retained) -> R) -> R {
        let mut retained = self
            .retained
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let result = edit(&mut retained);
        retained.settle_holders(&self.principals);
        self.retained_deadline_ms
            .store(retained.deadline_ms(), Ordering::Relaxed);
        result
    }

    /// Sets, replaces or clears a topic's retained message. The second value is the length of the route log
    /// at that moment. The publisher matches subscriptions up to there. A subscriber whose subscription is
    /// later finds the message among the retained ones. So each subscriber gets it one way, and none gets
    /// it both ways.
    pub(crate) fn retain(
        &self,
        message: &Arc<Message>,
        by: RetainedBy,
        admission: Admission,
    ) -> (Retention, u64) {
        self.edit_retained(|retained| {
            let head = self.head();
            let is_limited = admission == Admission::Limited;
            let limits = is_limited.then_some((&self.limits, self.pressure()));
            (retained.set(message, by, head, limits), head)
        })
    }

    /// Sets or clears the retained messages of topics, if `keep` does not fail. Returns the result of each, and the
    /// route log's length then. Nobody reads a retained message meanwhile.
    ///
    /// # Errors
    /// That of `keep`; then all is as it was before.
    pub(crate) fn retain_together<E>(
        &self,
        messages: &[Arc<Message>],
        by: RetainedBy,
        keep: impl FnOnce(&[Retention]) -> Result<(), E>,
    ) -> Result<(Vec<Retention>, u64), E> {
        self.edit_retained(|retained| {
            let head = self.head();
            let limits = Some((&self.limits, self.pressure()));
            let mut before = Vec::with_capacity(messages.len());
            let mut retentions = Vec::with_capacity(messages.len());
            for message in messages {
                before.push(retained.get(message.topic()));
                retentions.push(retained.set(message, by, head, limits));
            }
            let kept = keep(&retentions);
            if kept.is_err() {
                for (message, before) in messages.iter().zip(before).rev() {
                    retained.put_back(message.topic(), before);
                }
            }
            kept.map(|()| (retentions, head))
        })
    }

    /// Removes a topic's retained message; false where there was none.
    pub(crate) fn clear_retained(&self, topic: &str) -> bool {
        self.edit_retained(|retained| retained.remove(topic).is_some())
    }

    /// Retained messages that a principal holds, and their bytes, as [`Limits::retained_bytes`] counts them.
    #[must_use]
    pub fn retained_by(&self, principal: Principal) -> (usize, u64) {
        let retained = self.retained.read().unwrap_or_else(PoisonError::into_inner);
        retained.held_by(principal)
    }

    /// Looks at all retained messages; see [`Broker::check`](crate::Broker::check).
    pub(crate) fn check_retained(&self) {
        let retained = self.retained.read().unwrap_or_else(PoisonError::into_inner);
        retained.check(&self.principals);
    }

    /// The retained messages of a filter that were set before the route log had this length, and how many places it has
    /// looked at.
    pub(crate) fn retained_before(
        &self,
        filter: &str,
        wild: bool,
        length: u64,
        now_ms: u64,
        limit: usize,
    ) -> (Vec<Arc<Message>>, usize) {
        let retained = self.retained.read().unwrap_or_else(PoisonError::into_inner);
        retained.find(filter, wild, length, now_ms, limit)
    }

    /// The retained messages of a filter that changed while a subscription to it had no right, and before the route log
    /// had this length.
    pub(crate) fn retained_changed(
        &self,
        filter: &str,
        wild: bool,
        (rest, length): (Rest, u64),
        now_ms: u64,
        limit: usize,
    ) -> (Vec<Arc<Message>>, usize) {
        let retained = self.retained.read().unwrap_or_else(PoisonError::into_inner);
        retained.find_changed(filter, wild, (rest, length), now_ms, limit)
    }

    /// Retained messages of a filter: up to `limit` after the first `skip`, and whether there are more.
    pub(crate) fn retained_page(
        &self,
        filter: &str,
        wild: bool,
        now_ms: u64,
        skip: usize,
        limit: usize,
    ) -> (Vec<Arc<Message>>, bool) {
        let retained = self.retained.read().unwrap_or_else(PoisonError::into_inner);
        retained.page(filter, wild, now_ms, skip, limit)
    }

    /// Drops retained messages whose time is over, `most` of them at most, and returns them.
    pub(crate) fn expire_retained(&self, now_ms: u64, most: usize) -> Vec<Arc<Message>> {
        if self.retained_deadline_ms() > now_ms {
            return Vec::new();
        }
        self.edit_retained(|retained| retained.expire(now_ms, most))
    }

    pub(crate) fn retained_deadline_ms(&self) -> u64 {
        self.retained_deadline_ms.load(Ordering::Relaxed)
    }

    // The registry and the counts that have limits.

    /// Registers a shard as the owner of a session, which a principal holds. A new one is only registered where its user
    /// has fewer than this number, and the principal may grow.
    pub(crate) fn claim(
        &self,
        (name, principal): (&SessionName, Principal),
        shard: u16,
        (admission, most_of_user): (Admission, Option<u32>),
        make: impl FnOnce() -> Owner,
    ) -> Claimed {
        (self.registry).claim(name, most_of_user, shard, make, || {
            let limit = self.limits.sessions;
            self.add(&self.sessions, 1, limit, (admission, principal))
        })
    }

    /// Registers another session of the same client on the same shard; false where another shard has
    /// registered meanwhile.
    pub(crate) fn reregister(&self, name: &SessionName, old: Owner, new: Owner) -> bool {
        self.registry.replace(name, old, new)
    }

    /// Forgets a session, unless it has another owner by now. Returns whether it was forgotten.
    pub(crate) fn unregister(&self, name: &SessionName, owner: Owner) -> bool {
        let is_removed = self.registry.remove(name, owner);
        if is_removed {
            self.sessions.fetch_sub(1, Ordering::Relaxed);
        }
        is_removed
    }

    /// Whether there is memory for what a principal has anew. It is admitted always where a store has it.
    fn admits(&self, admission: Admission, principal: Principal) -> bool {
        if admission != Admission::Limited {
            return true;
        }
        match self.pressure() {
            Pressure::None | Pressure::Settle => true,
            Pressure::MoveToLog | Pressure::Drop => !self.principals.is_burden(principal),
            Pressure::Refuse => false,
        }
    }

    /// Adds to a counter what a principal has anew, unless the sum would exceed the limit, or the principal may not
    /// grow. Above the limit there is an eighth more for who is not heavy: what others have taken stops nobody.
    fn add(
        &self,
        counter: &AtomicUsize,
        amount: usize,
        limit: usize,
        (admission, principal): (Admission, Principal),
    ) -> bool {
        if amount > 0 && !self.admits(admission, principal) {
            return false;
        }
        let limit = admission.limit(limit);
        if add_within(counter, amount, limit) {
            return true;
        }
        if principal == Principal::BROKER {
            return false;
        }
        if self
            .limit_hits
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(JUDGED_HITS)
        {
            self.principals.judge();
        }
        !self.principals.is_heavy(principal)
            && add_within(counter, amount, limit.saturating_add(limit / 8))
    }

    /// Counts a new subscription of a principal; false where there may not be another.
    pub(crate) fn add_subscription(&self, admission: Admission, principal: Principal) -> bool {
        let limit = self.limits.subscriptions;
        self.add(&self.subscriptions, 1, limit, (admission, principal))
    }

    /// Counts a subscription that has ended.
    pub(crate) fn remove_subscription(&self) {
        self.subscriptions.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn add_will(
        &self,
        bytes: usize,
        admission: Admission,
        principal: Principal,
    ) -> bool {
        let limit = self.limits.will_bytes;
        self.add(&self.will_bytes, bytes, limit, (admission, principal))
    }

    pub(crate) fn remove_will(&self, bytes: usize) {
        self.will_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}
