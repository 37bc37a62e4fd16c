//! From the broker's message to AMQP's sections.

use bytes::{Bytes, BytesMut};
use sterna_amqp::messaging::{Header, MessageView, MessageWriter, SectionKind, Sections};
use sterna_amqp::types::{Map, Value};
use sterna_broker::{Message, NativeFormat, Qos};
use sterna_mapping::{TOPIC_ANNOTATION, ToAmqp, merge_annotations, to_amqp};
use sterna_mqtt::{PropertyContext, PublishProperties};

/// The parts of a delivery that go into its message.
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
    /// The address of the receiver's source; empty for none.
    pub(crate) source: &'m str,
}

/// Appends the head of the message to `out`; what follows it are the last bytes of the message's body
/// that are returned.
pub(crate) fn amqp_form<'m>(form: &AmqpForm<'m>, out: &mut BytesMut) -> &'m [u8] {
    match form.message.native() {
        Some((NativeFormat::Amqp, native)) => native_form(form, native, out),
        None => mqtt_form(form, None, out),
    }
}

/// A message with annotations as a receiver has modified them (part 3, section 3.4.4). AMQP receivers get
/// it so from now on. For other protocols it is the same.
///
/// `None` where its annotations would have more than `max_bytes`, or are no annotations.
pub(crate) fn modified(form: &AmqpForm<'_>, over: Map<'_>, max_bytes: usize) -> Option<Message> {
    over.check_keys(|key| matches!(key, Value::Symbol(_) | Value::Ulong(_)))
        .ok()?;
    let message = form.message;
    let mut native = BytesMut::new();
    if let Some((NativeFormat::Amqp, sent)) = message.native() {
        let published = MessageView::parse(sent).ok()?.message_annotations();
        let mut merged = BytesMut::new();
        merge_annotations(published, over, &mut merged);
        let Ok(Value::Map(map)) = Value::decode(&merged) else {
            return None; // nested too deeply
        };
        if merged.len() > max_bytes {
            return None;
        }
        let mut rest = sent;
        take_section(&mut rest, SectionKind::Header);
        native.extend_from_slice(&sent[..sent.len() - rest.len()]);
        take_section(&mut rest, SectionKind::MessageAnnotations);
        MessageWriter::new(&mut native).message_annotations_of(map);
        native.extend_from_slice(rest);
    } else {
        if over.body().len() > max_bytes {
            return None;
        }
        let rest = mqtt_form(form, Some(over), &mut native);
        native.extend_from_slice(rest);
    }
    let (topic, properties) = (message.topic_bytes(), message.properties());
    let payload = message.payload();
    let mut body =
        Vec::with_capacity(topic.len() + properties.len() + payload.len() + native.len());
    body.extend_from_slice(topic);
    body.extend_from_slice(properties);
    let properties = topic.len()..body.len();
    if !native.ends_with(payload) {
        body.extend_from_slice(payload);
    }
    let native_start = body.len();
    body.extend_from_slice(&native);
    let payload_end = if native.ends_with(payload) {
        body.len()
    } else {
        native_start
    };
    let native = native_start..body.len();
    let made = Message::from_body(
        Bytes::from(body),
        0..topic.len(),
        properties,
        payload_end - payload.len()..payload_end,
        message.header(),
    )
    .and_then(|made| made.with_native(NativeFormat::Amqp, native));
    Some(made.ok()?.with_origin(message.origin()))
}

/// The last bytes of what [`amqp_form`] returned.
pub(crate) fn tail(message: &Message, bytes: usize) -> &[u8] {
    let whole = match message.native() {
        Some((NativeFormat::Amqp, native)) => native,
        None => message.payload(),
    };
    &whole[whole.len().saturating_sub(bytes)..]
}

/// The fields of the header that the broker knows; the others have their defaults.
fn header(form: &AmqpForm<'_>) -> Header {
    let left_ms = form
        .message
        .expires_at_ms()
        .map(|at_ms| at_ms.saturating_sub(form.now_ms));
    Header {
        ttl: left_ms.map(|left_ms| u32::try_from(left_ms).unwrap_or(u32::MAX)),
        delivery_count: form.failures.into(),
        ..Header::default()
    }
}

impl AmqpForm<'_> {
    const fn was_acquired(&self) -> bool {
        self.redelivered || self.failures > 0
    }
}

/// A message that came by AMQP: its header is the broker's, everything else the publisher's.
fn native_form<'m>(form: &AmqpForm<'m>, native: &'m [u8], out: &mut BytesMut) -> &'m [u8] {
    // It was checked when it came.
    let view = MessageView::parse(native).ok();
    let sent = view.as_ref().and_then(|view| view.header().ok().flatten());
    let sent = sent.unwrap_or_default();
    let header = Header {
        durable: sent.durable,
        priority: sent.priority,
        first_acquirer: sent.first_acquirer && !form.was_acquired(),
        ..header(form)
    };
    let mut writer = MessageWriter::new(out);
    if header != Header::default() {
        writer.header(&header);
    }
    // Receivers take the topic from this annotation, from `to`, or from the link's address.
    let properties = view.and_then(|view| view.properties().ok().flatten());
    let to = properties.and_then(|properties| properties.to.as_ref().and_then(Value::as_text));
    let topic = form.message.topic();
    if to.unwrap_or(form.source) != topic {
        writer.delivery_annotations(|map| {
            map.push(&Value::Symbol(TOPIC_ANNOTATION), &Value::String(topic));
        });
    }
    let mut rest = native;
    take_section(&mut rest, SectionKind::Header);
    rest
}

/// Takes the first section off, if it is of this kind.
fn take_section(rest: &mut &[u8], kind: SectionKind) {
    if let Some(Ok(first)) = Sections::new(rest).next()
        && first.kind == kind
    {
        *rest = &rest[first.range.end..];
    }
}

/// A message that came by MQTT, or by a protocol without a form of its own.
fn mqtt_form<'m>(
    form: &AmqpForm<'m>,
    annotations: Option<Map<'_>>,
    out: &mut BytesMut,
) -> &'m [u8] {
    let message = form.message;
    // They were checked when they came.
    let published = PublishProperties::parse(message.properties(), PropertyContext::Publish)
        .unwrap_or(PublishProperties::EMPTY);
    let is_acknowledged = form.qos.is_acknowledged();
    let form = ToAmqp {
        topic: message.topic(),
        header: Header {
            durable: message.qos().is_acknowledged() && is_acknowledged,
            // For messages that are not sent twice it would say nothing.
            first_acquirer: is_acknowledged && !form.was_acquired(),
            ..header(form)
        },
        retain: form.retain,
        annotations,
    };
    to_amqp(&published, message.payload(), &form, out)
}
