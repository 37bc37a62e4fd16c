//! Wills outlive the broker: they are kept with CONNECT, and are due some time after the next start.

use sterna_mqtt::packet::{Connect, Disconnect, Publish, SubscribeOptions, Will};
use sterna_mqtt::{Packet, Property, PropertyContext, PublishProperties, QoS, ReasonCode, Version};
use sterna_net::{Chunk, StreamId, TransportKind};
use sterna_server::config::{ActionName, Config, Effect, Rule};

use crate::fixture::{Broker, Peer, block, encode, plain, publish};
use crate::store::{Held, config};

const V5: Version = Version::V5;
const V311: Version = Version::V311;

/// `mqtt.will_grace_ms` as it is by default.
const GRACE_MS: u64 = 30_000;

const WILL: Will<'static> = Will {
    topic: "state",
    payload: b"offline",
    qos: QoS::AtLeastOnce,
    retain: true,
    properties: PublishProperties::EMPTY,
};

/// How a client comes in.
#[derive(Clone, Copy, Debug)]
struct Entry {
    version: Version,
    shard: usize,
    clean_start: bool,
    expiry_s: u32,
    delay_s: u32,
    has_will: bool,
}

/// As most devices do: their sessions end with their connections.
const CLEAN: Entry = Entry {
    version: V5,
    shard: 0,
    clean_start: true,
    expiry_s: 0,
    delay_s: 0,
    has_will: true,
};

/// With a session that outlives the connection.
const LASTING: Entry = Entry {
    clean_start: false,
    expiry_s: 1_000,
    ..CLEAN
};

impl Entry {
    const fn on(self, shard: usize) -> Self {
        Self { shard, ..self }
    }

    const fn delayed(self, delay_s: u32) -> Self {
        Self { delay_s, ..self }
    }

    /// Comes in under a name, by its own socket.
    fn enter(self, broker: &mut Broker, client_id: &str) -> (Peer, Vec<String>) {
        let peer = broker.open_on(self.shard, TransportKind::Tcp, Vec::new());
        self.connect(broker, peer, client_id);
        let told = broker.told(peer, self.version);
        (peer, told)
    }

    fn connect(self, broker: &mut Broker, peer: Peer, client_id: &str) {
        let session = block(&[Property::SessionExpiryInterval(self.expiry_s)]);
        let delay = block(&[Property::WillDelayInterval(self.delay_s)]);
        let mut connect = Connect {
            clean_start: self.clean_start,
            keep_alive_s: 0,
            ..plain(self.version, client_id)
        };
        let mut will = WILL;
        if self.version == V5 {
            connect.properties = session.properties();
            will.properties = delay
                .publish_properties(PropertyContext::Will)
                .expect("of a will");
        }
        connect.will = self.has_will.then_some(will);
        broker.packet(peer, self.version, &Packet::Connect(connect));
    }

    /// The same, of one who is let in.
    fn live(self, broker: &mut Broker, client_id: &str) -> Peer {
        let (peer, told) = self.enter(broker, client_id);
        assert!(told[0].starts_with("CONNACK Success"), "{self:?}: {told:?}");
        say_online(broker, peer, self.version);
        peer
    }
}

/// What a device says when it is there.
fn say_online(broker: &mut Broker, peer: Peer, version: Version) {
    let online = Publish {
        retain: true,
        ..publish(WILL.topic, "online", QoS::AtMostOnce)
    };
    broker.packet(peer, version, &Packet::Publish(online));
}

/// What is retained where the will goes.
fn state(broker: &mut Broker) -> String {
    let looker = broker.client(V5, "looker");
    let options = SubscribeOptions::new(QoS::AtMostOnce);
    broker.subscribe_with(looker, V5, WILL.topic, options, &[]);
    let told = broker.told(looker, V5);
    broker.cut(looker);
    let lines = told.iter().filter_map(|line| line.rsplit_once('='));
    lines.map(|(_, payload)| payload).collect()
}

/// One who sees what comes to be the state.
fn watcher(broker: &mut Broker) -> Peer {
    let entry = Entry {
        has_will: false,
        ..CLEAN
    };
    let (watcher, _) = entry.enter(broker, "watcher");
    broker.subscribe(watcher, V5, WILL.topic, QoS::AtMostOnce);
    broker.take(watcher);
    watcher
}

