//! The log: messages that somebody wants who outlives a connection, in one stream for all nodes.
//!
//! A message is appended once, and every node gets it as it comes by, its publisher's among them. An entry of the
//! stream has messages of one topic, so that its subject tells who wants it. The position of a message is the
//! number of its entry and its place there: the same on all nodes.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::message::{PublishMessage, StreamMessage};
use async_nats::jetstream::stream::RawMessageErrorKind;
use futures_util::future::join_all;
use ring::digest;
use sterna_broker::{Change, Message, Once, ReadAnswer, ReadRequest};
use tokio::sync::{Notify, Semaphore, oneshot};

use super::connection::LOG;
use super::incoming::Pace;
use super::outgoing::Charge;
use super::{Core, Retry, retained};
use crate::commits::Part;
use crate::owners::Key;
use crate::port::{LogView, ToShard};
use crate::subject;
use crate::wire::{self, EncodedRun};

/// Bits of a position that are the place in an entry.
const PLACE_BITS: u32 = 10;

/// Messages of one entry.
const MOST_IN_ENTRY: usize = 1 << PLACE_BITS;

/// Entries that are handed to NATS at once.
const WINDOW: usize = 256;

/// Messages that are handed to the first shard before it is looked whether it keeps up.
const SLICE: usize = 128;

/// Readers that NATS is asked for at once.
const MOST_READING: usize = 16;

/// Patterns of subjects that NATS is asked for. A reader with more looks at every entry.
const MOST_PATTERNS: usize = 16;

/// How often is looked how large the log is, and what nobody needs of it.
const LOOK: Duration = Duration::from_secs(1);

/// Time for which what nobody needs stays: a reader may be on its way from one node to another.
const LINGER_MS: u64 = 30_000;

/// The part of the log's bytes at which publishers are refused: behind it, NATS would refuse what was accepted.
const FULL_EIGHTHS: u64 = 7;

/// What waits for the log.
#[derive(Debug)]
pub(super) enum Item {
    Message(Waiting),
    /// Records that hold when all messages before them are in the log.
    Records {
        changes: Vec<Change>,
        part: Part,
    },
    /// A session has ended on this node, and another has it.
    Left(Key),
    /// Somebody waits until all before it is done.
    Mark(oneshot::Sender<()>),
}

/// A message that waits for NATS.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) message: Arc<Message>,
    pub(super) shard: u16,
    pub(super) once: Option<Once>,
    /// Is closed when NATS has it.
    pub(super) part: Part,
    pub(super) _charge: Rc<Charge>,
}

/// Messages of one topic on their way into the log.
struct Entry {
    subject: String,
    /// By what NATS knows it again.
    id: String,
    run: EncodedRun,
    messages: Vec<Waiting>,
}

/// What the tasks of the log share.
pub(super) struct Log {
    pub(super) view: Arc<LogView>,
    waiting: RefCell<VecDeque<Item>>,
    arrived: Notify,
    reading: Semaphore,
    /// What nodes have said that they need: by name, the incarnation and a position.
    needs: RefCell<HashMap<String, (u64, u64)>>,
    knows_needs: Cell<bool>,
}

impl Log {
    pub(super) fn new(view: Arc<LogView>) -> Self {
        Self {
            view,
            waiting: RefCell::default(),
            arrived: Notify::new(),
            reading: Semaphore::new(MOST_READING),
            needs: RefCell::default(),
            knows_needs: Cell::new(false),
        }
    }

    pub(super) fn push(&self, item: Item) {
        self.waiting.borrow_mut().push_back(item);
        self.arrived.notify_one();
    }
}

const fn position(sequence: u64, place: usize) -> u64 {
    sequence << PLACE_BITS | place as u64
}

const fn sequence(position: u64) -> u64 {
    position >> PLACE_BITS
}

