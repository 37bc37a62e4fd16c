//! Requests and their responses, from one end to the other.

use bytes::Bytes;
use sterna_h3::{
    Chunk, CommandError, Connection, Content, ErrorCode, Event, Features, Field, Limits,
    RequestLine, Settings, StreamId,
};

use crate::harness::{ALL, End, Wire, connected, exchange, frame, get, headers, integers};

const GET: RequestLine<'_> = RequestLine::https("GET", "a", "/");
const POST: RequestLine<'_> = RequestLine::https("POST", "a", "/");
const FIRST: StreamId = StreamId(0);

fn plain() -> (End, End) {
    connected(&Limits::default(), Features::default())
}

fn ask(client: &mut End, line: &RequestLine<'_>, content: Content<'_>) -> StreamId {
    client
        .connection
        .request(line, &[], content, &mut client.out)
        .unwrap()
}

fn answer(server: &mut End, stream: StreamId, status: u16, content: Content<'_>) {
    server
        .connection
        .respond(stream, status, &[], content, &mut server.out)
        .unwrap();
}

#[test]
fn a_request_is_told_and_answered() {
    let (mut client, mut server) = plain();
    let fields = [
        Field::new("content-type", b"text/plain"),
        Field::new("priority", b"u=1, i"),
    ];
    let stream = client
        .connection
        .request(&POST, &fields, Content::Whole(b"21.5"), &mut client.out)
        .unwrap();
    exchange(&mut client, &mut server);
    assert_eq!(
        server.log.take(),
        [
            "s0 request POST / [content-type: text/plain] [priority: u=1, i]",
            "s0 content 21.5",
            "s0 end"
        ]
    );
    assert_eq!(server.connection.open_requests(), 1);
    let length = [Field::new("content-length", b"2")];
    server
        .connection
        .respond(stream, 200, &length, Content::Whole(b"ok"), &mut server.out)
        .unwrap();
    assert_eq!(server.connection.open_requests(), 0);
    exchange(&mut client, &mut server);
    assert_eq!(
        client.log.take(),
        [
            "s0 response 200 [content-length: 2]",
            "s0 content ok",
            "s0 end"
        ]
    );
    assert_eq!(client.connection.open_requests(), 0);
    let gone = client.connection.send(stream, b"x", &mut client.out);
    assert_eq!(gone, Err(CommandError::NoStream));
}

#[test]
fn contents_stream_in_both_directions() {
    let (mut client, mut server) = plain();
    let stream = ask(&mut client, &POST, Content::Streamed);
    exchange(&mut client, &mut server);
    answer(&mut server, stream, 200, Content::Streamed);
    let large = Bytes::from(vec![b'x'; 3_000]);
    for _ in 0..2 {
        client
            .connection
            .send(stream, b"up ", &mut client.out)
            .unwrap();
        server
            .connection
            .send_shared(stream, large.clone(), &mut server.out)
            .unwrap();
    }
    // Nothing is nothing.
    client
        .connection
        .send(stream, b"", &mut client.out)
        .unwrap();
    exchange(&mut client, &mut server);
    assert_eq!(server.log.take()[1..], ["s0 content up up "]);
    let told = client.log.take();
    assert_eq!(told[1].len(), "s0 content ".len() + 6_000);
    let trailers = [Field::new("checksum", b"1")];
    client
        .connection
        .send_trailers(stream, &trailers, &mut client.out)
        .unwrap();
    server.connection.finish(stream, &mut server.out).unwrap();
    exchange(&mut client, &mut server);
    assert_eq!(server.log.take(), ["s0 trailers [checksum: 1]", "s0 end"]);
    assert_eq!(client.log.take(), ["s0 end"]);
    assert_eq!(
        (
            client.connection.open_requests(),
            server.connection.open_requests()
        ),
        (0, 0)
    );
}

