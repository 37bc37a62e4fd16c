//! State of an AMQP link that its session keeps, and the topics of AMQP's nodes.

use bytes::Bytes;
use sterna_amqp::messaging::{DistributionMode, Source};
use sterna_amqp::types::{Composite as _, Encoded, Map};
use sterna_broker::Message;
use sterna_mqtt::{Property, PropertyContext, PublishProperties};

pub(crate) use crate::config::QUEUE_LEVEL;

/// Topics below this are made for links that ask for a node of their own.
pub(crate) const DYNAMIC: &str = "amqp/dynamic/";

/// Terms of a receiver's link, by which it can be attached again.
#[derive(Clone, Debug)]
pub struct Terminus {
    /// The source as it was answered.
    pub(crate) source: Encoded,
    /// The subscription behind it.
    pub(crate) filter: Box<str>,
}

/// The key of the record of a terminus.
pub(crate) const TERMINUS_KEY: &[u8] = b"t";

impl Terminus {
    /// Whether the same messages come by both in the same way: by the subscription and the filters, as copies or
    /// not. Otherwise what waits for one was not chosen by the other.
    pub(crate) fn is_as(&self, other: &Self) -> bool {
        self.filter == other.filter && self.choice() == other.choice()
    }

    /// The filters that are applied, and whether messages are copied or moved.
    fn choice(&self) -> Option<(Option<Map<'_>>, Option<DistributionMode>)> {
        let source = Source::from_value(self.source.value()).ok()?;
        Some((source.filter, source.distribution_mode))
    }

    /// About its bytes in memory.
    pub(crate) fn lasting_bytes(&self) -> usize {
        size_of::<Self>() + self.filter.len() + self.source.bytes().len()
    }

    /// For storage: the length of the filter in bytes, the filter, the source.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = (self.filter.len() as u32).to_be_bytes().to_vec();
        bytes.extend_from_slice(self.filter.as_bytes());
        bytes.extend_from_slice(self.source.bytes());
        bytes
    }

    /// The counterpart of [`to_bytes`](Self::to_bytes); `None` for other bytes.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (length, rest) = bytes.split_first_chunk()?;
        let (filter, source) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        Some(Self {
            filter: std::str::from_utf8(filter).ok()?.into(),
            source: Encoded::from_bytes(Bytes::copy_from_slice(source)).ok()?,
        })
    }
}

/// The topic on which a queue takes messages.
pub(crate) fn topic_of_queue(name: &str) -> String {
    format!("{QUEUE_LEVEL}{name}")
}

/// Whether a topic is of a node that was made for a link: a topic, or a queue.
pub(crate) fn is_dynamic(topic: &str) -> bool {
    topic
        .strip_prefix(QUEUE_LEVEL)
        .unwrap_or(topic)
        .strip_prefix(DYNAMIC)
        .is_some_and(|name| name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// A topic that the message had before it was a dead letter.
pub(crate) const DEAD_LETTER_TOPIC: &str = "x-opt-dead-letter-topic";

/// The topics that a message had before it was a dead letter, as far as it is one.
pub(crate) fn topics_before_death(message: &Message) -> Vec<&str> {
    let parsed = PublishProperties::parse(message.properties(), PropertyContext::Publish).ok();
    (parsed.iter().flat_map(PublishProperties::all))
        .filter_map(|property| match property {
            Property::UserProperty(DEAD_LETTER_TOPIC, topic) => Some(topic),
            _ => None,
        })
        .collect()
}
