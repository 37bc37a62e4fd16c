//! What servers of HTTP send to the client: the frames of a subscription however they are cut, problems
//! and sessions.

use crate::client_frames::{Frame, FrameError, Frames};
use crate::client_problem::Problem;
use crate::client_session::SessionDescription;

/// Longest frame.
const LIMIT_BYTES: usize = 200;

/// What is seen of a frame: id, topic, properties, payload, QoS, flags.
type Seen = Option<(Option<u64>, String, Vec<u8>, Vec<u8>, u8, bool, bool)>;

/// Checks that a stream is read as the same frames in one piece and in pieces.
///
/// Pieces are as long as the stream's first byte says. No more is held than one frame and one piece. Problems and
/// sessions of any content are read or refused.
///
/// # Panics
///
/// Where this does not hold.
pub fn responses(bytes: &[u8]) {
    let Some((&piece, content)) = bytes.split_first() else {
        return;
    };
    let whole = read(content, usize::MAX);
    assert_eq!(whole, read(content, usize::from(piece).max(1)));
    let problem = Problem::parse(500, content);
    assert!(!problem.to_string().is_empty());
    if let Err(why) = SessionDescription::parse(content) {
        assert!(!why.is_empty());
    }
}

fn read(stream: &[u8], piece: usize) -> (Vec<Seen>, Option<FrameError>) {
    let mut frames = Frames::new(LIMIT_BYTES);
    let mut seen = Vec::new();
    for bytes in stream.chunks(piece.min(stream.len().max(1))) {
        frames.push(bytes);
        loop {
            match frames.next_frame() {
                Ok(None) => break,
                Ok(Some(Frame::Heartbeat)) => seen.push(None),
                Ok(Some(Frame::Message { id, message })) => {
                    seen.push(Some((
                        id,
                        message.topic().to_owned(),
                        message.properties().raw().to_vec(),
                        message.payload_bytes().to_vec(),
                        message.qos() as u8,
                        message.retain(),
                        message.is_duplicate(),
                    )));
                }
                Err(error) => return (seen, Some(error)),
            }
        }
        assert!(frames.buffered_bytes() <= LIMIT_BYTES + 8);
    }
    (seen, None)
}
