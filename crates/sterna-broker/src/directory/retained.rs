//! Retained messages. They belong to their topics: no session's end touches them. [MQTT311-3.1.2-7]

use std::collections::BTreeMap;
use std::sync::Arc;

use super::principals::{Principal, Principals};
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
    serial: u32,
    /// The principal that holds it.
    holder: Principal,
}

impl Kept {
    /// Bytes that its holder has by it.
    fn bytes(&self) -> u64 {
        let topic_bytes = extra_bytes(self.message.topic(), 1);
        (self.message.body_bytes() + topic_bytes + RETAINED_MESSAGE_BYTES) as u64
    }
}

/// The publisher of a message that is to be retained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RetainedBy {
    /// A principal that has entered, of this node.
    Here(Principal),
    /// Another node, which has retained it.
    Peer,
}

impl RetainedBy {
    /// The principal that holds it.
    pub(crate) const fn principal(self) -> Principal {
        match self {
            Self::Here(principal) => principal,
            Self::Peer => Principal::OTHERS,
        }
    }
}

impl Default for RetainedBy {
    fn default() -> Self {
        Self::Here(Principal::BROKER)
    }
}

/// The part of the retained messages that one principal holds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Holding {
    bytes: u64,
    messages: u32,
    /// Whether it has entered for them.
    is_entered: bool,
}

/// Reports of the broker's about itself.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Reports {
    messages: usize,
    body_bytes: usize,
    /// With the bytes that each counts beside its body.
    bytes: usize,
}

/// Whether it is a report of the broker's about itself. There are few, and they stay.
fn is_report(topic: &str, holder: Principal) -> bool {
    holder == Principal::BROKER && topic.starts_with("$SYS/")
}

/// Meetings with the part of a limit that is not for heavy principals, of which one looks for the heaviest.
const JUDGED_HITS: u32 = 16;

/// Bodies from here on have pages of their own.
const GATHERED_BYTES: usize = 16 << 10;

#[derive(Debug)]
pub(crate) struct Retained {
    topics: LevelTree<Kept>,
    bytes: usize,
    /// The bytes of long topics, beside those of the messages.
    topic_bytes: usize,
    /// The broker's reports about itself among them, which no limit counts.
    reports: Reports,
    /// Those that expire: when, and their serial number; the topic is the message's.
    expiries: BTreeMap<(u64, u32), Arc<Message>>,
    next_serial: u32,
    /// The part that each principal holds, by number.
    holdings: Vec<Holding>,
    /// Principals that have begun or ceased to hold something.
    changed: Vec<Principal>,
    /// Bytes that the heaviest principal held when it was last looked for.
    heaviest_bytes: u64,
    hits: u32,
}

