//! Work that can wait: indexes of full segments, checkpoints of the records, the removal of segments without readers,
//! and the rewriting of those with few.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::read::build_index;
use super::records::{Applied, Records};
use super::rewrite::Rewriter;
use super::shared::{Pending, Shared, lock};
use super::writer::Step;
use crate::disk::{remove_if_it_can_be, remove_if_there, replace};
use crate::log::index::IndexBuilder;
use crate::log::segment::{FOLDER, Segment, index_name, segment_name};

/// Bytes of the log that a start has to read again at most.
const MOST_REPLAYED_BYTES: u64 = 512 << 20;

/// A checkpoint may write one byte for this number of bytes that the log has grown.
const LOG_SHARE: u64 = 8;

/// A checkpoint that writes no more than this need not be worth it.
const CHEAP_BYTES: u64 = 256 << 10;

/// After this number of intervals, a checkpoint is made whatever it costs.
const MOST_INTERVALS: u64 = 12;

/// The most that a checkpoint may write when the broker ends: the next start reads the log instead.
const CLOSING_BYTES: u64 = 16 << 20;

/// With little room left, the time between two checkpoints is this part of their interval where a segment waits for one.
const URGENT_PART: u64 = 50;

/// Bytes that one changed record costs the records' file: a page, and a part of those above it.
const BYTES_PER_CHANGE: u64 = 6 << 10;

/// Time between two attempts after a failure, in milliseconds.
const RETRY_MS: u64 = 1_000;

/// The most that this time doubles to where files cannot be removed, or indexes not be made.
const MOST_RETRY_MS: u64 = 600_000;

/// How often it is looked whether the log is synced as far as a checkpoint needs it, in milliseconds.
const POLL_MS: u64 = 5;

/// When a checkpoint is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Checkpoint {
    /// In its interval, if it is worth its cost.
    WhenDue,
    /// At once, if it does not cost much.
    IfCheap,
    /// At once.
    Now,
}

/// Looks after the files.
#[derive(Debug)]
pub(crate) struct Maintenance {
    shared: Arc<Shared>,
    records: Arc<Records>,
    /// End of the last checkpoint, and of the one before.
    applied: Applied,
    applied_before: u64,
    /// A checkpoint that waits until the log is synced up to here.
    waiting: Option<Applied>,
    /// About how much it writes.
    cost_bytes: u64,
    next_checkpoint_ms: u64,
    /// By when a checkpoint is made whatever it costs.
    last_checkpoint_ms: u64,
    /// Bytes of the log that were written when the last checkpoint began.
    log_bytes: u64,
    /// Numbers of segments whose index is in its file.
    indexed: BTreeSet<u64>,
    /// Segments whose index could not be written, by their numbers.
    put_off: BTreeMap<u64, PutOff>,
    /// Files could not be removed. Meanwhile nothing else is removed or rewritten.
    removal_put_off: Option<PutOff>,
    rewriter: Rewriter,
    retry_at_ms: Option<u64>,
}

/// Work that has failed and is tried again, after a time that doubles.
#[derive(Clone, Copy, Debug)]
struct PutOff {
    until_ms: u64,
    pause_ms: u64,
}

impl PutOff {
    /// After a failure; `before` is that of the last attempt.
    fn after(before: Option<Self>, now_ms: u64) -> Self {
        let doubled = before.map(|before| before.pause_ms.saturating_mul(2));
        let pause_ms = doubled.unwrap_or(RETRY_MS).min(MOST_RETRY_MS);
        Self {
            until_ms: now_ms + pause_ms,
            pause_ms,
        }
    }
}

impl Maintenance {
    pub(crate) fn new(
        shared: Arc<Shared>,
        records: Arc<Records>,
        applied: Applied,
        indexed: BTreeSet<u64>,
        replaced: BTreeSet<u64>,
    ) -> Self {
        Self {
            rewriter: Rewriter::new(Arc::clone(&shared), replaced),
            shared,
            records,
            applied,
            // The last process may have died after a sync of the file failed. The file's content is on the disk for
            // certain only after the next checkpoint.
            applied_before: 0,
            waiting: None,
            cost_bytes: 0,
            next_checkpoint_ms: 0,
            last_checkpoint_ms: 0,
            log_bytes: 0,
            indexed,
            put_off: BTreeMap::new(),
            removal_put_off: None,
            retry_at_ms: None,
        }
    }

