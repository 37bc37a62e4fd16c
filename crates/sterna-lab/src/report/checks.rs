//! The parts of a claim, and what each comes to: values in bounds, orders, trends.
//!
//! A part has a row for each of its cells. A row has a value, the interval in which it lies, and the
//! verdict that the interval gives. How the value is made of samples is written into the row, so that
//! another program can make it again.

use std::fmt::Write as _;

use serde::Serialize;

use crate::campaign::{Axis, Check, Filter, Source, Trend, is_foreign};

use super::claims::Agreement;
use super::numbers::{number, with_interval};
use super::resample::MIN_REPETITIONS;
use super::statistics::Estimate;
use super::values::{Cell, Table, Term, Terms, at};

/// Pairs of values that are shown beside an order's tally.
const MAX_SHOWN_PAIRS: usize = 4;
/// Changes that are told in percent, as parts of the first value.
const MAX_SHOWN_CHANGE: f64 = 10.0;
/// Part of the pairs of neighbours and others that must go the same way to make a trend.
const TREND_PAIRS: f64 = 0.7;

/// Findings of a check.
#[derive(Default)]
pub(super) struct Found {
    /// For people.
    pub(super) ours: Vec<String>,
    pub(super) rows: Vec<Row>,
    /// Where the claim does not hold, or nobody knows.
    pub(super) exceptions: Vec<String>,
    /// Cells without samples.
    pub(super) missing: Vec<String>,
}

impl Found {
    /// Adds a row. It does not agree where runs in its cells failed or lost messages: without them its
    /// transport looks better than it is.
    fn push(&mut self, table: &Table<'_>, mut row: Row) {
        row.unsuccessful = row
            .terms
            .iter()
            .flat_map(|term| [Some(&term.at), term.against.as_ref()].map(|at| (&term.grid, at)))
            .filter_map(|(grid, at)| Some(table.unsuccessful(grid, at?)))
            .sum();
        if row.unsuccessful > 0 {
            if row.agreement == Agreement::Agree {
                row.agreement = Agreement::Undecided;
            }
            let text = format!(
                "{} runs failed or lost messages, and are left out",
                row.unsuccessful
            );
            self.exceptions.push(if row.cell.is_empty() {
                text
            } else {
                format!("{}: {text}", row.cell)
            });
        }
        self.rows.push(row);
    }

    pub(super) fn add(&mut self, other: Self) {
        self.ours.extend(other.ours);
        self.rows.extend(other.rows);
        self.exceptions.extend(other.exceptions);
        self.missing.extend(other.missing);
    }
}

/// One value of a claim, with what it is made of.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The claim's number.
    pub claim: String,
    /// The row's place among those of the claim, from 0.
    pub number: usize,
    /// Its cell, in words; empty where there is only one.
    pub cell: String,
    /// The calculation from the terms. `value` is the first. `difference` is the first less the second.
    /// `rise` is the second less the first, less the rise from the third to the fourth. `change` is the
    /// last by the first, less 1.
    pub made: &'static str,
    /// The values that it is made of.
    pub terms: Vec<Recipe>,
    /// The value.
    pub value: f64,
    /// The ends of its 95 % interval; `None` without one.
    pub low: Option<f64>,
    /// The upper end.
    pub high: Option<f64>,
    /// Repetitions that it is made from.
    pub repetitions: usize,
    /// Runs of its cells that failed or lost messages: with any the row does not agree.
    pub unsuccessful: usize,
    /// Of a value: not less than this.
    pub least: Option<f64>,
    /// Of a value: not more than this.
    pub most: Option<f64>,
    /// The verdict by the interval.
    pub agreement: Agreement,
}

impl Row {
    fn new(
        cell: String,
        made: &'static str,
        terms: Vec<Recipe>,
        estimate: &Estimate,
        agreement: Agreement,
    ) -> Self {
        Self {
            claim: String::new(),
            number: 0,
            cell,
            made,
            terms,
            value: estimate.value,
            low: estimate.low,
            high: estimate.high,
            repetitions: estimate.repetitions,
            unsuccessful: 0,
            least: None,
            most: None,
            agreement,
        }
    }
}

/// How a term is made of samples.
#[derive(Clone, Debug, Serialize)]
pub struct Recipe {
    /// The samples' grid.
    pub grid: String,
    /// The metric, or `series.statistic`.
    pub metric: String,
    /// The samples' values on axes.
    pub at: Filter,
    /// Those that they are compared with.
    pub against: Option<Filter>,
    /// How much less than `against`, instead of the ratio to it.
    pub difference: bool,
    /// Reduction instead of the ratio: 1 less the ratio, in percent.
    pub reduction: bool,
    /// Subtracted in the end.
    pub minus: f64,
}

