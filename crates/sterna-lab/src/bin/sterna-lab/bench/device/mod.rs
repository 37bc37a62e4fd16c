//! `sterna-lab bench device`: what publishing a handful of messages costs a device, over MQTT and HTTP/3
//! on QUIC.
//!
//! Each run is a process of its own, so that its memory is that of one device; so is the broker.

mod run;

use std::io::Write as _;
use std::process::{Command, ExitCode, Stdio};

use serde_json::json;
use sterna_client::Url;
use sterna_lab::measure::credentials::{self, PASSWORD, USER};

use super::own_broker::OwnBroker;
use crate::broker_program::BrokerProgram;
use crate::console;
use run::{Cost, Login, Protocol, Task};

/// Most messages of a run.
const MAX_MESSAGES: u32 = 100_000;

/// Publish from devices of their own, and say what that cost each.
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
    /// Be a device: read a task from standard input
    #[arg(long, hide = true)]
    device: bool,
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

/// A kind of device.
const KINDS: [(&str, Protocol, u8, Login); 8] = [
    ("MQTT QoS 0, password", Protocol::Mqtt, 0, Login::Password),
    ("MQTT QoS 1, password", Protocol::Mqtt, 1, Login::Password),
    (
        "MQTT QoS 0, certificate",
        Protocol::Mqtt,
        0,
        Login::Certificate,
    ),
    (
        "MQTT QoS 1, certificate",
        Protocol::Mqtt,
        1,
        Login::Certificate,
    ),
    (
        "HTTP/3, Basic per request",
        Protocol::Http,
        1,
        Login::Password,
    ),
    (
        "HTTP/3, Basic per connection",
        Protocol::Http,
        1,
        Login::PasswordOnce,
    ),
    ("HTTP/3, certificate", Protocol::Http, 1, Login::Certificate),
    (
        "HTTP/3 QoS 0, certificate",
        Protocol::Http,
        0,
        Login::Certificate,
    ),
];

/// Runs the devices and prints the table.
pub(super) fn run(args: &Args) -> ExitCode {
    if args.device {
        return run::run();
    }
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
    for (name, protocol, qos, login) in KINDS {
        for messages in &args.messages {
            let task = Task {
                protocol,
                port: address.port(),
                fingerprint: broker.fingerprint.to_string(),
                folder: broker.folder.clone(),
                user: USER.to_owned(),
                password: PASSWORD.to_owned(),
                login,
                qos,
                messages: *messages,
                payload_bytes: args.payload,
                pause_ms: args.pause,
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
    let failed = |error: std::io::Error| error.to_string();
    let mut child = Command::new(std::env::current_exe().map_err(failed)?)
        .args(["bench", "device", "--device"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let text = serde_json::to_string(task).map_err(|error| error.to_string())?;
    // What it has not read it will miss, and say so.
    let written = child
        .stdin
        .take()
        .map(|mut input| writeln!(input, "{text}"));
    let output = child.wait_with_output().map_err(failed)?;
    if !output.status.success() {
        return Err(format!("the device ended with {}", output.status));
    }
    written.transpose().map_err(failed)?;
    serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
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
