//! The part of a group that gives its messages out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Back, Given, Peer, QueueRoot};
use crate::api::SessionKey;
use crate::attempts::HeldBack;
use crate::records::{Fields, put_bytes, put_number};
use crate::session::NEVER_MS;

/// A branch, as the root knows it.
#[derive(Debug, Default)]
pub(crate) struct Attendee {
    pub(crate) attendance: u64,
    /// Messages it was given in this attendance, and how many it takes.
    pub(crate) given: u64,
    pub(crate) most: u64,
    /// The append that is to be kept before it may be given anything.
    pub(crate) token: u64,
    pub(crate) is_welcome: bool,
    /// Messages that it says it holds, and that others have.
    pub(crate) void: Vec<u64>,
    /// Messages that its members do not take, and those of them that its members may not get.
    pub(crate) refused: FxHashSet<u64>,
    pub(crate) forbidden: FxHashSet<u64>,
    /// The messages that it is given in this turn.
    pub(crate) giving: Vec<Given>,
    /// Of a queue: members that are connected.
    pub(crate) members: u32,
}

/// A message that its root holds back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resting {
    pub(crate) tag: u64,
    pub(crate) until_ms: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Root {
    pub(crate) session: SessionKey,
    pub(crate) is_open: bool,
    /// Of a queue: what it is as a whole.
    pub(crate) queue: Option<Box<QueueRoot>>,
    pub(crate) epoch: u64,
    /// The token of its last record.
    pub(crate) token: u64,
    /// Whether other nodes know of its epoch, which was kept before.
    pub(crate) is_known: bool,
    pub(crate) attendees: BTreeMap<Peer, Attendee>,
    /// Branches that messages were given to in an earlier epoch, and that have not attended in this one.
    pub(crate) awaited: BTreeSet<Peer>,
    /// Tags of messages that are out, and who has them, by position.
    pub(crate) out: FxHashMap<u64, (u64, Peer)>,
    /// The branches that have messages which are still to come out of the queue here, by position.
    pub(crate) claimed: FxHashMap<u64, Peer>,
    /// Messages that are still to come out of the queue here, and are settled.
    pub(crate) settled_early: FxHashSet<u64>,
    /// Of a queue: messages that branches have given back and that are still to come out of the queue here, by
    /// position.
    pub(crate) returned_early: FxHashMap<u64, Back>,
    /// Messages whose consumers were lost too often, and that are given to nobody for a while, by position.
    pub(crate) resting: FxHashMap<u64, Resting>,
    /// How it tells of them.
    pub(crate) held_back: HeldBack,
    /// Tags of messages that no branch takes, by position.
    pub(crate) parked: FxHashMap<u64, u64>,
    /// Branches that may have credit, in the order of their turns.
    pub(crate) turns: VecDeque<Peer>,
    /// Branches whose nodes are gone, and until when members of theirs may come to other nodes.
    pub(crate) ghosts: BTreeMap<Peer, u64>,
    /// When it ends, if nobody attends by then.
    pub(crate) ends_at_ms: u64,
}

impl Root {
    /// The root of a session that is yet to come.
    pub(crate) fn coming(session: SessionKey) -> Self {
        Self {
            session,
            is_open: false,
            queue: None,
            epoch: 0,
            token: 0,
            is_known: false,
            attendees: BTreeMap::new(),
            awaited: BTreeSet::new(),
            out: FxHashMap::default(),
            claimed: FxHashMap::default(),
            settled_early: FxHashSet::default(),
            returned_early: FxHashMap::default(),
            resting: FxHashMap::default(),
            held_back: HeldBack::default(),
            parked: FxHashMap::default(),
            turns: VecDeque::new(),
            ghosts: BTreeMap::new(),
            ends_at_ms: NEVER_MS,
        }
    }

    /// Whether it has no branch, and none is to be waited for.
    pub(crate) fn is_bare(&self) -> bool {
        self.attendees.is_empty() && self.awaited.is_empty() && self.ghosts.is_empty()
    }

