//! The broker that is killed: a process, its folder, and one configuration for all its lives.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use sterna_client::Fingerprint;

use super::Durability;
use super::gate::Carrier;
use crate::link::Random;

/// Range of the broker's ports, below those that Linux gives to outgoing connections. No connection of
/// another program must take the port between two lives.
const PORTS: std::ops::Range<u64> = 10_000..32_000;
/// Most ports that are tried before there is none.
const MAX_ATTEMPTS: u32 = 1_000;
/// Interval of checks whether the broker is ready.
const POLL: Duration = Duration::from_millis(5);
/// Last lines of the broker's log that are shown when it failed.
const LOG_LINES: usize = 15;
/// Time from the start of a life in which the wills of clients that the kill has cut off do not come.
const WILL_GRACE_MS: u64 = 500;

/// A listener of the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    Mqtt,
    Mqtts,
    MqttQuic,
    Amqp,
    Amqps,
    AmqpQuic,
    Http,
    Https,
    H3,
}

impl Door {
    const ALL: [Self; 9] = [
        Self::Mqtt,
        Self::Mqtts,
        Self::MqttQuic,
        Self::Amqp,
        Self::Amqps,
        Self::AmqpQuic,
        Self::Http,
        Self::Https,
        Self::H3,
    ];

    /// The scheme of its URL.
    pub(super) const fn scheme(self) -> &'static str {
        match self {
            Self::Mqtt => "mqtt",
            Self::Mqtts => "mqtts",
            Self::MqttQuic => "mqtt+quic",
            Self::Amqp => "amqp",
            Self::Amqps => "amqps",
            Self::AmqpQuic => "amqp+quic",
            Self::Http => "http",
            Self::Https => "https",
            Self::H3 => "h3",
        }
    }

    /// By what it is reached.
    pub(super) const fn carrier(self) -> Carrier {
        match self {
            Self::Mqtt | Self::Amqp | Self::Http => Carrier::Tcp,
            Self::Mqtts | Self::Amqps | Self::Https => Carrier::Tls,
            Self::MqttQuic | Self::AmqpQuic | Self::H3 => Carrier::Udp,
        }
    }

    /// Whether it is reached by UDP.
    pub(super) const fn is_quic(self) -> bool {
        matches!(self, Self::MqttQuic | Self::AmqpQuic | Self::H3)
    }
}

/// Where the broker listens, in all its lives.
#[derive(Clone, Debug)]
pub(super) struct Addresses([SocketAddr; Door::ALL.len()]);

impl Addresses {
    /// Ports that nobody uses now. They do not follow from the run's seed, so that runs do not meet.
    fn choose() -> io::Result<Self> {
        let chance = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
        let mut random = Random::new(&[chance]);
        let mut addresses = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); Door::ALL.len()];
        for number in 0..addresses.len() {
            let mut attempts = 0;
            addresses[number] = loop {
                let port = PORTS.start + random.next_u64() % (PORTS.end - PORTS.start);
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port as u16));
                let free = TcpListener::bind(address).and_then(|_| UdpSocket::bind(address));
                attempts += 1;
                match free {
                    Ok(_) if !addresses.contains(&address) => break address,
                    Err(error) if attempts > MAX_ATTEMPTS => return Err(error),
                    _ => {}
                }
            };
        }
        Ok(Self(addresses))
    }

    pub(super) const fn of(&self, door: Door) -> SocketAddr {
        self.0[door as usize]
    }
}

/// The process, if there is one.
#[derive(Clone, Debug, Default)]
pub(super) struct Life(Arc<Mutex<Option<Child>>>);

