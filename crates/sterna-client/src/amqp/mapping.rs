//! How messages look in the other protocol (`docs/mapping.md`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use sterna_amqp::types::uuid_text;
use sterna_mqtt::packet;
use sterna_mqtt::{PacketId, Property, PropertyBuf, PropertyContext, QoS};

use super::message::{Body, Header, Message, Properties};
use super::options::ReceiverSettles;
use super::receiver::Delivery;
use super::value::Value;
use crate::message::{InvalidError, Publish};

/// The message annotation of a retained message: true.
pub const RETAIN_ANNOTATION: &str = "x-opt-retain";
/// The delivery annotation with the topic, where `to` is another address.
pub const TOPIC_ANNOTATION: &str = "x-opt-topic";

/// The priority of a message whose header says none.
const DEFAULT_PRIORITY: u8 = 4;
/// Content type of a body that MQTT has no form for.
const AMQP_CONTENT: &str = "application/vnd.amqp";
/// Before the base64 of a binary message-id.
const BASE64_PREFIX: &str = "base64:";

impl From<&Publish> for Message {
    /// The message as AMQP has it. What QoS means for settlement is up to the sender.
    fn from(publish: &Publish) -> Self {
        let block = publish.properties.properties();
        let mut is_text = false;
        let mut ttl = None;
        let mut properties = Properties {
            to: Some(publish.topic.clone()),
            ..Properties::default()
        };
        let mut message = Self::new(Body::Empty);
        let mut priority = DEFAULT_PRIORITY;
        for property in block {
            match property {
                Property::PayloadFormatIndicator(text) => is_text = text,
                Property::MessageExpiryInterval(seconds) => ttl = Some(seconds),
                Property::ContentType(text) => properties.content_type = Some(text.to_owned()),
                Property::ResponseTopic(topic) => properties.reply_to = Some(topic.to_owned()),
                Property::CorrelationData(data) => {
                    properties.correlation_id = Some(match std::str::from_utf8(data) {
                        Ok(text) => text.into(),
                        Err(_) => Value::Binary(Bytes::copy_from_slice(data)),
                    });
                }
                Property::UserProperty("amqp-priority", value) => {
                    priority = value.parse().unwrap_or(DEFAULT_PRIORITY);
                }
                Property::UserProperty(name, value) if !properties.set(name, value) => {
                    // Of a name that occurs more than once, the last.
                    message
                        .application_properties
                        .retain(|(known, _)| known != name);
                    let property = (name.to_owned(), value.into());
                    message.application_properties.push(property);
                }
                _ => {}
            }
        }
        message.properties = properties;
        let durable = publish.qos != QoS::AtMostOnce;
        if durable || ttl.is_some() || priority != DEFAULT_PRIORITY {
            message.header = Some(Header {
                durable,
                priority,
                ttl: ttl.map(|seconds| seconds.saturating_mul(1000)),
                ..Header::default()
            });
        }
        if publish.retain {
            let retain = (Value::symbol(RETAIN_ANNOTATION), true.into());
            message.message_annotations.push(retain);
        }
        message.body = match std::str::from_utf8(&publish.payload) {
            Ok(text) if is_text => Body::Value(text.into()),
            _ => Body::Data(vec![publish.payload.clone()]),
        };
        message
    }
}

impl Properties {
    /// Sets the field that a User Property of this name stands for. False for any other name, and for
    /// a value that the field cannot have.
    fn set(&mut self, name: &str, value: &str) -> bool {
        let text = || Some(value.to_owned());
        match name {
            "amqp-subject" => self.subject = text(),
            "amqp-message-id" => {
                let decoded = value.strip_prefix(BASE64_PREFIX).and_then(from_base64);
                self.message_id = Some(decoded.map_or_else(|| value.into(), Value::from));
            }
            "amqp-user-id" => match from_base64(value) {
                Some(user) => self.user_id = Some(user.into()),
                None => return false,
            },
            "amqp-content-encoding" => self.content_encoding = text(),
            "amqp-creation-time" => match value.parse() {
                Ok(time) => self.creation_time_ms = Some(time),
                Err(_) => return false,
            },
            "amqp-group-id" => self.group_id = text(),
            "amqp-group-sequence" => match value.parse() {
                Ok(sequence) => self.group_sequence = Some(sequence),
                Err(_) => return false,
            },
            "amqp-reply-to-group-id" => self.reply_to_group_id = text(),
            _ => return false,
        }
        true
    }
}

