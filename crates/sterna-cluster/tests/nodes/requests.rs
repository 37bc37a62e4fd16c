//! Requests that are done once, whichever nodes they come to, by a model: nodes begin, publish, say that it is done,
//! stand still, give up and die at each step. The model of JetStream loses answers, takes writes late, and knows names
//! of messages again for two minutes. The client may come back later than that.
//!
//! `STERNA_SEEDS` says which seeds are played (`seeds/mod.rs` of the broker's tests).

use std::cell::Cell;
use std::collections::HashSet;

use sterna_cluster::owners::{Key, Process};
use sterna_cluster::requests::{Beginning, Begun, Entry, Freeing};
use sterna_cluster::tail::{Settled, Settles, Tail};

const NODES: usize = 3;

const KEY: Key = [9; 16];

/// Time for which JetStream knows a name again.
const WINDOW_S: u64 = 120;

/// Until when entries hold: nothing here takes as long.
const UNTIL_S: u64 = u64::MAX >> 1;

/// Steps of a play.
const STEPS: u64 = 300;

/// Steps in which a request may not be done yet.
const FIRST_STEPS: u64 = 40;

/// A small generator: the same numbers for a seed each time.
struct Dice(u64);

impl Dice {
    const fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

/// What NATS has: the last entry of the key, and the log.
#[derive(Default)]
struct Nats {
    sequence: u64,
    last: u64,
    entry: Option<Vec<u8>>,
    now_s: u64,
    /// Writes that it may take later: what each expects, and the entry.
    late: Vec<(u64, Option<Vec<u8>>)>,
    /// Names of messages of the log, when they were appended, and what they settle.
    log: Vec<(u64, u64, String)>,
}

impl Nats {
    /// Writes by compare-and-set; `None` where that is refused.
    fn write(&mut self, expected: u64, entry: Option<Vec<u8>>) -> Option<u64> {
        if self.last != expected {
            return None;
        }
        self.sequence += 1;
        self.last = self.sequence;
        self.entry = entry;
        Some(self.last)
    }

    /// Takes a late write, or finds that the last entry is another.
    fn take_late(&mut self, at: usize) {
        let (expected, entry) = self.late.remove(at);
        self.write(expected, entry);
    }

    fn append(&mut self, name: u64, line: String) {
        let is_known =
            |(known, at_s, _): &(u64, u64, String)| *known == name && self.now_s < at_s + WINDOW_S;
        if !self.log.iter().any(is_known) {
            self.log.push((name, self.now_s, line));
        }
    }

    /// The position of the next message.
    const fn end(&self) -> u64 {
        self.log.len() as u64 + 1
    }

    fn found(&self) -> (u64, Option<Entry>) {
        let entry = self.entry.as_ref();
        (
            self.last,
            entry.map(|bytes| Entry::decode(bytes).expect("an entry").0),
        )
    }
}

/// How far a node is with the client's request.
enum Step {
    Idle,
    Beginning(Box<Beginning>),
    /// The client was refused.
    Freeing(Freeing),
    Publishing {
        round: u64,
        sequence: u64,
        gives_up: Freeing,
    },
    Finishing {
        round: u64,
        sequence: u64,
    },
}

struct Node {
    process: Process,
    step: Step,
    /// Whether others take it for dead, although it may go on.
    is_given_up: bool,
    /// Whether others took it for dead since it has begun.
    is_late: bool,
    /// The end of the log when it began to publish; `None` where all is settled.
    publishes_from: Option<u64>,
    /// What its last mark says: its incarnation, and up to where all is settled.
    mark: (u64, u64),
}

impl Node {
    /// It has begun, and is to publish in a round.
    fn publishes(&mut self, round: u64, sequence: u64) {
        if let Step::Beginning(beginning) = std::mem::replace(&mut self.step, Step::Idle) {
            self.step = Step::Publishing {
                round,
                sequence,
                gives_up: beginning.begun(sequence),
            };
        }
    }
}

/// What a client was told: done, and whether before.
struct Play {
    nats: Nats,
    nodes: Vec<Node>,
    dice: Dice,
    /// What all nodes know of the tail of the log; `None` where they do not look at it.
    tail: Option<Tail>,
    /// Whether who gives up writes a free entry, and does not only look for its own.
    frees: bool,
    /// Whether who gives up keeps to the round of the process before it.
    keeps_rounds: bool,
    /// Whether who forgets an earlier use of the key looks which one the entry is of.
    compares: bool,
    rounds: u64,
    told_first: usize,
    told_again: usize,
}

const VALUE: &[u8] = b"digest";

impl Play {
    fn new(seed: u64, knows_tail: bool) -> Self {
        let mut tail = Tail::new(100);
        tail.begin(1);
        for number in 0..NODES {
            tail.kept(&format!("node-{number}"), 1, 1);
        }
        let nodes = (0..NODES).map(|number| Node {
            process: Process {
                node: format!("node-{number}").into(),
                incarnation: 1,
            },
            step: Step::Idle,
            is_given_up: false,
            is_late: false,
            publishes_from: None,
            mark: (1, 1),
        });
        Self {
            nats: Nats::default(),
            nodes: nodes.collect(),
            dice: Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            tail: knows_tail.then_some(tail),
            frees: true,
            keeps_rounds: true,
            compares: true,
            rounds: 0,
            told_first: 0,
            told_again: 0,
        }
    }