/// The broker ends, in order or at once, and starts again with as many shards.
fn restart(store: &Held, mut broker: Broker, by: (&Config, usize), in_order: bool) -> Broker {
    let (config, shards) = by;
    if in_order {
        broker.stop();
        assert!(broker.finished());
    }
    drop(broker);
    store.broker(config, shards)
}

/// Stays retained until the time is over, and is the will from then on.
fn is_due_after(broker: &mut Broker, ms: u64, case: &str) {
    broker.advance(ms - 1);
    assert_eq!(state(broker), "online", "{case}");
    broker.advance(1);
    assert_eq!(state(broker), "offline", "{case}");
}

/// [MQTT-3.1.2-8] [MQTT311-3.1.2-8]
#[test]
fn a_will_outlives_the_broker_that_its_client_was_connected_to() {
    let legacy = Entry {
        version: V311,
        ..CLEAN
    };
    for entry in [CLEAN, LASTING, legacy, CLEAN.on(1), LASTING.on(2)] {
        for in_order in [true, false] {
            let case = format!("{entry:?} {in_order}");
            let store = Held::new();
            let config = config();
            let mut broker = store.broker(&config, 3);
            entry.live(&mut broker, "device");
            let mut broker = restart(&store, broker, (&config, 2), in_order);
            is_due_after(&mut broker, GRACE_MS, &case);
            // Once, also over another restart.
            let other = broker.client(V5, "other");
            say_online(&mut broker, other, V5);
            let mut broker = restart(&store, broker, (&config, 1), false);
            broker.advance(2 * GRACE_MS);
            assert_eq!(state(&mut broker), "online", "{case}");
        }
    }
}

/// [MQTT-3.1.3-9]
#[test]
fn a_client_that_returns_first_takes_its_will_with_it() {
    for before in [CLEAN, LASTING, LASTING.delayed(60)] {
        for after in [CLEAN, LASTING, CLEAN.on(1), LASTING.on(1)] {
            for has_will in [false, true] {
                let case = format!("{before:?} {after:?} {has_will}");
                let store = Held::new();
                let config = config();
                let mut broker = store.broker(&config, 1);
                before.live(&mut broker, "device");
                let mut broker = restart(&store, broker, (&config, 2), false);
                broker.advance(GRACE_MS - 1);
                let watcher = watcher(&mut broker);
                let entry = Entry { has_will, ..after };
                let device = entry.live(&mut broker, "device");
                broker.advance(100_000);
                let told = broker.told(watcher, V5);
                assert_eq!(told, ["PUBLISH0 state=online"], "{case}");
                // The one that it has now is its own.
                broker.cut(device);
                let told = broker.told(watcher, V5);
                let is_published = told == ["PUBLISH0 state=offline"];
                assert_eq!(is_published, has_will, "{case}: {told:?}");
            }
        }
    }
}

/// A delay that is longer counts from the first start on, and a session that ends in the meantime shortens neither.
/// [MQTT-3.1.3-9] [MQTT-4.1.0-2]
#[test]
fn a_will_is_due_after_its_delay_or_the_grace_whichever_is_longer() {
    let brief = |expiry_s, delay_s| Entry {
        expiry_s,
        delay_s,
        ..LASTING
    };
    for (entry, due_ms) in [
        (LASTING.delayed(10), GRACE_MS),
        (LASTING.delayed(100), 100_000),
        // The session's end comes before the end of the delay.
        (brief(60, 100), 60_000),
        (brief(10, 0), GRACE_MS),
        (brief(10, 100), GRACE_MS),
        (brief(u32::MAX, 40), 40_000),
        (CLEAN.delayed(100), GRACE_MS),
    ] {
        let case = format!("{entry:?}");
        let store = Held::new();
        let config = config();
        let mut broker = store.broker(&config, 1);
        entry.live(&mut broker, "device");
        let mut broker = restart(&store, broker, (&config, 1), false);
        is_due_after(&mut broker, due_ms, &case);
        // Nothing is left of the session or of its will, unless it lives on.
        broker.advance(1_000_000);
        let (sessions, _) = broker.sessions(0);
        let is_there = sessions.iter().any(|session| session.name.id() == "device");
        assert_eq!(is_there, entry.expiry_s == u32::MAX, "{case}");
        drop(broker);
        let mut broker = store.broker(&config, 1);
        let (device, told) = brief(u32::MAX, 0).enter(&mut broker, "device");
        let present = if is_there { " present" } else { "" };
        assert_eq!(told, [format!("CONNACK Success{present}")], "{case}");
        broker.cut(device);
    }
}

