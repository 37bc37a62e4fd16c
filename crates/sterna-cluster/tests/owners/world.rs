//! Nodes, clients, and JetStream between them, as a model.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::sync::Arc;

use sterna_cluster::owners::{
    Action, Begin, Key, Mark, Owners, Process, Record, Request, Terms, WriteError,
};

const NODES: usize = 3;
const CLIENTS: u32 = 6;
const TERMS: Terms = Terms {
    lease_ms: 2_000,
    absence_ms: 10_000,
    claim_timeout_ms: 5_000,
};
const RESTED_MS: u64 = 60_000;

/// Numbers from a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.roll() % end
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// What NATS does with the stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Losses {
    /// It keeps it.
    None,
    /// It loses it at times.
    Some,
    /// The same, and nodes go on as if it had not.
    Unnoticed,
    /// It keeps it, and does not say in time what is kept of some sessions.
    Unrestored,
}

/// What is in the stream.
#[derive(Clone)]
enum Item {
    Mark(Process, Mark),
    Record(Key, Record),
}

/// What happens at some time. Answers say for which start of a node they are.
enum Event {
    Read(usize, u64, Key, u64),
    Write(usize, u64, Key, u64, u64, Record),
    Mark(usize, u64, u64),
    HasRead(usize, u64, Key, u64, Result<Option<(u64, Record)>, ()>),
    WasWritten(usize, u64, Key, u64, Result<u64, WriteError>),
    Told(usize, Process, Key, u64),
    Follow(usize, u64),
    Ended(usize, u64, Key, Option<u64>),
    Adopted(usize, u64, Key),
    PutAside(usize, u64, Key, u64, Arc<str>),
    Tick(usize, u64),
    Goes(usize, u64),
    Mends(usize),
    Starts(usize),
    TellsAgain(usize, u64),
}

/// A connection of a client, and the session that it has.
#[derive(Clone, Copy, Debug)]
struct Live {
    connection: u64,
    /// The connection that has claimed it; those that come back to it later do not.
    claimed_by: u64,
    outlives: bool,
    /// False while its client is away.
    has_will: bool,
}

struct Node {
    owners: Option<Owners<u64>>,
    start: u64,
    /// Its clock: what it showed at the beginning, and thousandths by which it is faster.
    offset_ms: u64,
    rate: u64,
    stands_still: bool,
    is_cut: bool,
    next: usize,
    /// The stream that it reads.
    era: u64,
    live: HashMap<Key, Live>,
    /// Connections that wait for their claim.
    waiting: HashMap<u64, (Key, bool)>,
    later: Vec<Event>,
    /// Connections whose wills it was asked to publish.
    asked: Vec<u64>,
}

/// What became of a will.
#[derive(Default, Clone, Copy)]
struct Fate {
    published: u32,
    /// It is to be published, whatever happens.
    is_due: bool,
    /// Who took it out of its record may have died with it.
    may_be_lost: bool,
    /// Nobody may know any more that it was published.
    may_be_doubled: bool,
    /// Its connection has ended in order.
    has_left: bool,
    /// It was taken out of its record because of that, and is never to be published.
    is_over: bool,
}

pub(crate) struct World {
    now_ms: u64,
    dice: Dice,
    is_calm: bool,
    with_fence: bool,
    /// How often the stream is lost, and whether nodes notice.
    losses: Losses,
    /// Whether some sessions that were claimed cannot be restored, and nobody has them then.
    fails_to_restore: bool,
    era: u64,
    /// When the stream was made, and its first place.
    made_ms: u64,
    base: usize,
    nodes: Vec<Node>,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    /// By their numbers.
    bodies: HashMap<u64, Event>,
    next_event: u64,
    stream: Vec<Item>,
    last: HashMap<Key, usize>,
    next_connection: u64,
    wills: BTreeMap<u64, Fate>,
    found: Option<String>,
}

fn key_of(client: u32) -> Key {
    let mut key = Key::default();
    key[..4].copy_from_slice(&client.to_be_bytes());
    key
}

