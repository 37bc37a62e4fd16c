//! Medians, ratios and verdicts, and the table that shows them.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::cells::{Cell, Figure, Transport};

/// Result of one run of one cell for one broker.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) figure: f64,
    pub(super) rate_per_s: Option<f64>,
    pub(super) latency_us: Option<(f64, f64)>,
    pub(super) lost: u64,
    /// Memory of the broker with ten connections, where the cell is about memory.
    pub(super) resident_kib: Option<f64>,
}

impl Run {
    /// Reads the line that `sterna bench --json` printed.
    pub(super) fn read(cell: &Cell, line: &Value) -> Option<Self> {
        let latency = &line["latency_us"];
        Some(Self {
            figure: line[cell.figure.key()].as_f64()?,
            rate_per_s: line["rate_per_s"].as_f64(),
            latency_us: latency["p50"].as_f64().zip(latency["p99"].as_f64()),
            lost: line["lost"]
                .as_u64()
                .or_else(|| line["failed"].as_u64())
                .unwrap_or(0),
            resident_kib: line["resident_kib"].as_f64(),
        })
    }
}

/// All runs of one cell on one transport.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) cell: Cell,
    pub(super) transport: Transport,
    pub(super) runs: Vec<Run>,
    /// Of the peer, in the same order.
    pub(super) peer: Vec<Run>,
    /// Why there is no figure.
    pub(super) failure: Option<String>,
}

/// Whether a goal was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Met,
    Missed,
    Failed,
    /// There is no goal.
    Open,
}

impl Verdict {
    const fn word(self) -> &'static str {
        match self {
            Self::Met => "ok",
            Self::Missed => "MISSED",
            Self::Failed => "FAILED",
            Self::Open => "",
        }
    }
}

impl Row {
    pub(super) fn median(&self) -> Option<f64> {
        median(self.runs.iter().map(|run| run.figure))
    }

    /// Memory of the broker before the connections that were counted.
    pub(super) fn resident_kib(&self) -> Option<f64> {
        median(self.runs.iter().filter_map(|run| run.resident_kib))
    }

    /// Own figure over the peer's, the median over the pairs of runs.
    fn ratio(&self) -> Option<f64> {
        median(
            self.runs
                .iter()
                .zip(&self.peer)
                .map(|(own, peer)| own.figure / peer.figure),
        )
    }

    pub(super) fn verdict(&self) -> Verdict {
        let Some(median) = self.median() else {
            return Verdict::Failed;
        };
        match self.cell.goal(self.transport) {
            _ if self.runs.iter().any(|run| run.lost > 0) => Verdict::Failed,
            None => Verdict::Open,
            Some(goal) if median <= goal => Verdict::Met,
            Some(_) => Verdict::Missed,
        }
    }

    pub(super) fn json(&self) -> Value {
        let figures = |runs: &[Run]| runs.iter().map(|run| run.figure).collect::<Vec<_>>();
        json!({
            "summary": self.cell.name,
            "transport": self.transport.name(),
            "unit": self.cell.figure.unit(),
            "median": self.median(),
            "runs": figures(&self.runs),
            "rate_per_s": median(self.runs.iter().filter_map(|run| run.rate_per_s)),
            "goal": self.cell.goal(self.transport),
            "aim": self.cell.aim(self.transport),
            "verdict": self.verdict().word(),
            "peer_median": median(self.peer.iter().map(|run| run.figure)),
            "peer_runs": figures(&self.peer),
            "ratio": self.ratio(),
            "failure": self.failure,
        })
    }
}

/// The middle one; between the middle two where their number is even.
pub(super) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

