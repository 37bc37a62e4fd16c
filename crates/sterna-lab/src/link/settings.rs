//! Settings of a link.

use std::fmt;

use serde::Serialize;

use super::Direction;
use super::trace::Trace;

/// Smallest and largest rate, in bits per second.
const RATES_BPS: (u64, u64) = (1_000, 100_000_000_000);
/// Longest delay in one direction, in nanoseconds: an hour.
const MAX_DELAY_NS: u64 = 3_600_000_000_000;
/// Longest packet that can be let through, in bytes.
const MAX_MTU_BYTES: u32 = 65_535;
/// Most overhead on a packet, in bytes.
const MAX_OVERHEAD_BYTES: u32 = 1_000;
/// Longest explicit pattern of losses, in packets.
const MAX_PATTERN_PACKETS: usize = 1_000_000;
/// Most times that a schedule takes a link down.
const MAX_INTERVALS: usize = 10_000;
/// Least packets of full size in a queue whose length is a multiple of the bandwidth-delay product. A
/// short link then does not drop packets that come in a pair.
const MIN_BDP_QUEUE_PACKETS: u64 = 2;

/// Most hops of a link.
pub const MAX_HOPS: usize = 8;

/// Both directions of a link, and of the links behind it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LinkSettings {
    /// Client to server.
    pub up: PipeSettings,
    /// Server to client.
    pub down: PipeSettings,
    /// Further hops, in the order from the client to the server. Each has a queue, losses and delays of its own,
    /// and forwards whole packets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub behind: Vec<Hop>,
}

/// Both directions of a hop behind the first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Hop {
    /// Client to server.
    pub up: PipeSettings,
    /// Server to client.
    pub down: PipeSettings,
}

impl LinkSettings {
    /// The same in both directions.
    #[must_use]
    pub fn symmetric(pipe: PipeSettings) -> Self {
        Self {
            up: pipe.clone(),
            down: pipe,
            behind: Vec::new(),
        }
    }

    /// This link, and another one behind it.
    #[must_use]
    pub fn followed_by(mut self, other: Self) -> Self {
        self.behind.push(Hop {
            up: other.up,
            down: other.down,
        });
        self.behind.extend(other.behind);
        self
    }

    /// Each hop by itself, in the order from the client to the server.
    pub fn hops(&self) -> impl Iterator<Item = Self> {
        let first = (&self.up, &self.down);
        let behind = self.behind.iter().map(|hop| (&hop.up, &hop.down));
        std::iter::once(first).chain(behind).map(|(up, down)| Self {
            up: up.clone(),
            down: down.clone(),
            behind: Vec::new(),
        })
    }

    /// One direction of all hops, in the order in which its packets meet them.
    #[must_use]
    pub fn pipes(&self, direction: Direction) -> Vec<&PipeSettings> {
        let behind = self.behind.iter();
        match direction {
            Direction::Up => std::iter::once(&self.up)
                .chain(behind.map(|hop| &hop.up))
                .collect(),
            Direction::Down => behind
                .rev()
                .map(|hop| &hop.down)
                .chain([&self.down])
                .collect(),
        }
    }

    /// One direction of all hops, in the order from the client to the server.
    #[must_use]
    pub fn hops_of(&self, direction: Direction) -> Vec<&PipeSettings> {
        let mut pipes = self.pipes(direction);
        if direction == Direction::Down {
            pipes.reverse();
        }
        pipes
    }

    /// The same with every direction of every hop changed.
    #[must_use]
    pub fn map(&self, change: impl Fn(&PipeSettings) -> PipeSettings) -> Self {
        let behind = self.behind.iter().map(|hop| Hop {
            up: change(&hop.up),
            down: change(&hop.down),
        });
        Self {
            up: change(&self.up),
            down: change(&self.down),
            behind: behind.collect(),
        }
    }

    /// The longest packet that passes in both directions, in bytes.
    #[must_use]
    pub fn mtu_bytes(&self) -> u32 {
        self.behind
            .iter()
            .flat_map(|hop| [&hop.up, &hop.down])
            .fold(self.up.mtu_bytes.min(self.down.mtu_bytes), |least, pipe| {
                least.min(pipe.mtu_bytes)
            })
    }

    /// The rate of the slowest hop in one direction, in bits per second; none where nothing limits it.
    #[must_use]
    pub fn rate_bps(&self, direction: Direction) -> Option<u64> {
        let rates = self.pipes(direction).into_iter();
        rates.filter_map(|pipe| pipe.rate_bps).min()
    }

    /// The part of the packets that is lost in one direction in the long run.
    #[must_use]
    pub fn expected_loss(&self, direction: Direction) -> f64 {
        let pipes = self.pipes(direction).into_iter();
        1.0 - pipes
            .map(|pipe| 1.0 - pipe.loss.expected())
            .product::<f64>()
    }

