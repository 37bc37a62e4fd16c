//! `sterna serve` as its operator meets it: what a newcomer gets, and what a reload refuses.
#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::process::sterna;

/// A broker as a process of its own.
pub(crate) struct Served {
    child: Child,
    /// What it says on standard error, line by line.
    log: Receiver<String>,
    ready: serde_json::Value,
}

impl Served {
    fn start(folder: &Path, arguments: &[&str]) -> Self {
        Self::run(sterna(), folder, arguments)
    }

    pub(crate) fn run(mut command: Command, folder: &Path, arguments: &[&str]) -> Self {
        let ready = folder.join("ready.json");
        let mut child = command
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

    pub(crate) fn url(&self, at: usize) -> &str {
        self.ready["listeners"][at]["url"].as_str().unwrap()
    }

    /// Has it stop in order; whether it did.
    pub(crate) fn stops(mut self) -> bool {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        sent.success() && self.child.wait().unwrap().success()
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
    assert_eq!(early["trips"], 2, "{early}");
    assert_eq!(lines[0]["trips"], 4, "{}", lines[0]);
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
            Some("[authentication]\nanonymus = true\n"),
            "line 2, column 1; unknown field `anonymus`",
        ),
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

/// Publishes and subscribes as a person does, with a session that is kept.
struct Shell<'a>(&'a str);

impl Shell<'_> {
    fn publish(&self, qos: &str, text: &str) {
        let arguments = ["pub", "-L", self.0, "-t", "kept/a", "-q", qos, "-m", text];
        assert!(sterna().args(arguments).status().unwrap().success());
    }

    /// What comes to the session `keeper`, up to so many messages and seconds.
    fn receive(&self, count: &str, seconds: &str) -> Vec<String> {
        let arguments = [
            "sub", "-L", self.0, "-t", "kept/#", "-q", "2", "-i", "keeper",
        ];
        let output = sterna()
            .args(arguments)
            .args(["-c", "-C", count, "-W", seconds])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

fn signal(child: &mut Child, signal: &str) -> Option<i32> {
    let pid = child.id().to_string();
    let sent = Command::new("kill").args([signal, &pid]).status().unwrap();
    assert!(sent.success());
    child.wait().unwrap().code()
}

/// What was acknowledged is there after a kill, and after an orderly stop, which exits with 0.
#[test]
fn what_was_acknowledged_survives_kills_and_stops() {
    let folder = tempfile::tempdir().unwrap();
    // A small file, since the end of one that was not closed is searched.
    let config = folder.path().join("sterna.toml");
    fs::write(&config, "[store]\nsegment_bytes = 1048576\n").unwrap();
    let config = config.to_str().unwrap();
    let start = || {
        let _ = fs::remove_file(folder.path().join("ready.json"));
        let arguments = ["--config", config, "--listen", "mqtt://127.0.0.1:0"];
        Served::start(folder.path(), &arguments)
    };
    let mut broker = start();
    let opened = |broker: &Served| loop {
        let line = broker.log.recv_timeout(Duration::from_secs(30)).unwrap();
        if line.contains("store opened") {
            return line;
        }
    };
    let line = opened(&broker);
    assert!(line.contains("is_new=true"), "{line}");
    assert_eq!(Shell(broker.url(0)).receive("1", "1"), [""; 0]);
    for (round, (how, code)) in [("-KILL", None), ("-TERM", Some(0)), ("-KILL", None)]
        .into_iter()
        .enumerate()
    {
        Shell(broker.url(0)).publish("1", &format!("one {round}"));
        Shell(broker.url(0)).publish("2", &format!("two {round}"));
        assert_eq!(signal(&mut broker.child, how), code);
        broker = start();
        let line = opened(&broker);
        assert!(line.contains("sessions=1"), "{line}");
        let came = Shell(broker.url(0)).receive("10", "3");
        // What was acknowledged at QoS 1 just before the kill may come again, and nothing else.
        let (again, new) = came.split_at(came.len().saturating_sub(2));
        assert_eq!(new, [format!("one {round}"), format!("two {round}")]);
        assert!(again.iter().all(|text| text.starts_with("one")), "{came:?}");
    }
}

/// Clients over TCP take as many open files as they like, and the log still gets its next files.
#[test]
fn connections_leave_open_files_to_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("sterna.toml");
    fs::write(&config, "[store]\nsegment_bytes = 1048576\n").unwrap();
    let mut command = Command::new("sh");
    let program = sterna();
    (command.args(["-c", "ulimit -n 128; exec \"$0\" \"$@\""])).arg(program.get_program());
    let arguments = ["--config", config.to_str().unwrap(), "--shards", "1"];
    let listen = ["--listen", "mqtt://127.0.0.1:0"];
    let broker = Served::run(
        command,
        folder.path(),
        &[&arguments[..], &listen[..]].concat(),
    );
    let address = broker.url(0).trim_start_matches("mqtt://");
    assert_eq!(Shell(broker.url(0)).receive("1", "1"), [""; 0]);
    let (mut publisher, is_taken) = connect(address, "publisher");
    assert!(is_taken);
    let idle: Vec<_> = (0..150)
        .map(|number| connect(address, &format!("idle-{number}")))
        .collect();
    let taken = idle.iter().filter(|(_, is_taken)| *is_taken).count();
    // Half of the files, but for the publisher and a client that may not be gone yet.
    assert!((62..=63).contains(&taken), "{taken}");
    for number in 1..=40_u8 {
        let mut publish = vec![0x32, 0xaa, 0x8d, 0x06, 0, 6];
        publish.extend_from_slice(b"kept/1");
        publish.extend_from_slice(&[0, number]);
        publish.resize(publish.len() + 100_000, b'x');
        publisher.write_all(&publish).unwrap();
        let mut answer = [0; 4];
        publisher.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [0x40, 2, 0, number]);
    }
}

