//! Errors of an AMQP client.

use std::fmt;
use std::io;
use std::sync::Arc;

use sterna_amqp::connection::ErrorBuf;
use sterna_amqp::{CommandError, Condition, DecodeError, Violation};
use sterna_auth::ScramError;

use crate::error::ConnectError;
use crate::harmless::Harmless;
use crate::link::DriverError;
use crate::transport::ending::Unacknowledged;

/// An error as the peer tells it (part 2, section 2.8.14). Its texts are as the peer sent them; only `Display` makes
/// them [`Harmless`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The condition: a symbol of the specification, for example `amqp:not-found`, or another.
    pub condition: String,
    /// The peer's words, if it found any.
    pub description: Option<String>,
}

impl Remote {
    /// Whether it is this condition of the specification.
    #[must_use]
    pub fn is(&self, condition: Condition) -> bool {
        self.condition == condition.as_str()
    }
}

impl From<ErrorBuf> for Remote {
    fn from(error: ErrorBuf) -> Self {
        Self {
            condition: error.condition.into(),
            description: error.description.map(Into::into),
        }
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Harmless(&self.condition).fmt(f)?;
        match &self.description {
            Some(description) => write!(f, ": {}", Harmless(description)),
            None => Ok(()),
        }
    }
}

/// Why a request failed, or a link, session or connection ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// No connection came about.
    Connect(ConnectError),
    /// The peer did not let this client in.
    Refused(&'static str),
    /// The peer cannot let this client in for now. Another attempt may succeed.
    Busy(&'static str),
    /// The exchange by which both ends prove that they know the password failed.
    Authentication(ScramError),
    /// The peer closed the connection, with an error if it was not as planned.
    Closed(Option<Remote>),
    /// The peer ended the session.
    SessionEnded(Option<Remote>),
    /// The peer detached the link, or refused to attach it.
    Detached(Option<Remote>),
    /// The peer broke the protocol.
    Protocol {
        /// The condition that the peer was told.
        condition: Condition,
        /// Description for people.
        detail: &'static str,
    },
    /// The connection broke, or the peer closed the transport without a word.
    Lost(Arc<io::Error>),
    /// The message is larger than the peer takes.
    TooLarge {
        /// Size of the message in bytes.
        bytes: u64,
        /// The peer's limit in bytes.
        max_bytes: u64,
    },
    /// The peer forgot the link while a delivery with receiver settle mode second was under way.
    /// Its arrival is unknown, and sending it again might deliver it twice. Or the connection was lost before the
    /// coordinator of a transaction answered, and the next one did not bring the answer.
    Unknown,
    /// The delivery came over a connection that is gone. It comes again.
    Stale,
    /// The transaction ended with its connection: nothing of it has taken effect.
    TransactionLost,
    /// The command does not fit: a limit of the peer's or of this end's.
    Command(CommandError),
    /// The bytes are no message.
    Message(DecodeError),
    /// The request or setting is not valid in itself; the text says why.
    Invalid(&'static str),
    /// The connection ended before the broker had acknowledged everything that was written to it.
    Unacknowledged(Unacknowledged),
    /// The connection, session or link was closed by its own application.
    Ended,
}

impl Error {
    /// Whether another attempt to connect can succeed without anybody changing something.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Connect(error) => !matches!(error, ConnectError::Tls(_)),
            Self::Closed(Some(remote)) => {
                remote.is(Condition::CONNECTION_FORCED)
                    || remote.is(Condition::INTERNAL_ERROR)
                    || remote.is(Condition::RESOURCE_LIMIT_EXCEEDED)
            }
            Self::Busy(_) | Self::Closed(None) | Self::Lost(_) | Self::Protocol { .. } => true,
            _ => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let because = |f: &mut fmt::Formatter<'_>, what: &str, error: &Option<Remote>| {
            f.write_str(what)?;
            match error {
                Some(error) => write!(f, ": {error}"),
                None => Ok(()),
            }
        };
        match self {
            Self::Connect(error) => error.fmt(f),
            Self::Refused(detail) | Self::Busy(detail) => {
                write!(f, "the broker refused the connection: {detail}")
            }
            Self::Authentication(error) => error.fmt(f),
            Self::Closed(error) => because(f, "the broker closed the connection", error),
            Self::SessionEnded(error) => because(f, "the broker ended the session", error),
            Self::Detached(error) => because(f, "the broker detached the link", error),
            Self::Protocol { condition, detail } => {
                write!(f, "the broker broke the protocol: {condition}: {detail}")
            }
            Self::Lost(error) => write!(f, "the connection was lost: {}", Harmless(error)),
            Self::TooLarge { bytes, max_bytes } => write!(
                f,
                "the message has {bytes} bytes, and the broker takes {max_bytes}"
            ),
            Self::Unknown => {
                f.write_str(
                    "the broker forgot the link: whether the message arrived, or the transaction took effect, is not known",
                )
            }
            Self::Stale => {
                f.write_str("the delivery came over a connection that is gone, and will come again")
            }
            Self::TransactionLost => {
                f.write_str("the transaction ended with its connection: nothing took effect")
            }
            Self::Command(error) => error.fmt(f),
            Self::Message(error) => write!(f, "not a message: {error}"),
            Self::Invalid(what) => f.write_str(what),
            Self::Unacknowledged(left) => left.fmt(f),
            Self::Ended => f.write_str("the client has ended"),
        }
    }
}

impl std::error::Error for Error {}

impl DriverError for Error {
    const ENDED: Self = Self::Ended;

    fn is_temporary(&self) -> bool {
        self.is_temporary()
    }

    fn lost(&self) -> Option<&io::Error> {
        match self {
            Self::Lost(error) => Some(error),
            _ => None,
        }
    }
}

impl From<ConnectError> for Error {
    fn from(error: ConnectError) -> Self {
        Self::Connect(error)
    }
}

impl From<CommandError> for Error {
    fn from(error: CommandError) -> Self {
        Self::Command(error)
    }
}

impl From<ScramError> for Error {
    fn from(error: ScramError) -> Self {
        Self::Authentication(error)
    }
}

impl From<Violation> for Error {
    fn from(violation: Violation) -> Self {
        Self::Protocol {
            condition: violation.condition,
            detail: violation.detail,
        }
    }
}
