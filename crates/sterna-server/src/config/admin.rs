//! The section `admin`: metrics, health, and the API of operators.

use serde::{Deserialize, Serialize};

/// Metrics, health and the admin API, on listeners of their own.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Admin {
    /// Users with the role `viewer`: they read metrics and everything in the admin API but the contents of
    /// messages. `anonymous` stands for clients without a user name, here and in `operators`.
    pub viewers: Vec<String>,
    /// Groups whose users have the role `viewer`, too.
    pub viewer_groups: Vec<String>,
    /// Users with the role `operator`, who also read messages, and change sessions and queues.
    /// Users in `authorization.admins` and of `authorization.admin_groups` have the role `admin`.
    pub operators: Vec<String>,
    /// Groups whose users have the role `operator`, too.
    pub operator_groups: Vec<String>,
    /// Time that all shards have to answer a request, in milliseconds.
    pub gather_timeout_ms: u32,
    /// Largest number of open requests of one shard; more are refused.
    pub maximum_gathers: u32,
    /// Entries of one page of a list.
    pub maximum_page: u32,
    /// Number of places of sessions or connections that a shard looks at for one page. Also the
    /// number of retained messages before a page.
    pub maximum_scan: u32,
    /// Messages of a queue that one request purges or moves.
    pub maximum_changes: u32,
    /// Bytes of a message's payload that are shown; the rest is cut off.
    pub maximum_payload_bytes: u32,
    /// Traces that may be under way in the whole broker.
    pub maximum_traces: u32,
    /// Events of one trace that one shard writes in a second; more are counted and left out.
    pub maximum_trace_events_per_s: u32,
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            viewers: Vec::new(),
            viewer_groups: Vec::new(),
            operators: Vec::new(),
            operator_groups: Vec::new(),
            gather_timeout_ms: 5_000,
            maximum_gathers: 16,
            maximum_page: 1_000,
            maximum_scan: 65_536,
            maximum_changes: 10_000,
            maximum_payload_bytes: 4_096,
            maximum_traces: 8,
            maximum_trace_events_per_s: 1_000,
        }
    }
}

impl Admin {
    /// Faults of the settings, each a sentence that names one.
    pub(super) fn problems(&self) -> Vec<String> {
        let values = [
            ("gather_timeout_ms", self.gather_timeout_ms),
            ("maximum_gathers", self.maximum_gathers),
            ("maximum_page", self.maximum_page),
            ("maximum_scan", self.maximum_scan),
            ("maximum_changes", self.maximum_changes),
            ("maximum_payload_bytes", self.maximum_payload_bytes),
            ("maximum_traces", self.maximum_traces),
            (
                "maximum_trace_events_per_s",
                self.maximum_trace_events_per_s,
            ),
        ];
        let zero = values.into_iter().filter(|(_, value)| *value == 0);
        let mut problems: Vec<String> = zero
            .map(|(name, _)| format!("admin.{name} is at least 1"))
            .collect();
        for (name, users) in [("viewers", &self.viewers), ("operators", &self.operators)] {
            if users.iter().any(|user| user == "*" || user.is_empty()) {
                problems.push(format!(
                    "admin.{name} names users; `anonymous` are clients without a user name"
                ));
            }
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_not_zero_and_roles_name_users() {
        assert!(Admin::default().problems().is_empty());
        let wrong = Admin {
            maximum_page: 0,
            operators: vec!["*".to_owned()],
            ..Admin::default()
        };
        let problems = wrong.problems();
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("admin.maximum_page"));
        assert!(problems[1].contains("admin.operators"));
    }
}
