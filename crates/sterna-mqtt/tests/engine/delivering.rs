//! What is sent to clients.

use sterna_mqtt::server::{Limits, NotSent, OutgoingPublish};
use sterna_mqtt::{Lane, LaneWriter, QoS, ReasonCode, Version};

use super::harness::{BOTH, Seen, Server, delivery};

fn connect5(properties: &str) -> String {
    format!("10 {{ s\"MQTT\" 05 02 0000 {{ {properties} }} s\"c\" }}")
}

/// [MQTT-2.2.1-2] [MQTT-2.2.1-4] [MQTT-4.3.1-1] [MQTT-4.3.2-1] [MQTT-4.3.2-2] [MQTT-4.3.3-1]
/// [MQTT-4.3.3-2] [MQTT-3.3.1-2] [MQTT311-2.3.1-2] [MQTT311-2.3.1-4] [MQTT311-2.3.1-5]
/// [MQTT311-3.3.1-2] [MQTT311-4.3.1-1] [MQTT311-4.3.2-1] [MQTT311-4.3.3-1]
#[test]
fn new_deliveries_have_identifiers_of_their_own() {
    for version in BOTH {
        let mut server = Server::connected(version);
        server.deliver(&delivery(1, QoS::AtMostOnce)).expect("sent");
        server.expect("30 { s\"t\" P \"x\" }");
        let sent = server
            .deliver(&delivery(2, QoS::AtLeastOnce))
            .expect("sent");
        server.expect("32 { s\"t\" 0001 P \"x\" }");
        assert_eq!(sent.packet_id.map(u16::from), Some(1));
        server
            .deliver(&OutgoingPublish {
                retain: true,
                ..delivery(3, QoS::ExactlyOnce)
            })
            .expect("sent");
        server.expect("35 { s\"t\" 0002 P \"x\" }");
        // Settled identifiers come round again only after all others.
        assert_eq!(
            server.send("40 { 0001 }"),
            [Seen::Delivered(2, ReasonCode::Success)]
        );
        server
            .deliver(&delivery(4, QoS::AtLeastOnce))
            .expect("sent");
        server.expect("32 { s\"t\" 0003 P \"x\" }");
    }
}

/// Identifiers wrap around and skip what is in use.
///
/// [MQTT-2.2.1-4] [MQTT311-2.3.1-2] [MQTT311-2.3.1-4]
#[test]
fn identifiers_wrap_around() {
    let mut server = Server::connected(Version::V311);
    for round in 0..66_000_u64 {
        let sent = server
            .deliver(&delivery(round, QoS::AtLeastOnce))
            .expect("sent");
        let packet_id = sent.packet_id.expect("QoS 1").get();
        assert_eq!(u64::from(packet_id), round % 65_535 + 1);
        let seen = server.send(&format!("40 {{ {packet_id:04x} }}"));
        assert_eq!(seen, [Seen::Delivered(round, ReasonCode::Success)]);
        server.out.0.clear();
    }
    assert!(server.session.is_empty());
}

/// [MQTT-4.3.2-3] [MQTT-4.3.3-3] [MQTT-4.3.3-4] [MQTT-4.3.3-5] [MQTT-4.6.0-4] [MQTT311-4.3.2-1]
/// [MQTT311-4.3.3-1] [MQTT311-4.6.0-4]
#[test]
fn delivered_when_acknowledged() {
    for version in BOTH {
        let mut server = Server::connected(version);
        server
            .deliver(&delivery(1, QoS::AtLeastOnce))
            .expect("sent");
        server
            .deliver(&delivery(2, QoS::ExactlyOnce))
            .expect("sent");
        server
            .deliver(&delivery(3, QoS::ExactlyOnce))
            .expect("sent");
        server.out.0.clear();
        assert_eq!(
            server.send("40 { 0001 }"),
            [Seen::Delivered(1, ReasonCode::Success)]
        );
        assert_eq!(server.send("40 { 0001 }"), [], "unknown by now");
        // PUBREL in the order of PUBREC; a repeated PUBREC is answered and told once.
        assert_eq!(
            server.send("50 { 0003 } 50 { 0002 }"),
            [Seen::HandedOver(3), Seen::HandedOver(2)]
        );
        server.expect("62 { 0003 } 62 { 0002 }");
        assert_eq!(server.send("50 { 0003 }"), []);
        server.expect("62 { 0003 }");
        assert_eq!(server.session.outgoing_len(), 2, "until PUBCOMP");
        assert_eq!(
            server.send("70 { 0002 }"),
            [Seen::Delivered(2, ReasonCode::Success)]
        );
        assert_eq!(server.send("70 { 0003 } 70 { 0003 }").len(), 1);
        assert!(server.session.is_empty());
        // An unknown PUBREC is answered so that the client can forget it.
        server.send("50 { 0009 }");
        let expected = if version == Version::V5 {
            "62 { 0009 92 }"
        } else {
            "62 { 0009 }"
        };
        server.expect(expected);
    }
}

