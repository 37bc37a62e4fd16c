//! `sterna trace`: the way of messages through a running broker, live.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use sterna_client::arguments::seconds;

use super::admin::connection::{Admin, Connection, segment};
use super::admin::table::{harmless, json};
use super::exit::{self, Failure};
use super::signals;

/// Longest silence: the broker says every 15 s that the trace goes on, by default.
const SILENCE: Duration = Duration::from_secs(60);

/// Show the way of messages through a running broker, as it happens.
///
/// Received, matched, queued, sent, acknowledged, dropped and why. By the admin listener, with the role
/// `operator` (docs/admin.md). Ends with Ctrl-C.
#[derive(clap::Args, Debug)]
#[command(after_help = help())]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Messages that this client publishes or gets: the client identifier of MQTT, or a session's name as
    /// `sterna admin sessions list` shows it, such as `$http/USER/NAME`
    #[arg(long, value_name = "CLIENT")]
    client: Option<String>,
    /// Only what the node of the listener sees, and no other one of its cluster
    #[arg(long)]
    local: bool,
    /// Messages whose topics match this filter
    #[arg(short = 't', long, value_name = "FILTER")]
    topic: Option<String>,
    /// Only these events, with commas between; those of the audit log are login, login_refused and action
    #[arg(long, value_name = "NAMES")]
    events: Option<String>,
    /// Print the lines of JSON as they come
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// End after N events
    #[arg(short = 'C', value_name = "N", help_heading = "Output",
          value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after this time, with status 27
    #[arg(short = 'W', value_name = "SECONDS", value_parser = seconds, help_heading = "Output")]
    wait: Option<Duration>,
}

fn help() -> String {
    format!(
        "\
Examples:
  sterna trace --client sensor-7
  sterna trace -t 'house/#' -C 10 --json
  sterna trace --events login,login_refused,refused,dropped,action
  sterna trace --client sensor-7 -L admins://broker.example -u ann --cafile ca.pem

{}",
        exit::HELP
    )
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    exit::code(super::block_on(trace(args)), false)
}

async fn trace(args: &Args) -> Result<(), Failure> {
    if args.client.is_none() && args.topic.is_none() && args.events.is_none() {
        return Err(Failure::local(
            "nothing to trace: give one or more of --client, -t and --events",
        ));
    }
    let mut signals = signals::listen();
    let admin = args.connection.client()?;
    let is_open = AtomicBool::new(false);
    tokio::select! {
        traced = follow(args, &admin, &is_open) => traced,
        _ = signals.recv() => if is_open.load(Ordering::Relaxed) { Ok(()) } else { Err(Failure::unconnected()) },
        () = over(args.wait) => Err(Failure::new(exit::TIMEOUT, "")),
    }
}

/// Ends when the time is over; never without one.
async fn over(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}

async fn follow(args: &Args, admin: &Admin, is_open: &AtomicBool) -> Result<(), Failure> {
    let mut query = Vec::new();
    for (name, value) in [
        ("client", &args.client),
        ("topic", &args.topic),
        ("events", &args.events),
    ] {
        query.extend(
            value
                .as_ref()
                .map(|value| format!("{name}={}", segment(value))),
        );
    }
    if args.local {
        query.push("local=yes".to_owned());
    }
    let mut lines = admin.lines(&format!("/trace?{}", query.join("&"))).await?;
    is_open.store(true, Ordering::Relaxed);
    let mut seen = 0;
    while args.count.is_none_or(|count| seen < count) {
        let line = tokio::time::timeout(SILENCE, lines.next()).await;
        let line = line.map_err(|_| Failure::new(exit::LOST, "the broker is silent"))?;
        let Some(line) = line.map_err(|error| admin.cut_off(&error))? else {
            return Err(Failure::new(exit::LOST, "the broker has ended the trace"));
        };
        let Ok(event) = serde_json::from_slice::<Value>(&line) else {
            continue;
        };
        let name = event["event"].as_str().unwrap_or_default();
        if name == "alive" {
            continue;
        }
        seen += u64::from(!matches!(name, "watching" | "unanswered" | "lost"));
        let text = if args.json {
            json(&event) + "\n"
        } else {
            format!("{}\n", describe(&event))
        };
        let mut out = std::io::stdout().lock();
        let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        written.map_err(|_| Failure::quiet())?;
    }
    Ok(())
}

