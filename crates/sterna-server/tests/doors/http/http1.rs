//! HTTP/1.1, as it is carried: raw bytes in and out.

use sterna_net::{StreamId, TransportKind};
use sterna_server::config::{Config, Listener};

use crate::fixture::{Broker, Peer};

/// A broker with a listener of HTTP on TCP.
pub(crate) fn broker() -> Broker {
    broker_with(|_| {})
}

pub(crate) fn broker_with(change: impl FnOnce(&mut Config)) -> Broker {
    let mut config = Config {
        listeners: vec![Listener::at("http://127.0.0.1:0")],
        ..crate::fixture::everybodys()
    };
    change(&mut config);
    Broker::with(&config, 1)
}

pub(crate) fn connect(broker: &mut Broker) -> Peer {
    broker.open_speaking(b"", 0, TransportKind::Tcp, Vec::new())
}

/// Sends, and gives back what was answered.
pub(crate) fn say(broker: &mut Broker, peer: Peer, bytes: &str) -> String {
    broker.send(peer, bytes.as_bytes());
    String::from_utf8(broker.take(peer)).expect("text")
}

const GET: &str = "GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n";

#[test]
fn requests_are_answered_one_after_the_other_on_one_connection() {
    let mut broker = broker();
    let peer = connect(&mut broker);
    for _ in 0..3 {
        let answer = say(&mut broker, peer, GET);
        assert!(answer.starts_with("HTTP/1.1 404 Not Found\r\n"), "{answer}");
        assert!(
            answer.contains("date: Tue, 14 Nov 2023 22:13:20 GMT\r\n"),
            "{answer}"
        );
    }
    // Several at once, the last one in pieces.
    let answer = say(&mut broker, peer, &format!("{GET}{GET}{}", &GET[..20]));
    assert_eq!(answer.matches("HTTP/1.1 404").count(), 2, "{answer}");
    let answer = say(&mut broker, peer, &GET[20..]);
    assert_eq!(answer.matches("HTTP/1.1 404").count(), 1, "{answer}");
    assert!(!broker.is_closed(peer));
    // A client that ends its side is done.
    broker.finish(peer, StreamId::FIRST);
    assert!(broker.is_closed(peer));
}

/// Asks, and ends the client's side. Returns what was answered until then.
fn ask_and_end(broker: &mut Broker, request: &str) -> (Peer, String) {
    let peer = connect(broker);
    let answer = say(broker, peer, request);
    broker.finish(peer, StreamId::FIRST);
    (peer, answer)
}

fn heard(broker: &mut Broker, peer: Peer) -> String {
    String::from_utf8(broker.take(peer)).expect("text")
}

fn post(broker: &mut Broker, payload: &str) {
    let other = connect(broker);
    let length = payload.len();
    let head = format!(
        "POST /v1/topics/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{payload}"
    );
    let answer = say(broker, other, &head);
    assert!(answer.starts_with("HTTP/1.1 204 "), "{answer}");
}

/// A client that ends its side asks nothing more, and waits for what it has asked (RFC 9112, section 9.6).
#[test]
fn a_poll_outlives_the_end_of_its_clients_side() {
    let mut broker = broker();
    for (version, interim) in [("1.1", "HTTP/1.1 100 Continue\r\n\r\n"), ("1.0", "")] {
        let get = format!("GET /v1/topics/a?wait=30s HTTP/{version}\r\nHost: localhost\r\n\r\n");
        let (peer, _) = ask_and_end(&mut broker, &get);
        assert_eq!(heard(&mut broker, peer), interim, "{version}");
        broker.advance(20_000);
        assert!(!broker.is_closed(peer), "{version}");
        assert!(broker.wires[0].kept_half_closed.contains(&peer.id));
        post(&mut broker, "late");
        let answer = heard(&mut broker, peer);
        assert!(answer.contains(" 200 OK\r\n"), "{answer}");
        assert!(answer.contains("late"), "{answer}");
        assert!(broker.is_closed(peer), "nothing more is to come");
        // One that gets nothing.
        let (peer, _) = ask_and_end(&mut broker, &get);
        heard(&mut broker, peer);
        broker.advance(30_000);
        let answer = heard(&mut broker, peer);
        assert!(answer.contains(" 204 No Content\r\n"), "{answer}");
        assert!(broker.is_closed(peer));
    }
}

