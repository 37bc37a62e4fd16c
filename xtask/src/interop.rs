//! Foreign clients against the broker.
//!
//! `interop/suites.json` lists suites; each is a program that prints one line per check and needs to
//! know nothing about this runner:
//!
//! ```json
//! {
//!   "serve": ["--listen", "mqtt://127.0.0.1:0"],
//!   "suites": [
//!     {"name": "paho", "runtime": "python", "install": ["paho-mqtt==2.1.0"], "run": ["python", "paho_suite.py"]}
//!   ]
//! }
//! ```
//!
//! A bare array of suites is the same without `serve`. `runtime` and `install` name the
//! requirements (see [`runtime::Runtime`]). `run` is a command in the folder `interop`, with the
//! runtime's programs first on the search path. A suite may have `serve` arguments of its own;
//! suites with the same ones share a broker. It may have `timeout_s`. `python` lists packages for
//! pip, for a program in Python that drives a client of another runtime. Suites that
//! wait more than they work name a `lane`: each lane runs beside the others, with brokers of its own.
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

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::command::run as run_command;
use crate::console::{Colour, Progress, Tally, seconds};
use crate::workspace::{Workspace, read, write};
use crate::{Failure, Verdict};

use broker::{Broker, Launch};
use cluster::Design;
use results::Results;
use runtime::Runtime;

/// Default time limit of a suite.
const SUITE_SECONDS: u64 = 300;

/// The longest time that building the broker may take.
const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Content of `suites.json`.
#[derive(Debug)]
struct Suites {
    serve: Vec<String>,
    suites: Vec<Suite>,
}

/// The lane of suites that name none.
const SHARED_LANE: &str = "shared";

/// One suite of checks.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Suite {
    name: String,
    runtime: Runtime,
    /// Packages that the runtime has to install or find.
    install: Vec<String>,
    /// Packages for Python beside it: for a scenario in Python that drives a client in another
    /// language.
    python: Vec<String>,
    run: Vec<String>,
    /// Arguments of `sterna serve`, where the suite wants a broker of its own.
    serve: Option<Vec<String>>,
    /// Suites of one lane run one after the other, and lanes beside each other.
    lane: String,
    timeout: Duration,
}

/// Builds the server of NATS and returns a search path that begins with its folder.
pub(crate) fn nats_search_path(
    workspace: &Workspace,
    progress: &mut Progress,
) -> Result<std::ffi::OsString, Failure> {
    let missing = Runtime::Go
        .missing(&[])
        .or_else(|| Runtime::Python.missing(&[]));
    if let Some(program) = missing {
        return Err(Failure(format!("`{program}` is not on this machine")));
    }
    if let Some(why) = Runtime::Go.install(workspace, &["gonats".to_owned()], progress)? {
        return Err(Failure(format!("NATS could not be built\n{why}")));
    }
    Ok(Runtime::Go.search_path(workspace, false))
}

impl Suites {
    fn load(workspace: &Workspace) -> Result<Self, Failure> {
        let path = workspace.root.join("interop").join("suites.json");
        Self::parse(&read(&path)?)
            .map_err(|Failure(why)| Failure(format!("interop/suites.json: {why}")))
    }

    fn parse(text: &str) -> Result<Self, Failure> {
        let value: Value =
            serde_json::from_str(text).map_err(|error| Failure::new(error.to_string()))?;
        let (serve, suites) = match &value {
            Value::Array(suites) => (Vec::new(), suites),
            _ => (
                strings(&value, "serve")?.unwrap_or_default(),
                value["suites"]
                    .as_array()
                    .ok_or_else(|| Failure::new("no array `suites`"))?,
            ),
        };
        let suites: Vec<Suite> = suites.iter().map(Suite::parse).collect::<Result<_, _>>()?;
        if suites.is_empty() {
            return Err(Failure::new("no suite"));
        }
        for (index, suite) in suites.iter().enumerate() {
            if suites[..index].iter().any(|other| other.name == suite.name) {
                return Err(Failure(format!("two suites are called `{}`", suite.name)));
            }
        }
        Ok(Self { serve, suites })
    }
}

