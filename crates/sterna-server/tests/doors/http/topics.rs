//! HEAD, PUT, DELETE and OPTIONS of topics, and their retained messages.

use sterna_mqtt::{QoS, Version};

use crate::fixture::Broker;
use crate::h3_client::Client;
use crate::http::publish::{config, problem};
use crate::http::subscribe::{post, told};

const V5: Version = Version::V5;

fn status(broker: &mut Broker, client: &mut Client, method: &str, topic: &str) -> u16 {
    let path = format!("/v1/topics/{topic}");
    let number = client.request(broker, method, &path, &[], b"");
    let response = client.response(number);
    assert!(response.is_complete);
    response.status
}

#[test]
fn a_topic_exists_when_it_was_created_or_has_a_retained_message() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    for (method, expected) in [("HEAD", 404), ("PUT", 201), ("HEAD", 200), ("PUT", 200)] {
        assert_eq!(
            status(&mut broker, &mut client, method, "a"),
            expected,
            "{method}"
        );
    }
    let retain = [("sterna-retain", "?1")];
    client.request(&mut broker, "POST", "/v1/topics/b", &retain, b"x");
    for (method, expected) in [("HEAD", 200), ("PUT", 200), ("DELETE", 204), ("HEAD", 404)] {
        assert_eq!(
            status(&mut broker, &mut client, method, "b"),
            expected,
            "{method}"
        );
    }
    for (method, expected) in [("DELETE", 204), ("DELETE", 404), ("HEAD", 404)] {
        assert_eq!(
            status(&mut broker, &mut client, method, "a"),
            expected,
            "{method}"
        );
    }
    // A plain message creates nothing.
    post(&mut broker, &mut client, "c", "x");
    assert_eq!(status(&mut broker, &mut client, "HEAD", "c"), 404);
}

#[test]
fn what_cannot_be_created_is_refused_with_its_reason() {
    let mut broker = Broker::with(&config(|config| config.http.maximum_topics = 1), 1);
    let mut client = Client::connect(&mut broker);
    for (path, content, expected) in [
        ("/v1/topics/a/+", "", "400 invalid-topic"),
        ("/v1/topics/a", "x", "400 invalid-content"),
        ("/v1/topics/a?x=1", "", "400 invalid-parameter"),
        ("/v1/topics/$SYS/a", "", "403 forbidden"),
    ] {
        let number = client.request(&mut broker, "PUT", path, &[], content.as_bytes());
        assert_eq!(problem(&client, number), expected, "{path}");
    }
    assert_eq!(status(&mut broker, &mut client, "PUT", "a"), 201);
    let number = client.request(&mut broker, "PUT", "/v1/topics/b", &[], b"");
    assert_eq!(problem(&client, number), "507 too-many-topics");
}

#[test]
fn deletion_ends_every_subscription_to_exactly_this_topic() {
    let mut broker = Broker::with(&config(|_| {}), 2);
    let mut client = Client::connect(&mut broker);
    let mut other = Client::connect_on(&mut broker, 1, sterna_h3::Features::default(), Vec::new());
    let exact = client.request(&mut broker, "GET", "/v1/topics/a", &[], b"");
    let elsewhere = other.request(&mut broker, "GET", "/v1/topics/a", &[], b"");
    let wider = client.request(&mut broker, "GET", "/v1/topics/%23", &[], b"");
    let both = client.request(&mut broker, "GET", "/v1/topics/a?filter=b", &[], b"");
    let named = client.request(&mut broker, "GET", "/v1/topics/a?session=n", &[], b"");
    let mqtt = broker.client(V5, "m");
    broker.subscribe(mqtt, V5, "a", QoS::AtLeastOnce);
    post(&mut broker, &mut client, "a", "x");
    broker.told(mqtt, V5);
    assert_eq!(status(&mut broker, &mut client, "DELETE", "a"), 204);
    other.turn(&mut broker);
    client.turn(&mut broker);
    post(&mut broker, &mut client, "a", "y");
    post(&mut broker, &mut client, "b", "z");
    other.turn(&mut broker);
    for (client, number) in [(&client, exact), (&other, elsewhere), (&client, named)] {
        assert_eq!(told(client, number), ["1=x"]);
        assert!(
            client.response(number).is_complete,
            "the response ends in order"
        );
    }
    assert_eq!(told(&client, wider), ["1=x", "2=y", "3=z"]);
    assert_eq!(told(&client, both), ["1=x", "2=z"]);
    assert!(broker.told(mqtt, V5).is_empty());
    // A session with a name stays, for what is not acknowledged.
    let number = client.request(&mut broker, "GET", "/v1/sessions/n", &[], b"");
    assert_eq!(client.response(number).status, 200);
}