#[test]
fn interim_responses_come_first() {
    let (mut client, mut server) = plain();
    let stream = ask(&mut client, &POST, Content::Streamed);
    exchange(&mut client, &mut server);
    let (connection, out) = (&mut server.connection, &mut server.out);
    connection.inform(stream, 100, &[], out).unwrap();
    let hint = [Field::new("link", b"</style>")];
    connection.inform(stream, 103, &hint, out).unwrap();
    connection
        .respond(stream, 204, &[], Content::Empty, out)
        .unwrap();
    assert_eq!(
        connection.inform(stream, 103, &hint, out),
        Err(CommandError::State)
    );
    exchange(&mut client, &mut server);
    assert_eq!(
        client.log.take(),
        [
            "s0 response 100",
            "s0 response 103 [link: </style>]",
            "s0 response 204",
            "s0 end"
        ]
    );
}

#[test]
fn responses_to_head_have_a_length_and_no_content() {
    let (mut client, mut server) = plain();
    let head = RequestLine::https("HEAD", "a", "/");
    let stream = ask(&mut client, &head, Content::Empty);
    exchange(&mut client, &mut server);
    let length = [Field::new("content-length", b"100")];
    let (connection, out) = (&mut server.connection, &mut server.out);
    let refused = connection.respond(stream, 200, &length, Content::Whole(b"x"), out);
    assert!(matches!(refused, Err(CommandError::Malformed(_))));
    connection
        .respond(stream, 200, &length, Content::Empty, out)
        .unwrap();
    exchange(&mut client, &mut server);
    assert_eq!(
        client.log.take(),
        ["s0 response 200 [content-length: 100]", "s0 end"]
    );
}

#[test]
fn early_data_is_visible_per_request() {
    let mut server = End::server(&Limits::default(), Features::default());
    let request = [get(), frame(0, b"x")].concat();
    let caller = &mut |_: &mut Connection, _: &mut Wire, _: &Event<'_>| {};
    let early = |stream, bytes| Chunk {
        early: true,
        ..Chunk::new(StreamId(stream), bytes)
    };
    server.receive(early(0, &request), caller);
    // One byte is enough, whichever it is.
    server.receive(early(4, &request[..1]), caller);
    server.feed(4, &request[1..], true);
    server.feed(8, &request[..1], false);
    server.receive(early(8, &request[1..]), caller);
    server.feed(12, &request, true);
    let told = server.log.take();
    let requests: Vec<_> = told
        .iter()
        .filter(|line| line.contains("request"))
        .collect();
    assert_eq!(
        requests,
        [
            "s0 request GET / early",
            "s4 request GET / early",
            "s8 request GET / early",
            "s12 request GET /"
        ]
    );
    answer(&mut server, FIRST, 425, Content::Empty);
    assert!(server.violations.is_empty());
}

/// What a front door does that waits for the handshake, or for the broker.
#[test]
fn what_is_held_comes_later_and_whole() {
    let (mut client, mut server) = plain();
    let stream = ask(&mut client, &POST, Content::Streamed);
    for piece in [&b"one "[..], b"two "] {
        client
            .connection
            .send(stream, piece, &mut client.out)
            .unwrap();
    }
    let caller = &mut |connection: &mut Connection, _: &mut Wire, event: &Event<'_>| {
        if let Event::Request { stream, .. } = event {
            connection.hold(*stream).unwrap();
        }
    };
    server.read_all(&mut client.out, caller);
    assert!(server.connection.is_held(stream));
    assert_eq!(server.connection.held_bytes(stream), 12);
    client
        .connection
        .send(stream, b"three", &mut client.out)
        .unwrap();
    client.connection.finish(stream, &mut client.out).unwrap();
    server.read_all(&mut client.out, caller);
    assert_eq!(server.log.take(), ["s0 request POST /"]);
    server.connection.resume(stream).unwrap();
    // What comes before the held is handed out stays behind it.
    assert!(server.connection.is_held(stream));
    server.drain(caller);
    assert!(!server.connection.is_held(stream));
    assert_eq!(server.log.take(), ["s0 content one two three", "s0 end"]);
    assert_eq!(server.connection.resume(stream), Ok(()));
    server.drain(caller);
    assert_eq!(server.log.take(), Vec::<String>::new());
}