impl Delivery {
    /// The message as MQTT has it. `address` is the link's, for messages that name no topic
    /// themselves.
    ///
    /// # Errors
    /// When the bytes are no message, or hold what MQTT cannot have: text of more than 65,535 bytes.
    pub fn to_mqtt(&self, address: &str) -> Result<crate::Message, super::Error> {
        let message = self.message().map_err(super::Error::Message)?;
        let qos = match (self.is_settled(), self.receiver_settles()) {
            (true, _) => QoS::AtMostOnce,
            (false, ReceiverSettles::First) => QoS::AtLeastOnce,
            (false, ReceiverSettles::Second) => QoS::ExactlyOnce,
        };
        message
            .to_mqtt(address, qos)
            .map_err(|_| super::Error::Invalid("a field of the message is too long for MQTT"))
    }
}

impl Message {
    /// The message as MQTT has it.
    fn to_mqtt(&self, address: &str, qos: QoS) -> Result<crate::Message, InvalidError> {
        let properties = &self.properties;
        let topic = match self.delivery_annotation(TOPIC_ANNOTATION) {
            Some(topic) => topic.as_text(),
            None => properties.to.as_deref(),
        };
        let topic = topic.unwrap_or(address);
        let mut block = PropertyBuf::new();
        let mut content_type = properties.content_type.as_deref();
        let (payload, is_text) = match &self.body {
            Body::Empty | Body::Value(Value::Null) => (Bytes::new(), false),
            Body::Data(sections) if sections.len() == 1 => (sections[0].clone(), false),
            Body::Value(Value::String(text)) => (Bytes::from(text.clone()), true),
            Body::Value(Value::Binary(bytes)) => (bytes.clone(), false),
            other => {
                content_type.get_or_insert(AMQP_CONTENT);
                (other.encoded(), false)
            }
        };
        if is_text {
            block.push(Property::PayloadFormatIndicator(true))?;
        }
        if let Some(ttl) = self.header.as_ref().and_then(|header| header.ttl) {
            block.push(Property::MessageExpiryInterval(ttl.div_ceil(1000)))?;
        }
        if let Some(content_type) = content_type {
            block.push(Property::ContentType(content_type))?;
        }
        if let Some(topic) = &properties.reply_to {
            block.push(Property::ResponseTopic(topic))?;
        }
        let correlation = properties.correlation_id.as_ref().map(|id| match id {
            Value::Binary(bytes) => bytes.to_vec(),
            other => text_of(other).into_bytes(),
        });
        if let Some(data) = &correlation {
            block.push(Property::CorrelationData(data))?;
        }
        for (name, value) in &self.application_properties {
            block.push(Property::UserProperty(name, &text_of(value)))?;
        }
        for (name, value) in self.named_fields() {
            block.push(Property::UserProperty(name, &value))?;
        }
        let retain = self.message_annotation(RETAIN_ANNOTATION) == Some(&Value::Boolean(true));
        let publish = packet::Publish {
            dup: self
                .header
                .as_ref()
                .is_some_and(|header| header.delivery_count > 0),
            qos,
            retain,
            topic,
            packet_id: PacketId::new(u16::from(qos != QoS::AtMostOnce)),
            properties: block
                .publish_properties(PropertyContext::Publish)
                .map_err(|_| InvalidError::Field)?,
            payload: &payload,
        };
        Ok(crate::Message::new(&publish, 0))
    }

