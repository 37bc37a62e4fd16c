//! Figures of the durable workloads, the goals, and the tables that show them.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::super::table::{aligned, median};

/// Bytes of the topics of all messages.
const TOPIC_BYTES: usize = 19;

/// The receivers of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Workload {
    /// Ten publishers to one durable subscriber that is connected.
    OnePresent,
    /// The same with more messages under way than a queue takes: the subscriber reads most of them back from the disk.
    OneBehind,
    /// One publisher to 1,000 of them.
    ManyPresent,
    /// Ten publishers to one session that is away.
    OneAway,
    /// The same to N sessions that are away, which share a filter.
    ManyAway,
    /// The same to N sessions with a filter each: a message is for one of them.
    OwnAway,
}

impl Workload {
    pub(super) const ALL: [Self; 6] = [
        Self::OnePresent,
        Self::OneBehind,
        Self::ManyPresent,
        Self::OneAway,
        Self::ManyAway,
        Self::OwnAway,
    ];

    fn name(self, sessions: u32) -> String {
        match self {
            Self::OnePresent => "1 present".to_owned(),
            Self::OneBehind => "1 present, behind".to_owned(),
            Self::ManyPresent => "1,000 present".to_owned(),
            Self::OneAway => "1 away".to_owned(),
            Self::ManyAway => format!("{} away, one filter", grouped(sessions.into())),
            Self::OwnAway => format!("{} away, a filter each", grouped(sessions.into())),
        }
    }
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// Messages that were acknowledged.
    messages: f64,
    wall_s: f64,
    cpu_s: f64,
    written_bytes: f64,
    acknowledgement_us: (f64, f64),
    lost: u64,
}

impl Run {
    /// Reads the line that `sterna-lab bench --json` printed.
    pub(super) fn read(line: &Value) -> Option<Self> {
        let latency = &line["acknowledgement_us"];
        Some(Self {
            messages: line["acknowledged"].as_f64().filter(|count| *count > 0.0)?,
            wall_s: line["wall_s"].as_f64()?,
            cpu_s: line["broker_cpu_s"].as_f64()?,
            written_bytes: line["broker_written_bytes"].as_f64()?,
            acknowledgement_us: (latency["p50"].as_f64()?, latency["p99"].as_f64()?),
            lost: line["lost"].as_u64()?,
        })
    }

    fn per_s(&self) -> f64 {
        self.messages / self.wall_s
    }

    pub(super) fn cpu_us(&self) -> f64 {
        self.cpu_s * 1e6 / self.messages
    }

    fn bytes(&self) -> f64 {
        self.written_bytes / self.messages
    }
}

/// All runs of one workload of one broker.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) broker: &'static str,
    pub(super) keeps: &'static str,
    pub(super) durability: super::brokers::Durability,
    pub(super) workload: Workload,
    /// Sessions that there were; less than asked for where the time was up.
    pub(super) sessions: u32,
    pub(super) runs: Vec<Run>,
    /// Why there is no figure.
    pub(super) failure: Option<String>,
}

impl Row {
    fn figure(&self, of: impl Fn(&Run) -> f64) -> Option<f64> {
        median(self.runs.iter().map(of))
    }

    fn is(&self, durability: super::brokers::Durability, workload: Workload) -> bool {
        self.durability == durability && self.workload == workload
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "broker": self.broker,
            "keeps": self.keeps,
            "summary": self.workload.name(self.sessions),
            "per_s": self.figure(Run::per_s),
            "cpu_us": self.figure(Run::cpu_us),
            "written_bytes": self.figure(Run::bytes),
            "acknowledgement_p50_us": self.figure(|run| run.acknowledgement_us.0),
            "acknowledgement_p99_us": self.figure(|run| run.acknowledgement_us.1),
            "failure": self.failure,
        })
    }
}

/// Figures of Sterna that no workload gives.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Restart {
    /// CPU of a message for many sessions away by that for one, at the same time.
    pub(super) many_by_one: Option<f64>,
    /// Resident bytes that a session adds which is away and has one filter, without the store's cache of records.
    pub(super) session_bytes: Option<f64>,
    pub(super) sessions: u32,
    pub(super) messages: u64,
    /// Time until it listens, after a kill and after an orderly end.
    pub(super) ready_s: Option<(f64, f64)>,
    /// Time until a session has its first message after sleeping through a million. The first value is
    /// for the broker that took them, the second for the one that was started after the kill.
    pub(super) first_ms: Option<(f64, f64)>,
    /// Time until it has all 1,000 of its own, in the second case.
    pub(super) last_ms: Option<f64>,
}

/// A goal and what was measured.
#[derive(Clone, Debug)]
pub(super) struct Goal {
    what: String,
    limit: String,
    measured: String,
    /// `None` where there is no figure.
    is_met: Option<bool>,
}