impl Recipe {
    fn new(source: &Source, cell: &Cell, index: usize) -> Self {
        Self {
            grid: source.grid.clone(),
            metric: source.metric.clone(),
            at: at(&source.at, cell),
            against: source.against.as_ref().map(|against| at(against, cell)),
            difference: source.difference,
            reduction: source.reduction,
            minus: match source.minus.as_slice() {
                [all] => *all,
                each => each.get(index).copied().unwrap_or(0.0),
            },
        }
    }
}

/// Findings of one part of a claim.
pub(super) fn look(check: &Check, table: &Table<'_>) -> Found {
    match check {
        Check::Stated { .. } => Found::default(),
        Check::Value {
            source,
            each,
            least,
            most,
            unit,
        } => values(table, source, each, [least, most], unit),
        Check::Order {
            source,
            lower,
            higher,
            each,
            rise,
        } => order(table, source, [lower, higher], each, *rise),
        Check::Trend {
            source,
            along,
            each,
            expect,
            within,
            from,
        } => trend(
            table,
            source,
            (*along, from.as_deref()),
            each,
            (*expect, *within),
        ),
    }
}

/// All combinations of the values of some axes that a claim is about. Its transports are those that it
/// names, or all but those of other brokers and devices.
fn claimed(table: &Table<'_>, source: &Source, axes: &[Axis], fixed: &Filter) -> Vec<Cell> {
    let is_meant = |name: &String| match source.transports.as_slice() {
        [] => !is_foreign(name),
        named => named.contains(name),
    };
    let mut cells = table.cells(&source.grid, axes, fixed);
    cells.retain(|cell| {
        cell.iter()
            .all(|(axis, value)| *axis != Axis::Transport || is_meant(value))
    });
    cells
}

/// A cell for people; nothing when there is only one.
fn name(cell: &Cell) -> String {
    cell.iter()
        .map(|(axis, value)| match axis {
            Axis::Qos => format!("QoS {value}"),
            Axis::PayloadBytes => format!("{value} bytes"),
            Axis::Loss => format!("loss {value}"),
            _ => value.clone(),
        })
        .collect::<Vec<_>>()
        .join(", ")
}

fn labelled(cell: &Cell, text: &str) -> String {
    if cell.is_empty() {
        text.to_owned()
    } else {
        format!("{}: {text}", name(cell))
    }
}

/// Why an interval decides nothing.
fn open(estimate: &Estimate, metric: &str) -> String {
    if estimate.interval().is_some() {
        "undecided: its interval is on both sides".into()
    } else if estimate.repetitions < MIN_REPETITIONS {
        format!(
            "undecided: {} repetitions are too few for an interval",
            estimate.repetitions
        )
    } else {
        format!("undecided: {metric} has no interval")
    }
}

fn values(
    table: &Table<'_>,
    source: &Source,
    each: &[Axis],
    [least, most]: [&[f64]; 2],
    unit: &str,
) -> Found {
    let mut found = Found::default();
    let bound = |bounds: &[f64], index: usize| match bounds {
        [all] => Some(*all),
        each => each.get(index).copied(),
    };
    let unit = if unit.is_empty() {
        String::new()
    } else {
        format!(" {unit}")
    };
    let cells = claimed(table, source, each, &source.at);
    for (index, cell) in cells.iter().enumerate() {
        let estimate = table.term(source, cell, index).and_then(|term| {
            let terms = [term];
            Terms::of(&terms)?.estimate(|values| values[0])
        });
        let Some(estimate) = estimate else {
            found.missing.push(labelled(cell, &source.metric));
            continue;
        };
        let (least, most) = (bound(least, index), bound(most, index));
        let agreement = within(&estimate, least, most);
        let text = format!("{}{unit}", with_interval(&estimate));
        found.ours.push(labelled(cell, &text));
        let exception = match agreement {
            Agreement::Disagree if least.is_some_and(|least| estimate.value < least) => {
                Some(format!(
                    "below the paper's range (from {})",
                    least.map_or_else(String::new, number)
                ))
            }
            Agreement::Disagree => Some(format!(
                "above the paper's range (to {})",
                most.map_or_else(String::new, number)
            )),
            Agreement::Undecided => Some(open(&estimate, &source.metric)),
            Agreement::Agree | Agreement::NotTested => None,
        };
        found
            .exceptions
            .extend(exception.map(|text| labelled(cell, &text)));
        let recipe = Recipe::new(source, cell, index);
        let row = Row {
            least,
            most,
            ..Row::new(name(cell), "value", vec![recipe], &estimate, agreement)
        };
        found.push(table, row);
    }
    found
}

