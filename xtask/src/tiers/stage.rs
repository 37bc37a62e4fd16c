//! Jobs of a run, made of the parts that were chosen.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use super::outcome::{Done, Rows};
use crate::choice::Choice;
use crate::command::{cargo, run as run_command};
use crate::console::{Colour, Progress, Tally};
use crate::interop::{Absent, Field, Suite, Suites};
use crate::lanes::{Board, Job};
use crate::needs::Needs;
use crate::parts::{Part, Parts};
use crate::record::Record;
use crate::steps::{Scope, StepReport};
use crate::test_programs::{TestProgram, Tested};
use crate::workspace::Workspace;
use crate::{Failure, changed, interop, steps, test_programs};

/// Events: copies of the broker and the lab are there, all test programs are, and what clients need is.
pub(super) const BROKER: &str = "broker";
pub(super) const TEST_PROGRAMS: &str = "test programs";
pub(super) const CLIENTS: &str = "clients";

/// Lane of what keeps the processors busy.
const COMPILING: &str = "compiling";

/// The surroundings that all jobs of a run share.
pub(super) struct Stage<'a> {
    pub(super) workspace: &'a Workspace,
    pub(super) parts: &'a Parts,
    pub(super) suites: &'a Suites,
    pub(super) needs: &'a Needs,
    pub(super) choice: &'a Choice,
    /// Where results are written down; `None`: nowhere.
    pub(super) record: Option<&'a Record>,
    /// The test programs that were built.
    pub(super) programs: Mutex<Vec<TestProgram>>,
    /// Suites that cannot run.
    pub(super) absent: Mutex<Arc<Absent>>,
    /// The search path of tests.
    pub(super) search_path: Mutex<OsString>,
}

/// Jobs that make results of parts.
type Jobs<'s> = Vec<Job<'s, Vec<Done>>>;

