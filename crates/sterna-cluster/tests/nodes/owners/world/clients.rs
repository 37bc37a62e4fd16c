//! What clients and faults do, from the seed.

use sterna_cluster::owners::Request;

use super::{
    CLIENTS, Event, FIRST_ROOT, Live, Losses, NODES, RESTED_MS, ROOTS, World, key_of, name_of,
    will_bytes,
};

impl World {
    pub(super) fn publish(&mut self, will: &[u8]) {
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
        self.latest.insert(key, connection);
        let mut waiting = self.nodes.iter().flat_map(|node| node.waiting.values());
        if !waiting.any(|&(waits, _)| waits == key) {
            self.alone.insert(connection);
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
                    owners.publish_will(now_ms, key, client_id.clone(), before);
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
            name: name_of(key),
            will: Some(will),
            outlives,
            is_clean,
            if_free: false,
        };
        self.with(node, start, |owners, now_ms| {
            owners.claim(now_ms, key, request);
        });
    }

    /// A node wants a root, unless another may be sure of it.
    pub(crate) fn want_root(&mut self, node: usize, root: u32) {
        let (key, session) = (key_of(FIRST_ROOT + root), self.next_connection);
        let (start, known) = (self.nodes[node].start, &mut self.nodes[node]);
        let waits = known.waiting.values().any(|&(waits, _)| waits == key);
        if known.stands_still || known.owners.is_none() || known.live.contains_key(&key) || waits {
            return;
        }
        self.next_connection += 1;
        known.waiting.insert(session, (key, true));
        let request = Request {
            session,
            name: name_of(key),
            will: None,
            outlives: true,
            is_clean: false,
            if_free: true,
        };
        self.with(node, start, |owners, now_ms| {
            owners.claim(now_ms, key, request);
        });
    }

    /// A client goes: in order, or its connection is lost; its session ends, or waits for it.
    pub(super) fn leave(&mut self, node: usize, client: u32) {
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
        // A session that is away has no connection any more: how its last one has ended stays.
        if live.has_will && in_order {
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
                owners.set_will(now_ms, key, client_id.clone(), None);
            } else if live.has_will {
                let will = will_bytes(live.connection);
                owners.publish_will(now_ms, key, client_id.clone(), will);
            }
            if !stays {
                owners.release(now_ms, key, client_id);
            }
        });
    }

    /// A group has no members any more.
    pub(super) fn end_root(&mut self, node: usize, root: u32) {
        let (start, key) = (self.nodes[node].start, key_of(FIRST_ROOT + root));
        if !self.nodes[node].stands_still && self.nodes[node].live.remove(&key).is_some() {
            self.with(node, start, |owners, now_ms| {
                owners.release(now_ms, key, name_of(key));
            });
        }
    }

    /// Wills that a node has taken out of their records, and may never publish: it dies at this moment, or it is
    /// not told that it has taken them out, and another has the record by then.
    pub(super) fn may_be_lost(&mut self, node: usize) {
        for connection in std::mem::take(&mut self.nodes[node].asked) {
            self.wills.entry(connection).or_default().may_be_lost = true;
        }
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

    pub(crate) fn cut(&mut self, node: usize) {
        self.nodes[node].is_cut = true;
    }

    pub(crate) fn mend(&mut self, node: usize) {
        self.nodes[node].is_cut = false;
        let start = self.nodes[node].start;
        self.schedule(0, Event::Follow(node, start));
    }

    /// Something happens, from the seed.
    pub(super) fn step(&mut self) {
        let node = self.dice.below(NODES as u64) as usize;
        let client = self.dice.below(u64::from(CLIENTS)) as u32;
        let long_ms = self.dice.below(5_000);
        let root = client % ROOTS;
        match self.dice.below(24) {
            20..=22 => self.want_root(node, root),
            23 => self.end_root(node, root),
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
            18 | 19 if matches!(self.losses, Losses::Returned | Losses::ReturnedUnnoticed) => {
                self.bring_back();
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
    pub(super) fn rest(&mut self) {
        self.is_calm = true;
        self.run_for(5_000);
        for node in 0..NODES {
            self.mend(node);
            self.start(node);
        }
        self.run_for(RESTED_MS);
    }
}
