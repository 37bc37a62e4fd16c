//! Streams in both directions.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use quinn_proto::Dir;
use sterna_net::StreamId;
use sterna_net::quic::{EventKind, Key, QuicConfig};

use crate::world::{Fate, World, echo, settings};

const RTT: Duration = Duration::from_millis(40);

/// A world with one connected client.
fn connected(config: QuicConfig) -> (World, usize, Key) {
    let mut world = World::new(config, RTT / 2);
    let client = world.connect();
    world.run_until(RTT * 3, |world| !world.opened().is_empty());
    world.run_for(RTT * 2);
    let key = world.opened()[0].1;
    (world, client, key)
}

#[test]
fn streams_of_a_connection_are_told_apart_and_echoed_whole() {
    let (mut world, client, key) = connected(QuicConfig::default());
    world.reaction = Box::new(echo);
    let mut sent = BTreeMap::new();
    for n in 0..5u8 {
        let bytes = vec![n; 3_000 * usize::from(n) + 1];
        let stream = world.open(client, Dir::Bi, &bytes, true);
        sent.insert(stream.0, bytes);
    }
    world.run_until(RTT * 20, |world| world.clients[client].finished.len() == 5);
    assert_eq!(world.clients[client].received, sent);
    for (stream, bytes) in sent {
        assert_eq!(world.arrived(key, StreamId(stream)), bytes);
    }
    let finished = world.events(|kind| match kind {
        EventKind::Finished { stream } => Some(*stream),
        _ => None,
    });
    assert_eq!(finished.len(), 5);
}

#[test]
fn more_streams_are_permitted_as_the_client_uses_them() {
    let (mut world, client, _) = connected(QuicConfig::default());
    world.reaction = Box::new(echo);
    // Open for good: nothing is finished.
    let mut open = 0;
    for _ in 0..20 {
        while world.clients[client]
            .connection
            .streams()
            .open(Dir::Bi)
            .is_some_and(|id| {
                world.write(client, StreamId(id.into()), b"x", false);
                true
            })
        {
            open += 1;
        }
        world.run_for(RTT * 2);
    }
    assert_eq!(open, 256, "the limit grew to its maximum");
    assert_eq!(world.clients[client].received.len(), 256);
}

/// Which of 500 messages, ten in a round trip, find no stream of this direction.
fn without_a_stream(dir: Dir) -> Vec<usize> {
    let (mut world, client, _) = connected(QuicConfig::default());
    world.reaction = Box::new(echo);
    let mut refused = Vec::new();
    for n in 0..500 {
        match world.clients[client].connection.streams().open(dir) {
            Some(id) => world.write(client, StreamId(id.into()), b"message", true),
            None => refused.push(n),
        }
        world.run_for(RTT / 10);
    }
    refused
}

#[test]
fn a_stream_per_message_waits_for_credit_only_until_the_pace_is_known() {
    for dir in [Dir::Bi, Dir::Uni] {
        let refused = without_a_stream(dir);
        assert!(!refused.is_empty(), "few are permitted at first");
        assert!(refused.iter().all(|n| *n < 80), "{dir:?}: {refused:?}");
    }
}

#[test]
fn a_stream_per_request_costs_few_frames_of_credit() {
    let config = settings(|settings| {
        settings.initial_bidirectional_streams = 16;
        settings.max_bidirectional_streams = 16;
    });
    let (mut world, client, _) = connected(config);
    world.reaction = Box::new(echo);
    for n in 1..=400 {
        let stream = world.open(client, Dir::Bi, b"request", true);
        world.run_until(RTT * 4, |world| {
            world.clients[client].finished.contains(&stream.0)
        });
        world.run_for(RTT * 2);
        assert_eq!(world.clients[client].finished.len(), n);
    }
    let frames = world.clients[client]
        .connection
        .stats()
        .frame_rx
        .max_streams_bidi;
    println!("400 requests with a limit of 16: {frames} MAX_STREAMS frames");
    assert!(frames <= 52, "one frame per half of the limit: {frames}");
}

