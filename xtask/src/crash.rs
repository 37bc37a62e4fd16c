//! The crash test and the fault test, in the build that tests use. In the first a broker is killed under
//! load (`sterna-lab crash`); in the second its clients have bad lines (`sterna-lab faults`).

use std::process::Command;
use std::time::Duration;

use crate::command::{in_words, run as run_command};
use crate::console::{Colour, Progress};
use crate::workspace::Workspace;
use crate::{Failure, Verdict};

/// How long the build may take.
const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);
/// The exit code by which the lab says that promises were broken.
const BROKEN: i32 = 2;

/// Builds the broker and the lab, and runs a command of the lab with these arguments. The verdict is
/// whether all promises were kept.
pub(crate) fn run(workspace: &Workspace, command: &str, arguments: &[String]) -> Verdict {
    let folder = workspace.target_folder("xtask")?;
    let mut progress = Progress::start("build");
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--locked"]);
    cargo.args(["--package", "sterna", "--package", "sterna-lab"]);
    let log = folder.join("crash-build.log");
    let built = run_command(&mut cargo, &log, BUILD_LIMIT, &mut progress)?;
    if !built.success {
        return Err(Failure(format!("the build failed\n{}", built.cargo_tail())));
    }
    progress.finish(Colour::Green, "ok", "");
    // The lab takes the broker that lies beside it.
    let mut lab = Command::new(workspace.target.join("debug").join("sterna-lab"));
    lab.arg(command).args(arguments);
    let status = lab
        .status()
        .map_err(|error| Failure(format!("{}: {error}", in_words(&lab))))?;
    match status.code() {
        Some(0) => Ok(true),
        Some(BROKEN) => Ok(false),
        _ => Err(Failure(format!("{} was not run: {status}", in_words(&lab)))),
    }
}
