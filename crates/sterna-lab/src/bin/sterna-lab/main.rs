//! The program `sterna-lab`: links as in the field, on this machine. It measures the cost of brokers and
//! devices, on these links and without.

#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "comments on arguments are the help that people read, where brackets are brackets"
)]

mod allocations;
mod battery;
mod bench;
mod broker_program;
mod calibrate;
mod campaign;
mod console;
mod crash;
mod device;
mod gateway;
mod link;
mod process;
mod settings;
mod trace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Run programs behind emulated links, repeat papers' experiments, load brokers.
#[derive(Debug, Parser)]
#[command(name = "sterna-lab", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

// One variant, one file or folder, one arm in `main`.
#[derive(Debug, Subcommand)]
enum Command {
    Link(Box<link::Args>),
    Calibrate(Box<calibrate::Args>),
    Battery(battery::Args),
    Run(Box<campaign::RunArgs>),
    Report(campaign::ReportArgs),
    Export(campaign::ExportArgs),
    /// List the campaigns, and which papers they repeat
    Campaigns,
    Bench(Box<bench::Args>),
    Crash(crash::Args),
    Faults(crash::FaultArgs),
    /// Be a device that a campaign measures; reads its task from standard input
    #[command(hide = true)]
    Device,
    /// Serve TLS with early data in front of a plain listener, for a campaign
    #[command(hide = true)]
    Gateway(gateway::Args),
    /// Make one run of a campaign; reads the run from standard input
    #[command(hide = true)]
    Measure,
    Trace(trace::Args),
    /// List the profiles, and where their numbers come from
    Profiles,
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are answers, not errors; the rest is a wrong command line.
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::from(console::NOT_RUN)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    match &cli.command {
        Command::Link(args) => link::run(args),
        Command::Calibrate(args) => calibrate::run(args),
        Command::Battery(args) => battery::run(args),
        Command::Run(args) => campaign::run(args),
        Command::Report(args) => campaign::report(args),
        Command::Export(args) => campaign::export(args),
        Command::Campaigns => console::answer(campaign::list()),
        Command::Bench(args) => bench::run(args),
        Command::Crash(args) => crash::run(args),
        Command::Faults(args) => crash::run_faults(args),
        Command::Device => device::run(),
        Command::Gateway(args) => gateway::run(args),
        Command::Measure => campaign::measure(),
        Command::Trace(args) => trace::run(args),
        Command::Profiles => console::answer(Ok(settings::list_profiles())),
    }
}
