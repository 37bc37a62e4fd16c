//! The types that a front door and the broker exchange.

use core::net::IpAddr;
use core::net::SocketAddr;
use std::fmt;
use std::sync::Arc;

use crate::attempts::Failures;
use crate::end_cause::EndCause;
use crate::message::{Message, Qos};
use crate::name::SessionName;
use crate::peers::Once;
use crate::route::Context;

/// A shard, numbered from zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ShardId(pub u16);

/// The reader of a session's queue: the front door's number for a connection, opaque to the broker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ConsumerId(pub u64);

/// A session as opened by one consumer, on the shard that opened it.
///
/// A later opening of the same session gets another key: calls of an evicted consumer do nothing.
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

/// A front door's own state of a session in the broker.
pub trait DoorState: Default + Send {
    /// Whether the session's next consumer may find the default instead. Then nothing is kept of it while the
    /// session is away.
    fn is_idle(&self) -> bool;

    /// About the bytes that it takes on the heap while the session is away.
    fn lasting_bytes(&self) -> usize {
        0
    }

    /// Forgets a delivery that was sent and is not settled, while the session is away: its place in the log and its tag.
    /// The next consumer gets the message from there, as after a restart. False where the state needs it as it is.
    fn forget_sent(&mut self, place: u64, tag: u64) -> bool {
        let _ = (place, tag);
        false
    }
}

impl DoorState for () {
    fn is_idle(&self) -> bool {
        true
    }

    fn forget_sent(&mut self, _: u64, _: u64) -> bool {
        true
    }
}

/// An empty list is idle.
impl<T: Send> DoorState for Vec<T> {
    fn is_idle(&self) -> bool {
        self.is_empty()
    }
}

/// Session Expiry Interval of a session that never expires (MQTT 5.0, section 3.1.2.11.2).
pub const NEVER_EXPIRES_S: u32 = u32::MAX;

/// The request of a consumer to open its session.
#[derive(Debug)]
pub struct OpenSession {
    /// The user, verified by the front door, and the client identifier. That is never empty: the front door assigns
    /// one to a client without one.
    pub name: SessionName,
    /// Whether to discard an existing session. [MQTT-3.1.2-4]
    pub clean_start: bool,
    /// Seconds for which the session outlives the connection; [`NEVER_EXPIRES_S`] for ever.
    pub expiry_s: u32,
    /// The reader of its queue.
    pub consumer: ConsumerId,
    /// The will, published when the connection is lost; `None` for no will.
    pub will: Option<Will>,
    /// Whether shared subscriptions send only on [`Broker::demand`](crate::Broker::demand)
    /// (AMQP link-credit). Otherwise they send up to
    /// [`Limits::group_window`](crate::Limits::group_window) messages at a time.
    pub on_demand: bool,
    /// The filter on messages, for its queue and its shared subscriptions; `None` selects all.
    ///
    /// It stays with the session until the next opening, which drops waiting messages that the new
    /// selector excludes. A store doesn't keep it: a restored session has none until it is opened.
    pub selector: Option<Arc<dyn Selector>>,
}

/// Chooses messages for a consumer (the JMS selector filter of AMQP).
///
/// Any shard calls it within its turn. It must give the same answer for the same message each time.
pub trait Selector: fmt::Debug + Send + Sync {
    /// Returns whether the consumer receives the message, and adds its work to `steps`: each is some nanoseconds.
    /// `None` where it would take more than may be done for one consumer and message. Then the consumer is let go
    /// ([`EvictReason::SelectorTooDear`]).
    fn selects(&self, message: &Message, steps: &mut u64) -> Option<bool>;
}

