//! The output of the demonstration: a live table on a terminal, lines elsewhere.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use crossterm::style::Stylize as _;
use crossterm::{cursor, execute, terminal};
use hdrhistogram::Histogram;

/// Values of each topic that make up its trend.
const TREND: usize = 24;
/// Most topics that are remembered; further ones are not shown.
const MAX_TOPICS: usize = 1_000;
/// Longest delay that is told apart, in microseconds.
const MAX_DELAY_US: u64 = 60_000_000;

/// A message of one of the demonstration's devices.
#[derive(Clone, Debug)]
pub(super) struct Arrival<'a> {
    pub(super) topic: &'a str,
    pub(super) value: f64,
    pub(super) unit: &'a str,
    /// The device's transport, as an index into the names of [`Board::new`].
    pub(super) transport: usize,
    pub(super) delay: Duration,
}

struct Row {
    value: f64,
    unit: String,
    transport: usize,
    messages: u64,
    trend: VecDeque<f64>,
}

struct Transport {
    name: String,
    delays_us: Histogram<u64>,
    messages: u64,
    /// Messages in the current second, and in the one before.
    this_second: u64,
    last_second: u64,
}

/// Everything that has arrived, counted.
pub(super) struct Board {
    rows: BTreeMap<String, Row>,
    transports: Vec<Transport>,
    started: Instant,
    second: u64,
    pub(super) notice: String,
}

impl Board {
    /// An empty board for these transports.
    pub(super) fn new(transports: &[String], started: Instant) -> Result<Self, String> {
        let transports = transports
            .iter()
            .map(|name| {
                let delays_us = Histogram::new_with_bounds(1, MAX_DELAY_US, 3);
                Ok(Transport {
                    name: name.clone(),
                    delays_us: delays_us.map_err(|error| error.to_string())?,
                    messages: 0,
                    this_second: 0,
                    last_second: 0,
                })
            })
            .collect::<Result<_, String>>()?;
        Ok(Self {
            rows: BTreeMap::new(),
            transports,
            started,
            second: 0,
            notice: String::new(),
        })
    }

    /// Counts a message.
    pub(super) fn arrived(&mut self, arrival: &Arrival<'_>) {
        let Some(transport) = self.transports.get_mut(arrival.transport) else {
            return;
        };
        let delay_us = u64::try_from(arrival.delay.as_micros()).unwrap_or(MAX_DELAY_US);
        transport.delays_us.saturating_record(delay_us.max(1));
        transport.messages += 1;
        transport.this_second += 1;
        if self.rows.len() >= MAX_TOPICS && !self.rows.contains_key(arrival.topic) {
            return;
        }
        let row = self
            .rows
            .entry(arrival.topic.to_owned())
            .or_insert_with(|| Row {
                value: 0.0,
                unit: arrival.unit.to_owned(),
                transport: arrival.transport,
                messages: 0,
                trend: VecDeque::with_capacity(TREND),
            });
        row.value = arrival.value;
        row.messages += 1;
        if row.trend.len() == TREND {
            row.trend.pop_front();
        }
        row.trend.push_back(arrival.value);
    }

    /// Messages by transport.
    #[cfg(test)]
    pub(super) fn messages(&self) -> Vec<u64> {
        self.transports
            .iter()
            .map(|transport| transport.messages)
            .collect()
    }

    /// Starts a new second when it is time; true when it did.
    pub(super) fn tick(&mut self) -> bool {
        let second = self.started.elapsed().as_secs();
        if second == self.second {
            return false;
        }
        self.second = second;
        for transport in &mut self.transports {
            transport.last_second = std::mem::take(&mut transport.this_second);
        }
        true
    }

    /// One line about the last second, for output that is no terminal.
    pub(super) fn line(&self) -> String {
        let mut line = format!("{:>5} s", self.second);
        for transport in &self.transports {
            let _ = write!(
                line,
                "   {}: {} messages/s, delay p50 {} p99 {}",
                transport.name,
                transport.last_second,
                milliseconds(transport.delays_us.value_at_quantile(0.5)),
                milliseconds(transport.delays_us.value_at_quantile(0.99)),
            );
        }
        line
    }

    /// All topics and the sums, as plain lines.
    pub(super) fn summary(&self) -> Vec<String> {
        let width = self.topic_width();
        let mut lines: Vec<_> = self
            .rows
            .iter()
            .map(|(topic, row)| {
                let name = &self.transports[row.transport].name;
                format!(
                    "{topic:<width$} {:>12.2} {:<6} {name:<6} {:>8}",
                    row.value, row.unit, row.messages
                )
            })
            .collect();
        lines.push(String::new());
        lines.extend(self.sums());
        lines
    }

    fn topic_width(&self) -> usize {
        self.rows
            .keys()
            .map(|topic| topic.chars().count())
            .max()
            .unwrap_or(0)
            .max(5)
    }

