//! A campaign's figures, drawn from its samples.

use crate::campaign::{Axis, Campaign, Figure, Filter, Form, Transport};
use crate::measure::Sample;

use super::plot::{Content, Look, Mark, Panel, Picture, Quantiles};
use super::values::{Table, at};

/// Most series of a panel; more are divided among several.
const MAX_SERIES: usize = 8;
/// Words for metrics at the vertical axis. A name that is not here stands for itself.
const NAMES: [(&str, &str); 32] = [
    ("air_rate_mbit_s", "rate of the frames"),
    ("allocated_besides_bytes", "allocated, without the largest"),
    ("allocated_bytes", "allocated"),
    ("arrived_ratio", "messages that arrived"),
    ("board_w", "power of the board"),
    ("broker_cpu_s", "CPU time of the broker"),
    ("bytes", "volume"),
    ("bytes_per_message", "bytes of a message"),
    ("delay_ms", "one-way delay"),
    ("device_cpu_s", "CPU time of the device"),
    ("first_data_ms", "time to the first data"),
    ("first_data_new_ms", "time to the first data"),
    ("first_data_again_ms", "time to the first data"),
    ("flow", "bytes of the connection"),
    ("message_bytes", "bytes of a message"),
    ("message_edrx_j", "energy of a message with eDRX"),
    ("message_j", "energy of a message"),
    ("message_rai_j", "energy of a message released early"),
    ("packets", "packets"),
    ("packets_per_s", "packets a second"),
    ("radio_j", "energy of the radio"),
    ("recovered_ms", "time to the new connection"),
    ("round_trip_ms", "round trip of a message"),
    ("rtt_ms", "estimated round trip"),
    ("sent_after_ms", "time to the hand-over"),
    ("settled_s", "time until all is settled"),
    ("startup_first_ms", "time to the connection"),
    ("startup_ms", "time to the connection"),
    ("throughput_kbit_s", "throughput"),
    ("total_s", "total time"),
    ("transfer_s", "time to the last arrival"),
    ("work_bytes", "volume of the messages"),
];

/// A figure that is drawn.
#[derive(Clone, Debug)]
pub struct Drawing {
    /// The figure's number.
    pub id: String,
    /// Its title.
    pub title: String,
    /// The picture.
    pub svg: String,
    /// Whether it opens a report of several campaigns.
    pub is_opening: bool,
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
            is_opening: figure.opening,
        })
        .collect()
}

fn draw(campaign: &Campaign, figure: &Figure, table: &Table<'_>) -> Picture {
    let series = series(figure, table);
    let groups: Vec<&[String]> = series.chunks(MAX_SERIES).collect();
    let mut cells: Vec<Vec<(Axis, String)>> =
        table.cells(&figure.grid, figure.panels.as_slice(), &figure.only);
    if figure.form == Form::Congestion {
        cells.retain(|cell| has_flows(campaign, cell));
    }
    let mut panels = Vec::new();
    for cell in &cells {
        for (index, group) in groups.iter().enumerate() {
            let mut title: Vec<String> = cell
                .iter()
                .map(|(axis, value)| label(campaign, *axis, value))
                .collect();
            if groups.len() > 1 {
                title.push(format!("part {} of {}", index + 1, groups.len()));
            }
            let filter = at(&figure.only, cell);
            panels.push(Panel {
                title: title.join(", "),
                content: content(
                    campaign,
                    figure,
                    table,
                    &filter,
                    (group, index * MAX_SERIES),
                ),
            });
        }
    }
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
        y_title: y_title(figure),
        x_title: match figure.form {
            Form::Timeline => "seconds since the first message".into(),
            Form::Congestion => "seconds since the start".into(),
            _ => figure.x.title().into(),
        },
        log: figure.log,
        // Compared panels must be comparable.
        same_scale: figure.ratio.is_some()
            || figure.panels == Some(Axis::Transport)
            || groups.len() > 1,
        series: names,
        panels,
    }
}

/// The title of the vertical axis: the quantity and its unit.
fn y_title(figure: &Figure) -> String {
    let (metric, statistic) = figure
        .metric
        .split_once('.')
        .unwrap_or((&figure.metric, ""));
    let name = NAMES
        .iter()
        .find(|(known, _)| *known == metric)
        .map_or(metric, |(_, name)| name);
    let name = match (statistic, figure.form) {
        ("mean", _) | ("", Form::Bars | Form::Lines) => format!("mean {name}"),
        ("rsd", _) => format!("variation of the {name}"),
        ("", _) => name.to_owned(),
        (statistic, _) => format!("{statistic} of the {name}"),
    };
    if name.ends_with(&figure.unit) {
        return name;
    }
    format!("{name}, {}", figure.unit)
}

/// The series, each with a colour of its own. If they equal the panels or categories, there is one.
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
    (series, first): (&[String], usize),
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
        // Series of other panels keep their colours.
        let mut lines = vec![Vec::new(); first];
        lines.extend(
            series
                .iter()
                .map(|value| timeline(figure, table, &with_series(value))),
        );
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
        first,
    }
}

fn mark(figure: &Figure, table: &Table<'_>, filter: &Filter) -> Option<Mark> {
    if let Some([of, against]) = &figure.ratio {
        let ratios = ratios(figure, table, filter, of, against);
        let both = [of, against].map(|name| filter.with(Axis::Transport, name));
        let mean = table.ratio(&figure.grid, &both, &figure.metric);
        return Quantiles::of(&ratios).map(|ratios| Mark::Box(ratios, mean));
    }
    match figure.form {
        Form::Box => {
            let values = table.pooled(&figure.grid, filter, &figure.metric);
            let mean = table.estimate(&figure.grid, filter, &figure.metric);
            Quantiles::of(&values).map(|values| Mark::Box(values, mean))
        }
        // A bar begins at zero, which a logarithmic axis does not have.
        Form::Bars if !figure.log => table
            .estimate(&figure.grid, filter, &figure.metric)
            .map(Mark::Bar),
        Form::Bars | Form::Lines | Form::Timeline | Form::Congestion => table
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

/// A connection's curves in a congestion plot, and their names.
const FLOWS: [(&str, &str); 5] = [
    ("flow_window_bytes", "window"),
    ("flow_in_flight_bytes", "in flight"),
    ("flow_sent_bytes", "sent"),
    ("flow_acknowledged_bytes", "acknowledged"),
    ("flow_lost_bytes", "lost"),
];

/// The other end's curve in a congestion plot. If it stands still while bytes are acknowledged,
/// messages waited for missing bytes.
const ARRIVED: &str = "messages arrived";

/// Whether a device can tell these curves of its connections: those of TCP are the kernel's.
fn has_flows(campaign: &Campaign, cell: &[(Axis, String)]) -> bool {
    cell.iter()
        .filter(|(axis, _)| *axis == Axis::Transport)
        .filter_map(|(_, name)| campaign.transport(name))
        .all(Transport::is_quic)
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::CAMPAIGNS;

    /// A reader of a picture does not know the columns of the samples.
    #[test]
    fn vertical_axes_of_built_in_campaigns_have_words() {
        for (name, text) in CAMPAIGNS {
            for figure in Campaign::parse(text).unwrap().figures {
                let title = y_title(&figure);
                assert!(!title.contains('_'), "{name} {}: {title}", figure.id);
            }
        }
    }
}
