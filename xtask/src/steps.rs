//! The parts of `cargo xtask test` that are functions of this program. `xtask/test-parts.json` lists all parts.

use crate::command::cargo;
use crate::console::{Progress, Tally};
use crate::invariants::{self, Rule};
use crate::test_programs::FailedTest;
use crate::workspace::Workspace;
use crate::{Failure, crates, deny, fuzz, package, spec, tools};

/// Time of each fuzz target.
const FUZZ_SECONDS: u64 = 40;

/// The workspaces of the repository: the code, and the parts with a build of their own.
const MANIFESTS: [&str; 3] = [
    "Cargo.toml",
    "fuzz/targets/Cargo.toml",
    "interop/rust/Cargo.toml",
];

/// The subject of a step.
#[derive(Debug)]
pub(crate) struct Scope<'a> {
    pub(crate) workspace: &'a Workspace,
    /// The crates that count; `None`: all.
    pub(crate) packages: Option<&'a [String]>,
}

impl Scope<'_> {
    /// Cargo's options for these crates.
    pub(crate) fn options(&self) -> Vec<String> {
        match self.packages {
            None => vec!["--workspace".to_owned()],
            Some(names) => names
                .iter()
                .map(|name| format!("--package={name}"))
                .collect(),
        }
    }
}

/// One step.
struct Step {
    name: &'static str,
    run: fn(&Scope<'_>, &mut Progress) -> Result<StepReport, Failure>,
}

const STEPS: [Step; 9] = [
    Step {
        name: "format",
        run: |scope, progress| format(scope.workspace, progress),
    },
    Step {
        name: "invariants",
        run: |scope, progress| rules(scope.workspace, progress),
    },
    Step {
        name: "lints",
        run: lints,
    },
    Step {
        name: "docs",
        run: docs,
    },
    Step {
        name: "spec",
        run: |scope, progress| statements(scope.workspace, progress),
    },
    Step {
        name: "deny",
        run: |scope, progress| dependencies(scope.workspace, progress),
    },
    Step {
        name: "crates",
        run: |scope, progress| crates_for_others(scope.workspace, progress),
    },
    Step {
        name: "package",
        run: |scope, progress| packages(scope.workspace, progress),
    },
    Step {
        name: "fuzz",
        run: |scope, progress| fuzz_smoke(scope.workspace, progress),
    },
];

/// Result of a step.
#[derive(Debug, Default)]
pub(crate) struct StepReport {
    pub(crate) tally: Tally,
    /// Information for the reader if all is well; empty for the counts.
    pub(crate) detail: String,
    /// Faults, skipped and unchecked subjects; printed below the step.
    pub(crate) remarks: Vec<String>,
    /// Tests that failed, which may be run once more.
    pub(crate) failed: Vec<FailedTest>,
}

impl StepReport {
    /// A step that is not run.
    pub(crate) fn skipped(why: String) -> Self {
        Self {
            tally: Tally::SKIPPED,
            remarks: vec![why],
            ..Self::default()
        }
    }

    /// A step that failed as a whole.
    pub(crate) fn failed(why: String) -> Self {
        Self {
            tally: Tally::FAILED,
            remarks: vec![why],
            ..Self::default()
        }
    }
}

/// Whether a step of this name is there.
#[cfg(test)]
pub(crate) fn is_step(name: &str) -> bool {
    STEPS.iter().any(|step| step.name == name)
}

/// Runs the step of this name.
///
/// # Errors
/// When it cannot do its work.
pub(crate) fn run(
    name: &str,
    scope: &Scope<'_>,
    progress: &mut Progress,
) -> Result<StepReport, Failure> {
    let step = STEPS.iter().find(|step| step.name == name);
    let step = step.ok_or_else(|| Failure(format!("no step `{name}`")))?;
    (step.run)(scope, progress)
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

fn lints(scope: &Scope<'_>, progress: &mut Progress) -> Result<StepReport, Failure> {
    let options = scope.options();
    let mut arguments = vec!["clippy", "--locked"];
    arguments.extend(options.iter().map(String::as_str));
    // Not `--all-targets`: the fuzz library has modules of other crates, without the tests of these.
    arguments.extend(["--lib", "--bins", "--examples", "--tests"]);
    arguments.extend(["--", "-D", "warnings"]);
    one_check(scope.workspace, progress, "lints", &arguments, None)
}

fn docs(scope: &Scope<'_>, progress: &mut Progress) -> Result<StepReport, Failure> {
    let options = scope.options();
    let mut arguments = vec!["doc", "--locked", "--no-deps"];
    arguments.extend(options.iter().map(String::as_str));
    let strict = Some(("RUSTDOCFLAGS", "-D warnings"));
    one_check(scope.workspace, progress, "docs", &arguments, strict)
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
        remarks,
        ..StepReport::default()
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
        ..StepReport::default()
    })
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
        ..StepReport::default()
    })
}

fn dependencies(workspace: &Workspace, progress: &mut Progress) -> Result<StepReport, Failure> {
    if let Err(Failure(why)) = tools::ensure(workspace, &deny::CARGO_DENY, progress) {
        return Ok(StepReport::skipped(why));
    }
    let result = deny::check(workspace, progress)?;
    Ok(StepReport {
        tally: Tally::check(result.passed),
        detail: result.detail.to_owned(),
        remarks: result.remarks,
        ..StepReport::default()
    })
}

fn crates_for_others(
    workspace: &Workspace,
    progress: &mut Progress,
) -> Result<StepReport, Failure> {
    let report = crates::check(workspace, progress)?;
    Ok(StepReport {
        tally: Tally::check(report.faults.is_empty()),
        detail: format!("{} crates", report.crates.len()),
        remarks: report.faults,
        ..StepReport::default()
    })
}

fn packages(workspace: &Workspace, progress: &mut Progress) -> Result<StepReport, Failure> {
    let report = package::check(workspace, progress)?;
    Ok(StepReport {
        tally: Tally {
            passed: report.passed,
            failed: report.faults.len() as u64,
            skipped: 0,
        },
        remarks: report.faults,
        ..StepReport::default()
    })
}

fn fuzz_smoke(workspace: &Workspace, progress: &mut Progress) -> Result<StepReport, Failure> {
    let smoke = fuzz::smoke(workspace, FUZZ_SECONDS, progress)?;
    Ok(StepReport {
        tally: smoke.tally,
        remarks: smoke.report,
        ..StepReport::default()
    })
}
