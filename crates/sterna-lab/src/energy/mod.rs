//! A device's cost of an exchange, and its battery's life.
//!
//! This module measures no energy. It applies a radio's states and timers to a time line of
//! packets; each state has the power of a [source](constants). The result is as good as the
//! constants, which differ between sources by more than transports do. So it always shows the
//! parts, and always several sets.

pub mod battery;
pub mod constants;
pub mod exchange;
pub mod radio;
pub mod trace;

use serde::Serialize;

use battery::{RakhmatovVrudhula, linear_life_s, totals};
use constants::{RV_BETA, SUPPLY_V};
use radio::{Conditions, Radio, RadioPacket, Segment, State};

/// A time line's cost under one set of constants.
#[derive(Clone, Debug, Serialize)]
pub struct Estimate {
    /// The set's name.
    pub constants: String,
    /// Time and energy of each state in one period.
    pub states: Vec<StateCost>,
    /// Energy of the CPU in one period, in joules.
    pub cpu_j: f64,
    /// Energy of one period, in joules.
    pub period_j: f64,
    /// Mean power, in watts.
    pub mean_w: f64,
    /// Life of a battery that gives all it has, in days.
    pub linear_days: f64,
    /// Life of the battery of Rakhmatov and Vrudhula, in days.
    pub rakhmatov_vrudhula_days: f64,
}

/// One state's part.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct StateCost {
    /// The state.
    pub state: State,
    /// Seconds in one period.
    pub seconds: f64,
    /// Joules in one period.
    pub joules: f64,
}

const SECONDS_PER_DAY: f64 = 86_400.0;
const JOULES_PER_WH: f64 = 3600.0;

/// A radio's energy during one period.
#[derive(Clone, Debug)]
pub struct Period {
    /// Time and energy of each state, without the CPU's.
    pub states: Vec<StateCost>,
    /// Length, in seconds.
    pub seconds: f64,
    /// Energy, the CPU's included, in joules.
    pub joules: f64,
    segments: Vec<Segment>,
}

/// Applies a radio's states to one exchange in a period.
///
/// `cpu_j` is the CPU's energy per period, which is drawn while the radio transmits first.
#[must_use]
pub fn period(
    radio: &Radio,
    packets: &[RadioPacket],
    period_s: f64,
    conditions: &Conditions,
    cpu_j: f64,
) -> Period {
    let mut segments = radio.cycle(packets, period_s, conditions);
    let mut states: Vec<StateCost> = Vec::new();
    for segment in &segments {
        let joules = segment.seconds * segment.watts;
        match states.iter_mut().find(|cost| cost.state == segment.state) {
            Some(cost) => {
                cost.seconds += segment.seconds;
                cost.joules += joules;
            }
            None => states.push(StateCost {
                state: segment.state,
                seconds: segment.seconds,
                joules,
            }),
        }
    }
    states.sort_by_key(|cost| cost.state);
    add_cpu(&mut segments, cpu_j);
    let (seconds, joules) = totals(&segments);
    Period {
        states,
        seconds,
        joules,
        segments,
    }
}

/// The cost of one exchange in each [`period`], and the life of batteries with it.
///
/// That steps through periods until the battery's state repeats: seconds of CPU time where they are
/// short.
#[must_use]
pub fn estimate(
    constants: &str,
    radio: &Radio,
    packets: &[RadioPacket],
    period_s: f64,
    conditions: &Conditions,
    cpu_j: f64,
    capacity_wh: f64,
) -> Estimate {
    let period = period(radio, packets, period_s, conditions, cpu_j);
    let capacity_j = capacity_wh * JOULES_PER_WH;
    let alpha_ma_min = capacity_wh / SUPPLY_V * 1000.0 * 60.0;
    let battery = RakhmatovVrudhula::new(alpha_ma_min, RV_BETA);
    Estimate {
        constants: constants.to_owned(),
        cpu_j,
        period_j: period.joules,
        mean_w: period.joules / period.seconds,
        linear_days: linear_life_s(capacity_j, &period.segments) / SECONDS_PER_DAY,
        rakhmatov_vrudhula_days: battery.life_s(&period.segments) / SECONDS_PER_DAY,
        states: period.states,
    }
}

/// Adds the CPU's energy to the first segment that lasts.
fn add_cpu(segments: &mut [Segment], cpu_j: f64) {
    if let Some(first) = segments.iter_mut().find(|segment| segment.seconds > 0.0) {
        first.watts += cpu_j / first.seconds;
    }
}

#[cfg(test)]
mod hand_tests;
#[cfg(test)]
mod tests;
