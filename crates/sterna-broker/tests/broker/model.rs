//! Random sessions on random shards against a naive model, in virtual time.
//!
//! Hundreds of clients connect, move, subscribe, publish, acknowledge, leave and expire on one to
//! four shards, while mail between the shards arrives in random order (in order per pair). The model
//! knows, per session, which messages it must get and which it may get, in which order, with which
//! options; and what it has been sent and not acknowledged. After the storm everything must have
//! arrived, and when all have gone, nothing may be left.
//!
//! A failing run prints its seed; `STERNA_MODEL_SEED=<seed>` runs it alone. `STERNA_MODEL_RUNS`
//! sets how many seeds are tried.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sterna_broker::{
    Close, ConsumerId, Delivery, Event, Limits, Message, MessageHeader, NoStore, Opened, Outcome,
    Phase, Qos, QueueFull, RetainHandling, SessionKey, SubscribeOptions, WillFate,
};

use sterna_store::MemoryStore;

use crate::cluster::{Client, Cluster};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn qos(&mut self) -> Qos {
        Qos::from_u8(self.below(3) as u8).unwrap_or_default()
    }
}

/// A message that a session is to get.
#[derive(Debug)]
struct Expected {
    qos: Qos,
    retain: bool,
    identifiers: Vec<u32>,
    required: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
struct Publisher(usize, u32);

/// What was published.
#[derive(Debug)]
struct Published {
    publisher: Publisher,
    sequence: u64,
    qos: Qos,
    expires_at_ms: Option<u64>,
    /// For messages to groups: how often it was delivered for the first time, by group.
    group_deliveries: BTreeMap<&'static str, u32>,
    /// It may have been under way when the brokers were restarted.
    restarted: bool,
    topic: String,
}

#[derive(Clone, Copy, Debug)]
struct Connection {
    client: Client,
    expiry_s: u32,
    ready: bool,
    fate: Fate,
}

/// What those that came before leave to a connection.
#[derive(Clone, Copy, Debug, Default)]
struct Fate {
    /// The session there was has ended, or will have.
    doomed: bool,
    /// It ended in a way that doesn't order what the client publishes next.
    unordered: bool,
}

impl Fate {
    fn add(&mut self, other: Self) {
        self.doomed |= other.doomed;
        self.unordered |= other.unordered;
    }
}

#[derive(Debug, Default)]
struct Session {
    /// Connections the broker has not ended yet: one that is ready, and any number that wait.
    connections: Vec<Connection>,
    /// What the next connection will find.
    next: Fate,
    /// It may have expired from here on.
    may_expire_at_ms: u64,
    subscriptions: BTreeMap<&'static str, SubscribeOptions>,
    joined: BTreeSet<&'static str>,
    expected: HashMap<u64, Expected>,
    /// Copies of retained messages that are still to come: those at QoS 0, which may be lost, and
    /// the others.
    retained: HashMap<u64, [u32; 2]>,
    sent: Vec<(u64, Phase, u64)>,
    latest: HashMap<Publisher, u64>,
    protocol: Vec<u32>,
    epoch: u32,
    sequence: u64,
    /// Never ends during the storm.
    anchor: bool,
}

const FILTERS: [&str; 10] = [
    "d/#", "d/+", "d/1", "d/2", "d/1/+", "d/+/2", "d/1/2", "d/2/#", "+/1", "d/3/4/5",
];
const GROUPS: [&str; 3] = ["$share/x/g/#", "$share/y/g/#", "$share/x/g/+"];
const TOPICS: [&str; 9] = [
    "d", "d/1", "d/2", "d/1/1", "d/1/2", "d/2/2", "d/3/4/5", "e/1", "d/9",
];
const GROUP_TOPICS: [&str; 3] = ["g", "g/2", "g/1/2"];

fn matches(filter: &str, topic: &str) -> bool {
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

fn topics_of_group(filter: &str) -> &str {
    filter.splitn(3, '/').nth(2).unwrap_or_default()
}

impl Session {
    /// A connection is gone, with what that means for the one after it.
    fn remove(&mut self, at: usize, mut left: Fate) {
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

fn cluster(shards: u16, limits: Limits, store: Option<&MemoryStore>) -> Cluster {
    Cluster::with(shards, limits, |_| match store {
        Some(store) => Box::new(store.clone()),
        None => Box::new(NoStore),
    })
}

struct Model {
    cluster: Cluster,
    random: Random,
    sessions: Vec<Session>,
    consumers: HashMap<ConsumerId, usize>,
    published: Vec<Published>,
    retained: BTreeMap<String, u64>,
    shard_sequences: Vec<u64>,
    /// Queues are so small that messages are dropped.
    lossy: bool,
    /// Where the brokers keep what is to survive a restart, if they do.
    store: Option<MemoryStore>,
    traced: Option<usize>,
}

/// Each session is in one group at most, so that it is known for which it got a message.
fn group_of(session: usize) -> &'static str {
    GROUPS[session / 2 % GROUPS.len()]
}

fn client_id(session: usize) -> String {
    format!("client-{session}")
}

fn payload_id(delivery: &Delivery) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(delivery.message.payload());
    u64::from_le_bytes(bytes)
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let shards = 1 + random.below(4) as u16;
        let lossy = random.chance(25);
        let mut limits = Limits {
            queued_messages: 1_000_000,
            group_window: 1 + random.below(8) as u32,
            match_cache_topics: 1 << random.below(5),
            match_cache_targets: random.below(300),
            route_backlog: random.below(30),
            ..Limits::default()
        };
        if lossy {
            limits.queued_messages = 1 + random.below(10);
            limits.group_queued_messages = 1 + random.below(10);
            if random.chance(50) {
                limits.queue_full = QueueFull::DropOldest;
            }
        }
        let sessions = 20 + random.below(280);
        let store = random.chance(50).then(MemoryStore::new);
        Self {
            cluster: cluster(shards, limits, store.as_ref()),
            store,
            sessions: (0..sessions)
                .map(|i| Session {
                    anchor: i < GROUPS.len() * 2,
                    may_expire_at_ms: u64::MAX,
                    // The first time there is nothing to be present.
                    next: Fate {
                        doomed: true,
                        ..Fate::default()
                    },
                    ..Session::default()
                })
                .collect(),
            consumers: HashMap::new(),
            published: Vec::new(),
            retained: BTreeMap::new(),
            shard_sequences: vec![0; usize::from(shards)],
            random,
            lossy,
            traced: number("STERNA_MODEL_TRACE").map(|session| session as usize),
        }
    }

    fn shards(&self) -> usize {
        self.cluster.brokers.len()
    }

    fn any_session(&mut self) -> usize {
        // A few clients do most of what happens, so that things happen to the same session.
        let bound = if self.random.chance(50) {
            12
        } else {
            self.sessions.len()
        };
        self.random.below(bound)
    }

    fn ready(&self, session: usize) -> Option<Connection> {
        self.sessions[session]
            .connections
            .iter()
            .copied()
            .find(|connection| connection.ready)
    }

    /// Prints what happens to one session if `STERNA_MODEL_TRACE` names it.
    fn trace(&self, session: usize, what: &dyn std::fmt::Debug) {
        if self.traced == Some(session) {
            eprintln!("{:>8} {what:?}", self.cluster.now_ms);
        }
    }

    // What the brokers do.

    fn take_events(&mut self) {
        for event in std::mem::take(&mut self.cluster.events) {
            let (Event::Evicted { consumer, .. } | Event::Opened { consumer, .. }) = event;
            self.trace(self.consumers[&consumer], &event);
            match event {
                Event::Evicted { consumer, .. } => {
                    let session = &mut self.sessions[self.consumers[&consumer]];
                    let at = session
                        .connections
                        .iter()
                        .position(|connection| connection.client.consumer == consumer)
                        .expect("only a connected consumer is evicted");
                    let connection = session.connections[at];
                    let doomed = connection.expiry_s == 0;
                    session.remove(
                        at,
                        Fate {
                            doomed,
                            ..Fate::default()
                        },
                    );
                }
                Event::Opened {
                    consumer,
                    session: key,
                    present,
                } => {
                    self.opened(self.consumers[&consumer], consumer, key, present);
                }
            }
        }
    }

    fn opened(&mut self, index: usize, consumer: ConsumerId, key: SessionKey, present: bool) {
        let now_ms = self.cluster.now_ms;
        let session = &mut self.sessions[index];
        assert!(
            session
                .connections
                .iter()
                .all(|connection| !connection.ready)
        );
        let connection = session
            .connections
            .iter_mut()
            .find(|connection| connection.client.consumer == consumer)
            .expect("only a waiting consumer's session is opened");
        assert_eq!(connection.client.key, key);
        connection.ready = true;
        let Connection { client, fate, .. } = *connection;
        let expired = !present && !fate.doomed && now_ms >= session.may_expire_at_ms;
        if fate.doomed {
            assert!(!present, "what was discarded is not present");
        } else {
            assert!(present || expired, "session {index} was lost");
        }
        if fate.doomed || expired {
            session.subscriptions.clear();
            session.joined.clear();
            session.expected.clear();
            session.retained.clear();
            session.sent.clear();
            session.latest.clear();
            session.protocol.clear();
            if expired || fate.unordered {
                session.epoch += 1;
            }
        }

        session.may_expire_at_ms = u64::MAX;
        let broker = &mut self.cluster.brokers[usize::from(client.shard)];
        if let Some(snapshot) = broker.take_snapshot(key) {
            let marks = snapshot.chunks_exact(4);
            let protocol = marks.map(|mark| u32::from_le_bytes(mark.try_into().expect("four")));
            *broker.protocol_mut(key).expect("it is ready") = protocol.collect();
        }
        let sent: Vec<_> = broker
            .unacknowledged(key)
            .iter()
            .map(|entry| (entry.tag(), entry.phase()))
            .collect();
        let known: Vec<_> = session
            .sent
            .iter()
            .map(|&(tag, phase, _)| (tag, phase))
            .collect();
        assert_eq!(sent, known, "the ledger of session {index}");
        assert_eq!(broker.protocol(key), Some(&session.protocol));
    }

    // What clients do.

    fn open(&mut self, index: usize) {
        let shard = self.random.below(self.shards()) as u16;
        let anchor = self.sessions[index].anchor;
        let clean_start = !anchor && self.random.chance(20);
        let expiry_s = match self.random.below(4) {
            _ if anchor => u32::MAX,
            0 => 0,
            1 => 5,
            _ => 1_000,
        };
        let (consumer, opened) =
            self.cluster
                .start_open(shard, &client_id(index), clean_start, expiry_s, None);
        self.consumers.insert(consumer, index);
        self.trace(
            index,
            &("open", shard, clean_start, expiry_s, consumer, opened),
        );
        let (key, ready) = match opened {
            Opened::Ready { session, present } => (session, Some(present)),
            Opened::Pending { session } => (session, None),
        };
        let client = Client {
            shard,
            key,
            consumer,
            present: false,
        };
        // Evictions that the opening caused count before it.
        self.take_events();
        let session = &mut self.sessions[index];
        let mut fate = std::mem::take(&mut session.next);
        fate.doomed |= clean_start;
        session.connections.push(Connection {
            client,
            expiry_s,
            ready: false,
            fate,
        });
        if let Some(present) = ready {
            self.opened(index, consumer, key, present);
        }
    }

    fn close(&mut self, index: usize) {
        let waiting = self.random.chance(30);
        let session = &mut self.sessions[index];
        let Some(at) = session
            .connections
            .iter()
            .position(|connection| connection.ready != waiting)
        else {
            return;
        };
        let Connection {
            client,
            expiry_s,
            ready,
            ..
        } = session.connections[at];
        let changed = (!session.anchor && expiry_s > 0 && self.random.chance(10))
            .then(|| [0, 7, 1_000][self.random.below(3)]);
        let expiry_s = changed.unwrap_or(expiry_s);
        let ends = expiry_s == 0;
        session.remove(
            at,
            Fate {
                doomed: ends,
                unordered: ends,
            },
        );
        if ready && ends {
            session.subscriptions.clear();
            session.expected.clear();
        }
        let expires_at_ms = if expiry_s == u32::MAX {
            u64::MAX
        } else {
            self.cluster.now_ms + u64::from(expiry_s) * 1_000
        };
        session.may_expire_at_ms = session.may_expire_at_ms.min(expires_at_ms);
        let now_ms = self.cluster.now_ms;
        let close = Close {
            will: WillFate::Publish,
            expiry_s: changed,
        };
        self.trace(index, &("close", client, expiry_s));
        self.cluster
            .broker(client.shard)
            .close(now_ms, client.key, close);
        self.cluster.collect(client.shard);
        self.take_events();
    }

    fn subscribe(&mut self, index: usize, filter: &'static str) {
        let Some(Connection { client, .. }) = self.ready(index) else {
            return;
        };
        let shared = filter.starts_with('$');
        let options = SubscribeOptions {
            qos: self.random.qos(),
            no_local: !shared && self.random.chance(20),
            // A retained copy and a live message with its flag kept look the same, so each session
            // gets only one of the two.
            retain_as_published: index.is_multiple_of(5),
            retain_handling: if index.is_multiple_of(5) {
                RetainHandling::Never
            } else {
                RetainHandling::Always
            },
            identifier: self
                .random
                .chance(30)
                .then(|| 1 + self.random.below(5) as u32),
            ..SubscribeOptions::default()
        };
        let now_ms = self.cluster.now_ms;
        let broker = self.cluster.broker(client.shard);
        let subscribed = broker
            .subscribe(now_ms, client.key, filter, options)
            .expect("a valid filter within limits");
        self.cluster.collect(client.shard);
        let session = &mut self.sessions[index];
        let known = session.subscriptions.insert(filter, options).is_some();
        assert_eq!(subscribed.existed, known);
        let mut retained = 0;
        if shared {
            session.joined.insert(filter);
        } else if !options.retain_as_published {
            for (_, &id) in self
                .retained
                .iter()
                .filter(|(topic, _)| matches(filter, topic))
            {
                let own = self.published[id as usize].publisher.0 == index;
                if !(options.no_local && own) {
                    let qos = options.qos.min(self.published[id as usize].qos);
                    let kind = usize::from(qos.is_acknowledged());
                    session.retained.entry(id).or_default()[kind] += 1;
                    retained += 1;
                }
            }
        }
        assert_eq!(subscribed.retained, retained);
    }

    fn unsubscribe(&mut self, index: usize) {
        let Some(Connection { client, .. }) = self.ready(index) else {
            return;
        };
        let filter = if self.random.chance(70) {
            FILTERS[self.random.below(FILTERS.len())]
        } else if self.sessions[index].anchor {
            return;
        } else {
            group_of(index)
        };
        let now_ms = self.cluster.now_ms;
        let existed = self
            .cluster
            .broker(client.shard)
            .unsubscribe(now_ms, client.key, filter);
        self.cluster.collect(client.shard);
        assert_eq!(
            existed,
            self.sessions[index].subscriptions.remove(filter).is_some()
        );
    }

    fn publish(&mut self) {
        let (publisher, shard, origin, index) = if self.random.chance(60) {
            let index = self.any_session();
            let Some(Connection { client, .. }) = self.ready(index) else {
                return;
            };
            self.sessions[index].sequence += 1;
            let publisher = Publisher(index, self.sessions[index].epoch);
            (publisher, client.shard, Some(client.key), Some(index))
        } else {
            let shard = self.random.below(self.shards());
            self.shard_sequences[shard] += 1;
            (Publisher(usize::MAX - shard, 0), shard as u16, None, None)
        };
        let sequence = match index {
            Some(index) => self.sessions[index].sequence,
            None => self.shard_sequences[usize::from(shard)],
        };
        let id = self.published.len() as u64;
        let to_group = self.random.chance(30);
        let topic = if to_group {
            GROUP_TOPICS[self.random.below(GROUP_TOPICS.len())]
        } else {
            TOPICS[self.random.below(TOPICS.len())]
        };
        let now_ms = self.cluster.now_ms;
        let header = MessageHeader {
            qos: self.random.qos(),
            retain: !to_group && self.random.chance(10),
            published_ms: now_ms,
            expires_at_ms: self
                .random
                .chance(10)
                .then(|| now_ms + 1 + self.random.below(20_000) as u64),
        };
        let retain = header.retain && header.expires_at_ms.is_none();
        let header = MessageHeader { retain, ..header };
        let message = Message::copy(topic, &[], &id.to_le_bytes(), header).expect("small");

        let mut matched = 0;
        for (at, session) in self.sessions.iter_mut().enumerate() {
            let hits: Vec<_> = session
                .subscriptions
                .iter()
                .filter(|(filter, _)| !filter.starts_with('$') && matches(filter, topic))
                .map(|(_, options)| *options)
                .collect();
            matched += usize::from(!hits.is_empty());
            let heard: Vec<_> = hits
                .iter()
                .filter(|options| !(options.no_local && index == Some(at)))
                .collect();
            let Some(qos) = heard.iter().map(|options| options.qos).max() else {
                continue;
            };
            let qos = qos.min(header.qos);
            let mut identifiers: Vec<_> = heard
                .iter()
                .filter_map(|options| options.identifier)
                .collect();
            identifiers.sort_unstable();
            session.expected.insert(
                id,
                Expected {
                    qos,
                    retain: retain && heard.iter().any(|options| options.retain_as_published),
                    identifiers,
                    required: qos.is_acknowledged()
                        && header.expires_at_ms.is_none()
                        && !self.lossy,
                },
            );
        }
        let groups: BTreeSet<_> = self
            .sessions
            .iter()
            .flat_map(|session| session.subscriptions.keys().copied())
            .filter(|filter| filter.starts_with('$') && matches(topics_of_group(filter), topic))
            .collect();
        matched += groups.len();
        self.published.push(Published {
            publisher,
            sequence,
            qos: header.qos,
            expires_at_ms: header.expires_at_ms,
            group_deliveries: groups.into_iter().map(|filter| (filter, 0)).collect(),
            restarted: false,
            topic: topic.to_owned(),
        });
        if retain {
            self.retained.insert(topic.to_owned(), id);
        }
        let quiet = self.cluster.pairs().is_empty()
            && self.sessions.iter().all(|session| {
                let comes = session
                    .connections
                    .iter()
                    .any(|connection| !connection.ready);
                (!session.next.doomed && !comes && session.may_expire_at_ms > now_ms)
                    || session.subscriptions.is_empty()
            });
        let routed = self.cluster.send(shard, origin, message);
        if quiet {
            assert_eq!(routed.matched, matched);
        }
    }

    fn receive(&mut self, index: usize, limit: usize) -> usize {
        let Some(Connection { client, .. }) = self.ready(index) else {
            return 0;
        };
        let mut received = 0;
        while received < limit {
            let Some(delivery) = self.cluster.next(client) else {
                break;
            };
            received += 1;
            self.check(index, &delivery);
        }
        received
    }

    fn check(&mut self, index: usize, delivery: &Delivery) {
        let now_ms = self.cluster.now_ms;
        let id = payload_id(delivery);
        let published = &mut self.published[id as usize];
        let session = &mut self.sessions[index];
        assert_eq!(delivery.message.topic(), published.topic);
        assert!(
            published.expires_at_ms.is_none_or(|at_ms| at_ms > now_ms),
            "expired"
        );
        let mut identifiers = delivery.identifiers().to_vec();
        identifiers.sort_unstable();
        if published.topic.starts_with('g') {
            // At most one member gets it as new, of those groups the session is or was in.
            assert!(delivery.qos <= published.qos);
            let group = group_of(index);
            assert!(
                session.joined.contains(group),
                "session {index} is not in {group}"
            );
            let count = published.group_deliveries.get_mut(group);
            let count = count.unwrap_or_else(|| panic!("message {id} is not for {group}"));
            // One that was sent, and whose member's session then ended, goes to another as
            // redelivered; at QoS 0 there is no such flag.
            assert!(
                delivery.redelivered == (*count > 0)
                    || !delivery.qos.is_acknowledged()
                    || published.restarted,
                "message {id} went {count} times to members of {group}, now to session {index}"
            );
            *count += 1;
        } else if let Some(expected) = session.expected.get(&id).filter(|expected| {
            // A retained copy of a message that is also expected live has the flag set.
            !delivery.retain || expected.retain
        }) {
            assert_eq!(
                (
                    delivery.qos,
                    delivery.retain,
                    &identifiers,
                    delivery.redelivered
                ),
                (expected.qos, expected.retain, &expected.identifiers, false),
                "message {id} to session {index}"
            );
            session.expected.remove(&id);
            let latest = session.latest.entry(published.publisher).or_default();
            assert!(
                *latest < published.sequence,
                "session {index} gets {id} out of order"
            );
            *latest = published.sequence;
        } else {
            let kind = usize::from(delivery.qos.is_acknowledged());
            let copies = session
                .retained
                .get_mut(&id)
                .map(|copies| &mut copies[kind]);
            let copies = copies.filter(|copies| **copies > 0);
            let copies = copies.unwrap_or_else(|| {
                panic!("session {index} is not to get message {id}: {delivery:?}")
            });
            assert!(delivery.retain && !delivery.redelivered);
            *copies -= 1;
        }
        if delivery.qos.is_acknowledged() {
            session.sent.push((delivery.tag, Phase::Sent, id));
        } else {
            assert_eq!(delivery.tag, 0);
        }
    }

    fn acknowledge(&mut self, index: usize) {
        let Some(Connection { client, .. }) = self.ready(index) else {
            return;
        };
        let session = &mut self.sessions[index];
        if session.sent.is_empty() {
            return;
        }
        let at = self.random.below(session.sent.len().min(8));
        let now_ms = self.cluster.now_ms;
        let broker = &mut self.cluster.brokers[usize::from(client.shard)];
        let (tag, phase, _) = session.sent[at];
        if phase == Phase::Sent && self.random.chance(40) {
            assert!(broker.handed_over(client.key, tag));
            session.sent[at].1 = Phase::HandedOver;
        } else {
            let rejected = self.random.chance(10);
            let outcome = if rejected {
                Outcome::Rejected(0x80)
            } else {
                Outcome::Accepted
            };
            assert!(broker.settle(now_ms, client.key, tag, outcome));
            session.sent.remove(at);
        }
        self.cluster.collect(client.shard);
    }

    fn deliver_mail(&mut self, letters: usize) {
        for _ in 0..letters {
            let pairs = self.cluster.pairs();
            if pairs.is_empty() {
                return;
            }
            let (from, to) = pairs[self.random.below(pairs.len())];
            self.cluster.deliver_one(from, to);
            self.take_events();
        }
    }

    fn pass_time(&mut self, duration_ms: u64) {
        self.cluster.now_ms += duration_ms;
        let now_ms = self.cluster.now_ms;
        for shard in 0..self.shards() {
            while self.cluster.brokers[shard]
                .deadline_ms()
                .is_some_and(|at_ms| at_ms <= now_ms)
            {
                self.cluster.brokers[shard].timeout(now_ms);
            }
            self.cluster.collect(shard as u16);
        }
        self.take_events();
    }

    fn step(&mut self) {
        let index = self.any_session();
        match self.random.below(100) {
            0..=13 => self.open(index),
            14..=18 => self.close(index),
            19..=30 => {
                let filter = if self.random.chance(75) {
                    FILTERS[self.random.below(FILTERS.len())]
                } else {
                    group_of(index)
                };
                self.subscribe(index, filter);
            }
            31..=34 => self.unsubscribe(index),
            35..=59 => self.publish(),
            60..=74 => {
                let limit = 1 + self.random.below(20);
                self.receive(index, limit);
            }
            75..=84 => {
                for _ in 0..self.random.below(6) {
                    self.acknowledge(index);
                }
            }
            85..=86 => {
                let duration_ms = self.random.below(4_000) as u64;
                self.pass_time(duration_ms);
            }
            87 => {
                if let Some(Connection { client, .. }) = self.ready(index) {
                    let mark = self.random.next() as u32;
                    self.sessions[index].protocol.push(mark);
                    let broker = self.cluster.broker(client.shard);
                    broker
                        .protocol_mut(client.key)
                        .expect("it is ready")
                        .push(mark);
                    let marks = &self.sessions[index].protocol;
                    let snapshot: Vec<u8> = marks.iter().flat_map(|m| m.to_le_bytes()).collect();
                    broker.save_protocol(client.key, &snapshot);
                }
            }
            88 if self.random.chance(3) => self.restart(),
            _ => {
                let letters = self.random.below(12);
                self.deliver_mail(letters);
            }
        }
    }

    /// The brokers go down with all connections, and come back from their store, maybe on another
    /// number of shards.
    fn restart(&mut self) {
        let Some(store) = self.store.clone() else {
            return;
        };
        self.deliver_mail(usize::MAX);
        let now_ms = self.cluster.now_ms;
        for session in &mut self.sessions {
            while let Some(connection) = session.connections.first() {
                let expiry_s = connection.expiry_s;
                assert!(connection.ready, "all sessions have arrived");
                session.remove(
                    0,
                    Fate {
                        doomed: expiry_s == 0,
                        ..Fate::default()
                    },
                );
                if expiry_s == 0 {
                    session.subscriptions.clear();
                    session.expected.clear();
                } else if expiry_s < u32::MAX {
                    session.may_expire_at_ms = now_ms + u64::from(expiry_s) * 1_000;
                }
            }
        }
        for published in &mut self.published {
            published.restarted = true;
        }
        let shards = 1 + self.random.below(4) as u16;
        let limits = self.cluster.directory.limits().clone();
        self.cluster = cluster(shards, limits, Some(&store));
        self.cluster.now_ms = now_ms;
        self.shard_sequences
            .resize(self.shard_sequences.len().max(shards.into()), 0);
        for shard in 0..shards {
            self.cluster.broker(shard).restore(now_ms);
            self.cluster.collect(shard);
        }
        self.cluster.run();
    }

    /// All mail arrives; every anchor, and whoever has a session, takes and acknowledges everything.
    fn settle_down(&mut self) {
        self.deliver_mail(usize::MAX);
        for index in 0..self.sessions.len() {
            let session = &self.sessions[index];
            let resumes = !session.next.doomed
                && session.connections.is_empty()
                && session.may_expire_at_ms > self.cluster.now_ms;
            if resumes && (session.anchor || self.random.chance(60)) {
                self.open(index);
                self.deliver_mail(usize::MAX);
            }
        }
        loop {
            let mut received = 0;
            for index in 0..self.sessions.len() {
                received += self.receive(index, usize::MAX);
                while self.ready(index).is_some() && !self.sessions[index].sent.is_empty() {
                    self.acknowledge(index);
                }
                self.deliver_mail(usize::MAX);
            }
            if received == 0 {
                break;
            }
        }
        for (index, session) in self.sessions.iter().enumerate() {
            if session
                .connections
                .iter()
                .any(|connection| connection.ready)
            {
                for (id, expected) in &session.expected {
                    assert!(
                        !expected.required,
                        "session {index} never got {id}: {expected:?}"
                    );
                }
                let missing = session
                    .retained
                    .values()
                    .map(|[_, copies]| copies)
                    .sum::<u32>();
                assert!(
                    missing == 0 || self.lossy,
                    "retained messages of session {index}"
                );
            }
        }
    }

    /// Everybody leaves for good; nothing may be left.
    fn empty(&mut self) {
        for index in 0..self.sessions.len() {
            while let Some(connection) = self.sessions[index].connections.pop() {
                let Client { shard, key, .. } = connection.client;
                let now_ms = self.cluster.now_ms;
                let close = Close {
                    expiry_s: Some(0),
                    ..Close::NORMAL
                };
                self.cluster.broker(shard).close(now_ms, key, close);
                self.cluster.collect(shard);
            }
        }
        self.cluster.run();
        // Sessions that were away are ended by a clean start that does not last.
        for index in 0..self.sessions.len() {
            let client = self.cluster.open_with(0, &client_id(index), true, 0, None);
            self.cluster.close(client, Close::NORMAL);
        }
        self.cluster.events.clear();
        for topic in TOPICS {
            self.cluster.retain(0, topic, "");
        }
        // Timers of groups that have ended, on shards that have not heard of it.
        self.pass_time(100_000);
        self.cluster.assert_empty();
        if let Some(store) = &self.store {
            assert_eq!(store.counts(), (0, 0, 0));
        }
        assert_eq!(self.cluster.directory.sessions(), 0);
        assert_eq!(self.cluster.directory.subscriptions(), 0);
        assert_eq!(self.cluster.directory.retained(), (0, 0));
        for broker in &self.cluster.brokers {
            let counters = broker.counters();
            assert_eq!((counters.sessions, counters.sessions_connected), (0, 0));
            assert_eq!(counters.subscriptions, 0);
            assert_eq!(broker.deadline_ms(), None);
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn run(seed: u64) {
    let mut model = Model::new(seed);
    // Two anchors per group: its members that never end, so that nothing sent to it may be lost.
    for index in 0..GROUPS.len() * 2 {
        model.open(index);
        model.deliver_mail(usize::MAX);
        model.subscribe(index, group_of(index));
    }
    let steps = 1_000 + model.random.below(4_000);
    for _ in 0..steps {
        model.step();
    }
    model.settle_down();
    if !model.lossy {
        for (id, published) in model.published.iter().enumerate() {
            let must = published.qos.is_acknowledged() && published.expires_at_ms.is_none();
            for (filter, count) in &published.group_deliveries {
                assert!(
                    !must || *count > 0,
                    "message {id} reached nobody in {filter}"
                );
            }
        }
    }
    model.empty();
}

/// [MQTT-4.5.0-1] [MQTT-4.6.0-1] [MQTT-4.6.0-5] [MQTT-4.6.0-6] [MQTT-4.3.3-10]
#[test]
fn brokers_agree_with_the_model() {
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    if let Some(seed) = number("STERNA_MODEL_SEED") {
        run(seed);
        return;
    }
    for seed in 0..number("STERNA_MODEL_RUNS").unwrap_or(40) {
        let outcome = std::panic::catch_unwind(|| run(seed));
        if let Err(panic) = outcome {
            eprintln!("failed with STERNA_MODEL_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
