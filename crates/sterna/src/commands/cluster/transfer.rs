//! `sterna cluster export` and `import`: by NATS itself, with the configuration of a node.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use sterna_server::config::{self, Config};
use sterna_server::transfer::{self, Transferred};

use super::super::export_file::ExportFile;
use super::super::serve::Source;

/// Something was not carried.
const LEFT: u8 = 1;

/// Write all sessions, queues, retained messages and messages as JSON lines, in the form of `sterna store export`.
/// Changes nothing. Nodes may run
#[derive(Debug, ClapArgs)]
pub(super) struct Export {
    #[command(flatten)]
    source: Source,

    /// Write to this file, which must not exist, instead of to standard output
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
}

/// Fill a cluster from an export, of a cluster or a store. All its nodes have to be stopped
#[derive(Debug, ClapArgs)]
pub(super) struct Import {
    #[command(flatten)]
    source: Source,

    /// Read this file. It is read twice, so it is no pipe
    #[arg(short, long, value_name = "PATH")]
    input: PathBuf,

    /// Remove first what the cluster has. Without this it must be empty
    #[arg(long)]
    replace: bool,
}

fn load(source: &Source) -> Result<Config, String> {
    config::load(source.config.as_deref(), std::env::vars()).map_err(|error| error.to_string())
}

impl Export {
    /// Runs it, and returns the exit status.
    pub(super) fn run(&self) -> Result<u8, String> {
        let config = load(&self.source)?;
        let done = match &self.output {
            None => {
                let mut out = BufWriter::new(io::stdout().lock());
                let done = transfer::export(&config, &mut out)?;
                out.flush().map_err(|error| error.to_string())?;
                done
            }
            Some(path) => {
                let mut file = ExportFile::begin(path)?;
                let done = transfer::export(&config, &mut file)?;
                file.finish()?;
                done
            }
        };
        Ok(report("exported", &config, &done))
    }
}

impl Import {
    /// Runs it, and returns the exit status.
    pub(super) fn run(&self) -> Result<u8, String> {
        let config = load(&self.source)?;
        let named = |path: &Path, why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        let file = File::open(&self.input).map_err(|error| named(&self.input, &error))?;
        let is_file = file.metadata().is_ok_and(|found| found.is_file());
        if !is_file {
            return Err(named(&self.input, &"it is no file, and is read twice"));
        }
        let done = transfer::import(&config, &mut BufReader::new(file), self.replace)?;
        Ok(report("imported", &config, &done))
    }
}

/// Says what was done, and names what was not carried.
fn report(done: &str, config: &Config, transferred: &Transferred) -> u8 {
    let Transferred {
        sessions,
        groups,
        retained,
        messages,
        left,
    } = transferred;
    eprintln!(
        "{done} {messages} messages, {sessions} sessions, {groups} shared subscriptions and queues, {retained} \
         retained messages of the cluster {}",
        config.cluster.name
    );
    for (what, count) in left {
        eprintln!("not carried: {count} {what}");
    }
    if left.is_empty() { 0 } else { LEFT }
}
