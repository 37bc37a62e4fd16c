//! State that outlives a connection.

use super::*;

/// [MQTT-3.2.2-4] [MQTT-3.2.2-5] a session that should not be there closes the connection.
#[test]
fn unexpected_sessions_are_refused() {
    let properties = PropertyBuf::new();
    let present = connack(true, &[]);
    let mut stranger = Client::open(&connect(&properties), false, MqttSession::new());
    assert_eq!(stranger.violation(&present).0, ReasonCode::ProtocolError);
    let clean = Connect {
        clean_start: true,
        ..connect(&properties)
    };
    let mut cleaner = Client::open(&clean, true, MqttSession::new());
    assert_eq!(cleaner.violation(&present).0, ReasonCode::ProtocolError);
    let mut holder = Client::open(&connect(&properties), true, MqttSession::new());
    assert_eq!(
        holder.feed(&present).unwrap(),
        [Seen::Connected {
            session_present: true
        }]
    );
}

/// [MQTT-3.1.2-4] with Clean Start the client forgets, too.
#[test]
fn clean_start_forgets() {
    let mut client = Client::connected(&[]);
    client.publish("a", QoS::AtLeastOnce, 1).unwrap();
    let properties = PropertyBuf::new();
    let clean = Connect {
        clean_start: true,
        ..connect(&properties)
    };
    let client = Client::open(&clean, true, client.session);
    assert!(client.session.is_empty());
}

/// [MQTT-4.4.0-1] [MQTT-4.6.0-1] [MQTT-3.3.1-1]: after a reconnection all unacknowledged messages
/// are sent again, in order, marked as repetitions. [MQTT-4.3.3-6]: a released message only with
/// its PUBREL.
#[test]
fn what_is_unacknowledged_is_sent_again_in_order() {
    let mut client = Client::connected(&[]);
    for (tag, qos) in [
        (1, QoS::AtLeastOnce),
        (2, QoS::ExactlyOnce),
        (3, QoS::ExactlyOnce),
        (4, QoS::AtLeastOnce),
    ] {
        client.publish("a", qos, tag).unwrap();
    }
    client.subscribe(&["a"], 5).unwrap();
    assert_eq!(
        client.feed(&ack(Packet::PubRec, 2)).unwrap(),
        [Seen::HandedOver(2)]
    );
    let mut client = client.reconnect(true);
    // [MQTT-4.6.0-1] new messages do not overtake
    assert_eq!(
        client.publish("new", QoS::AtMostOnce, 9),
        Err(SendError::Later)
    );
    assert_eq!(client.resend_all(), [1, 3, 4]);
    assert_eq!(
        client.sent(),
        [
            "PUBLISH 1 'again' again",
            "PUBREL 2 Success",
            "PUBLISH 3 'again' again",
            "PUBLISH 4 'again' again",
        ]
    );
    assert!(client.resend_all().is_empty(), "once");
    client.publish("new", QoS::AtMostOnce, 9).unwrap();
    // The SUBSCRIBE ended with its connection; its identifier is free.
    assert_eq!(
        client.violation(&suback(5, &[ReasonCode::Success])).0,
        ReasonCode::ProtocolError
    );
}

#[test]
fn a_lost_session_is_forgotten_here_too() {
    let mut client = Client::connected(&[]);
    client.publish("a", QoS::AtLeastOnce, 1).unwrap();
    client
        .feed(&publish("b", QoS::ExactlyOnce, 9, &[]))
        .unwrap();
    let mut client = client.reconnect(false);
    assert!(client.session.is_empty());
    assert!(client.resend_all().is_empty());
    let events = client
        .feed(&publish("b", QoS::ExactlyOnce, 9, &[]))
        .unwrap();
    assert_eq!(events.len(), 1, "the identifier is a new message's");
}

/// MQTT 3.1 doesn't tell whether the session is there, so the client takes it that it is.
#[test]
fn mqtt_3_1_resends_without_being_told() {
    let none = PropertyBuf::new();
    let old = Connect {
        version: Version::V31,
        ..connect(&none)
    };
    let accepted = ConnAck {
        session_present: false,
        reason: ReasonCode::Success,
        properties: Properties::EMPTY,
    };
    let accepted = bytes_of(&Packet::ConnAck(accepted), Version::V31);
    let mut client = Client::open(&old, false, MqttSession::new());
    client.feed(&accepted).unwrap();
    client.publish("a", QoS::AtLeastOnce, 1).unwrap();
    let mut client = Client::open(&old, true, client.session);
    client.feed(&accepted).unwrap();
    assert_eq!(client.resend_all(), [1]);
}

/// A client that goes on with the session of another process.
fn heir(version: Version) -> Client {
    let none = PropertyBuf::new();
    let connect = Connect {
        version,
        ..connect(&none)
    };
    Client::open(&connect, true, MqttSession::inherited())
}

