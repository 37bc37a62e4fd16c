//! Sessions that sleep and wake: who reads the log, and who is handed messages by publishers.
//!
//! A session that outlives its connection sleeps while its consumer is away, and while that is slower than
//! its publishers. It wakes when it has read all that the log has for it.

use std::sync::Arc;

use super::Broker;
use crate::api::DoorState;
use crate::away::{Allowance, Amount};
use crate::cursor::{Count, Past, Reader};
use crate::index::{Found, merge};
use crate::limits::QueueFull;
use crate::losses::LossReason;
use crate::message::{Message, Origin};
use crate::nodes::{Entry, NIL};
use crate::pressure::PRESSED_MESSAGES;
use crate::queues::Queues;
use crate::records::{self, Kind};
use crate::route::{Place, RouteUpdate, Target};
use crate::session::{BrokerSession, Subscription};
use crate::store::{ReadAnswer, ReadRequest};

/// Time after which a session asks again for what the store has not written yet.
const STALLED_MS: u64 = 5;

/// Messages that a session asks for first. Those of a narrow filter lie far apart, and its consumer has none until
/// all that were asked for are read.
const FIRST_MESSAGES: usize = 16;

impl<P> Queues<P> {
    /// The limit for messages that were published while a session was away.
    pub(crate) const fn away_limit(&self) -> Amount {
        Amount {
            messages: self.limits.away_messages,
            bytes: self.limits.away_bytes,
        }
    }

    /// Makes a session read the log, from a message on that its queue has no room for. Its routes follow
    /// at the end of the call.
    pub(crate) fn fall_behind(&mut self, slot: u32, position: u64) {
        let watermark = self.watermark();
        let Some(reader) = &mut self.sessions[slot].reader else {
            return;
        };
        reader.next = reader.bound(watermark).min(position);
        reader.awake_from = None;
        self.fallen.push(slot);
        self.counters.fallen_behind += 1;
        self.mark_changed(slot);
    }

    /// Lists a session that reads the log and has room for more.
    pub(crate) fn list_if_hungry(&mut self, slot: u32) {
        let session = &self.sessions[slot];
        if session.reader.is_none() {
            return;
        }
        if self.has_appetite(session)
            && let Some(reader) = &session.reader
            && reader.awake_from.is_none()
            && !reader.is_asked
            && session.is_connected()
        {
            self.hungry.push_back(slot);
        }
    }

    /// Whether a session may have more of the log: not for each message, but before it has none. Where memory is short, or
    /// all of them have much, it settles first what it has. One that takes messages on demand may settle many at once, and has more for that.
    pub(crate) fn has_appetite(&self, session: &BrokerSession<P>) -> bool {
        let (most_messages, most_bytes) = if session.is_on_demand {
            let limits = &self.limits;
            (limits.read_ahead_messages, limits.read_ahead_bytes as u64)
        } else {
            (PRESSED_MESSAGES, self.part_bytes())
        };
        let has_enough = self.settles_first()
            && (session.ledger.len() >= most_messages || session.account.sent_bytes >= most_bytes);
        // Few long messages fill what may wait: the next one would be read, and left, again and again.
        let (waiting, waiting_bytes) = self.read_ahead();
        let is_low = session.pending.len() <= waiting / 4
            && session.account.pending_bytes <= waiting_bytes as u64 / 4;
        !has_enough && is_low
    }

    /// Lists sessions again that had to settle first.
    pub(crate) fn list_hungry(&mut self) {
        let open: Vec<u32> = self.sessions.open().map(|(slot, _)| slot).collect();
        for slot in open {
            self.list_if_hungry(slot);
        }
    }

    /// Notes a subscription of a session that reads the log. It ended at the position `until`; messages that were
    /// published before and not sent are still the session's.
    pub(crate) fn note_past(
        &mut self,
        slot: u32,
        filter: &Arc<str>,
        subscription: Subscription,
        until: u64,
    ) {
        let session = &mut self.sessions[slot];
        let Some(reader) = &mut session.reader else {
            return;
        };
        let since = reader.since(filter);
        // A subscription that follows begins anew.
        reader.recent.retain(|(known, _)| known != filter);
        if subscription.group != NIL || subscription.is_resting() || since >= until {
            return;
        }
        let past = Past {
            filter: Arc::clone(filter),
            subscription,
            since,
            until,
        };
        if session.is_stored {
            let value = past.subscription.stored(since).encode();
            let change = records::put(Kind::Past, session.name.text(), &past.key(), value);
            self.changes.push(change);
        }
        reader.past.push(past);
        self.mark_changed(slot);
    }

