//! Other nodes of a cluster: what they want, and what this node has for them.
//!
//! A node is to the broker a shard far away. The caller tells which filters other nodes have readers for
//! ([`Broker::set_wanted`](crate::Broker::set_wanted)). It takes the messages for them once a turn
//! ([`Broker::take_outgoing`](crate::Broker::take_outgoing)), and brings theirs
//! ([`Broker::publish_from_peer`](crate::Broker::publish_from_peer)). Messages from another node go to a node's own
//! readers only, so that nothing goes in circles.
//!
//! Topics that begin with `$` stay on their node.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::api::Retention;
use crate::hash::KeyedState;
use crate::levels::{LevelTree, Scratch};
use crate::message::Message;
use crate::owned::Owned;
use crate::store::Change;

/// Bytes that a message for other nodes is charged beside its body.
const OVERHEAD_BYTES: u64 = 64;

/// Most messages that go into a cluster's log as one.
pub const MOST_TOGETHER: usize = 1024;

/// A set of other nodes. Their numbers, 0 to 63, are given by who brings the messages to them, and mean
/// nothing elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct NodeSet(u64);

impl NodeSet {
    /// The most nodes that there can be beside this one.
    pub const MAXIMUM: usize = 64;

    /// No node.
    pub const EMPTY: Self = Self(0);

    /// Whether there is no node in it.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Number of its nodes.
    #[must_use]
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether a node is in it; false for a number that no node has.
    #[must_use]
    pub const fn contains(self, node: usize) -> bool {
        node < Self::MAXIMUM && self.0 & (1 << node) != 0
    }

    /// Puts a node in. Numbers that no node has are left out.
    pub const fn insert(&mut self, node: usize) {
        if node < Self::MAXIMUM {
            self.0 |= 1 << node;
        }
    }

    /// The nodes of either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Its nodes that are not in another set.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether a node is in both.
    #[must_use]
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Its nodes, the lowest number first.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..Self::MAXIMUM).filter(move |&node| self.contains(node))
    }
}

/// How much a node wants what a filter matches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Interest {
    /// It has no reader.
    #[default]
    None,
    /// All its readers take QoS 0.
    AtMostOnce,
    /// A reader takes QoS 1 or 2.
    Acknowledged,
    /// A reader of QoS 1 or 2 outlives its connection: what it is to get belongs into the log.
    Durable,
}

/// The other nodes that want what a filter matches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Wanted {
    /// Those that can be reached, whatever their readers take.
    pub any: NodeSet,
    /// Those with a reader of QoS 1 or 2, also where they cannot be reached now.
    pub acknowledged: NodeSet,
    /// Whether a reader of QoS 1 or 2 that outlives its connection wants it, wherever its session is or was.
    pub is_durable: bool,
}

impl Wanted {
    /// No node.
    pub const NOBODY: Self = Self {
        any: NodeSet::EMPTY,
        acknowledged: NodeSet::EMPTY,
        is_durable: false,
    };

    /// All of them.
    pub(crate) const fn nodes(self) -> NodeSet {
        self.any.union(self.acknowledged)
    }

    pub(crate) const fn and(self, other: Self) -> Self {
        Self {
            any: self.any.union(other.any),
            acknowledged: self.acknowledged.union(other.acknowledged),
            is_durable: self.is_durable || other.is_durable,
        }
    }
}

/// A message for other nodes.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The message.
    pub message: Arc<Message>,
    /// Its destination.
    pub destination: Destination,
    /// The record that is kept behind it, where the log's entry is to tell of that.
    pub settles: Option<Box<Settles>>,
}

impl Outgoing {
    /// Bytes that it is charged with in a [`PeerGate`].
    #[must_use]
    pub fn bytes(&self) -> u64 {
        charge(&self.message)
    }
}

