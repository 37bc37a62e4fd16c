//! The axes of a panel.

/// The vertical axis of a panel.
pub(super) struct Axis {
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) log: bool,
    pub(super) ticks: Vec<f64>,
}

impl Axis {
    pub(super) fn new((low, high): (f64, f64), log: bool) -> Self {
        let is_log = log && low > 0.0;
        if is_log {
            return Self::logarithmic(low, high);
        }
        let span = if high > low {
            high - low
        } else {
            high.abs().max(1.0) * 0.1
        };
        let step = nice(span / 5.0);
        let low = (low / step).floor() * step;
        let high = ((high / step) + 1e-9).ceil() * step;
        let high = if high > low { high } else { low + step };
        // Not negative, and about five.
        #[allow(clippy::cast_sign_loss)]
        let steps = ((high - low) / step).round() as u32;
        let ticks = (0..=steps)
            .map(|count| f64::from(count).mul_add(step, low))
            .collect();
        Self {
            low,
            high,
            log: false,
            ticks,
        }
    }

    /// Ticks at 1, 2 and 5 of each decade.
    fn logarithmic(low: f64, high: f64) -> Self {
        let first = low.log10().floor() as i32;
        let last = high.log10().floor() as i32 + 1;
        let ticks: Vec<f64> = (first..=last)
            .flat_map(|decade| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(decade)))
            .collect();
        let from = ticks.iter().rposition(|tick| *tick <= low).unwrap_or(0);
        let to = ticks
            .iter()
            .position(|tick| *tick >= high)
            .unwrap_or(ticks.len() - 1);
        let to = to.max(from + 1).min(ticks.len() - 1);
        let ticks = ticks[from..=to].to_vec();
        Self {
            low: ticks[0],
            high: ticks[ticks.len() - 1],
            log: true,
            ticks,
        }
    }

    /// Whether it begins above zero: what is twice as high is then not twice as much.
    pub(super) fn is_cut(&self) -> bool {
        !self.log && self.low > 0.0
    }

    /// From 0 at the top to 1 at the bottom.
    pub(super) fn place(&self, value: f64) -> f64 {
        let map = |value: f64| if self.log { value.ln() } else { value };
        let value = value.clamp(self.low, self.high);
        1.0 - (map(value) - map(self.low)) / (map(self.high) - map(self.low))
    }
}

/// The next number of 1, 2 and 5 and their tenfolds.
fn nice(step: f64) -> f64 {
    let decade = 10_f64.powf(step.log10().floor());
    let digit = step / decade;
    decade
        * if digit <= 1.0 {
            1.0
        } else if digit <= 2.0 {
            2.0
        } else if digit <= 5.0 {
            5.0
        } else {
            10.0
        }
}

/// A tick's label: as few digits as tell it from its neighbours, long ones in thousands (`k`) or
/// millions (`M`).
pub(super) fn tick_label(value: f64, ticks: &[f64]) -> String {
    let most = ticks
        .iter()
        .copied()
        .fold(0.0, |most: f64, tick| most.max(tick.abs()));
    let (scale, suffix) = match most {
        1e6.. => (1e6, "M"),
        1e5.. => (1e3, "k"),
        _ => (1.0, ""),
    };
    let step = ticks
        .windows(2)
        .map(|pair| (pair[1] - pair[0]) / scale)
        .fold(f64::INFINITY, f64::min);
    let digits = if step >= 1.0 || !step.is_finite() {
        0
    } else {
        // A step is far above the smallest number, so this is small and positive.
        #[allow(clippy::cast_sign_loss)]
        let digits = (-step.log10()).ceil() as usize;
        digits
    };
    format!("{:.digits$}{suffix}", value / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_ticks_around_all_values() {
        let axis = Axis::new((0.0, 37.0), false);
        assert_eq!(axis.ticks, [0.0, 10.0, 20.0, 30.0, 40.0]);
        assert!((axis.place(40.0)).abs() < 1e-9);
        assert!((axis.place(0.0) - 1.0).abs() < 1e-9);
        let axis = Axis::new((25.1, 800.0), true);
        assert_eq!(axis.ticks.first(), Some(&20.0));
        assert_eq!(axis.ticks.last(), Some(&1000.0));
        let middle = axis.place((20.0_f64 * 1000.0).sqrt());
        assert!((middle - 0.5).abs() < 1e-9, "{middle}");
        // One value only, and none below zero on a logarithmic axis.
        for (range, log) in [((5.0, 5.0), false), ((0.0, 3.0), true), ((7.0, 7.0), true)] {
            let axis = Axis::new(range, log);
            assert!(axis.high > axis.low);
            assert!(axis.ticks.len() >= 2);
        }
        assert!(Axis::new((25.1, 31.0), false).is_cut());
        assert!(!Axis::new((25.1, 31.0), true).is_cut());
        assert!(!Axis::new((0.0, 31.0), false).is_cut());
        assert_eq!(tick_label(0.25, &[0.0, 0.25]), "0.2");
        assert_eq!(tick_label(10.0, &[10.0, 20.0]), "10");
        assert_eq!(tick_label(150_000.0, &[100_000.0, 150_000.0]), "150k");
        assert_eq!(tick_label(3.2e6, &[3.1e6, 3.2e6]), "3.2M");
    }
}
