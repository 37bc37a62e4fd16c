//! The table "paper / ours / agrees? / why not".

use std::fmt::Write as _;

use serde::Serialize;

use crate::campaign::{Axis, Campaign, Check, Claim, Filter, Source, Trend, is_foreign};

use super::statistics::Estimate;
use super::values::{Cell, Table, at};

/// Exceptions that are named one by one; of more only their number is said.
const MAX_EXCEPTIONS: usize = 4;
/// Changes that are told in percent, as parts of the first value.
const MAX_SHOWN_CHANGE: f64 = 10.0;
/// Part of the pairs of neighbours and others that must go the same way to make a trend.
const TREND_PAIRS: f64 = 0.7;

/// Whether ours is what the paper says.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Agreement {
    /// Everywhere.
    Yes,
    /// In some of the cells.
    Partly,
    /// Nowhere.
    No,
    /// There is no value; the reason says why.
    NotMeasured,
}

impl Agreement {
    /// In a table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::Partly => "partly",
            Self::No => "no",
            Self::NotMeasured => "–",
        }
    }

    fn of(good: usize, all: usize) -> Self {
        match good {
            _ if all == 0 => Self::NotMeasured,
            0 => Self::No,
            _ if good == all => Self::Yes,
            _ => Self::Partly,
        }
    }
}

/// A claim with its answer.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// The claim's number.
    pub id: String,
    /// What is claimed.
    pub text: String,
    /// Where in the paper.
    pub place: String,
    /// The paper's value.
    pub paper: String,
    /// Ours.
    pub ours: String,
    /// Whether they agree.
    pub agreement: Agreement,
    /// Where they don't, and what else is to be known.
    pub why: String,
}

/// Answers all claims of a campaign.
pub(super) fn answer_all(campaign: &Campaign, table: &Table<'_>) -> Vec<Answer> {
    campaign
        .claims
        .iter()
        .map(|claim| answer(claim, table))
        .collect()
}

/// What a check has found.
struct Found {
    ours: Vec<String>,
    good: usize,
    all: usize,
    exceptions: Vec<String>,
    missing: Vec<String>,
}

fn answer(claim: &Claim, table: &Table<'_>) -> Answer {
    let of = |ours: String, agreement: Agreement, why: String| Answer {
        id: claim.id.clone(),
        text: claim.text.clone(),
        place: claim.place.clone(),
        paper: claim.paper.clone(),
        ours,
        agreement,
        why,
    };
    if let Check::Stated { reason } = &claim.check {
        return of("–".into(), Agreement::NotMeasured, reason.clone());
    }
    let mut found = Found::new();
    for check in claim.checks() {
        found.add(look(check, table));
    }
    let mut why: Vec<String> = Vec::new();
    if !found.missing.is_empty() {
        why.push(format!("no sound sample of {}", few(&found.missing)));
    }
    if !found.exceptions.is_empty() {
        why.push(few(&found.exceptions));
    }
    if !claim.note.is_empty() {
        why.push(claim.note.clone());
    }
    let ours = if found.ours.is_empty() {
        "–".into()
    } else {
        found.ours.join("; ")
    };
    of(ours, Agreement::of(found.good, found.all), why.join("; "))
}

/// What one part of a claim comes to.
fn look(check: &Check, table: &Table<'_>) -> Found {
    match check {
        Check::Stated { .. } => Found::new(),
        Check::Value {
            source,
            each,
            least,
            most,
            unit,
        } => values(table, source, each, least, most, unit),
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
            *expect,
            *within,
        ),
    }
}

fn few(all: &[String]) -> String {
    let mut text = all
        .iter()
        .take(MAX_EXCEPTIONS)
        .cloned()
        .collect::<Vec<_>>()
        .join("; ");
    if all.len() > MAX_EXCEPTIONS {
        // Writing to a String does not fail.
        let _ = write!(text, "; and {} more", all.len() - MAX_EXCEPTIONS);
    }
    text
}

/// All combinations of the values of some axes that a claim is about: not those of foreign brokers.
fn claimed(table: &Table<'_>, grid: &str, axes: &[Axis], fixed: &Filter) -> Vec<Cell> {
    let mut cells = table.cells(grid, axes, fixed);
    cells.retain(|cell| {
        !cell
            .iter()
            .any(|(axis, value)| *axis == Axis::Transport && is_foreign(value))
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

/// Three significant digits or so: more is noise.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    let text = if size >= 1000.0 {
        format!("{value:.0}")
    } else if size >= 100.0 {
        format!("{value:.1}")
    } else if size >= 1.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.3}")
    };
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        in_thousands(&text)
    }
}

