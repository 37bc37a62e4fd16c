//! Exactly once: a message that is to come once, over a restart too, leaves when the store has it.

use sterna_mqtt::packet::{Connect, Publish, SubscribeOptions};
use sterna_mqtt::{Packet, PacketId, Property, QoS, Version};
use sterna_net::{StreamId, TransportKind};
use sterna_server::config::{Config, Durability};

use crate::fixture::{Broker, Peer, block, decode, describe, encode, everybodys, plain, publish};
use crate::store::{Held, config, with_strict_rule};

const V5: Version = Version::V5;

/// A broker whose listener and store wait for this.
fn waiting_for(durability: Durability) -> Config {
    let mut config = everybodys();
    config.store.durability = durability;
    config
}

/// Connects on a shard, with a session that is kept; the payloads that come with the welcome.
fn enter(broker: &mut Broker, shard: usize, client_id: &str) -> (Peer, Vec<String>) {
    let peer = broker.open_on(shard, TransportKind::Tcp, Vec::new());
    let properties = block(&[Property::SessionExpiryInterval(1_000)]);
    let connect = Packet::Connect(Connect {
        clean_start: false,
        properties: properties.properties(),
        ..plain(V5, client_id)
    });
    broker.packet(peer, V5, &connect);
    let payloads = payloads(broker, peer);
    (peer, payloads)
}

/// As [`enter`], where nothing comes.
fn connect(broker: &mut Broker, shard: usize, client_id: &str) -> Peer {
    let (peer, payloads) = enter(broker, shard, client_id);
    assert_eq!(payloads, [""; 0], "{client_id}");
    peer
}

/// Publishes with a packet identifier.
fn send(broker: &mut Broker, peer: Peer, topic: &str, payload: &str, qos: QoS, packet_id: u16) {
    let packet = Packet::Publish(Publish {
        packet_id: PacketId::new(packet_id),
        ..publish(topic, payload, qos)
    });
    broker.packet(peer, V5, &packet);
}

/// The payloads of the messages that have come.
fn payloads(broker: &mut Broker, peer: Peer) -> Vec<String> {
    let payloads = broker.packets(peer, V5, |packet| match packet {
        Packet::Publish(publish) => Some(String::from_utf8_lossy(publish.payload).into_owned()),
        _ => None,
    });
    payloads.into_iter().flatten().collect()
}

#[test]
fn a_delivery_at_qos_2_leaves_when_its_message_is_kept() {
    for (durability, shards) in [
        (Durability::Interval, 1),
        (Durability::Interval, 2),
        (Durability::Commit, 2),
    ] {
        let store = Held::new();
        let mut broker = store.broker(&waiting_for(durability), shards);
        let exact = connect(&mut broker, 0, "exact");
        broker.subscribe(exact, V5, "t/#", QoS::ExactlyOnce);
        let other = connect(&mut broker, 0, "other");
        broker.subscribe(other, V5, "t/#", QoS::AtLeastOnce);
        let peer = connect(&mut broker, shards - 1, "p");
        store.hold();
        send(&mut broker, peer, "t/a", "1", QoS::ExactlyOnce, 1);
        send(&mut broker, peer, "t/a", "2", QoS::AtLeastOnce, 2);
        assert_eq!(payloads(&mut broker, exact), [""; 0], "{durability:?}");
        assert_eq!(payloads(&mut broker, other), ["1", "2"], "{durability:?}");
        store.write(&mut broker);
        // After a power cut another message would have its place, and with it its packet identifier.
        assert_eq!(payloads(&mut broker, exact), [""; 0], "{durability:?}");
        store.sync(&mut broker);
        assert_eq!(payloads(&mut broker, exact), ["1", "2"], "{durability:?}");
        // Each waits for its own append.
        store.hold();
        send(&mut broker, peer, "t/a", "3", QoS::ExactlyOnce, 3);
        let third = store.memory.appends();
        send(&mut broker, peer, "t/a", "4", QoS::ExactlyOnce, 4);
        store.sync_up_to(&mut broker, third);
        assert_eq!(payloads(&mut broker, exact), ["3"], "{durability:?}");
        store.sync(&mut broker);
        assert_eq!(payloads(&mut broker, exact), ["4"], "{durability:?}");
    }
}

