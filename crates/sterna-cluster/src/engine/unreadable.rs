//! Lines of the log that others can cause: messages from NATS that cannot be read, and claims that are overtaken. The log
//! has only the first of each interval, because a publisher of many could fill a disk with lines.

use std::cell::Cell;
use std::fmt::Display;
use std::time::Duration;

use sterna_broker::SessionName;
use tokio::time::Instant;

use super::Core;
use crate::owners::Overtaken;

/// Time between two lines about messages that cannot be read, or about what NATS does not do in an outage.
pub(super) const UNREADABLE_INTERVAL: Duration = Duration::from_secs(10);
/// Time between two lines about claims.
const CLAIMS_INTERVAL: Duration = Duration::from_secs(1);

/// When the log last had a line, and how many came since without one.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    told: Cell<Option<Instant>>,
    untold: Cell<u64>,
}

impl Throttle {
    /// Notes one. The number of those before it that the log does not have; `None` where it does not get this one.
    pub(super) fn note(&self, interval: Duration) -> Option<u64> {
        let is_due = (self.told.get()).is_none_or(|told| told.elapsed() >= interval);
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
        if let Some(untold) = self.unreadable.note(UNREADABLE_INTERVAL) {
            tracing::warn!(kind, %place, %error, untold, "a message of NATS cannot be read");
        }
    }

    /// Says that a client has lost its session to another node. Its door says from where it came. Roots of shared
    /// subscriptions have no client, and change their nodes as they like.
    pub(super) fn tell_overtaken(&self, name: &SessionName, by: Option<&str>, why: Overtaken) {
        if let Some(untold) = self.overtaken.note(CLAIMS_INTERVAL) {
            let node = &*self.settings.node;
            let why = why.detail();
            tracing::info!(
                client = name.id(),
                user = name.user(),
                node,
                by,
                why,
                untold,
                "a claim of a session is refused"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_gives_a_line_for_each_interval() {
        let unreadable = Throttle::default();
        let mut lines = Vec::new();
        for _ in 0..1_000 {
            lines.extend(unreadable.note(UNREADABLE_INTERVAL));
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        assert_eq!(lines, [0, 399, 399]);
    }
}
