//! Which run starts next.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::calibrate::Machine;
use crate::campaign::Run;

/// Messages a second that a core may serve with broker, device and link. It is a seventh of its limit at
/// half a millisecond each, so that no program waits long for a core. Unoptimised programs take more.
const MESSAGES_PER_S_AND_CORE: f64 = if cfg!(debug_assertions) { 150.0 } else { 300.0 };
/// Time between two starts side by side, on one core, so that starting programs do not make the
/// packets of others late. Namespaces, a broker, devices and their handshakes take 0.15 s of a core.
const START_EVERY: Duration = Duration::from_millis(400);
/// Most runs at once. With 400 links, 99 % of the packets are right to 0.15 ms; each run has four
/// processes besides.
pub(super) const MAX_JOBS: usize = 400;
/// Fewest runs at once, unless fewer were asked for, however busy the machine turns out to be.
const MIN_JOBS: f64 = 64.0;
/// Part of the runs at once that is left when one has to be repeated: they take turns for the cores.
const AFTER_REPETITION: f64 = 0.995;
/// Runs at once that come back with each good one.
const AFTER_GOOD: f64 = 0.5;
/// Memory of a run: four processes, most of whose pages are the same file's.
const RUN_BYTES: u64 = 48 << 20;

/// Limits of runs at the same time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capacity {
    /// Runs.
    pub(super) jobs: usize,
    /// The sum of their messages a second.
    pub(super) messages_per_s: f64,
    /// Between two starts.
    start_every: Duration,
}

impl Capacity {
    /// Of a machine. `jobs` is the most runs at once that were asked for.
    #[must_use]
    pub(super) fn of(machine: &Machine, jobs: Option<usize>) -> Self {
        let cores = machine.cores;
        let room = machine.available_bytes.map_or(MAX_JOBS, |bytes| {
            usize::try_from(bytes / RUN_BYTES).unwrap_or(MAX_JOBS)
        });
        Self {
            jobs: jobs.unwrap_or(MAX_JOBS).min(room).clamp(1, MAX_JOBS),
            messages_per_s: cores as f64 * MESSAGES_PER_S_AND_CORE,
            start_every: START_EVERY.div_f64(cores.max(1) as f64),
        }
    }
}

/// Waiting runs, and the capacity that the running ones leave.
#[derive(Debug)]
pub(super) struct Schedule {
    capacity: Capacity,
    /// Indices of runs, longest last.
    side_by_side: Vec<usize>,
    /// Indices of runs, the next one last.
    alone: Vec<usize>,
    running: usize,
    /// Most runs at once, as far as the machine has kept up with them.
    jobs: f64,
    load: f64,
    has_lone: bool,
}

impl Schedule {
    /// With these runs to make.
    #[must_use]
    pub(super) fn new(
        runs: &[Run],
        todo: impl IntoIterator<Item = usize>,
        capacity: Capacity,
    ) -> Self {
        let (mut alone, mut side_by_side): (Vec<usize>, Vec<usize>) =
            todo.into_iter().partition(|index| runs[*index].alone);
        // The longest first, so that short ones fill the gaps; otherwise in the file's order.
        side_by_side.reverse();
        side_by_side.sort_by_key(|index| runs[*index].expected());
        alone.reverse();
        Self {
            capacity,
            side_by_side,
            alone,
            running: 0,
            jobs: capacity.jobs as f64,
            load: 0.0,
            has_lone: false,
        }
    }

    /// Whether it is time for another run, this long after the start of the last one.
    pub(super) fn may_start(&self, since_last: Option<Duration>) -> bool {
        self.running == 0 || since_last.is_none_or(|since| since >= self.capacity.start_every)
    }

    /// A run that may start now, if there is one. It counts as running.
    pub(super) fn next(&mut self, runs: &[Run]) -> Option<usize> {
        if self.has_lone || self.running as f64 >= self.jobs {
            return None;
        }
        let room = self.capacity.messages_per_s - self.load;
        let fits = self
            .side_by_side
            .iter()
            .rposition(|index| self.running == 0 || runs[*index].messages_per_s() <= room);
        if let Some(position) = fits {
            let index = self.side_by_side.remove(position);
            self.running += 1;
            self.load += runs[index].messages_per_s();
            return Some(index);
        }
        if self.running == 0
            && let Some(index) = self.alone.pop()
        {
            self.running = 1;
            self.has_lone = true;
            return Some(index);
        }
        None
    }

    /// An ended run was in order.
    pub(super) fn good(&mut self) {
        self.jobs = (self.jobs + AFTER_GOOD).min(self.capacity.jobs as f64);
    }