/// An event as a line for people.
fn describe(event: &Value) -> String {
    let text = |name: &str| event[name].as_str().map(harmless);
    let number = |name: &str| event[name].as_u64();
    let mut line = time_of_day(number("at_ms").unwrap_or(0));
    let name = text("event").unwrap_or_default();
    let _ = write!(line, " {name:12}");
    if let Some(node) = text("node") {
        let _ = write!(line, " {node}");
    }
    if let Some(topic) = text("topic") {
        let _ = write!(line, " {topic}");
    }
    for (word, member) in [
        ("from", "publisher"),
        ("reader", "reader"),
        ("by", "protocol"),
        ("client", "client"),
        ("user", "user"),
        ("at", "peer"),
        (
            if event["reason"].is_null() {
                "did"
            } else {
                "could not do"
            },
            "action",
        ),
        ("on", "on"),
    ] {
        let is_nobody = member == "user" && name == "action" && event[member].is_null();
        match text(member) {
            // Its client has no name.
            Some(value) if value.is_empty() && member != "on" => {
                let _ = write!(line, " {word} anonymous");
            }
            Some(value) if !value.is_empty() => {
                let _ = write!(line, " {word} {value}");
            }
            None if is_nobody => {
                let _ = write!(line, " {word} anonymous");
            }
            _ => {}
        }
    }
    for (word, member) in [
        ("matched", "matched"),
        ("away", "away"),
        ("bytes", "payload_bytes"),
        ("qos", "qos"),
        ("waiting", "waiting"),
        ("messages", "messages"),
        ("reason code", "reason_code"),
        ("events", "events"),
    ] {
        // Nobody is away as a rule.
        if let Some(value) = number(member).filter(|value| *value > 0 || member != "away") {
            let _ = write!(line, " {word} {value}");
        }
    }
    if event["redelivered"] == true {
        line.push_str(" again");
    }
    for member in ["outcome", "reason"] {
        if let Some(value) = text(member) {
            let _ = write!(line, ": {value}");
        }
    }
    line
}

/// Hours, minutes, seconds and milliseconds of a day in UTC.
fn time_of_day(at_ms: u64) -> String {
    let (s, ms) = (at_ms / 1000, at_ms % 1000);
    format!(
        "{:02}:{:02}:{:02}.{ms:03}",
        s / 3600 % 24,
        s / 60 % 60,
        s % 60
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_are_lines_for_people() {
        let at_ms = 1_700_000_000_123_u64;
        for (event, line) in [
            (
                json!({"event": "received", "at_ms": at_ms, "topic": "t/1", "publisher": "a", "matched": 2, "payload_bytes": 7, "qos": 1}),
                "22:13:20.123 received     t/1 from a matched 2 bytes 7 qos 1",
            ),
            (
                json!({"event": "acknowledged", "at_ms": at_ms, "topic": "t", "reader": "b\u{7}", "outcome": "rejected", "reason_code": 151}),
                "22:13:20.123 acknowledged t reader b\\u{7} reason code 151: rejected",
            ),
            (
                json!({"event": "received", "at_ms": at_ms, "topic": "t", "publisher": "", "matched": 0}),
                "22:13:20.123 received     t from anonymous matched 0",
            ),
            (
                json!({"event": "queued", "at_ms": at_ms, "node": "node-2", "topic": "t", "reader": "b", "waiting": 1}),
                "22:13:20.123 queued       node-2 t reader b waiting 1",
            ),
            (
                json!({"event": "unanswered", "at_ms": at_ms, "node": "node-3", "reason": "no answer"}),
                "22:13:20.123 unanswered   node-3: no answer",
            ),
            (
                json!({"event": "received", "at_ms": at_ms, "topic": "t", "publisher": null, "matched": 0}),
                "22:13:20.123 received     t matched 0",
            ),
            (
                json!({"event": "action", "at_ms": at_ms, "user": null, "action": "ban", "on": "user eve", "reason": null}),
                "22:13:20.123 action       user anonymous did ban on user eve",
            ),
            (
                json!({"event": "action", "at_ms": at_ms, "user": "oli", "action": "endSession", "on": "panel",
                    "reason": "there is no such session"}),
                "22:13:20.123 action       user oli could not do endSession on panel: there is no such session",
            ),
            (
                json!({"event": "dropped", "at_ms": at_ms, "topic": "t", "reader": "b", "reason": "away", "messages": 1}),
                "22:13:20.123 dropped      t reader b messages 1: away",
            ),
        ] {
            assert_eq!(describe(&event), line);
        }
    }
}
