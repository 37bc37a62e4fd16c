//! The one clock of a set of shards.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Wall clock at the start plus monotonic time since. It never goes back, and all shards that share
/// a copy agree.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
    origin_ms: u64,
}

impl Clock {
    /// Reads the system's clocks once.
    #[must_use]
    pub fn start() -> Self {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or(Duration::ZERO);
        Self {
            origin: Instant::now(),
            origin_ms: u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// A clock that shows `origin_ms` at `origin`.
    #[must_use]
    pub const fn since(origin: Instant, origin_ms: u64) -> Self {
        Self { origin, origin_ms }
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.at(Instant::now())
    }

    /// Milliseconds since the Unix epoch at a point of the monotonic clock.
    #[must_use]
    pub fn at(&self, instant: Instant) -> u64 {
        let elapsed = instant.saturating_duration_since(self.origin);
        self.origin_ms
            .saturating_add(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
    }

    /// The point of the monotonic clock at which `at` first gives `now_ms`.
    #[must_use]
    pub fn instant(&self, now_ms: u64) -> Instant {
        self.origin + Duration::from_millis(now_ms.saturating_sub(self.origin_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_and_instants_convert_back_and_forth() {
        let clock = Clock::start();
        let now_ms = clock.now_ms();
        assert!(now_ms > 1_600_000_000_000, "after 2020");
        assert_eq!(clock.at(clock.instant(now_ms + 1_500)), now_ms + 1_500);
        assert_eq!(
            clock.at(clock.instant(0)),
            clock.origin_ms,
            "the past is clamped"
        );
    }
}
