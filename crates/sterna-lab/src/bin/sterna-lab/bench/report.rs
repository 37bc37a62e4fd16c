//! Output of a run: a table for people, one line of JSON for programs.

use std::fmt::Write as _;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use crate::process::Usage;

/// The figures of a run, in the order in which they are told.
#[derive(Default)]
pub(super) struct Report {
    fields: Map<String, Value>,
    lines: Vec<(String, String)>,
}

impl Report {
    /// A fact for both readers.
    pub(super) fn fact(&mut self, key: &str, value: Value) {
        let text = match &value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        self.lines.push((key.replace('_', " "), text));
        self.fields.insert(key.to_owned(), value);
    }

    /// A number with its unit, rounded for people.
    pub(super) fn figure(&mut self, key: &str, value: f64, label: &str, unit: &str) {
        self.lines
            .push((label.to_owned(), format!("{} {unit}", rounded(value))));
        self.fields.insert(key.to_owned(), json!(value));
    }

    /// Percentiles in microseconds.
    pub(super) fn latency(&mut self, label: &str, latencies: &Histogram<u64>) {
        self.percentiles("latency_us", label, latencies);
    }

    /// Percentiles in microseconds, with the name of their field; nothing of an empty histogram.
    pub(super) fn percentiles(&mut self, key: &str, label: &str, latencies: &Histogram<u64>) {
        if latencies.is_empty() {
            return;
        }
        let us = |percentile: f64| {
            micros(Duration::from_nanos(
                latencies.value_at_percentile(percentile),
            ))
        };
        let max = micros(Duration::from_nanos(latencies.max()));
        let (p50, p99, p999) = (us(50.0), us(99.0), us(99.9));
        self.lines.push((
            label.to_owned(),
            format!(
                "p50 {} us, p99 {} us, p99.9 {} us, most {} us",
                rounded(p50),
                rounded(p99),
                rounded(p999),
                rounded(max)
            ),
        ));
        self.fields.insert(
            key.to_owned(),
            json!({"p50": p50, "p99": p99, "p99_9": p999, "max": max}),
        );
    }

    /// Bytes that the broker wrote to disks between two readings, for each of `messages`.
    pub(super) fn written(&mut self, before: &Usage, after: &Usage, messages: u64) {
        if after.cpu > Duration::ZERO && messages > 0 {
            let bytes = after.written_bytes.saturating_sub(before.written_bytes);
            let each = float(bytes / 1024) * 1024.0 / float(messages);
            self.figure("written_bytes", each, "written to disks", "bytes a message");
            self.fields
                .insert("broker_written_bytes".to_owned(), json!(bytes));
            let busy = after.cpu.saturating_sub(before.cpu);
            self.fields
                .insert("broker_cpu_s".to_owned(), json!(busy.as_secs_f64()));
        }
    }

    /// Use of broker and generator between two readings, for each of `count` things.
    pub(super) fn usage(&mut self, before: &Usage, after: &Usage, count: u64, thing: &str) {
        let per = |time: Duration| micros(time) / float(count.max(1));
        if after.cpu > Duration::ZERO {
            let cpu = per(after.cpu.saturating_sub(before.cpu));
            let system = per(after.system.saturating_sub(before.system));
            let sleeps = float(after.sleeps.saturating_sub(before.sleeps)) / float(count.max(1));
            self.lines.push((
                "broker CPU".to_owned(),
                format!(
                    "{} us a {thing} ({} us of it in the kernel), {} sleeps a {thing}",
                    rounded(cpu),
                    rounded(system),
                    rounded(sleeps)
                ),
            ));
            self.fields.insert("broker_cpu_us".to_owned(), json!(cpu));
            self.fields
                .insert("broker_system_us".to_owned(), json!(system));
            self.fields
                .insert("broker_sleeps".to_owned(), json!(sleeps));
            self.fields.insert(
                "broker_resident_bytes".to_owned(),
                json!(after.resident_bytes),
            );
        }
        let own = per(after.own_cpu.saturating_sub(before.own_cpu));
        if own > 0.0 {
            self.figure(
                "generator_cpu_us",
                own,
                "generator CPU",
                &format!("us a {thing}"),
            );
        }
    }

    /// The report as one line of JSON, or as lines for people.
    pub(super) fn show(self, as_json: bool) -> String {
        if as_json {
            self.json() + "\n"
        } else {
            self.text()
        }
    }

    /// One line of JSON.
    fn json(self) -> String {
        Value::Object(self.fields).to_string()
    }

    /// Aligned lines.
    fn text(&self) -> String {
        let width = self
            .lines
            .iter()
            .map(|(label, _)| label.len())
            .max()
            .unwrap_or(0);
        let mut text = String::new();
        for (label, value) in &self.lines {
            let _ = writeln!(text, "{label:width$}  {value}");
        }
        text
    }
}

/// Microseconds.
pub(super) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// A count as a fraction's part; counts here are far below 2^32.
pub(super) fn float(count: u64) -> f64 {
    u32::try_from(count).map_or_else(|_| f64::from(u32::MAX), f64::from)
}

/// Three digits that matter.
fn rounded(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        x if x < 0.01 => format!("{value:.5}"),
        x if x < 10.0 => format!("{value:.2}"),
        x if x < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}
