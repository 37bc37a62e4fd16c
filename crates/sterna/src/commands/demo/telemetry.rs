//! Figures of this host, from `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::Instant;

/// Most processors, network interfaces and disks that get topics of their own.
const MAX_PARTS: usize = 16;
/// Bytes in a sector of `/proc/diskstats`, which is not the disk's own sector size.
const SECTOR_BYTES: f64 = 512.0;
const KIB: f64 = 1024.0;

/// One value that was measured.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Reading {
    /// Topic below the device's, for example `eth0/received`.
    pub(super) topic: String,
    pub(super) value: f64,
    pub(super) unit: &'static str,
}

impl Reading {
    fn new(topic: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self {
            topic: topic.into(),
            value,
            unit,
        }
    }
}

/// A part of the host that measures something, each a device of its own for the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Device {
    Processor,
    Memory,
    Network,
    System,
    Disk,
}

impl Device {
    pub(super) const ALL: [Self; 5] = [
        Self::Processor,
        Self::Memory,
        Self::Network,
        Self::System,
        Self::Disk,
    ];

    /// The device's level in the topic.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Processor => "processor",
            Self::Memory => "memory",
            Self::Network => "network",
            Self::System => "system",
            Self::Disk => "disk",
        }
    }

    const fn file(self) -> &'static str {
        match self {
            Self::Processor => "/proc/stat",
            Self::Memory => "/proc/meminfo",
            Self::Network => "/proc/net/dev",
            Self::System => "/proc/loadavg",
            Self::Disk => "/proc/diskstats",
        }
    }
}

/// The name of this host, fit for a topic.
pub(super) fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String = name
        .trim()
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, '-' | '.'))
        .collect();
    if name.is_empty() {
        "localhost".to_owned()
    } else {
        name
    }
}

/// Counters that grow, by name.
type Counters = BTreeMap<String, [u64; 2]>;

/// Measures one device again and again; rates need two measurements.
pub(super) struct Meter {
    device: Device,
    before: Option<(Instant, Counters)>,
}

impl Meter {
    pub(super) const fn new(device: Device) -> Self {
        Self {
            device,
            before: None,
        }
    }

    /// Measures now. Values that are rates are missing the first time.
    pub(super) fn measure(&mut self) -> io::Result<Vec<Reading>> {
        let text = fs::read_to_string(self.device.file())?;
        Ok(self.read(&text, Instant::now()))
    }

    fn read(&mut self, text: &str, now: Instant) -> Vec<Reading> {
        match self.device {
            Device::Memory => memory(text),
            Device::System => system(text),
            Device::Processor => {
                let usage = |name: &str, [busy, all]: [u64; 2], _| {
                    let share = if all == 0 {
                        0.0
                    } else {
                        busy as f64 / all as f64
                    };
                    vec![Reading::new(format!("{name}/usage"), share * 100.0, "%")]
                };
                self.rates(processors(text), now, usage)
            }
            Device::Network => self.rates(interfaces(text), now, |name, [received, sent], s| {
                vec![
                    Reading::new(
                        format!("{name}/received"),
                        received as f64 / KIB / s,
                        "KiB/s",
                    ),
                    Reading::new(format!("{name}/sent"), sent as f64 / KIB / s, "KiB/s"),
                ]
            }),
            Device::Disk => self.rates(disks(text), now, |name, [read, written], s| {
                let rate = |sectors: u64| sectors as f64 * SECTOR_BYTES / KIB / s;
                vec![
                    Reading::new(format!("{name}/read"), rate(read), "KiB/s"),
                    Reading::new(format!("{name}/written"), rate(written), "KiB/s"),
                ]
            }),
        }
    }

    /// The change of the counters since the last reading, with the seconds between.
    fn rates(
        &mut self,
        counters: Counters,
        now: Instant,
        readings: impl Fn(&str, [u64; 2], f64) -> Vec<Reading>,
    ) -> Vec<Reading> {
        let mut all = Vec::new();
        if let Some((then, before)) = &self.before {
            let seconds = now.duration_since(*then).as_secs_f64().max(0.001);
            for (name, [a, b]) in &counters {
                if let Some([old_a, old_b]) = before.get(name) {
                    let grown = [a.saturating_sub(*old_a), b.saturating_sub(*old_b)];
                    all.extend(readings(name, grown, seconds));
                }
            }
        }
        self.before = Some((now, counters));
        all
    }
}

/// Ticks busy and ticks in all, of all processors together and of each.
fn processors(text: &str) -> Counters {
    let lines = text
        .lines()
        .filter(|line| line.starts_with("cpu"))
        .take(1 + MAX_PARTS);
    lines
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let name = words.next()?;
            // user, nice, system, idle, iowait, irq, softirq, steal; guests count as user already
            let ticks: Vec<u64> = words.take(8).map_while(|word| word.parse().ok()).collect();
            let all: u64 = ticks.iter().sum();
            let idle: u64 = ticks.iter().skip(3).take(2).sum();
            let name = if name == "cpu" { "all" } else { name };
            Some((name.to_owned(), [all - idle, all]))
        })
        .collect()
}

