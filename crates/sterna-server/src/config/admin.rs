//! The section `admin`: metrics and health.

use serde::{Deserialize, Serialize};

/// Metrics and health, on listeners of their own.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Admin {
    /// Time that all shards have to answer a request for metrics, or for whether the broker is ready, in
    /// milliseconds.
    pub gather_timeout_ms: u32,
    /// Such requests that one shard may have open; more are refused.
    pub maximum_gathers: u32,
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            gather_timeout_ms: 5_000,
            maximum_gathers: 16,
        }
    }
}

impl Admin {
    /// Faults of the settings, each a sentence that names one.
    pub(super) fn problems(&self) -> Vec<String> {
        let values = [
            ("gather_timeout_ms", self.gather_timeout_ms),
            ("maximum_gathers", self.maximum_gathers),
        ];
        let zero = values.into_iter().filter(|(_, value)| *value == 0);
        zero.map(|(name, _)| format!("admin.{name} is at least 1"))
            .collect()
    }
}
