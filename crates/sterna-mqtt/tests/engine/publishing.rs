//! What clients publish.

use sterna_mqtt::server::Limits;
use sterna_mqtt::{Lane, LaneWriter, PacketId, QoS, ReasonCode, Version};

use super::harness::{BOTH, Seen, Server};
use super::malformed::replay;

fn id(id: u16) -> PacketId {
    id.try_into().expect("not zero")
}

/// [MQTT-3.3.4-1] [MQTT-4.3.1-1] [MQTT-4.3.2-4] [MQTT-4.3.3-8] [MQTT-2.2.1-5] [MQTT311-3.3.4-1]
/// [MQTT311-2.3.1-6] [MQTT311-4.3.2-2] [MQTT311-4.3.3-2]
#[test]
fn acknowledged_as_the_qos_asks() {
    for version in BOTH {
        let mut server = Server::connected(version);
        let seen = server.send("30 { s\"t\" P \"x\" }");
        assert_eq!(seen, [Seen::publish("t", b"x", QoS::AtMostOnce, 0)]);
        server.expect("");
        let seen = server.send("32 { s\"t\" 0102 P \"x\" }");
        assert_eq!(seen, [Seen::publish("t", b"x", QoS::AtLeastOnce, 0x0102)]);
        // Only when the front door says so.
        server.expect("");
        server.connection.puback(
            Lane::CONTROL,
            id(0x0102),
            ReasonCode::Success,
            &mut server.out,
        );
        server.expect("40 { 0102 }");
        let seen = server.send("34 { s\"t\" 0103 P \"x\" }");
        assert_eq!(seen, [Seen::publish("t", b"x", QoS::ExactlyOnce, 0x0103)]);
        pubrec(&mut server, 0x0103, ReasonCode::Success);
        server.expect("50 { 0103 }");
        assert_eq!(server.send("62 { 0103 }"), []);
        server.expect("70 { 0103 }");
        assert!(server.session.is_empty());
    }
}

fn pubrec(server: &mut Server, packet_id: u16, reason: ReasonCode) {
    let session = &mut server.session;
    server.connection.pubrec(
        session,
        Lane::CONTROL,
        id(packet_id),
        reason,
        &mut server.out,
    );
}

/// [MQTT-4.3.2-5] [MQTT311-4.3.2-2]
#[test]
fn qos_1_is_always_new() {
    for version in BOTH {
        let mut server = Server::connected(version);
        for flags in ["32", "3a"] {
            let seen = server.send(&format!("{flags} {{ s\"t\" 0001 P }}"));
            assert_eq!(seen, [Seen::publish("t", b"", QoS::AtLeastOnce, 1)]);
            server
                .connection
                .puback(Lane::CONTROL, id(1), ReasonCode::Success, &mut server.out);
        }
    }
}

/// [MQTT-4.3.3-10] [MQTT-4.3.3-11] [MQTT-4.3.3-12] [MQTT311-4.3.3-2]
#[test]
fn qos_2_is_delivered_once() {
    for version in BOTH {
        let mut server = Server::connected(version);
        assert_eq!(server.send("34 { s\"t\" 0001 P }").len(), 1);
        // The front door has not decided: a repetition waits for the same decision.
        assert_eq!(server.send("3c { s\"t\" 0001 P }"), []);
        server.expect("");
        pubrec(&mut server, 1, ReasonCode::Success);
        server.expect("50 { 0001 }");
        // A repetition, with or without the DUP flag, is acknowledged and not delivered.
        for flags in ["3c", "34"] {
            assert_eq!(server.send(&format!("{flags} {{ s\"t\" 0001 P }}")), []);
            server.expect("50 { 0001 }");
        }
        server.send("62 { 0001 }");
        server.expect("70 { 0001 }");
        // After PUBCOMP the identifier is a new message's; a repeated PUBREL is answered.
        server.send("62 { 0001 }");
        let not_found = if version == Version::V5 {
            "70 { 0001 92 }"
        } else {
            "70 { 0001 }"
        };
        server.expect(not_found);
        assert_eq!(server.send("34 { s\"t\" 0001 P }").len(), 1);
    }
}

