//! Means, percentiles, and how sure they are.

use crate::link::Random;

/// Resamples of a bootstrap.
const RESAMPLES: usize = 400;
/// Values that one bootstrap draws in all; with many messages fewer resamples do.
const MAX_DRAWS: usize = 4_000_000;
/// From which a bootstrap draws, so that a report made twice is the same.
const SEED: u64 = 0x1ab;

/// A value with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The value.
    pub value: f64,
    /// From here, if anything is known about it: one value alone says nothing.
    pub low: Option<f64>,
    /// To here.
    pub high: Option<f64>,
    /// How many values it is made from.
    pub count: usize,
}

impl Estimate {
    /// A value of which nothing more is known.
    #[must_use]
    pub const fn single(value: f64, count: usize) -> Self {
        Self {
            value,
            low: None,
            high: None,
            count,
        }
    }

    /// The lower bound, or the value itself.
    #[must_use]
    pub fn least(&self) -> f64 {
        self.low.unwrap_or(self.value)
    }

    /// The upper bound, or the value itself.
    #[must_use]
    pub fn most(&self) -> f64 {
        self.high.unwrap_or(self.value)
    }

    /// The same with another scale: `value * factor + offset`.
    #[must_use]
    pub fn scaled(&self, factor: f64, offset: f64) -> Self {
        let map = |value: f64| value.mul_add(factor, offset);
        let (low, high) = (self.low.map(map), self.high.map(map));
        let is_turned = factor < 0.0;
        Self {
            value: map(self.value),
            low: if is_turned { high } else { low },
            high: if is_turned { low } else { high },
            count: self.count,
        }
    }

    /// This less another. The interval is that of two independent values.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        let value = self.value - other.value;
        let half = |estimate: &Self| Some((estimate.high? - estimate.low?) / 2.0);
        let spread = half(self).zip(half(other)).map(|(a, b)| a.hypot(b));
        Self {
            value,
            low: spread.map(|spread| value - spread),
            high: spread.map(|spread| value + spread),
            count: self.count.min(other.count),
        }
    }

    /// This divided by another. The interval is that of two independent values, on the logarithmic
    /// scale, on which a ratio is a difference.
    #[must_use]
    pub fn ratio(&self, other: &Self) -> Self {
        let value = self.value / other.value;
        let width = |estimate: &Self| {
            let (low, high) = (estimate.low?, estimate.high?);
            (low > 0.0 && estimate.value > 0.0).then(|| (high / low).ln() / 2.0)
        };
        let spread = match (width(self), width(other)) {
            (Some(a), Some(b)) if value > 0.0 => Some(a.hypot(b).exp()),
            _ => None,
        };
        Self {
            value,
            low: spread.map(|spread| value / spread),
            high: spread.map(|spread| value * spread),
            count: self.count.min(other.count),
        }
    }
}

/// The mean; not a number without values.
#[must_use]
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The standard deviation of what the values are a sample of; 0 for fewer than two.
#[must_use]
pub fn deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (values.len() - 1) as f64).sqrt()
}

/// The value below which this part of sorted values lies, between its neighbours in proportion; not
/// a number without values.
#[must_use]
pub fn percentile(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let position = part.clamp(0.0, 1.0) * last as f64;
    let below = position.floor();
    // Within the slice: `part` is at most 1.
    #[allow(clippy::cast_sign_loss)]
    let index = below as usize;
    let upper = sorted[(index + 1).min(last)];
    (upper - sorted[index]).mul_add(position - below, sorted[index])
}

/// The values in their order.
#[must_use]
pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
}

/// Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// The same for any number; beyond the table by its first terms in 1 / degrees of freedom.
fn student(degrees: usize) -> f64 {
    match degrees {
        0 => f64::INFINITY,
        1..=30 => STUDENT[degrees - 1],
        _ => 1.96 + 2.37 / degrees as f64,
    }
}

/// The mean of values that are independent of each other.
#[must_use]
pub fn mean_estimate(values: &[f64]) -> Estimate {
    let value = mean(values);
    if values.len() < 2 {
        return Estimate::single(value, values.len());
    }
    let error = deviation(values) / (values.len() as f64).sqrt();
    let half = student(values.len() - 1) * error;
    Estimate {
        value,
        low: Some(value - half),
        high: Some(value + half),
        count: values.len(),
    }
}