#[test]
fn the_methods_of_a_resource_are_told() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    for (path, allow) in [
        ("/v1/topics/a", "GET, HEAD, PUT, DELETE, POST, OPTIONS"),
        ("/v1/topics", "GET, OPTIONS"),
        ("/v1/sessions/a", "GET, HEAD, DELETE, OPTIONS"),
        ("/v1/sessions/a/ack", "POST, OPTIONS"),
        ("/v1/openapi.json", "GET, HEAD, OPTIONS"),
        ("/", "GET, HEAD, OPTIONS"),
    ] {
        let number = client.request(&mut broker, "OPTIONS", path, &[], b"");
        assert_eq!(client.response(number).status, 204);
        assert_eq!(
            client.response(number).field("allow"),
            Some(allow),
            "{path}"
        );
        let number = client.request(&mut broker, "PATCH", path, &[], b"");
        assert_eq!(problem(&client, number), "405 method");
        assert_eq!(
            client.response(number).field("allow"),
            Some(allow),
            "{path}"
        );
    }
}

#[test]
fn the_retained_message_alone_is_a_resource_that_can_be_cached() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let number = client.request(&mut broker, "GET", "/v1/topics/a?last", &[], b"");
    assert_eq!(problem(&client, number), "404 no-retained-message");
    let fields = [
        ("sterna-retain", "?1"),
        ("content-type", "text/html"),
        ("sterna-expiry", "60"),
        ("sterna-user-property", "n=%20v"),
        ("sterna-qos", "2"),
    ];
    client.request(&mut broker, "POST", "/v1/topics/a", &fields, b"<b>");
    broker.advance(10_000);
    let number = client.request(&mut broker, "GET", "/v1/topics/a?last", &[], b"");
    let response = client.response(number).clone();
    assert_eq!((response.status, &response.content[..]), (200, &b"<b>"[..]));
    for (name, value) in [
        ("content-type", "text/html"),
        ("sterna-qos", "2"),
        ("sterna-retain", "?1"),
        ("sterna-expiry", "50"),
        ("sterna-user-property", "n=%20v"),
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", "default-src 'none'; sandbox"),
    ] {
        assert_eq!(response.field(name), Some(value), "{name}");
    }
    let etag = response.field("etag").expect("a tag").to_owned();
    for value in [
        etag.clone(),
        format!("W/{etag}"),
        format!("\"x\", {etag}"),
        "*".to_owned(),
    ] {
        let fields = [("if-none-match", value.as_str())];
        let number = client.request(&mut broker, "GET", "/v1/topics/a?last", &fields, b"");
        let response = client.response(number);
        assert_eq!(response.status, 304, "{value}");
        assert!(response.content.is_empty());
        assert_eq!(response.field("etag"), Some(&*etag));
    }
    client.request(
        &mut broker,
        "POST",
        "/v1/topics/a",
        &[("sterna-retain", "?1")],
        b"y",
    );
    let fields = [("if-none-match", etag.as_str())];
    let number = client.request(&mut broker, "GET", "/v1/topics/a?last", &fields, b"");
    assert_eq!(client.response(number).content, b"y");
    for (path, expected) in [
        ("/v1/topics/a/+?last", "400 invalid-topic"),
        ("/v1/topics/a?last&filter=b", "400 invalid-parameter"),
    ] {
        let number = client.request(&mut broker, "GET", path, &[], b"");
        assert_eq!(problem(&client, number), expected);
    }
}

#[test]
fn the_page_and_the_description_are_for_everybody() {
    let mut broker = Broker::with(
        &config(|config| config.authentication.anonymous = Some(false)),
        1,
    );
    let mut client = Client::connect(&mut broker);
    let number = client.request(&mut broker, "GET", "/v1/topics/a", &[], b"");
    assert_eq!(problem(&client, number), "401 unauthenticated");
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/page/page.js", "text/javascript; charset=utf-8"),
        ("/v1/openapi.json", "application/json"),
    ] {
        let number = client.request(&mut broker, "GET", path, &[], b"");
        let response = client.response(number).clone();
        assert_eq!(response.status, 200);
        assert_eq!(response.field("content-type"), Some(kind));
        assert!(!response.content.is_empty());
        let etag = response.field("etag").expect("a tag").to_owned();
        let fields = [("if-none-match", &*etag)];
        let number = client.request(&mut broker, "GET", path, &fields, b"");
        assert_eq!(client.response(number).status, 304);
        let number = client.request(&mut broker, "HEAD", path, &[], b"");
        let response = client.response(number);
        assert_eq!((response.status, response.content.len()), (200, 0));
    }
    let number = client.request(&mut broker, "GET", "/page/nothing", &[], b"");
    assert_eq!(problem(&client, number), "404 no-resource");
    let mut broker = Broker::with(&config(|config| config.http.page = false), 1);
    let mut client = Client::connect(&mut broker);
    let number = client.request(&mut broker, "GET", "/", &[], b"");
    assert_eq!(problem(&client, number), "404 no-resource");
}