    /// A node says up to where all is settled that it has appended.
    fn mark(&mut self, at: usize) {
        let (node, end) = (&mut self.nodes[at], self.nats.end());
        let Some(tail) = &mut self.tail else {
            return;
        };
        let Process {
            node: name,
            incarnation,
        } = &node.process;
        let earlier = tail.kept_earlier(name, *incarnation);
        let settled = node.publishes_from.unwrap_or(end);
        let settled = settled.min(earlier.unwrap_or(u64::MAX));
        tail.kept(name, *incarnation, settled);
        node.mark = (*incarnation, settled);
    }

    /// A node writes that a request was done whose publication the log has.
    fn settle(&mut self, at: usize, round: u64) {
        let tail = self.tail.as_ref();
        let Some((value, _)) = tail.and_then(|tail| tail.request(KEY, round)) else {
            return;
        };
        let (last, found) = self.nats.found();
        if found.is_some_and(|found| !found.is_done && found.round == round) {
            let entry = Entry {
                is_done: true,
                round,
                by: self.nodes[at].process.clone(),
                value,
            };
            self.nats.write(last, Some(entry.encode(UNTIL_S)));
        }
    }

    /// Others have everything of a node's earlier starts.
    fn sweep(&mut self, at: usize) {
        let Some(tail) = &mut self.tail else {
            return;
        };
        let Process { node, incarnation } = self.nodes[at].process.clone();
        let requests = tail.requests_of(&node, incarnation - 1);
        for (_, round) in requests {
            self.settle((at + 1) % NODES, round);
        }
        let Some(tail) = &mut self.tail else {
            return;
        };
        tail.forget(&node, incarnation - 1);
    }

    /// All nodes start again, and read the tail in the log.
    fn restart(&mut self) {
        for at in 0..NODES {
            self.kill(at);
        }
        let Some(tail) = &mut self.tail else {
            return;
        };
        *tail = Tail::new(100);
        for node in &self.nodes {
            tail.had_kept(&node.process.node, node.mark.0, node.mark.1);
        }
        tail.begin(self.nats.end());
        if let Some((from, to)) = tail.missing() {
            for position in from..to {
                let (_, _, line) = &self.nats.log[position as usize - 1];
                tail.saw(position, Settled::parse(line).expect("a line"));
            }
            tail.has_read(from);
        }
    }

    /// A node dies, and starts again.
    fn kill(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.process.incarnation += 1;
        node.step = Step::Idle;
        node.is_given_up = false;
        node.is_late = false;
        node.publishes_from = None;
    }

