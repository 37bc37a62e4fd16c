//! Between HTTP and the others.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::BytesMut;
use proptest::prelude::*;
use serde_json::{Value, json};
use sterna_amqp::messaging::{Header, MessageId, MessageWriter, Properties, Source};
use sterna_amqp::types::{Symbol, Value as AmqpValue};

use crate::amqp_client::Client as AmqpClient;
use crate::fixture::Broker;
use crate::h3_client::Client;
use crate::mapping::mqtt::{MqttMessage, heard, mqtt_message, publish, subscriber, text};

/// A text in a field: more than must be is encoded, to the same effect.
fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' => char::from(byte).to_string(),
        _ => format!("%{byte:02x}"),
    };
    text.bytes().map(byte).collect()
}

/// The fields of a request that publishes a message.
pub(crate) fn fields(message: &MqttMessage) -> Vec<(&'static str, String)> {
    let mut fields = vec![("sterna-qos", message.qos.to_string())];
    let mut put = |name, value: Option<String>| fields.extend(value.map(|value| (name, value)));
    put(
        "sterna-expiry",
        message.expiry_s.map(|expiry_s| expiry_s.to_string()),
    );
    put(
        "sterna-payload-format",
        message.is_text.then(|| "utf-8".to_owned()),
    );
    put("content-type", message.content_type.clone());
    put(
        "sterna-response-topic",
        message.response_topic.as_deref().map(encoded),
    );
    put(
        "sterna-correlation-data",
        message
            .correlation
            .as_ref()
            .map(|data| STANDARD.encode(data)),
    );
    for (name, value) in &message.user {
        let pair = format!("{}={}", encoded(name), encoded(value));
        put("sterna-user-property", Some(pair));
    }
    fields
}

/// The object that a subscriber of HTTP gets, without its id.
fn object(message: &MqttMessage) -> Value {
    let mut object = json!({ "topic": "a/b", "qos": message.qos });
    match std::str::from_utf8(&message.payload) {
        Ok(text) => object["payload"] = text.into(),
        Err(_) => object["payload_base64"] = STANDARD.encode(&message.payload).into(),
    }
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            object[name] = value;
        }
    };
    put("expiry_s", message.expiry_s.map(Value::from));
    put("payload_format", message.is_text.then(|| "utf-8".into()));
    put(
        "content_type",
        message.content_type.clone().map(Value::from),
    );
    put(
        "response_topic",
        message.response_topic.clone().map(Value::from),
    );
    put(
        "correlation_data",
        message
            .correlation
            .as_ref()
            .map(|data| STANDARD.encode(data).into()),
    );
    put(
        "user_properties",
        (!message.user.is_empty()).then(|| json!(message.user)),
    );
    object
}

fn post(broker: &mut Broker, http: &mut Client, message: &MqttMessage, extra: &[(&str, &str)]) {
    let fields = fields(message);
    let fields: Vec<(&str, &str)> = fields
        .iter()
        .map(|(name, value)| (*name, &**value))
        .chain(extra.iter().copied())
        .collect();
    let number = http.request(broker, "POST", "/v1/topics/a/b", &fields, &message.payload);
    assert_eq!(
        http.response(number).status,
        204,
        "{:?}",
        http.response(number)
    );
}

