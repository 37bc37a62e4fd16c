//! The meters of the webhook. Several threads count, and questions are rare.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::identity::Refusal;

/// The first bound of [`Seconds`], in microseconds.
pub(crate) const FIRST_BOUND_US: u64 = 128;
/// Bounds that double; the last is for all beyond.
const BUCKETS: usize = 22;

/// The subject of a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Subject {
    /// The identity of a client.
    Authentication,
    /// A client's right to an action.
    Authorization,
}

/// The outcome of a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Allowed,
    Denied,
    /// There was no good answer in time.
    Failed,
    /// The service is left alone after failures.
    Paused,
    /// Too many questions wait.
    Busy,
}

impl Subject {
    pub(crate) const ALL: [Self; 2] = [Self::Authentication, Self::Authorization];

    /// Its label.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Authentication => "authentication",
            Self::Authorization => "authorization",
        }
    }
}

impl Outcome {
    pub(crate) const ALL: [Self; 5] = [
        Self::Allowed,
        Self::Denied,
        Self::Failed,
        Self::Paused,
        Self::Busy,
    ];

    /// Its label.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Failed => "failed",
            Self::Paused => "paused",
            Self::Busy => "busy",
        }
    }

    /// The outcome of a question that has no good answer.
    pub(super) const fn of(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Busy | Refusal::Unavailable => Self::Busy,
            _ => Self::Failed,
        }
    }
}

/// Counts since the start of the process, over all policies.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    of: [Counts; Subject::ALL.len()],
    /// Lookups of credentials that found something, and that found nothing.
    hits: AtomicU64,
    misses: AtomicU64,
}

#[derive(Debug, Default)]
struct Counts {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    buckets: [AtomicU64; BUCKETS],
    sum_us: AtomicU64,
}

/// Times of answers: how many were within each bound, and their sum in microseconds.
pub(crate) type Seconds = ([u64; BUCKETS], u64);

fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

impl Meters {
    pub(super) fn count(&self, subject: Subject, outcome: Outcome) {
        add(&self.of[subject as usize].outcomes[outcome as usize], 1);
    }

    /// The service has answered, well or not, or time was over.
    pub(super) fn took(&self, subject: Subject, time: Duration) {
        let counts = &self.of[subject as usize];
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let doublings = us.div_ceil(FIRST_BOUND_US).max(1).next_power_of_two();
        let at = (doublings.trailing_zeros() as usize).min(BUCKETS - 1);
        add(&counts.buckets[at], 1);
        add(&counts.sum_us, us);
    }

    pub(super) fn looked_up(&self, is_known: bool) {
        add(if is_known { &self.hits } else { &self.misses }, 1);
    }

    pub(crate) fn outcomes(&self, subject: Subject, outcome: Outcome) -> u64 {
        self.of[subject as usize].outcomes[outcome as usize].load(Ordering::Relaxed)
    }

    /// Lookups of credentials that found something, and that found nothing.
    pub(super) fn lookups(&self) -> (u64, u64) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (load(&self.hits), load(&self.misses))
    }

    pub(crate) fn seconds(&self, subject: Subject) -> Seconds {
        let counts = &self.of[subject as usize];
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (
            std::array::from_fn(|at| load(&counts.buckets[at])),
            load(&counts.sum_us),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_first_bucket_that_holds_it() {
        let meters = Meters::default();
        let expected = [
            (0, 0),
            (1, 0),
            (128, 0),
            (129, 1),
            (256, 1),
            (257, 2),
            (3_000_000, 15),
        ];
        for (us, at) in expected {
            let before = meters.seconds(Subject::Authorization).0[at];
            meters.took(Subject::Authorization, Duration::from_micros(us));
            let after = meters.seconds(Subject::Authorization).0[at];
            assert_eq!(after, before + 1, "{us}");
        }
        meters.took(Subject::Authentication, Duration::MAX);
        let (buckets, _) = meters.seconds(Subject::Authentication);
        assert_eq!(buckets[BUCKETS - 1], 1);
    }
}
