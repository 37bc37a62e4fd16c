//! What a peer can do wrong with frames and streams, the code that it is told, and how much it
//! loses.

mod control;
mod requests;
mod sessions;

use sterna_h3::{Content, ErrorCode, Features, Limits, RequestLine, Scope, StreamId};

use crate::harness::{ALL, End, frame, get};

/// What the peer does, one after the other.
#[derive(Debug)]
enum Does {
    /// Bytes of a stream.
    Sends(u64, Vec<u8>),
    /// The end of a stream.
    Ends(u64),
    /// RESET_STREAM.
    Resets(u64),
    /// STOP_SENDING.
    Stops(u64),
    /// A datagram.
    Datagram(Vec<u8>),
}
use Does::{Datagram, Ends, Resets, Sends, Stops};

const CONNECTION: Option<u64> = None;

fn play(end: &mut End, what: &[Does]) {
    for step in what {
        match step {
            Sends(stream, bytes) => end.feed(*stream, bytes, false),
            Ends(stream) => end.feed(*stream, &[], true),
            Resets(stream) => end.reset(*stream, ErrorCode(0x10c), &mut |_, _, _| {}),
            Stops(stream) => end.stopped(*stream, ErrorCode(0x10c), &mut |_, _, _| {}),
            Datagram(bytes) => end.datagram(bytes),
        }
    }
}

/// Plays it twice, in whole and byte by byte, and says what came of it.
fn judge(mut end: impl FnMut() -> End, what: &[Does]) -> Vec<(ErrorCode, Option<u64>)> {
    let mut whole = end();
    play(&mut whole, what);
    let mut by_byte = end();
    for step in what {
        match step {
            Sends(stream, bytes) => bytes
                .iter()
                .for_each(|byte| by_byte.feed(*stream, &[*byte], false)),
            other => play(&mut by_byte, std::slice::from_ref(other)),
        }
    }
    assert_eq!(whole.violations, by_byte.violations, "{what:?}");
    whole
        .violations
        .iter()
        .map(|violation| match violation.scope {
            Scope::Connection => {
                assert!(whole.connection.is_closed());
                (violation.code, CONNECTION)
            }
            Scope::Stream(stream) => {
                // It was told there, where it could be.
                let (reset, stop) = whole.out.ended(stream.0);
                let code = Some(violation.code);
                assert!(reset == code || stop == code);
                (violation.code, Some(stream.0))
            }
        })
        .collect()
}

fn check(end: fn() -> End, rows: Vec<(&str, Vec<Does>, ErrorCode, Option<u64>)>) {
    for (why, what, code, scope) in rows {
        assert_eq!(judge(end, &what), [(code, scope)], "{why}");
    }
}

/// A server that knows the client's settings, with WebTransport.
fn server() -> End {
    let mut server = End::server(&Limits::default(), ALL);
    server.feed(2, &control(), false);
    server
}

/// A client that knows the server's settings and has sent one request, which goes on.
fn client() -> End {
    let mut client = End::client(&Limits::default(), Features::default());
    client.feed(3, &control(), false);
    let line = RequestLine::https("POST", "a", "/");
    client
        .connection
        .request(&line, &[], Content::Streamed, &mut client.out)
        .unwrap();
    client
}

/// The start of a control stream.
fn control() -> Vec<u8> {
    vec![0, 4, 0]
}

fn then(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

#[test]
fn after_the_end_nothing_counts() {
    let mut server = server();
    server.feed(0, &frame(0, b"x"), false);
    assert_eq!(server.violations.len(), 1);
    server.feed(4, &get(), true);
    server.feed(2, &[4, 0], true);
    server.reset(2, ErrorCode::H3_NO_ERROR, &mut |_, _, _| {});
    server.stopped(3, ErrorCode::H3_NO_ERROR, &mut |_, _, _| {});
    server.datagram(&[]);
    assert_eq!(server.violations.len(), 1);
    assert_eq!(server.log.take(), ["settings"]);
    let refused = server
        .connection
        .cancel(StreamId(4), ErrorCode::H3_NO_ERROR, &mut server.out);
    assert_eq!(refused, Err(sterna_h3::CommandError::Closed));
    assert!(server.connection.go_away(true, &mut server.out).is_err());
}

/// What does not concern the peer's streams is nobody's fault.
#[test]
fn what_the_transport_may_say_late() {
    let mut server = server();
    server.feed(0, &get(), true);
    server.feed(0, b"after the end", true);
    server.reset(0, ErrorCode::H3_NO_ERROR, &mut |_, _, _| {});
    server.feed(7, b"own", true);
    server.stopped(6, ErrorCode::H3_NO_ERROR, &mut |_, _, _| {});
    server.reset(6, ErrorCode::H3_NO_ERROR, &mut |_, _, _| {});
    server.feed(6, &[1], true);
    server.feed(10, &[], true);
    server.feed(10, &[1], true);
    assert_eq!(server.violations, []);
    assert_eq!(
        server.log.take(),
        ["settings", "s0 request GET /", "s0 end"]
    );
}
