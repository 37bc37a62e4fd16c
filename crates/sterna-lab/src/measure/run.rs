//! One run: broker, devices and link, from their start to a sample.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::broker::{Broker, START_LIMIT, quic_congestion};
use super::describe::{describe_device, describe_link, set};
use super::device::{Credentials, Measured, Role, Task, Word};
use super::fleet::Course;
use super::process::Process;
use super::qlog::{self, Traces};
use super::sample::{Sample, Verdict};
use super::site::{Site, SiteKind, SiteReport};
use super::{exchanges, program, tolerance};
use crate::calibrate::{CpuTicks, Machine};
use crate::campaign::{Fleet, ForeignDevice, LinkEventKind, Run, WorkloadKind};
use crate::netns::Side;
use crate::quantity;

/// Repetitions that are traced, where any are: one of them will be sound.
const WATCHED_REPETITIONS: u32 = 3;
/// The queue of workloads that have one.
const QUEUE: &str = "lab";
/// How long datagrams may stay under way after the last one left, besides round trips.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(10);
/// The same in round trips.
const ARRIVAL_ROUND_TRIPS: u32 = 8;

/// State that all runs have in common.
#[derive(Debug)]
pub(super) struct Setting<'a> {
    /// The program that is device.
    pub(super) program: &'a Path,
    /// The program `sterna`, whose broker is measured.
    pub(super) sterna: &'a Path,
    /// Where links are made.
    pub(super) site: SiteKind,
    /// Where the broker keeps its certificate.
    pub(super) data: &'a Path,
    /// Where traces go.
    pub(super) qlog: &'a Path,
    /// Set when the campaign is interrupted.
    pub(super) stop: &'a AtomicBool,
    /// Whether emulators may watch the clock instead of sleeping: not where many of them run.
    pub(super) spin: bool,
}

/// The time, for samples.
pub(super) fn seconds_since_1970() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}

