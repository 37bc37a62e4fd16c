//! The link of an NB-IoT device: one transport block, then the next grant.
//!
//! From 3GPP's Release 13, with 15 kHz between subcarriers and one process of retransmission:
//!
//! - Blocks have at most 1000 bits up and 680 down (TS 36.213, tables 16.5.1.2-2 and 16.4.1.5.1-1). A
//!   block up takes 4 to 10 resource units, one down 3 to 10 subframes. A unit of twelve subcarriers takes
//!   1 ms, one of a single subcarrier 8 ms (TS 36.211, table 10.1.2.3-1).
//! - A grant comes in a search space, which begins every `Rmax * G` subframes (TS 36.213, section 16.6;
//!   TS 36.331, `npdcch-NumRepetitions` and `npdcch-StartSF-USS`).
//! - A block up begins 8 ms behind its grant (section 16.5.1). One down begins 4 ms behind, is acknowledged
//!   12 ms behind its end, for 2 ms (sections 16.4.1 and 16.4.2). The next grant comes at least 3 ms later.
//! - Subframes 0 and 5, and 9 of each second frame, are synchronization and broadcast (TS 36.211,
//!   section 10.2). A transmission up pauses for 40 ms after 256 ms (TS 36.211, section 10.1.3.6).
//!
//! The classes of coverage are those of TR 45.820, with coupling losses of 144, 154 and 164 dB. Repetitions
//! are the fewest that a formula of the literature needs; see the test. The rest is this project's
//! decision, and `docs/lab.md` says so.

use super::super::Direction;
use super::super::random::Random;
use super::Trace;

/// Probability that a block has to be sent again.
const BLOCK_ERRORS: f64 = 0.1;
const GRANT_TO_UP_MS: u64 = 8;
const GRANT_TO_DOWN_MS: u64 = 4;
const DOWN_TO_ACKNOWLEDGEMENT_MS: u64 = 12;
const ACKNOWLEDGEMENT_MS: u64 = 2;
const UP_TO_GRANT_MS: u64 = 3;
const LONGEST_UP_MS: u64 = 256;
const UP_GAP_MS: u64 = 40;

/// Coverage of an NB-IoT device by its cell.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Coverage {
    /// A strong signal: no repetitions, twelve subcarriers up.
    Normal,
    /// A coupling loss of 154 dB.
    Robust,
    /// A coupling loss of 164 dB.
    Extreme,
}

/// A grant, which a device gets again and again.
#[derive(Clone, Copy, Debug)]
struct Grant {
    block_bits: u64,
    /// Subframes with data that the block takes, once.
    block_ms: u64,
    block_repetitions: u64,
    /// Subframes that the grant itself takes.
    control_repetitions: u64,
    search_period_ms: u64,
}

impl Grant {
    const fn of(coverage: Coverage, direction: Direction) -> Self {
        let (block_bits, block_ms, block_repetitions) = match (direction, coverage) {
            (Direction::Up, Coverage::Normal) => (1000, 4, 1),
            (Direction::Up, Coverage::Robust) => (1000, 80, 4),
            (Direction::Up, Coverage::Extreme) => (1000, 80, 64),
            (Direction::Down, Coverage::Normal) => (680, 3, 1),
            (Direction::Down, Coverage::Robust) => (680, 10, 4),
            (Direction::Down, Coverage::Extreme) => (680, 10, 32),
        };
        // The shortest periods that are allowed: 4 subframes, and one and a half times the repetitions.
        let (control_repetitions, search_period_ms) = match coverage {
            Coverage::Normal => (1, 4),
            Coverage::Robust => (2, 4),
            Coverage::Extreme => (16, 24),
        };
        Self {
            block_bits,
            block_ms,
            block_repetitions,
            control_repetitions,
            search_period_ms,
        }
    }

    /// The end of the block whose grant a device looks for from `now_ms` on, and the time at which it
    /// looks again.
    fn next(self, direction: Direction, now_ms: u64) -> (u64, u64) {
        let search_ms = now_ms.next_multiple_of(self.search_period_ms);
        let granted_ms = after_down(search_ms, self.control_repetitions);
        let taken_ms = self.block_ms * self.block_repetitions;
        match direction {
            Direction::Up => {
                let end_ms = after_up(granted_ms + GRANT_TO_UP_MS, taken_ms);
                (end_ms, end_ms + UP_TO_GRANT_MS)
            }
            Direction::Down => {
                let end_ms = after_down(granted_ms + GRANT_TO_DOWN_MS, taken_ms);
                let acknowledged_ms = end_ms + DOWN_TO_ACKNOWLEDGEMENT_MS + ACKNOWLEDGEMENT_MS;
                (end_ms, acknowledged_ms + UP_TO_GRANT_MS)
            }
        }
    }
}

