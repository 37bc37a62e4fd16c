//! Campaigns: experiments, their repetitions and their comparisons, in one file.
//!
//! A campaign names its transports, then grids of cells (link, loss, transport, QoS, length,
//! interval), each with a workload and a number of repetitions. Figures and the paper's claims
//! follow. The lab knows a paper only by its file, and the measuring program knows no campaigns. A
//! further protocol is a further workload, a further paper a further file.

mod axis;
mod claim;
mod devices;
mod fleet;
mod foreign;
mod plan;
mod rivals;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use axis::{Axis, Filter};
pub use claim::{Check, Claim, STATISTICS, Source, Trend};
pub use devices::ForeignDevice;
pub use fleet::Fleet;
pub use foreign::{Foreign, is_foreign};
pub use plan::{Plan, Run};

use crate::profile::Profile;
use crate::quantity;

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
    /// What is compared.
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

/// A way to connect.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Transport {
    /// By which grids and claims refer to it.
    pub name: String,
    /// Name in figures.
    pub label: String,
    /// The scheme of the client's URL.
    pub scheme: String,
    /// The only version of TLS, `1.2` or `1.3`; any without one.
    pub tls: Option<String>,
    /// The devices' authentication.
    pub authentication: Authentication,
    /// Whether later connections make use of the tickets of earlier ones.
    pub resumption: bool,
    /// Whether to write before the handshake is complete, where there is a ticket. Over TCP a gateway
    /// beside the broker takes it, which itself takes early data over QUIC alone.
    pub early_data: bool,
    /// Whether TCP connects by Fast Open where it has a cookie.
    pub fast_open: bool,
    /// Whether its link is one of IPv6.
    pub ipv6: bool,
    /// The least time after which TCP sends again what is not acknowledged, on both sides, in
    /// milliseconds; the kernel's 200 without one.
    pub rto_min_ms: Option<u32>,
    /// How long each of several connections stays after its last message: for tickets that are on their
    /// way.
    pub linger: Option<String>,
    /// Congestion control of both sides, for any transport; the system's and the library's default
    /// without one.
    pub congestion: Option<String>,
    /// The quality of service; overrides the grid's.
    pub qos: Option<u8>,
    /// Distribution of messages over QUIC's streams.
    pub streams: Option<String>,
    /// Whether messages of QoS 0 travel in QUIC datagrams.
    pub datagrams: bool,
    /// Whether a client waits for an answer to each of SASL, open, begin and attach, as many do,
    /// instead of sending all at once (AMQP).
    pub step_by_step: bool,
    /// Settings of QUIC, on both sides.
    pub quic: BTreeMap<String, String>,
    /// Settings of the broker, such as `quic.early_data`.
    pub broker: BTreeMap<String, String>,
    /// The broker that it goes to, if that is not this project's; no file names one.
    #[serde(skip)]
    pub foreign: Option<Foreign>,
    /// The device that is measured, if that is not this program's; no file names one.
    #[serde(skip)]
    pub device: Option<ForeignDevice>,
}

/// Authentication of a transport's devices. Its broker admits no others.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Authentication {
    /// Not at all.
    #[default]
    None,
    /// By user name and password: in CONNECT, by SASL PLAIN, or by Basic with each request.
    Password,
    /// By Basic with the first request of a connection alone (HTTP/3).
    PasswordOnce,
    /// By a certificate; in AMQP with SASL EXTERNAL.
    Certificate,
}

/// Schemes without TLS, on which there are no certificates.
const PLAIN_SCHEMES: [&str; 5] = ["mqtt", "ws", "amqp", "amqp+ws", "http"];

