//! The subcommands, one file each: an `Args` structure for clap and `run(Args) -> ExitCode`.

mod clock;
pub(crate) mod exit;
mod format;
pub(crate) mod passwd;
