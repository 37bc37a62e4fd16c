//! WebTransport sessions, from one end to the other.

use sterna_h3::webtransport::{DRAFT_02_CHOICE, application_code, error_code};
use sterna_h3::{
    CommandError, Connection, Content, ErrorCode, Event, Features, Field, Limits, StreamId,
};

use crate::harness::{ALL, End, Wire, connected, exchange, frame, headers, integers};

const SESSION: StreamId = StreamId(0);

/// Accepts what is asked for.
fn accept(connection: &mut Connection, out: &mut Wire, event: &Event<'_>) {
    if let Event::Request { stream, .. } = event {
        connection.accept_session(*stream, &[], out).unwrap();
    }
}

/// Both ends with an open session.
fn open() -> (End, End) {
    let (mut client, mut server) = connected(&Limits::default(), ALL);
    let session = client
        .connection
        .connect_session("a", "/v1/session", &[], &mut client.out);
    assert_eq!(session, Ok(SESSION));
    server.read_all(&mut client.out, &mut accept);
    exchange(&mut client, &mut server);
    assert_eq!(
        server.log.take(),
        ["s0 request CONNECT /v1/session [sec-webtransport-http3-draft02: 1]"]
    );
    assert_eq!(
        client.log.take(),
        ["s0 response 200 [sec-webtransport-http3-draft: draft02]"]
    );
    (client, server)
}

#[test]
fn streams_and_datagrams_go_both_ways() {
    let (mut client, mut server) = open();
    let (up, down) = (&mut client.out, &mut server.out);
    let two_way = client
        .connection
        .open_session_stream(SESSION, true, up)
        .unwrap();
    let one_way = client
        .connection
        .open_session_stream(SESSION, false, up)
        .unwrap();
    assert_eq!((two_way, one_way), (StreamId(4), StreamId(6)));
    client.connection.send(two_way, b"ask", up).unwrap();
    client.connection.send(one_way, b"tell", up).unwrap();
    client.connection.finish(one_way, up).unwrap();
    assert_eq!(client.connection.send_datagram(SESSION, b"u", up), Ok(true));
    assert_eq!(
        server.connection.send_datagram(SESSION, b"d", down),
        Ok(true)
    );
    let servers = server
        .connection
        .open_session_stream(SESSION, true, down)
        .unwrap();
    assert_eq!(servers, StreamId(1));
    server.connection.send(servers, b"hello", down).unwrap();
    exchange(&mut client, &mut server);
    assert_eq!(
        server.log.take(),
        [
            "s0 stream s4",
            "s4 content ask",
            "s0 stream s6",
            "s6 content tell",
            "s6 end",
            "s0 datagram u"
        ]
    );
    assert_eq!(
        client.log.take(),
        ["s0 stream s1", "s1 content hello", "s0 datagram d"]
    );
    server
        .connection
        .send(two_way, b"answer", &mut server.out)
        .unwrap();
    server.connection.finish(two_way, &mut server.out).unwrap();
    client.connection.finish(two_way, &mut client.out).unwrap();
    client
        .connection
        .cancel(servers, error_code(7), &mut client.out)
        .unwrap();
    exchange(&mut client, &mut server);
    assert_eq!(client.log.take(), ["s4 content answer", "s4 end"]);
    let told = server.log.take();
    assert_eq!(told.len(), 3);
    assert!(told.contains(&"s4 end".to_owned()));
    assert_eq!(application_code(error_code(7)), Some(7));
    assert!(told.contains(&format!("s1 reset {:?}", error_code(7))));
    assert!(told.contains(&format!("s1 stopped {:?}", error_code(7))));
    let over = server.connection.send(servers, b"x", &mut server.out);
    assert_eq!(over, Err(CommandError::NoStream));
}

