//! `sterna config import`: a configuration of Mosquitto as one of this broker, and what cannot be one.

mod acl;
mod listener;
mod output;
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
/// Listeners, certificates, users, access rules, persistence and limits are translated. All else is listed on standard
/// error, with file and line. Passwords cannot be translated: the names of the users are written into a file
/// `passwords` beside the result, as comments, for `sterna passwd`. No file is replaced. Exit code 0: all is
/// translated; 1: the result is written, and something is missing in it; 2: nothing is written.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Mosquitto's configuration
    #[arg(value_name = "MOSQUITTO_CONF")]
    file: PathBuf,

    /// Where to write the result
    #[arg(short, long, value_name = "PATH", default_value = "sterna.toml")]
    output: PathBuf,
}

/// The importer's messages to its user.
#[derive(Debug, Default)]
struct Report {
    notes: Vec<String>,
    missing: Vec<String>,
}

impl Report {
    /// The line is translated, and what it does differs.
    fn note(&mut self, line: &Line, text: &str) {
        self.notes.push(format!("{line}: {}: {text}", line.key));
    }

    /// The line is not translated.
    fn missing(&mut self, line: &Line, why: &str) {
        self.missing.push(format!("{line}: {}: {why}", line.key));
    }
}

/// Translates.
pub(crate) fn run(args: &Args) -> ExitCode {
    match import(args) {
        Ok(is_complete) => ExitCode::from(u8::from(!is_complete)),
        Err(problem) => {
            eprintln!("sterna config import: {problem}");
            ExitCode::from(2)
        }
    }
}

fn import(args: &Args) -> Result<bool, String> {
    let lines = source::read(&args.file)?;
    let mut report = Report::default();
    let mut translation = Translation::default();
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
    Ok(report.missing.is_empty())
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
