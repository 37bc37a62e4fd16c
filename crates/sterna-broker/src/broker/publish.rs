//! Routing a message (MQTT 5.0, sections 3.3 and 4.6).

use std::slice;
use std::sync::Arc;

use super::Broker;
use super::companions::Beside;
use crate::api::{
    CompanionRecord, DoorState, Publication, PublishRefusal, Publisher, Retention, Routed,
    SessionKey,
};
use crate::directory::{Appends, Directory, Entered, Principal, RetainedBy};
use crate::fill::Fill;
use crate::filter::is_of_broker;
use crate::index::Answer;
use crate::message::Message;
use crate::peers::retained_to;
use crate::queues::Queues;
use crate::records::{self, Kind, RetainedOwner, encode_retained};
use crate::route::Parcel;
use crate::store::{Change, Full};
use crate::watch::Step;

/// The number of publications after which all shards' messages are summed up; every large one has them summed up,
/// too.
const SUM_EVERY: u32 = 64;
const LARGE_BYTES: usize = 65_536;

/// The result of a message whose topic is not a topic name.
pub(super) const NO_TOPIC_NAME: Routed = Routed {
    matched: 0,
    retention: Retention::InvalidTopic,
    refused: None,
    token: 0,
};

/// A message that is routed with others, and the kept queues in which it has room.
struct Part {
    message: Arc<Message>,
    reserved: Vec<Arc<Fill>>,
}

/// A message as it is known before the index delivers it.
#[derive(Clone, Copy)]
pub(super) struct Routing<'a> {
    /// Its place in the log; zero where it is not there.
    pub(super) position: u64,
    /// Its effect on its topic's retained message.
    pub(super) retention: Retention,
    /// The kept queues in which it has room; `None` where none was reserved.
    pub(super) reserved: Option<&'a [Arc<Fill>]>,
    /// Whether its publisher cannot wait for a reader: see [`takes_on_way`](Queues::takes_on_way).
    pub(super) is_at_once: bool,
}

impl Routing<'_> {
    /// Of a message that is in no log and leaves the retained one, for which nothing is reserved, and whose publisher may
    /// wait.
    pub(super) const PLAIN: Self = Self {
        position: 0,
        retention: Retention::NotAsked,
        reserved: None,
        is_at_once: false,
    };
}

/// Retained messages that one call drops because their time is over, at most.
const EXPIRED_PER_CALL: usize = 1_024;

impl<P: DoorState> Broker<P> {
    /// Routes a message to every queue whose subscription it matches, here and on other shards. It goes to none
    /// where a kept queue is full ([`Routed::refused`]).
    ///
    /// The order of one publisher's messages is kept in every queue, across shards as well.
    /// [MQTT-4.6.0-5] [MQTT-4.6.0-6] [MQTT311-4.6.0-5] [MQTT311-4.6.0-6]
    pub fn publish(&mut self, now_ms: u64, publication: Publication<'_>) -> Routed {
        self.publish_when(now_ms, publication, false)
    }

    /// As [`publish`](Self::publish), of a message whose publisher cannot wait for a reader. A queue that is full takes it
    /// beyond its limit where its reader holds publishers.
    pub fn publish_at_once(&mut self, now_ms: u64, publication: Publication<'_>) -> Routed {
        self.publish_when(now_ms, publication, true)
    }

    #[inline]
    fn publish_when(
        &mut self,
        now_ms: u64,
        mut publication: Publication<'_>,
        is_at_once: bool,
    ) -> Routed {
        let mut beside = self.beside(publication.companions);
        let session = publication.origin;
        let message = &mut publication.message;
        if let Some(session) = session.and_then(|key| self.queues.attended(key)) {
            message.set_origin(session.origin);
        }
        let directory = is_to_retain(message).then(|| Arc::clone(&self.directory));
        let publisher = publication.publisher;
        let entered = (directory.as_deref().zip(publisher)).map(|(all, who)| enter(all, who));
        if directory.is_some() {
            beside.by = RetainedBy::Here(match &entered {
                Some(entered) => entered.principal,
                None => self.principal_of(session),
            });
        }
        self.queues.counters.received_messages += 1;
        self.queues.counters.received_bytes += message.payload().len() as u64;
        let before = self.appends();
        let routed = match self.cluster_refuses(now_ms, message, beside.is_for_log()) {
            Some(why) => self.refuse(message, why),
            // Where it lies: it is moved once, to where it is shared.
            None => self.route(now_ms, publication.message, is_at_once, &mut beside),
        };
        self.published(now_ms, before, routed)
    }

