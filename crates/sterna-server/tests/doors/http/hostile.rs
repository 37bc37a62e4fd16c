//! Clients that mean harm, and accidents that look like it.

use sterna_h3::{Content, Features, StreamId};
use sterna_mqtt::{Packet, QoS, Version};
use sterna_net::TransportKind;
use sterna_server::config::EarlyData;

use crate::fixture::{Broker, plain};
use crate::h2_client;
use crate::h3_client::Client;
use crate::http::http1;
use crate::http::publish::config;

const V5: Version = Version::V5;

#[test]
fn a_content_that_comes_after_the_handshake_is_not_early() {
    let early = config(|config| config.quic.early_data = EarlyData::Idempotent);
    let mut broker = Broker::with(&early, 1);
    let mut client = Client::connect(&mut broker);
    client.early = true;
    let number = client.begin("POST", "/v1/topics/a", &[], Content::Streamed);
    client.turn(&mut broker);
    broker.confirm(client.peer);
    client.early = false;
    let stream = StreamId(number);
    let sent = client.engine.send(stream, b"x", &mut client.out);
    sent.expect("an open request");
    let finished = client.engine.finish(stream, &mut client.out);
    finished.expect("an open request");
    client.turn(&mut broker);
    assert_eq!(client.response(number).status, 204);
}

fn transport_client(broker: &mut Broker) -> Client {
    broker.wires[0].datagram_bytes = 1_200;
    let features = Features {
        extended_connect: true,
        datagrams: true,
        webtransport: true,
    };
    Client::connect_with(broker, features)
}

fn session(broker: &mut Broker, client: &mut Client, path: &str) -> u64 {
    let asked = client
        .engine
        .connect_session("localhost", path, &[], &mut client.out);
    client.turn(broker);
    asked.expect("a session").0
}

/// A client that publishes and does not read the answers is not read, either.
#[test]
fn answers_that_nobody_reads_are_not_piled_up() {
    let mut broker = Broker::new();
    let mut client = transport_client(&mut broker);
    let number = session(&mut broker, &mut client, "/v1/topics");
    let stream = client
        .engine
        .open_session_stream(StreamId(number), true, &mut client.out)
        .expect("a stream");
    // Length 5, Id 1, Flags 0, the topic `a`, no properties, no payload.
    let frames = [5, 1, 0, 1, b'a', 0].repeat(1_000);
    for (unsent_bytes, is_paused) in [(0, false), (1 << 20, true), (1 << 20, true), (0, false)] {
        broker.wires[0].unsent_bytes = unsent_bytes;
        let sent = client.engine.send(stream, &frames, &mut client.out);
        sent.expect("an open stream");
        client.turn(&mut broker);
        let paused = &broker.wires[0].paused;
        assert_eq!(paused.contains(&client.peer.id), is_paused);
    }
}

/// The end of a stream that the client leaves unread.
#[derive(Clone, Copy, Debug)]
enum End {
    /// The client reads it no more.
    Stopped,
    /// The server gives it up: it does not carry frames.
    Refused,
    /// The client has ended its side, and the server has answered all.
    Finished,
}

/// A subscription waits while answers on another stream of its session are not read. The end of that stream is the
/// last word on it: nothing else may ever come that wakes the subscription.
#[test]
fn a_subscription_goes_on_when_the_stream_that_it_waited_for_ends() {
    for end in [End::Stopped, End::Refused, End::Finished] {
        let mut broker = Broker::new();
        let mut client = transport_client(&mut broker);
        let mut other = Client::connect(&mut broker);
        let number = session(&mut broker, &mut client, "/v1/topics/a");
        let stream = client
            .engine
            .open_session_stream(StreamId(number), true, &mut client.out)
            .expect("a stream");
        broker.wires[0].unsent_bytes = 60_000;
        let sent = (client.engine).send(stream, &[5, 1, 0, 1, b'b', 0], &mut client.out);
        sent.expect("an open stream");
        client.turn(&mut broker);
        broker.advance(1);
        other.request(&mut broker, "POST", "/v1/topics/a", &[], b"message");
        client.turn(&mut broker);
        let has_come = |client: &Client| {
            let mut streams = client.heard.streams.values();
            streams.any(|bytes| bytes.ends_with(b"message"))
        };
        let watched = (client.peer.id, sterna_net::StreamId(stream.0));
        assert!(broker.wires[0].watched.contains(&watched), "{end:?}");
        assert!(!has_come(&client), "{end:?}");
        let done = match end {
            End::Stopped => {
                let code = sterna_h3::ErrorCode::H3_REQUEST_CANCELLED;
                (client.engine).stop_receiving(stream, code, &mut client.out)
            }
            End::Refused => (client.engine).send(stream, &[1, 0x80], &mut client.out),
            End::Finished => client.engine.finish(stream, &mut client.out),
        };
        done.expect("an open stream");
        client.turn(&mut broker);
        assert!(has_come(&client), "{end:?}");
    }
}

