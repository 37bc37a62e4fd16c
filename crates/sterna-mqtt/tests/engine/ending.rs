//! The end of a connection, and authentication that goes on.

use sterna_mqtt::server::{Accept, Limits, Reason, Refuse};
use sterna_mqtt::{Answer, Lane, LaneWriter, Packet, QoS, ReasonCode, Scope, Version};

use super::harness::{ALL, BOTH, Seen, Server, delivery};
use super::malformed::replay;

/// [MQTT-3.14.4-1] [MQTT-3.14.4-3] [MQTT311-3.14.4-1] [MQTT311-3.14.4-2]
#[test]
fn nothing_is_processed_after_disconnect() {
    replay(&["MQTT-3.14.4-1", "MQTT311-3.14.4-2"]);
    for version in ALL {
        let mut server = Server::connected(version);
        let seen = server.send("e0 00 82 { 0001 P s\"t\" 00 } 30 { s\"t\" P } c0 00");
        let normal = Seen::Disconnect {
            reason: ReasonCode::Success,
            discards_will: true,
            session_expiry_s: None,
        };
        assert_eq!(seen, [normal]);
        assert_eq!(server.send_on(4, "30 { s\"t\" P }"), [], "on no lane");
        assert!(server.connection.is_closed());
        server.expect("");
    }
}

/// [MQTT-3.1.4-3]: packets may be read in the turn in which another connection takes the session over. They must
/// not end this connection before the caller does, with its own reason.
#[test]
fn nothing_is_processed_without_the_session() {
    for version in ALL {
        let mut server = Server::connected(version);
        let out = &mut server.out;
        let ping = (server.connection).handle(None, Lane::CONTROL, Packet::PingReq, 0, out);
        assert!(matches!(ping, Ok(None)), "{ping:?}");
        assert!(!server.connection.is_closed());
    }
}

/// [MQTT-3.14.4-3] [MQTT-3.14.2-1]
#[test]
fn reasons_of_the_client() {
    for (packet, reason, discards_will) in [
        ("e0 { 00 }", ReasonCode::Success, true),
        ("e0 { 04 }", ReasonCode::DisconnectWithWill, false),
        ("e0 { 80 00 }", ReasonCode::UnspecifiedError, false),
        (
            "e0 { 99 { 1f s\"why\" } }",
            ReasonCode::PayloadFormatInvalid,
            false,
        ),
    ] {
        let mut server = Server::connected(Version::V5);
        let seen = server.send(packet);
        assert_eq!(
            seen,
            [Seen::Disconnect {
                reason,
                discards_will,
                session_expiry_s: None
            }]
        );
    }
    // Codes that only a server sends.
    for code in [
        0x87, 0x89, 0x8b, 0x8c, 0x8d, 0x8e, 0x8f, 0x9a, 0x9c, 0xa0, 0xa2,
    ] {
        let mut server = Server::connected(Version::V5);
        let violation = server.violate(&format!("e0 {{ {code:02x} }}"));
        assert_eq!(violation.reason, ReasonCode::ProtocolError);
    }
}

/// Section 3.14.2.2.2: the Session Expiry Interval can be changed, but not from zero.
#[test]
fn session_expiry_of_disconnect() {
    let connect = "10 { s\"MQTT\" 05 02 0000 { 11 00000005 } s\"c\" }";
    let mut server = Server::connected_with(Version::V5, Limits::default(), connect);
    let seen = server.send("e0 { 00 { 11 00000009 } }");
    assert!(matches!(
        seen[..],
        [Seen::Disconnect {
            session_expiry_s: Some(9),
            ..
        }]
    ));
    let mut server = Server::connected(Version::V5);
    let seen = server.send("e0 { 00 { 11 00000000 } }");
    assert!(matches!(
        seen[..],
        [Seen::Disconnect {
            session_expiry_s: Some(0),
            ..
        }]
    ));
    let mut server = Server::connected(Version::V5);
    let violation = server.violate("e0 { 00 { 11 00000009 } }");
    assert_eq!(violation.reason, ReasonCode::ProtocolError);
}