/// The table in Markdown, its columns aligned for those who read it as it is.
pub(super) fn render(rows: &[Row], peer: Option<&str>) -> String {
    let mut head = vec![
        "transport",
        "workload",
        "median",
        "least..most",
        "per second",
        "p50/p99 us",
    ];
    head.extend(["goal", "verdict", "aim"]);
    if let Some(peer) = peer {
        head.extend([peer, "ratio"]);
    }
    let mut lines: Vec<Vec<String>> = vec![head.into_iter().map(str::to_owned).collect()];
    for row in rows {
        let unit = row.cell.figure;
        let bound = |value: Option<f64>| value.map_or_else(String::new, |v| shown(v, unit));
        let mut line = vec![row.transport.name().to_owned(), row.cell.name.to_owned()];
        let figures = || row.runs.iter().map(|run| run.figure);
        match row.median() {
            Some(median) => {
                line.push(format!("{} {}", shown(median, unit), unit.unit()));
                let (least, most) =
                    figures().fold((f64::MAX, 0.0_f64), |(a, b), v| (a.min(v), b.max(v)));
                line.push(format!("{}..{}", shown(least, unit), shown(most, unit)));
            }
            None => line.extend(["-".to_owned(), String::new()]),
        }
        let rate = median(row.runs.iter().filter_map(|run| run.rate_per_s));
        line.push(rate.map_or_else(String::new, |rate| format!("{rate:.0}")));
        let low = median(row.runs.iter().filter_map(|run| Some(run.latency_us?.0)));
        let high = median(row.runs.iter().filter_map(|run| Some(run.latency_us?.1)));
        line.push(
            low.zip(high)
                .map_or_else(String::new, |(low, high)| format!("{low:.0}/{high:.0}")),
        );
        line.push(bound(row.cell.goal(row.transport)));
        line.push(row.verdict().word().to_owned());
        line.push(bound(row.cell.aim(row.transport)));
        if peer.is_some() {
            line.push(bound(median(row.peer.iter().map(|run| run.figure))));
            line.push(
                row.ratio()
                    .map_or_else(String::new, |ratio| format!("{ratio:.2}")),
            );
        }
        lines.push(line);
    }
    aligned(&lines, &[0, 1, 7])
}

fn shown(value: f64, unit: Figure) -> String {
    match unit {
        Figure::Bytes => format!("{value:.0}"),
        Figure::Cpu if value >= 100.0 => format!("{value:.0}"),
        Figure::Cpu if value >= 10.0 => format!("{value:.1}"),
        Figure::Cpu => format!("{value:.2}"),
    }
}

/// A table in Markdown whose first line is the head. These columns hold words, and are aligned to the
/// left; numbers are aligned to the right.
pub(super) fn aligned(lines: &[Vec<String>], words: &[usize]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| {
        lines
            .iter()
            .map(|line| line[column].chars().count())
            .max()
            .unwrap_or(0)
            .max(3)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
            let _ = if words.contains(&column) {
                write!(text, "| {cell:<width$} ")
            } else {
                write!(text, "| {cell:>width$} ")
            };
        }
        text.push_str("|\n");
        if index == 0 {
            for (column, &width) in widths.iter().enumerate() {
                let rule = "-".repeat(width);
                let _ = if words.contains(&column) {
                    write!(text, "| {rule} ")
                } else {
                    write!(text, "| {}: ", &rule[1..])
                };
            }
            text.push_str("|\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::cells::CELLS;

    fn run(figure: f64) -> Run {
        Run {
            figure,
            rate_per_s: Some(1000.0),
            latency_us: Some((10.0, 99.0)),
            lost: 0,
            resident_kib: None,
        }
    }

    fn row(figures: &[f64]) -> Row {
        let cell = *CELLS
            .iter()
            .find(|cell| cell.name == "QoS 0, window 16")
            .unwrap();
        Row {
            cell,
            transport: Transport::Tcp,
            runs: figures.iter().map(|figure| run(*figure)).collect(),
            peer: figures.iter().map(|figure| run(figure * 4.0)).collect(),
            failure: None,
        }
    }

    #[test]
    fn the_median_is_judged() {
        assert_eq!(row(&[9.0, 0.9, 0.8]).verdict(), Verdict::Met);
        assert_eq!(row(&[0.9, 1.1, 1.2]).verdict(), Verdict::Missed);
        assert_eq!(row(&[]).verdict(), Verdict::Failed);
        let mut lossy = row(&[0.5]);
        lossy.runs[0].lost = 1;
        assert_eq!(lossy.verdict(), Verdict::Failed);
        assert_eq!(row(&[1.0, 2.0]).median(), Some(1.5));
    }

    #[test]
    fn the_table_is_markdown() {
        let text = render(&[row(&[0.5, 0.7, 0.6])], Some("mosquitto"));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(
            lines.iter().all(|line| line.len() == lines[0].len()),
            "{text}"
        );
        assert!(
            lines[2].contains("0.60 us") && lines[2].contains("0.25"),
            "{text}"
        );
    }
}
