//! The part of a group's queue that is in memory, and the part that waits in the log alone.
//!
//! A queue has a *window* in memory. Messages that do not fit wait in the log; the queue keeps only their places,
//! in its order ([`Tail`](crate::tail::Tail)). Both together are the queue. No member is given a message of the
//! window while an earlier one that could be for it waits in the log. That one is read first.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::attempts::Attempts;
use crate::choice::Pick;
use crate::group::{GROUP_OWNER, Group};
use crate::losses::LossReason;
use crate::mail::Browse;
use crate::message::{Message, Qos};
use crate::nodes::{Entry, NIL};
use crate::pressure::Pressure;
use crate::queues::Queues;
use crate::selecting::Taste;
use crate::tail::Waiting;

/// A queue with consumers has in memory this many times the messages that it reads at once.
const READS: usize = 4;

/// The messages being read in the log for a queue.
#[derive(Debug)]
pub(crate) struct Reading {
    /// Members that choose have looked at the messages in the log up to this tag. `None` where these are read for
    /// the next member.
    after: Option<u64>,
    /// Nothing has come between since, up to this tag.
    until: u64,
    /// Positions, rising, with their tags, rising too.
    pub(crate) batch: Vec<(u64, u64)>,
}

/// The messages being read in the log for browsers, which take nothing.
#[derive(Debug, Default)]
pub(crate) struct Look {
    /// Messages that wait in the log, by tag.
    pub(crate) messages: BTreeMap<u64, Arc<Message>>,
    /// The messages read now.
    pub(crate) batch: Vec<(u64, u64)>,
    /// Browsers that wait for it.
    pub(crate) browses: Vec<Browse>,
}

/// A part of a queue, as a browser sees it.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// Tag, failed deliveries, message.
    pub(crate) messages: Vec<(u64, u16, Arc<Message>)>,
    /// It has seen everything up to this tag.
    pub(crate) after: u64,
    /// Whether there is more.
    pub(crate) has_more: bool,
    /// Whether what follows has to be read in the log.
    pub(crate) is_in_log: bool,
}

impl<P> Queues<P> {
    /// Messages that a group's queue has in memory, and bytes of their bodies, of those that are in the log too.
    fn window(&self, group: &Group) -> (usize, u64) {
        let (messages, bytes) = self.read_ahead();
        let reads = if group.attending > 0 { READS } else { 1 };
        (messages.max(1) * reads, (bytes * reads) as u64)
    }

    /// Whether a group's queue has as much in memory as it may.
    pub(crate) fn is_window_full(&self, group: &Group) -> bool {
        let (messages, bytes) = self.window(group);
        self.has_window(group) && (group.logged.0 >= messages || group.logged.1 >= bytes)
    }

    /// Whether a group's queue has more in memory than it may. One message may have any size, unless memory is short and
    /// nobody is there to take it.
    fn is_window_over(&self, group: &Group) -> bool {
        let (messages, bytes) = self.window(group);
        let is_left = group.attending == 0 && self.pressure >= Pressure::MoveToLog;
        let least = usize::from(!is_left);
        let is_over =
            group.logged.0 > messages || (group.logged.0 > least && group.logged.1 > bytes);
        is_over && self.has_window(group)
    }

    /// Whether a group's queue can wait in the log. A branch gives its messages to a member, or back.
    const fn has_window(&self, group: &Group) -> bool {
        !self.branches.is_on || group.root.is_some()
    }

    /// Puts an entry, which is counted already, into a group's queue. It goes into memory. If that is full,
    /// or entries before it wait in the log, it goes into the log alone.
    pub(crate) fn wait_in_group(&mut self, id: u32, entry: Entry) {
        let Some(group) = self.groups.get(&id) else {
            return;
        };
        let last = group.queue.last();
        let is_behind = group
            .tail
            .first()
            .is_some_and(|first| first.tag < entry.tag)
            || (self.is_window_full(group) && last != NIL && self.nodes.tag(last) < entry.tag);
        if is_behind
            && entry.may_wait_in_log()
            && let Some(message) = &entry.message
        {
            let waiting = Waiting::new(entry.tag, entry.position, message);
            self.wait_in_log(id, waiting, Some(message));
            return;
        }
        self.place(id, entry);
        self.mark_dirty(id);
        // Else it is given to somebody first.
        if (self.groups.get(&id)).is_some_and(|group| !group.is_dirty) {
            self.trim_window(id);
        }
    }

