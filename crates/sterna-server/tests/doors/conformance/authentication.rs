//! Authentication.

use sterna_mqtt::packet::{Auth, Connect};
use sterna_mqtt::{Packet, Properties, Property, PropertyBuf, QoS, ReasonCode};
use sterna_net::TransportKind;
use sterna_server::config::{Config, Rule};

use crate::conformance::{V5, password_config};
use crate::fixture::{Broker, Peer, block, describe, plain};

fn auth_block(data: &[u8]) -> PropertyBuf {
    block(&[
        Property::AuthenticationMethod("SCRAM-SHA-256"),
        Property::AuthenticationData(data),
    ])
}

fn heard_data(broker: &mut Broker, peer: Peer) -> (String, Vec<u8>) {
    let mut heard = broker.packets(peer, V5, |packet| match packet {
        Packet::Auth(auth) => {
            // [MQTT-4.12.0-2] [MQTT-4.12.0-3] [MQTT-4.12.0-5]
            assert_eq!(
                auth.properties.authentication_method(),
                Some("SCRAM-SHA-256")
            );
            (
                describe(packet),
                auth.properties
                    .authentication_data()
                    .unwrap_or_default()
                    .to_vec(),
            )
        }
        Packet::ConnAck(connack) => (
            describe(packet),
            connack
                .properties
                .authentication_data()
                .unwrap_or_default()
                .to_vec(),
        ),
        other => panic!("{other:?}"),
    });
    assert_eq!(heard.len(), 1);
    heard.remove(0)
}

/// [MQTT-4.12.0-2] [MQTT-4.12.0-3] [MQTT-4.12.0-5] [MQTT-4.12.1-1] [MQTT-3.15.2-1] [MQTT-3.1.2-30]
#[test]
fn scram_authenticates_and_reauthenticates() {
    let (_directory, config) = password_config();
    let mut broker = Broker::with(&config, 1);
    let nonce = sterna_auth::Nonce::from_random([1; 18]);
    let (client, first) = sterna_auth::ScramClient::start("ann", "secret", &nonce).expect("starts");
    let properties = auth_block(first.as_bytes());
    let peer = broker.open();
    let connect = Connect {
        properties: properties.properties(),
        ..plain(V5, "x")
    };
    broker.packet(peer, V5, &Packet::Connect(connect));
    let (said, challenge) = heard_data(&mut broker, peer);
    assert_eq!(said, "AUTH Continue authentication");
    let (client, proof) = client.challenge(&challenge).expect("a challenge");
    let properties = auth_block(proof.as_bytes());
    let reason = ReasonCode::ContinueAuthentication;
    let auth = Auth {
        reason,
        properties: properties.properties(),
    };
    broker.packet(peer, V5, &Packet::Auth(auth));
    let (said, last) = heard_data(&mut broker, peer);
    assert_eq!(said, "CONNACK Success");
    client.verify(&last).expect("the server proved itself");

    // Again on the same connection, which goes on meanwhile.
    let nonce = sterna_auth::Nonce::from_random([2; 18]);
    let (client, first) = sterna_auth::ScramClient::start("ann", "secret", &nonce).expect("starts");
    let properties = auth_block(first.as_bytes());
    let reason = ReasonCode::ReAuthenticate;
    broker.packet(
        peer,
        V5,
        &Packet::Auth(Auth {
            reason,
            properties: properties.properties(),
        }),
    );
    let (_, challenge) = heard_data(&mut broker, peer);
    broker.send(peer, &[0xC0, 0]);
    assert_eq!(broker.told(peer, V5), ["PINGRESP"]);
    let (_, proof) = client.challenge(&challenge).expect("a challenge");
    let properties = auth_block(proof.as_bytes());
    let reason = ReasonCode::ContinueAuthentication;
    broker.packet(
        peer,
        V5,
        &Packet::Auth(Auth {
            reason,
            properties: properties.properties(),
        }),
    );
    assert_eq!(heard_data(&mut broker, peer).0, "AUTH Success");

    // [MQTT-4.12.1-2] a re-authentication that fails ends the connection
    let properties = auth_block(b"n,,n=ann");
    let reason = ReasonCode::ReAuthenticate;
    broker.packet(
        peer,
        V5,
        &Packet::Auth(Auth {
            reason,
            properties: properties.properties(),
        }),
    );
    assert_eq!(broker.told(peer, V5), ["DISCONNECT Not authorized"]);
    assert!(broker.is_closed(peer));
}

/// [MQTT-4.12.0-1] [MQTT-4.12.0-4] [MQTT-4.12.0-6] [MQTT-4.12.0-7]
#[test]
fn a_method_that_is_not_served_or_fails_is_refused() {
    let (_directory, config) = password_config();
    let mut broker = Broker::with(&config, 1);
    let unknown = block(&[Property::AuthenticationMethod("KERBEROS")]);
    let garbage = auth_block(b"garbage");
    for (properties, said) in [
        (unknown.properties(), "CONNACK Bad authentication method"),
        (garbage.properties(), "CONNACK Not authorized"),
    ] {
        let peer = broker.open();
        broker.packet(
            peer,
            V5,
            &Packet::Connect(Connect {
                properties,
                ..plain(V5, "x")
            }),
        );
        assert_eq!(broker.told(peer, V5), [said]);
        assert!(broker.is_closed(peer));
    }
    // AUTH out of the blue
    let mut broker = Broker::new();
    let peer = broker.client(V5, "x");
    let auth = Auth {
        reason: ReasonCode::ReAuthenticate,
        properties: Properties::EMPTY,
    };
    broker.packet(peer, V5, &Packet::Auth(auth));
    assert_eq!(broker.told(peer, V5), ["DISCONNECT Protocol Error"]);
}

#[test]
fn a_client_certificate_names_the_user_where_that_is_set() {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::new(vec!["x".to_owned()]).expect("parameters");
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "device-7");
    let certificate: Box<[u8]> = params
        .self_signed(&key)
        .expect("a certificate")
        .der()
        .as_ref()
        .into();
    let mut config = Config::default();
    config.tls.certificate_as_username = true;
    config.authentication.anonymous = Some(false);
    config.authorization.default_allow = false;
    config.authorization.rules = vec![Rule {
        users: vec!["*".to_owned()],
        topics: vec!["%u/#".to_owned()],
        ..Rule::default()
    }];
    let mut broker = Broker::with(&config, 1);
    let peer = broker.open_on(0, TransportKind::Tls, vec![certificate]);
    broker.packet(peer, V5, &Packet::Connect(plain(V5, "x")));
    assert_eq!(broker.told(peer, V5), ["CONNACK Success"]);
    broker.publish(peer, V5, "device-7/t", "x", QoS::AtLeastOnce);
    broker.publish(peer, V5, "device-8/t", "x", QoS::AtLeastOnce);
    assert_eq!(
        broker.told(peer, V5),
        [
            "PUBACK 7 No matching subscribers",
            "PUBACK 7 Not authorized"
        ]
    );
    let stranger = broker.open();
    broker.packet(stranger, V5, &Packet::Connect(plain(V5, "y")));
    assert_eq!(broker.told(stranger, V5), ["CONNACK Not authorized"]);
}
