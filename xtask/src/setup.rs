//! `cargo xtask setup`: installs what the tests need, as far as it can be had.

use std::collections::BTreeSet;
use std::process::Command;

use crate::command::{in_words, output};
use crate::console::{Colour, Progress};
use crate::interop::{self, Suites};
use crate::needs::{Need, Needs};
use crate::parts::{Parts, Tier};
use crate::tiers::in_ci;
use crate::workspace::{Workspace, on_path};
use crate::{Failure, Verdict, deny, tools};

const HELP: &str = "\
cargo xtask setup [OPTION]...

            install what `cargo xtask test` needs: packages of Debian, where this is root; tools into $STERNA_TOOLS
            (sterna-tools in the user's caches); what clients need into target/
  --all     what `cargo xtask test --all` needs
  --list    what is here and what is not; nothing is installed";

/// Installs, or lists.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Verdict {
    let (mut tier, mut lists) = (Tier::Test, false);
    for argument in arguments {
        match argument.as_str() {
            "--all" => tier = Tier::All,
            "--list" => lists = true,
            "--help" | "-h" => {
                println!("{HELP}");
                return Ok(true);
            }
            other => return Err(Failure(format!("unexpected argument `{other}`\n\n{HELP}"))),
        }
    }
    let needs = Needs::load(workspace)?;
    let suites = Suites::load(workspace)?;
    let is_wanted = |other: Tier| tier == Tier::All || other == Tier::Test;
    let mut subjects: Vec<String> = interop::numpy_subjects().to_vec();
    for part in Parts::load(workspace)?.parts {
        if is_wanted(part.tier) {
            subjects.push(part.name);
        }
    }
    let chosen = || suites.suites.iter().filter(|suite| is_wanted(suite.tier));
    subjects.extend(chosen().flat_map(interop::Suite::subjects));
    if lists {
        tell(&needs, &subjects);
        return Ok(true);
    }
    components(&needs, &subjects);
    packages(&needs, &subjects)?;
    needs.forget();
    let mut progress = Progress::start("tools");
    let tool = tools::ensure(workspace, &deny::CARGO_DENY, &mut progress);
    let mut absent = Vec::new();
    match tool {
        Ok(program) => progress.finish(Colour::Green, "ok", &program.display().to_string()),
        Err(Failure(why)) => absent.push(format!("deny: {why}")),
    }
    let mut progress = Progress::start("clients");
    let without = interop::install(workspace, chosen(), true, &mut progress)?;
    progress.finish(Colour::Green, "ok", "what can be had is in target/interop");
    for need in needs.missing(&subjects) {
        absent.push(format!(
            "{}, for {}: {}",
            need.name,
            need.about,
            needs.remedy(need)
        ));
    }
    absent.extend(without.told());
    if absent.is_empty() {
        println!("all is here");
    } else {
        println!("not here, so what needs it is skipped:");
        println!("  {}", absent.join("\n  "));
    }
    Ok(true)
}

/// Prints each need with its state.
fn tell(needs: &Needs, subjects: &[String]) {
    for need in needs.of(subjects) {
        let is_here = needs.has(need);
        let (word, remedy) = if is_here {
            ("here   ", String::new())
        } else {
            ("MISSING", format!(" ({})", needs.remedy(need)))
        };
        println!("{word} {:<24} {}{remedy}", need.name, need.about);
    }
    if let Some(command) = install_command(&needs.missing(subjects)) {
        println!("\nas root: {command}");
    }
}

/// Adds what rustup has and the compiler lacks.
fn components(needs: &Needs, subjects: &[String]) {
    let missing = needs.missing(subjects);
    let names = ["rustfmt", "clippy"];
    let missing = names
        .into_iter()
        .filter(|name| missing.iter().any(|need| need.name == *name));
    for name in missing.filter(|_| on_path("rustup")) {
        println!("rustup component add {name}");
        // Whether it is there is looked for again.
        let _ = Command::new("rustup")
            .args(["component", "add", name])
            .status();
    }
}

/// The command that installs Debian's packages of these needs; `None` where there are none.
fn install_command(missing: &[&Need]) -> Option<String> {
    let packages: BTreeSet<&str> = missing
        .iter()
        .filter_map(|need| need.package.as_deref())
        .collect();
    if packages.is_empty() {
        return None;
    }
    let packages: Vec<&str> = packages.into_iter().collect();
    Some(format!(
        "apt-get install -y --no-install-recommends {}",
        packages.join(" ")
    ))
}

/// Installs packages of Debian where this is root, or prints the command.
fn packages(needs: &Needs, subjects: &[String]) -> Result<(), Failure> {
    let missing = needs.missing(subjects);
    let Some(command) = install_command(&missing) else {
        return Ok(());
    };
    if !on_path("apt-get") {
        println!("on Debian, as root: {command}");
        return Ok(());
    }
    let is_root = output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
    let may_sudo = || {
        let asks_nothing = output(Command::new("sudo").args(["-n", "true"])).is_ok();
        in_ci(std::env::var("CI").ok().as_deref()) && asks_nothing
    };
    let before: &[&str] = if is_root {
        &[]
    } else if may_sudo() {
        &["sudo", "-n"]
    } else {
        println!("as root: {command}");
        return Ok(());
    };
    println!("installing: {command}");
    let words = |line: &str| -> Command {
        let mut words = before.iter().copied().chain(line.split_whitespace());
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    for line in ["apt-get update -qq", &command] {
        let mut command = words(line);
        let status = command.status();
        let status = status.map_err(|error| Failure(format!("{}: {error}", in_words(&command))))?;
        if !status.success() {
            // The tools that are missing are named below.
            println!("{} ended with {status}", in_words(&command));
        }
    }
    // A package that has a service starts it, on the port of the standard; a suite starts its own on a free one.
    for service in missing.iter().filter_map(|need| need.service.as_deref()) {
        if on_path("systemctl") {
            let _ = words(&format!("systemctl disable --now {service}")).status();
        }
    }
    Ok(())
}