    /// Does one thing that is due.
    pub(crate) fn step(&mut self, now_ms: u64, checkpoint: Checkpoint) -> Step {
        if let Some(at_ms) = self.retry_at_ms.filter(|at_ms| now_ms < *at_ms) {
            return Step::At(at_ms);
        }
        self.retry_at_ms = None;
        let done = if let Some(applied) = self.waiting {
            if self.shared.progress().synced < applied.sequence {
                return Step::At(now_ms + POLL_MS);
            }
            let records = Arc::clone(&self.records);
            let Some(_turn) = records.turn_to_change() else {
                // A shard reads its records at the start.
                return Step::At(now_ms + POLL_MS);
            };
            self.checkpoint(applied)
        } else if self.begin_checkpoint(now_ms, checkpoint) {
            Ok(())
        } else if let Some(segment) = self.without_index(now_ms) {
            let number = segment.number;
            if let Err(reason) = self.write_index(&segment) {
                // Segments that nobody needs go all the same: theirs may be the room that is lacking.
                tracing::warn!("store: {reason}");
                let before = self.put_off.get(&number).copied();
                self.put_off.insert(number, PutOff::after(before, now_ms));
            } else {
                self.put_off.remove(&number);
            }
            Ok(())
        } else {
            // Those whose time has come are gone, or have their index.
            self.put_off.retain(|_, put_off| now_ms < put_off.until_ms);
            if self.removal_put_off.is_none_or(|at| now_ms >= at.until_ms) {
                let records = Arc::clone(&self.records);
                let Some(turn) = records.turn_to_change() else {
                    return Step::At(now_ms + POLL_MS);
                };
                let removed = if self.rewriter.is_unfinished() {
                    self.rewriter.finish(&mut self.indexed).map(|()| true)
                } else {
                    self.remove_segment()
                };
                drop(turn);
                if removed == Ok(true) {
                    self.removal_put_off = None;
                    return Step::Again;
                }
                let reason = removed.err();
                if let Some(reason) = &reason {
                    tracing::warn!("store: {reason}");
                }
                let before = self.removal_put_off;
                self.removal_put_off = reason.map(|_| PutOff::after(before, now_ms));
            }
            // Nothing else is rewritten before the files are gone that a rewritten segment stands for.
            let may_rewrite = checkpoint == Checkpoint::WhenDue && !self.rewriter.is_unfinished();
            if may_rewrite {
                let applied = self.applied_before;
                let step = self.rewriter.step(now_ms, applied, &mut self.indexed);
                return sooner(self.rest(now_ms), step);
            }
            return self.rest(now_ms);
        };
        if let Err(reason) = done {
            tracing::warn!("store: {reason}");
            self.retry_at_ms = Some(now_ms + RETRY_MS);
            return Step::At(now_ms + RETRY_MS);
        }
        Step::Again
    }

    /// # Panics
    /// Where a checkpoint does not agree with the changes that wait for it, or a part of the work with the log.
    pub(super) fn check(&self) {
        let pending = self.shared.pending();
        pending.changes.check();
        pending.applying.check();
        assert!(
            self.applied_before <= self.applied.sequence
                && self.applied.sequence <= pending.through,
            "the records' file is not ahead of the log"
        );
        match self.waiting {
            Some(waiting) => {
                let is_behind = self.applied_before < waiting.sequence;
                assert!(
                    is_behind,
                    "a checkpoint brings changes, or repeats the last one"
                );
                let is_known = waiting.next_position <= pending.next_position;
                assert!(
                    is_known && waiting.sequence <= pending.through,
                    "a checkpoint has frames that are written"
                );
            }
            None => assert_eq!(
                pending.applying.len(),
                0,
                "a checkpoint has its changes applied"
            ),
        }
        drop(pending);
        assert!(
            self.log_bytes <= self.shared.written_bytes(),
            "bytes of the log at the last checkpoint"
        );
        let put_off = self.put_off.values().chain(&self.removal_put_off);
        for put_off in put_off {
            assert!(
                put_off.pause_ms <= MOST_RETRY_MS,
                "the time before another attempt"
            );
        }
        self.rewriter.check();
    }

    /// Whether no checkpoint is under way, and the records' file has all changes that are written.
    pub(crate) fn is_done(&self) -> bool {
        !self.is_busy() && self.applied.sequence >= self.shared.pending().through
    }

