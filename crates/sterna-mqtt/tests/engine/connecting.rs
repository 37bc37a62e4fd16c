//! From the first byte to the CONNACK.

use sterna_mqtt::packet::SubscribeOptions;
use sterna_mqtt::server::{Accept, Features, Limits, Refuse};
use sterna_mqtt::{Answer, Lane, LaneWriter, MqttSession, QoS, ReasonCode, Version};

use super::harness::{ALL, BOTH, Seen, Server, delivery};
use super::malformed::replay;

/// [MQTT-3.1.0-1] [MQTT-3.1.0-2] [MQTT311-3.1.0-1] [MQTT311-3.1.0-2]
#[test]
fn connect_comes_first_and_once() {
    replay(&[
        "MQTT-3.1.0-1",
        "MQTT-3.1.0-2",
        "MQTT311-3.1.0-1",
        "MQTT311-3.1.0-2",
    ]);
}

/// The CONNACK with success comes before anything else, and once.
///
/// [MQTT-3.1.4-5] [MQTT-3.2.0-1] [MQTT-3.2.0-2] [MQTT-3.2.2-1] [MQTT311-3.1.4-4] [MQTT311-3.2.0-1]
#[test]
fn connack_comes_first_and_once() {
    for version in ALL {
        let limits = Limits {
            receive_maximum: u16::MAX.try_into().expect("not zero"),
            max_packet_bytes: u32::MAX,
            topic_alias_maximum: 0,
            ..Limits::default()
        };
        let mut server = Server::new(version, limits);
        assert_eq!(
            server.send("CONNECT"),
            [Seen::Connect("malformed".to_owned())]
        );
        assert!(!server.connection.is_connected());
        // Nothing that the front door does before it is sent.
        assert!(server.deliver(&delivery(1, QoS::AtMostOnce)).is_err());
        let id = 1.try_into().expect("not zero");
        server
            .connection
            .puback(Lane::CONTROL, id, ReasonCode::Success, &mut server.out);
        server
            .connection
            .suback(Lane::CONTROL, id, &[ReasonCode::Success], &mut server.out);
        server
            .connection
            .unsuback(Lane::CONTROL, id, &[ReasonCode::Success], &mut server.out);
        server.expect("");
        server.accept(&Accept::default());
        server.expect("20 { 00 00 P }");
        assert!(server.connection.is_connected());
        server.accept(&Accept::default());
        let refuse = Refuse::default();
        server
            .connection
            .refuse(ReasonCode::NotAuthorized, &refuse, &mut server.out);
        server.expect("");
    }
}

/// [MQTT-3.1.2-4] [MQTT-3.1.2-5] [MQTT-3.1.4-4] [MQTT-3.2.2-2] [MQTT-3.2.2-3] [MQTT311-3.1.2-4]
/// [MQTT311-3.1.2-6] [MQTT311-3.1.4-3] [MQTT311-3.2.2-1] [MQTT311-3.2.2-2] [MQTT311-3.2.2-3]
#[test]
fn session_present_and_clean_start() {
    for version in BOTH {
        let mut server = Server::connected(version);
        server
            .deliver(&delivery(7, QoS::AtLeastOnce))
            .expect("sent");
        assert!(!server.session.is_empty());
        // Kept for a client that resumes.
        server.reconnect();
        assert_eq!(server.session.outgoing_len(), 1);
        // Discarded, whatever the front door believes, for one that starts cleanly.
        server.connection = Server::new(version, server.limits).connection;
        server.send("CONNECT");
        server.accept(&Accept {
            session_present: true,
            ..Accept::default()
        });
        assert_eq!(server.out.buffer(Lane::CONTROL)[2], 0, "Session Present");
        assert!(server.session.is_empty());
    }
    for (version, present) in [(Version::V31, 0), (Version::V311, 1), (Version::V5, 1)] {
        let mut server = Server::connected(version);
        let connect = match version {
            Version::V31 => "10 { s\"MQIsdp\" 03 00 0000 s\"c\" }",
            Version::V311 => "10 { s\"MQTT\" 04 00 0000 s\"c\" }",
            Version::V5 => "10 { s\"MQTT\" 05 00 0000 00 s\"c\" }",
        };
        server.connection = Server::new(version, server.limits).connection;
        server.send(connect);
        server.accept(&Accept {
            session_present: true,
            ..Accept::default()
        });
        assert_eq!(
            server.out.buffer(Lane::CONTROL)[2],
            present,
            "MQTT 3.1 has no such flag"
        );
    }
}

