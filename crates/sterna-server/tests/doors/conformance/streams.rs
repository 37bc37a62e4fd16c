//! Streams of QUIC as lanes of one session: what is in flight when a stream or the connection is lost.

use sterna_mqtt::packet::Publish;
use sterna_mqtt::{Packet, PacketId, QoS};
use sterna_net::{StreamId, TransportKind};

use crate::conformance::{V5, expiring, persistent};
use crate::fixture::{Broker, Peer, decode, describe, encode, publish};

const CONTROL: StreamId = StreamId::FIRST;
const FOUR: StreamId = StreamId(4);
const EIGHT: StreamId = StreamId(8);

/// A client over QUIC with a session that outlives its connection.
fn connect(broker: &mut Broker, client_id: &str) -> Peer {
    let peer = broker.open_on(0, TransportKind::Quic, Vec::new());
    let properties = expiring(600);
    let connect = persistent(client_id, &properties, false);
    broker.packet(peer, V5, &Packet::Connect(connect));
    let told = broker.told(peer, V5);
    assert!(told[0].starts_with("CONNACK Success"), "{told:?}");
    peer
}

fn told_on(broker: &mut Broker, peer: Peer, stream: StreamId) -> Vec<String> {
    decode(V5, &broker.take_on(peer, stream), describe)
}

/// Publishes with QoS 2 and identifier 1, and takes PUBREC.
fn send(broker: &mut Broker, peer: Peer, stream: StreamId, payload: &str, dup: bool) {
    let packet = Packet::Publish(Publish {
        packet_id: PacketId::new(1),
        dup,
        ..publish("t", payload, QoS::ExactlyOnce)
    });
    broker.send_on(peer, stream, &encode(V5, &packet));
    assert_eq!(told_on(broker, peer, stream), ["PUBREC 1 Success"]);
}

fn release(broker: &mut Broker, peer: Peer, stream: StreamId) {
    broker.send_on(peer, stream, &[0x62, 2, 0, 1]);
    assert_eq!(told_on(broker, peer, stream), ["PUBCOMP 1 Success"]);
}

/// Cuts the client's connection, and connects it again.
fn reconnect(broker: &mut Broker, peer: Peer) -> Peer {
    broker.cut(peer);
    connect(broker, "p")
}

/// [MQTT-4.3.3-10]
#[test]
fn streams_that_count_apart_lose_and_double_nothing_over_a_lost_connection() {
    let mut broker = Broker::new();
    let watcher = broker.client(V5, "watch");
    broker.subscribe(watcher, V5, "t", QoS::AtMostOnce);
    let peer = connect(&mut broker, "p");
    send(&mut broker, peer, FOUR, "B4", false);
    let mut peer = reconnect(&mut broker, peer);
    send(&mut broker, peer, EIGHT, "B8", false);
    send(&mut broker, peer, FOUR, "B4", true);
    release(&mut broker, peer, FOUR);
    release(&mut broker, peer, EIGHT);
    let told = broker.told(watcher, V5);
    assert_eq!(told, ["PUBLISH0 t=B4", "PUBLISH0 t=B8"]);
    for [first, second] in [[FOUR, EIGHT], [EIGHT, FOUR]] {
        // Both streams had the identifier, and both messages come again, on whatever stream.
        send(&mut broker, peer, FOUR, "C4", false);
        send(&mut broker, peer, EIGHT, "C8", false);
        peer = reconnect(&mut broker, peer);
        send(&mut broker, peer, first, "C4", true);
        send(&mut broker, peer, second, "C8", true);
        release(&mut broker, peer, FOUR);
        release(&mut broker, peer, EIGHT);
        let told = broker.told(watcher, V5);
        assert_eq!(told, ["PUBLISH0 t=C4", "PUBLISH0 t=C8"]);
        // PUBREL releases that of the equally numbered stream.
        send(&mut broker, peer, FOUR, "D4", false);
        send(&mut broker, peer, EIGHT, "D8", false);
        peer = reconnect(&mut broker, peer);
        release(&mut broker, peer, first);
        let left = if first == FOUR { "D8" } else { "D4" };
        send(&mut broker, peer, CONTROL, left, true);
        release(&mut broker, peer, CONTROL);
        let told = broker.told(watcher, V5);
        assert_eq!(told, ["PUBLISH0 t=D4", "PUBLISH0 t=D8"]);
    }
}

