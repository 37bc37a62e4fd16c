//! `sterna admin` against a broker that runs as a process of its own.
#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::Value;

use crate::process::{code, stderr, stdout, sterna};

/// A broker with an MQTT and an admin listener.
struct Served {
    child: Child,
    log: Receiver<String>,
    mqtt: String,
    admin: String,
    folder: tempfile::TempDir,
}

impl Served {
    /// `configuration` goes behind the listeners.
    fn start(configuration: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sterna.toml");
        let listeners =
            "[[listener]]\nurl = 'mqtt://127.0.0.1:0'\n[[listener]]\nurl = 'admin://127.0.0.1:0'\n";
        let state = folder.path().join("state");
        let head = format!("shards = 2\ndata_directory = '{}'\n", state.display());
        fs::write(&file, format!("{head}{listeners}{configuration}")).unwrap();
        let ready = folder.path().join("ready.json");
        let mut child = sterna()
            .args(["serve", "--config"])
            .arg(&file)
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
        while !ready.exists() {
            let ended = child.try_wait().unwrap();
            assert!(
                ended.is_none(),
                "it ended: {:?}",
                log.try_iter().collect::<Vec<_>>()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        let ready: Value = serde_json::from_str(&fs::read_to_string(&ready).unwrap()).unwrap();
        let url = |at: usize| ready["listeners"][at]["url"].as_str().unwrap().to_owned();
        Self {
            child,
            log,
            mqtt: url(0),
            admin: url(1),
            folder,
        }
    }

    fn file(&self) -> std::path::PathBuf {
        self.folder.path().join("sterna.toml")
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = sterna();
        command
            .arg("admin")
            .args(arguments)
            .args(["-L", &self.admin]);
        command.output().unwrap()
    }

    /// Runs a command that succeeds, and returns what it prints.
    fn done(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(code(&output), 0, "{arguments:?}: {}", stderr(&output));
        stdout(&output).to_owned()
    }

    /// Runs a command that succeeds without output, and returns what it says on standard error.
    fn told(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!((code(&output), stdout(&output)), (0, ""), "{arguments:?}");
        stderr(&output)
    }

    /// As [`Served::done`], with one line of JSON for each entry.
    fn json(&self, arguments: &[&str]) -> Vec<Value> {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
        let text = self.done(&arguments);
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Waits for a line of the log.
    fn logged(&self, words: &[&str]) -> String {
        loop {
            let line = self.log.recv_timeout(Duration::from_secs(30)).unwrap();
            if words.iter().all(|word| line.contains(word)) {
                return line;
            }
        }
    }

    /// A client that stays connected.
    fn subscriber(&self, name: &str) -> Child {
        let mut child = sterna()
            .args([
                "sub", "--url", &self.mqtt, "-t", "t/#", "-q", "1", "-i", name, "-d", "-c",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("request answered") {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "it ended early");
        }
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        child
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The limits are lower than what commands ask for at once.
const OPEN: &str = "[authorization]\nadmins = ['anonymous']\n[admin]\nmaximum_page = 2\nmaximum_changes = 1\n[[amqp.queue]]\nname = 'dead'\n[[amqp.queue]]\nname = 'orders'\n";

#[test]
fn an_operator_sees_and_changes_what_is_in_a_broker() {
    let broker = Served::start(OPEN);
    let mut client = broker.subscriber("device-1");
    let text = broker.done(&["clients", "list"]);
    assert!(
        text.starts_with("ID ") && text.contains("device-1"),
        "{text}"
    );
    let clients = broker.json(&["clients", "list", "device-1"]);
    assert_eq!(clients.len(), 1);
    assert_eq!(clients[0]["subscriptions"], 1);
    assert!(
        broker
            .done(&["clients", "show", "device-1"])
            .contains("rtt_us")
    );
    let id = clients[0]["id"].as_str().unwrap();
    assert!(broker.done(&["clients", "show", id]).contains("device-1"));
    for (missing, why) in [
        (
            &["clients", "show", "nobody"][..],
            "no client is connected as nobody",
        ),
        (
            &["clients", "disconnect", "nobody"],
            "no client is connected as nobody",
        ),
        (&["sessions", "show", "nobody"], "there is no such session"),
        (&["unban", "99"], "there is no ban of this number"),
    ] {
        let output = broker.run(missing);
        assert_eq!(code(&output), 144, "{missing:?}");
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    }
    assert!(
        broker
            .done(&["sessions", "subscriptions", "device-1"])
            .contains("t/#")
    );
    assert_eq!(
        broker.json(&["subscriptions"]).len(),
        3,
        "two are of queues"
    );
    for arguments in [
        &["subscriptions", "--topic", "t/x y"][..],
        &["subscriptions", "--filter", "t/#"],
    ] {
        let found = broker.json(arguments);
        assert_eq!(found.len(), 1, "{arguments:?}: {found:?}");
        assert_eq!(found[0]["session"], "device-1");
    }
    assert_eq!(
        broker
            .done(&["subscriptions", "--topic", "u"])
            .lines()
            .count(),
        1
    );
    assert_eq!(broker.json(&["topic", "t/1"])[0]["matched"], 1);
    assert_eq!(broker.json(&["clients", "list", "--by", "ann"]).len(), 0);
    assert_eq!(
        broker.told(&["clients", "disconnect", "device-1"]),
        "sterna: device-1 is disconnected\n"
    );
    let line = broker.logged(&["admin action", "disconnect"]);
    assert!(
        line.contains("device-1") && line.contains("role=\"admin\""),
        "{line}"
    );
    client.kill().unwrap();
    client.wait().unwrap();
    assert_eq!(
        broker.told(&["sessions", "end", "device-1"]),
        "sterna: the session device-1 has ended\n"
    );
    assert!(
        broker
            .json(&["sessions", "list"])
            .iter()
            .all(|session| session["name"] != "device-1")
    );

    for number in 0..3 {
        let text = format!("letter {number}");
        broker.done(&["publish", "-t", "queue/dead", "-m", &text, "-q", "1"]);
    }
    assert_eq!(broker.json(&["queues", "peek", "dead"]).len(), 3);
    broker.done(&[
        "queues",
        "move",
        "dead",
        "--to",
        "orders",
        "--messages",
        "2",
    ]);
    assert!(
        broker
            .done(&["queues", "peek", "orders"])
            .contains("letter 1")
    );
    let purged = broker.json(&["queues", "purge", "dead"]);
    assert_eq!(
        (&purged[0]["messages"], &purged[0]["left"]),
        (&1.into(), &0.into())
    );
    let queues = broker.json(&["queues", "list"]);
    assert_eq!(queues.len(), 2, "{queues:?}");

    broker.done(&["publish", "-t", "house/door", "-m", "open", "-r"]);
    assert!(
        broker
            .done(&["retained", "list", "house/#"])
            .contains("open")
    );
    assert!(
        broker
            .done(&["retained", "show", "house/door"])
            .contains("open")
    );
    assert_eq!(
        broker.told(&["retained", "delete", "house/door"]),
        "sterna: the retained message of house/door is deleted\n"
    );
    assert_eq!(code(&broker.run(&["retained", "show", "house/door"])), 0x90);
    for (arguments, word) in [
        (&["node"][..], "uptime_s"),
        (&["store"], "segments"),
        (&["memory"], "resident_bytes"),
        (&["certificates"], "CN="),
        (&["openapi"], "\"openapi\": \"3.1.0\""),
    ] {
        let text = broker.done(arguments);
        assert!(text.contains(word), "{arguments:?}: {text}");
    }
}

/// Whatever the API can do, a command does, and the page about it says which.
#[test]
fn every_route_has_a_command() {
    let broker = Served::start(OPEN);
    let document: Value = serde_json::from_str(&broker.done(&["openapi"])).expect("JSON");
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/admin.md");
    let page = fs::read_to_string(page).expect("the page");
    let mut routes = 0;
    for (path, methods) in document["paths"].as_object().expect("paths") {
        let Some(path) = path.strip_prefix("/admin/v1") else {
            continue;
        };
        if path == "/openapi.json" {
            continue;
        }
        for method in methods.as_object().expect("methods").keys() {
            if method == "parameters" {
                continue;
            }
            routes += 1;
            let route = format!("| `{} {path}", method.to_uppercase());
            let row = page.lines().find(|line| {
                let rest = line.strip_prefix(&route);
                rest.is_some_and(|rest| rest.starts_with(['?', '`']))
            });
            let row = row.unwrap_or_else(|| panic!("no row for {route}"));
            let command = row
                .split('|')
                .nth(2)
                .expect("a command")
                .trim()
                .trim_matches('`');
            let words: Vec<&str> = command.split(' ').collect();
            let is_name = |word: &&&str| word.bytes().all(|byte| byte.is_ascii_lowercase());
            let mut words: Vec<&str> = words.iter().take_while(is_name).copied().collect();
            if words.first() == Some(&"sterna") {
                words.remove(0);
            } else {
                words.insert(0, "admin");
            }
            let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_sterna"));
            let help = program.args(&words).arg("--help").output().expect("runs");
            let text = String::from_utf8_lossy(&help.stdout).into_owned();
            let usage = format!("Usage: sterna {}", words.join(" "));
            assert!(
                help.status.success() && text.contains(&usage),
                "{route}: {text}"
            );
        }
    }
    assert!(routes > 25, "{routes}");
}

/// A ban of nobody would be one of everybody: it is refused before the broker is asked.
#[test]
fn a_ban_names_whom_it_is_about() {
    let broker = Served::start(OPEN);
    let refused = broker.run(&["ban", "--reason", "scans ports"]);
    assert_eq!(code(&refused), 1);
    let why = stderr(&refused);
    for flag in ["--ban-user", "--ban-client", "--ban-address"] {
        assert!(why.contains(flag), "{why}");
    }
    let banned = broker.json(&["ban", "--ban-address", "203.0.113.9", "--reason", "scans"]);
    assert_eq!(banned[0]["address"], "203.0.113.9");
    // Numbers for programs, dates for people.
    let since = banned[0]["since_ms"].as_u64();
    assert!(since.is_some_and(|since| since > 1_600_000_000_000));
    let text = broker.done(&["bans"]);
    assert!(
        text.lines().nth(1).is_some_and(|row| row.contains("Z  -")),
        "{text}"
    );
    let id = banned[0]["id"].as_str().unwrap();
    assert_eq!(
        broker.told(&["unban", id]),
        format!("sterna: ban {id} is lifted\n")
    );
}

#[test]
fn orders_reach_the_process() {
    let mut broker = Served::start(OPEN);
    assert_eq!(
        broker.json(&["reload"])[0]["unchanged"],
        serde_json::json!([])
    );
    broker.logged(&["reloaded"]);
    broker.logged(&["admin action", "reload"]);
    let file = broker.file();
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{good}[unknown]\n")).unwrap();
    let refused = broker.run(&["reload"]);
    assert_eq!(code(&refused), 0x80);
    let error = stderr(&refused);
    assert!(
        error.contains("unknown") && error.contains("127.0.0.1:"),
        "{error}"
    );
    broker.logged(&["admin action refused", "reload"]);
    assert_eq!(broker.told(&["drain"]), "sterna: the broker is ending\n");
    let ended = broker.child.wait().unwrap();
    assert_eq!(ended.code(), Some(0));
    let gone = broker.run(&["node"]);
    assert_eq!(code(&gone), 14, "{}", stderr(&gone));
}

#[test]
fn roles_and_credentials_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    let made = sterna()
        .args(["passwd", "-c", "-b", "--iterations", "4096"])
        .arg(&users)
        .args(["ann", "secret"])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", stderr(&made));
    let configuration = format!(
        "[authentication]\npassword_file = '{}'\n[admin]\noperators = ['ann']\n",
        users.display()
    );
    let broker = Served::start(&configuration);
    assert_eq!(code(&broker.run(&["node"])), 0x86, "without credentials");
    assert_eq!(
        code(&broker.run(&["node", "-u", "ann", "-P", "wrong"])),
        0x86
    );
    assert_eq!(code(&broker.run(&["node", "-u", "ann", "-P", "secret"])), 0);
    let refused = broker.run(&["reload", "-u", "ann", "-P", "secret"]);
    assert_eq!(code(&refused), 0x87);
    assert!(
        stderr(&refused).contains("role admin"),
        "{}",
        stderr(&refused)
    );
    // The login was good: what was refused is the action.
    let mut audit = Vec::new();
    while !audit.iter().any(|line: &String| line.contains("reload")) {
        audit.push(broker.logged(&[" WARN ", "refused"]));
    }
    let line = audit.pop().unwrap();
    for word in [
        "admin action refused",
        "user=\"ann\"",
        "role=\"operator\"",
        "needs the role admin",
    ] {
        assert!(line.contains(word), "{line}");
    }
    assert_eq!(audit.len(), 2, "the two wrong logins: {audit:?}");
    let wrong = sterna()
        .args(["admin", "node", "-L", "mqtt://localhost"])
        .output()
        .unwrap();
    assert_eq!(code(&wrong), 1);
}

#[test]
fn a_trace_shows_the_way_of_messages() {
    let broker = Served::start(OPEN);
    let mut client = broker.subscriber("device-1");
    let mut command = sterna();
    command.args([
        "trace",
        "--client",
        "device-1",
        "-L",
        &broker.admin,
        "-C",
        "3",
    ]);
    let mut trace = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(trace.stdout.take().unwrap()).lines();
    let first = told.next().unwrap().unwrap();
    assert!(first.contains("watching"), "{first}");
    broker.done(&["publish", "-t", "t/1", "-m", "x", "-q", "1"]);
    let lines: Vec<String> = told.map_while(Result::ok).collect();
    assert!(trace.wait().unwrap().success());
    let line = |at: usize, word: &str| {
        let line = &lines[at];
        assert!(line.contains(word) && line.contains("t/1"), "{lines:?}");
    };
    line(0, "queued");
    line(1, "sent");
    line(2, "acknowledged");
    let over = sterna()
        .args(["trace", "-t", "#", "-L", &broker.admin, "-W", "0.1"])
        .output()
        .unwrap();
    assert_eq!(code(&over), 27);
    let nothing = sterna().arg("trace").output().unwrap();
    assert_eq!(code(&nothing), 1);
    for flag in ["--client", "-t", "--events"] {
        assert!(stderr(&nothing).contains(flag), "{}", stderr(&nothing));
    }
    client.kill().unwrap();
    client.wait().unwrap();
}

#[test]
fn the_help_of_operators_and_counts_of_nothing() {
    let help = sterna().args(["admin", "--help"]).output().unwrap();
    assert!(!stdout(&help).contains("With -h"), "{}", stdout(&help));
    for arguments in [
        &["admin", "clients", "list", "--limit", "0"][..],
        &["trace", "-t", "a", "-C", "0"],
        &["sub", "-t", "a", "-C", "0"],
        &["request", "-t", "a", "-m", "x", "-C", "0"],
    ] {
        let refused = sterna().args(arguments).output().unwrap();
        assert_eq!(code(&refused), 1, "{arguments:?}: {}", stderr(&refused));
        assert!(stderr(&refused).contains("'0'"), "{}", stderr(&refused));
    }
}

/// Without a terminal there is one picture, of a broker that runs.
#[test]
fn top_shows_clients_and_rates_of_a_running_broker() {
    let broker = Served::start(OPEN);
    let mut client = broker.subscriber("device-1");
    let output = sterna()
        .args(["top", "-L", &broker.admin, "-n", "0.1", "--sort", "bytes"])
        .output()
        .unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("Clients (1) by bytes"), "{text}");
    assert!(
        text.contains("device-1") && text.contains("clients 1 connected"),
        "{text}"
    );
    client.kill().unwrap();
    client.wait().unwrap();
    let gone = sterna()
        .args(["top", "-L", "admin://127.0.0.1:1"])
        .output()
        .unwrap();
    assert_eq!(code(&gone), 14);
    assert!(stderr(&gone).contains("127.0.0.1:1"), "{}", stderr(&gone));
}

#[test]
fn the_rules_in_force_are_listed_and_explained() {
    let served = Served::start(
        "[authorization]\nadmins = ['anonymous']\n\
         [[authorization.rule]]\neffect = 'deny'\ntopics = ['secret/#']\n",
    );
    assert_eq!(served.json(&["me"])[0]["role"], "admin");
    let rules = served.json(&["rules", "list"]);
    assert_eq!(
        (rules.len(), &rules[0]["topics"][0]),
        (1, &"secret/#".into())
    );
    // As `sterna acl explain` ends.
    let refused = ["rules", "explain", "publish", "secret/a", "--by", "ann"];
    let told = served.run(&refused);
    assert_eq!(code(&told), 2, "{}", stderr(&told));
    assert!(stdout(&told).starts_with("refused: rule 1 "), "{told:?}");
    let told = served.run(&[&refused[..], &["--json"]].concat());
    assert_eq!(code(&told), 2, "{}", stderr(&told));
    let told: Value = serde_json::from_str(stdout(&told)).unwrap();
    assert_eq!(told["decision"], "refused");
    assert_eq!(told["reason"]["rule"], 1);
    let told = served.json(&["rules", "explain", "subscribe", "open/#"]);
    assert_eq!(told[0]["reason"]["by"], "default");
    assert_eq!(told[0]["depends_on"], Value::Array(Vec::new()));
}
