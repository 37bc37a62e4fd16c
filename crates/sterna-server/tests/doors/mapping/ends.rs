//! Through both ends: the client library encodes, the broker maps, and the client of another protocol
//! reads; and back. The laws are in `docs/mapping.md`.

use proptest::prelude::*;
use sterna_amqp::messaging::Source;
use sterna_amqp::types::Encoded;
use sterna_client::Publish;
use sterna_client::amqp::{Body, Message, Properties, Value};
use sterna_mqtt::QoS;

use crate::amqp_client::Client as AmqpClient;
use crate::fixture::Broker;
use crate::h3_client::Client as HttpClient;
use crate::mapping::mqtt::{MqttMessage, heard, mqtt_message, publish, subscriber, text};

/// The message as an application hands it to the client library.
fn to_publish(message: &MqttMessage) -> Publish {
    let mut made = Publish::new("a/b", message.payload.clone()).expect("valid");
    if message.is_text {
        made = made.utf8().expect("valid");
    }
    if let Some(seconds) = message.expiry_s {
        made = made.expires_after_s(seconds).expect("valid");
    }
    if let Some(content_type) = &message.content_type {
        made = made.content_type(content_type).expect("valid");
    }
    if let Some(topic) = &message.response_topic {
        made = made.response_topic(topic).expect("valid");
    }
    if let Some(data) = &message.correlation {
        made = made.correlation_data(data).expect("valid");
    }
    for (name, value) in &message.user {
        made = made.user_property(name, value).expect("valid");
    }
    made.qos(QoS::from_u8(message.qos).expect("valid"))
}

/// A message as the client library hands it to an application.
fn of_library(message: &sterna_client::Message) -> MqttMessage {
    let properties = message.properties();
    MqttMessage {
        qos: message.qos() as u8,
        expiry_s: properties.message_expiry_s(),
        is_text: properties.is_utf8_payload(),
        payload: message.payload_bytes().to_vec(),
        content_type: properties.content_type().map(str::to_owned),
        response_topic: properties.response_topic().map(str::to_owned),
        correlation: properties.correlation_data().map(<[u8]>::to_vec),
        user: properties
            .user_properties()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
    }
}

fn sorted(mut message: MqttMessage) -> MqttMessage {
    message.user.sort();
    message
}

/// Sends a message by AMQP, settled where its level is 0.
fn send(broker: &mut Broker, message: &Message, qos: u8) {
    let mut amqp = AmqpClient::connect(broker, "sender");
    let session = amqp.begin(broker);
    let sender = amqp.sender(broker, session, "a/b");
    amqp.send_message(broker, sender, 1, &message.encode(), qos == 0, None);
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Boolean),
        any::<u8>().prop_map(Value::Ubyte),
        any::<u16>().prop_map(Value::Ushort),
        any::<u32>().prop_map(Value::Uint),
        any::<u64>().prop_map(Value::Ulong),
        any::<i8>().prop_map(Value::Byte),
        any::<i16>().prop_map(Value::Short),
        any::<i32>().prop_map(Value::Int),
        any::<i64>().prop_map(Value::Long),
        any::<f32>().prop_map(Value::Float),
        any::<f64>().prop_map(Value::Double),
        any::<[u8; 4]>().prop_map(Value::Decimal32),
        any::<[u8; 8]>().prop_map(Value::Decimal64),
        any::<[u8; 16]>().prop_map(Value::Decimal128),
        any::<char>().prop_map(Value::Char),
        any::<i64>().prop_map(Value::Timestamp),
        any::<[u8; 16]>().prop_map(Value::Uuid),
        prop::collection::vec(any::<u8>(), 0..9).prop_map(Value::from),
        text().prop_map(Value::String),
        "[a-z]{0,9}".prop_map(Value::Symbol),
        Just(Value::symbols(&["a", "b"])),
        Just(Value::Described(Box::new((Value::Ulong(1), Value::Null)))),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::List),
            prop::collection::btree_map(text(), inner, 0..4).prop_map(|map| {
                let entries = map.into_iter();
                Value::Map(entries.map(|(key, value)| (key.into(), value)).collect())
            }),
        ]
    })
}

