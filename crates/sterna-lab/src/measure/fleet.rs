//! A fleet's run: its phases, what each costs, and a power cut of the broker.
//!
//! The device says `finished` after each phase, and waits for `go` before the next one. At the ends of
//! the phases all have connected, all messages have left, and all are back after the power cut.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::broker::Broker;
use super::describe::{milliseconds, set};
use super::device::{Measured, Word};
use super::process::{INTERRUPTED, Process};
use super::run::Setting;
use super::sample::Sample;
use super::site::{Passed, Site};
use crate::campaign::{Fleet, Run};
use crate::kernel::monotonic_ns;

/// Interval of checks whether the campaign was interrupted.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The course of one run.
#[derive(Debug)]
pub(super) struct Course<'a> {
    fleet: &'a Fleet,
    devices: f64,
    deadline: Instant,
    stop: &'a AtomicBool,
    /// Parts of a core that processes took in phases.
    busy: Vec<(String, f64)>,
    /// When the broker was there again after its power cut.
    back_ns: Option<u64>,
}

/// State at the start of a phase.
struct Phase {
    name: &'static str,
    began: Instant,
    passed: Option<Passed>,
    broker_cpu_ns: Option<u64>,
    device_cpu_ns: Option<u64>,
}

impl<'a> Course<'a> {
    /// That of a run, if it has a fleet.
    pub(super) fn of(run: &'a Run, deadline: Instant, stop: &'a AtomicBool) -> Option<Self> {
        Some(Self {
            fleet: run.workload.fleet.as_ref()?,
            devices: f64::from(run.workload.connections),
            deadline,
            stop,
            busy: Vec::new(),
            back_ns: None,
        })
    }

    /// Parts of a core that processes took, by name.
    pub(super) fn busy(&self) -> &[(String, f64)] {
        &self.busy
    }

    fn begin(
        name: &'static str,
        site: &mut Site,
        broker: &Broker,
        device: &Process,
    ) -> Result<Phase, String> {
        Ok(Phase {
            name,
            passed: site.passed().map_err(|error| format!("link: {error}"))?,
            broker_cpu_ns: broker.process().and_then(Process::cpu_ns),
            device_cpu_ns: device.cpu_ns(),
            began: Instant::now(),
        })
    }

    /// Notes what a phase has cost.
    fn end(
        &mut self,
        phase: &Phase,
        site: &mut Site,
        broker: &Broker,
        device: &Process,
        sample: &mut Sample,
    ) -> Result<(), String> {
        let after = Self::begin(phase.name, site, broker, device)?;
        let seconds = (after.began - phase.began).as_secs_f64();
        let name = phase.name;
        if let (Some(before), Some(after)) = (&phase.passed, &after.passed) {
            for (direction, before, after) in [
                ("up", &before.up, &after.up),
                ("down", &before.down, &after.down),
            ] {
                let bytes = after.offered_bytes - before.offered_bytes;
                let lost = after.dropped.total() - before.dropped.total();
                set(sample, &format!("{name}_bytes_{direction}"), bytes as f64);
                set(sample, &format!("{name}_lost_{direction}"), lost as f64);
            }
        }
        for (program, before, after) in [
            ("broker", phase.broker_cpu_ns, after.broker_cpu_ns),
            ("device", phase.device_cpu_ns, after.device_cpu_ns),
        ] {
            let (Some(before), Some(after)) = (before, after) else {
                continue;
            };
            let cpu_s = after.saturating_sub(before) as f64 / 1e9;
            set(sample, &format!("{name}_{program}_cpu_s"), cpu_s);
            if seconds > 0.0 {
                self.busy
                    .push((format!("the {program} while {name}"), cpu_s / seconds));
            }
        }
        Ok(())
    }

    fn finished(&self, device: &mut Process) -> Result<(), String> {
        match device.word(self.deadline, self.stop)? {
            Word::Finished => Ok(()),
            other => Err(format!("device: said {other:?} before it was finished")),
        }
    }

