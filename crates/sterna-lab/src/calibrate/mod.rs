//! Accuracy of the emulator on this machine, now: its settings against its behaviour.
//!
//! Each row is a link of its own with datagrams of the lab's own. The lab's experiments rely on the
//! tolerances. Rates are right within 2 %, delays within 1 ms for 95 % of the packets, and losses within
//! chance. Packets keep their order.

mod machine;
mod probe;

use std::io;
use std::time::Duration;

use serde::Serialize;

use crate::emulator::LatenessSummary;
use crate::link::{
    Counters, Direction, Jitter, Link, LinkSettings, Loss, LossAt, PipeSettings, Queue,
};
use crate::netns::Family;
use crate::quantity::{show_rate, show_time_ns};

pub(crate) use machine::CpuTicks;
pub use machine::Machine;
use probe::{MIN_PROBE_BYTES, Measured, Plan, header_bytes};

/// Tolerated error of a rate.
const RATE_TOLERANCE: f64 = 0.02;
/// Tolerated error of 95 % of the delays, in milliseconds.
const DELAY_TOLERANCE_MS: f64 = 1.0;
/// Tolerated error of the spread of a jitter.
const JITTER_TOLERANCE: f64 = 0.1;
/// Tolerated error of a loss, in standard deviations. Three are exceeded by chance once in 370
/// times, too often for a table of ten rows.
const LOSS_DEVIATIONS: f64 = 4.0;
/// Time for TCP to fill a link, half of it for its start.
const MIN_TCP_DURATION: Duration = Duration::from_secs(4);
/// With fewer losses, or bursts of them, than this their share says nothing.
const MIN_LOSS_EVENTS: f64 = 20.0;
/// Lateness of the emulator that an experiment can live with, 99 %, in microseconds.
const LATENESS_US: f64 = 1000.0;

const MS: u64 = 1_000_000;
/// A link behind which no more packets than this ever waited was not full.
const MIN_SATURATED_QUEUE: u64 = 2;
/// Bytes of a packet where its length doesn't matter.
const LIGHT_BYTES: usize = 128;
/// Time between packets where their delay is measured.
const LIGHT_INTERVAL_NS: u64 = 5 * MS;
/// Time between packets where jitter must not hold them back.
const JITTER_INTERVAL_NS: u64 = 20 * MS;
/// Time between packets where their loss is measured.
const LOSS_INTERVAL_NS: u64 = 100_000;

/// Subject of a row.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Bits per second of a saturated link.
    Rate,
    /// Mean one-way time.
    Delay,
    /// Standard deviation of the one-way time.
    Jitter,
    /// Part of the packets that was lost.
    Loss,
}

/// One comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The compared quantity.
    pub quantity: Quantity,
    /// The link.
    pub link: String,
    /// Its setting: bit/s, milliseconds, or a part.
    pub set: f64,
    /// Its measured value.
    pub got: f64,
    /// Whether that is near enough.
    pub is_true: bool,
    /// Details.
    pub note: String,
    /// Packets that were sent.
    pub packets: u64,
    /// Lateness of the emulator.
    pub lateness: LatenessSummary,
    /// Whether the emulator had real-time priority.
    pub has_real_time: bool,
}

/// One measurement to make, which may give several rows.
#[derive(Clone, Debug)]
pub struct Measurement {
    link: String,
    settings: LinkSettings,
    plan: Plan,
    quantities: Vec<Quantity>,
    /// Number of these links at once.
    links: usize,
    /// Filled by the kernel's TCP with this congestion control, instead of by datagrams.
    tcp: Option<&'static str>,
    family: Family,
}

/// Delays of many links at once, one packet a second on each.
#[must_use]
pub fn many(links: usize, duration: Duration) -> Measurement {
    Measurement {
        link: format!("{links} links, 50 ms"),
        settings: LinkSettings::symmetric(PipeSettings {
            delay_ns: 50 * MS,
            ..PipeSettings::default()
        }),
        plan: light(Direction::Up, 1000 * MS, duration),
        quantities: vec![Quantity::Delay],
        links: links.max(1),
        tcp: None,
        family: Family::V4,
    }
}