/// [MQTT-4.4.0-2] [MQTT-4.8.2-6]
#[test]
fn refused_deliveries_are_not_repeated() {
    let mut server = Server::connected(Version::V5);
    server
        .deliver(&delivery(1, QoS::AtLeastOnce))
        .expect("sent");
    server
        .deliver(&delivery(2, QoS::ExactlyOnce))
        .expect("sent");
    server.out.0.clear();
    assert_eq!(
        server.send("40 { 0001 87 }"),
        [Seen::Delivered(1, ReasonCode::NotAuthorized)]
    );
    assert_eq!(
        server.send("50 { 0002 97 }"),
        [Seen::Delivered(2, ReasonCode::QuotaExceeded)]
    );
    server.expect("");
    server.reconnect();
    assert_eq!(server.resend_all(b"x"), []);
    assert!(server.session.is_empty());
}

/// What was not acknowledged comes again on the next connection, and only there: in the original
/// order, with the original identifiers and the DUP flag; released messages as PUBREL.
///
/// [MQTT-3.3.1-1] [MQTT-4.4.0-1] [MQTT-4.6.0-1] [MQTT-4.3.3-5] [MQTT-4.3.3-6] [MQTT-4.3.3-13]
/// [MQTT-4.8.2-4] [MQTT311-2.3.1-3] [MQTT311-3.3.1-1] [MQTT311-4.4.0-1] [MQTT311-4.6.0-1]
#[test]
fn unacknowledged_deliveries_are_repeated_in_order() {
    for version in BOTH {
        let mut server = Server::connected(version);
        for tag in 1..=6 {
            let qos = if tag % 2 == 0 {
                QoS::ExactlyOnce
            } else {
                QoS::AtLeastOnce
            };
            server.deliver(&delivery(tag, qos)).expect("sent");
        }
        server.send("40 { 0003 } 50 { 0004 }");
        server.out.0.clear();
        // Nothing is repeated while the connection lasts.
        assert_eq!(server.resend_all(b"x"), []);
        server.expect("");
        server.reconnect();
        assert!(
            !server
                .connection
                .can_send(&server.session, QoS::AtLeastOnce),
            "old ones first"
        );
        assert!(server.connection.can_send(&server.session, QoS::AtMostOnce));
        let early = server.deliver(&delivery(9, QoS::AtLeastOnce));
        assert_eq!(early, Err(NotSent::NotNow));
        assert_eq!(server.resend_all(b"x"), [1, 2, 5, 6]);
        server.expect(
            "3a { s\"t\" 0001 P \"x\" } 3c { s\"t\" 0002 P \"x\" } 62 { 0004 } \
             3a { s\"t\" 0005 P \"x\" } 3c { s\"t\" 0006 P \"x\" }",
        );
        server
            .deliver(&delivery(7, QoS::AtLeastOnce))
            .expect("sent");
        server.expect("32 { s\"t\" 0007 P \"x\" }");
        assert_eq!(
            server.send("70 { 0004 }"),
            [Seen::Delivered(4, ReasonCode::Success)]
        );
        assert_eq!(
            server.send("40 { 0001 }"),
            [Seen::Delivered(1, ReasonCode::Success)]
        );
        // Again, and again in that order.
        server.reconnect();
        assert_eq!(server.resend_all(b"x"), [2, 5, 6, 7]);
    }
}

/// A message that the broker no longer has is given up.
#[test]
fn resend_of_what_is_gone() {
    let mut server = Server::connected(Version::V5);
    server
        .deliver(&delivery(1, QoS::AtLeastOnce))
        .expect("sent");
    server
        .deliver(&delivery(2, QoS::AtLeastOnce))
        .expect("sent");
    server.reconnect();
    let out = server.out.0.entry(Lane::CONTROL).or_default();
    let resend = server
        .connection
        .next_resend(&mut server.session, out)
        .expect("the first");
    assert_eq!((resend.tag, resend.qos), (1, QoS::AtLeastOnce));
    server.session.forget_outgoing(resend.packet_id);
    assert_eq!(server.resend_all(b"x"), [2]);
    server.expect("3a { s\"t\" 0002 P \"x\" }");
}

