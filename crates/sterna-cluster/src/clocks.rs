//! The clocks of a cluster: how far those of nodes and servers of NATS are from this node's, and which of them are wrong.
//! Without input or output.
//!
//! The reference is the median of all clocks, each counted once. Of two in the middle it is the one that is behind, so that
//! nothing expires early where as many clocks are right as are wrong. With fewer than three clocks nobody knows who is
//! right.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Fewest clocks of which one can be called wrong.
const FEWEST_CLOCKS: usize = 3;
/// Time after which a clock that was not read again does not count, in milliseconds.
const FORGOTTEN_MS: u64 = 30_000;

/// The owner of a clock.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Owner {
    /// This node.
    Own,
    /// Another node.
    Node(Arc<str>),
    /// A server of NATS.
    Server(Arc<str>),
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("this node"),
            Self::Node(name) => write!(f, "node {}", name.escape_debug()),
            Self::Server(name) => write!(f, "NATS server {}", name.escape_debug()),
        }
    }
}

/// An answer that says what another clock shows. Times are in milliseconds, by this node's clock where nothing else is
/// said.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// When it was asked for.
    pub asked_ms: u64,
    /// When it came.
    pub came_ms: u64,
    /// The other clock in between.
    pub theirs_ms: u64,
}

/// A clock, as far as it is known.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// How far it is ahead of this node's, in milliseconds.
    ahead_ms: i64,
    /// When it was read.
    at_ms: u64,
}

/// All clocks, as this node knows them.
#[derive(Debug)]
pub struct Clocks {
    maximum_skew_ms: u64,
    known: BTreeMap<Owner, Known>,
}

/// A clock that differs from the reference by more than it may.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wrong {
    /// Its owner.
    pub owner: Owner,
    /// How far it is ahead of the reference, in milliseconds.
    pub ahead_ms: i64,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = if self.ahead_ms > 0 { "ahead" } else { "behind" };
        let ms = self.ahead_ms.unsigned_abs();
        write!(f, "the clock of {} is {ms} ms {direction}", self.owner)
    }
}

/// The judgement of all clocks together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    /// Number of clocks.
    pub clocks: usize,
    /// Whether they are enough to call one wrong.
    pub is_sure: bool,
    /// How far this node's clock is ahead of the reference, in milliseconds.
    pub own_ahead_ms: i64,
    /// Those that differ, this node's first.
    pub wrong: Vec<Wrong>,
}

impl Verdict {
    /// Whether this node's clock is wrong.
    #[must_use]
    pub fn is_own_wrong(&self) -> bool {
        self.is_sure && (self.wrong.iter()).any(|wrong| wrong.owner == Owner::Own)
    }

    /// The clocks that differ, in words; `None` where there are none.
    #[must_use]
    pub fn sentence(&self) -> Option<String> {
        let wrong: Vec<String> = self.wrong.iter().map(Wrong::to_string).collect();
        (!wrong.is_empty()).then(|| wrong.join(", "))
    }
}

impl Clocks {
    /// No clock but this node's. `maximum_skew_ms` is how far one may be from the reference.
    #[must_use]
    pub const fn new(maximum_skew_ms: u64) -> Self {
        Self {
            maximum_skew_ms,
            known: BTreeMap::new(),
        }
    }

    /// Takes in an answer. One that was on its way for longer than clocks may differ says nothing.
    pub fn heard(&mut self, owner: Owner, answer: Answer) {
        let Some(way_ms) = answer.came_ms.checked_sub(answer.asked_ms) else {
            return;
        };
        if way_ms > self.maximum_skew_ms {
            return;
        }
        let own_ms = answer.asked_ms + way_ms / 2;
        let ahead_ms = answer.theirs_ms.wrapping_sub(own_ms).cast_signed();
        let known = Known {
            ahead_ms,
            at_ms: answer.came_ms,
        };
        self.known.insert(owner, known);
    }

    /// Whether this node would be right by the machine's wall clock, and is wrong by the clock that it has had since its
    /// start. `wall_ahead_ms` is how far the former is ahead of the latter, in milliseconds.
    #[must_use]
    pub fn is_set(&self, verdict: &Verdict, wall_ahead_ms: i64) -> bool {
        let ahead_ms = verdict.own_ahead_ms.saturating_add(wall_ahead_ms);
        verdict.is_own_wrong() && ahead_ms.unsigned_abs() <= self.maximum_skew_ms
    }

