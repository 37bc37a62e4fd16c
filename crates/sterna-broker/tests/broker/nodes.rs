//! Sessions that go from node to node of a cluster, in virtual time: nodes that die, stand still or hand over, what
//! they write late, and a model of the log and the records between them. From a seed come all of these.
//!
//! Each reader's ledger is checked: what was acknowledged to a publisher comes, in its order, at QoS 2 once.

use std::collections::{BTreeMap, BTreeSet};

use sterna_broker::{
    Close, Event, Limits, Opened, Outcome, Ownership, PeerGate, Qos, Record, Unacknowledged,
};

use crate::cluster::{Client, message, named, qos, text};
use crate::log_node::{Log, LogNode, Records, SHARDS, record_list};
use crate::random::Random;

const NODES: usize = 3;
struct Node {
    site: LogNode,
    /// The epoch in which it has the session, or had it as far as it knows.
    epoch: u64,
    /// Whether it has lost the session and is not told yet.
    is_deposed: bool,
    publisher: u64,
}

/// What is kept of the session.
#[derive(Default)]
struct Register {
    epoch: u64,
    records: Records,
}

struct World {
    random: Random,
    with_fence: bool,
    limits: Limits,
    log: Log,
    register: Register,
    nodes: Vec<Node>,
    epoch: u64,
    owner: Option<usize>,
    client: Option<Client>,
    /// Whether the client has its CONNACK: its session's record is kept.
    is_welcome: bool,
    next_publisher: u64,
    /// By publisher: its last number; those that wait for their acknowledgement; those that have it.
    published: BTreeMap<u64, u64>,
    waiting: Vec<(usize, usize, u64, (u64, u64))>,
    acknowledged: BTreeSet<(u64, u64)>,
    /// What the reader was sent, in order, without repetitions that it could tell by their places.
    got: Vec<(u64, u64, Qos)>,
    places: BTreeSet<u64>,
    /// Handed over, and to be settled when the record of it is kept.
    releases: Vec<(u64, u64)>,
    done: BTreeSet<u64>,
}

impl World {
    fn new(seed: u64, with_fence: bool) -> Self {
        Self::with_limits(seed, with_fence, Limits::default())
    }

