//! Early data (0-RTT): read before the handshake ends, and never twice.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quinn_proto::{Dir, VarInt};
use sterna_net::StreamId;
use sterna_net::quic::{EventKind, QuicConfig};

use crate::world::{Crossing, Fate, World, echo, settings};

const RTT: Duration = Duration::from_secs(2);

/// A world and a client's TLS that holds a ticket.
fn with_ticket(config: QuicConfig) -> (World, Arc<rustls::ClientConfig>) {
    let mut world = World::new(config, RTT / 2);
    let tls = Arc::new(world.identity.client_tls(&[b"mqtt"]));
    let client = world.connect_with(tls.clone(), World::transport());
    world.run_for(RTT * 8);
    assert!(world.clients[client].connected.is_some());
    assert_eq!(
        world.identity.tickets.usage().sessions,
        usize::from(QuicConfig::default().settings.tickets),
        "the tickets of a connection"
    );
    world.log.clear();
    (world, tls)
}

/// What arrived on stream 0: when, and how it was tagged.
fn chunks(world: &World) -> Vec<(Duration, bool, bool)> {
    let found = world.events(|kind| match kind {
        EventKind::Chunk {
            early, confirmed, ..
        } => Some((*early, *confirmed)),
        _ => None,
    });
    found
        .into_iter()
        .map(|(at, _, (early, confirmed))| (at, early, confirmed))
        .collect()
}

#[test]
fn early_data_is_read_half_a_round_trip_after_it_was_sent() {
    let (mut world, tls) = with_ticket(QuicConfig::default());
    world.reaction = Box::new(echo);
    let start = world.since_start();
    let client = world.connect_with(tls, World::transport());
    let stream = world.open(client, Dir::Bi, b"CONNECT", false);
    world.run_for(RTT * 8);

    // Opened, read as early data, confirmed, in this order.
    let times: Vec<_> = world
        .log
        .iter()
        .map(|(at, _)| at.saturating_sub(start))
        .collect();
    let kinds: Vec<_> = world.log.iter().map(|(_, event)| &event.kind).collect();
    assert!(
        matches!(kinds[0], EventKind::Opened { confirmed: false, info } if *info.protocol == *b"mqtt")
    );
    assert!(matches!(
        kinds[1],
        EventKind::Chunk {
            early: true,
            confirmed: false,
            ..
        }
    ));
    assert!(matches!(kinds[2], EventKind::Confirmed));
    assert_eq!(kinds.len(), 3);
    assert_eq!(times, [RTT / 2, RTT / 2, RTT * 3 / 2]);
    // The answer, 1-RTT data in the server's first flight, comes after one round trip.
    assert_eq!(
        world.clients[client].first_byte[&stream.0].saturating_sub(start),
        RTT
    );
    let counters = world.server.counters();
    assert_eq!((counters.opened_early, counters.early_refused), (1, 0));
    assert_eq!((counters.confirmed, counters.resumed), (2, 1));
    assert!(world.clients[client].connection.accepted_0rtt());
}

/// Tickets come one round trip after the answer, when such a device is gone: it lives on its stock.
#[test]
fn a_device_that_stops_at_its_answer_has_early_data_the_next_time_as_well() {
    let (mut world, tls) = with_ticket(QuicConfig::default());
    world.reaction = Box::new(echo);
    let stock = world.identity.tickets.usage().sessions;
    assert_eq!(stock, 4);
    for wake in 1..=stock {
        let client = world.connect_with(tls.clone(), World::transport());
        let stream = world.open(client, Dir::Bi, b"PUBLISH", false);
        world.run_until(RTT * 2, |world| {
            world.clients[client].first_byte.contains_key(&stream.0)
        });
        let now = world.now;
        let connection = &mut world.clients[client].connection;
        connection.close(now, VarInt::from_u32(0), Bytes::new());
        assert_eq!(world.server.counters().opened_early, wake as u64);
    }
}

