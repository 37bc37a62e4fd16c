//! How fast a user publishes, over all its connections and shards. There is no lock: each rate is the moment at
//! which all that was published is paid, and a message moves that moment on.
//!
//! A connection that is paused waits for the moment that its own message has made. So connections of one user take
//! turns, and each gets its part.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::config::Limit;

const NS_PER_MS: u64 = 1_000_000;
const NS_PER_S: u64 = 1_000_000_000;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    messages: Paid,
    bytes: Paid,
    /// When the last burst is whole again, in nanoseconds; 0 if nothing was published.
    rested_ns: AtomicU64,
}

/// When all that was published is paid, in nanoseconds since the Unix epoch.
#[derive(Debug, Default)]
struct Paid(AtomicU64);

impl Paid {
    /// Takes so many at `per_s`, and tells when they are paid. What was saved is worth `burst_ns` at most.
    fn take(&self, now_ns: u64, burst_ns: u64, amount: u64, per_s: u32) -> u64 {
        let cost_ns = amount.saturating_mul(NS_PER_S) / u64::from(per_s.max(1));
        let least_ns = now_ns.saturating_sub(burst_ns);
        let mut before_ns = self.0.load(Ordering::Relaxed);
        loop {
            let paid_ns = before_ns.max(least_ns).saturating_add(cost_ns);
            let swapped = self.0.compare_exchange_weak(
                before_ns,
                paid_ns,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match swapped {
                Ok(_) => return paid_ns,
                Err(other_ns) => before_ns = other_ns,
            }
        }
    }

    /// Whether so many at `per_s` are paid at once.
    fn has(&self, now_ns: u64, burst_ns: u64, amount: u64, per_s: u32) -> bool {
        let cost_ns = amount.saturating_mul(NS_PER_S) / u64::from(per_s.max(1));
        let paid_ns = self.0.load(Ordering::Relaxed);
        paid_ns.max(now_ns.saturating_sub(burst_ns)) + cost_ns <= now_ns
    }
}

impl Pace {
    /// Whether one message more is within the limit. Its bytes may run into debt, which the next ones pay.
    pub(crate) fn admits(&self, limit: &Limit, now_ms: u64) -> bool {
        let (now_ns, burst_ns) = times(limit, now_ms);
        let has = |paid: &Paid, per_s: Option<u32>| {
            per_s.is_none_or(|per_s| paid.has(now_ns, burst_ns, 1, per_s))
        };
        has(&self.messages, limit.messages_per_s) && has(&self.bytes, limit.bytes_per_s)
    }

    /// A message of so many bytes is published. The result is the moment at which it is paid, in milliseconds.
    pub(crate) fn take(&self, limit: &Limit, now_ms: u64, bytes: u64) -> u64 {
        let (now_ns, burst_ns) = times(limit, now_ms);
        let take = |paid: &Paid, per_s: Option<u32>, amount| {
            per_s.map_or(0, |per_s| paid.take(now_ns, burst_ns, amount, per_s))
        };
        let messages_ns = take(&self.messages, limit.messages_per_s, 1);
        let paid_ns = messages_ns.max(take(&self.bytes, limit.bytes_per_s, bytes));
        // A guess of another shard does no harm: it says how long a user is remembered.
        self.rested_ns
            .store(paid_ns.saturating_add(burst_ns), Ordering::Relaxed);
        paid_ns.div_ceil(NS_PER_MS)
    }

    /// Whether a user that is away has less than its burst.
    pub(crate) fn owes(&self, now_ms: u64) -> bool {
        self.rested_ns.load(Ordering::Relaxed) > now_ms.saturating_mul(NS_PER_MS)
    }

    /// Whether nothing was published.
    pub(crate) fn is_unused(&self) -> bool {
        self.rested_ns.load(Ordering::Relaxed) == 0
    }
}

/// Now and the burst, in nanoseconds.
fn times(limit: &Limit, now_ms: u64) -> (u64, u64) {
    let burst_ns = u64::from(limit.burst_s).saturating_mul(NS_PER_S);
    (now_ms.saturating_mul(NS_PER_MS), burst_ns)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn limit(messages_per_s: Option<u32>, bytes_per_s: Option<u32>) -> Limit {
        Limit {
            messages_per_s,
            bytes_per_s,
            ..Limit::default()
        }
    }

    #[test]
    fn a_burst_is_free_and_debts_are_paid_in_turn() {
        let pace = Pace::default();
        let limit = limit(Some(10), None);
        let now_ms = 1_700_000_000_000;
        for _ in 0..10 {
            assert!(pace.admits(&limit, now_ms));
            assert!(pace.take(&limit, now_ms, 5) <= now_ms);
        }
        assert!(!pace.admits(&limit, now_ms));
        assert_eq!(pace.take(&limit, now_ms, 5), now_ms + 100);
        assert_eq!(pace.take(&limit, now_ms, 5), now_ms + 200);
        assert!(!pace.admits(&limit, now_ms + 299) && pace.admits(&limit, now_ms + 300));
        assert!(pace.owes(now_ms + 1_199) && !pace.owes(now_ms + 1_200));
        // After a long rest there is one burst, and not more.
        let later_ms = now_ms + 3_600_000;
        for _ in 0..10 {
            assert!(pace.take(&limit, later_ms, 5) <= later_ms);
        }
        assert!(!pace.admits(&limit, later_ms));
    }

    #[test]
    fn shards_that_publish_at_once_get_the_rate_together() {
        let pace = Arc::new(Pace::default());
        let limit = limit(Some(1_000), Some(1_000_000));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (pace, limit) = (Arc::clone(&pace), limit.clone());
                std::thread::spawn(move || {
                    for _ in 0..25_000 {
                        pace.take(&limit, 10_000, 100);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
        // 100,000 messages last 100 s, the burst is the first of them.
        assert_eq!(pace.take(&limit, 10_000, 0), 10_000 + 99_001);
    }

    #[test]
    fn no_number_is_too_large() {
        let pace = Pace::default();
        let slow = limit(Some(1), Some(1));
        for _ in 0..3 {
            assert!(pace.take(&slow, 1_700_000_000_000, u64::MAX) > 1_700_000_000_000);
        }
        let fast = limit(Some(u32::MAX), Some(u32::MAX));
        assert!(pace.take(&fast, u64::MAX, 1) > 0);
    }
}
