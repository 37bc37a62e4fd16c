//! CONNECT and CONNACK.

use sterna_mqtt::packet::{Connect, Disconnect, SubscribeOptions, Will};
use sterna_mqtt::{Packet, Properties, Property, PublishProperties, QoS, ReasonCode};
use sterna_net::{StreamId, TransportKind};
use sterna_server::config::Config;

use crate::conformance::{V5, V311, expiring, password_config, persistent, will};
use crate::fixture::{Broker, block, encode, plain, publish};

/// [MQTT-3.1.0-1] [MQTT-3.1.4-1] [MQTT311-3.1.0-1] [MQTT311-3.1.4-1]
#[test]
fn the_first_packet_is_connect_or_the_connection_is_closed() {
    let mut broker = Broker::new();
    for packet in [
        &[0xC0u8, 0][..],
        &[0x30, 5, 0, 1, b'a', b'x', b'y'],
        &[0x10, 3, 0, 0, 0],
        b"GET / HTTP/1.1\r\n",
    ] {
        let peer = broker.open();
        broker.send(peer, packet);
        assert!(broker.is_closed(peer), "{packet:02x?}");
        assert_eq!(broker.take(peer), b"", "{packet:02x?}");
    }
}

/// [MQTT-3.1.0-2] [MQTT311-3.1.0-2] [MQTT-4.13.1-1] [MQTT-4.13.2-1]
#[test]
fn a_second_connect_is_a_protocol_error() {
    let mut broker = Broker::new();
    for (version, said) in [(V311, vec![]), (V5, vec!["DISCONNECT Protocol Error"])] {
        let peer = broker.client(version, "twice");
        broker.packet(peer, version, &Packet::Connect(plain(version, "twice")));
        assert_eq!(broker.told(peer, version), said);
        assert!(broker.is_closed(peer));
    }
}

/// [MQTT-3.1.2-1] [MQTT-3.1.2-2] [MQTT311-3.1.2-1] [MQTT311-3.1.2-2]
#[test]
fn an_unknown_protocol_is_refused_in_words_that_its_client_understands() {
    let mut broker = Broker::new();
    let mut name = |protocol: &[u8], level: u8| {
        let mut packet = vec![0x10, 0, 0, protocol.len() as u8];
        packet.extend_from_slice(protocol);
        packet.extend_from_slice(&[level, 2, 0, 60, 0, 1, b'x']);
        packet[1] = packet.len() as u8 - 2;
        let peer = broker.open();
        broker.send(peer, &packet);
        assert!(broker.is_closed(peer));
        broker.take(peer)
    };
    assert_eq!(name(b"MQTX", 4), b"");
    assert_eq!(name(b"MQTT", 3), [0x20, 2, 0, 1]);
    for level in [6, 9, 0x7f] {
        assert_eq!(name(b"MQTT", level), [0x20, 2, 0, 1], "level {level}");
    }
}

/// [MQTT-3.1.3-2] [MQTT-3.1.3-3] [MQTT-3.1.3-4] [MQTT-3.1.3-6] [MQTT-3.1.3-7] [MQTT311-3.1.3-2]
/// [MQTT311-3.1.3-3] [MQTT311-3.1.3-4] [MQTT311-3.1.3-5] [MQTT311-3.1.3-6]
#[test]
fn client_identifiers_of_23_letters_and_digits_are_taken_and_empty_ones_are_assigned() {
    let mut broker = Broker::new();
    broker.client(V5, "0123456789abcdefghijABC");
    broker.client(V311, "x");
    let peer = broker.open();
    broker.packet(peer, V5, &Packet::Connect(plain(V5, "")));
    let assigned = broker.packets(peer, V5, |packet| match packet {
        Packet::ConnAck(connack) => connack.assigned_client_id().map(str::to_owned),
        _ => None,
    });
    let first = assigned[0].clone().expect("an identifier");
    let other = broker.open();
    broker.packet(other, V5, &Packet::Connect(plain(V5, "")));
    let assigned = broker.packets(other, V5, |packet| match packet {
        Packet::ConnAck(connack) => connack.assigned_client_id().map(str::to_owned),
        _ => None,
    });
    assert_ne!(
        assigned[0].as_ref(),
        Some(&first),
        "the identifier is unique"
    );
    let old = broker.open();
    broker.packet(old, V311, &Packet::Connect(plain(V311, "")));
    assert_eq!(broker.told(old, V311), ["CONNACK Success"]);
}

