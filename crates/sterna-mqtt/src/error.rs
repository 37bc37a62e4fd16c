//! Errors, with the reason codes of the specification.

use std::error::Error;
use std::fmt;

use crate::{Lane, ReasonCode, Version};

/// Bytes that are not a legal packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecodeError {
    /// The reason code of MQTT 5.0 for this error: `MalformedPacket`, `ProtocolError`,
    /// `PacketTooLarge` or a more specific one.
    pub reason: ReasonCode,
    /// Text for logs and the Reason String; never contains bytes of the packet.
    pub detail: &'static str,
    /// Set for a CONNECT whose version could be read: the form of a CONNACK with `reason`.
    pub connect_version: Option<Version>,
}

impl DecodeError {
    /// A packet that cannot be parsed: 0x81.
    pub(crate) const fn malformed(detail: &'static str) -> Self {
        Self::new(ReasonCode::MalformedPacket, detail)
    }

    /// A packet that can be parsed but violates the protocol: 0x82.
    pub(crate) const fn protocol(detail: &'static str) -> Self {
        Self::new(ReasonCode::ProtocolError, detail)
    }

    /// An error with the reason code to tell the peer and a few words for the log.
    #[must_use]
    pub const fn new(reason: ReasonCode, detail: &'static str) -> Self {
        Self {
            reason,
            detail,
            connect_version: None,
        }
    }

    pub(crate) const fn in_connect(mut self, version: Version) -> Self {
        self.connect_version = Some(version);
        self
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (0x{:02x})", self.detail, self.reason as u8)
    }
}

impl Error for DecodeError {}

/// A packet that cannot be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EncodeError {
    /// The packet would exceed the receiver's Maximum Packet Size, or the limits of the protocol.
    TooLarge {
        /// Size of the packet that was not written, in bytes.
        packet_bytes: usize,
    },
    /// A string or binary field is longer than 65,535 bytes.
    FieldTooLong,
    /// A string contains U+0000.
    NullCharacter,
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { packet_bytes } => {
                write!(
                    f,
                    "a packet of {packet_bytes} bytes exceeds the receiver's maximum"
                )
            }
            Self::FieldTooLong => f.write_str("a field is longer than 65,535 bytes"),
            Self::NullCharacter => f.write_str("a field contains U+0000"),
        }
    }
}

impl Error for EncodeError {}

/// The peer broke the protocol, or a limit was reached that ends the connection.
///
/// Nothing more of the connection (or of the lane, see [`Scope`]) is processed. Hand it to
/// `Connection::violation`, which writes the answer of the specification, then close.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Reason code of MQTT 5.0, also where the connection speaks an older version.
    pub reason: ReasonCode,
    /// The fault; for logs and the Reason String.
    pub detail: &'static str,
    /// The answer to the peer before the close.
    pub answer: Answer,
    /// The part to be closed.
    pub scope: Scope,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (0x{:02x})", self.detail, self.reason as u8)
    }
}

impl Error for Violation {}

/// The answer to the peer after a [`Violation`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// No packet: the connection is only closed.
    Nothing,
    /// A CONNACK that refuses, written for this version.
    ConnAck(Version),
    /// A DISCONNECT (5.0 only).
    Disconnect,
}

/// The part that a [`Violation`] ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// The whole connection.
    Connection,
    /// Only this lane (only with `Limits::isolate_lanes`): abort the stream, with the reason code
    /// as application error code.
    Lane(Lane),
}
