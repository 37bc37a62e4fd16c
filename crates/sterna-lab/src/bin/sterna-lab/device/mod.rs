//! `sterna-lab device`: the measured part of a campaign, as a process of its own.
//!
//! [`sterna_lab::measure::device`] says how it is spoken to. The protocol is that of the task's URL.

mod amqp;
mod fleet;
mod http;
mod mqtt;
mod roles;

use std::io::{self, BufRead as _, Write as _};
use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use sterna_client::{
    EarlyData, PathStatistics, Protocol, Publish, Qlog, QoS, SocketSetup, Tls, TlsVersion, Url,
};
use sterna_lab::kernel::{self, monotonic_ns};
use sterna_lab::measure::device::{Credentials, Measured, Task, Wire, Word, read_stamp, stamp};
use tokio::sync::mpsc;

use crate::allocations::{self, Allocated};
use crate::console;
use crate::process::own_cpu;
use roles::Arrival;

/// A subscriber's filter.
const FILTER: &str = "lab/#";
/// Error for a message that is not the lab's.
const NO_STAMP: &str = "a message without a stamp";
/// Longest wait for a connection: the links are slow and lose packets.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes after the stamp. Their value does not matter; they are not all the same.
const FILLER: u8 = 0x5a;
/// When the time of the device's qlog begins, on both clocks.
static QLOG_EPOCH: LazyLock<(Instant, u64)> = LazyLock::new(|| (Instant::now(), monotonic_ns()));

/// Runs a device: reads its task from standard input.
pub(super) fn run() -> ExitCode {
    let result = read_task().and_then(|task| {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?
            .block_on(work(&task))
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            // Without a reader, the exit status still says it.
            let _ = say(&Word::Failed { reason });
            ExitCode::from(console::NOT_RUN)
        }
    }
}

fn read_task() -> Result<Task, String> {
    let mut line = String::new();
    io::stdin()
        .lock()
        .read_line(&mut line)
        .map_err(|error| format!("standard input: {error}"))?;
    serde_json::from_str(&line).map_err(|error| format!("no task: {error}"))
}

fn say(word: &Word) -> Result<(), String> {
    let text = serde_json::to_string(word).map_err(|error| error.to_string())?;
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(|error| format!("standard output: {error}"))
}

/// Orders on standard input after the task: `go`, and then its end.
struct Orders(mpsc::UnboundedReceiver<()>);

impl Orders {
    fn listen() -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in io::stdin().lock().lines() {
                if line.is_err() || sender.send(()).is_err() {
                    return;
                }
            }
        });
        Self(receiver)
    }

    async fn go(&mut self) -> Result<(), String> {
        self.0.recv().await.ok_or_else(|| "never told to go".into())
    }

    /// Waits for the end of the input.
    async fn end(&mut self) {
        while self.0.recv().await.is_some() {}
    }
}

#[allow(clippy::future_not_send, reason = "a device has one thread")]
async fn work(task: &Task) -> Result<(), String> {
    let orders = Orders::listen();
    let limit = Duration::from_millis(task.time_limit_ms);
    let url: Url = task.url.parse().map_err(|error| format!("url: {error}"))?;
    let work = async {
        match url.scheme().protocol() {
            Protocol::Mqtt => roles::work::<mqtt::Mqtt>(task, url, orders).await,
            Protocol::Amqp => roles::work::<amqp::Amqp>(task, url, orders).await,
            Protocol::Http => roles::work::<http::Http>(task, url, orders).await,
        }
    };
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result.and_then(|mut measured| {
            measured.qlog_epoch_ns = QLOG_EPOCH.1;
            say(&Word::Result(Box::new(measured)))
        }),
        Err(_) => Err(format!("not done after {} s", limit.as_secs())),
    }
}

/// Trusted certificates, own certificate, and version of TLS.
fn tls(task: &Task, tls: &mut Tls) {
    tls.ca_file.clone_from(&task.authority);
    tls.server_name = Some(task.server_name.clone());
    tls.resumption = task.resumption;
    tls.early_data = task.early_data;
    if let Credentials::Certificate { certificate, key } = &task.credentials {
        tls.certificate = Some(certificate.clone());
        tls.key = Some(key.clone());
    }
    tls.version = match task.tls.as_deref() {
        Some("1.2") => Some(TlsVersion::Tls12),
        Some("1.3") => Some(TlsVersion::Tls13),
        _ => None,
    };
}

/// The set-up of a TCP socket before it connects, if there is any.
fn socket_setup(task: &Task) -> Option<SocketSetup> {
    let setup = || SocketSetup::new(|socket| kernel::connect_by_fast_open(socket.as_fd()));
    task.fast_open.then(setup)
}

/// Where a qlog goes, if there is to be one.
fn qlog(task: &Task) -> Option<Qlog> {
    let (folder, name) = task.qlog.as_ref()?;
    Some(Qlog::new(folder, name).since(QLOG_EPOCH.0))
}

/// The bytes of the next message, stamped now, and when that was.
fn payload(task: &Task, number: u32) -> (Vec<u8>, u64) {
    let mut payload = vec![FILLER; task.payload_bytes as usize];
    let at_ns = monotonic_ns();
    stamp(&mut payload, number, at_ns);
    (payload, at_ns)
}

/// The next message of MQTT and HTTP, stamped now, and when that was.
fn publication(task: &Task, number: u32) -> Result<(Publish, u64), String> {
    let (payload, at_ns) = payload(task, number);
    let publish = Publish::new(topic(task, number), payload).map_err(text)?;
    Ok((publish.qos(qos(task)), at_ns))
}