/// [MQTT-4.13.1-1] [MQTT-4.13.2-1] [MQTT-3.14.1-1] [MQTT311-3.1.4-5]
#[test]
fn violations_end_the_connection() {
    replay(&["MQTT-4.13.1-1"]);
    let mut server = Server::connected(Version::V5);
    let violation = server.violate("30 { s\"t\" P } 00 00 30 { s\"t\" P }");
    assert_eq!(
        (violation.answer, violation.scope),
        (Answer::Disconnect, Scope::Connection)
    );
    let sent = server.out.buffer(Lane::CONTROL).split();
    assert_eq!(&sent[..6], b"\xe0\x1e\x81\x1c\x1f\x00");
    assert!(sent.ends_with(b"packet type 0 is reserved"));
    assert_eq!(server.send("c0 00 30 { s\"t\" P }"), []);
    server.expect("");
    assert_eq!(violation.to_string(), "packet type 0 is reserved (0x81)");
}

/// A server's DISCONNECT comes after the CONNACK only, says why, and is the last packet. Older
/// versions have none.
///
/// [MQTT-3.14.0-1] [MQTT-3.14.2-1] [MQTT-3.14.2-2] [MQTT-3.14.4-1] [MQTT-3.1.4-3]
#[test]
fn disconnect_by_the_server() {
    let refuse = Refuse {
        reason_string: Some("elsewhere"),
        server_reference: Some("b"),
    };
    for version in ALL {
        let mut server = Server::connected(version);
        let reason = ReasonCode::SessionTakenOver;
        server
            .connection
            .disconnect(reason, &refuse, &mut server.out);
        assert!(server.connection.is_closed());
        if version == Version::V5 {
            server.expect("e0 { 8e { 1c s\"b\" 1f s\"elsewhere\" } }");
        } else {
            server.expect("");
        }
        server
            .connection
            .disconnect(reason, &refuse, &mut server.out);
        server.send("c0 00");
        assert!(server.deliver(&delivery(1, QoS::AtMostOnce)).is_err());
        server.expect("");
    }
    // Before the CONNACK it is one that refuses; before the CONNECT it is nothing.
    let mut server = Server::new(Version::V5, Limits::default());
    server.send("CONNECT");
    let none = Refuse::default();
    server
        .connection
        .disconnect(ReasonCode::ServerShuttingDown, &none, &mut server.out);
    server.expect("20 { 00 80 00 }");
    let mut server = Server::new(Version::V5, Limits::default());
    server
        .connection
        .disconnect(ReasonCode::ServerShuttingDown, &none, &mut server.out);
    server.expect("");
    assert!(server.connection.is_closed());
}

/// [MQTT-3.1.2-29] [MQTT-3.14.2-3] [MQTT-3.14.2-4]
#[test]
fn reason_strings_are_left_out() {
    let refuse = Refuse {
        reason_string: Some("elsewhere"),
        server_reference: None,
    };
    // The client does not want them.
    let connect = "10 { s\"MQTT\" 05 02 0000 { 17 00 } s\"c\" }";
    let mut server = Server::connected_with(Version::V5, Limits::default(), connect);
    server
        .connection
        .disconnect(ReasonCode::ServerBusy, &refuse, &mut server.out);
    server.expect("e0 { 89 }");
    let mut server = Server::new(Version::V5, Limits::default());
    server.send(connect);
    server.accept(&Accept {
        reason_string: Some("hello"),
        ..Accept::default()
    });
    server.expect("20 { 00 00 { 21 0400 27 00100000 22 0020 } }");
    // They do not fit.
    let connect = "10 { s\"MQTT\" 05 02 0000 { 27 0000000f } s\"c\" }";
    let mut server = Server::new(
        Version::V5,
        Limits {
            topic_alias_maximum: 0,
            ..Limits::default()
        },
    );
    server.send(connect);
    server.accept(&Accept::default());
    server.out.0.clear();
    server
        .connection
        .disconnect(ReasonCode::ServerBusy, &refuse, &mut server.out);
    server.expect("e0 { 89 }");
    // A refusal, too.
    let mut server = Server::new(Version::V5, Limits::default());
    server.send(connect);
    server
        .connection
        .refuse(ReasonCode::ServerBusy, &refuse, &mut server.out);
    server.expect("20 { 00 89 00 }");
}

