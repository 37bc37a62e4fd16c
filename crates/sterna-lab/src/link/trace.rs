//! Delivery traces: a link whose transmitter works at recorded moments, instead of at a rate.
//!
//! The format is Mahimahi's. Each line of text is a moment at which the link carried a packet of the
//! longest size. It is in whole milliseconds from the start, and never falls. After its last moment the
//! trace begins again. An unused moment is lost, and a long packet uses several.
//!
//! One line may be before the others, which Mahimahi does not know: `# 125 bytes` is the number of bytes
//! that a moment carries. Links exist whose blocks are shorter than a packet.

mod cellular;
#[cfg(test)]
mod link_tests;
mod nb_iot;
mod starlink;

use std::fmt::Write as _;
use std::sync::Arc;

use serde::ser::{Serialize, SerializeStruct, Serializer};

pub use nb_iot::Coverage;

/// Bytes that a moment carries where a trace does not say it: Mahimahi's packets with their link header.
pub const OPPORTUNITY_BYTES: u64 = 1504;
/// Most bytes of a moment: the longest packet.
const MAX_OPPORTUNITY_BYTES: u64 = 65_535;
/// Most moments of a trace.
const MAX_OPPORTUNITIES: usize = 10_000_000;
const TOO_LONG: &str = "too long: ten million moments at the most";
const NS_PER_MS: u64 = 1_000_000;

/// Moments at which a link carries bytes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Trace {
    /// Since the start, rising or equal; the last one is the period.
    at_ms: Arc<[u64]>,
    /// Bytes that each moment carries.
    opportunity_bytes: u64,
}

impl Trace {
    /// Reads a trace in Mahimahi's format, with the length of a moment above it or without.
    ///
    /// # Errors
    ///
    /// The line that is no moment or lies before the one above, and a trace without time or moments.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut opportunity_bytes = OPPORTUNITY_BYTES;
        let mut at_ms: Vec<u64> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let wrong = |what: &str| format!("line {}: {what}", index + 1);
            if index == 0 && line.starts_with('#') {
                opportunity_bytes = length(line)
                    .ok_or_else(|| wrong("not the length of a moment, as in `# 125 bytes`"))?;
                continue;
            }
            let moment: u64 = line
                .trim()
                .parse()
                .map_err(|_| wrong("not a whole number of milliseconds"))?;
            if at_ms.last().is_some_and(|last| *last > moment) {
                return Err(wrong("before the line above"));
            }
            if at_ms.len() == MAX_OPPORTUNITIES {
                return Err(wrong(TOO_LONG));
            }
            at_ms.push(moment);
        }
        match at_ms.last() {
            None | Some(0) => Err("a trace has a moment later than 0 ms".into()),
            Some(last) if last.checked_mul(NS_PER_MS).is_none() => {
                Err("a trace is too long".into())
            }
            Some(_) => Ok(Self::new(at_ms, opportunity_bytes)),
        }
    }

    /// Of moments that do not fall; the last one is later than 0.
    fn new(at_ms: Vec<u64>, opportunity_bytes: u64) -> Self {
        Self {
            at_ms: at_ms.into(),
            opportunity_bytes,
        }
    }

    /// The trace as text, which [`Trace::parse`] reads. Mahimahi reads it if moments have its length.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        if self.opportunity_bytes != OPPORTUNITY_BYTES {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# {} bytes", self.opportunity_bytes);
        }
        for moment in self.at_ms.iter() {
            let _ = writeln!(text, "{moment}");
        }
        text
    }

    /// The mean rate in bits per second.
    #[must_use]
    pub fn mean_bps(&self) -> u64 {
        let bits = self.at_ms.len() as u64 * self.opportunity_bytes * 8;
        bits.saturating_mul(1000) / self.period_ms()
    }

    fn period_ms(&self) -> u64 {
        self.at_ms.last().copied().unwrap_or(1)
    }

    /// When the moment with this number is.
    fn at_ns(&self, number: u64) -> u64 {
        let count = self.at_ms.len() as u64;
        let moment = self.at_ms[(number % count) as usize];
        let whole = (number / count).saturating_mul(self.period_ms());
        whole.saturating_add(moment).saturating_mul(NS_PER_MS)
    }

    /// The number of the first moment that is not before this time.
    fn first_from(&self, now_ns: u64) -> u64 {
        let count = self.at_ms.len() as u64;
        let period_ns = self.period_ms() * NS_PER_MS;
        // A moment at the very end of a period is that period's.
        let whole = now_ns.saturating_sub(1) / period_ns;
        let rest_ns = now_ns - whole * period_ns;
        let before = |moment: &u64| moment * NS_PER_MS < rest_ns;
        whole * count + self.at_ms.partition_point(before) as u64
    }
}

