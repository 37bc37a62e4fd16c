//! SUBSCRIBE and UNSUBSCRIBE.

use sterna_mqtt::packet::SubscribeOptions;
use sterna_mqtt::{Packet, PacketId, Properties, QoS};
use sterna_net::TransportKind;
use sterna_server::config::Config;

use crate::conformance::{V5, V311};
use crate::fixture::{Broker, plain};

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
