//! Appending what shards hand over.

use std::collections::HashMap;
use std::rc::Rc;

use async_nats::jetstream::message::PublishMessage;
use futures_util::future::join_all;
use ring::digest;
use sterna_broker::{Message, Once};

use super::{Item, MOST_IN_ENTRY, Waiting};
use crate::engine::{Core, retained};
use crate::wire::{self, EncodedRun};

/// Messages of one topic on their way into the log.
struct Entry {
    subject: String,
    /// By what NATS knows it again.
    id: String,
    run: EncodedRun,
    messages: Vec<Waiting>,
}

impl Core {
    /// Appends what waits, in its order: what comes after it begins when NATS has all of it.
    pub(in crate::engine) async fn send_log(self: Rc<Self>) {
        let mut serial = 0;
        loop {
            let (entries, records) = self.next_entries(&mut serial);
            if entries.is_empty() && records.is_empty() {
                self.log.arrived.notified().await;
                continue;
            }
            if !entries.is_empty() {
                self.hand_over_all("the log", entries, async |entries| {
                    self.append_to_log(entries).await
                })
                .await;
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
