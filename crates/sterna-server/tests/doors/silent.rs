//! Connections on which nobody says anything: one patience for all doors (attack row 15).

use sterna_net::TransportKind;
use sterna_server::config::{Config, Listener};

use crate::fixture::{Broker, Peer};

const PATIENCE_MS: u64 = 4_000;

fn broker(url: &str) -> Broker {
    let mut config = Config {
        listeners: vec![Listener::at(url)],
        ..Config::default()
    };
    config.network.connect_timeout_ms = PATIENCE_MS;
    Broker::with(&config, 1)
}

/// Connections of every door, and something that each may say without asking for anything.
fn doors() -> Vec<(Broker, Peer, &'static [u8])> {
    let mut all = Vec::new();
    for (protocol, transport, url, said) in [
        (
            &b""[..],
            TransportKind::Tcp,
            "mqtt://127.0.0.1:0",
            &[0x10][..],
        ),
        (
            b"mqtt",
            TransportKind::Quic,
            "mqtt+quic://127.0.0.1:0",
            &[0x10],
        ),
        (
            b"",
            TransportKind::Tcp,
            "amqp://127.0.0.1:0",
            b"AMQP\0\x01\0\0",
        ),
        (
            b"amqp",
            TransportKind::Quic,
            "amqp+quic://127.0.0.1:0",
            b"AMQP",
        ),
        (b"", TransportKind::Tcp, "http://127.0.0.1:0", b""),
        (
            b"http/1.1",
            TransportKind::Tls,
            "https://127.0.0.1:0",
            b"GET / HT",
        ),
        (
            b"h2",
            TransportKind::Tls,
            "https://127.0.0.1:0",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
        ),
        // A request whose head goes on for ever.
        (
            b"h3",
            TransportKind::Quic,
            "h3://127.0.0.1:0",
            b"\x01\x40\x40\0\0",
        ),
    ] {
        let mut broker = broker(url);
        let peer = broker.open_speaking(protocol, 0, transport, Vec::new());
        all.push((broker, peer, said));
    }
    all
}

#[test]
fn whoever_asks_for_nothing_is_gone_after_the_same_time_at_every_door() {
    for (number, (mut broker, peer, _)) in doors().into_iter().enumerate() {
        broker.advance(PATIENCE_MS - 100);
        assert!(!broker.is_closed(peer), "{number}: too early");
        broker.advance(200);
        assert!(broker.is_closed(peer), "{number}: nothing was said");
    }
}

#[test]
fn what_asks_for_nothing_buys_no_time() {
    for (number, (mut broker, peer, said)) in doors().into_iter().enumerate() {
        broker.advance(PATIENCE_MS / 2);
        broker.send(peer, said);
        broker.take(peer);
        broker.writable(peer);
        broker.advance(PATIENCE_MS / 2 + 100);
        assert!(broker.is_closed(peer), "{number}: it was half a word");
    }
}
