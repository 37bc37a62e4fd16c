//! `sterna-lab bench device`: a device's cost of publishing some messages, over MQTT and HTTP/3 on
//! QUIC.
//!
//! Each run is a process of its own, so that its memory is that of one device; so is the broker.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::ExitCode;

use serde::Serialize;
use serde_json::json;
use sterna_client::Url;
use sterna_lab::measure::credentials::{self, CERTIFICATE, KEY, PASSWORD, USER};
use sterna_lab::measure::device::{Credentials, Role, Task, run_alone};

use super::own_broker::OwnBroker;
use crate::broker_program::BrokerProgram;
use crate::console;

/// Time for acknowledgements that are under way, before packets are counted.
const SETTLE_NS: u64 = 50_000_000;
/// After which a device gives up.
const LIMIT_MS: u64 = 30 * 60 * 1000;

/// Most messages of a run.
const MAX_MESSAGES: u32 = 100_000;

/// Publish from devices of their own, and print the cost of each.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Messages of a run
    #[arg(long, short = 'n', value_name = "N", value_delimiter = ',',
          default_values_t = [1, 10, 25, 50, 100],
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_MESSAGES)))]
    messages: Vec<u32>,
    /// Payload of each message
    #[arg(long, default_value_t = 32, value_name = "BYTES",
          value_parser = clap::value_parser!(u32).range(0..=65_536))]
    payload: u32,
    /// Pause between messages
    #[arg(long, default_value_t = 5, value_name = "MILLISECONDS",
          value_parser = clap::value_parser!(u32).range(0..=60_000))]
    pause: u32,
    /// Runs of each kind; the table has the medians
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// One JSON object for each line of the table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sterna: BrokerProgram,
}

const HELP: &str = "\
A device connects with a full handshake, publishes one message after the other, each when the one
before is acknowledged (QoS 0 of MQTT: handed over), and disconnects. CPU time is that of the process
from its first call on, allocated bytes are all that it asked the allocator for, peak RSS is the most
memory that it ever had, the program's own pages included. Packets are datagrams of QUIC, bytes their
payload without headers of UDP and IP, both up to the acknowledgement of the last message.";

const CONFIGURATION: &str = r#"
[[listener]]
url = "mqtt+quic://127.0.0.1:0"

[authentication]
password_file = "FOLDER/passwords"

[tls]
client_ca = "FOLDER/ca.pem"
certificate_as_username = true

[http]
authentication = "connection"
"#;

/// The scheme of a device's URL.
const MQTT: &str = "mqtt+quic";
const HTTP: &str = "h3";

/// A device's authentication.
#[derive(Clone, Copy)]
enum Login {
    /// By user name and password: in HTTP with each request.
    Password,
    /// The same, in HTTP with the first request.
    PasswordOnce,
    /// By certificate.
    Certificate,
}

/// A device's cost.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
struct Cost {
    /// CPU time of the process, user and system.
    cpu_us: u64,
    /// Number of allocations.
    allocations: u64,
    /// Their sum.
    allocated_bytes: u64,
    /// Most memory that the process ever had.
    peak_rss_bytes: u64,
    /// Datagrams.
    packets_up: u64,
    packets_down: u64,
    /// Their payload.
    bytes_up: u64,
    bytes_down: u64,
}

/// A kind of device.
const KINDS: [(&str, &str, u8, Login); 8] = [
    ("MQTT QoS 0, password", MQTT, 0, Login::Password),
    ("MQTT QoS 1, password", MQTT, 1, Login::Password),
    ("MQTT QoS 0, certificate", MQTT, 0, Login::Certificate),
    ("MQTT QoS 1, certificate", MQTT, 1, Login::Certificate),
    ("HTTP/3, Basic per request", HTTP, 1, Login::Password),
    ("HTTP/3, Basic per connection", HTTP, 1, Login::PasswordOnce),
    ("HTTP/3, certificate", HTTP, 1, Login::Certificate),
    ("HTTP/3 QoS 0, certificate", HTTP, 0, Login::Certificate),
];

/// Runs the devices and prints the table.
pub(super) fn run(args: &Args) -> ExitCode {
    match measure(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => console::fail(why),
    }
}

