//! Commands that are the program `sterna-lab` now.

use std::ffi::OsString;
use std::process::ExitCode;

use super::exit;

/// Moved to the program `sterna-lab`
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<OsString>,
}

/// Says in one line how the command is written now.
pub(crate) fn run(name: &str, args: &Args) -> ExitCode {
    // `sterna-lab` is the lab; the load generator is one of its commands.
    let mut now = String::from(if name == "lab" {
        "sterna-lab"
    } else {
        "sterna-lab bench"
    });
    for word in &args.rest {
        now.push(' ');
        now.push_str(&word.to_string_lossy());
    }
    exit::usage(format_args!(
        "`sterna {name}` is a program of its own, which comes with this one: {now}"
    ))
}
