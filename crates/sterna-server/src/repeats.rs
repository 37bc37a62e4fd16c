//! Lines of the log that peers cause. A client that comes again and again, or a stranger who sends nonsense, could fill a
//! disk with them. So a line that is like one before it waits for a while, and the next one says how many were left out.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Mutex, PoisonError};

use crate::config::Log;

/// How often lines may be alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RepeatLimits {
    /// Time in which only the first of them is written; 0 for each.
    pub interval_ms: u64,
    /// The most lines that are remembered. Those beyond are taken for alike.
    pub lines: usize,
}

impl RepeatLimits {
    /// The limits of a configuration.
    #[must_use]
    pub fn of(log: &Log) -> Self {
        Self {
            interval_ms: log.repeat_interval_ms.into(),
            lines: log.maximum_repeats as usize,
        }
    }
}

/// The lines of one shard that were written of late.
#[derive(Debug, Default)]
pub(crate) struct Repeats(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    hasher: RandomState,
    lines: HashMap<u64, Line>,
    /// All that have no place.
    others: Line,
    /// When it is looked again which lines are old.
    look_ms: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Line {
    quiet_until_ms: u64,
    /// How many were left out since.
    more: u64,
}

impl Line {
    fn pass(&mut self, now_ms: u64, interval_ms: u64) -> Option<u64> {
        if now_ms < self.quiet_until_ms {
            self.more += 1;
            return None;
        }
        self.quiet_until_ms = now_ms + interval_ms;
        Some(std::mem::take(&mut self.more))
    }
}

impl Repeats {
    /// Whether the log gets a line: how many like it were left out before. `None` where it is left out, too. Lines with the
    /// same `line` are alike.
    pub(crate) fn pass(&self, now_ms: u64, limits: RepeatLimits, line: impl Hash) -> Option<u64> {
        let RepeatLimits { interval_ms, lines } = limits;
        if interval_ms == 0 {
            return Some(0);
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let hash = known.hasher.hash_one(line);
        if let Some(line) = known.lines.get_mut(&hash) {
            return line.pass(now_ms, interval_ms);
        }
        if known.lines.len() >= lines && known.look_ms <= now_ms {
            known.lines.retain(|_, line| now_ms < line.quiet_until_ms);
            known.look_ms = now_ms + interval_ms;
        }
        if known.lines.len() >= lines {
            return known.others.pass(now_ms, interval_ms);
        }
        known
            .lines
            .entry(hash)
            .or_default()
            .pass(now_ms, interval_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: RepeatLimits = RepeatLimits {
        interval_ms: 1_000,
        lines: 2,
    };

    #[test]
    fn the_first_of_many_is_written_and_the_next_one_counts_the_others() {
        let repeats = Repeats::default();
        let pass = |now_ms, line| repeats.pass(now_ms, LIMITS, line);
        assert_eq!(pass(5, "a"), Some(0));
        assert_eq!(pass(6, "b"), Some(0));
        for now_ms in 5..1_005 {
            assert_eq!(pass(now_ms, "a"), None);
        }
        assert_eq!(pass(1_005, "a"), Some(1_000));
        assert_eq!(pass(1_006, "a"), None);
    }

    /// Nobody hides behind others for long, and nobody takes memory.
    #[test]
    fn lines_that_have_no_place_are_alike() {
        let repeats = Repeats::default();
        let mut written = 0;
        for line in 0..10_000 {
            written += usize::from(repeats.pass(5, LIMITS, line).is_some());
        }
        assert_eq!(written, LIMITS.lines + 1);
        assert_eq!(repeats.0.lock().expect("not poisoned").lines.len(), 2);
        // The old ones make room.
        assert_eq!(repeats.pass(1_005, LIMITS, "new"), Some(0));
        assert_eq!(repeats.pass(1_005, LIMITS, "newer"), Some(0));
        assert_eq!(repeats.pass(1_005, LIMITS, "newest"), Some(9_997));
    }

    #[test]
    fn without_an_interval_each_is_written() {
        let (repeats, limits) = (
            Repeats::default(),
            RepeatLimits {
                interval_ms: 0,
                ..LIMITS
            },
        );
        for _ in 0..3 {
            assert_eq!(repeats.pass(5, limits, "a"), Some(0));
        }
    }
}