#[test]
fn a_hold_may_be_renewed_before_it_ends() {
    let (mut client, mut server) = plain();
    let stream = ask(&mut client, &POST, Content::Whole(b"abc"));
    let mut holds = 3;
    let caller = &mut |connection: &mut Connection, _: &mut Wire, event: &Event<'_>| {
        if matches!(event, Event::Request { .. } | Event::Resumed { .. }) && holds > 0 {
            holds -= 1;
            connection.hold(FIRST).unwrap();
        }
    };
    server.read_all(&mut client.out, caller);
    assert_eq!(server.log.take(), ["s0 request POST /"]);
    for _ in 0..2 {
        server.connection.resume(stream).unwrap();
        server.drain(caller);
        assert_eq!(server.log.take(), Vec::<String>::new());
    }
    // Resumed and held again in between: nothing flows.
    server.connection.resume(stream).unwrap();
    server.connection.hold(stream).unwrap();
    server.drain(caller);
    assert!(server.connection.is_held(stream));
    server.connection.resume(stream).unwrap();
    server.drain(caller);
    assert_eq!(server.log.take().last().unwrap(), "s0 end");
}

#[test]
fn a_client_gives_up() {
    let (mut client, mut server) = plain();
    let stream = ask(&mut client, &POST, Content::Streamed);
    exchange(&mut client, &mut server);
    client
        .connection
        .cancel(stream, ErrorCode::H3_REQUEST_CANCELLED, &mut client.out)
        .unwrap();
    exchange(&mut client, &mut server);
    assert_eq!(
        server.log.take()[1..],
        [
            "s0 stopped H3_REQUEST_CANCELLED",
            "s0 reset H3_REQUEST_CANCELLED"
        ]
    );
    assert_eq!(server.connection.open_requests(), 0);
    // What it had sent before arrives in vain.
    server.feed(0, &frame(0, b"late"), true);
    assert!(server.log.take().is_empty() && server.violations.is_empty());
    let late = server
        .connection
        .respond(stream, 200, &[], Content::Empty, &mut server.out);
    assert_eq!(late, Err(CommandError::NoStream));
}

#[test]
fn a_server_answers_without_the_rest() {
    let (mut client, mut server) = plain();
    let stream = ask(&mut client, &POST, Content::Streamed);
    exchange(&mut client, &mut server);
    answer(&mut server, stream, 413, Content::Empty);
    server
        .connection
        .stop_receiving(stream, ErrorCode::H3_NO_ERROR, &mut server.out)
        .unwrap();
    exchange(&mut client, &mut server);
    assert_eq!(
        client.log.take(),
        ["s0 stopped H3_NO_ERROR", "s0 response 413", "s0 end"]
    );
    assert_eq!(
        (
            client.connection.open_requests(),
            server.connection.open_requests()
        ),
        (0, 0)
    );
}

#[test]
fn requests_are_refused_after_goaway() {
    let (mut client, mut server) = plain();
    let first = ask(&mut client, &GET, Content::Empty);
    exchange(&mut client, &mut server);
    // A round trip before the last time requests are still taken.
    server.connection.go_away(true, &mut server.out).unwrap();
    let second = ask(&mut client, &GET, Content::Empty);
    exchange(&mut client, &mut server);
    assert_eq!(
        server.log.take(),
        ["s0 request GET /", "s0 end", "s4 request GET /", "s4 end"]
    );
    assert_eq!(client.log.take(), ["goaway 4611686018427387900"]);
    let refused = client
        .connection
        .request(&GET, &[], Content::Empty, &mut client.out);
    assert_eq!(refused, Err(CommandError::GoingAway));
    server.connection.go_away(false, &mut server.out).unwrap();
    // It is said once, and not taken back.
    server.connection.go_away(false, &mut server.out).unwrap();
    server.connection.go_away(true, &mut server.out).unwrap();
    exchange(&mut client, &mut server);
    assert_eq!(client.log.take(), ["goaway 8"]);
    answer(&mut server, first, 204, Content::Empty);
    answer(&mut server, second, 204, Content::Empty);
    exchange(&mut client, &mut server);
    assert_eq!(server.connection.open_requests(), 0);
    // One that was under way is refused, and may be sent again elsewhere.
    server.feed(8, &get(), true);
    assert_eq!(server.violations[0].code, ErrorCode::H3_REQUEST_REJECTED);
    assert_eq!(server.out.ended(8).0, Some(ErrorCode::H3_REQUEST_REJECTED));
    assert!(server.log.take().is_empty());
}

