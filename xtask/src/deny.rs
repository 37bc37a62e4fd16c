//! Licences, sources and bans of the dependencies, by cargo-deny with `deny.toml`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::command::{Outcome, run as run_command};
use crate::console::Progress;
use crate::tools::{self, Tool};
use crate::workspace::Workspace;
use crate::{Failure, Verdict};

pub(crate) const CARGO_DENY: Tool = Tool {
    package: "cargo-deny",
    version: "0.20.2",
};

/// The longest time that a check may take.
const CHECK_LIMIT: Duration = Duration::from_secs(5 * 60);

/// Result of cargo-deny.
#[derive(Debug)]
pub(crate) struct DenyOutcome {
    pub(crate) passed: bool,
    /// The checked subjects.
    pub(crate) detail: &'static str,
    /// Its whole output, and the unchecked subjects.
    pub(crate) remarks: Vec<String>,
}

/// Prints the result of cargo-deny.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Verdict {
    crate::no_arguments(arguments)?;
    let mut progress = Progress::start("cargo-deny");
    let result = check(workspace, &mut progress)?;
    for remark in &result.remarks {
        progress.note(remark);
    }
    progress.note(if result.passed { "ok" } else { "FAILED" });
    Ok(result.passed)
}

/// Runs the checks; advisories only where their database lies on this machine.
pub(crate) fn check(
    workspace: &Workspace,
    progress: &mut Progress,
) -> Result<DenyOutcome, Failure> {
    let program = tools::ensure(workspace, &CARGO_DENY, progress)?;
    let arguments = [
        "--locked",
        "check",
        "--hide-inclusion-graph",
        "bans",
        "licenses",
        "sources",
    ];
    let rules = cargo_deny(workspace, &program, "deny", &arguments, progress)?;
    let mut result = DenyOutcome {
        passed: rules.success,
        detail: "bans, licences, sources",
        remarks: Vec::new(),
    };
    if !rules.success {
        result.remarks.push(rules.tail());
    }
    if has_advisories() {
        let arguments = ["--locked", "--offline", "check", "advisories"];
        let advisories = cargo_deny(workspace, &program, "advisories", &arguments, progress)?;
        result.detail = "bans, licences, sources, advisories";
        if !advisories.success {
            result.passed = false;
            result.remarks.push(advisories.tail());
        }
    } else {
        result
            .remarks
            .push("advisories were not checked: their database is not on this machine".to_owned());
    }
    Ok(result)
}

fn cargo_deny(
    workspace: &Workspace,
    program: &Path,
    log: &str,
    arguments: &[&str],
    progress: &mut Progress,
) -> Result<Outcome, Failure> {
    let mut command = Command::new(program);
    command
        .current_dir(&workspace.root)
        .args(["--color", "never"])
        .args(arguments);
    let log = workspace.target_folder("xtask")?.join(format!("{log}.log"));
    run_command(&mut command, &log, CHECK_LIMIT, progress)
}

/// Whether a copy of the advisory database was fetched before.
fn has_advisories() -> bool {
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")));
    home.and_then(|home| std::fs::read_dir(home.join("advisory-dbs")).ok())
        .is_some_and(|mut copies| {
            copies.any(|copy| copy.is_ok_and(|copy| copy.path().join("crates").is_dir()))
        })
}
