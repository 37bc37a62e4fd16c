//! Where the program `sterna` is, whose broker is measured.

use std::path::{Path, PathBuf};

const NAME: &str = "sterna";

/// The broker to measure.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct BrokerProgram {
    /// The program whose broker is measured [default: `sterna` beside this program, else in PATH]
    #[arg(long, value_name = "FILE")]
    sterna: Option<PathBuf>,
}

impl BrokerProgram {
    /// The program that was named, for commands that are to be repeated.
    pub(crate) fn given(&self) -> Option<&Path> {
        self.sterna.as_deref()
    }

    /// The program's file.
    pub(crate) fn find(&self) -> Result<PathBuf, String> {
        if let Some(path) = &self.sterna {
            return if path.is_file() {
                Ok(path.clone())
            } else {
                Err(format!("--sterna {}: no such program", path.display()))
            };
        }
        let own = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let beside = own.parent().map(Path::to_owned);
        beside
            .into_iter()
            .chain(std::env::split_paths(&path))
            .map(|folder| folder.join(NAME))
            .find(|program| program.is_file())
            .ok_or_else(|| {
                "the program `sterna` is neither beside this program nor in PATH; --sterna FILE \
                 names it"
                    .to_owned()
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_named_and_not_there_is_an_error() {
        let named = |path: &str| BrokerProgram {
            sterna: Some(path.into()),
        };
        let error = named("/nowhere/sterna").find().unwrap_err();
        assert_eq!(error, "--sterna /nowhere/sterna: no such program");
        assert_eq!(named("/bin/sh").find(), Ok("/bin/sh".into()));
    }
}
