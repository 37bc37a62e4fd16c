//! Errors of an HTTP client.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use sterna_h3::CommandError;

use super::frames::FrameError;
use super::problem::Problem;
use crate::error::ConnectError;
use crate::harmless::Harmless;
use crate::message::InvalidError;

/// Why a request failed or a subscription ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// No connection came about.
    Connect(ConnectError),
    /// The broker refused the request.
    Problem(Box<Problem>),
    /// The answer is neither success nor refusal, for example a redirect of a proxy. The request was not
    /// carried out. A redirect is not followed.
    Unexpected {
        /// The status of the response.
        status: u16,
        /// The place that the answer names.
        location: Option<String>,
    },
    /// The connection broke before the response was complete. Whether the request was done is not
    /// known, where it is not one that the client may repeat.
    Lost(Arc<io::Error>),
    /// No response came within this time.
    Timeout(Duration),
    /// The broker broke the protocol.
    Protocol(String),
    /// Data of a subscription cannot be read.
    Frame(FrameError),
    /// The content of a response is larger than [`Options::max_message_bytes`](super::Options).
    TooLarge {
        /// The limit.
        max_bytes: usize,
    },
    /// The broker ended the subscription: another client took its session over, or a client ended
    /// it or removed its topic.
    Closed,
    /// The request cannot be sent to this broker, which takes less than it has.
    Command(CommandError),
    /// The request or a setting is not valid in itself; the text says why.
    Invalid(String),
    /// The client was closed by its own application.
    Ended,
}

impl Error {
    /// Whether another attempt can succeed without anybody changing something.
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        match self {
            Self::Connect(error) => !matches!(error, ConnectError::Tls(_)),
            Self::Problem(problem) => problem.is_temporary(),
            Self::Lost(_) | Self::Timeout(_) => true,
            _ => false,
        }
    }

    /// The broker's problem, where it has said one.
    #[must_use]
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Problem(problem) => Some(problem),
            _ => None,
        }
    }

    pub(super) fn invalid(what: impl fmt::Display) -> Self {
        Self::Invalid(what.to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => error.fmt(f),
            Self::Problem(problem) => write!(f, "the broker refused: {problem}"),
            Self::Unexpected { status, location } => {
                write!(f, "the server answered with status {status}")?;
                match location {
                    Some(to) => write!(f, ", which leads to {}; it is not followed", Harmless(to)),
                    None => f.write_str(", which is no answer to this request"),
                }
            }
            Self::Lost(error) => write!(f, "the connection was lost: {}", Harmless(error)),
            Self::Timeout(after) => write!(f, "no response within {after:?}"),
            Self::Protocol(what) => write!(f, "the broker broke the protocol: {}", Harmless(what)),
            Self::Frame(error) => error.fmt(f),
            Self::TooLarge { max_bytes } => {
                write!(f, "the response has more than {max_bytes} bytes")
            }
            Self::Closed => f.write_str("the broker ended the subscription"),
            Self::Command(error) => write!(f, "the request cannot be sent: {error}"),
            Self::Invalid(what) => Harmless(what).fmt(f),
            Self::Ended => f.write_str("the client has ended"),
        }
    }
}

impl std::error::Error for Error {}

impl From<ConnectError> for Error {
    fn from(error: ConnectError) -> Self {
        Self::Connect(error)
    }
}

impl From<FrameError> for Error {
    fn from(error: FrameError) -> Self {
        Self::Frame(error)
    }
}

impl From<InvalidError> for Error {
    fn from(error: InvalidError) -> Self {
        Self::invalid(error)
    }
}
