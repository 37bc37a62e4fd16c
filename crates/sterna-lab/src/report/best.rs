//! Each transport at its best: of all ways to use TCP the fastest, and the same of QUIC.

use crate::campaign::{Axis, Best, Campaign, Filter, Source};

use super::numbers::with_interval;
use super::statistics::Estimate;
use super::values::{Cell, Table, Term, Terms};

/// A row of the table.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// The comparison's title and its cell.
    pub(super) what: String,
    /// TCP's best way, by its label.
    pub(super) tcp: String,
    pub(super) tcp_value: String,
    /// QUIC's.
    pub(super) quic: String,
    pub(super) quic_value: String,
    /// QUIC's value by TCP's.
    pub(super) ratio: String,
}

/// The rows of a campaign.
pub(super) fn lines(campaign: &Campaign, table: &Table<'_>) -> Vec<Line> {
    let mut lines = Vec::new();
    for best in &campaign.bests {
        for cell in table.cells(&best.grid, &best.each, &Filter::default()) {
            lines.extend(line(campaign, table, best, &cell));
        }
    }
    lines
}

fn line(campaign: &Campaign, table: &Table<'_>, best: &Best, cell: &Cell) -> Option<Line> {
    let (tcp, tcp_term, tcp_value) = lowest(table, best, cell, &best.tcp)?;
    let (quic, quic_term, quic_value) = lowest(table, best, cell, &best.quic)?;
    let terms = [quic_term, tcp_term];
    let ratio = Terms::of(&terms)?.estimate(|values| values[0] / values[1])?;
    let label = |name: &str| {
        campaign
            .transport(name)
            .map_or_else(|| name.to_owned(), |transport| transport.label.clone())
    };
    let place: Vec<&str> = cell.iter().map(|(_, value)| value.as_str()).collect();
    let shown = |estimate: &Estimate| format!("{} {}", with_interval(estimate), best.unit);
    Some(Line {
        what: named(&best.title, &place),
        tcp: label(tcp),
        tcp_value: shown(&tcp_value),
        quic: label(quic),
        quic_value: shown(&quic_value),
        ratio: with_interval(&ratio),
    })
}

/// The title and the place of a cell, which a table without axes lacks.
fn named(title: &str, place: &[&str]) -> String {
    if place.is_empty() {
        title.to_owned()
    } else {
        format!("{title}: {}", place.join(", "))
    }
}

/// The transport with the lowest value.
fn lowest<'a>(
    table: &Table<'_>,
    best: &Best,
    cell: &Cell,
    transports: &'a [String],
) -> Option<(&'a str, Term, Estimate)> {
    let of = |name: &'a String| {
        let source = Source::of(&best.grid, &best.metric);
        let mut whole = cell.clone();
        whole.push((Axis::Transport, name.clone()));
        let term = table.term(&source, &whole, 0)?;
        let estimate = Terms::of(std::slice::from_ref(&term))?.estimate(|values| values[0])?;
        Some((name.as_str(), term, estimate))
    };
    transports
        .iter()
        .filter_map(of)
        .min_by(|one, other| one.2.value.total_cmp(&other.2.value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_without_a_cell_ends_with_its_title() {
        assert_eq!(named("one message", &[]), "one message");
        assert_eq!(named("one message", &["lte", "5%"]), "one message: lte, 5%");
    }
}
