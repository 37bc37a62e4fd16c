//! A broker as a process of its own.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The longest that anything awaited may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const MIB: u64 = 1 << 20;

/// A broker as a process of its own; ended when dropped.
pub(crate) struct Broker {
    pub(crate) child: Child,
    pub(crate) addresses: Vec<SocketAddr>,
    folder: tempfile::TempDir,
}

pub(crate) const MQTT: usize = 0;
pub(crate) const AMQP: usize = 1;
pub(crate) const HTTP: usize = 2;
pub(crate) const ADMIN: usize = 3;

impl Broker {
    pub(crate) fn start(settings: &str) -> Self {
        Self::start_within(settings, None)
    }

    /// A broker with a limit on addresses in KiB.
    pub(crate) fn start_within(settings: &str, limit_kib: Option<u64>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let child = spawn(folder.path(), settings, limit_kib);
        let mut broker = Self {
            child,
            addresses: Vec::new(),
            folder,
        };
        broker.await_ready();
        broker
    }

    /// Ends the process, and starts another over the same data.
    pub(crate) fn restart(&mut self, settings: &str) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        fs::remove_file(self.folder.path().join("ready.json")).unwrap();
        self.child = spawn(self.folder.path(), settings, None);
        self.await_ready();
    }

    fn await_ready(&mut self) {
        let ready = self.folder.path().join("ready.json");
        await_that("the broker is ready", || ready.is_file());
        let ready = fs::read_to_string(&ready).unwrap();
        let ready: serde_json::Value = serde_json::from_str(&ready).unwrap();
        let urls = ready["listeners"].as_array().unwrap().iter();
        self.addresses = urls
            .map(|listener| {
                let url = listener["url"].as_str().unwrap();
                let (_, port) = url.rsplit_once(':').unwrap();
                let port: String = port.chars().take_while(char::is_ascii_digit).collect();
                SocketAddr::from(([127, 0, 0, 1], port.parse().unwrap()))
            })
            .collect();
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// A connection whose reads and writes give up after a while.
    pub(crate) fn connect(&self, listener: usize) -> std::io::Result<TcpStream> {
        connect(self.addresses[listener])
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let text = fs::read_to_string(path).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.unwrap().trim().strip_suffix("kB").unwrap().trim();
        kib.parse::<u64>().unwrap() * 1024
    }

    /// Status and content of the answer to a GET.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        let mut stream = self.connect(ADMIN).unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, content) = answer.split_once("\r\n\r\n").unwrap();
        (
            head.split(' ').nth(1).unwrap().parse().unwrap(),
            content.to_owned(),
        )
    }

    /// The number of a metric without labels.
    pub(crate) fn number(&self, name: &str) -> u64 {
        let (_, page) = self.get("/metrics");
        let mut lines = page.lines();
        let found = lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        found.expect("the metric")
    }

    /// Numbers of a metric, by the value of its one label.
    pub(crate) fn metric(&self, name: &str) -> Vec<(String, u64)> {
        let (status, page) = self.get("/metrics");
        assert_eq!(status, 200);
        let samples = page.lines().filter_map(|line| {
            let (label, number) = line
                .strip_prefix(name)?
                .strip_prefix('{')?
                .split_once("\"} ")?;
            let (_, label) = label.split_once("=\"")?;
            Some((label.to_owned(), number.parse().ok()?))
        });
        samples.collect()
    }
}

/// A process over the data in a folder.
fn spawn(folder: &Path, settings: &str, limit_kib: Option<u64>) -> Child {
    let config = folder.join("sterna.toml");
    let listeners = ["mqtt", "amqp", "http", "admin"];
    let listeners = listeners.map(|it| format!("[[listener]]\nurl = \"{it}://127.0.0.1:0\"\n"));
    let text = format!(
        "shards = 2\n{}\n[authorization]\nadmins = [\"anonymous\"]\n{settings}",
        listeners.concat()
    );
    fs::write(&config, text).unwrap();
    let limit = limit_kib.map(|kib| format!("ulimit -v {kib} && "));
    let script = format!("{}exec \"$0\" \"$@\"", limit.unwrap_or_default());
    let mut command = Command::new("sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_sterna")]);
    command.arg("serve").arg("--config").arg(&config);
    command.arg("--data-dir").arg(folder.join("data"));
    command
        .arg("--ready-file")
        .arg(folder.join("ready.json"))
        .args(["--log-level", "error"]);
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[track_caller]
pub(crate) fn await_that(what: &str, is_so: impl FnMut() -> bool) {
    assert!(await_whether(is_so), "{what}: not within {PATIENCE:?}");
}

/// Whether it becomes so in time.
pub(crate) fn await_whether(mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(50));
    }
    true
}
