//! `cargo xtask test`: every check of the project, in steps.

use std::time::Instant;

use crate::command::cargo;
use crate::console::{Colour, Progress, Tally, paint, seconds};
use crate::invariants::{self, Rule};
use crate::test_report::TestReport;
use crate::workspace::{Workspace, on_path};
use crate::{Failure, Verdict, deny, fuzz, interop, package, spec, test_programs};

/// Time of each fuzz target here.
const FUZZ_SECONDS: u64 = 5;

/// The workspaces of the repository: the code, and the parts with a build of their own.
const MANIFESTS: [&str; 3] = [
    "Cargo.toml",
    "fuzz/targets/Cargo.toml",
    "interop/rust/Cargo.toml",
];

/// One step.
struct Step {
    name: &'static str,
    about: &'static str,
    run: fn(&Workspace, &mut Progress) -> Result<StepReport, Failure>,
}

/// Quick steps that often fail come first.
const STEPS: [Step; 10] = [
    Step {
        name: "format",
        about: "cargo fmt --check",
        run: format,
    },
    Step {
        name: "invariants",
        about: "promises of the architecture about the source",
        run: rules,
    },
    Step {
        name: "lints",
        about: "clippy on everything, no warning allowed",
        run: lints,
    },
    Step {
        name: "docs",
        about: "documentation builds without a warning",
        run: docs,
    },
    Step {
        name: "tests",
        about: "unit, property, conformance and documentation tests",
        run: tests,
    },
    Step {
        name: "spec",
        about: "every statement of the specifications has code and a test",
        run: statements,
    },
    Step {
        name: "deny",
        about: "licences, sources and bans of the dependencies",
        run: dependencies,
    },
    Step {
        name: "package",
        about: "packages of a debug build, installed and tried",
        run: packages,
    },
    Step {
        name: "fuzz",
        about: "every fuzz target for some seconds",
        run: fuzz_smoke,
    },
    Step {
        name: "interop",
        about: "foreign clients against the broker",
        run: foreign_clients,
    },
];

/// Result of a step.
#[derive(Debug, Default)]
struct StepReport {
    tally: Tally,
    /// Information for the reader if all is well; empty for the counts.
    detail: String,
    /// Faults, skipped and unchecked subjects; printed below the step.
    remarks: Vec<String>,
}

/// The request on the command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Request {
    only: Vec<String>,
    list: bool,
}

impl Request {
    fn read(arguments: &[String]) -> Result<Self, Failure> {
        let mut request = Self::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--list" => request.list = true,
                "--only" => {
                    let name = arguments.next().map_or("", String::as_str);
                    if !STEPS.iter().any(|step| step.name == name) {
                        let known = STEPS.map(|step| step.name).join(", ");
                        return Err(Failure(format!("--only takes a step: {known}")));
                    }
                    request.only.push(name.to_owned());
                }
                other => return Err(Failure(format!("unexpected argument `{other}`"))),
            }
        }
        Ok(request)
    }

    fn wants(&self, step: &Step) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == step.name)
    }
}

/// Runs the steps and prints their counts in the last line.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Verdict {
    let request = Request::read(arguments)?;
    if request.list {
        for step in STEPS {
            println!("{:<12} {}", step.name, step.about);
        }
        return Ok(true);
    }
    workspace.target_folder("xtask")?;
    let started = Instant::now();
    let steps: Vec<&Step> = STEPS.iter().filter(|step| request.wants(step)).collect();
    let mut total = Tally::default();
    for (index, step) in steps.iter().enumerate() {
        let label = format!("{:>2}/{} {:<11}", index + 1, steps.len(), step.name);
        let mut progress = Progress::start(&label);
        let report =
            (step.run)(workspace, &mut progress).unwrap_or_else(|Failure(why)| StepReport {
                tally: Tally::FAILED,
                detail: String::new(),
                remarks: vec![why],
            });
        show(&progress, &report);
        total += report.tally;
    }
    println!();
    println!(
        "{}",
        paint(
            Colour::Faint,
            &format!("all of it took {}", seconds(started.elapsed()))
        )
    );
    println!("{}", total.line());
    Ok(accepted(total, in_ci(std::env::var("CI").ok().as_deref())))
}

/// Whether the counts are a success. In continuous integration, skipped steps are unchecked.
const fn accepted(total: Tally, ci: bool) -> bool {
    total.failed == 0 && !(ci && total.skipped > 0)
}

/// Whether the variable `CI` says that this is continuous integration.
fn in_ci(variable: Option<&str>) -> bool {
    variable.is_some_and(|value| !matches!(value, "" | "0" | "false"))
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
    progress.finish(colour, verdict, detail);
    for line in report.remarks.iter().flat_map(|remark| remark.lines()) {
        println!("      {line}");
    }
}

fn format(workspace: &Workspace, progress: &mut Progress) -> Result<StepReport, Failure> {
    let mut report = StepReport::default();
    for manifest in MANIFESTS
        .into_iter()
        .filter(|manifest| workspace.root.join(manifest).is_file())
    {
        let arguments = [
            "fmt",
            "--all",
            "--check",
            "--manifest-path",
            manifest,
            "--",
            "--color",
            "never",
        ];
        let part = one_check(workspace, progress, "format", &arguments, None)?;
        report.tally += part.tally;
        report.remarks.extend(part.remarks);
    }
    Ok(report)
}

fn lints(workspace: &Workspace, progress: &mut Progress) -> Result<StepReport, Failure> {
    let arguments = [
        "clippy",
        "--locked",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ];
    one_check(workspace, progress, "lints", &arguments, None)
}

