//! A campaign from its start to its report, with nothing that needs rights where it can be.
#![allow(clippy::unwrap_used)] // it is all test

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use crate::process::{LAB, has_rights, lab, sterna, text};

const CAMPAIGN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tiny-campaign.toml");
const FLEET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tiny-fleet.toml");
/// Runs in it.
const RUNS: usize = 16;

/// A broker that somebody else has started.
struct Broker {
    child: Child,
    folder: tempfile::TempDir,
    urls: Vec<String>,
}

impl Broker {
    fn start(schemes: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ready = folder.path().join("ready.json");
        let mut command = Command::new(sterna());
        command.arg("serve").arg("--data-dir").arg(folder.path());
        command.arg("--ready-file").arg(&ready);
        for scheme in schemes {
            command.args(["--listen", &format!("{scheme}://127.0.0.1:0")]);
        }
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        loop {
            if let Some(ready) = fs::read(&ready)
                .ok()
                .and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok())
            {
                let urls = ready["listeners"].as_array().unwrap().iter();
                return Self {
                    urls: urls
                        .map(|listener| listener["url"].as_str().unwrap().to_owned())
                        .collect(),
                    child,
                    folder,
                };
            }
            assert_eq!(child.try_wait().unwrap(), None, "the broker ended early");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn samples(folder: &Path) -> Vec<serde_json::Value> {
    fs::read_to_string(folder.join("samples.jsonl"))
        .expect("the samples of a campaign")
        .lines()
        .map(|line| serde_json::from_str(line).expect("a sample a line"))
        .collect()
}

/// A campaign on a busy machine has samples that are marked, which is status 2; none may fail.
fn assert_ran(output: &Output) {
    let said = text(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 2)), "{said}");
    assert!(!said.contains("FAILED"), "{said}");
}

