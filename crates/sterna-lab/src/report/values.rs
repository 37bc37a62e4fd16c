//! Values by their names, out of the samples of some cells.

use crate::campaign::{Axis, Campaign, Filter, Grid, Source};
use crate::measure::Sample;

use super::statistics::{self, Estimate};

/// The samples that count, with the grids that they belong to.
#[derive(Debug)]
pub(super) struct Table<'a> {
    grids: Vec<Grid>,
    samples: &'a [&'a Sample],
}

/// What a name stands for: a metric of each run (`total_s`), or a statistic of the values of a series
/// in all runs together (`delay_ms.mean`), or of a metric's values (`total_s.max`).
enum Name<'a> {
    Metric(&'a str),
    Pooled(&'a str, &'a str),
}

/// A combination of values on axes.
pub(super) type Cell = Vec<(Axis, String)>;

impl<'a> Table<'a> {
    pub(super) fn new(campaign: &Campaign, quick: bool, samples: &'a [&'a Sample]) -> Self {
        let grids = campaign
            .grids
            .iter()
            .map(|grid| if quick { grid.quick() } else { grid.clone() })
            .collect();
        Self { grids, samples }
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

    /// A value in these cells; none without samples.
    pub(super) fn estimate(&self, grid: &str, filter: &Filter, name: &str) -> Option<Estimate> {
        match parse(name) {
            Name::Metric(metric) => {
                let values = self.each_run(grid, filter, metric);
                (!values.is_empty()).then(|| statistics::mean_estimate(&values))
            }
            Name::Pooled(series, statistic) => {
                let values = self.pooled(grid, filter, series);
                if values.is_empty() {
                    return None;
                }
                pooled_estimate(&values, statistic)
            }
        }
    }

    /// What a claim looks at, in one cell.
    pub(super) fn look(
        &self,
        source: &Source,
        cell: &[(Axis, String)],
        index: usize,
    ) -> Option<Estimate> {
        let mut value = self.estimate(&source.grid, &at(&source.at, cell), &source.metric)?;
        if let Some(against) = &source.against {
            let other = self.estimate(&source.grid, &at(against, cell), &source.metric)?;
            value = if source.difference {
                other.minus(&value)
            } else {
                value.ratio(&other)
            };
            if source.reduction {
                value = value.scaled(-100.0, 100.0);
            }
        }
        let minus = match source.minus.as_slice() {
            [] => 0.0,
            [all] => *all,
            each => each.get(index).copied()?,
        };
        Some(value.scaled(1.0, -minus))
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

fn parse(name: &str) -> Name<'_> {
    match name.split_once('.') {
        Some((series, statistic)) => Name::Pooled(series, statistic),
        None => Name::Metric(name),
    }
}

/// A statistic by its name.
fn pooled_estimate(values: &[f64], statistic: &str) -> Option<Estimate> {
    let at = |part: f64| {
        statistics::bootstrap(values, |values| {
            statistics::percentile(&statistics::sorted(values), part)
        })
    };
    Some(match statistic {
        "mean" if values.len() < 10 => statistics::mean_estimate(values),
        "mean" => statistics::bootstrap(values, statistics::mean),
        "sd" => statistics::bootstrap(values, statistics::deviation),
        "rsd" => statistics::bootstrap(values, |values| {
            statistics::deviation(values) / statistics::mean(values)
        }),
        "p50" => at(0.5),
        "p95" => at(0.95),
        "p99" => at(0.99),
        "max" => Estimate::single(
            values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            values.len(),
        ),
        "count" => Estimate::single(values.len() as f64, values.len()),
        _ => return None,
    })
}
