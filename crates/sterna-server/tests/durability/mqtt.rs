//! MQTT: what is acknowledged when.

use sterna_mqtt::packet::{Connect, Publish, SubscribeOptions};
use sterna_mqtt::{Packet, PacketId, Property, QoS, Version};
use sterna_net::{StreamId, TransportKind};
use sterna_server::config::{Config, Durability, Queue};

use crate::fixture::{Broker, Peer, block, encode, plain, publish};
use crate::store::{Held, config, with_strict_rule};

const V5: Version = Version::V5;
const V4: Version = Version::V311;
const TRANSPORTS: [TransportKind; 2] = [TransportKind::Tcp, TransportKind::Quic];

/// Connects; what the client was told.
fn connect(
    broker: &mut Broker,
    transport: TransportKind,
    version: Version,
    client_id: &str,
    is_durable: bool,
) -> (Peer, Vec<String>) {
    let peer = broker.open_on(0, transport, Vec::new());
    let properties = block(&[Property::SessionExpiryInterval(1_000)]);
    let mut connect = Connect {
        clean_start: !is_durable,
        ..plain(version, client_id)
    };
    if is_durable && version == V5 {
        connect.properties = properties.properties();
    }
    broker.packet(peer, version, &Packet::Connect(connect));
    let told = broker.told(peer, version);
    (peer, told)
}

/// A session that is kept, and subscribes to `kept/#`.
fn keeper(broker: &mut Broker, transport: TransportKind) -> Peer {
    let (keeper, _) = connect(broker, transport, V5, "keeper", true);
    broker.subscribe(keeper, V5, "kept/#", QoS::ExactlyOnce);
    keeper
}

fn numbered(topic: &str, qos: QoS, packet_id: u16) -> Packet<'_> {
    Packet::Publish(Publish {
        packet_id: PacketId::new(packet_id),
        ..publish(topic, "x", qos)
    })
}

#[test]
fn a_message_is_acknowledged_when_its_listener_says() {
    for transport in TRANSPORTS {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        keeper(&mut broker, transport);
        let publishers: Vec<Peer> = (0..3)
            .map(|listener| {
                broker.listener = listener;
                connect(&mut broker, transport, V5, &format!("p{listener}"), false).0
            })
            .collect();
        store.hold();
        for &peer in &publishers {
            broker.packet(peer, V5, &numbered("kept/a", QoS::AtLeastOnce, 1));
        }
        let told = |broker: &mut Broker| {
            let told = publishers.iter().map(|&peer| broker.told(peer, V5));
            told.map(|told| told.len()).collect::<Vec<_>>()
        };
        assert_eq!(told(&mut broker), [0, 0, 1], "{transport:?}");
        store.write(&mut broker);
        assert_eq!(told(&mut broker), [0, 1, 0], "{transport:?}");
        store.sync(&mut broker);
        assert_eq!(told(&mut broker), [1, 0, 0], "{transport:?}");
    }
}

/// [MQTT-4.6.0-2]
#[test]
fn acknowledgements_keep_their_order_and_nothing_else_waits() {
    for transport in TRANSPORTS {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        let keeper = keeper(&mut broker, transport);
        let (live, _) = connect(&mut broker, transport, V5, "live", false);
        broker.subscribe(live, V5, "#", QoS::AtMostOnce);
        let (peer, _) = connect(&mut broker, transport, V5, "p", false);
        store.hold();
        for (topic, packet_id) in [("kept/a", 1), ("other", 2), ("kept/b", 3), ("other", 4)] {
            broker.packet(peer, V5, &numbered(topic, QoS::AtLeastOnce, packet_id));
        }
        broker.publish(peer, V5, "other", "y", QoS::AtMostOnce);
        broker.packet(peer, V5, &Packet::PingReq);
        assert_eq!(broker.told(peer, V5), ["PINGRESP"]);
        assert_eq!(broker.told(live, V5).len(), 5, "live readers do not wait");
        assert_eq!(broker.told(keeper, V5).len(), 2);
        store.sync(&mut broker);
        assert_eq!(
            broker.told(peer, V5),
            [
                "PUBACK 1 Success",
                "PUBACK 2 Success",
                "PUBACK 3 Success",
                "PUBACK 4 Success"
            ]
        );
        // Nothing waits now, so what nobody keeps is acknowledged at once.
        store.hold();
        broker.packet(peer, V5, &numbered("other", QoS::AtLeastOnce, 5));
        assert_eq!(broker.told(peer, V5), ["PUBACK 5 Success"]);
    }
}

