//! Normative statements of MQTT that engine, front door and broker keep together.

mod fixture;

use fixture::{Broker, block, encode, plain, publish};
use sterna_mqtt::packet::{Auth, Connect, Disconnect, SubscribeOptions, Will};
use sterna_mqtt::{
    Packet, PacketId, Properties, Property, PropertyBuf, PropertyContext, PublishProperties, QoS,
    ReasonCode, Version,
};
use sterna_net::{StreamId, TransportKind};
use sterna_server::Policy;
use sterna_server::config::{Config, Effect, Rule};

const V311: Version = Version::V311;
const V5: Version = Version::V5;

fn password_config() -> (tempfile::TempDir, Config) {
    let directory = tempfile::tempdir().expect("a folder");
    let path = directory.path().join("passwords");
    let record =
        sterna_auth::Record::from_password("secret", &[7; 16], sterna_auth::DEFAULT_ITERATIONS)
            .expect("a record");
    std::fs::write(&path, format!("ann:{record}\n")).expect("writes");
    let mut config = Config::default();
    config.authentication.password_file = Some(path);
    (directory, config)
}

fn will<'a>(topic: &'a str, properties: PublishProperties<'a>) -> Will<'a> {
    Will {
        topic,
        payload: b"gone",
        qos: QoS::AtLeastOnce,
        retain: false,
        properties,
    }
}

fn expiring(seconds: u32) -> PropertyBuf {
    block(&[Property::SessionExpiryInterval(seconds)])
}

fn persistent<'a>(client_id: &'a str, properties: &'a PropertyBuf, clean: bool) -> Connect<'a> {
    Connect {
        clean_start: clean,
        properties: properties.properties(),
        ..plain(V5, client_id)
    }
}

// ---- CONNECT and CONNACK -----------------------------------------------------------------------

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
    let refusal = name(b"MQTT", 9);
    assert_eq!(refusal[0], 0x20);
    assert_eq!(refusal[3], 0x84);
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
    broker.await_verdict();
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
    broker.await_verdict();
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
    broker.await_verdict();
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
        broker.advance(900);
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

// ---- wills ---------------------------------------------------------------------------------------

/// [MQTT-3.1.2-6] [MQTT-3.1.2-10] [MQTT-3.14.4-3] [MQTT311-3.1.2-8] [MQTT311-3.1.2-10]
/// [MQTT311-3.1.2-12] [MQTT311-3.14.4-3]
#[test]
fn a_will_is_published_when_the_connection_is_lost_and_not_after_disconnect() {
    let mut broker = Broker::new();
    let watcher = broker.client(V5, "watch");
    broker.subscribe(watcher, V5, "#", QoS::ExactlyOnce);
    for version in [V311, V5] {
        let mut connect = plain(version, "mortal");
        connect.will = Some(will("will", PublishProperties::EMPTY));
        let peer = broker.client_with(version, &connect);
        broker.packet(
            peer,
            version,
            &Packet::Disconnect(Disconnect::new(ReasonCode::Success)),
        );
        assert!(broker.is_closed(peer));
        assert_eq!(broker.told(watcher, V5), [""; 0]);
        let peer = broker.client_with(version, &connect);
        broker.cut(peer);
        assert_eq!(broker.told(watcher, V5), ["PUBLISH1 will=gone"]);
        // A protocol error is no farewell either.
        let peer = broker.client_with(version, &connect);
        broker.send(peer, &[0xF0, 0xFF]);
        broker.send(peer, &[0xFF; 8]);
        assert!(broker.is_closed(peer));
        assert_eq!(broker.told(watcher, V5), ["PUBLISH1 will=gone"]);
    }
    let mut connect = plain(V5, "mortal");
    connect.will = Some(will("will", PublishProperties::EMPTY));
    let peer = broker.client_with(V5, &connect);
    let farewell = Disconnect::new(ReasonCode::DisconnectWithWill);
    broker.packet(peer, V5, &Packet::Disconnect(farewell));
    assert_eq!(broker.told(watcher, V5), ["PUBLISH1 will=gone"]);
}

