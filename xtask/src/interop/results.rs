//! The lines that a suite prints, and its result.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::console::Tally;

/// Result of a suite.
#[derive(Debug, Default)]
pub(super) struct Results {
    pub(super) tally: Tally,
    /// The lines of checks that failed or were skipped.
    pub(super) problems: Vec<String>,
    /// The names of checks that passed.
    pub(super) passed: Vec<String>,
    /// The names of checks that failed.
    pub(super) failed: Vec<String>,
    /// Checks that had nothing to check.
    pub(super) inapplicable: usize,
    /// Checks that failed and were to fail, by the reason.
    pub(super) refused: BTreeMap<String, usize>,
}

impl Results {
    /// Reads all lines of a suite. `reason` says of a check, and of what it says, why it is to fail, if it is.
    pub(super) fn read<'a>(
        lines: impl IntoIterator<Item = &'a str>,
        reason: impl Fn(&str, &str) -> Option<String>,
    ) -> Self {
        let mut results = Self::default();
        for line in lines {
            let line = line.trim();
            if let Some(check) = line.strip_prefix("ok ") {
                results.tally += Tally::PASSED;
                results.passed.push(check.to_owned());
            } else if let Some(rest) = line.strip_prefix("not ok ") {
                let (check, said) = rest.split_once(": ").unwrap_or((rest, ""));
                if let Some(why) = reason(check, said) {
                    *results.refused.entry(why).or_default() += 1;
                } else {
                    results.tally += Tally::FAILED;
                    results.failed.push(check.to_owned());
                    results.problems.push(line.to_owned());
                }
            } else if line.starts_with("n/a ") {
                results.inapplicable += 1;
            } else if line.starts_with("skip ") {
                results.tally += Tally::SKIPPED;
                results.problems.push(line.to_owned());
            }
        }
        results
    }

    /// Why the lines and the exit code cannot both be true.
    pub(super) fn contradiction(&self, success: bool) -> Option<&'static str> {
        let Tally {
            passed,
            failed,
            skipped,
        } = self.tally;
        if passed + failed + skipped == 0 && self.refused.is_empty() {
            Some("it printed no result")
        } else if failed == 0 && !success && self.refused.is_empty() {
            Some("it failed without a failed check")
        } else if failed > 0 && success {
            Some("a check failed, and it ended as if none had")
        } else {
            None
        }
    }
}

/// Result of a suite.
#[derive(Debug, Default)]
pub(crate) struct SuiteReport {
    pub(crate) name: String,
    pub(crate) tally: Tally,
    /// Every check that failed or was skipped, and the end of the log if the suite broke.
    pub(crate) problems: Vec<String>,
    /// The names of checks that passed.
    pub(super) passed: Vec<String>,
    /// The names of checks that failed. Where the suite as a whole did, `BROKEN` is one of them.
    pub(crate) failed: Vec<String>,
    pub(crate) time: Duration,
    /// The file with all that the suite printed.
    pub(crate) log: PathBuf,
}

/// The name of a suite that broke, among its checks that failed.
pub(super) const BROKEN: &str = "the suite as a whole";

