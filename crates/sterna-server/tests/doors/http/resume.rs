//! What a response that was cut off has left, and how its client goes on.

use sterna_h3::{ErrorCode, Features, StreamId};
use sterna_mqtt::{QoS, Version};

use crate::fixture::Broker;
use crate::h3_client::Client;
use crate::http::publish::{config, problem};
use crate::http::subscribe::{post, told};

/// The client reads no more of a response.
pub(crate) fn give_up(broker: &mut Broker, client: &mut Client, number: u64) {
    let id = StreamId(number);
    client
        .engine
        .cancel(id, ErrorCode::H3_REQUEST_CANCELLED, &mut client.out)
        .expect("a request");
    client.turn(broker);
}

pub(crate) fn session_of(client: &Client, number: u64) -> String {
    let name = client.response(number).field("sterna-session");
    name.expect("a session").to_owned()
}

#[test]
fn what_came_after_the_last_id_comes_again() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let first = client.request(&mut broker, "GET", "/v1/topics/a", &[], b"");
    let session = session_of(&client, first);
    for payload in ["x", "y", "z"] {
        post(&mut broker, &mut client, "a", payload);
    }
    give_up(&mut broker, &mut client, first);
    post(&mut broker, &mut client, "a", "while away");
    // A browser says it in a field, everybody else in parameters.
    let event_id = format!("{session}:1");
    let fields = [("last-event-id", event_id.as_str())];
    let second = client.request(&mut broker, "GET", "/v1/topics/a", &fields, b"");
    assert_eq!(session_of(&client, second), session);
    assert_eq!(
        told(&client, second),
        ["2=y again", "3=z again", "4=while away"]
    );
    give_up(&mut broker, &mut client, second);
    let path = format!("/v1/topics/a?session={session}&after=3");
    let third = client.request(&mut broker, "GET", &path, &[], b"");
    assert_eq!(told(&client, third), ["4=while away again"]);
    post(&mut broker, &mut client, "a", "new");
    assert_eq!(told(&client, third), ["4=while away again", "5=new"]);
}

#[test]
fn a_session_without_a_name_is_gone_after_its_time() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let first = client.request(&mut broker, "GET", "/v1/topics/a", &[], b"");
    let session = session_of(&client, first);
    post(&mut broker, &mut client, "a", "x");
    give_up(&mut broker, &mut client, first);
    broker.advance(60_001);
    let event_id = format!("{session}:1");
    let fields = [("last-event-id", event_id.as_str())];
    let second = client.request(&mut broker, "GET", "/v1/topics/a", &fields, b"");
    assert_ne!(
        session_of(&client, second),
        session,
        "answered with a new session"
    );
    post(&mut broker, &mut client, "a", "y");
    assert_eq!(told(&client, second), ["1=y"]);
}

#[test]
fn only_the_last_messages_are_kept_for_it() {
    let mut broker = Broker::with(&config(|config| config.http.resume_window_messages = 2), 1);
    let mut client = Client::connect(&mut broker);
    let first = client.request(&mut broker, "GET", "/v1/topics/a", &[], b"");
    let session = session_of(&client, first);
    for payload in ["1", "2", "3", "4"] {
        post(&mut broker, &mut client, "a", payload);
    }
    give_up(&mut broker, &mut client, first);
    let path = format!("/v1/topics/a?session={session}&after=1");
    let second = client.request(&mut broker, "GET", &path, &[], b"");
    assert_eq!(told(&client, second), ["3=3 again", "4=4 again"]);
}

#[test]
fn no_more_bytes_are_kept_for_it_than_are_allowed() {
    let mut broker = Broker::with(
        &config(|config| config.http.maximum_unacknowledged_bytes = 10),
        1,
    );
    let mut client = Client::connect(&mut broker);
    let first = client.request(&mut broker, "GET", "/v1/topics/a", &[], b"");
    let session = session_of(&client, first);
    for payload in ["1", "2", "12345678"] {
        post(&mut broker, &mut client, "a", payload);
    }
    give_up(&mut broker, &mut client, first);
    let path = format!("/v1/topics/a?session={session}&after=0");
    let second = client.request(&mut broker, "GET", &path, &[], b"");
    assert_eq!(told(&client, second), ["3=12345678 again"]);
}

#[test]
fn at_level_zero_nothing_is_remembered() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let first = client.request(&mut broker, "GET", "/v1/topics/a?qos=0", &[], b"");
    let session = session_of(&client, first);
    post(&mut broker, &mut client, "a", "x");
    assert_eq!(told(&client, first), ["null=x"]);
    give_up(&mut broker, &mut client, first);
    assert_eq!(broker.sessions(0).0.len(), 0);
    let path = format!("/v1/topics/a?qos=0&session={session}&after=0");
    let second = client.request(&mut broker, "GET", &path, &[], b"");
    assert_ne!(session_of(&client, second), session);
}

