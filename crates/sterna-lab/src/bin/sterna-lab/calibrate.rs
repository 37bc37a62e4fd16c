//! `sterna-lab calibrate`: the accuracy of the link on this machine.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use sterna_lab::calibrate::{self, Machine, Measurement, Quantity, Row};
use sterna_lab::netns::Family;
use sterna_lab::quantity::show_rate;
use sterna_lab::session;

use super::settings::LinkArgs;
use crate::console;

/// The exit status for a link that differs from its settings.
const UNTRUE: u8 = 2;
/// Longest measurement of one row, in seconds.
const MAX_SECONDS: f64 = 600.0;

/// Measure how true the emulated link is on this machine.
///
/// Without options that describe a link, a table of delays, rates, jitter and losses; with them,
/// that link in both directions. It has the requirements of `sterna-lab link`.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
A rate is true within 2 %, a delay when 95 % of the packets are late by no more than 1 ms, a loss
when chance explains its difference.

Exit status: 0 all is true, 1 it could not be measured, 2 something is not true")]
pub(super) struct Args {
    #[command(flatten)]
    link: LinkArgs,
    /// Measure over IPv6
    #[arg(long)]
    ipv6: bool,
    /// Time to measure each row, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    seconds: f64,
    /// Measure N links at once, one packet a second on each
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=2000))]
    links: Option<u16>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    machine: &'a Machine,
    rows: &'a [Row],
    warnings: &'a [String],
    is_true: bool,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> ExitCode {
    match measure(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(UNTRUE),
        Err(error) => console::fail(error),
    }
}

fn measure(args: &Args) -> Result<bool, String> {
    if !(args.seconds > 0.0 && args.seconds <= MAX_SECONDS) {
        return Err(format!("--seconds is from 0 to {MAX_SECONDS}"));
    }
    let duration = Duration::from_secs_f64(args.seconds);
    let settings = args.link.settings()?;
    if settings
        .hops()
        .any(|hop| hop.up.trace.is_some() || hop.down.trace.is_some())
    {
        return Err("a link with a delivery trace has no rate to compare".into());
    }
    let measurements = if let Some(links) = args.links {
        vec![calibrate::many(usize::from(links), duration)]
    } else if args.link.is_given() {
        calibrate::measurements_of(&args.link.profile, &settings, duration)
    } else {
        calibrate::suite(duration)
    };
    let family = Family::of(args.ipv6);
    let measurements: Vec<Measurement> = measurements
        .into_iter()
        .map(|measurement| measurement.over(family))
        .collect();
    session::gain_rights();
    session::check_rights()?;
    let machine = Machine::look();
    let mut warnings: Vec<String> = machine.complaint().into_iter().collect();
    let mut out = io::stdout().lock();
    let failed = |error: io::Error| format!("standard output: {error}");
    if !args.json {
        out.write_all(heading(&machine, &measurements).as_bytes())
            .map_err(failed)?;
    }
    let mut rows = Vec::new();
    for measurement in &measurements {
        let measured = measurement
            .run(args.link.seed)
            .map_err(|error| format!("{}: {error}", measurement.link()))?;
        for row in measured {
            if !args.json {
                writeln!(out, "{}", line(&row)).map_err(failed)?;
                out.flush().map_err(failed)?;
            }
            rows.push(row);
        }
    }
    warnings.extend(calibrate::complaint(&rows));
    let is_true = rows.iter().all(|row| row.is_true);
    if args.json {
        let report = Report {
            machine: &machine,
            rows: &rows,
            warnings: &warnings,
            is_true,
        };
        serde_json::to_writer(&mut out, &report).map_err(|error| error.to_string())?;
        writeln!(out).map_err(failed)?;
    } else {
        for warning in &warnings {
            writeln!(out, "warning: {warning}").map_err(failed)?;
        }
        let good = rows.iter().filter(|row| row.is_true).count();
        writeln!(out, "{good} of {} rows are true", rows.len()).map_err(failed)?;
    }
    Ok(is_true)
}

fn heading(machine: &Machine, measurements: &[Measurement]) -> String {
    let seconds: f64 = measurements
        .iter()
        .map(|measurement| measurement.duration().as_secs_f64())
        .sum();
    let pressure = machine
        .pressure_percent
        .map_or_else(|| "unknown".into(), |percent| format!("{percent:.0} %"));
    let load = machine
        .load
        .map_or_else(|| "unknown".into(), |load| format!("{load:.1}"));
    format!(
        "{} cores, load {load}, CPU pressure {pressure}, Linux {}, TCP {}; about {seconds:.0} s\n\
         {:7} {:26} {:>14} {:>14} {:>9} {:>9}  {:5} {}\n",
        machine.cores,
        machine.kernel,
        machine.congestion_control,
        "",
        "link",
        "set",
        "got",
        "late 99 %",
        "worst",
        "",
        "note"
    )
}

fn line(row: &Row) -> String {
    let (name, set, got) = match row.quantity {
        Quantity::Rate => ("rate", rate(row.set), rate(row.got)),
        Quantity::Delay => ("delay", milliseconds(row.set), milliseconds(row.got)),
        Quantity::Jitter => ("jitter", milliseconds(row.set), milliseconds(row.got)),
        Quantity::Loss => ("loss", percent(row.set), percent(row.got)),
    };
    format!(
        "{name:7} {:26} {set:>14} {got:>14} {:>6.0} us {:>6.0} us  {:5} {}",
        row.link,
        row.lateness.p99_us,
        row.lateness.max_us,
        if row.is_true { "true" } else { "FALSE" },
        row.note
    )
}

fn rate(bps: f64) -> String {
    // A rate is not negative, and far below the range's end.
    #[allow(clippy::cast_sign_loss)]
    show_rate(Some(bps.round() as u64))
}

fn milliseconds(value: f64) -> String {
    format!("{value:.3} ms")
}

fn percent(part: f64) -> String {
    format!("{:.2} %", part * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_a_line() {
        let row = Row {
            quantity: Quantity::Rate,
            link: "20 Mbit/s".into(),
            set: 2e7,
            got: 1.995e7,
            is_true: true,
            note: "-0.25 %".into(),
            packets: 100,
            lateness: sterna_lab::emulator::LatenessSummary::default(),
            has_real_time: true,
        };
        let text = line(&row);
        assert!(text.contains("19.95 Mbit/s"), "{text}");
        assert!(text.ends_with("true  -0.25 %"), "{text}");
        let untrue = Row {
            is_true: false,
            quantity: Quantity::Loss,
            set: 0.02,
            got: 0.03,
            ..row
        };
        assert!(line(&untrue).contains("FALSE"));
        assert!(line(&untrue).contains("3.00 %"));
    }
}
