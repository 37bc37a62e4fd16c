//! Brokers under measurement: Sterna, Debian's mosquitto, or one that runs already.

use std::ffi::OsString;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Failure;
use crate::workspace::write;

use super::cells::Transport;

/// Longest time until a broker listens, also in callgrind and beside other work.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// A broker that listens.
#[derive(Debug)]
pub(super) struct Broker {
    /// Ends with this value; `None` for a foreign one.
    child: Option<Child>,
    pid: u32,
    urls: Vec<String>,
    /// Trust anchor for TLS and QUIC; `None` accepts any certificate (a broker of one's own
    /// machine).
    authority: Option<PathBuf>,
}

impl Broker {
    /// Starts Sterna on one core with a listener for each transport. Its development certificate is
    /// made in `folder` if there is none yet.
    pub(super) fn sterna(
        program: &Path,
        folder: &Path,
        place: Place,
        shards: usize,
    ) -> Result<Self, Failure> {
        let mut options: Vec<OsString> = vec!["--shards".into(), shards.to_string().into()];
        for scheme in ["mqtt", "mqtts", "ws", "quic"] {
            options.push("--listen".into());
            options.push(format!("{scheme}://127.0.0.1:0").into());
        }
        Self::start(place.command(program), folder, &options)
    }

    /// Starts Sterna by a command that ends with its program. It has one shard and a configuration.
    pub(super) fn configured(
        command: Command,
        folder: &Path,
        configuration: &Path,
    ) -> Result<Self, Failure> {
        let options = ["--shards", "1", "--config"].map(OsString::from);
        let options = options.into_iter().chain([configuration.into()]);
        Self::start(command, folder, &options.collect::<Vec<_>>())
    }

    fn start(mut command: Command, folder: &Path, options: &[OsString]) -> Result<Self, Failure> {
        let ready_file = folder.join("ready.json");
        if ready_file.exists() {
            fs::remove_file(&ready_file)?;
        }
        command.arg("serve").args(options);
        command.arg("--data-dir").arg(folder.join("data"));
        command.arg("--ready-file").arg(&ready_file);
        let log = folder.join("sterna.log");
        let mut child = spawn(command, &log)?;
        let ready = wait_for(&mut child, &log, PATIENCE, || {
            let text = fs::read_to_string(&ready_file).ok()?;
            serde_json::from_str::<Value>(&text).ok()
        })?;
        let urls = ready["listeners"].as_array().into_iter().flatten();
        let urls = urls
            .filter_map(|l| l["url"].as_str().map(str::to_owned))
            .collect();
        Ok(Self {
            pid: child.id(),
            child: Some(child),
            urls,
            authority: ready["certificate"].as_str().map(PathBuf::from),
        })
    }

    /// Where operators ask it, as `HOST:PORT`.
    pub(super) fn operators(&self) -> Option<String> {
        let mut urls = self.urls.iter();
        let place = urls.find_map(|url| url.strip_prefix("admin://"))?;
        Some(place.trim_end_matches('/').to_owned())
    }

    /// Starts mosquitto on one core, with the certificate that Sterna made in the same folder.
    pub(super) fn mosquitto(program: &Path, folder: &Path, place: Place) -> Result<Self, Failure> {
        let [tcp, tls, websocket] = free_ports()?;
        let data = folder.join("data");
        let path = |name: &str| data.join(name).display().to_string();
        let own_user = std::env::var("USER").unwrap_or_else(|_| "root".to_owned());
        let configuration = format!(
            "persistence false\nallow_anonymous true\nset_tcp_nodelay true\nuser {own_user}\n\
             log_type error\nmax_queued_messages 0\n\
             listener {tcp} 127.0.0.1\n\
             listener {tls} 127.0.0.1\ncertfile {}\nkeyfile {}\n\
             listener {websocket} 127.0.0.1\nprotocol websockets\n",
            path("development-certificate.pem"),
            path("development-key.pem"),
        );
        let file = folder.join("mosquitto.conf");
        write(&file, &configuration)?;
        let mut command = place.command(program);
        command.arg("-c").arg(&file);
        let log = folder.join("mosquitto.log");
        let mut child = spawn(command, &log)?;
        wait_for(&mut child, &log, PATIENCE, || {
            std::net::TcpStream::connect(("127.0.0.1", websocket)).ok()
        })?;
        Ok(Self {
            pid: child.id(),
            child: Some(child),
            urls: vec![
                format!("mqtt://127.0.0.1:{tcp}"),
                format!("mqtts://127.0.0.1:{tls}"),
                format!("ws://127.0.0.1:{websocket}"),
            ],
            authority: Some(data.join("development-ca.pem")),
        })
    }

    /// A broker that runs already. Its certificate is not checked.
    pub(super) const fn foreign(pid: u32, urls: Vec<String>) -> Self {
        Self {
            child: None,
            pid,
            urls,
            authority: None,
        }
    }

    pub(super) const fn pid(&self) -> u32 {
        self.pid
    }

    /// Where it serves the transport, if it does.
    pub(super) fn url(&self, transport: Transport) -> Option<&str> {
        self.urls
            .iter()
            .find(|url| Transport::of(url) == Some(transport))
            .map(String::as_str)
    }

    /// Arguments of `sterna-lab bench` for trust.
    pub(super) fn trust(&self, transport: Transport) -> Vec<String> {
        match (&self.authority, transport) {
            (_, Transport::Tcp | Transport::WebSocket) => Vec::new(),
            (Some(path), _) => vec!["--cafile".to_owned(), path.display().to_string()],
            (None, _) => vec!["--insecure".to_owned()],
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Where it has ended already, there is nothing to do.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Where a process runs, and how urgently.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) core: usize,
    /// Before all other work.
    pub(super) realtime: bool,
}

impl Place {
    /// A command that runs there and keeps its process id: `taskset` and `chrt` replace
    /// themselves.
    pub(super) fn command(self, program: &Path) -> Command {
        let mut command = Command::new("taskset");
        command.arg("-c").arg(self.core.to_string());
        if self.realtime {
            command.args(["chrt", "--fifo", "1"]);
        }
        command.arg(program);
        command
    }
}

/// Starts a broker whose output goes to `log`.
pub(super) fn spawn(mut command: Command, log: &Path) -> Result<Child, Failure> {
    let output = File::create(log)?;
    command
        .stdin(Stdio::null())
        .stderr(output.try_clone()?)
        .stdout(output);
    command
        .spawn()
        .map_err(|error| Failure(format!("{}: {error}", crate::command::in_words(&command))))
}

/// Looks again and again until there is something to find, the broker has ended, or `patience` is at
/// its end.
pub(super) fn wait_for<T>(
    child: &mut Child,
    log: &Path,
    patience: Duration,
    mut look: impl FnMut() -> Option<T>,
) -> Result<T, Failure> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        let ended = child.try_wait()?.is_some();
        if ended || Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            let said = fs::read_to_string(log).unwrap_or_default();
            let what = if ended { "ended" } else { "did not listen" };
            return Err(Failure(format!("the broker {what}:\n{}", said.trim_end())));
        }
        sleep(POLL);
    }
}

/// Ports that were free a moment ago, for brokers that cannot choose one themselves.
pub(super) fn free_ports<const N: usize>() -> Result<[u16; N], Failure> {
    let held: Vec<TcpListener> = (0..N)
        .map(|_| TcpListener::bind(("127.0.0.1", 0)))
        .collect::<Result<_, _>>()?;
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(&held) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}