/// Acknowledgements carry a Reason String where there is one that is wanted and fits, and no User Properties.
///
/// [MQTT-3.1.2-29] [MQTT-3.4.2-2] [MQTT-3.4.2-3] [MQTT-3.5.2-2] [MQTT-3.5.2-3] [MQTT-3.6.2-2]
/// [MQTT-3.6.2-3] [MQTT-3.7.2-2] [MQTT-3.7.2-3]
#[test]
fn acknowledgements_are_short() {
    replay(&[
        "MQTT-3.4.2-2",
        "MQTT-3.5.2-2",
        "MQTT-3.6.2-2",
        "MQTT-3.7.2-2",
    ]);
    let connect = "10 { s\"MQTT\" 05 02 0000 { 27 00000005 17 00 } s\"c\" }";
    let limits = Limits {
        topic_alias_maximum: 0,
        max_packet_bytes: u32::MAX,
        receive_maximum: u16::MAX.try_into().expect("not zero"),
        ..Limits::default()
    };
    let mut server = Server::connected_with(Version::V5, limits, connect);
    let id = 1.try_into().expect("not zero");
    server.connection.puback(
        Lane::CONTROL,
        id,
        ReasonCode::QuotaExceeded,
        &mut server.out,
    );
    server.expect("40 { 0001 97 }");
    server.send("62 { 0002 }");
    server.expect("70 { 0002 92 }");
    server.send("50 { 0003 }");
    server.expect("62 { 0003 92 }");

    let reason = Reason {
        code: ReasonCode::QuotaExceeded,
        string: Some("why"),
    };
    for (properties, ack, suback) in [
        ("17 00", "{ 0001 97 }", "{ 0002 00 97 }"),
        ("27 00000006", "{ 0001 97 }", "{ 0002 00 97 }"),
        (
            "",
            "{ 0001 97 { 1f s\"why\" } }",
            "{ 0002 { 1f s\"why\" } 97 }",
        ),
    ] {
        let connect = format!("10 {{ s\"MQTT\" 05 02 0000 {{ {properties} }} s\"c\" }}");
        let limits = Limits {
            topic_alias_maximum: 0,
            max_packet_bytes: u32::MAX,
            receive_maximum: u16::MAX.try_into().expect("not zero"),
            ..Limits::default()
        };
        let mut server = Server::connected_with(Version::V5, limits, &connect);
        let (connection, out) = (&mut server.connection, &mut server.out);
        connection.puback(Lane::CONTROL, id, reason, out);
        server.expect(&format!("40 {ack}"));
        server.send("34 { s\"t\" 0001 00 }");
        let (connection, out) = (&mut server.connection, &mut server.out);
        connection.pubrec(&mut server.session, Lane::CONTROL, id, reason, out);
        server.expect(&format!("50 {ack}"));
        let (connection, out) = (&mut server.connection, &mut server.out);
        let subscribe = 2.try_into().expect("not zero");
        connection.suback_with(Lane::CONTROL, subscribe, &[reason.code], reason.string, out);
        server.expect(&format!("90 {suback}"));
    }
}

const CONNECT_WITH_METHOD: &str = "10 { s\"MQTT\" 05 02 0000 { 15 s\"m\" 16 s\"1\" } s\"c\" }";

fn authenticating() -> Server {
    let limits = Limits {
        receive_maximum: u16::MAX.try_into().expect("not zero"),
        max_packet_bytes: u32::MAX,
        topic_alias_maximum: 0,
        ..Limits::default()
    };
    let mut server = Server::new(Version::V5, limits);
    server.send(CONNECT_WITH_METHOD);
    server
}

/// [MQTT-4.12.0-2] [MQTT-4.12.0-3] [MQTT-4.12.0-5] [MQTT-4.12.1-1] [MQTT-3.15.2-1] [MQTT-3.15.2-2]
/// [MQTT-3.15.2-3] [MQTT-3.1.2-30]
#[test]
fn extended_authentication() {
    let mut server = authenticating();
    assert_eq!(server.connection.authentication_method(), Some("m"));
    let go_on = ReasonCode::ContinueAuthentication;
    server.connection.auth(go_on, Some(b"2"), &mut server.out);
    server.expect("f0 { 18 { 15 s\"m\" 16 s\"2\" } }");
    assert!(server.connection.accepts_input(Lane::CONTROL));
    assert!(!server.connection.accepts_input(Lane(4)));
    assert_eq!(
        server.send("f0 { 18 { 15 s\"m\" 16 s\"3\" } }"),
        [Seen::Auth(go_on)]
    );
    assert!(!server.connection.accepts_input(Lane::CONTROL));
    server.accept(&Accept {
        authentication_data: Some(b"4"),
        ..Accept::default()
    });
    server.expect("20 { 00 00 { 15 s\"m\" 16 s\"4\" } }");
    // [MQTT-4.12.1-1] once more on the connection that is up, which goes on meanwhile
    let again = ReasonCode::ReAuthenticate;
    assert_eq!(
        server.send("f0 { 19 { 15 s\"m\" 16 s\"5\" } }"),
        [Seen::Auth(again)]
    );
    assert_eq!(server.send("30 { s\"t\" P }").len(), 1);
    server.connection.auth(go_on, None, &mut server.out);
    server.expect("f0 { 18 { 15 s\"m\" } }");
    assert_eq!(
        server.send("c0 00 f0 { 18 { 15 s\"m\" } }"),
        [Seen::Auth(go_on)]
    );
    server.expect("d0 00");
    server
        .connection
        .auth(ReasonCode::Success, None, &mut server.out);
    server.expect("f0 { 00 { 15 s\"m\" } }");
    // Nothing is due now.
    server
        .connection
        .auth(ReasonCode::Success, None, &mut server.out);
    server.expect("");
}

