//! The link of a Starlink dish.
//!
//! Published, and kept here:
//!
//! - The network reassigns satellites every 15 seconds. Throughput is steady within such an interval,
//!   and differs from one to the next. At the boundary it drops for less than a second. Mohan et al., "A
//!   Multifaceted Look at Starlink Performance", WWW 2024, section 6 and figure 16b.
//! - Downloads have 100 to 250 Mbit/s, 178 in the median and 386 at the most. Uploads have 17 Mbit/s in
//!   the median and 64 at the most. These are tests of one dish in Belgium, each half hour. Michel et
//!   al., "A First Look at Starlink Performance", IMC 2022, section on throughput.
//! - Delay is raised for some 140 ms at the beginning of an interval. Casparsen et al., "Statistical
//!   Characterization and Prediction of E2E Latency over LEO Satellite Networks", arXiv 2601.08439.
//! - A second has 750 frames. Humphreys et al., "Signal Structure of the Starlink Ku-Band Downlink",
//!   IEEE TAES 2023.
//!
//! The rest is this project's decision, and `docs/lab.md` says so.

use super::super::Direction;
use super::super::random::Random;
use super::super::settings::whole;
use super::{MAX_OPPORTUNITIES, OPPORTUNITY_BYTES, TOO_LONG, Trace};

const INTERVAL_MS: u64 = 15_000;
/// Three frames take four milliseconds.
const FRAMES_PER_S: f64 = 750.0;
/// A pause of this length raises the delay for as long as published.
const MOST_PAUSE_MS: f64 = 140.0;

/// Tells the random streams of a seed apart.
const LEVELS: u64 = 1;
const PAUSES: u64 = 2;

/// A quarter of the median: then 5 and 95 percent of downloads are at 104 and 252 Mbit/s.
const DEVIATION_OF_MEDIAN: f64 = 0.25;

/// The published median of a direction's rate, and its highest.
const fn median_and_most_bps(direction: Direction) -> (f64, f64) {
    match direction {
        Direction::Up => (17e6, 64e6),
        Direction::Down => (178e6, 386e6),
    }
}

/// The rate of the next interval.
fn next_level_bps(direction: Direction, random: &mut Random) -> f64 {
    let (median_bps, most_bps) = median_and_most_bps(direction);
    loop {
        let deviations = random.normal() * DEVIATION_OF_MEDIAN;
        let level_bps = deviations.mul_add(median_bps, median_bps);
        if level_bps > 0.0 && level_bps <= most_bps {
            return level_bps;
        }
    }
}

impl Trace {
    /// Makes a trace of a Starlink dish. Each interval of 15 seconds has a level, and a pause at its
    /// beginning. Packets come at the ends of frames. Both directions of a seed pause together.
    ///
    /// # Errors
    ///
    /// More than ten million moments, which are some eleven minutes of download.
    pub fn starlink(direction: Direction, seconds: u32, seed: u64) -> Result<Self, String> {
        let mut levels = Random::new(&[seed, LEVELS, direction as u64]);
        let mut pauses = Random::new(&[seed, PAUSES]);
        let period_ms = u64::from(seconds.max(1)) * 1000;
        let mut at_ms = Vec::new();
        for begin_ms in (0..period_ms).step_by(INTERVAL_MS as usize) {
            let end_ms = (begin_ms + INTERVAL_MS).min(period_ms);
            let level_bps = next_level_bps(direction, &mut levels);
            let packets_per_ms = level_bps / (OPPORTUNITY_BYTES * 8 * 1000) as f64;
            let mut now_ms = pauses.unit().mul_add(MOST_PAUSE_MS, begin_ms as f64);
            loop {
                now_ms += levels.exponential() / packets_per_ms;
                let arrives_ms = frame_end_ms(now_ms);
                if arrives_ms > end_ms {
                    break;
                }
                if at_ms.len() == MAX_OPPORTUNITIES {
                    return Err(TOO_LONG.into());
                }
                at_ms.push(arrives_ms);
            }
        }
        if at_ms.last() != Some(&period_ms) {
            // The period is that which was asked for.
            at_ms.push(period_ms);
        }
        Ok(Self::new(at_ms, OPPORTUNITY_BYTES))
    }
}

