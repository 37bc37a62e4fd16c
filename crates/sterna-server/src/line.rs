//! Clients whose message goes to many readers, and that wait for a turn of the shard's loop in which it can be copied. The
//! same wait those that change subscriptions.
//!
//! The copies of a turn are bounded, so that a small message to very many stops nobody else. Messages that go to few do not
//! wait. Users, and networks of clients without a user, take turns; the clients of each keep the order in which they came.

use std::collections::VecDeque;
use std::net::IpAddr;

use rustc_hash::{FxHashMap, FxHashSet};
use sterna_broker::network_of;
use sterna_net::ConnectionId;

/// The parts in which the copies of a turn are given to clients that have waited.
const PARTS: u64 = 64;

/// The user of a client; the network of its address where it has none.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Party {
    User(Box<str>),
    Network(Option<IpAddr>),
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Line {
    /// Copies of this turn from which on messages wait, where a client that has waited has its part.
    part: Option<u64>,
    /// Clients that wait.
    waiting: FxHashSet<ConnectionId>,
    /// Their order among those of one party, with some that are gone.
    rows: FxHashMap<Party, VecDeque<ConnectionId>>,
    /// The order of parties.
    turns: VecDeque<Party>,
    /// Times that a client began to wait.
    begun: u64,
}

impl Line {
    /// Whether so many copies in this turn are as many as there may be, where these are the most.
    #[inline]
    pub(crate) fn is_spent(&self, copies: u64, most: u64) -> bool {
        copies >= self.part.unwrap_or(most)
    }

    /// A client has a part of the turn's copies, after so many of them.
    pub(crate) fn begin_part(&mut self, copies: u64, most: u64) {
        self.part = Some(copies.saturating_add(most.div_ceil(PARTS)));
    }

    pub(crate) const fn end_part(&mut self) {
        self.part = None;
    }

    /// A client waits, unless it does so already.
    pub(crate) fn join(
        &mut self,
        id: ConnectionId,
        user: Option<&str>,
        address: impl FnOnce() -> Option<IpAddr>,
    ) {
        if !self.waiting.insert(id) {
            return;
        }
        self.begun += 1;
        let party = match user {
            Some(user) => Party::User(user.into()),
            None => Party::Network(address().map(network_of)),
        };
        let row = self.rows.entry(party).or_insert_with_key(|party| {
            self.turns.push_back(party.clone());
            VecDeque::new()
        });
        row.push_back(id);
    }

    /// A client waits no more.
    pub(crate) fn leave(&mut self, id: ConnectionId) {
        if self.waiting.remove(&id) && self.waiting.is_empty() {
            self.rows = FxHashMap::default();
            self.turns = VecDeque::new();
        }
    }

    /// The next client that may go on.
    pub(crate) fn next(&mut self) -> Option<ConnectionId> {
        while let Some(party) = self.turns.pop_front() {
            let row = self.rows.get_mut(&party);
            let next = row.and_then(|row| {
                while let Some(id) = row.pop_front() {
                    if self.waiting.contains(&id) {
                        return Some(id);
                    }
                }
                None
            });
            if next.is_none() {
                self.rows.remove(&party);
                continue;
            }
            self.turns.push_back(party);
            if let Some(id) = next {
                self.leave(id);
            }
            return next;
        }
        None
    }

    /// Whether a client waits.
    pub(crate) fn has(&self, id: ConnectionId) -> bool {
        self.waiting.contains(&id)
    }

    /// How many wait now, and how often one began to.
    pub(crate) fn figures(&self) -> (u64, u64) {
        (self.waiting.len() as u64, self.begun)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const fn connection(slot: u32) -> ConnectionId {
        ConnectionId {
            slot,
            generation: 0,
        }
    }

    const fn nowhere() -> Option<IpAddr> {
        None
    }

    #[test]
    fn users_and_networks_take_turns_and_keep_their_order() {
        let mut line = Line::default();
        for slot in 0..100 {
            line.join(connection(slot), Some("many"), nowhere);
        }
        line.join(connection(100), Some("one"), nowhere);
        let address = Some(Ipv4Addr::LOCALHOST.into());
        line.join(connection(101), None, || address);
        line.join(connection(102), None, || address);
        let order: Vec<u32> = (0..5)
            .filter_map(|_| line.next())
            .map(|id| id.slot)
            .collect();
        assert_eq!(order, [0, 100, 101, 1, 102]);
        let rest = std::iter::from_fn(|| line.next()).map(|id| id.slot);
        assert!(rest.eq(2..100));
        assert_eq!(line.figures(), (0, 103));
    }

    #[test]
    fn who_is_gone_is_left_out_and_takes_no_memory() {
        let mut line = Line::default();
        for slot in 0..4 {
            line.join(connection(slot), Some("a"), nowhere);
        }
        line.leave(connection(0));
        line.leave(connection(2));
        line.join(connection(1), Some("a"), nowhere);
        assert_eq!(line.next(), Some(connection(1)));
        assert!(!line.has(connection(1)));
        line.leave(connection(3));
        assert!(line.rows.is_empty() && line.turns.is_empty());
        assert_eq!(line.next(), None);
    }

    #[test]
    fn a_client_that_has_waited_has_a_part_of_the_turn() {
        let mut line = Line::default();
        assert!(!line.is_spent(639, 640) && line.is_spent(640, 640));
        line.begin_part(20, 640);
        assert!(!line.is_spent(29, 640) && line.is_spent(30, 640));
        // The first of a turn has its part also where others have made all copies.
        line.begin_part(700, 640);
        assert!(!line.is_spent(709, 640) && line.is_spent(710, 640));
        line.end_part();
        assert!(!line.is_spent(639, 640));
    }
}