/// Cells that have everything in common but their axes.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Grid {
    /// By which figures and claims refer to it.
    pub name: String,
    /// Profiles of links.
    pub links: Vec<String>,
    /// Losses, in the words of `--loss`.
    #[serde(default = "no_loss")]
    pub loss: Vec<String>,
    /// Which way packets are lost.
    #[serde(default)]
    pub loss_direction: Direction,
    /// Transports by name.
    pub transports: Vec<String>,
    /// Qualities of service.
    #[serde(default = "zero_qos")]
    pub qos: Vec<u8>,
    /// Lengths of messages.
    pub payload_bytes: Vec<u32>,
    /// Times between two messages, for workloads that have one.
    #[serde(default = "no_interval")]
    pub interval: Vec<String>,
    /// Additions to the profile's delay, one way; none if empty.
    #[serde(default = "unchanged")]
    pub delay: Vec<String>,
    /// Rates that replace the profile's, in the form of `--rate`.
    #[serde(default = "unchanged")]
    pub rate: Vec<String>,
    /// Where `delay` and `rate` are in force.
    #[serde(default)]
    pub shape_direction: Direction,
    /// Numbers of messages; the workload's without them.
    #[serde(default)]
    pub message_counts: Vec<u32>,
    /// Repetitions of each cell.
    pub repetitions: u32,
    /// Whether no other run may run at the same time: for CPU-bound runs.
    #[serde(default)]
    pub alone: bool,
    /// The device's workload.
    pub workload: Workload,
    /// Smaller values for `--quick`.
    #[serde(default)]
    pub quick: Quick,
}

fn no_loss() -> Vec<String> {
    vec!["0%".into()]
}

fn no_interval() -> Vec<String> {
    vec!["0s".into()]
}

/// The value of an axis that a grid doesn't have.
fn unchanged() -> Vec<String> {
    vec![String::new()]
}

fn zero_qos() -> Vec<u8> {
    vec![0]
}

/// Which way a change of the link is in force.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Both; losses independently.
    #[default]
    Both,
    /// From the client only.
    Up,
}

/// A device's work in a run.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// In which way.
    pub kind: WorkloadKind,
    /// Messages of one run; of one connection where there are several.
    pub messages: u32,
    /// Connections, one after another; of a fleet, its devices.
    #[serde(default = "one_connection")]
    pub connections: u32,
    /// Whether a message waits for CONNACK, as clients do that connect first and publish then.
    #[serde(default)]
    pub wait_connack: bool,
    /// Topics, in turn.
    #[serde(default = "one_connection")]
    pub topics: u32,
    /// In a cell's first repetitions devices keep a qlog of their QUIC connections. The series of
    /// congestion plots are made from it, with points at this distance.
    #[serde(default)]
    pub watch: Option<String>,
    /// Events on the way.
    #[serde(default)]
    pub events: Vec<LinkEvent>,
    /// The time between messages as runs are made. The grid's intervals are then periods, for which the
    /// energy of the radio is computed from the packets of a run.
    #[serde(default)]
    pub shortened_to: Option<String>,
    /// The course of a fleet's run.
    #[serde(default)]
    pub fleet: Option<Fleet>,
}

const fn one_connection() -> u32 {
    1
}

/// The ways.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkloadKind {
    /// A message every interval, independent of the one before. A subscriber on the server's side,
    /// without a link between, takes the time of arrival.
    OpenLoop,
    /// One connection publishes and subscribes; the next message leaves when the one before has come
    /// back through the broker.
    StopAndWait,
    /// Connect, publish, disconnect, and again. A subscriber as with `open-loop`.
    ConnectPublish,
    /// Connect, take messages from a queue that was filled before, disconnect, and again (AMQP).
    ConnectReceive,
    /// All connections at once, each of a device of its own; see [`Fleet`].
    Fleet,
}

/// Something that happens to the link.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LinkEvent {
    /// When, since the first message may leave.
    pub at: String,
    /// Kind of event.
    pub kind: LinkEventKind,
}

/// The events.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkEventKind {
    /// The server sees the client under another address.
    Rebind,
}

/// Values that replace a grid's with `--quick`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Quick {
    messages: Option<u32>,
    repetitions: Option<u32>,
    links: Option<Vec<String>>,
    loss: Option<Vec<String>>,
    qos: Option<Vec<u8>>,
    payload_bytes: Option<Vec<u32>>,
    interval: Option<Vec<String>>,
    delay: Option<Vec<String>>,
    rate: Option<Vec<String>>,
    message_counts: Option<Vec<u32>>,
    connections: Option<u32>,
}

impl Transport {
    /// Whether it is QUIC, by its scheme.
    #[must_use]
    pub fn is_quic(&self) -> bool {
        self.scheme.ends_with("+quic") || self.scheme == "h3"
    }

