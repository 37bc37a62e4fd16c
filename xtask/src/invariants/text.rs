//! Promises that are held by reading source texts and file names.

use std::collections::BTreeSet;

use super::Rule;
use super::arrows::ENGINES;
use crate::Failure;
use crate::rust_source::{imports, line_of};
use crate::sources::SourceFile;
use crate::workspace::{Workspace, read};

/// Parts of the standard library that engines do without: time and bytes are handed to them.
const SYSTEM_PATHS: [&str; 6] = [
    "std::env",
    "std::fs",
    "std::net",
    "std::os",
    "std::process",
    "std::thread",
];

/// Calls that read a clock.
const CLOCKS: [&str; 2] = ["Instant::now", "SystemTime::now"];

/// Modules that may hold unsafe code; the reason stands in the module.
const UNSAFE_MODULES: [&str; 9] = [
    "crates/sterna-lab/src/bin/sterna-lab/allocations.rs",
    "crates/sterna-lab/src/bin/sterna-lab/process.rs",
    "crates/sterna-lab/src/kernel.rs",
    "crates/sterna-mqtt/src/text.rs",
    "crates/sterna-net/src/steering.rs",
    "crates/sterna-net/src/tcp_info.rs",
    "crates/sterna-server/src/memory/allocator.rs",
    "crates/sterna/src/allocator.rs",
    "crates/sterna/src/commands/clock.rs",
];

/// Lines of shipped Rust in one file. Above the first number it is time to divide the file, above the
/// second it is late.
const LONG_FILE_LINES: (usize, usize) = (800, 1000);

/// Names that do not describe the content of a folder or file.
const VAGUE_NAMES: [&str; 4] = ["common", "helpers", "misc", "utils"];

/// Folders that exist on one machine only. In pieces, so that this file keeps its own rule.
const MACHINE_FOLDERS: [&str; 2] = [concat!("/wor", "k/"), concat!("/roo", "t/")];

/// Places in engines that reach for the system or read a clock.
pub(super) fn engines_with_io(files: &[SourceFile]) -> Vec<String> {
    let mut violations = Vec::new();
    for file in files
        .iter()
        .filter(|file| ENGINES.contains(&file.crate_name()))
    {
        let code = file.shipped_code();
        let mut found = BTreeSet::new();
        for (offset, path) in imports(&code) {
            if let Some(system) = SYSTEM_PATHS.iter().find(|system| is_below(&path, system)) {
                found.insert((line_of(&code, offset), *system));
            }
        }
        for wanted in SYSTEM_PATHS.iter().chain(&CLOCKS) {
            for offset in words(&code, wanted) {
                found.insert((line_of(&code, offset), *wanted));
            }
        }
        violations.extend(
            found
                .iter()
                .map(|(line, what)| format!("{}:{line}: {what}", file.name)),
        );
    }
    violations
}

fn is_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Offsets of a word that is not a part of a longer one.
pub(super) fn words(code: &str, word: &str) -> Vec<usize> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word)
        .filter(|(offset, _)| {
            !code[..*offset].ends_with(is_part) && !code[offset + word.len()..].starts_with(is_part)
        })
        .map(|(offset, _)| offset)
        .collect()
}

/// Unsafe code outside the named modules, and named modules without any.
pub(super) fn unsafe_code(files: &[SourceFile]) -> Vec<String> {
    let mut violations = Vec::new();
    for file in files {
        let code = file.shipped_code();
        let named = UNSAFE_MODULES.contains(&file.name.as_str());
        match words(&code, "unsafe").first() {
            Some(first) if !named => {
                let line = line_of(&code, *first);
                violations.push(format!("{}:{line}: not a named module", file.name));
            }
            None if named => violations.push(format!("{}: named without need", file.name)),
            _ => {}
        }
    }
    violations
}

/// Crates whose manifest doesn't take the lints of the workspace.
pub(super) fn lints(workspace: &Workspace, tracked: &[String]) -> Result<Vec<String>, Failure> {
    let mut violations = Vec::new();
    for name in tracked {
        let is_member = name == "xtask/Cargo.toml"
            || (name.starts_with("crates/") && name.ends_with("/Cargo.toml"));
        if is_member && !read(&workspace.root.join(name))?.contains("[lints]\nworkspace = true\n") {
            violations.push(format!("{name}: no `[lints]` with `workspace = true`"));
        }
    }
    Ok(violations)
}

/// Files with more Rust than one reading takes in.
pub(super) fn long_files(files: &[SourceFile]) -> Rule {
    let (warn, fail) = LONG_FILE_LINES;
    let mut rule = Rule::new("no file is longer than a reading", Vec::new());
    for file in files.iter().filter(|file| !file.only_tests) {
        let lines = file.parsed.shipped_lines();
        let text = format!("{}: {lines} lines that ship", file.name);
        if lines > fail {
            rule.violations.push(text);
        } else if lines > warn {
            rule.warnings.push(text);
        }
    }
    rule
}

