//! `sterna config init`: a configuration file with every setting as a comment.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args as ClapArgs;
use sterna_server::config::reference;

use super::super::{exit, output};
use super::INITIAL;

/// Write a configuration file with every setting, its meaning and its default, as comments.
///
/// As it is, the file changes nothing. A file that exists is left alone. Exit code 0: it is written; 1: not.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Where to write it; `-` is standard output
    #[arg(value_name = "PATH", default_value = INITIAL)]
    file: PathBuf,
}

/// Writes it.
pub(crate) fn run(args: &Args) -> ExitCode {
    match write(&args.file) {
        Ok(()) => {
            if args.file != Path::new("-") {
                let file = args.file.display();
                eprintln!(
                    "sterna config init: {file} is written; `sterna serve --config {file}` reads it"
                );
            }
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("sterna config init: {}: {problem}", args.file.display());
            ExitCode::from(exit::USAGE)
        }
    }
}

fn write(file: &Path) -> io::Result<()> {
    let text = reference::template();
    if file == Path::new("-") {
        // Its reader may have seen enough.
        return match io::stdout().write_all(text.as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written,
        };
    }
    let mut file = output::made(OpenOptions::new().write(true).create_new(true).open(file))?;
    file.write_all(text.as_bytes())
}