fn accepted(session_present: bool, version: Version) -> BytesMut {
    let accepted = ConnAck {
        session_present,
        reason: ReasonCode::Success,
        properties: Properties::EMPTY,
    };
    bytes_of(&Packet::ConnAck(accepted), version)
}

/// PUBCOMPs for these identifiers.
fn pubcomps(ids: std::ops::RangeInclusive<u16>, version: Version) -> BytesMut {
    let mut bytes = BytesMut::new();
    for packet_id in ids {
        let ack = Packet::PubComp(Ack::new(id(packet_id), ReasonCode::Success));
        bytes.extend_from_slice(&bytes_of(&ack, version));
    }
    bytes
}

fn pubrels(ids: std::ops::RangeInclusive<u16>) -> Vec<String> {
    ids.map(|id| format!("PUBREL {id} Success")).collect()
}

/// [MQTT-3.2.2-4] [MQTT-4.3.3-11] [MQTT311-4.3.3-2] the server may hold messages of the earlier process under any
/// identifier. A message with QoS 2 takes one that the server has released, and others take any.
#[test]
fn an_heir_has_identifiers_released_before_it_uses_them() {
    for version in [Version::V31, Version::V311, Version::V5] {
        let mut client = heir(version);
        assert_eq!(
            client.publish("early", QoS::ExactlyOnce, 1),
            Err(SendError::Later),
            "it is not known what the server holds"
        );
        assert!(!client.make_room(QoS::ExactlyOnce));
        client.publish("early", QoS::AtLeastOnce, 2).unwrap();
        assert_eq!(client.sent(), ["PUBLISH 1 'early'"]);
        client.feed(&accepted(true, version)).unwrap();
        assert_eq!(
            client.publish("a", QoS::ExactlyOnce, 1),
            Err(SendError::Later)
        );
        assert!(!client.make_room(QoS::ExactlyOnce));
        assert_eq!(client.sent(), pubrels(2..=9));
        assert!(!client.make_room(QoS::ExactlyOnce));
        assert!(client.sent().is_empty(), "they are asked for once");
        // The answer is nobody's message.
        assert_eq!(client.feed(&pubcomps(2..=2, version)).unwrap(), []);
        assert!(client.make_room(QoS::ExactlyOnce));
        client.publish("a", QoS::ExactlyOnce, 1).unwrap();
        assert_eq!(client.sent(), ["PUBLISH 2 'a'"]);
        assert!(!client.make_room(QoS::ExactlyOnce));
        client.session.check();
        let pubrec = Packet::PubRec(Ack::new(id(2), ReasonCode::Success));
        let events = client.feed(&bytes_of(&pubrec, version)).unwrap();
        assert_eq!(events, [Seen::HandedOver(1)]);
        let events = client.feed(&pubcomps(2..=2, version)).unwrap();
        assert_eq!(events, [Seen::Delivered(1, ReasonCode::Success)]);
        assert_eq!(client.sent(), ["PUBREL 2 Success"]);
        // It is known to be free from now on.
        assert!(client.make_room(QoS::ExactlyOnce));
        client.publish("b", QoS::ExactlyOnce, 3).unwrap();
        assert_eq!(client.sent(), ["PUBLISH 2 'b'"]);
        client.session.check();
    }
}

/// More are released where more are used at a time, and nothing is asked for without need.
#[test]
fn an_heir_asks_for_as_many_again() {
    let mut client = heir(Version::V5);
    client.feed(&connack(true, &[])).unwrap();
    assert!(client.make_room(QoS::AtLeastOnce));
    assert!(client.sent().is_empty());
    let mut tag = 0;
    for (asked, count) in [(1..=8, 8), (9..=16, 8), (17..=32, 16), (33..=64, 32)] {
        assert!(!client.make_room(QoS::ExactlyOnce));
        assert_eq!(client.sent(), pubrels(asked.clone()));
        client.feed(&pubcomps(asked, Version::V5)).unwrap();
        for _ in 0..count {
            tag += 1;
            client.publish("a", QoS::ExactlyOnce, tag).unwrap();
        }
        client.sent();
        client.session.check();
    }
    let order: Vec<u64> = (client.session.unacknowledged().map(|it| it.tag)).collect();
    assert!(order.is_sorted(), "{order:?}");
    let mut few = heir(Version::V5);
    few.feed(&connack(true, &[Property::ReceiveMaximum(3)]))
        .unwrap();
    assert!(!few.make_room(QoS::ExactlyOnce));
    assert_eq!(few.sent(), pubrels(1..=3));
}

