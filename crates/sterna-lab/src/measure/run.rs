//! One run: broker, devices and link, from their start to a sample.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::device::{Measured, Role, Task, Word};
use super::process::Process;
use super::sample::{Sample, Verdict};
use super::site::{Site, SiteKind, SiteReport};
use super::tolerance;
use crate::calibrate::Machine;
use crate::campaign::{LinkEventKind, Run, WorkloadKind};
use crate::energy::constants::{BATTERY_WH, BOARD_IDLE_W, BOARDS, radios};
use crate::energy::radio::{Conditions, Sleep};
use crate::link::Counters;
use crate::netns::Side;
use crate::quantity;

/// The name in the broker's development certificate.
const SERVER_NAME: &str = "localhost";
/// How long a program may take to start on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long messages may stay under way after the last one left, besides round trips.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(10);
/// The same in round trips.
const ARRIVAL_ROUND_TRIPS: u32 = 8;
/// The board whose power is estimated: the second paper's devices are of this kind.
const BOARD: &str = "3b";

/// What all runs have in common.
#[derive(Debug)]
pub(super) struct Setting<'a> {
    /// The program that is broker and device.
    pub(super) program: &'a Path,
    /// Where links are made.
    pub(super) site: SiteKind,
    /// Where the broker keeps its certificate.
    pub(super) data: &'a Path,
    /// Set when the campaign is interrupted.
    pub(super) stop: &'a AtomicBool,
    /// Whether emulators may watch the clock instead of sleeping: not where many of them run.
    pub(super) spin: bool,
}

/// A broker that listens.
#[derive(Debug)]
pub(super) struct Broker {
    process: Process,
    port: u16,
    authority: PathBuf,
}

impl Broker {
    /// Starts one for a transport.
    pub(super) fn start(setting: &Setting<'_>, site: &Site, run: &Run) -> Result<Self, String> {
        let mut command = site.command(Side::Server, setting.program);
        let port = match site {
            Site::Namespaces { .. } => default_port(&run.transport.scheme),
            Site::Loopback { .. } => 0,
        };
        let url = format!(
            "{}://{}:{port}",
            run.transport.scheme,
            site.listen_address()
        );
        command
            .arg("serve")
            .args(["--shards", "1", "--listen", &url, "--data-dir"])
            .arg(setting.data)
            // Nothing but the campaign says what a broker does.
            .env_remove("STERNA_CONFIG")
            .env("STERNA__LOG__LEVEL", "warn")
            .env("STERNA__SYS__INTERVAL_S", "0")
            .env(
                "STERNA__AUTHENTICATION__ALLOW_ANONYMOUS_BEYOND_LOOPBACK",
                "true",
            );
        let quic = run
            .transport
            .quic
            .iter()
            .map(|(name, value)| (format!("quic.{name}"), value));
        let congestion = run
            .transport
            .congestion
            .iter()
            .map(|name| ("quic.congestion".to_owned(), quic_congestion(name)));
        let broker = run
            .transport
            .broker
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()));
        for (name, value) in congestion
            .chain(quic.map(|(name, value)| (name, value.clone())))
            .chain(broker)
        {
            command.env(
                format!("STERNA__{}", name.replace('.', "__").to_uppercase()),
                value,
            );
        }
        let mut process = Process::start("broker", &mut command)
            .map_err(|error| format!("cannot start a broker: {error}"))?;
        let (port, authority) = read_greeting(&mut process, setting.stop)?;
        Ok(Self {
            process,
            port,
            authority,
        })
    }

    /// Where it listens.
    pub(super) const fn port(&self) -> u16 {
        self.port
    }
}

/// The name of a congestion control among QUIC's.
fn quic_congestion(name: &str) -> String {
    match name {
        "reno" => "newreno",
        other => other,
    }
    .to_owned()
}

/// The port that a scheme is known by.
fn default_port(scheme: &str) -> u16 {
    match scheme {
        "mqtt" => 1883,
        "mqtts" => 8883,
        "ws" => 8083,
        "wss" => 8084,
        _ => 14567,
    }
}

/// The port and the authority's file in what a broker says when it is ready.
fn read_greeting(process: &mut Process, stop: &AtomicBool) -> Result<(u16, PathBuf), String> {
    let deadline = Instant::now() + START_LIMIT;
    let mut port = None;
    loop {
        let line = process.line(deadline, stop)?;
        let line = line.trim();
        if let Some(url) = line.split_ascii_whitespace().next()
            && url.contains("://")
        {
            port = port.or_else(|| url.rsplit_once(':')?.1.parse().ok());
        }
        if let Some((_, authority)) = line.split_once("signed by ") {
            let port = port.ok_or("the broker listens nowhere")?;
            return Ok((port, authority.into()));
        }
    }
}