#[test]
fn a_session_ends_with_code_and_reason() {
    for client_ends in [true, false] {
        let (mut client, mut server) = open();
        let (one, other) = if client_ends {
            (&mut client, &mut server)
        } else {
            (&mut server, &mut client)
        };
        let stream = one
            .connection
            .open_session_stream(SESSION, true, &mut one.out)
            .unwrap();
        let others = other
            .connection
            .open_session_stream(SESSION, false, &mut other.out)
            .unwrap();
        exchange(&mut client, &mut server);
        client.log.take();
        server.log.take();
        let (one, other) = if client_ends {
            (&mut client, &mut server)
        } else {
            (&mut server, &mut client)
        };
        one.connection.drain_session(SESSION, &mut one.out).unwrap();
        one.connection
            .close_session(SESSION, 42, "done", &mut one.out)
            .unwrap();
        let gone = Some(ErrorCode::WEBTRANSPORT_SESSION_GONE);
        assert_eq!(one.out.ended(stream.0), (gone, gone));
        assert_eq!(one.out.ended(others.0), (None, gone));
        other.read(&mut one.out, 0, usize::MAX, &mut |_, _, _| {});
        assert_eq!(other.log.take(), ["s0 draining", "s0 closed 42 done"]);
        assert_eq!(other.out.ended(stream.0), (gone, gone));
        let late = other
            .connection
            .send_datagram(SESSION, b"x", &mut other.out);
        assert!(late.is_err());
        exchange(&mut client, &mut server);
        assert_eq!(client.log.take(), Vec::<String>::new());
        assert_eq!(server.log.take(), Vec::<String>::new());
        assert_eq!(
            (
                client.connection.open_requests(),
                server.connection.open_requests()
            ),
            (0, 0)
        );
    }
}

#[test]
fn a_session_may_just_end_or_break() {
    let (_, mut server) = open();
    server.feed(0, &[], true);
    assert_eq!(server.log.take(), ["s0 closed 0 "]);
    assert!(server.out.lane(SESSION).fin);
    assert_eq!(server.connection.open_requests(), 0);
    let (_, mut server) = open();
    server.reset(0, ErrorCode::H3_REQUEST_CANCELLED, &mut |_, _, _| {});
    assert_eq!(server.log.take(), ["s0 broken"]);
    assert_eq!(server.connection.open_requests(), 0);
    // A peer that reads no further may have said why, which is still on its way.
    let (mut client, _) = open();
    client.stopped(0, ErrorCode::H3_NO_ERROR, &mut |_, _, _| {});
    assert_eq!(client.log.take(), Vec::<String>::new());
    client.feed(0, &frame(0, &frame(0x2843, b"\0\0\0\x01why")), true);
    assert_eq!(client.log.take(), ["s0 closed 1 why"]);
    assert_eq!(client.connection.open_requests(), 0);
    let (mut client, _) = open();
    client.stopped(0, ErrorCode::H3_NO_ERROR, &mut |_, _, _| {});
    let (connection, out) = (&mut client.connection, &mut client.out);
    out.take(0);
    connection.drain_session(SESSION, out).unwrap();
    connection.close_session(SESSION, 1, "why", out).unwrap();
    assert_eq!(out.take(0), []);
    // It ends once, whatever comes behind, and also before it is accepted.
    let (_, mut server) = connected(&Limits::default(), ALL);
    server.feed(0, &request(), false);
    server.feed(0, &frame(0, &frame(0x2843, &[0, 0, 0, 9])), false);
    server.reset(0, ErrorCode::H3_NO_ERROR, &mut |_, _, _| {});
    assert_eq!(
        server.log.take(),
        ["s0 request CONNECT / [origin: https://a]", "s0 closed 9 "]
    );
    assert_eq!(
        server.out.ended(0),
        (Some(ErrorCode::H3_REQUEST_CANCELLED), None)
    );
    assert_eq!(server.connection.open_requests(), 0);
    // A broken rule ends it as well.
    let (_, mut server) = open();
    server.feed(0, &frame(0, &frame(0x2843, &[0])), false);
    assert_eq!(server.violations.len(), 1);
    assert_eq!(server.log.take(), ["s0 broken"]);
}

