//! GET: messages as they come.

use serde_json::{Value, json};
use sterna_mqtt::{QoS, Version};
use sterna_server::config::Config;

use crate::fixture::Broker;
use crate::h3_client::Client;
use crate::http::publish::{config, problem};

const V5: Version = Version::V5;

/// The lines that have come for a request, heartbeats left out.
pub(crate) fn lines(client: &Client, number: u64) -> Vec<Value> {
    let text = String::from_utf8(client.response(number).content.clone()).expect("text");
    text.lines()
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// Ids, payloads and marks of redelivery of what has come.
pub(crate) fn told(client: &Client, number: u64) -> Vec<String> {
    let line = |line: &Value| {
        let mark = if line["redelivered"] == true {
            " again"
        } else {
            ""
        };
        format!(
            "{}={}{mark}",
            line["id"],
            line["payload"].as_str().unwrap_or("?")
        )
    };
    lines(client, number).iter().map(line).collect()
}

pub(crate) fn post(broker: &mut Broker, client: &mut Client, topic: &str, payload: &str) {
    let path = format!("/v1/topics/{topic}");
    let number = client.request(broker, "POST", &path, &[], payload.as_bytes());
    assert_eq!(client.response(number).status, 204);
}

#[test]
fn messages_come_as_lines_of_json() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let number = client.request(&mut broker, "GET", "/v1/topics/a/+", &[], b"");
    let response = client.response(number);
    assert_eq!(response.status, 200);
    assert!(!response.is_complete);
    assert_eq!(response.field("content-type"), Some("application/x-ndjson"));
    assert!(
        response
            .field("sterna-session")
            .expect("a name")
            .starts_with('~')
    );
    assert_eq!(response.field("cache-control"), Some("no-store"));
    let publisher = broker.client(V5, "p");
    broker.publish(publisher, V5, "a/b", "x", QoS::AtMostOnce);
    broker.publish(publisher, V5, "a/c", "y", QoS::AtLeastOnce);
    broker.publish(publisher, V5, "b", "z", QoS::AtLeastOnce);
    client.turn(&mut broker);
    let expected = [
        json!({"topic": "a/b", "payload": "x", "qos": 0}),
        json!({"id": 1, "topic": "a/c", "payload": "y", "qos": 1}),
    ];
    assert_eq!(lines(&client, number), expected);
}

#[test]
fn messages_come_as_events_that_browsers_resume_from() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let accept = [("accept", "text/event-stream")];
    let number = client.request(&mut broker, "GET", "/v1/topics/a", &accept, b"");
    post(&mut broker, &mut client, "a", "x");
    let response = client.response(number);
    assert_eq!(response.field("content-type"), Some("text/event-stream"));
    let session = response.field("sterna-session").expect("a name");
    let text = String::from_utf8(response.content.clone()).expect("text");
    let data = text
        .strip_prefix(&format!("id: {session}:1\ndata: "))
        .and_then(|text| text.strip_suffix("\n\n"));
    let value: Value = serde_json::from_str(data.expect("an event")).expect("JSON");
    assert_eq!(
        value,
        json!({"id": 1, "topic": "a", "payload": "x", "qos": 1})
    );
}

#[test]
fn messages_come_as_frames() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let accept = [("accept", "application/vnd.sterna.stream")];
    let number = client.request(&mut broker, "GET", "/v1/topics/a", &accept, b"");
    post(&mut broker, &mut client, "a", "x");
    let large = "y".repeat(5000);
    post(&mut broker, &mut client, "a", &large);
    let content = client.response(number).content.clone();
    // Length, Id 1, Flags QoS 1, topic, no properties, payload.
    assert_eq!(content[..7], [6, 1, 1, 1, b'a', 0, b'x']);
    assert_eq!(content[7..14], [0x53, 0x8d, 2, 1, 1, b'a', 0]);
    assert_eq!(&content[14..], large.as_bytes());
}

#[test]
fn retained_messages_come_first_unless_they_are_not_wanted() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let retain = [("sterna-retain", "?1")];
    client.request(&mut broker, "POST", "/v1/topics/a/1", &retain, b"x");
    let number = client.request(&mut broker, "GET", "/v1/topics/a/%23", &[], b"");
    let expected = json!({"id": 1, "topic": "a/1", "payload": "x", "qos": 1, "retain": true});
    assert_eq!(lines(&client, number), [expected]);
    let path = "/v1/topics/a/%23?retained=no";
    let number = client.request(&mut broker, "GET", path, &[], b"");
    assert_eq!(client.response(number).status, 200);
    assert!(lines(&client, number).is_empty());
}

