//! The cost of keeping messages, beside peers that keep them, too. Figures are CPU and bytes written for
//! each message, messages per second, time until the acknowledgement, restart and return.
//!
//! Every workload has a broker of its own with its own data, so that none measures what another has
//! left behind. The brokers of one subject are up together, and the runs of their workloads take turns.

mod brokers;
mod figures;
mod options;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::console::{Colour, Progress, paint};
use crate::workspace::{Workspace, on_path};
use crate::{Failure, Verdict};

use super::broker::Place;
use super::table::median;
use brokers::{Durability, Running, Subject, subjects};
use figures::{Goal, Restart, Row, Run, Workload, goals, render, render_goals, render_restart};
use options::Options;

/// Longest time for a peer to get its sessions; those that it has then are measured.
const PEER_SESSIONS_S: &str = "20";
/// The same for Sterna, which is to have all of them.
const SESSIONS_S: &str = "600";
/// A run in which nothing was acknowledged is repeated with this many times its length.
const LONGER: f64 = 5.0;
/// Memory that has not fallen for this long falls no more.
const SETTLED_AFTER_S: u32 = 15;
const SETTLED_AT_MOST_S: u32 = 90;
/// Runs in which one session away and many have their load together, and the length of one in seconds.
const RUNS_TOGETHER: usize = 9;
const TOGETHER_S: f64 = 2.0;
/// Messages of one of ten publishers under way, for a subscriber that is behind.
const BEHIND_WINDOW: &str = "1000";
/// Sessions that sleep through messages, and return.
const SLEEPERS: u64 = 2;
/// Messages of its own that each of them sleeps through.
const OWN_MESSAGES: u64 = 1_000;
/// Messages that it sleeps through.
const SLEPT_MESSAGES: u64 = 1_000_000;

/// Resident bytes of a broker that does nothing, when they fall no more. Its allocator gives pages back some ten
/// seconds after a start.
fn settled_bytes(pid: u32) -> Result<f64, Failure> {
    let mut least = f64::MAX;
    let mut quiet_s = 0;
    for _ in 0..SETTLED_AT_MOST_S {
        thread::sleep(Duration::from_secs(1));
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let kib = (status.lines())
            .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"))
            .and_then(|kib| kib.parse::<f64>().ok())
            .ok_or_else(|| Failure(format!("process {pid} has no resident memory")))?;
        quiet_s = if kib * 1024.0 < 0.99 * least {
            0
        } else {
            quiet_s + 1
        };
        least = least.min(kib * 1024.0);
        if quiet_s >= SETTLED_AFTER_S {
            break;
        }
    }
    Ok(least)
}