#[test]
fn deliveries_wait_for_the_strictest_listener_and_not_where_nothing_waits() {
    let delivered = |config: &Config| {
        let store = Held::new();
        let mut broker = store.broker(config, 1);
        let exact = connect(&mut broker, 0, "exact");
        broker.subscribe(exact, V5, "t/#", QoS::ExactlyOnce);
        let peer = connect(&mut broker, 0, "p");
        store.hold();
        send(&mut broker, peer, "t/a", "1", QoS::ExactlyOnce, 1);
        let at_once = payloads(&mut broker, exact).len();
        store.write(&mut broker);
        let when_written = payloads(&mut broker, exact).len();
        store.sync(&mut broker);
        [at_once, when_written, payloads(&mut broker, exact).len()]
    };
    assert_eq!(delivered(&config()), [0, 0, 1]);
    assert_eq!(delivered(&waiting_for(Durability::Interval)), [0, 0, 1]);
    assert_eq!(delivered(&waiting_for(Durability::Memory)), [1, 0, 0]);
}

/// After a power cut the broker would take the next message of an identifier for one that it has, or deliver
/// again what its receiver has released.
#[test]
fn an_identifier_is_free_when_the_disk_has_it_also_where_others_wait_for_the_kernel() {
    let store = Held::new();
    let mut broker = store.broker(&waiting_for(Durability::Interval), 1);
    let exact = connect(&mut broker, 0, "exact");
    broker.subscribe(exact, V5, "t/#", QoS::ExactlyOnce);
    let peer = connect(&mut broker, 0, "p");
    send(&mut broker, peer, "t/a", "1", QoS::ExactlyOnce, 1);
    assert_eq!(broker.told(peer, V5), ["PUBREC 1 Success"]);
    let ids = broker.packets(exact, V5, |packet| match packet {
        Packet::Publish(publish) => publish.packet_id.map(PacketId::get),
        _ => None,
    });
    let [high, low] = ids[0].expect("a message").to_be_bytes();
    store.hold();
    broker.send(peer, &[0x62, 2, 0, 1]);
    broker.send(exact, &[0x50, 2, high, low]);
    for is_synced in [false, true] {
        let told = [peer, exact].map(|peer| broker.told(peer, V5).len());
        assert_eq!(told, [usize::from(is_synced); 2]);
        if is_synced {
            break;
        }
        store.write(&mut broker);
        let told = [peer, exact].map(|peer| broker.told(peer, V5).len());
        assert_eq!(told, [0; 2], "the kernel has it");
        store.sync(&mut broker);
    }
}

/// Its receiver would get it twice, since its publisher sends it again.
#[test]
fn what_a_crash_has_lost_was_never_delivered() {
    let store = Held::new();
    let config = waiting_for(Durability::Interval);
    let mut broker = store.broker(&config, 1);
    let exact = connect(&mut broker, 0, "exact");
    broker.subscribe(exact, V5, "t/#", QoS::ExactlyOnce);
    let peer = connect(&mut broker, 0, "p");
    let before = store.memory.snapshot();
    store.hold();
    send(&mut broker, peer, "t/a", "1", QoS::ExactlyOnce, 1);
    assert_eq!(payloads(&mut broker, exact), [""; 0]);
    drop(broker);

    // Another message gets its place in the log.
    let store = Held::on(before);
    let mut broker = store.broker(&config, 1);
    let exact = connect(&mut broker, 0, "exact");
    let peer = connect(&mut broker, 0, "p");
    send(&mut broker, peer, "t/a", "2", QoS::ExactlyOnce, 2);
    send(&mut broker, peer, "t/a", "1", QoS::ExactlyOnce, 1);
    assert_eq!(payloads(&mut broker, exact), ["2", "1"]);
}

/// [MQTT-4.8.2-5]
#[test]
fn what_a_group_assigns_is_claimed_before_it_leaves() {
    for shards in [1, 2] {
        let store = Held::new();
        let config = waiting_for(Durability::Interval);
        let mut broker = store.broker(&config, shards);
        let first = connect(&mut broker, 0, "first");
        broker.subscribe(first, V5, "$share/g/t/#", QoS::ExactlyOnce);
        let second = connect(&mut broker, shards - 1, "second");
        broker.subscribe(second, V5, "$share/g/t/#", QoS::ExactlyOnce);
        let peer = connect(&mut broker, 0, "p");
        store.hold();
        for packet_id in 1..=4 {
            let payload = packet_id.to_string();
            send(
                &mut broker,
                peer,
                "t/a",
                &payload,
                QoS::ExactlyOnce,
                packet_id,
            );
        }
        for member in [first, second] {
            assert_eq!(payloads(&mut broker, member), [""; 0]);
        }
        let mut got = [Vec::new(), Vec::new()];
        // What came while a claim waited is claimed behind it.
        for _ in 0..2 {
            store.sync(&mut broker);
            for (got, member) in got.iter_mut().zip([first, second]) {
                got.extend(payloads(&mut broker, member));
            }
        }
        let mut all = got.concat();
        all.sort();
        assert_eq!(all, ["1", "2", "3", "4"]);
        assert!(got.iter().all(|got| !got.is_empty()), "both have some");
        drop(broker);

        // After a restart each goes to who had it, whoever comes first.
        let store = Held::on(store.memory.snapshot());
        let mut broker = store.broker(&config, shards);
        let (_, of_second) = enter(&mut broker, 0, "second");
        assert_eq!(of_second, got[1]);
        assert_eq!(enter(&mut broker, shards - 1, "first").1, got[0]);
    }
}

