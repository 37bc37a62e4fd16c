//! The wall clock is set back or forward while the broker is down: it changes when things expire, and nothing
//! else, and what waits for a time waits for its whole interval at most.

use sterna_amqp::messaging::Source;
use sterna_broker::Limits;
use sterna_mqtt::packet::{Connect, Publish, SubscribeOptions, Will};
use sterna_mqtt::{Packet, PacketId, Property, PropertyContext, QoS, Version};
use sterna_server::config::{Config, Queue};

use crate::amqp_client::Client as AmqpClient;
use crate::fixture::{Broker, Peer, block, plain, publish};
use crate::h3_client::Client as HttpClient;
use crate::store::{Held, config};

const V5: Version = Version::V5;
const HOURS_6_MS: u64 = 6 * 3_600_000;
const BEGIN_MS: u64 = 1_700_000_000_000;

/// A broker on the store, whose clock shows so many milliseconds.
fn at(store: &Held, config: &Config, now_ms: u64) -> Broker {
    Broker::restored_at(config, 1, Limits::default(), now_ms, || {
        Box::new(store.clone())
    })
}

fn connect(broker: &mut Broker, client_id: &str, expiry_s: u32, will: Option<Will<'_>>) -> Peer {
    let peer = broker.open();
    let properties = block(&[Property::SessionExpiryInterval(expiry_s)]);
    let connect = Connect {
        clean_start: false,
        keep_alive_s: 0,
        properties: properties.properties(),
        will,
        ..plain(V5, client_id)
    };
    broker.packet(peer, V5, &Packet::Connect(connect));
    peer
}

/// A client without a session, that reads a topic.
fn watches(broker: &mut Broker, topic: &str) -> Peer {
    let peer = broker.client(V5, "watches");
    broker.subscribe(peer, V5, topic, QoS::AtMostOnce);
    peer
}

/// A session that never expires, that reads a topic and is away.
fn reads(broker: &mut Broker, client_id: &str, topic: &str) {
    let peer = connect(broker, client_id, u32::MAX, None);
    broker.told(peer, V5);
    broker.subscribe(peer, V5, topic, QoS::ExactlyOnce);
    broker.cut(peer);
}

fn send(broker: &mut Broker, topic: &str, retain: bool, property: &Property<'_>) {
    let peer = broker.client(V5, "p");
    let properties = block(&[*property]);
    let packet = Packet::Publish(Publish {
        packet_id: PacketId::new(1),
        retain,
        properties: properties
            .publish_properties(PropertyContext::Publish)
            .expect("of a publication"),
        ..publish(topic, topic, QoS::AtLeastOnce)
    });
    broker.packet(peer, V5, &packet);
    assert!(broker.told(peer, V5)[0].starts_with("PUBACK 1"));
    broker.cut(peer);
}

/// What a client is told when it comes back, the acknowledgement of its connection first.
fn returned(broker: &mut Broker, client_id: &str) -> Vec<String> {
    let peer = connect(broker, client_id, u32::MAX, None);
    let told = broker.told(peer, V5);
    broker.cut(peer);
    told
}

const PRESENT: &str = "CONNACK Success present";

#[test]
fn a_session_ends_after_its_whole_interval_at_the_latest() {
    let store = Held::new();
    let mut broker = at(&store, &config(), BEGIN_MS);
    for name in ["early", "late"] {
        let peer = connect(&mut broker, name, 1_000, None);
        broker.cut(peer);
    }
    drop(broker);
    let mut broker = at(&store, &config(), BEGIN_MS - HOURS_6_MS);
    broker.advance(999_000);
    assert_eq!(returned(&mut broker, "early"), [PRESENT]);
    broker.advance(2_000);
    assert_eq!(returned(&mut broker, "late"), ["CONNACK Success"]);
}

#[test]
fn a_session_ends_early_by_no_more_than_a_step_forward() {
    for (step_ms, told) in [(900_000, PRESENT), (1_100_000, "CONNACK Success")] {
        let store = Held::new();
        let mut broker = at(&store, &config(), BEGIN_MS);
        let peer = connect(&mut broker, "c", 1_000, None);
        broker.cut(peer);
        drop(broker);
        let mut broker = at(&store, &config(), BEGIN_MS + step_ms);
        broker.advance(90_000);
        assert_eq!(returned(&mut broker, "c"), [told]);
    }
}

/// However often the clock is set: each time the interval begins anew at most.
#[test]
fn a_session_that_never_expires_and_its_messages_stay_whatever_the_clock_does() {
    let store = Held::new();
    let mut broker = at(&store, &config(), BEGIN_MS);
    reads(&mut broker, "c", "t");
    let user = Property::UserProperty("a", "b");
    send(&mut broker, "t", false, &user);
    drop(broker);
    for now_ms in [BEGIN_MS - HOURS_6_MS, BEGIN_MS + HOURS_6_MS, 0, BEGIN_MS] {
        let mut broker = at(&store, &config(), now_ms);
        broker.advance(100_000);
    }
    let mut broker = at(&store, &config(), BEGIN_MS - HOURS_6_MS);
    assert_eq!(returned(&mut broker, "c"), [PRESENT, "PUBLISH1 t=t"]);
}