    /// The round trip of an empty packet on an idle link, without jitter: the sum of all hops.
    #[must_use]
    pub fn rtt_ns(&self) -> u64 {
        let all = Direction::BOTH
            .into_iter()
            .flat_map(|direction| self.pipes(direction));
        all.fold(0, |sum: u64, pipe| sum.saturating_add(pipe.delay_ns))
    }

    /// Whether all values are in their ranges.
    ///
    /// # Errors
    ///
    /// The first value that is not.
    pub fn validate(&self) -> Result<(), SettingsError> {
        if self.behind.len() >= MAX_HOPS {
            return Err(SettingsError("a link has 8 hops at the most"));
        }
        for direction in Direction::BOTH {
            for pipe in self.pipes(direction) {
                pipe.validate()?;
            }
        }
        Ok(())
    }
}

/// One direction of a link. The default lets everything through at once.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PipeSettings {
    /// Bits per second, 1 kbit/s to 100 Gbit/s; without one, a packet takes no time.
    pub rate_bps: Option<u64>,
    /// Moments at which the transmitter works, instead of a rate; without a rate then.
    pub trace: Option<Trace>,
    /// Time of a packet behind the transmitter, up to an hour.
    pub delay_ns: u64,
    /// Variation of the delay from packet to packet.
    pub jitter: Jitter,
    /// Whether jitter may let packets overtake each other, as netem does. Otherwise packets wait
    /// for the one before if their distance is shorter than the jitter. That makes the mean delay
    /// longer than the setting; [`Counters::held_back`](super::Counters::held_back) counts them.
    pub jitter_reorders: bool,
    /// Room for packets that wait for the transmitter. Without a rate no packet waits.
    pub queue: Queue,
    /// Bytes on the link that each packet has beyond its own, up to 1000. Ethernet's header is 14 as
    /// netem counts it, PPP is 2 as in ns-3.
    pub overhead_bytes: u32,
    /// Which packets are lost.
    pub loss: Loss,
    /// Where they are lost.
    pub loss_at: LossAt,
    /// Probability that a packet arrives twice.
    pub duplicate: f64,
    /// Probability that one bit of a packet is changed.
    pub corrupt: f64,
    /// Packets that arrive later than those behind them.
    pub reorder: Reorder,
    /// Longest packet that passes, 68 to 65535 bytes.
    pub mtu_bytes: u32,
    /// When the link is down.
    pub schedule: Schedule,
}

impl Default for PipeSettings {
    fn default() -> Self {
        Self {
            rate_bps: None,
            trace: None,
            delay_ns: 0,
            jitter: Jitter::None,
            jitter_reorders: false,
            queue: Queue::Packets(1000),
            overhead_bytes: 0,
            loss: Loss::None,
            loss_at: LossAt::Entry,
            duplicate: 0.0,
            corrupt: 0.0,
            reorder: Reorder::default(),
            mtu_bytes: 1500,
            schedule: Schedule::default(),
        }
    }
}