/// [MQTT-3.1.3-9] [MQTT-3.1.2-14] [MQTT-3.1.2-15] [MQTT-3.1.3-10]
#[test]
fn a_will_waits_for_its_delay_and_a_reconnect_cancels_it() {
    let mut broker = Broker::new();
    let watcher = broker.client(V5, "watch");
    broker.subscribe(watcher, V5, "#", QoS::AtMostOnce);
    let session = expiring(100);
    let delayed = block(&[
        Property::WillDelayInterval(10),
        Property::UserProperty("b", "1"),
        Property::UserProperty("a", "2"),
    ]);
    let mut connect = persistent("mortal", &session, true);
    let properties = delayed
        .publish_properties(PropertyContext::Will)
        .expect("a will's");
    connect.will = Some(Will {
        retain: true,
        ..will("will", properties)
    });
    let peer = broker.client_with(V5, &connect);
    broker.cut(peer);
    broker.advance(9_000);
    let peer = broker.client_with(
        V5,
        &Connect {
            clean_start: false,
            ..connect
        },
    );
    broker.advance(60_000);
    assert_eq!(broker.told(watcher, V5), [""; 0]);
    broker.cut(peer);
    broker.advance(10_000);
    let seen = broker.packets(watcher, V5, |packet| match packet {
        Packet::Publish(p) => p
            .properties
            .user_properties()
            .map(|(name, value)| format!("{name}{value}"))
            .collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    });
    assert_eq!(seen, [["b1", "a2"]]);
    let late = broker.client(V5, "late");
    broker.subscribe_with(
        late,
        V5,
        "will",
        SubscribeOptions::new(QoS::AtMostOnce),
        &[],
    );
    assert_eq!(
        broker.told(late, V5),
        ["SUBACK 1 0x00", "PUBLISH0 retain will=gone"]
    );
}

// ---- PUBLISH and its acknowledgements ----------------------------------------------------------------

/// [MQTT-2.2.1-5] [MQTT-3.3.4-1] [MQTT-4.3.2-4] [MQTT-4.3.2-5] [MQTT-4.3.3-8] [MQTT-4.3.3-10]
/// [MQTT-4.3.3-11] [MQTT-4.3.3-12] [MQTT311-2.3.1-6] [MQTT311-3.3.4-1] [MQTT311-4.3.2-2]
/// [MQTT311-4.3.3-2]
#[test]
fn publications_are_acknowledged_by_their_level_and_qos_2_is_delivered_once() {
    let mut broker = Broker::new();
    for version in [V311, V5] {
        let watcher = broker.client(version, "watch");
        broker.subscribe(watcher, version, "t", QoS::AtMostOnce);
        let peer = broker.client(version, "p");
        broker.publish(peer, version, "t", "0", QoS::AtMostOnce);
        assert_eq!(broker.told(peer, version), [""; 0]);
        broker.publish(peer, version, "t", "1", QoS::AtLeastOnce);
        broker.publish(peer, version, "t", "1", QoS::AtLeastOnce);
        assert_eq!(
            broker.told(peer, version),
            ["PUBACK 7 Success", "PUBACK 7 Success"]
        );
        let seen = broker.told(watcher, version);
        assert_eq!(seen, ["PUBLISH0 t=0", "PUBLISH0 t=1", "PUBLISH0 t=1"]);
        broker.publish(peer, version, "t", "2", QoS::ExactlyOnce);
        let mut again = publish("t", "2", QoS::ExactlyOnce);
        again.dup = true;
        broker.packet(peer, version, &Packet::Publish(again));
        assert_eq!(
            broker.told(peer, version),
            ["PUBREC 7 Success", "PUBREC 7 Success"]
        );
        assert_eq!(broker.told(watcher, version), ["PUBLISH0 t=2"]);
        broker.send(peer, &[0x62, 2, 0, 7]);
        assert_eq!(broker.told(peer, version), ["PUBCOMP 7 Success"]);
        broker.publish(peer, version, "t", "3", QoS::ExactlyOnce);
        assert_eq!(broker.told(watcher, version), ["PUBLISH0 t=3"]);
    }
}

