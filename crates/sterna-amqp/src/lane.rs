//! Lanes: the ordered byte streams that together carry one AMQP connection.
//!
//! A connection over TCP, TLS or WebSocket has the one lane [`Lane::CONTROL`]. Over QUIC every
//! bidirectional stream is a lane of the same connection, numbered by its stream identifier.
//! Protocol headers, SASL, open and close use the control lane, each session the lane of its begin.

use bytes::BytesMut;

/// One ordered byte stream of a connection, numbered like a QUIC stream (RFC 9000 section 2.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Lane(pub u64);

impl Lane {
    /// The lane of protocol headers, SASL, open and close, and the only one of a byte-stream
    /// transport.
    pub const CONTROL: Self = Self(0);

    /// Whether this is the control lane.
    #[must_use]
    pub const fn is_control(self) -> bool {
        self.0 == 0
    }
}

/// The engine's output: one buffer per lane.
///
/// The engine appends whole frames. The caller hands the bytes to the transport in the order of
/// each lane's buffer.
pub trait LaneWriter {
    /// The buffer of bytes to send on `lane`.
    fn buffer(&mut self, lane: Lane) -> &mut BytesMut;
}

/// A single buffer for every lane: byte-stream transports have no other.
impl LaneWriter for BytesMut {
    fn buffer(&mut self, _lane: Lane) -> &mut BytesMut {
        self
    }
}
