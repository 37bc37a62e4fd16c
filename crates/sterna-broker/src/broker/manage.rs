//! For administrators: sessions, retained messages and kept queues, a page at a time, and changes of kept
//! queues.
//!
//! Each call looks at a number of things that the caller bounds, since it runs within a shard's turn.

use std::sync::Arc;

use super::Broker;
use crate::api::{DoorState, EvictReason, SessionInfo, SessionKey};
use crate::choice::Pick;
use crate::directory::RetainedBy;
use crate::far_group::Root;
use crate::filter::Filter;
use crate::group::Group;
use crate::mail::Letter;
use crate::message::{Message, Qos};
use crate::name::SessionName;
use crate::route::topics_of_shared;
use crate::session::Subscription;
use crate::window::Page;

/// A subscription of a session, as an administrator sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubscriptionInfo {
    /// The whole filter, of a shared subscription with `$share/NAME/`.
    pub filter: Arc<str>,
    /// Maximum QoS of deliveries.
    pub qos: Qos,
    /// Whether messages of the same client are left out.
    pub no_local: bool,
    /// Whether the retain flag stays as it was published.
    pub retain_as_published: bool,
    /// Its Subscription Identifier.
    pub identifier: Option<u32>,
    /// Whether the rules deny it now: it gets nothing until its right is back.
    pub is_resting: bool,
}

/// Which subscriptions an administrator wants to see.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Wish<'a> {
    /// Those that get messages of this topic.
    pub topic: Option<&'a str>,
    /// Those of exactly this filter; a shared one has `$share/NAME/`.
    pub filter: Option<&'a str>,
}

/// Subscriptions of several sessions, and where to go on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubscriptionPage {
    /// Each with the name of its session.
    pub found: Vec<(SessionName, SubscriptionInfo)>,
    /// The next place of sessions, and the filter behind which to go on there; `None` at the end.
    pub next: Option<(usize, Option<Arc<str>>)>,
}

/// Readers of a topic, on all shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reach {
    /// Sessions and shared subscriptions that a message would go to.
    pub matched: usize,
    /// Shared subscriptions among them.
    pub shared: usize,
    /// Kept queues among those.
    pub queues: usize,
    /// Other nodes that want it.
    pub nodes: usize,
}

/// A kept queue, as an administrator sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueInfo {
    /// Messages that wait to be given to a consumer.
    pub messages: usize,
    /// Messages that are not due yet.
    pub delayed: usize,
    /// Bytes of the bodies of both.
    pub bytes: u64,
    /// Connected consumers.
    pub consumers: usize,
    /// Deliveries after which a message is a dead letter; `None` for any number.
    pub maximum_deliveries: Option<u16>,
    /// The topic of its dead letters; `None` where they are dropped.
    pub dead_letter: Option<Box<str>>,
    /// Whether messages of higher priority are delivered first.
    pub has_priorities: bool,
}

/// A message that waits in a kept queue.
#[derive(Clone, Debug)]
pub struct Peeked {
    /// The message.
    pub message: Arc<Message>,
    /// Its place, to go on behind it.
    pub place: u64,
    /// Failed deliveries so far.
    pub failures: u16,
}

/// The result of a change of a kept queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueChange {
    /// Messages that were removed from the queue.
    pub messages: usize,
    /// Messages that still wait in it.
    pub left: usize,
    /// Whether a message could not go where it was to go: it stays, and those behind it.
    pub is_refused: bool,
    /// Whether the next message is being read in the log. The call is then to be repeated after
    /// [`poll_store`](Broker::poll_store), with the rest of its limit.
    pub is_reading: bool,
}

impl<P: DoorState> Broker<P> {
    /// As [`sessions`](Self::sessions), but looks at no more than `slots` places of sessions, so that the
    /// page may be shorter than `limit`.
    #[must_use]
    pub fn sessions_within(
        &self,
        cursor: usize,
        limit: usize,
        slots: usize,
    ) -> (Vec<SessionInfo>, Option<usize>) {
        let all = &self.queues.sessions;
        let until = all.capacity().min(cursor.saturating_add(slots));
        let mut infos = Vec::new();
        for at in cursor..until {
            if infos.len() >= limit {
                return (infos, Some(at));
            }
            infos.extend(
                all.look(at as u32, |session| self.client_info(session))
                    .flatten(),
            );
        }
        (infos, (until < all.capacity()).then_some(until))
    }

