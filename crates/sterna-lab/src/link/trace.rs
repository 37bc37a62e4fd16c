//! Delivery traces: a link whose transmitter works at recorded moments, instead of at a rate.
//!
//! The format is Mahimahi's: a line of text for each moment at which the link carried a packet of the
//! longest size, in whole milliseconds from the start, not falling. After its last moment the trace
//! begins again. An unused moment is lost, and a long packet uses several.

use std::sync::Arc;

use serde::ser::{Serialize, SerializeStruct, Serializer};

use super::random::Random;
use super::settings::whole;

/// Bytes that a moment carries: Mahimahi's packets with their link header.
pub const OPPORTUNITY_BYTES: u64 = 1504;
/// Most moments of a trace.
const MAX_OPPORTUNITIES: usize = 10_000_000;
const NS_PER_MS: u64 = 1_000_000;

/// Deviation of Sprout's rate after a second, in packets a second. This and the next three are those of the
/// authors' program (`src/sprout/receiver.hh`: `BROWNIAN_MOTION_RATE`, `OUTAGE_ESCAPE_RATE`,
/// `MAX_ARRIVAL_RATE`, `TICK_LENGTH`; its earlier versions had 300, 5 and 2000). Its 256 bins are those of
/// the receiver's guess at the rate, which a link does not make.
const SPROUT_DEVIATION: f64 = 200.0;
/// Rate at which Sprout's link leaves an outage, per second.
const SPROUT_ESCAPE_PER_S: f64 = 1.0;
/// Highest rate of Sprout's model, in packets a second: 11 Mbit/s of 1,400-byte packets.
const SPROUT_MOST: f64 = 1000.0;
/// The model's step.
const SPROUT_STEP_MS: u64 = 20;

/// Moments at which a link carries bytes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Trace {
    /// Since the start, rising or equal; the last one is the period.
    at_ms: Arc<[u64]>,
}

impl Trace {
    /// Reads a trace in Mahimahi's format.
    ///
    /// # Errors
    ///
    /// The line that is no moment or lies before the one above, and a trace without time or moments.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut at_ms: Vec<u64> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let wrong = |what: &str| format!("line {}: {what}", index + 1);
            let moment: u64 = line
                .trim()
                .parse()
                .map_err(|_| wrong("not a whole number of milliseconds"))?;
            if at_ms.last().is_some_and(|last| *last > moment) {
                return Err(wrong("before the line above"));
            }
            if at_ms.len() == MAX_OPPORTUNITIES {
                return Err(wrong("too long: ten million moments at the most"));
            }
            at_ms.push(moment);
        }
        match at_ms.last() {
            None | Some(0) => Err("a trace has a moment later than 0 ms".into()),
            Some(last) if last.checked_mul(NS_PER_MS).is_none() => {
                Err("a trace is too long".into())
            }
            Some(_) => Ok(Self {
                at_ms: at_ms.into(),
            }),
        }
    }

    /// Makes a trace by the model of a cellular link that Sprout assumes (Winstein et al., NSDI 2013,
    /// section 3.1): packets come as a Poisson process, whose rate moves by Brownian motion of 200 packets
    /// a second after a second, and leaves an outage at a rate of 1 a second. A mean pulls nothing: the
    /// rate starts at `packets_per_s`, and is kept between 0 and 1000.
    #[must_use]
    pub fn sprout(packets_per_s: f64, seconds: u32, seed: u64) -> Self {
        let step_s = SPROUT_STEP_MS as f64 / 1000.0;
        let mut random = Random::new(&[seed]);
        let mut rate = packets_per_s.clamp(0.0, SPROUT_MOST);
        let mut at_ms = Vec::new();
        let count = u64::from(seconds.max(1)) * 1000 / SPROUT_STEP_MS;
        for step in 0..count {
            rate = next_rate(rate, &mut random);
            // A Poisson process has exponential gaps.
            if rate <= 0.0 {
                continue;
            }
            let mut within = 0.0;
            loop {
                within -= (1.0 - random.unit()).ln() / rate;
                if within >= step_s {
                    break;
                }
                at_ms.push(step * SPROUT_STEP_MS + whole(within * 1000.0));
            }
        }
        // The period is that which was asked for.
        at_ms.push(count * SPROUT_STEP_MS);
        Self {
            at_ms: at_ms.into(),
        }
    }

    /// The trace in Mahimahi's format.
    #[must_use]
    pub fn text(&self) -> String {
        let lines = self.at_ms.iter().map(|moment| format!("{moment}\n"));
        lines.collect()
    }

    /// The mean rate in bits per second.
    #[must_use]
    pub fn mean_bps(&self) -> u64 {
        let bits = self.at_ms.len() as u64 * OPPORTUNITY_BYTES * 8;
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

/// Sprout's rate a step later, in packets a second.
fn next_rate(rate: f64, random: &mut Random) -> f64 {
    let step_s = SPROUT_STEP_MS as f64 / 1000.0;
    let (first, second) = (random.unit(), random.unit());
    // Box and Muller; 1 - x is never 0.
    let normal = (-2.0 * (1.0 - first).ln()).sqrt() * (std::f64::consts::TAU * second).cos();
    let moved = normal * SPROUT_DEVIATION * step_s.sqrt();
    if rate > 0.0 {
        return (rate + moved).clamp(0.0, SPROUT_MOST);
    }
    let stays = (-SPROUT_ESCAPE_PER_S * step_s).exp();
    // A step back would be no escape.
    if random.unit() > stays {
        moved.abs()
    } else {
        0.0
    }
}

impl Serialize for Trace {
    /// What describes it; the moments would be longer than a report.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Trace", 3)?;
        fields.serialize_field("opportunities", &self.at_ms.len())?;
        fields.serialize_field("period_ms", &self.period_ms())?;
        fields.serialize_field("mean_bps", &self.mean_bps())?;
        fields.end()
    }
}

