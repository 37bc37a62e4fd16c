//! `sterna tune`: QUIC settings for a path, with the reason for each.

use std::process::ExitCode;

use serde::Serialize;
use sterna_quic::{Advice, PathDescription, advise};

use super::exit::{self, Failure};
use super::output;

/// Print QUIC settings for a path, with the reason for each.
///
/// Says what the guide docs/tuning.md says, for one path: a TOML table that can be put into the
/// broker's configuration. Nothing is measured and nothing is sent.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Units: times in us, ms, s, m or h; rates in bit, kbit, mbit or gbit per second, of 1,000; loss in %.

Examples:
  sterna tune --rtt 2s --rate 127kbit --loss 2% --mtu 1280
  sterna tune --rtt 600ms --rate 1.5mbit --message 100 --every 1s
  sterna tune --rtt 2s --rate 127kbit --rate-up 159kbit --every 1h > quic.toml")]
pub(crate) struct Args {
    /// Round trip without queues, such as 600ms
    #[arg(long, value_name = "TIME", value_parser = time_us)]
    rtt: u64,
    /// Rate, such as 127kbit; with --rate-up that towards the device
    #[arg(long, value_name = "RATE", value_parser = bits_per_s)]
    rate: u64,
    /// Rate from the device
    #[arg(long, value_name = "RATE", value_parser = bits_per_s)]
    rate_up: Option<u64>,
    /// Datagrams lost at random each way
    #[arg(long, value_name = "PERCENT", default_value = "0%", value_parser = percent)]
    loss: f64,
    /// Largest IP packet that passes, in bytes
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u16>,
    /// Size of a typical message, in bytes
    #[arg(long, value_name = "BYTES")]
    message: Option<u32>,
    /// Time between two messages of a device
    #[arg(long, value_name = "TIME", value_parser = time_us)]
    every: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Advises, and prints.
pub(crate) fn run(args: &Args) -> ExitCode {
    let result = path(args)
        .and_then(|path| advise(&path))
        .map_err(Failure::from)
        .and_then(|advice| {
            let text = if args.json {
                json(&advice)?
            } else {
                format!("{}\n{}", heading(args), advice.toml())
            };
            output::print(text.as_bytes())
        });
    exit::code(result, false)
}

fn path(args: &Args) -> Result<PathDescription, String> {
    Ok(PathDescription {
        rtt_us: u32::try_from(args.rtt).map_err(|_| "the round trip must be from 1us to 60s")?,
        rate_down_bits_per_s: args.rate,
        rate_up_bits_per_s: args.rate_up.unwrap_or(args.rate),
        loss_percent: args.loss,
        mtu_bytes: args.mtu,
        message_bytes: args.message,
        message_interval_ms: args.every.map(|us| us / 1_000),
    })
}

/// The path of the advice, as a comment before it.
fn heading(args: &Args) -> String {
    let mtu = args.mtu.map(|mtu| format!(", MTU {mtu}"));
    format!(
        "# QUIC on a path with a round trip of {} ms, {} kbit/s down, {} kbit/s up, {}% loss{}.",
        args.rtt as f64 / 1_000.0,
        args.rate as f64 / 1_000.0,
        args.rate_up.unwrap_or(args.rate) as f64 / 1_000.0,
        args.loss,
        mtu.unwrap_or_default()
    )
}

/// The advice, and in `overrides` only what differs from the profile.
fn json(advice: &Advice) -> Result<String, Failure> {
    #[derive(Serialize)]
    struct Full<'a> {
        #[serde(flatten)]
        advice: &'a Advice,
        overrides: sterna_quic::Overrides,
    }
    let full = Full {
        advice,
        overrides: advice.overrides(),
    };
    let text = serde_json::to_string_pretty(&full).map_err(Failure::local)?;
    Ok(text + "\n")
}

/// Reads a number with a unit, in the smallest of the units.
fn quantity(text: &str, what: &str, example: &str, units: &[(&str, f64)]) -> Result<f64, String> {
    let names: Vec<_> = units.iter().map(|(name, _)| *name).collect();
    let wrong = |problem: &str| {
        format!(
            "{problem}: {what} is a number with one of the units {}, such as {example}",
            names.join(", ")
        )
    };
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    if number.is_empty() {
        return Err(wrong("no number"));
    }
    let Ok(number) = number.parse::<f64>() else {
        return Err(wrong(&format!("`{number}` is no number")));
    };
    let unit = unit.trim();
    if unit.is_empty() {
        return Err(wrong("no unit"));
    }
    units
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit))
        .map(|(_, factor)| number * factor)
        .ok_or_else(|| wrong(&format!("unknown unit `{}`", unit.escape_debug())))
}

