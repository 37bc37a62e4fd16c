//! Peers whose address changes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn_proto::Dir;
use sterna_net::quic::{EventKind, Key, QuicConfig, shard_of};
use sterna_net::{EarlyData, PathStatistics};

use crate::world::{Fate, World, echo};

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
        world.run_for(RTT * 2);
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
            counted.1 += usize::from(shard_of(crossing.bytes, 4, None) != Some(1));
        }
        Fate::Deliver
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
    assert_eq!(path.received_datagrams as usize, world.clients[client].up.0);
    assert_eq!(path.sent_datagrams as usize, world.clients[client].down.0);
    assert_eq!(
        (path.received_payload_bytes, path.sent_payload_bytes),
        (5, 5)
    );
    assert_eq!(path.min_rtt_us, 40_000);
    // The second sample was like the first: half of it, then three quarters of that, and so on.
    assert!((1..=20_000).contains(&path.rtt_variance_us), "{path:?}");
    assert_eq!(path.mtu_bytes, 1_200);
    assert_eq!((path.open_streams, path.probe_timeouts), (1, 0));
    assert_eq!((path.early_data, path.resumed), (EarlyData::None, false));
    let nobody = world.server.path(Key {
        slot: 77,
        generation: 0,
    });
    assert_eq!(nobody, PathStatistics::default());
}

/// Every answer of a second is lost: the server probes after the timeouts of RFC 9002, which double.
#[test]
fn losses_and_probe_timeouts_are_counted() {
    let mut world = World::new(QuicConfig::default(), RTT / 2);
    world.reaction = Box::new(echo);
    let client = world.connect();
    let stream = world.open_when_connected(client);
    let key = world.opened()[0].1;
    world.run_for(RTT * 10);
    let before = world.server.path(key);
    assert_eq!(before.probe_timeouts, 0);
    let silent = (world.now, world.now + Duration::from_secs(1));
    world.rule = Box::new(move |crossing| {
        // The link knows no time, but the world is stepped below.
        if crossing.to_server {
            Fate::Deliver
        } else {
            Fate::Drop
        }
    });
    world.write(client, stream, b"anybody there?", false);
    world.run_for(silent.1 - silent.0);
    let during = world.server.path(key);
    // Smoothed round trip 40 ms, variation below 10 ms: after 80 ms at most, then twice, four times
    // and eight times that.
    assert!((3..=5).contains(&during.probe_timeouts), "{during:?}");
    world.rule = Box::new(|_| Fate::Deliver);
    world.run_for(Duration::from_secs(5));
    let after = world.server.path(key);
    assert!(world.clients[client].received[&stream.0].ends_with(b"anybody there?"));
    assert!(after.lost_packets > 0 && after.lost_bytes > 0, "{after:?}");
    assert_eq!(after.sent_payload_bytes, 5 + 14, "each byte counts once");
    // A quiet connection has no timeouts.
    let probes = after.probe_timeouts;
    world.run_for(Duration::from_secs(20));
    assert_eq!(world.server.path(key).probe_timeouts, probes);
}

/// A download that fills the congestion window is paced by timers; none of them is a timeout.
#[test]
fn pacing_is_no_probe_timeout() {
    let mut world = World::new(QuicConfig::default(), RTT / 2);
    world.reaction = Box::new(|server, event| {
        if let EventKind::Chunk { stream, .. } = event.kind {
            server.send(event.connection, stream, &vec![1; 200_000]);
        }
    });
    let client = world.connect();
    world.run_until(RTT * 5, |world| world.clients[client].connected.is_some());
    let stream = world.open(client, Dir::Bi, b"more", false);
    world.run_until(Duration::from_secs(20), |world| {
        let received = world.clients[client].received.get(&stream.0);
        received.is_some_and(|bytes| bytes.len() == 200_000)
    });
    world.run_for(Duration::from_secs(1));
    let path = world.server.path(world.opened()[0].1);
    assert_eq!((path.probe_timeouts, path.lost_packets), (0, 0), "{path:?}");
    assert_eq!(path.sent_payload_bytes, 200_000);
    assert!(path.congestion_window_bytes > 12_000, "{path:?}");
}

#[test]
fn the_verdict_on_early_data_is_told() {
    let mut world = World::new(QuicConfig::default(), RTT / 2);
    let tls = Arc::new(world.identity.client_tls(&[b"mqtt"]));
    let mut verdicts = Vec::new();
    for round in 0..3 {
        let client = world.connect_with(tls.clone(), World::transport());
        if round > 0 {
            world.open(client, Dir::Bi, b"early", false);
        }
        world.run_for(RTT * 8);
        let path = world.server.path(world.opened()[round].1);
        verdicts.push((path.resumed, path.early_data));
        if round == 1 {
            // The server stops allowing it while the client holds a ticket.
            let config = QuicConfig {
                early_data: false,
                ..QuicConfig::default()
            };
            let tickets = world.identity.tickets.clone();
            let server = config.prepare_tls(&world.identity.server_tls, tickets);
            world.server.set_tls(Arc::new(server)).unwrap();
        }
    }
    let expected = [
        (false, EarlyData::None),
        (true, EarlyData::Accepted),
        (true, EarlyData::Rejected),
    ];
    assert_eq!(verdicts, expected);
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
