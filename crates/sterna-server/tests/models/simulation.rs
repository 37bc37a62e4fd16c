//! The whole server above the transports in virtual time: hundreds of clients that subscribe, publish,
//! lose their connections and take their sessions over, from a seed, against a naive model of what MQTT
//! promises.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sterna_broker::{Directory, Limits, NoStore};
use sterna_mqtt::Version;
use sterna_net::TransportKind;
use sterna_net::sim::{ClientOptions, Settings, Simulation, Step};
use sterna_server::config::Config;
use sterna_server::{
    HttpRegistry, Letters, Parts, Policy, Registry, Repetitions, Shard, metrics, sys,
};

use crate::naive::{Event, Naive, matches};

const CLIENTS: usize = 150;
const ROUNDS: usize = 3;
const PUBLICATIONS: usize = 250;
/// Longer than anything on the way takes, in virtual time.
const SETTLED_MS: u64 = 120_000;

/// Topics that are published to, and filters over them.
const TOPICS: [&str; 8] = [
    "a",
    "a/b",
    "a/b/c",
    "a/x/c",
    "b",
    "b/c",
    "$local/a",
    "deep/er/and/deep/er",
];
const FILTERS: [&str; 12] = [
    "a",
    "a/b",
    "a/#",
    "a/+/c",
    "+/b",
    "#",
    "+",
    "b/#",
    "+/+/c",
    "$local/#",
    "deep/+/and/#",
    "/a",
];
const GROUPS: [&str; 3] = ["$share/g1/a/#", "$share/g2/#", "$share/g1/b/c"];

/// What was published, by payload.
struct Publication {
    publisher: usize,
    topic: &'static str,
    qos: u8,
    number: usize,
}

/// A subscription as its client made it.
type Subscriptions = BTreeMap<&'static str, u8>;

