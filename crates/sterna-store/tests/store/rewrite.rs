//! Brokers on the engine, with segments that are rewritten beneath them. All their readers get what they would get
//! without that: sessions of MQTT and of HTTP, shared subscriptions, and queues.
#![allow(clippy::unwrap_used)] // it is all test

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use proptest::prelude::*;
use sterna_broker::{
    Broker, Close, ConsumerId, Directory, Event, Limits, Message, MessageHeader, OpenSession,
    Opened, Outcome, Publication, Qos, SessionKey, SessionName, ShardId, SubscribeOptions,
};
use sterna_store::disk::{Disk, SimulatedDisk};
use sterna_store::{Engine, Settings, ShardStore, inspect};

const START_MS: u64 = 1_700_000_000_000;
const IDENTITY: [u8; 16] = *b"rewritten stores";
/// Topics that are published. Those that nobody wants for long are most of the log.
const TOPICS: [&str; 8] = ["a/0", "a/1", "a/2", "a/3", "q/0", "s/0", "busy/0", "busy/1"];

/// A reader: its name, and its filters.
const READERS: [(&str, &[&str]); 8] = [
    ("narrow", &["a/3"]),
    ("two filters", &["a/0", "a/1/#"]),
    ("fickle", &["a/2"]),
    // A session that takes messages on demand, as one of AMQP or HTTP does.
    ("on demand", &["a/1"]),
    ("busy", &["busy/#"]),
    ("consumer", &["$share/q/q/#"]),
    ("first member", &["$share/g/s/+"]),
    ("second member", &["$share/g/s/+"]),
];
const FICKLE: usize = 2;
const ON_DEMAND: usize = 3;
const CONSUMER: usize = 5;

#[derive(Clone, Debug)]
enum Op {
    /// Messages on a topic, from a shard on.
    Publish(usize, usize, u8),
    /// A reader comes to a shard.
    Connect(usize, usize),
    Leave(usize),
    /// A reader takes some messages, and settles all but each so manieth.
    Take(usize, u8, u8),
    /// The fickle reader changes its mind about a topic.
    Subscribe(usize, bool),
    Pass(u16),
    /// All brokers end in order, or not, and others begin.
    Restart {
        shards: u16,
        in_order: bool,
    },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let reader = 0..READERS.len();
    let publish = (0..TOPICS.len(), 0..4_usize, 1..12_u8);
    let op = prop_oneof![
        12 => publish.prop_map(|(topic, shard, count)| Op::Publish(topic, shard, count)),
        4 => (reader.clone(), 0..4_usize).prop_map(|(reader, shard)| Op::Connect(reader, shard)),
        3 => reader.clone().prop_map(Op::Leave),
        8 => (reader, 1..30_u8, 2..9_u8).prop_map(|(reader, most, nth)| Op::Take(reader, most, nth)),
        1 => (0..4_usize, any::<bool>()).prop_map(|(topic, wants)| Op::Subscribe(topic, wants)),
        6 => (1..400_u16).prop_map(Op::Pass),
        1 => (1..4_u16, any::<bool>())
            .prop_map(|(shards, in_order)| Op::Restart { shards, in_order }),
    ];
    prop::collection::vec(op, 1..250)
}

struct World {
    disk: SimulatedDisk,
    settings: Settings,
    engine: Engine,
    brokers: Vec<Broker<()>>,
    now_ms: u64,
    /// Where readers are that are connected.
    open: BTreeMap<usize, (usize, SessionKey)>,
    /// What each reader has got, in the order in which it came first.
    got: Vec<Vec<String>>,
    known: Vec<BTreeSet<String>>,
    published: u32,
    /// Segments that earlier engines have rewritten.
    rewritten: u64,
}

fn limits() -> Limits {
    Limits {
        survey_interval_ms: 100,
        cursor_interval_ms: 50,
        read_ahead_messages: 8,
        queued_messages: 100_000,
        group_queued_messages: 100_000,
        ..Limits::default()
    }
}

fn start(
    disk: &SimulatedDisk,
    settings: &Settings,
    shards: u16,
    now_ms: u64,
) -> (Engine, Vec<Broker<()>>) {
    let engine = Engine::open_with_identity(Arc::new(disk.clone()), settings.clone(), IDENTITY);
    let engine = engine.unwrap();
    assert_eq!(engine.report().damage, []);
    let directory = Directory::new(shards, limits(), 7);
    let failure = Arc::new(OnceLock::new());
    let mut brokers: Vec<Broker<()>> = (0..shards)
        .map(|shard| {
            let handle = engine.handle(Box::new(|| {}));
            let store = Box::new(ShardStore::new(handle, Arc::clone(&failure)));
            Broker::new(ShardId(shard), Arc::clone(&directory), store)
        })
        .collect();
    for broker in &mut brokers {
        broker.restore(now_ms);
    }
    assert_eq!(failure.get(), None);
    (engine, brokers)
}

