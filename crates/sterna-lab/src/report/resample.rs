//! How sure a value is: repetitions are drawn again, with replacement, as they were.
//!
//! A repetition is drawn with all its runs: the transports that are compared, which met the same losses.
//! It is drawn with every message of a run, too, since their delays are not independent of each other. A
//! ratio is therefore one of pairs, and the number of messages makes no interval narrow.

use std::collections::{BTreeMap, BTreeSet};

use crate::link::Random;

use super::statistics::{Estimate, tail};

/// How often the repetitions are drawn anew.
const RESAMPLES: usize = 10_000;
/// Up to this number of repetitions, each possible draw is made once; these are fewer than `RESAMPLES`:
/// 1716 of 7. The ends of an interval of few repetitions are among the rarest draws, and chance need not
/// decide on them.
const MAX_EXACT_REPETITIONS: usize = 7;
/// Fewest repetitions that have an interval. All N repetitions are on one side of the true median with a
/// probability of `2^(1 - N)`, so that the widest interval of 5 draws covers 94 %. The page of the lab says so.
pub(super) const MIN_REPETITIONS: usize = 5;
/// From which the draws come, so that a report made twice is the same.
const SEED: u64 = 0x1ab;

/// A statistic of all values of some runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Statistic {
    Mean,
    /// The standard deviation.
    Deviation,
    /// The same by the mean.
    RelativeDeviation,
    /// The value below which this part lies.
    Percentile(f64),
    /// The largest value of each run, on average.
    RunMax,
    /// The largest of all. Draws cannot say what lies beyond it, so it has no interval.
    Max,
    /// How many there are.
    Count,
}

/// A statistic of the values of some cells: for each repetition, its runs' values.
#[derive(Clone, Debug)]
pub(super) struct Quantity {
    pub(super) statistic: Statistic,
    pub(super) repetitions: BTreeMap<u32, Vec<Vec<f64>>>,
}

/// The contribution of each repetition to a statistic, worked out once for all draws.
enum Prepared {
    /// For each repetition: number of values, their sum and the sum of their squares, less `center`.
    Moments {
        of: Statistic,
        center: f64,
        sums: Vec<[f64; 3]>,
    },
    /// All values in their order, with the place of their repetition.
    Ordered {
        part: f64,
        values: Vec<(f64, usize)>,
    },
    /// For each repetition: number of runs, and the sum of their largest values.
    Largest(Vec<[f64; 2]>),
    /// The largest of all.
    Max(f64),
}

impl Prepared {
    fn new(quantity: &Quantity, shared: &[u32]) -> Self {
        let runs: Vec<&[Vec<f64>]> = shared
            .iter()
            .map(|repetition| {
                quantity
                    .repetitions
                    .get(repetition)
                    .map_or(&[][..], Vec::as_slice)
            })
            .collect();
        let all = || runs.iter().flat_map(|runs| runs.iter().flatten().copied());
        let largest = |run: &[f64]| run.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        match quantity.statistic {
            Statistic::Percentile(part) => {
                let mut values: Vec<(f64, usize)> = runs
                    .iter()
                    .enumerate()
                    .flat_map(|(place, runs)| {
                        runs.iter().flatten().map(move |value| (*value, place))
                    })
                    .collect();
                values.sort_by(|one, other| one.0.total_cmp(&other.0));
                Self::Ordered { part, values }
            }
            Statistic::RunMax => Self::Largest(
                runs.iter()
                    .map(|runs| {
                        let sum = runs.iter().map(|run| largest(run)).sum();
                        [runs.len() as f64, sum]
                    })
                    .collect(),
            ),
            Statistic::Max => Self::Max(largest(&all().collect::<Vec<f64>>())),
            of @ (Statistic::Mean
            | Statistic::Deviation
            | Statistic::RelativeDeviation
            | Statistic::Count) => {
                // Squares of small differences, not of large values.
                let center = all().sum::<f64>() / all().count() as f64;
                let sums = runs
                    .iter()
                    .map(|runs| {
                        let values = runs.iter().flatten().map(|value| value - center);
                        values.fold([0.0; 3], |[count, sum, squares], value| {
                            [count + 1.0, sum + value, value.mul_add(value, squares)]
                        })
                    })
                    .collect();
                Self::Moments { of, center, sums }
            }
        }
    }

