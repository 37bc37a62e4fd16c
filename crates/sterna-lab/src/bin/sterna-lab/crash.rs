//! `sterna-lab crash`: a broker that is killed under load.

use std::process::ExitCode;

use sterna_lab::crash::{self, Doing, Durability, Settings};

use crate::broker_program::BrokerProgram;
use crate::console;

/// Exit code where promises were broken.
const BROKEN: u8 = 2;

/// Kill a broker under load, and compare its acknowledgements with what clients find.
///
/// Clients of MQTT, AMQP and HTTP publish and read over TCP, TLS and QUIC. The broker gets SIGKILL at random
/// moments and starts again on the same directory. Exit status: 0 all promises were kept, 1 the test could not
/// run, 2 promises were broken.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  sterna-lab crash --kills 500 --seed 7
  sterna-lab crash --durability memory     acknowledged before the commit: must be caught
  sterna-lab crash --only-cuts --durability none")]
pub(super) struct Args {
    /// How often the broker is killed
    #[arg(long, value_name = "N", default_value_t = 20)]
    kills: u32,
    /// Seed of all random choices [default: a random one]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// The broker's promise: commit, interval, memory (acknowledged before it is kept), none (nothing is kept)
    #[arg(long, value_name = "WORD", default_value_t = Durability::Interval)]
    durability: Durability,
    /// Cut all connections, and leave the broker alive: then no durability may break a promise
    #[arg(long)]
    only_cuts: bool,
    #[command(flatten)]
    broker: BrokerProgram,
}

/// Disturb the way between clients and a broker, and compare its acknowledgements with what clients find.
///
/// The clients are those of `crash`. The broker lives. Now and then all connections are cut, partitioned
/// or half-open. Datagrams are lost, doubled, late, changed, or come from another address; bytes of TLS
/// are changed. Exit status: 0 all promises were kept, 1 the test could not run, 2 promises were broken.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  sterna-lab faults --faults 100 --seed 7")]
pub(super) struct FaultArgs {
    /// How often something is wrong
    #[arg(long, value_name = "N", default_value_t = 20)]
    faults: u32,
    /// Seed of all random choices [default: a random one]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// The broker's promise: commit, interval, memory (acknowledged before it is kept), none (nothing is
    /// kept)
    #[arg(long, value_name = "WORD", default_value_t = Durability::Interval)]
    durability: Durability,
    #[command(flatten)]
    broker: BrokerProgram,
}

pub(super) fn run_faults(args: &FaultArgs) -> ExitCode {
    let (count, durability) = (args.faults, args.durability);
    play(&args.broker, count, args.seed, durability, Doing::Faults)
}

pub(super) fn run(args: &Args) -> ExitCode {
    let doing = if args.only_cuts {
        Doing::Cuts
    } else {
        Doing::Kills
    };
    play(&args.broker, args.kills, args.seed, args.durability, doing)
}

fn play(
    broker: &BrokerProgram,
    kills: u32,
    seed: Option<u64>,
    durability: Durability,
    doing: Doing,
) -> ExitCode {
    let settings = broker.find().and_then(|program| {
        Ok(Settings {
            program,
            kills,
            seed: match seed {
                Some(seed) => seed,
                None => u64::from(getrandom::u32().map_err(|error| error.to_string())?),
            },
            durability,
            doing,
        })
    });
    let report = settings.and_then(|settings| crash::run(&settings, |line| eprintln!("{line}")));
    match report {
        Ok(report) => {
            let is_whole = report.violations() == 0;
            let told = console::answer(Ok(report.to_string()));
            if is_whole {
                told
            } else {
                ExitCode::from(BROKEN)
            }
        }
        Err(error) => console::fail(error),
    }
}
