//! `sterna check-config`: says whether a configuration would be accepted.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use sterna_server::{Server, config};

use super::serve::Source;

/// Check a configuration, and print it as it would be in force.
///
/// The files that it names are read as `serve` would read them: certificates, keys, client authority,
/// passwords and tokens. Nothing is opened, made or changed, so that a broker may run meanwhile. Exit code
/// 0 when it would be accepted, 2 when not.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,

    /// Print nothing but problems
    #[arg(short, long)]
    quiet: bool,
}

/// Checks, and prints the configuration in force as TOML.
pub(crate) fn run(args: &Args) -> ExitCode {
    let configuration =
        config::load(args.source.config.as_deref(), std::env::vars()).and_then(|c| {
            Server::check(&c)
                .map_err(config::ConfigError::Problems)
                .map(|()| c)
        });
    match configuration {
        Ok(mut configuration) => {
            for warning in configuration.warnings() {
                eprintln!("warning: {warning}");
            }
            if !args.quiet {
                configuration.listeners = configuration.listeners_in_force();
                match toml::to_string(&configuration) {
                    Ok(text) => print!("{text}"),
                    Err(problem) => {
                        eprintln!("sterna check-config: {problem}");
                        return ExitCode::FAILURE;
                    }
                }
            }
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::from(2)
        }
    }
}
