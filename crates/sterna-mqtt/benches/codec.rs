//! Time per operation of what a broker does most, in nanoseconds: `cargo bench -p sterna-mqtt`.
//!
//! With an argument, only operations whose name contains it: `cargo bench -p sterna-mqtt -- QoS`.
//! The best of several rounds is printed: the one that was disturbed least. Without `--bench` each
//! operation runs a few times only, to see that it works.

use std::hint::black_box;
use std::time::Instant;

use bytes::BytesMut;
use sterna_mqtt::packet::{Connect, Publish};
use sterna_mqtt::server::{Accept, Connection, Event, Limits, OutgoingPublish};
use sterna_mqtt::{
    Framer, Lane, MAX_PACKET_BYTES, MqttSession, Packet, Properties, Property, PropertyBuf,
    PropertyContext, PublishProperties, QoS, ReasonCode, Version,
};

/// Rounds per operation, short enough for one to get through undisturbed.
const ROUNDS: u32 = 300;

fn measure(name: &str, operations: u32, mut operation: impl FnMut()) {
    let wanted = std::env::args()
        .nth(1)
        .filter(|argument| !argument.starts_with("--"));
    if wanted.is_some_and(|wanted| !name.contains(&wanted)) {
        return;
    }
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..operations {
            operation();
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(operations));
    }
    println!("{name:<52} {best:8.1} ns");
}

fn encoded(publish: &Publish<'_>, version: Version) -> BytesMut {
    let mut out = BytesMut::new();
    Packet::Publish(*publish)
        .encode(version, MAX_PACKET_BYTES, &mut out)
        .expect("encodes");
    out
}

fn connected(limits: &Limits) -> (Connection, MqttSession, BytesMut) {
    let mut connection = Connection::new(*limits, 0);
    let mut session = MqttSession::new();
    let mut out = BytesMut::new();
    let connect = Connect {
        version: Version::V5,
        clean_start: true,
        keep_alive_s: 0,
        client_id: "bench",
        will: None,
        user_name: None,
        password: None,
        properties: Properties::EMPTY,
    };
    connection
        .handle(None, Lane::CONTROL, Packet::Connect(connect), 0, &mut out)
        .expect("a valid CONNECT");
    connection
        .accept(&mut session, &Accept::default(), 0, &mut out)
        .expect("fits");
    out.clear();
    (connection, session, out)
}