#[test]
fn unidirectional_streams_carry_publications_one_way() {
    let (mut world, client, key) = connected(QuicConfig::default());
    for n in 0..30u8 {
        let stream = world.open(client, Dir::Uni, &[n; 100], true);
        world.run_for(RTT * 2);
        assert_eq!(world.arrived(key, stream), [n; 100]);
        assert!(!stream.is_bidirectional() && stream.is_client_initiated());
        // There is no way back on it, which must not hurt.
        world.server.send(key, stream, b"?");
        world.server.finish(key, stream);
        world.server.abort(key, stream, 3);
    }
    world.run_for(RTT * 2);
    assert!(world.clients[client].lost.is_none());
    assert_eq!(world.server.unsent_bytes(key), 0);
}

#[test]
fn the_server_opens_streams_by_using_them() {
    let (mut world, client, key) = connected(QuicConfig::default());
    // The third unidirectional and the first bidirectional stream of the server.
    world.server.send(key, StreamId(11), b"control");
    world
        .server
        .send_shared(key, StreamId(1), Bytes::from(vec![1; 5_000]));
    world.server.finish(key, StreamId(1));
    world.run_for(RTT * 4);
    let client = &world.clients[client];
    assert_eq!(client.received[&11], b"control");
    assert_eq!(client.received[&1], [1; 5_000]);
    assert!(client.finished.contains(&1));
}

#[test]
fn streams_that_the_peer_does_not_permit_yet_wait() {
    let mut world = World::new(QuicConfig::default(), RTT / 2);
    let mut transport = World::transport();
    transport.max_concurrent_uni_streams(1u32.into());
    let tls = world.identity.client_tls(&[b"mqtt"]);
    let client = world.connect_with(std::sync::Arc::new(tls), transport);
    world.run_for(RTT * 3);
    let key = world.opened()[0].1;
    for n in 0..3u64 {
        world.server.send(key, StreamId(3 + 4 * n), &[n as u8; 10]);
        world.server.finish(key, StreamId(3 + 4 * n));
    }
    // Far beyond what may wait: refused.
    world.server.send(key, StreamId(3 + 4 * 5_000), b"never");
    world.run_for(RTT * 6);
    assert_eq!(world.clients[client].received.len(), 3);
    assert_eq!(world.clients[client].finished.len(), 3);
    assert_eq!(world.server.unsent_bytes(key), 0);
}

#[test]
fn aborts_reach_the_other_side_with_their_code() {
    let (mut world, client, key) = connected(QuicConfig::default());
    let first = world.open(client, Dir::Bi, b"first", false);
    let second = world.open(client, Dir::Bi, b"second", false);
    let third = world.open(client, Dir::Bi, b"third", false);
    world.run_for(RTT);
    let id = |stream: StreamId| quinn_proto::VarInt::from_u64(stream.0).unwrap().into();
    let connection = &mut world.clients[client].connection;
    connection
        .send_stream(id(first))
        .reset(17u32.into())
        .unwrap();
    connection
        .recv_stream(id(second))
        .stop(18u32.into())
        .unwrap();
    world.server.send(key, third, &[0; 100]);
    world.server.abort(key, third, 19);
    world.run_for(RTT * 2);
    let aborted = world.events(|kind| match kind {
        EventKind::Aborted { stream, code } => Some((*stream, *code, "aborted")),
        EventKind::Stopped { stream, code } => Some((*stream, *code, "stopped")),
        _ => None,
    });
    let aborted: Vec<_> = aborted.into_iter().map(|(_, _, aborted)| aborted).collect();
    // The client answers our STOP_SENDING with a reset, of which the handler that aborted the
    // stream hears nothing.
    assert_eq!(aborted, [(first, 17, "aborted"), (second, 18, "stopped")]);
    assert_eq!(world.clients[client].reset[&third.0], 19);
    assert_eq!(world.clients[client].stopped[&third.0], 19);
    assert!(world.clients[client].lost.is_none());
}

#[test]
fn small_messages_of_one_turn_share_packets() {
    let (mut world, client, key) = connected(QuicConfig::default());
    let stream = world.open(client, Dir::Bi, b"subscribe", false);
    world.run_for(RTT * 2);
    let before = world.clients[client].down.0;
    for n in 0..100u8 {
        world.server.send(key, stream, &[n; 40]);
    }
    world.run_for(RTT);
    let datagrams = world.clients[client].down.0 - before;
    assert_eq!(world.clients[client].received[&stream.0].len(), 4_000);
    assert!(
        datagrams <= 4,
        "100 messages of 40 bytes took {datagrams} datagrams"
    );
}

