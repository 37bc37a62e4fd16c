//! A campaign's figures, drawn from its samples.

use crate::campaign::{Axis, Campaign, Figure, Filter, Form};
use crate::measure::Sample;

use super::plot::{Content, Look, Mark, Panel, Picture, Quantiles};
use super::values::{Table, at};

/// A figure that is drawn.
#[derive(Clone, Debug)]
pub struct Drawing {
    /// The figure's number.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// The picture.
    pub svg: String,
}

/// Draws all figures of a campaign.
pub(super) fn draw_all(campaign: &Campaign, table: &Table<'_>) -> Vec<Drawing> {
    campaign
        .figures
        .iter()
        .map(|figure| Drawing {
            id: figure.id.clone(),
            title: figure.title.clone(),
            svg: draw(campaign, figure, table).svg(),
        })
        .collect()
}

fn draw(campaign: &Campaign, figure: &Figure, table: &Table<'_>) -> Picture {
    let series = series(figure, table);
    let panels: Vec<Vec<(Axis, String)>> =
        table.cells(&figure.grid, figure.panels.as_slice(), &figure.only);
    let panels = panels
        .iter()
        .map(|cell| Panel {
            title: cell
                .iter()
                .map(|(axis, value)| label(campaign, *axis, value))
                .collect::<Vec<_>>()
                .join(", "),
            content: content(campaign, figure, table, &at(&figure.only, cell), &series),
        })
        .collect();
    let names = if figure.ratio.is_some() {
        Vec::new()
    } else if figure.form == Form::Congestion {
        let names = FLOWS.iter().map(|(_, name)| *name);
        names.chain([ARRIVED]).map(str::to_owned).collect()
    } else {
        series
            .iter()
            .map(|value| label(campaign, figure.series, value))
            .collect()
    };
    Picture {
        title: format!("Figure {}: {}", figure.id, figure.title),
        unit: figure.unit.clone(),
        x_title: match figure.form {
            Form::Timeline => "seconds since the first message".into(),
            Form::Congestion => "seconds since the start".into(),
            _ => figure.x.title().into(),
        },
        log: figure.log,
        // What panels compare must be comparable.
        same_scale: figure.ratio.is_some() || figure.panels == Some(Axis::Transport),
        series: names,
        panels,
    }
}

/// What has a colour of its own. Where the series are what the panels or categories are, there is one.
fn series(figure: &Figure, table: &Table<'_>) -> Vec<String> {
    let is_elsewhere = figure.series == figure.x && figure.form != Form::Timeline
        || figure.panels == Some(figure.series);
    if is_elsewhere || figure.ratio.is_some() {
        return vec![String::new()];
    }
    match figure.only.value(figure.series) {
        Some(value) => vec![value],
        None => table
            .grid(&figure.grid)
            .map(|grid| grid.values(figure.series))
            .unwrap_or_default(),
    }
}

/// A value as people read it.
fn label(campaign: &Campaign, axis: Axis, value: &str) -> String {
    match axis {
        Axis::Transport => campaign
            .transport(value)
            .map_or_else(|| value.to_owned(), |transport| transport.label.clone()),
        Axis::Qos => format!("QoS {value}"),
        Axis::PayloadBytes => format!("{value} bytes"),
        _ => value.to_owned(),
    }
}

fn content(
    campaign: &Campaign,
    figure: &Figure,
    table: &Table<'_>,
    filter: &Filter,
    series: &[String],
) -> Content {
    let with_series = |value: &str| {
        if value.is_empty() {
            filter.clone()
        } else {
            filter.with(figure.series, value)
        }
    };
    if figure.form == Form::Congestion {
        return Content::OverTime(flows(figure, table, filter), Look::Stairs);
    }
    if figure.form == Form::Timeline {
        let lines = series
            .iter()
            .map(|value| timeline(figure, table, &with_series(value)))
            .collect();
        return Content::OverTime(lines, Look::Dots);
    }
    let cells = table.cells(&figure.grid, &[figure.x], filter);
    let marks = series
        .iter()
        .map(|value| {
            let filter = with_series(value);
            cells
                .iter()
                .map(|cell| mark(figure, table, &at(&filter, cell)))
                .collect()
        })
        .collect();
    let names = cells
        .iter()
        .flatten()
        .map(|(axis, value)| match axis {
            Axis::PayloadBytes => value.clone(),
            _ => label(campaign, *axis, value),
        })
        .collect();
    Content::Categories {
        names,
        marks,
        joined: figure.form == Form::Lines,
    }
}