struct World {
    sim: Simulation<Shard>,
    clients: Vec<Naive>,
    subscriptions: Vec<Subscriptions>,
    published: Vec<Publication>,
    /// Clients whose connection was cut and who have not noticed.
    unaware: BTreeSet<usize>,
    shards: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let shards = 1 + (seed as usize) % 4;
        let mut config = Config::default();
        config.sys.interval_s = 0;
        let limits = Limits {
            queued_messages: 1_000_000,
            ..Limits::default()
        };
        let directory = Directory::new(shards as u16, limits, seed);
        let amqp = Arc::new(Registry::default());
        let http = Arc::new(HttpRegistry::default());
        let repetitions = Arc::new(Repetitions::default());
        let policy = Arc::new(Policy::load(&config).expect("a policy"));
        let board = Arc::new(sys::Board::new(shards));
        let settings = Settings::default();
        let start_ms = settings.start_ms;
        let sources = Arc::new(metrics::Sources::new(shards, start_ms));
        let sim = Simulation::new(seed, settings, shards, |number, courier| {
            let parts = Parts {
                number,
                directory: Arc::clone(&directory),
                store: Box::new(NoStore),
                amqp: Arc::clone(&amqp),
                http: Arc::clone(&http),
                repetitions: Arc::clone(&repetitions),
                policy: Arc::clone(&policy),
                checker: None,
                bans: Arc::default(),
                seats: Arc::default(),
                tracer: None,
                outbox: Box::new(Letters::new(courier)),
                cluster: None,
                board: Arc::clone(&board),
                sources: Arc::clone(&sources),
                memory: None,
                sys_interval_ms: 0,
                high_watermark_bytes: 16 << 10,
            };
            Shard::new(parts, start_ms)
        });
        let clients = (0..CLIENTS)
            .map(|n| {
                let version = if n % 3 == 0 {
                    Version::V311
                } else {
                    Version::V5
                };
                Naive::new(format!("client-{n}"), version)
            })
            .collect();
        Self {
            sim,
            clients,
            subscriptions: vec![Subscriptions::new(); CLIENTS],
            published: Vec::new(),
            unaware: BTreeSet::new(),
            shards,
        }
    }

    fn below(&mut self, end: usize) -> usize {
        self.sim.random().below(end as u64) as usize
    }

    /// Connects a client anew, wherever its last connection stands: that may be a takeover.
    fn connect(&mut self, n: usize) {
        let shard = self.below(self.shards);
        let transport = if self.below(2) == 0 {
            TransportKind::Quic
        } else {
            TransportKind::Simulated
        };
        let options = ClientOptions {
            shard: Some(shard),
            transport,
            ..ClientOptions::default()
        };
        let link = self.sim.connect(options);
        let clean = self.clients[n].is_new();
        let flight = self.clients[n].connect(link, clean);
        self.unaware.remove(&n);
        self.sim.send(link, sterna_net::StreamId::FIRST, &flight);
    }

    /// Takes steps for some time, with clients answering what they get.
    fn run(&mut self, ms: u64) {
        let until_ms = self.sim.now_ms() + ms;
        while self.sim.now_ms() < until_ms {
            match self.sim.step(until_ms) {
                None => break,
                Some(Step::Turn { .. }) => {}
                Some(Step::Client(link)) => {
                    let Some(n) = self.clients.iter().position(|c| c.link() == Some(link)) else {
                        continue;
                    };
                    self.answer(n);
                }
            }
        }
    }

    fn answer(&mut self, n: usize) {
        let Some(link) = self.clients[n].link() else {
            return;
        };
        let stream = sterna_net::StreamId::FIRST;
        let bytes = self.sim.take(link, stream);
        let answer = self.clients[n].receive(&bytes);
        if !answer.is_empty() {
            self.sim.send(link, stream, &answer);
        }
        if self.sim.closed(link).is_some() {
            self.clients[n].lost();
        }
    }

    fn send(&mut self, n: usize, bytes: &[u8]) {
        if let Some(link) = self.clients[n].link() {
            self.sim.send(link, sterna_net::StreamId::FIRST, bytes);
        }
    }

    /// Everybody subscribes and unsubscribes, and it is waited for.
    fn change_subscriptions(&mut self) {
        for n in 0..CLIENTS {
            if self.clients[n].link().is_none() {
                self.connect(n);
            }
            for _ in 0..self.below(4) {
                let at = self.below(FILTERS.len() + GROUPS.len());
                let filter = FILTERS.iter().chain(&GROUPS).nth(at).expect("one of them");
                let qos = self.below(3) as u8;
                if self.below(4) == 0 {
                    self.subscriptions[n].remove(filter);
                    let packet = self.clients[n].unsubscribe(filter);
                    self.send(n, &packet);
                } else {
                    self.subscriptions[n].insert(filter, qos);
                    let packet = self.clients[n].subscribe(filter, qos);
                    self.send(n, &packet);
                }
            }
        }
        self.run(SETTLED_MS);
        for (n, client) in self.clients.iter().enumerate() {
            assert_eq!(
                client.unanswered(),
                0,
                "client {n}: requests without an answer"
            );
        }
    }

    /// Messages, while connections are lost and sessions move.
    fn publish_in_a_storm(&mut self) {
        for _ in 0..PUBLICATIONS {
            match self.below(10) {
                0 => {
                    let n = self.below(CLIENTS);
                    if let Some(link) = self.clients[n].link() {
                        self.sim.cut(link);
                        if self.below(2) == 0 {
                            // The device knows at once, the broker later or never before the next
                            // connection.
                            self.clients[n].lost();
                        } else {
                            self.unaware.insert(n);
                        }
                    }
                }
                1 => {
                    let n = self.below(CLIENTS);
                    self.connect(n);
                }
                _ => {
                    let n = self.below(CLIENTS);
                    if !self.clients[n].is_connected() {
                        continue;
                    }
                    let topic = TOPICS[self.below(TOPICS.len())];
                    let qos = self.below(3) as u8;
                    let number = self.published.len();
                    self.published.push(Publication {
                        publisher: n,
                        topic,
                        qos,
                        number,
                    });
                    let packet = self.clients[n].publish(topic, &number.to_string(), qos);
                    self.send(n, &packet);
                }
            }
            let ms = self.below(30) as u64;
            self.run(ms);
        }
        // Everybody comes back, and everything under way arrives.
        for _ in 0..2 {
            for n in 0..CLIENTS {
                if !self.clients[n].is_connected() || self.unaware.contains(&n) {
                    self.connect(n);
                }
            }
            self.run(SETTLED_MS);
        }
        for (n, client) in self.clients.iter().enumerate() {
            assert!(client.is_connected(), "client {n} is not connected");
            assert_eq!(
                client.unacknowledged(),
                0,
                "client {n}: publications without an answer"
            );
        }
    }

    /// Compares what every session got with what it was owed, and forgets both.
    fn check(&mut self) {
        let received: Vec<Vec<Event>> = self.clients.iter_mut().map(Naive::take_log).collect();
        let mut shared: BTreeMap<(&str, usize), usize> = BTreeMap::new();
        for (n, events) in received.iter().enumerate() {
            let mut times: BTreeMap<usize, usize> = BTreeMap::new();
            let mut last: BTreeMap<(usize, &str, u8), usize> = BTreeMap::new();
            let mut seen: BTreeSet<usize> = BTreeSet::new();
            for event in events {
                let publication = &self.published[event.number];
                assert_eq!(event.topic, publication.topic);
                let key = (publication.publisher, publication.topic, publication.qos);
                *times.entry(event.number).or_default() += 1;
                // Order is that of first arrival; a copy for a shared subscription takes another way.
                if seen.insert(event.number) && !self.shares(n, publication.topic) {
                    let before = last.insert(key, event.number);
                    assert!(
                        before.is_none_or(|before| before < event.number),
                        "client {n}: {} of {key:?} after {before:?}",
                        event.number
                    );
                }
            }
            for publication in &self.published {
                let got = times.get(&publication.number).copied().unwrap_or_default();
                self.check_one(n, publication, got, &mut shared);
            }
        }
        self.check_groups(&shared);
        self.published.clear();
    }

    fn shares(&self, n: usize, topic: &str) -> bool {
        self.subscriptions[n].keys().any(|filter| {
            crate::naive::shared(filter).is_some_and(|(_, filter)| matches(filter, topic))
        })
    }

    /// What one session is owed of one publication through subscriptions of its own.
    fn check_one(
        &self,
        n: usize,
        publication: &Publication,
        got: usize,
        shared: &mut BTreeMap<(&'static str, usize), usize>,
    ) {
        let number = publication.number;
        let own = self.subscriptions[n]
            .iter()
            .filter(|(filter, _)| crate::naive::shared(filter).is_none())
            .filter(|(filter, _)| matches(filter, publication.topic))
            .map(|(_, qos)| *qos)
            .max();
        let groups: Vec<&'static str> = self.subscriptions[n]
            .keys()
            .filter(|filter| {
                crate::naive::shared(filter)
                    .is_some_and(|(_, filter)| matches(filter, publication.topic))
            })
            .copied()
            .collect();
        let granted = own.map(|qos| qos.min(publication.qos));
        if groups.is_empty() {
            match granted {
                None => assert_eq!(got, 0, "client {n} never asked for {number}"),
                // A publication of QoS 1 that its publisher repeats is a new one.
                Some(0) => assert!(
                    got <= 1 || publication.qos == 1,
                    "client {n}: {number} came {got} times at QoS 0"
                ),
                Some(1) => assert!(got >= 1, "client {n} misses {number} at QoS 1"),
                Some(_) => assert!(got == 1, "client {n}: {number} came {got} times at QoS 2"),
            }
        } else {
            // Its own copy cannot be told from those of its groups: the sum is checked.
            for group in groups {
                *shared.entry((group, number)).or_default() += got;
            }
        }
    }

    /// Somebody of every group got every message above QoS 0.
    fn check_groups(&self, shared: &BTreeMap<(&'static str, usize), usize>) {
        for group in GROUPS {
            let (_, filter) = crate::naive::shared(group).expect("a shared subscription");
            let members: Vec<u8> = self
                .subscriptions
                .iter()
                .filter_map(|s| s.get(group))
                .copied()
                .collect();
            if members.is_empty() || members.contains(&0) {
                continue;
            }
            for publication in &self.published {
                if publication.qos == 0 || !matches(filter, publication.topic) {
                    continue;
                }
                let got = shared
                    .get(&(group, publication.number))
                    .copied()
                    .unwrap_or_default();
                assert!(got >= 1, "nobody of {group} got {}", publication.number);
            }
        }
    }
}

fn play(seed: u64) {
    let mut world = World::new(seed);
    for _ in 0..ROUNDS {
        world.change_subscriptions();
        for client in &mut world.clients {
            client.take_log();
        }
        world.publish_in_a_storm();
        world.check();
    }
}

#[test]
fn every_session_gets_what_it_is_owed_whatever_happens_to_its_connections() {
    crate::seeds::play("the simulation", 0..12, play);
}

#[test]
fn two_runs_from_one_seed_are_equal() {
    let run = || {
        let mut world = World::new(5);
        world.change_subscriptions();
        world.publish_in_a_storm();
        world.sim.fingerprint()
    };
    assert_eq!(run(), run());
}