    /// Fields that MQTT has as User Properties.
    fn named_fields(&self) -> Vec<(&'static str, String)> {
        let properties = &self.properties;
        let priority = self.header.as_ref().map(|header| header.priority);
        let priority = priority.filter(|priority| *priority != DEFAULT_PRIORITY);
        let message_id = properties.message_id.as_ref().map(|id| match id {
            Value::Binary(bytes) => format!("{BASE64_PREFIX}{}", to_base64(bytes)),
            other => text_of(other),
        });
        let number = |number: Option<i64>| number.map(|number| number.to_string());
        [
            ("amqp-subject", properties.subject.clone()),
            ("amqp-message-id", message_id),
            ("amqp-user-id", properties.user_id.as_deref().map(to_base64)),
            ("amqp-content-encoding", properties.content_encoding.clone()),
            ("amqp-creation-time", number(properties.creation_time_ms)),
            ("amqp-group-id", properties.group_id.clone()),
            (
                "amqp-group-sequence",
                number(properties.group_sequence.map(i64::from)),
            ),
            (
                "amqp-reply-to-group-id",
                properties.reply_to_group_id.clone(),
            ),
            ("amqp-priority", number(priority.map(i64::from))),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
    }
}

/// A simple value as text.
fn text_of(value: &Value) -> String {
    match value {
        Value::Boolean(v) => v.to_string(),
        Value::Ubyte(v) => v.to_string(),
        Value::Ushort(v) => v.to_string(),
        Value::Uint(v) => v.to_string(),
        Value::Ulong(v) => v.to_string(),
        Value::Byte(v) => v.to_string(),
        Value::Short(v) => v.to_string(),
        Value::Int(v) => v.to_string(),
        Value::Long(v) | Value::Timestamp(v) => v.to_string(),
        Value::Float(v) => v.to_string(),
        Value::Double(v) => v.to_string(),
        Value::Char(v) => v.to_string(),
        Value::Decimal32(v) => to_base64(v),
        Value::Decimal64(v) => to_base64(v),
        Value::Decimal128(v) => to_base64(v),
        Value::Uuid(v) => uuid_text(v),
        Value::Binary(v) => to_base64(v),
        Value::String(v) | Value::Symbol(v) => v.clone(),
        Value::Null | Value::List(_) | Value::Map(_) | Value::Array(_) | Value::Described(_) => {
            String::new()
        }
    }
}

/// RFC 4648, section 4.
fn to_base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

fn from_base64(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Whatever MQTT has comes back from AMQP.
    #[test]
    fn every_row_of_the_table_comes_back() {
        let publish = Publish::new("a/b", "text")
            .and_then(Publish::utf8)
            .and_then(|one| one.expires_after_s(60))
            .and_then(|one| one.content_type("text/plain"))
            .and_then(|one| one.response_topic("answers"))
            .and_then(|one| one.correlation_data(b"\xff\x00"))
            .and_then(|one| one.user_property("unit", "C"))
            .and_then(|one| one.user_property("amqp-subject", "s"))
            .and_then(|one| one.user_property("amqp-message-id", "base64:/w=="))
            .and_then(|one| one.user_property("amqp-user-id", "bWU="))
            .and_then(|one| one.user_property("amqp-content-encoding", "gzip"))
            .and_then(|one| one.user_property("amqp-creation-time", "17"))
            .and_then(|one| one.user_property("amqp-group-id", "g"))
            .and_then(|one| one.user_property("amqp-group-sequence", "3"))
            .and_then(|one| one.user_property("amqp-reply-to-group-id", "rg"))
            .and_then(|one| one.user_property("amqp-priority", "9"))
            .unwrap()
            .qos(QoS::AtLeastOnce)
            .retain(true);
        let message = Message::from(&publish);
        assert_eq!(message.properties.user_id.as_deref(), Some(&b"me"[..]));
        assert_eq!(message.properties.subject.as_deref(), Some("s"));
        assert!(
            message
                .header
                .is_some_and(|header| header.durable && header.priority == 9)
        );
        let decoded = Message::decode(&message.encode()).unwrap();
        assert_eq!(decoded, message);
        let back = decoded.to_mqtt("elsewhere", QoS::AtLeastOnce).unwrap();
        assert_eq!((back.topic(), back.retain()), ("a/b", true));
        assert_eq!(back.payload_bytes(), b"text");
        let properties = back.properties();
        assert_eq!(properties.message_expiry_s(), Some(60));
        assert_eq!(properties.content_type(), Some("text/plain"));
        assert_eq!(properties.response_topic(), Some("answers"));
        assert_eq!(properties.correlation_data(), Some(&b"\xff\x00"[..]));
        let mut users: Vec<_> = properties.user_properties().collect();
        let mut expected: Vec<_> = publish
            .properties
            .properties()
            .iter()
            .filter_map(|property| match property {
                Property::UserProperty(name, value) => Some((name, value)),
                _ => None,
            })
            .collect();
        users.sort_unstable();
        expected.sort_unstable();
        assert_eq!(users, expected);
    }

    #[test]
    fn the_topic_is_the_annotations_then_to_then_the_links() {
        let mut message = Message::new(Body::Value(Value::List(vec![Value::Null])));
        let topic = |message: &Message| {
            let mapped = message.to_mqtt("link", QoS::AtMostOnce).unwrap();
            assert_eq!(mapped.properties().content_type(), Some(AMQP_CONTENT));
            mapped.topic().to_owned()
        };
        assert_eq!(topic(&message), "link");
        message.properties.to = Some("to".into());
        assert_eq!(topic(&message), "to");
        let annotation = (Value::symbol(TOPIC_ANNOTATION), "topic".into());
        message.delivery_annotations.push(annotation);
        assert_eq!(topic(&message), "topic");
    }

    #[test]
    fn a_uuid_has_36_characters() {
        let id = [
            0x12, 0x3e, 0x45, 0x67, 0xe8, 0x9b, 0x12, 0xd3, 0xa4, 0x56, 0x42, 0x66, 0x14, 0x17,
            0x40, 0,
        ];
        assert_eq!(uuid_text(&id), "123e4567-e89b-12d3-a456-426614174000");
    }

    proptest! {
        #[test]
        fn base64_comes_back(bytes in prop::collection::vec(any::<u8>(), 0..50)) {
            prop_assert_eq!(from_base64(&to_base64(&bytes)), Some(bytes));
        }

        #[test]
        fn reading_base64_never_panics(text in "[A-Za-z+/=é]{0,12}") {
            let _ = from_base64(&text);
        }
    }
}
