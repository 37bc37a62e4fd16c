//! Foreign clients against the broker.
//!
//! `interop/suites.json` lists suites; each is a program that prints one line per check and needs to
//! know nothing about this runner:
//!
//! ```json
//! {
//!   "serve": ["--listen", "mqtt://127.0.0.1:0"],
//!   "suites": [
//!     {"name": "paho", "tier": "test", "touches": ["@mqtt"], "runtime": "python", "install": ["paho-mqtt==2.1.0"],
//!      "run": ["python", "paho_suite.py"]}
//!   ]
//! }
//! ```
//!
//! `tier` and `touches` say when it runs, as in `xtask/test-parts.json`. `runtime` and `install` name the requirements
//! (see [`runtime::Runtime`]); `xtask/needs.json` says what the machine must have. `run` is a command in the folder
//! `interop`, with the runtime's programs first on the search path. A suite may have `serve` arguments of its own;
//! suites with the same ones share a broker. It may have `timeout_s`. `python` lists packages for
//! pip, for a program in Python that drives a client of another runtime. Suites that
//! wait more than they work name a `lane`: each lane runs beside the others, with brokers of its own. `row` are the
//! arguments before the name of one check, where a suite can be asked for it: `[]` for words, of which there may be several.
//!
//! The environment of a suite:
//! - `STERNA_READY_FILE`: written by the ready broker, with its listeners and their ports
//! - `STERNA_CA`: the certificate to trust, PEM
//! - `STERNA_BIN`: the command itself
//! - `STERNA_BUILD`: a folder that the suite may write and find again
//! - for Java `STERNA_JAVA`: the built programs, see [`runtime::Runtime`]
//!
//! `@interop` in an argument of `serve`, and in a configuration named there, stands for the folder
//! `interop`.
//!
//! A suite prints one line for each check and ends with exit code 0 where nothing failed:
//!
//! - `ok NAME`
//! - `not ok NAME: why`
//! - `skip NAME: why`, where something that could be there is missing; a failure in continuous
//!   integration
//! - `n/a NAME: why`, where there is nothing to check: a library or a version without the feature
//!
//! Anything else is for the log.
//!
//! With `--cluster` three nodes take the broker's place: see [`cluster`].

mod broker;
mod cluster;
mod results;
mod runtime;
mod suites;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::command::run as run_command;
use crate::console::{Colour, Progress, Tally, seconds};
use crate::needs::Needs;
use crate::workspace::{Workspace, read, write};
use crate::{Failure, Verdict};

use broker::{Broker, Launch};
use cluster::Design;
use results::{BROKEN, Results};
use runtime::{Runtime, Unavailable};

pub(crate) use results::SuiteReport;
pub(crate) use suites::{Suite, Suites};

/// The longest time that building the broker may take.
const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);

/// The package with which the lab's statistics are made again.
const NUMPY: &str = "numpy==2.3.5";

/// Builds the server of NATS and returns a search path that begins with its folder.
pub(crate) fn nats_search_path(
    workspace: &Workspace,
    progress: &mut Progress,
) -> Result<std::ffi::OsString, Failure> {
    let runtimes = [Runtime::Go, Runtime::Python];
    let subjects = runtimes.map(|runtime| format!("runtime/{}", runtime.name()));
    if let Some(lack) = Needs::load(workspace)?.lack(&subjects) {
        return Err(Failure(lack));
    }
    let absent = Runtime::Go.install(workspace, &["gonats".to_owned()], progress)?;
    if let Some(Unavailable { why, .. }) = absent.first() {
        return Err(Failure(format!("NATS could not be built\n{why}")));
    }
    Ok(Runtime::Go.search_path(workspace, false))
}

/// One broker, in the profile for development.
const ONE_BROKER: Options = Options {
    release: false,
    cluster: None,
};

/// How suites are run.
#[derive(Debug, Default)]
struct Options {
    /// Whether the broker is built for speed.
    release: bool,
    /// Three nodes instead of one broker, the nodes of connections by this seed.
    cluster: Option<u64>,
}

