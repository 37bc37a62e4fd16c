//! From a frame of WebTransport that publishes to the broker's message.

use bytes::BytesMut;
use sterna_broker::{Message, MessageHeader, Qos};
use sterna_mapping::FieldError;
use sterna_mqtt::{PropertyContext, PublishProperties};

use sterna_mapping::frame::Frame;

/// The field that errors of a frame's properties name.
const PROPERTIES: &str = "properties";

/// The broker's message for a frame that publishes; it shares the frame's bytes. The topic must
/// be a topic name.
///
/// # Errors
/// Its properties are invalid; the error says why.
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
        let mut rest = BytesMut::with_capacity(forward.len());
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
