//! `sterna-lab bench`: loads any MQTT broker, and prints arrivals, rate and cost. It also measures
//! the cost of HTTP for devices and this program's broker.
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
mod sessions;
mod silence;
#[cfg(test)]
mod tests;

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use hdrhistogram::Histogram;
use serde_json::json;

use flow::{OwnTopics, Pace, Plan, Shape};
use links::LinkOptions;
use links::target::Target;
use packets::{Login, STAMP_BYTES};
use report::{Report, float};
use sterna_client::arguments::{self, Place, Quic, Trust, first_given, version};
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
    #[command(disable_help_flag = true)]
    Pairs {
        /// Publishers, and as many subscribers
        #[arg(long, short = 'n', default_value_t = 10)]
        pairs: usize,
        #[command(flatten)]
        closed: Closed,
        #[command(flatten)]
        common: Common,
    },
    /// N publishers to N subscribers at a fixed rate; latency counts from when a message was due
    #[command(disable_help_flag = true)]
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
    #[command(disable_help_flag = true)]
    FanIn {
        /// Publishers
        #[arg(long, short = 'n', default_value_t = 50)]
        publishers: usize,
        #[command(flatten)]
        closed: Closed,
        #[command(flatten)]
        common: Common,
    },
    /// One publisher to N subscribers
    #[command(disable_help_flag = true)]
    FanOut {
        /// Subscribers
        #[arg(long, short = 'n', default_value_t = 1000)]
        subscribers: usize,
        #[command(flatten)]
        closed: Closed,
        #[command(flatten)]
        common: Common,
    },
    /// N publishers, and no connected subscriber: for sessions that are away. Counts acknowledgements
    #[command(disable_help_flag = true)]
    Publish {
        /// Publishers
        #[arg(long, short = 'n', default_value_t = 10)]
        publishers: usize,
        /// Publish to the filters of N sessions of `sessions --own-filters`, not to the one of all
        #[arg(long, default_value_t = 0, value_name = "N")]
        own_topics: u32,
        /// Only every N-th message goes there
        #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        every: u64,
        #[command(flatten)]
        closed: Closed,
        #[command(flatten)]
        common: Common,
    },
    /// Make N sessions that outlive their connections, with a filter each, and go away
    #[command(disable_help_flag = true)]
    Sessions {
        /// Sessions
        #[arg(long, short = 'n', default_value_t = 1000)]
        sessions: u32,
        /// Number of the first of them: a part of its client identifier, and of its own filter
        #[arg(long, default_value_t = 0, value_name = "NUMBER")]
        first: u32,
        /// Each has a filter of its own, not the one of all
        #[arg(long)]
        own_filters: bool,
        /// End after this time, with the sessions that there are
        #[arg(long, default_value_t = 600.0)]
        seconds: f64,
        #[command(flatten)]
        common: Common,
    },
    /// Return to sessions one after the other, and take what each has waiting
    #[command(disable_help_flag = true)]
    Wake {
        /// Sessions
        #[arg(long, short = 'n', default_value_t = 1)]
        sessions: u32,
        /// Number of the first of them
        #[arg(long, default_value_t = 0, value_name = "NUMBER")]
        first: u32,
        /// Messages that each has waiting
        #[arg(long, default_value_t = 1)]
        messages: u64,
        /// Longest wait for all messages of a session
        #[arg(long, default_value_t = 60.0)]
        seconds: f64,
        #[command(flatten)]
        common: Common,
    },
    /// Open N connections, hold them, and ask at the end whether they are alive
    #[command(disable_help_flag = true)]
    Idle {
        /// Connections to hold (10 more are opened first, as a warm-up)
        #[arg(long, short = 'n', default_value_t = 1000)]
        connections: usize,
        /// Time to hold them, in seconds
        #[arg(long, default_value_t = 3.0, value_name = "SECONDS")]
        hold: f64,
        #[command(flatten)]
        common: Common,
    },
    /// Connect again and again, alone and then beside N handshakes that never end
    #[command(disable_help_flag = true)]
    Silent {
        /// Silent clients: QUIC clients that stop after their first datagram, TLS clients in the middle
        /// of theirs, TCP clients that say nothing
        #[arg(long, short = 'n', default_value_t = 2000)]
        silent: usize,
        /// Connects to measure each time (50 more are made first, as a warm-up)
        #[arg(long, default_value_t = 500)]
        connects: u64,
        /// Number of measurements of both; the ratio is the median of as many
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
        rounds: u16,
        /// Wait between two rounds, for the broker to give up on handshakes over QUIC
        #[arg(long, default_value_t = 12.0, value_name = "SECONDS")]
        forget: f64,
        #[command(flatten)]
        common: Common,
    },
    /// Connect N times: transport, handshake, CONNECT, CONNACK, DISCONNECT
    #[command(disable_help_flag = true)]
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
    #[command(flatten)]
    traffic: Traffic,
}

