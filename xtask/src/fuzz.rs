//! Builds and runs the fuzz targets of `fuzz/` on the stable compiler.
//!
//! libFuzzer needs counters in the code under test. The compiler's own switch for them is unstable,
//! but the LLVM pass behind it can be requested by name. No other tool or toolchain is needed.
//! Address sanitising is not available this way; the targets are safe Rust with assertions and
//! overflow checks on.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread::{ScopedJoinHandle, available_parallelism};
use std::time::Duration;

use crate::command::{Outcome, output, run as run_command};
use crate::console::{Colour, Progress, Tally};
use crate::workspace::{Workspace, on_path, read};
use crate::{Failure, Verdict};

/// The manifest of the targets.
const MANIFEST: &str = "fuzz/targets/Cargo.toml";

/// Default time of each target.
const DEFAULT_SECONDS: u64 = 60;

/// The longest time that building the targets may take.
const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Time of a target beyond its own, for loading its corpus and its last input.
const GRACE: Duration = Duration::from_secs(60);

/// One input may take this many seconds.
const INPUT_SECONDS: u32 = 10;

/// A target may hold this many megabytes.
const MEMORY_MB: u32 = 1024;

/// Largest input in bytes that libFuzzer makes up.
const INPUT_BYTES: u32 = 16 * 1024;

/// Flags that make LLVM count edges and note comparisons.
const COVERAGE_FLAGS: [&str; 6] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// The request on the command line.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    target: Option<String>,
    seconds: u64,
    replay: Option<PathBuf>,
}

impl Request {
    fn read(arguments: &[String]) -> Result<Self, Failure> {
        let mut request = Self {
            target: None,
            seconds: DEFAULT_SECONDS,
            replay: None,
        };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--seconds" => {
                    request.seconds = arguments
                        .next()
                        .and_then(|text| text.parse().ok())
                        .filter(|seconds| *seconds > 0)
                        .ok_or_else(|| Failure::new("--seconds takes a number above 0"))?;
                }
                "--replay" => {
                    let file = arguments
                        .next()
                        .ok_or_else(|| Failure::new("--replay takes a file"))?;
                    request.replay = Some(PathBuf::from(file));
                }
                name if !name.starts_with('-') && request.target.is_none() => {
                    request.target = Some(name.to_owned());
                }
                other => return Err(Failure::new(format!("unexpected argument `{other}`"))),
            }
        }
        if request.replay.is_some() && request.target.is_none() {
            return Err(Failure::new("--replay needs a target"));
        }
        Ok(request)
    }
}

/// Fuzzes, or runs one input.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Verdict {
    let request = Request::read(arguments)?;
    let mut targets = targets(workspace)?;
    if let Some(wanted) = &request.target {
        if !targets.contains(wanted) {
            let known = targets.join(", ");
            return Err(Failure::new(format!(
                "no target `{wanted}`; there are: {known}"
            )));
        }
        targets = vec![wanted.clone()];
    }
    let mut progress = Progress::start("build");
    let programs = build(workspace, &mut progress)?;
    progress.finish(Colour::Green, "ok", "");
    if let (Some(file), [target]) = (&request.replay, &targets[..]) {
        let status = Command::new(programs.join(target)).arg(file).status()?;
        return Ok(status.success());
    }
    let mut all_passed = true;
    for target in &targets {
        let mut progress = Progress::start(&format!("{target:<20}"));
        let result = fuzz(workspace, &programs, target, request.seconds, &mut progress)?;
        if result.passed {
            progress.finish(Colour::Green, "ok", &result.detail);
        } else {
            progress.finish(Colour::Red, "FAILED", &result.detail);
            progress.note(&result.report.join("\n"));
            all_passed = false;
        }
    }
    Ok(all_passed)
}

/// Result of the smoke test of all targets.
#[derive(Debug, Default)]
pub(crate) struct Smoke {
    pub(crate) tally: Tally,
    /// Failed targets, and those that could not run.
    pub(crate) report: Vec<String>,
}

