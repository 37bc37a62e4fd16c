//! State of AMQP that all shards share: queues, and the links of clients that are away.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;
use sterna_amqp::link::Unsettled;

use super::address::share_name;
use super::departed::{Deadline, Departed, Gauge, Most, state_bytes};
use super::exact::{ExactLinks, Forgotten};
use super::nodes::Nodes;
use super::owners::{Maker, Owners};
use crate::config::{self, Amqp};
use crate::giving_way::Owner;
use crate::mail::amqp::Place;
use crate::session::amqp::{is_dynamic, topic_of_queue};

/// A queue's rules for messages that receivers do not take, for priorities and for delays.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct DeliveryRules {
    /// Failed deliveries after which a message is a dead letter; `None` for any number.
    pub(super) maximum_deliveries: Option<u16>,
    /// The queue of its dead letters.
    pub(super) dead_letter: Option<Box<str>>,
    pub(super) has_priorities: bool,
    /// The longest time that a message is held until it is due.
    pub(super) maximum_delay_ms: u64,
}

impl DeliveryRules {
    /// The rules of a queue by the configuration, which may declare it.
    fn of(config: &Amqp, name: &str, declared: Option<&config::Queue>) -> Self {
        let maximum_deliveries = declared
            .and_then(|queue| queue.maximum_deliveries)
            .unwrap_or(config.queue_maximum_deliveries);
        let dead_letter = declared
            .and_then(|queue| queue.dead_letter.as_deref())
            .or(config.queue_dead_letter.as_deref())
            .filter(|other| !other.is_empty() && *other != name);
        // A queue of dead letters has nowhere to put those that it cannot deliver: it keeps them.
        let is_last = dead_letter.is_none() && config.dead_letters().any(|other| other == name);
        Self {
            maximum_deliveries: Some(maximum_deliveries).filter(|&most| most > 0 && !is_last),
            dead_letter: dead_letter.map(Into::into),
            has_priorities: declared
                .and_then(|queue| queue.priorities)
                .unwrap_or(config.queue_priorities),
            maximum_delay_ms: u64::from(config.queue_maximum_delay_s) * 1000,
        }
    }
}

/// Behind short locks, which only attaching and detaching take.
#[derive(Debug, Default)]
pub struct Registry {
    defaults: Amqp,
    queues: Mutex<FxHashMap<Box<str>, Queue>>,
    /// Taken while the queues are locked, or without them.
    owners: Mutex<Owners>,
    /// Bytes of queues that are made, as the account of memory counts them.
    queue_bytes: AtomicU64,
    suspended: Mutex<Suspended>,
    suspended_gauge: Gauge,
    /// Where clients' sending links are attached.
    places: Mutex<FxHashMap<LinkKey, Place>>,
    pub(super) exact: ExactLinks,
    pub(super) nodes: Nodes,
}

#[derive(Debug, Default)]
struct Suspended {
    links: FxHashMap<LinkKey, Remembered>,
    departed: Departed,
}

#[derive(Debug)]
struct Remembered {
    unsettled: Vec<Unsettled>,
    /// The append after which they are kept; 0 for none.
    token: u64,
    deadline: Deadline,
}

/// A client's sending link, wherever it connects.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct LinkKey {
    pub(super) user: Option<Box<str>>,
    pub(super) container: Box<str>,
    pub(super) name: Box<str>,
}

/// The result of a search for a queue by its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// There is such a queue.
    Here,
    /// There is none, and it may not be made.
    Absent,
    /// There are as many as there may be.
    TooMany,
    /// The user has made as many as one user may.
    TooManyOfUser,
    /// None is made while memory is short.
    MemoryShort,
}