impl Life {
    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, child: Option<Child>) {
        *self.child() = child;
    }

    fn ended(&self) -> Option<ExitStatus> {
        self.child().as_mut()?.try_wait().ok().flatten()
    }

    /// Sends SIGKILL and waits for the end.
    pub(super) fn kill(&self) {
        let child = self.child().take();
        if let Some(mut child) = child {
            // An error says that it has ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[derive(Deserialize)]
struct Ready {
    fingerprint: String,
}

/// A broker, with or without a life at the moment.
#[derive(Debug)]
pub(super) struct Broker {
    program: PathBuf,
    folder: PathBuf,
    life: Life,
    pub(super) addresses: Addresses,
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Broker {
    /// Prepares a broker's folder and configuration, and starts nothing.
    pub(super) fn prepare(
        program: &Path,
        folder: &Path,
        durability: Durability,
    ) -> io::Result<Self> {
        let addresses = Addresses::choose()?;
        let text = configuration(&addresses, durability);
        fs::write(folder.join("sterna.toml"), text)?;
        Ok(Self {
            program: program.to_owned(),
            folder: folder.to_owned(),
            life: Life::default(),
            addresses,
        })
    }

    fn log(&self) -> PathBuf {
        self.folder.join("broker.log")
    }

    fn ready_file(&self) -> PathBuf {
        self.folder.join("ready.json")
    }

    /// Begins a life, without waiting until it listens.
    pub(super) fn start(&self) -> io::Result<()> {
        match fs::remove_file(self.ready_file()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let log: File = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log())?;
        let mut command = Command::new(&self.program);
        // Nothing of the caller's own broker.
        for (name, _) in std::env::vars_os() {
            if name
                .to_str()
                .is_some_and(|name| name.starts_with("STERNA_"))
            {
                command.env_remove(name);
            }
        }
        command
            .arg("serve")
            .arg("--config")
            .arg(self.folder.join("sterna.toml"))
            .arg("--data-dir")
            .arg(self.folder.join("data"))
            .arg("--ready-file")
            .arg(self.ready_file())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        self.life.set(Some(command.spawn()?));
        Ok(())
    }

    /// Waits until it listens; returns its certificate's fingerprint.
    ///
    /// # Errors
    /// When it has ended by itself or takes longer than `limit`, with the last lines of its log.
    pub(super) async fn ready(&self, limit: Duration) -> Result<Fingerprint, String> {
        let started = Instant::now();
        loop {
            if let Ok(text) = fs::read_to_string(self.ready_file()) {
                let ready: Ready =
                    serde_json::from_str(&text).map_err(|error| error.to_string())?;
                let fingerprint = ready.fingerprint.parse();
                return fingerprint.map_err(|error| format!("{error}"));
            }
            if let Some(status) = self.ended() {
                return Err(format!("it ended with {status}{}", self.tail()));
            }
            if started.elapsed() > limit {
                return Err(format!("it does not listen after {limit:?}{}", self.tail()));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// How it ended, if it ended by itself.
    pub(super) fn ended(&self) -> Option<ExitStatus> {
        self.life.ended()
    }

    /// Sends SIGKILL and waits for the end.
    pub(super) fn kill(&self) {
        self.life.kill();
    }

    /// The process, for who ends it without waiting for a turn.
    pub(super) fn life(&self) -> Life {
        self.life.clone()
    }

    /// The last lines of its log.
    pub(super) fn tail(&self) -> String {
        let log = fs::read(self.log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
        last.iter().flat_map(|line| ["\n    ", line]).collect()
    }
}

/// The configuration of all lives. Limits of queues are far away: what they drop is not lost by a crash. Where sessions
/// are kept, little of them fits in memory, so that readers are behind.
fn configuration(addresses: &Addresses, durability: Durability) -> String {
    let mut text = String::from(
        "shards = 2\n\
         [log]\n\
         level = \"warn\"\n\
         [broker]\n\
         maximum_queued_bytes = 1073741824\n\
         maximum_group_queued_messages = 1000000\n\
         maximum_group_queued_bytes = 1073741824\n\
         redelivery_pause_ms = 50\n\
         maximum_redelivery_pause_ms = 500\n",
    );
    let in_memory = match durability {
        Durability::None => 1_000_000,
        Durability::Commit | Durability::Interval | Durability::Memory => 50,
    };
    let _ = writeln!(text, "maximum_queued_messages = {in_memory}");
    // Comparisons wait for the wills of clients that a kill has cut off.
    let _ = writeln!(text, "[mqtt]\nwill_grace_ms = {WILL_GRACE_MS}");
    let _ = writeln!(text, "[store]\n{}", durability.store());
    for queue in super::amqp::QUEUES {
        let _ = writeln!(text, "[[amqp.queue]]\nname = \"{queue}\"");
    }
    for door in Door::ALL {
        let url = format!("{}://{}", door.scheme(), addresses.of(door));
        let _ = writeln!(
            text,
            "[[listener]]\nurl = \"{url}\"\n{}",
            durability.listener()
        );
    }
    text
}
