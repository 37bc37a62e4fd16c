//! From a campaign's grids to the runs that have to be made.

use std::time::Duration;

use super::{Axis, Campaign, Direction, Filter, Grid, Transport, Workload, WorkloadKind};
use crate::link::{Direction as LinkDirection, LinkSettings, Loss, Random};
use crate::measure::{Sample, Verdict};
use crate::profile::Profile;
use crate::quantity;

/// A round trip's time besides the link: programs, wake-ups.
const OVERHEAD_S: f64 = 0.001;
/// Time to start and end the programs of a run.
const START_S: f64 = 0.5;
/// Approximate bytes of a connection besides its messages.
const CONNECTION_BYTES: f64 = 3_000.0;
/// CPU time of a message in stop-and-wait, as a part of that in other workloads. Nobody listens beside
/// the broker, and nothing queues.
const STOP_AND_WAIT_SHARE: f64 = 0.35;
/// Until the devices of a fleet notice that their broker had no power, and their waits are over.
const RECOVERY_OF_FLEET_S: f64 = 15.0;
/// A lost packet costs this, and twice the round trip, on average: probe timeouts and backoff.
const RECOVERY_S: f64 = 0.3;

/// All runs of a campaign.
#[derive(Clone, Debug)]
pub struct Plan {
    /// In the order of the file.
    pub runs: Vec<Run>,
}

/// One measurement of one cell.
#[derive(Clone, Debug)]
pub struct Run {
    /// The grid's name.
    pub grid: String,
    /// The profile's name.
    pub link: String,
    /// As the campaign's file writes it.
    pub loss: String,
    /// Addition to the profile's delay, as in the file; empty without this axis.
    pub delay: String,
    /// Rate that replaces the profile's; empty without this axis.
    pub rate: String,
    /// The device's connection.
    pub transport: Transport,
    /// Quality of service.
    pub qos: u8,
    /// Length of messages.
    pub payload_bytes: u32,
    /// As the campaign's file writes it.
    pub interval: String,
    /// The same in nanoseconds: the period of messages.
    pub period_ns: u64,
    /// The time between messages as the run has it: shorter than the period where the workload says so.
    pub interval_ns: u64,
    /// From 0.
    pub repetition: u32,
    /// The link with its loss.
    pub settings: LinkSettings,
    /// Seed of the link's decisions. All transports share it: each repetition meets the same
    /// losses, packet for packet, with any transport.
    pub seed: u64,
    /// The device's workload.
    pub workload: Workload,
    /// Whether no other run may run.
    pub alone: bool,
}

impl Plan {
    /// The runs of a campaign; of some grids alone if any are named. Rivals without a program have none.
    ///
    /// # Errors
    ///
    /// If there is no such grid, or a link makes no sense.
    pub fn new(
        campaign: &Campaign,
        quick: bool,
        seed: u64,
        only_grids: &[String],
    ) -> Result<Self, String> {
        for name in only_grids {
            if campaign.grid(name).is_none() {
                return Err(format!(
                    "no grid of {} is called `{name}`; there are: {}",
                    campaign.name,
                    campaign
                        .grids
                        .iter()
                        .map(|grid| grid.name.as_str())
                        .collect::<Vec<_>>()
                        .join(", ")
                ));
            }
        }
        let mut runs = Vec::new();
        for (index, grid) in campaign.grids.iter().enumerate() {
            if !only_grids.is_empty() && !only_grids.contains(&grid.name) {
                continue;
            }
            let grid = if quick { grid.quick() } else { grid.clone() };
            expand(campaign, &grid, seed, index as u64, &mut runs)
                .map_err(|error| format!("grid `{}`: {error}", grid.name))?;
        }
        Ok(Self { runs })
    }
}

