//! `cargo xtask cluster`: three servers of NATS and three nodes on loopback, until Ctrl-C.

use std::process::Command;
use std::time::Duration;

use crate::command::{in_words, run as run_command};
use crate::console::{Colour, Progress};
use crate::workspace::Workspace;
use crate::{Failure, Verdict, interop, no_arguments};

/// The longest time that building the broker may take.
const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Builds both programs, and hands over to the one that starts them.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Verdict {
    no_arguments(arguments)?;
    let folder = workspace.target_folder("xtask")?;
    let mut progress = Progress::start("build");
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--locked", "--package", "sterna"]);
    let log = folder.join("cluster-build.log");
    let built = run_command(&mut cargo, &log, BUILD_LIMIT, &mut progress)?;
    if !built.success {
        return Err(Failure(format!("the build failed\n{}", built.cargo_tail())));
    }
    let search_path = interop::nats_search_path(workspace, &mut progress)?;
    progress.finish(Colour::Green, "ok", "");
    let mut nodes = Command::new("python3");
    nodes
        .arg(workspace.root.join("interop/python/cluster_nodes.py"))
        .arg(workspace.target_folder("cluster")?)
        .env("PATH", search_path)
        .env("STERNA_BIN", workspace.target.join("debug").join("sterna"));
    let status = nodes
        .status()
        .map_err(|error| Failure(format!("{}: {error}", in_words(&nodes))))?;
    Ok(status.success())
}
