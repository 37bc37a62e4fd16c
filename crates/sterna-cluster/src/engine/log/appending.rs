//! Appending what shards hand over.

use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;

use async_nats::jetstream::message::PublishMessage;
use ring::digest;
use sterna_broker::{Destination, Message, Once, name_of as name_of_key};

use super::{Item, MOST_IN_ENTRY, Waiting};
use crate::commits::Part;
use crate::engine::sessions::key_of_text;
use crate::engine::{Core, retained};
use crate::owners::Key;
use crate::subjects;
use crate::tail;
use crate::wire::EncodedRun;

/// Messages of one topic on their way into the log.
struct Entry {
    subject: String,
    /// By what NATS knows it again.
    id: String,
    run: EncodedRun,
    messages: Vec<Waiting>,
}

impl Entry {
    fn new(subject: String, id: String, shard: u16) -> Self {
        Self {
            subject,
            id,
            run: EncodedRun::new(shard),
            messages: Vec::new(),
        }
    }

    /// Whether a message may be added.
    fn has_room(&self, message: &Message, most_bytes: usize) -> bool {
        self.messages.len() < MOST_IN_ENTRY && self.run.bytes() + message.body_bytes() < most_bytes
    }

    fn push(&mut self, one: Waiting, may_be_brief: bool) {
        self.run.push(&one.message, may_be_brief);
        self.messages.push(one);
    }
}

/// Items that do not get into the log: turns with messages for it, and sessions with records of these turns.
struct Stuck {
    turns: HashSet<Part>,
    sessions: HashSet<Key>,
}

impl Stuck {
    /// Whether the next item may overtake these. Records of one session stay in their order.
    fn lets_pass(&mut self, item: &Item) -> bool {
        match item {
            Item::Message(waiting) => {
                self.turns.insert(waiting.part);
                false
            }
            Item::Records { changes, part } => {
                let names = changes.iter().filter_map(|change| name_of_key(&change.key));
                let keys: Vec<Key> = names.map(key_of_text).collect();
                let is_stuck =
                    self.turns.contains(part) || keys.iter().any(|key| self.sessions.contains(key));
                if is_stuck {
                    self.sessions.extend(keys);
                }
                !is_stuck
            }
            Item::Left(key) | Item::Mark(key, _) => !self.sessions.contains(key),
        }
    }
}

impl Core {
    /// Appends what waits, in its order: what comes after it begins when NATS has all of it.
    pub(in crate::engine) async fn send_log(self: Rc<Self>) {
        let mut serial = 0;
        loop {
            let (entries, mut records) = self.next_entries(&mut serial);
            (self.log.is_sending).set(!(entries.is_empty() && records.is_empty()));
            if entries.is_empty() && records.is_empty() {
                self.log.arrived.notified().await;
                continue;
            }
            if !entries.is_empty() {
                let append = async |entries| {
                    let missing = self.append_to_log(entries).await;
                    self.let_pass(&missing, &mut records);
                    missing
                };
                self.hand_over_all("the log", entries, append, || true)
                    .await;
            }
            for item in records {
                self.pass(item);
            }
        }
    }

    /// Does what was waiting for messages before it.
    fn pass(self: &Rc<Self>, item: Item) {
        match item {
            Item::Records { changes, part } => self.keep(changes, part),
            Item::Left(key) => self.leave_kept(key),
            // The task that waits may have given up.
            Item::Mark(_, waiting) => drop(waiting.send(())),
            Item::Message(_) => {}
        }
    }

    /// Has records overtake messages of other turns that NATS does not take. A full log gets room only when cursors
    /// move on.
    fn let_pass(self: &Rc<Self>, missing: &[Entry], records: &mut Vec<Item>) {
        if missing.is_empty() {
            return;
        }
        let messages = missing.iter().flat_map(|entry| &entry.messages);
        let mut stuck = Stuck {
            turns: messages.map(|waiting| waiting.part).collect(),
            sessions: HashSet::new(),
        };
        let mut passing: Vec<Item> = records
            .extract_if(.., |item| stuck.lets_pass(item))
            .collect();
        let waiting = std::mem::take(&mut *self.log.waiting.borrow_mut());
        for item in waiting {
            if stuck.lets_pass(&item) {
                passing.push(item);
            } else {
                self.log.waiting.borrow_mut().push_back(item);
            }
        }
        for item in passing {
            self.pass(item);
        }
    }

