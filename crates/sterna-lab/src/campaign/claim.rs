//! A paper's claims, and how a campaign's samples answer them.

use serde::Deserialize;

use super::{Axis, Campaign, Filter, is_foreign};

/// A claim.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Its number in the list of claims.
    pub id: String,
    /// Text of the claim.
    pub text: String,
    /// Where in the paper.
    #[serde(rename = "where")]
    pub place: String,
    /// The paper's value, in its words.
    pub paper: String,
    /// Check that finds our value.
    pub check: Check,
    /// Further parts of the claim: it holds if all of them do.
    #[serde(default)]
    pub also: Vec<Check>,
    /// Other readings of it, which are shown and have no say in the verdict.
    #[serde(default)]
    pub shown: Vec<Check>,
    /// Why the row is no test, though it has a value: it is an input, or cannot fail.
    #[serde(default)]
    pub untested: Option<String>,
    /// Note for the reader, with any result.
    #[serde(default)]
    pub note: String,
}

/// Answer to a claim.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "CheckText")]
pub enum Check {
    /// A value in bounds, in each of some cells.
    Value {
        /// Source of the value.
        source: Source,
        /// For each combination of the values of these axes.
        each: Vec<Axis>,
        /// Not less than this; one for each, or one for all.
        least: Vec<f64>,
        /// Not more than this.
        most: Vec<f64>,
        /// The unit, for people.
        unit: String,
    },
    /// One thing is less than another in all cells that differ in these axes.
    Order {
        /// Source of the value.
        source: Source,
        /// The smaller value.
        lower: Box<Filter>,
        /// Than this.
        higher: Box<Filter>,
        /// For each combination of the values of these axes.
        each: Vec<Axis>,
        /// Compare the rise from the first to the last value of this axis, instead of the values.
        rise: Option<Axis>,
    },
    /// The trend of a value along an axis.
    Trend {
        /// Source of the value.
        source: Source,
        /// Along this axis.
        along: Axis,
        /// For each combination of the values of these axes.
        each: Vec<Axis>,
        /// The claimed trend.
        expect: Trend,
        /// Changes of this part of the value count as none.
        within: f64,
        /// From this value of the axis on; from the first without one.
        from: Option<String>,
    },
    /// Not measurable by this campaign; the text has the reason, or a related fact.
    Stated {
        /// Why.
        reason: String,
    },
}

/// Which values of which samples.
#[derive(Clone, Debug)]
pub struct Source {
    /// Where samples come from.
    pub grid: String,
    /// Which of their values.
    pub metric: String,
    /// In which cells.
    pub at: Filter,
    /// Compared with these cells: then the value is the ratio of the two.
    pub against: Option<Filter>,
    /// Show the ratio as a reduction, in percent.
    pub reduction: bool,
    /// Instead of the ratio, the decrease against `against`.
    pub difference: bool,
    /// Take these off; one for each cell, or one for all.
    pub minus: Vec<f64>,
    /// Where the transport is an axis: only these; all of the grid without any.
    pub transports: Vec<String>,
}

impl Source {
    /// A metric of a grid, in all its cells.
    #[must_use]
    pub fn of(grid: &str, metric: &str) -> Self {
        Self {
            grid: grid.to_owned(),
            metric: metric.to_owned(),
            at: Filter::default(),
            against: None,
            reduction: false,
            difference: false,
            minus: Vec::new(),
            transports: Vec::new(),
        }
    }
}

/// A check as a file has it: all in one table.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct CheckText {
    kind: String,
    grid: Option<String>,
    metric: Option<String>,
    at: Filter,
    against: Option<Filter>,
    reduction: bool,
    difference: bool,
    minus: Vec<f64>,
    transports: Vec<String>,
    each: Vec<Axis>,
    least: Vec<f64>,
    most: Vec<f64>,
    unit: String,
    lower: Option<Filter>,
    higher: Option<Filter>,
    rise: Option<Axis>,
    along: Option<Axis>,
    expect: Option<Trend>,
    within: Option<f64>,
    from: Option<String>,
    reason: Option<String>,
}

/// Statistics of all values in the cells. A metric's name may end in one of them, behind a dot.
pub const STATISTICS: [&str; 9] = [
    "mean", "sd", "rsd", "p50", "p95", "p99", "run_max", "max", "count",
];

/// Part of a value that counts as no change, unless said otherwise.
const DEFAULT_WITHIN: f64 = 0.02;

impl TryFrom<CheckText> for Check {
    type Error = String;

