//! The state that the broker keeps over a restart, and the time at which it is kept.

use serde::{Deserialize, Serialize};

/// The durability that an acknowledgement waits for.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Deserialize, Serialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Nothing: it leaves at once. The acknowledged message is written soon after.
    Memory,
    /// The kernel has it, so that it survives the end of the process. It is synced every
    /// `store.sync_interval_ms`.
    #[default]
    Interval,
    /// It is on the disk.
    Commit,
}

impl Durability {
    /// The durability of messages that come once: the disk, also where other acknowledgements wait for the kernel only.
    /// `memory` is left as it is.
    #[must_use]
    pub(crate) const fn for_once(self) -> Self {
        match self {
            Self::Memory => Self::Memory,
            Self::Interval | Self::Commit => Self::Commit,
        }
    }
}

settings! {
    /// The store, by which messages and sessions survive the process. [Durability](durability.md) has the promises.
    #[derive(Eq)]
    pub struct Store {
        /// Whether anything is kept, in `store` in the data directory. Without it a restart loses everything.
        restart enabled: bool = true;
        /// Durability for which an acknowledgement waits. `commit`: the disk has the message (fdatasync, one for many
        /// messages). `interval`: the kernel has it, so that it survives a kill, and every `sync_interval_ms` the disk
        /// has it. `memory`: nothing.
        reload durability: Durability = Durability::Interval;
        /// Time between two syncs under `interval`. `memory` syncs when a segment is full, and at a checkpoint.
        restart sync_interval_ms: u64 = 10, within 1..;
        /// Time that appends wait before they are written, as if the disk were slow. For tests of crashes. 0: none.
        restart write_delay_ms: u64 = 0;
        /// Size of one file of the log.
        restart segment_bytes: u64 = 64 << 20, within MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES;
        /// Size of the log, above which messages are refused. 0: the disk's size; else at least two segments.
        restart maximum_bytes: u64 = 0;
        /// Part of the room that ends with `maximum_bytes` or `minimum_free_bytes`. From here on the reader that holds most
        /// of the log [loses its connection](durability.md#a-full-disk).
        restart pressed_percent: u32 = 80, within 1..=100;
        /// Bytes that stay free on the disk. Messages, and [records that would grow](durability.md#a-full-disk), are
        /// refused before it is full.
        restart minimum_free_bytes: u64 = 256 << 20;
        /// Bytes that wait to be written. Above it messages are refused.
        restart maximum_unwritten_bytes: u64 = 64 << 20, within MIN_SEGMENT_BYTES..;
        /// Time between two records of how far readers have come. Messages acknowledged since may come again after a
        /// crash.
        restart cursor_interval_ms: u64 = 200, within 1..;
        /// Time for which the machine may have been off. At a boot the wall clock may be so far from the last record; else
        /// [nothing expires by it](durability.md#the-wall-clock).
        restart maximum_clock_jump_s: u64 = 604_800, within 1..;
        /// Time between two looks for parts of the log that nobody needs.
        restart survey_interval_ms: u64 = 10_000, within 1..;
        /// Readers that a file of the log may have which is [rewritten](durability.md#what-is-rewritten) to what they
        /// need. 0: none is rewritten.
        restart maximum_rewrite_readers: u32 = 256;
        /// Filters of these readers together. With more, files stay that more readers have.
        restart maximum_rewrite_filters: u32 = 1_024;
        /// Messages of these readers that are not settled although later ones are. With more, all stays that the
        /// filters of a reader match.
        restart maximum_rewrite_positions: u32 = 65_536;
        /// Memory that may be taken to say what is needed of a file, its index included. A file that takes more stays.
        restart maximum_rewrite_memory_bytes: u64 = 64 << 20;
        /// Time for which readers hold a file before it is looked at, and between two looks.
        restart rewrite_interval_s: u64 = 600;
        /// Part of their bytes that files lose at least when they are rewritten.
        restart rewrite_least_percent: u32 = 50, within 1..=100;
        /// Bytes that rewriting reads and writes.
        restart rewrite_bytes_per_s: u64 = 32 << 20, within MIN_SEGMENT_BYTES..;
        /// Messages that wait in memory for a session which reads the log: after its absence, or because it is slower
        /// than its publishers. Also those of a shared subscription or AMQP queue, and four times as many while that has
        /// consumers. The others wait in the log.
        restart read_ahead_messages: u64 = 256, within 1..;
        /// Bytes of their bodies. One message may have more.
        restart read_ahead_bytes: u64 = 1 << 20, within 1..;
        /// Time between two checkpoints of the small records.
        restart checkpoint_interval_ms: u64 = 5_000, within 1..;
        /// Memory for changes of the small records that wait for a checkpoint. With more, one is made at once.
        restart maximum_pending_bytes: u64 = 64 << 20, within 1..;
        /// Memory for pages of the small records' file.
        restart records_cache_bytes: u64 = 16 << 20;
        /// Memory for indexes of the log's files that readers use.
        restart index_cache_bytes: u64 = 64 << 20;
        /// Acknowledgements of one connection that wait for the store. Above it the connection is not read; its keep
        /// alive does not run meanwhile.
        reload maximum_waiting_acknowledgements: u32 = 4_096, within 1..;
    }
}

/// Least size of a file of the log, in bytes.
const MIN_SEGMENT_BYTES: u64 = 1 << 20;
/// Greatest size of a file of the log, in bytes: offsets in its index have 32 bits.
const MAX_SEGMENT_BYTES: u64 = 1 << 30;

impl Store {
    /// The faults of the settings beside their ranges, each a sentence that names one setting.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.maximum_bytes > 0 && self.maximum_bytes < self.segment_bytes.saturating_mul(2) {
            problems.push(
                "store.maximum_bytes is 0, or at least two times store.segment_bytes".to_owned(),
            );
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_has_two_files_at_least() {
        let store = |maximum_bytes| Store {
            maximum_bytes,
            ..Store::default()
        };
        let least = 2 * Store::default().segment_bytes;
        assert_eq!(store(0).problems(), [""; 0]);
        assert_eq!(store(least).problems(), [""; 0]);
        assert_eq!(store(least - 1).problems().len(), 1);
    }

    #[test]
    fn the_stricter_durability_is_the_greater() {
        assert!(Durability::Memory < Durability::Interval);
        assert!(Durability::Interval < Durability::Commit);
    }
}
