//! Several streams of one connection.

use sterna_mqtt::server::{Limits, OutgoingPublish};
use sterna_mqtt::{Answer, Lane, PacketId, QoS, ReasonCode, Scope, Version};

use super::harness::{BOTH, Seen, Server, delivery};

const CONTROL: u64 = 0;
const DATA: u64 = 4;
const OTHER: u64 = 8;
const ONE_WAY: u64 = 2;

fn id(id: u16) -> PacketId {
    id.try_into().expect("not zero")
}

fn pubrec(server: &mut Server, lane: u64, packet_id: u16) {
    let session = &mut server.session;
    let reason = ReasonCode::Success;
    server
        .connection
        .pubrec(session, Lane(lane), id(packet_id), reason, &mut server.out);
}

/// Answers go where the packet came from; on the control lane for a unidirectional stream.
#[test]
fn answers_return_on_their_lane() {
    for version in BOTH {
        for (lane, answers) in [
            (CONTROL, CONTROL),
            (DATA, DATA),
            (ONE_WAY, CONTROL),
            (6, CONTROL),
        ] {
            let mut server = Server::connected(version);
            server.send_on(lane, "32 { s\"t\" 0001 P } 34 { s\"t\" 0002 P }");
            let reason = ReasonCode::Success;
            server
                .connection
                .puback(Lane(lane), id(1), reason, &mut server.out);
            pubrec(&mut server, lane, 2);
            server.send_on(lane, "62 { 0002 } c0 00");
            let codes = [ReasonCode::Success];
            server
                .connection
                .suback(Lane(lane), id(3), &codes, &mut server.out);
            let codes5 = if version == Version::V5 { "00" } else { "" };
            server
                .connection
                .unsuback(Lane(lane), id(4), &codes, &mut server.out);
            server.expect_on(
                answers,
                &format!(
                    "40 {{ 0001 }} 50 {{ 0002 }} 70 {{ 0002 }} d0 00 90 {{ 0003 P 00 }} \
                     b0 {{ 0004 P {codes5} }}"
                ),
            );
            assert!(server.out.0.values().all(bytes::BytesMut::is_empty));
        }
    }
}

/// CONNECT, AUTH and DISCONNECT are for the control lane.
#[test]
fn control_packets_stay_on_the_control_lane() {
    for packet in ["CONNECT", "e0 00", "f0 { 19 { 15 s\"m\" } }"] {
        let mut server = Server::connected(Version::V5);
        let violation = server.violate_on(DATA, packet);
        assert_eq!(violation.reason, ReasonCode::ProtocolError, "{packet}");
        assert_eq!(violation.scope, Scope::Connection);
    }
}

/// [MQTT-4.13.1-1] closes the connection; a server may be told to isolate lanes as others do.
#[test]
fn lanes_can_be_isolated() {
    let limits = Limits {
        isolate_lanes: true,
        ..Limits::default()
    };
    for version in BOTH {
        let mut server = Server::connected_with(version, limits, "CONNECT");
        for bad in ["00 00", "CONNECT", "36 { s\"t\" 0001 P }", "20 { 00 00 P }"] {
            let violation = server.violate_on(DATA, bad);
            assert_eq!(violation.scope, Scope::Lane(Lane(DATA)), "{bad}");
            assert_eq!(violation.answer, Answer::Nothing);
        }
        server.expect("");
        assert!(server.connection.is_connected());
        assert_eq!(server.send_on(OTHER, "30 { s\"t\" P }").len(), 1);
        assert_eq!(server.violate("00 00").scope, Scope::Connection);
        assert!(server.connection.is_closed());
    }
}

/// Some clients number the packets of each stream for itself: the same identifier on two streams
/// is two messages.
#[test]
fn lanes_have_identifiers_of_their_own() {
    for version in BOTH {
        let mut server = Server::connected(version);
        for lane in [CONTROL, DATA, OTHER] {
            assert_eq!(
                server.send_on(lane, "34 { s\"t\" 0001 P }").len(),
                1,
                "lane {lane}"
            );
        }
        assert_eq!(server.session.incoming_len(), 3);
        for lane in [OTHER, CONTROL, DATA] {
            pubrec(&mut server, lane, 1);
            assert_eq!(
                server.send_on(lane, "3c { s\"t\" 0001 P }"),
                [],
                "repeated on {lane}"
            );
            server.send_on(lane, "62 { 0001 }");
            server.expect_on(lane, "50 { 0001 } 50 { 0001 } 70 { 0001 }");
        }
        assert!(server.session.is_empty());
    }
}

/// A client that publishes on a unidirectional stream, or on a stream per message, releases on
/// another lane.
#[test]
fn release_on_another_lane() {
    let mut server = Server::connected(Version::V5);
    server.send_on(ONE_WAY, "34 { s\"t\" 0001 P }");
    pubrec(&mut server, ONE_WAY, 1);
    server.expect("50 { 0001 }");
    server.send("62 { 0001 }");
    server.expect("70 { 0001 }");
    assert!(server.session.is_empty());
}