fn name_of(key: Key) -> Arc<str> {
    format!(
        "client-{}",
        u32::from_be_bytes([key[0], key[1], key[2], key[3]])
    )
    .into()
}

fn key_named(client_id: &str) -> Key {
    let number = client_id.strip_prefix("client-").expect("a client's name");
    key_of(number.parse().expect("a client's number"))
}

fn will_bytes(connection: u64) -> Arc<[u8]> {
    connection.to_be_bytes().as_slice().into()
}

/// Plays a seed, and returns what was found.
pub(crate) fn play(seed: u64, with_fence: bool, losses: Losses) -> Option<String> {
    let mut world = World::new(seed, false, with_fence);
    world.losses = losses;
    world.fails_to_restore = losses == Losses::Unrestored;
    world.run_for(4_000);
    for _ in 0..150 {
        world.step();
        if world.found.is_some() {
            return world.found;
        }
    }
    world.rest();
    if losses == Losses::Unrestored {
        // Who has a session is looked at then, and not what becomes of wills.
        world.doubt_wills();
    }
    world.settled()
}

impl World {
    pub(crate) fn calm(seed: u64) -> Self {
        Self::new(seed, true, true)
    }

    fn new(seed: u64, is_calm: bool, with_fence: bool) -> Self {
        let mut dice = Dice(seed);
        let nodes = (0..NODES)
            .map(|_| Node {
                owners: None,
                start: 0,
                offset_ms: dice.below(1_000_000),
                rate: 990 + dice.below(20),
                stands_still: false,
                is_cut: false,
                next: 0,
                era: 0,
                live: HashMap::new(),
                waiting: HashMap::new(),
                later: Vec::new(),
                asked: Vec::new(),
            })
            .collect();
        let mut world = Self {
            now_ms: 1_000,
            dice,
            is_calm,
            with_fence,
            losses: Losses::None,
            fails_to_restore: false,
            era: 0,
            made_ms: 0,
            base: 0,
            nodes,
            events: BinaryHeap::new(),
            bodies: HashMap::new(),
            next_event: 0,
            stream: Vec::new(),
            last: HashMap::new(),
            next_connection: 1,
            wills: BTreeMap::new(),
            found: None,
        };
        for node in 0..NODES {
            world.start(node);
        }
        world
    }

    fn start(&mut self, node: usize) {
        if self.nodes[node].owners.is_some() {
            return;
        }
        // The number of what is in the stream is higher after each start.
        let incarnation = self.stream.len() as u64 + 1;
        let process = Process {
            node: format!("node-{node}").into(),
            incarnation,
        };
        let known = &mut self.nodes[node];
        known.start += 1;
        known.owners = Some(Owners::new(process, TERMS));
        known.next = self.stream.len();
        known.era = self.era;
        known.stands_still = false;
        let start = known.start;
        if self.losses == Losses::Some && self.now_ms < self.made_ms + 2 * TERMS.lease_ms {
            self.with(node, start, Owners::records_lost);
        }
        self.schedule(0, Event::Tick(node, start));
    }

    fn schedule(&mut self, in_ms: u64, event: Event) {
        self.next_event += 1;
        (self.events).push(Reverse((self.now_ms + in_ms, self.next_event)));
        self.bodies.insert(self.next_event, event);
    }

    fn delay_ms(&mut self) -> u64 {
        if !self.is_calm && self.dice.one_in(40) {
            self.dice.below(3_000)
        } else {
            self.dice.below(4)
        }
    }

    fn clock(&self, node: usize) -> u64 {
        let node = &self.nodes[node];
        node.offset_ms + self.now_ms * node.rate / 1_000
    }

    pub(crate) const fn losses_are_noticed(&mut self) {
        self.losses = Losses::Some;
    }

