//! The languages of suites, and the installation of their requirements in the build folder.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::Failure;
use crate::command::{Outcome, run};
use crate::console::Progress;
use crate::tools;
use crate::workspace::{Workspace, write};

/// The longest time that installing packages may take.
const INSTALL_LIMIT: Duration = Duration::from_secs(15 * 60);

/// The file in a runtime's folder that lists what is installed there.
const INSTALLED: &str = "installed.txt";

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
    /// becomes `FOLDER/` in the folder `STERNA_JAVA`: `classes`, and their requirements in `lib`. All may use what is in
    /// `java/shared`.
    Java,
    /// The programs of `interop/rust`.
    Rust,
    /// Programs of the system: `xtask/needs.json` lists them.
    Debian,
}

impl Runtime {
    /// In the order in which what they need is installed: that of the longest suites first.
    pub(super) const IN_ORDER: [Self; 6] = [
        Self::Go,
        Self::Python,
        Self::Node,
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
        Self::IN_ORDER
            .into_iter()
            .find(|runtime| runtime.name() == name)
    }

    /// Installs packages unless the same ones are there; returns those that could not be.
    pub(super) fn install(
        self,
        workspace: &Workspace,
        packages: &[String],
        progress: &mut Progress,
    ) -> Result<Vec<Unavailable>, Failure> {
        match self {
            Self::Python => self.install_python(workspace, packages, progress),
            Self::Node => self.install_node(workspace, packages, progress),
            Self::Rust => self.build_rust(workspace, progress),
            Self::Go => self.install_go(workspace, packages, progress),
            Self::Java => self.install_java(workspace, packages, progress),
            Self::Debian => Ok(Vec::new()),
        }
    }

