//! What all shards know of AMQP: queues, and the links of clients that are away.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;
use sterna_amqp::link::Unsettled;

use super::address::{share_name, topic_of_queue};
use crate::config::Amqp;

/// Behind short locks, which only attaching and detaching take.
#[derive(Debug, Default)]
pub struct Registry {
    queues: Mutex<FxHashMap<Box<str>, Queue>>,
    suspended: Mutex<Suspended>,
}

#[derive(Debug, Default)]
struct Suspended {
    links: FxHashMap<LinkKey, Remembered>,
    /// By the time at which they are forgotten.
    deadlines: BTreeMap<(u64, u64), LinkKey>,
    next: u64,
}

#[derive(Debug)]
struct Remembered {
    unsettled: Vec<Unsettled>,
    deadline: (u64, u64),
}

/// A client's sending link, wherever it connects.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct LinkKey {
    pub(super) user: Option<Box<str>>,
    pub(super) container: Box<str>,
    pub(super) name: Box<str>,
}

/// What became of a name that is to be a queue's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// There is such a queue.
    Here,
    /// There is none, and it may not be made.
    Absent,
    /// There are as many as there may be.
    TooMany,
}

/// One queue.
#[derive(Debug, Default)]
struct Queue {
    /// What it takes; `None` for its own topic.
    filter: Option<Box<str>>,
    /// Whether it has its anchor.
    is_made: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    /// A registry that knows the queues of a configuration, whose anchors are yet to be made.
    #[must_use]
    pub fn new(config: &Amqp) -> Self {
        let this = Self::default();
        lock(&this.queues).extend(config.queues.iter().map(|queue| {
            let filter = queue.filter.as_deref().map(Into::into);
            let queue_of_name = Queue {
                filter,
                is_made: false,
            };
            (queue.name.as_str().into(), queue_of_name)
        }));
        this
    }

    /// The names of all queues.
    pub(super) fn names(&self) -> Vec<Box<str>> {
        lock(&self.queues).keys().cloned().collect()
    }

    /// Looks a queue up. One that is not there, and may be, is made with `make`, which gets its shared
    /// subscription and says whether it could; nobody else finds it before.
    pub(super) fn find(&self, name: &str, config: &Amqp, make: impl FnOnce(&str) -> bool) -> Found {
        let mut queues = lock(&self.queues);
        let count = queues.len();
        if !queues.contains_key(name) {
            if !config.queues_on_first_use {
                return Found::Absent;
            }
            if count >= config.maximum_queues as usize {
                return Found::TooMany;
            }
        }
        let queue = queues.entry(name.into()).or_default();
        if queue.is_made {
            return Found::Here;
        }
        queue.is_made = make(&shared_subscription(name, queue));
        if queue.is_made {
            return Found::Here;
        }
        if queue.filter.is_none() {
            queues.remove(name);
        }
        Found::TooMany
    }

    /// The shared subscription that a queue is.
    pub(super) fn shared_subscription(&self, name: &str) -> Option<String> {
        let queues = lock(&self.queues);
        Some(shared_subscription(name, queues.get(name)?))
    }

    /// Whether messages reach a queue by its own topic.
    pub(super) fn takes_its_topic(&self, name: &str) -> bool {
        lock(&self.queues)
            .get(name)
            .is_some_and(|queue| queue.filter.is_none())
    }

    /// Remembers what is unsettled of a link until `deadline_ms`. Beyond `most` links the ones that
    /// would be forgotten first are forgotten now.
    pub(super) fn suspend(
        &self,
        key: LinkKey,
        unsettled: Vec<Unsettled>,
        deadline_ms: u64,
        most: usize,
    ) {
        let mut suspended = lock(&self.suspended);
        suspended.remove(&key);
        while suspended.links.len() >= most.max(1) {
            suspended.remove_first();
        }
        suspended.next += 1;
        let deadline = (deadline_ms, suspended.next);
        suspended.deadlines.insert(deadline, key.clone());
        let remembered = Remembered {
            unsettled,
            deadline,
        };
        suspended.links.insert(key, remembered);
    }

    /// What is unsettled of a link that is attached again; empty if nothing is remembered.
    pub(super) fn resume(&self, key: &LinkKey, now_ms: u64) -> Vec<Unsettled> {
        let mut suspended = lock(&self.suspended);
        while suspended
            .deadlines
            .first_key_value()
            .is_some_and(|((deadline_ms, _), _)| *deadline_ms <= now_ms)
        {
            suspended.remove_first();
        }
        suspended.remove(key)
    }
}

fn shared_subscription(name: &str, queue: &Queue) -> String {
    let filter = queue.filter.as_deref();
    let filter = filter.map_or_else(|| topic_of_queue(name), str::to_owned);
    format!("$share/{}/{filter}", share_name(name))
}

impl Suspended {
    fn remove(&mut self, key: &LinkKey) -> Vec<Unsettled> {
        let Some(remembered) = self.links.remove(key) else {
            return Vec::new();
        };
        self.deadlines.remove(&remembered.deadline);
        remembered.unsettled
    }

    fn remove_first(&mut self) {
        if let Some((_, key)) = self.deadlines.pop_first() {
            self.links.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        registry.suspend(key("a"), one(), 100, 2);
        registry.suspend(key("b"), one(), 200, 2);
        registry.suspend(key("c"), one(), 300, 2);
        assert!(registry.resume(&key("a"), 0).is_empty(), "made room");
        assert_eq!(registry.resume(&key("b"), 0).len(), 1);
        assert!(registry.resume(&key("b"), 0).is_empty(), "once");
        assert!(registry.resume(&key("c"), 300).is_empty(), "too late");
        assert!(lock(&registry.suspended).deadlines.is_empty());
    }

    #[test]
    fn queues_are_found_made_or_refused() {
        let mut config = Amqp {
            maximum_queues: 2,
            ..Amqp::default()
        };
        config.queues = vec![crate::config::Queue {
            name: "alarms".to_owned(),
            filter: Some("a/+/alarm".to_owned()),
        }];
        let registry = Registry::new(&config);
        let find = |name, makes| registry.find(name, &config, |_| makes);
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
        let absent = registry.find("z", &config, |_| true);
        assert_eq!(absent, Found::Absent);
    }
}
