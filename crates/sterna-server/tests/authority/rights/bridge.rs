//! A bridge of Mosquitto, by what it sends.

use sterna_mqtt::packet::Publish;
use sterna_mqtt::{Packet, QoS, Version};
use sterna_server::config::{Config, Rule};

use crate::fixture::{Broker, Peer, encode, plain, publish};

const V5: Version = Version::V5;
const STATE: &str = "$SYS/broker/connection/edge.site/state";

/// Connects as a bridge before 5.0 does: with its mark in the protocol level, and its state as a will.
fn connect(broker: &mut Broker, version: Version) -> Peer {
    let connect = sterna_mqtt::packet::Connect {
        will: Some(sterna_mqtt::packet::Will {
            topic: STATE,
            payload: b"0",
            qos: QoS::AtLeastOnce,
            retain: true,
            properties: sterna_mqtt::PublishProperties::EMPTY,
        }),
        ..plain(version, "edge.site")
    };
    let mut bytes = encode(version, &Packet::Connect(connect));
    if version != V5 {
        let level = 2 + 2 + version.protocol_name().len();
        assert_eq!(bytes[level], version as u8);
        bytes[level] |= 0x80;
    }
    let peer = broker.open();
    broker.send(peer, &bytes);
    peer
}

#[test]
fn its_state_is_seen_and_its_messages_do_not_come_back() {
    for version in [Version::V31, Version::V311] {
        let mut broker = Broker::with(&Config::default(), 1);
        let watcher = broker.client(V5, "w");
        broker.subscribe(watcher, V5, "$SYS/broker/connection/#", QoS::AtMostOnce);
        let bridge = connect(&mut broker, version);
        assert_eq!(broker.told(bridge, version), ["CONNACK Success"]);
        let state = Publish {
            retain: true,
            ..publish(STATE, "1", QoS::AtLeastOnce)
        };
        broker.packet(bridge, version, &Packet::Publish(state));
        assert_eq!(broker.told(bridge, version), ["PUBACK 7 Success"]);
        broker.subscribe(bridge, version, "both/#", QoS::AtMostOnce);
        broker.publish(bridge, version, "both/x", "own", QoS::AtMostOnce);
        let other = Publish {
            retain: true,
            ..publish("both/x", "other", QoS::AtMostOnce)
        };
        broker.packet(watcher, V5, &Packet::Publish(other));
        // Its own is left out, and what is retained stays so on its way.
        assert_eq!(
            broker.told(bridge, version),
            ["PUBLISH0 retain both/x=other"]
        );
        broker.cut(bridge);
        assert_eq!(
            broker.told(watcher, V5),
            [format!("PUBLISH0 {STATE}=1"), format!("PUBLISH0 {STATE}=0")]
        );
    }
}

#[test]
fn without_a_rule_for_its_state_it_is_refused() {
    let mut config = Config::default();
    config.authorization.default_allow = false;
    let rule = |topic: &str| Rule {
        topics: vec![topic.to_owned()],
        ..Rule::default()
    };
    config.authorization.rules = vec![rule("#")];
    let mut broker = Broker::with(&config, 1);
    let bridge = connect(&mut broker, V5);
    assert_eq!(broker.told(bridge, V5), ["CONNACK Not authorized"]);
    config
        .authorization
        .rules
        .push(rule("$SYS/broker/connection/%c/state"));
    let mut broker = Broker::with(&config, 1);
    let bridge = connect(&mut broker, V5);
    assert_eq!(broker.told(bridge, V5), ["CONNACK Success"]);
}