#[test]
fn shared_and_copied_bytes_keep_their_order() {
    let (mut world, client, key) = connected(QuicConfig::default());
    let stream = world.open(client, Dir::Bi, b"x", false);
    world.run_for(RTT);
    let mut expected = Vec::new();
    for n in 0..200u8 {
        let bytes = vec![n; 10 + usize::from(n) * 13];
        expected.extend_from_slice(&bytes);
        if n % 3 == 0 {
            world.server.send_shared(key, stream, Bytes::from(bytes));
        } else {
            world.server.send(key, stream, &bytes);
        }
        if n % 50 == 49 {
            world.run_for(RTT);
        }
    }
    world.server.finish(key, stream);
    world.server.send(key, stream, b"after the end, ignored");
    world.run_until(RTT * 50, |world| {
        world.clients[client].finished.contains(&stream.0)
    });
    assert_eq!(world.clients[client].received[&stream.0], expected);
}

/// A stream per message, 1,000 of them, one after the other: the frames of credit that it costs, by the
/// part of the granted streams that is used up before more are granted. The library alone announces
/// every eighth part.
#[test]
fn a_stream_per_message_costs_few_frames_of_credit() {
    let mut frames = Vec::new();
    for percent in [13, 25, 50, 100] {
        let config = settings(|settings| settings.stream_credit_watermark_percent = percent);
        let (mut world, client, key) = connected(config);
        for n in 0..1_000u32 {
            let stream = world.open(client, Dir::Uni, &n.to_be_bytes(), true);
            world.run_for(RTT);
            assert_eq!(world.arrived(key, stream), n.to_be_bytes());
            world.log.clear();
        }
        let stats = world.clients[client].connection.stats();
        frames.push((percent, stats.frame_rx.max_streams_uni));
    }
    println!("MAX_STREAMS frames for 1,000 streams: {frames:?} (percent, frames)");
    let frames: Vec<_> = frames.into_iter().map(|(_, frames)| frames).collect();
    assert!(frames[2] <= 70, "{frames:?}");
    assert!(frames[0] >= frames[1] && frames[1] >= frames[2] && frames[2] >= frames[3]);
    assert!(frames[0] >= 3 * frames[2], "{frames:?}");
}

#[test]
fn what_the_peer_does_not_take_counts_as_unsent_until_it_does() {
    let config = settings(|settings| settings.send_window_bytes = 32 * 1024);
    let (mut world, client, key) = connected(config);
    let stream = world.open(client, Dir::Bi, b"subscribe", false);
    world.run_for(RTT);
    let writable = |world: &World| {
        world
            .events(|kind| matches!(kind, EventKind::Writable).then_some(()))
            .len()
    };
    for n in 0..300u32 {
        world.server.send(key, stream, &[n as u8; 1_000]);
    }
    assert_eq!(world.server.unsent_bytes(key), 300_000);
    world.run_for(RTT / 2);
    let unsent = world.server.unsent_bytes(key);
    assert!((200_000..300_000).contains(&unsent), "{unsent}");
    assert_eq!(writable(&world), 0);
    world.run_for(RTT * 100);
    assert_eq!(world.server.unsent_bytes(key), 0);
    assert_eq!(writable(&world), 1);
    assert_eq!(world.clients[client].received[&stream.0].len(), 300_000);
    // Below the high watermark nothing is reported.
    world.server.send(key, stream, &vec![0; 100_000]);
    world.run_for(RTT * 100);
    assert_eq!(writable(&world), 1);
    assert_eq!(world.clients[client].received[&stream.0].len(), 400_000);
}

#[test]
fn a_connection_that_takes_nothing_is_given_up() {
    let config = QuicConfig {
        max_unsent_bytes: 1_000_000,
        ..QuicConfig::default()
    };
    let (mut world, client, key) = connected(config);
    let stream = world.open(client, Dir::Bi, b"subscribe", false);
    world.run_for(RTT);
    for _ in 0..1_001 {
        world.server.send(key, stream, &[0; 1_000]);
    }
    world.run_for(RTT);
    let closed = world.events(|kind| match kind {
        EventKind::Closed { reason } => Some(format!("{reason:?}")),
        _ => None,
    });
    assert!(closed[0].2.contains("unsent"), "{closed:?}");
    assert!(world.clients[client].lost.is_some());
}