    /// The principal of a session that publishes, or of the broker itself.
    fn principal_of(&self, session: Option<SessionKey>) -> Principal {
        session.map_or(Principal::BROKER, |key| {
            let session = self.queues.attended(key);
            session.map_or(Principal::OTHERS, |session| session.weight.principal)
        })
    }

    /// Ends a publication. `before` is the number of appends before it.
    #[inline]
    pub(super) fn published(&mut self, now_ms: u64, before: u64, mut routed: Routed) -> Routed {
        self.finish(now_ms);
        if self.appends() != before {
            routed.token = self.token();
        }
        routed
    }

    /// The reason for which a node of a cluster does not take a message; `None` where it does.
    #[inline]
    fn cluster_refuses(
        &mut self,
        now_ms: u64,
        message: &Message,
        is_for_log: bool,
    ) -> Option<PublishRefusal> {
        self.peers.as_ref()?;
        if let Some(why) = self.queues_refuse(now_ms, message) {
            Some(why)
        } else if self.peers_refuse(message, is_for_log) {
            Some(PublishRefusal::ClusterAway)
        } else if self.is_peers_log_full(message, is_for_log) {
            Some(PublishRefusal::StoreFull)
        } else {
            None
        }
    }

    /// Routes several messages of a client, which are kept as a whole, together with these records. It routes none of them ([`Routed::refused`]) if a kept
    /// queue has no room for its part, or the store has none. A message whose topic is not a topic name, or that
    /// cannot be retained, counts as routed. [`Routed::matched`] is the sum.
    pub fn publish_together(
        &mut self,
        now_ms: u64,
        publisher: Option<Publisher<'_>>,
        messages: Vec<Message>,
        records: &[CompanionRecord<'_>],
    ) -> Routed {
        let directory = Arc::clone(&self.directory);
        let is_to_retain = messages.iter().any(is_to_retain);
        let publisher = publisher.filter(|_| is_to_retain);
        let entered = publisher.map(|publisher| enter(&directory, publisher));
        let principal = entered.as_ref().map(|entered| entered.principal);
        let by = RetainedBy::Here(principal.unwrap_or(Principal::BROKER));
        let changes = records.iter();
        let changes = changes.filter_map(|record| self.companion_change(*record));
        let mut companions: Vec<Change> = changes.collect();
        let before = self.appends();
        let (is_shut, is_full) = (self.peers.as_ref()).map_or((false, false), |peers| {
            (!peers.gate.is_open(), peers.gate.is_log_full())
        });
        let goes_together = (is_shut || is_full) && self.are_for_peers_log(&messages);
        let mut refusals = messages.iter();
        let refused = refusals.find_map(|message| self.queues_refuse(now_ms, message));
        // Their records would stay, also where nobody wants the messages.
        let lacks_room = !messages.is_empty() && !companions.is_empty() && self.lacks_room();
        let routed = if let Some(why) = refused {
            self.refuse_all(&messages, why)
        } else if lacks_room {
            self.refuse_all(&messages, PublishRefusal::StoreFull)
        } else if (goes_together && is_shut)
            || messages
                .iter()
                .any(|message| self.peers_refuse(message, false))
        {
            self.refuse_all(&messages, PublishRefusal::ClusterAway)
        } else if (goes_together && is_full)
            || (messages.iter()).any(|message| self.is_peers_log_full(message, false))
        {
            self.refuse_all(&messages, PublishRefusal::StoreFull)
        } else {
            self.route_together(now_ms, messages, by, &mut companions)
        };
        if routed.refused.is_none() && !companions.is_empty() {
            // No message was appended; what is kept with them is kept as a whole, too.
            self.append_with(&mut companions);
        }
        self.published(now_ms, before, routed)
    }

    /// Routes messages that are kept as a whole. They were taken one after the other, and cannot wait any more.
    fn route_together(
        &mut self,
        now_ms: u64,
        messages: Vec<Message>,
        by: RetainedBy,
        companions: &mut Vec<Change>,
    ) -> Routed {
        if self.are_for_peers_log(&messages) {
            return self.send_to_log_together(now_ms, messages, by, companions);
        }
        if self.peers.is_some() {
            // Nothing is reserved here, and there is no frame that has them all.
            let mut sum = Routed::default();
            for message in messages {
                let routed = self.route_alone(now_ms, message, true, by);
                sum.matched += routed.matched;
            }
            return sum;
        }
        let mut parts: Vec<Part> = Vec::with_capacity(messages.len());
        let mut messages = messages.into_iter();
        while let Some(message) = messages.next() {
            let Some(reserved) = self.reserve_ahead(&message) else {
                for part in &parts {
                    release(&part.reserved, part.message.body_bytes() as u64);
                    self.refuse(&part.message, PublishRefusal::QueueFull);
                }
                self.refuse_all(messages.as_slice(), PublishRefusal::QueueFull);
                return self.refuse(&message, PublishRefusal::QueueFull);
            };
            self.queues.counters.received_messages += 1;
            self.queues.counters.received_bytes += message.payload().len() as u64;
            parts.push(Part {
                message: self.prepared(now_ms, message),
                reserved,
            });
        }
        self.route_parts(now_ms, parts, true, (by, companions))
    }

    /// The retained message of exactly this topic, unless it has expired.
    #[must_use]
    pub fn retained(&self, now_ms: u64, topic: &str) -> Option<Arc<Message>> {
        self.directory
            .retained_before(topic, false, u64::MAX, now_ms, 1)
            .0
            .pop()
    }

    /// Removes a topic's retained message without publishing anything; false where there was none.
    pub fn clear_retained(&mut self, topic: &str) -> bool {
        let directory = Arc::clone(&self.directory);
        let mut appends = directory.appends();
        let is_cleared = directory.clear_retained(topic);
        if is_cleared {
            self.clear_on_peers(topic);
            let change = self.forgotten(topic);
            self.queues.changes.extend(change);
            self.append_retained_records(&mut appends);
        }
        is_cleared
    }

    /// Drops some of the retained messages whose time is over. Nobody can append meanwhile.
    pub(super) fn expire_retained(&mut self, now_ms: u64) {
        if self.directory.retained_deadline_ms() > now_ms {
            return;
        }
        let directory = Arc::clone(&self.directory);
        let mut appends = directory.appends();
        for message in directory.expire_retained(now_ms, EXPIRED_PER_CALL) {
            let change = self.forgotten(message.topic());
            self.queues.changes.extend(change);
        }
        self.append_retained_records(&mut appends);
    }

    /// Appends the records of retained messages under the lock under which these changed. So the records of
    /// one topic come in the order of its messages, also if several shards publish to it.
    fn append_retained_records(&mut self, appends: &mut Appends) {
        if !self.queues.changes.is_empty() {
            let appended = self.append(appends, &[], &mut Vec::new());
            debug_assert!(appended.is_ok(), "a store takes records");
        }
    }

    /// Whether a topic's retained message outlives the process. The broker's messages about itself do not: it
    /// publishes them again after its start.
    fn keeps_retained(&self, topic: &str) -> bool {
        self.keeps_of_node() && !is_of_broker(topic)
    }

    /// The record that a topic has no retained message any more.
    fn forgotten(&self, topic: &str) -> Option<Change> {
        (self.keeps_retained(topic)).then(|| records::remove(Kind::Retained, topic, &[]))
    }

    /// The record of a topic's retained message as it is now.
    fn retained_change(
        &self,
        retention: Retention,
        message: &Message,
        by: RetainedBy,
    ) -> Option<Change> {
        match retention {
            Retention::Stored if self.keeps_retained(message.topic()) => {
                let owner = RetainedOwner::of(self.directory.principals(), by.principal());
                let value = encode_retained(&owner, message);
                Some(records::put(Kind::Retained, message.topic(), &[], value))
            }
            Retention::Cleared => self.forgotten(message.topic()),
            _ => None,
        }
    }

    /// Routes a message that nothing is kept with. `is_at_once` says whether its publisher cannot wait for a reader, and `by`
    /// whose it is if it is retained.
    pub(super) fn route_alone(
        &mut self,
        now_ms: u64,
        message: Message,
        is_at_once: bool,
        by: RetainedBy,
    ) -> Routed {
        let mut beside = Beside {
            by,
            ..Beside::default()
        };
        self.route(now_ms, message, is_at_once, &mut beside)
    }

    /// Routes a message. `is_at_once` says whether its publisher cannot wait for a reader.
    pub(super) fn route(
        &mut self,
        now_ms: u64,
        mut message: Message,
        is_at_once: bool,
        beside: &mut Beside,
    ) -> Routed {
        if self.peers.is_some() && self.is_for_peers_log(&message, beside.is_for_log()) {
            return self.send_to_log(now_ms, message, beside);
        }
        let is_plain = !message.retain();
        if is_plain {
            self.catch_up();
            let Some(answer) = self
                .index
                .look_up(message.topic_bytes(), &self.queues.limits)
            else {
                return NO_TOPIC_NAME;
            };
            let matches = self.index.matches_at(answer);
            if !(self.keeps_log() && matches.wants_log(&message)) {
                let is_shared = matches.targets() > 1;
                self.prepare(now_ms, &mut message, is_shared);
                let routing = Routing {
                    is_at_once,
                    ..Routing::PLAIN
                };
                return self.spread_to(now_ms, answer, message, routing);
            }
        }
        let Some(reserved) = self.reserve_ahead(&message) else {
            return self.refuse(&message, PublishRefusal::QueueFull);
        };
        let message = self.prepared(now_ms, message);
        if is_plain {
            let companions = &mut beside.changes;
            return self.route_logged(now_ms, message, &reserved, is_at_once, companions);
        }
        let parts = vec![Part { message, reserved }];
        self.route_parts(now_ms, parts, is_at_once, (beside.by, &mut beside.changes))
    }

    /// Whether there is a log for what readers want there.
    const fn keeps_log(&self) -> bool {
        self.queues.is_durable && self.peers.is_none()
    }

    /// Whether a reader wants a message in the log.
    fn wants_log(&mut self, message: &Message) -> bool {
        if !self.keeps_log() {
            return false;
        }
        let matches = self.index.matches(message, &self.queues.limits);
        matches.is_some_and(|matches| matches.wants_log(message))
    }

    /// Counts a message that is to be routed, and gives it its time. `is_shared` says whether it may come into several
    /// queues.
    pub(super) fn prepare(&mut self, now_ms: u64, message: &mut Message, is_shared: bool) {
        if is_shared {
            message.charge(&self.gauge);
        } else {
            message.charge_large(&self.gauge);
        }
        message.stamp(now_ms);
        self.unsummed += 1;
        if self.unsummed >= SUM_EVERY || message.body_bytes() >= LARGE_BYTES {
            self.unsummed = 0;
            self.report();
            self.weigh();
        }
    }

    pub(super) fn prepared(&mut self, now_ms: u64, mut message: Message) -> Arc<Message> {
        self.prepare(now_ms, &mut message, true);
        Arc::new(message)
    }

    /// Appends a message that is not to be retained, and routes it.
    fn route_logged(
        &mut self,
        now_ms: u64,
        message: Arc<Message>,
        reserved: &[Arc<Fill>],
        is_at_once: bool,
        companions: &mut Vec<Change>,
    ) -> Routed {
        let directory = Arc::clone(&self.directory);
        let mut appends = directory.appends();
        let appended = self.append(&mut appends, slice::from_ref(&message), companions);
        let length = directory.head();
        drop(appends);
        let Ok(appended) = appended else {
            release(reserved, message.body_bytes() as u64);
            return self.refuse(&message, PublishRefusal::StoreFull);
        };
        self.catch_up_to(length);
        let routing = Routing {
            position: appended.first,
            reserved: Some(reserved),
            is_at_once,
            ..Routing::PLAIN
        };
        self.spread(now_ms, message, routing)
    }

    /// Retains messages and appends them as a whole, and routes them. One frame has the messages, the records of the
    /// retained ones, and what is kept with them. Otherwise a crash could come in between, and a repetition of the
    /// publication would be known and not mend it.
    ///
    /// [MQTT-3.3.1-8] [MQTT311-3.3.1-12]: those without the flag leave the retained message as it is.
    fn route_parts(
        &mut self,
        now_ms: u64,
        parts: Vec<Part>,
        is_at_once: bool,
        (by, companions): (RetainedBy, &mut Vec<Change>),
    ) -> Routed {
        let directory = Arc::clone(&self.directory);
        // Which routes a message goes by, and whether a subscriber finds it retained, is decided at one moment. Routes
        // change under the lock alone. They are read without it, for that may take a while.
        let (wanted, mut appends) = loop {
            self.catch_up();
            let wanted = parts.iter().map(|part| self.wants_log(&part.message));
            let wanted: Vec<bool> = wanted.collect();
            let appends = self.queues.is_durable.then(|| directory.appends());
            if appends.is_none() || directory.head() == self.applied {
                break (wanted, appends);
            }
        };
        let logged: Vec<Arc<Message>> = parts
            .iter()
            .zip(&wanted)
            .filter(|&(_, &is_wanted)| is_wanted)
            .map(|(part, _)| Arc::clone(&part.message))
            .collect();
        let retained: Vec<Arc<Message>> = parts
            .iter()
            .map(|part| &part.message)
            .filter(|message| message.retain())
            .cloned()
            .collect();
        let keeps_retained = (retained.iter()).any(|message| self.keeps_retained(message.topic()));
        let mut next = 0;
        let is_full = keeps_retained && self.queues.store.is_full();
        let kept = if is_full {
            Err(Full)
        } else {
            directory.retain_together(&retained, by, |retentions| {
                for (message, retention) in retained.iter().zip(retentions) {
                    companions.extend(self.retained_change(*retention, message, by));
                }
                // Also where it changes nothing: a repetition after a crash would change what was retained behind it.
                let is_kept = !logged.is_empty() || !companions.is_empty();
                if let Some(appends) = &mut appends
                    && is_kept
                {
                    next = self.append(appends, &logged, companions)?.first;
                }
                Ok(())
            })
        };
        drop(appends);
        let Ok((retentions, length)) = kept else {
            let mut refused = Routed::default();
            for part in &parts {
                release(&part.reserved, part.message.body_bytes() as u64);
                refused = self.refuse(&part.message, PublishRefusal::StoreFull);
            }
            return refused;
        };
        self.catch_up_to(length);
        let mut retentions = retentions.into_iter();
        let mut sum = Routed::default();
        for (part, is_wanted) in parts.into_iter().zip(wanted) {
            let Part { message, reserved } = part;
            let is_retained = message.retain();
            let retention = is_retained.then(|| retentions.next()).flatten();
            let retention = retention.unwrap_or(Retention::NotAsked);
            let position = if is_wanted { next } else { 0 };
            next += u64::from(is_wanted);
            if retention == Retention::InvalidTopic {
                release(&reserved, message.body_bytes() as u64);
                sum.retention = retention;
                continue;
            }
            let routing = Routing {
                position,
                retention,
                reserved: Some(&reserved),
                is_at_once,
            };
            let routed = self.spread(now_ms, message, routing);
            sum.matched += routed.matched;
            sum.retention = routed.retention;
        }
        sum
    }

    /// Refuses a message: counts it, and tells the watcher.
    pub(super) fn refuse(&mut self, message: &Message, why: PublishRefusal) -> Routed {
        self.queues.saw(message, Step::Refused(why));
        self.queues.counters.refused_messages[why as usize] += 1;
        if let Some(peers) = self
            .peers
            .as_ref()
            .filter(|_| why == PublishRefusal::ClusterAway)
        {
            peers.count_refused();
        }
        Routed {
            refused: Some(why),
            ..Routed::default()
        }
    }

    fn refuse_all(&mut self, messages: &[Message], why: PublishRefusal) -> Routed {
        let refused = messages.iter().map(|message| self.refuse(message, why));
        refused.last().unwrap_or_default()
    }

    /// Reserves room in the kept queues that a message is for, before it is retained; `None` where
    /// there is none.
    fn reserve_ahead(&mut self, message: &Message) -> Option<Vec<Arc<Fill>>> {
        self.catch_up();
        if !self.index.has_kept_groups() {
            return Some(Vec::new());
        }
        let queues = &self.queues;
        let Some(matches) = self.index.matches(message, &queues.limits) else {
            return Some(Vec::new()); // not a topic name, which is found out again
        };
        let body_bytes = message.body_bytes() as u64;
        reserve(&matches.kept, body_bytes, queues).then(|| matches.kept.clone())
    }

    /// Delivers a message by the index as it is, and puts it aside for other nodes. It does neither if a
    /// kept queue that it is for has no room.
    pub(super) fn spread(
        &mut self,
        now_ms: u64,
        message: impl Into<Arc<Message>> + AsRef<Message>,
        routing: Routing<'_>,
    ) -> Routed {
        let limits = &self.queues.limits;
        let Some(answer) = (self.index).look_up(message.as_ref().topic_bytes(), limits) else {
            return NO_TOPIC_NAME;
        };
        self.spread_to(now_ms, answer, message, routing)
    }

    /// The same for a message that was just looked up in the index.
    pub(super) fn spread_to(
        &mut self,
        now_ms: u64,
        answer: Answer,
        message: impl Into<Arc<Message>> + AsRef<Message>,
        routing: Routing<'_>,
    ) -> Routed {
        let Routing {
            position,
            retention,
            reserved,
            is_at_once,
        } = routing;
        let queues = &mut self.queues;
        let matches = self.index.matches_at(answer);
        if !matches.kept.is_empty() || reserved.is_some_and(|reserved| !reserved.is_empty()) {
            let body_bytes = message.as_ref().body_bytes() as u64;
            match reserved {
                None if !reserve(&matches.kept, body_bytes, queues) => {
                    return self.refuse(message.as_ref(), PublishRefusal::QueueFull);
                }
                None => {}
                Some(reserved) => {
                    // Routes may have changed since; then there is no way back.
                    for fill in &matches.kept {
                        fill.add(1, body_bytes);
                    }
                    release(reserved, body_bytes);
                }
            }
        }
        let body_bytes = message.as_ref().body_bytes();
        self.copies.made(matches.targets(), body_bytes);
        let mut routed = Routed {
            matched: matches.total,
            retention,
            ..Routed::default()
        };
        let mut peers = (self.peers.as_deref_mut()).filter(|peers| !peers.is_from_peer);
        let wanting = matches.peers.nodes();
        let is_retained = peers.is_some() && retained_to(retention).is_some();
        if wanting.is_empty() && !is_retained {
            peers = None;
        }
        let step = Step::Received {
            matched: matches.total,
            away: matches.asleep,
        };
        queues.saw(message.as_ref(), step);
        if matches.total == 0 && peers.is_none() {
            queues.counters.unmatched_messages += 1;
            return routed;
        }
        if let Some(sending) = &mut peers {
            routed.matched += wanting.len();
            let encoded = if is_retained {
                None
            } else {
                sending.encode(message.as_ref().parts(), matches.peers)
            };
            if let Some(token) = encoded {
                self.last_append.handed_over(token);
                if matches.total == 0 {
                    return routed;
                }
                peers = None;
            }
        }
        let message = message.into();
        if let Some(peers) = peers {
            // The acknowledgement waits for the last of a publication's tokens.
            let token = peers.publish(&message, retention, matches.peers);
            self.last_append.handed_over(token);
        }
        for (shard, targets) in &matches.remote {
            let parcel = Parcel {
                message: Arc::clone(&message),
                position,
                targets: Arc::clone(targets),
            };
            self.outbox.deliver(*shard, parcel);
        }
        if let Some((last, others)) = matches.local.split_last() {
            for target in others {
                queues.deliver(now_ms, Arc::clone(&message), position, target, is_at_once);
            }
            queues.deliver(now_ms, message, position, last, is_at_once);
        }
        routed
    }
}

/// Whether a message becomes a retained one.
fn is_to_retain(message: &Message) -> bool {
    message.retain() && !message.payload().is_empty()
}

/// Enters a publisher for as long as it publishes.
fn enter<'a>(directory: &'a Directory, publisher: Publisher<'_>) -> Entered<'a> {
    (directory.principals()).enter_briefly(publisher.user, publisher.address)
}

/// Reserves room for a message in all of the kept queues, or in none.
fn reserve<P>(kept: &[Arc<Fill>], body_bytes: u64, queues: &Queues<P>) -> bool {
    if !kept.is_empty() && queues.is_over_memory {
        return false;
    }
    let room = kept
        .iter()
        .position(|fill| !fill.reserve(body_bytes, &queues.limits));
    release(&kept[..room.unwrap_or(0)], body_bytes);
    room.is_none()
}

/// Gives room back that a message will not take.
fn release(reserved: &[Arc<Fill>], body_bytes: u64) {
    for fill in reserved {
        fill.remove(1, body_bytes);
    }
}
