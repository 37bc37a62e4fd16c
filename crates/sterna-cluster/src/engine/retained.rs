//! Retained messages: all nodes agree on them by the order in which NATS has them.
//!
//! A node retains its own messages at once, and hands them to NATS. It retains another node's message when that
//! comes by, unless an own message for that topic is still on its way ([`Echoes`](crate::echoes::Echoes)).

use std::collections::HashSet;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::message::PublishMessage;
use bytes::Bytes;
use futures_util::future::join_all;
use sterna_broker::{FromPeer, Message, NodeSet};

use super::following::Entry;
use super::interest::digest_of;
use super::outgoing::Charge;
use super::regions::Standing;
use super::sessions::key_of_text;
use super::streams::RETAINED;
use super::writing::{as_last, is_conflict};
use super::{Core, Retry};
use crate::commits::Part;
use crate::settings::LONGEST_NAME;
use crate::subject;
use crate::subjects;
use crate::wire::{self, EncodedRun, Versions};

/// How often is looked whether shards have read what they were handed.
const PAUSE: Duration = Duration::from_millis(1);

/// The longest subject; a server takes lines of 4,096 bytes by default.
const LONGEST_SUBJECT: usize = 2_048;

/// The node that set the message, with its incarnation.
const SOURCE: &str = "Sterna-Source";
/// It is delivered to nobody.
pub(super) const QUIET: &str = "Sterna-Quiet";
/// The names of nodes that get it as other messages of its QoS: it is delivered to nobody there.
const REACHED: &str = "Sterna-Reached";
/// Room for these names.
pub(super) const REACHED_BYTES: usize = REACHED.len() + NodeSet::MAXIMUM * (LONGEST_NAME + 1);

/// A retained message that waits for NATS.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) message: Arc<Message>,
    pub(super) shard: u16,
    /// The number by which NATS knows it again; 0 before it has one.
    pub(super) serial: u64,
    pub(super) is_quiet: bool,
    /// The nodes that get it as other messages of its QoS.
    pub(super) reached: String,
    pub(super) over: Over,
    /// Is closed when NATS has it; `None` where nobody waits.
    pub(super) part: Option<Part>,
    pub(super) _charge: Rc<Charge>,
}

/// The entry of its topic that a retained message may take the place of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Over {
    /// Any, also none.
    Any,
    /// None: NATS had it before, and it stays away where there is another by now.
    Nothing,
    /// A message that this node does not know of. Where there is none, the end of it stays away.
    Unknown,
}

impl Core {
    pub(super) fn retain(&self, mut waiting: Waiting) {
        waiting.serial = self.last_retained.get() + 1;
        self.last_retained.set(waiting.serial);
        (self.echoes.borrow_mut()).begin(waiting.message.topic(), waiting.serial);
        self.restore(waiting);
    }

    /// Hands a message over that this node retains already.
    pub(super) fn restore(&self, waiting: Waiting) {
        self.retained.borrow_mut().push_back(waiting);
        self.retained_arrived.notify_one();
    }

    /// Hands this node's retained messages to NATS, those of one topic one after the other.
    pub(super) async fn send_retained(self: Rc<Self>) {
        loop {
            let batch = self.next_of_each_topic();
            if batch.is_empty() {
                self.retained_arrived.notified().await;
                continue;
            }
            let hand_over = async |batch| self.hand_over(batch).await;
            self.hand_over_all("retained messages", batch, hand_over, || true)
                .await;
        }
    }

    /// The first that wait, up to the second of one topic.
    fn next_of_each_topic(&self) -> Vec<Waiting> {
        let most = self.settings.maximum_in_flight;
        let mut waiting = self.retained.borrow_mut();
        let count = {
            let mut topics = HashSet::new();
            let mut all = waiting.iter().take(most);
            let second = all.position(|one| !topics.insert(one.message.topic()));
            second.unwrap_or_else(|| waiting.len().min(most))
        };
        waiting.drain(..count).collect()
    }

