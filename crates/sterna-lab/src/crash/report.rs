//! Findings of a run, as a text.

use std::fmt::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use sterna_ledger::{Ledger, Promise, Protocol};

use super::weather::Weather;
use super::{Doing, Settings};

/// Most violations that are printed.
const MAX_PRINTED: usize = 30;

/// Findings of a run.
#[derive(Debug)]
pub struct Report {
    text: String,
    violations: u64,
    /// Whether acknowledged messages are missing.
    is_losing: bool,
}

impl Report {
    /// How many promises were broken.
    #[must_use]
    pub const fn violations(&self) -> u64 {
        self.violations
    }

    /// Whether messages that were acknowledged did not come.
    #[must_use]
    pub const fn is_losing(&self) -> bool {
        self.is_losing
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Counts that the ledger does not keep.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) kills: u32,
    /// Of these, before the broker listened.
    pub(super) kills_at_start: u32,
    /// Of these, when everything sent was acknowledged.
    pub(super) kills_at_rest: u32,
    /// Where the broker lives on: how often each fault was there.
    pub(super) faults: [u32; Weather::FAULTS],
    /// Comparisons of ledgers.
    pub(super) comparisons: u32,
    /// Longest time from a start until it listened.
    pub(super) slowest_start: Duration,
    pub(super) elapsed: Duration,
}

impl Tally {
    pub(super) fn report(
        &self,
        settings: &Settings,
        ledger: &Ledger,
        kept_folder: Option<PathBuf>,
    ) -> Report {
        let mut text = String::new();
        let _ = self.write(&mut text, settings, ledger, kept_folder);
        let mut lost = Protocol::ALL.into_iter();
        Report {
            text,
            violations: ledger.all_breaches(),
            is_losing: lost.any(|protocol| ledger.breaches(Promise::Kept, protocol) > 0),
        }
    }

    fn write(
        &self,
        out: &mut String,
        settings: &Settings,
        ledger: &Ledger,
        kept_folder: Option<PathBuf>,
    ) -> fmt::Result {
        writeln!(
            out,
            "seed {}, durability {}: {} {} ({} while it started, {} at rest), {} comparisons, {:.0} s; \
             the slowest start took {} ms",
            settings.seed,
            settings.durability,
            self.kills,
            match settings.doing {
                Doing::Kills => "kills",
                Doing::Cuts => "cuts",
                Doing::Faults => "faults",
            },
            self.kills_at_start,
            self.kills_at_rest,
            self.comparisons,
            self.elapsed.as_secs_f64(),
            self.slowest_start.as_millis()
        )?;
        if settings.doing != Doing::Kills {
            writeln!(out, "the broker was not killed:")?;
            for (name, count) in Weather::NAMES.iter().zip(self.faults) {
                writeln!(out, "- {count} {name}")?;
            }
        }
        write!(out, "\n{:<14}", "")?;
        for protocol in Protocol::ALL {
            write!(out, "{protocol:>10}")?;
        }
        writeln!(out)?;
        let counts = Protocol::ALL.map(|protocol| ledger.counts(protocol));
        for (name, values) in [
            ("sent", counts.map(|one| one.sent)),
            ("acknowledged", counts.map(|one| one.acknowledged)),
            ("delivered", counts.map(|one| one.delivered)),
            ("repeated", counts.map(|one| one.repeated)),
        ] {
            row(out, name, values)?;
        }
        for promise in Promise::ALL {
            let values = Protocol::ALL.map(|protocol| ledger.breaches(promise, protocol));
            row(out, promise.breach(), values)?;
        }
        let total = ledger.all_breaches();
        if total > 0 {
            writeln!(out, "\n{total} violations:")?;
            for ((promise, client), count) in ledger.breaches_by_client() {
                writeln!(out, "{:<14}{count:>10}  {client}", promise.breach())?;
            }
            writeln!(out, "\nthe first of them:")?;
            for violation in ledger.violations().iter().take(MAX_PRINTED) {
                writeln!(out, "- {violation}")?;
            }
        } else {
            writeln!(out, "\nno violations")?;
        }
        if let Some(folder) = kept_folder {
            writeln!(out, "\nthe broker's folder: {}", folder.display())?;
        }
        Ok(())
    }
}

fn row(out: &mut String, name: &str, values: [u64; Protocol::ALL.len()]) -> fmt::Result {
    write!(out, "{name:<14}")?;
    for value in values {
        write!(out, "{value:>10}")?;
    }
    writeln!(out)
}
