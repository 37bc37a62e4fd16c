//! A whole campaign: preparation, runs as the schedule lets them, samples as they come.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::broker::Broker;
use super::credentials;
use super::ns3;
use super::order::{self, Order, Starting};
use super::qlog;
use super::run::Setting;
use super::sample::{Sample, Verdict};
use super::schedule::{Capacity, Schedule};
use super::site::Site;
pub use super::site::SiteKind;
pub use super::store::Resume;
use super::store::{Manifest, OpenError, Store};
use crate::calibrate::{self, Machine};
use crate::campaign::{Authentication, Campaign, Plan, Run};
use crate::kernel::Awake;
use crate::link::LinkSettings;
use crate::netns::Side;
use crate::profile::Profile;

/// A run out of tolerance is made so often before it is marked.
const MAX_ATTEMPTS: u32 = 3;
/// Runs whose programs start at the same time. A device connects before it is ready, which takes
/// seconds on slow links and hardly any CPU.
const MAX_STARTING: usize = 16;
/// Interval of checks for progress.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Time to measure each row of the calibration before a campaign.
const CALIBRATION: Duration = Duration::from_millis(800);
/// With more runs at once than this, emulators sleep instead of watching the clock.
const MAX_SPINNING_JOBS: usize = 8;

/// Options of a campaign.
#[derive(Debug)]
pub struct CampaignOptions {
    /// The short form.
    pub quick: bool,
    /// Seed of decisions, instead of the file's.
    pub seed: Option<u64>,
    /// Only these grids; all without any.
    pub grids: Vec<String>,
    /// Brokers to measure besides this project's, as [`Campaign::with_brokers`] takes them.
    pub brokers: Vec<String>,
    /// Most runs at once.
    pub jobs: Option<usize>,
    /// Emulator of the links.
    pub site: SiteKind,
    /// Continue with the samples in the folder.
    pub resume: Option<Resume>,
    /// Measure how true links are before.
    pub calibrate: bool,
    /// Where results go.
    pub folder: PathBuf,
    /// The program that is device, and that makes a run: `sterna-lab`.
    pub program: PathBuf,
    /// The program `sterna`, whose broker is measured.
    pub sterna: PathBuf,
    /// Its version.
    pub version: String,
    /// The command that repeats the campaign.
    pub command: String,
}

/// Reports of a running campaign.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// Something for people.
    Note(&'a str),
    /// A run has given a sample.
    Sample(&'a Sample),
    /// A run was out of tolerance and is made again.
    Again {
        /// Which.
        key: &'a str,
        /// Why.
        reason: &'a str,
    },
    /// Its progress.
    State {
        /// Runs with a sample.
        done: usize,
        /// Runs in all.
        all: usize,
        /// Runs under way.
        running: usize,
        /// Approximate time of the rest.
        seconds_left: f64,
    },
}

/// Result of a campaign.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Outcome {
    /// Samples that count.
    pub sound: usize,
    /// Samples that are marked as out of tolerance.
    pub unsound: usize,
    /// Runs in which a reliable transport lost messages.
    pub incomplete: usize,
    /// Runs without a result.
    pub failed: usize,
    /// Runs that were not made, because the campaign was interrupted.
    pub left: usize,
}

impl Outcome {
    /// Runs that gave a sample.
    const fn made(&self) -> usize {
        self.sound + self.unsound + self.incomplete + self.failed
    }

    fn count(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Sound => self.sound += 1,
            Verdict::Unsound { .. } => self.unsound += 1,
            Verdict::Incomplete { .. } => self.incomplete += 1,
            Verdict::Failed { .. } => self.failed += 1,
        }
    }
}

