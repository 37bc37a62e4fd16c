//! Ends of connections.

use super::*;

/// [MQTT-3.14.4-1] after DISCONNECT nothing more is sent.
#[test]
fn disconnect_is_the_last_packet() {
    let mut client = Client::connected(&[]);
    let end = Disconnect::new(ReasonCode::DisconnectWithWill);
    client.connection.disconnect(&end, &mut client.out).unwrap();
    assert_eq!(client.sent(), ["DISCONNECT DisconnectWithWill"]);
    assert_eq!(
        client.publish("a", QoS::AtMostOnce, 1),
        Err(SendError::Closed)
    );
    assert_eq!(client.subscribe(&["a"], 1), Err(SendError::Closed));
    assert_eq!(
        client.connection.disconnect(&end, &mut client.out),
        Err(SendError::Closed)
    );
    client.acknowledge(1, ReasonCode::Success);
    let broken = client.feed(&connack(false, &[])).unwrap_err();
    client.connection.violation(&broken, &mut client.out);
    assert!(client.out.is_empty());
}

/// Section 3.14.2.2.2: no expiry where the CONNECT had none. [MQTT-3.14.2-3] [MQTT-3.14.2-4] and no
/// text where the server has no room for it.
#[test]
fn disconnect_says_what_it_may() {
    let mut client = Client::connected(&[Property::MaximumPacketSize(10)]);
    let expiry = block(&[Property::SessionExpiryInterval(60)]);
    let end = Disconnect {
        reason: ReasonCode::Success,
        properties: expiry.properties(),
    };
    let refused = client.connection.disconnect(&end, &mut client.out);
    assert!(matches!(refused, Err(SendError::Invalid(_))));
    let text = block(&[Property::ReasonString("a text that does not fit")]);
    let end = Disconnect {
        reason: ReasonCode::QuotaExceeded,
        properties: text.properties(),
    };
    client.connection.disconnect(&end, &mut client.out).unwrap();
    assert_eq!(&client.out[..], [0xE0, 1, 0x97]);
}

#[test]
fn the_servers_disconnect_is_told() {
    let mut client = Client::connected(&[]);
    let taken = Disconnect::new(ReasonCode::SessionTakenOver);
    let events = client
        .feed(&bytes_of(&Packet::Disconnect(taken), Version::V5))
        .unwrap();
    assert_eq!(events, [Seen::Disconnected(ReasonCode::SessionTakenOver)]);
    assert!(client.connection.is_closed());
}

/// Older versions have no DISCONNECT with a reason: the close must do.
#[test]
fn older_versions_close_without_a_word() {
    let none = PropertyBuf::new();
    let old = Connect {
        version: Version::V311,
        ..connect(&none)
    };
    let mut client = Client::open(&old, false, MqttSession::new());
    let (_, sent) = client.violation(&bytes_of(&Packet::PingResp, Version::V311));
    assert!(sent.is_empty());
}
