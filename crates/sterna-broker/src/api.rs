//! The words in which a front door and the broker talk.

use std::fmt;
use std::sync::Arc;

use crate::message::{Message, Qos};
use crate::route::Context;
use crate::store::Phase;

/// A shard, numbered from zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ShardId(pub u16);

/// Whoever reads a session's queue: the front door's name for a connection, opaque to the broker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ConsumerId(pub u64);

/// A session as opened by one consumer, on the shard that opened it. A later opening of the same
/// session gets another key, so calls of a consumer that was evicted do nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionKey {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) attendance: u32,
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}.{}.{}", self.slot, self.generation, self.attendance)
    }
}

/// Session Expiry Interval of a session that never expires (MQTT 5.0, section 3.1.2.11.2).
pub const NEVER_EXPIRES_S: u32 = u32::MAX;

/// What a consumer asks for when it connects.
#[derive(Debug)]
pub struct OpenSession<'a> {
    /// The client identifier, never empty (the front door assigns one where the client has none).
    pub client_id: &'a str,
    /// The user that the session belongs to, if it is new, and must belong to, if it exists; `None` for
    /// clients without a name, who are one user among themselves. It is the front door that has
    /// verified the name.
    pub user: Option<&'a str>,
    /// Whether to discard what there is. [MQTT-3.1.2-4]
    pub clean_start: bool,
    /// How long the session outlives the connection, in seconds; [`NEVER_EXPIRES_S`] for ever.
    pub expiry_s: u32,
    /// Who will read its queue.
    pub consumer: ConsumerId,
    /// What to publish when the connection is lost.
    pub will: Option<Will>,
    /// Whether shared subscriptions give it messages only as
    /// [`Broker::demand`](crate::Broker::demand) says (AMQP link-credit), instead of
    /// [`Limits::group_window`](crate::Limits::group_window) at a time.
    pub on_demand: bool,
    /// Which messages it wants; all, where there is none. Only such enter its queue, and shared
    /// subscriptions give it only such. It stays with the session until that is opened again; what
    /// waits then and isn't wanted any more is dropped. A store doesn't keep it: after a restart, a
    /// session has none until it is opened.
    pub selector: Option<Arc<dyn Selector>>,
}

/// Chooses messages for a consumer (the JMS selector filter of AMQP). It is asked on any shard,
/// within its turn: it must be quick, and always say the same of the same message.
pub trait Selector: fmt::Debug + Send + Sync {
    /// Whether the consumer wants the message.
    fn selects(&self, message: &Message) -> bool;
}

/// A will (MQTT 5.0, section 3.1.2.5).
#[derive(Debug)]
pub struct Will {
    /// What to publish; its times are set when it is.
    pub message: Message,
    /// Will Delay Interval in seconds.
    pub delay_s: u32,
    /// Message Expiry Interval in seconds, counted from its publication.
    pub expiry_s: Option<u32>,
}

/// The answer to `open`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opened {
    /// The session is here.
    Ready {
        /// Its key.
        session: SessionKey,
        /// Whether it existed before. [MQTT-3.2.2-2] [MQTT-3.2.2-3]
        present: bool,
    },
    /// Another shard has it and was asked to hand it over; [`Event::Opened`] follows. Until then
    /// the key serves only to `close`.
    Pending {
        /// Its key.
        session: SessionKey,
    },
}

/// Why a session could not be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenError {
    /// [`Limits::sessions`](crate::Limits::sessions) is reached (MQTT: Quota exceeded).
    TooManySessions,
    /// Another connection of this client came to another shard at the same moment and has taken the
    /// session over.
    TakenOver,
    /// [`Limits::will_bytes`](crate::Limits::will_bytes) is reached (MQTT: Quota exceeded).
    TooManyWills,
    /// The session belongs to another user, and was left as it is (MQTT: Not authorized).
    OtherUser,
    /// The will's topic is not a topic name within the limits (MQTT: Topic Name invalid).
    InvalidWillTopic,
}

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Close {
    /// What becomes of the will.
    pub will: WillFate,
    /// A new Session Expiry Interval in seconds, from the client's DISCONNECT.
    pub expiry_s: Option<u32>,
}

impl Close {
    /// The connection was lost, or closed because of an error.
    pub const LOST: Self = Self {
        will: WillFate::Publish,
        expiry_s: None,
    };
    /// The client said goodbye.
    pub const NORMAL: Self = Self {
        will: WillFate::Discard,
        expiry_s: None,
    };
}