/// Without a session at the server there is nothing to release, also where something was sent early.
#[test]
fn a_new_session_has_no_heir() {
    for sends_early in [false, true] {
        let mut client = heir(Version::V5);
        if sends_early {
            client.publish("early", QoS::AtLeastOnce, 1).unwrap();
        }
        client.feed(&connack(false, &[])).unwrap();
        client.sent();
        assert!(client.make_room(QoS::ExactlyOnce));
        client.publish("a", QoS::ExactlyOnce, 2).unwrap();
        assert_eq!(client.sent().len(), 1);
        client.session.check();
    }
}

/// [MQTT-4.4.0-1] a PUBREL without its PUBCOMP is sent again on the next connection.
#[test]
fn what_was_asked_for_is_asked_again_on_the_next_connection() {
    let mut client = heir(Version::V5);
    client.feed(&connack(true, &[])).unwrap();
    assert!(!client.make_room(QoS::ExactlyOnce));
    client.feed(&pubcomps(1..=2, Version::V5)).unwrap();
    client.publish("a", QoS::ExactlyOnce, 1).unwrap();
    let mut client = client.reconnect(true);
    assert_eq!(client.resend_all(), [1]);
    let mut expected = pubrels(3..=8);
    // Their order among each other means nothing.
    expected.push("PUBLISH 1 'again' again".to_owned());
    let mut sent = client.sent();
    sent.sort_unstable();
    expected.sort_unstable();
    assert_eq!(sent, expected);
    assert!(client.make_room(QoS::ExactlyOnce), "the second one is free");
    client.feed(&pubcomps(3..=8, Version::V5)).unwrap();
    client.session.check();
    // The server has lost the session, and with it what it held.
    let mut client = client.reconnect(false);
    assert!(client.make_room(QoS::ExactlyOnce));
    assert!(client.sent().is_empty());
}

/// A server that takes no QoS 2 is asked for nothing, and the message fails.
#[test]
fn an_heir_is_told_what_the_server_does_not_take() {
    let mut client = heir(Version::V5);
    client
        .feed(&connack(true, &[Property::MaximumQoS(1)]))
        .unwrap();
    assert!(client.make_room(QoS::ExactlyOnce));
    assert_eq!(
        client.publish("a", QoS::ExactlyOnce, 1),
        Err(SendError::Unsupported(ReasonCode::QoSNotSupported))
    );
    assert!(client.sent().is_empty());
}

/// [MQTT-4.3.3-10] [MQTT-4.3.3-11] what the server has under way for the earlier process comes to this one: a message
/// is delivered, and a PUBREL is answered.
#[test]
fn an_heir_completes_what_comes_in() {
    let mut client = heir(Version::V5);
    client.feed(&connack(true, &[])).unwrap();
    let mut again = publish("t", QoS::ExactlyOnce, 5, &[]);
    again[0] |= 0b1000; // DUP
    assert_eq!(
        client.feed(&again).unwrap(),
        [Seen::Message("t".to_owned(), b"x".to_vec())]
    );
    client.acknowledge(5, ReasonCode::Success);
    assert_eq!(client.feed(&ack(Packet::PubRel, 5)).unwrap(), []);
    assert_eq!(client.feed(&ack(Packet::PubRel, 6)).unwrap(), []);
    assert_eq!(
        client.sent(),
        [
            "PUBREC 5 Success",
            "PUBCOMP 5 Success",
            "PUBCOMP 6 PacketIdentifierNotFound"
        ]
    );
}

/// A message with QoS 2 that the server may have, and that it would not take again, leaves no identifier behind under
/// which the next message would be taken for it.
#[test]
fn a_message_that_is_given_up_is_released() {
    let mut client = Client::connected(&[]);
    client.publish("a", QoS::AtLeastOnce, 1).unwrap();
    client.publish("b", QoS::ExactlyOnce, 2).unwrap();
    let mut client = Client::open(&connect(&PropertyBuf::new()), true, client.session);
    client
        .feed(&connack(true, &[Property::MaximumQoS(0)]))
        .unwrap();
    let mut given_up = 0;
    while let Some(outgoing) = client
        .connection
        .next_resend(&mut client.session, &mut client.out)
    {
        let again = message("b", QoS::ExactlyOnce);
        let out = &mut client.out;
        let refused = (client.connection).resend(&mut client.session, outgoing, &again, out);
        assert!(matches!(refused, Err(SendError::Unsupported(_))));
        let out = &mut client.out;
        client
            .connection
            .give_up(&mut client.session, outgoing, out);
        given_up += 1;
    }
    assert_eq!((given_up, client.sent()), (2, pubrels(2..=2)));
    assert_eq!(client.session.outgoing_len(), 1);
    client.feed(&pubcomps(2..=2, Version::V5)).unwrap();
    assert!(client.session.is_empty());
}
