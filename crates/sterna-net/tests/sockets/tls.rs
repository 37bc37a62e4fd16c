//! TLS on TCP, on loopback, with rustls' client.
#![allow(clippy::unwrap_used, missing_docs)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustls::{AlertDescription, HandshakeKind};
use sterna_net::{
    ClientAuth, ClientAuthority, CloseReason, ListenerTransport, StreamId, TlsConfig, TlsVersions,
    TransportKind,
};

use crate::support::pki::{Authority, TlsStream, connect};
use crate::support::{Manner, PATIENCE, Seen, Setup, pattern};

static TLS12: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS12];
static TLS13: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];

fn setup(config: TlsConfig) -> Setup {
    Setup::new(ListenerTransport::Tls(Arc::new(config)))
}

fn exchange(stream: &mut TlsStream, bytes: &[u8]) {
    stream.write_all(bytes).unwrap();
    stream.flush().unwrap();
    let mut answer = vec![0; bytes.len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, bytes);
}

#[test]
fn both_versions_echo_and_negotiate_the_protocol() {
    let authority = Authority::new();
    let server = setup(authority.tls_config(&[b"mqtt", b"amqp"])).start();
    for versions in [TLS12, TLS13] {
        server.log.forget();
        let config = authority.client(versions, None, &[b"amqp", b"h2"]);
        let mut client = connect(server.address(), &config);
        for length in [1, 64, 16 * 1024, 16 * 1024 + 1, 300_000] {
            exchange(&mut client, &pattern(length));
        }
        assert_eq!(client.conn.alpn_protocol(), Some(&b"amqp"[..]));
        let id = server.log.wait_opened();
        let info = server.info(id);
        assert_eq!(info.transport, TransportKind::Tls);
        assert_eq!(&*info.protocol, b"amqp");
        assert!(info.peer_certificates.is_empty());
        // The end of the stream, in order, both ways.
        client.conn.send_close_notify();
        client.flush().unwrap();
        assert_eq!(
            client.read(&mut [0; 8]).unwrap(),
            0,
            "close_notify comes back"
        );
        assert_eq!(server.log.wait_closed(id), CloseReason::Local);
        let finished = Seen::Finished(id, StreamId::FIRST);
        assert_eq!(server.log.count(|_, seen| *seen == finished), 1);
    }
    server.stop();
}

#[test]
fn version_and_protocol_can_be_refused() {
    let authority = Authority::new();
    let mut config = authority.tls_config(&[b"mqtt"]);
    config.versions = TlsVersions::Only13;
    let server = setup(config).start();
    let refused = |client: &mut TlsStream| {
        let error = client
            .write_all(b"x")
            .and_then(|()| client.read_exact(&mut [0; 1]));
        let error = error.unwrap_err();
        match error
            .get_ref()
            .and_then(|e| e.downcast_ref::<rustls::Error>())
        {
            Some(rustls::Error::AlertReceived(alert)) => *alert,
            other => panic!("no alert: {other:?}"),
        }
    };
    let config = authority.client(TLS12, None, &[b"mqtt"]);
    let alert = refused(&mut connect(server.address(), &config));
    assert_eq!(alert, AlertDescription::ProtocolVersion);
    let config = authority.client(TLS13, None, &[b"h2"]);
    let alert = refused(&mut connect(server.address(), &config));
    assert_eq!(alert, AlertDescription::NoApplicationProtocol);
    // No protocol at all is fine.
    let config = authority.client(TLS13, None, &[]);
    exchange(&mut connect(server.address(), &config), b"hello");
    assert_eq!(
        server.log.count(|_, seen| matches!(seen, Seen::Opened(_))),
        1
    );
    server.stop();
}

