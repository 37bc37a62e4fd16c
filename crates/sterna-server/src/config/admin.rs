//! The section `admin`: metrics, health, and the API of operators.

settings! {
    /// The listeners for [metrics and health](operations.md#health) and the [admin API](admin.md).
    ///
    /// Their connections have the limits of `[http]`.
    #[derive(Eq)]
    pub struct Admin {
        /// Users with the role `viewer` ([roles](admin.md#roles)). They read metrics, and all of the admin API but the
        /// contents of messages. `anonymous` stands for clients without a user name.
        reload viewers: Vec<String>;
        /// Groups whose users have the role `viewer`, also groups that tokens and the webhook give. Each needs an entry
        /// `[[authorization.group]]`.
        reload viewer_groups: Vec<String>;
        /// Users with the role `operator`, who also read messages, and change sessions and queues. `anonymous` stands
        /// for clients without a user name.
        reload operators: Vec<String>;
        /// Groups whose users have the role `operator`, as in `viewer_groups`.
        reload operator_groups: Vec<String>;
        /// Time that all shards have to answer a request; then 503.
        reload gather_timeout_ms: u32 = 5_000, within 1..;
        /// Time that another node of a cluster has to answer a request. One that does not is named, and a page ends there.
        reload node_timeout_ms: u32 = 2_000, within 100..;
        /// Bytes of an answer of another node, also of those that are asked at once. Lists that are longer come in smaller
        /// parts. NATS takes no more than its `max_payload`.
        reload maximum_answer_bytes: u32 = 524_288, within 16_384..;
        /// Open requests of this kind on one shard. More are refused with 503.
        reload maximum_gathers: u32 = 16, within 1..;
        /// Entries of one page of a list.
        reload maximum_page: u32 = 1_000, within 1..;
        /// Places of sessions or connections that a shard looks at for one page. Also the retained messages that a page
        /// may come after.
        reload maximum_scan: u32 = 65_536, within 1..;
        /// Messages that one request purges or moves.
        reload maximum_changes: u32 = 10_000, within 1..;
        /// Bytes of a payload that are shown. The rest is cut off.
        reload maximum_payload_bytes: u32 = 4_096, within 1..;
        /// Traces under way in the whole broker.
        reload maximum_traces: u32 = 8, within 1..;
        /// Events of one trace on one shard. More are counted and left out.
        reload maximum_trace_events_per_s: u32 = 1_000, within 1..;
        /// Time after which a node of a cluster ends its part of another node's trace, where that one does not ask any
        /// more. A live one asks at least once in `node_timeout_ms`, so this is some times longer.
        reload unasked_trace_ms: u32 = 10_000, within 1_000..;
    }
}

impl Admin {
    /// Faults of the settings, each a sentence that names one.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
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
    fn roles_name_users() {
        assert!(Admin::default().problems().is_empty());
        let wrong = Admin {
            operators: vec!["*".to_owned()],
            ..Admin::default()
        };
        let problems = wrong.problems();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].contains("admin.operators"));
    }
}
