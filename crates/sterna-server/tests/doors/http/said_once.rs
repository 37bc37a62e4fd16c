//! What may be said once is not said twice, and what is not served is said so.

use sterna_h3::{Content, Features, RequestLine};

use crate::fixture::Broker;
use crate::h3_client::Client;
use crate::http::http1;
use crate::http::publish::problem;

#[test]
fn parameters_come_once() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    for query in [
        "qos=0&qos=1",
        "session=a&session=b",
        "wait=1s&wait=1s",
        "retained=no&retained=yes",
    ] {
        let path = format!("/v1/topics/a?{query}");
        let number = client.request(&mut broker, "GET", &path, &[], b"");
        assert_eq!(problem(&client, number), "400 invalid-parameter", "{query}");
    }
    let number = client.request(
        &mut broker,
        "GET",
        "/v1/topics/a?filter=b&filter=c",
        &[],
        b"",
    );
    assert_eq!(client.response(number).status, 200);
}

#[test]
fn fields_come_once() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    for (name, first, second) in [
        ("idempotency-key", "a", "b"),
        ("last-event-id", "a:1", "b:1"),
        ("content-type", "a/b", "a/b"),
        ("origin", "https://localhost", "https://evil.example"),
        ("sec-fetch-site", "same-origin", "cross-site"),
        ("sterna-qos", "0", "1"),
    ] {
        let fields = [(name, first), (name, second)];
        let number = client.request(&mut broker, "POST", "/v1/topics/a", &fields, b"x");
        assert_eq!(problem(&client, number), "400 invalid-field", "{name}");
    }
}

/// RFC 9220, section 3.
#[test]
fn an_unknown_protocol_is_not_implemented() {
    let features = Features {
        extended_connect: true,
        datagrams: true,
        webtransport: true,
    };
    let mut broker = Broker::new();
    broker.wires[0].datagram_bytes = 1_200;
    let mut client = Client::connect_with(&mut broker, features);
    for protocol in ["connect-udp", "websocket", "WebTransport"] {
        let line = RequestLine::connect(protocol, "localhost", "/v1/topics/a");
        let number = client.begin_line(&line, &[], Content::Streamed);
        client.turn(&mut broker);
        assert_eq!(
            problem(&client, number),
            "501 not-implemented",
            "{protocol}"
        );
    }
}

/// nginx gathers a response until it is complete, unless it is told not to.
#[test]
fn endless_responses_pass_proxies() {
    let mut broker = http1::broker();
    for (accept, is_endless) in [
        ("text/event-stream", true),
        ("application/x-ndjson", true),
        ("application/vnd.sterna.stream", true),
        ("application/json", false),
    ] {
        let query = if is_endless { "" } else { "?wait=1s" };
        let peer = http1::connect(&mut broker);
        let get = format!(
            "GET /v1/topics/a{query} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n"
        );
        let mut answer = http1::say(&mut broker, peer, &get);
        broker.advance(1_000);
        answer += &String::from_utf8(broker.take(peer)).expect("text");
        assert!(answer.starts_with("HTTP/1.1 20"), "{answer}");
        assert_eq!(
            answer.contains("x-accel-buffering: no\r\n"),
            is_endless,
            "{answer}"
        );
    }
}
