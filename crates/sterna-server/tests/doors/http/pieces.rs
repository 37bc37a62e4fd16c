//! Messages that are long, or become long in their form: a response has them piece by piece.

use bytes::Bytes;
use sterna_h3::Features;
use sterna_mapping::frame::{Frame, FrameReader};
use sterna_mqtt::packet::Publish;
use sterna_mqtt::{Packet, QoS, Version};
use sterna_net::{StreamId, TransportKind};

use crate::fixture::{Broker, Peer, encode, plain, publish};
use crate::h2_client;
use crate::h3_client::Client;
use crate::http::http1;

const V5: Version = Version::V5;
const TOPIC: &str = "/v1/topics/t";
const LINES: &str = "application/x-ndjson";
const EVENTS: &str = "text/event-stream";
const FRAMES: &str = "application/vnd.sterna.stream";

/// What waits for a client at most.
const HIGH_WATERMARK: usize = 256 << 10;
/// What one turn copies at most, and a part of it that it always may.
const PER_TURN: usize = (4 << 20) / 8 * 9;
/// A piece more, and what frames the pieces.
const SLACK: usize = 64 << 10;

fn publisher(broker: &mut Broker) -> Peer {
    let peer = broker.open_speaking(b"mqtt", 0, TransportKind::Quic, Vec::new());
    broker.packet(peer, V5, &Packet::Connect(plain(V5, "p")));
    assert_eq!(broker.told(peer, V5), ["CONNACK Success"]);
    peer
}

fn packet(payload: &[u8]) -> Vec<u8> {
    let message = Publish {
        payload,
        ..publish("t", "", QoS::AtLeastOnce)
    };
    encode(V5, &Packet::Publish(message)).to_vec()
}

fn send(broker: &mut Broker, publisher: Peer, payload: &[u8]) {
    broker.burst(publisher, &packet(payload));
    broker.take(publisher);
}

fn get(form: &str) -> String {
    format!("GET {TOPIC}?qos=1 HTTP/1.1\r\nHost: localhost\r\nAccept: {form}\r\n\r\n")
}

/// The object for a message of one byte, over and over.
fn object(bytes: usize, again: &str) -> String {
    let text = "\\u0001".repeat(bytes);
    format!("{{\"id\":1,\"topic\":\"t\",\"payload\":\"{text}\",\"qos\":1{again}}}")
}

/// Whether a response's content is one message of these bytes.
fn is_it(form: &str, content: &[u8], payload: &[u8]) -> bool {
    let object = object(payload.len(), "");
    match form {
        LINES => content == format!("{object}\n").as_bytes(),
        EVENTS => {
            let text = std::str::from_utf8(content).expect("text");
            let (id, data) = text.split_once('\n').expect("an id");
            id.starts_with("id: ") && data == format!("data: {object}\n\n")
        }
        _ => {
            let mut reader = FrameReader::new(1 << 24);
            let mut input = content;
            let body: Option<Bytes> = reader.next(&mut input).expect("a frame");
            body.is_some_and(|body| {
                let frame = Frame::parse(body).expect("a frame");
                (frame.id, frame.topic(), frame.payload()) == (1, "t", payload)
            })
        }
    }
}

/// The content of a response in chunks, as far as it has come.
fn unchunked(answer: &[u8]) -> Vec<u8> {
    let at = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let mut rest = &answer[at.expect("a head") + 4..];
    let mut content = Vec::new();
    while let Some(at) = rest.windows(2).position(|two| two == b"\r\n") {
        let digits = std::str::from_utf8(&rest[..at]).expect("digits");
        let bytes = usize::from_str_radix(digits, 16).expect("a length");
        let Some(chunk) = rest.get(at + 2..at + 2 + bytes) else {
            break;
        };
        content.extend_from_slice(chunk);
        rest = rest.get(at + 4 + bytes..).unwrap_or_default();
    }
    content
}

fn sent_bytes(broker: &Broker) -> usize {
    broker.wires[0].sent.values().map(Vec::len).sum()
}