    fn try_from(text: CheckText) -> Result<Self, String> {
        fn needed<T>(value: Option<T>, kind: &str, name: &str) -> Result<T, String> {
            value.ok_or_else(|| format!("a check of kind `{kind}` needs `{name}`"))
        }
        let kind = text.kind.as_str();
        if kind == "stated" {
            let reason = needed(text.reason, kind, "reason")?;
            return Ok(Self::Stated { reason });
        }
        let source = Source {
            grid: needed(text.grid, kind, "grid")?,
            metric: needed(text.metric, kind, "metric")?,
            at: text.at,
            against: text.against,
            reduction: text.reduction,
            difference: text.difference,
            minus: text.minus,
            transports: text.transports,
        };
        if (source.reduction || source.difference) && source.against.is_none() {
            return Err("a reduction or difference needs `against`".into());
        }
        if source.reduction && source.difference {
            return Err("a value is a reduction or a difference, not both".into());
        }
        let each = text.each;
        match kind {
            "value" => Ok(Self::Value {
                source,
                each,
                least: text.least,
                most: text.most,
                unit: text.unit,
            }),
            "order" => Ok(Self::Order {
                source,
                lower: needed(text.lower, kind, "lower")?.into(),
                higher: needed(text.higher, kind, "higher")?.into(),
                each,
                rise: text.rise,
            }),
            "trend" => Ok(Self::Trend {
                source,
                along: needed(text.along, kind, "along")?,
                each,
                expect: needed(text.expect, kind, "expect")?,
                within: text.within.unwrap_or(DEFAULT_WITHIN),
                from: text.from,
            }),
            _ => Err(format!(
                "no check is of kind `{kind}`; there are value, order, trend and stated"
            )),
        }
    }
}

/// Trend of a value.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum Trend {
    /// Up.
    Rises,
    /// Down.
    Falls,
    /// Not.
    Flat,
    /// Now up, now down.
    Unclear,
}

impl Check {
    /// Source of the value, if there is one.
    #[must_use]
    pub const fn source(&self) -> Option<&Source> {
        match self {
            Self::Value { source, .. }
            | Self::Order { source, .. }
            | Self::Trend { source, .. } => Some(source),
            Self::Stated { .. } => None,
        }
    }

    fn filters(&self) -> Vec<&Filter> {
        let mut filters = Vec::new();
        if let Some(source) = self.source() {
            filters.push(&source.at);
            filters.extend(&source.against);
        }
        if let Self::Order { lower, higher, .. } = self {
            filters.extend([&**lower, &**higher]);
        }
        filters
    }
}

impl Claim {
    /// Whether it refers to cells that there are.
    pub(super) fn check(&self, campaign: &Campaign) -> Result<(), String> {
        self.checks()
            .chain(&self.shown)
            .try_for_each(|check| Self::check_one(check, campaign))
    }

    /// All parts that the verdict comes from.
    pub fn checks(&self) -> impl Iterator<Item = &Check> {
        std::iter::once(&self.check).chain(&self.also)
    }

    fn check_one(check: &Check, campaign: &Campaign) -> Result<(), String> {
        let Some(source) = check.source() else {
            return Ok(());
        };
        let grid = campaign
            .grid(&source.grid)
            .ok_or_else(|| format!("no grid is called `{}`", source.grid))?;
        if let Some((_, statistic)) = source.metric.split_once('.')
            && !STATISTICS.contains(&statistic)
        {
            return Err(format!(
                "no statistic is called `{statistic}`; there are {}",
                STATISTICS.join(", ")
            ));
        }
        if let Some(name) = source
            .transports
            .iter()
            .find(|name| !is_foreign(name) && !grid.transports.contains(name))
        {
            return Err(format!("grid `{}` has no transport `{name}`", grid.name));
        }
        for filter in check.filters() {
            for axis in Axis::ALL {
                if let Some(value) = filter.value(axis)
                    && !grid.values(axis).contains(&value)
                    // Other brokers and devices are named when a campaign is started.
                    && !is_foreign(&value)
                {
                    return Err(format!(
                        "grid `{}` has no {} `{value}`",
                        grid.name,
                        axis.title()
                    ));
                }
            }
        }
        if let Check::Trend {
            along,
            from: Some(from),
            ..
        } = check
            && !grid.values(*along).contains(from)
        {
            return Err(format!("{} does not start from `{from}`", along.title()));
        }
        if let Check::Value {
            source,
            each,
            least,
            most,
            ..
        } = check
        {
            if least.is_empty() && most.is_empty() {
                return Err("a value without `least` and `most` agrees with everything".into());
            }
            let count = |axis: &Axis| match axis {
                Axis::Transport if !source.transports.is_empty() => source.transports.len(),
                axis => grid.values(*axis).len(),
            };
            let cells: usize = each.iter().map(count).product();
            for bounds in [least, most, &source.minus] {
                if !matches!(bounds.len(), 0 | 1) && bounds.len() != cells {
                    return Err(format!("{} bounds for {cells} cells", bounds.len()));
                }
            }
        }
        Ok(())
    }
}