/// [MQTT-3.3.1-1] [MQTT-3.3.1-3] [MQTT-4.4.0-1] [MQTT-4.6.0-1] [MQTT-4.6.0-5] [MQTT-4.6.0-6]
/// [MQTT-4.3.2-3] [MQTT-4.3.3-3] [MQTT-4.3.3-5] [MQTT-4.3.3-6] [MQTT311-3.3.1-1] [MQTT311-4.4.0-1]
/// [MQTT311-4.6.0-1] [MQTT311-4.6.0-5] [MQTT311-4.6.0-6]
#[test]
fn unacknowledged_deliveries_come_again_in_their_order_and_only_then() {
    let mut broker = Broker::new();
    let session = expiring(1000);
    let peer = broker.client_with(V5, &persistent("s", &session, true));
    broker.subscribe(peer, V5, "t", QoS::ExactlyOnce);
    let publisher = broker.client(V5, "p");
    for text in ["1", "2", "3"] {
        let mut packet = publish("t", text, QoS::ExactlyOnce);
        packet.packet_id = PacketId::new(text.as_bytes()[0].into());
        packet.dup = text == "2";
        broker.packet(publisher, V5, &Packet::Publish(packet));
    }
    assert_eq!(
        broker.told(peer, V5),
        ["PUBLISH2 t=1", "PUBLISH2 t=2", "PUBLISH2 t=3"]
    );
    // The second is handed over: its PUBREL is due, not its PUBLISH.
    broker.send(peer, &[0x50, 2, 0, 2]);
    assert_eq!(broker.told(peer, V5), ["PUBREL 2 Success"]);
    broker.advance(30_000);
    broker.send(peer, &[0xC0, 0]);
    assert_eq!(
        broker.told(peer, V5),
        ["PINGRESP"],
        "nothing is sent again on the same connection"
    );
    broker.cut(peer);
    let peer = broker.open();
    broker.packet(peer, V5, &Packet::Connect(persistent("s", &session, false)));
    assert_eq!(
        broker.told(peer, V5),
        [
            "CONNACK Success present",
            "PUBLISH2 dup t=1",
            "PUBREL 2 Success",
            "PUBLISH2 dup t=3"
        ]
    );
}

/// [MQTT-3.1.2-24] [MQTT-3.1.2-25] [MQTT-3.2.2-16]
#[test]
fn what_is_too_large_for_a_client_counts_as_delivered() {
    let mut broker = Broker::new();
    let small = block(&[Property::MaximumPacketSize(40), Property::ReceiveMaximum(1)]);
    let peer = broker.client_with(
        V5,
        &Connect {
            properties: small.properties(),
            ..plain(V5, "small")
        },
    );
    broker.subscribe(peer, V5, "t", QoS::AtLeastOnce);
    let publisher = broker.client(V5, "p");
    broker.publish(publisher, V5, "t", &"x".repeat(100), QoS::AtLeastOnce);
    broker.publish(publisher, V5, "t", "fits", QoS::AtLeastOnce);
    assert_eq!(broker.told(peer, V5), ["PUBLISH1 t=fits"]);
}

/// [MQTT-3.3.4-7] [MQTT-3.3.4-9] [MQTT-4.9.0-1] [MQTT-4.9.0-2] [MQTT-4.9.0-3]
#[test]
fn no_more_is_sent_than_the_client_takes_unacknowledged() {
    let mut broker = Broker::new();
    let two = block(&[Property::ReceiveMaximum(2)]);
    let peer = broker.client_with(
        V5,
        &Connect {
            properties: two.properties(),
            ..plain(V5, "s")
        },
    );
    broker.subscribe(peer, V5, "t", QoS::AtLeastOnce);
    let publisher = broker.client(V5, "p");
    for text in ["1", "2", "3", "4"] {
        broker.publish(publisher, V5, "t", text, QoS::AtLeastOnce);
    }
    assert_eq!(broker.told(peer, V5), ["PUBLISH1 t=1", "PUBLISH1 t=2"]);
    broker.send(peer, &[0xC0, 0]);
    assert_eq!(broker.told(peer, V5), ["PINGRESP"], "other packets go on");
    broker.send(peer, &[0x40, 2, 0, 1]);
    assert_eq!(broker.told(peer, V5), ["PUBLISH1 t=3"]);
    broker.send(peer, &[0x40, 2, 0, 2, 0x40, 2, 0, 3]);
    assert_eq!(broker.told(peer, V5), ["PUBLISH1 t=4"]);
}

