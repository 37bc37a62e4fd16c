//! Every limit, at its edge and beyond.

use sterna_h3::{
    CommandError, Content, ErrorCode, Features, Field, Limits, RequestLine, Scope, StreamId,
};

use crate::harness::{ALL, End, connected, exchange, frame, get, headers, integers};

const GET: RequestLine<'_> = RequestLine::https("GET", "a", "/");
/// The fields of [`get`], as they count: names, values and 32 each.
const GET_SECTION_BYTES: u32 = (7 + 3) + (7 + 5) + (10 + 1) + (5 + 1) + 4 * 32;

fn server(limits: &Limits) -> End {
    let mut server = End::server(limits, ALL);
    server.feed(2, &[0, 4, 0], false);
    server.log.take();
    server
}

fn codes(end: &End) -> Vec<(ErrorCode, Scope)> {
    end.violations
        .iter()
        .map(|violation| (violation.code, violation.scope))
        .collect()
}

const fn stream(id: u64) -> Scope {
    Scope::Stream(StreamId(id))
}

const LOAD: ErrorCode = ErrorCode::H3_EXCESSIVE_LOAD;

#[test]
fn field_section_bytes() {
    let exact = Limits {
        max_field_section_bytes: GET_SECTION_BYTES,
        ..Limits::default()
    };
    let mut taken = server(&exact);
    taken.feed(0, &get(), true);
    assert!(taken.violations.is_empty());
    // One byte less, and the server answers; the connection goes on.
    let less = Limits {
        max_field_section_bytes: GET_SECTION_BYTES - 1,
        ..Limits::default()
    };
    let (mut client, mut server) = connected(&Limits::default(), Features::default());
    let mut strict = End::server(&less, Features::default());
    for (nth, content) in [Content::Empty, Content::Streamed].into_iter().enumerate() {
        let id = client
            .connection
            .request(&GET, &[], content, &mut client.out)
            .unwrap();
        strict.read(&mut client.out, id.0, usize::MAX, &mut |_, _, _| {});
        assert_eq!(codes(&strict)[nth..], [(LOAD, stream(id.0))]);
    }
    // The rest of a request that goes on is not wanted.
    assert_eq!(strict.out.ended(0), (None, None));
    assert_eq!(strict.out.ended(4), (None, Some(ErrorCode::H3_NO_ERROR)));
    client.read(&mut strict.out, 0, usize::MAX, &mut |_, _, _| {});
    assert_eq!(client.log.take(), ["s0 response 431", "s0 end"]);
    // A frame that is larger than any section may be is not waited for.
    server.feed(0, &[1, 0x80, 0, 0x40, 0, 0], false);
    assert_eq!(codes(&server), [(LOAD, stream(0))]);
    // The peer's own limit is kept.
    let refused = {
        let (mut client, mut server) = connected(&less, Features::default());
        exchange(&mut client, &mut server);
        client
            .connection
            .request(&GET, &[], Content::Empty, &mut client.out)
    };
    assert_eq!(refused, Err(CommandError::FieldSectionTooLarge));
}

#[test]
fn fields() {
    let limits = Limits {
        max_fields: 5,
        ..Limits::default()
    };
    let head = |more: usize| {
        let list = [
            (":method", "GET"),
            (":scheme", "https"),
            (":authority", "a"),
            (":path", "/"),
            ("a", "1"),
            ("b", "2"),
        ];
        headers(&list[..4 + more])
    };
    let mut server = server(&limits);
    server.feed(0, &head(1), true);
    assert_eq!(server.violations, []);
    server.feed(4, &head(2), true);
    assert_eq!(codes(&server), [(LOAD, stream(4))]);
    assert!(server.out.lane(StreamId(4)).fin);
    // A request that was told of already cannot have another response.
    let trailers = headers(&[
        ("a", ""),
        ("b", ""),
        ("c", ""),
        ("d", ""),
        ("e", ""),
        ("f", ""),
    ]);
    server.feed(8, &[head(0), trailers].concat(), false);
    assert_eq!(codes(&server)[1..], [(LOAD, stream(8))]);
    assert_eq!(server.out.ended(8), (Some(LOAD), Some(LOAD)));
    // A client has nobody to answer to.
    let (mut client, _) = connected(&limits, Features::default());
    let sent = client
        .connection
        .request(&GET, &[], Content::Empty, &mut client.out);
    assert_eq!(sent, Ok(StreamId(0)));
    let list = [
        (":status", "200"),
        ("a", ""),
        ("b", ""),
        ("c", ""),
        ("d", ""),
        ("e", ""),
    ];
    client.feed(0, &headers(&list), true);
    assert_eq!(codes(&client), [(LOAD, stream(0))]);
}

