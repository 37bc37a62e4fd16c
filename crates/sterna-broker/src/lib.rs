//! The broker core: topics, routing, sessions, queues and the ledger, sans-IO.
//!
//! Each shard (one thread) has a [`Broker`]; all share a [`Directory`]. A broker does everything in the
//! caller's thread and turn, with the time it is given. Its messages for other shards are [`Mail`]; the
//! caller carries them, in order for each pair of shards.
//!
//! The road of a message, and where to find its parts:
//!
//! - `broker/publish.rs`: the publisher's shard matches it in its own replica of the index. It appends it to the
//!   queues of its own sessions, and to one letter per other shard. The index is `index.rs`: exact filters in a
//!   hash table, wildcards in a tree, `levels.rs`; recent topics in `cache.rs`.
//! - `queues.rs`: a queue, and the ledger of messages that were sent and not settled. Both are lists of nodes in
//!   chunks that all sessions share (`nodes.rs`, `ledger.rs`); an idle session has none.
//! - `sessions.rs`, `packed.rs`: a session that is away and has nothing in memory is a few dozen bytes. It is
//!   unpacked before anything happens to it. `routes.rs`: the routes that the index has at a filter.
//! - `broker/delivery.rs`: the front door takes what is ready, and settles it.
//! - `broker/subscribe.rs`: a subscription is an entry of the route log (`directory/log.rs`). Every shard applies
//!   the log before it matches, so the subscription is in force everywhere when the call returns.
//! - `name.rs`: a session's name, of a user and an identifier. Two users never meet in a session.
//! - `broker/takeover.rs`: a session moves between shards behind a fence, in order, without loss.
//! - `group.rs`, `broker/members.rs`: shared subscriptions, one queue on the shard that a hash of their filter
//!   picks. `choice.rs`: members that don't take every message. `selecting.rs`: the work that this takes. `broker/demand.rs`: members that say how many.
//!   `fill.rs`: how publishers of all shards know that a kept queue is full.
//! - `queue_rules.rs`: the rules of a kept queue beside keeping. `delayed.rs`: messages that are not due yet.
//!   `broker/dead_letter.rs`: messages that nobody could take. `broker/browse.rs`: a look at waiting messages.
//!   `broker/manage.rs`: views and changes for administrators.
//! - `outbox.rs`: the letters to other shards, and how far a shard may be ahead of them.
//! - `holding.rs`, `broker/holding.rs`: publishers that wait for a reader whose queue is half full.
//! - `losses.rs`: messages that a queue drops, and why; `watch.rs`: the way of single messages.
//! - `peers.rs`: the filters that other nodes of a cluster want, and the messages for them.
//! - `store.rs`: the state that survives a restart; `broker/restore.rs` takes it up again.
//!
//! A session that subscribes, and a message for it, on one shard:
//!
//! ```
//! use sterna_broker::{
//!     Broker, ConsumerId, Directory, Limits, Message, MessageHeader, NoStore, OpenSession, Opened, Outcome,
//!     Publication, Qos, SessionName, ShardId, SubscribeOptions,
//! };
//!
//! let (shards, seed, now_ms) = (1, 7, 0);
//! let directory = Directory::new(shards, Limits::default(), seed);
//! let mut broker: Broker<()> = Broker::new(ShardId(0), directory, Box::new(NoStore));
//! let dashboard = OpenSession {
//!     name: SessionName::new(None, "dashboard"),
//!     clean_start: true,
//!     expiry_s: 0,
//!     consumer: ConsumerId(1),
//!     will: None,
//!     on_demand: false,
//!     selector: None,
//! };
//! let opened = broker.open(now_ms, dashboard).expect("within the limits");
//! let Opened::Ready { session, .. } = opened else {
//!     return Err("another shard has it".into());
//! };
//! let qos = Qos::AtLeastOnce;
//! let options = SubscribeOptions { qos, ..SubscribeOptions::default() };
//! broker.subscribe(now_ms, session, "house/#", options).expect("a valid filter");
//!
//! let header = MessageHeader { qos, ..MessageHeader::default() };
//! let message = Message::copy("house/door", &[], b"open", header)?;
//! let routed = broker.publish(now_ms, Publication::new(None, message));
//! assert_eq!(routed.matched, 1);
//!
//! // A front door drains the sessions that are ready, and settles what its clients have acknowledged.
//! while let Some((_consumer, session)) = broker.next_ready() {
//!     while let Some(delivery) = broker.next_delivery(now_ms, session) {
//!         assert_eq!(delivery.message.payload(), b"open");
//!         broker.settle(now_ms, session, delivery.tag, Outcome::Accepted);
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Invariants: no input or output, no clock, no thread, no task. Nothing a client sends is walked
//! recursively, panics, or grows without one of the [`Limits`]. Per publisher, every queue gets
//! messages in the order they were published. A message and a subscription meet exactly once: live,
//! or as a retained copy.