/// Runs the suites that are named, or all.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Verdict {
    let mut suites = Suites::load(workspace)?;
    let mut options = Options::default();
    let (mut clustered, mut seed) = (false, None);
    let mut wanted = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--cluster" => clustered = true,
            "--seed" => {
                let value = rest.next().and_then(|value| value.parse::<u64>().ok());
                seed = Some(value.ok_or_else(|| Failure::new("--seed: no number"))?);
            }
            "--list" => {
                for suite in &suites.suites {
                    let (tier, runtime) = (suite.tier.name(), suite.runtime.name());
                    println!("{:<24} {tier:<5} {runtime}", suite.name);
                }
                return Ok(true);
            }
            "--release" => options.release = true,
            name if suites.suites.iter().any(|suite| suite.name == name) => wanted.push(name),
            other => return Err(Failure(format!("no suite `{other}`; `--list` shows them"))),
        }
    }
    if clustered {
        let names: Vec<&str> = suites.suites.iter().map(|suite| &*suite.name).collect();
        Design::load(workspace)?.check(&names)?;
    }
    if !wanted.is_empty() {
        suites
            .suites
            .retain(|suite| wanted.contains(&suite.name.as_str()));
    }
    match (clustered, seed) {
        (true, seed) => {
            let seed = seed.unwrap_or_else(some_seed);
            println!("each connection to a random node, seed {seed}");
            options.cluster = Some(seed);
        }
        (false, None) => {}
        (false, Some(_)) => return Err(Failure::new("--seed goes with --cluster")),
    }
    let mut progress = Progress::start("interop");
    let report = check_suites(workspace, &suites, &options, &mut progress)?;
    let verdict = if report.tally.failed == 0 {
        Colour::Green
    } else {
        Colour::Red
    };
    progress.finish(
        verdict,
        if report.tally.failed == 0 {
            "ok"
        } else {
            "FAILED"
        },
        "",
    );
    for problem in &report.problems {
        println!("{problem}");
    }
    println!("{}", report.tally.line());
    Ok(report.tally.failed == 0)
}

/// Result of all suites.
#[derive(Debug, Default)]
struct Report {
    tally: Tally,
    /// Every check that failed or was skipped, and the end of the log of suites that broke.
    problems: Vec<String>,
}

impl Report {
    fn add(&mut self, one: SuiteReport) {
        self.tally += one.tally;
        self.problems.extend(one.problems);
    }
}

/// A number that nobody has chosen.
fn some_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::from(since.unwrap_or_default().subsec_nanos())
}

