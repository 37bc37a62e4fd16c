//! Where the project and its build folder lie, and which files belong to it.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failure;

/// Folders that hold nothing of the project's own.
const FOREIGN_FOLDERS: [&str; 4] = ["target", "node_modules", "__pycache__", ".git"];

/// The project's folders.
#[derive(Debug, Clone)]
pub(crate) struct Workspace {
    /// The folder of the workspace's `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// The build folder; everything that a chore installs or writes lies below it.
    pub(crate) target: PathBuf,
}

impl Workspace {
    /// Finds the workspace that this program was built from.
    pub(crate) fn find() -> Result<Self, Failure> {
        let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = manifest
            .parent()
            .ok_or_else(|| Failure::new("xtask's own folder has no parent"))?
            .to_path_buf();
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| root.join("target"), |folder| root.join(folder));
        Ok(Self { root, target })
    }

    /// A cargo command that runs in the workspace's root.
    pub(crate) fn cargo(&self) -> Command {
        let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        // `cargo run` set variables about the xtask package for this process; its children must not
        // get them.
        for (name, _) in std::env::vars_os() {
            if name
                .to_str()
                .is_some_and(|name| name.starts_with("CARGO_PKG_"))
            {
                command.env_remove(name);
            }
        }
        command
            .env_remove("CARGO_MANIFEST_DIR")
            .env_remove("CARGO_MANIFEST_PATH");
        command
    }

    /// A path as the project's documents name it: relative to the root, with forward slashes.
    pub(crate) fn name(&self, path: &Path) -> String {
        path.strip_prefix(&self.root)
            .unwrap_or(path)
            .to_string_lossy()
            .replace('\\', "/")
    }

    /// Every file below `folder` (relative to the root) whose extension is listed, in order of name.
    pub(crate) fn files(&self, folder: &str, extensions: &[&str]) -> Result<Vec<PathBuf>, Failure> {
        let mut found = Vec::new();
        let start = self.root.join(folder);
        if start.is_dir() {
            collect(&start, extensions, &mut found)?;
        }
        found.sort();
        Ok(found)
    }

    /// Every file that git tracks, or would track; relative to the root.
    pub(crate) fn tracked_files(&self) -> Result<Vec<String>, Failure> {
        let output = Command::new("git")
            .args([
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
            ])
            .current_dir(&self.root)
            .output()
            .map_err(|error| Failure::new(format!("git ls-files: {error}")))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Failure::new(format!("git ls-files: {why}")));
        }
        let mut files: Vec<String> = String::from_utf8_lossy(&output.stdout)
            .split('\0')
            .filter(|name| !name.is_empty() && self.root.join(name).is_file())
            .map(str::to_owned)
            .collect();
        files.sort();
        files.dedup();
        Ok(files)
    }

    /// Creates a folder below the build folder and returns its path.
    pub(crate) fn target_folder(&self, name: &str) -> Result<PathBuf, Failure> {
        let folder = self.target.join(name);
        fs::create_dir_all(&folder)
            .map_err(|error| Failure::new(format!("{}: {error}", folder.display())))?;
        Ok(folder)
    }
}

fn collect(folder: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let entries = fs::read_dir(folder)
        .map_err(|error| Failure::new(format!("{}: {error}", folder.display())))?;
    for entry in entries {
        let entry = entry?;
        let kind = entry.file_type()?;
        let name = entry.file_name();
        let path = entry.path();
        if kind.is_dir() {
            let name = name.to_string_lossy();
            if !FOREIGN_FOLDERS.contains(&name.as_ref()) && !name.starts_with('.') {
                collect(&path, extensions, found)?;
            }
        } else if kind.is_file()
            && path
                .extension()
                .and_then(|extension| extension.to_str())
                .is_some_and(|extension| extensions.contains(&extension))
        {
            found.push(path);
        }
    }
    Ok(())
}

/// Whether a program of this name lies on the search path.
pub(crate) fn on_path(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| program_on(&path, program).is_some())
}

/// Where a program of this name lies on a search path.
pub(crate) fn program_on(search_path: &OsStr, program: &str) -> Option<PathBuf> {
    std::env::split_paths(search_path)
        .map(|folder| folder.join(program))
        .find(|program| program.is_file())
}

/// Reads a text file; the error names it.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

/// Writes a text file; the error names it.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}