/// A PUBREL that comes before its PUBREC could be sent is out of order.
#[test]
fn release_before_the_decision() {
    let mut server = Server::connected(Version::V5);
    server.send("34 { s\"t\" 0001 P }");
    assert_eq!(
        server.violate("62 { 0001 }").reason,
        ReasonCode::ProtocolError
    );
}

/// [MQTT-4.3.3-9]
#[test]
fn refused_qos_2_frees_the_identifier() {
    let mut server = Server::connected(Version::V5);
    server.send("34 { s\"t\" 0001 P }");
    pubrec(&mut server, 1, ReasonCode::QuotaExceeded);
    server.expect("50 { 0001 97 }");
    assert!(server.session.is_empty());
    assert_eq!(
        server.send("34 { s\"t\" 0001 P }").len(),
        1,
        "a new message"
    );
    // Before 5.0 a client takes every PUBREC for a success and releases.
    let mut server = Server::connected(Version::V311);
    server.send("34 { s\"t\" 0001 P }");
    pubrec(&mut server, 1, ReasonCode::NotAuthorized);
    server.expect("50 { 0001 }");
    server.send("62 { 0001 }");
    server.expect("70 { 0001 }");
}

/// [MQTT311-3.3.5-2]
#[test]
fn refused_qos_1() {
    let mut server = Server::connected(Version::V5);
    server.send("32 { s\"t\" 0001 P }");
    server.connection.puback(
        Lane::CONTROL,
        id(1),
        ReasonCode::NotAuthorized,
        &mut server.out,
    );
    server.expect("40 { 0001 87 }");
    let mut server = Server::connected(Version::V311);
    server.send("32 { s\"t\" 0001 }");
    server.connection.puback(
        Lane::CONTROL,
        id(1),
        ReasonCode::NotAuthorized,
        &mut server.out,
    );
    server.expect("40 { 0001 }");
}

/// QoS 2 survives the connection: what was received is not delivered again.
///
/// [MQTT-4.3.3-10] [MQTT-4.3.3-13] [MQTT-4.1.0-1] [MQTT311-3.1.2-4]
#[test]
fn qos_2_across_connections() {
    for version in BOTH {
        let mut server = Server::connected(version);
        server.send("34 { s\"t\" 0001 P } 34 { s\"t\" 0002 P }");
        pubrec(&mut server, 1, ReasonCode::Success);
        // The connection ends before either is released.
        server.reconnect();
        assert_eq!(server.session.incoming_len(), 2);
        for packet_id in ["0001", "0002"] {
            assert_eq!(server.send(&format!("3c {{ s\"t\" {packet_id} P }}")), []);
            server.expect(&format!("50 {{ {packet_id} }}"));
            server.send(&format!("62 {{ {packet_id} }}"));
            server.expect(&format!("70 {{ {packet_id} }}"));
        }
        assert!(server.session.is_empty());
    }
}

/// [MQTT-3.3.4-8] [MQTT-4.9.0-1]
#[test]
fn receive_maximum() {
    let limits = Limits {
        receive_maximum: 2.try_into().expect("2"),
        ..Limits::default()
    };
    let mut server = Server::connected_with(Version::V5, limits, "CONNECT");
    server.send("32 { s\"t\" 0001 P } 34 { s\"t\" 0002 P } 30 { s\"t\" P }");
    // Acknowledged QoS 1 leaves room; QoS 2 does with PUBCOMP, or a PUBREC that refuses.
    server
        .connection
        .puback(Lane::CONTROL, id(1), ReasonCode::Success, &mut server.out);
    server.send("34 { s\"t\" 0003 P }");
    pubrec(&mut server, 3, ReasonCode::QuotaExceeded);
    pubrec(&mut server, 2, ReasonCode::Success);
    server.send("62 { 0002 } 32 { s\"t\" 0004 P } 34 { s\"t\" 0005 P }");
    // A repetition is no further message.
    server.send("3c { s\"t\" 0005 P }");
    let violation = server.violate("34 { s\"t\" 0006 P }");
    assert_eq!(violation.reason, ReasonCode::ReceiveMaximumExceeded);
    assert_eq!(
        server.out.buffer(Lane::CONTROL).last_chunk(),
        Some(b"Maximum")
    );
    // What was refused with the connection is new when it comes again.
    server.reconnect();
    assert_eq!(server.session.incoming_len(), 1);
    assert_eq!(server.send("3c { s\"t\" 0005 P }"), []);
    assert_eq!(server.send("3c { s\"t\" 0006 P }").len(), 1);
}

