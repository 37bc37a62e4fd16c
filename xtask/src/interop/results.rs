//! The lines that a suite prints.

use crate::console::Tally;

/// Result of a suite.
#[derive(Debug, Default)]
pub(super) struct Results {
    pub(super) tally: Tally,
    /// The lines of checks that failed or were skipped.
    pub(super) problems: Vec<String>,
    /// Checks that had nothing to check.
    pub(super) inapplicable: usize,
}

impl Results {
    /// Reads all lines of a suite.
    pub(super) fn read<'a>(lines: impl IntoIterator<Item = &'a str>) -> Self {
        let mut results = Self::default();
        for line in lines {
            let line = line.trim();
            if line.starts_with("ok ") {
                results.tally += Tally::PASSED;
            } else if line.starts_with("not ok ") {
                results.tally += Tally::FAILED;
                results.problems.push(line.to_owned());
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
    pub(super) const fn contradiction(&self, success: bool) -> Option<&'static str> {
        let Tally {
            passed,
            failed,
            skipped,
        } = self.tally;
        if passed + failed + skipped == 0 {
            Some("it printed no result")
        } else if failed == 0 && !success {
            Some("it failed without a failed check")
        } else if failed > 0 && success {
            Some("a check failed, and it ended as if none had")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted() {
        let results = Results::read([
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
        assert_eq!(results.inapplicable, 1);
        assert_eq!(results.contradiction(false), None);
        assert!(results.contradiction(true).is_some());
    }

    #[test]
    fn silence_is_no_success() {
        assert!(Results::read(["done"]).contradiction(true).is_some());
        assert!(Results::read(["ok a"]).contradiction(false).is_some());
        assert!(Results::read(["ok a"]).contradiction(true).is_none());
    }
}
