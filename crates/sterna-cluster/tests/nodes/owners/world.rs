//! Nodes, clients, and JetStream between them, as a model.

mod clients;
mod returns;
mod stream;
mod verdict;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::sync::Arc;

use sterna_broker::SessionName;
use sterna_cluster::owners::{
    Action, Begin, Floor, Key, Mark, Overtaken, Owners, Process, Record, Terms, WriteError,
};

const NODES: usize = 3;
const CLIENTS: u32 = 6;
/// The first of the roots of shared subscriptions, and how many there are: sessions without clients, which any node
/// wants where no other may have them.
const FIRST_ROOT: u32 = 20;
const ROOTS: u32 = 2;
const TERMS: Terms = Terms {
    lease_ms: 2_000,
    absence_ms: 10_000,
    claim_timeout_ms: 5_000,
};
const RESTED_MS: u64 = 60_000;
/// Time after which a node takes NATS for silent.
const ANSWER_MS: u64 = 500;
/// Time for which it stays that a session has ended: at least the absence.
const ENDED_MS: u64 = TERMS.absence_ms;

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
    /// It keeps it, and brings back records of processes that are gone.
    Returned,
    /// The same, and nodes do not know the floors of their records.
    ReturnedUnnoticed,
}

/// What is in the stream.
#[derive(Clone)]
enum Item {
    Mark(Process, Mark),
    Record(Key, Record),
    Floor(Arc<str>, Floor),
}

/// What happens at some time. Answers say for which start of a node they are.
enum Event {
    Read(usize, u64, Key, u64),
    Write(usize, u64, Key, u64, u64, Record),
    /// A write that NATS has begun is done.
    Commit(usize, u64, Key, u64, Record, u64),
    Mark(usize, u64, u64),
    HasRead(usize, u64, Key, u64, Result<Option<(u64, Record)>, ()>),
    WasWritten(usize, u64, Key, u64, Result<u64, WriteError>),
    Told(usize, Process, Key, u64),
    Follow(usize, u64),
    Ended(usize, u64, Key, Option<u64>),
    Left(usize, u64, Key),
    Adopted(usize, u64, Key),
    PutAside(usize, u64, Key, u64, SessionName),
    Tick(usize, u64),
    Goes(usize, u64),
    Mends(usize),
    Starts(usize),
    TellsAgain(usize, u64),
    TellsFloors(Vec<Process>, u64),
    Removes(Key, u64),
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
    /// Why it has said last that a claim is overtaken.
    overtaken: Option<Overtaken>,
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
    /// Keys with a write that NATS has begun: it refuses others meanwhile.
    in_process: HashSet<Key>,
    /// What NATS has of each node's floor, and since when.
    floors: HashMap<Arc<str>, (Floor, u64)>,
    next_connection: u64,
    /// The last connection of each client.
    latest: HashMap<Key, u64>,
    /// Connections that came when no other of their clients was waiting.
    alone: HashSet<u64>,
    wills: BTreeMap<u64, Fate>,
    found: Option<String>,
}

fn key_of(client: u32) -> Key {
    let mut key = Key::default();
    key[..4].copy_from_slice(&client.to_be_bytes());
    key
}

fn name_of(key: Key) -> SessionName {
    let number = u32::from_be_bytes([key[0], key[1], key[2], key[3]]);
    SessionName::new(None, &format!("client-{number}"))
}

fn key_named(name: &SessionName) -> Key {
    let number = name.id().strip_prefix("client-").expect("a client's name");
    key_of(number.parse().expect("a client's number"))
}