/// The time, for samples.
pub(super) fn seconds_since_1970() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}

/// Makes a run. `attempts` is how often it has been made, this time included; `started` is called when
/// its programs have started.
pub(super) fn make(setting: &Setting<'_>, run: &Run, attempts: u32, started: &dyn Fn()) -> Sample {
    let began_s = seconds_since_1970();
    let mut sample = Sample::of(run, setting.site.name(), began_s, Verdict::Sound);
    sample.attempts = attempts;
    if let Err(reason) = measure(setting, run, &mut sample, started) {
        sample.verdict = Verdict::Failed { reason };
        sample.metrics.clear();
        sample.series.clear();
    }
    sample
}

fn measure(
    setting: &Setting<'_>,
    run: &Run,
    sample: &mut Sample,
    started: &dyn Fn(),
) -> Result<(), String> {
    let failed = |what: &'static str| move |error: std::io::Error| format!("{what}: {error}");
    let congestion = run.transport.congestion.as_deref();
    let mut site = Site::start(
        setting.site,
        &run.settings,
        run.seed,
        congestion,
        setting.spin,
    )
    .map_err(failed("cannot make the link"))?;
    let has_real_time_emulator = match &site {
        Site::Namespaces { emulator, .. } => emulator.has_real_time(),
        Site::Loopback { .. } => false,
    };
    let mut broker = Broker::start(setting, &site, run)?;
    let target = site
        .reach(broker.port)
        .map_err(failed("cannot reach the broker"))?;
    let deadline = Instant::now() + run.time_limit();
    let timed_beside_broker = run.workload.kind != WorkloadKind::StopAndWait;

    let mut subscriber = if timed_beside_broker {
        let url = format!("{}://127.0.0.1:{}", run.transport.scheme, broker.port);
        let mut process = start_device(
            setting,
            &site,
            ("subscriber", Side::Server),
            &task(run, Role::Subscriber, url, &broker),
        )?;
        expect_ready(&mut process, deadline, setting.stop)?;
        process.say("go")?;
        Some(process)
    } else {
        None
    };
    let role = match run.workload.kind {
        WorkloadKind::OpenLoop => Role::Publisher,
        WorkloadKind::StopAndWait => Role::StopAndWait,
        WorkloadKind::ConnectPublish => Role::ConnectPublish,
    };
    let url = format!("{}://{target}", run.transport.scheme);
    let mut device = start_device(
        setting,
        &site,
        ("device", Side::Client),
        &task(run, role, url, &broker),
    )?;
    expect_ready(&mut device, deadline, setting.stop)?;
    for process in std::iter::once(&broker.process)
        .chain(&subscriber)
        .chain(std::iter::once(&device))
    {
        process.prefer();
    }
    started();
    let before = site.counters().map_err(failed("link"))?;
    let broker_cpu_before = broker.process.cpu_ns();
    device.say("go")?;
    let began = Instant::now();
    events(run, &site, began)?;
    match device.word(deadline, setting.stop)? {
        Word::Finished => {}
        other => return Err(format!("device: said {other:?} before it was finished")),
    }
    // What is still under way gets the time that it may need.
    if let Some(subscriber) = &mut subscriber {
        let rtt = Duration::from_nanos(run.settings.rtt_ns());
        let until = Instant::now() + ARRIVAL_LIMIT + rtt * ARRIVAL_ROUND_TRIPS;
        match subscriber.word(until.min(deadline), setting.stop) {
            Ok(Word::Finished) => {}
            Ok(other) => return Err(format!("subscriber: said {other:?} too early")),
            // Messages are missing. The result says how many.
            Err(reason) if reason.contains("in time") => {}
            Err(reason) => return Err(reason),
        }
    }
    let after = site.counters().map_err(failed("link"))?;
    let broker_cpu_after = broker.process.cpu_ns();
    let until = Instant::now() + START_LIMIT;
    let measured = result(&mut device, until, setting.stop)?;
    let arrived = match &mut subscriber {
        Some(subscriber) => Some(result(subscriber, until, setting.stop)?),
        None => None,
    };
    device.end();
    if let Some(subscriber) = &mut subscriber {
        subscriber.end();
    }
    broker.process.end();
    drop((device, subscriber, broker));
    let report = site.finish().map_err(failed("link"))?;

    if let (Some((up, down)), Some((up_after, down_after))) = (before, after) {
        let work = |name: &str, before: &Counters, after: &Counters, sample: &mut Sample| {
            let packets = after.offered_packets - before.offered_packets;
            let bytes = after.offered_bytes - before.offered_bytes;
            set(sample, &format!("work_packets_{name}"), packets as f64);
            set(sample, &format!("work_bytes_{name}"), bytes as f64);
        };
        work("up", &up, &up_after, sample);
        work("down", &down, &down_after, sample);
    }
    if let (Some(before), Some(after)) = (broker_cpu_before, broker_cpu_after) {
        let cpu_s = after.saturating_sub(before) as f64 / 1e9;
        set(sample, "broker_cpu_s", cpu_s);
    }
    describe_device(run, &measured, arrived.as_ref(), sample)?;
    describe_link(run, &report, &measured, sample);

    set(
        sample,
        "emulator_real_time",
        f64::from(u8::from(has_real_time_emulator)),
    );
    set(
        sample,
        "device_real_time",
        f64::from(u8::from(measured.is_real_time)),
    );
    let pressure_percent = Machine::look().pressure_percent;
    let devices: Vec<&Measured> = std::iter::once(&measured).chain(&arrived).collect();
    let complaints = tolerance::complaints(&tolerance::Conditions {
        settings: &run.settings,
        cell: report.cell.as_ref(),
        overflows: report.overflows,
        devices: &devices,
        has_real_time_emulator,
        pressure_percent,
    });
    if let Some(pressure) = pressure_percent {
        set(sample, "pressure_percent", pressure);
    }
    if !complaints.is_empty() {
        sample.verdict = Verdict::Unsound {
            reasons: complaints,
        };
    }
    Ok(())
}