#[test]
fn several_filters_are_one_subscription() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let path = "/v1/topics/a?filter=b&filter=c/%2B&qos=0";
    let number = client.request(&mut broker, "GET", path, &[], b"");
    for topic in ["a", "b", "c/d", "d"] {
        post(&mut broker, &mut client, topic, topic);
    }
    let got: Vec<Value> = lines(&client, number);
    assert_eq!(got.len(), 3);
    assert!(
        got.iter()
            .all(|line| line["qos"] == 0 && line.get("id").is_none())
    );
}

#[test]
fn what_cannot_be_subscribed_to_is_refused_with_its_reason() {
    let mut broker = Broker::with(&config(|config| config.http.maximum_subscriptions = 2), 1);
    let mut client = Client::connect(&mut broker);
    for (path, accept, expected) in [
        ("/v1/topics/a%23", "*/*", "400 invalid-filter"),
        ("/v1/topics/", "*/*", "400 invalid-filter"),
        ("/v1/topics/$share/a", "*/*", "400 invalid-filter"),
        ("/v1/topics", "*/*", "400 invalid-parameter"),
        ("/v1/topics/a?nonsense=1", "*/*", "400 invalid-parameter"),
        ("/v1/topics/a?qos=7", "*/*", "400 invalid-parameter"),
        ("/v1/topics/a", "text/html", "406 not-acceptable"),
        ("/v1/topics/a", "application/json", "406 not-acceptable"),
    ] {
        let number = client.request(&mut broker, "GET", path, &[("accept", accept)], b"");
        assert_eq!(problem(&client, number), expected, "{path} {accept}");
    }
    for _ in 0..2 {
        let number = client.request(&mut broker, "GET", "/v1/topics/a", &[], b"");
        assert_eq!(client.response(number).status, 200);
    }
    let number = client.request(&mut broker, "GET", "/v1/topics/a", &[], b"");
    assert_eq!(problem(&client, number), "429 too-many-subscriptions");
    assert_eq!(client.response(number).field("retry-after"), Some("1"));
}

#[test]
fn a_silent_response_says_that_it_lives() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let forms = [
        "application/x-ndjson",
        "text/event-stream",
        "application/vnd.sterna.stream",
    ];
    let numbers = forms
        .map(|form| client.request(&mut broker, "GET", "/v1/topics/a", &[("accept", form)], b""));
    broker.advance(14_999);
    client.turn(&mut broker);
    assert!(
        numbers
            .iter()
            .all(|number| client.response(*number).content.is_empty())
    );
    broker.advance(2);
    client.turn(&mut broker);
    let contents = numbers.map(|number| client.response(number).content.clone());
    assert_eq!(contents, [b"\n".to_vec(), b":\n\n".to_vec(), vec![0]]);
    // What comes counts as a sign of life, too.
    broker.advance(10_000);
    post(&mut broker, &mut client, "a", "x");
    broker.advance(14_000);
    client.turn(&mut broker);
    assert!(client.response(numbers[0]).content.ends_with(b"}\n"));
    broker.advance(1_001);
    client.turn(&mut broker);
    assert!(client.response(numbers[0]).content.ends_with(b"}\n\n"));
}

#[test]
fn messages_of_every_protocol_come_and_go() {
    let mut broker = Broker::with(&Config::default(), 2);
    let mut client = Client::connect_on(&mut broker, 1, sterna_h3::Features::default(), Vec::new());
    let number = client.request(&mut broker, "GET", "/v1/topics/a", &[], b"");
    let mqtt = broker.client(V5, "m");
    broker.subscribe(mqtt, V5, "a", QoS::AtLeastOnce);
    broker.publish(mqtt, V5, "a", "from mqtt", QoS::AtLeastOnce);
    client.turn(&mut broker);
    assert_eq!(told(&client, number), ["1=from mqtt"]);
    let got = broker.told(mqtt, V5);
    assert!(got.contains(&"PUBLISH1 a=from mqtt".to_owned()), "{got:?}");
    post(&mut broker, &mut client, "a", "from http");
    assert_eq!(broker.told(mqtt, V5), ["PUBLISH1 a=from http"]);
}
