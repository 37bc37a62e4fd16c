//! Messages and requests to the server.

use super::*;

/// [MQTT-4.3.1-1] [MQTT-4.3.2-1] [MQTT-4.3.2-2] [MQTT-4.3.2-3] [MQTT-4.3.3-1] [MQTT-4.3.3-2]
/// [MQTT-4.3.3-4] [MQTT-2.2.1-2] [MQTT-2.2.1-3]: the three qualities of service.
#[test]
fn each_qos_has_its_exchange() {
    let mut client = Client::connected(&[]);
    client.publish("a", QoS::AtMostOnce, 1).unwrap();
    client.publish("a", QoS::AtLeastOnce, 2).unwrap();
    client.publish("a", QoS::ExactlyOnce, 3).unwrap();
    assert_eq!(
        client.sent(),
        ["PUBLISH 0 'a'", "PUBLISH 1 'a'", "PUBLISH 2 'a'"]
    );
    assert_eq!(client.session.outgoing_len(), 2);
    let delivered = client.feed(&ack(Packet::PubAck, 1)).unwrap();
    assert_eq!(delivered, [Seen::Delivered(2, ReasonCode::Success)]);
    assert_eq!(
        client.feed(&ack(Packet::PubRec, 2)).unwrap(),
        [Seen::HandedOver(3)]
    );
    assert_eq!(
        client.feed(&ack(Packet::PubRec, 2)).unwrap(),
        [],
        "said before"
    );
    assert_eq!(client.sent(), ["PUBREL 2 Success", "PUBREL 2 Success"]);
    let delivered = client.feed(&ack(Packet::PubComp, 2)).unwrap();
    assert_eq!(delivered, [Seen::Delivered(3, ReasonCode::Success)]);
    assert!(client.session.is_empty());
}

/// [MQTT-4.4.0-2] a refused message is done with.
#[test]
fn refused_messages_are_not_repeated() {
    let mut client = Client::connected(&[]);
    client.publish("a", QoS::AtLeastOnce, 1).unwrap();
    client.publish("a", QoS::ExactlyOnce, 2).unwrap();
    client.sent();
    let no = ReasonCode::QuotaExceeded;
    assert_eq!(
        client.feed(&refusal(Packet::PubAck, 1, no)).unwrap(),
        [Seen::Delivered(1, no)]
    );
    assert_eq!(
        client.feed(&refusal(Packet::PubRec, 2, no)).unwrap(),
        [Seen::Delivered(2, no)]
    );
    assert!(client.sent().is_empty(), "no PUBREL");
    assert!(client.session.is_empty());
}

#[test]
fn answers_to_nothing_are_borne() {
    let mut client = Client::connected(&[]);
    assert_eq!(client.feed(&ack(Packet::PubAck, 7)).unwrap(), []);
    assert_eq!(client.feed(&ack(Packet::PubComp, 7)).unwrap(), []);
    assert_eq!(client.feed(&ack(Packet::PubRec, 7)).unwrap(), []);
    assert_eq!(client.feed(&ack(Packet::PubRel, 7)).unwrap(), []);
    assert_eq!(
        client.sent(),
        [
            "PUBREL 7 PacketIdentifierNotFound",
            "PUBCOMP 7 PacketIdentifierNotFound"
        ]
    );
}

#[test]
fn answers_of_the_wrong_kind_are_not() {
    let wrong = |qos, answer: &[u8]| {
        let mut client = Client::connected(&[]);
        client.publish("a", qos, 1).unwrap();
        client.sent();
        client.violation(answer).0
    };
    let error = ReasonCode::ProtocolError;
    assert_eq!(wrong(QoS::ExactlyOnce, &ack(Packet::PubAck, 1)), error);
    assert_eq!(wrong(QoS::AtLeastOnce, &ack(Packet::PubRec, 1)), error);
    assert_eq!(wrong(QoS::ExactlyOnce, &ack(Packet::PubComp, 1)), error);
    assert_eq!(
        wrong(QoS::AtLeastOnce, &suback(1, &[ReasonCode::Success])),
        error
    );
}

