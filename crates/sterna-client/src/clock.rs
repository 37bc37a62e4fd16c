//! The time for the engines: it doesn't go back, and starts at the wall's.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A clock that was set once.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    started: Instant,
    started_ms: u64,
}

impl Clock {
    pub(crate) fn new() -> Self {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            started: Instant::now(),
            started_ms: since_epoch.as_millis() as u64,
        }
    }

    /// Milliseconds since the Unix epoch.
    pub(crate) fn now_ms(self) -> u64 {
        self.started_ms + self.started.elapsed().as_millis() as u64
    }

    /// The moment that this engine time means.
    pub(crate) fn instant(self, at_ms: u64) -> Instant {
        self.started + Duration::from_millis(at_ms.saturating_sub(self.started_ms))
    }
}
