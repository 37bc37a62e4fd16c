//! The part of a list of connections that has its turn now. The others are the first in the next turn.

use std::time::{Duration, Instant};

use crate::ConnectionId;

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Shift {
    /// When it is over; none before the first connection has its turn.
    until: Option<Instant>,
    /// Where the first connection that waits is in the list of the next turn.
    first_held_back: Option<usize>,
    is_crowded: bool,
}

impl Shift {
    /// Begins with a turn. Whether connections were held back in the last one: the list is to be ordered then, for those of
    /// one address may be many.
    pub(super) const fn begin(&mut self) -> bool {
        self.until = None;
        self.is_crowded
    }

    /// Whether it has lasted so many milliseconds. The first connection always has its turn.
    pub(super) fn is_over(&mut self, most_ms: u64) -> bool {
        if let Some(until) = self.until {
            return Instant::now() >= until;
        }
        self.until = Some(Instant::now() + Duration::from_millis(most_ms));
        false
    }

    /// A connection is about to be put on the list of the next turn, for it had none in this one.
    pub(super) fn hold_back(&mut self, next: &[ConnectionId]) {
        self.first_held_back.get_or_insert(next.len());
    }

    /// Ends with the list of the next turn: those that had no turn in this one are its first.
    pub(super) fn end(&mut self, next: &mut [ConnectionId]) {
        let first_held_back = self.first_held_back.take();
        self.is_crowded = first_held_back.is_some();
        if let Some(first) = first_held_back {
            next.rotate_left(first);
        }
    }
}