#[test]
fn a_campaign_runs_resumes_and_is_reported() {
    sterna();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("results");
    let path = out.to_str().unwrap();
    let run = ["run", CAMPAIGN, "--emulator", "relay", "--out", path];
    assert_ran(&lab(&run));
    let all = samples(&out);
    assert_eq!(all.len(), RUNS);
    for sample in &all {
        assert_ne!(sample["verdict"], "failed");
        assert!((sample["metrics"]["arrived_ratio"].as_f64().unwrap() - 1.0).abs() < 1e-9);
    }
    let of = |grid: &str, transport: &str| {
        all.iter()
            .find(|sample| sample["grid"] == grid && sample["transport"] == transport)
            .unwrap()
    };
    let count = |sample: &serde_json::Value, series: &str| {
        sample["series"][series].as_array().map_or(0, Vec::len)
    };
    assert_eq!(count(of("open", "tls"), "delay_ms"), 20);
    assert_eq!(count(of("wait", "quic"), "round_trip_ms"), 5);
    assert_eq!(count(of("connect", "quic"), "startup_ms"), 2);
    // The first connection has no ticket, the second one has.
    for transport in ["quic", "tls-early"] {
        let metrics = &of("connect", transport)["metrics"];
        assert_eq!(metrics["early_data_accepted"], 1.0, "{transport}");
    }

    // Of each QUIC connection there is a trace, and what figures show of it.
    let quic = of("connect", "quic");
    let traces = fs::read_dir(out.join("qlog")).unwrap().count();
    assert_eq!(traces, 2);
    let series = |name: &str| -> Vec<f64> {
        let values = quic["series"][name].as_array().unwrap().iter();
        values.map(|value| value.as_f64().unwrap()).collect()
    };
    let at_ms = series("flow_at_ms");
    assert!(at_ms.is_sorted() && at_ms[0] >= 0.0, "{at_ms:?}");
    let ended = quic["metrics"]["total_s"].as_f64().unwrap() * 1e3;
    assert!(*at_ms.last().unwrap() <= ended + 1e3, "{at_ms:?}");
    let (sent, acknowledged) = (series("flow_sent_bytes"), series("flow_acknowledged_bytes"));
    assert!(
        sent.iter()
            .zip(&acknowledged)
            .all(|(sent, got)| sent >= got)
    );
    assert!(acknowledged.iter().any(|bytes| *bytes > 1_200.0));
    assert!(series("flow_window_bytes").iter().any(|bytes| *bytes > 0.0));
    assert!(*series("flow_rtt_ms").last().unwrap() >= 25.0);
    assert_eq!(quic["in_force"]["congestion"], "cubic");
    assert_eq!(count(of("connect", "tls"), "flow_at_ms"), 0);

    // Brokers that let in nobody without a password or certificate have let these in.
    let known = all.iter().filter(|s| s["grid"] == "authentication");
    assert_eq!(known.count(), 7);
    let metrics = &of("authentication", "h3-certificate")["metrics"];
    let [all_bytes, largest, besides] = [
        "allocated_bytes",
        "largest_allocation_bytes",
        "allocated_besides_bytes",
    ]
    .map(|name| metrics[name].as_f64().unwrap());
    assert!(largest > 0.0 && (largest + besides - all_bytes).abs() < 0.5);

    // What is there is not overwritten; resumed, nothing is left to do.
    let again = lab(&run);
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("--resume"));
    let lines = fs::read_to_string(out.join("samples.jsonl")).unwrap();
    let half: String = lines.split_inclusive('\n').take(RUNS / 2).collect();
    fs::write(out.join("samples.jsonl"), half).unwrap();
    let mut resume = run.to_vec();
    resume.push("--resume");
    assert_ran(&lab(&resume));
    assert_eq!(samples(&out).len(), RUNS);

    let report = lab(&["report", path, "--with-unsound"]);
    let said = text(&report.stdout);
    assert!(report.status.success(), "{}", text(&report.stderr));
    assert!(said.contains("at least the link's delay"), "{said}");
    let html = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(html.contains("<svg ") && html.contains("compares no transports"));
    assert!(!html.contains("http-equiv") && !html.contains("src="));
    assert!(out.join("figures/tiny-1.svg").exists());
    let congestion = fs::read_to_string(out.join("figures/tiny-2.svg")).unwrap();
    assert!(congestion.contains("messages arrived"));
    assert!(!congestion.contains("no sound sample"));
    let csv = fs::read_to_string(out.join("samples.csv")).unwrap();
    assert_eq!(csv.lines().count(), RUNS + 1);
}

#[test]
fn a_broker_that_runs_already_is_measured_beside_ours() {
    if !has_rights() {
        return;
    }
    let broker = Broker::start(&["mqtts", "mqtt+quic"]);
    let authority = broker.folder.path().join("development-ca.pem");
    let [tls, quic] = [0, 1].map(|at| format!("{}?ca={}", broker.urls[at], authority.display()));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let mut run = vec!["run", CAMPAIGN, "--grid", "wait", "--no-calibration"];
    run.extend(["--broker", &tls, "--broker", &quic, "--out", path]);
    assert_ran(&lab(&run));
    let all = samples(folder.path());
    for sample in &all {
        let trips = sample["series"]["round_trip_ms"].as_array();
        let trips = trips.unwrap_or_else(|| panic!("{sample}"));
        assert_eq!(trips.len(), 5, "{sample}");
        // The link's 25 ms, before a broker that is beyond it.
        assert!(trips.iter().all(|ms| ms.as_f64() >= Some(25.0)), "{sample}");
    }
    let is_twin = |sample: &&serde_json::Value| sample["transport"].as_str().unwrap().contains('@');
    assert_eq!(all.iter().filter(is_twin).count(), 4, "{all:?}");
}