/// [MQTT-3.3.4-7] [MQTT-3.3.4-9] [MQTT-4.9.0-1] [MQTT-4.9.0-2] [MQTT-4.9.0-3]
#[test]
fn receive_maximum_of_the_client() {
    let limits = Limits::default();
    let mut server = Server::connected_with(Version::V5, limits, &connect5("21 0002"));
    server
        .deliver(&delivery(1, QoS::AtLeastOnce))
        .expect("sent");
    server
        .deliver(&delivery(2, QoS::ExactlyOnce))
        .expect("sent");
    assert_eq!(
        server.deliver(&delivery(3, QoS::AtLeastOnce)),
        Err(NotSent::NotNow)
    );
    // Other packets go on: QoS 0, acknowledgements, PINGRESP.
    server.deliver(&delivery(4, QoS::AtMostOnce)).expect("sent");
    server.send("c0 00 50 { 0002 }");
    assert_eq!(
        server.deliver(&delivery(3, QoS::AtLeastOnce)),
        Err(NotSent::NotNow)
    );
    server.send("70 { 0002 }");
    server
        .deliver(&delivery(3, QoS::AtLeastOnce))
        .expect("sent");
    assert_eq!(
        server.deliver(&delivery(5, QoS::AtLeastOnce)),
        Err(NotSent::NotNow)
    );
    // An acknowledgement with an error counts, too.
    server.send("40 { 0001 80 }");
    server
        .deliver(&delivery(5, QoS::AtLeastOnce))
        .expect("sent");
}

/// The window of a new connection holds for repetitions; those of released messages do not count,
/// and their PUBCOMP leaves no more room than there was.
///
/// [MQTT-3.3.4-7] [MQTT-4.9.0-2]
#[test]
fn receive_maximum_after_a_reconnection() {
    let mut server = Server::connected(Version::V5);
    for tag in 1..=5 {
        server
            .deliver(&delivery(tag, QoS::ExactlyOnce))
            .expect("sent");
    }
    server.send("50 { 0001 }");
    server.reconnect_with("10 { s\"MQTT\" 05 00 0000 { 21 0002 11 ffffffff } s\"malformed\" }");
    assert_eq!(server.resend_all(b"x"), [2, 3]);
    assert_eq!(server.session.in_flight(), 2);
    server.send("70 { 0001 }");
    assert_eq!(server.resend_all(b"x"), [], "the window is full");
    server.send("50 { 0002 } 70 { 0002 }");
    assert_eq!(server.resend_all(b"x"), [4]);
    server.send("50 { 0003 80 }");
    assert_eq!(server.resend_all(b"x"), [5]);
    assert_eq!(
        server.deliver(&delivery(6, QoS::AtLeastOnce)),
        Err(NotSent::NotNow)
    );
}

/// A client that leaves one message unacknowledged does not grow the session without end.
#[test]
fn the_span_of_identifiers_is_bounded() {
    let limits = Limits {
        send_window: 10.try_into().expect("10"),
        ..Limits::default()
    };
    let mut server = Server::connected_with(Version::V311, limits, "CONNECT");
    let mut sent = 0_u64;
    while server
        .connection
        .can_send(&server.session, QoS::AtLeastOnce)
    {
        sent += 1;
        let packet_id = server
            .deliver(&delivery(sent, QoS::AtLeastOnce))
            .expect("sent")
            .packet_id;
        if sent > 1 {
            let packet_id = packet_id.expect("QoS 1").get();
            server.send(&format!("40 {{ {packet_id:04x} }}"));
        }
        assert!(sent < 1000);
    }
    assert_eq!(server.session.outgoing_len(), 1);
    server.send("40 { 0001 }");
    assert!(server.session.is_empty());
    assert!(
        server
            .connection
            .can_send(&server.session, QoS::AtLeastOnce)
    );
}

