//! Words and exit codes of the client commands where their first connection does not come about.
#![allow(clippy::unwrap_used)] // it is all test

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{TcpListener, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::process::{Broker, code, stderr, sterna};

const UNREACHABLE: i32 = 14;
const INTERRUPTED: i32 = 27;

/// Runs a command with everything that `pub`, `sub` and `request` need.
fn run(command: &str, rest: &[&str]) -> Output {
    let mut sterna = sterna();
    sterna.arg(command).args(rest).stdin(Stdio::null());
    match command {
        "pub" => sterna.args(["-t", "a", "-m", "x", "-q", "1"]),
        "request" => sterna.args(["-t", "a", "-m", "x"]),
        _ => sterna.args(["-t", "a"]),
    };
    sterna.output().unwrap()
}

fn port_of(url: &str) -> &str {
    url.rsplit_once(':').unwrap().1
}

/// The port of another protocol ends each command at once. The code is the manual's, and the text says what may be
/// wrong.
#[test]
fn a_port_of_another_protocol_is_told_and_is_unreachable() {
    let schemes = ["mqtt", "amqp", "http", "mqtts", "https"];
    let broker = Broker::start(&schemes, &[], |_, _| {});
    let at = |scheme: &str, listener: &str| {
        let number = schemes.iter().position(|it| *it == listener).unwrap();
        format!("{scheme}://127.0.0.1:{}", port_of(&broker.urls[number]))
    };
    for (scheme, listener, reason) in [
        ("mqtt", "mqtts", "mqtts://"),
        ("mqtt", "amqp", "speaks AMQP"),
        ("mqtt", "http", "speaks HTTP"),
        ("amqp", "mqtt", "another protocol"),
        ("amqp", "mqtts", "amqps://"),
        ("http", "mqtt", "not speak HTTP"),
        ("http", "amqp", "speaks AMQP"),
        ("http", "https", "https://"),
        ("ws", "mqtt", "not speak HTTP"),
    ] {
        let url = at(scheme, listener);
        for command in ["pub", "sub", "request"] {
            let output = run(command, &["--url", &url]);
            let text = stderr(&output);
            assert_eq!(code(&output), UNREACHABLE, "{command} {url}: {text}");
            assert!(text.contains(reason), "{command} {url}: {text}");
            assert!(!text.contains("trying again"), "{command} {url}: {text}");
        }
    }
    for (listener, reason) in [
        ("mqtt", "not speak HTTP"),
        ("https", "https://"),
        ("http", "no admin listener"),
    ] {
        let url = at("admin", listener);
        let output = sterna().args(["admin", "me", "-L", &url]).output().unwrap();
        let text = stderr(&output);
        assert_eq!(code(&output), UNREACHABLE, "{url}: {text}");
        assert!(text.contains(reason), "{url}: {text}");
    }
    let url = format!("{}/foo", at("ws", "http"));
    let output = run("sub", &["--url", &url]);
    assert_eq!(code(&output), UNREACHABLE);
    assert!(stderr(&output).contains("/mqtt"), "{}", stderr(&output));
}

/// A certificate of nobody, with its key.
fn stranger(folder: &Path) -> [String; 2] {
    let pair = rcgen::generate_simple_self_signed(vec!["stranger".to_owned()]).unwrap();
    [
        ("own.pem", pair.cert.pem()),
        ("own.key", pair.signing_key.serialize_pem()),
    ]
    .map(|(name, text)| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    })
}

#[test]
fn a_refused_certificate_is_a_failure_of_tls() {
    let schemes = ["https", "h3", "mqtts", "mqtt+quic", "amqps", "amqp+quic"];
    let broker = Broker::start(&schemes, &[], |config, folder| {
        let [certificate, _] = stranger(folder);
        config.tls.client_ca = Some(certificate.into());
        config.tls.require_client_certificate = true;
    });
    let folder = tempfile::tempdir().unwrap();
    let [certificate, key] = stranger(folder.path());
    for (number, scheme) in schemes.iter().enumerate() {
        for command in ["pub", "sub", "request"] {
            let mut rest = vec!["--url", &broker.urls[number]];
            rest.extend(["--fingerprint", &broker.fingerprint]);
            rest.extend(["--cert", &certificate, "--key", &key]);
            if *scheme == "https" {
                rest.push("--no-http3");
            }
            let output = run(command, &rest);
            let text = stderr(&output);
            assert_eq!(code(&output), 8, "{command} {scheme}: {text}");
            assert!(!text.contains("trying again"), "{command} {scheme}: {text}");
        }
    }
    // The other way round: an authority that is not the broker's.
    for (number, scheme) in schemes.iter().enumerate() {
        let rest = ["--url", &broker.urls[number], "--cafile", &certificate];
        let output = run("sub", &rest);
        let text = stderr(&output);
        assert_eq!(code(&output), 8, "{scheme}: {text}");
        assert!(
            text.contains("no authority of --cafile"),
            "{scheme}: {text}"
        );
    }
}

#[test]
fn a_refusal_has_the_number_of_its_version_of_mqtt() {
    let broker = Broker::start(&["mqtt"], &[], |config, _| {
        config.authentication.anonymous = Some(false);
    });
    for (version, its_code, number) in [("311", 5, "return code 5"), ("5", 135, "0x87")] {
        let output = run("sub", &["--url", &broker.urls[0], "-V", version]);
        let text = stderr(&output);
        assert_eq!(code(&output), its_code, "{text}");
        assert!(text.contains(number), "{text}");
    }
}

