//! `sterna completions` and `sterna man-pages`: what packages install beside the program, made of the
//! command line itself.

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args as ClapArgs, Command};
use clap_complete::Shell;

use super::exit;

/// Print the completion script for a shell.
#[derive(Debug, ClapArgs)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

/// Write the manual pages, one for each command.
#[derive(Debug, ClapArgs)]
pub(crate) struct ManPages {
    /// The folder; made if it is missing
    folder: PathBuf,
}

/// Prints the script.
pub(crate) fn completions(args: &Completions, command: &mut Command) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, command, "sterna", &mut script);
    // A reader that has seen enough is no fault.
    let _ = io::stdout().write_all(&script);
    ExitCode::SUCCESS
}

/// Writes the pages.
pub(crate) fn man_pages(args: &ManPages, command: Command) -> ExitCode {
    let made = fs::create_dir_all(&args.folder);
    match made.and_then(|()| clap_mangen::generate_to(command, &args.folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("sterna man-pages: {}: {problem}", args.folder.display());
            ExitCode::from(exit::USAGE)
        }
    }
}
