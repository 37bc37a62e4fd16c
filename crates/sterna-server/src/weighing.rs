//! What rules would take from sessions, found out before they are in force.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use sterna_broker::{Broker, LostRights};

use crate::bans::Bans;
use crate::mail::Mail;
use crate::policy::Policy;
use crate::rights::InForce;
use crate::session::SessionState;

/// Places of sessions that a shard looks at before it goes on with other work.
const SLOTS_AT_ONCE: usize = 1_024;
/// Time after which a shard that has not answered is left out.
const MOST: Duration = Duration::from_secs(60);

/// A letter that a shard passes on to itself until it has looked at all its sessions.
#[derive(Debug)]
pub struct Weighing {
    policy: Arc<Policy>,
    from: usize,
    lost: LostRights,
    tell: Sender<LostRights>,
}

impl Weighing {
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
        // Nobody may wait any more.
        let _ = self.tell.send(self.lost);
        None
    }
}

fn add(sum: &mut LostRights, more: LostRights) {
    sum.subscriptions += more.subscriptions;
    sum.sessions += more.sessions;
}

/// Asks all shards what a policy would take, by letters that `post` posts to each. Waits for their answers.
pub(crate) fn weigh(policy: &Arc<Policy>, post: impl FnOnce(&dyn Fn() -> Mail)) -> LostRights {
    let (tell, told) = channel();
    let letter = || {
        Mail::Weigh(Box::new(Weighing {
            policy: Arc::clone(policy),
            from: 0,
            lost: LostRights::default(),
            tell: tell.clone(),
        }))
    };
    post(&letter);
    drop(tell);
    let until = Instant::now() + MOST;
    let mut lost = LostRights::default();
    while let Ok(of_shard) = told.recv_timeout(until.saturating_duration_since(Instant::now())) {
        add(&mut lost, of_shard);
    }
    lost
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
