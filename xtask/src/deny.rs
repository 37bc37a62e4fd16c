//! Licences, sources and bans of the dependencies, by cargo-deny with `deny.toml`.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::command::{Outcome, run as run_command};
use crate::console::Progress;
use crate::tools::{self, Tool};
use crate::workspace::Workspace;
use crate::{Failure, Verdict};

const CARGO_DENY: Tool = Tool {
    package: "cargo-deny",
    version: "0.20.2",
};

/// The longest time that a check may take.
const CHECK_LIMIT: Duration = Duration::from_mins(5);

/// What cargo-deny said.
#[derive(Debug)]
pub(crate) struct DenyOutcome {
    pub(crate) outcome: Outcome,
    /// Whether known vulnerabilities were looked up as well.
    pub(crate) advisories: bool,
}

impl DenyOutcome {
    /// What was looked at.
    pub(crate) const fn detail(&self) -> &'static str {
        if self.advisories {
            "bans, licences, sources, advisories"
        } else {
            "bans, licences, sources"
        }
    }

    /// What was not looked at, and why.
    pub(crate) const fn note(&self) -> Option<&'static str> {
        if self.advisories {
            None
        } else {
            Some(
                "advisories were not checked: their database is not on this machine (`cargo deny fetch` gets it)",
            )
        }
    }
}

/// Prints what cargo-deny has to say.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Verdict {
    crate::no_arguments(arguments)?;
    let mut progress = Progress::start("cargo-deny");
    let result = check(workspace, &mut progress)?;
    for line in &result.outcome.lines {
        progress.note(line);
    }
    if let Some(note) = result.note() {
        progress.note(note);
    }
    Ok(result.outcome.success)
}

/// Runs the checks; advisories only where their database lies on this machine.
pub(crate) fn check(
    workspace: &Workspace,
    progress: &mut Progress,
) -> Result<DenyOutcome, Failure> {
    tools::ensure(workspace, &CARGO_DENY, progress)?;
    let advisories = advisory_database().is_some_and(|folder| {
        std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some())
    });
    let mut command = Command::new(tools::programs(workspace).join(CARGO_DENY.package));
    command
        .current_dir(&workspace.root)
        .args(["--locked", "--color", "never", "check"]);
    command.args(["bans", "licenses", "sources"]);
    if advisories {
        command.args(["advisories", "--disable-fetch"]);
    }
    let log = workspace.target_folder("xtask")?.join("deny.log");
    let outcome = run_command(&mut command, &log, CHECK_LIMIT, progress)?;
    Ok(DenyOutcome {
        outcome,
        advisories,
    })
}

fn advisory_database() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")))?;
    Some(home.join("advisory-dbs"))
}
