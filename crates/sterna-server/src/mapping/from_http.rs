//! From the fields and the content of an HTTP request, or a frame of WebTransport, to the broker's
//! message.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use sterna_broker::{Message, MessageHeader, Qos};
use sterna_mqtt::{Property, PropertyBuf, PropertyContext, PublishProperties, topic};

use super::{field, percent};
use crate::http::{Frame, Head};

/// Base64 with or without padding, and with whatever bits a careless encoder has left.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Where fields come from, whichever version of HTTP brought them. Names are in lower case.
pub(crate) trait FieldSource {
    /// Hands over every value of a field, in order.
    fn each(&self, name: &str, each: &mut dyn FnMut(&[u8]));
}

impl FieldSource for Head {
    fn each(&self, name: &str, each: &mut dyn FnMut(&[u8])) {
        self.each_field(name, each);
    }
}

/// What of a request is not as it should be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FieldError {
    /// The field, in lower case.
    pub(crate) field: &'static str,
    pub(crate) detail: Cow<'static, str>,
}

impl FieldError {
    const fn new(field: &'static str, detail: &'static str) -> Self {
        Self {
            field,
            detail: Cow::Borrowed(detail),
        }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.detail)
    }
}

impl std::error::Error for FieldError {}

/// The broker's message for a request that publishes to `topic`, which is a topic name.
///
/// # Errors
/// The first field that is not as `docs/http.md` says.
pub(crate) fn message_from_http(
    fields: &dyn FieldSource,
    topic: &str,
    content: &[u8],
    now_ms: u64,
) -> Result<Message, FieldError> {
    let expiry_s = number(fields, field::EXPIRY)?;
    let header = MessageHeader {
        qos: qos(fields)?,
        retain: flag(fields, field::RETAIN)?,
        published_ms: now_ms,
        expires_at_ms: expiry_s.map(|expiry_s| now_ms + u64::from(expiry_s) * 1000),
    };
    let properties = properties(fields, content)?;
    let properties = properties.properties();
    Message::copy(topic, properties.raw(), content, header)
        .map_err(|_| FieldError::new(field::CONTENT, "the message's parts do not fit"))
}

/// The broker's message for a frame that publishes; it shares the frame's bytes. The topic must
/// be a topic name.
///
/// # Errors
/// What is wrong with its properties.
pub(crate) fn message_from_frame(frame: &Frame, now_ms: u64) -> Result<Message, FieldError> {
    let invalid = |detail| FieldError::new(field::PROPERTIES, detail);
    let properties = PublishProperties::parse(frame.properties(), PropertyContext::Publish)
        .map_err(|error| FieldError {
            field: field::PROPERTIES,
            detail: error.to_string().into(),
        })?;
    if properties.topic_alias().is_some() {
        return Err(invalid("there is no topic alias in a frame"));
    }
    if properties.has_subscription_identifier() {
        return Err(invalid("there is no subscription identifier in a frame"));
    }
    let header = MessageHeader {
        qos: Qos::from_u8(frame.flags.qos()).unwrap_or_default(),
        retain: frame.flags.retain(),
        published_ms: now_ms,
        expires_at_ms: (properties.message_expiry_s())
            .map(|expiry_s| now_ms + u64::from(expiry_s) * 1000),
    };
    let forward = properties.forward();
    let message = if let Some(contiguous) = forward.contiguous() {
        // They lie in the frame, unless there are none.
        let before = if contiguous.is_empty() {
            0
        } else {
            contiguous.as_ptr() as usize - frame.properties().as_ptr() as usize
        };
        let start = frame.properties.start + before;
        Message::from_body(
            frame.body.clone(),
            frame.topic.clone(),
            start..start + contiguous.len(),
            frame.payload.clone(),
            header,
        )
    } else {
        let mut rest = bytes::BytesMut::with_capacity(forward.len());
        forward.copy_to(&mut rest);
        Message::copy(frame.topic(), &rest, frame.payload(), header)
    };
    message.map_err(|_| invalid("the message's parts do not fit"))
}

