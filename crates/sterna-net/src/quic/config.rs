//! The settings of a QUIC listener.

use std::fmt;
use std::time::Duration;

/// How fast a connection sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Congestion {
    /// CUBIC (RFC 9438).
    #[default]
    Cubic,
    /// New Reno (RFC 9002, section 7).
    NewReno,
}

/// Search for the largest datagram that the path carries (RFC 8899).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MtuDiscovery {
    /// Largest UDP payload to try, in bytes.
    pub upper_bound_bytes: u16,
    /// Time between two searches.
    pub interval: Duration,
}

/// What the peer is asked to do about acknowledgements (draft-ietf-quic-ack-frequency), where it
/// supports that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestedAckFrequency {
    /// Ack-eliciting packets the peer may leave unacknowledged.
    pub threshold_packets: u32,
    /// How long it may delay an acknowledgement.
    pub max_delay: Duration,
}

/// The settings of a QUIC listener. Every one has a default that suits many mostly idle devices.
#[derive(Clone, Debug)]
pub struct QuicConfig {
    /// Application protocols (ALPN) that the listener serves, most wanted first.
    pub protocols: Vec<Vec<u8>>,
}

impl Default for QuicConfig {
    fn default() -> Self {
        Self {
            protocols: vec![b"mqtt".to_vec()],
        }
    }
}

/// Why a driver could not be made or reconfigured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SetupError {
    /// The TLS configuration doesn't suit QUIC; the text says why.
    Tls(String),
    /// A setting is out of bounds; the text says which.
    Setting(String),
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tls(why) => write!(f, "TLS configuration unsuitable for QUIC: {why}"),
            Self::Setting(why) => write!(f, "QUIC setting out of bounds: {why}"),
        }
    }
}

impl std::error::Error for SetupError {}
