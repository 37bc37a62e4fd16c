//! Kept sessions that are behind: what counts against their limits is what was published while no consumer was there.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use sterna_broker::{
    Close, Delivery, Limits, Loss, LossReason, LossWatcher, Outcome, Qos, QueueFull, SessionName,
    Unacknowledged,
};
use sterna_store::MemoryStore;

use crate::cluster::{Client, Cluster, qos, text};
use crate::late_store::LateStore;
use crate::random::Random;

const RULES: [QueueFull; 2] = [QueueFull::DropNewest, QueueFull::DropOldest];

fn limits(away_messages: u64, queue_full: QueueFull) -> Limits {
    Limits {
        away_messages,
        queue_full,
        queued_messages: 1_000,
        unacknowledged: 1_024,
        ..Limits::default()
    }
}

/// Brokers on a store, with what it has.
fn started(shards: u16, limits: &Limits, store: &MemoryStore) -> Cluster {
    let mut cluster = Cluster::with(shards, limits.clone(), |shard| {
        if shard % 2 == 1 {
            Box::new(LateStore::new(store))
        } else {
            Box::new(store.clone())
        }
    });
    for shard in 0..shards {
        let now_ms = cluster.now_ms;
        cluster.broker(shard).restore(now_ms);
        cluster.collect(shard);
    }
    for shard in 0..shards {
        let now_ms = cluster.now_ms;
        cluster.broker(shard).all_restored(now_ms);
        cluster.collect(shard);
    }
    cluster.run();
    cluster
}

fn publish(cluster: &mut Cluster, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let shard = (number % cluster.brokers.len() as u32) as u16;
        cluster.publish(shard, "t", &format!("{number:05}"), Qos::AtLeastOnce);
    }
}

fn subscriber(cluster: &mut Cluster) -> Client {
    let client = cluster.open(0, "s");
    cluster.subscribe(client, "t", qos(Qos::AtLeastOnce));
    client
}

/// Goes on with the session, and settles what comes until nothing does. Returns what came, each once.
fn all_of(cluster: &mut Cluster, client: Client) -> Vec<u32> {
    let mut numbers = Vec::new();
    // What is in flight comes by its ledger.
    let unacknowledged = cluster.broker(client.shard).unacknowledged(client.key);
    let in_flight: Vec<_> = (unacknowledged.iter())
        .map(|entry| match entry {
            Unacknowledged::Sent(delivery) => (delivery.tag, Some(text(delivery))),
            Unacknowledged::HandedOver { tag, .. } => (*tag, None),
        })
        .collect();
    for (tag, payload) in in_flight {
        numbers.extend(payload.map(|payload| number(&payload)));
        cluster.settle(client, tag, Outcome::Accepted);
    }
    loop {
        cluster.run();
        let more = cluster.drain(client);
        if more.is_empty() {
            break;
        }
        numbers.extend(more.iter().map(|payload| number(payload)));
    }
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

fn number(payload: &str) -> u32 {
    payload.parse().expect("a number")
}

/// Takes what may be in flight, and settles nothing.
fn take(cluster: &mut Cluster, client: Client) -> Vec<Delivery> {
    let mut taken = Vec::new();
    loop {
        cluster.run();
        let more = cluster.take(client);
        if more.is_empty() {
            return taken;
        }
        taken.extend(more);
    }
}

fn each(from: u32, to: u32) -> Vec<u32> {
    (from..to).collect()
}

/// Lets time pass, with all that the store answers.
fn pass(cluster: &mut Cluster, seconds: u32) {
    for _ in 0..seconds {
        cluster.pass(1_000);
        for _ in 0..4 {
            for shard in 0..cluster.brokers.len() as u16 {
                let now_ms = cluster.now_ms;
                cluster.broker(shard).poll_store(now_ms);
                cluster.collect(shard);
            }
            cluster.run();
        }
    }
}

/// The end of a connection, and the beginning of the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Disconnect,
    Flap,
    TakeOver,
    OtherShard,
    Restart,
    Kill,
}

const ENDS: [End; 6] = [
    End::Disconnect,
    End::Flap,
    End::TakeOver,
    End::OtherShard,
    End::Restart,
    End::Kill,
];

