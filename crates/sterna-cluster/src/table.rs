//! The other nodes of the cluster, and the filters each has readers for.
//!
//! A node says again and again that it is there. A node that is not heard of for the *lease* is *away*. It then
//! gets no messages of QoS 0; those of QoS 1 and 2 still wait in its inbox. A node that is away for the *absence*
//! is *gone*, and nothing waits for it. A node that comes back within the absence goes on as if it had not been
//! away. A node that is gone is forgotten when others have all its sessions.
//!
//! The *incarnation* of a node is a number that is higher after each of its starts. Statements of an earlier
//! incarnation no longer hold.
//!
//! With one exception: the filters of readers that outlive their connections. Their sessions are still there when
//! their node is gone or starts anew, and a process takes them over. Until that is done ([`Table::swept`]),
//! messages for these filters go to the log. No input or output here, and time is an argument.

mod check;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use sterna_broker::{Interest, NodeSet, Wanted};

use crate::wire::Versions;

/// The number of all other regions together, in sets of nodes. Where there are none, it may be a node's.
pub const OUTSIDE: usize = NodeSet::MAXIMUM - 1;

/// How a node is seen from here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// It was heard of within the lease.
    Here,
    /// It was not; what must arrive waits for it.
    Away,
    /// It left, or was away for too long.
    Gone,
}

/// Something that happened to another node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// It is here: for the first time, again, or started anew.
    Came {
        /// Its name.
        node: Arc<str>,
    },
    /// It was not heard of for the lease.
    Missed {
        /// Its name.
        node: Arc<str>,
    },
    /// Nothing waits for it any more.
    Went {
        /// Its name.
        node: Arc<str>,
    },
    /// There are more nodes than can be; this one is left out.
    TooMany {
        /// Its name.
        node: Arc<str>,
    },
    /// There is room for a node that was left out. The words that it has said are to be read again.
    HasRoom,
    /// Another process has this node's name and started later: this one is to stop.
    Superseded,
    /// It joined after this node, and reads no version of the wire form that this one writes: it is left out.
    Unread {
        /// Its name.
        node: Arc<str>,
        /// The versions that it reads.
        reads: Versions,
    },
    /// It was here before this node, and reads no version that this one writes: this one is to stop.
    Unfit {
        /// Its name.
        node: Arc<str>,
        /// The versions that it reads.
        reads: Versions,
    },
}

#[derive(Debug)]
struct Peer {
    number: usize,
    incarnation: u64,
    presence: Presence,
    heard_ms: u64,
    filters: HashMap<Arc<str>, Interest>,
    /// Whether others have all its sessions, since it last said anything.
    is_swept: bool,
    /// The versions that it has said to read; `None` before its first word.
    reads: Option<Versions>,
}

/// The filters of sessions of a process that is over, each with its incarnation, by node.
type Left = HashMap<Arc<str>, HashMap<Arc<str>, u64>>;

/// See the module.
#[derive(Debug)]
pub struct Table {
    own_name: Arc<str>,
    own_incarnation: u64,
    lease_ms: u64,
    absence_ms: u64,
    peers: HashMap<Arc<str>, Peer>,
    left_out: HashSet<Arc<str>>,
    /// Nodes that have left within the absence, which may be restarts: when they said so, and what they read.
    may_return: HashMap<Arc<str>, (u64, Versions)>,
    /// The versions that this node reads.
    reads: Versions,
    /// Nodes that read nothing which this one writes, and their incarnations.
    unread: HashMap<Arc<str>, u64>,
    /// Durable filters of earlier incarnations, by node: this one is among them.
    left: Left,
    /// Filters whose messages go to other regions.
    exported: HashSet<Arc<str>>,
    /// Filters for which the nodes that want them may have changed.
    changed: HashSet<Arc<str>>,
    events: Vec<Event>,
    /// Since when this node hears others; `None` before it has joined.
    hears_since_ms: Option<u64>,
    /// Whether each node that lives has said a word since.
    has_heard_all: bool,
    /// Whether silence of others says that they are gone.
    judges: bool,
}

