//! From AMQP's sections to the broker's message.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use sterna_amqp::DecodeError;
use sterna_amqp::messaging::{MessageView, SectionKind, Sections};
use sterna_amqp::types::Map;
use sterna_broker::{Message, MessageHeader, NativeFormat, Qos};

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
    let mapped = sterna_mapping::from_amqp(&view, reply_topic)?;
    let header = MessageHeader {
        qos,
        retain: mapped.retain,
        published_ms: now_ms,
        expires_at_ms: mapped.expires_at_ms(now_ms),
    };
    // Delivery annotations end here: they are for the next hop (part 3, section 3.2.2).
    let hop = hop_sections(payload)?;
    let properties = mapped.properties.properties().raw();
    let own_payload: &[u8] = match &mapped.payload {
        Cow::Borrowed(_) => &[],
        Cow::Owned(bytes) => bytes,
    };
    let payload_start = topic.len() + properties.len();
    let native_start = payload_start + own_payload.len();
    let mut body = Vec::with_capacity(native_start + payload.len() - hop.len());
    body.extend_from_slice(topic.as_bytes());
    body.extend_from_slice(properties);
    body.extend_from_slice(own_payload);
    body.extend_from_slice(&payload[..hop.start]);
    body.extend_from_slice(&payload[hop.end..]);
    let payload_range = match mapped.payload {
        Cow::Owned(_) => payload_start..native_start,
        Cow::Borrowed([]) => payload_start..payload_start,
        Cow::Borrowed(part) => {
            // It lies in the body's sections, which are behind delivery annotations.
            let start = part.as_ptr() as usize - payload.as_ptr() as usize;
            let start = native_start + start - hop.len();
            start..start + part.len()
        }
    };
    let native = native_start..body.len();
    let properties = topic.len()..payload_start;
    Message::from_body(
        Bytes::from(body),
        0..topic.len(),
        properties,
        payload_range,
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