/// Whether a value is in bounds, by its interval.
fn within(estimate: &Estimate, least: Option<f64>, most: Option<f64>) -> Agreement {
    let (least, most) = (
        least.unwrap_or(f64::NEG_INFINITY),
        most.unwrap_or(f64::INFINITY),
    );
    match estimate.interval() {
        Some((low, high)) if least <= low && high <= most => Agreement::Agree,
        Some((low, high)) if high < least || most < low => Agreement::Disagree,
        _ => Agreement::Undecided,
    }
}

fn order(
    table: &Table<'_>,
    source: &Source,
    [lower, higher]: [&Filter; 2],
    each: &[Axis],
    rise: Option<Axis>,
) -> Found {
    let mut found = Found::default();
    let mut pairs = Vec::new();
    let sides_wanted = if rise.is_some() { 4 } else { 2 };
    for cell in claimed(table, source, each, &Filter::default()) {
        let sources = sides(table, source, [lower, higher], rise);
        let terms: Option<Vec<Term>> = sources
            .iter()
            .map(|source| table.term(source, &cell, 0))
            .collect();
        let terms = terms.as_deref().filter(|terms| terms.len() == sides_wanted);
        let Some(terms) = terms.and_then(Terms::of) else {
            found.missing.push(labelled(&cell, &source.metric));
            continue;
        };
        let side = |first: usize| {
            terms.estimate(|values| match rise {
                Some(_) => values[2 * first + 1] - values[2 * first],
                None => values[first],
            })
        };
        let apart = terms.estimate(|values| match rise {
            Some(_) => (values[1] - values[0]) - (values[3] - values[2]),
            None => values[0] - values[1],
        });
        let (Some(low), Some(high), Some(apart)) = (side(0), side(1), apart) else {
            found.missing.push(labelled(&cell, &source.metric));
            continue;
        };
        let agreement = match apart.interval() {
            Some((_, most)) if most < 0.0 => Agreement::Agree,
            Some((least, _)) if least >= 0.0 => Agreement::Disagree,
            _ => Agreement::Undecided,
        };
        let text = format!("{} and {}", with_interval(&low), with_interval(&high));
        let exception = match agreement {
            Agreement::Disagree => Some(format!("the other way: {text}")),
            Agreement::Undecided => Some(open(&apart, &source.metric)),
            Agreement::Agree | Agreement::NotTested => None,
        };
        found
            .exceptions
            .extend(exception.map(|text| labelled(&cell, &text)));
        pairs.push(labelled(&cell, &text));
        let recipes = sources
            .iter()
            .map(|source| Recipe::new(source, &cell, 0))
            .collect();
        let made = if rise.is_some() { "rise" } else { "difference" };
        let row = Row::new(name(&cell), made, recipes, &apart, agreement);
        found.push(table, row);
    }
    let count = |agreement: Agreement| {
        let rows = found.rows.iter();
        rows.filter(|row| row.agreement == agreement).count()
    };
    if found.rows.len() > 1 {
        found.ours.push(format!(
            "of {}, {} agree, {} disagree, {} undecided",
            found.rows.len(),
            count(Agreement::Agree),
            count(Agreement::Disagree),
            count(Agreement::Undecided)
        ));
    }
    if pairs.len() <= MAX_SHOWN_PAIRS {
        found.ours.extend(pairs);
    }
    found
}

/// The sources that an order compares: two values, or the first and the last along an axis of each.
fn sides(
    table: &Table<'_>,
    source: &Source,
    filters: [&Filter; 2],
    rise: Option<Axis>,
) -> Vec<Source> {
    let ends = rise.and_then(|axis| {
        let values = table.grid(&source.grid)?.values(axis);
        Some((axis, [values.first()?.clone(), values.last()?.clone()]))
    });
    let of = |filter: Filter| Source {
        at: filter,
        against: None,
        ..source.clone()
    };
    filters
        .into_iter()
        .flat_map(|filter| match &ends {
            Some((axis, ends)) => ends.iter().map(|end| filter.with(*axis, end)).collect(),
            None => vec![filter.clone()],
        })
        .map(of)
        .collect()
}

