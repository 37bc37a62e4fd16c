//! Messages of MQTT, and who publishes and hears them.

use proptest::prelude::*;
use sterna_mqtt::packet::{Publish, SubscribeOptions};
use sterna_mqtt::{Packet, PacketId, Property, PropertyBuf, PropertyContext, QoS, Version};

use crate::fixture::{Broker, Peer, block};

pub(crate) const V5: Version = Version::V5;

/// A message as MQTT has it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct MqttMessage {
    pub(crate) qos: u8,
    pub(crate) expiry_s: Option<u32>,
    pub(crate) is_text: bool,
    pub(crate) payload: Vec<u8>,
    pub(crate) content_type: Option<String>,
    pub(crate) response_topic: Option<String>,
    pub(crate) correlation: Option<Vec<u8>>,
    pub(crate) user: Vec<(String, String)>,
}

impl MqttMessage {
    pub(crate) fn properties(&self) -> PropertyBuf {
        let mut properties = Vec::new();
        if self.is_text {
            properties.push(Property::PayloadFormatIndicator(true));
        }
        properties.extend(self.expiry_s.map(Property::MessageExpiryInterval));
        properties.extend(self.content_type.as_deref().map(Property::ContentType));
        properties.extend(self.response_topic.as_deref().map(Property::ResponseTopic));
        properties.extend(self.correlation.as_deref().map(Property::CorrelationData));
        for (name, value) in &self.user {
            properties.push(Property::UserProperty(name, value));
        }
        block(&properties)
    }

    fn of(publish: &Publish<'_>) -> Self {
        let properties = &publish.properties;
        Self {
            qos: publish.qos as u8,
            expiry_s: properties.message_expiry_s(),
            is_text: properties.is_utf8_payload(),
            payload: publish.payload.to_vec(),
            content_type: properties.content_type().map(str::to_owned),
            response_topic: properties.response_topic().map(str::to_owned),
            correlation: properties.correlation_data().map(<[u8]>::to_vec),
            user: properties
                .user_properties()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        }
    }

    pub(crate) fn field(&self, wanted: &str) -> Option<&str> {
        let mut fields = self.user.iter();
        fields.find_map(|(name, value)| (name == wanted).then_some(&**value))
    }
}

pub(crate) fn text() -> impl Strategy<Value = String> {
    "[a-zA-Zäß€0-9 ]{1,12}"
}

pub(crate) fn ascii() -> impl Strategy<Value = String> {
    "[a-z]{1,8}/[a-z]{1,8}"
}

/// User properties with names that occur once, some of which AMQP has fields for.
fn user_properties() -> impl Strategy<Value = Vec<(String, String)>> {
    let plain = proptest::collection::btree_map("[a-z]{1,6}", text(), 0..4);
    let fields = (
        proptest::option::of(text()),
        proptest::option::of(text()),
        proptest::option::of(0..u32::MAX),
        proptest::option::of(0..i64::MAX),
        proptest::option::of(ascii()),
        proptest::option::of((0..=9_u8).prop_filter("not the default", |priority| *priority != 4)),
    );
    (plain, fields).prop_map(
        |(plain, (subject, id, sequence, time, encoding, priority))| {
            let mut user: Vec<(String, String)> = plain.into_iter().collect();
            for (name, value) in [
                ("amqp-subject", subject.clone()),
                ("amqp-message-id", id),
                ("amqp-user-id", subject.map(|_| "Zm9v".to_owned())),
                ("amqp-content-encoding", encoding),
                ("amqp-creation-time", time.map(|time| time.to_string())),
                ("amqp-group-id", sequence.map(|_| "group".to_owned())),
                (
                    "amqp-group-sequence",
                    sequence.map(|number| number.to_string()),
                ),
                (
                    "amqp-reply-to-group-id",
                    sequence.map(|_| "answers".to_owned()),
                ),
                ("amqp-priority", priority.map(|number| number.to_string())),
            ] {
                user.extend(value.map(|value| (name.to_owned(), value)));
            }
            user
        },
    )
}

pub(crate) fn mqtt_message() -> impl Strategy<Value = MqttMessage> {
    let payload = prop_oneof![
        text().prop_map(|text| (true, text.into_bytes())),
        proptest::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| (false, bytes)),
        proptest::collection::vec(any::<u8>(), 250..300).prop_map(|bytes| (false, bytes)),
    ];
    (
        0..=2_u8,
        proptest::option::of(1..1_000_000_u32),
        payload,
        proptest::option::of(ascii()),
        proptest::option::of("/?[a-z]{1,5}/[a-z]{1,5}"),
        proptest::option::of(prop_oneof![
            text().prop_map(String::into_bytes),
            proptest::collection::vec(any::<u8>(), 1..20),
        ]),
        user_properties(),
    )
        .prop_map(
            |(
                qos,
                expiry_s,
                (is_text, payload),
                content_type,
                response_topic,
                correlation,
                user,
            )| {
                MqttMessage {
                    qos,
                    expiry_s,
                    is_text,
                    payload,
                    content_type,
                    response_topic,
                    correlation,
                    user,
                }
            },
        )
}

/// Publishes a message by MQTT.
pub(crate) fn publish(broker: &mut Broker, message: &MqttMessage, retain: bool) {
    let publisher = broker.client(V5, "publisher");
    let properties = message.properties();
    let qos = QoS::from_u8(message.qos).expect("a level");
    let publish = Publish {
        dup: false,
        qos,
        retain,
        topic: "a/b",
        packet_id: qos.is_acknowledged().then_some(PacketId::MIN),
        properties: properties
            .publish_properties(PropertyContext::Publish)
            .expect("properties"),
        payload: &message.payload,
    };
    broker.packet(publisher, V5, &Packet::Publish(publish));
    broker.cut(publisher);
}

/// An MQTT client that has subscribed to everything.
pub(crate) fn subscriber(broker: &mut Broker) -> Peer {
    let peer = broker.client(V5, "subscriber");
    broker.subscribe_with(peer, V5, "#", SubscribeOptions::new(QoS::ExactlyOnce), &[]);
    broker.take(peer);
    peer
}

pub(crate) fn heard(broker: &mut Broker, peer: Peer) -> Vec<MqttMessage> {
    let heard = broker.packets(peer, V5, |packet| match packet {
        Packet::Publish(publish) => Some(MqttMessage::of(publish)),
        _ => None,
    });
    heard.into_iter().flatten().collect()
}
