//! Rules of a kept queue beside its limits: failed deliveries, dead letters, priorities, delays.

use std::fmt;
use std::sync::Arc;

use crate::message::Message;

/// The priority of a message whose publisher gave none (AMQP 1.0, section 3.2.1).
pub const DEFAULT_PRIORITY: u8 = 4;

/// The highest priority.
pub(crate) const HIGHEST_PRIORITY: u8 = 9;

/// Why a message is a dead letter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeathCause {
    /// A consumer has rejected it.
    Rejected,
    /// As many deliveries as the queue allows have failed.
    MaximumDeliveries,
    /// As many deliveries as the queue allows have failed or were lost with their consumers.
    LostConnections,
}

impl DeathCause {
    /// The cause as text for consumers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::MaximumDeliveries => "maximum-deliveries",
            Self::LostConnections => "lost-connections",
        }
    }
}

/// Where a dead letter comes from and goes.
#[derive(Clone, Copy, Debug)]
pub struct DeadLetter<'a> {
    /// The topic that it is published to.
    pub topic: &'a str,
    /// The name of the queue that it comes from.
    pub queue: &'a str,
    /// Why it left the queue.
    pub cause: DeathCause,
    /// Deliveries that failed.
    pub failures: u16,
}

/// Reads what the protocols of a message say about its way through a queue. Any shard asks, within its
/// turn: the answers are quick, and always the same for the same message.
pub trait MessageReader: fmt::Debug + Send + Sync {
    /// Priority from 0 to 9; [`DEFAULT_PRIORITY`] where the publisher gave none.
    fn priority(&self, message: &Message) -> u8;

    /// The earliest time of delivery, in milliseconds since the Unix epoch; `None` for at once.
    fn due_ms(&self, message: &Message) -> Option<u64>;

    /// The message as it is published to the dead letters; `None` where it would be too large.
    fn dead_letter(&self, message: &Message, letter: &DeadLetter<'_>) -> Option<Message>;
}

/// The rules of a kept queue ([`Broker::keep_queue`](crate::Broker::keep_queue)).
#[derive(Clone, Debug)]
pub struct QueueRules {
    /// The queue's name, for its dead letters.
    pub name: Box<str>,
    /// Failed deliveries after which a message is a dead letter, at least 1; `None` for any number.
    pub maximum_deliveries: Option<u16>,
    /// The topic that dead letters are published to. With `None` a rejected message is dropped. So is one whose
    /// deliveries have failed too often as its consumers say; lost connections drop none.
    pub dead_letter: Option<Box<str>>,
    /// Whether messages of higher priority are delivered first.
    pub has_priorities: bool,
    /// Reads messages.
    pub reader: Arc<dyn MessageReader>,
}
