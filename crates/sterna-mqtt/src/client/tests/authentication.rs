//! Enhanced authentication.

use super::*;

/// [MQTT-4.12.0-5] [MQTT-4.12.0-6] [MQTT-4.12.0-7]: one method from the first packet to the last.
#[test]
fn the_method_stays_the_same() {
    let method = block(&[Property::AuthenticationMethod("M")]);
    let with_method = || Client::open(&connect(&method), false, MqttSession::new());
    let other = [Property::AuthenticationMethod("N")];
    let challenge = auth(ReasonCode::ContinueAuthentication, &other);
    let error = ReasonCode::ProtocolError;
    assert_eq!(with_method().violation(&challenge).0, error);
    assert_eq!(with_method().violation(&connack(false, &other)).0, error);
    assert_eq!(with_method().violation(&connack(false, &[])).0, error);
    let without = || Client::open(&connect(&PropertyBuf::new()), false, MqttSession::new());
    assert_eq!(without().violation(&challenge).0, error);
    assert_eq!(without().violation(&connack(false, &other)).0, error);
    let mut client = Client::connected(&[]);
    let Client {
        connection, out, ..
    } = &mut client;
    assert_eq!(connection.reauthenticate(b"", out), Err(SendError::Closed));
    assert_eq!(connection.authenticate(b"", out), Err(SendError::Closed));
}

/// [MQTT-4.12.1-1] [MQTT-3.15.2-1] re-authentication goes on with the method of the CONNECT.
#[test]
fn a_connection_can_be_authenticated_again() {
    let method = block(&[Property::AuthenticationMethod("M")]);
    let data = [
        Property::AuthenticationMethod("M"),
        Property::AuthenticationData(b"d"),
    ];
    let mut client = Client::open(&connect(&method), false, MqttSession::new());
    client.feed(&connack(false, &data)).unwrap();
    // [MQTT-4.12.0-2] none is due unless the client asks
    let unasked = auth(ReasonCode::Success, &data);
    client
        .connection
        .reauthenticate(b"first", &mut client.out)
        .unwrap();
    assert_eq!(
        client.connection.reauthenticate(b"", &mut client.out),
        Err(SendError::Later)
    );
    client.publish("meanwhile", QoS::AtMostOnce, 1).unwrap();
    let events = client
        .feed(&auth(ReasonCode::ContinueAuthentication, &data))
        .unwrap();
    assert_eq!(events, [Seen::Challenge(b"d".to_vec())]);
    client
        .connection
        .authenticate(b"second", &mut client.out)
        .unwrap();
    assert_eq!(client.feed(&unasked).unwrap(), [Seen::Reauthenticated]);
    assert_eq!(
        client.sent(),
        [
            "AUTH ReAuthenticate",
            "PUBLISH 0 'meanwhile'",
            "AUTH ContinueAuthentication"
        ]
    );
    assert_eq!(client.violation(&unasked).0, ReasonCode::ProtocolError);
}
