//! Results of parts, one line each: `target/xtask/all.txt`. Notes quote it, and `--all --resume` reads what is done.
//!
//! ```text
//! COMMIT        TIME (UTC)         PART                 VERDICT  COUNTS                             DURATION
//! 75ae4803b37d  2026-11-28T16:40Z  lints                ok       1 passed, 0 failed, 0 skipped      3 min 10 s
//! ```

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::Failure;
use crate::command::output;
use crate::console::{Tally, seconds};
use crate::workspace::Workspace;

/// The mark of a commit of which something was changed.
const CHANGED: &str = "+changes";

/// The file, and the commit of this run.
#[derive(Debug)]
pub(crate) struct Record {
    file: PathBuf,
    commit: String,
}

impl Record {
    /// The record of this commit.
    ///
    /// # Errors
    /// When the build folder cannot be made.
    pub(crate) fn open(workspace: &Workspace) -> Result<Self, Failure> {
        let git = |arguments: &[&str]| {
            let mut command = Command::new("git");
            output(command.args(arguments).current_dir(&workspace.root)).ok()
        };
        let commit = git(&["rev-parse", "--short=12", "HEAD"]);
        let mut commit = commit.map_or_else(|| "unknown".to_owned(), |it| it.trim().to_owned());
        if git(&["status", "--porcelain"]).is_none_or(|text| !text.is_empty()) {
            commit.push_str(CHANGED);
        }
        Ok(Self {
            file: workspace.target_folder("xtask")?.join("all.txt"),
            commit,
        })
    }

    /// Whether results of this commit are those of its files.
    pub(crate) fn is_exact(&self) -> bool {
        !self.commit.ends_with(CHANGED) && self.commit != "unknown"
    }

    /// The name of the file.
    pub(crate) fn file(&self) -> &std::path::Path {
        &self.file
    }

    /// Adds the result of a part.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn add(
        &self,
        part: &str,
        verdict: &str,
        tally: Tally,
        time: Duration,
    ) -> Result<(), Failure> {
        let now = output(Command::new("date").args(["-u", "+%Y-%m-%dT%H:%MZ"]));
        let now = now.map_or_else(|_| "-".to_owned(), |text| text.trim().to_owned());
        let line = format!(
            "{:<12}  {now:<17}  {part:<26} {verdict:<8} {:<36} {}\n",
            self.commit,
            tally.line(),
            seconds(time)
        );
        // In one piece: several lanes write.
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.file);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.map_err(|error| Failure(format!("{}: {error}", self.file.display())))
    }

    /// The parts that have passed for this commit, with their counts.
    pub(crate) fn passed(&self) -> BTreeMap<String, Tally> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        passed(&text, &self.commit)
    }
}

/// The parts whose last result for a commit is a pass.
fn passed(text: &str, commit: &str) -> BTreeMap<String, Tally> {
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [of, _, part, verdict, passed, _, failed, _, skipped, ..] = words[..] else {
            continue;
        };
        if of != commit {
            continue;
        }
        let counts = [passed, failed, skipped].map(str::parse::<u64>);
        match (verdict, counts) {
            ("ok" | "flaky", [Ok(passed), Ok(0), Ok(0)]) => {
                let tally = Tally {
                    passed,
                    ..Tally::default()
                };
                found.insert(part.to_owned(), tally);
            }
            _ => drop(found.remove(part)),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_for_its_commit_alone() {
        let folder = std::env::temp_dir().join(format!("xtask-record-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let record = |commit: &str| Record {
            file: folder.join("all.txt"),
            commit: commit.to_owned(),
        };
        let one = record("aaaaaaaaaaaa");
        let counts = |passed, failed, skipped| Tally {
            passed,
            failed,
            skipped,
        };
        let minute = Duration::from_secs(61);
        one.add("lints", "ok", counts(1, 0, 0), minute).unwrap();
        one.add("tests/working", "flaky", counts(900, 0, 0), minute)
            .unwrap();
        one.add("interop/paho", "ok", counts(20, 0, 0), minute)
            .unwrap();
        one.add("interop/paho", "FAILED", counts(19, 1, 0), minute)
            .unwrap();
        one.add("package", "skipped", counts(0, 0, 1), minute)
            .unwrap();
        record("bbbbbbbbbbbb")
            .add("docs", "ok", counts(1, 0, 0), minute)
            .unwrap();
        let text = std::fs::read_to_string(one.file()).unwrap();
        assert_eq!(text.lines().count(), 6);
        assert!(
            text.lines().all(|line| line.ends_with("1 min 01 s")),
            "{text}"
        );
        let found: Vec<_> = one.passed().into_iter().collect();
        let expected = [("lints", 1), ("tests/working", 900)];
        assert_eq!(
            found,
            expected.map(|(part, passed)| (part.to_owned(), counts(passed, 0, 0)))
        );
        assert!(one.is_exact() && !record("aaaaaaaaaaaa+changes").is_exact());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