/// A client of MQTT 3.1.1, and whether the broker has taken it.
fn connect(address: &str, name: &str) -> (TcpStream, bool) {
    let mut client = TcpStream::connect(address).unwrap();
    client
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let mut packet = vec![0x10, 12 + name.len() as u8];
    packet.extend_from_slice(b"\0\x04MQTT\x04\x02\0\0\0");
    packet.push(name.len() as u8);
    packet.extend_from_slice(name.as_bytes());
    let mut answer = [0; 4];
    let is_taken = client.write_all(&packet).is_ok() && client.read_exact(&mut answer).is_ok();
    (client, is_taken && answer == [0x20, 2, 0, 0])
}

/// A store whose records are damaged is not taken for an empty one.
#[test]
fn a_store_that_cannot_be_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut broker = Served::start(folder.path(), &["--listen", "mqtt://127.0.0.1:0"]);
    signal(&mut broker.child, "-TERM");
    let records = folder.path().join("state/store/records.redb");
    fs::write(&records, "nothing that anybody could read").unwrap();
    let output = sterna()
        .args(["serve", "--listen", "mqtt://127.0.0.1:0", "--data-dir"])
        .arg(folder.path().join("state"))
        .output()
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("records.redb"), "{errors}");
}

/// Messages to systemd, in order.
#[test]
fn the_service_manager_is_told_how_far_the_broker_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    let patience = Some(Duration::from_secs(30));
    socket.set_read_timeout(patience).unwrap();
    let told = || {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).unwrap();
        let text = String::from_utf8(buffer[..length].to_vec()).unwrap();
        text.lines().next().unwrap().to_owned()
    };
    let mut command = sterna();
    command.env("NOTIFY_SOCKET", &path);
    let mut broker = Served::run(command, folder.path(), &["--listen", "mqtt://127.0.0.1:0"]);
    assert_eq!(told(), "READY=1");
    assert!(broker.reload().contains("reloaded"));
    assert_eq!(told(), "RELOADING=1");
    assert_eq!(told(), "READY=1");
    let pid = broker.child.id().to_string();
    assert!(Command::new("kill").arg(&pid).status().unwrap().success());
    assert_eq!(told(), "STOPPING=1");
    assert!(broker.child.wait().unwrap().success());
}