fn come_back(
    cluster: &mut Cluster,
    store: &MemoryStore,
    limits: &Limits,
    client: Client,
    end: End,
) -> Client {
    let shards = cluster.brokers.len() as u16;
    match end {
        End::Disconnect => cluster.close(client, Close::NORMAL),
        End::Flap => cluster.close(client, Close::LOST),
        End::TakeOver | End::OtherShard => {}
        End::Restart => {
            cluster.pass(1_000);
            for shard in 0..shards {
                cluster.broker(shard).write_cursors();
            }
            *cluster = started(shards, limits, store);
        }
        End::Kill => *cluster = started(shards, limits, store),
    }
    let shard = match end {
        End::OtherShard => (client.shard + 1) % shards,
        _ => client.shard,
    };
    let client = cluster.open(shard, "s");
    assert!(client.present);
    client
}

#[test]
fn what_was_published_while_a_consumer_was_connected_never_counts() {
    for queue_full in RULES {
        for end in ENDS {
            for shards in 1..=2 {
                let store = MemoryStore::new();
                let limits = limits(100, queue_full);
                let mut cluster = started(shards, &limits, &store);
                let client = subscriber(&mut cluster);
                publish(&mut cluster, 0..1_500);
                assert_eq!(take(&mut cluster, client).len(), 1_024);
                publish(&mut cluster, 1_500..3_000);
                let mut client = come_back(&mut cluster, &store, &limits, client, end);
                // Twice: what a first connection has read counts no more than before.
                take(&mut cluster, client);
                client = come_back(&mut cluster, &store, &limits, client, end);
                assert_eq!(
                    all_of(&mut cluster, client),
                    each(0, 3_000),
                    "{end:?} {queue_full:?} {shards}"
                );
                assert_eq!(cluster.broker(0).counters().dropped_full, 0);
            }
        }
    }
}

#[test]
fn a_thousand_in_flight_and_many_that_wait_are_there_after_a_restart() {
    for end in [End::Restart, End::Kill] {
        let store = MemoryStore::new();
        let limits = Limits {
            unacknowledged: 1_024,
            ..Limits::default()
        };
        let mut cluster = started(1, &limits, &store);
        let client = subscriber(&mut cluster);
        publish(&mut cluster, 0..1_900);
        assert_eq!(take(&mut cluster, client).len(), 1_024);
        let client = come_back(&mut cluster, &store, &limits, client, end);
        assert_eq!(all_of(&mut cluster, client), each(0, 1_900), "{end:?}");
    }
}

#[test]
fn what_is_published_while_no_consumer_is_there_counts() {
    for queue_full in RULES {
        for end in [End::Disconnect, End::Restart] {
            let store = MemoryStore::new();
            let limits = limits(100, queue_full);
            let mut cluster = started(2, &limits, &store);
            let client = subscriber(&mut cluster);
            publish(&mut cluster, 0..2_000);
            take(&mut cluster, client);
            cluster.close(client, Close::NORMAL);
            publish(&mut cluster, 2_000..2_300);
            if end == End::Restart {
                cluster.pass(1_000);
                cluster = started(2, &limits, &store);
            }
            publish(&mut cluster, 2_300..2_400);
            let client = cluster.open(0, "s");
            let expected = match queue_full {
                QueueFull::DropNewest => each(0, 2_100),
                QueueFull::DropOldest => [each(0, 2_000), each(2_300, 2_400)].concat(),
            };
            assert_eq!(
                all_of(&mut cluster, client),
                expected,
                "{queue_full:?} {end:?}"
            );
            let dropped: u64 = (0..2)
                .map(|shard| cluster.broker(shard).counters().dropped_full)
                .sum();
            assert_eq!(dropped, 300);
            // What is read counts no more.
            cluster.close(client, Close::LOST);
            publish(&mut cluster, 3_000..3_100);
            let client = cluster.open(1, "s");
            assert_eq!(all_of(&mut cluster, client), each(3_000, 3_100));
        }
    }
}

