//! From the broker's message to the fields of an HTTP response. (The forms of a subscription are in
//! `http/format/`.)

use std::hash::{Hash as _, Hasher as _};

use rustc_hash::FxHasher;
use sterna_broker::Message;
use sterna_mapping::{ToFields, to_fields};
use sterna_mqtt::{PropertyContext, PublishProperties, QoS};

/// Hands over the fields of a message whose payload is the content of a response. Names are in lower case,
/// values are visible ASCII and spaces.
pub(crate) fn http_fields(message: &Message, now_ms: u64, put: impl FnMut(&'static str, &str)) {
    // They were checked when they came.
    let properties = PublishProperties::parse(message.properties(), PropertyContext::Publish)
        .unwrap_or(PublishProperties::EMPTY);
    let fields = ToFields {
        qos: QoS::from_u8(message.qos() as u8).unwrap_or(QoS::AtMostOnce),
        retain: message.retain(),
        expiry_s: message.expiry_left_s(now_ms),
        properties,
    };
    to_fields(&fields, put);
}

/// The entity tag of a retained message (RFC 9110, section 8.8.3), with its quotes. A message of another millisecond
/// has another tag, also with the same content.
pub(crate) fn entity_tag(message: &Message) -> String {
    let mut hasher = FxHasher::default();
    message.properties().hash(&mut hasher);
    message.payload().hash(&mut hasher);
    (message.qos() as u8, message.expires_at_ms()).hash(&mut hasher);
    format!("\"{:x}-{:x}\"", message.published_ms(), hasher.finish())
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use proptest::prelude::*;
    use sterna_amqp::messaging::{Header, MessageId, MessageView, MessageWriter, Properties};
    use sterna_amqp::types::{Symbol, Value};
    use sterna_broker::{MessageHeader, Qos};
    use sterna_mapping::percent;
    use sterna_mqtt::{Property, PropertyBuf};

    use super::*;
    use crate::mapping::{AmqpForm, amqp_form, message_from_amqp, message_from_http};

    const NOW_MS: u64 = 1_700_000_000_000;

    fn fields(message: &Message) -> Vec<(&'static str, String)> {
        let mut fields = Vec::new();
        http_fields(message, NOW_MS, |name, value| {
            fields.push((name, value.to_owned()));
        });
        fields
    }

    fn from_fields(fields: &[(&'static str, String)], topic: &str, content: &[u8]) -> Message {
        let fields: Vec<(&str, &str)> = fields
            .iter()
            .map(|(name, value)| (*name, &**value))
            .collect();
        message_from_http(&*fields, topic, content, NOW_MS).unwrap()
    }

    /// A message as MQTT has it. Its properties are in the order in which HTTP's are made.
    fn mqtt_message() -> impl Strategy<Value = Message> {
        let text = "[a-zé,=%; \u{1}\"]{0,9}";
        (
            (0..3_u8, any::<[bool; 2]>(), prop::option::of(0..u32::MAX)),
            prop::collection::vec(any::<u8>(), 0..40),
            prop::option::of("[a-z]{1,5}/[a-z]{1,5}(; charset=\"[a-z]{3}\")?"),
            prop::option::of("[a-zé/% ]{1,9}"),
            prop::option::of(prop::collection::vec(any::<u8>(), 0..12)),
            prop::collection::vec((text, text), 0..4),
        )
            .prop_map(
                |(
                    (qos, [retain, is_text], expiry_s),
                    payload,
                    content_type,
                    response,
                    correlation,
                    user,
                )| {
                    let mut block = PropertyBuf::new();
                    let mut push = |property: Property<'_>| block.push(property).unwrap();
                    let payload = if is_text {
                        push(Property::PayloadFormatIndicator(true));
                        String::from_utf8_lossy(&payload).into_owned().into_bytes()
                    } else {
                        payload
                    };
                    if let Some(value) = &content_type {
                        push(Property::ContentType(value));
                    }
                    if let Some(value) = &response {
                        push(Property::ResponseTopic(value));
                    }
                    if let Some(value) = &correlation {
                        push(Property::CorrelationData(value));
                    }
                    for (name, value) in &user {
                        push(Property::UserProperty(name, value));
                    }
                    let header = MessageHeader {
                        qos: Qos::from_u8(qos).unwrap(),
                        retain,
                        published_ms: NOW_MS,
                        expires_at_ms: expiry_s.map(|expiry_s| NOW_MS + u64::from(expiry_s) * 1000),
                    };
                    Message::copy("a/b", block.properties().raw(), &payload, header).unwrap()
                },
            )
    }

    fn assert_same(a: &Message, b: &Message) {
        assert_eq!(a.topic(), b.topic());
        assert_eq!(a.payload(), b.payload());
        assert_eq!(a.properties(), b.properties());
        assert_eq!((a.qos(), a.retain()), (b.qos(), b.retain()));
        assert_eq!(a.expires_at_ms(), b.expires_at_ms());
    }

    proptest! {
        #[test]
        fn a_message_of_mqtt_comes_back_from_its_fields(message in mqtt_message()) {
            let fields = fields(&message);
            for (name, value) in &fields {
                prop_assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'));
                prop_assert!(value.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' '));
            }
            assert_same(&from_fields(&fields, "a/b", message.payload()), &message);
        }

        #[test]
        fn a_message_of_amqp_has_its_properties_in_fields(
            content_type in prop::option::of("[a-z]{1,5}/[a-z]{1,5}"),
            subject in prop::option::of("[a-zé,= ]{1,9}"),
            correlation in prop::option::of("[a-zé]{1,9}"),
            reply_to in prop::option::of("[a-z]{1,3}/[a-zé]{1,3}"),
            application in prop::collection::btree_map("[a-zé%]{1,5}", "[a-zé,]{0,5}", 0..3),
            ttl_s in prop::option::of(1..1_000_000_u32),
            content in prop::collection::vec(any::<u8>(), 0..30),
            is_text in any::<bool>(),
        ) {
            let content = if is_text { b"text".to_vec() } else { content };
            let mut out = BytesMut::new();
            let mut writer = MessageWriter::new(&mut out);
            writer.header(&Header { ttl: ttl_s.map(|ttl_s| ttl_s * 1000), ..Header::default() });
            writer.properties(&Properties {
                subject: subject.as_deref(),
                reply_to: reply_to.as_deref().map(Value::String),
                correlation_id: correlation.as_deref().map(MessageId::String),
                content_type: content_type.as_deref().map(Symbol),
                ..Properties::default()
            });
            writer.application_properties(|map| {
                for (name, value) in &application {
                    map.push(&Value::String(name), &Value::String(value));
                }
            });
            if is_text {
                writer.value(&Value::String("text"));
            } else {
                writer.data(&content);
            }
            let message = message_from_amqp(&out, "a/b", Qos::AtLeastOnce, NOW_MS, |address, _| {
                Some(address.to_owned())
            }).unwrap();
            let fields = fields(&message);
            let of = |wanted: &str| {
                fields.iter().filter(|(name, _)| *name == wanted).map(|(_, value)| &**value).collect::<Vec<_>>()
            };
            let one = |value: Option<String>| value.into_iter().collect::<Vec<_>>();
            prop_assert_eq!(of("content-type"), one(content_type));
            prop_assert_eq!(of("sterna-expiry"), one(ttl_s.map(|ttl_s| ttl_s.to_string())));
            prop_assert_eq!(of("sterna-response-topic"), one(reply_to.as_deref().map(percent::encoded)));
            let data = correlation.as_deref().map(|text| sterna_mapping::base64(text.as_bytes()));
            prop_assert_eq!(of("sterna-correlation-data"), one(data));
            prop_assert_eq!(of("sterna-payload-format"), one(is_text.then(|| "utf-8".to_owned())));
            let mut user: Vec<String> = application.iter().map(|(name, value)| format!("{}={}", percent::encoded(name), percent::encoded(value))).collect();
            user.extend(subject.as_deref().map(|subject| format!("amqp-subject={}", percent::encoded(subject))));
            prop_assert_eq!(of("sterna-user-property"), user);
            prop_assert_eq!(message.payload(), &*content);
        }

        #[test]
        fn a_message_of_http_reaches_amqp_as_one_of_mqtt_would(message in mqtt_message(), subject in "[a-zé,]{1,9}") {
            let mut fields = fields(&message);
            fields.push(("sterna-user-property", format!("amqp-subject={}", percent::encoded(&subject))));
            let message = from_fields(&fields, "a/b", message.payload());
            let form = AmqpForm {
                message: &message, qos: message.qos(), retain: false, redelivered: false, failures: 0, now_ms: NOW_MS,
                source: "",
            };
            let mut out = BytesMut::new();
            let rest = amqp_form(&form, &mut out);
            out.extend_from_slice(rest);
            let view = MessageView::parse(&out).unwrap();
            let properties = view.properties().unwrap().unwrap();
            let parsed = PublishProperties::parse(message.properties(), PropertyContext::Publish).unwrap();
            prop_assert_eq!(properties.subject, Some(&*subject));
            prop_assert_eq!(properties.content_type.map(|symbol| symbol.0), parsed.content_type());
            prop_assert_eq!(properties.to.as_ref().and_then(Value::as_text), Some("a/b"));
            let header = view.header().unwrap().unwrap_or_default();
            prop_assert_eq!(header.durable, message.qos() != Qos::AtMostOnce);
            let ttl_ms = message.expiry_left_s(NOW_MS).map(|left_s| left_s.saturating_mul(1000));
            prop_assert_eq!(header.ttl, ttl_ms);
        }
    }

    #[test]
    fn entity_tags_tell_messages_apart() {
        let message = |payload: &str, published_ms| {
            let header = MessageHeader {
                published_ms,
                ..MessageHeader::default()
            };
            entity_tag(&Message::copy("a", b"", payload.as_bytes(), header).unwrap())
        };
        assert_eq!(message("x", 1), message("x", 1));
        assert_ne!(message("x", 1), message("y", 1));
        assert_ne!(message("x", 1), message("x", 2));
        let tag = message("x", 1);
        assert!(tag.starts_with('"') && tag.ends_with('"'));
    }
}
