//! `sterna-lab run`, `campaigns` and `report`: a paper's experiments and their results.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use clap::ValueEnum;
use sterna_lab::calibrate::Machine;
use sterna_lab::campaign::{CAMPAIGNS, Campaign, Foreign, ForeignDevice, PAPERS, Plan};
use sterna_lab::measure::campaign_run::{
    CampaignOptions, Outcome, Progress, Resume, SiteKind, Wanted, default_folder, execute, predict,
};
use sterna_lab::measure::{Verdict, archive, order};
use sterna_lab::report::{Agreement, Collection, Format};
use sterna_lab::session;

use crate::broker_program::BrokerProgram;
use crate::console;

/// The exit status when a run failed, or was out of tolerance to the end.
const NOT_SOUND: u8 = 2;
/// The exit status after an interruption: that of a shell for SIGINT.
const INTERRUPTED: u8 = 130;
/// Signals that end a campaign.
const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
/// The folder of compressed samples beside a published report.
const SHIPPED: &str = "samples";
/// Width of the bar, in characters.
const BAR_WIDTH: usize = 20;

/// Run a campaign: a paper's experiments, over emulated links, between devices of this program and the
/// broker of the program `sterna`.
///
/// Runs that wait for the network run side by side, CPU-bound runs alone. Ctrl-C stops; --resume
/// continues. A run with link or machine out of tolerance is repeated up to three times, then
/// marked.
#[derive(clap::Args, Debug)]
#[command(after_help = RUN_HELP)]
pub(super) struct RunArgs {
    /// A campaign's name, or a file that describes one; `all` runs those of the papers
    #[arg(value_name = "CAMPAIGN")]
    name: String,
    /// Few repetitions and few messages: shows that everything works, and little more
    #[arg(long)]
    quick: bool,
    /// Where all decisions of the links come from [default: the campaign's]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Only this grid of the campaign; may be repeated
    #[arg(long, value_name = "NAME")]
    grid: Vec<String>,
    /// A broker to measure besides Sterna, on the same links; may be repeated. The lab starts
    /// `mosquitto` and `rmqttd`. A running broker has a URL, with `?ca=FILE` for its authority
    #[arg(long, value_name = "BROKER", value_parser = broker)]
    broker: Vec<String>,
    /// Most runs at once [default: as many as the cores can serve]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=400))]
    jobs: Option<u16>,
    /// Where results go [default: lab-results/CAMPAIGN]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Go on with the results that are there
    #[arg(long)]
    resume: bool,
    /// With --resume: make runs that failed again
    #[arg(long, requires = "resume")]
    retry_failed: bool,
    /// A device to measure besides this program's, on the same links; may be repeated. The program
    /// speaks the protocol of `sterna-lab device` (see docs/lab.md). The scheme of its transports is
    /// mqtt+quic unless given
    #[arg(long, value_name = "[SCHEME=]PROGRAM", value_parser = ForeignDevice::parse)]
    device: Vec<ForeignDevice>,
    /// The program that is device and gateway of other protocols, in campaigns that have some; without
    /// it they are left out. See docs/lab.md
    #[arg(long, value_name = "PROGRAM")]
    rival: Option<PathBuf>,
    /// When all runs are made, put the report there, with the compressed samples in `samples/`
    #[arg(long, value_name = "FOLDER")]
    publish: Option<PathBuf>,
    /// Print the number of runs and their predicted time, and run nothing
    #[arg(long)]
    plan: bool,
    /// Don't measure before how true the links are
    #[arg(long)]
    no_calibration: bool,
    /// The emulator of the links
    #[arg(long, value_name = "KIND", default_value = "tun")]
    emulator: Emulator,
    #[command(flatten)]
    sterna: BrokerProgram,
}

/// Checks the name of a broker.
fn broker(text: &str) -> Result<String, String> {
    Foreign::parse(text).map(|_| text.to_owned())
}

const RUN_HELP: &str = "\
Examples:
  sterna-lab run mqtt-fernandez-2020 --quick
  sterna-lab run mqtt-jeddou-2022 --out /var/tmp/jeddou
  sterna-lab run mqtt-jeddou-2022 --out /var/tmp/jeddou --resume
  sterna-lab run mqtt-fernandez-2020 --broker mosquitto
  sterna-lab report /var/tmp/jeddou