/// [MQTT-3.3.4-8] more than Receive Maximum from a client ends it; [MQTT-3.3.2-7] and so do bad aliases
#[test]
fn a_client_that_exceeds_what_it_was_granted_is_disconnected_with_the_reason() {
    let mut config = Config::default();
    config.mqtt.receive_maximum = 2;
    let mut broker = Broker::with(&config, 1);
    let peer = broker.client(V5, "p");
    for id in 1..=3 {
        let mut packet = publish("t", "x", QoS::ExactlyOnce);
        packet.packet_id = PacketId::new(id);
        broker.packet(peer, V5, &Packet::Publish(packet));
    }
    let told = broker.told(peer, V5);
    assert_eq!(
        told.last().map(String::as_str),
        Some("DISCONNECT Receive Maximum exceeded")
    );
    let peer = broker.client(V5, "alias");
    let alias = block(&[Property::TopicAlias(33)]);
    let mut packet = publish("t", "x", QoS::AtMostOnce);
    packet.properties = alias
        .publish_properties(PropertyContext::Publish)
        .expect("an alias");
    broker.packet(peer, V5, &Packet::Publish(packet));
    assert_eq!(broker.told(peer, V5), ["DISCONNECT Topic Alias invalid"]);
}

/// [MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]
/// [MQTT-3.3.2-5] [MQTT-3.3.2-6]
#[test]
fn properties_pass_through_unaltered_and_expired_messages_do_not() {
    let mut broker = Broker::new();
    let session = expiring(1000);
    let peer = broker.client_with(V5, &persistent("s", &session, true));
    broker.subscribe(peer, V5, "t", QoS::AtLeastOnce);
    broker.cut(peer);
    let publisher = broker.client(V5, "p");
    let sent = [
        Property::PayloadFormatIndicator(true),
        Property::ContentType("text/plain"),
        Property::ResponseTopic("answers"),
        Property::CorrelationData(b"\x00\xff"),
        Property::UserProperty("k", "1"),
        Property::UserProperty("k", "2"),
    ];
    for (expiry_s, text) in [(5, "short"), (60, "long")] {
        let mut properties = block(&sent);
        properties
            .push(Property::MessageExpiryInterval(expiry_s))
            .expect("fits");
        let mut packet = publish("t", text, QoS::AtLeastOnce);
        packet.properties = properties
            .publish_properties(PropertyContext::Publish)
            .expect("a message's");
        broker.packet(publisher, V5, &Packet::Publish(packet));
    }
    broker.advance(10_000);
    let peer = broker.open();
    broker.packet(peer, V5, &Packet::Connect(persistent("s", &session, false)));
    let seen = broker.packets(peer, V5, |packet| match packet {
        Packet::Publish(p) => {
            let passed: Vec<Property<'_>> = p
                .properties
                .all()
                .iter()
                .filter(|p| !matches!(p, Property::MessageExpiryInterval(_)))
                .collect();
            assert_eq!(passed, sent);
            format!(
                "{} {:?}",
                String::from_utf8_lossy(p.payload),
                p.properties.message_expiry_s()
            )
        }
        other => fixture::describe(other),
    });
    assert_eq!(seen, ["CONNACK Success present", "long Some(50)"]);
}

