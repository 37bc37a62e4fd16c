//! Devices that sleep for hours and keep their connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn_proto::Dir;
use sterna_net::StreamId;
use sterna_net::quic::{EventKind, Key, QuicConfig};
use sterna_quic::{Profile, Settings};

use crate::world::World;

const RTT: Duration = Duration::from_secs(2);
const HOURS: Duration = Duration::from_secs(6 * 3600);
/// An MQTT PUBLISH of QoS 0 with a short topic.
const PUBLISH: &[u8] = b"\x30\x0d\x00\x06meters21.5C";

/// The stream that devices open first, and keep.
const CONTROL: StreamId = StreamId(0);

/// A server that never times out and so many devices that have connected, said something, and sleep.
fn asleep(devices: usize) -> (World, Vec<Key>) {
    let config = QuicConfig {
        settings: Settings::of(Profile::Sleepy),
        // They all come from one address.
        retry_half_open_per_address: 2_000,
        ..QuicConfig::default()
    };
    let mut world = World::new(config, RTT / 2);
    for _ in 0..devices {
        let mut transport = World::transport();
        transport.max_idle_timeout(None).initial_rtt(RTT);
        let tls = world.identity.client_tls(&[b"mqtt"]);
        world.connect_with(Arc::new(tls), transport);
    }
    world.run_for(RTT * 2);
    for device in 0..devices {
        world.open(device, Dir::Bi, b"CONNECT", false);
    }
    world.run_for(Duration::from_secs(5 * 60));
    let keys: Vec<_> = world.opened().iter().map(|opened| opened.1).collect();
    assert_eq!(keys.len(), devices);
    (world, keys)
}

/// What a device's radio sends and receives from now on: datagrams and bytes, up and down.
fn spent(world: &World, device: usize, before: [(usize, usize); 2]) -> [(usize, usize); 2] {
    let now = [world.clients[device].up, world.clients[device].down];
    [0, 1].map(|way| (now[way].0 - before[way].0, now[way].1 - before[way].1))
}

#[test]
fn a_thousand_sleepers_hold_no_timer_and_no_buffer() {
    let (mut world, keys) = asleep(1_000);
    assert_eq!(world.server.deadline(), None, "nothing is waited for");
    assert!(keys.iter().all(|key| world.server.unsent_bytes(*key) == 0));
    let turns = world.turns;
    let before = [world.clients[500].up, world.clients[500].down];
    world.run_for(HOURS);
    assert_eq!(world.server.len(), 1_000);
    assert_eq!(spent(&world, 500, before), [(0, 0), (0, 0)], "silence");
    assert!(world.turns <= turns + 1, "{} turns", world.turns - turns);
    // One wakes behind another port.
    world.log.clear();
    world.clients[500].address = "198.51.100.7:61000".parse().expect("an address");
    let start = world.since_start();
    world.write(500, CONTROL, PUBLISH, false);
    world.run_for(Duration::from_secs(5 * 60));
    let (at, ..) = world.log[0];
    assert_eq!(at.saturating_sub(start), RTT / 2);
    assert_eq!(world.arrived(keys[500], CONTROL), PUBLISH);
    assert_eq!(world.server.deadline(), None, "and all is quiet again");
}

/// What a message of a device costs that wakes up: where it was, behind another port of its NAT, and
/// in another network.
#[test]
fn a_device_that_wakes_sends_one_short_datagram() {
    let elsewhere: [(&str, Option<&str>); 3] = [
        ("same address", None),
        ("new port", Some("198.51.100.7:61000")),
        ("new network", Some("203.0.113.5:61000")),
    ];
    for (what, to) in elsewhere {
        let (mut world, keys) = asleep(1);
        let device = 0;
        world.run_for(HOURS);
        world.log.clear();
        world.astray = (0, 0);
        let moves_to: Option<SocketAddr> = to.map(|to| to.parse().expect("an address"));
        if let Some(to) = moves_to {
            world.clients[device].address = to;
        }
        let before = [world.clients[device].up, world.clients[device].down];
        let start = world.since_start();
        world.write(device, CONTROL, PUBLISH, false);
        world.run_for(RTT / 2);
        // At once: half a round trip after it left, before the new address is validated.
        assert_eq!(world.arrived(keys[0], CONTROL), PUBLISH);
        let (at, ..) = world.log[0];
        assert_eq!(at.saturating_sub(start), RTT / 2);
        let first = spent(&world, device, before);
        world.run_for(Duration::from_secs(10 * 60));
        let all = spent(&world, device, before);
        println!(
            "{what}: the message {:?}; with all that follows up {:?}, down {:?}, to the old address {:?}",
            first[0], all[0], all[1], world.astray
        );
        assert_eq!(first[0].0, 1, "one datagram");
        assert!(first[0].1 <= 70, "{first:?}");
        if moves_to.is_none() {
            assert_eq!((all[0].0, all[1].0), (1, 1), "one up, one down");
            assert!(all[1].1 <= 40, "{all:?}");
        } else {
            // RFC 9000, section 9.3, demands a path challenge, section 8.2 that it and its answer
            // fill 1,200 bytes.
            assert_eq!((all[0].0, all[1].0), (2, 2), "{what}: {all:?}");
            assert!(all[0].1 <= 1_260 && all[1].1 <= 1_240, "{what}: {all:?}");
        }
        let moved = world.events(|kind| match kind {
            EventKind::PeerAddressChanged { peer } => Some(*peer),
            _ => None,
        });
        let moved: Vec<_> = moved.into_iter().map(|moved| moved.2).collect();
        assert_eq!(moved, Vec::from_iter(moves_to));
        assert_eq!(
            world.server.deadline(),
            None,
            "asleep again, without a timer"
        );
        assert!(world.clients[device].lost.is_none());
    }
}