#[test]
fn what_is_kept_so_far_leaves_and_the_rest_waits() {
    let store = Held::new();
    let mut broker = store.broker(&config(), 1);
    keeper(&mut broker, TransportKind::Tcp);
    let (peer, _) = connect(&mut broker, TransportKind::Tcp, V5, "p", false);
    store.hold();
    broker.packet(peer, V5, &numbered("kept/a", QoS::AtLeastOnce, 1));
    let one = store.memory.appends();
    broker.packet(peer, V5, &numbered("kept/a", QoS::AtLeastOnce, 2));
    assert!(store.memory.appends() > one);
    store.sync_up_to(&mut broker, one);
    assert_eq!(broker.told(peer, V5), ["PUBACK 1 Success"]);
    store.sync(&mut broker);
    assert_eq!(broker.told(peer, V5), ["PUBACK 2 Success"]);
}

#[test]
fn a_client_is_told_that_waits_for_more_than_another() {
    for listener in [0, 1] {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        keeper(&mut broker, TransportKind::Tcp);
        broker.listener = listener;
        let [first, second] =
            ["p1", "p2"].map(|name| connect(&mut broker, TransportKind::Tcp, V5, name, false).0);
        store.hold();
        broker.packet(first, V5, &numbered("kept/a", QoS::AtLeastOnce, 1));
        let one = store.memory.appends();
        broker.packet(second, V5, &numbered("kept/a", QoS::AtLeastOnce, 1));
        store.sync_up_to(&mut broker, one);
        assert_eq!(broker.told(first, V5), ["PUBACK 1 Success"]);
        assert_eq!(broker.told(second, V5).len(), 0);
        // Nothing else happens that could wake the shard.
        store.sync(&mut broker);
        assert_eq!(broker.told(second, V5), ["PUBACK 1 Success"], "{listener}");
    }
}

/// [MQTT-4.3.3-8] [MQTT-4.3.3-10] [MQTT-4.6.0-3]
#[test]
fn exactly_once_is_kept_at_each_step_of_a_publisher() {
    for (transport, version) in [(TransportKind::Tcp, V5), (TransportKind::Quic, V4)] {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        let keeper = keeper(&mut broker, transport);
        let (peer, _) = connect(&mut broker, transport, version, "p", true);
        store.hold();
        let message = numbered("kept/a", QoS::ExactlyOnce, 7);
        broker.packet(peer, version, &message);
        // A repetition waits for the same.
        broker.packet(peer, version, &message);
        assert_eq!(broker.told(peer, version), [""; 0]);
        store.sync(&mut broker);
        assert_eq!(broker.told(peer, version), ["PUBREC 7 Success"]);
        assert_eq!(broker.told(keeper, V5).len(), 1);
        store.hold();
        broker.send(peer, &[0x62, 2, 0, 7]);
        assert_eq!(
            broker.told(peer, version),
            [""; 0],
            "or it comes back to life"
        );
        store.sync(&mut broker);
        assert_eq!(broker.told(peer, version), ["PUBCOMP 7 Success"]);
    }
}

/// [MQTT-4.3.3-4] [MQTT-4.6.0-4]
#[test]
fn exactly_once_is_kept_before_a_delivery_is_released() {
    for transport in TRANSPORTS {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        let keeper = keeper(&mut broker, transport);
        let (peer, _) = connect(&mut broker, transport, V5, "p", false);
        let mut ids = Vec::new();
        for packet_id in 1..=2 {
            broker.packet(peer, V5, &numbered("kept/a", QoS::ExactlyOnce, packet_id));
            ids.extend(broker.packets(keeper, V5, |packet| match packet {
                Packet::Publish(publish) => publish.packet_id.unwrap().get(),
                other => panic!("{other:?}"),
            }));
        }
        store.hold();
        for id in &ids {
            let [high, low] = id.to_be_bytes();
            broker.send(keeper, &[0x50, 2, high, low]);
        }
        // One that nobody knows waits for those before it.
        broker.send(keeper, &[0x50, 2, 0xEE, 0xEE]);
        assert_eq!(broker.told(keeper, V5), [""; 0]);
        store.sync(&mut broker);
        let released = ids.iter().map(|id| format!("PUBREL {id} Success"));
        let mut expected: Vec<_> = released.collect();
        expected.push("PUBREL 61166 Packet Identifier not found".to_owned());
        assert_eq!(broker.told(keeper, V5), expected, "{transport:?}");
    }
}

