//! The floor of a node's records: what lies below it does not exist, whatever NATS says.
//!
//! A server of NATS that comes back after an unclean end may have records again that were written over, or removed. A
//! record of a process that is gone would have its will published once more. So who has taken over all that a process has
//! left says so for good, in a record of its own. That one is never removed, and is written over by higher ones only.

use std::sync::Arc;

use super::{Owners, Process, Record};

/// The records of a node that do not exist any more. The higher of two is the one with the higher incarnation, or with the
/// higher position where that is the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Floor {
    /// Of earlier processes than this incarnation: all.
    pub incarnation: u64,
    /// Of that process: those up to this position of the stream. It may have been taken for gone, and be back.
    pub position: u64,
}

impl Floor {
    /// Whether a record of a process, which has that sequence number, does not exist any more.
    #[must_use]
    pub const fn covers(&self, incarnation: u64, sequence: u64) -> bool {
        incarnation < self.incarnation
            || (incarnation == self.incarnation && sequence <= self.position)
    }
}

impl<S: Copy> Owners<S> {
    /// All that a node's processes have left below a floor was taken over, published or ended. A floor never falls.
    pub fn raise_floor(&mut self, node: &str, floor: Floor) {
        let known = self.floors.entry(Arc::from(node)).or_default();
        *known = (*known).max(floor);
    }

    /// The floor of a node's records.
    #[must_use]
    pub fn floor(&self, node: &str) -> Floor {
        self.floors.get(node).copied().unwrap_or_default()
    }

    /// Whether a record does not exist any more.
    pub(super) fn is_below_floor(&self, sequence: u64, owner: &Process) -> bool {
        let floor = self.floors.get(&owner.node);
        floor.is_some_and(|floor| floor.covers(owner.incarnation, sequence))
    }

    /// A record as it counts: one below the floor says that its session has ended.
    pub(crate) fn as_it_counts(&self, sequence: u64, record: Record) -> Record {
        if !self.is_below_floor(sequence, &record.owner) {
            return record;
        }
        Record {
            is_over: true,
            is_kept: false,
            will: None,
            ..record
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_higher_floor_covers_all_that_the_lower_one_does() {
        let floors = [(0, 0), (3, 0), (3, 70), (3, 90), (4, 10), (9, u64::MAX)];
        let floors = floors.map(|(incarnation, position)| Floor {
            incarnation,
            position,
        });
        for pair in floors.windows(2) {
            assert!(pair[0] < pair[1]);
            for incarnation in 1..12 {
                for sequence in [1, 10, 70, 71, 90, 100] {
                    let is_covered = pair[0].covers(incarnation, sequence);
                    assert!(!is_covered || pair[1].covers(incarnation, sequence));
                }
            }
        }
        assert!(floors[3].covers(2, u64::MAX) && floors[3].covers(3, 90));
        assert!(!floors[3].covers(3, 91) && !floors[3].covers(4, 1));
    }
}
