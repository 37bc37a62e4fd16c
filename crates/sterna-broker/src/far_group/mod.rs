//! Shared subscriptions whose members are on several nodes of a cluster.
//!
//! A group of a cluster has a *branch* on each node with members, and one *root* in the cluster. The root is a
//! session without a client, which subscribes to the group's topics. So it has all that a session has when it
//! outlives its connection. One node owns it, with a fencing epoch. It reads the cluster's log, and its unsettled
//! messages are kept. When its node is gone, another one has it.
//!
//! The root gives each message to one branch. The branch gives it to one of its members, by the queue that a group
//! has on one node. A branch says up to which number of messages it takes, as a receiver of AMQP does. It returns
//! at once the messages that its members do not take, so nothing waits in it.
//!
//! Between the two, messages have the names that the log gives them: their positions. A branch *attends* anew when
//! it hears of another root, or was not sure that its node is in the cluster. It then tells which messages its
//! members hold, and the root answers which of them have been given to others meanwhile. A new root first waits for
//! the branches that its predecessor had given messages to. It gives nothing before it has heard from each of them,
//! or their processes are no longer sure of anything.
//!
//! A queue of AMQP is such a group. Its root has a queue as a group has on one node. That has an order, priorities,
//! messages that are not due, dead letters and limits. The session of the root brings it the messages of the log,
//! and its members are the branches. Messages that members do not take, or reject, go back to the root, because it
//! alone knows the queue as a whole. Each node that knows the queue has a branch, also without a member.
//!
//! Letters between nodes arrive in order and once, or their node is gone ([`GroupLetter`]).

mod branch;
mod letter;
mod queue;
mod root;

use std::sync::Arc;

pub(crate) use branch::{Branches, Owner};
pub(crate) use letter::{Back, Given, Heard, Looking, Word, decode, encode};
pub use letter::{GroupLetter, group_of_letter, rewritten_letter};
pub(crate) use queue::{Held, QueueRoot, RootQueue, group_number, is_full};
pub(crate) use root::{Attendee, Resting, Root, RootRecord};

use crate::api::ConsumerId;
use crate::name::SessionName;

/// The first character of the names of roots' sessions. No client can have it: texts of MQTT have none, and names of
/// other protocols' sessions begin with those of their protocols.
pub(crate) const ROOT: char = '\0';

/// The consumer of the queues of roots' sessions.
pub(crate) const ROOT_CONSUMER: ConsumerId = ConsumerId(u64::MAX - 1);

/// The longest filter of a shared subscription in a cluster: each letter about it has it.
pub(crate) const LONGEST_GROUP_BYTES: usize = 1_024;

/// Bytes of messages of a letter, unless one message has more.
pub(crate) const LETTER_BYTES: usize = 65_536;

/// Bytes that a letter with one message may take beside the message's record.
pub const LETTER_OVERHEAD_BYTES: usize = LONGEST_GROUP_BYTES + 64;

/// The name of the session of a group's root.
pub(crate) fn root_name(group: &str) -> SessionName {
    SessionName::new(None, &format!("{ROOT}{group}"))
}

/// The group whose root a session is; `None` for a client's.
pub(crate) fn group_of_root(name: &SessionName) -> Option<&str> {
    name.id().strip_prefix(ROOT)
}

/// A process of a node of the cluster.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Peer {
    /// The node's name.
    pub node: Arc<str>,
    /// The number of the process, which is higher after each start.
    pub incarnation: u64,
}