/// Makes a run. `attempts` is the number of attempts, this one included; `started` is called when
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
    let mut site = Site::start(setting, &run.link, &run.settings, run.seed, &run.transport)
        .map_err(failed("cannot make the link"))?;
    let has_real_time_emulator = match &site {
        Site::Namespaces { emulator, .. } => emulator.has_real_time(),
        // ns-3 says by its lag whether it had it.
        Site::Ns3 { .. } => true,
        Site::Loopback { .. } => false,
    };
    let mut broker = Broker::start(setting, &site, run)?;
    let target = site
        .reach(broker.port())
        .map_err(failed("cannot reach the broker"))?;
    let deadline = Instant::now() + run.time_limit();
    let beside = format!(
        "{}://{}",
        run.transport.scheme_beside(),
        SocketAddr::new(site.beside_address(), broker.port_beside())
    );
    let timed_beside_broker = matches!(
        run.workload.kind,
        WorkloadKind::OpenLoop | WorkloadKind::ConnectPublish | WorkloadKind::Fleet
    );
    if run.workload.kind == WorkloadKind::ConnectReceive {
        fill_queue(setting, &site, run, &broker, beside.clone(), deadline)?;
    }

    let mut subscriber = if timed_beside_broker {
        let mut process = start_device(
            setting,
            &site,
            run,
            ("subscriber", Side::Server),
            &task(run, Role::Subscriber, beside, &broker),
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
        WorkloadKind::ConnectReceive => Role::ConnectReceive,
        WorkloadKind::Fleet => Role::Fleet,
    };
    let url = format!("{}://{target}", run.transport.scheme);
    let watch_ns = watch_ns(run);
    let traces = (watch_ns > 0).then(|| Traces::of(setting.qlog, run));
    if let Some(traces) = &traces {
        traces.clear().map_err(failed("an old qlog"))?;
    }
    let mut device = start_device(
        setting,
        &site,
        run,
        ("device", Side::Client),
        &Task {
            qlog: traces.as_ref().map(Traces::place),
            ..task(run, role, url, &broker)
        },
    )?;
    expect_ready(&mut device, deadline, setting.stop)?;
    for process in broker
        .process()
        .into_iter()
        .chain(broker.gateway())
        .chain(&subscriber)
        .chain(std::iter::once(&device))
    {
        process.prefer();
    }
    started();
    let mut course = Course::of(run, deadline, setting.stop);
    if let Some(course) = &mut course {
        course.connect(&mut site, &broker, &mut device, sample)?;
    }
    let before = site.passed().map_err(failed("link"))?;
    let ticks_before = CpuTicks::now();
    let has_real_time_broker = broker.process().is_some_and(Process::is_preferred);
    let broker_cpu_before = broker.process().and_then(Process::cpu_ns);
    device.say("go")?;
    let began = Instant::now();
    events(run, &site, began)?;
    match device.word(deadline, setting.stop)? {
        Word::Finished => {}
        other => return Err(format!("device: said {other:?} before it was finished")),
    }
    // A run ends when the receiver has everything. Of what may be lost on the way, nobody knows
    // whether it still comes.
    if let Some(subscriber) = &mut subscriber {
        let rtt = Duration::from_nanos(run.settings.rtt_ns());
        let until = if run.transport.is_reliable() {
            deadline
        } else {
            Instant::now() + ARRIVAL_LIMIT + rtt * ARRIVAL_ROUND_TRIPS
        };
        match subscriber.word(until.min(deadline), setting.stop) {
            Ok(Word::Finished) => {}
            Ok(other) => return Err(format!("subscriber: said {other:?} too early")),
            // Messages are missing. The result has their number.
            Err(reason) if reason.contains("in time") => {}
            Err(reason) => return Err(reason),
        }
    }
    let after = site.passed().map_err(failed("link"))?;
    let ticks_after = CpuTicks::now();
    let broker_cpu_after = broker.process().and_then(Process::cpu_ns);
    let until = Instant::now() + START_LIMIT;
    let arrived = match &mut subscriber {
        Some(subscriber) => Some(result(subscriber, until, setting.stop)?),
        None => None,
    };
    if let Some(course) = &mut course {
        let places = (&mut site, &mut broker, &mut device);
        course.power_cut(setting, run, places, sample)?;
    }
    let until = Instant::now() + START_LIMIT;
    let measured = result(&mut device, until, setting.stop)?;
    device.end();
    if let Some(subscriber) = &mut subscriber {
        subscriber.end();
    }
    let early = broker.end(setting.stop)?;
    drop((device, subscriber));
    let report = site.finish().map_err(failed("link"))?;

    if let (Some(before), Some(after)) = (before, after) {
        for (name, before, after) in [
            ("up", &before.up, &after.up),
            ("down", &before.down, &after.down),
        ] {
            let packets = after.offered_packets - before.offered_packets;
            let bytes = after.offered_bytes - before.offered_bytes;
            set(sample, &format!("work_packets_{name}"), packets as f64);
            set(sample, &format!("work_bytes_{name}"), bytes as f64);
        }
        if let (Some(before), Some(after)) = (before.energy_j, after.energy_j) {
            // In place of the model's, which has no packets to go by.
            set(sample, "radio_j", after - before);
        }
        if let (Some((before, _)), Some((after, late_percent))) = (before.air, after.air) {
            for (name, value) in after.since(&before) {
                set(sample, name, value);
            }
            set(sample, "ns3_late_percent", late_percent);
        }
    }
    if let (Some(before), Some(after)) = (broker_cpu_before, broker_cpu_after) {
        let cpu_s = after.saturating_sub(before) as f64 / 1e9;
        set(sample, "broker_cpu_s", cpu_s);
    }
    describe_device(run, &measured, arrived.as_ref(), sample)?;
    if let Some(early) = early {
        // The device does not know what became of TLS's.
        set(sample, "early_data_accepted", f64::from(early.early));
    }
    describe_link(run, &report, &measured, sample);
    exchanges::describe(run, &report, arrived.as_ref(), sample)?;
    if let Some(course) = &course {
        course.describe(&measured, sample);
    }
    if let Some(traces) = traces {
        let moments = traces.read(watch_ns)?;
        let (first_ns, epoch_ns) = (measured.first_ns, measured.qlog_epoch_ns);
        qlog::describe(&moments, first_ns, epoch_ns, sample);
    }

    for (name, has_real_time) in [
        ("emulator_real_time", has_real_time_emulator),
        ("broker_real_time", has_real_time_broker),
        ("device_real_time", measured.is_real_time),
    ] {
        set(sample, name, f64::from(u8::from(has_real_time)));
    }
    if let (Some(before), Some(after)) = (ticks_before, ticks_after) {
        set(sample, "steal_percent", after.stolen_percent_since(&before));
    }
    if let Ok(bytes) = program::loaded_bytes(setting.sterna) {
        set(sample, "program_bytes", bytes as f64);
    }
    note_in_force(&report, &measured, sample);
    let pressure_percent = Machine::look().pressure_percent;
    let devices: Vec<&Measured> = std::iter::once(&measured).chain(&arrived).collect();
    let complaints = tolerance::complaints(&tolerance::Conditions {
        settings: &run.settings,
        interval_ns: run.interval_ns,
        report: &report,
        devices: &devices,
        congestion: wanted_congestion(run)
            .as_deref()
            .zip(measured.congestion.as_deref()),
        has_real_time_emulator,
        pressure_percent,
        busy: course.as_ref().map_or(&[][..], Course::busy),
    });
    if let Some(pressure) = pressure_percent {
        set(sample, "pressure_percent", pressure);
    }
    if !complaints.is_empty() {
        sample.verdict = Verdict::Unsound {
            reasons: complaints,
        };
    } else if let Some(reason) = loss(run, sample) {
        sample.verdict = Verdict::Incomplete { reason };
    }
    Ok(())
}

