//! The ends of connections.

use std::time::Duration;

use bytes::Bytes;
use quinn_proto::{ConnectionError, Dir};
use sterna_net::quic::{EventKind, Key, QuicConfig};
use sterna_net::{CloseReason, StreamId};

use crate::world::{Fate, World};

const RTT: Duration = Duration::from_millis(40);

fn connected() -> (World, usize, Key, StreamId) {
    let mut world = World::new(QuicConfig::default(), RTT / 2);
    let client = world.connect();
    world.run_until(RTT * 3, |world| world.clients[client].connected.is_some());
    let stream = world.open(client, Dir::Bi, b"CONNECT", false);
    world.run_for(RTT * 2);
    let key = world.opened()[0].1;
    (world, client, key, stream)
}

fn closed(world: &World) -> Vec<(Duration, CloseReason)> {
    let found = world.events(|kind| match kind {
        EventKind::Closed { reason } => Some(reason.clone()),
        _ => None,
    });
    found
        .into_iter()
        .map(|(at, _, reason)| (at, reason))
        .collect()
}

fn code(world: &World, client: usize) -> u64 {
    match &world.clients[client].lost {
        Some(ConnectionError::ApplicationClosed(close)) => close.error_code.into_inner(),
        other => panic!("not closed by the application: {other:?}"),
    }
}

#[test]
fn last_words_arrive_before_the_close() {
    let (mut world, client, key, stream) = connected();
    let start = world.since_start();
    world.server.send(key, stream, b"DISCONNECT");
    world.server.close(key, 2);
    world.server.send(key, stream, b"nothing after that");
    world.run_for(RTT / 2);
    assert_eq!(world.clients[client].received[&stream.0], b"DISCONNECT");
    assert!(world.clients[client].finished.contains(&stream.0));
    world.run_for(RTT * 2);
    assert_eq!(code(&world, client), 2);
    // The client may take up to 25 ms for its acknowledgement.
    let ends = closed(&world);
    assert_eq!((ends.len(), &ends[0].1), (1, &CloseReason::Local));
    assert!((RTT..RTT + Duration::from_millis(26)).contains(&ends[0].0.saturating_sub(start)));
    world.run_for(Duration::from_secs(10));
    assert!(world.server.is_empty());
    assert!(world.server.deadline().is_none());
}

#[test]
fn last_words_survive_a_loss() {
    let (mut world, client, key, stream) = connected();
    world.server.send(key, stream, b"DISCONNECT");
    world.server.close(key, 2);
    let mut lost = 0;
    world.rule = Box::new(move |crossing| {
        lost += usize::from(!crossing.to_server);
        if !crossing.to_server && lost == 1 {
            Fate::Drop
        } else {
            Fate::Deliver
        }
    });
    world.run_for(Duration::from_secs(3));
    assert_eq!(world.clients[client].received[&stream.0], b"DISCONNECT");
    assert_eq!(code(&world, client), 2);
}

#[test]
fn a_peer_that_is_gone_is_waited_for_only_so_long() {
    let (mut world, _, key, stream) = connected();
    let start = world.since_start();
    world.rule = Box::new(|_| Fate::Drop);
    world.server.send(key, stream, b"DISCONNECT");
    world.server.close(key, 2);
    world.run_for(Duration::from_secs(20));
    assert_eq!(
        closed(&world),
        [(start + Duration::from_secs(2), CloseReason::Local)]
    );
    assert!(world.server.is_empty());
}

#[test]
fn with_nothing_to_say_the_close_is_immediate() {
    let (mut world, client, key, _) = connected();
    let start = world.since_start();
    world.server.close(key, 9);
    world.run_for(RTT / 2);
    assert_eq!(code(&world, client), 9);
    assert_eq!(closed(&world), [(start, CloseReason::Local)]);
}

/// What was sent and flushed long before the close, in an earlier turn, and is not acknowledged.
#[test]
fn what_is_under_way_arrives_before_the_close() {
    let (mut world, client, key, stream) = connected();
    let mut lost = 0;
    world.rule = Box::new(move |crossing| {
        lost += usize::from(!crossing.to_server);
        if !crossing.to_server && lost <= 2 {
            Fate::Drop
        } else {
            Fate::Deliver
        }
    });
    world.server.send(key, stream, b"PUBLISH");
    world.run_for(Duration::from_millis(1));
    world.server.close(key, 2);
    world.run_for(Duration::from_secs(3));
    assert_eq!(world.clients[client].received[&stream.0], b"PUBLISH");
    assert_eq!(code(&world, client), 2);
}

