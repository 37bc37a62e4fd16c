//! Messages that were read in the log, and that somebody still has.
//!
//! Sessions that come back together ask for the same part of the log, each by itself. The store gives each its own copy.
//! All but the first are dropped here, so that a shard has one.

use std::sync::{Arc, Weak};

use rustc_hash::FxHashMap;

use crate::message::{Gauge, Message};

/// Messages at which those that nobody has any more are first forgotten.
const LEAST_SWEPT: usize = 1_024;

/// See the module.
#[derive(Debug)]
pub(crate) struct Reads {
    /// Counts the bodies.
    pub(crate) gauge: Arc<Gauge>,
    /// By position.
    known: FxHashMap<u64, Weak<Message>>,
    /// The number at which those are forgotten that nobody has any more.
    sweep_at: usize,
}

impl Reads {
    pub(crate) fn new(gauge: Arc<Gauge>) -> Self {
        Self {
            gauge,
            known: FxHashMap::default(),
            sweep_at: 0,
        }
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