    fn step(&mut self, at: usize) {
        if self.nodes[at].mark.0 != self.nodes[at].process.incarnation {
            // A process begins nothing before it has written a mark.
            self.mark(at);
        }
        let given_up: HashSet<Process> = (self.nodes.iter())
            .filter(|node| node.is_given_up)
            .map(|node| node.process.clone())
            .collect();
        let here: HashSet<Process> = self.nodes.iter().map(|node| node.process.clone()).collect();
        let own = self.nodes[at].process.clone();
        let may_act = |process: &Process| {
            *process != own && here.contains(process) && !given_up.contains(process)
        };
        let is_lost = self.dice.roll(6) == 0;
        let comes_late = self.dice.roll(8) == 0;
        let node = &mut self.nodes[at];
        match &mut node.step {
            Step::Idle => {
                node.is_late = node.is_given_up;
                self.rounds += 1;
                let beginning = Beginning::new(node.process.clone(), self.rounds, VALUE.into());
                node.step = Step::Beginning(Box::new(beginning));
            }
            Step::Beginning(beginning) => {
                let bytes = beginning.entry().encode(UNTIL_S);
                let round = beginning.entry().round;
                let written = if comes_late {
                    self.nats.late.push((beginning.expected, Some(bytes)));
                    None
                } else {
                    self.nats.write(beginning.expected, Some(bytes))
                };
                if let Some(sequence) = written.filter(|_| !is_lost) {
                    node.publishes(round, sequence);
                    return;
                }
                let (sequence, found) = self.nats.found();
                let left = (found.as_ref()).filter(|found| !found.is_done && !may_act(&found.by));
                let left = left.map(|found| found.round);
                let published = |round| Some(self.tail.as_ref()?.request(KEY, round)?.0);
                match beginning.found(sequence, found, may_act, published) {
                    None => {}
                    Some(Begun::First(round)) => node.publishes(round, sequence),
                    Some(Begun::Known { is_done, value }) => {
                        self.told_again += usize::from(is_done);
                        assert!(is_done || *value == *VALUE);
                        node.step = Step::Idle;
                        if let Some(round) = left {
                            self.settle(at, round);
                        }
                    }
                    Some(Begun::Away) => unreachable!("NATS is there"),
                }
            }
            Step::Freeing(freeing) if self.frees => {
                let entry = freeing.entry().map(|entry| entry.encode(UNTIL_S));
                let is_written = self.nats.write(freeing.expected, entry).is_some();
                let (sequence, found) = self.nats.found();
                if (is_written && !is_lost) || !freeing.found(sequence, found.as_ref()) {
                    node.step = Step::Idle;
                }
            }
            Step::Freeing(_) => {
                let (sequence, found) = self.nats.found();
                if found.is_some_and(|found| !found.is_done && found.by == node.process) {
                    self.nats.write(sequence, None);
                }
                node.step = Step::Idle;
            }
            &mut Step::Publishing {
                round, sequence, ..
            } => {
                let by = node.process.clone();
                let record = Settles::Request {
                    key: KEY,
                    round,
                    kept_for_s: 60,
                    value: VALUE.into(),
                };
                let settled = Settled { by, record };
                let before = self.nats.end();
                node.publishes_from.get_or_insert(before);
                self.nats
                    .append(round, settled.line().expect("a short line"));
                if let Some(tail) = self.tail.as_mut().filter(|_| self.nats.end() > before) {
                    tail.saw(before, settled);
                }
                node.step = Step::Finishing { round, sequence };
            }
            &mut Step::Finishing { round, sequence } => {
                let entry = Entry {
                    is_done: true,
                    round,
                    by: node.process.clone(),
                    value: VALUE.into(),
                };
                if self
                    .nats
                    .write(sequence, Some(entry.encode(UNTIL_S)))
                    .is_some()
                    && !is_lost
                {
                    self.told_first += 1;
                    node.step = Step::Idle;
                    node.publishes_from = None;
                    return;
                }
                let (last, found) = self.nats.found();
                if found.is_some_and(|found| found.is_done || found.round != round) {
                    self.told_first += 1;
                    node.step = Step::Idle;
                    node.publishes_from = None;
                } else {
                    node.step = Step::Finishing {
                        round,
                        sequence: last,
                    };
                }
            }
        }
    }

    /// A node that has begun, and has not published, refuses its client. It may not know whether its entry is written.
    fn give_up(&mut self, at: usize) {
        let step = &mut self.nodes[at].step;
        *step = match std::mem::replace(step, Step::Idle) {
            Step::Beginning(beginning) => Step::Freeing(beginning.give_up()),
            Step::Publishing { gives_up, .. } if self.keeps_rounds => Step::Freeing(gives_up),
            Step::Publishing { sequence, .. } => {
                self.nats.write(sequence, None);
                Step::Idle
            }
            other => other,
        };
    }