/// A will (MQTT 5.0, section 3.1.2.5).
#[derive(Debug)]
pub struct Will {
    /// The message; its times are set at publication.
    pub message: Message,
    /// Will Delay Interval in seconds.
    pub delay_s: u32,
    /// Message Expiry Interval in seconds, counted from publication; `None` for no expiry.
    pub expiry_s: Option<u32>,
    /// Whether it is allowed by rights alone that came with the client
    /// ([`Rights::still_publishes`](crate::Rights::still_publishes)).
    pub is_given: bool,
    /// Whether its client may be a replay. Then a store is told of it by [`Broker::keep_will`](crate::Broker::keep_will)
    /// alone.
    pub is_unproved: bool,
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
    /// Another shard has the session and was asked to hand it over, or other nodes are asked for it.
    /// [`Event::Opened`] follows, or [`Event::Evicted`]. Until then the key is valid for `close` only.
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
    /// Another connection of this client, on another shard, has taken the session over meanwhile.
    TakenOver,
    /// [`Limits::will_bytes`](crate::Limits::will_bytes) is reached (MQTT: Quota exceeded).
    TooManyWills,
    /// The will's topic is not a topic name within the limits (MQTT: Topic Name invalid).
    InvalidWillTopic,
    /// The session is to outlive its connection, and the store has no room for it, or can write nothing
    /// (MQTT: Quota exceeded).
    StoreFull,
    /// The will is larger than what other nodes of the cluster can keep (MQTT: Packet too large).
    WillTooLarge,
    /// The session outlives its connection, and this node of a cluster is not sure of its sessions
    /// (MQTT: Server unavailable).
    ClusterAway,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooManySessions => "the limit of sessions is reached",
            Self::TakenOver => "another connection has taken the session over",
            Self::TooManyWills => "the limit of wills is reached",
            Self::InvalidWillTopic => "the will has an invalid topic",
            Self::StoreFull => "the store has no room for the session",
            Self::WillTooLarge => "the will is larger than the cluster keeps",
            Self::ClusterAway => "the node is not sure of its sessions",
        })
    }
}

impl std::error::Error for OpenError {}

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Close {
    /// Whether the will is published.
    pub will: WillFate,
    /// A new Session Expiry Interval in seconds, from the client's DISCONNECT; `None` for no change.
    pub expiry_s: Option<u32>,
    /// Why it ended.
    pub cause: EndCause,
}

impl Close {
    /// The connection was lost.
    pub const LOST: Self = Self::of(EndCause::Lost);
    /// The client ended the connection in order (DISCONNECT).
    pub const NORMAL: Self = Self::of(EndCause::Client);

    /// An end with this cause. The will is discarded only where the client ends in order. [MQTT-3.1.2-10]
    #[must_use]
    pub const fn of(cause: EndCause) -> Self {
        let will = match cause {
            EndCause::Client => WillFate::Discard,
            _ => WillFate::Publish,
        };
        Self {
            will,
            expiry_s: None,
            cause,
        }
    }
}

/// The fate of a will.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WillFate {
    /// Published, after its delay.
    Publish,
    /// Discarded. [MQTT-3.14.4-3]
    Discard,
}

/// When the broker sends matching retained messages for a subscription (MQTT 5.0, section 3.8.3.1).
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
    /// Maximum QoS of deliveries.
    pub qos: Qos,
    /// Don't deliver messages that the same client published.
    pub no_local: bool,
    /// Keep the retain flag as it was published.
    pub retain_as_published: bool,
    /// When to send retained messages.
    pub retain_handling: RetainHandling,
    /// Subscription Identifier, 1 to 268,435,455.
    pub identifier: Option<u32>,
    /// The stream that subscribed, returned with each delivery on this connection; 0 for none.
    pub hint: u64,
    /// Shared subscriptions only: the queue is *kept* as long as one member sets this.
    ///
    /// - Messages of QoS 0 are raised to QoS 1, so that each delivery can be settled. They wait
    ///   also while no member is connected.
    /// - When it is full ([`Limits::group_queued_messages`](crate::Limits::group_queued_messages),
    ///   [`Limits::group_queued_bytes`](crate::Limits::group_queued_bytes), or
    ///   [`Limits::message_bytes`](crate::Limits::message_bytes)), matching publications are
    ///   refused: see [`Routed::refused`].
    /// - Unsettled messages return to their place in the queue when the consumer's connection ends,
    ///   at every QoS.
    pub keep: bool,
}

/// A subscription was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subscribed {
    /// The granted QoS.
    pub qos: Qos,
    /// Whether it replaced a subscription with the same filter.
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
    /// A limit on subscriptions, or on members of a group, is reached. Or a cluster keeps no more of one session
    /// (MQTT: Quota exceeded).
    TooMany,
    /// The session outlives its connection, and the store has no room for another record (MQTT: Quota exceeded).
    StoreFull,
    /// The session is gone or its key outdated.
    NoSession,
    /// The authorization rules deny it (MQTT: Not authorized).
    NotAllowed,
    /// A session is to keep a queue on a node of a cluster, where nodes do
    /// ([`Broker::declare_queue`](crate::Broker::declare_queue); MQTT: Shared Subscriptions not supported).
    NoQueueInCluster,
}

