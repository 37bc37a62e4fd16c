//! QUIC on UDP sockets, on loopback, with quinn's client: what lies between the kernel and the
//! driver. The driver's own tests run in virtual time, in `quic`.
#![allow(clippy::unwrap_used, missing_docs)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use quinn::{Connection, Endpoint};
use sterna_net::quic::{CONNECTION_ID_BYTES, QuicConfig};
use sterna_net::{CloseReason, ListenerTransport, RefusedConnection, StreamId, TransportKind};

use crate::support::pki::Authority;
use crate::support::quinn_client::{endpoint, exchange, run};
use crate::support::{Echo, PATIENCE, Seen, Server, Setup, loopback, pattern};

struct World {
    server: Server,
    authority: Authority,
}

fn world(change: impl FnOnce(&mut Setup)) -> World {
    let authority = Authority::new();
    let tls = Arc::new(authority.tls_config(&[]));
    let quic = Arc::new(QuicConfig::default());
    let mut setup = Setup::new(ListenerTransport::Quic(tls, quic));
    change(&mut setup);
    World {
        server: setup.start(),
        authority,
    }
}

impl World {
    /// A client endpoint; its connections share tickets.
    fn endpoint(&self) -> Endpoint {
        endpoint(loopback(), &self.authority, true)
    }

    async fn connect(&self, endpoint: &Endpoint) -> Connection {
        let connecting = endpoint
            .connect(self.server.address(), "localhost")
            .unwrap();
        connecting.await.unwrap()
    }
}

#[test]
fn streams_echo_and_the_shard_sleeps_in_between() {
    run(async {
        let world = world(|_| ());
        let endpoint = world.endpoint();
        let connection = world.connect(&endpoint).await;
        for length in [1, 64, 1_200, 50_000] {
            exchange(&connection, &pattern(length)).await;
        }
        let id = world.server.log.wait_opened();
        let info = world.server.info(id);
        assert_eq!(info.transport, TransportKind::Quic);
        assert_eq!(&*info.protocol, b"mqtt");
        assert_eq!(info.peer, endpoint.local_addr().unwrap());
        assert!(
            world
                .server
                .log
                .count(|_, seen| matches!(seen, Seen::Finished(_, StreamId(12))))
                == 1
        );
        let path = world.server.run(0, move |_, net| net.path(id));
        assert!(path.received_bytes > 50_000 && path.rtt_us > 0);

        let rest = Duration::from_millis(500);
        world.server.wait_rest(rest, 1);

        // One exchange must not cost more turns than there are datagrams and timers. What a stalled machine sends
        // again is a datagram as well.
        let datagrams = || {
            let figures = world.server.counters[0].listeners()[0];
            (figures.received_datagrams + figures.sent_datagrams) as usize
        };
        let before = (world.server.turns.load(Ordering::Relaxed), datagrams());
        exchange(&connection, b"hello").await;
        world.server.wait_rest(rest, 0);
        let turns = world.server.turns.load(Ordering::Relaxed) - before.0;
        let datagrams = datagrams() - before.1;
        assert!(
            turns <= datagrams + 2,
            "{turns} turns for {datagrams} datagrams"
        );

        let figures = world.server.counters[0].figures();
        assert_eq!((figures.quic.accepted, figures.quic.confirmed), (1, 1));
        let listener = world.server.counters[0].listeners()[0];
        assert_eq!((listener.connections, listener.handshakes), (1, 1));
        let path = world.server.run(0, move |_, net| net.path(id));
        assert_eq!(listener.received_bytes, path.received_bytes);
        assert_eq!(listener.received_datagrams, path.received_datagrams);
        assert_eq!(listener.sent_datagrams, path.sent_datagrams);
        let shown = world.server.run(0, |_, net| {
            let mut shown = Vec::new();
            net.survey(10, &mut |info, path| {
                shown.push((info.transport, path.rtt_us > 0));
            });
            shown
        });
        assert_eq!(shown, [(TransportKind::Quic, true)]);
        connection.close(7u32.into(), b"done");
        endpoint.wait_idle().await;
        assert_eq!(
            world.server.log.wait_closed(id),
            CloseReason::Peer { code: 7 }
        );
        world.server.stop();
    });
}