/// [MQTT-3.1.3-5] [MQTT-3.1.3-8] [MQTT-3.2.2-7] [MQTT-3.2.2-8] [MQTT311-3.1.3-8] [MQTT311-3.1.3-9]
/// [MQTT311-3.2.2-5]
#[test]
fn an_identifier_that_is_not_accepted_is_refused_with_its_reason_and_a_close() {
    let mut broker = Broker::new();
    let peer = broker.open();
    let connect = Connect {
        clean_start: false,
        ..plain(V311, "")
    };
    broker.packet(peer, V311, &Packet::Connect(connect));
    assert_eq!(broker.take(peer), [0x20, 2, 0, 2]);
    assert!(broker.is_closed(peer));
    let long = "x".repeat(300);
    let peer = broker.open();
    broker.packet(peer, V5, &Packet::Connect(plain(V5, &long)));
    assert_eq!(
        broker.told(peer, V5),
        ["CONNACK Client Identifier not valid"]
    );
    assert!(broker.is_closed(peer));
}

/// [MQTT-3.1.2-4] [MQTT-3.1.2-5] [MQTT-3.1.2-23] [MQTT-3.1.4-4] [MQTT-3.2.2-2] [MQTT-3.2.2-3]
/// [MQTT-4.1.0-1] [MQTT-4.1.0-2] [MQTT-4.5.0-1]
#[test]
fn a_session_is_resumed_discarded_or_expired_as_its_client_asked() {
    let mut broker = Broker::new();
    let properties = expiring(100);
    let peer = broker.client_with(V5, &persistent("keeper", &properties, true));
    broker.subscribe(peer, V5, "a/#", QoS::AtLeastOnce);
    broker.cut(peer);
    let publisher = broker.client(V5, "p");
    broker.publish(publisher, V5, "a/b", "kept", QoS::AtLeastOnce);
    // Resumed, with what came meanwhile.
    let peer = broker.open();
    broker.packet(
        peer,
        V5,
        &Packet::Connect(persistent("keeper", &properties, false)),
    );
    assert_eq!(
        broker.told(peer, V5),
        ["CONNACK Success present", "PUBLISH1 a/b=kept"]
    );
    // Not acknowledged, so it comes again, marked.
    broker.cut(peer);
    let peer = broker.open();
    broker.packet(
        peer,
        V5,
        &Packet::Connect(persistent("keeper", &properties, false)),
    );
    assert_eq!(
        broker.told(peer, V5),
        ["CONNACK Success present", "PUBLISH1 dup a/b=kept"]
    );
    // Discarded by a clean start.
    broker.cut(peer);
    let peer = broker.open();
    broker.packet(
        peer,
        V5,
        &Packet::Connect(persistent("keeper", &properties, true)),
    );
    assert_eq!(broker.told(peer, V5), ["CONNACK Success"]);
    // Gone when its time is over.
    broker.cut(peer);
    broker.advance(101_000);
    let peer = broker.open();
    broker.packet(
        peer,
        V5,
        &Packet::Connect(persistent("keeper", &properties, false)),
    );
    assert_eq!(broker.told(peer, V5), ["CONNACK Success"]);
}