/// What was published while it was connected is kept each time. What was published between has one limit.
#[test]
fn who_comes_and_goes_without_reading_has_one_limit() {
    for queue_full in RULES {
        for is_restarted in [false, true] {
            let store = MemoryStore::new();
            let limits = Limits {
                unacknowledged: 5,
                ..limits(50, queue_full)
            };
            let mut cluster = started(2, &limits, &store);
            let mut client = subscriber(&mut cluster);
            publish(&mut cluster, 0..20);
            take(&mut cluster, client);
            let mut next = 20;
            let (mut kept, mut counted) = (each(0, 20), Vec::new());
            for round in 0..40_u16 {
                cluster.close(client, Close::LOST);
                publish(&mut cluster, next..next + 10);
                counted.extend(next..next + 10);
                next += 10;
                if is_restarted && round.is_multiple_of(10) {
                    cluster.pass(1_000);
                    cluster = started(2, &limits, &store);
                }
                client = cluster.open(u16::from(round % 2 == 1), "s");
                take(&mut cluster, client);
                publish(&mut cluster, next..next + 3);
                kept.extend(next..next + 3);
                next += 3;
                take(&mut cluster, client);
            }
            cluster.close(client, Close::LOST);
            client = cluster.open(0, "s");
            match queue_full {
                QueueFull::DropNewest => kept.extend(&counted[..50]),
                QueueFull::DropOldest => kept.extend(&counted[counted.len() - 50..]),
            }
            kept.sort_unstable();
            assert_eq!(
                all_of(&mut cluster, client),
                kept,
                "{queue_full:?} {is_restarted}"
            );
        }
    }
}

/// With more spans than a session keeps, the shortest are forgotten. Nothing is lost that a complete list would keep,
/// and its record stays small.
#[test]
fn who_comes_and_goes_very_often_loses_nothing_for_it() {
    let store = MemoryStore::new();
    let limits = Limits {
        unacknowledged: 5,
        ..limits(50, QueueFull::DropNewest)
    };
    let mut cluster = started(1, &limits, &store);
    let mut client = subscriber(&mut cluster);
    let (mut next, mut kept, mut counted) = (0, Vec::new(), Vec::new());
    for _ in 0..600 {
        cluster.close(client, Close::LOST);
        publish(&mut cluster, next..next + 2);
        counted.extend(next..next + 2);
        client = cluster.open(0, "s");
        publish(&mut cluster, next + 2..next + 3);
        kept.push(next + 2);
        next += 3;
    }
    cluster.pass(1_000);
    assert!(store.record_bytes() < 4_096, "{}", store.record_bytes());
    let got = all_of(&mut cluster, client);
    kept.extend(&counted[..50]);
    assert!(
        kept.iter().all(|number| got.contains(number)),
        "a complete list keeps these"
    );
    // Those of the spans that it has.
    assert!(got.len() <= 600 * 3 - 2 * 256 + 50, "{}", got.len());
}

#[derive(Debug)]
struct Watcher(Arc<Mutex<Vec<u32>>>);

impl LossWatcher for Watcher {
    fn lost(&self, loss: Loss<'_>) {
        assert_eq!(loss.reason, LossReason::Full);
        let number = loss.topic.strip_prefix("t/").expect("a known message");
        self.0.lock().expect("no panic").push(self::number(number));
    }
}

/// What counts of a message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Counts {
    No,
    /// It was published before a record said that the consumer had left, and the brokers were killed before there was
    /// one.
    Maybe,
    /// There is no such record yet.
    Unwritten,
    Yes,
}

struct Storm {
    cluster: Cluster,
    store: MemoryStore,
    limits: Limits,
    random: Random,
    client: Option<Client>,
    /// Whether it lost its consumer for what it holds of the log, and may not have read all since.
    is_limited: bool,
    /// Whether it is written that the consumer has left.
    is_left_written: bool,
    counts: Vec<Counts>,
    /// Those that were neither sent nor lost.
    unread: BTreeSet<u32>,
    /// What counts of `unread` at the beginning of this connection.
    counted: Vec<u32>,
    sent: Vec<(u64, u32)>,
    settled: BTreeSet<u32>,
    /// What may come, or be lost, again: that it was sent was not written.
    again: BTreeSet<u32>,
    lost: Arc<Mutex<Vec<u32>>>,
}

impl Storm {
    fn new(seed: u64) -> Self {
        let mut random = Random::from_seed(seed);
        let limits = Limits {
            away_messages: 1 + random.below(30),
            queue_full: RULES[random.below(2) as usize],
            unacknowledged: 1 + random.below(20) as usize,
            queued_messages: 1 + random.below(10) as usize,
            read_ahead_messages: [1, 2, 7, 256][random.below(4) as usize],
            ..Limits::default()
        };
        let store = MemoryStore::new();
        let shards = 1 + random.below(3) as u16;
        let mut model = Self {
            cluster: started(shards, &limits, &store),
            store,
            limits,
            random,
            client: None,
            is_limited: false,
            is_left_written: false,
            counts: Vec::new(),
            unread: BTreeSet::new(),
            counted: Vec::new(),
            sent: Vec::new(),
            settled: BTreeSet::new(),
            again: BTreeSet::new(),
            lost: Arc::default(),
        };
        model.watch();
        model.open();
        let client = model.client.expect("it is connected");
        model
            .cluster
            .subscribe(client, "t/+", qos(Qos::AtLeastOnce));
        model
    }