Exit status: 0 all samples are sound, 1 it could not be run, 2 some failed or are marked,
130 interrupted";

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Emulator {
    /// The lab's own, between two network namespaces; needs root, or a /dev/net/tun that is open to all
    Tun,
    /// A relay on this host, in user space; needs no rights. TCP's packets are not seen, so it shows
    /// that a campaign works and compares no transports
    Relay,
    /// ns-3 in real time, as a cross-check: 802.11a for the profiles wifi-a and wifi-a-54, a
    /// point-to-point link for the others. Needs the same rights, a C++ compiler and ns-3.37 (Debian:
    /// g++ libns3-dev)
    Ns3,
}

/// Runs one campaign or all.
pub(super) fn run(args: &RunArgs) -> ExitCode {
    match run_campaigns(args) {
        Ok(code) => code,
        Err(error) => console::fail(error),
    }
}

fn run_campaigns(args: &RunArgs) -> Result<ExitCode, String> {
    let names: Vec<&str> = if args.name == "all" {
        if !args.grid.is_empty() {
            return Err("--grid needs one campaign".into());
        }
        PAPERS.to_vec()
    } else {
        vec![&args.name]
    };
    let mut campaigns = Vec::new();
    for name in names {
        let (campaign, text) = Campaign::find(name)?;
        campaigns.push((campaign.with_rival(args.rival.as_deref()), text));
    }
    if args.plan {
        print!("{}", show_plan(args, &campaigns, &Machine::look())?);
        return Ok(ExitCode::SUCCESS);
    }
    if args.emulator != Emulator::Relay {
        session::gain_rights();
        session::check_rights().map_err(|error| format!("{error}\n{OFFER}"))?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in SIGNALS {
        // Programs get a few seconds to end, so there is no need for a second signal. Some programs
        // (timeout) send one with the first.
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|error| format!("cannot catch signals: {error}"))?;
    }
    let many = campaigns.len() > 1;
    let wanted: Vec<Wanted<'_>> = campaigns
        .iter()
        .map(|(campaign, text)| Wanted {
            campaign,
            text,
            folder: match &args.out {
                Some(out) if many => out.join(&campaign.name),
                Some(out) => out.clone(),
                None => default_folder(&campaign.name, args.quick),
            },
            command: command(args, campaign, named),
        })
        .collect();
    let outcomes = run_wanted(args, &wanted, &stop)?;
    let is_done = outcomes.len() == wanted.len() && outcomes.iter().all(|it| it.left == 0);
    if is_done && let Some(folder) = &args.publish {
        eprint!("{}", publish(&wanted, folder)?);
    }
    let mut total = Outcome {
        // An interruption before the first run leaves campaigns of which nothing was looked at.
        left: wanted.len() - outcomes.len(),
        ..Outcome::default()
    };
    for outcome in outcomes {
        total.sound += outcome.sound;
        total.unsound += outcome.unsound;
        total.incomplete += outcome.incomplete;
        total.failed += outcome.failed;
        total.left += outcome.left;
    }
    Ok(if total.left > 0 {
        ExitCode::from(INTERRUPTED)
    } else if total.unsound + total.incomplete + total.failed > 0 {
        ExitCode::from(NOT_SOUND)
    } else {
        ExitCode::SUCCESS
    })
}

/// Packs the samples of campaigns, and makes their report of what was packed.
fn publish(campaigns: &[Wanted<'_>], out: &Path) -> Result<String, String> {
    let packed = out.join(SHIPPED);
    let failed = |error: io::Error| format!("{}: {error}", packed.display());
    let mut bytes = 0;
    for it in campaigns {
        bytes += archive::pack(&it.folder, &packed.join(&it.campaign.name)).map_err(failed)?;
    }
    let files = Collection::read(&packed, false)
        .and_then(|collection| collection.write(out))
        .map_err(failed)?;
    Ok(format!(
        "{} bytes of samples in {}, the report is {}\n",
        bytes,
        packed.display(),
        files.markdown.display()
    ))
}

/// Makes one run, for a campaign in another process.
pub(super) fn measure() -> ExitCode {
    // Rights that a namespace gives are not inherited.
    session::gain_rights();
    let stop = Arc::new(AtomicBool::new(false));
    for signal in SIGNALS {
        // Without it the process still ends, only less tidily.
        let _ = signal_hook::flag::register(signal, Arc::clone(&stop));
    }
    match order::obey(&stop) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => console::fail(error),
    }
}