impl fmt::Display for SubscribeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InvalidFilter => "the filter is invalid",
            Self::NoLocalOnShared => "a shared subscription cannot have No Local",
            Self::TooMany => "the limit of subscriptions is reached",
            Self::StoreFull => "the store has no room for the subscription",
            Self::NoSession => "the session is gone",
            Self::NotAllowed => "the rules deny the subscription",
            Self::NoQueueInCluster => "a queue of a cluster is kept by its nodes",
        })
    }
}

impl std::error::Error for SubscribeError {}

/// A message to route.
#[derive(Debug)]
pub struct Publication<'a> {
    /// The session that published it; `None` for the broker itself, and for a [`publisher`](Self::publisher) without one.
    pub origin: Option<SessionKey>,
    /// The client that published it, where it has no session for that.
    pub publisher: Option<Publisher<'a>>,
    /// The message.
    pub message: Message,
    /// Its record and name, which are kept together with it.
    pub companions: Companions<'a>,
}

impl Publication<'_> {
    /// A message alone.
    #[must_use]
    pub fn new(origin: Option<SessionKey>, message: Message) -> Self {
        Self {
            origin,
            publisher: None,
            message,
            companions: Companions::default(),
        }
    }
}

/// A client that publishes without a session: who is charged with what is retained of it
/// ([`Principals`](crate::Principals)).
#[derive(Clone, Copy, Default, Debug)]
pub struct Publisher<'a> {
    /// Its user.
    pub user: Option<&'a str>,
    /// Its address.
    pub address: Option<IpAddr>,
}

/// A record and a name that are kept together with a message, or not at all. Where the message is not appended, nothing is
/// kept.
#[derive(Clone, Copy, Default, Debug)]
pub struct Companions<'a> {
    /// A record of whoever publishes it.
    pub record: Option<CompanionRecord<'a>>,
    /// Its name in a cluster. So one that is sent again to another node is the same message.
    pub name: Option<MessageName<'a>>,
}

/// A record that is kept together with a message.
#[derive(Clone, Copy, Debug)]
pub enum CompanionRecord<'a> {
    /// Of a session, by a key that the front door chooses. Nothing is kept of a session that ends with its connection.
    Session {
        /// The session.
        session: SessionKey,
        /// The key.
        key: &'a [u8],
        /// The value.
        value: &'a [u8],
    },
    /// Of the node. In a cluster, which has no such records, nothing is kept.
    Node {
        /// The key.
        key: &'a [u8],
        /// The value.
        value: &'a [u8],
    },
    /// That a delivery ends. Where the messages are not refused,
    /// [`settle_for_good`](crate::Broker::settle_for_good) with the same outcome is to follow.
    Ended {
        /// The session that has the delivery.
        session: SessionKey,
        /// The delivery's tag.
        tag: u64,
        /// How it ends.
        outcome: Outcome,
    },
}

/// The name of a message in a cluster.
#[derive(Clone, Copy, Debug)]
pub enum MessageName<'a> {
    /// By its packet identifier, and by the number of such messages from the session.
    Counted {
        /// The session that publishes it.
        session: SessionKey,
        /// The packet identifier.
        packet_id: u16,
    },
    /// The same, of a message that goes by the cluster's log, also where nobody wants it. So the record that goes with it
    /// is kept for sure.
    Logged {
        /// The session that publishes it.
        session: SessionKey,
        /// A number that a repetition of the message has, too.
        number: u16,
    },
    /// This one, of a message that goes by the cluster's log, also where nobody wants it. So one append decides whether it
    /// was published, whichever node tries.
    Given {
        /// The name.
        once: Once,
        /// The key and value of a record of the whole cluster; `None` where there is none. The entry tells of it, and it
        /// is kept behind the entry ([`keep_shared`](crate::Broker::keep_shared)).
        record: Option<(&'a [u8], &'a [u8])>,
    },
}

