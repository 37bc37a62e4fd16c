//! The pace of a user's publications, over all its connections and shards. There is no lock. Each rate is the moment at
//! which all published messages are paid, and a message moves that moment on.
//!
//! A connection that is paused waits for the moment that its own message has made. So connections of one user take
//! turns, and each gets its part. Messages that are not paid yet are a debt. It is bounded.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::config::Limit;

const NS_PER_MS: u64 = 1_000_000;
const NS_PER_S: u64 = 1_000_000_000;
/// Messages that a connection takes in advance while its user is far from the limit, and the bytes of them all.
const LEASED_MESSAGES: u64 = 32;
const LEASED_BYTES: u64 = 16 << 10;
/// After this time the rest of them is given back, in milliseconds.
const LEASE_MS: u64 = 100;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    messages: Paid,
    bytes: Paid,
    /// When the last burst is whole again, in nanoseconds; 0 if nothing was published.
    rested_ns: AtomicU64,
}

/// When all that was published is paid.
#[derive(Debug, Default)]
struct Paid {
    /// In nanoseconds since the Unix epoch.
    at_ns: AtomicU64,
    /// The rate at which that was reckoned; 0 before there was any.
    rate: AtomicU64,
}

/// The rates of a limit, as a message needs them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    messages: Option<Rate>,
    bytes: Option<Rate>,
    burst_ns: u64,
    debt_ns: u64,
}

/// Nanoseconds for each, with 32 bits behind the point.
#[derive(Clone, Copy, Debug)]
struct Rate(u64);

/// Messages and bytes that a connection has taken in advance.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lease {
    messages: u64,
    bytes: u64,
    until_ms: u64,
}

impl Lease {
    /// Takes a message of `bytes` bytes out of the lease; false where the lease does not have it.
    #[inline]
    pub(crate) const fn pays(&mut self, now_ms: u64, bytes: u64) -> bool {
        let has_it = now_ms < self.until_ms && self.messages > 0 && self.bytes >= bytes;
        if has_it {
            self.messages -= 1;
            self.bytes -= bytes;
        }
        has_it
    }
}

impl Rate {
    const fn new(per_s: u32) -> Self {
        Self((NS_PER_S << 32) / (if per_s == 0 { 1 } else { per_s }) as u64)
    }

    fn cost_ns(self, amount: u64) -> u64 {
        let cost_ns = (u128::from(amount) * u128::from(self.0)) >> 32;
        u64::try_from(cost_ns).unwrap_or(u64::MAX)
    }
}

impl Rates {
    pub(crate) fn of(limit: &Limit) -> Self {
        Self {
            messages: limit.messages_per_s.map(Rate::new),
            bytes: limit.bytes_per_s.map(Rate::new),
            burst_ns: u64::from(limit.burst_s).saturating_mul(NS_PER_S),
            debt_ns: u64::from(limit.debt_s).saturating_mul(NS_PER_S),
        }
    }

    /// How long a user's debt may last, in milliseconds.
    pub(crate) const fn debt_ms(&self) -> u64 {
        self.debt_ns / NS_PER_MS
    }
}

impl Paid {
    /// Makes another moment of the one that is known, and tells it.
    fn update(&self, next_ns: impl Fn(u64) -> u64) -> u64 {
        let mut before_ns = self.at_ns.load(Ordering::Relaxed);
        loop {
            let after_ns = next_ns(before_ns);
            let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
            match (self.at_ns).compare_exchange_weak(before_ns, after_ns, success, failure) {
                Ok(_) => return after_ns,
                Err(other_ns) => before_ns = other_ns,
            }
        }
    }

    /// Takes a cost, and returns the moment at which it is paid. Savings are worth `burst_ns` at most. A debt lasts
    /// `debt_ns` at most: so one large message does not keep all others of the user away.
    fn take(&self, now_ns: u64, rates: &Rates, cost_ns: u64) -> u64 {
        let least_ns = now_ns.saturating_sub(rates.burst_ns);
        let most_ns = now_ns.saturating_add(rates.debt_ns);
        self.update(|before_ns| before_ns.max(least_ns).saturating_add(cost_ns).min(most_ns))
    }

