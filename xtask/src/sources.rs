//! The workspace's Rust sources, divided into shipped code and tests.

use std::collections::BTreeSet;
use std::path::Path;

use crate::Failure;
use crate::rust_source::RustSource;
use crate::workspace::{Workspace, read};

/// One Rust file.
#[derive(Debug)]
pub(crate) struct SourceFile {
    /// Its path relative to the root.
    pub(crate) name: String,
    /// Its text.
    pub(crate) text: String,
    /// Its text, divided.
    pub(crate) parsed: RustSource,
    /// Whether only tests, measurements or examples see the file as a whole.
    pub(crate) only_tests: bool,
}

impl SourceFile {
    /// Whether only tests see the byte at this offset.
    pub(crate) fn is_test(&self, offset: usize) -> bool {
        self.only_tests || self.parsed.is_test(offset)
    }

    /// The shipped code of the file; empty if only tests see it.
    pub(crate) fn shipped_code(&self) -> String {
        if self.only_tests {
            String::new()
        } else {
            self.parsed.shipped_code()
        }
    }

    /// The crate's folder name: `sterna-mqtt` for `crates/sterna-mqtt/src/lib.rs`.
    pub(crate) fn crate_name(&self) -> &str {
        let mut parts = self.name.split('/');
        match (parts.next(), parts.next()) {
            (Some("crates"), Some(name)) => name,
            (Some(first), _) => first,
            (None, _) => "",
        }
    }
}

/// Reads and divides every Rust file below these folders.
pub(crate) fn load(workspace: &Workspace, folders: &[&str]) -> Result<Vec<SourceFile>, Failure> {
    let mut files = Vec::new();
    for folder in folders {
        for path in workspace.files(folder, &["rs"])? {
            files.push((workspace.name(&path), read(&path)?));
        }
    }
    Ok(divide(files))
}

/// Divides files that are given by name and text.
pub(crate) fn divide(files: Vec<(String, String)>) -> Vec<SourceFile> {
    let mut divided: Vec<SourceFile> = files
        .into_iter()
        .map(|(name, text)| SourceFile {
            only_tests: is_beside_the_code(&name),
            parsed: RustSource::parse(&text),
            name,
            text,
        })
        .collect();
    let test_modules: BTreeSet<String> = divided
        .iter()
        .flat_map(|file| {
            let folder = module_folder(&file.name);
            file.parsed
                .test_modules()
                .iter()
                .map(move |module| format!("{folder}/{module}"))
        })
        .collect();
    for file in &mut divided {
        file.only_tests |= test_modules.iter().any(|module| {
            file.name
                .strip_prefix(module.as_str())
                .is_some_and(|rest| rest.starts_with(['.', '/']))
        });
    }
    divided
}

/// Whether the folders of a path say that nothing in it ships.
fn is_beside_the_code(name: &str) -> bool {
    is_test_path(name)
        || name
            .split('/')
            .any(|part| matches!(part, "benches" | "examples"))
}

/// Whether the folders of a path say that it holds tests only.
pub(crate) fn is_test_path(name: &str) -> bool {
    name.split('/').any(|part| part == "tests")
        || name.starts_with("interop/")
        || name.starts_with("fuzz/")
}

/// The folder in which the modules that a file declares have their own files.
fn module_folder(name: &str) -> String {
    let path = Path::new(name);
    let folder = path
        .parent()
        .map(|folder| folder.to_string_lossy().into_owned());
    let folder = folder.unwrap_or_default();
    match path.file_stem().and_then(|stem| stem.to_str()) {
        Some("lib" | "main" | "mod") | None => folder,
        Some(stem) => format!("{folder}/{stem}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_test_modules_are_tests() {
        let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let files = divide(vec![
            file(
                "crates/a/src/lib.rs",
                "mod topic;\n#[cfg(test)]\nmod fakes;\n",
            ),
            file("crates/a/src/topic.rs", "#[cfg(test)] mod checks;"),
            file("crates/a/src/topic/checks.rs", ""),
            file("crates/a/src/topic/checks/more.rs", ""),
            file("crates/a/src/topic/checksum.rs", ""),
            file("crates/a/src/fakes/mod.rs", ""),
            file("crates/a/tests/all.rs", ""),
            file("crates/a/benches/speed.rs", ""),
            file("fuzz/targets/a.rs", ""),
        ]);
        let tests: Vec<bool> = files.iter().map(|file| file.only_tests).collect();
        assert_eq!(
            tests,
            [false, false, true, true, false, true, true, true, true]
        );
        assert_eq!(files[0].crate_name(), "a");
        assert_eq!(files[8].crate_name(), "fuzz");
    }
}