/// The destination of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// These nodes.
    Nodes {
        /// They are to have it for sure: its acknowledgement waits for that.
        acknowledged: NodeSet,
        /// They may miss it.
        at_most_once: NodeSet,
    },
    /// The log, from where every node has it as it comes by, this one included. Its acknowledgement waits until
    /// the log has it.
    Log {
        /// The name that makes it the same message when its publisher sends it again; `None` where it has none.
        once: Option<Once>,
        /// How many of those that follow get there as one with it: all or none.
        following: usize,
    },
    /// All nodes: it is its topic's retained message, or its payload is empty and there is none any more.
    Retained {
        /// These nodes get it as [`Nodes`](Self::Nodes), too. So their readers have it already.
        reached: NodeSet,
    },
    /// All nodes: as [`Retained`](Self::Retained), and it is delivered to nobody.
    RetainedQuietly,
    /// All nodes that know of no other retained message of its topic; it is delivered to nobody.
    Restored,
    /// All nodes, where one of them has retained a message of its topic that is not known here: that one ends. It is
    /// delivered to nobody.
    Absent,
}

/// The name of a publication that its publisher may send again to another node. It has three parts: the session,
/// the number of the session's publications of this kind by then, and the packet identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Once {
    /// The origin of its client identifier, as a number.
    pub session: u64,
    /// Number of the publication in its session.
    pub round: u64,
    /// Its packet identifier.
    pub packet_id: u16,
}

/// A record that says that a message was published, and is kept behind it. The log's entry tells of it, too: it holds
/// where the node dies between the two.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Settles {
    /// A front door's record of a session, without a value: [`settle`](crate::settle).
    Session {
        /// The client identifier.
        client_id: Arc<str>,
        /// Number of the publication in its session.
        round: u64,
        /// The front door's key.
        key: Box<[u8]>,
    },
    /// A record of the whole cluster.
    Shared {
        /// The front door's key.
        key: Box<[u8]>,
        /// The record.
        value: Box<[u8]>,
    },
}

/// The way a node applies a message from another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FromPeer {
    /// Delivers it, and retains it if it is to be retained.
    Publish,
    /// Delivers it, and leaves its topic's retained message as it is.
    Deliver,
    /// Retains it, or clears its topic's retained message if the payload is empty.
    Retain,
}

/// Whether messages for other nodes are taken: one for all shards of a process and for who brings them there.
#[derive(Debug)]
pub struct PeerGate {
    is_open: AtomicBool,
    knows_wanted: AtomicBool,
    waiting_bytes: AtomicU64,
    arriving_bytes: AtomicU64,
    maximum_bytes: u64,
    largest_body_bytes: AtomicU64,
    dropped: AtomicU64,
    refused: AtomicU64,
    is_crowded: AtomicBool,
    is_log_full: AtomicBool,
    logs_together: AtomicBool,
    has_groups: AtomicBool,
    has_queues: AtomicBool,
    full: AtomicU64,
}

impl PeerGate {
    /// A gate that is shut, while nobody knows what other nodes want. `maximum_bytes` is how many bytes of messages
    /// may wait behind it, and before it for this node's shards. One message of each shard may go above.
    #[must_use]
    pub const fn new(maximum_bytes: u64) -> Self {
        Self {
            is_open: AtomicBool::new(false),
            knows_wanted: AtomicBool::new(false),
            waiting_bytes: AtomicU64::new(0),
            arriving_bytes: AtomicU64::new(0),
            maximum_bytes,
            largest_body_bytes: AtomicU64::new(u64::MAX),
            dropped: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            is_crowded: AtomicBool::new(false),
            is_log_full: AtomicBool::new(false),
            logs_together: AtomicBool::new(false),
            has_groups: AtomicBool::new(false),
            has_queues: AtomicBool::new(false),
            full: AtomicU64::new(0),
        }
    }

    /// Opens or shuts it. While it is shut, other nodes miss messages of QoS 0. Messages of QoS 1 and 2 that they
    /// want are refused.
    pub fn set_open(&self, is_open: bool) {
        self.is_open.store(is_open, Ordering::Release);
    }

    /// Whether it is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Notes that all shards know what other nodes want: [`Broker::set_wanted`](crate::Broker::set_wanted) was told it
    /// as a whole. Until then all messages of QoS 1 and 2 are refused behind a shut gate. It is to be opened after that.
    pub fn set_knows_wanted(&self) {
        self.knows_wanted.store(true, Ordering::Release);
    }