/// [MQTT311-3.3.5-1] [MQTT-3.3.4-2] [MQTT-3.3.4-3] [MQTT-3.3.4-4] [MQTT311-3.3.5-1]
#[test]
fn overlapping_subscriptions_give_one_copy_at_the_highest_level_with_all_identifiers() {
    let mut broker = Broker::new();
    let peer = broker.client(V5, "s");
    for (filter, qos, id) in [
        ("a/#", QoS::AtMostOnce, 1),
        ("a/+", QoS::ExactlyOnce, 2),
        ("a/b", QoS::AtLeastOnce, 300),
    ] {
        let identifier = [Property::SubscriptionIdentifier(id)];
        broker.subscribe_with(peer, V5, filter, SubscribeOptions::new(qos), &identifier);
    }
    broker.take(peer);
    let publisher = broker.client(V5, "p");
    broker.publish(publisher, V5, "a/b", "x", QoS::ExactlyOnce);
    let seen = broker.packets(peer, V5, |packet| match packet {
        Packet::Publish(p) => {
            let mut ids: Vec<u32> = p.properties.subscription_identifiers().collect();
            ids.sort_unstable();
            (p.qos, ids)
        }
        other => panic!("{other:?}"),
    });
    assert_eq!(seen, [(QoS::ExactlyOnce, vec![1, 2, 300])]);
}

/// [MQTT311-3.3.1-7] [MQTT-3.3.1-5] [MQTT-3.3.1-6] [MQTT-3.3.1-7] [MQTT-3.3.1-8] [MQTT-3.3.1-9] [MQTT-3.3.1-10]
/// [MQTT-3.3.1-11] [MQTT-3.3.1-12] [MQTT-3.3.1-13] [MQTT-3.8.4-4] [MQTT311-3.3.1-5] [MQTT311-3.3.1-6]
/// [MQTT311-3.3.1-8] [MQTT311-3.3.1-9] [MQTT311-3.3.1-10] [MQTT311-3.3.1-11] [MQTT311-3.3.1-12]
#[test]
fn retained_messages_are_kept_replaced_cleared_and_sent_as_the_subscription_asks() {
    use sterna_mqtt::packet::RetainHandling;
    let mut broker = Broker::new();
    let publisher = broker.client(V5, "p");
    let retain = |broker: &mut Broker, text: &str| {
        let mut packet = publish("r", text, QoS::AtLeastOnce);
        packet.retain = true;
        broker.packet(publisher, V5, &Packet::Publish(packet));
    };
    retain(&mut broker, "1");
    retain(&mut broker, "2");
    broker.publish(publisher, V5, "r", "not retained", QoS::AtMostOnce);
    let peer = broker.client(V5, "s");
    let ask = |broker: &mut Broker, handling: RetainHandling, as_published: bool| {
        let options = SubscribeOptions {
            retain_handling: handling,
            retain_as_published: as_published,
            ..SubscribeOptions::new(QoS::AtLeastOnce)
        };
        broker.subscribe_with(peer, V5, "r", options, &[]);
        broker.told(peer, V5)[1..].to_vec()
    };
    assert_eq!(ask(&mut broker, RetainHandling::DoNotSend, false), [""; 0]);
    assert_eq!(ask(&mut broker, RetainHandling::SendIfNew, false), [""; 0]);
    assert_eq!(
        ask(&mut broker, RetainHandling::Send, false),
        ["PUBLISH1 retain r=2"]
    );
    retain(&mut broker, "3");
    assert_eq!(
        broker.told(peer, V5),
        ["PUBLISH1 r=3"],
        "the flag is cleared for the established"
    );
    ask(&mut broker, RetainHandling::DoNotSend, true);
    retain(&mut broker, "4");
    assert_eq!(
        broker.told(peer, V5),
        ["PUBLISH1 retain r=4"],
        "the flag is kept as published"
    );
    retain(&mut broker, "");
    assert_eq!(broker.told(peer, V5), ["PUBLISH1 retain r="]);
    assert_eq!(
        ask(&mut broker, RetainHandling::Send, false),
        [""; 0],
        "nothing is retained"
    );
}