    /// Hands messages over and returns those that NATS does not have.
    async fn hand_over(self: &Rc<Self>, batch: Vec<Waiting>) -> Vec<Waiting> {
        let mut failed = Vec::new();
        let mut wanted = Vec::with_capacity(batch.len());
        for (waiting, over) in self.with_places(batch).await {
            match over {
                Ok(Place::At(expected)) => wanted.push((waiting, expected)),
                Ok(Place::Nowhere) => self.close_retained(waiting.part),
                Err(why) => {
                    tracing::debug!(why, "the retained message of a topic is looked for again");
                    failed.push(waiting);
                }
            }
        }
        let writes = wanted.into_iter().map(|(waiting, expected)| {
            let message = &waiting.message;
            let mut run = EncodedRun::new(waiting.shard);
            run.push(message, false);
            let own = format!("{}.{}", self.settings.node, self.incarnation.get());
            let payload = self.batch([&run]);
            let mut publish = PublishMessage::build().payload(payload);
            if let Some(expected) = expected {
                // Nobody waits for it to come by.
                publish = publish.expected_last_subject_sequence(expected);
            } else {
                // An append whose answer was lost is the same one when it is tried again.
                let id = format!("{own}.retained.{}", waiting.serial);
                publish = publish.header(SOURCE, own).message_id(id);
            }
            if !waiting.reached.is_empty() {
                publish = publish.header(REACHED, &*waiting.reached);
            }
            publish = as_retained(as_last(publish), waiting.is_quiet);
            let subject = self.settings.subject(&subject_of(message.topic()));
            (waiting, subject, publish)
        });
        for (waiting, answer) in self.publish_all(writes).await {
            match answer {
                Ok(position) => {
                    let topic = waiting.message.topic();
                    self.note_retained(&subject_of(topic), position, &waiting.message, true);
                    if waiting.over == Over::Any {
                        let rival =
                            (self.echoes.borrow_mut()).stored(topic, waiting.serial, position);
                        self.retain_rival(topic, rival);
                    }
                    self.close_retained(waiting.part);
                }
                Err(error) if waiting.over == Over::Nothing && is_conflict(&error) => {}
                Err(error) if self.gives_up("retained messages", 1, &error) => {
                    let topic = waiting.message.topic();
                    let rival = (self.echoes.borrow_mut()).give_up(topic, waiting.serial);
                    self.retain_rival(topic, rival);
                    self.close_retained(waiting.part);
                }
                Err(_) => failed.push(waiting),
            }
        }
        failed
    }

    fn close_retained(&self, part: Option<Part>) {
        if let Some(part) = part {
            self.close(part);
        }
    }

    /// The places of retained messages in NATS.
    async fn with_places(&self, batch: Vec<Waiting>) -> Vec<(Waiting, Result<Place, String>)> {
        let looks = batch.into_iter().map(async |waiting| {
            let place = match waiting.over {
                Over::Any => Ok(Place::At(None)),
                Over::Nothing => Ok(Place::At(Some(0))),
                Over::Unknown => self.place_of_clear(waiting.message.topic()).await,
            };
            (waiting, place)
        });
        join_all(looks).await
    }

    /// Where the end of a topic's retained message goes that this node does not know of.
    async fn place_of_clear(&self, topic: &str) -> Result<Place, String> {
        let found = self.last_at_leader(RETAINED, &subject_of(topic)).await?;
        let found = found.filter(|found| !clears(self.reads(), &found.payload));
        Ok(found.map_or(Place::Nowhere, |found| Place::At(Some(found.sequence))))
    }

    /// Follows the retained messages of all nodes.
    pub(super) async fn follow_retained(self: Rc<Self>) {
        let mut retry = Retry::new();
        let mut next = None;
        loop {
            let Err(why) = self.follow_retained_once(&mut next).await;
            tracing::debug!(why, "retained messages are read on");
            self.status.failed_attempts.add(1);
            retry.wait().await;
        }
    }

    /// `next` is where to read on; `None` before the first message.
    async fn follow_retained_once(
        self: &Rc<Self>,
        next: &mut Option<u64>,
    ) -> Result<Infallible, String> {
        let start = match *next {
            Some(start_sequence) => DeliverPolicy::ByStartSequence { start_sequence },
            None => DeliverPolicy::LastPerSubject,
        };
        // Those of other regions lie beside this one's.
        let filter = match &self.settings.region {
            Some(_) => ">".to_owned(),
            None => subjects::retained(">"),
        };
        let mut messages = self.follow(RETAINED, Some(&filter), start).await?;
        // Messages that are there already are news to this node only.
        let knows_all = self.status.knows_retained.load(Ordering::Acquire);
        let mut old = if knows_all { 0 } else { messages.waiting };
        if old == 0 {
            self.knows_retained();
        }
        loop {
            let message = messages.next().await?;
            let is_old = old > 0;
            let region = self.region_of(&message.subject);
            let position = message.position;
            self.retained_by(region, &message, is_old);
            *next = Some(position + 1);
            // All others of it wait in NATS meanwhile.
            while self.gate.is_behind() {
                tokio::time::sleep(PAUSE).await;
            }
            if is_old {
                old -= 1;
                if old == 0 {
                    self.knows_retained();
                }
            }
        }
    }

