//! Distributions in buckets that double: to observe a value costs two relaxed stores.

use sterna_net::Count;

/// Buckets of a histogram. The first is for values up to one unit, each next one up to twice as much,
/// the last for all beyond.
const BUCKETS: usize = 22;

/// A distribution. One thread observes, any thread reads.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [Count; BUCKETS],
    sum: Count,
}

impl Histogram {
    /// Observes a value in units of the histogram; `exact` is the same value in units of the sum.
    pub(crate) fn observe(&self, units: u64, exact: u64) {
        self.observe_times(units, exact, 1);
    }

    /// Observes the same value as often as `times` says.
    pub(crate) fn observe_times(&self, units: u64, exact: u64, times: u64) {
        self.buckets[bucket(units)].add(times);
        self.sum.add(exact.saturating_mul(times));
    }

    /// The observations so far.
    pub(crate) fn observed(&self) -> Observed {
        Observed {
            buckets: std::array::from_fn(|bucket| self.buckets[bucket].get()),
            sum: self.sum.get(),
        }
    }
}

const fn bucket(units: u64) -> usize {
    let doublings = match units {
        0 | 1 => 0,
        more => u64::BITS - (more - 1).leading_zeros(),
    };
    if doublings as usize >= BUCKETS {
        BUCKETS - 1
    } else {
        doublings as usize
    }
}

/// Observations of a histogram.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Observed {
    buckets: [u64; BUCKETS],
    sum: u64,
}

impl Observed {
    /// Observations that were counted elsewhere.
    pub(crate) const fn new(buckets: [u64; BUCKETS], sum: u64) -> Self {
        Self { buckets, sum }
    }

    /// Adds the observations of another histogram.
    pub(crate) fn add(&mut self, other: &Self) {
        for (bucket, more) in self.buckets.iter_mut().zip(other.buckets) {
            *bucket += more;
        }
        self.sum += other.sum;
    }

    /// How many values were observed.
    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The sum of the values, in units of the sum.
    pub(crate) const fn sum(&self) -> u64 {
        self.sum
    }

    /// Upper bounds and numbers of values. The first bound is `unit`, the last `f64::MAX`.
    pub(crate) fn buckets(&self, unit: f64) -> [(f64, u64); BUCKETS] {
        std::array::from_fn(|bucket| {
            let bound = if bucket + 1 == BUCKETS {
                f64::MAX
            } else {
                unit * f64::from(1u32 << bucket)
            };
            (bound, self.buckets[bucket])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_in_the_first_bucket_that_holds_it() {
        let histogram = Histogram::default();
        for (value, expected) in [
            (0, 0),
            (1, 0),
            (2, 1),
            (3, 2),
            (4, 2),
            (5, 3),
            (1 << 20, 20),
        ] {
            assert_eq!(bucket(value), expected, "{value}");
            histogram.observe(value, value);
        }
        for beyond in [(1 << 20) + 1, u64::MAX] {
            assert_eq!(bucket(beyond), BUCKETS - 1);
        }
        histogram.observe_times(3, 30, 2);
        let observed = histogram.observed();
        assert_eq!(observed.count(), 9);
        assert_eq!(observed.sum(), 15 + 60 + (1 << 20));
        let buckets = observed.buckets(1.0);
        for value in [0u64, 1, 2, 3, 4, 5, 1 << 20] {
            let (bound, _) = buckets[bucket(value)];
            assert!(value as f64 <= bound);
            assert!(value < 2 || value as f64 > bound / 2.0);
        }
        assert!(buckets[BUCKETS - 1].0 >= f64::MAX && buckets[BUCKETS - 2].0 < f64::MAX);
    }
}
