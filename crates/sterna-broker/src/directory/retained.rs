//! Retained messages. They belong to their topics: no session's end touches them. [MQTT311-3.1.2-7]

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::Retention;
use crate::filter::{extra_bytes, is_topic};
use crate::hash::KeyedState;
use crate::levels::LevelTree;
use crate::limits::{Limits, RETAINED_MESSAGE_BYTES};
use crate::message::Message;
use crate::pressure::Pressure;
use crate::route::Rest;

/// A retained message in its place.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    message: Arc<Message>,
    /// The route log's length when it was set.
    length: u64,
    /// Tells messages of one expiry time apart.
    serial: u64,
}

#[derive(Debug)]
pub(crate) struct Retained {
    topics: LevelTree<Kept>,
    bytes: usize,
    /// The bytes of long topics, beside those of the messages.
    topic_bytes: usize,
    /// Those that expire: when, and their serial number; the topic is the message's.
    expiries: BTreeMap<(u64, u64), Arc<Message>>,
    next_serial: u64,
}

impl Retained {
    pub(crate) fn new(hashing: KeyedState) -> Self {
        Self {
            topics: LevelTree::new(hashing),
            bytes: 0,
            topic_bytes: 0,
            expiries: BTreeMap::new(),
            next_serial: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.topics.len()
    }

    /// Bytes of the bodies.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes that long topics take, beyond those of short ones.
    pub(crate) fn topic_bytes(&self) -> usize {
        self.topic_bytes
    }

    /// Sets, replaces or clears a topic's retained message, within `limits` if they hold for it.
    pub(crate) fn set(
        &mut self,
        message: &Arc<Message>,
        length: u64,
        limits: Option<(&Limits, Pressure)>,
    ) -> Retention {
        let topic = message.topic();
        // [MQTT-3.3.1-6] [MQTT-3.3.1-7] [MQTT311-3.3.1-10] [MQTT311-3.3.1-11]
        if message.payload().is_empty() {
            return match self.remove(topic) {
                Some(_) => Retention::Cleared,
                None => Retention::Absent,
            };
        }
        if limits.is_some_and(|(limits, _)| !is_topic(topic, limits)) {
            return Retention::InvalidTopic;
        }
        let old_bytes = self.topics.get(topic).map(|kept| kept.message.body_bytes());
        let count = self.topics.len() + usize::from(old_bytes.is_none());
        let bytes = self.bytes - old_bytes.unwrap_or(0) + message.body_bytes();
        let new_topic_bytes = old_bytes.map_or_else(|| extra_bytes(topic, 1), |_| 0);
        let topic_bytes = self.topic_bytes + new_topic_bytes;
        let grows = bytes > self.bytes || count > self.topics.len();
        let is_full = limits.is_some_and(|(limits, pressure)| {
            (pressure >= Pressure::Drop && grows)
                || count > limits.retained_messages
                || bytes + topic_bytes + count * RETAINED_MESSAGE_BYTES > limits.retained_bytes
        });
        if is_full {
            return Retention::Refused;
        }
        // [MQTT-3.3.1-5] [MQTT311-3.3.1-5] [MQTT311-3.3.1-7]
        self.remove_expiry(topic);
        let serial = self.next_serial;
        self.next_serial += 1;
        let kept = Kept {
            message: Arc::clone(message),
            length,
            serial,
        };
        if old_bytes.is_some() {
            if let Some(old) = self.topics.get_mut(topic) {
                *old = kept;
            }
        } else {
            self.topics.get_or_insert_with(topic, || kept);
        }
        (self.bytes, self.topic_bytes) = (bytes, topic_bytes);
        if let Some(expires_at_ms) = message.expires_at_ms() {
            self.expiries
                .insert((expires_at_ms, serial), Arc::clone(message));
        }
        Retention::Stored
    }

    /// The retained message of a topic.
    pub(crate) fn get(&self, topic: &str) -> Option<Kept> {
        self.topics.get(topic).cloned()
    }

    /// Gives a topic what it had before.
    pub(crate) fn put_back(&mut self, topic: &str, before: Option<Kept>) {
        self.remove(topic);
        let Some(kept) = before else { return };
        self.bytes += kept.message.body_bytes();
        self.topic_bytes += extra_bytes(topic, 1);
        if let Some(expires_at_ms) = kept.message.expires_at_ms() {
            let expiry = (expires_at_ms, kept.serial);
            self.expiries.insert(expiry, Arc::clone(&kept.message));
        }
        self.topics.get_or_insert_with(topic, || kept);
    }

    pub(crate) fn remove(&mut self, topic: &str) -> Option<Arc<Message>> {
        self.remove_expiry(topic);
        let kept = self.topics.remove(topic)?;
        self.bytes -= kept.message.body_bytes();
        self.topic_bytes -= extra_bytes(topic, 1);
        Some(kept.message)
    }

    fn remove_expiry(&mut self, topic: &str) {
        if let Some(kept) = self.topics.get(topic)
            && let Some(expires_at_ms) = kept.message.expires_at_ms()
        {
            self.expiries.remove(&(expires_at_ms, kept.serial));
        }
    }

    /// Messages of a filter that were set before the route log had a length, and how many places it has looked at.
    pub(crate) fn find(
        &self,
        filter: &str,
        wild: bool,
        length: u64,
        now_ms: u64,
        limit: usize,
    ) -> (Vec<Arc<Message>>, usize) {
        self.find_where(filter, wild, now_ms, limit, |kept| kept.length < length)
    }

    /// Messages of a filter that were set since a subscription to it has lost its right, and before the route log had
    /// a length.
    pub(crate) fn find_changed(
        &self,
        filter: &str,
        wild: bool,
        (rest, length): (Rest, u64),
        now_ms: u64,
        limit: usize,
    ) -> (Vec<Arc<Message>>, usize) {
        self.find_where(filter, wild, now_ms, limit, |kept| {
            kept.length < length
                && match rest.length {
                    Some(before) => kept.length >= before,
                    None => kept.message.published_ms() >= rest.since_ms,
                }
        })
    }

    fn find_where(
        &self,
        filter: &str,
        wild: bool,
        now_ms: u64,
        limit: usize,
        is_it: impl Fn(&Kept) -> bool,
    ) -> (Vec<Arc<Message>>, usize) {
        let (mut messages, mut visited) = (Vec::new(), 1);
        let mut take = |kept: &Kept| {
            if is_it(kept) && !kept.message.is_expired(now_ms) {
                messages.push(Arc::clone(&kept.message));
            }
            messages.len() < limit
        };
        if limit == 0 {
        } else if wild {
            visited = self.topics.matching_filter(filter, take);
        } else if let Some(kept) = self.topics.get(filter) {
            take(kept);
        }
        (messages, visited)
    }

    /// Up to `limit` messages of a filter after the first `skip`, and whether there are more.
    pub(crate) fn page(
        &self,
        filter: &str,
        wild: bool,
        now_ms: u64,
        skip: usize,
        limit: usize,
    ) -> (Vec<Arc<Message>>, bool) {
        let mut messages = Vec::new();
        let (mut seen, mut has_more) = (0, false);
        let mut take = |kept: &Kept| {
            if kept.message.is_expired(now_ms) {
                return true;
            }
            seen += 1;
            if seen > skip {
                has_more = messages.len() == limit;
                if !has_more {
                    messages.push(Arc::clone(&kept.message));
                }
            }
            !has_more
        };
        if wild {
            self.topics.matching_filter(filter, take);
        } else if let Some(kept) = self.topics.get(filter) {
            take(kept);
        }
        (messages, has_more)
    }

    /// Drops messages whose time is over, `most` of them at most.
    pub(crate) fn expire(&mut self, now_ms: u64, most: usize) -> Vec<Arc<Message>> {
        let mut expired = Vec::new();
        while let Some((&(expires_at_ms, _), message)) = self.expiries.first_key_value() {
            if expires_at_ms > now_ms || expired.len() >= most {
                break;
            }
            let message = Arc::clone(message);
            if self.remove(message.topic()).is_none() {
                self.expiries.pop_first();
            }
            expired.push(message);
        }
        expired
    }

    pub(crate) fn deadline_ms(&self) -> u64 {
        self.expiries
            .first_key_value()
            .map_or(u64::MAX, |(&(expires_at_ms, _), _)| expires_at_ms)
    }
}
