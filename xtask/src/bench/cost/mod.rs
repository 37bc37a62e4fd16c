//! The cost of operation: a broker with all of it on beside one without any of it. All of it is signed
//! tokens, a webhook that decides about each topic, rules, limits and bans. The audit log, a log in
//! JSON, and metrics that are scraped belong to it, too.
//!
//! Each round starts both anew, because two processes of one program differ, too. In a round, each load runs on both
//! in some turns; the order changes with each. A round's pair has the least figure of either, since other work only
//! adds. The figure of a load is the median of the ratios of its pairs.

mod count;
mod everything;
mod figures;

use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use crate::command::in_words;
use crate::console::{Colour, Progress, paint};
use crate::workspace::{Workspace, on_path, write};
use crate::{Failure, Verdict};

use super::broker::{Broker, Place};
use super::cells::{CELLS, Cell, Transport};
use everything::Everything;
use figures::{GOAL, Pair, Row, render};

const HELP: &str = "\
cargo xtask bench cost [OPTION]...

  --rounds N           starts of both brokers, and pairs of each load (20)
  --turns N            runs of a load on each broker in a round (4)
  --seconds S          length of one run (0.5)
  --count              count the instructions of a message instead, with callgrind: slow, and steady on a busy machine
  --only WORD          only transports and loads with this word in their name; may be repeated
  --programs FOLDER    take sterna and sterna-lab from there, and build nothing
  --cores B,G          cores of the brokers and of the generator (0,1)
  --json FILE          append every pair as a line of JSON
";

/// Seconds of load between two scrapes of the metrics.
const SCRAPE_S: f64 = 10.0;

/// The loads, by their names among all.
const LOADS: [&str; 4] = [
    "idle connection, 1,000",
    "QoS 0, window 16",
    "QoS 1, window 16",
    "QoS 0 alone, 10,000/s",
];

/// The requested work.
#[derive(Debug)]
struct Options {
    rounds: usize,
    turns: usize,
    seconds: f64,
    counts: bool,
    only: Vec<String>,
    programs: Option<PathBuf>,
    broker_core: usize,
    generator_core: usize,
    json: Option<PathBuf>,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let mut options = Self {
            rounds: 20,
            turns: 4,
            seconds: 0.5,
            counts: false,
            only: Vec::new(),
            programs: None,
            broker_core: 0,
            generator_core: 1,
            json: None,
        };
        let mut arguments = arguments.iter();
        while let Some(name) = arguments.next() {
            if matches!(name.as_str(), "--help" | "-h") {
                return Err(Failure::new(HELP));
            }
            if name == "--count" {
                options.counts = true;
                continue;
            }
            let value = arguments
                .next()
                .ok_or_else(|| Failure(format!("{name} needs a value\n\n{HELP}")))?;
            let wrong = || Failure(format!("{name} {value}: not a value for it\n\n{HELP}"));
            match name.as_str() {
                "--rounds" | "--turns" => {
                    let number = value.parse().ok().filter(|n| (1..=1000).contains(n));
                    let option = match name.as_str() {
                        "--rounds" => &mut options.rounds,
                        _ => &mut options.turns,
                    };
                    *option = number.ok_or_else(wrong)?;
                }
                "--seconds" => {
                    let seconds = value.parse().ok();
                    options.seconds = seconds
                        .filter(|s| (0.1..=600.0).contains(s))
                        .ok_or_else(wrong)?;
                }
                "--only" => options.only.push(value.to_lowercase()),
                "--programs" => options.programs = Some(PathBuf::from(value)),
                "--cores" => {
                    let (broker, generator) = value.split_once(',').ok_or_else(wrong)?;
                    options.broker_core = broker.parse().map_err(|_| wrong())?;
                    options.generator_core = generator.parse().map_err(|_| wrong())?;
                }
                "--json" => options.json = Some(PathBuf::from(value)),
                _ => return Err(Failure(format!("unexpected `{name}`\n\n{HELP}"))),
            }
        }
        Ok(options)
    }

    fn wants(&self, cell: &Cell, transport: Transport) -> bool {
        let name = format!("{} {}", transport.name(), cell.name).to_lowercase();
        self.only.is_empty() || self.only.iter().any(|word| name.contains(word))
    }

    const fn place(core: usize) -> Place {
        Place {
            core,
            realtime: false,
        }
    }
}