#[test]
fn client_certificates_are_verified_and_revocation_takes_effect_at_run_time() {
    let authority = Authority::new();
    let anchors = ClientAuthority::new([authority.der()], Vec::new()).unwrap();
    let mut config = authority.tls_config(&[]);
    config.client_auth = ClientAuth::Required(Arc::clone(&anchors));
    let server = setup(config).start();

    for versions in [TLS12, TLS13] {
        let anonymous = authority.client(versions, None, &[]);
        let mut client = connect(server.address(), &anonymous);
        let result = client
            .write_all(b"x")
            .and_then(|()| client.read_exact(&mut [0; 1]));
        assert!(result.is_err(), "a client without a certificate was let in");
    }
    let stranger = Authority::new().issue("device", 5);
    let foreign = authority.client(TLS13, Some(stranger), &[]);
    let mut client = connect(server.address(), &foreign);
    let result = client
        .write_all(b"x")
        .and_then(|()| client.read_exact(&mut [0; 1]));
    assert!(result.is_err(), "a foreign certificate was let in");

    let issued = authority.issue("device-7", 7);
    let der = issued.der.clone();
    let known = authority.client(TLS13, Some(issued), &[]);
    server.log.forget();
    let mut client = connect(server.address(), &known);
    exchange(&mut client, b"hello");
    let info = server.info(server.log.wait_opened());
    assert_eq!(info.peer_certificates, [Box::from(der.as_ref())]);
    drop(client);
    // A resumed session keeps the identity.
    server.log.forget();
    let mut client = connect(server.address(), &known);
    exchange(&mut client, b"hello");
    assert_eq!(client.conn.handshake_kind(), Some(HandshakeKind::Resumed));
    let info = server.info(server.log.wait_opened());
    assert_eq!(info.peer_certificates, [Box::from(der.as_ref())]);

    // Revoked: neither a ticket nor the certificate helps; who is connected stays.
    anchors
        .replace([authority.der()], vec![authority.revoke(7)])
        .unwrap();
    let mut revoked = connect(server.address(), &known);
    let result = revoked
        .write_all(b"x")
        .and_then(|()| revoked.read_exact(&mut [0; 1]));
    assert!(result.is_err(), "a revoked certificate was let in");
    exchange(&mut client, b"still here");
    server.stop();
}

#[test]
fn sessions_are_resumed_and_a_certificate_is_exchanged_without_dropping_anyone() {
    let authority = Authority::new();
    let config = authority.tls_config(&[b"mqtt"]);
    let certificates = Arc::clone(&config.certificates);
    let mut setup = setup(config);
    setup.shards = 2;
    let server = setup.start();
    for versions in [TLS12, TLS13] {
        let config = authority.client(versions, None, &[b"mqtt"]);
        let mut kinds = Vec::new();
        for _ in 0..4 {
            let mut client = connect(server.address(), &config);
            exchange(&mut client, b"hello");
            kinds.push(client.conn.handshake_kind().unwrap());
        }
        assert_eq!(kinds[0], HandshakeKind::Full);
        assert!(
            kinds[1..]
                .iter()
                .all(|kind| *kind == HandshakeKind::Resumed),
            "{kinds:?}"
        );
    }
    let listeners = server.counters.iter().map(|shard| shard.listeners()[0]);
    let finished = listeners.fold((0, 0), |(all, resumed), listener| {
        (all + listener.handshakes, resumed + listener.resumed)
    });
    assert_eq!(finished, (8, 6));

    let config = authority.client(TLS13, None, &[b"mqtt"]);
    let mut before = connect(server.address(), &config);
    exchange(&mut before, b"hello");
    let first = before.conn.peer_certificates().unwrap()[0].clone();
    certificates
        .replace(vec![authority.issue("localhost", 9).identity()])
        .unwrap();
    let config = authority.client(TLS13, None, &[b"mqtt"]);
    let mut after = connect(server.address(), &config);
    exchange(&mut after, b"hello");
    assert_ne!(after.conn.peer_certificates().unwrap()[0], first);
    exchange(&mut before, b"still here");
    server.stop();
}

#[test]
fn large_transfers_go_both_ways_under_backpressure() {
    const BYTES: usize = 6 << 20;
    let authority = Authority::new();
    let server = setup(authority.tls_config(&[])).start();
    let config = authority.client(TLS13, None, &[]);
    let mut client = connect(server.address(), &config);
    exchange(&mut client, b"hello");
    client.sock.set_nonblocking(true).unwrap();
    let sent = pattern(BYTES);
    let (mut written, mut received) = (0, Vec::new());
    let mut buffer = vec![0; 100_000];
    let started = Instant::now();
    while received.len() < BYTES {
        assert!(started.elapsed() < 3 * PATIENCE, "{written} written");
        // Write as much as goes before reading anything, so that both directions fill up.
        if written < BYTES {
            match client.write(&sent[written..(written + 50_000).min(BYTES)]) {
                Ok(count) => {
                    written += count;
                    continue;
                }
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
            }
        }
        match client.read(&mut buffer) {
            Ok(0) => panic!("the end came early"),
            Ok(count) => received.extend_from_slice(&buffer[..count]),
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                std::thread::yield_now();
            }
        }
    }
    assert!(received == sent, "the bytes differ");
    let most = server.log.most_unsent_bytes.load(Ordering::Relaxed);
    let limits = sterna_net::ShardConfig::default();
    let ciphertext = 80 * 1024;
    assert!(most <= limits.high_watermark_bytes + limits.read_bytes_per_turn + ciphertext);
    server.stop();
}

