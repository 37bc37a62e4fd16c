//! Frames that clients of WebTransport send, however they are cut.

use bytes::{BufMut, Bytes, BytesMut};

use sterna_mapping::frame::{Frame, FrameError, FrameReader, Head};

/// Longest frame.
const LIMIT_BYTES: usize = 100;

/// Checks that a stream is cut into the same frames in one piece and in pieces as long as its first
/// byte says, and that what is a frame stays the same when it is written and read again.
///
/// # Panics
///
/// Where this does not hold.
pub fn frames(bytes: &[u8]) {
    let Some((&piece, stream)) = bytes.split_first() else {
        return;
    };
    let whole = read(stream, usize::MAX);
    assert_eq!(whole, read(stream, usize::from(piece).max(1)));
    for body in whole.into_iter().flatten() {
        assert!((1..=LIMIT_BYTES).contains(&body.len()));
        match Frame::parse(body) {
            Err(error) => assert!(!error.to_string().is_empty()),
            Ok(frame) if frame.is_acknowledgement() => assert!(frame.payload().is_empty()),
            Ok(frame) => {
                let head = Head {
                    id: frame.id,
                    flags: frame.flags,
                    topic: frame.topic(),
                    expiry_s: None,
                    properties: frame.properties(),
                    payload_bytes: frame.payload().len(),
                };
                let mut out = BytesMut::new();
                head.write(true, &mut out);
                out.put_slice(frame.payload());
                let again = read(&out, usize::MAX).expect("it is no longer than it was");
                let again = Frame::parse(again[0].clone()).expect("it is a frame");
                assert_eq!((again.id, again.flags), (frame.id, frame.flags));
                assert_eq!(again.topic(), frame.topic());
                assert_eq!(again.properties(), frame.properties());
                assert_eq!(again.payload(), frame.payload());
            }
        }
    }
}

fn read(stream: &[u8], piece_bytes: usize) -> Result<Vec<Bytes>, FrameError> {
    let mut reader = FrameReader::new(LIMIT_BYTES);
    let mut frames = Vec::new();
    for mut piece in stream.chunks(piece_bytes) {
        while let Some(frame) = reader.next(&mut piece)? {
            frames.push(frame);
        }
        assert!(piece.is_empty() && reader.held_bytes() < LIMIT_BYTES);
    }
    Ok(frames)
}
