//! The cause of the last login that a judge of a shard has refused. A door hears of its kind alone, and tells that to the
//! client; the operator is to learn more.

use std::sync::{Mutex, PoisonError};

use sterna_net::ConnectionId;

use crate::identity::Refusal;

/// The true cause of a refusal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Cause {
    /// The cause in words.
    pub(crate) words: String,
    /// The command that ends it.
    pub(crate) freed_by: Option<String>,
}

/// The last refusal of a shard: the line about it follows at once.
#[derive(Debug, Default)]
pub(crate) struct LastRefusal(Mutex<Option<(ConnectionId, Refusal, Cause)>>);

impl LastRefusal {
    /// Notes the cause of a refusal.
    pub(crate) fn note(&self, connection: ConnectionId, refusal: Refusal, words: String) {
        let cause = Cause {
            words,
            freed_by: None,
        };
        self.keep(Some((connection, refusal, cause)));
    }

    /// Notes a ban, and the command that ends it.
    pub(crate) fn note_ban(&self, connection: ConnectionId, words: String, command: String) {
        let cause = Cause {
            words,
            freed_by: Some(command),
        };
        self.keep(Some((connection, Refusal::Banned, cause)));
    }

    /// Forgets it, before another client is judged.
    pub(crate) fn forget(&self) {
        self.keep(None);
    }

    fn keep(&self, last: Option<(ConnectionId, Refusal, Cause)>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = last;
    }

    /// The cause of this refusal of a client, if it is the last one.
    pub(crate) fn take(&self, connection: ConnectionId, refusal: Refusal) -> Option<Cause> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |(whose, what, _): &mut (ConnectionId, Refusal, Cause)| {
            *whose == connection && *what == refusal
        };
        last.take_if(is_it).map(|(_, _, cause)| cause)
    }
}
