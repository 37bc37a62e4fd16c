//! `sterna-lab bench` as people and scripts use it.
#![allow(clippy::unwrap_used)] // it is all test

use crate::process::{lab, sterna, text};

#[test]
fn benchmarks_measure_devices_and_requests() {
    sterna();
    let output = lab(&[
        "bench", "device", "-n", "1,3", "--rounds", "1", "--pause", "0", "--json",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines: Vec<serde_json::Value> = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 16);
    for line in &lines {
        for figure in [
            "cpu_us",
            "allocated_bytes",
            "peak_rss_bytes",
            "packets_up",
            "bytes_down",
        ] {
            assert!(line[figure].as_u64().unwrap() > 0, "{line}");
        }
    }
    let output = lab(&[
        "bench",
        "http",
        "-n",
        "2",
        "--subscriptions",
        "3",
        "--posts",
        "20",
        "--json",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(line["open_requests"], 6.0);
    assert!(line["cpu_us_per_post"].as_f64().unwrap() > 0.0);
}