/// The default measurements, each for `duration`.
#[must_use]
pub fn suite(duration: Duration) -> Vec<Measurement> {
    let mut all = Vec::new();
    for delay_ns in [0, 12_500_000, 50 * MS, 300 * MS, 1000 * MS] {
        let pipe = PipeSettings {
            delay_ns,
            ..PipeSettings::default()
        };
        all.push(Measurement {
            link: show_time_ns(delay_ns),
            settings: LinkSettings::symmetric(pipe),
            plan: light(Direction::Up, LIGHT_INTERVAL_NS, duration),
            quantities: vec![Quantity::Delay],
            links: 1,
            tcp: None,
            family: Family::V4,
        });
    }
    let jitter = Jitter::Uniform {
        plus_minus_ns: 5 * MS,
    };
    let pipe = PipeSettings {
        delay_ns: 50 * MS,
        jitter,
        ..PipeSettings::default()
    };
    all.push(Measurement {
        link: "50 ms +-5 ms".into(),
        settings: LinkSettings::symmetric(pipe),
        plan: light(Direction::Up, JITTER_INTERVAL_NS, 3 * duration),
        quantities: vec![Quantity::Delay, Quantity::Jitter],
        links: 1,
        tcp: None,
        family: Family::V4,
    });
    for rate_bps in [
        8_000,
        32_000,
        159_000,
        1_500_000,
        20_000_000,
        100_000_000,
        300_000_000,
        1_000_000_000,
    ] {
        let pipe = PipeSettings {
            rate_bps: Some(rate_bps),
            queue: Queue::Packets(1000),
            ..PipeSettings::default()
        };
        all.push(Measurement {
            link: show_rate(Some(rate_bps)),
            plan: flood(&pipe, Direction::Up, duration),
            settings: LinkSettings::symmetric(pipe),
            quantities: vec![Quantity::Rate],
            links: 1,
            tcp: None,
            family: Family::V4,
        });
    }
    let pipe = PipeSettings {
        rate_bps: Some(20_000_000),
        delay_ns: 12_500_000,
        queue: Queue::Bdp(1.0),
        ..PipeSettings::default()
    };
    all.push(Measurement {
        link: "TCP cubic, 20 Mbit/s".into(),
        plan: flood(&pipe, Direction::Up, duration.max(MIN_TCP_DURATION)),
        settings: LinkSettings::symmetric(pipe),
        quantities: vec![Quantity::Rate],
        links: 1,
        tcp: Some("cubic"),
        family: Family::V4,
    });
    for (name, loss) in [
        ("2 %", Loss::Independent { probability: 0.02 }),
        ("10 %", Loss::Independent { probability: 0.1 }),
        (
            "Gilbert-Elliott 1 %, 25 %",
            Loss::GilbertElliott {
                to_bad: 0.01,
                to_good: 0.25,
                loss_good: 0.0,
                loss_bad: 1.0,
            },
        ),
    ] {
        let pipe = PipeSettings {
            loss,
            ..PipeSettings::default()
        };
        all.push(Measurement {
            link: name.into(),
            settings: LinkSettings::symmetric(pipe),
            plan: light(Direction::Up, LOSS_INTERVAL_NS, duration),
            quantities: vec![Quantity::Loss],
            links: 1,
            tcp: None,
            family: Family::V4,
        });
    }
    all
}