/// What a device gets to do.
fn task(run: &Run, role: Role, url: String, broker: &Broker) -> Task {
    let transport = &run.transport;
    let workload = &run.workload;
    let mut quic = transport.quic.clone();
    if let Some(name) = &transport.congestion {
        quic.insert("congestion".into(), quic_congestion(name));
    }
    let messages = if role == Role::Subscriber {
        workload.messages * workload.connections
    } else {
        workload.messages
    };
    Task {
        role,
        url,
        server_name: SERVER_NAME.into(),
        authority: broker.authority.clone(),
        tls: transport.tls.clone(),
        resumption: transport.resumption,
        early_data: transport.early_data,
        streams: transport.streams.clone(),
        datagrams: transport.datagrams,
        quic,
        qos: run.qos,
        payload_bytes: run.payload_bytes,
        messages,
        connections: workload.connections,
        topics: workload.topics,
        interval_ns: run.interval_ns,
        wait_connack: workload.wait_connack,
        time_limit_ms: run.time_limit().as_millis() as u64,
    }
}

fn start_device(
    setting: &Setting<'_>,
    site: &Site,
    (name, at): (&'static str, Side),
    task: &Task,
) -> Result<Process, String> {
    let mut command = site.command(at, setting.program);
    command.args(["lab", "device"]);
    let mut process = Process::start(name, &mut command)
        .map_err(|error| format!("cannot start a device: {error}"))?;
    let text = serde_json::to_string(task).map_err(|error| error.to_string())?;
    process.say(&text)?;
    Ok(process)
}

fn expect_ready(process: &mut Process, deadline: Instant, stop: &AtomicBool) -> Result<(), String> {
    match process.word(deadline, stop)? {
        Word::Ready => Ok(()),
        other => Err(format!("a device said {other:?} before it was ready")),
    }
}

/// Ends a device's work and hears what came of it.
fn result(process: &mut Process, deadline: Instant, stop: &AtomicBool) -> Result<Measured, String> {
    process.close();
    loop {
        match process.word(deadline, stop)? {
            Word::Result(measured) => return Ok(*measured),
            // It may have been too late for this one.
            Word::Finished => {}
            Word::Ready | Word::Failed { .. } => return Err("a device lost its way".into()),
        }
    }
}

/// Lets happen to the link what the workload says. Events are few and early, so this thread waits.
fn events(run: &Run, site: &Site, began: Instant) -> Result<(), String> {
    for event in &run.workload.events {
        let at = Duration::from_nanos(quantity::time_ns(&event.at)?);
        thread::sleep(at.saturating_sub(began.elapsed()));
        match event.kind {
            LinkEventKind::Rebind => site.rebind()?,
        }
    }
    Ok(())
}

/// Sets a metric. What is no number (a mean of nothing) is left out.
fn set(sample: &mut Sample, name: &str, value: f64) {
    if value.is_finite() {
        sample.metrics.insert(name.to_owned(), value);
    }
}

fn milliseconds(values: impl IntoIterator<Item = u64>) -> Vec<f64> {
    // Whole microseconds are more than a machine is exact to.
    values
        .into_iter()
        .map(|ns| (ns as f64 / 1e3).round() / 1e3)
        .collect()
}

fn describe_device(
    run: &Run,
    measured: &Measured,
    arrived: Option<&Measured>,
    sample: &mut Sample,
) -> Result<(), String> {
    let total_s = measured.last_ns.saturating_sub(measured.first_ns) as f64 / 1e9;
    set(sample, "total_s", total_s);
    set(sample, "device_cpu_s", measured.cpu_ns as f64 / 1e9);
    set(sample, "peak_rss_bytes", measured.peak_rss_bytes as f64);
    set(sample, "reconnections", f64::from(measured.reconnections));
    set(sample, "late_p99_ms", measured.late_p99_ns as f64 / 1e6);
    for (name, value) in [
        ("quic_packets_lost", measured.packets_lost),
        ("quic_streams", measured.streams),
        ("datagram_messages", measured.datagram_messages),
    ] {
        if let Some(value) = value {
            set(sample, name, value as f64);
        }
    }
    if let Some(rtt_ns) = measured.rtt_ns {
        set(sample, "quic_rtt_ms", rtt_ns as f64 / 1e6);
    }
    let mut put = |name: &str, values: Vec<f64>| {
        if !values.is_empty() {
            sample.series.insert(name.to_owned(), values);
        }
    };
    put(
        "startup_ms",
        milliseconds(measured.connect_ns.iter().copied()),
    );
    put(
        "sent_after_ms",
        milliseconds(measured.sent_after_ns.iter().copied()),
    );
    put(
        "round_trip_ms",
        milliseconds(measured.round_trip_ns.iter().copied()),
    );
    if let Some(arrived) = arrived {
        put("delay_ms", delays(arrived));
        put(
            "sent_at_ms",
            milliseconds(
                first_arrivals(arrived)
                    .map(|(_, sent_ns, _)| sent_ns.saturating_sub(measured.first_ns)),
            ),
        );
    }
    if let (Some(arrived), WorkloadKind::ConnectPublish) = (arrived, run.workload.kind) {
        // A connection's first message has the connection's number.
        let after = first_arrivals(arrived).filter_map(|(number, _, arrived_ns)| {
            let started_ns = measured
                .started_ns
                .get((number / run.workload.messages) as usize)?;
            Some(arrived_ns.saturating_sub(*started_ns))
        });
        put("first_data_ms", milliseconds(after));
    }
    let asked = f64::from(run.workload.messages * run.workload.connections);
    let answered = match arrived {
        Some(arrived) => first_arrivals(arrived).count(),
        None => measured.round_trip_ns.len(),
    };
    set(sample, "arrived_ratio", answered as f64 / asked);
    if answered == 0 {
        return Err("no message arrived".into());
    }
    if let Some(arrived) = arrived {
        let last_ns = arrived.arrivals.iter().map(|(_, _, at)| *at).max();
        let transfer_ns = last_ns.unwrap_or(0).saturating_sub(measured.first_ns);
        set(sample, "transfer_s", transfer_ns as f64 / 1e9);
        let duplicates = arrived.arrivals.len() - answered;
        set(sample, "duplicates", duplicates as f64);
    }
    if let Some(startup) = sample.series.get("startup_ms").and_then(|all| all.first()) {
        let startup = *startup;
        set(sample, "startup_first_ms", startup);
    }
    let accepted = measured
        .early_data
        .iter()
        .filter(|state| *state == "accepted")
        .count();
    set(sample, "early_data_accepted", accepted as f64);
    let tried = measured
        .early_data
        .iter()
        .filter(|state| *state != "not tried")
        .count();
    set(sample, "early_data_tried", tried as f64);
    Ok(())
}

/// The first arrival of each message, in the order of their numbers.
fn first_arrivals(arrived: &Measured) -> impl Iterator<Item = (u32, u64, u64)> {
    let mut all = arrived.arrivals.clone();
    all.sort_by_key(|(number, _, at_ns)| (*number, *at_ns));
    all.dedup_by_key(|(number, _, _)| *number);
    all.into_iter()
}

/// One-way delays: both ends read one clock.
fn delays(arrived: &Measured) -> Vec<f64> {
    milliseconds(first_arrivals(arrived).map(|(_, sent_ns, at_ns)| at_ns.saturating_sub(sent_ns)))
}

fn describe_link(run: &Run, report: &SiteReport, measured: &Measured, sample: &mut Sample) {
    for (name, counters) in [("up", &report.up), ("down", &report.down)] {
        set(
            sample,
            &format!("packets_{name}"),
            counters.offered_packets as f64,
        );
        set(
            sample,
            &format!("bytes_{name}"),
            counters.offered_bytes as f64,
        );
        set(sample, &format!("loss_{name}"), counters.loss_rate());
    }
    let packets = report.up.offered_packets + report.down.offered_packets;
    set(sample, "packets", packets as f64);
    set(
        sample,
        "bytes",
        (report.up.offered_bytes + report.down.offered_bytes) as f64,
    );
    let total_s = sample.metrics.get("total_s").copied().unwrap_or(0.0);
    let work = |name: &str| sample.metrics.get(name).copied();
    let (up, down) = (work("work_packets_up"), work("work_packets_down"));
    if let (Some(up), Some(down)) = (up, down)
        && total_s > 0.0
    {
        set(sample, "packets_per_s", (up + down) / total_s);
        set(sample, "packets_up_per_s", up / total_s);
    }
    for (name, value) in [
        ("tcp_retransmissions_up", report.tcp_retransmissions_up),
        ("tcp_retransmissions_down", report.tcp_retransmissions_down),
    ] {
        if let Some(value) = value {
            set(sample, name, value as f64);
        }
    }
    if let Some(cell) = &report.cell {
        let late = cell.lateness.summary();
        set(sample, "link_late_p99_ms", late.p99_us / 1e3);
        set(sample, "link_late_max_ms", late.max_us / 1e3);
    }
    describe_energy(run, report, measured, total_s, sample);
}

fn describe_energy(
    run: &Run,
    report: &SiteReport,
    measured: &Measured,
    total_s: f64,
    sample: &mut Sample,
) {
    let joules_per_s = BOARDS
        .iter()
        .find(|(name, _, _)| *name == BOARD)
        .map_or(0.0, |(_, joules, _)| *joules);
    let cpu_j = measured.cpu_ns as f64 / 1e9 * joules_per_s;
    set(sample, "cpu_j", cpu_j);
    if total_s > 0.0 {
        set(sample, "board_w", BOARD_IDLE_W + cpu_j / total_s);
    }
    let Some(packets) = &report.packets else {
        return;
    };
    let Some(last) = packets.last() else {
        return;
    };
    let conditions = Conditions {
        up_bps: run.settings.up.rate_bps.map_or(1e9, |rate| rate as f64),
        down_bps: run.settings.down.rate_bps.map_or(1e9, |rate| rate as f64),
        sleep: Sleep::PowerSaving,
        release_assistance: false,
    };
    for (index, (name, radio)) in radios(&run.link).into_iter().enumerate() {
        let period_s = last.at_s.max(total_s) + 1e-3;
        let estimate = crate::energy::estimate(
            name,
            &radio,
            packets,
            period_s,
            &conditions,
            0.0,
            BATTERY_WH,
        );
        // The reference first, then the other set; never one alone.
        let set_name = if index == 0 {
            "radio_j"
        } else {
            "radio_other_j"
        };
        set(sample, set_name, estimate.period_j);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::{Campaign, Plan};

    #[test]
    fn a_message_counts_once_and_with_its_first_arrival() {
        let arrived = Measured {
            arrivals: vec![(1, 5_000, 9_000), (0, 1_000, 3_000), (1, 5_000, 8_000)],
            ..Measured::default()
        };
        assert_eq!(delays(&arrived), [0.002, 0.003]);
    }

    #[test]
    fn a_task_carries_what_the_campaign_says() {
        let (campaign, _) = Campaign::find("mqtt-fernandez-2020").unwrap();
        let plan = Plan::new(&campaign, true, 1, None).unwrap();
        let run = plan
            .runs
            .iter()
            .find(|run| run.transport.scheme == "mqtts")
            .unwrap();
        let mut command = std::process::Command::new("cat");
        let broker = Broker {
            process: Process::start("broker", &mut command).unwrap(),
            port: 1,
            authority: "ca.pem".into(),
        };
        let task = task(run, Role::Subscriber, "mqtts://h:1".into(), &broker);
        assert_eq!(
            task.messages,
            run.workload.messages * run.workload.connections
        );
        assert_eq!(task.quic["congestion"], "cubic");
    }
}