/// The source address of a first flight can be forged, unless it brings a token that was sent there.
#[test]
fn the_address_of_early_data_is_proved_by_a_token_alone() {
    for retries in [false, true] {
        let config = QuicConfig {
            retry_half_open: if retries { 0 } else { 10_000 },
            ..QuicConfig::default()
        };
        let (mut world, tls) = with_ticket(config);
        let client = world.connect_with(tls, World::transport());
        world.open(client, Dir::Bi, b"CONNECT", false);
        world.run_for(RTT * 8);
        let proved = world.events(|kind| match kind {
            EventKind::Opened { info, confirmed } => Some((*confirmed, info.is_peer_proved)),
            _ => None,
        });
        let proved: Vec<_> = proved.into_iter().map(|(.., proved)| proved).collect();
        assert_eq!(proved, [(false, retries)]);
    }
}

#[test]
fn data_after_the_handshake_is_not_early() {
    let (mut world, tls) = with_ticket(QuicConfig::default());
    let client = world.connect_with(tls, World::transport());
    let stream = world.open(client, Dir::Bi, b"early", false);
    world.run_for(RTT * 4);
    world.write(client, stream, b"late", false);
    world.run_for(RTT * 4);
    let tags: Vec<_> = chunks(&world)
        .into_iter()
        .map(|(_, early, sure)| (early, sure))
        .collect();
    assert_eq!(tags, [(true, false), (false, true)]);
}

#[test]
fn an_end_of_the_handshake_in_the_same_turn_does_not_hide_that_data_was_early() {
    let (mut world, tls) = with_ticket(QuicConfig::default());
    let client = world.connect_with(tls, World::transport());
    // What the client sends first waits for what it sends second: the server reads both in one
    // turn. (It must not wait for the server, so the second flight is delayed by nothing.)
    world.rule = Box::new(|crossing| match (crossing.to_server, crossing.number) {
        (true, 1) => Fate::Late(RTT),
        _ => Fate::Deliver,
    });
    // Too much for the first datagram: the rest comes in the second.
    let stream = world.open(client, Dir::Bi, &[1; 1_500], false);
    world.run_for(RTT * 4);
    let tags: Vec<_> = chunks(&world)
        .into_iter()
        .map(|(_, early, sure)| (early, sure))
        .collect();
    assert_eq!(tags.first(), Some(&(true, false)));
    let key = world.opened()[0].1;
    assert_eq!(world.arrived(key, stream).len(), 1_500);
}

/// An attacker who recorded the client's first flight sends it again: the ticket is used up, so the
/// early data is not even decrypted.
#[test]
fn a_replayed_first_flight_delivers_nothing() {
    let (mut world, tls) = with_ticket(QuicConfig::default());
    let flight = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let recorded = flight.clone();
    world.rule = Box::new(move |crossing: &Crossing<'_>| {
        if crossing.to_server && crossing.client == 1 && crossing.number < 2 {
            recorded.borrow_mut().push(crossing.bytes.to_vec());
        }
        Fate::Deliver
    });
    let client = world.connect_with(tls, World::transport());
    world.open(client, Dir::Bi, b"open the door", false);
    world.run_for(RTT * 4);
    assert_eq!(chunks(&world).len(), 1);

    // From elsewhere, and after the first connection is long gone, so that the identifiers of the
    // recorded packets lead to no connection.
    let now = world.now;
    world.clients[client]
        .connection
        .close(now, 0u32.into(), Bytes::new());
    world.run_for(Duration::from_secs(60));
    let before = world.server.counters().accepted;
    for datagram in flight.borrow().iter() {
        world.inject("203.0.113.9:666".parse().unwrap(), datagram);
    }
    world.run_for(RTT * 8);
    assert_eq!(
        world.server.counters().accepted,
        before + 1,
        "a handshake was begun"
    );
    assert_eq!(chunks(&world).len(), 1, "and nothing was read");
    assert_eq!(world.opened().len(), 1);
    assert_eq!(world.identity.tickets.usage().unknown, 1);
}