    fn knows_retained(&self) {
        if !self.status.knows_retained.swap(true, Ordering::AcqRel) {
            self.look_at_gate();
        }
    }

    /// `region` is where the message is from; `None` for this region.
    fn retained_by(self: &Rc<Self>, region: Option<&str>, entry: &Entry, is_old: bool) {
        let (headers, payload) = (entry.headers.as_ref(), &entry.payload);
        let header = |name: &str| headers.and_then(|headers| headers.get(name));
        let runs = match self.read(payload) {
            Ok(runs) => runs,
            Err(error) => {
                let source = header(SOURCE).map_or("", async_nats::HeaderValue::as_str);
                return self.cannot_read("retained message", source, error);
            }
        };
        let source = header(SOURCE).map(async_nats::HeaderValue::as_str);
        let own = format!("{}.{}", self.settings.node, self.incarnation.get());
        let is_quiet = is_quiet_at(&self.settings.node, headers);
        for run in runs {
            for message in run.messages {
                let is_own = region.is_none() && source == Some(&*own);
                let topic = message.topic();
                if region.is_none() && !is_own {
                    self.note_retained(&subject_of(topic), entry.position, &message, false);
                }
                let is_own_to_come = {
                    let mut echoes = self.echoes.borrow_mut();
                    if is_own {
                        echoes.own_comes(topic, serial_in(headers))
                    } else {
                        echoes.other_comes(topic, entry.position, || payload.clone())
                    }
                };
                // Those of other regions come by in the log, too.
                let is_quiet = is_old || is_quiet || region.is_some();
                let what = what_to_do(is_own, is_own_to_come, is_quiet);
                let from = (region, entry.position);
                let what = self.among_regions(from, is_own, &message, what);
                if let Some(what) = what {
                    self.post_retained(message, what);
                }
            }
        }
    }
}

impl Core {
    /// The region that a retained message is from; `None` for this one.
    fn region_of<'a>(&self, subject: &'a str) -> Option<&'a str> {
        self.settings.region.as_ref()?;
        let mut tokens = subject.split('.').skip(2);
        (tokens.next()? == subjects::RETAINED_OF)
            .then(|| tokens.next())
            .flatten()
    }

    /// Posts a retained message to a shard. One shard has all of a topic: with two, one message might overtake another.
    fn post_retained(&self, message: Message, what: FromPeer) {
        let shard = usize::from(key_of_text(message.topic())[0]);
        self.post_messages(shard, vec![(message, what)]);
    }

    /// Retains the message of another node that NATS has behind this node's last of the topic. `None` where there is
    /// none. It was delivered as it came by.
    fn retain_rival(self: &Rc<Self>, topic: &str, rival: Option<Bytes>) {
        let Some(payload) = rival else {
            return;
        };
        if !self.settings.crosses(topic) {
            return self.retain_payload(&payload);
        }
        let newest = self.regions.newest_of(topic);
        if let Some(newest) = newest {
            let core = Rc::clone(self);
            self.spawn(core.retain_newest(topic.into(), newest));
        }
    }

    fn retain_payload(&self, payload: &[u8]) {
        for run in self.read(payload).unwrap_or_default() {
            for message in run.messages {
                self.post_retained(message, FromPeer::Retain);
            }
        }
    }

    /// The way to apply a retained message where other regions have one for its topic, too. `what` is the way
    /// without regions.
    fn among_regions(
        self: &Rc<Self>,
        (region, position): (Option<&str>, u64),
        is_own: bool,
        message: &Message,
        what: Option<FromPeer>,
    ) -> Option<FromPeer> {
        let topic = message.topic();
        let Some(here) = (self.settings.region.as_ref()).filter(|_| self.settings.crosses(topic))
        else {
            // It came while the settings were others.
            return what.filter(|_| region.is_none());
        };
        let from = region.unwrap_or(&here.name);
        let standing = self.regions.note_version(from, position, message);
        let stays = match standing {
            Standing::Newest => return what,
            Standing::Older => is_own.then(|| self.regions.newest_of(topic)).flatten(),
            Standing::Overtaken(by) => Some(by),
        };
        if let Some(newest) = stays {
            let core = Rc::clone(self);
            self.spawn(core.retain_newest(topic.into(), newest));
        }
        match what {
            Some(FromPeer::Publish | FromPeer::Deliver) => Some(FromPeer::Deliver),
            Some(FromPeer::Retain) | None => None,
        }
    }

    /// Retains a region's message of a topic, which an older one has taken the place of here.
    async fn retain_newest(self: Rc<Self>, topic: Box<str>, newest: String) {
        let subject = self.retained_subject(&newest, &topic);
        let mut retry = Retry::new();
        loop {
            let payload = match self.last_at_leader(RETAINED, &subject).await {
                Ok(Some(found)) => found.payload,
                // It has expired meanwhile.
                Ok(None) => return,
                Err(_) => {
                    retry.wait().await;
                    continue;
                }
            };
            // A newer one may have come by meanwhile, and stays.
            if self.regions.newest_of(&topic).as_deref() != Some(&*newest)
                || self.echoes.borrow().is_under_way(&topic)
            {
                return;
            }
            return self.retain_payload(&payload);
        }
    }
}