/// The session itself ends when it is to end, though its will waits.
#[test]
fn a_session_ends_in_its_time_though_its_will_waits() {
    let store = Held::new();
    let config = config();
    let mut broker = store.broker(&config, 1);
    let brief = Entry {
        expiry_s: 10,
        ..LASTING
    };
    for name in ["early", "late"] {
        let peer = brief.live(&mut broker, name);
        broker.subscribe(peer, V5, "a", QoS::AtLeastOnce);
    }
    let mut broker = restart(&store, broker, (&config, 1), true);
    broker.advance(9_000);
    let (_, told) = brief.enter(&mut broker, "early");
    assert_eq!(told, ["CONNACK Success present"]);
    broker.advance(1_000);
    let (_, told) = brief.enter(&mut broker, "late");
    assert_eq!(told, ["CONNACK Success"]);
    broker.advance(2 * GRACE_MS);
    assert_eq!(state(&mut broker), "online");
}

/// A second start comes while the will waits. A grace begins anew, for its client has to find the broker. A longer delay
/// does not.
#[test]
fn a_broker_that_starts_again_and_again_publishes_a_delayed_will_all_the_same() {
    for (entry, in_order) in [
        (CLEAN, false),
        (LASTING, true),
        (LASTING.delayed(100), false),
        (LASTING.delayed(100), true),
    ] {
        let case = format!("{entry:?} {in_order}");
        let limits = |config: &Config| sterna_broker::Limits {
            will_grace_ms: u64::from(config.mqtt.will_grace_ms),
            ..sterna_broker::Limits::default()
        };
        let store = Held::new();
        let config = config();
        let at = |now_ms| {
            let store = store.clone();
            Broker::restored_at(&config, 1, limits(&config), now_ms, move || {
                Box::new(store.clone())
            })
        };
        let mut broker = at(1_000_000);
        entry.live(&mut broker, "device");
        if in_order {
            broker.stop();
        }
        drop(broker);
        for start_ms in [2_000_000, 2_020_000, 2_040_000] {
            let mut broker = at(start_ms);
            broker.advance(15_000);
            assert_eq!(state(&mut broker), "online", "{case}");
            if in_order {
                broker.stop();
            }
        }
        let mut broker = at(2_060_000);
        let due_ms = if entry.delay_s > 0 { 40_000 } else { GRACE_MS };
        is_due_after(&mut broker, due_ms, &case);
    }
}

#[test]
fn without_a_grace_a_will_is_due_at_the_start_after_its_own_delay() {
    for entry in [CLEAN, LASTING, CLEAN.delayed(10), LASTING.delayed(10)] {
        for in_order in [true, false] {
            let case = format!("{entry:?} {in_order}");
            let store = Held::new();
            let mut config = config();
            config.mqtt.will_grace_ms = 0;
            let mut broker = store.broker(&config, 2);
            let watcher = Entry {
                has_will: false,
                ..LASTING
            };
            let (reader, _) = watcher.on(1).enter(&mut broker, "reader");
            broker.subscribe(reader, V5, WILL.topic, QoS::AtLeastOnce);
            broker.cut(reader);
            entry.live(&mut broker, "device");
            let mut broker = {
                if in_order {
                    broker.stop();
                    assert!(broker.finished());
                }
                drop(broker);
                assert_eq!(
                    store.memory.counts().0,
                    0,
                    "{case}: not by the one that stops"
                );
                store.broker(&config, 2)
            };
            let is_delayed = entry.delay_s > 0 && entry.expiry_s > 0;
            broker.advance(1);
            let told = watcher.enter(&mut broker, "reader").1;
            let mut expected = vec!["CONNACK Success present"];
            if !is_delayed {
                expected.push("PUBLISH1 state=offline");
            }
            assert_eq!(told, expected, "{case}");
            if is_delayed {
                is_due_after(&mut broker, 9_999, &case);
            }
        }
    }
}