#[test]
fn a_ticket_serves_once_and_its_successor_next() {
    let (mut world, tls) = with_ticket(QuicConfig::default());
    for n in 1..=3 {
        let client = world.connect_with(tls.clone(), World::transport());
        world.open(client, Dir::Bi, b"again", false);
        world.run_for(RTT * 8);
        assert!(world.clients[client].connection.accepted_0rtt());
        assert_eq!(world.server.counters().opened_early, n);
        assert_eq!(
            world.identity.tickets.usage().sessions as u64,
            4 + n,
            "one was taken, and two were asked for"
        );
    }
}

#[test]
fn early_data_is_refused_where_it_is_not_allowed_and_comes_again_after_the_handshake() {
    let (mut world, tls) = with_ticket(QuicConfig::default());
    // The server stops allowing it while clients hold tickets.
    let config = QuicConfig {
        early_data: false,
        ..QuicConfig::default()
    };
    let server = config.prepare_tls(&world.identity.server_tls, world.identity.tickets.clone());
    world.server.set_tls(Arc::new(server)).unwrap();
    let client = world.connect_with(tls, World::transport());
    world.open(client, Dir::Bi, b"early", false);
    world.run_until(RTT * 4, |world| world.clients[client].connected.is_some());
    assert!(!world.clients[client].connection.accepted_0rtt());
    // The library forgets streams of rejected early data; an application sends again.
    world.open(client, Dir::Bi, b"again", false);
    world.run_for(RTT * 4);
    assert!(world.opened()[0].2);
    let counters = world.server.counters();
    assert_eq!((counters.opened_early, counters.early_refused), (0, 1));
    let tags: Vec<_> = chunks(&world)
        .into_iter()
        .map(|(_, early, sure)| (early, sure))
        .collect();
    assert_eq!(tags, [(false, true)]);
}

#[test]
fn without_tickets_there_is_nothing_to_resume() {
    let config = settings(|settings| settings.tickets = 0);
    let mut world = World::new(config, RTT / 2);
    let tls = Arc::new(world.identity.client_tls(&[b"mqtt"]));
    for _ in 0..2 {
        let client = world.connect_with(tls.clone(), World::transport());
        assert!(!world.clients[client].connection.has_0rtt());
        world.run_for(RTT * 8);
        assert!(world.clients[client].connected.is_some());
    }
    assert_eq!(world.identity.tickets.usage().sessions, 0);
}

/// A client that vanishes after its first flight: the handler hears of the end.
#[test]
fn early_data_of_a_handshake_that_never_ends_is_followed_by_a_close() {
    let (mut world, tls) = with_ticket(QuicConfig::default());
    let client = world.connect_with(tls, World::transport());
    world.open(client, Dir::Bi, b"early", false);
    world.rule = Box::new(move |crossing| {
        if crossing.client == client && crossing.to_server && crossing.number > 0 {
            Fate::Drop
        } else {
            Fate::Deliver
        }
    });
    world.run_for(Duration::from_secs(29));
    assert_eq!(world.server.half_open(), 1);
    let key = world.opened()[0].1;
    let closed = |world: &World| {
        let closed = world.events(|kind| match kind {
            EventKind::Closed { reason } => Some(reason.clone()),
            _ => None,
        });
        closed
            .into_iter()
            .find(|closed| closed.1 == key)
            .map(|closed| closed.2)
    };
    assert_eq!(closed(&world), None);
    world.run_for(Duration::from_secs(60));
    assert_eq!(closed(&world), Some(sterna_net::CloseReason::TimedOut));
    assert_eq!(world.server.half_open(), 0);
}

