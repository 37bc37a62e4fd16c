//! The machine's wall clock is wrong at a start, or is set while the broker runs. Nothing ends but by time that has
//! passed, until the clock is believed.

use std::sync::{Arc, Mutex};

use sterna_broker::{Limits, Store as _};
use sterna_mqtt::packet::{Connect, Publish, SubscribeOptions};
use sterna_mqtt::{Packet, PacketId, Property, PropertyContext, QoS, Version};
use sterna_server::config::Config;
use sterna_server::node_clock::{Clocks, Doubt, NodeClock, Reading};

use crate::fixture::{Broker, Peer, block, plain, publish};
use crate::h3_client::Client as HttpClient;
use crate::store::{Held, config};

const V5: Version = Version::V5;
const DAY_MS: u64 = 86_400_000;
const HOUR_MS: u64 = 3_600_000;
const YEAR_MS: u64 = 365 * DAY_MS;
const JUMP_MS: u64 = 7 * DAY_MS;
/// A day in 2027.
const BEGIN_MS: u64 = 1_800_000_000_000;
/// For how long what the tests keep lasts.
const LASTS_S: u32 = 1_000;
const LASTS_MS: u64 = LASTS_S as u64 * 1000;
const PRESENT: &str = "CONNACK Success present";

/// The clocks of a machine that a test sets.
#[derive(Clone, Debug)]
struct Machine(Arc<Mutex<Reading>>);

impl Clocks for Machine {
    fn read(&self) -> Reading {
        self.0.lock().expect("not poisoned").clone()
    }
}

/// A machine with a store.
struct World {
    machine: Machine,
    store: Held,
    config: Config,
}

impl World {
    fn new() -> Self {
        let reading = Reading {
            wall_ms: BEGIN_MS,
            boot_ms: 30_000,
            boot: Some("first".to_owned()),
        };
        Self {
            machine: Machine(Arc::new(Mutex::new(reading))),
            store: Held::new(),
            config: config(),
        }
    }

    fn set(&self, change: impl FnOnce(&mut Reading)) {
        change(&mut self.machine.0.lock().expect("not poisoned"));
    }

    /// The machine is booted, and its wall clock shows this.
    fn boot(&self, name: &str, wall_ms: u64) {
        self.set(|reading| {
            *reading = Reading {
                wall_ms,
                boot_ms: 20_000,
                boot: Some(name.to_owned()),
            }
        });
    }

    fn clock(&self) -> NodeClock {
        let (key, mut record) = (NodeClock::key(), None);
        self.store.clone().load(&mut |found, value| {
            if found == &*key {
                record = Some(value.to_vec());
            }
        });
        NodeClock::begin(record.as_deref(), Box::new(self.machine.clone()), JUMP_MS)
    }

    /// The broker starts.
    fn start(&self) -> Broker {
        let clock = self.clock();
        Broker::by_clock(&self.config, 1, Limits::default(), clock, || {
            Box::new(self.store.clone())
        })
    }

    /// Time passes for the machine and its broker.
    fn pass(&self, broker: &mut Broker, ms: u64) {
        // The first shard looks at the clocks meanwhile.
        let mut left_ms = ms;
        while left_ms > 0 {
            let step_ms = left_ms.min(5_000);
            self.set(|reading| {
                reading.wall_ms += step_ms;
                reading.boot_ms += step_ms;
            });
            broker.advance(step_ms);
            left_ms -= step_ms;
        }
    }
}

fn connect(broker: &mut Broker, client_id: &str, expiry_s: u32) -> Peer {
    let peer = broker.open();
    let properties = block(&[Property::SessionExpiryInterval(expiry_s)]);
    let connect = Connect {
        clean_start: false,
        keep_alive_s: 0,
        properties: properties.properties(),
        ..plain(V5, client_id)
    };
    broker.packet(peer, V5, &Packet::Connect(connect));
    peer
}

/// A session with a subscription, away from now on.
fn leaves(broker: &mut Broker, client_id: &str, expiry_s: u32) {
    let peer = connect(broker, client_id, expiry_s);
    broker.told(peer, V5);
    broker.subscribe(peer, V5, "t", QoS::AtLeastOnce);
    broker.cut(peer);
}