    /// A node forgets an earlier use of the key, whose window is over.
    fn forget(&mut self) {
        let (last, found) = self.nats.found();
        let is_meant = |found: &Entry| !self.compares || found.is_record(b"an earlier one");
        if found.as_ref().is_some_and(is_meant) {
            self.nats.write(last, None);
        }
    }

    /// Clients that wait are refused, nodes end what they have begun, and NATS takes what is late. Returns whether the
    /// key is in use then, by a process that lives.
    fn is_used_at_rest(&mut self) -> bool {
        for at in 0..NODES {
            self.give_up(at);
        }
        loop {
            let busy = (self.nodes.iter()).position(|node| !matches!(node.step, Step::Idle));
            let late = self.nats.late.len() as u64;
            match busy {
                Some(at) if late == 0 || self.dice.roll(2) == 0 => self.step(at),
                _ if late > 0 => {
                    let at = self.dice.roll(late) as usize;
                    self.nats.take_late(at);
                }
                _ => break,
            }
        }
        let (_, found) = self.nats.found();
        let lives = |entry: &Entry| self.nodes.iter().any(|node| node.process == entry.by);
        found.is_some_and(|entry| !entry.is_done && lives(&entry))
    }

    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            let at = self.dice.roll(NODES as u64) as usize;
            match self.dice.roll(20) {
                0 => self.kill(at),
                // It stands still for so long that others go on without it, and goes on itself.
                1 => {
                    let node = &mut self.nodes[at];
                    node.is_given_up ^= true;
                    node.is_late = !matches!(node.step, Step::Idle);
                }
                2..=3 => self.mark(at),
                4 => self.sweep(at),
                5 if self.dice.roll(10) == 0 => self.restart(),
                // Nothing keeps one back that goes on after two minutes with what it had begun.
                5 if !self.nodes.iter().any(|node| node.is_late) => {
                    self.nats.now_s += self.dice.roll(2 * WINDOW_S);
                }
                6..=7 => self.give_up(at),
                9 => self.forget(),
                8 if !self.nats.late.is_empty() => {
                    let late = self.dice.roll(self.nats.late.len() as u64) as usize;
                    self.nats.take_late(late);
                }
                _ => self.step(at),
            }
        }
    }
}

/// Looks for a fault at rest, after each of the first steps of a seed. Long plays all end with a request that is done.
/// What is written late comes to nothing then.
fn fault_at_rest(seed: u64, frees: bool) -> Option<String> {
    (0..FIRST_STEPS).find_map(|steps| {
        let mut play = Play::new(seed, true);
        play.frees = frees;
        play.run(steps);
        if play.is_used_at_rest() {
            return Some(format!("nobody does it after {steps} steps"));
        }
        let log = &play.nats.log;
        (log.len() > 1).then(|| format!("it is done twice after {steps} steps: {log:?}"))
    })
}

#[test]
fn a_request_is_done_once_whoever_dies_or_stands_still() {
    let (first, again) = (Cell::new(0), Cell::new(0));
    crate::seeds::play("the requests' model", 0..300, |seed| {
        let mut play = Play::new(seed, true);
        play.run(STEPS);
        assert!(play.nats.log.len() <= 1, "seed {seed}: {:?}", play.nats.log);
        let was_told = play.told_first + play.told_again > 0;
        assert!(!was_told || play.nats.log.len() == 1, "seed {seed}");
        assert_eq!(fault_at_rest(seed, true), None, "seed {seed}");
        first.set(first.get() + play.told_first);
        again.set(again.get() + play.told_again);
    });
    // One seed alone may have none.
    if std::env::var_os("STERNA_SEEDS").is_none() {
        assert!(
            first.get() > 0 && again.get() > 0,
            "nobody was told that it is done"
        );
    }
}

/// The same where nobody looks at the tail of the log: somebody must notice.
#[test]
fn without_the_tail_of_the_log_a_request_is_done_twice() {
    let doubled = (0..200)
        .filter(|&seed| {
            let mut play = Play::new(seed, false);
            play.run(STEPS);
            play.nats.log.len() > 1
        })
        .count();
    assert!(doubled > 1, "only {doubled} of 200 seeds have found it");
}

