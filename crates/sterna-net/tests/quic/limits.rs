//! Strangers, silent clients and crowds.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn_proto::Dir;
use sterna_net::quic::{EventKind, Flush, Key, QuicConfig, Sent};
use sterna_net::{HandshakeFault, RefusedPeers, StreamId};

use crate::world::{Fate, World, echo, settings};

const RTT: Duration = Duration::from_millis(40);

#[test]
fn a_handshake_that_does_not_end_is_given_up() {
    let config = settings(|settings| settings.handshake_timeout_ms = 5_000);
    let mut world = World::new(config, RTT / 2);
    world.connect();
    world.rule = Box::new(|crossing| {
        if crossing.to_server && crossing.number > 0 {
            Fate::Drop
        } else {
            Fate::Deliver
        }
    });
    world.run_for(Duration::from_secs(4));
    assert_eq!((world.server.len(), world.server.half_open()), (1, 1));
    world.run_for(Duration::from_secs(10));
    assert_eq!((world.server.len(), world.server.half_open()), (0, 0));
    assert_eq!(world.server.counters().failed.iter().sum::<u64>(), 1);
    let [(_, told)] = &world.log[..] else {
        panic!("one event: {:?}", world.log);
    };
    let is_late = |failed: &sterna_net::FailedHandshake| failed.fault == HandshakeFault::TimedOut;
    assert!(matches!(&told.kind, EventKind::HandshakeFailed { failed } if is_late(failed)));
}

/// Clients that fall silent after their first packet, whose answer never reaches them, and clients that
/// have the answer and say nothing more: an honest one is served as if it were alone.
#[test]
fn two_thousand_silent_handshakes_slow_nobody() {
    const SILENT: usize = 2_000;
    for answered in [false, true] {
        let config = QuicConfig {
            retry_half_open: 10_000,
            retry_half_open_per_address: 10_000,
            max_half_open_per_address: 10_000,
            waiting_handshakes: SILENT,
            ..QuicConfig::default()
        };
        let mut world = World::new(config, RTT / 2);
        world.reaction = Box::new(echo);
        for _ in 0..SILENT {
            world.connect();
        }
        world.rule = Box::new(move |crossing| {
            let silent = crossing.client < SILENT
                && if crossing.to_server {
                    crossing.number > 0
                } else {
                    !answered
                };
            if silent { Fate::Drop } else { Fate::Deliver }
        });
        world.run_for(RTT);
        assert_eq!(world.server.half_open(), SILENT);
        let start = world.since_start();
        let turns = world.turns;
        let client = world.connect();
        world.run_until(RTT * 2, |world| world.clients[client].connected.is_some());
        assert_eq!(
            world.clients[client].connected,
            Some(start + RTT),
            "as if it were alone"
        );
        let stream = world.open(client, Dir::Bi, b"ping", false);
        world.run_until(RTT * 2, |world| {
            world.clients[client].received.contains_key(&stream.0)
        });
        assert_eq!(world.clients[client].first_byte[&stream.0], start + RTT * 2);
        // Nor do they cost turns: what they wait for comes up when it is due.
        println!(
            "answered {answered}: {} turns meanwhile",
            world.turns - turns
        );
        assert_eq!(world.server.counters().ignored, 0);
        // And they go, all of them.
        world.run_for(Duration::from_secs(2 * 60));
        assert_eq!((world.server.half_open(), world.server.len()), (0, 0));
    }
}