impl<'a> Stage<'a> {
    fn scope(&self) -> Scope<'a> {
        Scope {
            workspace: self.workspace,
            packages: self.choice.packages.as_deref(),
        }
    }

    /// The jobs of this run, in the order of the list.
    pub(super) fn jobs(&self) -> Jobs<'_> {
        let choice = self.choice;
        let mut jobs = Jobs::new();
        let of_tests = |part: &&Part| part.name == "build" || part.name.starts_with("tests/");
        if choice.parts.iter().any(|part| of_tests(&part)) || self.has_suites() {
            jobs.push(Job::new(
                "build",
                COMPILING,
                &[],
                &[BROKER, TEST_PROGRAMS],
                |board| self.build(board),
            ));
        }
        let after_clients = |part: &Part| part.after.iter().any(|event| event == CLIENTS);
        if choice.parts.iter().any(after_clients) || !choice.suites.is_empty() {
            jobs.push(Job::new(CLIENTS, CLIENTS, &[], &[CLIENTS], |board| {
                self.install(board)
            }));
        }
        // The longest begin first.
        let mut lanes: Vec<(&str, Vec<&Suite>)> = Vec::new();
        for suite in &choice.suites {
            match lanes.iter_mut().find(|(lane, _)| *lane == suite.lane) {
                Some((_, suites)) => suites.push(suite),
                None => lanes.push((&suite.lane, vec![suite])),
            }
        }
        for (lane, suites) in lanes {
            let name = format!("suites: {lane}");
            let after = [BROKER, CLIENTS];
            jobs.push(Job::new(&name, &name, &after, &[], move |_| {
                self.suites(lane, &suites)
            }));
        }
        for part in choice.parts.iter().filter(|part| part.name != "build") {
            let after: Vec<&str> = part.after.iter().map(String::as_str).collect();
            jobs.push(Job::new(&part.name, &part.lane, &after, &[], move |_| {
                self.part(part)
            }));
        }
        jobs
    }

    /// Whether a suite runs here: otherwise nothing is built for them.
    fn has_suites(&self) -> bool {
        let mut suites = self.choice.suites.iter();
        suites.any(|suite| self.needs.lack(&suite.subjects()).is_none())
    }

    /// The result of a job that cannot begin.
    pub(super) fn refused(&self, name: &str, event: &str) -> Vec<Done> {
        let progress = Progress::aside(&label(name));
        let report = StepReport::skipped(format!("not run: there is no {event}"));
        vec![self.ended(name, &progress, report)]
    }

    /// Shows the end of a part and writes it down.
    fn ended(&self, name: &str, progress: &Progress, report: StepReport) -> Done {
        show(progress, &report);
        let done = Done {
            part: name.to_owned(),
            tally: report.tally,
            rows: Rows::Tests(report.failed),
            time: progress.elapsed(),
            is_flaky: false,
        };
        // A row may yet turn out to be flaky: that is written down when it is known.
        if done.rows.is_empty() {
            self.write_down(&done);
        }
        done
    }

    pub(super) fn write_down(&self, done: &Done) {
        // An installation is no result, and a build of what others need is not that of everything.
        let mut of_list = self.choice.parts.iter().map(|part| part.name.as_str());
        let is_part = done.part.starts_with("interop/") || of_list.any(|name| name == done.part);
        let Some(record) = self.record.filter(|_| is_part) else {
            return;
        };
        if let Err(Failure(why)) = record.add(&done.part, done.verdict(), done.tally, done.time) {
            eprintln!("the result of {} is not written down: {why}", done.part);
        }
    }

    fn part(&self, part: &Part) -> Vec<Done> {
        let label = label(&part.name);
        let mut progress = if part.lane == COMPILING {
            Progress::start(&label)
        } else {
            Progress::aside(&label)
        };
        let report = match self.needs.lack(std::slice::from_ref(&part.name)) {
            Some(lack) => Ok(StepReport::skipped(lack)),
            None => self.run_part(part, &mut progress),
        };
        let report = report.unwrap_or_else(|Failure(why)| StepReport::failed(why));
        vec![self.ended(&part.name, &progress, report)]
    }

    fn run_part(&self, part: &Part, progress: &mut Progress) -> Result<StepReport, Failure> {
        if let Some(command) = &part.run {
            return self.run_command(part, command, progress);
        }
        match part.name.as_str() {
            "tests/documents" => self.documents(progress),
            name if name.starts_with("tests/") => self.tests(part, progress),
            name => steps::run(name, &self.scope(), progress),
        }
    }

    /// Runs a part that is a command.
    fn run_command(
        &self,
        part: &Part,
        words: &[String],
        progress: &mut Progress,
    ) -> Result<StepReport, Failure> {
        let mut command = match words {
            // This program: a second cargo would wait for the first.
            [cargo, xtask, rest @ ..] if cargo == "cargo" && xtask == "xtask" => {
                let mut command = Command::new(own_program()?);
                command.args(rest).current_dir(&self.workspace.root);
                command
            }
            [cargo, rest @ ..] if cargo == "cargo" => {
                let mut command = self.workspace.cargo();
                command.args(rest).env("CARGO_TERM_COLOR", "never");
                command
            }
            [program, rest @ ..] => {
                let mut command = Command::new(program);
                command.args(rest).current_dir(&self.workspace.root);
                command
            }
            [] => return Err(Failure::new("`run` is empty")),
        };
        command.envs(part.variables.iter().map(|(name, value)| (name, value)));
        let logs = self.workspace.target_folder("xtask")?;
        let log = logs.join(format!("{}.log", part.name.replace('/', "-")));
        let outcome = run_command(&mut command, &log, part.limit, progress)?;
        let mut report = StepReport {
            tally: Tally::check(outcome.success),
            ..StepReport::default()
        };
        if outcome.success {
            // Its last line mostly says what it found out.
            let last = outcome
                .lines
                .iter()
                .rev()
                .find(|line| !line.trim().is_empty());
            report.detail = last.map(|line| line.trim().to_owned()).unwrap_or_default();
        } else {
            report.remarks.push(outcome.cargo_tail());
        }
        Ok(report)
    }

    /// Builds the test programs, and with them the broker and the lab.
    fn build(&self, board: &Board) -> Vec<Done> {
        let name = "build";
        let mut progress = Progress::start(&label(name));
        let report = match self.needs.lack(&[name.to_owned()]) {
            Some(lack) => Ok(StepReport::skipped(lack)),
            None => self.run_build(board, &mut progress),
        };
        let report = report.unwrap_or_else(|Failure(why)| StepReport::failed(why));
        vec![self.ended(name, &progress, report)]
    }

    fn run_build(&self, board: &Board, progress: &mut Progress) -> Result<StepReport, Failure> {
        let has_tests = self
            .choice
            .parts
            .iter()
            .any(|part| part.name != "build" && part.name.starts_with("tests/"));
        let mut builds: Vec<Vec<String>> = Vec::new();
        let with_all = self.choice.packages.is_none();
        if self.has_suites() && !(has_tests && with_all) {
            let words = [
                "build",
                "--locked",
                "--package=sterna",
                "--package=sterna-lab",
            ];
            builds.push(words.map(str::to_owned).to_vec());
        }
        let is_asked = self.choice.parts.iter().any(|part| part.name == "build");
        if has_tests || is_asked {
            let words = ["test", "--locked", "--no-run"].map(str::to_owned);
            builds.push(words.into_iter().chain(self.scope().options()).collect());
        }
        let mut built = Vec::new();
        for arguments in builds {
            let mut are_ready = || board.tell(BROKER, true);
            let made = test_programs::build(self.workspace, &arguments, &mut are_ready, progress)?;
            match made {
                Ok(programs) => built.extend(programs),
                Err(outcome) => return Ok(StepReport::failed(outcome.cargo_tail())),
            }
        }
        let count = built.len();
        *self.programs.lock().unwrap_or_else(PoisonError::into_inner) = built;
        board.tell(TEST_PROGRAMS, true);
        Ok(StepReport {
            tally: Tally::PASSED,
            detail: format!("{count} test programs"),
            ..StepReport::default()
        })
    }

    /// Installs what clients need, and numpy for the lab's statistics.
    fn install(&self, board: &Board) -> Vec<Done> {
        let mut progress = Progress::aside(&label(CLIENTS));
        let suites = self.choice.suites.iter();
        let with_numpy = self
            .choice
            .parts
            .iter()
            .any(|part| part.name == "tests/links");
        let report = match interop::install(self.workspace, suites, with_numpy, &mut progress) {
            Ok(absent) => {
                *self.absent.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(absent);
                board.tell(CLIENTS, true);
                // No check: it lets others run.
                StepReport {
                    detail: "installed".to_owned(),
                    ..StepReport::default()
                }
            }
            Err(Failure(why)) => StepReport::failed(why),
        };
        vec![self.ended(CLIENTS, &progress, report)]
    }

    /// Runs the test programs of a part.
    fn tests(&self, part: &Part, progress: &mut Progress) -> Result<StepReport, Failure> {
        let programs = self
            .programs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let programs: Vec<TestProgram> = (programs.into_iter())
            .filter(|program| self.parts.runs(part, &program.package))
            .collect();
        let lane = part.name.rsplit('/').next().unwrap_or_default();
        let has_statistics = programs
            .iter()
            .any(|program| program.package == "sterna-lab");
        let (path, has_numpy) = interop::numpy_search_path(self.workspace);
        if has_statistics {
            self.search_path
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone_from(&path);
        }
        let path = if has_statistics { path } else { self.path() };
        let tested = test_programs::run(self.workspace, &programs, lane, &path, progress)?;
        let mut report = tests_report(tested);
        if has_statistics && !has_numpy {
            report.tally += Tally::SKIPPED;
            let why = "report::recompute_tests: skip: there is no Python with numpy";
            report.remarks.push(why.to_owned());
        }
        Ok(report)
    }

    pub(super) fn path(&self) -> OsString {
        self.search_path
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Runs the examples in the documentation of the code.
    fn documents(&self, progress: &mut Progress) -> Result<StepReport, Failure> {
        let mut arguments = vec!["test".to_owned(), "--locked".to_owned(), "--doc".to_owned()];
        arguments.push("--no-fail-fast".to_owned());
        if let Some(names) = &self.choice.packages {
            // Cargo refuses a package without a library.
            let crates = changed::Crates::load(self.workspace)?;
            let names: Vec<&String> = names
                .iter()
                .filter(|name| crates.has_library(name))
                .collect();
            if names.is_empty() {
                return Ok(StepReport::default());
            }
            arguments.extend(names.iter().map(|name| format!("--package={name}")));
        } else {
            // The checks of the fuzz targets have modules of other crates, whose examples are tried there.
            let all = ["--workspace", "--exclude=sterna-fuzz"];
            arguments.extend(all.map(str::to_owned));
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let quiet = Some(("RUST_BACKTRACE", "0"));
        let outcome = cargo(
            self.workspace,
            progress,
            "tests-documents",
            &arguments,
            quiet,
        )?;
        let mut tested = Tested::default();
        tested.read(&outcome);
        Ok(tests_report(tested))
    }

    /// Runs the suites of a lane.
    fn suites(&self, lane: &str, suites: &[&Suite]) -> Vec<Done> {
        let name = format!("suites: {lane}");
        let mut progress = Progress::aside(&label(&name));
        let field = self.field();
        let (mut done, mut all) = (Vec::new(), StepReport::default());
        let mut sink = |report: interop::SuiteReport| {
            all.tally += report.tally;
            all.remarks.extend(report.problems);
            let one = Done {
                part: format!("interop/{}", report.name),
                tally: report.tally,
                rows: Rows::of_suite(report.name, report.failed, report.log),
                time: report.time,
                is_flaky: false,
            };
            if one.rows.is_empty() {
                self.write_down(&one);
            }
            done.push(one);
        };
        let ended = interop::run_lane(&field, lane, self.suites, suites, &mut progress, &mut sink);
        if let Err(Failure(why)) = ended {
            all.tally += Tally::FAILED;
            all.remarks.push(why);
            done.push(Done::failed(&name, progress.elapsed()));
        }
        show(&progress, &all);
        done
    }

    pub(super) fn field(&self) -> Field<'_> {
        let absent = self
            .absent
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let program = test_programs::copies(self.workspace).join("sterna");
        Field::new(self.workspace, program, absent)
    }
}