/// Digits of a whole number in groups of three, from five digits on.
fn in_thousands(text: &str) -> String {
    let digits = text.trim_start_matches('-').len();
    let mut grouped = String::with_capacity(text.len() + digits / 3);
    for (index, character) in text.chars().enumerate() {
        let left = text.len() - index;
        if digits > 4 && left < digits && left.is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(character);
    }
    grouped
}

/// A value with its interval.
pub(super) fn with_interval(estimate: &Estimate) -> String {
    match (estimate.low, estimate.high) {
        (Some(low), Some(high)) => format!(
            "{} ({} to {})",
            number(estimate.value),
            number(low),
            number(high)
        ),
        _ => number(estimate.value),
    }
}

fn values(
    table: &Table<'_>,
    source: &Source,
    each: &[Axis],
    least: &[f64],
    most: &[f64],
    unit: &str,
) -> Found {
    let mut found = Found::new();
    let bound = |bounds: &[f64], index: usize| match bounds {
        [all] => Some(*all),
        each => each.get(index).copied(),
    };
    let cells = claimed(table, &source.grid, each, &source.at);
    for (index, cell) in cells.iter().enumerate() {
        let Some(estimate) = table.look(source, cell, index) else {
            found.missing.push(labelled(cell, &source.metric));
            continue;
        };
        found.all += 1;
        let unit = if unit.is_empty() {
            String::new()
        } else {
            format!(" {unit}")
        };
        let text = format!("{}{unit}", with_interval(&estimate));
        found.ours.push(labelled(cell, &text));
        let (least, most) = (bound(least, index), bound(most, index));
        let too_low = least.filter(|least| estimate.value < *least);
        let too_high = most.filter(|most| estimate.value > *most);
        match (too_low, too_high) {
            (None, None) => found.good += 1,
            (Some(least), _) => {
                let how = if estimate.most() >= least {
                    "below the paper's range, within the error"
                } else {
                    "below the paper's range"
                };
                found
                    .exceptions
                    .push(labelled(cell, &format!("{how} (from {})", number(least))));
            }
            (_, Some(most)) => {
                let how = if estimate.least() <= most {
                    "above the paper's range, within the error"
                } else {
                    "above the paper's range"
                };
                found
                    .exceptions
                    .push(labelled(cell, &format!("{how} (to {})", number(most))));
            }
        }
    }
    found
}

fn order(
    table: &Table<'_>,
    source: &Source,
    [lower, higher]: [&Filter; 2],
    each: &[Axis],
    rise: Option<Axis>,
) -> Found {
    let mut found = Found::new();
    let mut clear = 0;
    let look = |filter: &Filter, cell: &Cell| -> Option<Estimate> {
        let filter = at(filter, cell);
        let of = |filter: &Filter| table.estimate(&source.grid, filter, &source.metric);
        let Some(axis) = rise else {
            return of(&filter);
        };
        let values = table.grid(&source.grid)?.values(axis);
        let first = of(&filter.with(axis, values.first()?))?;
        let last = of(&filter.with(axis, values.last()?))?;
        Some(last.minus(&first))
    };
    let mut pairs = Vec::new();
    for cell in claimed(table, &source.grid, each, &Filter::default()) {
        let (Some(low), Some(high)) = (look(lower, &cell), look(higher, &cell)) else {
            found.missing.push(labelled(&cell, &source.metric));
            continue;
        };
        found.all += 1;
        let is_clear = low.most() < high.least() || high.most() < low.least();
        clear += usize::from(is_clear);
        let text = format!("{} and {}", with_interval(&low), with_interval(&high));
        if low.value < high.value {
            found.good += 1;
        } else {
            let how = if is_clear { "" } else { " (within the error)" };
            found
                .exceptions
                .push(labelled(&cell, &format!("the other way: {text}{how}")));
        }
        pairs.push(labelled(&cell, &text));
    }
    if found.all == 1 {
        found.ours = pairs;
        if clear == 0 {
            found
                .exceptions
                .push("the difference is within the error".into());
        }
    } else if found.all > 0 {
        found.ours.push(format!(
            "{} of {} ({clear} beyond the confidence intervals)",
            found.good, found.all
        ));
        if found.all <= MAX_EXCEPTIONS {
            found.ours.extend(pairs);
        }
    }
    found
}