impl World {
    fn new(rewrites: bool) -> Self {
        let settings = Settings {
            segment_bytes: 4 << 10,
            minimum_free_bytes: 0,
            checkpoint_interval_ms: 40,
            maximum_rewrite_readers: if rewrites { 64 } else { 0 },
            rewrite_interval_ms: 0,
            rewrite_least_percent: 10,
            rewrite_bytes_per_s: u64::MAX,
            ..Settings::default()
        };
        let disk = SimulatedDisk::new(3);
        let (engine, brokers) = start(&disk, &settings, 2, START_MS);
        let mut world = Self {
            disk,
            settings,
            engine,
            brokers,
            now_ms: START_MS,
            open: BTreeMap::new(),
            got: vec![Vec::new(); READERS.len()],
            known: vec![BTreeSet::new(); READERS.len()],
            published: 0,
            rewritten: 0,
        };
        // The queue outlives its consumer by a session that nobody uses.
        let anchor = world.open_session(0, "anchor", true);
        world.subscribe(0, anchor, "$share/q/q/#", true);
        world.close(0, anchor);
        for reader in 0..READERS.len() {
            world.connect(reader, reader);
            world.leave(reader);
        }
        world
    }

    /// Lets the store work, and hands letters over, until nothing moves.
    fn run(&mut self) {
        for _ in 0..4 {
            loop {
                let mail: Vec<_> = self
                    .brokers
                    .iter_mut()
                    .flat_map(|broker| broker.take_mail().collect::<Vec<_>>())
                    .collect();
                if mail.is_empty() {
                    break;
                }
                for (to, mail) in mail {
                    self.brokers[usize::from(to.0)].mail(self.now_ms, mail);
                }
            }
            for broker in &mut self.brokers {
                broker.flush_store();
            }
            self.disk.set_now_ms(self.now_ms - START_MS);
            self.engine.turn(self.now_ms - START_MS, &mut || false);
            self.engine.check();
            for broker in &mut self.brokers {
                broker.poll_store(self.now_ms);
            }
        }
    }

    fn pass(&mut self, ms: u64) {
        let until_ms = self.now_ms + ms;
        while self.now_ms < until_ms {
            self.now_ms = until_ms.min(self.now_ms + 25);
            for broker in &mut self.brokers {
                broker.timeout(self.now_ms);
            }
            self.run();
        }
    }

    fn open_session(&mut self, shard: usize, client_id: &str, on_demand: bool) -> SessionKey {
        let request = OpenSession {
            name: SessionName::new(None, client_id),
            clean_start: false,
            expiry_s: 1_000_000,
            consumer: ConsumerId(1),
            will: None,
            on_demand,
            selector: None,
        };
        match self.brokers[shard].open(self.now_ms, request).unwrap() {
            Opened::Ready { session, .. } => session,
            Opened::Pending { .. } => {
                self.run();
                loop {
                    let event = self.brokers[shard].next_event();
                    if let Event::Opened { session, .. } = event.expect("the session arrives") {
                        return session;
                    }
                }
            }
        }
    }

    fn subscribe(&mut self, shard: usize, session: SessionKey, filter: &str, keep: bool) {
        let options = SubscribeOptions {
            qos: Qos::AtLeastOnce,
            keep,
            ..SubscribeOptions::default()
        };
        let subscribed = self.brokers[shard].subscribe(self.now_ms, session, filter, options);
        subscribed.unwrap();
        self.run();
    }

    fn close(&mut self, shard: usize, session: SessionKey) {
        self.brokers[shard].close(self.now_ms, session, Close::LOST);
        self.run();
    }

    fn connect(&mut self, reader: usize, shard: usize) {
        if self.open.contains_key(&reader) {
            return;
        }
        let shard = shard % self.brokers.len();
        let (name, filters) = READERS[reader];
        let session = self.open_session(shard, name, reader == ON_DEMAND);
        if self.published == 0 {
            for filter in filters {
                self.subscribe(shard, session, filter, reader == CONSUMER);
            }
        }
        if reader == ON_DEMAND {
            self.brokers[shard].demand(self.now_ms, session, 100_000);
        }
        self.open.insert(reader, (shard, session));
        self.run();
    }

    fn leave(&mut self, reader: usize) {
        if let Some((shard, session)) = self.open.remove(&reader) {
            self.close(shard, session);
        }
    }

