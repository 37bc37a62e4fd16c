//! Handshakes that fail: of TLS, of QUIC, and upgrades to WebSocket. Each has one fault, for metrics, and one sentence, for
//! the log.

use std::fmt;
use std::net::SocketAddr;

use crate::TransportKind;

/// Why a handshake has failed. The set is small and fixed, so that metrics may have it as a label.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HandshakeFault {
    /// The client went before it had sent a byte, as a check of health does.
    NothingSent,
    /// The client went in the middle, without a reason.
    Abandoned,
    /// The handshake was not finished in time.
    TimedOut,
    /// Something else than TLS came: plain MQTT or HTTP, for example.
    NotTls,
    /// No version of TLS that both speak.
    Version,
    /// No cipher suite, key exchange or signature that both have.
    Ciphers,
    /// The client names application protocols (ALPN), and none is served.
    Alpn,
    /// The client broke the handshake off with an alert.
    Alert,
    /// The client's certificate is refused.
    ClientCertificate,
    /// The client shows no certificate, and has to.
    NoClientCertificate,
    /// The client broke the protocol of the handshake.
    Malformed,
    /// The request is no upgrade to WebSocket, or a malformed one.
    Upgrade,
    /// The upgrade is for a path without WebSocket.
    Path,
    /// The upgrade offers no subprotocol that is served.
    Subprotocol,
    /// The upgrade is of a page whose origin is not admitted.
    Origin,
    /// The upgrade is for another host.
    Host,
    /// A balancer's header is malformed or late, see [`crate::RefusedConnection::ProxyHeader`].
    ProxyHeader,
    /// A limit was reached, see [`crate::RefusedConnection`].
    Limit,
    /// The server stops.
    Shutdown,
    /// A fault of the server's.
    Internal,
}

impl HandshakeFault {
    /// All faults.
    pub const ALL: [Self; 20] = [
        Self::NothingSent,
        Self::Abandoned,
        Self::TimedOut,
        Self::NotTls,
        Self::Version,
        Self::Ciphers,
        Self::Alpn,
        Self::Alert,
        Self::ClientCertificate,
        Self::NoClientCertificate,
        Self::Malformed,
        Self::Upgrade,
        Self::Path,
        Self::Subprotocol,
        Self::Origin,
        Self::Host,
        Self::ProxyHeader,
        Self::Limit,
        Self::Shutdown,
        Self::Internal,
    ];

    /// The fault as metrics and the log name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NothingSent => "nothing_sent",
            Self::Abandoned => "abandoned",
            Self::TimedOut => "timeout",
            Self::NotTls => "not_tls",
            Self::Version => "version",
            Self::Ciphers => "ciphers",
            Self::Alpn => "alpn",
            Self::Alert => "alert",
            Self::ClientCertificate => "client_certificate",
            Self::NoClientCertificate => "no_client_certificate",
            Self::Malformed => "malformed",
            Self::Upgrade => "upgrade",
            Self::Path => "path",
            Self::Subprotocol => "subprotocol",
            Self::Origin => "origin",
            Self::Host => "host",
            Self::ProxyHeader => "proxy_header",
            Self::Limit => "limit",
            Self::Shutdown => "shutdown",
            Self::Internal => "internal",
        }
    }
}

/// Number of handshakes that have failed, in the order of [`HandshakeFault::ALL`].
pub type FaultCounts = [u64; HandshakeFault::ALL.len()];

/// A handshake that has failed. Its client has no connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FailedHandshake {
    /// Index of the listener.
    pub listener: u16,
    /// The transport.
    pub transport: TransportKind,
    /// The application protocol of QUIC, where client and server have agreed on one before.
    pub protocol: Box<[u8]>,
    /// The client's address.
    pub peer: SocketAddr,
    /// The fault.
    pub fault: HandshakeFault,
    /// The fault in words, with what the client offered: escaped, and bounded.
    pub detail: String,
}

/// An alert of TLS by the name that RFC 8446 (section 6) and others give it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AlertName(pub(crate) u8);

impl AlertName {
    /// Its meaning to the operator of a server, where that is known.
    const fn meaning(self) -> &'static str {
        match self.0 {
            42 | 43 | 46 | 48 => {
                ": the client does not trust the certificate that is shown, or takes none like it"
            }
            44 => ": the client takes the certificate that is shown for revoked",
            45 => ": the certificate that is shown is out of date by the client's clock",
            70 => ": the client does not speak the version of TLS that was chosen",
            40 | 71 => ": the client found no parameters that it takes",
            112 => ": the client expects another server name",
            _ => "",
        }
    }
}

impl fmt::Display for AlertName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            0 => "close_notify",
            10 => "unexpected_message",
            20 => "bad_record_mac",
            21 => "decryption_failed",
            22 => "record_overflow",
            30 => "decompression_failure",
            40 => "handshake_failure",
            41 => "no_certificate",
            42 => "bad_certificate",
            43 => "unsupported_certificate",
            44 => "certificate_revoked",
            45 => "certificate_expired",
            46 => "certificate_unknown",
            47 => "illegal_parameter",
            48 => "unknown_ca",
            49 => "access_denied",
            50 => "decode_error",
            51 => "decrypt_error",
            60 => "export_restriction",
            70 => "protocol_version",
            71 => "insufficient_security",
            80 => "internal_error",
            86 => "inappropriate_fallback",
            90 => "user_canceled",
            100 => "no_renegotiation",
            109 => "missing_extension",
            110 => "unsupported_extension",
            112 => "unrecognized_name",
            113 => "bad_certificate_status_response",
            115 => "unknown_psk_identity",
            116 => "certificate_required",
            120 => "no_application_protocol",
            number => return write!(f, "number {number}"),
        };
        f.write_str(name)
    }
}

/// The sentence about an alert of the client's.
pub(crate) fn alert_detail(alert: u8) -> String {
    let alert = AlertName(alert);
    format!("the client's alert {alert}{}", alert.meaning())
}

/// Names of application protocols, for a line of the log.
pub(crate) fn protocol_names<'a>(names: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut text = String::new();
    for name in names {
        if !text.is_empty() {
            text.push_str(", ");
        }
        text.push_str(&name.escape_ascii().to_string());
    }
    text
}

/// The sentence about a client whose protocols (ALPN) are not served.
pub(crate) fn alpn_detail(offered: &str, served: &[Vec<u8>]) -> String {
    let served = protocol_names(served.iter().map(Vec::as_slice));
    if offered.is_empty() {
        return format!("the client offers no application protocol (ALPN); served are {served}");
    }
    format!("the client offers the application protocols (ALPN) {offered}; served are {served}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_counted_at_their_own_place() {
        for (place, fault) in HandshakeFault::ALL.into_iter().enumerate() {
            assert_eq!(fault as usize, place);
        }
    }

    #[test]
    fn alerts_have_the_names_of_the_standard() {
        assert!(alert_detail(48).starts_with("the client's alert unknown_ca: the client does not"));
        assert_eq!(alert_detail(51), "the client's alert decrypt_error");
        assert_eq!(alert_detail(200), "the client's alert number 200");
    }
}
