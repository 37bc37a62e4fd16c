//! Data representation, packet formats and topics.

use super::malformed::replay;
use super::malformed::table::bytes;
use sterna_mqtt::topic::{
    Filter, TopicError, check_any_filter, check_filter, check_name, levels, matches,
};
use sterna_mqtt::{
    DecodeError, Frame, Framer, MAX_PACKET_BYTES, Packet, PacketType, Property, PropertyContext,
    ReasonCode, Version,
};

/// Decodes one packet and hands it to `check`.
fn decoded(tokens: &str, version: Version, check: impl FnOnce(&Packet<'_>)) {
    let bytes = bytes(tokens, version as u8);
    let mut framer = Framer::new();
    let frame = framer
        .next(&mut &bytes[..], MAX_PACKET_BYTES)
        .expect("valid")
        .expect("whole");
    check(&Packet::decode(&frame, version).expect("a valid packet"));
}

fn rejected(tokens: &str, version: Version) -> DecodeError {
    let bytes = bytes(tokens, version as u8);
    let mut framer = Framer::new();
    let frame = framer
        .next(&mut &bytes[..], MAX_PACKET_BYTES)
        .expect("valid")
        .expect("whole");
    Packet::decode(&frame, version).expect_err("an invalid packet")
}

/// [MQTT-1.5.4-1] [MQTT-1.5.4-2] [MQTT-1.5.4-3] [MQTT311-1.5.3-1] [MQTT311-1.5.3-2]
/// [MQTT311-1.5.3-3] [MQTT-1.5.7-1]
#[test]
fn strings_are_well_formed() {
    replay(&[
        "MQTT-1.5.4-1",
        "MQTT-1.5.4-2",
        "MQTT-1.5.4-3",
        "MQTT311-1.5.3-1",
        "MQTT311-1.5.3-2",
        "MQTT311-1.5.3-3",
        "MQTT-1.5.7-1",
    ]);
    decoded("30 { 0005 efbbbf \"at\" P }", Version::V5, |packet| {
        let Packet::Publish(publish) = packet else {
            panic!("not a PUBLISH")
        };
        assert_eq!(publish.topic, "\u{feff}at", "U+FEFF stays");
    });
}

/// [MQTT-1.5.5-1]
#[test]
fn variable_byte_integers_are_minimal() {
    replay(&["MQTT-1.5.5-1"]);
    for (tokens, value) in [
        ("{ 0b 01 }", 1),
        ("{ 0b 7f }", 127),
        ("{ 0b 8001 }", 128),
        ("{ 0b ff7f }", 16_383),
        ("{ 0b 808001 }", 16_384),
        ("{ 0b ffff7f }", 2_097_151),
        ("{ 0b 80808001 }", 2_097_152),
        ("{ 0b ffffff7f }", 268_435_455),
    ] {
        let packet = format!("82 {{ 0001 {tokens} s\"t\" 00 }}");
        decoded(&packet, Version::V5, |packet| {
            let Packet::Subscribe(subscribe) = packet else {
                panic!("not a SUBSCRIBE")
            };
            assert_eq!(subscribe.identifier(), Some(value));
        });
    }
}

/// [MQTT-2.1.3-1] [MQTT-3.6.1-1] [MQTT-3.8.1-1] [MQTT-3.10.1-1] [MQTT-3.14.1-1] [MQTT-3.15.1-1]
/// [MQTT311-2.2.2-1] [MQTT311-2.2.2-2] [MQTT311-3.6.1-1] [MQTT311-3.8.1-1] [MQTT311-3.10.1-1]
#[test]
fn reserved_flags_have_their_values() {
    replay(&[
        "MQTT-2.1.3-1",
        "MQTT-3.6.1-1",
        "MQTT-3.8.1-1",
        "MQTT-3.10.1-1",
        "MQTT-3.14.1-1",
        "MQTT-3.15.1-1",
        "MQTT311-2.2.2-2",
        "MQTT311-3.6.1-1",
        "MQTT311-3.8.1-1",
        "MQTT311-3.10.1-1",
    ]);
    // Every flag of every type but PUBLISH, in both versions.
    for version in [Version::V311, Version::V5] {
        for first in 0x10..=0xff_u8 {
            let Some(packet_type) = PacketType::from_first_byte(first) else {
                continue;
            };
            if packet_type == PacketType::Publish || first == packet_type.first_byte() {
                continue;
            }
            let error = Packet::decode(&Frame::new(first, &[]), version).expect_err("bad flags");
            assert_eq!(error.reason, ReasonCode::MalformedPacket, "{first:02x}");
        }
    }
}

/// [MQTT-2.2.1-2] [MQTT-2.2.1-3] [MQTT311-2.3.1-1] [MQTT311-2.3.1-5]
#[test]
fn packet_identifiers_are_there_and_not_zero() {
    replay(&["MQTT-2.2.1-3", "MQTT311-2.3.1-1"]);
    for version in [Version::V311, Version::V5] {
        decoded("30 { s\"t\" P 0001 }", version, |packet| {
            let Packet::Publish(publish) = packet else {
                panic!("not a PUBLISH")
            };
            assert_eq!((publish.packet_id, publish.payload), (None, &[0, 1][..]));
        });
    }
}

/// [MQTT-2.2.2-1]
#[test]
fn a_property_length_is_always_there() {
    replay(&["MQTT-2.2.2-1"]);
}

/// [MQTT-3.1.2-1] [MQTT-3.1.2-2] [MQTT-3.1.2-3] [MQTT-3.1.2-12] [MQTT-3.1.4-1]
/// [MQTT311-3.1.2-1] [MQTT311-3.1.2-2] [MQTT311-3.1.2-3] [MQTT311-3.1.4-1]
#[test]
fn connect_is_validated() {
    replay(&[
        "MQTT-3.1.2-1",
        "MQTT-3.1.2-2",
        "MQTT-3.1.2-3",
        "MQTT-3.1.2-12",
        "MQTT-3.1.4-1",
        "MQTT311-3.1.2-1",
        "MQTT311-3.1.2-2",
        "MQTT311-3.1.2-3",
        "MQTT311-3.1.4-1",
    ]);
}

/// [MQTT-3.1.2-6] [MQTT-3.1.2-7] [MQTT-3.1.2-8] [MQTT-3.1.2-9] [MQTT-3.1.2-13] [MQTT-3.1.3-11]
/// [MQTT311-3.1.2-9] [MQTT311-3.1.2-11] [MQTT311-3.1.2-13] [MQTT311-3.1.2-14] [MQTT311-3.1.2-15]
/// [MQTT311-3.1.3-10]
#[test]
fn will_and_its_flags_agree() {
    replay(&[
        "MQTT-3.1.2-6",
        "MQTT-3.1.2-7",
        "MQTT-3.1.2-8",
        "MQTT-3.1.2-9",
        "MQTT-3.1.2-13",
        "MQTT-3.1.3-11",
        "MQTT311-3.1.2-9",
        "MQTT311-3.1.2-13",
        "MQTT311-3.1.2-14",
        "MQTT311-3.1.2-15",
        "MQTT311-3.1.3-10",
    ]);
}

/// [MQTT-3.1.2-16] [MQTT-3.1.2-17] [MQTT-3.1.2-18] [MQTT-3.1.2-19] [MQTT-3.1.3-12]
/// [MQTT311-3.1.2-18] [MQTT311-3.1.2-19] [MQTT311-3.1.2-20] [MQTT311-3.1.2-21] [MQTT311-3.1.2-22]
/// [MQTT311-3.1.3-11]
#[test]
fn user_name_and_password_agree_with_their_flags() {
    replay(&[
        "MQTT-3.1.2-16",
        "MQTT-3.1.2-17",
        "MQTT-3.1.2-18",
        "MQTT-3.1.2-19",
        "MQTT-3.1.3-12",
        "MQTT311-3.1.2-18",
        "MQTT311-3.1.2-19",
        "MQTT311-3.1.2-20",
        "MQTT311-3.1.2-21",
        "MQTT311-3.1.2-22",
        "MQTT311-3.1.3-11",
    ]);
    // 5.0 allows a password without a user name; MQTT 3.1 lets the fields be missing.
    decoded(
        "10 { s\"MQTT\" 05 42 0000 00 s\"c\" s\"pw\" }",
        Version::V5,
        |packet| {
            let Packet::Connect(connect) = packet else {
                panic!("not a CONNECT")
            };
            assert_eq!(
                (connect.user_name, connect.password),
                (None, Some(&b"pw"[..]))
            );
        },
    );
    decoded(
        "10 { s\"MQIsdp\" 03 c3 0000 s\"c\" }",
        Version::V31,
        |packet| {
            let Packet::Connect(connect) = packet else {
                panic!("not a CONNECT")
            };
            assert_eq!((connect.user_name, connect.password), (None, None));
        },
    );
    // It disregards the will's QoS and RETAIN flag without a will, and the reserved flag.
    decoded(
        "10 { s\"MQIsdp\" 03 3b 0000 s\"c\" }",
        Version::V31,
        |packet| assert!(matches!(packet, Packet::Connect(connect) if connect.will.is_none())),
    );
}

/// [MQTT-3.1.2-10] [MQTT311-3.1.2-12]
#[test]
fn no_will_without_its_flag() {
    for (packet, version) in [
        ("10 { s\"MQTT\" 05 02 0000 00 s\"c\" }", Version::V5),
        ("10 { s\"MQTT\" 04 02 0000 s\"c\" }", Version::V311),
    ] {
        decoded(packet, version, |packet| {
            assert!(matches!(packet, Packet::Connect(connect) if connect.will.is_none()));
        });
    }
}

/// The fields of the payload come in their order, and all of them arrive.
///
/// [MQTT-3.1.3-1] [MQTT311-3.1.3-1] [MQTT311-3.1.3-3] [MQTT311-3.1.3-4]
#[test]
fn connect_carries_its_fields_in_order() {
    replay(&["MQTT311-3.1.3-3", "MQTT311-3.1.3-4"]);
    let packet = "10 { s\"MQTT\" 05 f6 003c { 11 00000e10 21 0014 27 00001000 22 000a 19 01 17 00 \
                  26 s\"a\" s\"b\" } s\"id\" { 18 00000005 02 0000000a 03 s\"text\" } s\"will/t\" \
                  s\"gone\" s\"user\" s\"pw\" }";
    decoded(packet, Version::V5, |packet| {
        let Packet::Connect(connect) = packet else {
            panic!("not a CONNECT")
        };
        assert_eq!((connect.version, connect.client_id), (Version::V5, "id"));
        assert!(connect.clean_start);
        assert_eq!(
            (connect.keep_alive_s, connect.session_expiry_s()),
            (60, 3600)
        );
        assert_eq!(
            (connect.receive_maximum(), connect.maximum_packet_bytes()),
            (20, 4096)
        );
        assert_eq!(connect.topic_alias_maximum(), 10);
        assert!(connect.wants_response_information() && !connect.wants_problem_information());
        assert_eq!(
            connect.properties.user_properties().collect::<Vec<_>>(),
            [("a", "b")]
        );
        let will = connect.will.expect("a will");
        assert_eq!(
            (will.topic, will.payload, will.qos as u8),
            ("will/t", &b"gone"[..], 2)
        );
        assert!(will.retain);
        assert_eq!(will.properties.will_delay_s(), 5);
        assert_eq!(will.properties.message_expiry_s(), Some(10));
        assert_eq!(
            will.properties.forward().contiguous(),
            Some(&b"\x03\x00\x04text"[..])
        );
        assert_eq!(
            (connect.user_name, connect.password),
            (Some("user"), Some(&b"pw"[..]))
        );
    });
    // What is absent has the values of section 3.1.2.11.
    decoded(
        "10 { s\"MQTT\" 05 00 0000 00 s\"\" }",
        Version::V5,
        |packet| {
            let Packet::Connect(connect) = packet else {
                panic!("not a CONNECT")
            };
            assert_eq!(
                (connect.session_expiry_s(), connect.receive_maximum()),
                (0, u16::MAX)
            );
            assert_eq!((connect.topic_alias_maximum(), connect.client_id), (0, ""));
            assert!(connect.wants_problem_information() && !connect.wants_response_information());
        },
    );
    decoded(
        "10 { s\"MQTT\" 04 00 0000 s\"a\" }",
        Version::V311,
        |packet| {
            let Packet::Connect(connect) = packet else {
                panic!("not a CONNECT")
            };
            assert_eq!(
                connect.session_expiry_s(),
                u32::MAX,
                "Clean Session 0 lasts"
            );
        },
    );
}

/// [MQTT-3.3.1-2] [MQTT-3.3.1-4] [MQTT-3.3.2-1] [MQTT-3.3.2-2] [MQTT311-3.3.1-2] [MQTT311-3.3.1-4]
/// [MQTT311-3.3.2-1] [MQTT311-3.3.2-2]
#[test]
fn publish_is_validated() {
    replay(&[
        "MQTT-3.3.1-2",
        "MQTT-3.3.1-4",
        "MQTT-3.3.2-1",
        "MQTT-3.3.2-2",
        "MQTT311-3.3.1-2",
        "MQTT311-3.3.1-4",
        "MQTT311-3.3.2-1",
        "MQTT311-3.3.2-2",
    ]);
}

/// [MQTT-3.3.2-7] [MQTT-3.3.2-8] [MQTT-3.3.2-13] [MQTT-3.3.2-14] [MQTT-3.3.2-19]
#[test]
fn properties_of_publish_are_validated() {
    replay(&[
        "MQTT-3.3.2-7",
        "MQTT-3.3.2-8",
        "MQTT-3.3.2-13",
        "MQTT-3.3.2-14",
        "MQTT-3.3.2-19",
    ]);
}

/// What goes to subscribers is what came, in order, less what belongs to the hop.
///
/// [MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]
/// [MQTT-3.1.3-10]
#[test]
fn properties_are_passed_on_unaltered() {
    let kept = "01 01 03 s\"text\" 08 s\"r/t\" 09 0002 00ff 26 s\"b\" s\"1\" 26 s\"a\" s\"2\" 26 \
                s\"b\" s\"3\"";
    let expected = bytes(kept, 5);
    for block in [
        kept.to_owned(),
        format!("23 0001 {kept}"),
        format!("{kept} 02 0000000a"),
        format!("23 0001 02 0000000a {kept} 0b 05"),
    ] {
        decoded(
            &format!("30 {{ s\"t\" {{ {block} }} }}"),
            Version::V5,
            |packet| {
                let Packet::Publish(publish) = packet else {
                    panic!("not a PUBLISH")
                };
                assert_eq!(
                    publish.properties.forward().contiguous(),
                    Some(&expected[..]),
                    "{block}"
                );
                assert_eq!(publish.properties.response_topic(), Some("r/t"));
                assert_eq!(publish.properties.correlation_data(), Some(&[0, 255][..]));
                assert_eq!(publish.properties.content_type(), Some("text"));
                assert!(publish.properties.is_utf8_payload());
            },
        );
    }
    // In pieces where something else stands between.
    let block = "03 s\"x\" 02 0000000a 26 s\"b\" s\"1\" 23 0002 0b 01 26 s\"a\" s\"2\"";
    decoded(
        &format!("30 {{ s\"t\" {{ {block} }} }}"),
        Version::V5,
        |packet| {
            let Packet::Publish(publish) = packet else {
                panic!("not a PUBLISH")
            };
            let forward = publish.properties.forward();
            assert_eq!((forward.contiguous(), forward.slices().count()), (None, 3));
            let mut kept = Vec::new();
            forward.copy_to(&mut kept);
            assert_eq!(
                kept,
                bytes("03 s\"x\" 26 s\"b\" s\"1\" 26 s\"a\" s\"2\"", 5)
            );
            assert_eq!(
                publish
                    .properties
                    .subscription_identifiers()
                    .collect::<Vec<_>>(),
                [1]
            );
            assert_eq!(publish.properties.topic_alias(), Some(2));
        },
    );
}

/// [MQTT-2.2.1-5] [MQTT-3.4.2-1] [MQTT-3.5.2-1] [MQTT-3.6.2-1] [MQTT-3.7.2-1] [MQTT311-2.3.1-6]
#[test]
fn acknowledgements_are_validated() {
    replay(&[
        "MQTT-2.2.1-5",
        "MQTT-3.4.2-1",
        "MQTT-3.5.2-1",
        "MQTT-3.6.2-1",
        "MQTT-3.7.2-1",
        "MQTT-3.4.2-2",
        "MQTT-3.5.2-2",
        "MQTT-3.6.2-2",
        "MQTT-3.7.2-2",
        "MQTT311-2.3.1-6",
    ]);
}

/// [MQTT-3.8.3-1] [MQTT-3.8.3-2] [MQTT-3.8.3-3] [MQTT-3.8.3-4] [MQTT-3.8.3-5] [MQTT311-3.8.3-1]
/// [MQTT311-3.8.3-3] [MQTT311-3.8.3-4] [MQTT-3.10.3-1] [MQTT-3.10.3-2] [MQTT311-3.10.3-1]
/// [MQTT311-3.10.3-2]
#[test]
fn subscribe_and_unsubscribe_are_validated() {
    replay(&[
        "MQTT-3.8.3-1",
        "MQTT-3.8.3-2",
        "MQTT-3.8.3-3",
        "MQTT-3.8.3-4",
        "MQTT-3.8.3-5",
        "MQTT311-3.8.3-1",
        "MQTT311-3.8.3-3",
        "MQTT311-3.8.3-4",
        "MQTT-3.10.3-1",
        "MQTT-3.10.3-2",
        "MQTT311-3.10.3-1",
        "MQTT311-3.10.3-2",
    ]);
}

/// [MQTT-3.14.2-1] [MQTT-3.15.2-1]
#[test]
fn disconnect_and_auth_are_validated() {
    replay(&["MQTT-3.14.2-1", "MQTT-3.15.2-1"]);
    // An AUTH without anything is a success; so is a DISCONNECT.
    decoded("f0 00", Version::V5, |packet| {
        assert!(matches!(packet, Packet::Auth(auth) if auth.reason == ReasonCode::Success));
    });
    decoded("e0 00", Version::V5, |packet| {
        assert!(matches!(packet, Packet::Disconnect(d) if d.reason == ReasonCode::Success));
    });
}

/// What a server sends is validated in the same way; a client is built on it.
///
/// [MQTT-3.2.2-1] [MQTT-3.2.2-6] [MQTT-3.2.2-8] [MQTT-3.9.3-1] [MQTT-3.9.3-2] [MQTT311-3.9.3-2] [MQTT-3.11.3-1]
/// [MQTT-3.11.3-2] [MQTT311-3.2.2-4]
#[test]
fn packets_of_a_server_are_validated() {
    let v5 = Version::V5;
    let v311 = Version::V311;
    for (tokens, version, reason) in [
        ("20 { 02 00 00 }", v5, ReasonCode::MalformedPacket),
        ("20 { 02 00 }", v311, ReasonCode::MalformedPacket),
        ("20 { 00 01 00 }", v5, ReasonCode::MalformedPacket),
        ("20 { 00 06 }", v311, ReasonCode::MalformedPacket),
        ("20 { 01 85 00 }", v5, ReasonCode::ProtocolError),
        ("20 { 01 02 }", v311, ReasonCode::ProtocolError),
        ("20 { 00 }", v311, ReasonCode::MalformedPacket),
        ("20 { 00 00 }", v5, ReasonCode::MalformedPacket),
        ("20 { 00 00 { 24 02 } }", v5, ReasonCode::ProtocolError),
        ("20 { 00 00 { 21 0000 } }", v5, ReasonCode::ProtocolError),
        ("20 { 00 00 { 23 0001 } }", v5, ReasonCode::MalformedPacket),
        ("90 { 0001 00 }", v5, ReasonCode::ProtocolError),
        ("90 { 0001 }", v311, ReasonCode::ProtocolError),
        ("90 { 0001 00 03 }", v5, ReasonCode::MalformedPacket),
        ("90 { 0001 03 }", v311, ReasonCode::MalformedPacket),
        ("b0 { 0001 00 }", v5, ReasonCode::ProtocolError),
        ("b0 { 0001 00 01 }", v5, ReasonCode::MalformedPacket),
        ("b0 { 0001 00 }", v311, ReasonCode::MalformedPacket),
        ("d0 { 00 }", v311, ReasonCode::MalformedPacket),
    ] {
        assert_eq!(rejected(tokens, version).reason, reason, "{tokens}");
    }
    decoded("20 { 01 00 { 13 001e 12 s\"id\" 25 00 } }", v5, |packet| {
        let Packet::ConnAck(connack) = packet else {
            panic!("not a CONNACK")
        };
        assert!(connack.session_present && !connack.retain_available());
        assert!(connack.wildcard_available() && connack.shared_available());
        assert_eq!(connack.server_keep_alive_s(), Some(30));
        assert_eq!(connack.assigned_client_id(), Some("id"));
        assert_eq!(connack.maximum_qos() as u8, 2);
    });
    // Every code of a server's DISCONNECT is one that a client decodes.
    for reason in ReasonCode::ALL {
        let packet = format!("e0 {{ {:02x} }}", *reason as u8);
        if reason.is_valid_in(PacketType::Disconnect) {
            decoded(&packet, v5, |_| {});
        } else {
            assert_eq!(rejected(&packet, v5).reason, ReasonCode::MalformedPacket);
        }
    }
}

/// A server's PUBLISH may carry several Subscription Identifiers.
#[test]
fn several_subscription_identifiers() {
    decoded("30 { s\"t\" { 0b 01 0b 8001 } }", Version::V5, |packet| {
        let Packet::Publish(publish) = packet else {
            panic!("not a PUBLISH")
        };
        assert_eq!(
            publish
                .properties
                .subscription_identifiers()
                .collect::<Vec<_>>(),
            [1, 128]
        );
    });
}

/// Every property is allowed exactly where table 2-4 has it.
#[test]
fn properties_stand_where_they_may() {
    let contexts = [
        PropertyContext::Connect,
        PropertyContext::Will,
        PropertyContext::ConnAck,
        PropertyContext::Publish,
        PropertyContext::Acknowledgement,
        PropertyContext::Subscribe,
        PropertyContext::SubAck,
        PropertyContext::Unsubscribe,
        PropertyContext::Disconnect,
        PropertyContext::Auth,
    ];
    for id in 0..=255_u8 {
        for context in contexts {
            let allowed = super::generate::allowed(context);
            let expected = allowed.iter().any(|(allowed, _)| *allowed as u8 == id);
            // One of these values fits every type.
            let accepted = [
                &[id, 1][..],
                &[id, 0, 1],
                &[id, 0, 0, 0, 1],
                &[id, 0, 0],
                &[id, 0, 1, b't'],
                &[id, 0, 0, 0, 0],
            ]
            .iter()
            .any(
                |block| match sterna_mqtt::Properties::parse(block, context) {
                    Ok(_) => true,
                    // Data without its method: allowed as such.
                    Err(error) => id == 22 && error.reason == ReasonCode::ProtocolError,
                },
            );
            assert_eq!(accepted, expected, "property {id} in {context:?}");
        }
    }
}

/// [MQTT-3.3.2-2] [MQTT-4.7.0-1] [MQTT-4.7.3-1] [MQTT-4.7.3-2] [MQTT-4.7.3-3] [MQTT311-4.7.0-1]
/// [MQTT311-4.7.1-1] [MQTT311-4.7.3-1] [MQTT311-4.7.3-2]
#[test]
fn topic_names() {
    replay(&[
        "MQTT-4.7.0-1",
        "MQTT-4.7.3-1",
        "MQTT-4.7.3-2",
        "MQTT311-4.7.1-1",
        "MQTT311-4.7.3-1",
        "MQTT311-4.7.3-2",
    ]);
    assert_eq!(check_name(""), Err(TopicError::Empty));
    assert_eq!(check_name("a\0"), Err(TopicError::Null));
    assert_eq!(check_name(&"x".repeat(65_536)), Err(TopicError::TooLong));
    for bad in ["+", "#", "a/+", "a#b", "a+"] {
        assert_eq!(check_name(bad), Err(TopicError::WildcardInName));
    }
    let longest = "x".repeat(65_535);
    for good in [
        "/",
        "a",
        "$SYS/x",
        " ",
        "a//b",
        "\u{feff}",
        longest.as_str(),
    ] {
        assert_eq!(check_name(good), Ok(()));
    }
    assert_eq!((levels("a"), levels("/"), levels("a/b/c")), (1, 2, 3));
}

/// [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT311-4.7.1-2] [MQTT311-4.7.1-3]
#[test]
fn topic_filters() {
    replay(&[
        "MQTT-4.7.1-1",
        "MQTT-4.7.1-2",
        "MQTT311-4.7.1-2",
        "MQTT311-4.7.1-3",
    ]);
    for good in [
        "#", "+", "/", "a/#", "+/#", "/+", "+/+/+", "a/+/b", "a", "$SYS/#", "//#",
    ] {
        assert_eq!(check_filter(good), Ok(()), "{good}");
    }
    for bad in ["a#", "#a", "#/a", "a/#/b", "##", "a/b#"] {
        assert_eq!(
            check_filter(bad),
            Err(TopicError::MultiLevelWildcard),
            "{bad}"
        );
    }
    for bad in ["a+", "+a", "a/+b/c", "++", "a/b+"] {
        assert_eq!(
            check_filter(bad),
            Err(TopicError::SingleLevelWildcard),
            "{bad}"
        );
    }
    // `ATTACKS.md` 9: thousands of levels take no stack.
    assert_eq!(check_filter(&"/".repeat(65_535)), Ok(()));
    assert!(matches(&"+/".repeat(32_000), &"/".repeat(32_000)));
}

/// [MQTT-4.8.2-1] [MQTT-4.8.2-2]
#[test]
fn shared_subscriptions() {
    replay(&["MQTT-4.8.2-1", "MQTT-4.8.2-2"]);
    let shared = Filter {
        share: Some("n"),
        filter: "a/#",
    };
    assert_eq!(Filter::parse("$share/n/a/#"), Ok(shared));
    assert_eq!(
        Filter::parse("$share/n//"),
        Ok(Filter {
            share: Some("n"),
            filter: "/"
        })
    );
    assert_eq!(Filter::parse("$shared/n/a").expect("plain").share, None);
    for bad in [
        "$share/",
        "$share/n",
        "$share//a",
        "$share/n/",
        "$share/+/a",
        "$share/a#/b",
    ] {
        assert_eq!(check_any_filter(bad), Err(TopicError::Share), "{bad}");
    }
    // Before 5.0 there are no shared subscriptions, so these are filters like any other.
    decoded("82 { 0001 s\"$share/n\" 00 }", Version::V311, |_| {});
}

/// [MQTT-4.7.2-1] [MQTT-4.7.3-4] [MQTT311-4.7.2-1]
#[test]
fn matching() {
    for (filter, name) in [
        ("#", "a"),
        ("#", "/"),
        ("a/#", "a"),
        ("a/#", "a/b/c"),
        ("+", "a"),
        ("+/+", "/a"),
        ("/+", "/a"),
        ("+/b", "/b"),
        ("a/+", "a/"),
        ("a/+/c", "a//c"),
        ("$SYS/#", "$SYS/x"),
        ("$SYS/+", "$SYS/x"),
        ("\u{feff}", "\u{feff}"),
        ("a", "a"),
    ] {
        assert!(matches(filter, name), "{filter} {name}");
    }
    for (filter, name) in [
        ("#", "$SYS"),
        ("#", "$SYS/x"),
        ("+/x", "$SYS/x"),
        ("+", "$a"),
        ("a", "A"),
        ("a/+", "a"),
        ("+", "/a"),
        ("+", "a/b"),
        ("a/b", "a/b/"),
        ("a", "a/"),
        // Nothing is normalised: a composed character is not its decomposed form.
        ("\u{e9}", "e\u{301}"),
        ("a ", "a"),
    ] {
        assert!(!matches(filter, name), "{filter} {name}");
    }
}

/// The text of an error is for logs and holds nothing of the packet.
#[test]
fn errors_explain_themselves() {
    let error = rejected("36 { s\"t\" 0001 }", Version::V311);
    assert_eq!(error.to_string(), "PUBLISH with QoS 3 (0x81)");
    assert_eq!(
        ReasonCode::KeepAliveTimeout.to_string(),
        "Keep Alive timeout"
    );
    assert_eq!(Version::V311.to_string(), "3.1.1");
}

/// Properties by their typed values.
#[test]
fn properties_are_read_in_order() {
    let block = bytes("26 s\"a\" s\"b\" 11 00000005 1f s\"why\"", 5);
    let properties =
        sterna_mqtt::Properties::parse(&block, PropertyContext::Disconnect).expect("valid");
    let all: Vec<_> = properties.into_iter().collect();
    assert_eq!(
        all,
        [
            Property::UserProperty("a", "b"),
            Property::SessionExpiryInterval(5),
            Property::ReasonString("why"),
        ]
    );
    assert_eq!(properties.reason_string(), Some("why"));
    assert_eq!(properties.server_reference(), None);
}