/// Runs every target for some seconds.
pub(crate) fn smoke(
    workspace: &Workspace,
    seconds: u64,
    progress: &mut Progress,
) -> Result<Smoke, Failure> {
    let mut smoke = Smoke::default();
    let targets = targets(workspace)?;
    if !["c++", "g++", "clang++"].into_iter().any(on_path) {
        for target in targets {
            smoke.tally += Tally::SKIPPED;
            smoke.report.push(format!(
                "skipped {target}: no C++ compiler to build libFuzzer"
            ));
        }
        return Ok(smoke);
    }
    let programs = build(workspace, progress)?;
    // A target has one thread, so each processor has a target.
    let lanes = available_parallelism().map_or(1, NonZero::get);
    let left = Mutex::new(targets.into_iter());
    let next = || left.lock().map_or(None, |mut left| left.next());
    let lane = |mut progress: Progress| -> Result<Smoke, Failure> {
        let mut smoke = Smoke::default();
        while let Some(target) = next() {
            let result = fuzz(workspace, &programs, &target, seconds, &mut progress)?;
            smoke.tally += Tally::check(result.passed);
            if result.passed {
                progress.note(&format!("          {target:<20} {}", result.detail));
            } else {
                smoke.report.push(format!("{target}: {}", result.detail));
                smoke.report.extend(result.report);
            }
        }
        Ok(smoke)
    };
    let finished: Vec<Result<Smoke, Failure>> = std::thread::scope(|scope| {
        let mut threads = Vec::with_capacity(lanes);
        for number in 0..lanes {
            let progress = progress.lane(number);
            threads.push(scope.spawn(|| lane(progress)));
        }
        let joined = threads.into_iter().map(ScopedJoinHandle::join);
        joined
            .map(|lane| lane.unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    });
    for lane in finished {
        let lane = lane?;
        smoke.tally += lane.tally;
        smoke.report.extend(lane.report);
    }
    Ok(smoke)
}

/// Names of all targets, in order.
fn targets(workspace: &Workspace) -> Result<Vec<String>, Failure> {
    let files = workspace.files("fuzz/targets", &["rs"])?;
    let stems = files.iter().filter_map(|path| path.file_stem());
    let targets: Vec<String> = stems
        .map(|stem| stem.to_string_lossy().into_owned())
        .collect();
    if targets.is_empty() {
        return Err(Failure::new("no target in fuzz/targets"));
    }
    let manifest = read(&workspace.root.join(MANIFEST))?;
    for target in &targets {
        if !manifest.contains(&format!("path = \"{target}.rs\"")) {
            return Err(Failure(format!("{MANIFEST} has no `[[bin]]` for {target}")));
        }
    }
    Ok(targets)
}

/// Builds all targets and returns the folder of their programs.
fn build(workspace: &Workspace, progress: &mut Progress) -> Result<PathBuf, Failure> {
    let host = host()?;
    let folder = workspace.target_folder("fuzz")?;
    let mut command = workspace.cargo();
    command
        .args(["build", "--release", "--locked", "--bins"])
        .arg("--manifest-path")
        .arg(workspace.root.join(MANIFEST))
        .arg("--target-dir")
        .arg(&folder)
        // With a target named, build scripts and macros are built without the flags.
        .args(["--target", &host])
        .env_remove("RUSTFLAGS")
        .env("CARGO_ENCODED_RUSTFLAGS", COVERAGE_FLAGS.join("\u{1f}"));
    let outcome = run_command(
        &mut command,
        &folder.join("build.log"),
        BUILD_LIMIT,
        progress,
    )?;
    if outcome.success {
        Ok(folder.join(host).join("release"))
    } else {
        Err(Failure::new(format!(
            "the fuzz targets do not build\n{}",
            outcome.cargo_tail()
        )))
    }
}

fn host() -> Result<String, Failure> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    output(Command::new(rustc).arg("-vV"))?
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_owned)
        .ok_or_else(|| Failure::new("rustc -vV names no host"))
}

/// Result of one target.
#[derive(Debug)]
struct Fuzzed {
    passed: bool,
    detail: String,
    report: Vec<String>,
}

