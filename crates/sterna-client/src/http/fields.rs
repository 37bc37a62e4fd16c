//! Messages as fields of requests and responses (`docs/http.md`, "Publish").

use bytes::Bytes;
use sterna_mapping::{FieldSource, ToFields, field, from_fields, is_field_value, to_fields};
use sterna_mqtt::packet;
use sterna_mqtt::{PropertyContext, PublishProperties};

use super::Error;
use crate::message::{Message, Publish};

/// Fields of a message: names in lower case, and values.
pub(super) type Fields = Vec<(&'static str, Vec<u8>)>;

/// The fields of a published message. Defaults are left out, and all user properties are in one
/// field, so that small requests are small.
pub(super) fn of_publish(publish: &Publish) -> Result<Fields, Error> {
    // They were checked when they were set.
    let properties = (publish
        .properties
        .publish_properties(PropertyContext::Publish))
    .unwrap_or(PublishProperties::EMPTY);
    let content_type = properties.content_type().unwrap_or_default();
    if !content_type.is_empty() && !is_field_value(content_type) {
        return Err(Error::invalid(
            "the content type is no value of an HTTP field",
        ));
    }
    let mut fields = Fields::new();
    let message = ToFields {
        qos: publish.qos,
        retain: publish.retain,
        expiry_s: properties.message_expiry_s(),
        properties,
    };
    to_fields(&message, |name, value| match fields.last_mut() {
        _ if name == field::QOS && value == "1" => {}
        Some((known, values)) if *known == name => {
            values.push(b',');
            values.extend_from_slice(value.as_bytes());
        }
        _ => fields.push((name, value.as_bytes().to_vec())),
    });
    Ok(fields)
}

/// The message that a response to `?last` is.
pub(super) fn to_message(
    topic: &str,
    fields: &(impl FieldSource + ?Sized),
    payload: &Bytes,
) -> Result<Message, Error> {
    let mapped = from_fields(fields)
        .map_err(|error| Error::Protocol(format!("the response cannot be read: {error}")))?;
    let mut block = mapped.properties;
    if let Some(expiry_s) = mapped.expiry_s {
        // A number is never too long.
        let _ = block.push(sterna_mqtt::Property::MessageExpiryInterval(expiry_s));
    }
    let properties = block
        .publish_properties(PropertyContext::Publish)
        .map_err(|error| Error::Protocol(format!("the fields are no properties: {error}")))?;
    let publish = packet::Publish {
        dup: false,
        qos: mapped.qos,
        retain: true,
        topic,
        packet_id: None,
        properties,
        payload,
    };
    Ok(Message::new(&publish, 0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sterna_mqtt::QoS;

    use super::*;

    #[test]
    fn what_is_as_by_default_says_nothing() {
        let plain = Publish::new("a", "x").unwrap().qos(QoS::AtLeastOnce);
        assert_eq!(of_publish(&plain).unwrap(), Fields::new());
        let odd = plain.content_type("text/plain ").unwrap();
        assert!(matches!(of_publish(&odd), Err(Error::Invalid(_))));
    }

    #[test]
    fn a_message_comes_back_as_it_went() {
        let publish = Publish::new("a/b", "x")
            .unwrap()
            .qos(QoS::ExactlyOnce)
            .content_type("text/plain; charset=utf-8")
            .unwrap()
            .expires_after_s(60)
            .unwrap()
            .response_topic("r/é")
            .unwrap()
            .correlation_data(&[0, 255])
            .unwrap()
            .utf8()
            .unwrap()
            .user_property("a,b", "c=d")
            .unwrap()
            .user_property("a,b", "")
            .unwrap();
        let fields = of_publish(&publish).unwrap();
        let message = to_message("a/b", &*fields, &Bytes::from_static(b"x")).unwrap();
        assert_eq!(message.qos(), QoS::ExactlyOnce);
        let properties = message.properties();
        assert_eq!(properties.message_expiry_s(), Some(60));
        assert_eq!(properties.response_topic(), Some("r/é"));
        assert_eq!(properties.correlation_data(), Some(&[0, 255][..]));
        assert!(properties.is_utf8_payload());
        let user: Vec<_> = properties.user_properties().collect();
        assert_eq!(user, [("a,b", "c=d"), ("a,b", "")]);
        assert_eq!(message.payload_bytes(), b"x");
    }

    proptest! {
        #[test]
        fn reading_never_panics(
            fields in prop::collection::vec((
                prop::sample::select(vec![
                    "sterna-qos", "content-type", "sterna-expiry", "sterna-response-topic",
                    "sterna-correlation-data", "sterna-payload-format", "sterna-user-property",
                ]),
                prop::collection::vec(any::<u8>(), 0..20),
            ), 0..6),
        ) {
            let fields: Fields = fields;
            let _ = to_message("a", &*fields, &Bytes::new());
        }
    }
}