/// The result of a publication.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Routed {
    /// Number of matching sessions and shared subscriptions, on all shards. 0 is "No matching
    /// subscribers" in MQTT. A session that reads the log counts once for each matching filter. Other
    /// nodes count once each.
    pub matched: usize,
    /// Its effect on the topic's retained message.
    pub retention: Retention,
    /// The token of what was appended to the store for it; zero for nothing. An acknowledgement that
    /// promises to keep the message waits until that is [committed](crate::Broker::committed).
    pub token: u64,
    /// Why it was refused as a whole; `None` where it was not.
    ///
    /// A refused message was neither delivered nor retained: the publisher can retry without duplicates.
    /// A refused will is lost.
    ///
    /// Room is reserved in all matching kept queues before the first delivery. A queue exceeds its
    /// limits only by:
    ///
    /// - messages that consumers give back,
    /// - messages that were on their way when the queue became a kept one,
    /// - retained messages published at that moment.
    ///
    /// The bytes of all shards' messages are checked at every 64th publication of a shard that is for its node, and at
    /// each large one.
    pub refused: Option<PublishRefusal>,
}

impl Routed {
    /// Whether it was refused as a whole.
    #[must_use]
    pub const fn is_refused(&self) -> bool {
        self.refused.is_some()
    }
}

/// Why a publication was refused as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PublishRefusal {
    /// A matching kept queue is full ([`SubscribeOptions::keep`]; MQTT: Quota exceeded).
    QueueFull,
    /// The store has no room (MQTT: Quota exceeded).
    StoreFull,
    /// Other nodes want it for sure, or nobody knows yet whether they do, and it cannot be brought to them now (MQTT:
    /// Implementation specific error).
    ClusterAway,
}

impl PublishRefusal {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::QueueFull, Self::StoreFull, Self::ClusterAway];

    /// The explanation for the publisher.
    #[must_use]
    pub const fn detail(self) -> &'static str {
        match self {
            Self::QueueFull => {
                "a queue that the message belongs to is full (broker.maximum_group_queued_messages and the settings \
                 beside it); it went nowhere"
            }
            Self::StoreFull => {
                "the store has no room (store.maximum_bytes, store.minimum_free_bytes, or the disk); the message went \
                 nowhere"
            }
            Self::ClusterAway => {
                "other nodes want the message, or may, and it cannot be brought to them; it went nowhere"
            }
        }
    }

    /// Its name in metrics, traces and spans.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_refused",
            Self::StoreFull => "store_full",
            Self::ClusterAway => "cluster_away",
        }
    }
}

/// The effect of a publication on its topic's retained message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Retention {
    /// None: the publication has no retain flag.
    #[default]
    NotAsked,
    /// It is now the topic's retained message.
    Stored,
    /// The topic's retained message was removed.
    Cleared,
    /// There was none to remove.
    Absent,
    /// A limit is reached (MQTT: Quota exceeded); the message was delivered, but not retained.
    Refused,
    /// The topic name is invalid or beyond the limits (MQTT: Topic Name invalid); the message was
    /// not delivered.
    InvalidTopic,
}

/// A message to send to a consumer.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Its identifier for `settle` and `handed_over`; 0 at QoS 0, which has no acknowledgement.
    pub tag: u64,
    /// The message.
    pub message: Arc<Message>,
    /// The QoS to send it with.
    pub qos: Qos,
    /// The retain flag to send it with.
    pub retain: bool,
    /// Whether it was sent before. [MQTT-3.3.1-1]
    pub redelivered: bool,
    /// The stream of the matching subscription, if it is of this connection; otherwise 0.
    pub hint: u64,
    /// Number of failed attempts to deliver it before this one; it saturates.
    ///
    /// An attempt fails by [`Outcome::Failed`]. With [`Limits::counts_lost`](crate::Limits::counts_lost) it also does where
    /// the consumer's connection is lost.
    pub failures: u16,
    /// The same, as queues know it.
    pub(crate) known_failures: Failures,
    /// The message's place in the log, the same after a restart; 0 where it is not there.
    pub position: u64,
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
        /// See [`Delivery::position`].
        position: u64,
    },
}

impl Unacknowledged {
    /// The message's place in the log; see [`Delivery::position`].
    #[must_use]
    pub const fn position(&self) -> u64 {
        match self {
            Self::Sent(delivery) => delivery.position,
            Self::HandedOver { position, .. } => *position,
        }
    }