/// [MQTT-4.9.0-1] [MQTT-4.9.0-2] the Receive Maximum holds QoS 1 and 2 back; [MQTT-3.3.4-9]
/// [MQTT-4.9.0-3] it holds nothing else back.
#[test]
fn the_receive_maximum_is_kept() {
    let mut client = Client::connected(&[Property::ReceiveMaximum(2)]);
    client.publish("a", QoS::AtLeastOnce, 1).unwrap();
    client.publish("a", QoS::ExactlyOnce, 2).unwrap();
    assert_eq!(
        client.publish("a", QoS::AtLeastOnce, 3),
        Err(SendError::Later)
    );
    client.publish("a", QoS::AtMostOnce, 4).unwrap();
    client.subscribe(&["a"], 5).unwrap();
    client
        .feed(&publish("b", QoS::AtLeastOnce, 1, &[]))
        .unwrap();
    client.acknowledge(1, ReasonCode::Success);
    // A PUBREC frees nothing, a PUBCOMP does.
    client.feed(&ack(Packet::PubRec, 2)).unwrap();
    assert_eq!(
        client.publish("a", QoS::AtLeastOnce, 3),
        Err(SendError::Later)
    );
    client.feed(&ack(Packet::PubComp, 2)).unwrap();
    client.publish("a", QoS::AtLeastOnce, 3).unwrap();
    assert_eq!(
        client.publish("a", QoS::AtLeastOnce, 6),
        Err(SendError::Later)
    );
}

/// [MQTT-4.9.0-2] also for repeated packets.
#[test]
fn the_receive_maximum_holds_for_repetitions() {
    let mut client = Client::connected(&[]);
    for tag in 1..=3 {
        client.publish("a", QoS::AtLeastOnce, tag).unwrap();
    }
    let mut client = Client::open(&connect(&PropertyBuf::new()), true, client.session);
    client
        .feed(&connack(true, &[Property::ReceiveMaximum(2)]))
        .unwrap();
    assert_eq!(client.resend_all(), [1, 2]);
    client.feed(&ack(Packet::PubAck, 1)).unwrap();
    assert_eq!(client.resend_all(), [3]);
}

/// [MQTT-3.2.2-11] [MQTT-3.2.2-14] [MQTT-3.2.2-15] [MQTT-3.2.2-21]: packets that the server does
/// not support are not sent.
#[test]
fn the_servers_limits_are_kept() {
    let mut client = Client::connected(&[
        Property::MaximumQoS(1),
        Property::RetainAvailable(false),
        Property::MaximumPacketSize(20),
        Property::WildcardSubscriptionAvailable(false),
        Property::SubscriptionIdentifierAvailable(false),
        Property::SharedSubscriptionAvailable(false),
    ]);
    let unsupported = |reason| Err(SendError::Unsupported(reason));
    assert_eq!(
        client.publish("a", QoS::ExactlyOnce, 1),
        unsupported(ReasonCode::QoSNotSupported)
    );
    let retained = Publication {
        retain: true,
        ..message("a", QoS::AtMostOnce)
    };
    assert_eq!(
        client.send(&retained, 1),
        unsupported(ReasonCode::RetainNotSupported)
    );
    let large = Publication {
        payload: &[0; 20],
        ..message("a", QoS::AtLeastOnce)
    };
    assert!(matches!(client.send(&large, 1), Err(SendError::Encode(_))));
    assert!(client.session.is_empty(), "the identifier is free again");
    assert_eq!(
        client.subscribe(&["a/+"], 1),
        Err(SendError::Unsupported(
            ReasonCode::WildcardSubscriptionsNotSupported
        ))
    );
    assert_eq!(
        client.subscribe(&["$share/g/a"], 1),
        Err(SendError::Unsupported(
            ReasonCode::SharedSubscriptionsNotSupported
        ))
    );
    assert!(matches!(
        client.subscribe(&["a long topic filter"], 1),
        Err(SendError::Encode(_))
    ));
    let identifier = block(&[Property::SubscriptionIdentifier(1)]);
    let options = SubscribeOptions::default();
    let filters = std::iter::once(("a", options));
    let asked = client.connection.subscribe(
        &mut client.session,
        filters,
        identifier.properties(),
        1,
        &mut client.out,
    );
    let refused = SendError::Unsupported(ReasonCode::SubscriptionIdentifiersNotSupported);
    assert_eq!(asked, Err(refused));
    assert!(client.out.is_empty());
    client.subscribe(&["a"], 1).unwrap();
}

