//! `sterna-lab bench`: loads any MQTT broker and says what arrived, how fast, and at what cost; and what
//! HTTP costs devices and this program's broker.
//!
//! One thread and one readiness loop, so that the generator needs less CPU for a message than the
//! broker under test. Every run is bounded in messages and in time.

mod device;
mod flow;
mod http;
mod idle;
mod links;
mod own_broker;
mod packets;
mod report;
mod silence;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use hdrhistogram::Histogram;
use serde_json::json;

use flow::{Pace, Plan, Shape};
use links::LinkOptions;
use links::target::Target;
use links::tls::Trust;
use packets::{Login, STAMP_BYTES};
use report::{Report, float};
use sterna_mqtt::{QoS, Version};

use crate::console;
use crate::process::{self, Process};

/// The most connections of one run.
const MAX_CONNECTIONS: usize = 200_000;
/// The largest payload of one message.
const MAX_PAYLOAD_BYTES: usize = 512 * 1024;
/// The longest run.
const MAX_SECONDS: f64 = 3600.0;
/// Latencies above this are recorded as this.
const MAX_LATENCY_NS: u64 = 60_000_000_000;

fn new_latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(100, MAX_LATENCY_NS, 3)
        .unwrap_or_else(|_| unreachable!("the bounds are constants that the histogram takes"))
}

/// Load a broker and measure it
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Subcommand, Debug)]
enum Benchmark {
    #[command(flatten)]
    Load(Workload),
    Device(device::Args),
    Http(http::Args),
}

#[derive(Subcommand, Debug)]
enum Workload {
    /// N publishers to N subscribers, one to one, as fast as the window allows
    Pairs {
        /// Publishers, and as many subscribers
        #[arg(long, short = 'n', default_value_t = 10)]
        pairs: usize,
        #[command(flatten)]
        closed: Closed,
        #[command(flatten)]
        traffic: Traffic,
        #[command(flatten)]
        common: Common,
    },
    /// N publishers to N subscribers at a fixed rate; latency counts from when a message was due
    Rate {
        /// Publishers, and as many subscribers
        #[arg(long, short = 'n', default_value_t = 10)]
        pairs: usize,
        /// Messages a second over all publishers
        #[arg(long, short = 'r', default_value_t = 10_000)]
        rate: u32,
        #[command(flatten)]
        traffic: Traffic,
        #[command(flatten)]
        common: Common,
    },
    /// N publishers to one subscriber
    FanIn {
        /// Publishers
        #[arg(long, short = 'n', default_value_t = 50)]
        publishers: usize,
        #[command(flatten)]
        closed: Closed,
        #[command(flatten)]
        traffic: Traffic,
        #[command(flatten)]
        common: Common,
    },
    /// One publisher to N subscribers
    FanOut {
        /// Subscribers
        #[arg(long, short = 'n', default_value_t = 1000)]
        subscribers: usize,
        #[command(flatten)]
        closed: Closed,
        #[command(flatten)]
        traffic: Traffic,
        #[command(flatten)]
        common: Common,
    },
    /// Open N connections, hold them, and ask at the end whether they are alive
    Idle {
        /// Connections to hold (10 more are opened first, as a warm-up)
        #[arg(long, short = 'n', default_value_t = 1000)]
        connections: usize,
        /// How long to hold them
        #[arg(long, default_value_t = 3.0, value_name = "SECONDS")]
        hold: f64,
        #[command(flatten)]
        common: Common,
    },
    /// Connect again and again, alone and then beside N handshakes that never end
    Silent {
        /// Silent clients: QUIC clients that stop after their first datagram, TLS clients in the middle
        /// of theirs, TCP clients that say nothing
        #[arg(long, short = 'n', default_value_t = 2000)]
        silent: usize,
        /// Connects to measure each time (50 more are made first, as a warm-up)
        #[arg(long, default_value_t = 500)]
        connects: u64,
        /// How often to measure both; the ratio is the median of as many
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
        rounds: u16,
        /// Wait between two rounds, for the broker to give up on handshakes over QUIC
        #[arg(long, default_value_t = 12.0, value_name = "SECONDS")]
        forget: f64,
        #[command(flatten)]
        common: Common,
    },
    /// Connect N times: transport, handshake, CONNECT, CONNACK, DISCONNECT
    Connect {
        /// Connects (50 more are made first, as a warm-up)
        #[arg(long, short = 'n', default_value_t = 2000)]
        connects: u64,
        /// Resume TLS sessions; on QUIC the CONNECT then travels as early data where it may
        #[arg(long)]
        resume: bool,
        #[command(flatten)]
        common: Common,
    },
}