impl SuiteReport {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..Self::default()
        }
    }

    pub(super) fn skipped(name: &str, why: &str) -> Self {
        let mut report = Self::new(name);
        report.tally = Tally::SKIPPED;
        report.problems.push(format!("{name}: skip: {why}"));
        report
    }

    /// Whether each of these checks has passed or failed.
    pub(super) fn tells_of_all(&self, rows: &[String]) -> bool {
        let mut rows = rows.iter();
        rows.all(|row| self.passed.contains(row) || self.failed.contains(row))
    }

    /// The checks that failed, and those of another run that did not pass.
    pub(super) fn not_passed(&self, rows: &[String]) -> Vec<String> {
        let mut found = self.failed.clone();
        for row in rows.iter().filter(|row| !self.failed.contains(row)) {
            // A suite as a whole has passed if it has said so of something, and nothing else.
            let is_whole = row == BROKEN && self.tally.passed > 0;
            if !is_whole && !self.passed.contains(row) {
                found.push(row.clone());
            }
        }
        found
    }

    pub(super) fn broken(&mut self, why: &str) {
        self.tally += Tally::FAILED;
        self.problems.push(format!("{}: not ok: {why}", self.name));
        if !self.failed.iter().any(|row| row == BROKEN) {
            self.failed.push(BROKEN.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<'a>(lines: impl IntoIterator<Item = &'a str>) -> Results {
        Results::read(lines, |_, _| None)
    }

    #[test]
    fn a_check_that_is_to_fail_is_counted_apart() {
        let reason = |check: &str, said: &str| {
            (check == "tcp/5.0/shared" && said == "refused: 0x9E").then(|| "no groups".to_owned())
        };
        let lines = ["not ok tcp/5.0/shared: refused: 0x9E", "ok a"];
        let results = Results::read(lines, reason);
        assert_eq!(results.tally, Tally::PASSED);
        assert_eq!(results.refused["no groups"], 1);
        assert_eq!(results.contradiction(false), None);
        for other in [
            "not ok tcp/5.0/share: refused: 0x9E",
            "not ok tcp/5.0/shared: closed",
        ] {
            assert_eq!(Results::read([other], reason).tally, Tally::FAILED);
        }
    }

    #[test]
    fn lines_are_counted() {
        let results = read([
            "starting",
            "ok connect",
            "  ok publish",
            "not ok retain: nothing came",
            "skip quic: no library",
            "n/a will: the library has none",
            "okay",
            "notok",
        ]);
        assert_eq!(
            results.tally,
            Tally {
                passed: 2,
                failed: 1,
                skipped: 1
            }
        );
        assert_eq!(
            results.problems,
            ["not ok retain: nothing came", "skip quic: no library"]
        );
        assert_eq!(results.passed, ["connect", "publish"]);
        assert_eq!(results.failed, ["retain"]);
        assert_eq!(results.inapplicable, 1);
        assert_eq!(results.contradiction(false), None);
        assert!(results.contradiction(true).is_some());
    }

    #[test]
    fn silence_is_no_success() {
        assert!(read(["done"]).contradiction(true).is_some());
        assert!(read(["ok a"]).contradiction(false).is_some());
        assert!(read(["ok a"]).contradiction(true).is_none());
    }

    #[test]
    fn a_check_that_is_not_seen_in_the_second_run_has_not_passed() {
        let owned = |words: &[&str]| {
            words
                .iter()
                .map(|&word| word.to_owned())
                .collect::<Vec<_>>()
        };
        let report = |passed: &[&str], failed: &[&str]| SuiteReport {
            passed: owned(passed),
            failed: owned(failed),
            tally: Tally {
                passed: passed.len() as u64,
                failed: failed.len() as u64,
                skipped: 0,
            },
            ..SuiteReport::default()
        };
        let rows = owned(&["a", "b"]);
        assert_eq!(report(&["a", "b", "c"], &[]).not_passed(&rows), [""; 0]);
        assert_eq!(report(&["a", "b"], &["c"]).not_passed(&rows), ["c"]);
        assert_eq!(report(&["a"], &["b"]).not_passed(&rows), ["b"]);
        assert_eq!(report(&["c"], &[]).not_passed(&rows), ["a", "b"]);
        assert_eq!(report(&[], &[BROKEN]).not_passed(&rows), [BROKEN, "a", "b"]);
        assert!(report(&["a"], &["b"]).tells_of_all(&rows));
        assert!(!report(&["a"], &[]).tells_of_all(&rows));
        // A suite that broke and does not break again; one that is skipped now has not passed.
        let broken = owned(&[BROKEN]);
        assert_eq!(report(&["c"], &[]).not_passed(&broken), [""; 0]);
        assert_eq!(report(&[], &[]).not_passed(&broken), [BROKEN]);
    }
}