    /// Reckons the debt at this rate from now on.
    fn change(&self, now_ns: u64, debt_ns: u64, rate: Rate) {
        let before = self.rate.swap(rate.0, Ordering::Relaxed);
        self.update(|paid_ns| {
            let mut owed_ns = paid_ns.saturating_sub(now_ns);
            if before != 0 && before != rate.0 {
                let scaled = u128::from(owed_ns) * u128::from(rate.0) / u128::from(before);
                owed_ns = u64::try_from(scaled).unwrap_or(u64::MAX);
            }
            paid_ns.min(now_ns).saturating_add(owed_ns.min(debt_ns))
        });
    }

    /// Whether this cost would be paid at once.
    fn has(&self, now_ns: u64, burst_ns: u64, cost_ns: u64) -> bool {
        let paid_ns = self.at_ns.load(Ordering::Relaxed);
        let paid_ns = paid_ns.max(now_ns.saturating_sub(burst_ns));
        paid_ns.saturating_add(cost_ns) <= now_ns
    }

    /// Takes a cost, if half of the possible savings is left then.
    fn lend(&self, now_ns: u64, rates: &Rates, cost_ns: u64) -> bool {
        let burst_ns = rates.burst_ns;
        let is_far = self.has(now_ns, burst_ns, cost_ns.saturating_add(burst_ns / 2));
        if is_far {
            self.take(now_ns, rates, cost_ns);
        }
        is_far
    }
}

impl Pace {
    /// Puts another limit of the user in force: the debt is worth as many messages and bytes as before.
    pub(crate) fn change(&self, rates: &Rates, now_ms: u64) {
        let at_ns = now_ms.saturating_mul(NS_PER_MS);
        for (paid, rate) in [(&self.messages, rates.messages), (&self.bytes, rates.bytes)] {
            if let Some(rate) = rate {
                paid.change(at_ns, rates.debt_ns, rate);
            }
        }
        if self.owes(now_ms) {
            self.remember(rates, self.paid_ms(rates).saturating_mul(NS_PER_MS));
        }
    }

    /// When all that the user has published is paid, in milliseconds.
    pub(crate) fn paid_ms(&self, rates: &Rates) -> u64 {
        let paid = |paid: &Paid, rate: Option<Rate>| {
            rate.map_or(0, |_| paid.at_ns.load(Ordering::Relaxed))
        };
        let paid_ns = paid(&self.messages, rates.messages).max(paid(&self.bytes, rates.bytes));
        paid_ns.div_ceil(NS_PER_MS)
    }

    /// Whether one message more is within the limit. Its bytes may run into debt, which the next ones pay.
    pub(crate) fn admits(&self, rates: &Rates, now_ms: u64) -> bool {
        let at_ns = now_ms.saturating_mul(NS_PER_MS);
        let has = |paid: &Paid, rate: Option<Rate>| {
            rate.is_none_or(|rate| paid.has(at_ns, rates.burst_ns, rate.cost_ns(1)))
        };
        has(&self.messages, rates.messages) && has(&self.bytes, rates.bytes)
    }

    /// A message of this size is published. The result is the moment at which it is paid, in milliseconds.
    pub(crate) fn take(&self, rates: &Rates, now_ms: u64, bytes: u64) -> u64 {
        let at_ns = now_ms.saturating_mul(NS_PER_MS);
        let take = |paid: &Paid, rate: Option<Rate>, amount| {
            rate.map_or(0, |rate| paid.take(at_ns, rates, rate.cost_ns(amount)))
        };
        let messages_ns = take(&self.messages, rates.messages, 1);
        let paid_ns = messages_ns.max(take(&self.bytes, rates.bytes, bytes));
        self.remember(rates, paid_ns);
        paid_ns.div_ceil(NS_PER_MS)
    }

