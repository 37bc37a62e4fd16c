//! Capsules (RFC 9297, section 3).
//!
//! Some protocols use them as the content of an extended CONNECT. The engine reads those of
//! WebTransport sessions itself. Other protocols read theirs with [`Gather`](crate::frame::Gather),
//! because a capsule has the layout of a frame.

use crate::{frame, frame::FrameType, varint};

/// A datagram that travels on a stream (RFC 9297, section 3.5).
pub const DATAGRAM: u64 = 0x00;
/// A WebTransport session is over: a code of 32 bits, and a reason of up to 1,024 bytes.
pub const CLOSE_WEBTRANSPORT_SESSION: u64 = 0x2843;
/// A WebTransport session should end soon.
pub const DRAIN_WEBTRANSPORT_SESSION: u64 = 0x78ae;

/// Appends the header of a capsule; `payload_bytes` of payload follow.
///
/// # Panics
///
/// Where type or length are above [`varint::MAX`].
pub fn write_header(capsule_type: u64, payload_bytes: u64, out: &mut Vec<u8>) {
    frame::write_header(FrameType(capsule_type), payload_bytes, out);
}

/// Length of the header of a capsule, in bytes.
#[must_use]
pub const fn header_bytes(capsule_type: u64, payload_bytes: u64) -> usize {
    varint::len(capsule_type) + varint::len(payload_bytes)
}