    /// An ended run is to be repeated. It comes last of those that run alone, or in the order of the
    /// others. Of those, fewer run at once from now on.
    pub(super) fn again(&mut self, runs: &[Run], index: usize) {
        if runs[index].alone {
            self.alone.insert(0, index);
        } else {
            let least = MIN_JOBS.min(self.capacity.jobs as f64);
            self.jobs = (self.jobs * AFTER_REPETITION).max(least);
            let expected = runs[index].expected();
            let position = self
                .side_by_side
                .partition_point(|other| runs[*other].expected() < expected);
            self.side_by_side.insert(position, index);
        }
    }

    /// A run has ended.
    pub(super) fn ended(&mut self, run: &Run) {
        self.running -= 1;
        if self.has_lone {
            self.has_lone = false;
        } else {
            self.load = (self.load - run.messages_per_s()).max(0.0);
        }
    }

    /// Runs under way.
    #[must_use]
    pub(super) const fn running(&self) -> usize {
        self.running
    }

    /// Whether all is done.
    #[must_use]
    pub(super) fn is_done(&self) -> bool {
        self.running == 0 && self.side_by_side.is_empty() && self.alone.is_empty()
    }

    /// Approximate time of all unfinished runs, given the rest of the running ones.
    #[must_use]
    pub(super) fn seconds_left(&self, runs: &[Run]) -> f64 {
        let of = |indices: &[usize]| -> f64 {
            indices
                .iter()
                .map(|index| runs[*index].expected().as_secs_f64())
                .sum()
        };
        let work: f64 = self
            .side_by_side
            .iter()
            .map(|index| runs[*index].messages_per_s() * runs[*index].expected().as_secs_f64())
            .sum();
        let longest = self
            .side_by_side
            .last()
            .map_or(0.0, |index| runs[*index].expected().as_secs_f64());
        let by_jobs = of(&self.side_by_side) / self.jobs;
        let by_starts = self.capacity.start_every.as_secs_f64() * self.side_by_side.len() as f64;
        of(&self.alone)
            + longest
                .max(work / self.capacity.messages_per_s)
                .max(by_jobs)
                .max(by_starts)
    }
}