impl Suite {
    fn parse(value: &Value) -> Result<Self, Failure> {
        let name = value["name"]
            .as_str()
            .ok_or_else(|| Failure::new("a suite without `name`"))?;
        let wrong = |what: &str| Failure(format!("suite `{name}`: {what}"));
        let runtime = value["runtime"].as_str().and_then(Runtime::named);
        let run = strings(value, "run")?.filter(|run| !run.is_empty());
        let timeout = match &value["timeout_s"] {
            Value::Null => SUITE_SECONDS,
            seconds => seconds
                .as_u64()
                .ok_or_else(|| wrong("`timeout_s` is not a number"))?,
        };
        Ok(Self {
            name: name.to_owned(),
            runtime: runtime.ok_or_else(|| wrong("no `runtime` that is known"))?,
            install: strings(value, "install")?.unwrap_or_default(),
            python: strings(value, "python")?.unwrap_or_default(),
            run: run.ok_or_else(|| wrong("no command `run`"))?,
            serve: strings(value, "serve")?,
            lane: value["lane"].as_str().unwrap_or(SHARED_LANE).to_owned(),
            timeout: Duration::from_secs(timeout),
        })
    }

    /// Whether this suite needs the installed packages of a runtime.
    fn needs(&self, runtime: Runtime) -> bool {
        self.runtime == runtime || (runtime == Runtime::Python && !self.python.is_empty())
    }
}

fn strings(value: &Value, key: &str) -> Result<Option<Vec<String>>, Failure> {
    let wrong = || Failure(format!("`{key}` is not an array of strings"));
    match &value[key] {
        Value::Null => Ok(None),
        Value::Array(items) => items
            .iter()
            .map(|item| item.as_str().map(str::to_owned).ok_or_else(wrong))
            .collect::<Result<_, _>>()
            .map(Some),
        _ => Err(wrong()),
    }
}

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
                    println!("{:<24} {}", suite.name, suite.runtime.name());
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
pub(crate) struct Report {
    pub(crate) tally: Tally,
    /// Every check that failed or was skipped, and the end of the log of suites that broke.
    pub(crate) problems: Vec<String>,
}

impl Report {
    fn broken(&mut self, suite: &str, why: &str) {
        self.tally += Tally::FAILED;
        self.problems.push(format!("{suite}: not ok: {why}"));
    }
}