fn body() -> impl Strategy<Value = Body> {
    prop_oneof![
        4 => value().prop_map(Body::Value),
        1 => prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 1..3)
            .prop_map(|parts| Body::Data(parts.into_iter().map(Into::into).collect())),
        1 => prop::collection::vec(prop::collection::vec(value(), 0..3), 1..3)
            .prop_map(Body::Sequence),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// The library says by AMQP what it would say by MQTT, and reads of the broker's AMQP what was
    /// published by MQTT.
    #[test]
    fn the_library_and_the_broker_map_alike(message in mqtt_message()) {
        let mut broker = Broker::new();
        let mqtt = subscriber(&mut broker);
        let mut amqp = AmqpClient::connect(&mut broker, "receiver");
        let session = amqp.begin(&mut broker);
        amqp.receiver(&mut broker, session, "r", Source::new("a/b"), 2);

        let sent = Message::from(&to_publish(&message));
        send(&mut broker, &sent, message.qos);
        let mut heard = heard(&mut broker, mqtt);
        let mut expected = message.clone();
        expected.qos = expected.qos.min(1);
        prop_assert_eq!(heard.pop().map(sorted), Some(sorted(expected.clone())));

        publish(&mut broker, &message, false);
        amqp.turn(&mut broker);
        let got = amqp.received.pop().expect("the message");
        let read = Message::decode(&got.payload.into()).unwrap();
        let read = read.to_mqtt("elsewhere", QoS::from_u8(expected.qos).unwrap()).unwrap();
        prop_assert_eq!(read.topic(), "a/b");
        prop_assert_eq!(sorted(of_library(&read)), sorted(expected));
    }

    /// A body of AMQP that MQTT or HTTP clients pass on, with its properties, reaches AMQP with the type
    /// it had; and both ends say the same of it.
    #[test]
    fn a_body_comes_back_with_its_type(
        body in body(),
        content_type in prop::option::of("[a-z]{1,5}/[a-z]{1,5}"),
        by_http: bool,
    ) {
        let mut broker = Broker::new();
        let mqtt = subscriber(&mut broker);
        let mut message = Message::new(body);
        message.properties = Properties { content_type, ..Properties::default() };
        send(&mut broker, &message, 1);
        let heard = heard(&mut broker, mqtt).pop().expect("the message");
        let read = message.to_mqtt("a/b", QoS::AtLeastOnce).unwrap();
        prop_assert_eq!(&of_library(&read), &heard);

        let mut amqp = AmqpClient::connect(&mut broker, "receiver");
        let session = amqp.begin(&mut broker);
        amqp.receiver(&mut broker, session, "r", Source::new("a/b"), 1);
        if by_http {
            let mut http = HttpClient::connect(&mut broker);
            let fields = crate::mapping::http::fields(&heard);
            let fields: Vec<(&str, &str)> =
                fields.iter().map(|(name, value)| (*name, &**value)).collect();
            let number = http.request(&mut broker, "POST", "/v1/topics/a/b", &fields, &heard.payload);
            prop_assert_eq!(http.response(number).status, 204);
        } else {
            publish(&mut broker, &heard, false);
        }
        amqp.turn(&mut broker);
        let got = amqp.received.pop().expect("the message");
        let got = Message::decode(&got.payload.into()).unwrap();
        prop_assert_eq!(encoded(&got.body), encoded(&message.body));
        prop_assert_eq!(got.properties.content_type, message.properties.content_type);
    }
}

/// Bodies are compared by their encoding: what is no number equals itself.
fn encoded(body: &Body) -> Vec<u8> {
    Message::new(body.clone()).encode().to_vec()
}

