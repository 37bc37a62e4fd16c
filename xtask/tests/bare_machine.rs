//! The test command on a machine that has Rust, a C compiler and make alone: what is absent is skipped by its name, and
//! nothing fails for want of it.

#![allow(clippy::unwrap_used, reason = "a fault of the machine ends the test")]

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Rust, gcc with what it calls, make, and what every Debian system has.
const PROGRAMS: [&str; 24] = [
    "cargo",
    "rustc",
    "rustdoc",
    "rustfmt",
    "cargo-fmt",
    "cargo-clippy",
    "clippy-driver",
    "rustup",
    "gcc",
    "cc",
    "g++",
    "c++",
    "ld",
    "as",
    "ar",
    "make",
    "sh",
    "env",
    "test",
    "date",
    "id",
    "uname",
    "sed",
    "stdbuf",
];

/// A folder that is the whole search path.
struct Bare {
    folder: PathBuf,
}

impl Bare {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("xtask-bare-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = std::env::var_os("PATH").unwrap();
        for program in PROGRAMS {
            let found = std::env::split_paths(&path).map(|it| it.join(program));
            if let Some(found) = found.into_iter().find(|file| file.is_file()) {
                symlink(found, folder.join(program)).unwrap();
            }
        }
        Self { folder }
    }

    fn xtask(&self, line: &str, ci: &str) -> Output {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command
            .args(line.split_whitespace())
            .env("PATH", &self.folder)
            .env("CI", ci)
            .env("CARGO_MANIFEST_DIR", root)
            // What it writes is not mixed with that of the run that this test is part of.
            .env("CARGO_TARGET_DIR", self.folder.join("target"))
            .env("STERNA_TOOLS", self.folder.join("tools"));
        command.output().unwrap()
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn what_is_absent_is_skipped_by_name_and_fails_in_continuous_integration_alone() {
    let bare = Bare::new("skips");
    let line = "test --only invariants --only package --only interop/paho --only interop/mosquitto \
                --only interop/mqttjs --only interop/quic-go --only interop/qpid-jms --only interop/cluster";
    for (ci, passes) in [("", true), ("true", false)] {
        let output = bare.xtask(line, ci);
        let said = said(&output);
        assert!(
            !bare.folder.join("target/debug").exists(),
            "something was built: {said}"
        );
        assert_eq!(output.status.success(), passes, "{said}");
        let last = said.lines().last().unwrap_or_default();
        assert!(last.ends_with(" 0 failed, 8 skipped"), "{said}");
        for (part, lack) in [
            ("invariants", "git is missing (Debian: git)"),
            ("package", "is missing (Debian: "),
            ("paho", "skip: python3 is missing (Debian: python3)"),
            ("mosquitto", "skip: python3 is missing (Debian: python3)"),
            ("mqttjs", "is missing (Debian: "),
            ("quic-go", "is missing (Debian: "),
            ("qpid-jms", "is missing (Debian: "),
            ("cluster", "is missing (Debian: "),
        ] {
            let is_named = said
                .lines()
                .any(|line| line.contains(part) && line.contains(lack));
            let below = said
                .split(part)
                .nth(1)
                .is_some_and(|rest| rest.contains(lack));
            assert!(is_named || below, "{part}: {said}");
        }
    }
}

#[test]
fn the_list_names_what_each_part_lacks() {
    let bare = Bare::new("list");
    let output = bare.xtask("test --list", "");
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    let lack = |part: &str| {
        let line = said
            .lines()
            .find(|line| line.split_whitespace().next() == Some(part));
        line.unwrap_or_else(|| panic!("no {part} in {said}"))
            .contains("SKIPPED: ")
    };
    for part in [
        "interop/rumqttc",
        "interop/mqtt5",
        "interop/balancer",
        "interop/coap",
        "nemesis",
    ] {
        assert!(lack(part), "{part} is not skipped: {said}");
    }
    for part in [
        "build",
        "tests/working",
        "lints",
        "docs",
        "spec",
        "seeds/broker",
        "powercut",
    ] {
        assert!(!lack(part), "{part} is skipped: {said}");
    }
}

#[test]
fn the_setup_prints_one_command_for_all_that_debian_has() {
    let bare = Bare::new("setup");
    let output = bare.xtask("setup --all --list", "");
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("MISSING python3"), "{said}");
    let command = said
        .lines()
        .find(|line| line.starts_with("as root: apt-get install"));
    let words: Vec<OsString> = command
        .unwrap_or_default()
        .split(' ')
        .map(Into::into)
        .collect();
    for package in [
        "python3",
        "nodejs",
        "golang-go",
        "maven",
        "umoci",
        "chromium",
        "git",
    ] {
        assert!(words.contains(&package.into()), "{package}: {said}");
    }
    assert!(!words.contains(&"make".into()), "{said}");
}