#[test]
fn a_paused_connection_holds_the_client_back() {
    let config = settings(|settings| {
        settings.receive_window_bytes = 64 * 1024;
        settings.stream_receive_window_bytes = 64 * 1024;
    });
    let (mut world, client, key) = connected(config);
    world.server.pause(key, true);
    let stream = world.open(client, Dir::Bi, &vec![5; 300_000], false);
    world.run_for(RTT * 20);
    assert_eq!(world.arrived(key, stream).len(), 0);
    assert!(
        !world.clients[client].unsent.is_empty(),
        "the client is stopped by flow control"
    );
    world.server.pause(key, false);
    world.run_until(RTT * 200, |world| {
        world.arrived(key, stream).len() == 300_000
    });
}

#[test]
fn pausing_takes_effect_within_a_batch() {
    let (mut world, client, key) = connected(QuicConfig::default());
    let read = Rc::new(RefCell::new(0));
    let counted = Rc::clone(&read);
    world.reaction = Box::new(move |server, event| {
        if let EventKind::Chunk { bytes, .. } = &event.kind {
            *counted.borrow_mut() += bytes.len();
            server.pause(event.connection, true);
        }
    });
    let stream = world.open(client, Dir::Bi, &vec![5; 200_000], false);
    for _ in 0..100 {
        world.run_for(RTT * 4);
        let before = *read.borrow();
        assert!(before <= 200_000);
        world.server.pause(key, false);
        world.run_for(Duration::ZERO);
        assert!(*read.borrow() - before <= 67_000, "one batch at a time");
    }
    assert_eq!(*read.borrow(), 200_000);
    assert_eq!(world.arrived(key, stream).len(), 200_000);
}

#[test]
fn unreliable_datagrams_go_both_ways() {
    let (mut world, client, key) = connected(QuicConfig::default());
    world.reaction = Box::new(echo);
    let connection = &mut world.clients[client].connection;
    connection
        .datagrams()
        .send(Bytes::from_static(b"temperature 21"), true)
        .unwrap();
    world.run_for(RTT * 2);
    assert_eq!(
        world.clients[client].datagrams,
        [Bytes::from_static(b"temperature 21")]
    );
    assert!(
        !world.server.send_datagram(key, Bytes::from(vec![0; 5_000])),
        "too large"
    );

    let mut world = World::new(
        settings(|settings| settings.datagram_buffer_bytes = 0),
        RTT / 2,
    );
    let client = world.connect();
    world.run_for(RTT * 3);
    let key = world.opened()[0].1;
    assert!(
        world.clients[client]
            .connection
            .datagrams()
            .max_size()
            .is_none(),
        "not offered"
    );
    assert!(!world.server.send_datagram(key, Bytes::from_static(b"x")));
}

#[test]
fn the_directions_of_a_stream_end_apart() {
    let (mut world, client, key) = connected(QuicConfig::default());
    let (reset, stopped) = (
        world.open(client, Dir::Bi, b"one", false),
        world.open(client, Dir::Bi, b"two", false),
    );
    world.run_for(RTT);
    world.server.reset(key, reset, 21);
    world.server.stop(key, stopped, 22);
    // The other direction goes on.
    world.server.send(key, stopped, b"still here");
    world.server.finish(key, stopped);
    world.write(client, reset, b", and more", true);
    world.run_for(RTT * 4);
    assert_eq!(world.clients[client].reset, [(reset.0, 21)].into());
    assert_eq!(world.clients[client].stopped, [(stopped.0, 22)].into());
    assert_eq!(world.arrived(key, reset), b"one, and more");
    assert_eq!(
        world.clients[client].received[&stopped.0],
        b"still here".to_vec()
    );
    assert!(world.clients[client].finished.contains(&stopped.0));
}

