//! Invariants of a shard, for tests: the check looks at everything.

use super::Shard;

impl Shard {
    /// Looks at every queue, client, sum and timer of the shard, between two steps.
    ///
    /// # Panics
    /// Where something does not agree with what it stands for.
    pub fn check(&mut self, now_ms: u64) {
        self.broker.check();
        self.mqtt.check(now_ms, &self.broker);
        self.amqp.check(now_ms, &self.broker);
        self.http.check(now_ms, &self.broker);
        self.admin.check(now_ms, &self.broker);
    }
}
