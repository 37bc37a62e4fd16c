//! How full a kept queue is, for publishers of all shards.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::limits::Limits;

/// The messages of a kept queue: those that wait in it, and those that are on their way and have room reserved.
/// Messages that are out with consumers don't count. So when consumers give them back, the limits may be exceeded.
#[derive(Debug, Default)]
pub(crate) struct Fill {
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl Fill {
    /// Reserves room for a message; false where there is none. An empty queue takes one of any size.
    pub(crate) fn reserve(&self, body_bytes: u64, limits: &Limits) -> bool {
        let most = limits.group_queued_messages as u64;
        let reserved =
            self.messages
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |messages| {
                    (messages == 0 || messages < most).then_some(messages + 1)
                });
        let Ok(before) = reserved else {
            return false;
        };
        let bytes = self.bytes.fetch_add(body_bytes, Ordering::Relaxed) + body_bytes;
        if before > 0 && bytes > limits.group_queued_bytes as u64 {
            self.remove(1, body_bytes);
            return false;
        }
        true
    }

    /// Counts what came without a reservation.
    pub(crate) fn add(&self, messages: u64, body_bytes: u64) {
        self.messages.fetch_add(messages, Ordering::Relaxed);
        self.bytes.fetch_add(body_bytes, Ordering::Relaxed);
    }

    /// Counts out what left the queue, or didn't come.
    pub(crate) fn remove(&self, messages: u64, body_bytes: u64) {
        let had_messages = self.messages.fetch_sub(messages, Ordering::Relaxed);
        let had_bytes = self.bytes.fetch_sub(body_bytes, Ordering::Relaxed);
        debug_assert!(
            had_messages >= messages && had_bytes >= body_bytes,
            "what leaves was counted in"
        );
    }

    /// Messages and bytes now.
    pub(crate) fn now(&self) -> (u64, u64) {
        let messages = self.messages.load(Ordering::Relaxed);
        (messages, self.bytes.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_given_up_to_the_limits_and_again_when_something_leaves() {
        let limits = Limits {
            group_queued_messages: 2,
            group_queued_bytes: 100,
            ..Limits::default()
        };
        let fill = Fill::default();
        assert!(fill.reserve(1_000, &limits), "an empty queue takes any");
        assert!(!fill.reserve(1, &limits), "bytes");
        fill.remove(1, 1_000);
        assert!(fill.reserve(50, &limits) && fill.reserve(50, &limits));
        assert!(!fill.reserve(0, &limits), "messages");
        fill.remove(1, 50);
        assert!(!fill.reserve(51, &limits), "bytes");
        assert!(fill.reserve(50, &limits));
    }
}
