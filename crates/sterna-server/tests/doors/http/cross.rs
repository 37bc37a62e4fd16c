//! One topic space: HTTP beside MQTT and AMQP, and every version of HTTP beside the others.

use serde_json::json;
use sterna_amqp::messaging::Source;
use sterna_broker::{Limits, NoStore};
use sterna_h3::Features;
use sterna_mqtt::{QoS, Version};
use sterna_net::TransportKind;
use sterna_server::config::Listener;

use crate::amqp_client;
use crate::fixture::Broker;
use crate::h3_client::Client;
use crate::http::publish::{config, problem};
use crate::http::subscribe::{lines, post, told};

const V5: Version = Version::V5;

#[test]
fn what_one_protocol_publishes_all_receive() {
    let mut broker = Broker::with(&config(|_| {}), 3);
    let mqtt = broker.client(V5, "m");
    broker.subscribe(mqtt, V5, "a/#", QoS::AtLeastOnce);
    let mut amqp = amqp_client::Client::start(&mut broker, amqp_client::Start::new("c").on(1));
    let session = amqp.begin(&mut broker);
    amqp.receiver(&mut broker, session, "r", Source::new("a/#"), 10);
    let mut http = Client::connect_on(&mut broker, 2, Features::default(), Vec::new());
    let number = http.request(&mut broker, "GET", "/v1/topics/a/%23", &[], b"");

    broker.publish(mqtt, V5, "a/m", "from mqtt", QoS::AtLeastOnce);
    let sender = amqp.sender(&mut broker, session, "a/c");
    amqp.send(&mut broker, sender, 1, "from amqp");
    let fields = [
        ("content-type", "text/plain"),
        ("sterna-user-property", "n=v"),
        ("sterna-correlation-data", "YWJj"),
        ("sterna-response-topic", "re"),
    ];
    http.request(&mut broker, "POST", "/v1/topics/a/h", &fields, b"from http");
    http.turn(&mut broker);

    let expected = [
        json!({"id": 1, "topic": "a/m", "payload": "from mqtt", "qos": 1}),
        json!({"id": 2, "topic": "a/c", "payload": "from amqp", "qos": 1}),
        json!({
            "id": 3, "topic": "a/h", "payload": "from http", "qos": 1,
            "content_type": "text/plain", "correlation_data": "YWJj", "response_topic": "re",
            "user_properties": [["n", "v"]],
        }),
    ];
    assert_eq!(lines(&http, number), expected);
    amqp.turn(&mut broker);
    let texts = amqp.accept_all(&mut broker);
    assert_eq!(texts, ["from mqtt", "from amqp", "from http"]);
    let told = broker.told(mqtt, V5);
    for expected in [
        "PUBLISH1 a/m=from mqtt",
        "PUBLISH1 a/c=from amqp",
        "PUBLISH1 a/h=from http",
    ] {
        assert!(told.iter().any(|line| line == expected), "{told:?}");
    }
}

#[test]
fn a_queue_that_is_full_refuses_the_message_as_a_whole() {
    let mut broker = Broker::with_small_queue(&config(|_| {}), 1);
    let mut client = Client::connect(&mut broker);
    let number = client.request(&mut broker, "GET", "/v1/topics/a", &[], b"");
    post(&mut broker, &mut client, "a", "x");
    let full = client.request(&mut broker, "POST", "/v1/topics/a", &[], b"y");
    assert_eq!(problem(&client, full), "503 queue-full");
    assert_eq!(client.response(full).field("retry-after"), Some("1"));
    assert_eq!(told(&client, number), ["1=x"], "nobody got it");
    // A kept queue outlives the topic.
    client.request(&mut broker, "DELETE", "/v1/topics/a", &[], b"");
    let full = client.request(&mut broker, "POST", "/v1/topics/a", &[], b"y");
    assert_eq!(problem(&client, full), "503 queue-full");
}

