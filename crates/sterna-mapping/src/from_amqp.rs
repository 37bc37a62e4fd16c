//! From AMQP's sections to MQTT's form.

use std::borrow::Cow;

use sterna_amqp::DecodeError;
use sterna_amqp::messaging::{Header, MessageView, Properties};
use sterna_amqp::types::{Map, Value};
use sterna_mqtt::{EncodeError, Property, PropertyBuf};

use crate::body::Payload;
use crate::{AMQP_BODY, DEFAULT_PRIORITY, RETAIN_ANNOTATION, name, text};

const TOO_LARGE: DecodeError = DecodeError::invalid("a field is longer than 65,535 bytes");
const NULL_CHARACTER: DecodeError =
    DecodeError::invalid("a field contains U+0000, which MQTT and HTTP have no form for");

/// A message of AMQP in MQTT's form.
#[derive(Debug)]
pub struct FromAmqp<'a> {
    /// Properties of a PUBLISH, without Message Expiry Interval.
    pub properties: PropertyBuf,
    /// Borrowed where it is a part of the message as it came.
    pub payload: Cow<'a, [u8]>,
    /// Whether the message is to be retained.
    pub retain: bool,
    /// Failed attempts to deliver it.
    pub delivery_count: u32,
    ttl_ms: Option<u32>,
    absolute_expiry_ms: Option<i64>,
}

impl FromAmqp<'_> {
    /// Time at which the message expires: the earlier of `ttl` from now and `absolute-expiry-time`.
    /// In milliseconds since the Unix epoch, as `now_ms`; `None` for never.
    #[must_use]
    pub fn expires_at_ms(&self, now_ms: u64) -> Option<u64> {
        let by_ttl = self.ttl_ms.map(|ttl_ms| now_ms + u64::from(ttl_ms));
        // JMS writes 0 for never.
        let by_time = self
            .absolute_expiry_ms
            .and_then(|at_ms| u64::try_from(at_ms).ok())
            .filter(|&at_ms| at_ms > 0);
        match (by_ttl, by_time) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

/// MQTT's form of a message, which was validated ([`MessageView::validate`]). `topic_of` turns the
/// address in `reply-to`, with the message annotations, into the topic that it names.
///
/// # Errors
///
/// `amqp:decode-error` for a malformed message. `amqp:invalid-field` for fields without a form in
/// MQTT: longer than 65,535 bytes, or with the character U+0000.
pub fn from_amqp<'a>(
    view: &MessageView<'a>,
    topic_of: impl Fn(&str, Option<Map<'_>>) -> Option<String>,
) -> Result<FromAmqp<'a>, DecodeError> {
    let header = view.header()?.unwrap_or_default();
    let fields = view.properties()?.unwrap_or_default();
    let payload = Payload::of(view);
    let annotations = view.message_annotations();
    let reply_to = fields.reply_to.as_ref().and_then(Value::as_text);
    let response_topic = reply_to
        .and_then(|address| topic_of(address, annotations))
        .filter(|topic| sterna_mqtt::topic::check_name(topic).is_ok());
    let mut out = Out(PropertyBuf::new());
    if payload.is_text {
        out.push(Property::PayloadFormatIndicator(true))?;
    }
    let content_type = fields.content_type.map(|symbol| symbol.0);
    if payload.is_encoded {
        out.push(Property::ContentType(AMQP_BODY))?;
    } else if let Some(content_type) = content_type.or(payload.content_type) {
        out.push(Property::ContentType(content_type))?;
    }
    if let Some(topic) = &response_topic {
        out.push(Property::ResponseTopic(topic))?;
    }
    if let Some(id) = fields.correlation_id {
        out.push(Property::CorrelationData(&text::correlation_data(id)))?;
    }
    for (name, value) in view.application_properties().into_iter().flatten() {
        if let (Some(name), Some(value)) = (name.as_text(), text::of_value(&value)) {
            out.user(name, &value)?;
        }
    }
    out.fields(&header, &fields)?;
    if let Some(content_type) = content_type.filter(|_| payload.is_encoded) {
        out.user(name::CONTENT_TYPE, content_type)?;
    }
    if let Some(mark) = &payload.mark {
        out.user(name::TYPE, mark)?;
    }
    Ok(FromAmqp {
        properties: out.0,
        payload: payload.bytes,
        retain: is_to_be_retained(view),
        delivery_count: header.delivery_count,
        ttl_ms: header.ttl,
        absolute_expiry_ms: fields.absolute_expiry_time.map(|time| time.0),
    })
}

/// Whether a message is to be retained.
#[must_use]
pub fn is_to_be_retained(view: &MessageView<'_>) -> bool {
    (view.message_annotations())
        .and_then(|annotations| annotations.get(RETAIN_ANNOTATION))
        .is_some_and(|value| value == Value::Boolean(true))
}

struct Out(PropertyBuf);

impl Out {
    fn push(&mut self, property: Property<'_>) -> Result<(), DecodeError> {
        self.0.push(property).map_err(|error| match error {
            EncodeError::NullCharacter => NULL_CHARACTER,
            EncodeError::FieldTooLong | EncodeError::TooLarge { .. } => TOO_LARGE,
        })
    }

    fn user(&mut self, name: &str, value: &str) -> Result<(), DecodeError> {
        self.push(Property::UserProperty(name, value))
    }

    /// Fields that only AMQP has.
    fn fields(&mut self, header: &Header, fields: &Properties<'_>) -> Result<(), DecodeError> {
        if let Some(subject) = fields.subject {
            self.user(name::SUBJECT, subject)?;
        }
        if let Some(id) = fields.message_id {
            self.user(name::MESSAGE_ID, &text::of_message_id(id))?;
        }
        if let Some(id) = fields.user_id {
            self.user(name::USER_ID, &text::base64(id))?;
        }
        if let Some(encoding) = fields.content_encoding {
            self.user(name::CONTENT_ENCODING, encoding.0)?;
        }
        if let Some(time) = fields.creation_time {
            self.user(name::CREATION_TIME, &time.0.to_string())?;
        }
        if let Some(id) = fields.group_id {
            self.user(name::GROUP_ID, id)?;
        }
        if let Some(sequence) = fields.group_sequence {
            self.user(name::GROUP_SEQUENCE, &sequence.to_string())?;
        }
        if let Some(id) = fields.reply_to_group_id {
            self.user(name::REPLY_TO_GROUP_ID, id)?;
        }
        if header.priority != DEFAULT_PRIORITY {
            self.user(name::PRIORITY, &header.priority.to_string())?;
        }
        Ok(())
    }
}
