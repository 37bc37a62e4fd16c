//! The second run of rows that failed.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use super::outcome::{Done, Rows};
use super::stage::{Stage, label};
use crate::console::{Colour, Progress, Tally, paint};
use crate::second_run::{Judged, MOST_FLAKY, MOST_ROWS, judge, recount, verdict};
use crate::test_programs::{self, FailedTest};
use crate::{Failure, interop};

impl Stage<'_> {
    /// Runs all rows that failed once more, one part after the other, and counts again. Returns what is counted for the
    /// flaky ones.
    pub(super) fn second_runs(&self, done: &mut [Done]) -> Tally {
        let count: usize = done.iter().map(|one| one.rows.titles().len()).sum();
        let is_told = count > 0 && count <= MOST_ROWS;
        if is_told {
            println!("\nfailed rows: {count}; each is run once more, alone");
        } else if count > 0 {
            println!("\nfailed rows: {count}, which is no accident; none is run once more");
        }
        let mut flaky = 0;
        for one in done.iter_mut().filter(|one| !one.rows.is_empty()) {
            if is_told {
                let judged = self.second_run(one);
                one.tally = recount(one.tally, &one.rows.titles(), &judged);
                one.is_flaky = !judged.flaky.is_empty();
                flaky += judged.flaky.len();
            }
            self.write_down(one);
        }
        let counted = verdict(flaky);
        if counted == Some(Tally::FAILED) {
            let text = format!("{flaky} rows are flaky, more than {MOST_FLAKY}: the run fails");
            println!("{}", paint(Colour::Red, &text));
        }
        counted.unwrap_or_default()
    }

    fn second_run(&self, done: &Done) -> Judged {
        let mut progress = Progress::aside(&label(&done.part));
        let first = done.rows.titles();
        let second = match &done.rows {
            Rows::Tests(tests) => self.tests_again(&done.part, tests, &mut progress),
            Rows::Checks { suite, rows, .. } => {
                interop::run_again(&self.field(), self.suites, suite, rows, &mut progress)
            }
        };
        // A row that cannot be run again has not passed.
        let second = second.unwrap_or_else(|Failure(why)| {
            println!("{}: {why}", done.part);
            first.clone()
        });
        let judged = judge(&first, &second);
        for row in &judged.flaky {
            let log = done.rows.log_of(row);
            let text = format!("flaky: {} {row}  {}", done.part, self.workspace.name(&log));
            println!("{}", paint(Colour::Yellow, &text));
            // Logs stay on the machine that ran the tests, which may be gone.
            let said = fs::read_to_string(&log).unwrap_or_default();
            if let Some(reason) = reason(&said, row) {
                println!("       {reason}");
            }
        }
        for row in &judged.failed {
            let text = format!("failed twice: {} {row}", done.part);
            println!("{}", paint(Colour::Red, &text));
        }
        judged
    }

    /// Runs failed tests once more, those of a program together. Returns the names of those that failed again.
    fn tests_again(
        &self,
        part: &str,
        tests: &[FailedTest],
        progress: &mut Progress,
    ) -> Result<Vec<String>, Failure> {
        let mut programs: BTreeMap<&PathBuf, Vec<FailedTest>> = BTreeMap::new();
        for test in tests {
            programs.entry(&test.log).or_default().push(test.clone());
        }
        let logs = self.workspace.target_folder("xtask")?;
        let mut failed = Vec::new();
        for (number, tests) in programs.into_values().enumerate() {
            let log = logs.join(format!("again-{}-{number}.log", part.replace('/', "-")));
            let again = test_programs::run_again(&tests, &log, &self.path(), progress)?;
            failed.extend(again.iter().map(FailedTest::title));
        }
        Ok(failed)
    }
}

/// Why a row of a suite failed, by the text of the suite's log.
fn reason<'text>(log: &'text str, row: &str) -> Option<&'text str> {
    let start = format!("not ok {row}: ");
    log.lines().find_map(|line| line.strip_prefix(&start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_a_row_is_the_one_in_its_log() {
        let log = "ok a\nnot ok a/b: refused: 0x9E\nnot ok a: closed\n";
        assert_eq!(reason(log, "a"), Some("closed"));
        assert_eq!(reason(log, "b"), None);
    }
}