impl Goal {
    fn at_most(what: String, limit: f64, measured: Option<f64>, unit: &str) -> Self {
        Self {
            what,
            limit: format!("at most {} {unit}", shown(limit)),
            measured: measured.map_or_else(|| "-".to_owned(), |v| format!("{} {unit}", shown(v))),
            is_met: measured.map(|value| value <= limit),
        }
    }

    fn at_least(what: String, limit: f64, measured: Option<f64>, unit: &str) -> Self {
        Self {
            limit: format!("at least {} {unit}", shown(limit)),
            is_met: measured.map(|value| value >= limit),
            ..Self::at_most(what, limit, measured, unit)
        }
    }

    /// Whether it counts against the verdict.
    pub(super) fn is_missed(&self) -> bool {
        self.is_met == Some(false)
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "goal": self.what, "limit": self.limit, "measured": self.measured, "met": self.is_met,
        })
    }
}

/// Judges the goals of the issue.
pub(super) fn goals(rows: &[Row], restart: &Restart, payload_bytes: usize) -> Vec<Goal> {
    use super::brokers::Durability::{Commit, Interval};
    let own = |durability, workload| {
        rows.iter()
            .find(|row| row.broker == "sterna" && row.is(durability, workload))
    };
    let sessions = own(Interval, Workload::ManyAway).map_or(0, |row| row.sessions);
    let size = (payload_bytes + TOPIC_BYTES) as f64;
    let bytes =
        |durability, workload| own(durability, workload).and_then(|row| row.figure(Run::bytes));
    let per_cpu_s = |row: &Row| row.figure(|run| run.messages / run.cpu_s);
    let best_peer = rows
        .iter()
        .filter(|row| row.broker != "sterna" && row.is(Commit, Workload::OnePresent))
        .filter_map(per_cpu_s)
        .max_by(f64::total_cmp);
    let commit = own(Commit, Workload::OnePresent)
        .and_then(per_cpu_s)
        .zip(best_peer)
        .map(|(own, peer)| own / peer);
    let fast = own(Interval, Workload::OnePresent).and_then(|row| row.figure(Run::per_s));
    let size_limit = 1.3f64.mul_add(size, 64.0);
    vec![
        Goal::at_most(
            format!(
                "CPU of a message for {} away against one away",
                grouped(sessions.into())
            ),
            1.1,
            restart.many_by_one,
            "times",
        ),
        Goal::at_most(
            format!("written for a message of {size} bytes, interval, 1 present"),
            size_limit,
            bytes(Interval, Workload::OnePresent),
            "bytes",
        ),
        Goal::at_most(
            format!("written for a message of {size} bytes, commit, 1 present"),
            size_limit,
            bytes(Commit, Workload::OnePresent),
            "bytes",
        ),
        Goal::at_least(
            "QoS 1, interval, one shard, 1 present".to_owned(),
            100_000.0,
            fast,
            "messages/s",
        ),
        Goal::at_least(
            "messages per CPU second at commit, against the best peer that syncs, a JVM cold"
                .to_owned(),
            3.0,
            commit,
            "times",
        ),
        Goal::at_most(
            "resident memory that a session adds which is away, one filter".to_owned(),
            400.0,
            restart.session_bytes,
            "bytes",
        ),
        Goal::at_most(
            format!(
                "ready after a kill, {} sessions, {} messages",
                grouped(restart.sessions.into()),
                grouped(restart.messages)
            ),
            10.0,
            restart.ready_s.map(|(killed, _)| killed),
            "s",
        ),
        Goal::at_most(
            "first of 1,000 own among 1,000,000 messages slept through".to_owned(),
            50.0,
            restart.first_ms.map(|(warm, cold)| warm.max(cold)),
            "ms",
        ),
    ]
}

/// The table of all workloads in Markdown.
pub(super) fn render(rows: &[Row]) -> String {
    let head = [
        "broker",
        "keeps",
        "durable subscribers",
        "messages/s",
        "CPU us/message",
        "messages/CPU s",
        "written B/message",
        "ack p50 ms",
        "ack p99 ms",
        "lost",
    ];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), shown);
        let latency = |of: fn(&Run) -> f64| number(row.figure(of).map(|us| us / 1e3));
        let lost: u64 = row.runs.iter().map(|run| run.lost).sum();
        lines.push(vec![
            row.broker.to_owned(),
            row.keeps.to_owned(),
            row.workload.name(row.sessions),
            number(row.figure(Run::per_s)),
            number(row.figure(Run::cpu_us)),
            number(row.figure(|run| run.messages / run.cpu_s)),
            number(row.figure(Run::bytes)),
            latency(|run| run.acknowledgement_us.0),
            latency(|run| run.acknowledgement_us.1),
            if row.runs.is_empty() {
                "-".to_owned()
            } else {
                lost.to_string()
            },
        ]);
    }
    aligned(&lines, &[0, 1, 2])
}

