//! Peers whose address changes.

use std::net::SocketAddr;
use std::time::Duration;

use quinn_proto::Dir;
use sterna_net::quic::{EventKind, QuicConfig, shard_of};

use crate::world::{World, echo};

const RTT: Duration = Duration::from_millis(40);

#[test]
fn a_client_behind_a_new_address_goes_on() {
    for new in ["198.51.100.7:40000", "203.0.113.77:40000"] {
        let mut world = World::new(QuicConfig::default(), RTT / 2);
        world.reaction = Box::new(echo);
        let client = world.connect();
        let stream = world.open_when_connected(client);
        let key = world.opened()[0].1;
        world.run_for(RTT * 4);
        let new: SocketAddr = new.parse().unwrap();
        world.clients[client].address = new;
        world.write(client, stream, b"from elsewhere", false);
        world.run_until(RTT * 10, |world| {
            world.clients[client].received[&stream.0].ends_with(b"from elsewhere")
        });
        let moved = world.events(|kind| match kind {
            EventKind::PeerAddressChanged { peer } => Some(*peer),
            _ => None,
        });
        assert_eq!(moved.iter().map(|moved| moved.2).collect::<Vec<_>>(), [new]);
        assert_eq!(world.server.path(key).migrations, 1);
        world.run_for(Duration::from_secs(10));
        assert!(world.clients[client].lost.is_none());
        assert_eq!(world.opened().len(), 1);
    }
}

#[test]
fn where_migration_is_forbidden_packets_from_elsewhere_are_ignored() {
    let mut world = World::new(
        QuicConfig {
            migration: false,
            ..QuicConfig::default()
        },
        RTT / 2,
    );
    world.reaction = Box::new(echo);
    let client = world.connect();
    let stream = world.open_when_connected(client);
    world.run_for(RTT * 4);
    world.clients[client].address = "203.0.113.77:40000".parse().unwrap();
    world.write(client, stream, b"from elsewhere", false);
    world.run_for(Duration::from_secs(5));
    assert!(!world.clients[client].received[&stream.0].ends_with(b"from elsewhere"));
    assert_eq!(world.server.counters().migrations, 0);
}

/// Every packet of a client names the shard that owns its connection, whatever its address.
#[test]
fn packets_can_be_steered_to_their_shard() {
    let mut world = World::new(QuicConfig::default(), RTT / 2);
    world.reaction = Box::new(echo);
    let strays = std::rc::Rc::new(std::cell::RefCell::new((0, 0)));
    let counted = strays.clone();
    world.rule = Box::new(move |crossing| {
        // The first packets carry an identifier of the client's choice.
        if crossing.to_server && crossing.is_one_rtt() {
            let mut counted = counted.borrow_mut();
            counted.0 += 1;
            counted.1 += usize::from(shard_of(crossing.bytes, 4) != Some(1));
        }
        crate::world::Fate::Deliver
    });
    for _ in 0..50 {
        let client = world.connect();
        world.open_when_connected(client);
    }
    world.run_for(RTT * 10);
    let (packets, strays) = *strays.borrow();
    assert!(packets >= 50);
    assert_eq!(strays, 0);
}

#[test]
fn a_packet_that_strayed_from_a_sibling_draws_no_reset() {
    let mut world = World::new(QuicConfig::default(), RTT / 2);
    let client = world.connect();
    world.run_for(RTT * 20);
    let from = world.clients[client].address;
    let before = world.clients[client].down.0;
    let mut stray = vec![0x40, 2]; // shard 2 of 4; this is shard 1
    stray.resize(200, 0xaa);
    world.inject(from, &stray);
    world.run_for(RTT);
    assert_eq!(world.clients[client].down.0, before);
    // Of its own making, but of no connection: that one is answered.
    stray[1] = 1;
    world.inject(from, &stray);
    world.run_for(RTT);
    assert_eq!(world.clients[client].down.0, before + 1);
}

#[test]
fn figures_of_the_path_are_told() {
    let mut world = World::new(QuicConfig::default(), RTT / 2);
    world.reaction = Box::new(echo);
    let client = world.connect();
    world.open_when_connected(client);
    world.run_for(RTT * 4);
    let path = world.server.path(world.opened()[0].1);
    assert!((39_000..45_000).contains(&path.rtt_us), "{path:?}");
    assert!(path.congestion_window_bytes >= 10_000);
    assert_eq!(path.received_bytes as usize, world.clients[client].up.1);
    assert_eq!(path.sent_bytes as usize, world.clients[client].down.1);
    assert_eq!((path.lost_packets, path.migrations), (0, 0));
}

impl World {
    /// A stream of a client that has just connected, with something echoed on it.
    pub(crate) fn open_when_connected(&mut self, client: usize) -> sterna_net::StreamId {
        self.run_until(RTT * 5, |world| world.clients[client].connected.is_some());
        let stream = self.open(client, Dir::Bi, b"hello", false);
        self.run_until(RTT * 5, |world| {
            world.clients[client].received.contains_key(&stream.0)
        });
        stream
    }
}
