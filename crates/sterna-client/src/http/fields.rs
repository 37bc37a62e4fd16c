//! Messages as fields of requests and responses (`docs/http.md`, "Publish").

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use sterna_mqtt::packet;
use sterna_mqtt::{Property, PropertyBuf, PropertyContext, QoS};

use super::Error;
use super::text;
use crate::message::{Message, Publish};

/// Most user properties of a message in fields.
const MAX_USER_PROPERTIES: usize = 1_024;

/// Fields of a message: names in lower case, and values.
pub(super) type Fields = Vec<(&'static str, Vec<u8>)>;

/// What the fields say of a message that is published. What is as by default says nothing, so that
/// small requests are small.
pub(super) fn of_publish(publish: &Publish) -> Result<Fields, Error> {
    let mut fields = Fields::new();
    match publish.qos {
        QoS::AtMostOnce => fields.push(("sterna-qos", b"0".to_vec())),
        QoS::AtLeastOnce => {}
        QoS::ExactlyOnce => fields.push(("sterna-qos", b"2".to_vec())),
    }
    if publish.retain {
        fields.push(("sterna-retain", b"?1".to_vec()));
    }
    let mut user = String::new();
    for property in publish.properties.properties() {
        match property {
            Property::ContentType(content_type) => {
                if !is_field_value(content_type) {
                    return Err(Error::invalid(
                        "the content type is no value of an HTTP field",
                    ));
                }
                fields.push(("content-type", content_type.as_bytes().to_vec()));
            }
            Property::MessageExpiryInterval(seconds) => {
                fields.push(("sterna-expiry", seconds.to_string().into_bytes()));
            }
            Property::ResponseTopic(topic) => {
                let mut value = String::new();
                text::push_field(topic, &mut value);
                fields.push(("sterna-response-topic", value.into_bytes()));
            }
            Property::CorrelationData(data) => {
                fields.push(("sterna-correlation-data", STANDARD.encode(data).into()));
            }
            Property::UserProperty(name, value) => {
                if !user.is_empty() {
                    user.push(',');
                }
                text::push_field(name, &mut user);
                user.push('=');
                text::push_field(value, &mut user);
            }
            Property::PayloadFormatIndicator(true) => {
                fields.push(("sterna-payload-format", b"utf-8".to_vec()));
            }
            _ => {}
        }
    }
    if !user.is_empty() {
        fields.push(("sterna-user-property", user.into_bytes()));
    }
    Ok(fields)
}

/// Whether a string can be the value of a field as it is (RFC 9110, section 5.5).
fn is_field_value(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    bytes.iter().all(|byte| matches!(byte, b' '..=b'~'))
        && !is_blank(bytes.first())
        && !is_blank(bytes.last())
}

/// The message that a response to `?last` is.
pub(super) fn to_message<'a>(
    topic: &str,
    fields: impl Iterator<Item = (&'a str, &'a [u8])>,
    payload: &Bytes,
) -> Result<Message, Error> {
    let wrong = |name: &str| Error::Protocol(format!("the field {name} cannot be read"));
    let mut qos = QoS::AtLeastOnce;
    let mut properties = PropertyBuf::new();
    let mut user_properties = 0;
    for (name, value) in fields {
        let value = || std::str::from_utf8(value).map_err(|_| wrong(name));
        let pushed = match name {
            "sterna-qos" => {
                let number = value()?.parse().ok().and_then(QoS::from_u8);
                qos = number.ok_or_else(|| wrong(name))?;
                Ok(())
            }
            "content-type" => properties.push(Property::ContentType(value()?)),
            "sterna-expiry" => {
                let seconds = value()?.parse().map_err(|_| wrong(name))?;
                properties.push(Property::MessageExpiryInterval(seconds))
            }
            "sterna-response-topic" => {
                let topic = text::decode(value()?).ok_or_else(|| wrong(name))?;
                properties.push(Property::ResponseTopic(&topic))
            }
            "sterna-correlation-data" => {
                let data = STANDARD.decode(value()?).map_err(|_| wrong(name))?;
                properties.push(Property::CorrelationData(&data))
            }
            "sterna-payload-format" if value()? == "utf-8" => {
                properties.push(Property::PayloadFormatIndicator(true))
            }
            "sterna-user-property" => {
                for pair in value()?.split(',') {
                    let (left, right) = pair.trim().split_once('=').ok_or_else(|| wrong(name))?;
                    let (Some(left), Some(right)) = (text::decode(left), text::decode(right))
                    else {
                        return Err(wrong(name));
                    };
                    user_properties += 1;
                    if user_properties > MAX_USER_PROPERTIES {
                        return Err(Error::Protocol("too many user properties".to_owned()));
                    }
                    properties
                        .push(Property::UserProperty(&left, &right))
                        .map_err(|_| wrong(name))?;
                }
                Ok(())
            }
            _ => Ok(()),
        };
        pushed.map_err(|_| wrong(name))?;
    }
    let properties = properties
        .publish_properties(PropertyContext::Publish)
        .map_err(|error| Error::Protocol(format!("the fields are no properties: {error}")))?;
    let publish = packet::Publish {
        dup: false,
        qos,
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

    use super::*;

    fn borrowed(fields: &Fields) -> impl Iterator<Item = (&str, &[u8])> {
        fields.iter().map(|(name, value)| (*name, value.as_slice()))
    }

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
        let message = to_message("a/b", borrowed(&fields), &Bytes::from_static(b"x")).unwrap();
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
            let _ = to_message("a", borrowed(&fields), &Bytes::new());
        }
    }
}
