//! The randomness of a simulation: all of it comes from one seed.

use std::ops::RangeInclusive;

/// A small generator (xoshiro256**), for decisions that must come out the same every time. Not for
/// secrets.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// A generator; equal seeds give equal numbers.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // splitmix64, as the generator's authors advise, so that similar seeds start far apart.
        let mut z = seed;
        let state = std::array::from_fn(|_| {
            z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut x = z;
            x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            x ^ (x >> 31)
        });
        Self { state }
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// A number below `end`; 0 when `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        // The bias of the product is far below the precision of a simulation.
        ((u128::from(self.number()) * u128::from(end)) >> 64) as u64
    }

    /// A number in a range; its start when it is empty.
    pub fn within(&mut self, range: &RangeInclusive<u64>) -> u64 {
        let (start, end) = (*range.start(), *range.end());
        if end <= start {
            start
        } else {
            start + self.below(end - start + 1)
        }
    }

    /// Whether an event of probability N in a million happens.
    pub fn chance(&mut self, per_million: u32) -> bool {
        self.below(1_000_000) < u64::from(per_million)
    }

    /// One of several; `None` of none.
    pub fn pick<'a, T>(&mut self, several: &'a [T]) -> Option<&'a T> {
        several.get(self.below(several.len() as u64) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_numbers_and_others_do_not() {
        let numbers = |seed| {
            let mut random = Random::new(seed);
            (0..100).map(|_| random.number()).collect::<Vec<_>>()
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
        // The reference output of xoshiro256** for the state 1, 2, 3, 4.
        let mut random = Random {
            state: [1, 2, 3, 4],
        };
        assert_eq!(
            [random.number(), random.number(), random.number()],
            [11_520, 0, 1_509_978_240]
        );
    }

    #[test]
    fn numbers_stay_in_their_bounds_and_reach_them() {
        let mut random = Random::new(3);
        let drawn: Vec<_> = (0..1_000).map(|_| random.within(&(5..=9))).collect();
        assert_eq!(
            (drawn.iter().min(), drawn.iter().max()),
            (Some(&5), Some(&9))
        );
        assert_eq!(random.below(0), 0);
        assert_eq!(random.within(&(4..=4)), 4);
        assert!(!random.chance(0));
        assert!(random.chance(1_000_000));
        assert_eq!(random.pick::<u8>(&[]), None);
        let heads = (0..10_000).filter(|_| random.chance(250_000)).count();
        assert!((2_200..2_800).contains(&heads), "{heads}");
    }
}
