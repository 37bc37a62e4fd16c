//! Lines of the log that peers cause. A client that comes again and again, or a stranger who sends nonsense, could fill a
//! disk with them. So a line that is like one before it waits for a while, and the next one says how many were left out.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use sterna_broker::network_of;

use crate::config::Log;

/// The part of all remembered lines that those of one address may be.
const SHARE: usize = 16;

/// How often lines may be alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RepeatLimits {
    /// Time in which only the first of them is written; 0 for each.
    pub interval_ms: u64,
    /// The most lines that are remembered, a sixteenth of them for one address. Those beyond are taken for alike.
    pub lines: usize,
}

impl RepeatLimits {
    /// The limits of a configuration.
    #[must_use]
    pub fn of(log: &Log) -> Self {
        Self {
            interval_ms: log.repeat_interval_ms.into(),
            lines: log.maximum_repeats as usize,
        }
    }
}

/// The lines of one shard that were written of late.
#[derive(Debug, Default)]
pub(crate) struct Repeats(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    hasher: RandomState,
    lines: HashMap<u64, Line>,
    /// The addresses of these lines.
    addresses: HashMap<Option<IpAddr>, Address>,
    /// All of addresses that have no line.
    others: Pace,
    /// When it is looked again which lines are old.
    look_ms: u64,
}

/// Lines of one address.
#[derive(Clone, Copy, Debug, Default)]
struct Address {
    lines: usize,
    /// All beyond its share.
    others: Pace,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    address: Option<IpAddr>,
    pace: Pace,
}

#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    quiet_until_ms: u64,
    /// How many were left out since.
    more: u64,
}

impl Pace {
    fn pass(&mut self, now_ms: u64, interval_ms: u64) -> Option<u64> {
        if now_ms < self.quiet_until_ms {
            self.more += 1;
            return None;
        }
        self.quiet_until_ms = now_ms + interval_ms;
        Some(std::mem::take(&mut self.more))
    }
}

impl Known {
    /// Forgets lines that may be written again.
    fn forget_old(&mut self, now_ms: u64, interval_ms: u64) {
        let addresses = &mut self.addresses;
        self.lines.retain(|_, line| {
            let is_new = now_ms < line.pace.quiet_until_ms;
            if !is_new && let Some(address) = addresses.get_mut(&line.address) {
                address.lines -= 1;
            }
            is_new
        });
        // One that has left lines out has an interval to say so. It may never come again.
        addresses.retain(|_, of| {
            let is_heard = of.others.more > 0 && now_ms < of.others.quiet_until_ms + interval_ms;
            of.lines > 0 || is_heard
        });
    }
}

/// The beginning of a text of a client's: it may be longer than a line should be.
pub(crate) fn brief(text: &str) -> &str {
    const MOST_BYTES: usize = 200;
    // Beyond the end is no boundary.
    let mut ends = (0..=MOST_BYTES).rev();
    let end = ends.find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or_default()]
}

/// The number of lines left out, as a field of the next one: none has no field.
pub(crate) fn left_out(more: u64) -> Option<u64> {
    (more > 0).then_some(more)
}

