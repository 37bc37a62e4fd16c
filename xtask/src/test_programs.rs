//! The test programs of the workspace, run in lanes beside each other.
//!
//! `cargo test` runs them one after the other. Those of the clients and of the broker's program mostly
//! wait for a path with a delay. The processors would rest meanwhile.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::Failure;
use crate::command::{CARGO_LIMIT, Outcome, cargo, run as run_command};
use crate::console::Progress;
use crate::workspace::Workspace;

/// Packages whose test programs wait more than they work. They run beside all others.
const WAITING: [&str; 2] = ["sterna", "sterna-client"];

/// A program that cargo has built from a package's tests.
#[derive(Debug, PartialEq, Eq)]
struct TestProgram {
    /// The package's name.
    package: String,
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

    fn waits(&self) -> bool {
        WAITING.contains(&self.package.as_str())
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .env("RUST_BACKTRACE", "0");
        command
    }
}

/// Builds and runs the tests of all packages, the documentation's included. Returns how each part ended: the build
/// alone where it failed. The logs are `tests-NAME.log` in the build folder.
///
/// # Errors
/// When a program cannot be started, or a log not be written.
pub(crate) fn run(workspace: &Workspace, progress: &mut Progress) -> Result<Vec<Outcome>, Failure> {
    let logs = workspace.target_folder("xtask")?;
    let compile = [
        "test",
        "--locked",
        "--workspace",
        "--no-run",
        "--message-format",
        "json-render-diagnostics",
    ];
    let built = cargo(workspace, progress, "tests-build", &compile, None)?;
    if !built.success {
        return Ok(vec![built]);
    }
    let programs = built
        .lines
        .iter()
        .filter_map(|line| TestProgram::read(line));
    let (waiting, working): (Vec<_>, Vec<_>) = programs.partition(TestProgram::waits);
    let lanes = [("working", working), ("waiting", waiting)];
    let (shown, logs) = (&*progress, logs.as_path());
    let mut outcomes = std::thread::scope(|scope| {
        let mut running = Vec::new();
        for (number, (lane, programs)) in lanes.iter().enumerate() {
            let mut progress = shown.lane(number);
            running.push(scope.spawn(move || run_lane(programs, lane, logs, &mut progress)));
        }
        let mut outcomes = Vec::new();
        for lane in running {
            outcomes.extend(
                lane.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?,
            );
        }
        Ok::<_, Failure>(outcomes)
    })?;
    let documents = ["test", "--locked", "--workspace", "--doc", "--no-fail-fast"];
    let quiet = Some(("RUST_BACKTRACE", "0"));
    outcomes.push(cargo(
        workspace,
        progress,
        "tests-documents",
        &documents,
        quiet,
    )?);
    Ok(outcomes)
}

/// Runs programs one after the other, each with a log of its own.
fn run_lane(
    programs: &[TestProgram],
    lane: &str,
    logs: &Path,
    progress: &mut Progress,
) -> Result<Vec<Outcome>, Failure> {
    (programs.iter().enumerate())
        .map(|(number, program)| {
            let log = logs.join(format!("tests-{lane}-{number}.log"));
            run_command(&mut program.command(), &log, CARGO_LIMIT, progress)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_from_what_cargo_tells() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/sterna/Cargo.toml",
            "target":{"name":"serve"},"profile":{"test":true},"executable":"/w/target/debug/deps/serve-1"}"#;
        let program = TestProgram::read(line).unwrap();
        assert_eq!(program.package, "sterna");
        assert_eq!(program.folder, Path::new("/w/crates/sterna"));
        assert_eq!(program.program, Path::new("/w/target/debug/deps/serve-1"));
        assert!(program.waits());
        for other in [
            line.replace(r#""test":true"#, r#""test":false"#),
            line.replace(r#""/w/target/debug/deps/serve-1""#, "null"),
            line.replace("compiler-artifact", "build-script-executed"),
            "   Compiling sterna".to_owned(),
        ] {
            assert_eq!(TestProgram::read(&other), None, "{other}");
        }
    }

    #[test]
    fn packages_that_wait_exist() {
        for name in WAITING {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
            assert!(folder.join(name).is_dir(), "{name}");
        }
    }
}
