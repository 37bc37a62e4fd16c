//! The languages of suites, and the installation of their requirements in the build folder.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::Failure;
use crate::command::run;
use crate::console::Progress;
use crate::tools::{self, Tool};
use crate::workspace::{Workspace, on_path, write};

/// The longest time that installing packages may take.
const INSTALL_LIMIT: Duration = Duration::from_secs(15 * 60);

/// Runtime of a suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Runtime {
    /// `install` lists packages for pip.
    Python,
    /// `install` lists packages for npm; `require` finds modules.
    Node,
    /// `install` lists folders of `interop` with a `go.mod`, which names the requirements. Each
    /// becomes a program with the last part of its module's name.
    Go,
    /// `install` lists folders of `interop` with a `pom.xml`, which names the requirements. Each
    /// becomes `FOLDER/` in the folder `STERNA_JAVA`: `classes`, and their requirements in `lib`.
    Java,
    /// `install` lists programs of crates.io as `package@version`.
    Rust,
    /// `install` lists programs of the system that must be there.
    Debian,
}

impl Runtime {
    const ALL: [Self; 6] = [
        Self::Python,
        Self::Node,
        Self::Go,
        Self::Java,
        Self::Rust,
        Self::Debian,
    ];

    /// As `suites.json` writes it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Node => "node",
            Self::Go => "go",
            Self::Java => "java",
            Self::Rust => "rust",
            Self::Debian => "debian",
        }
    }

    /// The runtime of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|runtime| runtime.name() == name)
    }

    /// The first program that must be on the machine and is not.
    pub(super) fn missing(self, install: &[String]) -> Option<String> {
        let programs: &[&str] = match self {
            Self::Python => &["python3"],
            Self::Node => &["node", "npm"],
            Self::Go => &["go"],
            Self::Java => &["javac", "mvn"],
            Self::Rust => &["cargo"],
            Self::Debian => &[],
        };
        let system = if self == Self::Debian { install } else { &[] };
        programs
            .iter()
            .copied()
            .chain(system.iter().map(String::as_str))
            .find(|program| !on_path(program))
            .map(str::to_owned)
    }

    /// Installs packages unless the same ones are there; returns why it could not.
    pub(super) fn install(
        self,
        workspace: &Workspace,
        packages: &[String],
        progress: &mut Progress,
    ) -> Result<Option<String>, Failure> {
        match self {
            Self::Python => self.install_python(workspace, packages, progress),
            Self::Node => self.install_node(workspace, packages, progress),
            Self::Rust => Ok(install_rust(workspace, packages, progress)
                .err()
                .map(|why| why.0)),
            Self::Go => self.install_go(workspace, packages, progress),
            Self::Java => self.install_java(workspace, packages, progress),
            Self::Debian => Ok(None),
        }
    }

    /// The search path with the runtime's programs first, and before them Python's own where packages
    /// were installed for it.
    pub(super) fn search_path(self, workspace: &Workspace, with_python: bool) -> OsString {
        let folder = self.folder(workspace);
        let mut path: Vec<PathBuf> = match self {
            Self::Python | Self::Go => vec![folder.join("bin")],
            Self::Node => vec![folder.join("node_modules").join(".bin")],
            Self::Rust => vec![tools::programs(workspace)],
            Self::Java | Self::Debian => Vec::new(),
        };
        if with_python {
            path.insert(0, Self::Python.folder(workspace).join("bin"));
        }
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        path.extend(std::env::split_paths(&inherited));
        // Only a folder with a colon in its name cannot be joined; the inherited path has none.
        std::env::join_paths(path).unwrap_or(inherited)
    }

    /// Gives a command the runtime's search path and environment.
    pub(super) fn prepare(self, workspace: &Workspace, command: &mut Command, with_python: bool) {
        let folder = self.folder(workspace);
        command.env("PATH", self.search_path(workspace, with_python));
        match self {
            Self::Python => command
                .env("PYTHONUNBUFFERED", "1")
                .env("PYTHONDONTWRITEBYTECODE", "1"),
            Self::Node => command.env("NODE_PATH", folder.join("node_modules")),
            Self::Rust => command.env("CARGO_TARGET_DIR", folder),
            Self::Java => command.env("STERNA_JAVA", folder),
            Self::Go | Self::Debian => command,
        };
        if with_python {
            command
                .env("PYTHONUNBUFFERED", "1")
                .env("PYTHONDONTWRITEBYTECODE", "1");
        }
    }

    fn folder(self, workspace: &Workspace) -> PathBuf {
        workspace.target.join("interop").join(self.name())
    }

    fn install_python(
        self,
        workspace: &Workspace,
        packages: &[String],
        progress: &mut Progress,
    ) -> Result<Option<String>, Failure> {
        let folder = self.folder(workspace);
        let mut create = Command::new("python3");
        create.args(["-m", "venv"]).arg(&folder);
        let mut install = Command::new(folder.join("bin").join("python"));
        install.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]);
        install.args(packages);
        let commands = if packages.is_empty() {
            vec![create]
        } else {
            vec![create, install]
        };
        self.once(workspace, packages, commands, progress)
    }

    fn install_node(
        self,
        workspace: &Workspace,
        packages: &[String],
        progress: &mut Progress,
    ) -> Result<Option<String>, Failure> {
        let mut install = Command::new("npm");
        install.args([
            "install",
            "--no-audit",
            "--no-fund",
            "--no-save",
            "--prefix",
        ]);
        install.arg(self.folder(workspace)).args(packages);
        let commands = if packages.is_empty() {
            Vec::new()
        } else {
            vec![install]
        };
        self.once(workspace, packages, commands, progress)
    }

    /// Builds each time: Go knows the changes, and does not fetch again.
    fn install_go(
        self,
        workspace: &Workspace,
        modules: &[String],
        progress: &mut Progress,
    ) -> Result<Option<String>, Failure> {
        let folder = workspace.target_folder(&format!("interop/{}", self.name()))?;
        let log = folder.with_extension("log");
        // A folder that exists, or `go build` takes it for the program's name.
        let programs = folder.join("bin");
        fs::create_dir_all(&programs)?;
        for module in modules {
            let mut build = Command::new("go");
            build
                // Modules that can be deleted with the rest of the build folder.
                .args(["build", "-trimpath", "-buildvcs=false", "-modcacherw", "-o"])
                .arg(&programs)
                .arg(".")
                .current_dir(workspace.root.join("interop").join(module))
                .env("GOMODCACHE", folder.join("modules"))
                .env("GOCACHE", folder.join("cache"));
            let outcome = run(&mut build, &log, INSTALL_LIMIT, progress)?;
            if !outcome.success {
                return Ok(Some(outcome.tail()));
            }
        }
        Ok(None)
    }

    /// Maven fetches the pom's requirements once. The suite itself is built each time, in seconds.
    fn install_java(
        self,
        workspace: &Workspace,
        modules: &[String],
        progress: &mut Progress,
    ) -> Result<Option<String>, Failure> {
        let folder = workspace.target_folder(&format!("interop/{}", self.name()))?;
        let log = folder.with_extension("log");
        for module in modules {
            let source = workspace.root.join("interop").join(module);
            let made = folder.join(module);
            fs::create_dir_all(&made)?;
            let pom = fs::read_to_string(source.join("pom.xml"))?;
            let stamp = made.join("installed.txt");
            if !fs::read_to_string(&stamp).is_ok_and(|installed| installed == pom) {
                let mut fetch = Command::new("mvn");
                fetch
                    .args(["--batch-mode", "--quiet", "--strict-checksums"])
                    .arg("--file")
                    .arg(source.join("pom.xml"))
                    .arg("dependency:copy-dependencies")
                    .arg(format!("-DoutputDirectory={}", made.join("lib").display()))
                    .arg(format!("-DbuildDirectory={}", made.display()));
                let outcome = run(&mut fetch, &log, INSTALL_LIMIT, progress)?;
                if !outcome.success {
                    return Ok(Some(outcome.tail()));
                }
                write(&stamp, &pom)?;
            }
            let mut sources: Vec<PathBuf> = fs::read_dir(source.join("src"))?
                .filter_map(|entry| entry.ok().map(|entry| entry.path()))
                .collect();
            sources.sort();
            let mut build = Command::new("javac");
            build
                .args(["-Xlint:all", "-Werror", "-d"])
                .arg(made.join("classes"))
                .arg("-classpath")
                .arg(made.join("lib").join("*"))
                .args(sources);
            let outcome = run(&mut build, &log, INSTALL_LIMIT, progress)?;
            if !outcome.success {
                return Ok(Some(outcome.tail()));
            }
        }
        Ok(None)
    }

    /// Runs commands in order, unless they were run for the same packages before.
    fn once(
        self,
        workspace: &Workspace,
        packages: &[String],
        commands: Vec<Command>,
        progress: &mut Progress,
    ) -> Result<Option<String>, Failure> {
        let wanted = packages.join("\n");
        let folder = workspace.target_folder(&format!("interop/{}", self.name()))?;
        let stamp = folder.join("installed.txt");
        if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
            return Ok(None);
        }
        let log = workspace
            .target
            .join("interop")
            .join(format!("{}.log", self.name()));
        for mut command in commands {
            let outcome = run(&mut command, &log, INSTALL_LIMIT, progress)?;
            if !outcome.success {
                return Ok(Some(outcome.tail()));
            }
        }
        write(&stamp, &wanted)?;
        Ok(None)
    }
}

fn install_rust(
    workspace: &Workspace,
    packages: &[String],
    progress: &mut Progress,
) -> Result<(), Failure> {
    for package in packages {
        let (name, version) = package
            .split_once('@')
            .ok_or_else(|| Failure(format!("`{package}` is not `package@version`")))?;
        tools::ensure(
            workspace,
            &Tool {
                package: name,
                version,
            },
            progress,
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_are_found_by_name() {
        for runtime in Runtime::ALL {
            assert_eq!(Runtime::named(runtime.name()), Some(runtime));
        }
        assert_eq!(Runtime::named("perl"), None);
    }

    #[test]
    fn a_missing_program_is_named() {
        let programs = ["sh".to_owned(), "no-such-program-here".to_owned()];
        assert_eq!(
            Runtime::Debian.missing(&programs),
            Some("no-such-program-here".to_owned())
        );
        assert_eq!(Runtime::Debian.missing(&programs[..1]), None);
    }
}
