//! The exit codes of the client commands. They are part of the interface: scripts read them.
//!
//! Where mosquitto's clients have a code for the same case, it is the same number.

use std::fmt::Display;
use std::process::ExitCode;

use sterna_client::{ConnectError, Error, SendError, Version};

/// The command line is wrong, or a local file could not be read or written.
pub(crate) const USAGE: u8 = 1;
/// The connection was lost and not regained.
const LOST: u8 = 7;
/// TLS failed.
const TLS: u8 = 8;
/// The authentication exchange failed.
const AUTHENTICATION: u8 = 11;
/// The broker cannot be reached.
const UNREACHABLE: u8 = 14;
/// The host's name cannot be resolved.
const UNRESOLVED: u8 = 15;
/// Nobody was there to answer a request.
pub(super) const NOBODY: u8 = 16;
/// Time ran out.
pub(super) const TIMEOUT: u8 = 27;
/// Packet too large, as in MQTT 5.
const TOO_LARGE: u8 = 0x95;

/// The text after the options of `--help`.
pub(super) const HELP: &str = "\
Exit status:
  0        all that was asked for was done
  1        the command line is wrong, or a local file cannot be read or written
  1 to 5   the broker refused the connection (MQTT 3.1 and 3.1.1: its return code)
  7        the connection was lost and not regained
  8        TLS failed, for example because the certificate isn't trusted
  11       the authentication exchange failed (--scram)
  14       the broker cannot be reached
  15       the host's name cannot be resolved
  16       nobody is subscribed to the topic of a request
  27       time ran out (-W)
  128-162  the broker refused (MQTT 5: its reason code), for example 135 not authorised";

/// Prints an error of the command line or of a local file, and gives the code for it.
pub(crate) fn usage(error: impl Display) -> ExitCode {
    eprintln!("sterna: {error}");
    ExitCode::from(USAGE)
}

/// Why a client command ends with something else than success.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) code: u8,
    /// What is said on standard error; nothing when empty.
    pub(super) text: String,
}

impl Failure {
    pub(super) fn new(code: u8, text: impl Display) -> Self {
        Self {
            code,
            text: text.to_string(),
        }
    }

    /// A wrong command line or a local file.
    pub(super) fn local(text: impl Display) -> Self {
        Self::new(USAGE, text)
    }

    /// Nothing to say, and nothing wrong: whoever read the output has gone.
    pub(super) const fn quiet() -> Self {
        Self {
            code: 0,
            text: String::new(),
        }
    }

    /// The code for an error of the client library.
    pub(super) fn client(error: &Error, version: Version) -> Self {
        let code = match error {
            Error::Refused(refusal) if !version.is_v5() => {
                refusal.reason.for_v3_connack().unwrap_or(USAGE)
            }
            Error::Refused(refusal) | Error::Rejected(refusal) => refusal.reason as u8,
            Error::Disconnected(refusal) if refusal.reason.is_error() => refusal.reason as u8,
            Error::Protocol(violation) => violation.reason as u8,
            Error::Connect(ConnectError::Resolve { .. }) => UNRESOLVED,
            Error::Connect(ConnectError::Tls(_)) => USAGE,
            Error::Connect(ConnectError::Handshake(_)) => TLS,
            Error::Connect(ConnectError::Quic(text)) if text.contains("handshake failed") => TLS,
            Error::Connect(_) => UNREACHABLE,
            // In TLS 1.3 a server refuses a client's certificate after the client has finished.
            Error::Lost(error) if is_tls(error) => TLS,
            Error::Authentication(_) => AUTHENTICATION,
            Error::Send(SendError::Unsupported(reason)) => *reason as u8,
            Error::Send(SendError::Encode(_)) => TOO_LARGE,
            Error::Invalid(_) | Error::Unavailable(_) | Error::Send(_) => USAGE,
            _ => LOST,
        };
        Self::new(code, error)
    }
}

fn is_tls(error: &std::io::Error) -> bool {
    error
        .get_ref()
        .is_some_and(<dyn std::error::Error + Send + Sync>::is::<rustls::Error>)
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self::local(text)
    }
}

/// What a client command ends with.
pub(super) fn code(result: Result<(), Failure>, quiet: bool) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // A wrong command line is said in any case.
            if !failure.text.is_empty() && (!quiet || failure.code == USAGE) {
                eprintln!("sterna: {}", failure.text);
            }
            ExitCode::from(failure.code)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    fn code_of(error: &Error) -> u8 {
        Failure::client(error, Version::V5).code
    }

    #[test]
    fn codes_are_as_documented() {
        let io = || Arc::new(std::io::Error::other("x"));
        assert_eq!(code_of(&Error::Lost(io())), 7);
        assert_eq!(code_of(&Error::Silent), 7);
        assert_eq!(
            code_of(&Error::Connect(ConnectError::Handshake(String::new()))),
            8
        );
        assert_eq!(code_of(&Error::Connect(ConnectError::Socket(io()))), 14);
        assert_eq!(
            code_of(&Error::Connect(ConnectError::Timeout(Duration::ZERO))),
            14
        );
        let unresolved = ConnectError::Resolve {
            host: String::new(),
            error: io(),
        };
        assert_eq!(code_of(&Error::Connect(unresolved)), 15);
    }
}