impl Trace {
    /// Makes a trace of an NB-IoT device that has its cell for itself, in one direction. A moment is the
    /// end of a transport block. At least one block comes, however short the trace.
    #[must_use]
    pub fn nb_iot(coverage: Coverage, direction: Direction, seconds: u32, seed: u64) -> Self {
        let grant = Grant::of(coverage, direction);
        let mut random = Random::new(&[seed, direction as u64]);
        let most_ms = u64::from(seconds.max(1)) * 1000;
        let mut at_ms = Vec::new();
        let mut now_ms = 0;
        loop {
            let (end_ms, next_ms) = grant.next(direction, now_ms);
            if end_ms > most_ms && !at_ms.is_empty() {
                break;
            }
            if !random.happens(BLOCK_ERRORS) {
                at_ms.push(end_ms);
            }
            now_ms = next_ms;
        }
        Self::new(at_ms, grant.block_bits / 8)
    }
}

/// The end of a transmission down that takes `count` subframes from `start_ms` on.
const fn after_down(start_ms: u64, count: u64) -> u64 {
    let (mut now_ms, mut left) = (start_ms, count);
    while left > 0 {
        if carries_data(now_ms) {
            left -= 1;
        }
        now_ms += 1;
    }
    now_ms
}

/// Whether the cell's subframe is free for grants and blocks.
const fn carries_data(subframe: u64) -> bool {
    match subframe % 10 {
        0 | 5 => false,
        9 => subframe / 10 % 2 == 1,
        _ => true,
    }
}

