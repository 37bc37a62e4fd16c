//! The reader of queued messages, whichever protocol they came by: priority, delivery time, and the form of dead
//! letters.

use bytes::{Bytes, BytesMut};
use sterna_amqp::messaging::{MessageView, MessageWriter, SectionKind, Sections};
use sterna_amqp::types::Value;
use sterna_broker::{
    DEFAULT_PRIORITY, DeadLetter, Message, MessageHeader, MessageReader, NativeFormat, Qos,
};
use sterna_mqtt::{Property, PropertyBuf, PropertyContext, PublishProperties};

use crate::session::amqp::{DEAD_LETTER_TOPIC, topics_before_death};

/// The user property that is an AMQP message's priority (`docs/mapping.md`).
const PRIORITY: &str = "amqp-priority";
/// The time of delivery in milliseconds since the Unix epoch, as JMS clients write it. It is a message
/// annotation, and a user property of MQTT and HTTP.
const DELIVERY_TIME: &str = "x-opt-delivery-time";
/// As [`DELIVERY_TIME`], in milliseconds from the time at which the broker received the message.
const DELIVERY_DELAY: &str = "x-opt-delivery-delay";
/// The queue that a dead letter comes from.
const DEAD_LETTER_QUEUE: &str = "x-opt-dead-letter-queue";
/// Why it is one.
const DEAD_LETTER_CAUSE: &str = "x-opt-dead-letter-cause";
/// Deliveries of it that failed.
const DEAD_LETTER_FAILURES: &str = "x-opt-dead-letter-failures";

/// Reads the messages of AMQP queues.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueReader {
    /// The longest time that a message is held until it is due.
    pub(super) maximum_delay_ms: u64,
}

/// A user property of a message, if it has any; of several of a name the last.
fn user_property<'m>(message: &'m Message, wanted: &str) -> Option<&'m str> {
    if message.properties().is_empty() {
        return None;
    }
    // They were checked when they came.
    let published =
        PublishProperties::parse(message.properties(), PropertyContext::Publish).ok()?;
    let found = published
        .user_properties()
        .filter(|(name, _)| *name == wanted);
    found.last().map(|(_, value)| value)
}

fn native(message: &Message) -> Option<&[u8]> {
    message.native().map(|(NativeFormat::Amqp, native)| native)
}

/// A point in time or a duration, in any of the types that clients write.
fn milliseconds(value: &Value<'_>) -> Option<u64> {
    match *value {
        Value::Timestamp(number) | Value::Long(number) => u64::try_from(number).ok(),
        Value::Int(number) => u64::try_from(number).ok(),
        Value::Ulong(number) => Some(number),
        Value::Uint(number) => Some(number.into()),
        _ => None,
    }
}

/// Why a message is a dead letter: its queue, the cause, and deliveries that failed; `None` for another one.
pub(crate) fn death(message: &Message) -> Option<(&str, &str, u64)> {
    Some((
        user_property(message, DEAD_LETTER_QUEUE)?,
        user_property(message, DEAD_LETTER_CAUSE)?,
        user_property(message, DEAD_LETTER_FAILURES)?.parse().ok()?,
    ))
}

impl MessageReader for QueueReader {
    fn priority(&self, message: &Message) -> u8 {
        match native(message) {
            Some(native) => {
                let view = MessageView::parse(native).ok();
                let header = view.and_then(|view| view.header().ok().flatten());
                header.map_or(DEFAULT_PRIORITY, |header| header.priority)
            }
            None => user_property(message, PRIORITY)
                .and_then(|text| text.parse().ok())
                .unwrap_or(DEFAULT_PRIORITY),
        }
    }

    fn due_ms(&self, message: &Message) -> Option<u64> {
        let read = |name| match native(message) {
            Some(native) => {
                let annotations = MessageView::parse(native).ok()?.message_annotations()?;
                milliseconds(&annotations.get(name)?)
            }
            None => user_property(message, name)?.parse().ok(),
        };
        let after = |delay_ms| message.published_ms().saturating_add(delay_ms);
        let due_ms = read(DELIVERY_TIME).or_else(|| read(DELIVERY_DELAY).map(after))?;
        Some(due_ms.min(after(self.maximum_delay_ms)))
    }