/// What was received on a stream that is gone can be completed on any other; a PUBLISH with the
/// DUP flag is a repetition, one without is a new message of a client that forgot the stream.
#[test]
fn lanes_that_are_gone() {
    let mut server = Server::connected(Version::V5);
    server.send_on(
        DATA,
        "34 { s\"t\" 0001 P } 34 { s\"t\" 0002 P } 34 { s\"t\" 0003 P }",
    );
    for packet_id in 1..=3 {
        pubrec(&mut server, DATA, packet_id);
    }
    server
        .connection
        .lane_closed(Some(&mut server.session), Lane(DATA));
    server.out.0.clear();
    server.send_on(OTHER, "62 { 0001 }");
    server.expect_on(OTHER, "70 { 0001 }");
    assert_eq!(server.send_on(OTHER, "3c { s\"t\" 0002 P }"), []);
    server.expect_on(OTHER, "50 { 0002 }");
    assert_eq!(server.send_on(OTHER, "34 { s\"t\" 0003 P }").len(), 1);
    // The client may come back to the first one.
    assert_eq!(server.session.incoming_len(), 3);
    assert_eq!(server.session.incoming_in_flight(), 2);
}

/// The session survives a change of transport: stream numbers of the old connection mean nothing
/// on the new one.
#[test]
fn from_quic_to_tcp_and_back() {
    for version in BOTH {
        let mut server = Server::connected(version);
        server.send_on(DATA, "34 { s\"t\" 0001 P }");
        pubrec(&mut server, DATA, 1);
        server
            .deliver(&OutgoingPublish {
                lane: Lane(DATA),
                ..delivery(9, QoS::AtLeastOnce)
            })
            .expect("sent");
        server.expect_on(DATA, "50 { 0001 } 32 { s\"t\" 0001 P \"x\" }");
        server.reconnect();
        assert_eq!(server.send("3c { s\"t\" 0001 P }"), []);
        server.expect("50 { 0001 }");
        assert_eq!(server.resend_all(b"x"), [9]);
        server.expect("3a { s\"t\" 0001 P \"x\" }");
        server.reconnect();
        server.send_on(OTHER, "62 { 0001 }");
        server.expect_on(OTHER, "70 { 0001 }");
        assert_eq!(
            server.send_on(OTHER, "40 { 0001 }"),
            [Seen::Delivered(9, ReasonCode::Success)]
        );
    }
}

/// Outgoing identifiers are unique in the session, on whatever lane they travel, and are
/// acknowledged on any.
///
/// [MQTT-2.2.1-4] [MQTT311-2.3.1-4]
#[test]
fn outgoing_identifiers_are_unique_in_the_session() {
    for version in BOTH {
        let mut server = Server::connected(version);
        for (lane, packet_id) in [(CONTROL, 1), (DATA, 2), (OTHER, 3), (DATA, 4)] {
            let lane = Lane(lane);
            let sent = server
                .deliver(&OutgoingPublish {
                    lane,
                    ..delivery(packet_id, QoS::ExactlyOnce)
                })
                .expect("sent");
            assert_eq!(sent.packet_id.map(u16::from), Some(packet_id as u16));
        }
        server.out.0.clear();
        assert_eq!(server.send_on(DATA, "50 { 0001 }"), [Seen::HandedOver(1)]);
        server.expect_on(DATA, "62 { 0001 }");
        assert_eq!(
            server.send_on(OTHER, "70 { 0001 }"),
            [Seen::Delivered(1, ReasonCode::Success)]
        );
    }
}

/// Aliases are found among those of the lane first, then among those of the connection, and go
/// with their lane.
///
/// [MQTT-3.3.2-10]
#[test]
fn aliases_of_lanes() {
    let mut server = Server::connected(Version::V5);
    server.send_on(DATA, "30 { s\"data\" { 23 0001 } }");
    server.send_on(OTHER, "30 { s\"other\" { 23 0001 } }");
    for (lane, topic) in [(DATA, "data"), (OTHER, "other"), (12, "data")] {
        let seen = server.send_on(lane, "30 { s\"\" { 23 0001 } }");
        assert_eq!(seen, [Seen::publish(topic, b"", QoS::AtMostOnce, 0)]);
    }
    server
        .connection
        .lane_closed(Some(&mut server.session), Lane(DATA));
    let seen = server.send_on(12, "30 { s\"\" { 23 0001 } }");
    assert_eq!(seen, [Seen::publish("other", b"", QoS::AtMostOnce, 0)]);
    server
        .connection
        .lane_closed(Some(&mut server.session), Lane(OTHER));
    let violation = server.violate_on(12, "30 { s\"\" { 23 0001 } }");
    assert_eq!(violation.reason, ReasonCode::ProtocolError);
}