#[test]
fn goaway_says_which_requests_were_not_processed() {
    let (mut client, mut server) = plain();
    for _ in 0..3 {
        ask(&mut client, &POST, Content::Streamed);
    }
    server.read(&mut client.out, 0, usize::MAX, &mut |_, _, _| {});
    server.connection.go_away(false, &mut server.out).unwrap();
    client.read_all(&mut server.out, &mut |_, _, _| {});
    assert_eq!(
        client.log.take(),
        [
            "goaway 4",
            "s4 reset H3_REQUEST_REJECTED",
            "s8 reset H3_REQUEST_REJECTED"
        ]
    );
    assert_eq!(client.connection.open_requests(), 1);
    // What has been answered was processed.
    let (mut client, mut server) = plain();
    let stream = ask(&mut client, &POST, Content::Streamed);
    exchange(&mut client, &mut server);
    answer(&mut server, stream, 204, Content::Empty);
    exchange(&mut client, &mut server);
    client.feed(3, &frame(7, &[0]), false);
    assert_eq!(client.log.take(), ["s0 response 204", "s0 end", "goaway 0"]);
    client.connection.finish(stream, &mut client.out).unwrap();
}

#[test]
fn a_client_takes_its_leave() {
    let (mut client, mut server) = plain();
    let stream = ask(&mut client, &GET, Content::Empty);
    client.connection.go_away(false, &mut client.out).unwrap();
    client.connection.go_away(false, &mut client.out).unwrap();
    let refused = client
        .connection
        .request(&GET, &[], Content::Empty, &mut client.out);
    assert_eq!(refused, Err(CommandError::GoingAway));
    exchange(&mut client, &mut server);
    assert_eq!(
        server.log.take(),
        ["s0 request GET /", "s0 end", "goaway 0"]
    );
    answer(&mut server, stream, 204, Content::Empty);
    exchange(&mut client, &mut server);
    assert_eq!(client.log.take(), ["s0 response 204", "s0 end"]);
}

#[test]
fn what_comes_after_a_stop_is_passed_over() {
    let (mut client, mut server) = plain();
    let stream = ask(&mut client, &POST, Content::Streamed);
    exchange(&mut client, &mut server);
    answer(&mut server, stream, 200, Content::Streamed);
    server
        .connection
        .stop_receiving(stream, ErrorCode::H3_NO_ERROR, &mut server.out)
        .unwrap();
    // Within a frame, and then the end: nobody looks.
    server.feed(0, &[0, 10, 1], false);
    server.feed(0, &[], true);
    server
        .connection
        .send(stream, b"x", &mut server.out)
        .unwrap();
    server.connection.finish(stream, &mut server.out).unwrap();
    assert_eq!(server.violations, []);
    assert_eq!(server.log.take(), ["s0 request POST /"]);
    assert_eq!(server.connection.open_requests(), 0);
}

#[test]
fn memory_is_given_back_and_taken_again() {
    let (mut client, mut server) = plain();
    for _ in 0..3 {
        let stream = ask(&mut client, &POST, Content::Whole(b"x"));
        exchange(&mut client, &mut server);
        server.connection.release_memory();
        answer(&mut server, stream, 204, Content::Empty);
        exchange(&mut client, &mut server);
        server.connection.release_memory();
        client.connection.release_memory();
    }
    assert_eq!(client.log.take().len(), 6);
    assert_eq!(server.log.take().len(), 9);
}