/// What clients may send before they have proven anything is limited, each and all of them together;
/// what is beyond comes again after the handshake.
#[test]
fn early_data_is_limited_per_client_and_in_all() {
    let long = vec![7; 9_000];
    for (own, all, clients, most) in [
        (4_000, 1_000_000, 1, 4_000),
        (1_000_000, 5_000, 3, 5_000),
        (1_000_000, 1_000_000, 3, usize::MAX),
    ] {
        let config = QuicConfig {
            max_early_bytes: own,
            max_early_bytes_total: all,
            ..QuicConfig::default()
        };
        let mut world = World::new(config, RTT / 2);
        let tls: Vec<_> = (0..clients)
            .map(|_| Arc::new(world.identity.client_tls(&[b"mqtt"])))
            .collect();
        for tls in &tls {
            world.connect_with(tls.clone(), World::transport());
        }
        world.run_for(RTT * 8);
        world.log.clear();
        let mut streams = Vec::new();
        for tls in &tls {
            let client = world.connect_with(tls.clone(), World::transport());
            streams.push((client, world.open(client, Dir::Bi, &long, true)));
        }
        world.run_for(RTT / 2);
        let early = world.events(|kind| match kind {
            EventKind::Chunk { bytes, early, .. } => early.then_some(bytes.len()),
            _ => None,
        });
        let early: usize = early.iter().map(|chunk| chunk.2).sum();
        println!("limits {own} and {all}, {clients} clients: {early} bytes read early");
        // The first datagram of each is not counted.
        assert!(early <= most.saturating_add(clients * 1_200), "{early}");
        assert!(early > 1_000);
        world.run_for(Duration::from_secs(20));
        let keys: Vec<_> = world.opened().iter().map(|opened| opened.1).collect();
        for (key, (_, stream)) in keys.iter().zip(&streams) {
            assert!(
                world.arrived(*key, *stream) == long,
                "all of it, in the end"
            );
        }
        let counters = world.server.counters();
        assert_eq!(
            counters.early_dropped > 0,
            most < usize::MAX,
            "{counters:?}"
        );
    }
}

/// What is open and idle takes no part in a turn: as many calls for one busy connection among
/// thousand idle ones as for one alone.
#[test]
fn a_thousand_idle_connections_cost_no_turn_anything() {
    let mut costs = Vec::new();
    for idle in [0, 1_000] {
        let mut world = World::new(QuicConfig::default(), RTT / 2);
        world.reaction = Box::new(echo);
        let client = world.connect();
        for _ in 0..idle {
            world.connect();
        }
        world.run_for(Duration::from_secs(20));
        assert_eq!(world.opened().len(), idle + 1);
        let before = (world.turns, world.sends);
        let stream = world.open(client, Dir::Bi, b"", false);
        let clock = std::time::Instant::now();
        for n in 1..=100 {
            world.write(client, stream, &[7; 100], false);
            world.run_until(RTT * 2, |world| {
                world.clients[client]
                    .received
                    .get(&stream.0)
                    .is_some_and(|all| all.len() == n * 100)
            });
        }
        costs.push((world.turns - before.0, world.sends - before.1));
        println!(
            "{idle} idle: {:?} turns and sends, {:?}",
            costs.last(),
            clock.elapsed()
        );
    }
    // A timer that was set before may come up for nothing.
    assert!(
        costs[1].0 <= costs[0].0 + 10 && costs[1].1 <= costs[0].1 + 10,
        "{costs:?}"
    );
}

#[test]
fn crowds_are_asked_to_prove_their_address() {
    let config = QuicConfig {
        retry_half_open: 3,
        ..QuicConfig::default()
    };
    let mut world = World::new(config, RTT / 2);
    for _ in 0..10 {
        world.connect();
    }
    world.run_for(RTT * 5);
    let counters = world.server.counters();
    assert_eq!(counters.retried, 7);
    assert_eq!(counters.confirmed, 10);
    let connected: Vec<_> = world
        .clients
        .iter()
        .map(|client| client.connected.expect("connected"))
        .collect();
    assert_eq!(connected.iter().filter(|at| **at == RTT).count(), 3);
    assert_eq!(
        connected.iter().filter(|at| **at == RTT * 2).count(),
        7,
        "one round trip more"
    );
}

