//! The messaging layer (AMQP 1.0, part 3): messages and their sections, sources and targets,
//! delivery states.

mod filter;
mod sections;
mod state;
mod terminus;
mod view;
mod write;

pub use filter::{Filter, Filters, descriptor};
pub use sections::{Header, MessageId, Properties};
pub use state::{
    Accepted, DeliveryState, DeliveryStateBuf, Modified, Outcome, Received, Rejected, Released,
};
pub use terminus::{
    DistributionMode, LifetimePolicy, Source, Target, TargetArchetype, TerminusDurability,
    TerminusExpiryPolicy,
};
pub use view::{Body, MessageView, Section, SectionKind, Sections};
pub use write::MessageWriter;

/// Capabilities of termini that brokers know by these names.
pub mod capability {
    /// The node is a queue.
    pub const QUEUE: &str = "queue";
    /// The node is a topic.
    pub const TOPIC: &str = "topic";
    /// The subscription has several consumers.
    pub const SHARED: &str = "shared";
    /// The subscription belongs to no client.
    pub const GLOBAL: &str = "global";
    /// The node lasts as long as the connection, and is a queue.
    pub const TEMPORARY_QUEUE: &str = "temporary-queue";
    /// The node lasts as long as the connection, and is a topic.
    pub const TEMPORARY_TOPIC: &str = "temporary-topic";
    /// Of a connection or link: messages wait for the time that `x-opt-delivery-time` says, as JMS clients write it.
    pub const DELAYED_DELIVERY: &str = "DELAYED_DELIVERY";
}