#[test]
fn sessions_and_subscriptions_are_kept_before_they_are_acknowledged() {
    for transport in TRANSPORTS {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        store.hold();
        let (passing, told) = connect(&mut broker, transport, V5, "passing", false);
        assert_eq!(told, ["CONNACK Success"], "nothing of it is kept");
        broker.subscribe(passing, V5, "a", QoS::AtLeastOnce);
        let (lasting, told) = connect(&mut broker, transport, V5, "lasting", true);
        assert_eq!(told, [""; 0]);
        // What comes with it waits behind it, and a subscription for itself.
        broker.subscribe_with(
            lasting,
            V5,
            "a",
            SubscribeOptions::new(QoS::AtMostOnce),
            &[],
        );
        store.sync(&mut broker);
        assert_eq!(broker.told(lasting, V5), ["CONNACK Success"]);
        store.sync(&mut broker);
        assert_eq!(broker.told(lasting, V5), ["SUBACK 1 0x00"]);
        store.hold();
        // UNSUBSCRIBE from `a`.
        broker.send(lasting, b"\xa2\x06\0\x01\0\0\x01a");
        assert_eq!(broker.told(lasting, V5), [""; 0]);
        store.sync(&mut broker);
        assert_eq!(broker.told(lasting, V5), ["UNSUBACK 1 0x00"]);
    }
}

/// What waits in a session comes behind its CONNACK, whenever that comes.
#[test]
fn messages_come_behind_a_welcome_that_was_late() {
    for transport in TRANSPORTS {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        let first = keeper(&mut broker, transport);
        broker.cut(first);
        let (peer, _) = connect(&mut broker, transport, V5, "p", false);
        broker.packet(peer, V5, &numbered("kept/a", QoS::AtLeastOnce, 1));
        store.hold();
        broker.packet(peer, V5, &numbered("kept/b", QoS::AtLeastOnce, 2));
        let (again, told) = connect(&mut broker, transport, V5, "keeper", true);
        assert_eq!(told, [""; 0]);
        store.sync(&mut broker);
        assert_eq!(
            broker.told(again, V5),
            [
                "CONNACK Success present",
                "PUBLISH1 kept/a=x",
                "PUBLISH1 kept/b=x"
            ]
        );
    }
}

#[test]
fn what_waits_is_dropped_with_its_connection() {
    for transport in TRANSPORTS {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        let keeper = keeper(&mut broker, transport);
        let (peer, _) = connect(&mut broker, transport, V5, "p", true);
        store.hold();
        let message = numbered("kept/a", QoS::ExactlyOnce, 7);
        broker.packet(peer, V5, &message);
        broker.cut(peer);
        // It comes back, and the welcome waits for what its last connection has left.
        let (again, told) = connect(&mut broker, transport, V5, "p", true);
        assert_eq!(told, [""; 0]);
        broker.packet(again, V5, &message);
        store.sync(&mut broker);
        assert_eq!(
            broker.told(again, V5),
            ["CONNACK Success present", "PUBREC 7 Success"]
        );
        assert_eq!(broker.told(keeper, V5).len(), 1, "once");
        // Another takes the session over while the welcome waits.
        store.hold();
        broker.publish(again, V5, "kept/b", "x", QoS::AtLeastOnce);
        let (second, _) = connect(&mut broker, transport, V5, "p", true);
        let (third, _) = connect(&mut broker, transport, V5, "p", true);
        assert!(broker.is_closed(again) && broker.is_closed(second));
        store.sync(&mut broker);
        assert_eq!(broker.told(third, V5), ["CONNACK Success present"]);
    }
}