    /// Notes that what other nodes want may be more by now than shards know.
    pub fn forget_wanted(&self) {
        self.knows_wanted.store(false, Ordering::Release);
    }

    /// Whether all shards know it.
    #[must_use]
    pub fn knows_wanted(&self) -> bool {
        self.knows_wanted.load(Ordering::Acquire)
    }

    /// Bytes of messages that wait.
    #[must_use]
    pub fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes.load(Ordering::Relaxed)
    }

    /// Messages that other nodes wanted and have missed. One for several nodes counts once.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Publications that were refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Whether the queue of a reader has been half full since the last call, and has taken more. The next
    /// messages are better brought a little later, for one that is full drops them.
    pub fn take_crowded(&self) -> bool {
        self.is_crowded.swap(false, Ordering::Relaxed)
    }

    /// Says whether the log is full: what is to go there is refused. Returns what was said before.
    pub fn set_log_full(&self, is_full: bool) -> bool {
        self.is_log_full.swap(is_full, Ordering::Relaxed)
    }

    /// Whether the log is full.
    #[must_use]
    pub fn is_log_full(&self) -> bool {
        self.is_log_full.load(Ordering::Relaxed)
    }

    /// Says whether all nodes find messages in the log that were appended together.
    pub fn set_logs_together(&self, logs_together: bool) {
        (self.logs_together).store(logs_together, Ordering::Relaxed);
    }

    /// Whether some messages can go into the log as one.
    pub(crate) fn takes_together(&self, messages: &[Message]) -> bool {
        let bytes: u64 = messages.iter().map(charge).sum();
        self.logs_together.load(Ordering::Relaxed)
            && (2..=MOST_TOGETHER).contains(&messages.len())
            && bytes <= self.largest_body_bytes()
    }

    /// Says whether all nodes understand letters about shared subscriptions; others are refused until then.
    pub fn set_has_groups(&self, has_groups: bool) {
        self.has_groups.store(has_groups, Ordering::Relaxed);
    }

    pub(crate) fn has_groups(&self) -> bool {
        self.has_groups.load(Ordering::Relaxed)
    }

    /// Says whether all nodes understand letters about queues; queues are refused until then.
    pub fn set_has_queues(&self, has_queues: bool) {
        self.has_queues.store(has_queues, Ordering::Relaxed);
    }

    pub(crate) fn has_queues(&self) -> bool {
        self.has_queues.load(Ordering::Relaxed)
    }

    /// Says for which nodes no more can wait: messages of QoS 1 and 2 that one of them wants are refused.
    pub fn set_full(&self, nodes: NodeSet) {
        self.full.store(nodes.0, Ordering::Relaxed);
    }

    /// The nodes for which no more can wait.
    #[must_use]
    pub fn full(&self) -> NodeSet {
        NodeSet(self.full.load(Ordering::Relaxed))
    }

    /// Notes that bytes wait no longer.
    pub fn release(&self, bytes: u64) {
        self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Notes a message of another node that is on its way to a shard of this one.
    pub fn arrives(&self, message: &Message) {
        (self.arriving_bytes).fetch_add(charge(message), Ordering::Relaxed);
    }

    /// Whether this node's shards are behind: what may be missed is better dropped, and all else waits elsewhere.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.arriving_bytes.load(Ordering::Relaxed) >= self.maximum_bytes
    }

    pub(crate) fn has_arrived(&self, message: &Message) {
        let left = |bytes: u64| Some(bytes.saturating_sub(charge(message)));
        let _ = (self.arriving_bytes).fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
    }

    /// Counts messages that did not get to a node that wanted them.
    pub fn count_dropped(&self, messages: u64) {
        self.dropped.fetch_add(messages, Ordering::Relaxed);
    }

    /// Sets how many bytes of a body can be brought to other nodes as one message.
    pub fn set_largest_body_bytes(&self, bytes: u64) {
        self.largest_body_bytes.store(bytes, Ordering::Relaxed);
    }

    fn has_room(&self) -> bool {
        self.waiting_bytes() < self.maximum_bytes
    }

    pub(crate) fn largest_body_bytes(&self) -> u64 {
        self.largest_body_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn is_small(&self, message: &Message) -> bool {
        message.body_bytes() as u64 <= self.largest_body_bytes()
    }

    fn takes(&self, message: &Message) -> bool {
        self.is_open() && self.has_room() && self.is_small(message)
    }
}

