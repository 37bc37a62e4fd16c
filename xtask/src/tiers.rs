//! `cargo xtask test`: runs the parts that were chosen in their lanes, and says where the time went.

mod again;
mod outcome;
mod stage;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::choice::{Choice, HELP, Request};
use crate::console::{Colour, Tally, paint, seconds};
use crate::interop::Suites;
use crate::needs::Needs;
use crate::parts::Parts;
use crate::record::Record;
use crate::workspace::Workspace;
use crate::{Verdict, lanes};

use outcome::Done;
use stage::Stage;

/// Parts that are shown with their time however short it was.
const SHOWN: Duration = Duration::from_secs(1);

/// Runs what the arguments ask for and prints the counts in the last line.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Verdict {
    let request = Request::read(arguments)?;
    if request.help {
        println!("{HELP}");
        return Ok(true);
    }
    let parts = Parts::load(workspace)?;
    let suites = Suites::load(workspace)?;
    let needs = Needs::load(workspace)?;
    if request.list {
        list(&parts, &suites, &needs);
        return Ok(true);
    }
    let record = Record::open(workspace)?;
    let choice = Choice::make(workspace, &request, &parts, &suites, &record)?;
    if request.changed {
        println!("{}\n", choice.told().join("\n"));
    }
    if !choice.before.is_empty() {
        println!(
            "parts that have passed for this commit before: {}\n",
            choice.before.len()
        );
    }
    let started = Instant::now();
    let stage = Stage {
        workspace,
        parts: &parts,
        suites: &suites,
        needs: &needs,
        choice: &choice,
        // Results of some crates are not those of the part.
        record: (!request.changed).then_some(&record),
        programs: Mutex::default(),
        absent: Mutex::default(),
        search_path: Mutex::new(std::env::var_os("PATH").unwrap_or_default()),
    };
    let mut done = lanes::run(stage.jobs(), |name, event| stage.refused(name, event))
        .into_iter()
        .flatten()
        .collect::<Vec<Done>>();
    let flaky = stage.second_runs(&mut done);
    let mut total = Tally::default();
    for tally in done
        .iter()
        .map(|one| one.tally)
        .chain(choice.before.values().copied())
    {
        total += tally;
    }
    total += flaky;
    tell_times(done);
    println!();
    let spent = format!("all of it took {}", seconds(started.elapsed()));
    println!("{}", paint(Colour::Faint, &spent));
    if request.all {
        println!(
            "a line for each part is in {}",
            workspace.name(record.file())
        );
    }
    println!("{}", total.line());
    Ok(accepted(total, in_ci(std::env::var("CI").ok().as_deref())))
}

/// Prints all parts with their tiers, and what they lack on this machine.
fn list(parts: &Parts, suites: &Suites, needs: &Needs) {
    let line = |name: &str, tier: &str, about: &str, subjects: &[String]| {
        let lack = needs
            .lack(subjects)
            .map(|lack| format!("  SKIPPED: {lack}"));
        println!("{name:<28} {tier:<5} {about}{}", lack.unwrap_or_default());
    };
    for part in &parts.parts {
        let subjects = [part.name.clone()];
        line(&part.name, part.tier.name(), &part.about, &subjects);
    }
    for suite in &suites.suites {
        let about = format!("suite in the lane `{}`", suite.lane);
        line(&suite.part(), suite.tier.name(), &about, &suite.subjects());
    }
}

/// Whether the counts are a success. In continuous integration, skipped steps are unchecked.
const fn accepted(total: Tally, ci: bool) -> bool {
    total.failed == 0 && !(ci && total.skipped > 0)
}

/// Whether the variable `CI` says that this is continuous integration.
pub(crate) fn in_ci(variable: Option<&str>) -> bool {
    variable.is_some_and(|value| !matches!(value, "" | "0" | "false"))
}

/// Prints how long each part took, the longest first.
fn tell_times(mut done: Vec<Done>) {
    done.sort_by_key(|one| std::cmp::Reverse(one.time));
    let (long, short): (Vec<_>, Vec<_>) = done.iter().partition(|one| one.time >= SHOWN);
    if long.is_empty() {
        return;
    }
    println!("\nwhere the time went (lanes run beside each other):");
    for one in long {
        println!("  {:<28} {:>12}", one.part, seconds(one.time));
    }
    if !short.is_empty() {
        println!(
            "  {:<28} {:>12}",
            format!("{} others", short.len()),
            "< 1 s"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::stage::{BROKER, CLIENTS, TEST_PROGRAMS};
    use super::*;
    use crate::steps;
    use std::path::Path;

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

    #[test]
    fn each_part_is_a_function_or_a_command() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let workspace = Workspace {
            target: root.join("target"),
            root,
        };
        let events = [BROKER, TEST_PROGRAMS, CLIENTS];
        let list = Parts::load(&workspace).unwrap();
        for part in &list.parts {
            let is_here = part.name == "build" || part.name.starts_with("tests/");
            let count = [is_here, steps::is_step(&part.name), part.run.is_some()];
            assert_eq!(
                count.into_iter().filter(|one| *one).count(),
                1,
                "{}",
                part.name
            );
            for event in &part.after {
                assert!(events.contains(&event.as_str()), "{}: {event}", part.name);
            }
            for package in &part.packages {
                let folder = workspace.root.join("crates").join(package);
                assert!(folder.is_dir(), "{}: {package}", part.name);
            }
        }
        assert!(
            list.parts
                .iter()
                .any(|part| part.name == crate::parts::REST)
        );
    }
}
