//! Who holds most of a short memory gets no more, and is ended first.

use ipnet::IpNet;
use sterna_mqtt::packet::{Connect, SubscribeOptions, Will};
use sterna_mqtt::{Packet, PublishProperties, QoS};
use sterna_net::{RefusedPeers, TransportKind};
use sterna_server::Stage;
use sterna_server::config::MemoryCeiling;

use super::store::Held;
use super::{V5, come_back, config, is_paused, kept, partial_publish, plain, resident};
use crate::fixture::{Broker, Lines, Peer};

const ATTACKER: [u8; 4] = [10, 0, 0, 1];
const HONEST: [u8; 4] = [10, 0, 0, 2];

fn subscribes(broker: &mut Broker, peer: Peer, filter: &str) -> String {
    broker.take(peer);
    let options = SubscribeOptions::new(QoS::AtLeastOnce);
    broker.subscribe_with(peer, V5, filter, options, &[]);
    broker.told(peer, V5).pop().expect("an answer")
}

/// Connects with a will of so many bytes.
pub(super) fn with_will(broker: &mut Broker, name: &str, bytes: usize) -> (Peer, String) {
    let will = vec![b'w'; bytes];
    let connect = Connect {
        will: Some(Will {
            topic: "will",
            payload: &will,
            qos: QoS::AtMostOnce,
            retain: false,
            properties: PublishProperties::EMPTY,
        }),
        ..plain(V5, name)
    };
    let peer = broker.open();
    broker.packet(peer, V5, &Packet::Connect(connect));
    let told = broker.told(peer, V5).remove(0);
    (peer, told)
}

#[test]
fn the_heaviest_address_cannot_grow_and_all_others_go_on() {
    let mut broker = Broker::with(&config(), 1);
    broker.come_from(ATTACKER);
    let heavy: Vec<Peer> = (0..9)
        .map(|n| with_will(&mut broker, &format!("will-{n}"), 50_000 + n).0)
        .collect();
    let attacker = broker.client(V5, "attacker");
    // These stay: their end would bring little.
    for n in 0..50 {
        let away = kept(&mut broker, &format!("away-{n}"));
        broker.cut(away);
    }
    broker.come_from(HONEST);
    let honest = broker.client(V5, "honest");
    broker.subscribe(honest, V5, "t", QoS::AtLeastOnce);
    resident(&mut broker, 71, Stage::PausePublishers);
    for (peer, pauses) in [(attacker, true), (honest, false)] {
        broker.publish(peer, V5, "t", "1", QoS::AtLeastOnce);
        assert_eq!(is_paused(&broker, peer), pauses);
    }
    resident(&mut broker, 81, Stage::MoveToLog);
    let refused = "0x97";
    assert!(subscribes(&mut broker, attacker, "a").contains(refused));
    assert!(!subscribes(&mut broker, honest, "a").contains(refused));
    for (address, name, enters) in [(ATTACKER, "x", false), (HONEST, "y", true)] {
        broker.come_from(address);
        let (_, told) = with_will(&mut broker, name, 100);
        assert_eq!(told.starts_with("CONNACK Success"), enters, "{told}");
    }
    resident(&mut broker, 91, Stage::Drop);
    // The fixture's memory does not become less, so all of the attacker's clients go in the end, the heaviest first.
    assert!(broker.is_closed(heavy[2]) && !broker.is_closed(honest));
    // Who holds little is read four times a second.
    for _ in 0..8 {
        broker.publish(honest, V5, "t", "1", QoS::AtLeastOnce);
        assert!(is_paused(&broker, honest));
        broker.advance(250);
        assert!(!is_paused(&broker, honest));
    }
    resident(&mut broker, 10, Stage::Normal);
    broker.come_from(ATTACKER);
    broker.client(V5, "again");
}

/// Its newcomers and the credit that its connections have would fill what the end of others frees.
#[test]
fn who_holds_most_gets_no_more_connections_and_fills_none() {
    let mut broker = Broker::with(&config(), 2);
    broker.come_from(ATTACKER);
    let attacker = broker.client(V5, "attacker");
    let heavy = |broker: &mut Broker, count: usize| {
        for number in 0..count {
            let peer = broker.client(V5, &format!("heavy-{number}"));
            broker.send(peer, &partial_publish());
        }
    };
    broker.come_from(HONEST);
    let honest = broker.client(V5, "honest");
    let attackers: IpNet = "10.0.0.1/32".parse().expect("a network");
    let everyone_is_taken = |broker: &Broker| {
        let mut wires = broker.wires.iter();
        wires.all(|wire| wire.refusing.1 == RefusedPeers::None && wire.capped.is_empty())
    };
    for (count, is_refused) in [(1, false), (20, true)] {
        broker.come_from(ATTACKER);
        heavy(&mut broker, count);
        resident(&mut broker, 72, Stage::PausePublishers);
        assert!(everyone_is_taken(&broker), "{count}");
        resident(&mut broker, 82, Stage::MoveToLog);
        let refused = if is_refused {
            RefusedPeers::Of(vec![attackers])
        } else {
            RefusedPeers::None
        };
        assert_eq!(broker.wires[0].refusing.1, refused, "{count}");
        assert_eq!(broker.wires[attacker.shard].capped[&attacker.id], 16 << 10);
        assert!(!broker.wires[honest.shard].capped.contains_key(&honest.id));
        // Whose transport was there before.
        let late = broker.open();
        broker.send(late, &[0x10]);
        assert!(broker.wires[late.shard].capped.contains_key(&late.id));
        resident(&mut broker, 96, Stage::RefuseNewcomers);
        assert_eq!(broker.wires[0].refusing.1, RefusedPeers::All);
        resident(&mut broker, 84, Stage::MoveToLog);
        assert_eq!(broker.wires[0].refusing.1, refused, "{count}");
        resident(&mut broker, 10, Stage::Normal);
        assert!(everyone_is_taken(&broker), "{count}");
    }
}

