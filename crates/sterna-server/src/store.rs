//! The embedded store: opened before anything else, closed when everything has ended.

use std::sync::{Arc, OnceLock};

use sterna_broker::{NoStore, Store};
use sterna_net::Mailbox;
use sterna_store::disk::RealDisk;
use sterna_store::{Engine, Running, Settings, ShardStore, UsageReader};

use crate::config::{self, Config, Durability};
use crate::control::{Failure, Report};
use crate::data_directory::DataDirectory;
use crate::mail::Mail;
use crate::node_clock::{NodeClock, SystemClocks};

/// Name of its folder in the data directory.
pub(crate) const FOLDER: &str = "store";

/// The store of the broker; without an engine it keeps nothing.
#[derive(Debug, Default)]
pub(crate) struct OpenStore {
    engine: Option<Running>,
    /// Why the records could not be read at the start.
    failure: Arc<OnceLock<String>>,
}

impl OpenStore {
    /// Opens the store of a data directory; without one nothing is kept.
    ///
    /// # Errors
    /// A sentence for the operator that names the file.
    pub(crate) fn open(config: &Config, directory: Option<&DataDirectory>) -> Result<Self, String> {
        let Some(directory) = directory.filter(|_| config.store.enabled) else {
            return Ok(Self::default());
        };
        let folder = directory.path().join(FOLDER);
        let failed = |why: String| format!("store: {why}");
        let engine = Engine::open(
            Arc::new(RealDisk::new(folder)),
            Settings::from(&config.store),
        )
        .map_err(|error| failed(error.to_string()))?;
        let engine = engine
            .spawn()
            .map_err(|error| failed(format!("cannot start a thread: {error}")))?;
        Ok(Self {
            engine: Some(engine),
            ..Self::default()
        })
    }

    /// Has the process told when a thread of the store has ended: without it, nothing is kept, or nothing ever goes.
    pub(crate) fn report_to(&self, report: Report) {
        if let Some(engine) = &self.engine {
            engine.on_failure(move |why| {
                if let Some(report) = report.upgrade() {
                    // Nobody may be listening.
                    let _ = report.send(Failure::Bug(format!("store: {why}")));
                }
            });
        }
    }

    /// A shard's handle, which wakes the shard by a letter.
    pub(crate) fn handle(&self, mailbox: Mailbox<Mail>) -> Box<dyn Store> {
        let Some(engine) = &self.engine else {
            return Box::new(NoStore);
        };
        let handle = engine.handle(Box::new(move || mailbox.post(Mail::Store)));
        Box::new(ShardStore::new(handle, Arc::clone(&self.failure)))
    }

    /// The node's clock, by the record of an earlier process; `None` without a store, where nothing is dated.
    ///
    /// # Errors
    /// A sentence for the operator: the records cannot be read.
    pub(crate) fn clock(&self, config: &Config) -> Result<Option<NodeClock>, String> {
        let Some(engine) = &self.engine else {
            return Ok(None);
        };
        let mut handle = engine.handle(Box::new(|| {}));
        let record = (handle.load_one(&NodeClock::key())).map_err(|why| format!("store: {why}"))?;
        let maximum_jump_ms = config.store.maximum_clock_jump_s.saturating_mul(1000);
        let clocks = Box::new(SystemClocks::default());
        Ok(Some(NodeClock::begin(
            record.as_deref(),
            clocks,
            maximum_jump_ms,
        )))
    }

    /// A reader of its figures; `None` without a store.
    pub(crate) fn usage_reader(&self) -> Option<UsageReader> {
        self.engine.as_ref().map(Running::usage_reader)
    }

    /// The reason why the broker cannot go on with the records that were read; `None` where it can.
    pub(crate) fn failure(&self) -> Option<String> {
        Some(format!("store: {}", self.failure.get()?))
    }

    /// One line about the findings, after all shards have restored their share.
    pub(crate) fn log(&self, sessions: usize, unsound_records: usize, next_position: u64) {
        let Some(engine) = &self.engine else {
            tracing::info!("nothing is kept over a restart: store.enabled is false");
            return;
        };
        let report = engine.report();
        // The engine has told of each damaged place, with file and offset.
        tracing::info!(
            is_new = report.is_new,
            next_position,
            sessions,
            records = report.records,
            replayed_frames = report.replayed_frames,
            damaged_places = report.damage.len(),
            unsound_records,
            "store opened"
        );
    }

    /// Has the disk take everything. False where it does not.
    pub(crate) fn close(self) -> bool {
        let closed = self.engine.map_or(Ok(()), Running::close);
        closed
            .inspect_err(|error| tracing::error!(%error, "the store was not closed in order"))
            .is_ok()
    }
}

impl From<&config::Store> for Settings {
    fn from(store: &config::Store) -> Self {
        let size = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
        Self {
            durability: match store.durability {
                Durability::Memory => sterna_store::Durability::Memory,
                Durability::Interval => sterna_store::Durability::Interval,
                Durability::Commit => sterna_store::Durability::Commit,
            },
            sync_interval_ms: store.sync_interval_ms,
            write_delay_ms: store.write_delay_ms,
            segment_bytes: store.segment_bytes,
            maximum_bytes: store.maximum_bytes,
            pressed_percent: store.pressed_percent,
            minimum_free_bytes: store.minimum_free_bytes,
            maximum_unwritten_bytes: size(store.maximum_unwritten_bytes),
            checkpoint_interval_ms: store.checkpoint_interval_ms,
            maximum_pending_bytes: size(store.maximum_pending_bytes),
            records_cache_bytes: size(store.records_cache_bytes),
            index_cache_bytes: size(store.index_cache_bytes),
            maximum_rewrite_readers: size(store.maximum_rewrite_readers.into()),
            maximum_rewrite_filters: size(store.maximum_rewrite_filters.into()),
            maximum_rewrite_positions: size(store.maximum_rewrite_positions.into()),
            maximum_rewrite_memory_bytes: size(store.maximum_rewrite_memory_bytes),
            rewrite_interval_ms: store.rewrite_interval_s.saturating_mul(1000),
            rewrite_least_percent: store.rewrite_least_percent,
            rewrite_bytes_per_s: store.rewrite_bytes_per_s,
        }
    }
}
