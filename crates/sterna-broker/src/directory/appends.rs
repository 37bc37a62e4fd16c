//! The end of the log, which all shards share.
//!
//! Positions are given out under one lock, and a reader falls asleep or wakes under the same. So each
//! message is either handed over by publishers, or read in the log. The latest messages are also here, so
//! that a reader that has nearly caught up can do so under the lock.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::message::Message;
use crate::store::{Appended, Frame, Full, Keeping, Store};

/// Number of messages that are here beside the store.
const MOST_MESSAGES: usize = 1_024;
/// Bytes of their bodies.
const MOST_BYTES: usize = 4 << 20;

/// The least number of noted appends of messages at which they are looked through for those that are kept.
const LOOK_EVERY: usize = 256;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Appends {
    /// With their positions, which rise. Those of a log that several nodes append to have gaps.
    latest: VecDeque<(u64, Arc<Message>)>,
    bytes: usize,
    /// From here on all are here.
    first: u64,
    /// Appends of messages that may not be kept yet: the token, and the position of the first message.
    unkept: VecDeque<(u64, u64)>,
    /// The number of them at which is looked which are kept by now.
    look_again: usize,
}

impl Appends {
    /// Appends a frame to the store, and its messages to those that are here.
    pub(crate) fn append(
        &mut self,
        store: &mut dyn Store,
        keeping: Keeping,
        frame: Frame<'_>,
    ) -> Result<Appended, Full> {
        let appended = store.append(frame)?;
        if frame.messages.is_empty() {
            return Ok(appended);
        }
        self.note_unkept(store, keeping, appended);
        for (position, message) in (appended.first..).zip(frame.messages) {
            self.came_by(position, message);
        }
        Ok(appended)
    }

    /// Enters a message at the end of the log.
    pub(crate) fn came_by(&mut self, position: u64, message: &Arc<Message>) {
        if self.latest.is_empty() {
            // Messages before it are in the store only.
            self.first = position;
        }
        debug_assert!(
            self.latest.back().is_none_or(|(last, _)| *last < position),
            "positions rise"
        );
        self.bytes += message.body_bytes();
        self.latest.push_back((position, Arc::clone(message)));
        while self.latest.len() > MOST_MESSAGES || self.bytes > MOST_BYTES {
            let Some((oldest, message)) = self.latest.pop_front() else {
                break;
            };
            self.bytes -= message.body_bytes();
            self.first = oldest + 1;
        }
    }

    /// Bytes of the bodies that are here.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Notes an append that may not be kept yet.
    fn note_unkept(&mut self, store: &dyn Store, keeping: Keeping, appended: Appended) {
        if keeping == Keeping::Nothing {
            self.unkept.clear();
            return;
        }
        if self.unkept.len() >= self.look_again {
            self.forget_kept(keeping.reached(store.committed()));
            self.look_again = LOOK_EVERY.max(2 * self.unkept.len());
        }
        self.unkept.push_back((appended.token, appended.first));
    }

    /// Forgets the appends that are kept, where all up to this token are.
    fn forget_kept(&mut self, reached: u64) {
        while self
            .unkept
            .front()
            .is_some_and(|(token, _)| *token <= reached)
        {
            self.unkept.pop_front();
        }
        if self.unkept.is_empty() && self.unkept.capacity() > 4 * LOOK_EVERY {
            self.unkept = VecDeque::new();
        }
    }

    /// The append that is to be kept before the message of a position is. All appends up to the token `reached` are
    /// kept. `None` where the message is kept.
    pub(crate) fn keeps(&mut self, position: u64, reached: u64) -> Option<u64> {
        self.forget_kept(reached);
        let behind = self.unkept.partition_point(|&(_, first)| first <= position);
        Some(self.unkept.get(behind.checked_sub(1)?)?.0)
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
        let from = self.latest.partition_point(|(at, _)| *at < position);
        let latest = self.latest.range(from..);
        Some(latest.map(|(position, message)| (*position, message)))
    }

    /// The message of a position, where it is here.
    pub(crate) fn get(&self, position: u64) -> Option<&Arc<Message>> {
        let at = (self.latest).binary_search_by_key(&position, |(at, _)| *at);
        Some(&self.latest[at.ok()?].1)
    }

    /// The position from which on all messages are here, where the log ends at `end`.
    pub(crate) fn first(&self, end: u64) -> u64 {
        if self.latest.is_empty() {
            end
        } else {
            self.first
        }
    }
}
