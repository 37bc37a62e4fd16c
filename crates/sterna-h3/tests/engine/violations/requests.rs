//! On streams of requests.

use sterna_h3::ErrorCode;

use super::Does::{Ends, Sends};
use super::{CONNECTION, check, client, server};
use crate::harness::{frame, get, headers, integers};

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