/// How far a transmitter has used its trace.
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
        if self.used_bytes >= OPPORTUNITY_BYTES {
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
        let more = all.saturating_sub(1) / OPPORTUNITY_BYTES;
        self.number += more;
        self.used_bytes = all - more * OPPORTUNITY_BYTES;
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
        ] {
            let error = Trace::parse(text).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn sprouts_link_leaves_an_outage_once_a_second_and_wanders_as_published() {
        let mut random = Random::new(&[3]);
        let steps = 200_000;
        let left = (0..steps)
            .filter(|_| next_rate(0.0, &mut random) > 0.0)
            .count();
        let part = left as f64 / f64::from(steps);
        // 1 - exp(-0.02), and five standard deviations of chance.
        assert!((part - 0.0198).abs() < 0.0016, "{part}");
        let moves = (0..steps).map(|_| next_rate(500.0, &mut random) - 500.0);
        let variance = moves.map(|moved| moved * moved).sum::<f64>() / f64::from(steps);
        // 200 packets a second after a second: 50 steps.
        assert!(((variance * 50.0).sqrt() - 200.0).abs() < 2.0, "{variance}");
        assert!((0..1000).all(|_| next_rate(999.0, &mut random) <= 1000.0));
    }

    #[test]
    fn sprouts_link_is_what_its_seed_says_and_has_its_rate() {
        let trace = Trace::sprout(500.0, 60, 7);
        assert_eq!(trace, Trace::sprout(500.0, 60, 7));
        assert_ne!(trace, Trace::sprout(500.0, 60, 8));
        assert_eq!(trace, Trace::parse(&trace.text()).unwrap());
        assert_eq!(trace.period_ms(), 60_000);
        let packets_per_s = trace.mean_bps() as f64 / 8.0 / 1504.0;
        assert!((10.0..1000.0).contains(&packets_per_s), "{packets_per_s}");
        // The first tenth of a second is near the rate it starts with.
        let early = trace.at_ms.partition_point(|moment| *moment < 100);
        assert!((25..80).contains(&early), "{early}");
    }
}
