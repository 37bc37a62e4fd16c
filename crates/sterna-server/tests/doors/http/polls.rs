//! Long polls.

use serde_json::Value;

use crate::fixture::Broker;
use crate::h3_client::{Client, Response};
use crate::http::publish::{config, problem};
use crate::http::subscribe::post;

const ARRAY: (&str, &str) = ("accept", "application/json");

fn payloads(response: &Response) -> Vec<String> {
    assert_eq!(response.status, 200);
    assert!(response.is_complete);
    let array: Vec<Value> = serde_json::from_slice(&response.content).expect("an array");
    let text = |value: &Value| value["payload"].as_str().expect("text").to_owned();
    array.iter().map(text).collect()
}

/// The target of the request that goes on.
fn next(response: &Response) -> String {
    let link = response.field("link").expect("a link");
    let target = link
        .strip_prefix('<')
        .and_then(|link| link.strip_suffix(">; rel=\"next\""));
    target.expect("a target").to_owned()
}

#[test]
fn a_poll_ends_with_the_first_messages_and_the_next_goes_on_without_a_gap() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let path = "/v1/topics/a?wait=30s&max=2";
    let first = client.request(&mut broker, "GET", path, &[ARRAY], b"");
    assert_eq!(client.response(first).status, 0, "it waits");
    post(&mut broker, &mut client, "a", "1");
    assert_eq!(payloads(client.response(first)), ["1"]);
    assert_eq!(
        client.response(first).field("content-type"),
        Some("application/json")
    );
    for payload in ["2", "3", "4"] {
        post(&mut broker, &mut client, "a", payload);
    }
    let target = next(client.response(first));
    let second = client.request(&mut broker, "GET", &target, &[ARRAY], b"");
    assert_eq!(payloads(client.response(second)), ["2", "3"]);
    // The answer was lost: the same request has it again.
    let again = client.request(&mut broker, "GET", &target, &[ARRAY], b"");
    assert_eq!(payloads(client.response(again)), ["2", "3"]);
    let target = next(client.response(again));
    let third = client.request(&mut broker, "GET", &target, &[ARRAY], b"");
    assert_eq!(payloads(client.response(third)), ["4"]);
}

#[test]
fn a_poll_that_gets_nothing_ends_empty() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    for (query, wait_ms) in [("wait=500ms", 500), ("wait=2m", 120_000), ("max=3", 30_000)] {
        let path = format!("/v1/topics/a?{query}");
        let number = client.request(&mut broker, "GET", &path, &[], b"");
        broker.advance(wait_ms - 1);
        client.turn(&mut broker);
        assert_eq!(client.response(number).status, 0, "{query}");
        broker.advance(1);
        client.turn(&mut broker);
        let response = client.response(number).clone();
        assert_eq!(
            (response.status, response.content.len()),
            (204, 0),
            "{query}"
        );
        // What comes between two polls waits.
        post(&mut broker, &mut client, "a", query);
        let number = client.request(&mut broker, "GET", &next(&response), &[ARRAY], b"");
        assert_eq!(payloads(client.response(number)), [query]);
    }
    let number = client.request(&mut broker, "GET", "/v1/topics/a?wait=0s", &[], b"");
    assert_eq!(client.response(number).status, 204, "at once");
}

#[test]
fn a_poll_has_what_is_retained_and_every_form() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    client.request(
        &mut broker,
        "POST",
        "/v1/topics/a",
        &[("sterna-retain", "?1")],
        b"x",
    );
    for form in [
        "application/x-ndjson",
        "text/event-stream",
        "application/vnd.sterna.stream",
        "application/json",
    ] {
        let fields = [("accept", form)];
        let number = client.request(&mut broker, "GET", "/v1/topics/a?max=5", &fields, b"");
        let response = client.response(number);
        assert_eq!(response.status, 200);
        assert_eq!(response.field("content-type"), Some(form));
        assert!(response.is_complete && !response.content.is_empty());
    }
}

#[test]
fn a_poll_of_a_durable_session_is_acknowledged_by_the_next() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let path = "/v1/topics/a?session=n&wait=1s";
    let first = client.request(&mut broker, "GET", path, &[ARRAY], b"");
    post(&mut broker, &mut client, "a", "x");
    let target = next(client.response(first));
    assert!(target.ends_with("wait=1s&session=n&after=1"), "{target}");
    // Without the position nothing is acknowledged.
    let again = client.request(&mut broker, "GET", path, &[ARRAY], b"");
    assert_eq!(payloads(client.response(again)), ["x"]);
    let number = client.request(&mut broker, "GET", &target, &[ARRAY], b"");
    broker.advance(1000);
    client.turn(&mut broker);
    assert_eq!(client.response(number).status, 204);
}

#[test]
fn a_poll_that_is_taken_over_is_told() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let path = "/v1/topics/a?session=n&wait=30s";
    let first = client.request(&mut broker, "GET", path, &[], b"");
    let second = client.request(&mut broker, "GET", path, &[], b"");
    assert_eq!(problem(&client, first), "409 session-busy");
    assert_eq!(client.response(second).status, 0);
    client.request(&mut broker, "DELETE", "/v1/sessions/n", &[], b"");
    assert_eq!(problem(&client, second), "404 no-session");
}

#[test]
fn a_poll_may_ask_for_more_than_is_kept_otherwise() {
    let mut broker = Broker::with(&config(|config| config.http.resume_window_messages = 1), 1);
    let mut client = Client::connect(&mut broker);
    let first = client.request(
        &mut broker,
        "GET",
        "/v1/topics/a?wait=0s&max=50",
        &[ARRAY],
        b"",
    );
    let target = next(client.response(first));
    for n in 0..60 {
        post(&mut broker, &mut client, "a", &n.to_string());
    }
    for _ in 0..2 {
        let number = client.request(&mut broker, "GET", &target, &[ARRAY], b"");
        assert_eq!(payloads(client.response(number)).len(), 50);
    }
}
