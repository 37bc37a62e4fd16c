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

/// The embedded store.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Store {
    /// Whether anything survives the process: sessions, queues and retained messages, in `store` in the
    /// data directory.
    pub enabled: bool,
    /// Durability for which acknowledgements wait.
    pub durability: Durability,
    /// Time between two syncs under `interval`, in milliseconds.
    pub sync_interval_ms: u64,
    /// Time that appends wait before they are written, in milliseconds: a slow disk, for tests of crashes.
    pub write_delay_ms: u64,
    /// Size of one file of the log, in bytes.
    pub segment_bytes: u64,
    /// Size of the log, in bytes, above which messages are refused. 0: the disk's size.
    pub maximum_bytes: u64,
    /// The part of the log's room from which on the reader that holds most of it loses its connection, in percent.
    pub pressed_percent: u32,
    /// Bytes that stay free on the disk: messages are refused before it is full.
    pub minimum_free_bytes: u64,
    /// Bytes that wait to be written; above it messages are refused.
    pub maximum_unwritten_bytes: u64,
    /// Time between two records of how far a reader has come, in milliseconds.
    pub cursor_interval_ms: u64,
    /// Time between two surveys of what of the log nobody needs any more, in milliseconds.
    pub survey_interval_ms: u64,
    /// Readers that a file of the log may have which is rewritten to what they need. 0: none is.
    pub maximum_rewrite_readers: u32,
    /// Filters of these readers, in number; with more, the file stays.
    pub maximum_rewrite_filters: u32,
    /// Messages of these readers, in number, that are not settled although later ones are; with more, the file keeps all
    /// that their filters match.
    pub maximum_rewrite_positions: u32,
    /// Memory that may be taken to say what is needed of a file, in bytes; with more, the file stays.
    pub maximum_rewrite_memory_bytes: u64,
    /// Time for which readers hold a file before it is looked at whether rewriting pays, and between two looks, in
    /// seconds.
    pub rewrite_interval_s: u64,
    /// The least part of their bytes that files lose when they are rewritten, in percent.
    pub rewrite_least_percent: u32,
    /// Bytes that rewriting reads and writes in a second.
    pub rewrite_bytes_per_s: u64,
    /// Messages that wait in memory for a session which reads the log, in number.
    pub read_ahead_messages: u64,
    /// Largest size of the bodies that are read ahead, in bytes; a single message may have more.
    pub read_ahead_bytes: u64,
    /// Time between two checkpoints of the small records, in milliseconds.
    pub checkpoint_interval_ms: u64,
    /// Bytes of changes of small records that wait in memory for a checkpoint; with more, one is made at
    /// once.
    pub maximum_pending_bytes: u64,
    /// Memory for pages of the small records' file, in bytes.
    pub records_cache_bytes: u64,
    /// Memory for indexes of the log's files that readers use, in bytes.
    pub index_cache_bytes: u64,
    /// Acknowledgements of one connection that wait for the store; above it the connection is not read.
    pub maximum_waiting_acknowledgements: u32,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            enabled: true,
            durability: Durability::Interval,
            sync_interval_ms: 10,
            write_delay_ms: 0,
            segment_bytes: 64 << 20,
            maximum_bytes: 0,
            pressed_percent: 80,
            minimum_free_bytes: 256 << 20,
            maximum_unwritten_bytes: 64 << 20,
            cursor_interval_ms: 200,
            survey_interval_ms: 10_000,
            maximum_rewrite_readers: 256,
            maximum_rewrite_filters: 1_024,
            maximum_rewrite_positions: 65_536,
            maximum_rewrite_memory_bytes: 64 << 20,
            rewrite_interval_s: 600,
            rewrite_least_percent: 50,
            rewrite_bytes_per_s: 32 << 20,
            read_ahead_messages: 256,
            read_ahead_bytes: 1 << 20,
            checkpoint_interval_ms: 5_000,
            maximum_pending_bytes: 64 << 20,
            records_cache_bytes: 16 << 20,
            index_cache_bytes: 64 << 20,
            maximum_waiting_acknowledgements: 4_096,
        }
    }
}

