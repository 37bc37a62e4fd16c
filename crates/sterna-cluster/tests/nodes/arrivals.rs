//! Batches that are given from node to node, or go by the inbox, or both, in virtual time. From a seed come delays, losses
//! and repetitions, a node that stands still, and restarts at either end.
//!
//! `STERNA_SEEDS` says which seeds are played (`seeds/mod.rs` of the broker's tests).

use std::collections::{HashMap, HashSet};

use sterna_cluster::arrivals::{Arrivals, Number, Place, Verdict};

const TIMEOUT_MS: u64 = 50;
/// Faults end after this time, and the run some time later.
const FAULTS_MS: u64 = 4_000;
const END_MS: u64 = 5_000;
/// Batches of the time without faults of which nearly all are given.
const LAST: usize = 30;

#[test]
fn each_batch_is_taken_once_and_in_order_whichever_way_it_goes() {
    crate::seeds::play("batches between nodes", 0..100, |seed| {
        World::new(seed).play();
    });
}

/// Numbers from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// On its way to an end of it.
enum Parcel {
    /// To a process of the node.
    Given(u64, Number),
    /// To a process of the sender: whether the batch was taken.
    Answer(Number, bool),
    /// To NATS, which answers.
    Append(Number),
    Stored(Number),
}

/// What the sender waits for.
enum Sending {
    Nothing,
    Answer { until_ms: u64 },
    Store { until_ms: u64 },
}

