//! `sterna lab device`: what a campaign measures, as a process of its own.
//!
//! [`sterna_lab::measure::device`] says how it is spoken to.

use std::io::{self, BufRead as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use sterna_client::{
    Client, EarlyData, Event, Events, Options, Publish, QoS, Subscription, TlsVersion,
};
use sterna_lab::kernel::monotonic_ns;
use sterna_lab::measure::device::{Measured, Role, Task, Word, read_stamp, stamp};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::commands::bench::process::own_cpu;
use crate::commands::exit;

/// What a subscriber subscribes to.
const FILTER: &str = "lab/#";
/// Longest wait for a connection: the links are slow and lose packets.
const CONNECT_TIMEOUT: Duration = Duration::from_mins(1);
/// Number of SCHED_RR in `/proc/self/stat`.
const ROUND_ROBIN: &str = "2";
/// Bytes after the stamp. Their value is of no interest; they are not all the same.
const FILLER: u8 = 0x5a;

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
            // If nobody reads it, the exit status still says it.
            let _ = say(&Word::Failed { reason });
            ExitCode::from(exit::USAGE)
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

/// What comes on standard input after the task: `go`, and then its end.
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

async fn work(task: &Task) -> Result<(), String> {
    let orders = Orders::listen();
    let limit = Duration::from_millis(task.time_limit_ms);
    let work = async {
        match task.role {
            Role::Publisher => publish(task, orders).await,
            Role::Subscriber => subscribe(task, orders).await,
            Role::StopAndWait => stop_and_wait(task, orders).await,
            Role::ConnectPublish => connect_publish(task, orders).await,
        }
    };
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result.and_then(|measured| say(&Word::Result(Box::new(measured)))),
        Err(_) => Err(format!("not done after {} s", limit.as_secs())),
    }
}

/// The client's options for a task.
fn options(task: &Task) -> Result<Options, String> {
    let mut options = Options::new(task.url.parse().map_err(|error| format!("url: {error}"))?);
    options.tls.ca_file = Some(task.authority.clone());
    options.tls.server_name = Some(task.server_name.clone());
    options.tls.resumption = task.resumption;
    options.tls.version = match task.tls.as_deref() {
        Some("1.2") => Some(TlsVersion::Tls12),
        Some("1.3") => Some(TlsVersion::Tls13),
        _ => None,
    };
    options.early_data = task.early_data;
    options.connect_timeout = CONNECT_TIMEOUT;
    options.datagrams = task.datagrams;
    if let Some(streams) = &task.streams {
        options.streams = streams
            .parse()
            .map_err(|error| format!("streams: {error}"))?;
    }
    for (name, value) in &task.quic {
        options.quic.set(name, value)?;
    }
    Ok(options)
}

fn qos(task: &Task) -> QoS {
    match task.qos {
        0 => QoS::AtMostOnce,
        1 => QoS::AtLeastOnce,
        _ => QoS::ExactlyOnce,
    }
}

/// The next message, stamped now.
fn message(task: &Task, number: u32) -> Result<(Publish, u64), String> {
    let mut payload = vec![FILLER; task.payload_bytes as usize];
    let at_ns = monotonic_ns();
    stamp(&mut payload, number, at_ns);
    let topic = format!("lab/{}", number % task.topics);
    let publish = Publish::new(topic, payload).map_err(|error| error.to_string())?;
    Ok((publish.qos(qos(task)), at_ns))
}

/// What the process has used since `go`.
struct Meter {
    cpu: Duration,
}

impl Meter {
    fn start() -> Self {
        Self { cpu: own_cpu() }
    }

