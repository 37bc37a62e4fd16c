//! The comparison: messages that are due and have not come, and retained messages.

use crate::{Fate, Ledger, Promise, Protocol, Stamp, TransactionId};

/// A message that is due to a reader and has not come: the reader's number, and the stamp.
type Missing = (usize, Stamp);

impl Ledger {
    /// The copies that are due and have not come.
    fn find_missing(&self) -> Vec<Missing> {
        let mut missing = Vec::new();
        for (number, publisher) in self.publishers.iter().enumerate() {
            let new = publisher.publications.iter().enumerate();
            for (sequence, publication) in new.skip(publisher.compared) {
                if !matches!(publication.fate, Fate::Kept(_)) {
                    continue;
                }
                let stamp = Stamp {
                    publisher: number as u32,
                    sequence: sequence as u32,
                };
                for (reader, page) in self.readers.iter().enumerate() {
                    if !page.has(stamp)
                        && page.is_due(&self.topics[publication.topic].name, publication.sent)
                    {
                        missing.push((reader, stamp));
                    }
                }
            }
        }
        missing
    }

    /// How many copies are due and have not come.
    pub fn missing(&mut self) -> usize {
        self.look_at_doubtful(false);
        self.find_missing().len()
    }

    /// Ends a comparison: messages that have not come now are lost, and the next comparison begins
    /// after them.
    pub fn close(&mut self) {
        self.look_at_doubtful(true);
        for (reader, stamp) in self.find_missing() {
            let Some((publisher, publication)) = self.publication(stamp) else {
                continue;
            };
            let topic = &self.topics[publication.topic].name;
            let (mut due, mut got) = (0, 0);
            for other in &self.readers {
                due += usize::from(other.is_due(topic, publication.sent));
                got += usize::from(other.has(stamp));
            }
            let promise = match publication.transaction {
                Some(TransactionId(number)) if self.is_seen(number) => Promise::Whole,
                _ => Promise::Kept,
            };
            let protocol = publisher.sending.protocol;
            let name = self.readers[reader].name.clone();
            let text = format!(
                "{} did not come to {name} ({got} of {due} readers have it)",
                self.describe(stamp)
            );
            let who = self.pair(stamp, &name);
            self.complain(promise, protocol, &who, text);
        }
        for publisher in &mut self.publishers {
            let mut publications = publisher.publications.iter();
            let first = publications.position(|publication| publication.fate == Fate::Pending);
            publisher.compared = first.unwrap_or(publisher.publications.len());
        }
        self.recent.drain(..self.compared);
        self.compared = self.recent.len();
    }

    /// Whether a reader has seen a part of a transaction.
    pub(crate) fn is_seen(&self, transaction: usize) -> bool {
        let stamps = &self.transactions[transaction];
        let mut readers = self.readers.iter();
        readers.any(|reader| stamps.iter().any(|stamp| reader.has(*stamp)))
    }

    /// Compares the retained message that was found with the messages that its only publisher has published there.
    pub fn judge_retained(&mut self, asked: Protocol, topic: &str, found: Option<&[u8]>) {
        self.tick();
        let Some(number) = self.topic_numbers.get(topic).copied() else {
            return;
        };
        let mut allowed: Vec<Option<Stamp>> = Vec::new();
        let mut is_kept = false;
        for stamp in self.topics[number].publications.iter().rev() {
            let Some((_, publication)) = self.publication(*stamp) else {
                continue;
            };
            if publication.fate == Fate::Void {
                continue;
            }
            allowed.push((!publication.clears).then_some(*stamp));
            is_kept = matches!(publication.fate, Fate::Kept(_));
            if is_kept {
                break;
            }
        }
        if !is_kept {
            // Nothing was acknowledged there yet.
            allowed.push(None);
        }
        let stamp = found.map(Stamp::of);
        let found = match stamp {
            None => "nothing".to_owned(),
            Some(Some(stamp)) => self.describe(stamp),
            Some(None) => "bytes that nobody sent".to_owned(),
        };
        if stamp != Some(None) && allowed.contains(&stamp.flatten()) {
            return;
        }
        let newest = allowed.last().copied().flatten();
        let newest = newest.map_or_else(
            || "that it was cleared".to_owned(),
            |stamp| self.describe(stamp),
        );
        let text = format!("{topic} has {found}; the newest acknowledged is {newest}");
        self.complain(Promise::Newest, asked, topic, text);
    }
}
