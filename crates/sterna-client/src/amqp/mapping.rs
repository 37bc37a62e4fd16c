//! Conversion of messages to and from MQTT (`docs/mapping.md`).

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use sterna_amqp::messaging::{Header, MessageView};
use sterna_amqp::types::Value as ValueView;
use sterna_mapping::{ToAmqp, from_amqp, to_amqp, topic_of_address};
use sterna_mqtt::packet;
use sterna_mqtt::{PacketId, Property, PropertyContext, PublishProperties, QoS};

use super::Error;
use super::message::Message;
use super::options::ReceiverSettles;
use super::receiver::Delivery;
use crate::message::Publish;

pub use sterna_mapping::{RETAIN_ANNOTATION, TOPIC_ANNOTATION};

impl From<&Publish> for Message {
    /// The message as AMQP has it. The sender decides how QoS maps to settlement.
    fn from(publish: &Publish) -> Self {
        // Both the properties and what is made of them are valid: they are checked when they are set.
        let published = (publish
            .properties
            .publish_properties(PropertyContext::Publish))
        .unwrap_or(PublishProperties::EMPTY);
        let form = ToAmqp {
            topic: &publish.topic,
            header: Header {
                durable: publish.qos != QoS::AtMostOnce,
                ttl: (published.message_expiry_s()).map(|expiry_s| expiry_s.saturating_mul(1000)),
                ..Header::default()
            },
            retain: publish.retain,
            annotations: None,
        };
        let mut bytes = BytesMut::with_capacity(publish.payload.len() + 256);
        let rest = to_amqp(&published, &publish.payload, &form, &mut bytes);
        bytes.extend_from_slice(rest);
        Self::decode(&bytes.freeze()).unwrap_or_else(|_| Self::data(publish.payload.clone()))
    }
}

impl Delivery {
    /// The message as MQTT has it. `address` is the link's, for messages that name no topic
    /// themselves.
    ///
    /// # Errors
    /// If the bytes are no message. Also if they hold text that MQTT cannot have: more than 65,535
    /// bytes, or the character U+0000.
    pub fn to_mqtt(&self, address: &str) -> Result<crate::Message, Error> {
        let qos = match (self.is_settled(), self.receiver_settles()) {
            (true, _) => QoS::AtMostOnce,
            (false, ReceiverSettles::First) => QoS::AtLeastOnce,
            (false, ReceiverSettles::Second) => QoS::ExactlyOnce,
        };
        mqtt_form(self.payload(), address, qos)
    }
}

impl Message {
    /// The message as MQTT has it. `address` is that of the message's link, for messages that name
    /// no topic themselves. `qos` follows from the settlement of its delivery.
    ///
    /// # Errors
    /// As for [`Delivery::to_mqtt`].
    pub fn to_mqtt(&self, address: &str, qos: QoS) -> Result<crate::Message, Error> {
        mqtt_form(&self.encode(), address, qos)
    }
}

fn mqtt_form(payload: &Bytes, address: &str, qos: QoS) -> Result<crate::Message, Error> {
    let view = MessageView::parse(payload).map_err(Error::Message)?;
    view.validate().map_err(Error::Message)?;
    let mapped =
        from_amqp(&view, |address, _| topic_of_address(address)).map_err(Error::Message)?;
    let annotations = view.delivery_annotations();
    let annotation = annotations.and_then(|annotations| annotations.get(TOPIC_ANNOTATION));
    let properties = view.properties().map_err(Error::Message)?;
    let to = properties.and_then(|properties| properties.to.as_ref().and_then(ValueView::as_text));
    let topic = if let Some(topic) = annotation.as_ref().and_then(ValueView::as_text) {
        topic.to_owned()
    } else {
        let address = to.unwrap_or(address);
        topic_of_address(address).unwrap_or_else(|| address.to_owned())
    };
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_ms = now_ms.map_or(0, |since| since.as_millis() as u64);
    let expires_at_ms = mapped.expires_at_ms(now_ms);
    let delivery_count = mapped.delivery_count;
    let mut block = mapped.properties;
    if let Some(at_ms) = expires_at_ms {
        let left_s = at_ms.saturating_sub(now_ms).div_ceil(1000);
        let left_s = u32::try_from(left_s).unwrap_or(u32::MAX);
        // A number is never too long.
        let _ = block.push(Property::MessageExpiryInterval(left_s));
    }
    let publish = packet::Publish {
        dup: delivery_count > 0,
        qos,
        retain: mapped.retain,
        topic: &topic,
        packet_id: PacketId::new(u16::from(qos != QoS::AtMostOnce)),
        properties: block
            .publish_properties(PropertyContext::Publish)
            .map_err(|_| Error::Invalid("a field of the message has no form in MQTT"))?,
        payload: &mapped.payload,
    };
    Ok(crate::Message::new(&publish, 0))
}

#[cfg(test)]
mod tests {
    use sterna_mqtt::Property;

    use super::super::message::Body;
    use super::super::value::Value;
    use super::*;

    /// Each part of an MQTT message comes back from AMQP.
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
            let mapped = message.to_mqtt("topic:///link", QoS::AtMostOnce).unwrap();
            assert_eq!(mapped.properties().content_type(), Some("application/json"));
            assert_eq!(mapped.payload_bytes(), b"[null]");
            mapped.topic().to_owned()
        };
        assert_eq!(topic(&message), "/link");
        message.properties.to = Some("to".into());
        assert_eq!(topic(&message), "to");
        let annotation = (Value::symbol(TOPIC_ANNOTATION), "topic".into());
        message.delivery_annotations.push(annotation);
        assert_eq!(topic(&message), "topic");
    }
}
