//! Subscriptions without a right. They rest, and get nothing until the right is back: see [`Rest`].
//!
//! A right that goes ends the subscription where the log was then, and one that comes back begins it where the log is.
//! For a session that is away, both are where the log was when the rules changed. So the subscription does not get what was
//! published meanwhile. Messages from before are the session's, and are
//! judged when it is their turn. A shared subscription keeps its member, and so its queue.
//!
//! Rules may be wrong for a moment. So this takes nothing away for good, and is kept over a restart.

use std::sync::Arc;

use super::Broker;
use super::rights::Permitted;
use crate::api::{DoorState, Event, Outcome};
use crate::filter::Filter;
use crate::losses::LossReason;
use crate::mail::Letter;
use crate::message::Qos;
use crate::nodes::{NIL, Phase};
use crate::queues::Queues;
use crate::records::{self, Kind};
use crate::rights::Rights;
use crate::route::{Context, Rest};
use crate::session::{NEVER_MS, State, Subscription};
use crate::will::Wait;

/// Rights that rules would take from sessions.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct LostRights {
    /// Subscriptions that would get nothing any more.
    pub subscriptions: u64,
    /// Sessions that have them.
    pub sessions: u64,
}

impl<P> Queues<P> {
    /// Has the last message of a session's queue judged when it is its turn. One that was sent at QoS 2 is completed.
    pub(super) fn judge_last(&mut self, slot: u32, was_sent: bool) {
        let last = self.sessions[slot].pending.last();
        if let Some(entry) = self.nodes.entry_mut(last) {
            entry.is_to_be_judged = !(was_sent && entry.qos == Qos::ExactlyOnce);
        }
    }
}

impl<P: DoorState> Broker<P> {
    /// Finds out what rules would take from the sessions of this shard, which are not in force. Looks at up to `slots`
    /// places of sessions from one on. Returns also the place to go on with; `None` at the end.
    #[must_use]
    pub fn losses_by(
        &self,
        rights: &dyn Rights,
        from: usize,
        slots: usize,
    ) -> (LostRights, Option<usize>) {
        let all = &self.queues.sessions;
        let until = all.capacity().min(from.saturating_add(slots));
        let mut lost = LostRights::default();
        for at in from..until {
            let of_session = all.look(at as u32, |session| {
                if session.is_root() || session.state != State::Active {
                    return 0;
                }
                let is_admitted = Self::of_holder(session, |holder| rights.admits(holder));
                let subscriptions = session.subscriptions.iter();
                let lost = subscriptions.filter(|(filter, known)| {
                    let still = || {
                        self.permit_by(rights, session, filter, |rights, holder, topics, queue| {
                            rights.still_reads(holder, topics, queue)
                        })
                    };
                    !known.is_resting() && (!is_admitted || still().is_none())
                });
                lost.count() as u64
            });
            let subscriptions = of_session.unwrap_or(0);
            lost.subscriptions += subscriptions;
            lost.sessions += u64::from(subscriptions > 0);
        }
        (lost, (until < all.capacity()).then_some(until))
    }

    /// A subscription has lost its right, at a time and a position of the log; `None` for its end. It is by rules alone
    /// where they take it whatever is said of the client.
    pub(super) fn put_to_rest(
        &mut self,
        (since_ms, from, is_by_rules): (u64, Option<u64>, bool),
        slot: u32,
        filter: &Arc<str>,
        known: &Subscription,
    ) {
        let group = known.group;
        if group != NIL {
            let session = &mut self.queues.sessions[slot];
            if session.is_connected() {
                session.rare_mut().has_resting_group = true;
                let (member, attendance) = (session.subscriber, session.attendance);
                if let Some(home) = self.index.home(group) {
                    let detach = Letter::Detach {
                        group,
                        member,
                        attendance,
                    };
                    self.send(home, detach);
                }
            }
            // After that, so that none of it comes back here.
            let unsent = self.unsent_of_group(slot, group);
            self.give_back(unsent);
            self.drop_share(slot, group);
        }
        let rest = Rest {
            since_ms,
            length: None,
            is_over: false,
            is_by_rules,
        };
        let context = with(known.context.as_deref(), None, Some(rest));
        let resting = Subscription {
            context,
            ..known.clone()
        };
        // It is there already, so no limit forbids it.
        let length = self.add_routes(slot, filter, group != NIL, resting, from);
        // Where it was a while ago, the time tells what has changed since.
        if let Some(length) = length.filter(|_| from.is_none()) {
            let rest = Rest {
                length: Some(length),
                ..rest
            };
            self.set_rest(slot, filter, Some(rest));
        }
        self.queues.counters.rights_lost += 1;
    }

