//! When it is worth moving retained messages together.
//!
//! They stay while messages of the same size come and go. A page with one of them cannot be given back, so that memory stays
//! short though nobody has it.

/// Part of the ceiling that is resident and in no account, from which it is worth it.
const UNSEEN_PART: u64 = 8;
/// Time between two attempts at least, in milliseconds, and where attempts free little.
const LEAST_INTERVAL_MS: u64 = 2_000;
const MOST_INTERVAL_MS: u64 = 600_000;

/// Decides when to try.
#[derive(Debug, Default)]
pub(super) struct Gather {
    next_ms: u64,
    interval_ms: u64,
}

impl Gather {
    /// Whether to try now, while memory is short.
    pub(super) fn is_due(
        &self,
        now_ms: u64,
        (resident_bytes, accounted_bytes): (u64, u64),
        ceiling_bytes: u64,
    ) -> bool {
        let unseen_bytes = resident_bytes.saturating_sub(accounted_bytes);
        now_ms >= self.next_ms && unseen_bytes >= ceiling_bytes / UNSEEN_PART
    }

    /// Notes what an attempt has freed.
    pub(super) fn done(&mut self, now_ms: u64, before_bytes: u64, resident_bytes: u64) {
        let freed_bytes = before_bytes.saturating_sub(resident_bytes);
        self.interval_ms = if freed_bytes > before_bytes / 16 {
            LEAST_INTERVAL_MS
        } else {
            (self.interval_ms * 4).clamp(LEAST_INTERVAL_MS, MOST_INTERVAL_MS)
        };
        self.next_ms = now_ms + self.interval_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_tried_where_much_is_in_no_account_and_seldom_where_it_is_in_vain() {
        const CEILING: u64 = 800;
        let mut gather = Gather::default();
        assert!(!gather.is_due(0, (700, 601), CEILING));
        assert!(gather.is_due(0, (700, 600), CEILING));
        gather.done(0, 700, 400);
        assert!(
            !gather.is_due(1_999, (700, 0), CEILING) && gather.is_due(2_000, (700, 0), CEILING)
        );
        for interval_ms in [8_000, 32_000, 128_000, 512_000, 600_000, 600_000] {
            gather.done(0, 700, 690);
            assert_eq!(gather.next_ms, interval_ms);
        }
        gather.done(0, 700, 600);
        assert_eq!(gather.next_ms, 2_000);
    }
}
