//! What is wrong.

use std::collections::HashSet;

use sterna_cluster::owners::{Begin, Key, Overtaken, Refusal};

use super::{FIRST_ROOT, Item, NODES, ROOTS, World, is_root, key_of, name_of};

impl World {
    /// Nodes that may acknowledge for a client whose session outlives its connection.
    pub(crate) fn owners_of(&self, client: u32) -> Vec<usize> {
        self.sure(key_of(client))
    }

    pub(super) fn sure(&self, key: Key) -> Vec<usize> {
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

    /// Looks whether a client was told that another connection has its session, and there was none. A node that has missed
    /// something in the stream may not know.
    pub(super) fn check_refusal(
        &mut self,
        node: usize,
        connection: u64,
        key: Key,
        result: &Result<Begin, Refusal>,
    ) {
        let said = self.nodes[node].overtaken.take();
        let was_alone =
            self.alone.remove(&connection) && self.latest.get(&key) == Some(&connection);
        if *result == Err(Refusal::TakenOver)
            && was_alone
            && !is_root(key)
            && said != Some(Overtaken::Unknown)
        {
            self.found = Some(format!(
                "at {}: connection {connection} of {} is refused on node {node} for another, and there is none: {said:?}",
                self.now_ms,
                name_of(key).id()
            ));
        }
    }

    /// What is wrong at this moment.
    pub(crate) fn check(&self) -> Option<String> {
        let roots = FIRST_ROOT..FIRST_ROOT + ROOTS;
        for key in (0..10).chain(roots).map(key_of) {
            let sure = self.sure(key);
            if sure.len() > 1 {
                return Some(format!(
                    "at {}: {} is on nodes {sure:?}",
                    self.now_ms,
                    name_of(key).id()
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
            for (key, live) in &node.live {
                let last = self.last.get(key).map(|&at| &self.stream[at]);
                let is_own = matches!(last, Some(Item::Record(_, record)) if record.owner == *owners.own()
                    && !record.is_over
                    && record.is_kept == live.outlives);
                if !is_own {
                    let last = last.map(|item| match item {
                        Item::Record(_, record) => format!("{record:?}"),
                        Item::Mark(..) | Item::Floor(..) => String::new(),
                    });
                    return Some(format!(
                        "{} on node {number} is not its own: {last:?}, {:?}, {:?}, {owners:?}",
                        name_of(*key).id(),
                        owners.epoch(*key),
                        node.live.get(key)
                    ));
                }
            }
        }
        for &at in self.last.values() {
            if let Item::Record(key, record) = &self.stream[at]
                && !record.is_over
                && !self.is_below_floor(at, 0)
                && !(0..NODES).any(|node| {
                    self.process(node).as_ref() == Some(&record.owner)
                        && self.nodes[node].live.contains_key(key)
                })
            {
                return Some(format!(
                    "{} has a record and no session",
                    name_of(*key).id()
                ));
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