/// What has come for a request, without ids; those are there exactly above QoS 0.
fn objects(http: &Client, number: u64) -> Vec<Value> {
    let content = &http.response(number).content;
    content
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| {
            let mut value: Value = serde_json::from_slice(line).expect("JSON");
            let members = value.as_object_mut().expect("an object");
            let has_id = members.remove("id").is_some();
            assert_eq!(has_id, value["qos"] != 0);
            value
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A message that is published by HTTP reaches subscribers of MQTT as it was meant, those of AMQP
    /// as the same message of MQTT would, and one of HTTP gets both alike.
    #[test]
    fn http_and_mqtt_say_the_same(message in mqtt_message()) {
        let mut broker = Broker::new();
        let mqtt = subscriber(&mut broker);
        let mut amqp = AmqpClient::connect(&mut broker, "c");
        let session = amqp.begin(&mut broker);
        amqp.receiver(&mut broker, session, "r", Source::new("a/b"), 2);
        let mut http = Client::connect(&mut broker);
        let number = http.request(&mut broker, "GET", "/v1/topics/a/b?qos=2", &[], b"");

        publish(&mut broker, &message, false);
        post(&mut broker, &mut http, &message, &[]);

        prop_assert_eq!(heard(&mut broker, mqtt), [message.clone(), message.clone()]);
        amqp.turn(&mut broker);
        prop_assert_eq!(amqp.received.len(), 2);
        let [of_mqtt, of_http] = [&amqp.received[0], &amqp.received[1]];
        prop_assert_eq!(&of_mqtt.payload, &of_http.payload);
        prop_assert_eq!(of_mqtt.settled, of_http.settled);
        http.turn(&mut broker);
        prop_assert_eq!(objects(&http, number), [object(&message), object(&message)]);
    }

    /// A retained message of MQTT or HTTP is the same to who asks for the last one, whose answer has
    /// the fields of a request that publishes it; who subscribes later gets it marked.
    #[test]
    fn the_last_message_comes_in_fields(message in mqtt_message(), by_http: bool) {
        let mut broker = Broker::new();
        let mut http = Client::connect(&mut broker);
        if by_http {
            post(&mut broker, &mut http, &message, &[("sterna-retain", "?1")]);
        } else {
            publish(&mut broker, &message, true);
        }
        let last = http.request(&mut broker, "GET", "/v1/topics/a/b?last", &[], b"");
        let response = http.response(last).clone();
        let number = http.request(&mut broker, "GET", "/v1/topics/a/b?qos=2", &[], b"");
        if message.payload.is_empty() {
            prop_assert_eq!(response.status, 404);
            prop_assert_eq!(objects(&http, number), Vec::<Value>::new());
            return Ok(());
        }
        prop_assert_eq!(response.status, 200);
        prop_assert_eq!(&response.content, &message.payload);
        prop_assert_eq!(response.field("sterna-retain"), Some("?1"));
        let mut retained = object(&message);
        retained["retain"] = true.into();
        prop_assert_eq!(objects(&http, number), [retained]);

        // What it says can be said again.
        let mqtt = subscriber(&mut broker);
        heard(&mut broker, mqtt);
        let again: Vec<(&str, &str)> = response
            .fields
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .filter(|(name, _)| name.starts_with("sterna-") || *name == "content-type")
            .filter(|(name, _)| *name != "content-type" || message.content_type.is_some())
            .collect();
        http.request(&mut broker, "POST", "/v1/topics/a/b", &again, &response.content);
        prop_assert_eq!(heard(&mut broker, mqtt), [message]);
    }

    /// A message of AMQP is to HTTP what it is to MQTT.
    #[test]
    fn http_gets_of_amqp_what_mqtt_gets(
        settled: bool,
        ttl_s in proptest::option::of(1..4_000_000_u32),
        priority in 0..=9_u8,
        id in 0..5_u8,
        subject in proptest::option::of(text()),
        body in 0..5_u8,
        payload in proptest::collection::vec(any::<u8>(), 0..300),
        words in text(),
    ) {
        let mut broker = Broker::new();
        let mqtt = subscriber(&mut broker);
        let mut http = Client::connect(&mut broker);
        let number = http.request(&mut broker, "GET", "/v1/topics/a/b?qos=2", &[], b"");
        let mut amqp = AmqpClient::connect(&mut broker, "c");
        let session = amqp.begin(&mut broker);
        let message_id = match id {
            0 => None,
            1 => Some(MessageId::Ulong(u64::MAX)),
            2 => Some(MessageId::Uuid([0xab; 16])),
            3 => Some(MessageId::Binary(&[0xff, 0])),
            _ => Some(MessageId::String(&words)),
        };
        let mut message = BytesMut::new();
        let mut writer = MessageWriter::new(&mut message);
        writer.header(&Header {
            priority,
            ttl: ttl_s.map(|seconds| seconds * 1000),
            ..Header::default()
        });
        writer.properties(&Properties {
            message_id,
            user_id: Some(b"ann"),
            subject: subject.as_deref(),
            reply_to: Some(AmqpValue::String("/queues/answers")),
            correlation_id: message_id,
            content_type: (body > 0).then_some(Symbol("text/plain")),
            group_id: Some("g"),
            group_sequence: Some(3),
            ..Properties::default()
        });
        writer.application_properties(|map| {
            map.push(&AmqpValue::String("long"), &AmqpValue::Long(-5));
            map.push(&AmqpValue::String("binary"), &AmqpValue::Binary(b"foo"));
        });
        match body {
            0 => drop(writer.value(&AmqpValue::Long(7))),
            1 => drop(writer.value(&AmqpValue::String(&words))),
            2 => drop(writer.value(&AmqpValue::Binary(&payload))),
            3 => drop(writer.value(&AmqpValue::Null)),
            _ => drop(writer.data(&payload)),
        }
        let sender = amqp.sender(&mut broker, session, "a/b");
        amqp.send_message(&mut broker, sender, 1, &message, settled, None);
        let came = heard(&mut broker, mqtt);
        prop_assert_eq!(came.len(), 1);
        http.turn(&mut broker);
        prop_assert_eq!(objects(&http, number), [object(&came[0])]);
        prop_assert_eq!(came[0].field("amqp-subject"), subject.as_deref());
        prop_assert_eq!(came[0].expiry_s, ttl_s);
    }
}