/// A path that is slower than the linger time: the broker waits as long as something is acknowledged,
/// and for three probe timeouts of the path.
#[test]
fn a_slow_path_is_waited_for_while_it_takes_something() {
    let mut world = World::new(
        QuicConfig {
            linger: Duration::from_millis(500),
            ..QuicConfig::default()
        },
        Duration::from_secs(1),
    );
    let client = world.connect();
    world.run_until(Duration::from_secs(20), |world| {
        world.clients[client].connected.is_some()
    });
    let stream = world.open(client, Dir::Bi, b"CONNECT", false);
    world.run_for(Duration::from_secs(4));
    let key = world.opened()[0].1;
    let words = vec![5; 40_000];
    world.server.send(key, stream, &words);
    world.server.close(key, 2);
    world.run_for(Duration::from_mins(1));
    assert_eq!(world.clients[client].received[&stream.0], words);
    assert_eq!(code(&world, client), 2);
    assert!(world.server.is_empty());
}

/// A client that acknowledges a little now and then holds its connection ten times the linger time.
#[test]
fn a_trickle_does_not_hold_a_connection_for_ever() {
    let (mut world, client, key, stream) = connected();
    world.server.send(key, stream, &vec![1; 10_000_000]);
    world.clients[client].reads = false;
    let start = world.since_start();
    world.server.close(key, 2);
    world.run_for(Duration::from_secs(30));
    let ends = closed(&world);
    assert_eq!((ends.len(), &ends[0].1), (1, &CloseReason::Local));
    assert!(ends[0].0.saturating_sub(start) <= Duration::from_secs(20));
    assert!(world.server.is_empty());
}

/// Streams that are ours to open may be critical to the protocol (RFC 9114, section 6.2.1): they are
/// not finished, and what was said on them arrives before the close, whatever is lost.
#[test]
fn a_stream_of_our_own_is_not_finished_by_the_close() {
    let control = StreamId(3);
    for losses in [0, 1, 3] {
        let (mut world, client, key, _) = connected();
        world.server.send(key, control, b"SETTINGS");
        world.run_for(RTT * 3);
        let mut lost = 0;
        world.rule = Box::new(move |crossing| {
            lost += usize::from(!crossing.to_server);
            if !crossing.to_server && lost <= losses {
                Fate::Drop
            } else {
                Fate::Deliver
            }
        });
        world.server.send(key, control, b" GOAWAY");
        world.server.close(key, 0x100);
        world.run_for(Duration::from_secs(5));
        let client = &world.clients[client];
        assert_eq!(client.received[&control.0], b"SETTINGS GOAWAY", "{losses}");
        assert!(!client.finished.contains(&control.0));
        assert_eq!(code(&world, 0), 0x100);
    }
}

#[test]
fn a_client_that_closes_is_heard_to_its_last_word() {
    let (mut world, client, key, stream) = connected();
    // Even if the handler has paused.
    world.server.pause(key, true);
    world.write(client, stream, b" DISCONNECT", false);
    world.drive_client(client);
    let now = world.now;
    world.clients[client]
        .connection
        .close(now, 5u32.into(), Bytes::new());
    world.run_for(RTT);
    assert_eq!(world.arrived(key, stream), b"CONNECT DISCONNECT");
    assert_eq!(closed(&world)[0].1, CloseReason::Peer { code: 5 });
    assert_eq!(closed(&world).len(), 1);
    assert!(
        matches!(world.log.last(), Some((_, event)) if matches!(event.kind, EventKind::Closed { .. }))
    );
    world.run_for(Duration::from_secs(10));
    assert!(world.server.is_empty());
}

#[test]
fn slots_are_used_again_and_old_keys_are_harmless() {
    let (mut world, client, key, stream) = connected();
    let now = world.now;
    world.clients[client]
        .connection
        .close(now, 0u32.into(), Bytes::new());
    world.run_for(Duration::from_secs(10));
    assert!(world.server.is_empty());
    world.log.clear();
    let next = world.connect();
    world.run_for(RTT * 3);
    let new = world.opened()[0].1;
    assert_eq!((new.slot, new.generation), (key.slot, key.generation + 1));
    world.server.send(key, stream, b"to nobody");
    world.server.close(key, 1);
    world.server.pause(key, true);
    world.run_for(RTT);
    assert!(world.clients[next].lost.is_none());
}

#[test]
fn a_socket_that_blocks_is_tried_again() {
    let (mut world, client, key, stream) = connected();
    world.server.send(key, stream, &vec![1; 30_000]);
    let mut buffer = Vec::new();
    let now = world.now;
    let mut offered = Vec::new();
    for _ in 0..3 {
        let flush = world.server.transmit(now, 4, &mut buffer, &mut |out| {
            offered.push(out.bytes.to_vec());
            sterna_net::quic::Sent::Blocked
        });
        assert_eq!(flush, sterna_net::quic::Flush::Blocked);
        assert!(
            world
                .server
                .deadline()
                .is_none_or(|deadline| deadline > now),
            "it does not spin"
        );
    }
    assert_eq!(offered.len(), 3);
    assert!(
        offered.iter().all(|bytes| *bytes == offered[0]),
        "the same bytes each time"
    );
    world.drive_server();
    world.run_for(RTT * 20);
    assert_eq!(world.clients[client].received[&stream.0], vec![1; 30_000]);
    assert_eq!(world.server.path(key).lost_packets, 0);
}
