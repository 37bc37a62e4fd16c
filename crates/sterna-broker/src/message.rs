//! The application message: immutable, shared, one body.

mod parts;
mod record;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::eras::Eras;

pub use parts::MessageParts;
pub use record::{MOST_GROUP_BYTES, MessageDecoder, MessageEncoder, is_brief};

/// How hard the broker tries to deliver (MQTT 5.0, section 4.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum Qos {
    /// Sent once and forgotten.
    #[default]
    AtMostOnce = 0,
    /// Kept until acknowledged; may arrive twice.
    AtLeastOnce = 1,
    /// Kept until settled in two steps; arrives once.
    ExactlyOnce = 2,
}

impl Qos {
    /// The level a number on the wire stands for; `None` above 2.
    #[must_use]
    pub const fn from_u8(level: u8) -> Option<Self> {
        match level {
            0 => Some(Self::AtMostOnce),
            1 => Some(Self::AtLeastOnce),
            2 => Some(Self::ExactlyOnce),
            _ => None,
        }
    }

    /// Whether a delivery at this level is kept in the ledger until it is settled.
    #[must_use]
    pub const fn is_acknowledged(self) -> bool {
        !matches!(self, Self::AtMostOnce)
    }
}

/// The publisher of a message, for the no-local option: a hash of the text of its session's name. The hash is the same on
/// every shard and after a restart. Zero stands for the broker itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Origin(pub u64);

impl Origin {
    /// The broker itself, or anything without a session's name.
    pub const NONE: Self = Self(0);

    /// The origin that the text of a session's name, or a front door's own one, stands for (FNV-1a, 64 bits; never [`Origin::NONE`]).
    #[must_use]
    pub fn of_client(name: &str) -> Self {
        Self(fnv1a(name.as_bytes()).max(1))
    }
}

/// A hash that never changes. It decides what is stored or which shard is asked, so it must not depend on the
/// process.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Bodies of at least this many bytes are counted once, also where one queue alone is to have them. Smaller ones of one
/// queue are counted there, which is cheaper.
const CHARGED_BYTES: usize = 1_024;

/// Adds up what a shard's messages hold, so that a limit on all shards' sum can be kept. One per
/// shard: the cache line stays with its core.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    bodies: AtomicU64,
    /// Messages with these bodies.
    messages: AtomicU64,
    entries: AtomicU64,
}

impl Gauge {
    pub(crate) fn bytes(&self) -> u64 {
        self.bodies.load(Ordering::Relaxed) + self.entries.load(Ordering::Relaxed)
    }

    /// The number of the messages that are counted once.
    pub(crate) fn messages(&self) -> u64 {
        self.messages.load(Ordering::Relaxed)
    }

    /// Sets what the shard's queues hold beside the bodies that are counted once.
    pub(crate) fn set_entries(&self, bytes: u64) {
        self.entries.store(bytes, Ordering::Relaxed);
    }
}

/// The protocol in whose own encoding a message carries a copy of itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum NativeFormat {
    /// The sections of an AMQP 1.0 message (section 3.2), as its sender encoded them.
    Amqp = 1,
}

/// Everything about a message that isn't its bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct MessageHeader {
    /// The level the publisher asked for.
    pub qos: Qos,
    /// Whether the publisher asked to retain it.
    pub retain: bool,
    /// When the broker received it, in milliseconds since the Unix epoch; zero for the time at which it
    /// is routed.
    pub published_ms: u64,
    /// The time at which it ceases to be of use, in milliseconds since the Unix epoch: received time plus Message
    /// Expiry Interval. `None` where it never does.
    pub expires_at_ms: Option<u64>,
}

/// A message is larger than its 32-bit ranges, or a range lies outside the body. Or its topic is longer
/// than 65,535 bytes, or not UTF-8.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidMessage;

impl std::fmt::Display for InvalidMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the message's parts do not fit its body")
    }
}

impl std::error::Error for InvalidMessage {}

/// One application message: topic, the properties that pass through, and payload, in one body.
///
/// The properties are in MQTT 5 property encoding (section 2.2.2, without the length in front). They are
/// all that a subscriber gets unaltered, so they have no Topic Alias, no Message Expiry Interval, and no
/// Subscription Identifier. [MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18]
///
/// A message that came by another protocol may carry its *native form* beside them. That is the bytes its publisher
/// wrote, for consumers of the same protocol. It lies in the body and is charged with it.
#[derive(Debug)]
pub struct Message {
    body: Bytes,
    gauge: Option<Arc<Gauge>>,
    published_ms: u64,
    expires_at_ms: u64,
    origin: Origin,
    topic_start: u32,
    properties_start: u32,
    properties_len: u32,
    payload_start: u32,
    payload_len: u32,
    native_start: u32,
    native_len: u32,
    topic_len: u16,
    level: Level,
    native_format: Option<NativeFormat>,
}