/// A stream of events goes on. A sign of life at once finds out a client that has closed both sides.
#[test]
fn a_stream_of_events_outlives_the_end_of_its_clients_side() {
    let mut broker = broker();
    let get = "GET /v1/topics/a HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n";
    let (peer, answer) = ask_and_end(&mut broker, get);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(heard(&mut broker, peer), "3\r\n:\n\n\r\n");
    for (at, payload) in ["first", "second"].into_iter().enumerate() {
        broker.advance(600_000);
        assert!(!heard(&mut broker, peer).is_empty(), "heartbeats");
        post(&mut broker, payload);
        let event = heard(&mut broker, peer);
        assert!(event.contains(payload), "{at}: {event}");
        assert!(!broker.is_closed(peer), "{at}");
    }
    broker.cut(peer);
    let (sessions, _) = broker.sessions(0);
    assert!(sessions.iter().all(|session| session.consumer.is_none()));
}

/// What the client has cut off is refused, and requests behind the one that waits have their turn.
#[test]
fn what_was_asked_before_the_end_is_answered_in_order() {
    let mut broker = broker();
    let peer = connect(&mut broker);
    let poll = "GET /v1/topics/a?wait=1s HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert_eq!(say(&mut broker, peer, &format!("{poll}{GET}{GET}")), "");
    broker.finish(peer, StreamId::FIRST);
    broker.advance(1_000);
    let answer = heard(&mut broker, peer);
    let statuses: Vec<&str> = (answer.split("HTTP/1.1 ").skip(1))
        .map(|answer| &answer[..3])
        .collect();
    assert_eq!(statuses, ["100", "204", "404", "404"], "{answer}");
    assert!(broker.is_closed(peer));
    // A content that ends too early is none.
    let peer = connect(&mut broker);
    let post = "POST /v1/topics/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc";
    assert_eq!(say(&mut broker, peer, post), "");
    broker.finish(peer, StreamId::FIRST);
    let answer = heard(&mut broker, peer);
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(broker.is_closed(peer));
}

#[test]
fn time_may_pass_between_requests_and_within_them() {
    let mut broker = broker();
    let peer = connect(&mut broker);
    let post = "POST /v1/topics/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc";
    // Cut anywhere, with a second and a half at the cut; what is behind a whole request, too.
    for cut in 1..post.len() {
        let answer = say(&mut broker, peer, &format!("{post}{}", &post[..cut]));
        assert!(answer.starts_with("HTTP/1.1 204 "), "{cut}: {answer}");
        broker.advance(1_500);
        let answer = say(&mut broker, peer, &post[cut..]);
        assert!(answer.starts_with("HTTP/1.1 204 "), "{cut}: {answer}");
        broker.advance(1_500);
        assert!(!broker.is_closed(peer), "{cut}");
    }
}

#[test]
fn a_head_that_comes_too_slowly_is_not_waited_for() {
    let mut broker = broker_with(|config| config.http.fields_timeout_ms = 1_000);
    let peer = connect(&mut broker);
    assert_eq!(say(&mut broker, peer, &GET[..20]), "");
    broker.advance(900);
    // What trickles in gains no time.
    assert_eq!(say(&mut broker, peer, &GET[20..21]), "");
    broker.advance(200);
    let answer = String::from_utf8(broker.take(peer)).expect("text");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(broker.is_closed(peer));
}

#[test]
fn a_content_that_comes_too_slowly_is_refused() {
    let mut broker = broker_with(|config| config.http.content_timeout_ms = 2_000);
    let peer = connect(&mut broker);
    let head = "POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n12345";
    assert_eq!(say(&mut broker, peer, head), "");
    broker.advance(1_900);
    assert_eq!(say(&mut broker, peer, "6"), "");
    broker.advance(200);
    let answer = String::from_utf8(broker.take(peer)).expect("text");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
}

#[test]
fn a_connection_that_nobody_uses_is_closed() {
    let mut broker = broker_with(|config| config.http.idle_timeout_ms = 5_000);
    let peer = connect(&mut broker);
    broker.advance(4_000);
    let answer = say(&mut broker, peer, GET);
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    broker.advance(4_900);
    assert!(!broker.is_closed(peer));
    broker.advance(200);
    assert!(broker.is_closed(peer));
    assert_eq!(broker.take(peer), b"");
}

