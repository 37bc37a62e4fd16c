//! What a peer can do wrong with frames and streams, the code that it is told, and how much it
//! loses.

use sterna_h3::{Content, ErrorCode, Features, Limits, RequestLine, Scope, StreamId};

use crate::harness::{ALL, End, frame, get, headers, integers};

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
fn on_control_streams() {
    const UNEXPECTED: ErrorCode = ErrorCode::H3_FRAME_UNEXPECTED;
    let fresh = || End::server(&Limits::default(), ALL);
    check(
        fresh,
        vec![
            (
                "another frame than SETTINGS first",
                vec![Sends(2, then(&[&[0], &frame(7, &[0])]))],
                ErrorCode::H3_MISSING_SETTINGS,
                CONNECTION,
            ),
            (
                "grease first",
                vec![Sends(2, then(&[&[0], &frame(0x21, &[])]))],
                ErrorCode::H3_MISSING_SETTINGS,
                CONNECTION,
            ),
            (
                "it ends",
                vec![Sends(2, control()), Ends(2)],
                ErrorCode::H3_CLOSED_CRITICAL_STREAM,
                CONNECTION,
            ),
            (
                "it ends at once",
                vec![Sends(2, vec![0]), Ends(2)],
                ErrorCode::H3_CLOSED_CRITICAL_STREAM,
                CONNECTION,
            ),
            (
                "it ends within a frame",
                vec![Sends(2, vec![0, 4, 7, 6]), Ends(2)],
                ErrorCode::H3_CLOSED_CRITICAL_STREAM,
                CONNECTION,
            ),
            (
                "it is reset",
                vec![Sends(2, vec![0]), Resets(2)],
                ErrorCode::H3_CLOSED_CRITICAL_STREAM,
                CONNECTION,
            ),
            (
                "this end's is stopped",
                vec![Stops(3)],
                ErrorCode::H3_CLOSED_CRITICAL_STREAM,
                CONNECTION,
            ),
            (
                "there are two",
                vec![Sends(2, control()), Sends(6, vec![0])],
                ErrorCode::H3_STREAM_CREATION_ERROR,
                CONNECTION,
            ),
            (
                "a setting of HTTP/2",
                vec![Sends(2, then(&[&[0], &frame(4, &[2, 0])]))],
                ErrorCode::H3_SETTINGS_ERROR,
                CONNECTION,
            ),
            (
                "a setting twice",
                vec![Sends(2, then(&[&[0], &frame(4, &[6, 1, 6, 1])]))],
                ErrorCode::H3_SETTINGS_ERROR,
                CONNECTION,
            ),
            (
                "a setting that is no flag",
                vec![Sends(2, then(&[&[0], &frame(4, &[0x33, 2])]))],
                ErrorCode::H3_SETTINGS_ERROR,
                CONNECTION,
            ),
            (
                "a setting without a value",
                vec![Sends(2, then(&[&[0], &frame(4, &[6])]))],
                ErrorCode::H3_FRAME_ERROR,
                CONNECTION,
            ),
        ],
    );
    let sends = |bytes: Vec<u8>| vec![Sends(2, bytes)];
    let mut rows = vec![
        (
            "SETTINGS twice",
            sends(frame(4, &[])),
            UNEXPECTED,
            CONNECTION,
        ),
        ("DATA", sends(frame(0, b"x")), UNEXPECTED, CONNECTION),
        ("HEADERS", sends(get()), UNEXPECTED, CONNECTION),
        (
            "PUSH_PROMISE",
            sends(frame(5, &[0, 0, 0])),
            UNEXPECTED,
            CONNECTION,
        ),
        (
            "GOAWAY without a number",
            sends(frame(7, &[])),
            ErrorCode::H3_FRAME_ERROR,
            CONNECTION,
        ),
        (
            "GOAWAY that is cut off",
            sends(frame(7, &[0x40])),
            ErrorCode::H3_FRAME_ERROR,
            CONNECTION,
        ),
        (
            "GOAWAY with more",
            sends(frame(7, &[0, 0])),
            ErrorCode::H3_FRAME_ERROR,
            CONNECTION,
        ),
        (
            "GOAWAY with much more",
            sends(frame(7, &[0; 9])),
            ErrorCode::H3_FRAME_ERROR,
            CONNECTION,
        ),
        (
            "GOAWAY that grows",
            sends(then(&[&frame(7, &[1]), &frame(7, &[2])])),
            ErrorCode::H3_ID_ERROR,
            CONNECTION,
        ),
        (
            "MAX_PUSH_ID that falls",
            sends(then(&[&frame(13, &[2]), &frame(13, &[1])])),
            ErrorCode::H3_ID_ERROR,
            CONNECTION,
        ),
        (
            "MAX_PUSH_ID with more",
            sends(frame(13, &[2, 2])),
            ErrorCode::H3_FRAME_ERROR,
            CONNECTION,
        ),
        (
            "CANCEL_PUSH of no push",
            sends(frame(3, &[0])),
            ErrorCode::H3_ID_ERROR,
            CONNECTION,
        ),
        (
            "CANCEL_PUSH without a number",
            sends(frame(3, &[])),
            ErrorCode::H3_FRAME_ERROR,
            CONNECTION,
        ),
        (
            "priority of a server's stream",
            sends(frame(0xf0700, &[1])),
            ErrorCode::H3_ID_ERROR,
            CONNECTION,
        ),
        (
            "priority without a stream",
            sends(frame(0xf0700, &[])),
            ErrorCode::H3_FRAME_ERROR,
            CONNECTION,
        ),
        (
            "priority of no push",
            sends(frame(0xf0701, &[0])),
            ErrorCode::H3_ID_ERROR,
            CONNECTION,
        ),
    ];
    for frame_type in [2, 6, 8, 9] {
        rows.push((
            "a frame of HTTP/2",
            sends(frame(frame_type, &[])),
            UNEXPECTED,
            CONNECTION,
        ));
    }
    check(server, rows);
    let sends = |bytes: Vec<u8>| vec![Sends(3, bytes)];
    check(
        client,
        vec![
            (
                "MAX_PUSH_ID of a server",
                sends(frame(13, &[0])),
                UNEXPECTED,
                CONNECTION,
            ),
            (
                "PRIORITY_UPDATE of a server",
                sends(frame(0xf0700, &[0])),
                UNEXPECTED,
                CONNECTION,
            ),
            (
                "PRIORITY_UPDATE of a server",
                sends(frame(0xf0701, &[0])),
                UNEXPECTED,
                CONNECTION,
            ),
            (
                "GOAWAY with what is no request",
                sends(frame(7, &[1])),
                ErrorCode::H3_ID_ERROR,
                CONNECTION,
            ),
            (
                "GOAWAY that grows",
                sends(then(&[&frame(7, &[4]), &frame(7, &[8])])),
                ErrorCode::H3_ID_ERROR,
                CONNECTION,
            ),
            (
                "CANCEL_PUSH of no push",
                sends(frame(3, &[0])),
                ErrorCode::H3_ID_ERROR,
                CONNECTION,
            ),
        ],
    );
}

