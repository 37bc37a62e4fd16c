//! POST: publishing.

use sterna_mqtt::{QoS, Version};
use sterna_server::config::{Authorization, Config};

use crate::fixture::Broker;
use crate::h3_client::Client;
use crate::http::http1;

const V5: Version = Version::V5;

pub(crate) fn config(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = crate::fixture::everybodys();
    change(&mut config);
    config
}

/// The `type` of a problem, without what all begin with.
pub(crate) fn problem(client: &Client, number: u64) -> String {
    let response = client.response(number);
    assert_eq!(
        response.field("content-type"),
        Some("application/problem+json")
    );
    let problem: serde_json::Value = serde_json::from_slice(&response.content).expect("JSON");
    assert_eq!(problem["status"], response.status);
    assert!(!problem["title"].as_str().expect("a title").is_empty());
    assert!(!problem["detail"].as_str().expect("a detail").is_empty());
    let kind = problem["type"].as_str().expect("a type");
    let name = kind
        .strip_prefix("urn:sterna:problem:")
        .expect("its prefix");
    format!("{} {name}", response.status)
}

#[test]
fn a_message_reaches_a_subscriber_of_mqtt_with_all_that_it_has() {
    let mut broker = Broker::new();
    let subscriber = broker.client(V5, "s");
    broker.subscribe(subscriber, V5, "a/#", QoS::ExactlyOnce);
    let mut client = Client::connect(&mut broker);
    let fields = [
        ("content-type", "text/plain"),
        ("sterna-qos", "2"),
        ("sterna-expiry", "60"),
        ("sterna-response-topic", "re/%C3%A9"),
        ("sterna-correlation-data", "AQI="),
        ("sterna-user-property", "n=v, m=%2C"),
        ("sterna-user-property", "n=w"),
        ("sterna-payload-format", "utf-8"),
    ];
    let number = client.request(
        &mut broker,
        "POST",
        "/v1/topics/a/b",
        &fields,
        "é".as_bytes(),
    );
    let response = client.response(number);
    assert_eq!(response.status, 204);
    assert!(response.is_complete && response.content.is_empty());
    let got = broker.packets(subscriber, V5, |packet| match packet {
        sterna_mqtt::Packet::Publish(publish) => {
            let properties = &publish.properties;
            assert_eq!(publish.topic, "a/b");
            assert_eq!(publish.qos, QoS::ExactlyOnce);
            assert!(!publish.retain);
            assert_eq!(publish.payload, "é".as_bytes());
            assert_eq!(properties.content_type(), Some("text/plain"));
            assert_eq!(properties.message_expiry_s(), Some(60));
            assert_eq!(properties.response_topic(), Some("re/é"));
            assert_eq!(properties.correlation_data(), Some(&[1, 2][..]));
            assert!(properties.is_utf8_payload());
            let user: Vec<_> = properties.user_properties().collect();
            assert_eq!(user, [("n", "v"), ("m", ","), ("n", "w")]);
            true
        }
        _ => false,
    });
    assert_eq!(got, [true]);
}

#[test]
fn without_fields_it_is_of_level_one_and_not_retained() {
    let mut broker = Broker::new();
    let subscriber = broker.client(V5, "s");
    broker.subscribe(subscriber, V5, "a", QoS::ExactlyOnce);
    let mut client = Client::connect(&mut broker);
    client.request(&mut broker, "POST", "/v1/topics/a", &[], b"x");
    assert_eq!(broker.told(subscriber, V5), ["PUBLISH1 a=x"]);
    client.request(
        &mut broker,
        "POST",
        "/v1/topics/a",
        &[("sterna-qos", "0")],
        b"y",
    );
    assert_eq!(broker.told(subscriber, V5), ["PUBLISH0 a=y"]);
}

#[test]
fn a_retained_message_stays_until_an_empty_one_comes() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    for (value, payload, expected) in [
        ("?1", "x", "PUBLISH1 retain a=x"),
        ("1", "y", "PUBLISH1 retain a=y"),
        ("true", "z", "PUBLISH1 retain a=z"),
    ] {
        let fields = [("sterna-retain", value)];
        client.request(
            &mut broker,
            "POST",
            "/v1/topics/a",
            &fields,
            payload.as_bytes(),
        );
        let subscriber = broker.client(V5, payload);
        broker.subscribe_with(
            subscriber,
            V5,
            "a",
            sterna_mqtt::packet::SubscribeOptions::new(QoS::AtLeastOnce),
            &[],
        );
        assert!(broker.told(subscriber, V5).contains(&expected.to_owned()));
    }
    client.request(
        &mut broker,
        "POST",
        "/v1/topics/a",
        &[("sterna-retain", "?1")],
        b"",
    );
    let number = client.request(&mut broker, "HEAD", "/v1/topics/a", &[], b"");
    assert_eq!(client.response(number).status, 404);
}