    /// Ends the sessions here whose name is one of those wanted, with or without a consumer, and drops their wills. Looks at
    /// up to `slots` places of sessions from one on. Returns how many have ended, and the place to go on with; `None` at the
    /// end. Sessions on their way between shards stay.
    pub fn end_sessions_of(
        &mut self,
        now_ms: u64,
        is_wanted: impl Fn(&SessionName) -> bool,
        from: usize,
        slots: usize,
    ) -> (usize, Option<usize>) {
        let capacity = self.queues.sessions.capacity();
        let until = capacity.min(from.saturating_add(slots));
        let mut ended = 0;
        for slot in from as u32..until as u32 {
            let is_its = self.queues.sessions.look(slot, |session| {
                session.is_active() && !session.is_root() && is_wanted(&session.name)
            });
            if is_its != Some(true) {
                continue;
            }
            self.queues.sessions.unpack(slot);
            self.take_will(slot);
            self.evict_consumer(now_ms, slot, EvictReason::Administrative);
            self.end_session(now_ms, slot, true);
            ended += 1;
        }
        self.finish(now_ms);
        (ended, (until < capacity).then_some(until))
    }

    /// The first filter of a session whose subscription the rules deny now.
    #[must_use]
    pub fn first_resting(&mut self, session: SessionKey) -> Option<Arc<str>> {
        let session = self.queues.session(session.slot, session.generation)?;
        let mut subscriptions = session.subscriptions.iter();
        let resting = subscriptions.find(|(_, known)| known.is_resting());
        resting.map(|(filter, _)| Arc::clone(filter))
    }

    /// Subscriptions of a session of this shard, by filter: up to `limit` behind `after`, and whether there
    /// are more. `None` where the session is not here.
    #[must_use]
    pub fn subscriptions_named(
        &self,
        name: &SessionName,
        after: Option<&str>,
        limit: usize,
    ) -> Option<(Vec<SubscriptionInfo>, bool)> {
        let slot = self.active_slot(name)?;
        let behind = |filter: &str| after.is_none_or(|after| filter > after);
        let mut found: Vec<_> = self.queues.sessions.look(slot, |session| {
            let subscriptions = session.subscriptions.iter();
            subscriptions
                .filter(|(filter, _)| behind(filter))
                .cloned()
                .collect()
        })?;
        found.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let has_more = found.len() > limit;
        let page = found.into_iter().take(limit);
        let page = page.map(|(filter, subscription)| told(filter, &subscription));
        Some((page.collect(), has_more))
    }

    /// Subscriptions of all sessions of this shard that are as wished: up to `limit`, of at most `slots` places of
    /// sessions. The first place is `from`, where only filters behind `behind` count.
    #[must_use]
    pub fn subscriptions_within(
        &self,
        (from, behind): (usize, Option<&str>),
        limit: usize,
        slots: usize,
        wish: Wish<'_>,
    ) -> SubscriptionPage {
        let all = &self.queues.sessions;
        let until = all.capacity().min(from.saturating_add(slots));
        let mut found: Vec<(SessionName, SubscriptionInfo)> = Vec::new();
        for at in from..until {
            if found.len() >= limit {
                let next = Some((at, None));
                return SubscriptionPage { found, next };
            }
            let behind = behind.filter(|_| at == from);
            let own = all.look(at as u32, |session| {
                let subscriptions = session.subscriptions.iter();
                let wished = subscriptions.filter(|(filter, subscription)| {
                    behind.is_none_or(|behind| &**filter > behind)
                        && wish.fits(filter, subscription)
                });
                let wished = wished.map(|(filter, one)| told(Arc::clone(filter), one));
                // The members of a group in a cluster have subscriptions, and its root is nobody.
                (!session.is_root()).then(|| (session.name.clone(), wished.collect::<Vec<_>>()))
            });
            let Some((name, mut own)) = own.flatten() else {
                continue;
            };
            own.sort_unstable_by(|one, other| one.filter.cmp(&other.filter));
            let room = limit - found.len();
            let has_more = own.len() > room;
            let own = own.into_iter().take(room);
            found.extend(own.map(|one| (name.clone(), one)));
            if has_more {
                let last = found.last().map(|(_, last)| Arc::clone(&last.filter));
                let next = Some((at, last));
                return SubscriptionPage { found, next };
            }
        }
        let next = (until < all.capacity()).then_some((until, None));
        SubscriptionPage { found, next }
    }

    /// The readers that a message of a topic would have now; `None` where it is no topic name.
    #[must_use]
    pub fn reach(&mut self, topic: &str) -> Option<Reach> {
        self.catch_up();
        self.index.reach(topic, &self.queues.limits)
    }

    /// Retained messages whose topics match a filter, in an order of the broker's. The page has up to `limit` after
    /// the first `skip`, and tells whether there are more. `None` for an invalid filter.
    #[must_use]
    pub fn retained_page(
        &self,
        now_ms: u64,
        filter: &str,
        skip: usize,
        limit: usize,
    ) -> Option<(Vec<Arc<Message>>, bool)> {
        let filter = Filter::parse(filter, self.limits()).filter(|filter| !filter.shared)?;
        Some((self.directory).retained_page(filter.topics, filter.wild, now_ms, skip, limit))
    }