    fn take(&mut self, reader: usize, most: u8, unsettled_nth: u8) {
        let Some(&(shard, session)) = self.open.get(&reader) else {
            return;
        };
        for _ in 0..most {
            let mut next = self.brokers[shard].next_delivery(self.now_ms, session);
            if next.is_none() {
                // It is read in the log.
                self.run();
                next = self.brokers[shard].next_delivery(self.now_ms, session);
            }
            let Some(delivery) = next else {
                break;
            };
            let payload = String::from_utf8(delivery.message.payload().to_vec()).unwrap();
            let number: u32 = payload.split(' ').next().unwrap().parse().unwrap();
            if self.known[reader].insert(payload.clone()) {
                self.got[reader].push(payload);
            }
            if !number.is_multiple_of(unsettled_nth.into()) {
                let broker = &mut self.brokers[shard];
                broker.settle(self.now_ms, session, delivery.tag, Outcome::Accepted);
            }
        }
        self.run();
    }

    fn publish(&mut self, topic: usize, shard: usize, count: u8) {
        let shard = shard % self.brokers.len();
        for _ in 0..count {
            self.published += 1;
            let payload = format!("{} {}", self.published, "x".repeat(150));
            let header = MessageHeader {
                qos: Qos::AtLeastOnce,
                ..MessageHeader::default()
            };
            let message = Message::copy(TOPICS[topic], &[], payload.as_bytes(), header).unwrap();
            let publication = Publication::new(None, message);
            let routed = self.brokers[shard].publish(self.now_ms, publication);
            assert_eq!(routed.refused, None);
        }
        self.run();
    }

    fn restart(&mut self, shards: u16, in_order: bool) {
        self.stop(in_order);
        self.begin(shards);
    }

    fn stop(&mut self, in_order: bool) {
        self.run();
        self.rewritten += self.engine.usage_reader().usage().rewritten_segments;
        self.open.clear();
        if in_order {
            for broker in &mut self.brokers {
                broker.write_cursors();
            }
            self.run();
        }
        self.brokers.clear();
        self.disk.kill_process();
    }

    fn begin(&mut self, shards: u16) {
        let now_ms = self.now_ms;
        let (engine, brokers) = start(&self.disk, &self.settings, shards, now_ms);
        self.engine = engine;
        self.brokers = brokers;
        self.run();
    }

    fn act(&mut self, op: &Op) {
        match *op {
            Op::Publish(topic, shard, count) => self.publish(topic, shard, count),
            Op::Connect(reader, shard) => self.connect(reader, shard),
            Op::Leave(reader) => self.leave(reader),
            Op::Take(reader, most, nth) => self.take(reader, most, nth),
            Op::Subscribe(topic, wants) => {
                let Some(&(shard, session)) = self.open.get(&FICKLE) else {
                    return;
                };
                if wants {
                    self.subscribe(shard, session, TOPICS[topic], false);
                } else {
                    self.brokers[shard].unsubscribe(self.now_ms, session, TOPICS[topic]);
                    self.run();
                }
            }
            Op::Pass(ms) => self.pass(ms.into()),
            Op::Restart { shards, in_order } => self.restart(shards, in_order),
        }
    }

    /// Everybody comes and gets the rest. Returns what each reader got, and what the members got together.
    fn finish(&mut self) -> Vec<Vec<String>> {
        self.pass(400);
        for reader in 0..READERS.len() {
            self.leave(reader);
        }
        for reader in 0..READERS.len() {
            self.connect(reader, reader);
            let mut before = usize::MAX;
            while before != self.got[reader].len() {
                before = self.got[reader].len();
                for _ in 0..3 {
                    self.pass(10);
                    self.take(reader, 100, u8::MAX);
                }
            }
            self.leave(reader);
        }
        for broker in &mut self.brokers {
            broker.check();
        }
        let mut got = self.got.clone();
        let members = got.split_off(CONSUMER);
        // Who of a group gets a message, and when it comes again, is a matter of chance.
        for several in [&members[..1], &members[1..]] {
            let all: BTreeSet<String> = several.iter().flatten().cloned().collect();
            got.push(all.into_iter().collect());
        }
        got
    }

    fn rewritten(&self) -> u64 {
        self.rewritten + self.engine.usage_reader().usage().rewritten_segments
    }

    fn log_bytes(&self) -> usize {
        let names = self.disk.list("log").unwrap().into_iter();
        let logs = names.filter(|name| name.strip_suffix(".log").is_some());
        logs.filter_map(|name| Some(self.disk.content(&format!("log/{name}"))?.len()))
            .sum()
    }
}

fn numbers(got: &[String]) -> Vec<&str> {
    got.iter()
        .filter_map(|payload| payload.split(' ').next())
        .collect()
}