fn check_suites(
    workspace: &Workspace,
    suites: &Suites,
    options: &Options,
    progress: &mut Progress,
) -> Result<Report, Failure> {
    let mut report = Report::default();
    let design = match options.cluster {
        Some(_) => Design::load(workspace)?,
        None => Design::default(),
    };
    let chosen = suites
        .suites
        .iter()
        .filter(|suite| !design.leaves_out(&suite.name));
    let absent = install(workspace, chosen, false, progress)?;
    let none_runs = suites
        .suites
        .iter()
        .all(|suite| design.leaves_out(&suite.name) || absent.0.contains_key(&suite.name));
    let program = if none_runs {
        // Nothing runs.
        PathBuf::new()
    } else {
        build(workspace, options.release, progress)?
    };
    let field = Field {
        workspace,
        program,
        options,
        design,
        absent: Arc::new(absent),
    };
    let mut lanes: BTreeMap<&str, Vec<&Suite>> = BTreeMap::new();
    for suite in &suites.suites {
        if !field.design.leaves_out(&suite.name) {
            lanes.entry(&suite.lane).or_default().push(suite);
        }
    }
    let (field, shown) = (&field, &*progress);
    let ended: Vec<_> = std::thread::scope(|scope| {
        let mut running = Vec::new();
        for (number, (lane, ready)) in lanes.iter().enumerate() {
            let mut progress = shown.lane(number);
            running.push(scope.spawn(move || {
                let mut report = Report::default();
                let mut sink = |one| report.add(one);
                run_lane(field, lane, suites, ready, &mut progress, &mut sink)?;
                Ok::<_, Failure>(report)
            }));
        }
        (running.into_iter())
            .map(|lane| {
                lane.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect()
    });
    for lane in ended {
        let lane = lane?;
        report.tally += lane.tally;
        report.problems.extend(lane.problems);
    }
    Ok(report)
}

/// Surroundings that all suites of a run share.
#[derive(Debug)]
pub(crate) struct Field<'a> {
    workspace: &'a Workspace,
    /// The broker's program.
    program: PathBuf,
    options: &'a Options,
    design: Design,
    absent: Arc<Absent>,
}

impl<'a> Field<'a> {
    /// Suites against this broker, with what was installed for them before.
    pub(crate) fn new(workspace: &'a Workspace, program: PathBuf, absent: Arc<Absent>) -> Self {
        Self {
            workspace,
            program,
            options: &ONE_BROKER,
            design: Design::default(),
            absent,
        }
    }

    fn launch(&self, progress: &mut Progress) -> Result<Launch, Failure> {
        let program = self.program.clone();
        Ok(match self.options.cluster {
            Some(seed) => {
                let path = nats_search_path(self.workspace, progress)?;
                cluster::launch(self.workspace, program, path, seed)
            }
            None => Launch::program(program),
        })
    }

    /// The folder of all that suites and brokers write. Suites against a cluster may run beside the same ones against a
    /// broker.
    const fn folder(&self) -> &'static str {
        match self.options.cluster {
            Some(_) => "interop/with-cluster",
            None => "interop",
        }
    }
}

/// Runs suites one after the other: those that share a broker, then those that want another. A suite that cannot have what
/// it needs is skipped. Each result goes to `sink` as soon as it stands.
pub(crate) fn run_lane(
    field: &Field<'_>,
    lane: &str,
    suites: &Suites,
    chosen: &[&Suite],
    progress: &mut Progress,
    sink: &mut dyn FnMut(SuiteReport),
) -> Result<(), Failure> {
    let mut brokers: Vec<(&[String], Vec<&Suite>)> = Vec::new();
    for suite in chosen {
        if let Some(absent) = field.absent.0.get(&suite.name) {
            sink(absent.report(&suite.name));
            continue;
        }
        let serve = suite.serve.as_deref().unwrap_or(&suites.serve);
        match brokers.iter_mut().find(|(other, _)| *other == serve) {
            Some((_, sharing)) => sharing.push(suite),
            None => brokers.push((serve, vec![suite])),
        }
    }
    if brokers.is_empty() {
        return Ok(());
    }
    let launch = field.launch(progress)?;
    for (serve, sharing) in brokers {
        let place = Place {
            lane,
            launch: &launch,
        };
        run_with_broker(field, &place, serve, &sharing, progress, sink)?;
    }
    Ok(())
}

/// Runs a suite once more and alone, with a broker of its own: only these checks, where it can be asked for them. Returns
/// the checks that failed now, and those of the first run that did not pass.
pub(crate) fn run_again(
    field: &Field<'_>,
    suites: &Suites,
    name: &str,
    rows: &[String],
    progress: &mut Progress,
) -> Result<Vec<String>, Failure> {
    let Some(suite) = suites.named(name) else {
        return Err(Failure(format!("no suite `{name}`")));
    };
    // The log of its first run stays.
    let folder = field.workspace.target.join(field.folder());
    let log = folder.join("suites").join(name).join("log");
    let _ = fs::rename(&log, log.with_file_name(FIRST_LOG));
    let lane = format!("{name}-again");
    let mut run = |command: Vec<String>| {
        let mut suite = suite.clone();
        suite.run = command;
        let mut again = SuiteReport::new(name);
        let mut sink = |report| again = report;
        run_lane(field, &lane, suites, &[&suite], progress, &mut sink)?;
        Ok::<_, Failure>(again)
    };
    let whole = || suite.run.clone();
    let asked = if rows.iter().any(|row| row == BROKEN) {
        whole()
    } else {
        suite.command_for(rows)
    };
    let mut again = run(asked.clone())?;
    if asked != suite.run && !again.tells_of_all(rows) {
        // A check that has no row of its own: a start that failed.
        again = run(whole())?;
    }
    Ok(again.not_passed(rows))
}

