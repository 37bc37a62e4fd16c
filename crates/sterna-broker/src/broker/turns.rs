//! The beginning of a turn: selectors have steps again ([`selecting`](crate::selecting)), and some consumers are let go.

use super::Broker;
use crate::api::{DoorState, EvictReason};
use crate::copies::Copies;
use crate::mail::Letter;
use crate::message::Message;
use crate::route::Place;
use crate::selecting::Asked;

/// Kinds of work that share the steps of a turn: browsers, lookups, and what queues and sessions have. Each is the first
/// in its turn, so that none takes all from the others.
const KINDS: usize = 3;

/// Reads of the log that the store has not answered, at which sessions wait that have yet to ask.
const MOST_READS: usize = 16;

/// Messages of a session's visit, at least: each visit has a cost of its own.
const LEAST_OF_VISIT: usize = 16;
/// Messages of a session's visit, at most.
const MOST_OF_VISIT: usize = 256;
/// All that are ready are visited while this part of a turn's deliveries is made.
const VISITED_PART: usize = 4;

impl<P: DoorState> Broker<P> {
    /// A turn of the shard's loop begins: selectors have the steps of a turn, and what waited for that goes on. Only then the
    /// time is asked for. Without calls of this a broker has the steps of one turn in all.
    pub fn begin_turn(&mut self, now_ms: impl FnOnce() -> u64) {
        // A door's panic may have ended the work of the last turn.
        self.is_finishing = false;
        self.copies.begin_turn();
        self.replays.begin_turn();
        self.queues.delivered.begin_turn();
        self.index.begin_turn();
        self.weigh_reads();
        let work = &mut self.queues.work;
        work.renew();
        if !self.has_postponed() {
            return;
        }
        let now_ms = now_ms();
        self.publish_postponed_wills(now_ms);
        let work = &mut self.queues.work;
        let first = work.next_first();
        let mut groups = std::mem::take(&mut work.groups);
        let mut browsers = std::mem::take(&mut work.browsers);
        let recalls = std::mem::take(&mut work.recalls);
        for slot in std::mem::take(&mut work.sessions) {
            if let Some(session) = self.queues.sessions.get_mut(slot) {
                session.is_held = false;
                self.queues.list_if_ready(slot);
            }
        }
        // The one that came first may have spent all: it is the last. Groups are taken from the end.
        if !groups.is_empty() {
            groups.rotate_left(1);
        }
        for id in groups.into_iter().rev() {
            if let Some(group) = self.queues.groups.get_mut(&id) {
                group.list_choosers();
                self.queues.mark_dirty(id);
            }
        }
        for kind in 0..KINDS {
            match (first + kind) % KINDS {
                0 => self.go_on_browsing(now_ms, std::mem::take(&mut browsers)),
                1 => self.look_up_postponed(now_ms),
                _ => self.finish(now_ms),
            }
        }
        self.finish(now_ms);
        for recall in recalls {
            self.member_recalled(now_ms, recall);
        }
        self.finish(now_ms);
    }

    /// Copies of messages that were made in this turn. Where they reach [`Limits::copies_per_turn`](crate::Limits), front
    /// doors let publications wait that are not [light](Self::is_light).
    #[inline]
    #[must_use]
    pub const fn copies_of_turn(&self) -> u64 {
        self.copies.count(self.index.visited())
    }

    /// Whether as many copies were made in this turn as there may be.
    #[must_use]
    pub const fn has_copied(&self) -> bool {
        self.copies_of_turn() >= self.queues.limits.copies_per_turn
    }

    /// Deliveries of this turn, counted as [copies](Self::copies_of_turn) are. Where they reach
    /// [`Limits::copies_per_turn`](crate::Limits), front doors leave sessions that are
    /// [ready](Self::next_ready) to the next turn.
    #[inline]
    #[must_use]
    pub const fn deliveries_of_turn(&self) -> u64 {
        self.queues.delivered.count(0)
    }

    /// Bytes were copied for one connection, or written in its form. They count among the
    /// [deliveries](Self::deliveries_of_turn): bodies that are long are shared, and what is copied is memory anew.
    #[inline]
    pub const fn note_copied(&mut self, bytes: usize) {
        self.queues.delivered.copied(bytes);
    }