/// Possible without rights.
const OFFER: &str = "without that, `--emulator relay` shows that a campaign works, but compares no \
                     transports: of TCP it sees bytes, not packets";

/// The runs of campaigns and their time, by a prediction.
fn show_plan(
    args: &RunArgs,
    campaigns: &[(Campaign, String)],
    machine: &Machine,
) -> Result<String, String> {
    let jobs = args.jobs.map(usize::from);
    let mut text = String::new();
    let mut tell = |name: &str, campaigns: &[&Campaign]| -> Result<(), String> {
        let it = predict(campaigns, args.quick, &args.grid, machine, jobs)?;
        // Writing to a String does not fail, here and below.
        let _ = writeln!(
            text,
            "{name:22} {:5} runs, about {}; {} of them alone, {}",
            it.runs,
            minutes(it.time.as_secs_f64()),
            it.alone,
            minutes(it.alone_time.as_secs_f64())
        );
        Ok(())
    };
    for (campaign, _) in campaigns {
        tell(&campaign.name, &[campaign])?;
    }
    if campaigns.len() > 1 {
        let all: Vec<&Campaign> = campaigns.iter().map(|(campaign, _)| campaign).collect();
        tell("all by one schedule", &all)?;
    }
    let _ = writeln!(
        text,
        "on {} idle cores, if no run has to be repeated{}",
        machine.cores,
        if cfg!(debug_assertions) {
            "; this program is not optimised and takes longer"
        } else {
            ""
        }
    );
    Ok(text)
}

