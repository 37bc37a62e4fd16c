//! The ledger of a crash test: notes of what clients sent, were acknowledged, asked for and received. It finds the
//! promises of a message broker that these notes break.
//!
//! Two tests share it. The crash test kills a broker's process and starts it again. The power-cut test plays the whole
//! server in virtual time, on a simulated disk that loses what is not synced.
//!
//! The ledger has no sockets and no clock. A [`Moment`] is the number of notes before it. So "the subscription was
//! acknowledged before the message was sent" is a comparison of two numbers. Rules that would need to know what
//! happened inside the broker are left out. For example, a message that is acknowledged while a reader unsubscribes may
//! come or not.
//!
//! ```
//! use sterna_ledger::{Ledger, Promise, Protocol, Reading, Sending};
//!
//! let mut ledger = Ledger::default();
//! ledger.life_begins();
//! let protocol = Protocol::Mqtt;
//! let publisher = ledger.publisher("sensor", Sending { protocol, is_exact: false });
//! let reading = Reading { protocol, is_exact: false, is_ordered: true };
//! let reader = ledger.reader("dashboard", reading);
//! ledger.asks(reader, "house/#");
//! ledger.granted(reader, "house/#");
//!
//! let [first, second] = [(); 2].map(|()| ledger.send(publisher, "house/door"));
//! ledger.acknowledged(first);
//! ledger.acknowledged(second);
//! ledger.received(reader, Some("house/door"), &second.payload());
//! ledger.close();
//! assert_eq!(ledger.breaches(Promise::Kept, protocol), 1, "the first was lost");
//! ```

mod comparison;
mod reader;
mod stamp;
mod violation;

use std::collections::{BTreeMap, HashMap};
use std::fmt;

pub use reader::Reading;
use reader::{Copy, Reader};
pub use stamp::Stamp;
pub use violation::{Promise, Violation};

/// A moment: the number of notes that a ledger had then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u32);

impl Moment {
    /// Before the first note.
    const START: Self = Self(0);
}

/// Most violations of a promise towards a client that are kept with their text; the others are counted.
const MAX_TOLD: u64 = 2;

/// The protocol that a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// MQTT, any version.
    Mqtt,
    /// AMQP 1.0.
    Amqp,
    /// Publish-subscribe over HTTP, any version.
    Http,
}

impl Protocol {
    /// All of them, in the order of reports.
    pub const ALL: [Self; 3] = [Self::Mqtt, Self::Amqp, Self::Http];
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Mqtt => "MQTT",
            Self::Amqp => "AMQP",
            Self::Http => "HTTP",
        })
    }
}

/// A publisher in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PublisherId(u32);

/// A reader in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReaderId(usize);

/// A transaction in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransactionId(usize);

/// How a publisher sends.
#[derive(Clone, Copy, Debug)]
pub struct Sending {
    /// The protocol by which it publishes.
    pub protocol: Protocol,
    /// Whether its messages are sent exactly once: QoS 2, a settle mode of two steps, a key.
    pub is_exact: bool,
}

/// The fate of a message, as far as its publisher knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Nothing was said yet.
    Pending,
    /// The broker has acknowledged it.
    Kept(Moment),
    /// The broker has said that it has not taken it, or its transaction was rolled back.
    Void,
    /// The publisher will never know.
    Doubtful,
}

#[derive(Debug)]
struct Publication {
    topic: usize,
    sent: Moment,
    fate: Fate,
    transaction: Option<TransactionId>,
    /// A retained message that clears its topic.
    clears: bool,
    /// The broker may let later ones pass it.
    may_be_passed: bool,
}

#[derive(Debug)]
struct Topic {
    name: String,
    /// The messages published there, in order.
    publications: Vec<Stamp>,
}

#[derive(Debug)]
struct Publisher {
    name: String,
    sending: Sending,
    publications: Vec<Publication>,
    /// Those before were compared with every reader.
    compared: usize,
}

