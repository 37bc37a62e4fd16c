//! `sterna lab`: links as they are in the field, on this machine.

mod battery;
mod calibrate;
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
    /// List the profiles, and where their numbers come from
    Profiles,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    match &args.command {
        Command::Link(args) => link::run(args),
        Command::Calibrate(args) => calibrate::run(args),
        Command::Battery(args) => battery::run(args),
        Command::Profiles => {
            let list = settings::list_profiles();
            exit::code(output::print(list.as_bytes()), false)
        }
    }
}