    fn with_limits(seed: u64, with_fence: bool, limits: Limits) -> Self {
        let mut world = Self {
            random: Random::from_seed(seed),
            with_fence,
            limits,
            log: Log::default(),
            register: Register::default(),
            nodes: Vec::new(),
            epoch: 0,
            owner: None,
            client: None,
            is_welcome: false,
            next_publisher: 0,
            published: BTreeMap::new(),
            waiting: Vec::new(),
            acknowledged: BTreeSet::new(),
            got: Vec::new(),
            places: BTreeSet::new(),
            releases: Vec::new(),
            done: BTreeSet::new(),
        };
        for _ in 0..NODES {
            let node = world.start();
            world.nodes.push(node);
        }
        world
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    fn start(&mut self) -> Node {
        self.next_publisher += 1;
        Node {
            site: LogNode::start(&self.log, self.limits.clone(), PeerGate::new(1 << 30)),
            epoch: 0,
            is_deposed: false,
            publisher: self.next_publisher,
        }
    }

    /// The end of a turn of all shards of a node.
    fn end_turn(&mut self, at: usize) {
        let site = &mut self.nodes[at].site;
        for _ in 0..2 {
            site.poll_stores();
        }
        site.cluster.run();
        for shard in 0..SHARDS {
            site.hand_over(shard);
        }
    }

    /// The model takes some turns of a node, in their order.
    fn take_turns(&mut self, at: usize, count: usize) {
        for _ in 0..count {
            let node = &mut self.nodes[at];
            let Some(is_changed) = node.site.take_turn(|_| true) else {
                break;
            };
            let is_late = node.epoch < self.register.epoch && self.with_fence;
            if is_changed && !is_late {
                self.register.records.clone_from(&node.site.records);
            }
        }
        let site = &self.nodes[at].site;
        self.waiting.retain(|&(node, shard, token, which)| {
            let waits = node != at || !site.has_kept(shard, token);
            if !waits {
                self.acknowledged.insert(which);
            }
            waits
        });
    }

    fn follow(&mut self, at: usize, count: usize) {
        let site = &mut self.nodes[at].site;
        let _ = (0..count).all(|_| site.follow());
        self.end_turn(at);
    }

    fn publish(&mut self, at: usize) {
        let shard = self.below(u64::from(SHARDS)) as u16;
        let level = if self.below(2) == 0 {
            Qos::AtLeastOnce
        } else {
            Qos::ExactlyOnce
        };
        let node = &mut self.nodes[at];
        // A publisher has one shard.
        let publisher = node.publisher * u64::from(SHARDS) + u64::from(shard);
        let number = self.published.entry(publisher).or_default();
        *number += 1;
        let payload = format!("{publisher} {number}");
        let which = (publisher, *number);
        let routed = (node.site.cluster).send(shard, None, message("t", &payload, level, false));
        assert!(routed.token > 0, "somebody wants it in the log");
        (self.waiting).push((at, usize::from(shard), routed.token, which));
        self.end_turn(at);
    }

    /// A node ends what it has of the session. Who hands over writes everything first.
    fn let_go(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let (now_ms, name) = (node.site.cluster.now_ms, named("r"));
        for shard in 0..SHARDS {
            (node.site.cluster.broker(shard)).lose_session(now_ms, &name);
            node.site.cluster.collect(shard);
        }
        node.is_deposed = false;
        node.site.cluster.notes.clear();
        self.end_turn(at);
    }

    /// The records that a new owner takes over.
    fn take_records(&mut self, at: usize) -> Vec<Record> {
        // What it has handed over of an earlier ownership goes first.
        self.take_turns(at, usize::MAX);
        self.epoch += 1;
        self.nodes[at].epoch = self.epoch;
        self.register.epoch = self.epoch;
        self.nodes[at]
            .site
            .records
            .clone_from(&self.register.records);
        self.owner = Some(at);
        let end = self.log.lock().expect("unharmed").len();
        self.follow(at, end);
        record_list(&self.register.records)
    }

    /// The owner is to hand over, or has died, or stands still and is not told before it goes on.
    fn depose(&mut self, owner: usize) {
        if self.below(2) == 0 {
            self.nodes[owner].is_deposed = true;
        } else {
            self.let_go(owner);
            self.take_turns(owner, usize::MAX);
        }
    }

    fn connect(&mut self, at: usize) {
        self.client = None;
        self.releases.clear();
        if self.nodes[at].is_deposed {
            self.let_go(at);
        }
        let shard = self.below(u64::from(SHARDS)) as u16;
        if let Some(owner) = self.owner.filter(|&owner| owner != at) {
            self.depose(owner);
        }
        let is_here = self.owner == Some(at);
        let was_known = !self.register.records.is_empty();
        let (consumer, opened) =
            (self.nodes[at].site.cluster).start_open(shard, "r", false, 3_600, None);
        self.nodes[at].site.cluster.run();
        let claim = self.nodes[at]
            .site
            .cluster
            .notes
            .iter()
            .find_map(|note| match note {
                Ownership::Claim { session, .. } => Some(*session),
                _ => None,
            });
        self.nodes[at].site.cluster.notes.clear();
        if let Some(session) = claim {
            assert!(!is_here, "a session that is here is not claimed");
            let records = self.take_records(at);
            let cluster = &mut self.nodes[at].site.cluster;
            let now_ms = cluster.now_ms;
            (cluster.broker(shard)).session_restored(now_ms, session, records);
            cluster.collect(shard);
            cluster.run();
        }
        let cluster = &mut self.nodes[at].site.cluster;
        let (key, present) = match opened {
            Opened::Ready { session, present } => (session, present),
            Opened::Pending { .. } => (cluster.events.iter().rev())
                .find_map(|event| match event {
                    Event::Opened {
                        consumer: who,
                        session,
                        present,
                    } if *who == consumer => Some((*session, *present)),
                    _ => None,
                })
                .expect("nobody else has it"),
        };
        let client = Client {
            shard,
            key,
            consumer,
            present,
        };
        assert_eq!(present, was_known || is_here, "it finds its session again");
        if !present {
            cluster.subscribe(client, "t", qos(Qos::ExactlyOnce));
        }
        // As the door does: what was sent is sent again, the latest first so that the order stays.
        let unsettled = cluster.broker(shard).unacknowledged(key);
        let now_ms = cluster.now_ms;
        for entry in unsettled.into_iter().rev() {
            match entry {
                Unacknowledged::Sent(delivery) => {
                    let broker = cluster.broker(shard);
                    broker.settle(now_ms, key, delivery.tag, Outcome::Released);
                }
                Unacknowledged::HandedOver { tag, position } => {
                    self.releases.push((tag, position));
                }
            }
        }
        cluster.collect(shard);
        self.client = Some(client);
        self.is_welcome = !present;
        self.end_turn(at);
        if !present {
            // SUBACK leaves when it is kept.
            self.take_turns(at, usize::MAX);
        }
    }

    /// The client reads, and acknowledges some of it.
    fn read(&mut self) {
        let (Some(client), Some(at)) = (self.client, self.owner) else {
            return;
        };
        let node = &self.nodes[at];
        self.is_welcome |= node.site.is_quiet() && !node.is_deposed;
        if !self.is_welcome {
            return;
        }
        for _ in 0..self.below(6) {
            let Some(delivery) = self.nodes[at].site.cluster.next(client) else {
                break;
            };
            self.nodes[at].site.cluster.run();
            let payload = text(&delivery);
            let (publisher, number) = payload.split_once(' ').expect("two numbers");
            let which = (
                publisher.parse().expect("a number"),
                number.parse().expect("a number"),
            );
            assert!(
                !self.done.contains(&delivery.position),
                "{which:?} of QoS 2 comes after it was released"
            );
            let is_new = self.places.insert(delivery.position);
            // [MQTT-3.3.1-1]
            assert!(
                is_new || delivery.redelivered || !self.with_fence,
                "{which:?} has come before"
            );
            if is_new {
                self.got.push((which.0, which.1, delivery.qos));
            }
            match (delivery.qos, self.below(3)) {
                (_, 0) => {}
                (Qos::ExactlyOnce, _) => {
                    let cluster = &mut self.nodes[at].site.cluster;
                    let broker = cluster.broker(client.shard);
                    assert!(broker.handed_over(client.key, delivery.tag));
                    self.releases.push((delivery.tag, delivery.position));
                }
                _ => {
                    let tag = delivery.tag;
                    (self.nodes[at].site.cluster).settle(client, tag, Outcome::Accepted);
                }
            }
        }
        self.end_turn(at);
        // PUBREL leaves when the record is kept; here when all is.
        if self.below(2) == 0 {
            self.take_turns(at, usize::MAX);
        }
        if self.nodes[at].site.is_quiet() {
            for (tag, position) in std::mem::take(&mut self.releases) {
                self.done.insert(position);
                (self.nodes[at].site.cluster).settle(client, tag, Outcome::Accepted);
            }
            self.end_turn(at);
        }
    }

    /// Those that stood still go on, at the worst moment.
    fn wake_deposed(&mut self) {
        for at in 0..NODES {
            if self.nodes[at].is_deposed {
                self.let_go(at);
                self.take_turns(at, usize::MAX);
            }
        }
    }

    fn kill(&mut self, at: usize) {
        if self.owner == Some(at) && self.below(2) == 0 {
            self.wake_deposed();
        }
        if self.owner == Some(at) {
            self.client = None;
            self.releases.clear();
            self.owner = None;
        }
        self.waiting.retain(|&(node, ..)| node != at);
        self.nodes[at] = self.start();
    }

    /// A survivor takes over the session of a node that died.
    fn adopt(&mut self, at: usize) {
        if self.owner.is_some() || self.register.records.is_empty() {
            return;
        }
        if self.nodes[at].is_deposed {
            self.let_go(at);
        }
        let records = self.take_records(at);
        let shard = self.below(u64::from(SHARDS)) as u16;
        let cluster = &mut self.nodes[at].site.cluster;
        let now_ms = cluster.now_ms;
        assert!(cluster.broker(shard).adopt(now_ms, &named("r"), &records));
        cluster.collect(shard);
        cluster.run();
        cluster.notes.clear();
        self.end_turn(at);
    }

    fn step(&mut self) {
        let at = self.below(NODES as u64) as usize;
        match self.below(20) {
            0..=5 => self.publish(at),
            6..=7 => {
                let count = self.below(4) as usize;
                self.take_turns(at, count);
            }
            8..=10 => {
                let count = self.below(8) as usize;
                self.follow(at, count);
            }
            11..=14 => self.read(),
            15..=16 => self.connect(at),
            17 if self.below(3) == 0 => {
                let at = self.owner.unwrap_or(at);
                self.kill(at);
            }
            17 => self.adopt(at),
            18 if self.nodes[at].is_deposed => self.let_go(at),
            18 => {
                if let (Some(client), Some(owner)) = (self.client.take(), self.owner) {
                    self.nodes[owner].site.cluster.close(client, Close::LOST);
                    self.releases.clear();
                    self.end_turn(owner);
                }
            }
            _ => {
                let for_ms = self.below(3_000);
                self.nodes[at].site.cluster.pass(for_ms);
                self.end_turn(at);
            }
        }
        let cluster = &self.nodes[at].site.cluster;
        for broker in &cluster.brokers {
            broker.check();
        }
    }

    /// Everything comes to rest, and the reader reads all of it.
    fn rest(&mut self) {
        for at in 0..NODES {
            if self.nodes[at].is_deposed {
                self.let_go(at);
            }
            self.take_turns(at, usize::MAX);
        }
        self.connect(0);
        let mut before = usize::MAX;
        let mut idle = 0;
        while idle < 20 {
            for at in 0..NODES {
                self.take_turns(at, usize::MAX);
                self.follow(at, usize::MAX);
            }
            self.read();
            idle = if before == self.got.len() {
                idle + 1
            } else {
                0
            };
            before = self.got.len();
        }
    }

    /// What is wrong with the ledger.
    fn fault(&self) -> Option<String> {
        let mut last = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for &(publisher, number, _) in &self.got {
            if !seen.insert((publisher, number)) {
                return Some(format!("{publisher} {number} came twice"));
            }
            let last = last.entry(publisher).or_insert(0);
            if number < *last {
                return Some(format!("{publisher} {number} came after {last}"));
            }
            *last = number;
        }
        // What the reader had subscribed for.
        let first = self.got.first()?;
        let log = self.log.lock().expect("unharmed");
        let begin = log.iter().position(|message| {
            message.payload() == format!("{} {}", first.0, first.1).as_bytes()
        })?;
        let missing = log[begin..].iter().find_map(|message| {
            let payload = std::str::from_utf8(message.payload()).ok()?;
            let (publisher, number) = payload.split_once(' ')?;
            let which = (publisher.parse().ok()?, number.parse().ok()?);
            (self.acknowledged.contains(&which) && !seen.contains(&which)).then_some(which)
        });
        missing.map(|which| format!("{which:?} was acknowledged and never came"))
    }
}

fn play(seed: u64, with_fence: bool) -> Option<String> {
    let mut world = World::new(seed, with_fence);
    world.connect(0);
    for _ in 0..300 {
        world.step();
    }
    world.rest();
    assert!(world.nodes.iter().all(|node| node.site.end() > 0));
    world.fault()
}

#[test]
fn what_a_session_has_goes_where_its_client_goes() {
    crate::seeds::play("sessions of nodes", 0..150, |seed| {
        assert_eq!(play(seed, true), None, "seed {seed}");
    });
}

/// What a node was about to remove of a session's records when it lost the session is removed then, and not when it
/// has the session again.
#[test]
fn what_was_handed_over_before_a_session_went_and_came_back_stays_so() {
    assert_eq!(play(1_982, true), None);
}

/// Who lost a session writes over what the next owner has written: somebody must notice.
#[test]
fn without_the_fence_messages_are_lost_or_come_twice() {
    let is_noticed = |&seed: &u64| {
        let played = std::panic::catch_unwind(|| play(seed, false));
        !matches!(played, Ok(None))
    };
    let found = (0..60).filter(is_noticed).count();
    assert!(
        found > 1,
        "only {found} of 60 seeds have found a late write"
    );
}

/// Its limits count only what was published while it had no consumer on any node.
#[test]
fn a_session_that_is_behind_gets_all_on_the_node_that_goes_on_with_it() {
    for owner_dies in [false, true] {
        for is_adopted in [false, true] {
            let limits = Limits {
                away_messages: 10,
                queued_messages: 20,
                ..Limits::default()
            };
            let mut world = World::with_limits(1, true, limits);
            world.connect(0);
            for _ in 0..3 {
                for _ in 0..100 {
                    world.publish(1);
                }
                // What is published is kept and comes to the owner; its reader takes some, and is behind.
                world.take_turns(1, usize::MAX);
                world.follow(0, usize::MAX);
                world.follow(1, usize::MAX);
                world.read();
                world.nodes[0].site.cluster.pass(1_000);
                world.end_turn(0);
                world.take_turns(0, usize::MAX);
            }
            assert!(world.got.len() < 20, "it is behind");
            let owner = world.owner.expect("it has one");
            if owner_dies {
                world.kill(owner);
                if is_adopted {
                    world.adopt(2);
                }
            } else if is_adopted {
                // Its client is elsewhere before its node has let go of it.
                world.connect(2);
            }
            world.rest();
            let case = format!("{owner_dies} {is_adopted}");
            assert_eq!(world.acknowledged.len(), 300, "{case}");
            assert_eq!(world.fault(), None, "{case}");
            let got: BTreeSet<_> = world
                .got
                .iter()
                .map(|&(by, number, _)| (by, number))
                .collect();
            assert_eq!(got, world.acknowledged, "{case}");
            // And while it has none, they do.
            let client = world.client.take().expect("it is connected");
            let at = world.owner.expect("it has one");
            world.nodes[at].site.cluster.close(client, Close::LOST);
            world.end_turn(at);
            world.take_turns(at, usize::MAX);
            for _ in 0..30 {
                world.publish(1);
            }
            world.take_turns(1, usize::MAX);
            world.follow(at, usize::MAX);
            world.rest();
            // What comes again is read before it.
            for _ in 0..200 {
                for at in 0..NODES {
                    world.take_turns(at, usize::MAX);
                    world.follow(at, usize::MAX);
                }
                world.read();
            }
            assert_eq!(world.acknowledged.len(), 330, "{case}");
            assert_eq!(world.got.len(), 310, "{case}");
        }
    }
}