#[test]
fn a_session_whose_topic_is_deleted_leaves_nothing() {
    let mut broker = Broker::new();
    let mut client = transport_client(&mut broker);
    for _ in 0..40 {
        let number = session(&mut broker, &mut client, "/v1/topics/a");
        assert_eq!(client.response(number).status, 200);
        client.request(&mut broker, "DELETE", "/v1/topics/a", &[], b"");
    }
}

/// A retained message of some size.
fn retain(broker: &mut Broker, bytes: usize) {
    let peer = broker.open_speaking(b"mqtt", 0, TransportKind::Quic, Vec::new());
    broker.packet(peer, V5, &Packet::Connect(plain(V5, "p")));
    let payload = "x".repeat(bytes);
    let publish = sterna_mqtt::packet::Publish {
        retain: true,
        ..crate::fixture::publish("t", &payload, QoS::AtMostOnce)
    };
    broker.packet(peer, V5, &Packet::Publish(publish));
}

#[test]
fn a_response_that_is_read_slowly_is_not_cut_by_what_follows() {
    let mut broker = http1::broker();
    retain(&mut broker, 300_000);
    let peer = http1::connect(&mut broker);
    let get = "GET /v1/topics/t?last HTTP/1.1\r\nHost: localhost\r\n\r\n";
    broker.send(peer, get.as_bytes());
    broker.wires[0].unsent_bytes = 290_000;
    broker.send(peer, get.as_bytes());
    let first = broker.take(peer).len();
    for turn in 1..5 {
        broker.advance(20_000);
        // Something is taken.
        broker.wires[0].unsent_bytes -= turn;
        broker.writable(peer);
        assert!(!broker.is_closed(peer), "{first} bytes");
    }
    broker.wires[0].unsent_bytes = 0;
    let mut rest = String::new();
    while first + rest.len() < 600_000 {
        broker.writable(peer);
        let more = broker.take(peer);
        assert!(!more.is_empty(), "{} bytes of the second", rest.len());
        rest.push_str(std::str::from_utf8(&more).expect("text"));
    }
    assert!(rest.ends_with('x'), "nothing but the second response");
}

/// Polls, which gather what they answer, wait while a connection takes nothing.
#[test]
fn polls_of_a_client_that_reads_nothing_gather_nothing() {
    let mut broker = http1::broker();
    retain(&mut broker, 500_000);
    let mut client = h2_client::Client::connect(&mut broker, b"");
    let mut polls = Vec::new();
    for _ in 0..50 {
        let mut poll = client.begin("GET", "/v1/topics/t?max=1", &[], Some(b""));
        poll.reads = false;
        client.turn(&mut broker, &mut [&mut poll]);
        polls.push(poll);
    }
    let begun = polls.iter().filter(|poll| poll.status == 200).count();
    assert!(begun < 10, "{begun} responses of half a megabyte wait");
    for poll in &mut polls {
        poll.reads = true;
    }
    let mut all: Vec<_> = polls.iter_mut().collect();
    client.turn(&mut broker, &mut all);
    for poll in &polls {
        assert_eq!((poll.status, poll.is_complete), (200, true));
    }
}

/// A client that has ended its side gets what it was answered, however slowly it reads.
#[test]
fn a_client_that_has_ended_its_side_gets_its_answer() {
    let mut broker = http1::broker();
    retain(&mut broker, 1_000_000);
    let peer = http1::connect(&mut broker);
    let get = "GET /v1/topics/t?last HTTP/1.1\r\nHost: localhost\r\n\r\n";
    broker.send(peer, get.as_bytes());
    broker.finish(peer, sterna_net::StreamId::FIRST);
    let mut bytes = broker.take(peer).len();
    while !broker.is_closed(peer) {
        broker.writable(peer);
        let more = broker.take(peer).len();
        assert!(more > 0 || broker.is_closed(peer), "{bytes} bytes");
        bytes += more;
    }
    assert!(bytes > 1_000_000, "{bytes} bytes");
}