    /// Takes a message of this size out of the connection's lease. A new lease is taken while more than half of the
    /// possible savings is there. So the shards do not meet at each message, and the limit is exact where it is near.
    /// False: this message is to be paid by itself.
    pub(crate) fn lend(&self, rates: &Rates, now_ms: u64, lease: &mut Lease, bytes: u64) -> bool {
        let lend = |paid: &Paid, rate: Option<Rate>, amount| {
            let at_ns = now_ms.saturating_mul(NS_PER_MS);
            let Some(rate) = rate else { return true };
            let is_lent = paid.lend(at_ns, rates, rate.cost_ns(amount));
            if is_lent {
                self.remember(rates, at_ns);
            }
            is_lent
        };
        if lease.until_ms <= now_ms {
            self.give_back(rates, lease);
            lease.until_ms = now_ms.saturating_add(LEASE_MS);
        }
        if lease.messages == 0 {
            if !lend(&self.messages, rates.messages, LEASED_MESSAGES) {
                return false;
            }
            lease.messages = LEASED_MESSAGES;
        }
        if lease.bytes < bytes {
            if bytes > LEASED_BYTES || !lend(&self.bytes, rates.bytes, LEASED_BYTES) {
                return false;
            }
            lease.bytes += LEASED_BYTES;
        }
        lease.pays(now_ms, bytes)
    }

    /// Gives back the rest of a lease, as if it had not been taken: savings are bounded all the
    /// same.
    pub(crate) fn give_back(&self, rates: &Rates, lease: &mut Lease) {
        let give_back = |paid: &Paid, rate: Option<Rate>, amount: u64| {
            if let Some(rate) = rate.filter(|_| amount > 0) {
                paid.update(|paid_ns| paid_ns.saturating_sub(rate.cost_ns(amount)));
            }
        };
        give_back(
            &self.messages,
            rates.messages,
            std::mem::take(&mut lease.messages),
        );
        give_back(&self.bytes, rates.bytes, std::mem::take(&mut lease.bytes));
    }

