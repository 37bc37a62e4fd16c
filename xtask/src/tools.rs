//! Programs from crates.io that chores need, kept in the build folder.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::Failure;
use crate::command::run;
use crate::console::Progress;
use crate::workspace::{Workspace, write};

/// The longest time that building a tool may take.
const INSTALL_LIMIT: Duration = Duration::from_secs(30 * 60);

/// A program from crates.io.
#[derive(Debug)]
pub(crate) struct Tool<'a> {
    pub(crate) package: &'a str,
    pub(crate) version: &'a str,
}

/// Where installed programs lie.
pub(crate) fn programs(workspace: &Workspace) -> PathBuf {
    workspace.target.join("tools").join("bin")
}

/// Builds a tool unless this version of it is there.
pub(crate) fn ensure(
    workspace: &Workspace,
    tool: &Tool<'_>,
    progress: &mut Progress,
) -> Result<(), Failure> {
    let tools = workspace.target_folder("tools")?;
    let stamp = tools.join(format!("{}.version", tool.package));
    if fs::read_to_string(&stamp).is_ok_and(|text| text == tool.version) {
        return Ok(());
    }
    let build = tools.join("build");
    let mut command = workspace.cargo();
    command
        .args([
            "install",
            "--locked",
            "--force",
            tool.package,
            "--version",
            tool.version,
        ])
        .arg("--root")
        .arg(&tools)
        .arg("--target-dir")
        .arg(&build);
    // A tool runs for seconds and is built for minutes: the cost of optimising is never regained.
    for (setting, value) in [
        ("OPT_LEVEL", "0"),
        ("DEBUG", "false"),
        ("LTO", "off"),
        ("CODEGEN_UNITS", "16"),
        ("STRIP", "none"),
    ] {
        command.env(format!("CARGO_PROFILE_RELEASE_{setting}"), value);
    }
    let log = tools.join(format!("{}.log", tool.package));
    let outcome = run(&mut command, &log, INSTALL_LIMIT, progress)?;
    if !outcome.success {
        return Err(Failure::new(format!(
            "{} {} could not be installed\n{}",
            tool.package,
            tool.version,
            outcome.tail()
        )));
    }
    write(&stamp, tool.version)?;
    // Half a gigabyte that nothing needs again.
    fs::remove_dir_all(&build)?;
    Ok(())
}
