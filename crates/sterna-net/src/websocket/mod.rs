//! The server side of one WebSocket connection: upgrade, frames in, frames out.

mod frame;
mod upgrade;

use std::io::IoSlice;
use std::sync::Arc;

use crate::config::WebSocketConfig;
use crate::handshake::HandshakeFault;
use crate::outbox::Outbox;

pub(crate) use frame::{Decoded, Violation, code};
use frame::{Decoder, write_binary_header, write_close, write_pong};
use upgrade::Answer;

/// Result of bytes received before the upgrade was finished.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Upgrade {
    /// The request head is not complete.
    Incomplete,
    /// The protocols are switched; the response waits to be written.
    Done {
        /// Where frames begin in the received bytes.
        frames_at: usize,
        /// The subprotocol.
        subprotocol: String,
    },
    /// The error response waits to be written; then the connection is to be closed.
    Refused {
        /// HTTP status code.
        status: u16,
        /// The fault, for metrics.
        fault: HandshakeFault,
        /// Text for the log.
        detail: String,
    },
}

#[derive(Debug)]
enum Stage {
    /// The request head as far as it has come.
    Request(Vec<u8>, Arc<WebSocketConfig>),
    /// Frames both ways.
    Frames(Decoder),
    /// Nothing that comes is looked at.
    Deaf,
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct WebSocketSession {
    stage: Stage,
    /// Bytes that go out before the payload of the current frame: control frames, its header.
    staged: Vec<u8>,
    /// Written bytes of `staged`.
    written: usize,
    /// Payload of the current frame that is not written yet.
    frame_left: usize,
    /// The newest Ping that is not answered yet.
    ping: Option<Vec<u8>>,
    /// Code for the Close frame.
    close_code: u16,
    close_sent: bool,
}

impl WebSocketSession {
    pub(crate) fn new(config: Arc<WebSocketConfig>) -> Self {
        Self {
            stage: Stage::Request(Vec::new(), config),
            staged: Vec::new(),
            written: 0,
            frame_left: 0,
            ping: None,
            close_code: code::NORMAL,
            close_sent: false,
        }
    }

    /// Whether the protocols are switched.
    pub(crate) fn is_upgraded(&self) -> bool {
        matches!(self.stage, Stage::Frames(_))
    }

    /// Takes in bytes of the request.
    pub(crate) fn upgrade(&mut self, bytes: &[u8]) -> Upgrade {
        let Stage::Request(head, config) = &mut self.stage else {
            return Upgrade::Incomplete;
        };
        let earlier = head.len();
        // At most the limit is kept. The head is parsed only when it may be complete, so that one
        // byte at a time does not cause repeated parsing.
        let limit = config.request_head_bytes.saturating_sub(earlier);
        head.extend_from_slice(&bytes[..bytes.len().min(limit)]);
        let tail = &head[earlier.saturating_sub(3)..];
        let complete = tail.windows(2).any(|pair| pair == b"\n\n")
            || tail.windows(3).any(|triple| triple == b"\n\r\n")
            || head.len() >= config.request_head_bytes;
        // AMQP begins with letters, too.
        let plausible = head.first().is_none_or(u8::is_ascii_alphabetic) && !bytes.contains(&0);
        if !complete && plausible {
            return Upgrade::Incomplete;
        }
        match upgrade::answer(head, config) {
            Answer::Incomplete => Upgrade::Incomplete,
            Answer::Accept {
                head_bytes,
                subprotocol,
                response,
            } => {
                self.staged = response;
                self.stage = Stage::Frames(Decoder::default());
                Upgrade::Done {
                    frames_at: head_bytes.saturating_sub(earlier),
                    subprotocol,
                }
            }
            Answer::Refuse {
                status,
                response,
                fault,
                detail,
            } => {
                self.staged = response;
                self.stage = Stage::Deaf;
                self.close_sent = true; // There are no frames to close with.
                Upgrade::Refused {
                    status,
                    fault,
                    detail,
                }
            }
        }
    }

    /// Decodes frames in place; data is at the front of `bytes` afterwards.
    pub(crate) fn decode(&mut self, bytes: &mut [u8]) -> Result<Decoded, Violation> {
        let Stage::Frames(frames) = &mut self.stage else {
            return Ok(Decoded::default());
        };
        let result = frames.decode(bytes);
        match &result {
            Ok(content) => {
                if content.ping.is_some() {
                    self.ping.clone_from(&content.ping);
                }
                if let Some(status) = content.close {
                    self.close_code = status;
                    self.stage = Stage::Deaf;
                }
            }
            Err(violation) => {
                self.close_code = violation.code;
                self.stage = Stage::Deaf;
            }
        }
        result
    }

    /// Sets the code for the Close frame, unless the peer's frames have decided it.
    pub(crate) fn set_close_code(&mut self, status: u16) {
        if self.is_upgraded() {
            self.close_code = status;
        }
    }