/// NEW_TOKEN: who was here before spares the round trip of the Retry, once per token, from where it
/// was.
#[test]
fn a_token_of_an_earlier_connection_spares_a_retry() {
    for sent in [0, 1] {
        let config = QuicConfig {
            retry_half_open: 0,
            ..settings(|settings| settings.address_tokens = sent)
        };
        let mut world = World::new(config, RTT / 2);
        let took = |world: &mut World, from: &str| {
            let tls = Arc::new(world.identity.client_tls(&[b"mqtt"]));
            let start = world.since_start();
            let from = from.parse().expect("an address");
            let client = world.connect_from(tls, World::transport(), from);
            world.run_for(Duration::from_secs(2));
            let frames = world.clients[client].connection.stats().frame_rx.new_token;
            // To a client whose address is proven from the start the library (quinn-proto 0.11.19)
            // sends them twice, at once and after the handshake.
            let sent = u64::from(sent);
            assert!(frames >= sent && frames <= 2 * sent, "{frames} tokens");
            let connected = world.clients[client].connected.expect("connected");
            connected.saturating_sub(start)
        };
        let again = if sent > 0 { RTT } else { RTT * 2 };
        assert_eq!(took(&mut world, "198.51.100.7:1000"), RTT * 2, "a Retry");
        assert_eq!(took(&mut world, "198.51.100.7:2000"), again, "another port");
        assert_eq!(
            took(&mut world, "198.51.100.7:3000"),
            again,
            "with the next token"
        );
        assert_eq!(
            took(&mut world, "203.0.113.9:1000"),
            RTT * 2,
            "another address"
        );
        let retried = world.server.counters().retried;
        assert_eq!(retried, if sent > 0 { 2 } else { 4 });
    }
}

#[test]
fn one_address_cannot_take_all_half_open_connections() {
    let config = QuicConfig {
        retry_half_open_per_address: 2,
        max_half_open_per_address: 4,
        ..QuicConfig::default()
    };
    let mut world = World::new(config, RTT / 2);
    // The first two never end their handshake; the others prove their address.
    for _ in 0..10 {
        world.connect();
    }
    world.rule = Box::new(|crossing| {
        let silent = crossing.client < 4 && crossing.to_server && crossing.number > 1;
        if silent { Fate::Drop } else { Fate::Deliver }
    });
    world.run_for(RTT);
    assert!(world.server.half_open() <= 4);
    let elsewhere: SocketAddr = "203.0.113.5:9".parse().unwrap();
    let tls = world.identity.client_tls(&[b"mqtt"]);
    let start = world.since_start();
    let other = world.connect_from(Arc::new(tls), World::transport(), elsewhere);
    world.run_until(RTT * 2, |world| world.clients[other].connected.is_some());
    assert_eq!(world.clients[other].connected, Some(start + RTT));
    // In time all those that mean it get in: they try again by themselves.
    world.run_for(Duration::from_secs(40));
    let counters = world.server.counters();
    assert!(counters.ignored > 0, "{counters:?}");
    for client in 4..10 {
        assert!(world.clients[client].connected.is_some(), "client {client}");
    }
}

#[test]
fn newcomers_are_refused_for_as_long_as_it_is_said() {
    let mut world = World::new(QuicConfig::default(), RTT / 2);
    world.connect();
    world.run_for(RTT * 3);
    world.server.refuse_peers(RefusedPeers::All);
    let refused = world.connect();
    world.run_until(RTT * 3, |world| world.clients[refused].lost.is_some());
    let lost = world.clients[refused].lost.clone().expect("refused");
    assert!(lost.to_string().contains("refused"), "{lost}");
    assert_eq!((world.server.len(), world.server.half_open()), (1, 0));
    assert!(world.clients[0].lost.is_none(), "who is in stays");
    let elsewhere = "192.0.2.9/32".parse().expect("a network");
    world.server.refuse_peers(RefusedPeers::Of(vec![elsewhere]));
    let client = world.connect();
    world.run_for(RTT * 3);
    assert!(world.clients[client].connected.is_some());
}

