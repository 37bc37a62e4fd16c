//! Cuts the bytes of one lane into packets.

use std::mem;

use bytes::Bytes;

use crate::{DecodeError, PacketType, ReasonCode, text, wire};

/// Room that a partial packet gets at first, in bytes; it doubles as bytes arrive.
const FIRST_PARTIAL_BYTES: usize = 256;

/// One whole packet: its first byte, and the bytes after the fixed header.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    first: u8,
    body: &'a [u8],
    shared: Option<&'a Bytes>,
}

impl<'a> Frame<'a> {
    /// A frame from its parts, for bytes that did not go through a [`Framer`].
    #[must_use]
    pub const fn new(first: u8, body: &'a [u8]) -> Self {
        Self {
            first,
            body,
            shared: None,
        }
    }

    /// The first byte: packet type and flags.
    #[must_use]
    #[inline]
    pub const fn first_byte(&self) -> u8 {
        self.first
    }

    /// The packet type; `None` for the reserved type 0.
    #[must_use]
    #[inline]
    pub const fn packet_type(&self) -> Option<PacketType> {
        PacketType::from_first_byte(self.first)
    }

    /// Variable header and payload.
    #[must_use]
    #[inline]
    pub const fn body(&self) -> &'a [u8] {
        self.body
    }

    /// The Topic Name of a PUBLISH, if it is `known`. It needs no check if that one was checked.
    #[must_use]
    #[inline]
    pub fn topic_if(&self, known: &str) -> Option<&'a str> {
        text::same(wire::Reader::new(self.body).binary().ok()?, known)
    }

    /// The body as owned bytes, for a packet that arrived in pieces and was put together. Keep a
    /// slice of it (with [`Frame::range_of`]) instead of a copy of a large payload. `None` for a
    /// packet that lay whole in the input.
    #[must_use]
    pub const fn shared(&self) -> Option<&'a Bytes> {
        self.shared
    }

    /// Place of `part`, a slice of this frame's body, within the body.
    ///
    /// `None` if it is not a slice of the body.
    #[must_use]
    pub fn range_of(&self, part: &[u8]) -> Option<std::ops::Range<usize>> {
        let start = (part.as_ptr() as usize).checked_sub(self.body.as_ptr() as usize)?;
        let end = start.checked_add(part.len())?;
        (end <= self.body.len()).then_some(start..end)
    }

    /// Size of the whole packet on the wire, in bytes.
    #[must_use]
    pub const fn packet_bytes(&self) -> usize {
        wire::packet_bytes(self.body.len())
    }

    /// Appends the whole packet as it was on the wire to `out`: to look at it later.
    pub fn copy_to(&self, out: &mut Vec<u8>) {
        out.reserve(self.packet_bytes());
        out.push(self.first);
        let mut rest = self.body.len();
        loop {
            let more = rest >= 128;
            out.push((rest % 128) as u8 | if more { 128 } else { 0 });
            rest /= 128;
            if !more {
                break;
            }
        }
        out.extend_from_slice(self.body);
    }
}

/// Cuts the bytes of one lane into frames ([MQTT-6.0.0-2]).
///
/// A packet that lies whole in the input is borrowed from it. Only a partial packet is buffered.
/// The buffer grows with the bytes that arrive, never by the claimed length. The call after the
/// packet releases it. An idle framer is one pointer, and holds no heap memory.
#[derive(Debug, Default)]
pub struct Framer {
    /// `None` between packets.
    partial: Option<Box<Partial>>,
}

/// A packet that does not lie whole in the input.
#[derive(Debug)]
enum Partial {
    /// Within the fixed header: the bytes so far.
    Header { bytes: [u8; 5], len: u8 },
    /// Within the body: the bytes so far.
    Body {
        first: u8,
        remaining_bytes: u32,
        body: Vec<u8>,
    },
    /// A packet that was put together and handed out.
    Assembled(Bytes),
    /// The bytes could not be cut; the rest of the lane cannot be either.
    Failed(DecodeError),
}

impl Default for Partial {
    fn default() -> Self {
        Self::Header {
            bytes: [0; 5],
            len: 0,
        }
    }
}

/// Content of the start of a packet.
enum Header {
    Incomplete,
    Complete {
        header_bytes: usize,
        remaining_bytes: usize,
    },
}

