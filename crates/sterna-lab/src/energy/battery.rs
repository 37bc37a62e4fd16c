//! A battery's life under a load that repeats.

use super::constants::{RV_TERMS, SUPPLY_V};
use super::radio::Segment;

/// Most periods that are stepped through until the battery's state repeats.
const MAX_STEPS: u64 = 1_000_000;
/// A state repeats when it differs by no more than this part.
const STEADY: f64 = 1e-12;
const SECONDS_PER_MINUTE: f64 = 60.0;

/// A battery that gives all its energy under any load: its life in seconds.
#[must_use]
pub fn linear_life_s(capacity_j: f64, segments: &[Segment]) -> f64 {
    let (seconds, joules) = totals(segments);
    capacity_j * seconds / joules
}

/// Time and energy of a list of segments.
#[must_use]
pub fn totals(segments: &[Segment]) -> (f64, f64) {
    segments.iter().fold((0.0, 0.0), |(seconds, joules), s| {
        (seconds + s.seconds, s.seconds.mul_add(s.watts, joules))
    })
}

/// A battery that recovers, after Rakhmatov and Vrudhula.
///
/// "Energy management for battery-powered embedded systems", ACM TECS 2003. Under load, a part of
/// the charge is out of reach; it returns after the load. The battery is empty when the used charge
/// and the part out of reach are `alpha`.
///
/// For a load `I(t)` the apparent charge is the integral of `I` plus
/// `2 sum over m of integral of I(s) exp(-beta^2 m^2 (t - s)) ds`. Each term of the sum is kept as
/// one number that decays and grows. So a step costs the same with any history:
/// `A <- A exp(-k dt) + I (1 - exp(-k dt)) / k` with `k = beta^2 m^2`.
#[derive(Clone, Debug)]
pub struct RakhmatovVrudhula {
    /// Charge, in milliampere-minutes.
    alpha_ma_min: f64,
    /// Per minute, for each term.
    rates: [f64; RV_TERMS],
    used_ma_min: f64,
    out_of_reach: [f64; RV_TERMS],
}

impl RakhmatovVrudhula {
    /// A full battery.
    #[must_use]
    pub fn new(alpha_ma_min: f64, beta: f64) -> Self {
        let mut rates = [0.0; RV_TERMS];
        for (rate, m) in rates.iter_mut().zip(1_u32..) {
            *rate = (beta * f64::from(m)).powi(2);
        }
        Self {
            alpha_ma_min,
            rates,
            used_ma_min: 0.0,
            out_of_reach: [0.0; RV_TERMS],
        }
    }

    /// Draws a current for a time.
    pub fn draw(&mut self, current_ma: f64, minutes: f64) {
        self.used_ma_min = current_ma.mul_add(minutes, self.used_ma_min);
        for (term, rate) in self.out_of_reach.iter_mut().zip(self.rates) {
            let decay = (-rate * minutes).exp();
            *term = term.mul_add(decay, current_ma * (1.0 - decay) / rate);
        }
    }

    /// Charge that is used or out of reach.
    #[must_use]
    pub fn apparent_ma_min(&self) -> f64 {
        2.0_f64.mul_add(self.out_of_reach.iter().sum::<f64>(), self.used_ma_min)
    }

    /// Remaining charge, from 1 down to 0.
    #[must_use]
    pub fn level(&self) -> f64 {
        (1.0 - self.apparent_ma_min() / self.alpha_ma_min).max(0.0)
    }

    /// Its life in seconds under a load that repeats, from full.
    #[must_use]
    pub fn life_s(mut self, segments: &[Segment]) -> f64 {
        let (period_s, _) = totals(segments);
        let mut lived_s = 0.0;
        for _ in 0..MAX_STEPS {
            let before = self.out_of_reach;
            let used_before = self.used_ma_min;
            let mut most_out_of_reach = 0.0_f64;
            for segment in segments {
                self.draw(
                    segment.watts / SUPPLY_V * 1000.0,
                    segment.seconds / SECONDS_PER_MINUTE,
                );
                lived_s += segment.seconds;
                let apparent = self.apparent_ma_min();
                if apparent >= self.alpha_ma_min {
                    return lived_s;
                }
                most_out_of_reach = most_out_of_reach.max(apparent - self.used_ma_min);
            }
            let is_steady = self
                .out_of_reach
                .iter()
                .zip(before)
                .all(|(now, before)| (now - before).abs() <= STEADY * now.abs());
            if is_steady {
                // From here on each period uses the same and puts the same out of reach.
                let per_period = self.used_ma_min - used_before;
                let left = self.alpha_ma_min - self.used_ma_min - most_out_of_reach;
                return (left / per_period).max(0.0).mul_add(period_s, lived_s);
            }
        }
        // The state of the battery changes more slowly than its charge: the rest, at the same pace.
        let left = self.alpha_ma_min - self.apparent_ma_min();
        lived_s * (1.0 + left / self.used_ma_min.max(f64::MIN_POSITIVE))
    }
}
