//! From other nodes to shards.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::consumer::DeliverPolicy;
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::time::Instant;

use super::streams::INBOX;
use super::{Core, Retry};
use crate::arrivals::{Number, Place, number_in};
use crate::port::ToShard;
use crate::subjects;
use crate::wire::{self, Kind};

/// Messages that are handed over before readers' queues are looked at.
const SLICE: usize = 128;

/// The shortest and the longest pause after a slice that has filled a reader's queue to its half.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

/// Time after which a reader whose queue stays half full delays the others no longer.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often what was taken is removed from the inbox.
const CLEAR_INTERVAL: Duration = Duration::from_millis(500);

impl Core {
    /// Receives messages that may be missed.
    pub(super) async fn receive_live(self: Rc<Self>) {
        let subject = subjects::to(&self.settings.node, "*");
        let receive = async |batch: async_nats::Message| {
            self.received(batch.subject.as_str(), &batch.payload);
        };
        self.hear_each(&subject, receive).await;
    }

    /// Does something with each message of a subject, for ever. Those that come while there is no way to NATS are
    /// missed.
    pub(super) async fn hear_each(
        &self,
        subject: &str,
        mut heard: impl AsyncFnMut(async_nats::Message),
    ) {
        let mut retry = Retry::new();
        loop {
            let subject = self.settings.subject(subject);
            if let Ok(mut messages) = self.client.subscribe(subject).await {
                retry = Retry::new();
                while let Some(message) = messages.next().await {
                    heard(message).await;
                }
            }
            retry.wait().await;
        }
    }

    /// Receives messages that must arrive.
    pub(super) async fn receive_inbox(self: Rc<Self>) {
        let mut retry = Retry::new();
        let mut next = None;
        loop {
            let Err(why) = self.receive_inbox_once(&mut next).await;
            tracing::debug!(why, "the inbox is read on");
            self.status.failed_attempts.add(1);
            retry.wait().await;
        }
    }

    /// `next` is where to read on; `None` before the first batch. The inbox is read by position, so that
    /// nothing is missed and nothing overtakes, whichever server is asked.
    async fn receive_inbox_once(&self, next: &mut Option<u64>) -> Result<Infallible, String> {
        let filter = subjects::inbox(&self.settings.node, "*");
        let start = match *next {
            Some(start_sequence) => DeliverPolicy::ByStartSequence { start_sequence },
            None => DeliverPolicy::All,
        };
        let mut batches = self.follow(INBOX, Some(&filter), start).await?;
        loop {
            let batch = batches.next().await?;
            let source = source_of(&batch.subject);
            let number = number_of(batch.headers.as_ref());
            // Those that are given meanwhile come after it.
            let mut pace = self.pace.lock().await;
            let found = self.arrivals.borrow_mut().came(source, number);
            let is_news = match found {
                Place::Next => true,
                Place::Repeated => {
                    self.status.repeated_batches.add(1);
                    false
                }
                Place::AfterMissing(batches) => {
                    tracing::error!(
                        node = source,
                        batches,
                        "batches of another node are missing: they were older than NATS keeps them"
                    );
                    self.missed_letters(source);
                    true
                }
            };
            if is_news {
                self.deliver_batch(&mut pace, &batch.subject, &batch.payload)
                    .await;
            }
            drop(pace);
            self.given_arrived.notify_one();
            *next = Some(batch.position + 1);
            // Each shard has its letters: they are lost only with the process, and its sessions with it.
            self.taken.set(batch.position);
        }
    }

    /// Hands over a batch that must arrive.
    pub(super) async fn deliver_batch(&self, pace: &mut Pace, subject: &str, payload: &Bytes) {
        for run in self.read_batch(subject, payload) {
            self.deliver(pace, run).await;
        }
    }

    /// Hands a run over in slices. After an outage there are many messages at once. They may be too many for a
    /// reader that keeps up with its publishers. So where its queue is half full, the next slice comes later.
    async fn deliver(&self, pace: &mut Pace, mut run: Run) {
        while !run.records.is_empty() {
            // The first goes whatever is behind it, so that a slice has some.
            let (bytes, count) = wire::leading(&run.records, true, |_, count| count <= SLICE);
            let slice = Run {
                records: run.records.split_to(bytes),
                subject: Arc::clone(&run.subject),
                ..run
            };
            pace.given += count;
            self.post_run(slice);
            if pace.given < SLICE {
                continue;
            }
            pace.given = 0;
            while self.is_behind() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            if let Some(pause) = pace.pause_after(self.gate.take_crowded()) {
                tokio::time::sleep(pause).await;
            }
        }
    }