impl Table {
    /// A table without other nodes. A node is away when it is not heard of for `lease_ms`, and gone after
    /// `absence_ms`, both in milliseconds. This node reads and writes `reads`.
    #[must_use]
    pub fn new(own_name: &str, lease_ms: u64, absence_ms: u64, reads: Versions) -> Self {
        Self {
            own_name: Arc::from(own_name),
            own_incarnation: 0,
            lease_ms,
            absence_ms: absence_ms.max(lease_ms),
            peers: HashMap::new(),
            left_out: HashSet::new(),
            may_return: HashMap::new(),
            reads,
            unread: HashMap::new(),
            left: HashMap::new(),
            exported: HashSet::new(),
            changed: HashSet::new(),
            events: Vec::new(),
            hears_since_ms: None,
            has_heard_all: false,
            judges: true,
        }
    }

    /// Has everything that some filters match go to other regions, too: to [`OUTSIDE`], which is as a node that is
    /// always here. To be called before other nodes are known.
    pub fn export(&mut self, filters: &[String]) {
        self.exported = filters.iter().map(|filter| Arc::from(&**filter)).collect();
        self.changed.extend(self.exported.iter().cloned());
    }

    /// Whether this node is the first by name of those that are here.
    #[must_use]
    pub fn is_first(&self) -> bool {
        let mut others = self.peers.iter();
        others.all(|(name, peer)| peer.presence != Presence::Here || *self.own_name < **name)
    }

    /// Sets this node's own incarnation.
    pub const fn set_own_incarnation(&mut self, incarnation: u64) {
        self.own_incarnation = incarnation;
    }

    /// A node says that it is there, or that it leaves.
    pub fn heard(
        &mut self,
        now_ms: u64,
        node: &str,
        incarnation: u64,
        is_leaving: bool,
        reads: Versions,
    ) {
        if *node == *self.own_name {
            if self.own_incarnation != 0 && incarnation > self.own_incarnation {
                self.events.push(Event::Superseded);
            }
            return;
        }
        if self.reads.common(reads).is_none() {
            return self.leave_out(node, incarnation, is_leaving, reads);
        }
        if is_leaving && !self.peers.contains_key(node) {
            return;
        }
        let Some((name, peer)) = self.peer(now_ms, node, incarnation) else {
            return;
        };
        peer.heard_ms = now_ms;
        peer.is_swept &= is_leaving;
        peer.reads = Some(reads);
        let presence = if is_leaving {
            self.may_return.insert(Arc::clone(&name), (now_ms, reads));
            Presence::Gone
        } else {
            self.may_return.remove(&name);
            Presence::Here
        };
        self.turn(&name, presence);
    }

    /// A node reads nothing that this one writes. Of the two, the node that started first stays.
    fn leave_out(&mut self, node: &str, incarnation: u64, is_leaving: bool, reads: Versions) {
        let name: Arc<str> = Arc::from(node);
        if is_leaving || self.own_incarnation == 0 {
            return;
        }
        // A word of a process before, which comes late, is nothing to the one that is there.
        let is_late = (self.peers.get(node)).is_some_and(|peer| incarnation < peer.incarnation);
        let unread = self.unread.get(node).copied();
        if unread.is_some_and(|known| incarnation <= known) {
            return;
        }
        if is_late {
            self.unread.insert(name, incarnation);
        } else if incarnation < self.own_incarnation {
            self.events.push(Event::Unfit { node: name, reads });
        } else {
            self.unread.insert(Arc::clone(&name), incarnation);
            self.turn(&name, Presence::Gone);
            self.events.push(Event::Unread { node: name, reads });
        }
    }

    /// The highest version of the wire form that all nodes which may get something read. A node that has left counts for
    /// the absence: it may be back, and then reads the log. It is the lowest while one of them has not said which
    /// versions it reads. So it is for half a lease after this node has begun to hear: of a node without readers nothing
    /// is known before its first word.
    #[must_use]
    pub fn version(&self) -> u8 {
        if self.has_heard_all {
            self.common_version()
        } else {
            self.reads.lowest
        }
    }

    /// The versions of the wire form that this node reads.
    #[must_use]
    pub const fn reads(&self) -> Versions {
        self.reads
    }

    /// Has this node read other versions.
    #[cfg(test)]
    pub(crate) const fn set_reads(&mut self, reads: Versions) {
        self.reads = reads;
    }

