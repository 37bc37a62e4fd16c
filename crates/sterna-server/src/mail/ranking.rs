//! Clients by a figure, the greatest first. A shard looks at some of its connections at a time and gives the
//! first of those. The desk keeps the first of all. A page goes on behind the last rank of the page before, so
//! nothing is kept between pages.

use std::cmp::Ordering;

use serde_json::Value;
use sterna_broker::QueueState;
use sterna_net::{ConnectionId, PathStatistics};

/// Connections that a shard looks at in one turn: each may be a question to the system.
pub(crate) const MOST_AT_ONCE: usize = 4_096;

/// The orders in which clients are sorted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RankBy {
    RoundTrip,
    Loss,
    Queue,
    Bytes,
    Messages,
    Name,
}

/// The place of a client: the greater figure first, then by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Rank {
    figure: u64,
    name: Box<str>,
    /// Its node; empty without a cluster.
    node: Box<str>,
    shard: usize,
    id: ConnectionId,
}

impl RankBy {
    /// The orders by their names in requests.
    pub(crate) const NAMES: [(&'static str, Self); 6] = [
        ("rtt", Self::RoundTrip),
        ("loss", Self::Loss),
        ("queue", Self::Queue),
        ("bytes", Self::Bytes),
        ("messages", Self::Messages),
        ("name", Self::Name),
    ];

    pub(crate) fn named(name: &str) -> Option<Self> {
        let mut names = Self::NAMES.into_iter();
        names.find_map(|(known, order)| (known == name).then_some(order))
    }

    /// The rank of a client; `messages` counts both directions. A queue with unread messages in the log counts as
    /// the longest, since its length is not known.
    pub(crate) fn rank(
        self,
        (node, shard, id): (Option<&str>, usize, ConnectionId),
        name: Option<&str>,
        queue: QueueState,
        messages: u64,
        path: &PathStatistics,
    ) -> Rank {
        let lost = path.lost_packets.saturating_mul(1_000_000);
        let figure = match self {
            Self::RoundTrip => path.rtt_us,
            Self::Loss => lost.checked_div(path.sent_datagrams).unwrap_or(0),
            Self::Queue if queue.has_more_in_log => u64::MAX,
            Self::Queue => queue.pending as u64,
            Self::Bytes => path.sent_bytes.saturating_add(path.received_bytes),
            Self::Messages => messages,
            // Those without a name are the last.
            Self::Name => u64::from(name.is_some()),
        };
        Rank {
            figure,
            name: (self == Self::Name)
                .then_some(name)
                .flatten()
                .unwrap_or_default()
                .into(),
            node: node.unwrap_or_default().into(),
            shard,
            id,
        }
    }
}

impl Rank {
    /// As a request for the next page names it.
    pub(crate) fn text(&self) -> String {
        let ConnectionId { slot, generation } = self.id;
        format!(
            "{}.{}.{}.{slot}.{generation}.{}",
            self.figure, self.node, self.shard, self.name
        )
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(6, '.');
        Some(Self {
            figure: parts.next()?.parse().ok()?,
            node: parts.next()?.into(),
            shard: parts.next()?.parse().ok()?,
            id: ConnectionId {
                slot: parts.next()?.parse().ok()?,
                generation: parts.next()?.parse().ok()?,
            },
            name: parts.next()?.into(),
        })
    }
}

impl Ord for Rank {
    fn cmp(&self, other: &Self) -> Ordering {
        let place = |rank: &Self| {
            let ConnectionId { slot, generation } = rank.id;
            (rank.shard, slot, generation)
        };
        (other.figure.cmp(&self.figure))
            .then_with(|| self.name.cmp(&other.name))
            .then_with(|| self.node.cmp(&other.node))
            .then_with(|| place(self).cmp(&place(other)))
    }
}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The first of the things seen so far, behind a rank.
#[derive(Debug)]
pub(crate) struct Best<T> {
    after: Option<Rank>,
    limit: usize,
    found: Vec<(Rank, T)>,
    has_more: bool,
}

impl<T> Best<T> {
    pub(crate) const fn new(after: Option<Rank>, limit: usize) -> Self {
        Self {
            after,
            limit,
            found: Vec::new(),
            has_more: false,
        }
    }

    /// Keeps one, if it is among the first.
    pub(crate) fn see(&mut self, rank: Rank, thing: T) {
        if self.after.as_ref().is_some_and(|after| rank <= *after) {
            return;
        }
        let at = self.found.partition_point(|(known, _)| *known < rank);
        if at < self.limit {
            self.found.insert(at, (rank, thing));
        }
        if at >= self.limit || self.found.len() > self.limit {
            self.has_more = true;
            self.found.truncate(self.limit);
        }
    }

    /// All of them in order, and whether there are more.
    pub(crate) fn end(self) -> (Vec<(Rank, T)>, bool) {
        (self.found, self.has_more)
    }
}

impl Best<Value> {
    /// Takes in the things that a shard has found.
    pub(crate) fn see_all(&mut self, found: Vec<(Rank, Value)>, has_more: bool) {
        self.has_more |= has_more;
        for (rank, value) in found {
            self.see(rank, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(figure: u64, slot: u32, name: &str) -> Rank {
        Rank {
            figure,
            name: name.into(),
            node: "node-1".into(),
            shard: 0,
            id: ConnectionId {
                slot,
                generation: 7,
            },
        }
    }

    #[test]
    fn pages_have_each_client_once_and_in_order() {
        let all: Vec<Rank> = (0..1_000)
            .map(|slot| rank(u64::from(slot * 7 % 50), slot, ""))
            .collect();
        let (mut pages, mut after) = (Vec::new(), None);
        loop {
            let mut best = Best::new(after, 64);
            for rank in &all {
                best.see(rank.clone(), rank.id.slot);
            }
            let (page, has_more) = best.end();
            assert!(page.len() == 64 || !has_more);
            after = page
                .last()
                .map(|(rank, _)| Rank::parse(&rank.text()).expect("a rank"));
            pages.extend(page);
            if !has_more {
                break;
            }
        }
        assert_eq!(pages.len(), 1_000);
        assert!(pages.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(pages[0].0.figure == 49 && pages[999].0.figure == 0);
    }

    #[test]
    fn ranks_are_by_figure_and_name_and_survive_their_text() {
        assert!(rank(2, 9, "b") < rank(1, 0, "a"));
        assert!(rank(1, 9, "a") < rank(1, 0, "b"));
        for rank in [rank(1, 2, "a.b.c"), rank(u64::MAX, 0, "")] {
            assert_eq!(Rank::parse(&rank.text()), Some(rank));
        }
        for wrong in ["", "1.n.2.3.4", "x.n.0.0.0.a", "1.n.0.0.-1.a"] {
            assert_eq!(Rank::parse(wrong), None, "{wrong}");
        }
    }
}