mod account;
mod api;
mod attempts;
mod away;
mod broker;
mod cache;
mod check;
mod choice;
mod comeback;
mod copies;
mod counters;
mod cursor;
mod delayed;
mod directory;
mod encoded;
mod end_cause;
mod eras;
mod far_group;
mod fill;
mod filter;
mod group;
mod group_reader;
mod hash;
mod holding;
mod index;
mod ledger;
mod levels;
mod limits;
mod list;
mod losses;
mod mail;
mod message;
mod name;
mod needs;
mod nodes;
mod outbox;
mod owned;
mod packed;
mod peer_gate;
mod peers;
mod pressure;
mod queue_rules;
mod queues;
mod reads;
mod records;
mod rights;
mod route;
mod routes;
mod selecting;
mod session;
mod sessions;
mod store;
mod tail;
mod watch;
mod weight;
mod will;
mod window;

pub use api::{
    Close, CompanionRecord, Companions, ConsumerId, Delivery, DoorState, Event, EvictReason,
    MessageName, NEVER_EXPIRES_S, OpenError, OpenSession, Opened, Outcome, Publication,
    PublishRefusal, Publisher, QueueState, RetainHandling, Retention, Routed, Selector,
    SessionInfo, SessionKey, ShardId, SubscribeError, SubscribeOptions, Subscribed, Unacknowledged,
    Will, WillFate,
};
pub use attempts::HoldBack;
pub use broker::{
    Broker, LastingSession, LostRights, Next, Peeked, QueueChange, QueueInfo, QueueOwner, Reach,
    Restored, SessionBytes, SubscriptionInfo, SubscriptionPage, Wish,
};
pub use counters::Counters;
pub use directory::{Directory, Principal, Principals, network_of};
pub use encoded::{Encoded, EncodedPart, HEAD_ROOM_BYTES, Outbound, Recipients, messages_of};
pub use end_cause::EndCause;
pub use eras::{Era, Eras};
pub use far_group::{GroupLetter, LETTER_OVERHEAD_BYTES, Peer, group_of_letter, rewritten_letter};
pub use filter::is_of_broker;
pub use holding::CrowdedReader;
pub use limits::{Limits, QueueFull, RETAINED_MESSAGE_BYTES};
pub use losses::{Loss, LossReason, LossWatcher};
pub use mail::Mail;
pub use message::{
    InvalidMessage, MOST_GROUP_BYTES, Message, MessageDecoder, MessageEncoder, MessageHeader,
    MessageParts, NativeFormat, Origin, Qos, is_brief,
};
pub use name::SessionName;
pub use needs::{LogNeeds, NeededFilter, NeedsLimits, ReaderNeeds};
pub use owned::{ClaimRefusal, Ownership, delayed_will, is_will_delayed};
pub use peer_gate::PeerGate;
pub use peers::{
    Destination, FromPeer, Interest, MOST_TOGETHER, NodeSet, Once, Outgoing, Settles, Wanted,
};
pub use pressure::Pressure;
pub use queue_rules::{DEFAULT_PRIORITY, DeadLetter, DeathCause, MessageReader, QueueRules};
pub use records::{
    CarriedSession, RecordOf, Records, anchor_records, group_named, is_of_node, key_of_door,
    key_of_node, key_of_retained, key_of_shared, name_of, record_of, retained_message,
    retained_record, settle, shared_of,
};
pub use rights::{Endpoint, Holder, Permit, QUEUE_TOPICS, Right, Rights};
pub use store::{
    Appended, Change, Committed, Frame, Full, Keeping, NoStore, ReadAnswer, ReadRequest, Record,
    Share, Store,
};
pub use watch::{RoadWatcher, Step};
