//! The test programs of the workspace, built at once and run in lanes.
//!
//! `cargo test` runs them one after the other. Those of the clients, of the broker's program, of the transports and of the
//! lab mostly wait for a path with a delay. The processors would rest meanwhile.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::Failure;
use crate::command::{CARGO_LIMIT, Outcome, run as run_command, run_watched};
use crate::console::{Progress, Tally};
use crate::test_report::TestReport;
use crate::workspace::Workspace;

/// Programs that suites run: the broker, and the lab beside it.
const UNDER_TEST: [&str; 2] = ["sterna", "sterna-lab"];

/// A program that cargo has built from a package's tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TestProgram {
    /// The package's name.
    pub(crate) package: String,
    /// The package's folder, where cargo would run it.
    folder: PathBuf,
    program: PathBuf,
}

impl TestProgram {
    /// Reads a line that `cargo test --no-run --message-format json` has printed. `None`: it tells of something else.
    fn read(line: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(line).ok()?;
        if value["reason"] != "compiler-artifact" || value["profile"]["test"] != true {
            return None;
        }
        let program = PathBuf::from(value["executable"].as_str()?);
        let folder = Path::new(value["manifest_path"].as_str()?).parent()?;
        Some(Self {
            package: folder.file_name()?.to_str()?.to_owned(),
            folder: folder.to_path_buf(),
            program,
        })
    }

    fn command(&self, search_path: &OsString) -> Command {
        let mut command = Command::new(&self.program);
        command
            .current_dir(&self.folder)
            .env("PATH", search_path)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .env("RUST_BACKTRACE", "0");
        command
    }
}

/// A test that failed, or a program that died before it could say which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FailedTest {
    pub(crate) program: TestProgram,
    /// The test's name; `None`: the whole program.
    pub(crate) name: Option<String>,
    /// The file with all that the program printed.
    pub(crate) log: PathBuf,
}

impl FailedTest {
    /// The row's name in reports.
    pub(crate) fn title(&self) -> String {
        let name = self.name.as_deref().unwrap_or("the program as a whole");
        format!("{} {name}", self.program.package)
    }
}

/// The program under test of which a line of cargo tells that it is built: its name, and where it lies.
fn under_test(line: &str) -> Option<(&'static str, PathBuf)> {
    let value: Value = serde_json::from_str(line).ok()?;
    let name = value["target"]["name"].as_str()?;
    let name = UNDER_TEST.into_iter().find(|one| *one == name)?;
    let is_program = value["target"]["kind"][0] == "bin" && value["profile"]["test"] == false;
    let program = value["executable"].as_str().filter(|_| is_program)?;
    Some((name, PathBuf::from(program)))
}

/// Where a copy of the programs under test lies, which no later build replaces while they run.
pub(crate) fn copies(workspace: &Workspace) -> PathBuf {
    workspace.target.join("xtask").join("programs")
}

/// Builds with cargo and calls `are_ready` as soon as copies of the programs under test are there. Returns the test
/// programs that were built; the outcome where the build failed.
///
/// # Errors
/// When cargo cannot be started, or a program not be copied.
pub(crate) fn build(
    workspace: &Workspace,
    arguments: &[String],
    are_ready: &mut dyn FnMut(),
    progress: &mut Progress,
) -> Result<Result<Vec<TestProgram>, Outcome>, Failure> {
    let copies = copies(workspace);
    fs::create_dir_all(&copies)?;
    let mut cargo = workspace.cargo();
    cargo
        .args(arguments)
        .args(["--message-format", "json-render-diagnostics"])
        .env("CARGO_TERM_COLOR", "never");
    let log = workspace.target_folder("xtask")?.join("build.log");
    let (mut made, mut fault) = (Vec::new(), None);
    let mut watch = |line: &str| {
        let Some((name, program)) = under_test(line) else {
            return;
        };
        match replace(&program, &copies.join(name)) {
            Ok(()) => made.push(name),
            Err(error) => fault = Some(Failure(format!("{}: {error}", program.display()))),
        }
        if UNDER_TEST.iter().all(|name| made.contains(name)) {
            are_ready();
        }
    };
    let built = run_watched(&mut cargo, &log, CARGO_LIMIT, progress, &mut watch)?;
    if let Some(fault) = fault {
        return Err(fault);
    }
    if !built.success {
        return Ok(Err(built));
    }
    let lines = built.lines.iter();
    Ok(Ok(lines
        .filter_map(|line| TestProgram::read(line))
        .collect()))
}

/// Copies a program to where another may be running.
fn replace(program: &Path, copy: &Path) -> std::io::Result<()> {
    let beside = copy.with_extension("new");
    fs::copy(program, &beside)?;
    fs::rename(&beside, copy)
}

/// Results of the tests of some programs.
#[derive(Debug, Default)]
pub(crate) struct Tested {
    pub(crate) tally: Tally,
    /// Summaries: one for each program.
    pub(crate) programs: u64,
    pub(crate) remarks: Vec<String>,
    pub(crate) failed: Vec<FailedTest>,
}

/// Runs programs one after the other, each with a log of its own: `tests-LANE-NUMBER.log`.
///
/// # Errors
/// When a program cannot be started, or a log not be written.
pub(crate) fn run(
    workspace: &Workspace,
    programs: &[TestProgram],
    lane: &str,
    search_path: &OsString,
    progress: &mut Progress,
) -> Result<Tested, Failure> {
    let logs = workspace.target_folder("xtask")?;
    let mut tested = Tested::default();
    for (number, program) in programs.iter().enumerate() {
        let log = logs.join(format!("tests-{lane}-{number}.log"));
        let mut command = program.command(search_path);
        let outcome = run_command(&mut command, &log, CARGO_LIMIT, progress)?;
        let names = tested.read(&outcome);
        tested
            .failed
            .extend(names.into_iter().map(|name| FailedTest {
                program: program.clone(),
                name,
                log: outcome.log.clone(),
            }));
    }
    Ok(tested)
}