fn docs(workspace: &Workspace, progress: &mut Progress) -> Result<StepReport, Failure> {
    let arguments = ["doc", "--locked", "--workspace", "--no-deps"];
    one_check(
        workspace,
        progress,
        "docs",
        &arguments,
        Some(("RUSTDOCFLAGS", "-D warnings")),
    )
}

/// A cargo command that is one check by itself.
fn one_check(
    workspace: &Workspace,
    progress: &mut Progress,
    name: &str,
    arguments: &[&str],
    variable: Option<(&str, &str)>,
) -> Result<StepReport, Failure> {
    let outcome = cargo(workspace, progress, name, arguments, variable)?;
    let remarks = if outcome.success {
        Vec::new()
    } else {
        vec![outcome.cargo_tail()]
    };
    Ok(StepReport {
        tally: Tally::check(outcome.success),
        detail: String::new(),
        remarks,
    })
}

fn rules(workspace: &Workspace, _: &mut Progress) -> Result<StepReport, Failure> {
    let rules = invariants::check(workspace)?;
    let mut tally = Tally::default();
    for rule in &rules {
        tally += Tally::check(rule.kept());
    }
    let kept = rules.iter().all(Rule::kept);
    let detail = if kept {
        format!("{} rules kept", rules.len())
    } else {
        String::new()
    };
    Ok(StepReport {
        tally,
        detail,
        remarks: vec![invariants::describe(&rules, false)],
    })
}

fn tests(workspace: &Workspace, progress: &mut Progress) -> Result<StepReport, Failure> {
    let mut step = StepReport::default();
    let mut programs = 0;
    for outcome in test_programs::run(workspace, progress)? {
        let report = TestReport::read(outcome.lines.iter().map(String::as_str));
        step.tally += report.tally;
        programs += report.programs;
        let failures = report.failures.iter().map(|name| format!("failed: {name}"));
        let told = (report.told_by_failures.iter()).map(|line| format!("    {line}"));
        let ignored = report.ignored.iter().map(|name| format!("ignored: {name}"));
        step.remarks.extend(failures.chain(told).chain(ignored));
        if outcome.success {
            continue;
        }
        if report.tally.failed == 0 {
            // Something does not build, or a test program died before it could count.
            step.tally += Tally::FAILED;
            step.remarks.push(outcome.cargo_tail());
        } else {
            let log = outcome.log.display();
            step.remarks.push(format!("all of it in {log}"));
        }
    }
    if step.tally.failed + step.tally.skipped == 0 {
        step.detail = format!("{} tests in {programs} programs", step.tally.passed);
    }
    Ok(step)
}

fn statements(workspace: &Workspace, _: &mut Progress) -> Result<StepReport, Failure> {
    let coverage = spec::check(workspace)?;
    let complete = coverage.complete();
    let remarks = if complete {
        Vec::new()
    } else {
        vec![coverage.summary(), coverage.problems()]
    };
    let detail = if complete {
        coverage.brief()
    } else {
        String::new()
    };
    Ok(StepReport {
        tally: Tally::check(complete),
        detail,
        remarks,
    })
}

fn dependencies(workspace: &Workspace, progress: &mut Progress) -> Result<StepReport, Failure> {
    let result = deny::check(workspace, progress)?;
    Ok(StepReport {
        tally: Tally::check(result.passed),
        detail: result.detail.to_owned(),
        remarks: result.remarks,
    })
}

fn packages(workspace: &Workspace, progress: &mut Progress) -> Result<StepReport, Failure> {
    // Without them there is nothing to install with: another system than Debian.
    let tools = ["dpkg-deb", "systemd-analyze", "umoci"];
    if let Some(missing) = tools.into_iter().find(|tool| !on_path(tool)) {
        return Ok(StepReport {
            tally: Tally::SKIPPED,
            detail: String::new(),
            remarks: vec![format!("{missing} is not installed")],
        });
    }
    let report = package::check(workspace, progress)?;
    Ok(StepReport {
        tally: Tally {
            passed: report.passed,
            failed: report.faults.len() as u64,
            skipped: 0,
        },
        detail: String::new(),
        remarks: report.faults,
    })
}

fn fuzz_smoke(workspace: &Workspace, progress: &mut Progress) -> Result<StepReport, Failure> {
    let smoke = fuzz::smoke(workspace, FUZZ_SECONDS, progress)?;
    Ok(StepReport {
        tally: smoke.tally,
        detail: String::new(),
        remarks: smoke.report,
    })
}

fn foreign_clients(workspace: &Workspace, progress: &mut Progress) -> Result<StepReport, Failure> {
    let report = interop::check(workspace, progress)?;
    Ok(StepReport {
        tally: report.tally,
        detail: String::new(),
        remarks: report.problems,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Request, Failure> {
        Request::read(
            &text
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn steps_can_be_chosen() {
        let request = read("--only lints --only spec").unwrap();
        let wanted: Vec<&str> = STEPS
            .iter()
            .filter(|step| request.wants(step))
            .map(|step| step.name)
            .collect();
        assert_eq!(wanted, ["lints", "spec"]);
        assert!(STEPS.iter().all(|step| Request::default().wants(step)));
        assert!(read("--list").unwrap().list);
        assert!(read("--only").is_err() && read("--only all").is_err() && read("lints").is_err());
    }

    #[test]
    fn what_was_skipped_fails_in_continuous_integration_only() {
        let skipped = Tally {
            passed: 9,
            failed: 0,
            skipped: 1,
        };
        assert!(accepted(skipped, false) && !accepted(skipped, true));
        let failed = Tally {
            passed: 9,
            failed: 1,
            skipped: 0,
        };
        assert!(!accepted(failed, false) && !accepted(failed, true));
        assert!(accepted(Tally::PASSED, true));
        assert!(in_ci(Some("true")) && !in_ci(Some("false")) && !in_ci(None) && !in_ci(Some("")));
    }
}