    /// Whether no message is with a branch, or is known to be: those that it waits for may say so yet.
    pub(crate) fn has_none(&self) -> bool {
        self.is_known
            && self.awaited.is_empty()
            && self.out.is_empty()
            && self.claimed.is_empty()
            && self.returned_early.is_empty()
            && self.resting.is_empty()
            && self.parked.is_empty()
    }

    /// Whether its record names a branch: a successor will wait for that.
    pub(crate) fn record(&self) -> RootRecord {
        let all = self.attendees.keys().chain(&self.awaited);
        RootRecord {
            epoch: self.epoch,
            peers: all.chain(self.ghosts.keys()).cloned().collect(),
        }
    }

    /// The branch whose turn it is among those that may get a message.
    pub(crate) fn next_taker(&mut self, position: u64) -> Option<Peer> {
        for _ in 0..self.turns.len() {
            let peer = self.turns.pop_front()?;
            let Some(attendee) = self.attendees.get(&peer) else {
                continue;
            };
            self.turns.push_back(peer.clone());
            let may_take = attendee.is_welcome
                && attendee.given < attendee.most
                && !attendee.refused.contains(&position);
            if may_take {
                return Some(peer);
            }
        }
        None
    }

    /// Whether all branches refuse a message.
    pub(crate) fn is_refused(&self, position: u64) -> bool {
        let mut all = self.attendees.values();
        !self.attendees.is_empty() && all.all(|attendee| attendee.refused.contains(&position))
    }

    /// Whether no member of any node may get a message.
    pub(crate) fn is_forbidden(&self, position: u64) -> bool {
        let mut all = self.attendees.values();
        self.ghosts.is_empty() && all.all(|attendee| attendee.forbidden.contains(&position))
    }

    /// Forgets a branch's claims to messages that are still to come out of the queue here. Messages that it has
    /// given back stay so.
    pub(crate) fn disclaim(&mut self, peer: &Peer) {
        let returned = &self.returned_early;
        (self.claimed).retain(|position, who| who != peer || returned.contains_key(position));
    }

    /// Positions of a branch's messages, the highest first.
    pub(crate) fn out_with(&self, peer: &Peer) -> Vec<u64> {
        let out = self.out.iter().filter(|(_, (_, who))| who == peer);
        let mut positions: Vec<u64> = out.map(|(&position, _)| position).collect();
        positions.sort_unstable_by(|one, other| other.cmp(one));
        positions
    }
}

/// The kept record of a root.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct RootRecord {
    pub(crate) epoch: u64,
    /// The branches that may have messages.
    pub(crate) peers: BTreeSet<Peer>,
}

impl RootRecord {
    /// Its key among the records of its session.
    pub(crate) const KEY: &'static [u8] = b"root";

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_number(&mut out, self.epoch);
        for peer in &self.peers {
            put_bytes(&mut out, peer.node.as_bytes());
            put_number(&mut out, peer.incarnation);
        }
        out
    }

    pub(crate) fn decode(record: &[u8]) -> Option<Self> {
        let mut fields = Fields::new(record);
        let epoch = fields.place()?;
        let mut peers = BTreeSet::new();
        while !fields.rest().is_empty() {
            peers.insert(Peer {
                node: Arc::from(fields.text()?),
                incarnation: fields.place()?,
            });
        }
        Some(Self { epoch, peers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_roots_come_back_and_parts_of_them_do_not() {
        let peer = |node: &str, incarnation| Peer {
            node: node.into(),
            incarnation,
        };
        let record = RootRecord {
            epoch: 300,
            peers: [peer("a", 7), peer("b", 1 << 50)].into(),
        };
        let bytes = record.encode();
        assert_eq!(RootRecord::decode(&bytes), Some(record));
        assert_eq!(RootRecord::decode(&[]), None);
        assert_eq!(RootRecord::decode(&bytes[..bytes.len() - 1]), None);
        let forged = RootRecord {
            epoch: u64::MAX,
            peers: BTreeSet::new(),
        };
        assert_eq!(
            RootRecord::decode(&forged.encode()),
            None,
            "none comes after it"
        );
    }
}