    fn common_version(&self) -> u8 {
        let peers = self.peers.values();
        let waited_for = peers.filter(|peer| peer.presence != Presence::Gone);
        let stated = waited_for.map(|peer| peer.reads);
        let left = self.may_return.values().map(|(_, reads)| Some(*reads));
        let each = stated.chain(left).map(|reads| {
            let common = reads.and_then(|reads| self.reads.common(reads));
            common.map_or(self.reads.lowest, |common| common.highest)
        });
        each.fold(self.reads.highest, u8::min)
    }

    /// The numbers of nodes that were heard and may get something: one by name, or all for `None`.
    #[must_use]
    pub fn heard_of(&self, name: Option<&str>) -> Vec<usize> {
        let peers = self.peers.iter();
        let named = peers.filter(|(known, _)| name.is_none_or(|name| *name == ***known));
        let heard =
            named.filter(|(_, peer)| peer.presence != Presence::Gone && peer.reads.is_some());
        heard.map(|(_, peer)| peer.number).collect()
    }

    /// A node says whether it has readers for a filter.
    pub fn wants(
        &mut self,
        now_ms: u64,
        node: &str,
        incarnation: u64,
        filter: &str,
        interest: Interest,
    ) {
        let filter: Arc<str> = Arc::from(filter);
        let known = self.peers.get(node).map(|peer| peer.incarnation);
        let is_own = *node == *self.own_name;
        let is_earlier = if is_own {
            incarnation < self.own_incarnation
        } else {
            known.is_some_and(|known| incarnation < known)
        };
        if is_earlier && interest == Interest::Durable {
            let left = self.left.entry(Arc::from(node)).or_default();
            left.insert(Arc::clone(&filter), incarnation);
            self.changed.insert(filter);
            return;
        }
        if is_own {
            return;
        }
        let Some((_, peer)) = self.peer(now_ms, node, incarnation) else {
            return;
        };
        peer.is_swept = false;
        if interest == Interest::None {
            peer.filters.remove(&filter);
        } else {
            peer.filters.insert(Arc::clone(&filter), interest);
        }
        self.changed.insert(filter);
    }

    /// The interest that this node tells for a filter: that of its readers, or more where sessions of its earlier starts
    /// want more.
    #[must_use]
    pub fn told(&self, filter: &str, own: Interest) -> Interest {
        let left = self.left.get(&self.own_name);
        if left.is_some_and(|left| left.contains_key(filter)) {
            Interest::Durable
        } else {
            own
        }
    }

    /// The sessions of a node's processes up to an incarnation are all taken over, or have ended. Returns the filters
    /// that earlier processes of the node had left for these sessions.
    pub fn swept(&mut self, node: &str, incarnation: u64) -> Vec<Arc<str>> {
        let mut ended = Vec::new();
        if let Some(left) = self.left.get_mut(node) {
            let gone = left.extract_if(|_, known| *known <= incarnation);
            ended.extend(gone.map(|(filter, _)| filter));
            if left.is_empty() {
                self.left.remove(node);
            }
        }
        self.changed.extend(ended.iter().cloned());
        if let Some(peer) = self.peers.get_mut(node)
            && peer.incarnation <= incarnation
        {
            // It may come back: what it has then, it tells again.
            for (filter, interest) in &mut peer.filters {
                if *interest == Interest::Durable {
                    *interest = Interest::Acknowledged;
                    self.changed.insert(Arc::clone(filter));
                }
            }
            peer.is_swept = true;
            let is_silent = peer.presence == Presence::Away && peer.reads.is_none();
            if is_silent || peer.presence == Presence::Gone {
                self.forget(node);
            }
        }
        ended
    }

    /// Forgets a node that nothing waits for, and of which nothing is left. Another one may have its number.
    fn forget(&mut self, node: &str) {
        if let Some(peer) = self.peers.remove(node) {
            self.changed.extend(peer.filters.into_keys());
            if !self.left_out.is_empty() {
                self.left_out.clear();
                self.events.push(Event::HasRoom);
            }
        }
    }

    /// The nodes that are gone, and those whose sessions may want something that they are not here to say. They come
    /// with their incarnations.
    pub fn absent(&self) -> impl Iterator<Item = (&Arc<str>, u64)> {
        let peers = self.peers.iter().filter(|(_, peer)| {
            let mut filters = peer.filters.values();
            match peer.presence {
                Presence::Here => false,
                Presence::Away => filters.any(|known| *known == Interest::Durable),
                Presence::Gone => true,
            }
        });
        let peers = peers.map(|(name, peer)| (name, peer.incarnation));
        let left = self.left.iter();
        peers.chain(left.filter_map(|(name, left)| Some((name, *left.values().max()?))))
    }