/// The same where who gives up frees the key, also in the round of a process that may publish yet: somebody must notice.
#[test]
fn a_request_is_done_twice_where_its_round_is_given_up_for_another_process() {
    assert!(doubled(|play| play.keeps_rounds = false) > 1);
}

/// The same where who forgets an earlier use of a key frees the key, whatever its entry is: somebody must notice.
#[test]
fn a_request_is_done_twice_where_its_key_is_freed_for_an_earlier_one() {
    assert!(doubled(|play| play.compares = false) > 1);
}

/// In how many plays a request was done twice.
fn doubled(change: impl Fn(&mut Play)) -> usize {
    let is_doubled = |seed: &u64| {
        let mut play = Play::new(*seed, true);
        change(&mut play);
        play.run(STEPS);
        play.nats.log.len() > 1
    };
    (0..3000).filter(is_doubled).count()
}

/// The same where who gives up looks once for its entry: somebody must notice.
#[test]
fn a_key_whose_entry_is_written_late_stays_in_use_without_a_free_entry() {
    let used = (0..200)
        .filter(|&seed| fault_at_rest(seed, false).is_some())
        .count();
    assert!(used > 1, "only {used} of 200 seeds have found it");
}

fn process(node: &str) -> Process {
    Process {
        node: node.into(),
        incarnation: 1,
    }
}

/// NATS with the entry of a process that has begun with the request.
fn begun_by_a() -> Nats {
    let mut nats = Nats::default();
    let before = Beginning::new(process("a"), 1, VALUE.into());
    assert_eq!(nats.write(0, Some(before.entry().encode(UNTIL_S))), Some(1));
    nats
}

/// NATS has no quorum when a process begins, and takes its entry after the client was refused.
#[test]
fn a_key_is_free_whose_entry_is_written_after_its_process_gave_up() {
    let mut nats = Nats::default();
    let beginning = Beginning::new(process("a"), 1, VALUE.into());
    (nats.late).push((beginning.expected, Some(beginning.entry().encode(UNTIL_S))));
    let mut freeing = beginning.give_up();
    assert!(freeing.found(0, None), "nobody can tell yet");
    nats.take_late(0);
    assert_eq!(nats.write(freeing.expected, None), None);
    let (sequence, found) = nats.found();
    assert!(freeing.found(sequence, found.as_ref()), "it is its own");
    assert!(nats.write(freeing.expected, None).is_some());
    // The other way round, the free entry comes first.
    let mut beginning = Beginning::new(process("a"), 2, VALUE.into());
    assert_eq!(beginning.found(2, None, |_| false, |_| None), None);
    (nats.late).push((beginning.expected, Some(beginning.entry().encode(UNTIL_S))));
    let mut freeing = beginning.give_up();
    assert!(nats.write(freeing.expected, None).is_some());
    nats.take_late(0);
    assert_eq!(nats.found(), (3, None), "the late entry comes to nothing");
    // Another process has the key.
    let other = Beginning::new(process("b"), 3, VALUE.into());
    assert!(
        freeing.found(2, Some(other.entry())),
        "read from a server that is behind"
    );
    assert_eq!(freeing.expected, 2);
    assert!(!freeing.found(4, Some(other.entry())));
}

/// A process that was taken for dead may publish all the same. Others keep to its round, also when they give up.
#[test]
fn the_round_of_another_process_stays_when_its_successor_gives_up() {
    let mut nats = begun_by_a();
    for is_late in [false, true] {
        let mut next = Beginning::new(process("b"), 2, VALUE.into());
        let (sequence, found) = nats.found();
        assert_eq!(next.found(sequence, found, |_| false, |_| None), None);
        let own = next.entry().encode(UNTIL_S);
        // The answer to its own write is missing, and the process before it is heard again.
        let (sequence, found) = nats.found();
        assert_eq!(next.found(sequence, found, |_| true, |_| None), None);
        let mut freeing = next.give_up();
        if !is_late {
            assert!(nats.write(sequence, Some(own)).is_some());
            assert_eq!(
                nats.write(freeing.expected, None),
                None,
                "its own is written"
            );
            let (sequence, found) = nats.found();
            assert!(freeing.found(sequence, found.as_ref()));
        }
        let entry = freeing.entry().map(|entry| entry.encode(UNTIL_S));
        assert!(nats.write(freeing.expected, entry).is_some());
        let left = nats.found().1.expect("an entry");
        assert_eq!((left.round, &*left.value), (1, VALUE));
        assert!(
            !left.is_done && left.by != process("a"),
            "it waits for nobody"
        );
    }
    // Nothing is left of it where the key was free meanwhile.
    let mut next = Beginning::new(process("b"), 2, VALUE.into());
    let (sequence, found) = nats.found();
    assert_eq!(next.found(sequence, found, |_| false, |_| None), None);
    assert_eq!(next.found(sequence + 1, None, |_| false, |_| None), None);
    assert_eq!(next.give_up().entry(), None);
}

