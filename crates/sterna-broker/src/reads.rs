//! Messages that were read in the log, and that somebody still has.
//!
//! Sessions that come back together ask for the same part of the log, each by itself. The store gives each its own copy.
//! All but the first are dropped here, so that a shard has one.
//!
//! Each session reads ahead, and all of them together may have so much that memory is short. So their bytes are counted.
//! Where these are many, a session gets a small part at a time, and more as it settles what it has.

use std::sync::{Arc, Weak};

use rustc_hash::FxHashMap;

use crate::message::{Gauge, Message};
use crate::pressure::PRESSED_BYTES;

/// Messages at which those that nobody has any more are first forgotten.
const LEAST_SWEPT: usize = 1_024;

/// See the module.
#[derive(Debug)]
pub(crate) struct Reads {
    /// Counts the bodies.
    pub(crate) gauge: Arc<Gauge>,
    /// The bytes above which readers get small parts.
    most_bytes: u64,
    /// Whether they do.
    is_tight: bool,
    /// By position.
    known: FxHashMap<u64, Weak<Message>>,
    /// The number at which those are forgotten that nobody has any more.
    sweep_at: usize,
}

impl Reads {
    pub(crate) fn new(gauge: Arc<Gauge>, most_bytes: u64) -> Self {
        Self {
            gauge,
            most_bytes,
            is_tight: false,
            known: FxHashMap::default(),
            sweep_at: 0,
        }
    }

    /// Whether readers get small parts.
    pub(crate) const fn is_tight(&self) -> bool {
        self.is_tight
    }

    /// Finds out whether readers get small parts. Returns whether that is over: who had enough may have more.
    pub(crate) fn weigh(&mut self) -> bool {
        let bytes = self.gauge.bytes();
        // All sessions are looked at when it ends, so it does not begin again at once.
        let was_tight = self.is_tight;
        self.is_tight = bytes >= self.most_bytes || (was_tight && bytes >= self.most_bytes / 2);
        was_tight && !self.is_tight
    }

    /// Bytes of such a part, where so many sessions are connected. One message may have more.
    pub(crate) fn part_bytes(&self, sessions: u64) -> u64 {
        (self.most_bytes / sessions.max(1)).clamp(1, PRESSED_BYTES)
    }

    /// Puts the message that others have of a position in the place of a copy.
    pub(crate) fn share(&mut self, position: u64, message: &mut Arc<Message>) {
        if let Some(known) = self.known.get(&position).and_then(Weak::upgrade) {
            *message = known;
            return;
        }
        if self.known.len() >= self.sweep_at.max(LEAST_SWEPT) {
            self.known.retain(|_, known| known.strong_count() > 0);
            self.known.shrink_to(2 * self.known.len());
            self.sweep_at = 2 * self.known.len();
        }
        self.known.insert(position, Arc::downgrade(message));
    }
}
