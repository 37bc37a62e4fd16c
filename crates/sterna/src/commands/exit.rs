//! The exit codes of the client commands. They are part of the interface: scripts read them.
//!
//! Where mosquitto's clients have a code for the same case, it is the same number.

use std::fmt::Display;
use std::io::Write as _;
use std::process::ExitCode;

use sterna_client::amqp::{self, Condition, Outcome};
use sterna_client::http;
use sterna_client::{ConnectError, Error, SendError, Version, is_tls};

use super::admin::table::harmless;

/// The command line is wrong, or a local file could not be read or written.
pub(crate) const USAGE: u8 = 1;
/// The rules refuse what `acl explain` or `admin rules explain` was asked about.
pub(super) const DENIED: u8 = 2;
/// The connection was lost and not regained.
pub(super) const LOST: u8 = 7;
/// TLS failed.
const TLS: u8 = 8;
/// The authentication exchange failed.
const AUTHENTICATION: u8 = 11;
/// The broker cannot be reached.
pub(super) const UNREACHABLE: u8 = 14;
/// The host's name cannot be resolved.
const UNRESOLVED: u8 = 15;
/// The topic of a request had no subscriber.
pub(super) const NOBODY: u8 = 16;
/// Time ran out, or a signal ended a request without its response, or a subscriber without a connection.
pub(super) const TIMEOUT: u8 = 27;
/// Unspecified error, as in MQTT 5: the broker refused and said nothing that has a code of its own.
pub(super) const REFUSED: u8 = 0x80;
/// Not authorised, as in MQTT 5.
const NOT_AUTHORISED: u8 = 0x87;
/// Bad user name or password, as in MQTT 5.
const BAD_LOGIN: u8 = 0x86;
/// Server busy, as in MQTT 5: the broker cannot let the client in for now.
const BUSY: u8 = 0x89;
/// Topic name invalid, as in MQTT 5: there is no such node, or no such thing of the admin API.
pub(super) const NO_TOPIC: u8 = 0x90;
/// Packet too large, as in MQTT 5.
const TOO_LARGE: u8 = 0x95;
/// Quota exceeded, as in MQTT 5.
const QUOTA: u8 = 0x97;
/// Implementation specific error, as in MQTT 5: the broker does not do this.
const NOT_DONE: u8 = 0x83;
/// Protocol error, as in MQTT 5.
const PROTOCOL: u8 = 0x82;

/// The text after the options of `--help`.
pub(super) const HELP: &str = "\
Exit status:
  0        all that was asked for was done
  1        the command line is wrong, or a local file cannot be read or written
  1 to 5   the broker refused the connection (MQTT 3.1 and 3.1.1: its return code)
  7        the connection was lost and not regained
  8        TLS failed, for example because the certificate isn't trusted
  11       the authentication exchange failed (--scram)
  14       the broker cannot be reached, or does not speak this protocol there
  15       the host's name cannot be resolved
  16       the topic of a request has no subscriber (MQTT 5; over AMQP and HTTP: 27 after -W)
  27       time ran out (-W), or a signal ended a request without its response, or sub before
           it was connected
  128-162  the broker refused (MQTT 5: its reason code; AMQP: the one that is closest to its
           condition; HTTP: to its status), for example 135 not authorised";

/// The hint behind a change of a file that a running broker has read.
pub(super) const RELOAD: &str =
    "a running broker reads the file again at a reload: `sterna admin reload`, or SIGHUP";

/// Prints an error of the command line or of a local file, and gives the code for it.
pub(crate) fn usage(error: impl Display) -> ExitCode {
    tell_as_it_is(&format!("sterna: {error}"));
    ExitCode::from(USAGE)
}

/// Prints a line on standard error. It may have words of a server, which a terminal must not obey, also when it shows a
/// file of them.
pub(super) fn tell(text: impl Display) {
    let text = text.to_string();
    let lines: Vec<_> = text.split('\n').map(harmless).collect();
    tell_as_it_is(&lines.join("\n"));
}

