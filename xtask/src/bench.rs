//! The broker's cost: CPU for each message on each transport, memory for each connection.
//!
//! The broker runs on one core and `sterna-lab bench` on another. A figure is the median of several
//! runs. If a peer is measured, too, each of its runs follows the broker's run of the same cell. So
//! both had the same machine.

mod broker;
mod cells;
mod cluster;
mod cost;
mod durable;
mod table;

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::command::{in_words, output, run as run_command};
use crate::console::{Colour, Progress, paint};
use crate::workspace::{Workspace, on_path, write};
use crate::{Failure, Verdict};

use broker::{Broker, Place};
use cells::{CELLS, Cell, Transport};
use table::{Row, Run, render};

/// The broker's program; a peer of this name is another build of it.
const BROKER: &str = "sterna";
/// The measured build: that of packages, not the quick one of `release`.
const PROFILE: &str = "dist";
/// Longest time of that build.
const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);

const HELP: &str = "\
cargo xtask bench quick|full [OPTION]...

  quick                about three minutes: what the release is judged by
  full                 every workload on every transport, with longer runs
  cluster              three nodes on NATS, beside NATS' own MQTT: see cargo xtask bench cluster --help
  durable              cost of messages that are kept, beside peers: see cargo xtask bench durable --help
  cost                 what operation costs, with all of it on and without: see cargo xtask bench cost --help

  --runs N             runs of each cell; the median counts (3)
  --seconds S          length of one run (0.7 quick, 3 full)
  --only WORD          only transports and workloads with this word in their name; may be repeated
  --against PROGRAM    also measure mosquitto (a name or a path) or another build of sterna (a path)
                       in turn, and show the ratio
  --broker URL         measure a broker that runs already, on this transport; may be repeated
  --pid PID            its process
  --cores B,G          cores of broker and generator (0,1)
  --shards N           shards of the broker (1)
  --realtime           run broker and generator before all other work (SCHED_FIFO; root)
  --no-build           take target/dist/sterna and sterna-lab as they are
  --json FILE          append every run and every result as a line of JSON
";

/// The requested work.
#[derive(Debug)]
struct Options {
    full: bool,
    runs: usize,
    seconds: f64,
    only: Vec<String>,
    against: Option<String>,
    foreign: Vec<String>,
    pid: Option<u32>,
    broker_core: usize,
    generator_core: usize,
    shards: usize,
    realtime: bool,
    build: bool,
    json: Option<PathBuf>,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let mut arguments = arguments.iter();
        let full = match arguments.next().map(String::as_str) {
            Some("quick") => false,
            Some("full") => true,
            _ => return Err(Failure::new(HELP)),
        };
        let mut options = Self {
            full,
            runs: 3,
            seconds: if full { 3.0 } else { 0.7 },
            only: Vec::new(),
            against: None,
            foreign: Vec::new(),
            pid: None,
            broker_core: 0,
            generator_core: 1,
            shards: 1,
            realtime: false,
            build: true,
            json: None,
        };
        while let Some(name) = arguments.next() {
            match name.as_str() {
                "--no-build" => {
                    options.build = false;
                    continue;
                }
                "--realtime" => {
                    options.realtime = true;
                    continue;
                }
                _ => {}
            }
            let value = arguments
                .next()
                .ok_or_else(|| Failure(format!("{name} needs a value\n\n{HELP}")))?;
            let wrong = || Failure(format!("{name} {value}: not a value for it\n\n{HELP}"));
            match name.as_str() {
                "--runs" => {
                    options.runs = value.parse().ok().filter(|n| *n > 0).ok_or_else(wrong)?;
                }
                "--seconds" => {
                    options.seconds = value
                        .parse()
                        .ok()
                        .filter(|s| (0.1..=600.0).contains(s))
                        .ok_or_else(wrong)?;
                }
                "--only" => options.only.push(value.to_lowercase()),
                "--against" => options.against = Some(value.clone()),
                "--broker" => options.foreign.push(value.clone()),
                "--pid" => options.pid = Some(value.parse().map_err(|_| wrong())?),
                "--cores" => {
                    let (broker, generator) = value.split_once(',').ok_or_else(wrong)?;
                    options.broker_core = broker.parse().map_err(|_| wrong())?;
                    options.generator_core = generator.parse().map_err(|_| wrong())?;
                }
                "--shards" => options.shards = value.parse().map_err(|_| wrong())?,
                "--json" => options.json = Some(PathBuf::from(value)),
                _ => return Err(Failure(format!("unexpected `{name}`\n\n{HELP}"))),
            }
        }
        if options.foreign.is_empty() != options.pid.is_none() {
            return Err(Failure::new("--broker and --pid go together"));
        }
        if !options.foreign.is_empty() && options.against.is_some() {
            return Err(Failure::new(
                "--against is for the broker that is built here",
            ));
        }
        Ok(options)
    }

    /// Where a process runs, and how urgently.
    const fn place(&self, core: usize) -> Place {
        Place {
            core,
            realtime: self.realtime,
        }
    }

    /// Whether the cell is to be measured on the transport.
    fn wants(&self, cell: &Cell, transport: Transport) -> bool {
        let name = format!("{} {}", transport.name(), cell.name).to_lowercase();
        (self.full || cell.quick_on(transport))
            && (self.only.is_empty() || self.only.iter().any(|word| name.contains(word)))
    }
}