/// The audit log has a level of its own: it speaks where the rest of the log is silent, and is silent where
/// the rest speaks. Every line of it is found by the client's name.
#[test]
fn the_audit_log_has_its_own_level() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    fs::write(&users, "").unwrap();
    let file = folder.path().join("sterna.toml");
    let configuration = |level: &str, audit: &str| {
        let text = format!(
            "[[listener]]\nurl = 'mqtt://127.0.0.1:0'\n[[listener]]\nurl = 'mqtt://127.0.0.1:0'\n\
             anonymous = true\n[authentication]\npassword_file = '{}'\n[log]\nlevel = '{level}'\n\
             audit = '{audit}'\n",
            users.display()
        );
        fs::write(&file, text).unwrap();
    };
    for (level, audit, expected) in [
        ("error", "debug", &["login refused", "login"][..]),
        ("error", "info", &["login refused"]),
        ("error", "off", &[]),
    ] {
        configuration(level, audit);
        let arguments = ["--config", file.to_str().unwrap(), "--log-format", "json"];
        let mut broker = Served::start(folder.path(), &arguments);
        for listener in [0, 1] {
            let url = broker.url(listener);
            let arguments = ["pub", "--url", url, "-i", "device-7", "-t", "a", "-m", "x"];
            sterna().args(arguments).output().unwrap();
        }
        let pid = broker.child.id().to_string();
        assert!(Command::new("kill").arg(&pid).status().unwrap().success());
        assert!(broker.child.wait().unwrap().success());
        let lines: Vec<serde_json::Value> = (broker.log.iter())
            .map(|line| serde_json::from_str(&line).unwrap())
            .filter(|line: &serde_json::Value| line["client"] == "device-7")
            .collect();
        let messages: Vec<&str> = (lines.iter())
            .map(|line| line["message"].as_str().unwrap())
            .collect();
        assert_eq!(messages, expected, "{audit}");
        for line in &lines {
            assert_eq!(line["target"], "sterna::audit");
            assert_eq!(line["protocol"], "mqtt");
        }
        if let Some(refused) = lines.first() {
            assert_eq!(refused["reason"], "no_credentials");
            assert_eq!(refused["level"], "WARN");
        }
        fs::remove_file(folder.path().join("ready.json")).unwrap();
    }
}

/// Wake-ups of all threads of a process, so far.
#[cfg(target_os = "linux")]
fn wakeups(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of_task = |task: std::io::Result<fs::DirEntry>| {
        let status = fs::read_to_string(task.ok()?.path().join("status")).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    };
    tasks.filter_map(of_task).sum()
}

/// A gateway on a battery has a broker that mostly waits. Four looks a second by each thread that watches
/// something were 120 wake-ups in ten seconds.
#[cfg(target_os = "linux")]
#[test]
fn a_broker_without_clients_lets_the_processor_rest() {
    let folder = tempfile::tempdir().unwrap();
    let listeners = [
        "--listen",
        "mqtt://127.0.0.1:0",
        "--listen",
        "mqtt+quic://127.0.0.1:0",
        "--listen",
        "https://127.0.0.1:0",
    ];
    let served = Served::start(folder.path(), &listeners);
    // What follows a start ends: checkpoints, first looks.
    let mut seen = Vec::new();
    while seen.last().is_none_or(|woken| *woken > 30) {
        assert!(seen.len() < 6, "{seen:?} wake-ups, each in ten seconds");
        let before = wakeups(served.child.id());
        std::thread::sleep(Duration::from_secs(10));
        seen.push(wakeups(served.child.id()) - before);
    }
    assert_ne!(seen.last(), Some(&0), "it watches its files");
}