#[test]
fn requests() {
    let limits = Limits {
        max_requests: 2,
        ..Limits::default()
    };
    let mut server = server(&limits);
    for nth in 0..3 {
        server.feed(4 * nth, &get(), true);
    }
    assert_eq!(
        codes(&server),
        [(ErrorCode::H3_REQUEST_REJECTED, stream(8))]
    );
    assert_eq!(server.connection.open_requests(), 2);
    server
        .connection
        .respond(StreamId(0), 204, &[], Content::Empty, &mut server.out)
        .unwrap();
    server.feed(12, &get(), true);
    assert_eq!(server.violations.len(), 1);
}

#[test]
fn interim_responses() {
    let limits = Limits {
        max_interim_responses: 2,
        ..Limits::default()
    };
    let (mut client, _) = connected(&limits, Features::default());
    client
        .connection
        .request(&GET, &[], Content::Empty, &mut client.out)
        .unwrap();
    let interim = headers(&[(":status", "103")]);
    client.feed(0, &interim.repeat(2), false);
    assert_eq!(client.violations, []);
    client.feed(0, &interim, false);
    assert_eq!(codes(&client), [(LOAD, stream(0))]);
}

#[test]
fn streams_that_are_left_out() {
    let limits = Limits {
        max_skipped_streams: 3,
        ..Limits::default()
    };
    let mut server = server(&limits);
    server.feed(12, &get(), true);
    assert_eq!(server.violations, []);
    server.feed(20, &get(), true);
    assert_eq!(codes(&server), [(LOAD, Scope::Connection)]);
}

#[test]
fn bytes_that_are_held() {
    let limits = Limits {
        max_held_bytes: 10,
        ..Limits::default()
    };
    let mut server = server(&limits);
    server.feed(0, &get(), false);
    server.connection.hold(StreamId(0)).unwrap();
    server.feed(0, &[0; 4], false);
    server.feed(0, &[0; 6], false);
    assert_eq!(server.connection.held_bytes(StreamId(0)), 10);
    assert_eq!(server.violations, []);
    server.feed(0, &[0], false);
    assert_eq!(codes(&server), [(LOAD, stream(0))]);
    assert_eq!(server.connection.held_bytes(StreamId(0)), 0);
    // What is given up is held no longer.
    server.feed(4, &get(), false);
    server.connection.hold(StreamId(4)).unwrap();
    server.feed(4, &[0; 4], false);
    server.reset(4, ErrorCode::H3_REQUEST_CANCELLED, &mut |_, _, _| {});
    assert_eq!(server.connection.held_bytes(StreamId(4)), 0);
    assert_eq!(server.connection.open_requests(), 1);
}

#[test]
fn settings() {
    let limits = Limits {
        max_settings: 2,
        ..Limits::default()
    };
    let with = |pairs: &[u64]| {
        let mut server = End::server(&limits, ALL);
        server.feed(2, &[&[0][..], &frame(4, &integers(pairs))].concat(), false);
        codes(&server)
    };
    assert_eq!(with(&[0x21, 0, 0x40, 0]), []);
    assert_eq!(
        with(&[0x21, 0, 0x40, 0, 0x5f, 0]),
        [(LOAD, Scope::Connection)]
    );
    // More bytes than so many pairs can have are not waited for.
    let mut server = End::server(&limits, ALL);
    server.feed(2, &[0, 4, 33], false);
    assert_eq!(codes(&server), [(LOAD, Scope::Connection)]);
}

