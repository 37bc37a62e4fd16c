//! Records that NATS brings back, and the floors below which they do not exist.

use std::sync::Arc;

use sterna_cluster::owners::{Floor, Key, Process};

use super::{ENDED_MS, Item, Losses, NODES, World};

impl World {
    /// Nobody has anything any more of some processes: NATS has their floors, which come by in the stream.
    pub(super) fn tell_floors(&mut self, processes: Vec<Process>, position: u64) {
        for Process { node, incarnation } in processes {
            let floor = Floor {
                incarnation,
                position,
            };
            if (self.floors.get(&node)).is_none_or(|(known, _)| *known < floor) {
                self.floors.insert(Arc::clone(&node), (floor, self.now_ms));
                self.append(Item::Floor(node, floor));
            }
        }
    }

    pub(super) fn raise_floor(&mut self, node: usize, start: u64, name: &str, floor: Floor) {
        if self.losses != Losses::ReturnedUnnoticed {
            self.with(node, start, |owners, _| owners.raise_floor(name, floor));
        }
    }

    /// A node that starts knows what NATS has.
    pub(super) fn learn_floors(&mut self, node: usize, start: u64) {
        for (name, (floor, _)) in self.floors.clone() {
            self.raise_floor(node, start, &name, floor);
        }
    }

    /// What lies of a session up to a sequence number is removed.
    pub(super) fn remove(&mut self, key: Key, sequence: u64) {
        if (self.last.get(&key)).is_some_and(|&at| (at as u64) < sequence) {
            self.last.remove(&key);
        }
    }

    /// Whether an item is a record below a floor that NATS has for a time.
    pub(super) fn is_below_floor(&self, at: usize, for_ms: u64) -> bool {
        let Item::Record(_, record) = &self.stream[at] else {
            return false;
        };
        (self.floors.get(&record.owner.node)).is_some_and(|(floor, since_ms)| {
            let is_old = since_ms + for_ms <= self.now_ms;
            is_old && floor.covers(record.owner.incarnation, at as u64 + 1)
        })
    }

    /// When all has come to rest, records of old are there, and a node dies: others look at all records.
    pub(super) fn dies_long_after(&mut self) {
        for node in 0..NODES {
            for _ in 0..3 {
                self.bring_back();
            }
            self.kill(node);
            self.rest();
        }
    }

    /// NATS has a record again, of a session of which it had nothing any more. An end stays longer than somebody is sure
    /// who has not heard of a floor.
    pub(super) fn bring_back(&mut self) {
        let returning: Vec<(Key, usize)> = (self.base..self.stream.len())
            .filter_map(|at| match &self.stream[at] {
                Item::Record(key, record) if !record.is_over => Some((*key, at)),
                _ => None,
            })
            .filter(|(key, _)| !self.last.contains_key(key) && !self.in_process.contains(key))
            .filter(|(_, at)| self.is_below_floor(*at, ENDED_MS))
            .collect();
        if !returning.is_empty() {
            let (key, at) = returning[self.dice.below(returning.len() as u64) as usize];
            self.last.insert(key, at);
        }
    }
}