/// Repetitions are outermost: after an interruption the campaign has fewer of them.
fn expand(
    campaign: &Campaign,
    grid: &Grid,
    seed: u64,
    grid_index: u64,
    runs: &mut Vec<Run>,
) -> Result<(), String> {
    for repetition in 0..grid.repetitions {
        for link in links(grid)? {
            let mut seeds = vec![seed, grid_index];
            seeds.extend(&link.place);
            seeds.push(u64::from(repetition));
            let run_seed = Random::new(&seeds).next_u64();
            for interval in &grid.interval {
                let period_ns = quantity::time_ns(interval)?;
                let shortened = grid.workload.shortened_to.as_deref();
                let interval_ns = shortened.map_or(Ok(period_ns), quantity::time_ns)?;
                for messages in grid.counts() {
                    for payload_bytes in &grid.payload_bytes {
                        for qos in &grid.qos {
                            for name in &grid.transports {
                                let transport = campaign
                                    .transport(name)
                                    .ok_or_else(|| format!("no transport is called `{name}`"))?;
                                if transport.is_rival() && transport.device.is_none() {
                                    continue;
                                }
                                runs.push(Run {
                                    grid: grid.name.clone(),
                                    link: link.profile.clone(),
                                    loss: link.loss.clone(),
                                    delay: link.delay.clone(),
                                    rate: link.rate.clone(),
                                    transport: transport.clone(),
                                    qos: transport.qos.unwrap_or(*qos),
                                    payload_bytes: *payload_bytes,
                                    interval: interval.clone(),
                                    period_ns,
                                    interval_ns,
                                    repetition,
                                    settings: link.settings.clone(),
                                    seed: run_seed,
                                    workload: Workload {
                                        messages,
                                        ..grid.workload.clone()
                                    },
                                    alone: grid.alone,
                                });
                            }
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// A link of a grid.
struct Link {
    profile: String,
    loss: String,
    delay: String,
    rate: String,
    settings: LinkSettings,
    /// Its place on the axes, which makes its seed different from the others.
    place: Vec<u64>,
}

/// All combinations of the properties of a link.
fn links(grid: &Grid) -> Result<Vec<Link>, String> {
    let mut links = Vec::new();
    for (link_index, profile) in grid.links.iter().enumerate() {
        for (loss_index, loss) in grid.loss.iter().enumerate() {
            for (delay_index, delay) in grid.delay.iter().enumerate() {
                for (rate_index, rate) in grid.rate.iter().enumerate() {
                    let mut settings = settings(profile, loss, grid.loss_direction)?;
                    shape(&mut settings, delay, rate, grid.shape_direction)?;
                    let mut place = vec![link_index as u64, loss_index as u64];
                    // Grids without these axes keep the seeds that they have always had.
                    if grid.delay.len() > 1 || grid.rate.len() > 1 {
                        place.extend([delay_index as u64, rate_index as u64]);
                    }
                    links.push(Link {
                        profile: profile.clone(),
                        loss: loss.clone(),
                        delay: delay.clone(),
                        rate: rate.clone(),
                        settings,
                        place,
                    });
                }
            }
        }
    }
    Ok(links)
}

/// Adds a delay to a link, and sets its rate.
fn shape(
    settings: &mut LinkSettings,
    delay: &str,
    rate: &str,
    direction: Direction,
) -> Result<(), String> {
    let pipes = match direction {
        Direction::Up => vec![&mut settings.up],
        Direction::Both => vec![&mut settings.up, &mut settings.down],
    };
    for pipe in pipes {
        if !delay.is_empty() {
            pipe.delay_ns += quantity::time_ns(delay)?;
        }
        if !rate.is_empty() {
            pipe.rate_bps = quantity::rate_bps(rate)?;
        }
    }
    settings.validate().map_err(|error| error.to_string())
}

fn settings(link: &str, loss: &str, direction: Direction) -> Result<LinkSettings, String> {
    let mut settings = Profile::link(link)?;
    let loss = quantity::loss(loss)?;
    // A profile's own loss stays if no other is named.
    if loss.expected() > 0.0 {
        settings.up.loss = loss.clone();
        settings.down.loss = match direction {
            Direction::Both => loss,
            Direction::Up => Loss::None,
        };
    }
    settings.validate().map_err(|error| error.to_string())?;
    Ok(settings)
}

impl Run {
    /// Its unique key within its campaign.
    #[must_use]
    pub fn key(&self) -> String {
        Sample::of(self, "", 0, Verdict::Sound).key()
    }

    /// Its value on an axis, as samples name it.
    #[must_use]
    pub fn value(&self, axis: Axis) -> String {
        match axis {
            Axis::Link => self.link.clone(),
            Axis::Loss => self.loss.clone(),
            Axis::Transport => self.transport.name.clone(),
            Axis::Qos => self.qos.to_string(),
            Axis::PayloadBytes => self.payload_bytes.to_string(),
            Axis::Interval => self.interval.clone(),
            Axis::Delay => self.delay.clone(),
            Axis::Rate => self.rate.clone(),
            Axis::Messages => self.workload.messages.to_string(),
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

    fn up_bps(&self) -> f64 {
        let rate_bps = self.settings.rate_bps(LinkDirection::Up);
        rate_bps.map_or(f64::INFINITY, |rate| rate as f64)
    }

    fn rtt_s(&self) -> f64 {
        self.settings.rtt_ns() as f64 / 1e9 + OVERHEAD_S
    }

    /// Average time that a lost packet adds to an exchange.
    fn recovery_s(&self) -> f64 {
        let loss = self.settings.expected_loss(LinkDirection::Up)
            + self.settings.expected_loss(LinkDirection::Down);
        2.0 * loss * 2.0_f64.mul_add(self.rtt_s(), RECOVERY_S)
    }

    /// Approximate duration: for the order, the time left and the limit, not for results.
    #[must_use]
    pub fn expected(&self) -> Duration {
        let messages = f64::from(self.workload.messages);
        let exchange_s = self.rtt_s() + self.recovery_s();
        let seconds = match self.workload.kind {
            WorkloadKind::OpenLoop => {
                let rate_bps = self.up_bps();
                let airtime_s = f64::from(self.payload_bytes) * 8.0 / rate_bps;
                let interval_s = self.interval_ns as f64 / 1e9;
                messages.mul_add(interval_s.max(airtime_s), 4.0 * exchange_s)
            }
            WorkloadKind::StopAndWait => (messages + 4.0) * exchange_s,
            WorkloadKind::Fleet => self.expected_of_fleet_s(),
            WorkloadKind::ConnectPublish | WorkloadKind::ConnectReceive => {
                let bits = messages.mul_add(f64::from(self.payload_bytes), CONNECTION_BYTES) * 8.0;
                let rate_bps = self.up_bps();
                let waiting_s = messages * self.interval_ns as f64 / 1e9;
                let round_trips = f64::from(self.workload.messages - 1) + 5.0;
                let round_trips = if self.interval_ns > 0 {
                    5.0
                } else {
                    round_trips
                };
                f64::from(self.workload.connections)
                    * round_trips.mul_add(exchange_s, waiting_s + bits / rate_bps)
            }
        };
        Duration::from_secs_f64(seconds + START_S)
    }

    /// All connections share the link, and connect twice if the broker's power is cut.
    fn expected_of_fleet_s(&self) -> f64 {
        let fleet = self.workload.fleet.clone().unwrap_or_default();
        let bits = f64::from(self.workload.connections) * CONNECTION_BYTES * 8.0;
        let down_bps = self.settings.rate_bps(LinkDirection::Down);
        let down_bps = down_bps.map_or(f64::INFINITY, |rate| rate as f64);
        let connecting_s = 10.0_f64.mul_add(self.rtt_s(), bits / down_bps);
        let publishing_s = f64::from(self.workload.messages) * self.interval_ns as f64 / 1e9;
        let cut_s = fleet.power_cut_ns().map_or(0.0, |outage_ns| {
            connecting_s + outage_ns as f64 / 1e9 + RECOVERY_OF_FLEET_S
        });
        connecting_s + publishing_s + cut_s + fleet.spread_ns() as f64 / 1e9
    }

    /// After which it is given up.
    #[must_use]
    pub fn time_limit(&self) -> Duration {
        self.expected() * 4 + Duration::from_secs(60)
    }

    /// Approximate messages a second that it keeps the machine busy with.
    #[must_use]
    pub fn messages_per_s(&self) -> f64 {
        let messages = f64::from(self.workload.messages * self.workload.connections);
        let messages = match self.workload.kind {
            WorkloadKind::StopAndWait => messages * STOP_AND_WAIT_SHARE,
            _ => messages,
        };
        // A run costs something even while it waits, and starting it costs most.
        (messages / self.expected().as_secs_f64()).max(1.0)
    }
}
