//! Wills.

use sterna_mqtt::packet::{Connect, Disconnect, SubscribeOptions, Will};
use sterna_mqtt::{Packet, Property, PropertyContext, PublishProperties, QoS, ReasonCode};

use crate::conformance::{V5, V311, expiring, persistent, will};
use crate::fixture::{Broker, block, plain};

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

#[test]
fn a_will_with_too_many_user_properties_is_refused() {
    let mut config = sterna_server::config::Config::default();
    config.mqtt.maximum_list_entries = 3;
    let mut broker = Broker::with(&config, 1);
    for (count, told) in [(3, "CONNACK Success"), (4, "CONNACK Quota exceeded")] {
        let properties = block(&vec![Property::UserProperty("", ""); count]);
        let properties = properties
            .publish_properties(PropertyContext::Will)
            .expect("a will's");
        let mut connect = plain(V5, "mortal");
        connect.will = Some(will("will", properties));
        let peer = broker.open();
        broker.packet(peer, V5, &Packet::Connect(connect));
        assert_eq!(broker.told(peer, V5), [told]);
    }
}