#[test]
fn above_the_limit_of_connections_first_packets_stay_unanswered() {
    let config = QuicConfig {
        max_connections: 2,
        ..QuicConfig::default()
    };
    let mut world = World::new(config, RTT / 2);
    for _ in 0..3 {
        world.connect();
    }
    world.run_for(RTT * 3);
    assert_eq!(world.opened().len(), 2);
    assert!(world.clients[2].connected.is_none() && world.clients[2].lost.is_none());
    // One goes, and the third gets in with its next attempt.
    let now = world.now;
    world.clients[0]
        .connection
        .close(now, 0u32.into(), bytes::Bytes::new());
    world.run_for(Duration::from_secs(20));
    assert!(world.clients[2].connected.is_some());
}

#[test]
fn idle_connections_end_without_a_word() {
    for is_paused in [false, true] {
        let config = settings(|settings| settings.idle_timeout_ms = 20_000);
        let mut world = World::new(config, RTT / 2);
        let mut transport = World::transport();
        transport.max_idle_timeout(None);
        let tls = world.identity.client_tls(&[b"mqtt"]);
        let client = world.connect_with(Arc::new(tls), transport);
        world.run_for(Duration::from_secs(1));
        let key = world.opened()[0].1;
        world.server.pause(key, is_paused);
        world.run_for(Duration::from_secs(18));
        let sent = world.clients[client].down;
        assert!(
            world
                .events(|kind| matches!(kind, EventKind::Closed { .. }).then_some(()))
                .is_empty()
        );
        world.run_for(Duration::from_secs(5));
        let closed = world.events(|kind| match kind {
            EventKind::Closed { reason } => Some(reason.clone()),
            _ => None,
        });
        assert_eq!(closed[0].2, sterna_net::CloseReason::TimedOut);
        assert_eq!(world.clients[client].down, sent);
        assert!(world.server.is_empty());
        assert!(
            world.server.deadline().is_none(),
            "nothing is left to wait for"
        );
    }
}

#[test]
fn a_connection_that_never_times_out_holds_no_timer() {
    let config = settings(|settings| settings.idle_timeout_ms = 0);
    let mut world = World::new(config, RTT / 2);
    let mut transport = World::transport();
    transport.max_idle_timeout(None);
    let tls = world.identity.client_tls(&[b"mqtt"]);
    let client = world.connect_with(Arc::new(tls), transport);
    world.run_for(Duration::from_secs(100_000));
    assert!(world.clients[client].lost.is_none());
    assert_eq!(world.server.len(), 1);
    assert!(
        world.server.deadline().is_none(),
        "nothing is left to wait for"
    );
    assert!(
        world.turns < 40,
        "and nothing was waited for: {} turns",
        world.turns
    );
}

/// A hundred newcomers in one turn: the first get in at once, the others in the turns that follow
/// right after, and what the established have to say in between isn't held up.
#[test]
fn a_crowd_of_newcomers_is_let_in_a_few_per_turn() {
    let config = QuicConfig {
        handshakes_per_turn: 10,
        ..QuicConfig::default()
    };
    let mut world = World::new(config, RTT / 2);
    world.reaction = Box::new(echo);
    for _ in 0..100 {
        world.connect();
    }
    let turns = world.turns;
    world.run_for(RTT);
    assert!(
        world
            .clients
            .iter()
            .all(|client| client.connected == Some(RTT))
    );
    assert!(world.turns >= turns + 10);

    let config = QuicConfig {
        handshakes_per_turn: 1,
        waiting_handshakes: 5,
        ..QuicConfig::default()
    };
    let mut world = World::new(config, RTT / 2);
    for _ in 0..20 {
        world.connect();
    }
    world.run_for(RTT);
    assert_eq!(world.server.counters().ignored, 14);
    assert_eq!(
        world
            .clients
            .iter()
            .filter(|client| client.connected.is_some())
            .count(),
        6
    );
    // The others come again by themselves.
    world.run_for(Duration::from_secs(30));
    assert!(
        world
            .clients
            .iter()
            .all(|client| client.connected.is_some())
    );
}