/// The place of a retained message in NATS.
enum Place {
    /// Behind this entry of its topic, 0 for none; `None` for any.
    At(Option<u64>),
    /// There is nothing to say.
    Nowhere,
}

/// Whether an entry says that its topic has no retained message.
fn clears(reads: Versions, payload: &[u8]) -> bool {
    let is_empty = |message: &Message| message.payload().is_empty();
    wire::read(reads, payload).map_or(payload.is_empty(), |runs| {
        runs.iter().all(|run| run.messages.iter().all(is_empty))
    })
}

/// The way to apply a retained message that comes by; `None` where it is ignored.
const fn what_to_do(is_own: bool, is_own_to_come: bool, is_quiet: bool) -> Option<FromPeer> {
    match (is_own_to_come, is_own || is_quiet) {
        (true, true) => None,
        (true, false) => Some(FromPeer::Deliver),
        // Another node's may have come between an own one's publication and now.
        (false, true) => Some(FromPeer::Retain),
        (false, false) => Some(FromPeer::Publish),
    }
}

/// The number of an own retained message.
fn serial_in(headers: Option<&HeaderMap>) -> u64 {
    let id = headers.and_then(|headers| headers.get(NATS_MESSAGE_ID));
    let serial = id.and_then(|id| id.as_str().rsplit('.').next());
    serial.and_then(|serial| serial.parse().ok()).unwrap_or(0)
}

/// Whether a retained message is delivered to none of a node's readers.
fn is_quiet_at(node: &str, headers: Option<&HeaderMap>) -> bool {
    headers.is_some_and(|headers| {
        let reached = headers.get(REACHED);
        headers.get(QUIET).is_some()
            || reached.is_some_and(|names| names.as_str().split(' ').any(|name| name == node))
    })
}

/// A write of a retained message. Nobody gets it if it is quiet.
pub(super) fn as_retained(write: PublishMessage, is_quiet: bool) -> PublishMessage {
    if is_quiet {
        write.header(QUIET, "1")
    } else {
        write
    }
}

/// The subject of a topic's retained message in this region, without the cluster's name.
pub(super) fn subject_of(topic: &str) -> String {
    subjects::retained(&place(topic))
}

/// The part of a subject that stands for a topic. One that is too long for a subject has its digest.
pub(super) fn place(topic: &str) -> String {
    let place = subject::of_topic(topic);
    if place.len() <= LONGEST_SUBJECT {
        place
    } else {
        format!("long.{}", digest_of(topic))
    }
}

#[cfg(test)]
mod tests {
    use sterna_broker::MessageHeader;

    use super::*;

    #[test]
    fn nodes_that_get_a_message_as_others_retain_it_quietly() {
        let mut headers = HeaderMap::new();
        assert!(!is_quiet_at("a", None) && !is_quiet_at("a", Some(&headers)));
        headers.insert(REACHED, "b a-2");
        assert!(is_quiet_at("b", Some(&headers)) && is_quiet_at("a-2", Some(&headers)));
        assert!(!is_quiet_at("a", Some(&headers)));
        headers.insert(QUIET, "1");
        assert!(is_quiet_at("a", Some(&headers)));
    }

    #[test]
    fn an_entry_of_a_cleared_topic_is_told_from_a_retained_message() {
        let entry = |payload: &[u8]| {
            let header = MessageHeader {
                retain: true,
                ..MessageHeader::default()
            };
            let message = Message::copy("t", &[], payload, header).expect("a message");
            let mut run = EncodedRun::new(0);
            run.push(&message, false);
            wire::batch(1, [&run])
        };
        let clears = |payload: &[u8]| clears(wire::READS, payload);
        assert!(clears(&entry(b"")) && clears(b""));
        assert!(!clears(&entry(b"x")) && !clears(b"\xffanother version"));
    }

    #[test]
    fn every_topic_has_a_place_of_its_own() {
        assert_eq!(place("a/b"), "t.a.b");
        let long = "x/".repeat(2_000);
        assert!(place(&long).starts_with("long.") && place(&long).len() < 50);
        assert_ne!(place(&long), place(&long[1..]));
    }
}