/// Counts of messages for one protocol.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Messages that publishers sent.
    pub sent: u64,
    /// Messages of these that the broker acknowledged.
    pub acknowledged: u64,
    /// Acknowledged messages that the broker was allowed to lose by [`Ledger::excuse`].
    pub excused: u64,
    /// First copies that readers got.
    pub delivered: u64,
    /// Further copies where at least once was promised.
    pub repeated: u64,
}

/// All notes of a test, and the promises that they break.
#[derive(Debug, Default)]
pub struct Ledger {
    now: Moment,
    /// When each of the broker's lives began.
    lives: Vec<Moment>,
    topics: Vec<Topic>,
    topic_numbers: HashMap<String, usize>,
    publishers: Vec<Publisher>,
    readers: Vec<Reader>,
    transactions: Vec<Vec<Stamp>>,
    pending: usize,
    /// Copies that have come, repeated ones included.
    copies: u64,
    /// Copies that have come, or that readers told the broker of again, since the comparison before
    /// the last.
    recent: Vec<(ReaderId, Stamp)>,
    /// Number of entries of `recent` from before the last comparison.
    compared: usize,
    counts: BTreeMap<Protocol, Counts>,
    breaches: BTreeMap<(Promise, Protocol), u64>,
    /// Breaches by promise and client.
    by_client: BTreeMap<(Promise, String), u64>,
    told: Vec<Violation>,
    alarm: Alarm,
}

/// An action at an acknowledgement to come, after N others.
#[derive(Default)]
struct Alarm(Option<(u64, Box<dyn FnOnce() + Send>)>);

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.as_ref().map(|(count, _)| count);
        f.debug_tuple("Alarm").field(&count).finish()
    }
}

impl Ledger {
    const fn tick(&mut self) -> Moment {
        self.now.0 += 1;
        self.now
    }

    /// This moment, for [`excuse`](Self::excuse). Notes that follow are later than it.
    pub const fn mark(&mut self) -> Moment {
        self.tick()
    }

    /// The power was cut, and the broker had not promised yet that its notes since a moment survive that. The notes are
    /// of acknowledged messages and filters, the ends of filters, and the messages that readers have received. All of
    /// them may be gone.
    pub fn excuse(&mut self, since: Moment) {
        for publisher in &mut self.publishers {
            let protocol = publisher.sending.protocol;
            for publication in &mut publisher.publications[publisher.compared..] {
                if matches!(publication.fate, Fate::Kept(at) if at >= since) {
                    publication.fate = Fate::Doubtful;
                    self.counts.entry(protocol).or_default().excused += 1;
                }
            }
        }
        for reader in &mut self.readers {
            reader.excuse(since);
        }
        for (reader, stamp) in &self.recent {
            self.readers[reader.0].forget(*stamp, since);
        }
    }

    /// Another life of the broker begins.
    pub fn life_begins(&mut self) {
        let now = self.tick();
        self.lives.push(now);
    }

    /// The number of the broker's life, from 1; 0 before the first.
    #[must_use]
    pub fn life(&self) -> usize {
        self.lives.len()
    }

    fn life_at(&self, moment: Moment) -> usize {
        self.lives.partition_point(|began| *began <= moment)
    }

    /// Notes a breach of a promise that somebody else has found, towards the client `who`.
    pub fn complain(&mut self, promise: Promise, protocol: Protocol, who: &str, text: String) {
        *self.breaches.entry((promise, protocol)).or_default() += 1;
        let count = self.by_client.entry((promise, who.to_owned()));
        let count = count.or_default();
        *count += 1;
        if *count <= MAX_TOLD {
            let life = self.life();
            self.told.push(Violation {
                promise,
                life,
                text,
            });
        }
    }