#[test]
fn what_is_too_large_is_refused_with_its_status() {
    let mut broker = broker_with(|config| {
        config.http.maximum_content_bytes = 8;
        config.http.maximum_target_bytes = 32;
        config.http.maximum_fields_bytes = 1024;
    });
    let long = "x".repeat(40);
    let many = "A: b\r\n".repeat(40);
    let enormous = "x".repeat(100_000);
    for (request, status) in [
        (
            "POST / HTTP/1.1\r\nHost: l\r\nContent-Length: 9\r\n\r\n".to_owned(),
            413,
        ),
        (
            "POST / HTTP/1.1\r\nHost: l\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n123456789\r\n"
                .to_owned(),
            413,
        ),
        (format!("GET /{long} HTTP/1.1\r\nHost: l\r\n\r\n"), 414),
        (format!("GET / HTTP/1.1\r\nHost: l\r\n{many}\r\n"), 431),
        (format!("GET / HTTP/1.1\r\nHost: l\r\nA: {enormous}"), 431),
    ] {
        let peer = connect(&mut broker);
        let answer = say(&mut broker, peer, &request);
        let start = format!("HTTP/1.1 {status} ");
        assert!(answer.starts_with(&start), "{status}: {answer}");
    }
}

#[test]
fn who_was_refused_over_an_unread_content_hears_that_the_connection_closes() {
    for (request, closes) in [
        (
            "POST / HTTP/1.1\r\nHost: l\r\nContent-Length: 9\r\n\r\n",
            true,
        ),
        (
            "POST / HTTP/1.1\r\nHost: l\r\nContent-Length: 9\r\n\r\n123456789",
            true,
        ),
        (
            "POST / HTTP/1.1\r\nHost: l\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n123456789\r\n",
            true,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: 1\r\n\r\n",
            true,
        ),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", false),
    ] {
        let mut broker = broker_with(|config| config.http.maximum_content_bytes = 8);
        let peer = connect(&mut broker);
        let answer = say(&mut broker, peer, request);
        assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
        let says_so = answer.contains("\r\nconnection: close\r\n");
        assert_eq!(says_so, closes, "{request}: {answer}");
        assert_eq!(broker.is_closed(peer), closes, "{request}");
    }
}

#[test]
fn forms_that_others_may_read_otherwise_are_refused() {
    let mut broker = broker();
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: l\r\n\r\n";
    for request in [
        // No host, two of them.
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        // Lengths that contradict each other, or are none.
        "POST / HTTP/1.1\r\nHost: l\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        "POST / HTTP/1.1\r\nHost: l\r\nContent-Length: +1\r\n\r\nx",
        "POST / HTTP/1.1\r\nHost: l\r\nContent-Length: 1x\r\n\r\nx",
        // A coding that is not chunked at its end, or of HTTP/1.0.
        "POST / HTTP/1.1\r\nHost: l\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.0\r\nHost: l\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        // Blanks where none may be.
        "GET / HTTP/1.1\r\nHost : l\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: l\r\n folded: x\r\n\r\n",
        // A chunk whose size is none.
        "POST / HTTP/1.1\r\nHost: l\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ] {
        let peer = connect(&mut broker);
        let answer = say(&mut broker, peer, request);
        assert!(answer.starts_with("HTTP/1.1 400 "), "{request}: {answer}");
    }
    // With both, the coding counts and nothing behind it is read (RFC 9112, section 6.1).
    let peer = connect(&mut broker);
    let both = format!(
        "POST /nowhere HTTP/1.1\r\nHost: l\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n\
         0\r\n\r\n{smuggled}"
    );
    let answer = say(&mut broker, peer, &both);
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    assert!(broker.is_closed(peer));
}

#[test]
fn a_content_is_asked_for_where_the_client_waits_for_that() {
    let mut broker = broker();
    let peer = connect(&mut broker);
    let head = "POST /nowhere HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
    let answer = say(&mut broker, peer, head);
    assert_eq!(answer, "HTTP/1.1 100 Continue\r\n\r\n");
    let answer = say(&mut broker, peer, "ok");
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
}

#[test]
fn the_answer_to_head_has_no_content() {
    let mut broker = broker();
    let peer = connect(&mut broker);
    let head = GET.replace("GET", "HEAD");
    let answer = say(&mut broker, peer, &head);
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    assert!(answer.ends_with("\r\n\r\n"), "{answer}");
    assert!(answer.contains("content-length: "), "{answer}");
}

#[test]
fn a_broker_that_stops_ends_its_connections() {
    let mut broker = broker();
    let (idle, used) = (connect(&mut broker), connect(&mut broker));
    say(&mut broker, used, GET);
    broker.stop();
    assert!(broker.is_closed(idle) && broker.is_closed(used));
    assert!(broker.finished());
}