/// The same where the successor was told to do the request, and does not.
#[test]
fn the_round_of_another_process_stays_when_its_successor_has_begun_and_gives_up() {
    let mut nats = begun_by_a();
    let mut next = Beginning::new(process("b"), 2, VALUE.into());
    let (sequence, found) = nats.found();
    assert_eq!(next.found(sequence, found, |_| false, |_| None), None);
    let own = next.entry().encode(UNTIL_S);
    let sequence = nats.write(next.expected, Some(own)).expect("nobody else");
    let mut freeing = next.begun(sequence);
    let left = freeing.entry().expect("an entry");
    assert_eq!((left.round, &*left.value), (1, VALUE));
    assert!(left.by != process("a"), "it waits for nobody");
    // A third has taken the request up meanwhile: it is that one's.
    let mut third = Beginning::new(process("c"), 3, VALUE.into());
    let (last, found) = nats.found();
    assert_eq!(third.found(last, found, |_| false, |_| None), None);
    assert!(
        nats.write(last, Some(third.entry().encode(UNTIL_S)))
            .is_some()
    );
    let entry = freeing.entry().map(|entry| entry.encode(UNTIL_S));
    assert_eq!(nats.write(freeing.expected, entry), None);
    let (sequence, found) = nats.found();
    assert!(!freeing.found(sequence, found.as_ref()));
    // A key that was free is left free.
    let own = Beginning::new(process("a"), 4, VALUE.into());
    assert_eq!(own.begun(9).entry(), None);
}

/// A key may have been used anew since its record was forgotten here.
#[test]
fn a_record_is_that_of_a_request_that_was_done() {
    let mut entry = Beginning::new(
        Process {
            node: "a".into(),
            incarnation: 1,
        },
        1,
        b"one".as_slice().into(),
    )
    .entry()
    .clone();
    assert!(!entry.is_record(b"one"), "it is being done");
    entry.is_done = true;
    assert!(entry.is_record(b"one") && !entry.is_record(b"two"));
}

/// Who is refused is not done, and another content of the key is told apart.
#[test]
fn another_request_of_a_dead_process_keeps_its_key() {
    let before = Beginning::new(process("a"), 1, b"one".as_slice().into());
    let mut other = Beginning::new(process("b"), 2, b"two".as_slice().into());
    let found = other.found(7, Some(before.entry().clone()), |_| false, |_| None);
    let known = Begun::Known {
        is_done: false,
        value: b"one".as_slice().into(),
    };
    assert_eq!(found, Some(known));
    let mut same = Beginning::new(process("b"), 3, b"one".as_slice().into());
    let published = |round| (round == 1).then(|| b"done".as_slice().into());
    let done = Begun::Known {
        is_done: true,
        value: b"done".as_slice().into(),
    };
    let found = same.found(7, Some(before.entry().clone()), |_| false, published);
    assert_eq!(found, Some(done), "the log has it");
    let found = same.found(7, Some(before.entry().clone()), |_| false, |_| None);
    assert_eq!(found, None);
    assert_eq!(
        (same.expected, same.entry().round),
        (7, 1),
        "the same round"
    );
    assert_eq!(
        same.found(8, None, |_| true, |_| None),
        None,
        "it was given up"
    );
    assert_eq!(same.expected, 8);
    for bytes in [
        &b""[..],
        b"\x02\x00\x01",
        b"\x01\x02\x07\x01\x00\x00",
        b"\x01\x00\x07\x01\x05a",
    ] {
        assert_eq!(Entry::decode(bytes), None, "{bytes:?}");
    }
}