fn trend(
    table: &Table<'_>,
    source: &Source,
    (along, from): (Axis, Option<&str>),
    each: &[Axis],
    expect: Trend,
    within: f64,
) -> Found {
    let mut found = Found::new();
    for (index, cell) in claimed(table, &source.grid, each, &source.at)
        .iter()
        .enumerate()
    {
        let mut values = Vec::new();
        let is_before =
            |step: &Cell| from.is_some_and(|from| step.iter().all(|(_, at)| at != from));
        let steps = claimed(table, &source.grid, &[along], &Filter::default());
        for step in steps.into_iter().skip_while(is_before) {
            let mut whole = cell.clone();
            whole.extend(step.clone());
            match table.look(source, &whole, index) {
                Some(estimate) => values.push(estimate.value),
                None => found.missing.push(name(&whole)),
            }
        }
        if values.len() < 2 {
            continue;
        }
        found.all += 1;
        let (first, last) = (values[0], values[values.len() - 1]);
        let change = last / first - 1.0;
        let mut text = values
            .iter()
            .map(|value| number(*value))
            .collect::<Vec<_>>()
            .join(", ");
        // From next to nothing everything is a great change.
        if change.abs() <= MAX_SHOWN_CHANGE {
            // Writing to a String does not fail.
            let _ = write!(text, " ({:+.0} %)", change * 100.0);
        }
        found.ours.push(labelled(cell, &text));
        if follows(&values, expect, within) {
            found.good += 1;
        } else {
            let what = match expect {
                Trend::Rises => "does not rise",
                Trend::Falls => "does not fall",
                Trend::Flat => "changes by more than allowed",
                Trend::Unclear => "has a clear trend",
            };
            found.exceptions.push(labelled(cell, what));
        }
    }
    found
}

/// Whether values go where they should.
fn follows(values: &[f64], expect: Trend, within: f64) -> bool {
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let mut pairs = 0;
    let mut rising = 0;
    for (index, first) in values.iter().enumerate() {
        for second in &values[index + 1..] {
            pairs += 1;
            rising += usize::from(second > first);
        }
    }
    let share = f64::from(u32::try_from(rising).unwrap_or(u32::MAX)) / f64::from(pairs.max(1));
    let change = values[values.len() - 1] / values[0] - 1.0;
    match expect {
        Trend::Rises => change > within && share >= TREND_PAIRS,
        Trend::Falls => change < -within && share <= 1.0 - TREND_PAIRS,
        Trend::Flat => most / least - 1.0 <= within,
        Trend::Unclear => {
            !follows(values, Trend::Rises, within) && !follows(values, Trend::Falls, within)
        }
    }
}

impl Found {
    const fn new() -> Self {
        Self {
            ours: Vec::new(),
            good: 0,
            all: 0,
            exceptions: Vec::new(),
            missing: Vec::new(),
        }
    }

    fn add(&mut self, other: Self) {
        self.ours.extend(other.ours);
        self.good += other.good;
        self.all += other.all;
        self.exceptions.extend(other.exceptions);
        self.missing.extend(other.missing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trends_need_a_change_and_most_pairs() {
        assert!(follows(&[1.0, 1.1, 1.05, 1.3], Trend::Rises, 0.02));
        assert!(!follows(&[1.0, 1.3, 1.1, 1.01], Trend::Rises, 0.02));
        assert!(follows(&[3.0, 2.0, 1.0], Trend::Falls, 0.02));
        assert!(!follows(&[3.0, 2.99], Trend::Falls, 0.02));
        assert!(follows(&[1.0, 1.01, 0.995], Trend::Flat, 0.02));
        assert!(!follows(&[1.0, 1.2], Trend::Flat, 0.02));
        assert!(follows(&[1.0, 1.3, 0.9, 1.2], Trend::Unclear, 0.02));
        assert!(!follows(&[1.0, 1.3, 1.5], Trend::Unclear, 0.02));
    }

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!(number(0.61), "0.61");
        assert_eq!(number(25.5), "25.5");
        assert_eq!(number(119.96), "120");
        assert_eq!(number(12_345.6), "12,346");
        assert_eq!(number(-123_456.0), "-123,456");
        assert_eq!(number(1_234_567.0), "1,234,567");
        assert_eq!(number(1234.0), "1234");
        assert_eq!(number(-0.5), "-0.5");
        assert_eq!(number(100.0), "100");
        assert_eq!(number(0.0), "0");
    }
}