/// DISCONNECT takes the will with it, and nobody waits for the store to forget it.
/// [MQTT-3.14.4-3] [MQTT311-3.14.4-3]
#[test]
fn a_goodbye_takes_the_will_with_it_and_waits_for_nothing() {
    for entry in [CLEAN, LASTING, LASTING.delayed(60)] {
        let store = Held::new();
        let config = config();
        let mut broker = store.broker(&config, 1);
        let device = entry.live(&mut broker, "device");
        store.hold();
        let goodbye = Disconnect::new(ReasonCode::Success);
        broker.packet(device, V5, &Packet::Disconnect(goodbye));
        assert!(broker.is_closed(device));
        assert!(!store.is_awaited(), "{entry:?}");
        let mut broker = restart(&store, broker, (&config, 1), false);
        broker.advance(2 * GRACE_MS);
        assert_eq!(state(&mut broker), "online", "{entry:?}");
    }
}

/// A will that was published, by a loss or by a client's own word, is not there again.
#[test]
fn a_will_that_was_published_is_not_there_again() {
    for entry in [CLEAN, LASTING, CLEAN.delayed(5), LASTING.delayed(5)] {
        for is_cut in [true, false] {
            let store = Held::new();
            let config = config();
            let mut broker = store.broker(&config, 1);
            let device = entry.live(&mut broker, "device");
            if is_cut {
                broker.cut(device);
            } else {
                let goodbye = Disconnect::new(ReasonCode::DisconnectWithWill);
                broker.packet(device, V5, &Packet::Disconnect(goodbye));
            }
            broker.advance(5_000);
            assert_eq!(state(&mut broker), "offline", "{entry:?}");
            let other = broker.client(V5, "other");
            say_online(&mut broker, other, V5);
            let mut broker = restart(&store, broker, (&config, 1), false);
            broker.advance(2 * GRACE_MS);
            assert_eq!(state(&mut broker), "online", "{entry:?}");
        }
    }
}

/// A client whose connection ends while the broker drains may have said goodbye, which nobody reads any more. It has as
/// long as all others to return.
#[test]
fn a_connection_that_ends_while_the_broker_drains_is_one_that_ended_with_it() {
    for entry in [CLEAN, LASTING, LASTING.delayed(5)] {
        for returns in [false, true] {
            let store = Held::new();
            let config = config();
            let mut broker = store.broker(&config, 1);
            // Somebody's acknowledgement keeps the broker.
            let reader = Entry {
                has_will: false,
                ..LASTING
            };
            let (reader, _) = reader.enter(&mut broker, "reader");
            broker.subscribe(reader, V5, "a", QoS::AtLeastOnce);
            let device = entry.live(&mut broker, "device");
            store.hold();
            broker.publish(device, V5, "a", "x", QoS::AtLeastOnce);
            broker.stop();
            assert!(!broker.finished());
            broker.cut(device);
            broker.advance(10_000);
            assert!(broker.finished());
            drop(broker);
            let mut broker = Held::on(store.memory.clone()).broker(&config, 1);
            assert_eq!(state(&mut broker), "online", "{entry:?}");
            if returns {
                entry.live(&mut broker, "device");
            }
            broker.advance(GRACE_MS);
            let expected = if returns { "online" } else { "offline" };
            assert_eq!(state(&mut broker), expected, "{entry:?}");
        }
    }
}

