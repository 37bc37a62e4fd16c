//! HTTP/3, as it is carried.

use sterna_h3::Content;
use sterna_net::StreamId;
use sterna_server::config::Config;

use crate::fixture::Broker;
use crate::h3_client::{Client, Order};

/// What no resource answers to.
const NOWHERE: &str = "/nowhere";

fn broker_with(change: impl FnOnce(&mut Config)) -> Broker {
    let mut config = Config::default();
    change(&mut config);
    Broker::with(&config, 1)
}

#[test]
fn a_request_is_answered_with_one_write() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    assert!(client.engine.peer_settings().is_some());
    let before = broker.wires[0].sends;
    let number = client.request(&mut broker, "GET", NOWHERE, &[], b"");
    assert_eq!(broker.wires[0].sends, before + 1);
    let response = client.response(number);
    assert_eq!(response.status, 404);
    assert_eq!(
        response.field("date"),
        Some("Tue, 14 Nov 2023 22:13:20 GMT")
    );
    assert!(response.is_complete);
    // HEAD and OPTIONS, with and without content, one after the other.
    for method in ["HEAD", "OPTIONS", "POST"] {
        let number = client.request(&mut broker, method, NOWHERE, &[], b"x");
        let response = client.response(number);
        assert!(response.status > 0 && response.is_complete, "{method}");
        assert!(method != "HEAD" || response.content.is_empty());
    }
}

#[test]
fn a_content_may_come_in_any_pieces() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let number = client.begin("POST", NOWHERE, &[], Content::Whole(&[7; 5000]));
    let orders = std::mem::take(&mut client.out.0);
    for order in orders {
        match order {
            Order::Bytes(stream, bytes) => {
                for byte in bytes.chunks(1 + stream.0 as usize % 3) {
                    broker.send_on(client.peer, StreamId(stream.0), byte);
                }
            }
            Order::Finish(stream) => {
                assert_eq!(client.response(number).status, 0);
                broker.finish(client.peer, StreamId(stream.0));
            }
            _ => panic!("a plain request"),
        }
    }
    client.turn(&mut broker);
    assert_eq!(client.response(number).status, 404);
}

#[test]
fn what_is_too_large_is_refused_before_it_is_complete() {
    let mut broker = broker_with(|config| {
        config.http.maximum_content_bytes = 8;
        config.http.maximum_target_bytes = 32;
        config.http.maximum_fields_bytes = 1024;
        config.http.maximum_assembling_bytes = 12;
    });
    let mut client = Client::connect(&mut broker);
    // By its length, and by what comes.
    let fields = [("content-length", "9")];
    let told = client.begin("POST", NOWHERE, &fields, Content::Streamed);
    let counted = client.begin("POST", NOWHERE, &[], Content::Streamed);
    let id = sterna_h3::StreamId(counted);
    let sent = client.engine.send(id, b"123456789", &mut client.out);
    sent.expect("an open stream");
    client.turn(&mut broker);
    for number in [told, counted] {
        let response = client.response(number);
        assert_eq!(response.status, 413);
        assert!(response.is_complete);
    }
    let stopped: Vec<u64> = (broker.wires[0].stopped.iter())
        .map(|(_, stream, _)| stream.0)
        .collect();
    assert_eq!(stopped, [told, counted], "the rest is not wanted");
    let long = format!("/{}", "x".repeat(40));
    let number = client.request(&mut broker, "GET", &long, &[], b"");
    assert_eq!(client.response(number).status, 414);
    // A client that knows the limit keeps to it.
    let mut fields = Client::connect_deaf(&mut broker);
    for (bytes, problem) in [(1_100, true), (4_000, false)] {
        let value = "x".repeat(bytes);
        let number = fields.request(&mut broker, "GET", "/", &[("a", &value)], b"");
        let response = fields.response(number);
        assert_eq!(response.status, 431);
        assert_eq!(!response.content.is_empty(), problem);
    }
    // What a whole connection may have under way.
    for status in [0, 503] {
        let number = client.begin("POST", NOWHERE, &[], Content::Streamed);
        let id = sterna_h3::StreamId(number);
        let sent = client.engine.send(id, b"1234567", &mut client.out);
        sent.expect("an open stream");
        client.turn(&mut broker);
        assert_eq!(client.response(number).status, status);
    }
    assert!(!broker.is_closed(client.peer));
}

#[test]
fn what_comes_too_slowly_is_not_waited_for() {
    let mut broker = broker_with(|config| {
        config.http.fields_timeout_ms = 1_000;
        config.http.content_timeout_ms = 3_000;
    });
    let mut client = Client::connect(&mut broker);
    let slow = client.begin("POST", NOWHERE, &[], Content::Streamed);
    client.turn(&mut broker);
    // A head of which one byte has come.
    let headless = slow + 4;
    broker.send_on(client.peer, StreamId(headless), &[1]);
    broker.advance(1_100);
    client.turn(&mut broker);
    assert_eq!(client.response(headless).reset, Some(0x10d));
    assert_eq!(client.response(slow).status, 0);
    broker.advance(2_000);
    client.turn(&mut broker);
    assert_eq!(client.response(slow).status, 408);
    assert!(client.response(slow).is_complete);
    assert!(!broker.is_closed(client.peer));
}

#[test]
fn a_client_that_gives_up_again_and_again_is_cut_off() {
    let mut broker = broker_with(|config| config.http.maximum_resets = 20);
    let mut client = Client::connect(&mut broker);
    for round in 0..100 {
        let number = client.begin("POST", NOWHERE, &[], Content::Streamed);
        client.flush(&mut broker);
        broker.reset(client.peer, StreamId(number), 0x10c);
        if broker.is_closed(client.peer) {
            assert_eq!(round, 20);
            return;
        }
    }
    panic!("it goes on");
}

#[test]
fn what_breaks_the_rules_ends_the_connection_with_a_code() {
    let mut broker = Broker::new();
    let client = Client::connect(&mut broker);
    // DATA before HEADERS.
    broker.send_on(client.peer, StreamId(0), &[0, 1, b'x']);
    assert!(broker.is_closed(client.peer));
    assert_eq!(broker.wires[0].close_codes.last(), Some(&0x105));
}

#[test]
fn a_broker_that_stops_says_so() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    client.request(&mut broker, "GET", NOWHERE, &[], b"");
    let half = client.begin("POST", NOWHERE, &[], Content::Streamed);
    client.turn(&mut broker);
    broker.stop();
    client.read(&mut broker);
    assert_eq!(client.heard.goaway, Some(half + 4));
    assert_eq!(client.response(half).reset, Some(0x10b), "may be repeated");
    assert!(broker.finished());
    assert_eq!(broker.wires[0].close_codes.last(), Some(&0x100));
}
