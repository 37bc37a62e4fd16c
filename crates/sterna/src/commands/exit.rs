//! The exit codes of the client commands. They are part of the interface: scripts read them.
//!
//! Where mosquitto's clients have a code for the same case, it is the same number.

use std::process::ExitCode;

/// The command line is wrong, or a local file could not be read or written.
pub(crate) const USAGE: u8 = 1;

/// The text after the options of `--help`.
pub(super) const HELP: &str = "\
Exit status:
  0        all that was asked for was done
  1        the command line is wrong, or a local file cannot be read or written
  1 to 5   the broker refused the connection (MQTT 3.1 and 3.1.1: its return code)
  7        the connection was lost and not regained
  8        TLS failed, for example because the certificate isn't trusted
  14       the broker cannot be reached
  15       the host's name cannot be resolved
  27       time ran out (-W)
  128-162  the broker refused (MQTT 5: its reason code), for example 135 not authorised";

/// Prints an error of the command line or of a local file, and gives the code for it.
pub(crate) fn usage(error: impl std::fmt::Display) -> ExitCode {
    eprintln!("sterna: {error}");
    ExitCode::from(USAGE)
}