/// A place where nobody answers, and what tells that a client is about to connect there.
enum Silent {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

impl Silent {
    fn new(scheme: &str) -> Self {
        if ["mqtt+quic", "amqp+quic", "h3"].contains(&scheme) {
            Self::Udp(UdpSocket::bind("127.0.0.1:0").unwrap())
        } else {
            Self::Tcp(TcpListener::bind("127.0.0.1:0").unwrap())
        }
    }

    fn url(&self, scheme: &str) -> String {
        let address = match self {
            Self::Tcp(listener) => listener.local_addr(),
            Self::Udp(socket) => socket.local_addr(),
        };
        format!("{scheme}://{}", address.unwrap())
    }

    /// Waits for a client, which has what is returned as long as it connects.
    fn wait(&self) -> Option<std::net::TcpStream> {
        match self {
            Self::Tcp(listener) => Some(listener.accept().unwrap().0),
            Self::Udp(socket) => {
                socket.recv_from(&mut [0; 2_048]).unwrap();
                None
            }
        }
    }
}

fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args([name, &pid])
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn a_signal_ends_a_client_that_connects() {
    for scheme in [
        "mqtt",
        "mqtts",
        "ws",
        "mqtt+quic",
        "amqp",
        "amqps",
        "amqp+quic",
        "http",
        "https",
        "h3",
    ] {
        for (command, name) in [("sub", "-INT"), ("request", "-TERM"), ("sub", "-TERM")] {
            let silent = Silent::new(scheme);
            let mut sterna = sterna();
            sterna.args([command, "--url", &silent.url(scheme), "-t", "a"]);
            if command == "request" {
                sterna.args(["-m", "x"]);
            }
            if scheme == "https" {
                sterna.arg("--no-http3");
            }
            let mut child = sterna.stderr(Stdio::piped()).spawn().unwrap();
            let _connection = silent.wait();
            signal(&child, name);
            let mut text = String::new();
            child
                .stderr
                .take()
                .unwrap()
                .read_to_string(&mut text)
                .unwrap();
            let ended = child.wait().unwrap().code();
            assert_eq!(
                ended,
                Some(INTERRUPTED),
                "{scheme} {command} {name}: {text}"
            );
        }
    }
}

/// The reader of the output goes after the first line, or before any.
#[test]
fn a_closed_pipe_is_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    let tokens = folder.path().join("tokens");
    let (users, tokens) = (users.to_str().unwrap(), tokens.to_str().unwrap());
    for arguments in [
        &["handshake", "--json", "--delay", "1", "--connections", "1"][..],
        &["handshake", "--delay", "1", "--connections", "1"],
        &["passwd", "-c", "-b", users, "ann", "secret"],
        &["token", "add", tokens, "ann"],
        &["config", "check"],
        &["config", "explain", "store"],
        &["config", "init", "-"],
        &["tune", "--rtt", "40ms", "--rate", "1Mbit"],
        &["completions", "bash"],
    ] {
        let mut child = sterna()
            .args(arguments)
            .current_dir(folder.path())
            .env("STERNA__DATA_DIRECTORY", folder.path().join("state"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let mut text = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        let ended = child.wait().unwrap().code();
        assert!(!text.contains("panicked"), "{arguments:?}: {text}");
        assert_eq!(ended, Some(0), "{arguments:?}: {text}");
    }
}

/// A broker as a process of its own, which can be killed.
struct Served(Child);

impl Served {
    fn start(folder: &Path, listen: &str) -> (Self, String) {
        let ready = folder.join("ready.json");
        let _ = std::fs::remove_file(&ready);
        let mut child = sterna()
            .args(["serve", "--listen", listen, "--shards", "2", "--data-dir"])
            .arg(folder.join("state"))
            .arg("--ready-file")
            .arg(&ready)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        while !ready.exists() {
            assert!(child.try_wait().unwrap().is_none(), "it ended");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let ready = std::fs::read_to_string(&ready).unwrap();
        let ready: serde_json::Value = serde_json::from_str(&ready).unwrap();
        let url = ready["listeners"][0]["url"].as_str().unwrap().to_owned();
        (Self(child), url)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A client that sends anything to a broker that was killed and is back learns at once that its connection is gone.
/// Only the holder of the data directory can make the reset that says so.
#[test]
fn a_broker_that_was_killed_resets_connections_when_it_is_back() {
    let folder = tempfile::tempdir().unwrap();
    for (listen, ready) in [
        ("amqp+quic://127.0.0.1:0", "link attached"),
        ("mqtt+quic://127.0.0.1:0", "request answered"),
    ] {
        let (broker, url) = Served::start(folder.path(), listen);
        let mut child = sterna()
            .args([
                "sub",
                "--url",
                &url,
                "-t",
                "a",
                "-k",
                "2",
                "-d",
                "--insecure",
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap())
            .lines()
            .map(Result::unwrap);
        assert!(log.any(|line| line.contains(ready)), "{url}");
        drop(broker);
        let (_broker, again) = Served::start(folder.path(), &url);
        assert_eq!(url, again);
        let told = log.find(|line| line.contains("trying again")).unwrap();
        assert!(told.contains("reset"), "{told}");
        assert!(log.any(|line| line.contains("connected again")), "{url}");
        signal(&child, "-INT");
        assert_eq!(log.find(|line| line.contains("protocol")), None);
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}