    /// Another shard may have said more: this is only how long a user is remembered.
    fn remember(&self, rates: &Rates, paid_ns: u64) {
        let rested_ns = paid_ns.saturating_add(rates.burst_ns);
        self.rested_ns.store(rested_ns, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn rates(messages_per_s: Option<u32>, bytes_per_s: Option<u32>) -> Rates {
        Rates::of(&Limit {
            messages_per_s,
            bytes_per_s,
            debt_s: 1_000,
            ..Limit::default()
        })
    }

    #[test]
    fn a_burst_is_free_and_debts_are_paid_in_turn() {
        let pace = Pace::default();
        let rates = rates(Some(10), None);
        let now_ms = 1_700_000_000_000;
        for _ in 0..10 {
            assert!(pace.admits(&rates, now_ms));
            assert!(pace.take(&rates, now_ms, 5) <= now_ms);
        }
        assert!(!pace.admits(&rates, now_ms));
        assert_eq!(pace.take(&rates, now_ms, 5), now_ms + 100);
        assert_eq!(pace.take(&rates, now_ms, 5), now_ms + 200);
        assert!(!pace.admits(&rates, now_ms + 299) && pace.admits(&rates, now_ms + 300));
        assert!(pace.owes(now_ms + 1_199) && !pace.owes(now_ms + 1_200));
        // After a long rest there is one burst, and not more.
        let later_ms = now_ms + 3_600_000;
        for _ in 0..10 {
            assert!(pace.take(&rates, later_ms, 5) <= later_ms);
        }
        assert!(!pace.admits(&rates, later_ms));
    }

    #[test]
    fn shards_that_publish_at_once_get_the_rate_together() {
        let pace = Arc::new(Pace::default());
        let rates = rates(Some(1_000), Some(1_000_000));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let pace = Arc::clone(&pace);
                std::thread::spawn(move || {
                    for _ in 0..25_000 {
                        pace.take(&rates, 10_000, 100);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
        // 100,000 messages last 100 s, the burst is the first of them.
        assert_eq!(pace.take(&rates, 10_000, 0), 10_000 + 99_001);
    }

    #[test]
    fn a_debt_is_bounded_and_worth_the_same_at_another_rate() {
        let slow = Rates {
            debt_ns: 60 * NS_PER_S,
            ..rates(Some(10), Some(1_000))
        };
        let fast = Rates {
            debt_ns: 60 * NS_PER_S,
            ..rates(Some(100), Some(1_000))
        };
        let pace = Pace::default();
        let now_ms = 1_700_000_000_000;
        pace.change(&slow, now_ms);
        for _ in 0..2_000 {
            pace.take(&slow, now_ms, 1);
        }
        assert_eq!(pace.paid_ms(&slow), now_ms + 60_000);
        assert!(!pace.admits(&slow, now_ms + slow.debt_ms()));
        pace.change(&fast, now_ms);
        assert_eq!(pace.paid_ms(&fast), now_ms + 6_000);
        pace.change(&fast, now_ms);
        assert_eq!(pace.paid_ms(&fast), now_ms + 6_000, "once");
        pace.change(&slow, now_ms);
        assert_eq!(pace.paid_ms(&slow), now_ms + 60_000);
        pace.change(&rates(None, Some(1)), now_ms);
        assert_eq!(pace.take(&slow, now_ms, 1 << 40), now_ms + 60_000);
        // Savings are no debt.
        let pace = Pace::default();
        pace.change(&slow, now_ms);
        assert!(pace.take(&slow, now_ms, 1) < now_ms);
        pace.change(&fast, now_ms);
        assert!(pace.admits(&fast, now_ms));
    }

    #[test]
    fn messages_are_taken_in_advance_where_the_limit_is_far() {
        let (pace, mut lease) = (Pace::default(), Lease::default());
        let limited = rates(Some(1_000), Some(1_000_000));
        let mut lent = 0;
        while pace.lend(&limited, 10_000, &mut lease, 10) {
            lent += 1;
        }
        assert!((480..=500).contains(&lent), "{lent} are half of the burst");
        let mut exact = 0;
        while pace.admits(&limited, 10_000) {
            pace.take(&limited, 10_000, 10);
            exact += 1;
        }
        assert_eq!(lent + exact, 1_000, "together one burst");
        assert!(!pace.lend(&limited, 10_100, &mut lease, 10));
        // Bytes are lent by themselves: large messages need more, small ones waste none.
        let (pace, mut lease) = (Pace::default(), Lease::default());
        assert!(!pace.lend(&limited, 10_000, &mut lease, LEASED_BYTES + 1));
        let mut lent = 0;
        while pace.lend(&limited, 10_000, &mut lease, 10_000) {
            lent += 1;
        }
        assert!((45..=50).contains(&lent), "{lent} are half of the bytes");
        // The rest of a lease is given back in time: a slow connection keeps nothing for later.
        let (pace, mut lease) = (Pace::default(), Lease::default());
        assert!(pace.lend(&limited, 10_000, &mut lease, 10));
        let mut lent = 0;
        while pace.admits(&limited, 20_000) {
            if !pace.lend(&limited, 20_000, &mut lease, 10) {
                pace.take(&limited, 20_000, 10);
            }
            lent += 1;
        }
        assert!((1_000..1_000 + LEASED_MESSAGES).contains(&lent), "{lent}");
        // A small burst is never lent.
        let (pace, mut lease) = (Pace::default(), Lease::default());
        assert!(!pace.lend(&rates(Some(10), None), 10_000, &mut lease, 10));
    }

    #[test]
    fn no_number_is_too_large() {
        let pace = Pace::default();
        let slow = rates(Some(1), Some(1));
        for _ in 0..3 {
            assert!(pace.take(&slow, 1_700_000_000_000, u64::MAX) > 1_700_000_000_000);
        }
        let fast = rates(Some(u32::MAX), Some(u32::MAX));
        assert!(pace.take(&fast, u64::MAX, 1) > 0);
        assert!(!pace.admits(&slow, 0) && !pace.lend(&slow, 0, &mut Lease::default(), 1));
    }
}