/// Measures and prints the table; the verdict is whether all goals were met.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Verdict {
    match arguments.split_first() {
        Some((name, rest)) if name == "durable" => return durable::run(workspace, rest),
        Some((name, rest)) if name == "cluster" => return cluster::run(workspace, rest),
        Some((name, rest)) if name == "cost" => return cost::run(workspace, rest),
        _ => {}
    }
    let options = Options::parse(arguments)?;
    if !on_path("taskset") {
        return Err(Failure::new(
            "taskset (package util-linux) is needed to pin processes",
        ));
    }
    let folder = workspace.target_folder("bench")?;
    let mut progress = Progress::start("bench");
    let programs = workspace.target.join(PROFILE);
    if options.build {
        build(workspace, &folder, &mut progress)?;
    }
    let peer = options.against.as_deref().map(find_program).transpose()?;
    let mut bench = Bench {
        options: &options,
        folder,
        broker: programs.join(BROKER),
        generator: programs.join("sterna-lab"),
        peer,
        rows: rows(&options),
        lines: Vec::new(),
    };
    let before = pressure();
    for run in 0..options.runs {
        for transport in Transport::ALL {
            bench.measure(run, transport, &mut progress)?;
        }
    }
    let text = render(&bench.rows, options.against.as_deref());
    let missed = |row: &&Row| {
        matches!(
            row.verdict(),
            table::Verdict::Missed | table::Verdict::Failed
        )
    };
    let bad: Vec<&Row> = bench.rows.iter().filter(missed).collect();
    let colour = if bad.is_empty() {
        Colour::Green
    } else {
        Colour::Red
    };
    progress.finish(colour, if bad.is_empty() { "ok" } else { "MISSED" }, "");
    println!("\n{text}");
    println!(
        "Broker CPU (user and system) for each delivery or connect, resident memory for each idle \
         connection; {} shard(s) on core {}, generator on core {}, medians of {}.",
        options.shards, options.broker_core, options.generator_core, options.runs
    );
    let empty = bench.rows.iter().filter_map(|row| {
        Some(format!(
            "{} {:.1} MiB",
            row.transport.name(),
            row.resident_kib()? / 1024.0
        ))
    });
    let empty: Vec<String> = empty.collect();
    if !empty.is_empty() {
        println!(
            "The broker itself, with ten connections: {}.",
            empty.join(", ")
        );
    }
    if let Some((before, after)) = before.zip(pressure()) {
        println!(
            "Tasks waited for a CPU {before:.0} % of the time before and {after:.0} % at the end."
        );
        if before.max(after) > 20.0 {
            let warning = "Other work was running: read the ratios, not the microseconds.";
            println!("{}", paint(Colour::Yellow, warning));
        }
    }
    for row in bad {
        if let Some(why) = &row.failure {
            println!("{} {}: {why}", row.transport.name(), row.cell.name);
        }
    }
    bench.save()?;
    Ok(bench.rows.iter().all(|row| !missed(&row)))
}

fn build(workspace: &Workspace, folder: &Path, progress: &mut Progress) -> Result<(), Failure> {
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--profile", PROFILE]);
    cargo.args(["--package", "sterna", "--package", "sterna-lab"]);
    let outcome = run_command(&mut cargo, &folder.join("build.log"), BUILD_LIMIT, progress)?;
    if outcome.success {
        Ok(())
    } else {
        Err(Failure(format!("the build failed\n{}", outcome.tail())))
    }
}

/// A peer by its name on the search path (or where Debian keeps daemons), or by its path.
fn find_program(name: &str) -> Result<PathBuf, Failure> {
    if name.contains('/') {
        return Ok(PathBuf::from(name));
    }
    if on_path(name) {
        return Ok(PathBuf::from(name));
    }
    let daemon = Path::new("/usr/sbin").join(name);
    if daemon.is_file() {
        return Ok(daemon);
    }
    Err(Failure(format!(
        "{name} is not installed (Debian: apt-get install {name})"
    )))
}

fn rows(options: &Options) -> Vec<Row> {
    let mut rows = Vec::new();
    for transport in Transport::ALL {
        let foreign = &options.foreign;
        if !foreign.is_empty() && !foreign.iter().any(|u| Transport::of(u) == Some(transport)) {
            continue;
        }
        for cell in CELLS.iter().filter(|cell| options.wants(cell, transport)) {
            rows.push(Row {
                cell: *cell,
                transport,
                runs: Vec::new(),
                peer: Vec::new(),
                failure: None,
            });
        }
    }
    rows
}

struct Bench<'a> {
    options: &'a Options,
    folder: PathBuf,
    broker: PathBuf,
    generator: PathBuf,
    peer: Option<PathBuf>,
    rows: Vec<Row>,
    /// Every run as JSON.
    lines: Vec<Value>,
}

