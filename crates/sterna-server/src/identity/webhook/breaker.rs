//! A circuit breaker: a service that fails again and again is left alone for a while.

use std::time::{Duration, Instant};

/// Failures in a row, and the time until which nothing is asked because of them.
#[derive(Debug)]
pub(super) struct Breaker {
    failures: u32,
    until: Option<Instant>,
    most: u32,
    pause: Duration,
}

impl Breaker {
    pub(super) const fn new(most: u32, pause: Duration) -> Self {
        Self {
            failures: 0,
            until: None,
            most,
            pause,
        }
    }

    /// Whether the service may be asked now. After a pause one question may, and others when it has been
    /// answered.
    pub(super) fn admits(&mut self, now: Instant) -> bool {
        match self.until {
            None => true,
            Some(until) if now < until => false,
            Some(_) => {
                self.until = Some(now + self.pause);
                true
            }
        }
    }

    /// Whether the service is left alone now.
    pub(super) fn is_paused(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Notes an answer; whether it ends a pause.
    pub(super) fn succeeded(&mut self) -> bool {
        self.failures = 0;
        self.until.take().is_some()
    }

    /// Notes a failure; whether it begins a pause.
    pub(super) fn failed(&mut self, now: Instant) -> bool {
        self.failures = self.failures.saturating_add(1);
        if self.failures < self.most {
            return false;
        }
        let is_new = self.until.is_none();
        self.until = Some(now + self.pause);
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_failures_there_is_a_pause_and_then_one_attempt() {
        let second = Duration::from_secs(1);
        let begin = Instant::now();
        let at = |seconds: u32| begin + seconds * second;
        let mut breaker = Breaker::new(3, 5 * second);
        assert!(!breaker.failed(at(0)) && !breaker.failed(at(0)));
        assert!(!breaker.succeeded(), "only those in a row count");
        assert!(!breaker.failed(at(1)) && !breaker.failed(at(1)));
        assert!(breaker.admits(at(1)));
        assert!(breaker.failed(at(1)));
        assert!(!breaker.admits(at(5)));
        assert!(breaker.admits(at(6)), "one attempt");
        assert!(!breaker.admits(at(6)), "and no other");
        assert!(!breaker.failed(at(7)), "it was said already");
        assert!(!breaker.admits(at(11)) && breaker.admits(at(12)));
        assert!(breaker.succeeded() && breaker.admits(at(12)));
    }
}
