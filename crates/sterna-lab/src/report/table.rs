//! Samples as tables of columns, for programs that read tables.

use std::collections::BTreeSet;

use crate::campaign::Axis;
use crate::measure::{Sample, Verdict};

/// A column. Each has as many values as its table has rows.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) values: Values,
}

/// The values of a column.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Values {
    Text(Vec<String>),
    Whole(Vec<u64>),
    Number(Vec<Option<f64>>),
}

/// One row a sample, one column a metric.
pub(super) fn runs(samples: &[Sample]) -> Vec<Column> {
    let text = |name: &str, of: &dyn Fn(&Sample) -> String| Column {
        name: name.to_owned(),
        values: Values::Text(samples.iter().map(of).collect()),
    };
    let whole = |name: &str, of: &dyn Fn(&Sample) -> u64| Column {
        name: name.to_owned(),
        values: Values::Whole(samples.iter().map(of).collect()),
    };
    let in_force = |name: &'static str| {
        move |sample: &Sample| sample.in_force.get(name).cloned().unwrap_or_default()
    };
    let mut columns = vec![
        text("grid", &|sample| sample.grid.clone()),
        text("link", &|sample| sample.value(Axis::Link)),
        text("loss", &|sample| sample.value(Axis::Loss)),
        text("delay", &|sample| sample.value(Axis::Delay)),
        text("rate", &|sample| sample.value(Axis::Rate)),
        text("transport", &|sample| sample.value(Axis::Transport)),
        whole("qos", &|sample| sample.qos.into()),
        whole("payload_bytes", &|sample| sample.payload_bytes.into()),
        text("interval", &|sample| sample.interval.clone()),
        whole("messages", &|sample| sample.messages.into()),
        whole("repetition", &|sample| sample.repetition.into()),
        whole("seed", &|sample| sample.seed),
        whole("attempts", &|sample| sample.attempts.into()),
        text("emulator", &|sample| sample.emulator.clone()),
        whole("began_s", &|sample| sample.began_s),
        text("tls", &in_force("tls")),
        text("congestion", &in_force("congestion")),
        text("verdict", &|sample| verdict(sample).0.to_owned()),
        text("reason", &|sample| verdict(sample).1),
    ];
    let metrics: BTreeSet<&String> = samples.iter().flat_map(|s| s.metrics.keys()).collect();
    columns.extend(metrics.into_iter().map(|metric| {
        Column {
            name: metric.clone(),
            values: Values::Number(
                samples
                    .iter()
                    .map(|s| s.metrics.get(metric).copied())
                    .collect(),
            ),
        }
    }));
    columns
}

/// One row for each value of each series: the run's row in [`runs`], the series, the place in it, the
/// value.
pub(super) fn values(samples: &[Sample]) -> Vec<Column> {
    let (mut run, mut series, mut place, mut value) = (vec![], vec![], vec![], vec![]);
    for (index, sample) in samples.iter().enumerate() {
        for (name, values) in &sample.series {
            for (at, one) in values.iter().enumerate() {
                run.push(index as u64);
                series.push(name.clone());
                place.push(at as u64);
                value.push(Some(*one));
            }
        }
    }
    [
        ("run", Values::Whole(run)),
        ("series", Values::Text(series)),
        ("place", Values::Whole(place)),
        ("value", Values::Number(value)),
    ]
    .into_iter()
    .map(|(name, values)| Column {
        name: name.to_owned(),
        values,
    })
    .collect()
}

fn verdict(sample: &Sample) -> (&'static str, String) {
    match &sample.verdict {
        Verdict::Sound => ("sound", String::new()),
        Verdict::Unsound { reasons } => ("unsound", reasons.join("; ")),
        Verdict::Incomplete { reason } => ("incomplete", reason.clone()),
        Verdict::Failed { reason } => ("failed", reason.clone()),
    }
}