impl Bench<'_> {
    /// One run of every cell of a transport, on a new broker (and a new peer).
    fn measure(
        &mut self,
        run: usize,
        transport: Transport,
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        if self.rows.iter().all(|row| row.transport != transport) {
            return Ok(());
        }
        let place = self.options.place(self.options.broker_core);
        let own = if let Some(pid) = self.options.pid {
            Broker::foreign(pid, self.options.foreign.clone())
        } else {
            Broker::sterna(&self.broker, &self.folder, place, self.options.shards)?
        };
        let peer = match &self.peer {
            Some(program) if program.file_name().is_some_and(|name| name == BROKER) => {
                let folder = self.folder.join("peer");
                std::fs::create_dir_all(&folder)?;
                Some(Broker::sterna(
                    program,
                    &folder,
                    place,
                    self.options.shards,
                )?)
            }
            Some(program) => Some(Broker::mosquitto(program, &self.folder, place)?),
            None => None,
        };
        for index in 0..self.rows.len() {
            let (cell, name) = (self.rows[index].cell, self.rows[index].transport.name());
            if self.rows[index].transport != transport {
                continue;
            }
            progress.busy(&format!("run {}, {name}, {}", run + 1, cell.name));
            match self.run_cell(&cell, transport, &own, "sterna") {
                Ok(Some(found)) => self.rows[index].runs.push(found),
                Ok(None) => self.rows[index].failure = Some("not served".to_owned()),
                Err(Failure(why)) => self.rows[index].failure = Some(why),
            }
            if let Some(peer) = &peer {
                let name = self.options.against.clone().unwrap_or_default();
                match self.run_cell(&cell, transport, peer, &name) {
                    Ok(found) => self.rows[index].peer.extend(found),
                    Err(Failure(why)) => progress.note(&format!("{name}: {why}")),
                }
            }
        }
        Ok(())
    }

    /// Loads a broker once; `None` where it does not serve the transport.
    fn run_cell(
        &mut self,
        cell: &Cell,
        transport: Transport,
        broker: &Broker,
        name: &str,
    ) -> Result<Option<Run>, Failure> {
        let Some(url) = broker.url(transport) else {
            return Ok(None);
        };
        let mut command = self
            .options
            .place(self.options.generator_core)
            .command(&self.generator);
        command.arg("bench").args(cell.arguments).arg(url);
        command.args(broker.trust(transport));
        if cell.timed {
            let warm_up = (self.options.seconds / 3.0).min(1.0);
            command.args(["--seconds", &self.options.seconds.to_string()]);
            command.args(["--warm-up", &warm_up.to_string()]);
        }
        command.args(["--json", "--pid", &broker.pid().to_string()]);
        let line = generator_line(&mut command)?;
        let run = Run::read(cell, &line)
            .ok_or_else(|| Failure(format!("no figure from {}: {line}", in_words(&command))))?;
        self.lines.push(json!({
            "broker": name,
            "cell": cell.name,
            "transport": transport.name(),
            "result": line,
        }));
        Ok(Some(run))
    }

    fn save(&self) -> Result<(), Failure> {
        let rows = self.rows.iter().map(Row::json);
        let lines: Vec<Value> = self.lines.iter().cloned().chain(rows).collect();
        save_lines(&lines, &self.folder, self.options.json.as_deref())
    }
}

/// Writes lines of JSON to a file in the folder, and appends them to another.
fn save_lines(lines: &[Value], folder: &Path, appended: Option<&Path>) -> Result<(), Failure> {
    let mut text = String::new();
    for line in lines {
        let _ = writeln!(text, "{line}");
    }
    let last = folder.join("last.jsonl");
    write(&last, &text)?;
    println!("Every run as JSON: {}", last.display());
    if let Some(path) = appended {
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        file.write_all(text.as_bytes())?;
    }
    Ok(())
}

/// The line of JSON that the generator prints; it bounds its own time.
fn generator_line(command: &mut Command) -> Result<Value, Failure> {
    let text = output(command)?;
    serde_json::from_str(&text).map_err(|e| Failure(format!("{}: {e}", in_words(command))))
}

/// Share of the last ten seconds in which some task waited for a CPU, in percent.
fn pressure() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/pressure/cpu").ok()?;
    text.split_once("avg10=")?
        .1
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, Failure> {
        Options::parse(
            &line
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn options_are_read_and_wrong_ones_refused() {
        let options = parse("quick --runs 5 --only quic --cores 2,3").unwrap();
        assert_eq!(
            (options.runs, options.broker_core, options.generator_core),
            (5, 2, 3)
        );
        assert!(
            rows(&options)
                .iter()
                .all(|row| row.transport == Transport::Quic)
        );
        assert!(rows(&options).len() > 5);
        for wrong in [
            "",
            "slow",
            "quick --runs 0",
            "quick --runs",
            "quick --broker mqtt://h",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let foreign = parse("full --broker quic://127.0.0.1:1 --pid 1").unwrap();
        assert!(
            rows(&foreign)
                .iter()
                .all(|row| row.transport == Transport::Quic)
        );
        assert_eq!(rows(&foreign).len(), CELLS.len());
    }
}