#[test]
fn a_reader_that_is_slow_bounds_the_memory_and_gets_everything() {
    const BYTES: usize = 8 << 20;
    let authority = Authority::new();
    let mut setup = setup(authority.tls_config(&[]));
    setup.manner = Manner::Drop;
    let server = setup.start();
    let config = authority.client(TLS13, None, &[]);
    let mut client = connect(server.address(), &config);
    client.write_all(b"x").unwrap();
    let id = server.log.wait_opened();
    let payload = pattern(BYTES);
    server.run(0, {
        let payload = bytes::Bytes::from(payload.clone());
        move |_, net| {
            // Headers and payloads in turn, as a broker sends them.
            for part in 0..(BYTES / 4_096) {
                net.send(id, StreamId::FIRST, b"head");
                let range = part * 4_096..(part + 1) * 4_096;
                net.send_shared(id, StreamId::FIRST, payload.slice(range));
            }
        }
    });
    std::thread::sleep(Duration::from_millis(200));
    let unsent = server.run(0, move |_, net| net.unsent_bytes(id));
    assert!(unsent > BYTES / 8, "the socket took {unsent} only in part");
    let mut received = vec![0; BYTES + BYTES / 4_096 * 4];
    client.read_exact(&mut received).unwrap();
    for (part, piece) in received.chunks(4_100).enumerate() {
        assert_eq!(&piece[..4], b"head");
        assert!(piece[4..] == payload[part * 4_096..(part + 1) * 4_096]);
    }
    assert_eq!(server.run(0, move |_, net| net.unsent_bytes(id)), 0);
    server
        .log
        .wait("relief", |seen| (*seen == Seen::Writable(id)).then_some(()));
    server.run(0, move |_, net| {
        net.send(id, StreamId::FIRST, b"end");
        net.close(id, 0);
    });
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).expect("closed in order");
    assert_eq!(rest, b"end");
    server.stop();
}

/// A handshake must not hold up anybody, whoever begins it and goes no further.
#[test]
fn half_open_connections_are_bounded_and_hold_nobody_up() {
    let authority = Authority::new();
    let mut setup = setup(authority.tls_config(&[]));
    setup.config.half_open_per_address = 120;
    setup.config.handshake_timeout_ms = 600_000;
    let server = setup.start();
    let config = authority.client(TLS13, None, &[]);
    let silent = begin_handshakes(server.address(), &config, 100);
    let mut honest = connect(server.address(), &config);
    exchange(&mut honest, b"hello");
    // All others are still there, so it waited for none of them.
    server.wait_figures(|figures| figures.half_open == 100 && figures.failed_handshakes == 0);
    // The 121st from one address is turned away.
    let mut more = Vec::new();
    more.resize_with(30, || TcpStream::connect(server.address()).unwrap());
    let figures = server.wait_figures(|figures| figures.refused >= 10);
    assert!(figures.half_open <= 120, "{figures:?}");
    drop((silent, more));
    server.wait_figures(|figures| figures.failed_handshakes >= 100 && figures.half_open == 0);
    exchange(&mut honest, b"still here");
    exchange(&mut connect(server.address(), &config), b"room again");
    assert_eq!(
        server.log.count(|_, seen| matches!(seen, Seen::Opened(_))),
        2
    );
    server.stop();
}

#[test]
fn a_handshake_that_is_not_finished_in_time_ends_and_makes_room() {
    const MOST: usize = 8;
    let authority = Authority::new();
    let mut setup = setup(authority.tls_config(&[]));
    setup.config.half_open_per_address = MOST;
    // The honest ones need less, even where the machine stands still for a while.
    setup.config.handshake_timeout_ms = 3_000;
    let server = setup.start();
    let config = authority.client(TLS13, None, &[]);
    let mut honest = connect(server.address(), &config);
    exchange(&mut honest, b"hello");
    for mut socket in begin_handshakes(server.address(), &config, MOST) {
        let mut rest = Vec::new();
        socket.read_to_end(&mut rest).unwrap();
    }
    server
        .wait_figures(|figures| figures.failed_handshakes == MOST as u64 && figures.half_open == 0);
    exchange(&mut honest, b"still here");
    exchange(&mut connect(server.address(), &config), b"room again");
    server.stop();
}

