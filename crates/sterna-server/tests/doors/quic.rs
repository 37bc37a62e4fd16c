//! What only QUIC has: several streams in one session, early data, datagrams.

use sterna_mqtt::packet::{Connect, Publish, SubscribeOptions, Will, encode_subscribe};
use sterna_mqtt::{
    MAX_PACKET_BYTES, Packet, PacketId, Properties, Property, PropertyContext, PublishProperties,
    QoS, Version,
};
use sterna_net::{Chunk, StreamId, TransportKind};
use sterna_server::config::{Config, EarlyData, Listener, Rule};

use crate::fixture::{Broker, Peer, block, decode, describe, encode, plain, publish};

const V311: Version = Version::V311;
const V5: Version = Version::V5;
const NOTHING: [&str; 0] = [];

fn quic(broker: &mut Broker) -> Peer {
    broker.open_on(0, TransportKind::Quic, Vec::new())
}

fn early(bytes: &[u8]) -> Chunk<'_> {
    Chunk {
        stream: StreamId::FIRST,
        bytes,
        early: true,
        confirmed: false,
    }
}

fn subscribe(filter: &str) -> Vec<u8> {
    let mut out = bytes::BytesMut::new();
    encode_subscribe(
        V5,
        PacketId::MIN,
        Properties::EMPTY,
        [(filter, SubscribeOptions::new(QoS::AtMostOnce))].into_iter(),
        MAX_PACKET_BYTES,
        &mut out,
    )
    .expect("fits");
    out.to_vec()
}

/// A CONNECT and what follows it, as one flight.
fn flight(connect: &Connect<'_>, messages: &[(&str, QoS)]) -> Vec<u8> {
    let mut bytes = encode(V5, &Packet::Connect(*connect)).to_vec();
    for (topic, qos) in messages {
        bytes.extend_from_slice(&encode(V5, &Packet::Publish(publish(topic, "x", *qos))));
    }
    bytes
}

/// A broker whose only listener treats early data in this way, and where `sensors/#` is idempotent.
fn broker_with(early_data: EarlyData) -> (Broker, Peer) {
    let listener = Listener {
        early_data: Some(early_data),
        ..Listener::at("mqtt+quic://127.0.0.1:0")
    };
    let mut config = Config {
        listeners: vec![listener],
        ..Config::default()
    };
    config.authorization.rules = vec![Rule {
        topics: vec!["sensors/#".to_owned()],
        idempotent: true,
        ..Rule::default()
    }];
    let mut broker = Broker::with(&config, 1);
    let watcher = broker.client(V5, "watch");
    broker.subscribe(watcher, V5, "#", QoS::AtMostOnce);
    (broker, watcher)
}

// ---- streams -----------------------------------------------------------------------------------

/// Streams are lanes of one session: deliveries follow the stream that subscribed, acknowledgements the
/// one that published, and a lost stream loses nothing.
#[test]
fn streams_of_one_connection_share_a_session() {
    let mut broker = Broker::new();
    let (subscribing, publishing, one_way) = (StreamId(4), StreamId(8), StreamId(2));
    let peer = broker.open_on(0, TransportKind::Quic, Vec::new());
    // Data may come before CONNECT is answered, even before it arrives.
    let subscribe = [0x82, 7, 0, 1, 0, 0, 1, b't', 1];
    broker.send_on(peer, subscribing, &subscribe);
    broker.packet(peer, V5, &Packet::Connect(plain(V5, "x")));
    assert_eq!(broker.told(peer, V5), ["CONNACK Success"]);
    assert_eq!(broker.take_on(peer, subscribing), [0x90, 4, 0, 1, 0, 1]);
    let packet = encode(V5, &Packet::Publish(publish("t", "1", QoS::AtLeastOnce)));
    broker.send_on(peer, publishing, &packet);
    assert_eq!(broker.take_on(peer, publishing), [0x40, 2, 0, 7]);
    let delivered = decode(V5, &broker.take_on(peer, subscribing), describe);
    assert_eq!(delivered, ["PUBLISH1 t=1"]);
    // A stream of one direction is answered on control.
    broker.send_on(peer, one_way, &packet);
    broker.finish(peer, one_way);
    assert_eq!(broker.told(peer, V5), ["PUBACK 7 Success"]);
    let delivered = decode(V5, &broker.take_on(peer, subscribing), describe);
    assert_eq!(delivered, ["PUBLISH1 t=1"]);
    // The subscription outlives its stream.
    broker.abort(peer, subscribing);
    broker.send_on(peer, publishing, &packet);
    assert_eq!(broker.told(peer, V5), ["PUBLISH1 t=1"]);
    assert!(!broker.is_closed(peer));
    // PINGREQ is answered where it is asked.
    broker.send_on(peer, publishing, &[0xC0, 0]);
    assert_eq!(broker.take_on(peer, publishing), [0x40, 2, 0, 7, 0xD0, 0]);
}