impl Tested {
    /// Adds what a run of tests has printed. Returns the names of tests that failed; `None` among them where the run as a
    /// whole did.
    pub(crate) fn read(&mut self, outcome: &Outcome) -> Vec<Option<String>> {
        let report = TestReport::read(outcome.lines.iter().map(String::as_str));
        self.tally += report.tally;
        self.programs += report.programs;
        let failures = report.failures.iter().map(|name| format!("failed: {name}"));
        let told = (report.told_by_failures.iter()).map(|line| format!("    {line}"));
        let ignored = report.ignored.iter().map(|name| format!("ignored: {name}"));
        self.remarks.extend(failures.chain(told).chain(ignored));
        if outcome.success {
            return Vec::new();
        }
        if report.tally.failed == 0 {
            // Something does not build, or a test program died before it could count.
            self.tally += Tally::FAILED;
            self.remarks.push(outcome.cargo_tail());
            return vec![None];
        }
        let log = outcome.log.display();
        self.remarks.push(format!("all of it in {log}"));
        report.failures.into_iter().map(Some).collect()
    }
}

/// Runs failed tests of one program once more, and nothing else. Returns those that failed again.
///
/// # Errors
/// When the program cannot be started, or the log not be written.
pub(crate) fn run_again(
    failed: &[FailedTest],
    log: &Path,
    search_path: &OsString,
    progress: &mut Progress,
) -> Result<Vec<FailedTest>, Failure> {
    let Some(first) = failed.first() else {
        return Ok(Vec::new());
    };
    let mut command = first.program.command(search_path);
    let names: Option<Vec<&String>> = failed.iter().map(|test| test.name.as_ref()).collect();
    if let Some(names) = &names {
        command.arg("--exact").args(names);
    }
    let outcome = run_command(&mut command, log, CARGO_LIMIT, progress)?;
    let report = TestReport::read(outcome.lines.iter().map(String::as_str));
    let has_passed = |test: &FailedTest| match &test.name {
        Some(name) => report.passed.contains(name),
        None => outcome.success,
    };
    Ok(failed
        .iter()
        .filter(|test| !has_passed(test))
        .cloned()
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/sterna/Cargo.toml",
        "target":{"name":"serve"},"profile":{"test":true},"executable":"/w/target/debug/deps/serve-1"}"#;

    #[test]
    fn programs_are_read_from_what_cargo_tells() {
        let program = TestProgram::read(LINE).unwrap();
        assert_eq!(program.package, "sterna");
        assert_eq!(program.folder, Path::new("/w/crates/sterna"));
        assert_eq!(program.program, Path::new("/w/target/debug/deps/serve-1"));
        for other in [
            LINE.replace(r#""test":true"#, r#""test":false"#),
            LINE.replace(r#""/w/target/debug/deps/serve-1""#, "null"),
            LINE.replace("compiler-artifact", "build-script-executed"),
            "   Compiling sterna".to_owned(),
        ] {
            assert_eq!(TestProgram::read(&other), None, "{other}");
        }
    }

    #[test]
    fn the_broker_is_known_among_what_cargo_tells() {
        let line = r#"{"reason":"compiler-artifact","target":{"name":"sterna","kind":["bin"]},"profile":{"test":false},
            "executable":"/w/target/debug/sterna"}"#;
        assert_eq!(
            under_test(line),
            Some(("sterna", PathBuf::from("/w/target/debug/sterna")))
        );
        for (right, wrong) in [
            (r#""test":false"#, r#""test":true"#),
            (r#"["bin"]"#, r#"["lib"]"#),
            (r#""sterna","kind""#, r#""xtask","kind""#),
            (r#""/w/target/debug/sterna""#, "null"),
        ] {
            assert_eq!(under_test(&line.replace(right, wrong)), None, "{wrong}");
        }
    }

    /// A program of tests that pass by the second run alone, and never.
    #[test]
    fn a_test_that_passes_when_it_runs_again_is_known_from_one_that_does_not() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = std::env::temp_dir().join(format!("xtask-again-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let script = folder.join("tests.sh");
        let text = "[ \"$*\" = '--exact shaky bad' ] || exit 9\n\
            echo 'test shaky ... ok'; echo 'test bad ... FAILED'\n\
            echo 'test result: FAILED. 1 passed; 1 failed; 0 ignored'; exit 101";
        fs::write(&script, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let failed = |name: &str| FailedTest {
            program: TestProgram {
                package: "p".into(),
                folder: folder.clone(),
                program: script.clone(),
            },
            name: Some(name.to_owned()),
            log: PathBuf::new(),
        };
        let path = std::env::var_os("PATH").unwrap();
        let mut progress = Progress::start("test");
        let both = [failed("shaky"), failed("bad")];
        let again = loop {
            let again = run_again(&both, &folder.join("log"), &path, &mut progress);
            // Another test's child may hold the script open for writing until it executes.
            match again {
                Err(Failure(why)) if why.contains("Text file busy") => {}
                again => break again.unwrap(),
            }
        };
        assert_eq!(again, [failed("bad")]);
        // A test that is not run a second time has not passed.
        let other = run_again(&[failed("gone")], &folder.join("log"), &path, &mut progress);
        assert_eq!(other.unwrap().len(), 1);
        fs::remove_dir_all(folder).unwrap();
    }
}