    /// The statistic of repetitions that were drawn so often each.
    fn at(&self, drawn: &[u32]) -> f64 {
        match self {
            Self::Moments { of, center, sums } => {
                let [count, sum, squares] = weighted(sums, drawn);
                let mean = center + sum / count;
                let deviation = if count < 2.0 {
                    0.0
                } else {
                    ((squares - sum * sum / count) / (count - 1.0))
                        .max(0.0)
                        .sqrt()
                };
                match of {
                    Statistic::Count => count,
                    Statistic::Deviation => deviation,
                    Statistic::RelativeDeviation => deviation / mean,
                    _ => mean,
                }
            }
            Self::Ordered { part, values } => percentile_of_drawn(values, drawn, *part),
            Self::Largest(sums) => {
                let [count, sum] = weighted(sums, drawn);
                sum / count
            }
            Self::Max(value) => *value,
        }
    }
}

fn weighted<const N: usize>(sums: &[[f64; N]], drawn: &[u32]) -> [f64; N] {
    let mut totals = [0.0; N];
    for (sums, times) in sums.iter().zip(drawn) {
        for (total, sum) in totals.iter_mut().zip(sums) {
            *total = sum.mul_add(f64::from(*times), *total);
        }
    }
    totals
}

/// [`percentile`] of values that are there as often as their repetition was drawn.
fn percentile_of_drawn(values: &[(f64, usize)], drawn: &[u32], part: f64) -> f64 {
    let count: u64 = values
        .iter()
        .map(|(_, place)| u64::from(drawn[*place]))
        .sum();
    if count == 0 {
        return f64::NAN;
    }
    let position = part.clamp(0.0, 1.0) * (count - 1) as f64;
    let below = position.floor();
    let mut seen = 0_u64;
    let mut lower = None;
    for (value, place) in values {
        seen += u64::from(drawn[*place]);
        if lower.is_none() && seen as f64 > below {
            lower = Some(*value);
        }
        if let Some(lower) = lower
            && seen as f64 > below + 1.0
        {
            return (value - lower).mul_add(position - below, lower);
        }
    }
    lower.unwrap_or(f64::NAN)
}

/// The values of several quantities: as measured, and for each draw of their common repetitions.
#[derive(Debug)]
pub(super) struct Resamples {
    measured: Vec<f64>,
    /// The values of each draw, and how likely it is.
    draws: Vec<(Vec<f64>, f64)>,
    repetitions: usize,
}

impl Resamples {
    /// Draws the repetitions that all quantities have; `None` where there is no such repetition.
    pub(super) fn of(quantities: &[Quantity]) -> Option<Self> {
        let mut all = quantities.iter().map(|quantity| {
            quantity
                .repetitions
                .keys()
                .copied()
                .collect::<BTreeSet<u32>>()
        });
        let first = all.next()?;
        let shared: Vec<u32> = all
            .fold(first, |shared, other| &shared & &other)
            .into_iter()
            .collect();
        if shared.is_empty() {
            return None;
        }
        let prepared: Vec<Prepared> = quantities
            .iter()
            .map(|quantity| Prepared::new(quantity, &shared))
            .collect();
        let at = |drawn: &[u32]| prepared.iter().map(|one| one.at(drawn)).collect();
        let is_open = quantities
            .iter()
            .any(|quantity| quantity.statistic == Statistic::Max);
        let draws = if is_open || shared.len() < MIN_REPETITIONS {
            Vec::new()
        } else {
            let draws = draws(shared.len()).into_iter();
            draws.map(|(drawn, part)| (at(&drawn), part)).collect()
        };
        Some(Self {
            measured: at(&vec![1; shared.len()]),
            draws,
            repetitions: shared.len(),
        })
    }

    /// A value that `combine` makes of the quantities' values, with its interval. `None` where it is no
    /// number, as a ratio to nothing is.
    pub(super) fn estimate(&self, combine: impl Fn(&[f64]) -> f64) -> Option<Estimate> {
        let value = combine(&self.measured);
        if !value.is_finite() {
            return None;
        }
        let mut estimate = Estimate::single(value, self.repetitions);
        let mut results: Vec<(f64, f64)> = self
            .draws
            .iter()
            .map(|(values, part)| (combine(values), *part))
            .collect();
        if !results.is_empty() && results.iter().all(|(result, _)| result.is_finite()) {
            results.sort_by(|one, other| one.0.total_cmp(&other.0));
            let tail = tail(self.repetitions);
            estimate.low = reached(results.iter(), tail);
            estimate.high = reached(results.iter().rev(), tail);
        }
        Some(estimate)
    }
}

/// The first value before which, itself included, lies at least this part.
fn reached<'a>(values: impl Iterator<Item = &'a (f64, f64)>, part: f64) -> Option<f64> {
    let mut seen = 0.0;
    for (value, its_part) in values {
        seen += its_part;
        if seen >= part {
            return Some(*value);
        }
    }
    None
}