/// A message that expires, of QoS 1.
fn send(broker: &mut Broker, topic: &str, retain: bool) {
    let peer = broker.client(V5, "p");
    let properties = block(&[Property::MessageExpiryInterval(LASTS_S)]);
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

/// What a client is told when it comes back for a moment.
fn returned(broker: &mut Broker, client_id: &str, expiry_s: u32) -> Vec<String> {
    let peer = connect(broker, client_id, expiry_s);
    let told = broker.told(peer, V5);
    broker.cut(peer);
    told
}

/// How many retained messages there are.
fn retained(broker: &mut Broker) -> usize {
    let peer = broker.client(V5, "looks");
    let options = SubscribeOptions::new(QoS::AtMostOnce);
    broker.subscribe_with(peer, V5, "kept/#", options, &[]);
    let told = broker.told(peer, V5);
    broker.cut(peer);
    told.iter()
        .filter(|line| line.starts_with("PUBLISH"))
        .count()
}

/// Sessions and messages that last as long, of now.
fn fill(broker: &mut Broker) {
    leaves(broker, "mortal", LASTS_S);
    leaves(broker, "immortal", u32::MAX);
    send(broker, "t", false);
    send(broker, "kept/a", true);
}

/// Whether all of it is there, or nothing.
fn has_all(broker: &mut Broker) -> bool {
    let mortal = returned(broker, "mortal", LASTS_S) == [PRESENT, "PUBLISH1 t=t"];
    let immortal = returned(broker, "immortal", u32::MAX);
    assert_eq!(immortal[0], PRESENT);
    let all = [mortal, immortal.len() == 2, retained(broker) == 1];
    assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
    all[0]
}

#[test]
fn a_clock_far_from_the_last_record_at_a_boot_expires_nothing_but_by_time_that_passes() {
    for wall_ms in [BEGIN_MS + YEAR_MS, BEGIN_MS - YEAR_MS, 4_000] {
        for (wait_ms, is_there) in [(LASTS_MS - 200_000, true), (LASTS_MS + 10_000, false)] {
            let world = World::new();
            let mut broker = world.start();
            world.pass(&mut broker, 70_000);
            fill(&mut broker);
            world.pass(&mut broker, 70_000);
            drop(broker);
            world.boot("second", wall_ms);
            let mut broker = world.start();
            world.pass(&mut broker, wait_ms);
            assert_eq!(has_all(&mut broker), is_there, "{wall_ms} {wait_ms}");
        }
    }
}

#[test]
fn a_clock_that_is_set_while_the_broker_runs_changes_nothing_also_over_a_restart() {
    for wall_ms in [
        BEGIN_MS + YEAR_MS,
        BEGIN_MS + HOUR_MS,
        BEGIN_MS - HOUR_MS,
        0,
    ] {
        for (wait_ms, is_there) in [(LASTS_MS - 10_000, true), (LASTS_MS + 10_000, false)] {
            let world = World::new();
            let mut broker = world.start();
            fill(&mut broker);
            world.set(|reading| reading.wall_ms = wall_ms);
            world.pass(&mut broker, 100_000);
            drop(broker);
            // The process was away for a while.
            world.set(|reading| reading.boot_ms += 100_000);
            let mut broker = world.start();
            world.pass(&mut broker, wait_ms - 200_000);
            assert_eq!(has_all(&mut broker), is_there, "{wall_ms} {wait_ms}");
        }
    }
}

#[test]
fn a_wall_clock_that_is_near_counts_the_time_for_which_the_machine_was_off() {
    for (off_ms, is_there) in [(LASTS_MS - 200_000, true), (LASTS_MS + 10_000, false)] {
        let world = World::new();
        let mut broker = world.start();
        fill(&mut broker);
        world.pass(&mut broker, 70_000);
        drop(broker);
        world.boot("second", BEGIN_MS + 70_000 + off_ms);
        assert_eq!(has_all(&mut world.start()), is_there, "{off_ms}");
    }
}

#[test]
fn an_operator_has_the_wall_clock_believed_from_the_next_start_on() {
    let world = World::new();
    let mut broker = world.start();
    fill(&mut broker);
    world.pass(&mut broker, 70_000);
    // In order: the record of its clock is that of its end.
    broker.stop();
    drop(broker);
    world.boot("second", BEGIN_MS + YEAR_MS);
    let mut broker = world.start();
    assert_eq!(broker.clock().doubt(), Some(Doubt::Ahead));
    send(&mut broker, "kept/new", true);
    broker.clock().accept();
    world.pass(&mut broker, 10_000);
    drop(broker);
    let mut broker = world.start();
    assert_eq!(broker.clock().doubt(), None);
    world.pass(&mut broker, 1_000);
    assert_eq!(
        returned(&mut broker, "mortal", LASTS_S),
        ["CONNACK Success"]
    );
    assert_eq!(
        retained(&mut broker),
        1,
        "the new one has not lasted for a year"
    );
    world.pass(&mut broker, LASTS_MS);
    assert_eq!(retained(&mut broker), 0);
}

/// A machine without a clock of its own: at each boot it has an old time, and is told the time soon.
#[test]
fn what_was_kept_before_the_clock_was_set_lasts_as_long_as_all_else() {
    for (wait_ms, is_there) in [(0, true), (LASTS_MS, false)] {
        let world = World::new();
        let mut broker = world.start();
        world.pass(&mut broker, 70_000);
        drop(broker);
        world.boot("second", BEGIN_MS);
        let mut broker = world.start();
        fill(&mut broker);
        let request = |broker: &mut Broker| {
            let mut client = HttpClient::connect(broker);
            let key = [("idempotency-key", "k")];
            let number = client.request(broker, "POST", "/v1/topics/t/x", &key, b"one");
            client
                .response(number)
                .field("idempotent-replayed")
                .is_some()
        };
        leaves(&mut broker, "reader", u32::MAX);
        assert!(!request(&mut broker));
        world.pass(&mut broker, 20_000);
        // It was off for some hours.
        world.set(|reading| reading.wall_ms += 5 * HOUR_MS);
        world.pass(&mut broker, 20_000);
        drop(broker);
        world.boot("third", BEGIN_MS + 5 * HOUR_MS + 110_000);
        let mut broker = world.start();
        world.pass(&mut broker, wait_ms);
        assert_eq!(has_all(&mut broker), is_there, "{wait_ms}");
    }
}

#[test]
fn a_doubt_ends_when_the_wall_clock_is_near_again() {
    let world = World::new();
    let mut broker = world.start();
    world.pass(&mut broker, 10_000);
    drop(broker);
    world.boot("second", 1_000);
    let mut broker = world.start();
    world.pass(&mut broker, 10_000);
    assert_eq!(broker.clock().doubt(), Some(Doubt::Behind));
    world.set(|reading| reading.wall_ms = BEGIN_MS + DAY_MS);
    world.pass(&mut broker, 10_000);
    assert_eq!(broker.clock().doubt(), None);
    world.set(|reading| reading.wall_ms += YEAR_MS);
    world.pass(&mut broker, 10_000);
    assert_eq!(broker.clock().doubt(), Some(Doubt::Ahead));
}
