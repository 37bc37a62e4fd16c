//! `sterna config explain`: what a setting is.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Args as ClapArgs;
use sterna_server::config::reference::{self, Setting};

use super::super::exit;

/// Say what a setting is: section, type, unit, default, meaning.
///
/// KEY is a setting with or without its section (`mqtt.receive_maximum`, `receive_maximum`), or a section
/// (`mqtt`), whose settings are then all explained. Exit code 0: there is one; 1: there is none.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// A setting or a section
    key: String,
}

/// Explains it.
pub(crate) fn run(args: &Args) -> ExitCode {
    match reference::find(&args.key) {
        Ok(settings) => {
            let texts: Vec<String> = settings.iter().map(text).collect();
            // A reader that has seen enough is no fault.
            let _ = io::stdout().write_all(texts.join("\n").as_bytes());
            ExitCode::SUCCESS
        }
        Err(nearest) => {
            let advice = nearest.map_or_else(
                || "`sterna config init -` prints all".to_owned(),
                |nearest| format!("did you mean `{nearest}`?"),
            );
            eprintln!(
                "sterna config explain: there is no setting `{}`; {advice}",
                args.key
            );
            ExitCode::from(exit::USAGE)
        }
    }
}

fn text(setting: &Setting) -> String {
    let mut text = String::new();
    // A text takes everything.
    let _ = write_text(setting, &mut text);
    text
}

fn write_text(setting: &Setting, text: &mut String) -> fmt::Result {
    writeln!(text, "{}: {}", setting.name(), setting.meaning)?;
    let section = match (setting.section.as_str(), setting.repeats) {
        ("", _) => "top level, before all sections".to_owned(),
        (section, true) => format!("[[{section}]], which may be repeated"),
        (section, false) => format!("[{section}]"),
    };
    writeln!(text, "  section   {section}")?;
    writeln!(text, "  type      {}", setting.kind())?;
    if let Some(unit) = setting.unit() {
        writeln!(text, "  unit      {unit}")?;
    }
    let default = match setting.default.as_str() {
        "" => "none; it has to be set",
        default => default,
    };
    writeln!(text, "  default   {default}")?;
    if let Some(variable) = setting.variable() {
        writeln!(text, "  variable  {variable}")?;
    }
    Ok(())
}