/// A closed loop.
#[derive(clap::Args, Clone, Debug)]
struct Closed {
    /// Messages of one publisher under way at most, counted until they arrive
    #[arg(long, short = 'w', default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    window: u32,
}

/// Messages.
#[derive(clap::Args, Clone, Debug)]
struct Traffic {
    /// Quality of service of publishers and subscribers
    #[arg(long, short = 'q', default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    qos: u8,
    /// Payload, 16 bytes at least
    #[arg(long, default_value_t = 64, value_name = "BYTES")]
    payload: usize,
    /// Length of the measurement
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Load before the measurement begins
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    warm_up: f64,
    /// End the measurement after so many deliveries, if that is earlier
    #[arg(long, default_value_t = 50_000_000)]
    messages: u64,
    /// Do not sleep between turns (takes one core whole)
    #[arg(long)]
    busy_poll: bool,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
enum Mqtt {
    #[value(name = "3.1.1")]
    V311,
    #[value(name = "5")]
    V5,
}

/// Where and how.
#[derive(clap::Args, Clone, Debug)]
struct Common {
    /// mqtt://, mqtts://, ws://, wss:// or mqtt+quic://HOST[:PORT]
    url: String,
    /// Protocol version
    #[arg(long, value_enum, default_value_t = Mqtt::V311)]
    mqtt: Mqtt,
    /// Trust the certificate authorities in this PEM file instead of the system's
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    ca: Option<PathBuf>,
    /// Believe any certificate: for brokers of your own on your own machine
    #[arg(long)]
    insecure: bool,
    /// User name
    #[arg(long)]
    username: Option<String>,
    /// File with the password
    #[arg(long, value_name = "FILE", requires = "username")]
    password_file: Option<PathBuf>,
    /// Connections that are opened at the same time
    #[arg(long, default_value_t = 16)]
    at_once: usize,
    /// One UDP socket for all QUIC connections, instead of one each as devices have
    #[arg(long)]
    shared_udp_socket: bool,
    /// Ask the broker to acknowledge only every N-th QUIC packet, where it knows that extension
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    packets_per_ack: Option<u32>,
    /// Process of the broker on this machine: report its CPU time and memory too
    #[arg(long)]
    pid: Option<u32>,
    /// Run on this core only
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// What every CONNECT of the run carries.
struct Credentials {
    version: Version,
    prefix: String,
    username: Option<String>,
    password: Option<Vec<u8>>,
}

impl Credentials {
    fn new(common: &Common) -> Result<Self, String> {
        let read = |path: &PathBuf| {
            let mut bytes = std::fs::read(path)
                .map_err(|e| format!("cannot read '{}': {e}", path.display()))?;
            while bytes.last().is_some_and(|b| matches!(b, b'\n' | b'\r')) {
                bytes.pop();
            }
            if bytes.len() > usize::from(u16::MAX) {
                return Err("a password has at most 65,535 bytes".to_owned());
            }
            Ok(bytes)
        };
        Ok(Self {
            version: match common.mqtt {
                Mqtt::V311 => Version::V311,
                Mqtt::V5 => Version::V5,
            },
            prefix: format!("bench-{}", std::process::id()),
            username: common.username.clone(),
            password: common.password_file.as_ref().map(read).transpose()?,
        })
    }

    fn client_id(&self, number: usize) -> String {
        format!("{}-{number}", self.prefix)
    }