/// Measures and prints the tables; the verdict is whether all goals with a figure were met.
pub(super) fn run(workspace: &Workspace, arguments: &[String]) -> Verdict {
    let options = Options::parse(arguments)?;
    if !on_path("taskset") {
        return Err(Failure::new(
            "taskset (package util-linux) is needed to pin processes",
        ));
    }
    let folder = workspace.target_folder("bench-durable")?;
    let mut progress = Progress::start("bench durable");
    let programs = if let Some(programs) = &options.programs {
        programs.clone()
    } else {
        super::build(workspace, &folder, &mut progress)?;
        workspace.target.join(super::PROFILE)
    };
    let (subjects, missing) = subjects(&options, &programs.join(super::BROKER));
    let before = super::pressure();
    let mut bench = Bench {
        options: &options,
        data: folder.join("data"),
        generator: programs.join("sterna-lab"),
        rows: Vec::new(),
        restart: Restart::default(),
        lines: Vec::new(),
        notes: missing,
    };
    bench.remove_data()?;
    for subject in &subjects {
        bench.measure(subject, &mut progress)?;
    }
    if subjects.iter().any(Subject::is_sterna)
        && let Err(Failure(why)) = bench.restart(&subjects, &mut progress)
    {
        bench.notes.push(format!("sterna, restart: {why}"));
    }
    bench.remove_data()?;

    let goals = goals(&bench.rows, &bench.restart, options.payload);
    let failed = bench.rows.iter().any(|row| row.failure.is_some());
    let is_ok = !failed && !goals.iter().any(Goal::is_missed);
    let colour = if is_ok { Colour::Green } else { Colour::Red };
    progress.finish(colour, if is_ok { "ok" } else { "MISSED" }, "");
    println!("\n{}", render(&bench.rows));
    println!("{}", render_goals(&goals));
    println!("{}", render_restart(&bench.restart));
    println!(
        "MQTT QoS 1, payload of {} bytes; broker on core {}, generator on core {}; medians of {} runs, of \
         peers {}. Bytes written are the kernel's (write_bytes of /proc/PID/io), in whole pages.",
        options.payload,
        options.broker_core,
        options.generator_core,
        options.runs,
        options.peer_runs
    );
    if let Some((before, after)) = before.zip(super::pressure()) {
        println!(
            "Tasks waited for a CPU {before:.0} % of the time before and {after:.0} % at the end."
        );
        if before.max(after) > 20.0 {
            let warning = "Other work was running: read CPU time and bytes, not rates and times.";
            println!("{}", paint(Colour::Yellow, warning));
        }
    }
    for note in &bench.notes {
        println!("not measured: {note}");
    }
    let rows = bench.rows.iter().map(Row::json);
    bench.lines.extend(rows.chain(goals.iter().map(Goal::json)));
    super::save_lines(&bench.lines, &folder, options.json.as_deref())?;
    Ok(is_ok)
}

/// Runs `sterna-lab bench`. Returns its arguments with what it printed.
fn generated(mut command: Command, arguments: &[String]) -> Result<Value, Failure> {
    let line = super::generator_line(&mut command)?;
    Ok(json!({"arguments": arguments, "result": line}))
}

struct Bench<'a> {
    options: &'a Options,
    /// Where brokers have their data.
    data: PathBuf,
    generator: PathBuf,
    rows: Vec<Row>,
    restart: Restart,
    /// Every run as JSON.
    lines: Vec<Value>,
    /// Measurements that were left out, each with the reason.
    notes: Vec<String>,
}