/// A session that the front door has no state of starts anew.
///
/// [MQTT-3.1.2-5] [MQTT311-3.2.2-3]
#[test]
fn no_session_present_means_a_new_session() {
    let mut server = Server::connected(Version::V311);
    server
        .deliver(&delivery(7, QoS::AtLeastOnce))
        .expect("sent");
    server.connection = Server::new(Version::V311, server.limits).connection;
    server.send("10 { s\"MQTT\" 04 00 0000 s\"c\" }");
    server.accept(&Accept::default());
    assert_eq!(server.session, MqttSession::new());
}

/// [MQTT-3.1.3-4] [MQTT-3.1.3-6] [MQTT-3.1.3-7] [MQTT-3.2.2-16] [MQTT311-3.1.3-6]
/// [MQTT311-3.1.3-7] [MQTT311-3.1.3-8] [MQTT311-3.1.3-9]
#[test]
fn empty_client_identifiers() {
    replay(&["MQTT311-3.1.3-8", "MQTT311-3.1.3-9"]);
    let mut server = Server::new(Version::V5, Limits::default());
    let seen = server.send("10 { s\"MQTT\" 05 00 0000 00 s\"\" }");
    assert_eq!(seen, [Seen::Connect(String::new())]);
    server.accept(&Accept {
        assigned_client_id: Some("given"),
        ..Accept::default()
    });
    server.expect("20 { 00 00 { 21 0400 27 00100000 12 s\"given\" 22 0020 } }");
    let mut server = Server::new(Version::V311, Limits::default());
    let seen = server.send("10 { s\"MQTT\" 04 02 0000 s\"\" }");
    assert_eq!(seen, [Seen::Connect(String::new())]);
    server.accept(&Accept {
        assigned_client_id: Some("given"),
        ..Accept::default()
    });
    server.expect("20 { 00 00 }");
}

/// [MQTT-3.1.3-3] [MQTT311-3.1.3-5]
#[test]
fn ordinary_client_identifiers() {
    for version in ALL {
        for id in [
            "a",
            "0123456789abcdefghijklm",
            "ABCXYZ",
            "longer than 23 bytes are taken too",
        ] {
            let mut server = Server::new(version, Limits::default());
            let connect = match version {
                Version::V5 => "10 { s\"MQTT\" 05 02 0000 00",
                Version::V311 => "10 { s\"MQTT\" 04 02 0000",
                Version::V31 => "10 { s\"MQIsdp\" 03 02 0000",
            };
            let id = id.replace(' ', "-");
            let seen = server.send(&format!("{connect} s\"{id}\" }}"));
            assert_eq!(seen, [Seen::Connect(id)]);
        }
    }
}

