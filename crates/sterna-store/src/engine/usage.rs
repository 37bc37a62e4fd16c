//! Figures of a store, for metrics: any thread may ask for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::shared::Shared;

/// Buckets of [`SyncTimes`].
const BUCKETS: usize = 22;
/// Upper bound of the first bucket, in microseconds.
const FIRST_US: u64 = 64;

/// Durations of successful syncs.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SyncTimes {
    /// Number of syncs by duration. The first bucket ends at 64 microseconds, each next one at twice as
    /// much, and the last has no end.
    pub buckets: [u64; BUCKETS],
    /// Sum of the durations, in microseconds.
    pub sum_us: u64,
}

/// The figures of a store at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    /// Segments of the log.
    pub segments: u64,
    /// Written bytes of all segments.
    pub log_bytes: u64,
    /// Bytes written to the log since the store was opened.
    pub written_bytes: u64,
    /// Bytes of appends that wait for the writer.
    pub unwritten_bytes: u64,
    /// About the memory that appends, changes of records before their checkpoint, pages of the records'
    /// file, and rewriting take, in bytes.
    pub memory_bytes: u64,
    /// Frames that are written and not synced.
    pub unsynced_frames: u64,
    /// Steps of the writer that a write or a sync ended with an error.
    pub failures: u64,
    /// Whether messages are refused for want of room.
    pub is_full: bool,
    /// Damaged places that were found.
    pub damaged_places: u64,
    /// Segments that were taken together or made smaller, because few of their messages were needed, since the store was
    /// opened.
    pub rewritten_segments: u64,
    /// Bytes that they have become smaller by.
    pub rewrite_freed_bytes: u64,
    /// Durations of syncs of the log.
    pub syncs: SyncTimes,
}

/// Counts of the rewriting of segments.
#[derive(Debug, Default)]
pub(crate) struct RewriteCounts {
    segments: AtomicU64,
    freed_bytes: AtomicU64,
}

impl RewriteCounts {
    /// Segments were written anew, and are smaller by some bytes.
    pub(crate) fn rewritten(&self, segments: u64, freed_bytes: u64) {
        self.segments.fetch_add(segments, Ordering::Relaxed);
        self.freed_bytes.fetch_add(freed_bytes, Ordering::Relaxed);
    }
}

/// Counts of the writer.
#[derive(Debug, Default)]
pub(crate) struct WriterCounts {
    buckets: [AtomicU64; BUCKETS],
    sum_us: AtomicU64,
    failures: AtomicU64,
}

impl WriterCounts {
    /// The log was synced.
    pub(crate) fn synced(&self, took: Duration) {
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.buckets[bucket(took_us)].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(took_us, Ordering::Relaxed);
    }

    /// A write or a sync of the log failed.
    pub(crate) fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }
}

fn bucket(us: u64) -> usize {
    let units = us.div_ceil(FIRST_US).max(1);
    let doublings = (u64::BITS - (units - 1).leading_zeros()) as usize;
    doublings.min(BUCKETS - 1)
}

/// Reads the figures of a store, also after it was closed.
#[derive(Clone, Debug)]
pub struct UsageReader(Arc<Shared>);

impl UsageReader {
    pub(super) const fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    /// About the memory that changes of records take until their checkpoint, and pages of their file.
    fn records_bytes(&self) -> u64 {
        let pending = self.0.pending();
        let changes_bytes = pending.changes.bytes() + pending.applying.bytes();
        changes_bytes as u64 + self.0.cached_bytes.load(Ordering::Relaxed)
    }

    /// The figures now; those of different kinds may be of different moments.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let shared = &*self.0;
        let counts = &shared.writer_counts;
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let progress = shared.progress();
        let waiting_bytes = shared.inbox().bytes() as u64;
        let unwritten_bytes = waiting_bytes + count(&shared.in_hand);
        Usage {
            memory_bytes: unwritten_bytes + self.records_bytes() + count(&shared.rewrite_bytes),
            segments: shared.segments().len() as u64,
            log_bytes: shared.log_bytes(),
            written_bytes: shared.written_bytes(),
            unwritten_bytes,
            unsynced_frames: progress.written.saturating_sub(progress.synced),
            failures: count(&counts.failures),
            is_full: shared.is_full(),
            damaged_places: shared.damage().len() as u64,
            rewritten_segments: count(&shared.rewrite_counts.segments),
            rewrite_freed_bytes: count(&shared.rewrite_counts.freed_bytes),
            syncs: SyncTimes {
                buckets: std::array::from_fn(|bucket| count(&counts.buckets[bucket])),
                sum_us: count(&counts.sum_us),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_first_bucket_that_holds_it() {
        for (us, expected) in [(0, 0), (64, 0), (65, 1), (128, 1), (129, 2), (256, 2)] {
            assert_eq!(bucket(us), expected, "{us}");
        }
        assert_eq!(bucket(FIRST_US << (BUCKETS - 2)), BUCKETS - 2);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }
}