/// The measurements of one link, in both directions.
#[must_use]
pub fn measurements_of(
    name: &str,
    settings: &LinkSettings,
    duration: Duration,
) -> Vec<Measurement> {
    let mut all = Vec::new();
    for direction in Direction::BOTH {
        let pipes = settings.pipes(direction);
        let slowest = bottleneck(&pipes);
        let link = format!("{name} {}", direction.name());
        let mut quantities = vec![Quantity::Delay];
        if pipes.iter().any(|pipe| pipe.jitter != Jitter::None) {
            quantities.push(Quantity::Jitter);
        }
        if pipes.iter().any(|pipe| pipe.loss != Loss::None) {
            quantities.push(Quantity::Loss);
        }
        // Far below the rate, so that nothing waits; and far apart, so that nothing is held back.
        let width_ns: u64 = pipes.iter().map(|pipe| pipe.jitter.width_ns()).sum();
        let interval_ns = LIGHT_INTERVAL_NS
            .max(5 * transmission_ns(slowest, LIGHT_BYTES))
            .max(4 * width_ns);
        all.push(Measurement {
            link: link.clone(),
            settings: settings.clone(),
            plan: light(direction, interval_ns, duration),
            quantities,
            links: 1,
            tcp: None,
            family: Family::V4,
        });
        if slowest.rate_bps.is_some() {
            let delay_ns = pipes.iter().map(|pipe| pipe.delay_ns).sum();
            let mtu_bytes = settings.mtu_bytes();
            let flooded = PipeSettings {
                delay_ns,
                mtu_bytes,
                ..slowest.clone()
            };
            all.push(Measurement {
                link,
                plan: flood(&flooded, direction, duration),
                settings: settings.clone(),
                quantities: vec![Quantity::Rate],
                links: 1,
                tcp: None,
                family: Family::V4,
            });
        }
    }
    all
}

fn light(direction: Direction, interval_ns: u64, duration: Duration) -> Plan {
    Plan {
        direction,
        interval_ns,
        length_bytes: LIGHT_BYTES,
        duration,
        drain: true,
    }
}

/// A quarter more than the link carries. Packets are short enough that a slow link carries some.
fn flood(pipe: &PipeSettings, direction: Direction, duration: Duration) -> Plan {
    let rate = pipe.rate_bps.unwrap_or(1_000_000_000).max(1);
    let length_bytes = if rate < 1_000_000 {
        LIGHT_BYTES
    } else {
        pipe.mtu_bytes as usize
    };
    Plan {
        direction,
        interval_ns: transmission_ns(pipe, length_bytes) * 4 / 5,
        length_bytes,
        // The first packet arrives after the delay.
        duration: duration + Duration::from_nanos(pipe.delay_ns),
        drain: false,
    }
}

/// The slowest hop, the first one of several.
fn bottleneck<'a>(pipes: &[&'a PipeSettings]) -> &'a PipeSettings {
    let rate = |pipe: &&PipeSettings| pipe.rate_bps.unwrap_or(u64::MAX);
    // A link has one hop at least.
    pipes.iter().copied().min_by_key(rate).unwrap_or(pipes[0])
}

fn transmission_ns(pipe: &PipeSettings, length_bytes: usize) -> u64 {
    pipe.rate_bps.map_or(0, |rate| {
        (length_bytes as u64 + u64::from(pipe.overhead_bytes)) * 8_000_000_000 / rate
    })
}