/// Messages.
#[derive(clap::Args, Clone, Debug)]
struct Traffic {
    /// Quality of service of publishers and subscribers
    #[arg(long, short = 'q', value_name = "QOS", default_value = "0", value_parser = arguments::qos)]
    qos: QoS,
    /// Payload, 16 bytes at least
    #[arg(long, default_value_t = 64, value_name = "BYTES")]
    payload: usize,
    /// Length of the measurement
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Load before the measurement begins
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    warm_up: f64,
    /// End the measurement after N deliveries, if that is earlier
    #[arg(long, default_value_t = 50_000_000)]
    messages: u64,
    /// Do not sleep between turns (takes one core whole)
    #[arg(long)]
    busy_poll: bool,
    /// Sessions of subscribers outlive their connections (MQTT 3.1.1)
    #[arg(long)]
    durable: bool,
}

/// Where and how.
#[derive(clap::Args, Clone, Debug)]
struct Common {
    #[command(flatten)]
    place: Place,
    /// Version of MQTT: 5, 311 or 31
    #[arg(short = 'V', long, value_name = "VERSION", default_value = "311", value_parser = version)]
    protocol_version: Version,
    #[command(flatten)]
    login: arguments::Credentials,
    #[command(flatten)]
    trust: Trust,
    #[command(flatten)]
    quic: Quic,
    /// Start of all client identifiers, for sessions that a later run returns to
    #[arg(long, value_name = "TEXT")]
    client_prefix: Option<String>,
    /// Give every client a will with a payload of N bytes, retained in a topic of its own
    #[arg(long, value_name = "BYTES")]
    will: Option<u16>,
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
    /// Print this help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// Fields of every CONNECT of the run.
struct Credentials {
    version: Version,
    prefix: String,
    username: Option<String>,
    password: Option<Vec<u8>>,
    will: Option<Vec<u8>>,
}

impl Credentials {
    fn new(common: &Common) -> Result<Self, String> {
        let login = common.login.login(&common.place.url(&common.trust)?);
        let password = login.password;
        if (password.as_ref()).is_some_and(|password| password.len() > usize::from(u16::MAX)) {
            return Err("--pw: a password has at most 65,535 bytes".to_owned());
        }
        if !common.protocol_version.is_v5() && password.is_some() && login.user.is_none() {
            return Err("--pw: before MQTT 5 a password needs a user name".to_owned());
        }
        Ok(Self {
            version: common.protocol_version,
            prefix: (common.client_prefix.clone())
                .unwrap_or_else(|| format!("bench-{}", std::process::id())),
            username: login.user,
            password: password.map(String::into_bytes),
            will: (common.will).map(|bytes| vec![b'x'; usize::from(bytes)]),
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
            durable: false,
            will: self.will.as_deref(),
        }
    }
}

/// Runs the workload and prints its result.
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
        | Workload::Publish { common, .. }
        | Workload::Sessions { common, .. }
        | Workload::Wake { common, .. }
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
    let url = common.place.url(&common.trust)?;
    let target = Target::resolve(&url, &common.trust.tls())?;
    common.trust.refuse_idle(url.scheme())?;
    if let Some(flag) = first_given(&common.quic.given()).filter(|_| !url.scheme().is_quic()) {
        let name = url.scheme().name();
        return Err(format!("{flag}: {name}:// does not travel over QUIC"));
    }
    let quic = common.quic.overrides()?;
    if quic.key_share.is_some() || quic.cipher.is_some() {
        return Err(
            "--quic-set: every broker is loaded with X25519 and AES-128-GCM first".to_owned(),
        );
    }
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
    let options = |resume| {
        let mut tls = common.trust.tls();
        tls.resumption = resume;
        // It does nothing where SSLKEYLOGFILE is not set.
        tls.key_log = true;
        LinkOptions {
            target: target.clone(),
            tls,
            quic: quic.clone(),
            shared_udp_socket: common.shared_udp_socket,
            packets_per_ack: common.packets_per_ack,
        }
    };
    let at_once = common.at_once.clamp(1, 10_000);
    let limit = Duration::from_secs_f64(MAX_SECONDS / 12.0);