/// The level, the retain flag and whether the message was changed, in one byte.
#[derive(Clone, Copy, Debug)]
struct Level(u8);

impl Level {
    const RETAIN: u8 = 4;
    const CHANGED: u8 = 8;

    const fn new(qos: Qos, retain: bool) -> Self {
        Self(qos as u8 | if retain { Self::RETAIN } else { 0 })
    }

    const fn qos(self) -> Qos {
        match self.0 & 3 {
            0 => Qos::AtMostOnce,
            1 => Qos::AtLeastOnce,
            _ => Qos::ExactlyOnce,
        }
    }

    const fn retain(self) -> bool {
        self.0 & Self::RETAIN != 0
    }

    const fn is_changed(self) -> bool {
        self.0 & Self::CHANGED != 0
    }
}

const NEVER_MS: u64 = u64::MAX;

impl Message {
    /// Copies topic, properties and payload into a body of exactly their length. That takes one allocation here,
    /// and a second when the broker shares the message.
    ///
    /// # Errors
    /// [`InvalidMessage`] when the topic has more than 65,535 bytes or the whole more than 4 GiB.
    #[inline]
    pub fn copy(
        topic: &str,
        properties: &[u8],
        payload: &[u8],
        header: MessageHeader,
    ) -> Result<Self, InvalidMessage> {
        Self::of_parts(topic.as_bytes(), properties, payload, header)
    }

    /// As [`copy`](Self::copy), of a topic that is UTF-8.
    #[inline]
    fn of_parts(
        topic: &[u8],
        properties: &[u8],
        payload: &[u8],
        header: MessageHeader,
    ) -> Result<Self, InvalidMessage> {
        let total_bytes = topic.len() + properties.len() + payload.len();
        // Capacity equal to length lets `Bytes` take the buffer without an allocation of its own.
        let mut body = Vec::with_capacity(total_bytes);
        body.extend_from_slice(topic);
        // A call for nothing costs as much as one for a few bytes.
        if !properties.is_empty() {
            body.extend_from_slice(properties);
        }
        body.extend_from_slice(payload);
        let properties_end = topic.len() + properties.len();
        Self::assemble(
            Bytes::from(body),
            0..topic.len(),
            topic.len()..properties_end,
            properties_end..total_bytes,
            header,
        )
    }

    /// Takes a body that holds the three parts anywhere in it, typically a received PUBLISH packet.
    ///
    /// # Errors
    /// [`InvalidMessage`] when a range lies outside the body, or the body is longer than 4 GiB. Also when
    /// the topic is not UTF-8, or is longer than 65,535 bytes.
    #[inline]
    pub fn from_body(
        body: Bytes,
        topic: Range<usize>,
        properties: Range<usize>,
        payload: Range<usize>,
        header: MessageHeader,
    ) -> Result<Self, InvalidMessage> {
        let topic_is_text = body
            .get(topic.clone())
            .is_some_and(|bytes| std::str::from_utf8(bytes).is_ok());
        if !topic_is_text
            || body.get(properties.clone()).is_none()
            || body.get(payload.clone()).is_none()
        {
            return Err(InvalidMessage);
        }
        Self::assemble(body, topic, properties, payload, header)
    }

    #[inline]
    fn assemble(
        body: Bytes,
        topic: Range<usize>,
        properties: Range<usize>,
        payload: Range<usize>,
        header: MessageHeader,
    ) -> Result<Self, InvalidMessage> {
        if u32::try_from(body.len()).is_err() {
            return Err(InvalidMessage);
        }
        // [MQTT-4.7.3-3]
        let topic_len = u16::try_from(topic.len()).map_err(|_| InvalidMessage)?;
        Ok(Self {
            gauge: None,
            published_ms: header.published_ms,
            expires_at_ms: header.expires_at_ms.unwrap_or(NEVER_MS),
            origin: Origin::NONE,
            topic_start: topic.start as u32,
            properties_start: properties.start as u32,
            properties_len: properties.len() as u32,
            payload_start: payload.start as u32,
            payload_len: payload.len() as u32,
            native_start: 0,
            native_len: 0,
            topic_len,
            level: Level::new(header.qos, header.retain),
            native_format: None,
            body,
        })
    }

    /// The same message in memory of its own.
    #[must_use]
    pub(crate) fn copied(&self) -> Self {
        let mut copy = Self {
            body: Bytes::copy_from_slice(&self.body),
            gauge: None,
            ..*self
        };
        if let Some(gauge) = &self.gauge {
            copy.charge(gauge);
        }
        copy
    }

    /// The same message (the body is shared) with other times. A will is published long after it was received, and
    /// its expiry counts from then.
    #[must_use]
    pub(crate) fn republished(&self, published_ms: u64, expires_at_ms: Option<u64>) -> Self {
        Self {
            body: self.body.clone(),
            gauge: None,
            published_ms,
            expires_at_ms: expires_at_ms.unwrap_or(NEVER_MS),
            ..*self
        }
    }

