//! Sessions that go from node to node of a cluster, in virtual time: nodes that die, stand still or hand over, what
//! they write late, and a model of the log and the records between them. From a seed come all of these.
//!
//! Each reader's ledger is checked: what was acknowledged to a publisher comes, in its order, at QoS 2 once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use sterna_broker::{
    Appended, Change, Close, Committed, Destination, Event, Frame, Full, Keeping, Limits, Message,
    Opened, Outcome, Outgoing, Ownership, PeerGate, Qos, ReadAnswer, ReadRequest, Record, Store,
    Unacknowledged, Wanted,
};

use crate::cluster::{Client, Cluster, message, qos, text};

const NODES: usize = 3;
const SHARDS: u16 = 2;
/// Positions have gaps, as those of entries have.
pub(crate) const APART: u64 = 1 << 10;

/// The log, whose first message has the position `APART`.
pub(crate) type Log = Arc<Mutex<Vec<Arc<Message>>>>;

pub(crate) fn position(at: usize) -> u64 {
    (at as u64 + 1) * APART
}

/// A shard's store: it reads the common log, and is told when what was handed over is kept.
#[derive(Debug)]
pub(crate) struct NodeStore {
    pub(crate) log: Log,
    pub(crate) end: Arc<AtomicU64>,
    pub(crate) committed: Arc<AtomicU64>,
    pub(crate) answers: VecDeque<ReadAnswer>,
}

impl Store for NodeStore {
    fn next_position(&self) -> u64 {
        self.end.load(Ordering::SeqCst)
    }

    fn append(&mut self, _: Frame<'_>) -> Result<Appended, Full> {
        Err(Full)
    }

    fn committed(&self) -> Committed {
        let token = self.committed.load(Ordering::SeqCst);
        Committed {
            written: token,
            synced: token,
        }
    }

    fn came_by(&mut self, position: u64) {
        self.end.fetch_max(position + 1, Ordering::SeqCst);
    }

    fn read(&mut self, request: ReadRequest) {
        let mut answer = ReadAnswer {
            reader: request.reader,
            messages: Vec::new(),
            next: request.to,
        };
        for (at, message) in self.log.lock().expect("unharmed").iter().enumerate() {
            let position = position(at);
            if (request.from..request.to).contains(&position) {
                // Encoded and read again, as from the wire.
                let mut record = Vec::new();
                message.encode(&mut record);
                let message = Message::decode(record.into()).expect("its own form");
                answer.messages.push((position, Arc::new(message)));
                if answer.messages.len() == request.most_messages {
                    answer.next = position + 1;
                    break;
                }
            }
        }
        self.answers.push_back(answer);
    }

    fn next_answer(&mut self) -> Option<ReadAnswer> {
        self.answers.pop_front()
    }

    fn read_now(&mut self, request: ReadRequest) -> ReadAnswer {
        ReadAnswer {
            next: request.to,
            ..ReadAnswer::default()
        }
    }

    fn load(&mut self, _: &mut dyn FnMut(&[u8], &[u8])) {}

    fn needed_from(&mut self, _: u64) {}
}

/// What a shard had in one turn.
struct Turn {
    shard: usize,
    token: u64,
    outgoing: Vec<Outgoing>,
    changes: Vec<Change>,
}

struct Node {
    cluster: Cluster,
    committed: Vec<Arc<AtomicU64>>,
    end: Arc<AtomicU64>,
    followed: usize,
    turns: VecDeque<Turn>,
    /// The epoch in which it has the session, or had it as far as it knows.
    epoch: u64,
    /// What it writes, as a whole.
    records: Records,
    /// Whether it has lost the session and is not told yet.
    is_deposed: bool,
    publisher: u64,
}

type Records = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// What is kept of the session.
#[derive(Default)]
struct Register {
    epoch: u64,
    records: Records,
}

struct World {
    random: u64,
    with_fence: bool,
    log: Log,
    register: Register,
    nodes: Vec<Node>,
    epoch: u64,
    owner: Option<usize>,
    client: Option<Client>,
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
        let mut world = Self {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            with_fence,
            log: Log::default(),
            register: Register::default(),
            nodes: Vec::new(),
            epoch: 0,
            owner: None,
            client: None,
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
        self.random = self
            .random
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (self.random >> 33) % bound
    }

