//! One kept queue and its consumers against a model: they come and go on random shards, ask for more
//! and less, choose, settle in every way; letters between the shards arrive in random order.
//!
//! What must hold: nothing is lost or accepted twice; nobody has more pending than it asked for, at
//! any moment; a publication is refused exactly when the queue is full; failures are counted; after
//! the storm what is left comes in order.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use sterna_broker::{
    Broker, Close, ConsumerId, Event, Limits, Message, NEVER_EXPIRES_S, OpenSession, Opened,
    Outcome, Qos, Selector, SessionName,
};
use sterna_store::MemoryStore;

use super::cluster;
use super::state::Random;
use crate::cluster::{Client, Cluster, message, named, qos, text};

const QUEUE: &str = "$share/queue/q/#";
const NAMES: usize = 6;
const FULL: usize = 25;
const WINDOW: u32 = 4;

#[derive(Debug)]
struct Wants(u8);

impl Selector for Wants {
    fn selects(&self, message: &Message, _steps: &mut u64) -> Option<bool> {
        Some(message.payload()[0] == self.0)
    }
}

#[derive(Clone, Debug)]
struct Consumer {
    client: Client,
    is_ready: bool,
    wants: Option<u8>,
    /// What it asked for and wasn't handed; `None` if it takes a group's window.
    credit: Option<u32>,
    held: Vec<(u64, String)>,
    refused: BTreeSet<String>,
    drains: usize,
    /// Since it was drained, and until it asks again: what is pending, which can only become less.
    at_rest: Option<usize>,
}

struct Storm {
    cluster: Cluster,
    random: Random,
    store: Option<MemoryStore>,
    consumers: Vec<Consumer>,
    /// Messages that were published and not accepted, and how often they failed.
    open: BTreeMap<String, u16>,
    accepted: BTreeSet<String>,
    published: usize,
    publishers: HashMap<String, u16>,
    restarted: bool,
}

