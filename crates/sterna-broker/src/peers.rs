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

use rustc_hash::{FxHashMap, FxHashSet};

use crate::api::Retention;
use crate::encoded::{Encoded, Outbound, Recipients};
use crate::hash::KeyedState;
use crate::levels::{LevelTree, Scratch};
use crate::message::{Message, MessageParts};
use crate::name::SessionName;
use crate::owned::Owned;
use crate::peer_gate::PeerGate;
use crate::store::Change;

/// Bytes that a message for other nodes is charged beside its body.
const OVERHEAD_BYTES: u64 = 64;

/// Memory for a turn's encoded messages that is there before it is needed, at most.
const FORESEEN_BYTES: usize = 256 << 10;

/// Bytes of encoded messages that may wait for the end of another turn, at most.
const MOST_WAITING_BYTES: usize = 64 << 10;

/// Most messages that go into a cluster's log as one.
pub const MOST_TOGETHER: usize = 1024;

/// A set of other nodes. Their numbers, 0 to 63, are given by who brings the messages to them, and mean
/// nothing elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct NodeSet(pub(crate) u64);

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
        let mut left = self.0;
        std::iter::from_fn(move || {
            let next = (left != 0).then(|| left.trailing_zeros() as usize);
            left &= left.wrapping_sub(1);
            next
        })
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
        charge(self.message.body_bytes())
    }
}

/// The destination of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// These nodes.
    Nodes(Recipients),
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
    /// The origin of its session's name, as a number.
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
        /// The session's name.
        name: SessionName,
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

/// Bytes that a message with a body of some bytes is charged with in a [`PeerGate`].
#[inline]
pub(crate) const fn charge(body_bytes: usize) -> u64 {
    body_bytes as u64 + OVERHEAD_BYTES
}

/// Whether messages of a topic, or of what a filter matches, stay on their node.
#[inline]
pub(crate) fn stays(topic: impl AsRef<[u8]>) -> bool {
    topic.as_ref().starts_with(b"$")
}

