//! With datagrams and WebTransport sessions.

use sterna_h3::{ErrorCode, Limits};

use super::Does::{Datagram, Ends, Sends};
use super::{CONNECTION, check, server};
use crate::harness::{ALL, End, frame, get, headers, integers};

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
                "an end whose reason is not text",
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
                "the stream ends within what a capsule begins with",
                {
                    let mut what = asks(&[0x68]);
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
