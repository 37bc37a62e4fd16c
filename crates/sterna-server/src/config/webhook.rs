//! The section `webhook`: a service that knows the identities and rights of clients.

use std::path::PathBuf;

/// Fewest entries of the caches: an answer has to live until its client's next step.
const MINIMUM_ENTRIES: u64 = 64;

settings! {
    /// A service that is asked who clients are, and what they may do: see [The webhook](webhook.md).
    ///
    /// Without a URL nothing is asked.
    #[derive(Eq)]
    pub struct Webhook {
        /// URL (`https://` or `http://`), asked about passwords and tokens that no file and no issuer knows.
        reload authentication_url: Option<String>;
        /// URL, asked where a rule has the effect `ask`.
        reload authorization_url: Option<String>;
        /// Certificates in PEM that sign those of the URLs.
        reload ca: Option<PathBuf>, said "the system's";
        /// Fields of each request, one `Name: value` a line: the secret by which the service knows the broker.
        reload headers_file: Option<PathBuf>;
        /// Whether an `http://` URL may be of another host. Passwords are then sent in the clear.
        reload allow_plaintext_beyond_loopback: bool = false;
        /// Longest time of a question, with its wait for others.
        reload timeout_ms: u64 = 3000, within 1..;
        /// Time that a connection waits for the next question. 0: each question has its own. A connection on which
        /// something comes meanwhile is not used again.
        reload keep_alive_s: u32 = 30;
        /// Requests at a time, each on a thread of its own.
        reload maximum_concurrent: u16 = 8, within 1..;
        /// Questions that wait. Above it, the latest question of the busiest address is dropped, and its client is told
        /// that the broker is busy.
        reload maximum_waiting: u32 = 1024, within 1..;
        /// Longest answer. The cache of credentials has at most this much for each entry that allows.
        reload maximum_answer_bytes: u32 = 16 << 10, within 1..;
        /// Entries of each cache: of credentials, and of actions.
        reload maximum_entries: u32 = 10_000, within MINIMUM_ENTRIES..;
        /// Time for which an answer that allows is remembered.
        reload allow_s: u32 = 60, within 1..;
        /// Time for which an answer that denies is remembered.
        reload deny_s: u32 = 5, within 1..;
        /// Failures in a row after which the service is [left alone](webhook.md#failures) for a while.
        reload failures: u32 = 5, within 1..;
        /// Time for which the service is left alone.
        reload pause_ms: u64 = 5000, within 1..;
    }
}

impl Webhook {
    /// Whether anything is asked.
    #[must_use]
    pub const fn is_configured(&self) -> bool {
        self.authentication_url.is_some() || self.authorization_url.is_some()
    }

    /// A sentence for each fault.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !self.is_configured() && *self != Self::default() {
            let what = "webhook asks nothing without authentication_url or authorization_url";
            problems.push(what.to_owned());
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_without_effect_are_refused() {
        assert_eq!(Webhook::default().problems(), [""; 0]);
        let idle = Webhook {
            deny_s: 9,
            ..Webhook::default()
        };
        assert_eq!(idle.problems().len(), 1);
        let complete = Webhook {
            authentication_url: Some("https://a.example/".to_owned()),
            ..idle
        };
        assert_eq!(complete.problems(), [""; 0]);
    }
}
