//! Writing to NATS and reading the last of a subject: what several streams need.

use std::time::Duration;

use async_nats::connection::State;
use async_nats::header::NATS_ROLLUP;
use async_nats::jetstream;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::message::{PublishMessage, StreamMessage};
use async_nats::jetstream::stream::{DirectGetErrorKind, LastRawMessageErrorKind};
use bytes::Bytes;
use futures_util::future::join_all;

use super::connection::HEADER_BYTES;
use super::unreadable::UNREADABLE_INTERVAL;
use super::{Core, Retry};
use crate::owners::WriteError;
use crate::wire;

impl Core {
    /// Hands something to NATS until it has all of it. `attempt` hands over, and returns what NATS does not have.
    /// `stalls` says whether that is a reason to refuse what other nodes want.
    pub(super) async fn hand_over_all<T>(
        &self,
        what: &str,
        mut missing: Vec<T>,
        mut attempt: impl AsyncFnMut(Vec<T>) -> Vec<T>,
        stalls: impl Fn() -> bool,
    ) {
        let mut retry = Retry::new();
        let (mut has_failed, mut is_stalled) = (false, false);
        loop {
            missing = attempt(missing).await;
            if missing.is_empty() {
                break;
            }
            if !has_failed {
                tracing::warn!(
                    what,
                    count = missing.len(),
                    "NATS does not take what it is handed: it is tried again"
                );
            }
            has_failed = true;
            self.status.failed_attempts.add(1);
            if stalls() {
                is_stalled = true;
                self.set_stalled(true);
            }
            retry.wait().await;
        }
        if is_stalled {
            self.set_stalled(false);
        }
    }

    /// Bytes of a batch, unless one message has more: what is set, and no more than NATS takes.
    pub(super) fn batch_bytes(&self) -> usize {
        let headroom = HEADER_BYTES + wire::RECORD_OVERHEAD_BYTES + wire::BATCH_OVERHEAD_BYTES;
        let most = self.client.max_payload().saturating_sub(headroom);
        self.settings.batch_bytes.min(most)
    }

    /// Whether an append need not be tried again: it is more than NATS takes. Says so, and counts `messages` as
    /// dropped.
    pub(super) fn gives_up(&self, what: &str, messages: usize, error: &PublishError) -> bool {
        let gives_up = is_too_large(error);
        if gives_up {
            if let Some(untold) = self.given_up.note(UNREADABLE_INTERVAL) {
                tracing::error!(what, messages, %error, untold, "messages are dropped: they are more than NATS takes");
            }
            self.gate.count_dropped(messages as u64);
        }
        gives_up
    }

    /// Publishes each thing to its subject. Returns, in the same order, the sequence number that NATS has
    /// it under.
    pub(super) async fn publish_all<T>(
        &self,
        writes: impl Iterator<Item = (T, String, PublishMessage)>,
    ) -> Vec<(T, Result<u64, PublishError>)> {
        // The client would keep them, and send them when the way is back: NATS may not know their names by then.
        if self.client.connection_state() != State::Connected {
            let away =
                |(thing, _, _)| (thing, Err(PublishError::new(PublishErrorKind::BrokenPipe)));
            return writes.map(away).collect();
        }
        let (mut things, mut sent) = (Vec::new(), Vec::new());
        for (thing, subject, write) in writes {
            things.push(thing);
            sent.push(self.jetstream.send_publish(subject, write).await);
        }
        // All are waited for at once: together they take as long as one.
        let answers = sent
            .into_iter()
            .map(async |answer| answer?.await.map(|stored| stored.sequence));
        let answered: Vec<_> = things.into_iter().zip(join_all(answers).await).collect();
        if let Some(error) = answered
            .iter()
            .find_map(|(_, answer)| answer.as_ref().err())
        {
            self.note_unwritten(error);
        }
        answered
    }

    /// Notes for operators why NATS takes nothing.
    pub(super) fn note_unwritten(&self, error: &PublishError) {
        self.status.conditions.set_unwritten(error.to_string());
    }

    /// Writes the last of a subject where that has the sequence number `expected` so far; 0 where there is none.
    /// NATS removes it after `kept_for`, if that is given. Returns its sequence number.
    pub(super) async fn compare_and_set(
        &self,
        subject: String,
        expected: u64,
        payload: Vec<u8>,
        kept_for: Option<Duration>,
    ) -> Result<u64, WriteError> {
        let mut write = as_last(PublishMessage::build())
            .payload(payload.into())
            .expected_last_subject_sequence(expected);
        if let Some(time) = kept_for {
            write = write.ttl(time);
        }
        self.write_over(&subject, write).await
    }

