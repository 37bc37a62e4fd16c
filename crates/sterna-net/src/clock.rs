//! The one clock of a set of shards.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// A clock that goes on while the machine is suspended. Linux' monotonic clock, which [`Instant`] shows, stands still
/// then.
#[cfg(target_os = "linux")]
const STEADY: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const STEADY: ClockId = ClockId::Monotonic;

/// Milliseconds for which the machine was suspended since it was booted, as far as anybody has looked.
static SUSPENDED_MS: AtomicU64 = AtomicU64::new(0);

/// A time at the start plus the time that has passed since, that of a suspended machine included. It never goes back,
/// and all shards that share a copy agree.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
    origin_ms: u64,
    /// Milliseconds of suspension before the origin; `None` for a clock that does not count them.
    suspended_ms: Option<u64>,
}

impl Clock {
    /// A clock that begins with the system's wall clock, and reads it once.
    #[must_use]
    pub fn start() -> Self {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or(Duration::ZERO);
        Self::start_at(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
    }

    /// A clock that shows `origin_ms` now.
    #[must_use]
    pub fn start_at(origin_ms: u64) -> Self {
        look_at_suspension();
        Self {
            origin: Instant::now(),
            origin_ms,
            suspended_ms: Some(SUSPENDED_MS.load(Ordering::Relaxed)),
        }
    }

    /// A clock that shows `origin_ms` at `origin`, and goes as [`Instant`] does.
    #[must_use]
    pub const fn since(origin: Instant, origin_ms: u64) -> Self {
        Self {
            origin,
            origin_ms,
            suspended_ms: None,
        }
    }

    /// Notes whether the machine was suspended since the last look.
    pub(crate) fn look(&self) {
        if self.suspended_ms.is_some() {
            look_at_suspension();
        }
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.look();
        self.at(Instant::now())
    }

    /// Milliseconds since the Unix epoch at a point of the monotonic clock, by the suspensions that are known.
    #[must_use]
    pub fn at(&self, instant: Instant) -> u64 {
        let elapsed = instant.saturating_duration_since(self.origin);
        self.begins_ms()
            .saturating_add(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
    }

    /// The point of the monotonic clock at which `at` first gives `now_ms`, if the machine is not suspended until then.
    #[must_use]
    pub fn instant(&self, now_ms: u64) -> Instant {
        self.origin + Duration::from_millis(now_ms.saturating_sub(self.begins_ms()))
    }

    /// The time at the origin, with the suspensions since.
    fn begins_ms(&self) -> u64 {
        let since_ms = (self.suspended_ms).map_or(0, |before_ms| {
            SUSPENDED_MS.load(Ordering::Relaxed) - before_ms
        });
        self.origin_ms.saturating_add(since_ms)
    }
}

/// Compares the two clocks of the system.
fn look_at_suspension() {
    let ms = |clock| {
        let now = clock_gettime(clock);
        now.tv_sec.cast_unsigned() * 1_000 + now.tv_nsec.cast_unsigned() / 1_000_000
    };
    // In this order a thread that is held up between them does not take its own pause for a suspension.
    let steady_ms = ms(STEADY);
    let suspended_ms = steady_ms.saturating_sub(ms(ClockId::Monotonic));
    // Every turn looks, and nearly none has news.
    if suspended_ms > SUSPENDED_MS.load(Ordering::Relaxed) {
        SUSPENDED_MS.fetch_max(suspended_ms, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_and_instants_convert_back_and_forth() {
        let now_ms = Clock::start().now_ms();
        assert!(now_ms > 1_600_000_000_000, "after 2020");
        // Another test counts a suspension meanwhile, which this clock does not know.
        let clock = Clock::since(Instant::now(), now_ms);
        assert_eq!(clock.at(clock.instant(now_ms + 1_500)), now_ms + 1_500);
        let past_ms = clock.at(clock.instant(0));
        assert_eq!(past_ms, clock.origin_ms, "the past is clamped");
    }

    #[test]
    fn a_suspension_counts_once_for_a_clock_that_was_there_before() {
        let (clock, still) = (Clock::start_at(1_000), Clock::since(Instant::now(), 1_000));
        let at = clock.origin + Duration::from_millis(5);
        SUSPENDED_MS.fetch_add(70, Ordering::Relaxed);
        let later = Clock::start_at(1_000);
        assert_eq!(clock.at(at), 1_075);
        assert_eq!(clock.instant(1_075), at);
        assert_eq!(later.at(later.origin), 1_000);
        assert_eq!(still.at(still.origin), 1_000);
    }
}