    fn shards(&self) -> u64 {
        self.cluster.brokers.len() as u64
    }

    fn watch(&mut self) {
        for broker in &mut self.cluster.brokers {
            broker.set_loss_watcher(Box::new(Watcher(Arc::clone(&self.lost))));
        }
    }

    fn publish(&mut self) {
        for _ in 0..self.random.below(25) {
            let number = self.counts.len() as u32;
            let shard = self.random.below(self.shards()) as u16;
            (self.cluster).publish(
                shard,
                &format!("t/{number}"),
                &number.to_string(),
                Qos::AtLeastOnce,
            );
            self.counts.push(match self.client {
                Some(_) if self.is_limited => Counts::Maybe,
                Some(_) => Counts::No,
                None if self.is_left_written => Counts::Yes,
                None => Counts::Unwritten,
            });
            self.unread.insert(number);
        }
        self.check_losses();
    }

    /// Nothing is lost but what counts and has no room in the queue, as it was when the connection began.
    fn check_losses(&mut self) {
        let lost = std::mem::take(&mut *self.lost.lock().expect("no panic"));
        let most = self.limits.away_messages as usize;
        for number in lost {
            // As it was when the connection began; or as it is, where the store has little room. The first of these may
            // be in memory, which stay.
            let lists = [
                (self.counted.clone(), 0),
                (self.counted_now(), self.limits.read_ahead_messages),
            ];
            let is_due = lists.iter().any(|(counted, in_memory)| {
                let at = counted.iter().position(|&counted| counted == number);
                at.is_some_and(|at| match self.limits.queue_full {
                    QueueFull::DropNewest => at >= most,
                    QueueFull::DropOldest => counted.len() - at + at.min(*in_memory) > most,
                })
            });
            assert!(
                is_due,
                "{number} is lost, which counts {:?}, is unread {}, sent {}, settled {}, again {}, with {:?} {:?} limited {}: {lists:?}",
                self.counts[number as usize],
                self.unread.contains(&number),
                self.sent.iter().any(|(_, sent)| *sent == number),
                self.settled.contains(&number),
                self.again.contains(&number),
                self.limits.queue_full,
                self.client,
                self.is_limited,
            );
            assert!(
                self.unread.remove(&number) || self.again.remove(&number),
                "{number} is lost twice"
            );
        }
    }

    fn counted_now(&self) -> Vec<u32> {
        let unread = self.unread.union(&self.again).copied();
        let counts = |number: &u32| self.counts[*number as usize] > Counts::No;
        unread.filter(counts).collect()
    }

    /// The store has little room left, for a while.
    fn press(&mut self) {
        let end = self.counts.len() as u64 + 1;
        let before = 1 + self.random.below(end);
        self.store.set_pressed_before(before);
        self.pass();
        if self.random.below(2) == 0 {
            self.store.set_pressed_before(1);
        }
    }

    fn open(&mut self) {
        if self.client.is_some() && self.random.below(2) == 0 {
            return;
        }
        self.counted = self.counted_now();
        self.unwritten_is(Counts::Yes);
        let shard = self.random.below(self.shards()) as u16;
        self.client = Some(self.cluster.open(shard, "s"));
        self.cluster.run();
        let client = self.client.expect("it is connected");
        let unacknowledged = self.cluster.broker(client.shard).unacknowledged(client.key);
        let tags: Vec<_> = unacknowledged.iter().map(Unacknowledged::tag).collect();
        let known: Vec<_> = self.sent.iter().map(|(tag, _)| *tag).collect();
        assert_eq!(tags, known, "the ledger");
        self.check_losses();
    }

