//! The subcommands, one file each: an `Args` structure for clap and `run(Args) -> ExitCode`.

pub(crate) mod bench;
pub(crate) mod check_config;
mod clock;
pub(crate) mod exit;
mod format;
pub(crate) mod passwd;
pub(crate) mod serve;
