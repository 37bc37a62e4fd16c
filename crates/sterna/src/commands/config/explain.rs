//! `sterna config explain`: what a setting is, and its value by a configuration.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Args as ClapArgs;
use sterna_server::config::reference::{self, Found};
use sterna_server::config::{self, Change, Config, Place, Setting};

use super::super::exit;
use super::super::serve::Source;

/// Say what a setting is: section, type, unit, default, meaning, and the moment of a change.
///
/// NAME is a setting with or without its section (`mqtt.receive_maximum`, `receive_maximum`). A section (`mqtt`), or
/// the beginning of names (`broker.maximum_q`), lists its settings, one a line; without NAME all are listed. With a
/// configuration file or a variable that sets it, the value that it gets there is printed, too. A broker that runs may have
/// another: its file may have changed since. Exit code 0: there is such a setting; 1: there is none, or the configuration
/// cannot be read.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// A setting, a section, or the beginning of names
    #[arg(value_name = "NAME", default_value = "")]
    name: String,

    #[command(flatten)]
    source: Source,
}

/// Explains it.
pub(crate) fn run(args: &Args) -> ExitCode {
    let file = args.source.config.as_deref();
    let configuration = match config::load(file, std::env::vars()) {
        Ok(configuration) => configuration,
        Err(problem) => {
            eprintln!("{problem}");
            return ExitCode::from(exit::USAGE);
        }
    };
    let text = match reference::find(&args.name) {
        Ok(Found::Named(settings)) => {
            let text = |setting| explained(setting, &configuration, args);
            settings.iter().map(text).collect::<Vec<_>>().join("\n")
        }
        Ok(Found::Below(settings)) => settings.iter().map(in_one_line).collect(),
        Err(nearest) => {
            let advice = nearest.map_or_else(
                || "`sterna config explain` lists all".to_owned(),
                |nearest| format!("did you mean `{nearest}`?"),
            );
            eprintln!(
                "sterna config explain: there is no setting `{}`; {advice}",
                args.name
            );
            return ExitCode::from(exit::USAGE);
        }
    };
    // A reader that has seen enough is no fault.
    let _ = io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

/// Name, default and first sentence.
fn in_one_line(setting: &Setting) -> String {
    let meaning = setting.meaning();
    let first = meaning
        .split_once(". ")
        .map_or(&*meaning, |(first, _)| first);
    let default = setting.default_in_words().replace('`', "");
    let first = first.trim_end_matches('.');
    format!("{}: {first}. Default: {default}\n", setting.name())
}

fn explained(setting: &Setting, configuration: &Config, args: &Args) -> String {
    let mut text = String::new();
    // A text takes everything.
    let _ = write_text(setting, configuration, args, &mut text);
    text
}

fn write_text(
    setting: &Setting,
    configuration: &Config,
    args: &Args,
    text: &mut String,
) -> fmt::Result {
    writeln!(text, "{}: {}", setting.name(), setting.meaning())?;
    let section = match (setting.section.as_str(), setting.repeats) {
        ("", _) => "top level, before all sections".to_owned(),
        (section, true) => format!("[[{section}]], which may be repeated"),
        (section, false) => format!("[{section}]"),
    };
    writeln!(text, "  section   {section}")?;
    writeln!(text, "  type      {}", setting.kind)?;
    if let Some(unit) = setting.unit() {
        writeln!(text, "  unit      {unit}")?;
    }
    let default = setting.default_in_words().replace('`', "");
    writeln!(text, "  default   {default}")?;
    let change = match setting.change {
        Change::Reload => "a reload puts it in force",
        Change::Restart => "a restart puts it in force",
        Change::Presence => "a reload puts another value in force; to set or unset it, restart",
    };
    writeln!(text, "  change    {change}")?;
    if let Some(variable) = setting.variable() {
        writeln!(text, "  variable  {variable}")?;
    }
    let file = args.source.config.as_deref();
    let variables: Vec<String> = std::env::vars().map(|(name, _)| name).collect();
    let values = configuration.in_force(setting, file, &variables);
    // Without a configuration only the default could be said again.
    let is_told = file.is_some() || values.iter().any(|it| it.place != Place::Default);
    for (index, found) in values.iter().enumerate().filter(|_| is_told) {
        let entry = if setting.repeats {
            format!("{} {}: ", setting.section, index + 1)
        } else {
            String::new()
        };
        let value = found.value.as_deref().unwrap_or("not set");
        writeln!(text, "  value     {entry}{value} ({})", found.place)?;
    }
    Ok(())
}