    let windowed = |name, shape, closed: &Closed| {
        let pace = Pace::Window(closed.window);
        (name, shape, pace, closed.traffic.clone())
    };
    let mut own_topics = OwnTopics::default();
    let (name, shape, pace, traffic) = match workload {
        Workload::Pairs { pairs, closed, .. } => windowed("pairs", Shape::Pairs(*pairs), closed),
        Workload::Rate {
            pairs,
            rate,
            traffic,
            ..
        } => {
            if *rate == 0 {
                return Err("a rate of nothing".to_owned());
            }
            (
                "rate",
                Shape::Pairs(*pairs),
                Pace::Rate(*rate),
                traffic.clone(),
            )
        }
        Workload::FanIn {
            publishers, closed, ..
        } => windowed("fan-in", Shape::FanIn(*publishers), closed),
        Workload::FanOut {
            subscribers,
            closed,
            ..
        } => windowed("fan-out", Shape::FanOut(*subscribers), closed),
        Workload::Publish {
            publishers,
            own_topics: count,
            every,
            closed,
            ..
        } => {
            if closed.traffic.qos == QoS::AtMostOnce {
                return Err("publish counts acknowledgements: --qos is 1 or 2".to_owned());
            }
            own_topics = OwnTopics {
                count: *count,
                every: *every,
            };
            windowed("publish", Shape::Unheard(*publishers), closed)
        }
        Workload::Sessions {
            sessions,
            first,
            own_filters,
            seconds: limit,
            ..
        } => {
            check(at_once)?;
            only_persistent_by_flag(common)?;
            let plan = sessions::Making {
                first: *first,
                count: *sessions,
                own_filters: *own_filters,
                at_once,
                limit: seconds(*limit, "--seconds")?,
            };
            let made = sessions::make(&plan, &options(false), &credentials, broker)?;
            sessions::report_made(&mut report, &made);
            return Ok(report);
        }
        Workload::Wake {
            sessions,
            first,
            messages,
            seconds: limit,
            ..
        } => {
            only_persistent_by_flag(common)?;
            let limit = seconds(*limit, "--seconds")?;
            let numbers = *first..first.saturating_add(*sessions);
            let woken = sessions::wake(numbers, *messages, limit, &options(false), &credentials)?;
            sessions::report_woken(&mut report, &woken);
            return Ok(report);
        }
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
            // One after the other: the question is the time of each, not their number.
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
    if traffic.durable {
        only_persistent_by_flag(common)?;
    }
    let (Shape::Pairs(count) | Shape::FanIn(count) | Shape::FanOut(count) | Shape::Unheard(count)) =
        shape;
    check(count.saturating_mul(2))?;
    let plan = Plan {
        shape,
        pace,
        qos: traffic.qos,
        payload_bytes: traffic.payload,
        warm_up: seconds(traffic.warm_up, "--warm-up")?,
        duration: seconds(traffic.seconds, "--seconds")?,
        max_messages: traffic.messages,
        at_once,
        busy_poll: traffic.busy_poll,
        durable: traffic.durable,
        own_topics,
    };
    let outcome = flow::run(&plan, &options(false), &credentials, broker)?;
    report.fact("workload", json!(name));
    report.fact("clients", json!(count));
    report.fact("qos", json!(traffic.qos as u8));
    report.fact("payload_bytes", json!(plan.payload_bytes));
    match pace {
        Pace::Window(window) => report.fact("window", json!(window)),
        Pace::Rate(rate) => report.fact("due_per_s", json!(rate)),
    }
    report.fact("delivered", json!(outcome.delivered));
    if plan.qos.is_acknowledged() {
        report.fact("acknowledged", json!(outcome.acknowledged));
    }
    report.fact("lost", json!(outcome.lost));
    report.fact("repeated", json!(outcome.repeated));
    report.figure("wall_s", outcome.wall.as_secs_f64(), "time", "s");
    let rate = float(outcome.delivered) / outcome.wall.as_secs_f64();
    report.figure("rate_per_s", rate, "rate", "deliveries a second");
    report.latency("latency", &outcome.latencies);
    report.percentiles(
        "acknowledgement_us",
        "acknowledgement",
        &outcome.acknowledgements,
    );
    if matches!(shape, Shape::Unheard(_)) {
        let count = outcome.acknowledged;
        report.usage(&outcome.before, &outcome.after, count, "acknowledgement");
    } else {
        let count = outcome.delivered;
        report.usage(&outcome.before, &outcome.after, count, "delivery");
    }
    report.written(&outcome.before, &outcome.after, outcome.acknowledged);
    Ok(report)
}

/// Refuses MQTT 5.0, where the end of a session is a property, and not the flag that this program sets.
fn only_persistent_by_flag(common: &Common) -> Result<(), String> {
    if common.protocol_version.is_v5() {
        return Err(
            "sessions that outlive their connection need --protocol-version 311".to_owned(),
        );
    }
    Ok(())
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
