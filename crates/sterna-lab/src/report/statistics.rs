//! Means, percentiles, and what an interval of confidence is.

/// A value with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The value.
    pub value: f64,
    /// From here; `None` where repetitions are too few, or the value has no interval.
    pub low: Option<f64>,
    /// To here.
    pub high: Option<f64>,
    /// How many repetitions it is made from.
    pub repetitions: usize,
}

impl Estimate {
    /// A value of which nothing more is known.
    #[must_use]
    pub const fn single(value: f64, repetitions: usize) -> Self {
        Self {
            value,
            low: None,
            high: None,
            repetitions,
        }
    }

    /// The lower end, or the value itself.
    #[must_use]
    pub fn least(&self) -> f64 {
        self.low.unwrap_or(self.value)
    }

    /// The upper end, or the value itself.
    #[must_use]
    pub fn most(&self) -> f64 {
        self.high.unwrap_or(self.value)
    }

    /// Both ends of the interval, where there is one.
    #[must_use]
    pub fn interval(&self) -> Option<(f64, f64)> {
        self.low.zip(self.high)
    }
}

/// The mean; not a number without values.
#[must_use]
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The standard deviation of the population from which the values are a sample; 0 for fewer than
/// two.
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

/// Student's t of any number of degrees of freedom: beyond the table, the first terms in its inverse.
fn student(degrees: usize) -> f64 {
    match degrees {
        0 => f64::INFINITY,
        1..=30 => STUDENT[degrees - 1],
        _ => 1.96 + 2.37 / degrees as f64,
    }
}

/// The part of a normal distribution below `-deviations`, which is `erfc(x / √2) / 2`. The relative
/// error is below 2e-7 (Press et al., Numerical Recipes, section 6.2, `erfcc`).
fn lower_tail(deviations: f64) -> f64 {
    const TERMS: [f64; 10] = [
        -1.265_512_23,
        1.000_023_68,
        0.374_091_96,
        0.096_784_18,
        -0.186_288_06,
        0.278_868_07,
        -1.135_203_98,
        1.488_515_87,
        -0.822_152_23,
        0.170_872_77,
    ];
    let z = deviations / std::f64::consts::SQRT_2;
    let t = 1.0 / 0.5_f64.mul_add(z, 1.0);
    let sum = TERMS.iter().rev().fold(0.0, |sum, term| sum * t + term);
    t * (-z).mul_add(z, sum).exp() / 2.0
}

/// The part of the resamples of N repetitions that lies below a 95 % interval, and the part above it.
///
/// For many repetitions it is 2.5 %. For few, resamples vary less than the repetitions do, and the
/// interval is made wider by as much as Student's is. This is the expanded percentile interval of
/// Hesterberg 2015, "What Teachers Should Know About the Bootstrap".
pub(super) fn tail(repetitions: usize) -> f64 {
    let count = repetitions as f64;
    lower_tail((count / (count - 1.0)).sqrt() * student(repetitions - 1))
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
    fn tails_are_those_of_the_tables() {
        assert!((student(60) - 2.0).abs() < 2e-3);
        assert!((student(1000) - 1.962).abs() < 1e-3);
        for (deviations, part) in [(0.0, 0.5), (1.0, 0.158_655), (1.959_964, 0.025)] {
            assert!((lower_tail(deviations) - part).abs() < 1e-6);
        }
        // √(5/4) · 2.776 deviations.
        assert!((tail(5) - 9.554e-4).abs() < 1e-6, "{}", tail(5));
        assert!((tail(10_000) - 0.025).abs() < 1e-4);
    }
}