    fn dead_letter(&self, message: &Message, letter: &DeadLetter<'_>) -> Option<Message> {
        let failures = letter.failures.to_string();
        let mut added = PropertyBuf::new();
        for (name, value) in [
            (DEAD_LETTER_QUEUE, letter.queue),
            (DEAD_LETTER_CAUSE, letter.cause.as_str()),
            (DEAD_LETTER_FAILURES, &failures),
        ] {
            added.push(Property::UserProperty(name, value)).ok()?;
        }
        // The topics that it has come from stay, each once: whoever is denied one of them does not get it.
        let mut topics = topics_before_death(message);
        if !topics.contains(&message.topic()) {
            topics.push(message.topic());
        }
        for topic in topics {
            let property = Property::UserProperty(DEAD_LETTER_TOPIC, topic);
            added.push(property).ok()?;
        }
        // Those of an earlier death, or of the publisher's making, go.
        let ours = [
            DEAD_LETTER_QUEUE,
            DEAD_LETTER_CAUSE,
            DEAD_LETTER_FAILURES,
            DEAD_LETTER_TOPIC,
        ];
        let mut properties = PropertyBuf::new();
        let published =
            PublishProperties::parse(message.properties(), PropertyContext::Publish).ok()?;
        for property in published.all() {
            if !matches!(property, Property::UserProperty(name, _) if ours.contains(&name)) {
                properties.push(property).ok()?;
            }
        }
        properties.extend(added.properties());
        let properties = properties.properties().raw();
        let header = MessageHeader {
            qos: message.qos().max(Qos::AtLeastOnce),
            retain: false,
            published_ms: message.published_ms(),
            // It has not been of use in time, which is no reason to lose it.
            expires_at_ms: None,
        };
        let Some(native) = native(message) else {
            return Message::copy(letter.topic, properties, message.payload(), header).ok();
        };
        let mut body =
            BytesMut::with_capacity(letter.topic.len() + properties.len() + native.len());
        body.extend_from_slice(letter.topic.as_bytes());
        body.extend_from_slice(properties);
        let native_start = body.len();
        let rest_start = annotate(native, letter, &mut body)?;
        let native_of_rest = body.len();
        body.extend_from_slice(&native[rest_start..]);
        let payload_start = match message.payload() {
            [] => native_of_rest,
            // Otherwise it lies in the native form, behind the annotations.
            payload => {
                let offset = (payload.as_ptr() as usize).checked_sub(native.as_ptr() as usize)?;
                native_of_rest + offset.checked_sub(rest_start)?
            }
        };
        let payload = payload_start..payload_start + message.payload().len();
        let native = native_start..body.len();
        let topic = 0..letter.topic.len();
        let properties = topic.end..native_start;
        let letter = Message::from_body(Bytes::from(body), topic, properties, payload, header);
        letter.ok()?.with_native(NativeFormat::Amqp, native).ok()
    }
}

/// Writes header and annotations of a message, with those of a dead letter; returns where the rest of
/// the message begins.
fn annotate(native: &[u8], letter: &DeadLetter<'_>, out: &mut BytesMut) -> Option<usize> {
    let view = MessageView::parse(native).ok()?;
    let mut rest_start = 0;
    for section in Sections::new(native) {
        let section = section.ok()?;
        match section.kind {
            SectionKind::Header => out.extend_from_slice(&native[section.range.clone()]),
            SectionKind::DeliveryAnnotations | SectionKind::MessageAnnotations => {}
            _ => break,
        }
        rest_start = section.range.end;
    }
    let ours = [DEAD_LETTER_QUEUE, DEAD_LETTER_CAUSE, DEAD_LETTER_FAILURES];
    MessageWriter::new(out).message_annotations(|map| {
        for (key, value) in view.message_annotations().into_iter().flatten() {
            if !key.as_text().is_some_and(|key| ours.contains(&key)) {
                map.push(&key, &value);
            }
        }
        map.push(
            &Value::Symbol(DEAD_LETTER_QUEUE),
            &Value::String(letter.queue),
        );
        map.push(
            &Value::Symbol(DEAD_LETTER_CAUSE),
            &Value::String(letter.cause.as_str()),
        );
        map.push(
            &Value::Symbol(DEAD_LETTER_FAILURES),
            &Value::Uint(letter.failures.into()),
        );
    });
    Some(rest_start)
}