    /// The durable filters of nodes that are not here, and those that earlier incarnations have left. Each comes
    /// with its node and incarnation.
    #[must_use]
    pub fn durable_of_absent(&self) -> Vec<(Arc<str>, u64, Arc<str>)> {
        let mut all = Vec::new();
        for (name, peer) in &self.peers {
            if peer.presence != Presence::Here {
                let durable = (peer.filters.iter()).filter(|(_, how)| **how == Interest::Durable);
                all.extend(
                    durable.map(|(filter, _)| {
                        (Arc::clone(name), peer.incarnation, Arc::clone(filter))
                    }),
                );
            }
        }
        for (name, left) in &self.left {
            let left = left.iter();
            all.extend(left.map(|(filter, at)| (Arc::clone(name), *at, Arc::clone(filter))));
        }
        all
    }

    /// Looks at the time. Not to be called while this node is itself cut off: it would take all others for
    /// gone.
    pub fn look(&mut self, now_ms: u64) {
        // Nodes say a word four times in a lease.
        let hears_for_ms = (self.hears_since_ms).map(|since_ms| now_ms.saturating_sub(since_ms));
        self.has_heard_all = hears_for_ms.is_some_and(|for_ms| for_ms >= self.lease_ms / 2);
        let absence_ms = self.absence_ms;
        (self.may_return).retain(|_, (left_ms, _)| now_ms.saturating_sub(*left_ms) < absence_ms);
        let overdue: Vec<(Arc<str>, Presence)> = self
            .peers
            .iter()
            .filter_map(|(name, peer)| {
                let silent_ms = now_ms.saturating_sub(peer.heard_ms);
                let presence = match peer.presence {
                    Presence::Here | Presence::Away
                        if self.judges && silent_ms >= self.absence_ms =>
                    {
                        Presence::Gone
                    }
                    Presence::Here if silent_ms >= self.lease_ms => Presence::Away,
                    _ => return None,
                };
                Some((Arc::clone(name), presence))
            })
            .collect();
        for (name, presence) in overdue {
            self.turn(&name, presence);
        }
    }

    /// This node hears others from now on: it has joined, or was cut off. Silence counts from now on.
    pub fn begins_to_hear(&mut self, now_ms: u64) {
        self.hears_since_ms = Some(now_ms);
        self.has_heard_all = false;
        for peer in self.peers.values_mut() {
            peer.heard_ms = now_ms;
        }
    }

    /// Says whether silence of others says that they are gone: not while this node may be deaf. Whether it does from now
    /// on, and did not.
    pub const fn set_judges(&mut self, judges: bool) -> bool {
        let did = std::mem::replace(&mut self.judges, judges);
        judges && !did
    }

    /// The nodes that are away, with their incarnations.
    pub fn away(&self) -> impl Iterator<Item = (&Arc<str>, u64)> {
        let away = (self.peers.iter()).filter(|(_, peer)| peer.presence == Presence::Away);
        away.map(|(name, peer)| (name, peer.incarnation))
    }

    /// Changes since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Up to `most` filters for which the nodes that want them may have changed since they were last taken, with
    /// those nodes.
    pub fn take_changes(&mut self, most: usize) -> Vec<(Arc<str>, Wanted)> {
        let all = self.changed.iter().take(most);
        let changes: Vec<_> = all
            .map(|filter| (Arc::clone(filter), self.wanted(filter)))
            .collect();
        for (filter, _) in &changes {
            self.changed.remove(filter);
        }
        changes
    }

    /// The node with a number in sets of nodes, and how it is seen; `None` where there is none.
    #[must_use]
    pub fn node(&self, number: usize) -> Option<(Arc<str>, Presence)> {
        let mut peers = self.peers.iter();
        let (name, peer) = peers.find(|(_, peer)| peer.number == number)?;
        Some((Arc::clone(name), peer.presence))
    }

    /// How the node of a name is seen; `None` where there is none.
    #[must_use]
    pub fn presence(&self, node: &str) -> Option<Presence> {
        Some(self.peers.get(node)?.presence)
    }

