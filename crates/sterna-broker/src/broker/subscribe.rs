//! Subscriptions (MQTT 5.0, sections 3.8 and 3.10).

use std::sync::Arc;

use super::Broker;
use crate::api::{
    DoorState, RetainHandling, SessionKey, SubscribeError, SubscribeOptions, Subscribed,
};
use crate::attempts::Failures;
use crate::directory::Admission;
use crate::far_group::LONGEST_GROUP_BYTES;
use crate::filter::Filter;
use crate::message::{Message, Origin, Qos};
use crate::nodes::NIL;
use crate::queues::Item;
use crate::records::{self, Kind, SubscriptionRecord};
use crate::route::{Context, Place, RouteFlags, RouteUpdate};
use crate::selecting::Lookup;
use crate::session::Subscription;

/// Places of the tree of retained messages whose visit takes as long as the copy of a message into a queue.
const PLACES_PER_COPY: usize = 6;

impl<P: DoorState> Broker<P> {
    /// Adds or replaces a subscription. It is in force on all shards when this returns.
    ///
    /// # Errors
    /// When the filter is not valid or a limit forbids it.
    pub fn subscribe(
        &mut self,
        now_ms: u64,
        session: SessionKey,
        filter: &str,
        options: SubscribeOptions,
    ) -> Result<Subscribed, SubscribeError> {
        let parsed =
            Filter::parse(filter, &self.queues.limits).ok_or(SubscribeError::InvalidFilter)?;
        if parsed.shared && options.no_local {
            return Err(SubscribeError::NoLocalOnShared); // [MQTT-3.8.3-4]
        }
        if parsed.shared && self.peers.is_some() {
            if options.keep {
                return Err(SubscribeError::NoQueueInCluster);
            }
            if filter.len() > LONGEST_GROUP_BYTES {
                return Err(SubscribeError::InvalidFilter);
            }
        }
        let slot = session.slot;
        let limits = &self.queues.limits;
        let (limit, most_bytes) = (
            limits.subscriptions_per_session,
            limits.filter_bytes_per_session,
        );
        let session = self
            .queues
            .active_mut(session)
            .ok_or(SubscribeError::NoSession)?;
        let known = session
            .subscriptions
            .get_pair(filter)
            .map(|(text, known)| (Arc::clone(text), known.group));
        let existed = known.is_some();
        // Those that have ended and have messages in the log count, too: else there would be no end to them.
        let past = session.reader.iter().flat_map(|reader| &reader.past);
        let bytes = past.clone().map(|past| past.filter.len());
        let (past, past_bytes) = (past.count(), bytes.sum::<usize>());
        let filters = session.subscriptions.iter();
        let bytes = past_bytes + filters.map(|(filter, _)| filter.len()).sum::<usize>();
        let is_full = if existed {
            past >= limit || past_bytes >= most_bytes
        } else {
            session.subscriptions.len() + past >= limit || bytes + filter.len() > most_bytes
        };
        let attendance = session.attendance;
        let flags = RouteFlags::of(&SubscribeOptions {
            keep: options.keep && parsed.shared,
            ..options
        });
        let record = SubscriptionRecord {
            flags: flags.with_durable(session.reader.is_some()),
            since: 0,
            identifier: options.identifier,
            rest: None,
        };
        let known_record = session.subscriptions.get(filter);
        let is_same = known_record.is_some_and(|known| known.stored(0) == record);
        let lacks_room = session.is_stored && self.lacks_room();
        if lacks_room && !is_same {
            return Err(SubscribeError::StoreFull);
        }
        let permit = (self.permit(slot, filter)).ok_or(SubscribeError::NotAllowed)?;
        if !existed && self.is_too_much_for_peers(slot, filter) {
            return Err(SubscribeError::TooMany);
        }
        let principal = self.queues.sessions[slot].weight.principal;
        let admission = Admission::Limited;
        if is_full || (!existed && !self.directory.add_subscription(admission, principal)) {
            return Err(SubscribeError::TooMany);
        }
        let (text, group) = known.unwrap_or_else(|| (Arc::from(filter), NIL));
        let is_plain = options.identifier.is_none() && options.hint == 0 && permit.is_none();
        let context = (!is_plain).then(|| {
            Arc::new(Context {
                identifiers: options.identifier.into_iter().collect(),
                hint: options.hint,
                attendance,
                permit,
                rest: None,
            })
        });
        let subscription = Subscription {
            flags,
            group,
            context,
        };
        let gathered = self.queues.changes.len();
        let Some(length) = self.add_routes(slot, &text, parsed.shared, subscription, None) else {
            if !existed {
                self.directory.remove_subscription();
            }
            return Err(SubscribeError::TooMany);
        };
        if lacks_room && is_same {
            // The store has this very record, and repetitions would fill it.
            self.queues.changes.truncate(gathered);
        }
        let wanted = match options.retain_handling {
            // [MQTT-3.3.1-9] [MQTT-3.8.4-4] [MQTT311-3.3.1-6]
            RetainHandling::Always => true,
            RetainHandling::IfNew => !existed, // [MQTT-3.3.1-10]
            RetainHandling::Never => false,    // [MQTT-3.3.1-11]
        };
        let mut retained = 0;
        if parsed.shared {
            // No retained messages for shared subscriptions (section 4.8.2).
            let session = &self.queues.sessions[slot];
            if let Some(joined) = session.subscriptions.get(&*text).filter(|_| !existed) {
                let group = joined.group;
                self.attend_group(slot, group, 0);
            }
        } else if wanted {
            let lookup = Lookup {
                filter: Arc::clone(&text),
                length,
                options: (options.qos, options.no_local),
            };
            retained = self.append_retained(now_ms, slot, lookup, parsed.wild);
        }
        self.finish(now_ms);
        Ok(Subscribed {
            qos: options.qos,
            existed,
            retained,
        })
    }