    /// The right of a subscription is back: it begins at a position of the log, `None` for its end.
    pub(super) fn begin_again(
        &mut self,
        (now_ms, from): (u64, Option<u64>),
        slot: u32,
        filter: &Arc<str>,
        (known, permit): (&Subscription, Permitted),
    ) {
        let rest = known.rest().map(|rest| Rest {
            is_over: true,
            ..rest
        });
        // A queue has no retained messages (section 4.8.2).
        let rest = rest.filter(|_| known.group == NIL);
        let since = self.forget_last_past(slot, filter);
        let context = with(known.context.as_deref(), permit, rest);
        let awake = Subscription {
            context,
            ..known.clone()
        };
        let is_shared = known.group != NIL;
        self.add_routes(slot, filter, is_shared, awake, from);
        if let Some(since) = since {
            self.begin_at(slot, filter, since);
        }
        self.queues.counters.rights_returned += 1;
        let session = &self.queues.sessions[slot];
        if !session.is_connected() {
            return;
        }
        if is_shared {
            let held = self.held_of_group(slot, known.group);
            self.attend_group(slot, known.group, held);
        }
        self.send_changed(now_ms, slot);
    }

    /// Where a session has as many subscriptions that have ended as it may have, the right of the last one of a filter
    /// was never gone: rules that are wrong again and again add no end of them. Returns since when it was there.
    fn forget_last_past(&mut self, slot: u32, filter: &str) -> Option<u64> {
        let limit = self.queues.limits.subscriptions_per_session;
        let session = &mut self.queues.sessions[slot];
        let others = session.subscriptions.len();
        let reader = session.reader.as_mut()?;
        if reader.past.len() + others < limit {
            return None;
        }
        let of_filter = reader.past.iter().enumerate();
        let of_filter = of_filter.filter(|(_, past)| *past.filter == *filter);
        let (at, _) = of_filter.max_by_key(|(_, past)| past.until)?;
        let past = reader.past.remove(at);
        if session.is_stored {
            let change = records::remove(Kind::Past, session.name.text(), &past.key());
            self.queues.changes.push(change);
        }
        Some(past.since)
    }

    /// Has a subscription begin at an earlier position.
    fn begin_at(&mut self, slot: u32, filter: &Arc<str>, since: u64) {
        let session = &mut self.queues.sessions[slot];
        if let Some(reader) = &mut session.reader {
            reader.begin(filter, since);
        }
        self.store_subscription(slot, filter);
    }

    /// Gathers the record of a subscription.
    fn store_subscription(&mut self, slot: u32, filter: &Arc<str>) {
        let session = &self.queues.sessions[slot];
        let since = (session.reader.as_ref()).map_or(0, |reader| reader.since(filter));
        if let Some(known) = session.subscriptions.get(&**filter)
            && session.is_stored
        {
            let (rest, value) = (filter.as_bytes(), known.stored(since).encode());
            let change = records::put(Kind::Subscription, session.name.text(), rest, value);
            self.queues.changes.push(change);
        }
    }

    /// Notes the absence of a subscription's right, on the session's side.
    fn set_rest(&mut self, slot: u32, filter: &str, rest: Option<Rest>) {
        let session = &mut self.queues.sessions[slot];
        if let Some(known) = session.subscriptions.get_mut(filter) {
            let context = known.context.as_deref();
            let permit = context.and_then(|context| context.permit.clone());
            known.context = with(context, permit, rest);
        }
    }

    /// The number of a group's messages that a session was sent and has not settled.
    fn held_of_group(&self, slot: u32, group: u32) -> u32 {
        let mut held = 0;
        let ledger = self.queues.sessions[slot].ledger;
        self.queues
            .nodes
            .each(ledger, |entry| held += u32::from(entry.group == group));
        held
    }