/// A refusal says why, has no Session Present, and is the end.
///
/// [MQTT-3.1.3-5] [MQTT-3.1.3-8] [MQTT-3.1.4-2] [MQTT-3.2.2-6] [MQTT-3.2.2-7] [MQTT-3.2.2-8]
/// [MQTT-4.12.0-1] [MQTT-4.13.2-1] [MQTT311-3.1.3-9] [MQTT311-3.2.2-4] [MQTT311-3.2.2-5]
/// [MQTT311-3.2.2-6]
#[test]
fn refusals() {
    for (reason, v3) in [
        (ReasonCode::ClientIdentifierNotValid, Some(2)),
        (ReasonCode::ServerBusy, Some(3)),
        (ReasonCode::BadUserNameOrPassword, Some(4)),
        (ReasonCode::NotAuthorized, Some(5)),
        (ReasonCode::BadAuthenticationMethod, Some(5)),
        (ReasonCode::TopicNameInvalid, None),
        (ReasonCode::QoSNotSupported, None),
    ] {
        for version in ALL {
            let mut server = Server::new(version, Limits::default());
            server.send("CONNECT");
            let refuse = Refuse {
                reason_string: Some("no"),
                server_reference: None,
            };
            server.connection.refuse(reason, &refuse, &mut server.out);
            assert!(server.connection.is_closed());
            if version == Version::V5 {
                server.expect(&format!(
                    "20 {{ 00 {:02x} {{ 1f s\"no\" }} }}",
                    reason as u8
                ));
            } else if let Some(code) = v3 {
                server.expect(&format!("20 {{ 00 {code:02x} }}"));
            } else {
                server.expect("");
            }
        }
    }
    // A code that a CONNACK cannot carry becomes one that it can.
    let mut server = Server::new(Version::V5, Limits::default());
    server.send("CONNECT");
    let refuse = Refuse {
        reason_string: None,
        server_reference: Some("other"),
    };
    server
        .connection
        .refuse(ReasonCode::SessionTakenOver, &refuse, &mut server.out);
    server.expect("20 { 00 80 { 1c s\"other\" } }");
    for reason in ReasonCode::ALL {
        let listed = [
            0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x8c, 0x90,
            0x95, 0x97, 0x99, 0x9a, 0x9b, 0x9c, 0x9d, 0x9f,
        ];
        let valid = reason.is_valid_in(sterna_mqtt::PacketType::ConnAck);
        assert_eq!(valid, listed.contains(&(*reason as u8)), "{reason:?}");
    }
}

/// What follows a CONNECT that is refused is not processed; what follows one that is accepted is.
///
/// [MQTT-3.1.4-6] [MQTT311-3.1.4-5]
#[test]
fn input_waits_for_the_decision() {
    for version in BOTH {
        let mut server = Server::new(version, Limits::default());
        assert!(server.connection.accepts_input(Lane(0)));
        assert!(
            !server.connection.accepts_input(Lane(4)),
            "a data stream waits"
        );
        server.send("CONNECT");
        assert!(!server.connection.accepts_input(Lane(0)));
        let mut refused = Server::new(version, Limits::default());
        refused.send("CONNECT");
        let refuse = Refuse::default();
        refused
            .connection
            .refuse(ReasonCode::NotAuthorized, &refuse, &mut refused.out);
        refused.out.0.clear();
        assert_eq!(
            refused.send("30 { s\"t\" P } c0 00 82 { 0001 P s\"t\" 00 }"),
            []
        );
        refused.expect("");
        server.accept(&Accept::default());
        assert!(server.connection.accepts_input(Lane(0)));
        assert!(server.connection.accepts_input(Lane(4)));
        assert_eq!(
            server.send("30 { s\"t\" P }"),
            [Seen::publish("t", b"", QoS::AtMostOnce, 0)]
        );
    }
    // A front door that hands in more before it has decided is told so.
    let mut server = Server::new(Version::V5, Limits::default());
    server.send("CONNECT");
    let violation = server.violate("30 { s\"t\" P }");
    assert_eq!(violation.answer, Answer::ConnAck(Version::V5));
    assert!(server.connection.is_closed());
}

/// The CONNACK tells what the server does not have, and the server keeps to it.
///
/// [MQTT-3.2.2-11] [MQTT-3.2.2-14] [MQTT-3.2.2-17] [MQTT-3.2.2-18] [MQTT-3.2.2-21]
#[test]
fn limits_are_told_and_kept() {
    let limits = Limits {
        max_packet_bytes: 1000,
        receive_maximum: 9.try_into().expect("not zero"),
        topic_alias_maximum: 0,
        maximum_qos: QoS::AtLeastOnce,
        features: Features::ALL
            .without(Features::RETAIN)
            .without(Features::WILDCARDS)
            .without(Features::SHARED)
            .without(Features::IDENTIFIERS),
        ..Limits::default()
    };
    let mut server = Server::new(Version::V5, limits);
    server.send("CONNECT");
    server.accept(&Accept::default());
    server.expect("20 { 00 00 { 21 0009 24 01 27 000003e8 25 00 28 00 29 00 2a 00 } }");
    for (packet, reason) in [
        ("34 { s\"t\" 0001 P }", ReasonCode::QoSNotSupported),
        ("31 { s\"t\" P }", ReasonCode::RetainNotSupported),
        ("30 { s\"t\" { 23 0001 } }", ReasonCode::TopicAliasInvalid),
        (
            "82 { 0001 00 s\"a/#\" 00 }",
            ReasonCode::WildcardSubscriptionsNotSupported,
        ),
        (
            "82 { 0001 00 s\"$share/n/a\" 00 }",
            ReasonCode::SharedSubscriptionsNotSupported,
        ),
        (
            "82 { 0001 { 0b 01 } s\"a\" 00 }",
            ReasonCode::SubscriptionIdentifiersNotSupported,
        ),
    ] {
        let mut server = Server::connected_with(Version::V5, limits, "CONNECT");
        assert_eq!(server.violate(packet).reason, reason, "{packet}");
    }
    assert_eq!(server.connection.max_packet_bytes(), 1000);
}

