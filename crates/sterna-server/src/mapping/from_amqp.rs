//! From AMQP's sections to the broker's message.

use std::ops::Range;

use bytes::Bytes;
use sterna_amqp::DecodeError;
use sterna_amqp::messaging::{Body, Header, MessageView, Properties, SectionKind, Sections};
use sterna_amqp::types::{Map, Value};
use sterna_broker::{Message, MessageHeader, NativeFormat, Qos};
use sterna_mqtt::{Property, PropertyBuf};

use super::{AMQP_BODY, DEFAULT_PRIORITY, RETAIN, name, text};

const TOO_LARGE: DecodeError = DecodeError::invalid("a field is longer than 65,535 bytes");
const NO_FIT: DecodeError = DecodeError::invalid("the message's parts do not fit");

/// The broker's message for a delivery to `topic`. `reply_topic` turns an address, with
/// the message annotations, into the topic that it names.
///
/// # Errors
///
/// `amqp:decode-error` and `amqp:invalid-field` for a message that is malformed, or whose fields do
/// not fit MQTT's limits.
pub(crate) fn message_from_amqp(
    payload: &[u8],
    topic: &str,
    qos: Qos,
    now_ms: u64,
    reply_topic: impl Fn(&str, Option<Map<'_>>) -> Option<String>,
) -> Result<Message, DecodeError> {
    let view = MessageView::parse(payload)?;
    view.validate()?;
    let sections = (
        view.header()?.unwrap_or_default(),
        view.properties()?.unwrap_or_default(),
    );
    let header = MessageHeader {
        qos,
        retain: is_retained(&view),
        published_ms: now_ms,
        expires_at_ms: expires_at_ms(&sections, now_ms),
    };
    let (content, kind) = content(&view);
    let properties = properties(&view, &sections, kind, reply_topic)?;
    // What ends here are delivery annotations: they are for the next hop (part 3, section 3.2.2).
    let hop = hop_sections(payload)?;
    let native_bytes = payload.len() - hop.len();
    let mut body = Vec::with_capacity(topic.len() + properties.len() + native_bytes);
    body.extend_from_slice(topic.as_bytes());
    body.extend_from_slice(properties.properties().raw());
    let native_start = body.len();
    body.extend_from_slice(&payload[..hop.start]);
    body.extend_from_slice(&payload[hop.end..]);
    let content_start = native_start
        + if content.start >= hop.end {
            content.start - hop.len()
        } else {
            content.start
        };
    let native = native_start..body.len();
    Message::from_body(
        Bytes::from(body),
        0..topic.len(),
        topic.len()..native_start,
        content_start..content_start + content.len(),
        header,
    )
    .and_then(|message| message.with_native(NativeFormat::Amqp, native))
    .map_err(|_| NO_FIT)
}

/// Where delivery annotations lie; an empty range where there are none.
fn hop_sections(payload: &[u8]) -> Result<Range<usize>, DecodeError> {
    for section in Sections::new(payload) {
        let section = section?;
        match section.kind {
            SectionKind::Header => {}
            SectionKind::DeliveryAnnotations => return Ok(section.range),
            _ => break,
        }
    }
    Ok(0..0)
}

fn is_retained(view: &MessageView<'_>) -> bool {
    view.message_annotations()
        .and_then(|annotations| annotations.get(RETAIN))
        .is_some_and(|value| value == Value::Boolean(true))
}

/// Header and properties of a message.
type Fields<'a> = (Header, Properties<'a>);

fn expires_at_ms((header, properties): &Fields<'_>, now_ms: u64) -> Option<u64> {
    let by_ttl = header.ttl.map(|ttl_ms| now_ms + u64::from(ttl_ms));
    let absolute = properties.absolute_expiry_time;
    // JMS writes 0 for never.
    let by_time = absolute.and_then(|time| u64::try_from(time.0).ok().filter(|&at_ms| at_ms > 0));
    match (by_ttl, by_time) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// What MQTT's payload is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    Bytes,
    Text,
    /// The encoding of the body's sections.
    Encoded,
}

/// Where MQTT's payload lies in the AMQP payload, and what it is.
fn content(view: &MessageView<'_>) -> (Range<usize>, Content) {
    let within = |part: &[u8]| {
        let start = part.as_ptr() as usize - view.payload().as_ptr() as usize;
        start..start + part.len()
    };
    if let Some(data) = view.data() {
        return (within(data), Content::Bytes);
    }
    match view.body() {
        Body::Empty | Body::Value(Value::Null) => (0..0, Content::Bytes),
        Body::Value(Value::String(text)) => (within(text.as_bytes()), Content::Text),
        Body::Value(Value::Binary(bytes)) => (within(bytes), Content::Bytes),
        _ => (view.body_range(), Content::Encoded),
    }
}

fn properties(
    view: &MessageView<'_>,
    (header, fields): &Fields<'_>,
    kind: Content,
    reply_topic: impl Fn(&str, Option<Map<'_>>) -> Option<String>,
) -> Result<PropertyBuf, DecodeError> {
    let mut out = PropertyBuf::new();
    let mut push = |property: Property<'_>| out.push(property).map_err(|_| TOO_LARGE);
    if kind == Content::Text {
        push(Property::PayloadFormatIndicator(true))?;
    }
    let content_type = fields.content_type.map(|symbol| symbol.0);
    let otherwise = (kind == Content::Encoded).then_some(AMQP_BODY);
    if let Some(content_type) = content_type.or(otherwise) {
        push(Property::ContentType(content_type))?;
    }
    let reply_to = fields.reply_to.as_ref().and_then(Value::as_text);
    let annotations = view.message_annotations();
    if let Some(topic) = reply_to.and_then(|address| reply_topic(address, annotations)) {
        push(Property::ResponseTopic(&topic))?;
    }
    if let Some(id) = fields.correlation_id {
        push(Property::CorrelationData(&text::correlation_data(id)))?;
    }
    let mut user = |name: &str, value: &str| push(Property::UserProperty(name, value));
    for (name, value) in view.application_properties().into_iter().flatten() {
        if let (Some(name), Some(value)) = (name.as_text(), text::of_value(&value)) {
            user(name, &value)?;
        }
    }
    if let Some(subject) = fields.subject {
        user(name::SUBJECT, subject)?;
    }
    if let Some(id) = fields.message_id {
        user(name::MESSAGE_ID, &text::of_message_id(id))?;
    }
    if let Some(id) = fields.user_id {
        user(name::USER_ID, &text::base64(id))?;
    }
    if let Some(encoding) = fields.content_encoding {
        user(name::CONTENT_ENCODING, encoding.0)?;
    }
    if let Some(time) = fields.creation_time {
        user(name::CREATION_TIME, &time.0.to_string())?;
    }
    if let Some(id) = fields.group_id {
        user(name::GROUP_ID, id)?;
    }
    if let Some(sequence) = fields.group_sequence {
        user(name::GROUP_SEQUENCE, &sequence.to_string())?;
    }
    if let Some(id) = fields.reply_to_group_id {
        user(name::REPLY_TO_GROUP_ID, id)?;
    }
    if header.priority != DEFAULT_PRIORITY {
        user(name::PRIORITY, &header.priority.to_string())?;
    }
    Ok(out)
}