impl Core {
    /// Appends what waits, in its order: what comes after it begins when NATS has all of it.
    pub(super) async fn send_log(self: Rc<Self>) {
        let mut serial = 0;
        loop {
            let (mut entries, records) = self.next_entries(&mut serial);
            if entries.is_empty() && records.is_empty() {
                self.log.arrived.notified().await;
                continue;
            }
            let mut retry = Retry::new();
            let mut has_failed = false;
            loop {
                entries = self.append_to_log(entries).await;
                if entries.is_empty() {
                    break;
                }
                if !has_failed {
                    tracing::warn!(
                        entries = entries.len(),
                        "NATS does not take messages for the log: they are tried again"
                    );
                }
                has_failed = true;
                self.status.failed_attempts.add(1);
                self.set_stalled(true);
                retry.wait().await;
            }
            if has_failed {
                self.set_stalled(false);
            }
            for item in records {
                match item {
                    Item::Records { changes, part } => self.keep(changes, part),
                    Item::Left(key) => self.leave_kept(key),
                    // Who waits may have given up.
                    Item::Mark(waiting) => drop(waiting.send(())),
                    Item::Message(_) => {}
                }
            }
        }
    }

    /// What is appended next: entries of different topics, so that order within a topic is kept whichever of them
    /// NATS takes first; and the records behind them.
    fn next_entries(&self, serial: &mut u64) -> (Vec<Entry>, Vec<Item>) {
        let mut waiting = self.log.waiting.borrow_mut();
        let (mut entries, mut records) = (Vec::<Entry>::new(), Vec::new());
        let mut topics = HashMap::<Box<str>, Option<usize>>::new();
        let mut scratch = Vec::new();
        while let Some(item) = waiting.pop_front() {
            let one = match item {
                Item::Message(one) => one,
                other => {
                    records.push(other);
                    continue;
                }
            };
            // Records hold for messages before them, and come after those of this turn.
            let known = topics.get(one.message.topic()).copied();
            let room = |at: usize| {
                let entry = &entries[at];
                entry.messages.len() < MOST_IN_ENTRY
                    && entry.run.bytes() + one.message.body_bytes() < self.settings.batch_bytes
            };
            let at = match known {
                Some(Some(at)) if one.once.is_none() && room(at) => at,
                Some(_) => {
                    waiting.push_front(Item::Message(one));
                    break;
                }
                None if entries.len() == WINDOW => {
                    waiting.push_front(Item::Message(one));
                    break;
                }
                None => {
                    *serial += 1;
                    let own = (&self.settings.node, self.incarnation.get());
                    let id = one.once.map_or_else(
                        || format!("{}.{}.log.{serial}", own.0, own.1),
                        |once| name_of(once, &one.message),
                    );
                    let place = retained::place(one.message.topic());
                    entries.push(Entry {
                        subject: self.settings.subject(&format!("log.{place}")),
                        id,
                        run: EncodedRun::new(one.shard),
                        messages: Vec::new(),
                    });
                    let at = entries.len() - 1;
                    // What has a name of its own is alone in its entry.
                    let open = one.once.is_none().then_some(at);
                    topics.insert(one.message.topic().into(), open);
                    at
                }
            };
            entries[at].run.push(&one.message, &mut scratch);
            entries[at].messages.push(one);
        }
        (entries, records)
    }

    /// Appends entries and returns those that NATS does not have.
    async fn append_to_log(&self, entries: Vec<Entry>) -> Vec<Entry> {
        let (mut failed, mut sent) = (Vec::new(), Vec::with_capacity(entries.len()));
        for entry in entries {
            let payload = wire::batch([&entry.run]);
            let bytes = payload.len();
            let publish = (PublishMessage::build().payload(payload)).message_id(&entry.id);
            let subject = entry.subject.clone();
            match self.jetstream.send_publish(subject, publish).await {
                Ok(answer) => sent.push(((entry, bytes), answer)),
                Err(_) => failed.push(entry),
            }
        }
        // All are waited for at once: together they take as long as one.
        let (sent, answers): (Vec<_>, Vec<_>) = sent.into_iter().unzip();
        let answers = join_all(answers.into_iter().map(IntoFuture::into_future)).await;
        for ((entry, bytes), answer) in sent.into_iter().zip(answers) {
            if answer.is_err() {
                failed.push(entry);
                continue;
            }
            self.count_sent(entry.messages.len(), bytes);
            for waiting in entry.messages {
                self.close(waiting.part);
            }
        }
        failed
    }

