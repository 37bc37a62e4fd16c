//! Everything at once: many clients on a bad link, doing things at random, from a seed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quinn_proto::{Dir, VarInt};
use sterna_net::StreamId;
use sterna_net::quic::{Driver, DriverEvent, EventKind, Key, QuicConfig};
use sterna_net::sim::Random;

use crate::seeds;
use crate::world::{Fate, World, settings};

/// The handler's state: it echoes, now and then pauses, and counts what it is told.
#[derive(Default)]
struct Server {
    open: BTreeSet<Key>,
    closed: BTreeSet<Key>,
    paused: BTreeSet<Key>,
    confirmed: BTreeSet<Key>,
    finished: BTreeSet<(Key, StreamId)>,
    bytes: usize,
    taken: BTreeMap<(Key, StreamId), usize>,
}

impl Server {
    fn react(&mut self, random: &mut Random, driver: &mut Driver, event: &DriverEvent) {
        let key = event.connection;
        match &event.kind {
            EventKind::Opened { confirmed, .. } => {
                assert!(!self.closed.contains(&key), "opened after its end");
                assert!(self.open.insert(key), "opened twice");
                if *confirmed {
                    self.confirmed.insert(key);
                }
                return;
            }
            EventKind::Closed { .. } => {
                assert!(self.open.remove(&key), "closed without being open");
                assert!(self.closed.insert(key), "closed twice");
                self.paused.remove(&key);
                return;
            }
            // Nobody else hears of it.
            EventKind::HandshakeFailed { .. } => return,
            _ => assert!(
                self.open.contains(&key),
                "{event:?} of a connection that isn't open"
            ),
        }
        match &event.kind {
            EventKind::Confirmed => assert!(self.confirmed.insert(key), "confirmed twice"),
            EventKind::Chunk {
                stream,
                bytes,
                early,
                confirmed,
            } => {
                assert_eq!(*confirmed, self.confirmed.contains(&key));
                assert_eq!(*early, !confirmed);
                assert!(!bytes.is_empty());
                assert!(
                    !self.finished.contains(&(key, *stream)),
                    "bytes after the end"
                );
                self.bytes += bytes.len();
                *self.taken.entry((key, *stream)).or_default() += bytes.len();
                if stream.is_bidirectional() {
                    if bytes.len() > 500 && random.chance(500_000) {
                        driver.send_shared(key, *stream, bytes.clone());
                    } else {
                        driver.send(key, *stream, bytes);
                    }
                }
                if random.chance(20_000) {
                    driver.pause(key, true);
                    self.paused.insert(key);
                }
            }
            EventKind::Finished { stream } => {
                assert!(self.finished.insert((key, *stream)), "finished twice");
                driver.finish(key, *stream);
            }
            EventKind::Datagram { bytes, .. } => {
                driver.send_datagram(key, bytes.clone());
            }
            _ => {}
        }
    }
}