/// The end of a transmission up that takes `taken_ms` without its gaps.
const fn after_up(start_ms: u64, taken_ms: u64) -> u64 {
    let gaps = taken_ms.saturating_sub(1) / LONGEST_UP_MS;
    start_ms + taken_ms + gaps * UP_GAP_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [(Coverage, Direction); 6] = [
        (Coverage::Normal, Direction::Up),
        (Coverage::Normal, Direction::Down),
        (Coverage::Robust, Direction::Up),
        (Coverage::Robust, Direction::Down),
        (Coverage::Extreme, Direction::Up),
        (Coverage::Extreme, Direction::Down),
    ];

    /// Signal to noise, of a device of 23 dBm in 15 kHz and of a cell of 35 dBm in 180 kHz. The noise of
    /// the receivers is 3 dB and 5 dB.
    fn signal_to_noise(direction: Direction, loss_db: f64) -> f64 {
        let (power_dbm, bandwidth_hz, noise_db) = match direction {
            Direction::Up => (23.0, 15e3_f64, 3.0),
            Direction::Down => (35.0, 180e3, 5.0),
        };
        let noise_dbm = bandwidth_hz.log10().mul_add(10.0, noise_db - 174.0);
        10_f64.powf((power_dbm - loss_db - noise_dbm) / 10.0)
    }

    /// Repetitions that a block needs with a known channel, by a fitted Shannon formula. It is from
    /// Andres-Maldonado et al., "An Analytical Performance Evaluation Framework for NB-IoT", IEEE
    /// Internet of Things Journal 6(4), 2019. The values for NPUSCH and NPDSCH were fitted to 3GPP's
    /// simulations.
    fn needed(direction: Direction, loss_db: f64, bits: u64, ms: u64) -> u64 {
        let (bandwidth_hz, bandwidth_part, noise_factor) = match direction {
            Direction::Up => (15e3, 0.35, 0.60),
            Direction::Down => (180e3, 0.58, 1.90),
        };
        let rate_bps = bits as f64 * 1000.0 / ms as f64;
        let needed = ((rate_bps / (bandwidth_hz * bandwidth_part)).exp2() - 1.0) * noise_factor;
        let ratio = needed / signal_to_noise(direction, loss_db);
        (0..12)
            .map(|power| 1 << power)
            .find(|repetitions| *repetitions as f64 >= ratio)
            .unwrap()
    }

    #[test]
    fn repetitions_are_the_fewest_that_the_coupling_loss_allows() {
        for (coverage, loss_db) in [(Coverage::Robust, 154.0), (Coverage::Extreme, 164.0)] {
            for direction in Direction::BOTH {
                let grant = Grant::of(coverage, direction);
                // A block has 24 bits of checksum.
                let (bits, ms) = (grant.block_bits + 24, grant.block_ms);
                let repetitions = needed(direction, loss_db, bits, ms);
                assert_eq!(grant.block_repetitions, repetitions, "{coverage:?}");
                // A grant has 23 bits, and 16 of checksum.
                let repetitions = needed(Direction::Down, loss_db, 39, 1);
                assert_eq!(grant.control_repetitions, repetitions, "{coverage:?}");
            }
        }
        // Without repetitions down: good up to the normal class, but for a decibel.
        assert_eq!(needed(Direction::Down, 142.5, 704, 3), 1);
    }

    #[test]
    fn cycles_take_what_the_standard_says() {
        // Without the synchronization, a cycle would take 16 ms up and 25 ms down. These are the
        // 62.5 kbit/s and 27.2 kbit/s of data sheets.
        assert_eq!(1 + GRANT_TO_UP_MS + 4 + UP_TO_GRANT_MS, 16);
        let behind = DOWN_TO_ACKNOWLEDGEMENT_MS + ACKNOWLEDGEMENT_MS + UP_TO_GRANT_MS;
        assert_eq!(1 + GRANT_TO_DOWN_MS + 3 + behind, 25);
        // Subframe 0 is broadcast, 5 is synchronization, and so is 9 of the first frame.
        assert_eq!(after_down(0, 1), 2);
        assert_eq!(after_down(4, 2), 7);
        assert_eq!(after_down(8, 2), 12);
        assert_eq!(after_down(18, 2), 20);
        assert_eq!(after_down(0, 150), 200);
        assert_eq!(after_up(5, 256), 261);
        assert_eq!(after_up(5, 257), 302);
        let up = Grant::of(Coverage::Normal, Direction::Up);
        assert_eq!(up.next(Direction::Up, 0), (14, 17));
        let down = Grant::of(Coverage::Normal, Direction::Down);
        assert_eq!(down.next(Direction::Down, 0), (9, 26));
    }

    /// The mean rate in bit/s of an hour.
    fn rate_bps(coverage: Coverage, direction: Direction, seed: u64) -> f64 {
        Trace::nb_iot(coverage, direction, 3600, seed).mean_bps() as f64
    }

    #[test]
    fn rates_are_those_of_the_documentation() {
        // As `docs/lab.md` has them.
        let documented = [45_000.0, 21_900.0, 2_390.0, 7_650.0, 152.0, 1_275.0];
        for ((coverage, direction), documented) in ALL.into_iter().zip(documented) {
            let rates = (0..8).map(|seed| rate_bps(coverage, direction, seed));
            let mean = rates.sum::<f64>() / 8.0;
            let error = (mean / documented - 1.0).abs();
            assert!(error < 0.02, "{coverage:?} {direction:?}: {mean}");
        }
    }

    #[test]
    fn the_rate_of_ten_seconds_varies_by_the_blocks_that_are_sent_again() {
        for (coverage, direction) in &ALL[..4] {
            let mut windows: Vec<usize> = (0..8)
                .flat_map(|seed| {
                    let trace = Trace::nb_iot(*coverage, *direction, 600, seed);
                    let at = |s: u64| trace.at_ms.partition_point(|moment| *moment <= s * 10_000);
                    (0..59).map(|s| at(s + 1) - at(s)).collect::<Vec<_>>()
                })
                .collect();
            windows.sort_unstable();
            let at = |percent: usize| windows[windows.len() * percent / 100] as f64;
            // Nine of ten blocks arrive: a binomial distribution of the mean / 0.9 blocks that are sent.
            let mean = windows.iter().sum::<usize>() as f64 / windows.len() as f64;
            let deviation = (mean * BLOCK_ERRORS).sqrt();
            for (percent, deviations) in [(5, -1.645), (50, 0.0), (95, 1.645)] {
                let expected = deviation.mul_add(deviations, mean);
                let error = (at(percent) - expected).abs();
                assert!(error < deviation.mul_add(0.5, 1.0), "{percent}: {error}");
            }
        }
    }

    #[test]
    fn blocks_arrive_whole_at_their_ends() {
        for (coverage, direction) in ALL {
            let grant = Grant::of(coverage, direction);
            let (mut arrived, mut gaps) = (0, Vec::new());
            for seed in 0..8 {
                let trace = Trace::nb_iot(coverage, direction, 3600, seed);
                assert_eq!(trace.opportunity_bytes * 8, grant.block_bits);
                arrived += trace.at_ms.len();
                gaps.extend(trace.at_ms.windows(2).map(|pair| pair[1] - pair[0]));
            }
            // Nothing comes while the next block is granted and sent.
            let shortest = *gaps.iter().min().unwrap();
            let taken_ms = grant.block_ms * grant.block_repetitions;
            assert!(shortest > taken_ms + GRANT_TO_DOWN_MS, "{shortest}");
            // A block that is sent again leaves a gap of two cycles.
            let doubled = gaps.iter().filter(|gap| **gap * 2 > shortest * 3).count();
            let part = doubled as f64 / arrived as f64;
            let chance = 5.0 * (0.09 / arrived as f64).sqrt();
            assert!((part - 0.1).abs() < chance + 0.002, "{coverage:?}: {part}");
        }
    }

    #[test]
    fn a_trace_is_what_its_seed_says_and_has_a_block() {
        for (coverage, direction) in ALL {
            let trace = Trace::nb_iot(coverage, direction, 60, 7);
            assert_eq!(trace, Trace::nb_iot(coverage, direction, 60, 7));
            assert_eq!(trace, Trace::parse(&trace.text()).unwrap());
            assert!(trace.period_ms() <= 60_000);
            assert!(Trace::nb_iot(coverage, direction, 1, 7).mean_bps() > 0);
        }
        let of = |seed| Trace::nb_iot(Coverage::Normal, Direction::Up, 60, seed);
        assert_ne!(of(7), of(8));
    }
}
