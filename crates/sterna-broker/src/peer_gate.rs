//! A gate between shards and the engine that brings their messages to other nodes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::message::Message;
use crate::peers::{MOST_TOGETHER, NodeSet, charge};

/// Whether messages for other nodes are taken: one for all shards of a process and for the engine that brings them there.
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
    takes_brief: AtomicBool,
    full: AtomicU64,
    whole: AtomicU64,
}

impl PeerGate {
    /// A gate that is shut, while nobody knows what other nodes want. `maximum_bytes` is how many bytes of messages
    /// may wait behind it, and before it for this node's shards. One turn of each shard may go above.
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
            takes_brief: AtomicBool::new(false),
            full: AtomicU64::new(0),
            whole: AtomicU64::new(0),
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

    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the queue of a reader has been half full since the last call, and has taken more. The next
    /// messages are better brought a little later, for one that is full drops them.
    pub fn take_crowded(&self) -> bool {
        self.is_crowded.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn note_crowded(&self) {
        self.is_crowded.store(true, Ordering::Relaxed);
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

    /// Whether some messages can go into the log as one.
    pub(crate) fn takes_together(&self, messages: &[Message]) -> bool {
        let bodies = messages.iter().map(Message::body_bytes);
        let bytes: u64 = bodies.map(charge).sum();
        (2..=MOST_TOGETHER).contains(&messages.len()) && bytes <= self.largest_body_bytes()
    }

    /// Says whether records of messages may be brief: what brings them to other nodes has room for a whole one and all
    /// that may be behind it. All are whole until then.
    pub fn set_takes_brief(&self, takes_brief: bool) {
        self.takes_brief.store(takes_brief, Ordering::Relaxed);
    }

    /// Whether records of messages may be brief.
    #[must_use]
    pub fn takes_brief(&self) -> bool {
        self.takes_brief.load(Ordering::Relaxed)
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

    /// Sets the nodes that are handed each message by itself: what goes to others alone is [`Encoded`](crate::Encoded).
    pub fn set_whole(&self, nodes: NodeSet) {
        self.whole.store(nodes.0, Ordering::Relaxed);
    }

    pub(crate) fn whole(&self) -> NodeSet {
        NodeSet(self.whole.load(Ordering::Relaxed))
    }

    /// Whether more may wait, where some bytes are about to.
    pub(crate) fn has_room_above(&self, bytes: u64) -> bool {
        self.waiting_bytes() + bytes < self.maximum_bytes
    }

    pub(crate) fn wait(&self, bytes: u64) {
        self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes that bytes wait no longer.
    pub fn release(&self, bytes: u64) {
        self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Notes a message of another node that is on its way to a shard of this one.
    pub fn arrives(&self, message: &Message) {
        self.arrive_encoded(charge(message.body_bytes()));
    }

    /// Notes some bytes of encoded messages of another node that are on their way to a shard of this one.
    pub fn arrive_encoded(&self, bytes: u64) {
        (self.arriving_bytes).fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether this node's shards are behind: what may be missed is better dropped, and all else waits elsewhere.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.arriving_bytes.load(Ordering::Relaxed) >= self.maximum_bytes
    }

    pub(crate) fn has_arrived(&self, message: &Message) {
        self.have_arrived_encoded(charge(message.body_bytes()));
    }

    pub(crate) fn have_arrived_encoded(&self, bytes: u64) {
        let left = |arriving: u64| Some(arriving.saturating_sub(bytes));
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

    pub(crate) fn largest_body_bytes(&self) -> u64 {
        self.largest_body_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn is_small(&self, body_bytes: usize) -> bool {
        body_bytes as u64 <= self.largest_body_bytes()
    }
}
