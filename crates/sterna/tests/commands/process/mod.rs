//! A broker in this process, and the command as a process of its own, as its users run it.
#![allow(dead_code, reason = "each test program uses its part")]

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use sterna_server::Server;
use sterna_server::config::{Config, Listener};

/// A broker with its URLs.
pub(crate) struct Broker {
    server: Option<Server>,
    pub(crate) urls: Vec<String>,
    pub(crate) fingerprint: String,
    pub(crate) folder: tempfile::TempDir,
    /// What a subscriber says with `-d` when its subscription stands.
    ready: &'static [&'static str],
}

impl Broker {
    /// A broker with a listener for each scheme, in their order.
    pub(crate) fn start(
        schemes: &[&str],
        ready: &'static [&'static str],
        change: impl FnOnce(&mut Config, &Path),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listeners = schemes.iter();
        let mut config = Config {
            listeners: listeners
                .map(|it| Listener::at(&format!("{it}://127.0.0.1:0")))
                .collect(),
            data_directory: Some(folder.path().to_owned()),
            ..Config::default()
        };
        change(&mut config, folder.path());
        let server = Server::start(&config).unwrap();
        Self {
            urls: server.listeners().to_vec(),
            fingerprint: server.certificate().fingerprint,
            server: Some(server),
            folder,
            ready,
        }
    }

    /// A command line that connects to this broker.
    pub(crate) fn command(&self, transport: usize, name: &str, rest: &[&str]) -> Command {
        let mut command = sterna();
        let url = &self.urls[transport];
        command.args([name, "--url", url]);
        let is_plain = ["mqtt://", "ws://", "amqp://", "amqp+ws://", "http://"];
        if !is_plain.iter().any(|scheme| url.starts_with(scheme)) {
            command.args(["--fingerprint", &self.fingerprint]);
        }
        if url.starts_with("https://") {
            // HTTP/3 is on a port of its own here.
            command.arg("--no-http3");
        }
        command.args(rest);
        command
    }

    pub(crate) fn run(&self, transport: usize, name: &str, rest: &[&str]) -> Output {
        self.command(transport, name, rest).output().unwrap()
    }

    /// A subscriber whose subscription is in force already.
    pub(crate) fn subscriber(&self, transport: usize, rest: &[&str]) -> Subscriber {
        let mut command = self.command(transport, "sub", rest);
        command
            .arg("-d")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !self.ready.iter().any(|word| line.contains(word)) {
            line.clear();
            assert!(
                log.read_line(&mut line).unwrap() > 0,
                "the subscriber ended early"
            );
        }
        // Nobody reads the rest, which must not hold it up.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Subscriber { child }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown();
        }
    }
}

pub(crate) struct Subscriber {
    pub(crate) child: Child,
}

impl Subscriber {
    /// What it has printed when it ends, and its exit code.
    pub(crate) fn end(mut self) -> (String, i32) {
        let mut text = String::new();
        let mut stdout = self.child.stdout.take().unwrap();
        stdout.read_to_string(&mut text).unwrap();
        (text, self.child.wait().unwrap().code().unwrap())
    }

    /// What it has printed when it ends in order.
    pub(crate) fn output(self) -> String {
        let (text, code) = self.end();
        assert_eq!(code, 0);
        text
    }
}

/// The command, without settings from this process's environment.
pub(crate) fn sterna() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sterna"));
    for name in [
        "STERNA_URL",
        "STERNA_USERNAME",
        "STERNA_PASSWORD",
        "STERNA_TOKEN",
    ] {
        command.env_remove(name);
    }
    command
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

pub(crate) fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Address of a server that does this with its first client, and then waits for the client's end.
pub(crate) fn scripted(
    script: impl FnOnce(&mut std::net::TcpStream) + Send + 'static,
) -> std::net::SocketAddr {
    use std::io::Read as _;

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        script(&mut client);
        while client.read(&mut [0; 1_024]).is_ok_and(|bytes| bytes > 0) {}
    });
    address
}