fn trend(
    table: &Table<'_>,
    source: &Source,
    (along, from): (Axis, Option<&str>),
    each: &[Axis],
    (expect, within): (Trend, f64),
) -> Found {
    let mut found = Found::default();
    for (index, cell) in claimed(table, source, each, &source.at).iter().enumerate() {
        let mut steps = Vec::new();
        let mut recipes = Vec::new();
        let is_before =
            |step: &Cell| from.is_some_and(|from| step.iter().all(|(_, at)| at != from));
        let places = claimed(table, source, &[along], &Filter::default());
        for place in places.into_iter().skip_while(is_before) {
            let mut whole = cell.clone();
            whole.extend(place);
            match table.term(source, &whole, index) {
                Some(term) if Terms::of(std::slice::from_ref(&term)).is_some() => {
                    steps.push(term);
                    recipes.push(Recipe::new(source, &whole, index));
                }
                _ => found.missing.push(name(&whole)),
            }
        }
        if steps.len() < 2 {
            let what = format!("two values along {}", along.title());
            found.missing.push(labelled(cell, &what));
            continue;
        }
        let last = steps.len() - 1;
        let looked = Terms::of(&steps).and_then(|terms| {
            let change = terms.estimate(|values| values[last] / values[0] - 1.0)?;
            let values: Option<Vec<Estimate>> = (0..=last)
                .map(|step| terms.estimate(|values| values[step]))
                .collect();
            Some((follows(&terms, last, expect, within), change, values?))
        });
        let Some((agreement, change, values)) = looked else {
            found.missing.push(labelled(cell, &source.metric));
            continue;
        };
        found.ours.push(labelled(cell, &course(&values, &change)));
        let what = match (agreement, expect) {
            (Agreement::Disagree, Trend::Rises) => Some("does not rise".to_owned()),
            (Agreement::Disagree, Trend::Falls) => Some("does not fall".to_owned()),
            (Agreement::Disagree, Trend::Flat) => Some("changes by more than allowed".to_owned()),
            (Agreement::Disagree, Trend::Unclear) => Some("has a clear trend".to_owned()),
            (Agreement::Undecided, _) => Some(open(&change, &source.metric)),
            (Agreement::Agree | Agreement::NotTested, _) => None,
        };
        found
            .exceptions
            .extend(what.map(|what| labelled(cell, &what)));
        let row = Row::new(name(cell), "change", recipes, &change, agreement);
        found.push(table, row);
    }
    found
}

/// A trend's values, and their change from the first to the last.
fn course(values: &[Estimate], change: &Estimate) -> String {
    let mut text = values
        .iter()
        .map(|estimate| number(estimate.value))
        .collect::<Vec<_>>()
        .join(", ");
    // From next to nothing everything is a great change.
    if change.value.abs() <= MAX_SHOWN_CHANGE {
        // Writing to a String does not fail.
        let _ = match change.interval() {
            Some((low, high)) => write!(
                text,
                " ({:+.0} %, {:+.0} to {:+.0})",
                change.value * 100.0,
                low * 100.0,
                high * 100.0
            ),
            None => write!(text, " ({:+.0} %)", change.value * 100.0),
        };
    }
    text
}

/// Where the change from one value to another lies.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Way {
    Up,
    Down,
    /// Within what counts as none.
    Level,
    /// Its interval says none of these, or there is none.
    Open,
}

impl Way {
    fn of(change: Option<&Estimate>, within: f64) -> Self {
        match change.and_then(Estimate::interval) {
            Some((low, _)) if low > within => Self::Up,
            Some((_, high)) if high < -within => Self::Down,
            Some((low, high)) if -within <= low && high <= within => Self::Level,
            _ => Self::Open,
        }
    }
}

