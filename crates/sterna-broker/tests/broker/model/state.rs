//! What the model knows of each session, connection and message.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use sterna_broker::{Delivery, Qos, SubscribeOptions};

use crate::cluster::Client;

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(super) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(super) fn qos(&mut self) -> Qos {
        Qos::from_u8(self.below(3) as u8).unwrap_or_default()
    }
}

/// A message that a session is to get.
#[derive(Debug)]
pub(super) struct Expected {
    pub(super) qos: Qos,
    pub(super) retain: bool,
    pub(super) identifiers: Vec<u32>,
    pub(super) required: bool,
    /// The brokers were restarted since: it may come by the options of a later subscription.
    pub(super) restarted: bool,
}

/// A delivery that is not settled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) tag: u64,
    pub(super) position: u64,
    pub(super) is_handed_over: bool,
    pub(super) id: u64,
    pub(super) qos: Qos,
    /// A copy of a retained message, which no restart brings again.
    pub(super) is_copy: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct Publisher(pub(super) usize, pub(super) u32);

/// What was published.
#[derive(Debug)]
pub(super) struct Published {
    pub(super) publisher: Publisher,
    pub(super) sequence: u64,
    pub(super) qos: Qos,
    pub(super) expires_at_ms: Option<u64>,
    /// For messages to groups: how often it was delivered for the first time, by group.
    pub(super) group_deliveries: BTreeMap<&'static str, u32>,
    /// It may have been under way when the brokers were restarted.
    pub(super) restarted: bool,
    pub(super) topic: String,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) expiry_s: u32,
    pub(super) ready: bool,
    pub(super) fate: Fate,
}

/// What those that came before leave to a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fate {
    /// The session there was has ended, or will have.
    pub(super) doomed: bool,
    /// It ended in a way that doesn't order what the client publishes next.
    pub(super) unordered: bool,
}

impl Fate {
    pub(super) fn add(&mut self, other: Self) {
        self.doomed |= other.doomed;
        self.unordered |= other.unordered;
    }
}

#[derive(Debug, Default)]
pub(super) struct Session {
    /// Connections the broker has not ended yet: one that is ready, and any number that wait.
    pub(super) connections: Vec<Connection>,
    /// What the next connection will find.
    pub(super) next: Fate,
    /// It may have expired from here on.
    pub(super) may_expire_at_ms: u64,
    pub(super) subscriptions: BTreeMap<&'static str, SubscribeOptions>,
    pub(super) joined: BTreeSet<&'static str>,
    pub(super) expected: HashMap<u64, Expected>,
    /// Copies of retained messages that are still to come: those at QoS 0, which may be lost, and
    /// the others.
    pub(super) retained: HashMap<u64, [u32; 2]>,
    pub(super) sent: Vec<Sent>,
    /// What it had settled in one step before the brokers were killed: it may come again.
    pub(super) repeatable: HashSet<u64>,
    /// What it has got, and not taken over by the first of two steps.
    pub(super) got: HashSet<u64>,
    /// Whether the brokers were restarted since it was connected.
    pub(super) restarted: bool,
    /// Whether they were killed.
    pub(super) killed: bool,
    pub(super) latest: HashMap<(Publisher, bool), u64>,
    pub(super) protocol: Vec<u32>,
    pub(super) epoch: u32,
    pub(super) sequence: u64,
    /// Never ends during the storm.
    pub(super) anchor: bool,
}

pub(super) const FILTERS: [&str; 10] = [
    "d/#", "d/+", "d/1", "d/2", "d/1/+", "d/+/2", "d/1/2", "d/2/#", "+/1", "d/3/4/5",
];
pub(super) const GROUPS: [&str; 3] = ["$share/x/g/#", "$share/y/g/#", "$share/x/g/+"];
pub(super) const TOPICS: [&str; 9] = [
    "d", "d/1", "d/2", "d/1/1", "d/1/2", "d/2/2", "d/3/4/5", "e/1", "d/9",
];
pub(super) const GROUP_TOPICS: [&str; 3] = ["g", "g/2", "g/1/2"];

pub(super) fn matches(filter: &str, topic: &str) -> bool {
    let mut topic = topic.split('/');
    let mut filter = filter.split('/');
    loop {
        match (filter.next(), topic.next()) {
            (Some("#"), _) | (None, None) => return true,
            (Some("+"), Some(_)) => {}
            (Some(wanted), Some(level)) if wanted == level => {}
            _ => return false,
        }
    }
}

pub(super) fn topics_of_group(filter: &str) -> &str {
    filter.splitn(3, '/').nth(2).unwrap_or_default()
}

impl Session {
    /// The brokers have been restarted, or killed and started.
    pub(super) fn restart(&mut self, is_killed: bool, is_lossy: bool, published: &[Published]) {
        self.restarted = true;
        self.killed |= is_killed;
        self.latest.clear();
        self.retained.clear();
        let sent = std::mem::take(&mut self.sent);
        for sent in sent {
            let message = &published[sent.id as usize];
            let is_from_group = message.topic.starts_with('g');
            let is_owned = sent.is_handed_over || (is_from_group && sent.qos == Qos::ExactlyOnce);
            if sent.is_copy || sent.position == 0 {
                // Neither it nor its settlement is kept: nobody had asked for that when it was published.
            } else if is_owned {
                self.sent.push(sent);
            } else if !is_from_group {
                // It was not settled, so it comes again.
                let expected = Expected {
                    qos: sent.qos,
                    retain: true,
                    identifiers: Vec::new(),
                    required: message.expires_at_ms.is_none() && !is_lossy,
                    restarted: true,
                };
                self.got.remove(&sent.id);
                self.expected.insert(sent.id, expected);
            }
        }
        let subscriptions = &self.subscriptions;
        self.expected.retain(|id, expected| {
            let topic = &published[*id as usize].topic;
            let mut filters = subscriptions.iter();
            // What waited because of a subscription that has ended since is not kept.
            let is_subscribed = filters.any(|(filter, options)| {
                !filter.starts_with('$')
                    && options.qos.is_acknowledged()
                    && !options.no_local
                    && matches(filter, topic)
            });
            expected.required &= is_subscribed;
            (expected.restarted, expected.retain) = (true, true);
            expected.qos.is_acknowledged()
        });
        if is_killed {
            self.repeatable.extend(self.got.drain());
        } else {
            self.got.clear();
        }
    }

    /// A connection is gone, with what that means for the one after it.
    pub(super) fn remove(&mut self, at: usize, mut left: Fate) {
        let connection = self.connections.remove(at);
        if !connection.ready {
            left.add(connection.fate);
        }
        match self.connections.get_mut(at) {
            Some(next) => next.fate.add(left),
            None => self.next.add(left),
        }
    }
}

/// Each session is in one group at most, so that it is known for which it got a message.
pub(super) fn group_of(session: usize) -> &'static str {
    GROUPS[session / 2 % GROUPS.len()]
}

pub(super) fn client_id(session: usize) -> String {
    format!("client-{session}")
}

pub(super) fn payload_id(delivery: &Delivery) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(delivery.message.payload());
    u64::from_le_bytes(bytes)
}
