//! Whether shards may acknowledge what other nodes want, or may want.
//!
//! A node goes by what it knows that other nodes want. While it hears nothing from NATS, somebody may come elsewhere
//! who wants more. That is accepted for the patience, so that a short trouble is none. After it, the gate is shut: what
//! others are known to want is refused. Where this node does not hear what they want, all is refused that they might.

use std::cell::Cell;

use sterna_broker::PeerGate;

use crate::status::Status;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Gating {
    /// When NATS last ceased to take messages, or this node to hear what others want; `None` where all is well.
    troubled_since_ms: Cell<Option<u64>>,
    /// Whether shards were told that they do not know what others want, since it was heard last.
    has_forgotten: Cell<bool>,
}

/// The gate is another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    Opened,
    Shut,
}

impl Gating {
    /// Opens or shuts the gate as the state of NATS demands. A short trouble does not shut it: NATS elects another
    /// leader, or another server is connected. Publishers wait for their acknowledgements meanwhile.
    pub(super) fn look(
        &self,
        now_ms: u64,
        patience_ms: u64,
        status: &Status,
        gate: &PeerGate,
    ) -> Option<Turn> {
        let is_open = gate.is_open();
        if status.hears_nodes() {
            self.has_forgotten.set(false);
        }
        if status.may_send() {
            self.troubled_since_ms.set(None);
            gate.set_open(true);
            return (!is_open).then_some(Turn::Opened);
        }
        let since_ms = self.troubled_since_ms.get().unwrap_or(now_ms);
        self.troubled_since_ms.set(Some(since_ms));
        if now_ms - since_ms < patience_ms {
            return None;
        }
        gate.set_open(false);
        // Once: shards may be about to know it again.
        if !status.hears_nodes() && !self.has_forgotten.replace(true) {
            gate.forget_wanted();
        }
        is_open.then_some(Turn::Shut)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::rights::Right;

    const PATIENCE_MS: u64 = 1_000;

    /// The way is back, and rights are proved on it.
    fn comes_back(status: &Status) -> u64 {
        let connects = status.way_is_back();
        assert!(status.rights.are_proved(connects));
        connects
    }

    /// A node that has joined, knows what others want, and may send.
    fn joined() -> (Gating, Status, PeerGate) {
        let (gating, status, gate) = (Gating::default(), Status::default(), PeerGate::new(1));
        status.has_joined.store(true, Ordering::Release);
        let connects = comes_back(&status);
        gate.set_knows_wanted();
        assert!(status.knows_nodes_since(connects));
        assert_eq!(
            gating.look(0, PATIENCE_MS, &status, &gate),
            Some(Turn::Opened)
        );
        (gating, status, gate)
    }

    fn state(gate: &PeerGate) -> (bool, bool) {
        (gate.is_open(), gate.knows_wanted())
    }

    #[test]
    fn who_hears_nothing_forgets_what_others_want_after_the_patience() {
        let (gating, status, gate) = joined();
        status.way_is_lost();
        assert_eq!(gating.look(10, PATIENCE_MS, &status, &gate), None);
        assert_eq!(state(&gate), (true, true), "it may be back soon");
        let turn = gating.look(10 + PATIENCE_MS, PATIENCE_MS, &status, &gate);
        assert_eq!((turn, state(&gate)), (Some(Turn::Shut), (false, false)));
    }

    /// What others want may have changed meanwhile.
    #[test]
    fn who_is_back_sends_when_it_has_read_what_others_want() {
        let (gating, status, gate) = joined();
        status.way_is_lost();
        gating.look(10, PATIENCE_MS, &status, &gate);
        gating.look(10 + PATIENCE_MS, PATIENCE_MS, &status, &gate);
        let connects = comes_back(&status);
        assert_eq!(gating.look(2_000, PATIENCE_MS, &status, &gate), None);
        assert_eq!(state(&gate), (false, false), "it has not read it");
        gate.set_knows_wanted();
        assert!(status.knows_nodes_since(connects));
        let turn = gating.look(2_010, PATIENCE_MS, &status, &gate);
        assert_eq!((turn, state(&gate)), (Some(Turn::Opened), (true, true)));
    }

    #[test]
    fn what_was_read_before_the_way_was_lost_is_not_known() {
        let (gating, status, gate) = joined();
        let connects = status.connects.get();
        status.way_is_lost();
        assert!(!status.knows_nodes_since(connects), "it is away");
        comes_back(&status);
        assert!(!status.knows_nodes_since(connects), "that was before");
        assert!(!status.may_send());
        gating.look(10, PATIENCE_MS, &status, &gate);
        gating.look(10 + PATIENCE_MS, PATIENCE_MS, &status, &gate);
        assert_eq!(state(&gate), (false, false));
    }

    /// It was cut off before its gate was open.
    #[test]
    fn who_is_cut_off_when_it_has_just_joined_forgets_it_too() {
        let (gating, status, gate) = (Gating::default(), Status::default(), PeerGate::new(1));
        status.has_joined.store(true, Ordering::Release);
        comes_back(&status);
        gate.set_knows_wanted();
        status.way_is_lost();
        gating.look(10, PATIENCE_MS, &status, &gate);
        gating.look(10 + PATIENCE_MS, PATIENCE_MS, &status, &gate);
        assert_eq!(state(&gate), (false, false));
    }

    /// It hears what others want, and goes by that.
    #[test]
    fn while_nats_takes_no_messages_it_is_known_what_others_want() {
        let (gating, status, gate) = joined();
        status.is_stalled.store(true, Ordering::Release);
        gating.look(10, PATIENCE_MS, &status, &gate);
        let turn = gating.look(10 + PATIENCE_MS, PATIENCE_MS, &status, &gate);
        assert_eq!((turn, state(&gate)), (Some(Turn::Shut), (false, true)));
    }

    #[test]
    fn who_lacks_a_right_sends_nothing_and_forgets_what_others_want() {
        let (gating, status, gate) = joined();
        let right = Right::refused_by("Permissions Violation for Subscription to \"a\"");
        status.rights.is_refused(right.expect("a right"));
        assert!(!status.may_send());
        assert_eq!(gating.look(10, PATIENCE_MS, &status, &gate), None);
        gating.look(10 + PATIENCE_MS, PATIENCE_MS, &status, &gate);
        assert_eq!(state(&gate), (false, false));
    }

    /// It would take all others for gone.
    #[test]
    fn who_is_deaf_sends_nothing() {
        let (gating, status, gate) = joined();
        status.conditions.set_deaf(Some("a".to_owned()));
        assert_eq!(gating.look(10, PATIENCE_MS, &status, &gate), None);
        gating.look(10 + PATIENCE_MS, PATIENCE_MS, &status, &gate);
        assert_eq!(state(&gate), (false, false));
    }
}
