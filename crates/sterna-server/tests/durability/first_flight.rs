//! A repeated first flight: its message is done once, and the repetition is acknowledged when the first is kept.

use sterna_broker::Store as _;
use sterna_mqtt::packet::{Connect, Publish};
use sterna_mqtt::{Packet, PacketId, Property, QoS, Version};
use sterna_net::{Chunk, StreamId, TransportKind};
use sterna_server::config::{Config, Durability, Listener};

use crate::fixture::{Broker, Peer, block, encode, plain, publish};
use crate::store::Held;

const V5: Version = Version::V5;

/// A listener of QUIC that waits for this, and whose early data is as by default.
fn config(durability: Durability) -> Config {
    let mut config = Config {
        listeners: vec![Listener::at("mqtt+quic://127.0.0.1:0")],
        ..Config::default()
    };
    config.store.durability = durability;
    config
}

/// One who wants everything on `t`, also while away.
fn keeper(broker: &mut Broker) -> Peer {
    let keeper = connect(broker, "keeper");
    broker.subscribe(keeper, V5, "t", QoS::ExactlyOnce);
    keeper
}

/// CONNECT with a session that is kept.
fn connect_packet(client_id: &str, clean_start: bool, write: impl FnOnce(&Connect<'_>)) {
    let properties = block(&[Property::SessionExpiryInterval(1_000)]);
    write(&Connect {
        clean_start,
        properties: properties.properties(),
        ..plain(V5, client_id)
    });
}

fn connect(broker: &mut Broker, client_id: &str) -> Peer {
    let peer = broker.open();
    connect_packet(client_id, false, |connect| {
        broker.packet(peer, V5, &Packet::Connect(*connect));
    });
    broker.told(peer, V5);
    peer
}

/// A client begins with a message, as early data or not. Its session is a new one, and ends with its connection.
fn begin(broker: &mut Broker, shard: usize, qos: QoS, is_early: bool) -> Peer {
    let connect = encode(V5, &Packet::Connect(plain(V5, "device")));
    begin_with(broker, shard, &connect, qos, is_early)
}

/// The same with a session that is kept.
fn begin_kept(broker: &mut Broker, qos: QoS, is_early: bool) -> Peer {
    let mut bytes = Vec::new();
    connect_packet("device", true, |connect| {
        bytes = encode(V5, &Packet::Connect(*connect)).to_vec();
    });
    begin_with(broker, 0, &bytes, qos, is_early)
}

fn begin_with(broker: &mut Broker, shard: usize, connect: &[u8], qos: QoS, is_early: bool) -> Peer {
    let peer = broker.open_on(shard, TransportKind::Quic, Vec::new());
    let mut bytes = connect.to_vec();
    bytes.extend_from_slice(&encode(V5, &Packet::Publish(publish("t", "x", qos))));
    let chunk = Chunk {
        stream: StreamId::FIRST,
        bytes: &bytes,
        early: is_early,
        confirmed: !is_early,
    };
    broker.arrive(peer, chunk);
    peer
}

/// The acknowledgements of messages that a client has got.
fn acknowledgements(broker: &mut Broker, peer: Peer) -> Vec<String> {
    let mut told = broker.told(peer, V5);
    told.retain(|line| line.starts_with("PUB"));
    told
}

/// How often the message came.
fn deliveries(broker: &mut Broker, keeper: Peer) -> usize {
    let told = broker.told(keeper, V5);
    told.iter().filter(|line| line.ends_with("t=x")).count()
}

#[test]
fn a_repeated_first_flight_is_acknowledged_when_the_first_is_kept() {
    for (qos, answer) in [
        (QoS::AtLeastOnce, "PUBACK 7 Success"),
        (QoS::ExactlyOnce, "PUBREC 7 Success"),
    ] {
        for shard in [0, 1] {
            for durability in [Durability::Commit, Durability::Interval] {
                let case = format!("{qos:?}, shard {shard}, {durability:?}");
                let store = Held::new();
                let mut broker = store.broker(&config(durability), 2);
                let keeper = keeper(&mut broker);
                store.hold();
                let before = store.memory.appends();
                let copy = begin(&mut broker, 0, qos, true);
                assert!(store.memory.appends() > before, "{case}: it is done early");
                assert_eq!(broker.told(copy, V5), ["CONNACK Success"], "{case}");
                let own = begin(&mut broker, shard, qos, false);
                assert_eq!(broker.told(own, V5), ["CONNACK Success"], "{case}");
                store.sync_up_to(&mut broker, before);
                assert_eq!(broker.told(own, V5), [""; 0], "{case}");
                store.sync(&mut broker);
                assert_eq!(broker.told(own, V5), [answer], "{case}");
                assert_eq!(deliveries(&mut broker, keeper), 1, "{case}");
            }
        }
    }
}

/// [MQTT-4.3.3-10] The client may die before PUBREC comes, and the broker, too.
#[test]
fn the_identifier_of_a_repetition_is_known_after_a_restart() {
    let store = Held::new();
    let config = config(Durability::Commit);
    let mut broker = store.broker(&config, 1);
    let of_first = keeper(&mut broker);
    begin_kept(&mut broker, QoS::ExactlyOnce, true);
    let own = begin_kept(&mut broker, QoS::ExactlyOnce, false);
    assert_eq!(acknowledgements(&mut broker, own), ["PUBREC 7 Success"]);
    assert_eq!(deliveries(&mut broker, of_first), 1);
    drop(broker);

    let store = Held::on(store.memory.snapshot());
    let mut broker = store.broker(&config, 1);
    let own = connect(&mut broker, "device");
    let again = Packet::Publish(Publish {
        packet_id: PacketId::new(7),
        dup: true,
        ..publish("t", "x", QoS::ExactlyOnce)
    });
    let before = store.memory.next_position();
    broker.packet(own, V5, &again);
    assert_eq!(acknowledgements(&mut broker, own), ["PUBREC 7 Success"]);
    assert_eq!(store.memory.next_position(), before, "it is not published");
}
