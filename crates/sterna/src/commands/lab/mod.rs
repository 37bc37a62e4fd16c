//! `sterna lab`: links as they are in the field, on this machine.

mod battery;
mod calibrate;
mod campaign;
mod device;
mod link;
mod settings;

use std::process::ExitCode;

use clap::Subcommand;

use super::{exit, output};

/// Run programs behind emulated links, and see how true the emulation is.
#[derive(clap::Args, Debug)]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

// One variant, one file, one arm in `run`.
#[derive(Debug, Subcommand)]
enum Command {
    Link(Box<link::Args>),
    Calibrate(Box<calibrate::Args>),
    Battery(battery::Args),
    Run(Box<campaign::RunArgs>),
    Report(campaign::ReportArgs),
    /// List the campaigns, and which papers they repeat
    Campaigns,
    /// What a campaign measures; reads its task from standard input
    #[command(hide = true)]
    Device,
    /// One run of a campaign; reads what to do from standard input
    #[command(hide = true)]
    Measure,
    /// List the profiles, and where their numbers come from
    Profiles,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    match &args.command {
        Command::Link(args) => link::run(args),
        Command::Calibrate(args) => calibrate::run(args),
        Command::Battery(args) => battery::run(args),
        Command::Run(args) => campaign::run(args),
        Command::Report(args) => campaign::report(args),
        Command::Campaigns => match campaign::list() {
            Ok(list) => exit::code(output::print(list.as_bytes()), false),
            Err(error) => exit::usage(error),
        },
        Command::Device => device::run(),
        Command::Measure => campaign::measure(),
        Command::Profiles => {
            let list = settings::list_profiles();
            exit::code(output::print(list.as_bytes()), false)
        }
    }
}