    fn check_tcp(&self) -> Result<(), String> {
        self.check_rival()?;
        if self.is_rival() {
            return Ok(());
        }
        if self.is_quic() && (self.fast_open || self.rto_min_ms.is_some()) {
            return Err(format!(
                "fast_open and rto_min_ms are TCP's, and {} is QUIC",
                self.scheme
            ));
        }
        if self.rto_min_ms == Some(0) {
            return Err("rto_min_ms is at least 1".into());
        }
        if !self.needs_gateway() {
            return Ok(());
        }
        if !matches!(self.scheme.as_str(), "mqtts" | "amqps") {
            return Err(format!(
                "early data over TCP is taken of mqtts and amqps, not of {}",
                self.scheme
            ));
        }
        if self.tls.as_deref() != Some("1.3") || !self.resumption {
            return Err("early data over TCP needs tls = \"1.3\" and resumption".into());
        }
        if self.authentication == Authentication::Certificate {
            return Err(
                "the gateway that takes early data over TCP asks for no certificates".into(),
            );
        }
        Ok(())
    }

    /// Whether whatever is handed over arrives, as long as the connection lives.
    #[must_use]
    pub const fn is_reliable(&self) -> bool {
        !self.datagrams
    }

    /// The scheme by which the subscriber beside the broker connects. It is TLS on TCP, whatever is
    /// measured: the last leg must be the same for all, and QUIC's congestion control, which the broker
    /// has in common with the device's, is not made for the loopback device. A foreign broker serves the
    /// measured scheme, and perhaps nothing else.
    #[must_use]
    pub fn scheme_beside(&self) -> &str {
        match self.scheme.as_str() {
            scheme if self.foreign.is_some() => scheme,
            "mqtt+quic" | "coap" | "coaps" => "mqtts",
            "amqp+quic" => "amqps",
            "h3" => "https",
            scheme => scheme,
        }
    }

    fn check_authentication(&self) -> Result<(), String> {
        let scheme = self.scheme.as_str();
        match self.authentication {
            Authentication::Certificate if PLAIN_SCHEMES.contains(&scheme) => Err(format!(
                "authentication by certificate needs TLS, which {scheme} has not"
            )),
            Authentication::PasswordOnce if scheme != "h3" => Err(format!(
                "password-once is for h3, whose connections have many requests; {scheme} has none \
                 or may use several connections"
            )),
            _ => Ok(()),
        }
    }
}

impl Grid {
    /// The grid as `--quick` runs it.
    #[must_use]
    pub fn quick(&self) -> Self {
        let mut grid = self.clone();
        let quick = &self.quick;
        if let Some(messages) = quick.messages {
            grid.workload.messages = messages;
        }
        if let Some(connections) = quick.connections {
            grid.workload.connections = connections;
        }
        if let Some(counts) = &quick.message_counts {
            grid.message_counts.clone_from(counts);
        }
        if let Some(repetitions) = quick.repetitions {
            grid.repetitions = repetitions;
        }
        for (to, from) in [
            (&mut grid.links, &quick.links),
            (&mut grid.loss, &quick.loss),
            (&mut grid.interval, &quick.interval),
            (&mut grid.delay, &quick.delay),
            (&mut grid.rate, &quick.rate),
        ] {
            if let Some(values) = from {
                to.clone_from(values);
            }
        }
        if let Some(qos) = &quick.qos {
            grid.qos.clone_from(qos);
        }
        if let Some(payload_bytes) = &quick.payload_bytes {
            grid.payload_bytes.clone_from(payload_bytes);
        }
        grid
    }

    /// The values of an axis as samples name them.
    #[must_use]
    pub fn values(&self, axis: Axis) -> Vec<String> {
        match axis {
            Axis::Link => self.links.clone(),
            Axis::Loss => self.loss.clone(),
            Axis::Transport => self.transports.clone(),
            Axis::Qos => self.qos.iter().map(u8::to_string).collect(),
            Axis::PayloadBytes => self.payload_bytes.iter().map(u32::to_string).collect(),
            Axis::Interval => self.interval.clone(),
            Axis::Delay => self.delay.clone(),
            Axis::Rate => self.rate.clone(),
            Axis::Messages => self.counts().iter().map(u32::to_string).collect(),
        }
    }

