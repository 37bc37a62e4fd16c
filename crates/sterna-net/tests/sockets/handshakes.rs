//! Handshakes that fail: each is told once, with its fault, and counted under it.
#![allow(clippy::unwrap_used, missing_docs)]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use rustls::{AlertDescription, ClientConfig};
use sterna_net::{
    ClientAuth, ClientAuthority, FailedHandshake, HandshakeFault, ListenerTransport, TlsConfig,
    TlsVersions, TransportKind, WebSocketConfig,
};

use crate::support::pki::{Authority, connect};
use crate::support::{Seen, Server, Setup};

static TLS12: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS12];
static TLS13: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];

fn tls(config: TlsConfig) -> Server {
    Setup::new(ListenerTransport::Tls(Arc::new(config))).start()
}

/// The next handshake that fails, which is counted under its fault.
fn failed(server: &Server) -> FailedHandshake {
    let failed = server.log.wait("a failed handshake", |seen| match seen {
        Seen::Failed(failed) => Some(failed.clone()),
        _ => None,
    });
    server.log.forget();
    server.wait_figures(|figures| figures.failed_handshakes > 0 && figures.half_open == 0);
    let counted = server.counters[0].listeners()[0].failed[failed.fault as usize];
    assert!(counted > 0, "{failed:?}");
    failed
}

/// Sends bytes, and reads what comes until the end. Returns that.
fn send(server: &Server, bytes: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(server.address()).unwrap();
    socket.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    // A reset is an end, too.
    let _ = socket.read_to_end(&mut answer);
    answer
}

fn handshake(server: &Server, config: &Arc<ClientConfig>) {
    let mut client = connect(server.address(), config);
    let _ = client.write_all(b"x");
    let _ = client.read(&mut [0; 1]);
}

#[test]
fn what_is_not_tls_is_named() {
    let server = tls(Authority::new().tls_config(&[b"mqtt"]));
    for (bytes, fault, word) in [
        (
            &b"\x10\x0c\0\x04MQTT\x04\x02\0\x3c\0\0"[..],
            HandshakeFault::NotTls,
            "plain MQTT",
        ),
        (
            b"GET / HTTP/1.1\r\n\r\n",
            HandshakeFault::NotTls,
            "plain HTTP",
        ),
        (b"AMQP\0\x01\0\0", HandshakeFault::NotTls, "plain AMQP"),
        (
            b"\x80\x2e\x01\0\x02\0\x15\0\0",
            HandshakeFault::Version,
            "SSL 2.0",
        ),
    ] {
        send(&server, bytes);
        let failed = failed(&server);
        assert_eq!(failed.fault, fault, "{failed:?}");
        assert!(failed.detail.contains(word), "{failed:?}");
        assert_eq!(failed.transport, TransportKind::Tls);
        assert!(failed.peer.ip().is_loopback());
    }
    server.stop();
}

#[test]
fn what_client_and_server_do_not_have_in_common_is_named() {
    let authority = Authority::new();
    let mut config = authority.tls_config(&[b"mqtt"]);
    config.versions = TlsVersions::Only13;
    let server = tls(config);
    handshake(&server, &authority.client(TLS12, None, &[]));
    let told = failed(&server);
    assert_eq!(told.fault, HandshakeFault::Version, "{told:?}");
    assert!(told.detail.contains("speaks TLS 1.2"), "{told:?}");
    handshake(
        &server,
        &authority.client(TLS13, None, &[b"x-amzn-mqtt-ca", b"h2"]),
    );
    let told = failed(&server);
    assert_eq!(told.fault, HandshakeFault::Alpn, "{told:?}");
    for part in ["x-amzn-mqtt-ca, h2", "served are mqtt"] {
        assert!(told.detail.contains(part), "{told:?}");
    }
    server.stop();

    let server = tls(authority.tls_config(&[]));
    send(&server, &hello_with_ciphers(&[0xc023, 0x002f]));
    let told = failed(&server);
    assert_eq!(told.fault, HandshakeFault::Ciphers, "{told:?}");
    assert!(
        told.detail.contains("0xc023") || told.detail.contains("CBC"),
        "{told:?}"
    );
    server.stop();
}

