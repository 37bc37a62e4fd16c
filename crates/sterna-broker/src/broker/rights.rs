//! Rights that are asked again: of sessions, subscriptions and what waits in queues.
//!
//! A subscription that may get only some of what it matches has a [`Permit`] in its route's context. Every
//! shard's index leaves the route out for topics that are not permitted. It remembers that with the topic's
//! other matches, so each topic is decided once until its routes change. When other rules come, each shard
//! makes the routes of its sessions anew, which outdates what was remembered.
//!
//! A session that moves between shards may miss the moment at which one of them judges its sessions. So
//! each session has the number of the rules by which it was judged. It is judged where it arrives.

use std::sync::Arc;

use super::Broker;
use super::rest::with;
use crate::api::{DoorState, EvictReason, SessionKey};
use crate::mail::Returned;
use crate::message::Message;
use crate::nodes::{NIL, Phase};
use crate::rights::{Endpoint, Holder, Permit, Right, Rights};
use crate::route::{Context, topics_of_shared};
use crate::session::{BrokerSession, State, Subscription};

/// How long rights that came with a client hold for its will, after its connection has ended. They end by then, whatever
/// the delay of the will, for a client chooses that.
pub(super) const GIVEN_MS: u64 = 24 * 60 * 60 * 1_000;

impl<P: DoorState> Broker<P> {
    /// Judges one session that is not packed. One that is on its way is judged where it arrives.
    pub(super) fn judge_slot(&mut self, now_ms: u64, slot: u32) {
        let Some(session) = self.queues.sessions.get(slot) else {
            return;
        };
        if session.state != State::Active {
            return;
        }
        if !self.is_admitted(slot) && session.is_connected() {
            self.evict_consumer(now_ms, slot, EvictReason::Administrative);
            let lasts = self.queues.sessions[slot].expiry_s > 0;
            self.leave(now_ms, slot);
            if !lasts {
                return;
            }
        }
        self.judge_and_tell(now_ms, slot, true);
        self.let_will_go(now_ms, slot);
    }

    fn judge_and_tell(&mut self, now_ms: u64, slot: u32, is_by_rules: bool) {
        if self.judge_session(now_ms, slot, is_by_rules) {
            self.tell_lost_right(slot);
        }
    }

    /// Judges a session that was just opened, unless that was done by the rules in force.
    pub(super) fn judge_opened(&mut self, now_ms: u64, session: SessionKey) {
        self.judge_attended(now_ms, session, false);
    }

    fn judge_attended(&mut self, now_ms: u64, session: SessionKey, is_asked: bool) {
        let known = self.queues.attended(session);
        let Some(known) = known.filter(|known| known.state == State::Active) else {
            return;
        };
        let is_by_rules = known.judged_by != self.rights_version;
        if is_asked || is_by_rules || self.varies(known) {
            self.judge_and_tell(now_ms, session.slot, is_by_rules);
            self.finish(now_ms);
        }
    }

    /// Notes from where the client of a session speaks, for rules that look at it. A session that is here and
    /// whose client has come from elsewhere is judged again ([`judge`](Self::judge)).
    pub fn set_endpoint(&mut self, now_ms: u64, session: SessionKey, endpoint: Endpoint) {
        let Some(known) = self.queues.attended_mut(session) else {
            return;
        };
        if known.state != State::Active || known.endpoint() == Some(endpoint) {
            return;
        }
        known.rare_mut().endpoint = Some(endpoint);
        self.judge_and_tell(now_ms, session.slot, false);
        self.finish(now_ms);
    }

    /// Judges a session again although the rules are the same. Its client has come back, and other things may be
    /// said of it.
    pub fn judge_again(&mut self, now_ms: u64, session: SessionKey) {
        self.judge_attended(now_ms, session, true);
    }

    /// The user whose session it is; `None` for nobody in particular.
    #[must_use]
    pub fn owner(&self, session: SessionKey) -> Option<&str> {
        self.queues.attended(session)?.name.user()
    }

    /// Judges a session that has come from another shard, unless that has done so. Returns whether it
    /// has lost a subscription.
    pub(super) fn judge_arrived(&mut self, now_ms: u64, slot: u32) -> bool {
        let session = &self.queues.sessions[slot];
        let is_by_rules = session.judged_by != self.rights_version;
        (is_by_rules || self.varies(session)) && self.judge_session(now_ms, slot, is_by_rules)
    }

