//! Waits between attempts to connect.

use std::time::Duration;

use crate::options::random_bytes;

/// Exponential back-off with jitter.
///
/// The n-th wait lies between half and all of `min * 2^n`, at most `max`. Clients that lost a
/// broker at the same moment thus return at different moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The first wait; 0.5 to 1 times of it is really waited.
    pub min: Duration,
    /// The longest wait.
    pub max: Duration,
    /// Failed attempts in a row after which the client gives up; `None` for never.
    pub max_attempts: Option<u32>,
}

impl Default for Backoff {
    /// From 0.5 s up to 60 s, for ever.
    fn default() -> Self {
        Self {
            min: Duration::from_millis(500),
            max: Duration::from_secs(60),
            max_attempts: None,
        }
    }
}

impl Backoff {
    /// The wait after `failures` failed attempts in a row (1 or more); `None` to give up. `random`
    /// is any value; it chooses the jitter.
    #[must_use]
    pub fn delay(&self, failures: u32, random: u32) -> Option<Duration> {
        if self.max_attempts.is_some_and(|most| failures >= most) {
            return None;
        }
        let doublings = failures.saturating_sub(1).min(31);
        let full = self.min.saturating_mul(1 << doublings).min(self.max);
        let jitter = full.mul_f64(f64::from(random) / f64::from(u32::MAX) / 2.0);
        Some(full.saturating_sub(jitter))
    }
}

/// Least duration of a connection whose loss starts the back-off again.
pub(crate) const STABLE_AFTER: Duration = Duration::from_secs(5);

/// Number of failed attempts in a row.
#[derive(Debug, Default)]
pub(crate) struct Failures(u32);

impl Failures {
    /// Whether none has.
    pub(crate) const fn is_none(&self) -> bool {
        self.0 == 0
    }

    /// How many have.
    pub(crate) const fn count(&self) -> u32 {
        self.0
    }

    /// An attempt has succeeded.
    pub(crate) const fn clear(&mut self) {
        self.0 = 0;
    }

    /// A connection of this duration was lost, which may be the first failure of a row.
    pub(crate) fn lasted(&mut self, time: Duration) {
        if time >= STABLE_AFTER {
            self.clear();
        }
    }

    /// One more has failed. Gives the wait before the next; `None` when it is time to give up.
    pub(crate) fn add(&mut self, backoff: Option<Backoff>) -> Option<Duration> {
        self.0 = self.0.saturating_add(1);
        let mut random = [0; 4];
        random_bytes(&mut random);
        backoff?.delay(self.0, u32::from_ne_bytes(random))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_limit() {
        let backoff = Backoff::default();
        let longest = |failures| backoff.delay(failures, 0).unwrap();
        assert_eq!(longest(0), Duration::from_millis(500));
        assert_eq!(longest(1), Duration::from_millis(500));
        assert_eq!(longest(2), Duration::from_secs(1));
        assert_eq!(longest(5), Duration::from_secs(8));
        assert_eq!(longest(9), Duration::from_secs(60));
        assert_eq!(longest(u32::MAX), Duration::from_secs(60));
    }

    #[test]
    fn jitter_takes_up_to_half_away() {
        let backoff = Backoff::default();
        let shortest = backoff.delay(9, u32::MAX).unwrap();
        assert!(shortest >= Duration::from_secs(30) && shortest < Duration::from_millis(30_001));
    }

    #[test]
    fn it_gives_up_when_told() {
        let twice = Backoff {
            max_attempts: Some(2),
            ..Backoff::default()
        };
        assert!(twice.delay(1, 0).is_some());
        assert_eq!(twice.delay(2, 0), None);
    }
}
