//! Whether a run took place under the conditions that it was meant to have.

use crate::link::{Counters, Direction, LinkSettings, Loss};

use super::device::Measured;
use super::site::SiteReport;

/// Allowed lateness of 99 % of the packets.
const MAX_LATE_P99_US: f64 = 1_000.0;
/// Allowed lateness of all packets but one of a thousand. A tenth of the round trip is allowed, too. One
/// stall of the machine does not spoil a run of many minutes; in a short one it is the latest packet.
const MAX_LATE_US: f64 = 5_000.0;
/// Allowed lateness of a device with 99 % of its messages. A tenth of the round trip, or a hundredth of
/// the interval between messages, is allowed, too. Timers of programs have a grain of a millisecond. A
/// delay counts from the hand-over of a message, so lateness changes only the intervals.
const MAX_DEVICE_LATE_P99_MS: f64 = 3.0;
/// CPU pressure that only programs with real-time priority stand.
const MAX_PRESSURE_PERCENT: f64 = 60.0;
/// Part of a core beyond which a process of one thread was the limit of a run, not its link.
const MAX_BUSY: f64 = 0.8;
/// Allowed error of measured losses, in standard deviations: one run of 16 000 is refused unjustly.
const LOSS_DEVIATIONS: f64 = 4.0;

/// Known conditions of a run.
#[derive(Debug)]
pub(super) struct Conditions<'a> {
    pub(super) settings: &'a LinkSettings,
    /// Between two messages of a device; 0 where each follows the one before at once.
    pub(super) interval_ns: u64,
    pub(super) report: &'a SiteReport,
    pub(super) devices: &'a [&'a Measured],
    /// Congestion control: the requested one, and that of the device's connection.
    pub(super) congestion: Option<(&'a str, &'a str)>,
    pub(super) has_real_time_emulator: bool,
    pub(super) pressure_percent: Option<f64>,
    /// Parts of a core that processes of one thread took, by what they did.
    pub(super) busy: &'a [(String, f64)],
}

/// The conditions that were out of tolerance.
pub(super) fn complaints(conditions: &Conditions<'_>) -> Vec<String> {
    let mut complaints = Vec::new();
    let rtt_us = conditions.settings.rtt_ns() as f64 / 1e3;
    let report = conditions.report;
    if let Some(late) = report.late {
        if late.p99_us > MAX_LATE_P99_US {
            complaints.push(format!(
                "1 % of the packets left the link more than {:.1} ms late",
                late.p99_us / 1e3
            ));
        }
        let most_us = MAX_LATE_US.max(rtt_us / 10.0);
        if late.p999_us > most_us {
            complaints.push(format!(
                "packets left the link {:.1} ms late",
                late.p999_us / 1e3
            ));
        }
        for (name, hops, counters) in [
            (
                "up",
                conditions.settings.hops_of(Direction::Up),
                &report.hops_up,
            ),
            (
                "down",
                conditions.settings.hops_of(Direction::Down),
                &report.hops_down,
            ),
        ] {
            for (hop, counters) in hops.iter().zip(counters) {
                complaints.extend(implausible_loss(name, &hop.loss, counters));
            }
        }
        if report.refused > 0 {
            complaints.push(format!("the kernel refused {} packets", report.refused));
        }
    }
    if report.overflows > 0 {
        complaints.push(format!(
            "the kernel dropped {} packets before the link saw them",
            report.overflows
        ));
    }
    let most_ms = MAX_DEVICE_LATE_P99_MS
        .max(rtt_us / 1e4)
        .max(conditions.interval_ns as f64 / 1e8);
    for device in conditions.devices {
        let late_ms = device.late_p99_ns as f64 / 1e6;
        if late_ms > most_ms {
            complaints.push(format!(
                "1 % of the messages were handed over more than {late_ms:.1} ms late"
            ));
        }
    }
    if let Some((wanted, got)) = conditions.congestion
        && wanted != got
    {
        complaints.push(format!("congestion control was {got} instead of {wanted}"));
    }
    for (what, part) in conditions.busy {
        if *part > MAX_BUSY {
            complaints.push(format!(
                "the machine was the limit: {what} took {:.0} % of a core",
                part * 100.0
            ));
        }
    }
    let is_preferred = conditions.has_real_time_emulator
        && conditions.devices.iter().all(|device| device.is_real_time);
    if let Some(pressure) = conditions.pressure_percent
        && pressure > MAX_PRESSURE_PERCENT
        && !is_preferred
    {
        complaints.push(format!(
            "CPU pressure {pressure:.0} % without real-time priority"
        ));
    }
    complaints
}