/// This program. A build may have put another one into its place, which the system's own name for it does not follow.
fn own_program() -> Result<PathBuf, Failure> {
    let running = PathBuf::from("/proc/self/exe");
    Ok(if running.exists() {
        running
    } else {
        std::env::current_exe()?
    })
}

fn tests_report(tested: Tested) -> StepReport {
    let mut report = StepReport {
        tally: tested.tally,
        remarks: tested.remarks,
        failed: tested.failed,
        ..StepReport::default()
    };
    if report.tally.failed + report.tally.skipped == 0 {
        let (count, programs) = (report.tally.passed, tested.programs);
        report.detail = format!("{count} tests in {programs} programs");
    }
    report
}

/// A part's name in front of what is shown of it.
pub(super) fn label(name: &str) -> String {
    format!("{name:<20}")
}

fn show(progress: &Progress, report: &StepReport) {
    let (colour, verdict) = match report.tally {
        Tally { failed: 1.., .. } => (Colour::Red, "FAILED"),
        Tally { skipped: 1.., .. } => (Colour::Yellow, "skipped"),
        _ => (Colour::Green, "ok"),
    };
    let counts = report.tally.line();
    let detail = if report.detail.is_empty() {
        &counts
    } else {
        &report.detail
    };
    // In one piece: other lanes print, too.
    let lines: Vec<&str> = report
        .remarks
        .iter()
        .flat_map(|remark| remark.lines())
        .collect();
    let remarks = match lines[..] {
        [] => String::new(),
        _ => format!("\n      {}", lines.join("\n      ")),
    };
    progress.finish_with(colour, verdict, detail, &remarks);
}