/// Least size of a file of the log, in bytes.
const MIN_SEGMENT_BYTES: u64 = 1 << 20;
/// Greatest size of a file of the log, in bytes: offsets in its index have 32 bits.
const MAX_SEGMENT_BYTES: u64 = 1 << 30;

impl Store {
    /// The faults of the settings, each a sentence that names one setting.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (name, value) in [
            ("sync_interval_ms", self.sync_interval_ms),
            ("cursor_interval_ms", self.cursor_interval_ms),
            ("survey_interval_ms", self.survey_interval_ms),
            ("read_ahead_messages", self.read_ahead_messages),
            ("read_ahead_bytes", self.read_ahead_bytes),
            ("checkpoint_interval_ms", self.checkpoint_interval_ms),
            ("maximum_pending_bytes", self.maximum_pending_bytes),
            (
                "maximum_waiting_acknowledgements",
                u64::from(self.maximum_waiting_acknowledgements),
            ),
        ] {
            if value == 0 {
                problems.push(format!("store.{name} is at least 1"));
            }
        }
        if !(MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&self.segment_bytes) {
            problems.push(format!(
                "store.segment_bytes is at least {MIN_SEGMENT_BYTES} and at most {MAX_SEGMENT_BYTES}"
            ));
        }
        if !(1..=100).contains(&self.pressed_percent) {
            problems.push("store.pressed_percent is at least 1 and at most 100".to_owned());
        }
        if !(1..=100).contains(&self.rewrite_least_percent) {
            problems.push("store.rewrite_least_percent is at least 1 and at most 100".to_owned());
        }
        if self.rewrite_bytes_per_s < MIN_SEGMENT_BYTES {
            problems.push(format!(
                "store.rewrite_bytes_per_s is at least {MIN_SEGMENT_BYTES}"
            ));
        }
        if self.maximum_bytes > 0 && self.maximum_bytes < self.segment_bytes.saturating_mul(2) {
            problems.push(
                "store.maximum_bytes is 0, or at least two times store.segment_bytes".to_owned(),
            );
        }
        if self.maximum_unwritten_bytes < MIN_SEGMENT_BYTES {
            problems.push(format!(
                "store.maximum_unwritten_bytes is at least {MIN_SEGMENT_BYTES}"
            ));
        }
        problems
    }

    /// Whether all that only a restart changes is as in other settings.
    pub(super) fn is_opened_like(&self, other: &Self) -> bool {
        let mut like = other.clone();
        like.take_reloaded(self);
        like == *self
    }

    /// Takes what a reload changes from other settings.
    pub(super) const fn take_reloaded(&mut self, new: &Self) {
        self.durability = new.durability;
        self.maximum_waiting_acknowledgements = new.maximum_waiting_acknowledgements;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_named() {
        let store = Store {
            sync_interval_ms: 0,
            segment_bytes: 2 << 30,
            maximum_bytes: 1 << 20,
            maximum_waiting_acknowledgements: 0,
            rewrite_least_percent: 101,
            rewrite_bytes_per_s: 1,
            ..Store::default()
        };
        let problems = store.problems();
        for name in [
            "store.sync_interval_ms",
            "store.segment_bytes",
            "store.maximum_bytes",
            "store.maximum_waiting_acknowledgements",
            "store.rewrite_least_percent",
            "store.rewrite_bytes_per_s",
        ] {
            let named = problems.iter().any(|problem| problem.starts_with(name));
            assert!(named, "{name}: {problems:?}");
        }
        assert_eq!(problems.len(), 6, "{problems:?}");
    }

    #[test]
    fn the_stricter_durability_is_the_greater() {
        assert!(Durability::Memory < Durability::Interval);
        assert!(Durability::Interval < Durability::Commit);
    }
}
