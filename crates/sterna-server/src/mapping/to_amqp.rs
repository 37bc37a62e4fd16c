//! From the broker's message to AMQP's sections.

use bytes::{BufMut as _, BytesMut};
use sterna_amqp::messaging::{
    Header, MessageId, MessageView, MessageWriter, Properties, SectionKind, Sections,
};
use sterna_amqp::types::{Symbol, Timestamp, Value};
use sterna_broker::{Message, NativeFormat, Qos};
use sterna_mqtt::{PropertyContext, PublishProperties};

use super::{AMQP_BODY, DEFAULT_PRIORITY, RETAIN, TOPIC, name, text};

/// What of a delivery goes into its message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AmqpForm<'m> {
    /// The message.
    pub(crate) message: &'m Message,
    /// The level it is delivered at.
    pub(crate) qos: Qos,
    /// Whether it comes as retained.
    pub(crate) retain: bool,
    /// Whether it was sent before.
    pub(crate) redelivered: bool,
    /// Attempts to deliver it that failed.
    pub(crate) failures: u16,
    /// Milliseconds since the Unix epoch.
    pub(crate) now_ms: u64,
}

/// Appends the head of the message to `out`; what follows it are the last bytes of the message's body
/// that are returned.
pub(crate) fn amqp_form<'m>(form: &AmqpForm<'m>, out: &mut BytesMut) -> &'m [u8] {
    match form.message.native() {
        Some((NativeFormat::Amqp, native)) => native_form(form, native, out),
        None => mqtt_form(form, out),
    }
}

/// The last bytes of what [`amqp_form`] returned.
pub(crate) fn tail(message: &Message, bytes: usize) -> &[u8] {
    let whole = match message.native() {
        Some((NativeFormat::Amqp, native)) => native,
        None => message.payload(),
    };
    &whole[whole.len().saturating_sub(bytes)..]
}

fn header(form: &AmqpForm<'_>, priority: u8, durable: bool) -> Header {
    let left_ms = form
        .message
        .expires_at_ms()
        .map(|at_ms| at_ms.saturating_sub(form.now_ms));
    Header {
        durable,
        priority,
        ttl: left_ms.map(|left_ms| u32::try_from(left_ms).unwrap_or(u32::MAX)),
        first_acquirer: !form.redelivered && form.failures == 0,
        delivery_count: form.failures.into(),
    }
}

/// A message that came by AMQP: its header is the broker's, everything else the publisher's.
fn native_form<'m>(form: &AmqpForm<'m>, native: &'m [u8], out: &mut BytesMut) -> &'m [u8] {
    let mut rest = native;
    let first = Sections::new(native).next().and_then(Result::ok);
    if let Some(section) = first.filter(|section| section.kind == SectionKind::Header) {
        rest = &native[section.range.end..];
    }
    // It was checked when it came.
    let view = MessageView::parse(native).ok();
    let sent = view.as_ref().and_then(|view| view.header().ok().flatten());
    let sent = sent.unwrap_or_default();
    let mut writer = MessageWriter::new(out);
    writer.header(&header(form, sent.priority, sent.durable));
    let properties = view.and_then(|view| view.properties().ok().flatten());
    let to = properties.and_then(|properties| properties.to.as_ref().and_then(Value::as_text));
    let topic = form.message.topic();
    if to != Some(topic) {
        writer.delivery_annotations(|map| map.push(&Value::Symbol(TOPIC), &Value::String(topic)));
    }
    rest
}

/// Texts and bytes that fields of AMQP are made of, kept while they are written.
#[derive(Default)]
struct Kept {
    message_id: Option<Vec<u8>>,
    user_id: Option<Vec<u8>>,
    to: String,
    reply_to: String,
}