/// Streams and settings may be later than what needs them.
#[test]
fn what_comes_too_soon_waits() {
    let mut client = End::client(&Limits::default(), ALL);
    let mut settings = End::server(&Limits::default(), ALL);
    client.read_all(&mut settings.out, &mut |_, _, _| {});
    let (connection, out) = (&mut client.connection, &mut client.out);
    let session = connection.connect_session("a", "/", &[], out).unwrap();
    let first = connection.open_session_stream(session, false, out).unwrap();
    connection.send(first, b"first", out).unwrap();
    connection.finish(first, out).unwrap();
    let second = connection.open_session_stream(session, true, out).unwrap();
    connection.send(second, b"second", out).unwrap();
    connection.send_datagram(session, b"lost", out).unwrap();
    connection.drain_session(session, out).unwrap();

    let mut server = End::server(&Limits::default(), ALL);
    server.read(&mut client.out, second.0, usize::MAX, &mut accept);
    server.read(&mut client.out, session.0, usize::MAX, &mut accept);
    server.datagram(&client.out.datagrams.pop_front().unwrap());
    server.read(&mut client.out, first.0, usize::MAX, &mut accept);
    assert_eq!(server.log.take(), Vec::<String>::new());
    assert_eq!(server.connection.resume(session), Err(CommandError::State));
    assert_eq!(server.connection.resume(second), Err(CommandError::State));
    server.read(&mut client.out, 2, usize::MAX, &mut accept);
    assert_eq!(
        server.log.take(),
        [
            "settings",
            "s0 request CONNECT / [sec-webtransport-http3-draft02: 1]",
            "s0 draining",
            "s0 stream s4",
            "s4 content second",
            "s0 stream s6",
            "s6 content first",
            "s6 end"
        ]
    );
    assert_eq!(server.violations, []);
}

#[test]
fn a_session_that_is_refused_takes_its_streams_along() {
    let (mut client, mut server) = connected(&Limits::default(), ALL);
    let (connection, out) = (&mut client.connection, &mut client.out);
    let session = connection.connect_session("a", "/", &[], out).unwrap();
    let stream = connection.open_session_stream(session, true, out).unwrap();
    exchange(&mut client, &mut server);
    server
        .connection
        .respond(session, 403, &[], Content::Whole(b"no"), &mut server.out)
        .unwrap();
    let gone = Some(ErrorCode::WEBTRANSPORT_SESSION_GONE);
    assert_eq!(server.out.ended(stream.0), (gone, gone));
    client.read_all(&mut server.out, &mut |_, _, _| {});
    assert_eq!(
        client.log.take(),
        ["s0 response 403", "s0 content no", "s0 end"]
    );
    assert_eq!(client.out.ended(stream.0), (gone, gone));
    server.read_all(&mut client.out, &mut |_, _, _| {});
    assert_eq!(
        (
            client.connection.open_requests(),
            server.connection.open_requests()
        ),
        (0, 0)
    );
    // One that comes late has no place.
    server.feed(8, &integers(&[0x41, 0]), false);
    assert_eq!(server.out.ended(8), (gone, gone));
    server.feed(12, &crate::harness::get(), false);
    server.feed(6, &integers(&[0x54, 12]), false);
    assert_eq!(server.out.ended(6), (None, gone));
}

/// Before it is accepted a session is a request.
#[test]
fn a_server_uses_what_it_has_accepted() {
    let (_, mut server) = connected(&Limits::default(), ALL);
    server.feed(0, &request(), false);
    server.feed(0, &frame(0, &frame(0, b"lost")), false);
    let (connection, out) = (&mut server.connection, &mut server.out);
    let state = Err(CommandError::State);
    let stream = connection.open_session_stream(SESSION, true, out);
    assert_eq!(stream, Err(CommandError::State));
    assert_eq!(connection.close_session(SESSION, 0, "", out), state);
    let whole = connection.respond(SESSION, 200, &[], Content::Empty, out);
    assert_eq!(whole, state);
    connection.accept_session(SESSION, &[], out).unwrap();
    let stream = connection.open_session_stream(SESSION, true, out).unwrap();
    connection.finish(stream, out).unwrap();
    assert_eq!(connection.send(stream, b"x", out), state);
    assert_eq!(connection.finish(stream, out), state);
    // What comes after a stop is passed over.
    server.feed(4, &integers(&[0x41, 0]), false);
    let (connection, out) = (&mut server.connection, &mut server.out);
    connection
        .stop_receiving(StreamId(4), error_code(1), out)
        .unwrap();
    server.feed(4, b"late", true);
    server
        .connection
        .send(StreamId(4), b"x", &mut server.out)
        .unwrap();
    assert_eq!(
        server.log.take(),
        ["s0 request CONNECT / [origin: https://a]", "s0 stream s4"]
    );
}