/// Folders and source files with a name that says nothing.
pub(super) fn vague_names(tracked: &[String]) -> Vec<String> {
    let mut found = BTreeSet::new();
    for file in tracked {
        let mut path = String::new();
        for part in file.split('/') {
            path.push_str(part);
            let stem = part.split('.').next().unwrap_or(part);
            if VAGUE_NAMES.contains(&stem) {
                found.insert(path.clone());
            }
            path.push('/');
        }
    }
    found.into_iter().collect()
}

/// Tracked files that name a folder of one machine.
pub(super) fn machine_paths(workspace: &Workspace, tracked: &[String]) -> Vec<String> {
    let mut violations = Vec::new();
    for name in tracked {
        // A file that is not text names no path.
        let Ok(text) = std::fs::read_to_string(workspace.root.join(name)) else {
            continue;
        };
        for (offset, folder) in machine_folders(&text) {
            violations.push(format!("{name}:{}: {folder}", line_of(&text, offset)));
        }
    }
    violations
}

/// Where a text names such a folder: not as the middle of a longer path or of a topic.
fn machine_folders(text: &str) -> Vec<(usize, &'static str)> {
    let is_part = |c: char| c.is_alphanumeric() || "_-.+#$}*".contains(c);
    MACHINE_FOLDERS
        .iter()
        .flat_map(|folder| {
            text.match_indices(folder)
                .map(|(offset, _)| (offset, *folder))
        })
        .filter(|(offset, _)| !text[..*offset].ends_with(is_part))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::divide;

    fn files(files: &[(&str, &str)]) -> Vec<SourceFile> {
        divide(
            files
                .iter()
                .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
                .collect(),
        )
    }

    #[test]
    fn clocks_and_sockets_are_found_in_engines_only() {
        let text = "\
use std::{collections::HashMap, net::IpAddr};
// std::fs is fine in a comment, and \"std::thread\" in a text
fn f() { let t = std::time::Instant::now(); let s = \"std::thread\"; std::fs::read(\"x\"); }
fn g(my_std::network: u8) {}
#[cfg(test)]
mod tests { fn f() { std::thread::spawn(f); } }
";
        let found = engines_with_io(&files(&[
            ("crates/sterna-mqtt/src/lib.rs", text),
            ("crates/sterna-net/src/lib.rs", text),
            ("crates/sterna-mqtt/tests/all.rs", text),
        ]));
        assert_eq!(
            found,
            [
                "crates/sterna-mqtt/src/lib.rs:1: std::net",
                "crates/sterna-mqtt/src/lib.rs:3: Instant::now",
                "crates/sterna-mqtt/src/lib.rs:3: std::fs",
            ]
        );
    }

    #[test]
    fn unsafe_code_is_found_where_it_ships() {
        let found = unsafe_code(&files(&[
            (
                "crates/a/src/lib.rs",
                "#![forbid(unsafe_code)]\n// unsafe\nfn f() {}\n",
            ),
            (
                "crates/b/src/lib.rs",
                "fn f() {}\nfn g() { unsafe { f() } }\n",
            ),
            ("crates/c/tests/all.rs", "fn g() { unsafe { f() } }\n"),
            (UNSAFE_MODULES[0], "fn g() { unsafe { f() } }\n"),
            (UNSAFE_MODULES[1], "fn g() {}\n"),
        ]));
        assert_eq!(
            found,
            [
                "crates/b/src/lib.rs:2: not a named module".to_owned(),
                format!("{}: named without need", UNSAFE_MODULES[1]),
            ]
        );
    }

    #[test]
    fn long_files_are_found_without_their_tests() {
        let (warn, fail) = LONG_FILE_LINES;
        let tests = format!(
            "#[cfg(test)]\nmod tests {{\n{}}}\n",
            "fn t() {}\n".repeat(fail)
        );
        let rule = long_files(&files(&[
            ("crates/a/src/short.rs", &format!("fn f() {{}}\n{tests}")),
            ("crates/a/src/long.rs", &"fn f() {}\n".repeat(warn + 1)),
            ("crates/a/src/longest.rs", &"fn f() {}\n".repeat(fail + 1)),
        ]));
        assert_eq!(rule.warnings, ["crates/a/src/long.rs: 801 lines that ship"]);
        assert_eq!(
            rule.violations,
            ["crates/a/src/longest.rs: 1001 lines that ship"]
        );
    }

    #[test]
    fn vague_names_are_found_anywhere_in_a_path() {
        let tracked = [
            "a/utils/x.rs",
            "a/utils/y.rs",
            "src/helpers.rs",
            "src/uncommon.rs",
        ];
        assert_eq!(
            vague_names(&tracked.map(str::to_owned)),
            ["a/utils", "src/helpers.rs"]
        );
    }

    #[test]
    fn machine_folders_are_told_from_topics() {
        let [machine, home] = MACHINE_FOLDERS;
        for text in [
            format!("see {machine}x"),
            format!("`{home}`"),
            format!("\"{home}.cargo\""),
        ] {
            assert_eq!(machine_folders(&text).len(), 1, "{text}");
        }
        for text in [
            format!("home{machine}lamp"),
            format!("+{machine}#"),
            format!("a.{home}b"),
        ] {
            assert_eq!(machine_folders(&text), [], "{text}");
        }
    }
}
