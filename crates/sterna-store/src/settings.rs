//! Settings of the engine.

/// The time from which on an append counts as kept.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Durability {
    /// After it is on the disk: each batch is synced.
    Commit,
    /// After it is with the operating system; synced every [`sync_interval_ms`](Settings::sync_interval_ms).
    #[default]
    Interval,
    /// At once; synced when a segment is full and at each checkpoint.
    Memory,
}

/// Settings of the engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Time of the sync of a batch, unless a shard asks for it sooner.
    pub durability: Durability,
    /// How long an append of [`Durability::Interval`] is not on the disk at most, in milliseconds.
    pub sync_interval_ms: u64,
    /// How long a batch waits before it is written, in milliseconds: a slow disk, for tests of crashes.
    pub write_delay_ms: u64,
    /// Size of a segment of the log in bytes. A frame that is larger has a segment of its own.
    pub segment_bytes: u64,
    /// Bytes of the log above which messages are refused; 0 for no limit.
    pub maximum_bytes: u64,
    /// The part of the log's room from which on readers that hold most of it are to let it go, in percent. The room ends
    /// where messages are refused, by `maximum_bytes` or `minimum_free_bytes`.
    pub pressed_percent: u32,
    /// Free bytes of the disk below which messages are refused.
    pub minimum_free_bytes: u64,
    /// Bytes that wait to be written above which messages are refused.
    pub maximum_unwritten_bytes: usize,
    /// How often changes of records go into their file, in milliseconds.
    pub checkpoint_interval_ms: u64,
    /// Bytes of memory for indexes of segments that readers have used.
    pub index_cache_bytes: usize,
    /// Bytes of memory for pages of the records' file.
    pub records_cache_bytes: usize,
    /// Bytes of changes of records that wait in memory for a checkpoint; with more, one is made at once.
    pub maximum_pending_bytes: usize,
    /// Readers that a segment may have which is rewritten to what they need; 0 for no rewriting.
    pub maximum_rewrite_readers: usize,
    /// Filters of these readers.
    pub maximum_rewrite_filters: usize,
    /// Messages of these readers that are not settled although later ones are.
    pub maximum_rewrite_positions: usize,
    /// Bytes of memory that a look at a segment may take, and the copying of one; a segment that needs more stays.
    pub maximum_rewrite_memory_bytes: usize,
    /// How long readers hold a segment before it is looked at, and time between two looks, in milliseconds.
    pub rewrite_interval_ms: u64,
    /// The least part of their bytes that segments lose when they are rewritten, in percent.
    pub rewrite_least_percent: u32,
    /// Bytes that rewriting reads and writes in a second.
    pub rewrite_bytes_per_s: u64,
}

/// The smallest segment, in bytes.
pub const SMALLEST_SEGMENT_BYTES: u64 = 4 << 10;
/// The largest segment, in bytes: offsets in its index have 32 bits.
pub const LARGEST_SEGMENT_BYTES: u64 = 1 << 30;

impl Default for Settings {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            sync_interval_ms: 10,
            write_delay_ms: 0,
            segment_bytes: 64 << 20,
            maximum_bytes: 0,
            pressed_percent: 80,
            minimum_free_bytes: 256 << 20,
            maximum_unwritten_bytes: 64 << 20,
            checkpoint_interval_ms: 5_000,
            index_cache_bytes: 64 << 20,
            records_cache_bytes: 16 << 20,
            maximum_pending_bytes: 64 << 20,
            maximum_rewrite_readers: 256,
            maximum_rewrite_filters: 1_024,
            maximum_rewrite_positions: 65_536,
            maximum_rewrite_memory_bytes: 64 << 20,
            rewrite_interval_ms: 600_000,
            rewrite_least_percent: 50,
            rewrite_bytes_per_s: 32 << 20,
        }
    }
}

impl Settings {
    /// Checks that they fit together.
    ///
    /// # Errors
    /// The reason, with the setting's name.
    pub fn check(&self) -> Result<(), String> {
        if !(SMALLEST_SEGMENT_BYTES..=LARGEST_SEGMENT_BYTES).contains(&self.segment_bytes) {
            return Err(format!(
                "store.segment_bytes: {} is not between {SMALLEST_SEGMENT_BYTES} and {LARGEST_SEGMENT_BYTES}",
                self.segment_bytes
            ));
        }
        for (name, value) in [
            ("sync_interval_ms", self.sync_interval_ms),
            ("checkpoint_interval_ms", self.checkpoint_interval_ms),
            (
                "maximum_unwritten_bytes",
                self.maximum_unwritten_bytes as u64,
            ),
            ("maximum_pending_bytes", self.maximum_pending_bytes as u64),
            ("rewrite_bytes_per_s", self.rewrite_bytes_per_s),
        ] {
            if value == 0 {
                return Err(format!("store.{name}: 0 is too small"));
            }
        }
        if !(1..=100).contains(&self.rewrite_least_percent) {
            return Err(format!(
                "store.rewrite_least_percent: {} is not between 1 and 100",
                self.rewrite_least_percent
            ));
        }
        if !(1..=100).contains(&self.pressed_percent) {
            return Err(format!(
                "store.pressed_percent: {} is not between 1 and 100",
                self.pressed_percent
            ));
        }
        if self.maximum_bytes != 0 && self.maximum_bytes < 2 * self.segment_bytes {
            return Err(format!(
                "store.maximum_bytes: {} is less than two segments of {} bytes",
                self.maximum_bytes, self.segment_bytes
            ));
        }
        Ok(())
    }
}
