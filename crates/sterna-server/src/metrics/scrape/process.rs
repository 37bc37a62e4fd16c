//! The process: its resources, its clock, memory.

use super::Scrape;
use crate::memory::Stage;
use crate::metrics::page::Page;
use crate::node_clock::{Doubt, NodeClock};
use crate::sys::Process;

impl Scrape {
    pub(super) fn write_process(&self, page: &mut Page<'_>) {
        // Not of the type `info`, which older readers of the format do not know.
        page.gauges(
            "sterna_build_info",
            "The version of the broker; always 1",
            ["version"],
            [([env!("CARGO_PKG_VERSION")], 1)],
        );
        page.gauge(
            "process_start_time_seconds",
            "When the broker started, in seconds since the Unix epoch",
            self.sources.started_ms / 1000,
        );
        let process = Process::read();
        page.counter_of_seconds(
            "process_cpu_seconds",
            "Processor time that the process has used",
            process.cpu_s,
        );
        page.gauge(
            "process_resident_memory_bytes",
            "Resident memory of the process",
            process.resident_bytes,
        );
        self.write_clock(page);
        self.write_memory(page, &process);
        crate::metrics::trust::write(&self.sources, &self.issuer, page);
    }

    fn write_clock(&self, page: &mut Page<'_>) {
        // Without a store nothing is dated for a later process.
        let doubt = self.sources.clock().and_then(NodeClock::doubt);
        let ahead_ms = (self.sources.clock()).map_or(0, NodeClock::wall_ahead_ms);
        page.gauges(
            "sterna_clock_in_doubt",
            "Whether the wall clock is far from the node's, so that nothing expires by it: 1 for the reason",
            ["reason"],
            [Doubt::Behind, Doubt::Ahead]
                .map(|reason| ([reason.name()], u64::from(doubt == Some(reason)))),
        );
        page.gauges(
            "sterna_clock_difference_seconds",
            "How far the wall clock is ahead of the node's clock, or behind it",
            ["wall_clock"],
            {
                let seconds = ahead_ms.unsigned_abs() / 1000;
                let of = |is_it| if is_it { seconds } else { 0 };
                [
                    (["ahead"], of(ahead_ms > 0)),
                    (["behind"], of(ahead_ms < 0)),
                ]
            },
        );
    }

    /// The resident memory by kind, as far as it is accounted for.
    fn write_memory(&self, page: &mut Page<'_>, process: &Process) {
        let kinds = self.sources.memory(&self.memory, process).into_iter();
        page.gauges(
            "sterna_memory_bytes",
            "Memory by kind, as the broker's account has it; what else is resident is unaccounted",
            ["kind"],
            kinds.map(|(kind, bytes)| ([kind], bytes)),
        );
        page.gauge(
            "sterna_memory_ceiling_bytes",
            "The ceiling of memory; 0 where there is none",
            self.memory.ceiling_bytes().unwrap_or(0),
        );
        page.gauge(
            "sterna_memory_used_bytes",
            "What is compared with the ceiling: the account or the resident memory, whichever is more",
            self.memory.used_bytes(),
        );
        let stage = self.memory.stage();
        page.gauges(
            "sterna_memory_stage",
            "Stages of short memory: 1 for those in force",
            ["stage"],
            Stage::SHORT.map(|short| ([short.name()], u64::from(short <= stage))),
        );
        let entered = Stage::SHORT.iter().zip(self.memory.entered());
        page.counters(
            "sterna_memory_stages_entered",
            "How often a stage of short memory was entered",
            ["stage"],
            entered.map(|(stage, times)| ([stage.name()], times)),
        );
    }
}