fn mark(figure: &Figure, table: &Table<'_>, filter: &Filter) -> Option<Mark> {
    if let Some([of, against]) = &figure.ratio {
        let ratios = ratios(figure, table, filter, of, against);
        return Quantiles::of(&ratios).map(Mark::Box);
    }
    match figure.form {
        Form::Box => {
            let values = table.pooled(&figure.grid, filter, &figure.metric);
            Quantiles::of(&values).map(Mark::Box)
        }
        Form::Bars => table
            .estimate(&figure.grid, filter, &figure.metric)
            .map(Mark::Bar),
        Form::Lines | Form::Timeline | Form::Congestion => table
            .estimate(&figure.grid, filter, &figure.metric)
            .map(Mark::Point),
    }
}

/// Repetition by repetition: both met the same losses.
fn ratios(
    figure: &Figure,
    table: &Table<'_>,
    filter: &Filter,
    of: &str,
    against: &str,
) -> Vec<f64> {
    let of = filter.with(Axis::Transport, of);
    let against = filter.with(Axis::Transport, against);
    let metric = |sample: &Sample| sample.metrics.get(&figure.metric).copied();
    let mut ratios = Vec::new();
    for sample in table.samples(&figure.grid, &of) {
        let other = table
            .samples(&figure.grid, &against)
            .find(|other| other.repetition == sample.repetition);
        if let (Some(value), Some(other)) = (metric(sample), other.and_then(metric)) {
            ratios.push(value / other);
        }
    }
    ratios
}

/// What a congestion plot shows of a connection, and what it is called.
const FLOWS: [(&str, &str); 5] = [
    ("flow_window_bytes", "window"),
    ("flow_in_flight_bytes", "in flight"),
    ("flow_sent_bytes", "sent"),
    ("flow_acknowledged_bytes", "acknowledged"),
    ("flow_lost_bytes", "lost"),
];

/// What a congestion plot shows of the other end. Where it stands still while bytes are acknowledged,
/// messages waited for missing bytes.
const ARRIVED: &str = "messages arrived";

/// Congestion control of the first sound run that was watched, in kilobytes.
fn flows(figure: &Figure, table: &Table<'_>, filter: &Filter) -> Vec<Vec<(f64, f64)>> {
    let watched = table
        .samples(&figure.grid, filter)
        .find_map(|sample| Some((sample, sample.series.get("flow_at_ms")?)));
    let Some((sample, at_ms)) = watched else {
        return Vec::new();
    };
    let mut lines: Vec<Vec<(f64, f64)>> = FLOWS
        .iter()
        .map(|(series, _)| {
            let bytes = sample.series.get(*series).map_or(&[][..], Vec::as_slice);
            at_ms
                .iter()
                .zip(bytes)
                .map(|(at_ms, bytes)| (at_ms / 1e3, bytes / 1e3))
                .collect()
        })
        .collect();
    lines.push(arrivals(sample));
    lines
}

/// Kilobytes of messages that had arrived after each arrival.
fn arrivals(sample: &Sample) -> Vec<(f64, f64)> {
    let series = |name: &str| sample.series.get(name).map_or(&[][..], Vec::as_slice);
    let sent_at_ms = series("sent_at_ms").iter();
    let mut at_ms: Vec<f64> = sent_at_ms
        .zip(series("delay_ms"))
        .map(|(sent_at_ms, delay_ms)| sent_at_ms + delay_ms)
        .collect();
    at_ms.sort_by(f64::total_cmp);
    (1_u32..)
        .zip(at_ms)
        .map(|(count, at_ms)| {
            let bytes = f64::from(count) * f64::from(sample.payload_bytes);
            (at_ms / 1e3, bytes / 1e3)
        })
        .collect()
}

/// The messages of the first sound run: when they left, and the value of each.
fn timeline(figure: &Figure, table: &Table<'_>, filter: &Filter) -> Vec<(f64, f64)> {
    let Some(sample) = table.samples(&figure.grid, filter).next() else {
        return Vec::new();
    };
    let Some(values) = sample.series.get(&figure.metric) else {
        return Vec::new();
    };
    match sample.series.get("sent_at_ms") {
        Some(sent) => sent
            .iter()
            .map(|at_ms| at_ms / 1e3)
            .zip(values.iter().copied())
            .collect(),
        // Stop and wait: each leaves when the one before is back.
        None => values
            .iter()
            .scan(0.0, |at_ms, value| {
                let left_ms = *at_ms;
                *at_ms += value;
                Some((left_ms / 1e3, *value))
            })
            .collect(),
    }
}
