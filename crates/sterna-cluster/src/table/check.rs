//! Invariants of the table of nodes, for tests: the check looks at everything.

use std::collections::HashSet;

use sterna_broker::{Interest, NodeSet};

use super::{OUTSIDE, Peer, Presence, Table};

impl Table {
    /// Looks at every node, number and filter of the table; for tests, after each of their steps.
    ///
    /// # Panics
    /// Where something does not agree with what it stands for.
    pub fn check(&self) {
        let mut numbers = HashSet::new();
        for (name, peer) in &self.peers {
            assert_ne!(*name, self.own_name, "this node is none of the others");
            assert!(peer.number < self.numbers(), "the number of {name}");
            assert!(
                numbers.insert(peer.number),
                "the number of {name} is its own"
            );
            self.check_peer(name, peer);
        }
        assert!(
            self.left_out.is_empty() || numbers.len() == self.numbers(),
            "nodes are left out while all numbers are given"
        );
        for name in &self.left_out {
            let is_known = self.peers.contains_key(name) || *name == self.own_name;
            assert!(!is_known, "{name} is left out and known");
        }
        for (name, left) in &self.left {
            assert!(!left.is_empty(), "{name} has left something");
            let is_own = *name == self.own_name;
            assert!(
                !is_own || left.values().all(|of| *of < self.own_incarnation),
                "what this node has left is of its earlier starts"
            );
        }
        for name in self.may_return.keys() {
            assert_ne!(*name, self.own_name, "this node does not return");
            let presence = self.presence(name);
            assert_ne!(presence, Some(Presence::Here), "{name} returns and is here");
        }
        let recounted: usize = self.peers.values().map(|peer| peer.filters.len()).sum();
        assert_eq!(self.filters(), recounted, "the filters of all nodes");
        for filter in self.peers.values().flat_map(|peer| peer.filters.keys()) {
            self.check_wanted(filter);
        }
    }

    fn check_peer(&self, name: &str, peer: &Peer) {
        assert!(
            peer.filters.values().all(|how| *how != Interest::None),
            "a filter of {name} has readers"
        );
        if peer.is_swept {
            assert!(
                peer.filters.values().all(|how| *how != Interest::Durable),
                "sessions of {name} are taken over, and want nothing of it"
            );
            assert_ne!(
                peer.presence,
                Presence::Gone,
                "{name} is forgotten when it is gone and swept"
            );
        }
        let unread = self.unread.get(name);
        assert!(
            peer.presence == Presence::Gone || unread.is_none_or(|of| *of < peer.incarnation),
            "{name} takes part in an incarnation that can read this node's words"
        );
    }

    /// Each node gets what it has said to want of a filter.
    fn check_wanted(&self, filter: &str) {
        let wanted = self.wanted(filter);
        let mut acknowledged = NodeSet::default();
        for peer in self.peers.values() {
            let interest = peer.filters.get(filter).copied().unwrap_or_default();
            let is_here = peer.presence == Presence::Here && interest != Interest::None;
            assert_eq!(
                wanted.any.contains(peer.number),
                is_here,
                "who gets {filter}"
            );
            if peer.presence != Presence::Gone && interest >= Interest::Acknowledged {
                acknowledged.insert(peer.number);
            }
        }
        if self.exported.contains(filter) {
            acknowledged.insert(OUTSIDE);
        }
        assert_eq!(wanted.acknowledged, acknowledged, "who waits for {filter}");
    }
}
