//! Jobs in lanes: those of a lane run one after the other, and lanes beside each other.
//!
//! A job may wait for events, which other jobs tell. So what mostly waits runs beside what keeps the processors busy, and
//! begins as soon as what it needs is there.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Condvar, Mutex, PoisonError};

/// One job, which makes a `T`.
pub(crate) struct Job<'a, T> {
    name: String,
    lane: String,
    after: Vec<String>,
    tells: Vec<String>,
    run: Work<'a, T>,
}

/// The work of a job, which is given the board.
type Work<'a, T> = Box<dyn FnOnce(&Board) -> T + Send + 'a>;

impl<'a, T> Job<'a, T> {
    /// A job of a lane. The events `after` must have come before it begins. Those that it `tells` and has not told when it
    /// ends have not come, and never will.
    pub(crate) fn new(
        name: &str,
        lane: &str,
        after: &[&str],
        tells: &[&str],
        run: impl FnOnce(&Board) -> T + Send + 'a,
    ) -> Self {
        let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        Self {
            name: name.to_owned(),
            lane: lane.to_owned(),
            after: owned(after),
            tells: owned(tells),
            run: Box::new(run),
        }
    }
}

/// The name of a lane, and its jobs with their numbers.
type Lane<'a, T> = (String, Vec<(usize, Job<'a, T>)>);

impl<T> fmt::Debug for Job<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (f.debug_struct("Job").field("name", &self.name)).finish_non_exhaustive()
    }
}

/// Events, and whether what they tell of has come about.
#[derive(Debug, Default)]
pub(crate) struct Board {
    told: Mutex<BTreeMap<String, bool>>,
    changed: Condvar,
}

impl Board {
    /// Tells that something has come about, or that it never will. The first word counts.
    pub(crate) fn tell(&self, event: &str, has_come: bool) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.entry(event.to_owned()).or_insert(has_come);
        drop(told);
        self.changed.notify_all();
    }

    /// Waits for all these events; the first that will never come is the error.
    fn wait<'e>(&self, events: &'e [String]) -> Result<(), &'e str> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(never) = events.iter().find(|event| told.get(*event) == Some(&false)) {
                return Err(never);
            }
            if events.iter().all(|event| told.contains_key(event)) {
                return Ok(());
            }
            told = (self.changed.wait(told)).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Runs all jobs. Returns what they made in the order in which they were given; `refuse` makes it for a job, by its name,
/// where an event that it waits for never comes. Events that no job tells are taken as come.
pub(crate) fn run<T: Send>(
    jobs: Vec<Job<'_, T>>,
    refuse: impl Fn(&str, &str) -> T + Sync,
) -> Vec<T> {
    let board = Board::default();
    let all_told: Vec<String> = jobs.iter().flat_map(|job| job.tells.clone()).collect();
    let mut lanes: Vec<Lane<'_, T>> = Vec::new();
    let count = jobs.len();
    for (number, mut job) in jobs.into_iter().enumerate() {
        job.after.retain(|event| all_told.contains(event));
        match lanes.iter_mut().find(|(lane, _)| *lane == job.lane) {
            Some((_, jobs)) => jobs.push((number, job)),
            None => lanes.push((job.lane.clone(), vec![(number, job)])),
        }
    }
    let (board, refuse) = (&board, &refuse);
    let mut made: Vec<Option<T>> = Vec::with_capacity(count);
    made.resize_with(count, || None);
    std::thread::scope(|scope| {
        let mut running = Vec::with_capacity(lanes.len());
        for (_, jobs) in lanes {
            running.push(scope.spawn(move || {
                let each = jobs.into_iter().map(|(number, job)| {
                    let _end = End {
                        board,
                        tells: &job.tells,
                    };
                    let made = match board.wait(&job.after) {
                        Ok(()) => (job.run)(board),
                        Err(event) => refuse(&job.name, event),
                    };
                    (number, made)
                });
                each.collect::<Vec<_>>()
            }));
        }
        for lane in running {
            let ended = lane
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            for (number, one) in ended {
                made[number] = Some(one);
            }
        }
    });
    made.into_iter().flatten().collect()
}

/// Tells at its end, also by a panic, that what a job has not told will never come.
struct End<'a> {
    board: &'a Board,
    tells: &'a [String],
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        for event in self.tells {
            self.board.tell(event, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn refuse(name: &str, event: &str) -> String {
        format!("{name} without {event}")
    }

    #[test]
    fn a_job_begins_in_the_midst_of_the_one_that_it_waits_for() {
        let (sender, receiver) = channel();
        let jobs = vec![
            Job::new("build", "a", &[], &["broker"], move |board| {
                board.tell("broker", true);
                // It ends only when the other lane has got so far.
                receiver.recv().unwrap()
            }),
            Job::new("last", "a", &[], &[], |_| "after the build".to_owned()),
            Job::new("suite", "b", &["broker", "nobody's"], &[], move |_| {
                sender.send("told by the suite".to_owned()).unwrap();
                "ran".to_owned()
            }),
        ];
        let made = run(jobs, refuse);
        assert_eq!(made, ["told by the suite", "after the build", "ran"]);
    }

    #[test]
    fn what_never_comes_is_waited_for_by_nobody() {
        let jobs = vec![
            Job::new("suite", "a", &["broker"], &["figures"], |_| String::new()),
            Job::new("figures", "b", &["figures"], &[], |_| String::new()),
            Job::new("build", "c", &[], &["broker"], |_| {
                "does not build".to_owned()
            }),
        ];
        let made = run(jobs, refuse);
        let expected = [
            "suite without broker",
            "figures without figures",
            "does not build",
        ];
        assert_eq!(made, expected);
    }
}