#[test]
fn a_claim_that_was_not_sent_ends_with_its_connection() {
    let store = Held::new();
    let config = waiting_for(Durability::Interval);
    let mut broker = store.broker(&config, 1);
    let first = connect(&mut broker, 0, "first");
    broker.subscribe(first, V5, "$share/g/t/#", QoS::ExactlyOnce);
    let peer = connect(&mut broker, 0, "p");
    store.hold();
    send(&mut broker, peer, "t/a", "1", QoS::ExactlyOnce, 1);
    assert_eq!(payloads(&mut broker, first), [""; 0]);
    broker.cut(first);
    let second = broker.open_on(0, TransportKind::Tcp, Vec::new());
    broker.packet(second, V5, &Packet::Connect(plain(V5, "second")));
    store.sync(&mut broker);
    let options = SubscribeOptions::new(QoS::ExactlyOnce);
    broker.subscribe_with(second, V5, "$share/g/t/#", options, &[]);
    assert_eq!(payloads(&mut broker, second), ["1"]);
    drop(broker);
    // After a restart it is in the group, where the attempt of the second is unsettled.
    let store = Held::on(store.memory.snapshot());
    let mut broker = store.broker(&config, 1);
    assert_eq!(enter(&mut broker, 0, "first").1, ["1"]);
}

#[test]
fn a_session_that_moves_while_it_waits_gets_each_message_once() {
    let store = Held::new();
    let mut broker = store.broker(&waiting_for(Durability::Interval), 2);
    let exact = connect(&mut broker, 0, "exact");
    broker.subscribe(exact, V5, "t/#", QoS::ExactlyOnce);
    let peer = connect(&mut broker, 0, "p");
    store.hold();
    send(&mut broker, peer, "t/a", "1", QoS::ExactlyOnce, 1);
    let moved = connect(&mut broker, 1, "exact");
    assert_eq!(payloads(&mut broker, exact), [""; 0]);
    send(&mut broker, peer, "t/a", "2", QoS::ExactlyOnce, 2);
    assert_eq!(payloads(&mut broker, moved), [""; 0]);
    store.sync(&mut broker);
    assert_eq!(payloads(&mut broker, moved), ["1", "2"]);
}

/// The identifiers of the messages that have come.
fn identifiers(broker: &mut Broker, peer: Peer) -> Vec<[u8; 2]> {
    let ids = broker.packets(peer, V5, |packet| match packet {
        Packet::Publish(publish) => publish.packet_id.map(PacketId::get),
        _ => None,
    });
    ids.into_iter().flatten().map(u16::to_be_bytes).collect()
}

/// After a power cut the identifier would be known again, and the client would use it for another message.
#[test]
fn a_pubrel_that_comes_again_is_answered_when_the_disk_has_the_first() {
    for shard in [0, 1] {
        let store = Held::new();
        let mut broker = store.broker(&waiting_for(Durability::Interval), 2);
        let keeper = connect(&mut broker, 0, "keeper");
        broker.subscribe(keeper, V5, "t/#", QoS::AtLeastOnce);
        let peer = connect(&mut broker, 0, "p");
        send(&mut broker, peer, "t/a", "1", QoS::ExactlyOnce, 1);
        assert_eq!(broker.told(peer, V5), ["PUBREC 1 Success"]);
        store.hold();
        broker.send(peer, &[0x62, 2, 0, 1]);
        assert_eq!(broker.told(peer, V5), [""; 0]);
        broker.cut(peer);
        let peer = connect(&mut broker, shard, "p");
        store.write(&mut broker);
        let told = broker.told(peer, V5);
        assert_eq!(told, ["CONNACK Success present"], "nothing follows from it");
        broker.send(peer, &[0x62, 2, 0, 1]);
        store.write(&mut broker);
        assert_eq!(broker.told(peer, V5), [""; 0], "shard {shard}");
        store.sync(&mut broker);
        let told = broker.told(peer, V5);
        assert_eq!(told, ["PUBCOMP 1 Packet Identifier not found"]);
    }
}