    /// The last incarnation of the node of a name that is known; `None` where there is no such node.
    #[must_use]
    pub fn incarnation(&self, node: &str) -> Option<u64> {
        Some(self.peers.get(node)?.incarnation)
    }

    /// All other nodes: name, how each is seen, and how many filters it has readers for.
    pub fn nodes(&self) -> impl Iterator<Item = (&Arc<str>, Presence, usize)> {
        let peers = self.peers.iter();
        peers.map(|(name, peer)| (name, peer.presence, peer.filters.len()))
    }

    /// How many other nodes are seen so.
    #[must_use]
    pub fn count(&self, presence: Presence) -> usize {
        let all = self.peers.values();
        all.filter(|peer| peer.presence == presence).count()
    }

    /// The filters that other nodes have readers for: of each node those that it told.
    #[must_use]
    pub fn filters(&self) -> usize {
        self.peers.values().map(|peer| peer.filters.len()).sum()
    }

    fn wanted(&self, filter: &str) -> Wanted {
        let mut wanted = Wanted::NOBODY;
        for peer in self.peers.values() {
            let interest = peer.filters.get(filter).copied().unwrap_or_default();
            if interest != Interest::None && peer.presence == Presence::Here {
                wanted.any.insert(peer.number);
            }
            if interest >= Interest::Acknowledged && peer.presence != Presence::Gone {
                wanted.acknowledged.insert(peer.number);
            }
            wanted.is_durable |= interest == Interest::Durable;
        }
        if self.exported.contains(filter) {
            wanted.any.insert(OUTSIDE);
            wanted.acknowledged.insert(OUTSIDE);
        }
        wanted.is_durable |= (self.left.values()).any(|left| left.contains_key(filter));
        wanted
    }

    /// Numbers that there are for other nodes.
    fn numbers(&self) -> usize {
        if self.exported.is_empty() {
            NodeSet::MAXIMUM
        } else {
            OUTSIDE
        }
    }

    /// The node of that name, in that incarnation; `None` for an earlier one, or where there is no room.
    fn peer(&mut self, now_ms: u64, node: &str, incarnation: u64) -> Option<(Arc<str>, &mut Peer)> {
        let name: Arc<str> = Arc::from(node);
        if self
            .unread
            .get(node)
            .is_some_and(|known| incarnation <= *known)
        {
            return None;
        }
        if !self.peers.contains_key(node) {
            let is_taken = |number: &usize| self.peers.values().any(|peer| peer.number == *number);
            let Some(number) = (0..self.numbers()).find(|number| !is_taken(number)) else {
                if self.left_out.insert(Arc::clone(&name)) {
                    self.events.push(Event::TooMany { node: name });
                }
                return None;
            };
            // Nobody knows yet whether it lives: what must arrive waits for it.
            let peer = Peer {
                number,
                incarnation,
                presence: Presence::Away,
                heard_ms: now_ms,
                filters: HashMap::new(),
                is_swept: false,
                reads: None,
            };
            self.peers.insert(Arc::clone(&name), peer);
        }
        let peer = self.peers.get_mut(node)?;
        if incarnation < peer.incarnation {
            return None;
        }
        if incarnation > peer.incarnation {
            let earlier = std::mem::replace(&mut peer.incarnation, incarnation);
            peer.is_swept = false;
            peer.reads = None;
            for (filter, interest) in std::mem::take(&mut peer.filters) {
                if interest == Interest::Durable {
                    let left = self.left.entry(Arc::clone(&name)).or_default();
                    left.insert(Arc::clone(&filter), earlier);
                }
                self.changed.insert(filter);
            }
        }
        Some((name, peer))
    }

    fn turn(&mut self, name: &Arc<str>, presence: Presence) {
        let Some(peer) = self.peers.get_mut(name) else {
            return;
        };
        let before = std::mem::replace(&mut peer.presence, presence);
        if before == presence {
            return;
        }
        self.changed.extend(peer.filters.keys().cloned());
        let (node, is_swept) = (Arc::clone(name), peer.is_swept);
        self.events.push(match presence {
            Presence::Here => Event::Came { node },
            Presence::Away => Event::Missed { node },
            Presence::Gone => Event::Went { node },
        });
        if is_swept && presence == Presence::Gone {
            self.forget(name);
        }
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
