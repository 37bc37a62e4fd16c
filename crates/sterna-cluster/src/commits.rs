//! How far a shard's messages have come: which acknowledgements to publishers may leave.

use std::collections::VecDeque;

/// The messages a shard handed over at the end of one turn, or one of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Part {
    /// The shard.
    pub shard: usize,
    turn: u64,
}

#[derive(Debug)]
struct Turn {
    /// The last token of the turn.
    token: u64,
    /// Parts that the engine does not have yet.
    missing: usize,
    /// The first position at which the turn may append to the log; `None` where nothing in it settles a record.
    appends_from: Option<u64>,
}

/// The turns of one shard that the engine does not have as a whole, in their order.
#[derive(Debug, Default)]
pub struct Commits {
    /// Number of the first of `turns`.
    first: u64,
    turns: VecDeque<Turn>,
}

impl Commits {
    /// Begins a turn whose last token is `token`. It is not complete before [`close`](Self::close).
    pub fn open(&mut self, shard: usize, token: u64) -> Part {
        self.turns.push_back(Turn {
            token,
            missing: 1,
            appends_from: None,
        });
        Part {
            shard,
            turn: self.first + self.turns.len() as u64 - 1,
        }
    }

    /// Another part of a turn is on its way to the engine.
    pub fn add(&mut self, part: Part) {
        if let Some(turn) = self.turn(part) {
            turn.missing += 1;
        }
    }

    /// A turn appends to the log what settles a record, at this position or later.
    pub fn appends_from(&mut self, part: Part, position: u64) {
        if let Some(turn) = self.turn(part) {
            turn.appends_from.get_or_insert(position);
        }
    }

    /// The first position at which something may be that settles a record which is not kept yet.
    #[must_use]
    pub fn first_unsettled(&self) -> Option<u64> {
        let turns = self.turns.iter().filter(|turn| turn.missing > 0);
        turns.filter_map(|turn| turn.appends_from).min()
    }

    /// The engine has a part, or all parts of the turn were added: that counts as one, too. Returns the token
    /// up to which the engine now has everything; `None` where that is as before.
    pub fn close(&mut self, part: Part) -> Option<u64> {
        let turn = self.turn(part)?;
        debug_assert!(turn.missing > 0, "each part of a turn comes once");
        turn.missing = turn.missing.saturating_sub(1);
        let mut token = None;
        while self.turns.front().is_some_and(|turn| turn.missing == 0) {
            token = self.turns.pop_front().map(|turn| turn.token);
            self.first += 1;
        }
        token
    }

    fn turn(&mut self, part: Part) -> Option<&mut Turn> {
        let index = part.turn.checked_sub(self.first)?;
        self.turns.get_mut(index as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_counts_when_it_and_all_before_it_are_complete() {
        let mut commits = Commits::default();
        let first = commits.open(0, 3);
        commits.add(first);
        commits.add(first);
        assert_eq!(commits.close(first), None, "two parts are missing");
        let second = commits.open(0, 5);
        assert_eq!(commits.close(second), None, "the first comes first");
        assert_eq!(commits.close(first), None);
        assert_eq!(commits.close(first), Some(5), "both at once");
        assert_eq!(commits.close(first), None, "it is long since forgotten");
        let third = commits.open(0, 5);
        commits.appends_from(third, 70);
        commits.appends_from(third, 80);
        assert_eq!(commits.first_unsettled(), Some(70));
        assert_eq!(commits.close(third), Some(5), "nothing to wait for");
        assert_eq!(commits.first_unsettled(), None);
    }
}
