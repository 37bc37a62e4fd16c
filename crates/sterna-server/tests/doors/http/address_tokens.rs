//! Tokens in addresses (RFC 6750, section 2.3), for pages that cannot send a field.

use sterna_h3::Features;
use sterna_net::TransportKind;
use sterna_server::config::{Config, Listener};

use crate::fixture::{Broker, Lines};
use crate::h3_client::Client;
use crate::http::admission::guarded;
use crate::http::http1;
use crate::http::publish::problem;

const EVENTS: [(&str, &str); 1] = [("accept", "text/event-stream")];

fn on(config: &mut Config) {
    config.http.access_token_parameter = true;
}

#[test]
fn without_the_setting_a_token_in_an_address_is_refused_and_says_why() {
    let (_directory, config) = guarded(|_| {});
    let mut broker = Broker::with(&config, 1);
    let mut client = Client::connect(&mut broker);
    let path = "/v1/topics/a?access_token=token-of-eve";
    let number = client.request(&mut broker, "GET", path, &EVENTS, b"");
    assert_eq!(problem(&client, number), "400 invalid-parameter");
    let said = String::from_utf8_lossy(&client.response(number).content).into_owned();
    assert!(said.contains("http.access_token_parameter"), "{said}");
}

#[test]
fn a_token_in_an_address_stands_for_the_field() {
    let (_directory, config) = guarded(on);
    let mut broker = Broker::with(&config, 1);
    let mut client = Client::connect(&mut broker);
    for path in [
        "/v1/topics/a?access_token=token-of-eve",
        "/v1/topics/a?session=x&access_token=token%2Dof%2Deve",
        "/v1/topics/a?access%5Ftoken=token-of-eve&qos=0",
    ] {
        let number = client.request(&mut broker, "GET", path, &EVENTS, b"");
        let response = client.response(number);
        assert_eq!(response.status, 200, "{path}");
        assert_eq!(response.field("cache-control"), Some("no-store"));
    }
    let wrong = client.request(
        &mut broker,
        "GET",
        "/v1/topics/a?access_token=other",
        &EVENTS,
        b"",
    );
    assert_eq!(problem(&client, wrong), "401 unauthenticated");
    let path = "/v1/topics/a?last&access_token=token-of-eve";
    let fields = [
        ("authorization", "Bearer token-of-eve"),
        ("sterna-retain", "?1"),
    ];
    client.request(&mut broker, "POST", "/v1/topics/a", &fields, b"x");
    let last = client.request(&mut broker, "GET", path, &[], b"");
    assert_eq!(client.response(last).status, 200);
    assert_eq!(
        client.response(last).field("cache-control"),
        Some("no-store")
    );
}

#[test]
fn a_token_comes_once_and_by_one_way() {
    let (_directory, config) = guarded(on);
    let mut broker = Broker::with(&config, 1);
    let mut client = Client::connect(&mut broker);
    let bearer = [("authorization", "Bearer token-of-eve")];
    for (method, query, fields) in [
        ("GET", "access_token=token-of-eve", &bearer[..]),
        (
            "GET",
            "access_token=token-of-eve&access_token=token-of-eve",
            &[],
        ),
        ("GET", "access_token=", &[]),
        ("GET", "access_token", &[]),
        ("GET", "access_token=a%20b", &[]),
        ("GET", "access_token=%ff", &[]),
        ("POST", "access_token=token-of-eve", &[]),
        ("DELETE", "access_token=token-of-eve", &[]),
    ] {
        let path = format!("/v1/topics/a?{query}");
        let number = client.request(&mut broker, method, &path, fields, b"");
        assert_eq!(
            problem(&client, number),
            "400 invalid-parameter",
            "{method} {query}"
        );
    }
}

#[test]
fn a_webtransport_session_comes_in_by_its_address() {
    let (_directory, config) = guarded(on);
    let mut broker = Broker::with(&config, 1);
    broker.wires[0].datagram_bytes = 1_200;
    let features = Features {
        extended_connect: true,
        datagrams: true,
        webtransport: true,
    };
    for (query, status) in [("?access_token=token-of-eve", 200), ("", 401)] {
        let mut client = Client::connect_with(&mut broker, features);
        let path = format!("/v1/topics/a{query}");
        let session = (client.engine)
            .connect_session("localhost", &path, &[], &mut client.out)
            .expect("settings that allow it");
        client.turn(&mut broker);
        assert_eq!(client.response(session.0).status, status, "{query}");
    }
}

/// Neither the log nor an answer has the token, at any level, and neither the good nor the bad one.
#[test]
fn a_token_in_an_address_is_kept_out_of_log_and_answers() {
    let text = Lines::of(tracing::Level::TRACE, |_| {
        let (_directory, config) = guarded(|config| {
            on(config);
            config.listeners = vec![Listener::at("http://127.0.0.1:0")];
        });
        let mut broker = Broker::with(&config, 1);
        for (query, status) in [
            ("access_token=token-of-eve", 200),
            ("access_token=token-of-eve&nothing=1", 400),
            ("access_token=token-of-eve%ff", 400),
            ("access_token=token-of-eve-not", 401),
            ("access_token=token-of-eve&wait=1ms", 204),
        ] {
            for transport in [TransportKind::Tcp, TransportKind::Tls] {
                let peer = broker.open_speaking(b"http/1.1", 0, transport, Vec::new());
                let get = format!("GET /v1/topics/a?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n");
                let mut answer = http1::say(&mut broker, peer, &get);
                broker.advance(10);
                answer += &String::from_utf8_lossy(&broker.take(peer));
                assert!(
                    answer.starts_with(&format!("HTTP/1.1 {status} ")),
                    "{query}: {answer}"
                );
                assert!(!answer.contains("token-of-eve"), "{query}: {answer}");
            }
        }
    });
    assert!(text.contains("HTTP request refused"), "{text}");
    assert!(!text.contains("token-of-eve"), "{text}");
}