fn main() {
    let full = std::env::args().any(|argument| argument == "--bench");
    let operations = if full { 20_000 } else { 10 };
    let topic = "sensors/berlin/42/temperature";
    let plain = Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic,
        packet_id: None,
        properties: PublishProperties::EMPTY,
        payload: &[b'x'; 61],
    };
    let bytes = encoded(&plain, Version::V5);
    assert_eq!(bytes.len(), 95);
    let mut framer = Framer::new();
    measure(
        "decode PUBLISH, 95 bytes, no properties",
        operations,
        || {
            let mut input = black_box(&bytes[..]);
            let frame = framer
                .next(&mut input, MAX_PACKET_BYTES)
                .expect("valid")
                .expect("whole");
            black_box(Packet::decode(&frame, Version::V5).expect("valid"));
        },
    );

    let mut properties = PropertyBuf::new();
    properties
        .push(Property::MessageExpiryInterval(60))
        .expect("fits");
    properties
        .push(Property::UserProperty("a", "b"))
        .expect("fits");
    let block = properties
        .publish_properties(PropertyContext::Publish)
        .expect("valid");
    let with_properties = Publish {
        properties: block,
        ..plain
    };
    let bytes_with_properties = encoded(&with_properties, Version::V5);
    assert_eq!(bytes_with_properties.len(), 107);
    measure(
        "decode PUBLISH, 107 bytes, 2 properties",
        operations,
        || {
            let mut input = black_box(&bytes_with_properties[..]);
            let frame = framer
                .next(&mut input, MAX_PACKET_BYTES)
                .expect("valid")
                .expect("whole");
            black_box(Packet::decode(&frame, Version::V5).expect("valid"));
        },
    );

    let limits = Limits::default();
    let (mut connection, mut session, mut out) = connected(&limits);
    measure("bytes to event, QoS 0", operations, || {
        let mut input = black_box(&bytes[..]);
        let frame = framer
            .next(&mut input, MAX_PACKET_BYTES)
            .expect("valid")
            .expect("whole");
        let event = connection.receive(Some(&mut session), Lane::CONTROL, &frame, 0, &mut out);
        black_box(event.expect("valid"));
    });

    let qos1 = Publish {
        qos: QoS::AtLeastOnce,
        packet_id: Some(1.try_into().expect("1")),
        ..plain
    };
    let bytes_qos1 = encoded(&qos1, Version::V5);
    measure("bytes to event and PUBACK, QoS 1", operations, || {
        let mut input = black_box(&bytes_qos1[..]);
        let frame = framer
            .next(&mut input, MAX_PACKET_BYTES)
            .expect("valid")
            .expect("whole");
        let event = connection
            .receive(Some(&mut session), Lane::CONTROL, &frame, 0, &mut out)
            .expect("valid");
        if let Some(Event::Publish(publish)) = event
            && let Some(packet_id) = publish.packet_id
        {
            connection.puback(Lane::CONTROL, packet_id, ReasonCode::Success, &mut out);
        }
        out.clear();
    });

    let qos2 = Publish {
        qos: QoS::ExactlyOnce,
        packet_id: Some(1.try_into().expect("1")),
        ..plain
    };
    let mut bytes_qos2 = encoded(&qos2, Version::V5);
    bytes_qos2.extend_from_slice(b"\x62\x02\x00\x01");
    measure(
        "PUBLISH, PUBREC, PUBREL, PUBCOMP, QoS 2",
        operations,
        || {
            let mut input = black_box(&bytes_qos2[..]);
            while let Some(frame) = framer.next(&mut input, MAX_PACKET_BYTES).expect("valid") {
                let event = connection
                    .receive(Some(&mut session), Lane::CONTROL, &frame, 0, &mut out)
                    .expect("valid");
                let lane = Lane::CONTROL;
                match event {
                    Some(Event::Publish(publish)) => {
                        if let Some(packet_id) = publish.packet_id {
                            let reason = ReasonCode::Success;
                            connection.pubrec(&mut session, lane, packet_id, reason, &mut out);
                        }
                    }
                    Some(Event::Released {
                        packet_id, reason, ..
                    }) => {
                        connection.pubcomp(lane, packet_id, reason, &mut out);
                    }
                    _ => {}
                }
            }
            out.clear();
        },
    );

    let delivery = OutgoingPublish {
        tag: 7,
        lane: Lane::CONTROL,
        qos: QoS::AtMostOnce,
        packet_id: None,
        dup: false,
        retain: false,
        topic: topic.as_bytes(),
        properties: &[],
        expires_at_ms: None,
        identifiers: &[],
        payload: &[b'x'; 61],
    };
    measure("delivery to bytes, QoS 0", operations, || {
        let sent = connection.publish(&mut session, black_box(&delivery), 0, &mut out);
        black_box(sent.expect("sent"));
        out.clear();
    });

    let delivery = OutgoingPublish {
        qos: QoS::AtLeastOnce,
        ..delivery
    };
    measure("delivery to bytes and PUBACK, QoS 1", operations, || {
        let sent = connection.publish(&mut session, black_box(&delivery), 0, &mut out);
        let packet_id = sent
            .expect("sent")
            .packet_id
            .expect("QoS 1")
            .get()
            .to_be_bytes();
        let puback = [0x40, 2, packet_id[0], packet_id[1]];
        let mut input = &puback[..];
        let frame = framer
            .next(&mut input, MAX_PACKET_BYTES)
            .expect("valid")
            .expect("whole");
        let event = connection.receive(Some(&mut session), Lane::CONTROL, &frame, 0, &mut out);
        black_box(event.expect("valid"));
        out.clear();
    });
    println!(
        "sizes in bytes: Packet {}, Publish {}, Event {}, Connection {}, Session {}, Framer {}",
        size_of::<Packet<'_>>(),
        size_of::<Publish<'_>>(),
        size_of::<Event<'_>>(),
        size_of::<Connection>(),
        size_of::<MqttSession>(),
        size_of::<Framer>(),
    );
}