/// After a power cut the message would come again, and its receiver has released it.
#[test]
fn a_session_goes_on_with_pubrel_when_the_disk_has_the_pubrec() {
    let store = Held::new();
    let mut broker = store.broker(&waiting_for(Durability::Interval), 1);
    let exact = connect(&mut broker, 0, "exact");
    broker.subscribe(exact, V5, "t/#", QoS::ExactlyOnce);
    let peer = connect(&mut broker, 0, "p");
    send(&mut broker, peer, "t/a", "1", QoS::ExactlyOnce, 1);
    let [high, low] = identifiers(&mut broker, exact)[0];
    store.hold();
    broker.send(exact, &[0x50, 2, high, low]);
    broker.cut(exact);
    let exact = connect(&mut broker, 0, "exact");
    store.write(&mut broker);
    assert_eq!(broker.told(exact, V5), [""; 0]);
    store.sync(&mut broker);
    let told = broker.told(exact, V5);
    assert_eq!(told[0], "CONNACK Success present");
    assert!(told[1].starts_with("PUBREL"), "{told:?}");
}

/// A rule may ask for more than the listener.
#[test]
fn a_message_that_comes_again_is_acknowledged_as_the_first_was_to_be() {
    let store = Held::new();
    let mut broker = store.broker(&with_strict_rule(), 1);
    let keeper = connect(&mut broker, 0, "keeper");
    broker.subscribe(keeper, V5, "kept/#", QoS::AtLeastOnce);
    broker.listener = 1;
    let peer = connect(&mut broker, 0, "p");
    store.hold();
    send(&mut broker, peer, "kept/strict/a", "1", QoS::ExactlyOnce, 1);
    store.write(&mut broker);
    assert_eq!(broker.told(peer, V5), [""; 0]);
    broker.cut(peer);
    let peer = connect(&mut broker, 0, "p");
    store.write(&mut broker);
    assert_eq!(broker.told(peer, V5), ["CONNACK Success present"]);
    let again = Packet::Publish(Publish {
        packet_id: PacketId::new(1),
        dup: true,
        ..publish("kept/strict/a", "1", QoS::ExactlyOnce)
    });
    broker.packet(peer, V5, &again);
    store.write(&mut broker);
    assert_eq!(broker.told(peer, V5), [""; 0]);
    store.sync(&mut broker);
    assert_eq!(broker.told(peer, V5), ["PUBREC 1 Success"]);
}

/// [MQTT-4.8.2-5]
#[test]
fn a_message_of_a_group_that_its_member_has_left_is_nobody_elses() {
    for shards in [1, 2] {
        let store = Held::new();
        let config = waiting_for(Durability::Interval);
        let mut broker = store.broker(&config, shards);
        let names = ["first", "second"];
        let members = names.map(|name| {
            let member = connect(&mut broker, shards - 1, name);
            broker.subscribe(member, V5, "$share/g/t/#", QoS::ExactlyOnce);
            member
        });
        let peer = connect(&mut broker, 0, "p");
        send(&mut broker, peer, "t/a", "1", QoS::ExactlyOnce, 1);
        let came = members.map(|member| identifiers(&mut broker, member));
        let of = usize::from(came[0].is_empty());
        let (member, [high, low]) = (members[of], came[of][0]);
        let mut unsubscribe = vec![0xa2, 17, 0, 9, 0, 0, 12];
        unsubscribe.extend_from_slice(b"$share/g/t/#");
        broker.send(member, &unsubscribe);
        broker.send(member, &[0x50, 2, high, low]);
        let told = broker.told(member, V5);
        assert!(told[0].starts_with("UNSUBACK"), "{told:?}");
        assert!(told[1].starts_with("PUBREL"), "{told:?}");
        drop(broker);

        // It dies before it has written what the group is done with.
        let store = Held::on(store.memory.snapshot());
        let mut broker = store.broker(&config, shards);
        let (_, of_other) = enter(&mut broker, 0, names[1 - of]);
        assert_eq!(of_other, [""; 0], "{shards} shards");
    }
}

