//! Results of parts.

use std::path::PathBuf;
use std::time::Duration;

use crate::console::Tally;
use crate::interop::FIRST_LOG;
use crate::test_programs::FailedTest;

/// A part that has ended.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) part: String,
    pub(super) tally: Tally,
    /// Rows that failed, as far as they can be run once more.
    pub(super) rows: Rows,
    pub(super) time: Duration,
    /// Whether something of it failed once.
    pub(super) is_flaky: bool,
}

/// Rows that failed.
#[derive(Debug)]
pub(super) enum Rows {
    Tests(Vec<FailedTest>),
    /// Checks of a suite, and what it printed.
    Checks {
        suite: String,
        rows: Vec<String>,
        log: PathBuf,
    },
}

impl Rows {
    pub(super) const fn of_suite(suite: String, rows: Vec<String>, log: PathBuf) -> Self {
        Self::Checks { suite, rows, log }
    }

    pub(super) const fn is_empty(&self) -> bool {
        match self {
            Self::Tests(tests) => tests.is_empty(),
            Self::Checks { rows, .. } => rows.is_empty(),
        }
    }

    /// Their names.
    pub(super) fn titles(&self) -> Vec<String> {
        match self {
            Self::Tests(tests) => tests.iter().map(FailedTest::title).collect(),
            Self::Checks { rows, .. } => rows.clone(),
        }
    }

    /// The log of a row that failed, of the run in which it failed first.
    pub(super) fn log_of(&self, row: &str) -> PathBuf {
        match self {
            Self::Tests(tests) => {
                let test = tests.iter().find(|test| test.title() == row);
                test.map(|test| test.log.clone()).unwrap_or_default()
            }
            // The second run has the name that the first had.
            Self::Checks { rows, log, .. } if rows.iter().any(|one| one == row) => {
                log.with_file_name(FIRST_LOG)
            }
            Self::Checks { log, .. } => log.clone(),
        }
    }
}

impl Done {
    /// A part that failed as a whole.
    pub(super) fn failed(part: &str, time: Duration) -> Self {
        Self {
            part: part.to_owned(),
            tally: Tally::FAILED,
            rows: Rows::Tests(Vec::new()),
            time,
            is_flaky: false,
        }
    }

    /// The word for it in the record.
    pub(super) const fn verdict(&self) -> &'static str {
        match self.tally {
            Tally { failed: 1.., .. } => "FAILED",
            Tally { skipped: 1.., .. } => "skipped",
            _ if self.is_flaky => "flaky",
            _ => "ok",
        }
    }
}