    /// The positions of what a session has in its queue and its ledger, rising.
    pub(crate) fn held(&self, slot: u32) -> Vec<u64> {
        let session = &self.sessions[slot];
        let mut held = Vec::new();
        for list in [session.ledger, session.pending] {
            self.nodes.each(list, |entry| {
                if entry.own_position() != 0 {
                    held.push(entry.position);
                }
            });
        }
        held.sort_unstable();
        held
    }
}

impl<P: DoorState> Broker<P> {
    /// Whether a session reads the log.
    pub(super) fn is_asleep(&self, slot: u32) -> bool {
        let reader = self.queues.sessions[slot].reader.as_ref();
        reader.is_some_and(|reader| reader.awake_from.is_none())
    }

    /// Takes the routes of a session out of the index.
    pub(super) fn remove_routes(&mut self, slot: u32) {
        let session = &self.queues.sessions[slot];
        let id = session.subscriber;
        if id == NIL {
            return;
        }
        let subscriptions = session.subscriptions.iter();
        let own = subscriptions.filter(|(_, subscription)| subscription.group == NIL);
        let updates: Vec<RouteUpdate> = own
            .map(|(filter, subscription)| RouteUpdate::Slept {
                id,
                filter: Arc::clone(filter),
                is_kept: subscription.flags.qos().is_acknowledged() && !subscription.is_resting(),
            })
            .collect();
        self.edit_log(|log| updates.into_iter().for_each(|update| log.push(update)));
    }

    /// Puts a session to sleep whose consumer is gone: what waits is in the log.
    pub(super) fn fall_asleep(&mut self, slot: u32) {
        let watermark = self.queues.watermark();
        let Some(reader) = &mut self.queues.sessions[slot].reader else {
            return;
        };
        let was_awake = reader.awake_from.is_some();
        if was_awake {
            reader.next = reader.bound(watermark);
            reader.awake_from = None;
            self.remove_routes(slot);
        }
        self.drop_logged(slot);
        self.mark_left(slot);
        // Messages that are published from here on were not sent to it, whenever the process ends.
        self.queues.write_cursor(slot);
        // It is written again when the other shards have said how far they have sent: it lies further on then.
        self.queues.mark_changed(slot);
    }

    /// Notes that a session has no consumer from here on: what is published counts against its limits.
    pub(super) fn mark_left(&mut self, slot: u32) {
        let end = self.queues.store.next_position();
        let session = &mut self.queues.sessions[slot];
        // Messages that wait for a group are in the log, which has its own limit.
        if !session.is_root()
            && let Some(reader) = &mut session.reader
        {
            reader.cursor.leave(end);
            self.queues.mark_changed(slot);
        }
    }

    /// Drops what waits for a session that sleeps and is in the log: it is read again, in its order, and counts in the
    /// session's allowance then.
    pub(super) fn drop_logged(&mut self, slot: u32) {
        let mut node = self.queues.sessions[slot].pending.first();
        while node != NIL {
            let next = self.queues.nodes.next(node);
            let entry = self.queues.nodes.entry(node);
            let position = entry.map_or(0, Entry::own_position);
            if position != 0
                && let Some(entry) = self.queues.remove_pending(slot, node)
                && let Some(reader) = &mut self.queues.sessions[slot].reader
            {
                reader.next = reader.next.min(position);
                if let Some(allowance) = reader.allowance_at(position) {
                    allowance.give_back(entry.body_bytes() as usize);
                }
            }
            node = next;
        }
        self.queues.mark_changed(slot);
    }