/// `ATTACKS.md` 12: identifiers that are never released are bounded in every version, and a new
/// connection does not add to what it may have.
#[test]
fn incoming_identifiers_are_bounded() {
    let limits = Limits {
        max_incoming_ids: 3,
        ..Limits::default()
    };
    let mut server = Server::connected_with(Version::V311, limits, "CONNECT");
    for packet_id in 1..=3 {
        server.send(&format!("34 {{ s\"t\" {packet_id:04x} }}"));
    }
    server.reconnect();
    server.violate("34 { s\"t\" 0004 }");
    assert_eq!(server.session.incoming_len(), 3);
}

/// [MQTT-3.3.2-9] [MQTT-3.3.2-10] [MQTT-3.3.2-12] [MQTT-3.2.2-17]
#[test]
fn topic_aliases() {
    replay(&["MQTT-3.3.2-9", "MQTT-3.3.2-12", "MQTT-3.2.2-17"]);
    let limits = Limits {
        topic_alias_maximum: 2,
        ..Limits::default()
    };
    let mut server = Server::connected_with(Version::V5, limits, "CONNECT");
    let named = |topic| vec![Seen::publish(topic, b"", QoS::AtMostOnce, 0)];
    assert_eq!(server.send("30 { s\"one\" { 23 0001 } }"), named("one"));
    assert_eq!(server.send("30 { s\"two\" { 23 0002 } }"), named("two"));
    assert_eq!(server.send("30 { s\"\" { 23 0001 } }"), named("one"));
    assert_eq!(server.send("30 { s\"\" { 23 0002 } }"), named("two"));
    // Another name replaces the mapping.
    assert_eq!(server.send("30 { s\"three\" { 23 0001 } }"), named("three"));
    assert_eq!(server.send("30 { s\"\" { 23 0001 } }"), named("three"));
    let violation = server.violate("30 { s\"t\" { 23 0003 } }");
    assert_eq!(violation.reason, ReasonCode::TopicAliasInvalid);
    // A new connection knows none.
    server.reconnect();
    let violation = server.violate("30 { s\"\" { 23 0001 } }");
    assert_eq!(violation.reason, ReasonCode::ProtocolError);
}

/// The memory that aliases can take is bounded.
#[test]
fn topic_aliases_are_bounded() {
    let limits = Limits {
        max_alias_topic_bytes: 10,
        ..Limits::default()
    };
    let mut server = Server::connected_with(Version::V5, limits, "CONNECT");
    server.send("30 { s\"123456\" { 23 0001 } } 30 { s\"1234\" { 23 0002 } }");
    // Replacing gives room back.
    server.send("30 { s\"123\" { 23 0001 } } 30 { s\"123\" { 23 0003 } }");
    let violation = server.violate("30 { s\"1\" { 23 0004 } }");
    assert_eq!(violation.reason, ReasonCode::QuotaExceeded);
}

/// [MQTT-3.3.4-6]
#[test]
fn subscription_identifiers_come_from_servers_only() {
    replay(&["MQTT-3.3.4-6"]);
}

/// The DUP flag of a publisher is not something that subscribers see: the event has none.
///
/// [MQTT-3.3.1-3] [MQTT311-3.3.1-3]
#[test]
fn dup_is_not_propagated() {
    for version in BOTH {
        let mut server = Server::connected(version);
        let seen = server.send("3a { s\"t\" 0001 P } 32 { s\"t\" 0001 P }");
        assert_eq!(seen[0], seen[1]);
    }
}

/// A PINGREQ is answered, whatever else waits.
///
/// [MQTT-3.12.4-1] [MQTT-4.9.0-3] [MQTT311-3.12.4-1]
#[test]
fn pings_are_answered() {
    for version in BOTH {
        let limits = Limits {
            receive_maximum: 1.try_into().expect("1"),
            ..Limits::default()
        };
        let mut server = Server::connected_with(version, limits, "CONNECT");
        server.send("32 { s\"t\" 0001 P }");
        assert_eq!(server.send("c0 00"), []);
        server.expect("d0 00");
    }
}