/// [MQTT-3.2.2-12] [MQTT-3.2.2-13]
#[test]
fn wills_beyond_the_limits_are_refused() {
    let limits = Limits {
        maximum_qos: QoS::AtMostOnce,
        features: Features::ALL.without(Features::RETAIN),
        ..Limits::default()
    };
    for (connect, reason) in [
        (
            "10 { s\"MQTT\" 05 0e 0000 00 s\"c\" 00 s\"w\" s\"x\" }",
            ReasonCode::QoSNotSupported,
        ),
        (
            "10 { s\"MQTT\" 05 26 0000 00 s\"c\" 00 s\"w\" s\"x\" }",
            ReasonCode::RetainNotSupported,
        ),
    ] {
        let mut server = Server::new(Version::V5, limits);
        let violation = server.violate(connect);
        assert_eq!(violation.reason, reason);
        assert_eq!(server.out.buffer(Lane::CONTROL)[3], reason as u8);
        assert!(server.connection.is_closed());
    }
}

/// MQTT 3.1, section 3.1: flags of which there is nothing else in the packet say nothing.
#[test]
fn unused_flags_of_a_connect_of_3_1_are_ignored() {
    let body = |flags: u8| format!("10 {{ s\"MQIsdp\" 03 {flags:02x} 0000 s\"c\"");
    // The reserved bit; QoS and retain of a will that there is none of; a user name and a password that are not there.
    for flags in [0x03, 0x0a, 0x12, 0x1a, 0x22, 0x3a, 0x82, 0xc2, 0x42, 0xfb] {
        let mut server = Server::new(Version::V31, Limits::default());
        server.send(&format!("{} }}", body(flags)));
        server.accept(&Accept::default());
        server.expect("20 { 00 00 }");
    }
    // With a user name, the password alone may be missing.
    let mut server = Server::new(Version::V31, Limits::default());
    server.send(&format!("{} s\"u\" }}", body(0xc2)));
    server.accept(&Accept::default());
    server.expect("20 { 00 00 }");
    // A password is not for a client without a name.
    let mut server = Server::new(Version::V31, Limits::default());
    server.violate(&format!("{} s\"p\" }}", body(0x42)));
}

/// [MQTT-3.1.2-2] [MQTT311-3.1.2-2]
#[test]
fn old_versions_can_be_turned_off() {
    let limits = Limits {
        min_version: Version::V5,
        ..Limits::default()
    };
    for version in [Version::V31, Version::V311] {
        let mut server = Server::new(version, limits);
        server.violate("CONNECT");
        server.expect("20 { 00 01 }");
    }
}