/// [MQTT-3.1.3-9]
#[test]
fn a_delayed_will_waits_for_its_whole_delay_at_the_latest() {
    let delay = block(&[Property::WillDelayInterval(60)]);
    let will = Will {
        topic: "will",
        payload: b"gone",
        qos: QoS::AtLeastOnce,
        retain: false,
        properties: delay
            .publish_properties(PropertyContext::Will)
            .expect("of a will"),
    };
    for expiry_s in [1_000, u32::MAX] {
        let store = Held::new();
        let mut broker = at(&store, &config(), BEGIN_MS);
        let mortal = connect(&mut broker, "mortal", expiry_s, Some(will));
        // The delay begins when the connection is lost.
        broker.advance(500_000);
        broker.cut(mortal);
        drop(broker);
        let mut broker = at(&store, &config(), BEGIN_MS - HOURS_6_MS);
        let watcher = watches(&mut broker, "will");
        broker.advance(55_000);
        assert_eq!(broker.told(watcher, V5).len(), 0, "{expiry_s}");
        broker.advance(6_000);
        assert_eq!(
            broker.told(watcher, V5),
            ["PUBLISH0 will=gone"],
            "{expiry_s}"
        );
    }
}

/// [MQTT-3.3.2-5]
#[test]
fn a_message_expires_after_its_whole_interval_at_the_latest() {
    for (wait_ms, is_there) in [(95_000, true), (101_000, false)] {
        let store = Held::new();
        let mut broker = at(&store, &config(), BEGIN_MS);
        reads(&mut broker, "r", "t/waits");
        let expiry = Property::MessageExpiryInterval(100);
        send(&mut broker, "t/waits", false, &expiry);
        send(&mut broker, "t/retained", true, &expiry);
        drop(broker);
        let mut broker = at(&store, &config(), BEGIN_MS - HOURS_6_MS);
        broker.advance(wait_ms);
        let told = returned(&mut broker, "r");
        let wanted = [PRESENT, "PUBLISH1 t/waits=t/waits"];
        assert_eq!(told, wanted[..=usize::from(is_there)], "{wait_ms}");
        let reader = broker.client(V5, "new");
        let options = SubscribeOptions::new(QoS::AtMostOnce);
        broker.subscribe_with(reader, V5, "t/retained", options, &[]);
        let count = broker.told(reader, V5).len();
        assert_eq!(count, 1 + usize::from(is_there), "retained, {wait_ms}");
    }
}

#[test]
fn a_delayed_delivery_of_a_queue_waits_for_its_whole_delay_at_the_latest() {
    let mut config = config();
    config.amqp.queues = vec![Queue {
        name: "q".to_owned(),
        ..Queue::default()
    }];
    let store = Held::new();
    let mut broker = at(&store, &config, BEGIN_MS);
    let delay = Property::UserProperty("x-opt-delivery-delay", "60000");
    send(&mut broker, "queue/q", false, &delay);
    drop(broker);
    let mut broker = at(&store, &config, BEGIN_MS - HOURS_6_MS);
    let mut client = AmqpClient::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    client.receiver(&mut broker, session, "in", Source::new("queue/q"), 10);
    broker.advance(55_000);
    client.turn(&mut broker);
    assert!(client.texts().is_empty());
    broker.advance(6_000);
    client.turn(&mut broker);
    assert_eq!(client.texts(), ["queue/q"]);
}

#[test]
fn a_key_of_a_request_is_known_for_its_whole_window_at_the_latest() {
    let mut config = config();
    config.http.idempotency_window_s = 60;
    let post = |broker: &mut Broker| {
        let mut client = HttpClient::connect(broker);
        let key = [("idempotency-key", "k")];
        let number = client.request(broker, "POST", "/v1/topics/a", &key, b"one");
        let response = client.response(number);
        assert_eq!(response.status, 204);
        response.field("idempotent-replayed").is_some()
    };
    for (step_ms, wait_ms, is_known) in [
        (0, 55_000, true),
        (0, 61_000, false),
        // Known longer by less than the window: a repetition is never taken for new too early.
        (HOURS_6_MS, 55_000, true),
        (HOURS_6_MS, 61_000, false),
    ] {
        let store = Held::new();
        let mut broker = at(&store, &config, BEGIN_MS);
        // It publishes to somebody who is away, so that it is kept.
        reads(&mut broker, "r", "a");
        assert!(!post(&mut broker));
        drop(broker);
        let mut broker = at(&store, &config, BEGIN_MS - step_ms);
        broker.advance(wait_ms);
        assert_eq!(post(&mut broker), is_known, "{step_ms} {wait_ms}");
    }
}