#[test]
fn a_handler_that_takes_nothing_gets_it_later() {
    run(async {
        let world = world(|_| ());
        let endpoint = world.endpoint();
        let connection = world.connect(&endpoint).await;
        exchange(&connection, b"before").await;
        world.server.run(0, |echo, _| echo.is_full = true);
        let before = world.server.log.received_bytes.load(Ordering::Relaxed);
        let exchanged = tokio::spawn(async move { exchange(&connection, &pattern(5_000)).await });
        // It is asked again and again meanwhile.
        let asked = world.server.turns.load(Ordering::Relaxed) + 50;
        let started = Instant::now();
        while world.server.turns.load(Ordering::Relaxed) < asked {
            assert!(started.elapsed() < PATIENCE);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let now = world.server.log.received_bytes.load(Ordering::Relaxed);
        assert_eq!(now, before);
        world.server.run(0, |echo, _| echo.is_full = false);
        exchanged.await.unwrap();
        world.server.stop();
    });
}

/// Most chunks in a turn, where 100 clients have sent one each while the shard stood still.
fn most_chunks(
    change: impl FnOnce(&mut Setup),
    manner: impl FnOnce(&mut Echo) + Send + 'static,
) -> usize {
    const CLIENTS: usize = 100;
    let most = Arc::new(AtomicUsize::new(0));
    let found = Arc::clone(&most);
    run(async move {
        let world = Arc::new(world(change));
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            let endpoint = world.endpoint();
            let connection = world.connect(&endpoint).await;
            exchange(&connection, b"before").await;
            clients.push((endpoint, connection));
        }
        world.server.run(0, |echo, _| manner(echo));
        let log = Arc::clone(&world.server.log);
        log.most_chunks.store(0, Ordering::Relaxed);
        let (release, released) = std::sync::mpsc::channel::<()>();
        let stands_still = std::thread::spawn(move || {
            let _ = world.server.run(0, move |_, _| released.recv());
            world
        });
        let mut echoes = Vec::new();
        for (_, connection) in &clients {
            let (mut send, receive) = connection.open_bi().await.unwrap();
            send.write_all(b"x").await.unwrap();
            echoes.push((send, receive));
        }
        // So that all have left.
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(release);
        let _world = stands_still.join();
        for (_, receive) in &mut echoes {
            receive.read_exact(&mut [0]).await.unwrap();
        }
        found.store(log.most_chunks.load(Ordering::Relaxed), Ordering::Relaxed);
    });
    most.load(Ordering::Relaxed)
}

/// The handler is asked before each batch, not once for all that the socket has.
#[test]
fn a_handler_that_has_enough_gets_the_next_batch_in_the_next_turn() {
    let most = most_chunks(|_| (), |echo| echo.reads_per_turn = Some(1));
    assert!(most <= quinn_udp::BATCH_SIZE, "{most} in one turn");
}

/// A batch is handed over for so long, and its rest in the next turn, before anything more is read.
#[test]
fn the_time_for_reading_ends_within_a_batch() {
    let most = most_chunks(|setup| setup.config.reading_per_turn_ms = 0, |_| ());
    assert!((1..=16).contains(&most), "{most} in one turn");
}

#[test]
fn large_transfers_and_datagrams() {
    const BYTES: usize = 6 << 20;
    run(async {
        let world = world(|_| ());
        let endpoint = world.endpoint();
        let connection = world.connect(&endpoint).await;
        let payload = pattern(BYTES);
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        let writing = async {
            send.write_all(&payload).await.unwrap();
            send.finish().unwrap();
        };
        let reading = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            receive.read_to_end(BYTES + 1).await.unwrap()
        };
        let ((), received) = tokio::join!(writing, reading);
        assert!(received == payload, "the bytes differ");
        connection
            .send_datagram(bytes::Bytes::from_static(b"unreliable"))
            .unwrap();
        assert_eq!(
            connection.read_datagram().await.unwrap(),
            &b"unreliable"[..]
        );
        world.server.stop();
    });
}

/// Keeps a trace in memory.
#[derive(Clone, Default)]
struct Records(Arc<std::sync::Mutex<Vec<u8>>>);

impl sterna_net::TraceSink for Records {
    fn record(&mut self, record: &[u8]) {
        self.0.lock().expect("no panic").extend_from_slice(record);
    }
}

