//! ns-3 in place of this project's own link: a cross-check of it, and of the energy figures.
//!
//! The scenario is C++ and comes with the lab. It is compiled with the installed ns-3, once for
//! each campaign, and runs in real time as a process of each run. Between the namespaces and ns-3
//! are TAP devices, whose descriptors that process inherits.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::process::Process;
use super::site::Late;
use crate::kernel;
use crate::link::{Counters, DropCounts, Jitter, LinkSettings, Loss, PipeSettings, Queue};
use crate::profile::Profile;

/// The scenario's text.
const SCENARIO: &str = include_str!("ns3/scenario.cc");
/// Name of the compiled scenario.
pub(super) const PROGRAM: &str = "ns3-scenario";
/// The parts of ns-3 that it needs.
const LIBRARIES: [&str; 14] = [
    "core",
    "network",
    "internet",
    "mobility",
    "energy",
    "fd-net-device",
    "point-to-point",
    "wifi",
    "propagation",
    "spectrum",
    "antenna",
    "stats",
    "bridge",
    "traffic-control",
];
/// Where the headers are, as ns-3 and Debian install them.
const INCLUDES: [&str; 2] = ["/usr/include", "/usr/local/include"];
/// A header that shows that they are there.
const HEADER: &str = "ns3/fd-net-device-module.h";
/// Compilers, in the order in which they are tried.
const COMPILERS: [&str; 3] = ["g++", "c++", "clang++"];
/// Profiles that are ns-3's WiFi instead of a point-to-point link, and the scenario's words for them.
const WIFI_PROFILES: [(&str, &str); 2] = [("wifi-a", "wifi"), ("wifi-a-54", "wifi-54")];
/// Longest time for the stations of a WiFi to find their access point, and for ns-3 to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Compiles the scenario into a folder.
///
/// # Errors
///
/// The missing parts, or the compiler's error.
pub(super) fn compile(folder: &Path) -> Result<PathBuf, String> {
    let missing = missing();
    if !missing.is_empty() {
        return Err(format!(
            "--emulator ns3 needs {}; on Debian: apt-get install g++ libns3-dev",
            missing.join(" and ")
        ));
    }
    let source = folder.join("scenario.cc");
    let program = folder.join(PROGRAM);
    fs::write(&source, SCENARIO).map_err(|error| format!("{}: {error}", source.display()))?;
    let compiler = find(&COMPILERS).ok_or("no C++ compiler")?;
    let mut command = Command::new(compiler);
    command
        .args(["-std=c++17", "-O2", "-o"])
        .arg(&program)
        .arg(&source);
    for folder in INCLUDES {
        command.arg(format!("-I{folder}"));
    }
    // Types are found by their names at run time: a library that nothing refers to is needed too.
    command.arg("-Wl,--no-as-needed");
    for library in LIBRARIES {
        command.arg(format!("-lns3-{library}"));
    }
    command.arg("-lpthread");
    let output = command
        .output()
        .map_err(|error| format!("{compiler}: {error}"))?;
    if output.status.success() {
        return Ok(program);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let first: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("error") || line.contains("cannot find"))
        .take(4)
        .collect();
    Err(format!(
        "ns-3's scenario does not compile (it is for ns-3.37): {}",
        first.join("; ")
    ))
}

/// The missing parts for compiling.
fn missing() -> Vec<String> {
    let mut missing = Vec::new();
    if find(&COMPILERS).is_none() {
        missing.push(format!("a C++ compiler ({})", COMPILERS.join(", ")));
    }
    if !INCLUDES
        .iter()
        .any(|folder| Path::new(folder).join(HEADER).is_file())
    {
        missing.push(format!(
            "the headers of ns-3 ({HEADER} in {})",
            INCLUDES.join(" or ")
        ));
    }
    missing
}

/// The first of these programs that is in the path.
fn find(programs: &[&'static str]) -> Option<&'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    programs
        .iter()
        .copied()
        .find(|program| folders.iter().any(|folder| folder.join(program).is_file()))
}

/// A link in ns-3.
#[derive(Debug)]
pub(super) struct Simulation {
    process: Process,
    /// Kept open as long as ns-3 runs.
    _taps: [OwnedFd; 2],
}

/// An answer of ns-3.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Answer {
    up: Counts,
    down: Counts,
    lag_p99_us: f64,
    lag_p999_us: f64,
    lag_max_us: f64,
    /// How often the lag was looked at: once a millisecond.
    looks: u64,
    /// Looks that found more than a millisecond.
    late_looks: u64,
    energy_j: Option<f64>,
    air: Option<Air>,
}