    /// The group of a shared subscription whose queue is on this shard.
    fn group_here(&mut self, filter: &str) -> Option<u32> {
        self.catch_up();
        if self.is_in_cluster() {
            return self.queue_of_root(filter);
        }
        let group = self.directory.group(filter)?;
        self.queues.read_unread(group);
        self.queues.groups.contains_key(&group).then_some(group)
    }

    /// The contents of the queue of a shared subscription, by its whole filter. `None` where it is not on this
    /// shard.
    #[must_use]
    pub fn queue_info(&mut self, filter: &str) -> Option<QueueInfo> {
        let id = self.group_here(filter)?;
        let group = self.queues.groups.get(&id)?;
        let rules = group.rules.as_deref();
        Some(QueueInfo {
            messages: group.waiting(),
            delayed: group.delayed_len(),
            bytes: group.queued_bytes,
            consumers: self.consumers_of(filter, group.attending),
            maximum_deliveries: rules.and_then(|rules| rules.maximum_deliveries),
            dead_letter: rules.and_then(|rules| rules.dead_letter.clone()),
            has_priorities: rules.is_some_and(|rules| rules.has_priorities),
        })
    }

    /// Whether no message of the queue of a shared subscription waits, is delayed, or is with a consumer that has not
    /// settled it. Where nothing is kept, a queue with a connected consumer is not empty. `None` where it is not on
    /// this shard.
    #[must_use]
    pub fn is_queue_empty(&mut self, filter: &str) -> Option<bool> {
        let id = self.group_here(filter)?;
        let group = self.queues.groups.get(&id)?;
        let is_settled = match &group.log {
            Some(reader) => reader.is_settled(),
            None => group.attending == 0,
        };
        Some(is_settled && group.waiting() == 0 && group.delayed_len() == 0)
    }

    /// Tells the other nodes of a cluster that something of this name is on this node, or no longer. The name has the form
    /// of a topic on which nobody publishes. It does nothing without a cluster.
    pub fn announce(&mut self, now_ms: u64, name: &str, is_there: bool) {
        if self.is_in_cluster() {
            let name = name.into();
            self.send(0, Letter::Announce { name, is_there });
            self.finish(now_ms);
        }
    }

    /// Whether another node of the cluster [announces](Self::announce) this name, as far as is known here. A node that is
    /// gone does so until the others have given it up.
    #[must_use]
    pub fn is_announced(&mut self, name: &str) -> bool {
        self.is_in_cluster() && {
            self.catch_up();
            self.index.is_wanted(name)
        }
    }

    /// The shared subscriptions of a cluster whose roots this shard has, by their whole filters. The flag tells that there
    /// is no message of it: none waits, none is with a member that has not settled it, and none is still to be read.
    pub fn open_roots(&self) -> impl Iterator<Item = (&Arc<str>, bool)> {
        let open = self.roots.iter().filter(|(_, root)| root.is_open);
        open.map(|(filter, root)| (filter, self.is_root_empty(root)))
    }

    fn is_root_empty(&self, root: &Root) -> bool {
        let session = self.queues.sessions.get(root.session.slot);
        let has_none = session.is_some_and(|session| {
            session.pending.is_empty()
                && session.ledger.is_empty()
                && !self.queue_state(session).has_more_in_log
        });
        has_none && root.queue.is_none() && root.has_none()
    }

    /// Messages that wait in the queue of a shared subscription, in the order of their delivery. There are up to
    /// `limit` behind the place `after`; the flag tells whether there are more. Nothing is taken. `None` where the
    /// queue is not on this shard.
    ///
    /// No messages, but more to come: the next are being read in the log. To be asked again after
    /// [`poll_store`](Self::poll_store).
    #[must_use]
    pub fn peek_queue(
        &mut self,
        now_ms: u64,
        filter: &str,
        after: Option<u64>,
        limit: usize,
    ) -> Option<(Vec<Peeked>, bool)> {
        let id = self.group_here(filter)?;
        let page = (self.queues).page_of_group(now_ms, id, after.unwrap_or(0), limit);
        if page.is_in_log && page.messages.is_empty() {
            self.look(now_ms, id, page.after, None);
            let again = (self.queues).page_of_group(now_ms, id, page.after, limit);
            return Some(self.peeked(id, again));
        }
        Some(self.peeked(id, page))
    }

    /// The number of connected consumers of a queue that `attending` members attend: in a cluster these are
    /// branches.
    fn consumers_of(&self, filter: &str, attending: usize) -> usize {
        self.roots.get(filter).map_or(attending, |root| {
            let members = root.attendees.values();
            members.map(|attendee| attendee.members as usize).sum()
        })
    }

