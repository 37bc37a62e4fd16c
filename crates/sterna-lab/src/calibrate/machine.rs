//! Load of this machine.

use std::fs;
use std::thread;

use serde::{Deserialize, Serialize};

/// CPU pressure above which times are not to be trusted. It is the part of the last ten seconds in which
/// a task waited for a core, in percent.
const BUSY_PRESSURE_PERCENT: f64 = 20.0;

/// Other load of this machine.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Machine {
    /// Cores that this process may use.
    pub cores: usize,
    /// Mean number of runnable tasks of the last minute.
    pub load: Option<f64>,
    /// Part of the last ten seconds in which some task waited for a core, in percent.
    pub pressure_percent: Option<f64>,
    /// Part of the CPU time since the start of the machine that its host gave to others, in percent.
    pub steal_percent: Option<f64>,
    /// The kernel's version.
    pub kernel: String,
    /// TCP's congestion control unless something else is asked for.
    pub congestion_control: String,
    /// The processor's name.
    pub processor: Option<String>,
    /// Memory that programs may still take, in bytes.
    pub available_bytes: Option<u64>,
}

impl Machine {
    /// Reads the load. Unreadable values are left out.
    #[must_use]
    pub fn look() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self {
            cores: thread::available_parallelism().map_or(1, std::num::NonZero::get),
            load: read("/proc/loadavg")
                .split_ascii_whitespace()
                .next()
                .and_then(|load| load.parse().ok()),
            pressure_percent: pressure(&read("/proc/pressure/cpu")),
            steal_percent: steal(&read("/proc/stat")),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            congestion_control: read("/proc/sys/net/ipv4/tcp_congestion_control")
                .trim()
                .to_owned(),
            processor: field(&read("/proc/cpuinfo"), "model name").map(str::to_owned),
            available_bytes: field(&read("/proc/meminfo"), "MemAvailable").and_then(kibibytes),
        }
    }

    /// Why measurements on this machine would not be worth much now, if so.
    #[must_use]
    pub fn complaint(&self) -> Option<String> {
        if let Some(pressure) = self.pressure_percent
            && pressure > BUSY_PRESSURE_PERCENT
        {
            return Some(format!(
                "the machine is busy: in {pressure:.0} % of the last ten seconds something waited \
                 for a core"
            ));
        }
        if let (None, Some(load)) = (self.pressure_percent, self.load)
            && load > self.cores as f64
        {
            return Some(format!(
                "the machine is busy: {load:.1} tasks for {} cores",
                self.cores
            ));
        }
        None
    }
}

/// The value of the first line `NAME : VALUE`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// Bytes of a value of `/proc/meminfo`, such as `12 kB`.
fn kibibytes(text: &str) -> Option<u64> {
    let number: u64 = text.strip_suffix("kB")?.trim().parse().ok()?;
    number.checked_mul(1024)
}

/// `some avg10` of `/proc/pressure/cpu`.
fn pressure(text: &str) -> Option<f64> {
    text.lines()
        .find(|line| line.starts_with("some"))?
        .split_ascii_whitespace()
        .find_map(|field| field.strip_prefix("avg10="))?
        .parse()
        .ok()
}

/// Ticks of CPU time since the machine started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuTicks {
    all: f64,
    stolen: f64,
}

impl CpuTicks {
    /// Until now; none where the kernel doesn't tell.
    pub(crate) fn now() -> Option<Self> {
        Self::read(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// The first line of `/proc/stat`; its eighth time is the one that the host gave to others.
    fn read(text: &str) -> Option<Self> {
        let times: Vec<f64> = text
            .lines()
            .next()?
            .split_ascii_whitespace()
            .skip(1)
            .take(8)
            .map_while(|time| time.parse().ok())
            .collect();
        let all: f64 = times.iter().sum();
        (times.len() == 8 && all > 0.0).then(|| Self {
            all,
            stolen: times[7],
        })
    }

    /// The part that was stolen since `before`, in percent.
    pub(crate) fn stolen_percent_since(&self, before: &Self) -> f64 {
        let all = self.all - before.all;
        if all > 0.0 {
            (self.stolen - before.stolen) / all * 100.0
        } else {
            0.0
        }
    }
}

/// The part that was stolen since the start of the machine, in percent.
fn steal(text: &str) -> Option<f64> {
    let ticks = CpuTicks::read(text)?;
    Some(ticks.stolen / ticks.all * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_figures_are_read() {
        let text = "some avg10=23.50 avg60=1.00 avg300=2.88 total=7\nfull avg10=0.00\n";
        assert_eq!(pressure(text), Some(23.5));
        assert_eq!(pressure(""), None);
        assert_eq!(steal("cpu 10 10 10 50 0 0 0 20 5 0\n"), Some(20.0));
        assert_eq!(steal("cpu 1 2\n"), None);
        let text = "MemFree:  1 kB\nMemAvailable:   12 kB\nmodel name\t: A B\n";
        assert_eq!(
            field(text, "MemAvailable").and_then(kibibytes),
            Some(12_288)
        );
        assert_eq!(field(text, "model name"), Some("A B"));
        assert_eq!(field(text, "Swap"), None);
        let mut machine = Machine::look();
        machine.pressure_percent = Some(90.0);
        assert!(machine.complaint().unwrap().contains("90 %"));
        machine.pressure_percent = Some(1.0);
        machine.load = Some(1e3);
        assert_eq!(machine.complaint(), None);
        machine.pressure_percent = None;
        assert!(machine.complaint().is_some());
    }
}
