//! A run as a process of its own.
//!
//! Each run has its own process, which holds the link's emulator and starts broker and devices. In
//! one process for all, the starts of one run would delay the links of others. While a process is
//! copied for a start, no thread of it gets memory, at any priority.

use std::io::{self, BufRead as _, Write as _};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::process::{INTERRUPTED, Process};
use super::run::{self, Setting};
use super::sample::{Sample, Verdict};
use super::site::SiteKind;
use crate::campaign::{Campaign, Plan, Run};

/// Message of a run's process when its programs have started.
const STARTED: &str = "started";
/// Time of a run's process beyond that of the run.
const SLACK: Duration = Duration::from_secs(2 * 60);

/// Input of a run's process, as one line of JSON.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Order {
    /// The campaign's file.
    pub(super) text: String,
    /// Brokers that are measured besides.
    pub(super) brokers: Vec<String>,
    /// Devices that are measured besides, with their places.
    pub(super) devices: Vec<String>,
    /// The program of rivals, with its place.
    pub(super) rival: Option<PathBuf>,
    pub(super) quick: bool,
    pub(super) seed: u64,
    /// Only these grids; all without any.
    pub(super) grids: Vec<String>,
    /// Which of the plan's runs.
    pub(super) index: usize,
    pub(super) attempts: u32,
    pub(super) site: SiteKind,
    /// Where the broker keeps its certificate.
    pub(super) data: PathBuf,
    /// Where traces go.
    pub(super) qlog: PathBuf,
    pub(super) program: PathBuf,
    pub(super) sterna: PathBuf,
    pub(super) spin: bool,
}

/// Executes the line on standard input, and prints the sample.
///
/// # Errors
///
/// If there is no such line, or the sample has no reader. A run that fails is a sample that says
/// so.
pub fn obey(stop: &AtomicBool) -> Result<(), String> {
    let mut line = String::new();
    io::stdin()
        .lock()
        .read_line(&mut line)
        .map_err(|error| format!("standard input: {error}"))?;
    let order: Order = serde_json::from_str(&line).map_err(|error| format!("no order: {error}"))?;
    let campaign = Campaign::parse(&order.text)?
        .with_rival(order.rival.as_deref())
        .with_brokers(&order.brokers)?
        .with_devices(&order.devices)?;
    let plan = Plan::new(&campaign, order.quick, order.seed, &order.grids)?;
    let run = plan
        .runs
        .get(order.index)
        .ok_or_else(|| format!("there is no run {}", order.index))?;
    let setting = Setting {
        program: &order.program,
        sterna: &order.sterna,
        site: order.site,
        data: &order.data,
        qlog: &order.qlog,
        stop,
        spin: order.spin,
    };
    let sample = run::make(&setting, run, order.attempts, &|| {
        // A reader that does not read this does not read the sample either, and that is reported.
        let _ = tell(STARTED);
    });
    let text = serde_json::to_string(&sample).map_err(|error| error.to_string())?;
    tell(&text).map_err(|error| format!("standard output: {error}"))
}

fn tell(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Counts a run among those that are starting, as long as it lives.
pub(super) struct Starting<'a>(&'a AtomicUsize);

impl<'a> Starting<'a> {
    pub(super) fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Gives an order to a process and waits for its sample.
pub(super) fn give(order: &Order, run: &Run, starting: Starting<'_>, stop: &AtomicBool) -> Sample {
    let heard = || -> Result<Sample, String> {
        let mut command = Command::new(&order.program);
        command.arg("measure");
        crate::kernel::die_with_parent(&mut command);
        let mut process = Process::start("run", &mut command)
            .map_err(|error| format!("cannot start a process: {error}"))?;
        process.say(&serde_json::to_string(order).map_err(|error| error.to_string())?)?;
        let deadline = Instant::now() + run.time_limit() + SLACK;
        let mut line = process.line(deadline, stop)?;
        drop(starting);
        if line.trim() == STARTED {
            line = process.line(deadline, stop)?;
        }
        let sample = serde_json::from_str(&line).map_err(|error| format!("no sample: {error}"))?;
        process.wait();
        Ok(sample)
    };
    heard().unwrap_or_else(|reason| {
        let mut sample = Sample::of(
            run,
            order.site.name(),
            run::seconds_since_1970(),
            Verdict::Failed { reason },
        );
        sample.attempts = order.attempts;
        sample
    })
}

/// Whether a sample is there only because the campaign was interrupted.
pub(super) fn was_interrupted(sample: &Sample) -> bool {
    matches!(&sample.verdict, Verdict::Failed { reason } if reason == INTERRUPTED)
}
