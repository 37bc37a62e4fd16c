//! Between MQTT and AMQP.

use bytes::BytesMut;
use proptest::prelude::*;
use sterna_amqp::messaging::{
    Body, DeliveryState, Header, MessageId, MessageView, MessageWriter, Modified, Outcome,
    Properties, Source,
};
use sterna_amqp::types::{MapWriter, Symbol, Timestamp, Value};
use sterna_mqtt::QoS;
use sterna_mqtt::packet::SubscribeOptions;

use crate::amqp_client::Client;
use crate::fixture::Broker;
use crate::mapping::mqtt::{MqttMessage, V5, heard, mqtt_message, publish, subscriber, text};

fn id_text(id: MessageId<'_>) -> Vec<u8> {
    match id {
        MessageId::String(text) => text.as_bytes().to_vec(),
        MessageId::Binary(bytes) => bytes.to_vec(),
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// From MQTT to AMQP row by row; and when an AMQP client sends on what it has received, an MQTT
    /// client gets what was published at first.
    #[test]
    fn mqtt_to_amqp_and_back(message in mqtt_message(), retain: bool) {
        let mut broker = Broker::new();
        let mut amqp = Client::connect(&mut broker, "c");
        let session = amqp.begin(&mut broker);
        if !retain {
            amqp.receiver(&mut broker, session, "r", Source::new("a/b"), 1);
        }
        publish(&mut broker, &message, retain);
        if retain && !message.payload.is_empty() {
            // It comes as retained to who subscribes later.
            amqp.receiver(&mut broker, session, "r", Source::new("a/b"), 1);
        } else if retain {
            return Ok(());
        }
        amqp.turn(&mut broker);
        let came = amqp.received.pop().expect("the message");
        let view = MessageView::parse(&came.payload).expect("a message");
        let header = view.header().unwrap().unwrap_or_default();
        let properties = view.properties().unwrap().expect("properties");
        prop_assert_eq!(came.settled, message.qos == 0);
        prop_assert_eq!(header.durable, message.qos > 0);
        // What is not sent twice need not say that it is sent for the first time.
        prop_assert_eq!(header.first_acquirer, message.qos > 0);
        prop_assert_eq!(header.ttl, message.expiry_s.map(|seconds| seconds * 1000));
        let priority = message.field("amqp-priority").map_or(4, |text| text.parse().unwrap());
        prop_assert_eq!(header.priority, priority);
        let retained = view
            .message_annotations()
            .and_then(|annotations| annotations.get("x-opt-retain"));
        prop_assert_eq!(retained, retain.then_some(Value::Boolean(true)));
        prop_assert_eq!(properties.to, Some(Value::String("a/b")));
        prop_assert!(view.delivery_annotations().is_none());
        prop_assert_eq!(
            properties.content_type.map(|symbol| symbol.0),
            message.content_type.as_deref()
        );
        let reply_to = message.response_topic.as_deref().map(|topic| {
            if topic.starts_with('/') { format!("topic://{topic}") } else { topic.to_owned() }
        });
        prop_assert_eq!(properties.reply_to.and_then(|value| value.as_text()), reply_to.as_deref());
        prop_assert_eq!(properties.correlation_id.map(id_text), message.correlation.clone());
        prop_assert_eq!(properties.subject, message.field("amqp-subject"));
        let id = message.field("amqp-message-id").map(MessageId::String);
        prop_assert_eq!(properties.message_id, id);
        prop_assert_eq!(
            properties.user_id,
            message.field("amqp-user-id").map(|_| &b"foo"[..])
        );
        let encoding = message.field("amqp-content-encoding").map(Symbol);
        prop_assert_eq!(properties.content_encoding, encoding);
        let time = message.field("amqp-creation-time").map(|text| Timestamp(text.parse().unwrap()));
        prop_assert_eq!(properties.creation_time, time);
        prop_assert_eq!(properties.group_id, message.field("amqp-group-id"));
        let sequence = message.field("amqp-group-sequence").map(|text| text.parse().unwrap());
        prop_assert_eq!(properties.group_sequence, sequence);
        prop_assert_eq!(properties.reply_to_group_id, message.field("amqp-reply-to-group-id"));
        let user: Vec<(String, String)> = view
            .application_properties()
            .into_iter()
            .flatten()
            .map(|(name, value)| {
                (name.as_text().unwrap().to_owned(), value.as_text().unwrap().to_owned())
            })
            .collect();
        let plain: Vec<(String, String)> = message
            .user
            .iter()
            .filter(|(name, _)| !name.starts_with("amqp-"))
            .cloned()
            .collect();
        prop_assert_eq!(user, plain);
        if message.is_text {
            let text = std::str::from_utf8(&message.payload).unwrap();
            prop_assert!(matches!(view.body(), Body::Value(Value::String(body)) if body == text));
        } else {
            prop_assert_eq!(view.data(), Some(&*message.payload));
        }
        // Back again.
        let peer = subscriber(&mut broker);
        let back = amqp.sender(&mut broker, session, "back");
        amqp.send_message(&mut broker, back, 1, &came.payload, came.settled, None);
        let again: Vec<MqttMessage> = heard(&mut broker, peer);
        let mut again = again.into_iter().last().expect("the message");
        let mut expected = message.clone();
        expected.qos = expected.qos.min(1);
        again.user.sort();
        expected.user.sort();
        prop_assert_eq!(again, expected);
    }

    /// From AMQP to MQTT row by row, and to another AMQP client unaltered.
    #[test]
    fn amqp_to_mqtt_and_amqp(
        settled: bool,
        ttl_s in proptest::option::of(1..4_000_000_u32),
        priority in 0..=9_u8,
        durable: bool,
        id in 0..5_u8,
        subject in proptest::option::of(text()),
        body in 0..6_u8,
        payload in proptest::collection::vec(any::<u8>(), 0..300),
        words in text(),
        annotated: bool,
    ) {
        let mut broker = Broker::new();
        let mqtt = subscriber(&mut broker);
        let mut amqp = Client::connect(&mut broker, "c");
        let session = amqp.begin(&mut broker);
        amqp.receiver(&mut broker, session, "r", Source::new("a/+"), 1);
        let message_id = match id {
            0 => None,
            1 => Some(MessageId::Ulong(u64::MAX)),
            2 => Some(MessageId::Uuid([0xab; 16])),
            3 => Some(MessageId::Binary(&[0xff, 0])),
            _ => Some(MessageId::String(&words)),
        };
        let properties = Properties {
            message_id,
            user_id: Some(b"ann"),
            to: annotated.then_some(Value::String("/exchanges/amq.topic/a.b")),
            subject: subject.as_deref(),
            reply_to: Some(Value::String("/queues/answers")),
            correlation_id: message_id,
            content_type: Some(Symbol("text/plain")),
            content_encoding: Some(Symbol("gzip")),
            creation_time: Some(Timestamp(7)),
            group_id: Some("g"),
            group_sequence: Some(3),
            reply_to_group_id: Some("h"),
            ..Properties::default()
        };
        let header = Header {
            durable,
            priority,
            ttl: ttl_s.map(|seconds| seconds * 1000),
            ..Header::default()
        };
        let values = [
            ("bool", Value::Boolean(true), "true"),
            ("long", Value::Long(-5), "-5"),
            ("double", Value::Double(1.5), "1.5"),
            ("string", Value::String("x"), "x"),
            ("symbol", Value::Symbol("y"), "y"),
            ("binary", Value::Binary(b"foo"), "Zm9v"),
            ("uuid", Value::Uuid([0xab; 16]), "abababab-abab-abab-abab-abababababab"),
            ("null", Value::Null, ""),
        ];
        let mut message = BytesMut::new();
        let mut writer = MessageWriter::new(&mut message);
        writer.header(&header);
        writer.delivery_annotations(|map| map.push(&Value::Symbol("hop"), &Value::Null));
        writer.message_annotations(|map| map.push(&Value::Symbol("x-note"), &Value::Int(1)));
        writer.properties(&properties);
        writer.application_properties(|map| {
            for (name, value, _) in &values {
                map.push(&Value::String(name), value);
            }
        });
        match body {
            0 => drop(writer.data(&payload)),
            1 => drop(writer.value(&Value::String(&words))),
            2 => drop(writer.value(&Value::Binary(&payload))),
            3 => drop(writer.value(&Value::Null)),
            4 => drop(writer.data(&payload).data(b"more")),
            _ => drop(writer.value(&Value::Long(7))),
        }
        writer.footer(|map| map.push(&Value::Symbol("x-sum"), &Value::Int(2)));
        let target = if annotated { "/exchanges/amq.topic/a.b" } else { "a/b" };
        let sender = amqp.sender(&mut broker, session, target);
        amqp.send_message(&mut broker, sender, 1, &message, settled, None);

        let mut came = heard(&mut broker, mqtt);
        prop_assert_eq!(came.len(), 1);
        let came = came.remove(0);
        prop_assert_eq!(came.qos, u8::from(!settled));
        prop_assert_eq!(came.expiry_s, ttl_s);
        prop_assert_eq!(came.response_topic.as_deref(), Some("queue/answers"));
        let (content_type, kept) = match body {
            4 => ("application/vnd.amqp", Some("text/plain")),
            _ => ("text/plain", None),
        };
        prop_assert_eq!(came.content_type.as_deref(), Some(content_type));
        prop_assert_eq!(came.field("amqp-content-type"), kept);
        let mark = match body {
            2 => Some("binary"),
            3 => Some("null"),
            5 => Some("long"),
            _ => None,
        };
        prop_assert_eq!(came.field("amqp-type"), mark);
        let uuid = "abababab-abab-abab-abab-abababababab";
        let (correlation, id_text): (Option<Vec<u8>>, Option<String>) = match message_id {
            None => (None, None),
            Some(MessageId::Ulong(number)) => (
                Some(number.to_string().into_bytes()),
                Some(number.to_string()),
            ),
            Some(MessageId::Uuid(_)) => (Some(uuid.into()), Some(uuid.to_owned())),
            Some(MessageId::Binary(bytes)) => (Some(bytes.to_vec()), Some("base64:/wA=".to_owned())),
            Some(MessageId::String(text)) => (Some(text.into()), Some(text.to_owned())),
        };
        prop_assert_eq!(&came.correlation, &correlation);
        prop_assert_eq!(came.field("amqp-message-id"), id_text.as_deref());
        prop_assert_eq!(came.field("amqp-user-id"), Some("YW5u"));
        prop_assert_eq!(came.field("amqp-subject"), subject.as_deref());
        prop_assert_eq!(came.field("amqp-content-encoding"), Some("gzip"));
        prop_assert_eq!(came.field("amqp-creation-time"), Some("7"));
        prop_assert_eq!(came.field("amqp-group-id"), Some("g"));
        prop_assert_eq!(came.field("amqp-group-sequence"), Some("3"));
        prop_assert_eq!(came.field("amqp-reply-to-group-id"), Some("h"));
        let expected = (priority != 4).then(|| priority.to_string());
        prop_assert_eq!(came.field("amqp-priority"), expected.as_deref());
        for (name, _, text) in &values {
            prop_assert_eq!(came.field(name), Some(*text));
        }
        let view = MessageView::parse(&message).unwrap();
        prop_assert_eq!(came.is_text, matches!(body, 1 | 5));
        let encoded = message[view.body_range()].to_vec();
        prop_assert_eq!(&came.payload, match body {
            0 | 2 => &payload,
            1 => words.as_bytes(),
            3 => &[][..],
            5 => b"7",
            _ => &encoded,
        });

        let native = amqp.received.pop().expect("the message");
        let got = MessageView::parse(&native.payload).unwrap();
        prop_assert_eq!(
            &native.payload[got.bare()],
            &message[view.bare()],
            "the bare message is never changed"
        );
        prop_assert_eq!(got.message_annotations(), view.message_annotations());
        prop_assert_eq!(got.footer(), view.footer());
        let topic = got.delivery_annotations().and_then(|map| map.get("x-opt-topic"));
        prop_assert_eq!(topic, Some(Value::String("a/b")));
        let hop = got.delivery_annotations().and_then(|map| map.get("hop"));
        prop_assert_eq!(hop, None, "delivery annotations end here");
        let got = got.header().unwrap().unwrap_or_default();
        prop_assert!(!got.first_acquirer, "the publisher did not say so");
        prop_assert_eq!((got.durable, got.priority, got.ttl), (durable, priority, header.ttl));
    }
}

/// An empty body clears what is retained; a message that asks for it is retained.
#[test]
fn amqp_sets_and_clears_retained_messages() {
    let mut broker = Broker::new();
    let mut amqp = Client::connect(&mut broker, "c");
    let session = amqp.begin(&mut broker);
    let sender = amqp.sender(&mut broker, session, "a/b");
    for (text, retained) in [("on", 1), ("", 0)] {
        let mut message = BytesMut::new();
        MessageWriter::new(&mut message)
            .message_annotations(|map| {
                map.push(&Value::Symbol("x-opt-retain"), &Value::Boolean(true));
            })
            .data(text.as_bytes());
        amqp.send_message(&mut broker, sender, 1, &message, false, None);
        let peer = subscriber_after(&mut broker);
        assert_eq!(peer, retained, "{text}");
    }
}

/// How many retained messages a new subscriber gets.
fn subscriber_after(broker: &mut Broker) -> usize {
    let peer = broker.client(V5, "late");
    broker.subscribe_with(
        peer,
        V5,
        "a/b",
        SubscribeOptions::new(QoS::AtLeastOnce),
        &[],
    );
    let told = broker.told(peer, V5);
    told.iter().filter(|one| one.contains(" retain ")).count()
}

/// The earlier of time to live and absolute expiry holds, and what is left is told.
#[test]
fn expiry_is_the_earlier_and_what_is_left() {
    let mut broker = Broker::new();
    let now_ms = broker.wires[0].now_ms as i64;
    let mut amqp = Client::connect(&mut broker, "c");
    let session = amqp.begin(&mut broker);
    let sender = amqp.sender(&mut broker, session, "queue/q");
    for (ttl, until_ms) in [
        (Some(30_000), Some(now_ms + 20_000)),
        (Some(20_000), None),
        (None, Some(now_ms + 25_000)),
    ] {
        let mut message = BytesMut::new();
        let header = Header {
            ttl,
            ..Header::default()
        };
        let properties = Properties {
            absolute_expiry_time: until_ms.map(Timestamp),
            ..Properties::default()
        };
        MessageWriter::new(&mut message)
            .header(&header)
            .properties(&properties)
            .data(b"x");
        amqp.send_message(&mut broker, sender, 1, &message, false, None);
    }
    broker.advance(5_000);
    amqp.receiver(&mut broker, session, "r", Source::new("queue/q"), 10);
    let left: Vec<Option<u32>> = amqp
        .received
        .iter()
        .map(|one| {
            let view = MessageView::parse(&one.payload).expect("a message");
            view.header().expect("a header").expect("a header").ttl
        })
        .collect();
    assert_eq!(left, [Some(15_000), Some(15_000), Some(20_000)]);
    broker.advance(30_000);
    amqp.turn(&mut broker);
    assert_eq!(amqp.received.len(), 3);
}

/// Annotations with which a receiver gives a message back are there when it comes again, also with
/// what others add later (part 3, section 3.4.4); what MQTT gets stays the same.
#[test]
fn modified_annotations_come_with_the_next_delivery() {
    let over = |entries: &[(&str, Value<'_>)]| {
        let mut out = BytesMut::new();
        let mut map = MapWriter::new(&mut out);
        for (key, value) in entries {
            map.push(&Value::Symbol(key), value);
        }
        map.finish();
        out
    };
    for by_amqp in [true, false] {
        let mut broker = Broker::new();
        let mut amqp = Client::connect(&mut broker, "c");
        let session = amqp.begin(&mut broker);
        amqp.receiver(&mut broker, session, "r", Source::new("queue/q"), 1);
        if by_amqp {
            let sender = amqp.sender(&mut broker, session, "queue/q");
            let mut message = BytesMut::new();
            MessageWriter::new(&mut message)
                .message_annotations(|map| {
                    map.push(&Value::Symbol("x-kept"), &Value::Int(1));
                    map.push(&Value::Symbol("x-changed"), &Value::Int(1));
                })
                .data(b"work");
            amqp.send_message(&mut broker, sender, 1, &message, false, None);
        } else {
            let peer = broker.client(V5, "publisher");
            broker.publish(peer, V5, "queue/q", "work", QoS::AtLeastOnce);
        }
        amqp.turn(&mut broker);
        let mut expected = std::collections::BTreeMap::new();
        if by_amqp {
            expected.extend([("x-kept", 1), ("x-changed", 1)]);
        }
        for (round, delivery_failed) in [true, false, true].into_iter().enumerate() {
            let got = amqp.received.pop().expect("the message");
            assert_eq!(got.text(), "work");
            let view = MessageView::parse(&got.payload).unwrap();
            let annotations = view.message_annotations();
            assert_eq!(annotations.map_or(0, |map| map.len()), expected.len());
            for (key, value) in &expected {
                let found = annotations.and_then(|map| map.get(key));
                assert_eq!(found, Some(Value::Int(*value)), "{key}");
            }
            let number = round as i32 + 2;
            let key = ["x-one", "x-two", "x-three"][round];
            let bytes = over(&[("x-changed", Value::Int(number)), (key, Value::Int(number))]);
            let Ok(Value::Map(map)) = Value::decode(&bytes) else {
                panic!("a map");
            };
            let state = DeliveryState::Outcome(Outcome::Modified(Modified {
                delivery_failed,
                undeliverable_here: false,
                message_annotations: Some(map),
            }));
            expected.extend([("x-changed", number), (key, number)]);
            amqp.dispose(&mut broker, session, (got.id, got.id), &state, true);
            amqp.credit(&mut broker, got.link, 1);
        }
        let got = amqp.received.pop().expect("the message");
        assert_eq!(got.delivery_count(), 2);
        // More than the limit is not kept.
        let long = "x".repeat(5_000);
        let bytes = over(&[("x-long", Value::String(&long))]);
        let Ok(Value::Map(map)) = Value::decode(&bytes) else {
            panic!("a map");
        };
        let state = DeliveryState::Outcome(Outcome::Modified(Modified {
            delivery_failed: false,
            undeliverable_here: false,
            message_annotations: Some(map),
        }));
        amqp.dispose(&mut broker, session, (got.id, got.id), &state, true);
        amqp.credit(&mut broker, got.link, 1);
        let again = amqp.received.pop().expect("the message");
        assert_eq!(again.text(), "work");
        let view = MessageView::parse(&again.payload).unwrap();
        let annotations = view.message_annotations().expect("annotations");
        assert_eq!(annotations.len(), expected.len());
        assert_eq!(annotations.get("x-long"), None);
    }
}

/// What the publisher says of the first acquirer is never made true (part 3, section 3.2.1).
#[test]
fn a_first_acquirer_that_is_none_stays_none() {
    for first_acquirer in [true, false] {
        let mut broker = Broker::new();
        let mut amqp = Client::connect(&mut broker, "c");
        let session = amqp.begin(&mut broker);
        let sender = amqp.sender(&mut broker, session, "queue/q");
        let mut message = BytesMut::new();
        let header = Header {
            durable: true,
            first_acquirer,
            ..Header::default()
        };
        MessageWriter::new(&mut message).header(&header).data(b"x");
        amqp.send_message(&mut broker, sender, 1, &message, false, None);
        amqp.receiver(&mut broker, session, "r", Source::new("queue/q"), 1);
        let said = |payload: &[u8]| {
            let header = MessageView::parse(payload).unwrap().header().unwrap();
            header.expect("a header").first_acquirer
        };
        let got = amqp.received.pop().expect("the message");
        assert_eq!(said(&got.payload), first_acquirer);
        amqp.dispose(
            &mut broker,
            session,
            (got.id, got.id),
            &DeliveryState::RELEASED,
            true,
        );
        amqp.credit(&mut broker, got.link, 1);
        let got = amqp.received.pop().expect("the message");
        assert!(!said(&got.payload), "it was sent before");
    }
}

/// Everything that a delivery of four bytes costs a receiver, frames included.
#[test]
fn a_delivery_takes_few_bytes() {
    let mut broker = Broker::new();
    let mut amqp = Client::connect(&mut broker, "c");
    let session = amqp.begin(&mut broker);
    let topic = "sensors/room1";
    amqp.receiver(&mut broker, session, "r", Source::new(topic), 2);
    let mut peer = Client::connect(&mut broker, "p");
    let other = peer.begin(&mut broker);
    let sender = peer.sender(&mut broker, other, topic);
    let mut message = BytesMut::new();
    MessageWriter::new(&mut message).data(b"21.5");
    amqp.tap = Some(Vec::new());
    peer.send_message(&mut broker, sender, 1, &message, false, None);
    amqp.turn(&mut broker);
    assert_eq!(
        &*amqp.received.pop().expect("the message").payload,
        &*message
    );
    let bytes = amqp.tap.take().map_or(0, |tap| tap.len());
    assert!(bytes <= 50, "{bytes}");
    // From MQTT at QoS 0: no header, and the topic once.
    amqp.tap = Some(Vec::new());
    let publisher = broker.client(V5, "publisher");
    broker.publish(publisher, V5, topic, "21.5", QoS::AtMostOnce);
    amqp.turn(&mut broker);
    assert_eq!(amqp.received.pop().expect("the message").text(), "21.5");
    let bytes = amqp.tap.take().map_or(0, |tap| tap.len());
    assert!(bytes <= 60, "{bytes}");
}
