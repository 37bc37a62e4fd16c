//! Durable subscriptions: acknowledgement, what a session holds, and its end.

use serde_json::{Value, json};
use sterna_h3::Features;

use crate::fixture::Broker;
use crate::h3_client::Client;
use crate::http::publish::{config, problem};
use crate::http::resume::give_up;
use crate::http::subscribe::{post, told};

const PATH: &str = "/v1/topics/a?session=n";

fn acknowledge(broker: &mut Broker, client: &mut Client, content: &str) -> u16 {
    let number = client.request(
        broker,
        "POST",
        "/v1/sessions/n/ack",
        &[],
        content.as_bytes(),
    );
    client.response(number).status
}

fn describe(broker: &mut Broker, client: &mut Client) -> Value {
    let number = client.request(broker, "GET", "/v1/sessions/n", &[], b"");
    let response = client.response(number);
    assert_eq!(response.status, 200);
    assert_eq!(response.field("content-type"), Some("application/json"));
    serde_json::from_slice(&response.content).expect("JSON")
}

#[test]
fn what_is_not_acknowledged_is_sent_again() {
    let mut broker = Broker::with(&config(|config| config.sys.interval_s = 0), 1);
    let mut client = Client::connect(&mut broker);
    let first = client.request(&mut broker, "GET", PATH, &[], b"");
    assert_eq!(client.response(first).field("sterna-session"), Some("n"));
    for payload in ["1", "2", "3", "4", "5"] {
        post(&mut broker, &mut client, "a", payload);
    }
    assert_eq!(acknowledge(&mut broker, &mut client, r#"{"id": 2}"#), 204);
    assert_eq!(
        acknowledge(&mut broker, &mut client, r#"{"ids": [4]}"#),
        204
    );
    assert_eq!(
        acknowledge(&mut broker, &mut client, r#"{"id": 2}"#),
        204,
        "twice is once"
    );
    give_up(&mut broker, &mut client, first);
    broker.advance(6 * 24 * 3600 * 1000);
    let mut client = Client::connect(&mut broker);
    let second = client.request(&mut broker, "GET", PATH, &[], b"");
    assert_eq!(told(&client, second), ["3=3 again", "5=5 again"]);
    let number = client.request(&mut broker, "POST", "/v1/sessions/n/ack?id=5", &[], b"");
    assert_eq!(client.response(number).status, 204);
    give_up(&mut broker, &mut client, second);
    let third = client.request(&mut broker, "GET", PATH, &[], b"");
    assert!(told(&client, third).is_empty());
}

#[test]
fn a_session_ends_when_nobody_listens_for_long() {
    let mut broker = Broker::with(&config(|config| config.http.session_expiry_s = 30), 1);
    let mut client = Client::connect(&mut broker);
    let first = client.request(&mut broker, "GET", PATH, &[], b"");
    post(&mut broker, &mut client, "a", "x");
    give_up(&mut broker, &mut client, first);
    broker.advance(30_001);
    let number = client.request(&mut broker, "GET", "/v1/sessions/n", &[], b"");
    assert_eq!(problem(&client, number), "404 no-session");
    let number = client.request(&mut broker, "POST", "/v1/sessions/n/ack?id=1", &[], b"");
    assert_eq!(problem(&client, number), "404 no-session");
    // The position in a session of that name that is gone says nothing of the next.
    let path = "/v1/topics/a?session=n&after=1";
    let second = client.request(&mut broker, "GET", path, &[], b"");
    post(&mut broker, &mut client, "a", "y");
    assert_eq!(told(&client, second), ["1=y"]);
}

#[test]
fn the_response_waits_for_acknowledgements() {
    let mut broker = Broker::with(&config(|config| config.http.maximum_unacknowledged = 2), 2);
    let mut client = Client::connect(&mut broker);
    let mut other = Client::connect_on(&mut broker, 1, Features::default(), Vec::new());
    let first = client.request(&mut broker, "GET", PATH, &[], b"");
    for payload in ["1", "2", "3", "4"] {
        post(&mut broker, &mut client, "a", payload);
    }
    assert_eq!(told(&client, first), ["1=1", "2=2"]);
    let told_of = describe(&mut broker, &mut other);
    assert_eq!(
        (&told_of["pending"], &told_of["unacknowledged"]),
        (&json!(2), &json!(2))
    );
    // From another connection, on another shard.
    assert_eq!(acknowledge(&mut broker, &mut other, r#"{"id": 1}"#), 204);
    client.turn(&mut broker);
    assert_eq!(told(&client, first), ["1=1", "2=2", "3=3"]);
    assert_eq!(
        acknowledge(&mut broker, &mut client, r#"{"ids": [2, 3]}"#),
        204
    );
    assert_eq!(told(&client, first), ["1=1", "2=2", "3=3", "4=4"]);
}

#[test]
fn the_response_waits_when_much_is_not_acknowledged() {
    let mut broker = Broker::with(
        &config(|config| config.http.maximum_unacknowledged_bytes = 10),
        1,
    );
    let mut client = Client::connect(&mut broker);
    let first = client.request(&mut broker, "GET", PATH, &[], b"");
    for payload in ["12345678", "2", "3"] {
        post(&mut broker, &mut client, "a", payload);
    }
    // The second finds nine bytes, the third eleven.
    assert_eq!(told(&client, first), ["1=12345678", "2=2"]);
    assert_eq!(
        acknowledge(&mut broker, &mut client, r#"{"ids": [2]}"#),
        204
    );
    assert_eq!(told(&client, first), ["1=12345678", "2=2", "3=3"]);
}

#[test]
fn a_session_says_what_it_holds() {
    let mut broker = Broker::with(&config(|_| {}), 2);
    let mut client = Client::connect(&mut broker);
    let mut other = Client::connect_on(&mut broker, 1, Features::default(), Vec::new());
    let path = "/v1/topics/b?session=n&filter=a";
    let first = client.request(&mut broker, "GET", path, &[], b"");
    post(&mut broker, &mut client, "a", "x");
    let expected = json!({
        "session": "n", "connected": true, "pending": 0, "pending_bytes": 0,
        "unacknowledged": 1, "filters": ["a", "b"],
    });
    assert_eq!(describe(&mut broker, &mut client), expected);
    assert_eq!(describe(&mut broker, &mut other), expected, "on any shard");
    give_up(&mut broker, &mut client, first);
    post(&mut broker, &mut client, "a", "yz");
    let told_of = describe(&mut broker, &mut other);
    assert_eq!(
        (&told_of["connected"], &told_of["pending"]),
        (&json!(false), &json!(1))
    );
    assert_eq!(told_of["pending_bytes"], 3);
    // Filters of later requests are added.
    client.request(&mut broker, "GET", "/v1/topics/c?session=n", &[], b"");
    assert_eq!(
        describe(&mut broker, &mut other)["filters"],
        json!(["a", "b", "c"])
    );
    // And none need be named.
    let resumed = client.request(&mut broker, "GET", "/v1/topics?session=n", &[], b"");
    assert_eq!(told(&client, resumed), ["1=x again", "2=yz again"]);
    assert_eq!(
        describe(&mut broker, &mut other)["filters"],
        json!(["a", "b", "c"])
    );
}

#[test]
fn a_session_can_be_ended_from_anywhere() {
    let mut broker = Broker::with(&config(|_| {}), 2);
    let mut client = Client::connect(&mut broker);
    let mut other = Client::connect_on(&mut broker, 1, Features::default(), Vec::new());
    let first = client.request(&mut broker, "GET", PATH, &[], b"");
    let number = other.request(&mut broker, "DELETE", "/v1/sessions/n", &[], b"");
    assert_eq!(other.response(number).status, 204);
    client.turn(&mut broker);
    assert!(client.response(first).is_complete);
    let number = other.request(&mut broker, "DELETE", "/v1/sessions/n", &[], b"");
    assert_eq!(problem(&other, number), "404 no-session");
}

#[test]
fn what_is_no_acknowledgement_is_refused_with_its_reason() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    client.request(&mut broker, "GET", PATH, &[], b"");
    post(&mut broker, &mut client, "a", "x");
    for (path, content, expected) in [
        ("/v1/sessions/n/ack", "", "400 invalid-content"),
        ("/v1/sessions/n/ack", "{}", "400 invalid-content"),
        ("/v1/sessions/n/ack", "[1]", "400 invalid-content"),
        ("/v1/sessions/n/ack", r#"{"id": -1}"#, "400 invalid-content"),
        (
            "/v1/sessions/n/ack",
            r#"{"id": 1, "ids": [1]}"#,
            "400 invalid-content",
        ),
        (
            "/v1/sessions/n/ack",
            r#"{"id": 1, "x": 1}"#,
            "400 invalid-content",
        ),
        ("/v1/sessions/n/ack", r#"{"id": 2}"#, "400 invalid-content"),
        (
            "/v1/sessions/n/ack?id=1",
            r#"{"id": 1}"#,
            "400 invalid-content",
        ),
        ("/v1/sessions/n/ack?id=x", "", "400 invalid-parameter"),
        ("/v1/sessions/n/ack?x=1", "", "400 invalid-parameter"),
        ("/v1/sessions/m/ack?id=1", "", "404 no-session"),
        ("/v1/sessions/a%20b/ack?id=1", "", "400 invalid-parameter"),
        ("/v1/sessions/n/nack", "", "404 no-resource"),
    ] {
        let number = client.request(&mut broker, "POST", path, &[], content.as_bytes());
        assert_eq!(problem(&client, number), expected, "{path} {content}");
    }
}

#[test]
fn a_session_has_a_limit_of_filters() {
    let mut broker = Broker::with(&config(|config| config.http.maximum_filters = 2), 1);
    let mut client = Client::connect(&mut broker);
    for (path, expected) in [
        ("/v1/topics/a?session=n&filter=b", 200),
        ("/v1/topics/b?session=n", 200),
        ("/v1/topics/c?session=n", 429),
    ] {
        let number = client.request(&mut broker, "GET", path, &[], b"");
        assert_eq!(client.response(number).status, expected, "{path}");
    }
    let filters = describe(&mut broker, &mut client)["filters"].clone();
    assert_eq!(filters, json!(["a", "b"]), "the session is left as it was");
}
