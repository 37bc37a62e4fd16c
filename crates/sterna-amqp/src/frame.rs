//! Frames: cutting the bytes of a lane, and writing (AMQP 1.0, part 2, section 2.3).

use std::mem;

use bytes::{BufMut as _, Bytes, BytesMut};

use crate::DecodeError;
use crate::performatives::Ending;
use crate::security::ProtocolHeader;
use crate::types::Value;

/// Bytes of a frame header without an extension.
pub const FRAME_HEADER_BYTES: usize = 8;

/// Frame type of AMQP frames (section 2.3.2).
pub const TYPE_AMQP: u8 = 0;
/// Frame type of SASL frames (part 5, section 5.3.1).
pub const TYPE_SASL: u8 = 1;

/// Room that a partial frame gets at first, in bytes; it doubles as bytes arrive.
const FIRST_PARTIAL_BYTES: usize = 256;

/// One whole frame, or a protocol header.
#[derive(Clone, Copy, Debug)]
pub enum Unit<'a> {
    /// Eight bytes that begin with `AMQP`.
    Header(ProtocolHeader),
    /// A frame.
    Frame(Frame<'a>),
}

impl Unit<'_> {
    /// Appends the bytes that it was cut from, without an extension of the frame's header.
    pub fn copy_to(&self, out: &mut BytesMut) {
        match self {
            Self::Header(header) => header.encode(out),
            Self::Frame(frame) => encode(out, frame.kind, frame.channel, |out| {
                out.extend_from_slice(frame.body);
            }),
        }
    }

    /// Whether it is a transfer.
    #[must_use]
    pub fn is_transfer(&self) -> bool {
        (self.descriptor()).is_some_and(|descriptor| crate::performatives::is_transfer(&descriptor))
    }

    /// The end that the peer asks for; `None` for a unit that ends nothing.
    #[must_use]
    pub fn end(&self) -> Option<Ending> {
        Ending::of(&self.descriptor()?)
    }

    /// The descriptor of an AMQP frame's performative.
    fn descriptor(&self) -> Option<Value<'_>> {
        match self {
            Self::Frame(frame) if frame.kind == TYPE_AMQP => {
                crate::types::Reader::new(frame.body).descriptor().ok()
            }
            Self::Header(_) | Self::Frame(_) => None,
        }
    }
}

/// One whole frame.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    kind: u8,
    channel: u16,
    body: &'a [u8],
    shared: Option<&'a Bytes>,
}

impl<'a> Frame<'a> {
    /// A frame from its parts, for bytes that did not go through a [`Framer`].
    #[must_use]
    pub const fn new(frame_type: u8, channel: u16, body: &'a [u8]) -> Self {
        Self {
            kind: frame_type,
            channel,
            body,
            shared: None,
        }
    }

    /// [`TYPE_AMQP`], [`TYPE_SASL`] or another.
    #[must_use]
    pub const fn frame_type(&self) -> u8 {
        self.kind
    }

    /// The channel of an AMQP frame.
    #[must_use]
    pub const fn channel(&self) -> u16 {
        self.channel
    }

    /// The bytes after the frame header and its extension.
    #[must_use]
    pub const fn body(&self) -> &'a [u8] {
        self.body
    }

    /// The body as owned bytes, for a frame that arrived in pieces and had to be put together.
    #[must_use]
    pub const fn shared(&self) -> Option<&'a Bytes> {
        self.shared
    }

    /// `part`, a slice of this frame's body, as owned bytes; `None` for a frame that lay whole in
    /// the input.
    #[must_use]
    pub fn share(&self, part: &[u8]) -> Option<Bytes> {
        let shared = self.shared?;
        let start = (part.as_ptr() as usize).checked_sub(shared.as_ptr() as usize)?;
        let end = start.checked_add(part.len())?;
        (end <= shared.len()).then(|| shared.slice(start..end))
    }
}

/// Cuts the bytes of one lane into protocol headers and frames.
///
/// A frame that lies whole in the input is borrowed from it. Only a partial frame is buffered. The
/// buffer grows with the bytes that arrive, never by the claimed size. The call after the frame
/// releases it. An idle framer holds no heap memory.
#[derive(Debug, Default)]
pub struct Framer {
    state: State,
}