/// A client that leaves one stream unread reads others all the same.
#[test]
fn a_stream_that_is_watched_is_told_of_when_it_is_empty() {
    let config = settings(|settings| settings.send_window_bytes = 32 * 1024);
    let (mut world, client, key) = connected(config);
    let (one, two) = (
        world.open(client, Dir::Bi, b"subscribe", false),
        world.open(client, Dir::Bi, b"subscribe", false),
    );
    world.run_for(RTT);
    let writable = |world: &World| {
        world
            .events(|kind| matches!(kind, EventKind::Writable).then_some(()))
            .len()
    };
    // Nothing waits: that is told at once.
    world.server.watch(key, one);
    world.run_for(RTT);
    assert_eq!(writable(&world), 1);
    world.server.send(key, two, &[0; 100]);
    world.server.send(key, one, &vec![0; 100_000]);
    assert_eq!(world.server.unsent_on(key, one), 100_000);
    assert_eq!(world.server.unsent_on(key, two), 100);
    assert_eq!(world.server.unsent_on(key, StreamId(8)), 0);
    world.server.watch(key, one);
    world.run_for(RTT / 2);
    assert_eq!(world.server.unsent_on(key, two), 0);
    assert!(world.server.unsent_on(key, one) > 0);
    assert_eq!(writable(&world), 1);
    world.run_for(RTT * 40);
    assert_eq!(world.server.unsent_on(key, one), 0);
    assert_eq!(writable(&world), 2);
    assert_eq!(world.clients[client].received[&one.0].len(), 100_000);
}

/// Bytes that are dropped wait no more than those that have left. The handler may wait for them before it sends on
/// other streams.
#[test]
fn a_stream_that_is_watched_is_told_of_when_it_is_given_up() {
    let mut world = World::new(QuicConfig::default(), RTT / 2);
    let mut transport = World::transport();
    transport.stream_receive_window(10_000u32.into());
    let tls = world.identity.client_tls(&[b"mqtt"]);
    let client = world.connect_with(std::sync::Arc::new(tls), transport);
    world.run_for(RTT * 3);
    let key = world.opened()[0].1;
    let writable = |world: &World| {
        world
            .events(|kind| matches!(kind, EventKind::Writable).then_some(()))
            .len()
    };
    for (n, is_stopped_by_the_client) in [true, false].into_iter().enumerate() {
        world.clients[client].reads = false;
        let stream = world.open(client, Dir::Bi, b"subscribe", false);
        world.run_for(RTT);
        world.server.send(key, stream, &vec![0; 100_000]);
        world.server.watch(key, stream);
        world.run_for(RTT * 10);
        assert_eq!(writable(&world), n);
        if is_stopped_by_the_client {
            let id = quinn_proto::VarInt::from_u64(stream.0).unwrap().into();
            let connection = &mut world.clients[client].connection;
            connection.recv_stream(id).stop(18u32.into()).unwrap();
        } else {
            world.server.reset(key, stream, 19);
        }
        world.run_for(RTT * 2);
        assert_eq!(world.server.unsent_on(key, stream), 0);
        assert_eq!(
            writable(&world),
            n + 1,
            "stopped: {is_stopped_by_the_client}"
        );
    }
}

/// What the library keeps for a client that acknowledges nothing is in the count, until it has acknowledged it or is
/// gone.
#[test]
fn what_is_sent_is_counted_until_it_is_acknowledged() {
    for is_acknowledged in [true, false] {
        let (mut world, client, key) = connected(QuicConfig::default());
        let stream = world.open(client, Dir::Bi, b"x", false);
        world.run_for(RTT * 4);
        assert_eq!(world.server.held_bytes(), 0);
        world.rule = Box::new(|_| Fate::Drop);
        let message = vec![7; 1_000];
        for n in 1..=100 {
            world.server.send(key, stream, &message);
            assert_eq!(world.server.held_bytes(), n * 1_000, "it waits");
        }
        // A share of what somebody else holds is not counted.
        (world.server).send_shared(key, stream, Bytes::from(vec![8; 50_000]));
        world.run_for(RTT);
        let held = world.server.held_bytes();
        assert!((100_000..=108_000).contains(&held), "{held} bytes");
        if is_acknowledged {
            world.rule = Box::new(|_| Fate::Deliver);
            world.run_for(RTT * 100);
            assert_eq!(world.clients[client].received[&stream.0].len(), 150_000);
        } else {
            world.run_for(Duration::from_secs(200));
            let closed =
                world.events(|kind| matches!(kind, EventKind::Closed { .. }).then_some(()));
            assert_eq!(closed.len(), 1);
        }
        assert_eq!(world.server.held_bytes(), 0);
    }
}

