//! Whole campaigns: preparation, runs as the schedule lets them, samples as they come.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::credentials;
use super::ns3;
use super::order::{self, Order, Starting};
use super::prepare::{self, Calibrations};
use super::program::Build;
use super::qlog;
use super::run::Setting;
use super::sample::{Sample, Verdict};
use super::schedule::{self, Capacity, Schedule};
pub use super::site::SiteKind;
pub use super::store::Resume;
use super::store::{Manifest, Store};
use crate::calibrate::Machine;
use crate::campaign::{Authentication, Campaign, ForeignDevice, Plan, Run};
use crate::kernel::Awake;

/// A run out of tolerance is made so often before it is marked.
const MAX_ATTEMPTS: u32 = 3;
/// Runs whose programs start at the same time. A device connects before it is ready, which takes
/// seconds on slow links and hardly any CPU.
const MAX_STARTING: usize = 16;
/// Interval of checks for progress.
const LOOK_EVERY: Duration = Duration::from_millis(20);
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
    /// Devices to measure besides this program's, as [`Campaign::with_devices`] takes them.
    pub devices: Vec<ForeignDevice>,
    /// The program that is device and gateway of rivals, as [`Campaign::with_rival`] takes it.
    pub rival: Option<PathBuf>,
    /// Most runs at once.
    pub jobs: Option<usize>,
    /// Emulator of the links.
    pub site: SiteKind,
    /// Continue with the samples in the folder.
    pub resume: Option<Resume>,
    /// Measure how true links are before.
    pub calibrate: bool,
    /// The program that is device, and that makes a run: `sterna-lab`.
    pub program: PathBuf,
    /// The program `sterna`, whose broker is measured.
    pub sterna: PathBuf,
    /// Its version.
    pub version: String,
}

/// A campaign that is to be made.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// Which.
    pub campaign: &'a Campaign,
    /// Its file.
    pub text: &'a str,
    /// Where results go.
    pub folder: PathBuf,
    /// The command that repeats it.
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