/// A stream of a session that both ends have ended is forgotten, and plays no part in what the
/// subscription waits for.
#[test]
fn streams_of_a_session_are_forgotten_when_they_end() {
    let mut broker = Broker::new();
    let mut client = transport_client(&mut broker);
    let number = session(&mut broker, &mut client, "/v1/topics/a");
    broker.wires[0].unsent_bytes = 60_000;
    let stream = client
        .engine
        .open_session_stream(StreamId(number), true, &mut client.out)
        .expect("a stream");
    let sent = (client.engine).send(stream, &[5, 1, 0, 1, b'b', 0], &mut client.out);
    sent.expect("an open stream");
    let finished = client.engine.finish(stream, &mut client.out);
    finished.expect("an open stream");
    client.turn(&mut broker);
    broker.advance(1);
    client.request(&mut broker, "POST", "/v1/topics/a", &[], b"x");
    let mut streams = client.heard.streams.iter();
    assert!(streams.any(|(stream, bytes)| stream & 2 != 0 && bytes.ends_with(b"x")));
}

#[test]
fn http2_ends_in_order_when_the_broker_stops() {
    let mut broker = http1::broker();
    let mut client = h2_client::Client::connect(&mut broker, b"");
    let mut subscription = client.begin("GET", "/v1/topics/a", &[], Some(b""));
    let mut poll = client.begin("GET", "/v1/topics/a?wait=10s", &[], Some(b""));
    client.turn(&mut broker, &mut [&mut subscription, &mut poll]);
    assert_eq!(subscription.status, 200);
    broker.stop();
    client.turn(&mut broker, &mut [&mut subscription, &mut poll]);
    assert!(subscription.is_complete, "{:?}", subscription.error);
    assert_eq!((poll.status, poll.is_complete), (503, true));
    assert_eq!(client.ended, Some(Ok(())));
    assert!(broker.finished());
}

/// Whatever is queued behind a subscription of HTTP/1.1 waits, and goes with it.
#[test]
fn requests_behind_a_subscription_wait_for_its_end() {
    let mut broker = http1::broker();
    let peer = http1::connect(&mut broker);
    let subscribe = "GET /v1/topics/a HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let publish = "POST /v1/topics/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx";
    let answer = http1::say(&mut broker, peer, &format!("{subscribe}{publish}"));
    assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
    for _ in 0..10 {
        http1::say(&mut broker, peer, &publish.repeat(1_000));
    }
    assert!(broker.wires[0].paused.contains(&peer.id));
    broker.advance(600_000);
    assert!(!broker.is_closed(peer), "its signs of life are taken");
    let other = http1::connect(&mut broker);
    let delete = "DELETE /v1/topics/a HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let answer = http1::say(&mut broker, other, delete);
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    let mut answers = 0;
    loop {
        let some = String::from_utf8(broker.take(peer)).expect("text");
        if some.is_empty() {
            break;
        }
        answers += some.matches("HTTP/1.1 204").count();
        broker.writable(peer);
    }
    assert_eq!(answers, 10_001, "what waited is answered");
    assert!(!broker.wires[0].paused.contains(&peer.id));
}

/// The library's buffers are given back only when what is in them is written.
#[test]
fn an_answer_that_is_being_taken_is_not_given_back() {
    let mut broker = http1::broker();
    let get = "GET /v1/topics/t?last HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for bytes in (250_000..300_000).step_by(1_000) {
        retain(&mut broker, bytes);
        let peer = http1::connect(&mut broker);
        broker.send(peer, get.as_bytes());
        let mut came = broker.take(peer).len();
        // There is room, and nobody says so.
        broker.wires[0].unsent_bytes = 100_000;
        broker.advance(1_100);
        broker.wires[0].unsent_bytes = 0;
        for _ in 0..2 {
            broker.writable(peer);
            came += broker.take(peer).len();
        }
        assert!(came > bytes, "{came} of {bytes}");
    }
}