/// [MQTT-3.1.2-24] [MQTT-3.1.2-25] [MQTT-3.2.2-15]
#[test]
fn maximum_packet_size_of_the_client() {
    let limits = Limits::default();
    let mut server = Server::connected_with(Version::V5, limits, &connect5("27 00000014"));
    let fits = OutgoingPublish {
        payload: &[b'x'; 12],
        ..delivery(1, QoS::AtLeastOnce)
    };
    server.deliver(&fits).expect("20 bytes");
    assert_eq!(server.out.buffer(Lane::CONTROL).len(), 20);
    let too_large = OutgoingPublish {
        payload: &[b'x'; 13],
        ..delivery(2, QoS::AtLeastOnce)
    };
    assert_eq!(server.deliver(&too_large), Err(NotSent::TooLarge));
    assert_eq!(
        server.out.buffer(Lane::CONTROL).len(),
        20,
        "nothing is written"
    );
    assert_eq!(server.session.outgoing_len(), 1, "and no identifier taken");
    // The size counts everything: identifiers, lifetime, properties.
    for larger in [
        OutgoingPublish {
            identifiers: &[1],
            ..fits
        },
        OutgoingPublish {
            expires_at_ms: Some(1000),
            ..fits
        },
        OutgoingPublish {
            properties: &[1, 1],
            ..fits
        },
    ] {
        assert_eq!(server.deliver(&larger), Err(NotSent::TooLarge));
    }
    // A message that fitted before and does not now counts as delivered.
    server.reconnect_with("10 { s\"MQTT\" 05 00 0000 { 27 00000013 11 ffffffff } s\"c\" }");
    let out = server.out.0.entry(Lane::CONTROL).or_default();
    let resend = server
        .connection
        .next_resend(&mut server.session, out)
        .expect("one");
    let result = server
        .connection
        .resend(&mut server.session, resend.packet_id, &fits, 0, out);
    assert_eq!(result, Err(NotSent::TooLarge));
    assert!(server.session.is_empty());
}

/// Answers, too, keep to the client's Maximum Packet Size.
///
/// [MQTT-3.1.2-24] [MQTT-3.9.2-2] [MQTT-3.11.2-2]
#[test]
fn answers_fit_the_client() {
    let limits = Limits::default();
    let mut server = Server::connected_with(Version::V5, limits, &connect5("27 00000015"));
    let id = 1.try_into().expect("not zero");
    let codes = [ReasonCode::Success; 20];
    server
        .connection
        .suback(Lane::CONTROL, id, &codes, &mut server.out);
    server
        .connection
        .unsuback(Lane::CONTROL, id, &codes, &mut server.out);
    server.expect("");
    server
        .connection
        .suback(Lane::CONTROL, id, &codes[..16], &mut server.out);
    server.expect("90 { 0001 00 00*16 }");
}

/// [MQTT-3.3.2-6] [MQTT-3.3.2-4] [MQTT-3.3.4-3] [MQTT-3.3.4-4] [MQTT-3.3.2-17]
#[test]
fn properties_of_deliveries() {
    let full = OutgoingPublish {
        properties: b"\x01\x01\x03\x00\x01t",
        expires_at_ms: Some(12_500),
        identifiers: &[5, 300],
        ..delivery(1, QoS::AtMostOnce)
    };
    let mut server = Server::connected(Version::V5);
    server.now_ms = 10_000;
    server.deliver(&full).expect("sent");
    server.expect("30 { s\"t\" { 02 00000003 0b 05 0b ac02 01 01 03 s\"t\" } \"x\" }");
    server.now_ms = 12_500;
    server
        .deliver(&OutgoingPublish {
            identifiers: &[],
            ..full
        })
        .expect("sent");
    server.expect("30 { s\"t\" { 02 00000000 01 01 03 s\"t\" } \"x\" }");
    // Older versions have none of it.
    let mut server = Server::connected(Version::V311);
    server.deliver(&full).expect("sent");
    server.expect("30 { s\"t\" \"x\" }");
}

/// A message that was sent does not expire: its repetition says that no time is left.
///
/// [MQTT-4.3.3-7] [MQTT-4.3.3-13]
#[test]
fn repetitions_do_not_expire() {
    let mut server = Server::connected(Version::V5);
    let expiring = OutgoingPublish {
        expires_at_ms: Some(2_000),
        ..delivery(1, QoS::ExactlyOnce)
    };
    server.deliver(&expiring).expect("sent");
    server.now_ms = 60_000;
    server.reconnect();
    let out = server.out.0.entry(Lane::CONTROL).or_default();
    let resend = server
        .connection
        .next_resend(&mut server.session, out)
        .expect("one");
    server
        .connection
        .resend(
            &mut server.session,
            resend.packet_id,
            &expiring,
            server.now_ms,
            out,
        )
        .expect("sent");
    server.expect("3c { s\"t\" 0001 { 02 00000000 } \"x\" }");
}