impl Repeats {
    /// Whether the log gets a line that somebody at an address has caused: how many like it were left out before. `None`
    /// where it is left out, too. Lines with the same `line` are alike. No address hides lines of another.
    pub(crate) fn pass(
        &self,
        now_ms: u64,
        limits: RepeatLimits,
        address: Option<IpAddr>,
        line: impl Hash,
    ) -> Option<u64> {
        let RepeatLimits { interval_ms, lines } = limits;
        if interval_ms == 0 {
            return Some(0);
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let hash = known.hasher.hash_one((address, line));
        if let Some(line) = known.lines.get_mut(&hash) {
            return line.pace.pass(now_ms, interval_ms);
        }
        let address = address.map(network_of);
        let share = (lines / SHARE).max(1);
        let used = |known: &Known| known.addresses.get(&address).map_or(0, |of| of.lines);
        let is_full = |known: &Known| known.lines.len() >= lines || used(known) >= share;
        if is_full(&known) && known.look_ms <= now_ms {
            known.forget_old(now_ms, interval_ms);
            known.look_ms = now_ms + interval_ms;
        }
        if is_full(&known) {
            let known = &mut *known;
            let of = known.addresses.get_mut(&address);
            let others = of.map_or(&mut known.others, |of| &mut of.others);
            return others.pass(now_ms, interval_ms);
        }
        known.addresses.entry(address).or_default().lines += 1;
        let mut pace = Pace::default();
        let passed = pace.pass(now_ms, interval_ms);
        known.lines.insert(hash, Line { address, pace });
        passed
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const LIMITS: RepeatLimits = RepeatLimits {
        interval_ms: 1_000,
        lines: 32,
    };

    fn at(host: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from(host))
    }

    #[test]
    fn the_first_of_many_is_written_and_the_next_one_counts_the_others() {
        let repeats = Repeats::default();
        let pass = |now_ms, line| repeats.pass(now_ms, LIMITS, Some(at(1)), line);
        assert_eq!(pass(5, "a"), Some(0));
        assert_eq!(pass(6, "b"), Some(0));
        for now_ms in 5..1_005 {
            assert_eq!(pass(now_ms, "a"), None);
        }
        assert_eq!(pass(1_005, "a"), Some(1_000));
        assert_eq!(pass(1_006, "a"), None);
    }

    /// Nobody hides behind others for long, and nobody takes memory.
    #[test]
    fn lines_of_an_address_that_have_no_place_are_alike() {
        let repeats = Repeats::default();
        let pass = |now_ms, host, line| repeats.pass(now_ms, LIMITS, Some(at(host)), line);
        let mut written = 0;
        for line in 0..10_000 {
            written += usize::from(pass(5, 1, line).is_some());
        }
        assert_eq!(written, LIMITS.lines / SHARE + 1);
        // Another address has places of its own.
        assert_eq!(pass(5, 2, 0), Some(0));
        assert_eq!(pass(5, 2, 1), Some(0));
        // The old ones make room, and what was left out is said.
        assert_eq!(pass(1_005, 1, 10_001), Some(0));
        assert_eq!(pass(1_005, 1, 10_002), Some(0));
        assert_eq!(pass(1_005, 1, 10_003), Some(9_997));
    }

    #[test]
    fn many_addresses_take_no_more_memory_than_the_limit() {
        let repeats = Repeats::default();
        for host in 0..10_000 {
            let _ = repeats.pass(5, LIMITS, Some(at(host)), "a");
            let _ = repeats.pass(6, LIMITS, Some(at(host)), "b");
        }
        let known = repeats.0.lock().expect("not poisoned");
        assert_eq!(known.lines.len(), LIMITS.lines);
        assert!(known.addresses.len() <= LIMITS.lines);
    }

    /// Also those that had left lines out, and did not come again.
    #[test]
    fn addresses_are_forgotten() {
        let repeats = Repeats::default();
        for host in 0..1_000 {
            for line in 0..10 {
                let now_ms = u64::from(host) * 10_000;
                let _ = repeats.pass(now_ms, LIMITS, Some(at(host)), line);
            }
        }
        let known = repeats.0.lock().expect("not poisoned");
        assert!(known.addresses.len() <= LIMITS.lines);
    }

    #[test]
    fn addresses_of_one_network_of_ipv6_are_one() {
        let repeats = Repeats::default();
        let mut written = 0;
        for host in 0..1_000_u128 {
            let address = IpAddr::V6((0x2001_0db8_0001_u128 << 80 | host).into());
            written += usize::from(repeats.pass(5, LIMITS, Some(address), "a").is_some());
        }
        assert_eq!(written, LIMITS.lines / SHARE + 1);
    }

    #[test]
    fn without_an_interval_each_is_written() {
        let (repeats, limits) = (
            Repeats::default(),
            RepeatLimits {
                interval_ms: 0,
                ..LIMITS
            },
        );
        for _ in 0..3 {
            assert_eq!(repeats.pass(5, limits, Some(at(1)), "a"), Some(0));
        }
    }
}