fn run_wanted(
    args: &RunArgs,
    wanted: &[Wanted<'_>],
    stop: &AtomicBool,
) -> Result<Vec<Outcome>, String> {
    let options = CampaignOptions {
        quick: args.quick,
        seed: args.seed,
        grids: args.grid.clone(),
        brokers: args.broker.clone(),
        devices: args.device.clone(),
        rival: args.rival.clone(),
        jobs: args.jobs.map(usize::from),
        site: match args.emulator {
            Emulator::Tun => SiteKind::Namespaces,
            Emulator::Relay => SiteKind::Relay,
            Emulator::Ns3 => SiteKind::Ns3,
        },
        resume: match (args.resume, args.retry_failed) {
            (false, _) => None,
            (true, false) => Some(Resume::All),
            (true, true) => Some(Resume::WithoutFailed),
        },
        calibrate: !args.no_calibration,
        program: std::env::current_exe().map_err(|error| format!("this program: {error}"))?,
        sterna: args.sterna.find()?,
        version: env!("CARGO_PKG_VERSION").into(),
    };
    for wanted in wanted {
        eprintln!("{}: {}", wanted.campaign.name, wanted.campaign.title);
    }
    let mut bar = Bar::new();
    let outcomes = execute(wanted, &options, stop, &mut |progress| {
        bar.show(progress);
    });
    bar.clear();
    let outcomes = outcomes?;
    for (wanted, outcome) in wanted.iter().zip(&outcomes) {
        eprintln!("{}: {}", wanted.campaign.name, summary(outcome));
        if outcome.left == 0 {
            eprintln!(
                "sterna-lab report {} shows the results",
                wanted.folder.display()
            );
        }
    }
    if outcomes.len() < wanted.len() || outcomes.iter().any(|outcome| outcome.left > 0) {
        eprintln!("{} continues", resume_command(args, wanted[0].campaign));
    }
    Ok(outcomes)
}

/// A program as samples name it: results are published, and where programs were is nobody's business.
fn named(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    shell_word(&name.to_string_lossy())
}

/// A file as this machine finds it.
fn found(path: &Path) -> String {
    shell_word(&path.to_string_lossy())
}

/// The command that repeats a campaign, with files as `show` writes them.
fn command(args: &RunArgs, campaign: &Campaign, show: fn(&Path) -> String) -> String {
    let mut text = format!("sterna-lab run {}", show(Path::new(&args.name)));
    if let Some(path) = args.sterna.given() {
        // Writing to a String does not fail, here and below.
        let _ = write!(text, " --sterna {}", show(path));
    }
    if args.quick {
        text.push_str(" --quick");
    }
    let _ = write!(text, " --seed {}", args.seed.unwrap_or(campaign.seed));
    for grid in &args.grid {
        let _ = write!(text, " --grid {}", shell_word(grid));
    }
    for broker in &args.broker {
        let broker = match broker.split_once("?ca=") {
            Some((url, authority)) => format!("{url}?ca={}", show(Path::new(authority))),
            None => broker.clone(),
        };
        let _ = write!(text, " --broker {}", shell_word(&broker));
    }
    for device in &args.device {
        let _ = write!(
            text,
            " --device {}={}",
            device.scheme,
            show(&device.program)
        );
    }
    if let Some(rival) = &args.rival {
        let _ = write!(text, " --rival {}", show(rival));
    }
    if let Some(jobs) = args.jobs {
        let _ = write!(text, " --jobs {jobs}");
    }
    match args.emulator {
        Emulator::Tun => {}
        Emulator::Relay => text.push_str(" --emulator relay"),
        Emulator::Ns3 => text.push_str(" --emulator ns3"),
    }
    text
}

/// The command that goes on with an interrupted campaign. With several campaigns it names all of them,
/// and those that are done have nothing left to do.
fn resume_command(args: &RunArgs, campaign: &Campaign) -> String {
    let mut text = command(args, campaign, found);
    if args.no_calibration {
        text.push_str(" --no-calibration");
    }
    if let Some(out) = &args.out {
        // Writing to a String does not fail.
        let _ = write!(text, " --out {}", shell_word(&out.to_string_lossy()));
    }
    if let Some(folder) = &args.publish {
        let _ = write!(text, " --publish {}", shell_word(&folder.to_string_lossy()));
    }
    text.push_str(" --resume");
    text
}

/// A word as a shell reads it back: in quotes where it has to be.
fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

fn summary(outcome: &Outcome) -> String {
    let mut text = format!("{} samples are sound", outcome.sound);
    for (count, what) in [
        (outcome.unsound, "are marked as out of tolerance"),
        (outcome.incomplete, "lost messages on a reliable transport"),
        (outcome.failed, "failed"),
        (outcome.left, "were not made"),
    ] {
        if count > 0 {
            let _ = write!(text, ", {count} {what}");
        }
    }
    text
}

/// Progress: a bar on a terminal, lines otherwise.
struct Bar {
    is_terminal: bool,
    began: Instant,
    line: String,
    /// Tenths that were told where there is no terminal.
    told: usize,
}

impl Bar {
    fn new() -> Self {
        Self {
            is_terminal: io::stderr().is_terminal(),
            began: Instant::now(),
            line: String::new(),
            told: 0,
        }
    }

    fn show(&mut self, progress: Progress<'_>) {
        match progress {
            Progress::Note(text) => self.tell(text),
            Progress::Sample(sample) => match &sample.verdict {
                Verdict::Sound => {}
                Verdict::Unsound { reasons } => {
                    self.tell(&format!("marked {}: {}", sample.key(), reasons.join("; ")));
                }
                Verdict::Incomplete { reason } => {
                    self.tell(&format!("INCOMPLETE {}: {reason}", sample.key()));
                }
                Verdict::Failed { reason } => {
                    self.tell(&format!("FAILED {}: {reason}", sample.key()));
                }
            },
            Progress::Again { key, reason } => self.tell(&format!("again {key}: {reason}")),
            Progress::State {
                done,
                all,
                running,
                seconds_left,
            } => {
                let text = format!(
                    "{done} of {all} runs, {running} under way; {}, about {} left",
                    minutes(self.began.elapsed().as_secs_f64()),
                    minutes(seconds_left)
                );
                if self.is_terminal {
                    self.line = format!("{} {text}", bar(done, all));
                    self.draw();
                } else if done * 10 / all.max(1) > self.told || done == all {
                    self.told = done * 10 / all.max(1);
                    self.tell(&text);
                }
            }
        }
    }

    /// A line that stays.
    fn tell(&self, text: &str) {
        self.clear();
        // If standard error is closed, the text has no reader.
        let _ = writeln!(io::stderr(), "{text}");
        self.draw();
    }

    fn draw(&self) {
        if self.is_terminal {
            let mut err = io::stderr();
            let _ = write!(err, "\r\x1b[K{}", self.line);
            let _ = err.flush();
        }
    }

    fn clear(&self) {
        if self.is_terminal {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn bar(done: usize, all: usize) -> String {
    let full = done * BAR_WIDTH / all.max(1);
    format!("[{}{}]", "#".repeat(full), "-".repeat(BAR_WIDTH - full))
}

fn minutes(seconds: f64) -> String {
    // Far below the range's end, and not negative.
    #[allow(clippy::cast_sign_loss)]
    let seconds = seconds.round() as u64;
    format!("{}:{:02} min", seconds / 60, seconds % 60)
}

/// Lists the campaigns.
pub(super) fn list() -> Result<String, String> {
    let mut text = String::new();
    for (name, file) in CAMPAIGNS {
        let campaign = Campaign::parse(file)?;
        let runs = |quick| -> Result<usize, String> {
            Ok(Plan::new(&campaign, quick, 1, &[])?.runs.len())
        };
        let grids: Vec<&str> = campaign
            .grids
            .iter()
            .map(|grid| grid.name.as_str())
            .collect();
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "{name}\n    {}\n    repeats  {}\n    grids    {}\n    runs     {} ({} with --quick), \
             {} claims, {} figures",
            campaign.title,
            campaign.paper,
            grids.join(", "),
            runs(false)?,
            runs(true)?,
            campaign.claims.len(),
            campaign.figures.len()
        );
    }
    Ok(text)
}

/// Make a report of a campaign's results, or of several.
///
/// Writes report.html (everything in one page), and report.md with its figures beside it. The file
/// rows.json has each value of each claim, and how it is made of samples. The samples are in
/// samples.csv. A folder with several campaigns' folders gives one report with a chapter for each.
#[derive(clap::Args, Debug)]
pub(super) struct ReportArgs {
    /// The folder that `sterna-lab run` wrote, or one with several of these
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Where the report goes [default: beside the results]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Count samples that were out of tolerance as if they were sound; the report says so
    #[arg(long)]
    with_unsound: bool,
}

/// Makes the report.
pub(super) fn report(args: &ReportArgs) -> ExitCode {
    console::answer(write_report(args))
}

fn write_report(args: &ReportArgs) -> Result<String, String> {
    let collection = Collection::read(&args.folder, args.with_unsound)
        .map_err(|error| format!("no report: {error}"))?;
    let out = args.out.as_ref().unwrap_or(&args.folder);
    let files = collection
        .write(out)
        .map_err(|error| format!("{}: {error}", out.display()))?;
    let mut text = String::new();
    for report in collection.reports() {
        // Writing to a String does not fail, here and below.
        let _ = writeln!(text, "{}", report.name());
        for answer in report.answers() {
            if answer.agreement != Agreement::NotTested {
                let _ = writeln!(
                    text,
                    "{:5} {:9} {}: paper {}, ours {}",
                    answer.id,
                    answer.agreement.name(),
                    answer.text,
                    answer.paper,
                    answer.ours
                );
            }
        }
        let [sound, unsound, incomplete, failed] = report.counts();
        let _ = writeln!(
            text,
            "{sound} samples sound, {unsound} out of tolerance, {incomplete} incomplete, {failed} failed\n"
        );
    }
    let pages = [&files.html, &files.markdown, &files.rows];
    for path in pages.into_iter().chain(&files.csv) {
        let _ = writeln!(text, "{}", path.display());
    }
    Ok(text)
}

///
/// CAMPAIGN-runs has a row for each run, and CAMPAIGN-values a row for each value of a series. Its
/// column `run` counts the rows of CAMPAIGN-runs.
#[derive(clap::Args, Debug)]
pub(super) struct ExportArgs {
    /// The folder that `sterna-lab run` wrote, or one with several of these; packed or not
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// The form of the tables
    #[arg(long, value_name = "FORM", default_value = "csv")]
    format: Table,
    /// Where the tables go [default: beside the results]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Table {
    /// Comma-separated values
    Csv,
    /// Apache Parquet
    Parquet,
}

/// Writes the tables.
pub(super) fn export(args: &ExportArgs) -> ExitCode {
    console::answer(write_tables(args))
}

fn write_tables(args: &ExportArgs) -> Result<String, String> {
    let out = args.out.as_ref().unwrap_or(&args.folder);
    let format = match args.format {
        Table::Csv => Format::Csv,
        Table::Parquet => Format::Parquet,
    };
    let files = Collection::read(&args.folder, false)
        .and_then(|collection| collection.export(out, format))
        .map_err(|error| format!("no tables: {error}"))?;
    let lines = files.iter().map(|path| format!("{}\n", path.display()));
    Ok(lines.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_goes_on_keeps_what_was_asked_for() {
        use clap::Parser as _;
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: RunArgs,
        }
        let words = "x mqtt-fernandez-2020 --quick --grid connect --grid stop-and-wait --seed 7 --jobs 3 \
                     --rival ./rivals --emulator relay --no-calibration --out";
        let mut words: Vec<&str> = words.split_ascii_whitespace().collect();
        words.push("a folder's");
        let args = Line::parse_from(words).args;
        let (campaign, _) = Campaign::find(&args.name).unwrap();
        assert_eq!(
            resume_command(&args, &campaign),
            "sterna-lab run mqtt-fernandez-2020 --quick --seed 7 --grid connect --grid stop-and-wait \
             --rival ./rivals --jobs 3 --emulator relay --no-calibration --out 'a folder'\\''s' --resume"
        );
    }

    #[test]
    fn results_name_programs_without_their_folders() {
        use clap::Parser as _;
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: RunArgs,
        }
        let words = "x /home/me/my.toml --sterna /home/me/sterna --device /home/me/quic-go \
                     --device mqtts=/home/me/other --rival /home/me/rivals \
                     --broker mqtts://broker:8883?ca=/home/me/ca.pem";
        let args = Line::parse_from(words.split_ascii_whitespace()).args;
        let (campaign, _) = Campaign::find(PAPERS[0]).unwrap();
        assert_eq!(
            command(&args, &campaign, named),
            "sterna-lab run my.toml --sterna sterna --seed 1 --broker 'mqtts://broker:8883?ca=ca.pem' \
             --device mqtt+quic=quic-go --device mqtts=other --rival rivals"
        );
        let again = resume_command(&args, &campaign);
        assert_eq!(again.matches("/home/me/").count(), 6, "{again}");
    }

    #[test]
    fn the_plan_of_all_names_each_campaign_and_their_time_together() {
        use clap::Parser as _;
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: RunArgs,
        }
        let args = Line::parse_from(["x", "all", "--quick", "--plan"]).args;
        let campaigns = PAPERS.map(|name| Campaign::find(name).unwrap());
        let text = show_plan(&args, &campaigns, &Machine::look()).unwrap();
        assert_eq!(text.lines().count(), PAPERS.len() + 2, "{text}");
        let together = text.lines().nth(PAPERS.len()).unwrap();
        assert!(together.starts_with("all by one schedule"), "{text}");
        assert!(together.contains(" min; "), "{text}");
    }

    #[test]
    fn a_bar_fills() {
        assert_eq!(bar(0, 10), format!("[{}]", "-".repeat(20)));
        assert_eq!(bar(10, 10), format!("[{}]", "#".repeat(20)));
        assert_eq!(bar(1, 3).matches('#').count(), 6);
        assert_eq!(minutes(125.4), "2:05 min");
    }

    #[test]
    fn all_campaigns_are_listed_and_those_of_the_papers_are_there() {
        let text = list().unwrap();
        for name in PAPERS {
            assert!(text.contains(name));
            assert!(Campaign::find(name).is_ok());
        }
    }

    #[test]
    fn outcomes_name_what_is_not_sound() {
        let outcome = Outcome {
            sound: 3,
            failed: 1,
            ..Outcome::default()
        };
        assert_eq!(summary(&outcome), "3 samples are sound, 1 failed");
    }
}
