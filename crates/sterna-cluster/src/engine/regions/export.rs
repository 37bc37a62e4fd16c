//! To other regions: what this region's clients publish is appended to its stream, in its order.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use async_nats::jetstream::message::PublishMessage;
use sterna_broker::{Message, MessageHeader};

use super::super::Core;
use super::super::outgoing::Charge;
use super::super::retained::{as_retained, place};
use crate::commits::Part;
use crate::subjects;
use crate::wire::{self, EncodedRun};

/// Messages of one entry: as many as an entry of the log has at most.
const MOST_IN_ENTRY: usize = 1 << 10;

/// A message that waits for NATS.
#[derive(Debug)]
pub(in super::super) struct Waiting {
    pub(in super::super) message: Arc<Message>,
    pub(in super::super) shard: u16,
    /// The name that makes it the same message when its publisher sends it again.
    pub(in super::super) name: Option<String>,
    /// Nobody gets it: it ends its topic's retained message.
    pub(in super::super) is_quiet: bool,
    /// Is closed when NATS has it; `None` where nobody waits.
    pub(in super::super) part: Option<Part>,
    pub(in super::super) _charge: Rc<Charge>,
}

impl Waiting {
    /// Whether it may share an entry with others of its topic.
    fn is_plain(&self) -> bool {
        self.name.is_none() && !self.message.retain()
    }
}

/// Messages of one topic on their way.
struct Entry {
    subject: String,
    id: String,
    run: EncodedRun,
    messages: Vec<Waiting>,
}

impl Core {
    /// Takes a message for other regions.
    pub(in super::super) fn export(&self, waiting: Waiting) {
        if self.regions.is_full.get() && waiting.part.is_none() {
            self.gate.count_dropped(1);
            return;
        }
        self.note_handed_over(waiting.message.body_bytes());
        self.regions.waiting.borrow_mut().push_back(waiting);
        self.regions.arrived.notify_one();
    }

    /// Appends what waits, in its order for each topic.
    pub(in super::super) async fn send_to_regions(self: Rc<Self>) {
        let mut serial = 0;
        loop {
            let entries = self.next_exports(&mut serial);
            if entries.is_empty() {
                self.regions.arrived.notified().await;
                continue;
            }
            let append = async |entries| self.append_exports(entries).await;
            // A full stream is no reason to refuse what other nodes want.
            let stalls = || !self.regions.is_full.get();
            self.hand_over_all("messages for other regions", entries, append, stalls)
                .await;
        }
    }

    /// The next entries to append. They are of different topics. So the order within a topic is kept, whichever of
    /// them NATS takes first.
    fn next_exports(&self, serial: &mut u64) -> Vec<Entry> {
        let mut waiting = self.regions.waiting.borrow_mut();
        let (mut entries, mut topics) = (Vec::<Entry>::new(), HashMap::<Box<str>, usize>::new());
        while let Some(one) = waiting.pop_front() {
            let topic = one.message.topic();
            let at = match topics.get(topic).copied() {
                Some(at) => {
                    let entry = &entries[at];
                    let has_room = entry.messages.len() < MOST_IN_ENTRY
                        && entry.run.bytes() + one.message.body_bytes() < self.batch_bytes();
                    let are_plain = one.is_plain() && entry.messages.iter().all(Waiting::is_plain);
                    if !has_room || !are_plain {
                        waiting.push_front(one);
                        break;
                    }
                    at
                }
                None if entries.len() == self.settings.maximum_in_flight => {
                    waiting.push_front(one);
                    break;
                }
                None => {
                    *serial += 1;
                    topics.insert(topic.into(), entries.len());
                    entries.push(self.new_entry(&one, *serial));
                    entries.len() - 1
                }
            };
            entries[at].run.push(&one.message, false);
            entries[at].messages.push(one);
        }
        entries
    }

    fn new_entry(&self, first: &Waiting, serial: u64) -> Entry {
        let [retained, other] = subjects::OUT_KINDS;
        let kind = if first.message.retain() {
            retained
        } else {
            other
        };
        let place = place(first.message.topic());
        let region = self.settings.region.as_ref();
        let region = region.map_or("", |region| &*region.name);
        let (node, incarnation) = (&self.settings.node, self.incarnation.get());
        // The log of another region knows entries of all regions by their names.
        let name = first.name.clone();
        let name = name.unwrap_or_else(|| format!("{node}.{incarnation}.out.{serial}"));
        Entry {
            subject: self.settings.subject(&subjects::out(kind, &place)),
            id: format!("@{region}.{name}"),
            run: EncodedRun::new(first.shard),
            messages: Vec::new(),
        }
    }

    /// Appends entries and returns those that NATS does not have.
    async fn append_exports(&self, entries: Vec<Entry>) -> Vec<Entry> {
        let writes = entries.into_iter().map(|entry| {
            // Regions do not hear what others read.
            let payload = wire::batch(self.reads().lowest, [&entry.run]);
            let bytes = payload.len();
            let mut publish = PublishMessage::build()
                .payload(payload)
                .message_id(&entry.id);
            if let Some(first) = entry.messages.first().filter(|one| one.message.retain()) {
                publish = as_retained(publish, first.is_quiet);
            }
            let subject = entry.subject.clone();
            ((entry, bytes), subject, publish)
        });
        let mut failed = Vec::new();
        for ((entry, bytes), answer) in self.publish_all(writes).await {
            match answer {
                Ok(_) => self.count_sent(entry.messages.len(), bytes),
                Err(error) if self.gives_up("other regions", entry.messages.len(), &error) => {}
                Err(_) => {
                    failed.push(entry);
                    continue;
                }
            }
            for part in entry.messages.iter().filter_map(|waiting| waiting.part) {
                self.close(part);
            }
        }
        failed
    }
}

/// A message with a time, by which regions agree on it: the end of a retained message that nobody has published is as
/// of `now_ms`.
pub(in super::super) fn dated(message: Arc<Message>, now_ms: u64) -> Arc<Message> {
    if message.published_ms() != 0 {
        return message;
    }
    let header = MessageHeader {
        qos: message.qos(),
        retain: message.retain(),
        published_ms: now_ms,
        expires_at_ms: None,
    };
    let copy = Message::copy(
        message.topic(),
        message.properties(),
        message.payload(),
        header,
    );
    copy.map_or(message, Arc::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_has_published_is_as_of_now() {
        let of = |published_ms| {
            let header = MessageHeader {
                retain: true,
                published_ms,
                ..MessageHeader::default()
            };
            Arc::new(Message::copy("t", &[], &[], header).expect("a message"))
        };
        let end = dated(of(0), 9);
        assert_eq!(end.published_ms(), 9);
        assert!(end.retain() && end.topic() == "t" && end.payload().is_empty());
        assert_eq!(dated(of(7), 9).published_ms(), 7);
    }
}
