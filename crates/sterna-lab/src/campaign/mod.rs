//! Campaigns: experiments, their repetitions and their comparisons, in one file.
//!
//! A campaign names its transports, then grids of cells. A cell has a link, loss, transport, QoS, length
//! and interval; a grid has a workload and a number of repetitions. Figures and the paper's claims
//! follow. The lab knows a paper only by its file, and the measuring program knows no campaigns. A
//! further protocol is a further workload, a further paper a further file.

mod axis;
mod claim;
mod devices;
mod figure;
mod fleet;
mod foreign;
mod grid;
mod plan;
mod rivals;
#[cfg(test)]
mod tests;
mod transport;

use std::fs;
use std::path::Path;

use serde::Deserialize;

pub use axis::{Axis, Filter};
pub use claim::{Check, Claim, STATISTICS, Source, Trend};
pub use devices::ForeignDevice;
pub use figure::{Figure, Form};
pub use fleet::Fleet;
pub use foreign::{Foreign, is_foreign};
pub use grid::{Direction, Grid, LinkEvent, LinkEventKind, Quick, Workload, WorkloadKind};
pub use plan::{Plan, Run};
pub use transport::{Authentication, Transport};

/// Longest campaign file, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Most runs of one campaign.
pub const MAX_RUNS: usize = 100_000;

/// The campaigns that are part of the program: name and file.
pub const CAMPAIGNS: [(&str, &str); 10] = [
    (
        "amqp-iqbal-2023",
        include_str!("files/amqp-iqbal-2023.toml"),
    ),
    (
        "mqtt-jeddou-2022",
        include_str!("files/mqtt-jeddou-2022.toml"),
    ),
    (
        "http3-saif-2022",
        include_str!("files/http3-saif-2022.toml"),
    ),
    (
        "mqtt-fernandez-2020",
        include_str!("files/mqtt-fernandez-2020.toml"),
    ),
    ("beyond-mqtt", include_str!("files/beyond-mqtt.toml")),
    ("energy-nb-iot", include_str!("files/energy-nb-iot.toml")),
    ("rivals", include_str!("files/rivals.toml")),
    ("ns3-wifi", include_str!("files/ns3-wifi.toml")),
    ("reach", include_str!("files/reach.toml")),
    ("other-stacks", include_str!("files/other-stacks.toml")),
];

/// Those of them that repeat a paper: what `sterna-lab run all` makes.
pub const PAPERS: [&str; 4] = [
    "amqp-iqbal-2023",
    "mqtt-jeddou-2022",
    "http3-saif-2022",
    "mqtt-fernandez-2020",
];

/// A campaign as its file describes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Campaign {
    /// Its name: lower case, digits and dashes.
    pub name: String,
    /// Rises with every change that makes results incomparable.
    pub version: u32,
    /// Its subject.
    pub title: String,
    /// The repeated paper.
    pub paper: String,
    /// Notes for the reader about the interpretation of the paper.
    #[serde(default)]
    pub notes: Vec<String>,
    /// From which all decisions of links come, unless the person who runs it says otherwise.
    #[serde(default = "one")]
    pub seed: u64,
    /// The compared transports.
    #[serde(rename = "transport")]
    pub transports: Vec<Transport>,
    /// The measured grids.
    #[serde(rename = "grid")]
    pub grids: Vec<Grid>,
    /// The figures.
    #[serde(rename = "figure", default)]
    pub figures: Vec<Figure>,
    /// The claims.
    #[serde(rename = "claim", default)]
    pub claims: Vec<Claim>,
    /// Where each transport is shown at its best.
    #[serde(rename = "best", default)]
    pub bests: Vec<Best>,
}

/// A comparison of the best of TCP with the best of QUIC, in each of some cells.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// The subject of the comparison, for people.
    pub title: String,
    /// Where samples come from.
    pub grid: String,
    /// Which of their values: less is better.
    pub metric: String,
    /// The unit, for people.
    pub unit: String,
    /// For each combination of the values of these axes.
    #[serde(default)]
    pub each: Vec<Axis>,
    /// The ways to use TCP, by their transports' names.
    pub tcp: Vec<String>,
    /// The ways to use QUIC.
    pub quic: Vec<String>,
}

const fn one() -> u64 {
    1
}