/// A message that has arrived just now, by its payload.
fn arrival(payload: &[u8]) -> Result<Arrival, String> {
    let at_ns = monotonic_ns();
    let (number, sent_ns) = read_stamp(payload).ok_or(NO_STAMP)?;
    Ok(Arrival {
        number,
        sent_ns,
        at_ns,
    })
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn text(error: impl std::error::Error) -> String {
    error.to_string()
}

/// Number of a client's connections, noted beside its work.
#[derive(Clone, Default)]
struct Connections(Arc<ConnectionCounts>);

#[derive(Default)]
struct ConnectionCounts {
    count: AtomicU32,
    /// When the last one was there.
    last_ns: AtomicU64,
}

impl Connections {
    /// Notes the newest connection, which has this number.
    fn note(&self, number: u64) {
        let count = u32::try_from(number).unwrap_or(u32::MAX);
        self.0.last_ns.store(monotonic_ns(), Ordering::Relaxed);
        self.0.count.store(count, Ordering::Relaxed);
    }

    fn beyond_the_first(&self) -> u32 {
        self.0.count.load(Ordering::Relaxed).saturating_sub(1)
    }

    fn last_ns(&self) -> u64 {
        self.0.last_ns.load(Ordering::Relaxed)
    }
}

fn qos(task: &Task) -> QoS {
    match task.qos {
        0 => QoS::AtMostOnce,
        1 => QoS::AtLeastOnce,
        _ => QoS::ExactlyOnce,
    }
}

/// The topic of a message: they are taken in turn.
fn topic(task: &Task, number: u32) -> String {
    format!("lab/{}", number % task.topics)
}

/// The process's use since `go`.
struct Meter {
    cpu: Duration,
    allocated: Allocated,
}

impl Meter {
    fn start() -> Self {
        allocations::start();
        Self {
            cpu: own_cpu(),
            allocated: allocations::read(),
        }
    }

    fn read(&self, measured: &mut Measured) {
        measured.cpu_ns = own_cpu().saturating_sub(self.cpu).as_nanos() as u64;
        let allocated = allocations::read();
        measured.allocated_bytes = Some(allocated.bytes - self.allocated.bytes);
        measured.allocations = Some(allocated.count - self.allocated.count);
        // Nothing is counted before the meter starts.
        measured.largest_allocation_bytes = Some(allocated.largest);
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        measured.peak_rss_bytes = peak_rss_bytes(&status).unwrap_or(0);
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        measured.is_real_time = kernel::is_round_robin(&stat);
    }
}

/// `VmHWM` of `/proc/self/status`.
fn peak_rss_bytes(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// QUIC's or the kernel's TCP knowledge of the path. Both must be asked while the connection
/// stands.
fn look_at_path(path: Option<PathStatistics>, measured: &mut Measured) {
    if let Some(path) = path {
        measured.packets_lost = Some(measured.packets_lost.unwrap_or(0) + path.packets_lost);
        measured.rtt_ns = Some(path.rtt.as_nanos() as u64);
        measured.streams = Some(path.streams);
        measured.datagram_messages = Some(path.datagram_messages);
        measured.migrations = Some(path.migrations);
        measured.wire = Some(Wire {
            packets_up: path.datagrams_sent,
            packets_down: path.datagrams_received,
            bytes_up: path.wire_bytes_sent,
            bytes_down: path.wire_bytes_received,
        });
        measured.congestion = path.congestion_control.map(|it| it.name().to_owned());
        return;
    }
    if let Some(state) = kernel::own_tcp_connections().pop() {
        measured.tcp_rtt_ns = Some(state.rtt_us * 1000);
        measured.tcp_rto_ns = Some(state.rto_us * 1000);
        measured.congestion = Some(state.congestion);
    }
}

/// Arrivals of messages that were announced.
struct Missing {
    seen: Vec<bool>,
    left: u32,
}

impl Missing {
    fn of(task: &Task) -> Self {
        Self {
            seen: vec![false; task.messages as usize],
            left: task.messages,
        }
    }

    /// Notes a message; true when it was the last one that was missing.
    fn note(&mut self, number: u32) -> bool {
        let Some(place) = self.seen.get_mut(number as usize) else {
            return false;
        };
        if std::mem::replace(place, true) {
            return false;
        }
        self.left -= 1;
        self.left == 0
    }
}

/// Lateness as the lab wants it.
fn note_lateness(mut late_ns: Vec<u64>, measured: &mut Measured) {
    late_ns.sort_unstable();
    let Some(last) = late_ns.len().checked_sub(1) else {
        return;
    };
    measured.late_p99_ns = late_ns[last * 99 / 100];
    measured.late_max_ns = late_ns[last];
}

fn name(early_data: EarlyData) -> &'static str {
    match early_data {
        EarlyData::NotTried => "not tried",
        EarlyData::Pending => "pending",
        EarlyData::Accepted => "accepted",
        EarlyData::Rejected => "rejected",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_figures_are_read() {
        assert_eq!(peak_rss_bytes("Name:\tx\nVmHWM:\t  12 kB\n"), Some(12_288));
        assert_eq!(peak_rss_bytes(""), None);
    }

    #[test]
    fn lateness_is_that_of_the_latest() {
        let mut measured = Measured::default();
        note_lateness((0..=200).rev().collect(), &mut measured);
        assert_eq!((measured.late_p99_ns, measured.late_max_ns), (198, 200));
        note_lateness(Vec::new(), &mut measured);
        assert_eq!(measured.late_max_ns, 200);
    }
}
