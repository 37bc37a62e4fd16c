//! What is encoded decodes to the same, for every packet and version.

use super::generate::{
    config, filter, only_v5, options, packet_id, properties, qos, reason, text, topic_name, version,
};
use bytes::BytesMut;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use sterna_mqtt::packet::{
    Ack, Auth, ConnAck, Connect, Disconnect, Publish, SubscribeOptions, Will, encode_suback,
    encode_subscribe, encode_unsuback, encode_unsubscribe,
};
use sterna_mqtt::{
    EncodeError, Frame, Framer, MAX_PACKET_BYTES, Packet, PacketType, Property, PropertyBuf,
    PropertyContext, Version,
};

/// Decodes bytes that must be exactly one packet.
fn decode(bytes: &[u8], version: Version, check: impl FnOnce(&Packet<'_>)) {
    let mut framer = Framer::new();
    let mut input = bytes;
    let frame = framer
        .next(&mut input, bytes.len())
        .expect("valid")
        .expect("whole");
    assert_eq!(frame.packet_bytes(), bytes.len());
    let packet = Packet::decode(&frame, version).expect("what was encoded is valid");
    check(&packet);
    // Encoding the view gives the same bytes, and fails exactly where the packet is too large.
    let mut again = BytesMut::new();
    packet
        .encode(version, bytes.len(), &mut again)
        .expect("fits");
    assert_eq!(&again[..], bytes);
    let too_large = packet.encode(version, bytes.len() - 1, &mut again);
    assert_eq!(
        too_large,
        Err(EncodeError::TooLarge {
            packet_bytes: bytes.len()
        })
    );
    assert_eq!(again.len(), bytes.len(), "nothing is written on error");
    assert!(input.is_empty());
}

/// Encodes, decodes and compares.
fn round_trip(packet: &Packet<'_>, version: Version) {
    let mut out = BytesMut::new();
    packet
        .encode(version, MAX_PACKET_BYTES, &mut out)
        .expect("encodes");
    decode(&out, version, |decoded| assert_eq!(decoded, packet));
}

proptest! {
    #![proptest_config(config(100))]

    #[test]
    fn connect(
        version in version(),
        (clean_start, keep_alive_s) in any::<(bool, u16)>(),
        client_id in text(),
        will in option::of((topic_name(), vec(any::<u8>(), 0..20), qos(), any::<bool>())),
        user_name in option::of(text()),
        password in option::of(vec(any::<u8>(), 0..20)),
        block in properties(PropertyContext::Connect, Version::V5),
        will_block in properties(PropertyContext::Will, Version::V5),
    ) {
        let v5 = version == Version::V5;
        let (block, will_block) = (only_v5(version, block), only_v5(version, will_block));
        let password = password.filter(|_| v5 || user_name.is_some());
        let will = will.as_ref().map(|(topic, payload, qos, retain)| Will {
            topic,
            payload,
            qos: *qos,
            retain: *retain,
            properties: will_block.publish_properties(PropertyContext::Will).expect("valid"),
        });
        let connect = Connect {
            version,
            clean_start,
            keep_alive_s,
            client_id: &client_id,
            will,
            user_name: user_name.as_deref(),
            password: password.as_deref(),
            properties: block.properties(),
        };
        round_trip(&Packet::Connect(connect), version);
    }

    #[test]
    fn connack(
        (version, reason) in version().prop_flat_map(|v| (Just(v), reason(PacketType::ConnAck, v))),
        session_present in any::<bool>(),
        block in properties(PropertyContext::ConnAck, Version::V5),
    ) {
        let block = only_v5(version, block);
        let session_present = session_present
            && reason == sterna_mqtt::ReasonCode::Success
            && version != Version::V31;
        let connack = ConnAck { session_present, reason, properties: block.properties() };
        round_trip(&Packet::ConnAck(connack), version);
    }

    #[test]
    fn publish(
        version in version(),
        (dup, retain) in any::<(bool, bool)>(),
        qos in qos(),
        topic in topic_name(),
        packet_id in packet_id(),
        block in properties(PropertyContext::Publish, Version::V5),
        payload in vec(any::<u8>(), 0..300),
        alias_only in any::<bool>(),
    ) {
        let block = only_v5(version, block);
        let properties = block.publish_properties(PropertyContext::Publish).expect("valid");
        let alias_only = alias_only && properties.topic_alias().is_some();
        let publish = Publish {
            dup: dup && qos.is_acknowledged(),
            qos,
            retain,
            topic: if alias_only { "" } else { &topic },
            packet_id: qos.is_acknowledged().then_some(packet_id),
            properties,
            payload: &payload,
        };
        round_trip(&Packet::Publish(publish), version);
        let mut kept = Vec::new();
        properties.forward().copy_to(&mut kept);
        prop_assert_eq!(kept.len(), properties.forward().len());
        // What is passed on is what was there, less three kinds, in order.
        let expected: Vec<_> = properties.all().iter().filter(|p| !matches!(
            p,
            Property::TopicAlias(_)
                | Property::MessageExpiryInterval(_)
                | Property::SubscriptionIdentifier(_)
        )).collect();
        let passed_on =
            sterna_mqtt::Properties::parse(&kept, PropertyContext::Publish).expect("valid");
        prop_assert_eq!(passed_on.iter().collect::<Vec<_>>(), expected);
        if let Some(whole) = properties.forward().contiguous() {
            prop_assert_eq!(whole, &kept[..]);
        }
    }

    #[test]
    fn acknowledgements(
        (version, kind, reason) in (version(), prop::sample::select(vec![
            PacketType::PubAck, PacketType::PubRec, PacketType::PubRel, PacketType::PubComp,
        ])).prop_flat_map(|(v, kind)| (Just(v), Just(kind), reason(kind, v))),
        packet_id in packet_id(),
        block in properties(PropertyContext::Acknowledgement, Version::V5),
    ) {
        let block = only_v5(version, block);
        let ack = Ack { packet_id, reason, properties: block.properties() };
        let packet = match kind {
            PacketType::PubAck => Packet::PubAck(ack),
            PacketType::PubRec => Packet::PubRec(ack),
            PacketType::PubRel => Packet::PubRel(ack),
            _ => Packet::PubComp(ack),
        };
        round_trip(&packet, version);
    }

    #[test]
    fn subscribe(
        (version, filters) in version().prop_flat_map(|v| {
            let pair = filter().prop_flat_map(move |f| {
                let shared = f.starts_with("$share/");
                (Just(f), options(v, shared))
            });
            (Just(v), vec(pair, 1..6))
        }),
        packet_id in packet_id(),
        block in properties(PropertyContext::Subscribe, Version::V5),
    ) {
        let block = only_v5(version, block);
        let list = filters.iter().map(|(filter, options)| (filter.as_str(), *options));
        let mut out = BytesMut::new();
        encode_subscribe(
            version, packet_id, block.properties(), list.clone(), MAX_PACKET_BYTES, &mut out,
        ).expect("encodes");
        decode(&out, version, |packet| {
            let Packet::Subscribe(decoded) = packet else { panic!("not a SUBSCRIBE") };
            assert_eq!(decoded.packet_id, packet_id);
            assert_eq!(decoded.properties, block.properties());
            assert_eq!(decoded.len(), filters.len());
            let decoded: Vec<(&str, SubscribeOptions)> = decoded.filters().collect();
            assert_eq!(decoded, list.collect::<Vec<_>>());
        });
    }

    #[test]
    fn suback(
        (version, codes) in version().prop_flat_map(|v| {
            (Just(v), vec(reason(PacketType::SubAck, v), 1..6))
        }),
        packet_id in packet_id(),
        block in properties(PropertyContext::SubAck, Version::V5),
    ) {
        let block = only_v5(version, block);
        let mut out = BytesMut::new();
        encode_suback(
            version, packet_id, block.properties(), codes.iter().copied(), MAX_PACKET_BYTES, &mut out,
        ).expect("encodes");
        decode(&out, version, |packet| {
            let Packet::SubAck(decoded) = packet else { panic!("not a SUBACK") };
            assert_eq!(decoded.packet_id, packet_id);
            assert_eq!(decoded.properties, block.properties());
            assert_eq!(decoded.codes().collect::<Vec<_>>(), codes);
        });
    }

    #[test]
    fn unsubscribe(
        version in version(),
        filters in vec(filter(), 1..6),
        packet_id in packet_id(),
        block in properties(PropertyContext::Unsubscribe, Version::V5),
    ) {
        let block = only_v5(version, block);
        let mut out = BytesMut::new();
        let list = filters.iter().map(String::as_str);
        encode_unsubscribe(
            version, packet_id, block.properties(), list, MAX_PACKET_BYTES, &mut out,
        ).expect("encodes");
        decode(&out, version, |packet| {
            let Packet::Unsubscribe(decoded) = packet else { panic!("not an UNSUBSCRIBE") };
            assert_eq!(decoded.packet_id, packet_id);
            assert_eq!(decoded.len(), filters.len());
            assert_eq!(decoded.topics().collect::<Vec<_>>(), filters);
        });
    }

    #[test]
    fn unsuback(
        version in version(),
        codes in vec(reason(PacketType::UnsubAck, Version::V5), 1..6),
        packet_id in packet_id(),
        block in properties(PropertyContext::SubAck, Version::V5),
    ) {
        let v5 = version == Version::V5;
        let block = only_v5(version, block);
        let mut out = BytesMut::new();
        encode_unsuback(
            version, packet_id, block.properties(), codes.iter().copied(), MAX_PACKET_BYTES, &mut out,
        ).expect("encodes");
        decode(&out, version, |packet| {
            let Packet::UnsubAck(decoded) = packet else { panic!("not an UNSUBACK") };
            assert_eq!(decoded.packet_id, packet_id);
            let expected = if v5 { codes.clone() } else { vec![] };
            assert_eq!(decoded.codes().collect::<Vec<_>>(), expected);
        });
    }

    #[test]
    fn pings(version in version()) {
        round_trip(&Packet::PingReq, version);
        round_trip(&Packet::PingResp, version);
    }

    #[test]
    fn disconnect(
        (version, reason) in version().prop_flat_map(|v| {
            (Just(v), reason(PacketType::Disconnect, v))
        }),
        block in properties(PropertyContext::Disconnect, Version::V5),
    ) {
        let block = only_v5(version, block);
        let disconnect = Disconnect { reason, properties: block.properties() };
        round_trip(&Packet::Disconnect(disconnect), version);
    }

    #[test]
    fn auth(
        reason in reason(PacketType::Auth, Version::V5),
        block in properties(PropertyContext::Auth, Version::V5),
    ) {
        let auth = Auth { reason, properties: block.properties() };
        round_trip(&Packet::Auth(auth), Version::V5);
    }
}

#[test]
fn fields_beyond_their_length_are_not_encoded() {
    let long = "x".repeat(65_536);
    let mut out = BytesMut::new();
    let publish = Publish {
        dup: false,
        qos: sterna_mqtt::QoS::AtMostOnce,
        retain: false,
        topic: &long,
        packet_id: None,
        properties: sterna_mqtt::PublishProperties::EMPTY,
        payload: b"",
    };
    let result = publish.encode(Version::V5, MAX_PACKET_BYTES, &mut out);
    assert_eq!(result, Err(EncodeError::FieldTooLong));
    let filters = [(long.as_str(), SubscribeOptions::default())];
    let result = encode_subscribe(
        Version::V5,
        sterna_mqtt::PacketId::MIN,
        sterna_mqtt::Properties::EMPTY,
        filters.into_iter(),
        MAX_PACKET_BYTES,
        &mut out,
    );
    assert_eq!(result, Err(EncodeError::FieldTooLong));
    assert!(out.is_empty());
}

/// [MQTT-1.5.4-2]
#[test]
fn texts_with_the_null_character_are_no_properties() {
    let mut block = PropertyBuf::new();
    block.push(Property::ContentType("a")).unwrap();
    let before = block.clone();
    for text in ["\0", "a\0b", "twelve bytes\0"] {
        for property in [
            Property::ContentType(text),
            Property::ResponseTopic(text),
            Property::AssignedClientIdentifier(text),
            Property::AuthenticationMethod(text),
            Property::ResponseInformation(text),
            Property::ServerReference(text),
            Property::ReasonString(text),
            Property::UserProperty(text, ""),
            Property::UserProperty("", text),
        ] {
            let result = block.push(property);
            assert_eq!(result, Err(EncodeError::NullCharacter), "{property:?}");
        }
    }
    assert_eq!(block, before);
    for data in [
        Property::CorrelationData(b"\0"),
        Property::AuthenticationData(b"\0"),
    ] {
        block.push(data).unwrap();
    }
}

#[test]
fn decoding_needs_no_framer() {
    let packet = Packet::decode(&Frame::new(0xc0, b""), Version::V311);
    assert_eq!(packet, Ok(Packet::PingReq));
}