impl Storm {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let shards = 1 + random.below(4) as u16;
        let limits = Limits {
            group_queued_messages: FULL,
            group_window: WINDOW,
            route_backlog: random.below(10),
            queued_bytes: [64 << 20, 40][random.below(2)],
            // Often less is in memory than waits.
            read_ahead_messages: [1, 2, 5, 256][random.below(4)],
            read_ahead_bytes: [20, 100, 1 << 20][random.below(3)],
            ..Limits::default()
        };
        let store = random.chance(50).then(MemoryStore::new);
        let mut cluster = cluster(shards, limits, store.as_ref());
        cluster.keep(random.below(shards.into()) as u16, QUEUE);
        cluster.events.clear();
        Self {
            cluster,
            random,
            store,
            consumers: Vec::new(),
            open: BTreeMap::new(),
            accepted: BTreeSet::new(),
            published: 0,
            publishers: HashMap::new(),
            restarted: false,
        }
    }

    fn any_shard(&mut self) -> u16 {
        self.random.below(self.cluster.brokers.len()) as u16
    }

    fn any_ready(&mut self) -> Option<usize> {
        let ready: Vec<_> = (0..self.consumers.len())
            .filter(|&at| self.consumers[at].is_ready)
            .collect();
        (!ready.is_empty()).then(|| ready[self.random.below(ready.len())])
    }

    fn open(&mut self) {
        let name = self.random.below(NAMES);
        let shard = self.any_shard();
        let wants = [None, Some(b'a'), Some(b'b')][self.random.below(3)];
        let on_demand = self.random.chance(80);
        let client_id = format!("c{name}");
        let request = OpenSession {
            name: SessionName::new(None, &client_id),
            clean_start: self.random.chance(20),
            expiry_s: [0, 100][self.random.below(2)],
            consumer: ConsumerId::default(),
            will: None,
            on_demand,
            selector: wants.map(|wants| Arc::new(Wants(wants)) as Arc<dyn Selector>),
        };
        let (consumer, opened) = self.cluster.start_request(shard, request);
        let (Opened::Ready { session: key, .. } | Opened::Pending { session: key }) = opened;
        self.take_events();
        self.consumers.push(Consumer {
            client: Client {
                shard,
                key,
                consumer,
                present: false,
            },
            is_ready: false,
            wants,
            credit: on_demand.then_some(0),
            held: Vec::new(),
            refused: BTreeSet::new(),
            drains: 0,
            at_rest: None,
        });
        if matches!(opened, Opened::Ready { .. }) {
            self.opened(consumer);
        } else if self.random.chance(50) {
            // It may ask before its session is there.
            self.demand(self.consumers.len() - 1);
        }
    }

    fn opened(&mut self, consumer: ConsumerId) {
        let known = self.consumers.iter_mut();
        let consumer = known
            .into_iter()
            .find(|known| known.client.consumer == consumer)
            .expect("who opened is known");
        consumer.is_ready = true;
        let client = consumer.client;
        // If its session has lasted it is a member already.
        let now_ms = self.cluster.now_ms;
        self.cluster
            .broker(client.shard)
            .subscribe(now_ms, client.key, QUEUE, qos(Qos::ExactlyOnce))
            .expect("a valid filter");
        self.cluster.collect(client.shard);
    }

    /// A consumer's connection is over: what it held is the queue's again.
    fn gone(&mut self, at: usize) {
        for (_, payload) in self.consumers.remove(at).held {
            assert!(self.open.contains_key(&payload), "it is not accepted");
        }
    }

    fn take_events(&mut self) {
        for event in std::mem::take(&mut self.cluster.events) {
            let (Event::Evicted { consumer, .. }
            | Event::Opened { consumer, .. }
            | Event::Drained { consumer, .. }
            | Event::LostRight { consumer, .. }
            | Event::Unsubscribed { consumer, .. }) = event;
            let at = self
                .consumers
                .iter()
                .position(|known| known.client.consumer == consumer)
                .expect("only who is there is told");
            match event {
                Event::Evicted { .. } => self.gone(at),
                Event::Unsubscribed { .. } | Event::LostRight { .. } => {
                    panic!("a kept queue stays")
                }
                Event::Opened { .. } => self.opened(consumer),
                Event::Drained { .. } => {
                    let pending = self.cluster.pending(self.consumers[at].client);
                    let consumer = &mut self.consumers[at];
                    assert!(consumer.is_ready, "not before its session is there");
                    consumer.drains -= 1;
                    if consumer.drains == 0 && consumer.at_rest.is_some() {
                        consumer.at_rest = Some(pending);
                    }
                }
            }
        }
    }

    fn demand(&mut self, at: usize) {
        let credit = self.random.below(8) as u32;
        let consumer = &mut self.consumers[at];
        if consumer.credit.is_some() {
            consumer.credit = Some(credit);
            consumer.at_rest = None;
            let client = consumer.client;
            self.cluster.demand(client, credit);
        }
    }

    fn drain(&mut self, at: usize) {
        let consumer = &mut self.consumers[at];
        consumer.drains += 1;
        // Until it is told there may come more.
        consumer.at_rest = consumer.credit.map(|_| usize::MAX);
        let client = consumer.client;
        self.cluster.start_drain(client);
        self.take_events();
    }

    fn receive(&mut self, at: usize) {
        let client = self.consumers[at].client;
        for _ in 0..=self.random.below(5) {
            if self.consumers[at].credit == Some(0) {
                return;
            }
            let Some(delivery) = self.cluster.next(client) else {
                return;
            };
            let consumer = &mut self.consumers[at];
            let payload = text(&delivery);
            assert!(delivery.qos.is_acknowledged() && delivery.tag != 0);
            assert!(
                consumer
                    .wants
                    .is_none_or(|wants| payload.as_bytes()[0] == wants)
            );
            assert!(
                !consumer.refused.contains(&payload),
                "it can't have {payload}"
            );
            let failures = self.open.get(&payload);
            let failures = failures.unwrap_or_else(|| panic!("{payload} was accepted before"));
            assert!(
                delivery.failures == *failures || (self.restarted && delivery.failures < *failures),
                "{payload} failed {failures} times, not {}",
                delivery.failures
            );
            // A kill forgets those that were not written.
            *self.open.get_mut(&payload).expect("it is there") = delivery.failures;
            consumer.credit = consumer.credit.map(|credit| credit - 1);
            consumer.held.push((delivery.tag, payload));
        }
    }

    fn settle(&mut self, at: usize) {
        let consumer = &mut self.consumers[at];
        if consumer.held.is_empty() {
            return;
        }
        let which = self.random.below(consumer.held.len());
        let (tag, payload) = consumer.held.swap_remove(which);
        let outcome = match self.random.below(8) {
            0 => Outcome::Released,
            1 => Outcome::Failed,
            2 => Outcome::Undeliverable,
            4 => Outcome::Declined,
            3 => Outcome::Rejected(0x80),
            _ => Outcome::Accepted,
        };
        match outcome {
            Outcome::Released => {}
            Outcome::Declined => {
                consumer.refused.insert(payload);
            }
            Outcome::Failed | Outcome::Undeliverable => {
                *self.open.get_mut(&payload).expect("it is there") += 1;
                if outcome == Outcome::Undeliverable {
                    consumer.refused.insert(payload);
                }
            }
            Outcome::Accepted | Outcome::Rejected(_) => {
                self.open.remove(&payload);
                assert!(self.accepted.insert(payload), "accepted twice");
            }
        }
        let client = self.consumers[at].client;
        let now_ms = self.cluster.now_ms;
        let broker = self.cluster.broker(client.shard);
        assert!(broker.settle(now_ms, client.key, tag, outcome));
        self.cluster.collect(client.shard);
    }

    fn close(&mut self, at: usize) {
        let client = self.consumers[at].client;
        let now_ms = self.cluster.now_ms;
        let broker = self.cluster.broker(client.shard);
        broker.close(now_ms, client.key, Close::LOST);
        self.cluster.collect(client.shard);
        self.gone(at);
    }

    fn publish(&mut self) {
        let payload = format!("{}{:05}", ["a", "b"][self.random.below(2)], self.published);
        self.published += 1;
        let shard = self.any_shard();
        let out: usize = (0..self.consumers.len())
            .map(|at| {
                let consumer = &self.consumers[at];
                consumer.held.len() + self.cluster.pending(self.consumers[at].client)
            })
            .sum();
        let is_quiet = self.cluster.pairs().is_empty();
        let is_full = self.open.len() - out >= FULL;
        let message = message("q/1", &payload, self.random.qos(), false);
        let routed = self.cluster.send(shard, None, message);
        if is_quiet {
            assert_eq!(
                routed.is_refused(),
                is_full,
                "{} of {FULL}",
                self.open.len() - out
            );
        }
        if !routed.is_refused() {
            assert_eq!(routed.matched, 1);
            self.publishers.insert(payload.clone(), shard);
            self.open.insert(payload, 0);
        }
    }

    fn deliver_mail(&mut self, letters: usize) {
        for _ in 0..letters {
            if self.random.chance(30) {
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
            self.check();
        }
    }

    /// Whatever is on its way: nobody has more pending than it asked for.
    fn check(&mut self) {
        self.cluster.brokers.iter().for_each(Broker::check);
        for at in 0..self.consumers.len() {
            let consumer = self.consumers[at].clone();
            let pending = self.cluster.pending(consumer.client);
            assert!(pending as u32 <= consumer.credit.unwrap_or(WINDOW));
            if let Some(at_rest) = consumer.at_rest {
                assert!(pending <= at_rest, "it was drained, and got more");
                if at_rest != usize::MAX {
                    self.consumers[at].at_rest = Some(pending);
                }
            }
        }
    }

    /// The brokers go down with all connections, and come back from their store.
    fn restart(&mut self) {
        let Some(store) = self.store.clone() else {
            return;
        };
        self.deliver_mail(usize::MAX);
        // As at an orderly end; what a kill may repeat is the other model's business.
        for broker in &mut self.cluster.brokers {
            broker.write_cursors();
        }
        while !self.consumers.is_empty() {
            self.gone(0);
        }
        let limits = self.cluster.directory.limits().clone();
        let now_ms = self.cluster.now_ms;
        let shards = 1 + self.random.below(4) as u16;
        self.cluster = cluster(shards, limits, Some(&store));
        self.cluster.now_ms = now_ms;
        for shard in 0..shards {
            self.cluster.broker(shard).restore(now_ms);
            self.cluster.collect(shard);
        }
        for shard in 0..shards {
            // Nobody gives the queue rules: it is read with the first timers.
            self.cluster.broker(shard).timeout(now_ms);
            self.cluster.collect(shard);
        }
        self.cluster.run();
        self.restarted = true;
    }

    fn step(&mut self) {
        let ready = self.any_ready();
        match (self.random.below(100), ready) {
            (0..=6, _) if self.consumers.len() < 2 * NAMES => self.open(),
            (7..=9, Some(at)) => self.close(at),
            (10..=29, Some(at)) => self.demand(at),
            (30..=33, Some(at)) => self.drain(at),
            (34..=49, Some(at)) => self.receive(at),
            (50..=64, Some(at)) => self.settle(at),
            (65..=79, _) => self.publish(),
            (80, _) => {
                // The anchor moves.
                let shard = self.any_shard();
                self.deliver_mail(usize::MAX);
                let anchor = self
                    .cluster
                    .open_with(shard, QUEUE, false, NEVER_EXPIRES_S, None);
                assert!(anchor.present);
                self.cluster.events.retain(|event| {
                    !matches!(event, Event::Opened { consumer, .. } if *consumer == anchor.consumer)
                });
                self.take_events();
                self.cluster.close(anchor, Close::NORMAL);
                self.take_events();
            }
            (81, _) if self.random.chance(50) => self.restart(),
            _ => {
                let letters = self.random.below(8);
                self.deliver_mail(letters);
            }
        }
        self.check();
    }

    fn finish(mut self) {
        self.deliver_mail(usize::MAX);
        while let Some(consumer) = self.consumers.first() {
            assert!(consumer.is_ready, "all sessions have arrived");
            assert_eq!(consumer.drains, 0, "all that asked were told");
            self.close(0);
            self.deliver_mail(usize::MAX);
        }
        let shard = self.any_shard();
        // What was lost with its consumer waits for a while.
        self.cluster.pass(60_000);
        let last = self.cluster.consume(shard, "last", QUEUE);
        self.cluster.demand(last, 10_000);
        self.cluster.run();
        let mut rest = self.cluster.drain(last);
        loop {
            // Where it may not hold them all at once, more comes when some are settled.
            self.cluster.run();
            let more = self.cluster.drain(last);
            if more.is_empty() {
                break;
            }
            rest.extend(more);
        }
        assert_eq!(rest.len(), self.open.len(), "all that is left comes");
        // In order, per shard that published it.
        let mut latest: HashMap<u16, &str> = HashMap::new();
        for payload in &rest {
            assert!(self.open.contains_key(payload));
            let latest = latest.entry(self.publishers[payload]).or_default();
            assert!(*latest < &payload[1..], "{payload} comes too late");
            *latest = &payload[1..];
        }
        self.cluster.close(last, Close::NORMAL);
        self.cluster.assert_empty();
        let now_ms = self.cluster.now_ms;
        let names = (0..NAMES).map(|name| format!("c{name}"));
        for name in names.chain([QUEUE.to_owned()]) {
            self.cluster.broker(0).end_session_of(now_ms, &named(&name));
            self.cluster.collect(0);
            self.cluster.run();
        }
        for shard in 0..self.cluster.brokers.len() {
            // It hears of the queue's end.
            self.cluster.brokers[shard].timeout(now_ms);
        }
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
    }
}

fn run(seed: u64) {
    let mut storm = Storm::new(seed);
    for _ in 0..1_500 {
        storm.step();
    }
    storm.finish();
}

#[test]
fn a_kept_queue_agrees_with_the_model() {
    crate::seeds::play("a kept queue", 0..40, run);
}
