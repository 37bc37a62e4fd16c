//! The crash test in its short form, and that it would notice.
#![allow(clippy::unwrap_used)] // it is all test

use std::process::Output;

use crate::process::{lab, sterna, text};

/// A run with these options, and its report.
fn crash(options: &str) -> (Output, String) {
    play("crash", options)
}

fn play(command: &str, options: &str) -> (Output, String) {
    let sterna = sterna();
    let mut arguments = vec![command, "--sterna", sterna.to_str().unwrap()];
    arguments.extend(options.split(' '));
    let output = lab(&arguments);
    let report = text(&output.stdout) + &text(&output.stderr);
    (output, report)
}

/// The sum of a row of the report: of MQTT, AMQP and HTTP.
fn sum(report: &str, row: &str) -> u64 {
    let numbers = report.lines().find_map(|line| line.strip_prefix(row));
    let numbers = numbers.unwrap_or_else(|| panic!("no row {row}: {report}"));
    let numbers = numbers.split_ascii_whitespace();
    numbers.map(|number| number.parse::<u64>().unwrap()).sum()
}

#[test]
fn a_broker_that_lives_breaks_no_promise() {
    let (output, report) = crash("--kills 0 --seed 1 --durability none");
    assert!(output.status.success(), "{report}");
    for row in ["acknowledged", "delivered"] {
        assert!(sum(&report, row) > 100, "{report}");
    }
}

#[test]
fn a_killed_broker_breaks_no_promise() {
    let (output, report) = crash("--kills 5 --seed 1 --durability interval");
    assert!(output.status.success(), "{report}");
    assert!(report.contains("5 kills"), "{report}");
}

/// Partitions, half-open peers, datagrams that are lost, doubled, late, changed and from elsewhere: it lives, so it breaks
/// no promise although it keeps nothing.
#[test]
fn a_broker_behind_a_bad_line_breaks_no_promise() {
    let (output, report) = play("faults", "--faults 12 --seed 2 --durability none");
    assert!(output.status.success(), "{report}");
    assert!(report.contains("12 faults"), "{report}");
    assert!(sum(&report, "repeated") > 0, "{report}");
}

/// The broker acknowledges before the commit, which takes its time.
#[test]
fn a_broken_promise_is_caught() {
    let (output, report) = crash("--kills 6 --seed 1 --durability memory");
    assert_eq!(output.status.code(), Some(2), "{report}");
    assert!(sum(&report, "lost") > 0, "{report}");
}

#[test]
fn a_broker_that_keeps_nothing_is_caught() {
    let (output, report) = crash("--kills 2 --seed 1 --durability none");
    assert_eq!(output.status.code(), Some(2), "{report}");
    for breach in ["lost", "forgotten", "not newest"] {
        assert!(sum(&report, breach) > 0, "{breach}: {report}");
    }
}
