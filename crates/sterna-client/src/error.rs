//! Errors of a client.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use sterna_auth::ScramError;
use sterna_mqtt::client::SendError;
use sterna_mqtt::{Properties, ReasonCode, Version, Violation};

use crate::harmless::Harmless;
use crate::link::DriverError;
use crate::message::InvalidError;
use crate::tls::{self, TlsError};
use crate::transport::ending::Unacknowledged;
use crate::url::Url;

/// Whether a connection was lost because TLS failed. In TLS 1.3 a server refuses a client's certificate after the
/// client has finished.
#[must_use]
pub fn is_tls(error: &io::Error) -> bool {
    let own = error
        .get_ref()
        .is_some_and(<dyn std::error::Error + Send + Sync>::is::<rustls::Error>);
    // HTTP/2 and QUIC have the words of TLS alone.
    let words = ["received fatal alert", "cryptographic handshake failed"];
    let text = error.to_string();
    own || words.iter().any(|word| text.contains(word))
}

/// Why no connection came about, before any MQTT was spoken.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The host's name could not be resolved.
    Resolve {
        /// The host.
        host: String,
        /// The resolver's words.
        error: Arc<io::Error>,
    },
    /// The operating system could not connect, or the other side refused.
    Socket(Arc<io::Error>),
    /// TLS could not be set up on this side.
    Tls(TlsError),
    /// The TLS handshake failed: mostly a certificate that isn't trusted.
    Handshake(String),
    /// The server's answer to the WebSocket handshake does not allow MQTT.
    WebSocket(String),
    /// The server does not speak HTTP there.
    Http(String),
    /// The QUIC handshake failed or the server does not speak QUIC there.
    Quic(String),
    /// No answer came in time.
    Timeout {
        /// Host and port, where they are known.
        place: Option<Box<str>>,
        /// The time.
        after: Duration,
    },
}

impl ConnectError {
    /// The same with the place that was to be reached.
    pub(crate) fn at(self, url: &Url) -> Self {
        let place = url.place();
        let with = |text: String| format!("{place}: {text}");
        match self {
            Self::Socket(error) => {
                let text = format!("cannot connect to {place}: {error}");
                Self::Socket(Arc::new(io::Error::new(error.kind(), text)))
            }
            Self::Handshake(text) => Self::Handshake(with(text)),
            Self::WebSocket(text) => Self::WebSocket(with(text)),
            Self::Http(text) => Self::Http(with(text)),
            Self::Quic(text) => Self::Quic(with(text)),
            Self::Timeout { after, .. } => Self::Timeout {
                place: Some(place.into()),
                after,
            },
            Self::Resolve { .. } | Self::Tls(_) => self,
        }
    }

    /// No answer within this time.
    pub(crate) const fn timeout(after: Duration) -> Self {
        Self::Timeout { place: None, after }
    }

    /// Whether this side does not trust the server, which no other way to it changes.
    pub(crate) fn is_untrusted(&self) -> bool {
        match self {
            Self::Tls(_) => true,
            Self::Handshake(text) | Self::Quic(text) => tls::is_untrusted(text),
            _ => false,
        }
    }

    /// Whether the host refused, because no process listens there.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::Socket(error) if error.kind() == io::ErrorKind::ConnectionRefused)
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resolve { host, error } => {
                write!(f, "cannot resolve {}: {}", Harmless(host), Harmless(error))
            }
            Self::Socket(error) => Harmless(error).fmt(f),
            Self::Tls(error) => error.fmt(f),
            Self::Handshake(reason) => write!(f, "TLS: {}", Harmless(reason)),
            Self::WebSocket(reason) => write!(f, "WebSocket: {}", Harmless(reason)),
            Self::Http(reason) => write!(f, "HTTP: {}", Harmless(reason)),
            Self::Quic(reason) => write!(f, "QUIC: {}", Harmless(reason)),
            Self::Timeout { place, after } => {
                if let Some(place) = place {
                    write!(f, "{place}: ")?;
                }
                write!(f, "no answer within {after:?}")
            }
        }
    }
}

impl std::error::Error for ConnectError {}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        Self::Socket(Arc::new(error))
    }
}

impl From<TlsError> for ConnectError {
    fn from(error: TlsError) -> Self {
        Self::Tls(error)
    }
}

/// A refusal of the server. Its texts are as the server sent them; only `Display` makes them [`Harmless`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The reason code of MQTT 5; return codes of older versions are mapped to it.
    pub reason: ReasonCode,
    /// The server's words, if it found any.
    pub text: Option<String>,
    /// The server to use instead, if it named one.
    pub server_reference: Option<String>,
    /// The return code of MQTT 3.1.1 or 3.1, if the server speaks that.
    pub return_code: Option<u8>,
}