#[test]
fn a_client_is_not_read_while_too_much_waits_and_lives() {
    for transport in TRANSPORTS {
        let store = Held::new();
        let mut config = config();
        config.store.maximum_waiting_acknowledgements = 3;
        config.amqp.queues = vec![Queue {
            name: "q".to_owned(),
            ..Queue::default()
        }];
        let mut broker = store.broker(&config, 1);
        // A queue keeps messages of QoS 0, too.
        for (qos, acknowledgements) in [(QoS::AtMostOnce, 0), (QoS::AtLeastOnce, 3)] {
            let (peer, _) = connect(&mut broker, transport, V4, "p", false);
            store.hold();
            for packet_id in 1..=3 {
                assert!(!broker.wires[0].paused.contains(&peer.id));
                let packet_id = PacketId::new(packet_id).filter(|_| qos != QoS::AtMostOnce);
                let message = Publish {
                    packet_id,
                    ..publish("queue/q", "x", qos)
                };
                broker.packet(peer, V4, &Packet::Publish(message));
            }
            assert!(broker.wires[0].paused.contains(&peer.id), "{transport:?}");
            // The silence is the broker's, for longer than the keep alive of a minute.
            broker.advance(200_000);
            assert!(!broker.is_closed(peer));
            store.sync(&mut broker);
            assert!(!broker.wires[0].paused.contains(&peer.id));
            assert_eq!(broker.told(peer, V4).len(), acknowledgements);
            // From here on it is the client's again.
            broker.advance(89_000);
            assert!(!broker.is_closed(peer));
            broker.advance(2_000);
            assert!(broker.is_closed(peer));
        }
    }
}

#[test]
fn a_client_that_waits_and_is_read_still_has_to_keep_alive() {
    let store = Held::new();
    let mut broker = store.broker(&config(), 1);
    keeper(&mut broker, TransportKind::Tcp);
    let (peer, _) = connect(&mut broker, TransportKind::Tcp, V5, "p", false);
    let (silent, _) = connect(&mut broker, TransportKind::Tcp, V5, "silent", false);
    store.hold();
    for each in [peer, silent] {
        broker.packet(each, V5, &numbered("kept/a", QoS::AtLeastOnce, 1));
    }
    for _ in 0..5 {
        broker.advance(50_000);
        broker.packet(peer, V5, &Packet::PingReq);
        assert_eq!(broker.told(peer, V5), ["PINGRESP"]);
    }
    assert!(broker.is_closed(silent));
    store.sync(&mut broker);
    assert_eq!(broker.told(peer, V5), ["PUBACK 1 Success"]);
}

/// A stream that the client has finished is finished behind the acknowledgements that wait on it.
#[test]
fn acknowledgements_leave_on_their_stream_before_its_end() {
    let store = Held::new();
    let mut broker = store.broker(&config(), 1);
    keeper(&mut broker, TransportKind::Quic);
    let (peer, _) = connect(&mut broker, TransportKind::Quic, V5, "p", false);
    store.hold();
    let stream = StreamId(4);
    let message = encode(V5, &numbered("kept/a", QoS::AtLeastOnce, 1));
    broker.send_on(peer, stream, &message);
    broker.finish(peer, stream);
    assert!(broker.wires[0].finished.is_empty());
    // Of another that it gives up, they go nowhere: the client sends again, and could take them for others.
    let gone = StreamId(8);
    broker.send_on(
        peer,
        gone,
        &encode(V5, &numbered("kept/a", QoS::AtLeastOnce, 2)),
    );
    broker.abort(peer, gone);
    store.sync(&mut broker);
    assert_eq!(broker.take_on(peer, stream), [0x40, 2, 0, 1]);
    assert!(broker.wires[0].finished.contains(&(peer.id, stream)));
    assert_eq!(broker.told(peer, V5), [""; 0]);
    let mut again = numbered("kept/a", QoS::AtLeastOnce, 2);
    if let Packet::Publish(publish) = &mut again {
        publish.dup = true;
    }
    broker.packet(peer, V5, &again);
    store.sync(&mut broker);
    assert_eq!(broker.told(peer, V5), ["PUBACK 2 Success"]);
}

