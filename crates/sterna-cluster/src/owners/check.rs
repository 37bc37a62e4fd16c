//! Invariants of the owners of sessions, for tests: the check looks at everything.

use super::work::{Op, Stage, Work};
use super::{Key, Owners};

impl<S: Copy> Owners<S> {
    /// Looks at every session, operation, deadline and mark; for tests, after each of their steps.
    ///
    /// # Panics
    /// Where something does not agree with what it stands for.
    pub fn check(&self, now_ms: u64) {
        self.check_fence(now_ms);
        for (key, held) in &self.held {
            assert!(
                held.epoch > 0,
                "a session that is held has an epoch: {key:?}"
            );
            assert!(
                held.is_kept || !held.is_kept_untold,
                "a session is kept where its record is to say so: {key:?}"
            );
        }
        for key in &self.forgotten {
            assert!(
                self.held.contains_key(key),
                "a session whose record is lost is held: {key:?}"
            );
        }
        for (key, work) in &self.work {
            self.check_work(*key, work);
        }
        self.check_nodes();
    }

    /// This node is sure for the lease of its last mark, and only where nothing speaks against it.
    fn check_fence(&self, now_ms: u64) {
        assert!(
            self.sure_until_ms == 0
                || self.sure_until_ms <= self.last_mark_ms + self.terms.lease_ms,
            "a mark makes sure for its lease"
        );
        assert!(
            self.open_until_ms <= self.sure_until_ms,
            "the fence is open while this node is sure"
        );
        assert!(
            self.forgotten.is_empty() || self.open_until_ms == 0,
            "the fence is shut while records are lost"
        );
        assert!(
            self.superseded_by.is_none() || self.open_until_ms == 0,
            "the fence is shut for a later process"
        );
        assert!(
            self.was_sure || !self.is_sure(now_ms),
            "the end of being sure is waited for"
        );
        assert!(
            self.is_scanning || self.sweeping.is_empty(),
            "nodes are swept by a scan"
        );
        assert!(
            self.has_swept || self.swept.is_empty(),
            "processes that were swept are told of"
        );
        let passed = self.passed.iter().zip(self.passed.iter().skip(1));
        for ((one, at_ms), (next, then_ms)) in passed {
            assert!(
                one < next && at_ms < then_ms,
                "the stream goes on with time"
            );
        }
        assert!(self.old_to <= self.read_to, "old records have come by");
    }

    fn check_work(&self, key: Key, work: &Work<S>) {
        let Some(front) = work.ops.front() else {
            panic!("work has an operation: {key:?}");
        };
        let is_adoption = matches!(front, Op::Adopt { .. });
        match work.stage {
            Stage::Pausing => assert!(
                self.wakes.contains(&(work.wake_ms, key)),
                "what pauses is tried again: {key:?}"
            ),
            Stage::Reading | Stage::Writing => {
                assert!(!is_adoption, "an adoption has no record: {key:?}");
            }
            Stage::Written(_) => {
                assert!(
                    work.waits_for_owner(),
                    "what is to come by waits for it: {key:?}"
                );
            }
            Stage::Adopting => assert!(is_adoption, "a shard takes what is adopted: {key:?}"),
            Stage::Waiting { epoch, until_ms } => {
                let waits = is_adoption || work.waits_for_owner();
                assert!(
                    waits,
                    "a claim or an adoption waits for the owner before: {key:?}"
                );
                assert!(
                    self.wakes.contains(&(until_ms, key)),
                    "the wait for the owner before has an end: {key:?}"
                );
                assert_eq!(
                    self.epoch(key),
                    Some(epoch),
                    "who waits for the owner before holds the session: {key:?}"
                );
            }
        }
        assert!(
            work.attempt <= self.next_number && work.serial <= self.next_number,
            "numbers of attempts are given: {key:?}"
        );
        for op in &work.ops {
            let Op::Claim(claim) = op else { continue };
            assert!(
                (1..=self.next_number).contains(&claim.serial),
                "the serial of a claim was given: {key:?}"
            );
            let is_awaited = !(claim.is_let_in || claim.is_abandoned);
            assert!(
                !is_awaited || self.wakes.contains(&(claim.deadline_ms, key)),
                "a claim that somebody waits for has its deadline: {key:?}"
            );
        }
    }

    fn check_nodes(&self) {
        for (name, known) in &self.nodes {
            assert_ne!(*name, self.own.node, "this node is none of the others");
            assert!(
                known.before < known.incarnation,
                "the process of {name} before is an earlier one"
            );
            assert!(
                known.since_ms <= known.seen_ms,
                "the last mark of {name} is not before its first"
            );
            assert!(
                !known.has_leftovers || known.before != 0,
                "what {name} has left is of a process before"
            );
        }
    }
}