/// [MQTT-3.1.2-11] [MQTT-3.1.2-22] [MQTT311-3.1.2-24]
#[test]
fn keep_alive() {
    for (version, connect) in [
        (Version::V311, "10 { s\"MQTT\" 04 02 000a s\"c\" }"),
        (Version::V5, "10 { s\"MQTT\" 05 02 000a 00 s\"c\" }"),
    ] {
        let mut server = Server::connected_with(version, Limits::default(), connect);
        assert_eq!(server.connection.deadline_ms(), Some(15_000));
        // Any packet counts, also on another lane.
        server.now_ms = 14_000;
        server.send_on(4, "40 { 0001 }");
        assert_eq!(server.connection.deadline_ms(), Some(29_000));
        assert_eq!(server.connection.on_timeout(28_999), Ok(()));
        let violation = server
            .connection
            .on_timeout(29_000)
            .expect_err("the time is up");
        assert_eq!(violation.reason, ReasonCode::KeepAliveTimeout);
        assert!(server.connection.is_closed());
        assert_eq!(server.connection.deadline_ms(), None);
        let disconnect = version == Version::V5;
        assert_eq!(violation.answer == Answer::Disconnect, disconnect);
    }
    // Zero turns it off; bytes that are no whole packet do not count.
    let server = Server::connected(Version::V5);
    assert_eq!(server.connection.deadline_ms(), None);
}

/// [MQTT-3.1.2-21] [MQTT-3.2.2-22]
#[test]
fn server_keep_alive() {
    let connect = "10 { s\"MQTT\" 05 02 000a 00 s\"c\" }";
    let mut server = Server::new(Version::V5, Limits::default());
    server.send(connect);
    server.now_ms = 500;
    server.accept(&Accept {
        keep_alive_s: Some(100),
        ..Accept::default()
    });
    server.expect("20 { 00 00 { 21 0400 27 00100000 22 0020 13 0064 } }");
    assert_eq!(
        server.connection.deadline_ms(),
        Some(150_500),
        "counted from the CONNACK"
    );
    // Before 5.0 it cannot be told and so does not apply.
    let connect = "10 { s\"MQTT\" 04 02 000a s\"c\" }";
    let mut server = Server::new(Version::V311, Limits::default());
    server.send(connect);
    server.accept(&Accept {
        keep_alive_s: Some(100),
        ..Accept::default()
    });
    assert_eq!(server.connection.keep_alive_s(), 10);
}

/// `ATTACKS.md` 15: a silent client is not waited for.
#[test]
fn connect_timeout() {
    let mut server = Server::new(Version::V5, Limits::default());
    assert_eq!(server.connection.deadline_ms(), Some(30_000));
    // Bytes that do not complete a packet do not prolong it.
    server.now_ms = 29_000;
    server.send("10 20 00");
    let violation = server
        .connection
        .on_timeout(30_000)
        .expect_err("the time is up");
    assert_eq!(violation.answer, Answer::Nothing);
    server.connection.violation(&violation, &mut server.out);
    server.expect("");
}

/// `ATTACKS.md` 1: what cannot be a CONNECT is refused at its first byte.
#[test]
fn partial_packets_are_refused_early() {
    let mut server = Server::new(Version::V5, Limits::default());
    assert_eq!(server.connection.check_partial(Lane::CONTROL, 0x10), Ok(()));
    assert!(
        server
            .connection
            .check_partial(Lane::CONTROL, 0x30)
            .is_err()
    );
    assert!(server.connection.is_closed());
    let mut server = Server::connected(Version::V5);
    assert_eq!(server.connection.check_partial(Lane::CONTROL, 0x30), Ok(()));
    let violation = server
        .connection
        .check_partial(Lane::CONTROL, 0x10)
        .expect_err("a second");
    assert_eq!(violation.reason, ReasonCode::ProtocolError);
    // Before the CONNACK the limit is the smaller one.
    let limits = Limits {
        max_connect_bytes: 100,
        ..Limits::default()
    };
    assert_eq!(
        Server::new(Version::V5, limits)
            .connection
            .max_packet_bytes(),
        100
    );
}

/// [MQTT-3.1.2-28]
#[test]
fn response_information_is_given_on_request() {
    for (wanted, told) in [(0, ""), (1, "1a s\"r/\"")] {
        let mut server = Server::new(Version::V5, Limits::default());
        server.send(&format!(
            "10 {{ s\"MQTT\" 05 02 0000 {{ 19 0{wanted} }} s\"c\" }}"
        ));
        server.accept(&Accept {
            response_information: Some("r/"),
            ..Accept::default()
        });
        server.expect(&format!(
            "20 {{ 00 00 {{ 21 0400 27 00100000 22 0020 {told} }} }}"
        ));
    }
}