    /// Lets a session that has a consumer again read what it has missed.
    pub(super) fn wake(&mut self, slot: u32) {
        let end = self.queues.store.next_position();
        let queue_full = self.queues.limits.queue_full;
        let Some(reader) = &mut self.queues.sessions[slot].reader else {
            return;
        };
        let was_away = reader.cursor.come_back(end);
        if reader.awake_from.is_none() {
            reader.is_first = true;
            if let Some(until) = reader.cursor.away.until(reader.next, end) {
                let unread = Amount::default();
                if queue_full == QueueFull::DropOldest {
                    let start = reader.next;
                    reader.count = Some(Box::new(Count {
                        start,
                        until,
                        unread,
                    }));
                } else {
                    reader.allowance = Some(Allowance::new(until, queue_full, unread));
                }
            }
            self.queues.hungry.push_back(slot);
        }
        if was_away {
            // In one frame with its presence: what is published from here on does not count, whatever happens.
            self.queues.write_cursor(slot);
        }
    }

    /// Finds out whether readers of the log have much together.
    pub(super) fn weigh_reads(&mut self) {
        if self.queues.reads.weigh() {
            self.queues.list_hungry();
        }
    }

    /// Reads on for a session that sleeps and has a consumer with room for more. Wakes it when it has come
    /// to the end of the log.
    pub(super) fn read_on(&mut self, now_ms: u64, slot: u32) {
        let Some(session) = self.queues.sessions.get(slot) else {
            return;
        };
        let Some(reader) = session.reader.as_ref().filter(|reader| !reader.is_asked) else {
            return;
        };
        if reader.awake_from.is_some() || !session.is_connected() || !session.is_active() {
            return;
        }
        let next = reader.next;
        self.weigh_reads();
        if !(self.queues.sessions.get(slot))
            .is_some_and(|session| self.queues.has_appetite(session))
        {
            return;
        }
        let directory = Arc::clone(&self.directory);
        let appends = directory.appends();
        let end = self.queues.store.next_position();
        let latest = appends.since(next, end).map(|latest| {
            latest
                .map(|(position, message)| (position, Arc::clone(message)))
                .collect::<Vec<_>>()
        });
        if let Some(latest) = latest {
            if self.replay(now_ms, slot, latest, end) {
                self.end_limited(slot, end);
                let length = self.enter_routes(slot, end);
                drop(appends);
                self.catch_up_to(length);
            }
            return;
        }
        let to = appends.first(end);
        drop(appends);
        let (most_messages, most_bytes) = self.queues.read_ahead();
        let session = &mut self.queues.sessions[slot];
        let filters = session.log_filters();
        if filters.is_empty() {
            // The log has nothing for it.
            if let Some(reader) = &mut session.reader {
                reader.next = to;
            }
            self.queues.hungry.push_back(slot);
            return;
        }
        let mut most_messages = most_messages;
        if let Some(reader) = &mut session.reader {
            reader.is_asked = true;
            if reader.is_first && reader.count.is_none() {
                most_messages = most_messages.min(FIRST_MESSAGES);
            }
        }
        self.replays.made(most_messages, 0);
        let request = ReadRequest {
            reader: u64::from(slot) << 32 | u64::from(session.attendance),
            from: next,
            to,
            filters,
            most_messages,
            most_bytes,
        };
        self.queues.store.read(request);
        self.reads += 1;
    }

    /// Takes the store's answers.
    pub(super) fn take_answers(&mut self, now_ms: u64) {
        while self.reads > 0
            && let Some(mut answer) = self.queues.store.next_answer()
        {
            self.reads -= 1;
            let is_taken = self.group_answered(now_ms, &mut answer)
                || self.passing_answered(now_ms, &mut answer)
                || self.trim_answered(now_ms, &mut answer);
            if !is_taken {
                self.read_answered(now_ms, answer);
            }
        }
    }

    fn read_answered(&mut self, now_ms: u64, answer: ReadAnswer) {
        let (slot, attendance) = ((answer.reader >> 32) as u32, answer.reader as u32);
        let session = self.queues.sessions.get_mut(slot);
        let Some(session) = session.filter(|session| session.attendance == attendance) else {
            return;
        };
        let is_asked = (session.reader.as_mut()).is_some_and(|reader| {
            std::mem::take(&mut reader.is_asked) && reader.awake_from.is_none()
        });
        if !is_asked || !session.is_connected() || !session.is_active() {
            return;
        }
        let before = session.reader.as_ref().map(|reader| reader.next);
        let mut messages = answer.messages;
        if let Some(reader) = &mut session.reader {
            reader.is_first &= messages.is_empty() || reader.count.is_some();
        }
        self.take_in(&mut messages);
        self.replay(now_ms, slot, messages, answer.next);
        let after = (self.queues.sessions[slot].reader.as_ref()).map(|reader| reader.next);
        if before == after && self.queues.sessions[slot].pending.is_empty() {
            // The next message is not written yet.
            self.stalled.push(slot);
            self.stalled_until_ms = now_ms + STALLED_MS;
        } else {
            self.queues.list_if_hungry(slot);
        }
    }