    pub(crate) fn run_for(&mut self, for_ms: u64) {
        let until_ms = self.now_ms + for_ms;
        while let Some(&Reverse((at_ms, number))) = self.events.peek() {
            if at_ms > until_ms || self.found.is_some() {
                break;
            }
            self.events.pop();
            self.now_ms = self.now_ms.max(at_ms);
            if let Some(event) = self.bodies.remove(&number) {
                self.happen(event);
            }
            if self.found.is_none() && self.next_event.is_multiple_of(4) {
                self.found = self.check();
            }
        }
        self.now_ms = self.now_ms.max(until_ms);
    }

    fn happen(&mut self, event: Event) {
        let standing = match &event {
            Event::HasRead(node, ..)
            | Event::WasWritten(node, ..)
            | Event::Told(node, ..)
            | Event::Follow(node, _)
            | Event::Ended(node, ..)
            | Event::Adopted(node, ..)
            | Event::PutAside(node, ..)
            | Event::TellsAgain(node, _)
            | Event::Tick(node, _) => self.nodes[*node].stands_still.then_some(*node),
            _ => None,
        };
        if let Some(node) = standing {
            // It happens when the process goes on.
            self.nodes[node].later.push(event);
            return;
        }
        match event {
            Event::Read(node, start, key, attempt) => {
                let found = self.last.get(&key).map(|&at| {
                    let Item::Record(_, record) = &self.stream[at] else {
                        unreachable!("a key has records");
                    };
                    (at as u64 + 1, record.clone())
                });
                let in_ms = self.delay_ms();
                let answer = if self.is_lost(node) {
                    Err(())
                } else {
                    Ok(found)
                };
                self.schedule(in_ms, Event::HasRead(node, start, key, attempt, answer));
            }
            Event::Write(node, start, key, attempt, expected, record) => {
                let last = self.last.get(&key).map_or(0, |&at| at as u64 + 1);
                let answer = if last == expected {
                    if last > 0
                        && let Item::Record(_, before) = &self.stream[last as usize - 1]
                        && let Some(will) = &before.will
                    {
                        // It is the writer's now.
                        let connection = u64::from_be_bytes(will[..].try_into().expect("a number"));
                        self.nodes[node].asked.push(connection);
                        let fate = self.wills.entry(connection).or_default();
                        // The owner itself has taken it out.
                        fate.is_over |= fate.has_left
                            && before.owner == record.owner
                            && before.will != record.will;
                        if self.nodes[node].start != start {
                            self.may_be_lost(node);
                        }
                    }
                    self.last.insert(key, self.stream.len());
                    Ok(self.append(Item::Record(key, record)))
                } else {
                    Err(WriteError::Conflict)
                };
                let is_lost = self.is_lost(node);
                let answer = if is_lost {
                    Err(WriteError::Unknown)
                } else {
                    answer
                };
                if is_lost {
                    self.may_be_lost(node);
                }
                let in_ms = self.delay_ms() + if is_lost { 500 } else { 0 };
                self.schedule(in_ms, Event::WasWritten(node, start, key, attempt, answer));
            }
            Event::Mark(node, start, sent_ms) => {
                let known = &self.nodes[node];
                if known.start == start
                    && let Some(process) = self.process(node)
                {
                    self.append(Item::Mark(process, Mark::Here { sent_ms }));
                }
            }
            Event::HasRead(node, start, key, attempt, answer) => {
                self.with(node, start, |owners, now_ms| {
                    owners.was_read(now_ms, key, attempt, answer);
                });
            }
            Event::WasWritten(node, start, key, attempt, answer) => {
                self.with(node, start, |owners, now_ms| {
                    owners.was_written(now_ms, key, attempt, answer);
                });
            }
            Event::Told(node, from, key, epoch) => {
                let start = self.nodes[node].start;
                self.with(node, start, |owners, now_ms| {
                    owners.was_ended(now_ms, &from, key, epoch);
                });
            }
            Event::Follow(node, start) => self.follow(node, start),
            Event::Ended(node, start, key, connection) => {
                if self.nodes[node].start == start {
                    let live = &mut self.nodes[node].live;
                    // It may have ended by itself, and begun anew.
                    if live
                        .get(&key)
                        .is_some_and(|live| Some(live.claimed_by) == connection)
                    {
                        live.remove(&key);
                    }
                }
                self.with(node, start, |owners, now_ms| owners.has_ended(now_ms, key));
            }
            Event::Adopted(node, start, key) => {
                let known = &mut self.nodes[node];
                let is_own = (known.owners.as_ref()).is_some_and(|one| one.epoch(key).is_some());
                let is_wanted = known.waiting.values().any(|&(waits, _)| waits == key);
                if known.start == start && is_own && !is_wanted {
                    // It is away, and nobody knows by which connection it was claimed.
                    let away = Live {
                        connection: 0,
                        claimed_by: 0,
                        outlives: true,
                        has_will: false,
                    };
                    known.live.entry(key).or_insert(away);
                }
                self.with(node, start, |owners, now_ms| {
                    owners.was_adopted(now_ms, key);
                });
            }
            Event::PutAside(node, start, key, epoch, client_id) => {
                self.with(node, start, |owners, now_ms| {
                    owners.put_aside(now_ms, key, epoch, client_id);
                });
            }
            Event::Tick(node, start) => {
                self.with(node, start, Owners::tick);
                if self.nodes[node].start == start && self.nodes[node].owners.is_some() {
                    self.schedule(20, Event::Tick(node, start));
                }
            }
            Event::Goes(node, start) => {
                if self.nodes[node].start == start {
                    self.nodes[node].stands_still = false;
                    for event in std::mem::take(&mut self.nodes[node].later) {
                        self.schedule(self.now_ms % 2, event);
                    }
                }
            }
            Event::Mends(node) => self.mend(node),
            Event::Starts(node) => self.start(node),
            Event::TellsAgain(node, start) => self.tell_again(node, start),
        }
    }