impl Measurement {
    /// Approximate duration.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.plan.duration
    }

    /// The same over this version of IP.
    #[must_use]
    pub const fn over(mut self, family: Family) -> Self {
        self.family = family;
        self
    }

    /// The link that is measured.
    #[must_use]
    pub fn link(&self) -> &str {
        &self.link
    }

    /// Makes it.
    ///
    /// # Errors
    ///
    /// If a namespace or device can't be made, or the emulator fails.
    pub fn run(&self, seed: u64) -> io::Result<Vec<Row>> {
        if let Some(name) = self.tcp {
            return self.run_tcp(name, seed).map(|row| vec![row]);
        }
        let measured = if self.links > 1 {
            probe::run_many(self.links, &self.settings, self.family, self.plan.duration)?
        } else {
            probe::run(&self.settings, self.family, seed, &self.plan)?
        };
        Ok(self
            .quantities
            .iter()
            .map(|quantity| self.row(*quantity, &measured, seed))
            .collect())
    }

    fn run_tcp(&self, congestion_control: &str, seed: u64) -> io::Result<Row> {
        let (transfer, report, has_real_time) = probe::run_tcp(
            &self.settings,
            self.family,
            seed,
            congestion_control,
            self.plan.duration,
        )?;
        let set = self.pipe().rate_bps.unwrap_or(0) as f64;
        let overhead = transfer.packets * u64::from(self.pipe().overhead_bytes);
        let got = (transfer.bytes + overhead) as f64 * 8.0 / transfer.seconds;
        Ok(Row {
            quantity: Quantity::Rate,
            link: self.link.clone(),
            set,
            got,
            is_true: (got / set - 1.0).abs() <= RATE_TOLERANCE,
            note: format!(
                "{:+.2} %, {} dropped by the queue",
                (got / set - 1.0) * 100.0,
                report.up.dropped.queue
            ),
            packets: report.up.offered_packets,
            lateness: report.lateness.summary(),
            has_real_time,
        })
    }

    /// The hops that packets pass, in their order.
    fn pipes(&self) -> Vec<&PipeSettings> {
        self.settings.pipes(self.plan.direction)
    }

    /// The slowest of them.
    fn pipe(&self) -> &PipeSettings {
        bottleneck(&self.pipes())
    }

    /// The counters of these hops.
    fn hop_counters<'a>(&self, measured: &'a Measured) -> Vec<&'a Counters> {
        match self.plan.direction {
            Direction::Up => measured.report.hops_up.iter().collect(),
            Direction::Down => measured.report.hops_down.iter().rev().collect(),
        }
    }

    fn row(&self, quantity: Quantity, measured: &Measured, seed: u64) -> Row {
        let (set, got, is_true, mut note) = match quantity {
            Quantity::Rate => self.rate(measured),
            Quantity::Delay => self.delay(measured),
            Quantity::Jitter => self.jitter(measured),
            Quantity::Loss => self.loss(measured, seed),
        };
        let mut is_true = is_true;
        let inversions = measured.inversions();
        let may_reorder =
            |pipe: &&PipeSettings| pipe.jitter_reorders || pipe.reorder.probability > 0.0;
        if inversions > 0 && !self.pipes().iter().any(may_reorder) {
            is_true = false;
            note = format!("{note}, {inversions} out of order");
        }
        if measured.overflows > 0 {
            note = format!("{note}, {} lost before the link", measured.overflows);
        }
        Row {
            quantity,
            link: self.link.clone(),
            set,
            got,
            is_true,
            note,
            packets: measured.sent,
            lateness: measured.report.lateness.summary(),
            has_real_time: measured.has_real_time,
        }
    }

    fn rate(&self, measured: &Measured) -> (f64, f64, bool, String) {
        let set = self.pipe().rate_bps.unwrap_or(0) as f64;
        let (Some(first), Some(last)) = (measured.arrivals.first(), measured.arrivals.last())
        else {
            return (set, 0.0, false, "nothing arrived".into());
        };
        let wire_bytes = self
            .plan
            .length_bytes
            .max(header_bytes(self.family) + MIN_PROBE_BYTES) as f64
            + f64::from(self.pipe().overhead_bytes);
        let counters = measured.report.counters(self.plan.direction);
        // Packets that the link let through, but the receiving program did not take in time.
        let arrived = measured.arrivals.len() as u64;
        let missed = counters.delivered_packets.saturating_sub(arrived);
        // Losses behind the slowest transmitter have taken its time, also those of later hops.
        let hops = self.pipes().into_iter().zip(self.hop_counters(measured));
        let slowest = self.pipe();
        let mut hops = hops.skip_while(|(pipe, _)| !std::ptr::eq(*pipe, slowest));
        let transmitted_in_vain = hops.next().map_or(0.0, |(pipe, own)| {
            let own_lost = match pipe.loss_at {
                LossAt::Exit => own.dropped.loss,
                LossAt::Entry => 0,
            };
            let later: u64 = hops.map(|(_, later)| later.dropped.total()).sum();
            let transmitted = own.offered_packets.saturating_sub(own.dropped.queue);
            (own_lost + later) as f64 * arrived as f64 / transmitted.max(1) as f64
        });
        let in_vain = transmitted_in_vain;
        let seconds = (last.arrived_ns - first.arrived_ns).max(1) as f64 / 1e9;
        let packets = (arrived - 1 + missed) as f64 + in_vain;
        let got = packets * wire_bytes * 8.0 / seconds;
        let mut note = format!("{:+.2} %", (got / set - 1.0) * 100.0);
        if missed > 0 {
            note = format!("{note}, the receiver missed {missed}");
        }
        if counters.queue_peak_packets < MIN_SATURATED_QUEUE {
            note = format!("{note}, the sender was too slow to fill it");
        }
        (set, got, (got / set - 1.0).abs() <= RATE_TOLERANCE, note)
    }

    /// Expected time of packets, in milliseconds.
    fn wanted_ms(&self) -> f64 {
        let hop_ns = |pipe: &PipeSettings| {
            let more_ns = match pipe.jitter {
                Jitter::Pareto { mean_ns } => mean_ns,
                _ => 0,
            };
            transmission_ns(pipe, self.plan.length_bytes) + pipe.delay_ns + more_ns
        };
        self.pipes().into_iter().map(hop_ns).sum::<u64>() as f64 / 1e6
    }

    fn delay(&self, measured: &Measured) -> (f64, f64, bool, String) {
        let set = self.wanted_ms();
        let mut errors: Vec<f64> = measured
            .times_ns()
            .iter()
            .map(|time_ns| *time_ns as f64 / 1e6 - set)
            .collect();
        if errors.is_empty() {
            return (set, 0.0, false, "nothing arrived".into());
        }
        errors.sort_by(f64::total_cmp);
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        let at = |part: f64| errors[whole_index(part, errors.len())];
        let is_steady = self.pipes().iter().all(|pipe| pipe.jitter == Jitter::None);
        let (is_true, note) = if is_steady {
            (
                at(0.95) <= DELAY_TOLERANCE_MS && errors[0] > -0.001,
                format!(
                    "error {mean:+.3}, 95 % {:+.3}, 99 % {:+.3}, worst {:+.3}",
                    at(0.95),
                    at(0.99),
                    at(1.0)
                ),
            )
        } else {
            // The mean of the variation, and the part that its spread leaves to chance.
            let allowed = 4.0 * self.wanted_deviation_ms() / (errors.len() as f64).sqrt();
            (
                mean.abs() <= DELAY_TOLERANCE_MS + allowed,
                format!("error of the mean {mean:+.3}"),
            )
        };
        (set, set + mean, is_true, note)
    }

    fn wanted_deviation_ms(&self) -> f64 {
        let hop_ms = |pipe: &PipeSettings| match pipe.jitter {
            Jitter::None => 0.0,
            Jitter::Uniform { plus_minus_ns } => plus_minus_ns as f64 / 3_f64.sqrt() / 1e6,
            Jitter::Normal { deviation_ns } => deviation_ns as f64 / 1e6,
            Jitter::Pareto { mean_ns } => mean_ns as f64 * 3_f64.sqrt() / 1e6,
        };
        // Hops know nothing of each other, so their variances add up.
        let variance: f64 = self
            .pipes()
            .into_iter()
            .map(|pipe| hop_ms(pipe).powi(2))
            .sum();
        variance.sqrt()
    }

    fn jitter(&self, measured: &Measured) -> (f64, f64, bool, String) {
        let times = measured.times_ns();
        let set = self.wanted_deviation_ms();
        if times.len() < 2 {
            return (set, 0.0, false, "nothing arrived".into());
        }
        let mean = times.iter().sum::<u64>() as f64 / times.len() as f64;
        let variance = times
            .iter()
            .map(|time| (*time as f64 - mean).powi(2))
            .sum::<f64>()
            / (times.len() - 1) as f64;
        let got = variance.sqrt() / 1e6;
        // A sample of N has a deviation with a relative error of 1 / sqrt(2 N). The error is far
        // larger if a few packets are very late.
        let is_pareto = |pipe: &&PipeSettings| matches!(pipe.jitter, Jitter::Pareto { .. });
        let chance = if self.pipes().iter().any(is_pareto) {
            0.5
        } else {
            3.0 / (2.0 * times.len() as f64).sqrt()
        };
        let held_back = measured.report.counters(self.plan.direction).held_back;
        let note = if held_back > 0 {
            format!("{held_back} held back for order")
        } else {
            format!("{:+.1} %", (got / set - 1.0) * 100.0)
        };
        let is_true = (got / set - 1.0).abs() <= JITTER_TOLERANCE + chance;
        (set, got, is_true, note)
    }

    fn loss(&self, measured: &Measured, seed: u64) -> (f64, f64, bool, String) {
        let losses: Vec<&Loss> = self.pipes().iter().map(|pipe| &pipe.loss).collect();
        let set = self.settings.expected_loss(self.plan.direction);
        let counters = measured.report.counters(self.plan.direction);
        let packets = counters.offered_packets.max(1) as f64;
        let got = counters.loss_rate();
        let factors = losses.iter().map(|loss| loss.variance_factor());
        let deviation = (set * (1.0 - set) / packets * factors.fold(1.0, f64::max)).sqrt();
        // All missing packets are those that the link counts as lost.
        let missing = measured.sent - measured.arrivals.len() as u64;
        let elsewhere = missing.saturating_sub(counters.dropped.total());
        // The link must have the model's losses for this seed, packet for packet.
        let predicted = self.predicted_losses(counters.offered_packets, seed);
        let is_as_modelled = predicted == Some(counters.dropped.loss);
        let events: f64 = losses
            .iter()
            .map(|loss| loss.events_per_packet() * packets)
            .sum();
        let is_likely = (got - set).abs() <= LOSS_DEVIATIONS.mul_add(deviation, 1e-9);
        let mut note = if events < MIN_LOSS_EVENTS {
            "too few losses to compare, but those of the seed".to_owned()
        } else {
            format!(
                "chance allows +-{:.2} points",
                deviation * LOSS_DEVIATIONS * 100.0
            )
        };
        if !is_as_modelled {
            note = format!("{note}, not those of the seed");
        }
        if elsewhere > 0 {
            note = format!("{note}, {elsewhere} more lost outside of the link");
        }
        let is_true = is_as_modelled
            && (is_likely || events < MIN_LOSS_EVENTS)
            && elsewhere as f64 <= packets / 1000.0;
        (set, got, is_true, note)
    }

    /// Number of packets among N that the model loses.
    fn predicted_losses(&self, packets: u64, seed: u64) -> Option<u64> {
        let only_loss = self.settings.map(|pipe| PipeSettings {
            loss: pipe.loss.clone(),
            ..PipeSettings::default()
        });
        let mut link = Link::<Vec<u8>>::new(&only_loss, seed).ok()?;
        for now_ns in 0..packets {
            link.push(self.plan.direction, now_ns, Vec::new());
            link.pop(self.plan.direction, now_ns);
        }
        Some(link.counters(self.plan.direction).dropped.loss)
    }
}