fn is_root(key: Key) -> bool {
    (FIRST_ROOT..FIRST_ROOT + ROOTS).any(|root| key_of(root) == key)
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
    if matches!(losses, Losses::Returned | Losses::ReturnedUnnoticed) {
        world.dies_long_after();
    }
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
                overtaken: None,
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
            in_process: HashSet::new(),
            floors: HashMap::new(),
            next_connection: 1,
            latest: HashMap::new(),
            alone: HashSet::new(),
            wills: BTreeMap::new(),
            found: None,
        };
        for node in 0..NODES {
            world.start(node);
        }
        world
    }

    pub(crate) fn start(&mut self, node: usize) {
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
        self.learn_floors(node, start);
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
            | Event::Left(node, ..)
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
                let refusal = if self.in_process.contains(&key) {
                    // NATS names no last record there, which not every client understands.
                    let is_understood = self.dice.one_in(2);
                    Some(if is_understood {
                        WriteError::Conflict
                    } else {
                        WriteError::Unknown
                    })
                } else {
                    (last != expected).then_some(WriteError::Conflict)
                };
                let in_ms = self.delay_ms();
                if let Some(refusal) = refusal {
                    let answer = Err(self.heard(node, refusal));
                    self.schedule(in_ms, Event::WasWritten(node, start, key, attempt, answer));
                } else {
                    self.in_process.insert(key);
                    let event = Event::Commit(node, start, key, attempt, record, self.era);
                    self.schedule(in_ms, event);
                }
            }
            Event::Commit(node, start, key, attempt, record, era) => {
                if era == self.era {
                    self.in_process.remove(&key);
                    self.commit(node, start, (key, attempt), record);
                } else {
                    let unknown = Err(WriteError::Unknown);
                    let event = Event::WasWritten(node, start, key, attempt, unknown);
                    self.schedule(ANSWER_MS, event);
                }
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
                let in_ms = self.delay_ms();
                self.schedule(in_ms, Event::Left(node, start, key));
            }
            Event::Left(node, start, key) => {
                self.with(node, start, |owners, _| owners.has_left(key));
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
            Event::TellsFloors(processes, position) => self.tell_floors(processes, position),
            Event::Removes(key, sequence) => self.remove(key, sequence),
        }
    }

    /// An answer of NATS, or that there was none.
    fn heard(&mut self, node: usize, error: WriteError) -> WriteError {
        if self.is_lost(node) {
            WriteError::Unknown
        } else {
            error
        }
    }

    /// NATS has a record, and says so.
    fn commit(&mut self, node: usize, start: u64, (key, attempt): (Key, u64), record: Record) {
        if let Some(&last) = self.last.get(&key)
            && let Item::Record(_, before) = &self.stream[last]
            && let Some(will) = &before.will
        {
            // It is the writer's now.
            let connection = u64::from_be_bytes(will[..].try_into().expect("a number"));
            self.nodes[node].asked.push(connection);
            let fate = self.wills.entry(connection).or_default();
            // The owner itself has taken it out.
            fate.is_over |=
                fate.has_left && before.owner == record.owner && before.will != record.will;
            if self.nodes[node].start != start {
                self.may_be_lost(node);
            }
        }
        self.last.insert(key, self.stream.len());
        let sequence = self.append(Item::Record(key, record));
        let is_lost = self.is_lost(node);
        if is_lost {
            self.may_be_lost(node);
        }
        let in_ms = self.delay_ms() + if is_lost { ANSWER_MS } else { 0 };
        let answer = if is_lost {
            Err(WriteError::Unknown)
        } else {
            Ok(sequence)
        };
        self.schedule(in_ms, Event::WasWritten(node, start, key, attempt, answer));
    }

    fn process(&self, node: usize) -> Option<Process> {
        (self.nodes[node].owners.as_ref()).map(|owners| owners.own().clone())
    }

    /// Whether what passes between a node and NATS at this moment is lost.
    fn is_lost(&mut self, node: usize) -> bool {
        self.nodes[node].is_cut || (!self.is_calm && self.dice.one_in(60))
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
        owners.check(now_ms);
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
                    self.schedule(
                        ANSWER_MS,
                        Event::HasRead(node, start, key, attempt, Err(())),
                    );
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
                let is_lost = self.is_lost(node);
                if is_lost || in_ms > ANSWER_MS {
                    let unknown = Err(WriteError::Unknown);
                    let event = Event::WasWritten(node, start, key, attempt, unknown);
                    self.schedule(ANSWER_MS, event);
                }
                if !is_lost {
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
                self.check_refusal(node, session, key, &result);
                if let Ok(Begin::Kept(client_id)) = &result
                    && self.fails_to_restore
                    && self.dice.one_in(3)
                {
                    let owners = self.nodes[node].owners.as_ref();
                    if let Some(epoch) = owners.and_then(|owners| owners.epoch(key)) {
                        let client_id = client_id.clone();
                        let event = Event::PutAside(node, start, key, epoch, client_id);
                        self.schedule(in_ms, event);
                    }
                    return;
                }
                let known = &mut self.nodes[node];
                if result.is_ok() {
                    let has_will = !is_root(key);
                    let live = Live {
                        connection: session,
                        claimed_by: session,
                        outlives,
                        has_will,
                    };
                    known.live.insert(key, live);
                    if outlives && has_will {
                        self.wills.entry(session).or_default().is_due = true;
                    }
                }
            }
            Action::End { name: client_id } => {
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
            Action::Swept {
                processes,
                position,
                ..
            } => self.schedule(in_ms, Event::TellsFloors(processes, position)),
            Action::Remove { key, sequence } => {
                self.schedule(in_ms + ENDED_MS, Event::Removes(key, sequence));
            }
            Action::Overtaken { why, .. } => self.nodes[node].overtaken = Some(why),
            Action::Discard { .. } => {}
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
}