/// Two hundred newcomers from one address, and then one from elsewhere, in the same moment: it is
/// answered second.
#[test]
fn a_crowd_from_one_address_holds_up_only_itself() {
    let config = QuicConfig {
        handshakes_per_turn: 1,
        retry_half_open_per_address: 1_000,
        ..QuicConfig::default()
    };
    let mut world = World::new(config, RTT / 2);
    for _ in 0..200 {
        world.connect();
    }
    let tls = Arc::new(world.identity.client_tls(&[b"mqtt"]));
    let elsewhere = "203.0.113.5:9".parse().expect("an address");
    let honest = world.connect_from(tls, World::transport(), elsewhere);
    let answered = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let order = answered.clone();
    world.rule = Box::new(move |crossing| {
        if !crossing.to_server && crossing.number == 0 {
            order.borrow_mut().push(crossing.client);
        }
        Fate::Deliver
    });
    world.run_for(RTT);
    let answered = answered.borrow();
    assert_eq!(answered.len(), 201);
    let place = answered.iter().position(|client| *client == honest);
    assert!(place <= Some(2), "{place:?}");
}

/// A turn sends only so much, and the connections of an address that leave others none have their turns with those.
#[test]
fn a_crowd_of_readers_of_one_address_holds_up_only_itself() {
    let config = QuicConfig {
        sent_per_turn_bytes: 20_000,
        ..QuicConfig::default()
    };
    let mut world = World::new(config, RTT / 2);
    let tls = Arc::new(world.identity.client_tls(&[b"mqtt"]));
    let elsewhere = "203.0.113.5:9".parse().expect("an address");
    let mut readers: Vec<usize> = (0..20).map(|_| world.connect()).collect();
    readers.push(world.connect_from(tls, World::transport(), elsewhere));
    world.run_for(RTT * 3);
    for reader in &readers {
        world.open(*reader, Dir::Bi, b"x", false);
    }
    world.run_for(RTT * 3);
    let mut keys: Vec<Key> = world.opened().iter().map(|(_, key, _)| *key).collect();
    let honest = keys.pop().expect("it has come last");
    let long = vec![7; 100_000];
    for key in &keys {
        world.server.send(*key, StreamId::FIRST, &long);
    }
    let mut buffer = Vec::new();
    let now = world.now;
    let mut turn = |world: &mut World| {
        let (mut bytes, mut is_served) = (0, false);
        let flush = world.server.transmit(now, 4, &mut buffer, &mut |out| {
            bytes += out.bytes.len();
            is_served |= out.destination == elsewhere;
            Sent::Done
        });
        assert_eq!(flush, Flush::Spent);
        assert!((20_000..40_000).contains(&bytes), "{bytes}");
        is_served
    };
    assert!(!turn(&mut world));
    world.server.send(honest, StreamId::FIRST, b"a word");
    assert_eq!(
        world.server.deadline(),
        Some(now),
        "the rest is for the next turn"
    );
    assert!(turn(&mut world), "it is not behind all the others");
}

/// A client whose first packet to arrive says that it has gone already leaves nothing behind.
#[test]
fn a_client_that_is_gone_before_it_came_is_forgotten() {
    let mut world = World::new(QuicConfig::default(), RTT / 2);
    world.rule = Box::new(|crossing| {
        if crossing.number == 0 {
            Fate::Drop
        } else {
            Fate::Deliver
        }
    });
    let client = world.connect();
    world.drive_client(client);
    let now = world.now;
    world.clients[client]
        .connection
        .close(now, 0u32.into(), bytes::Bytes::new());
    world.run_for(RTT);
    assert_eq!(world.server.counters().accepted, 1);
    assert_eq!((world.server.len(), world.server.half_open()), (0, 0));
    let is_failure = |kind: &EventKind| matches!(kind, EventKind::HandshakeFailed { .. });
    assert!(
        matches!(&world.log[..], [(_, event)] if is_failure(&event.kind)),
        "{:?}",
        world.log
    );
    assert_eq!(world.server.deadline(), None);
}