/// Prints a line on standard error, whose reader may have gone.
fn tell_as_it_is(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Why a client command ends with something else than success.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) code: u8,
    /// The text on standard error; no output if it is empty.
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

    /// A signal ended a request.
    pub(super) fn interrupted() -> Self {
        Self::new(TIMEOUT, "ended without the response")
    }

    /// A signal ended a subscriber that had no connection yet.
    pub(super) fn unconnected() -> Self {
        Self::new(TIMEOUT, "ended before there was a connection")
    }

    /// No text, and no fault: the reader of the output has closed it.
    pub(super) const fn quiet() -> Self {
        Self {
            code: 0,
            text: String::new(),
        }
    }

    /// Whether it is that one.
    pub(super) const fn is_quiet(&self) -> bool {
        self.text.is_empty() && self.code == 0
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
            Error::Connect(error) => connect(error),
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

impl Failure {
    /// The code for an error of the AMQP client.
    pub(super) fn amqp(error: &amqp::Error) -> Self {
        let code = match error {
            amqp::Error::Connect(error) => connect(error),
            amqp::Error::Refused(_) => BAD_LOGIN,
            amqp::Error::Busy(_) => BUSY,
            amqp::Error::Authentication(_) => AUTHENTICATION,
            amqp::Error::Closed(Some(remote))
            | amqp::Error::SessionEnded(Some(remote))
            | amqp::Error::Detached(Some(remote)) => condition(remote),
            amqp::Error::SessionEnded(None) | amqp::Error::Detached(None) => REFUSED,
            amqp::Error::TooLarge { .. } => TOO_LARGE,
            amqp::Error::Protocol { .. } | amqp::Error::Message(_) => PROTOCOL,
            amqp::Error::Invalid(_) | amqp::Error::Command(_) => USAGE,
            amqp::Error::Lost(error) if is_tls(error) => TLS,
            _ => LOST,
        };
        Self::new(code, error)
    }

    /// The code for an outcome that is not what was hoped for.
    pub(super) fn outcome(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Rejected(Some(remote)) => Self::new(
                condition(remote),
                format_args!("the broker rejected: {remote}"),
            ),
            Outcome::Rejected(None) => Self::new(REFUSED, "the broker rejected the message"),
            Outcome::Released | Outcome::Modified { .. } => {
                Self::new(REFUSED, "the broker gave the message back")
            }
            Outcome::Accepted => Self::quiet(),
        }
    }
}

impl Failure {
    /// The code for an error of the HTTP client.
    pub(super) fn http(error: &http::Error) -> Self {
        let code = match error {
            http::Error::Connect(error) => connect(error),
            http::Error::Problem(problem) => status(problem.status),
            http::Error::Lost(error) if is_tls(error) => TLS,
            http::Error::Protocol(_)
            | http::Error::Unexpected { .. }
            | http::Error::Frame(_)
            | http::Error::TooLarge { .. } => PROTOCOL,
            http::Error::Invalid(_) | http::Error::Command(_) => USAGE,
            http::Error::Closed => REFUSED,
            _ => LOST,
        };
        Self::new(code, error)
    }
}

/// The reason code of MQTT 5 that is closest to a status of HTTP.
fn status(status: u16) -> u8 {
    match status {
        401 => BAD_LOGIN,
        403 => NOT_AUTHORISED,
        400 | 404 | 414 => NO_TOPIC,
        405 | 406 => NOT_DONE,
        413 | 431 => TOO_LARGE,
        429 | 503 | 507 => QUOTA,
        _ => REFUSED,
    }
}

fn connect(error: &ConnectError) -> u8 {
    match error {
        ConnectError::Resolve { .. } => UNRESOLVED,
        ConnectError::Tls(_) => USAGE,
        ConnectError::Handshake(_) => TLS,
        ConnectError::Quic(text)
            if text.contains("handshake failed") || text.contains("another fingerprint") =>
        {
            TLS
        }
        _ => UNREACHABLE,
    }
}

/// The reason code of MQTT 5 that is closest to a condition.
fn condition(remote: &amqp::Remote) -> u8 {
    [
        (Condition::UNAUTHORIZED_ACCESS, NOT_AUTHORISED),
        (Condition::NOT_FOUND, NO_TOPIC),
        (Condition::INVALID_FIELD, NO_TOPIC),
        (Condition::RESOURCE_LIMIT_EXCEEDED, QUOTA),
        (Condition::MESSAGE_SIZE_EXCEEDED, TOO_LARGE),
        (Condition::NOT_IMPLEMENTED, NOT_DONE),
        (Condition::NOT_ALLOWED, NOT_DONE),
    ]
    .into_iter()
    .find(|(condition, _)| remote.is(*condition))
    .map_or(REFUSED, |(_, code)| code)
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self::local(text)
    }
}

/// The exit code of a client command.
pub(super) fn code(result: Result<(), Failure>, quiet: bool) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // A wrong command line is said in any case.
            if !failure.text.is_empty() && (!quiet || failure.code == USAGE) {
                tell(format_args!("sterna: {}", failure.text));
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
            code_of(&Error::Connect(ConnectError::Timeout {
                place: None,
                after: Duration::ZERO
            })),
            14
        );
        let unresolved = ConnectError::Resolve {
            host: String::new(),
            error: io(),
        };
        assert_eq!(code_of(&Error::Connect(unresolved)), 15);
        for (its_status, code) in [(401, 134), (403, 135), (413, 149), (503, 151), (409, 128)] {
            assert_eq!(status(its_status), code);
        }
    }
}