/// The messages and records that a shard has for other nodes.
#[derive(Debug)]
pub(crate) struct Peers {
    pub(crate) gate: Arc<PeerGate>,
    encoded: Encoded,
    /// Bytes of the last turn's: the next one is often about as large.
    encoded_bytes: usize,
    /// Whether they have waited for another turn.
    has_waited: bool,
    outgoing: Vec<Outgoing>,
    /// Bytes of this turn's messages, which the gate is told of at its end: it is one for all shards.
    charged: u64,
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
            encoded: Encoded::default(),
            encoded_bytes: 0,
            has_waited: false,
            outgoing: Vec::new(),
            charged: 0,
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
        !self.is_from_peer && !self.takes(message.body_bytes())
    }

    #[inline]
    fn takes(&self, body_bytes: usize) -> bool {
        self.gate.is_open() && self.has_room() && self.gate.is_small(body_bytes)
    }

    fn has_room(&self) -> bool {
        self.gate.has_room_above(self.charged)
    }

    pub(crate) fn note_crowded(&self) {
        self.gate.note_crowded();
    }

    pub(crate) fn count_refused(&self) {
        self.gate.count_refused();
    }

    /// Puts a message aside for the nodes that want it. Returns the token by which its acknowledgement
    /// waits; 0 where that need not wait.
    pub(crate) fn send(&mut self, message: &Arc<Message>, wanted: Wanted) -> u64 {
        let parts = message.parts();
        if let Some(token) = self.encode(parts, wanted) {
            return token;
        }
        let Some(recipients) = self.recipients(&parts, wanted) else {
            return 0;
        };
        let waits = !recipients.acknowledged.is_empty();
        self.push(message, Destination::Nodes(recipients), waits)
    }

    /// As [`send`](Self::send), for nodes that take encoded messages. `None` where one of them does not: nothing is done.
    #[inline]
    pub(crate) fn encode(&mut self, message: MessageParts<'_>, wanted: Wanted) -> Option<u64> {
        if self.gate.whole().meets(wanted.nodes()) {
            return None;
        }
        let Some(recipients) = self.recipients(&message, wanted) else {
            return Some(0);
        };
        let charge = charge(message.body_bytes());
        self.charged += charge;
        if self.encoded.is_empty() {
            let foreseen = self.encoded_bytes + self.encoded_bytes / 4;
            self.encoded = Encoded::with_room(foreseen.min(FORESEEN_BYTES));
        }
        let may_be_brief = self.gate.takes_brief();
        (self.encoded).push(message, recipients, charge, may_be_brief);
        Some(self.next_token(!recipients.acknowledged.is_empty()))
    }

    /// The nodes that a message goes to; `None` where it goes to none, and may be missed there.
    #[inline]
    fn recipients(&self, message: &MessageParts<'_>, wanted: Wanted) -> Option<Recipients> {
        if self.is_from_peer {
            return None;
        }
        let acknowledged = if message.qos().is_acknowledged() {
            wanted.acknowledged
        } else {
            NodeSet::EMPTY
        };
        let is_missed = if acknowledged.is_empty() {
            wanted.any.is_empty() || !self.takes(message.body_bytes())
        } else {
            // Messages that must arrive were let in before anything was done with them.
            false
        };
        if is_missed {
            self.gate.count_dropped(1);
            return None;
        }
        Some(Recipients {
            acknowledged,
            at_most_once: wanted.any.without(acknowledged),
        })
    }

    /// Puts a retained message, or its end, aside for all nodes; as [`send`](Self::send).
    pub(crate) fn retain(&mut self, message: &Arc<Message>, destination: Destination) -> u64 {
        if self.is_from_peer || stays(message.topic_bytes()) {
            return 0;
        }
        // Retained messages of QoS 0 wait for the engine, too, as long as there is room: nodes would not
        // agree otherwise.
        let has_room = self.has_room() && self.gate.is_small(message.body_bytes());
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
        if !stays(message.topic_bytes()) && self.gate.is_small(message.body_bytes()) {
            self.push(message, Destination::Restored, false);
        }
    }

    fn push(&mut self, message: &Arc<Message>, destination: Destination, waits: bool) -> u64 {
        self.charged += charge(message.body_bytes());
        self.outgoing.push(Outgoing {
            message: Arc::clone(message),
            destination,
            settles: None,
        });
        self.next_token(waits)
    }

    const fn next_token(&mut self, waits: bool) -> u64 {
        if !waits {
            return 0;
        }
        self.token += 1;
        self.token
    }

    /// Whether what was put aside may wait for the end of another turn. Of a burst of small messages the rest comes then,
    /// and a batch of all costs less than two.
    pub(crate) fn may_wait(&mut self) -> bool {
        let may_wait = !self.has_waited
            && !self.encoded.is_empty()
            && self.encoded.record_bytes() <= MOST_WAITING_BYTES
            && self.outgoing.is_empty()
            && self.changes.is_empty()
            && self.handed == self.token;
        self.has_waited = may_wait;
        may_wait
    }

    /// All that was put aside, and the last token that was given out for it, for changes, or before.
    pub(crate) fn take(&mut self) -> Option<Outbound> {
        self.has_waited = false;
        let has_messages = !self.outgoing.is_empty() || !self.encoded.is_empty();
        let has_more = has_messages || self.handed != self.token;
        self.handed = self.token;
        if !has_more {
            return None;
        }
        let charged = std::mem::take(&mut self.charged);
        self.gate.wait(charged);
        self.encoded_bytes = self.encoded.record_bytes();
        Some(Outbound {
            token: self.token,
            encoded: std::mem::take(&mut self.encoded),
            outgoing: std::mem::take(&mut self.outgoing),
        })
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

    /// Whether a filter without a wildcard is wanted.
    pub(crate) fn has(&self, filter: &str) -> bool {
        self.exact.contains_key(filter)
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
        if stays(&**filter) {
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