fn memory(text: &str) -> Vec<Reading> {
    let kib = |name: &str| {
        text.lines()
            .find_map(|line| {
                line.strip_prefix(name)?
                    .strip_prefix(':')?
                    .split_whitespace()
                    .next()
            })
            .and_then(|number| number.parse::<f64>().ok())
    };
    let mut readings = Vec::new();
    let mut add = |topic: &str, kib: Option<f64>| {
        readings.extend(kib.map(|kib| Reading::new(topic, kib / KIB, "MiB")));
    };
    let less = |a: Option<f64>, b: Option<f64>| Some(a? - b?);
    add("used", less(kib("MemTotal"), kib("MemAvailable")));
    add("available", kib("MemAvailable"));
    add("cached", kib("Cached"));
    add("swapped", less(kib("SwapTotal"), kib("SwapFree")));
    readings
}

fn system(text: &str) -> Vec<Reading> {
    let mut words = text.split_whitespace();
    let mut readings = Vec::new();
    for topic in ["load/1min", "load/5min", "load/15min"] {
        let value = words.next().and_then(|word| word.parse().ok());
        readings.extend(value.map(|value| Reading::new(topic, value, "")));
    }
    let tasks = words.next().and_then(|word| word.split_once('/'));
    if let Some((running, all)) = tasks {
        for (topic, count) in [("tasks/running", running), ("tasks/all", all)] {
            readings.extend(
                count
                    .parse()
                    .ok()
                    .map(|count| Reading::new(topic, count, "")),
            );
        }
    }
    readings
}

/// Bytes received and sent, of interfaces that have been used.
fn interfaces(text: &str) -> Counters {
    let used = text.lines().filter_map(|line| {
        let (name, counters) = line.split_once(':')?;
        let mut counters = counters.split_whitespace();
        let received = counters.next()?.parse().ok()?;
        let sent = counters.nth(7)?.parse().ok()?;
        (received > 0).then(|| (name.trim().to_owned(), [received, sent]))
    });
    used.take(MAX_PARTS).collect()
}

/// Sectors read and written, of disks that have been used.
fn disks(text: &str) -> Counters {
    let used = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(2);
        let name = words.next()?;
        let read = words.nth(2)?.parse().ok()?;
        let written = words.nth(3)?.parse().ok()?;
        (read > 0).then(|| (name.to_owned(), [read, written]))
    });
    used.take(MAX_PARTS).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn readings(device: Device, before: &str, after: &str) -> Vec<(String, f64)> {
        let mut meter = Meter::new(device);
        let start = Instant::now();
        meter.read(before, start);
        let later = meter.read(after, start + Duration::from_secs(2));
        later
            .into_iter()
            .map(|reading| (reading.topic, reading.value))
            .collect()
    }

    #[test]
    fn processors_tell_their_share() {
        let before = "cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 50 0 50 400 0 0 0 0 0 0\nintr 5\n";
        let after = "cpu  150 0 150 850 50 0 0 0 0 0\ncpu0 50 0 50 500 0 0 0 0 0 0\nintr 9\n";
        let expected = [
            ("all/usage".to_owned(), 50.0),
            ("cpu0/usage".to_owned(), 0.0),
        ];
        assert_eq!(readings(Device::Processor, before, after), expected);
        assert!(
            Meter::new(Device::Processor)
                .read(before, Instant::now())
                .is_empty()
        );
    }

    #[test]
    fn interfaces_and_disks_tell_their_rates() {
        let head = "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes packets\n";
        let line = |received, sent| {
            format!(
                "{head}  eth0: {received} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0 0 0\n  off: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
            )
        };
        let expected = [
            ("eth0/received".to_owned(), 1.0),
            ("eth0/sent".to_owned(), 0.5),
        ];
        assert_eq!(
            readings(Device::Network, &line(1000, 0), &line(3048, 1024)),
            expected
        );
        let line = |read, written| {
            format!(
                "   7 0 loop0 0 0 0 0 0 0 0 0 0 0 0\n 254 0 vda 9 9 {read} 9 9 9 {written} 9 0 9 9\n"
            )
        };
        let expected = [
            ("vda/read".to_owned(), 1.0),
            ("vda/written".to_owned(), 2.0),
        ];
        assert_eq!(readings(Device::Disk, &line(10, 0), &line(14, 8)), expected);
    }

    #[test]
    fn memory_and_load_are_values() {
        let text = "MemTotal: 4096 kB\nMemFree: 9 kB\nMemAvailable: 1024 kB\nCached: 512 kB\n";
        let values = memory(text);
        assert_eq!(values[0], Reading::new("used", 3.0, "MiB"));
        assert_eq!(values.len(), 3, "no swap, no reading");
        let values = system("0.50 1.25 2.00 3/250 12345\n");
        let topics: Vec<_> = values
            .iter()
            .map(|reading| reading.topic.as_str())
            .collect();
        assert_eq!(
            topics,
            [
                "load/1min",
                "load/5min",
                "load/15min",
                "tasks/running",
                "tasks/all"
            ]
        );
        assert!(system("").is_empty());
    }

    #[test]
    fn this_host_can_be_measured() {
        for device in Device::ALL {
            let mut meter = Meter::new(device);
            meter.measure().unwrap();
            assert!(
                !meter.measure().unwrap().is_empty() || device == Device::Disk,
                "{device:?}"
            );
        }
        assert!(!host_name().contains(['/', '+', '#']));
    }
}
