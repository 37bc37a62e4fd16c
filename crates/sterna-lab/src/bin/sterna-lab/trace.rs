//! `sterna-lab trace`: delivery traces by a published model.

use std::process::ExitCode;

use sterna_lab::link::{OPPORTUNITY_BYTES, Trace};
use sterna_lab::quantity;

use crate::console;

/// Print a delivery trace of a cellular link in Mahimahi's format, for `--trace-up` and `--trace-down`.
///
/// It is made by the model of a link that Sprout assumes (Winstein et al., NSDI 2013): a Poisson process
/// whose rate moves by Brownian motion, with outages. It is no recording.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// The rate that it starts with: 5Mbit; at most 12Mbit
    #[arg(long, value_name = "RATE", default_value = "5Mbit", value_parser = limited)]
    rate: u64,
    /// Seconds until it begins again
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Where its decisions come from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

fn limited(text: &str) -> Result<u64, String> {
    quantity::rate_bps(text)?.ok_or_else(|| "a trace has a rate".into())
}

/// Prints it.
pub(super) fn run(args: &Args) -> ExitCode {
    let packets_per_s = args.rate as f64 / 8.0 / OPPORTUNITY_BYTES as f64;
    let trace = Trace::sprout(packets_per_s, args.seconds, args.seed);
    console::answer(Ok(trace.text()))
}