/// Runs campaigns until they are done or `stop` is set. One schedule has the runs of all, so that short
/// runs of one campaign fill the waiting of long runs of another. Returns an outcome for each.
///
/// # Errors
///
/// If a folder is in use or cannot be written, or nothing can be measured here at all. A run that
/// fails is a sample that says so.
pub fn execute(
    wanted: &[Wanted<'_>],
    options: &CampaignOptions,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<Outcome>, String> {
    if options.site != SiteKind::Relay {
        crate::session::check_rights()?;
        let _ = crate::session::end_stale_processes();
    }
    // Each run needs descriptors for devices, pipes and namespaces.
    let _ = crate::kernel::raise_open_files();
    let machine = Machine::look();
    let data = tempfile::tempdir().map_err(|error| format!("temporary folder: {error}"))?;
    if options.site == SiteKind::Ns3 {
        progress(Progress::Note("compiling ns-3's scenario"));
        ns3::compile(data.path())?;
    }
    let capacity = Capacity::of(&machine, options.jobs);
    let programs = [&options.program, &options.sterna];
    let devices = options.devices.iter().map(|device| &device.program);
    let builds = programs
        .into_iter()
        .chain(devices)
        .chain(&options.rival)
        .map(|path| Build::of(path).map_err(|error| format!("{}: {error}", path.display())))
        .collect::<Result<Vec<_>, _>>()?;
    let mut calibrations = Calibrations::default();
    let mut parts = Vec::new();
    for wanted in wanted {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let surroundings = Surroundings {
            machine: &machine,
            builds: &builds,
            data: data.path(),
            spin: capacity.jobs <= MAX_SPINNING_JOBS,
            stop,
        };
        parts.push(Part::prepare(
            wanted,
            options,
            &surroundings,
            &mut calibrations,
            progress,
        )?);
    }
    // Also between runs; where there is no right to it, lateness shows it.
    let _awake = Awake::begin();
    run_all(&mut parts, capacity, stop, progress)?;
    let outcome = |part: &Part| Outcome {
        left: part.plan.runs.len().saturating_sub(part.outcome.made()),
        ..part.outcome
    };
    Ok(parts.iter().map(outcome).collect())
}

/// Settings that all campaigns of a command have in common.
#[derive(Clone, Copy)]
struct Surroundings<'a> {
    machine: &'a Machine,
    /// The programs that are measured.
    builds: &'a [Build],
    /// For certificates and credentials.
    data: &'a Path,
    spin: bool,
    stop: &'a AtomicBool,
}

/// A campaign that is being made.
struct Part {
    plan: Plan,
    store: Store,
    order: Order,
    /// Keys of the runs that have a sample already.
    done: BTreeSet<String>,
    outcome: Outcome,
}

impl Part {
    /// Opens the folder, and looks at what is to be measured.
    fn prepare(
        wanted: &Wanted<'_>,
        options: &CampaignOptions,
        surroundings: &Surroundings<'_>,
        calibrations: &mut Calibrations,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Self, String> {
        let seed = options.seed.unwrap_or(wanted.campaign.seed);
        let unserved = wanted.campaign.unserved(&options.brokers)?;
        let devices = options.devices.iter().map(ForeignDevice::placed);
        let devices = devices.collect::<Result<Vec<_>, _>>()?;
        let rival = options.rival.as_deref().map(absolute).transpose()?;
        let campaign = wanted.campaign.clone().with_rival(rival.as_deref());
        let unmeasured = campaign.without_rival();
        let campaign = campaign
            .with_brokers(&options.brokers)?
            .with_devices(&devices)?;
        let plan = Plan::new(&campaign, options.quick, seed, &options.grids)?;
        let machine = surroundings.machine.clone();
        let mut manifest = Manifest {
            campaign: campaign.name.clone(),
            version: campaign.version,
            text: wanted.text.to_owned(),
            brokers: options.brokers.clone(),
            devices: options
                .devices
                .iter()
                .map(ForeignDevice::placeless)
                .collect(),
            builds: surroundings.builds.to_vec(),
            seed,
            quick: options.quick,
            emulator: options.site.name().to_owned(),
            command: wanted.command.clone(),
            program: options.version.clone(),
            optimised: !cfg!(debug_assertions),
            warnings: machine
                .complaint()
                .into_iter()
                .chain(unserved)
                .chain(unmeasured)
                .collect(),
            machine,
            calibration: Vec::new(),
            in_force: BTreeMap::new(),
        };
        let folder = wanted.folder.display();
        let (store, earlier) = Store::open(&wanted.folder, &manifest, options.resume)
            .map_err(|error| format!("{folder}: {error}"))?;
        for warning in &manifest.warnings {
            progress(Progress::Note(&format!("warning: {warning}")));
        }
        let mut outcome = Outcome::default();
        // Of earlier runs with other grids nothing is said.
        let keys: BTreeSet<_> = plan.runs.iter().map(Run::key).collect();
        let mut done = BTreeSet::new();
        for sample in &earlier {
            let key = sample.key();
            if keys.contains(&key) && done.insert(key) {
                outcome.count(&sample.verdict);
            }
        }
        let qlog = std::path::absolute(wanted.folder.join(qlog::FOLDER))
            .map_err(|error| format!("{folder}: {error}"))?;
        let has_credentials = plan
            .runs
            .iter()
            .any(|run| run.transport.authentication != Authentication::None);
        if has_credentials && !credentials::exist(surroundings.data) {
            credentials::make(surroundings.data)?;
        }
        let setting = Setting {
            program: &options.program,
            sterna: &options.sterna,
            site: options.site,
            data: surroundings.data,
            qlog: &qlog,
            stop: surroundings.stop,
            spin: false,
        };
        // The certificate of the brokers is made by the first one, alone.
        let in_force = prepare::check_transports(&plan, &setting)?;
        if earlier.is_empty() {
            manifest.in_force = in_force;
            let calibrate = options.calibrate;
            calibrations.note(&plan, &setting, calibrate, &mut manifest, progress)?;
            store
                .describe(&manifest)
                .map_err(|error| error.to_string())?;
        }
        let order = Order {
            text: wanted.text.to_owned(),
            brokers: options.brokers.clone(),
            devices,
            rival,
            quick: options.quick,
            seed,
            grids: options.grids.clone(),
            index: 0,
            attempts: 0,
            site: options.site,
            data: surroundings.data.to_owned(),
            qlog,
            program: options.program.clone(),
            sterna: options.sterna.clone(),
            spin: surroundings.spin,
        };
        Ok(Self {
            plan,
            store,
            order,
            done,
            outcome,
        })
    }
}

/// The place of an existing program from everywhere.
fn absolute(program: &Path) -> Result<PathBuf, String> {
    let path = program.canonicalize();
    path.map_err(|error| format!("{}: {error}", program.display()))
}

/// Approximate time of campaigns by one schedule on this machine without other work, if no run is repeated.
///
/// # Errors
///
/// If a campaign has no such runs.
pub fn predict(
    campaigns: &[&Campaign],
    quick: bool,
    grids: &[String],
    machine: &Machine,
    jobs: Option<usize>,
) -> Result<Prediction, String> {
    let mut runs = Vec::new();
    for campaign in campaigns {
        runs.extend(Plan::new(campaign, quick, campaign.seed, grids)?.runs);
    }
    let alone = runs.iter().filter(|run| run.alone);
    Ok(Prediction {
        runs: runs.len(),
        alone: alone.clone().count(),
        alone_time: alone.map(Run::expected).sum(),
        time: schedule::predict(&runs, Capacity::of(machine, jobs)),
    })
}

/// Predicted number and time of runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Prediction {
    /// Runs in all.
    pub runs: usize,
    /// Runs beside which no other may run.
    pub alone: usize,
    /// Time of the runs that run alone.
    pub alone_time: Duration,
    /// Time of all runs.
    pub time: Duration,
}

/// Makes the runs that are left, of all campaigns.
fn run_all(
    parts: &mut [Part],
    capacity: Capacity,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(), String> {
    // A place in the schedule is a campaign and the index of one of its runs.
    let (mut runs, mut places, mut todo) = (Vec::new(), Vec::new(), Vec::new());
    for (part, of) in parts.iter().enumerate() {
        for (index, run) in of.plan.runs.iter().enumerate() {
            if !of.done.contains(&run.key()) {
                todo.push(runs.len());
            }
            runs.push(run.clone());
            places.push((part, index));
        }
    }
    let runs = &runs;
    let mut schedule = Schedule::new(runs, todo, capacity);
    let (sender, samples) = channel();
    let mut attempts = vec![0_u32; runs.len()];
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
                && let Some(place) = schedule.next(runs)
            {
                last_start = Some(Instant::now());
                under_way.push((place, Instant::now()));
                attempts[place] += 1;
                let mark = Starting::new(&starting);
                let (part, index) = places[place];
                let order = Order {
                    index,
                    attempts: attempts[place],
                    ..parts[part].order.clone()
                };
                let (run, sender) = (&runs[place], sender.clone());
                // The process of a run dies with the thread that started it.
                scope.spawn(move || {
                    let sample = order::give(&order, run, mark, stop);
                    // The receiver lives as long as this scope.
                    let _ = sender.send((place, sample));
                });
            }
            if schedule.running() == 0 && (stopped || schedule.is_done()) {
                break;
            }
            let (place, sample) = match samples.recv_timeout(LOOK_EVERY) {
                Ok(ended) => ended,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            schedule.ended(&runs[place]);
            under_way.retain(|(other, _)| *other != place);
            if order::was_interrupted(&sample) {
                // It is made when the campaign goes on.
                continue;
            }
            if attempts[place] < MAX_ATTEMPTS
                && let Some(reason) = complaint(&sample)
            {
                progress(Progress::Again {
                    key: &sample.key(),
                    reason,
                });
                schedule.again(runs, place);
                continue;
            }
            if complaint(&sample).is_none() {
                schedule.good();
            }
            let part = &mut parts[places[place].0];
            part.outcome.count(&sample.verdict);
            if let Err(error) = part.store.add(&sample) {
                write_error = Some(error);
            }
            progress(Progress::Sample(&sample));
            progress(Progress::State {
                done: parts.iter().map(|part| part.outcome.made()).sum(),
                all: runs.len(),
                running: schedule.running(),
                seconds_left: schedule.seconds_left(runs) + longest_left(runs, &under_way),
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
