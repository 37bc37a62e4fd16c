//! HTTP/2, as it is carried.

use sterna_net::TransportKind;
use tracing::Level;

use crate::fixture::Lines;
use crate::h2_client::Client;
use crate::http::http1::{broker, broker_with};

#[test]
fn requests_are_answered_on_streams_of_their_own() {
    let mut broker = broker();
    // With prior knowledge, and as TLS has negotiated.
    for protocol in [&b""[..], b"h2"] {
        let mut client = Client::connect(&mut broker, protocol);
        let mut first = client.begin("GET", "/nowhere", &[], Some(b""));
        let mut second = client.begin("POST", "/nowhere", &[], Some(b"content"));
        client.turn(&mut broker, &mut [&mut first, &mut second]);
        for exchange in [&first, &second] {
            assert_eq!(exchange.status, 404);
            assert!(exchange.is_complete);
            assert_eq!(exchange.fields["date"], "Tue, 14 Nov 2023 22:13:20 GMT");
        }
    }
}

#[test]
fn what_is_too_large_or_too_slow_is_refused() {
    let mut broker = broker_with(|config| {
        config.http.maximum_content_bytes = 8;
        config.http.maximum_target_bytes = 32;
        config.http.maximum_fields_bytes = 1024;
        config.http.content_timeout_ms = 1_000;
    });
    let mut client = Client::connect(&mut broker, b"");
    let large = client.request(&mut broker, "POST", "/", &[], b"123456789");
    assert_eq!(large.status, 413);
    let long = format!("/{}", "x".repeat(40));
    let long = client.request(&mut broker, "GET", &long, &[], b"");
    assert_eq!(long.status, 414);
    let value = "x".repeat(1_100);
    let fields = client.request(&mut broker, "GET", "/", &[("a", &value)], b"");
    assert_eq!(fields.status, 431);
    let mut slow = client.begin("POST", "/", &[], None);
    client.turn(&mut broker, &mut [&mut slow]);
    broker.advance(1_100);
    client.turn(&mut broker, &mut [&mut slow]);
    assert_eq!(slow.status, 408);
    assert_eq!(client.ended, None, "one slow request ends no connection");
}

#[test]
fn a_client_that_gives_up_again_and_again_is_cut_off() {
    let mut broker = broker_with(|config| config.http.maximum_resets = 20);
    let mut client = Client::connect(&mut broker, b"");
    for round in 0..100 {
        let mut exchange = client.begin("POST", "/nowhere", &[], None);
        client.turn(&mut broker, &mut [&mut exchange]);
        exchange.reset();
        client.turn(&mut broker, &mut [&mut exchange]);
        if broker.is_closed(client.peer) {
            assert!(round >= 20, "{round}");
            return;
        }
    }
    panic!("it goes on");
}

#[test]
fn a_connection_that_nobody_uses_is_closed() {
    let mut broker = broker_with(|config| config.http.idle_timeout_ms = 5_000);
    let mut client = Client::connect(&mut broker, b"");
    assert_eq!(
        client
            .request(&mut broker, "GET", "/nowhere", &[], b"")
            .status,
        404
    );
    broker.advance(5_100);
    client.turn(&mut broker, &mut []);
    assert!(broker.is_closed(client.peer));
    assert_eq!(client.ended, Some(Ok(())), "GOAWAY comes before the end");
}

/// Requests that are given up in the packet that they come with count as all others do. The library has a limit of its own
/// for them, which is the setting's.
#[test]
fn requests_given_up_at_once_are_held_to_the_setting() {
    const REQUEST: &[u8] = b"\0\0\x0e\x01\x05\0\0\0\0\x82\x86\x84\x41\x09localhost";
    let burst = |requests: u32| {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
        for number in 0..requests {
            let stream = (2 * number + 1).to_be_bytes();
            let mut headers = REQUEST.to_vec();
            headers[5..9].copy_from_slice(&stream);
            bytes.extend_from_slice(&headers);
            bytes.extend_from_slice(b"\0\0\x04\x03\0");
            bytes.extend_from_slice(&stream);
            bytes.extend_from_slice(&8_u32.to_be_bytes());
        }
        bytes
    };
    for (requests, ends) in [(100, false), (200, true), (2_000, true)] {
        let text = Lines::of(Level::WARN, |_| {
            let mut broker = broker_with(|config| config.http.maximum_resets = 128);
            let peer = broker.open_speaking(b"h2", 0, TransportKind::Tls, Vec::new());
            broker.send(peer, &burst(requests));
            assert_eq!(broker.is_closed(peer), ends, "{requests}");
        });
        let ours: Vec<&str> = text.lines().filter(|line| line.contains("peer=")).collect();
        assert_eq!(ours.len(), usize::from(ends), "{requests}: {text}");
        for line in ours {
            assert!(line.contains("HTTP client turned away"), "{line}");
            assert!(line.contains("http.maximum_resets"), "{line}");
        }
    }
}