    fn start(&mut self) -> Node {
        let followed = self.log.lock().expect("unharmed").len();
        let end = Arc::new(AtomicU64::new(position(followed)));
        let committed: Vec<_> = (0..SHARDS).map(|_| Arc::new(AtomicU64::new(0))).collect();
        let limits = Limits {
            read_ahead_messages: 5,
            ..Limits::default()
        };
        let mut cluster = Cluster::with(SHARDS, limits, |shard| {
            Box::new(NodeStore {
                log: Arc::clone(&self.log),
                end: Arc::clone(&end),
                committed: Arc::clone(&committed[usize::from(shard)]),
                answers: VecDeque::new(),
            })
        });
        cluster.is_granted = false;
        let gate = Arc::new(PeerGate::new(1 << 30));
        gate.set_open(true);
        for shard in 0..SHARDS {
            let broker = cluster.broker(shard);
            broker.join_cluster(Arc::clone(&gate));
            broker.set_keeping(Keeping::Synced);
            broker.restore(1_000_000);
        }
        let durable = Wanted {
            is_durable: true,
            ..Wanted::NOBODY
        };
        cluster
            .broker(0)
            .set_wanted(vec![(Arc::from("t"), durable)]);
        cluster.collect(0);
        cluster.run();
        self.next_publisher += 1;
        Node {
            cluster,
            committed,
            end,
            followed,
            turns: VecDeque::new(),
            epoch: 0,
            records: Records::new(),
            is_deposed: false,
            publisher: self.next_publisher,
        }
    }

    /// The end of a turn of all shards of a node.
    fn end_turn(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        for _ in 0..2 {
            node.cluster.run();
            for shard in 0..SHARDS {
                let now_ms = node.cluster.now_ms;
                node.cluster.broker(shard).poll_store(now_ms);
                node.cluster.collect(shard);
            }
        }
        node.cluster.run();
        for shard in 0..SHARDS {
            let changes = node.cluster.broker(shard).take_changes();
            if let Some((token, outgoing)) = node.cluster.broker(shard).take_outgoing() {
                node.turns.push_back(Turn {
                    shard: usize::from(shard),
                    token,
                    outgoing,
                    changes,
                });
            }
        }
    }

    /// The model takes some turns of a node, in their order.
    fn take_turns(&mut self, at: usize, count: usize) {
        for _ in 0..count {
            let node = &mut self.nodes[at];
            let Some(turn) = node.turns.pop_front() else {
                break;
            };
            for Outgoing {
                message,
                destination,
            } in turn.outgoing
            {
                assert!(matches!(destination, Destination::Log { .. }));
                self.log.lock().expect("unharmed").push(message);
            }
            let epoch = node.epoch;
            let is_late = epoch < self.register.epoch && self.with_fence;
            let is_changed = !turn.changes.is_empty();
            for Change { key, value } in turn.changes {
                match value {
                    Some(value) => node.records.insert(key, value),
                    None => node.records.remove(&key),
                };
            }
            if is_changed && !is_late {
                self.register.records.clone_from(&node.records);
            }
            node.committed[turn.shard].store(turn.token, Ordering::SeqCst);
        }
        let committed: Vec<u64> = (self.nodes[at].committed.iter())
            .map(|token| token.load(Ordering::SeqCst))
            .collect();
        self.waiting.retain(|&(node, shard, token, which)| {
            let waits = node != at || committed[shard] < token;
            if !waits {
                self.acknowledged.insert(which);
            }
            waits
        });
    }