#[test]
fn a_connection_is_traced_while_that_is_wanted() {
    run(async {
        let world = world(|_| ());
        let endpoint = world.endpoint();
        let connection = world.connect(&endpoint).await;
        exchange(&connection, b"before").await;
        let id = world.server.log.wait_opened();
        let records = Records::default();
        let trace = sterna_net::Trace {
            sink: Box::new(records.clone()),
            title: "a device".to_owned(),
            max_bytes: 100_000,
        };
        world
            .server
            .run(0, move |_, net| net.trace(id, Some(trace)));
        exchange(&connection, b"during").await;
        world.server.run(0, move |_, net| net.trace(id, None));
        let length = records.0.lock().unwrap().len();
        exchange(&connection, b"after").await;
        let text = String::from_utf8(records.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.len(), length);
        assert!(
            text.contains("a device") && text.contains("datagrams_received"),
            "{text}"
        );
        // Dated by the calendar.
        let year = text.split("reference_time\":").nth(1).expect("a date");
        assert!(year.starts_with('1') || year.starts_with('2'), "{year}");
        world.server.stop();
    });
}

/// Connections stay with their shard when the client's address changes: the first byte of the
/// connection identifier steers the datagrams.
#[test]
fn a_connection_stays_with_its_shard_when_the_address_changes() {
    change_addresses(true);
}

/// The same where the kernel does not look at identifiers: the shards forward what strayed.
#[test]
fn shards_forward_what_strayed() {
    change_addresses(false);
}