/// [MQTT-3.8.3-3] no local; [MQTT-4.7.2-1] [MQTT311-4.7.2-1] `$` topics apart from wildcards
#[test]
fn own_messages_and_system_topics_stay_away_from_those_who_did_not_ask() {
    let mut config = Config::default();
    config.sys.interval_s = 10;
    let mut broker = Broker::with(&config, 1);
    let peer = broker.client(V5, "s");
    let options = SubscribeOptions {
        no_local: true,
        ..SubscribeOptions::new(QoS::AtMostOnce)
    };
    broker.subscribe_with(peer, V5, "#", options, &[]);
    broker.publish(peer, V5, "own", "x", QoS::AtMostOnce);
    broker.advance(30_000);
    assert_eq!(broker.told(peer, V5), ["SUBACK 1 0x00"]);
    let admin = broker.client(V5, "admin");
    broker.subscribe_with(
        admin,
        V5,
        "$SYS/broker/clients/connected",
        SubscribeOptions::new(QoS::AtMostOnce),
        &[],
    );
    assert!(
        broker.told(admin, V5)[1].starts_with("PUBLISH0 retain $SYS/broker/clients/connected=")
    );
    // Nobody but the broker speaks there.
    broker.publish(peer, V5, "$SYS/broker/uptime", "lie", QoS::AtLeastOnce);
    assert_eq!(broker.told(peer, V5), ["PUBACK 7 Not authorized"]);
}

/// [MQTT-3.4.2-1] [MQTT-3.5.2-1] [MQTT-4.3.3-9] [MQTT311-3.3.5-2] [MQTT-3.1.2-29]
#[test]
fn a_publication_against_the_rules_is_refused_by_reason_or_quietly_dropped() {
    let mut config = Config::default();
    config.authorization.rules = vec![Rule {
        effect: Effect::Deny,
        topics: vec!["secret/#".to_owned()],
        ..Rule::default()
    }];
    let mut broker = Broker::with(&config, 1);
    let peer = broker.client(V5, "p");
    broker.publish(peer, V5, "secret/x", "1", QoS::AtLeastOnce);
    broker.publish(peer, V5, "secret/x", "1", QoS::ExactlyOnce);
    broker.publish(peer, V5, "nobody", "1", QoS::ExactlyOnce);
    assert_eq!(
        broker.told(peer, V5),
        [
            "PUBACK 7 Not authorized",
            "PUBREC 7 Not authorized",
            "PUBREC 7 No matching subscribers"
        ]
    );
    broker.subscribe_with(
        peer,
        V5,
        "secret/#",
        SubscribeOptions::new(QoS::AtMostOnce),
        &[],
    );
    assert_eq!(broker.told(peer, V5), ["SUBACK 1 0x87"]);
    let old = broker.client(V311, "old");
    broker.publish(old, V311, "secret/x", "1", QoS::AtLeastOnce);
    assert_eq!(broker.told(old, V311), ["PUBACK 7 Success"]);
    broker.subscribe_with(
        old,
        V311,
        "+/x",
        SubscribeOptions::new(QoS::AtMostOnce),
        &[],
    );
    assert_eq!(broker.told(old, V311), ["SUBACK 1 0x80"]);
}

// ---- SUBSCRIBE and UNSUBSCRIBE -----------------------------------------------------------------------

