//! The programs as processes, as their users run them.
#![allow(dead_code, reason = "each test program uses its part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The lab's program.
pub(crate) const LAB: &str = env!("CARGO_BIN_EXE_sterna-lab");

/// The lab, to its end.
pub(crate) fn lab(arguments: &[&str]) -> Output {
    Command::new(LAB)
        .args(arguments)
        .output()
        .expect("the lab is started")
}

/// The program `sterna`, which Cargo puts beside the lab's, but builds only if asked to.
pub(crate) fn sterna() -> PathBuf {
    let path = Path::new(LAB).with_file_name("sterna");
    assert!(
        path.is_file(),
        "{} is not built: `cargo build -p sterna`, or test the workspace",
        path.display()
    );
    path
}

/// Whether namespaces can be made here; says so if not.
pub(crate) fn has_rights() -> bool {
    let output = lab(&["link", "-q", "--", "true"]);
    if output.status.success() {
        return true;
    }
    eprintln!("left out: {}", text(&output.stderr));
    false
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
