//! Clients that read slowly, or not at all.

use std::sync::atomic::Ordering;

use sterna_mqtt::packet::Publish;
use sterna_mqtt::{Packet, QoS, Version};
use sterna_net::{StreamId, TransportKind};

use crate::fixture::{Broker, Peer, plain, publish};
use crate::h2_client;
use crate::h3_client;
use crate::http::http1;

const V5: Version = Version::V5;
const TOPIC: &str = "/v1/topics/t";
/// Messages of a flood, and bytes of each.
const MESSAGES: usize = 100;
const BYTES: usize = 8_000;

/// A publisher of MQTT, whatever the listener is for.
fn publisher(broker: &mut Broker) -> Peer {
    let peer = broker.open_speaking(b"mqtt", 0, TransportKind::Quic, Vec::new());
    broker.packet(peer, V5, &Packet::Connect(plain(V5, "p")));
    assert_eq!(broker.told(peer, V5), ["CONNACK Success"]);
    peer
}

fn flood(broker: &mut Broker, publisher: Peer) {
    let payload = "x".repeat(BYTES);
    for _ in 0..MESSAGES {
        broker.publish(publisher, V5, "t", &payload, QoS::AtLeastOnce);
        broker.take(publisher);
    }
}

/// Messages in what a subscriber was sent.
fn messages(content: &[u8]) -> usize {
    let marker = b"\"topic\"";
    content
        .windows(marker.len())
        .filter(|w| w == marker)
        .count()
}

#[test]
fn http3_waits_for_the_transport() {
    let mut broker = Broker::new();
    let publisher = publisher(&mut broker);
    let mut client = h3_client::Client::connect(&mut broker);
    let number = client.request(&mut broker, "GET", TOPIC, &[], b"");
    // The transport takes nothing: what is sent stays small, and the stream is watched.
    broker.wires[0].unsent_bytes = 60_000;
    flood(&mut broker, publisher);
    client.turn(&mut broker);
    let few = messages(&client.response(number).content);
    assert!(few * BYTES <= 48 << 10, "{few}");
    assert!(!broker.wires[0].watched.is_empty());
    broker.wires[0].unsent_bytes = 0;
    while messages(&client.response(number).content) < MESSAGES {
        let before = client.response(number).content.len();
        broker.writable(client.peer);
        client.turn(&mut broker);
        assert!(client.response(number).content.len() > before);
    }
    assert_eq!(messages(&client.response(number).content), MESSAGES);
}

/// Responses that wait for room cost nothing with each request: the streams are counted where something was taken.
#[test]
fn http3_counts_waiting_streams_only_when_the_transport_has_taken_something() {
    const SUBSCRIPTIONS: usize = 40;
    let mut broker = Broker::new();
    let publisher = publisher(&mut broker);
    let mut client = h3_client::Client::connect(&mut broker);
    for _ in 0..SUBSCRIPTIONS {
        client.request(&mut broker, "GET", TOPIC, &[], b"");
    }
    broker.wires[0].unsent_bytes = 60_000;
    flood(&mut broker, publisher);
    broker.advance(1);
    assert!(broker.wires[0].watched.len() >= SUBSCRIPTIONS);
    let asked = |broker: &mut Broker, client: &mut h3_client::Client| {
        let before = broker.wires[0].counted.load(Ordering::Relaxed);
        for _ in 0..100 {
            let number = client.request(broker, "HEAD", "/v1/topics/none", &[], b"");
            assert_eq!(client.response(number).status, 404);
        }
        broker.wires[0].counted.load(Ordering::Relaxed) - before
    };
    let questions = asked(&mut broker, &mut client);
    assert!(questions <= 2 * SUBSCRIPTIONS, "{questions} questions");
    // Once more for what was taken.
    broker.wires[0].unsent_bytes -= 1;
    let questions = asked(&mut broker, &mut client);
    assert!((1..=2 * SUBSCRIPTIONS).contains(&questions), "{questions}");
}

/// Many requests fit in one packet, and each answer is as long as a message.
#[test]
fn retained_messages_wait_for_the_transport() {
    let mut broker = Broker::new();
    let publisher = publisher(&mut broker);
    let retained = Packet::Publish(Publish {
        retain: true,
        ..publish("t", "kept", QoS::AtLeastOnce)
    });
    broker.packet(publisher, V5, &retained);
    let path = "/v1/topics/t?last";
    let mut client = h3_client::Client::connect(&mut broker);
    broker.wires[0].unsent_bytes = 1 << 20;
    let numbers = [0; 3].map(|_| client.request(&mut broker, "GET", path, &[], b""));
    // Answers without a message do not wait.
    let head = client.request(&mut broker, "HEAD", TOPIC, &[], b"");
    assert_eq!(client.response(head).status, 200);
    broker.stop_reading_with(client.peer, StreamId(numbers[2]), 0x10c);
    for number in numbers {
        assert_eq!(client.response(number).status, 0);
    }
    broker.wires[0].unsent_bytes = 0;
    broker.writable(client.peer);
    client.turn(&mut broker);
    for number in &numbers[..2] {
        assert_eq!(client.response(*number).status, 200);
        assert_eq!(client.response(*number).content, b"kept");
    }
    assert_eq!(client.response(numbers[2]).status, 0, "it was given up");
}