    /// Enters a subscription into the session and the route log; returns the log's length. `since` is
    /// the position at which the subscription began, or its options changed; `None` where that is here. The result is
    /// `None` where the group has no place for another member.
    pub(super) fn add_routes(
        &mut self,
        slot: u32,
        filter: &Arc<str>,
        shared: bool,
        subscription: Subscription,
        since: Option<u64>,
    ) -> Option<u64> {
        let session = &self.queues.sessions[slot];
        let (known_subscriber, known_group) = (session.subscriber, subscription.group);
        let place = Place {
            shard: self.shard,
            slot,
            generation: session.generation,
        };
        let subscription = Subscription {
            flags: subscription.flags.with_durable(session.reader.is_some()),
            ..subscription
        };
        let old = session.subscriptions.get(&**filter).cloned();
        let old_flags = old.as_ref().map(|known| known.flags);
        let is_known = old.is_some();
        let (sleeps, is_resting) = (self.is_asleep(slot), subscription.is_resting());
        // Subscriptions that a store has were admitted before, whatever the limit was then.
        let member_limit = match since {
            Some(_) => usize::MAX,
            None => self.queues.limits.group_members,
        };
        let Subscription { flags, context, .. } = subscription.clone();
        let ((subscriber, group, position), length) = self.edit_log(|log| {
            let position = log.position;
            let mut id = known_subscriber;
            if id == NIL {
                id = log.take_id();
                log.push(RouteUpdate::Placed {
                    id,
                    place,
                    moved: false,
                });
            }
            let filter = Arc::clone(filter);
            if !shared && (sleeps || is_resting) {
                let is_kept = flags.qos().is_acknowledged() && !is_resting;
                log.push(RouteUpdate::Slept {
                    id,
                    filter,
                    is_kept,
                });
                return (id, Some(NIL), position);
            }
            if !shared {
                // [MQTT-3.8.4-3] [MQTT311-3.8.4-3]
                log.push(RouteUpdate::Subscribed {
                    id,
                    filter,
                    flags,
                    context,
                });
                return (id, Some(NIL), position);
            }
            let mut group = known_group;
            if group == NIL {
                let Some(joined) = log.join_group(&filter, member_limit) else {
                    return (id, None, position);
                };
                group = joined;
            }
            log.push(RouteUpdate::Joined {
                group,
                filter: Arc::clone(&filter),
                member: id,
                flags,
                context,
            });
            log.keep_group(&filter, old_flags, Some(flags));
            (id, Some(group), position)
        });
        let reader = self.queues.sessions[slot].reader.as_ref();
        let known_since = reader.map_or(0, |reader| reader.since(filter));
        // Messages that it has not got yet were published under the old options.
        let changed = old.filter(|old| !old.is_like(&subscription));
        let since = match &changed {
            Some(_) => since.map_or(position, |since| {
                since.clamp(known_since, position.max(known_since))
            }),
            None if is_known => known_since,
            None => since.unwrap_or(position),
        };
        if let Some(old) = changed {
            self.queues.note_past(slot, filter, old, since);
        }
        let hashing = self.directory.hashing();
        let session = &mut self.queues.sessions[slot];
        session.subscriber = subscriber;
        let group = group?;
        let subscription = Subscription {
            group,
            ..subscription
        };
        if let Some(reader) = &mut session.reader {
            reader.begin(filter, since);
        }
        if session.is_stored {
            let (rest, value) = (filter.as_bytes(), subscription.stored(since).encode());
            let change = records::put(Kind::Subscription, session.name.text(), rest, value);
            self.queues.changes.push(change);
        }
        if session
            .subscriptions
            .insert(Arc::clone(filter), subscription, hashing)
            .is_none()
        {
            self.queues.counters.subscribed(group);
            self.queues.sessions.charge_filter(slot, filter, false);
        }
        Some(length)
    }