impl Retained {
    pub(crate) fn new(hashing: KeyedState) -> Self {
        Self {
            topics: LevelTree::new(hashing),
            bytes: 0,
            topic_bytes: 0,
            reports: Reports::default(),
            expiries: BTreeMap::new(),
            next_serial: 0,
            holdings: Vec::new(),
            changed: Vec::new(),
            heaviest_bytes: 0,
            hits: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.topics.len()
    }

    /// Bytes of the bodies.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of those that clients have published, and the bytes of their bodies.
    pub(crate) fn of_clients(&self) -> (usize, usize) {
        let reports = self.reports;
        (
            self.len() - reports.messages,
            self.bytes - reports.body_bytes,
        )
    }

    /// Bytes that long topics take, beyond those of short ones.
    pub(crate) fn topic_bytes(&self) -> usize {
        self.topic_bytes
    }

    /// Sets, replaces or clears a topic's retained message, within `limits` if they hold for it.
    pub(crate) fn set(
        &mut self,
        message: &Arc<Message>,
        by: RetainedBy,
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
        let old = self.topics.get(topic);
        let old_bytes = old.map(|kept| kept.message.body_bytes());
        let holder = match by {
            // A node's own message comes by again.
            RetainedBy::Peer => old
                .filter(|kept| is_same(&kept.message, message))
                .map_or(Principal::OTHERS, |kept| kept.holder),
            RetainedBy::Here(principal) => principal,
        };
        let is_report = is_report(topic, holder);
        let count = self.topics.len() - self.reports.messages + usize::from(old_bytes.is_none());
        let bytes = self.bytes - old_bytes.unwrap_or(0) + message.body_bytes();
        let new_topic_bytes = old_bytes.map_or_else(|| extra_bytes(topic, 1), |_| 0);
        let topic_bytes = self.topic_bytes + new_topic_bytes;
        let (is_more, is_larger) = (old_bytes.is_none(), bytes > self.bytes);
        let places = self.topics.len() + usize::from(is_more);
        let all_bytes = (bytes + topic_bytes + places * RETAINED_MESSAGE_BYTES)
            .saturating_sub(self.reports.bytes);
        if let Some((limits, pressure)) = limits {
            let is_beyond = count > limits.retained_messages || all_bytes > limits.retained_bytes;
            let is_full =
                (pressure >= Pressure::Drop && (is_more || is_larger)) || (is_beyond && !is_report);
            let part = |limit| part_of(limit, limits.retained_heavy_percent);
            let is_last_part = (is_more && count > part(limits.retained_messages))
                || ((is_more || is_larger) && all_bytes > part(limits.retained_bytes));
            if is_full || (is_last_part && by != RetainedBy::Peer && self.is_heavy(holder)) {
                return Retention::Refused;
            }
        }
        let serial = message
            .expires_at_ms()
            .map_or(0, |at_ms| self.serial(at_ms));
        let kept = Kept {
            message: Arc::clone(message),
            length,
            serial,
            holder,
        };
        self.count(&kept);
        // [MQTT-3.3.1-5] [MQTT311-3.3.1-5] [MQTT311-3.3.1-7]
        if let Some(place) = self.topics.get_mut(topic) {
            let old = std::mem::replace(place, kept);
            self.uncount(&old);
        } else {
            self.topics.get_or_insert_with(topic, || kept);
        }
        Retention::Stored
    }

    /// A number that no other message of an expiry time has.
    fn serial(&mut self, expires_at_ms: u64) -> u32 {
        loop {
            let serial = self.next_serial;
            self.next_serial = serial.wrapping_add(1);
            if !self.expiries.contains_key(&(expires_at_ms, serial)) {
                return serial;
            }
        }
    }

    /// Adds a message to the sums, to those of its holder, and to those that expire.
    fn count(&mut self, kept: &Kept) {
        self.bytes += kept.message.body_bytes();
        self.topic_bytes += extra_bytes(kept.message.topic(), 1);
        if is_report(kept.message.topic(), kept.holder) {
            self.reports.messages += 1;
            self.reports.body_bytes += kept.message.body_bytes();
            self.reports.bytes += kept.bytes() as usize;
        }
        if let Some(expires_at_ms) = kept.message.expires_at_ms() {
            let expiry = (expires_at_ms, kept.serial);
            self.expiries.insert(expiry, Arc::clone(&kept.message));
        }
        let holding = self.holding(kept.holder);
        holding.bytes += kept.bytes();
        holding.messages += 1;
        if holding.messages == 1 {
            self.changed.push(kept.holder);
        }
    }

    /// Undoes [`count`](Self::count).
    fn uncount(&mut self, kept: &Kept) {
        self.bytes -= kept.message.body_bytes();
        self.topic_bytes -= extra_bytes(kept.message.topic(), 1);
        if is_report(kept.message.topic(), kept.holder) {
            self.reports.messages -= 1;
            self.reports.body_bytes -= kept.message.body_bytes();
            self.reports.bytes -= kept.bytes() as usize;
        }
        if let Some(expires_at_ms) = kept.message.expires_at_ms() {
            self.expiries.remove(&(expires_at_ms, kept.serial));
        }
        let holding = self.holding(kept.holder);
        holding.bytes -= kept.bytes();
        holding.messages -= 1;
        if holding.messages == 0 {
            self.changed.push(kept.holder);
        }
    }

    fn holding(&mut self, principal: Principal) -> &mut Holding {
        let number = principal.0 as usize;
        if self.holdings.len() <= number {
            self.holdings.resize(number + 1, Holding::default());
        }
        &mut self.holdings[number]
    }

    /// Whether a principal holds something, and at least half of what the heaviest held when that was looked for. The broker
    /// itself is never heavy.
    fn is_heavy(&mut self, principal: Principal) -> bool {
        if principal == Principal::BROKER {
            return false;
        }
        if self.hits.is_multiple_of(JUDGED_HITS) {
            let all = self.holdings.iter().skip(Principal::OTHERS.0 as usize);
            self.heaviest_bytes = all.map(|holding| holding.bytes).max().unwrap_or(0);
        }
        self.hits = self.hits.wrapping_add(1);
        let bytes = self.holding(principal).bytes;
        bytes > 0 && bytes >= self.heaviest_bytes / 2
    }

    /// Has principals enter that have begun to hold something, and leave that hold nothing any more. To be called after
    /// each change, while those that publish have entered.
    pub(crate) fn settle_holders(&mut self, principals: &Principals) {
        while let Some(principal) = self.changed.pop() {
            let holding = self.holding(principal);
            let is_holding = holding.messages > 0;
            if std::mem::replace(&mut holding.is_entered, is_holding) == is_holding {
                continue;
            }
            if is_holding {
                principals.enter_again(principal);
            } else {
                principals.leave(principal);
            }
        }
    }

    /// Messages that a principal holds, and their bytes.
    pub(crate) fn held_by(&self, principal: Principal) -> (usize, u64) {
        let holding = self.holdings.get(principal.0 as usize);
        let holding = holding.copied().unwrap_or_default();
        (holding.messages as usize, holding.bytes)
    }

    /// The retained message of a topic.
    pub(crate) fn get(&self, topic: &str) -> Option<Kept> {
        self.topics.get(topic).cloned()
    }

    /// Gives a topic what it had before.
    pub(crate) fn put_back(&mut self, topic: &str, before: Option<Kept>) {
        self.remove(topic);
        if let Some(kept) = before {
            self.count(&kept);
            self.topics.get_or_insert_with(topic, || kept);
        }
    }

    pub(crate) fn remove(&mut self, topic: &str) -> Option<Arc<Message>> {
        let kept = self.topics.remove(topic)?;
        self.uncount(&kept);
        Some(kept.message)
    }

    /// # Panics
    /// Where a sum does not agree with the messages, or the places of their holders do not.
    pub(crate) fn check(&self, principals: &Principals) {
        let mut found = Self::new(KeyedState::new(0));
        for kept in self.topics.values() {
            found.count(kept);
        }
        assert_eq!(self.bytes, found.bytes, "the bytes of bodies");
        assert_eq!(self.topic_bytes, found.topic_bytes, "the bytes of topics");
        assert_eq!(self.reports, found.reports, "reports of the broker");
        assert!(
            self.expiries.keys().eq(found.expiries.keys()),
            "what expires"
        );
        for number in 0..self.holdings.len().max(found.holdings.len()) {
            let principal = Principal(number as u32);
            let name = principals.describe(principal);
            assert_eq!(
                self.held_by(principal),
                found.held_by(principal),
                "of {name}"
            );
            let is_entered = self.holdings.get(number).is_some_and(|one| one.is_entered);
            let is_holding = found.held_by(principal).0 > 0;
            assert_eq!(is_entered, is_holding, "the place of {name}");
            let has_place = !principal.has_place() || principals.name(principal).is_some();
            assert!(has_place || !is_holding, "the place of {name} is there");
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

    /// Moves messages at so many places, from one on, to where the allocator puts them now; false where there are no more
    /// places. `settle` is called between two.
    ///
    /// Pages are left behind that have one of them and little else. An allocator gives back pages alone that have nothing.
    pub(crate) fn gather(&mut self, from: usize, most: usize, settle: &dyn Fn()) -> bool {
        let Some(values) = self.topics.values_at(from, most) else {
            return false;
        };
        for kept in values {
            let expires_at_ms = kept.message.expires_at_ms();
            let own = 1 + usize::from(expires_at_ms.is_some());
            // Where a queue has it as well, a copy would be more memory.
            if kept.message.body_bytes() >= GATHERED_BYTES || Arc::strong_count(&kept.message) > own
            {
                continue;
            }
            let moved = Arc::new(kept.message.copied());
            if let Some(expires_at_ms) = expires_at_ms {
                let expiry = (expires_at_ms, kept.serial);
                self.expiries.insert(expiry, Arc::clone(&moved));
            }
            kept.message = moved;
            settle();
        }
        true
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

/// The first part of a limit.
fn part_of(limit: usize, percent: usize) -> usize {
    (limit as u128 * percent as u128 / 100) as usize
}

/// Whether two messages are the same publication, as far as that shows.
fn is_same(one: &Message, other: &Message) -> bool {
    one.published_ms() == other.published_ms()
        && one.origin() == other.origin()
        && one.payload() == other.payload()
        && one.properties() == other.properties()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Gauge, MessageHeader};

    #[test]
    fn a_holder_takes_no_more_memory_in_a_retained_message() {
        assert_eq!(size_of::<Kept>(), 24);
    }

    #[test]
    fn what_is_gathered_is_the_same_in_another_place() {
        let gauge = Arc::new(Gauge::default());
        let principals = Principals::new(4, KeyedState::new(0));
        let mut retained = Retained::new(KeyedState::new(0));
        for (number, expires_at_ms) in [None, None, Some(5), Some(5), Some(6)]
            .into_iter()
            .enumerate()
        {
            let body = format!("{number}{}", "x".repeat(2_000));
            let header = MessageHeader {
                retain: true,
                expires_at_ms,
                ..MessageHeader::default()
            };
            let length = body.len();
            let mut message =
                Message::from_body(body.into(), 0..1, 1..1, 1..length, header).expect("it fits");
            message.charge(&gauge);
            retained.set(&Arc::new(message), RetainedBy::Peer, 0, None);
        }
        let bytes = gauge.bytes();
        let places = |retained: &Retained| {
            (0..5)
                .map(|number| {
                    let kept = retained.get(&number.to_string()).expect("it is there");
                    (
                        kept.message.payload().as_ptr(),
                        kept.message.payload().to_vec(),
                    )
                })
                .collect::<Vec<_>>()
        };
        let before = places(&retained);
        let queued = retained.get("1").expect("it is there");
        let settled = std::cell::Cell::new(0);
        let mut from = 0;
        while retained.gather(from, 2, &|| settled.set(settled.get() + 1)) {
            from += 2;
        }
        assert_eq!(settled.get(), 4, "all but the one that a queue has");
        drop(queued);
        let after = places(&retained);
        for (number, (before, after)) in before.iter().zip(&after).enumerate() {
            assert_eq!(before.1, after.1);
            assert_eq!(before.0 == after.0, number == 1, "{number}");
        }
        assert_eq!(gauge.bytes(), bytes);
        retained.settle_holders(&principals);
        retained.check(&principals);
        assert_eq!(retained.expire(5, 9).len(), 2);
        assert_eq!(retained.len(), 3);
    }

    #[test]
    fn parts_of_limits_do_not_overflow() {
        assert_eq!(part_of(usize::MAX, 100), usize::MAX);
        assert_eq!(
            (part_of(1, 85), part_of(0, 85), part_of(200, 85)),
            (0, 0, 170)
        );
    }
}
