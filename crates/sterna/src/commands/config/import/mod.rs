//! `sterna config import`: a configuration of Mosquitto as one of this broker, and what cannot be one.

mod access;
mod acl;
mod keys;
mod listener;
mod output;
mod passwords;
mod source;
mod translation;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf, absolute};
use std::process::ExitCode;

use clap::Args as ClapArgs;
use sterna_server::Server;

use source::Line;
use translation::Translation;

/// Translate a configuration of Mosquitto (mosquitto.conf).
///
/// Listeners, certificates, users with their passwords, access rules, persistence and limits are translated. All else
/// is listed on standard error, with file and line. Nobody gets more rights than before: what restricts clients and
/// cannot be translated takes rights away, or leaves its listener out. Users are written into a file `passwords` beside
/// the result. No file is replaced. Exit code 0: all is translated, and nobody's rights differ; 1: something is missing
/// that gives and takes no right; 3: clients have fewer rights than before; 2: nothing is written.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Mosquitto's configuration
    #[arg(value_name = "MOSQUITTO_CONF")]
    file: PathBuf,

    /// Where to write the result
    #[arg(short, long, value_name = "PATH", default_value = "sterna.toml")]
    output: PathBuf,
}

/// Exit code: the result is written, and something is missing that gives and takes no right.
const INCOMPLETE: u8 = 1;
/// Exit code: nothing is written.
const NOTHING: u8 = 2;
/// Exit code: the result is written, and clients have fewer rights than before.
const LESS: u8 = 3;

/// The importer's messages to its user.
#[derive(Debug, Default)]
struct Report {
    notes: Vec<String>,
    missing: Vec<String>,
    less: Vec<String>,
}

impl Report {
    /// The line is translated, and what it does differs.
    fn note(&mut self, line: &Line, text: &str) {
        self.notes.push(format!("{line}: {}: {text}", line.key));
    }

    /// The line is not translated as it is: clients may do less than before.
    fn less(&mut self, line: &Line, why: &str) {
        self.less.push(format!("{line}: {}: {why}", line.key));
    }

    /// The line is not translated, and nobody's rights depend on it.
    fn missing(&mut self, line: &Line, why: &str) {
        self.missing.push(format!("{line}: {}: {why}", line.key));
    }
}

/// Translates.
pub(crate) fn run(args: &Args) -> ExitCode {
    match import(args) {
        Ok(code) => ExitCode::from(code),
        Err(problem) => {
            eprintln!("sterna config import: {problem}");
            ExitCode::from(NOTHING)
        }
    }
}

fn import(args: &Args) -> Result<u8, String> {
    let lines = source::read(&args.file)?;
    let mut report = Report::default();
    let mut translation = Translation::of(&lines);
    for line in &lines {
        translation.take(line, &mut report);
    }
    let output = absolute(&args.output).map_err(|error| at(&args.output, &error))?;
    let passwords = output.with_file_name("passwords");
    let (mut config, users) = translation.finish(&passwords, &mut report)?;
    output::open_as_told(&mut config, &mut report.notes);
    let text = output::text(&config, &args.file)?;
    // Both or none.
    if output.exists() {
        return Err(format!("{} is there already", output.display()));
    }
    if let Some(users) = users {
        create(&passwords, &users)?;
    }
    create(&output, &text)?;
    if let Err(problems) = Server::check(&config) {
        let problems = problems.into_iter();
        (report.missing).extend(problems.map(|it| format!("the result is refused: {it}")));
    }
    tell("translated, and different here", &report.notes);
    tell("not translated", &report.missing);
    tell(
        "not translated, so that clients may do less than before",
        &report.less,
    );
    Ok(if !report.less.is_empty() {
        LESS
    } else if !report.missing.is_empty() {
        INCOMPLETE
    } else {
        0
    })
}

/// Writes a new file for its owner alone.
fn create(path: &Path, text: &str) -> Result<(), String> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| at(path, &error))
}

fn at(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

fn tell(title: &str, lines: &[String]) {
    if !lines.is_empty() {
        eprintln!("{title}:");
        for line in lines {
            eprintln!("  {line}");
        }
    }
}
