//! Times for which a node's clock was behind, and how much. Things that were dated then would end early when
//! the clock has caught up.
//!
//! A clock that nobody vouches for, as on a machine without one of its own, counts on from the last time that was
//! kept. The time for which the machine was off is missing until a start at which the wall clock is believed. At that
//! start all that is older has to age by the missing time. Things dated while it was missing have not lived through it.

/// Most eras that are known. The two oldest become one when there are more.
const MOST_ERAS: usize = 16;

/// Dates that a clock gave while it was behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Era {
    /// The first of them, in milliseconds since the Unix epoch.
    pub from_ms: u64,
    /// The end of them; a later date is not among them.
    pub until_ms: u64,
    /// How many milliseconds the clock was behind, which a later start has added.
    pub behind_ms: u64,
}

/// All eras of a node, in the order of their dates.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Eras(Vec<Era>);

impl Eras {
    /// Takes in an era that begins after all others. One without dates, or whose clock was not behind, is left out.
    pub fn add(&mut self, era: Era) {
        if era.behind_ms == 0 || era.until_ms <= era.from_ms {
            return;
        }
        self.0.push(era);
        if self.0.len() > MOST_ERAS {
            let oldest = self.0.remove(0);
            let next = &mut self.0[0];
            // Things between them live longer, and nothing shorter.
            next.from_ms = oldest.from_ms;
            next.behind_ms = next.behind_ms.max(oldest.behind_ms);
        }
    }

    /// How many milliseconds are to be added to a date, for it was given while the clock was behind.
    #[must_use]
    pub fn behind_ms(&self, dated_ms: u64) -> u64 {
        let holds = |era: &&Era| era.from_ms <= dated_ms && dated_ms < era.until_ms;
        self.0.iter().find(holds).map_or(0, |era| era.behind_ms)
    }

    /// The eras, the oldest first.
    #[must_use]
    pub fn as_slice(&self) -> &[Era] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn era(from_ms: u64, until_ms: u64, behind_ms: u64) -> Era {
        Era {
            from_ms,
            until_ms,
            behind_ms,
        }
    }

    #[test]
    fn a_date_of_an_era_is_behind_and_no_other() {
        let mut eras = Eras::default();
        eras.add(era(10, 20, 5));
        eras.add(era(30, 30, 5));
        eras.add(era(40, 50, 0));
        assert_eq!(eras.as_slice(), [era(10, 20, 5)]);
        let behind = [9, 10, 19, 20, 45].map(|dated_ms| eras.behind_ms(dated_ms));
        assert_eq!(behind, [0, 5, 5, 0, 0]);
    }

    #[test]
    fn the_oldest_become_one_that_is_as_far_behind_as_either() {
        let mut eras = Eras::default();
        for number in 0..=MOST_ERAS as u64 {
            let behind_ms = if number == 0 { 9 } else { 1 };
            eras.add(era(number * 10, number * 10 + 5, behind_ms));
        }
        assert_eq!(eras.as_slice().len(), MOST_ERAS);
        assert_eq!(eras.as_slice()[0], era(0, 15, 9));
    }
}
