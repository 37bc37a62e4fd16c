//! A device: a process that connects, publishes and ends, and says what that cost it.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sterna_client::{Client, Login as MqttLogin, Options, PathStatistics, Publish, QoS, Tls, http};
use sterna_lab::measure::credentials;

use crate::allocations;
use crate::process;

/// Time for acknowledgements that are under way, before packets are counted.
const SETTLE: Duration = Duration::from_millis(50);
/// After which a device gives up.
const LIMIT: Duration = Duration::from_secs(30 * 60);

#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(super) enum Protocol {
    Mqtt,
    Http,
}

/// How the device proves who it is.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(super) enum Login {
    /// By user name and password: in HTTP with each request.
    Password,
    /// The same, in HTTP with the first request.
    PasswordOnce,
    /// By certificate.
    Certificate,
}

/// What a device does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) protocol: Protocol,
    /// The broker's, on this host.
    pub(super) port: u16,
    /// Of its certificate.
    pub(super) fingerprint: String,
    /// Where the device's certificate lies.
    pub(super) folder: PathBuf,
    pub(super) user: String,
    pub(super) password: String,
    pub(super) login: Login,
    pub(super) qos: u8,
    pub(super) messages: u32,
    pub(super) payload_bytes: u32,
    pub(super) pause_ms: u32,
}

/// What it cost.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub(super) struct Cost {
    /// CPU time of the process, user and system.
    pub(super) cpu_us: u64,
    /// How often something was allocated.
    pub(super) allocations: u64,
    /// And how much in sum.
    pub(super) allocated_bytes: u64,
    /// Most memory that the process ever had.
    pub(super) peak_rss_bytes: u64,
    /// Datagrams.
    pub(super) packets_up: u64,
    pub(super) packets_down: u64,
    /// Their payload.
    pub(super) bytes_up: u64,
    pub(super) bytes_down: u64,
}

/// Runs a device: reads its task from standard input.
pub(super) fn run() -> ExitCode {
    let result = read_task().and_then(|task| {
        allocations::start();
        let cpu = process::own_cpu();
        let before = allocations::read();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        let path = runtime.block_on(async {
            match tokio::time::timeout(LIMIT, work(&task)).await {
                Ok(result) => result,
                Err(_) => Err("not done in time".to_owned()),
            }
        })?;
        let allocated = allocations::read();
        let cost = Cost {
            cpu_us: process::own_cpu().saturating_sub(cpu).as_micros() as u64,
            allocations: allocated.count - before.count,
            allocated_bytes: allocated.bytes - before.bytes,
            peak_rss_bytes: process::own_peak_rss_bytes(),
            packets_up: path.datagrams_sent,
            packets_down: path.datagrams_received,
            bytes_up: path.wire_bytes_sent,
            bytes_down: path.wire_bytes_received,
        };
        println!(
            "{}",
            serde_json::to_string(&cost).map_err(|e| e.to_string())?
        );
        Ok(())
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("sterna-lab bench device: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn read_task() -> Result<Task, String> {
    let mut line = String::new();
    io::stdin()
        .read_line(&mut line)
        .map_err(|error| format!("standard input: {error}"))?;
    serde_json::from_str(&line).map_err(|error| format!("no task: {error}"))
}

/// Publishes, and says what went over the wire.
async fn work(task: &Task) -> Result<PathStatistics, String> {
    let mut tls = Tls::default();
    let fingerprint = task.fingerprint.parse();
    tls.fingerprints = vec![fingerprint.map_err(|error| format!("{error}"))?];
    if task.login == Login::Certificate {
        tls.certificate = Some(task.folder.join(credentials::CERTIFICATE));
        tls.key = Some(task.folder.join(credentials::KEY));
    }
    match task.protocol {
        Protocol::Mqtt => mqtt(task, tls).await,
        Protocol::Http => http3(task, tls).await,
    }
}

fn message(task: &Task) -> Result<Publish, String> {
    let qos = QoS::from_u8(task.qos).ok_or("QoS is 0, 1 or 2")?;
    let payload = vec![b'x'; task.payload_bytes as usize];
    Publish::new("devices/7/reading", payload)
        .map(|message| message.qos(qos))
        .map_err(|error| error.to_string())
}

async fn pause(task: &Task, number: u32) {
    if number > 0 && task.pause_ms > 0 {
        tokio::time::sleep(Duration::from_millis(task.pause_ms.into())).await;
    }
}

async fn mqtt(task: &Task, tls: Tls) -> Result<PathStatistics, String> {
    let failed = |error: sterna_client::Error| error.to_string();
    let url = format!("mqtt+quic://127.0.0.1:{}", task.port);
    let mut options = Options::new(url.parse().map_err(|error| format!("{error}"))?);
    options.tls = tls;
    options.reconnect = None;
    if task.login != Login::Certificate {
        options.login = MqttLogin::Password {
            user: Some(task.user.clone()),
            password: Some(task.password.clone().into_bytes()),
        };
    }
    let message = message(task)?;
    let (client, events) = Client::start(options).map_err(|error| error.to_string())?;
    drop(events);
    for number in 0..task.messages {
        pause(task, number).await;
        client.publish(message.clone()).await.map_err(failed)?;
    }
    // Before anything is believed: the broker has let this client in.
    client.connected().await.map_err(failed)?;
    tokio::time::sleep(SETTLE).await;
    let path = client.path().await.map_err(failed)?;
    client.disconnect().await.map_err(failed)?;
    Ok(path)
}

async fn http3(task: &Task, tls: Tls) -> Result<PathStatistics, String> {
    let failed = |error: http::Error| error.to_string();
    let url = format!("h3://127.0.0.1:{}", task.port);
    let mut options = http::Options::new(url.parse().map_err(|error| format!("{error}"))?);
    options.tls = tls;
    options.reconnect = None;
    if task.login != Login::Certificate {
        options.credentials = http::Credentials::Basic {
            user: task.user.clone(),
            password: task.password.clone(),
        };
    }
    options.credentials_once = task.login == Login::PasswordOnce;
    let message = message(task)?;
    let client = http::Client::new(options).map_err(failed)?;
    for number in 0..task.messages {
        pause(task, number).await;
        client.publish(message.clone()).await.map_err(failed)?;
    }
    tokio::time::sleep(SETTLE).await;
    let path = client.path().ok_or("the connection was lost")?;
    client.close().await;
    Ok(path)
}
