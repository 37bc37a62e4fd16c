//! What must survive a restart, and the trait behind which it is kept.

use std::fmt;
use std::sync::Arc;

use crate::message::{Message, Qos, fnv1a};

/// Which part of the stored state a shard takes over when it starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// The shard that asks.
    pub shard: u16,
    /// How many there are.
    pub shards: u16,
}

impl Share {
    /// The shard that a name (client identifier, or shared subscription filter) belongs to while
    /// nothing else decides.
    #[must_use]
    pub fn home(name: &str, shards: u16) -> u16 {
        (fnv1a(name.as_bytes()) % u64::from(shards.max(1))) as u16
    }

    /// Whether the name falls into this share.
    #[must_use]
    pub fn holds(self, name: &str) -> bool {
        Self::home(name, self.shards) == self.shard
    }

    /// Whether this share has the retained messages (one shard loads them for all).
    #[must_use]
    pub const fn holds_retained(self) -> bool {
        self.shard == 0
    }
}

/// The queue an entry is in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum QueueName<'a> {
    /// A session's, by client identifier.
    Session(&'a str),
    /// A shared subscription's, by its whole filter (`$share/NAME/FILTER`).
    Group(&'a str),
}

/// How far the delivery of a stored entry has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Not yet sent.
    Pending,
    /// Sent, no answer yet.
    Sent,
    /// The receiver has taken it over (PUBREC); the message itself is no longer kept.
    HandedOver,
}

/// One message in a queue, as stored.
#[derive(Clone, Debug)]
pub struct StoredEntry {
    /// Names the entry within its queue; the tag of its delivery.
    pub tag: u64,
    /// The message; `None` once it was handed over.
    pub message: Option<Arc<Message>>,
    /// The level it is delivered at.
    pub qos: Qos,
    /// The retain flag it is delivered with.
    pub retain: bool,
    /// How far its delivery has come.
    pub phase: Phase,
    /// Subscription Identifiers to deliver with it.
    pub identifiers: Box<[u32]>,
    /// Attempts to deliver it that failed.
    pub failures: u16,
}

/// A subscription's options, as stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoredSubscription {
    /// Granted level.
    pub qos: Qos,
    /// Not to the publisher itself.
    pub no_local: bool,
    /// Keep the retain flag.
    pub retain_as_published: bool,
    /// Subscription Identifier.
    pub identifier: Option<u32>,
    /// The shared subscription's queue is kept.
    pub keep: bool,
}

/// A session, as loaded.
#[derive(Clone, Debug, Default)]
pub struct StoredSession {
    /// Client identifier.
    pub client_id: Box<str>,
    /// The user that it belongs to; `None` for clients without a name.
    pub user: Option<Box<str>>,
    /// Session Expiry Interval in seconds; 0xFFFF_FFFF never.
    pub expiry_s: u32,
    /// When it expires if it was away; `None` if a consumer was connected or it never does.
    pub expires_at_ms: Option<u64>,
    /// Topic filters (shared ones with their `$share/NAME/` prefix) and their options.
    pub subscriptions: Vec<(Box<str>, StoredSubscription)>,
    /// Sent entries in the order they were sent, then pending ones in the order of the queue.
    pub entries: Vec<StoredEntry>,
    /// The front door's last snapshot of its protocol state.
    pub protocol: Option<Box<[u8]>>,
}

/// What a shard finds when it starts.
#[derive(Clone, Debug, Default)]
pub struct Stored {
    /// Sessions of the share.
    pub sessions: Vec<StoredSession>,
    /// Queues of shared subscriptions of the share, by their whole filter.
    pub groups: Vec<(Box<str>, Vec<StoredEntry>)>,
    /// Retained messages, if the share holds them.
    pub retained: Vec<Arc<Message>>,
}

/// Keeps what must survive a restart: sessions that outlive their connection, their subscriptions,
/// their messages of QoS 1 and 2, and retained messages.
///
/// Each shard has its own handle on one store. Calls for one session come from one shard at a time,
/// in order. Calls record; they don't wait for a disk: an implementation that writes in the
/// background offers its own way to learn how far it has come.
pub trait Store: Send + fmt::Debug {
    /// A session of a user (`None`: of clients without a name) exists from now on, or goes on, with this
    /// expiry interval, and has a consumer. Its user stays the same until it has ended.
    fn session_opened(&mut self, client_id: &str, user: Option<&str>, expiry_s: u32);

    /// Its consumer is gone; it expires then, or never.
    fn session_closed(&mut self, client_id: &str, expiry_s: u32, expires_at_ms: Option<u64>);

    /// The session and everything it held is gone.
    fn session_ended(&mut self, client_id: &str);

    /// A subscription was added or replaced.
    fn subscribed(&mut self, client_id: &str, filter: &str, subscription: &StoredSubscription);

    /// A subscription was removed.
    fn unsubscribed(&mut self, client_id: &str, filter: &str);

    /// A retained message was set or replaced.
    fn retained_set(&mut self, message: &Arc<Message>);

    /// A retained message was cleared or expired.
    fn retained_cleared(&mut self, topic: &str);

    /// An entry was appended to a queue.
    fn enqueued(&mut self, queue: QueueName<'_>, entry: StoredEntry);

    /// An entry was sent (and follows all entries sent before), handed over, or released
    /// ([`Phase::Pending`]: it precedes all pending entries). A kept queue's entry is sent when a
    /// consumer is chosen for it.
    fn advanced(&mut self, queue: QueueName<'_>, tag: u64, phase: Phase);

    /// So many attempts to deliver an entry have failed by now. While it is in phase
    /// [`Phase::Sent`], the attempt under way is not counted; if the broker ends, it has failed.
    fn failed(&mut self, queue: QueueName<'_>, tag: u64, failures: u16);

    /// An entry was settled, expired or dropped.
    fn settled(&mut self, queue: QueueName<'_>, tag: u64);

    /// A shared subscription lost its last member.
    fn group_ended(&mut self, filter: &str);

    /// The front door's protocol state of a session.
    fn protocol_saved(&mut self, client_id: &str, snapshot: &[u8]);

    /// What there is of a share, at the start.
    fn load(&mut self, share: Share) -> Stored;

    /// Whether anything is kept at all; lets the broker skip the calls.
    fn is_durable(&self) -> bool {
        true
    }
}

/// Keeps nothing.
#[derive(Clone, Copy, Default, Debug)]
pub struct NoStore;

impl Store for NoStore {
    fn session_opened(&mut self, _: &str, _: Option<&str>, _: u32) {}
    fn session_closed(&mut self, _: &str, _: u32, _: Option<u64>) {}
    fn session_ended(&mut self, _: &str) {}
    fn subscribed(&mut self, _: &str, _: &str, _: &StoredSubscription) {}
    fn unsubscribed(&mut self, _: &str, _: &str) {}
    fn retained_set(&mut self, _: &Arc<Message>) {}
    fn retained_cleared(&mut self, _: &str) {}
    fn enqueued(&mut self, _: QueueName<'_>, _: StoredEntry) {}
    fn advanced(&mut self, _: QueueName<'_>, _: u64, _: Phase) {}
    fn failed(&mut self, _: QueueName<'_>, _: u64, _: u16) {}
    fn settled(&mut self, _: QueueName<'_>, _: u64) {}
    fn group_ended(&mut self, _: &str) {}
    fn protocol_saved(&mut self, _: &str, _: &[u8]) {}

    fn load(&mut self, _: Share) -> Stored {
        Stored::default()
    }

    fn is_durable(&self) -> bool {
        false
    }
}