    /// All but the client identifier.
    fn login(&self) -> Login<'_> {
        Login {
            version: self.version,
            client_id: "",
            user_name: self.username.as_deref(),
            password: self.password.as_deref(),
        }
    }
}

/// Runs the workload and prints what came of it.
pub(crate) fn run(args: &Args) -> ExitCode {
    let workload = match &args.benchmark {
        Benchmark::Load(workload) => workload,
        Benchmark::Device(args) => return device::run(args),
        Benchmark::Http(args) => return http::run(args),
    };
    let common = workload_common(workload);
    console::answer(measure(workload, common).map(|report| report.show(common.json)))
}

fn workload_common(workload: &Workload) -> &Common {
    match workload {
        Workload::Pairs { common, .. }
        | Workload::Rate { common, .. }
        | Workload::FanIn { common, .. }
        | Workload::FanOut { common, .. }
        | Workload::Idle { common, .. }
        | Workload::Silent { common, .. }
        | Workload::Connect { common, .. } => common,
    }
}

fn seconds(value: f64, name: &str) -> Result<Duration, String> {
    if (0.0..=MAX_SECONDS).contains(&value) {
        Ok(Duration::from_secs_f64(value))
    } else {
        Err(format!(
            "{name} must be between 0 and {MAX_SECONDS} seconds"
        ))
    }
}

fn measure(workload: &Workload, common: &Common) -> Result<Report, String> {
    let target = Target::resolve(&common.url)?;
    let credentials = Credentials::new(common)?;
    let broker = common.pid.map(Process::find).transpose()?;
    if let Some(cpu) = common.cpu {
        process::pin(cpu).map_err(|e| format!("cannot run on core {cpu}: {e}"))?;
    }
    let open_files = process::raise_open_files();
    let check = |connections: usize| {
        if connections == 0 || connections > MAX_CONNECTIONS {
            return Err(format!(
                "between 1 and {MAX_CONNECTIONS} connections, not {connections}"
            ));
        }
        if connections as u64 + 64 > open_files {
            return Err(format!(
                "{connections} connections need more open files than the {open_files} that this \
                 process may have (ulimit -n)"
            ));
        }
        Ok(())
    };
    let mut report = Report::default();
    report.fact("transport", json!(target.scheme.name()));
    let options = |resume| LinkOptions {
        target: target.clone(),
        trust: match (&common.ca, common.insecure) {
            (_, true) => Trust::Anybody,
            (Some(path), false) => Trust::File(path.clone()),
            (None, false) => Trust::System,
        },
        shared_udp_socket: common.shared_udp_socket,
        packets_per_ack: common.packets_per_ack,
        resume,
    };
    let at_once = common.at_once.clamp(1, 10_000);
    let limit = Duration::from_secs_f64(MAX_SECONDS / 12.0);

    let (name, shape, pace, traffic) = match workload {
        Workload::Pairs {
            pairs,
            closed,
            traffic,
            ..
        } => (
            "pairs",
            Shape::Pairs(*pairs),
            Pace::Window(closed.window),
            traffic,
        ),
        Workload::Rate {
            pairs,
            rate,
            traffic,
            ..
        } => {
            if *rate == 0 {
                return Err("a rate of nothing".to_owned());
            }
            ("rate", Shape::Pairs(*pairs), Pace::Rate(*rate), traffic)
        }
        Workload::FanIn {
            publishers,
            closed,
            traffic,
            ..
        } => (
            "fan-in",
            Shape::FanIn(*publishers),
            Pace::Window(closed.window),
            traffic,
        ),
        Workload::FanOut {
            subscribers,
            closed,
            traffic,
            ..
        } => (
            "fan-out",
            Shape::FanOut(*subscribers),
            Pace::Window(closed.window),
            traffic,
        ),
        Workload::Idle {
            connections, hold, ..
        } => {
            check(*connections)?;
            let hold = seconds(*hold, "--hold")?;
            let outcome = idle::hold(
                *connections,
                at_once,
                hold,
                limit,
                &options(false),
                &credentials,
                broker,
            )?;
            report_held(&mut report, &outcome);
            return Ok(report);
        }
        Workload::Silent {
            silent,
            connects,
            rounds,
            forget,
            ..
        } => {
            check(*silent)?;
            let forget = seconds(*forget, "--forget")?;
            let options = options(false);
            // One after the other: how long each takes is what is asked, not how many get through.
            let measure = || idle::come_and_go(*connects, 1, limit, &options, &credentials, broker);
            let crowd = silence::compare(*silent, *rounds, forget, &options, measure)?;
            report.fact("workload", json!("silent"));
            report.fact("silent", json!(silent));
            report.fact("silent_answered", json!(crowd.answered));
            report.fact("silent_retried", json!(crowd.retried));
            report.fact("failed", json!(crowd.failed));
            report.latency("until CONNACK, beside them", &crowd.beside);
            let alone_us = silence::median_us(&crowd.alone);
            report.figure("alone_us", alone_us, "until CONNACK, alone, p50", "us");
            let label = "beside them against alone, p50";
            report.figure("ratio", crowd.ratio, label, "");
            return Ok(report);
        }
        Workload::Connect {
            connects, resume, ..
        } => {
            check(at_once)?;
            let done = idle::come_and_go(
                *connects,
                at_once,
                limit,
                &options(*resume),
                &credentials,
                broker,
            )?;
            report.fact("workload", json!("connect"));
            report.fact("connects", json!(done.connects));
            report.fact("failed", json!(done.failed));
            if let Some(why) = done.first_failure {
                report.fact("first_failure", json!(why));
            }
            report.figure("wall_s", done.wall.as_secs_f64(), "time", "s");
            let rate = float(done.connects) / done.wall.as_secs_f64();
            report.figure("rate_per_s", rate, "rate", "connects a second");
            report.latency("until CONNACK", &done.latencies);
            report.usage(&done.before, &done.after, done.connects, "connect");
            return Ok(report);
        }
    };
    if !(STAMP_BYTES..=MAX_PAYLOAD_BYTES).contains(&traffic.payload) {
        return Err(format!(
            "--payload must be between {STAMP_BYTES} and {MAX_PAYLOAD_BYTES}"
        ));
    }
    let (Shape::Pairs(count) | Shape::FanIn(count) | Shape::FanOut(count)) = shape;
    check(count.saturating_mul(2))?;
    let plan = Plan {
        shape,
        pace,
        qos: QoS::from_u8(traffic.qos).unwrap_or_default(),
        payload_bytes: traffic.payload,
        warm_up: seconds(traffic.warm_up, "--warm-up")?,
        duration: seconds(traffic.seconds, "--seconds")?,
        max_messages: traffic.messages,
        at_once,
        busy_poll: traffic.busy_poll,
    };
    let outcome = flow::run(&plan, &options(false), &credentials, broker)?;
    report.fact("workload", json!(name));
    report.fact("clients", json!(count));
    report.fact("qos", json!(traffic.qos));
    report.fact("payload_bytes", json!(plan.payload_bytes));
    match pace {
        Pace::Window(window) => report.fact("window", json!(window)),
        Pace::Rate(rate) => report.fact("due_per_s", json!(rate)),
    }
    report.fact("delivered", json!(outcome.delivered));
    report.fact("lost", json!(outcome.lost));
    report.fact("repeated", json!(outcome.repeated));
    report.figure("wall_s", outcome.wall.as_secs_f64(), "time", "s");
    let rate = float(outcome.delivered) / outcome.wall.as_secs_f64();
    report.figure("rate_per_s", rate, "rate", "deliveries a second");
    report.latency("latency", &outcome.latencies);
    report.usage(
        &outcome.before,
        &outcome.after,
        outcome.delivered,
        "delivery",
    );
    Ok(report)
}

fn report_held(report: &mut Report, held: &idle::Held) {
    report.fact("workload", json!("idle"));
    report.fact("connections", json!(held.connections));
    report.fact("alive", json!(held.alive));
    report.figure(
        "opened_in_s",
        held.opened_in.as_secs_f64(),
        "opened in",
        "s",
    );
    report.figure("held_for_s", held.lasted.as_secs_f64(), "held for", "s");
    if held.after.resident_bytes > 0 {
        let growth = |to: u64| {
            float(to.saturating_sub(held.before.resident_bytes)) / float(held.connections)
        };
        let (opened, after) = (
            growth(held.opened.resident_bytes),
            growth(held.after.resident_bytes),
        );
        let whole = float(held.before.resident_bytes / 1024);
        report.figure("resident_kib", whole, "broker memory", "KiB, before");
        report.figure(
            "bytes_opened",
            opened,
            "broker memory",
            "bytes a connection, just opened",
        );
        report.figure(
            "bytes_held",
            after,
            "broker memory",
            "bytes a connection, after the hold",
        );
        let busy = held.after.cpu.saturating_sub(held.opened.cpu).as_secs_f64();
        let cores = busy / held.lasted.as_secs_f64().max(0.001);
        report.figure("idle_cores", cores, "broker CPU while idle", "cores");
    }
    report.usage(&held.before, &held.opened, held.connections, "connection");
}