/// Any statistic of many values, with the interval that a bootstrap gives (percentiles).
#[must_use]
pub fn bootstrap(values: &[f64], statistic: impl Fn(&[f64]) -> f64) -> Estimate {
    let value = statistic(values);
    let resamples = RESAMPLES.min(MAX_DRAWS / values.len().max(1));
    if values.len() < 10 || resamples < 40 {
        return Estimate::single(value, values.len());
    }
    let mut random = Random::new(&[SEED, values.len() as u64]);
    let mut drawn = vec![0.0; values.len()];
    let mut results: Vec<f64> = (0..resamples)
        .map(|_| {
            for place in &mut drawn {
                // `unit` is below 1, so the index is below the length.
                #[allow(clippy::cast_sign_loss)]
                let index = (random.unit() * values.len() as f64) as usize;
                *place = values[index];
            }
            statistic(&drawn)
        })
        .collect();
    results.sort_by(f64::total_cmp);
    Estimate {
        value,
        low: Some(percentile(&results, 0.025)),
        high: Some(percentile(&results, 0.975)),
        count: values.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_come_out() {
        let values = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        assert!((mean(&values) - 5.0).abs() < 1e-12);
        assert!((deviation(&values) - 2.138_09).abs() < 1e-5);
        assert!((percentile(&values, 0.5) - 4.5).abs() < 1e-12);
        assert!((percentile(&values, 0.25) - 4.0).abs() < 1e-12);
        assert!((percentile(&values, 0.95) - 8.3).abs() < 1e-12);
        assert!((percentile(&values, 1.0) - 9.0).abs() < 1e-12);
        assert!(percentile(&[], 0.5).is_nan());
        assert!(deviation(&[3.0]).abs() < 1e-12);
        assert_eq!(sorted(&[3.0, 1.0, 2.0]), [1.0, 2.0, 3.0]);
    }

    #[test]
    fn intervals_are_students() {
        let estimate = mean_estimate(&[1.0, 2.0, 3.0]);
        // 2 ± 4.303 / √3
        assert!((estimate.least() - (2.0 - 2.484)).abs() < 1e-3);
        assert!((estimate.most() - (2.0 + 2.484)).abs() < 1e-3);
        assert_eq!(mean_estimate(&[1.0]).low, None);
        assert!((student(60) - 2.0).abs() < 2e-3);
        assert!((student(1000) - 1.962).abs() < 1e-3);
    }

    #[test]
    fn ratios_and_scales_carry_their_intervals() {
        let of = |value, half: f64| Estimate {
            value,
            low: Some(value - half),
            high: Some(value + half),
            count: 20,
        };
        let ratio = of(6.0, 0.3).ratio(&of(10.0, 0.5));
        assert!((ratio.value - 0.6).abs() < 1e-12);
        // About √2 times 5 %.
        assert!((ratio.most() / ratio.value - 1.0733).abs() < 1e-2);
        let reduction = ratio.scaled(-100.0, 100.0);
        assert!((reduction.value - 40.0).abs() < 1e-9);
        assert!(reduction.least() < reduction.value && reduction.value < reduction.most());
        let unknown = Estimate::single(6.0, 1).ratio(&of(10.0, 0.5));
        assert_eq!(unknown.low, None);
    }

    #[test]
    fn a_bootstrap_covers_the_truth_and_repeats_itself() {
        let mut random = Random::new(&[9]);
        let values: Vec<f64> = (0..500).map(|_| random.unit()).collect();
        let estimate = bootstrap(&values, mean);
        // The mean of a uniform distribution, with a standard error of 0.0129.
        assert!(estimate.least() < 0.5 && 0.5 < estimate.most());
        let width = estimate.most() - estimate.least();
        assert!((0.04..0.06).contains(&width), "{width}");
        assert_eq!(estimate, bootstrap(&values, mean));
        assert_eq!(bootstrap(&values[..5], mean).low, None);
    }
}