/// CONNACK promises the will, so it waits for its record as the listener asks.
#[test]
fn a_will_is_kept_before_its_client_is_let_in() {
    for entry in [CLEAN, LASTING, CLEAN.on(1)] {
        let store = Held::new();
        let config = config();
        let mut broker = store.broker(&config, 2);
        store.hold();
        let mut enter = |listener: u16, name| {
            broker.listener = listener;
            let peer = broker.open_on(entry.shard, TransportKind::Tcp, Vec::new());
            entry.connect(&mut broker, peer, name);
            peer
        };
        // They wait for the disk, the kernel and nothing.
        let peers = [enter(0, "synced"), enter(1, "written"), enter(2, "there")];
        let told = |broker: &mut Broker| peers.map(|peer| broker.told(peer, V5).len());
        assert_eq!(told(&mut broker), [0, 0, 1], "{entry:?}");
        store.write(&mut broker);
        assert_eq!(told(&mut broker), [0, 1, 0], "{entry:?}");
        store.sync(&mut broker);
        assert_eq!(told(&mut broker), [1, 0, 0], "{entry:?}");
        // Without a will and a session nothing is kept, and nothing waits.
        store.hold();
        broker.listener = 0;
        let (_, told) = Entry {
            has_will: false,
            ..CLEAN
        }
        .enter(&mut broker, "neither");
        assert_eq!(told, ["CONNACK Success"]);
    }
}

/// A will that cannot be kept is not accepted. Who is known comes in, for the store has had its record.
#[test]
fn a_will_is_refused_where_the_store_has_no_room_for_it() {
    let without = Entry {
        has_will: false,
        ..CLEAN
    };
    let legacy = Entry {
        version: V311,
        ..CLEAN
    };
    let store = Held::new();
    let config = config();
    let mut broker = store.broker(&config, 2);
    CLEAN.live(&mut broker, "known");
    let kept = Entry {
        has_will: false,
        ..LASTING
    };
    let (lasting, _) = kept.enter(&mut broker, "lasting");
    broker.cut(lasting);
    for set in [
        sterna_store::MemoryStore::set_lacking_room,
        sterna_store::MemoryStore::set_stuck,
    ] {
        set(&store.memory, true);
        assert_eq!(
            CLEAN.enter(&mut broker, "new").1,
            ["CONNACK Quota exceeded"]
        );
        let told = CLEAN.on(1).enter(&mut broker, "other").1;
        assert_eq!(told, ["CONNACK Quota exceeded"]);
        let told = legacy.enter(&mut broker, "new").1;
        assert_eq!(told, ["CONNACK Server unavailable"]);
        assert_eq!(without.enter(&mut broker, "new").1, ["CONNACK Success"]);
        set(&store.memory, false);
    }
    store.memory.set_lacking_room(true);
    assert_eq!(CLEAN.enter(&mut broker, "known").1, ["CONNACK Success"]);
    let told = LASTING.enter(&mut broker, "lasting").1;
    assert_eq!(told, ["CONNACK Success present"]);
    store.memory.set_lacking_room(false);
    assert_eq!(CLEAN.enter(&mut broker, "new").1, ["CONNACK Success"]);
}

fn denying(topics: &[&str]) -> Config {
    let mut config = config();
    config.authorization.rules = vec![Rule {
        effect: Effect::Deny,
        actions: vec![ActionName::Publish],
        topics: topics.iter().map(|&topic| topic.to_owned()).collect(),
        ..Rule::default()
    }];
    config
}

/// Rules are asked when a will is published, and not those of an earlier process.
#[test]
fn a_will_that_the_rules_do_not_allow_any_more_is_dropped() {
    for entry in [CLEAN, LASTING] {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        entry.live(&mut broker, "device");
        let mut broker = restart(&store, broker, (&denying(&[WILL.topic]), 1), false);
        broker.advance(GRACE_MS);
        assert_eq!(state(&mut broker), "online", "{entry:?}");
        // It is gone.
        let mut broker = restart(&store, broker, (&config(), 1), false);
        broker.advance(2 * GRACE_MS);
        assert_eq!(state(&mut broker), "online", "{entry:?}");
    }
}

