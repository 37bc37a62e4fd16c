//! `sterna-lab battery`: the life of a device that sends occasional messages.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use sterna_lab::energy::constants::{
    BATTERY_WH, BOARDS, PROFILES_WITH_RADIO, QUIC_ACKNOWLEDGEMENT_BYTES, QUIC_AROUND_MESSAGE_BYTES,
    radios,
};
use sterna_lab::energy::radio::{Conditions, RadioPacket, Sleep};
use sterna_lab::energy::{Estimate, estimate, trace};
use sterna_lab::profile::Profile;
use sterna_lab::quantity;

use crate::console;

/// Longest message, in bytes: one packet.
const MAX_MESSAGE_BYTES: u32 = 1_200;

/// Estimate a battery's life.
///
/// A radio's states are applied to the packets of one exchange, which repeats. The exchange is one
/// message and its acknowledgement on a QUIC connection that stays open, or a capture by
/// `sterna-lab link --capture`. This is a model, not a measurement. The constants, with their sources,
/// are in crates/sterna-lab/src/energy/constants.rs. Several sets of them show their influence.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  sterna-lab battery --profile nb-iot --every 10min --bytes 138
  sterna-lab link --profile nb-iot --capture once --server ... -- sh -c 'mosquitto_pub ...'
  sterna-lab battery --profile nb-iot --every 10min --trace once.client.pcapng")]
pub(super) struct Args {
    /// The radio and its rates: nb-iot, lte-m, wifi, wifi-up, wifi-a, wifi-a-54
    #[arg(long, value_name = "NAME")]
    profile: String,
    /// Interval between messages: 10min, 1h
    #[arg(long, value_name = "TIME", value_parser = quantity::time_ns)]
    every: u64,
    /// Bytes that a message gives to the transport: its topic, payload and MQTT's own
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 138,
        conflicts_with = "trace"
    )]
    bytes: u32,
    /// Take the packets of one exchange from a client's capture
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// The battery, in watt-hours [default: that of 3GPP TR 45.820]
    #[arg(long, value_name = "WH", default_value_t = BATTERY_WH, hide_default_value = true)]
    capacity: f64,
    /// Sleep with extended DRX, so that the device can be reached, instead of power saving mode
    #[arg(long)]
    edrx: bool,
    /// Tell the network that nothing follows, so that it releases the connection early
    #[arg(long)]
    release_assistance: bool,
    /// CPU time of one exchange
    #[arg(long, value_name = "TIME", value_parser = quantity::time_ns, default_value = "0")]
    cpu: u64,
    /// The board with the CPU: zero, 3b, 3b+
    #[arg(long, value_name = "NAME", default_value = "zero")]
    board: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    profile: &'a str,
    period_s: f64,
    packets_up: usize,
    bytes_up: u64,
    packets_down: usize,
    bytes_down: u64,
    capacity_wh: f64,
    estimates: Vec<Estimate>,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> ExitCode {
    console::answer(report(args))
}

fn report(args: &Args) -> Result<String, String> {
    let radios = radios(&args.profile);
    let profile = Profile::find(&args.profile).filter(|_| !radios.is_empty());
    let Some(profile) = profile else {
        return Err(format!(
            "there is no radio for `{}`; there are: {}",
            args.profile,
            PROFILES_WITH_RADIO.join(", ")
        ));
    };
    if !(args.capacity > 0.0 && args.capacity <= 1e6) {
        return Err("--capacity is more than nothing, and a million at the most".into());
    }
    if args.every == 0 {
        return Err("--every is more than nothing".into());
    }
    let Some((_, cpu_w, _)) = BOARDS.iter().find(|board| board.0 == args.board) else {
        let names: Vec<&str> = BOARDS.iter().map(|board| board.0).collect();
        return Err(format!(
            "no board is called `{}`; there are: {}",
            args.board,
            names.join(", ")
        ));
    };
    let settings = profile.settings();
    let period_s = args.every as f64 / 1e9;
    let packets = match &args.trace {
        Some(path) => trace::read(path).map_err(|error| format!("{}: {error}", path.display()))?,
        None => exchange(args.bytes, settings.rtt_ns() as f64 / 1e9)?,
    };
    let Some(last) = packets.last() else {
        return Err("there are no packets in the capture".into());
    };
    if last.at_s >= period_s {
        return Err(format!(
            "an exchange takes {:.1} s, longer than the {period_s} s of --every",
            last.at_s
        ));
    }
    let conditions = Conditions {
        up_bps: settings.up.rate_bps.unwrap_or(u64::MAX) as f64,
        down_bps: settings.down.rate_bps.unwrap_or(u64::MAX) as f64,
        sleep: if args.edrx {
            Sleep::Edrx
        } else {
            Sleep::PowerSaving
        },
        release_assistance: args.release_assistance,
    };
    let cpu_j = args.cpu as f64 / 1e9 * cpu_w;
    let of = |is_sent| packets.iter().filter(move |p| p.is_sent == is_sent);
    let bytes = |is_sent| of(is_sent).map(|packet| u64::from(packet.bytes)).sum();
    let report = Report {
        profile: profile.name,
        period_s,
        packets_up: of(true).count(),
        bytes_up: bytes(true),
        packets_down: of(false).count(),
        bytes_down: bytes(false),
        capacity_wh: args.capacity,
        estimates: radios
            .iter()
            .map(|(name, radio)| {
                estimate(
                    name,
                    radio,
                    &packets,
                    period_s,
                    &conditions,
                    cpu_j,
                    args.capacity,
                )
            })
            .collect(),
    };
    if args.json {
        return serde_json::to_string(&report)
            .map(|text| text + "\n")
            .map_err(|error| error.to_string());
    }
    Ok(table(&report))
}