#[test]
fn readers_that_read_nothing_have_a_piece_each() {
    const READERS: usize = 50;
    const BYTES: usize = 2_000_000;
    for (form, byte) in [
        (LINES, 1),
        (EVENTS, 1),
        (EVENTS, 0xff),
        (FRAMES, 1),
        ("http/3", 1),
        ("http/2", 1),
    ] {
        let mut broker = http1::broker();
        let publisher = publisher(&mut broker);
        // Nobody reads, so nobody is kept.
        for _ in 0..READERS {
            match form {
                "http/3" => {
                    let mut client = Client::connect(&mut broker);
                    client.request(&mut broker, "GET", TOPIC, &[], b"");
                }
                "http/2" => {
                    let mut client = h2_client::Client::connect(&mut broker, b"");
                    let mut exchange = client.begin("GET", TOPIC, &[], Some(b""));
                    exchange.reads = false;
                    client.turn(&mut broker, &mut [&mut exchange]);
                }
                _ => {
                    let peer = http1::connect(&mut broker);
                    let answer = http1::say(&mut broker, peer, &get(form));
                    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
                }
            }
        }
        broker.wires[0].is_stalled = true;
        broker.stays_in_turn = true;
        let before = sent_bytes(&broker);
        broker.burst(publisher, &packet(&vec![byte; BYTES]));
        let mut all = sent_bytes(&broker);
        assert!(all - before < PER_TURN, "{form}: {} at once", all - before);
        let mut quiet_turns = 0;
        while quiet_turns < 3 {
            broker.one_turn();
            let now = sent_bytes(&broker);
            let most = PER_TURN + HIGH_WATERMARK;
            assert!(now - all <= most, "{form}: {} in one turn", now - all);
            quiet_turns = if now == all { quiet_turns + 1 } else { 0 };
            all = now;
        }
        let each = (all - before) / READERS;
        assert!(each > 32 << 10, "{form}: {each} each");
        assert!(each <= HIGH_WATERMARK + SLACK, "{form}: {each} each");
    }
}

#[test]
fn a_reader_of_http1_gets_the_whole_message() {
    for form in [LINES, EVENTS, FRAMES] {
        let mut broker = http1::broker();
        let publisher = publisher(&mut broker);
        let peer = http1::connect(&mut broker);
        let mut answer = http1::say(&mut broker, peer, &get(form)).into_bytes();
        broker.wires[0].is_stalled = true;
        let payload = vec![1; 300_000];
        send(&mut broker, publisher, &payload);
        loop {
            let more = broker.take(peer);
            assert!(more.len() <= HIGH_WATERMARK + SLACK, "{}", more.len());
            answer.extend_from_slice(&more);
            if more.is_empty() {
                break;
            }
            broker.writable(peer);
        }
        assert!(is_it(form, &unchunked(&answer), &payload), "{form}");
        // No sign of life comes within a message, and the next one comes behind it.
        broker.advance(60_000);
        send(&mut broker, publisher, b"next");
        assert!(broker.take(peer).windows(4).any(|four| four == b"next"));
    }
}

#[test]
fn a_reader_of_http2_gets_the_whole_message_in_its_windows() {
    for form in [LINES, EVENTS, FRAMES] {
        let mut broker = http1::broker();
        let publisher = publisher(&mut broker);
        let mut client = h2_client::Client::connect(&mut broker, b"");
        let path = format!("{TOPIC}?qos=1");
        let mut exchange = client.begin("GET", &path, &[("accept", form)], Some(b""));
        client.turn(&mut broker, &mut [&mut exchange]);
        exchange.reads = false;
        let payload = vec![1; 300_000];
        send(&mut broker, publisher, &payload);
        client.turn(&mut broker, &mut [&mut exchange]);
        exchange.reads = true;
        client.turn(&mut broker, &mut [&mut exchange]);
        assert!(is_it(form, &exchange.content, &payload), "{form}");
    }
}

/// Reads until nothing comes any more, a high watermark at most each time.
fn read_slowly(broker: &mut Broker, client: &mut Client) {
    while {
        broker.writable(client.peer);
        client.read(broker)
    } {
        client.flush(broker);
    }
}