/// [MQTT-3.3.2-9] [MQTT-3.2.2-17] [MQTT-3.2.2-18] [MQTT-3.3.2-10]: aliases up to the server's
/// maximum, new on each connection.
#[test]
fn topics_that_repeat_get_an_alias() {
    let mut client = Client::connected(&[Property::TopicAliasMaximum(1)]);
    for _ in 0..3 {
        client.publish("one/topic", QoS::AtMostOnce, 0).unwrap();
    }
    for _ in 0..2 {
        client.publish("another/topic", QoS::AtMostOnce, 0).unwrap();
    }
    assert_eq!(
        client.sent(),
        [
            "PUBLISH 0 'one/topic'",
            "PUBLISH 0 'one/topic' alias 1",
            "PUBLISH 0 '' alias 1",
            "PUBLISH 0 'another/topic'",
            "PUBLISH 0 'another/topic'",
        ]
    );
    let lane = Lane(4);
    let again = message("one/topic", QoS::AtMostOnce);
    let sent = client
        .connection
        .publish(&mut client.session, lane, &again, 0, &mut client.out);
    sent.unwrap();
    assert_eq!(
        client.sent(),
        ["PUBLISH 0 'one/topic'"],
        "no aliases on other streams"
    );

    let mut client = client.reconnect(true);
    client.publish("one/topic", QoS::AtMostOnce, 0).unwrap();
    assert_eq!(client.sent(), ["PUBLISH 0 'one/topic'"]);
}

/// [MQTT-3.3.4-6] [MQTT-3.3.2-2] [MQTT-3.8.3-2] [MQTT-3.8.3-4] [MQTT-3.10.3-2] [MQTT-4.7.1-1]:
/// invalid packets are not sent.
#[test]
fn invalid_packets_are_not_sent() {
    let mut client = Client::connected(&[Property::TopicAliasMaximum(5)]);
    let invalid = |result: Result<(), SendError>| {
        assert!(matches!(result, Err(SendError::Invalid(_))), "{result:?}");
    };
    invalid(client.publish("a/+", QoS::AtMostOnce, 1));
    invalid(client.publish("", QoS::AtMostOnce, 1));
    for property in [Property::SubscriptionIdentifier(1), Property::TopicAlias(1)] {
        let properties = block(&[property]);
        let properties = properties.properties();
        invalid(client.send(
            &Publication {
                properties,
                ..message("a", QoS::AtLeastOnce)
            },
            1,
        ));
    }
    invalid(client.subscribe(&[], 1).map(|_| ()));
    invalid(client.subscribe(&["a#"], 1).map(|_| ()));
    let none = Properties::EMPTY;
    let no_local = SubscribeOptions {
        no_local: true,
        ..SubscribeOptions::default()
    };
    let shared = std::iter::once(("$share/g/a", no_local));
    let Client {
        connection,
        session,
        out,
    } = &mut client;
    invalid(
        connection
            .subscribe(session, shared, none, 1, out)
            .map(|_| ()),
    );
    let nothing = std::iter::empty();
    invalid(
        connection
            .unsubscribe(session, nothing, none, 1, out)
            .map(|_| ()),
    );
    assert!(client.out.is_empty() && client.session.is_empty());
}

/// [MQTT-3.8.4-2] [MQTT-3.8.4-6] [MQTT-2.2.1-6]: each answer belongs to its request and has all
/// codes.
#[test]
fn requests_get_their_answers() {
    let mut client = Client::connected(&[]);
    client.subscribe(&["a", "b"], 10).unwrap();
    let none = Properties::EMPTY;
    let filters = std::iter::once("a");
    let Client {
        connection,
        session,
        out,
    } = &mut client;
    connection
        .unsubscribe(session, filters, none, 11, out)
        .unwrap();
    assert_eq!(client.sent(), ["SUBSCRIBE 1", "UNSUBSCRIBE 2"]);
    let codes = [ReasonCode::GrantedQoS1, ReasonCode::NotAuthorized];
    assert_eq!(
        client.feed(&suback(1, &codes)).unwrap(),
        [Seen::Subscribed(10, codes.to_vec())]
    );
    let codes = [ReasonCode::NoSubscriptionExisted];
    let events = client.feed(&unsuback(2, &codes)).unwrap();
    assert_eq!(events, [Seen::Unsubscribed(11, codes.to_vec())]);

    client.subscribe(&["a", "b"], 12).unwrap();
    client.sent();
    let (reason, sent) = client.violation(&suback(3, &[ReasonCode::Success]));
    assert_eq!(
        (reason, sent),
        (
            ReasonCode::ProtocolError,
            vec!["DISCONNECT ProtocolError".into()]
        )
    );
}