/// Whether values go where they should, by the intervals of their changes. For a rise or a fall this is
/// the change from the first to the last. For a flat or unclear trend these are the changes of all
/// pairs.
fn follows(terms: &Terms<'_>, last: usize, expect: Trend, within: f64) -> Agreement {
    let change =
        |first: usize, second: usize| terms.estimate(|values| values[second] / values[first] - 1.0);
    let pairs: Vec<Estimate> = (0..last)
        .flat_map(|first| (first + 1..=last).map(move |second| (first, second)))
        .filter_map(|(first, second)| change(first, second))
        .collect();
    let ways: Vec<Way> = pairs
        .iter()
        .map(|pair| Way::of(Some(pair), within))
        .collect();
    let ends = change(0, last);
    let rising = pairs.iter().filter(|pair| pair.value > 0.0).count();
    let rising = rising as f64 / pairs.len().max(1) as f64;
    // Whether the change of the ends is wholly on the wrong side of what counts as one.
    let is_refuted = |sign: f64| {
        ends.as_ref()
            .and_then(Estimate::interval)
            .is_some_and(|(low, high)| (low * sign).max(high * sign) <= within)
    };
    let one_way = |way: Way, sign: f64, share: f64| {
        if Way::of(ends.as_ref(), within) == way && share >= TREND_PAIRS {
            Agreement::Agree
        } else if is_refuted(sign) {
            Agreement::Disagree
        } else {
            Agreement::Undecided
        }
    };
    let rises = one_way(Way::Up, 1.0, rising);
    let falls = one_way(Way::Down, -1.0, 1.0 - rising);
    match expect {
        Trend::Rises => rises,
        Trend::Falls => falls,
        Trend::Flat => {
            if ways.iter().all(|way| *way == Way::Level) {
                Agreement::Agree
            } else if ways.contains(&Way::Up) || ways.contains(&Way::Down) {
                Agreement::Disagree
            } else {
                Agreement::Undecided
            }
        }
        Trend::Unclear => {
            if rises == Agreement::Agree || falls == Agreement::Agree {
                Agreement::Disagree
            } else if ways.contains(&Way::Up) && ways.contains(&Way::Down) {
                Agreement::Agree
            } else {
                Agreement::Undecided
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::resample::{Quantity, Statistic};

    /// A trend of these means, whose repetitions differ by this part of them.
    fn judged(
        means: &[f64],
        noise: f64,
        repetitions: u32,
        expect: Trend,
        within: f64,
    ) -> Agreement {
        let steps: Vec<Term> = (0_u32..)
            .zip(means)
            .map(|(step, mean)| {
                let run = |repetition: u32| {
                    // Each step has its own order of the same deviations, whose sum is none.
                    let place = (repetition * (2 * step + 1)) % repetitions;
                    let deviation = f64::from(place) / f64::from(repetitions - 1) - 0.5;
                    vec![vec![mean * noise.mul_add(deviation, 1.0)]]
                };
                Term::of(Quantity {
                    statistic: Statistic::Mean,
                    repetitions: (0..repetitions)
                        .map(|number| (number, run(number)))
                        .collect(),
                })
            })
            .collect();
        let terms = Terms::of(&steps).unwrap();
        follows(&terms, means.len() - 1, expect, within)
    }

    #[test]
    fn trends_are_judged_by_the_intervals_of_changes() {
        use Agreement::{Agree, Disagree, Undecided};
        for (means, expect, verdict) in [
            (&[1.0, 1.1, 1.05, 1.3][..], Trend::Rises, Agree),
            (&[1.0, 1.3, 1.1, 1.0], Trend::Rises, Disagree),
            (&[1.3, 1.2, 1.0], Trend::Rises, Disagree),
            (&[3.0, 2.0, 1.0], Trend::Falls, Agree),
            (&[3.0, 2.99], Trend::Falls, Disagree),
            (&[1.0, 1.002, 0.999], Trend::Flat, Agree),
            (&[1.0, 1.2], Trend::Flat, Disagree),
            (&[1.0, 1.02], Trend::Flat, Undecided),
            (&[1.0, 1.3, 0.8, 1.0], Trend::Unclear, Agree),
            (&[1.0, 1.3, 1.5], Trend::Unclear, Disagree),
        ] {
            let got = judged(means, 0.01, 11, expect, 0.02);
            assert_eq!(got, verdict, "{means:?} {expect:?}");
            // Four repetitions have no interval, and 60 % of noise hides all of this.
            assert_eq!(judged(means, 0.01, 4, expect, 0.02), Undecided);
        }
        assert_eq!(judged(&[1.0, 1.1], 0.9, 5, Trend::Rises, 0.02), Undecided);
    }

    #[test]
    fn bounds_are_held_against_the_whole_interval() {
        let of = |low, high| Estimate {
            low: Some(low),
            high: Some(high),
            ..Estimate::single(f64::midpoint(low, high), 20)
        };
        for (estimate, verdict) in [
            (of(1.0, 2.0), Agreement::Agree),
            (of(0.9, 2.0), Agreement::Undecided),
            (of(1.9, 2.1), Agreement::Undecided),
            (of(0.1, 0.9), Agreement::Disagree),
            (of(2.1, 2.2), Agreement::Disagree),
            (Estimate::single(1.5, 20), Agreement::Undecided),
        ] {
            assert_eq!(
                within(&estimate, Some(1.0), Some(2.0)),
                verdict,
                "{estimate:?}"
            );
        }
        assert_eq!(within(&of(-9.0, 2.0), None, Some(2.0)), Agreement::Agree);
    }
}
