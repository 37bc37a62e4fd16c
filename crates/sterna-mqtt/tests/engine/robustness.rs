//! No input makes the engine panic, read beyond its end, or keep more than it may: random bytes,
//! prefixes and mutations of valid packets, and valid packets in any order.

use super::bodies;
use super::generate::{config, filter, packet_id, properties, qos, topic_name, version};
use bytes::BytesMut;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use sterna_mqtt::packet::{
    Ack, Auth, Connect, Disconnect, Publish, SubscribeOptions, Will, encode_subscribe,
    encode_unsubscribe,
};
use sterna_mqtt::{
    Framer, MAX_PACKET_BYTES, Packet, PropertyContext, PublishProperties, QoS, ReasonCode, Version,
};

fn encode(packet: &Packet<'_>, version: Version) -> Vec<u8> {
    let mut out = BytesMut::new();
    packet
        .encode(version, MAX_PACKET_BYTES, &mut out)
        .expect("valid");
    out.to_vec()
}

fn connect(version: Version) -> impl Strategy<Value = Vec<u8>> {
    let block = properties(PropertyContext::Connect, version);
    let will = option::of((
        topic_name(),
        qos(),
        properties(PropertyContext::Will, version),
    ));
    (any::<bool>(), block, will).prop_map(move |(clean_start, block, will)| {
        let connect = Connect {
            version,
            clean_start,
            keep_alive_s: 10,
            client_id: "client",
            will: will.as_ref().map(|(topic, qos, block)| Will {
                topic,
                payload: b"gone",
                qos: *qos,
                retain: false,
                properties: block
                    .publish_properties(PropertyContext::Will)
                    .expect("valid"),
            }),
            user_name: Some("user"),
            password: Some(b"password"),
            properties: block.properties(),
        };
        encode(&Packet::Connect(connect), version)
    })
}

fn publish(version: Version) -> impl Strategy<Value = Vec<u8>> {
    let block = properties(PropertyContext::Publish, version);
    (
        qos(),
        1..6_u16,
        topic_name(),
        block,
        any::<bool>(),
        vec(any::<u8>(), 0..40),
    )
        .prop_map(move |(qos, packet_id, topic, block, dup, payload)| {
            let publish = Publish {
                dup: dup && qos.is_acknowledged(),
                qos,
                retain: false,
                topic: &topic,
                packet_id: packet_id.try_into().ok().filter(|_| qos.is_acknowledged()),
                properties: block
                    .publish_properties(PropertyContext::Publish)
                    .expect("valid"),
                payload: &payload,
            };
            encode(&Packet::Publish(publish), version)
        })
}

/// Any packet that a client sends, of a few identifiers so that they meet.
fn client_packet(version: Version) -> impl Strategy<Value = Vec<u8>> {
    let ack = (0..4_usize, 1..6_u16).prop_map(move |(kind, packet_id)| {
        let ack = Ack::new(packet_id.try_into().expect("not zero"), ReasonCode::Success);
        let packet = [
            Packet::PubAck,
            Packet::PubRec,
            Packet::PubRel,
            Packet::PubComp,
        ][kind](ack);
        encode(&packet, version)
    });
    let subscribe = (vec(filter(), 1..4), packet_id()).prop_map(move |(filters, packet_id)| {
        let mut out = BytesMut::new();
        let filters = filters
            .iter()
            .map(|f| (f.as_str(), SubscribeOptions::default()));
        let none = sterna_mqtt::Properties::EMPTY;
        encode_subscribe(
            version,
            packet_id,
            none,
            filters,
            MAX_PACKET_BYTES,
            &mut out,
        )
        .expect("valid");
        out.to_vec()
    });
    let unsubscribe = (vec(filter(), 1..4), packet_id()).prop_map(move |(filters, packet_id)| {
        let mut out = BytesMut::new();
        let filters = filters.iter().map(String::as_str);
        let none = sterna_mqtt::Properties::EMPTY;
        encode_unsubscribe(
            version,
            packet_id,
            none,
            filters,
            MAX_PACKET_BYTES,
            &mut out,
        )
        .expect("valid");
        out.to_vec()
    });
    let auth = properties(PropertyContext::Auth, Version::V5).prop_map(move |block| {
        let auth = Auth {
            reason: ReasonCode::ContinueAuthentication,
            properties: block.properties(),
        };
        encode(&Packet::Auth(auth), Version::V5)
    });
    let disconnect = Just(encode(
        &Packet::Disconnect(Disconnect::new(ReasonCode::Success)),
        version,
    ));
    prop_oneof![
        1 => connect(version),
        8 => publish(version),
        8 => ack,
        2 => subscribe,
        2 => unsubscribe,
        2 => Just(encode(&Packet::PingReq, version)),
        1 => auth,
        1 => disconnect,
    ]
}

