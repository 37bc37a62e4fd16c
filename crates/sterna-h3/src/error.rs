//! Error codes and the ways in which they are raised.

use std::fmt;

use crate::StreamId;

/// Why a stream or a connection ends (RFC 9114, section 8.1), as QUIC carries it in RESET_STREAM,
/// STOP_SENDING and CONNECTION_CLOSE.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrorCode(pub u64);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        impl ErrorCode {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// Every code that has a name here, with it.
            pub const ALL: &'static [(Self, &'static str)] =
                &[$((Self::$name, stringify!($name))),*];
        }
    };
}

codes! {
    /// There is no error.
    H3_NO_ERROR = 0x100;
    /// A rule was broken that has no code of its own.
    H3_GENERAL_PROTOCOL_ERROR = 0x101;
    /// This end met an error of its own.
    H3_INTERNAL_ERROR = 0x102;
    /// The peer opened a stream that is not taken.
    H3_STREAM_CREATION_ERROR = 0x103;
    /// A stream was closed without which the connection cannot go on.
    H3_CLOSED_CRITICAL_STREAM = 0x104;
    /// A frame came where it may not.
    H3_FRAME_UNEXPECTED = 0x105;
    /// A frame's layout or size is wrong.
    H3_FRAME_ERROR = 0x106;
    /// The peer causes more work than it should.
    H3_EXCESSIVE_LOAD = 0x107;
    /// A stream or push identifier was used wrongly.
    H3_ID_ERROR = 0x108;
    /// The payload of SETTINGS is wrong.
    H3_SETTINGS_ERROR = 0x109;
    /// The control stream does not begin with SETTINGS.
    H3_MISSING_SETTINGS = 0x10a;
    /// A request was refused before anything was done about it: it may be sent again.
    H3_REQUEST_REJECTED = 0x10b;
    /// A request or its response is no longer wanted.
    H3_REQUEST_CANCELLED = 0x10c;
    /// A request ended too early.
    H3_REQUEST_INCOMPLETE = 0x10d;
    /// A message is malformed.
    H3_MESSAGE_ERROR = 0x10e;
    /// The connection of a CONNECT request was lost.
    H3_CONNECT_ERROR = 0x10f;
    /// The request cannot be served over HTTP/3.
    H3_VERSION_FALLBACK = 0x110;
    /// A datagram is malformed (RFC 9297, section 5.2).
    H3_DATAGRAM_ERROR = 0x33;
    /// A field section cannot be decoded (RFC 9204, section 6).
    QPACK_DECOMPRESSION_FAILED = 0x200;
    /// An instruction on the encoder stream is wrong (RFC 9204, section 6).
    QPACK_ENCODER_STREAM_ERROR = 0x201;
    /// An instruction on the decoder stream is wrong (RFC 9204, section 6).
    QPACK_DECODER_STREAM_ERROR = 0x202;
    /// A stream came for a session that is not there yet, and too many wait.
    WEBTRANSPORT_BUFFERED_STREAM_REJECTED = 0x3994_bd84;
    /// The session of a stream is over.
    WEBTRANSPORT_SESSION_GONE = 0x170d_7b68;
}

impl ErrorCode {
    /// The name in the specification, where the code has one.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        let (_, name) = Self::ALL.iter().find(|(code, _)| *code == self)?;
        Some(name)
    }
}

impl fmt::Debug for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{:#x}", self.0),
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Scope of an error (RFC 9114, section 8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// The connection: the caller closes it with the code.
    Connection,
    /// The stream, which has been ended; the connection goes on.
    Stream(StreamId),
}

/// A violation of the protocol, or of a limit, by the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Part that the error ends.
    pub scope: Scope,
    /// Code for the peer; for a stream the peer has been told.
    pub code: ErrorCode,
    /// Text for people.
    pub detail: &'static str,
}

impl Violation {
    pub(crate) const fn connection(code: ErrorCode, detail: &'static str) -> Self {
        Self {
            scope: Scope::Connection,
            code,
            detail,
        }
    }

    pub(crate) const fn stream(stream: StreamId, code: ErrorCode, detail: &'static str) -> Self {
        Self {
            scope: Scope::Stream(stream),
            code,
            detail,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.detail)
    }
}

impl std::error::Error for Violation {}

/// Why a command was not carried out. Nothing was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CommandError {
    /// The connection was ended by a violation.
    Closed,
    /// The stream does not exist, or is over.
    NoStream,
    /// The command does not fit the state or the kind of the stream.
    State,
    /// A field, status or part of the request line would make the message malformed.
    Malformed(&'static str),
    /// The peer takes no field section of this size (SETTINGS_MAX_FIELD_SECTION_SIZE).
    FieldSectionTooLarge,
    /// The peer's settings do not allow it, or are not known yet.
    NotNegotiated,
    /// The peer takes no further request (GOAWAY), or this end has said so.
    GoingAway,
    /// A limit of [`Limits`](crate::Limits) would be exceeded.
    Limit,
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "the connection is closed",
            Self::NoStream => "no such stream",
            Self::State => "not in this state",
            Self::Malformed(detail) => detail,
            Self::FieldSectionTooLarge => "the field section is larger than the peer takes",
            Self::NotNegotiated => "the peer's settings do not allow it",
            Self::GoingAway => "the connection takes no further request",
            Self::Limit => "a limit would be exceeded",
        })
    }
}

impl std::error::Error for CommandError {}