/// A ClientHello of TLS 1.2 with these cipher suites, and the extensions that a server asks for.
fn hello_with_ciphers(ciphers: &[u16]) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend_from_slice(&[7; 32]);
    body.push(0);
    body.extend_from_slice(&(2 * ciphers.len() as u16).to_be_bytes());
    for cipher in ciphers {
        body.extend_from_slice(&cipher.to_be_bytes());
    }
    body.extend_from_slice(&[1, 0]);
    // supported groups, point formats, signature algorithms
    let extensions = [
        &[0, 10, 0, 4, 0, 2, 0, 23][..],
        &[0, 11, 0, 2, 1, 0],
        &[0, 13, 0, 4, 0, 2, 4, 3],
    ]
    .concat();
    body.extend_from_slice(&(extensions.len() as u16).to_be_bytes());
    body.extend_from_slice(&extensions);
    let length = body.len() as u16;
    let mut wire = vec![22, 3, 1];
    wire.extend_from_slice(&(length + 4).to_be_bytes());
    wire.extend_from_slice(&[1, 0]);
    wire.extend_from_slice(&length.to_be_bytes());
    wire.extend_from_slice(&body);
    wire
}

#[test]
fn the_clients_alert_and_its_silence_are_told() {
    let authority = Authority::new();
    let server = tls(authority.tls_config(&[]));
    // It trusts another authority.
    handshake(&server, &Authority::new().client(TLS13, None, &[]));
    let told = failed(&server);
    assert_eq!(told.fault, HandshakeFault::Alert, "{told:?}");
    assert!(
        told.detail.contains("unknown_ca") || told.detail.contains("decrypt_error"),
        "{told:?}"
    );
    // Any other alert.
    send(
        &server,
        &[
            21,
            3,
            3,
            0,
            2,
            2,
            u8::from(AlertDescription::InsufficientSecurity),
        ],
    );
    let told = failed(&server);
    assert!(told.detail.contains("insufficient_security"), "{told:?}");
    for (bytes, fault) in [
        (&b""[..], HandshakeFault::NothingSent),
        (&[22, 3, 1, 0], HandshakeFault::Abandoned),
    ] {
        let mut socket = TcpStream::connect(server.address()).unwrap();
        socket.write_all(bytes).unwrap();
        socket.shutdown(Shutdown::Both).unwrap();
        assert_eq!(failed(&server).fault, fault);
    }
    server.stop();
}

#[test]
fn the_fault_of_a_clients_certificate_is_told() {
    let (authority, others) = (Authority::new(), Authority::new());
    let mut config = authority.tls_config(&[]);
    let anchors = ClientAuthority::new([authority.der()], Vec::new()).unwrap();
    config.client_auth = ClientAuth::Required(anchors);
    let server = tls(config);
    for (identity, fault, word) in [
        (
            None,
            HandshakeFault::NoClientCertificate,
            "shows no certificate",
        ),
        (
            Some(others.issue("device", 7)),
            HandshakeFault::ClientCertificate,
            "not signed by the authority that it names",
        ),
        (
            Some(others.issue("device", 7)),
            HandshakeFault::ClientCertificate,
            ": common name 'device', serial 07",
        ),
        (
            Some(authority.issue_until("former", 0x8abc, 2001)),
            HandshakeFault::ClientCertificate,
            "is out of date: common name 'former', serial 8ABC, valid until Jan  1 00:00:00 2001 +00:00",
        ),
    ] {
        handshake(&server, &authority.client(TLS13, identity, &[]));
        let told = failed(&server);
        assert_eq!(told.fault, fault, "{told:?}");
        assert!(told.detail.contains(word), "{told:?}");
    }
    server.stop();
}