    fn peeked(&mut self, id: u32, page: Page) -> (Vec<Peeked>, bool) {
        if !page.messages.is_empty()
            && let Some(group) = self.queues.groups.get_mut(&id)
            && let Some(look) = &mut group.look
        {
            look.messages.clear();
        }
        let messages = page.messages.into_iter();
        let messages = messages.map(|(place, failures, message)| Peeked {
            message,
            place,
            failures,
        });
        (messages.collect(), page.has_more)
    }

    /// Removes up to `limit` messages that wait in the queue of a shared subscription, first the one that
    /// is delivered next. Messages that consumers have, and those that are not due yet, stay. `None` where
    /// the queue is not on this shard.
    pub fn purge_queue(&mut self, now_ms: u64, filter: &str, limit: usize) -> Option<QueueChange> {
        let id = self.group_here(filter)?;
        let mut messages = 0;
        while messages < limit && self.queues.drop_first_of_group(id, None) {
            messages += 1;
        }
        Some(self.changed_queue(now_ms, id, messages, false, false))
    }

    /// Routes up to `limit` messages that wait in the queue of a shared subscription as `make` makes them anew. It
    /// removes each message that was taken. It ends at the first message that `make` refuses, or that no queue
    /// takes, or not every kept one. `None` where the queue is not on this shard.
    ///
    /// After a crash in between a message may be in both queues.
    pub fn move_queue(
        &mut self,
        now_ms: u64,
        filter: &str,
        limit: usize,
        mut make: impl FnMut(&Message) -> Option<Message>,
    ) -> Option<QueueChange> {
        let id = self.group_here(filter)?;
        let mut messages = 0;
        let mut is_refused = false;
        // Messages that come back to this queue by its filter are not moved again.
        let most = limit.min(self.queues.groups.get(&id)?.waiting());
        let mut is_reading = false;
        while messages < most {
            if self.queues.first_of_group(id) == Pick::InLog {
                self.feed(now_ms, id, true);
                self.take_answers(now_ms);
            }
            let node = match self.queues.first_of_group(id) {
                Pick::Entry(node) => node,
                Pick::InLog => {
                    is_reading = true;
                    break;
                }
                Pick::Nothing | Pick::Later => break,
            };
            let entry = self.queues.nodes.entry(node);
            let Some((message, position)) =
                entry.and_then(|entry| Some((entry.message.clone()?, entry.position)))
            else {
                break;
            };
            let anew = make(&message).filter(|message| self.takes_moved(now_ms, message));
            let routed =
                anew.map(|message| self.route_alone(now_ms, message, false, RetainedBy::default()));
            is_refused = !routed.is_some_and(|routed| !routed.is_refused() && routed.matched > 0);
            if is_refused || self.queues.remove_from_group(id, node).is_none() {
                break;
            }
            self.queues.settle_in_group(id, position);
            messages += 1;
        }
        Some(self.changed_queue(now_ms, id, messages, is_refused, is_reading))
    }

    /// Whether a message that is moved is sure to come where it is to go: in a cluster, by the log.
    pub(super) fn takes_moved(&mut self, now_ms: u64, message: &Message) -> bool {
        !self.is_in_cluster()
            || !(self.queues_refuse(now_ms, message).is_some()
                || self.peers_refuse(message, false)
                || self.is_peers_log_full(message, false)
                || !self.is_for_peers_log(message, false))
    }

    fn changed_queue(
        &mut self,
        now_ms: u64,
        id: u32,
        messages: usize,
        is_refused: bool,
        is_reading: bool,
    ) -> QueueChange {
        if messages > 0 {
            self.queues.write_group_cursor(id);
        }
        self.finish(now_ms);
        self.report();
        QueueChange {
            messages,
            left: (self.queues.groups.get(&id)).map_or(0, Group::waiting),
            is_refused,
            is_reading,
        }
    }
}

impl Wish<'_> {
    fn fits(&self, filter: &str, subscription: &Subscription) -> bool {
        let topics = || {
            if filter.starts_with("$share/") {
                topics_of_shared(filter)
            } else {
                filter
            }
        };
        let context = subscription.context.as_ref();
        let gets = |topic: &str| {
            sterna_topic::matches(topics(), topic)
                && context.is_none_or(|context| context.permits(topic))
        };
        self.filter.is_none_or(|wanted| filter == wanted) && self.topic.is_none_or(gets)
    }
}

fn told(filter: Arc<str>, subscription: &Subscription) -> SubscriptionInfo {
    let flags = subscription.flags;
    let context = subscription.context.as_ref();
    SubscriptionInfo {
        filter,
        qos: flags.qos(),
        no_local: flags.no_local(),
        retain_as_published: flags.retain_as_published(),
        identifier: context.and_then(|context| context.identifiers.first().copied()),
        is_resting: subscription.is_resting(),
    }
}
