//! Retained messages that expire. Their end is a record, as that of a message which a client clears: what NATS removes by
//! its time could come again after an unclean end of a server, or the message before it.

use std::rc::Rc;

use async_nats::jetstream::message::PublishMessage;
use sterna_broker::{Message, MessageHeader};

use super::Core;
use super::retained::as_retained;
use super::streams::RETAINED;
use super::writing::as_last;
use crate::owners::WriteError;
use crate::wire::{self, EncodedRun, Versions};

impl Core {
    /// Notes what NATS has under the subject of a topic: an end, or a message that will expire. `is_own` says whether this
    /// node wrote it.
    pub(super) fn note_retained(
        self: &Rc<Self>,
        subject: &str,
        sequence: u64,
        message: &Message,
        is_own: bool,
    ) {
        if message.payload().is_empty() {
            if is_own {
                self.note_end(RETAINED, subject, sequence);
            } else {
                self.note_end_of_another(RETAINED, subject, sequence);
            }
        } else if let Some(expires_at_ms) = message.expires_at_ms() {
            let left_ms = expires_at_ms.saturating_sub(self.wall_ms());
            self.note_expiry(subject, sequence, left_ms, is_own);
        }
    }

    /// Writes that the retained message of a subject has expired, unless another has taken its place. Returns whether that
    /// is done; where NATS does not say, it is to be tried again.
    pub(super) async fn end_expired(&self, subject: &str, sequence: u64) -> bool {
        let Ok(found) = self.last_at_leader(RETAINED, subject).await else {
            return false;
        };
        let end = (found.filter(|found| found.sequence == sequence))
            .and_then(|found| end_of(self.reads(), &found.payload));
        let Some(end) = end else {
            return true;
        };
        let mut run = EncodedRun::new(0);
        run.push(&end, false);
        let write = as_last(PublishMessage::build().payload(self.batch([&run])))
            .expected_last_subject_sequence(sequence);
        let written = self.write_over(subject, as_retained(write, true)).await;
        if let Ok(written) = written {
            self.note_end(RETAINED, subject, written);
        }
        written != Err(WriteError::Unknown)
    }
}

/// The end of a retained message as a message, of the same time: other regions judge by that which of theirs is newer.
/// `None` where the entry is an end itself, or cannot be read.
fn end_of(reads: Versions, payload: &[u8]) -> Option<Message> {
    let runs = wire::read(reads, payload).ok()?;
    let message = runs.into_iter().flat_map(|run| run.messages).last()?;
    if message.payload().is_empty() {
        return None;
    }
    let header = MessageHeader {
        retain: true,
        published_ms: message.published_ms(),
        ..MessageHeader::default()
    };
    Message::copy(message.topic(), &[], &[], header).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_message_has_its_topic_and_time_and_an_end_has_none() {
        let entry = |payload: &[u8]| {
            let header = MessageHeader {
                retain: true,
                published_ms: 7,
                expires_at_ms: Some(1_007),
                ..MessageHeader::default()
            };
            let message = Message::copy("a/b", &[], payload, header).expect("a message");
            let mut run = EncodedRun::new(0);
            run.push(&message, false);
            wire::batch(1, [&run])
        };
        let end = end_of(wire::READS, &entry(b"x")).expect("it is a message");
        assert_eq!((end.topic(), end.published_ms()), ("a/b", 7));
        assert!(end.payload().is_empty() && end.retain() && end.expires_at_ms().is_none());
        assert!(end_of(wire::READS, &entry(b"")).is_none());
        assert!(end_of(wire::READS, b"\xffanother version").is_none());
    }
}
