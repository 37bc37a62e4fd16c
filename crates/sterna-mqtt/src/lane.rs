//! Lanes: the ordered byte streams that together carry one MQTT connection.
//!
//! A connection over TCP, TLS or WebSocket has the one lane [`Lane::CONTROL`]. Over QUIC every
//! stream is a lane of the same session, numbered by its stream identifier.

use bytes::BytesMut;

/// One ordered byte stream of a connection, numbered like a QUIC stream (RFC 9000 section 2.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Lane(pub u64);

impl Lane {
    /// The lane of CONNECT, AUTH and DISCONNECT, and the only one of a byte-stream transport.
    pub const CONTROL: Self = Self(0);

    /// The unreliable datagrams of a QUIC connection (RFC 9221), each of which is one PUBLISH of
    /// QoS 0. No stream has this number: those of QUIC are below 2^62.
    pub const DATAGRAMS: Self = Self(1 << 62);

    /// Whether this is the control lane.
    #[must_use]
    pub const fn is_control(self) -> bool {
        self.0 == 0
    }

    /// Whether both ends may send on it.
    #[must_use]
    pub const fn is_bidirectional(self) -> bool {
        self.0 & 2 == 0
    }

    /// Lane for answers to a packet that arrived here: this one if it is bidirectional, else the
    /// control lane. Use it for the lane hint of a subscription, too.
    #[must_use]
    pub const fn reply(self) -> Self {
        if self.is_bidirectional() {
            self
        } else {
            Self::CONTROL
        }
    }
}

/// The engine's output: one buffer per lane.
///
/// The engine appends whole packets. The caller hands the bytes to the transport in the order of
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
