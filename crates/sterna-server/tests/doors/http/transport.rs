//! WebTransport.

use sterna_h3::{Features, StreamId};
use sterna_mqtt::{QoS, Version};

use crate::fixture::Broker;
use crate::h3_client::Client;
use crate::http::publish::{config, problem};
use crate::http::subscribe::post;

const V5: Version = Version::V5;

fn connect(broker: &mut Broker) -> Client {
    let features = Features {
        extended_connect: true,
        datagrams: true,
        webtransport: true,
    };
    for wire in &mut broker.wires {
        wire.datagram_bytes = 1200;
    }
    Client::connect_with(broker, features)
}

/// Asks for a session; the number of the request.
fn session(broker: &mut Broker, client: &mut Client, path: &str) -> u64 {
    let asked = client
        .engine
        .connect_session("localhost", path, &[], &mut client.out);
    client.turn(broker);
    asked.expect("a session").0
}

/// A stream of the client on which something is sent.
fn send(
    broker: &mut Broker,
    client: &mut Client,
    session: u64,
    is_bidirectional: bool,
    bytes: &[u8],
) -> u64 {
    let stream = client
        .engine
        .open_session_stream(StreamId(session), is_bidirectional, &mut client.out)
        .expect("a stream");
    more(broker, client, stream.0, bytes);
    stream.0
}

fn more(broker: &mut Broker, client: &mut Client, stream: u64, bytes: &[u8]) {
    client
        .engine
        .send(StreamId(stream), bytes, &mut client.out)
        .expect("a stream that is open");
    client.turn(broker);
}

/// A frame with its Length.
fn frame(id: u8, flags: u8, topic: &str, payload: &str) -> Vec<u8> {
    let body = datagram(id, flags, topic, payload);
    [vec![body.len() as u8], body].concat()
}

/// A frame without its Length.
fn datagram(id: u8, flags: u8, topic: &str, payload: &str) -> Vec<u8> {
    let mut body = vec![id, flags, topic.len() as u8];
    body.extend_from_slice(topic.as_bytes());
    body.push(0);
    body.extend_from_slice(payload.as_bytes());
    body
}

/// What came on the stream that the server opened.
fn delivered(client: &Client) -> Vec<u8> {
    let mut streams = client.heard.streams.iter();
    let unidirectional = streams.find(|(stream, _)| **stream & 2 != 0);
    unidirectional.map_or_else(Vec::new, |(_, bytes)| bytes.clone())
}

#[test]
fn messages_come_on_one_stream_and_small_ones_of_level_zero_as_datagrams() {
    let mut broker = Broker::new();
    let mut client = connect(&mut broker);
    let number = session(&mut broker, &mut client, "/v1/topics/a");
    assert_eq!(client.response(number).status, 200);
    let name = client
        .response(number)
        .field("sterna-session")
        .expect("a name");
    assert!(name.starts_with('~'));
    post(&mut broker, &mut client, "a", "x");
    assert_eq!(delivered(&client), frame(1, 1, "a", "x"));
    let zero = [("sterna-qos", "0")];
    client.request(&mut broker, "POST", "/v1/topics/a", &zero, b"y");
    assert_eq!(client.heard.datagrams, [datagram(0, 0, "a", "y")]);
    assert_eq!(delivered(&client), frame(1, 1, "a", "x"));
    // What is too large for a datagram takes the stream.
    let large = vec![b'z'; 1500];
    client.request(&mut broker, "POST", "/v1/topics/a", &zero, &large);
    assert!(delivered(&client).ends_with(&large));
    assert_eq!(client.heard.datagrams.len(), 1);
}

#[test]
fn frames_on_streams_and_in_datagrams_are_published() {
    let mut broker = Broker::new();
    let subscriber = broker.client(V5, "s");
    broker.subscribe(subscriber, V5, "#", QoS::ExactlyOnce);
    let mut client = connect(&mut broker);
    let number = session(&mut broker, &mut client, "/v1/topics");
    assert_eq!(client.response(number).status, 200);
    assert_eq!(client.response(number).field("sterna-session"), None);
    let both = [frame(0, 1, "a", "one"), frame(0, 2, "b", "two")].concat();
    let (start, end) = both.split_at(5);
    let stream = send(&mut broker, &mut client, number, false, start);
    more(&mut broker, &mut client, stream, end);
    assert_eq!(
        broker.told(subscriber, V5),
        ["PUBLISH1 a=one", "PUBLISH2 b=two"]
    );
    for (bytes, expected) in [
        (datagram(0, 0, "c", "three"), vec!["PUBLISH0 c=three"]),
        (datagram(0, 1, "c", "not of level 0"), vec![]),
        (vec![0, 0, 9], vec![]),
    ] {
        let sent = client
            .engine
            .send_datagram(StreamId(number), &bytes, &mut client.out);
        assert_eq!(sent, Ok(true));
        client.turn(&mut broker);
        assert_eq!(broker.told(subscriber, V5), expected);
    }
}