/// [MQTT-4.12.0-1] [MQTT-4.12.0-4] [MQTT-4.12.1-2]
#[test]
fn failed_authentication() {
    let none = Refuse::default();
    let mut server = authenticating();
    let reason = ReasonCode::BadAuthenticationMethod;
    server.connection.refuse(reason, &none, &mut server.out);
    server.expect("20 { 00 8c 00 }");
    assert!(server.connection.is_closed());
    let mut server = authenticating();
    server
        .connection
        .auth(ReasonCode::ContinueAuthentication, None, &mut server.out);
    server.out.0.clear();
    server
        .connection
        .refuse(ReasonCode::NotAuthorized, &none, &mut server.out);
    server.expect("20 { 00 87 00 }");
    let mut server = authenticating();
    server.accept(&Accept::default());
    server.out.0.clear();
    server.send("f0 { 19 { 15 s\"m\" } }");
    server
        .connection
        .disconnect(ReasonCode::NotAuthorized, &none, &mut server.out);
    server.expect("e0 { 87 }");
}

/// [MQTT-3.1.2-30] [MQTT-3.15.2-1] [MQTT-4.12.0-5] [MQTT-4.12.0-6] [MQTT-4.12.0-7] [MQTT-4.12.1-1]
#[test]
fn authentication_out_of_order() {
    replay(&["MQTT-4.12.0-7", "MQTT-3.15.2-1"]);
    // Before the CONNACK: anything else, another method, another reason.
    for packet in [
        "30 { s\"t\" P }",
        "c0 00",
        "82 { 0001 P s\"t\" 00 }",
        "f0 { 18 { 15 s\"n\" } }",
        "f0 { 18 00 }",
        "f0 { 19 { 15 s\"m\" } }",
        "f0 00",
    ] {
        let mut server = authenticating();
        server
            .connection
            .auth(ReasonCode::ContinueAuthentication, None, &mut server.out);
        server.out.0.clear();
        let violation = server.violate(packet);
        assert_eq!(violation.reason, ReasonCode::ProtocolError, "{packet}");
        assert_eq!(violation.answer, Answer::ConnAck(Version::V5), "{packet}");
        assert_eq!(server.out.buffer(Lane::CONTROL)[3], 0x82);
    }
    // After it.
    for packet in [
        "f0 { 18 { 15 s\"m\" } }",
        "f0 { 19 { 15 s\"n\" } }",
        "f0 00",
        "f0 { 19 { 15 s\"m\" } } f0 { 19 { 15 s\"m\" } }",
    ] {
        let mut server = authenticating();
        server.accept(&Accept::default());
        let violation = server.violate(packet);
        assert_eq!(violation.reason, ReasonCode::ProtocolError, "{packet}");
        assert_eq!(violation.answer, Answer::Disconnect, "{packet}");
    }
    // A client may give up.
    let mut server = authenticating();
    server
        .connection
        .auth(ReasonCode::ContinueAuthentication, None, &mut server.out);
    assert!(matches!(
        server.send("e0 00")[..],
        [Seen::Disconnect { .. }]
    ));
    // The server sends no AUTH and no method to a client that named none.
    let mut server = Server::new(Version::V5, server.limits);
    server.send("CONNECT");
    server
        .connection
        .auth(ReasonCode::ContinueAuthentication, None, &mut server.out);
    server.expect("");
    server.accept(&Accept {
        authentication_data: Some(b"x"),
        ..Accept::default()
    });
    server.expect("20 { 00 00 00 }");
}

/// The will is the front door's; the engine tells whether it is to be discarded.
///
/// [MQTT311-3.1.2-10]
#[test]
fn normal_disconnection_discards_the_will() {
    for version in BOTH {
        let mut server = Server::connected(version);
        assert!(matches!(
            server.send("e0 00")[..],
            [Seen::Disconnect {
                discards_will: true,
                ..
            }]
        ));
    }
}