/// The log of a suite that was run twice, of its first run.
pub(crate) const FIRST_LOG: &str = "first.log";

/// Suites that cannot have what they need, each with what that is.
#[derive(Debug, Default)]
pub(crate) struct Absent(BTreeMap<String, Lack>);

impl Absent {
    /// A line for each suite.
    pub(crate) fn told(&self) -> Vec<String> {
        let line = |(suite, lack): (&String, &Lack)| format!("suite {suite}: {}", lack.why);
        self.0.iter().map(line).collect()
    }
}

/// A need of a suite that cannot be had.
#[derive(Debug)]
struct Lack {
    why: String,
    /// Whether it is there and wrong.
    is_fault: bool,
}

impl Lack {
    fn report(&self, suite: &str) -> SuiteReport {
        if self.is_fault {
            let mut report = SuiteReport::new(suite);
            report.broken(&format!("what it needs does not compile\n{}", self.why));
            report
        } else {
            SuiteReport::skipped(suite, &self.why)
        }
    }
}

/// Installs what suites need, and numpy where it is asked for. A package that cannot be had takes no other suite with it.
pub(crate) fn install<'a>(
    workspace: &Workspace,
    suites: impl Iterator<Item = &'a Suite>,
    with_numpy: bool,
    progress: &mut Progress,
) -> Result<Absent, Failure> {
    let needs = Needs::load(workspace)?;
    let mut absent = Absent::default();
    let mut ready = Vec::new();
    for suite in suites {
        match needs.lack(&suite.subjects()) {
            Some(why) => {
                let is_fault = false;
                absent.0.insert(suite.name.clone(), Lack { why, is_fault });
            }
            None => ready.push(suite),
        }
    }
    // Those first for which the longest suites wait.
    for runtime in Runtime::IN_ORDER {
        let for_it = ready.iter().filter(|suite| suite.needs(runtime));
        let mut packages: Vec<String> = (for_it.clone())
            .flat_map(|suite| suite.packages(runtime).to_vec())
            .collect();
        let is_for_numpy =
            with_numpy && runtime == Runtime::Python && needs.lack(&numpy_subjects()).is_none();
        if is_for_numpy {
            packages.push(NUMPY.to_owned());
        } else if for_it.count() == 0 {
            continue;
        }
        packages.sort();
        packages.dedup();
        for lack in runtime.install(workspace, &packages, progress)? {
            let package = lack.package.as_deref().unwrap_or_else(|| runtime.name());
            for suite in ready
                .iter()
                .filter(|suite| suite.is_without(runtime, &lack))
            {
                let why = format!("{package} could not be installed\n{}", lack.why);
                let is_fault = lack.is_fault;
                absent.0.insert(suite.name.clone(), Lack { why, is_fault });
            }
        }
    }
    Ok(absent)
}

/// The names under which the list of needs has what numpy needs.
pub(crate) fn numpy_subjects() -> [String; 2] {
    ["tests/numpy", "runtime/python"].map(str::to_owned)
}

/// A search path on which the clients' Python comes first, and whether one that is found has numpy.
pub(crate) fn numpy_search_path(workspace: &Workspace) -> (std::ffi::OsString, bool) {
    let path = Runtime::Python.search_path(workspace, false);
    let has_numpy = ["python3", "/usr/bin/python3"].into_iter().any(|python| {
        let mut command = Command::new("env");
        command
            .args([python, "-c", "import numpy"])
            .env("PATH", &path);
        crate::command::output(&mut command).is_ok()
    });
    (path, has_numpy)
}