#[test]
fn a_lost_connection_is_a_cut_like_any_other_and_another_shard_may_go_on() {
    let mut broker = Broker::with(&config(|_| {}), 3);
    let mut client = Client::connect_on(&mut broker, 1, Features::default(), Vec::new());
    let first = client.request(&mut broker, "GET", "/v1/topics/a", &[], b"");
    let session = session_of(&client, first);
    post(&mut broker, &mut client, "a", "x");
    assert_eq!(told(&client, first), ["1=x"]);
    broker.cut(client.peer);
    let mut other = Client::connect_on(&mut broker, 2, Features::default(), Vec::new());
    post(&mut broker, &mut other, "a", "y");
    let path = format!("/v1/topics/a?session={session}&after=0");
    let second = other.request(&mut broker, "GET", &path, &[], b"");
    assert_eq!(told(&other, second), ["1=x again", "2=y"]);
}

#[test]
fn names_belong_to_their_user() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let first = client.request(&mut broker, "GET", "/v1/topics/a", &[], b"");
    let session = session_of(&client, first);
    let mqtt = broker.open();
    let connect = crate::fixture::plain(Version::V5, "$http/x");
    broker.packet(mqtt, Version::V5, &sterna_mqtt::Packet::Connect(connect));
    let told = broker.told(mqtt, Version::V5);
    assert_eq!(
        told,
        ["CONNACK Client Identifier not valid"],
        "MQTT cannot take one over"
    );
    let path = format!("/v1/sessions/{session}");
    let number = client.request(&mut broker, "GET", &path, &[], b"");
    assert_eq!(client.response(number).status, 200);
    let number = client.request(&mut broker, "GET", "/v1/sessions/~other", &[], b"");
    assert_eq!(problem(&client, number), "404 no-session");
}

#[test]
fn a_second_request_takes_the_session_over() {
    let mut broker = Broker::with(&config(|_| {}), 2);
    let mut client = Client::connect(&mut broker);
    let mut other = Client::connect_on(&mut broker, 1, Features::default(), Vec::new());
    let path = "/v1/topics/a?session=n";
    let first = client.request(&mut broker, "GET", path, &[], b"");
    post(&mut broker, &mut client, "a", "x");
    let second = other.request(&mut broker, "GET", path, &[], b"");
    client.turn(&mut broker);
    assert!(
        client.response(first).is_complete,
        "the first response ends"
    );
    assert_eq!(told(&other, second), ["1=x again"]);
    post(&mut broker, &mut client, "a", "y");
    other.turn(&mut broker);
    assert_eq!(told(&other, second), ["1=x again", "2=y"]);
    assert_eq!(told(&client, first), ["1=x"]);
    // On the same connection, too.
    let third = other.request(&mut broker, "GET", path, &[], b"");
    assert!(other.response(second).is_complete);
    assert_eq!(told(&other, third), ["1=x again", "2=y again"]);
}

#[test]
fn what_has_expired_is_not_sent_again() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let first = client.request(&mut broker, "GET", "/v1/topics/a?session=n", &[], b"");
    let fields = [("sterna-expiry", "10")];
    client.request(&mut broker, "POST", "/v1/topics/a", &fields, b"short");
    post(&mut broker, &mut client, "a", "long");
    give_up(&mut broker, &mut client, first);
    broker.advance(11_000);
    let second = client.request(&mut broker, "GET", "/v1/topics/a?session=n", &[], b"");
    assert_eq!(told(&client, second), ["2=long again"]);
    let number = client.request(&mut broker, "GET", "/v1/sessions/n", &[], b"");
    let told: serde_json::Value =
        serde_json::from_slice(&client.response(number).content).expect("JSON");
    assert_eq!(told["unacknowledged"], 1);
}

#[test]
fn a_member_of_a_shared_subscription_keeps_its_group_going() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let path = "/v1/topics/$share/g/a";
    let first = client.request(&mut broker, "GET", path, &[], b"");
    let second = client.request(&mut broker, "GET", path, &[], b"");
    for n in 0..200 {
        post(&mut broker, &mut client, "a", &n.to_string());
    }
    let got = [first, second].map(|number| told(&client, number).len());
    assert_eq!(got.iter().sum::<usize>(), 200, "each message once: {got:?}");
    assert!(got.iter().all(|&count| count > 50), "{got:?}");
    let mqtt = broker.client(Version::V5, "m");
    broker.subscribe(mqtt, Version::V5, "a", QoS::AtLeastOnce);
}