/// What is done, how, and how often it may be.
type Waste = (&'static str, fn(&mut End), u32);

/// Each row spends bytes for nothing, in another way.
#[test]
fn bytes_for_nothing() {
    let limits = Limits {
        max_idle_bytes: 1_000,
        window_ms: 1_000,
        ..Limits::default()
    };
    let ways: [Waste; 9] = [
        (
            "frames of unknown types",
            |server| server.feed(0, &frame(0x21, &[0; 97]), false),
            10,
        ),
        (
            "such on the control stream",
            |server| server.feed(2, &frame(0x21, &[0; 97]), false),
            10,
        ),
        (
            "DATA with nothing in it",
            |server| server.feed(4, &frame(0, &[]), false),
            500,
        ),
        (
            "priorities",
            |server| server.feed(2, &frame(0xf0700, &[0; 94]), false),
            10,
        ),
        (
            "MAX_PUSH_ID",
            |server| server.feed(2, &frame(13, &[0]), false),
            333,
        ),
        (
            "GOAWAY",
            |server| server.feed(2, &frame(7, &[0]), false),
            333,
        ),
        (
            "capacities of 0",
            |server| server.feed(6, &[0x20; 100], false),
            10,
        ),
        (
            "abandoned streams",
            |server| server.feed(10, &[0x44; 100], false),
            10,
        ),
        (
            "unknown capsules",
            |server| server.feed(8, &frame(0, &frame(0x21, &[0; 97])), false),
            10,
        ),
    ];
    let prepared = || {
        let mut server = server(&limits);
        server.feed(4, &get(), false);
        server.feed(6, &[2], false);
        server.feed(10, &[3], false);
        server.feed(8, &session(), false);
        assert_eq!(server.violations, []);
        server
    };
    for (why, way, most) in ways {
        let mut quick = prepared();
        for _ in 0..most {
            way(&mut quick);
        }
        assert_eq!(quick.violations, [], "{why}");
        way(&mut quick);
        assert_eq!(codes(&quick), [(LOAD, Scope::Connection)], "{why}");
        // Slowly it may go on for ever.
        let mut slow = prepared();
        for _ in 0..3 * most {
            slow.now_ms += u64::from(1_000 / most) + 1;
            way(&mut slow);
        }
        assert_eq!(slow.violations, [], "{why}");
    }
    // What is too long for the budget is refused when it begins.
    let mut server = prepared();
    server.feed(0, &integers(&[0x21, 1 << 40]), false);
    assert_eq!(codes(&server), [(LOAD, Scope::Connection)]);
    // Streams of unknown type count for 64 bytes.
    let mut server = prepared();
    for nth in 0..16 {
        assert_eq!(server.violations, []);
        server.feed(14 + 4 * nth, &[0x21], false);
    }
    assert_eq!(codes(&server), [(LOAD, Scope::Connection)]);
}

/// What is done to a stream, and how.
type GiveUp = (&'static str, fn(&mut End, u64));

/// RFC 9114, section 10.5, and the ways in which a server can be made to do it.
#[test]
fn resets() {
    let limits = Limits {
        max_resets: 10,
        window_ms: 1_000,
        ..Limits::default()
    };
    let ways: [GiveUp; 6] = [
        ("requests that are reset", |server, id| {
            server.feed(id, &get(), false);
            server.reset(id, ErrorCode::H3_REQUEST_CANCELLED, &mut |_, _, _| {});
        }),
        ("responses that are not wanted", |server, id| {
            server.feed(id, &get(), true);
            server.stopped(id, ErrorCode::H3_REQUEST_CANCELLED, &mut |_, _, _| {});
        }),
        ("both, which is one", |server, id| {
            server.feed(id, &get(), false);
            server.stopped(id, ErrorCode::H3_REQUEST_CANCELLED, &mut |_, _, _| {});
            server.reset(id, ErrorCode::H3_REQUEST_CANCELLED, &mut |_, _, _| {});
        }),
        (
            "streams that are stopped before they say anything",
            |server, id| {
                server.stopped(id, ErrorCode::H3_REQUEST_CANCELLED, &mut |_, _, _| {});
            },
        ),
        ("streams that say nothing", |server, id| {
            server.reset(id, ErrorCode::H3_REQUEST_CANCELLED, &mut |_, _, _| {});
        }),
        ("requests that have to be refused", |server, id| {
            server.feed(id, &headers(&[]), true);
        }),
    ];
    for (why, way) in ways {
        let excessive = |server: &End| codes(server).contains(&(LOAD, Scope::Connection));
        let mut quick = server(&limits);
        for nth in 0..10 {
            way(&mut quick, 4 * nth);
        }
        assert!(!excessive(&quick), "{why}");
        way(&mut quick, 40);
        assert!(excessive(&quick), "{why}");
        let mut slow = server(&limits);
        for nth in 0..100 {
            slow.now_ms += 101;
            way(&mut slow, 4 * nth);
        }
        assert!(!excessive(&slow), "{why}");
    }
    // Those that cross a GOAWAY are nobody's fault.
    let mut leaving = server(&limits);
    leaving.connection.go_away(false, &mut leaving.out).unwrap();
    for nth in 0..20 {
        leaving.feed(4 * nth, &get(), true);
    }
    assert_eq!(leaving.violations.len(), 20);
    assert!(!leaving.connection.is_closed());
    // Requests that were answered are not given up.
    let mut server = server(&limits);
    for nth in 0..100 {
        let id = StreamId(4 * nth);
        server.feed(id.0, &get(), false);
        server
            .connection
            .respond(id, 204, &[], Content::Empty, &mut server.out)
            .unwrap();
        server.reset(id.0, ErrorCode::H3_NO_ERROR, &mut |_, _, _| {});
    }
    assert_eq!(server.violations, []);
}

/// HEADERS that asks for a session.
fn session() -> Vec<u8> {
    headers(&[
        (":method", "CONNECT"),
        (":protocol", "webtransport"),
        (":scheme", "https"),
        (":authority", "a"),
        (":path", "/"),
    ])
}

#[test]
fn sessions() {
    let limits = Limits {
        max_sessions: 2,
        ..Limits::default()
    };
    let mut server = server(&limits);
    for nth in 0..3 {
        server.feed(4 * nth, &session(), false);
    }
    assert_eq!(
        codes(&server),
        [(ErrorCode::H3_REQUEST_REJECTED, stream(8))]
    );
    let (connection, out) = (&mut server.connection, &mut server.out);
    connection.accept_session(StreamId(0), &[], out).unwrap();
    connection.close_session(StreamId(0), 0, "", out).unwrap();
    server.feed(12, &session(), false);
    assert_eq!(server.violations.len(), 1);
    // The client keeps to it.
    let (mut client, _) = connected(&limits, ALL);
    let mut connect = || {
        client
            .connection
            .connect_session("a", "/", &[], &mut client.out)
    };
    assert_eq!(connect(), Ok(StreamId(0)));
    assert_eq!(connect(), Ok(StreamId(4)));
    assert_eq!(connect(), Err(CommandError::Limit));
    // None is none.
    let none = Limits {
        max_sessions: 0,
        ..Limits::default()
    };
    let (mut client, _) = connected(&none, ALL);
    let refused = client
        .connection
        .connect_session("a", "/", &[], &mut client.out);
    assert_eq!(refused, Err(CommandError::NotNegotiated));
}

#[test]
fn streams_of_a_session() {
    const REJECTED: Option<ErrorCode> = Some(ErrorCode::WEBTRANSPORT_BUFFERED_STREAM_REJECTED);
    let limits = Limits {
        max_session_streams: 2,
        ..Limits::default()
    };
    let mut server = server(&limits);
    server.feed(0, &session(), false);
    let (connection, out) = (&mut server.connection, &mut server.out);
    connection.accept_session(StreamId(0), &[], out).unwrap();
    server.feed(6, &integers(&[0x54, 0]), false);
    server.feed(4, &integers(&[0x41, 0]), false);
    server.feed(10, &integers(&[0x54, 0]), false);
    server.feed(8, &integers(&[0x41, 0]), false);
    assert_eq!(server.out.ended(10), (None, REJECTED));
    assert_eq!(server.out.ended(8), (REJECTED, REJECTED));
    // When one has ended there is room for another, whoever ended it; own ones do not count.
    server.feed(6, &[], true);
    let (connection, out) = (&mut server.connection, &mut server.out);
    let over = connection.cancel(StreamId(4), ErrorCode::H3_NO_ERROR, out);
    assert_eq!(over, Ok(()));
    let own = server
        .connection
        .open_session_stream(StreamId(0), false, &mut server.out);
    assert!(own.is_ok());
    server.feed(14, &integers(&[0x54, 0]), false);
    server.feed(18, &integers(&[0x54, 0]), false);
    assert_eq!(server.out.ended(14), (None, None));
    assert_eq!(server.out.ended(18), (None, None));
    assert_eq!(server.violations, []);
}

#[test]
fn streams_that_wait() {
    const REJECTED: Option<ErrorCode> = Some(ErrorCode::WEBTRANSPORT_BUFFERED_STREAM_REJECTED);
    let limits = Limits {
        max_waiting_streams: 2,
        max_session_streams: 1,
        max_held_bytes: 10,
        ..Limits::default()
    };
    let mut server = server(&limits);
    server.feed(
        6,
        &[&integers(&[0x54, 0])[..], b"0123456789"].concat(),
        true,
    );
    server.feed(10, &integers(&[0x54, 0]), false);
    server.feed(14, &integers(&[0x54, 0]), false);
    assert_eq!(server.out.ended(14), (None, REJECTED));
    assert_eq!(server.violations, []);
    server.feed(10, b"01234567890", false);
    assert_eq!(codes(&server), [(LOAD, stream(10))]);
    server.feed(18, &integers(&[0x54, 0]), false);
    server.feed(0, &session(), false);
    let (connection, out) = (&mut server.connection, &mut server.out);
    connection.accept_session(StreamId(0), &[], out).unwrap();
    server.drain(&mut |_, _, _| {});
    // Of those that have waited only one has room.
    assert_eq!(server.out.ended(18), (None, REJECTED));
    assert_eq!(
        server.log.take(),
        [
            "s0 request CONNECT /",
            "s0 stream s6",
            "s6 content 0123456789",
            "s6 end"
        ]
    );
}

#[test]
fn capsules() {
    let limits = Limits {
        max_capsule_bytes: 10,
        ..Limits::default()
    };
    let mut server = server(&limits);
    server.feed(0, &session(), false);
    let (connection, out) = (&mut server.connection, &mut server.out);
    connection.accept_session(StreamId(0), &[], out).unwrap();
    for bytes in [11, 10] {
        let capsule = frame(0, &vec![b'0' + bytes; usize::from(bytes)]);
        server.feed(0, &frame(0, &capsule), false);
    }
    assert_eq!(server.log.take()[1..], ["s0 datagram ::::::::::"]);
    assert_eq!(server.violations, []);
}

#[test]
fn reasons() {
    let (mut client, mut server) = connected(&Limits::default(), ALL);
    let (connection, out) = (&mut client.connection, &mut client.out);
    let session = connection
        .connect_session("a", "/", &[Field::new("origin", b"x")], out)
        .unwrap();
    let long = "x".repeat(1_025);
    assert_eq!(
        connection.close_session(session, 0, &long, out),
        Err(CommandError::Limit)
    );
    connection
        .close_session(session, 0, &long[1..], out)
        .unwrap();
    exchange(&mut client, &mut server);
}