#[test]
fn streams_do_not_wait_for_what_is_no_session() {
    let mut server = End::server(&Limits::default(), ALL);
    server.feed(6, &integers(&[0x54, 0]), false);
    server.feed(10, &integers(&[0x54, 4]), false);
    server.feed(14, &integers(&[0x54, 8]), false);
    let gone = Some(ErrorCode::WEBTRANSPORT_SESSION_GONE);
    server.feed(0, &crate::harness::get(), false);
    assert_eq!(server.out.ended(6), (None, gone));
    server.reset(4, ErrorCode::H3_REQUEST_CANCELLED, &mut |_, _, _| {});
    assert_eq!(server.out.ended(10), (None, gone));
    server.feed(8, &headers(&[]), false);
    assert_eq!(server.out.ended(14), (None, gone));
}

/// HEADERS that asks for a session, as version 7 of the draft has it.
fn request() -> Vec<u8> {
    headers(&[
        (":method", "CONNECT"),
        (":protocol", "webtransport"),
        (":scheme", "https"),
        (":authority", "a"),
        (":path", "/"),
        ("origin", "https://a"),
    ])
}

#[test]
fn later_versions_of_the_draft_have_no_fields_for_it() {
    let (_, mut server) = connected(&Limits::default(), ALL);
    server.feed(0, &request(), false);
    let fields = [Field::new("x", b"y")];
    let (connection, out) = (&mut server.connection, &mut server.out);
    connection.accept_session(SESSION, &fields, out).unwrap();
    assert_eq!(
        connection.accept_session(SESSION, &fields, out),
        Err(CommandError::State)
    );
    let accepted = headers(&[(":status", "200"), ("x", "y")]);
    assert_eq!(server.out.take(0), accepted);
    assert!(!DRAFT_02_CHOICE.is_empty());
}

#[test]
fn without_the_setting_there_are_no_sessions() {
    let (mut client, mut server) = connected(&Limits::default(), Features::default());
    let refused = client
        .connection
        .connect_session("a", "/", &[], &mut client.out);
    assert_eq!(refused, Err(CommandError::NotNegotiated));
    // The types of streams are then unknown ones.
    server.feed(6, &integers(&[0x54, 0]), false);
    assert_eq!(
        server.out.ended(6).1,
        Some(ErrorCode::H3_STREAM_CREATION_ERROR)
    );
    server.feed(0, &frame(0x41, b"xx"), false);
    server.datagram(&[]);
    assert_eq!(server.violations, []);
}

/// Capsules in any pieces, and more of them in one DATA.
#[test]
fn capsules_are_cut_as_they_come() {
    let capsules = [
        frame(0, b"one"),
        frame(0, b""),
        frame(0x21, b"unknown"),
        frame(0, b"two"),
        frame(0x78ae, b""),
        frame(0x2843, b"\0\0\0\x07bye"),
    ]
    .concat();
    for data_bytes in [1, 2, 3, 5, capsules.len()] {
        for piece_bytes in [1, 4, 1_000] {
            let (_, mut server) = open();
            let frames: Vec<_> = capsules
                .chunks(data_bytes)
                .map(|part| frame(0, part))
                .collect();
            for piece in frames.concat().chunks(piece_bytes) {
                server.feed(0, piece, false);
            }
            assert_eq!(
                server.log.take(),
                [
                    "s0 datagram one",
                    "s0 datagram ",
                    "s0 datagram two",
                    "s0 draining",
                    "s0 closed 7 bye"
                ]
            );
            server.feed(0, &[], true);
            assert_eq!(server.violations, []);
            assert_eq!(server.connection.open_requests(), 0);
        }
    }
}
