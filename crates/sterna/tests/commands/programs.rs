//! What became a program of its own is named where it was.
#![allow(clippy::unwrap_used)] // it is all test

use std::process::Command;

#[test]
fn commands_of_the_lab_answer_with_how_they_are_written_now() {
    for (arguments, now) in [
        (&["lab"][..], "sterna-lab\n"),
        (
            &["lab", "run", "all", "--quick"],
            "sterna-lab run all --quick\n",
        ),
        (&["lab", "--help"], "sterna-lab --help\n"),
        (
            &["bench", "pairs", "-n", "5", "mqtt://localhost"],
            "sterna-lab bench pairs -n 5 mqtt://localhost\n",
        ),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sterna"));
        let output = command.args(arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert_eq!(output.stdout, b"");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.ends_with(now), "{said}");
    }
}