/// One queue.
#[derive(Debug, Default)]
struct Queue {
    /// The filter of its messages; `None` for its own topic.
    filter: Option<Box<str>>,
    rules: DeliveryRules,
    /// Whether it has its anchor.
    is_made: bool,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    /// A registry that knows the queues of a configuration, whose anchors are yet to be made.
    #[must_use]
    pub fn new(config: &Amqp) -> Self {
        let this = Self {
            defaults: config.clone(),
            ..Self::default()
        };
        let mut queues = lock(&this.queues);
        for name in config.dead_letters() {
            queues.insert(name.into(), this.new_queue(name, None));
        }
        for queue in &config.queues {
            let declared = this.new_queue(&queue.name, Some(queue));
            queues.insert(queue.name.as_str().into(), declared);
        }
        drop(queues);
        this
    }

    fn new_queue(&self, name: &str, declared: Option<&config::Queue>) -> Queue {
        Queue {
            filter: declared.and_then(|queue| Some(queue.filter.as_deref()?.into())),
            rules: DeliveryRules::of(&self.defaults, name, declared),
            is_made: false,
        }
    }

    /// Takes up the records that a store has kept of clients' links, and of owners of queues. Other records are passed
    /// over.
    pub(crate) fn restore<'a>(
        &self,
        records: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
        now_ms: u64,
    ) {
        let remembered_ms = u64::from(self.defaults.suspended_link_timeout_s) * 1000;
        let keys = records.clone().map(|(key, _)| key);
        self.exact.restore(keys, now_ms + remembered_ms);
        let mut owners = lock(&self.owners);
        for (key, value) in records {
            owners.restore(key, value);
            self.nodes.restore(key, value);
        }
    }

    /// The names of all queues.
    pub(super) fn names(&self) -> Vec<Box<str>> {
        lock(&self.queues).keys().cloned().collect()
    }

    /// Queues and their shared subscriptions, by name: up to `limit` behind `after`, and whether there are
    /// more.
    pub(crate) fn page(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> (Vec<(Box<str>, String)>, bool) {
        let queues = lock(&self.queues);
        let mut found: Vec<_> = (queues.iter())
            .filter(|(name, queue)| queue.is_made && after.is_none_or(|after| &***name > after))
            .collect();
        found.sort_unstable_by_key(|(name, _)| *name);
        let has_more = found.len() > limit;
        let page = found.into_iter().take(limit);
        let page = page.map(|(name, queue)| (name.clone(), shared_subscription(name, queue)));
        (page.collect(), has_more)
    }

    /// Notes a queue that was there before a restart, with the shared subscriptions of its anchor, whatever
    /// the settings allow now. One that is declared is as it is declared.
    pub(super) fn know<'a>(&self, name: &str, mut subscriptions: impl Iterator<Item = &'a str>) {
        let mut queues = lock(&self.queues);
        if queues.contains_key(name) {
            return;
        }
        let mut queue = self.new_queue(name, None);
        let own = shared_subscription(name, &queue);
        queue.filter = subscriptions
            .find(|other| **other != *own)
            .and_then(|other| {
                let (_, filter) = other.strip_prefix("$share/")?.split_once('/')?;
                Some(filter.into())
            });
        queues.insert(name.into(), queue);
    }

    /// Looks a queue up. One that is not there, and may be, is made with `make`. That gets its shared
    /// subscription and its rules, and says whether it could. Nobody else finds the queue before.
    pub(super) fn find(
        &self,
        name: &str,
        config: &Amqp,
        maker: Maker<'_>,
        make: impl FnOnce(&str, &DeliveryRules) -> bool,
    ) -> Found {
        let mut queues = lock(&self.queues);
        let count = queues.len();
        let is_new = !queues.contains_key(name);
        if is_new {
            if !config.queues_on_first_use && !matches!(maker, Maker::Link { .. }) {
                return Found::Absent;
            }
            if count >= config.maximum_queues as usize {
                return Found::TooMany;
            }
            let refusal = lock(&self.owners).refuse(maker, config);
            if let Some(refusal) = refusal {
                return refusal;
            }
        }
        let queue = queues.entry(name.into());
        let queue = queue.or_insert_with(|| self.new_queue(name, None));
        if queue.is_made {
            return Found::Here;
        }
        queue.is_made = make(&shared_subscription(name, queue), &queue.rules);
        if queue.is_made {
            let bytes = queue_bytes(name);
            self.queue_bytes.fetch_add(bytes, Ordering::Relaxed);
            if let Some(owner) = maker.owner().filter(|_| is_new) {
                lock(&self.owners).note(name, owner);
            }
            return Found::Here;
        }
        if queue.filter.is_none() {
            queues.remove(name);
        }
        Found::TooMany
    }

    /// Whether the configuration declares a queue, or takes it for dead letters.
    pub(crate) fn is_declared(&self, name: &str) -> bool {
        let mut declared = self.defaults.queues.iter();
        declared.any(|queue| queue.name == name)
            || self.defaults.dead_letters().any(|other| other == name)
    }

    /// Removes a queue if `end` ends its anchor. Nobody else finds it, or makes it anew, before.
    pub(super) fn remove<R>(&self, name: &str, end: impl FnOnce() -> Option<R>) -> Option<R> {
        let mut queues = lock(&self.queues);
        let queue = queues.get(name)?;
        let ended = end()?;
        if queue.is_made {
            self.queue_bytes
                .fetch_sub(queue_bytes(name), Ordering::Relaxed);
        }
        queues.remove(name);
        lock(&self.owners).forget(name);
        Some(ended)
    }

    /// Whether a shared subscription is that of a queue of this name.
    pub(super) fn may_be_named(&self, name: &str, subscription: &str) -> bool {
        let queues = lock(&self.queues);
        let unknown = Queue::default();
        shared_subscription(name, queues.get(name).unwrap_or(&unknown)) == subscription
    }

    /// The shared subscription that a queue is.
    pub(crate) fn shared_subscription(&self, name: &str) -> Option<String> {
        let queues = lock(&self.queues);
        match queues.get(name) {
            Some(queue) => Some(shared_subscription(name, queue)),
            // Another node of a cluster has made it for a link.
            None if is_dynamic(name) => Some(shared_subscription(name, &Queue::default())),
            None => None,
        }
    }

    /// Whether messages reach a queue by its own topic.
    pub(crate) fn takes_its_topic(&self, name: &str) -> bool {
        let queues = lock(&self.queues);
        (queues.get(name)).map_or_else(|| is_dynamic(name), |queue| queue.filter.is_none())
    }

    /// Notes where a link is attached; where it was before, if it was.
    pub(super) fn occupy(&self, key: LinkKey, place: Place) -> Option<Place> {
        lock(&self.places).insert(key, place)
    }

    /// Whether a link is attached somewhere, or something is remembered of it.
    pub(super) fn knows(&self, key: &LinkKey) -> bool {
        lock(&self.places).contains_key(key)
            || lock(&self.suspended).links.contains_key(key)
            || self.exact.knows(key)
    }

    /// A link is not attached there any more.
    pub(super) fn vacate(&self, key: &LinkKey, place: Place) {
        let mut places = lock(&self.places);
        if places.get(key) == Some(&place) {
            places.remove(key);
        }
    }

    /// Bytes of queues.
    pub(super) fn queue_bytes(&self) -> u64 {
        self.queue_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of links that are attached nowhere.
    pub(super) fn departed_bytes(&self) -> usize {
        self.exact.gauge().bytes() + self.suspended_gauge.bytes()
    }

    /// When the first of them is to be forgotten.
    pub(super) fn departed_ms(&self) -> Option<u64> {
        let due = [self.exact.gauge().due_ms(), self.suspended_gauge.due_ms()];
        due.into_iter().flatten().min()
    }

    /// Looks at all queues, and at the links that are attached nowhere.
    ///
    /// # Panics
    /// Where a sum or a place does not agree with them.
    pub(super) fn check(&self) {
        let queues = lock(&self.queues);
        let made = queues.iter().filter(|(_, queue)| queue.is_made);
        let bytes: u64 = made.map(|(name, _)| queue_bytes(name)).sum();
        assert_eq!(self.queue_bytes(), bytes, "bytes of queues that are made");
        drop(queues);
        let suspended = lock(&self.suspended);
        let mut count = 0;
        for (deadline, key) in suspended.departed.check() {
            let remembered = suspended.links.get(key);
            assert_eq!(
                remembered.map(|remembered| remembered.deadline),
                Some(deadline),
                "a link that is to be forgotten is remembered"
            );
            count += 1;
        }
        assert_eq!(
            suspended.links.len(),
            count,
            "each link is forgotten at some time"
        );
        assert_eq!(
            self.suspended_gauge.bytes(),
            suspended.departed.bytes(),
            "the gauge of links that are attached nowhere"
        );
        drop(suspended);
        self.exact.check();
        self.nodes.check();
    }

    /// Forgets links whose time is up. Returns the keys of records to forget.
    pub(super) fn forget_late(&self, now_ms: u64) -> Forgotten {
        let mut suspended = lock(&self.suspended);
        suspended.forget_late(now_ms, Most::ANY);
        self.suspended_gauge.set(&suspended.departed);
        drop(suspended);
        self.exact.forget_late(now_ms, Most::ANY)
    }

    /// Forgets so many bytes of links that are attached nowhere. Returns the keys of records to forget.
    pub(super) fn give_up(&self, now_ms: u64, bytes: usize) -> Forgotten {
        let most = |bytes| Most { bytes, ..Most::ANY };
        let mut suspended = lock(&self.suspended);
        let before = suspended.departed.bytes();
        suspended.forget_late(now_ms, most(before.saturating_sub(bytes)));
        let rest = bytes.saturating_sub(before - suspended.departed.bytes());
        self.suspended_gauge.set(&suspended.departed);
        drop(suspended);
        let exact = self.exact.gauge().bytes();
        self.exact
            .forget_late(now_ms, most(exact.saturating_sub(rest)))
    }

    /// Remembers a link's unsettled deliveries until `deadline_ms`, and the append that keeps them. Beyond what a
    /// configuration allows, the oldest of whoever has left most are forgotten now.
    pub(super) fn suspend(
        &self,
        (owner, key): (Owner, LinkKey),
        (mut unsettled, token): (Vec<Unsettled>, u64),
        deadline_ms: u64,
        config: &Amqp,
    ) {
        let most = Most::of(config, self.exact.gauge().bytes());
        let mut suspended = lock(&self.suspended);
        suspended.remove(&key);
        unsettled.shrink_to_fit();
        let states = unsettled.iter().filter_map(|one| one.state.as_ref());
        let bytes = size_of_val(&*unsettled) + states.map(state_bytes).sum::<usize>();
        let deadline = suspended
            .departed
            .add(owner, key.clone(), deadline_ms, bytes);
        let remembered = Remembered {
            unsettled,
            token,
            deadline,
        };
        suspended.links.insert(key, remembered);
        suspended.forget_late(0, most);
        self.suspended_gauge.set(&suspended.departed);
    }

    /// The unsettled deliveries of a link that is attached again, and the append that keeps them. The list is
    /// empty if nothing is remembered.
    pub(super) fn resume(&self, key: &LinkKey, now_ms: u64) -> (Vec<Unsettled>, u64) {
        let mut suspended = lock(&self.suspended);
        suspended.forget_late(now_ms, Most::ANY);
        let resumed = suspended.remove(key);
        self.suspended_gauge.set(&suspended.departed);
        resumed
    }

    /// The most that may be remembered of links that settle second, by a configuration.
    pub(super) fn most_exact(&self, config: &Amqp) -> Most {
        Most::of(config, self.suspended_gauge.bytes())
    }
}

