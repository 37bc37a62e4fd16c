//! Messages from NATS that cannot be read. All are counted. The log has only the first of each interval, because a
//! publisher of many could fill a disk with lines.

use std::cell::Cell;
use std::fmt::Display;
use std::time::Duration;

use tokio::time::Instant;

use super::Core;

/// Time between two lines of the log.
const TOLD_INTERVAL: Duration = Duration::from_secs(10);

/// When the log last had a line, and how many came since without one.
#[derive(Debug, Default)]
pub(super) struct Unreadable {
    told: Cell<Option<Instant>>,
    untold: Cell<u64>,
}

impl Unreadable {
    /// Notes one. The number of those before it that the log does not have; `None` where it does not get this one.
    fn note(&self) -> Option<u64> {
        let is_due = (self.told.get()).is_none_or(|told| told.elapsed() >= TOLD_INTERVAL);
        if !is_due {
            self.untold.set(self.untold.get() + 1);
            return None;
        }
        self.told.set(Some(Instant::now()));
        Some(self.untold.take())
    }
}

impl Core {
    /// Counts a message that cannot be read. `place` says where it is: a subject, or a position.
    pub(super) fn cannot_read(&self, kind: &'static str, place: impl Display, error: impl Display) {
        self.status.unreadable_batches.add(1);
        if let Some(untold) = self.unreadable.note() {
            tracing::warn!(kind, %place, %error, untold, "a message of NATS cannot be read");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_gives_a_line_for_each_interval() {
        let unreadable = Unreadable::default();
        let mut lines = Vec::new();
        for _ in 0..1_000 {
            lines.extend(unreadable.note());
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        assert_eq!(lines, [0, 399, 399]);
    }
}
