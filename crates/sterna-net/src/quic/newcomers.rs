//! First packets that wait for their turn, fairly. A crowd from one network delays only itself, and
//! a client from elsewhere comes next.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use super::half_open::network;
use crate::counters::RefusedConnection;

/// First packets that were turned away since somebody asked for them: how many for each reason, and the last of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnedAway {
    pub(crate) times: [u64; RefusedConnection::ALL.len()],
    pub(crate) last: (SocketAddr, RefusedConnection),
}

impl TurnedAway {
    /// Adds one to those before, if there are any.
    pub(super) fn add(before: &mut Option<Self>, peer: SocketAddr, reason: RefusedConnection) {
        let last = (peer, reason);
        let times = [0; RefusedConnection::ALL.len()];
        let all = before.get_or_insert(Self { times, last });
        all.times[reason as usize] += 1;
        all.last = last;
    }
}

/// Waiting first packets, in order per network, the networks taking turns. The standard map is used
/// because peers choose the keys.
#[derive(Debug)]
pub(super) struct Newcomers<T> {
    queues: HashMap<IpAddr, VecDeque<T>>,
    /// Networks with waiting clients, the next one first.
    turns: VecDeque<IpAddr>,
    waiting: usize,
}

impl<T> Default for Newcomers<T> {
    fn default() -> Self {
        Self {
            queues: HashMap::new(),
            turns: VecDeque::new(),
            waiting: 0,
        }
    }
}

impl<T> Newcomers<T> {
    pub(super) const fn len(&self) -> usize {
        self.waiting
    }

    pub(super) fn push(&mut self, peer: SocketAddr, newcomer: T) {
        let network = network(peer);
        let queue = self.queues.entry(network).or_default();
        if queue.is_empty() {
            self.turns.push_back(network);
        }
        queue.push_back(newcomer);
        self.waiting += 1;
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let network = self.turns.pop_front()?;
        let Entry::Occupied(mut queue) = self.queues.entry(network) else {
            return None; // nobody has a turn without a queue
        };
        let newcomer = queue.get_mut().pop_front();
        if queue.get().is_empty() {
            queue.remove();
        } else {
            self.turns.push_back(network);
        }
        self.waiting -= usize::from(newcomer.is_some());
        if self.waiting == 0 {
            self.queues.shrink_to(64);
            self.turns.shrink_to(64);
        }
        newcomer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_holds_up_only_itself() {
        let mut newcomers = Newcomers::default();
        let peer = |text: &str| text.parse::<SocketAddr>().expect("an address");
        for n in 0..1_000 {
            newcomers.push(peer(&format!("192.0.2.1:{}", 1_000 + n)), ("crowd", n));
        }
        newcomers.push(peer("198.51.100.1:1"), ("one", 0));
        newcomers.push(peer("[2001:db8::1]:1"), ("two", 0));
        newcomers.push(peer("[2001:db8::2]:1"), ("two", 1));
        assert_eq!(newcomers.len(), 1_003);
        let first: Vec<_> = (0..6).filter_map(|_| newcomers.pop()).collect();
        let expected = [
            ("crowd", 0),
            ("one", 0),
            ("two", 0),
            ("crowd", 1),
            ("two", 1),
            ("crowd", 2),
        ];
        assert_eq!(first, expected);
        for n in 3..1_000 {
            assert_eq!(newcomers.pop(), Some(("crowd", n)));
        }
        assert_eq!((newcomers.pop(), newcomers.len()), (None, 0));
        assert!(newcomers.queues.is_empty());
    }
}