fn properties(fields: &dyn FieldSource, content: &[u8]) -> Result<PropertyBuf, FieldError> {
    let mut out = PropertyBuf::new();
    let mut push = |name, property: Property<'_>| {
        out.push(property)
            .map_err(|_| FieldError::new(name, "longer than 65,535 bytes"))
    };
    if let Some(format) = single(fields, field::PAYLOAD_FORMAT)? {
        if !format.eq_ignore_ascii_case(b"utf-8") {
            return Err(FieldError::new(field::PAYLOAD_FORMAT, "not `utf-8`"));
        }
        if std::str::from_utf8(content).is_err() {
            let detail = "the content is not UTF-8";
            return Err(FieldError::new(field::PAYLOAD_FORMAT, detail));
        }
        push(
            field::PAYLOAD_FORMAT,
            Property::PayloadFormatIndicator(true),
        )?;
    }
    if let Some(value) = single(fields, field::CONTENT_TYPE)?.filter(|value| !value.is_empty()) {
        let value = text(field::CONTENT_TYPE, std::str::from_utf8(&value).ok())?;
        push(field::CONTENT_TYPE, Property::ContentType(value))?;
    }
    if let Some(value) = single(fields, field::RESPONSE_TOPIC)? {
        let value = percent::decode_text(&value);
        let value = text(field::RESPONSE_TOPIC, value.as_deref())?;
        topic::check_name(value)
            .map_err(|error| FieldError::new(field::RESPONSE_TOPIC, error.detail()))?;
        push(field::RESPONSE_TOPIC, Property::ResponseTopic(value))?;
    }
    if let Some(value) = single(fields, field::CORRELATION_DATA)? {
        let value = BASE64
            .decode(value)
            .map_err(|_| FieldError::new(field::CORRELATION_DATA, "not base64"))?;
        push(field::CORRELATION_DATA, Property::CorrelationData(&value))?;
    }
    let mut result = Ok(());
    fields.each(field::USER_PROPERTY, &mut |list| {
        for pair in list.split(|&byte| byte == b',') {
            let pair = pair.trim_ascii();
            if pair.is_empty() || result.is_err() {
                continue; // an empty member of a list is none (RFC 9110, section 5.6.1.2)
            }
            result = user_property(pair).and_then(|(name, value)| {
                push(field::USER_PROPERTY, Property::UserProperty(&name, &value))
            });
        }
    });
    result?;
    Ok(out)
}

fn user_property(pair: &[u8]) -> Result<(Cow<'_, str>, Cow<'_, str>), FieldError> {
    let at = pair.iter().position(|&byte| byte == b'=');
    let at = at.ok_or(FieldError::new(field::USER_PROPERTY, "not `name=value`"))?;
    let decoded = |part| {
        let decoded = percent::decode_text(part);
        text(field::USER_PROPERTY, decoded.as_deref())?;
        Ok(decoded.unwrap_or_default())
    };
    Ok((decoded(&pair[..at])?, decoded(&pair[at + 1..])?))
}

/// A text as MQTT has it (MQTT 5.0, section 1.5.4).
fn text<'a>(name: &'static str, text: Option<&'a str>) -> Result<&'a str, FieldError> {
    let text = text.ok_or_else(|| FieldError::new(name, "not percent-encoded UTF-8"))?;
    if text.contains('\0') {
        return Err(FieldError::new(name, "contains U+0000"));
    }
    Ok(text)
}

/// The value of a field that occurs at most once.
fn single(fields: &dyn FieldSource, name: &'static str) -> Result<Option<Vec<u8>>, FieldError> {
    let mut found = None;
    let mut count = 0;
    fields.each(name, &mut |value| {
        count += 1;
        found.get_or_insert_with(|| value.trim_ascii().to_vec());
    });
    if count > 1 {
        return Err(FieldError::new(name, "occurs more than once"));
    }
    Ok(found)
}

fn qos(fields: &dyn FieldSource) -> Result<Qos, FieldError> {
    match single(fields, field::QOS)?.as_deref() {
        None | Some(b"1") => Ok(Qos::AtLeastOnce),
        Some(b"0") => Ok(Qos::AtMostOnce),
        Some(b"2") => Ok(Qos::ExactlyOnce),
        Some(_) => Err(FieldError::new(field::QOS, "not 0, 1 or 2")),
    }
}

fn flag(fields: &dyn FieldSource, name: &'static str) -> Result<bool, FieldError> {
    match single(fields, name)?.as_deref() {
        None | Some(b"?0" | b"0" | b"false") => Ok(false),
        Some(b"?1" | b"1" | b"true") => Ok(true),
        Some(_) => Err(FieldError::new(name, "not ?1 or ?0")),
    }
}