/// [MQTT311-3.1.2-4] [MQTT311-3.1.2-5] [MQTT311-3.1.2-6] [MQTT311-3.1.2-7] [MQTT311-3.2.2-1]
/// [MQTT311-3.2.2-2] [MQTT311-3.2.2-3] [MQTT311-4.5.0-1]
#[test]
fn a_clean_session_of_3_1_1_is_forgotten_and_another_is_kept() {
    let mut broker = Broker::new();
    let connect = Connect {
        clean_start: false,
        ..plain(V311, "old")
    };
    let peer = broker.client_with(V311, &connect);
    broker.subscribe(peer, V311, "a", QoS::AtLeastOnce);
    broker.cut(peer);
    let publisher = broker.client(V311, "p");
    broker.publish(publisher, V311, "a", "1", QoS::AtLeastOnce);
    let peer = broker.open();
    broker.packet(peer, V311, &Packet::Connect(connect));
    assert_eq!(
        broker.told(peer, V311),
        ["CONNACK Success present", "PUBLISH1 a=1"]
    );
    broker.cut(peer);
    // A clean session discards the one that was kept, and is itself forgotten at its end.
    let peer = broker.client(V311, "old");
    broker.subscribe(peer, V311, "a", QoS::AtLeastOnce);
    broker.cut(peer);
    let peer = broker.open();
    broker.packet(peer, V311, &Packet::Connect(connect));
    assert_eq!(broker.told(peer, V311), ["CONNACK Success"]);
}

/// [MQTT-3.1.4-3] [MQTT-3.1.4-5] [MQTT311-3.1.4-2] [MQTT311-3.1.4-4]
#[test]
fn a_second_connection_takes_the_session_over_on_any_shard() {
    let mut broker = Broker::with(&Config::default(), 2);
    let first = broker.client(V5, "same");
    broker.subscribe(first, V5, "a", QoS::AtMostOnce);
    let second = broker.open_on(1, TransportKind::Tcp, Vec::new());
    let connect = Connect {
        clean_start: false,
        ..plain(V5, "same")
    };
    broker.packet(second, V5, &Packet::Connect(connect));
    assert_eq!(broker.told(first, V5), ["DISCONNECT Session taken over"]);
    assert!(broker.is_closed(first));
    assert!(broker.told(second, V5)[0].starts_with("CONNACK Success"));
    let older = broker.client(V311, "old");
    broker.client(V311, "old");
    assert_eq!(broker.take(older), b"");
    assert!(broker.is_closed(older));
}

/// [MQTT-3.1.4-6] [MQTT311-3.1.4-5] [MQTT-3.1.4-2] [MQTT311-3.1.4-3]
#[test]
fn what_follows_a_refused_connect_is_not_processed() {
    let (_directory, config) = password_config();
    let mut broker = Broker::with(&config, 1);
    let mut watch = plain(V5, "watch");
    watch.user_name = Some("ann");
    watch.password = Some(b"secret");
    let watcher = broker.open();
    broker.packet(watcher, V5, &Packet::Connect(watch));
    broker.await_verdicts();
    assert_eq!(broker.told(watcher, V5), ["CONNACK Success"]);
    broker.subscribe(watcher, V5, "#", QoS::AtMostOnce);
    let mut wrong = plain(V5, "wrong");
    wrong.user_name = Some("ann");
    wrong.password = Some(b"guess");
    let peer = broker.open();
    let mut flight = encode(V5, &Packet::Connect(wrong));
    flight.extend_from_slice(&encode(
        V5,
        &Packet::Publish(publish("a", "x", QoS::AtMostOnce)),
    ));
    broker.send(peer, &flight);
    broker.await_verdicts();
    assert_eq!(broker.told(peer, V5), ["CONNACK Bad User Name or Password"]);
    assert!(broker.is_closed(peer));
    let nobody = broker.open();
    broker.packet(nobody, V5, &Packet::Connect(plain(V5, "nobody")));
    assert_eq!(broker.told(nobody, V5), ["CONNACK Not authorized"]);
    assert_eq!(broker.told(watcher, V5), [""; 0], "nothing was published");
    // The right password lets the same flight through, its end included.
    let mut right = plain(V5, "right");
    right.user_name = Some("ann");
    right.password = Some(b"secret");
    let peer = broker.open();
    let mut flight = encode(V5, &Packet::Connect(right));
    flight.extend_from_slice(&encode(
        V5,
        &Packet::Publish(publish("a", "x", QoS::AtLeastOnce)),
    ));
    flight.extend_from_slice(&encode(
        V5,
        &Packet::Disconnect(Disconnect::new(ReasonCode::Success)),
    ));
    broker.send(peer, &flight);
    broker.finish(peer, StreamId::FIRST);
    broker.await_verdicts();
    assert_eq!(
        broker.told(peer, V5),
        ["CONNACK Success", "PUBACK 7 Success"]
    );
    assert_eq!(broker.told(watcher, V5), ["PUBLISH0 a=x"]);
}

