//! From the fields and the content of an HTTP request, or a frame of WebTransport, to the broker's
//! message.

use sterna_broker::{Message, MessageHeader, Qos};
use sterna_mapping::{FieldError, FieldSource, field, from_fields};
use sterna_mqtt::{PropertyContext, PublishProperties};

use crate::http::{Frame, Head};

/// What errors of the content are said of.
const CONTENT: &str = "content";
/// What errors of a frame's properties are said of.
const PROPERTIES: &str = "properties";

impl FieldSource for Head {
    fn each(&self, name: &str, each: &mut dyn FnMut(&[u8])) {
        self.each_field(name, each);
    }
}

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

/// The broker's message for a frame that publishes; it shares the frame's bytes. The topic must
/// be a topic name.
///
/// # Errors
/// What is wrong with its properties.
pub(crate) fn message_from_frame(frame: &Frame, now_ms: u64) -> Result<Message, FieldError> {
    let invalid = |detail| FieldError::new(PROPERTIES, detail);
    let properties = PublishProperties::parse(frame.properties(), PropertyContext::Publish)
        .map_err(|error| FieldError {
            field: PROPERTIES,
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use sterna_mqtt::{Property, PropertyBuf};

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
