//! Files that have changed, their crates, and the crates that depend on those.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::Failure;
use crate::command::output;
use crate::workspace::Workspace;

/// Names of the main branch, in the order in which they are looked for.
const MAIN_BRANCHES: [&str; 4] = ["origin/HEAD", "origin/main", "main", "master"];

/// Folders of a crate that no other crate compiles.
const OWN_FOLDERS: [&str; 3] = ["tests", "benches", "examples"];

/// Files that have changed since the branch left the main one, with those that are not committed; relative to the root.
///
/// # Errors
/// When git fails, or knows no main branch.
pub(crate) fn files(workspace: &Workspace, base: Option<&str>) -> Result<Vec<String>, Failure> {
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        output(command.args(arguments).current_dir(&workspace.root))
    };
    let base = match base {
        Some(base) => git(&[
            "rev-parse",
            "--verify",
            "--quiet",
            &format!("{base}^{{commit}}"),
        ])
        .map_err(|_| Failure(format!("--base {base}: there is no such commit")))?,
        None => MAIN_BRANCHES
            .iter()
            .find_map(|branch| git(&["merge-base", "HEAD", branch]).ok())
            .ok_or_else(|| Failure::new("no main branch is known; --base REV names a commit"))?,
    };
    let tracked = git(&["diff", "--name-only", "--no-renames", "-z", base.trim()])?;
    let others = git(&["ls-files", "-z", "--others", "--exclude-standard"])?;
    let names = tracked.split('\0').chain(others.split('\0'));
    let names: BTreeSet<&str> = names.filter(|name| !name.is_empty()).collect();
    Ok(names.into_iter().map(str::to_owned).collect())
}

/// The workspace's crates.
#[derive(Debug, Default)]
pub(crate) struct Crates {
    /// By name, the folder relative to the root.
    folders: BTreeMap<String, String>,
    /// By name, those that depend on it, also in their tests.
    dependents: BTreeMap<String, BTreeSet<String>>,
    /// Those that have a library, whose documentation may have examples.
    libraries: BTreeSet<String>,
}

/// Crates that a change touches, each with the reason.
pub(crate) type Touched = BTreeMap<String, String>;

impl Crates {
    /// Asks cargo.
    ///
    /// # Errors
    /// When cargo fails.
    pub(crate) fn load(workspace: &Workspace) -> Result<Self, Failure> {
        let mut cargo = workspace.cargo();
        cargo.args(["metadata", "--format-version=1", "--locked", "--no-deps"]);
        let metadata: Value = serde_json::from_str(&output(&mut cargo)?)
            .map_err(|error| Failure(format!("cargo metadata: {error}")))?;
        Ok(Self::read(&metadata, |path| workspace.name(path)))
    }

    fn read(metadata: &Value, relative: impl Fn(&Path) -> String) -> Self {
        let mut crates = Self::default();
        let packages = || metadata["packages"].as_array().into_iter().flatten();
        for package in packages() {
            let name = package["name"].as_str().unwrap_or_default().to_owned();
            let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
            let folder = relative(manifest.parent().unwrap_or(manifest));
            for dependency in package["dependencies"].as_array().into_iter().flatten() {
                if let (Some(other), true) =
                    (dependency["name"].as_str(), dependency["path"].is_string())
                {
                    let dependents = crates.dependents.entry(other.to_owned()).or_default();
                    dependents.insert(name.clone());
                }
            }
            let mut targets = package["targets"].as_array().into_iter().flatten();
            if targets.any(|target| target["doctest"] == true) {
                crates.libraries.insert(name.clone());
            }
            crates.folders.insert(name, folder);
        }
        crates
    }

    /// The crates that these files touch. A file of a crate's tests touches that crate alone, any other file also the crates
    /// that depend on it.
    pub(crate) fn touched(&self, files: &[String]) -> Touched {
        let (mut touched, mut spread) = (Touched::new(), BTreeSet::new());
        for file in files {
            for (name, folder) in &self.folders {
                let Some(inside) = file.strip_prefix(&format!("{folder}/")) else {
                    continue;
                };
                touched.entry(name.clone()).or_insert_with(|| file.clone());
                let top = inside.split('/').next().unwrap_or_default();
                if !OWN_FOLDERS.contains(&top) {
                    self.add_dependents(name, &mut touched, &mut spread);
                }
            }
        }
        touched
    }

    fn add_dependents<'a>(
        &'a self,
        name: &'a str,
        touched: &mut Touched,
        spread: &mut BTreeSet<&'a str>,
    ) {
        if !spread.insert(name) {
            return;
        }
        for dependent in self.dependents.get(name).into_iter().flatten() {
            let why = || format!("it depends on {name}");
            touched.entry(dependent.clone()).or_insert_with(why);
            self.add_dependents(dependent, touched, spread);
        }
    }

    /// Whether a crate has a library with documentation that may have examples.
    pub(crate) fn has_library(&self, name: &str) -> bool {
        self.libraries.contains(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn crates() -> Crates {
        let package = |name: &str, dependencies: &[&str]| {
            let dependencies: Vec<Value> = dependencies
                .iter()
                .map(|name| json!({"name": name, "path": format!("/w/crates/{name}")}))
                .collect();
            json!({
                "name": name,
                "manifest_path": format!("/w/crates/{name}/Cargo.toml"),
                "dependencies": dependencies,
                "targets": [{"kind": ["lib"], "doctest": name != "program"}],
            })
        };
        let metadata = json!({"packages": [
            package("topic", &[]),
            package("mqtt", &["topic"]),
            package("server", &["mqtt"]),
            package("program", &["server"]),
            package("other", &[]),
        ]});
        Crates::read(&metadata, |path| {
            path.strip_prefix("/w").unwrap().display().to_string()
        })
    }

    fn touched(files: &[&str]) -> Vec<(String, String)> {
        let files: Vec<String> = files.iter().map(|&file| file.to_owned()).collect();
        crates().touched(&files).into_iter().collect()
    }

    #[test]
    fn a_change_touches_its_crate_and_those_that_depend_on_it() {
        let found = touched(&["crates/mqtt/src/lib.rs"]);
        let names: Vec<&str> = found.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["mqtt", "program", "server"]);
        assert_eq!(found[0].1, "crates/mqtt/src/lib.rs");
        assert_eq!(found[1].1, "it depends on server");
    }

    #[test]
    fn a_change_of_tests_touches_their_crate_alone() {
        let found = touched(&["crates/topic/tests/properties.rs", "README.md"]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, "topic");
        // In whichever order the two come.
        for files in [
            ["crates/topic/tests/a.rs", "crates/topic/src/a.rs"],
            ["crates/topic/src/a.rs", "crates/topic/tests/a.rs"],
        ] {
            assert_eq!(touched(&files).len(), 4);
        }
        assert_eq!(
            touched(&["crates/server/tests/a.rs", "crates/mqtt/src/a.rs"]).len(),
            3
        );
    }

    #[test]
    fn what_has_no_library_has_no_examples() {
        assert!(crates().has_library("mqtt") && !crates().has_library("program"));
    }
}