/// Changes a few bytes, drops some, repeats some.
fn mutate(bytes: &mut Vec<u8>, changes: &[(prop::sample::Index, u8, u8)]) {
    for (index, kind, value) in changes {
        if bytes.is_empty() {
            return;
        }
        let at = index.index(bytes.len());
        match kind % 4 {
            0 => bytes[at] = *value,
            1 => bytes[at] ^= 1 << (value % 8),
            2 => {
                bytes.remove(at);
            }
            _ => bytes.insert(at, *value),
        }
    }
}

fn changes() -> impl Strategy<Value = Vec<(prop::sample::Index, u8, u8)>> {
    vec(any::<(prop::sample::Index, u8, u8)>(), 0..6)
}

/// A script for [`bodies::server`] that feeds packets and lets the front door act in between.
fn script(packets: &[Vec<u8>], actions: &[(u8, u8)]) -> Vec<u8> {
    let mut script = vec![actions.first().map_or(0, |action| action.1 & 7)];
    let mut actions = actions.iter().cycle();
    for (number, packet) in packets.iter().enumerate() {
        let Some(&(operation, argument)) = actions.next() else {
            break;
        };
        // The first packets go to the control lane, so that the connection comes up.
        let lane = if number < 2 { 0 } else { operation / 10 % 4 };
        for piece in packet.chunks(255) {
            script.extend_from_slice(&[lane * 10, piece.len() as u8]);
            script.extend_from_slice(piece);
        }
        let operation = if number == 0 { 4 } else { operation };
        if operation % 10 > 3 {
            script.extend_from_slice(&[operation, if number == 0 { 11 } else { argument }]);
        }
    }
    script
}

proptest! {
    #![proptest_config(config(200))]

    #[test]
    fn random_bytes(data in vec(any::<u8>(), 0..200)) {
        bodies::decode(&data);
        bodies::framer(&data);
        bodies::server(&data);
        bodies::session(&data);
        bodies::topics(&data);
    }

    /// Also: frames do not depend on how their bytes were split. [MQTT-6.0.0-2]
    #[test]
    fn mutated_packets(
        mut packet in version().prop_flat_map(client_packet),
        changes in changes(),
    ) {
        bodies::decode(&packet);
        mutate(&mut packet, &changes);
        bodies::decode(&packet);
        packet.insert(0, 20);
        bodies::framer(&packet);
    }

    /// A prefix of a packet is no packet, and no field of it is read beyond its end.
    #[test]
    fn prefixes((version, packet) in version().prop_flat_map(|v| (Just(v), client_packet(v)))) {
        for len in 0..packet.len() {
            let mut framer = Framer::new();
            let mut input = &packet[..len];
            prop_assert!(matches!(framer.next(&mut input, MAX_PACKET_BYTES), Ok(None)));
        }
        // The same with a fixed header that claims the prefix is all: only the payload of a
        // PUBLISH and what may be left out at the end may be missing.
        let mut framer = Framer::new();
        let mut input = &packet[..];
        let frame = framer.next(&mut input, MAX_PACKET_BYTES).expect("valid").expect("whole");
        for len in 0..frame.body().len() {
            let cut = sterna_mqtt::Frame::new(frame.first_byte(), &frame.body()[..len]);
            if let Ok(shorter) = Packet::decode(&cut, version) {
                let whole = Packet::decode(&frame, version).expect("valid");
                prop_assert_eq!(shorter.packet_type(), whole.packet_type());
                // MQTT 3.1 lets user name and password be missing.
                prop_assert!(version == Version::V31 || !matches!(shorter, Packet::Connect(_)));
            }
        }
    }

    #[test]
    fn packets_in_any_order(
        (version, first, packets) in version().prop_flat_map(|v| {
            (Just(v), connect(v), vec(client_packet(v), 0..25))
        }),
        actions in vec(any::<(u8, u8)>(), 1..30),
        changes in changes(),
        mutated in any::<bool>(),
    ) {
        let _ = version;
        let mut packets = packets;
        packets.insert(0, first);
        let mut script = script(&packets, &actions);
        if mutated {
            mutate(&mut script, &changes);
        }
        bodies::server(&script);
    }

    #[test]
    fn session_operations(data in vec(any::<u8>(), 0..400)) {
        bodies::session(&data);
    }
}