    /// Returns how many came, and how many of them were not sent before.
    fn receive(&mut self, most: u64) -> (usize, usize) {
        let (mut received, mut new) = (0, 0);
        while received < most as usize
            && let Some(client) = self.client
        {
            self.cluster.run();
            let Some(delivery) = self.cluster.next(client) else {
                break;
            };
            let number = number(&text(&delivery));
            self.sent.push((delivery.tag, number));
            if self.unread.remove(&number) {
                new += 1;
            } else {
                assert!(self.again.remove(&number), "{number} comes again");
            }
            received += 1;
        }
        self.check_losses();
        (received, new)
    }

    fn settle(&mut self) {
        if let Some(client) = self.client
            && !self.sent.is_empty()
        {
            let at = self.random.below(self.sent.len() as u64) as usize;
            let (tag, number) = self.sent.remove(at);
            self.cluster.settle(client, tag, Outcome::Accepted);
            self.settled.insert(number);
            self.check_losses();
        }
    }

    fn close(&mut self) {
        if let Some(client) = self.client.take() {
            let close = [Close::LOST, Close::NORMAL][self.random.below(2) as usize];
            self.cluster.close(client, close);
            self.counted.clear();
            self.is_left_written = false;
            self.check_losses();
        }
    }

    fn pass(&mut self) {
        let seconds = 1 + self.random.below(20) as u32;
        pass(&mut self.cluster, seconds);
        if let Some(client) = self.client
            && self.cluster.was_evicted(client)
        {
            self.client = None;
            self.is_limited = true;
        }
        self.check_losses();
        self.is_left_written = true;
        self.unwritten_is(Counts::Yes);
    }

    fn unwritten_is(&mut self, now: Counts) {
        for counts in &mut self.counts {
            if *counts == Counts::Unwritten {
                *counts = now;
            }
        }
    }

    fn restart(&mut self) {
        let is_killed = self.random.below(2) == 0;
        if !is_killed {
            self.pass();
            for broker in &mut self.cluster.brokers {
                broker.write_cursors();
            }
        }
        let now_ms = self.cluster.now_ms;
        let shards = 1 + self.random.below(3) as u16;
        self.cluster = started(shards, &self.limits, &self.store);
        self.cluster.now_ms = now_ms;
        self.client = None;
        self.counted.clear();
        for (_, number) in self.sent.drain(..) {
            // What was sent counts no more, if that was written.
            let counts = &mut self.counts[number as usize];
            let most = if is_killed { Counts::Maybe } else { Counts::No };
            *counts = (*counts).min(most);
            self.unread.insert(number);
        }
        if is_killed {
            // That these were settled or lost may not be written.
            self.unwritten_is(Counts::Maybe);
            self.again = (0..self.counts.len() as u32)
                .filter(|number| !self.unread.contains(number))
                .collect();
        }
        self.watch();
        self.is_left_written = false;
    }

    fn step(&mut self) {
        let step = self.random.below(20);
        if std::env::var_os("STERNA_MODEL_TRACE").is_some() {
            let published = self.counts.len();
            eprintln!(
                "{step} with {published}, {:?}, sent {:?}",
                self.client, self.sent
            );
        }
        match step {
            0..=6 => self.publish(),
            7..=9 => self.open(),
            10..=12 => {
                let most = self.random.below(12);
                self.receive(most);
            }
            13..=15 => self.settle(),
            16..=17 => self.close(),
            18 if self.random.below(3) == 0 => self.press(),
            18 => self.pass(),
            _ if self.random.below(3) == 0 => self.restart(),
            _ => {}
        }
        self.cluster
            .brokers
            .iter()
            .for_each(sterna_broker::Broker::check);
    }

    /// All comes that is not lost, and no more of what counts than the limit is.
    fn finish(mut self) {
        self.pass();
        self.close();
        self.open();
        let certain = |number: &u32| self.counts[*number as usize] == Counts::Yes;
        let counted = self.unread.iter().filter(|number| certain(number)).count();
        let most = self.limits.away_messages as usize;
        let uncertain = self.unread.len() - counted;
        let (_, mut received) = self.receive(u64::MAX);
        loop {
            while !self.sent.is_empty() {
                self.settle();
            }
            self.cluster.run();
            let (more, new) = self.receive(u64::MAX);
            if more == 0 {
                break;
            }
            received += new;
        }
        assert!(
            received <= uncertain + most.min(counted),
            "{received} of {counted} and {uncertain}"
        );
        assert!(self.unread.is_empty(), "never came: {:?}", self.unread);
    }
}

