//! The end of a connection, and of the broker.

use sterna_broker::{Limits, NoStore};
use sterna_mqtt::packet::Disconnect;
use sterna_mqtt::{Packet, QoS, ReasonCode};
use sterna_server::Policy;
use sterna_server::config::Config;

use crate::conformance::{V5, V311};
use crate::fixture::{Broker, encode, publish};

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
    let limits = Limits {
        queued_messages: 1,
        queued_qos0_bytes: 100 * (64 + 2),
        ..Limits::default()
    };
    let mut broker = Broker::restored(&Config::default(), 1, limits, || Box::new(NoStore));
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
    // Of QoS 0 as many as have room, at 64 bytes and a body of two each; no number limits them.
    assert_eq!(kept, 100);
}
