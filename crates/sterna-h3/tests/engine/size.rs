//! Budgets on bytes and writes: small requests in single packets are the point of the engine.

use sterna_h3::{Content, Features, Field, Limits, RequestLine, StreamId};

use crate::harness::{ALL, End, connected, exchange};

const REQUEST: StreamId = StreamId(0);

/// Bytes that one request puts on the wire, in how many writes.
fn request(line: &RequestLine<'_>, fields: &[Field<'_>], content: Content<'_>) -> (usize, usize) {
    let (mut client, _) = connected(&Limits::default(), Features::default());
    let Ok(id) = client
        .connection
        .request(line, fields, content, &mut client.out)
    else {
        panic!("a request that can be sent");
    };
    let sent = client.out.lane(id);
    assert!(sent.fin);
    (sent.bytes.len(), sent.writes)
}

fn response(status: u16, fields: &[Field<'_>], content: Content<'_>) -> (usize, usize) {
    let (mut client, mut server) = connected(&Limits::default(), Features::default());
    let line = RequestLine::https("GET", "a", "/");
    client
        .connection
        .request(&line, &[], Content::Empty, &mut client.out)
        .unwrap();
    server.read_all(&mut client.out, &mut |_, _, _| {});
    server
        .connection
        .respond(REQUEST, status, fields, content, &mut server.out)
        .unwrap();
    let sent = server.out.lane(REQUEST);
    (sent.bytes.len(), sent.writes)
}

#[test]
fn requests_are_one_short_write() {
    let post = RequestLine::https("POST", "example.org", "/v1/topics/sensors/temp1");
    let get = RequestLine::https("GET", "example.org", "/v1/topics/sensors/temp1");
    let authorization = Field::secret("authorization", b"Basic ZGV2aWNlOnNlY3JldA==");
    // Frame header 2, prefix 2, method 1, scheme 1, authority 2 + 8, path 2 + 17: the least that
    // QPACK has without a dynamic table.
    assert_eq!(request(&get, &[], Content::Empty), (35, 1));
    // The content and two bytes of DATA.
    assert_eq!(request(&post, &[], Content::Whole(&[b'x'; 32])), (69, 1));
    // Three bytes, the credentials in Huffman code, and one byte more for the length of HEADERS.
    let with_credentials = request(&post, &[authorization], Content::Whole(&[b'x'; 32]));
    assert_eq!(with_credentials, (93, 1));
    // Large contents are not copied for one write.
    assert_eq!(request(&post, &[], Content::Whole(&[b'x'; 5_000])).1, 2);
}

#[test]
fn responses_are_one_short_write() {
    assert_eq!(response(200, &[], Content::Empty), (5, 1));
    // Above the first 63 entries an index has two bytes.
    assert_eq!(response(204, &[], Content::Empty), (6, 1));
    // A status that has no entry: the name's index is above 15, so it has two bytes.
    assert_eq!(response(201, &[], Content::Empty), (9, 1));
    let content_type = Field::new("content-type", b"text/event-stream");
    assert_eq!(
        response(200, &[content_type], Content::Whole(b"data: 1\n\n")),
        (31, 1)
    );
}

#[test]
fn a_connection_begins_with_few_bytes() {
    let mut client = End::client(&Limits::default(), Features::default());
    assert_eq!(client.out.take(2), [0x00, 0x04, 0x03, 0x06, 0x7f, 0xff]);
    assert_eq!(client.out.lanes.len(), 1);
    let mut server = End::server(&Limits::default(), ALL);
    assert_eq!(server.out.take(3).len(), 3 + 3 + 2 + 2 + 5 + 9);
    assert_eq!(server.out.lanes.len(), 1);
}

/// What streams, costs a frame's header for each piece.
#[test]
fn each_piece_of_a_stream_is_one_write() {
    let (mut client, mut server) = connected(&Limits::default(), Features::default());
    let line = RequestLine::https("GET", "a", "/");
    client
        .connection
        .request(&line, &[], Content::Empty, &mut client.out)
        .unwrap();
    exchange(&mut client, &mut server);
    let (connection, out) = (&mut server.connection, &mut server.out);
    connection
        .respond(REQUEST, 200, &[], Content::Streamed, out)
        .unwrap();
    let before = (out.lane(REQUEST).bytes.len(), out.lane(REQUEST).writes);
    for _ in 0..10 {
        connection.send(REQUEST, &[b'x'; 32], out).unwrap();
    }
    let sent = out.lane(REQUEST);
    assert_eq!(
        (sent.bytes.len() - before.0, sent.writes - before.1),
        (340, 10)
    );
}