    /// Dates a message of an earlier process anew. It keeps its whole interval from then on. If that process' clock was
    /// behind, it came as much later. If it still seems to come from the future, the wall clock was set back over the
    /// restart: it came when this process began, at `start_ms`.
    pub(crate) fn date_anew(&mut self, eras: &Eras, start_ms: u64) {
        let behind_ms = eras.behind_ms(self.published_ms);
        let published_ms = self.published_ms.saturating_add(behind_ms).min(start_ms);
        let lasts_ms = self.expires_at_ms.saturating_sub(self.published_ms);
        self.published_ms = published_ms;
        if self.expires_at_ms != NEVER_MS {
            self.expires_at_ms = published_ms.saturating_add(lasts_ms);
        }
    }

    /// Notes that the log has another message in its place.
    pub(crate) const fn set_changed(&mut self) {
        self.level.0 |= Level::CHANGED;
    }

    /// Whether the log has another message in its place.
    pub(crate) const fn is_changed(&self) -> bool {
        self.level.is_changed()
    }

    /// Sets the time of publication, if there is none.
    pub(crate) const fn stamp(&mut self, now_ms: u64) {
        if self.published_ms == 0 {
            self.published_ms = now_ms;
        }
    }

    /// Sets the publisher; for messages that don't go through a session.
    #[must_use]
    pub const fn with_origin(mut self, origin: Origin) -> Self {
        self.origin = origin;
        self
    }

    /// Sets the publisher.
    pub(crate) const fn set_origin(&mut self, origin: Origin) {
        self.origin = origin;
    }

    /// Adds the native form, which lies in the body too; the payload may be a part of it.
    ///
    /// # Errors
    /// [`InvalidMessage`] when the range lies outside the body.
    pub fn with_native(
        mut self,
        format: NativeFormat,
        range: Range<usize>,
    ) -> Result<Self, InvalidMessage> {
        if self.body.get(range.clone()).is_none() {
            return Err(InvalidMessage);
        }
        // The body has at most 4 GiB, so has what lies in it.
        self.native_start = range.start as u32;
        self.native_len = range.len() as u32;
        self.native_format = Some(format);
        Ok(self)
    }

    /// The same message under another topic, without the retain flag. The body is copied.
    ///
    /// # Errors
    /// [`InvalidMessage`] when the topic has more than 65,535 bytes or the whole more than 4 GiB.
    pub fn under_topic(&self, topic: &str) -> Result<Self, InvalidMessage> {
        let mut body = Vec::with_capacity(topic.len() + self.body.len());
        body.extend_from_slice(topic.as_bytes());
        body.extend_from_slice(&self.body);
        let moved = |start: u32, len: u32| {
            let start = topic.len() + start as usize;
            start..start + len as usize
        };
        let message = Self::assemble(
            Bytes::from(body),
            0..topic.len(),
            moved(self.properties_start, self.properties_len),
            moved(self.payload_start, self.payload_len),
            MessageHeader {
                retain: false,
                ..self.header()
            },
        )?
        .with_origin(self.origin);
        match self.native_format {
            Some(format) => message.with_native(format, moved(self.native_start, self.native_len)),
            None => Ok(message),
        }
    }

    /// Starts counting the body in a gauge, until the message is dropped. It counts once then, however many queues
    /// share it.
    pub(crate) fn charge(&mut self, gauge: &Arc<Gauge>) {
        if self.gauge.is_some() {
            return;
        }
        gauge
            .bodies
            .fetch_add(self.body.len() as u64, Ordering::Relaxed);
        gauge.messages.fetch_add(1, Ordering::Relaxed);
        self.gauge = Some(Arc::clone(gauge));
    }

    /// The same of a message for one queue, unless it is small: it counts there then.
    pub(crate) fn charge_large(&mut self, gauge: &Arc<Gauge>) {
        if self.body.len() >= CHARGED_BYTES {
            self.charge(gauge);
        }
    }

    /// Whether the body counts once. If not, it counts in each queue.
    pub(crate) const fn is_charged(&self) -> bool {
        self.gauge.is_some()
    }

    /// The topic name as text.
    #[must_use]
    pub fn topic(&self) -> &str {
        // Checked when the message was made; checked again because it is cheaper than a reason for
        // unsafe code.
        std::str::from_utf8(self.topic_bytes()).unwrap_or_default()
    }

    /// The topic name as it goes on the wire.
    #[inline]
    #[must_use]
    pub fn topic_bytes(&self) -> &[u8] {
        part(&self.body, self.topic_start, u32::from(self.topic_len))
    }