/// A loss that chance does not explain.
fn implausible_loss(name: &str, set: &Loss, counters: &Counters) -> Option<String> {
    let packets = counters.offered_packets as f64;
    let expected = set.expected();
    if packets == 0.0 || expected == 0.0 {
        return None;
    }
    let deviation = (expected * (1.0 - expected) * set.variance_factor() / packets).sqrt();
    let got = counters.loss_rate();
    // A packet more or less is always possible.
    let bound = LOSS_DEVIATIONS.mul_add(deviation, 1.0 / packets);
    ((got - expected).abs() > bound).then(|| {
        format!(
            "{:.1} % of the packets {name} were lost instead of {:.1} %",
            got * 100.0,
            expected * 100.0
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::site::Late;
    use crate::profile::Profile;

    fn report(late_us: f64, lost: u64) -> SiteReport {
        let mut up = Counters {
            offered_packets: 2000,
            ..Counters::default()
        };
        up.dropped.loss = lost;
        SiteReport {
            up,
            down: Counters::default(),
            hops_up: vec![up],
            hops_down: vec![Counters::default()],
            late: Some(Late {
                p99_us: late_us,
                p999_us: late_us,
                max_us: late_us,
            }),
            refused: 0,
            overflows: 0,
            packets: None,
            packets_from_ns: 0,
            negotiated: None,
            unanswered: None,
            tcp_retransmissions_up: None,
            tcp_retransmissions_down: None,
            fast_opens: None,
        }
    }

    fn complaints_of(report: &SiteReport, device: &Measured, pressure: f64) -> Vec<String> {
        complaints_every(100_000_000, report, device, pressure)
    }

    fn complaints_every(
        interval_ns: u64,
        report: &SiteReport,
        device: &Measured,
        pressure: f64,
    ) -> Vec<String> {
        let mut settings = Profile::find("wifi").unwrap().settings();
        settings.up.loss = Loss::Independent { probability: 0.05 };
        complaints(&Conditions {
            settings: &settings,
            interval_ns,
            report,
            devices: &[device],
            congestion: Some(("cubic", device.congestion.as_deref().unwrap_or("cubic"))),
            has_real_time_emulator: true,
            pressure_percent: Some(pressure),
            busy: &[("the device while idle".into(), 0.8)],
        })
    }

    #[test]
    fn a_process_that_fills_its_core_marks_the_run() {
        let settings = Profile::find("wifi").unwrap().settings();
        let complaints = complaints(&Conditions {
            settings: &settings,
            interval_ns: 0,
            report: &report(0.0, 0),
            devices: &[],
            congestion: None,
            has_real_time_emulator: true,
            pressure_percent: None,
            busy: &[
                ("the broker while connecting".into(), 0.95),
                ("the device while connecting".into(), 0.3),
            ],
        });
        let expected = "the machine was the limit: the broker while connecting took 95 % of a core";
        assert_eq!(complaints, [expected]);
    }

    #[test]
    fn good_runs_are_sound_and_others_say_what_was_wrong() {
        let real_time = Measured {
            is_real_time: true,
            ..Measured::default()
        };
        let good = complaints_of(&report(100.0, 100), &real_time, 90.0);
        assert_eq!(good, Vec::<String>::new());
        let late = complaints_of(&report(2_000.0, 100), &real_time, 0.0);
        assert!(late[0].contains("2.0 ms late"), "{late:?}");
        let very_late = complaints_of(&report(9_000.0, 100), &real_time, 0.0);
        assert_eq!(very_late.len(), 2);
        let lucky = complaints_of(&report(0.0, 40), &real_time, 0.0);
        assert!(lucky[0].contains("2.0 % of the packets up"), "{lucky:?}");
        let busy = complaints_of(&report(0.0, 100), &Measured::default(), 90.0);
        assert!(busy[0].contains("pressure 90 %"), "{busy:?}");
        let other = Measured {
            congestion: Some("bbr".into()),
            ..real_time.clone()
        };
        let other = complaints_of(&report(0.0, 100), &other, 0.0);
        assert!(other[0].contains("bbr instead of cubic"), "{other:?}");
        let slow = Measured {
            late_p99_ns: 8_000_000,
            ..real_time
        };
        assert!(complaints_of(&report(0.0, 100), &slow, 0.0)[0].contains("8.0 ms late"));
        // Of a message a second that is nothing.
        let seldom = complaints_every(1_000_000_000, &report(0.0, 100), &slow, 0.0);
        assert_eq!(seldom, Vec::<String>::new());
    }
}
