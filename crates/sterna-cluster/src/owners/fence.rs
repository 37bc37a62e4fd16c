//! Whether this node is sure that its sessions are still its own, as shards look at it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

/// A clock that goes on while the machine is suspended, as the clocks of other nodes do. Linux' monotonic clock stands
/// still then.
#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::Monotonic;

/// Open until a time that the engine moves on. It shuts by itself, also while the whole process stands still, or the
/// machine is suspended.
#[derive(Debug)]
pub struct Fence {
    started_ms: u64,
    until_ms: AtomicU64,
    is_awaited: AtomicBool,
    lapses: AtomicU64,
    is_clock_wrong: AtomicBool,
    /// Until when clients wait for the first verdict on this node's clock; 0 where they do not, or no more.
    unjudged_until_ms: AtomicU64,
    is_judged: AtomicBool,
}

impl Default for Fence {
    fn default() -> Self {
        Self {
            started_ms: clock_ms(),
            until_ms: AtomicU64::new(0),
            is_awaited: AtomicBool::new(false),
            lapses: AtomicU64::new(0),
            is_clock_wrong: AtomicBool::new(false),
            unjudged_until_ms: AtomicU64::new(0),
            is_judged: AtomicBool::new(false),
        }
    }
}

impl Fence {
    /// Milliseconds since the start, those of a suspended machine included, on a clock that nobody sets.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        clock_ms() - self.started_ms
    }

    /// Whether this node cannot be sure that its sessions are its own.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.now_ms() >= self.until_ms.load(Ordering::SeqCst)
    }

    /// How often it was opened after it had been shut. A caller that has not looked meanwhile learns from it that
    /// it was shut.
    #[must_use]
    pub fn lapses(&self) -> u64 {
        self.lapses.load(Ordering::SeqCst)
    }

    /// Whether this node's clock is not the cluster's, so that it takes no new clients.
    #[must_use]
    pub fn has_wrong_clock(&self) -> bool {
        self.is_clock_wrong.load(Ordering::Relaxed)
    }

    /// Whether nobody can say yet that this node's clock is the cluster's, and is about to. A client that is let in before
    /// would lose its session and its will where the clock is wrong.
    #[must_use]
    pub fn awaits_clock(&self) -> bool {
        let until_ms = self.unjudged_until_ms.load(Ordering::Relaxed);
        until_ms != 0 && self.now_ms() < until_ms
    }

    /// Has clients wait for the first verdict on this node's clock, at most for this time from now on. Without effect after
    /// that verdict.
    pub fn await_clock(&self, for_ms: u64) {
        if !self.is_judged.load(Ordering::Relaxed) {
            let until_ms = self.now_ms() + for_ms;
            self.unjudged_until_ms.store(until_ms, Ordering::Relaxed);
        }
    }

    /// Notes a verdict: whether this node's clock is not the cluster's.
    pub fn set_clock_wrong(&self, is_wrong: bool) {
        self.is_clock_wrong.store(is_wrong, Ordering::Relaxed);
        self.is_judged.store(true, Ordering::Relaxed);
        self.unjudged_until_ms.store(0, Ordering::Relaxed);
    }

    /// Has all shards woken when it is open, by their acknowledgements' way.
    pub fn wake_when_open(&self) {
        self.is_awaited.store(true, Ordering::SeqCst);
    }

    /// Open until this time of [`now_ms`](Self::now_ms). True where shards are to be woken.
    pub(crate) fn open_until(&self, until_ms: u64) -> bool {
        let before_ms = self.until_ms.swap(until_ms, Ordering::SeqCst);
        // The clock comes last: a shard that has seen it shut did so before.
        let was_shut = self.now_ms() >= before_ms;
        if was_shut && !self.is_shut() {
            self.lapses.fetch_add(1, Ordering::SeqCst);
        }
        !self.is_shut() && self.is_awaited.swap(false, Ordering::SeqCst)
    }
}

fn clock_ms() -> u64 {
    let now = clock_gettime(CLOCK);
    now.tv_sec.cast_unsigned() * 1_000 + now.tv_nsec.cast_unsigned() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_wait_for_the_first_verdict_on_the_clock_and_no_longer() {
        let fence = Fence::default();
        assert!(!fence.awaits_clock(), "nobody compares it");
        fence.await_clock(u64::MAX / 2);
        assert!(fence.awaits_clock());
        fence.await_clock(0);
        assert!(!fence.awaits_clock(), "no answer came in time");
        fence.await_clock(u64::MAX / 2);
        fence.set_clock_wrong(true);
        assert!(!fence.awaits_clock() && fence.has_wrong_clock());
        fence.set_clock_wrong(false);
        fence.await_clock(u64::MAX / 2);
        assert!(!fence.awaits_clock() && !fence.has_wrong_clock());
    }

    #[test]
    fn it_is_shut_until_it_is_opened_and_shuts_by_itself() {
        let fence = Fence::default();
        assert!(fence.is_shut());
        assert!(!fence.open_until(u64::MAX), "nobody waits");
        assert!(!fence.is_shut());
        assert_eq!(fence.lapses(), 1);
        fence.open_until(u64::MAX);
        assert_eq!(fence.lapses(), 1, "it was open");
        fence.wake_when_open();
        assert!(!fence.open_until(fence.now_ms()));
        assert!(fence.is_shut());
        assert!(fence.open_until(u64::MAX), "somebody still waits");
        assert!(!fence.open_until(u64::MAX), "once");
        assert_eq!(fence.lapses(), 2, "it was shut meanwhile");
    }
}