    /// Appends the retained messages that a new subscription matches, and that no publisher will
    /// send it because it was set before.
    fn append_retained(&mut self, now_ms: u64, slot: u32, lookup: Lookup, is_wild: bool) -> usize {
        if is_wild && self.queues.work.is_spent() {
            let of = (slot, self.queues.sessions[slot].generation);
            let most = self.queues.limits.retained_deliveries;
            self.queues.work.postpone_lookup(of, lookup, most);
            return 0;
        }
        self.look_up(now_ms, slot, &lookup, is_wild)
    }

    /// Appends the retained messages that are looked up to a session's queue. Returns their number.
    pub(super) fn look_up(
        &mut self,
        now_ms: u64,
        slot: u32,
        lookup: &Lookup,
        is_wild: bool,
    ) -> usize {
        let session = &self.queues.sessions[slot];
        let room = self
            .queues
            .limits
            .retained_deliveries
            .saturating_sub(session.account.retained_messages as usize);
        let (messages, visited) =
            (self.directory).retained_before(&lookup.filter, is_wild, lookup.length, now_ms, room);
        self.queues
            .work
            .visited(visited + messages.len() * PLACES_PER_COPY);
        // As it is now: rights may have changed since.
        let known = self.queues.sessions[slot]
            .subscriptions
            .get(&*lookup.filter);
        let context = known.and_then(|known| known.context.clone());
        self.append_copies(now_ms, slot, messages, lookup.options, context.as_ref())
    }

    /// Appends copies of retained messages to a session's queue, as a subscription wants them. Returns their number.
    pub(super) fn append_copies(
        &mut self,
        now_ms: u64,
        slot: u32,
        messages: Vec<Arc<Message>>,
        (highest, no_local): (Qos, bool),
        context: Option<&Arc<Context>>,
    ) -> usize {
        let origin = self.queues.sessions[slot].origin;
        let mut appended = 0;
        for message in messages {
            if no_local && message.origin() == origin && origin != Origin::NONE {
                continue;
            }
            if context.is_some_and(|context| !context.permits(message.topic()))
                || !self.queues.selects(slot, &message)
            {
                continue;
            }
            appended += 1;
            self.copies.made(1, message.body_bytes());
            let qos = message.qos().min(highest);
            self.queues.push(
                now_ms,
                slot,
                Item {
                    message,
                    context: context.cloned(),
                    group: NIL,
                    group_tag: 0,
                    failures: Failures::default(),
                    qos,
                    retain: true,
                    redelivered: false,
                    retained_copy: true,
                    is_kept: false,
                    position: 0,
                },
            );
            self.queues.note_unselected(slot);
        }
        appended
    }
}