    /// Prepares the next output: answers to control frames, then one frame around all of the
    /// outbox.
    pub(crate) fn stage(&mut self, outbox_bytes: usize) {
        if self.frame_left > 0 || self.close_sent {
            return;
        }
        if let Some(payload) = self.ping.take() {
            write_pong(&mut self.staged, &payload);
        }
        if outbox_bytes > 0 {
            write_binary_header(&mut self.staged, outbox_bytes);
            self.frame_left = outbox_bytes;
        }
    }

    /// Appends a Close frame, once, after everything else.
    pub(crate) fn stage_close(&mut self) {
        debug_assert_eq!(self.frame_left, 0, "a frame is not interrupted");
        if !self.close_sent {
            self.close_sent = true;
            write_close(&mut self.staged, self.close_code);
        }
    }

    /// Whether the Close frame was staged, or there is none to send.
    pub(crate) fn close_sent(&self) -> bool {
        self.close_sent
    }

    /// The next output, as [`Outbox::gather`].
    pub(crate) fn gather<'a>(
        &'a self,
        outbox: Option<&'a Outbox>,
        slices: &mut [IoSlice<'a>],
    ) -> (usize, usize) {
        let staged = &self.staged[self.written..];
        let mut used = usize::from(!staged.is_empty());
        if used > 0 {
            slices[0] = IoSlice::new(staged);
        }
        let payload = match outbox {
            Some(outbox) if self.frame_left > 0 => {
                let (more, gathered) = outbox.gather(self.frame_left, slices, used);
                used = more;
                gathered
            }
            _ => 0,
        };
        (used, staged.len() + payload)
    }

    /// Notes that `count` of the gathered bytes are written, and returns the number of the outbox's
    /// among them.
    pub(crate) fn advance(&mut self, count: usize) -> usize {
        let staged = count.min(self.staged.len() - self.written);
        self.written += staged;
        if self.written == self.staged.len() {
            const KEPT_BYTES: usize = 32;
            self.written = 0;
            self.staged.clear();
            if self.staged.capacity() > KEPT_BYTES {
                self.staged = Vec::new();
            }
        }
        let payload = count - staged;
        debug_assert!(payload <= self.frame_left);
        self.frame_left -= payload;
        payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::Pool;

    #[test]
    fn a_turn_makes_one_frame_and_a_frame_is_not_interrupted() {
        let mut pool = Pool::new(1 << 20);
        let mut session = WebSocketSession::new(Arc::default());
        session.stage = Stage::Frames(Decoder::default());
        let mut outbox = Outbox::default();
        outbox.push(b"one", &mut pool);
        outbox.push_shared(bytes::Bytes::from_static(b"two"));
        let mut wire = Vec::new();
        let mut write = |session: &mut WebSocketSession, outbox: &mut Outbox, most: usize| {
            session.stage(outbox.len());
            let mut slices = [IoSlice::new(&[]); 8];
            let (used, gathered) = session.gather(Some(outbox), &mut slices);
            let bytes: Vec<u8> = slices[..used].iter().flat_map(|s| s.to_vec()).collect();
            assert_eq!(bytes.len(), gathered);
            let count = gathered.min(most);
            wire.extend_from_slice(&bytes[..count]);
            let payload = session.advance(count);
            outbox.advance(payload, &mut pool);
            wire.clone()
        };
        write(&mut session, &mut outbox, 4);
        session.ping = Some(b"!".to_vec());
        outbox.push_shared(bytes::Bytes::from_static(b"three"));
        write(&mut session, &mut outbox, 3);
        write(&mut session, &mut outbox, 100);
        let wire = write(&mut session, &mut outbox, 100);
        let expected = [
            &[0x82, 6][..],
            b"onetwo",
            &[0x8a, 1],
            b"!",
            &[0x82, 5],
            b"three",
        ];
        assert_eq!(wire, expected.concat());
        session.stage_close();
        assert_eq!(session.staged, [0x88, 2, 3, 232]);
    }

    #[test]
    fn a_request_may_come_byte_by_byte() {
        let mut session = WebSocketSession::new(Arc::default());
        let request = b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\
            Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
            Sec-WebSocket-Protocol: mqtt\r\nSec-WebSocket-Version: 13\r\n\r\n";
        let (last, first) = request.split_last().expect("not empty");
        for byte in first {
            assert_eq!(session.upgrade(&[*byte]), Upgrade::Incomplete);
        }
        let done = session.upgrade(&[*last, 0x82, 0x80]);
        assert_eq!(
            done,
            Upgrade::Done {
                frames_at: 1,
                subprotocol: "mqtt".into()
            }
        );
        assert!(session.is_upgraded());
    }

    #[test]
    fn what_is_no_request_is_refused_at_its_first_byte() {
        let mut session = WebSocketSession::new(Arc::default());
        assert!(matches!(
            session.upgrade(&[0x10, 0x0c]),
            Upgrade::Refused { status: 400, .. }
        ));
        assert!(!session.staged.is_empty());
    }
}
