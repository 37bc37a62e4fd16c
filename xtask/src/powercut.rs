//! The power-cut test: the whole server in virtual time on a disk that loses what is not synced. It is a test of
//! `sterna-server`, which this runs for longer.

use std::process::Command;

use crate::command::in_words;
use crate::workspace::Workspace;
use crate::{Failure, Verdict};

/// The variable that the test reads.
const SETTING: &str = "STERNA_POWERCUT";
const HELP: &str = "\
cargo xtask powercut [--cuts N] [--seed S] [--durability commit|interval] [--early] [--release]

  --cuts N            power cuts, at most 1000 in one run; default 1000
  --seed S            of all that is random, the next run has the next; another one each time if it is not given
  --durability WORD   the promise of the broker; default commit
  --early             acknowledge before the commit: must be caught, so the run fails
  --release           an optimised build with all assertions, for thousands of cuts";

/// Makes a run with these arguments; the verdict is whether all promises were kept.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Verdict {
    let (release, others): (Vec<_>, Vec<_>) =
        (arguments.iter().cloned()).partition(|argument| argument == "--release");
    let Some(setting) = setting(&others)? else {
        println!("{HELP}");
        return Ok(true);
    };
    let mut cargo: Command = workspace.cargo();
    cargo.args(["test", "--locked", "--package", "sterna-server"]);
    if !release.is_empty() {
        cargo.arg("--release");
        cargo.env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true");
    }
    cargo.args(["--test", "models", "--", "--exact", "--nocapture"]);
    cargo.arg("powercut::a_power_cut_breaks_no_promise");
    cargo.env(SETTING, &setting).env("RUST_BACKTRACE", "0");
    let status = cargo
        .status()
        .map_err(|error| Failure(format!("{}: {error}", in_words(&cargo))))?;
    Ok(status.success())
}

/// The words that the test reads; `None` where help is wanted.
fn setting(arguments: &[String]) -> Result<Option<String>, Failure> {
    let mut words = vec!["cuts=1000".to_owned()];
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || {
            let value = rest.next();
            value.ok_or_else(|| Failure(format!("`{argument}` needs a value\n\n{HELP}")))
        };
        let number = |text: &str| match text.parse::<u64>() {
            Ok(number) => Ok(number),
            Err(error) => Err(Failure(format!("{argument} `{text}`: {error}"))),
        };
        match argument.as_str() {
            "--cuts" => words.push(format!("cuts={}", number(value()?)?)),
            "--seed" => words.push(format!("seed={}", number(value()?)?)),
            "--durability" => match value()?.as_str() {
                word @ ("commit" | "interval") => words.push(format!("durability={word}")),
                word => return Err(Failure(format!("--durability `{word}`\n\n{HELP}"))),
            },
            "--early" => words.push("early".to_owned()),
            "--help" | "-h" => return Ok(None),
            _ => return Err(Failure(format!("unexpected `{argument}`\n\n{HELP}"))),
        }
    }
    Ok(Some(words.join(" ")))
}