/// Builds the broker and the lab, and returns the broker's program.
fn build(
    workspace: &Workspace,
    release: bool,
    progress: &mut Progress,
) -> Result<PathBuf, Failure> {
    let mut command = workspace.cargo();
    // A suite finds the lab beside the broker.
    command.args([
        "build",
        "--locked",
        "--package",
        "sterna",
        "--package",
        "sterna-lab",
    ]);
    if release {
        command.arg("--release");
    }
    let log = workspace.target_folder("interop")?.join("build.log");
    let outcome = run_command(&mut command, &log, BUILD_LIMIT, progress)?;
    if !outcome.success {
        return Err(Failure::new(format!(
            "the programs do not build\n{}",
            outcome.tail()
        )));
    }
    let profile = if release { "release" } else { "debug" };
    Ok(workspace.target.join(profile).join("sterna"))
}

/// The arguments of `serve` with the folder `interop` in place, also in the configuration. Its copy is put
/// into `copies`.
fn in_place(copies: &Path, interop: &str, serve: &[String]) -> Result<Vec<String>, Failure> {
    let mut made: Vec<String> = Vec::new();
    for argument in serve {
        let mut argument = argument.replace("@interop", interop);
        if made.last().is_some_and(|before| before == "--config") {
            let text = read(Path::new(&argument))?;
            if text.contains("@interop") {
                let name = Path::new(&argument).file_name().unwrap_or_default();
                let copy = copies.join(name);
                write(&copy, &text.replace("@interop", interop))?;
                argument = copy.to_string_lossy().into_owned();
            }
        }
        made.push(argument);
    }
    Ok(made)
}

/// Where a lane's suites run.
#[derive(Debug)]
struct Place<'a> {
    lane: &'a str,
    launch: &'a Launch,
}

fn run_with_broker(
    field: &Field<'_>,
    place: &Place<'_>,
    serve: &[String],
    suites: &[&Suite],
    progress: &mut Progress,
    sink: &mut dyn FnMut(SuiteReport),
) -> Result<(), Failure> {
    let workspace = field.workspace;
    let interop = workspace.root.join("interop");
    let written = workspace.target_folder(field.folder())?;
    let copies = written.join(format!("configuration-{}", place.lane));
    fs::create_dir_all(&copies)?;
    let serve = in_place(&copies, &interop.to_string_lossy(), serve)?;
    let name = match suites {
        [alone] => &alone.name,
        _ => place.lane,
    };
    let folder = written.join(format!("broker-{name}"));
    let mut running = None;
    // The end of a broker is a check of the last suite that it had.
    let mut held: Option<SuiteReport> = None;
    for suite in suites {
        let broker = match running.take() {
            Some(broker) => Ok(broker),
            None => Broker::start(place.launch, &serve, &folder),
        };
        let report = match broker {
            Ok(mut broker) => {
                let mut report = run_suite(field, &broker, suite, progress)?;
                match broker.ended()? {
                    Some(ending) => report.broken(&format!("the broker ended: {ending}")),
                    None => running = Some(broker),
                }
                report
            }
            Err(Failure(why)) => without_broker(suite, &why),
        };
        if let Some(before) = held.replace(report) {
            sink(before);
        }
    }
    let ending = running.map(Broker::stop).transpose()?;
    if let Some(mut last) = held {
        match ending {
            Some(None) => last.tally += Tally::PASSED,
            Some(Some(why)) => last.broken(&format!("the broker did not end in order: {why}")),
            None => {}
        }
        sink(last);
    }
    Ok(())
}

fn without_broker(suite: &Suite, why: &str) -> SuiteReport {
    let mut report = SuiteReport::new(&suite.name);
    report.broken(&format!("no broker: {why}"));
    report
}