    /// Whether a checkpoint is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.waiting.is_some()
    }

    fn rest(&self, now_ms: u64) -> Step {
        let is_behind = self.applied.sequence < self.shared.pending().through;
        let checkpoint_ms = is_behind.then_some(self.next_checkpoint_ms);
        let put_off = self.put_off.values().chain(&self.removal_put_off);
        let urgent_ms = self.frees_room().then(|| now_ms + self.urgent_pause_ms());
        let next_ms = put_off.map(|put_off| put_off.until_ms);
        let next_ms = next_ms.chain(checkpoint_ms).chain(urgent_ms);
        // Every append may be the first since the last checkpoint; the thread looks in its interval.
        next_ms
            .min()
            .map_or(Step::Idle, |at_ms| Step::At(at_ms.max(now_ms + 1)))
    }

    /// Whether there is little room, and the first segment goes after a checkpoint or two. It needs two, and the second
    /// may have no changes.
    fn frees_room(&self) -> bool {
        let shared = &*self.shared;
        shared.has_little_room()
            && match shared.segments().as_slice() {
                [_, second, ..] => {
                    second.first_position <= shared.needed_from()
                        && second.first_sequence > self.applied_before + 1
                }
                _ => false,
            }
    }

    fn urgent_pause_ms(&self) -> u64 {
        (self.shared.settings.checkpoint_interval_ms / URGENT_PART).max(1)
    }

    /// Whether there is a reason to make a checkpoint now.
    ///
    /// Changes are safe in the log. A checkpoint is made so that a start has less to read, and so that segments can
    /// go. It is put off while it would write much more than the log does. A change of one small record costs a
    /// whole page.
    fn is_worth_it(&self, now_ms: u64, pending: &Pending) -> bool {
        let shared = &*self.shared;
        let log_bytes = shared.written_bytes() - self.log_bytes;
        now_ms >= self.last_checkpoint_ms + MOST_INTERVALS * shared.settings.checkpoint_interval_ms
            || pending.changes.bytes() >= shared.settings.maximum_pending_bytes
            || log_bytes >= MOST_REPLAYED_BYTES
            // Segments may go after it.
            || shared.is_full()
            || self.cost_of(pending) <= CHEAP_BYTES.max(log_bytes / LOG_SHARE)
    }

    /// About how much a checkpoint would write.
    fn cost_of(&self, pending: &Pending) -> u64 {
        let single_pages = pending.changes.len() as u64 * BYTES_PER_CHANGE;
        let whole_file = self.records.file_bytes().unwrap_or(u64::MAX);
        single_pages.min(whole_file.saturating_add(2 * pending.changes.bytes() as u64))
    }

    /// Takes the changes that there are, if it is time.
    fn begin_checkpoint(&mut self, now_ms: u64, checkpoint: Checkpoint) -> bool {
        let interval_ms = self.shared.settings.checkpoint_interval_ms;
        let is_urgent = checkpoint == Checkpoint::WhenDue
            && now_ms >= self.last_checkpoint_ms + self.urgent_pause_ms()
            && self.frees_room();
        let mut pending = self.shared.pending();
        if pending.through <= self.applied.sequence && !is_urgent {
            return false;
        }
        let is_due = match checkpoint {
            Checkpoint::WhenDue => {
                pending.changes.bytes() >= self.shared.settings.maximum_pending_bytes
                    || now_ms >= self.next_checkpoint_ms
                    || is_urgent
            }
            Checkpoint::IfCheap => self.cost_of(&pending) <= CLOSING_BYTES,
            Checkpoint::Now => true,
        };
        if !is_due {
            return false;
        }
        self.next_checkpoint_ms = now_ms + interval_ms;
        if checkpoint == Checkpoint::WhenDue && !self.is_worth_it(now_ms, &pending) {
            return false;
        }
        self.cost_bytes = self.cost_of(&pending);
        self.last_checkpoint_ms = now_ms;
        self.log_bytes = self.shared.written_bytes();
        pending.applying = Arc::new(std::mem::take(&mut pending.changes));
        let applied = Applied {
            sequence: pending.through,
            next_position: pending.next_position,
        };
        drop(pending);
        self.waiting = Some(applied);
        // Records must not be ahead of the log: a power cut would take their messages. Then positions would be
        // given a second time.
        self.shared.want_synced(applied.sequence);
        true
    }

    fn checkpoint(&mut self, applied: Applied) -> Result<(), String> {
        let changes = Arc::clone(&self.shared.pending().applying);
        let is_cheap = self.cost_bytes <= CLOSING_BYTES;
        let is_stopped = || !is_cheap && lock(&self.shared.maintenance).closing;
        let is_done = self
            .records
            .apply(&changes, applied, &is_stopped)
            .map_err(|reason| format!("records cannot be written: {reason}"))?;
        self.waiting = None;
        let cached_bytes = self.records.cached_bytes();
        self.shared
            .cached_bytes
            .store(cached_bytes, Ordering::Relaxed);
        let mut pending = self.shared.pending();
        pending.applying = Arc::default();
        if is_done {
            self.applied_before = self.applied.sequence;
            self.applied = applied;
        } else {
            // The log has them: the next start takes them from there.
            let newer = std::mem::replace(&mut pending.changes, (*changes).clone());
            pending.changes.extend(&newer);
        }
        Ok(())
    }

    /// A full segment whose index is in no file.
    fn without_index(&self, now_ms: u64) -> Option<Arc<Segment>> {
        let segments = self.shared.segments();
        let is_without = |segment: &&Arc<Segment>| {
            let state = segment.state();
            let put_off = self.put_off.get(&segment.number);
            let is_missing = state.index.is_some()
                || state.lacks_index
                || !self.indexed.contains(&segment.number);
            state.file.is_none()
                && is_missing
                && put_off.is_none_or(|put_off| now_ms >= put_off.until_ms)
        };
        segments.iter().find(is_without).map(Arc::clone)
    }

    fn write_index(&mut self, segment: &Segment) -> Result<(), String> {
        let shared = &*self.shared;
        // While a segment fails, its frames may not be readable.
        if shared.certainty().is_none() {
            return Err("an index waits until the log can be read".to_owned());
        }
        let write = || {
            let state = segment.state();
            let end = state.end;
            let encode = |index: &IndexBuilder| {
                index.encode(segment.number, end.offset, end.position, shared.seal)
            };
            let known = state.index.as_ref().map(encode);
            drop(state);
            let bytes = if let Some(bytes) = known {
                bytes
            } else {
                let file = shared.disk.open(&segment_name(segment.number))?;
                let built = build_index(shared, segment, &*file, end)?;
                if built.is_unreadable {
                    // It would lack messages that can be read later.
                    let reason = "the device cannot read all of the segment at the moment";
                    return Err(io::Error::other(reason));
                }
                encode(&built.index)
            };
            replace(&*shared.disk, FOLDER, &index_name(segment.number), &bytes)
        };
        write().map_err(|error: io::Error| {
            format!(
                "the index of segment {} cannot be written: {error}",
                segment.number
            )
        })?;
        self.indexed.insert(segment.number);
        let mut state = segment.state_mut();
        state.index = None;
        state.lacks_index = false;
        Ok(())
    }

    /// Removes the first segment, if no reader needs it.
    fn remove_segment(&mut self) -> Result<bool, String> {
        let shared = &*self.shared;
        let segments = shared.segments();
        let [first, second, ..] = segments.as_slice() else {
            return Ok(false);
        };
        // The library that keeps the records may go back to the state before its last transaction.
        let is_applied = second.first_sequence <= self.applied_before + 1;
        if !is_applied || second.first_position > shared.needed_from() {
            return Ok(false);
        }
        // First, so that a file that is missing without a note was somebody else's doing.
        self.records.begin_at(second.first_sequence)?;
        let number = first.number;
        let name = segment_name(number);
        // While it cannot be removed it stays in the list, so that none behind it is removed. That would be a gap.
        remove_if_there(&*shared.disk, &name).map_err(|error| {
            let name = shared.disk.display_name(&name);
            format!("{name} is not needed, and cannot be removed: {error}")
        })?;
        shared.change_segments(|segments| segments.retain(|segment| segment.number != number));
        remove_if_it_can_be(&*shared.disk, &index_name(number));
        self.indexed.remove(&number);
        self.put_off.remove(&number);
        // One after the other: after a power cut, there must not be a gap.
        (shared.disk.sync_folder(FOLDER)).map_err(|error| error.to_string())?;
        shared.close_gone();
        Ok(true)
    }
}

/// The step that comes first.
fn sooner(one: Step, other: Step) -> Step {
    match (one, other) {
        (Step::Again, _) | (_, Step::Again) => Step::Again,
        (Step::At(one), Step::At(other)) => Step::At(one.min(other)),
        (Step::Idle, step) | (step, Step::Idle) => step,
    }
}