/// [MQTT-3.2.0-1] [MQTT-3.2.0-2] [MQTT311-3.2.0-1]
#[test]
fn connack_comes_first_and_once() {
    let mut broker = Broker::new();
    let retained = broker.client(V5, "p");
    let mut packet = publish("r", "kept", QoS::AtMostOnce);
    packet.retain = true;
    broker.packet(retained, V5, &Packet::Publish(packet));
    let peer = broker.open();
    let mut flight = encode(V5, &Packet::Connect(plain(V5, "x")));
    flight.extend_from_slice(&[0x82, 7, 0, 1, 0, 0, 1, b'r', 0]);
    broker.send(peer, &flight);
    let told = broker.told(peer, V5);
    assert_eq!(
        told,
        ["CONNACK Success", "SUBACK 1 0x00", "PUBLISH0 retain r=kept"]
    );
}

/// [MQTT-3.2.2-9] [MQTT-3.2.2-10] [MQTT-3.2.2-12] [MQTT-3.2.2-13] [MQTT-3.2.2-11] [MQTT-3.2.2-14]
/// [MQTT311-3.8.4-6]
#[test]
fn what_is_not_served_is_said_downgraded_or_refused() {
    let mut config = Config::default();
    config.mqtt.maximum_qos = 1;
    config.mqtt.retain_available = false;
    let mut broker = Broker::with(&config, 1);
    let peer = broker.open();
    broker.packet(peer, V5, &Packet::Connect(plain(V5, "x")));
    let said = broker.packets(peer, V5, |packet| match packet {
        Packet::ConnAck(connack) => (connack.maximum_qos(), connack.retain_available()),
        other => panic!("{other:?}"),
    });
    assert_eq!(said, [(QoS::AtLeastOnce, false)]);
    broker.subscribe_with(peer, V5, "a", SubscribeOptions::new(QoS::ExactlyOnce), &[]);
    assert_eq!(broker.told(peer, V5), ["SUBACK 1 0x01"]);
    broker.publish(peer, V5, "a", "x", QoS::ExactlyOnce);
    assert_eq!(broker.told(peer, V5), ["DISCONNECT QoS not supported"]);
    for (qos, retain, said) in [
        (QoS::ExactlyOnce, false, "CONNACK QoS not supported"),
        (QoS::AtMostOnce, true, "CONNACK Retain not supported"),
    ] {
        let mut connect = plain(V5, "w");
        let will = Will {
            qos,
            retain,
            ..will("t", PublishProperties::EMPTY)
        };
        connect.will = Some(will);
        let peer = broker.open();
        broker.packet(peer, V5, &Packet::Connect(connect));
        assert_eq!(broker.told(peer, V5), [said]);
        assert!(broker.is_closed(peer));
    }
}

/// [MQTT-3.1.2-21] [MQTT-3.2.2-22] [MQTT-3.1.2-11] [MQTT-3.1.2-22]
#[test]
fn the_imposed_keep_alive_is_told_and_kept() {
    let mut config = Config::default();
    config.mqtt.maximum_keep_alive_s = 10;
    let mut broker = Broker::with(&config, 1);
    let peer = broker.open();
    broker.packet(peer, V5, &Packet::Connect(plain(V5, "x")));
    let told = broker.packets(peer, V5, |packet| match packet {
        Packet::ConnAck(connack) => connack.server_keep_alive_s(),
        _ => None,
    });
    assert_eq!(told, [Some(10)]);
    broker.advance(14_000);
    broker.send(peer, &[0xC0, 0]);
    broker.advance(14_000);
    assert!(!broker.is_closed(peer));
    broker.advance(1_000);
    assert_eq!(
        broker.told(peer, V5),
        ["PINGRESP", "DISCONNECT Keep Alive timeout"]
    );
    assert!(broker.is_closed(peer));
}