    /// The properties that pass through, in MQTT 5 encoding without their length.
    #[inline]
    #[must_use]
    pub fn properties(&self) -> &[u8] {
        part(&self.body, self.properties_start, self.properties_len)
    }

    /// The payload.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        part(&self.body, self.payload_start, self.payload_len)
    }

    /// The payload as a share of the body, for sending large ones without a copy.
    #[must_use]
    pub fn payload_shared(&self) -> Bytes {
        let start = self.payload_start as usize;
        self.body.slice(start..start + self.payload_len as usize)
    }

    /// The message as its publisher's protocol wrote it, if that is not MQTT.
    #[must_use]
    pub fn native(&self) -> Option<(NativeFormat, &[u8])> {
        let format = self.native_format?;
        Some((format, part(&self.body, self.native_start, self.native_len)))
    }

    /// The level the publisher asked for.
    #[must_use]
    pub const fn qos(&self) -> Qos {
        self.level.qos()
    }

    /// Whether the publisher asked to retain it.
    #[must_use]
    pub const fn retain(&self) -> bool {
        self.level.retain()
    }

    /// When the broker received it, in milliseconds since the Unix epoch.
    #[must_use]
    pub const fn published_ms(&self) -> u64 {
        self.published_ms
    }

    /// When it ceases to be of use, in milliseconds since the Unix epoch.
    #[must_use]
    pub const fn expires_at_ms(&self) -> Option<u64> {
        if self.expires_at_ms == NEVER_MS {
            None
        } else {
            Some(self.expires_at_ms)
        }
    }

    /// Whether its time is over.
    #[must_use]
    pub const fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_at_ms <= now_ms
    }

    /// The Message Expiry Interval to send now: the rest of the interval, rounded up to seconds. So a message that
    /// is not expired never claims zero. [MQTT-3.3.2-6]
    #[must_use]
    pub fn expiry_left_s(&self, now_ms: u64) -> Option<u32> {
        let left_ms = self.expires_at_ms()?.saturating_sub(now_ms);
        Some(u32::try_from(left_ms.div_ceil(1000)).unwrap_or(u32::MAX))
    }

    /// Its publisher.
    #[must_use]
    pub const fn origin(&self) -> Origin {
        self.origin
    }

    /// Bytes of the body, which is what the message is charged with in every limit.
    #[must_use]
    pub fn body_bytes(&self) -> usize {
        self.body.len()
    }

    /// The header it was made with.
    #[must_use]
    pub const fn header(&self) -> MessageHeader {
        MessageHeader {
            qos: self.qos(),
            retain: self.retain(),
            published_ms: self.published_ms,
            expires_at_ms: self.expires_at_ms(),
        }
    }
}

impl AsRef<Self> for Message {
    fn as_ref(&self) -> &Self {
        self
    }
}

fn part(body: &[u8], start: u32, len: u32) -> &[u8] {
    let start = start as usize;
    &body[start..start + len as usize]
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Some(gauge) = &self.gauge {
            gauge
                .bodies
                .fetch_sub(self.body.len() as u64, Ordering::Relaxed);
            gauge.messages.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        let header = MessageHeader {
            qos: Qos::ExactlyOnce,
            retain: true,
            ..MessageHeader::default()
        };
        // Native form 3..13, with the payload at its end.
        let body = Bytes::from_static(b"t/1native-pay");
        Message::from_body(body, 0..3, 3..3, 10..13, header).expect("it fits")
    }

    #[test]
    fn the_native_form_is_a_share_of_the_body_that_may_hold_the_payload() {
        assert!(message().native().is_none());
        let message = message()
            .with_native(NativeFormat::Amqp, 3..13)
            .expect("it lies in the body");
        assert_eq!(
            message.native(),
            Some((NativeFormat::Amqp, &b"native-pay"[..]))
        );
        let (_, native) = message.native().expect("it has one");
        assert_eq!(native.as_ptr(), message.body[3..].as_ptr(), "not a copy");
        assert_eq!(message.payload(), b"pay");
        // A will keeps it when it is published.
        assert_eq!(
            message.republished(7, None).native(),
            Some((NativeFormat::Amqp, &b"native-pay"[..]))
        );
        assert_eq!((message.qos(), message.retain()), (Qos::ExactlyOnce, true));
        assert_eq!(message.body_bytes(), 13);
    }

    #[test]
    fn a_native_form_outside_of_the_body_is_refused() {
        for (start, end) in [(0, 14), (14, 14), (usize::MAX - 1, usize::MAX), (2, 1)] {
            assert!(
                message()
                    .with_native(NativeFormat::Amqp, Range { start, end })
                    .is_err()
            );
        }
        assert!(message().with_native(NativeFormat::Amqp, 13..13).is_ok());
    }

    #[test]
    fn a_message_is_small() {
        assert_eq!(size_of::<Message>(), 96);
    }
}
