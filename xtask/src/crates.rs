//! `cargo xtask crates`: packages of the crates that are for others, and whether they build together as another
//! project gets them.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::command::{CARGO_LIMIT, cargo, output, run as run_command};
use crate::console::Progress;
use crate::workspace::{Workspace, write};
use crate::{Failure, Verdict, no_arguments};

/// Files without which a package is of no use.
const WANTED: [&str; 4] = ["Cargo.toml", "Cargo.lock", "README.md", "src/lib.rs"];
/// Most bytes of a package: a registry refuses more than 10 MB.
const MAX_BYTES: u64 = 2_000_000;

/// The result of the check.
#[derive(Debug)]
pub(crate) struct Report {
    /// Names of the crates.
    pub(crate) crates: Vec<String>,
    /// Faults in words; empty where all is well.
    pub(crate) faults: Vec<String>,
}

/// A crate that is for others.
#[derive(Debug, PartialEq, Eq)]
struct Crate {
    name: String,
    version: String,
}

impl Crate {
    /// The name of its package without an extension, and of the folder in it.
    fn stem(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }
}

/// Prints the crates and the faults.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Verdict {
    no_arguments(arguments)?;
    let report = check(workspace, &mut Progress::start("crates"))?;
    println!("{}", report.crates.join(" "));
    for fault in &report.faults {
        println!("{fault}");
    }
    Ok(report.faults.is_empty())
}

/// Packages the crates that are for others, looks into each package, and builds a project that gets all of them
/// from their packages.
pub(crate) fn check(workspace: &Workspace, progress: &mut Progress) -> Result<Report, Failure> {
    let crates = for_others(&metadata(workspace)?);
    let mut report = Report {
        crates: crates.iter().map(|one| one.name.clone()).collect(),
        faults: Vec::new(),
    };
    // The build of all of them below tells more than cargo's build of each, and costs one build.
    let mut arguments = vec!["package", "--locked", "--allow-dirty", "--no-verify"];
    for one in &crates {
        arguments.extend(["--package", &one.name]);
    }
    let outcome = cargo(workspace, progress, "crates-package", &arguments, None)?;
    if !outcome.success {
        report.faults.push(outcome.cargo_tail());
        return Ok(report);
    }
    let folder = workspace.target_folder("xtask/crates")?;
    for one in &crates {
        let package = workspace
            .target
            .join("package")
            .join(format!("{}.crate", one.stem()));
        report.faults.extend(unpack(one, &package, &folder)?);
    }
    report
        .faults
        .extend(build(workspace, progress, &crates, &folder)?);
    Ok(report)
}

fn metadata(workspace: &Workspace) -> Result<Value, Failure> {
    let arguments = ["metadata", "--format-version=1", "--locked", "--no-deps"];
    let text = output(workspace.cargo().args(arguments))?;
    serde_json::from_str(&text).map_err(|error| Failure(format!("cargo metadata: {error}")))
}

/// The crates without `publish = false`.
fn for_others(metadata: &Value) -> Vec<Crate> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages
        .filter(|package| package["publish"].is_null())
        .filter_map(|package| {
            Some(Crate {
                name: package["name"].as_str()?.to_owned(),
                version: package["version"].as_str()?.to_owned(),
            })
        })
        .collect()
}

/// Unpacks a package, and says what is wrong with it.
fn unpack(one: &Crate, package: &Path, folder: &Path) -> Result<Vec<String>, Failure> {
    let mut faults = Vec::new();
    let bytes = fs::metadata(package)?.len();
    if bytes > MAX_BYTES {
        faults.push(format!("{}: a package of {bytes} bytes", one.name));
    }
    let unpacked = folder.join(one.stem());
    if unpacked.is_dir() {
        fs::remove_dir_all(&unpacked)?;
    }
    output(
        Command::new("tar")
            .arg("-xzf")
            .arg(package)
            .arg("-C")
            .arg(folder),
    )?;
    let absent = WANTED
        .into_iter()
        .filter(|file| !unpacked.join(file).is_file());
    faults.extend(absent.map(|file| format!("{}: no {file} in the package", one.name)));
    Ok(faults)
}

/// Checks a project that depends on the unpacked crates; says what is wrong, if anything.
fn build(
    workspace: &Workspace,
    progress: &mut Progress,
    crates: &[Crate],
    folder: &Path,
) -> Result<Option<String>, Failure> {
    let project = folder.join("project");
    fs::create_dir_all(project.join("src"))?;
    write(&project.join("Cargo.toml"), &manifest(crates))?;
    // The versions that the workspace is tested with.
    fs::copy(
        workspace.root.join("Cargo.lock"),
        project.join("Cargo.lock"),
    )?;
    let mut uses = String::new();
    for one in crates {
        // Writing to a String does not fail, here and below.
        let _ = writeln!(uses, "pub use {};", one.name.replace('-', "_"));
    }
    write(&project.join("src/lib.rs"), &uses)?;
    let mut command = workspace.cargo();
    command
        .args(["check", "--manifest-path"])
        .arg(project.join("Cargo.toml"))
        .env("CARGO_TARGET_DIR", &workspace.target)
        .env("CARGO_TERM_COLOR", "never");
    let log = workspace.target_folder("xtask")?.join("crates-build.log");
    let outcome = run_command(&mut command, &log, CARGO_LIMIT, progress)?;
    Ok((!outcome.success).then(|| outcome.cargo_tail()))
}

/// The manifest of a project that gets each crate from its package.
fn manifest(crates: &[Crate]) -> String {
    let mut text =
        "[package]\nname = \"project\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n"
            .to_owned();
    text += "\n[dependencies]\n";
    for one in crates {
        let _ = writeln!(text, "{} = \"={}\"", one.name, one.version);
    }
    text += "\n[patch.crates-io]\n";
    for one in crates {
        let _ = writeln!(text, "{} = {{ path = \"../{}\" }}", one.name, one.stem());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn crates_with_publish_false_are_for_nobody() {
        let found = for_others(&json!({"packages": [
            {"name": "a-b", "version": "0.1.0", "publish": null},
            {"name": "c", "version": "0.1.0", "publish": []},
        ]}));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].stem(), "a-b-0.1.0");
        let text = manifest(&found);
        assert!(text.contains("\na-b = \"=0.1.0\"\n"), "{text}");
        assert!(
            text.ends_with("\na-b = { path = \"../a-b-0.1.0\" }\n"),
            "{text}"
        );
    }
}