/// Time of all runs by the schedule, if each takes its expected time.
pub(super) fn predict(runs: &[Run], capacity: Capacity) -> Duration {
    let mut schedule = Schedule::new(runs, 0..runs.len(), capacity);
    // The end of each run under way, with its index.
    let mut under_way: BTreeSet<(Duration, usize)> = BTreeSet::new();
    let (mut now, mut next_start) = (Duration::ZERO, Duration::ZERO);
    while !schedule.is_done() {
        let may_start = schedule.running() == 0 || now >= next_start;
        if may_start && let Some(index) = schedule.next(runs) {
            under_way.insert((now + runs[index].expected(), index));
            next_start = now + capacity.start_every;
            continue;
        }
        let Some(&(ends, index)) = under_way.first() else {
            break;
        };
        if !may_start && next_start < ends {
            now = next_start;
            continue;
        }
        under_way.pop_first();
        now = ends;
        schedule.ended(&runs[index]);
    }
    now
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::{Campaign, PAPERS, Plan};

    fn runs(name: &str) -> Vec<Run> {
        let (campaign, _) = Campaign::find(name).unwrap();
        Plan::new(&campaign, true, 1, &[]).unwrap().runs
    }

    /// Of a machine with this number of cores and enough memory.
    fn of(cores: usize, jobs: Option<usize>) -> Capacity {
        let machine = Machine {
            cores,
            available_bytes: None,
            ..Machine::look()
        };
        Capacity::of(&machine, jobs)
    }

    #[test]
    fn memory_limits_the_runs_at_once() {
        let mut machine = Machine::look();
        machine.available_bytes = Some(10 * RUN_BYTES);
        assert_eq!(Capacity::of(&machine, None).jobs, 10);
        assert_eq!(Capacity::of(&machine, Some(3)).jobs, 3);
        machine.available_bytes = Some(0);
        assert_eq!(Capacity::of(&machine, Some(3)).jobs, 1);
    }

    #[test]
    fn runs_that_have_to_be_repeated_leave_fewer_at_once() {
        let runs = runs("mqtt-jeddou-2022");
        let with = |jobs| Schedule::new(&runs, 0..runs.len(), of(2, Some(jobs)));
        let side_by_side = runs.iter().position(|run| !run.alone).unwrap();
        let mut schedule = with(MAX_JOBS);
        schedule.again(&runs, side_by_side);
        let after_one = MAX_JOBS as f64 * AFTER_REPETITION;
        assert!((schedule.jobs - after_one).abs() < 1e-9);
        for _ in 0..1000 {
            schedule.again(&runs, side_by_side);
        }
        assert!((schedule.jobs - MIN_JOBS).abs() < 1e-9);
        schedule.good();
        assert!((schedule.jobs - MIN_JOBS - AFTER_GOOD).abs() < 1e-9);
        for _ in 0..1000 {
            schedule.good();
        }
        assert!((schedule.jobs - MAX_JOBS as f64).abs() < 1e-9);
        let mut few = with(2);
        few.again(&runs, side_by_side);
        assert!((few.jobs - 2.0).abs() < 1e-9);
    }

    #[test]
    fn all_runs_are_made_once_and_lone_ones_alone() {
        let runs = runs("mqtt-jeddou-2022");
        assert!(runs.iter().any(|run| run.alone) && runs.iter().any(|run| !run.alone));
        let capacity = of(2, Some(7));
        let mut schedule = Schedule::new(&runs, 0..runs.len(), capacity);
        let mut under_way: Vec<usize> = Vec::new();
        let mut made = vec![0; runs.len()];
        while !schedule.is_done() {
            while let Some(index) = schedule.next(&runs) {
                under_way.push(index);
                made[index] += 1;
            }
            assert_eq!(schedule.running(), under_way.len());
            assert!(under_way.len() <= 7);
            let lone = under_way.iter().any(|index| runs[*index].alone);
            assert!(!lone || under_way.len() == 1);
            let index = under_way.remove(0);
            schedule.ended(&runs[index]);
            if made[index] == 1 && index.is_multiple_of(10) {
                schedule.again(&runs, index);
            }
        }
        let wanted = |index: usize| if index.is_multiple_of(10) { 2 } else { 1 };
        assert!((0..runs.len()).all(|index| made[index] == wanted(index)));
    }

    #[test]
    fn starts_keep_a_distance() {
        let runs = runs("mqtt-fernandez-2020");
        let mut schedule = Schedule::new(&runs, 0..runs.len(), of(2, None));
        let later = START_EVERY / 2;
        let [soon, later] = [later.saturating_sub(Duration::from_millis(1)), later].map(Some);
        assert!(schedule.may_start(None) && schedule.may_start(soon));
        assert!(schedule.next(&runs).is_some());
        assert!(!schedule.may_start(soon) && schedule.may_start(later));
    }

    #[test]
    fn busy_runs_share_a_machine_with_few() {
        let runs = runs("mqtt-fernandez-2020");
        let capacity = of(1, None);
        let mut schedule = Schedule::new(&runs, 0..runs.len(), capacity);
        let mut load = 0.0;
        while let Some(index) = schedule.next(&runs) {
            load += runs[index].messages_per_s();
        }
        assert!(load <= capacity.messages_per_s);
        assert!(load > capacity.messages_per_s / 2.0);
        assert!(schedule.seconds_left(&runs) > 0.0);
    }

    /// A machine with two cores, and an optimised program, for which campaigns are made.
    const fn two_cores() -> Capacity {
        Capacity {
            jobs: MAX_JOBS,
            messages_per_s: 600.0,
            start_every: Duration::from_millis(150),
        }
    }

    /// All campaigns of these names, of `all` those of the papers.
    fn together(names: &[&str]) -> Vec<Run> {
        let plan = |name: &&str| {
            let (campaign, _) = Campaign::find(name).unwrap();
            Plan::new(&campaign, false, 1, &[]).unwrap().runs
        };
        names.iter().flat_map(plan).collect()
    }

    #[test]
    fn all_papers_together_end_within_half_an_hour_on_two_cores() {
        let alone: f64 = PAPERS
            .iter()
            .map(|name| predict(&together(&[name]), two_cores()).as_secs_f64())
            .sum();
        let runs = together(&PAPERS);
        let all_s = predict(&runs, two_cores()).as_secs_f64();
        println!(
            "{} runs: {all_s:.0} s; one after another {alone:.0} s",
            runs.len()
        );
        // The rest is for the calibration, and for runs that are repeated.
        assert!(all_s < 28.0 * 60.0, "{all_s:.0} s");
        assert!(
            all_s < alone,
            "{all_s:.0} s, one after another {alone:.0} s"
        );
    }

    #[test]
    fn each_campaign_ends_within_half_an_hour_on_two_cores() {
        for (name, _) in crate::campaign::CAMPAIGNS {
            let whole_s = predict(&together(&[name]), two_cores()).as_secs_f64();
            let quick_s = predict(&runs(name), two_cores()).as_secs_f64();
            assert!(whole_s < 30.0 * 60.0, "{name}: {whole_s:.0} s");
            assert!(quick_s < 150.0, "{name}, quick: {quick_s:.0} s");
            println!("{name}: {whole_s:.0} s, quick {quick_s:.0} s");
        }
    }
}
