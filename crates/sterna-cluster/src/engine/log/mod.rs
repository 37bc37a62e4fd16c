//! The log: messages that somebody wants who outlives a connection, in one stream for all nodes.
//!
//! A message is appended once, and every node gets it as it comes by, its publisher's among them. An entry of the
//! stream has messages of one topic, so that its subject tells who wants it. The position of a message is the
//! number of its entry and its place there: the same on all nodes. Messages that were published together are one
//! entry, whatever their topics: its subject is the same for all of these.

mod appending;
mod carried;
mod needs;
mod passing;
mod reading;
mod repeating;
mod settling;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sterna_broker::{Change, Message, Once, Settles};
use tokio::sync::{Mutex, Notify, Semaphore, oneshot};

use super::outgoing::Charge;
use super::streams::LOG;
use super::{Core, Retry};
use crate::commits::Part;
use crate::owners::Key;
use crate::port::LogView;
use crate::tail::Tail;
pub(super) use appending::name_in;
pub(super) use carried::{POSITION, first_in};
use needs::Needs;
use repeating::Repeats;

/// Bits of a position that are the place in an entry.
const PLACE_BITS: u32 = 10;

/// Messages of one entry.
pub(super) const MOST_IN_ENTRY: usize = 1 << PLACE_BITS;
const _: () = assert!(sterna_broker::MOST_TOGETHER <= MOST_IN_ENTRY);

/// An item that waits for the log.
#[derive(Debug)]
pub(in crate::engine) enum Item {
    Message(Waiting),
    /// Records that hold when all messages before them are in the log.
    Records {
        changes: Vec<Change>,
        part: Part,
    },
    /// A session has ended on this node, and another has it.
    Left(Key),
    /// Somebody waits until all records of a session before it are handed on.
    Mark(Key, oneshot::Sender<()>),
}

/// A message that waits for NATS.
#[derive(Debug)]
pub(in crate::engine) struct Waiting {
    pub(in crate::engine) message: Arc<Message>,
    pub(in crate::engine) shard: u16,
    pub(in crate::engine) once: Option<Once>,
    /// The record that is kept behind it.
    pub(in crate::engine) settles: Option<Box<Settles>>,
    /// How many of those that follow go into the same entry.
    pub(in crate::engine) following: usize,
    /// Is closed when NATS has it.
    pub(in crate::engine) part: Part,
    pub(in crate::engine) _charge: Rc<Charge>,
}

/// The state that the tasks of the log share.
pub(in crate::engine) struct Log {
    pub(in crate::engine) view: Arc<LogView>,
    waiting: RefCell<VecDeque<Item>>,
    arrived: Notify,
    reading: Semaphore,
    needs: RefCell<Needs>,
    /// Whether entries are on their way, or what follows them is.
    is_sending: Cell<bool>,
    knows_needs: Cell<bool>,
    tail: RefCell<Tail>,
    /// Held by the task that reads the missing part of the tail.
    tail_reading: Mutex<()>,
    has_forgotten: Cell<bool>,
    repeats: RefCell<Repeats>,
    carried: RefCell<carried::Carried>,
}

impl Log {
    /// `reads` is how many readers may read at once.
    /// `most_unsettled` is how many entries of the tail are known at once.
    pub(in crate::engine) fn new(view: Arc<LogView>, reads: usize, most_unsettled: usize) -> Self {
        Self {
            view,
            waiting: RefCell::default(),
            arrived: Notify::new(),
            reading: Semaphore::new(reads),
            needs: RefCell::default(),
            is_sending: Cell::new(false),
            knows_needs: Cell::new(false),
            tail: RefCell::new(Tail::new(most_unsettled)),
            tail_reading: Mutex::default(),
            has_forgotten: Cell::new(false),
            repeats: RefCell::default(),
            carried: RefCell::default(),
        }
    }

    pub(in crate::engine) fn push(&self, item: Item) {
        self.waiting.borrow_mut().push_back(item);
        self.arrived.notify_one();
    }
}

pub(super) const fn position(sequence: u64, place: usize) -> u64 {
    sequence << PLACE_BITS | place as u64
}

pub(super) const fn sequence(position: u64) -> u64 {
    position >> PLACE_BITS
}

impl Core {
    /// Waits until all records of a session are handed on that shards have handed over so far.
    pub(in crate::engine) async fn is_handed_over(&self, key: Key) {
        let (sender, receiver) = oneshot::channel();
        self.log.push(Item::Mark(key, sender));
        let _ = receiver.await;
    }

    /// The number of the last entry, as the leader of the stream knows it.
    pub(in crate::engine) async fn last_of_log(&self) -> Result<u64, String> {
        Ok(self.look_at_stream(LOG).await?.state.last_sequence)
    }

    /// Whether nothing waits for the log, or for NATS' word that it is there.
    pub(in crate::engine) fn has_logged_all(&self) -> bool {
        self.log.waiting.borrow().is_empty() && !self.log.is_sending.get()
    }

    /// Waits until the first shard has all that is in the log now.
    pub(in crate::engine) async fn wait_for_end_of_log(&self) {
        let mut retry = Retry::new();
        let last = loop {
            match self.last_of_log().await {
                Ok(last) => break last,
                Err(why) => tracing::debug!(why, "the end of the log is looked for again"),
            }
            retry.wait().await;
        };
        while self.log.view.end() <= position(last, 0) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// The messages of an entry, with their positions from that of the first on.
    fn messages_of(&self, (sequence, first): (u64, u64), payload: &[u8]) -> Vec<(u64, Message)> {
        match self.read(payload) {
            Ok(runs) => {
                let count = runs.iter().map(|run| run.messages.len()).sum::<usize>();
                let mut found = Vec::with_capacity(count.min(MOST_IN_ENTRY));
                let messages = runs.into_iter().flat_map(|run| run.messages);
                found.extend((first..).zip(messages).take(MOST_IN_ENTRY));
                found
            }
            Err(error) => {
                self.cannot_read("entry of the log", sequence, error);
                Vec::new()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_rise_with_entries_and_places() {
        assert!(position(7, 0) > position(6, MOST_IN_ENTRY - 1));
        assert_eq!(position(7, 3) + 1, position(7, 4));
        assert_eq!(position(6, MOST_IN_ENTRY - 1) + 1, position(7, 0));
        assert_eq!(sequence(position(7, MOST_IN_ENTRY - 1)), 7);
    }
}
