//! The store.

use sterna_store::UsageReader;

use super::Scrape;
use crate::metrics::histogram::Observed;
use crate::metrics::meters::Distribution;
use crate::metrics::page::Page;

impl Scrape {
    pub(super) fn write_store(&self, page: &mut Page<'_>) {
        let store = self.sources.store.as_ref();
        let usage = store.map(UsageReader::usage).unwrap_or_default();
        for (name, help, number) in [
            (
                "sterna_store_segments",
                "Segments of the log",
                usage.segments,
            ),
            ("sterna_store_bytes", "Bytes of the log", usage.log_bytes),
            (
                "sterna_store_unwritten_bytes",
                "Bytes that wait to be written",
                usage.unwritten_bytes,
            ),
            (
                "sterna_store_unsynced_frames",
                "Frames that are written and not synced",
                usage.unsynced_frames,
            ),
            (
                "sterna_store_full",
                "1 while the store refuses messages",
                u64::from(usage.is_full),
            ),
            (
                "sterna_store_damaged_places",
                "Damaged places that were found",
                usage.damaged_places,
            ),
        ] {
            page.gauge(name, help, number);
        }
        for (name, help, number) in [
            (
                "sterna_store_written_bytes",
                "Bytes written to the log",
                usage.written_bytes,
            ),
            (
                "sterna_store_rewritten_segments",
                "Segments that were rewritten to what their few readers need",
                usage.rewritten_segments,
            ),
            (
                "sterna_store_rewrite_freed_bytes",
                "Bytes that rewritten segments have lost",
                usage.rewrite_freed_bytes,
            ),
            (
                "sterna_store_failures",
                "Writes and syncs of the log that failed",
                usage.failures,
            ),
            (
                "sterna_sessions_fallen_behind",
                "Times that a session fell behind its publishers, and reads the log since",
                self.broker(|broker| broker.fallen_behind),
            ),
        ] {
            page.counter(name, help, number);
        }
        let syncs = Distribution {
            label: "",
            observed: Observed::new(usage.syncs.buckets, usage.syncs.sum_us),
            unit: 64e-6,
            sum_unit: 1e-6,
        };
        page.histogram("sterna_store_sync_seconds", "Durations of syncs", &syncs);
    }
}
