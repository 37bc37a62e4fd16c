//! Balancers that connect for clients, by the PROXY protocol, on loopback.
#![allow(clippy::unwrap_used, missing_docs)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::{ClientConnection, StreamOwned};
use sterna_net::{
    ConnectionInfo, ListenerTransport, RefusedConnection, RefusedPeers, ShardConfig,
    WebSocketConfig,
};

use crate::support::pki::Authority;
use crate::support::{PATIENCE, Seen, Server, Setup, pattern};

const CLIENT: &str = "203.0.113.9:4711";
const V1: &[u8] = b"PROXY TCP4 203.0.113.9 192.0.2.1 4711 8883\r\n";
const V2: &[u8] =
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c\xcb\x00\x71\x09\xc0\x00\x02\x01\x12\x67\x22\xb3";
const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00";

/// A listener for balancers at these addresses.
fn start(transport: ListenerTransport, from: &str, config: ShardConfig) -> Server {
    let mut setup = Setup::new(transport);
    setup.config = config;
    setup.listeners[0].balancers = Some([from.parse().expect("a prefix")].into());
    setup.start()
}

fn tcp(config: ShardConfig) -> Server {
    start(ListenerTransport::Tcp, "127.0.0.0/8", config)
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address()).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn exchange(stream: &mut (impl Read + Write), bytes: &[u8]) {
    let mut answer = vec![0; bytes.len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, bytes);
}

fn peer(server: &Server) -> ConnectionInfo {
    let id = server.log.wait_opened();
    let info = server.info(id);
    server.log.forget();
    info
}

/// Whether the broker has closed the connection, and has said nothing.
fn is_closed(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    let end = stream.read_to_end(&mut rest);
    rest.is_empty() && end.is_ok_and(|count| count == 0) || end_was_reset(stream)
}

fn end_was_reset(stream: &mut TcpStream) -> bool {
    stream.read(&mut [0; 1]).is_ok_and(|count| count == 0)
}

fn refused(server: &Server, reason: RefusedConnection) -> u64 {
    server.counters[0].listeners()[0].refused[reason as usize]
}

#[test]
fn the_clients_address_is_the_one_in_the_header() {
    let server = tcp(ShardConfig::default());
    let client: SocketAddr = CLIENT.parse().unwrap();
    for header in [V1, V2] {
        for piece in [1, 5, 200] {
            let mut stream = connect(&server);
            // What follows may be in the same packet.
            let bytes = [header, b"hello"].concat();
            for part in bytes.chunks(piece) {
                stream.write_all(part).unwrap();
            }
            exchange(&mut stream, b"hello");
            let more = pattern(100_000);
            let (mut reader, sent) = (stream.try_clone().unwrap(), more.clone());
            let writer = std::thread::spawn(move || stream.write_all(&sent).map(|()| stream));
            exchange(&mut reader, &more);
            writer.join().unwrap().unwrap();
            assert_eq!(peer(&server).peer, client);
        }
    }
    let mut stream = connect(&server);
    stream.write_all(&[LOCAL, b"x"].concat()).unwrap();
    exchange(&mut stream, b"x");
    assert_eq!(peer(&server).peer, stream.local_addr().unwrap());
    server.stop();
}

#[test]
fn the_header_comes_before_tls_and_websocket() {
    let authority = Authority::new();
    let server = start(
        ListenerTransport::Tls(Arc::new(authority.tls_config(&[b"mqtt"]))),
        "127.0.0.1/32",
        ShardConfig::default(),
    );
    for one_packet in [false, true] {
        let config = authority.client(&[&rustls::version::TLS13], None, &[b"mqtt"]);
        let name = "localhost".try_into().unwrap();
        let mut tls = ClientConnection::new(Arc::clone(&config), name).unwrap();
        let mut stream = connect(&server);
        let mut first = V2.to_vec();
        if one_packet {
            tls.write_tls(&mut first).unwrap();
        }
        stream.write_all(&first).unwrap();
        let mut client = StreamOwned::new(tls, stream);
        client.write_all(b"secret").unwrap();
        exchange(&mut client, b"secret");
        assert_eq!(peer(&server).peer, CLIENT.parse().unwrap());
    }
    server.stop();

    let websocket = ListenerTransport::WebSocket(Arc::new(WebSocketConfig::default()));
    let server = start(websocket, "127.0.0.1/32", ShardConfig::default());
    let mut stream = connect(&server);
    let request = "GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Protocol: mqtt\r\n\r\n";
    stream
        .write_all(&[V1, request.as_bytes()].concat())
        .unwrap();
    exchange(&mut stream, b"HTTP/1.1 101");
    assert_eq!(peer(&server).peer, CLIENT.parse().unwrap());
    server.stop();
}