    /// Lets all devices connect.
    pub(super) fn connect(
        &mut self,
        site: &mut Site,
        broker: &Broker,
        device: &mut Process,
        sample: &mut Sample,
    ) -> Result<(), String> {
        let rss = |broker: &Broker| broker.process().and_then(Process::rss_bytes);
        let before = rss(broker);
        let phase = Self::begin("connecting", site, broker, device)?;
        device.say("go")?;
        self.finished(device)?;
        self.end(&phase, site, broker, device, sample)?;
        if let (Some(before), Some(after)) = (before, rss(broker)) {
            let each = after.saturating_sub(before) as f64 / self.devices;
            set(sample, "broker_rss_per_device_bytes", each);
        }
        Ok(())
    }

    /// The broker is without power for a while, if that is wanted. Its memory is lost, and its host
    /// sends nothing to anybody.
    pub(super) fn power_cut(
        &mut self,
        setting: &Setting<'_>,
        run: &Run,
        (site, broker, device): (&mut Site, &mut Broker, &mut Process),
        sample: &mut Sample,
    ) -> Result<(), String> {
        if let Some(bytes) = broker.process().and_then(Process::peak_rss_bytes) {
            set(sample, "broker_peak_rss_bytes", bytes as f64);
        }
        let Some(outage_ns) = self.fleet.power_cut_ns() else {
            return Ok(());
        };
        site.power(false)?;
        broker.kill()?;
        let cut_ns = monotonic_ns();
        device.say("go")?;
        let until = Instant::now() + Duration::from_nanos(outage_ns);
        while Instant::now() < until {
            if self.stop.load(Ordering::Relaxed) {
                return Err(INTERRUPTED.into());
            }
            thread::sleep(LOOK_EVERY.min(until.saturating_duration_since(Instant::now())));
        }
        *broker = Broker::start(setting, site, run)?;
        if let Some(process) = broker.process() {
            process.prefer();
        }
        let phase = Self::begin("recovering", site, broker, device)?;
        site.power(true)?;
        let back_ns = monotonic_ns();
        self.back_ns = Some(back_ns);
        set(sample, "outage_s", (back_ns - cut_ns) as f64 / 1e9);
        self.finished(device)?;
        self.end(&phase, site, broker, device, sample)
    }

    /// Values that come from the device's moments.
    pub(super) fn describe(&self, measured: &Measured, sample: &mut Sample) {
        let connected = measured.started_ns.iter().zip(&measured.connect_ns);
        if let Some(last_ns) = connected.map(|(started, took)| started + took).max() {
            let all_s = last_ns.saturating_sub(measured.first_ns) as f64 / 1e9;
            set(sample, "all_connected_s", all_s);
        }
        let Some(back_ns) = self.back_ns else {
            return;
        };
        let mut after_ns: Vec<u64> = measured
            .reconnected_ns
            .iter()
            .map(|moment| moment.saturating_sub(back_ns))
            .collect();
        after_ns.sort_unstable();
        if let Some(last_ns) = after_ns.last() {
            set(sample, "all_recovered_s", *last_ns as f64 / 1e9);
        }
        let recovered = milliseconds(after_ns);
        sample.series.insert("recovered_ms".into(), recovered);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::{Campaign, Plan};
    use crate::measure::Verdict;

    #[test]
    fn the_last_device_counts() {
        let (campaign, _) = Campaign::find("reach").unwrap();
        let plan = Plan::new(&campaign, true, 1, &["fleet".into()]).unwrap();
        let run = &plan.runs[0];
        let stop = AtomicBool::new(false);
        let mut course = Course::of(run, Instant::now(), &stop).unwrap();
        let measured = Measured {
            first_ns: 1_000,
            started_ns: vec![1_000, 2_000],
            connect_ns: vec![7_000_000_000, 3_000_000_000],
            reconnected_ns: vec![40_000_000, 30_000_000],
            ..Measured::default()
        };
        let mut sample = Sample::of(run, "tun", 0, Verdict::Sound);
        course.describe(&measured, &mut sample);
        assert!((sample.metrics["all_connected_s"] - 7.0).abs() < 1e-5);
        assert!(sample.series.is_empty(), "there was no power cut");
        course.back_ns = Some(10_000_000);
        course.describe(&measured, &mut sample);
        assert!((sample.metrics["all_recovered_s"] - 0.03).abs() < 1e-9);
        assert_eq!(sample.series["recovered_ms"], [20.0, 30.0]);
    }
}