    /// The next entries to append, and the records that follow them. The entries are of different topics. So the
    /// order within a topic is kept, whichever of them NATS takes first.
    fn next_entries(&self, serial: &mut u64) -> (Vec<Entry>, Vec<Item>) {
        let mut waiting = self.log.waiting.borrow_mut();
        let (mut entries, mut records) = (Vec::<Entry>::new(), Vec::new());
        let mut topics = HashMap::<Box<str>, Option<usize>>::new();
        while let Some(item) = waiting.pop_front() {
            let one = match item {
                Item::Message(one) => one,
                other => {
                    records.push(other);
                    continue;
                }
            };
            if one.following > 0 {
                if !entries.is_empty() || !records.is_empty() {
                    waiting.push_front(Item::Message(one));
                    break;
                }
                *serial += 1;
                entries.push(self.entry_together(one, &mut waiting, *serial));
                break;
            }
            // Records hold for messages before them, and come after those of this turn.
            let known = topics.get(one.message.topic()).copied();
            let has_room = |at: usize| entries[at].has_room(&one.message, self.batch_bytes());
            let at = match known {
                Some(Some(at)) if one.once.is_none() && has_room(at) => at,
                Some(_) => {
                    waiting.push_front(Item::Message(one));
                    break;
                }
                None if entries.len() == self.settings.maximum_in_flight => {
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
                    let subject = self.settings.subject(&subjects::log(&place));
                    entries.push(Entry::new(subject, id, one.shard));
                    let at = entries.len() - 1;
                    // A message with a name of its own is alone in its entry.
                    let open = one.once.is_none().then_some(at);
                    topics.insert(one.message.topic().into(), open);
                    at
                }
            };
            entries[at].push(one, true);
        }
        (entries, records)
    }

    /// The entry of messages that were published together: the first of them, and those that follow it.
    fn entry_together(&self, first: Waiting, waiting: &mut VecDeque<Item>, serial: u64) -> Entry {
        let own = (&self.settings.node, self.incarnation.get());
        let subject = self.settings.subject(&subjects::log(subjects::TOGETHER));
        let id = format!("{}.{}.log.{serial}", own.0, own.1);
        let mut entry = Entry::new(subject, id, first.shard);
        let mut left = first.following;
        entry.push(first, false);
        // One shard has handed them over in one go.
        while left > 0
            && matches!(waiting.front(), Some(Item::Message(_)))
            && let Some(Item::Message(next)) = waiting.pop_front()
        {
            left -= 1;
            entry.push(next, false);
        }
        entry
    }

    /// Appends entries and returns those that NATS does not have.
    async fn append_to_log(&self, entries: Vec<Entry>) -> Vec<Entry> {
        let names: Vec<&str> = entries.iter().map(|entry| &*entry.id).collect();
        let Some(are_there) = self.are_in_log(&names).await else {
            return entries;
        };
        let mut are_there = are_there.into_iter();
        let (there, entries): (Vec<_>, Vec<_>) =
            (entries.into_iter()).partition(|_| are_there.next().unwrap_or(false));
        for entry in there {
            self.has_left(entry);
        }
        let writes = entries.into_iter().map(|entry| {
            // All nodes read the log, also one that has joined while the entry was waiting.
            let payload = self.batch([&entry.run]);
            let bytes = payload.len();
            let mut publish = (PublishMessage::build().payload(payload)).message_id(&entry.id);
            // A message that settles a record has a name, and so it is alone.
            if let Some(line) = entry.messages.first().and_then(|one| self.line_of(one)) {
                publish = publish.header(tail::HEADER, line);
            }
            let subject = entry.subject.clone();
            ((entry, bytes), subject, publish)
        });
        let mut failed = Vec::new();
        for ((entry, bytes), answer) in self.publish_all(writes).await {
            match answer {
                Ok(_) => self.count_sent(entry.messages.len(), bytes),
                Err(error) if self.gives_up("the log", entry.messages.len(), &error) => {}
                Err(_) => {
                    failed.push(entry);
                    continue;
                }
            }
            self.has_left(entry);
        }
        failed
    }

