//! The log of clients that want a protocol which the listener doesn't serve.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::QuicConfig;

/// Least time between two lines, so that a stranger cannot fill the log.
const INTERVAL: Duration = Duration::from_secs(1);

/// When the last line was written, and how many were left out since.
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
