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