#[test]
fn a_full_store_refuses_and_forgets_nothing() {
    for transport in TRANSPORTS {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        let keeper = keeper(&mut broker, transport);
        let (peer, _) = connect(&mut broker, transport, V5, "p", false);
        let (old, _) = connect(&mut broker, transport, V4, "old", false);
        store.memory.set_full(true);
        broker.packet(peer, V5, &numbered("kept/a", QoS::AtLeastOnce, 1));
        broker.packet(peer, V5, &numbered("kept/a", QoS::ExactlyOnce, 2));
        broker.packet(peer, V5, &numbered("other", QoS::AtLeastOnce, 3));
        assert_eq!(
            broker.told(peer, V5),
            [
                "PUBACK 1 Quota exceeded",
                "PUBREC 2 Quota exceeded",
                "PUBACK 3 No matching subscribers",
            ]
        );
        // An older version has no word for it, and an acknowledgement would be a lie. [MQTT311-3.3.5-2]
        broker.packet(old, V4, &numbered("kept/a", QoS::AtLeastOnce, 1));
        assert_eq!(broker.take(old), b"");
        assert!(broker.is_closed(old));
        assert_eq!(broker.told(keeper, V5), [""; 0]);
        store.memory.set_full(false);
        broker.packet(peer, V5, &numbered("kept/a", QoS::ExactlyOnce, 2));
        assert_eq!(broker.told(peer, V5), ["PUBREC 2 Success"]);
        assert_eq!(broker.told(keeper, V5).len(), 1);
    }
}

/// A repetition of a refused message that is acknowledged as one that was taken would be lost.
///
/// [MQTT-4.3.3-9] [MQTT311-3.3.5-2]
#[test]
fn a_refused_message_of_qos_2_is_new_when_it_comes_again() {
    for (transport, version) in [
        (TransportKind::Tcp, V5),
        (TransportKind::Quic, V5),
        (TransportKind::Tcp, V4),
    ] {
        for is_taken_over in [false, true] {
            let store = Held::new();
            let mut broker = store.broker(&config(), 1);
            let keeper = keeper(&mut broker, transport);
            let (peer, _) = connect(&mut broker, transport, version, "p", true);
            // In 5.0 the PUBREC with the refusal waits behind this one's.
            store.hold();
            broker.packet(peer, version, &numbered("kept/a", QoS::ExactlyOnce, 1));
            store.memory.set_full(true);
            broker.packet(peer, version, &numbered("kept/b", QoS::ExactlyOnce, 2));
            // A repetition waits for it, too.
            broker.packet(peer, version, &numbered("kept/b", QoS::ExactlyOnce, 2));
            assert_eq!(broker.told(peer, version), [""; 0]);
            assert_eq!(broker.is_closed(peer), version == V4);
            store.memory.set_full(false);
            if !is_taken_over && version == V5 {
                broker.cut(peer);
            }
            let (again, _) = connect(&mut broker, transport, version, "p", true);
            store.sync(&mut broker);
            assert_eq!(broker.told(again, version), ["CONNACK Success present"]);
            for packet_id in [1, 2] {
                let repetition = Packet::Publish(Publish {
                    packet_id: PacketId::new(packet_id),
                    dup: true,
                    ..publish("kept/b", "x", QoS::ExactlyOnce)
                });
                broker.packet(again, version, &repetition);
            }
            store.sync(&mut broker);
            assert_eq!(
                broker.told(again, version),
                ["PUBREC 1 Success", "PUBREC 2 Success"]
            );
            assert_eq!(
                broker.told(keeper, V5),
                ["PUBLISH2 kept/a=x", "PUBLISH2 kept/b=x"],
                "{transport:?} {version:?} {is_taken_over}"
            );
        }
    }
}

#[test]
fn a_queue_may_ask_for_more_than_a_listener() {
    let mut config: Config = config();
    config.amqp.queues = vec![Queue {
        name: "orders".to_owned(),
        durability: Some(Durability::Commit),
        ..Queue::default()
    }];
    let store = Held::new();
    let mut broker = store.broker(&config, 1);
    keeper(&mut broker, TransportKind::Tcp);
    broker.listener = 2;
    let (peer, _) = connect(&mut broker, TransportKind::Tcp, V5, "p", false);
    store.hold();
    broker.packet(peer, V5, &numbered("kept/a", QoS::AtLeastOnce, 1));
    assert_eq!(broker.told(peer, V5), ["PUBACK 1 Success"]);
    broker.packet(peer, V5, &numbered("queue/orders", QoS::AtLeastOnce, 2));
    store.write(&mut broker);
    assert_eq!(broker.told(peer, V5), [""; 0]);
    store.sync(&mut broker);
    assert_eq!(broker.told(peer, V5), ["PUBACK 2 Success"]);
}

