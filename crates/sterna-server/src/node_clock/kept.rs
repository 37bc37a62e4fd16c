//! The record of a node's clock, and the time at which a process begins. Without input or output.

use serde::{Deserialize, Serialize};
use sterna_broker::{Era, Eras};

use super::system::Reading;

/// A wall clock before this time, the beginning of 2025, was never set. In milliseconds since the Unix epoch.
const EARLIEST_MS: u64 = 1_735_689_600_000;
/// For how long a process may have dated things after its last record, in milliseconds.
const UNRECORDED_MS: u64 = 120_000;

/// The reason why a wall clock is not believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doubt {
    /// It is far before the node's clock, or was never set.
    Behind,
    /// It is far after it.
    Ahead,
}

impl Doubt {
    /// Its name for machines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Behind => "behind",
            Self::Ahead => "ahead",
        }
    }

    /// It for people.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Behind => "the wall clock is far behind the last record, or not set",
            Self::Ahead => "the wall clock is far ahead of the last record",
        }
    }
}

/// Whether the wall clock may be believed by a node whose clock shows `clock_ms`.
pub(super) const fn doubt(wall_ms: u64, clock_ms: u64, maximum_jump_ms: u64) -> Option<Doubt> {
    if wall_ms < EARLIEST_MS || wall_ms.saturating_add(maximum_jump_ms) < clock_ms {
        Some(Doubt::Behind)
    } else if clock_ms >= EARLIEST_MS && wall_ms > clock_ms.saturating_add(maximum_jump_ms) {
        Some(Doubt::Ahead)
    } else {
        None
    }
}

/// The record of a node's clock.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kept {
    /// The node's clock, in milliseconds since the Unix epoch.
    pub(super) clock_ms: u64,
    /// The wall clock at that moment.
    pub(super) wall_ms: u64,
    /// The boot, and the milliseconds since.
    boot: Option<String>,
    boot_ms: u64,
    /// The node's clock at the first start in this boot. Since then it has gone on without a jump.
    since_ms: u64,
    /// Whether the next start is to believe the wall clock.
    pub(super) is_accepted: bool,
    #[serde(with = "as_list")]
    pub(super) eras: Eras,
}

/// Eras as lists of three numbers.
mod as_list {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{Era, Eras};