/// A quantity as a whole number.
fn whole(quantity: f64, what: &str) -> Result<u64, String> {
    // Everything beyond is no path of this planet, and exact in a floating-point number.
    if quantity.is_finite() && (0.0..=1e15).contains(&quantity) {
        #[allow(clippy::cast_sign_loss, reason = "checked above")]
        Ok(quantity.round() as u64)
    } else {
        Err(format!("{what} is too large"))
    }
}

/// A time in microseconds.
fn time_us(text: &str) -> Result<u64, String> {
    let units = [
        ("us", 1.0),
        ("ms", 1e3),
        ("s", 1e6),
        ("m", 60e6),
        ("h", 3_600e6),
    ];
    whole(quantity(text, "a time", "600ms", &units)?, "the time")
}

/// A rate in bits per second.
fn bits_per_s(text: &str) -> Result<u64, String> {
    let units = [("bit", 1.0), ("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)];
    whole(quantity(text, "a rate", "127kbit", &units)?, "the rate")
}

/// A share in percent; the sign may be left out.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    match number.parse::<f64>() {
        Ok(percent) if percent.is_finite() => Ok(percent),
        _ => Err(format!(
            "`{}` is no share in percent, such as 2%",
            number.escape_debug()
        )),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Args {
        Cli::parse_from(std::iter::once("tune").chain(line.split(' '))).args
    }

    fn advice(line: &str) -> Advice {
        advise(&path(&args(line)).unwrap()).unwrap()
    }

    #[test]
    fn units_are_read() {
        assert_eq!(time_us("2s"), Ok(2_000_000));
        assert_eq!(time_us("600ms"), Ok(600_000));
        assert_eq!(time_us("1.5 s"), Ok(1_500_000));
        assert_eq!(time_us("1h"), Ok(3_600_000_000));
        assert_eq!(bits_per_s("127kbit"), Ok(127_000));
        assert_eq!(bits_per_s("1.5Mbit"), Ok(1_500_000));
        assert_eq!(percent("2%"), Ok(2.0));
        assert_eq!(percent("0.5"), Ok(0.5));
    }

    #[test]
    fn wrong_units_are_answered_with_the_right_ones() {
        let help = "a time is a number with one of the units us, ms, s, m, h, such as 600ms";
        assert_eq!(time_us("600"), Err(format!("no unit: {help}")));
        assert_eq!(time_us("ms"), Err(format!("no number: {help}")));
        assert_eq!(time_us("-1s"), Err(format!("no number: {help}")));
        assert_eq!(
            time_us("1.2.3s"),
            Err(format!("`1.2.3` is no number: {help}"))
        );
        assert_eq!(time_us("2sec"), Err(format!("unknown unit `sec`: {help}")));
        assert_eq!(
            bits_per_s("127kB"),
            Err(
                "unknown unit `kB`: a rate is a number with one of the units bit, kbit, mbit, gbit, \
                 such as 127kbit"
                    .to_owned()
            )
        );
        assert_eq!(
            time_us(&format!("{}h", "9".repeat(400))),
            Err("the time is too large".into())
        );
        assert_eq!(
            percent("two%"),
            Err("`two` is no share in percent, such as 2%".to_owned())
        );
        assert!(percent("inf").is_err());
    }

    #[test]
    fn what_is_printed_is_a_configuration_with_the_same_settings() {
        #[derive(serde::Deserialize)]
        struct File {
            quic: sterna_quic::Overrides,
        }
        let line = "--rtt 2s --rate 127kbit --loss 2% --mtu 1280";
        let advice = advice(line);
        let text = format!("{}\n{}", heading(&args(line)), advice.toml());
        let file: File = toml::from_str(&text).unwrap();
        assert_eq!(file.quic.settings(), advice.settings);
        assert!(text.starts_with(
            "# QUIC on a path with a round trip of 2000 ms, 127 kbit/s down, 127 kbit/s up, 2% loss, \
             MTU 1280.\n"
        ));
    }

    #[test]
    fn json_has_settings_reasons_and_overrides() {
        let advice = advice("--rtt 600ms --rate 1.5mbit --message 100 --every 1s");
        let json: serde_json::Value = serde_json::from_str(&json(&advice).unwrap()).unwrap();
        assert_eq!(json["profile"], "satellite");
        assert_eq!(json["settings"]["max_ack_delay_ms"], 300);
        assert_eq!(json["reasons"][0]["name"], "initial_rtt_ms");
        assert_eq!(json["overrides"]["profile"], "satellite");
        let settings: sterna_quic::Settings =
            serde_json::from_value(json["settings"].clone()).unwrap();
        assert_eq!(settings, advice.settings);
        let overrides: sterna_quic::Overrides =
            serde_json::from_value(json["overrides"].clone()).unwrap();
        assert_eq!(overrides.settings(), advice.settings);
    }
}
