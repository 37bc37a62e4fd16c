//! Random numbers from a seed: xoshiro256++ 1.0 (Blackman and Vigna), seeded by SplitMix64.
//!
//! A pattern of losses is part of an experiment's description. So the generator is written here,
//! and does not change with the version of a library.

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// The stream that belongs to these numbers, in this order.
    #[must_use]
    pub fn new(parts: &[u64]) -> Self {
        let mut seed = 0_u64;
        for part in parts {
            seed = mix(seed ^ *part);
        }
        let mut state = [0; 4];
        for word in &mut state {
            seed = seed.wrapping_add(GOLDEN);
            *word = mix(seed);
        }
        Self { state }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// A number from 0 up to, and without, 1.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// A number of the normal distribution of mean 0 and deviation 1, by Box and Muller.
    pub fn normal(&mut self) -> f64 {
        let (first, second) = (self.unit(), self.unit());
        // 1 - x is never 0.
        (-2.0 * (1.0 - first).ln()).sqrt() * (std::f64::consts::TAU * second).cos()
    }

    /// A number of the exponential distribution of mean 1: the gaps of a Poisson process have it.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// Whether something of this probability happens.
    pub fn happens(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(GOLDEN);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_the_published_one() {
        // The first outputs of the authors' C program for the state 1, 2, 3, 4.
        let mut random = Random {
            state: [1, 2, 3, 4],
        };
        assert_eq!(random.next_u64(), 41_943_041);
        assert_eq!(random.next_u64(), 58_720_359);
        assert_eq!(random.next_u64(), 3_588_806_011_781_223);
        assert_eq!(random.next_u64(), 3_591_011_842_654_386);
    }

    #[test]
    fn streams_differ_and_repeat() {
        let first = |parts: &[u64]| Random::new(parts).next_u64();
        assert_eq!(first(&[1, 2]), first(&[1, 2]));
        assert_ne!(first(&[1, 2]), first(&[2, 1]));
        assert_ne!(first(&[1]), first(&[1, 0]));
        let mut random = Random::new(&[7]);
        let mean = (0..100_000).map(|_| random.unit()).sum::<f64>() / 1e5;
        assert!((mean - 0.5).abs() < 0.005, "{mean}");
    }
}