/// [MQTT-3.8.4-1] [MQTT-3.8.4-2] [MQTT-3.8.4-3] [MQTT-3.8.4-5] [MQTT-3.8.4-6] [MQTT-3.8.4-7]
/// [MQTT-3.8.4-8] [MQTT-3.9.2-1] [MQTT-3.9.3-1] [MQTT-3.9.3-2] [MQTT-2.2.1-6] [MQTT311-3.8.4-1]
/// [MQTT311-3.8.4-2] [MQTT311-3.8.4-3] [MQTT311-3.8.4-4] [MQTT311-3.8.4-5] [MQTT311-2.3.1-7]
#[test]
fn every_filter_has_its_code_and_a_repeated_one_replaces_the_first() {
    let mut broker = Broker::new();
    for version in [V311, V5] {
        let peer = broker.client(version, "s");
        let mut out = bytes::BytesMut::new();
        let filters = [
            ("a", SubscribeOptions::new(QoS::AtMostOnce)),
            ("b/#", SubscribeOptions::new(QoS::AtLeastOnce)),
            ("a", SubscribeOptions::new(QoS::ExactlyOnce)),
        ];
        sterna_mqtt::packet::encode_subscribe(
            version,
            PacketId::new(77).expect("not zero"),
            Properties::EMPTY,
            filters.into_iter(),
            sterna_mqtt::MAX_PACKET_BYTES,
            &mut out,
        )
        .expect("fits");
        broker.send(peer, &out);
        assert_eq!(broker.told(peer, version), ["SUBACK 77 0x00 0x01 0x02"]);
        broker.publish(peer, version, "a", "x", QoS::ExactlyOnce);
        let told = broker.told(peer, version);
        assert_eq!(
            told,
            ["PUBREC 7 Success", "PUBLISH2 a=x"],
            "one copy, at the level replaced"
        );
    }
}

/// [MQTT-3.10.4-1] [MQTT-3.10.4-2] [MQTT-3.10.4-3] [MQTT-3.10.4-4] [MQTT-3.10.4-5] [MQTT-3.10.4-6]
/// [MQTT-3.11.2-1] [MQTT-3.11.3-1] [MQTT-3.11.3-2] [MQTT311-3.10.4-1] [MQTT311-3.10.4-2]
/// [MQTT311-3.10.4-3] [MQTT311-3.10.4-4] [MQTT311-3.10.4-5]
#[test]
fn unsubscribe_ends_what_comes_and_not_what_is_on_its_way() {
    let mut broker = Broker::new();
    let peer = broker.client(V5, "s");
    broker.subscribe(peer, V5, "a", QoS::AtLeastOnce);
    let publisher = broker.client(V5, "p");
    broker.publish(publisher, V5, "a", "1", QoS::AtLeastOnce);
    assert_eq!(broker.told(peer, V5), ["PUBLISH1 a=1"]);
    let mut out = bytes::BytesMut::new();
    sterna_mqtt::packet::encode_unsubscribe(
        V5,
        PacketId::new(9).expect("not zero"),
        Properties::EMPTY,
        ["a", "never"].into_iter(),
        sterna_mqtt::MAX_PACKET_BYTES,
        &mut out,
    )
    .expect("fits");
    broker.send(peer, &out);
    assert_eq!(broker.told(peer, V5), ["UNSUBACK 9 0x00 0x11"]);
    broker.publish(publisher, V5, "a", "2", QoS::AtLeastOnce);
    assert_eq!(broker.told(peer, V5), [""; 0]);
    // What was sent before is completed.
    broker.send(peer, &[0x40, 2, 0, 1]);
    assert!(!broker.is_closed(peer));
    // 3.1.1 has one answer for all filters and no codes.
    let old = broker.client(V311, "old");
    broker.send(old, &[0xA2, 8, 0, 3, 0, 1, b'x', 0, 1, b'y']);
    assert_eq!(broker.take(old), [0xB0, 2, 0, 3]);
}

/// [MQTT-4.8.2-1] [MQTT-4.8.2-3] one member of a group gets a message
#[test]
fn members_of_a_shared_subscription_take_turns() {
    let mut broker = Broker::with(&Config::default(), 2);
    let members: Vec<_> = (0..2)
        .map(|shard| {
            let peer = broker.open_on(shard, TransportKind::Tcp, Vec::new());
            let id = format!("member-{shard}");
            broker.packet(peer, V5, &Packet::Connect(plain(V5, &id)));
            broker.told(peer, V5);
            broker.subscribe(peer, V5, "$share/group/t", QoS::AtLeastOnce);
            peer
        })
        .collect();
    let publisher = broker.client(V5, "p");
    for _ in 0..10 {
        broker.publish(publisher, V5, "t", "x", QoS::ExactlyOnce);
        broker.send(publisher, &[0x62, 2, 0, 7]);
    }
    let counts: Vec<usize> = members
        .iter()
        .map(|member| {
            let told = broker.told(*member, V5);
            assert!(told.iter().all(|line| line == "PUBLISH1 t=x"), "{told:?}");
            told.len()
        })
        .collect();
    assert_eq!(counts, [5, 5]);
}