/// Attack 38: packets that never become complete, one on each of many streams.
#[test]
fn incomplete_packets_of_all_streams_together_are_limited() {
    let mut config = Config::default();
    config.mqtt.maximum_packet_bytes = 4_096;
    config.mqtt.maximum_assembling_bytes = 10_000;
    let mut broker = Broker::with(&config, 1);
    let peer = quic(&mut broker);
    broker.packet(peer, V5, &Packet::Connect(plain(V5, "x")));
    broker.told(peer, V5);
    let payload = "x".repeat(4_000);
    let packet = encode(
        V5,
        &Packet::Publish(publish("t", &payload, QoS::AtLeastOnce)),
    );
    let part = &packet[..3_500];
    for stream in [4, 8] {
        broker.send_on(peer, StreamId(stream), part);
    }
    // What becomes complete counts no more, nor what is given up.
    broker.send_on(peer, StreamId(4), &packet[3_500..]);
    assert_eq!(broker.take_on(peer, StreamId(4))[0], 0x40);
    broker.send_on(peer, StreamId(12), part);
    broker.abort(peer, StreamId(12));
    broker.send_on(peer, StreamId(16), part);
    assert_eq!(broker.told(peer, V5), NOTHING);
    broker.send_on(peer, StreamId(20), part);
    assert_eq!(broker.told(peer, V5), ["DISCONNECT Quota exceeded"]);
    assert!(broker.is_closed(peer));
}

/// A stream that the client does not read any more still brings what it sends; answers and messages come
/// on control, whenever it writes again.
#[test]
fn what_nobody_reads_on_a_stream_comes_on_control() {
    let mut broker = Broker::new();
    let stream = StreamId(4);
    let peer = quic(&mut broker);
    broker.packet(peer, V5, &Packet::Connect(plain(V5, "x")));
    broker.send_on(peer, stream, &subscribe("t"));
    assert_eq!(broker.take_on(peer, stream), [0x90, 4, 0, 1, 0, 0]);
    broker.told(peer, V5);
    broker.stop_reading(peer, stream);
    for _ in 0..2 {
        let message = encode(V5, &Packet::Publish(publish("t", "x", QoS::AtLeastOnce)));
        broker.send_on(peer, stream, &message);
        assert_eq!(broker.told(peer, V5), ["PUBACK 7 Success", "PUBLISH0 t=x"]);
        assert_eq!(broker.take_on(peer, stream), b"");
    }
    broker.finish(peer, stream);
    assert!(!broker.is_closed(peer));
}

/// A stream whose sending side was aborted is ended from the other side, too, so that it counts no more.
#[test]
fn an_aborted_stream_is_given_up_whole() {
    let mut broker = Broker::new();
    let peer = quic(&mut broker);
    broker.packet(peer, V5, &Packet::Connect(plain(V5, "x")));
    for stream in [StreamId(4), StreamId(2)] {
        broker.send_on(peer, stream, &[0xC0, 0]);
        broker.abort(peer, stream);
    }
    assert_eq!(broker.wires[0].finished, [(peer.id, StreamId(4))]);
}

#[test]
fn what_is_held_before_connack_has_a_limit() {
    let mut broker = Broker::new();
    let peer = broker.open_on(0, TransportKind::Quic, Vec::new());
    for stream in 1..40 {
        broker.send_on(peer, StreamId(stream * 4), &[0x30; 4096]);
    }
    assert!(broker.is_closed(peer));
}

/// A message whose payload goes without a copy.
fn image(number: usize) -> (String, String) {
    (format!("images/{number:02}"), "x".repeat(20 << 10))
}

