//! The other nodes of the cluster, and the filters each has readers for.
//!
//! A node says again and again that it is there. A node that is not heard of for the *lease* is *away*. It then
//! gets no messages of QoS 0; those of QoS 1 and 2 still wait in its inbox. A node that is away for the *absence*
//! is *gone*, and nothing waits for it. A node that comes back within the absence goes on as if it had not been
//! away.
//!
//! The *incarnation* of a node is a number that is higher after each of its starts. Statements of an earlier
//! incarnation no longer hold.
//!
//! With one exception: the filters of readers that outlive their connections. Their sessions are still there when
//! their node is gone or starts anew, and a process takes them over. Until that is done ([`Table::swept`]),
//! messages for these filters go to the log. No input or output here, and time is an argument.

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
        /// Its number in sets of nodes.
        number: usize,
    },
    /// There are more nodes than can be; this one is left out.
    TooMany {
        /// Its name.
        node: Arc<str>,
    },
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
            reads,
            unread: HashMap::new(),
            left: HashMap::new(),
            exported: HashSet::new(),
            changed: HashSet::new(),
            events: Vec::new(),
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
        let Some((name, peer)) = self.peer(now_ms, node, incarnation) else {
            return;
        };
        peer.heard_ms = now_ms;
        peer.reads = Some(reads);
        let presence = if is_leaving {
            Presence::Gone
        } else {
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
        if incarnation < self.own_incarnation {
            self.events.push(Event::Unfit { node: name, reads });
        } else if self.unread.insert(Arc::clone(&name), incarnation) != Some(incarnation) {
            self.turn(&name, Presence::Gone);
            self.events.push(Event::Unread { node: name, reads });
        }
    }

    /// The highest version of the wire form that all nodes which may get something read. It is the lowest while one
    /// of them has not said which versions it reads.
    #[must_use]
    pub fn version(&self) -> u8 {
        let peers = self.peers.values();
        let waited_for = peers.filter(|peer| peer.presence != Presence::Gone);
        let each = waited_for.map(|peer| {
            let reads = peer.reads.and_then(|reads| self.reads.common(reads));
            reads.map_or(self.reads.lowest, |common| common.highest)
        });
        each.fold(self.reads.highest, u8::min)
    }

    /// The numbers of nodes that read a version and may get something: one by name, or all for `None`.
    #[must_use]
    pub fn readers_of(&self, version: u8, name: Option<&str>) -> Vec<usize> {
        let peers = self.peers.iter();
        let named = peers.filter(|(known, _)| name.is_none_or(|name| *name == ***known));
        let reading = named.filter(|(_, peer)| {
            let reads = peer.reads.is_some_and(|reads| reads.contains(version));
            peer.presence != Presence::Gone && reads
        });
        reading.map(|(_, peer)| peer.number).collect()
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
        if interest == Interest::None {
            peer.filters.remove(&filter);
        } else {
            peer.filters.insert(Arc::clone(&filter), interest);
        }
        self.changed.insert(filter);
    }

    /// What this node tells of a filter that its readers want so: no less than sessions want that its earlier starts
    /// have left.
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
        }
        ended
    }

    /// The nodes whose sessions may want something that they are not here to say, and their incarnations.
    pub fn with_durable(&self) -> impl Iterator<Item = (&Arc<str>, u64)> {
        let peers = self.peers.iter().filter(|(_, peer)| {
            let mut filters = peer.filters.values();
            peer.presence != Presence::Here && filters.any(|known| *known == Interest::Durable)
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
        let overdue: Vec<(Arc<str>, Presence)> = self
            .peers
            .iter()
            .filter_map(|(name, peer)| {
                let silent_ms = now_ms.saturating_sub(peer.heard_ms);
                let presence = match peer.presence {
                    Presence::Here | Presence::Away if silent_ms >= self.absence_ms => {
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

    /// This node was cut off and is not any more: silence counts from now on.
    pub fn reconnected(&mut self, now_ms: u64) {
        for peer in self.peers.values_mut() {
            peer.heard_ms = now_ms;
        }
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
            let numbers = if self.exported.is_empty() {
                NodeSet::MAXIMUM
            } else {
                OUTSIDE
            };
            let Some(number) = (0..numbers).find(|number| !is_taken(number)) else {
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
        let (node, number) = (Arc::clone(name), peer.number);
        self.events.push(match presence {
            Presence::Here => Event::Came { node },
            Presence::Away => Event::Missed { node },
            Presence::Gone => Event::Went { node, number },
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        Table::new("a", 4_000, 60_000, reads("1"))
    }

    fn reads(text: &str) -> Versions {
        Versions::parse(text).expect("versions")
    }

    /// An upgrade, node by node, from nodes that read 1 to nodes that read 1 to 3, while one node is away.
    #[test]
    fn all_write_the_highest_version_that_all_read() {
        let mut table = Table::new("c", 4_000, 60_000, reads("1-3"));
        assert_eq!(table.version(), 3, "it is alone");
        table.wants(0, "a", 1, "x", Interest::Acknowledged);
        assert_eq!(table.version(), 1, "nobody knows yet what that node reads");
        table.heard(0, "a", 1, false, reads("1"));
        table.heard(0, "b", 2, false, reads("1-2"));
        assert_eq!(table.version(), 1);
        table.heard(0, "a", 7, false, reads("1-9"));
        assert_eq!(table.version(), 2, "it has started anew");
        table.look(4_000);
        assert_eq!(
            table.version(),
            2,
            "something waits for a node that is away"
        );
        table.heard(5_000, "b", 2, true, reads("1-2"));
        assert_eq!(table.version(), 3, "nothing waits for a node that has left");
        table.wants(5_000, "b", 8, "x", Interest::Acknowledged);
        assert_eq!(table.version(), 3, "nothing waits for it yet");
        table.heard(5_000, "b", 8, false, reads("1"));
        assert_eq!(table.version(), 1, "it is back, and an older one");
        let number = table.readers_of(2, Some("a"));
        assert_eq!((number.len(), table.readers_of(2, Some("b")).len()), (1, 0));
        assert_eq!(table.readers_of(2, None), number, "of all that read it");
    }

    #[test]
    fn who_reads_nothing_of_the_others_takes_no_part() {
        let mut first = Table::new("a", 4_000, 60_000, reads("1-2"));
        first.set_own_incarnation(5);
        let newer = reads("3-4");
        for _ in 0..2 {
            first.heard(0, "late", 9, false, newer);
            first.wants(0, "late", 9, "x", Interest::Acknowledged);
        }
        let node = Arc::from("late");
        let unread = Event::Unread { node, reads: newer };
        assert_eq!(first.take_events(), [unread], "said once");
        assert!(changes(&mut first).is_empty(), "nothing waits for it");
        assert_eq!((first.version(), first.count(Presence::Here)), (2, 0));
        // It is installed anew, and fits.
        first.heard(0, "late", 12, false, reads("2-3"));
        assert_eq!((first.version(), first.count(Presence::Here)), (2, 1));
        let mut late = Table::new("late", 4_000, 60_000, newer);
        late.set_own_incarnation(9);
        late.heard(0, "a", 5, false, reads("1-2"));
        let node = Arc::from("a");
        let reads = reads("1-2");
        assert_eq!(late.take_events(), [Event::Unfit { node, reads }]);
    }

    fn nodes(numbers: &[usize]) -> NodeSet {
        let mut set = NodeSet::EMPTY;
        for &number in numbers {
            set.insert(number);
        }
        set
    }

    fn changes(table: &mut Table) -> Vec<(String, Wanted)> {
        let mut changes: Vec<_> = (table.take_changes(usize::MAX).into_iter())
            .map(|(filter, wanted)| (filter.to_string(), wanted))
            .collect();
        changes.sort_by(|one, other| one.0.cmp(&other.0));
        changes
    }

    fn wanted(any: &[usize], acknowledged: &[usize]) -> Wanted {
        Wanted {
            any: nodes(any),
            acknowledged: nodes(acknowledged),
            is_durable: false,
        }
    }

    #[test]
    fn silence_takes_a_node_away_in_two_steps_and_its_word_brings_it_back() {
        let mut table = table();
        table.heard(0, "b", 5, false, reads("1"));
        table.wants(0, "b", 5, "x", Interest::AtMostOnce);
        table.wants(0, "b", 5, "y/#", Interest::Acknowledged);
        assert_eq!(
            changes(&mut table),
            [
                ("x".to_owned(), wanted(&[0], &[])),
                ("y/#".to_owned(), wanted(&[0], &[0]))
            ]
        );
        table.look(3_999);
        assert!(changes(&mut table).is_empty());
        table.look(4_000);
        let away = [
            ("x".to_owned(), Wanted::NOBODY),
            ("y/#".to_owned(), wanted(&[], &[0])),
        ];
        assert_eq!(changes(&mut table), away, "what must arrive waits");
        table.look(60_000);
        let gone = [
            ("x".to_owned(), Wanted::NOBODY),
            ("y/#".to_owned(), Wanted::NOBODY),
        ];
        assert_eq!(changes(&mut table), gone);
        table.heard(70_000, "b", 5, false, reads("1"));
        let back = [
            ("x".to_owned(), wanted(&[0], &[])),
            ("y/#".to_owned(), wanted(&[0], &[0])),
        ];
        assert_eq!(changes(&mut table), back);
        let node: Arc<str> = Arc::from("b");
        let came = Event::Came {
            node: Arc::clone(&node),
        };
        let went = Event::Went {
            node: Arc::clone(&node),
            number: 0,
        };
        assert_eq!(
            table.take_events(),
            [came.clone(), Event::Missed { node }, went, came]
        );
    }

    #[test]
    fn a_new_start_ends_what_the_node_said_before() {
        let mut table = table();
        table.heard(0, "b", 5, false, reads("1"));
        table.wants(0, "b", 5, "x", Interest::Acknowledged);
        changes(&mut table);
        table.heard(1, "b", 9, false, reads("1"));
        assert_eq!(changes(&mut table), [("x".to_owned(), Wanted::NOBODY)]);
        // A late word of the earlier start.
        table.wants(2, "b", 5, "x", Interest::Acknowledged);
        table.heard(2, "b", 5, true, reads("1"));
        assert!(changes(&mut table).is_empty());
        assert_eq!(table.count(Presence::Here), 1);
    }

    #[test]
    fn what_sessions_want_of_nodes_that_do_not_say_it_is_known() {
        let mut table = table();
        table.heard(0, "b", 5, false, reads("1"));
        table.wants(0, "b", 5, "x", Interest::Durable);
        table.wants(0, "b", 5, "y", Interest::Acknowledged);
        assert!(table.durable_of_absent().is_empty(), "it says it by itself");
        table.look(4_000);
        let [b, x]: [Arc<str>; 2] = ["b", "x"].map(Arc::from);
        assert_eq!(table.durable_of_absent(), [(b.clone(), 5, x.clone())]);
        table.heard(5_000, "b", 9, false, reads("1"));
        assert_eq!(
            table.durable_of_absent(),
            [(b, 5, x)],
            "its earlier start's"
        );
        table.swept("b", 5);
        assert!(table.durable_of_absent().is_empty());
    }

    /// NATS has one entry for each filter of a node, whichever of its starts has written it.
    #[test]
    fn what_an_earlier_start_has_left_is_told_until_it_is_swept() {
        let mut table = table();
        table.set_own_incarnation(7);
        table.wants(0, "a", 5, "x", Interest::Durable);
        table.wants(0, "a", 5, "y", Interest::Acknowledged);
        table.wants(0, "a", 7, "z", Interest::Durable);
        table.wants(0, "b", 3, "w", Interest::Durable);
        for own in [
            Interest::None,
            Interest::AtMostOnce,
            Interest::Acknowledged,
            Interest::Durable,
        ] {
            assert_eq!(table.told("x", own), Interest::Durable);
            for other in ["y", "z", "w"] {
                assert_eq!(table.told(other, own), own, "{other}");
            }
        }
        assert!(table.swept("a", 4).is_empty(), "an earlier one");
        assert_eq!(table.told("x", Interest::Acknowledged), Interest::Durable);
        let x: Arc<str> = Arc::from("x");
        assert_eq!(table.swept("a", 6), [x], "it is to be told anew");
        assert_eq!(
            table.told("x", Interest::Acknowledged),
            Interest::Acknowledged
        );
    }

    #[test]
    fn who_leaves_is_gone_at_once() {
        let mut table = table();
        table.heard(0, "b", 5, false, reads("1"));
        table.wants(0, "b", 5, "x", Interest::Acknowledged);
        changes(&mut table);
        table.heard(1, "b", 5, true, reads("1"));
        assert_eq!(changes(&mut table), [("x".to_owned(), Wanted::NOBODY)]);
        assert_eq!(table.count(Presence::Gone), 1);
    }

    #[test]
    fn a_node_that_was_cut_off_takes_nobody_for_gone() {
        let mut table = table();
        table.heard(0, "b", 5, false, reads("1"));
        table.reconnected(100_000);
        table.look(100_000);
        assert_eq!(table.count(Presence::Here), 1);
        table.look(104_000);
        assert_eq!(table.count(Presence::Away), 1);
    }

    #[test]
    fn the_later_of_two_with_one_name_stays() {
        let mut table = table();
        table.set_own_incarnation(7);
        table.heard(0, "a", 6, false, reads("1"));
        table.heard(0, "a", 7, false, reads("1"));
        assert!(table.take_events().is_empty());
        table.heard(0, "a", 8, false, reads("1"));
        assert_eq!(table.take_events(), [Event::Superseded]);
    }

    #[test]
    fn a_node_too_many_is_left_out_and_told_once() {
        let mut table = table();
        for node in 0..NodeSet::MAXIMUM {
            table.heard(0, &format!("n{node}"), 1, false, reads("1"));
        }
        table.take_events();
        table.heard(0, "late", 1, false, reads("1"));
        table.wants(0, "late", 1, "x", Interest::Acknowledged);
        let node = Arc::from("late");
        assert_eq!(table.take_events(), [Event::TooMany { node }]);
        assert!(changes(&mut table).is_empty());
    }

    #[test]
    fn what_leaves_the_region_is_wanted_by_a_node_that_is_always_here() {
        let mut table = table();
        table.export(&["x".to_owned(), "out/#".to_owned()]);
        let outside = wanted(&[OUTSIDE], &[OUTSIDE]);
        let both = [("out/#".to_owned(), outside), ("x".to_owned(), outside)];
        assert_eq!(changes(&mut table), both);
        assert!(table.is_first());
        for node in 0..NodeSet::MAXIMUM {
            table.heard(0, &format!("n{node}"), 1, false, reads("1"));
            table.wants(0, &format!("n{node}"), 1, "x", Interest::AtMostOnce);
        }
        assert_eq!(table.count(Presence::Here), OUTSIDE, "one number is taken");
        assert!(table.is_first(), "`a` is before all of them");
        table.look(1_000_000);
        assert_eq!(changes(&mut table), [("x".to_owned(), outside)]);
        let mut later = Table::new("z", 4_000, 60_000, reads("1"));
        later.heard(0, "b", 1, false, reads("1"));
        assert!(!later.is_first());
        later.look(4_000);
        assert!(later.is_first(), "the other is away");
    }

    #[test]
    fn changes_are_taken_in_portions() {
        let mut table = table();
        table.heard(0, "b", 5, false, reads("1"));
        for number in 0..10 {
            table.wants(0, "b", 5, &number.to_string(), Interest::AtMostOnce);
        }
        assert_eq!(table.filters(), 10);
        assert_eq!(table.take_changes(7).len(), 7);
        assert_eq!(table.take_changes(7).len(), 3);
        assert!(table.take_changes(7).is_empty());
    }
}