    /// Whether as much was delivered in this turn as may be.
    #[inline]
    #[must_use]
    pub const fn has_delivered(&self) -> bool {
        self.deliveries_of_turn() >= self.queues.limits.copies_per_turn
    }

    /// Messages that a session may send before the next one that is [ready](Self::next_ready) has its turn. The more are
    /// ready, the fewer it is, so that many readers of long queues do not keep the last in the line from its first message.
    #[must_use]
    pub fn messages_of_visit(&self) -> usize {
        let ready = self.queues.ready_sessions().max(1);
        let most = usize::try_from(self.queues.limits.copies_per_turn).unwrap_or(usize::MAX);
        (most / VISITED_PART / ready).clamp(LEAST_OF_VISIT, MOST_OF_VISIT)
    }

    /// Whether a message of a topic makes few copies, as far as a short look shows.
    pub fn is_light(&mut self, topic: &str) -> bool {
        self.catch_up();
        self.index.is_light(topic, &self.queues.limits)
    }

    /// Whether all of these messages make no more than so many copies.
    pub fn makes_within(&mut self, messages: &[Message], most: u64) -> bool {
        self.catch_up();
        let before = self.index.visited();
        let mut copies = Copies::default();
        for message in messages {
            if let Some(matches) = self.index.matches(message, &self.queues.limits) {
                copies.made(matches.targets(), message.body_bytes());
            }
            if copies.count(self.index.visited() - before) > most {
                return false;
            }
        }
        true
    }

    fn go_on_browsing(&mut self, now_ms: u64, mut browsers: Vec<u32>) {
        if !browsers.is_empty() {
            browsers.rotate_left(1);
        }
        for slot in browsers {
            let session = self.queues.sessions.get_mut(slot);
            let browsing = session.and_then(|session| session.browsing_mut());
            if browsing.is_some_and(|browsing| !browsing.rest.is_empty()) {
                self.look_at_browsed(now_ms, slot);
            }
        }
    }

    /// Looks up retained messages for new subscriptions, one of each session in turn, while there are steps for it.
    fn look_up_postponed(&mut self, now_ms: u64) {
        while !self.queues.work.is_spent()
            && let Some(((slot, generation), lookup)) = self.queues.work.next_lookup()
        {
            if self.queues.session(slot, generation).is_some() {
                self.look_up(now_ms, slot, &lookup, true);
            }
        }
    }

    /// Whether something waits for the next turn.
    #[must_use]
    pub fn has_postponed(&self) -> bool {
        self.queues.work.has_postponed() || !self.postponed_wills.is_empty() || self.has_hungry()
    }

    /// Whether sessions wait for a turn in which they read in the log.
    pub(super) fn has_hungry(&self) -> bool {
        !self.queues.hungry.is_empty() && self.reads < MOST_READS
    }

    /// Whether sessions have read as much of the log in this turn as they may, or the store has yet to answer many. Each
    /// answer may have as many bytes as a session reads ahead.
    pub(super) const fn has_replayed(&self) -> bool {
        self.replays.count(0) >= self.queues.limits.copies_per_turn || self.reads >= MOST_READS
    }

    /// Lets those go whose selectors took too much work.
    pub(super) fn let_dear_go(&mut self, now_ms: u64) {
        for whose in self.queues.work.take_dear() {
            let (place, attendance) = match whose {
                Asked::Session(slot, generation, attendance) => {
                    self.selector_too_dear(now_ms, slot, generation, attendance);
                    continue;
                }
                Asked::Member(member, attendance) => (self.index.place(member), attendance),
            };
            let Some(Place {
                shard,
                slot,
                generation,
            }) = place
            else {
                continue;
            };
            let letter = Letter::TooDear {
                slot,
                generation,
                attendance,
            };
            self.send(shard, letter);
        }
    }

    /// The selector of a session's consumer took too much work.
    pub(super) fn selector_too_dear(
        &mut self,
        now_ms: u64,
        slot: u32,
        generation: u32,
        attendance: u32,
    ) {
        let session = self.queues.session(slot, generation);
        let is_it = session.is_some_and(|session| {
            session.attendance == attendance && session.is_connected() && session.is_active()
        });
        if is_it {
            self.evict_consumer(now_ms, slot, EvictReason::SelectorTooDear);
            self.leave(now_ms, slot);
        }
    }
}