/// Reason String and User Properties are the first to go; a client that takes not even the rest is
/// not served.
///
/// [MQTT-3.1.2-24] [MQTT-3.2.2-16] [MQTT-3.2.2-19] [MQTT-3.2.2-20]
#[test]
fn connack_fits_the_client() {
    let accept = Accept {
        reason_string: Some("welcome"),
        user_properties: &[("a", "b")],
        session_expiry_s: Some(5),
        ..Accept::default()
    };
    let base = "11 00000005 21 0400 27 00100000 22 0020";
    let extra = "1f s\"welcome\" 26 s\"a\" s\"b\"";
    let whole = Server::new(Version::V5, Limits::default())
        .bytes(&format!("20 {{ 00 00 {{ {base} {extra} }} }}"));
    for (bytes, expected) in [(whole.len(), extra), (whole.len() - 1, "")] {
        let mut server = Server::new(Version::V5, Limits::default());
        server.send(&format!(
            "10 {{ s\"MQTT\" 05 02 0000 {{ 27 {bytes:08x} }} s\"c\" }}"
        ));
        server.accept(&accept);
        server.expect(&format!("20 {{ 00 00 {{ {base} {expected} }} }}"));
    }
    let mut server = Server::new(Version::V5, Limits::default());
    server.send("10 { s\"MQTT\" 05 02 0000 { 27 00000005 } s\"c\" }");
    let accepted = server
        .connection
        .accept(&mut server.session, &accept, 0, &mut server.out);
    assert!(accepted.is_err() && server.connection.is_closed());
    server.expect("");
}

/// A field that no packet can carry ends the connection, too.
#[test]
fn connack_that_cannot_be_written() {
    let long = "x".repeat(65_536);
    let mut server = Server::new(Version::V5, Limits::default());
    server.send("CONNECT");
    let accept = Accept {
        assigned_client_id: Some(&long),
        ..Accept::default()
    };
    let accepted = server
        .connection
        .accept(&mut server.session, &accept, 0, &mut server.out);
    assert!(accepted.is_err() && server.connection.is_closed());
    server.expect("");
    // What is only for humans is left out.
    let mut server = Server::new(Version::V5, Limits::default());
    server.send("CONNECT");
    server.accept(&Accept {
        reason_string: Some(&long),
        ..Accept::default()
    });
    server.expect("20 { 00 00 { 21 0400 27 00100000 22 0020 } }");
}

/// Bridges of Mosquitto mark themselves in the protocol level, and mean No Local and Retain As
/// Published by it.
#[test]
fn a_bridge_gets_its_own_back_from_nobody_and_sees_what_is_retained() {
    for (version, name, level) in [
        (Version::V31, "MQIsdp", "83"),
        (Version::V311, "MQTT", "84"),
    ] {
        let mut server = Server::new(version, Limits::default());
        let connect = format!("10 {{ s\"{name}\" {level} 02 003c s\"b\" }}");
        assert_eq!(server.send(&connect), [Seen::Connect("b".to_owned())]);
        assert_eq!(server.connection.version(), version);
        server.accept(&Accept::default());
        server.expect("20 { 00 00 }");
        let seen = server.send("82 { 0001 s\"a/#\" 01 s\"$share/g/a\" 01 }");
        let options = |no_local| SubscribeOptions {
            no_local,
            retain_as_published: true,
            ..SubscribeOptions::new(QoS::AtLeastOnce)
        };
        let expected = [("a/#", true), ("$share/g/a", false)]
            .map(|(filter, no_local)| (filter.to_owned(), options(no_local)));
        assert_eq!(seen, [Seen::Subscribe(1, expected.to_vec())]);
    }
    // Levels 0x85 and on are nobody's.
    for (name, level) in [("MQIsdp", "84"), ("MQTT", "83"), ("MQTT", "85")] {
        let mut server = Server::new(Version::V311, Limits::default());
        server.violate(&format!("10 {{ s\"{name}\" {level} 02 003c s\"b\" }}"));
    }
}