    fn process(&self, node: usize) -> Option<Process> {
        (self.nodes[node].owners.as_ref()).map(|owners| owners.own().clone())
    }

    /// Whether what passes between a node and NATS at this moment is lost.
    fn is_lost(&mut self, node: usize) -> bool {
        self.nodes[node].is_cut || (!self.is_calm && self.dice.one_in(60))
    }

    fn append(&mut self, item: Item) -> u64 {
        self.stream.push(item);
        for node in 0..NODES {
            let in_ms = self.delay_ms();
            let start = self.nodes[node].start;
            self.schedule(in_ms, Event::Follow(node, start));
        }
        self.stream.len() as u64
    }

    /// A node reads what follows in the stream. NATS keeps the last of each subject only: who is late may miss
    /// those before.
    fn follow(&mut self, node: usize, start: u64) {
        if self.nodes[node].start != start || self.nodes[node].is_cut {
            return;
        }
        if self.nodes[node].era != self.era {
            // What it had not read of the stream before it never reads.
            self.nodes[node].era = self.era;
            self.nodes[node].next = self.nodes[node].next.max(self.base);
            if self.losses == Losses::Some {
                self.doubt_wills();
                self.with(node, start, Owners::records_lost);
                let in_ms = self.delay_ms();
                self.schedule(in_ms, Event::TellsAgain(node, start));
            }
        }
        while self.nodes[node].next < self.stream.len() {
            let at = self.nodes[node].next;
            self.nodes[node].next += 1;
            let item = self.stream[at].clone();
            let sequence = at as u64 + 1;
            match item {
                Item::Mark(process, mark) => {
                    self.with(node, start, |owners, now_ms| {
                        owners.mark_passed(now_ms, sequence, &process, mark);
                    });
                }
                Item::Record(key, record) => {
                    let is_last = self.last.get(&key) == Some(&at);
                    if is_last || self.dice.one_in(2) {
                        self.with(node, start, |owners, now_ms| {
                            owners.record_passed(now_ms, sequence, key, &record);
                        });
                    }
                }
            }
        }
    }