/// A message that came by MQTT, or by a protocol without a form of its own.
fn mqtt_form<'m>(form: &AmqpForm<'m>, out: &mut BytesMut) -> &'m [u8] {
    let message = form.message;
    let payload = message.payload();
    // They were checked when they came.
    let published = PublishProperties::parse(message.properties(), PropertyContext::Publish)
        .unwrap_or(PublishProperties::EMPTY);
    let of_name = |wanted: &str| {
        published
            .user_properties()
            .filter(|(name, _)| *name == wanted)
            .last()
            .map(|(_, value)| value)
    };
    let kept = Kept {
        message_id: of_name(name::MESSAGE_ID).and_then(text::binary_message_id),
        user_id: of_name(name::USER_ID).and_then(text::from_base64),
        to: address(message.topic()),
        reply_to: published.response_topic().map(address).unwrap_or_default(),
    };
    let priority = of_name(name::PRIORITY).and_then(|text| text.parse().ok());
    let is_encoded = published.content_type() == Some(AMQP_BODY) && is_body(payload);
    let mut writer = MessageWriter::new(out);
    writer.header(&header(
        form,
        priority.unwrap_or(DEFAULT_PRIORITY),
        message.qos().is_acknowledged() && form.qos.is_acknowledged(),
    ));
    if form.retain {
        writer.message_annotations(|map| map.push(&Value::Symbol(RETAIN), &Value::Boolean(true)));
    }
    let number = |wanted| of_name(wanted).and_then(|text| text.parse().ok());
    let symbol = |text: &'m str| text.is_ascii().then_some(Symbol(text));
    let properties = Properties {
        message_id: match &kept.message_id {
            Some(bytes) => Some(MessageId::Binary(bytes)),
            None => of_name(name::MESSAGE_ID).map(MessageId::String),
        },
        user_id: kept.user_id.as_deref(),
        to: Some(Value::String(&kept.to)),
        subject: of_name(name::SUBJECT),
        reply_to: (!kept.reply_to.is_empty()).then_some(Value::String(&kept.reply_to)),
        correlation_id: published.correlation_data().map(|bytes| {
            std::str::from_utf8(bytes).map_or(MessageId::Binary(bytes), MessageId::String)
        }),
        content_type: published
            .content_type()
            .filter(|_| !is_encoded)
            .and_then(symbol),
        content_encoding: of_name(name::CONTENT_ENCODING).and_then(symbol),
        absolute_expiry_time: None,
        creation_time: of_name(name::CREATION_TIME)
            .and_then(|text| text.parse().ok())
            .map(Timestamp),
        group_id: of_name(name::GROUP_ID),
        group_sequence: number(name::GROUP_SEQUENCE),
        reply_to_group_id: of_name(name::REPLY_TO_GROUP_ID),
    };
    writer.properties(&properties);
    let user = application_properties(&published);
    if !user.is_empty() {
        writer.application_properties(|map| {
            for (name, value) in &user {
                map.push(&Value::String(name), &Value::String(value));
            }
        });
    }
    if is_encoded {
        return payload;
    }
    if published.is_utf8_payload() && std::str::from_utf8(payload).is_ok() {
        section_head(SectionKind::AmqpValue, [0xa1, 0xb1], payload.len(), out);
    } else {
        section_head(SectionKind::Data, [0xa0, 0xb0], payload.len(), out);
    }
    payload
}

/// The user properties that are application properties: of a name that occurs more than once the last.
fn application_properties<'m>(published: &PublishProperties<'m>) -> Vec<(&'m str, &'m str)> {
    let mut found: Vec<(&str, &str)> = Vec::new();
    for (name, value) in published.user_properties() {
        if is_field(name) {
            continue;
        }
        match found.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => found.push((name, value)),
        }
    }
    found
}

fn is_field(user_property: &str) -> bool {
    matches!(
        user_property,
        name::SUBJECT
            | name::MESSAGE_ID
            | name::USER_ID
            | name::CONTENT_ENCODING
            | name::CREATION_TIME
            | name::GROUP_ID
            | name::GROUP_SEQUENCE
            | name::REPLY_TO_GROUP_ID
            | name::PRIORITY
    )
}

/// The address of a topic: the topic itself, unless that would be read as something else.
fn address(topic: &str) -> String {
    if topic.starts_with('/') {
        format!("{}{topic}", crate::amqp::TOPIC_PREFIX)
    } else {
        topic.to_owned()
    }
}

/// Whether bytes are the body sections of a message and nothing else.
fn is_body(bytes: &[u8]) -> bool {
    !bytes.is_empty()
        && MessageView::parse(bytes).is_ok_and(|view| view.body_range() == (0..bytes.len()))
}

/// Descriptor, constructor and length of a section that is one binary or string value.
fn section_head(kind: SectionKind, [short, long]: [u8; 2], len: usize, out: &mut BytesMut) {
    out.put_slice(&[0x00, 0x53, kind.code() as u8]);
    if let Ok(len) = u8::try_from(len) {
        out.put_slice(&[short, len]);
    } else {
        out.put_u8(long);
        // A body has at most 4 GiB.
        out.put_u32(len as u32);
    }
}