fn measure(args: &Args) -> Result<(), String> {
    let broker = OwnBroker::start(&args.sterna.find()?, CONFIGURATION, credentials::make)?;
    let address = broker.urls.first().ok_or("the broker listens nowhere")?;
    let address: Url = address.parse().map_err(|error| format!("{error}"))?;
    if !args.json {
        println!(
            "{:29} {:>8} {:>8} {:>11} {:>9} {:>13} {:>17}",
            "", "messages", "CPU ms", "alloc. kB", "RSS kB", "packets", "bytes"
        );
        println!(
            "{:29} {:>8} {:>8} {:>11} {:>9} {:>13} {:>17}",
            "", "", "", "", "peak", "up / down", "up / down"
        );
    }
    for (name, scheme, qos, login) in KINDS {
        for messages in &args.messages {
            let task = Task {
                role: Role::ConnectPublish,
                url: format!("{scheme}://127.0.0.1:{}", address.port()),
                server_name: "localhost".to_owned(),
                authority: Some(broker.folder.join("development-ca.pem")),
                credentials: match login {
                    Login::Certificate => Credentials::Certificate {
                        certificate: broker.folder.join(CERTIFICATE),
                        key: broker.folder.join(KEY),
                    },
                    Login::Password | Login::PasswordOnce => Credentials::Password {
                        user: USER.to_owned(),
                        password: PASSWORD.to_owned(),
                        once: matches!(login, Login::PasswordOnce),
                    },
                },
                tls: None,
                resumption: false,
                fast_open: false,
                early_data: false,
                streams: None,
                datagrams: false,
                pipelined: true,
                queue: None,
                quic: BTreeMap::new(),
                qos,
                payload_bytes: args.payload,
                messages: *messages,
                connections: 1,
                topics: 1,
                interval_ns: 0,
                pause_ns: u64::from(args.pause) * 1_000_000,
                linger_ns: SETTLE_NS,
                spread_ns: 0,
                keep_alive_s: None,
                wait_connack: false,
                qlog: None,
                time_limit_ms: LIMIT_MS,
            };
            let mut costs = Vec::new();
            for _ in 0..args.rounds {
                costs.push(device(&task).map_err(|error| format!("{name}: {error}"))?);
            }
            print(args, name, *messages, &typical(&costs))?;
        }
    }
    Ok(())
}

/// Runs one device.
fn device(task: &Task) -> Result<Cost, String> {
    let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let measured = run_alone(&program, task)?;
    let wire = measured.wire.ok_or("the connection was not QUIC's")?;
    Ok(Cost {
        cpu_us: measured.cpu_ns / 1000,
        allocations: measured.allocations.unwrap_or_default(),
        allocated_bytes: measured.allocated_bytes.unwrap_or_default(),
        peak_rss_bytes: measured.peak_rss_bytes,
        packets_up: wire.packets_up,
        packets_down: wire.packets_down,
        bytes_up: wire.bytes_up,
        bytes_down: wire.bytes_down,
    })
}

/// The median of each figure.
fn typical(costs: &[Cost]) -> Cost {
    let median = |figure: fn(&Cost) -> u64| {
        let mut figures: Vec<_> = costs.iter().map(figure).collect();
        figures.sort_unstable();
        figures.get(figures.len() / 2).copied().unwrap_or_default()
    };
    Cost {
        cpu_us: median(|cost| cost.cpu_us),
        allocations: median(|cost| cost.allocations),
        allocated_bytes: median(|cost| cost.allocated_bytes),
        peak_rss_bytes: median(|cost| cost.peak_rss_bytes),
        packets_up: median(|cost| cost.packets_up),
        packets_down: median(|cost| cost.packets_down),
        bytes_up: median(|cost| cost.bytes_up),
        bytes_down: median(|cost| cost.bytes_down),
    }
}

fn print(args: &Args, name: &str, messages: u32, cost: &Cost) -> Result<(), String> {
    let line = if args.json {
        let mut line = serde_json::to_value(cost).map_err(|error| error.to_string())?;
        line["device"] = json!(name);
        line["messages"] = json!(messages);
        line["payload_bytes"] = json!(args.payload);
        line.to_string()
    } else {
        format!(
            "{name:29} {messages:>8} {:>8.1} {:>11.1} {:>9} {:>5} / {:>5} {:>7} / {:>7}",
            cost.cpu_us as f64 / 1000.0,
            cost.allocated_bytes as f64 / 1000.0,
            cost.peak_rss_bytes / 1024,
            cost.packets_up,
            cost.packets_down,
            cost.bytes_up,
            cost.bytes_down,
        )
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").map_err(|error| format!("standard output: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_medians() {
        let costs = [9, 1, 5].map(|number| Cost {
            cpu_us: number,
            bytes_up: 10 - number,
            ..Cost::default()
        });
        let middle = typical(&costs);
        assert_eq!((middle.cpu_us, middle.bytes_up), (5, 5));
        assert_eq!(typical(&[]), Cost::default());
    }
}