impl Refusal {
    pub(crate) fn new(reason: ReasonCode, properties: Properties<'_>) -> Self {
        Self {
            reason,
            text: properties.reason_string().map(str::to_owned),
            server_reference: properties.server_reference().map(str::to_owned),
            return_code: None,
        }
    }

    /// The same with the number that the server has sent, where its version of MQTT has other ones.
    pub(crate) fn of_version(mut self, version: Version) -> Self {
        if !version.is_v5() {
            self.return_code = self.reason.for_v3_connack();
        }
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.reason.name();
        match self.return_code {
            Some(code) => write!(f, "{name} (return code {code})")?,
            None => write!(f, "{name} (0x{:02x})", self.reason as u8)?,
        }
        if let Some(text) = &self.text {
            write!(f, ": {}", Harmless(text))?;
        }
        if let Some(reference) = &self.server_reference {
            write!(f, "; use {}", Harmless(reference))?;
        }
        Ok(())
    }
}

/// Why a client's request failed or its connection ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// No connection came about.
    Connect(ConnectError),
    /// The server refused the connection.
    Refused(Refusal),
    /// The server ended the connection and said why (MQTT 5).
    Disconnected(Refusal),
    /// The server refused this message or this subscription.
    Rejected(Refusal),
    /// The connection broke, or the server closed it without a word.
    Lost(Arc<io::Error>),
    /// The server does not answer any more.
    Silent,
    /// The server broke the protocol.
    Protocol(Violation),
    /// The authentication exchange failed.
    Authentication(ScramError),
    /// The request cannot be sent to this server.
    Send(SendError),
    /// The request is not valid in itself.
    Invalid(InvalidError),
    /// The server forgot the session while a QoS 2 message was under way. Its arrival is unknown,
    /// and sending it again might deliver it twice.
    SessionLost,
    /// The connection ended before the broker had acknowledged everything that was written to it.
    Unacknowledged(Unacknowledged),
    /// The connection does not have the requested feature; the text names it.
    Unavailable(&'static str),
    /// The client was disconnected by its own application, or the runtime is shutting down.
    Ended,
}

impl Error {
    /// Whether another attempt to connect can succeed without anybody changing something.
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        match self {
            Self::Connect(error) => !matches!(error, ConnectError::Tls(_)),
            Self::Refused(refusal) | Self::Disconnected(refusal) => !matches!(
                refusal.reason,
                ReasonCode::UnsupportedProtocolVersion
                    | ReasonCode::ClientIdentifierNotValid
                    | ReasonCode::BadUserNameOrPassword
                    | ReasonCode::NotAuthorized
                    | ReasonCode::Banned
                    | ReasonCode::BadAuthenticationMethod
                    | ReasonCode::SessionTakenOver
                    | ReasonCode::ServerMoved
                    | ReasonCode::UseAnotherServer
                    | ReasonCode::AdministrativeAction
            ),
            Self::Lost(_) | Self::Silent | Self::Protocol(_) => true,
            _ => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => error.fmt(f),
            Self::Refused(refusal) => write!(f, "the broker refused the connection: {refusal}"),
            Self::Disconnected(refusal) => write!(f, "the broker ended the connection: {refusal}"),
            Self::Rejected(refusal) => write!(f, "the broker refused: {refusal}"),
            Self::Lost(error) => write!(f, "the connection was lost: {}", Harmless(error)),
            Self::Silent => f.write_str("the broker doesn't answer any more"),
            Self::Protocol(violation) => write!(f, "the broker broke the protocol: {violation}"),
            Self::Authentication(error) => error.fmt(f),
            Self::Send(error) => error.fmt(f),
            Self::Invalid(error) => error.fmt(f),
            Self::SessionLost => {
                f.write_str("the broker lost the session: whether the message arrived is not known")
            }
            Self::Unacknowledged(left) => left.fmt(f),
            Self::Unavailable(what) => f.write_str(what),
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

impl From<InvalidError> for Error {
    fn from(error: InvalidError) -> Self {
        Self::Invalid(error)
    }
}

impl From<SendError> for Error {
    fn from(error: SendError) -> Self {
        Self::Send(error)
    }
}

impl From<ScramError> for Error {
    fn from(error: ScramError) -> Self {
        Self::Authentication(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_the_number_of_its_version() {
        let refused = || Refusal::new(ReasonCode::NotAuthorized, Properties::EMPTY);
        let text = |version| refused().of_version(version).to_string();
        assert_eq!(text(Version::V5), "Not authorized (0x87)");
        assert_eq!(text(Version::V311), "Not authorized (return code 5)");
        assert_eq!(text(Version::V31), "Not authorized (return code 5)");
    }
}
