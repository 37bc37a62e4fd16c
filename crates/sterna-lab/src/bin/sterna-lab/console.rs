//! Output that all commands of this program have in common: answers, and reasons for their absence.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// The exit code of a command that could not be run as it was written.
pub(crate) const NOT_RUN: u8 = 1;

/// Says on standard error why a command could not be run.
pub(crate) fn fail(error: impl Display) -> ExitCode {
    eprintln!("sterna-lab: {error}");
    ExitCode::from(NOT_RUN)
}

/// Writes a command's whole answer to standard output.
pub(crate) fn answer(text: Result<String, String>) -> ExitCode {
    let written = text.and_then(|text| {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .map_err(|error| match error.kind() {
                // `sterna-lab campaigns | head` has seen enough.
                io::ErrorKind::BrokenPipe => String::new(),
                _ => format!("standard output: {error}"),
            })
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_empty() => ExitCode::SUCCESS,
        Err(error) => fail(error),
    }
}
