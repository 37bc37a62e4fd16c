//! The clock by which a node dates what it keeps, and whether the machine's wall clock may be believed.
//!
//! Within one boot of the machine the clock goes on by the time since the boot, whatever the wall clock shows. After a
//! boot it is the wall clock, which must not be before the last record, nor far behind it. Otherwise the clock counts on
//! from the last record, so that nothing expires but by time that has passed. `kept.rs` decides; the first shard looks
//! at the clocks from time to time, and keeps the record.

mod kept;
mod system;

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use sterna_broker::{Eras, key_of_node};
use sterna_net::Clock;

pub use kept::Doubt;
use kept::{Kept, begin, doubt};
pub use system::{Clocks, Reading, SystemClocks};

/// Key of the record among those of the node.
pub(crate) const RECORD: &[u8] = b"t";
/// Time between two looks at the clocks, in milliseconds.
pub(crate) const LOOK_INTERVAL_MS: u64 = 5_000;
/// Time between two records while other records are kept, in milliseconds. A start knows the time as exactly.
const RECORD_INTERVAL_MS: u64 = 60_000;
/// A step of the wall clock that is recorded at once, in milliseconds.
const NOTED_STEP_MS: u64 = 1_000;

/// The clock of a node that keeps something over a restart, for all its shards.
#[derive(Debug)]
pub struct NodeClock {
    clocks: Box<dyn Clocks>,
    maximum_jump_ms: u64,
    /// The clock, and the time since the boot then.
    origin: (u64, u64),
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// As it was at the last look.
    kept: Kept,
    doubt: Option<Doubt>,
    /// How much had been appended to the store, and the record, when it was kept last.
    written: Option<(u64, Kept)>,
}

impl NodeClock {
    /// The key by which a store has the record.
    #[must_use]
    pub fn key() -> Box<[u8]> {
        key_of_node(RECORD)
    }

    /// The clock of a process that begins. `record` is what an earlier one has kept, `maximum_jump_ms` how far behind the
    /// last record the wall clock may be at a boot.
    #[must_use]
    pub fn begin(record: Option<&[u8]>, clocks: Box<dyn Clocks>, maximum_jump_ms: u64) -> Self {
        let now = clocks.read();
        let before = record.and_then(|record| {
            let kept = Kept::decode(record);
            if kept.is_none() {
                tracing::error!(
                    "the record of the node's clock cannot be understood; the wall clock counts"
                );
            }
            kept
        });
        let kept = begin(before, &now, maximum_jump_ms);
        let doubt = doubt(now.wall_ms, kept.clock_ms, maximum_jump_ms);
        let this = Self {
            clocks,
            maximum_jump_ms,
            origin: (kept.clock_ms, now.boot_ms),
            state: Mutex::new(State {
                kept,
                doubt,
                written: None,
            }),
        };
        this.tell(None, doubt);
        this
    }

    /// A clock for shards, that goes on from the time when the process began.
    #[must_use]
    pub fn now(&self) -> Clock {
        let since_ms = (self.clocks.read().boot_ms).saturating_sub(self.origin.1);
        Clock::start_at(self.origin.0.saturating_add(since_ms))
    }

    /// The time when the process began, in milliseconds since the Unix epoch.
    #[must_use]
    pub const fn began_ms(&self) -> u64 {
        self.origin.0
    }

    /// Times for which the clock was behind.
    #[must_use]
    pub fn eras(&self) -> Eras {
        self.state().kept.eras.clone()
    }

    /// Why the wall clock is not believed; `None` where it is, or makes no difference.
    #[must_use]
    pub fn doubt(&self) -> Option<Doubt> {
        self.state().doubt
    }

    /// How many milliseconds the wall clock is ahead of the node's, at the last look.
    #[must_use]
    pub fn wall_ahead_ms(&self) -> i64 {
        let state = self.state();
        let (wall_ms, clock_ms) = (state.kept.wall_ms, state.kept.clock_ms);
        wall_ms.cast_signed().saturating_sub(clock_ms.cast_signed())
    }

    /// The wall clock is right, says an operator. From the next start on the node's clock is the wall clock, however far
    /// that is.
    pub fn accept(&self) {
        self.state().kept.is_accepted = true;
    }

    /// The clock as operators see it.
    pub(crate) fn view(&self) -> Value {
        let state = self.state();
        let kept = &state.kept;
        json!({
            "now_ms": kept.clock_ms,
            "wall_ms": kept.wall_ms,
            "doubt": state.doubt.map(Doubt::name),
            "is_accepted": kept.is_accepted,
            "maximum_jump_s": self.maximum_jump_ms / 1000,
        })
    }

    /// Looks at the system's clocks. Returns a record that is to be kept now, if any. `appends` is how much has been
    /// appended to the store; `at_once` keeps a record in any case.
    pub fn look(&self, appends: u64, at_once: bool) -> Option<Vec<u8>> {
        let now = self.clocks.read();
        let mut state = self.state();
        let since_ms = now.boot_ms.saturating_sub(self.origin.1);
        state.kept.seen(self.origin.0 + since_ms, &now);
        let before = state.doubt;
        state.doubt = doubt(now.wall_ms, state.kept.clock_ms, self.maximum_jump_ms);
        self.tell(before, state.doubt);
        let is_due = at_once
            || (state.written.as_ref()).is_none_or(|(appended, written)| {
                let elapsed_ms = state.kept.clock_ms.saturating_sub(written.clock_ms);
                state.kept.is_accepted != written.is_accepted
                    || state.kept.step_since(written) > NOTED_STEP_MS
                    || (elapsed_ms >= RECORD_INTERVAL_MS && *appended != appends)
            });
        if !is_due {
            return None;
        }
        // The record is an append, too.
        state.written = Some((appends.saturating_add(1), state.kept.clone()));
        Some(state.kept.encode())
    }

    /// Says in the log what has changed about the wall clock.
    fn tell(&self, before: Option<Doubt>, now: Option<Doubt>) {
        if before == now {
            return;
        }
        let maximum_clock_jump_s = self.maximum_jump_ms / 1000;
        if let Some(doubt) = now {
            tracing::warn!(
                maximum_clock_jump_s,
                "{}: nothing expires by it. Set the clock, or accept it: sterna admin clock accept",
                doubt.sentence()
            );
        } else {
            tracing::info!("the wall clock is near the node's clock again");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