    /// Writes what expects a certain last of its subject. Returns its sequence number.
    pub(super) async fn write_over(
        &self,
        subject: &str,
        write: PublishMessage,
    ) -> Result<u64, WriteError> {
        let subject = self.settings.subject(subject);
        let answer = match self.jetstream.send_publish(subject.clone(), write).await {
            Ok(answer) => answer.await,
            Err(error) => Err(error),
        };
        answer.map(|written| written.sequence).map_err(|error| {
            if is_conflict(&error) {
                return WriteError::Conflict;
            }
            tracing::debug!(%error, subject, "it is not known to be written");
            self.status.failed_attempts.add(1);
            WriteError::Unknown
        })
    }

    /// Writes the last of a subject, also where there is none, unless what is there stays. Tries until NATS has it.
    /// Returns its sequence number; `None` where the other one stays.
    pub(super) async fn write_unless(
        &self,
        stream: &str,
        subject: &str,
        payload: &[u8],
        stays: impl Fn(&Bytes) -> bool,
    ) -> Option<u64> {
        let mut retry = Retry::new();
        loop {
            if let Ok(found) = self.last_of_subject(stream, subject).await {
                if found.as_ref().is_some_and(|found| stays(&found.payload)) {
                    return None;
                }
                // Also where there is none: the server that answered may be behind.
                let expected = found.map_or(0, |found| found.sequence);
                let write =
                    self.compare_and_set(subject.to_owned(), expected, payload.to_owned(), None);
                if let Ok(sequence) = write.await {
                    return Some(sequence);
                }
            }
            retry.wait().await;
        }
    }

    /// The last of a subject in a stream; `None` where there is none. Any server answers, which may be behind.
    ///
    /// # Errors
    /// NATS' words, for the log.
    pub(super) async fn last_of_subject(
        &self,
        stream: &str,
        subject: &str,
    ) -> Result<Option<StreamMessage>, String> {
        let stream = self.stream(stream).await?;
        let subject = self.settings.subject(subject);
        match stream.direct_get_last_for_subject(subject).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == DirectGetErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The same from the stream's leader, which has all that anybody was told of.
    ///
    /// # Errors
    /// NATS' words, for the log.
    pub(super) async fn last_at_leader(
        &self,
        stream: &str,
        subject: &str,
    ) -> Result<Option<StreamMessage>, String> {
        let stream = self.stream(stream).await?;
        let subject = self.settings.subject(subject);
        match stream.get_last_raw_message_by_subject(&subject).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// A write that is to be the last of its subject, and the only one: NATS removes those before. A limit of messages for
/// each subject would do without a word about it on the disk. They would be there again when a server is killed after the
/// last one was removed, too.
pub(super) fn as_last(write: PublishMessage) -> PublishMessage {
    write.header(NATS_ROLLUP, "sub")
}

/// Whether NATS never takes a message, however often it is tried.
fn is_too_large(error: &PublishError) -> bool {
    let codes = [
        ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM,
        ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM,
    ];
    error.kind() == PublishErrorKind::MaxPayloadExceeded
        || code_of(error).is_some_and(|code| codes.contains(&code))
}

/// Whether NATS has not written a message, for the last of its subject is another, or is being written. A stream with
/// several copies has a code of its own for the latter, for which the client library has no kind.
pub(super) fn is_conflict(error: &PublishError) -> bool {
    error.kind() == PublishErrorKind::WrongLastSequence
        || code_of(error) == Some(ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT)
}

/// The code of NATS' answer, if it has answered.
fn code_of(error: &PublishError) -> Option<ErrorCode> {
    let answer = std::error::Error::source(error)?;
    let answer = answer.downcast_ref::<jetstream::Error>()?;
    Some(answer.error_code())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer of NATS for which the client library has no kind.
    fn answer(code: u64) -> PublishError {
        let error = format!(r#"{{"code":400,"err_code":{code},"description":"no"}}"#);
        let error: jetstream::Error = serde_json::from_str(&error).expect("NATS' form");
        PublishError::with_source(PublishErrorKind::Other, error)
    }

    /// A stream with several copies refuses what is to follow a message that is still being written.
    #[test]
    fn a_write_behind_one_under_way_is_known_not_to_be_written() {
        for error in [
            PublishError::new(PublishErrorKind::WrongLastSequence),
            answer(10_164),
        ] {
            assert!(is_conflict(&error), "{error}");
        }
        for error in [
            PublishError::new(PublishErrorKind::TimedOut),
            PublishError::new(PublishErrorKind::BrokenPipe),
            answer(10_077),
        ] {
            assert!(!is_conflict(&error), "{error}");
        }
    }

    #[test]
    fn what_is_too_large_is_not_tried_again_and_all_else_is() {
        for error in [
            PublishError::new(PublishErrorKind::MaxPayloadExceeded),
            answer(10_054),
        ] {
            assert!(is_too_large(&error));
        }
        // A full stream gets room.
        for error in [
            PublishError::new(PublishErrorKind::TimedOut),
            answer(10_077),
        ] {
            assert!(!is_too_large(&error));
        }
    }
}
