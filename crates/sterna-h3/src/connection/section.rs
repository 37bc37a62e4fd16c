//! Field sections and contents as frames, in memory that is kept from one to the next.

use crate::field::{Field, Fields};
use crate::frame::{self, FrameType};
use crate::qpack;

/// Memory above this is not kept, in bytes.
const MAX_KEPT_BYTES: usize = 2048;

/// Room for a frame's header before its payload is known.
const HEADER_ROOM_BYTES: usize = frame::MAX_HEADER_BYTES;

/// Memory that is kept between field sections.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    fields: Fields,
    bytes: Vec<u8>,
}

impl Scratch {
    /// An empty list of fields with memory from before.
    pub(super) fn fields(&mut self) -> Fields {
        std::mem::take(&mut self.fields)
    }

    pub(super) fn recycle(&mut self, mut fields: Fields) {
        let capacity_bytes = fields.capacity_bytes();
        if capacity_bytes <= MAX_KEPT_BYTES && capacity_bytes > self.fields.capacity_bytes() {
            fields.clear();
            self.fields = fields;
        }
    }

    /// An empty buffer with memory from before.
    pub(super) fn bytes(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    pub(super) fn give_back(&mut self, mut bytes: Vec<u8>) {
        if bytes.capacity() <= MAX_KEPT_BYTES {
            bytes.clear();
            self.bytes = bytes;
        }
    }
}

/// Writes HEADERS into an empty buffer, and returns the start of the frame in it. The length of the
/// header depends on the payload, so room for the longest header is left before it.
pub(super) fn write_headers<'a>(
    fields: impl IntoIterator<Item = Field<'a>>,
    buffer: &mut Vec<u8>,
) -> usize {
    buffer.resize(HEADER_ROOM_BYTES, 0);
    qpack::encode(fields, buffer);
    let payload_bytes = (buffer.len() - HEADER_ROOM_BYTES) as u64;
    let end = buffer.len();
    frame::write_header(FrameType::HEADERS, payload_bytes, buffer);
    let header_bytes = buffer.len() - end;
    let start = HEADER_ROOM_BYTES - header_bytes;
    buffer.copy_within(end.., start);
    buffer.truncate(end);
    start
}

/// The size of a field section, uncompressed (RFC 9114, section 4.2.2).
pub(super) fn section_bytes<'a>(fields: impl IntoIterator<Item = Field<'a>>) -> u64 {
    fields
        .into_iter()
        .map(|field| field.section_bytes() as u64)
        .sum()
}
