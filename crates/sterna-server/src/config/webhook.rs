//! The section `webhook`: a service that knows the identities and rights of clients.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Fewest entries of the caches: an answer has to live until its client's next step.
const MINIMUM_ENTRIES: u32 = 64;

/// A service that is asked over HTTP about credentials and rights (`docs/webhook.md`).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Webhook {
    /// Asked about passwords and tokens that no file and no issuer knows.
    pub authentication_url: Option<String>,
    /// Asked where a rule has the effect `ask`.
    pub authorization_url: Option<String>,
    /// Certificates in PEM that sign those of the URLs; by default, those that the system trusts.
    pub ca: Option<PathBuf>,
    /// Fields of each request, one `Name: value` a line: the secret by which the service knows the broker.
    pub headers_file: Option<PathBuf>,
    /// Ask by `http://` on another host: passwords are then sent in the clear.
    pub allow_plaintext_beyond_loopback: bool,
    /// Time that a question may take, with its wait for others, in milliseconds.
    pub timeout_ms: u64,
    /// Time that a connection waits for the next question, in seconds; 0: each question has a
    /// connection of its own.
    pub keep_alive_s: u32,
    /// Requests under way, each on a thread of its own.
    pub maximum_concurrent: u16,
    /// Questions that wait.
    pub maximum_waiting: u32,
    /// Longest answer, in bytes.
    pub maximum_answer_bytes: u32,
    /// Entries of each cache: of credentials, and of rights.
    pub maximum_entries: u32,
    /// Time for which an answer that allows is remembered, in seconds.
    pub allow_s: u32,
    /// Time for which an answer that denies is remembered, in seconds.
    pub deny_s: u32,
    /// Failures in a row after which the service is not asked for a while.
    pub failures: u32,
    /// That while, in milliseconds.
    pub pause_ms: u64,
}

impl Default for Webhook {
    fn default() -> Self {
        Self {
            authentication_url: None,
            authorization_url: None,
            ca: None,
            headers_file: None,
            allow_plaintext_beyond_loopback: false,
            timeout_ms: 3000,
            keep_alive_s: 30,
            maximum_concurrent: 8,
            maximum_waiting: 1024,
            maximum_answer_bytes: 16 << 10,
            maximum_entries: 10_000,
            allow_s: 60,
            deny_s: 5,
            failures: 5,
            pause_ms: 5000,
        }
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
        let at_least_one = [
            ("timeout_ms", self.timeout_ms),
            ("maximum_concurrent", self.maximum_concurrent.into()),
            ("maximum_waiting", self.maximum_waiting.into()),
            ("maximum_answer_bytes", self.maximum_answer_bytes.into()),
            ("allow_s", self.allow_s.into()),
            ("deny_s", self.deny_s.into()),
            ("failures", self.failures.into()),
            ("pause_ms", self.pause_ms),
        ];
        let mut problems: Vec<String> = (at_least_one.into_iter())
            .filter(|(_, value)| *value == 0)
            .map(|(name, _)| format!("webhook.{name} is at least 1"))
            .collect();
        if self.maximum_entries < MINIMUM_ENTRIES {
            problems.push(format!(
                "webhook.maximum_entries is at least {MINIMUM_ENTRIES}"
            ));
        }
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

    type Change = fn(&mut Webhook);

    #[test]
    fn settings_without_effect_or_of_zero_are_refused() {
        assert_eq!(Webhook::default().problems(), [""; 0]);
        let complete = Webhook {
            authentication_url: Some("https://a.example/".to_owned()),
            ..Webhook::default()
        };
        assert_eq!(complete.problems(), [""; 0]);
        let changes: [(Change, &str); 5] = [
            (|hook| hook.authentication_url = None, ""),
            (|hook| hook.timeout_ms = 0, "timeout_ms"),
            (|hook| hook.allow_s = 0, "allow_s"),
            (|hook| hook.failures = 0, "failures"),
            (|hook| hook.maximum_entries = 63, "maximum_entries"),
        ];
        for (change, named) in changes {
            let mut hook = complete.clone();
            hook.deny_s = 9;
            change(&mut hook);
            let problems = hook.problems();
            assert!(
                problems.len() == 1 && problems[0].contains(named),
                "{problems:?}"
            );
        }
    }
}