    /// The search path with the runtime's programs first, and before them Python's own where packages
    /// were installed for it.
    pub(super) fn search_path(self, workspace: &Workspace, with_python: bool) -> OsString {
        let folder = self.folder(workspace);
        let mut path: Vec<PathBuf> = match self {
            Self::Python | Self::Go => vec![folder.join("bin")],
            Self::Node => vec![folder.join("node_modules").join(".bin")],
            Self::Java | Self::Rust | Self::Debian => Vec::new(),
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
        if self == Self::Python || with_python {
            command
                .env("PYTHONUNBUFFERED", "1")
                .env("PYTHONDONTWRITEBYTECODE", "1");
        }
        match self {
            Self::Node => drop(command.env("NODE_PATH", folder.join("node_modules"))),
            Self::Rust => drop(command.env("CARGO_TARGET_DIR", folder)),
            Self::Java => drop(command.env("STERNA_JAVA", folder)),
            Self::Go => caches_of_go(workspace, command),
            Self::Python | Self::Debian => {}
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
    ) -> Result<Vec<Unavailable>, Failure> {
        let folder = workspace.target_folder(&format!("interop/{}", self.name()))?;
        let log = folder.with_extension("log");
        let python = folder.join("bin").join("python");
        if !python.is_file() {
            let mut create = Command::new("python3");
            create.args(["-m", "venv"]).arg(&folder);
            let outcome = run(&mut create, &log, INSTALL_LIMIT, progress)?;
            if !outcome.success {
                return Ok(vec![Unavailable::all(&outcome, false)]);
            }
        }
        // pip keeps what it has fetched, and what it has built of it, by version.
        let kept = tools::folder(workspace).join("pip");
        let install = |packages: &[String], progress: &mut Progress| {
            let mut install = Command::new(&python);
            install
                .args(["-m", "pip", "install", "--quiet"])
                .arg("--disable-pip-version-check")
                .args(packages)
                .env("PIP_CACHE_DIR", &kept);
            run(&mut install, &log, INSTALL_LIMIT, progress)
        };
        let Some(mut wanted) = self.wanted(workspace, packages) else {
            return Ok(Vec::new());
        };
        let mut unavailable = Vec::new();
        if !install(&wanted, progress)?.success {
            // One that cannot be had must not take the others along.
            for package in std::mem::take(&mut wanted) {
                let outcome = install(std::slice::from_ref(&package), progress)?;
                if outcome.success {
                    wanted.push(package);
                } else {
                    unavailable.push(Unavailable::one(&package, &outcome, false));
                }
            }
        }
        write(&folder.join(INSTALLED), &wanted.join("\n"))?;
        Ok(unavailable)
    }

    fn install_node(
        self,
        workspace: &Workspace,
        packages: &[String],
        progress: &mut Progress,
    ) -> Result<Vec<Unavailable>, Failure> {
        let folder = workspace.target_folder(&format!("interop/{}", self.name()))?;
        let Some(wanted) = self.wanted(workspace, packages) else {
            return Ok(Vec::new());
        };
        let mut install = Command::new("npm");
        install
            .args([
                "install",
                "--no-audit",
                "--no-fund",
                "--no-save",
                "--prefix",
            ])
            .arg(&folder)
            .args(&wanted);
        let log = folder.with_extension("log");
        let outcome = run(&mut install, &log, INSTALL_LIMIT, progress)?;
        if !outcome.success {
            return Ok(vec![Unavailable::all(&outcome, false)]);
        }
        write(&folder.join(INSTALLED), &wanted.join("\n"))?;
        Ok(Vec::new())
    }

    /// Builds the programs of `interop/rust`.
    fn build_rust(
        self,
        workspace: &Workspace,
        progress: &mut Progress,
    ) -> Result<Vec<Unavailable>, Failure> {
        let folder = workspace.target_folder(&format!("interop/{}", self.name()))?;
        let manifest = workspace.root.join("interop/rust/Cargo.toml");
        let log = folder.with_extension("log");
        for (verb, is_fault) in [("fetch", false), ("build", true)] {
            let mut cargo = workspace.cargo();
            cargo
                .args([verb, "--locked", "--manifest-path"])
                .arg(&manifest);
            cargo.env("CARGO_TARGET_DIR", &folder);
            let outcome = run(&mut cargo, &log, INSTALL_LIMIT, progress)?;
            if !outcome.success {
                return Ok(vec![Unavailable::all(&outcome, is_fault)]);
            }
        }
        Ok(Vec::new())
    }

    /// Packages that are to be installed so that these are there and others stay; `None` where there are none.
    fn wanted(self, workspace: &Workspace, packages: &[String]) -> Option<Vec<String>> {
        let stamp = self.folder(workspace).join(INSTALLED);
        let installed = fs::read_to_string(stamp).unwrap_or_default();
        together(installed.lines(), packages)
    }

    /// Builds each time: Go knows the changes, and does not fetch again.
    fn install_go(
        self,
        workspace: &Workspace,
        modules: &[String],
        progress: &mut Progress,
    ) -> Result<Vec<Unavailable>, Failure> {
        let folder = workspace.target_folder(&format!("interop/{}", self.name()))?;
        let log = folder.with_extension("log");
        let mut unavailable = Vec::new();
        // A folder that exists, or `go build` takes it for the program's name.
        let programs = folder.join("bin");
        fs::create_dir_all(&programs)?;
        for module in modules {
            let source = workspace.root.join("interop").join(module);
            let mut build = go(workspace);
            build.args(["build", "-trimpath", "-buildvcs=false", "-o"]);
            build.arg(&programs).arg(".").current_dir(&source);
            let outcome = run(&mut build, &log, INSTALL_LIMIT, progress)?;
            if outcome.success {
                continue;
            }
            let mut fetch = go(workspace);
            fetch.args(["mod", "download"]).current_dir(&source);
            let log = log.with_extension("fetch.log");
            let is_fault = run(&mut fetch, &log, INSTALL_LIMIT, progress)?.success;
            unavailable.push(Unavailable::one(module, &outcome, is_fault));
        }
        Ok(unavailable)
    }

    /// Maven fetches the pom's requirements once. The suite itself is built each time, in seconds.
    fn install_java(
        self,
        workspace: &Workspace,
        modules: &[String],
        progress: &mut Progress,
    ) -> Result<Vec<Unavailable>, Failure> {
        let folder = workspace.target_folder(&format!("interop/{}", self.name()))?;
        let log = folder.with_extension("log");
        for module in modules {
            let source = workspace.root.join("interop").join(module);
            let made = folder.join(module);
            fs::create_dir_all(&made)?;
            let pom = fs::read_to_string(source.join("pom.xml"))?;
            let stamp = made.join(INSTALLED);
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
                    return Ok(vec![Unavailable::all(&outcome, false)]);
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
                .arg("-sourcepath")
                .arg(workspace.root.join("interop/java/shared"))
                .arg("-classpath")
                .arg(made.join("lib").join("*"))
                .args(sources);
            let outcome = run(&mut build, &log, INSTALL_LIMIT, progress)?;
            if !outcome.success {
                return Ok(vec![Unavailable::all(&outcome, true)]);
            }
        }
        Ok(Vec::new())
    }
}

/// Go, which keeps what it fetches and compiles for all clones, by its content.
fn go(workspace: &Workspace) -> Command {
    let mut command = Command::new("go");
    caches_of_go(workspace, &mut command);
    command
}

fn caches_of_go(workspace: &Workspace, command: &mut Command) {
    let kept = tools::folder(workspace).join("go");
    command
        .env("GOMODCACHE", kept.join("modules"))
        .env("GOCACHE", kept.join("cache"))
        // Modules that can be deleted with the folder.
        .env("GOFLAGS", "-modcacherw");
}

/// A package that a suite asks for and cannot have.
#[derive(Debug)]
pub(super) struct Unavailable {
    /// The package; `None`: all of the runtime.
    pub(super) package: Option<String>,
    /// The end of what the installation said.
    pub(super) why: String,
    /// Whether it is there and wrong: sources of the project that do not compile.
    pub(super) is_fault: bool,
}

impl Unavailable {
    fn all(outcome: &Outcome, is_fault: bool) -> Self {
        Self {
            package: None,
            why: outcome.tail(),
            is_fault,
        }
    }

    fn one(package: &str, outcome: &Outcome, is_fault: bool) -> Self {
        Self {
            package: Some(package.to_owned()),
            ..Self::all(outcome, is_fault)
        }
    }
}

/// The packages that are wanted, and those that are installed in another version or of another name; `None` where all that
/// are wanted are installed.
fn together<'a>(
    installed: impl Iterator<Item = &'a str> + Clone,
    wanted: &[String],
) -> Option<Vec<String>> {
    if wanted
        .iter()
        .all(|package| installed.clone().any(|one| one == package))
    {
        return None;
    }
    let name = |package: &str| -> String {
        let end = package.find("==").or_else(|| package.rfind('@'));
        package[..end.unwrap_or(package.len())].to_owned()
    };
    let mut all = wanted.to_vec();
    for one in installed.filter(|one| !one.is_empty()) {
        if !wanted.iter().any(|package| name(package) == name(one)) {
            all.push(one.to_owned());
        }
    }
    all.sort();
    all.dedup();
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_are_found_by_name() {
        for runtime in Runtime::IN_ORDER {
            assert_eq!(Runtime::named(runtime.name()), Some(runtime));
        }
        assert_eq!(Runtime::named("perl"), None);
    }

    #[test]
    fn what_is_installed_stays_and_versions_change() {
        let owned = |words: &[&str]| {
            words
                .iter()
                .map(|&word| word.to_owned())
                .collect::<Vec<_>>()
        };
        let of = |installed: &str, wanted: &[&str]| together(installed.lines(), &owned(wanted));
        assert_eq!(of("a==1\nb==2", &["b==2"]), None);
        assert_eq!(of("", &[]), None);
        assert_eq!(of("", &["a==1"]), Some(owned(&["a==1"])));
        assert_eq!(of("a==1\nb==2", &["a==2"]), Some(owned(&["a==2", "b==2"])));
        assert_eq!(
            of("@x/a@1", &["@x/b@1"]),
            Some(owned(&["@x/a@1", "@x/b@1"]))
        );
    }
}