    /// NATS loses the stream, and another is made.
    pub(crate) fn lose(&mut self) {
        self.era += 1;
        self.made_ms = self.now_ms;
        self.base = self.stream.len();
        self.last.clear();
        self.doubt_wills();
        for node in 0..NODES {
            let start = self.nodes[node].start;
            let in_ms = self.dice.below(200);
            self.schedule(in_ms, Event::Follow(node, start));
        }
    }

    /// Who has taken a will out of its record was not heard, and may have published it or died.
    fn doubt_wills(&mut self) {
        for fate in self.wills.values_mut() {
            fate.may_be_lost = true;
            fate.may_be_doubled = true;
        }
    }

    /// A node's shards tell of their sessions again, until none is missing.
    fn tell_again(&mut self, node: usize, start: u64) {
        if self.nodes[node].start != start {
            return;
        }
        let mut lives: Vec<(Key, Live)> = (self.nodes[node].live.iter())
            .map(|(key, live)| (*key, *live))
            .collect();
        lives.sort_unstable_by_key(|(key, _)| *key);
        for (key, live) in lives {
            let will = live.has_will.then(|| will_bytes(live.connection));
            self.with(node, start, |owners, now_ms| {
                owners.renew(now_ms, key, name_of(key), will);
            });
        }
        let owners = self.nodes[node].owners.as_ref();
        if owners.is_some_and(|owners| owners.forgotten() > 0) {
            self.schedule(300, Event::TellsAgain(node, start));
        }
    }

    /// Does something with a node's owners, and what follows from it.
    fn with(&mut self, node: usize, start: u64, work: impl FnOnce(&mut Owners<u64>, u64)) {
        let now_ms = self.clock(node);
        if self.nodes[node].start != start {
            return;
        }
        let Some(owners) = &mut self.nodes[node].owners else {
            return;
        };
        work(owners, now_ms);
        for action in owners.take_actions() {
            self.act(node, action);
        }
    }

    fn act(&mut self, node: usize, action: Action<u64>) {
        let start = self.nodes[node].start;
        let in_ms = self.delay_ms();
        match action {
            Action::Read { key, attempt } => {
                if self.is_lost(node) {
                    self.schedule(500, Event::HasRead(node, start, key, attempt, Err(())));
                } else {
                    self.schedule(in_ms, Event::Read(node, start, key, attempt));
                }
            }
            Action::Write {
                key,
                attempt,
                expected,
                record,
            } => {
                if self.is_lost(node) {
                    let unknown = Err(WriteError::Unknown);
                    self.schedule(500, Event::WasWritten(node, start, key, attempt, unknown));
                } else {
                    let write = Event::Write(node, start, key, attempt, expected, record);
                    self.schedule(in_ms, write);
                }
            }
            Action::Mark { sent_ms } => {
                if !self.is_lost(node) {
                    self.schedule(in_ms, Event::Mark(node, start, sent_ms));
                }
            }
            Action::Tell {
                node: other,
                key,
                epoch,
            } => {
                let other = other.strip_prefix("node-").expect("a node's name");
                let other: usize = other.parse().expect("a node's number");
                let from = self.process(node).expect("who speaks is there");
                if !self.is_lost(node) && !self.is_lost(other) {
                    self.schedule(in_ms, Event::Told(other, from, key, epoch));
                }
            }
            Action::Settled {
                session, result, ..
            } => {
                let known = &mut self.nodes[node];
                let Some((key, outlives)) = known.waiting.remove(&session) else {
                    return;
                };
                if let Ok(Begin::Kept(client_id)) = &result
                    && self.fails_to_restore
                    && self.dice.one_in(3)
                {
                    let owners = self.nodes[node].owners.as_ref();
                    if let Some(epoch) = owners.and_then(|owners| owners.epoch(key)) {
                        let client_id = Arc::clone(client_id);
                        let event = Event::PutAside(node, start, key, epoch, client_id);
                        self.schedule(in_ms, event);
                    }
                    return;
                }
                let known = &mut self.nodes[node];
                if result.is_ok() {
                    let live = Live {
                        connection: session,
                        claimed_by: session,
                        outlives,
                        has_will: true,
                    };
                    known.live.insert(key, live);
                    if outlives {
                        self.wills.entry(session).or_default().is_due = true;
                    }
                }
            }
            Action::End { client_id } => {
                let key = key_named(&client_id);
                let in_ms = self.dice.below(3);
                let live = self.nodes[node].live.get(&key);
                let connection = live.map(|live| live.claimed_by);
                self.schedule(in_ms, Event::Ended(node, start, key, connection));
            }
            Action::Adopt { key, will, .. } => {
                if let Some(will) = will {
                    self.publish(&will);
                }
                self.schedule(in_ms, Event::Adopted(node, start, key));
            }
            Action::Swept { .. } => {}
            Action::Publish { will, .. } => self.publish(&will),
            Action::Scan => {
                let mut keys: Vec<(Key, usize)> =
                    self.last.iter().map(|(&key, &at)| (key, at)).collect();
                keys.sort_unstable();
                let is_complete = !self.is_lost(node);
                for (key, at) in keys {
                    let Item::Record(_, record) = self.stream[at].clone() else {
                        unreachable!("a key has records");
                    };
                    self.with(node, start, |owners, now_ms| {
                        owners.scanned(now_ms, at as u64 + 1, key, record);
                    });
                }
                self.with(node, start, |owners, now_ms| {
                    owners.has_scanned(now_ms, is_complete);
                });
            }
        }
    }