impl Campaign {
    /// The campaign of this name, or in the file of this name.
    ///
    /// # Errors
    ///
    /// If there is none, or its file makes no sense.
    pub fn find(name: &str) -> Result<(Self, String), String> {
        if let Some(text) = Self::built_in(name) {
            return Ok((Self::parse(text)?, text.to_owned()));
        }
        let path = Path::new(name);
        if !path.exists() {
            let names: Vec<&str> = CAMPAIGNS.iter().map(|(name, _)| *name).collect();
            return Err(format!(
                "no campaign is called `{name}`, and there is no such file; there are: {}",
                names.join(", ")
            ));
        }
        let failed = |error: std::io::Error| format!("{name}: {error}");
        if fs::metadata(path).map_err(failed)?.len() > MAX_FILE_BYTES {
            return Err(format!("{name}: longer than {MAX_FILE_BYTES} bytes"));
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        let campaign = Self::parse(&text).map_err(|error| format!("{name}: {error}"))?;
        Ok((campaign, text))
    }

    fn built_in(name: &str) -> Option<&'static str> {
        let (_, text) = CAMPAIGNS.iter().find(|(known, _)| *known == name)?;
        Some(text)
    }

    /// The campaign of a file. If the built-in campaign of that name makes the same runs, it is returned
    /// instead. Its present figures, claims and notes may be better.
    ///
    /// # Errors
    ///
    /// As [`Self::parse`].
    pub fn parse_again(text: &str) -> Result<Self, String> {
        let campaign = Self::parse(text)?;
        let built_in = Self::built_in(&campaign.name)
            .map(Self::parse)
            .transpose()?;
        Ok(built_in
            .filter(|now| now.makes_the_runs_of(&campaign))
            .unwrap_or(campaign))
    }

    /// Whether both make the same runs, with any figures and claims.
    #[must_use]
    pub fn makes_the_runs_of(&self, other: &Self) -> bool {
        self.name == other.name
            && self.version == other.version
            && self.transports == other.transports
            && self.grids == other.grids
    }

    /// Reads a campaign's file and checks that its parts fit together.
    ///
    /// # Errors
    ///
    /// The fault, with the name of its part.
    pub fn parse(text: &str) -> Result<Self, String> {
        let campaign: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        campaign.check()?;
        Ok(campaign)
    }

    /// A transport by its name.
    #[must_use]
    pub fn transport(&self, name: &str) -> Option<&Transport> {
        self.transports
            .iter()
            .find(|transport| transport.name == name)
    }

    /// A grid by its name.
    #[must_use]
    pub fn grid(&self, name: &str) -> Option<&Grid> {
        self.grids.iter().find(|grid| grid.name == name)
    }

    fn check(&self) -> Result<(), String> {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.name.is_empty() || !self.name.chars().all(is_plain) {
            return Err("name: lower-case letters, digits and dashes".into());
        }
        for (index, transport) in self.transports.iter().enumerate() {
            let place = format!("transport `{}`", transport.name);
            if self.transports[..index]
                .iter()
                .any(|other| other.name == transport.name)
            {
                return Err(format!("{place}: twice"));
            }
            transport
                .check()
                .map_err(|error| format!("{place}: {error}"))?;
        }
        for (index, grid) in self.grids.iter().enumerate() {
            let place = format!("grid `{}`", grid.name);
            if self.grids[..index]
                .iter()
                .any(|other| other.name == grid.name)
            {
                return Err(format!("{place}: twice"));
            }
            for grid in [grid, &grid.quick()] {
                grid.check(|name| self.transport(name))
                    .map_err(|error| format!("{place}: {error}"))?;
            }
        }
        for figure in &self.figures {
            let place = format!("figure `{}`", figure.id);
            if self.grid(&figure.grid).is_none() {
                return Err(format!("{place}: no grid is called `{}`", figure.grid));
            }
            for name in figure.ratio.iter().flatten() {
                if self.transport(name).is_none() {
                    return Err(format!("{place}: no transport is called `{name}`"));
                }
            }
        }
        for best in &self.bests {
            let place = format!("best `{}`", best.title);
            let grid = self
                .grid(&best.grid)
                .ok_or_else(|| format!("{place}: no grid is called `{}`", best.grid))?;
            for name in best.tcp.iter().chain(&best.quic) {
                if !grid.transports.contains(name) {
                    return Err(format!("{place}: its grid has no transport `{name}`"));
                }
            }
        }
        for (index, claim) in self.claims.iter().enumerate() {
            if self.claims[..index]
                .iter()
                .any(|other| other.id == claim.id)
            {
                return Err(format!("claim `{}`: twice", claim.id));
            }
            claim
                .check(self)
                .map_err(|error| format!("claim `{}`: {error}", claim.id))?;
        }
        let runs = Plan::new(self, false, self.seed, &[])?.runs.len();
        if runs == 0 || runs > MAX_RUNS {
            return Err(format!("{runs} runs; 1 to {MAX_RUNS} are possible"));
        }
        Ok(())
    }
}