fn change_addresses(kernel_steering: bool) {
    run(async {
        let world = world(|setup| {
            setup.shards = 4;
            setup.config.kernel_steering = kernel_steering;
        });
        let mut shards = [0; 4];
        for _ in 0..16 {
            let endpoint = world.endpoint();
            world.server.log.forget();
            let connection = world.connect(&endpoint).await;
            exchange(&connection, b"before").await;
            for _ in 0..3 {
                endpoint
                    .rebind(UdpSocket::bind(loopback()).unwrap())
                    .unwrap();
                exchange(&connection, b"after").await;
            }
            let id = world.server.log.wait_opened();
            let opened = |who: usize| {
                move |shard: usize, seen: &Seen| shard == who && *seen == Seen::Opened(id)
            };
            let owner = (0..4)
                .find(|who| world.server.log.count(opened(*who)) == 1)
                .unwrap();
            shards[owner] += 1;
            let moved = endpoint.local_addr().unwrap();
            // The new address counts once it is validated, a round trip after the exchange began.
            let started = Instant::now();
            loop {
                let peer = world
                    .server
                    .run(owner, move |_, net| net.info(id).map(|info| info.peer));
                if peer == Some(moved) {
                    break;
                }
                assert!(started.elapsed() < PATIENCE, "{peer:?}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let told = |_, seen: &Seen| *seen == Seen::Migrated(id);
            let told = world.server.log.count(told);
            assert!((1..=3).contains(&told), "told {told} times");
            let path = world.server.run(owner, move |_, net| net.path(id));
            assert_eq!(path.migrations as usize, told);
            connection.close(0u32.into(), b"");
        }
        assert!(
            shards.iter().filter(|count| **count > 0).count() > 1,
            "{shards:?}"
        );
        world.server.stop();
    });
}

#[test]
fn early_data_reaches_the_handler_on_any_shard() {
    run(async {
        let world = world(|setup| setup.shards = 3);
        let endpoint = world.endpoint();
        let connection = world.connect(&endpoint).await;
        exchange(&connection, b"for a ticket").await;
        let mut accepted = 0;
        for _ in 0..8 {
            let connecting = endpoint
                .connect(world.server.address(), "localhost")
                .unwrap();
            let (connection, verdict) = connecting.into_0rtt().expect("a ticket");
            exchange(&connection, b"early").await;
            accepted += usize::from(verdict.await);
            exchange(&connection, b"for another ticket").await;
        }
        assert_eq!(accepted, 8);
        let confirmed = world
            .server
            .log
            .count(|_, seen| matches!(seen, Seen::Confirmed(_)));
        assert_eq!(confirmed, 8);
        world.server.stop();
    });
}

#[test]
fn a_dual_stack_socket_takes_both_families() {
    run(async {
        let world = world(|setup| setup.listeners[0].address = "[::]:0".parse().unwrap());
        let port = world.server.address().port();
        for host in ["127.0.0.1", "::1"] {
            world.server.log.forget();
            let address = SocketAddr::new(host.parse().unwrap(), port);
            let any: SocketAddr = if address.is_ipv4() {
                loopback()
            } else {
                "[::1]:0".parse().unwrap()
            };
            let endpoint = endpoint(any, &world.authority, false);
            let connection = endpoint
                .connect(address, "localhost")
                .unwrap()
                .await
                .unwrap();
            exchange(&connection, b"hello").await;
            let info = world.server.info(world.server.log.wait_opened());
            assert_eq!(info.peer, endpoint.local_addr().unwrap());
        }
        world.server.stop();
    });
}

/// Clients that open no stream, and clients that never finish their handshake, are nobody else's
/// problem.
#[test]
fn silent_connections_hold_nobody_up() {
    run(async {
        let world = world(|_| ());
        let endpoint = world.endpoint();
        let mut silent = Vec::new();
        for _ in 0..100 {
            silent.push(world.connect(&endpoint).await);
        }
        // Half-open: the first flight of a handshake that nobody goes on with.
        for _ in 0..100 {
            let connecting = endpoint
                .connect(world.server.address(), "localhost")
                .unwrap();
            let _ = tokio::time::timeout(Duration::from_micros(200), connecting).await;
        }
        let honest_endpoint = world.endpoint();
        let connection = world.connect(&honest_endpoint).await;
        exchange(&connection, b"hello").await;
        // It did not have to wait for the end of any of them.
        let is_over = |silent: &Connection| silent.close_reason().is_some();
        assert_eq!(silent.iter().filter(|one| is_over(one)).count(), 0);
        drop(silent);
        world.server.stop();
    });
}

#[test]
fn a_shut_gate_lets_nobody_in_and_nobody_fall() {
    run(async {
        let world = world(|_| ());
        let endpoint = world.endpoint();
        let connection = world.connect(&endpoint).await;
        exchange(&connection, b"before").await;
        world.server.gate.shut();
        world.server.run(0, |_, _| ());
        let newcomer = world.connect(&endpoint);
        let outcome = tokio::time::timeout(Duration::from_millis(500), newcomer).await;
        assert!(outcome.is_err(), "a newcomer was let in");
        exchange(&connection, b"after").await;
        world.server.stop();
    });
}

#[test]
fn ends_of_many_are_told_in_turns() {
    const CLIENTS: usize = 40;
    run(async {
        let world = world(|_| ());
        let endpoint = world.endpoint();
        let mut connections = Vec::new();
        for _ in 0..CLIENTS {
            let connection = world.connect(&endpoint).await;
            exchange(&connection, b"here").await;
            connections.push(connection);
        }
        world.server.run(0, |echo, net| {
            assert_eq!(echo.open.len(), CLIENTS);
            echo.is_deaf_to_ends = true;
            for id in echo.open.clone() {
                net.close(id, 0);
            }
        });
        let log = Arc::clone(&world.server.log);
        let started = Instant::now();
        while log.count(|_, seen| matches!(seen, Seen::Closed(..))) < CLIENTS {
            assert!(started.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(1));
        }
        let most = log.most_ends.load(Ordering::Relaxed);
        assert_eq!(most, 1, "in one turn");
        assert_eq!(connections.len(), CLIENTS);
    });
}

#[test]
fn a_stop_tells_the_peers() {
    run(async {
        let world = world(|_| ());
        let endpoint = world.endpoint();
        let connection = world.connect(&endpoint).await;
        exchange(&connection, b"hello").await;
        let id = world.server.log.wait_opened();
        let log = world.server.log.clone();
        let handlers = world.server.stop();
        assert!(handlers[0].open.is_empty());
        assert_eq!(log.wait_closed(id), CloseReason::Shutdown);
        let closed = connection.closed().await;
        assert!(
            matches!(closed, quinn::ConnectionError::ApplicationClosed(_)),
            "{closed}"
        );
    });
}

/// A limit of one listener holds over all shards and leaves the others alone.
#[test]
fn a_listener_has_so_many_connections_over_all_shards() {
    run(async {
        let world = world(|setup| {
            setup.shards = 2;
            for connections in [2, usize::MAX] {
                setup.listeners.push(sterna_net::ListenerConfig {
                    address: loopback(),
                    transport: ListenerTransport::Tcp,
                    balancers: None,
                    connections,
                });
            }
            setup.listeners[0].connections = 1;
        });
        let endpoint = world.endpoint();
        let first = world.connect(&endpoint).await;
        exchange(&first, b"one").await;
        let refused = endpoint
            .connect(world.server.addresses[0], "localhost")
            .unwrap();
        assert!(refused.await.is_err(), "QUIC is told");
        let of_listener = |reason: RefusedConnection| -> u64 {
            let shards = world.server.counters.iter();
            shards
                .map(|shard| shard.listeners()[0].refused[reason as usize])
                .sum()
        };
        let started = Instant::now();
        while of_listener(RefusedConnection::ConnectionsPerListener) == 0 {
            assert!(started.elapsed() < PATIENCE, "it counts as a stream does");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let open = |at: usize| std::net::TcpStream::connect(world.server.addresses[at]).unwrap();
        let mut streams: Vec<_> = (0..2).map(|_| open(1)).collect();
        for stream in &mut streams {
            std::io::Write::write_all(stream, b"x").unwrap();
            let mut echo = [0; 1];
            std::io::Read::read_exact(stream, &mut echo).unwrap();
        }
        let mut third = open(1);
        let mut rest = Vec::new();
        let _ = std::io::Read::read_to_end(&mut third, &mut rest);
        assert!(rest.is_empty(), "closed as it is accepted");
        let mut other = open(2);
        std::io::Write::write_all(&mut other, b"x").unwrap();
        std::io::Read::read_exact(&mut other, &mut [0; 1]).unwrap();
    });
}

/// A limit on connections from one address counts all transports and shards together, and who goes makes
/// room.
#[test]
fn an_address_has_so_many_connections_over_all_transports() {
    run(async {
        let world = world(|setup| {
            setup.shards = 2;
            setup.config.connections_per_address = 3;
            setup.listeners.push(sterna_net::ListenerConfig {
                address: loopback(),
                transport: ListenerTransport::Tcp,
                balancers: None,
                connections: usize::MAX,
            });
        });
        let tcp = world.server.addresses[1];
        let endpoint = world.endpoint();
        let first = world.connect(&endpoint).await;
        exchange(&first, b"one").await;
        let mut streams: Vec<_> = (0..2)
            .map(|_| std::net::TcpStream::connect(tcp).unwrap())
            .collect();
        for stream in &mut streams {
            let mut answer = [0; 5];
            stream.write_all(b"hello").unwrap();
            stream.read_exact(&mut answer).unwrap();
        }
        // The fourth is told where the transport can say it, and closed where it cannot.
        let refused = endpoint
            .connect(world.server.address(), "localhost")
            .unwrap()
            .await;
        let Err(quinn::ConnectionError::ConnectionClosed(close)) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(
            close.error_code,
            quinn::TransportErrorCode::CONNECTION_REFUSED
        );
        let mut fourth = std::net::TcpStream::connect(tcp).unwrap();
        let end = fourth.read(&mut [0; 1]);
        assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
        // Those that were there go on, and one that leaves makes room for another.
        exchange(&first, b"still here").await;
        drop(streams.pop());
        let started = Instant::now();
        let connected = loop {
            let attempt = endpoint.connect(world.server.address(), "localhost");
            if let Ok(connected) = attempt.unwrap().await {
                break connected;
            }
            assert!(started.elapsed() < PATIENCE, "no room");
        };
        exchange(&connected, b"room").await;
        world.server.stop();
    });
}

/// The token in a stateless reset that answers a packet for this identifier.
fn reset_token(listener: SocketAddr, id: [u8; CONNECTION_ID_BYTES]) -> [u8; 16] {
    let socket = UdpSocket::bind(loopback()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let packet = [&[0x40][..], &id, &[7; 60]].concat();
    socket.send_to(&packet, listener).unwrap();
    let mut answer = [0; 100];
    let length = socket.recv(&mut answer).unwrap();
    *answer[..length].last_chunk().unwrap()
}

/// RFC 9000, section 21.11: where another listener knew the token of an identifier, anybody who has seen a packet could
/// end its connection.
#[test]
fn a_listener_tells_no_token_of_another_and_its_own_again_after_a_restart() {
    let authority = Authority::new();
    let start = |address: SocketAddr| {
        let tls = Arc::new(authority.tls_config(&[]));
        let quic = Arc::new(QuicConfig {
            reset_secret: Some([9; 32]),
            ..QuicConfig::default()
        });
        let mut setup = Setup::new(ListenerTransport::Quic(tls, quic));
        setup.listeners[0].address = address;
        setup.start()
    };
    let id = [1, 2, 3, 4, 5, 6, 7, 8];
    let (first, second) = (start(loopback()), start(loopback()));
    let address = first.address();
    let token = reset_token(address, id);
    assert_ne!(token, reset_token(second.address(), id));
    first.stop();
    let again = start(address);
    assert_eq!(token, reset_token(again.address(), id));
    again.stop();
    second.stop();
}