fn charge(message: &Message) -> u64 {
    message.body_bytes() as u64 + OVERHEAD_BYTES
}

/// Whether messages of a topic, or of what a filter matches, stay on their node.
pub(crate) fn stays(topic: &str) -> bool {
    topic.starts_with('$')
}

/// The messages and records that a shard has for other nodes.
#[derive(Debug)]
pub(crate) struct Peers {
    pub(crate) gate: Arc<PeerGate>,
    outgoing: Vec<Outgoing>,
    /// Retained messages that are put aside behind what goes to the log as one, with their destinations.
    retained: Vec<(Arc<Message>, Destination)>,
    /// Changes of records of sessions.
    changes: Vec<Change>,
    /// The last token that was given out, and the last that was handed over.
    token: u64,
    handed: u64,
    /// Whether what is routed came from another node.
    pub(crate) is_from_peer: bool,
    pub(crate) owned: Owned,
}

impl Peers {
    pub(crate) fn new(gate: Arc<PeerGate>) -> Self {
        Self {
            gate,
            outgoing: Vec::new(),
            retained: Vec::new(),
            changes: Vec::new(),
            token: 0,
            handed: 0,
            is_from_peer: false,
            owned: Owned::default(),
        }
    }

    /// Whether a message that other nodes may have to have for sure cannot be taken.
    pub(crate) fn is_shut_for(&self, message: &Message) -> bool {
        !self.is_from_peer && !self.gate.takes(message)
    }

    pub(crate) fn note_crowded(&self) {
        self.gate.is_crowded.store(true, Ordering::Relaxed);
    }