impl PipeSettings {
    /// Whether all values are in their ranges.
    ///
    /// # Errors
    ///
    /// The first value that is not.
    pub fn validate(&self) -> Result<(), SettingsError> {
        let check = |holds: bool, text: &'static str| {
            if holds {
                Ok(())
            } else {
                Err(SettingsError(text))
            }
        };
        check(
            self.rate_bps
                .is_none_or(|rate| (RATES_BPS.0..=RATES_BPS.1).contains(&rate)),
            "a rate is from 1 kbit/s to 100 Gbit/s",
        )?;
        check(
            self.rate_bps.is_none() || self.trace.is_none(),
            "a direction has a rate or a delivery trace",
        )?;
        check(
            self.delay_ns <= MAX_DELAY_NS,
            "a delay is an hour at the most",
        )?;
        check(
            self.jitter.width_ns() <= MAX_DELAY_NS,
            "a jitter is an hour at the most",
        )?;
        check(
            self.reorder.extra_ns <= MAX_DELAY_NS,
            "a reordered packet is an hour late at the most",
        )?;
        check(
            (68..=MAX_MTU_BYTES).contains(&self.mtu_bytes),
            "an MTU is from 68 to 65535 bytes",
        )?;
        check(
            self.overhead_bytes <= MAX_OVERHEAD_BYTES,
            "the overhead is 1000 bytes a packet at the most",
        )?;
        check(
            [self.duplicate, self.corrupt, self.reorder.probability]
                .iter()
                .all(|p| is_probability(*p)),
            "a probability is from 0 to 1",
        )?;
        check(
            match &self.queue {
                Queue::Bytes(bytes) => *bytes > 0,
                Queue::Packets(packets) => *packets > 0,
                Queue::Bdp(multiple) => *multiple > 0.0 && *multiple <= 1000.0,
            },
            "a queue holds something, and 1000 bandwidth-delay products at the most",
        )?;
        match &self.loss {
            Loss::None => {}
            Loss::Independent { probability } => {
                check(is_probability(*probability), "a loss is from 0 to 1")?;
            }
            Loss::GilbertElliott {
                to_bad,
                to_good,
                loss_good,
                loss_bad,
            } => {
                check(
                    [to_bad, to_good, loss_good, loss_bad]
                        .iter()
                        .all(|p| is_probability(**p)),
                    "the probabilities of a Gilbert-Elliott loss are from 0 to 1",
                )?;
                check(
                    *to_bad + *to_good > 0.0,
                    "a Gilbert-Elliott loss must be able to change its state",
                )?;
            }
            Loss::Burst {
                probability,
                packets,
            } => {
                check(is_probability(*probability), "a loss is from 0 to 1")?;
                check(*packets > 0, "a burst has one packet at least")?;
            }
            Loss::Pattern { lost, .. } => check(
                (1..=MAX_PATTERN_PACKETS).contains(&lost.len()),
                "a pattern has one to a million packets",
            )?,
        }
        self.schedule.validate()
    }

    /// The rate, or the mean one of a trace.
    fn mean_bps(&self) -> Option<u64> {
        let of_trace = || self.trace.as_ref().map(Trace::mean_bps);
        self.rate_bps.or_else(of_trace)
    }

    /// The queue's limits in bytes and packets, given the round trip of the whole link.
    pub(crate) fn queue_limits(&self, rtt_ns: u64) -> (u64, u64) {
        match self.queue {
            Queue::Bytes(bytes) => (bytes, u64::MAX),
            Queue::Packets(packets) => (u64::MAX, packets),
            Queue::Bdp(multiple) => {
                let bdp = bdp_bytes(self.mean_bps().unwrap_or(0), rtt_ns) as f64 * multiple;
                let floor = MIN_BDP_QUEUE_PACKETS
                    * (u64::from(self.mtu_bytes) + u64::from(self.overhead_bytes));
                (floor.max(whole(bdp)), u64::MAX)
            }
        }
    }
}

/// Bytes that are under way on a full link.
pub(super) fn bdp_bytes(rate_bps: u64, rtt_ns: u64) -> u64 {
    u64::try_from(u128::from(rate_bps) * u128::from(rtt_ns) / 8_000_000_000).unwrap_or(u64::MAX)
}

/// The nearest whole number of a value that is not negative.
#[allow(
    clippy::cast_sign_loss,
    reason = "callers have values from 0 up, and the cast saturates"
)]
pub(super) fn whole(value: f64) -> u64 {
    value.round() as u64
}

fn is_probability(value: f64) -> bool {
    (0.0..=1.0).contains(&value)
}

/// Difference between a packet's delay and the set delay.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Jitter {
    /// Not at all.
    #[default]
    None,
    /// By anything from minus to plus this much, all equally likely.
    Uniform {
        /// Half of the width.
        plus_minus_ns: u64,
    },
    /// By a normal distribution around the delay, cut off at four standard deviations.
    Normal {
        /// The standard deviation.
        deviation_ns: u64,
    },
    /// By a Pareto distribution (Lomax, shape 3) on top of the delay. The addition is mostly little,
    /// rarely much, and never more than 50 times the mean.
    Pareto {
        /// Mean of the addition.
        mean_ns: u64,
    },
}

impl Jitter {
    /// The number that describes it.
    #[must_use]
    pub const fn width_ns(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Uniform { plus_minus_ns } => plus_minus_ns,
            Self::Normal { deviation_ns } => deviation_ns,
            Self::Pareto { mean_ns } => mean_ns,
        }
    }
}

/// Room for packets that wait for the transmitter.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Queue {
    /// Bytes, with the overhead of each packet.
    Bytes(u64),
    /// Packets.
    Packets(u64),
    /// A multiple of the link's content (rate times round trip), and at least two packets of full
    /// size.
    Bdp(f64),
}

/// Which packets are lost.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// None.
    #[default]
    None,
    /// Each by itself.
    Independent {
        /// Probability.
        probability: f64,
    },
    /// A good and a bad state, each with its own loss; the state may change before each packet.
    GilbertElliott {
        /// From good to bad.
        to_bad: f64,
        /// From bad to good.
        to_good: f64,
        /// Loss in the good state.
        loss_good: f64,
        /// Loss in the bad state.
        loss_bad: f64,
    },
    /// Several in a row.
    Burst {
        /// That a burst begins with a packet outside of one.
        probability: f64,
        /// Number of packets in a burst.
        packets: u32,
    },
    /// Exactly these.
    Pattern {
        /// For each packet whether it is lost.
        lost: Vec<bool>,
        /// Whether the pattern starts again behind its end; otherwise nothing more is lost.
        repeat: bool,
    },
}