/// The number of a line `# 125 bytes`.
fn length(line: &str) -> Option<u64> {
    let number = line.strip_prefix('#')?.trim().strip_suffix("bytes")?;
    let bytes = number.trim().parse().ok()?;
    (1..=MAX_OPPORTUNITY_BYTES)
        .contains(&bytes)
        .then_some(bytes)
}

impl Serialize for Trace {
    /// The description of the trace, without its moments, which would be longer than a report.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Trace", 4)?;
        fields.serialize_field("opportunities", &self.at_ms.len())?;
        fields.serialize_field("opportunity_bytes", &self.opportunity_bytes)?;
        fields.serialize_field("period_ms", &self.period_ms())?;
        fields.serialize_field("mean_bps", &self.mean_bps())?;
        fields.end()
    }
}

/// The progress of a transmitter in its trace.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    /// The number of the moment in use.
    number: u64,
    /// Bytes that were used of it.
    used_bytes: u64,
}

impl Progress {
    /// The moment that a packet would use which comes now.
    fn next(self, trace: &Trace, now_ns: u64) -> Self {
        let first = trace.first_from(now_ns);
        if first > self.number {
            return Self {
                number: first,
                used_bytes: 0,
            };
        }
        if self.used_bytes >= trace.opportunity_bytes {
            return Self {
                number: self.number + 1,
                used_bytes: 0,
            };
        }
        self
    }

    /// When the transmitter takes a packet that comes now.
    pub(super) fn start_ns(self, trace: &Trace, now_ns: u64) -> u64 {
        trace.at_ns(self.next(trace, now_ns).number).max(now_ns)
    }

    /// Sends a packet; returns when its last byte leaves.
    pub(super) fn send(&mut self, trace: &Trace, now_ns: u64, wire_bytes: u64) -> u64 {
        *self = self.next(trace, now_ns);
        let all = self.used_bytes + wire_bytes;
        // The last moment is used up to its end, not beyond.
        let more = all.saturating_sub(1) / trace.opportunity_bytes;
        self.number += more;
        self.used_bytes = all - more * trace.opportunity_bytes;
        trace.at_ns(self.number).max(now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = NS_PER_MS;

    #[test]
    fn a_trace_carries_what_its_moments_allow() {
        let trace = Trace::parse("5\n5\n10\n").unwrap();
        assert_eq!(trace.mean_bps(), 3 * 1504 * 8 * 100);
        let mut progress = Progress::default();
        // Two short packets share a moment, a third one needs a part of the next.
        assert_eq!(progress.start_ns(&trace, 0), 5 * MS);
        for _ in 0..2 {
            assert_eq!(progress.send(&trace, 0, 752), 5 * MS);
        }
        assert_eq!(progress.send(&trace, 0, 1000), 5 * MS);
        assert_eq!(progress.send(&trace, 0, 1000), 10 * MS);
        // The trace begins again, and an unused moment is lost.
        assert_eq!(progress.send(&trace, 10 * MS, 3008), 15 * MS);
        assert_eq!(progress.send(&trace, 19 * MS, 100), 20 * MS);
        assert_eq!(progress.send(&trace, 31 * MS, 1504 * 4), 45 * MS);
    }

    #[test]
    fn what_is_no_trace_is_said_with_its_line() {
        for (text, word) in [
            ("", "later than 0"),
            ("0\n", "later than 0"),
            ("1\nx\n", "line 2"),
            ("5\n4\n", "line 2: before"),
            ("-1\n", "line 1"),
            ("#\n5\n", "line 1: not the length"),
            ("# 0 bytes\n5\n", "line 1: not the length"),
            ("# 70000 bytes\n5\n", "line 1: not the length"),
            ("5\n# 125 bytes\n", "line 2"),
            ("# 125 bytes\n", "later than 0"),
        ] {
            let error = Trace::parse(text).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_trace_may_say_how_much_a_moment_carries() {
        let text = "# 125 bytes\n10\n20\n";
        let trace = Trace::parse(text).unwrap();
        assert_eq!(trace.text(), text);
        assert_eq!(trace.mean_bps(), 2 * 125 * 8 * 50);
        let mut progress = Progress::default();
        // A packet of two and a half blocks leaves with the third, whose rest is for the next one.
        assert_eq!(progress.send(&trace, 0, 312), 30 * MS);
        assert_eq!(progress.send(&trace, 0, 63), 30 * MS);
        assert_eq!(progress.send(&trace, 0, 1), 40 * MS);
    }
}
