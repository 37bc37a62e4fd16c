//! Counts what rules would take from sessions, before they are in force.

use std::fmt;
use std::sync::Arc;

use sterna_broker::{Broker, LostRights};

use crate::bans::Bans;
use crate::policy::Policy;
use crate::rights::InForce;
use crate::session::SessionState;

/// Places of sessions that a shard looks at before it goes on with other work.
const SLOTS_AT_ONCE: usize = 1_024;

/// A letter that a shard passes on to itself until it has looked at all its sessions.
pub struct Weighing {
    policy: Arc<Policy>,
    from: usize,
    lost: LostRights,
    tell: Tell,
}

/// Takes the count of a shard.
type Tell = Arc<dyn Fn(LostRights) + Send + Sync>;

impl fmt::Debug for Weighing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Weighing")
            .field("from", &self.from)
            .field("lost", &self.lost)
            .finish_non_exhaustive()
    }
}

impl Weighing {
    /// A letter to a shard about a policy. The shard's count goes to `tell`.
    pub(crate) fn new(policy: &Arc<Policy>, tell: &Tell) -> Self {
        Self {
            policy: Arc::clone(policy),
            from: 0,
            lost: LostRights::default(),
            tell: Arc::clone(tell),
        }
    }

    /// Looks at some sessions. Returns the letter for the rest; `None` once all are counted and told.
    pub(crate) fn go_on(
        mut self: Box<Self>,
        broker: &Broker<SessionState>,
        bans: &Arc<Bans>,
    ) -> Option<Box<Self>> {
        let rights = InForce::of(&self.policy, bans);
        let (lost, next) = broker.losses_by(&*rights, self.from, SLOTS_AT_ONCE);
        add(&mut self.lost, lost);
        if let Some(next) = next {
            self.from = next;
            return Some(self);
        }
        (self.tell)(self.lost);
        None
    }
}

/// Adds the count of a shard.
pub(crate) const fn add(sum: &mut LostRights, more: LostRights) {
    sum.subscriptions += more.subscriptions;
    sum.sessions += more.sessions;
}

/// The count as a sentence; `None` where nothing is lost.
pub(crate) fn said(lost: LostRights) -> Option<String> {
    let LostRights {
        subscriptions,
        sessions,
    } = lost;
    let many = |number: u64, what: &str| {
        let end = if number == 1 { "" } else { "s" };
        format!("{number} {what}{end}")
    };
    (subscriptions > 0).then(|| {
        let (subscriptions, sessions) = (
            many(subscriptions, "subscription"),
            many(sessions, "session"),
        );
        format!("{subscriptions} of {sessions} lost their right")
    })
}
