//! Requests that are done once, whichever nodes they come to, by a model: nodes that begin, publish, say that it is done,
//! stand still and die at each step, and a model of JetStream that loses answers and knows names of messages again.
//!
//! `STERNA_SEEDS` says which seeds are played (`seeds/mod.rs` of the broker's tests).

#[path = "../../sterna-broker/tests/seeds/mod.rs"]
mod seeds;

use std::cell::Cell;
use std::collections::HashSet;

use sterna_cluster::owners::Process;
use sterna_cluster::requests::{Beginning, Begun, Entry};

const NODES: usize = 3;

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
    /// Names of messages of the log.
    log: Vec<u64>,
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

    fn append(&mut self, name: u64, names_hold: bool) {
        if !(names_hold && self.log.contains(&name)) {
            self.log.push(name);
        }
    }

    fn found(&self) -> (u64, Option<Entry>) {
        let entry = self.entry.as_ref();
        (
            self.last,
            entry.map(|bytes| Entry::decode(bytes).expect("an entry")),
        )
    }
}

/// How far a node is with the client's request.
enum Step {
    Idle,
    Beginning(Box<Beginning>),
    Publishing { round: u64, sequence: u64 },
    Finishing { round: u64, sequence: u64 },
}

struct Node {
    process: Process,
    step: Step,
    /// Whether others take it for dead, although it may go on.
    is_given_up: bool,
}

/// What a client was told: done, and whether before.
struct Play {
    nats: Nats,
    nodes: Vec<Node>,
    dice: Dice,
    rounds: u64,
    told_first: usize,
    told_again: usize,
}

const VALUE: &[u8] = b"digest";

impl Play {
    fn new(seed: u64) -> Self {
        let nodes = (0..NODES).map(|number| Node {
            process: Process {
                node: format!("node-{number}").into(),
                incarnation: 1,
            },
            step: Step::Idle,
            is_given_up: false,
        });
        Self {
            nats: Nats::default(),
            nodes: nodes.collect(),
            dice: Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            rounds: 0,
            told_first: 0,
            told_again: 0,
        }
    }

    fn step(&mut self, at: usize, names_hold: bool) {
        let given_up: HashSet<Process> = (self.nodes.iter())
            .filter(|node| node.is_given_up)
            .map(|node| node.process.clone())
            .collect();
        let here: HashSet<Process> = self.nodes.iter().map(|node| node.process.clone()).collect();
        let may_act = |process: &Process| here.contains(process) && !given_up.contains(process);
        let is_lost = self.dice.roll(6) == 0;
        let node = &mut self.nodes[at];
        match &mut node.step {
            Step::Idle => {
                self.rounds += 1;
                let beginning = Beginning::new(node.process.clone(), self.rounds, VALUE.into());
                node.step = Step::Beginning(Box::new(beginning));
            }
            Step::Beginning(beginning) => {
                let bytes = beginning.entry().encode();
                let round = beginning.entry().round;
                let written = self.nats.write(beginning.expected, Some(bytes));
                if let Some(sequence) = written.filter(|_| !is_lost) {
                    node.step = Step::Publishing { round, sequence };
                    return;
                }
                let (sequence, found) = self.nats.found();
                match beginning.found(sequence, found, may_act) {
                    None => {}
                    Some(Begun::First(round)) => {
                        node.step = Step::Publishing { round, sequence };
                    }
                    Some(Begun::Known { is_done, value }) => {
                        self.told_again += usize::from(is_done);
                        assert!(is_done || *value == *VALUE);
                        node.step = Step::Idle;
                    }
                    Some(Begun::Away) => unreachable!("NATS is there"),
                }
            }
            &mut Step::Publishing { round, sequence } => {
                self.nats.append(round, names_hold);
                node.step = Step::Finishing { round, sequence };
            }
            &mut Step::Finishing { round, sequence } => {
                let entry = Entry {
                    is_done: true,
                    round,
                    by: node.process.clone(),
                    value: VALUE.into(),
                };
                if self.nats.write(sequence, Some(entry.encode())).is_some() && !is_lost {
                    self.told_first += 1;
                    node.step = Step::Idle;
                    return;
                }
                let (last, found) = self.nats.found();
                if found.is_some_and(|found| found.is_done || found.round != round) {
                    self.told_first += 1;
                    node.step = Step::Idle;
                } else {
                    node.step = Step::Finishing {
                        round,
                        sequence: last,
                    };
                }
            }
        }
    }

    fn run(&mut self, names_hold: bool) {
        for _ in 0..300 {
            let at = self.dice.roll(NODES as u64) as usize;
            match self.dice.roll(12) {
                // It dies, and starts again.
                0 => {
                    let node = &mut self.nodes[at];
                    node.process.incarnation += 1;
                    node.step = Step::Idle;
                    node.is_given_up = false;
                }
                // It stands still for so long that others go on without it, and goes on itself.
                1 => self.nodes[at].is_given_up ^= true,
                _ => self.step(at, names_hold),
            }
        }
    }
}

#[test]
fn a_request_is_done_once_whoever_dies_or_stands_still() {
    let (first, again) = (Cell::new(0), Cell::new(0));
    seeds::play("the requests' model", 0..300, |seed| {
        let mut play = Play::new(seed);
        play.run(true);
        assert!(play.nats.log.len() <= 1, "seed {seed}: {:?}", play.nats.log);
        let was_told = play.told_first + play.told_again > 0;
        assert!(!was_told || play.nats.log.len() == 1, "seed {seed}");
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

/// The same where NATS does not know names again: somebody must notice.
#[test]
fn a_log_that_forgets_names_is_found() {
    let doubled = (0..200)
        .filter(|&seed| {
            let mut play = Play::new(seed);
            play.run(false);
            play.nats.log.len() > 1
        })
        .count();
    assert!(doubled > 1, "only {doubled} of 200 seeds have found it");
}

/// Who is refused is not done, and another content of the key is told apart.
#[test]
fn another_request_of_a_dead_process_keeps_its_key() {
    let process = |node: &str| Process {
        node: node.into(),
        incarnation: 1,
    };
    let before = Beginning::new(process("a"), 1, b"one".as_slice().into());
    let mut other = Beginning::new(process("b"), 2, b"two".as_slice().into());
    let found = other.found(7, Some(before.entry().clone()), |_| false);
    let known = Begun::Known {
        is_done: false,
        value: b"one".as_slice().into(),
    };
    assert_eq!(found, Some(known));
    let mut same = Beginning::new(process("b"), 3, b"one".as_slice().into());
    assert_eq!(same.found(7, Some(before.entry().clone()), |_| false), None);
    assert_eq!(
        (same.expected, same.entry().round),
        (7, 1),
        "the same round"
    );
    assert_eq!(same.found(8, None, |_| true), None, "it was given up");
    assert_eq!(same.expected, 8);
    for bytes in [
        &b""[..],
        b"\x02\x00\x01",
        b"\x01\x02\x01\x00\x00",
        b"\x01\x00\x01\x05a",
    ] {
        assert_eq!(Entry::decode(bytes), None, "{bytes:?}");
    }
}