// ---- authentication ----------------------------------------------------------------------------------

fn auth_block(data: &[u8]) -> PropertyBuf {
    block(&[
        Property::AuthenticationMethod("SCRAM-SHA-256"),
        Property::AuthenticationData(data),
    ])
}

fn heard_data(broker: &mut Broker, peer: fixture::Peer) -> (String, Vec<u8>) {
    let mut heard = broker.packets(peer, V5, |packet| match packet {
        Packet::Auth(auth) => {
            // [MQTT-4.12.0-2] [MQTT-4.12.0-3] [MQTT-4.12.0-5]
            assert_eq!(
                auth.properties.authentication_method(),
                Some("SCRAM-SHA-256")
            );
            (
                fixture::describe(packet),
                auth.properties
                    .authentication_data()
                    .unwrap_or_default()
                    .to_vec(),
            )
        }
        Packet::ConnAck(connack) => (
            fixture::describe(packet),
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

// ---- the end -----------------------------------------------------------------------------

/// [MQTT-3.14.4-1] [MQTT-3.14.4-2] [MQTT311-3.14.4-1] [MQTT311-3.14.4-2]
#[test]
fn nothing_after_disconnect_is_processed() {
    let mut broker = Broker::new();
    let watcher = broker.client(V5, "watch");
    broker.subscribe(watcher, V5, "#", QoS::AtMostOnce);
    let peer = broker.client(V5, "p");
    let mut flight = encode(
        V5,
        &Packet::Disconnect(Disconnect::new(ReasonCode::Success)),
    );
    flight.extend_from_slice(&encode(
        V5,
        &Packet::Publish(publish("a", "x", QoS::AtMostOnce)),
    ));
    broker.send(peer, &flight);
    assert!(broker.is_closed(peer));
    assert_eq!(broker.told(watcher, V5), [""; 0]);
}

#[test]
fn a_stopping_broker_says_so_and_ends_when_all_are_gone() {
    let mut config = Config::default();
    for (reference, said) in [
        (None, "DISCONNECT Server shutting down"),
        (Some("b.example"), "DISCONNECT Use another server"),
    ] {
        config.mqtt.server_reference = reference.map(str::to_owned);
        let mut broker = Broker::with(&config, 2);
        let peer = broker.client(V5, "x");
        let old = broker.client(V311, "old");
        assert!(!broker.finished());
        broker.stop();
        assert_eq!(broker.told(peer, V5), [said]);
        assert_eq!(broker.take(old), b"");
        assert!(broker.is_closed(peer) && broker.is_closed(old));
        assert!(broker.finished());
    }
}

#[test]
fn a_new_policy_holds_for_the_next_packet() {
    let mut broker = Broker::new();
    let peer = broker.client(V5, "p");
    let mut config = Config::default();
    config.authorization.default_allow = false;
    broker.apply(Policy::load(&config).expect("a policy"));
    broker.publish(peer, V5, "a", "x", QoS::AtLeastOnce);
    assert_eq!(broker.told(peer, V5), ["PUBACK 7 Not authorized"]);
}

#[test]
fn a_slow_reader_is_not_buffered_without_end() {
    let mut broker = Broker::new();
    let slow = broker.client(V5, "slow");
    broker.subscribe(slow, V5, "t", QoS::AtMostOnce);
    let publisher = broker.client(V5, "p");
    broker.wires[0].unsent_bytes = 1 << 20;
    for _ in 0..5_000 {
        broker.publish(publisher, V5, "t", "x", QoS::AtMostOnce);
    }
    assert_eq!(broker.take(slow), b"");
    broker.wires[0].unsent_bytes = 0;
    broker.writable(slow);
    let kept = broker.told(slow, V5).len();
    assert_eq!(
        kept,
        Config::default().broker.maximum_queued_messages as usize
    );
}