#[test]
fn what_cannot_be_published_is_refused_with_its_reason() {
    let mut broker = Broker::with(
        &config(|config| {
            config.authorization = Authorization {
                rules: toml_rules(),
                ..Authorization::default()
            }
        }),
        1,
    );
    let mut client = Client::connect(&mut broker);
    for (path, fields, expected) in [
        ("/v1/topics/a/%23", &[][..], "400 invalid-topic"),
        ("/v1/topics/", &[], "400 invalid-topic"),
        ("/v1/topics/%ff", &[], "400 invalid-topic"),
        ("/v1/topics/a%00", &[], "400 invalid-topic"),
        ("/v1/topics/a", &[("sterna-qos", "3")], "400 invalid-field"),
        (
            "/v1/topics/a",
            &[("sterna-retain", "maybe")],
            "400 invalid-field",
        ),
        (
            "/v1/topics/a",
            &[("idempotency-key", "")],
            "400 invalid-field",
        ),
        (
            "/v1/topics/a",
            &[("idempotency-key", "a b")],
            "400 invalid-field",
        ),
        ("/v1/topics/a?qos=1", &[], "400 invalid-parameter"),
        ("/v1/topics/$SYS/x", &[], "403 forbidden"),
        ("/v1/topics/secret", &[], "403 forbidden"),
        ("/v1/topics", &[], "405 method"),
        ("/v1/else", &[], "404 no-resource"),
    ] {
        let number = client.request(&mut broker, "POST", path, fields, b"x");
        assert_eq!(problem(&client, number), expected, "{path}");
    }
    let deep = format!("/v1/topics/{}", "a/".repeat(200));
    let number = client.request(&mut broker, "POST", &deep, &[], b"x");
    assert_eq!(problem(&client, number), "400 invalid-topic");
}

fn toml_rules() -> Vec<sterna_server::config::Rule> {
    let config: Config = sterna_server::config::parse(
        "test",
        "[[authorization.rule]]\neffect = \"deny\"\ntopics = [\"secret\"]\n",
    )
    .expect("a configuration");
    config.authorization.rules
}

#[test]
fn a_repeated_key_publishes_once() {
    let config = config(|config| config.http.idempotency_window_s = 20);
    let mut broker = Broker::with(&config, 2);
    let subscriber = broker.client(V5, "s");
    broker.subscribe(subscriber, V5, "#", QoS::AtLeastOnce);
    let mut client = Client::connect(&mut broker);
    let mut other = Client::connect_on(&mut broker, 1, sterna_h3::Features::default(), Vec::new());
    let key = [("idempotency-key", "k1")];
    let first = client.request(&mut broker, "POST", "/v1/topics/a", &key, b"x");
    let again = client.request(&mut broker, "POST", "/v1/topics/a", &key, b"x");
    let elsewhere = other.request(&mut broker, "POST", "/v1/topics/a", &key, b"x");
    assert_eq!(client.response(first).field("idempotent-replayed"), None);
    for (client, number) in [(&client, again), (&other, elsewhere)] {
        let response = client.response(number);
        assert_eq!(response.status, 204);
        assert_eq!(response.field("idempotent-replayed"), Some("?1"));
    }
    assert_eq!(broker.told(subscriber, V5), ["PUBLISH1 a=x"]);
    // Other content, fields or topic.
    for (path, fields, content) in [
        ("/v1/topics/a", &[("idempotency-key", "k1")][..], "y"),
        ("/v1/topics/b", &[("idempotency-key", "k1")], "x"),
        (
            "/v1/topics/a",
            &[("idempotency-key", "k1"), ("sterna-qos", "0")],
            "x",
        ),
    ] {
        let number = client.request(&mut broker, "POST", path, fields, content.as_bytes());
        assert_eq!(problem(&client, number), "422 key-reused");
    }
    assert!(broker.told(subscriber, V5).is_empty());
    // It is forgotten after its time.
    broker.advance(20_001);
    let later = client.request(&mut broker, "POST", "/v1/topics/a", &key, b"x");
    assert_eq!(client.response(later).field("idempotent-replayed"), None);
    assert_eq!(broker.told(subscriber, V5), ["PUBLISH1 a=x"]);
}

#[test]
fn a_request_that_failed_may_be_tried_again_with_its_key() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let fields = [("idempotency-key", "k"), ("sterna-qos", "1")];
    let number = client.request(&mut broker, "POST", "/v1/topics/$SYS/x", &fields, b"x");
    assert_eq!(problem(&client, number), "403 forbidden");
    let number = client.request(&mut broker, "POST", "/v1/topics/a", &fields, b"x");
    assert_eq!(client.response(number).status, 204);
}

/// A wrong letter would otherwise lose an option in silence.
#[test]
fn a_field_of_ours_that_nobody_knows_is_refused() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let detail = |client: &Client, number: u64| {
        let problem: serde_json::Value =
            serde_json::from_slice(&client.response(number).content).expect("JSON");
        problem["detail"].as_str().expect("a detail").to_owned()
    };
    for (method, name, nearest) in [
        ("POST", "sterna-retian", "sterna-retain"),
        ("POST", "sterna-expires", "sterna-expiry"),
        ("POST", "sterna-user-properties", "sterna-user-property"),
        ("GET", "sterna-quos", "sterna-qos"),
        (
            "PUT",
            "sterna-ttl-of-the-message",
            "sterna-correlation-data",
        ),
    ] {
        let fields = [("sterna-qos", "1"), (name, "1")];
        let number = client.request(&mut broker, method, "/v1/topics/a", &fields, b"");
        assert_eq!(problem(&client, number), "400 invalid-field", "{name}");
        let detail = detail(&client, number);
        assert!(
            detail.contains(name) && detail.contains(nearest),
            "{detail}"
        );
    }
    // A client may copy what a response had, and everybody's own fields are their own.
    let fields = [
        ("sterna-topic", "a"),
        ("sterna-session", "s"),
        ("sternas-own", "1"),
        ("x-sterna-retian", "1"),
    ];
    let number = client.request(&mut broker, "POST", "/v1/topics/a", &fields, b"");
    assert_eq!(client.response(number).status, 204);
    // The same on TCP, where names come in any case.
    let mut broker = http1::broker();
    let peer = http1::connect(&mut broker);
    let post = "POST /v1/topics/a HTTP/1.1\r\nHost: localhost\r\nSterna-Retian: ?1\r\nContent-Length: 0\r\n\r\n";
    let answer = http1::say(&mut broker, peer, post);
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.contains("sterna-retain is the nearest"), "{answer}");
}