/// The end of the frame in which this moment is, in whole milliseconds.
fn frame_end_ms(now_ms: f64) -> u64 {
    let frame = whole((now_ms * FRAMES_PER_S / 1000.0).floor()) + 1;
    (frame * 4).div_ceil(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The moments of each interval.
    fn intervals(trace: &Trace) -> Vec<&[u64]> {
        let count = trace.period_ms() / INTERVAL_MS;
        let at = |ms: u64| trace.at_ms.partition_point(|moment| *moment <= ms);
        let of = |n: u64| &trace.at_ms[at(n * INTERVAL_MS)..at((n + 1) * INTERVAL_MS)];
        (0..count).map(of).collect()
    }

    fn mbps(moments: usize, ms: u64) -> f64 {
        (moments as u64 * OPPORTUNITY_BYTES * 8) as f64 / ms as f64 / 1000.0
    }

    /// The rates of many intervals of many seeds, rising, in Mbit/s.
    fn rates(direction: Direction, seeds: u64, seconds: u32) -> Vec<f64> {
        let mut rates: Vec<f64> = (0..seeds)
            .flat_map(|seed| {
                let trace = Trace::starlink(direction, seconds, seed).unwrap();
                let of = |moments: &&[u64]| mbps(moments.len(), INTERVAL_MS);
                intervals(&trace).iter().map(of).collect::<Vec<_>>()
            })
            .collect();
        rates.sort_by(f64::total_cmp);
        rates
    }

    #[test]
    fn the_rates_of_intervals_are_distributed_as_published() {
        for (direction, seeds, seconds, most, [low, median, high]) in [
            (Direction::Down, 10, 450, 386.0, [104.0, 178.0, 252.0]),
            (Direction::Up, 80, 450, 64.0, [10.0, 17.0, 24.0]),
        ] {
            let rates = rates(direction, seeds, seconds);
            let at = |percent: usize| rates[rates.len() * percent / 100];
            // Four standard deviations of a quantile: of the median, and of 5 and 95 percent.
            let chance = 4.0 * (high - low) / 3.29 / (rates.len() as f64).sqrt();
            assert!((at(50) - median).abs() < 1.25 * chance, "{}", at(50));
            assert!((at(5) - low).abs() < 2.1 * chance, "{}", at(5));
            assert!((at(95) - high).abs() < 2.1 * chance, "{}", at(95));
            assert!(rates.iter().all(|rate| *rate <= most * 1.01));
        }
    }

    #[test]
    fn the_rate_is_steady_within_an_interval_and_jumps_at_its_boundary() {
        let mut jumps = Vec::new();
        for seed in 0..20 {
            let trace = Trace::starlink(Direction::Up, 300, seed).unwrap();
            let mut before = None;
            for moments in intervals(&trace) {
                let begin_ms = moments[0] / INTERVAL_MS * INTERVAL_MS;
                // Tenths of a second, as Mohan et al. measured, behind the pause.
                let at = |n: u64| moments.partition_point(|moment| *moment <= begin_ms + n * 100);
                let tenths: Vec<f64> = (2..150).map(|n| (at(n + 1) - at(n)) as f64).collect();
                let packets = tenths.iter().sum::<f64>() / tenths.len() as f64;
                let squares = tenths.iter().map(|tenth| (tenth - packets).powi(2));
                let deviation = (squares.sum::<f64>() / tenths.len() as f64).sqrt();
                // As a Poisson process has: 8 percent in the median, and less down.
                assert!(
                    deviation < 1.35 * packets.sqrt(),
                    "{deviation} of {packets}"
                );
                let mean = mbps(moments.len(), INTERVAL_MS);
                jumps.extend(before.map(|before: f64| (mean - before).abs() / 17.0));
                before = Some(mean);
            }
        }
        jumps.sort_by(f64::total_cmp);
        // Two independent levels of a deviation of a quarter: 0.25 * sqrt(2) * 0.674.
        let median = jumps[jumps.len() / 2];
        assert!((median - 0.238).abs() < 0.06, "{median}");
    }

    #[test]
    fn each_interval_begins_with_a_pause_that_both_directions_share() {
        let mut pauses = Vec::new();
        for seed in 0..20 {
            let of = |direction| {
                let trace = Trace::starlink(direction, 60, seed).unwrap();
                let first = |moments: &&[u64]| moments[0] % INTERVAL_MS;
                intervals(&trace).iter().map(first).collect::<Vec<_>>()
            };
            let (up, down) = (of(Direction::Up), of(Direction::Down));
            for (up, down) in up.iter().zip(&down) {
                // Up, the next packet may be some milliseconds later.
                assert!(up.abs_diff(*down) < 30, "{up} {down}");
            }
            pauses.extend(down);
        }
        let mean = pauses.iter().sum::<u64>() as f64 / pauses.len() as f64;
        // 0 to 140 ms, a millisecond to the frame's end, and four standard deviations of chance.
        assert!((mean - 71.0).abs() < 18.0, "{mean}");
        assert!(pauses.iter().all(|pause| *pause <= 145), "{pauses:?}");
        // Half a percent of the time, and no second-long outage.
        let share = mean / INTERVAL_MS as f64;
        assert!((0.0035..0.006).contains(&share), "{share}");
        let trace = Trace::starlink(Direction::Up, 300, 3).unwrap();
        let gaps = trace.at_ms.windows(2).map(|pair| pair[1] - pair[0]);
        assert!(gaps.max().unwrap() < 200);
    }

    #[test]
    fn packets_come_at_the_ends_of_frames() {
        let trace = Trace::starlink(Direction::Down, 15, 5).unwrap();
        // Frames end at 1.33, 2.67 and 4 ms; so one of four milliseconds has no end.
        let (last, moments) = trace.at_ms.split_last().unwrap();
        assert_eq!(*last, 15_000);
        assert!(moments.iter().all(|moment| moment % 4 != 1));
        let mut ends = moments.to_vec();
        ends.dedup();
        assert!(ends.len() > 11_000, "{}", ends.len());
    }

    #[test]
    fn a_trace_is_what_its_seed_says_and_no_longer_than_is_read() {
        let trace = Trace::starlink(Direction::Up, 40, 7).unwrap();
        assert_eq!(trace, Trace::starlink(Direction::Up, 40, 7).unwrap());
        assert_ne!(trace, Trace::starlink(Direction::Up, 40, 8).unwrap());
        assert_eq!(trace, Trace::parse(&trace.text()).unwrap());
        assert_eq!(trace.period_ms(), 40_000);
        let error = Trace::starlink(Direction::Down, 3600, 7).unwrap_err();
        assert!(error.contains("ten million"), "{error}");
    }
}