impl Framer {
    /// A framer at the start of a lane.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The next whole packet, or `None` without one. `input` is advanced past the taken bytes;
    /// after `None` it is empty.
    ///
    /// # Errors
    ///
    /// * `PacketTooLarge` as soon as a fixed header announces a packet of more than
    ///   `max_packet_bytes` (counted as in the specification: with the fixed header),
    /// * `MalformedPacket` for a packet of type 0. Also for a Remaining Length that is not a
    ///   Variable Byte Integer of at most four bytes in its shortest form.
    ///
    /// After an error the lane cannot be cut any further: every call returns the error again.
    pub fn next<'a, 'i: 'a>(
        &'a mut self,
        input: &mut &'i [u8],
        max_packet_bytes: usize,
    ) -> Result<Option<Frame<'a>>, DecodeError> {
        if self.partial.is_some() && !self.release() {
            return self.assemble(input, max_packet_bytes);
        }
        // The common case: the packet lies whole in the input.
        let header = match parse_header(input, max_packet_bytes) {
            Ok(header) => header,
            Err(error) => return Err(self.fail(error)),
        };
        if let Header::Complete {
            header_bytes,
            remaining_bytes,
        } = header
            && let Some(body) = input.get(header_bytes..header_bytes + remaining_bytes)
        {
            let first = input[0];
            *input = &input[header_bytes + remaining_bytes..];
            return Ok(Some(Frame {
                first,
                body,
                shared: None,
            }));
        }
        if input.is_empty() {
            return Ok(None);
        }
        self.assemble(input, max_packet_bytes)
    }

    /// First byte of the packet of which only a part has arrived, if there is one. A server looks
    /// at it to refuse a packet before it is complete.
    #[must_use]
    pub fn partial(&self) -> Option<u8> {
        match self.partial.as_deref()? {
            Partial::Header { bytes, .. } => Some(bytes[0]),
            Partial::Body { first, .. } => Some(*first),
            Partial::Assembled(_) | Partial::Failed(_) => None,
        }
    }

    /// Bytes of the buffer for a packet's body that the framer holds now.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        match self.partial.as_deref() {
            Some(Partial::Body { body, .. }) => body.capacity(),
            Some(Partial::Assembled(bytes)) => bytes.len(),
            None | Some(Partial::Header { .. } | Partial::Failed(_)) => 0,
        }
    }

    /// Drops a packet that was handed out; false where there is none.
    #[cold]
    fn release(&mut self) -> bool {
        let is_done = matches!(self.partial.as_deref(), Some(Partial::Assembled(_)));
        if is_done {
            self.partial = None;
        }
        is_done
    }

    #[cold]
    fn fail(&mut self, error: DecodeError) -> DecodeError {
        self.partial = Some(Box::new(Partial::Failed(error)));
        error
    }

    /// The slow path: a packet that arrives in pieces.
    fn assemble<'a>(
        &'a mut self,
        input: &mut &[u8],
        max_packet_bytes: usize,
    ) -> Result<Option<Frame<'a>>, DecodeError> {
        let partial = &mut **self.partial.get_or_insert_default();
        loop {
            match partial {
                Partial::Header { bytes, len } => {
                    // The header is completed byte by byte so that nothing of the body is taken.
                    let Some((&byte, rest)) = input.split_first() else {
                        return Ok(None);
                    };
                    *input = rest;
                    bytes[usize::from(*len)] = byte;
                    *len += 1;
                    let header = match parse_header(&bytes[..usize::from(*len)], max_packet_bytes) {
                        Ok(header) => header,
                        Err(error) => {
                            *partial = Partial::Failed(error);
                            return Err(error);
                        }
                    };
                    if let Header::Complete {
                        remaining_bytes, ..
                    } = header
                    {
                        *partial = Partial::Body {
                            first: bytes[0],
                            remaining_bytes: remaining_bytes as u32,
                            body: Vec::new(),
                        };
                    }
                }
                Partial::Failed(error) => return Err(*error),
                Partial::Assembled(_) => *partial = Partial::default(),
                Partial::Body {
                    first,
                    remaining_bytes,
                    body,
                } => {
                    let remaining_bytes = *remaining_bytes as usize;
                    debug_assert!(body.len() <= remaining_bytes, "a body is within its packet");
                    let wanted = remaining_bytes - body.len();
                    let taken = wanted.min(input.len());
                    let (head, rest) = input.split_at(taken);
                    grow(body, taken, remaining_bytes);
                    body.extend_from_slice(head);
                    *input = rest;
                    if taken < wanted {
                        return Ok(None);
                    }
                    let first = *first;
                    *partial = Partial::Assembled(Bytes::from(mem::take(body)));
                    let Partial::Assembled(body) = partial else {
                        return Ok(None);
                    };
                    return Ok(Some(Frame {
                        first,
                        body,
                        shared: Some(body),
                    }));
                }
            }
        }
    }
}

/// Makes room for `more` bytes in a body that will have `total` bytes. The room is at least
/// doubled, so that the copies stay linear, and never more than twice the received bytes.
fn grow(body: &mut Vec<u8>, more: usize, total: usize) {
    let needed = body.len() + more;
    if needed > body.capacity() {
        let target = needed
            .max(body.capacity() * 2)
            .max(FIRST_PARTIAL_BYTES)
            .min(total);
        body.reserve_exact(target - body.len());
    }
}

/// Reads a fixed header (MQTT 5.0 section 2.1).
#[inline]
fn parse_header(input: &[u8], max_packet_bytes: usize) -> Result<Header, DecodeError> {
    let Some(&first) = input.first() else {
        return Ok(Header::Incomplete);
    };
    if first < 0x10 {
        return Err(DecodeError::malformed("packet type 0 is reserved"));
    }
    let mut remaining_bytes = 0;
    for index in 0..4 {
        let Some(&byte) = input.get(1 + index) else {
            return Ok(Header::Incomplete);
        };
        remaining_bytes |= usize::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            // [MQTT-1.5.5-1] the shortest form is required
            if byte == 0 && index > 0 {
                return Err(DecodeError::malformed(
                    "Remaining Length is not in its shortest form",
                ));
            }
            let header_bytes = 2 + index;
            if header_bytes + remaining_bytes > max_packet_bytes {
                return Err(DecodeError::new(
                    ReasonCode::PacketTooLarge,
                    "packet larger than the Maximum Packet Size",
                ));
            }
            return Ok(Header::Complete {
                header_bytes,
                remaining_bytes,
            });
        }
    }
    Err(DecodeError::malformed(
        "Remaining Length of more than four bytes",
    ))
}