    fn follow(&mut self, at: usize, count: usize) {
        for _ in 0..count {
            let next = self.nodes[at].followed;
            let Some(message) = self.log.lock().expect("unharmed").get(next).cloned() else {
                break;
            };
            let mut record = Vec::new();
            message.encode(&mut record);
            let message = Message::decode(record.into()).expect("its own form");
            let node = &mut self.nodes[at];
            node.followed += 1;
            let now_ms = node.cluster.now_ms;
            (node.cluster.broker(0)).publish_from_log(now_ms, position(next), message);
            (node.cluster.broker(0)).pass_log(position(next + 1) - 1);
            node.cluster.collect(0);
        }
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
        let routed = (node.cluster).send(shard, None, message("t", &payload, level, false));
        assert!(routed.token > 0, "somebody wants it in the log");
        (self.waiting).push((at, usize::from(shard), routed.token, which));
        self.end_turn(at);
    }

    /// A node ends what it has of the session. Who hands over writes everything first.
    fn let_go(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let (now_ms, client_id) = (node.cluster.now_ms, Arc::from("r"));
        for shard in 0..SHARDS {
            (node.cluster.broker(shard)).lose_session(now_ms, &client_id);
            node.cluster.collect(shard);
        }
        node.is_deposed = false;
        node.cluster.notes.clear();
        self.end_turn(at);
    }

    /// The records that a new owner takes over.
    fn take_records(&mut self, at: usize) -> Vec<Record> {
        // What it has handed over of an earlier ownership goes first.
        self.take_turns(at, usize::MAX);
        self.epoch += 1;
        self.nodes[at].epoch = self.epoch;
        self.register.epoch = self.epoch;
        self.nodes[at].records.clone_from(&self.register.records);
        self.owner = Some(at);
        let end = self.log.lock().expect("unharmed").len();
        self.follow(at, end);
        (self.register.records.iter())
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
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
            (self.nodes[at].cluster).start_open(shard, "r", false, 3_600, None);
        self.nodes[at].cluster.run();
        let claim = self.nodes[at]
            .cluster
            .notes
            .iter()
            .find_map(|note| match note {
                Ownership::Claim { session, .. } => Some(*session),
                _ => None,
            });
        self.nodes[at].cluster.notes.clear();
        if let Some(session) = claim {
            assert!(!is_here, "a session that is here is not claimed");
            let records = self.take_records(at);
            let cluster = &mut self.nodes[at].cluster;
            let now_ms = cluster.now_ms;
            (cluster.broker(shard)).session_restored(now_ms, session, records);
            cluster.collect(shard);
            cluster.run();
        }
        let cluster = &mut self.nodes[at].cluster;
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
        for _ in 0..self.below(6) {
            let Some(delivery) = self.nodes[at].cluster.next(client) else {
                break;
            };
            self.nodes[at].cluster.run();
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
            if self.places.insert(delivery.position) {
                self.got.push((which.0, which.1, delivery.qos));
            }
            match (delivery.qos, self.below(3)) {
                (_, 0) => {}
                (Qos::ExactlyOnce, _) => {
                    let cluster = &mut self.nodes[at].cluster;
                    let broker = cluster.broker(client.shard);
                    assert!(broker.handed_over(client.key, delivery.tag));
                    self.releases.push((delivery.tag, delivery.position));
                }
                _ => {
                    let tag = delivery.tag;
                    (self.nodes[at].cluster).settle(client, tag, Outcome::Accepted);
                }
            }
        }
        self.end_turn(at);
        // PUBREL leaves when the record is kept; here when all is.
        if self.below(2) == 0 {
            self.take_turns(at, usize::MAX);
        }
        if self.nodes[at].turns.is_empty() {
            for (tag, position) in std::mem::take(&mut self.releases) {
                self.done.insert(position);
                (self.nodes[at].cluster).settle(client, tag, Outcome::Accepted);
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
        let cluster = &mut self.nodes[at].cluster;
        let now_ms = cluster.now_ms;
        assert!(cluster.broker(shard).adopt(now_ms, "r", &records));
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
                    self.nodes[owner].cluster.close(client, Close::LOST);
                    self.releases.clear();
                    self.end_turn(owner);
                }
            }
            _ => {
                let for_ms = self.below(3_000);
                self.nodes[at].cluster.pass(for_ms);
                self.end_turn(at);
            }
        }
        let cluster = &self.nodes[at].cluster;
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
    assert!(
        world
            .nodes
            .iter()
            .all(|node| node.end.load(Ordering::SeqCst) > 0)
    );
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
