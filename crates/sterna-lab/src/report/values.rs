//! Values by their names, out of the samples of some cells.

use std::collections::BTreeMap;

use crate::campaign::{Axis, Campaign, Filter, Grid, Source};
use crate::measure::Sample;

use super::resample::{Quantity, Resamples, Statistic};
use super::statistics::Estimate;

/// The samples that count, with the grids that they belong to.
#[derive(Debug)]
pub(super) struct Table<'a> {
    grids: Vec<Grid>,
    samples: &'a [&'a Sample],
    /// Runs that failed or lost messages.
    unsuccessful: &'a [&'a Sample],
}

/// A combination of values on axes.
pub(super) type Cell = Vec<(Axis, String)>;

impl<'a> Table<'a> {
    pub(super) fn new(
        campaign: &Campaign,
        quick: bool,
        samples: &'a [&'a Sample],
        unsuccessful: &'a [&'a Sample],
    ) -> Self {
        let grids = campaign
            .grids
            .iter()
            .map(|grid| if quick { grid.quick() } else { grid.clone() })
            .collect();
        Self {
            grids,
            samples,
            unsuccessful,
        }
    }

    pub(super) fn grid(&self, name: &str) -> Option<&Grid> {
        self.grids.iter().find(|grid| grid.name == name)
    }

    /// The samples of these cells.
    pub(super) fn samples<'b>(
        &'b self,
        grid: &'b str,
        filter: &'b Filter,
    ) -> impl Iterator<Item = &'b Sample> {
        self.samples
            .iter()
            .copied()
            .filter(move |sample| sample.grid == grid && sample.is_in(filter))
    }

    /// Runs of these cells that failed or lost messages.
    pub(super) fn unsuccessful(&self, grid: &str, filter: &Filter) -> usize {
        self.unsuccessful
            .iter()
            .filter(|sample| sample.grid == grid && sample.is_in(filter))
            .count()
    }

    /// All values of a series in these cells, or those of a metric, one for each run.
    pub(super) fn pooled(&self, grid: &str, filter: &Filter, name: &str) -> Vec<f64> {
        let mut values: Vec<f64> = self
            .samples
            .iter()
            .filter(|sample| sample.grid == grid && sample.is_in(filter))
            .filter_map(|sample| sample.series.get(name))
            .flatten()
            .copied()
            .collect();
        if values.is_empty() {
            values = self.each_run(grid, filter, name);
        }
        values
    }

    /// The values of a metric in these cells, one for each run.
    pub(super) fn each_run(&self, grid: &str, filter: &Filter, metric: &str) -> Vec<f64> {
        self.samples
            .iter()
            .filter(|sample| sample.grid == grid && sample.is_in(filter))
            .filter_map(|sample| sample.metrics.get(metric).copied())
            .collect()
    }

    /// The quantity that a name means in these cells, by repetition. It is a metric of each run
    /// (`total_s`), or a statistic. A statistic is of the values of a series (`delay_ms.p95`), or of a
    /// metric's values (`total_s.max`). `None` for an unknown statistic.
    fn quantity(&self, grid: &str, filter: &Filter, name: &str) -> Option<Quantity> {
        let (name, statistic) = match name.split_once('.') {
            Some((name, statistic)) => (name, statistic_named(statistic)?),
            None => (name, Statistic::Mean),
        };
        let mut repetitions: BTreeMap<u32, Vec<Vec<f64>>> = BTreeMap::new();
        for sample in self.samples(grid, filter) {
            let values = match (sample.series.get(name), sample.metrics.get(name)) {
                (Some(values), _) if !values.is_empty() => values.clone(),
                (_, Some(value)) => vec![*value],
                _ => continue,
            };
            let runs = repetitions.entry(sample.repetition).or_default();
            runs.push(values);
        }
        Some(Quantity {
            statistic,
            repetitions,
        })
    }

    /// A value in these cells; `None` without samples.
    pub(super) fn estimate(&self, grid: &str, filter: &Filter, name: &str) -> Option<Estimate> {
        let quantity = self.quantity(grid, filter, name)?;
        Resamples::of(&[quantity])?.estimate(|values| values[0])
    }

    /// The ratio of two values: that of the samples that pass the first filter, by that of the second.
    /// Both are of the same repetitions.
    pub(super) fn ratio(&self, grid: &str, both: &[Filter; 2], name: &str) -> Option<Estimate> {
        let quantities = [
            self.quantity(grid, &both[0], name)?,
            self.quantity(grid, &both[1], name)?,
        ];
        Resamples::of(&quantities)?.estimate(|values| values[0] / values[1])
    }

    /// The term that a claim looks at in one cell; `None` where a metric's statistic is unknown.
    pub(super) fn term(
        &self,
        source: &Source,
        cell: &[(Axis, String)],
        index: usize,
    ) -> Option<Term> {
        let of = |filter: &Filter| self.quantity(&source.grid, &at(filter, cell), &source.metric);
        let mut quantities = vec![of(&source.at)?];
        if let Some(against) = &source.against {
            quantities.push(of(against)?);
        }
        let minus = match source.minus.as_slice() {
            [] => 0.0,
            [all] => *all,
            each => each.get(index).copied()?,
        };
        Some(Term {
            quantities,
            is_difference: source.difference,
            is_reduction: source.reduction,
            minus,
        })
    }

    /// All combinations of the values of some axes of a grid, as far as `fixed` allows.
    pub(super) fn cells(&self, grid: &str, axes: &[Axis], fixed: &Filter) -> Vec<Cell> {
        let mut cells: Vec<Cell> = vec![Vec::new()];
        let Some(grid) = self.grid(grid) else {
            return cells;
        };
        for axis in axes {
            let values = match fixed.value(*axis) {
                Some(value) => vec![value],
                None => grid.values(*axis),
            };
            cells = cells
                .into_iter()
                .flat_map(|cell| {
                    values.iter().map(move |value| {
                        let mut cell = cell.clone();
                        cell.push((*axis, value.clone()));
                        cell
                    })
                })
                .collect();
        }
        cells
    }
}