/// The first flight of QUIC may be a replay, whose sender is not who left the will.
#[test]
fn a_will_of_early_data_is_kept_when_it_can_be_no_replay() {
    for is_confirmed in [false, true] {
        let store = Held::new();
        let config = Config {
            listeners: vec![sterna_server::config::Listener::at(
                "mqtt+quic://127.0.0.1:0",
            )],
            ..crate::fixture::everybodys()
        };
        let mut broker = store.broker(&config, 1);
        let device = broker.open_on(0, TransportKind::Quic, Vec::new());
        let connect = Connect {
            will: Some(WILL),
            ..plain(V5, "device")
        };
        let bytes = encode(V5, &Packet::Connect(connect));
        let chunk = Chunk {
            stream: StreamId::FIRST,
            bytes: &bytes,
            early: true,
            confirmed: false,
        };
        broker.arrive(device, chunk);
        assert_eq!(broker.told(device, V5), ["CONNACK Success"]);
        assert_eq!(store.counts().1, 0);
        if is_confirmed {
            broker.confirm(device);
        }
        assert_eq!(store.counts().1, usize::from(is_confirmed));
        let mut broker = restart(&store, broker, (&config, 1), false);
        broker.advance(GRACE_MS);
        let expected = if is_confirmed { "offline" } else { "" };
        assert_eq!(state(&mut broker), expected);
    }
}

/// Sparkplug 3.0, section 5.7: the will of a primary host, and its birth, are retained in one topic. The host comes with
/// a clean start, and what was its death before must not overwrite its birth.
#[test]
fn the_death_of_a_host_does_not_come_behind_its_next_birth() {
    const STATE: &str = "spBv1.0/STATE/scada";
    let enter = |broker: &mut Broker, shard: usize, timestamp: u32| {
        let death = format!("{{\"online\":false,\"timestamp\":{timestamp}}}");
        let birth = format!("{{\"online\":true,\"timestamp\":{timestamp}}}");
        let connect = Connect {
            keep_alive_s: 0,
            will: Some(Will {
                topic: STATE,
                payload: death.as_bytes(),
                ..WILL
            }),
            ..plain(V5, "scada")
        };
        let host = broker.open_on(shard, TransportKind::Tcp, Vec::new());
        broker.packet(host, V5, &Packet::Connect(connect));
        assert_eq!(broker.told(host, V5), ["CONNACK Success"]);
        broker.subscribe(host, V5, STATE, QoS::AtLeastOnce);
        let birth = Publish {
            retain: true,
            ..publish(STATE, &birth, QoS::AtLeastOnce)
        };
        broker.packet(host, V5, &Packet::Publish(birth));
        host
    };
    for grace_ms in [0, 30_000] {
        for shard in 0..2 {
            let store = Held::new();
            let mut config = config();
            config.mqtt.will_grace_ms = grace_ms;
            let mut broker = store.broker(&config, 2);
            enter(&mut broker, 0, 1);
            let mut broker = restart(&store, broker, (&config, 2), false);
            let node = broker.client(V5, "node");
            broker.subscribe(node, V5, STATE, QoS::AtLeastOnce);
            let host = enter(&mut broker, shard, 2);
            broker.advance(2 * GRACE_MS);
            let birth = "{\"online\":true,\"timestamp\":2}";
            let told = broker.told(node, V5);
            assert!(told.iter().any(|line| line.ends_with(birth)), "{told:?}");
            assert!(
                told.last().is_some_and(|line| line.ends_with(birth)),
                "{told:?}"
            );
            let own = broker.told(host, V5);
            assert!(own.iter().all(|line| !line.contains("false")), "{own:?}");
        }
    }
}