#[test]
fn frames_with_an_id_are_answered_in_order() {
    let mut broker = Broker::new();
    let mut client = connect(&mut broker);
    let number = session(&mut broker, &mut client, "/v1/topics");
    let frames = [
        frame(1, 1, "a", "x"),
        frame(0, 1, "a", "no answer"),
        frame(2, 1, "$SYS/x", "x"),
        frame(3, 1, "a/+", "x"),
        frame(4, 1, "a", "y"),
    ]
    .concat();
    let stream = send(&mut broker, &mut client, number, true, &frames);
    let answers = client.heard.streams.get(&stream).expect("answers");
    // Length, Id, Status as an integer of two bytes.
    let answer = |id, status: u16| [&[3, id][..], &(status | 0x4000).to_be_bytes()].concat();
    let expected = [
        answer(1, 204),
        answer(2, 403),
        answer(3, 400),
        answer(4, 204),
    ]
    .concat();
    assert_eq!(*answers, expected);
}

#[test]
fn a_named_session_is_acknowledged_by_frames() {
    let mut broker = Broker::with(&config(|config| config.http.maximum_unacknowledged = 1), 1);
    let mut client = connect(&mut broker);
    let number = session(&mut broker, &mut client, "/v1/topics/a?session=n");
    for payload in ["x", "y"] {
        post(&mut broker, &mut client, "a", payload);
    }
    assert_eq!(delivered(&client), frame(1, 1, "a", "x"));
    let acknowledgement = [2, 1, 0x80];
    send(&mut broker, &mut client, number, false, &acknowledgement);
    let both = [frame(1, 1, "a", "x"), frame(2, 1, "a", "y")].concat();
    assert_eq!(delivered(&client), both);
    // Another connection goes on where it was.
    broker.cut(client.peer);
    let mut other = connect(&mut broker);
    session(&mut broker, &mut other, "/v1/topics/a?session=n");
    assert_eq!(delivered(&other), frame(2, 9, "a", "y"), "redelivered");
}

#[test]
fn a_stream_that_does_not_carry_frames_is_given_up_alone() {
    let mut broker = Broker::new();
    let mut client = connect(&mut broker);
    let number = session(&mut broker, &mut client, "/v1/topics");
    let bad = send(&mut broker, &mut client, number, true, &[3, 1, 0x40, 0]);
    let reset = client.heard.responses.get(&bad).and_then(|one| one.reset);
    assert!(reset.is_some(), "reset");
    let good = send(
        &mut broker,
        &mut client,
        number,
        true,
        &frame(1, 1, "a", "x"),
    );
    assert!(client.heard.streams.contains_key(&good));
    assert!(client.heard.closed_sessions.is_empty());
}

#[test]
fn a_session_is_refused_as_a_request_is() {
    let mut broker = Broker::with(
        &config(|config| config.http.maximum_webtransport_sessions = 1),
        1,
    );
    let mut client = connect(&mut broker);
    for (path, expected) in [
        ("/v1/topics/a%23", "400 invalid-filter"),
        ("/v1/topics/a?wait=1s", "400 invalid-parameter"),
        ("/v1/sessions/a", "405 method"),
    ] {
        let number = session(&mut broker, &mut client, path);
        assert_eq!(problem(&client, number), expected, "{path}");
    }
    let number = session(&mut broker, &mut client, "/v1/topics/a");
    assert_eq!(client.response(number).status, 200);
    // When the session ends, so does its subscription.
    client
        .engine
        .close_session(StreamId(number), 0, "", &mut client.out)
        .expect("an open session");
    client.turn(&mut broker);
    let (sessions, _) = broker.sessions(0);
    assert!(sessions.iter().all(|session| session.consumer.is_none()));
}

#[test]
fn deletion_of_the_topic_ends_the_session() {
    let mut broker = Broker::new();
    let mut client = connect(&mut broker);
    let number = session(&mut broker, &mut client, "/v1/topics/a");
    client.request(&mut broker, "DELETE", "/v1/topics/a", &[], b"");
    assert_eq!(client.heard.closed_sessions, [number]);
}
