//! The command.

mod commands;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(version, about = "An MQTT broker and its tools")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Bench(commands::bench::BenchArgs),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Bench(args) => commands::bench::run(&args),
    }
}
