//! Topic Aliases (MQTT 5.0 section 3.3.2.3.4), for both ends.
//!
//! Mappings belong to the connection ([MQTT-3.3.2-10]). Streams have no common order, so an alias
//! is looked up among those of its own lane first. This end uses aliases on the control lane only.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::{DecodeError, Lane, ReasonCode};

/// The Topic Name of a received PUBLISH: from the packet, or from its Topic Alias.
#[derive(Clone, Debug)]
pub enum TopicName<'a> {
    /// From the packet.
    Literal(&'a str),
    /// From the table of aliases.
    Aliased(Arc<str>),
}

impl Deref for TopicName<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Literal(name) => name,
            Self::Aliased(name) => name,
        }
    }
}

impl AsRef<str> for TopicName<'_> {
    fn as_ref(&self) -> &str {
        self
    }
}

impl PartialEq<str> for TopicName<'_> {
    fn eq(&self, other: &str) -> bool {
        **self == *other
    }
}

/// The aliases that the peer has set.
#[derive(Clone, Debug, Default)]
pub struct IncomingAliases {
    /// By alias, then lane.
    topics: BTreeMap<(u16, u64), Arc<str>>,
    topic_bytes: usize,
}

impl IncomingAliases {
    /// Bytes of the Topic Names.
    pub(crate) const fn topic_bytes(&self) -> usize {
        self.topic_bytes
    }

    /// The Topic Name of a PUBLISH; remembers it if the packet sets an alias.
    ///
    /// # Errors
    ///
    /// `TopicAliasInvalid` for an alias of 0 or above `maximum`. `ProtocolError` for an alias that
    /// was not set. `QuotaExceeded` if the names would take more than `max_topic_bytes`.
    pub fn resolve<'a>(
        &mut self,
        lane: Lane,
        topic: &'a str,
        alias: u16,
        maximum: u16,
        max_topic_bytes: usize,
    ) -> Result<TopicName<'a>, DecodeError> {
        // [MQTT-3.3.2-7] [MQTT-3.3.2-8] [MQTT-3.3.2-9] [MQTT-3.2.2-17] [MQTT-3.2.2-18]
        if alias == 0 || alias > maximum {
            return Err(DecodeError::new(
                ReasonCode::TopicAliasInvalid,
                "Topic Alias is zero or above the maximum",
            ));
        }
        if topic.is_empty() {
            return self
                .get(lane, alias)
                .map(|topic| TopicName::Aliased(Arc::clone(topic)))
                .ok_or(DecodeError::protocol("Topic Alias was not set"));
        }
        let known = self.topics.get(&(alias, lane.0));
        if known.is_some_and(|known| **known == *topic) {
            return Ok(TopicName::Literal(topic));
        }
        // [MQTT-3.3.2-12] a new name replaces the one before
        let topic_bytes = self.topic_bytes - known.map_or(0, |known| known.len()) + topic.len();
        if topic_bytes > max_topic_bytes {
            return Err(DecodeError::new(
                ReasonCode::QuotaExceeded,
                "the Topic Names of all Topic Aliases are too long",
            ));
        }
        self.topic_bytes = topic_bytes;
        self.topics.insert((alias, lane.0), Arc::from(topic));
        Ok(TopicName::Literal(topic))
    }

    /// The Topic Name that an alias stands for on a lane now.
    #[must_use]
    pub fn peek(&self, lane: Lane, alias: u16) -> Option<&str> {
        self.get(lane, alias).map(|topic| &**topic)
    }

    /// A lane is gone, and with it the aliases that were set on it.
    pub fn lane_closed(&mut self, lane: Lane) {
        if !self.topics.is_empty() {
            self.topics.retain(|key, topic| {
                let kept = key.1 != lane.0;
                self.topic_bytes -= if kept { 0 } else { topic.len() };
                kept
            });
        }
    }

    /// The lane's own mapping, else that of the lowest lane that has one.
    fn get(&self, lane: Lane, alias: u16) -> Option<&Arc<str>> {
        self.topics.get(&(alias, lane.0)).or_else(|| {
            self.topics
                .range((alias, 0)..=(alias, u64::MAX))
                .map(|(_, topic)| topic)
                .next()
        })
    }
}

/// Topics that a table of outgoing aliases remembers to see whether they repeat.
const CANDIDATES: usize = 64;

/// The aliases that this end sets: the first topics that occur twice get one each, and keep it.
#[derive(Clone, Debug)]
pub struct OutgoingAliases {
    aliases: FxHashMap<Box<[u8]>, u16>,
    topic_bytes: usize,
    /// Hashes of topics that occurred once.
    seen: [u32; CANDIDATES],
}

impl Default for OutgoingAliases {
    fn default() -> Self {
        Self {
            aliases: FxHashMap::default(),
            topic_bytes: 0,
            seen: [0; CANDIDATES],
        }
    }
}

/// The form in which a PUBLISH names its topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AliasUse {
    /// The Topic Name only.
    Name,
    /// The Topic Name, which sets this alias.
    Set(u16),
    /// This alias only.
    Alias(u16),
}

impl OutgoingAliases {
    /// Bytes of the Topic Names.
    pub(crate) const fn topic_bytes(&self) -> usize {
        self.topic_bytes
    }

    /// Chooses the form of a topic, with aliases up to `maximum`. All names with an alias take at
    /// most `max_topic_bytes`. After the packet is written, [`AliasUse::Set`] has to be confirmed
    /// with [`OutgoingAliases::set`].
    pub fn choose(&mut self, topic: &[u8], maximum: u16, max_topic_bytes: usize) -> AliasUse {
        // [MQTT-3.1.2-26] [MQTT-3.1.2-27] [MQTT-3.3.2-11]
        if let Some(&alias) = self.aliases.get(topic) {
            return AliasUse::Alias(alias);
        }
        let next = self.aliases.len() + 1;
        // An alias takes three bytes and saves the name, so short names stay as they are.
        let exhausted =
            next > usize::from(maximum) || self.topic_bytes + topic.len() > max_topic_bytes;
        if exhausted || topic.len() <= 3 {
            return AliasUse::Name;
        }
        let hash = hash(topic);
        let seen = &mut self.seen[(hash >> 8) as usize % CANDIDATES];
        if *seen == hash {
            AliasUse::Set(next as u16)
        } else {
            *seen = hash;
            AliasUse::Name
        }
    }

    /// The packet that sets the alias has been written.
    pub fn set(&mut self, topic: &[u8], alias: u16) {
        self.topic_bytes += topic.len();
        self.aliases.insert(Box::from(topic), alias);
    }
}

fn hash(topic: &[u8]) -> u32 {
    use std::hash::Hasher;
    let mut hasher = rustc_hash::FxHasher::default();
    hasher.write(topic);
    (hasher.finish() >> 32) as u32 | 1
}
