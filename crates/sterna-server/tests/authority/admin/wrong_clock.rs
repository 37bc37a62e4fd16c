//! A clock that is wrong: what operators see of it, and who is let in.

use std::sync::{Arc, Mutex};

use sterna_broker::{Limits, NoStore};
use sterna_mqtt::Version;
use sterna_mqtt::packet::Packet;
use sterna_server::node_clock::{Clocks, NodeClock, Reading};

use crate::admin::world::{V5, World};
use crate::amqp_client::{Client as Amqp, Start};
use crate::fixture::{Broker, plain};
use crate::page::{ADMIN, AMQP, HTTP, answer, config, connect, get};

const BEGIN_MS: u64 = 1_800_000_000_000;
const YEAR_MS: u64 = 365 * 86_400_000;

#[derive(Clone, Debug)]
struct Machine(Arc<Mutex<Reading>>);

impl Clocks for Machine {
    fn read(&self) -> Reading {
        self.0.lock().expect("not poisoned").clone()
    }
}

/// A broker whose clocks are those of a machine.
fn world(machine: &Machine) -> World {
    let clock = NodeClock::begin(None, Box::new(machine.clone()), 86_400_000);
    let limits = Limits::default();
    World::of(Broker::by_clock(&config(), 2, limits, clock, || {
        Box::new(NoStore)
    }))
}

#[test]
fn a_wall_clock_in_doubt_is_named_and_accepted() {
    let machine = Machine(Arc::new(Mutex::new(Reading {
        wall_ms: BEGIN_MS,
        boot_ms: 1_000,
        boot: Some("boot".to_owned()),
    })));
    let mut world = world(&machine);
    let ready = |world: &mut World| {
        let peer = connect(&mut world.broker, ADMIN, 1);
        let told = get(&mut world.broker, peer, "/readyz", "");
        (told.status, told.content)
    };
    let metric = |world: &mut World, reason: &str| {
        let peer = connect(&mut world.broker, ADMIN, 0);
        let page = get(&mut world.broker, peer, "/metrics", "").content;
        let line = format!("sterna_clock_in_doubt{{reason=\"{reason}\"}} ");
        let found = page.lines().find_map(|one| one.strip_prefix(&*line));
        found.expect("the metric").to_owned()
    };
    world.broker.advance(5_000);
    assert_eq!(ready(&mut world), (200, "ready\n".to_owned()));
    assert_eq!(
        world.read("/admin/v1/clock")["doubt"],
        serde_json::Value::Null
    );
    assert_eq!(metric(&mut world, "ahead"), "0");
    machine.0.lock().expect("not poisoned").wall_ms += YEAR_MS;
    world.broker.advance(5_000);
    let (status, text) = ready(&mut world);
    assert_eq!(status, 200);
    assert_eq!(
        text,
        "ready, but the wall clock is far ahead of the last record\n"
    );
    assert_eq!(metric(&mut world, "ahead"), "1");
    assert_eq!(metric(&mut world, "behind"), "0");
    let seen = world.read("/admin/v1/clock");
    assert_eq!(
        (&seen["doubt"], &seen["is_accepted"]),
        (&"ahead".into(), &false.into())
    );
    let told = world.call("POST", "/admin/v1/clock/accept", "");
    assert_eq!(
        (told.status, &told.json["is_accepted"]),
        (200, &true.into())
    );
    assert_eq!(world.read("/admin/v1/clock")["is_accepted"], true);
}

#[test]
fn a_node_without_a_store_has_no_clock_of_its_own() {
    let mut world = World::new(1);
    assert_eq!(world.get("/admin/v1/clock").status, 404);
    assert_eq!(world.call("POST", "/admin/v1/clock/accept", "").status, 404);
}

/// Of a cluster: the engine says so.
#[test]
fn a_node_whose_clock_is_not_the_clusters_lets_nobody_in() {
    let mut config = config();
    config.cluster.nats = vec!["nats://127.0.0.1:1".to_owned()];
    config.cluster.node = Some("n1".to_owned());
    let mut world = World::with(&config, 2);
    let http = |world: &mut World| {
        let peer = connect(&mut world.broker, HTTP, 1);
        let request = b"GET /v1/topics/a HTTP/1.1\r\nHost: localhost\r\n\r\n";
        world.broker.send(peer, request);
        answer(&mut world.broker, peer).map(|told| (told.status, told.content))
    };
    for verdict in [None, Some(true), Some(false)] {
        match verdict {
            // It is being compared.
            None => world.broker.fence().await_clock(u64::MAX / 2),
            Some(is_wrong) => world.broker.fence().set_clock_wrong(is_wrong),
        }
        let is_wrong = verdict != Some(false);
        for version in [V5, Version::V311] {
            let peer = world.broker.open();
            let connect = Packet::Connect(plain(version, "c"));
            world.broker.packet(peer, version, &connect);
            let said = world.broker.told(peer, version);
            // Without NATS nobody says who has the session: the client waits.
            assert_eq!(said == ["CONNACK Server unavailable"], is_wrong, "{said:?}");
            assert_eq!(world.broker.is_closed(peer), is_wrong);
        }
        world.broker.listener = AMQP;
        let mut amqp = Amqp::start(&mut world.broker, Start::new("c"));
        let condition = amqp.condition();
        assert_eq!(
            condition.as_deref(),
            is_wrong.then_some("amqp:resource-limit-exceeded")
        );
        world.broker.listener = 0;
        let told = http(&mut world);
        let is_refused = told.is_some_and(|(status, content)| {
            status == 503 && content.contains("cluster-away") && content.contains("clock")
        });
        assert_eq!(is_refused, is_wrong);
    }
}