fn run(seed: u64) {
    let config = QuicConfig {
        retry_half_open: 3,
        handshakes_per_turn: 2,
        ..settings(|settings| {
            settings.send_window_bytes = 20_000;
            settings.receive_window_bytes = 40_000;
            settings.stream_receive_window_bytes = 20_000;
            settings.idle_timeout_ms = 0;
        })
    };
    let mut world = World::new(config, Duration::from_millis(15));
    let mut random = Random::new(seed);
    let server = Rc::new(RefCell::new(Server::default()));
    let state = Rc::clone(&server);
    let mut handler_random = Random::new(seed ^ 1);
    world.reaction = Box::new(move |driver, event| {
        state.borrow_mut().react(&mut handler_random, driver, event);
    });
    let mut link_random = Random::new(seed ^ 2);
    world.rule = Box::new(move |_| match link_random.below(100) {
        0..6 => Fate::Drop,
        6..10 => Fate::Twice,
        10..18 => Fate::Late(Duration::from_millis(link_random.below(60))),
        18..20 => Fate::Garbled(link_random.number() as usize),
        _ => Fate::Deliver,
    });

    // Half of the clients share tickets, so that some connections begin with early data.
    let shared = Arc::new(world.identity.client_tls(&[b"mqtt"]));
    let mut expected: BTreeMap<(usize, StreamId), Vec<u8>> = BTreeMap::new();
    let mut given_up = BTreeSet::new();
    let mut writable: Vec<(usize, StreamId)> = Vec::new();
    let mut port = 30_000;
    for _ in 0..300 {
        let clients = world.clients.len();
        let client = random.below(clients.max(1) as u64) as usize;
        let usable = clients > 0 && !given_up.contains(&client);
        // A client's early data must leave room in its congestion window as well: lost early data
        // that fills it keeps a client of this library from ever ending its handshake.
        let established = usable && {
            let client = &world.clients[client];
            let early = client.connection.has_0rtt() && client.up.1 < 5_000;
            client.lost.is_none() && (client.connected.is_some() || early)
        };
        match random.below(20) {
            0..2 if clients < 8 => {
                let mut transport = World::transport();
                transport.max_idle_timeout(None);
                let tls = if random.chance(500_000) {
                    Arc::clone(&shared)
                } else {
                    Arc::new(world.identity.client_tls(&[b"mqtt"]))
                };
                world.connect_with(tls, transport);
            }
            2..8 if established => {
                let dir = if random.chance(300_000) {
                    Dir::Uni
                } else {
                    Dir::Bi
                };
                if let Some(id) = world.clients[client].connection.streams().open(dir) {
                    let stream = StreamId(id.into());
                    let early = world.clients[client].connected.is_none();
                    let length = random.below(if early { 500 } else { 15_000 }) as usize;
                    let bytes: Vec<u8> = (0..length).map(|_| random.number() as u8).collect();
                    world.write(client, stream, &bytes, false);
                    expected.insert((client, stream), bytes);
                    writable.push((client, stream));
                }
            }
            8..11 if established => {
                if let Some((client, stream)) = random.pick(&writable).copied()
                    && !given_up.contains(&client)
                {
                    let early = world.clients[client].connected.is_none();
                    let length = random.below(if early { 300 } else { 3_000 }) as usize;
                    let bytes = vec![random.number() as u8; length];
                    world.write(client, stream, &bytes, false);
                    expected
                        .entry((client, stream))
                        .or_default()
                        .extend_from_slice(&bytes);
                }
            }
            // A new address, as behind a NAT that forgot. Not before the handshake is confirmed
            // (RFC 9000, section 9).
            11 if established
                && world.clients[client]
                    .connection
                    .stats()
                    .frame_rx
                    .handshake_done
                    > 0 =>
            {
                port += 1;
                world.clients[client].address.set_port(port);
            }
            12 if established => {
                let mut datagrams = world.clients[client].connection.datagrams();
                let _ = datagrams.send(Bytes::from_static(b"datagram"), true);
            }
            13 if established && random.chance(300_000) => {
                // Gone, with or without a word.
                if random.chance(500_000) {
                    let now = world.now;
                    let connection = &mut world.clients[client].connection;
                    connection.close(now, VarInt::from_u32(1), Bytes::new());
                } else {
                    let keys: Vec<_> = server.borrow().open.iter().copied().collect();
                    if let Some(key) = random.pick(&keys) {
                        world.server.close(*key, 3);
                    }
                }
                given_up.insert(client);
            }
            14 if established && world.clients[client].connected.is_some() => {
                world.clients[client].connection.force_key_update();
            }
            _ => {}
        }
        if random.chance(200_000) {
            let paused = std::mem::take(&mut server.borrow_mut().paused);
            for key in paused {
                world.server.pause(key, false);
            }
        }
        world.run_for(Duration::from_millis(random.below(40)));
    }

    // The link heals, everybody reads, and the streams end.
    world.rule = Box::new(|_| Fate::Deliver);
    for round in 0..40 {
        let paused = std::mem::take(&mut server.borrow_mut().paused);
        for key in paused {
            world.server.pause(key, false);
        }
        // The server learns of a new address only when something comes from it, and of what it has
        // lost there, early enough, only when something new arrives.
        for client in 0..world.clients.len() {
            let mut streams = expected.iter_mut();
            let bidirectional = |stream: &StreamId| stream.is_bidirectional();
            let stream = streams.find(|((of, stream), _)| *of == client && bidirectional(stream));
            let lost = world.clients[client].lost.is_some();
            if let Some(((_, stream), bytes)) = stream
                && !lost
                && !world.clients[client].connection.is_closed()
                && round < 20
            {
                world.write(client, *stream, b"x", false);
                world.clients[client].connection.ping();
                bytes.push(b'x');
            }
        }
        world.run_for(Duration::from_secs(1));
    }
    let mut keys = BTreeMap::new();
    for (_, event) in &world.log {
        if let EventKind::Opened { info, .. } = &event.kind {
            keys.insert(usize::from(info.peer.port() - 20_000), event.connection);
        }
    }
    let mut whole = 0;
    for ((number, stream), bytes) in &expected {
        let client = &world.clients[*number];
        let closed = keys
            .get(number)
            .is_none_or(|key| server.borrow().closed.contains(key));
        if closed || client.lost.is_some() || client.connection.is_closed() {
            continue;
        }
        // Early data that was refused is lost with its streams; the handshake says so.
        if client.connection.has_0rtt() && !client.connection.accepted_0rtt() {
            continue;
        }
        if stream.is_bidirectional() {
            let echoed = client
                .received
                .get(&stream.0)
                .map_or(&[][..], |bytes| bytes);
            let key = keys[number];
            assert_eq!(
                echoed.len(),
                bytes.len(),
                "seed {seed}: client {number}, {stream:?}, given up: {}; the server took {:?}, is paused: {}, has {} bytes \
                 unsent on {:?}; the client: {:?}",
                given_up.contains(number),
                server.borrow().taken.get(&(key, *stream)),
                server.borrow().paused.contains(&key),
                world.server.unsent_bytes(key),
                world.server.path(key),
                client.connection.stats()
            );
            assert!(echoed == bytes, "seed {seed}: {stream:?} came back changed");
            whole += 1;
        }
    }
    let counters = world.server.counters();
    println!(
        "seed {seed}: {whole} streams whole, {} bytes, {counters:?}",
        server.borrow().bytes
    );
    for (client, key) in &keys {
        // Who is gone without a word that arrived is written to for ever: there is no idle timeout.
        if !given_up.contains(client) {
            assert_eq!(
                world.server.unsent_bytes(*key),
                0,
                "seed {seed}: client {client}"
            );
        }
    }
    world.server.shutdown(world.now, 0);
    // Who is told waits for stray packets for three probe timeouts (RFC 9000, section 10.2). These are
    // a minute and more where a handshake took seconds and gave the only samples of the round trip.
    world.run_for(Duration::from_secs(60));
    let limit = world.now + Duration::from_secs(600);
    while let Some(deadline) = world.server.deadline().filter(|at| *at < limit) {
        world.run_for(deadline.saturating_duration_since(world.now));
    }
    assert!(
        server.borrow().open.is_empty(),
        "seed {seed}: all were told"
    );
    assert_eq!(
        (world.server.len(), world.server.half_open()),
        (0, 0),
        "seed {seed}"
    );
    assert_eq!(
        world.server.deadline(),
        None,
        "seed {seed}: nothing is left to wait for"
    );
}

/// Keys and tickets are random in every run, so a seed fixes what is
/// done and what the link does, but not the lengths of all packets.
#[test]
fn a_bad_day() {
    seeds::play("a bad day", 0..10, run);
}
