//! `sterna config reference`: every setting as a page.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use sterna_server::config::reference;

use super::super::{exit, output};

/// Print every setting with its values, default and meaning, as a page in Markdown.
///
/// It is `docs/configuration.md` of this version.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {}

/// Prints it.
pub(crate) fn run(Args {}: &Args) -> ExitCode {
    exit::code(output::print(reference::page().as_bytes()), false)
}