/// Memory that those who are gone have left behind is nobody's: the heaviest of those who hold next to nothing goes on.
#[test]
fn who_holds_little_goes_on_where_nobody_holds_much() {
    let mut broker = Broker::with(&config(), 1);
    broker.come_from(HONEST);
    let honest = broker.client(V5, "honest");
    broker.subscribe(honest, V5, "t", QoS::AtLeastOnce);
    for (percent, stage) in [(81, Stage::MoveToLog), (91, Stage::Drop)] {
        resident(&mut broker, percent, stage);
        broker.advance(1_000);
        let told = subscribes(&mut broker, honest, "a");
        assert!(!told.contains("0x97"), "{stage:?}: {told}");
        broker.client(V5, &format!("{stage:?}"));
        assert!(!broker.is_closed(honest), "{stage:?}");
    }
}

/// A shard without clients of the heaviest gives nothing for a shard that has them.
#[test]
fn the_heaviest_is_ended_on_whichever_shard_it_is() {
    let mut broker = Broker::with(&config(), 2);
    let partial = |broker: &mut Broker, address, shard, name: &str, bytes| {
        broker.come_from(address);
        let peer = broker.open_on(shard, TransportKind::Tcp, Vec::new());
        broker.packet(peer, V5, &Packet::Connect(plain(V5, name)));
        broker.send(peer, &partial_publish()[..bytes]);
        peer
    };
    let heavy = ["1", "2", "3", "4", "5", "6"]
        .map(|name| partial(&mut broker, ATTACKER, 0, name, 1_400_000));
    let honest = partial(&mut broker, HONEST, 1, "honest", 100_000);
    resident(&mut broker, 91, Stage::Drop);
    assert!(heavy.iter().any(|peer| broker.is_closed(*peer)));
    assert!(!broker.is_closed(honest));
}

#[test]
fn many_with_a_little_are_heavy_together() {
    let mut config = config();
    config.broker.memory_ceiling = MemoryCeiling::Bytes(8 << 20);
    let mut broker = Broker::with(&config, 1);
    broker.come_from(HONEST);
    let honest = broker.client(V5, "honest");
    broker.come_from(ATTACKER);
    // Each is just below what counts as a little.
    for n in 0..800 {
        let peer = broker.client(V5, &format!("partial-{n}"));
        broker.send(peer, &partial_publish()[..16_000]);
        if n % 10 == 0 {
            broker.advance(100);
        }
        assert!(broker.memory.stage() < Stage::RefuseNewcomers, "{n}");
        if broker.memory.stage() >= Stage::MoveToLog {
            break;
        }
    }
    assert!(broker.memory.stage() >= Stage::MoveToLog);
    let late = broker.open();
    broker.packet(late, V5, &Packet::Connect(plain(V5, "late")));
    assert!(broker.told(late, V5)[0].starts_with("CONNACK Quota exceeded"));
    assert!(!broker.is_closed(honest));
    broker.publish(honest, V5, "t", "1", QoS::AtLeastOnce);
    assert!(!is_paused(&broker, honest));
    broker.come_from(HONEST);
    broker.client(V5, "newcomer");
}

/// A session that is away belongs to its address also after a restart, and its end is the last resort.
#[test]
fn sessions_that_are_away_count_and_the_heaviest_end_last() {
    let mut config = config();
    let ceiling_bytes = 2 << 20;
    config.broker.memory_ceiling = MemoryCeiling::Bytes(ceiling_bytes);
    let store = Held::new();
    let mut broker = store.broker(&config, 1);
    let long = "x".repeat(800);
    let fill = |broker: &mut Broker, address: [u8; 4], name: &str, filters: usize| {
        broker.come_from(address);
        let peer = kept(broker, name);
        for number in 0..filters {
            broker.subscribe(peer, V5, &format!("{number}/{long}"), QoS::AtLeastOnce);
        }
        broker.cut(peer);
    };
    fill(&mut broker, HONEST, "honest", 10);
    for n in 0..4 {
        fill(&mut broker, ATTACKER, &format!("attacker-{n}"), 100 + n);
    }
    fill(&mut broker, ATTACKER, "light", 1);
    let names = |broker: &Broker| {
        let (sessions, _) = broker.sessions(0);
        let mut names: Vec<String> = (sessions.iter())
            .map(|session| session.name.id().to_owned())
            .collect();
        names.sort_unstable();
        names
    };
    assert_eq!(names(&broker).len(), 6);
    let mut broker = store.broker(&config, 1);
    assert_eq!(names(&broker).len(), 6, "after a restart");
    broker.come_from(HONEST);
    let here = broker.client(V5, "here");
    broker.resident(ceiling_bytes / 100 * 91);
    let left = names(&broker);
    assert!(!left.contains(&"attacker-3".to_owned()), "{left:?}");
    for kept in ["honest", "light", "here"] {
        assert!(left.contains(&kept.to_owned()), "{left:?}");
    }
    assert!(!broker.is_closed(here));
    broker.resident(0);
    let peer = come_back(&mut broker, "honest");
    let told = broker.told(peer, V5);
    assert_eq!(told[0], "CONNACK Success present");
}