    /// Queues a session's messages of the log, up to the position `end`; false where its queue is full before.
    fn replay(
        &mut self,
        now_ms: u64,
        slot: u32,
        messages: Vec<(u64, Arc<Message>)>,
        end: u64,
    ) -> bool {
        let reader = self.queues.sessions[slot].reader.as_ref();
        if reader.is_some_and(|reader| reader.count.is_some()) {
            self.count(now_ms, slot, &messages, end);
            return false;
        }
        let held = self.queues.held(slot);
        let mut is_done = true;
        let mut reached = end;
        for (position, message) in messages {
            self.replays.read(message.body_bytes());
            let reader = self.queues.sessions[slot].reader.as_ref();
            let is_wanted = reader.is_some_and(|reader| {
                position >= reader.next
                    && reader.cursor.wants(position).is_some()
                    && held.binary_search(&position).is_err()
            });
            if is_wanted && !self.replay_one(now_ms, slot, position, &message) {
                (is_done, reached) = (false, position);
                break;
            }
        }
        if let Some(reader) = &mut self.queues.sessions[slot].reader {
            reader.next = reader.next.max(reached);
            reader
                .allowance
                .take_if(|allowance| allowance.until <= reached);
        }
        self.queues.mark_changed(slot);
        is_done
    }

    /// Finds out, up to the position `end`, how much of the log counts against a session's limits. With all of it
    /// counted, reading begins again.
    fn count(&mut self, now_ms: u64, slot: u32, messages: &[(u64, Arc<Message>)], end: u64) {
        let reader = self.queues.sessions[slot].reader.as_mut();
        let Some(mut count) = reader.and_then(|reader| reader.count.take()) else {
            return;
        };
        let held = self.queues.held(slot);
        for (position, message) in messages {
            let reader = self.queues.sessions[slot].reader.as_ref();
            let is_counted = *position < count.until
                && held.binary_search(position).is_err()
                && !message.is_expired(now_ms)
                && reader.is_some_and(|reader| {
                    reader.cursor.counts(*position) && reader.cursor.wants(*position).is_some()
                });
            if is_counted && !self.targets_of(slot, *position, message).is_empty() {
                count.unread.add(message.body_bytes());
            }
        }
        let queue_full = self.queues.limits.queue_full;
        let Some(reader) = &mut self.queues.sessions[slot].reader else {
            return;
        };
        if end < count.until {
            reader.next = reader.next.max(end);
            reader.count = Some(count);
        } else {
            reader.allowance = Some(Allowance::new(count.until, queue_full, count.unread));
            reader.next = count.start;
        }
        self.queues.hungry.push_back(slot);
    }

    /// Queues what a session is to get of a message of the log; false where its queue is full.
    fn replay_one(
        &mut self,
        now_ms: u64,
        slot: u32,
        position: u64,
        message: &Arc<Message>,
    ) -> bool {
        let targets = self.targets_of(slot, position, message);
        if targets.is_empty() {
            return true;
        }
        let body_bytes = message.body_bytes();
        let limit = self.queues.away_limit();
        let (most_messages, most_bytes) = self.queues.read_ahead();
        let session = &mut self.queues.sessions[slot];
        let mut allowance =
            (session.reader.as_mut()).and_then(|reader| reader.allowance_at(position));
        if message.is_expired(now_ms) {
            if let Some(allowance) = allowance {
                allowance.pass(body_bytes);
            }
            self.queues.lose(slot, Some(message), LossReason::Expired);
            return true;
        }
        let is_dropped =
            (allowance.as_mut()).is_some_and(|allowance| !allowance.admits(body_bytes, limit));
        if is_dropped {
            // Its queue was full when it was published.
            let after = allowance.and_then(|allowance| allowance.dropped(position));
            if let Some(reader) = &mut session.reader {
                reader.cursor.drop_position(position, after);
            }
            self.queues.lose(slot, Some(message), LossReason::Full);
            return true;
        }
        let waiting_bytes = session.account.pending_bytes as usize;
        let is_full = !session.pending.is_empty()
            && (session.pending.len() >= most_messages || waiting_bytes + body_bytes > most_bytes);
        if is_full {
            return false;
        }
        if let Some(allowance) =
            (session.reader.as_mut()).and_then(|reader| reader.allowance_at(position))
        {
            allowance.take(body_bytes);
        }
        let reader = self.queues.sessions[slot].reader.as_ref();
        let was_sent = reader.is_some_and(|reader| reader.cursor.may_have_been_sent(position));
        // A right that is gone holds back messages that only may have been sent.
        let is_known = reader.is_some_and(|reader| reader.cursor.was_sent(position));
        let may_have = self.receives(slot, message.topic());
        for target in targets {
            let message = Arc::clone(message);
            let position = (position, was_sent);
            self.queues
                .append_own(now_ms, slot, position, message, &target);
            self.queues.note_unselected(slot);
            if !may_have {
                self.queues.judge_last(slot, is_known);
            }
        }
        true
    }