    /// Numbers of messages: the axis, or the workload's.
    #[must_use]
    pub fn counts(&self) -> Vec<u32> {
        if self.message_counts.is_empty() {
            vec![self.workload.messages]
        } else {
            self.message_counts.clone()
        }
    }
}

/// A figure, in a form that the paper has.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// The paper's number, `4` or `7a`.
    pub id: String,
    /// Its title.
    pub title: String,
    /// Where its samples come from.
    pub grid: String,
    /// Its form.
    pub form: Form,
    /// Which of a sample's values: a metric, or a series with [`Form::Box`].
    pub metric: String,
    /// Unit of the other axis.
    pub unit: String,
    /// Along which cells are laid out.
    pub x: Axis,
    /// Axis with a colour for each value.
    #[serde(default = "transport_axis")]
    pub series: Axis,
    /// Axis with a panel for each value.
    #[serde(default)]
    pub panels: Option<Axis>,
    /// Which cells.
    #[serde(default)]
    pub only: Filter,
    /// Draw the ratio of two transports, repetition by repetition: of the first to the second.
    #[serde(default)]
    pub ratio: Option<[String; 2]>,
    /// A logarithmic axis.
    #[serde(default)]
    pub log: bool,
    /// Whether it opens a report of several campaigns, before all else.
    #[serde(default)]
    pub opening: bool,
}

const fn transport_axis() -> Axis {
    Axis::Transport
}

/// The forms.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// Box, whiskers at the 5th and 95th percentile, and the values outside of them.
    Box,
    /// Bars with confidence intervals.
    Bars,
    /// Lines with confidence intervals.
    Lines,
    /// Each message of the first sound run of each series over the time.
    Timeline,
    /// Window, bytes in flight, sent, acknowledged and lost, and arrived messages, over the time.
    /// Of the first sound, watched run in each panel.
    Congestion,
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

    /// The campaign of a file. If the built-in campaign of that name makes the same runs, its
    /// present figures, claims and notes are used: they may be better.
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
            if !matches!(transport.tls.as_deref(), None | Some("1.2" | "1.3")) {
                return Err(format!("{place}: tls is \"1.2\" or \"1.3\""));
            }
            if let Some(time) = &transport.linger {
                quantity::time_ns(time).map_err(|error| format!("{place}: {error}"))?;
            }
            transport
                .check_tcp()
                .map_err(|error| format!("{place}: {error}"))?;
            transport
                .check_authentication()
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
                self.check_grid(grid)
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

    fn check_grid(&self, grid: &Grid) -> Result<(), String> {
        for link in &grid.links {
            Profile::link(link)?;
        }
        for loss in &grid.loss {
            quantity::loss(loss)?;
        }
        for time in grid.interval.iter().chain(&grid.delay) {
            if !time.is_empty() {
                quantity::time_ns(time)?;
            }
        }
        for rate in grid.rate.iter().filter(|rate| !rate.is_empty()) {
            quantity::rate_bps(rate)?;
        }
        for name in &grid.transports {
            if self.transport(name).is_none() {
                return Err(format!("no transport is called `{name}`"));
            }
        }
        if grid.qos.iter().any(|qos| *qos > 2) {
            return Err("QoS is 0, 1 or 2".into());
        }
        if let Some(short) = grid
            .payload_bytes
            .iter()
            .find(|bytes| **bytes < crate::measure::MIN_PAYLOAD_BYTES)
        {
            return Err(format!(
                "messages of {short} bytes: number and time alone take {}",
                crate::measure::MIN_PAYLOAD_BYTES
            ));
        }
        let workload = &grid.workload;
        if workload.kind == WorkloadKind::ConnectReceive
            && let Some(other) = grid.transports.iter().find(|name| {
                self.transport(name)
                    .is_none_or(|transport| !transport.scheme.starts_with("amqp"))
            })
        {
            return Err(format!(
                "connect-receive takes from a queue of AMQP, which `{other}` does not speak"
            ));
        }
        fleet::check(grid, |name| self.transport(name))?;
        if grid.counts().contains(&0) || workload.connections == 0 || workload.topics == 0 {
            return Err("a workload has messages, connections and topics".into());
        }
        for time in workload
            .events
            .iter()
            .map(|event| &event.at)
            .chain(&workload.watch)
            .chain(&workload.shortened_to)
        {
            quantity::time_ns(time)?;
        }
        Ok(())
    }
}