/// The topics of what a client is sent piece by piece: it has room again when it has taken all of one. No piece is
/// much more than the high watermark, since a connection of QUIC with too much unsent is closed.
fn drink(broker: &mut Broker, peer: Peer) -> Vec<String> {
    let most_bytes = Config::default().network.high_watermark_bytes as usize + (21 << 10);
    let mut topics = Vec::new();
    loop {
        let bytes = broker.take(peer);
        if bytes.is_empty() {
            return topics;
        }
        assert!(bytes.len() <= most_bytes, "{} bytes at once", bytes.len());
        let packets = decode(V5, &bytes, |packet| match packet {
            Packet::Publish(publish) => Some(publish.topic.to_owned()),
            _ => None,
        });
        topics.extend(packets.into_iter().flatten());
        broker.writable(peer);
    }
}

#[test]
fn large_messages_wait_until_the_transport_has_room() {
    let mut broker = Broker::new();
    let publisher = broker.client(V5, "p");
    for number in 0..40 {
        let (topic, payload) = image(number);
        let message = Publish {
            retain: true,
            ..publish(&topic, &payload, QoS::AtLeastOnce)
        };
        broker.packet(publisher, V5, &Packet::Publish(message));
    }
    broker.wires[0].is_stalled = true;
    let peer = quic(&mut broker);
    broker.packet(peer, V5, &Packet::Connect(plain(V5, "x")));
    broker.told(peer, V5);
    broker.send(peer, &subscribe("images/#"));
    assert_eq!(drink(&mut broker, peer).len(), 40);
}

#[test]
fn large_messages_that_come_again_wait_for_room_before_new_ones() {
    let mut broker = Broker::new();
    let lasting = block(&[Property::SessionExpiryInterval(600)]);
    let connect = Connect {
        clean_start: false,
        properties: lasting.properties(),
        ..plain(V5, "x")
    };
    let peer = quic(&mut broker);
    broker.packet(peer, V5, &Packet::Connect(connect));
    broker.told(peer, V5);
    broker.subscribe(peer, V5, "images/#", QoS::AtLeastOnce);
    let publisher = broker.client(V5, "p");
    let say = |broker: &mut Broker, numbers: std::ops::Range<usize>| {
        for number in numbers {
            let (topic, payload) = image(number);
            broker.publish(publisher, V5, &topic, &payload, QoS::AtLeastOnce);
        }
    };
    say(&mut broker, 0..40);
    assert_eq!(broker.told(peer, V5).len(), 40);
    broker.cut(peer);
    broker.wires[0].is_stalled = true;
    let peer = quic(&mut broker);
    broker.packet(peer, V5, &Packet::Connect(connect));
    say(&mut broker, 40..45);
    let expected: Vec<String> = (0..45).map(|number| image(number).0).collect();
    assert_eq!(drink(&mut broker, peer), expected);
}

// ---- early data ----------------------------------------------------------------------------------

#[test]
fn early_data_waits_for_the_handshake_in_order() {
    let (mut broker, watcher) = broker_with(EarlyData::Off);
    let peer = quic(&mut broker);
    broker.arrive(
        peer,
        early(&flight(&plain(V5, "x"), &[("t/1", QoS::AtLeastOnce)])),
    );
    assert_eq!(broker.take(peer), b"");
    let late = encode(V5, &Packet::Publish(publish("t/2", "x", QoS::AtLeastOnce)));
    let chunk = Chunk {
        early: false,
        ..early(&late)
    };
    broker.arrive(peer, chunk);
    assert_eq!(broker.told(watcher, V5), NOTHING);
    broker.confirm(peer);
    assert_eq!(
        broker.told(watcher, V5),
        ["PUBLISH0 t/1=x", "PUBLISH0 t/2=x"]
    );
    assert_eq!(
        broker.told(peer, V5),
        ["CONNACK Success", "PUBACK 7 Success", "PUBACK 7 Success"]
    );
}

