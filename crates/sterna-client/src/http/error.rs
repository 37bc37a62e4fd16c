//! What can go wrong between an HTTP client and its broker.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use sterna_h3::CommandError;

use super::frames::FrameError;
use crate::error::ConnectError;
use crate::message::InvalidError;

/// Before the name of a problem in its type.
const PREFIX: &str = "urn:sterna:problem:";
/// Longest text of a problem that is kept, in characters.
const MAX_TEXT: usize = 1_000;

/// What a broker says when it refuses a request (RFC 9457; `docs/http.md`, "Errors").
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The status of the response.
    pub status: u16,
    /// The problem's name, such as `unauthenticated` or `queue-full`; of another server's problem the
    /// whole type, and empty where it has none.
    pub name: String,
    /// What is wrong in general.
    pub title: Option<String>,
    /// What is wrong in this case.
    pub detail: Option<String>,
    /// When it is worth while to ask again, where the broker says so.
    pub retry_after: Option<Duration>,
}

/// A problem as JSON, of which each member may be anything.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    r#type: serde_json::Value,
    title: serde_json::Value,
    detail: serde_json::Value,
}

impl Problem {
    /// Reads the content of a response with this status. Content of another form says nothing.
    #[must_use]
    pub fn parse(status: u16, content: &[u8]) -> Self {
        let document: Document = serde_json::from_slice(content).unwrap_or_default();
        let text = |value: &serde_json::Value| {
            let text: String = value.as_str()?.chars().take(MAX_TEXT).collect();
            Some(text)
        };
        let name = text(&document.r#type).unwrap_or_default();
        let name = match name.strip_prefix(PREFIX) {
            Some(name) => name.to_owned(),
            None if name == "about:blank" => String::new(),
            None => name,
        };
        Self {
            status,
            name,
            title: text(&document.title),
            detail: text(&document.detail),
            retry_after: None,
        }
    }

    /// Whether the same request may succeed later.
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        matches!(self.status, 408 | 409 | 425 | 429 | 500..=504)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = self.detail.as_ref().or(self.title.as_ref());
        match (what, self.name.as_str()) {
            (Some(what), "") => write!(f, "{what} ({})", self.status),
            (Some(what), name) => write!(f, "{what} ({}, {name})", self.status),
            (None, "") => write!(f, "status {}", self.status),
            (None, name) => write!(f, "{name} ({})", self.status),
        }
    }
}

/// Why a request failed or a subscription ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// No connection came about.
    Connect(ConnectError),
    /// The broker refused the request.
    Problem(Box<Problem>),
    /// The connection broke before the response was complete. Whether the request was done is not
    /// known, where it is not one that the client may repeat.
    Lost(Arc<io::Error>),
    /// No response came within this time.
    Timeout(Duration),
    /// The broker broke the protocol.
    Protocol(String),
    /// What came of a subscription cannot be read.
    Frame(FrameError),
    /// The content of a response is larger than [`Options::max_message_bytes`](super::Options).
    TooLarge {
        /// The limit.
        max_bytes: usize,
    },
    /// The broker ended the subscription: another client took its session over, or somebody ended it
    /// or removed its topic.
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
            Self::Lost(error) => write!(f, "the connection was lost: {error}"),
            Self::Timeout(after) => write!(f, "no response within {after:?}"),
            Self::Protocol(what) => write!(f, "the broker broke the protocol: {what}"),
            Self::Frame(error) => error.fmt(f),
            Self::TooLarge { max_bytes } => {
                write!(f, "the response has more than {max_bytes} bytes")
            }
            Self::Closed => f.write_str("the broker ended the subscription"),
            Self::Command(error) => write!(f, "the request cannot be sent: {error}"),
            Self::Invalid(what) => f.write_str(what),
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn problems_are_read_whatever_they_are() {
        let text = br#"{"type":"urn:sterna:problem:queue-full","title":"t","detail":"d","x":[1]}"#;
        let problem = Problem::parse(503, text);
        assert_eq!(problem.name, "queue-full");
        assert_eq!(problem.to_string(), "d (503, queue-full)");
        assert!(problem.is_temporary());
        let foreign = Problem::parse(404, br#"{"type":"about:blank","title":"Not Found"}"#);
        assert_eq!(foreign.to_string(), "Not Found (404)");
        let odd = Problem::parse(400, br#"{"type":7,"title":null}"#);
        assert_eq!(odd.to_string(), "status 400");
        assert_eq!(Problem::parse(500, b"<html>").to_string(), "status 500");
    }

    proptest! {
        #[test]
        fn reading_never_panics(content in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Problem::parse(500, &content).to_string();
        }
    }
}
