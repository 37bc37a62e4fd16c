//! From the fields and the content of an HTTP request to the broker's message. (Frames of
//! WebTransport are read in `http/format/`.)

use sterna_broker::{Message, MessageHeader, Qos};
use sterna_mapping::{FieldError, FieldSource, field, from_fields};
use sterna_mqtt::PropertyContext;

/// The name of the content in errors.
const CONTENT: &str = "content";
/// The name of the properties in errors.
const PROPERTIES: &str = "properties";

/// The broker's message for a request that publishes to `topic`, which is a topic name.
///
/// # Errors
/// The first field that is not as `docs/http.md` says.
pub(crate) fn message_from_http(
    fields: &(impl FieldSource + ?Sized),
    topic: &str,
    content: &[u8],
    now_ms: u64,
) -> Result<Message, FieldError> {
    let mapped = from_fields(fields)?;
    let published = (mapped
        .properties
        .publish_properties(PropertyContext::Publish))
    .map_err(|_| FieldError::new(PROPERTIES, "the fields are no properties"))?;
    if published.is_utf8_payload() && std::str::from_utf8(content).is_err() {
        let detail = "the content is not UTF-8";
        return Err(FieldError::new(field::PAYLOAD_FORMAT, detail));
    }
    let header = MessageHeader {
        qos: Qos::from_u8(mapped.qos as u8).unwrap_or_default(),
        retain: mapped.retain,
        published_ms: now_ms,
        expires_at_ms: (mapped.expiry_s).map(|expiry_s| now_ms + u64::from(expiry_s) * 1000),
    };
    Message::copy(topic, published.raw(), content, header)
        .map_err(|_| FieldError::new(CONTENT, "the message's parts do not fit"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_FIELDS: &[(&str, &str)] = &[];

    #[test]
    fn text_that_is_none_is_refused() {
        let text: &[(&str, &str)] = &[("sterna-payload-format", "UTF-8")];
        let error = message_from_http(text, "a", b"\xff", 0).unwrap_err();
        assert_eq!(error.field, "sterna-payload-format");
        assert!(message_from_http(text, "a", "é".as_bytes(), 0).is_ok());
    }

    #[test]
    fn a_request_without_fields_is_a_message_of_level_one() {
        let message = message_from_http(NO_FIELDS, "a/b", b"x", 5).unwrap();
        assert_eq!((message.topic(), message.payload()), ("a/b", &b"x"[..]));
        assert_eq!((message.qos(), message.retain()), (Qos::AtLeastOnce, false));
        assert_eq!((message.expires_at_ms(), message.published_ms()), (None, 5));
        assert!(message.properties().is_empty());
    }
}
