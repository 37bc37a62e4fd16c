//! The broker core: topics, routing, sessions, queues and the ledger, sans-IO.

mod api;
mod broker;
mod cache;
mod counters;
mod directory;
mod filter;
mod group;
mod hash;
mod index;
mod levels;
mod limits;
mod list;
mod mail;
mod message;
mod nodes;
mod queues;
mod route;
mod session;
mod store;

pub use api::{
    Close, ConsumerId, Delivery, Event, EvictReason, NEVER_EXPIRES_S, OpenError, OpenSession,
    Opened, Outcome, Publication, QueueState, RetainHandling, Retention, Routed, SessionInfo,
    SessionKey, ShardId, SubscribeError, SubscribeOptions, Subscribed, Unacknowledged, Will,
    WillFate,
};
pub use broker::Broker;
pub use counters::Counters;
pub use directory::Directory;
pub use limits::{Limits, QueueFull};
pub use mail::Mail;
pub use message::{InvalidMessage, Message, MessageHeader, Origin, Qos};
pub use store::{
    NoStore, Phase, QueueName, Share, Store, Stored, StoredEntry, StoredSession, StoredSubscription,
};
