//! Pairs of figures, their ratios, and how sure these are.

use serde_json::{Value, json};

use super::super::cells::{Cell, Figure, Transport};
use super::super::table::{aligned, median};

/// Allowed cost of a message with everything on, as a multiple of its cost without.
pub(super) const GOAL: f64 = 1.02;

/// The same figure with everything on, and without.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pair {
    pub(super) with: f64,
    pub(super) without: f64,
}

impl Pair {
    /// Takes the least figure of a broker.
    pub(super) const fn lower(&mut self, is_with: bool, figure: f64) {
        let before = if is_with { self.with } else { self.without };
        // Nothing costs 0: there is none yet.
        if before == 0.0 || figure < before {
            self.set(is_with, figure);
        }
    }

    pub(super) const fn set(&mut self, is_with: bool, figure: f64) {
        if is_with {
            self.with = figure;
        } else {
            self.without = figure;
        }
    }
}

/// All pairs of one load on one transport.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) cell: Cell,
    pub(super) transport: Transport,
    pub(super) pairs: Vec<Pair>,
}

/// The median of ratios, and the interval of 95 % for the true one (none for less than six pairs).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ratio {
    pub(super) median: f64,
    pub(super) interval: Option<(f64, f64)>,
}

impl Ratio {
    pub(super) fn of(pairs: &[Pair]) -> Option<Self> {
        let mut ratios: Vec<f64> = (pairs.iter())
            .map(|pair| pair.with / pair.without)
            .filter(|ratio| ratio.is_finite())
            .collect();
        ratios.sort_by(f64::total_cmp);
        let cut = cut(ratios.len());
        Some(Self {
            median: median(ratios.iter().copied())?,
            interval: cut.map(|cut| (ratios[cut], ratios[ratios.len() - 1 - cut])),
        })
    }

    fn shown(self) -> String {
        let percent = |ratio: f64| format!("{:+.1} %", (ratio - 1.0) * 100.0);
        let interval =
            (self.interval).map(|(low, high)| format!(" ({} to {})", percent(low), percent(high)));
        format!("{}{}", percent(self.median), interval.unwrap_or_default())
    }
}

/// The number of values to cut off at each end of `count` sorted ones. The true median is between the
/// others with 95 %. This holds for any distribution: a value is above the median as a coin shows its
/// head. `None` for too few values.
fn cut(count: usize) -> Option<usize> {
    // The chance of at most this number of heads.
    let mut chance = 0.5_f64.powi(i32::try_from(count).ok()?);
    let mut heads_exactly = chance;
    let mut cut = None;
    for heads in 0..count {
        if chance > 0.025 {
            break;
        }
        cut = Some(heads);
        heads_exactly *= (count - heads) as f64 / (heads + 1) as f64;
        chance += heads_exactly;
    }
    cut
}

impl Row {
    pub(super) const fn new(cell: Cell, transport: Transport) -> Self {
        Self {
            cell,
            transport,
            pairs: Vec::new(),
        }
    }

    /// Whether each message costs no more than the goal; what is no message has none.
    pub(super) fn is_met(&self) -> bool {
        let ratio = Ratio::of(&self.pairs);
        self.cell.figure != Figure::Cpu || ratio.is_some_and(|ratio| ratio.median <= GOAL)
    }

    pub(super) fn json(&self) -> Value {
        let ratio = Ratio::of(&self.pairs);
        json!({
            "summary": self.cell.name,
            "transport": self.transport.name(),
            "unit": self.cell.figure.unit(),
            "ratio": ratio.map(|ratio| ratio.median),
            "interval": ratio.and_then(|ratio| ratio.interval).map(<[f64; 2]>::from),
            "is_met": self.is_met(),
        })
    }
}

/// The table in Markdown. `resident` is the memory of both processes after each round.
pub(super) fn render(rows: &[Row], resident: &[Pair]) -> String {
    let head = ["transport", "load", "without", "with", "more", "goal"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    let figures = |pairs: &[Pair], scale: f64, unit: &str| {
        let middle = |figure: fn(&Pair) -> f64| median(pairs.iter().map(figure));
        let shown = |figure: Option<f64>| {
            figure.map_or_else(|| "-".to_owned(), |f| format!("{:.2} {unit}", f / scale))
        };
        let ratio = Ratio::of(pairs).map_or_else(|| "-".to_owned(), Ratio::shown);
        [
            shown(middle(|pair| pair.without)),
            shown(middle(|pair| pair.with)),
            ratio,
        ]
    };
    for row in rows {
        let verdict = match row.cell.figure {
            Figure::Cpu if row.is_met() => "ok",
            Figure::Cpu => "MISSED",
            Figure::Bytes => "",
        };
        let mut line = vec![row.transport.name().to_owned(), row.cell.name.to_owned()];
        line.extend(figures(&row.pairs, 1.0, row.cell.figure.unit()));
        line.push(verdict.to_owned());
        lines.push(line);
    }
    let mut line = vec!["all".to_owned(), "memory of the process".to_owned()];
    line.extend(figures(resident, f64::from(1 << 20), "MiB"));
    line.push(String::new());
    lines.push(line);
    aligned(&lines, &[0, 1, 5])
}

#[cfg(test)]
mod tests {
    use super::super::super::cells::CELLS;
    use super::*;

    fn row(ratios: &[f64]) -> Row {
        let cell = CELLS.iter().find(|cell| cell.name == "QoS 0, window 16");
        let mut row = Row::new(*cell.unwrap(), Transport::Tcp);
        let pairs = ratios.iter().map(|ratio| Pair {
            with: 2.0 * ratio,
            without: 2.0,
        });
        row.pairs = pairs.collect();
        row
    }

    #[test]
    fn the_interval_of_a_median_is_that_of_tables() {
        // Values of the sign test: the ranks between which the median is with 95 %.
        for (count, expected) in [
            (5, None),
            (6, Some(0)),
            (9, Some(1)),
            (11, Some(1)),
            (20, Some(5)),
        ] {
            assert_eq!(cut(count), expected, "{count}");
        }
        let ratios: Vec<f64> = (0..11).map(|n| 1.0 + f64::from(n) / 100.0).collect();
        let ratio = Ratio::of(&row(&ratios).pairs).unwrap();
        assert_eq!(ratio.interval, Some((1.01, 1.09)));
        assert!((ratio.median - 1.05).abs() < 1e-9);
    }

    #[test]
    fn a_pair_has_the_least_of_each() {
        let mut pair = Pair::default();
        for (is_with, figure) in [(true, 3.0), (false, 2.0), (false, 4.0), (true, 1.0)] {
            pair.lower(is_with, figure);
        }
        assert_eq!((pair.with, pair.without), (1.0, 2.0));
    }

    #[test]
    fn the_median_of_the_ratios_is_judged() {
        assert!(row(&[1.0, 1.5, 1.01]).is_met());
        assert!(!row(&[1.0, 1.5, 1.03]).is_met());
        assert!(!row(&[]).is_met());
        let text = render(&[row(&[1.0, 1.5, 1.03])], &[Pair::default()]);
        assert!(text.contains("+3.0 %") && text.contains("MISSED"), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines.iter().all(|line| line.len() == lines[0].len()),
            "{text}"
        );
    }
}