#[test]
fn what_is_no_header_in_time_ends_the_connection() {
    let server = tcp(ShardConfig {
        proxy_header_timeout_ms: 50,
        proxy_header_bytes: 200,
        ..ShardConfig::default()
    });
    let too_long = [&V2[..14], &[0xFF, 0xFF]].concat();
    for (count, bytes) in [
        &b"\x10\x0e\0\x04MQTT"[..],
        b"PROXY TCP4 nobody\r\n",
        &too_long,
        // Only the beginning, and nothing.
        &V1[..20],
        b"",
    ]
    .into_iter()
    .enumerate()
    {
        let mut stream = connect(&server);
        stream.write_all(bytes).unwrap();
        assert!(is_closed(&mut stream), "{bytes:?}");
        assert_eq!(
            refused(&server, RefusedConnection::ProxyHeader),
            count as u64 + 1
        );
    }
    // One that is cut in the middle.
    let mut stream = connect(&server);
    stream.write_all(&V1[..20]).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(is_closed(&mut stream));
    assert_eq!(refused(&server, RefusedConnection::ProxyHeader), 6);
    let figures = server.wait_figures(|figures| (figures.connections, figures.half_open) == (0, 0));
    assert_eq!(figures.failed_handshakes, 6);
    let is_failure = |seen: &Seen| matches!(seen, Seen::Failed(_));
    assert_eq!(
        server.log.count(|_, seen| !is_failure(seen)),
        0,
        "the handler saw none"
    );
    server.stop();
}

#[test]
fn who_is_no_balancer_is_refused_with_and_without_a_header() {
    let server = start(
        ListenerTransport::Tcp,
        "192.0.2.0/24",
        ShardConfig::default(),
    );
    for (count, bytes) in [V1, V2, b"hello"].into_iter().enumerate() {
        let mut stream = connect(&server);
        let _ = stream.write_all(bytes);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty());
        server.wait_figures(|figures| figures.refused > count as u64);
    }
    assert_eq!(refused(&server, RefusedConnection::NotBalancer), 3);
    assert_eq!(server.log.count(|_, _| true), 0);
    server.stop();
}

/// A balancer has as many connections as it has clients; each client has its own limit.
#[test]
fn limits_by_address_are_those_of_the_clients() {
    let server = tcp(ShardConfig {
        connections_per_address: 1,
        half_open_per_address: 1,
        ..ShardConfig::default()
    });
    let open = |address: &str| {
        let mut stream = connect(&server);
        let header = format!("PROXY TCP4 {address} 192.0.2.1 1 2\r\nx");
        stream.write_all(header.as_bytes()).unwrap();
        stream
    };
    let mut first = open("203.0.113.1");
    exchange(&mut first, b"x");
    let mut second = open("203.0.113.2");
    exchange(&mut second, b"x");
    assert!(is_closed(&mut open("203.0.113.1")));
    assert_eq!(
        refused(&server, RefusedConnection::ConnectionsPerAddress),
        1
    );
    drop(first);
    server.wait_figures(|figures| figures.connections == 1);
    exchange(&mut open("203.0.113.1"), b"x");
    server.stop();
}

/// Whom the handler refuses is asked when the client is known: a balancer has other clients.
#[test]
fn newcomers_are_refused_by_the_clients_address() {
    let server = tcp(ShardConfig::default());
    let count = || refused(&server, RefusedConnection::RefusedNetwork);
    for (network, expected) in [("127.0.0.0/8", 0), ("203.0.113.0/24", 1)] {
        let network = RefusedPeers::Of(vec![network.parse().expect("a network")]);
        server.run(0, move |_, net| net.refuse_newcomers(&[0], &network));
        let mut client = connect(&server);
        client.write_all(&[V1, b"taken"].concat()).unwrap();
        if expected == 0 {
            exchange(&mut client, b"taken");
        } else {
            assert!(is_closed(&mut client));
        }
        server.wait_figures(|figures| figures.refused == expected);
        assert_eq!(count(), expected);
    }
    server.stop();
}

#[test]
fn quic_has_no_header() {
    let authority = Authority::new();
    let mut setup = Setup::new(ListenerTransport::Quic(
        Arc::new(authority.tls_config(&[b"mqtt"])),
        Arc::new(sterna_net::quic::QuicConfig::default()),
    ));
    setup.listeners[0].balancers = Some(["127.0.0.1/32".parse().unwrap()].into());
    let error = sterna_net::bind::<()>(&setup.config, &setup.listeners, 1).expect_err("refused");
    assert!(error.to_string().contains("PROXY"), "{error}");
}