#[test]
fn late_streams_are_served_too() {
    let (mut client, mut server) = plain();
    for _ in 0..3 {
        ask(&mut client, &GET, Content::Empty);
    }
    for stream in [8, 0, 4] {
        server.read(&mut client.out, stream, usize::MAX, &mut |_, _, _| {});
    }
    let requests = ["s8", "s0", "s4"]
        .map(|stream| [format!("{stream} request GET /"), format!("{stream} end")])
        .concat();
    assert_eq!(server.log.take(), requests);
}

/// What a client relies on that resumes, is what it was told before.
#[test]
fn remembered_settings_hold_until_others_come() {
    let limits = Limits::default();
    let remembered = Settings {
        extended_connect: true,
        max_field_section_bytes: Some(300),
        ..Settings::INITIAL
    };
    let resume = |remembered| {
        let mut out = Wire::default();
        let connection = Connection::client(&limits, ALL, remembered, &mut out);
        End::new(connection, out)
    };
    let tunnel = RequestLine::connect("connect-udp", "a", "/");
    let mut fresh = resume(None);
    let (connection, out) = (&mut fresh.connection, &mut fresh.out);
    let refused = connection.request(&tunnel, &[], Content::Streamed, out);
    assert_eq!(refused, Err(CommandError::NotNegotiated));
    let mut resumed = resume(Some(remembered));
    let (connection, out) = (&mut resumed.connection, &mut resumed.out);
    let long = [Field::new("x-long", &[b'x'; 300])];
    let refused = connection.request(&GET, &long, Content::Empty, out);
    assert_eq!(refused, Err(CommandError::FieldSectionTooLarge));
    connection
        .request(&tunnel, &[], Content::Streamed, out)
        .unwrap();
    // Section 7.2.4.2: a server may not take back what early data relied on.
    let less = [&[0][..], &frame(4, &integers(&[6, 300]))].concat();
    resumed.feed(3, &less, false);
    assert_eq!(resumed.violations[0].code, ErrorCode::H3_SETTINGS_ERROR);
    let mut resumed = resume(Some(remembered));
    let more = [&[0][..], &frame(4, &integers(&[6, 301, 8, 1]))].concat();
    resumed.feed(3, &more, false);
    assert!(resumed.violations.is_empty());
    let known = resumed.connection.peer_settings().unwrap();
    assert_eq!(known.max_field_section_bytes, Some(301));
}

#[test]
fn tunnels_carry_content_and_datagrams() {
    let (mut client, mut server) = connected(&Limits::default(), ALL);
    let line = RequestLine::connect("connect-udp", "a", "/1.2.3.4/53/");
    let stream = ask(&mut client, &line, Content::Streamed);
    exchange(&mut client, &mut server);
    answer(&mut server, stream, 200, Content::Streamed);
    exchange(&mut client, &mut server);
    let (up, down) = (&mut client.out, &mut server.out);
    client.connection.send(stream, b"up", up).unwrap();
    assert_eq!(client.connection.send_datagram(stream, b"1", up), Ok(true));
    assert_eq!(
        server.connection.send_datagram(stream, b"2", down),
        Ok(true)
    );
    assert_eq!(
        client.connection.send_datagram(stream, &[0; 2_000], up),
        Ok(false)
    );
    let trailers = client.connection.send_trailers(stream, &[], up);
    assert_eq!(trailers, Err(CommandError::State));
    exchange(&mut client, &mut server);
    assert_eq!(
        server.log.take(),
        [
            "s0 request CONNECT /1.2.3.4/53/",
            "s0 content up",
            "s0 datagram 1"
        ]
    );
    assert_eq!(client.log.take(), ["s0 response 200", "s0 datagram 2"]);
}