    /// The first breaches, in the order in which they were seen.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        &self.told
    }

    /// How often a promise was broken towards clients of a protocol.
    #[must_use]
    pub fn breaches(&self, promise: Promise, protocol: Protocol) -> u64 {
        let count = self.breaches.get(&(promise, protocol));
        count.copied().unwrap_or(0)
    }

    /// How often each promise was broken, by client.
    #[must_use]
    pub const fn breaches_by_client(&self) -> &BTreeMap<(Promise, String), u64> {
        &self.by_client
    }

    /// How often any promise was broken.
    #[must_use]
    pub fn all_breaches(&self) -> u64 {
        self.breaches.values().sum()
    }

    /// The counts for a protocol.
    #[must_use]
    pub fn counts(&self, protocol: Protocol) -> Counts {
        self.counts.get(&protocol).copied().unwrap_or_default()
    }

    fn counts_mut(&mut self, protocol: Protocol) -> &mut Counts {
        self.counts.entry(protocol).or_default()
    }

    fn topic(&mut self, name: &str) -> usize {
        if let Some(number) = self.topic_numbers.get(name) {
            return *number;
        }
        self.topics.push(Topic {
            name: name.to_owned(),
            publications: Vec::new(),
        });
        let number = self.topics.len() - 1;
        self.topic_numbers.insert(name.to_owned(), number);
        number
    }

    // --- Publishers ---

    /// Enters a publisher.
    pub fn publisher(&mut self, name: impl Into<String>, sending: Sending) -> PublisherId {
        self.publishers.push(Publisher {
            name: name.into(),
            sending,
            publications: Vec::new(),
            compared: 0,
        });
        PublisherId(self.publishers.len() as u32 - 1)
    }

    fn publication(&self, stamp: Stamp) -> Option<(&Publisher, &Publication)> {
        let publisher = self.publishers.get(stamp.publisher as usize)?;
        let publication = publisher.publications.get(stamp.sequence as usize)?;
        Some((publisher, publication))
    }

    /// A publisher is about to send a message to a topic. Its payload must be that of the stamp.
    pub fn send(&mut self, publisher: PublisherId, topic: &str) -> Stamp {
        self.note_sending(publisher, topic, None, false)
    }

    /// A publisher is about to clear a topic's retained message.
    pub fn clear(&mut self, publisher: PublisherId, topic: &str) -> Stamp {
        self.note_sending(publisher, topic, None, true)
    }

    fn note_sending(
        &mut self,
        id: PublisherId,
        topic: &str,
        transaction: Option<TransactionId>,
        clears: bool,
    ) -> Stamp {
        let sent = self.tick();
        let topic = self.topic(topic);
        let publisher = &mut self.publishers[id.0 as usize];
        publisher.publications.push(Publication {
            topic,
            sent,
            fate: Fate::Pending,
            transaction,
            clears,
            may_be_passed: false,
        });
        let protocol = publisher.sending.protocol;
        let stamp = Stamp {
            publisher: id.0,
            sequence: publisher.publications.len() as u32 - 1,
        };
        self.topics[topic].publications.push(stamp);
        self.pending += 1;
        self.counts_mut(protocol).sent += 1;
        stamp
    }

    fn decide(&mut self, stamp: Stamp, fate: Fate) {
        let publisher = &mut self.publishers[stamp.publisher as usize];
        let publication = &mut publisher.publications[stamp.sequence as usize];
        if publication.fate == Fate::Pending {
            self.pending -= 1;
        }
        publication.fate = fate;
        let protocol = publisher.sending.protocol;
        if matches!(fate, Fate::Kept(_)) {
            self.counts_mut(protocol).acknowledged += 1;
            match self.alarm.0.take() {
                Some((0, act)) => act(),
                Some((count, act)) => self.alarm.0 = Some((count - 1, act)),
                None => {}
            }
        }
    }

    /// Does something at once with an acknowledgement to come, after N others; `None` forgets it.
    pub fn set_alarm(&mut self, alarm: Option<(u64, Box<dyn FnOnce() + Send>)>) {
        self.alarm = Alarm(alarm);
    }

    /// The broker has acknowledged a message.
    pub fn acknowledged(&mut self, stamp: Stamp) {
        let now = self.tick();
        self.decide(stamp, Fate::Kept(now));
    }

    /// The broker has refused a message.
    pub fn refused(&mut self, stamp: Stamp) {
        self.decide(stamp, Fate::Void);
    }

    /// The publisher will not learn the fate of a message.
    pub fn doubtful(&mut self, stamp: Stamp) {
        self.decide(stamp, Fate::Doubtful);
    }

    /// The broker may let later messages of its publisher pass a message. A queue does so where consumers were lost with
    /// it twice.
    pub fn may_be_passed(&mut self, stamp: Stamp) {
        let publisher = &mut self.publishers[stamp.publisher as usize];
        publisher.publications[stamp.sequence as usize].may_be_passed = true;
    }

    /// Publishers of which a message was acknowledged.
    #[must_use]
    pub fn heard_publishers(&self) -> usize {
        let is_heard = |publisher: &&Publisher| {
            let mut publications = publisher.publications.iter();
            publications.any(|publication| matches!(publication.fate, Fate::Kept(_)))
        };
        self.publishers.iter().filter(is_heard).count()
    }

    /// Messages whose publishers wait for an answer.
    #[must_use]
    pub const fn pending(&self) -> usize {
        self.pending
    }

    /// Which publishers wait for an answer, and for how many.
    #[must_use]
    pub fn waiting(&self) -> Vec<(Protocol, String, String)> {
        let mut found = Vec::new();
        for publisher in &self.publishers {
            let pending = (publisher.publications.iter().enumerate())
                .filter(|(_, publication)| publication.fate == Fate::Pending);
            let numbers: Vec<usize> = pending.map(|(sequence, _)| sequence).collect();
            if let Some(first) = numbers.first() {
                let text = format!(
                    "{}: {} without an answer, the first is message {first}",
                    publisher.name,
                    numbers.len()
                );
                found.push((publisher.sending.protocol, publisher.name.clone(), text));
            }
        }
        found
    }

    // --- Transactions ---

    /// Enters a transaction.
    pub fn transaction(&mut self) -> TransactionId {
        self.transactions.push(Vec::new());
        TransactionId(self.transactions.len() - 1)
    }

    /// A publisher is about to post a message in a transaction.
    pub fn post(
        &mut self,
        publisher: PublisherId,
        topic: &str,
        transaction: TransactionId,
    ) -> Stamp {
        let stamp = self.note_sending(publisher, topic, Some(transaction), false);
        self.transactions[transaction.0].push(stamp);
        stamp
    }

    fn decide_transaction(&mut self, transaction: TransactionId, fate: Fate) {
        for stamp in self.transactions[transaction.0].clone() {
            self.decide(stamp, fate);
        }
    }

    /// The broker has acknowledged a transaction.
    pub fn committed(&mut self, transaction: TransactionId) {
        let now = self.tick();
        self.decide_transaction(transaction, Fate::Kept(now));
    }

    /// A transaction was rolled back: it must have no effect.
    pub fn rolled_back(&mut self, transaction: TransactionId) {
        self.decide_transaction(transaction, Fate::Void);
    }

    /// The broker has not answered whether a transaction was committed.
    pub fn in_doubt(&mut self, transaction: TransactionId) {
        self.decide_transaction(transaction, Fate::Doubtful);
    }

    /// Decides about transactions in doubt. If a reader has seen a part of one in a later life, the whole of it was
    /// kept. A part seen in the life of the transaction proves nothing: messages of QoS 1 leave before they are kept.
    fn look_at_doubtful(&mut self, is_end: bool) {
        for number in 0..self.transactions.len() {
            let first = self.transactions[number].first().copied();
            let fate = first.and_then(|stamp| Some(self.publication(stamp)?.1.fate));
            if fate != Some(Fate::Doubtful) {
                continue;
            }
            let mut stamps = self.transactions[number].iter();
            let was_kept = stamps.any(|stamp| {
                let sent = self
                    .publication(*stamp)
                    .map(|(_, publication)| publication.sent);
                let life = sent.map_or(0, |sent| self.life_at(sent));
                let mut readers = self.readers.iter();
                readers.any(|reader| self.life_at(reader.entry(*stamp).last) > life)
            });
            if was_kept {
                let now = self.tick();
                self.decide_transaction(TransactionId(number), Fate::Kept(now));
            } else if is_end && !self.is_seen(number) {
                self.decide_transaction(TransactionId(number), Fate::Void);
            }
        }
    }

    // --- Readers ---

    /// Enters a reader. Consumers that share a queue are one reader.
    pub fn reader(&mut self, name: impl Into<String>, reading: Reading) -> ReaderId {
        self.readers.push(Reader::new(name.into(), reading));
        ReaderId(self.readers.len() - 1)
    }

    /// A reader is about to ask for a filter.
    pub fn asks(&mut self, reader: ReaderId, filter: &str) {
        let now = self.tick();
        self.readers[reader.0].ask(filter, now);
    }

    /// The broker has acknowledged that.
    pub fn granted(&mut self, reader: ReaderId, filter: &str) {
        let now = self.tick();
        self.readers[reader.0].granted(filter, now);
    }

    /// Number of filters that were granted, of all readers.
    #[must_use]
    pub fn granted_interests(&self) -> usize {
        let interests = self.readers.iter().map(Reader::granted_interests);
        interests.sum()
    }

    /// Readers that have asked for a filter, and have no answer.
    #[must_use]
    pub fn unanswered_readers(&self) -> Vec<&str> {
        let asking = self.readers.iter().filter(|reader| reader.is_asking());
        asking.map(|reader| reader.name.as_str()).collect()
    }

    /// Whether a reader has a filter: the broker has granted it, and the reader does not leave it.
    #[must_use]
    pub fn is_granted(&self, reader: ReaderId, filter: &str) -> bool {
        self.readers[reader.0].is_granted(filter)
    }

    /// A reader is about to say that it does not want a filter any more.
    pub fn leaves(&mut self, reader: ReaderId, filter: &str) {
        let now = self.tick();
        self.readers[reader.0].leave(filter, now);
    }

    /// The broker has acknowledged that.
    pub fn left(&mut self, reader: ReaderId, filter: &str) {
        let now = self.tick();
        self.readers[reader.0].left(filter, now);
    }

    /// The reader ends on purpose.
    pub fn retires(&mut self, reader: ReaderId) {
        self.readers[reader.0].is_retired = true;
    }

    /// Number of copies that have come to anybody.
    #[must_use]
    pub const fn copies(&self) -> u64 {
        self.copies
    }

    /// A reader tells the broker again that it has a message, or the broker asks that. So the broker knows it only from
    /// now on, if the power is cut.
    pub fn told_again(&mut self, reader: ReaderId, payload: &[u8]) {
        let now = self.tick();
        if let Some(stamp) = Stamp::of(payload) {
            self.readers[reader.0].tell_again(stamp, now);
            self.recent.push((reader, stamp));
        }
    }

    /// A copy of a message has come to a reader, under a topic if the protocol says one.
    pub fn received(&mut self, id: ReaderId, topic: Option<&str>, payload: &[u8]) {
        let now = self.tick();
        self.copies += 1;
        let protocol = self.readers[id.0].reading.protocol;
        let name = self.readers[id.0].name.clone();
        let stamp = Stamp::of(payload);
        let Some((stamp, (_, publication))) =
            stamp.and_then(|stamp| Some((stamp, self.publication(stamp)?)))
        else {
            let start = String::from_utf8_lossy(&payload[..payload.len().min(40)]);
            let text = format!(
                "{} got {} bytes that nobody sent: `{}`",
                name,
                payload.len(),
                start.escape_debug()
            );
            self.complain(Promise::Intact, protocol, &name, text);
            return;
        };
        let number = publication.topic;
        if let Some(topic) = topic.filter(|topic| *topic != self.topics[number].name) {
            let text = format!("{} under the topic {topic}", self.describe(stamp));
            self.complain(Promise::Intact, protocol, &name, text);
        }
        self.judge_asked(id, stamp);
        self.recent.push((id, stamp));
        match self.readers[id.0].take(stamp, number, now) {
            Copy::First => self.counts_mut(protocol).delivered += 1,
            Copy::Late => {
                self.counts_mut(protocol).delivered += 1;
                let is_ordered = self.readers[id.0].reading.is_ordered;
                if is_ordered && let Some(after) = self.overtaker(id, stamp) {
                    let text = format!(
                        "{} came to {name} after message {after}",
                        self.describe(stamp)
                    );
                    let who = self.pair(stamp, &name);
                    self.complain(Promise::Order, protocol, &who, text);
                }
            }
            Copy::Repeated => self.judge_once(id, stamp),
            Copy::Forgotten => self.counts_mut(protocol).repeated += 1,
        }
    }

    /// The last of its publisher's later messages on its topic that came to a reader, but had to come behind it.
    fn overtaker(&self, id: ReaderId, stamp: Stamp) -> Option<u32> {
        let reader = &self.readers[id.0];
        let (publisher, late) = self.publication(stamp)?;
        if late.may_be_passed {
            return None;
        }
        let topic = &self.topics[late.topic].name;
        let later = stamp.sequence + 1..publisher.publications.len() as u32;
        later.rev().find(|&sequence| {
            let other = Stamp { sequence, ..stamp };
            publisher.publications[sequence as usize].topic == late.topic
                && reader.has(other)
                && reader.was_first(topic, late.sent, other)
        })
    }

    fn judge_asked(&mut self, id: ReaderId, stamp: Stamp) {
        let reader = &self.readers[id.0];
        let Some((_, publication)) = self.publication(stamp) else {
            return;
        };
        let topic = &self.topics[publication.topic].name;
        let why = match publication.fate {
            Fate::Void if publication.transaction.is_some() => {
                "though its transaction had no effect"
            }
            Fate::Void => "though it was refused",
            Fate::Kept(taken) if !reader.may_have(topic, publication.sent, Some(taken)) => {
                "which had not asked for it then"
            }
            Fate::Pending | Fate::Doubtful if !reader.may_have(topic, publication.sent, None) => {
                "which had not asked for it then"
            }
            _ => return,
        };
        let protocol = reader.reading.protocol;
        let name = reader.name.clone();
        let text = format!("{} came to {name}, {why}", self.describe(stamp));
        let who = self.pair(stamp, &name);
        self.complain(Promise::Asked, protocol, &who, text);
    }

    fn judge_once(&mut self, id: ReaderId, stamp: Stamp) {
        let reader = &self.readers[id.0];
        let reading = reader.reading;
        let is_exact = self.publishers[stamp.publisher as usize].sending.is_exact;
        if reading.is_exact && is_exact {
            let name = reader.name.clone();
            let entry = reader.entry(stamp);
            let text = format!(
                "{} came {} times to {name}, the first in life {}",
                self.describe(stamp),
                entry.copies,
                self.life_at(entry.first)
            );
            let who = self.pair(stamp, &name);
            self.complain(Promise::Once, reading.protocol, &who, text);
        } else {
            self.counts_mut(reading.protocol).repeated += 1;
        }
    }

    /// A message's publisher, and a reader.
    fn pair(&self, stamp: Stamp, reader: &str) -> String {
        let publisher = self.publishers.get(stamp.publisher as usize);
        let publisher = publisher.map_or("nobody", |publisher| publisher.name.as_str());
        format!("{publisher} to {reader}")
    }

    /// A message in words: whose, which, where, and in which lives it was sent and acknowledged.
    fn describe(&self, stamp: Stamp) -> String {
        let Some((publisher, publication)) = self.publication(stamp) else {
            return "an unknown message".to_owned();
        };
        let fate = match publication.fate {
            Fate::Pending => "not answered yet".to_owned(),
            Fate::Kept(at) => format!("acknowledged in life {}", self.life_at(at)),
            Fate::Void => "not taken".to_owned(),
            Fate::Doubtful => "in doubt".to_owned(),
        };
        let transaction = match publication.transaction {
            Some(TransactionId(number)) => format!(", transaction {number}"),
            None => String::new(),
        };
        format!(
            "message {} of {} on {} (sent in life {}, {fate}{transaction})",
            stamp.sequence,
            publisher.name,
            self.topics[publication.topic].name,
            self.life_at(publication.sent)
        )
    }
}

#[cfg(test)]
mod tests;
