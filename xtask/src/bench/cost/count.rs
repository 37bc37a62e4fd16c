//! The instructions of a message, counted by callgrind. They do not depend on other work of the machine. Those of the
//! kernel are not among them.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::command::output;
use crate::console::{Colour, Progress};
use crate::{Failure, Verdict};

use super::super::broker::Broker;
use super::super::generator_line;
use super::super::table::aligned;
use super::figures::{GOAL, Pair, Row};
use super::{Bench, Options};

/// Loads with as many messages in flight as fit: how many go together hardly depends on the pace.
const WINDOW: &str = "window 16";
/// Messages that a broker has had before its instructions are counted.
const WARM_UP_MESSAGES: u64 = 5_000;
/// Messages of the first of two runs that are counted. The second has three times as many, and the difference has
/// neither logins nor goodbyes.
const MESSAGES: u64 = 40_000;

/// Counts each load on both brokers, and prints a table; the verdict is whether no message costs more than the goal.
pub(super) fn run(bench: &Bench<'_>, rows: &[Row], mut progress: Progress) -> Verdict {
    let head = ["transport", "load", "without", "with", "more"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    let mut is_ok = true;
    for row in rows.iter().filter(|row| row.cell.name.contains(WINDOW)) {
        let mut pair = Pair::default();
        for is_with in [false, true] {
            progress.busy(&format!("{}, {}", row.transport.name(), row.cell.name));
            pair.set(is_with, count(bench, row, is_with)?);
        }
        is_ok &= pair.with <= GOAL * pair.without;
        let (more, ratio) = (pair.with - pair.without, pair.with / pair.without);
        lines.push(vec![
            row.transport.name().to_owned(),
            row.cell.name.to_owned(),
            format!("{:.0}", pair.without),
            format!("{:.0}", pair.with),
            format!("{more:+.0} ({:+.1} %)", (ratio - 1.0) * 100.0),
        ]);
    }
    if lines.len() == 1 {
        return Err(Failure(format!("no load with {WINDOW} has such a name")));
    }
    let colour = if is_ok { Colour::Green } else { Colour::Red };
    progress.finish(colour, if is_ok { "ok" } else { "MISSED" }, "");
    println!("\n{}", aligned(&lines, &[0, 1]));
    println!(
        "Instructions of the broker outside the kernel for each message; the goal is a ratio of {GOAL}."
    );
    Ok(is_ok)
}

/// Instructions for each message of a load, on a broker of its own.
fn count(bench: &Bench<'_>, row: &Row, is_with: bool) -> Result<f64, Failure> {
    let counts = bench.folder.join("counts");
    // Counts of an earlier process would be taken for its own.
    if counts.exists() {
        fs::remove_dir_all(&counts)?;
    }
    fs::create_dir_all(&counts)?;
    let place = Options::place(bench.options.broker_core);
    let mut command = place.command(Path::new("valgrind"));
    let file = format!("--callgrind-out-file={}", counts.join("of").display());
    command.args(["--tool=callgrind", "--instr-atstart=no", &file]);
    command.arg(&bench.broker);
    let broker = if is_with {
        bench.start_with(command)?.0
    } else {
        bench.start(command, false)?
    };
    let load = |messages: u64| {
        let mut generator = bench.generator(row, &broker, is_with)?;
        generator.args(["--messages", &messages.to_string()]);
        generator.args(["--warm-up", "0", "--seconds", "600"]);
        let line = generator_line(&mut generator)?;
        let delivered = line["delivered"].as_f64();
        let delivered = delivered.ok_or_else(|| Failure(format!("no messages in {line}")))?;
        // The last ones may have come after the generator's patience, beside other work.
        Ok::<_, Failure>(delivered + line["lost"].as_f64().unwrap_or(0.0))
    };
    load(WARM_UP_MESSAGES)?;
    control(&broker, &["-i", "on"])?;
    let counted = |number: u32, messages: u64| {
        let delivered = load(messages)?;
        // It begins to count anew.
        control(&broker, &["-d"])?;
        let text = fs::read_to_string(counts.join(format!("of.{number}")))?;
        let total = total(&text).ok_or_else(|| Failure::new("callgrind has counted nothing"))?;
        Ok::<_, Failure>((total, delivered))
    };
    let (few, more) = (counted(1, MESSAGES)?, counted(2, 3 * MESSAGES)?);
    Ok((more.0 - few.0) / (more.1 - few.1))
}

fn control(broker: &Broker, arguments: &[&str]) -> Result<(), Failure> {
    let mut command = Command::new("callgrind_control");
    output(command.args(arguments).arg(broker.pid().to_string())).map(drop)
}

/// The sum of a file of callgrind.
fn total(text: &str) -> Option<f64> {
    let mut lines = text.lines().rev();
    let sum = lines.find_map(|line| line.strip_prefix("totals:"))?;
    sum.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_sum_is_found() {
        let text = "version: 1\nevents: Ir\n\nfn=(1) f\n3 40\n\ntotals: 1234\n";
        assert_eq!(super::total(text), Some(1234.0));
        assert_eq!(super::total("events: Ir\n"), None);
    }
}