/// Runs all suites against a broker in the profile for development.
pub(crate) fn check(workspace: &Workspace, progress: &mut Progress) -> Result<Report, Failure> {
    let suites = Suites::load(workspace)?;
    check_suites(workspace, &suites, &Options::default(), progress)
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
    let mut ready = Vec::new();
    let design = match options.cluster {
        Some(_) => Design::load(workspace)?,
        None => Design::default(),
    };
    for suite in &suites.suites {
        if design.leaves_out(&suite.name) {
            continue;
        }
        if let Some(missing) = suite.runtime.missing(&suite.install) {
            report.tally += Tally::SKIPPED;
            report
                .problems
                .push(format!("{}: skip: {missing} is not installed", suite.name));
        } else {
            ready.push(suite);
        }
    }
    install(workspace, &mut ready, &mut report, progress)?;
    if ready.is_empty() {
        return Ok(report);
    }
    let program = build(workspace, options.release, progress)?;
    let launch = match options.cluster {
        Some(seed) => {
            let path = nats_search_path(workspace, progress)?;
            cluster::launch(workspace, program.clone(), path, seed)
        }
        None => Launch::program(program.clone()),
    };
    let field = Field {
        workspace,
        program,
        launch,
        design,
    };
    let mut lanes: BTreeMap<&str, Vec<&Suite>> = BTreeMap::new();
    for suite in ready {
        lanes.entry(&suite.lane).or_default().push(suite);
    }
    let (field, shown) = (&field, &*progress);
    let ended: Vec<_> = std::thread::scope(|scope| {
        let mut running = Vec::new();
        for (number, (lane, ready)) in lanes.iter().enumerate() {
            let mut progress = shown.lane(number);
            running.push(scope.spawn(move || run_lane(field, lane, suites, ready, &mut progress)));
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

/// Runs suites one after the other: those that share a broker, then those that want another.
fn run_lane(
    field: &Field<'_>,
    lane: &str,
    suites: &Suites,
    ready: &[&Suite],
    progress: &mut Progress,
) -> Result<Report, Failure> {
    let mut report = Report::default();
    let mut brokers: Vec<(&[String], Vec<&Suite>)> = Vec::new();
    for suite in ready {
        let serve = suite.serve.as_deref().unwrap_or(&suites.serve);
        match brokers.iter_mut().find(|(other, _)| *other == serve) {
            Some((_, sharing)) => sharing.push(suite),
            None => brokers.push((serve, vec![suite])),
        }
    }
    for (serve, sharing) in brokers {
        run_with_broker(field, lane, serve, &sharing, &mut report, progress)?;
    }
    Ok(report)
}

/// Surroundings that all suites of a run share.
#[derive(Debug)]
struct Field<'a> {
    workspace: &'a Workspace,
    /// The broker's program.
    program: PathBuf,
    launch: Launch,
    design: Design,
}

/// Installs the suites' requirements, and removes suites that cannot have theirs.
fn install(
    workspace: &Workspace,
    ready: &mut Vec<&Suite>,
    report: &mut Report,
    progress: &mut Progress,
) -> Result<(), Failure> {
    let mut needs: BTreeMap<Runtime, Vec<String>> = BTreeMap::new();
    for suite in ready.iter() {
        needs
            .entry(suite.runtime)
            .or_default()
            .extend(suite.install.iter().cloned());
        if !suite.python.is_empty() {
            needs
                .entry(Runtime::Python)
                .or_default()
                .extend(suite.python.iter().cloned());
        }
    }
    for (runtime, mut packages) in needs {
        packages.sort();
        packages.dedup();
        if let Some(why) = runtime.install(workspace, &packages, progress)? {
            for suite in ready.iter().filter(|suite| suite.needs(runtime)) {
                report.broken(
                    &suite.name,
                    &format!("its requirements could not be installed\n{why}"),
                );
            }
            ready.retain(|suite| !suite.needs(runtime));
        }
    }
    Ok(())
}

fn build(
    workspace: &Workspace,
    release: bool,
    progress: &mut Progress,
) -> Result<PathBuf, Failure> {
    let mut command = workspace.cargo();
    // A suite finds the lab beside the broker.
    command.args(["build", "--package", "sterna", "--package", "sterna-lab"]);
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

fn run_with_broker(
    field: &Field<'_>,
    lane: &str,
    serve: &[String],
    suites: &[&Suite],
    report: &mut Report,
    progress: &mut Progress,
) -> Result<(), Failure> {
    let workspace = field.workspace;
    let interop = workspace.root.join("interop");
    let copies = workspace.target_folder(&format!("interop/configuration-{lane}"))?;
    let serve = in_place(&copies, &interop.to_string_lossy(), serve)?;
    let name = if suites.len() == 1 {
        suites[0].name.as_str()
    } else {
        lane
    };
    let folder = workspace
        .target_folder("interop")?
        .join(format!("broker-{name}"));
    let mut broker = match Broker::start(&field.launch, &serve, &folder) {
        Ok(broker) => broker,
        Err(Failure(why)) => {
            for suite in suites {
                report.broken(&suite.name, &format!("no broker: {why}"));
            }
            return Ok(());
        }
    };
    for suite in suites {
        run_suite(field, &broker, suite, report, progress)?;
        if let Some(ending) = broker.ended()? {
            report.broken(&suite.name, &format!("the broker ended: {ending}"));
            broker = match Broker::start(&field.launch, &serve, &folder) {
                Ok(broker) => broker,
                Err(Failure(why)) => {
                    report.broken(&suite.name, &format!("no broker after it: {why}"));
                    return Ok(());
                }
            };
        }
    }
    match broker.stop()? {
        None => report.tally += Tally::PASSED,
        Some(why) => report.broken(name, &format!("the broker did not end in order: {why}")),
    }
    Ok(())
}

fn run_suite(
    field: &Field<'_>,
    broker: &Broker,
    suite: &Suite,
    report: &mut Report,
    progress: &mut Progress,
) -> Result<(), Failure> {
    let (name, arguments) = suite
        .run
        .split_first()
        .ok_or_else(|| Failure(format!("suite `{}` has no command", suite.name)))?;
    let workspace = field.workspace;
    let folder = workspace.target_folder(&format!("interop/suites/{}", suite.name))?;
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
    let outcome = match run_command(&mut command, &folder.join("log"), suite.timeout, progress) {
        Ok(outcome) => outcome,
        Err(Failure(why)) => {
            report.broken(&suite.name, &why);
            return Ok(());
        }
    };
    let reason = |check: &str, said: &str| {
        let reason = field.design.reason(&suite.name, check, said);
        reason.map(str::to_owned)
    };
    let results = Results::read(outcome.lines.iter().map(String::as_str), reason);
    let mut tally = results.tally;
    for problem in &results.problems {
        report.problems.push(format!("{}: {problem}", suite.name));
    }
    if let Some(why) = results.contradiction(outcome.success) {
        tally += Tally::FAILED;
        report
            .problems
            .push(format!("{}: not ok: {why}", suite.name));
        report.problems.push(outcome.tail());
    }
    report.tally += tally;
    let time = seconds(progress.elapsed().saturating_sub(before));
    let inapplicable = match results.inapplicable {
        0 => String::new(),
        count => format!(", {count} n/a"),
    };
    progress.note(&format!(
        "          {:<20} {}{inapplicable}, {time}",
        suite.name,
        tally.line()
    ));
    for (why, count) in &results.refused {
        progress.note(&format!("          {:<20} {count} as said: {why}", ""));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_the_list_are_read() {
        let suite =
            r#"{"name": "a", "runtime": "python", "install": ["x==1"], "run": ["python", "a.py"]}"#;
        let bare = Suites::parse(&format!("[{suite}]")).unwrap();
        let full = Suites::parse(&format!(r#"{{"serve": ["--x"], "suites": [{suite}]}}"#)).unwrap();
        assert_eq!(bare.suites, full.suites);
        assert_eq!(full.serve, ["--x"]);
        assert_eq!(
            bare.suites[0],
            Suite {
                name: "a".into(),
                runtime: Runtime::Python,
                install: vec!["x==1".into()],
                python: vec![],
                run: vec!["python".into(), "a.py".into()],
                serve: None,
                lane: SHARED_LANE.into(),
                timeout: Duration::from_secs(SUITE_SECONDS),
            }
        );
    }

    #[test]
    fn the_folder_is_put_in_place_in_arguments_and_configuration() {
        let folder = std::env::temp_dir().join(format!("xtask-place-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let name = folder.to_string_lossy().into_owned();
        std::fs::write(folder.join("plain.toml"), "shards = 2").unwrap();
        std::fs::write(folder.join("placed.toml"), "ca = \"@interop/ca.pem\"").unwrap();
        let copies = folder.join("copies");
        std::fs::create_dir_all(&copies).unwrap();
        let arguments = |config: &str| {
            let serve = ["--config", config, "--x", "@interop"].map(str::to_owned);
            in_place(&copies, &name, &serve).unwrap()
        };
        let plain = format!("{name}/plain.toml");
        assert_eq!(arguments("@interop/plain.toml")[1], plain);
        let placed = arguments("@interop/placed.toml");
        assert_eq!(placed[3], name);
        let text = std::fs::read_to_string(&placed[1]).unwrap();
        assert_eq!(text, format!("ca = \"{name}/ca.pem\""));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn python_beside_a_runtime_is_a_need() {
        let suite = r#"[{"name": "a", "runtime": "node", "install": ["x@1"], "python": ["y==2"], "run": ["x"]}]"#;
        let suites = Suites::parse(suite).unwrap().suites;
        assert_eq!(suites[0].python, ["y==2"]);
        assert!(suites[0].needs(Runtime::Node) && suites[0].needs(Runtime::Python));
        assert!(!suites[0].needs(Runtime::Go));
    }

    #[test]
    fn the_suites_of_the_project_are_well_formed() {
        let interop = Path::new(env!("CARGO_MANIFEST_DIR")).join("../interop");
        let text = std::fs::read_to_string(interop.join("suites.json")).unwrap();
        for suite in Suites::parse(&text).unwrap().suites {
            let of_modules = match suite.runtime {
                Runtime::Go => "go.mod",
                Runtime::Java => "pom.xml",
                _ => continue,
            };
            for module in &suite.install {
                let there = interop.join(module).join(of_modules).is_file();
                assert!(there, "{}: {module} has no {of_modules}", suite.name);
            }
        }
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
    fn what_is_missing_in_the_list_is_named() {
        for (text, why) in [
            ("{}", "suites"),
            ("[]", "no suite"),
            (r#"[{"runtime": "python"}]"#, "name"),
            (
                r#"[{"name": "a", "runtime": "cobol", "run": ["x"]}]"#,
                "runtime",
            ),
            (r#"[{"name": "a", "runtime": "node"}]"#, "run"),
            (r#"[{"name": "a", "runtime": "node", "run": "x"}]"#, "run"),
            (
                r#"[{"name": "a", "runtime": "node", "run": ["x"], "timeout_s": "5"}]"#,
                "timeout_s",
            ),
            (
                r#"[{"name": "a", "runtime": "go", "run": ["x"]}, {"name": "a", "runtime": "go", "run": ["x"]}]"#,
                "two suites",
            ),
        ] {
            let Failure(text) = Suites::parse(text).unwrap_err();
            assert!(text.contains(why), "{text}");
        }
    }
}