fn run_suite(
    field: &Field<'_>,
    broker: &Broker,
    suite: &Suite,
    progress: &mut Progress,
) -> Result<SuiteReport, Failure> {
    let (name, arguments) = suite
        .run
        .split_first()
        .ok_or_else(|| Failure(format!("suite `{}` has no command", suite.name)))?;
    let workspace = field.workspace;
    let folder = workspace.target_folder(&format!("{}/suites/{}", field.folder(), suite.name))?;
    let mut command = Command::new(name);
    command
        .args(arguments)
        .current_dir(workspace.root.join("interop"))
        .env("STERNA_READY_FILE", broker.ready_file())
        .env("STERNA_CA", broker.certificate())
        .env("STERNA_BIN", &field.program)
        .env("STERNA_BUILD", &folder);
    suite
        .runtime
        .prepare(workspace, &mut command, !suite.python.is_empty());
    let before = progress.elapsed();
    let mut report = SuiteReport::new(&suite.name);
    report.log = folder.join("log");
    let outcome = match run_command(&mut command, &report.log, suite.timeout, progress) {
        Ok(outcome) => outcome,
        Err(Failure(why)) => {
            report.broken(&why);
            return Ok(report);
        }
    };
    let reason = |check: &str, said: &str| {
        let reason = field.design.reason(&suite.name, check, said);
        reason.map(str::to_owned)
    };
    let results = Results::read(outcome.lines.iter().map(String::as_str), reason);
    report.tally = results.tally;
    for problem in &results.problems {
        report.problems.push(format!("{}: {problem}", suite.name));
    }
    report.passed.clone_from(&results.passed);
    report.failed.clone_from(&results.failed);
    if let Some(why) = results.contradiction(outcome.success) {
        report.broken(why);
        report.problems.push(outcome.tail());
    }
    report.time = progress.elapsed().saturating_sub(before);
    let inapplicable = match results.inapplicable {
        0 => String::new(),
        count => format!(", {count} n/a"),
    };
    progress.note(&format!(
        "          {:<20} {}{inapplicable}, {}",
        suite.name,
        report.tally.line(),
        seconds(report.time)
    ));
    for (why, count) in &results.refused {
        progress.note(&format!("          {:<20} {count} as said: {why}", ""));
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_put_in_place_in_arguments_and_configuration() {
        let folder = std::env::temp_dir().join(format!("xtask-place-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let name = folder.to_string_lossy().into_owned();
        fs::write(folder.join("plain.toml"), "shards = 2").unwrap();
        fs::write(folder.join("placed.toml"), "ca = \"@interop/ca.pem\"").unwrap();
        let copies = folder.join("copies");
        fs::create_dir_all(&copies).unwrap();
        let arguments = |config: &str| {
            let serve = ["--config", config, "--x", "@interop"].map(str::to_owned);
            in_place(&copies, &name, &serve).unwrap()
        };
        let plain = format!("{name}/plain.toml");
        assert_eq!(arguments("@interop/plain.toml")[1], plain);
        let placed = arguments("@interop/placed.toml");
        assert_eq!(placed[3], name);
        let text = fs::read_to_string(&placed[1]).unwrap();
        assert_eq!(text, format!("ca = \"{name}/ca.pem\""));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_a_cluster_does_not_do_names_suites_that_are_there() {
        let interop = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let workspace = Workspace {
            target: interop.join("target"),
            root: interop,
        };
        let suites = Suites::load(&workspace).unwrap().suites;
        let names: Vec<&str> = suites.iter().map(|suite| &*suite.name).collect();
        Design::load(&workspace).unwrap().check(&names).unwrap();
    }

    #[test]
    fn what_is_there_and_wrong_fails_and_what_is_absent_is_skipped() {
        let lack = |is_fault| Lack {
            why: "no network".to_owned(),
            is_fault,
        };
        let skipped = lack(false).report("paho");
        assert_eq!(skipped.tally, Tally::SKIPPED);
        assert_eq!(skipped.problems, ["paho: skip: no network"]);
        let broken = lack(true).report("quic-go");
        assert_eq!((broken.tally, &*broken.failed[0]), (Tally::FAILED, BROKEN));
    }
}
