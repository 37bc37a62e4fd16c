//! Requests that are done once, whichever nodes they come to, by a model: nodes that begin, publish, say that it is done,
//! stand still and die at each step, and a model of JetStream that loses answers and knows names of messages again for
//! two minutes. The client may come back later than that.
//!
//! `STERNA_SEEDS` says which seeds are played (`seeds/mod.rs` of the broker's tests).

#[path = "../../sterna-broker/tests/seeds/mod.rs"]
mod seeds;

use std::cell::Cell;
use std::collections::HashSet;

use sterna_cluster::owners::{Key, Process};
use sterna_cluster::requests::{Beginning, Begun, Entry};
use sterna_cluster::tail::{Settled, Settles, Tail};

const NODES: usize = 3;

const KEY: Key = [9; 16];

/// Time for which JetStream knows a name again.
const WINDOW_S: u64 = 120;

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
    /// Whether others took it for dead since it has begun.
    is_late: bool,
    /// The end of the log when it began to publish; `None` where all is settled.
    publishes_from: Option<u64>,
    /// What its last mark says: its incarnation, and up to where all is settled.
    mark: (u64, u64),
}

/// What a client was told: done, and whether before.
struct Play {
    nats: Nats,
    nodes: Vec<Node>,
    dice: Dice,
    /// What all nodes know of the tail of the log; `None` where they do not look at it.
    tail: Option<Tail>,
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

    /// Others have everything of a node's earlier starts.
    fn sweep(&mut self, at: usize) {
        let Some(tail) = &mut self.tail else {
            return;
        };
        let Process { node, incarnation } = self.nodes[at].process.clone();
        for (key, round) in tail.requests_of(&node, incarnation - 1) {
            let (value, _) = tail.request(key, round).expect("it is there");
            let (last, found) = self.nats.found();
            if found.is_some_and(|found| !found.is_done && found.round == round) {
                let by = self.nodes[(at + 1) % NODES].process.clone();
                let entry = Entry {
                    is_done: true,
                    round,
                    by,
                    value,
                };
                self.nats.write(last, Some(entry.encode()));
            }
        }
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
        let may_act = |process: &Process| here.contains(process) && !given_up.contains(process);
        let is_lost = self.dice.roll(6) == 0;
        let node = &mut self.nodes[at];
        match &mut node.step {
            Step::Idle => {
                node.is_late = false;
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
                let published = |round| Some(self.tail.as_ref()?.request(KEY, round)?.0);
                match beginning.found(sequence, found, may_act, published) {
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
                if self.nats.write(sequence, Some(entry.encode())).is_some() && !is_lost {
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

    fn run(&mut self) {
        for _ in 0..300 {
            let at = self.dice.roll(NODES as u64) as usize;
            match self.dice.roll(16) {
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
                _ => self.step(at),
            }
        }
    }
}

#[test]
fn a_request_is_done_once_whoever_dies_or_stands_still() {
    let (first, again) = (Cell::new(0), Cell::new(0));
    seeds::play("the requests' model", 0..300, |seed| {
        let mut play = Play::new(seed, true);
        play.run();
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

/// The same where nobody looks at the tail of the log: somebody must notice.
#[test]
fn without_the_tail_of_the_log_a_request_is_done_twice() {
    let doubled = (0..200)
        .filter(|&seed| {
            let mut play = Play::new(seed, false);
            play.run();
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
        b"\x01\x02\x01\x00\x00",
        b"\x01\x00\x01\x05a",
    ] {
        assert_eq!(Entry::decode(bytes), None, "{bytes:?}");
    }
}