    /// Whether there still is the user whose session it is.
    pub(super) fn is_admitted(&self, slot: u32) -> bool {
        self.admits(&self.queues.sessions[slot])
    }

    pub(super) fn admits(&self, session: &BrokerSession<P>) -> bool {
        let rights = self.rights.as_ref().filter(|_| !session.is_root());
        rights.is_none_or(|rights| Self::of_holder(session, |holder| rights.admits(holder)))
    }

    /// The right of a session to a filter, as a subscription's context keeps it; `None` where it may get nothing.
    pub(super) fn permit(&self, slot: u32, filter: &str) -> Option<Permitted> {
        self.permit_now(slot, filter, |rights, holder, topics, queue| {
            rights.reads(holder, topics, queue)
        })
    }

    /// The same by the rules in force, as `ask` asks for it.
    fn permit_now(
        &self,
        slot: u32,
        filter: &str,
        ask: impl FnOnce(&dyn Rights, Holder<'_>, &str, Option<&str>) -> Right,
    ) -> Option<Permitted> {
        let session = &self.queues.sessions[slot];
        let Some(rights) = self.rights.as_ref().filter(|_| !session.is_root()) else {
            return Some(None);
        };
        self.permit_by(&**rights, session, filter, ask)
    }

    pub(super) fn permit_by(
        &self,
        rights: &dyn Rights,
        session: &BrokerSession<P>,
        filter: &str,
        ask: impl FnOnce(&dyn Rights, Holder<'_>, &str, Option<&str>) -> Right,
    ) -> Option<Permitted> {
        let (topics, queue) = match filter.strip_prefix("$share/") {
            None => (filter, None),
            Some(rest) => {
                let name = rest.split_once('/').map(|(name, _)| name);
                let queue = name.filter(|_| self.directory.keeps_queue(filter));
                (topics_of_shared(filter), queue)
            }
        };
        match Self::of_holder(session, |holder| ask(rights, holder, topics, queue)) {
            Right::Nothing => None,
            Right::Everything => Some(None),
            Right::Some(permit) => Some(Some(permit)),
        }
    }

    /// Judges the subscriptions of a session that is here, and has what it has waiting judged. Returns whether a
    /// subscription has lost its right.
    ///
    /// Where the rules have changed, the rights of a session that is away begin and end where the log was then: it is
    /// judged a while later.
    pub(super) fn judge_session(&mut self, now_ms: u64, slot: u32, is_by_rules: bool) -> bool {
        let from = (is_by_rules && self.is_asleep(slot)).then_some(self.judging.position);
        let since_ms = self.judging.since_ms.filter(|_| from.is_some());
        let since_ms = since_ms.unwrap_or(now_ms);
        let is_admitted = self.is_admitted(slot);
        let session = &mut self.queues.sessions[slot];
        session.judged_by = self.rights_version;
        let subscriptions: Vec<(Arc<str>, Subscription)> =
            session.subscriptions.iter().cloned().collect();
        let mut has_lost = false;
        for (filter, mut subscription) in subscriptions {
            let is_resting = subscription.is_resting();
            let is_by_rules = subscription.rest().is_some_and(|rest| rest.is_by_rules);
            let permit = self.permit_now(slot, &filter, |rights, holder, topics, queue| {
                if !is_admitted {
                    Right::Nothing
                } else if is_resting && !is_by_rules {
                    rights.reads_again(holder, topics, queue)
                } else {
                    rights.still_reads(holder, topics, queue)
                }
            });
            let Some(permit) = permit else {
                if !is_resting {
                    let by_rules =
                        self.permit_now(slot, &filter, |rights, holder, topics, queue| {
                            if rights.denies_whatever(holder, topics, queue) {
                                Right::Nothing
                            } else {
                                Right::Everything
                            }
                        });
                    let date = (since_ms, from, by_rules.is_none());
                    self.put_to_rest(date, slot, &filter, &subscription);
                    has_lost = true;
                }
                continue;
            };
            if is_resting {
                self.begin_again((now_ms, from), slot, &filter, (&subscription, permit));
                continue;
            }
            if permit.is_none() && permit_of(subscription.context.as_ref()).is_none() {
                continue;
            }
            let rest = subscription.rest();
            subscription.context = with(subscription.context.as_deref(), permit, rest);
            let is_shared = subscription.group != NIL;
            // It is there already, so no limit forbids it.
            self.add_routes(slot, &filter, is_shared, subscription, None);
        }
        self.judge_queue(slot);
        has_lost
    }

    /// Has messages judged that a session may not get any more, when it is their turn. They wait for it, or were sent and
    /// not settled. Messages of a shared subscription that wait go back to it.
    fn judge_queue(&mut self, slot: u32) {
        let session = &self.queues.sessions[slot];
        let (mut node, mut sent) = (session.pending.first(), session.ledger.first());
        let mut given_back = Vec::new();
        while node != NIL {
            let next = self.queues.nodes.next(node);
            let is_own = self.have_judged(node);
            if !is_own
                && !self.may_have(slot, node)
                && let Some(entry) = self.queues.remove_pending(slot, node)
            {
                self.queues.forget_stored(slot, &entry);
                self.queues.note_owed(slot, &entry, false);
                given_back.extend(Returned::of(entry));
            }
            node = next;
        }
        self.give_back(given_back);
        // It would be sent again on the next connection.
        while sent != NIL {
            self.have_judged(sent);
            sent = self.queues.nodes.next(sent);
        }
    }

    /// Has an entry judged when it is its turn. Returns whether it is of the session's own subscriptions.
    fn have_judged(&mut self, node: u32) -> bool {
        let entry = self.queues.nodes.entry_mut(node);
        entry.is_some_and(|entry| {
            entry.is_to_be_judged = true;
            entry.group == NIL
        })
    }

    /// Whether a session may have what lies in its queue or ledger.
    pub(super) fn may_have(&self, slot: u32, node: u32) -> bool {
        let Some(entry) = self.queues.nodes.entry(node) else {
            return true;
        };
        let Some(message) = entry
            .message
            .as_ref()
            .filter(|_| entry.phase != Phase::HandedOver)
        else {
            return true;
        };
        if entry.group == NIL {
            return self.receives(slot, message.topic());
        }
        let mut subscriptions = self.queues.sessions[slot].subscriptions.iter();
        let of_group = subscriptions.find(|(_, known)| known.group == entry.group);
        of_group.is_some_and(|(_, known)| {
            let context = known.context.as_ref();
            context.is_none_or(|context| context.permits(message.topic()))
        })
    }

    /// Whether a session may have messages of a topic in its own queue.
    pub(super) fn receives(&self, slot: u32, topic: &str) -> bool {
        let session = &self.queues.sessions[slot];
        // The members of a root are who gets it.
        let rights = self.rights.as_ref().filter(|_| !session.is_root());
        rights
            .is_none_or(|rights| Self::of_holder(session, |holder| rights.receives(holder, topic)))
    }

    /// Asks about the holder of a session.
    pub(super) fn of_holder<R>(session: &BrokerSession<P>, ask: impl FnOnce(Holder<'_>) -> R) -> R {
        ask(Holder {
            client_id: session.name.id(),
            owner: session.name.user(),
            endpoint: session.endpoint(),
        })
    }

    fn varies(&self, session: &BrokerSession<P>) -> bool {
        (self.rights.as_ref())
            .is_some_and(|rights| Self::of_holder(session, |holder| rights.varies(holder)))
    }

    /// Whether a session's will may be published.
    pub(super) fn may_publish_will(&self, now_ms: u64, slot: u32) -> bool {
        let session = &self.queues.sessions[slot];
        (session.will.as_ref()).is_none_or(|will| {
            let is_given = will
                .given_until_ms
                .is_some_and(|until_ms| now_ms < until_ms);
            Self::of_holder(session, |holder| {
                self.permits_will(holder, &will.message, is_given.then_some(now_ms))
            })
        })
    }

    /// Whether a holder's will may be published. Rights that came with the client hold at `given_ms`, which is the
    /// present; `None` if they do not.
    pub(super) fn permits_will(
        &self,
        holder: Holder<'_>,
        will: &Message,
        given_ms: Option<u64>,
    ) -> bool {
        (self.rights.as_ref()).is_none_or(|rights| {
            rights.admits(holder)
                && match given_ms {
                    Some(now_ms) => rights.still_publishes(holder, will, now_ms),
                    None => rights.publishes(holder, will),
                }
        })
    }
}

/// The permit of a subscription; `None` where it gets everything.
pub(super) type Permitted = Option<Arc<dyn Permit>>;

fn permit_of(context: Option<&Arc<Context>>) -> Option<&Arc<dyn Permit>> {
    context?.permit.as_ref()
}