/// The same for what has come from a client that is not read.
#[test]
fn what_has_come_and_is_not_read_is_counted() {
    let (mut world, client, key) = connected(QuicConfig::default());
    let stream = world.open(client, Dir::Bi, b"x", false);
    world.run_for(RTT * 4);
    world.server.pause(key, true);
    world.write(client, stream, &vec![7; 50_000], false);
    world.run_for(RTT * 20);
    let held = world.server.held_bytes();
    assert!((50_000..60_000).contains(&held), "{held} bytes");
    world.server.pause(key, false);
    world.run_for(RTT * 4);
    assert_eq!(world.arrived(key, stream).len(), 50_001);
    assert_eq!(world.server.held_bytes(), 0);
    // No more than the window, and nothing of one that is gone.
    world.server.pause(key, true);
    world.write(client, stream, &vec![7; 3_000_000], false);
    world.run_for(RTT * 100);
    let window = QuicConfig::default().settings.receive_window_bytes;
    let held = world.server.held_bytes();
    assert!(held > 100_000 && held <= u64::from(window), "{held} bytes");
    world.server.close(key, 1);
    world.run_for(RTT * 100);
    assert_eq!(world.server.held_bytes(), 0);
}

/// Data behind a gap is in the count, that of all connections and that of its own, until the gap is filled.
#[test]
fn what_waits_behind_a_gap_is_counted_until_it_is_read() {
    for is_given_up in [false, true] {
        let (mut world, client, key) = connected(QuicConfig::default());
        let before = world.clients[client].up.0;
        // The first datagram of the flight is lost.
        world.rule = Box::new(move |crossing| {
            if crossing.to_server && crossing.number == before {
                Fate::Drop
            } else {
                Fate::Deliver
            }
        });
        let stream = world.open(client, Dir::Bi, &vec![7; 60_000], false);
        world.run_for(RTT / 2 + Duration::from_millis(2));
        assert!(world.arrived(key, stream).is_empty());
        let held = world.server.held_bytes();
        assert!((8_000..=20_000).contains(&held), "{held} bytes");
        assert_eq!(world.server.unread_bytes(key) as u64, held);
        if is_given_up {
            world.server.close(key, 0);
        }
        world.run_for(RTT * 40);
        assert_eq!(world.server.held_bytes(), 0);
        assert_eq!(
            world.arrived(key, stream).len(),
            if is_given_up { 0 } else { 60_000 }
        );
    }
}

/// A peer that may not grow is as if its path were broken: its credit is worth nothing until the limit ends.
#[test]
fn what_comes_beyond_a_limit_of_unread_bytes_is_dropped() {
    const MOST: u32 = 16 << 10;
    let (mut world, client, key) = connected(QuicConfig::default());
    world.server.pause(key, true);
    world.server.cap_unread(key, MOST);
    let stream = world.open(client, Dir::Bi, &vec![7; 60_000], false);
    world.run_for(RTT * 20);
    let held = world.server.unread_bytes(key);
    assert!(
        (MOST as usize..MOST as usize + 2_000).contains(&held),
        "{held} bytes"
    );
    assert!(world.server.counters().unread_dropped > 0);
    world.server.cap_unread(key, u32::MAX);
    world.server.pause(key, false);
    world.run_for(RTT * 200);
    assert_eq!(world.arrived(key, stream).len(), 60_000);
}

/// A client on a bad path is charged with next to nothing in the end: what it sends again is no data behind a gap.
#[test]
fn losses_and_repetitions_add_up_to_nothing() {
    let (mut world, client, key) = connected(QuicConfig::default());
    let mut number = 0_u32;
    world.rule = Box::new(move |crossing| {
        number += 1;
        match number % 11 {
            _ if !crossing.to_server => Fate::Deliver,
            3 => Fate::Drop,
            5 => Fate::Late(RTT),
            7 => Fate::Twice,
            _ => Fate::Deliver,
        }
    });
    let (bulk, small) = (
        world.open(client, Dir::Bi, b"x", false),
        world.open(client, Dir::Bi, b"x", false),
    );
    for _ in 0..200 {
        world.write(client, small, b"0123456789", false);
        world.write(client, bulk, &[7; 2_000], false);
        world.run_for(RTT);
    }
    world.run_for(RTT * 100);
    assert_eq!(world.arrived(key, bulk).len(), 400_001);
    assert_eq!(world.arrived(key, small).len(), 2_001);
    let held = world.server.unread_bytes(key);
    assert!(held < 4_000, "{held} bytes");
}