    pub(super) fn serialize<S: Serializer>(eras: &Eras, to: S) -> Result<S::Ok, S::Error> {
        let list = eras.as_slice().iter();
        let list: Vec<[u64; 3]> = list
            .map(|era| [era.from_ms, era.until_ms, era.behind_ms])
            .collect();
        list.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Eras, D::Error> {
        let mut eras = Eras::default();
        for [from_ms, until_ms, behind_ms] in Vec::<[u64; 3]>::deserialize(from)? {
            eras.add(Era {
                from_ms,
                until_ms,
                behind_ms,
            });
        }
        Ok(eras)
    }
}

impl Kept {
    /// A record, as [`encode`](Self::encode) writes it; `None` for what is none.
    pub(super) fn decode(record: &[u8]) -> Option<Self> {
        serde_json::from_slice(record).ok()
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        // Numbers and texts have a form in any case.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Notes what the clocks show.
    pub(super) fn seen(&mut self, clock_ms: u64, now: &Reading) {
        self.clock_ms = clock_ms;
        self.wall_ms = now.wall_ms;
        self.boot_ms = now.boot_ms;
    }

    /// How far the wall clock was set since an earlier look, in milliseconds.
    pub(super) const fn step_since(&self, earlier: &Self) -> u64 {
        let now_ms = self.wall_ms.wrapping_sub(self.clock_ms).cast_signed();
        let then_ms = earlier.wall_ms.wrapping_sub(earlier.clock_ms);
        now_ms.abs_diff(then_ms.cast_signed())
    }

    /// Whether a reading is of the same boot.
    fn is_of_boot(&self, now: &Reading) -> bool {
        self.boot.is_some() && self.boot == now.boot && self.boot_ms <= now.boot_ms
    }
}

/// The clock of a process that begins now, after one that has left this record.
pub(super) fn begin(before: Option<Kept>, now: &Reading, maximum_jump_ms: u64) -> Kept {
    let at = |clock_ms: u64, since_ms: u64, eras: Eras| Kept {
        clock_ms,
        wall_ms: now.wall_ms,
        boot: now.boot.clone(),
        boot_ms: now.boot_ms,
        since_ms,
        is_accepted: false,
        eras,
    };
    let Some(before) = before else {
        return at(now.wall_ms, now.wall_ms, Eras::default());
    };
    let is_same_boot = before.is_of_boot(now);
    let observed_ms = if is_same_boot {
        now.boot_ms - before.boot_ms
    } else {
        0
    };
    let last_ms = before.clock_ms.saturating_add(observed_ms);
    if is_same_boot && !before.is_accepted {
        return at(last_ms, before.since_ms, before.eras);
    }
    // For how long the machine was off: a clock that is steady tells it, also where it is wrong.
    let off_ms = (now.wall_ms.checked_sub(before.wall_ms))
        .filter(|off_ms| !is_same_boot && *off_ms <= maximum_jump_ms)
        .unwrap_or(0);
    let is_near = now.wall_ms >= last_ms && doubt(now.wall_ms, last_ms, maximum_jump_ms).is_none();
    if !before.is_accepted && !is_near {
        let clock_ms = last_ms.saturating_add(off_ms);
        return at(clock_ms, clock_ms, before.eras);
    }
    let clock_ms = now.wall_ms;
    if clock_ms < last_ms {
        // An operator has set the clock back. Things that seem to come from the future are dated by the start.
        return at(clock_ms, clock_ms, Eras::default());
    }
    let mut eras = before.eras;
    // Things dated in the last boot have lived through no more than that.
    eras.add(Era {
        from_ms: before.since_ms,
        until_ms: last_ms.saturating_add(UNRECORDED_MS).min(clock_ms),
        behind_ms: (clock_ms - last_ms).saturating_sub(off_ms),
    });
    at(clock_ms, clock_ms, eras)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: u64 = 86_400_000;
    const JUMP_MS: u64 = 7 * DAY_MS;
    /// A day in 2027.
    const BEGIN_MS: u64 = 1_800_000_000_000;

    fn reading(boot: &str, wall_ms: u64, boot_ms: u64) -> Reading {
        Reading {
            wall_ms,
            boot_ms,
            boot: Some(boot.to_owned()),
        }
    }

    /// A process that began with this record, and was seen for the last time so much later.
    fn ran(before: Option<Kept>, now: &Reading, for_ms: u64) -> Kept {
        let mut kept = begin(before, now, JUMP_MS);
        let last = reading("", now.wall_ms + for_ms, now.boot_ms + for_ms);
        kept.seen(kept.clock_ms + for_ms, &last);
        Kept::decode(&kept.encode()).expect("a record")
    }

    fn first() -> Kept {
        ran(None, &reading("a", BEGIN_MS, 50_000), 1_000)
    }

    #[test]
    fn within_a_boot_the_wall_clock_does_not_count() {
        for wall_ms in [0, BEGIN_MS - DAY_MS, BEGIN_MS, BEGIN_MS + 400 * DAY_MS] {
            let kept = begin(Some(first()), &reading("a", wall_ms, 61_000), JUMP_MS);
            assert_eq!(kept.clock_ms, BEGIN_MS + 11_000);
            assert_eq!(kept.since_ms, BEGIN_MS);
            assert_eq!(kept.eras, Eras::default());
        }
    }

    #[test]
    fn after_a_boot_it_is_the_wall_clock_unless_that_is_far() {
        for (later_ms, clock_ms) in [
            (3_600_000, BEGIN_MS + 3_600_000),
            (JUMP_MS, BEGIN_MS + JUMP_MS),
            (JUMP_MS + 1_001, BEGIN_MS + 1_000),
            (400 * DAY_MS, BEGIN_MS + 1_000),
            (500, BEGIN_MS + 1_000),
        ] {
            let kept = begin(
                Some(first()),
                &reading("b", BEGIN_MS + later_ms, 5),
                JUMP_MS,
            );
            assert_eq!(kept.clock_ms, clock_ms, "{later_ms}");
            assert_eq!(kept.eras, Eras::default(), "{later_ms}");
        }
        let kept = begin(Some(first()), &reading("b", 7, 5), JUMP_MS);
        assert_eq!(kept.clock_ms, BEGIN_MS + 1_000, "never set");
        // A boot whose time begins anew under the same name, as in a container.
        let kept = begin(Some(first()), &reading("a", BEGIN_MS + 60_000, 5), JUMP_MS);
        assert_eq!(kept.clock_ms, BEGIN_MS + 60_000);
    }

    #[test]
    fn a_clock_that_is_wrong_and_steady_measures_the_time_off() {
        let wrong_ms = BEGIN_MS + 400 * DAY_MS;
        let held = ran(Some(first()), &reading("b", wrong_ms, 5), 10_000);
        assert_eq!(held.clock_ms, BEGIN_MS + 11_000);
        let kept = begin(Some(held), &reading("c", wrong_ms + 40_000, 5), JUMP_MS);
        assert_eq!(kept.clock_ms, BEGIN_MS + 41_000);
    }

    /// A machine without a clock of its own: it boots with the time of its last boot, and is told the time soon.
    #[test]
    fn what_was_dated_while_the_clock_was_behind_does_not_age_by_that() {
        let mut held = ran(Some(first()), &reading("b", 1_000, 5), 20_000);
        assert_eq!(held.clock_ms, BEGIN_MS + 21_000);
        let off_ms = 3_600_000;
        held.seen(
            BEGIN_MS + 22_000,
            &reading("b", BEGIN_MS + 22_000 + off_ms, 22_005),
        );
        let next = reading("c", BEGIN_MS + 22_000 + off_ms + 700, 5);
        let kept = begin(Some(held), &next, JUMP_MS);
        assert_eq!(kept.clock_ms, next.wall_ms);
        let behind = [BEGIN_MS, BEGIN_MS + 1_000, BEGIN_MS + 21_500, next.wall_ms];
        let behind = behind.map(|dated_ms| kept.eras.behind_ms(dated_ms));
        assert_eq!(behind, [0, off_ms, off_ms, 0]);
    }

    #[test]
    fn an_operator_may_have_the_wall_clock_believed() {
        let far_ms = BEGIN_MS + 400 * DAY_MS;
        let mut held = ran(Some(first()), &reading("b", far_ms, 5), 10_000);
        held.is_accepted = true;
        for (boot, boot_ms) in [("b", 12_000), ("c", 5)] {
            let next = reading(boot, far_ms + 12_000, boot_ms);
            let kept = begin(Some(held.clone()), &next, JUMP_MS);
            assert_eq!(kept.clock_ms, next.wall_ms, "{boot}");
            assert!(!kept.is_accepted, "once");
            assert_eq!(kept.eras.behind_ms(BEGIN_MS + 500), 0, "it ages by all");
            let behind_ms = kept.eras.behind_ms(BEGIN_MS + 5_000);
            assert!(behind_ms >= 399 * DAY_MS, "it was dated in this boot");
        }
        let kept = begin(Some(held), &reading("c", BEGIN_MS - DAY_MS, 5), JUMP_MS);
        assert_eq!(kept.clock_ms, BEGIN_MS - DAY_MS, "also back");
    }

    #[test]
    fn the_first_clock_may_never_have_been_set() {
        let unset = ran(None, &reading("a", 5_000, 5_000), 60_000);
        assert_eq!(
            doubt(unset.wall_ms, unset.clock_ms, JUMP_MS),
            Some(Doubt::Behind)
        );
        let kept = begin(Some(unset), &reading("b", BEGIN_MS, 5), JUMP_MS);
        assert_eq!(kept.clock_ms, BEGIN_MS);
        assert!(kept.eras.behind_ms(10_000) > JUMP_MS);
    }

    #[test]
    fn a_step_of_the_wall_clock_shows() {
        let kept = first();
        let mut later = kept.clone();
        later.seen(
            kept.clock_ms + 500,
            &reading("a", kept.wall_ms + 500, 51_500),
        );
        assert_eq!(later.step_since(&kept), 0);
        later.seen(
            kept.clock_ms + 500,
            &reading("a", kept.wall_ms - 1_500, 51_500),
        );
        assert_eq!(later.step_since(&kept), 2_000);
    }
}