    /// As what a session gets a message of the log, by its subscriptions of today and those that had not ended then.
    /// Whether the rules in force let it have the message is judged when that is its turn.
    pub(super) fn targets_of(&self, slot: u32, position: u64, message: &Message) -> Vec<Target> {
        let session = &self.queues.sessions[slot];
        let topic = message.topic();
        let reader = session.reader.as_ref();
        let began = |filter: &str| reader.is_none_or(|reader| reader.since(filter) <= position);
        let matching = |filter: &str| sterna_topic::matches(filter, topic);
        let subscriptions = session
            .subscriptions
            .iter()
            .filter(|(filter, known)| known.group == NIL && began(filter))
            .map(|(filter, known)| (filter, known));
        let past = session.reader.iter().flat_map(|reader| &reader.past);
        let past = past
            .filter(|past| past.since <= position && position < past.until)
            .map(|past| (&past.filter, &past.subscription));
        let found: Vec<Found> = subscriptions
            .chain(past)
            .filter(|(filter, _)| matching(filter))
            .filter(|(_, known)| {
                (known.context.as_ref()).is_none_or(|context| context.permits(topic))
            })
            .map(|(_, known)| Found {
                place: Place::default(),
                flags: known.flags,
                context: known.context.clone(),
            })
            .collect();
        let mut targets = Vec::new();
        if found.is_empty() {
            return targets;
        }
        if !self.queues.selects(slot, message) {
            return targets;
        }
        merge(&found, &mut targets);
        let is_own = message.origin() != Origin::NONE && message.origin() == session.origin;
        targets.retain(|target| {
            let flags = target.flags;
            (message.qos().min(flags.qos()).is_acknowledged()
                || self.queues.is_for_queue_of(session))
                && !(flags.no_local() && is_own || flags.only_local() && !is_own)
        });
        targets
    }

    /// A session has read all up to the end of the log: enters its routes into the index. The lock on the
    /// log's end is held. Returns the length of the route log.
    fn enter_routes(&mut self, slot: u32, end: u64) -> u64 {
        let session = &mut self.queues.sessions[slot];
        if let Some(reader) = &mut session.reader {
            debug_assert_eq!(reader.next, end, "who wakes has read everything");
            reader.awake_from = Some(end);
            reader.allowance = None;
        }
        let id = session.subscriber;
        let updates: Vec<RouteUpdate> = session
            .subscriptions
            .iter()
            .filter(|(_, subscription)| subscription.group == NIL && !subscription.is_resting())
            .map(|(filter, subscription)| RouteUpdate::Subscribed {
                id,
                filter: Arc::clone(filter),
                flags: subscription.flags,
                context: subscription.context.clone(),
            })
            .collect();
        let edit = |log: &mut crate::directory::Log| {
            for update in updates {
                log.push(update);
            }
        };
        self.edit_log_at(end, edit).1
    }

    /// Begins a session's reading of the log.
    pub(super) fn begin_reading(&mut self, slot: u32) {
        let position = self.queues.store.next_position();
        let session = &mut self.queues.sessions[slot];
        if session.reader.is_none() {
            session.reader = Some(Box::new(Reader::awake(position)));
            // In one frame with the session: a restart without it would begin at the start of the log.
            self.queues.write_cursor(slot);
        }
    }
}