fn fuzz(
    workspace: &Workspace,
    programs: &Path,
    target: &str,
    run_seconds: u64,
    progress: &mut Progress,
) -> Result<Fuzzed, Failure> {
    // New inputs go to the first folder; the seeds in the repository are only read.
    let grown = workspace.target_folder(&format!("fuzz/corpus/{target}"))?;
    let crashes = workspace.target_folder(&format!("fuzz/crashes/{target}"))?;
    let seeds = workspace.root.join("fuzz").join("corpus").join(target);
    let mut command = Command::new(programs.join(target));
    command
        .current_dir(&workspace.root)
        .arg(format!("-max_total_time={run_seconds}"))
        .arg(format!("-timeout={INPUT_SECONDS}"))
        .arg(format!("-rss_limit_mb={MEMORY_MB}"))
        .arg(format!("-max_len={INPUT_BYTES}"))
        .arg(format!("-artifact_prefix={}/", crashes.display()))
        .args(["-print_final_stats=1", "-use_value_profile=1"])
        .env("RUST_BACKTRACE", "0")
        .arg(&grown);
    if seeds.is_dir() {
        command.arg(&seeds);
    }
    let log = workspace
        .target_folder("fuzz")?
        .join(format!("{target}.log"));
    let limit = Duration::from_secs(run_seconds) + GRACE;
    Ok(judge(
        target,
        &run_command(&mut command, &log, limit, progress)?,
    ))
}

/// Reads libFuzzer's output.
fn judge(target: &str, outcome: &Outcome) -> Fuzzed {
    let lines = || outcome.lines.iter().map(String::as_str);
    let counters = lines().any(|line| line.starts_with("INFO: Loaded 1 modules"));
    let runs = lines()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))
        .map_or("?", str::trim);
    let edges = lines().filter_map(edges_covered).next_back();
    let detail = format!("{runs} inputs, {} edges", edges.unwrap_or(0));
    let mut report = Vec::new();
    if !outcome.success {
        report
            .push(outcome.tail_without(|line| line.starts_with('#') || line.contains("NEW_FUNC[")));
        for line in lines().filter(|line| line.contains("Test unit written to ")) {
            if let Some((_, file)) = line.split_once("Test unit written to ") {
                report.push(format!(
                    "    again: cargo xtask fuzz {target} --replay {file}"
                ));
            }
        }
    } else if !counters || edges.is_none_or(|edges| edges == 0) {
        report.push("    no coverage was seen: built without counters".to_owned());
    }
    Fuzzed {
        passed: report.is_empty(),
        detail,
        report,
    }
}

/// The figure behind `cov:` in a line such as `#12 NEW cov: 34 ft: 56 …`.
fn edges_covered(line: &str) -> Option<u64> {
    let (_, rest) = line.strip_prefix('#')?.split_once(" cov: ")?;
    rest.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(success: bool, text: &str) -> Outcome {
        Outcome {
            success,
            ending: "exit code 77".into(),
            lines: text.lines().map(str::to_owned).collect(),
            log: PathBuf::from("x.log"),
        }
    }

    const GOOD: &str = "\
INFO: Loaded 1 modules   (165 inline 8-bit counters): 165 [0x1, 0x2),
#2\tINITED cov: 8 ft: 8 corp: 1/1b exec/s: 0 rss: 27Mb
#722\tNEW    cov: 9 ft: 9 corp: 2/10b lim: 11 exec/s: 0 rss: 27Mb L: 9/9 MS: 5 X-
Done 70441658 runs in 41 second(s)
stat::number_of_executed_units: 70441658";

    #[test]
    fn a_good_run_is_told_with_its_figures() {
        let fuzzed = judge("a", &outcome(true, GOOD));
        assert!(fuzzed.passed);
        assert_eq!(fuzzed.detail, "70441658 inputs, 9 edges");
    }

    #[test]
    fn a_crash_is_told_with_its_input() {
        let text = format!("{GOOD}\nartifact_prefix='c/'; Test unit written to c/crash-1");
        let fuzzed = judge("a", &outcome(false, &text));
        assert!(!fuzzed.passed);
        let report = fuzzed.report.join("\n");
        assert!(
            report.contains("cargo xtask fuzz a --replay c/crash-1"),
            "{report}"
        );
    }

    #[test]
    fn a_run_without_counters_is_no_fuzzing() {
        let fuzzed = judge("a", &outcome(true, "Done 5 runs"));
        assert!(!fuzzed.passed);
    }

    #[test]
    fn the_command_line_is_read() {
        let read = |text: &str| {
            Request::read(
                &text
                    .split_whitespace()
                    .map(str::to_owned)
                    .collect::<Vec<_>>(),
            )
        };
        let request = read("mqtt --seconds 5").unwrap();
        assert_eq!(
            request,
            Request {
                target: Some("mqtt".into()),
                seconds: 5,
                replay: None
            }
        );
        assert_eq!(read("").unwrap().seconds, DEFAULT_SECONDS);
        for wrong in ["a b", "--seconds", "--seconds 0", "--replay x", "--fast"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