#[derive(Debug, Default)]
enum State {
    /// Between frames.
    #[default]
    Empty,
    /// Within the first eight bytes: those so far.
    Start {
        bytes: [u8; FRAME_HEADER_BYTES],
        len: u8,
    },
    /// Within a frame after its header.
    Body { head: Head, rest: Vec<u8> },
    /// A frame that was put together and handed out: extended header and body.
    Assembled(Bytes),
    /// The bytes could not be cut; the rest of the lane cannot be either.
    Failed(DecodeError),
}

/// Content of the first eight bytes of a frame.
#[derive(Clone, Copy, Debug)]
struct Head {
    /// Size of the extended header.
    extension_bytes: usize,
    /// Size of extended header and body.
    rest_bytes: usize,
    frame_type: u8,
    channel: u16,
}

enum Start {
    Header(ProtocolHeader),
    Frame(Head),
}

/// The fault of a frame beyond what this end takes, in words.
pub const FRAME_TOO_LARGE: &str = "frame is larger than max-frame-size";

fn parse_start(
    bytes: [u8; FRAME_HEADER_BYTES],
    max_frame_bytes: usize,
) -> Result<Start, DecodeError> {
    if let Some(header) = ProtocolHeader::parse(bytes) {
        return Ok(Start::Header(header));
    }
    let [a, b, c, d, data_offset, frame_type, high, low] = bytes;
    let frame_bytes = u32::from_be_bytes([a, b, c, d]) as usize;
    if frame_bytes > max_frame_bytes {
        return Err(DecodeError::framing(FRAME_TOO_LARGE));
    }
    let header_bytes = usize::from(data_offset) * 4;
    if header_bytes < FRAME_HEADER_BYTES {
        return Err(DecodeError::framing("data offset is less than two"));
    }
    if frame_bytes < header_bytes {
        return Err(DecodeError::framing("frame is shorter than its header"));
    }
    Ok(Start::Frame(Head {
        extension_bytes: header_bytes - FRAME_HEADER_BYTES,
        rest_bytes: frame_bytes - FRAME_HEADER_BYTES,
        frame_type,
        channel: u16::from_be_bytes([high, low]),
    }))
}