    /// An entry is in the log, or given up.
    fn has_left(&self, entry: Entry) {
        self.end_attempts(&entry.id);
        for waiting in entry.messages {
            self.close(waiting.part);
        }
    }
}

/// The name of a publication, where it has one.
pub(in crate::engine) fn name_in(destination: Destination, message: &Message) -> Option<String> {
    match destination {
        Destination::Log {
            once: Some(once), ..
        } => Some(name_of(once, message)),
        _ => None,
    }
}

/// The name of a publication, the same on whichever node it is published. Another publication of the client under
/// the same packet identifier has another content or round.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sterna_broker::{Change, Encoded, MessageHeader, Outbound, Outgoing};

    use super::*;
    use crate::commits::Commits;
    use crate::engine::offline::{self, Silent};
    use crate::engine::outgoing::LiveByNode;
    use crate::engine::sessions::key_of_text;
    use crate::settings::Settings;
    use crate::wire;

    #[test]
    fn records_overtake_messages_of_other_turns_and_not_each_other() {
        let mut commits = Commits::default();
        let [full, later] = [1, 2].map(|token| commits.open(0, token));
        let records = |part, name: u8| Item::Records {
            changes: vec![Change {
                key: [b'c', 3, b'1', b':', name].into(),
                value: None,
            }],
            part,
        };
        let mut stuck = Stuck {
            turns: HashSet::from([full]),
            sessions: HashSet::new(),
        };
        assert!(stuck.lets_pass(&records(later, b'a')));
        assert!(!stuck.lets_pass(&records(full, b'a')), "its own turn's");
        assert!(!stuck.lets_pass(&records(later, b'a')), "it would overtake");
        assert!(stuck.lets_pass(&records(later, b'b')));
        assert!(!stuck.lets_pass(&Item::Left(key_of_text("1:a"))));
        assert!(stuck.lets_pass(&Item::Left(key_of_text("1:b"))));
        // A full log gets room by sessions that move here, and go on.
        let mark = |name| Item::Mark(key_of_text(name), tokio::sync::oneshot::channel().0);
        assert!(
            !stuck.lets_pass(&mark("1:a")),
            "its records are still to come"
        );
        assert!(stuck.lets_pass(&mark("1:b")));
    }

    #[tokio::test]
    async fn an_entry_has_as_much_as_a_batch_and_its_records_are_brief() {
        let settings = Settings {
            batch_bytes: 20_000,
            ..Settings::sample(None)
        };
        let core = offline::core(settings, |_| Silent).await;
        let topic = "plant/line/machine/temperature";
        let header = MessageHeader::default();
        let message = Message::copy(topic, &[], &[7; 20], header).expect("it fits");
        let message = Arc::new(message);
        let outgoing = (0..2_000).map(|_| Outgoing {
            message: Arc::clone(&message),
            destination: Destination::Log {
                once: None,
                following: 0,
            },
            settles: None,
        });
        let turn = Outbound {
            token: 1,
            encoded: Encoded::default(),
            outgoing: outgoing.collect(),
        };
        core.sort(0, turn, Vec::new(), &mut LiveByNode::new());
        let (mut serial, mut messages) = (0, 0);
        let mut counts = Vec::new();
        while messages < 2_000 {
            let (entries, _) = core.next_entries(&mut serial);
            assert_eq!(entries.len(), 1, "all are of one topic");
            let entry = &entries[0];
            messages += entry.messages.len();
            counts.push(entry.messages.len());
            let payload = core.batch([&entry.run]);
            let room = core.batch_bytes() + wire::RECORD_OVERHEAD_BYTES;
            assert!(payload.len() <= room, "{} bytes", payload.len());
        }
        // Whole ones have the topic, and 50 bytes and more.
        assert!(counts[0] > 20_000 / 50, "{counts:?}");
    }
}
