//! Why the connection of a consumer ended.

use crate::api::EvictReason;

/// Why a consumer has its session no more: one type for delivery counts, wills, dead letters, metrics and logs. It is
/// set where it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndCause {
    /// The client ended it in order: DISCONNECT, detach, end, close, or the end of a request.
    Client,
    /// The transport was lost, or was silent for too long.
    Lost,
    /// The client broke its protocol.
    Violation,
    /// The client may not be connected any more: its token, its user or its certificate is not valid.
    NotAllowed,
    /// The client is banned.
    Banned,
    /// A limit of the broker was reached, or memory is short.
    Limit,
    /// The broker stops, or sends its clients elsewhere.
    Stop,
    /// A fault of the broker's own: a step of its client panicked.
    Fault,
    /// The topic, queue or node that it read was deleted.
    Deleted,
    /// The client's request was refused with an error: its link or subscription ended with that, or did not begin.
    Refused,
    /// The broker has ended it, or has given the session to another consumer.
    Evicted(EvictReason),
}

impl EndCause {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 18] = [
        Self::Client,
        Self::Lost,
        Self::Violation,
        Self::NotAllowed,
        Self::Banned,
        Self::Limit,
        Self::Stop,
        Self::Fault,
        Self::Deleted,
        Self::Refused,
        Self::Evicted(EvictReason::TakenOver),
        Self::Evicted(EvictReason::Administrative),
        Self::Evicted(EvictReason::ClusterAway),
        Self::Evicted(EvictReason::StoreFull),
        Self::Evicted(EvictReason::TooLarge),
        Self::Evicted(EvictReason::FarBehind),
        Self::Evicted(EvictReason::SelectorTooDear),
        Self::Evicted(EvictReason::MemoryShort),
    ];

    /// Its place in [`ALL`](Self::ALL).
    #[must_use]
    pub const fn number(self) -> usize {
        match self {
            Self::Client => 0,
            Self::Lost => 1,
            Self::Violation => 2,
            Self::NotAllowed => 3,
            Self::Banned => 4,
            Self::Limit => 5,
            Self::Stop => 6,
            Self::Fault => 7,
            Self::Deleted => 8,
            Self::Refused => 9,
            Self::Evicted(EvictReason::TakenOver) => 10,
            Self::Evicted(EvictReason::Administrative) => 11,
            Self::Evicted(EvictReason::ClusterAway) => 12,
            Self::Evicted(EvictReason::StoreFull) => 13,
            Self::Evicted(EvictReason::TooLarge) => 14,
            Self::Evicted(EvictReason::FarBehind) => 15,
            Self::Evicted(EvictReason::SelectorTooDear) => 16,
            Self::Evicted(EvictReason::MemoryShort) => 17,
        }
    }

    /// Its name in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Lost => "lost",
            Self::Violation => "violation",
            Self::NotAllowed => "not_allowed",
            Self::Banned => "banned",
            Self::Limit => "limit",
            Self::Stop => "stop",
            Self::Fault => "fault",
            Self::Deleted => "deleted",
            Self::Refused => "refused",
            Self::Evicted(EvictReason::TakenOver) => "taken_over",
            Self::Evicted(EvictReason::Administrative) => "administrative",
            Self::Evicted(EvictReason::ClusterAway) => "cluster_away",
            Self::Evicted(EvictReason::StoreFull) => "store_full",
            Self::Evicted(EvictReason::TooLarge) => "too_large",
            Self::Evicted(EvictReason::FarBehind) => "far_behind",
            Self::Evicted(EvictReason::SelectorTooDear) => "selector_too_dear",
            Self::Evicted(EvictReason::MemoryShort) => "memory_short",
        }
    }

    /// Whether what the consumer had may be why it ended: nobody has ended it in order.
    #[must_use]
    pub const fn is_loss(self) -> bool {
        matches!(self, Self::Lost | Self::Violation | Self::Fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_its_number_and_its_name() {
        for (number, cause) in EndCause::ALL.into_iter().enumerate() {
            assert_eq!(cause.number(), number);
            let namesakes = EndCause::ALL
                .iter()
                .filter(|one| one.name() == cause.name());
            assert_eq!(namesakes.count(), 1, "{}", cause.name());
        }
    }
}
