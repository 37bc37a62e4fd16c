//! `sterna-lab trace`: delivery traces by published models.

use std::process::ExitCode;

use sterna_lab::link::{Coverage, Direction, OPPORTUNITY_BYTES, Trace};
use sterna_lab::quantity;

use crate::console;

/// Where the cellular model starts if nothing is said: 5 Mbit/s.
const DEFAULT_RATE_BPS: u64 = 5_000_000;

/// Print a delivery trace by a published model, for `--trace-up` and `--trace-down`.
///
/// It is in Mahimahi's format, and no recording. The sources of the models' numbers are in docs/lab.md.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Model of the link
    #[arg(long, value_enum, default_value_t = Model::Cellular)]
    model: Model,
    /// With nb-iot and starlink: which way, seen from the device
    #[arg(long, value_enum)]
    direction: Option<Way>,
    /// With nb-iot: how well the device reaches its cell [default: normal]
    #[arg(long, value_enum)]
    coverage: Option<Reach>,
    /// With cellular: the rate that it starts with; at most 12Mbit [default: 5Mbit]
    #[arg(long, value_name = "RATE", value_parser = limited)]
    rate: Option<u64>,
    /// Seconds until it begins again
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Where its decisions come from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, Eq, PartialEq)]
enum Model {
    /// The model of Sprout (NSDI 2013): a Poisson process whose rate wanders, with outages
    Cellular,
    /// 3GPP's Release 13: a transport block after each grant; a moment carries one block
    NbIot,
    /// A level for each interval of 15 seconds, and a pause where it changes
    Starlink,
}

impl Model {
    const fn name(self) -> &'static str {
        match self {
            Self::Cellular => "cellular",
            Self::NbIot => "nb-iot",
            Self::Starlink => "starlink",
        }
    }
}

#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Way {
    /// From the device
    Up,
    /// To the device
    Down,
}

impl From<Way> for Direction {
    fn from(way: Way) -> Self {
        match way {
            Way::Up => Self::Up,
            Way::Down => Self::Down,
        }
    }
}

#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Reach {
    /// Strong signal, no repetitions
    Normal,
    /// Coupling loss of 154 dB
    Robust,
    /// Coupling loss of 164 dB
    Extreme,
}

impl From<Reach> for Coverage {
    fn from(reach: Reach) -> Self {
        match reach {
            Reach::Normal => Self::Normal,
            Reach::Robust => Self::Robust,
            Reach::Extreme => Self::Extreme,
        }
    }
}

fn limited(text: &str) -> Result<u64, String> {
    quantity::rate_bps(text)?.ok_or_else(|| "a trace has a rate".into())
}

/// Prints it.
pub(super) fn run(args: &Args) -> ExitCode {
    console::answer(make(args).map(|trace| trace.text()))
}

fn make(args: &Args) -> Result<Trace, String> {
    let model = args.model;
    let without = |option: &str, given: bool| {
        let reason = || format!("--model {} has no {option}", model.name());
        if given { Err(reason()) } else { Ok(()) }
    };
    if model != Model::Cellular {
        without("--rate: its rates are published", args.rate.is_some())?;
    }
    if model != Model::NbIot {
        without("--coverage", args.coverage.is_some())?;
    }
    if model == Model::Cellular {
        without("--direction: both are alike", args.direction.is_some())?;
        let rate_bps = args.rate.unwrap_or(DEFAULT_RATE_BPS);
        let packets_per_s = rate_bps as f64 / 8.0 / OPPORTUNITY_BYTES as f64;
        return Ok(Trace::sprout(packets_per_s, args.seconds, args.seed));
    }
    let direction = args
        .direction
        .ok_or_else(|| format!("--model {} needs --direction up or down", model.name()))?
        .into();
    if model == Model::Starlink {
        return Trace::starlink(direction, args.seconds, args.seed)
            .map_err(|error| format!("{error}; --seconds sets fewer"));
    }
    let coverage = args.coverage.map_or(Coverage::Normal, Coverage::from);
    Ok(Trace::nb_iot(coverage, direction, args.seconds, args.seed))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser, Debug)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn trace(options: &str) -> Result<Trace, String> {
        let words = std::iter::once("trace").chain(options.split_whitespace());
        let command = Command::try_parse_from(words).map_err(|error| error.to_string())?;
        make(&command.args)
    }

    #[test]
    fn each_model_has_its_options() {
        assert_eq!(trace("").unwrap(), trace("--rate 5Mbit").unwrap());
        assert_eq!(
            trace("--model nb-iot --direction up --seed 4").unwrap(),
            Trace::nb_iot(Coverage::Normal, Direction::Up, 60, 4)
        );
        assert_eq!(
            trace("--model nb-iot --direction down --coverage extreme").unwrap(),
            Trace::nb_iot(Coverage::Extreme, Direction::Down, 60, 1)
        );
        assert_eq!(
            trace("--model starlink --direction up --seconds 30").unwrap(),
            Trace::starlink(Direction::Up, 30, 1).unwrap()
        );
    }

    #[test]
    fn an_option_that_means_nothing_for_a_model_is_refused() {
        for (options, words) in [
            ("--direction up", "cellular has no --direction"),
            ("--coverage robust", "cellular has no --coverage"),
            ("--model nb-iot", "nb-iot needs --direction"),
            ("--model starlink", "starlink needs --direction"),
            (
                "--model starlink --direction up --coverage robust",
                "starlink has no --coverage",
            ),
            (
                "--model starlink --direction up --rate 1Mbit",
                "starlink has no --rate",
            ),
            (
                "--model nb-iot --direction up --rate 1Mbit",
                "nb-iot has no --rate",
            ),
            (
                "--model starlink --direction down --seconds 3600",
                "--seconds sets fewer",
            ),
            ("--model moon", "nb-iot"),
        ] {
            let error = trace(options).unwrap_err();
            assert!(error.contains(words), "{options}: {error}");
        }
    }
}
