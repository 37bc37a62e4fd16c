//! The end of the log, which all shards share.
//!
//! Positions are given out under one lock, and a reader falls asleep or wakes under the same: so it is
//! decided for each message whether publishers hand it over or it is read in the log. The latest messages
//! are also here, so that a reader that has nearly caught up can do so under the lock.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::message::Message;
use crate::store::{Appended, Frame, Full, Store};

/// Number of messages that are here beside the store.
const MOST_MESSAGES: usize = 1_024;
/// Bytes of their bodies.
const MOST_BYTES: usize = 4 << 20;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Appends {
    latest: VecDeque<Arc<Message>>,
    bytes: usize,
    /// Position of the first of them.
    first: u64,
}

impl Appends {
    /// Appends a frame to the store, and its messages to those that are here.
    pub(crate) fn append(
        &mut self,
        store: &mut dyn Store,
        frame: Frame<'_>,
    ) -> Result<Appended, Full> {
        let appended = store.append(frame)?;
        if frame.messages.is_empty() {
            return Ok(appended);
        }
        if self.first + self.latest.len() as u64 != appended.first {
            // The log of before this process is the store's.
            debug_assert!(self.latest.is_empty(), "positions follow each other");
            self.latest.clear();
            self.bytes = 0;
            self.first = appended.first;
        }
        for message in frame.messages {
            self.bytes += message.body_bytes();
            self.latest.push_back(Arc::clone(message));
        }
        while self.latest.len() > MOST_MESSAGES || self.bytes > MOST_BYTES {
            let Some(oldest) = self.latest.pop_front() else {
                break;
            };
            self.bytes -= oldest.body_bytes();
            self.first += 1;
        }
        Ok(appended)
    }

    /// The messages from a position to the end of the log, with their positions; `None` where not all of
    /// them are here.
    pub(crate) fn since(
        &self,
        position: u64,
        end: u64,
    ) -> Option<impl Iterator<Item = (u64, &Arc<Message>)>> {
        let here = if self.latest.is_empty() {
            end
        } else {
            self.first
        };
        if position < here {
            return None;
        }
        let from = (position - here).min(self.latest.len() as u64) as usize;
        Some(
            self.latest
                .range(from..)
                .enumerate()
                .map(move |(at, message)| (here + (from + at) as u64, message)),
        )
    }

    /// The first position whose message is here, where the log ends at `end`.
    pub(crate) fn first(&self, end: u64) -> u64 {
        if self.latest.is_empty() {
            end
        } else {
            self.first
        }
    }
}