    fn publish(&mut self, will: &[u8]) {
        let connection = u64::from_be_bytes(will.try_into().expect("a number"));
        let fate = self.wills.entry(connection).or_default();
        fate.published += 1;
        if fate.is_over {
            self.found = Some(format!(
                "the will of connection {connection} is published, which ended in order"
            ));
        }
        if fate.published > 1 && !fate.may_be_doubled {
            self.found = Some(format!(
                "the will of connection {connection} is published again"
            ));
        }
    }

    /// A client comes to a node.
    pub(crate) fn connect(&mut self, node: usize, client: u32, outlives: bool) {
        let key = key_of(client);
        let (start, connection) = (self.nodes[node].start, self.next_connection);
        self.next_connection += 1;
        if self.nodes[node].stands_still || self.nodes[node].owners.is_none() {
            return;
        }
        let will = will_bytes(connection);
        if let Some(live) = self.nodes[node].live.get(&key).copied() {
            let now_ms = self.clock(node);
            let is_sure =
                (self.nodes[node].owners.as_ref()).is_some_and(|owners| owners.is_sure(now_ms));
            if (live.outlives || outlives) && !is_sure {
                return; // its door refuses
            }
            let client_id = name_of(key);
            if live.has_will {
                self.nodes[node].asked.push(live.connection);
            }
            let resumes = live.outlives && self.dice.one_in(2);
            if resumes {
                // It is in the record some milliseconds later, and nobody waits for that.
                self.wills.entry(connection).or_default();
                let next = Live {
                    connection,
                    claimed_by: live.claimed_by,
                    outlives: true,
                    has_will: true,
                };
                self.nodes[node].live.insert(key, next);
            } else {
                self.nodes[node].live.remove(&key);
            }
            self.with(node, start, |owners, now_ms| {
                if live.has_will {
                    let before = will_bytes(live.connection);
                    owners.publish_will(now_ms, key, Arc::clone(&client_id), before);
                }
                if resumes {
                    owners.set_will(now_ms, key, client_id, Some(will_bytes(connection)));
                }
            });
            if resumes {
                return;
            }
        }
        if self.nodes[node]
            .waiting
            .values()
            .any(|&(waits, _)| waits == key)
        {
            return;
        }
        self.nodes[node].waiting.insert(connection, (key, outlives));
        let is_clean = self.dice.one_in(3);
        let request = Request {
            session: connection,
            client_id: name_of(key),
            user: None,
            will: Some(will),
            outlives,
            is_clean,
            if_free: false,
        };
        self.with(node, start, |owners, now_ms| {
            owners.claim(now_ms, key, request);
        });
    }