/// Measures and prints the table; the verdict is whether no load costs more than the goal.
pub(super) fn run(workspace: &Workspace, arguments: &[String]) -> Verdict {
    let options = Options::parse(arguments)?;
    let needed = [("taskset", "util-linux"), ("openssl", "openssl")];
    let to_count = options.counts.then_some(("valgrind", "valgrind"));
    for (program, package) in needed.into_iter().chain(to_count) {
        if !on_path(program) {
            return Err(Failure(format!("{program} (package {package}) is needed")));
        }
    }
    let folder = workspace.target_folder("bench-cost")?;
    let mut progress = Progress::start("bench cost");
    let programs = if let Some(programs) = &options.programs {
        programs.clone()
    } else {
        super::build(workspace, &folder, &mut progress)?;
        workspace.target.join(super::PROFILE)
    };
    let mut rows = Vec::new();
    for transport in [Transport::Tcp, Transport::Tls, Transport::Quic] {
        let of_transport = CELLS.iter().filter(|cell| LOADS.contains(&cell.name));
        let wanted = of_transport.filter(|cell| options.wants(cell, transport));
        rows.extend(wanted.map(|cell| Row::new(*cell, transport)));
    }
    if rows.is_empty() {
        return Err(Failure::new("no load has such a name"));
    }
    let before = super::pressure();
    let mut bench = Bench {
        everything: Everything::prepare(&folder)?,
        broker: programs.join(super::BROKER),
        generator: programs.join("sterna-lab"),
        options: &options,
        folder,
        loaded_s: 0.0,
        scrapes: 0,
        lines: Vec::new(),
    };
    if options.counts {
        return count::run(&bench, &rows, progress);
    }
    let mut resident = Vec::new();
    for round in 0..options.rounds {
        resident.push(bench.round(round, &mut rows, &mut progress)?);
    }
    let is_ok = rows.iter().all(Row::is_met);
    let colour = if is_ok { Colour::Green } else { Colour::Red };
    progress.finish(colour, if is_ok { "ok" } else { "MISSED" }, "");
    println!("\n{}", render(&rows, &resident));
    println!(
        "Broker CPU (user and system) for each delivery, and resident memory for each idle connection and of the \
         process after the loads, with everything on and without. A pair has the least of {} turns on each broker; the \
         table has medians of {} pairs, and of their ratios with an interval of 95 %. The goal is a ratio of {GOAL} for \
         each delivery. {} scrapes of the metrics, one in {SCRAPE_S:.0} s of load. Brokers on core {}, generator on \
         core {}.",
        options.turns, options.rounds, bench.scrapes, options.broker_core, options.generator_core
    );
    println!(
        "The webhook was asked {} times.",
        bench.everything.questions()
    );
    if let Some((before, after)) = before.zip(super::pressure()) {
        println!(
            "Tasks waited for a CPU {before:.0} % of the time before and {after:.0} % at the end."
        );
        if before.max(after) > 20.0 {
            let warning = "Other work was running: the interval says how far to trust the ratios.";
            println!("{}", paint(Colour::Yellow, warning));
        }
    }
    bench.lines.extend(rows.iter().map(Row::json));
    super::save_lines(&bench.lines, &bench.folder, options.json.as_deref())?;
    Ok(is_ok)
}

struct Bench<'a> {
    options: &'a Options,
    folder: PathBuf,
    everything: Everything,
    broker: PathBuf,
    generator: PathBuf,
    /// Time for which the broker with everything was loaded.
    loaded_s: f64,
    scrapes: u32,
    /// Every pair as JSON.
    lines: Vec<Value>,
}