fn number(fields: &dyn FieldSource, name: &'static str) -> Result<Option<u32>, FieldError> {
    let Some(value) = single(fields, name)? else {
        return Ok(None);
    };
    let digits = std::str::from_utf8(&value).ok();
    let digits = digits.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let number = digits.and_then(|text| text.parse().ok());
    let detail = "not a whole number of seconds below 4,294,967,296";
    Ok(Some(number.ok_or_else(|| FieldError::new(name, detail))?))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    impl FieldSource for [(&str, &str)] {
        fn each(&self, name: &str, each: &mut dyn FnMut(&[u8])) {
            for (_, value) in self.iter().filter(|(known, _)| *known == name) {
                each(value.as_bytes());
            }
        }
    }

    impl FieldSource for Vec<(&str, &str)> {
        fn each(&self, name: &str, each: &mut dyn FnMut(&[u8])) {
            (**self).each(name, each);
        }
    }

    #[test]
    fn what_is_wrong_with_a_field_is_said() {
        for (name, value, detail) in [
            ("sterna-qos", "3", "not 0, 1 or 2"),
            ("sterna-qos", "", "not 0, 1 or 2"),
            ("sterna-retain", "yes", "not ?1 or ?0"),
            (
                "sterna-expiry",
                "+1",
                "not a whole number of seconds below 4,294,967,296",
            ),
            (
                "sterna-expiry",
                "4294967296",
                "not a whole number of seconds below 4,294,967,296",
            ),
            (
                "sterna-expiry",
                "",
                "not a whole number of seconds below 4,294,967,296",
            ),
            (
                "sterna-response-topic",
                "a/+",
                "Topic Name contains a wildcard",
            ),
            ("sterna-response-topic", "%", "not percent-encoded UTF-8"),
            ("sterna-response-topic", "%ff", "not percent-encoded UTF-8"),
            ("sterna-response-topic", "", "topic without a character"),
            ("sterna-correlation-data", "?", "not base64"),
            ("sterna-user-property", "a", "not `name=value`"),
            ("sterna-user-property", "a=b, c", "not `name=value`"),
            ("sterna-user-property", "a=%00", "contains U+0000"),
            ("sterna-payload-format", "binary", "not `utf-8`"),
        ] {
            let fields: &[(&str, &str)] = &[(name, value)];
            let error = message_from_http(&fields.to_vec(), "a", b"x", 0).unwrap_err();
            assert_eq!((error.field, &*error.detail), (name, detail), "{value}");
        }
        let twice = vec![("sterna-qos", "1"), ("sterna-qos", "1")];
        let error = message_from_http(&twice, "a", b"", 0).unwrap_err();
        assert_eq!(error.to_string(), "sterna-qos: occurs more than once");
        let text = vec![("sterna-payload-format", "UTF-8")];
        assert!(message_from_http(&text, "a", b"\xff", 0).is_err());
        assert!(message_from_http(&text, "a", "é".as_bytes(), 0).is_ok());
    }

    #[test]
    fn a_request_without_fields_is_a_message_of_level_one() {
        let message = message_from_http(&Vec::new(), "a/b", b"x", 5).unwrap();
        assert_eq!((message.topic(), message.payload()), ("a/b", &b"x"[..]));
        assert_eq!((message.qos(), message.retain()), (Qos::AtLeastOnce, false));
        assert_eq!((message.expires_at_ms(), message.published_ms()), (None, 5));
        assert!(message.properties().is_empty());
    }

    #[test]
    fn lists_of_user_properties_may_be_in_one_field_or_in_many() {
        let fields = vec![
            ("sterna-user-property", "a=1, b=%2C%3D,,c="),
            ("sterna-user-property", "=é"),
        ];
        let message = message_from_http(&fields, "a", b"", 0).unwrap();
        let properties =
            PublishProperties::parse(message.properties(), PropertyContext::Publish).unwrap();
        let user: Vec<_> = properties.user_properties().collect();
        assert_eq!(user, [("a", "1"), ("b", ",="), ("c", ""), ("", "é")]);
    }

    #[test]
    fn a_frame_becomes_a_message_without_what_ends_at_the_broker() {
        let build = |properties: &[Property<'_>]| {
            let mut block = PropertyBuf::new();
            for property in properties {
                block.push(*property).unwrap();
            }
            let raw = block.properties().raw().to_vec();
            let mut body = vec![9, 0x05, 3];
            body.extend_from_slice(b"a/b");
            body.push(raw.len() as u8);
            body.extend_from_slice(&raw);
            body.extend_from_slice(b"payload");
            Frame::parse(Bytes::from(body)).unwrap()
        };
        let (user, text) = (
            Property::UserProperty("n", "v"),
            Property::ContentType("text/plain"),
        );
        let expiry = Property::MessageExpiryInterval(7);
        for properties in [
            &[user, text][..],
            &[expiry, user, text],
            &[user, expiry, text],
            &[user, text, expiry],
            &[expiry],
            &[],
        ] {
            let frame = build(properties);
            let message = message_from_frame(&frame, 1_000).unwrap();
            assert_eq!(
                (message.topic(), message.payload()),
                ("a/b", &b"payload"[..])
            );
            assert_eq!((message.qos(), message.retain()), (Qos::AtLeastOnce, true));
            let expires_at_ms = properties.contains(&expiry).then_some(8_000);
            assert_eq!(message.expires_at_ms(), expires_at_ms);
            let rest: Vec<_> = properties
                .iter()
                .filter(|known| **known != expiry)
                .collect();
            let kept = PublishProperties::parse(message.properties(), PropertyContext::Publish);
            assert_eq!(
                kept.unwrap()
                    .all()
                    .iter()
                    .collect::<Vec<_>>()
                    .iter()
                    .collect::<Vec<_>>(),
                rest
            );
        }
        for refused in [
            Property::TopicAlias(1),
            Property::SubscriptionIdentifier(1),
            Property::ReceiveMaximum(1),
        ] {
            let error = message_from_frame(&build(&[refused]), 0).unwrap_err();
            assert_eq!(error.field, "properties");
        }
    }
}
