//! Result of one run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::campaign::{Axis, Filter, Run};

/// One row of the results.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Sample {
    /// The grid's name.
    pub grid: String,
    /// The link's profile.
    pub link: String,
    /// As the campaign's file writes it.
    pub loss: String,
    /// The transport's name.
    pub transport: String,
    /// Quality of service.
    pub qos: u8,
    /// Length of messages.
    pub payload_bytes: u32,
    /// As the campaign's file writes it.
    pub interval: String,
    /// Addition to the profile's delay; empty without this axis.
    pub delay: String,
    /// Rate that replaced the profile's; empty without this axis.
    pub rate: String,
    /// Messages of the run, or of each of its connections.
    pub messages: u32,
    /// From 0.
    pub repetition: u32,
    /// From which the link's decisions came.
    pub seed: u64,
    /// Number of attempts, this one included.
    pub attempts: u32,
    /// The link's emulator.
    pub emulator: String,
    /// When it began, in seconds since 1970.
    pub began_s: u64,
    /// Whether it counts.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// One value each; see `docs/lab.md` for the names.
    pub metrics: BTreeMap<String, f64>,
    /// Many values each.
    pub series: BTreeMap<String, Vec<f64>>,
    /// The actual settings, by name: `tls`, `congestion`, and so on.
    pub in_force: BTreeMap<String, String>,
}

/// Whether a sample counts.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Verdict {
    /// It does.
    Sound,
    /// Link or machine were out of tolerance; the run is shown, but not averaged in.
    Unsound {
        /// The reasons.
        reasons: Vec<String>,
    },
    /// Messages did not arrive, though the transport is reliable: no success, and not averaged in. It
    /// is not made again, because what a transport loses is a result.
    Incomplete {
        /// How many.
        reason: String,
    },
    /// There is no result.
    Failed {
        /// Why.
        reason: String,
    },
}

impl Sample {
    /// A sample of this run without any values yet.
    #[must_use]
    pub fn of(run: &Run, emulator: &str, began_s: u64, verdict: Verdict) -> Self {
        Self {
            grid: run.grid.clone(),
            link: run.link.clone(),
            loss: run.loss.clone(),
            transport: run.transport.name.clone(),
            qos: run.qos,
            payload_bytes: run.payload_bytes,
            interval: run.interval.clone(),
            delay: run.delay.clone(),
            rate: run.rate.clone(),
            messages: run.workload.messages,
            repetition: run.repetition,
            seed: run.seed,
            attempts: 1,
            emulator: emulator.to_owned(),
            began_s,
            verdict,
            metrics: BTreeMap::new(),
            series: BTreeMap::new(),
            in_force: BTreeMap::new(),
        }
    }

    /// Its run's unique key within its campaign.
    #[must_use]
    pub fn key(&self) -> String {
        let shape: Vec<&str> = [&self.delay, &self.rate]
            .into_iter()
            .filter(|text| !text.is_empty())
            .flat_map(|text| ["/", text])
            .collect();
        let shape = shape.concat();
        format!(
            "{}/{}/{}{shape}/{}/q{}/{}B/{}/{}m#{}",
            self.grid,
            self.link,
            self.loss,
            self.transport,
            self.qos,
            self.payload_bytes,
            self.interval,
            self.messages,
            self.repetition
        )
    }

    /// Its value on an axis.
    #[must_use]
    pub fn value(&self, axis: Axis) -> String {
        match axis {
            Axis::Link => self.link.clone(),
            Axis::Loss => self.loss.clone(),
            Axis::Transport => self.transport.clone(),
            Axis::Qos => self.qos.to_string(),
            Axis::PayloadBytes => self.payload_bytes.to_string(),
            Axis::Interval => self.interval.clone(),
            Axis::Delay => self.delay.clone(),
            Axis::Rate => self.rate.clone(),
            Axis::Messages => self.messages.to_string(),
        }
    }

    /// Whether it belongs to these cells.
    #[must_use]
    pub fn is_in(&self, filter: &Filter) -> bool {
        Axis::ALL.iter().all(|axis| {
            filter
                .value(*axis)
                .is_none_or(|wanted| wanted == self.value(*axis))
        })
    }
}