/// A filter with the values of a cell.
pub(super) fn at(filter: &Filter, cell: &[(Axis, String)]) -> Filter {
    cell.iter().fold(filter.clone(), |filter, (axis, value)| {
        filter.with(*axis, value)
    })
}

/// A value that a claim looks at: that of some cells, or of some against others.
#[derive(Clone, Debug)]
pub(super) struct Term {
    /// Those of the cells, and of the cells that they are compared with.
    quantities: Vec<Quantity>,
    /// How much less than the other, instead of the ratio.
    is_difference: bool,
    /// The ratio as what it takes away, in percent.
    is_reduction: bool,
    /// Subtracted in the end.
    minus: f64,
}

impl Term {
    /// That of one quantity.
    #[cfg(test)]
    pub(super) fn of(quantity: Quantity) -> Self {
        Self {
            quantities: vec![quantity],
            is_difference: false,
            is_reduction: false,
            minus: 0.0,
        }
    }

    /// The value, of its quantities' values.
    fn value(&self, values: &[f64]) -> f64 {
        let value = match values {
            [value, other] if self.is_difference => other - value,
            [value, other] => value / other,
            [value, ..] => *value,
            [] => f64::NAN,
        };
        let value = if self.is_reduction {
            (1.0 - value) * 100.0
        } else {
            value
        };
        value - self.minus
    }
}

/// Several values that share their repetitions, and whatever is to be made of them.
#[derive(Debug)]
pub(super) struct Terms<'a> {
    terms: &'a [Term],
    resamples: Resamples,
}

impl<'a> Terms<'a> {
    /// `None` where no repetition has a run for each of them.
    pub(super) fn of(terms: &'a [Term]) -> Option<Self> {
        let quantities: Vec<Quantity> = terms
            .iter()
            .flat_map(|term| term.quantities.iter().cloned())
            .collect();
        let resamples = Resamples::of(&quantities)?;
        Some(Self { terms, resamples })
    }

    /// A value that `combine` makes of the terms' values; `None` where it is no number.
    pub(super) fn estimate(&self, combine: impl Fn(&[f64]) -> f64) -> Option<Estimate> {
        self.resamples.estimate(|values| {
            let mut rest = values;
            let of_terms: Vec<f64> = self
                .terms
                .iter()
                .map(|term| {
                    let (own, others) = rest.split_at(term.quantities.len());
                    rest = others;
                    term.value(own)
                })
                .collect();
            combine(&of_terms)
        })
    }
}

/// A statistic by its name.
fn statistic_named(name: &str) -> Option<Statistic> {
    Some(match name {
        "mean" => Statistic::Mean,
        "sd" => Statistic::Deviation,
        "rsd" => Statistic::RelativeDeviation,
        "p50" => Statistic::Percentile(0.5),
        "p95" => Statistic::Percentile(0.95),
        "p99" => Statistic::Percentile(0.99),
        "run_max" => Statistic::RunMax,
        "max" => Statistic::Max,
        "count" => Statistic::Count,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::STATISTICS;

    #[test]
    fn each_statistic_that_a_claim_may_name_is_known() {
        for name in STATISTICS {
            assert!(statistic_named(name).is_some(), "{name}");
        }
        assert_eq!(statistic_named("p42"), None);
    }
}