    /// Sends a session that has its consumer the retained messages that changed while subscriptions had no right.
    pub(super) fn send_changed(&mut self, now_ms: u64, slot: u32) {
        let session = &self.queues.sessions[slot];
        let rested = session.subscriptions.iter().filter_map(|(filter, known)| {
            let rest = known.rest().filter(|rest| rest.is_over)?;
            Some((Arc::clone(filter), known.clone(), rest))
        });
        let rested: Vec<_> = rested.collect();
        for (filter, known, rest) in rested {
            self.set_rest(slot, &filter, None);
            self.store_subscription(slot, &filter);
            let limits = &self.queues.limits;
            if let Some(parsed) = Filter::parse(&filter, limits) {
                let session = &self.queues.sessions[slot];
                let known_retained = session.account.retained_messages as usize;
                let room = limits.retained_deliveries.saturating_sub(known_retained);
                let head = (rest, self.directory.head());
                let changed = (self.directory).retained_changed(
                    parsed.topics,
                    parsed.wild,
                    head,
                    now_ms,
                    room,
                );
                let flags = known.flags;
                let context = self.queues.sessions[slot].subscriptions.get(&*filter);
                let context = context.and_then(|known| known.context.clone());
                let options = (flags.qos(), flags.no_local());
                self.append_copies(now_ms, slot, changed, options, context.as_ref());
            }
        }
    }

    /// Tells a session's consumer, if it has one, that subscriptions have lost their right.
    pub(super) fn tell_lost_right(&mut self, slot: u32) {
        let session = &self.queues.sessions[slot];
        if let Some(consumer) = session.consumer().filter(|_| !session.is_root()) {
            let session = session.key(slot);
            self.events
                .push_back(Event::LostRight { consumer, session });
        }
    }

    /// The first message of a queue that the session may have. Others are dropped: they were published before their
    /// reader lost its right, and it is their turn before that is back.
    pub(super) fn first_permitted(&mut self, now_ms: u64, slot: u32) -> Option<(u32, Qos)> {
        loop {
            let (node, qos) = self.queues.first_pending(now_ms, slot)?;
            let entry = self.queues.nodes.entry_mut(node)?;
            if !std::mem::take(&mut entry.is_to_be_judged) || self.may_have(slot, node) {
                return Some((node, qos));
            }
            self.queues.drop_first(slot, LossReason::Forbidden);
        }
    }

    /// Judges what a session was sent and has not settled, before it is sent again to another consumer. A delivery
    /// at QoS 2 is completed.
    pub(super) fn judge_sent(&mut self, slot: u32) {
        let mut node = self.queues.sessions[slot].ledger.first();
        while node != NIL {
            let next = self.queues.nodes.next(node);
            let entry = self.queues.nodes.entry_mut(node);
            let is_asked = entry.is_some_and(|entry| {
                std::mem::take(&mut entry.is_to_be_judged)
                    && entry.phase == Phase::Sent
                    && (entry.qos != Qos::ExactlyOnce || entry.is_kept)
            });
            if is_asked && !self.may_have(slot, node) {
                let entry = self.queues.nodes.entry(node);
                let is_own = entry.is_none_or(|entry| entry.group == NIL);
                let message = entry.and_then(|entry| entry.message.clone());
                if is_own {
                    let reason = LossReason::Forbidden;
                    self.queues.lose(slot, message.as_deref(), reason);
                    self.settle_node(slot, node, Outcome::Accepted);
                } else {
                    self.settle_node(slot, node, Outcome::Released);
                }
            }
            node = next;
        }
    }

    /// A session's will is due. That of a user who is missing waits: for the user, or for the end of the session.
    pub(super) fn will_is_due(&mut self, now_ms: u64, slot: u32) {
        if self.queues.sessions[slot].expiry_s == 0 || self.is_admitted(slot) {
            return self.publish_due_will(now_ms, slot);
        }
        self.store_will(slot, Wait::Lost(now_ms));
        if let Some(will) = &mut self.queues.sessions[slot].will {
            will.due_ms = NEVER_MS;
        }
    }

    /// Publishes the will that has waited for a user who is back.
    pub(super) fn let_will_go(&mut self, now_ms: u64, slot: u32) {
        let session = &self.queues.sessions[slot];
        let waits = (session.will.as_ref()).is_some_and(|will| will.due_ms == NEVER_MS);
        if waits && session.is_away() && self.is_admitted(slot) {
            self.publish_due_will(now_ms, slot);
            self.queues.set_session_timer(slot);
        }
    }
}

/// A subscription's context with another permit and rest; `None` where there is nothing to keep.
pub(super) fn with(
    context: Option<&Context>,
    permit: Permitted,
    rest: Option<Rest>,
) -> Option<Arc<Context>> {
    let known = context.map(|context| {
        (
            context.identifiers.clone(),
            context.hint,
            context.attendance,
        )
    });
    let (identifiers, hint, attendance) = known.unwrap_or_default();
    let is_needed = !identifiers.is_empty() || hint != 0 || permit.is_some() || rest.is_some();
    is_needed.then(|| {
        Arc::new(Context {
            identifiers,
            hint,
            attendance,
            permit,
            rest,
        })
    })
}
