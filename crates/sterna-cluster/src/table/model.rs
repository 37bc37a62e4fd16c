//! The table of nodes under words that come late, twice, or of processes that nobody knows. After each of them the
//! table is checked, and what was taken of its changes is what it would say now.
//!
//! `STERNA_SEEDS` says which seeds are played (`seeds/mod.rs` of the broker's tests).

#[path = "../../../sterna-broker/tests/seeds/mod.rs"]
mod seeds;

use super::*;

#[test]
fn the_table_agrees_with_itself_whatever_nodes_say() {
    seeds::play("the table of nodes", 0..150, |seed| {
        let mut world = World::new(seed);
        for _ in 0..400 {
            world.step();
        }
    });
}

/// Numbers from a seed.
struct Dice(u64);

impl Dice {
    const fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end
    }

    const fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// The own node is among these names.
const NODES: u64 = 5;
const FILTERS: u64 = 6;
const OWN_INCARNATION: u64 = 50;

struct World {
    dice: Dice,
    table: Table,
    now_ms: u64,
    /// The process that each name has now.
    processes: Vec<u64>,
    /// What was taken of the table's changes.
    taken: HashMap<Arc<str>, Wanted>,
    /// The latest process of each name that reads nothing of this node's.
    unread: HashMap<String, u64>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let reads = Versions::parse("2-3").expect("versions");
        let mut table = Table::new("n0", 4_000, 20_000, reads);
        table.set_own_incarnation(OWN_INCARNATION);
        if dice.one_in(3) {
            table.export(&["f0".to_owned(), "f1".to_owned()]);
        }
        // There is room for few more.
        for filler in 0..dice.below(2) * (NodeSet::MAXIMUM as u64 - 4) {
            let node = format!("filler-{filler}");
            table.wants(0, &node, 1, "f0", Interest::Acknowledged);
        }
        let mut processes = vec![OWN_INCARNATION];
        processes.extend((1..NODES).map(|_| 1 + dice.below(2 * OWN_INCARNATION)));
        Self {
            dice,
            table,
            now_ms: 0,
            processes,
            taken: HashMap::new(),
            unread: HashMap::new(),
        }
    }

    fn step(&mut self) {
        self.now_ms += self.dice.below(1_500);
        let at = self.dice.below(NODES) as usize;
        let node = format!("n{at}");
        if at > 0 && self.dice.one_in(25) {
            self.processes[at] += 1 + self.dice.below(5);
        }
        let now = self.processes[at];
        // A word of a process before, or of a later one of this node's name.
        let incarnation = match self.dice.below(5) {
            0 => 1 + self.dice.below(now),
            1 if at > 0 && self.dice.one_in(10) => now + 1,
            _ => now,
        };
        match self.dice.below(12) {
            0..=3 => {
                // A process reads the same as long as it lives.
                let reads = ["2", "2-3", "3-4", "1", "2-9"][incarnation as usize % 5];
                let reads = Versions::parse(reads).expect("versions");
                let is_leaving = self.dice.one_in(8);
                let is_read = self.table.reads().common(reads).is_some();
                if at > 0 && !is_read && !is_leaving && incarnation >= OWN_INCARNATION {
                    let latest = self.unread.entry(node.clone()).or_default();
                    *latest = incarnation.max(*latest);
                }
                (self.table).heard(self.now_ms, &node, incarnation, is_leaving, reads);
            }
            4..=7 => {
                let interest = match self.dice.below(4) {
                    0 => Interest::None,
                    1 => Interest::AtMostOnce,
                    2 => Interest::Acknowledged,
                    _ => Interest::Durable,
                };
                let filter = format!("f{}", self.dice.below(FILTERS));
                (self.table).wants(self.now_ms, &node, incarnation, &filter, interest);
            }
            8 => drop(self.table.swept(&node, incarnation)),
            9 => self.table.look(self.now_ms),
            10 if self.dice.one_in(4) => self.table.begins_to_hear(self.now_ms),
            10 => drop(self.table.take_events()),
            _ => {
                let most = 1 + self.dice.below(4) as usize;
                self.taken.extend(self.table.take_changes(most));
            }
        }
        self.table.check();
        self.check_taken();
        for (node, incarnation) in &self.unread {
            let lives = self
                .table
                .presence(node)
                .is_some_and(|seen| seen != Presence::Gone);
            let is_it = self
                .table
                .incarnation(node)
                .is_some_and(|of| of <= *incarnation);
            assert!(
                !(lives && is_it),
                "{node} takes part, and reads nothing of this node's"
            );
        }
    }

    /// Nobody misses a change.
    fn check_taken(&self) {
        for filter in (0..FILTERS).map(|at| Arc::from(format!("f{at}"))) {
            let known = self.taken.get(&filter).copied().unwrap_or(Wanted::NOBODY);
            assert!(
                known == self.table.wanted(&filter) || self.table.changed.contains(&filter),
                "{filter} has changed, and nobody is told"
            );
        }
    }
}