/// RFC 9110, section 9.3.6: a tunnel has no content, so it has no length.
#[test]
fn tunnels_have_no_length_and_refusals_are_messages() {
    let length = ("content-length", "5");
    let mut server = End::server(&Limits::default(), Features::default());
    let connect = headers(&[(":method", "CONNECT"), (":authority", "a:1"), length]);
    server.feed(0, &[connect, frame(0, b"x")].concat(), true);
    assert_eq!(server.violations, []);
    let (mut client, _) = plain();
    let line = RequestLine {
        method: "CONNECT",
        scheme: "",
        authority: "a:1",
        path: "",
        protocol: None,
    };
    for _ in 0..2 {
        ask(&mut client, &line, Content::Streamed);
    }
    let accepted = headers(&[(":status", "200"), length]);
    client.feed(0, &[accepted, frame(0, b"x")].concat(), true);
    let refused = headers(&[(":status", "502")]);
    let trailers = headers(&[("a", "b")]);
    client.feed(4, &[refused, frame(0, b"no"), trailers].concat(), true);
    assert_eq!(client.violations, []);
    assert_eq!(
        client.log.take(),
        [
            "s0 response 200 [content-length: 5]",
            "s0 content x",
            "s0 end",
            "s4 response 502",
            "s4 content no",
            "s4 trailers [a: b]",
            "s4 end"
        ]
    );
}

/// RFC 9297, section 2.1: they go with what is open of a stream.
#[test]
fn datagrams_end_with_the_stream() {
    let (_, mut server) = connected(&Limits::default(), ALL);
    server.feed(0, &get(), true);
    server.datagram(b"\0late");
    let tunnel = headers(&[
        (":method", "CONNECT"),
        (":protocol", "connect-udp"),
        (":scheme", "https"),
        (":authority", "a"),
        (":path", "/"),
    ]);
    server.feed(4, &tunnel, false);
    let stream = StreamId(4);
    let early = server
        .connection
        .send_datagram(stream, b"x", &mut server.out);
    assert_eq!(early, Err(CommandError::State));
    answer(&mut server, stream, 200, Content::Streamed);
    server.datagram(b"\x01now");
    server.feed(4, &[], true);
    server.datagram(b"\x01late");
    let sent = |server: &mut End| {
        let (connection, out) = (&mut server.connection, &mut server.out);
        connection.send_datagram(stream, b"x", out)
    };
    assert_eq!(sent(&mut server), Ok(true));
    server.connection.finish(stream, &mut server.out).unwrap();
    assert!(sent(&mut server).is_err());
    assert_eq!(server.violations, []);
    assert_eq!(
        server.log.take(),
        [
            "s0 request GET /",
            "s0 end",
            "s4 request CONNECT /",
            "s4 datagram now",
            "s4 end"
        ]
    );
}

#[test]
fn commands_that_would_be_malformed_write_nothing() {
    let (mut client, mut server) = plain();
    let mut refused = |line: RequestLine<'_>, fields: &[Field<'_>]| {
        let before = client.out.lanes.len();
        let result = client
            .connection
            .request(&line, fields, Content::Empty, &mut client.out);
        assert_eq!(client.out.lanes.len(), before);
        matches!(result, Err(CommandError::Malformed(_)))
    };
    assert!(refused(RequestLine::https("GET", "a", ""), &[]));
    assert!(refused(RequestLine::https("GET", "a", "x"), &[]));
    assert!(refused(RequestLine::https("GET", "", "/"), &[]));
    assert!(refused(RequestLine::https("G T", "a", "/"), &[]));
    assert!(refused(RequestLine::https("GET", "a", "/a b"), &[]));
    assert!(refused(RequestLine::https("CONNECT", "a", "/"), &[]));
    for (name, value) in [
        ("X-Upper", "1"),
        ("", "1"),
        ("a b", "1"),
        (":path", "/"),
        ("connection", "close"),
        ("te", "gzip"),
        ("x", "1\r\nb: 2"),
        ("x", " 1"),
    ] {
        let field = Field::new(name, value.as_bytes());
        assert!(refused(GET, &[field]), "{field:?}");
    }
    ask(&mut client, &GET, Content::Empty);
    exchange(&mut client, &mut server);
    for status in [0, 99, 100, 101, 199, 1000] {
        let result = server
            .connection
            .respond(FIRST, status, &[], Content::Empty, &mut server.out);
        assert!(matches!(result, Err(CommandError::Malformed(_))));
    }
    let result = server.connection.inform(FIRST, 101, &[], &mut server.out);
    assert!(matches!(result, Err(CommandError::Malformed(_))));
    assert!(server.out.take(0).is_empty());
}

