//! The cellular link that Sprout assumes.

use super::super::random::Random;
use super::super::settings::whole;
use super::{OPPORTUNITY_BYTES, Trace};

/// Deviation of Sprout's rate after a second, in packets a second. This and the next three constants are
/// those of the authors' program (`src/sprout/receiver.hh`). They are `BROWNIAN_MOTION_RATE`,
/// `OUTAGE_ESCAPE_RATE`, `MAX_ARRIVAL_RATE` and `TICK_LENGTH`; earlier versions of the program had 300,
/// 5 and 2000. Its 256 bins are those of the receiver's guess at the rate, which a link does not make.
const SPROUT_DEVIATION: f64 = 200.0;
/// Rate at which Sprout's link leaves an outage, per second.
const SPROUT_ESCAPE_PER_S: f64 = 1.0;
/// Highest rate of Sprout's model, in packets a second: 11 Mbit/s of 1,400-byte packets.
const SPROUT_MOST: f64 = 1000.0;
/// The model's step.
const SPROUT_STEP_MS: u64 = 20;

impl Trace {
    /// Makes a trace by the model of a cellular link that Sprout assumes (Winstein et al., NSDI 2013,
    /// section 3.1). Packets come as a Poisson process. Its rate moves by Brownian motion of 200 packets
    /// a second after a second. It leaves an outage at a rate of 1 a second. No mean attracts the rate:
    /// it starts at `packets_per_s`, and is kept between 0 and 1000.
    #[must_use]
    pub fn sprout(packets_per_s: f64, seconds: u32, seed: u64) -> Self {
        let step_s = SPROUT_STEP_MS as f64 / 1000.0;
        let mut random = Random::new(&[seed]);
        let mut rate = packets_per_s.clamp(0.0, SPROUT_MOST);
        let mut at_ms = Vec::new();
        let count = u64::from(seconds.max(1)) * 1000 / SPROUT_STEP_MS;
        for step in 0..count {
            rate = next_rate(rate, &mut random);
            if rate <= 0.0 {
                continue;
            }
            let mut within = 0.0;
            loop {
                within += random.exponential() / rate;
                if within >= step_s {
                    break;
                }
                at_ms.push(step * SPROUT_STEP_MS + whole(within * 1000.0));
            }
        }
        // The period is that which was asked for.
        at_ms.push(count * SPROUT_STEP_MS);
        Self::new(at_ms, OPPORTUNITY_BYTES)
    }
}

/// Sprout's rate a step later, in packets a second.
fn next_rate(rate: f64, random: &mut Random) -> f64 {
    let step_s = SPROUT_STEP_MS as f64 / 1000.0;
    let moved = random.normal() * SPROUT_DEVIATION * step_s.sqrt();
    if rate > 0.0 {
        return (rate + moved).clamp(0.0, SPROUT_MOST);
    }
    let stays = (-SPROUT_ESCAPE_PER_S * step_s).exp();
    // A step back would be no escape.
    if random.unit() > stays {
        moved.abs()
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sprouts_link_leaves_an_outage_once_a_second_and_wanders_as_published() {
        let mut random = Random::new(&[3]);
        let steps = 200_000;
        let left = (0..steps)
            .filter(|_| next_rate(0.0, &mut random) > 0.0)
            .count();
        let part = left as f64 / f64::from(steps);
        // 1 - exp(-0.02), and five standard deviations of chance.
        assert!((part - 0.0198).abs() < 0.0016, "{part}");
        let moves = (0..steps).map(|_| next_rate(500.0, &mut random) - 500.0);
        let variance = moves.map(|moved| moved * moved).sum::<f64>() / f64::from(steps);
        // 200 packets a second after a second: 50 steps.
        assert!(((variance * 50.0).sqrt() - 200.0).abs() < 2.0, "{variance}");
        assert!((0..1000).all(|_| next_rate(999.0, &mut random) <= 1000.0));
    }

    #[test]
    fn sprouts_link_is_what_its_seed_says_and_has_its_rate() {
        let trace = Trace::sprout(500.0, 60, 7);
        assert_eq!(trace, Trace::sprout(500.0, 60, 7));
        assert_ne!(trace, Trace::sprout(500.0, 60, 8));
        assert_eq!(trace, Trace::parse(&trace.text()).unwrap());
        assert_eq!(trace.period_ms(), 60_000);
        let packets_per_s = trace.mean_bps() as f64 / 8.0 / 1504.0;
        assert!((10.0..1000.0).contains(&packets_per_s), "{packets_per_s}");
        // The first tenth of a second is near the rate it starts with.
        let early = trace.at_ms.partition_point(|moment| *moment < 100);
        assert!((25..80).contains(&early), "{early}");
    }
}
