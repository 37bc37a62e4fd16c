//! Frames (RFC 9114, section 7): a type, a length and a payload.

use crate::varint;

/// The type of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FrameType(pub u64);

impl FrameType {
    /// Content of a message (section 7.2.1).
    pub const DATA: Self = Self(0x00);
    /// A field section (section 7.2.2).
    pub const HEADERS: Self = Self(0x01);
    /// A push is not wanted (section 7.2.3).
    pub const CANCEL_PUSH: Self = Self(0x03);
    /// Settings of the connection (section 7.2.4).
    pub const SETTINGS: Self = Self(0x04);
    /// A request that a server answers unasked (section 7.2.5).
    pub const PUSH_PROMISE: Self = Self(0x05);
    /// The connection is about to end (section 7.2.6).
    pub const GOAWAY: Self = Self(0x07);
    /// Number of pushes that a client takes (section 7.2.7).
    pub const MAX_PUSH_ID: Self = Self(0x0d);
    /// Priority of a request (RFC 9218, section 7.2).
    pub const PRIORITY_UPDATE_REQUEST: Self = Self(0xf_0700);
    /// Priority of a push (RFC 9218, section 7.2).
    pub const PRIORITY_UPDATE_PUSH: Self = Self(0xf_0701);
    /// The first integer of a bidirectional stream of a WebTransport session. It is no frame: the
    /// session identifier follows, not a length.
    pub const WEBTRANSPORT_STREAM: Self = Self(0x41);

    /// Whether HTTP/2 has the type and HTTP/3 has not (section 7.2.8).
    #[must_use]
    pub const fn is_reserved(self) -> bool {
        matches!(self.0, 0x02 | 0x06 | 0x08 | 0x09)
    }
}

/// Most bytes of a frame's header.
pub const MAX_HEADER_BYTES: usize = 2 * varint::MAX_BYTES;

/// Bytes of the header of a frame.
#[must_use]
pub const fn header_bytes(frame_type: FrameType, payload_bytes: u64) -> usize {
    varint::len(frame_type.0) + varint::len(payload_bytes)
}

/// Appends the header of a frame.
///
/// # Panics
///
/// Where type or length are above [`varint::MAX`].
pub fn write_header(frame_type: FrameType, payload_bytes: u64, out: &mut Vec<u8>) {
    varint::write(frame_type.0, out);
    varint::write(payload_bytes, out);
}

/// Puts integers together that come in pieces: the headers of frames, types of streams.
///
/// An item that is whole in the input is read from there. Only a cut-off item is kept, in place.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gather {
    bytes: [u8; MAX_HEADER_BYTES],
    len: u8,
}

impl Gather {
    /// Whether a part has come.
    #[must_use]
    pub const fn is_partial(&self) -> bool {
        self.len != 0
    }

    /// Takes type and length of a frame off the input, and returns their length in bytes. `None` if
    /// more bytes are needed; the available ones are kept.
    ///
    /// An item with the type `alone` has no length: it is reported as 0, and the following bytes
    /// are left.
    pub fn frame(
        &mut self,
        input: &mut &[u8],
        alone: Option<FrameType>,
    ) -> Option<(FrameType, u64, usize)> {
        loop {
            let header = self.part(input);
            if let Some((frame_type, type_bytes)) = varint::read(header) {
                let frame_type = FrameType(frame_type);
                if alone == Some(frame_type) {
                    return Some((frame_type, 0, self.done(input, type_bytes)));
                }
                if let Some((length, length_bytes)) = varint::read(&header[type_bytes..]) {
                    let bytes = self.done(input, type_bytes + length_bytes);
                    return Some((frame_type, length, bytes));
                }
            }
            self.keep(input)?;
        }
    }

    /// Takes one integer off the input; `None` where more bytes are needed.
    pub fn integer(&mut self, input: &mut &[u8]) -> Option<u64> {
        loop {
            if let Some((value, bytes)) = varint::read(self.part(input)) {
                self.done(input, bytes);
                return Some(value);
            }
            self.keep(input)?;
        }
    }

    /// The available part of an item: in the input, or kept if it arrived in pieces.
    fn part<'a>(&'a self, input: &'a [u8]) -> &'a [u8] {
        match self.len {
            0 => input,
            len => &self.bytes[..usize::from(len)],
        }
    }

    /// Ends an item of `bytes`.
    fn done(&mut self, input: &mut &[u8], bytes: usize) -> usize {
        if self.len == 0 {
            *input = &input[bytes..];
        }
        self.len = 0;
        bytes
    }

    /// Keeps one byte of an item that is not whole; `None` where there is none.
    fn keep(&mut self, input: &mut &[u8]) -> Option<()> {
        let (first, rest) = input.split_first()?;
        self.bytes[usize::from(self.len)] = *first;
        self.len += 1;
        *input = rest;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_in_pieces_are_headers() {
        let mut bytes = Vec::new();
        let headers = [
            (FrameType::DATA, 5),
            (FrameType::PRIORITY_UPDATE_REQUEST, 1 << 40),
            (FrameType(varint::MAX), varint::MAX),
            (FrameType::GOAWAY, 64),
        ];
        for (frame_type, length) in headers {
            let before = bytes.len();
            write_header(frame_type, length, &mut bytes);
            assert_eq!(bytes.len() - before, header_bytes(frame_type, length));
        }
        for piece_bytes in 1..=bytes.len() {
            let mut gather = Gather::default();
            let mut found = Vec::new();
            for mut piece in bytes.chunks(piece_bytes) {
                while let Some((frame_type, length, bytes)) = gather.frame(&mut piece, None) {
                    assert_eq!(bytes, header_bytes(frame_type, length));
                    found.push((frame_type, length));
                }
                assert!(piece.is_empty());
            }
            assert_eq!(found, headers);
            assert!(!gather.is_partial());
        }
    }

    #[test]
    fn a_type_without_length_leaves_the_rest() {
        for piece_bytes in 1..=3 {
            let mut gather = Gather::default();
            let mut rest = Vec::new();
            let mut found = false;
            for mut piece in [0x40, 0x41, 0x04].chunks(piece_bytes) {
                if !found {
                    let item = gather.frame(&mut piece, Some(FrameType::WEBTRANSPORT_STREAM));
                    found = item == Some((FrameType::WEBTRANSPORT_STREAM, 0, 2));
                }
                rest.extend_from_slice(piece);
            }
            assert!(found);
            assert_eq!(rest, [0x04]);
        }
    }
}
