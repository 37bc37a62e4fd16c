//! The stream of records and marks, and how nodes read it.

use sterna_cluster::owners::{Key, Owners};

use super::{Event, Item, Live, Losses, NODES, World, name_of, will_bytes};

impl World {
    pub(super) fn append(&mut self, item: Item) -> u64 {
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
    pub(super) fn follow(&mut self, node: usize, start: u64) {
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
                        owners
                            .mark_passed(now_ms, sequence, &process, mark)
                            .expect("a mark of its time");
                    });
                }
                Item::Floor(name, floor) => {
                    self.with(node, start, |owners, now_ms| {
                        owners.note_passed(now_ms, sequence);
                    });
                    self.raise_floor(node, start, &name, floor);
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
        self.in_process.clear();
        self.doubt_wills();
        for node in 0..NODES {
            let start = self.nodes[node].start;
            let in_ms = self.dice.below(200);
            self.schedule(in_ms, Event::Follow(node, start));
        }
    }

    /// Who has taken a will out of its record was not heard, and may have published it or died.
    pub(super) fn doubt_wills(&mut self) {
        for fate in self.wills.values_mut() {
            fate.may_be_lost = true;
            fate.may_be_doubled = true;
        }
    }

    /// A node's shards tell of their sessions again, until none is missing.
    pub(super) fn tell_again(&mut self, node: usize, start: u64) {
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
}