/// The place of a part of a sorted list.
#[allow(
    clippy::cast_sign_loss,
    reason = "a part is from 0 to 1, and the length is not negative"
)]
fn whole_index(part: f64, length: usize) -> usize {
    ((part * length as f64).ceil() as usize).clamp(1, length) - 1
}

/// Whether the emulator was in time often enough in all rows; if not, the fault.
#[must_use]
pub fn complaint(rows: &[Row]) -> Option<String> {
    let worst = rows
        .iter()
        .filter(|row| row.quantity != Quantity::Rate)
        .map(|row| row.lateness.p99_us)
        .fold(0.0, f64::max);
    if worst > LATENESS_US {
        return Some(format!(
            "the emulator was {:.1} ms late or more for one packet in a hundred",
            worst / 1e3
        ));
    }
    if rows.iter().any(|row| !row.has_real_time) {
        return Some(
            "the emulator has no real-time priority; other programs will make it late".into(),
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::PROFILES;

    #[test]
    fn every_profile_can_be_measured_without_overload() {
        for profile in &PROFILES {
            let settings = profile.settings();
            let all = measurements_of(profile.name, &settings, Duration::from_secs(1));
            assert!(all.len() >= 2, "{}", profile.name);
            for measurement in &all {
                let pipe = measurement.pipe();
                let transmission = transmission_ns(pipe, measurement.plan.length_bytes);
                let is_flood = measurement.quantities == [Quantity::Rate];
                assert_eq!(
                    is_flood,
                    measurement.plan.interval_ns < transmission,
                    "{measurement:?}"
                );
            }
        }
    }

    #[test]
    fn places_in_a_list_are_in_it() {
        assert_eq!(whole_index(0.0, 5), 0);
        assert_eq!(whole_index(0.5, 5), 2);
        assert_eq!(whole_index(0.95, 100), 94);
        assert_eq!(whole_index(1.0, 5), 4);
    }

    #[test]
    fn a_row_is_measured_with_real_packets() {
        if let Err(why) = crate::session::check_rights() {
            eprintln!("left out: {why}");
            return;
        }
        let hop = LinkSettings::symmetric(PipeSettings {
            delay_ns: 5 * MS,
            loss: Loss::Pattern {
                lost: vec![false, true],
                repeat: true,
            },
            ..PipeSettings::default()
        });
        let both = hop.clone().followed_by(hop.clone());
        for (settings, family, least_ms, lost) in
            [(hop, Family::V4, 5.0, 0.5), (both, Family::V6, 10.0, 0.75)]
        {
            let mut all = measurements_of("x", &settings, Duration::from_millis(200));
            let rows = all.remove(0).over(family).run(1).unwrap();
            assert_eq!(rows.len(), 2);
            // Its accuracy depends on the machine, and is not for a test.
            assert!(rows[0].got >= least_ms, "{rows:?}");
            assert!((rows[0].set - least_ms).abs() < 1e-9, "{rows:?}");
            assert!((rows[1].set - lost).abs() < 1e-9, "{rows:?}");
            assert!((rows[1].got - lost).abs() < 0.1, "{rows:?}");
            assert!(!rows[1].note.contains("not those of the seed"), "{rows:?}");
        }
    }

    #[test]
    fn sums_of_hops_are_expected() {
        let of = |rate_bps, delay_ns, deviation_ns| PipeSettings {
            rate_bps: Some(rate_bps),
            delay_ns,
            jitter: Jitter::Normal { deviation_ns },
            loss: Loss::Independent { probability: 0.1 },
            ..PipeSettings::default()
        };
        let settings = LinkSettings::symmetric(of(1_024_000, 10 * MS, 3 * MS))
            .followed_by(LinkSettings::symmetric(of(2_048_000, 20 * MS, 4 * MS)));
        let all = measurements_of("x", &settings, Duration::from_secs(1));
        assert_eq!(all.len(), 4);
        for measurement in &all {
            assert_eq!(measurement.pipe().rate_bps, Some(1_024_000));
        }
        // 128 bytes take 1 ms and 0.5 ms.
        assert!((all[0].wanted_ms() - 31.5).abs() < 1e-9);
        assert!((all[0].wanted_deviation_ms() - 5.0).abs() < 1e-9);
        assert!((settings.expected_loss(Direction::Up) - 0.19).abs() < 1e-9);
    }
}