#[test]
fn what_cannot_be_retained_is_delivered_and_said_so() {
    let limits = Limits {
        retained_messages: 1,
        ..Limits::default()
    };
    let mut broker = Broker::restored(&config(|_| {}), 1, limits, || Box::new(NoStore));
    let mut client = Client::connect(&mut broker);
    let number = client.request(&mut broker, "GET", "/v1/topics/%23", &[], b"");
    let fields = [("sterna-retain", "?1"), ("idempotency-key", "k")];
    client.request(&mut broker, "POST", "/v1/topics/a", &fields[..1], b"x");
    for _ in 0..2 {
        // With a key, it is delivered once whatever the answer was.
        let full = client.request(&mut broker, "POST", "/v1/topics/b", &fields, b"y");
        assert_eq!(problem(&client, full), "507 retained-full");
    }
    assert_eq!(told(&client, number), ["1=x", "2=y"]);
}

#[test]
fn sessions_have_a_limit() {
    let limits = Limits {
        sessions: 1,
        ..Limits::default()
    };
    let mut broker = Broker::restored(&config(|_| {}), 1, limits, || Box::new(NoStore));
    let mut client = Client::connect(&mut broker);
    client.request(&mut broker, "GET", "/v1/topics/a", &[], b"");
    let number = client.request(&mut broker, "GET", "/v1/topics/a", &[], b"");
    assert_eq!(problem(&client, number), "507 too-many-sessions");
}

#[test]
fn every_version_of_http_has_the_same_interface() {
    let config = config(|config| config.listeners = vec![Listener::at("http://127.0.0.1:0")]);
    let mut broker = Broker::with(&config, 1);
    let mut newest = Client::connect(&mut broker);
    let over_3 = newest.request(&mut broker, "GET", "/v1/topics/a", &[], b"");
    let oldest = broker.open_speaking(b"", 0, TransportKind::Tcp, Vec::new());
    broker.send(
        oldest,
        b"GET /v1/topics/a HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n",
    );
    let head = String::from_utf8(broker.take(oldest)).expect("text");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(
        head.contains("content-type: text/event-stream\r\n"),
        "{head}"
    );
    let publisher = broker.open_speaking(b"", 0, TransportKind::Tcp, Vec::new());
    broker.send(
        publisher,
        b"POST /v1/topics/a HTTP/1.1\r\nHost: localhost\r\nSterna-QoS: 2\r\n\
          Content-Length: 1\r\n\r\nx",
    );
    let answer = String::from_utf8(broker.take(publisher)).expect("text");
    assert!(
        answer.starts_with("HTTP/1.1 204 No Content\r\n"),
        "{answer}"
    );
    post(&mut broker, &mut newest, "a", "y");
    assert_eq!(told(&newest, over_3), ["1=x", "2=y"]);
    let events = String::from_utf8(broker.take(oldest)).expect("text");
    assert!(events.contains(":1\ndata: {"), "{events}");
    assert!(events.contains(r#""payload":"y""#), "{events}");
    // Its end is the end of the subscription, which is kept for a while.
    broker.cut(oldest);
    let (sessions, _) = broker.sessions(0);
    assert_eq!(sessions.len(), 2);
    broker.advance(60_001);
    assert_eq!(broker.sessions(0).0.len(), 1);
}

#[test]
fn counts_are_published_with_those_of_the_other_protocols() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let number = client.request(&mut broker, "GET", "/v1/topics/a", &[], b"");
    for payload in ["x", "y"] {
        post(&mut broker, &mut client, "a", payload);
    }
    assert_eq!(told(&client, number).len(), 2);
    broker.advance(10_001);
    let value = |broker: &mut Broker, client: &mut Client, topic: &str| {
        let path = format!("/v1/topics/$SYS/broker/{topic}?last");
        let number = client.request(broker, "GET", &path, &[], b"");
        let response = client.response(number);
        assert_eq!(response.status, 200, "{topic}");
        String::from_utf8(response.content.clone()).expect("text")
    };
    for (topic, expected) in [
        ("publish/messages/received", "2"),
        ("publish/messages/sent", "2"),
        ("messages/received", "3"),
        ("clients/connected", "1"),
    ] {
        assert_eq!(value(&mut broker, &mut client, topic), expected, "{topic}");
    }
}
