//! The broker's counters, for `$SYS` and metrics.

use crate::message::Message;
use crate::nodes::NIL;
use crate::tail::WAITING_BYTES;

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
    /// Refused publications, by the number of the [`PublishRefusal`](crate::PublishRefusal).
    pub refused_messages: [u64; crate::PublishRefusal::ALL.len()],
    /// Times that a session fell behind its publishers, and reads the log since.
    pub fallen_behind: u64,
    /// Consumers that were let go because their session held most of the log of a store that was nearly full.
    pub let_go: u64,
    /// Readers that hold publishers now, because their queues are half full.
    pub readers_holding: u64,
    /// Times that a reader began to hold publishers.
    pub reader_holds: u64,
    /// Times that a reader held nobody any more, because it took too little.
    pub readers_slow: u64,
    /// QoS 0 messages dropped because they had waited too long.
    pub dropped_late: u64,
    /// QoS 0 messages dropped because the consumer was away.
    pub dropped_away: u64,
    /// Messages dropped because they expired in a queue.
    pub dropped_expired: u64,
    /// Messages dropped because the session's consumer could not take them.
    pub dropped_undeliverable: u64,
    /// Messages of kept queues that consumers rejected.
    pub rejected_messages: u64,
    /// Messages of kept queues published to their dead letters.
    pub dead_lettered: u64,
    /// Messages of kept queues without dead letters dropped as rejected, or after as many failed
    /// deliveries as the queue allows.
    pub dropped_dead: u64,
    /// Messages of shared subscriptions that were held back before they are delivered again, by the number of the
    /// [`HoldBack`](crate::HoldBack).
    pub held_back: [u64; crate::HoldBack::ALL.len()],
    /// Wills dropped because their owners may not publish them any more, and messages whose readers may not have them
    /// when it is their turn.
    pub dropped_forbidden: u64,
    /// Times that a subscription lost its right.
    pub rights_lost: u64,
    /// Sessions of missing users that ended because room was short.
    pub missing_ended: u64,
    /// Sessions that ended because memory was short and their principal held most.
    pub sessions_shed: u64,
    /// Times that the right of a subscription came back.
    pub rights_returned: u64,
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
    /// Of these, shared subscriptions.
    pub shared_subscriptions: u64,
    /// Messages in this shard's queues now that are in memory: they wait, or were sent and not settled.
    pub stored_messages: u64,
    /// Messages of this shard's shared subscriptions that wait in the log and not in memory.
    pub logged_messages: u64,
    /// Bytes of their bodies; a body shared by several queues counts in each.
    pub stored_bytes: u64,
    /// Of these messages, those whose bodies are not counted once for all queues.
    pub alone_messages: u64,
    /// Bytes of their bodies.
    pub(crate) alone_bytes: u64,
}

/// A body that a queue holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    bytes: u64,
    /// Whether it counts in this queue, and not once for all.
    is_alone: bool,
}

impl Held {
    /// That of an entry; `None` where it has been handed over.
    pub(crate) fn of(message: Option<&Message>) -> Self {
        Self {
            bytes: message.map_or(0, |message| message.body_bytes() as u64),
            is_alone: message.is_some_and(|message| !message.is_charged()),
        }
    }
}

impl Counters {
    /// Counts a new subscription of a session; `group` is `NIL` for a subscription of its own.
    pub(crate) const fn subscribed(&mut self, group: u32) {
        self.subscriptions += 1;
        self.shared_subscriptions += (group != NIL) as u64;
    }

    /// Counts out a subscription of a session.
    pub(crate) const fn unsubscribed(&mut self, group: u32) {
        self.subscriptions -= 1;
        self.shared_subscriptions -= (group != NIL) as u64;
    }

    /// A queue takes a message.
    pub(crate) const fn stored(&mut self, held: Held) {
        self.stored_messages += 1;
        self.stored_bytes += held.bytes;
        if held.is_alone {
            self.alone_messages += 1;
            self.alone_bytes += held.bytes;
        }
    }

    /// A queue lets go of a message, whose body may be gone already.
    pub(crate) fn unstored(&mut self, held: Held) {
        self.stored_messages -= 1;
        self.handed_over(held);
    }

    /// A queue lets go of a body.
    pub(crate) fn handed_over(&mut self, held: Held) {
        self.stored_bytes -= held.bytes;
        if held.is_alone {
            self.alone_messages -= 1;
            self.alone_bytes -= held.bytes;
        }
        debug_assert!(
            self.alone_bytes <= self.stored_bytes,
            "bodies of one queue are among all"
        );
    }

    /// The bytes that all queues hold, except for the bodies that are counted once.
    pub(crate) const fn entry_bytes(&self) -> u64 {
        self.alone_bytes + self.stored_messages * ENTRY_BYTES + self.logged_messages * WAITING_BYTES
    }
}

/// The cost of a message in a queue beside its body.
pub(crate) const ENTRY_BYTES: u64 = 64;