impl Bench<'_> {
    /// One pair of each load on two new brokers; the result is the memory of both after that.
    fn round(
        &mut self,
        round: usize,
        rows: &mut [Row],
        progress: &mut Progress,
    ) -> Result<Pair, Failure> {
        let place = Options::place(self.options.broker_core);
        let (with, operators) = self.start_with(place.command(&self.broker))?;
        let without = self.start(place.command(&self.broker), false)?;
        let mut resident = Pair::default();
        for (at, row) in rows.iter_mut().enumerate() {
            let (transport, cell) = (row.transport.name(), row.cell.name);
            progress.busy(&format!("round {}, {transport}, {cell}", round + 1));
            let mut pair = Pair::default();
            // Memory that a process has had once it often keeps, so the first turn is the one.
            let turns = if row.cell.timed {
                self.options.turns
            } else {
                1
            };
            // The order is with, without, without, with, and so on.
            for turn in 0..2 * turns {
                let is_with = (round + at + turn.div_ceil(2)).is_multiple_of(2);
                let broker = if is_with { &with } else { &without };
                let line = self.load(row, broker, is_with.then_some(&*operators))?;
                let figure = line[row.cell.figure.key()].as_f64();
                let figure = figure.ok_or_else(|| Failure(format!("no figure in {line}")))?;
                pair.lower(is_with, figure);
                if let Some(bytes) = line["broker_resident_bytes"].as_f64() {
                    resident.set(is_with, bytes);
                }
            }
            self.lines.push(json!({
                "round": round, "transport": transport, "load": cell,
                "with": pair.with, "without": pair.without,
            }));
            row.pairs.push(pair);
        }
        Ok(resident)
    }

    /// Starts a broker with everything, or with listeners alone, by a command that ends with its program.
    fn start(&self, command: Command, is_with: bool) -> Result<Broker, Failure> {
        let folder = self.folder.join(if is_with { "with" } else { "without" });
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        std::fs::create_dir_all(&folder)?;
        let file = folder.join("sterna.toml");
        let configuration = if is_with {
            self.everything.configuration()
        } else {
            everything::LISTENERS.to_owned()
        };
        write(&file, &configuration)?;
        Broker::configured(command, &folder, &file)
    }

    /// The same with everything. Adds where operators ask it.
    fn start_with(&self, command: Command) -> Result<(Broker, String), Failure> {
        let broker = self.start(command, true)?;
        let operators = broker.operators();
        let operators = operators.ok_or_else(|| Failure::new("no listener for operators"))?;
        everything::ban_somebody(&operators)?;
        Ok((broker, operators))
    }

    /// The generator's command for a load on a broker, without its length.
    fn generator(&self, row: &Row, broker: &Broker, is_with: bool) -> Result<Command, Failure> {
        let url = broker.url(row.transport);
        let url = url.ok_or_else(|| Failure(format!("{} is not served", row.transport.name())))?;
        let place = Options::place(self.options.generator_core);
        let mut command = place.command(&self.generator);
        command.arg("bench").args(row.cell.arguments).arg(url);
        command.args(broker.trust(row.transport));
        command.args(["--json", "--pid", &broker.pid().to_string()]);
        command.args(["--client-prefix", "bench"]);
        if is_with {
            command.args(self.everything.login());
        }
        Ok(command)
    }

    /// Loads a broker once. One with a listener for operators has everything on.
    fn load(
        &mut self,
        row: &Row,
        broker: &Broker,
        operators: Option<&str>,
    ) -> Result<Value, Failure> {
        let mut command = self.generator(row, broker, operators.is_some())?;
        if row.cell.timed {
            let warm_up = (self.options.seconds / 3.0).min(1.0);
            command.args(["--seconds", &self.options.seconds.to_string()]);
            command.args(["--warm-up", &warm_up.to_string()]);
        }
        let Some(operators) = operators else {
            return answer(&mut command);
        };
        // Time under load counts, or a scrape could fall into the other's turn each time.
        let due_s = SCRAPE_S - self.loaded_s;
        let is_due = row.cell.timed && due_s < self.options.seconds;
        self.loaded_s = match row.cell.timed {
            true if is_due => self.options.seconds - due_s,
            true => self.loaded_s + self.options.seconds,
            false => self.loaded_s,
        };
        self.scrapes += u32::from(is_due);
        let scrape = move |operators: &str| {
            if !is_due {
                return Ok(());
            }
            sleep(Duration::from_secs_f64(due_s.max(0.1)));
            everything::scrape(operators)
        };
        let (line, scraped) = std::thread::scope(|scope| {
            let scraper = scope.spawn(move || scrape(operators));
            let line = answer(&mut command);
            let ended = scraper.join();
            (
                line,
                ended.unwrap_or_else(|_| Err(Failure::new("the scraper failed"))),
            )
        });
        scraped?;
        line.map_err(|Failure(why)| Failure(format!("{}: {why}", in_words(&command))))
    }
}

/// The answer of a generator that has lost nothing.
fn answer(generator: &mut Command) -> Result<Value, Failure> {
    let line = super::generator_line(generator)?;
    if line["lost"].as_u64().unwrap_or(0) > 0 {
        return Err(Failure(format!("messages were lost: {line}")));
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, Failure> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Options::parse(&words)
    }

    #[test]
    fn options_are_read_and_wrong_ones_refused() {
        let options = parse("--rounds 3 --count --turns 2 --only quic --cores 2,3").unwrap();
        assert_eq!((options.rounds, options.turns), (3, 2));
        assert!(options.counts && options.broker_core == 2);
        let cell = |name| CELLS.iter().find(|cell| cell.name == name).unwrap();
        assert!(options.wants(cell(LOADS[1]), Transport::Quic));
        assert!(!options.wants(cell(LOADS[1]), Transport::Tcp));
        for wrong in [
            "--rounds 0",
            "--turns 0",
            "--count 3",
            "--seconds x",
            "--cores 1",
            "--fast 1",
            "--only",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_load_is_one_of_the_bench() {
        for name in LOADS {
            assert!(CELLS.iter().any(|cell| cell.name == name), "{name}");
        }
    }
}