impl Loss {
    /// The part of the packets that is lost in the long run.
    #[must_use]
    pub fn expected(&self) -> f64 {
        match self {
            Self::None | Self::Pattern { repeat: false, .. } => 0.0,
            Self::Independent { probability } => *probability,
            Self::GilbertElliott {
                to_bad,
                to_good,
                loss_good,
                loss_bad,
            } => {
                let bad = to_bad / (to_bad + to_good);
                bad.mul_add(*loss_bad, (1.0 - bad) * loss_good)
            }
            Self::Burst {
                probability,
                packets,
            } => {
                // Between two bursts (1 - p) / p packets pass on average.
                let lost = f64::from(*packets) * probability;
                if lost > 0.0 {
                    lost / (lost + 1.0 - probability)
                } else {
                    0.0
                }
            }
            Self::Pattern { lost, repeat: true } => {
                lost.iter().filter(|lost| **lost).count() as f64 / lost.len().max(1) as f64
            }
        }
    }

    /// Rate per packet of events that lose one or several packets in a row.
    #[must_use]
    pub fn events_per_packet(&self) -> f64 {
        match self {
            Self::GilbertElliott {
                to_bad, to_good, ..
            } => to_bad * to_good / (to_bad + to_good),
            Self::Burst { packets, .. } => self.expected() / f64::from(*packets),
            _ => self.expected(),
        }
    }

    /// Factor on the variance of the measured loss, compared with independent losses. Losses that
    /// come together say less about the mean.
    #[must_use]
    pub fn variance_factor(&self) -> f64 {
        match self {
            Self::GilbertElliott {
                to_bad, to_good, ..
            } => {
                let memory = (1.0 - to_bad - to_good).clamp(0.0, 0.999_999);
                (1.0 + memory) / (1.0 - memory)
            }
            Self::Burst { packets, .. } => f64::from(*packets),
            _ => 1.0,
        }
    }
}

/// Where packets are lost.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LossAt {
    /// Before the queue: a lost packet takes no time of the transmitter. As netem does.
    #[default]
    Entry,
    /// Behind the transmitter, as on the air. As ns-3's error models do.
    Exit,
}

/// Packets that arrive late, and let those behind them pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Reorder {
    /// Probability.
    pub probability: f64,
    /// Additional delay.
    pub extra_ns: u64,
}

/// A time from a moment up to, and without, another.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub struct Interval {
    /// The first moment.
    pub from_ns: u64,
    /// The first moment after.
    pub to_ns: u64,
}

/// Fate of packets that come while the link is down.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Down {
    /// They are dropped. Earlier packets still arrive.
    #[default]
    Drop,
    /// They wait in the queue, as far as it has room, until the link is up.
    Hold,
}

/// When a link is down.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Schedule {
    /// When, since the link's start: in order, without overlap.
    pub down: Vec<Interval>,
    /// After this time it all starts again; 0 for never.
    pub period_ns: u64,
    /// Fate of packets meanwhile.
    pub when_down: Down,
}

impl Schedule {
    fn validate(&self) -> Result<(), SettingsError> {
        if self.down.len() > MAX_INTERVALS {
            return Err(SettingsError("a schedule has 10000 intervals at the most"));
        }
        let mut end_ns = 0;
        for interval in &self.down {
            if interval.from_ns < end_ns || interval.to_ns <= interval.from_ns {
                return Err(SettingsError(
                    "the intervals of a schedule are in order, not empty, and apart",
                ));
            }
            end_ns = interval.to_ns;
        }
        if self.period_ns != 0 && self.period_ns <= end_ns {
            return Err(SettingsError(
                "a schedule's period is longer than all its intervals",
            ));
        }
        Ok(())
    }

    /// From when on the link is up, at or after a moment; the moment itself when it is up then.
    #[must_use]
    pub fn up_from_ns(&self, now_ns: u64) -> u64 {
        let (start_ns, offset_ns) = match self.period_ns {
            0 => (0, now_ns),
            period => (now_ns - now_ns % period, now_ns % period),
        };
        let index = self.down.partition_point(|down| down.to_ns <= offset_ns);
        match self.down.get(index) {
            Some(down) if down.from_ns <= offset_ns => {
                // Two intervals may touch.
                let mut to_ns = down.to_ns;
                for next in &self.down[index + 1..] {
                    if next.from_ns != to_ns {
                        break;
                    }
                    to_ns = next.to_ns;
                }
                start_ns + to_ns
            }
            _ => now_ns,
        }
    }
}

/// A setting outside its range.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SettingsError(pub(super) &'static str);

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for SettingsError {}