/// The table of goals in Markdown.
pub(super) fn render_goals(goals: &[Goal]) -> String {
    let mut lines = vec![
        ["figure", "goal", "measured", ""]
            .map(str::to_owned)
            .to_vec(),
    ];
    for goal in goals {
        let verdict = match goal.is_met {
            Some(true) => "met",
            Some(false) => "NOT MET",
            None => "no figure",
        };
        lines.push(vec![
            goal.what.clone(),
            goal.limit.clone(),
            goal.measured.clone(),
            verdict.to_owned(),
        ]);
    }
    aligned(&lines, &[0, 3])
}

/// Figures of the restart, as lines for people.
pub(super) fn render_restart(restart: &Restart) -> String {
    let mut text = String::new();
    if let Some((killed, ended)) = restart.ready_s {
        let _ = writeln!(
            text,
            "Ready after a kill in {} s, after an orderly end in {} s.",
            shown(killed),
            shown(ended)
        );
    }
    if let Some((warm, cold)) = restart.first_ms {
        let _ = write!(
            text,
            "A session that slept has its first message in {} ms, and in {} ms after the kill",
            shown(warm),
            shown(cold)
        );
        let last = restart.last_ms.map_or_else(String::new, |last| {
            format!("; all 1,000 in {} ms", shown(last))
        });
        let _ = writeln!(text, "{last}.");
    }
    text
}

/// Three digits that matter, thousands grouped.
fn shown(value: f64) -> String {
    match value.abs() {
        small if small < 0.1 => format!("{value:.3}"),
        small if small < 10.0 => format!("{value:.2}"),
        middle if middle < 100.0 => format!("{value:.1}"),
        _ => grouped_digits(&format!("{value:.0}")),
    }
}

fn grouped(value: u64) -> String {
    grouped_digits(&value.to_string())
}

fn grouped_digits(digits: &str) -> String {
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::brokers::Durability;
    use super::*;

    fn row(broker: &'static str, durability: Durability, workload: Workload, cpu_s: f64) -> Row {
        let line = json!({
            "acknowledged": 100_000, "wall_s": 0.5, "broker_cpu_s": cpu_s,
            "broker_written_bytes": 15_000_000, "lost": 0,
            "acknowledgement_us": {"p50": 900.0, "p99": 4000.0},
        });
        Row {
            broker,
            keeps: "x",
            durability,
            workload,
            sessions: 100_000,
            runs: vec![Run::read(&line).unwrap()],
            failure: None,
        }
    }

    #[test]
    fn goals_are_met_and_missed() {
        use Durability::{Commit, Interval};
        let rows = [
            row("sterna", Interval, Workload::OneAway, 0.4),
            row("sterna", Interval, Workload::ManyAway, 0.5),
            row("sterna", Interval, Workload::OnePresent, 0.5),
            row("sterna", Commit, Workload::OnePresent, 0.5),
            row("slow", Commit, Workload::OnePresent, 2.0),
            row("fast", Commit, Workload::OnePresent, 1.6),
            row("sly", Interval, Workload::OnePresent, 0.1),
        ];
        let restart = Restart {
            many_by_one: Some(1.25),
            session_bytes: Some(380.0),
            ready_s: Some((11.0, 2.0)),
            first_ms: Some((1.0, 49.0)),
            ..Restart::default()
        };
        let goals = goals(&rows, &restart, 64);
        let met: Vec<Option<bool>> = goals.iter().map(|goal| goal.is_met).collect();
        let expected = [false, true, true, true, true, true, false, true].map(Some);
        assert_eq!(met, expected, "{}", render_goals(&goals));
        assert_eq!(goals[4].measured, "3.20 times");
        assert_eq!(goals[3].measured, "200,000 messages/s");
        let none = super::goals(&[], &Restart::default(), 64);
        assert!(none.iter().all(|goal| goal.is_met.is_none()));
    }

    #[test]
    fn tables_are_markdown() {
        let text = render(&[row("sterna", Durability::Memory, Workload::OwnAway, 0.5)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(
            lines.iter().all(|line| line.len() == lines[0].len()),
            "{text}"
        );
        assert!(lines[2].contains("100,000 away, a filter each"), "{text}");
        assert!(
            lines[2].contains(" 200,000 ") && lines[2].contains(" 0.90 "),
            "{text}"
        );
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(shown(0.012), "0.012");
        assert_eq!(shown(12.34), "12.3");
        assert_eq!(shown(1_234_567.0), "1,234,567");
        assert_eq!(grouped(100), "100");
    }
}