#[test]
fn a_rule_may_ask_for_more_than_a_listener() {
    for transport in TRANSPORTS {
        let store = Held::new();
        let mut broker = store.broker(&with_strict_rule(), 1);
        keeper(&mut broker, transport);
        broker.listener = 2;
        let (peer, _) = connect(&mut broker, transport, V5, "p", false);
        store.hold();
        broker.packet(peer, V5, &numbered("kept/a", QoS::AtLeastOnce, 1));
        assert_eq!(broker.told(peer, V5), ["PUBACK 1 Success"]);
        broker.packet(peer, V5, &numbered("kept/strict/a", QoS::AtLeastOnce, 2));
        store.write(&mut broker);
        assert_eq!(broker.told(peer, V5), [""; 0]);
        store.sync(&mut broker);
        assert_eq!(broker.told(peer, V5), ["PUBACK 2 Success"]);
    }
}

#[test]
fn a_queue_with_a_filter_asks_for_what_it_takes() {
    let mut config: Config = config();
    config.amqp.queues = vec![Queue {
        name: "orders".to_owned(),
        filter: Some("shop/+/order".to_owned()),
        durability: Some(Durability::Commit),
        ..Queue::default()
    }];
    let store = Held::new();
    let mut broker = store.broker(&config, 1);
    keeper(&mut broker, TransportKind::Tcp);
    broker.listener = 2;
    let (peer, _) = connect(&mut broker, TransportKind::Tcp, V5, "p", false);
    store.hold();
    broker.packet(peer, V5, &numbered("kept/a", QoS::AtLeastOnce, 1));
    assert_eq!(broker.told(peer, V5), ["PUBACK 1 Success"]);
    broker.packet(peer, V5, &numbered("shop/7/order", QoS::AtLeastOnce, 2));
    store.write(&mut broker);
    assert_eq!(broker.told(peer, V5), [""; 0]);
    store.sync(&mut broker);
    assert_eq!(broker.told(peer, V5), ["PUBACK 2 Success"]);
}

#[test]
fn a_broker_that_stops_acknowledges_what_is_kept_first() {
    for in_time in [true, false] {
        let store = Held::new();
        let mut config = config();
        config.network.shutdown_timeout_ms = 10_000;
        let mut broker = store.broker(&config, 1);
        keeper(&mut broker, TransportKind::Tcp);
        let (peer, _) = connect(&mut broker, TransportKind::Tcp, V5, "p", false);
        store.hold();
        broker.packet(peer, V5, &numbered("kept/a", QoS::AtLeastOnce, 1));
        broker.stop();
        assert_eq!(broker.told(peer, V5), [""; 0]);
        assert!(!broker.finished() && broker.wires[0].paused.contains(&peer.id));
        let mut expected = vec!["DISCONNECT Server shutting down"];
        if in_time {
            expected.insert(0, "PUBACK 1 Success");
            store.sync(&mut broker);
        } else {
            broker.advance(4_999);
            assert!(!broker.finished());
            broker.advance(1);
        }
        assert_eq!(broker.told(peer, V5), expected);
        assert!(broker.finished());
    }
}

/// What came in while acknowledgements wait for the store would be acknowledged by nobody.
#[test]
fn a_broker_that_stops_reads_no_client_again() {
    for transport in TRANSPORTS {
        let store = Held::new();
        let mut config = config();
        config.store.maximum_waiting_acknowledgements = 2;
        config.network.shutdown_timeout_ms = 200_000;
        let mut broker = store.broker(&config, 1);
        keeper(&mut broker, transport);
        let (peer, _) = connect(&mut broker, transport, V5, "p", false);
        store.hold();
        broker.packet(peer, V5, &numbered("kept/a", QoS::AtLeastOnce, 1));
        let one = store.memory.appends();
        broker.packet(peer, V5, &numbered("kept/a", QoS::AtLeastOnce, 2));
        let is_paused = |broker: &Broker| broker.wires[0].paused.contains(&peer.id);
        assert!(is_paused(&broker));
        broker.stop();
        store.sync_up_to(&mut broker, one);
        assert_eq!(broker.told(peer, V5), ["PUBACK 1 Success"]);
        assert!(is_paused(&broker), "{transport:?}");
        // Nor does its keep alive of a minute end meanwhile.
        broker.advance(99_000);
        assert!(!broker.is_closed(peer) && is_paused(&broker));
        store.sync(&mut broker);
        assert_eq!(
            broker.told(peer, V5),
            ["PUBACK 2 Success", "DISCONNECT Server shutting down"]
        );
        assert!(broker.finished());
    }
}