/// What becomes of a will.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WillFate {
    /// Published, after its delay.
    Publish,
    /// Discarded. [MQTT-3.14.4-3]
    Discard,
}

/// When a subscription is sent the retained messages it matches (MQTT 5.0, section 3.8.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RetainHandling {
    /// At every subscribe.
    #[default]
    Always,
    /// Only if the subscription is new.
    IfNew,
    /// Never.
    Never,
}

/// A subscription's options.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SubscribeOptions {
    /// Highest level to deliver at.
    pub qos: Qos,
    /// Don't deliver what the same client published.
    pub no_local: bool,
    /// Keep the retain flag as it was published.
    pub retain_as_published: bool,
    /// When to send retained messages.
    pub retain_handling: RetainHandling,
    /// Subscription Identifier, 1 to 268,435,455.
    pub identifier: Option<u32>,
    /// Handed back with each delivery while this connection lasts: the stream that asked. Zero is
    /// no hint.
    pub hint: u64,
    /// Of a shared subscription: as long as one of its members asks for this, its queue is *kept*.
    /// Without meaning for others.
    ///
    /// - Messages of QoS 0 enter it as of QoS 1, and every delivery is at least of QoS 1, so that it
    ///   can be settled. They wait also while no member is connected.
    /// - When it is full ([`Limits::group_queued_messages`](crate::Limits::group_queued_messages),
    ///   [`Limits::group_queued_bytes`](crate::Limits::group_queued_bytes), or
    ///   [`Limits::message_bytes`](crate::Limits::message_bytes)), publications that match it are
    ///   refused: see [`Routed::refused`].
    /// - What was sent to a consumer and not settled goes back, in its place in the queue, when the
    ///   consumer's connection ends, whatever its level.
    pub keep: bool,
}

/// A subscription was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subscribed {
    /// The level granted.
    pub qos: Qos,
    /// Whether it replaced one with the same filter.
    pub existed: bool,
    /// Retained messages appended to the queue.
    pub retained: usize,
}

/// Why a subscription was not made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubscribeError {
    /// Not a valid filter, or longer or deeper than the limits (MQTT: Topic Filter invalid).
    InvalidFilter,
    /// No Local on a shared subscription (MQTT: Protocol Error). [MQTT-3.8.3-4]
    NoLocalOnShared,
    /// A limit on subscriptions, or on members of a group, is reached (MQTT: Quota exceeded).
    TooMany,
    /// The session is gone or its key outdated.
    NoSession,
    /// The rules don't allow it (MQTT: Not authorized).
    NotAllowed,
}

/// A message to route.
#[derive(Debug)]
pub struct Publication {
    /// The session that published it; `None` for the broker itself.
    pub origin: Option<SessionKey>,
    /// The message.
    pub message: Message,
}

/// What became of a publication.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Routed {
    /// Sessions and shared subscriptions it matched, on all shards. Zero is MQTT's "No matching
    /// subscribers".
    pub matched: usize,
    /// What it did to the retained messages.
    pub retention: Retention,
    /// A kept queue that it matched is full ([`SubscribeOptions::keep`]): it was delivered to
    /// nobody and retained nowhere, so the publisher may try again without making doubles (MQTT:
    /// Quota exceeded). A will that is refused is lost.
    ///
    /// Room is reserved before anything is delivered, on whichever shard the queue is, so a queue
    /// exceeds its limits only by what consumers give back, by messages that were on their way when
    /// it became a kept one, and by retained messages published at that moment. How many bytes all
    /// shards' messages take is looked at every 64 publications of a shard, or at a large one.
    pub refused: bool,
}

/// What a publication did to the retained messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Retention {
    /// Nothing, it did not ask for it.
    #[default]
    NotAsked,
    /// It is the topic's retained message now.
    Stored,
    /// The topic has none any more.
    Cleared,
    /// A limit forbade it (MQTT: Quota exceeded); it was delivered all the same.
    Refused,
    /// Not a topic name within the limits; it was not delivered either (MQTT: Topic Name invalid).
    InvalidTopic,
}

