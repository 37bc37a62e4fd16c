//! `sterna config check`: says whether a configuration would be accepted.

use std::borrow::Cow;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args as ClapArgs;
use sterna_server::Server;
use sterna_server::config::{self, ConfigError};

use super::super::serve::Source;
use super::super::{exit, output};
use super::INITIAL;

/// Check a configuration, and print it as it would be in force.
///
/// The files that it names are read as `serve` would read them: certificates, keys, client authority,
/// passwords and tokens. They are listed with their modes, as comments before the configuration. Nothing is
/// opened, made or changed, so that a broker may run meanwhile. Exit code 0 when it would be accepted, 2
/// when not.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Configuration file; takes precedence over --config and its variable
    #[arg(value_name = "PATH")]
    file: Option<PathBuf>,

    #[command(flatten)]
    source: Source,

    /// Print nothing but problems
    #[arg(short, long)]
    quiet: bool,
}

/// Checks, and prints the configuration in force as TOML.
pub(crate) fn run(args: &Args) -> ExitCode {
    let file = args.file.as_ref().or(args.source.config.as_ref());
    let file = file.map(PathBuf::as_path);
    let located = |said| config::located(said, file, std::env::vars());
    let configuration = config::load(file, std::env::vars()).and_then(|c| {
        let checked = Server::check(&c);
        checked.map_err(|problems| ConfigError::Problems(located(problems)))?;
        Ok(c)
    });
    match configuration {
        Ok(mut configuration) => {
            if !args.quiet {
                eprintln!("sterna config check: {}", verdict(file));
            }
            for warning in located(Server::warnings(&configuration)) {
                eprintln!("warning: {warning}");
            }
            if !args.quiet {
                configuration.listeners = configuration.listeners_in_force();
                // The check has refused one that has no place.
                configuration.data_directory = configuration.data_directory().ok();
                match configuration.shown() {
                    Ok(text) => {
                        let text = format!("{}{text}", files(&configuration));
                        return exit::code(output::print(text.as_bytes()), false);
                    }
                    Err(problem) => {
                        eprintln!("sterna config check: {problem}");
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

/// Which configuration was checked: a file that nobody named is not read, wherever it is.
fn verdict(file: Option<&Path>) -> String {
    match file {
        Some(file) => format!("{} is accepted", file.display()),
        None => format!(
            "no file was named: these are the built-in defaults{}",
            unread()
        ),
    }
}

/// A file that a newcomer may believe to be read.
pub(in super::super) fn unread() -> &'static str {
    if Path::new(INITIAL).exists() {
        "; ./sterna.toml is read with --config sterna.toml alone"
    } else {
        ""
    }
}

/// The files that were read, a line of comment for each: setting, path, mode.
fn files(configuration: &config::Config) -> String {
    let line = |(setting, path): (Cow<'_, str>, &Path)| {
        let mode = fs::metadata(path).map_or(0, |it| it.permissions().mode() & 0o7777);
        format!("# {setting}: {}, mode {mode:04o}\n", path.display())
    };
    configuration.files().into_iter().map(line).collect()
}