/// Runs a campaign until it is done or `stop` is set.
///
/// # Errors
///
/// If the folder is in use or cannot be written, or nothing can be measured here at all. A run that
/// fails is a sample that says so.
pub fn execute(
    campaign: &Campaign,
    text: &str,
    options: &CampaignOptions,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Outcome, String> {
    let seed = options.seed.unwrap_or(campaign.seed);
    let unserved = campaign.unserved(&options.brokers)?;
    let campaign = &campaign.clone().with_brokers(&options.brokers)?;
    let plan = Plan::new(campaign, options.quick, seed, &options.grids)?;
    if options.site != SiteKind::Relay {
        crate::session::check_rights()?;
        let _ = crate::session::end_stale_processes();
    }
    // Each run needs descriptors for devices, pipes and namespaces.
    let _ = crate::kernel::raise_open_files();
    let machine = Machine::look();
    let mut manifest = Manifest {
        campaign: campaign.name.clone(),
        version: campaign.version,
        text: text.to_owned(),
        brokers: options.brokers.clone(),
        seed,
        quick: options.quick,
        emulator: options.site.name().to_owned(),
        command: options.command.clone(),
        program: options.version.clone(),
        optimised: !cfg!(debug_assertions),
        warnings: machine.complaint().into_iter().chain(unserved).collect(),
        machine,
        calibration: Vec::new(),
        in_force: BTreeMap::new(),
    };
    let (mut store, earlier) =
        Store::open(&options.folder, &manifest, options.resume).map_err(|error| match error {
            OpenError::Io(error) => format!("{}: {error}", options.folder.display()),
            error => format!("{}: {error}", options.folder.display()),
        })?;
    let is_new = earlier.is_empty();
    for warning in &manifest.warnings {
        progress(Progress::Note(&format!("warning: {warning}")));
    }
    let mut outcome = Outcome::default();
    // Of earlier runs with other grids nothing is said.
    let wanted: BTreeSet<_> = plan.runs.iter().map(Run::key).collect();
    let mut done = BTreeSet::new();
    for sample in &earlier {
        let key = sample.key();
        if wanted.contains(&key) && done.insert(key) {
            outcome.count(&sample.verdict);
        }
    }
    let data = tempfile::tempdir().map_err(|error| format!("temporary folder: {error}"))?;
    let qlog = std::path::absolute(options.folder.join(qlog::FOLDER))
        .map_err(|error| format!("{}: {error}", options.folder.display()))?;
    if plan
        .runs
        .iter()
        .any(|run| run.transport.authentication != Authentication::None)
    {
        credentials::make(data.path())?;
    }
    let setting = Setting {
        program: &options.program,
        sterna: &options.sterna,
        site: options.site,
        data: data.path(),
        qlog: &qlog,
        stop,
        spin: false,
    };
    if options.site == SiteKind::Ns3 {
        progress(Progress::Note("compiling ns-3's scenario"));
        ns3::compile(data.path())?;
    }
    if is_new {
        prepare(&plan, &setting, options, &mut manifest, progress)?;
        store
            .describe(&manifest)
            .map_err(|error| error.to_string())?;
    } else {
        // The certificate of the campaign's brokers is made by the first one, alone.
        check_transports(&plan, &setting)?;
    }

    let todo = (0..plan.runs.len()).filter(|index| !done.contains(&plan.runs[*index].key()));
    let capacity = Capacity::of(manifest.machine.cores, options.jobs);
    let schedule = Schedule::new(&plan.runs, todo, capacity);
    let order = Order {
        text: text.to_owned(),
        brokers: options.brokers.clone(),
        quick: options.quick,
        seed,
        grids: options.grids.clone(),
        index: 0,
        attempts: 0,
        site: options.site,
        data: data.path().to_owned(),
        qlog: qlog.clone(),
        program: options.program.clone(),
        sterna: options.sterna.clone(),
        spin: capacity.jobs <= MAX_SPINNING_JOBS,
    };
    // Also between runs; where there is no right to it, lateness shows it.
    let _awake = Awake::begin();
    run_all(
        &plan,
        schedule,
        &order,
        stop,
        &mut store,
        &mut outcome,
        progress,
    )?;
    outcome.left = plan.runs.len().saturating_sub(outcome.made());
    Ok(outcome)
}

/// Makes the runs that are left.
fn run_all(
    plan: &Plan,
    mut schedule: Schedule,
    order: &Order,
    stop: &AtomicBool,
    store: &mut Store,
    outcome: &mut Outcome,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(), String> {
    let (sender, samples) = channel();
    let mut attempts = vec![0_u32; plan.runs.len()];
    let mut last_start: Option<Instant> = None;
    let mut under_way: Vec<(usize, Instant)> = Vec::new();
    let mut write_error = None;
    let starting = AtomicUsize::new(0);
    thread::scope(|scope| {
        loop {
            let stopped = stop.load(Ordering::Relaxed) || write_error.is_some();
            let may_start = starting.load(Ordering::Relaxed) < MAX_STARTING
                && schedule.may_start(last_start.map(|start| start.elapsed()));
            if !stopped
                && may_start
                && let Some(index) = schedule.next(&plan.runs)
            {
                last_start = Some(Instant::now());
                under_way.push((index, Instant::now()));
                attempts[index] += 1;
                let mark = Starting::new(&starting);
                let order = Order {
                    index,
                    attempts: attempts[index],
                    ..order.clone()
                };
                let (run, sender) = (&plan.runs[index], sender.clone());
                // The process of a run dies with the thread that started it.
                scope.spawn(move || {
                    let sample = order::give(&order, run, mark, stop);
                    // The receiver lives as long as this scope.
                    let _ = sender.send((index, sample));
                });
            }
            if schedule.running() == 0 && (stopped || schedule.is_done()) {
                break;
            }
            let (index, sample) = match samples.recv_timeout(LOOK_EVERY) {
                Ok(ended) => ended,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let run = &plan.runs[index];
            schedule.ended(run);
            under_way.retain(|(other, _)| *other != index);
            if order::was_interrupted(&sample) {
                // It is made when the campaign goes on.
                continue;
            }
            if attempts[index] < MAX_ATTEMPTS
                && let Some(reason) = complaint(&sample)
            {
                progress(Progress::Again {
                    key: &sample.key(),
                    reason,
                });
                schedule.again(&plan.runs, index);
                continue;
            }
            outcome.count(&sample.verdict);
            if let Err(error) = store.add(&sample) {
                write_error = Some(error);
            }
            progress(Progress::Sample(&sample));
            progress(Progress::State {
                done: outcome.made(),
                all: plan.runs.len(),
                running: schedule.running(),
                seconds_left: schedule.seconds_left(&plan.runs)
                    + longest_left(&plan.runs, &under_way),
            });
        }
    });
    write_error.map_or(Ok(()), |error: io::Error| {
        Err(format!("cannot write a sample: {error}"))
    })
}

/// Approximate time of the longest of these runs.
fn longest_left(runs: &[Run], under_way: &[(usize, Instant)]) -> f64 {
    under_way
        .iter()
        .map(|(index, began)| {
            let left = runs[*index].expected().saturating_sub(began.elapsed());
            left.as_secs_f64()
        })
        .fold(0.0, f64::max)
}

/// Why a run should be made again.
fn complaint(sample: &Sample) -> Option<&str> {
    match &sample.verdict {
        Verdict::Sound | Verdict::Incomplete { .. } => None,
        Verdict::Unsound { reasons } => reasons.first().map(String::as_str),
        Verdict::Failed { reason } => Some(reason),
    }
}

/// Looks at the machine, the links and the transports before anything is measured.
fn prepare(
    plan: &Plan,
    setting: &Setting<'_>,
    options: &CampaignOptions,
    manifest: &mut Manifest,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(), String> {
    manifest.in_force = check_transports(plan, setting)?;
    if setting.site == SiteKind::Relay {
        let warning = "a relay emulates the links: of TCP only bytes are delayed, nothing is lost \
                       or acknowledged on the link, so this compares no transports";
        progress(Progress::Note(&format!("warning: {warning}")));
        manifest.warnings.push(warning.into());
        return Ok(());
    }
    if setting.site == SiteKind::Ns3 {
        manifest.warnings.push(
            "ns-3 emulates the links: transports do not meet the same losses packet for packet"
                .into(),
        );
        return Ok(());
    }
    if !options.calibrate {
        manifest
            .warnings
            .push("the links were not calibrated before".into());
        return Ok(());
    }
    progress(Progress::Note("calibrating the links"));
    let links: BTreeSet<&str> = plan.runs.iter().map(|run| run.link.as_str()).collect();
    for link in links {
        let Some(profile) = Profile::find(link) else {
            continue;
        };
        for measurement in calibrate::measurements_of(link, &profile.settings(), CALIBRATION) {
            if setting.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let rows = measurement
                .run(manifest.seed)
                .map_err(|error| format!("calibration of {link}: {error}"))?;
            for row in &rows {
                let truth = if row.is_true { "true" } else { "NOT TRUE" };
                let line = format!(
                    "{} {:?}: set {:.6}, got {:.6}, {truth}, {}",
                    row.link, row.quantity, row.set, row.got, row.note
                );
                if !row.is_true {
                    progress(Progress::Note(&format!("warning: {line}")));
                }
                manifest.calibration.push(line);
            }
        }
    }
    Ok(())
}

/// Starts a broker for each transport. This makes the certificate, and shows a wrong setting before
/// it fails every run. Also asks the kernel for the actual congestion control of TCP.
fn check_transports(
    plan: &Plan,
    setting: &Setting<'_>,
) -> Result<BTreeMap<String, String>, String> {
    let mut in_force = BTreeMap::new();
    let mut seen: Vec<&Run> = Vec::new();
    for run in &plan.runs {
        if seen
            .iter()
            .any(|other| other.transport.name == run.transport.name)
        {
            continue;
        }
        seen.push(run);
        let name = &run.transport.name;
        let failed = |error: String| format!("transport `{name}`: {error}");
        let wanted = run.transport.congestion.as_deref();
        // An ideal link, so that nothing has to be waited for.
        let ideal = LinkSettings::default();
        let mut site = Site::start(setting, "ideal", &ideal, 1, &run.transport)
            .map_err(|error| failed(error.to_string()))?;
        let broker = Broker::start(setting, &site, run).map_err(failed)?;
        let target = site
            .reach(broker.port())
            .map_err(|error| failed(error.to_string()))?;
        let found = match site.cell() {
            Some(cell) if !run.transport.is_quic() => cell
                .namespace(Side::Client)
                .congestion_control_towards(target)
                .map_err(|error| failed(error.to_string()))?,
            Some(_) => wanted.unwrap_or("the library's default").to_owned(),
            None => "the system's, on the loopback device".to_owned(),
        };
        if let (Some(wanted), Some(_)) = (wanted, site.cell())
            && wanted != found
        {
            return Err(failed(format!(
                "congestion control is {found} instead of {wanted}"
            )));
        }
        in_force.insert(name.clone(), format!("congestion control {found}"));
        drop(broker);
        drop(site);
    }
    Ok(in_force)
}

/// The folder that a campaign's results go to unless another is named.
#[must_use]
pub fn default_folder(campaign: &str, quick: bool) -> PathBuf {
    let name = if quick {
        format!("{campaign}-quick")
    } else {
        campaign.to_owned()
    };
    Path::new("lab-results").join(name)
}