/// Activity of stations and access point on the air since the start, where that is WiFi.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
pub(super) struct Air {
    /// Frames with data, each try.
    frames: u64,
    /// Sum of their rates, in bits per second.
    rate_sum_bps: f64,
    /// Time that they took.
    airtime_s: f64,
    /// Frames whose acknowledgement did not come.
    unacknowledged: u64,
    /// Most frames that waited in one queue, looked at once a millisecond.
    longest_queue: u64,
}

impl Air {
    /// Activity since an earlier look, by the names of metrics. The longest queue is that since the
    /// start.
    pub(super) fn since(&self, before: &Self) -> [(&'static str, f64); 5] {
        let frames = (self.frames - before.frames) as f64;
        let rate_sum_bps = self.rate_sum_bps - before.rate_sum_bps;
        let unacknowledged = self.unacknowledged - before.unacknowledged;
        [
            ("air_frames", frames),
            ("air_rate_mbit_s", rate_sum_bps / frames / 1e6),
            ("air_s", self.airtime_s - before.airtime_s),
            ("air_unacknowledged", unacknowledged as f64),
            ("air_longest_queue", self.longest_queue as f64),
        ]
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Counts {
    offered_packets: u64,
    offered_bytes: u64,
    delivered_packets: u64,
    delivered_bytes: u64,
    lost: u64,
    full: u64,
}

impl Counts {
    fn counters(self) -> Counters {
        Counters {
            offered_packets: self.offered_packets,
            offered_bytes: self.offered_bytes,
            delivered_packets: self.delivered_packets,
            delivered_bytes: self.delivered_bytes,
            dropped: DropCounts {
                loss: self.lost,
                queue: self.full,
                ..DropCounts::default()
            },
            dropped_bytes: self.offered_bytes.saturating_sub(self.delivered_bytes),
            ..Counters::default()
        }
    }
}

/// Counts so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) up: Counters,
    pub(super) down: Counters,
    pub(super) late: Late,
    /// Energy of the client's radio since ns-3 started.
    pub(super) energy_j: Option<f64>,
    /// Activity on its air, where that is WiFi.
    pub(super) air: Option<Air>,
    /// Part of the time that it was late by more than a millisecond, in percent.
    pub(super) late_percent: f64,
}

impl Simulation {
    /// Starts it between two TAP devices, the client's first.
    pub(super) fn start(
        program: &Path,
        profile: &str,
        link: &LinkSettings,
        seed: u64,
        taps: [OwnedFd; 2],
    ) -> Result<Self, String> {
        if !link.behind.is_empty() {
            return Err("ns-3's scenario has one hop".into());
        }
        let wifi = WIFI_PROFILES.iter().find(|(name, _)| *name == profile);
        let mut up = pipe(&link.up, link.rtt_ns())?;
        let mut down = pipe(&link.down, link.rtt_ns())?;
        if wifi.is_some() {
            // The profile's own values are those of ns-3's WiFi; additional delay comes before it.
            let own = Profile::find(profile).ok_or("no such profile")?.settings();
            up.without(&own.up);
            down.without(&own.down);
        }
        let mut command = Command::new(program);
        command
            .arg(wifi.map_or("point-to-point", |(_, kind)| kind))
            .args(taps.iter().map(|tap| tap.as_raw_fd().to_string()))
            // Runs of ns-3's generator are told apart by 64 bits, of which 0 is not one.
            .arg((seed | 1).to_string())
            .args([up.text(), down.text()]);
        kernel::inherit(&mut command, [taps[0].as_raw_fd(), taps[1].as_raw_fd()]);
        kernel::die_with_parent(&mut command);
        let mut process = Process::start("ns-3", &mut command)
            .map_err(|error| format!("cannot start ns-3: {error}"))?;
        let never = AtomicBool::new(false);
        let said = process.line(Instant::now() + PATIENCE, &never)?;
        if said.trim() != "ready" {
            return Err(format!("ns-3: said `{}`", said.trim()));
        }
        Ok(Self {
            process,
            _taps: taps,
        })
    }

    /// Asks for its counters.
    pub(super) fn look(&mut self) -> io::Result<Seen> {
        let never = AtomicBool::new(false);
        self.process.say("count").map_err(io::Error::other)?;
        let line = self
            .process
            .line(Instant::now() + PATIENCE, &never)
            .map_err(io::Error::other)?;
        let answer: Answer = serde_json::from_str(&line)?;
        Ok(Seen {
            up: answer.up.counters(),
            down: answer.down.counters(),
            late: Late {
                p99_us: answer.lag_p99_us,
                p999_us: answer.lag_p999_us,
                max_us: answer.lag_max_us,
            },
            energy_j: answer.energy_j,
            air: answer.air,
            late_percent: answer.late_looks as f64 / answer.looks.max(1) as f64 * 100.0,
        })
    }

    /// Ends it.
    pub(super) fn stop(mut self) {
        self.process.wait();
    }
}

/// One direction in the scenario's words.
#[derive(Clone, Debug, PartialEq)]
struct PipeText {
    rate_bps: u64,
    delay_ns: u64,
    queue: String,
    loss: f64,
}

impl PipeText {
    fn without(&mut self, own: &PipeSettings) {
        if Some(self.rate_bps) == own.rate_bps {
            self.rate_bps = 0;
        }
        self.delay_ns = self.delay_ns.saturating_sub(own.delay_ns);
    }

    fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = write!(
            text,
            "{},{},{},{}",
            self.rate_bps, self.delay_ns, self.queue, self.loss
        );
        text
    }
}

/// Settings of a direction in ns-3's form.
fn pipe(settings: &PipeSettings, rtt_ns: u64) -> Result<PipeText, String> {
    let loss = match settings.loss {
        Loss::None => 0.0,
        Loss::Independent { probability } => probability,
        _ => return Err("ns-3's scenario has independent losses only".into()),
    };
    let queue = match settings.queue {
        Queue::Packets(packets) => format!("{packets}p"),
        Queue::Bytes(bytes) => format!("{bytes}B"),
        Queue::Bdp(_) => format!("{}B", settings.queue_limits(rtt_ns).0),
    };
    if settings.jitter != Jitter::None {
        return Err("ns-3's scenario has no jitter".into());
    }
    Ok(PipeText {
        rate_bps: settings.rate_bps.unwrap_or(0),
        delay_ns: settings.delay_ns,
        queue,
        loss,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_told_in_the_scenarios_words() {
        let link = Profile::find("wifi").unwrap().settings();
        let text = pipe(&link.up, link.rtt_ns()).unwrap().text();
        assert_eq!(text, "20000000,12500000,62500B,0");
        let leo = Profile::find("leo").unwrap().settings();
        assert!(pipe(&leo.up, leo.rtt_ns()).unwrap_err().contains("losses"));
    }

    #[test]
    fn what_the_air_does_by_itself_is_not_done_twice() {
        let link = Profile::find("wifi-a").unwrap().settings();
        let mut slow = pipe(&link.up, 0).unwrap();
        slow.without(&link.up);
        assert_eq!((slow.rate_bps, slow.delay_ns), (0, 0));
        let mut shaped = PipeText {
            rate_bps: 8_000,
            delay_ns: link.up.delay_ns + 7,
            ..slow
        };
        shaped.without(&link.up);
        assert_eq!((shaped.rate_bps, shaped.delay_ns), (8_000, 7));
    }

    #[test]
    fn every_wifi_of_ns3_is_a_profile_with_a_radio() {
        for (name, _) in WIFI_PROFILES {
            assert!(Profile::find(name).is_some());
            assert!(!crate::energy::constants::radios(name).is_empty());
        }
    }

    #[test]
    fn what_was_on_the_air_is_that_since_the_start_of_the_work() {
        let before = Air {
            frames: 4,
            rate_sum_bps: 24e6,
            airtime_s: 0.5,
            unacknowledged: 1,
            longest_queue: 1,
        };
        let after = Air {
            frames: 14,
            rate_sum_bps: 564e6,
            airtime_s: 2.0,
            unacknowledged: 3,
            longest_queue: 7,
        };
        let since: Vec<f64> = after.since(&before).iter().map(|it| it.1).collect();
        assert_eq!(since, [10.0, 54.0, 1.5, 2.0, 7.0]);
    }

    #[test]
    fn what_is_missing_is_named_or_the_scenario_compiles() {
        let folder = tempfile::tempdir().unwrap();
        match compile(folder.path()) {
            Ok(program) => assert!(program.is_file()),
            Err(reason) => assert!(reason.contains("libns3-dev"), "{reason}"),
        }
    }
}