#[test]
fn a_program_that_speaks_the_devices_protocol_is_measured_and_published() {
    sterna();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("results");
    let published = folder.path().join("published");
    let [path, place] = [&out, &published].map(|path| path.to_str().unwrap());
    let mut run = vec!["run", CAMPAIGN, "--emulator", "relay", "--grid", "wait"];
    // This program is a device by itself; whose it is makes no difference.
    run.extend(["--device", LAB, "--out", path, "--publish", place]);
    assert_ran(&lab(&run));
    let all = samples(&out);
    let twins = || all.iter().filter(|s| s["transport"] == "quic@sterna-lab");
    assert_eq!(twins().count(), 2, "{all:?}");
    for sample in twins() {
        assert_eq!(
            sample["series"]["round_trip_ms"].as_array().unwrap().len(),
            5
        );
    }
    // Results keep the program's name and bytes, not its place.
    let manifest = fs::read_to_string(out.join("campaign.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    assert_eq!(manifest["devices"][0], "mqtt+quic=sterna-lab");
    assert_eq!(manifest["builds"].as_array().unwrap().len(), 3);

    assert!(published.join("report.md").exists());
    let packed = published.join("samples");
    assert!(packed.join("tiny/samples.jsonl.gz").exists());
    let packed = packed.to_str().unwrap();
    let export = lab(&["export", packed, "--format", "parquet", "--out", path]);
    assert!(export.status.success(), "{}", text(&export.stderr));
    let table = fs::read(out.join("tiny-runs.parquet")).unwrap();
    assert!(table.starts_with(b"PAR1") && table.ends_with(b"PAR1"));
    let wrong = lab(&[
        "run",
        CAMPAIGN,
        "--emulator",
        "relay",
        "--device",
        "/no/such/device",
    ]);
    assert!(text(&wrong.stderr).contains("/no/such/device"));
}

/// A campaign with another protocol than the broker's.
const RIVAL: &str = r#"
name = "rival"
version = 1
title = "A device of another protocol"
paper = "none"
[[transport]]
name = "tls"
label = "TLS"
scheme = "mqtts"
[[transport]]
name = "coap"
label = "CoAP"
scheme = "coap"
[[grid]]
name = "open"
links = ["wifi"]
transports = ["tls", "coap"]
payload_bytes = [32]
interval = ["5ms"]
repetitions = 1
workload = { kind = "open-loop", messages = 10 }
"#;

#[test]
fn a_rival_is_device_and_gateway_and_without_one_it_is_left_out() {
    sterna();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rival.toml");
    fs::write(&file, RIVAL).unwrap();
    let out = folder.path().join("results");
    let [file, path] = [&file, &out].map(|path| path.to_str().unwrap());
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rival.py");
    let run = ["run", file, "--emulator", "relay", "--out"];
    let alone = folder.path().join("alone");
    let output = lab(&[&run[..], &[alone.to_str().unwrap()]].concat());
    assert_ran(&output);
    let said = text(&output.stderr);
    assert!(
        said.contains("coap: not measured without --rival"),
        "{said}"
    );
    assert_eq!(samples(&alone).len(), 1);

    assert_ran(&lab(&[&run[..], &[path, "--rival", program]].concat()));
    let all = samples(&out);
    let rival = all.iter().find(|s| s["transport"] == "coap").unwrap();
    assert_ne!(rival["verdict"], "failed", "{rival}");
    let arrived = rival["metrics"]["arrived_ratio"].as_f64().unwrap();
    assert!((arrived - 1.0).abs() < 1e-9, "{rival}");
    assert_eq!(rival["series"]["delay_ms"].as_array().unwrap().len(), 10);
    let report = lab(&["report", path]);
    assert!(report.status.success(), "{}", text(&report.stderr));

    let wrong = lab(&[&run[..], &["elsewhere", "--rival", "/no/such/rival"]].concat());
    assert_eq!(wrong.status.code(), Some(1));
    assert!(text(&wrong.stderr).contains("/no/such/rival"));
}

/// Values of a sample's series.
fn series(sample: &serde_json::Value, name: &str) -> Vec<f64> {
    let values = sample["series"][name].as_array().into_iter().flatten();
    values.map(|value| value.as_f64().unwrap()).collect()
}

#[test]
fn a_fleet_connects_and_publishes_without_any_rights() {
    sterna();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let mut run = vec!["run", FLEET, "--emulator", "relay", "--grid", "fleet"];
    run.extend(["--out", path]);
    assert_ran(&lab(&run));
    let all = samples(folder.path());
    assert_eq!(all.len(), 1);
    let started = series(&all[0], "startup_ms");
    assert_eq!(started.len(), 20);
    assert!(started.iter().all(|ms| *ms >= 25.0), "{started:?}");
    assert_eq!(series(&all[0], "delay_ms").len(), 40);
    let metrics = &all[0]["metrics"];
    assert_eq!(metrics["arrived_ratio"], 1.0);
    // The last device called 95 ms after the first one.
    let all_s = metrics["all_connected_s"].as_f64().unwrap();
    assert!(all_s >= 0.12, "{metrics}");
    assert!(
        metrics["connecting_broker_cpu_s"].as_f64() > Some(0.0),
        "{metrics}"
    );
    assert_eq!(metrics["all_recovered_s"], serde_json::Value::Null);
}

#[test]
fn a_fleet_comes_back_after_a_power_cut_and_packets_pass_two_hops() {
    if !has_rights() {
        return;
    }
    sterna();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let mut run = vec!["run", FLEET, "--grid", "power-cut", "--grid", "reach"];
    run.extend(["--no-calibration", "--out", path]);
    assert_ran(&lab(&run));
    let all = samples(folder.path());
    let of = |grid: &str, transport: &str| {
        all.iter()
            .find(|sample| sample["grid"] == grid && sample["transport"] == transport)
            .unwrap()
    };
    for transport in ["tls", "quic"] {
        let sample = of("power-cut", transport);
        assert_eq!(series(sample, "recovered_ms").len(), 20, "{sample}");
        let metrics = &sample["metrics"];
        assert!(metrics["outage_s"].as_f64() >= Some(2.0), "{metrics}");
        assert!(metrics["all_recovered_s"].as_f64() > Some(0.0), "{metrics}");
        assert!(metrics["reconnections"].as_f64() >= Some(20.0), "{metrics}");
        assert!(
            metrics["recovering_bytes_down"].as_f64() > Some(1_000.0),
            "{metrics}"
        );
        assert!(
            metrics["broker_peak_rss_bytes"].as_f64() > Some(1e6),
            "{metrics}"
        );
    }
    for transport in ["tls", "tls-ipv6", "quic", "quic-ipv6"] {
        let delays = series(of("reach", transport), "delay_ms");
        assert_eq!(delays.len(), 20);
        assert!(delays.iter().all(|ms| *ms >= 62.5), "{delays:?}");
    }
    // What was negotiated is read off packets of either version.
    for transport in ["tls", "quic"] {
        let tls = |name: &str| of("reach", name)["in_force"]["tls"].clone();
        assert!(tls(transport).is_string());
        assert_eq!(tls(transport), tls(&format!("{transport}-ipv6")));
    }
    let bytes = |name: &str| of("reach", name)["metrics"]["bytes_per_message"].as_f64();
    assert!(bytes("tls-ipv6") > bytes("tls"));
}

#[test]
fn what_cannot_be_run_is_said() {
    let output = lab(&["run", "no-such-campaign"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("mqtt-fernandez-2020"));
    let folder = tempfile::tempdir().unwrap();
    let output = lab(&["report", folder.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no campaign's results"));
    let list = lab(&["campaigns"]);
    assert!(text(&list.stdout).contains("mqtt-jeddou-2022"));
}

/// A folder without results is named, with the command that makes them.
#[test]
fn a_report_of_nothing_says_how_there_would_be_one() {
    let folder = tempfile::tempdir().unwrap();
    let away = folder.path().join("away");
    for (at, why) in [
        (away.as_path(), "there is no such folder"),
        (folder.path(), "no campaign's results"),
    ] {
        for command in ["report", "export"] {
            let output = Command::new(LAB).arg(command).arg(at).output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{text}");
            let path = at.display().to_string();
            assert!(text.contains(&format!("{path}: {why}")), "{text}");
            assert!(
                text.contains(&format!("sterna-lab run CAMPAIGN --out {path}")),
                "{text}"
            );
        }
    }
}