/// A lane that could not be cut stays so, whatever follows.
#[test]
fn a_framer_does_not_recover() {
    let mut framer = Framer::new();
    for byte in b"\x30\xff\xff\xff" {
        assert!(
            framer
                .next(&mut &[*byte][..], MAX_PACKET_BYTES)
                .expect("possible")
                .is_none()
        );
    }
    for _ in 0..3 {
        assert!(framer.next(&mut &b"\xff"[..], MAX_PACKET_BYTES).is_err());
        assert!(
            framer
                .next(&mut &b"\xc0\x00"[..], MAX_PACKET_BYTES)
                .is_err()
        );
    }
}

/// `ATTACKS.md` 2: a length that is claimed allocates nothing.
#[test]
fn a_claimed_length_is_not_allocated() {
    let mut framer = Framer::new();
    let mut input = &b"\x30\xff\xff\xff\x7f\x00\x01t"[..];
    assert!(
        framer
            .next(&mut input, MAX_PACKET_BYTES)
            .expect("possible")
            .is_none()
    );
    assert!(framer.buffered_bytes() <= 256);
    // Bytes that arrive one by one make it grow with them only.
    for arrived in 3..10_000 {
        let mut input = &b"x"[..];
        assert!(
            framer
                .next(&mut input, MAX_PACKET_BYTES)
                .expect("possible")
                .is_none()
        );
        assert!(framer.buffered_bytes() <= 2 * arrived + 256);
    }
}

/// `ATTACKS.md` 5: thousands of User Properties take linear time; a megabyte far below 50 ms even
/// without optimisation.
#[test]
fn a_megabyte_of_user_properties() {
    let mut block = sterna_mqtt::PropertyBuf::new();
    while block.len() < 1_000_000 {
        block
            .push(sterna_mqtt::Property::UserProperty("", ""))
            .expect("short");
    }
    let publish = Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: "t",
        packet_id: None,
        properties: PublishProperties::EMPTY,
        payload: &[],
    };
    let properties = block
        .publish_properties(PropertyContext::Publish)
        .expect("valid");
    let bytes = encode(
        &Packet::Publish(Publish {
            properties,
            ..publish
        }),
        Version::V5,
    );
    let mut framer = Framer::new();
    let mut input = &bytes[..];
    let frame = framer
        .next(&mut input, MAX_PACKET_BYTES)
        .expect("valid")
        .expect("whole");
    let Ok(Packet::Publish(publish)) = Packet::decode(&frame, Version::V5) else {
        panic!("not a PUBLISH")
    };
    assert_eq!(publish.properties.user_properties().count(), 200_000);
    assert!(publish.properties.forward().contiguous().is_some());
}
