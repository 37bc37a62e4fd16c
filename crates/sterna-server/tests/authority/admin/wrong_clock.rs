//! A clock that is wrong: what operators see of it, and who is let in.

use std::sync::{Arc, Mutex};

use sterna_broker::{Limits, NoStore};
use sterna_server::node_clock::{Clocks, NodeClock, Reading};

use crate::admin::world::World;
use crate::fixture::Broker;
use crate::page::{ADMIN, config, connect, get};

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