#[test]
fn on_other_unidirectional_streams() {
    const CREATION: ErrorCode = ErrorCode::H3_STREAM_CREATION_ERROR;
    const CLOSED: ErrorCode = ErrorCode::H3_CLOSED_CRITICAL_STREAM;
    check(
        server,
        vec![
            (
                "a client pushes",
                vec![Sends(6, vec![1])],
                CREATION,
                CONNECTION,
            ),
            (
                "two encoders",
                vec![Sends(6, vec![2]), Sends(10, vec![2])],
                CREATION,
                CONNECTION,
            ),
            (
                "two decoders",
                vec![Sends(6, vec![3]), Sends(10, vec![3])],
                CREATION,
                CONNECTION,
            ),
            (
                "the encoder ends",
                vec![Sends(6, vec![2]), Ends(6)],
                CLOSED,
                CONNECTION,
            ),
            (
                "the decoder is reset",
                vec![Sends(6, vec![3]), Resets(6)],
                CLOSED,
                CONNECTION,
            ),
            (
                "a table",
                vec![Sends(6, vec![2, 0x3f, 0xbd, 0x01])],
                ErrorCode::QPACK_ENCODER_STREAM_ERROR,
                CONNECTION,
            ),
            (
                "an insertion with a name",
                vec![Sends(6, vec![2, 0xc0, 1, b'x'])],
                ErrorCode::QPACK_ENCODER_STREAM_ERROR,
                CONNECTION,
            ),
            (
                "an insertion",
                vec![Sends(6, vec![2, 0x41, b'x', 1, b'y'])],
                ErrorCode::QPACK_ENCODER_STREAM_ERROR,
                CONNECTION,
            ),
            (
                "a duplicate",
                vec![Sends(6, vec![2, 0x00])],
                ErrorCode::QPACK_ENCODER_STREAM_ERROR,
                CONNECTION,
            ),
            (
                "a section acknowledged",
                vec![Sends(6, vec![3, 0x84])],
                ErrorCode::QPACK_DECODER_STREAM_ERROR,
                CONNECTION,
            ),
            (
                "insertions acknowledged",
                vec![Sends(6, vec![3, 0x01])],
                ErrorCode::QPACK_DECODER_STREAM_ERROR,
                CONNECTION,
            ),
            (
                "an integer without an end",
                vec![Sends(6, [&[3, 0x7f][..], &[0xff; 12]].concat())],
                ErrorCode::QPACK_DECODER_STREAM_ERROR,
                CONNECTION,
            ),
        ],
    );
    check(
        client,
        vec![
            (
                "a push",
                vec![Sends(7, vec![1])],
                ErrorCode::H3_ID_ERROR,
                CONNECTION,
            ),
            (
                "a bidirectional stream",
                vec![Sends(1, vec![0])],
                CREATION,
                CONNECTION,
            ),
        ],
    );
}

