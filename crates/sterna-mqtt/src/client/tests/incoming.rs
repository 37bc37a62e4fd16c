//! Messages to the client, and packets that servers must not send.

use super::*;

/// [MQTT-4.3.2-4] [MQTT-4.3.3-8] [MQTT-4.3.3-11] [MQTT-4.5.0-2] [MQTT-2.2.1-5]: each QoS is
/// answered.
#[test]
fn messages_are_acknowledged() {
    let mut client = Client::connected(&[]);
    let zero = client.feed(&publish("a", QoS::AtMostOnce, 0, &[])).unwrap();
    assert_eq!(zero, [Seen::Message("a".into(), b"x".to_vec())]);
    client
        .feed(&publish("a", QoS::AtLeastOnce, 1, &[]))
        .unwrap();
    assert!(
        client.sent().is_empty(),
        "not before the message is in safe hands"
    );
    client.acknowledge(1, ReasonCode::Success);
    client
        .feed(&publish("a", QoS::ExactlyOnce, 2, &[]))
        .unwrap();
    client.acknowledge(2, ReasonCode::Success);
    assert_eq!(client.sent(), ["PUBACK 1 Success", "PUBREC 2 Success"]);
    // [MQTT-4.3.3-10] the same message once more is not a message
    assert_eq!(
        client
            .feed(&publish("a", QoS::ExactlyOnce, 2, &[]))
            .unwrap(),
        []
    );
    assert_eq!(client.feed(&ack(Packet::PubRel, 2)).unwrap(), []);
    assert_eq!(client.sent(), ["PUBREC 2 Success", "PUBCOMP 2 Success"]);
    assert!(client.session.is_empty());
    // [MQTT-4.3.3-12] and now it is a new one
    assert_eq!(
        client
            .feed(&publish("a", QoS::ExactlyOnce, 2, &[]))
            .unwrap()
            .len(),
        1
    );
}

/// [MQTT-4.6.0-2] [MQTT-4.6.0-3] [MQTT311-4.6.0-2] [MQTT311-4.6.0-3]: acknowledgements keep the
/// order of the messages.
#[test]
fn acknowledgements_wait_for_their_turn() {
    let mut client = Client::connected(&[]);
    client
        .feed(&publish("a", QoS::AtLeastOnce, 5, &[]))
        .unwrap();
    client
        .feed(&publish("a", QoS::ExactlyOnce, 6, &[]))
        .unwrap();
    client
        .feed(&publish("a", QoS::AtLeastOnce, 7, &[]))
        .unwrap();
    client.acknowledge(7, ReasonCode::Success);
    client.acknowledge(6, ReasonCode::QuotaExceeded);
    assert!(client.sent().is_empty());
    client.acknowledge(5, ReasonCode::Success);
    assert_eq!(
        client.sent(),
        [
            "PUBACK 5 Success",
            "PUBREC 6 QuotaExceeded",
            "PUBACK 7 Success"
        ]
    );
    client.acknowledge(5, ReasonCode::Success);
    assert!(client.sent().is_empty(), "once");
    // [MQTT-4.3.3-9] the refused one may come again as new
    assert_eq!(
        client
            .feed(&publish("a", QoS::ExactlyOnce, 6, &[]))
            .unwrap()
            .len(),
        1
    );
}

/// [MQTT-4.3.3-10] across connections, too.
#[test]
fn a_qos_2_message_is_not_delivered_again_after_a_reconnect() {
    let mut client = Client::connected(&[]);
    client
        .feed(&publish("a", QoS::ExactlyOnce, 3, &[]))
        .unwrap();
    client.acknowledge(3, ReasonCode::Success);
    let mut client = client.reconnect(true);
    assert_eq!(
        client
            .feed(&publish("a", QoS::ExactlyOnce, 3, &[]))
            .unwrap(),
        []
    );
    assert_eq!(client.feed(&ack(Packet::PubRel, 3)).unwrap(), []);
    assert_eq!(client.sent(), ["PUBREC 3 Success", "PUBCOMP 3 Success"]);
}

