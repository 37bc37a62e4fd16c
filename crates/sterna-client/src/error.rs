//! What can go wrong between a client and its broker.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::tls::TlsError;

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
    /// The server's answer to the WebSocket handshake was not what MQTT needs.
    WebSocket(String),
    /// The QUIC handshake failed or the server does not speak QUIC there.
    Quic(String),
    /// Nothing came back in time.
    Timeout(Duration),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resolve { host, error } => write!(f, "cannot resolve {host}: {error}"),
            Self::Socket(error) => error.fmt(f),
            Self::Tls(error) => error.fmt(f),
            Self::Handshake(reason) => write!(f, "TLS: {reason}"),
            Self::WebSocket(reason) => write!(f, "WebSocket: {reason}"),
            Self::Quic(reason) => write!(f, "QUIC: {reason}"),
            Self::Timeout(after) => write!(f, "no answer within {after:?}"),
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
