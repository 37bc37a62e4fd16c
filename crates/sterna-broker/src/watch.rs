//! The way of single messages, told to a watcher while there is one.

use std::fmt;

use crate::api::{Outcome, PublishRefusal};
use crate::message::{Message, Qos};
use crate::queues::Queues;

/// A step on a message's way. Losses of a queue are told to the [`LossWatcher`](crate::LossWatcher).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step<'a> {
    /// It was published, and matches N sessions and shared subscriptions on all shards.
    Received {
        /// Their number.
        matched: usize,
        /// Number of those sessions that are away. Messages of QoS 1 and 2 wait for them in the log.
        away: usize,
    },
    /// It was published and refused.
    Refused(PublishRefusal),
    /// It waits in a queue.
    Queued {
        /// Owner of the queue: the text of a session's name, or the whole filter of a shared subscription.
        reader: &'a str,
        /// Messages that wait there, with this one.
        waiting: usize,
    },
    /// It waits in the log, until its reader has read up to it.
    Logged {
        /// The text of the session's name.
        reader: &'a str,
    },
    /// A consumer's front door has taken it, to send it.
    Sent {
        /// The text of the session's name.
        reader: &'a str,
        /// The QoS that it is sent with.
        qos: Qos,
        /// Whether it was sent before.
        redelivered: bool,
    },
    /// A delivery of it has ended.
    Settled {
        /// The text of the session's name.
        reader: &'a str,
        /// How.
        outcome: Outcome,
    },
}

/// Is told of each step of each message of a shard.
pub trait RoadWatcher: Send + fmt::Debug {
    /// A message has come one step further.
    fn saw(&self, message: &Message, step: Step<'_>);
}

impl<P> Queues<P> {
    /// Tells the watcher of a step, if there is one. Without one this is a branch.
    pub(crate) fn saw(&self, message: &Message, step: Step<'_>) {
        if let Some(road) = &self.road {
            road.saw(message, step);
        }
    }
}
