//! The log as it comes by.

use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::consumer::DeliverPolicy;
use sterna_broker::{FromPeer, Message};

use super::{MOST_IN_ENTRY, first_in, position};
use crate::engine::incoming::Pace;
use crate::engine::streams::LOG;
use crate::engine::{Core, Retry};
use crate::port::ToShard;

/// Messages that are handed to the first shard before it is looked whether it keeps up.
const SLICE: usize = 128;

impl Core {
    /// Hands the log to the first shard as it comes by.
    pub(in crate::engine) async fn follow_log(self: Rc<Self>) {
        let mut retry = Retry::new();
        let mut next = loop {
            if let Ok(last) = self.last_of_log().await {
                break last + 1;
            }
            retry.wait().await;
        };
        self.pass_log(Vec::new(), next - 1);
        self.log.tail.borrow_mut().begin(position(next, 0));
        loop {
            let Err(why) = self.follow_log_once(&mut next).await;
            tracing::debug!(why, "the log is read on");
            self.status.failed_attempts.add(1);
            retry.wait().await;
        }
    }

    async fn follow_log_once(&self, next: &mut u64) -> Result<Infallible, String> {
        let start_sequence = *next;
        let start = DeliverPolicy::ByStartSequence { start_sequence };
        let mut entries = self.follow(LOG, None, start).await?;
        // Another stream begins above all that was in the one before.
        let first = self.look_at_stream(LOG).await?.state.first_sequence;
        if first > *next {
            tracing::error!(
                entries = first - *next,
                "the log begins behind where this node has read"
            );
            self.pass_log(Vec::new(), first - 1);
            *next = first;
        }
        let mut pace = Pace::default();
        let mut given = 0;
        loop {
            let entry = entries.next().await?;
            if entry.position > *next {
                tracing::error!(
                    entries = entry.position - *next,
                    "entries of the log are missing: this node was away for longer than it was waited for"
                );
            }
            let arrival = self.note_arrival(entry.headers.as_ref());
            let name = (entry.headers.as_ref()).and_then(|headers| headers.get(NATS_MESSAGE_ID));
            if let Some(name) = name {
                self.note_name(name.as_str());
            }
            self.note_settled(entry.position, entry.headers.as_ref());
            let first = first_in(entry.position, entry.headers.as_ref());
            let mut messages = self.messages_of((entry.position, first), &entry.payload);
            let flashes = self.sort_arrived(arrival, &mut messages);
            if !flashes.is_empty() {
                let flashes = flashes.into_iter().map(|one| (one, FromPeer::Deliver));
                self.post_messages(0, flashes.collect());
            }
            self.status.received_messages.add(messages.len() as u64);
            given += messages.len();
            self.pass_log(messages, entry.position);
            *next = entry.position + 1;
            if given >= SLICE {
                given = 0;
                while self.is_behind() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                if let Some(pause) = pace.pause_after(self.gate.take_crowded()) {
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    fn pass_log(&self, messages: Vec<(u64, Message)>, sequence: u64) {
        let last = position(sequence, MOST_IN_ENTRY - 1);
        self.post(0, ToShard::Logged { messages, last });
    }
}
