//! The end of subscriptions: of one session (MQTT 5.0, section 3.10), or of everybody at once.
//!
//! Ending everybody's asks each shard for its own sessions. A session that is on its way between shards is
//! found by its place in the index. The shard to which it comes notes which subscription has ended, and
//! removes it when the session is there. A shard that a session has left passes the letter on, so it always
//! arrives.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::Broker;
use crate::api::{DoorState, Event, SessionKey};
use crate::filter::Filter;
use crate::mail::{Letter, Returned};
use crate::nodes::NIL;
use crate::records::{self, Kind};
use crate::route::RouteUpdate;
use crate::session::State;

impl<P: DoorState> Broker<P> {
    /// Removes a subscription; false where there was none. Messages that are queued because of it stay. Messages of
    /// a shared subscription that were not yet sent go to its other members. [MQTT-3.10.4-1] [MQTT-3.10.4-2]
    /// [MQTT-3.10.4-3] [MQTT311-3.10.4-3]
    pub fn unsubscribe(&mut self, now_ms: u64, session: SessionKey, filter: &str) -> bool {
        if self.queues.active_mut(session).is_none() {
            return false;
        }
        let existed = self.remove_subscription(session.slot, filter);
        self.finish(now_ms);
        existed
    }

    /// Ends the subscriptions of all sessions on all shards whose filter is exactly this one. It also ends shared
    /// subscriptions to this filter, whatever their share names are. Subscriptions of sessions on other shards end
    /// when the mail arrives. Each consumer is told ([`Event::Unsubscribed`]). Returns how many sessions and shared
    /// subscriptions had the filter.
    ///
    /// Kept queues ([`SubscribeOptions::keep`](crate::SubscribeOptions::keep)) stay, with all their
    /// members: they are there for their own sake, and lose nothing because a topic ends. A filter
    /// that is a shared subscription's (`$share/…`), or not valid, is nobody's.
    pub fn unsubscribe_all(&mut self, now_ms: u64, filter: &str) -> usize {
        let parsed = Filter::parse(filter, &self.queues.limits);
        if parsed.is_none_or(|parsed| parsed.shared) {
            return 0;
        }
        self.catch_up();
        let subscribers = self.index.subscribers(filter);
        let count = subscribers.sessions.len() + subscribers.groups.len();
        for group in subscribers.groups {
            if let Some(home) = self.index.home(group) {
                self.send(home, Letter::Disband { group });
            }
        }
        self.end_subscriptions(&Arc::from(filter), subscribers.sessions);
        self.finish(now_ms);
        count
    }

    /// Ends the shared subscription of all members of a group of this shard.
    pub(super) fn disband(&mut self, group: u32) {
        let Some(group) = self.queues.groups.get(&group) else {
            return;
        };
        if group.is_kept {
            return;
        }
        let filter = Arc::clone(&group.filter);
        let members = group.members.iter().map(|&(member, _)| member).collect();
        self.end_subscriptions(&filter, members);
    }

    /// Ends the subscriptions of those sessions to a filter, here, and by mail where the index says
    /// that they are elsewhere.
    pub(super) fn end_subscriptions(&mut self, filter: &Arc<str>, subscribers: Vec<u32>) {
        let mut elsewhere: FxHashMap<u16, Vec<u32>> = FxHashMap::default();
        for subscriber in subscribers {
            let Some(place) = self.index.place(subscriber) else {
                continue;
            };
            if place.shard != self.shard {
                elsewhere.entry(place.shard).or_default().push(subscriber);
                continue;
            }
            let Some(session) = self.queues.session(place.slot, place.generation) else {
                continue; // it has ended
            };
            if session.is_root() {
                // It ends with its members.
            } else if session.state == State::Claiming {
                let ended = &mut session.rare_mut().ended_filters;
                // So there are never more than the session has subscriptions.
                if !ended.contains(filter) {
                    ended.push(Arc::clone(filter));
                }
            } else if self.remove_subscription(place.slot, filter) {
                self.tell_unsubscribed(place.slot);
            }
        }
        for (shard, subscribers) in elsewhere {
            let filter = Arc::clone(filter);
            self.send(
                shard,
                Letter::Unsubscribe {
                    filter,
                    subscribers,
                },
            );
        }
    }

    /// Ends what has ended for everybody while a session was on its way here. Returns whether it had
    /// any of it.
    pub(super) fn end_noted_subscriptions(&mut self, slot: u32) -> bool {
        let session = &mut self.queues.sessions[slot];
        let ended = session.rare.as_mut().map(|rare| &mut rare.ended_filters);
        let mut existed = false;
        for filter in ended.map(std::mem::take).unwrap_or_default() {
            existed |= self.remove_subscription(slot, &filter);
        }
        existed
    }

    /// Tells a session's consumer, if it has one, that subscriptions have ended.
    pub(super) fn tell_unsubscribed(&mut self, slot: u32) {
        let session = &self.queues.sessions[slot];
        if let Some(consumer) = session.consumer().filter(|_| !session.is_root()) {
            let session = session.key(slot);
            self.events
                .push_back(Event::Unsubscribed { consumer, session });
        }
    }

    /// Removes a subscription of a session of this shard.
    pub(super) fn remove_subscription(&mut self, slot: u32, filter: &str) -> bool {
        let session = &mut self.queues.sessions[slot];
        let id = session.subscriber;
        let Some((filter, subscription)) = session.subscriptions.remove(filter) else {
            return false;
        };
        (self.queues.work).forget_lookups((slot, session.generation), &filter);
        if session.is_stored {
            let change =
                records::remove(Kind::Subscription, session.name.text(), filter.as_bytes());
            self.queues.changes.push(change);
        }
        self.queues.counters.unsubscribed(subscription.group);
        self.directory.remove_subscription();
        self.queues.sessions.charge_filter(slot, &filter, true);
        let group = subscription.group;
        if group == NIL {
            let text = Arc::clone(&filter);
            let (position, _) = self.edit_log(|log| {
                log.push(RouteUpdate::Unsubscribed { id, filter });
                log.position
            });
            self.queues.note_past(slot, &text, subscription, position);
        } else {
            let given_back = self.unsent_of_group(slot, group);
            self.give_back(given_back);
            let flags = subscription.flags;
            self.edit_log(|log| log.leave_group(&filter, group, id, flags));
            self.drop_share(slot, group);
        }
        true
    }

    /// Takes what a group has assigned to a session and isn't sent yet out of its queue.
    pub(super) fn unsent_of_group(&mut self, slot: u32, group: u32) -> Vec<(u32, Returned)> {
        let queues = &mut self.queues;
        let mut unsent = Vec::new();
        let mut node = queues.sessions[slot].pending.first();
        while node != NIL {
            let next = queues.nodes.next(node);
            if queues
                .nodes
                .entry(node)
                .is_some_and(|entry| entry.group == group)
                && let Some(entry) = queues.remove_pending(slot, node)
            {
                unsent.extend(Returned::of(entry));
            }
            node = next;
        }
        unsent
    }
}