    /// Waits until everything is done that shards have handed over so far.
    pub(super) async fn is_handed_over(&self) {
        let (sender, receiver) = oneshot::channel();
        self.log.push(Item::Mark(sender));
        let _ = receiver.await;
    }

    /// The number of the last entry, as the leader of the stream knows it.
    pub(super) async fn last_of_log(&self) -> Result<u64, String> {
        let stream = self.settings.stream(LOG);
        let stream = self.jetstream.get_stream(stream).await;
        let stream = stream.map_err(|error| error.to_string())?;
        Ok(stream.cached_info().state.last_sequence)
    }

    /// Hands the log to the first shard as it comes by.
    pub(super) async fn follow_log(self: Rc<Self>) {
        let mut retry = Retry::new();
        let mut next = loop {
            if let Ok(last) = self.last_of_log().await {
                break last + 1;
            }
            retry.wait().await;
        };
        self.pass_log(Vec::new(), next - 1);
        loop {
            let Err(why) = self.follow_log_once(&mut next).await;
            tracing::debug!(why, "the log is read on");
            self.status.failed_attempts.add(1);
            retry.wait().await;
        }
    }

    async fn follow_log_once(&self, next: &mut u64) -> Result<Infallible, String> {
        let start_sequence = *next;
        let start = DeliverPolicy::ByStartSequence { start_sequence };
        let mut entries = self.follow(LOG, None, start).await?;
        let mut pace = Pace::default();
        let mut given = 0;
        loop {
            let entry = entries.next().await?;
            if entry.position > *next {
                tracing::error!(
                    entries = entry.position - *next,
                    "entries of the log are missing: this node was away for longer than it was waited for"
                );
            }
            let messages = self.messages_of(entry.position, &entry.payload);
            self.status.received_messages.add(messages.len() as u64);
            given += messages.len();
            self.pass_log(messages, entry.position);
            *next = entry.position + 1;
            if given >= SLICE {
                given = 0;
                while self.is_behind() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                if let Some(pause) = pace.pause_after(self.gate.take_crowded()) {
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    fn pass_log(&self, messages: Vec<(u64, Message)>, sequence: u64) {
        let last = position(sequence, MOST_IN_ENTRY - 1);
        self.post(0, ToShard::Logged { messages, last });
    }

    /// The messages of an entry, with their positions.
    fn messages_of(&self, sequence: u64, payload: &[u8]) -> Vec<(u64, Message)> {
        match wire::read(payload) {
            Ok(runs) => {
                let messages = runs.into_iter().flat_map(|run| run.messages);
                let messages = messages.enumerate().take(MOST_IN_ENTRY);
                messages
                    .map(|(place, message)| (position(sequence, place), message))
                    .collect()
            }
            Err(error) => {
                self.status.unreadable_batches.add(1);
                tracing::warn!(sequence, %error, "an entry of the log cannot be read");
                Vec::new()
            }
        }
    }

    /// Waits until the first shard has all that was in the log when this was called.
    pub(super) async fn reach_end_of_log(&self) -> Result<(), String> {
        let last = self.last_of_log().await?;
        while self.log.view.end() <= position(last, 0) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Reads for a shard, and answers when everything was found.
    pub(super) async fn read_log(self: Rc<Self>, shard: usize, request: ReadRequest) {
        let Ok(_permit) = self.log.reading.acquire().await else {
            return;
        };
        let mut answer = ReadAnswer {
            reader: request.reader,
            messages: Vec::new(),
            next: request.from,
        };
        let mut retry = Retry::new();
        while let Err(why) = self.read_log_once(&request, &mut answer).await {
            tracing::debug!(why, "the log is read again");
            self.status.failed_attempts.add(1);
            retry.wait().await;
        }
        self.log.view.answer(shard, answer);
        self.post(shard, ToShard::Committed);
    }

    /// Goes on with an answer, from entry to entry that a pattern fits, and asks the leader of the stream for each:
    /// another server may not have the latest.
    async fn read_log_once(
        &self,
        request: &ReadRequest,
        answer: &mut ReadAnswer,
    ) -> Result<(), String> {
        let stream = self.settings.stream(LOG);
        let stream = self.jetstream.get_stream_no_info(stream).await;
        let stream = stream.map_err(|error| error.to_string())?;
        let patterns = self.patterns(&request.filters);
        let from = sequence(answer.next).max(1);
        let mut heads = join_all(patterns.iter().map(|one| entry_from(&stream, one, from))).await;
        let (mut messages, mut bytes) = (answer.messages.len(), 0);
        loop {
            let mut lowest = u64::MAX;
            for head in &heads {
                if let Some(entry) = head.as_ref().map_err(Clone::clone)? {
                    lowest = lowest.min(entry.sequence);
                }
            }
            if position(lowest, 0) >= request.to || lowest == u64::MAX {
                answer.next = request.to;
                return Ok(());
            }
            let entry = heads.iter().find_map(|head| {
                let entry = head.as_ref().ok()?.as_ref()?;
                (entry.sequence == lowest).then_some(entry)
            });
            let payload = entry.map(|entry| entry.payload.clone()).unwrap_or_default();
            for (at, message) in self.messages_of(lowest, &payload) {
                if at < answer.next || at >= request.to {
                    continue;
                }
                let mut filters = request.filters.iter();
                if filters.any(|filter| sterna_topic::matches(filter, message.topic())) {
                    (messages, bytes) = (messages + 1, bytes + message.body_bytes());
                    answer.messages.push((at, Arc::new(message)));
                }
                answer.next = at + 1;
                if messages >= request.most_messages || bytes >= request.most_bytes {
                    return Ok(());
                }
            }
            answer.next = position(lowest + 1, 0).min(request.to);
            for (head, pattern) in heads.iter_mut().zip(&patterns) {
                if matches!(head, Ok(Some(entry)) if entry.sequence == lowest) {
                    *head = entry_from(&stream, pattern, lowest + 1).await;
                }
            }
        }
    }

    /// The patterns of subjects under which everything lies that some filters match.
    fn patterns(&self, filters: &[Box<str>]) -> Vec<String> {
        let is_wild = |filter: &str| filter.contains(['+', '#']);
        let mut patterns = HashSet::new();
        for filter in filters {
            if is_wild(filter) {
                patterns.extend(subject::of_filter(filter));
            } else {
                patterns.insert(retained::place(filter));
            }
        }
        if filters.iter().any(|filter| is_wild(filter)) {
            patterns.insert("long.>".to_owned());
        }
        if patterns.len() > MOST_PATTERNS {
            patterns = HashSet::from([">".to_owned()]);
        }
        let patterns = patterns.into_iter();
        patterns
            .map(|pattern| self.settings.subject(&format!("log.{pattern}")))
            .collect()
    }
}

/// The first entry from a number on that a pattern of subjects fits; `None` where there is none.
async fn entry_from(
    stream: &jetstream::stream::Stream<()>,
    pattern: &str,
    from: u64,
) -> Result<Option<StreamMessage>, String> {
    let asked = stream.raw_message_builder().sequence(from);
    match asked.next_by_subject(pattern).send().await {
        Ok(entry) => Ok(Some(entry)),
        Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// The name of a publication, the same on whichever node it is published. What else the client publishes under the
/// packet identifier has another content or round.
fn name_of(once: Once, message: &Message) -> String {
    let mut content = digest::Context::new(&digest::SHA256);
    content.update(message.topic().as_bytes());
    content.update(&[0]);
    content.update(message.payload());
    let digest = content.finish();
    let mut content = 0_u64;
    for &byte in &digest.as_ref()[..8] {
        content = content << 8 | u64::from(byte);
    }
    let Once {
        session,
        round,
        packet_id,
    } = once;
    format!("once.{session}.{round}.{packet_id}.{content:x}")
}

impl Core {
    /// A node has said what it needs of the log.
    pub(super) fn note_need(&self, node: &str, incarnation: u64, position: u64) {
        let mut needs = self.log.needs.borrow_mut();
        let known = needs.get(node).map_or(0, |(known, _)| *known);
        if incarnation > known && known > 0 {
            // What its earlier start needed holds until that is swept.
            let earlier = needs.remove(node);
            let name = format!("{node} {known}");
            needs.extend(earlier.map(|earlier| (name, earlier)));
        }
        if incarnation >= known {
            needs.insert(node.to_owned(), (incarnation, position));
        }
    }

    /// The lowest position that this node's sessions need, and those that an earlier start of it has left.
    pub(super) fn own_need(&self) -> u64 {
        let (own, needs) = (self.incarnation.get(), self.log.needs.borrow());
        let earlier = needs.iter().filter(|(name, (incarnation, _))| {
            name.split(' ').next() == Some(&*self.settings.node) && *incarnation < own
        });
        earlier.fold(self.log.view.needed(), |low, (_, (_, at))| low.min(*at))
    }

    /// Whether nothing waits for the log.
    pub(super) fn has_logged_all(&self) -> bool {
        self.log.waiting.borrow().is_empty()
    }

    /// Nobody needs anything any more of a node's processes up to an incarnation.
    pub(super) fn forget_need(&self, node: &str, incarnation: u64) {
        let mut needs = self.log.needs.borrow_mut();
        needs.retain(|name, (known, _)| {
            let of = name.split(' ').next().unwrap_or_default();
            of != node || *known > incarnation
        });
    }

    /// The nodes that need something and were never seen, with their incarnations.
    pub(super) fn unknown_needs(&self) -> Vec<(String, u64)> {
        let (needs, owners) = (self.log.needs.borrow(), self.owners.borrow());
        let names = needs.iter().map(|(name, (incarnation, _))| {
            (name.split(' ').next().unwrap_or_default(), *incarnation)
        });
        let unknown = names.filter(|(name, _)| !owners.knows(name));
        unknown
            .map(|(name, incarnation)| (name.to_owned(), incarnation))
            .collect()
    }

    /// All nodes' needs that were written before this start are known.
    pub(super) fn knows_needs(&self) {
        self.log.knows_needs.set(true);
    }

    /// Refuses publishers while the log is full, and removes what nobody needs. Every node does, and finds the same.
    pub(super) async fn look_after_log(self: Rc<Self>) {
        let mut needed = VecDeque::<(u64, u64)>::new();
        let mut cleared = 0;
        loop {
            tokio::time::sleep(LOOK).await;
            let Ok(mut stream) = self.jetstream.get_stream(self.settings.stream(LOG)).await else {
                continue;
            };
            let Ok(info) = stream.info().await else {
                continue;
            };
            let bytes = info.state.bytes;
            let is_full = bytes >= self.settings.log_bytes / 8 * FULL_EIGHTHS;
            if self.gate.set_log_full(is_full) != is_full {
                if is_full {
                    tracing::warn!(
                        bytes,
                        "the log is full (cluster.maximum_log_bytes): publishers of what sessions want that \
                         outlive their connections are refused"
                    );
                } else {
                    tracing::info!(bytes, "the log has room again");
                }
            }
            self.status.log_bytes.set(bytes);
            if !self.log.knows_needs.get() || self.fence.is_shut() {
                needed.clear();
                continue;
            }
            let now_ms = self.now_ms();
            let own = self.log.view.needed();
            let all = (self.log.needs.borrow().values()).fold(own, |low, (_, at)| low.min(*at));
            needed.push_back((now_ms, all));
            while needed
                .front()
                .is_some_and(|(at, _)| at + LINGER_MS <= now_ms)
            {
                let Some((_, position)) = needed.pop_front() else {
                    break;
                };
                let low = needed.iter().fold(position, |low, (_, at)| low.min(*at));
                let first = sequence(low);
                if first > cleared + 1 && stream.purge().sequence(first).await.is_ok() {
                    cleared = first - 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_rise_with_entries_and_places() {
        assert!(position(7, 0) > position(6, MOST_IN_ENTRY - 1));
        assert_eq!(position(7, 3) + 1, position(7, 4));
        assert_eq!(position(6, MOST_IN_ENTRY - 1) + 1, position(7, 0));
        assert_eq!(sequence(position(7, MOST_IN_ENTRY - 1)), 7);
    }
}