/// The system has it back later. Until then others are not why memory is short, however little is left in the account.
#[test]
fn nobody_ends_for_what_others_have_given_back() {
    let mut broker = Broker::with(&config(), 1);
    broker.come_from(ATTACKER);
    let heavy = broker.client(V5, "heavy");
    broker.send(heavy, &partial_publish());
    broker.come_from(HONEST);
    let honest = broker.client(V5, "honest");
    broker.send(honest, &partial_publish()[..50_000]);
    resident(&mut broker, 91, Stage::Drop);
    assert!(broker.is_closed(heavy));
    broker.advance(60_000);
    assert!(!broker.is_closed(honest));
    // Later it is the heaviest that there was.
    resident(&mut broker, 10, Stage::Normal);
    broker.advance(600_000);
    resident(&mut broker, 91, Stage::Drop);
    broker.advance(10_000);
    assert!(broker.is_closed(honest));
}

/// Without a store, what waits for sessions that are away has nowhere else to go.
#[test]
fn sessions_whose_messages_cannot_leave_memory_end_last() {
    for has_store in [false, true] {
        let store = Held::new();
        let mut broker = if has_store {
            store.broker(&config(), 1)
        } else {
            Broker::with(&config(), 1)
        };
        for (address, name, topic) in [
            (HONEST, "honest", "h"),
            (ATTACKER, "heavy", "t"),
            (ATTACKER, "light", "h"),
        ] {
            broker.come_from(address);
            let peer = kept(&mut broker, name);
            broker.subscribe(peer, V5, topic, QoS::AtLeastOnce);
            broker.cut(peer);
        }
        broker.come_from(ATTACKER);
        let publisher = broker.client(V5, "publisher");
        broker.publish(publisher, V5, "h", "kept", QoS::AtLeastOnce);
        for number in 0..24 {
            let large = format!("{number}{}", "x".repeat(500_000));
            broker.publish(publisher, V5, "t", &large, QoS::AtLeastOnce);
        }
        broker.cut(publisher);
        resident(&mut broker, 91, Stage::Drop);
        broker.advance(60_000);
        let (sessions, _) = broker.sessions(0);
        let mut names: Vec<&str> = (sessions.iter()).map(|session| session.name.id()).collect();
        names.sort_unstable();
        let expected: &[&str] = if has_store {
            &["heavy", "honest", "light"]
        } else {
            &["honest", "light"]
        };
        assert_eq!(names, expected, "has a store: {has_store}");
    }
}

/// Else messages that were acknowledged would go for nothing.
#[test]
fn no_session_ends_where_all_sessions_take_little() {
    let store = Held::new();
    let mut broker = store.broker(&config(), 1);
    let away = kept(&mut broker, "away");
    broker.subscribe(away, V5, "t", QoS::AtLeastOnce);
    broker.cut(away);
    resident(&mut broker, 71, Stage::PausePublishers);
    broker.advance(60_000);
    resident(&mut broker, 96, Stage::RefuseNewcomers);
    broker.advance(10_000);
    resident(&mut broker, 10, Stage::Normal);
    assert_eq!(broker.sessions(0).0.len(), 1);
}

/// Where parts of packets hold memory, the end of sessions is no cure.
#[test]
fn short_memory_is_one_line_for_all_clients_with_what_holds_it() {
    let text = Lines::of(tracing::Level::INFO, |_| {
        let mut broker = Broker::with(&config(), 1);
        broker.come_from(ATTACKER);
        let heavy: Vec<Peer> = (0..40)
            .map(|number| {
                let peer = broker.client(V5, &format!("heavy-{number}"));
                broker.send(peer, &partial_publish());
                peer
            })
            .collect();
        resident(&mut broker, 82, Stage::MoveToLog);
        for number in 0..18 {
            let peer = broker.open();
            let name = format!("new-{number}");
            broker.packet(peer, V5, &Packet::Connect(plain(V5, &name)));
            assert_eq!(broker.told(peer, V5), ["CONNACK Quota exceeded"]);
        }
        assert_eq!(heavy.len(), 40);
    });
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("peer=")).collect();
    let [line] = *lines else {
        panic!("{text}");
    };
    for part in [
        "login refused",
        "broker.memory_ceiling",
        "held_as=\"partial\"",
        "freed_by=\"sterna admin clients disconnect\"",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
}
