//! Random sessions on random shards against a naive model, in virtual time.
//!
//! Hundreds of clients connect, move, subscribe, publish, acknowledge, leave and expire on one to
//! four shards, while mail between the shards arrives in random order (in order per pair). The model
//! knows, per session, which messages it must get and which it may get, in which order, with which
//! options; and what it has been sent and not acknowledged. After the storm everything must have
//! arrived, and when all have gone, nothing may be left.
//!
//! `STERNA_MODEL_TRACE=<session>` prints what happens to one session.

mod clients;
mod queue;
mod state;

use std::collections::{BTreeMap, HashMap};

use sterna_broker::{
    Broker, Close, ConsumerId, Event, Limits, NoStore, Outcome, Pressure, QueueFull, SessionKey,
};
use sterna_store::MemoryStore;

use crate::cluster::{Client, Cluster};
use crate::late_store::LateStore;
use state::{
    Connection, FILTERS, Fate, GROUPS, Published, Random, Session, TOPICS, client_id, group_of,
};

fn cluster(shards: u16, limits: Limits, store: Option<&MemoryStore>) -> Cluster {
    // An odd one has a store that answers late.
    let is_late = limits.read_ahead_messages % 2 == 1;
    Cluster::with(shards, limits, |_| match store {
        Some(store) if is_late => Box::new(LateStore::new(store)),
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
            // Often less of a group's queue is in memory than waits; an odd one has a store that answers late.
            read_ahead_messages: [2, 3, 17, 256][random.below(4)],
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
            let (Event::Evicted { consumer, .. }
            | Event::Opened { consumer, .. }
            | Event::Drained { consumer, .. }
            | Event::LostRight { consumer, .. }
            | Event::Unsubscribed { consumer, .. }) = event;
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
                Event::LostRight { .. } => panic!("no rules forbid anything"),
                Event::Unsubscribed { consumer, .. } => {
                    let session = &self.sessions[self.consumers[&consumer]];
                    assert!(
                        session
                            .connections
                            .iter()
                            .any(|connection| connection.ready
                                && connection.client.consumer == consumer),
                        "only who has its session is told"
                    );
                }
                Event::Drained { .. } => panic!("nobody asked"),
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
            session.repeatable.clear();
            session.got.clear();
            session.latest.clear();
            session.protocol.clear();
            if expired || fate.unordered {
                session.epoch += 1;
            }
        }

        session.may_expire_at_ms = u64::MAX;
        let broker = &mut self.cluster.brokers[usize::from(client.shard)];
        let records = broker.take_records(key);
        if !records.is_empty() {
            let marks = records.iter().map(|(mark, _)| &**mark);
            let mut marks: Vec<_> = marks
                .map(|mark| u32::from_le_bytes(mark.try_into().expect("four")))
                .collect();
            marks.sort_unstable();
            *broker.protocol_mut(key).expect("it is ready") = marks;
        }
        let unacknowledged = broker.unacknowledged(key);
        if std::mem::take(&mut session.restarted) {
            // In the order of the log, and with new tags.
            session.sent.sort_by_key(|sent| sent.position);
            let is_killed = std::mem::take(&mut session.killed);
            for entry in &unacknowledged {
                let mut sent = session.sent.iter_mut();
                if let Some(sent) = sent.find(|sent| sent.position == entry.position()) {
                    sent.tag = entry.tag();
                    continue;
                }
                // That it was settled was not written yet.
                assert!(is_killed, "session {index} has settled {entry:?}");
                let outcome = Outcome::Accepted;
                assert!(broker.settle(now_ms, key, entry.tag(), outcome));
            }
        }
        let sent: Vec<_> = broker
            .unacknowledged(key)
            .iter()
            .map(|entry| (entry.tag(), entry.is_handed_over()))
            .collect();
        let known: Vec<_> = session
            .sent
            .iter()
            .map(|sent| (sent.tag, sent.is_handed_over))
            .collect();
        assert_eq!(sent, known, "the ledger of session {index}");
        assert_eq!(broker.protocol(key), Some(&session.protocol));
    }

    fn deliver_mail(&mut self, letters: usize) {
        for _ in 0..letters {
            if self.random.chance(20) {
                self.cluster.poll_stores();
                self.take_events();
            }
            let pairs = self.cluster.pairs();
            if pairs.is_empty() {
                if letters == usize::MAX && self.cluster.poll_stores() {
                    self.take_events();
                    continue;
                }
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

    fn check_brokers(&self) {
        self.cluster.brokers.iter().for_each(Broker::check);
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
            31..=33 => self.unsubscribe(index),
            34 => self.unsubscribe_all(),
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
                    let marks = &mut self.sessions[index].protocol;
                    marks.push(mark);
                    marks.sort_unstable();
                    let broker = self.cluster.broker(client.shard);
                    let protocol = broker.protocol_mut(client.key).expect("it is ready");
                    protocol.clone_from(marks);
                    broker.keep(client.key, &mark.to_le_bytes(), b"");
                }
            }
            88 if self.random.chance(3) => self.restart(),
            89 => self.press(),
            _ => {
                let letters = self.random.below(12);
                self.deliver_mail(letters);
            }
        }
    }

    /// Memory becomes short, or is not any more: what waits moves to the log, and nobody sees that.
    fn press(&mut self) {
        let pressure = if self.random.chance(60) {
            Pressure::MoveToLog
        } else {
            Pressure::None
        };
        self.cluster.directory.set_pressure(pressure);
        let now_ms = self.cluster.now_ms;
        for shard in 0..self.shards() as u16 {
            let broker = self.cluster.broker(shard);
            broker.feel_pressure();
            broker.relieve_again();
            while broker.relieve(now_ms) {}
            self.cluster.collect(shard);
        }
        self.take_events();
    }

    /// The brokers go down with all connections, and come back from their store, maybe on another
    /// number of shards.
    fn restart(&mut self) {
        let Some(store) = self.store.clone() else {
            return;
        };
        self.deliver_mail(usize::MAX);
        let is_killed = self.random.chance(50);
        if !is_killed {
            // Cursors are written, and all shards have told how far they are.
            for _ in 0..3 {
                self.pass_time(1_000);
                self.deliver_mail(usize::MAX);
            }
        }
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
            session.restart(is_killed, self.lossy, &self.published);
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
        // A store may have answered behind the back of who had nothing to receive before.
        let mut quiet_rounds = 0;
        while quiet_rounds < 2 {
            let mut received = 0;
            for index in 0..self.sessions.len() {
                received += self.receive(index, usize::MAX);
                while self.ready(index).is_some() && !self.sessions[index].sent.is_empty() {
                    self.acknowledge(index);
                }
                self.deliver_mail(usize::MAX);
            }
            quiet_rounds = if received == 0 { quiet_rounds + 1 } else { 0 };
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
        // Records that wait for cursors go when all shards have answered.
        for _ in 0..3 {
            self.pass_time(100_000);
            let now_ms = self.cluster.now_ms;
            for broker in &mut self.cluster.brokers {
                // It hears of groups that have ended, also where no timer is set.
                broker.timeout(now_ms);
            }
            self.cluster.run();
        }
        self.cluster.assert_empty();
        if let Some(store) = &self.store {
            let keys: Vec<_> = store.keys();
            let keys: Vec<_> = keys
                .iter()
                .map(|key| key.escape_ascii().to_string())
                .collect();
            assert_eq!(keys, Vec::<String>::new(), "records");
        }
        assert_eq!(self.cluster.directory.sessions(), 0);
        assert_eq!(self.cluster.directory.subscriptions(), 0);
        assert_eq!(self.cluster.directory.retained(), (0, 0));
        for broker in &self.cluster.brokers {
            let counters = broker.counters();
            assert_eq!((counters.sessions, counters.sessions_connected), (0, 0));
            assert_eq!(counters.subscriptions, 0);
            assert!(broker.deadline_ms().is_none() || self.store.is_some());
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
    for step in 0..steps {
        model.step();
        // All of it costs more than a step.
        if step % 16 == 0 {
            model.check_brokers();
        }
    }
    model.check_brokers();
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
    crate::seeds::play("the broker's model", 0..40, run);
}