#[test]
fn what_a_replay_cannot_harm_is_done_before_the_handshake_is_complete() {
    let (mut broker, watcher) = broker_with(EarlyData::Idempotent);
    let peer = quic(&mut broker);
    let mut bytes = flight(&plain(V5, "x"), &[("sensors/1", QoS::AtMostOnce)]);
    bytes.extend_from_slice(&subscribe("back"));
    bytes.extend_from_slice(&[0xC0, 0]);
    let acknowledged = encode(V5, &Packet::Publish(publish("any", "x", QoS::AtLeastOnce)));
    bytes.extend_from_slice(&acknowledged);
    // Everything from here on waits, in order, whether it could have been done or not.
    for (topic, qos) in [
        ("other", QoS::AtMostOnce),
        ("sensors/2", QoS::AtLeastOnce),
        ("sensors/3", QoS::AtMostOnce),
    ] {
        bytes.extend_from_slice(&encode(V5, &Packet::Publish(publish(topic, "x", qos))));
    }
    broker.arrive(peer, early(&bytes));
    assert_eq!(
        broker.told(watcher, V5),
        ["PUBLISH0 sensors/1=x", "PUBLISH0 any=x"]
    );
    assert_eq!(
        broker.told(peer, V5),
        [
            "CONNACK Success",
            "SUBACK 1 0x00",
            "PINGRESP",
            "PUBACK 7 Success"
        ]
    );
    // A message for it can be sent before: only the real client has the keys to read it.
    let other = broker.client(V5, "other");
    broker.publish(other, V5, "back", "y", QoS::AtMostOnce);
    assert_eq!(broker.told(peer, V5), ["PUBLISH0 back=y"]);
    broker.told(watcher, V5);
    broker.confirm(peer);
    assert_eq!(
        broker.told(watcher, V5),
        [
            "PUBLISH0 other=x",
            "PUBLISH0 sensors/2=x",
            "PUBLISH0 sensors/3=x",
        ]
    );
    assert_eq!(broker.told(peer, V5), ["PUBACK 7 Success"]);
}

#[test]
fn a_message_whose_repetition_nobody_would_know_waits() {
    let aliased = block(&[Property::TopicAlias(1)]);
    let properties = PublishProperties::parse(aliased.properties().raw(), PropertyContext::Publish);
    let aliased = Publish {
        topic: "",
        properties: properties.expect("an alias"),
        ..publish("", "x", QoS::AtLeastOnce)
    };
    // Without a mark, from a client that the broker has given its name, and behind an alias.
    for (name, message) in [
        ("x", publish("other", "x", QoS::AtMostOnce)),
        ("", publish("sensors/1", "x", QoS::AtLeastOnce)),
        ("", publish("sensors/1", "x", QoS::ExactlyOnce)),
        ("x", aliased),
    ] {
        let (mut broker, watcher) = broker_with(EarlyData::Idempotent);
        let peer = quic(&mut broker);
        let mut bytes = flight(&plain(V5, name), &[]);
        bytes.extend_from_slice(&encode(V5, &Packet::Publish(message)));
        broker.arrive(peer, early(&bytes));
        assert_eq!(broker.told(peer, V5), ["CONNACK Success"]);
        assert_eq!(broker.told(watcher, V5), NOTHING);
        broker.confirm(peer);
        if message.topic.is_empty() {
            assert!(broker.is_closed(peer), "the alias stands for nothing");
        } else {
            let told = format!("PUBLISH0 {}=x", message.topic);
            assert_eq!(broker.told(watcher, V5), [told]);
        }
    }
}

/// Brokers of two shards with early data as it is by default, and one who watches.
fn by_default() -> (Broker, Peer) {
    let mut config = Config {
        listeners: vec![Listener::at("mqtt+quic://127.0.0.1:0")],
        ..Config::default()
    };
    // The watcher is silent for minutes.
    config.mqtt.server_keep_alive_s = Some(0);
    let mut broker = Broker::with(&config, 2);
    let watcher = broker.client(V5, "watch");
    broker.subscribe(watcher, V5, "#", QoS::AtMostOnce);
    (broker, watcher)
}

/// A flight with one message, as early data or not.
fn begin(
    broker: &mut Broker,
    shard: usize,
    name: &str,
    message: &Publish<'_>,
    is_early: bool,
) -> Peer {
    let peer = broker.open_on(shard, TransportKind::Quic, Vec::new());
    let mut bytes = flight(&plain(V5, name), &[]);
    bytes.extend_from_slice(&encode(V5, &Packet::Publish(*message)));
    let chunk = Chunk {
        early: is_early,
        confirmed: !is_early,
        ..early(&bytes)
    };
    broker.arrive(peer, chunk);
    peer
}

