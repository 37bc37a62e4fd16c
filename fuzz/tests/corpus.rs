//! The seeds of all fuzz targets: each input that once crashed one, and one of each form.

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use sterna_fuzz::targets::ALL;

/// A folder of the fuzz targets' crate.
fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Paths in a folder, in order of name.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    paths
}

#[test]
fn every_seed_keeps_what_its_target_checks() {
    let mut broken = Vec::new();
    let mut played = 0;
    for (name, check) in ALL {
        for seed in entries(&folder("corpus").join(name)) {
            let bytes = fs::read(&seed).expect("a seed");
            println!("{name}: {}", seed.display());
            if catch_unwind(|| check(&bytes)).is_err() {
                broken.push(format!("{name} fails with {}", seed.display()));
            }
            played += 1;
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(played >= ALL.len(), "{played} seeds");
}

/// A target without seeds, and seeds of no target, would be left out in silence.
#[test]
fn every_target_has_seeds_and_a_program() {
    let known: Vec<String> = ALL.iter().map(|(name, _)| (*name).to_owned()).collect();
    let stem = |path: &PathBuf| {
        path.file_stem()
            .map(|stem| stem.to_string_lossy().into_owned())
    };
    let seeded: Vec<String> = entries(&folder("corpus")).iter().filter_map(stem).collect();
    assert_eq!(seeded, known);
    let programs = entries(&folder("targets"));
    let programs = programs
        .iter()
        .filter(|path| path.extension().is_some_and(|end| end == "rs"));
    let programs: Vec<String> = programs.filter_map(stem).collect();
    assert_eq!(programs, known);
}