    /// Notes that a message of a group's waits in the log.
    pub(crate) fn wait_in_log(&mut self, id: u32, waiting: Waiting, message: Option<&Message>) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let tag = waiting.tag;
        group.tail.insert(waiting);
        self.counters.logged_messages += 1;
        if let Some(reading) = &mut group.reading {
            reading.until = reading.until.min(tag - 1);
        }
        self.note_in_group(id, waiting.position, |log| log.shelve(waiting.position));
        self.offer_in_log(id, tag, message);
        self.mark_dirty(id);
    }

    /// Puts an entry into its place in memory, and offers it to the members that choose.
    fn place(&mut self, id: u32, entry: Entry) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        self.counters.stored(entry.held());
        let last = group.queue.last();
        let is_last = last == NIL || entry.tag >= self.nodes.tag(last);
        let successor = if is_last {
            NIL
        } else {
            group.successor(&self.nodes, entry.tag)
        };
        let node = if successor == NIL {
            (self.nodes).push_back(&mut group.queue, GROUP_OWNER, entry)
        } else {
            (self.nodes).insert_before(&mut group.queue, successor, GROUP_OWNER, entry)
        };
        group.entered(&self.nodes, node);
        if is_last {
            self.offer_appended(id, node);
        } else {
            group.returned_last = node;
            self.offer_returned(id, node);
        }
    }

    /// Takes an entry out of memory; it still counts as one of the queue.
    pub(crate) fn take_out(&mut self, id: u32, node: u32) -> Option<Entry> {
        if node == NIL {
            return None;
        }
        self.withdraw(id, node);
        let group = self.groups.get_mut(&id)?;
        group.leaves(&self.nodes, node);
        let entry = self.nodes.remove(&mut group.queue, node)?;
        self.counters.unstored(entry.held());
        Some(entry)
    }

    /// Lets what a group's queue has too much in memory wait in the log alone: what goes last.
    pub(crate) fn trim_window(&mut self, id: u32) {
        let mut node = (self.groups.get(&id)).map_or(NIL, |group| group.queue.last());
        while node != NIL
            && let Some(group) = self.groups.get(&id)
            && self.is_window_over(group)
        {
            let previous = self.nodes.previous(node);
            let may_wait = (self.nodes.entry(node)).is_some_and(Entry::may_wait_in_log);
            if may_wait
                && let Some(entry) = self.take_out(id, node)
                && let Some(message) = &entry.message
            {
                let waiting = Waiting::new(entry.tag, entry.position, message);
                self.wait_in_log(id, waiting, Some(message));
            }
            node = previous;
        }
    }

    /// A message that has left the tail has left the queue, for good.
    pub(crate) fn left_log(&mut self, id: u32, waiting: &Waiting) {
        self.counters.logged_messages -= 1;
        self.count_out_of_group(id, u64::from(waiting.body_bytes));
        self.settle_in_group(id, waiting.position);
    }

    /// The first message of a group's queue.
    pub(crate) fn first_of_group(&self, id: u32) -> Pick {
        let Some(group) = self.groups.get(&id) else {
            return Pick::Nothing;
        };
        let first = group.queue.first();
        match group.tail.first() {
            Some(waiting) if first == NIL || waiting.tag < self.nodes.tag(first) => Pick::InLog,
            None if first == NIL => Pick::Nothing,
            _ => Pick::Entry(first),
        }
    }

    /// Takes the first message out of a group's queue for good; false where there is none. It is lost where
    /// there is a reason for that.
    pub(crate) fn drop_first_of_group(&mut self, id: u32, lost: Option<LossReason>) -> bool {
        let mut dropped = None;
        match self.first_of_group(id) {
            Pick::Nothing | Pick::Later => return false,
            Pick::Entry(node) => {
                if let Some(entry) = self.remove_from_group(id, node) {
                    self.settle_in_group(id, entry.position);
                    dropped = entry.message;
                }
            }
            Pick::InLog => {
                let tail = self.groups.get_mut(&id).map(|group| &mut group.tail);
                let first = tail.and_then(|tail| tail.remove(tail.first()?.tag));
                if let Some(waiting) = first {
                    self.left_log(id, &waiting);
                }
            }
        }
        if let Some(reason) = lost {
            self.lose_of_group(id, dropped.as_deref(), reason);
        }
        true
    }

    /// A part of what waits behind a tag and is to be read at once: positions and tags, both rising.
    pub(crate) fn batch_behind(&self, group: &Group, after: u64) -> Vec<(u64, u64)> {
        let (most_messages, most_bytes) = self.read_ahead();
        let mut batch: Vec<(u64, u64)> = Vec::new();
        let mut bytes = 0;
        for waiting in group.tail.after(after).take(most_messages.max(1)) {
            bytes += waiting.body_bytes as usize;
            let is_rising = batch.last().is_none_or(|last| last.0 < waiting.position);
            if !batch.is_empty() && (bytes > most_bytes || !is_rising) {
                break;
            }
            batch.push((waiting.position, waiting.tag));
        }
        batch
    }

    /// The messages that a group is to read in the log now; `is_wanted` also where no member takes them.
    pub(crate) fn plan_reading(&mut self, id: u32, is_wanted: bool) -> Option<Reading> {
        let group = self.groups.get(&id)?;
        let first = group.tail.first()?;
        if group.reading.is_some() || (group.attending == 0 && !is_wanted) {
            return None;
        }
        let head = group.queue.first();
        let (messages, bytes) = self.window(group);
        let (logged, logged_bytes) = group.logged;
        let is_low = logged <= messages / READS && logged_bytes <= bytes / READS as u64;
        let is_next = head == NIL || first.tag < self.nodes.tag(head);
        let is_for_all =
            is_wanted || (group.attending > group.choices.len() && (is_next || is_low));
        let after = if is_for_all {
            None
        } else {
            let choices = group.choices.iter().filter(|(member, _)| {
                (group.members.get(member)).is_some_and(|member| member.credit > 0)
            });
            let seen = choices.map(|(_, choice)| choice.seen).min()?;
            if self.work.is_spent() {
                self.work.postpone_group(id);
                return None;
            }
            Some(seen)
        };
        let batch = self.batch_behind(group, after.unwrap_or(0));
        let until = batch.last()?.1;
        Some(Reading {
            after,
            until,
            batch,
        })
    }

    /// Takes what was read in the log for a group's queue, of the positions before `next`.
    pub(crate) fn take_read(
        &mut self,
        now_ms: u64,
        id: u32,
        reading: &Reading,
        messages: &[(u64, Arc<Message>)],
        next: u64,
    ) {
        let (mut reached, mut is_first) = (0, true);
        for &(position, tag) in reading.batch.iter().filter(|&&(at, _)| at < next) {
            reached = tag;
            let is_first = std::mem::take(&mut is_first);
            let Some(group) = self.groups.get(&id) else {
                return;
            };
            let is_there = (group.tail.get(tag)).is_some_and(|known| known.position == position);
            if !is_there {
                continue; // it has left the queue
            }
            let found = messages.binary_search_by_key(&position, |&(at, _)| at);
            let message = found.ok().map(|at| &messages[at].1);
            let Some(message) = message.filter(|message| !message.is_expired(now_ms)) else {
                self.drop_read(id, tag, message);
                continue;
            };
            if group.is_for_nobody(message.topic()) {
                self.drop_read(id, tag, None);
                continue;
            }
            let choices = group.choices.iter().filter(|(member, _)| {
                (group.members.get(member)).is_some_and(|member| member.credit > 0)
            });
            let mut tastes = choices.map(|(_, choice)| choice.takes(message, tag, &self.work));
            let taste = match reading.after {
                None => Taste::Wanted,
                // Answers before it do not count: all are asked again.
                Some(_) => tastes
                    .find(|taste| matches!(taste, Taste::Wanted | Taste::Later))
                    .unwrap_or(Taste::Unwanted),
            };
            if taste == Taste::Later && !is_first {
                reached = tag - 1;
                break;
            }
            // The answers about one message may take more than a turn has. In memory each member goes on by itself.
            if matches!(taste, Taste::Wanted | Taste::Later) {
                self.load(id, tag, message);
            }
        }
        let reached = reached.min(reading.until);
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        if let Some(after) = reading.after {
            for at in 0..group.choices.len() {
                if let Some((member, choice)) = group.choices.pair_at_mut(at)
                    && (group.members.get(member)).is_some_and(|member| member.credit > 0)
                    && choice.seen >= after
                {
                    choice.seen = choice.seen.max(reached);
                }
            }
        }
    }

    /// Drops what waits in the log and has expired, or is not there.
    fn drop_read(&mut self, id: u32, tag: u64, expired: Option<&Arc<Message>>) {
        let group = self.groups.get_mut(&id);
        if let Some(waiting) = group.and_then(|group| group.tail.remove(tag)) {
            self.left_log(id, &waiting);
            if let Some(message) = expired {
                self.lose_of_group(id, Some(message), LossReason::Expired);
            }
        }
    }

    /// Takes a message that waits in the log into memory.
    fn load(&mut self, id: u32, tag: u64, message: &Arc<Message>) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let Some(Waiting {
            position,
            body_bytes,
            ..
        }) = group.tail.remove(tag)
        else {
            return;
        };
        self.counters.logged_messages -= 1;
        // A store's form of a message may have another length.
        let (before, after) = (u64::from(body_bytes), message.body_bytes() as u64);
        group.queued_bytes = group.queued_bytes + after - before;
        if let Some(fill) = &group.fill {
            fill.add(0, after);
            fill.remove(0, before);
        }
        let mut attempts = Attempts::default();
        self.note_in_group(id, position, |log| attempts = log.unshelve(position));
        let entry = Entry {
            qos: message.qos().max(Qos::AtLeastOnce),
            group: id,
            failures: attempts.failures,
            redelivered: attempts.was_sent,
            position,
            ..Entry::waiting(tag, Arc::clone(message))
        };
        self.place(id, entry);
    }

    /// The messages that wait in a group's queue behind a tag, up to `limit`.
    pub(crate) fn page_of_group(&self, now_ms: u64, id: u32, after: u64, limit: usize) -> Page {
        let mut page = Page {
            after,
            ..Page::default()
        };
        let Some(group) = self.groups.get(&id) else {
            return page;
        };
        let mut node = group.queue.first();
        while node != NIL && self.nodes.tag(node) <= after {
            node = self.nodes.next(node);
        }
        let mut tail = group.tail.after(after).peekable();
        let looked = group.look.as_ref().map(|look| &look.messages);
        loop {
            let waiting = tail
                .peek()
                .filter(|waiting| node == NIL || waiting.tag < self.nodes.tag(node));
            let (tag, failures, message) = if let Some(waiting) = waiting {
                let Some(message) = looked.and_then(|looked| looked.get(&waiting.tag)) else {
                    (page.has_more, page.is_in_log) = (true, true);
                    return page;
                };
                let log = group.log.as_ref();
                let failures = log.map(|log| log.failures(waiting.position));
                (waiting.tag, failures.unwrap_or_default(), message)
            } else if let Some(entry) = (node != NIL).then(|| self.nodes.entry(node)).flatten() {
                let Some(message) = &entry.message else {
                    return page;
                };
                (entry.tag, entry.failures, message)
            } else {
                return page;
            };
            if !message.is_expired(now_ms) {
                if page.messages.len() >= limit {
                    page.has_more = true;
                    return page;
                }
                let failures = failures.counted(&self.limits);
                page.messages.push((tag, failures, Arc::clone(message)));
            }
            page.after = tag;
            if waiting.is_some() {
                tail.next();
            } else {
                node = self.nodes.next(node);
            }
        }
    }
}
