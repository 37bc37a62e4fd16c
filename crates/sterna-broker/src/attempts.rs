//! The deliveries of a message that came to nothing: their count, its limit, and the pause before the next one.
//!
//! A delivery has *failed* where its consumer says so. It is *lost* where its consumer was lost, which may be the
//! message's fault or not. An end in order is neither.

use crate::limits::Limits;
use crate::queue_rules::{DeathCause, QueueRules};

/// The deliveries of a message that have come to nothing.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Failures {
    /// Deliveries of which consumers said that they failed.
    pub(crate) said: u16,
    /// Deliveries whose consumers were lost.
    pub(crate) lost: u16,
}

impl Failures {
    /// A consumer says that a delivery has failed.
    pub(crate) const fn fail(&mut self) {
        self.said = self.said.saturating_add(1);
    }

    /// The consumer of a delivery was lost.
    pub(crate) const fn lose(&mut self) {
        self.lost = self.lost.saturating_add(1);
    }

    /// The number that consumers and queues count.
    pub(crate) fn counted(self, limits: &Limits) -> u16 {
        let lost = if limits.counts_lost { self.lost } else { 0 };
        self.said.saturating_add(lost)
    }

    /// The counts of one message as two sides know them.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            said: self.said.max(other.said),
            lost: self.lost.max(other.lost),
        }
    }

    /// Why a message leaves its queue, if it does. A queue without dead letters drops it for its count only if its
    /// consumers have said so.
    pub(crate) fn death(self, rules: Option<&QueueRules>, limits: &Limits) -> Option<DeathCause> {
        let rules = rules?;
        let most = rules.maximum_deliveries?;
        if self.said >= most {
            return Some(DeathCause::MaximumDeliveries);
        }
        let is_lost = rules.dead_letter.is_some() && self.counted(limits) >= most;
        is_lost.then_some(DeathCause::LostConnections)
    }

    /// The pause before the next delivery after a lost one, in milliseconds. The first goes to another consumer at
    /// once; from the second on the message itself may be the cause.
    pub(crate) fn pause_ms(self, limits: &Limits) -> u64 {
        match self.lost {
            0 | 1 => 0,
            lost => growing_ms(limits, u32::from(lost) - 2),
        }
    }

    /// One number for records and letters; zero for none.
    pub(crate) fn to_number(self) -> u64 {
        u64::from(self.said) << 16 | u64::from(self.lost)
    }

    /// The reverse; `None` for a number that is none of these.
    pub(crate) fn from_number(number: u64) -> Option<Self> {
        Some(Self {
            said: u16::try_from(number >> 16).ok()?,
            lost: number as u16,
        })
    }
}

/// A pause that doubles with each step, in milliseconds.
fn growing_ms(limits: &Limits, step: u32) -> u64 {
    let factor = 1_u64.checked_shl(step).unwrap_or(u64::MAX);
    let pause_ms = limits.redelivery_pause_ms.saturating_mul(factor);
    pause_ms.min(limits.redelivery_pause_most_ms)
}

/// The deliveries so far of a message that is not settled, as records have them.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Attempts {
    pub(crate) failures: Failures,
    /// Whether a consumer had it.
    pub(crate) was_sent: bool,
}

impl Attempts {
    /// As [`Failures::to_number`].
    pub(crate) fn to_number(self) -> u64 {
        self.failures.to_number() << 1 | u64::from(self.was_sent)
    }

    /// As [`Failures::from_number`].
    pub(crate) fn from_number(number: u64) -> Option<Self> {
        Some(Self {
            failures: Failures::from_number(number >> 1)?,
            was_sent: number & 1 != 0,
        })
    }
}

/// Why a message comes back to its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Comeback {
    /// It was given back, or never sent.
    GivenBack,
    /// Its consumer was lost.
    Lost,
    /// It was to be a dead letter, and nobody took that.
    Undead,
}

/// Why a queue holds a message back for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HoldBack {
    /// Consumers that had it were lost, twice or more often.
    Lost,
    /// The dead letters of its queue have no room for it.
    DeadLettersFull,
}

impl HoldBack {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::Lost, Self::DeadLettersFull];

    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::DeadLettersFull => "dead_letters_full",
        }
    }
}

/// The pause of a queue whose dead letters take nothing. All that is refused while it lasts comes back at its end.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Refusals {
    until_ms: u64,
    step: u32,
}

impl Refusals {
    /// The dead letters have refused a message. Returns when it comes back.
    pub(crate) fn refuse(&mut self, now_ms: u64, limits: &Limits) -> u64 {
        if now_ms >= self.until_ms {
            let pause_ms = growing_ms(limits, self.step);
            self.step = self.step.saturating_add(1);
            self.until_ms = now_ms.saturating_add(pause_ms);
        }
        self.until_ms
    }
}

/// Time in which a queue tells once that it holds messages back for a reason.
const TELL_EVERY_MS: u64 = 60_000;

/// How a queue tells of what it holds back.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct HeldBack {
    /// When it is told again, and the messages since it was told last; by reason.
    told: [(u64, u64); HoldBack::ALL.len()],
}

impl HeldBack {
    /// A message is held back. The number of messages to tell of, if it is time to.
    pub(crate) fn note(&mut self, now_ms: u64, reason: HoldBack) -> Option<u64> {
        let (again_ms, messages) = &mut self.told[reason as usize];
        *messages += 1;
        if now_ms < *again_ms {
            return None;
        }
        *again_ms = now_ms.saturating_add(TELL_EVERY_MS);
        Some(std::mem::take(messages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_are_numbers_and_none_is_zero() {
        assert_eq!(Attempts::default().to_number(), 0);
        for (said, lost, was_sent) in [(0, 0, true), (3, 0, false), (u16::MAX, u16::MAX, true)] {
            let attempts = Attempts {
                failures: Failures { said, lost },
                was_sent,
            };
            assert_eq!(Attempts::from_number(attempts.to_number()), Some(attempts));
        }
        assert_eq!(Attempts::from_number(1 << 33), None, "too many failures");
    }

    #[test]
    fn pauses_grow_up_to_the_longest() {
        let limits = Limits {
            redelivery_pause_ms: 100,
            redelivery_pause_most_ms: 1_000,
            ..Limits::default()
        };
        let pauses =
            [0, 1, 2, 3, 5, 6, 255].map(|lost| Failures { said: 9, lost }.pause_ms(&limits));
        assert_eq!(pauses, [0, 0, 100, 200, 800, 1_000, 1_000]);
        let mut refusals = Refusals::default();
        let ends = [50, 149, 150, 350, 750].map(|now_ms| refusals.refuse(now_ms, &limits));
        assert_eq!(ends, [150, 150, 350, 750, 1_550]);
        for begins_ms in (2_000..100_000).step_by(1_000) {
            assert_eq!(refusals.refuse(begins_ms, &limits), begins_ms + 1_000);
        }
    }

    #[test]
    fn a_queue_tells_once_in_a_minute_and_says_how_many() {
        let mut held = HeldBack::default();
        let told = [0, 1, 59_999, 60_000, 60_001].map(|at_ms| held.note(at_ms, HoldBack::Lost));
        assert_eq!(told, [Some(1), None, None, Some(3), None]);
        assert_eq!(held.note(5, HoldBack::DeadLettersFull), Some(1));
    }
}
