//! Reads the output of `cargo test`.

use crate::console::Tally;

/// Lines kept of one failed test's output.
const FAILURE_LINES: usize = 12;

/// Result of a run of `cargo test`.
#[derive(Debug, Default)]
pub(crate) struct TestReport {
    /// The sum of all summary lines.
    pub(crate) tally: Tally,
    /// Summary lines: one for each test program and each crate's documentation.
    pub(crate) programs: u64,
    /// Names of tests that passed.
    pub(crate) passed: Vec<String>,
    /// Names of tests that failed.
    pub(crate) failures: Vec<String>,
    /// The failed tests' output, each cut to its first lines.
    pub(crate) told_by_failures: Vec<String>,
    /// Whether the lines are output of failed tests.
    is_told: bool,
    /// Lines of it that are still taken.
    lines_left: usize,
    /// Names of tests that were ignored.
    pub(crate) ignored: Vec<String>,
}

impl TestReport {
    /// Reads all lines of a run.
    pub(crate) fn read<'a>(lines: impl IntoIterator<Item = &'a str>) -> Self {
        let mut report = Self::default();
        for line in lines {
            report.line(line.trim());
        }
        report
    }

    fn line(&mut self, line: &str) {
        if line.starts_with("---- ") && line.ends_with(" stdout ----") {
            self.lines_left = FAILURE_LINES;
            self.is_told = true;
        } else if line == "failures:" {
            self.lines_left = 0;
            self.is_told = false;
        } else if self.is_told && line.starts_with("minimal failing input") {
            // A property test says this after everything that its shrinking printed.
            self.lines_left = FAILURE_LINES;
        }
        if self.lines_left > 0 && !line.is_empty() && !line.starts_with("---- ") {
            self.lines_left -= 1;
            self.told_by_failures.push(line.to_owned());
            return;
        }
        if let Some(summary) = line.strip_prefix("test result: ") {
            self.summary(summary);
        } else if let Some((name, verdict)) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.rsplit_once(" ... "))
        {
            if verdict.starts_with("ok") {
                self.passed.push(name.to_owned());
            } else if verdict.starts_with("FAILED") {
                self.failures.push(name.to_owned());
            } else if verdict.starts_with("ignored") {
                self.ignored.push(name.to_owned());
            }
        }
    }

    fn summary(&mut self, summary: &str) {
        self.programs += 1;
        for part in summary.split([';', '.']) {
            let mut words = part.split_whitespace();
            if let (Some(Ok(count)), Some(what)) =
                (words.next().map(str::parse::<u64>), words.next())
            {
                match what {
                    "passed" => self.tally.passed += count,
                    "failed" => self.tally.failed += count,
                    "ignored" => self.tally.skipped += count,
                    _ => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_of_all_programs_are_summed() {
        let text = "
     Running unittests src/lib.rs (target/debug/deps/a-1)

running 3 tests
test one ... ok
test two ... FAILED
test three ... ignored, needs a wire

failures:

---- two stdout ----

thread 'two' panicked at src/lib.rs:3:5:
left is not right
1
2
3
4
5
6
7
8
9
10
11
minimal failing input: [3]

failures:
    two

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s

   Doc-tests a
test crates/a/src/lib.rs - f (line 3) ... ok
test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out; finished in 1.20s
";
        let report = TestReport::read(text.lines());
        assert_eq!(
            report.tally,
            Tally {
                passed: 41,
                failed: 1,
                skipped: 1
            }
        );
        assert_eq!(report.programs, 2);
        assert_eq!(report.passed, ["one", "crates/a/src/lib.rs - f (line 3)"]);
        assert_eq!(report.failures, ["two"]);
        let told = &report.told_by_failures;
        assert_eq!(told.len(), FAILURE_LINES + 1);
        assert_eq!(
            [&told[0], &told[FAILURE_LINES]],
            [
                "thread 'two' panicked at src/lib.rs:3:5:",
                "minimal failing input: [3]"
            ]
        );
        assert_eq!(report.ignored, ["three"]);
    }

    #[test]
    fn other_output_counts_nothing() {
        let report = TestReport::read(["error: could not compile `a`", "test result of mine"]);
        assert_eq!(report.tally, Tally::default());
        assert_eq!(report.programs, 0);
    }
}