#[test]
fn early_data_on_several_streams_is_read_from_all() {
    let (mut world, tls) = with_ticket(QuicConfig::default());
    let client = world.connect_with(tls, World::transport());
    let streams: Vec<StreamId> = [Dir::Bi, Dir::Bi, Dir::Uni, Dir::Uni]
        .into_iter()
        .map(|dir| world.open(client, dir, b"message", dir == Dir::Uni))
        .collect();
    world.run_for(RTT / 2);
    let key = world.opened()[0].1;
    for stream in streams {
        assert_eq!(world.arrived(key, stream), b"message");
    }
    assert!(
        chunks(&world)
            .iter()
            .all(|(_, early, confirmed)| *early && !*confirmed)
    );
}

/// Early data, long enough to let the server answer with a whole congestion window, asks for more
/// than that; and the server's first datagram, without which the client can decrypt none of it, is
/// lost. Nothing would ever empty the window again.
#[test]
fn long_answers_to_early_data_survive_the_loss_of_the_first_datagram() {
    let (mut world, tls) = with_ticket(QuicConfig::default());
    world.reaction = Box::new(|server, event| {
        if let EventKind::Finished { stream, .. } = event.kind {
            server.send(event.connection, stream, &vec![1; 10_000]);
            server.send_shared(event.connection, stream, vec![2; 20_000].into());
            server.finish(event.connection, stream);
        }
    });
    let client = world.connect_with(tls, World::transport());
    world.rule = Box::new(move |crossing| {
        let first = crossing.client == client && !crossing.to_server && crossing.number == 0;
        if first { Fate::Drop } else { Fate::Deliver }
    });
    let stream = world.open(client, Dir::Bi, &[0; 6_000], true);
    world.run_until(RTT * 12, |world| {
        world.clients[client].finished.contains(&stream.0)
    });
    let mut expected = vec![1; 10_000];
    expected.extend_from_slice(&[2; 10_000]);
    expected.extend_from_slice(&[2; 10_000]);
    assert_eq!(world.clients[client].received[&stream.0], expected);
}

/// A handler that closes in early data has said more than may leave before the handshake ends. The rest leaves behind
/// that, and the connection ends as soon as it has arrived.
#[test]
fn last_words_to_early_data_leave_when_the_handshake_is_over() {
    let (mut world, tls) = with_ticket(QuicConfig::default());
    world.reaction = Box::new(|server, event| {
        if let EventKind::Chunk { stream, .. } = event.kind {
            server.send(event.connection, stream, &vec![1; 30_000]);
            server.close(event.connection, 7);
        }
    });
    let client = world.connect_with(tls, World::transport());
    let stream = world.open(client, Dir::Bi, b"SUBSCRIBE", false);
    world.run_until(RTT * 6, |world| world.clients[client].lost.is_some());
    let client = &world.clients[client];
    assert_eq!(client.received[&stream.0], vec![1; 30_000]);
    assert!(client.finished.contains(&stream.0));
    assert!(matches!(
        &client.lost,
        Some(quinn_proto::ConnectionError::ApplicationClosed(close))
            if close.error_code.into_inner() == 7
    ));
}

#[test]
fn answers_before_the_handshake_ends_are_limited() {
    let (mut world, tls) = with_ticket(QuicConfig::default());
    world.reaction = Box::new(|server, event| {
        let key = event.connection;
        if let EventKind::Chunk { stream, .. } = event.kind {
            server.send(key, stream, &vec![1; 10_000]);
            assert!(server.send_datagram(key, vec![3; 1_000].into()));
        }
    });
    let client = world.connect_with(tls, World::transport());
    world.open(client, Dir::Bi, b"SUBSCRIBE", false);
    world.run_for(RTT * 5 / 4);
    let key = world.opened()[0].1;
    assert_eq!(world.server.unsent_bytes(key), 5_000);
    assert!(
        !world.server.send_datagram(key, vec![3; 1_000].into()),
        "nothing is left"
    );
    world.run_for(RTT * 4);
    assert_eq!(world.server.unsent_bytes(key), 0);
    assert!(world.server.send_datagram(key, vec![3; 1_000].into()));
}