    /// A client goes: in order, or its connection is lost; its session ends, or waits for it.
    fn leave(&mut self, node: usize, client: u32) {
        let key = key_of(client);
        let start = self.nodes[node].start;
        if self.nodes[node].stands_still {
            return;
        }
        let Some(live) = self.nodes[node].live.get(&key).copied() else {
            return;
        };
        let (in_order, stays) = (self.dice.one_in(2), live.outlives && self.dice.one_in(2));
        if stays {
            let away = Live {
                has_will: false,
                ..live
            };
            self.nodes[node].live.insert(key, away);
        } else {
            self.nodes[node].live.remove(&key);
        }
        if in_order {
            let fate = self.wills.entry(live.connection).or_default();
            fate.is_due = false;
            fate.has_left = true;
        }
        let client_id = name_of(key);
        if live.has_will && !in_order {
            self.nodes[node].asked.push(live.connection);
        }
        self.with(node, start, |owners, now_ms| {
            if live.has_will && in_order {
                owners.set_will(now_ms, key, Arc::clone(&client_id), None);
            } else if live.has_will {
                let will = will_bytes(live.connection);
                owners.publish_will(now_ms, key, Arc::clone(&client_id), will);
            }
            if !stays {
                owners.release(now_ms, key, client_id);
            }
        });
    }

    pub(crate) fn kill(&mut self, node: usize) {
        let known = &mut self.nodes[node];
        known.owners = None;
        known.start += 1;
        known.live.clear();
        known.waiting.clear();
        known.later.clear();
        known.stands_still = false;
        self.may_be_lost(node);
    }

    /// Wills that a node has taken out of their records, and may never publish: it dies at this moment, or it is
    /// not told that it has taken them out, and another has the record by then.
    fn may_be_lost(&mut self, node: usize) {
        for connection in std::mem::take(&mut self.nodes[node].asked) {
            self.wills.entry(connection).or_default().may_be_lost = true;
        }
    }

    pub(crate) fn cut(&mut self, node: usize) {
        self.nodes[node].is_cut = true;
    }

    pub(crate) fn mend(&mut self, node: usize) {
        self.nodes[node].is_cut = false;
        let start = self.nodes[node].start;
        self.schedule(0, Event::Follow(node, start));
    }

    /// Something happens, from the seed.
    fn step(&mut self) {
        let node = self.dice.below(NODES as u64) as usize;
        let client = self.dice.below(u64::from(CLIENTS)) as u32;
        let long_ms = self.dice.below(5_000);
        match self.dice.below(20) {
            0..=8 => {
                let outlives = !self.dice.one_in(3);
                self.connect(node, client, outlives);
            }
            9..=12 => self.leave(node, client),
            13 if self.nodes[node].owners.is_some() && !self.nodes[node].stands_still => {
                self.nodes[node].stands_still = true;
                let start = self.nodes[node].start;
                self.schedule(long_ms, Event::Goes(node, start));
            }
            14 | 15 if !self.nodes[node].is_cut => {
                self.cut(node);
                self.schedule(long_ms, Event::Mends(node));
            }
            16 if self.nodes[node].owners.is_some() && self.dice.one_in(2) => {
                self.kill(node);
                self.schedule(long_ms, Event::Starts(node));
            }
            17 if matches!(self.losses, Losses::Some | Losses::Unnoticed)
                && self.dice.one_in(4) =>
            {
                self.lose();
            }
            _ => {}
        }
        let for_ms = if self.dice.one_in(4) {
            self.dice.below(3_000)
        } else {
            self.dice.below(20)
        };
        self.run_for(for_ms);
    }