/// A queue without its name and beside its session: its share, its rules, and its places in tables.
const QUEUE_BYTES: u64 = 1_200;
/// Texts that have a queue's name: of its session, its topic, its filter, its share, and in tables.
const QUEUE_NAMES: u64 = 7;

/// About the bytes of a queue, beside those that the account has for its session.
const fn queue_bytes(name: &str) -> u64 {
    QUEUE_BYTES + QUEUE_NAMES * name.len() as u64
}

fn shared_subscription(name: &str, queue: &Queue) -> String {
    let filter = queue.filter.as_deref();
    let filter = filter.map_or_else(|| topic_of_queue(name), str::to_owned);
    format!("$share/{}/{filter}", share_name(name))
}

impl Suspended {
    fn remove(&mut self, key: &LinkKey) -> (Vec<Unsettled>, u64) {
        let Some(remembered) = self.links.remove(key) else {
            return (Vec::new(), 0);
        };
        self.departed.remove(remembered.deadline);
        (remembered.unsettled, remembered.token)
    }

    /// Forgets links whose time is up, and those beyond `most` that would be forgotten first.
    fn forget_late(&mut self, now_ms: u64, most: Most) {
        while let Some(key) = self.departed.late(now_ms, most) {
            self.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        Owner::of(None, None)
    }

    fn key(name: &str) -> LinkKey {
        LinkKey {
            user: None,
            container: "c".into(),
            name: name.into(),
        }
    }

    fn one() -> Vec<Unsettled> {
        vec![Unsettled {
            tag: sterna_amqp::link::DeliveryTag::new(b"1").unwrap(),
            token: 0,
            state: None,
        }]
    }

    #[test]
    fn suspended_links_are_forgotten_in_time_and_in_number() {
        let registry = Registry::default();
        let mut config = Amqp {
            maximum_suspended_links: 2,
            ..Amqp::default()
        };
        registry.suspend((owner(), key("a")), (one(), 0), 100, &config);
        registry.suspend((owner(), key("b")), (one(), 7), 200, &config);
        registry.suspend((owner(), key("c")), (one(), 0), 300, &config);
        assert_eq!(registry.resume(&key("a"), 0), (Vec::new(), 0), "made room");
        assert_eq!(registry.resume(&key("b"), 0), (one(), 7));
        assert_eq!(registry.resume(&key("b"), 0), (Vec::new(), 0), "once");
        assert_eq!(registry.resume(&key("c"), 300), (Vec::new(), 0), "too late");
        let left = lock(&registry.suspended).departed.late(u64::MAX, Most::ANY);
        assert_eq!(left, None);
        assert_eq!(
            (registry.departed_bytes(), registry.departed_ms()),
            (0, None)
        );

        registry.suspend((owner(), key("a")), (one(), 0), 100, &config);
        let bytes = registry.departed_bytes();
        assert!(bytes > size_of::<Unsettled>(), "{bytes}");
        config.maximum_suspended_bytes = bytes as u64;
        registry.suspend((owner(), key("b")), (one(), 0), 200, &config);
        assert_eq!(registry.departed_bytes(), bytes, "b is as large as a");
        assert_eq!(registry.resume(&key("a"), 0), (Vec::new(), 0));
        registry.forget_late(200);
        assert_eq!(registry.departed_bytes(), 0);
        registry.suspend((owner(), key("c")), (one(), 0), 300, &config);
        registry.give_up(0, 1);
        assert_eq!(
            registry.departed_bytes(),
            0,
            "a part of a link is the whole"
        );
    }

    #[test]
    fn queues_are_found_made_or_refused() {
        let mut config = Amqp {
            maximum_queues: 2,
            ..Amqp::default()
        };
        config.queues = vec![config::Queue {
            name: "alarms".to_owned(),
            filter: Some("a/+/alarm".to_owned()),
            ..config::Queue::default()
        }];
        let registry = Registry::new(&config);
        let find = |name, makes| registry.find(name, &config, Maker::Broker, |_, _| makes);
        assert_eq!(find("alarms", false), Found::TooMany, "could not be made");
        assert_eq!(find("alarms", true), Found::Here);
        assert_eq!(find("x", true), Found::Here);
        assert_eq!(find("x", false), Found::Here, "is made once");
        assert_eq!(find("y", true), Found::TooMany);
        let subscription = |name| registry.shared_subscription(name).unwrap();
        assert_eq!(subscription("alarms"), "$share/alarms/a/+/alarm");
        assert_eq!(subscription("x"), "$share/x/queue/x");
        assert!(registry.takes_its_topic("x") && !registry.takes_its_topic("alarms"));
        config.queues_on_first_use = false;
        let absent = registry.find("z", &config, Maker::Broker, |_, _| true);
        assert_eq!(absent, Found::Absent);
    }

    #[test]
    fn no_user_makes_all_queues_and_a_restart_frees_none() {
        let config = Amqp {
            maximum_queues_per_user: 2,
            queues: vec![config::Queue {
                name: "declared".to_owned(),
                ..config::Queue::default()
            }],
            ..Amqp::default()
        };
        let ann = Maker::Client {
            user: Some("ann"),
            is_short: false,
        };
        let nobody = Maker::Client {
            user: None,
            is_short: false,
        };
        let find =
            |registry: &Registry, maker, name| registry.find(name, &config, maker, |_, _| true);
        let registry = Registry::new(&config);
        for name in ["declared", "a", "b"] {
            assert_eq!(find(&registry, ann, name), Found::Here, "{name}");
        }
        let bytes = registry.queue_bytes();
        assert!(bytes >= 3 * QUEUE_BYTES, "{bytes}");
        assert_eq!(find(&registry, ann, "c"), Found::TooManyOfUser);
        assert_eq!(find(&registry, ann, "a"), Found::Here);
        assert_eq!(registry.queue_bytes(), bytes, "it was there");
        assert_eq!(find(&registry, nobody, "c"), Found::Here);
        let short = Maker::Client {
            user: None,
            is_short: true,
        };
        assert_eq!(find(&registry, short, "d"), Found::MemoryShort);
        assert_eq!(find(&registry, short, "c"), Found::Here);
        assert_eq!(find(&registry, Maker::Broker, "d"), Found::Here);

        let restarted = Registry::new(&config);
        let owner = ann.owner().unwrap();
        let records = ["a", "b"].map(super::super::owners::owner_record);
        let records = records.iter().map(|key| (&key[..], owner.as_bytes()));
        restarted.restore(records, 0);
        assert_eq!(find(&restarted, ann, "c"), Found::TooManyOfUser);
        assert_eq!(find(&restarted, nobody, "c"), Found::Here);
    }

    #[test]
    fn a_queue_has_the_rules_of_its_declaration_or_those_of_all() {
        let queue = |name: &str, dead_letter: Option<&str>, maximum_deliveries| config::Queue {
            name: name.to_owned(),
            dead_letter: dead_letter.map(str::to_owned),
            maximum_deliveries,
            ..config::Queue::default()
        };
        let config = Amqp {
            queue_maximum_deliveries: 5,
            queue_dead_letter: Some("dead".to_owned()),
            queues: vec![
                queue("orders", Some("lost-orders"), Some(2)),
                queue("drafts", Some(""), Some(0)),
            ],
            ..Amqp::default()
        };
        let registry = Registry::new(&config);
        let mut names = registry.names();
        names.sort();
        assert_eq!(
            names,
            ["dead", "drafts", "lost-orders", "orders"].map(Box::from)
        );
        let rules = |name| {
            let mut found = None;
            registry.find(name, &config, Maker::Broker, |_, rules| {
                found = Some(rules.clone());
                true
            });
            let rules = found.expect("it is new");
            (
                rules.maximum_deliveries,
                rules.dead_letter.as_deref().map(str::to_owned),
            )
        };
        let of = |most, dead_letter: Option<&str>| (most, dead_letter.map(str::to_owned));
        assert_eq!(rules("orders"), of(Some(2), Some("lost-orders")));
        assert_eq!(rules("drafts"), of(None, None));
        assert_eq!(rules("made later"), of(Some(5), Some("dead")));
        assert_eq!(rules("lost-orders"), of(Some(5), Some("dead")));
        assert_eq!(rules("dead"), of(None, None), "nowhere else to go");
    }
}