    fn sums(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "{:<6} {:>10} {:>8} {:>12} {:>12} {:>12} {:>12}",
            "over", "messages", "per s", "delay p50", "p90", "p99", "longest"
        )];
        for transport in &self.transports {
            let delay = |quantile| milliseconds(transport.delays_us.value_at_quantile(quantile));
            lines.push(format!(
                "{:<6} {:>10} {:>8} {:>12} {:>12} {:>12} {:>12}",
                transport.name,
                transport.messages,
                transport.last_second,
                delay(0.5),
                delay(0.9),
                delay(0.99),
                milliseconds(transport.delays_us.max()),
            ));
        }
        lines
    }

    /// The whole screen: a table as high as there is room for, the sums below it.
    fn screen(&self, columns: usize, lines: usize, title: &str, colour: bool) -> Vec<String> {
        let paint = |text: String, style: fn(String) -> String| {
            if colour { style(text) } else { text }
        };
        let fit = |text: String| text.chars().take(columns).collect::<String>();
        let sums = self.sums();
        let width = self.topic_width().min(columns.saturating_sub(60).max(20));
        let mut screen = vec![
            paint(fit(title.to_owned()), |text| text.bold().to_string()),
            String::new(),
            paint(
                fit(format!(
                    "{:<width$} {:>12} {:<6} {:<6} {:>8}  trend",
                    "topic", "value", "", "over", "messages"
                )),
                |text| text.dim().to_string(),
            ),
        ];
        let room = lines.saturating_sub(screen.len() + sums.len() + 3);
        for (topic, row) in self.rows.iter().take(room) {
            let topic: String = topic.chars().take(width).collect();
            let name = &self.transports[row.transport].name;
            let left = format!(
                "{topic:<width$} {:>12.2} {:<6} {name:<6} {:>8}  ",
                row.value, row.unit, row.messages
            );
            let trend: String = fit(format!("{left}{}", trend(&row.trend)))
                .chars()
                .skip(left.chars().count())
                .collect();
            screen.push(fit(left) + &paint(trend, |text| text.cyan().to_string()));
        }
        if self.rows.len() > room {
            screen.push(fit(format!("and {} more topics", self.rows.len() - room)));
        }
        screen.push(String::new());
        let mut sums = sums.into_iter().map(fit);
        screen.extend(
            sums.next()
                .map(|head| paint(head, |text| text.dim().to_string())),
        );
        screen.extend(sums);
        screen.push(paint(fit(self.notice.clone()), |text| {
            text.yellow().to_string()
        }));
        screen
    }
}

fn milliseconds(us: u64) -> String {
    format!("{:.2} ms", us as f64 / 1000.0)
}

/// Values as small bars, from the least to the greatest.
fn trend(values: &VecDeque<f64>) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let (least, most) = values
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), value| {
            (a.min(*value), b.max(*value))
        });
    let span = most - least;
    values
        .iter()
        .map(|value| {
            let height = if span > 0.0 {
                (value - least) / span * 7.0
            } else {
                0.0
            };
            BARS[(0..7_u8)
                .filter(|level| f64::from(*level) + 0.5 <= height)
                .count()]
        })
        .collect()
}

/// The terminal while the table is on it. Its former content comes back at the end, also after a
/// panic.
pub(super) struct Screen {
    colour: bool,
}

impl Screen {
    /// Takes the terminal, if standard output is one.
    pub(super) fn take() -> io::Result<Option<Self>> {
        if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
            return Ok(None);
        }
        terminal::enable_raw_mode()?;
        // From here on the destructor undoes what was done.
        let screen = Self {
            colour: std::env::var_os("NO_COLOR").is_none(),
        };
        execute!(io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)?;
        Ok(Some(screen))
    }

    /// Draws the board.
    pub(super) fn draw(&self, board: &Board, title: &str) -> io::Result<()> {
        let (columns, lines) = terminal::size()?;
        let screen = board.screen(usize::from(columns), usize::from(lines), title, self.colour);
        let mut text = String::from("\x1b[H");
        for line in screen.iter().take(usize::from(lines)) {
            // Raw mode: the line end alone doesn't return the carriage.
            let _ = write!(text, "{line}\x1b[K\r\n");
        }
        text.truncate(text.len() - 2);
        text.push_str("\x1b[J");
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        stdout.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = execute!(io::stdout(), cursor::Show, terminal::LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board() -> Board {
        let names = ["QUIC".to_owned(), "TCP".to_owned()];
        let mut board = Board::new(&names, Instant::now()).unwrap();
        for (value, delay_ms) in [(1.0, 1), (2.0, 2), (8.0, 30)] {
            board.arrived(&Arrival {
                topic: "host/a/load",
                value,
                unit: "%",
                transport: 0,
                delay: Duration::from_millis(delay_ms),
            });
        }
        board
    }

    #[test]
    fn messages_are_counted_by_transport() {
        let board = board();
        assert_eq!(board.messages(), [3, 0]);
        let summary = board.summary();
        assert!(summary[0].starts_with("host/a/load"), "{}", summary[0]);
        assert!(summary[0].contains("8.00 %"), "{}", summary[0]);
        assert!(
            summary[3].starts_with("QUIC            3"),
            "{}",
            summary[3]
        );
        assert!(summary[3].contains("2.00 ms"), "{}", summary[3]);
        assert!(
            summary[4].starts_with("TCP             0"),
            "{}",
            summary[4]
        );
    }

    #[test]
    fn the_screen_fits() {
        for (columns, lines) in [(80, 24), (10, 3), (200, 60), (0, 0)] {
            let screen = board().screen(columns, lines, "Sterna", false);
            assert!(
                screen.iter().all(|line| line.chars().count() <= columns),
                "{screen:?}"
            );
        }
        let screen = board().screen(120, 24, "Sterna", false);
        assert!(
            screen.iter().any(|line| line.ends_with("▁▂█")),
            "{screen:?}"
        );
        assert!(!screen.concat().contains('\x1b'), "no colour, no escapes");
    }

    #[test]
    fn trends_have_a_least_and_a_greatest() {
        assert_eq!(trend(&VecDeque::from([5.0, 5.0])), "▁▁");
        assert_eq!(trend(&VecDeque::from([0.0, 7.0, 3.5])), "▁█▅");
        assert_eq!(trend(&VecDeque::new()), "");
    }
}