#[test]
fn commands_out_of_order_are_refused() {
    let (mut client, mut server) = plain();
    let (up, down) = (&mut client.out, &mut server.out);
    let state = Err(CommandError::State);
    let none = Err(CommandError::NoStream);
    assert_eq!(
        server.connection.request(&GET, &[], Content::Empty, down),
        Err(CommandError::State)
    );
    assert_eq!(
        server
            .connection
            .respond(FIRST, 200, &[], Content::Empty, down),
        none
    );
    assert_eq!(client.connection.finish(FIRST, up), none);
    assert_eq!(client.connection.hold(FIRST), none);
    // Nobody cancels the peer's control stream.
    assert_eq!(
        client
            .connection
            .cancel(StreamId(3), ErrorCode::H3_NO_ERROR, up),
        state
    );
    let stream = client
        .connection
        .request(&GET, &[], Content::Empty, up)
        .unwrap();
    assert_eq!(client.connection.send(stream, b"x", up), state);
    assert_eq!(
        client
            .connection
            .respond(stream, 200, &[], Content::Empty, up),
        state
    );
    server.read_all(&mut client.out, &mut |_, _, _| {});
    let down = &mut server.out;
    assert_eq!(server.connection.send(stream, b"x", down), state);
    assert_eq!(server.connection.send_trailers(stream, &[], down), state);
    assert_eq!(server.connection.accept_session(stream, &[], down), state);
    server
        .connection
        .respond(stream, 200, &[], Content::Streamed, down)
        .unwrap();
    assert_eq!(
        server
            .connection
            .respond(stream, 200, &[], Content::Empty, down),
        state
    );
}

#[test]
fn frames_of_unknown_types_are_passed_over() {
    let mut server = End::server(&Limits::default(), Features::default());
    let grease = frame(0x21, b"grease");
    let long = frame(0x1f * 1_000_000 + 0x21, &[0; 300]);
    let request = [
        &grease[..],
        &get(),
        &long,
        &frame(0, b"a"),
        &grease,
        &frame(0, b"b"),
        &frame(0x0f, b""),
        &headers(&[("t", "1")]),
        &long,
    ]
    .concat();
    server.feed(0, &request, true);
    assert_eq!(
        server.log.take(),
        [
            "s0 request GET /",
            "s0 content ab",
            "s0 trailers [t: 1]",
            "s0 end"
        ]
    );
    // So are streams, which are asked to end.
    server.feed(2, &integers(&[0x21]), false);
    server.feed(6, &integers(&[0x1f * 1_000 + 0x21]), true);
    server.feed(2, b"more", true);
    assert_eq!(
        server.out.ended(2).1,
        Some(ErrorCode::H3_STREAM_CREATION_ERROR)
    );
    // And settings, and frames of the control stream; priorities are heard and not kept.
    let control = [
        &[0][..],
        &frame(4, &integers(&[0x21, 7, 0x40, 0])),
        &long,
        &frame(0xf0700, &[&integers(&[0])[..], b"u=7"].concat()),
        &frame(0x0d, &integers(&[5])),
        &frame(0x0d, &integers(&[5])),
    ]
    .concat();
    server.feed(10, &control, false);
    // Streams of QPACK may say that there is no table.
    server.feed(14, &[2, 0x20, 0x20], false);
    server.feed(18, &[3, 0x44, 0x7f, 0x00], false);
    assert_eq!(server.log.take(), ["settings"]);
    assert!(server.violations.is_empty());
}
