//! `sterna config`: writes, checks, explains and translates configurations.

pub(crate) mod check;
mod explain;
mod import;
mod init;
mod reference;

use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand};

/// The name of a file that `init` writes if it is told no other.
const INITIAL: &str = "sterna.toml";

/// Write, check, explain or import a configuration.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    Init(init::Args),
    Check(check::Args),
    Explain(explain::Args),
    Reference(reference::Args),
    Import(import::Args),
}

/// Does what was asked for.
pub(crate) fn run(args: &Args) -> ExitCode {
    match &args.task {
        Task::Init(args) => init::run(args),
        Task::Check(args) => check::run(args),
        Task::Explain(args) => explain::run(args),
        Task::Reference(args) => reference::run(args),
        Task::Import(args) => import::run(args),
    }
}
