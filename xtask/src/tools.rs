//! Programs that are built once for all clones of the repository: they lie in `$STERNA_TOOLS`, by their version.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Failure;
use crate::command::run;
use crate::console::Progress;
use crate::workspace::Workspace;

/// The longest time that building a tool may take.
const INSTALL_LIMIT: Duration = Duration::from_secs(30 * 60);

/// The variable that names the folder.
const SETTING: &str = "STERNA_TOOLS";

/// A program from crates.io.
#[derive(Debug)]
pub(crate) struct Tool<'a> {
    pub(crate) package: &'a str,
    pub(crate) version: &'a str,
}

/// Where tools and their parts are kept: `$STERNA_TOOLS`, or `sterna-tools` in the user's folder for caches, or the build
/// folder where a user has none.
pub(crate) fn folder(workspace: &Workspace) -> PathBuf {
    let is_set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    chosen(
        workspace,
        is_set(SETTING),
        is_set("XDG_CACHE_HOME"),
        is_set("HOME"),
    )
}

fn chosen(
    workspace: &Workspace,
    setting: Option<std::ffi::OsString>,
    caches: Option<std::ffi::OsString>,
    home: Option<std::ffi::OsString>,
) -> PathBuf {
    let caches = caches.map_or_else(
        || Some(PathBuf::from(home?).join(".cache")),
        |it| Some(it.into()),
    );
    match (setting, caches) {
        // Programs run in other folders than this one.
        (Some(folder), _) => workspace.root.join(folder),
        (None, Some(caches)) => caches.join("sterna-tools"),
        (None, None) => workspace.target.join("tools"),
    }
}

/// Builds a tool unless this version of it is there, and returns its program.
///
/// # Errors
/// When it cannot be built: the end of what cargo says.
pub(crate) fn ensure(
    workspace: &Workspace,
    tool: &Tool<'_>,
    progress: &mut Progress,
) -> Result<PathBuf, Failure> {
    let tools = folder(workspace);
    let name = format!("{}-{}", tool.package, tool.version);
    let place = tools.join(&name);
    let program = place.join("bin").join(tool.package);
    if program.is_file() {
        return Ok(program);
    }
    fs::create_dir_all(&tools).map_err(|error| Failure(format!("{}: {error}", tools.display())))?;
    // Whole or not at all: another clone may look for it meanwhile, or build it, too.
    let before = format!(".{name}-");
    remove_left_over(&tools, &before);
    let building = tools.join(format!("{before}{}", std::process::id()));
    let mut command = workspace.cargo();
    command
        .args([
            "install",
            "--locked",
            tool.package,
            "--version",
            tool.version,
        ])
        .arg("--root")
        .arg(&building)
        .arg("--target-dir")
        .arg(building.join("build"));
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
    let logs = workspace.target_folder("xtask")?;
    let log = logs.join(format!("{}.log", tool.package));
    let outcome = run(&mut command, &log, INSTALL_LIMIT, progress)?;
    if outcome.success {
        // Half a gigabyte that nothing needs again.
        fs::remove_dir_all(building.join("build"))?;
        if !place.exists() {
            fs::rename(&building, &place)?;
        }
    }
    // Nothing is left where it could not be built.
    let _ = fs::remove_dir_all(&building);
    if outcome.success && program.is_file() {
        return Ok(program);
    }
    Err(Failure(format!(
        "{name} could not be installed\n{}",
        outcome.tail()
    )))
}

/// Removes what builds have left that were killed: folders whose name ends with a process that is gone.
fn remove_left_over(tools: &Path, before: &str) {
    let processes = Path::new("/proc");
    if !processes.join("self").exists() {
        return;
    }
    for entry in fs::read_dir(tools).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(before));
        if process.is_some_and(|process| !processes.join(process).exists()) {
            // Another one may do the same.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    #[test]
    fn folders_of_builds_that_were_killed_are_removed() {
        let tools = std::env::temp_dir().join(format!("xtask-tools-{}", std::process::id()));
        let mine = format!(".deny-1-{}", std::process::id());
        // No system has so many processes.
        for name in [&mine, ".deny-1-99999999", ".other-1-99999999", "deny-1"] {
            fs::create_dir_all(tools.join(name)).unwrap();
        }
        remove_left_over(&tools, ".deny-1-");
        for (name, stays) in [
            (&*mine, true),
            (".deny-1-99999999", false),
            (".other-1-99999999", true),
            ("deny-1", true),
        ] {
            assert_eq!(tools.join(name).exists(), stays, "{name}");
        }
        fs::remove_dir_all(tools).unwrap();
    }

    #[test]
    fn tools_lie_where_the_setting_says_or_with_the_users_caches() {
        let workspace = Workspace {
            root: PathBuf::from("/w"),
            target: PathBuf::from("/w/target"),
        };
        let of = |words: [&str; 3]| {
            let [setting, caches, home] =
                words.map(|word| (!word.is_empty()).then(|| OsString::from(word)));
            chosen(&workspace, setting, caches, home)
        };
        assert_eq!(of(["/t", "/c", "/h"]), PathBuf::from("/t"));
        assert_eq!(of(["t", "", ""]), PathBuf::from("/w/t"));
        assert_eq!(of(["", "/c", "/h"]), PathBuf::from("/c/sterna-tools"));
        assert_eq!(of(["", "", "/h"]), PathBuf::from("/h/.cache/sterna-tools"));
        assert_eq!(of(["", "", ""]), PathBuf::from("/w/target/tools"));
    }
}