#[test]
fn a_session_that_comes_and_goes_agrees_with_the_model() {
    crate::seeds::play("a session that is behind", 0..150, |seed| {
        let mut storm = Storm::new(seed);
        for _ in 0..200 {
            storm.step();
        }
        storm.finish();
    });
}

/// The names of sessions whose consumers were let go.
#[derive(Clone, Debug, Default)]
struct LetGo(Arc<Mutex<Vec<String>>>);

impl LetGo {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("no panic"))
    }
}

impl LossWatcher for LetGo {
    fn lost(&self, _: Loss<'_>) {}

    fn let_go(&self, session: &SessionName) {
        let id = session.id().to_owned();
        self.0.lock().expect("no panic").push(id);
    }
}

/// A reader that acknowledges nothing would fill the store: before that it is let go, once, and its limit holds until it
/// has read all.
#[test]
fn who_holds_most_of_a_store_that_is_nearly_full_is_let_go_once() {
    for queue_full in RULES {
        let store = MemoryStore::new();
        let limits = Limits {
            unacknowledged: 20,
            ..limits(50, queue_full)
        };
        let mut cluster = started(1, &limits, &store);
        let let_go = LetGo::default();
        cluster.broker(0).set_loss_watcher(Box::new(let_go.clone()));
        let client = subscriber(&mut cluster);
        let other = cluster.open(0, "other");
        cluster.subscribe(other, "t", qos(Qos::AtLeastOnce));
        publish(&mut cluster, 0..500);
        assert_eq!(take(&mut cluster, client).len(), 20);
        assert_eq!(cluster.drain(other).len(), 500);
        cluster.pass(20_000);
        assert!(!cluster.was_evicted(client), "there is room");
        store.set_pressed_before(300);
        cluster.pass(20_000);
        assert!(cluster.was_evicted(client));
        assert!(!cluster.was_evicted(other));
        assert_eq!(let_go.take(), ["s"]);
        assert_eq!(cluster.broker(0).counters().let_go, 1);
        // It is back at once, and takes nothing again.
        let client = cluster.open(0, "s");
        publish(&mut cluster, 500..1_000);
        assert_eq!(cluster.drain(other).len(), 500);
        pass(&mut cluster, 20);
        assert!(!cluster.was_evicted(client), "once");
        assert_eq!(let_go.take(), [""; 0]);
        // The store need not keep what it will not get.
        let needs = store.last_needs().expect("the store wants to know them");
        let wants = |position: u64| {
            needs.readers.iter().any(|reader| {
                let filters = &mut reader.filters.iter();
                filters.any(|filter| (filter.since..filter.until).contains(&position))
                    && position >= reader.from
            })
        };
        let (dropped, kept) = match queue_full {
            QueueFull::DropNewest => (900, 520),
            QueueFull::DropOldest => (600, 980),
        };
        assert!(wants(100) && !wants(dropped) && wants(kept), "{needs:?}");
        store.set_pressed_before(1);
        let expected = match queue_full {
            QueueFull::DropNewest => each(0, 550),
            QueueFull::DropOldest => [each(0, 500), each(950, 1_000)].concat(),
        };
        assert_eq!(all_of(&mut cluster, client), expected);
        // It has read all: what is published while it is connected does not count.
        publish(&mut cluster, 1_000..1_200);
        cluster.close(client, Close::LOST);
        let client = cluster.open(0, "s");
        assert_eq!(all_of(&mut cluster, client), each(1_000, 1_200));
    }
}

/// A connected session that owes nothing only has not said how far it has come.
#[test]
fn who_owes_nothing_is_not_let_go() {
    let store = MemoryStore::new();
    let mut cluster = started(1, &limits(50, QueueFull::DropNewest), &store);
    let let_go = LetGo::default();
    cluster.broker(0).set_loss_watcher(Box::new(let_go.clone()));
    let without = cluster.open(0, "without");
    let idle = cluster.open(0, "idle");
    cluster.subscribe(idle, "quiet", qos(Qos::AtLeastOnce));
    let away = subscriber(&mut cluster);
    cluster.close(away, Close::LOST);
    publish(&mut cluster, 0..500);
    store.set_pressed_before(300);
    cluster.pass(20_000);
    assert_eq!(let_go.take(), [""; 0]);
    assert!(!cluster.was_evicted(without) && !cluster.was_evicted(idle));
}