/// Attack rows 29 and 41: an attacker delivers a copy of a first flight and stops the original. The client
/// says it again, over a connection that is its own, on any shard.
#[test]
fn what_the_copy_of_a_flight_did_is_not_done_again() {
    for shard in [0, 1] {
        for (qos, answer) in [
            (QoS::AtLeastOnce, "PUBACK 7 Success"),
            (QoS::ExactlyOnce, "PUBREC 7 Success"),
        ] {
            let (mut broker, watcher) = by_default();
            let message = publish("t", "x", qos);
            let copy = begin(&mut broker, 0, "x", &message, true);
            assert_eq!(broker.told(copy, V5), ["CONNACK Success", answer]);
            assert_eq!(broker.told(watcher, V5), ["PUBLISH0 t=x"]);
            let own = begin(&mut broker, shard, "x", &message, false);
            assert_eq!(broker.told(own, V5), ["CONNACK Success", answer], "{shard}");
            assert_eq!(broker.told(watcher, V5), NOTHING, "{shard} {qos:?}");
            // It may say the same once more, and then means it.
            if qos == QoS::AtLeastOnce {
                broker.packet(own, V5, &Packet::Publish(message));
                assert_eq!(broker.told(watcher, V5), ["PUBLISH0 t=x"]);
            }
            // Another client, another message: theirs.
            let other = begin(&mut broker, shard, "y", &message, false);
            assert_eq!(broker.told(other, V5), ["CONNACK Success", answer]);
            assert_eq!(broker.told(watcher, V5), ["PUBLISH0 t=x"]);
        }
    }
}

/// The other way round: the original was held back, and comes when the client has said it again.
#[test]
fn a_flight_that_was_held_back_is_not_done_late() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let (mut broker, watcher) = by_default();
        let message = publish("t", "x", qos);
        let own = begin(&mut broker, 1, "x", &message, false);
        broker.told(own, V5);
        assert_eq!(broker.told(watcher, V5), ["PUBLISH0 t=x"]);
        broker.advance(59_000);
        let late = begin(&mut broker, 0, "x", &message, true);
        assert_eq!(broker.told(late, V5), NOTHING);
        assert!(!broker.is_closed(own), "nothing is taken over");
        assert_eq!(broker.told(watcher, V5), NOTHING);
        broker.cut(late);
        assert_eq!(broker.told(watcher, V5), NOTHING);
    }
}

/// A device that says the same at each visit is heard each time, and at the first moment where it has
/// stayed away for a while.
#[test]
fn a_device_that_repeats_itself_is_heard() {
    let (mut broker, watcher) = by_default();
    let message = publish("t", "20.5", QoS::AtLeastOnce);
    for pause_ms in [1_000, 1_000, 200_000, 0] {
        let visit = begin(&mut broker, 0, "x", &message, true);
        broker.confirm(visit);
        assert_eq!(broker.told(watcher, V5), ["PUBLISH0 t=20.5"]);
        broker.cut(visit);
        broker.advance(pause_ms);
    }
}

/// A CONNECT of the client "x", and what follows it.
fn coming(clean_start: bool, expiry_s: u32, after: &[u8]) -> Vec<u8> {
    let lasting = block(&[Property::SessionExpiryInterval(expiry_s)]);
    let connect = Connect {
        clean_start,
        properties: lasting.properties(),
        ..plain(V5, "x")
    };
    [flight(&connect, &[]), after.to_vec()].concat()
}

fn unsubscribe(filter: &str) -> Vec<u8> {
    let length = filter.len() as u8;
    let head = [0xA2, length + 5, 0, 2, 0, 0, length];
    [&head, filter.as_bytes()].concat()
}

/// An attacker holds a flight of "x" back, whose client comes by another way meanwhile, and may go again. It must take
/// nothing: not the connection, nor the session, its subscriptions, messages and will.
#[test]
fn a_flight_that_was_held_back_takes_nothing() {
    for (is_live, clean_start, expiry_s, after) in [
        (true, false, 600, vec![]),
        (true, true, 600, vec![]),
        (false, true, 600, vec![]),
        (false, false, 0, vec![]),
        (false, false, 599, vec![]),
        (false, false, 600, unsubscribe("t")),
    ] {
        let (mut broker, _) = by_default();
        let own = quic(&mut broker);
        broker.send(own, &coming(false, 600, &[]));
        broker.told(own, V5);
        broker.subscribe(own, V5, "t", QoS::AtLeastOnce);
        if !is_live {
            broker.cut(own);
        }
        let late = quic(&mut broker);
        broker.arrive(late, early(&coming(clean_start, expiry_s, &after)));
        let publisher = broker.client(V5, "p");
        broker.publish(publisher, V5, "t", "kept", QoS::AtLeastOnce);
        assert_eq!(broker.is_closed(own), !is_live, "{clean_start} {expiry_s}");
        broker.cut(late);
        let told = if is_live {
            broker.told(own, V5)
        } else {
            let own = quic(&mut broker);
            broker.send(own, &coming(false, 600, &[]));
            broker.told(own, V5)
        };
        // It comes again where the late flight got it first.
        let last = told.last().map(|line| line.replace(" dup", ""));
        assert_eq!(
            last.as_deref(),
            Some("PUBLISH1 t=kept"),
            "{is_live} {clean_start} {expiry_s}"
        );
    }
}