/// Draws of N out of N repetitions: how often each was drawn, and how likely that is.
fn draws(repetitions: usize) -> Vec<(Vec<u32>, f64)> {
    if repetitions <= MAX_EXACT_REPETITIONS {
        let mut all = Vec::new();
        let likely = (repetitions as f64).powi(-(repetitions as i32));
        all_draws(
            &mut vec![0; repetitions],
            0,
            repetitions as u32,
            likely,
            &mut all,
        );
        return all;
    }
    let mut random = Random::new(&[SEED, repetitions as u64]);
    let one = |_| {
        let mut drawn = vec![0; repetitions];
        for _ in 0..repetitions {
            // `unit` is below 1, so the index is below the length.
            #[allow(clippy::cast_sign_loss)]
            let index = (random.unit() * repetitions as f64) as usize;
            drawn[index] += 1;
        }
        (drawn, 1.0 / RESAMPLES as f64)
    };
    (0..RESAMPLES).map(one).collect()
}

/// All ways to draw what is left from a place on. A draw is as likely as there are orders of it: N! by
/// the factorial of each count.
fn all_draws(
    drawn: &mut Vec<u32>,
    place: usize,
    left: u32,
    likely: f64,
    all: &mut Vec<(Vec<u32>, f64)>,
) {
    if place + 1 == drawn.len() {
        drawn[place] = left;
        all.push((drawn.clone(), likely));
        return;
    }
    // Ways to choose which of those left are this one: left! / (times! · (left - times)!).
    let mut ways = 1.0;
    for times in 0..=left {
        drawn[place] = times;
        all_draws(drawn, place + 1, left - times, likely * ways, all);
        ways *= f64::from(left - times) / f64::from(times + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::statistics::{deviation, mean, percentile, sorted};

    /// A run a repetition.
    fn quantity(statistic: Statistic, runs: &[Vec<f64>]) -> Quantity {
        Quantity {
            statistic,
            repetitions: (0..)
                .zip(runs.iter().map(|run| vec![run.clone()]))
                .collect(),
        }
    }

    fn noise(seed: u64, count: usize) -> Vec<f64> {
        let mut random = Random::new(&[seed]);
        (0..count).map(|_| random.unit()).collect()
    }

    #[test]
    fn statistics_of_all_repetitions_are_those_of_all_values() {
        let runs: Vec<Vec<f64>> = (1..7).map(|run| noise(run, run as usize * 3)).collect();
        let all = sorted(&runs.concat());
        let last_of = |run: &Vec<f64>| sorted(run)[run.len() - 1];
        let largest: Vec<f64> = runs.iter().map(last_of).collect();
        for (statistic, wanted) in [
            (Statistic::Mean, mean(&all)),
            (Statistic::Deviation, deviation(&all)),
            (Statistic::RelativeDeviation, deviation(&all) / mean(&all)),
            (Statistic::Percentile(0.5), percentile(&all, 0.5)),
            (Statistic::Percentile(0.95), percentile(&all, 0.95)),
            (Statistic::Percentile(1.0), all[all.len() - 1]),
            (Statistic::RunMax, mean(&largest)),
            (Statistic::Max, all[all.len() - 1]),
            (Statistic::Count, 63.0),
        ] {
            let resamples = Resamples::of(&[quantity(statistic, &runs)]).unwrap();
            let got = resamples.estimate(|values| values[0]).unwrap();
            assert!((got.value - wanted).abs() < 1e-12, "{statistic:?}: {got:?}");
            assert_eq!(got.low.is_none(), statistic == Statistic::Max);
        }
    }

    #[test]
    fn values_that_are_drawn_twice_count_twice() {
        let values = [(1.0, 0), (2.0, 1), (3.0, 0), (4.0, 2)];
        // 1, 1, 3, 3, 4
        let drawn = [2, 0, 1];
        for (part, wanted) in [
            (0.0, 1.0),
            (0.25, 1.0),
            (0.375, 2.0),
            (0.5, 3.0),
            (1.0, 4.0),
        ] {
            let got = percentile_of_drawn(&values, &drawn, part);
            assert!((got - wanted).abs() < 1e-12, "{part}: {got}");
        }
        assert!(percentile_of_drawn(&values, &[0; 3], 0.5).is_nan());
    }

    #[test]
    fn messages_of_one_run_share_their_fate() {
        // Each run has one value, a thousand times: a thousand messages say no more than one.
        let levels = noise(5, 20);
        let of = |count: usize| {
            let runs: Vec<Vec<f64>> = levels.iter().map(|level| vec![*level; count]).collect();
            let resamples = Resamples::of(&[quantity(Statistic::Mean, &runs)]).unwrap();
            resamples.estimate(|values| values[0]).unwrap()
        };
        let (one, many) = (of(1), of(1000));
        let width = |estimate: &Estimate| estimate.high.unwrap() - estimate.low.unwrap();
        assert!((width(&one) - width(&many)).abs() < 1e-9);
        // Student's: 2.093 standard errors on either side, to a tenth.
        let student = 2.0 * 2.093 * deviation(&levels) / 20.0_f64.sqrt();
        assert!((width(&one) / student - 1.0).abs() < 0.1, "{one:?}");
    }

    #[test]
    fn pairs_stay_pairs() {
        // Repetitions differ by a factor of ten, and the second transport always takes half.
        let slow: Vec<Vec<f64>> = (0..10).map(|n| vec![1.0 + f64::from(n)]).collect();
        let fast: Vec<Vec<f64>> = slow.iter().map(|run| vec![run[0] / 2.0]).collect();
        let quantities = [&fast, &slow].map(|runs| quantity(Statistic::Mean, runs));
        let ratio = Resamples::of(&quantities)
            .unwrap()
            .estimate(|values| values[0] / values[1])
            .unwrap();
        assert!((ratio.low.unwrap() - 0.5).abs() < 1e-12, "{ratio:?}");
        assert!((ratio.high.unwrap() - 0.5).abs() < 1e-12, "{ratio:?}");
        // A repetition that one of them lacks is no pair.
        let mut quantities = quantities;
        quantities[0].repetitions.remove(&9);
        quantities[1].repetitions.get_mut(&9).unwrap()[0][0] = 1e9;
        let resamples = Resamples::of(&quantities).unwrap();
        let ratio = resamples.estimate(|values| values[0] / values[1]).unwrap();
        assert!((ratio.value - 0.5).abs() < 1e-12 && ratio.repetitions == 9);
    }

    #[test]
    fn few_repetitions_and_no_numbers_have_no_interval() {
        let few = quantity(
            Statistic::Mean,
            &[vec![1.0], vec![2.0], vec![3.0], vec![4.0]],
        );
        let resamples = Resamples::of(&[few]).unwrap();
        let estimate = resamples.estimate(|values| values[0]).unwrap();
        assert_eq!(estimate, Estimate::single(2.5, 4));
        assert_eq!(resamples.estimate(|values| values[0] / 0.0), None);
        assert!(Resamples::of(&[quantity(Statistic::Mean, &[])]).is_none());
        assert!(Resamples::of(&[]).is_none());
    }

    #[test]
    fn few_repetitions_are_drawn_in_all_ways() {
        for (repetitions, ways) in [(5, 126), (6, 462), (7, 1716), (8, RESAMPLES)] {
            let all = draws(repetitions);
            assert_eq!(all.len(), ways);
            let sum: f64 = all.iter().map(|(_, part)| part).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{repetitions}: {sum}");
            let whole = |drawn: &Vec<u32>| drawn.iter().sum::<u32>() as usize == repetitions;
            assert!(all.iter().all(|(drawn, _)| whole(drawn)));
        }
        // One of each: 5! of 5^5 draws.
        let all = draws(5);
        let (_, part) = all.iter().find(|(drawn, _)| *drawn == [1; 5]).unwrap();
        assert!((part - 120.0 / 3125.0).abs() < 1e-12);
    }

    #[test]
    fn nineteen_of_twenty_intervals_hold_the_truth() {
        // Runs of 30 messages that share a level of their own, as delays behind one loss do.
        let mut random = Random::new(&[77]);
        let mut held = 0;
        let rounds = 300;
        for _ in 0..rounds {
            let runs: Vec<Vec<f64>> = (0..6)
                .map(|_| {
                    let level = random.unit() + random.unit() + random.unit();
                    (0..30)
                        .map(|_| 0.1_f64.mul_add(random.unit(), level))
                        .collect()
                })
                .collect();
            let resamples = Resamples::of(&[quantity(Statistic::Mean, &runs)]).unwrap();
            let (low, high) = resamples
                .estimate(|values| values[0])
                .and_then(|estimate| estimate.interval())
                .unwrap();
            held += usize::from(low < 1.55 && 1.55 < high);
        }
        // Of 300, 285 are expected; four standard deviations below are 270.
        assert!(held >= 270, "{held} of {rounds}");
    }
}