    /// The judgement of the clocks at this time.
    pub fn judge(&mut self, now_ms: u64) -> Verdict {
        (self.known).retain(|_, known| now_ms.saturating_sub(known.at_ms) <= FORGOTTEN_MS);
        let others = (self.known.iter()).map(|(owner, known)| (owner.clone(), known.ahead_ms));
        let all: Vec<(Owner, i64)> = std::iter::once((Owner::Own, 0)).chain(others).collect();
        let mut ahead: Vec<i64> = all.iter().map(|(_, ahead_ms)| *ahead_ms).collect();
        ahead.sort_unstable();
        let reference_ms = ahead[(ahead.len() - 1) / 2];
        let differs = |ahead_ms: i64| ahead_ms.abs_diff(reference_ms) > self.maximum_skew_ms;
        Verdict {
            clocks: all.len(),
            is_sure: all.len() >= FEWEST_CLOCKS,
            own_ahead_ms: 0_i64.saturating_sub(reference_ms),
            wrong: (all.into_iter())
                .filter(|(_, ahead_ms)| differs(*ahead_ms))
                .map(|(owner, ahead_ms)| Wrong {
                    owner,
                    ahead_ms: ahead_ms.saturating_sub(reference_ms),
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_800_000_000_000;

    fn node(name: &str) -> Owner {
        Owner::Node(name.into())
    }

    fn server(name: &str) -> Owner {
        Owner::Server(name.into())
    }

    /// What a node knows whose clock is the reference but for these.
    fn clocks(others: &[(Owner, i64)]) -> Clocks {
        let mut clocks = Clocks::new(1_000);
        for (owner, ahead_ms) in others {
            clocks.heard(owner.clone(), answer(10, *ahead_ms));
        }
        clocks
    }

    fn answer(way_ms: u64, ahead_ms: i64) -> Answer {
        Answer {
            asked_ms: NOW_MS - way_ms,
            came_ms: NOW_MS,
            theirs_ms: (NOW_MS - way_ms / 2).saturating_add_signed(ahead_ms),
        }
    }

    fn wrong(others: &[(Owner, i64)]) -> Vec<(Owner, i64)> {
        let verdict = clocks(others).judge(NOW_MS);
        assert!(verdict.is_sure);
        let wrong = verdict.wrong.into_iter();
        wrong.map(|wrong| (wrong.owner, wrong.ahead_ms)).collect()
    }

    #[test]
    fn who_differs_from_the_median_is_wrong() {
        let (a, b, c) = (node("a"), server("b"), server("c"));
        assert_eq!(wrong(&[(a.clone(), 300), (b.clone(), -900)]), []);
        assert_eq!(
            wrong(&[(a.clone(), 600_000), (b.clone(), 5), (c.clone(), -2_000)]),
            [(a.clone(), 600_000), (c.clone(), -2_000)]
        );
        // All others agree.
        let all = [(a, -600_000), (b, -600_010), (c, -599_990)];
        assert_eq!(wrong(&all), [(Owner::Own, 600_000)]);
        let verdict = clocks(&all).judge(NOW_MS);
        assert!(verdict.is_own_wrong());
        assert_eq!(
            verdict.sentence().as_deref(),
            Some("the clock of this node is 600000 ms ahead")
        );
    }

    #[test]
    fn a_wall_clock_that_was_set_is_known_to_be_right() {
        let all = [
            (node("a"), -600_000),
            (server("b"), -600_010),
            (server("c"), -599_990),
        ];
        let verdict = clocks(&all).judge(NOW_MS);
        let right = clocks(&[(node("a"), 5), (server("b"), 0)]).judge(NOW_MS);
        let clocks = clocks(&all);
        for (wall_ahead_ms, is_set) in [
            (0, false),
            (-598_999, false),
            (-599_000, true),
            (-600_000, true),
            (-601_000, true),
            (-601_001, false),
            (i64::MIN, false),
        ] {
            assert_eq!(
                clocks.is_set(&verdict, wall_ahead_ms),
                is_set,
                "{wall_ahead_ms}"
            );
        }
        // Whoever is right has no need of it.
        assert!(!clocks.is_set(&right, 0));
    }

    #[test]
    fn where_half_of_them_agree_those_that_are_behind_are_right() {
        let two = [
            (node("a"), 600_000),
            (server("b"), 600_000),
            (server("c"), 0),
        ];
        assert_eq!(wrong(&two).len(), 2);
        assert!(!clocks(&two).judge(NOW_MS).is_own_wrong());
        let two = [
            (node("a"), -600_000),
            (server("b"), -600_000),
            (server("c"), 0),
        ];
        assert!(clocks(&two).judge(NOW_MS).is_own_wrong());
    }

    #[test]
    fn two_clocks_are_too_few() {
        let verdict = clocks(&[(server("b"), -600_000)]).judge(NOW_MS);
        assert!(!verdict.is_sure && !verdict.is_own_wrong());
        assert!(verdict.sentence().is_some(), "it is said all the same");
    }

    #[test]
    fn an_answer_that_was_long_on_its_way_says_nothing() {
        let mut clocks = Clocks::new(1_000);
        for owner in [node("a"), server("b")] {
            clocks.heard(owner, answer(1_001, -600_000));
        }
        assert_eq!(clocks.judge(NOW_MS).clocks, 1);
        clocks.heard(node("a"), answer(1_000, -600_000));
        assert_eq!(clocks.judge(NOW_MS).clocks, 2);
    }

    #[test]
    fn who_is_not_heard_of_any_more_does_not_count() {
        let mut clocks = clocks(&[(node("a"), 0), (server("b"), 0)]);
        assert_eq!(clocks.judge(NOW_MS + FORGOTTEN_MS).clocks, 3);
        assert_eq!(clocks.judge(NOW_MS + FORGOTTEN_MS + 1).clocks, 1);
    }
}