    /// Everything is mended, and time passes.
    fn rest(&mut self) {
        self.is_calm = true;
        self.run_for(5_000);
        for node in 0..NODES {
            self.mend(node);
            self.start(node);
        }
        self.run_for(RESTED_MS);
    }

    /// Nodes that may acknowledge for a client whose session outlives its connection.
    pub(crate) fn owners_of(&self, client: u32) -> Vec<usize> {
        self.sure(key_of(client))
    }

    fn sure(&self, key: Key) -> Vec<usize> {
        (0..NODES)
            .filter(|&node| {
                let now_ms = self.clock(node);
                let known = &self.nodes[node];
                let lives = known.live.get(&key).is_some_and(|live| live.outlives);
                let is_sure = (known.owners.as_ref())
                    .is_some_and(|owners| !self.with_fence || owners.is_sure(now_ms));
                lives && is_sure && !known.stands_still
            })
            .collect()
    }

    /// Nodes where a client has a session.
    pub(crate) fn lives_on(&self, client: u32) -> Vec<usize> {
        let lives = |node: &usize| self.nodes[*node].live.contains_key(&key_of(client));
        (0..NODES).filter(lives).collect()
    }

    pub(crate) fn will_of(&self, node: usize, client: u32) -> Option<u64> {
        (self.nodes[node].live.get(&key_of(client))).map(|live| live.connection)
    }

    pub(crate) fn published(&self, connection: u64) -> u32 {
        self.wills.get(&connection).map_or(0, |fate| fate.published)
    }

    /// What is wrong at this moment.
    pub(crate) fn check(&self) -> Option<String> {
        for key in (0..10).map(key_of) {
            let sure = self.sure(key);
            if sure.len() > 1 {
                return Some(format!(
                    "at {}: {} is on nodes {sure:?}",
                    self.now_ms,
                    name_of(key)
                ));
            }
        }
        self.found.clone()
    }

    /// What is wrong when everything has come to rest.
    pub(crate) fn settled(&self) -> Option<String> {
        if let Some(found) = self.check() {
            return Some(found);
        }
        for (number, node) in self.nodes.iter().enumerate() {
            let Some(owners) = &node.owners else {
                continue;
            };
            if owners.busy() != 0 || !node.waiting.is_empty() {
                return Some(format!("node {number} has {} under way", owners.busy()));
            }
            if owners.held() != node.live.len() {
                let (held, live) = (owners.held(), node.live.len());
                return Some(format!(
                    "node {number} owns {held} sessions, and has {live}; {owners:?}, {:?}",
                    node.live
                ));
            }
            for key in node.live.keys() {
                let last = self.last.get(key).map(|&at| &self.stream[at]);
                let is_own = matches!(last, Some(Item::Record(_, record)) if record.owner == *owners.own() && !record.is_over);
                if !is_own {
                    let last = last.map(|item| match item {
                        Item::Record(_, record) => format!("{record:?}"),
                        Item::Mark(..) => String::new(),
                    });
                    return Some(format!(
                        "{} on node {number} is not its own: {last:?}, {:?}, {:?}, {owners:?}",
                        name_of(*key),
                        owners.epoch(*key),
                        node.live.get(key)
                    ));
                }
            }
        }
        for &at in self.last.values() {
            if let Item::Record(key, record) = &self.stream[at]
                && !record.is_over
                && !(0..NODES).any(|node| {
                    self.process(node).as_ref() == Some(&record.owner)
                        && self.nodes[node].live.contains_key(key)
                })
            {
                return Some(format!("{} has a record and no session", name_of(*key)));
            }
        }
        let living: HashSet<u64> = (self.nodes.iter())
            .flat_map(|node| node.live.values().filter(|live| live.has_will))
            .map(|live| live.connection)
            .collect();
        let lost = (self.wills.iter()).find(|(connection, fate)| {
            let is_owed = fate.is_due && !fate.may_be_lost;
            is_owed && fate.published == 0 && !living.contains(connection)
        });
        lost.map(|(connection, _)| {
            format!("the will of connection {connection} was never published")
        })
    }
}