/// The examples of `docs/mapping.md`.
#[test]
fn values_are_text_and_compound_ones_json() {
    let map = Value::Map(vec![
        ("celsius".into(), 21.5_f64.into()),
        ("count".into(), 3_u32.into()),
        ("at".into(), Value::Timestamp(1_700_000_000_000)),
        ("ok".into(), true.into()),
    ]);
    for (body, label, payload, content_type, mark) in [
        (Value::Double(21.5), None, "21.5", "text/plain", "double"),
        (Value::Boolean(true), None, "true", "text/plain", "boolean"),
        (
            Value::Timestamp(17),
            Some("text/x"),
            "17",
            "text/x",
            "timestamp",
        ),
        (
            map,
            Some("application/json"),
            "{\"celsius\":21.5,\"count\":3,\"at\":1700000000000,\"ok\":true}",
            "application/json",
            "map dIt",
        ),
        (
            Value::List(vec![1_i64.into(), "x".into(), Value::Null]),
            None,
            "[1,\"x\",null]",
            "application/json",
            "list",
        ),
    ] {
        let mut broker = Broker::new();
        let mqtt = subscriber(&mut broker);
        let mut message = Message::value(body);
        message.properties.content_type = label.map(str::to_owned);
        send(&mut broker, &message, 1);
        let heard = heard(&mut broker, mqtt).pop().expect("the message");
        assert_eq!(std::str::from_utf8(&heard.payload), Ok(payload));
        assert_eq!(heard.content_type.as_deref(), Some(content_type));
        assert_eq!(heard.field("amqp-type"), Some(mark));
        assert!(heard.is_text);
    }
    // An array has no form in JSON; the payload says that it is AMQP's encoding.
    let mut broker = Broker::new();
    let mqtt = subscriber(&mut broker);
    let mut message = Message::value(Value::symbols(&["a"]));
    message.properties.content_type = Some("application/json".to_owned());
    send(&mut broker, &message, 1);
    let heard = heard(&mut broker, mqtt).pop().expect("the message");
    assert_eq!(heard.content_type.as_deref(), Some("application/vnd.amqp"));
    assert_eq!(heard.field("amqp-content-type"), Some("application/json"));
    let body = Encoded::from_bytes(heard.payload[3..].to_vec().into()).unwrap();
    assert_eq!(Value::from(body.value()), Value::symbols(&["a"]));
}

/// A value that does not fit the field of its name is told all the same, by broker and library alike.
#[test]
fn unfit_properties_are_application_properties() {
    let mut publish = Publish::new("a/b", "x").unwrap().qos(QoS::AtLeastOnce);
    let unfit = [
        ("amqp-user-id", "no base64"),
        ("amqp-group-sequence", "-1"),
        ("amqp-creation-time", "noon"),
        ("amqp-priority", "high"),
        ("amqp-content-encoding", "\u{e9}"),
        ("amqp-content-type", "text/plain"),
        ("amqp-type", "int"),
    ];
    for (name, value) in unfit {
        publish = publish.user_property(name, value).unwrap();
    }
    let by_library = Message::from(&publish);
    let expected: Vec<(String, Value)> = unfit
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).into()))
        .collect();
    assert_eq!(by_library.application_properties, expected);

    let mut broker = Broker::new();
    let mut amqp = AmqpClient::connect(&mut broker, "receiver");
    let session = amqp.begin(&mut broker);
    amqp.receiver(&mut broker, session, "r", Source::new("a/b"), 1);
    let heard = of_library(&by_library.to_mqtt("a/b", QoS::AtLeastOnce).unwrap());
    super::mqtt::publish(&mut broker, &heard, false);
    amqp.turn(&mut broker);
    let got = amqp.received.pop().expect("the message");
    let by_broker = Message::decode(&got.payload.into()).unwrap();
    assert_eq!(by_broker.application_properties, expected);
    assert_eq!(by_broker.properties, by_library.properties);
    assert_eq!(by_broker.body, by_library.body);
}
