//! The subcommands, one file each: an `Args` structure for clap and `run(Args) -> ExitCode`.

pub(crate) mod acl;
pub(crate) mod admin;
mod clock;
pub(crate) mod cluster;
pub(crate) mod config;
mod connection;
pub(crate) mod demo;
pub(crate) mod exit;
mod export_file;
mod format;
pub(crate) mod handshake;
mod log_filter;
pub(crate) mod manual;
pub(crate) mod moved;
mod outage;
mod output;
pub(crate) mod passwd;
mod payload;
pub(crate) mod property;
pub(crate) mod publish;
pub(crate) mod request;
pub(crate) mod serve;
mod service_manager;
mod signals;
pub(crate) mod store;
pub(crate) mod subscribe;
pub(crate) mod token;
pub(crate) mod top;
pub(crate) mod trace;
pub(crate) mod tune;

use exit::Failure;

/// Runs a client command to its end, on this thread.
fn block_on(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::local(format_args!("cannot start: {error}")))?;
    let result = runtime.block_on(command);
    // A resolver that does not answer holds nobody up who has been told to end.
    runtime.shutdown_background();
    result
}
