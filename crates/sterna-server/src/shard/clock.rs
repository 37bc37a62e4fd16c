//! The first shard's part in the node's clock: it looks at the system's clocks, and keeps the record.

use sterna_net::Network;

use super::Shard;
use crate::node_clock::{LOOK_INTERVAL_MS, RECORD};

impl Shard {
    /// Looks at the clocks, if that is due.
    pub(super) fn look_at_clock(&mut self, net: &dyn Network) {
        let now_ms = net.now_ms();
        if self.clock_next_ms.is_some_and(|next_ms| next_ms <= now_ms) {
            self.keep_clock(false);
            self.clock_next_ms = Some(now_ms + LOOK_INTERVAL_MS);
        }
    }

    /// Looks at the clocks, and keeps the record if that is due, or `at_once`. One shard does, since records have no
    /// owner.
    pub(super) fn keep_clock(&mut self, at_once: bool) {
        let Some(clock) = self.admin.service.sources.clock() else {
            return;
        };
        if self.number != 0 {
            return;
        }
        if let Some(record) = clock.look(self.broker.committed().written, at_once) {
            self.broker.keep_node(RECORD, &record);
        }
    }
}