/// The reason why a run is incomplete: messages that a reliable transport has not delivered.
fn loss(run: &Run, sample: &Sample) -> Option<String> {
    let asked = f64::from(run.workload.messages * run.workload.connections);
    let arrived = asked * sample.metrics.get("arrived_ratio")?;
    (run.transport.is_reliable() && arrived.round() < asked).then(|| {
        format!(
            "{} of {asked} messages did not arrive",
            asked - arrived.round()
        )
    })
}

/// Distance between the points of a trace of a cell's first runs, for figures; 0 if there is none.
fn watch_ns(run: &Run) -> u64 {
    if run.repetition >= WATCHED_REPETITIONS {
        return 0;
    }
    // The campaign's file has been checked.
    let watch = run.workload.watch.as_deref();
    watch
        .and_then(|every| quantity::time_ns(every).ok())
        .unwrap_or(0)
}

/// The actual settings, by name.
fn note_in_force(report: &SiteReport, measured: &Measured, sample: &mut Sample) {
    let facts = [
        ("tls", report.negotiated.clone()),
        ("congestion", measured.congestion.clone()),
    ];
    for (name, fact) in facts {
        if let Some(fact) = fact {
            sample.in_force.insert(name.into(), fact);
        }
    }
}

/// The congestion control that a run's connection was to have, as its transport names it.
fn wanted_congestion(run: &Run) -> Option<String> {
    // Which one another's device has is kept, not judged: few stacks let it be chosen.
    if run.transport.device.is_some() {
        return None;
    }
    let wanted = run.transport.congestion.as_deref()?;
    Some(if run.transport.is_quic() {
        quic_congestion(wanted)
    } else {
        wanted.to_owned()
    })
}

/// Puts all messages of a run into the broker's queue, from beside the broker.
fn fill_queue(
    setting: &Setting<'_>,
    site: &Site,
    run: &Run,
    broker: &Broker,
    url: String,
    deadline: Instant,
) -> Result<(), String> {
    let task = Task {
        messages: run.workload.messages * run.workload.connections,
        interval_ns: 0,
        qos: 1,
        ..task(run, Role::Publisher, url, broker)
    };
    let mut filler = start_device(setting, site, run, ("filler", Side::Server), &task)?;
    expect_ready(&mut filler, deadline, setting.stop)?;
    filler.say("go")?;
    match filler.word(deadline, setting.stop)? {
        Word::Finished => {}
        other => return Err(format!("filler: said {other:?} before it was finished")),
    }
    result(&mut filler, deadline, setting.stop)?;
    filler.wait();
    Ok(())
}

/// A device's task.
fn task(run: &Run, role: Role, url: String, broker: &Broker) -> Task {
    let transport = &run.transport;
    let workload = &run.workload;
    let fleet = workload.fleet.as_ref();
    let mut quic = transport.quic.clone();
    if let Some(name) = &transport.congestion {
        quic.insert("congestion".into(), quic_congestion(name));
    }
    if role == Role::Subscriber {
        return subscriber(run, url, broker);
    }
    Task {
        role,
        url,
        server_name: broker.server_name().into(),
        authority: broker.authority().map(Path::to_owned),
        credentials: broker.credentials().clone(),
        tls: transport.tls.clone(),
        resumption: transport.resumption,
        early_data: transport.early_data,
        fast_open: transport.fast_open,
        streams: transport.streams.clone(),
        pipelined: !transport.step_by_step,
        queue: (workload.kind == WorkloadKind::ConnectReceive).then(|| QUEUE.to_owned()),
        datagrams: transport.datagrams,
        quic,
        qos: run.qos,
        payload_bytes: run.payload_bytes,
        messages: workload.messages,
        connections: workload.connections,
        topics: workload.topics,
        interval_ns: run.interval_ns,
        pause_ns: 0,
        // The campaign's file has been checked.
        linger_ns: transport
            .linger
            .as_deref()
            .and_then(|linger| quantity::time_ns(linger).ok())
            .unwrap_or(0),
        spread_ns: fleet.map_or(0, Fleet::spread_ns),
        keep_alive_s: fleet.and_then(|fleet| fleet.keep_alive_s),
        wait_connack: workload.wait_connack,
        qlog: None,
        time_limit_ms: run.time_limit().as_millis() as u64,
    }
}

