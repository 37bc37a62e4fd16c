//! Rows that failed are run once more, alone: those that pass are flaky.

use crate::console::Tally;

/// Most rows of a run that are run once more. More than that failed for a reason.
pub(crate) const MOST_ROWS: usize = 20;

/// Most flaky rows of a run that passes.
pub(crate) const MOST_FLAKY: usize = 2;

/// Rows that were run twice, by what became of them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Judged {
    /// Failed once.
    pub(crate) flaky: Vec<String>,
    /// Failed twice.
    pub(crate) failed: Vec<String>,
}

/// Judges rows by those that failed in the first run and those that failed in the second.
pub(crate) fn judge(first: &[String], second: &[String]) -> Judged {
    let failed = |row: &&String| first.contains(row) && second.contains(row);
    let mut judged = Judged::default();
    for row in first
        .iter()
        .chain(second.iter().filter(|row| !first.contains(row)))
    {
        if failed(&row) {
            judged.failed.push(row.clone());
        } else {
            judged.flaky.push(row.clone());
        }
    }
    judged
}

/// The counts of a part, of which `first` rows failed, after its second run. A flaky row has passed.
pub(crate) fn recount(tally: Tally, first: &[String], judged: &Judged) -> Tally {
    // A part that broke may have counted more than its rows.
    let left = if judged.failed.is_empty() {
        0
    } else {
        let flaky = judged.flaky.iter().filter(|row| first.contains(row));
        tally.failed.saturating_sub(flaky.count() as u64).max(1)
    };
    Tally {
        passed: tally.passed + (tally.failed - left),
        failed: left,
        skipped: tally.skipped,
    }
}

/// The check that there are not too many flaky rows; `None` where there is none.
pub(crate) const fn verdict(flaky: usize) -> Option<Tally> {
    match flaky {
        0 => None,
        1..=MOST_FLAKY => Some(Tally {
            passed: 0,
            failed: 0,
            skipped: 0,
        }),
        _ => Some(Tally::FAILED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn counted(passed: u64, failed: u64) -> Tally {
        Tally {
            passed,
            failed,
            skipped: 1,
        }
    }

    #[test]
    fn a_row_that_fails_once_is_flaky_and_one_that_fails_twice_fails() {
        let judged = judge(&rows("a b"), &rows("b c"));
        assert_eq!(judged.flaky, rows("a c"));
        assert_eq!(judged.failed, rows("b"));
        // `c` passed in the first run, which counted it.
        assert_eq!(recount(counted(5, 2), &rows("a b"), &judged), counted(6, 1));
    }

    #[test]
    fn a_part_whose_second_run_is_clean_has_passed() {
        let first = rows("a broke");
        let judged = judge(&first, &[]);
        assert_eq!(judged.flaky, first);
        // It broke, and counted that twice.
        assert_eq!(recount(counted(5, 3), &first, &judged), counted(8, 0));
    }

    #[test]
    fn a_part_that_fails_twice_is_never_counted_as_passed() {
        let judged = judge(&rows("a"), &rows("a"));
        assert_eq!(judged.flaky, rows(""));
        assert_eq!(recount(counted(5, 1), &rows("a"), &judged), counted(5, 1));
        let other = judge(&rows("a b"), &rows("b"));
        assert_eq!(recount(counted(5, 1), &rows("a b"), &other), counted(5, 1));
    }

    #[test]
    fn more_than_two_flaky_rows_fail_the_run() {
        let failures = |flaky| verdict(flaky).map(|tally| tally.failed);
        assert_eq!(failures(0), None);
        assert_eq!(failures(1), Some(0));
        assert_eq!(failures(MOST_FLAKY), Some(0));
        assert_eq!(failures(MOST_FLAKY + 1), Some(1));
    }
}