#[test]
fn the_fault_of_an_upgrade_is_told() {
    let transport = ListenerTransport::WebSocket(Arc::new(WebSocketConfig::default()));
    let server = Setup::new(transport).start();
    let request = |line: &str, fields: &str| {
        format!(
            "{line}\r\nHost: broker.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{fields}\r\n"
        )
    };
    let mqtt = "Sec-WebSocket-Protocol: mqtt\r\n";
    let evil = format!("{mqtt}Origin: https://evil.example\r\n");
    let path = "GET /other?access_token=secret HTTP/1.1";
    for (wire, fault, word) in [
        (
            request(path, mqtt),
            HandshakeFault::Path,
            "/other; served are /mqtt",
        ),
        (
            request("GET / HTTP/1.1", "Sec-WebSocket-Protocol: x, y\r\n"),
            HandshakeFault::Subprotocol,
            "offers x, y; served are mqtt",
        ),
        (
            request("GET / HTTP/1.1", ""),
            HandshakeFault::Subprotocol,
            "offers none",
        ),
        (
            request("GET / HTTP/1.1", &evil),
            HandshakeFault::Origin,
            "https://evil.example",
        ),
        (
            request("GET /#a HTTP/1.1", mqtt),
            HandshakeFault::Upgrade,
            "fragment",
        ),
        (
            request("POST / HTTP/1.1", mqtt),
            HandshakeFault::Upgrade,
            "the method is not GET",
        ),
        (
            "\u{16}\u{3}\u{1}".to_owned(),
            HandshakeFault::Upgrade,
            "the client speaks TLS",
        ),
        (
            "\u{10}\u{c}\0\u{4}MQTT".to_owned(),
            HandshakeFault::Upgrade,
            "the client speaks MQTT, and this end HTTP/1.1 for WebSocket",
        ),
        (
            "AMQP\0\u{1}\0\0".to_owned(),
            HandshakeFault::Upgrade,
            "the client speaks AMQP 1.0",
        ),
    ] {
        send(&server, wire.as_bytes());
        let told = failed(&server);
        assert_eq!(told.fault, fault, "{told:?}");
        assert!(told.detail.contains(word), "{told:?}");
        assert!(!told.detail.contains("secret"), "{told:?}");
    }
    server.stop();
}

/// Bytes that the cipher adds, and the kind of the content.
const ADDED: usize = 17;

/// A device with a buffer of 512 bytes reads what it has asked for (RFC 6066, section 4), or what the operator says.
#[test]
fn records_are_as_small_as_a_client_asks_for() {
    let authority = Authority::new();
    let longest = |server: &Server, extra: &[u8]| {
        let mut socket = TcpStream::connect(server.address()).unwrap();
        socket.write_all(&first_flight(&authority, extra)).unwrap();
        // The key exchange fails for the client, which is told nothing more: its transcript is another one.
        socket.shutdown(Shutdown::Write).unwrap();
        let mut flight = Vec::new();
        let _ = socket.read_to_end(&mut flight);
        let mut rest = &flight[..];
        let mut longest = 0;
        while let [_, 3, _, high, low, ..] = rest {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            longest = longest.max(length);
            rest = &rest[(5 + length).min(rest.len())..];
        }
        longest
    };
    let server = tls(authority.tls_config(&[]));
    assert!(longest(&server, &[]) > 512 + ADDED);
    let most_512 = longest(&server, &[0, 1, 0, 1, 1]);
    assert!((256..=512 + ADDED).contains(&most_512), "{most_512}");
    let limit = longest(&server, &[0, 28, 0, 2, 2, 1]);
    assert!((256..=512 + ADDED).contains(&limit), "{limit}");
    server.stop();

    let mut config = authority.tls_config(&[]);
    config.maximum_record_bytes = 600;
    let server = tls(config);
    let setting = longest(&server, &[]);
    assert!((513..=600 + ADDED).contains(&setting), "{setting}");
    server.stop();
}

/// A ClientHello of TLS 1.3, with more extensions.
fn first_flight(authority: &Authority, extra: &[u8]) -> Vec<u8> {
    let config = authority.client(TLS13, None, &[]);
    let name = "localhost".try_into().unwrap();
    let mut client = rustls::ClientConnection::new(config, name).unwrap();
    let mut wire = Vec::new();
    client.write_tls(&mut wire).unwrap();
    let length_at =
        |wire: &[u8], at: usize| usize::from(u16::from_be_bytes([wire[at], wire[at + 1]]));
    // Version, random, session, ciphers, compression.
    let session = 5 + 4 + 2 + 32;
    let ciphers = session + 1 + usize::from(wire[session]);
    let compression = ciphers + 2 + length_at(&wire, ciphers);
    let extensions = compression + 1 + usize::from(wire[compression]);
    for at in [3, 7, extensions] {
        let length = (length_at(&wire, at) + extra.len()) as u16;
        wire[at..at + 2].copy_from_slice(&length.to_be_bytes());
    }
    // In front: a key of an earlier session would have to be last.
    wire.splice(extensions + 2..extensions + 2, extra.iter().copied());
    wire
}