/// One message on a connection that is kept, and its acknowledgement a round trip later.
fn exchange(bytes: u32, rtt_s: f64) -> Result<Vec<RadioPacket>, String> {
    if bytes > MAX_MESSAGE_BYTES {
        return Err(format!(
            "--bytes is {MAX_MESSAGE_BYTES} at the most, what fits into a packet; take longer \
             exchanges from a capture"
        ));
    }
    Ok(vec![
        RadioPacket {
            at_s: 0.0,
            bytes: bytes + QUIC_AROUND_MESSAGE_BYTES,
            is_sent: true,
        },
        RadioPacket {
            at_s: rtt_s,
            bytes: QUIC_ACKNOWLEDGEMENT_BYTES,
            is_sent: false,
        },
    ])
}

fn table(report: &Report<'_>) -> String {
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = writeln!(
        text,
        "{}, every {}: {} packets and {} bytes up, {} packets and {} bytes down; {} Wh at 3 V",
        report.profile,
        duration(report.period_s),
        report.packets_up,
        report.bytes_up,
        report.packets_down,
        report.bytes_down,
        report.capacity_wh
    );
    for estimate in &report.estimates {
        let _ = writeln!(text, "\n{}", estimate.constants);
        for cost in &estimate.states {
            let _ = writeln!(
                text,
                "  {:10} {:>12.3} s {:>12.3} mJ {:>6.1} %",
                cost.state.name(),
                cost.seconds,
                cost.joules * 1e3,
                cost.joules / estimate.period_j * 100.0
            );
        }
        if estimate.cpu_j > 0.0 {
            let _ = writeln!(
                text,
                "  {:10} {:>14} {:>12.3} mJ {:>6.1} %",
                "CPU",
                "",
                estimate.cpu_j * 1e3,
                estimate.cpu_j / estimate.period_j * 100.0
            );
        }
        let _ = writeln!(
            text,
            "  one period {:.3} mJ, mean {:.4} mW; a linear battery lasts {}, Rakhmatov and \
             Vrudhula's {}",
            estimate.period_j * 1e3,
            estimate.mean_w * 1e3,
            days(estimate.linear_days),
            days(estimate.rakhmatov_vrudhula_days)
        );
    }
    text.push_str("\nA model, not a measurement: constants differ more than transports do.\n");
    text
}

fn duration(seconds: f64) -> String {
    if seconds >= 3600.0 {
        format!("{} h", rounded(seconds / 3600.0))
    } else if seconds >= 60.0 {
        format!("{} min", rounded(seconds / 60.0))
    } else {
        format!("{} s", rounded(seconds))
    }
}

fn days(days: f64) -> String {
    if days >= 730.0 {
        format!("{:.1} years", days / 365.25)
    } else if days >= 2.0 {
        format!("{days:.0} days")
    } else {
        format!("{:.1} h", days * 24.0)
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn run(line: &str) -> Result<String, String> {
        let words = std::iter::once("x").chain(line.split_ascii_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        report(&line.args)
    }

    #[test]
    fn the_parts_and_two_sets_are_shown() {
        let text = run("--profile nb-iot --every 10min --bytes 138 --cpu 10ms").unwrap();
        for word in [
            "1 packets and 196 bytes up",
            "3GPP reference",
            "M5311 module",
            "transmit",
            "connected",
            "sleep",
            "CPU",
            "Rakhmatov",
        ] {
            assert!(text.contains(word), "{word}: {text}");
        }
        let json = run("--profile wifi --every 1s --json").unwrap();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["estimates"].as_array().unwrap().len(), 2);
        assert_eq!(value["bytes_up"], 196);
    }

    #[test]
    fn what_cannot_be_is_explained() {
        for (line, word) in [
            ("--profile satellite --every 1s", "nb-iot"),
            ("--profile nb-iot --every 0", "more than nothing"),
            ("--profile nb-iot --every 1s", "takes 2.0 s"),
            ("--profile wifi --every 1s --bytes 9000", "capture"),
            ("--profile wifi --every 1s --board mega", "3b+"),
            (
                "--profile wifi --every 1s --trace /nonexistent",
                "/nonexistent",
            ),
            ("--profile wifi --every 1s --capacity 0", "capacity"),
        ] {
            let error = run(line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
    }

    #[test]
    fn spans_are_in_the_unit_that_people_use() {
        assert_eq!(duration(600.0), "10 min");
        assert_eq!(duration(1.5), "1.5 s");
        assert_eq!(days(0.5), "12.0 h");
        assert_eq!(days(100.0), "100 days");
        assert_eq!(days(3652.5), "10.0 years");
    }
}
