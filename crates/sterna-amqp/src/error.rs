//! Error conditions and the ways in which they are raised.

use std::fmt;

use crate::connection::{LinkId, SessionId};

/// A symbol that names an error (AMQP 1.0, part 2, sections 2.8.15 to 2.8.18; part 4, section
/// 4.5.8).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Condition(&'static str);

macro_rules! conditions {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal;)*) => {
        impl Condition {
            $($(#[$doc])* pub const $name: Self = Self($symbol);)*
        }
    };
}

conditions! {
    /// The peer met an error of its own.
    INTERNAL_ERROR = "amqp:internal-error";
    /// The node does not exist.
    NOT_FOUND = "amqp:not-found";
    /// The peer may not do this.
    UNAUTHORIZED_ACCESS = "amqp:unauthorized-access";
    /// Data could not be decoded.
    DECODE_ERROR = "amqp:decode-error";
    /// A limit of the peer was exceeded.
    RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded";
    /// The peer may not do this in this state, or at all.
    NOT_ALLOWED = "amqp:not-allowed";
    /// A field of a frame body was invalid.
    INVALID_FIELD = "amqp:invalid-field";
    /// The peer does not implement this.
    NOT_IMPLEMENTED = "amqp:not-implemented";
    /// Another uses the node exclusively.
    RESOURCE_LOCKED = "amqp:resource-locked";
    /// A condition that the peer set is not met.
    PRECONDITION_FAILED = "amqp:precondition-failed";
    /// The node was deleted.
    RESOURCE_DELETED = "amqp:resource-deleted";
    /// The frame does not fit the state of the session or link.
    ILLEGAL_STATE = "amqp:illegal-state";
    /// The frame would be larger than the peer takes.
    FRAME_SIZE_TOO_SMALL = "amqp:frame-size-too-small";
    /// An operator closed the connection.
    CONNECTION_FORCED = "amqp:connection:forced";
    /// Bytes were not a valid frame.
    FRAMING_ERROR = "amqp:connection:framing-error";
    /// The container is to be found elsewhere.
    CONNECTION_REDIRECT = "amqp:connection:redirect";
    /// More transfers were sent than the incoming window had room for.
    WINDOW_VIOLATION = "amqp:session:window-violation";
    /// A frame came for a link that was detached with an error.
    ERRANT_LINK = "amqp:session:errant-link";
    /// An attach named a handle that is in use.
    HANDLE_IN_USE = "amqp:session:handle-in-use";
    /// A frame named a handle that is not attached.
    UNATTACHED_HANDLE = "amqp:session:unattached-handle";
    /// An operator detached the link.
    DETACH_FORCED = "amqp:link:detach-forced";
    /// More deliveries were sent than there was credit for.
    TRANSFER_LIMIT_EXCEEDED = "amqp:link:transfer-limit-exceeded";
    /// A message was larger than the link takes.
    MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded";
    /// The address is to be found elsewhere.
    LINK_REDIRECT = "amqp:link:redirect";
    /// The link was attached elsewhere.
    STOLEN = "amqp:link:stolen";
    /// The transaction does not exist.
    TRANSACTION_UNKNOWN_ID = "amqp:transaction:unknown-id";
    /// The transaction was rolled back.
    TRANSACTION_ROLLBACK = "amqp:transaction:rollback";
    /// The transaction took too long.
    TRANSACTION_TIMEOUT = "amqp:transaction:timeout";
}

impl Condition {
    /// The symbol.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Ill-formed bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecodeError {
    /// Condition for the peer.
    pub condition: Condition,
    /// Text for people.
    pub detail: &'static str,
}

impl DecodeError {
    /// An error with any condition.
    #[must_use]
    pub const fn new(condition: Condition, detail: &'static str) -> Self {
        Self { condition, detail }
    }

    /// `amqp:decode-error`.
    #[must_use]
    pub const fn decode(detail: &'static str) -> Self {
        Self::new(Condition::DECODE_ERROR, detail)
    }

    /// `amqp:invalid-field`.
    #[must_use]
    pub const fn invalid(detail: &'static str) -> Self {
        Self::new(Condition::INVALID_FIELD, detail)
    }

    /// `amqp:connection:framing-error`.
    #[must_use]
    pub const fn framing(detail: &'static str) -> Self {
        Self::new(Condition::FRAMING_ERROR, detail)
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.condition, self.detail)
    }
}

impl std::error::Error for DecodeError {}

/// Scope of an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// The connection: a close was written, or a protocol header or SASL outcome that refuses.
    Connection,
    /// The session: an end was written. Its links are gone.
    Session(SessionId),
    /// The link: a detach was written.
    Link(LinkId),
}

/// A violation of the protocol by the peer. The peer has been told: the frame is in the output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The part that it ends.
    pub scope: Scope,
    /// The condition that the peer was told.
    pub condition: Condition,
    /// Text for people.
    pub detail: &'static str,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.condition, self.detail)
    }
}

impl std::error::Error for Violation {}

/// Why a command was not carried out. Nothing was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CommandError {
    /// The connection is not open (any more).
    NotOpen,
    /// The session does not exist, or has ended.
    NoSession,
    /// The link does not exist, or is detached.
    NoLink,
    /// The link has the other role.
    WrongRole,
    /// The command does not fit the state of the session, link or delivery.
    State,
    /// The peer has given no credit, or its window is closed.
    NoCredit,
    /// A limit of the peer or of [`Limits`](crate::Limits) would be exceeded.
    Limit,
    /// The message is larger than the peer takes.
    MessageTooLarge,
    /// The frame would be larger than the peer takes.
    FrameTooLarge,
    /// An argument is out of range. Examples are a delivery tag of more than 32 bytes, and a
    /// settlement that the link's settle mode excludes.
    Argument,
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotOpen => "the connection is not open",
            Self::NoSession => "no such session",
            Self::NoLink => "no such link",
            Self::WrongRole => "the link has the other role",
            Self::State => "not in this state",
            Self::NoCredit => "no credit",
            Self::Limit => "a limit would be exceeded",
            Self::MessageTooLarge => "the message is too large",
            Self::FrameTooLarge => "the frame is too large",
            Self::Argument => "argument out of range",
        })
    }
}

impl std::error::Error for CommandError {}
