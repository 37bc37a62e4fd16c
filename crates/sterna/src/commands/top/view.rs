//! The picture on a terminal.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table};

use super::model::{Picture, Sort};

/// A terminal of fewer columns has no room for clients' addresses.
const WIDE: u16 = 100;

/// The lower part of the screen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tab {
    Clients,
    Queues,
}

/// The choices by keys, and the broker's place.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) tab: Tab,
    pub(super) sort: Sort,
    /// Entries above the screen.
    pub(super) scroll: usize,
    /// The broker, and why the last look at it failed.
    pub(super) place: String,
    pub(super) failure: Option<String>,
}

/// A count with a unit of thousands.
pub(super) fn short(value: f64) -> String {
    let units = ["", "k", "M", "G", "T"];
    let (mut value, mut unit) = (value, 0);
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}{}", units[unit])
    }
}

fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    if days > 0 {
        format!("{days}d {hours}h")
    } else if hours > 0 {
        format!("{hours}h {minutes}min")
    } else {
        format!("{minutes}min {}s", seconds % 60)
    }
}

/// Draws all of it.
pub(super) fn draw(frame: &mut Frame<'_>, picture: &Picture, choice: &Choice) {
    let parts = [
        Constraint::Length(4),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ];
    let [head, title, list, foot] = Layout::vertical(parts).areas(frame.area());
    draw_head(frame, head, picture, choice);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let heading = match choice.tab {
        Tab::Clients => {
            let more = if picture.has_more { "+" } else { "" };
            let silent = picture.unanswered.join(", ");
            let silent = if silent.is_empty() {
                silent
            } else {
                format!(", no answer from {silent}")
            };
            format!(
                "Clients ({}{more}) by {}{silent}",
                picture.clients.len(),
                choice.sort.name()
            )
        }
        Tab::Queues => format!("Queues ({})", picture.queues.len()),
    };
    frame.render_widget(Paragraph::new(heading).style(bold), title);
    match choice.tab {
        Tab::Clients => draw_clients(frame, list, picture, choice.scroll),
        Tab::Queues => draw_queues(frame, list, picture, choice.scroll),
    }
    let keys = "r round trip  l loss  q queue  b bytes  m messages   Tab queues  up/down  x end";
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    frame.render_widget(Paragraph::new(keys).style(reversed), foot);
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, picture: &Picture, choice: &Choice) {
    let (place, version) = (&choice.place, &picture.version);
    let up = duration(picture.uptime_s);
    let node = picture.node.iter().map(|node| format!("  rates of {node}"));
    let node: String = node.collect();
    let healthy = || format!("{place}  Sterna {version}  up {up}{node}");
    let failed = |failure: &String| format!("{place}  {failure}");
    let first = (choice.failure.as_ref()).map_or_else(healthy, failed);
    let lines = vec![
        Line::from(first),
        Line::from(format!(
            "messages/s in {}  out {}  dropped {}   bytes/s in {}  out {}",
            short(picture.messages_received),
            short(picture.messages_sent),
            short(picture.messages_dropped),
            short(picture.bytes_received),
            short(picture.bytes_sent),
        )),
        Line::from(format!(
            "clients {} connected, {} away   queued {}   retained {}   memory {}B   CPU {:.0} %",
            picture.clients_connected,
            picture.clients_disconnected,
            picture.queued_messages,
            picture.retained_messages,
            short(picture.resident_bytes as f64),
            picture.cpu_percent,
        )),
    ];
    frame.render_widget(Paragraph::new(lines), area);
}

fn table<'a>(heads: &[&'static str], rows: Vec<Vec<String>>, widths: &[Constraint]) -> Table<'a> {
    let head = Row::new(heads.iter().copied()).style(Style::new().add_modifier(Modifier::DIM));
    Table::new(rows.into_iter().map(Row::new), widths.to_vec()).header(head)
}

fn draw_clients(frame: &mut Frame<'_>, area: Rect, picture: &Picture, scroll: usize) {
    let clients = picture
        .clients
        .iter()
        .skip(scroll)
        .take(usize::from(area.height));
    let is_wide = area.width >= WIDE;
    let has_nodes = picture.clients.iter().any(|client| client.node.is_some());
    let rows = clients.map(|client| {
        let peer = is_wide.then(|| client.peer.clone());
        let node = has_nodes.then(|| client.node.clone().unwrap_or_default());
        let names = node
            .into_iter()
            .chain([client.name.clone(), client.protocol.clone()]);
        let figures = [
            format!("{:.1}", client.rtt_us as f64 / 1000.0),
            format!("{:.2}", client.loss_ppm as f64 / 10_000.0),
            client
                .pending
                .map_or_else(|| "?".to_owned(), |pending| short(pending as f64)),
            short(client.in_flight as f64),
            short(client.received_bytes),
            short(client.sent_bytes),
            short(client.messages),
        ];
        names.chain(peer).chain(figures).collect()
    });
    let mut columns = vec![
        ("NODE", Constraint::Length(8)),
        ("NAME", Constraint::Min(12)),
        ("PROTO", Constraint::Length(5)),
        ("PEER", Constraint::Length(21)),
        ("RTT ms", Constraint::Length(7)),
        ("LOSS %", Constraint::Length(6)),
        ("QUEUE", Constraint::Length(6)),
        ("FLIGHT", Constraint::Length(6)),
        ("IN B/s", Constraint::Length(7)),
        ("OUT B/s", Constraint::Length(7)),
        ("MSG/s", Constraint::Length(6)),
    ];
    columns.retain(|(head, _)| match *head {
        "NODE" => has_nodes,
        "PEER" => is_wide,
        _ => true,
    });
    let (heads, widths): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
    frame.render_widget(table(&heads, rows.collect(), &widths), area);
}

fn draw_queues(frame: &mut Frame<'_>, area: Rect, picture: &Picture, scroll: usize) {
    let queues = picture
        .queues
        .iter()
        .skip(scroll)
        .take(usize::from(area.height));
    let rows = queues.map(|queue| {
        vec![
            queue.name.clone(),
            short(queue.messages as f64),
            short(queue.delayed as f64),
            short(queue.bytes as f64),
            queue.consumers.to_string(),
        ]
    });
    let heads = ["NAME", "MESSAGES", "DELAYED", "BYTES", "CONSUMERS"];
    let widths = [
        Constraint::Min(20),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(9),
    ];
    frame.render_widget(table(&heads, rows.collect(), &widths), area);
}