impl Bench<'_> {
    fn remove_data(&self) -> Result<(), Failure> {
        if self.data.exists() {
            fs::remove_dir_all(&self.data)?;
        }
        Ok(())
    }

    const fn place(&self) -> Place {
        Place {
            core: self.options.broker_core,
            realtime: false,
        }
    }

    /// Where a workload's broker has its data. Sessions of Sterna that are away stay for its other
    /// settings, and for the restart.
    fn folder(&self, subject: &Subject, workload: Workload) -> PathBuf {
        let stays =
            subject.is_sterna() && matches!(workload, Workload::ManyAway | Workload::OwnAway);
        let settings = if stays {
            String::new()
        } else {
            format!("-{:?}", subject.durability)
        };
        self.data
            .join(format!("{}{settings}-{workload:?}", subject.name))
    }

    /// All workloads of one subject.
    fn measure(&mut self, subject: &Subject, progress: &mut Progress) -> Result<(), Failure> {
        let mut started = Vec::new();
        for workload in Workload::ALL {
            let doing = format!("{}, {}, {workload:?}", subject.name, subject.keeps);
            progress.busy(&doing);
            let mut row = Row {
                broker: subject.name,
                keeps: subject.keeps,
                durability: subject.durability,
                workload,
                sessions: 0,
                runs: Vec::new(),
                failure: None,
            };
            let begun = self.begin(subject, workload, &mut row);
            let broker = begun.map_err(|Failure(why)| row.failure = Some(why)).ok();
            started.push((broker, row));
        }
        let runs = if subject.is_sterna() {
            self.options.runs
        } else {
            self.options.peer_runs
        };
        for run in 0..runs {
            for (broker, row) in &mut started {
                let Some(broker) = broker else { continue };
                progress.busy(&format!(
                    "{}, {}, run {}, {:?}",
                    subject.name,
                    subject.keeps,
                    run + 1,
                    row.workload
                ));
                match self.load(broker, row) {
                    Ok(run) => row.runs.push(run),
                    Err(Failure(why)) => row.failure = Some(why),
                }
            }
        }
        if subject.is_sterna() && subject.durability == Durability::Interval {
            progress.busy(&format!("{}, one away and many together", subject.name));
            self.restart.many_by_one = self.many_by_one(&started)?;
        }
        for (broker, row) in started {
            // Settings of the same data follow: an orderly end, so that nothing is to be repaired.
            if let Some(broker) = broker.filter(|_| subject.is_sterna()) {
                broker.stop()?;
            }
            if let Some(why) = &row.failure {
                let (name, keeps) = (row.broker, row.keeps);
                let note = format!("{name}, {keeps}, {:?}: {why}", row.workload);
                self.notes.push(note);
            }
            let folder = self.folder(subject, row.workload);
            if folder.exists()
                && !(subject.is_sterna()
                    && matches!(row.workload, Workload::ManyAway | Workload::OwnAway))
            {
                fs::remove_dir_all(folder)?;
            }
            self.rows.push(row);
        }
        Ok(())
    }

    /// CPU of a message for many sessions away by that for one. A machine's speed changes within seconds: so both brokers
    /// have their load at the same time, on the same core.
    fn many_by_one(&mut self, started: &[(Option<Running>, Row)]) -> Result<Option<f64>, Failure> {
        let of = |workload| {
            let mut all = started.iter();
            let (broker, row) = all.find(|(_, row)| row.workload == workload)?;
            Some((broker.as_ref()?, row))
        };
        let both = of(Workload::OneAway).zip(of(Workload::ManyAway));
        let Some(both) = both.map(<[_; 2]>::from) else {
            return Ok(None);
        };
        let mut ratios = Vec::new();
        for _ in 0..RUNS_TOGETHER {
            let lines = thread::scope(|scope| {
                let loads = both.map(|(broker, row)| {
                    let arguments = self.load_arguments(TOGETHER_S, row);
                    let command = self.generator_of(broker, &arguments);
                    scope.spawn(move || generated(command, &arguments))
                });
                loads.map(thread::ScopedJoinHandle::join)
            });
            let mut cpu_us = Vec::new();
            for line in lines {
                let line = line.map_err(|_| Failure::new("a load ended early"))??;
                cpu_us.extend(Run::read(&line["result"]).map(|run| run.cpu_us()));
                self.lines.push(line);
            }
            if let [one, many] = cpu_us[..] {
                ratios.push(many / one);
            }
        }
        Ok(median(ratios.into_iter()))
    }

    /// Starts the broker of a workload, and makes the sessions that are to be away.
    fn begin(
        &mut self,
        subject: &Subject,
        workload: Workload,
        row: &mut Row,
    ) -> Result<Running, Failure> {
        let folder = self.folder(subject, workload);
        let is_new = !folder.exists();
        let broker = subject.start(&folder, self.place())?;
        let all = if subject.is_sterna() {
            self.options.sessions
        } else {
            self.options.peer_sessions
        };
        row.sessions = match workload {
            Workload::OnePresent | Workload::OneBehind | Workload::ManyPresent => 0,
            Workload::OneAway => 1,
            Workload::ManyAway | Workload::OwnAway => all,
        };
        if row.sessions > 0 && is_new {
            return self.make_sessions(broker, subject, workload, row);
        }
        Ok(broker)
    }

    /// Makes the sessions of a workload that are to be away. Afterwards all records of Sterna's are in their file: the
    /// checkpoint of all these sessions would fall into the time in which messages are measured.
    fn make_sessions(
        &mut self,
        mut broker: Running,
        subject: &Subject,
        workload: Workload,
        row: &mut Row,
    ) -> Result<Running, Failure> {
        if !subject.is_sterna() {
            row.sessions = self.make_some(&broker, workload, (0, row.sessions), PEER_SESSIONS_S)?;
            return Ok(broker);
        }
        // The second half shows what sessions add: the program and its threads are in both.
        let measures = workload == Workload::ManyAway && self.restart.session_bytes.is_none();
        let half = if measures { row.sessions / 2 } else { 0 };
        let folder = self.folder(subject, workload);
        let mut resident = Vec::new();
        let mut made = 0;
        for count in [half, row.sessions - half] {
            if count == 0 {
                continue;
            }
            made += self.make_some(&broker, workload, (made, count), SESSIONS_S)?;
            broker.stop()?;
            subject.compact(&folder)?;
            if measures {
                // The cache has its own limit, and grows with the file until that is reached.
                let uncached = subject.start_uncached(&folder, self.place())?;
                resident.push(settled_bytes(uncached.pid)?);
                uncached.stop()?;
            }
            broker = subject.start(&folder, self.place())?;
        }
        if let [first, all] = resident[..] {
            self.restart.session_bytes = Some((all - first) / f64::from(made - half));
        }
        row.sessions = made;
        Ok(broker)
    }

    /// Makes this number of sessions from this one on, and returns how many were made.
    fn make_some(
        &mut self,
        broker: &Running,
        workload: Workload,
        (first, count): (u32, u32),
        limit: &str,
    ) -> Result<u32, Failure> {
        let (first, count) = (first.to_string(), count.to_string());
        let mut arguments = vec![
            "sessions",
            "-n",
            &count,
            "--first",
            &first,
            "--seconds",
            limit,
        ];
        arguments.extend(["--at-once", "64", "--client-prefix", "away"]);
        if workload == Workload::OwnAway {
            arguments.push("--own-filters");
        }
        let line = self.generate(broker, &arguments)?;
        let made = line["sessions"].as_u64().unwrap_or(0);
        Ok(u32::try_from(made).unwrap_or(u32::MAX))
    }

    /// One run; a longer one where the broker has acknowledged nothing in the first.
    fn load(&mut self, broker: &Running, row: &Row) -> Result<Run, Failure> {
        let longer = self.options.seconds * LONGER;
        if let Some(run) = self.load_for(self.options.seconds, broker, row)? {
            return Ok(run);
        }
        self.load_for(longer, broker, row)?
            .ok_or_else(|| Failure(format!("nothing was acknowledged in {longer} s")))
    }

    /// One run of this length; `None` where nothing was acknowledged.
    fn load_for(
        &mut self,
        seconds: f64,
        broker: &Running,
        row: &Row,
    ) -> Result<Option<Run>, Failure> {
        let arguments = self.load_arguments(seconds, row);
        let line = self.generate(broker, &arguments)?;
        Ok(Run::read(&line))
    }

    fn load_arguments(&self, seconds: f64, row: &Row) -> Vec<String> {
        let warm_up = (self.options.seconds / 3.0).min(1.0);
        let (payload, window) = (self.options.payload, self.options.window);
        let own = row.sessions;
        let load = match row.workload {
            Workload::OnePresent => format!("fan-in -n 10 --durable -w {window}"),
            Workload::OneBehind => format!("fan-in -n 10 --durable -w {BEHIND_WINDOW}"),
            // A message has a thousand deliveries.
            Workload::ManyPresent => "fan-out -n 1000 --durable -w 16".to_owned(),
            Workload::OneAway | Workload::ManyAway => format!("publish -n 10 -w {window}"),
            Workload::OwnAway => format!("publish -n 10 -w {window} --own-topics {own}"),
        };
        let all =
            format!("{load} -q 1 --payload {payload} --seconds {seconds} --warm-up {warm_up}");
        all.split(' ').map(str::to_owned).collect()
    }

    /// Runs `sterna-lab bench`, and keeps what it printed.
    fn generate(
        &mut self,
        broker: &Running,
        arguments: &[impl AsRef<str>],
    ) -> Result<Value, Failure> {
        let arguments: Vec<String> = (arguments.iter())
            .map(|argument| argument.as_ref().to_owned())
            .collect();
        let command = self.generator_of(broker, &arguments);
        let line = generated(command, &arguments)?;
        let result = line["result"].clone();
        self.lines.push(line);
        Ok(result)
    }

    fn generator_of(&self, broker: &Running, arguments: &[String]) -> Command {
        let place = Place {
            core: self.options.generator_core,
            realtime: false,
        };
        let mut command = place.command(&self.generator);
        command.arg("bench").args(arguments).arg(&broker.url);
        command.args(["--json", "--pid", &broker.pid.to_string()]);
        command
    }

    /// Many sessions and messages, a kill, a restart, and sessions that return.
    fn restart(&mut self, subjects: &[Subject], progress: &mut Progress) -> Result<(), Failure> {
        let Some(subject) = subjects
            .iter()
            .find(|one| one.is_sterna() && one.durability == Durability::Interval)
        else {
            return Ok(());
        };
        progress.busy("sterna, restart");
        let folder = self.folder(subject, Workload::ManyAway);
        let broker = subject.start(&folder, self.place())?;
        let (sessions, messages) = self.options.restart();
        let there = self.options.sessions;
        if let Some(more) = sessions.checked_sub(there).filter(|more| *more > 0) {
            let (more, there) = (more.to_string(), there.to_string());
            let mut arguments = vec!["sessions", "-n", &more, "--first", &there, "--seconds"];
            arguments.extend([SESSIONS_S, "--at-once", "64", "--client-prefix", "away"]);
            self.generate(&broker, &arguments)?;
        }
        if let Some(early) = messages.checked_sub(SLEPT_MESSAGES).filter(|n| *n > 0) {
            self.publish_exactly(&broker, early, &[])?;
        }
        let sleepers = SLEEPERS.to_string();
        let mut arguments = vec!["sessions", "-n", &sleepers, "--own-filters"];
        arguments.extend(["--client-prefix", "sleeper"]);
        self.generate(&broker, &arguments)?;
        let every = (SLEPT_MESSAGES / OWN_MESSAGES / SLEEPERS).to_string();
        let own = ["--own-topics", &sleepers, "--every", &every];
        // A few more, so that each sleeper certainly has all of its own.
        self.publish_exactly(&broker, SLEPT_MESSAGES + SLEPT_MESSAGES / 100, &own)?;
        let warm = self.wake(&broker, "0")?;
        drop(broker);
        let broker = subject.start(&folder, self.place())?;
        let killed = broker.ready.as_secs_f64();
        let cold = self.wake(&broker, "1")?;
        broker.stop()?;
        let broker = subject.start(&folder, self.place())?;
        let ended = broker.ready.as_secs_f64();
        broker.stop()?;
        self.restart = Restart {
            sessions: sessions.max(there),
            messages,
            ready_s: Some((killed, ended)),
            first_ms: warm.0.zip(cold.0),
            last_ms: cold.1,
            ..self.restart
        };
        Ok(())
    }

    /// Publishes this number of messages, and waits for their acknowledgements.
    fn publish_exactly(
        &mut self,
        broker: &Running,
        messages: u64,
        more: &[&str],
    ) -> Result<(), Failure> {
        let (count, payload) = (messages.to_string(), self.options.payload.to_string());
        let mut arguments = vec!["publish", "-n", "10", "-w", "1000", "-q", "1"];
        arguments.extend(["--warm-up", "0", "--seconds", "3000", "--messages", &count]);
        arguments.extend(["--payload", &payload]);
        arguments.extend(more);
        let line = self.generate(broker, &arguments)?;
        if line["acknowledged"].as_u64() < Some(messages) {
            return Err(Failure(format!("fewer than {messages} messages: {line}")));
        }
        Ok(())
    }

    /// Returns to a session; milliseconds until its first and its last message.
    fn wake(
        &mut self,
        broker: &Running,
        number: &str,
    ) -> Result<(Option<f64>, Option<f64>), Failure> {
        let own = OWN_MESSAGES.to_string();
        let mut arguments = vec!["wake", "--first", number, "--messages", &own];
        arguments.extend(["--client-prefix", "sleeper"]);
        let line = self.generate(broker, &arguments)?;
        let ms = |key: &str| line[key]["p50"].as_f64().map(|us| us / 1e3);
        Ok((ms("first_us"), ms("last_us")))
    }
}