/// A client whose streams count apart, over a restart of the broker: equal identifiers with other contents are other
/// messages.
///
/// [MQTT-4.3.3-10]
#[test]
fn received_messages_are_told_apart_after_a_restart() {
    const STREAMS: [StreamId; 2] = [StreamId(4), StreamId(8)];
    let store = Held::new();
    let mut broker = store.broker(&config(), 1);
    let watcher = connect(&mut broker, 0, "watcher");
    broker.subscribe(watcher, V5, "t", QoS::AtLeastOnce);
    let send_on = |broker: &mut Broker, peer, stream, payload: &str, dup| {
        let message = Packet::Publish(Publish {
            packet_id: PacketId::new(1),
            dup,
            ..publish("t", payload, QoS::ExactlyOnce)
        });
        broker.send_on(peer, stream, &encode(V5, &message));
        let told = decode(V5, &broker.take_on(peer, stream), describe);
        assert_eq!(told, ["PUBREC 1 Success"]);
    };
    let release_on = |broker: &mut Broker, peer, stream| {
        broker.send_on(peer, stream, &[0x62, 2, 0, 1]);
        let told = decode(V5, &broker.take_on(peer, stream), describe);
        assert_eq!(told, ["PUBCOMP 1 Success"]);
    };
    let peer = connect(&mut broker, 0, "p");
    for stream in STREAMS {
        send_on(
            &mut broker,
            peer,
            stream,
            &format!("on {}", stream.0),
            false,
        );
    }
    assert_eq!(payloads(&mut broker, watcher), ["on 4", "on 8"]);
    drop(broker);
    let mut broker = store.broker(&config(), 1);
    let (watcher, _) = enter(&mut broker, 0, "watcher");
    let peer = connect(&mut broker, 0, "p");
    send_on(&mut broker, peer, StreamId(12), "new", false);
    release_on(&mut broker, peer, StreamId(8));
    send_on(&mut broker, peer, StreamId(16), "on 4", true);
    assert_eq!(payloads(&mut broker, watcher), ["new"]);
    drop(broker);
    // What was released is new when it comes now.
    let mut broker = store.broker(&config(), 1);
    let (watcher, _) = enter(&mut broker, 0, "watcher");
    let peer = connect(&mut broker, 0, "p");
    send_on(&mut broker, peer, StreamId(4), "on 8", true);
    send_on(&mut broker, peer, StreamId(8), "new", true);
    send_on(&mut broker, peer, StreamId(12), "on 4", true);
    for stream in [4, 8, 12] {
        release_on(&mut broker, peer, StreamId(stream));
    }
    assert_eq!(payloads(&mut broker, watcher), ["on 8"]);
    drop(broker);
    let mut broker = store.broker(&config(), 1);
    let peer = connect(&mut broker, 0, "p");
    broker.send(peer, &[0x62, 2, 0, 1]);
    let told = broker.told(peer, V5);
    assert_eq!(
        told,
        ["PUBCOMP 1 Packet Identifier not found"],
        "no record is left"
    );
}

/// A message with the RETAIN flag that changes nothing is known again all the same: done after a crash, it would change
/// what was retained behind it.
#[test]
fn a_repetition_after_a_kill_leaves_later_retained_messages() {
    for (earlier, is_full) in [("", false), ("old", true)] {
        let store = Held::new();
        let mut config = waiting_for(Durability::Interval);
        if is_full {
            config.broker.maximum_retained_messages = 1;
        }
        let mut broker = store.broker(&config, 2);
        let other = connect(&mut broker, 0, "other");
        let retain = |broker: &mut Broker, peer: Peer, payload: &str, packet_id: u16, dup: bool| {
            let packet = Packet::Publish(Publish {
                packet_id: PacketId::new(packet_id),
                retain: true,
                dup,
                ..publish("r", payload, QoS::ExactlyOnce)
            });
            broker.packet(peer, Version::V311, &packet);
        };
        let enter = |broker: &mut Broker| {
            let peer = broker.open_on(0, TransportKind::Tcp, Vec::new());
            let connect = Packet::Connect(Connect {
                clean_start: false,
                ..plain(Version::V311, "p")
            });
            broker.packet(peer, Version::V311, &connect);
            peer
        };
        let fill = |broker: &mut Broker, payload: &str| {
            let packet = Packet::Publish(Publish {
                retain: true,
                ..publish("full", payload, QoS::AtMostOnce)
            });
            broker.packet(other, V5, &packet);
        };
        if is_full {
            // There is no room for the first one.
            fill(&mut broker, "x");
        }
        let peer = enter(&mut broker);
        retain(&mut broker, peer, earlier, 1, false);
        if is_full {
            fill(&mut broker, "");
        }
        retain(&mut broker, peer, "new", 2, false);
        drop(broker);
        let mut broker = store.broker(&config, 2);
        let peer = enter(&mut broker);
        retain(&mut broker, peer, earlier, 1, true);
        retain(&mut broker, peer, "new", 2, true);
        let reader = connect(&mut broker, 1, "reader");
        let options = SubscribeOptions::new(QoS::AtMostOnce);
        broker.subscribe_with(reader, V5, "r", options, &[]);
        assert_eq!(payloads(&mut broker, reader), ["new"], "{earlier:?}");
    }
}