#[test]
fn a_flight_that_was_held_back_takes_no_will() {
    let (mut broker, watcher) = by_default();
    let lasting = block(&[Property::SessionExpiryInterval(600)]);
    let delayed = block(&[Property::WillDelayInterval(100)]);
    let properties = PublishProperties::parse(delayed.properties().raw(), PropertyContext::Will);
    let connect = Connect {
        clean_start: false,
        properties: lasting.properties(),
        will: Some(Will {
            topic: "will",
            payload: b"gone",
            qos: QoS::AtLeastOnce,
            retain: false,
            properties: properties.expect("a delay"),
        }),
        ..plain(V5, "x")
    };
    let own = quic(&mut broker);
    broker.packet(own, V5, &Packet::Connect(connect));
    broker.cut(own);
    let late = quic(&mut broker);
    broker.arrive(late, early(&coming(false, 600, &[])));
    broker.cut(late);
    broker.advance(101_000);
    assert_eq!(broker.told(watcher, V5), ["PUBLISH0 will=gone"]);
}

/// What is held back waits for the handshake, and is done then.
#[test]
fn a_client_that_comes_back_is_heard_after_its_handshake() {
    let (mut broker, watcher) = by_default();
    let own = quic(&mut broker);
    broker.send(own, &coming(false, 600, &[]));
    let back = quic(&mut broker);
    let message = encode(V5, &Packet::Publish(publish("t", "x", QoS::AtLeastOnce)));
    broker.arrive(back, early(&coming(false, 600, &message)));
    assert_eq!(broker.told(watcher, V5), NOTHING);
    broker.confirm(back);
    assert!(broker.is_closed(own), "taken over");
    assert_eq!(
        broker.told(back, V5),
        ["CONNACK Success present", "PUBACK 7 Success"]
    );
    assert_eq!(broker.told(watcher, V5), ["PUBLISH0 t=x"]);
}

/// A session that is away is gone on with at once; subscriptions wait there, and those that are shared do everywhere.
#[test]
fn a_session_that_is_away_is_gone_on_with_at_once() {
    let (mut broker, watcher) = by_default();
    let message = encode(V5, &Packet::Publish(publish("t", "x", QoS::AtLeastOnce)));
    for (visit, subscribes, answered) in [(0, false, 2), (1, false, 2), (2, true, 1)] {
        let mut after = Vec::new();
        if subscribes {
            after.extend_from_slice(&subscribe("other"));
        }
        after.extend_from_slice(&message);
        let peer = quic(&mut broker);
        broker.arrive(peer, early(&coming(false, 600, &after)));
        assert_eq!(broker.told(peer, V5).len(), answered, "{visit}");
        broker.confirm(peer);
        assert_eq!(broker.told(watcher, V5), ["PUBLISH0 t=x"]);
        broker.cut(peer);
        broker.advance(200_000);
    }
    let peer = quic(&mut broker);
    let flight = [flight(&plain(V5, "y"), &[]), subscribe("$share/g/t")].concat();
    broker.arrive(peer, early(&flight));
    assert_eq!(broker.told(peer, V5), ["CONNACK Success"]);
    broker.confirm(peer);
    assert_eq!(broker.told(peer, V5), ["SUBACK 1 0x00"]);
}

