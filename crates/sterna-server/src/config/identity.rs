//! Passwords, the cost of wrong ones, and the users of client identifiers.

use serde::{Deserialize, Serialize};

/// Records and checks of passwords.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Passwords {
    /// Iterations of PBKDF2 that a record is to have. A record with fewer is raised when its user logs
    /// in with a plain password; 0: none is.
    pub iterations: u32,
    /// Threads that check passwords.
    pub threads: u16,
    /// Time that a password may wait to be checked, in milliseconds.
    pub timeout_ms: u64,
    /// Passwords that wait to be checked.
    pub maximum_waiting: u32,
    /// Users whose password, found right once, is known again by a digest in memory; 0: none.
    pub maximum_remembered: u32,
}

impl Default for Passwords {
    fn default() -> Self {
        Self {
            iterations: sterna_auth::DEFAULT_ITERATIONS,
            threads: 1,
            timeout_ms: 10_000,
            maximum_waiting: 4096,
            maximum_remembered: 10_000,
        }
    }
}

/// Delays after wrong credentials.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Guessing {
    /// Wrong credentials of one address for one user before it has to wait; 0: any number.
    pub free_failures: u32,
    /// Number of wrong credentials of one address, for any users, before it has to wait; 0: any
    /// number.
    pub free_failures_per_address: u32,
    /// Number of wrong credentials for one user, from any addresses. Above it, the user's checks
    /// wait for all others, except from addresses of earlier logins. 0: any number.
    pub free_failures_per_user: u32,
    /// The first wait, in milliseconds; each further failure doubles it.
    pub first_delay_ms: u64,
    /// The longest wait, in milliseconds.
    pub maximum_delay_ms: u64,
    /// Time in which the free failures are forgotten again, in seconds.
    pub forget_after_s: u32,
    /// Entries of each table: addresses, users, and pairs of them.
    pub maximum_entries: u32,
}

impl Default for Guessing {
    fn default() -> Self {
        Self {
            free_failures: 5,
            free_failures_per_address: 100,
            free_failures_per_user: 100,
            first_delay_ms: 1_000,
            maximum_delay_ms: 900_000,
            forget_after_s: 3_600,
            maximum_entries: 100_000,
        }
    }
}

/// Client identifiers that some users may have. If there is an entry, no client may have an
/// identifier without one.
#[derive(Clone, Debug, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientIds {
    /// User names; `*` is every client with a name, empty is every client.
    pub users: Vec<String>,
    /// Patterns of the identifiers. `%u` stands for the user's name, `*` at the end for any text.
    pub patterns: Vec<String>,
}

/// The faults of these settings, each a sentence that names one setting.
pub(super) fn problems(
    passwords: &Passwords,
    guessing: &Guessing,
    client_ids: &[ClientIds],
) -> Vec<String> {
    let mut problems = Vec::new();
    let range = sterna_auth::MIN_ITERATIONS..=sterna_auth::MAX_ITERATIONS;
    if passwords.iterations != 0 && !range.contains(&passwords.iterations) {
        problems.push(format!(
            "passwords.iterations is 0, or {} to {}",
            range.start(),
            range.end()
        ));
    }
    for (name, value) in [
        ("passwords.threads", u64::from(passwords.threads)),
        ("passwords.timeout_ms", passwords.timeout_ms),
        (
            "passwords.maximum_waiting",
            passwords.maximum_waiting.into(),
        ),
        ("guessing.forget_after_s", guessing.forget_after_s.into()),
        ("guessing.maximum_entries", guessing.maximum_entries.into()),
    ] {
        if value == 0 {
            problems.push(format!("{name} is at least 1"));
        }
    }
    if client_ids.iter().any(|list| list.patterns.is_empty()) {
        problems.push("an authentication.client_ids without patterns gives nothing".to_owned());
    }
    problems
}