    /// Removes what was taken out of the inbox, so that there is room for more.
    pub(super) async fn clear_inbox(self: Rc<Self>) {
        let mut cleared = 0;
        loop {
            tokio::time::sleep(CLEAR_INTERVAL).await;
            let taken = self.taken.get();
            if taken == cleared || !self.status.is_connected() {
                continue;
            }
            let filter = subjects::inbox(&self.settings.node, ">");
            let Ok(stream) = self.stream(INBOX).await else {
                continue;
            };
            let purge = stream.purge().filter(self.settings.subject(&filter));
            // `sequence` is the first that stays.
            if purge.sequence(taken + 1).await.is_ok() {
                cleared = taken;
            }
        }
    }

    /// Whether a shard has not read its letters.
    pub(super) fn is_behind(&self) -> bool {
        (0..self.settings.shards).any(|shard| self.has_letters(shard))
    }

    fn has_letters(&self, shard: usize) -> bool {
        let shards = self.settings.shards.max(1);
        self.shards.borrow().backlog(shard % shards) > 0
    }

    /// Hands over what may be missed. It is dropped for a shard that does not come to it, before memory is full.
    pub(super) fn received(&self, subject: &str, payload: &Bytes) {
        if payload.is_empty() {
            // A trial of rights.
            return;
        }
        for run in self.read_batch(subject, payload) {
            if self.gate.is_behind() && self.has_letters(run.shard) {
                self.gate.count_dropped(run.count as u64);
            } else {
                self.post_run(run);
            }
        }
    }

    fn post_run(&self, run: Run) {
        self.gate.arrive_encoded(run.records.len() as u64);
        let Run {
            shard,
            records,
            subject,
            ..
        } = run;
        self.post(shard, ToShard::Encoded { records, subject });
    }

    /// The runs of a batch with messages, by the shard that gets them. A publisher has one shard there, and so it has
    /// one here.
    fn read_batch(&self, subject: &str, payload: &Bytes) -> Vec<Run> {
        let sections = match self.sections(payload) {
            Ok(sections) => sections,
            Err(error) => {
                self.cannot_read("batch", subject, error);
                return Vec::new();
            }
        };
        self.status.received_batches.add(1);
        let subject: Arc<str> = subject.into();
        let mut runs = Vec::with_capacity(sections.len());
        for section in sections {
            let records = payload.slice(section.records);
            if section.kind == Kind::Letters {
                let letters = wire::records(&records).map(<[u8]>::to_vec).collect();
                self.received_letters(source_of(&subject), &subject, letters);
                continue;
            }
            self.status.received_messages.add(section.count as u64);
            runs.push(Run {
                shard: usize::from(section.shard),
                records,
                count: section.count,
                subject: Arc::clone(&subject),
            });
        }
        runs
    }
}

/// Messages of one shard of another node, which that shard's number here gets as they are.
struct Run {
    shard: usize,
    records: Bytes,
    count: usize,
    /// The subject by which they came.
    subject: Arc<str>,
}

/// How fast what must arrive is handed over.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Messages since readers' queues were looked at.
    given: usize,
    /// Since when each slice has found a queue half full, and the last pause.
    crowded: Option<(Instant, Duration)>,
}

impl Pace {
    /// The pause after a slice; `None` where the next may follow at once.
    pub(super) fn pause_after(&mut self, is_crowded: bool) -> Option<Duration> {
        let (shortest, longest) = PAUSES;
        self.crowded = is_crowded.then(|| match self.crowded {
            Some((since, pause)) => (since, (pause * 2).min(longest)),
            None => (Instant::now(), shortest),
        });
        let (since, pause) = self.crowded?;
        (since.elapsed() < PATIENCE).then_some(pause)
    }
}

/// The number of a batch among those of its node, which is in the id by which NATS knows it; `None` where nothing tells.
pub(super) fn number_of(headers: Option<&HeaderMap>) -> Option<Number> {
    number_in(headers?.get(NATS_MESSAGE_ID)?.as_str())
}

/// The node that a subject's message is from: its last token.
pub(super) fn source_of(subject: &str) -> &str {
    subject.rsplit('.').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stays_slow_delays_the_others_for_a_while_only() {
        let mut pace = Pace::default();
        assert_eq!(pace.pause_after(false), None);
        let (mut pauses, begun) = (Vec::new(), Instant::now());
        while let Some(pause) = pace.pause_after(true) {
            pauses.push(pause.as_millis());
            tokio::time::sleep(pause).await;
        }
        assert_eq!(pauses[..6], [2, 4, 8, 16, 32, 50]);
        assert!(begun.elapsed() < PATIENCE + PAUSES.1);
        assert_eq!(pace.pause_after(true), None, "still");
        assert_eq!(pace.pause_after(false), None);
        assert_eq!(
            pace.pause_after(true),
            Some(PAUSES.0),
            "it followed meanwhile"
        );
    }
}