/// [MQTT311-3.1.2-24] [MQTT-3.12.4-1] [MQTT311-3.12.4-1]
#[test]
fn silence_beyond_one_and_a_half_keep_alives_ends_the_connection() {
    let mut broker = Broker::new();
    let peer = broker.client(V311, "x");
    broker.advance(89_000);
    broker.send(peer, &[0xC0, 0]);
    assert_eq!(broker.told(peer, V311), ["PINGRESP"]);
    broker.advance(89_000);
    assert!(!broker.is_closed(peer));
    broker.advance(1_000);
    assert!(broker.is_closed(peer));
    // Without a keep alive nothing is asked of the client.
    let quiet = broker.client_with(
        V311,
        &Connect {
            keep_alive_s: 0,
            ..plain(V311, "quiet")
        },
    );
    broker.advance(5_000_000);
    assert!(!broker.is_closed(quiet));
}

/// A connection that never says CONNECT, or says it a byte at a time, is not kept.
#[test]
fn connect_must_come_in_time() {
    let mut broker = Broker::new();
    let silent = broker.open();
    let slow = broker.open();
    let packet = encode(V5, &Packet::Connect(plain(V5, "slow")));
    for byte in &packet[..packet.len() - 1] {
        broker.send(slow, &[*byte]);
        broker.advance(2_700);
    }
    assert!(broker.is_closed(silent));
    assert!(broker.is_closed(slow));
}

/// [MQTT-3.1.2-28] Response Information only for those who ask
#[test]
fn response_information_is_told_to_those_who_ask() {
    let mut config = Config::default();
    config.mqtt.response_information = Some("replies/".to_owned());
    let mut broker = Broker::with(&config, 1);
    let asks = block(&[Property::RequestResponseInformation(true)]);
    for (properties, told) in [
        (asks.properties(), Some("replies/".to_owned())),
        (Properties::EMPTY, None),
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
        let heard = broker.packets(peer, V5, |packet| match packet {
            Packet::ConnAck(connack) => connack.response_information().map(str::to_owned),
            _ => None,
        });
        assert_eq!(heard[0], told);
    }
}

/// [MQTT-3.1.3-2] [MQTT-3.1.4-3] a client identifier names a session of its user: another user, and whoever gives no
/// name, has a session of its own by the same one, and the owner notices nothing.
#[test]
fn a_client_identifier_of_two_users_names_two_sessions() {
    let (_directory, mut config) = password_config();
    config.authentication.anonymous = Some(true);
    for version in [V311, V5] {
        let mut broker = Broker::with(&config, 2);
        let properties = expiring(100);
        let ann = Connect {
            user_name: Some("ann"),
            password: Some(b"secret"),
            version,
            properties: if version == V5 {
                properties.properties()
            } else {
                Properties::EMPTY
            },
            ..persistent("c", &properties, false)
        };
        let owner = broker.open();
        broker.packet(owner, version, &Packet::Connect(ann));
        broker.await_verdicts();
        assert_eq!(broker.told(owner, version), ["CONNACK Success"]);
        broker.subscribe(owner, version, "t", QoS::AtLeastOnce);
        for is_away in [false, true] {
            if is_away {
                broker.cut(owner);
            }
            for (shard, clean_start) in [(0, false), (0, true), (1, false), (1, true)] {
                let peer = broker.open_on(shard, TransportKind::Tcp, Vec::new());
                let stranger = Connect {
                    clean_start,
                    ..plain(version, "c")
                };
                broker.packet(peer, version, &Packet::Connect(stranger));
                assert_eq!(broker.told(peer, version), ["CONNACK Success"]);
                broker.cut(peer);
            }
            assert_eq!(broker.is_closed(owner), is_away);
            let publisher = broker.client(version, "p");
            broker.publish(publisher, version, "t", "x", QoS::AtLeastOnce);
        }
        let owner = broker.open();
        broker.packet(owner, version, &Packet::Connect(ann));
        broker.await_verdicts();
        assert_eq!(
            broker.told(owner, version),
            [
                "CONNACK Success present",
                "PUBLISH1 dup t=x",
                "PUBLISH1 t=x"
            ]
        );
    }
}
