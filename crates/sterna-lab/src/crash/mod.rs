//! The crash test: a broker dies under load, and the test compares its acknowledgements with what clients find.
//!
//! Publishers and readers of all protocols talk to a broker in a process of its own. At moments chosen
//! by a seed it gets SIGKILL and starts again on the same directory; clients reconnect by themselves.
//! Every few kills, publishers pause and readers read the rest. Then the ledger lists all messages that
//! are lost, doubled, out of order or torn. The test knows nothing of the broker's inside.
//!
//! A seed gives a similar run and not the same one: it does not control how processes are scheduled.

mod amqp;
mod broker;
mod cast;
mod gate;
mod http;
mod mqtt;
mod report;
mod run;
mod site;
mod weather;
mod wills;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

pub use report::Report;
pub use run::run;

/// The durability that the broker is configured with, in `[store]` or for each listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Acknowledge after the disk has it.
    Commit,
    /// Acknowledge after the kernel has it, which survives a kill.
    Interval,
    /// Acknowledge before the commit: a kill loses messages.
    Memory,
    /// Keep nothing.
    None,
}

impl Durability {
    /// The line below `[store]` in the configuration.
    const fn store(self) -> &'static str {
        match self {
            Self::Commit => "durability = \"commit\"",
            // The disk is slow, and nobody waits for it: every kill under load finds something.
            Self::Memory => "durability = \"commit\"\nwrite_delay_ms = 200",
            Self::Interval => "durability = \"interval\"",
            Self::None => "enabled = false",
        }
    }
}

impl Durability {
    /// The line of each listener.
    const fn listener(self) -> &'static str {
        match self {
            Self::Memory => "durability = \"memory\"",
            Self::Commit | Self::Interval | Self::None => "",
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Commit => "commit",
            Self::Interval => "interval",
            Self::Memory => "memory",
            Self::None => "none",
        })
    }
}

impl FromStr for Durability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "commit" => Ok(Self::Commit),
            "interval" => Ok(Self::Interval),
            "memory" => Ok(Self::Memory),
            "none" => Ok(Self::None),
            _ => Err(format!(
                "`{}` is none of commit, interval, memory, none",
                text.escape_debug()
            )),
        }
    }
}

/// The kind of fault. Where the broker lives on, it must break no promise, whatever it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// The broker is killed.
    Kills,
    /// All connections are cut.
    Cuts,
    /// The way to the broker has faults: cuts, partitions, half-open peers; datagrams that are lost, doubled, late,
    /// changed, or from another address.
    Faults,
}

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program `sterna`.
    pub program: PathBuf,
    /// The number of faults, of the kind that `doing` names.
    pub kills: u32,
    /// The seed of all random choices.
    pub seed: u64,
    /// The promise that the broker is configured with.
    pub durability: Durability,
    /// The fault of the broker, or of the way between it and its clients.
    pub doing: Doing,
}