/// [MQTT-4.3.3-10]
#[test]
fn streams_that_count_apart_lose_and_double_nothing_over_a_lost_stream() {
    let mut broker = Broker::new();
    let watcher = broker.client(V5, "watch");
    broker.subscribe(watcher, V5, "t", QoS::AtMostOnce);
    let peer = connect(&mut broker, "p");
    send(&mut broker, peer, FOUR, "X", false);
    broker.stop_reading(peer, FOUR);
    broker.abort(peer, FOUR);
    for payload in ["Y", "X"] {
        send(&mut broker, peer, CONTROL, payload, true);
        release(&mut broker, peer, CONTROL);
    }
    let told = broker.told(watcher, V5);
    assert_eq!(told, ["PUBLISH0 t=X", "PUBLISH0 t=Y"]);
    assert_eq!(broker.told(peer, V5), [""; 0]);
}

/// Answers that have no stream any more go nowhere: on the control stream they could be taken for those to other
/// messages. Those to a stream that is only not read go there.
#[test]
fn answers_on_lost_streams() {
    let mut broker = Broker::new();
    let watcher = broker.client(V5, "watch");
    broker.subscribe(watcher, V5, "t", QoS::AtMostOnce);
    let peer = connect(&mut broker, "p");
    send(&mut broker, peer, FOUR, "a", false);
    broker.stop_reading(peer, FOUR);
    broker.send_on(peer, FOUR, &[0x62, 2, 0, 1]);
    assert_eq!(broker.told(peer, V5), ["PUBCOMP 1 Success"]);
    assert_eq!(told_on(&mut broker, peer, FOUR), [""; 0]);
}

/// A client leaves a stream unread: what was sent there comes on the control stream, in order and before later
/// messages, whether the stream itself goes on or not.
#[test]
fn deliveries_on_a_stopped_stream_come_on_the_control_stream() {
    for (qos, is_reset, is_stopped_first) in [
        (QoS::AtLeastOnce, false, true),
        (QoS::ExactlyOnce, false, true),
        (QoS::AtLeastOnce, true, true),
        (QoS::AtLeastOnce, true, false),
        (QoS::ExactlyOnce, true, false),
    ] {
        let level = qos as u8;
        let mut broker = Broker::new();
        let peer = connect(&mut broker, "p");
        // SUBSCRIBE to `t`.
        let subscribe = [0x82, 7, 0, 9, 0, 0, 1, b't', level];
        broker.send_on(peer, FOUR, &subscribe);
        let told = told_on(&mut broker, peer, FOUR);
        assert_eq!(told, [format!("SUBACK 9 0x0{level}")]);
        let publisher = broker.client(V5, "publisher");
        for payload in ["1", "2", "3"] {
            broker.publish(publisher, V5, "t", payload, QoS::ExactlyOnce);
            broker.send(publisher, &[0x62, 2, 0, 7]);
        }
        let sent = decode(V5, &broker.take_on(peer, FOUR), |packet| match packet {
            Packet::Publish(publish) => publish.packet_id,
            _ => None,
        });
        let sent: Vec<u16> = sent.into_iter().flatten().map(PacketId::get).collect();
        assert_eq!(sent.len(), 3);
        // The client has the second.
        let [high, low] = sent[1].to_be_bytes();
        let first_byte = if qos == QoS::AtLeastOnce { 0x40 } else { 0x50 };
        broker.send_on(peer, FOUR, &[first_byte, 2, high, low]);
        let _ = broker.take_on(peer, FOUR);
        if is_stopped_first {
            broker.stop_reading(peer, FOUR);
        }
        if is_reset {
            broker.abort(peer, FOUR);
        }
        if !is_stopped_first {
            broker.stop_reading(peer, FOUR);
        }
        broker.publish(publisher, V5, "t", "4", QoS::ExactlyOnce);
        let mut told = broker.told(peer, V5);
        if qos == QoS::ExactlyOnce {
            // Its PUBREL was lost with the stream.
            let place = told.iter().position(|line| line.starts_with("PUBREL"));
            let release = told.remove(place.expect("PUBREL comes again"));
            assert_eq!(release, format!("PUBREL {} Success", sent[1]));
        }
        let expected = [
            format!("PUBLISH{level} dup t=1"),
            format!("PUBLISH{level} dup t=3"),
            format!("PUBLISH{level} t=4"),
        ];
        assert_eq!(told, expected, "{qos:?} {is_reset} {is_stopped_first}");
        assert_eq!(told_on(&mut broker, peer, FOUR), [""; 0]);
        // Once is enough.
        broker.stop_reading(peer, FOUR);
        assert_eq!(broker.told(peer, V5), [""; 0]);
    }
}