impl Framer {
    /// A framer at the start of a lane.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The next whole unit, or `None` when `input` is used up. `input` is advanced past the taken
    /// bytes; after `None` it is empty.
    ///
    /// # Errors
    ///
    /// `amqp:connection:framing-error` as soon as a frame header announces more than
    /// `max_frame_bytes`, or contradicts itself. After an error the lane cannot be cut any further:
    /// every call returns the error again.
    pub fn next<'a, 'i: 'a>(
        &'a mut self,
        input: &mut &'i [u8],
        max_frame_bytes: usize,
    ) -> Result<Option<Unit<'a>>, DecodeError> {
        if let State::Empty | State::Assembled(_) = self.state {
            self.state = State::Empty;
            // The common case: the frame lies whole in the input.
            if let Some((&start, rest)) = input.split_first_chunk() {
                match parse_start(start, max_frame_bytes) {
                    Err(error) => return Err(self.fail(error)),
                    Ok(Start::Header(header)) => {
                        *input = rest;
                        return Ok(Some(Unit::Header(header)));
                    }
                    Ok(Start::Frame(head)) => {
                        if let Some((frame, after)) = rest.split_at_checked(head.rest_bytes) {
                            *input = after;
                            return Ok(Some(Unit::Frame(Frame {
                                kind: head.frame_type,
                                channel: head.channel,
                                body: &frame[head.extension_bytes..],
                                shared: None,
                            })));
                        }
                    }
                }
            }
            if input.is_empty() {
                return Ok(None);
            }
        }
        self.assemble(input, max_frame_bytes)
    }

    /// Whether a part of a frame has arrived.
    #[must_use]
    pub const fn is_partial(&self) -> bool {
        matches!(self.state, State::Start { .. } | State::Body { .. })
    }

    /// Bytes of heap memory that the framer holds now.
    #[must_use]
    pub const fn buffered_bytes(&self) -> usize {
        match &self.state {
            State::Body { rest, .. } => rest.capacity(),
            State::Assembled(bytes) => bytes.len(),
            State::Empty | State::Start { .. } | State::Failed(_) => 0,
        }
    }

    #[cold]
    fn fail(&mut self, error: DecodeError) -> DecodeError {
        self.state = State::Failed(error);
        error
    }

    /// The slow path: a frame that arrives in pieces.
    fn assemble<'a>(
        &'a mut self,
        input: &mut &[u8],
        max_frame_bytes: usize,
    ) -> Result<Option<Unit<'a>>, DecodeError> {
        loop {
            match &mut self.state {
                State::Empty | State::Assembled(_) => {
                    self.state = State::Start {
                        bytes: [0; FRAME_HEADER_BYTES],
                        len: 0,
                    };
                }
                State::Start { bytes, len } => {
                    let filled = usize::from(*len);
                    let taken = input.len().min(FRAME_HEADER_BYTES - filled);
                    let (head, after) = input.split_at(taken);
                    *input = after;
                    bytes[filled..filled + taken].copy_from_slice(head);
                    *len += taken as u8;
                    if filled + taken < FRAME_HEADER_BYTES {
                        return Ok(None);
                    }
                    match parse_start(*bytes, max_frame_bytes) {
                        Err(error) => return Err(self.fail(error)),
                        Ok(Start::Header(header)) => {
                            self.state = State::Empty;
                            return Ok(Some(Unit::Header(header)));
                        }
                        Ok(Start::Frame(head)) => {
                            self.state = State::Body {
                                head,
                                rest: Vec::new(),
                            };
                        }
                    }
                }
                State::Body { head, rest } => {
                    let taken = input.len().min(head.rest_bytes - rest.len());
                    let (now, after) = input.split_at(taken);
                    grow(rest, taken, head.rest_bytes);
                    rest.extend_from_slice(now);
                    *input = after;
                    if rest.len() < head.rest_bytes {
                        return Ok(None);
                    }
                    let head = *head;
                    let whole = Bytes::from(mem::take(rest));
                    self.state = State::Assembled(whole);
                    let State::Assembled(whole) = &self.state else {
                        return Ok(None);
                    };
                    return Ok(Some(Unit::Frame(Frame {
                        kind: head.frame_type,
                        channel: head.channel,
                        body: &whole[head.extension_bytes..],
                        shared: Some(whole),
                    })));
                }
                State::Failed(error) => return Err(*error),
            }
        }
    }
}

/// Makes room for `more` bytes: doubling, but never above the size of the whole frame.
fn grow(buffer: &mut Vec<u8>, more: usize, whole: usize) {
    let needed = buffer.len() + more;
    if needed > buffer.capacity() {
        let room = needed
            .max(buffer.capacity() * 2)
            .max(FIRST_PARTIAL_BYTES)
            .min(whole);
        buffer.reserve_exact(room - buffer.len());
    }
}

/// Appends a frame whose body `write` appends.
pub fn encode(out: &mut BytesMut, frame_type: u8, channel: u16, write: impl FnOnce(&mut BytesMut)) {
    let start = begin(out, frame_type, channel);
    write(out);
    finish(out, start);
}

/// Appends an empty frame, which says only that its sender is there (section 2.4.5).
pub fn encode_empty(out: &mut BytesMut) {
    encode(out, TYPE_AMQP, 0, |_| {});
}

/// Appends a frame header whose size is not known yet; returns where it begins.
pub(crate) fn begin(out: &mut BytesMut, frame_type: u8, channel: u16) -> usize {
    let start = out.len();
    out.put_u32(0);
    out.put_u8((FRAME_HEADER_BYTES / 4) as u8);
    out.put_u8(frame_type);
    out.put_u16(channel);
    start
}

/// Sets the size of the frame that begins at `start` and ends here.
pub(crate) fn finish(out: &mut BytesMut, start: usize) {
    let frame_bytes = (out.len() - start) as u32;
    out[start..start + 4].copy_from_slice(&frame_bytes.to_be_bytes());
}
