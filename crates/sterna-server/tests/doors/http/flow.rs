//! Subscribers that read slowly, or not at all.

use sterna_broker::{Limits, NoStore};
use sterna_server::config::Config;

use crate::fixture::Broker;
use crate::h3_client::Client;
use crate::http::publish::config;
use crate::http::resume::session_of;
use crate::http::subscribe::{post, told};

/// More than the transport takes of one connection.
const FULL_BYTES: usize = 1 << 30;

fn quiet(change: impl FnOnce(&mut Config)) -> Config {
    config(|config| {
        config.http.heartbeat_interval_s = 0;
        change(config);
    })
}

#[test]
fn messages_wait_for_room_in_their_order() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let number = client.request(&mut broker, "GET", "/v1/topics/a", &[], b"");
    post(&mut broker, &mut client, "a", "1");
    broker.wires[0].unsent_bytes = FULL_BYTES;
    for payload in ["2", "3", "4"] {
        post(&mut broker, &mut client, "a", payload);
    }
    assert_eq!(told(&client, number), ["1=1"]);
    broker.wires[0].unsent_bytes = 0;
    broker.writable(client.peer);
    client.turn(&mut broker);
    assert_eq!(told(&client, number), ["1=1", "2=2", "3=3", "4=4"]);
}

#[test]
fn what_is_sent_again_waits_for_room_too() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let path = "/v1/topics/a?session=n";
    let first = client.request(&mut broker, "GET", path, &[], b"");
    let large = "x".repeat(40_000);
    for _ in 0..3 {
        post(&mut broker, &mut client, "a", &large);
        broker.writable(client.peer);
    }
    client.turn(&mut broker);
    assert_eq!(told(&client, first).len(), 3);
    broker.cut(client.peer);
    let mut client = Client::connect(&mut broker);
    broker.wires[0].unsent_bytes = FULL_BYTES;
    let second = client.request(&mut broker, "GET", path, &[], b"");
    assert_eq!(client.response(second).status, 200);
    assert!(client.response(second).content.is_empty());
    broker.wires[0].unsent_bytes = 0;
    // A response's share of the room at a time, which is less than a message.
    for _ in 0..4 {
        broker.writable(client.peer);
    }
    client.turn(&mut broker);
    let again = told(&client, second);
    assert_eq!(again.len(), 3);
    assert!(again.iter().all(|line| line.ends_with(" again")));
}

/// What is kept of what was sent makes room: a reader that keeps up gets everything.
#[test]
fn what_is_kept_for_a_cut_response_never_holds_the_next_message_up() {
    let limits = Limits {
        queued_bytes: 100_000,
        ..Limits::default()
    };
    let mut broker = Broker::restored(&quiet(|_| {}), 1, limits, || Box::new(NoStore));
    let mut client = Client::connect(&mut broker);
    let number = client.request(&mut broker, "GET", "/v1/topics/a", &[], b"");
    let large = "x".repeat(40_000);
    for count in 1..=10 {
        post(&mut broker, &mut client, "a", &large);
        broker.writable(client.peer);
        client.turn(&mut broker);
        assert_eq!(told(&client, number).len(), count);
    }
}

#[test]
fn the_queue_of_a_slow_subscriber_is_bounded_and_drops_what_is_new() {
    let limits = Limits {
        queued_messages: 2,
        ..Limits::default()
    };
    let mut broker = Broker::restored(&quiet(|_| {}), 1, limits, || Box::new(NoStore));
    let mut client = Client::connect(&mut broker);
    let number = client.request(&mut broker, "GET", "/v1/topics/a", &[], b"");
    broker.wires[0].unsent_bytes = FULL_BYTES;
    for payload in ["1", "2", "3", "4"] {
        post(&mut broker, &mut client, "a", payload);
    }
    broker.wires[0].unsent_bytes = 0;
    broker.writable(client.peer);
    client.turn(&mut broker);
    assert_eq!(told(&client, number), ["1=1", "2=2"]);
}

#[test]
fn a_response_that_takes_nothing_is_cut_off_and_its_session_goes_on() {
    let mut broker = Broker::with(&quiet(|_| {}), 1);
    let mut client = Client::connect(&mut broker);
    let number = client.request(&mut broker, "GET", "/v1/topics/a", &[], b"");
    let session = session_of(&client, number);
    // Something is on its way and stays there.
    broker.wires[0].unsent_bytes = 1000;
    post(&mut broker, &mut client, "a", "x");
    broker.advance(59_000);
    client.turn(&mut broker);
    assert_eq!(client.response(number).reset, None);
    broker.advance(2_000);
    client.turn(&mut broker);
    assert!(client.response(number).reset.is_some());
    assert!(!client.response(number).is_complete);
    broker.wires[0].unsent_bytes = 0;
    let path = format!("/v1/topics/a?session={session}&after=0");
    let number = client.request(&mut broker, "GET", &path, &[], b"");
    assert_eq!(told(&client, number), ["1=x again"]);
}

#[test]
fn a_response_that_takes_something_now_and_then_lives() {
    let mut broker = Broker::with(&quiet(|_| {}), 1);
    let mut client = Client::connect(&mut broker);
    let number = client.request(&mut broker, "GET", "/v1/topics/a", &[], b"");
    broker.wires[0].unsent_bytes = 5000;
    post(&mut broker, &mut client, "a", &"x".repeat(5000));
    for left in [4000, 3000, 2000, 1000, 0] {
        broker.advance(50_000);
        broker.wires[0].unsent_bytes = left;
        broker.writable(client.peer);
    }
    client.turn(&mut broker);
    assert_eq!(client.response(number).reset, None);
    post(&mut broker, &mut client, "a", "y");
    assert_eq!(told(&client, number).len(), 2);
}

#[test]
fn many_subscriptions_of_one_connection_all_get_their_share() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let numbers: Vec<u64> = (0..50)
        .map(|_| client.request(&mut broker, "GET", "/v1/topics/a", &[], b""))
        .collect();
    for n in 0..20 {
        post(&mut broker, &mut client, "a", &n.to_string());
    }
    for number in numbers {
        assert_eq!(told(&client, number).len(), 20);
    }
}

#[test]
fn a_response_ends_behind_what_is_queued() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let number = client.request(&mut broker, "GET", "/v1/topics/a", &[], b"");
    broker.wires[0].unsent_bytes = FULL_BYTES;
    // As many as are sent in one turn.
    for _ in 0..256 {
        post(&mut broker, &mut client, "a", "x");
    }
    client.request(&mut broker, "DELETE", "/v1/topics/a", &[], b"");
    assert!(!client.response(number).is_complete);
    broker.wires[0].unsent_bytes = 0;
    for _ in 0..3 {
        broker.writable(client.peer);
        client.turn(&mut broker);
    }
    assert_eq!(told(&client, number).len(), 256);
    assert!(client.response(number).is_complete);
}

#[test]
fn when_the_broker_stops_every_response_ends() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let stream = client.request(&mut broker, "GET", "/v1/topics/a", &[], b"");
    let poll = client.request(&mut broker, "GET", "/v1/topics/a?wait=30s", &[], b"");
    broker.stop();
    client.turn(&mut broker);
    assert!(client.response(stream).is_complete);
    let response = client.response(poll);
    assert_eq!(response.status, 503);
    assert!(String::from_utf8_lossy(&response.content).contains("urn:sterna:problem:stopping"));
}