    fn read(&self, measured: &mut Measured) {
        measured.cpu_ns = own_cpu().saturating_sub(self.cpu).as_nanos() as u64;
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        measured.peak_rss_bytes = peak_rss_bytes(&status).unwrap_or(0);
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        measured.is_real_time = policy(&stat) == Some(ROUND_ROBIN);
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

/// Field 41 of `/proc/self/stat`, counted from behind the name, which may hold blanks.
fn policy(stat: &str) -> Option<&str> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(41 - 3)
}

/// Counts connections, so that nothing piles up in a client whose events nobody needs.
fn count_connections(mut events: Events) -> mpsc::UnboundedReceiver<()> {
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            if matches!(event, Event::Connected(_)) && sender.send(()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// What QUIC knows of the path, where it is QUIC.
async fn look_at_path(client: &Client, measured: &mut Measured) {
    if let Ok(path) = client.path().await {
        measured.packets_lost = Some(measured.packets_lost.unwrap_or(0) + path.packets_lost);
        measured.rtt_ns = Some(path.rtt.as_nanos() as u64);
        measured.streams = Some(path.streams);
        measured.datagram_messages = Some(path.datagram_messages);
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

async fn connect(task: &Task) -> Result<(Client, Events, u64), String> {
    let before = monotonic_ns();
    let (client, events) = Client::connect(options(task)?)
        .await
        .map_err(|error| format!("cannot connect: {error}"))?;
    Ok((client, events, monotonic_ns() - before))
}

/// A message every interval.
async fn publish(task: &Task, mut orders: Orders) -> Result<Measured, String> {
    let (client, events, connect_ns) = connect(task).await?;
    let mut connections = count_connections(events);
    let mut measured = Measured {
        connect_ns: vec![connect_ns],
        ..Measured::default()
    };
    say(&Word::Ready)?;
    orders.go().await?;
    let meter = Meter::start();
    let start = Instant::now();
    let interval = Duration::from_nanos(task.interval_ns);
    let mut late_ns = Vec::with_capacity(task.messages as usize);
    let mut deliveries = Vec::with_capacity(task.messages as usize);
    for number in 0..task.messages {
        let due = start + interval * number;
        tokio::time::sleep_until(due).await;
        late_ns.push(due.elapsed().as_nanos() as u64);
        let (message, at_ns) = message(task, number)?;
        if number == 0 {
            measured.first_ns = at_ns;
        }
        let delivery = client
            .send(message)
            .await
            .map_err(|error| format!("message {number}: {error}"))?;
        deliveries.push(delivery);
    }
    for (number, delivery) in deliveries.into_iter().enumerate() {
        delivery
            .await
            .map_err(|error| format!("message {number}: {error}"))?;
    }
    measured.last_ns = monotonic_ns();
    meter.read(&mut measured);
    note_lateness(late_ns, &mut measured);
    look_at_path(&client, &mut measured).await;
    say(&Word::Finished)?;
    orders.end().await;
    let mut count = 0_u32;
    while connections.try_recv().is_ok() {
        count += 1;
    }
    measured.reconnections = count.saturating_sub(1);
    // The broker is on its way out too; how this connection ends is not measured.
    let _ = client.disconnect().await;
    Ok(measured)
}

/// Notes arrivals until the input ends.
async fn subscribe(task: &Task, mut orders: Orders) -> Result<Measured, String> {
    let (client, mut events, connect_ns) = connect(task).await?;
    subscribe_to(&client, task).await?;
    let mut measured = Measured {
        connect_ns: vec![connect_ns],
        ..Measured::default()
    };
    say(&Word::Ready)?;
    orders.go().await?;
    let meter = Meter::start();
    let mut seen = vec![false; task.messages as usize];
    let mut missing = task.messages;
    loop {
        let message = tokio::select! {
            biased;
            message = events.message() => message.ok_or("the connection has ended")?,
            () = orders.end() => break,
        };
        let at_ns = monotonic_ns();
        let Some((number, sent_ns)) = read_stamp(message.payload_bytes()) else {
            return Err("a message without a stamp".into());
        };
        measured.arrivals.push((number, sent_ns, at_ns));
        if let Some(place) = seen.get_mut(number as usize)
            && !std::mem::replace(place, true)
        {
            missing -= 1;
            if missing == 0 {
                say(&Word::Finished)?;
            }
        }
    }
    meter.read(&mut measured);
    let _ = client.disconnect().await;
    Ok(measured)
}

async fn subscribe_to(client: &Client, task: &Task) -> Result<(), String> {
    let subscription = Subscription::new(FILTER, qos(task)).map_err(|error| error.to_string())?;
    let codes = client
        .subscribe([subscription])
        .await
        .map_err(|error| format!("cannot subscribe: {error}"))?;
    match codes.iter().find(|code| code.is_error()) {
        Some(code) => Err(format!("cannot subscribe: {code:?}")),
        None => Ok(()),
    }
}

/// The next message when the one before is back.
async fn stop_and_wait(task: &Task, mut orders: Orders) -> Result<Measured, String> {
    let (client, mut events, connect_ns) = connect(task).await?;
    subscribe_to(&client, task).await?;
    let mut measured = Measured {
        connect_ns: vec![connect_ns],
        ..Measured::default()
    };
    say(&Word::Ready)?;
    orders.go().await?;
    let meter = Meter::start();
    measured.first_ns = monotonic_ns();
    for number in 0..task.messages {
        let (message, at_ns) = message(task, number)?;
        let delivery = client
            .send(message)
            .await
            .map_err(|error| format!("message {number}: {error}"))?;
        loop {
            let reply = events.message().await.ok_or("the connection has ended")?;
            if read_stamp(reply.payload_bytes()).is_some_and(|(reply, _)| reply == number) {
                break;
            }
        }
        measured.round_trip_ns.push(monotonic_ns() - at_ns);
        drop(delivery);
    }
    measured.last_ns = monotonic_ns();
    meter.read(&mut measured);
    look_at_path(&client, &mut measured).await;
    say(&Word::Finished)?;
    orders.end().await;
    let _ = client.disconnect().await;
    Ok(measured)
}

/// Connects, publishes and disconnects, again and again.
async fn connect_publish(task: &Task, mut orders: Orders) -> Result<Measured, String> {
    let options = options(task)?;
    let mut measured = Measured::default();
    say(&Word::Ready)?;
    orders.go().await?;
    let meter = Meter::start();
    for connection in 0..task.connections {
        let started_ns = monotonic_ns();
        if connection == 0 {
            measured.first_ns = started_ns;
        }
        measured.started_ns.push(started_ns);
        let failed = |error: sterna_client::Error| format!("connection {connection}: {error}");
        let (client, events) = Client::start(options.clone()).map_err(|error| error.to_string())?;
        let _connections = count_connections(events);
        let connected = async {
            let connected = client.connected().await.map_err(failed)?;
            Ok::<_, String>((connected, monotonic_ns()))
        };
        let messages = async {
            if task.wait_connack {
                client.connected().await.map_err(failed)?;
            }
            let mut first_ns = None;
            for index in 0..task.messages {
                let (message, _) = message(task, connection * task.messages + index)?;
                let delivery = client.send(message).await.map_err(failed)?;
                // QoS 0: the operating system has it; else: the broker has.
                delivery.await.map_err(failed)?;
                first_ns.get_or_insert_with(monotonic_ns);
            }
            Ok::<_, String>(first_ns.unwrap_or(started_ns))
        };
        let ((connected, connected_ns), sent_ns) = tokio::try_join!(connected, messages)?;
        measured.connect_ns.push(connected_ns - started_ns);
        measured.sent_after_ns.push(sent_ns - started_ns);
        let early_data = match client.path().await {
            Ok(path) => path.early_data,
            Err(_) => connected.early_data,
        };
        measured.early_data.push(name(early_data).into());
        look_at_path(&client, &mut measured).await;
        client.disconnect().await.map_err(failed)?;
    }
    measured.last_ns = monotonic_ns();
    meter.read(&mut measured);
    say(&Word::Finished)?;
    orders.end().await;
    Ok(measured)
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
        let fields: Vec<String> = (3..=52).map(|field| field.to_string()).collect();
        let stat = format!("1 (a) b) {}", fields.join(" "));
        assert_eq!(policy(&stat), Some("41"));
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert_eq!(policy(&own), Some("0"));
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