#[test]
fn on_streams_of_requests() {
    const UNEXPECTED: ErrorCode = ErrorCode::H3_FRAME_UNEXPECTED;
    const FRAME: ErrorCode = ErrorCode::H3_FRAME_ERROR;
    const QPACK: ErrorCode = ErrorCode::QPACK_DECOMPRESSION_FAILED;
    let sends = |parts: &[&[u8]]| vec![Sends(0, parts.concat())];
    let ends = |parts: &[&[u8]]| vec![Sends(0, parts.concat()), Ends(0)];
    let trailers = headers(&[("t", "1")]);
    let connect = headers(&[(":method", "CONNECT"), (":authority", "a:1")]);
    let mut rows = vec![
        (
            "DATA first",
            sends(&[&frame(0, b"x")]),
            UNEXPECTED,
            CONNECTION,
        ),
        (
            "DATA after trailers",
            sends(&[&get(), &trailers, &frame(0, b"x")]),
            UNEXPECTED,
            CONNECTION,
        ),
        (
            "HEADERS after trailers",
            sends(&[&get(), &trailers, &trailers]),
            UNEXPECTED,
            CONNECTION,
        ),
        (
            "trailers of CONNECT",
            sends(&[&connect, &trailers]),
            UNEXPECTED,
            CONNECTION,
        ),
        (
            "the end within a header",
            ends(&[&get(), &[0]]),
            FRAME,
            CONNECTION,
        ),
        (
            "the end within DATA",
            ends(&[&get(), &[0, 2, 1]]),
            FRAME,
            CONNECTION,
        ),
        (
            "the end within HEADERS",
            ends(&[&get()[..5]]),
            FRAME,
            CONNECTION,
        ),
        (
            "the end within an unknown frame",
            ends(&[&get(), &[0x21, 2, 1]]),
            FRAME,
            CONNECTION,
        ),
        (
            "the end before anything",
            vec![Ends(0)],
            ErrorCode::H3_REQUEST_INCOMPLETE,
            Some(0),
        ),
        (
            "the end before the head",
            ends(&[&frame(0x21, b"x")]),
            ErrorCode::H3_REQUEST_INCOMPLETE,
            Some(0),
        ),
        (
            "a push by a client",
            sends(&[&frame(5, &[0, 0, 0])]),
            UNEXPECTED,
            CONNECTION,
        ),
        ("an empty section", sends(&[&[1, 0]]), QPACK, CONNECTION),
        (
            "a section that needs a table",
            sends(&[&frame(1, &[2, 0, 0x80])]),
            QPACK,
            CONNECTION,
        ),
        (
            "an entry of a table",
            sends(&[&frame(1, &[0, 0, 0x80])]),
            QPACK,
            CONNECTION,
        ),
        (
            "an entry that is not there",
            sends(&[&frame(1, &[0, 0, 0xff, 0x24])]),
            QPACK,
            CONNECTION,
        ),
        (
            "trailers that need a table",
            sends(&[&get(), &frame(1, &[0, 0, 0x10])]),
            QPACK,
            CONNECTION,
        ),
        (
            "padding of Huffman",
            sends(&[&frame(1, &[0, 0, 0x51, 0x81, 0])]),
            QPACK,
            CONNECTION,
        ),
        (
            "a malformed head",
            sends(&[&headers(&[("a", "b")])]),
            ErrorCode::H3_MESSAGE_ERROR,
            Some(0),
        ),
        (
            "a session's stream that began as a request",
            sends(&[&get(), &integers(&[0x41])]),
            FRAME,
            CONNECTION,
        ),
    ];
    for frame_type in [2, 3, 4, 6, 7, 8, 9, 13, 0xf0700, 0xf0701] {
        let first = sends(&[&frame(frame_type, &[0])]);
        let later = sends(&[&get(), &frame(frame_type, &[0])]);
        rows.push((
            "a frame that is not of a request",
            first,
            UNEXPECTED,
            CONNECTION,
        ));
        rows.push((
            "a frame that is not of a request",
            later,
            UNEXPECTED,
            CONNECTION,
        ));
    }
    check(server, rows);
    let ok = headers(&[(":status", "200")]);
    check(
        client,
        vec![
            (
                "a push",
                sends(&[&frame(5, &[0, 0, 0])]),
                ErrorCode::H3_ID_ERROR,
                CONNECTION,
            ),
            (
                "a push after the head",
                sends(&[&ok, &frame(5, &[0, 0, 0])]),
                ErrorCode::H3_ID_ERROR,
                CONNECTION,
            ),
            (
                "MAX_PUSH_ID",
                sends(&[&frame(13, &[0])]),
                UNEXPECTED,
                CONNECTION,
            ),
            (
                "DATA first",
                sends(&[&frame(0, b"x")]),
                UNEXPECTED,
                CONNECTION,
            ),
            (
                "DATA after an interim head",
                sends(&[&headers(&[(":status", "100")]), &frame(0, b"x")]),
                UNEXPECTED,
                CONNECTION,
            ),
            (
                "HEADERS after trailers",
                sends(&[&ok, &trailers, &trailers]),
                UNEXPECTED,
                CONNECTION,
            ),
            (
                "no head",
                vec![Ends(0)],
                ErrorCode::H3_MESSAGE_ERROR,
                Some(0),
            ),
            (
                "no final head",
                ends(&[&headers(&[(":status", "100")])]),
                ErrorCode::H3_MESSAGE_ERROR,
                Some(0),
            ),
        ],
    );
}