/// What a storm of clients costs the store: for each one with a will an append and a record, and another append when it
/// says goodbye.
#[test]
fn a_storm_of_clients_with_wills_costs_a_record_each() {
    const CLIENTS: u64 = 1_000;
    /// Beside the body of the message: the key and the header of both.
    const MOST_OVERHEAD_BYTES: u64 = 48;
    let without = Entry {
        has_will: false,
        ..CLEAN
    };
    for (entry, appends_each) in [(without, 0), (CLEAN, 1)] {
        let store = Held::new();
        let mut config = config();
        config.broker.maximum_sessions = CLIENTS + 1;
        let mut broker = store.broker(&config, 1);
        broker.advance(1);
        let weight = |store: &Held| {
            let keys: usize = store.memory.keys().iter().map(|key| key.len()).sum();
            (store.memory.record_bytes() + keys) as u64
        };
        // What the node keeps of itself.
        let (own_appends, own_bytes) = (store.memory.appends(), weight(&store));
        let appends = || store.memory.appends() - own_appends;
        let names: Vec<String> = (0..CLIENTS).map(|number| format!("d{number:04}")).collect();
        let peers: Vec<Peer> = names
            .iter()
            .map(|name| {
                let (peer, told) = entry.enter(&mut broker, name);
                assert_eq!(told, ["CONNACK Success"]);
                peer
            })
            .collect();
        assert_eq!(appends(), CLIENTS * appends_each);
        let (messages, records) = store.counts();
        assert_eq!((messages, records as u64), (0, CLIENTS * appends_each));
        let bytes = weight(&store) - own_bytes;
        let body = (WILL.topic.len() + WILL.payload.len() + names[0].len()) as u64;
        assert!(
            bytes <= CLIENTS * appends_each * (body + MOST_OVERHEAD_BYTES),
            "{bytes}"
        );
        for peer in peers {
            broker.packet(
                peer,
                V5,
                &Packet::Disconnect(Disconnect::new(ReasonCode::Success)),
            );
        }
        assert_eq!(appends(), CLIENTS * appends_each * 2);
        assert_eq!(store.counts(), (0, 0));
    }
}

/// A will that a durable reader wants waits while the store takes no messages: what it says would be lost otherwise, for
/// its client is gone. One that returns takes it with it.
#[test]
fn a_will_that_is_due_waits_until_the_store_has_room() {
    for entry in [CLEAN, CLEAN.delayed(1), LASTING, LASTING.delayed(1)] {
        for is_killed in [false, true] {
            for returns in [false, true] {
                let case = format!("{entry:?} {is_killed} {returns}");
                let store = Held::new();
                let config = config();
                let mut broker = store.broker(&config, 1);
                let reader = Entry {
                    has_will: false,
                    ..LASTING
                };
                let (peer, _) = reader.enter(&mut broker, "reader");
                broker.subscribe(peer, V5, WILL.topic, QoS::AtLeastOnce);
                broker.cut(peer);
                let device = entry.live(&mut broker, "device");
                store.memory.set_full(true);
                if is_killed {
                    drop(broker);
                    broker = store.broker(&config, 1);
                    broker.advance(GRACE_MS);
                } else {
                    broker.cut(device);
                }
                broker.advance(10_000);
                assert_eq!(state(&mut broker), "online", "{case}");
                if returns {
                    let (_, told) = entry.enter(&mut broker, "device");
                    assert!(told[0].starts_with("CONNACK Success"), "{case}");
                }
                store.memory.set_full(false);
                broker.advance(2_000);
                let expected = if returns { "online" } else { "offline" };
                assert_eq!(state(&mut broker), expected, "{case}");
                let (_, told) = reader.enter(&mut broker, "reader");
                assert_eq!(told.len(), 2 - usize::from(returns), "{case}: {told:?}");
                let others = usize::from(returns);
                let wills = store.memory.keys();
                let wills = wills.iter().filter(|key| key.first() == Some(&b'w'));
                assert_eq!(wills.count(), others, "{case}");
            }
        }
    }
}

/// Its client has said that it begins anew, and nothing is left that would try again.
#[test]
fn a_clean_start_drops_a_delayed_will_that_finds_no_room() {
    let store = Held::new();
    let mut broker = store.broker(&crate::page::config(), 1);
    let reader = Entry {
        has_will: false,
        ..LASTING
    };
    let (peer, _) = reader.enter(&mut broker, "reader");
    broker.subscribe(peer, V5, WILL.topic, QoS::AtLeastOnce);
    broker.cut(peer);
    let device = LASTING.delayed(100).live(&mut broker, "device");
    broker.cut(device);
    store.memory.set_full(true);
    let anew = Entry {
        clean_start: true,
        has_will: false,
        ..LASTING
    };
    let (_, told) = anew.enter(&mut broker, "device");
    assert_eq!(told, ["CONNACK Success"]);
    store.memory.set_full(false);
    broker.advance(200_000);
    assert_eq!(state(&mut broker), "online");
    let dropped = "sterna_messages_dropped_total{reason=\"store_full\",protocol=\"internal\"}";
    assert_eq!(crate::page::scrape(&mut broker).value(dropped), 1);
}
