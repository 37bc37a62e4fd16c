//! State of an AMQP link that its session keeps, and the topics of AMQP's nodes.

use sterna_amqp::types::Encoded;

/// First level of a queue's own topic, and of its address.
pub(crate) const QUEUE_LEVEL: &str = "queue/";
/// Topics below this are made for links that ask for a node of their own.
pub(crate) const DYNAMIC: &str = "amqp/dynamic/";

/// What a receiver's link was attached with, so that it can be attached again.
#[derive(Clone, Debug)]
pub struct Terminus {
    /// The source as it was answered.
    pub(crate) source: Encoded,
    /// The subscription behind it.
    pub(crate) filter: Box<str>,
}

/// The topic on which a queue takes messages.
pub(crate) fn topic_of_queue(name: &str) -> String {
    format!("{QUEUE_LEVEL}{name}")
}

/// Whether a topic is of a node that was made for a link.
pub(crate) fn is_dynamic(topic: &str) -> bool {
    topic
        .strip_prefix(DYNAMIC)
        .is_some_and(|name| name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit()))
}