#[test]
fn with_datagrams_and_sessions() {
    const MESSAGE: ErrorCode = ErrorCode::H3_MESSAGE_ERROR;
    let session = headers(&[
        (":method", "CONNECT"),
        (":protocol", "webtransport"),
        (":scheme", "https"),
        (":authority", "a"),
        (":path", "/"),
    ]);
    let asks = |bytes: &[u8]| vec![Sends(0, session.clone()), Sends(0, frame(0, bytes))];
    let capsule = |capsule_type, payload: &[u8]| frame(capsule_type, payload);
    check(
        server,
        vec![
            (
                "a datagram without a stream",
                vec![Datagram(vec![])],
                ErrorCode::H3_DATAGRAM_ERROR,
                CONNECTION,
            ),
            (
                "a datagram of no stream",
                vec![Datagram(vec![0xff; 8])],
                ErrorCode::H3_DATAGRAM_ERROR,
                CONNECTION,
            ),
            (
                "a datagram of a plain request",
                vec![Sends(0, get()), Datagram(vec![0, 1])],
                ErrorCode::H3_DATAGRAM_ERROR,
                Some(0),
            ),
            (
                "a session that is no request",
                vec![Sends(6, integers(&[0x54, 2]))],
                ErrorCode::H3_ID_ERROR,
                CONNECTION,
            ),
            (
                "a session that is no request",
                vec![Sends(0, integers(&[0x41, 1]))],
                ErrorCode::H3_ID_ERROR,
                CONNECTION,
            ),
            (
                "an end without a code",
                asks(&capsule(0x2843, &[0; 3])),
                MESSAGE,
                Some(0),
            ),
            (
                "an end with a long reason",
                asks(&capsule(0x2843, &[b'x'; 1029])),
                MESSAGE,
                Some(0),
            ),
            (
                "an end with what is no text",
                asks(&capsule(0x2843, &[0, 0, 0, 0, 0xff])),
                MESSAGE,
                Some(0),
            ),
            (
                "drain with more",
                asks(&capsule(0x78ae, &[0])),
                MESSAGE,
                Some(0),
            ),
            (
                "more after the end",
                asks(&[&capsule(0x2843, &[0; 4])[..], &[0]].concat()),
                MESSAGE,
                Some(0),
            ),
            (
                "the stream ends within a capsule",
                {
                    let mut what = asks(&[0x68, 0x43, 4]);
                    what.push(Ends(0));
                    what
                },
                MESSAGE,
                Some(0),
            ),
            (
                "trailers of a session",
                vec![Sends(0, session.clone()), Sends(0, headers(&[("t", "1")]))],
                ErrorCode::H3_FRAME_UNEXPECTED,
                CONNECTION,
            ),
        ],
    );
    let client = || End::client(&Limits::default(), ALL);
    check(
        client,
        vec![
            (
                "a datagram of what was not asked",
                vec![Datagram(vec![0, 1])],
                ErrorCode::H3_ID_ERROR,
                CONNECTION,
            ),
            (
                "a stream of what was not asked",
                vec![Sends(7, integers(&[0x54, 0]))],
                ErrorCode::H3_ID_ERROR,
                CONNECTION,
            ),
            (
                "another stream of a server",
                vec![Sends(1, integers(&[0x42]))],
                ErrorCode::H3_STREAM_CREATION_ERROR,
                CONNECTION,
            ),
        ],
    );
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
