//! Reading what is behind, for readers that have not come so far.

use std::collections::{HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::header::NATS_SEQUENCE;
use async_nats::jetstream::stream::RawMessageErrorKind;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use sterna_broker::{ReadAnswer, ReadRequest};

use super::{first_in, position};
use crate::engine::streams::LOG;
use crate::engine::{Core, Retry, retained};
use crate::owners::number_in;
use crate::port::ToShard;
use crate::subject;
use crate::subjects;

/// Patterns of subjects that NATS is asked for. A reader with more looks at every entry.
const MOST_PATTERNS: usize = 16;

/// Entries that NATS is asked for at once.
const MOST_IN_BATCH: usize = 256;

/// An entry of the log as NATS has it.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) sequence: u64,
    pub(super) headers: HeaderMap,
    payload: Bytes,
}

/// The next entries of a pattern of subjects.
#[derive(Debug)]
pub(super) struct Head {
    pattern: String,
    entries: VecDeque<Entry>,
    /// Whether there is nothing more.
    is_at_end: bool,
}

impl Head {
    pub(super) const fn new(pattern: String) -> Self {
        Self {
            pattern,
            entries: VecDeque::new(),
            is_at_end: false,
        }
    }
}

impl Core {
    /// Reads for a shard, and answers when everything was found.
    pub(in crate::engine) async fn read_log(self: Rc<Self>, shard: usize, request: ReadRequest) {
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

    /// Goes on with an answer, from entry to entry that a pattern fits.
    async fn read_log_once(
        &self,
        request: &ReadRequest,
        answer: &mut ReadAnswer,
    ) -> Result<(), String> {
        let patterns = self.patterns(&request.filters);
        let from = self.entry_at(answer.next);
        let mut heads: Vec<Head> = patterns.into_iter().map(Head::new).collect();
        // Each has its part of what the reader takes.
        let most_entries = (request.most_messages / heads.len().max(1)).clamp(1, MOST_IN_BATCH);
        let (mut messages, mut bytes) = (answer.messages.len(), 0);
        let mut next = from;
        loop {
            let most_bytes = request.most_bytes.saturating_sub(bytes).max(1);
            let filled = heads
                .iter_mut()
                .map(|head| self.fill(head, next, most_entries, most_bytes));
            join_all(filled)
                .await
                .into_iter()
                .collect::<Result<(), _>>()?;
            let first = heads.iter().filter_map(|head| head.entries.front());
            let Some(entry) = first.min_by_key(|entry| entry.sequence).cloned() else {
                answer.next = request.to;
                return Ok(());
            };
            let first = first_in(entry.sequence, Some(&entry.headers));
            if first >= request.to {
                answer.next = request.to;
                return Ok(());
            }
            let arrival = self.arrival(Some(&entry.headers));
            let mut found = self.messages_of((entry.sequence, first), &entry.payload);
            self.sort_arrived(arrival, &mut found);
            for (at, message) in found {
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
                    self.note_carried(answer.next, entry.sequence);
                    return Ok(());
                }
            }
            next = entry.sequence + 1;
            if first == position(entry.sequence, 0) {
                answer.next = position(next, 0).min(request.to);
            }
            for head in &mut heads {
                if (head.entries.front()).is_some_and(|known| known.sequence == entry.sequence) {
                    head.entries.pop_front();
                }
            }
        }
    }

    /// Takes the next entry of a pattern from a number on; `None` at the end.
    pub(super) async fn next_of(
        &self,
        head: &mut Head,
        from: u64,
    ) -> Result<Option<Entry>, String> {
        let most_bytes = self.settings.batch_bytes;
        self.fill(head, from, MOST_IN_BATCH, most_bytes).await?;
        Ok(head.entries.pop_front())
    }

    /// Has a head have the next entries of its pattern, if there are any.
    ///
    /// Any server of NATS may answer for many entries at once. It has all entries up to some number, but may lack
    /// the latest. So the leader of the stream is asked where that server has none.
    async fn fill(
        &self,
        head: &mut Head,
        from: u64,
        most_entries: usize,
        most_bytes: usize,
    ) -> Result<(), String> {
        if head.is_at_end || !head.entries.is_empty() {
            return Ok(());
        }
        let limits = (most_entries, most_bytes);
        head.entries = self.entries_from(&head.pattern, from, limits).await?;
        if head.entries.is_empty() {
            head.entries
                .extend(self.entry_from(&head.pattern, from).await?);
        }
        head.is_at_end = head.entries.is_empty();
        Ok(())
    }

    /// Entries from a number on that a pattern of subjects fits, by one request (NATS' ADR-31).
    async fn entries_from(
        &self,
        pattern: &str,
        from: u64,
        (most_entries, most_bytes): (usize, usize),
    ) -> Result<VecDeque<Entry>, String> {
        self.status.log_requests.add(1);
        let inbox = self.client.new_inbox();
        let answers = self.client.subscribe(inbox.clone()).await;
        let mut answers = answers.map_err(|error| error.to_string())?;
        let subject = format!("$JS.API.DIRECT.GET.{}", self.settings.stream(LOG));
        let request = format!(
            r#"{{"seq":{from},"next_by_subj":{},"batch":{most_entries},"max_bytes":{most_bytes}}}"#,
            quoted(pattern)
        );
        let asked = self
            .client
            .publish_with_reply(subject, inbox, request.into());
        asked.await.map_err(|error| error.to_string())?;
        let patience = Duration::from_millis(self.settings.answer_timeout_ms);
        let mut entries = VecDeque::new();
        loop {
            let answer = tokio::time::timeout(patience, answers.next()).await;
            let Ok(Some(answer)) = answer else {
                return Err("NATS does not send all entries of the log".to_owned());
            };
            match answer.status.map(|status| status.as_u16()) {
                // The end of the batch, and nothing at all.
                Some(204 | 404) => return Ok(entries),
                Some(200) | None => {}
                Some(status) => return Err(format!("NATS answers {status}")),
            }
            let headers = answer.headers.unwrap_or_default();
            // NATS puts its headers behind those of the message, which may have one of this name.
            let sequence = headers.get_last(NATS_SEQUENCE);
            let sequence = sequence.and_then(|number| number_in(number.as_str()));
            let payload = answer.payload;
            let sequence = sequence.ok_or("an entry of the log has no number")?;
            entries.push_back(Entry {
                sequence,
                headers,
                payload,
            });
        }
    }

    /// The first entry from a number on whose subject fits a pattern, as the leader of the stream knows it. `None`
    /// where there is none.
    async fn entry_from(&self, pattern: &str, from: u64) -> Result<Option<Entry>, String> {
        self.status.log_requests.add(1);
        let stream = self.stream(LOG).await?;
        let asked = stream.raw_message_builder().sequence(from);
        match asked.next_by_subject(pattern).send().await {
            Ok(entry) => Ok(Some(Entry {
                sequence: entry.sequence,
                headers: entry.headers,
                payload: entry.payload,
            })),
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(error.to_string()),
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
        patterns.insert(subjects::TOGETHER.to_owned());
        if patterns.len() > MOST_PATTERNS {
            patterns = HashSet::from([">".to_owned()]);
        }
        let patterns = patterns.into_iter();
        patterns
            .map(|pattern| self.settings.subject(&subjects::log(&pattern)))
            .collect()
    }
}

/// Text as JSON has it. Subjects have no control characters.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_pattern_is_a_text_of_json() {
        assert_eq!(quoted("t.a.>"), r#""t.a.>""#);
        assert_eq!(quoted(r#"t.a"b\c"#), r#""t.a\"b\\c""#);
    }
}
