//! `sterna serve` as its operator meets it: what a newcomer gets, and what a reload refuses.
#![allow(clippy::unwrap_used, missing_docs)]

mod process;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use process::sterna;

/// A broker as a process of its own.
struct Served {
    child: Child,
    /// What it says on standard error, line by line.
    log: Receiver<String>,
    ready: serde_json::Value,
}

impl Served {
    fn start(folder: &Path, arguments: &[&str]) -> Self {
        let ready = folder.join("ready.json");
        let mut child = sterna()
            .arg("serve")
            .args(arguments)
            .arg("--data-dir")
            .arg(folder.join("state"))
            .arg("--ready-file")
            .arg(&ready)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (tell, log) = channel();
        let errors = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        // The file is there as a whole or not at all.
        while !ready.exists() {
            assert!(child.try_wait().unwrap().is_none(), "it ended");
            std::thread::sleep(Duration::from_millis(10));
        }
        let ready = serde_json::from_str(&fs::read_to_string(&ready).unwrap()).unwrap();
        Self { child, log, ready }
    }

    fn url(&self, at: usize) -> &str {
        self.ready["listeners"][at]["url"].as_str().unwrap()
    }

    /// Sends SIGHUP, and waits for the line that says what came of it.
    fn reload(&self) -> String {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-HUP", &pid]).status().unwrap();
        assert!(sent.success());
        loop {
            let line = self.log.recv_timeout(Duration::from_secs(30)).unwrap();
            if line.contains("reload") {
                return line;
            }
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A broker that was told nothing but its ports takes early data, and a message of QoS 1 is with it half a
/// round trip after the first datagram has left.
#[test]
fn a_newcomer_has_early_data() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Served::start(folder.path(), &["--listen", "mqtt+quic://127.0.0.1:0"]);
    let fingerprint = broker.ready["fingerprint"].as_str().unwrap();
    let output = sterna()
        .args(["handshake", broker.url(0), "--json", "--delay", "150"])
        .args(["--fingerprint", fingerprint])
        .output()
        .unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{told}");
    let lines = told.lines();
    let lines: Vec<serde_json::Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let early = lines.iter().find(|line| line["handshake"] == "QUIC, 0-RTT");
    let early = early.unwrap();
    assert_eq!(early["early_data_accepted"], true, "{early}");
    assert_eq!(
        early["up_packets"], 1,
        "nothing waited for an answer: {early}"
    );
    // The message was not held until the handshake's end, which comes a round trip later.
    let of_full = &lines[0]["round_trips_to_broker"];
    let difference = of_full.as_f64().unwrap() - early["round_trips_to_broker"].as_f64().unwrap();
    assert!(difference > 0.5, "{early} {of_full}");
}

/// Attack row 34: a file that an editor has emptied, or a disk that was full.
#[test]
fn an_emptied_or_unreadable_configuration_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let users = path("users");
    fs::write(&users, "").unwrap();
    let file = path("sterna.toml");
    let good = format!(
        "[[listener]]\nurl = 'mqtt://127.0.0.1:0'\n[authentication]\npassword_file = '{}'\n",
        users.display()
    );
    fs::write(&file, &good).unwrap();
    let broker = Served::start(folder.path(), &["--config", file.to_str().unwrap()]);
    let gets_in = || {
        let publish = [
            "pub",
            "--url",
            broker.url(0),
            "-t",
            "a",
            "-m",
            "x",
            "-q",
            "1",
        ];
        let output = sterna().args(publish).output().unwrap();
        output.status.success()
    };
    assert!(!gets_in());
    for (contents, named) in [
        (Some(""), "now it is"),
        (Some("# nothing\n"), "now it is"),
        (
            Some("[authentication]\n"),
            "authentication.anonymous = true",
        ),
        (Some("[[listener]\n"), "sterna.toml"),
        (
            Some("[authentication]\npassword_file = '/nowhere'\n"),
            "/nowhere",
        ),
        (None, "cannot read"),
    ] {
        match contents {
            Some(contents) => fs::write(&file, contents).unwrap(),
            None => fs::remove_file(&file).unwrap(),
        }
        let line = broker.reload();
        assert!(
            line.contains("reload refused") && line.contains(named),
            "{line}"
        );
        assert!(!gets_in(), "{contents:?}");
    }
    fs::write(&file, good + "anonymous = true\n").unwrap();
    let line = broker.reload();
    assert!(line.contains("reloaded"), "{line}");
    let opened = (0..100).any(|_| gets_in());
    assert!(opened, "the explicit word has no effect");
}

/// Attack row 39: two brokers on one directory, and none at all.
#[test]
fn a_broker_needs_a_directory_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Served::start(folder.path(), &["--listen", "mqtt://127.0.0.1:0"]);
    let second = sterna()
        .args(["serve", "--listen", "mqtt://127.0.0.1:0", "--data-dir"])
        .arg(folder.path().join("state"))
        .output()
        .unwrap();
    let errors = String::from_utf8(second.stderr).unwrap();
    assert!(!second.status.success());
    assert!(
        errors.contains("another broker that is running"),
        "{errors}"
    );
    drop(broker);
    let mut nowhere = sterna();
    nowhere.args(["serve", "--listen", "mqtt://127.0.0.1:0"]);
    for name in ["HOME", "XDG_STATE_HOME", "STATE_DIRECTORY"] {
        nowhere.env_remove(name);
    }
    let output = nowhere.output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(
        errors.contains("set data_directory (or --data-dir)"),
        "{errors}"
    );
}