/// Section 3.3.4: a server that exceeds the client's Receive Maximum is disconnected with 0x93.
#[test]
fn the_own_receive_maximum_is_enforced() {
    let properties = block(&[Property::ReceiveMaximum(2)]);
    let mut client = Client::open(&connect(&properties), false, MqttSession::new());
    client.feed(&connack(false, &[])).unwrap();
    client
        .feed(&publish("a", QoS::AtLeastOnce, 1, &[]))
        .unwrap();
    client
        .feed(&publish("a", QoS::ExactlyOnce, 2, &[]))
        .unwrap();
    client.acknowledge(1, ReasonCode::Success);
    client.acknowledge(2, ReasonCode::Success);
    client
        .feed(&publish("a", QoS::AtLeastOnce, 3, &[]))
        .unwrap();
    client.sent();
    let (reason, sent) = client.violation(&publish("a", QoS::AtLeastOnce, 4, &[]));
    assert_eq!(reason, ReasonCode::ReceiveMaximumExceeded);
    assert_eq!(sent, ["DISCONNECT ReceiveMaximumExceeded"]);
}

/// [MQTT-3.1.2-26] [MQTT-3.1.2-27] [MQTT-3.3.2-11] [MQTT-3.3.2-12]: the server's aliases.
#[test]
fn the_servers_aliases_are_resolved() {
    let properties = block(&[Property::TopicAliasMaximum(2)]);
    let mut client = Client::open(&connect(&properties), false, MqttSession::new());
    client.feed(&connack(false, &[])).unwrap();
    let topic_of = |events: Vec<Seen>| match &events[..] {
        [Seen::Message(topic, _)] => topic.clone(),
        other => panic!("{other:?}"),
    };
    let alias = |alias| [Property::TopicAlias(alias)];
    for (topic, expected) in [("one", "one"), ("", "one"), ("two", "two"), ("", "two")] {
        let packet = publish(topic, QoS::AtMostOnce, 0, &alias(2));
        assert_eq!(topic_of(client.feed(&packet).unwrap()), expected);
    }
    let unknown = publish("", QoS::AtMostOnce, 0, &alias(1));
    assert_eq!(client.violation(&unknown).0, ReasonCode::ProtocolError);
    let above = publish("a", QoS::AtMostOnce, 0, &alias(1));
    assert_eq!(
        Client::connected(&[]).violation(&above).0,
        ReasonCode::TopicAliasInvalid
    );
}

/// [MQTT-3.1.2-29] a client that asked for no problem information takes none.
#[test]
fn problem_information_only_when_wanted() {
    let properties = block(&[Property::RequestProblemInformation(false)]);
    let mut client = Client::open(&connect(&properties), false, MqttSession::new());
    client
        .feed(&connack(false, &[Property::ReasonString("fine here")]))
        .unwrap();
    client
        .feed(&publish(
            "a",
            QoS::AtMostOnce,
            0,
            &[Property::UserProperty("a", "b")],
        ))
        .unwrap();
    client.publish("a", QoS::AtLeastOnce, 1).unwrap();
    let text = block(&[Property::ReasonString("not here")]);
    let ack = Ack {
        properties: text.properties(),
        ..Ack::new(id(1), ReasonCode::Success)
    };
    let ack = bytes_of(&Packet::PubAck(ack), Version::V5);
    assert_eq!(client.violation(&ack).0, ReasonCode::ProtocolError);
}

#[test]
fn a_client_takes_no_packets_of_clients() {
    for packet in [
        Packet::PingReq,
        Packet::Connect(connect(&PropertyBuf::new())),
    ] {
        let bytes = bytes_of(&packet, Version::V5);
        assert_eq!(
            Client::connected(&[]).violation(&bytes).0,
            ReasonCode::ProtocolError
        );
    }
    // [MQTT-3.14.2-2]
    let expiry = block(&[Property::SessionExpiryInterval(1)]);
    let end = Disconnect {
        reason: ReasonCode::Success,
        properties: expiry.properties(),
    };
    let end = bytes_of(&Packet::Disconnect(end), Version::V5);
    assert_eq!(
        Client::connected(&[]).violation(&end).0,
        ReasonCode::ProtocolError
    );
    // [MQTT-3.15.1-1] [MQTT-2.1.3-1] flags that must be zero
    let flagged = [0xF1, 0];
    assert_eq!(
        Client::connected(&[]).violation(&flagged).0,
        ReasonCode::MalformedPacket
    );
}
