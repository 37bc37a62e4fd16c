//! Reading what is behind, for readers that have not come so far.

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;

use async_nats::jetstream;
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::RawMessageErrorKind;
use futures_util::future::join_all;
use sterna_broker::{ReadAnswer, ReadRequest};

use super::{position, sequence};
use crate::engine::streams::LOG;
use crate::engine::{Core, Retry, retained};
use crate::port::ToShard;
use crate::subject;

/// Patterns of subjects that NATS is asked for. A reader with more looks at every entry.
const MOST_PATTERNS: usize = 16;

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