/// The task of the subscriber beside the broker. It connects as devices of all transports do.
fn subscriber(run: &Run, url: String, broker: &Broker) -> Task {
    let credentials = match broker.credentials() {
        Credentials::Password { user, password, .. } => Credentials::Password {
            user: user.clone(),
            password: password.clone(),
            once: false,
        },
        other => other.clone(),
    };
    Task {
        role: Role::Subscriber,
        url,
        server_name: broker.server_name().into(),
        authority: broker.authority().map(Path::to_owned),
        credentials,
        tls: None,
        resumption: false,
        early_data: false,
        fast_open: false,
        streams: None,
        pipelined: true,
        queue: None,
        datagrams: false,
        quic: BTreeMap::new(),
        qos: run.qos,
        payload_bytes: run.payload_bytes,
        messages: run.workload.messages * run.workload.connections,
        connections: 1,
        topics: run.workload.topics,
        interval_ns: 0,
        pause_ns: 0,
        linger_ns: 0,
        spread_ns: 0,
        keep_alive_s: None,
        wait_connack: false,
        qlog: None,
        time_limit_ms: run.time_limit().as_millis() as u64,
    }
}

fn start_device(
    setting: &Setting<'_>,
    site: &Site,
    run: &Run,
    (name, at): (&'static str, Side),
    task: &Task,
) -> Result<Process, String> {
    let foreign = run.transport.device.as_ref();
    let foreign = foreign.filter(|_| at == Side::Client);
    let program = foreign.map_or(setting.program, ForeignDevice::program);
    let mut command = site.command(at, program);
    command.arg("device");
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

/// Ends a device's work and returns its result.
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

/// Executes the workload's events on the link. Events are few and early, so this thread waits.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::{Campaign, Plan};

    #[test]
    fn a_task_carries_what_the_campaign_says() {
        let (campaign, _) = Campaign::find("mqtt-fernandez-2020").unwrap();
        let plan = Plan::new(&campaign, true, 1, &[]).unwrap();
        let run = plan
            .runs
            .iter()
            .find(|run| run.transport.name == "quic-0rtt")
            .unwrap();
        let broker = Broker::for_test();
        let of = |role, scheme: &str| task(run, role, format!("{scheme}://h:1"), &broker);
        let device = of(Role::ConnectPublish, "mqtt+quic");
        assert_eq!(device.quic["congestion"], "cubic");
        assert!(device.early_data && device.resumption);
        // The last leg is the same, whatever is measured.
        assert_eq!(run.transport.scheme_beside(), "mqtts");
        let subscriber = of(Role::Subscriber, "mqtts");
        assert_eq!(subscriber.messages, 2);
        assert!(!subscriber.early_data && subscriber.quic.is_empty());
    }

    #[test]
    fn a_reliable_transport_that_loses_is_no_success() {
        let (campaign, _) = Campaign::find("beyond-mqtt").unwrap();
        let plan = Plan::new(&campaign, true, 1, &[]).unwrap();
        let lost = |transport: &str, arrived_ratio: f64| {
            let mut runs = plan.runs.iter();
            let run = runs.find(|run| run.transport.name == transport).unwrap();
            let mut sample = Sample::of(run, "tun", 0, Verdict::Sound);
            sample.metrics.insert("arrived_ratio".into(), arrived_ratio);
            loss(run, &sample)
        };
        assert_eq!(lost("tls", 1.0), None);
        let reason = lost("tls", 0.99).unwrap();
        assert!(reason.starts_with("1 of 100 messages did not"), "{reason}");
        assert!(lost("quic-messages", 0.0).is_some());
        assert_eq!(lost("quic-datagrams", 0.5), None);
    }
}