    pub(crate) fn count_refused(&self) {
        self.gate.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Puts a message aside for the nodes that want it. Returns the token by which its acknowledgement
    /// waits; 0 where that need not wait.
    pub(crate) fn send(&mut self, message: &Arc<Message>, wanted: Wanted) -> u64 {
        if self.is_from_peer {
            return 0;
        }
        let acknowledged = if message.qos().is_acknowledged() {
            wanted.acknowledged
        } else {
            NodeSet::EMPTY
        };
        let destination = Destination::Nodes {
            acknowledged,
            at_most_once: wanted.any.without(acknowledged),
        };
        if acknowledged.is_empty() && wanted.any.is_empty() {
            self.gate.count_dropped(1);
            return 0;
        }
        // Messages that must arrive were let in before anything was done with them.
        if acknowledged.is_empty() && !self.gate.takes(message) {
            self.gate.count_dropped(1);
            return 0;
        }
        self.push(message, destination, !acknowledged.is_empty())
    }

    /// Puts a retained message, or its end, aside for all nodes; as [`send`](Self::send).
    pub(crate) fn retain(&mut self, message: &Arc<Message>, destination: Destination) -> u64 {
        if self.is_from_peer || stays(message.topic()) {
            return 0;
        }
        // Retained messages of QoS 0 wait for the engine, too, as long as there is room: nodes would not
        // agree otherwise.
        let has_room = self.gate.has_room() && self.gate.is_small(message);
        if !message.qos().is_acknowledged() && !has_room {
            self.gate.count_dropped(1);
            return 0;
        }
        self.push(message, destination, message.qos().is_acknowledged())
    }

    /// Puts a message aside that is published with the retain flag, as [`send`](Self::send). The effect on its topic's
    /// retained message goes to all nodes.
    pub(crate) fn publish(
        &mut self,
        message: &Arc<Message>,
        retention: Retention,
        wanted: Wanted,
    ) -> u64 {
        match retained_to(retention) {
            Some(Destination::Absent) => {
                let token = if wanted.nodes().is_empty() {
                    0
                } else {
                    self.send(message, wanted)
                };
                token.max(self.retain(message, Destination::Absent))
            }
            Some(_) => self.send_retained(message, wanted),
            None => self.send(message, wanted),
        }
    }

    /// Puts a message that its topic retains aside for all nodes. It goes by the inbox of each node that is to have
    /// it for sure: of the retained messages of a topic, NATS has the last alone.
    fn send_retained(&mut self, message: &Arc<Message>, wanted: Wanted) -> u64 {
        let reached = if message.qos().is_acknowledged() {
            wanted.acknowledged
        } else {
            NodeSet::EMPTY
        };
        let token = if reached.is_empty() {
            0
        } else {
            let wanted = Wanted {
                acknowledged: reached,
                ..Wanted::NOBODY
            };
            self.send(message, wanted)
        };
        token.max(self.retain(message, Destination::Retained { reached }))
    }

    /// Puts a message aside for the log. Returns the token by which its acknowledgement waits.
    pub(crate) fn log(
        &mut self,
        message: &Arc<Message>,
        destination: Destination,
        settles: Option<Settles>,
    ) -> u64 {
        let token = self.push(message, destination, true);
        if let (Some(settles), Some(last)) = (settles, self.outgoing.last_mut()) {
            last.settles = Some(Box::new(settles));
        }
        token
    }

    /// Notes what a message does to its topic's retained message, which other nodes are to have behind what goes to the
    /// log as one.
    pub(crate) fn retain_later(&mut self, message: &Arc<Message>, retention: Retention) {
        let destination = match retained_to(retention) {
            // Its readers have it by the log.
            Some(Destination::Retained { .. }) => Destination::RetainedQuietly,
            Some(other) => other,
            None => return,
        };
        self.retained.push((Arc::clone(message), destination));
    }

    /// Puts the noted retained messages aside for all nodes. Returns the token by which their acknowledgement waits.
    pub(crate) fn retain_all(&mut self) -> u64 {
        let retained = std::mem::take(&mut self.retained);
        let each = retained.iter();
        each.fold(0, |token, (message, destination)| {
            token.max(self.retain(message, *destination))
        })
    }

    /// Puts changes of records aside, which are kept in their order and after the messages of the turn.
    /// Returns the token by which who needs them waits; 0 for no changes.
    pub(crate) fn keep(&mut self, changes: &mut Vec<Change>) -> u64 {
        if changes.is_empty() {
            return 0;
        }
        self.changes.append(changes);
        self.token += 1;
        self.token
    }

    /// Puts a retained message aside that was with other nodes before.
    pub(crate) fn restore(&mut self, message: &Arc<Message>) {
        if !stays(message.topic()) && self.gate.is_small(message) {
            self.push(message, Destination::Restored, false);
        }
    }

    fn push(&mut self, message: &Arc<Message>, destination: Destination, waits: bool) -> u64 {
        (self.gate.waiting_bytes).fetch_add(charge(message), Ordering::Relaxed);
        self.outgoing.push(Outgoing {
            message: Arc::clone(message),
            destination,
            settles: None,
        });
        if !waits {
            return 0;
        }
        self.token += 1;
        self.token
    }

    /// The messages that were put aside, and the last token that was given out for them, for changes, or before.
    pub(crate) fn take(&mut self) -> Option<(u64, Vec<Outgoing>)> {
        let has_more = !self.outgoing.is_empty() || self.handed != self.token;
        self.handed = self.token;
        has_more.then(|| (self.token, std::mem::take(&mut self.outgoing)))
    }

    /// The changes of records that were put aside.
    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }
}

/// Where it goes what a publication does to its topic's retained message; `None` where it does nothing.
pub(crate) const fn retained_to(retention: Retention) -> Option<Destination> {
    match retention {
        Retention::Stored | Retention::Cleared => Some(Destination::Retained {
            reached: NodeSet::EMPTY,
        }),
        // Of a clear that clears nothing NATS would keep an entry for each topic, and no limit counts these.
        Retention::Absent => Some(Destination::Absent),
        Retention::NotAsked | Retention::Refused | Retention::InvalidTopic => None,
    }
}