/// Connections that send nothing, a part of their first flight, or all of it, and no more.
fn begin_handshakes(
    server: SocketAddr,
    config: &Arc<rustls::ClientConfig>,
    count: usize,
) -> Vec<TcpStream> {
    let mut hello = Vec::new();
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    rustls::ClientConnection::new(Arc::clone(config), name)
        .unwrap()
        .write_tls(&mut hello)
        .unwrap();
    (0..count)
        .map(|number| {
            let mut socket = TcpStream::connect(server).unwrap();
            let part = match number % 4 {
                0 => &[],
                1 => &hello[..hello.len() / 2],
                2 => &hello[..1],
                _ => &hello[..],
            };
            socket.write_all(part).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        })
        .collect()
}

#[test]
fn garbage_and_bytes_one_at_a_time() {
    let authority = Authority::new();
    let server = setup(authority.tls_config(&[])).start();
    let mut plain = TcpStream::connect(server.address()).unwrap();
    plain.set_read_timeout(Some(PATIENCE)).unwrap();
    plain
        .write_all(b"\x10\x0c\x00\x04MQTT\x05\x02\x00\x3c\x00\x00")
        .unwrap();
    let mut answer = Vec::new();
    plain.read_to_end(&mut answer).unwrap();
    assert_eq!(answer.first(), Some(&21), "an alert and the end");

    let config = authority.client(TLS13, None, &[]);
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let mut client = rustls::ClientConnection::new(config, name).unwrap();
    let mut socket = TcpStream::connect(server.address()).unwrap();
    socket.set_nodelay(true).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    client.writer().write_all(b"hello").unwrap();
    let mut answer = Vec::new();
    while answer.len() < 5 {
        while client.wants_write() {
            let mut wire = Vec::new();
            client.write_tls(&mut wire).unwrap();
            for byte in wire {
                socket.write_all(&[byte]).unwrap();
            }
        }
        client.read_tls(&mut socket).unwrap();
        client.process_new_packets().unwrap();
        let mut buffer = [0; 8];
        if let Ok(count) = client.reader().read(&mut buffer) {
            answer.extend_from_slice(&buffer[..count]);
        }
    }
    assert_eq!(answer, b"hello");
    server.stop();
}

#[test]
fn keys_can_be_changed() {
    let authority = Authority::new();
    let server = setup(authority.tls_config(&[])).start();
    let config = authority.client(TLS13, None, &[]);
    let mut client = connect(server.address(), &config);
    for round in 0..5 {
        exchange(&mut client, &pattern(1_000 + round));
        // Asks the server to change its keys as well.
        client.conn.refresh_traffic_keys().unwrap();
    }
    exchange(&mut client, b"done");
    server.stop();
}

/// Attack row 30: a client that asks for other keys again and again, and says nothing.
#[test]
fn a_storm_of_key_changes_ends_its_connection_alone() {
    let authority = Authority::new();
    let server = setup(authority.tls_config(&[])).start();
    let config = authority.client(TLS13, None, &[]);
    let mut honest = connect(server.address(), &config);
    let mut storm = connect(server.address(), &config);
    exchange(&mut honest, b"before");
    exchange(&mut storm, b"before");
    for _ in 0..10_000 {
        storm.conn.refresh_traffic_keys().unwrap();
        // The server may be gone already.
        if storm.flush().is_err() {
            break;
        }
    }
    let answer = storm.read(&mut [0; 8]);
    assert!(
        !matches!(answer, Ok(1..)),
        "the storm is not answered: {answer:?}"
    );
    exchange(&mut honest, b"after");
    // One that talks may change its keys as often as it likes.
    for round in 0..1_000 {
        honest.conn.refresh_traffic_keys().unwrap();
        exchange(&mut honest, &pattern(1 + round % 3));
    }
    server.stop();
}

#[test]
fn a_pause_does_not_hide_for_ever_that_the_peer_is_gone() {
    let authority = Authority::new();
    let mut setup = setup(authority.tls_config(&[]));
    setup.config.half_closed_timeout_ms = 50;
    setup.config.paused_timeout_ms = 50;
    let server = setup.start();
    let mut client = connect(server.address(), &authority.client(TLS13, None, &[]));
    exchange(&mut client, b"hello");
    let id = server.log.wait_opened();
    server.run(0, move |_, net| net.pause(id, true));
    client.write_all(&pattern(10_000)).unwrap();
    client.conn.send_close_notify();
    client.flush().unwrap();
    drop(client);
    assert_eq!(server.log.wait_closed(id), CloseReason::Peer { code: 0 });
    assert_eq!(server.log.received_bytes.load(Ordering::Relaxed), 5);
    server.stop();
}