#[test]
fn a_reader_of_http3_gets_the_whole_message() {
    for form in [LINES, EVENTS, FRAMES] {
        let mut broker = Broker::new();
        let publisher = publisher(&mut broker);
        let mut client = Client::connect(&mut broker);
        let path = format!("{TOPIC}?qos=1");
        let number = client.request(&mut broker, "GET", &path, &[("accept", form)], b"");
        broker.wires[0].is_stalled = true;
        let payload = vec![1; 300_000];
        send(&mut broker, publisher, &payload);
        read_slowly(&mut broker, &mut client);
        let content = &client.response(number).content;
        assert!(is_it(form, content, &payload), "{form}: {}", content.len());
    }
}

#[test]
fn a_session_of_webtransport_gets_the_whole_message_in_pieces() {
    let mut broker = Broker::new();
    broker.wires[0].datagram_bytes = 1_200;
    let publisher = publisher(&mut broker);
    let features = Features {
        extended_connect: true,
        datagrams: true,
        webtransport: true,
    };
    let mut client = Client::connect_with(&mut broker, features);
    let path = format!("{TOPIC}?qos=1");
    (client.engine)
        .connect_session("localhost", &path, &[], &mut client.out)
        .expect("settings that allow it");
    client.turn(&mut broker);
    broker.wires[0].is_stalled = true;
    let payload = vec![1; 2_000_000];
    let before = sent_bytes(&broker);
    send(&mut broker, publisher, &payload);
    let waits = sent_bytes(&broker) - before;
    assert!(waits <= HIGH_WATERMARK + SLACK, "{waits}");
    read_slowly(&mut broker, &mut client);
    let (_, content) = client.heard.streams.pop_first().expect("deliveries");
    assert!(is_it(FRAMES, &content, &payload), "{}", content.len());
}

#[test]
fn a_poll_ends_with_a_long_message() {
    let mut broker = Broker::new();
    let publisher = publisher(&mut broker);
    let mut client = Client::connect(&mut broker);
    let path = format!("{TOPIC}?qos=1&wait=30s");
    let array = [("accept", "application/json")];
    let number = client.request(&mut broker, "GET", &path, &array, b"");
    broker.wires[0].is_stalled = true;
    let before = sent_bytes(&broker);
    send(&mut broker, publisher, &vec![1; 300_000]);
    let waits = sent_bytes(&broker) - before;
    assert!(waits <= HIGH_WATERMARK + SLACK, "{waits}");
    read_slowly(&mut broker, &mut client);
    client.turn(&mut broker);
    let response = client.response(number).clone();
    assert!(response.is_complete);
    let expected = format!("[{}]", object(300_000, ""));
    assert!(response.content == expected.as_bytes());
    let link = response.field("link").expect("a link");
    assert!(link.contains("after=1>"), "{link}");
    // The next one goes on behind it.
    let path = link[1..link.find('>').expect("an end")].to_owned();
    let number = client.request(&mut broker, "GET", &path, &array, b"");
    send(&mut broker, publisher, b"next");
    client.turn(&mut broker);
    let text = String::from_utf8(client.response(number).content.clone()).expect("text");
    assert!(
        text.contains("\"payload\":\"next\"") && text.contains("\"id\":2"),
        "{text}"
    );
}

#[test]
fn a_session_that_is_taken_over_within_a_message_has_it_again() {
    for takes_over in [true, false] {
        let mut broker = Broker::new();
        let publisher = publisher(&mut broker);
        let mut client = Client::connect(&mut broker);
        let path = format!("{TOPIC}?qos=1&session=s1");
        let first = client.request(&mut broker, "GET", &path, &[], b"");
        assert_eq!(client.response(first).status, 200);
        broker.wires[0].is_stalled = true;
        send(&mut broker, publisher, &vec![1; 300_000]);
        if !takes_over {
            broker.stop_reading_with(client.peer, StreamId(first), 0x10c);
        }
        let mut other = Client::connect(&mut broker);
        let second = other.request(&mut broker, "GET", &path, &[], b"");
        read_slowly(&mut broker, &mut other);
        let expected = format!("{}\n", object(300_000, ",\"redelivered\":true"));
        let content = &other.response(second).content;
        assert!(content == expected.as_bytes(), "{}", content.len());
        if takes_over {
            // The response does not end as if it were whole.
            client.read(&mut broker);
            let response = client.response(first);
            assert!(!response.is_complete && response.reset.is_some());
            assert!(response.content.len() < 600_000);
        }
    }
}