    /// The delivery's tag.
    #[must_use]
    pub const fn tag(&self) -> u64 {
        match self {
            Self::Sent(delivery) => delivery.tag,
            Self::HandedOver { tag, .. } => *tag,
        }
    }

    /// Whether the receiver has taken the message over (PUBREC).
    #[must_use]
    pub const fn is_handed_over(&self) -> bool {
        matches!(self, Self::HandedOver { .. })
    }
}

/// How a delivery ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The receiver has it.
    Accepted,
    /// The receiver refused it, with its reason code; it is not sent again. [MQTT-4.4.0-2]
    /// [MQTT-4.8.2-6]
    Rejected(u8),
    /// The receiver returns it: it goes to the front of its queue.
    Released,
    /// Like [`Released`](Self::Released), and counts as a failed attempt ([`Delivery::failures`]).
    Failed,
    /// Like [`Failed`](Self::Failed), but never again for this connection.
    ///
    /// It goes to another member of the shared subscription, or waits for one. From a session's own
    /// queue it is dropped.
    Undeliverable,
    /// Like [`Undeliverable`](Self::Undeliverable), and does not count as a failed attempt.
    Declined,
}

/// An event that the broker reports to the front door between calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The consumer has lost its session: disconnect it, without a call of `close`.
    Evicted {
        /// The consumer.
        consumer: ConsumerId,
        /// The reason.
        reason: EvictReason,
        /// The client that has taken the session over, where it is one of this process.
        by: Option<SocketAddr>,
    },
    /// An opening that returned [`Opened::Pending`] is complete.
    Opened {
        /// The consumer that opened it.
        consumer: ConsumerId,
        /// The session; the key is the one that `open` returned.
        session: SessionKey,
        /// Whether it existed before.
        present: bool,
    },
    /// The broker ended subscriptions of the session
    /// ([`Broker::unsubscribe_all`](crate::Broker::unsubscribe_all)). Messages that they queued stay.
    /// [`Broker::filters`](crate::Broker::filters) lists the remaining ones.
    Unsubscribed {
        /// Its consumer.
        consumer: ConsumerId,
        /// The session.
        session: SessionKey,
    },
    /// Subscriptions of the session have lost their right. They get nothing until it is back
    /// ([`Broker::judge`](crate::Broker::judge)).
    LostRight {
        /// Its consumer.
        consumer: ConsumerId,
        /// The session.
        session: SessionKey,
    },
    /// A call of [`Broker::drain`](crate::Broker::drain) is complete.
    Drained {
        /// The consumer that asked.
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
    /// An administrator ended the session.
    Administrative,
    /// The session was to begin, and it could not be found out whether another node has it.
    ClusterAway,
    /// The session was to outlive its connection from now on, and the store has no room for it (MQTT: Quota exceeded).
    StoreFull,
    /// The state of the session is more than the cluster keeps of one (MQTT: Quota exceeded).
    TooLarge,
    /// The store is nearly full, and the session holds most of its log (MQTT: Quota exceeded).
    FarBehind,
    /// Its selector takes too much work for one message ([`Selector::selects`]).
    SelectorTooDear,
    /// Memory is short, and the session holds most of it (MQTT: Quota exceeded).
    MemoryShort,
}

/// The content of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueState {
    /// Messages that wait in memory.
    pub pending: usize,
    /// Bytes of their bodies.
    pub pending_bytes: u64,
    /// Whether there may be more in the log: the session has not read to its end.
    pub has_more_in_log: bool,
    /// Messages sent and not settled.
    pub unacknowledged: usize,
}

/// A session as an administrator sees it.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// Its name.
    pub name: SessionName,
    /// The shard it is on.
    pub shard: ShardId,
    /// Its consumer, if connected.
    pub consumer: Option<ConsumerId>,
    /// Session Expiry Interval in seconds.
    pub expiry_s: u32,
    /// When it ends, in milliseconds since the Unix epoch; `None` while it is connected, or if it never
    /// does.
    pub expires_at_ms: Option<u64>,
    /// Its subscriptions.
    pub subscriptions: usize,
    /// Its queue.
    pub queue: QueueState,
}