/// A first flight may come from any address: where a rule asks for addresses, it is judged after the handshake.
#[test]
fn no_rule_is_decided_by_an_address_that_nobody_has_proved() {
    for early_data in [EarlyData::Idempotent, EarlyData::All] {
        let listener = Listener {
            early_data: Some(early_data),
            ..Listener::at("mqtt+quic://127.0.0.1:0")
        };
        let mut config = Config {
            listeners: vec![listener],
            ..Config::default()
        };
        config.authorization.rules = vec![Rule {
            topics: vec!["#".to_owned()],
            addresses: vec!["127.0.0.0/8".parse().expect("a prefix")],
            ..Rule::default()
        }];
        config.authorization.default_allow = false;
        let mut broker = Broker::with(&config, 1);
        let watcher = broker.client(V5, "watch");
        broker.subscribe(watcher, V5, "#", QoS::AtMostOnce);
        let peer = quic(&mut broker);
        let flight = flight(&plain(V5, "x"), &[("t", QoS::AtLeastOnce)]);
        broker.arrive(peer, early(&flight));
        assert_eq!(broker.told(watcher, V5), NOTHING);
        assert_eq!(broker.told(peer, V5), NOTHING);
        broker.confirm(peer);
        assert_eq!(broker.told(watcher, V5), ["PUBLISH0 t=x"]);
        assert_eq!(
            broker.told(peer, V5),
            ["CONNACK Success", "PUBACK 7 Success"]
        );
    }
}

#[test]
fn a_listener_can_let_everything_through() {
    let (mut broker, watcher) = broker_with(EarlyData::All);
    let peer = quic(&mut broker);
    broker.arrive(
        peer,
        early(&flight(&plain(V5, "x"), &[("t", QoS::AtLeastOnce)])),
    );
    assert_eq!(broker.told(watcher, V5), ["PUBLISH0 t=x"]);
    assert_eq!(
        broker.told(peer, V5),
        ["CONNACK Success", "PUBACK 7 Success"]
    );
}

/// Whoever replays a CONNECT cannot finish the handshake: the will that came with it is not his to
/// publish.
#[test]
fn a_connection_that_is_never_confirmed_leaves_no_will() {
    for (confirmed, told) in [(false, &NOTHING[..]), (true, &["PUBLISH0 will=gone"][..])] {
        let (mut broker, watcher) = broker_with(EarlyData::Idempotent);
        let peer = quic(&mut broker);
        let connect = Connect {
            will: Some(Will {
                topic: "will",
                payload: b"gone",
                qos: QoS::AtLeastOnce,
                retain: false,
                properties: PublishProperties::EMPTY,
            }),
            ..plain(V5, "x")
        };
        broker.arrive(peer, early(&flight(&connect, &[])));
        assert_eq!(broker.told(peer, V5), ["CONNACK Success"]);
        if confirmed {
            broker.confirm(peer);
        }
        broker.cut(peer);
        assert_eq!(broker.told(watcher, V5), told);
    }
}

// ---- datagrams -----------------------------------------------------------------------------------

fn with_datagrams<'a>(properties: &'a sterna_mqtt::PropertyBuf, client_id: &'a str) -> Connect<'a> {
    Connect {
        properties: properties.properties(),
        ..plain(V5, client_id)
    }
}

#[test]
fn a_datagram_is_one_message_of_qos_0() {
    let (mut broker, watcher) = broker_with(EarlyData::Off);
    let peer = quic(&mut broker);
    let message = encode(V5, &Packet::Publish(publish("t", "x", QoS::AtMostOnce)));
    // One that overtakes CONNECT is kept for it.
    broker.datagram(peer, &message);
    broker.packet(peer, V5, &Packet::Connect(plain(V5, "x")));
    assert_eq!(broker.told(watcher, V5), ["PUBLISH0 t=x"]);
    broker.datagram(peer, &message);
    assert_eq!(broker.told(watcher, V5), ["PUBLISH0 t=x"]);
    // What begins with zero is no MQTT.
    broker.datagram(peer, &[0, 1, 2, 3]);
    assert_eq!(broker.told(peer, V5), ["CONNACK Success"]);
}

#[test]
fn a_datagram_with_anything_else_is_a_protocol_error() {
    let message = encode(V5, &Packet::Publish(publish("t", "x", QoS::AtMostOnce)));
    let acknowledged = encode(V5, &Packet::Publish(publish("t", "x", QoS::AtLeastOnce)));
    for (bytes, reason) in [
        (&acknowledged[..], "Protocol Error"),
        (
            &[message.as_ref(), message.as_ref()].concat()[..],
            "Protocol Error",
        ),
        (&message[..message.len() - 1], "Protocol Error"),
        (&[0xC0, 0][..], "Protocol Error"),
        (&[][..], "Protocol Error"),
        (&[0x30, 3, 0, 0, 0], "Protocol Error"),
        (&[0x30, 0xFF, 0xFF, 0xFF, 0xFF, 1], "Malformed Packet"),
    ] {
        let mut broker = Broker::new();
        let peer = quic(&mut broker);
        broker.packet(peer, V5, &Packet::Connect(plain(V5, "x")));
        broker.datagram(peer, bytes);
        assert_eq!(
            broker.told(peer, V5),
            ["CONNACK Success".to_owned(), format!("DISCONNECT {reason}")],
            "{bytes:?}"
        );
        assert!(broker.is_closed(peer));
    }
}

