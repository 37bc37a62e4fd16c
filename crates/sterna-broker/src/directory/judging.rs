//! How far the shards are with judging their sessions by the rules in force.

use std::sync::Mutex;

use super::locked;

/// See [`Judging::came`].
#[derive(Debug)]
struct Round {
    /// The rules' number: all shards are told of the same rules in the same order.
    version: u32,
    /// Where the log of messages was when the first shard had the rules.
    position: u64,
    /// Shards that are yet to judge all their sessions.
    left: u16,
}

/// The latest rules that came.
#[derive(Debug)]
pub(crate) struct Judging {
    shards: u16,
    round: Mutex<Round>,
}

impl Judging {
    pub(super) const fn new(shards: u16) -> Self {
        Self {
            shards,
            round: Mutex::new(Round {
                version: 0,
                position: 0,
                left: 0,
            }),
        }
    }

    /// A shard has rules of this number, where the log is at `position`. Returns where it was when the first shard had
    /// them.
    pub(crate) fn came(&self, version: u32, position: u64) -> u64 {
        let mut round = locked(&self.round);
        if round.version < version {
            *round = Round {
                version,
                position,
                left: self.shards,
            };
        }
        if round.version == version {
            round.position
        } else {
            // This shard is late: it has the next rules in a moment.
            position.min(round.position)
        }
    }

    /// A shard has judged all its sessions by the rules of this number, and what follows from that is in the store. Returns
    /// whether all shards have, by rules that are still the latest.
    pub(crate) fn is_done(&self, version: u32) -> bool {
        let mut round = locked(&self.round);
        if round.version != version || round.left == 0 {
            return false;
        }
        round.left -= 1;
        round.left == 0
    }
}