fn compare(ops: &[Op]) -> u64 {
    let [(plain, _), (rewriting, rewritten)] = [false, true].map(|rewrites| {
        let mut world = World::new(rewrites);
        for op in ops {
            world.act(op);
        }
        (world.finish(), world.rewritten())
    });
    for (reader, (plain, rewriting)) in plain.iter().zip(&rewriting).enumerate() {
        let name = READERS[reader].0;
        assert_eq!(numbers(plain), numbers(rewriting), "{name}");
    }
    rewritten
}

/// Enough cases for each run of all tests; `PROPTEST_CASES` asks for more.
fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    let cases = std::env::var("PROPTEST_CASES").map_or(24, |_| default.cases);
    ProptestConfig {
        cases,
        max_shrink_iters: 400,
        ..default
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_reader_gets_what_it_gets_without_rewriting(ops in ops()) {
        compare(&ops);
    }
}

/// Everybody sleeps, but for one that wants most of what is published.
fn sleepers() -> Vec<Op> {
    let mut ops = Vec::new();
    for round in 0..40 {
        for topic in 0..TOPICS.len() {
            let count = if topic >= 6 { 10 } else { 1 };
            ops.push(Op::Publish(topic, round % 3, count));
        }
        // One that wants most of it is there now and then, and lets the rest sleep.
        ops.push(Op::Connect(4, round));
        for _ in 0..4 {
            ops.push(Op::Take(4, 30, u8::MAX));
        }
        ops.push(Op::Pass(150));
        if round % 9 == 4 {
            ops.push(Op::Restart {
                shards: 1 + (round % 3) as u16,
                in_order: round % 2 == 0,
            });
        }
    }
    ops
}

/// One history that shows that the comparison is about something.
#[test]
fn sleepers_of_all_kinds_get_theirs_and_the_disk_has_little_else() {
    let ops = sleepers();
    let rewritten = compare(&ops);
    assert!(rewritten > 20, "{rewritten} segments");
    let bytes = [false, true].map(|rewrites| {
        let mut world = World::new(rewrites);
        for op in &ops {
            world.act(op);
        }
        world.pass(2_000);
        world.log_bytes()
    });
    assert!(bytes[1] * 2 < bytes[0], "{bytes:?}");
}

/// What the broker tells while it runs, its records say, too.
#[test]
fn a_store_is_compacted_to_what_the_readers_in_its_records_need() {
    let ops = sleepers();
    let [plain, compacted] = [false, true].map(|compacts| {
        let mut world = World::new(false);
        for op in &ops {
            world.act(op);
        }
        world.pass(2_000);
        world.stop(true);
        if compacts {
            let disk: Arc<dyn Disk> = Arc::new(world.disk.clone());
            let none = inspect::needs(&disk, &world.settings).unwrap();
            assert_eq!(none.readers, [], "none may be listed");
            let settings = Settings {
                maximum_rewrite_readers: 64,
                ..world.settings.clone()
            };
            let needs = inspect::needs(&disk, &settings).unwrap();
            assert!(
                needs.readers.len() > READERS.len(),
                "all sessions, and both groups"
            );
            let before = world.log_bytes();
            inspect::compact(&disk, &settings, needs).unwrap();
            let after = world.log_bytes();
            assert!(after * 2 < before, "{after} of {before} bytes");
            assert_eq!(inspect::inspect(&disk).unwrap().damage, []);
        }
        world.begin(2);
        world.finish()
    });
    for (reader, (plain, compacted)) in plain.iter().zip(&compacted).enumerate() {
        assert_eq!(numbers(plain), numbers(compacted), "{}", READERS[reader].0);
    }
}

/// A reader that comes back in the midst of a rewriting, on another shard, has its messages in order.
#[test]
fn a_session_comes_back_while_its_segments_are_rewritten() {
    let mut world = World::new(true);
    // A part of a rewriting takes its time.
    world.settings.rewrite_bytes_per_s = 200_000;
    world.restart(2, true);
    world.connect(4, 0);
    // The shard that had it holds the log for it for a while.
    world.pass(21_000);
    for round in 0..60 {
        for (topic, count) in [(3, 1), (6, 10), (7, 10)] {
            world.publish(topic, round, count);
        }
        world.take(4, 60, u8::MAX);
        world.pass(50);
    }
    for shard in [1, 0, 1] {
        world.pass(60);
        world.connect(0, shard);
        world.take(0, 7, u8::MAX);
        world.leave(0);
    }
    world.pass(3_000);
    let got = world.finish();
    let rounds: Vec<u32> = (0..60).map(|round| 1 + round * 21).collect();
    let found: Vec<u32> = numbers(&got[0])
        .iter()
        .map(|number| number.parse().unwrap())
        .collect();
    assert_eq!(found, rounds);
    assert!(world.rewritten() > 10, "{} segments", world.rewritten());
}