#[test]
fn retained_messages_wait_for_the_transport_of_http1() {
    let mut broker = http1::broker();
    let publisher = publisher(&mut broker);
    let retained = Packet::Publish(Publish {
        retain: true,
        ..publish("t", "kept", QoS::AtLeastOnce)
    });
    broker.packet(publisher, V5, &retained);
    let peer = http1::connect(&mut broker);
    broker.wires[0].unsent_bytes = 1 << 20;
    let head = format!("GET {TOPIC}?last HTTP/1.1\r\nHost: localhost\r\n\r\n");
    broker.send(peer, head.as_bytes());
    assert_eq!(broker.take(peer), b"");
    broker.wires[0].unsent_bytes = 0;
    broker.writable(peer);
    let answer = String::from_utf8(broker.take(peer)).expect("text");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("kept"));
}

#[test]
fn http2_waits_for_the_clients_window() {
    let mut broker = http1::broker();
    let publisher = publisher(&mut broker);
    let mut client = h2_client::Client::connect(&mut broker, b"");
    let mut subscription = client.begin("GET", TOPIC, &[], Some(b""));
    client.turn(&mut broker, &mut [&mut subscription]);
    assert_eq!(subscription.status, 200);
    subscription.reads = false;
    flood(&mut broker, publisher);
    client.turn(&mut broker, &mut [&mut subscription]);
    // Another stream of the connection goes on. Its answer has a window of the connection to fit in.
    let other = client.request(&mut broker, "HEAD", "/v1/topics/none", &[], b"");
    assert_eq!(other.status, 404);
    let pending: usize = (broker.sessions(0).0.iter())
        .map(|session| session.queue.pending)
        .sum();
    assert!(pending > MESSAGES / 2, "{pending} wait in the queue");
    subscription.reads = true;
    client.turn(&mut broker, &mut [&mut subscription]);
    assert_eq!(messages(&subscription.content), MESSAGES);
}

#[test]
fn http1_waits_for_the_transport() {
    let mut broker = http1::broker();
    let publisher = publisher(&mut broker);
    let peer = http1::connect(&mut broker);
    let head = format!("GET {TOPIC} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut content = http1::say(&mut broker, peer, &head).into_bytes();
    assert!(content.starts_with(b"HTTP/1.1 200 "));
    broker.wires[0].unsent_bytes = 1 << 20;
    flood(&mut broker, publisher);
    assert_eq!(broker.take(peer), b"");
    broker.wires[0].unsent_bytes = 0;
    while messages(&content) < MESSAGES {
        broker.writable(peer);
        let more = broker.take(peer);
        assert!(!more.is_empty(), "{}", messages(&content));
        content.extend(more);
    }
}

#[test]
fn a_client_that_leaves_takes_its_subscriptions_along() {
    let mut broker = http1::broker();
    let connected = |broker: &Broker| {
        let sessions = broker.sessions(0).0;
        sessions
            .iter()
            .filter(|session| session.consumer.is_some())
            .count()
    };
    // By the end of the transport, by the end of its side where the version needs both, and by a reset of the stream.
    let peer = http1::connect(&mut broker);
    let head = format!("GET {TOPIC} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    http1::say(&mut broker, peer, &head);
    assert_eq!(connected(&broker), 1);
    broker.cut(peer);
    assert_eq!(connected(&broker), 0);
    let mut client = h2_client::Client::connect(&mut broker, b"");
    let mut subscription = client.begin("GET", TOPIC, &[], Some(b""));
    client.turn(&mut broker, &mut [&mut subscription]);
    assert_eq!(connected(&broker), 1);
    broker.finish(client.peer, StreamId::FIRST);
    assert_eq!(connected(&broker), 0);
    let mut client = h2_client::Client::connect(&mut broker, b"");
    let mut subscription = client.begin("GET", TOPIC, &[], Some(b""));
    client.turn(&mut broker, &mut [&mut subscription]);
    assert_eq!(connected(&broker), 1);
    subscription.reset();
    client.turn(&mut broker, &mut [&mut subscription]);
    assert_eq!(connected(&broker), 0);
    let mut client = h3_client::Client::connect(&mut broker);
    client.request(&mut broker, "GET", TOPIC, &[], b"");
    let number = client.request(&mut broker, "GET", TOPIC, &[], b"");
    assert_eq!(connected(&broker), 2);
    broker.stop_reading_with(client.peer, StreamId(number), 0x10c);
    assert_eq!(connected(&broker), 1);
    broker.cut(client.peer);
    assert_eq!(connected(&broker), 0);
}
