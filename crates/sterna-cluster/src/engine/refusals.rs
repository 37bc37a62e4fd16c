//! Refusals of NATS that this node tells operators once.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use async_nats::{ClientError, ConnectErrorKind, Event, ServerError};

use crate::rights::Right;
use crate::status::Status;

/// Why no server of NATS is connected, as the last attempt had it.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// Place in [`SENTENCES`].
    last: AtomicU8,
    /// The last error that a connected server has told.
    told: Mutex<String>,
}

const SENTENCES: [&str; 5] = [
    "no server of NATS is connected",
    "NATS refuses this node's user, password or credentials: see [cluster]",
    "TLS with NATS fails: see cluster.ca and cluster.certificate",
    "no server of cluster.nats can be reached, or it has TLS, and TLS with each fails: see cluster.ca and cluster.certificate",
    "the host of a server of NATS is not known: see cluster.nats",
];
const AUTHORIZATION: u8 = 1;
const TLS: u8 = 2;
const REACH: u8 = 3;
const NAME: u8 = 4;

impl Refusals {
    /// Why there is no connection.
    pub(crate) fn sentence(&self) -> &'static str {
        let last = usize::from(self.last.load(Ordering::Acquire));
        SENTENCES.get(last).unwrap_or(&SENTENCES[0])
    }

    fn set(&self, reason: u8) -> bool {
        self.last.swap(reason, Ordering::AcqRel) != reason
    }
}

/// Notes an event of the connection other than its beginning and end, which it ends: `Connected` clears what
/// was refused before.
pub(super) fn noted(status: &Status, event: &Event) {
    let refusals = &status.refusals;
    let reason = match event {
        Event::Connected => {
            refusals.set(0);
            return;
        }
        Event::ServerError(ServerError::AuthorizationViolation) => AUTHORIZATION,
        Event::ClientError(ClientError::Other(kind)) => match reason_of(kind) {
            Some(reason) => reason,
            None => return tracing::debug!(event = %event, "NATS"),
        },
        Event::ServerError(ServerError::Other(text)) => {
            if let Some(right) = Right::refused_by(text) {
                let told = right.to_string();
                if status.rights.is_refused(right) {
                    tracing::warn!(
                        right = told,
                        "Permissions Violation: NATS does not permit something that this node needs"
                    );
                }
                return;
            }
            let mut told = (refusals.told.lock()).unwrap_or_else(PoisonError::into_inner);
            if *told != *text {
                tracing::warn!(error = %text.escape_debug(), "NATS refuses something to this node");
                told.clone_from(text);
            }
            return;
        }
        other => return tracing::debug!(event = %other, "NATS"),
    };
    if refusals.set(reason) {
        tracing::warn!(
            why = refusals.sentence(),
            "no connection to NATS; it is tried again"
        );
    }
}

/// The library says the kind of error alone, in words, and takes a failed handshake of TLS for one of the socket.
fn reason_of(kind: &str) -> Option<u8> {
    let kinds = [
        (ConnectErrorKind::AuthorizationViolation, AUTHORIZATION),
        (ConnectErrorKind::Authentication, AUTHORIZATION),
        (ConnectErrorKind::Tls, TLS),
        (ConnectErrorKind::Io, REACH),
        (ConnectErrorKind::TimedOut, REACH),
        (ConnectErrorKind::Dns, NAME),
    ];
    let mut found = kinds
        .into_iter()
        .filter(|(known, _)| known.to_string() == kind);
    found.next().map(|(_, reason)| reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_refusal_is_told_until_a_connection_is_made() {
        let status = Status::default();
        assert_eq!(status.trouble().as_deref(), Some(SENTENCES[0]));
        let failed =
            |kind: ConnectErrorKind| Event::ClientError(ClientError::Other(kind.to_string()));
        for (kind, word) in [
            (ConnectErrorKind::AuthorizationViolation, "credentials"),
            (ConnectErrorKind::Tls, "cluster.ca"),
            (ConnectErrorKind::Io, "reached"),
            (ConnectErrorKind::Dns, "not known"),
        ] {
            noted(&status, &failed(kind));
            let trouble = status.trouble().expect("not connected");
            assert!(trouble.contains(word), "{trouble}");
        }
        noted(&status, &Event::Connected);
        assert_eq!(status.trouble().as_deref(), Some(SENTENCES[0]));
    }
}
