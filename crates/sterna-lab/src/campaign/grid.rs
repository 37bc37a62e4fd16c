//! Cells that are measured, and what a device does in them.

use serde::{Deserialize, Serialize};

use super::{Axis, Fleet, Transport, fleet};
use crate::measure::MIN_PAYLOAD_BYTES;
use crate::profile::Profile;
use crate::quantity;

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

    /// Checks that all of it can be measured. `transport` finds the campaign's transports by name.
    ///
    /// # Errors
    ///
    /// The first fault.
    pub(super) fn check<'a>(
        &'a self,
        transport: impl Fn(&str) -> Option<&'a Transport>,
    ) -> Result<(), String> {
        for link in &self.links {
            Profile::link(link)?;
        }
        for loss in &self.loss {
            quantity::loss(loss)?;
        }
        for time in self.interval.iter().chain(&self.delay) {
            if !time.is_empty() {
                quantity::time_ns(time)?;
            }
        }
        for rate in self.rate.iter().filter(|rate| !rate.is_empty()) {
            quantity::rate_bps(rate)?;
        }
        for name in &self.transports {
            if transport(name).is_none() {
                return Err(format!("no transport is called `{name}`"));
            }
        }
        if self.qos.iter().any(|qos| *qos > 2) {
            return Err("QoS is 0, 1 or 2".into());
        }
        if let Some(short) = self
            .payload_bytes
            .iter()
            .find(|bytes| **bytes < MIN_PAYLOAD_BYTES)
        {
            return Err(format!(
                "messages of {short} bytes: number and time alone take {MIN_PAYLOAD_BYTES}"
            ));
        }
        let workload = &self.workload;
        if workload.kind == WorkloadKind::ConnectReceive
            && let Some(other) = self
                .transports
                .iter()
                .find(|name| transport(name).is_none_or(|found| !found.scheme.starts_with("amqp")))
        {
            return Err(format!(
                "connect-receive takes from a queue of AMQP, which `{other}` does not speak"
            ));
        }
        fleet::check(self, &transport)?;
        if self.counts().contains(&0) || workload.connections == 0 || workload.topics == 0 {
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
