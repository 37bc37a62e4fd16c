//! What the broker counts, for `$SYS` and metrics.

/// Counters of one shard since it started, and its present sizes. Sum them over the shards.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Counters {
    /// Messages published to this shard.
    pub received_messages: u64,
    /// Bytes of their payloads.
    pub received_bytes: u64,
    /// Messages handed to consumers, redeliveries not counted.
    pub sent_messages: u64,
    /// Bytes of their payloads.
    pub sent_bytes: u64,
    /// Messages dropped because a queue or the total was full.
    pub dropped_full: u64,
    /// QoS 0 messages dropped because the consumer was away.
    pub dropped_away: u64,
    /// Messages dropped because they expired in a queue.
    pub dropped_expired: u64,
    /// Messages that matched no subscription.
    pub unmatched_messages: u64,
    /// Wills published.
    pub wills_published: u64,
    /// Sessions taken over from another shard.
    pub sessions_claimed: u64,
    /// Sessions that ended because their expiry interval passed.
    pub sessions_expired: u64,
    /// Sessions on this shard now.
    pub sessions: u64,
    /// Sessions with a consumer on this shard now.
    pub sessions_connected: u64,
    /// Subscriptions of this shard's sessions now.
    pub subscriptions: u64,
    /// Messages waiting in this shard's queues now, or sent and not settled.
    pub stored_messages: u64,
    /// Bytes of their bodies; a body shared by several queues counts in each.
    pub stored_bytes: u64,
}