/// A message to send to a consumer.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Names it in `settle` and `handed_over`; zero at QoS 0, where there is nothing to settle.
    pub tag: u64,
    /// The message.
    pub message: Arc<Message>,
    /// The level to send it at.
    pub qos: Qos,
    /// The retain flag to send it with.
    pub retain: bool,
    /// Whether it was sent before. [MQTT-3.3.1-1]
    pub redelivered: bool,
    /// The stream whose subscription asked for it, if that is of this connection; otherwise zero.
    pub hint: u64,
    /// Attempts to deliver it that failed before this one: [`Outcome::Failed`], or the end of the
    /// connection that it was sent on. Stays at its maximum once there.
    pub failures: u16,
    pub(crate) context: Option<Arc<Context>>,
}

impl Delivery {
    /// Subscription Identifiers of all subscriptions that matched. [MQTT-3.3.4-3] [MQTT-3.3.4-4]
    #[must_use]
    pub fn identifiers(&self) -> &[u32] {
        self.context
            .as_ref()
            .map_or(&[], |context| &context.identifiers)
    }
}

/// An entry of the ledger: sent, and not yet settled.
#[derive(Clone, Debug)]
pub enum Unacknowledged {
    /// Sent; to be sent again after a reconnect, as redelivered.
    Sent(Delivery),
    /// Handed over (PUBREC): only the release is to be sent again. [MQTT-4.3.3-6]
    HandedOver {
        /// The delivery's tag.
        tag: u64,
    },
}

impl Unacknowledged {
    /// The delivery's tag.
    #[must_use]
    pub const fn tag(&self) -> u64 {
        match self {
            Self::Sent(delivery) => delivery.tag,
            Self::HandedOver { tag } => *tag,
        }
    }

    /// How far it is.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        match self {
            Self::Sent(_) => Phase::Sent,
            Self::HandedOver { .. } => Phase::HandedOver,
        }
    }
}

/// How a delivery ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The receiver has it.
    Accepted,
    /// The receiver refused it, with its reason; it is not sent again. [MQTT-4.4.0-2]
    /// [MQTT-4.8.2-6]
    Rejected(u8),
    /// The receiver gives it back: it goes to the front of the queue it came from.
    Released,
    /// As [`Released`](Self::Released), and counts as a failed attempt ([`Delivery::failures`]).
    Failed,
    /// As [`Failed`](Self::Failed), but not to this consumer again as long as its connection lasts:
    /// it goes to another member of the shared subscription, or waits until one comes. From a
    /// session's own queue it is dropped.
    Undeliverable,
}

/// What the broker tells the front door between calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The consumer has lost its session and is to be disconnected; `close` is not expected.
    Evicted {
        /// Who.
        consumer: ConsumerId,
        /// Why.
        reason: EvictReason,
    },
    /// What `open` left pending is done.
    Opened {
        /// Who opened it.
        consumer: ConsumerId,
        /// The session; the key is the one that `open` returned.
        session: SessionKey,
        /// Whether it existed before.
        present: bool,
    },
    /// Subscriptions of the session were ended for everybody
    /// ([`Broker::unsubscribe_all`](crate::Broker::unsubscribe_all)); what is queued because of them
    /// stays. [`Broker::filters`](crate::Broker::filters) says which it still has.
    Unsubscribed {
        /// Its consumer.
        consumer: ConsumerId,
        /// The session.
        session: SessionKey,
    },
    /// What [`Broker::drain`](crate::Broker::drain) asked for is done.
    Drained {
        /// Who asked.
        consumer: ConsumerId,
        /// Its session.
        session: SessionKey,
    },
}

/// Why a consumer lost its session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EvictReason {
    /// Another connection with the same client identifier. [MQTT-3.1.4-3]
    TakenOver,
    /// An administrator's wish.
    Administrative,
}

/// What a queue holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueState {
    /// Messages waiting.
    pub pending: usize,
    /// Bytes of their bodies.
    pub pending_bytes: u64,
    /// Messages sent and not settled.
    pub unacknowledged: usize,
}

/// A session as an administrator sees it.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// Client identifier.
    pub client_id: Arc<str>,
    /// The shard it is on.
    pub shard: ShardId,
    /// Its consumer, if connected.
    pub consumer: Option<ConsumerId>,
    /// Session Expiry Interval in seconds.
    pub expiry_s: u32,
    /// Its subscriptions.
    pub subscriptions: usize,
    /// Its queue.
    pub queue: QueueState,
}