/// Which other nodes want what, for matching.
#[derive(Debug)]
pub(crate) struct WantedIndex {
    exact: HashMap<Arc<str>, Wanted, KeyedState>,
    wild: LevelTree<Wanted>,
}

impl WantedIndex {
    pub(crate) fn new(hashing: KeyedState) -> Self {
        Self {
            exact: HashMap::with_hasher(hashing),
            wild: LevelTree::new(hashing),
        }
    }

    pub(crate) fn set(&mut self, filter: &Arc<str>, is_wild: bool, wanted: Wanted) {
        match (is_wild, wanted == Wanted::NOBODY) {
            (false, false) => {
                self.exact.insert(Arc::clone(filter), wanted);
            }
            (false, true) => {
                self.exact.remove(filter);
            }
            (true, false) => *self.wild.get_or_insert_with(filter, Wanted::default) = wanted,
            (true, true) => {
                self.wild.remove(filter);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.wild.len() == 0
    }

    pub(crate) fn find(&self, topic: &str, scratch: &mut Scratch) -> Wanted {
        if stays(topic) {
            return Wanted::NOBODY;
        }
        let mut wanted = self.exact.get(topic).copied().unwrap_or_default();
        (self.wild).matching_topic(topic, scratch, |more| wanted = wanted.and(*more));
        wanted
    }
}

/// Which filters of this node's readers have changed, for other nodes.
#[derive(Debug, Default)]
pub(crate) struct OwnInterest {
    /// The interest that was told for each filter.
    told: FxHashMap<Arc<str>, Interest>,
    /// Filters that have changed, and whether a reader of QoS 1 or 2 has come.
    changed: FxHashMap<Arc<str>, bool>,
    /// Filters of sessions that have gone to other nodes since the last time.
    handed_over: FxHashSet<Arc<str>>,
}

impl OwnInterest {
    /// Notes that a reader of a filter has come or gone.
    pub(crate) fn note(&mut self, filter: &Arc<str>, acknowledged_has_come: bool) {
        if stays(filter) {
            return;
        }
        match self.changed.get_mut(filter) {
            Some(has_come) => *has_come |= acknowledged_has_come,
            None => {
                (self.changed).insert(Arc::clone(filter), acknowledged_has_come);
            }
        }
    }

    /// Notes that a session which wants a filter beyond its connection has gone to another node. It is told before
    /// that it was here, also where it has come and gone since the last time.
    pub(crate) fn hand_over(&mut self, filter: &Arc<str>) {
        self.note(filter, true);
        self.handed_over.insert(Arc::clone(filter));
    }

    /// Changes since the last time. The arguments tell whether a filter has a reader, and the interest of its most
    /// demanding reader.
    pub(crate) fn take(
        &mut self,
        mut has_reader: impl FnMut(&str) -> bool,
        mut highest: impl FnMut(&str) -> Interest,
    ) -> Vec<(Arc<str>, Interest)> {
        let mut changes = Vec::new();
        for (filter, has_come) in self.changed.drain() {
            let mut told = self.told.get(&filter).copied().unwrap_or_default();
            if self.handed_over.remove(&filter) && told != Interest::Durable {
                told = Interest::Durable;
                changes.push((Arc::clone(&filter), told));
            }
            // A crowd of readers is only walked where one of them may take QoS 1.
            let may_be_acknowledged = has_come || told >= Interest::Acknowledged;
            let interest = if !has_reader(&filter) {
                Interest::None
            } else if may_be_acknowledged {
                highest(&filter)
            } else {
                Interest::AtMostOnce
            };
            let is_known = interest == told;
            if interest == Interest::None {
                self.told.remove(&filter);
            } else {
                self.told.insert(Arc::clone(&filter), interest);
            }
            if !is_known {
                changes.push((filter, interest));
            }
        }
        changes
    }
}
