//! Why handshakes of QUIC fail, where TLS has not said it.

use quinn_proto::{ConnectionError, TransportErrorCode};

use super::tls::Refusal;
use crate::handshake::{HandshakeFault, alert_detail};

/// The fault behind the end of a connection in its handshake. An error that TLS has found is in
/// [`Negotiated`](super::tls::Negotiated).
pub(super) fn of(reason: &ConnectionError) -> Refusal {
    let fault = match reason {
        ConnectionError::ConnectionClosed(close) => {
            if let Some(alert) = alert(close.error_code) {
                return (HandshakeFault::Alert, alert_detail(alert));
            }
            HandshakeFault::Abandoned
        }
        ConnectionError::TimedOut => HandshakeFault::TimedOut,
        ConnectionError::ApplicationClosed(_) | ConnectionError::Reset => HandshakeFault::Abandoned,
        ConnectionError::LocallyClosed => HandshakeFault::Shutdown,
        ConnectionError::VersionMismatch => HandshakeFault::Version,
        ConnectionError::TransportError(_) => HandshakeFault::Malformed,
        ConnectionError::CidsExhausted => HandshakeFault::Internal,
    };
    // A reason is the client's text.
    (fault, reason.to_string().escape_debug().to_string())
}

/// The alert of TLS in a code (RFC 9001, section 4.8).
fn alert(code: TransportErrorCode) -> Option<u8> {
    let first = u64::from(TransportErrorCode::crypto(0));
    u64::from(code)
        .checked_sub(first)
        .and_then(|alert| u8::try_from(alert).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_of_tls_is_an_alert() {
        assert_eq!(alert(TransportErrorCode::crypto(48)), Some(48));
        assert_eq!(alert(TransportErrorCode::PROTOCOL_VIOLATION), None);
        let (fault, _) = of(&ConnectionError::TimedOut);
        assert_eq!(fault, HandshakeFault::TimedOut);
    }
}
