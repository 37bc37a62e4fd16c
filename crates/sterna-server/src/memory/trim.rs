//! When memory that nobody uses is worth giving back.

/// Time between two attempts at least, in milliseconds.
const LEAST_INTERVAL_MS: u64 = 2_000;
/// The same where attempts give nothing back.
const MOST_INTERVAL_MS: u64 = 60_000;
/// Resident bytes above the account that are worth an attempt: it stops each thread that asks for memory meanwhile.
const LEAST_BYTES: u64 = 8 << 20;

/// Decides when to try.
#[derive(Debug, Default)]
pub(super) struct Trim {
    /// Bytes that were resident and in no account after the last attempt: the program, and memory that the account
    /// misses.
    unseen_bytes: Option<u64>,
    /// The most that the account had since the last attempt.
    most_accounted_bytes: u64,
    tried_ms: u64,
    interval_ms: u64,
}

impl Trim {
    /// Whether to try now. With memory short, any growth is a reason. The yield of earlier attempts says nothing any
    /// more once the account has fallen by much.
    pub(super) fn is_due(
        &mut self,
        now_ms: u64,
        resident_bytes: u64,
        accounted_bytes: u64,
        is_short: bool,
    ) -> bool {
        let unseen_bytes = resident_bytes.saturating_sub(accounted_bytes);
        let before_bytes = *self.unseen_bytes.get_or_insert(unseen_bytes);
        let least_bytes = if is_short {
            1
        } else {
            LEAST_BYTES + before_bytes / 8
        };
        // If less is unseen than before, that is the new measure, without an attempt.
        self.unseen_bytes = Some(before_bytes.min(unseen_bytes));
        self.most_accounted_bytes = self.most_accounted_bytes.max(accounted_bytes);
        let freed_bytes = self.most_accounted_bytes - accounted_bytes;
        if freed_bytes >= LEAST_BYTES + self.most_accounted_bytes / 8 {
            self.interval_ms = self.interval_ms.min(LEAST_INTERVAL_MS);
        }
        now_ms >= self.tried_ms + self.interval_ms && unseen_bytes >= before_bytes + least_bytes
    }

    /// Notes the bytes that an attempt has given back.
    pub(super) fn done(
        &mut self,
        now_ms: u64,
        before_bytes: u64,
        resident_bytes: u64,
        accounted_bytes: u64,
    ) {
        self.unseen_bytes = Some(resident_bytes.saturating_sub(accounted_bytes));
        let given_bytes = before_bytes.saturating_sub(resident_bytes);
        self.interval_ms = if given_bytes > before_bytes / 16 {
            LEAST_INTERVAL_MS
        } else {
            (self.interval_ms * 2).clamp(LEAST_INTERVAL_MS, MOST_INTERVAL_MS)
        };
        self.tried_ms = now_ms;
        self.most_accounted_bytes = accounted_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn it_is_tried_when_more_is_resident_than_the_account_explains() {
        let mut trim = Trim::default();
        assert!(!trim.is_due(0, 30 * MIB, 0, false), "that is the program");
        assert!(
            !trim.is_due(250, 500 * MIB, 465 * MIB, false),
            "it is in use"
        );
        assert!(trim.is_due(500, 500 * MIB, 10 * MIB, false), "it was freed");
        trim.done(500, 500 * MIB, 45 * MIB, 10 * MIB);
        assert!(!trim.is_due(3_000, 45 * MIB, 10 * MIB, false));
        assert!(
            trim.is_due(4_000, 46 * MIB, 10 * MIB, true),
            "memory is short"
        );
    }

    #[test]
    fn what_peers_held_is_given_back_soon_after_they_have_gone() {
        let mut trim = Trim::default();
        let mut resident = 30 * MIB;
        for now_ms in (0..200_000).step_by(250) {
            resident += MIB / 4;
            if trim.is_due(now_ms, resident, 20 * MIB, true) {
                trim.done(now_ms, resident, resident, 20 * MIB);
            }
        }
        let now_ms = trim.tried_ms;
        assert_eq!(
            trim.interval_ms, MOST_INTERVAL_MS,
            "no attempt was worth it"
        );
        // The account grows, and falls.
        assert!(!trim.is_due(now_ms + 1_000, resident + 100 * MIB, 120 * MIB, true));
        assert!(!trim.is_due(now_ms + 1_500, resident + 100 * MIB, 118 * MIB, true));
        assert!(!trim.is_due(now_ms + 2_000, resident + 100 * MIB, 120 * MIB, true));
        assert!(trim.is_due(now_ms + 2_250, resident + 100 * MIB, 10 * MIB, true));
        trim.done(
            now_ms + 2_250,
            resident + 100 * MIB,
            resident + 90 * MIB,
            10 * MIB,
        );
        let late = resident + 95 * MIB;
        assert!(
            !trim.is_due(now_ms + 4_000, late, 10 * MIB, true),
            "not again at once"
        );
    }

    #[test]
    fn attempts_that_give_nothing_become_rare() {
        let (mut trim, mut attempts) = (Trim::default(), 0);
        let mut resident = 30 * MIB;
        for now_ms in (0..600_000).step_by(250) {
            resident += MIB;
            if trim.is_due(now_ms, resident, 0, false) {
                trim.done(now_ms, resident, resident, 0);
                attempts += 1;
            }
        }
        assert!((5..=20).contains(&attempts), "{attempts}");
    }
}
