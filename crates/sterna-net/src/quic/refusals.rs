//! Refusals in the handshake: protocols that the listener doesn't serve, and certificates of clients.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use quinn_proto::{ConnectionError, TransportErrorCode};

use super::QuicConfig;

/// The alerts with which a server refuses the certificate of a client (RFC 8446, section 6.2).
const CERTIFICATE_ALERTS: [u8; 7] = [42, 43, 44, 45, 46, 48, 49];
/// The alert for a client without a certificate.
const CERTIFICATE_REQUIRED: u8 = 116;

/// The fault of a client's certificate, where a handshake failed because of that, and whether there is none.
pub(super) fn of_certificate(reason: &ConnectionError) -> Option<(bool, String)> {
    // An alert of the client's would be another error.
    let ConnectionError::TransportError(error) = reason else {
        return None;
    };
    let is = |alert: &u8| error.code == TransportErrorCode::crypto(*alert);
    let is_missing = is(&CERTIFICATE_REQUIRED);
    let is_refused = is_missing || CERTIFICATE_ALERTS.iter().any(is);
    is_refused.then(|| (is_missing, error.reason.clone()))
}

/// Least time between two lines, so that a stranger cannot fill the log.
const INTERVAL: Duration = Duration::from_secs(1);

/// Time of the last line, and the number of those left out since.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    last: Option<Instant>,
    left_out: u64,
}

impl Refusals {
    pub(super) fn log(
        &mut self,
        now: Instant,
        peer: SocketAddr,
        listener: u16,
        config: &QuicConfig,
    ) {
        if self.last.is_some_and(|last| now < last + INTERVAL) {
            self.left_out += 1;
            return;
        }
        self.last = Some(now);
        let left_out = std::mem::take(&mut self.left_out);
        tracing::warn!(
            listener,
            %peer,
            served = config.served(),
            left_out,
            "QUIC client refused: it offers no application protocol (ALPN) that is served here"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::sync::{Arc, Mutex};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    /// Keeps the log's lines.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<String>>>);

    struct Line(String);

    impl Visit for Line {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            let _ = write!(self.0, " {field}={value:?}");
        }
    }

    impl Subscriber for Lines {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &Event<'_>) {
            let mut line = Line(event.metadata().level().to_string());
            event.record(&mut line);
            self.0.lock().expect("the lines").push(line.0);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn the_log_names_what_is_served_and_is_not_flooded() {
        let lines = Lines::default();
        tracing::subscriber::with_default(lines.clone(), || {
            let config = QuicConfig {
                protocols: vec![b"mqtt".to_vec(), b"h3".to_vec()],
                ..QuicConfig::default()
            };
            let mut refusals = Refusals::default();
            let start = Instant::now();
            let peer = "192.0.2.7:5".parse().expect("an address");
            for n in 0..=20 {
                refusals.log(start + n * INTERVAL / 10, peer, 4, &config);
            }
        });
        let lines = lines.0.lock().expect("the lines");
        assert_eq!(lines.len(), 3);
        for part in [
            "WARN",
            "mqtt, h3",
            "192.0.2.7:5",
            "listener=4",
            "left_out=0",
        ] {
            assert!(lines[0].contains(part), "{} lacks {part}", lines[0]);
        }
        assert!(lines[1].contains("left_out=9"), "{}", lines[1]);
    }
}