struct World {
    dice: Dice,
    now_ms: u64,
    on_its_way: Vec<(u64, Parcel)>,
    /// The sender's last batch, and what it waits for.
    number: Number,
    sending: Sending,
    /// How often each batch was closed, and the ways of those that were.
    given: Vec<(Number, bool)>,
    /// The node's process, as it is and as the sender knows it.
    process: u64,
    known_process: u64,
    stands_until_ms: u64,
    /// Batches in NATS, from when on they can be read, and whom they were stored for first.
    inbox: Vec<(u64, Number)>,
    stored_for: HashMap<Number, u64>,
    /// How long the node's inbox takes to come to it, at least: longer than the answer to the sender in some runs.
    lag_ms: u64,
    read: usize,
    arrivals: Arrivals<Number>,
    /// What this process of the node has taken.
    taken: Vec<Number>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let lag_ms = dice.below(30);
        Self {
            dice,
            lag_ms,
            now_ms: 0,
            on_its_way: Vec::new(),
            number: (1, 0),
            sending: Sending::Nothing,
            given: Vec::new(),
            process: 1,
            known_process: 1,
            stands_until_ms: 0,
            inbox: Vec::new(),
            stored_for: HashMap::new(),
            read: 0,
            arrivals: Arrivals::new(TIMEOUT_MS),
            taken: Vec::new(),
        }
    }

    const fn is_bad(&self) -> bool {
        self.now_ms < FAULTS_MS
    }

    fn send(&mut self, parcel: Parcel) {
        let is_of_nats = matches!(parcel, Parcel::Append(_) | Parcel::Stored(_));
        if self.is_bad() && self.dice.one_in(12) {
            return; // it is lost
        }
        let far = self.is_bad() && self.dice.one_in(10);
        let most_ms = if far { 3 * TIMEOUT_MS } else { 4 };
        let due_ms = self.now_ms + 1 + self.dice.below(most_ms);
        if let Parcel::Given(process, number) = parcel
            && self.is_bad()
            && self.dice.one_in(20)
        {
            let again_ms = due_ms + self.dice.below(4 * TIMEOUT_MS);
            (self.on_its_way).push((again_ms, Parcel::Given(process, number)));
        }
        // NATS keeps the order of a sender's appends: the one under way is the only one.
        let due_ms = if is_of_nats {
            due_ms.min(self.now_ms + TIMEOUT_MS - 1)
        } else {
            due_ms
        };
        self.on_its_way.push((due_ms, parcel));
    }

    fn play(mut self) {
        while self.now_ms < END_MS {
            self.now_ms += 1;
            if self.is_bad() {
                self.disturb();
            }
            self.arrive();
            self.sender_goes_on();
            self.node_goes_on();
        }
        self.check();
    }

    fn disturb(&mut self) {
        if self.dice.one_in(400) {
            self.stands_until_ms = self.now_ms + self.dice.below(5 * TIMEOUT_MS);
        }
        if self.dice.one_in(900) {
            // What the earlier process had on its way may still arrive.
            self.number = (self.number.0 + 1, 0);
            self.sending = Sending::Nothing;
        }
        if self.dice.one_in(900) {
            self.restart_node();
        }
        if self.dice.one_in(60) {
            self.known_process = self.process;
        }
    }

    /// The inbox of the process before is emptied.
    fn restart_node(&mut self) {
        self.check_order();
        self.process += 1;
        self.stands_until_ms = 0;
        self.inbox.clear();
        self.read = 0;
        self.arrivals = Arrivals::new(TIMEOUT_MS);
        self.taken.clear();
    }

    fn arrive(&mut self) {
        let now_ms = self.now_ms;
        let stands = now_ms < self.stands_until_ms;
        let waits = |(due_ms, parcel): &(u64, Parcel)| {
            *due_ms > now_ms || stands && matches!(parcel, Parcel::Given(..))
        };
        let (later, due): (Vec<_>, Vec<_>) = self.on_its_way.drain(..).partition(waits);
        self.on_its_way = later;
        for (_, parcel) in due {
            match parcel {
                Parcel::Given(process, number) if process == self.process => {
                    self.arrivals.give(now_ms, "sender", number, number);
                }
                Parcel::Given(..) => {}
                Parcel::Answer(number, is_taken) => {
                    if number == self.number && matches!(self.sending, Sending::Answer { .. }) {
                        if is_taken {
                            self.close(true);
                        } else {
                            self.append();
                        }
                    }
                }
                Parcel::Append(number) => {
                    // NATS knows a repetition, as long as that is not too late.
                    let is_known = self.inbox.iter().any(|(_, known)| *known == number);
                    if !is_known || self.dice.one_in(3) {
                        let last_ms = self.inbox.last().map_or(0, |(ready_ms, _)| *ready_ms);
                        let ready_ms = now_ms + self.lag_ms + self.dice.below(5);
                        self.inbox.push((last_ms.max(ready_ms), number));
                        self.stored_for.insert(number, self.process);
                    }
                    self.send(Parcel::Stored(number));
                }
                Parcel::Stored(number) => {
                    if number == self.number && matches!(self.sending, Sending::Store { .. }) {
                        self.close(false);
                    }
                }
            }
        }
    }

    fn close(&mut self, is_given: bool) {
        self.given.push((self.number, is_given));
        self.sending = Sending::Nothing;
    }

    fn append(&mut self) {
        self.send(Parcel::Append(self.number));
        let until_ms = self.now_ms + 2 * TIMEOUT_MS;
        self.sending = Sending::Store { until_ms };
    }

    fn sender_goes_on(&mut self) {
        match self.sending {
            Sending::Nothing => {
                if self.is_bad() && !self.dice.one_in(3) {
                    return;
                }
                self.number.1 += 1;
                if self.is_bad() && self.dice.one_in(4) {
                    self.append();
                } else {
                    self.send(Parcel::Given(self.known_process, self.number));
                    let until_ms = self.now_ms + TIMEOUT_MS;
                    self.sending = Sending::Answer { until_ms };
                }
            }
            Sending::Answer { until_ms } | Sending::Store { until_ms }
                if self.now_ms >= until_ms =>
            {
                self.known_process = self.process;
                self.append();
            }
            _ => {}
        }
    }

    fn node_goes_on(&mut self) {
        if self.now_ms < self.stands_until_ms {
            return;
        }
        loop {
            let next = self.inbox.get(self.read).copied();
            let next = next.filter(|(ready_ms, _)| *ready_ms <= self.now_ms);
            let decided = if next.is_some() && self.dice.one_in(2) {
                None
            } else {
                self.arrivals.decide()
            };
            if let Some((verdict, number)) = decided {
                if verdict == Verdict::Next {
                    self.taken.push(number);
                }
                self.send(Parcel::Answer(number, verdict != Verdict::Behind));
                continue;
            }
            let Some((_, number)) = next else {
                self.arrivals.check(self.now_ms);
                break;
            };
            self.read += 1;
            match self.arrivals.came("sender", Some(number)) {
                Place::Next => self.taken.push(number),
                Place::Repeated => {}
                Place::AfterMissing(count) => {
                    panic!("{count} are said to be missing before {number:?}")
                }
            }
        }
    }

    /// A process takes batches in their order, each once, and none of a sender's process is missing between two.
    fn check_order(&self) {
        for pair in self.taken.windows(2) {
            let ((one, serial), (other, following)) = (pair[0], pair[1]);
            if one == other {
                assert_eq!(following, serial + 1, "of process {one}");
            } else {
                assert!(one < other, "{other} comes after {one}");
            }
        }
    }

    fn check(&self) {
        self.check_order();
        let taken: HashSet<_> = self.taken.iter().collect();
        for (number, is_given) in &self.given {
            let is_for_it = self.stored_for.get(number) == Some(&self.process);
            if !is_given && is_for_it {
                let is_under_way = self.given.last().is_some_and(|(last, _)| last == number);
                assert!(
                    taken.contains(number) || is_under_way,
                    "{number:?} was stored and lost"
                );
            }
        }
        let last = self.given.iter().rev().take(LAST);
        let given = last.filter(|(_, is_given)| *is_given).count();
        assert_eq!(given, LAST, "it does not come back to giving");
    }
}
