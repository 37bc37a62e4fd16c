//! Reading in the log what of a group's queue waits there: for its members, and for those who look at it.

use std::sync::Arc;

use super::Broker;
use crate::api::DoorState;
use crate::group::GROUP_OWNER;
use crate::mail::Browse;
use crate::message::Message;
use crate::nodes::NIL;
use crate::route::topics_of_shared;
use crate::store::{ReadAnswer, ReadRequest};
use crate::window::{Look, Reading};

/// The numbers by which groups ask the store for messages: no session has these slots.
const FOR_QUEUE: u64 = GROUP_OWNER as u64;
const FOR_LOOK: u64 = NIL as u64;

/// Time after which a group asks again for messages that the store has not written yet.
const STALLED_MS: u64 = 5;

/// The messages that were asked for.
enum Found {
    /// It is in memory still: messages with their positions, and the position up to which they are.
    Here(Vec<(u64, Arc<Message>)>, u64),
    /// The store was asked.
    Asked,
}

impl<P: DoorState> Broker<P> {
    /// Reads for a group's queue what its members take next; `is_wanted` also where none takes it.
    pub(super) fn feed(&mut self, now_ms: u64, id: u32, is_wanted: bool) {
        let Some(reading) = self.queues.plan_reading(id, is_wanted) else {
            return;
        };
        match self.find_in_log(id, FOR_QUEUE, &reading.batch) {
            Some(Found::Here(messages, next)) => self.fed(now_ms, id, &reading, &messages, next),
            Some(Found::Asked) => {
                if let Some(group) = self.queues.groups.get_mut(&id) {
                    group.reading = Some(Box::new(reading));
                }
            }
            None => {}
        }
    }

    fn fed(
        &mut self,
        now_ms: u64,
        id: u32,
        reading: &Reading,
        messages: &[(u64, Arc<Message>)],
        next: u64,
    ) {
        (self.queues).take_read(now_ms, id, reading, messages, next);
        self.queues.mark_dirty(id);
        // Else its members get theirs first.
        if (self.queues.groups.get(&id)).is_some_and(|group| !group.is_dirty) {
            self.queues.trim_window(id);
        }
    }

    /// Reads what waits behind a tag for those who look at a group's queue.
    pub(super) fn look(&mut self, now_ms: u64, id: u32, after: u64, browse: Option<Browse>) {
        let Some(group) = self.queues.groups.get_mut(&id) else {
            return;
        };
        let look = group.look.get_or_insert_default();
        look.browses.extend(browse);
        if !look.batch.is_empty() {
            return;
        }
        let Some(group) = self.queues.groups.get(&id) else {
            return;
        };
        let batch = self.queues.batch_behind(group, after);
        let found = self.find_in_log(id, FOR_LOOK, &batch);
        if let Some(group) = self.queues.groups.get_mut(&id)
            && let Some(look) = &mut group.look
        {
            look.batch = batch;
        }
        if let Some(Found::Here(messages, next)) = found {
            self.looked(now_ms, id, &messages, next);
        }
    }

    fn looked(&mut self, now_ms: u64, id: u32, messages: &[(u64, Arc<Message>)], next: u64) {
        let Some(group) = self.queues.groups.get_mut(&id) else {
            return;
        };
        let Some(Look { batch, browses, .. }) = group.look.take().map(|look| *look) else {
            return;
        };
        let mut look = Look::default();
        for (position, tag) in batch.into_iter().filter(|&(at, _)| at < next) {
            if let Ok(at) = messages.binary_search_by_key(&position, |&(at, _)| at) {
                look.messages.insert(tag, Arc::clone(&messages[at].1));
            } else if let Some(waiting) = group.tail.get(tag)
                && waiting.position == position
            {
                // The log does not have it any more.
                group.tail.remove(tag);
                self.queues.left_log(id, &waiting);
                return self.browse_again(now_ms, browses);
            }
        }
        if browses.is_empty() {
            group.look = Some(Box::new(look));
            return;
        }
        group.look = Some(Box::new(look));
        self.browse_again(now_ms, browses);
        // Messages that nobody waits for any more do not stay.
        if let Some(group) = self.queues.groups.get_mut(&id)
            && let Some(look) = &mut group.look
        {
            look.messages.clear();
        }
    }

    fn browse_again(&mut self, now_ms: u64, browses: Vec<Browse>) {
        for browse in browses {
            self.browse_queue(now_ms, browse);
        }
    }

    /// Finds messages of a group in the log, by positions and tags; `None` where there are none to find.
    fn find_in_log(&mut self, id: u32, reader: u64, batch: &[(u64, u64)]) -> Option<Found> {
        let (first, last) = (batch.first()?.0, batch.last()?.0);
        let end = self.queues.store.next_position();
        let directory = Arc::clone(&self.directory);
        let appends = directory.appends();
        let mut here = Vec::new();
        for &(position, _) in batch {
            let Some(message) = appends.get(position) else {
                break;
            };
            here.push((position, Arc::clone(message)));
        }
        let latest = appends.first(end);
        drop(appends);
        if let Some(&(last, _)) = here.last() {
            return Some(Found::Here(here, last + 1));
        }
        let filter = &self.queues.groups.get(&id)?.filter;
        let filters: Arc<[Box<str>]> = [topics_of_shared(filter).into()].into();
        let (most_messages, most_bytes) = self.queues.read_ahead();
        self.queues.store.read(ReadRequest {
            reader: reader << 32 | u64::from(id),
            from: first,
            to: (last + 1).min(latest).max(first + 1),
            filters,
            most_messages: most_messages.max(1),
            most_bytes,
        });
        self.reads += 1;
        Some(Found::Asked)
    }

    /// Takes the store's answer to what was asked for a group; false where it is for somebody else.
    pub(super) fn group_answered(&mut self, now_ms: u64, answer: &mut ReadAnswer) -> bool {
        let (reader, id) = (answer.reader >> 32, answer.reader as u32);
        if reader != FOR_QUEUE && reader != FOR_LOOK {
            return false;
        }
        let mut messages = std::mem::take(&mut answer.messages);
        self.take_in(&mut messages);
        let Some(group) = self.queues.groups.get_mut(&id) else {
            return true;
        };
        let first = if reader == FOR_QUEUE {
            group.reading.as_ref().map(|reading| &reading.batch)
        } else {
            group.look.as_ref().map(|look| &look.batch)
        };
        let Some(&(first, _)) = first.and_then(|batch| batch.first()) else {
            return true;
        };
        if answer.next <= first {
            // It is not written yet.
            self.stalled_groups.push((reader == FOR_QUEUE, id));
            self.stalled_until_ms = now_ms + STALLED_MS;
            return true;
        }
        if reader == FOR_LOOK {
            self.looked(now_ms, id, &messages, answer.next);
        } else if let Some(reading) = group.reading.take() {
            self.fed(now_ms, id, &reading, &messages, answer.next);
        }
        true
    }

    /// Asks again for what the store had not written.
    pub(super) fn feed_stalled(&mut self, now_ms: u64) {
        for (is_for_queue, id) in std::mem::take(&mut self.stalled_groups) {
            let Some(group) = self.queues.groups.get_mut(&id) else {
                continue;
            };
            if is_for_queue {
                group.reading = None;
                self.feed(now_ms, id, false);
            } else if let Some(look) = group.look.take() {
                let after = look.batch.first().map_or(0, |&(_, tag)| tag - 1);
                let mut browses = look.browses.into_iter();
                self.look(now_ms, id, after, browses.next());
                for browse in browses {
                    self.look(now_ms, id, after, Some(browse));
                }
            }
        }
    }
}
