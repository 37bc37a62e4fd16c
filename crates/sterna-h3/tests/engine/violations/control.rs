//! On the control stream and those of QPACK.

use sterna_h3::{ErrorCode, Limits};

use super::Does::{Ends, Resets, Sends, Stops};
use super::{CONNECTION, check, client, control, server, then};
use crate::harness::{ALL, End, frame, get};

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
                "GOAWAY with an identifier that is not a request's",
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