/// [MQTT-3.1.2-26] [MQTT-3.1.2-27] [MQTT-3.3.2-10] [MQTT-3.3.2-11]
#[test]
fn aliases_towards_the_client() {
    let named = |topic: &'static str| OutgoingPublish {
        topic: topic.as_bytes(),
        ..delivery(1, QoS::AtMostOnce)
    };
    let limits = Limits::default();
    let mut server = Server::connected_with(Version::V5, limits, &connect5("22 0001"));
    // A topic gets an alias when it repeats.
    server.deliver(&named("long/topic")).expect("sent");
    server.expect("30 { s\"long/topic\" 00 \"x\" }");
    server.deliver(&named("long/topic")).expect("sent");
    server.expect("30 { s\"long/topic\" { 23 0001 } \"x\" }");
    server.deliver(&named("long/topic")).expect("sent");
    server.expect("30 { s\"\" { 23 0001 } \"x\" }");
    // There are no more than the client takes.
    for _ in 0..3 {
        server.deliver(&named("other/topic")).expect("sent");
        server.expect("30 { s\"other/topic\" 00 \"x\" }");
    }
    // Lanes are not ordered among each other, so data streams carry names.
    server
        .deliver(&OutgoingPublish {
            lane: Lane(4),
            ..named("long/topic")
        })
        .expect("sent");
    server.expect_on(4, "30 { s\"long/topic\" 00 \"x\" }");
    // None without the client's consent, none on a new connection.
    for connect in [connect5(""), connect5("22 0000")] {
        let mut server = Server::connected_with(Version::V5, limits, &connect);
        for _ in 0..3 {
            server.deliver(&named("long/topic")).expect("sent");
            server.expect("30 { s\"long/topic\" 00 \"x\" }");
        }
    }
    server.reconnect_with(&connect5("22 0001").replace(" 02 ", " 00 "));
    server.deliver(&named("long/topic")).expect("sent");
    server.expect("30 { s\"long/topic\" 00 \"x\" }");
}

/// An alias is not set where the packet would become too large for the client.
///
/// [MQTT-3.1.2-24]
#[test]
fn aliases_leave_packets_within_the_limit() {
    let limits = Limits::default();
    let connect = connect5("22 0001 27 00000010");
    let mut server = Server::connected_with(Version::V5, limits, &connect);
    for _ in 0..3 {
        server
            .deliver(&OutgoingPublish {
                topic: b"long/topic",
                ..delivery(1, QoS::AtMostOnce)
            })
            .expect("sent");
        server.expect("30 { s\"long/topic\" 00 \"x\" }");
    }
}

/// Large payloads are left to the caller, who appends them without a copy.
#[test]
fn large_payloads_are_not_copied() {
    let payload = [b'x'; 3000];
    let large = OutgoingPublish {
        payload: &payload,
        ..delivery(1, QoS::AtLeastOnce)
    };
    for version in BOTH {
        let mut server = Server::connected(version);
        let sent = server.deliver(&large).expect("sent");
        assert!(sent.append_payload);
        assert!(server.out.buffer(Lane::CONTROL).len() < 20);
        server.out.buffer(Lane::CONTROL).extend_from_slice(&payload);
        server.expect("32 { s\"t\" 0001 P 78*3000 }");
    }
}

/// Nothing is sent after the end.
///
/// [MQTT-3.14.4-1]
#[test]
fn nothing_is_delivered_after_the_end() {
    let mut server = Server::connected(Version::V5);
    server.send("e0 00");
    assert_eq!(
        server.deliver(&delivery(1, QoS::AtMostOnce)),
        Err(NotSent::NotNow)
    );
    assert_eq!(
        server.deliver(&delivery(1, QoS::AtLeastOnce)),
        Err(NotSent::NotNow)
    );
    server.expect("");
}

/// What no packet can carry is not written: a name that is too long, identifiers that are none.
#[test]
fn impossible_deliveries() {
    let long = "x".repeat(65_536);
    let mut server = Server::connected(Version::V5);
    let impossible = OutgoingPublish {
        topic: long.as_bytes(),
        ..delivery(1, QoS::AtLeastOnce)
    };
    assert_eq!(server.deliver(&impossible), Err(NotSent::TooLarge));
    assert!(server.session.is_empty());
    let odd = OutgoingPublish {
        identifiers: &[0, 268_435_455, 268_435_456, u32::MAX],
        ..delivery(1, QoS::AtMostOnce)
    };
    server.deliver(&odd).expect("sent");
    server.expect("30 { s\"t\" { 0b ffffff7f } \"x\" }");
}
