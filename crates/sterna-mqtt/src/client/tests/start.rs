//! From CONNECT to CONNACK.

use super::*;

/// Section 3.1.4: a client need not wait for the CONNACK.
#[test]
fn requests_and_messages_leave_with_the_connect() {
    let mut client = Client::open(&connect(&PropertyBuf::new()), false, MqttSession::new());
    client.subscribe(&["a/#"], 1).unwrap();
    client.publish("a", QoS::AtLeastOnce, 2).unwrap();
    client.publish("a", QoS::AtMostOnce, 3).unwrap();
    assert_eq!(
        client.sent(),
        ["SUBSCRIBE 1", "PUBLISH 2 'a'", "PUBLISH 0 'a'"]
    );
    let mut answer = connack(false, &[]);
    answer.extend_from_slice(&suback(1, &[ReasonCode::GrantedQoS2]));
    answer.extend_from_slice(&ack(Packet::PubAck, 2));
    assert_eq!(
        client.feed(&answer).unwrap(),
        [
            Seen::Connected {
                session_present: false
            },
            Seen::Subscribed(1, vec![ReasonCode::GrantedQoS2]),
            Seen::Delivered(2, ReasonCode::Success),
        ]
    );
}

/// Little is sent before the server is known.
#[test]
fn early_messages_are_few_and_small() {
    let mut client = Client::open(&connect(&PropertyBuf::new()), false, MqttSession::new());
    for tag in 0..u64::from(EARLY_PUBLISHES) {
        client.publish("a", QoS::AtLeastOnce, tag).unwrap();
    }
    assert_eq!(
        client.publish("a", QoS::AtLeastOnce, 99),
        Err(SendError::Later)
    );
    let payload = [0; EARLY_BYTES];
    let large = Publication {
        payload: &payload,
        ..message("a", QoS::AtMostOnce)
    };
    assert_eq!(client.send(&large, 0), Err(SendError::Later));
    while client.publish("a", QoS::AtMostOnce, 0).is_ok() {}
    assert!(client.out.len() <= EARLY_BYTES);
    assert_eq!(client.subscribe(&["a"], 1), Err(SendError::Later));
    client.feed(&connack(false, &[])).unwrap();
    client.send(&large, 0).unwrap();
}

/// [MQTT-3.1.2-30] with an authentication method nothing leaves before the CONNACK.
#[test]
fn nothing_is_early_when_there_is_a_method() {
    let properties = block(&[Property::AuthenticationMethod("M")]);
    let mut client = Client::open(&connect(&properties), false, MqttSession::new());
    assert_eq!(
        client.publish("a", QoS::AtMostOnce, 1),
        Err(SendError::Later)
    );
    assert_eq!(client.subscribe(&["a"], 1), Err(SendError::Later));
    let data = [
        Property::AuthenticationMethod("M"),
        Property::AuthenticationData(b"1"),
    ];
    let events = client
        .feed(&auth(ReasonCode::ContinueAuthentication, &data))
        .unwrap();
    assert_eq!(events, [Seen::Challenge(b"1".to_vec())]);
    assert_eq!(
        client.publish("a", QoS::AtMostOnce, 1),
        Err(SendError::Later)
    );
    client
        .connection
        .authenticate(b"2", &mut client.out)
        .unwrap();
    assert_eq!(client.sent(), ["AUTH ContinueAuthentication"]);
    client
        .feed(&connack(false, &[Property::AuthenticationMethod("M")]))
        .unwrap();
    client.publish("a", QoS::AtMostOnce, 1).unwrap();
}

#[test]
fn a_refusal_ends_the_connection() {
    let mut client = Client::open(&connect(&PropertyBuf::new()), false, MqttSession::new());
    client.publish("a", QoS::AtLeastOnce, 7).unwrap();
    let refused = ConnAck {
        session_present: false,
        reason: ReasonCode::NotAuthorized,
        properties: Properties::EMPTY,
    };
    let events = client
        .feed(&bytes_of(&Packet::ConnAck(refused), Version::V5))
        .unwrap();
    assert_eq!(events, [Seen::Refused(ReasonCode::NotAuthorized)]);
    assert!(client.connection.is_closed());
    assert_eq!(
        client.publish("a", QoS::AtMostOnce, 1),
        Err(SendError::Closed)
    );
    assert_eq!(
        client.session.outgoing_len(),
        1,
        "the early message waits for another connection"
    );
}

/// [MQTT-3.2.0-1] the CONNACK is the server's first packet.
#[test]
fn nothing_may_precede_the_connack() {
    let fresh = || Client::open(&connect(&PropertyBuf::new()), false, MqttSession::new());
    let early = publish("a", QoS::AtMostOnce, 0, &[]);
    assert_eq!(fresh().violation(&early).0, ReasonCode::ProtocolError);
    // [MQTT-3.14.0-1]
    let end = bytes_of(
        &Packet::Disconnect(Disconnect::new(ReasonCode::Success)),
        Version::V5,
    );
    assert_eq!(fresh().violation(&end).0, ReasonCode::ProtocolError);
    // [MQTT-3.2.0-2] and it comes once
    let twice = connack(false, &[]);
    let (reason, sent) = Client::connected(&[]).violation(&twice);
    assert_eq!(
        (reason, sent),
        (
            ReasonCode::ProtocolError,
            vec!["DISCONNECT ProtocolError".into()]
        )
    );
}

/// Early packets keep within the server's earlier limits.
#[test]
fn early_messages_keep_within_what_is_known() {
    let none = PropertyBuf::new();
    let known = ServerLimits {
        receive_maximum: 1,
        retain: false,
        ..ServerLimits::EARLY
    };
    let (mut session, mut out) = (MqttSession::new(), BytesMut::new());
    let connection = Connection::open(
        &connect(&none),
        false,
        known,
        &mut session,
        NOW_MS,
        &mut out,
    )
    .unwrap();
    out.clear();
    let mut client = Client {
        connection,
        session,
        out,
    };
    assert!(!client.connection.has_sent_early());
    client.publish("a", QoS::AtLeastOnce, 1).unwrap();
    assert!(client.connection.has_sent_early());
    assert_eq!(
        client.publish("a", QoS::AtLeastOnce, 2),
        Err(SendError::Later)
    );
    let retained = Publication {
        retain: true,
        ..message("a", QoS::AtMostOnce)
    };
    assert_eq!(
        client.send(&retained, 3),
        Err(SendError::Later),
        "it may take it this time"
    );
    client.feed(&connack(false, &[])).unwrap();
    client.send(&retained, 3).unwrap();
}