#[test]
fn a_client_that_asks_gets_datagrams_and_others_do_not() {
    let mut broker = Broker::new();
    let asks = block(&[Property::UserProperty("datagrams", "1")]);
    broker.wires[0].datagram_bytes = 1_200;
    let connect = |broker: &mut Broker, transport, connect: Connect<'_>| {
        let peer = broker.open_on(0, transport, Vec::new());
        broker.packet(peer, connect.version, &Packet::Connect(connect));
        let agreed = broker.packets(peer, connect.version, |packet| match packet {
            Packet::ConnAck(connack) => connack
                .properties
                .user_properties()
                .any(|property| property == ("datagrams", "1")),
            _ => panic!("no CONNACK"),
        });
        broker.subscribe(peer, connect.version, "t", QoS::AtLeastOnce);
        (peer, agreed == [true])
    };
    let (asking, yes) = connect(&mut broker, TransportKind::Quic, with_datagrams(&asks, "a"));
    let (tcp, over_tcp) = connect(&mut broker, TransportKind::Tcp, with_datagrams(&asks, "b"));
    let (silent, unasked) = connect(&mut broker, TransportKind::Quic, plain(V5, "c"));
    let (old, older) = connect(&mut broker, TransportKind::Quic, plain(V311, "d"));
    assert_eq!([yes, over_tcp, unasked, older], [true, false, false, false]);
    let publisher = broker.client(V5, "p");
    broker.publish(publisher, V5, "t", "x", QoS::AtMostOnce);
    let datagrams: Vec<_> = std::mem::take(&mut broker.wires[0].datagrams);
    let told: Vec<_> = datagrams
        .iter()
        .map(|(to, bytes)| (*to, decode(V5, bytes, describe)))
        .collect();
    assert_eq!(told, [(asking.id, vec!["PUBLISH0 t=x".to_owned()])]);
    assert_eq!(broker.told(asking, V5), NOTHING);
    for (peer, version) in [(tcp, V5), (silent, V5), (old, V311)] {
        assert_eq!(broker.told(peer, version), ["PUBLISH0 t=x"]);
    }
    // What is acknowledged, or too large, comes on a stream.
    broker.publish(publisher, V5, "t", "y", QoS::AtLeastOnce);
    assert_eq!(broker.told(asking, V5), ["PUBLISH1 t=y"]);
    let large = "z".repeat(1_500);
    broker.publish(publisher, V5, "t", &large, QoS::AtMostOnce);
    assert_eq!(broker.told(asking, V5), [format!("PUBLISH0 t={large}")]);
    let larger = "z".repeat(100_000);
    broker.publish(publisher, V5, "t", &larger, QoS::AtMostOnce);
    assert_eq!(broker.told(asking, V5), [format!("PUBLISH0 t={larger}")]);
    assert!(broker.wires[0].datagrams.is_empty());
}

// ---- keep alive ------------------------------------------------------------------------------------

/// [MQTT-3.1.2-21]
#[test]
fn a_listener_can_leave_liveness_to_the_transport() {
    let mut config = Config::default();
    config.mqtt.server_keep_alive_s = Some(30);
    config.listeners = vec![Listener {
        server_keep_alive_s: Some(0),
        ..Listener::at("mqtt+quic://127.0.0.1:0")
    }];
    let mut broker = Broker::with(&config, 1);
    let peer = quic(&mut broker);
    broker.packet(peer, V5, &Packet::Connect(plain(V5, "x")));
    let told = broker.packets(peer, V5, |packet| match packet {
        Packet::ConnAck(connack) => connack.server_keep_alive_s(),
        _ => None,
    });
    assert_eq!(told, [Some(0)]);
    broker.advance(24 * 3_600_000);
    assert!(!broker.is_closed(peer));
}
