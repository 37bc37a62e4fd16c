//! Checks passwords beside the shards.
//!
//! A check costs a tenth of a second by design, so checks are what an attacker can exhaust. They wait in
//! three lanes, and in each the addresses take turns. In the first are users at addresses that they have
//! come in from. The second has the others, the last those that name a user who is being guessed at. A
//! check that waits longer than `passwords.timeout_ms` is given up, and so is one whose client is gone.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ring::hmac;

use super::Refusal;
use super::guesses::{Guesses, Standing, Subject, origin};
use super::users::{Remembered, Users};
use crate::config::{Guessing, Passwords};

/// The result of a check.
type Outcome = Result<(), Refusal>;

/// A password to check.
pub(crate) struct Request<'a> {
    pub(crate) users: &'a Arc<Users>,
    pub(crate) guessing: &'a Guessing,
    pub(crate) passwords: &'a Passwords,
    pub(crate) user: &'a str,
    pub(crate) password: &'a [u8],
    pub(crate) address: IpAddr,
    pub(crate) standing: Standing,
    pub(crate) now_ms: u64,
    /// Gets the outcome, on the checker's thread.
    pub(crate) tell: Box<dyn FnOnce(Outcome) + Send>,
}

/// The same, while it waits.
struct Check {
    users: Arc<Users>,
    guessing: Guessing,
    passwords: Passwords,
    user: String,
    password: Vec<u8>,
    address: IpAddr,
    lane: usize,
    now_ms: u64,
    deadline: Instant,
    tell: Box<dyn FnOnce(Outcome) + Send>,
}

/// Checks that wait, of the addresses in turn.
#[derive(Debug, Default)]
struct Lane {
    turns: VecDeque<IpAddr>,
    of: HashMap<IpAddr, VecDeque<u64>>,
}

impl Lane {
    fn push(&mut self, origin: IpAddr, number: u64) {
        let waiting = self.of.entry(origin).or_default();
        if waiting.is_empty() {
            self.turns.push_back(origin);
        }
        waiting.push_back(number);
    }

    fn pop(&mut self) -> Option<u64> {
        let origin = self.turns.pop_front()?;
        let waiting = self.of.get_mut(&origin)?;
        let number = waiting.pop_front();
        if waiting.is_empty() {
            self.of.remove(&origin);
        } else {
            self.turns.push_back(origin);
        }
        number
    }

    fn remove(&mut self, origin: IpAddr, number: u64) {
        let Some(waiting) = self.of.get_mut(&origin) else {
            return;
        };
        waiting.retain(|&known| known != number);
        if waiting.is_empty() {
            self.of.remove(&origin);
            self.turns.retain(|&known| known != origin);
        }
    }

    /// The latest check of the address that has most.
    fn latest_of_longest(&self) -> Option<(usize, u64)> {
        let longest = self.of.values().max_by_key(|waiting| waiting.len())?;
        Some((longest.len(), *longest.back()?))
    }

    fn len_of(&self, origin: IpAddr) -> usize {
        self.of.get(&origin).map_or(0, VecDeque::len)
    }
}

#[derive(Default)]
struct Queue {
    checks: HashMap<u64, Check>,
    lanes: [Lane; 3],
    deadlines: BTreeSet<(Instant, u64)>,
    next: u64,
    under_way: usize,
    is_closed: bool,
}

impl Queue {
    fn push(&mut self, check: Check) -> u64 {
        self.next += 1;
        self.lanes[check.lane].push(origin(check.address), self.next);
        self.deadlines.insert((check.deadline, self.next));
        self.checks.insert(self.next, check);
        self.next
    }

    fn remove(&mut self, number: u64) -> Option<Check> {
        let check = self.checks.remove(&number)?;
        self.deadlines.remove(&(check.deadline, number));
        self.lanes[check.lane].remove(origin(check.address), number);
        Some(check)
    }

    fn pop(&mut self) -> Option<Check> {
        let number = self.lanes.iter_mut().find_map(Lane::pop)?;
        let check = self.checks.remove(&number)?;
        self.deadlines.remove(&(check.deadline, number));
        Some(check)
    }

    /// Takes out a check that has waited for too long.
    fn pop_overdue(&mut self, now: Instant) -> Option<Check> {
        let &(deadline, number) = self.deadlines.first()?;
        (deadline <= now).then(|| self.remove(number))?
    }

    /// Makes room for a check of an address. The latest check of the address that has most gives way, in the last lane
    /// that has any. It stays if its lane is no later and its address has no more checks. The result is the check that
    /// gave way.
    fn make_room(&mut self, lane: usize, origin: IpAddr) -> Option<Check> {
        for other in (lane..self.lanes.len()).rev() {
            if let Some((most, number)) = self.lanes[other].latest_of_longest() {
                let gives_way = other > lane || most > self.lanes[lane].len_of(origin) + 1;
                return gives_way.then(|| self.remove(number))?;
            }
        }
        None
    }
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    guesses: Mutex<Guesses>,
    remembered: Mutex<Remembered>,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("waiting", &self.checks.len())
            .field("under_way", &self.under_way)
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks passwords, and counts wrong credentials of all shards. The threads for that end with the
/// last copy of this handle.
#[derive(Clone, Debug)]
pub struct Checker {
    shared: Arc<Shared>,
    _end: Arc<End>,
}

/// Ends the threads.
#[derive(Debug)]
struct End(Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        lock(&self.0.queue).is_closed = true;
        self.0.wake.notify_all();
    }
}

/// A check that waits or is under way; dropping it gives up one that waits.
#[derive(Debug)]
pub(crate) struct Ticket {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // Its closure is dropped when the lock is free again.
        let given_up = lock(&self.shared.queue).remove(self.number);
        drop(given_up);
    }
}

impl Checker {
    /// Starts the threads, at least one.
    ///
    /// # Errors
    /// When the system refuses a thread, or has no randomness.
    pub fn start(threads: u16) -> std::io::Result<Self> {
        let mut secret = [0; 64];
        getrandom::fill(&mut secret)
            .map_err(|error| std::io::Error::other(format!("no randomness: {error}")))?;
        let key = |half: &[u8]| hmac::Key::new(hmac::HMAC_SHA256, half);
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            wake: Condvar::new(),
            guesses: Mutex::new(Guesses::new(key(&secret[..32]))),
            remembered: Mutex::new(Remembered::new(key(&secret[32..]))),
        });
        let this = Self {
            _end: Arc::new(End(Arc::clone(&shared))),
            shared,
        };
        for number in 0..threads.max(1) {
            let shared = Arc::clone(&this.shared);
            std::thread::Builder::new()
                .name(format!("passwords-{number}"))
                .spawn(move || shared.work())?;
        }
        Ok(this)
    }

    /// Checks that wait or are under way.
    #[must_use]
    pub fn open_checks(&self) -> usize {
        let queue = lock(&self.shared.queue);
        queue.checks.len() + queue.under_way
    }

    pub(crate) fn guesses(&self) -> MutexGuard<'_, Guesses> {
        lock(&self.shared.guesses)
    }

    /// Whether a password was found right before, by a record that is still the user's.
    pub(crate) fn remembers(&self, users: &Users, user: &str, password: &[u8]) -> bool {
        lock(&self.shared.remembered).has(users, user, password)
    }

    /// Compares a password with the one of its user that was found right before; `None` where that is not known.
    pub(crate) fn compare(&self, users: &Users, user: &str, password: &[u8]) -> Option<bool> {
        lock(&self.shared.remembered).compare(users, user, password)
    }

    /// Checks a password, in its turn.
    ///
    /// # Errors
    /// [`Refusal::Busy`] where too many wait already; `tell` is not called then.
    pub(crate) fn check(&self, request: Request<'_>) -> Result<Ticket, Refusal> {
        let passwords = request.passwords;
        let lane = match request.standing {
            Standing::Known => 0,
            Standing::Unknown => 1,
            Standing::Suspect | Standing::Slowed => 2,
        };
        let timeout = Duration::from_millis(passwords.timeout_ms);
        let check = Check {
            users: Arc::clone(request.users),
            guessing: request.guessing.clone(),
            passwords: passwords.clone(),
            user: request.user.to_owned(),
            password: request.password.to_vec(),
            address: request.address,
            lane,
            now_ms: request.now_ms,
            deadline: Instant::now() + timeout,
            tell: request.tell,
        };
        let most = passwords.maximum_waiting.max(1) as usize;
        let mut queue = lock(&self.shared.queue);
        let mut given_way = None;
        if queue.checks.len() >= most {
            given_way = queue.make_room(lane, origin(request.address));
            if given_way.is_none() {
                return Err(Refusal::Busy);
            }
        }
        let number = queue.push(check);
        drop(queue);
        self.shared.wake.notify_one();
        if let Some(other) = given_way {
            (other.tell)(Err(Refusal::Busy));
        }
        Ok(Ticket {
            shared: Arc::clone(&self.shared),
            number,
        })
    }
}

impl Shared {
    /// Checks what comes, until the last handle is gone.
    fn work(&self) {
        loop {
            let mut queue = lock(&self.queue);
            let (check, is_overdue) = loop {
                if queue.is_closed {
                    return;
                }
                if let Some(check) = queue.pop_overdue(Instant::now()) {
                    break (check, true);
                }
                if let Some(check) = queue.pop() {
                    break (check, false);
                }
                queue = (self.wake.wait(queue)).unwrap_or_else(PoisonError::into_inner);
            };
            queue.under_way += 1;
            drop(queue);
            let run = AssertUnwindSafe(|| {
                if is_overdue {
                    (check.tell)(Err(Refusal::Busy));
                } else {
                    self.run(check);
                }
            });
            // A fault in one check is that client's, not everybody's who comes after it.
            if catch_unwind(run).is_err() {
                tracing::error!("a password check panicked; its client is told to come again");
            }
            lock(&self.queue).under_way -= 1;
        }
    }

    fn run(&self, check: Check) {
        let answer = Answer(Some(check.tell));
        let subject = Subject::User(&check.user);
        let (limits, address) = (&check.guessing, check.address);
        let standing = lock(&self.guesses).standing(limits, address, subject, check.now_ms);
        // Checks that failed while this one waited count against it.
        if standing == Standing::Slowed {
            return answer.give(Err(Refusal::Slowed));
        }
        let is_right = check.users.verify(&check.user, &check.password);
        lock(&self.guesses).note(limits, address, subject, is_right, check.now_ms);
        if !is_right {
            return answer.give(Err(Refusal::Password));
        }
        answer.give(Ok(()));
        // Its own work is done when nobody waits for that.
        if lock(&self.queue).checks.is_empty() {
            check
                .users
                .raise(&check.user, &check.password, check.passwords.iterations);
        }
        let most = check.passwords.maximum_remembered;
        lock(&self.remembered).add(&check.users, &check.user, &check.password, most);
    }
}

/// The answer that is owed to a client: without another one it is to come again.
struct Answer(Option<Box<dyn FnOnce(Outcome) + Send>>);

impl Answer {
    fn give(mut self, outcome: Outcome) {
        if let Some(tell) = self.0.take() {
            tell(outcome);
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(tell) = self.0.take() {
            tell(Err(Refusal::Busy));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lane: usize, host: u8, deadline: Instant) -> Check {
        Check {
            users: Arc::new(Users::load(None).unwrap()),
            guessing: Guessing::default(),
            passwords: Passwords::default(),
            user: format!("{lane}.{host}"),
            password: Vec::new(),
            address: IpAddr::from([192, 0, 2, host]),
            lane,
            now_ms: 0,
            deadline,
            tell: Box::new(|_| {}),
        }
    }

    fn drain(queue: &mut Queue) -> Vec<String> {
        std::iter::from_fn(|| queue.pop())
            .map(|check| check.user)
            .collect()
    }

    #[test]
    fn addresses_take_turns_and_known_users_come_first() {
        let mut queue = Queue::default();
        let soon = Instant::now() + Duration::from_mins(1);
        for (lane, host, count) in [(1, 1, 3), (2, 9, 2), (1, 2, 2), (0, 3, 1)] {
            for _ in 0..count {
                queue.push(check(lane, host, soon));
            }
        }
        let order = drain(&mut queue);
        assert_eq!(
            order,
            ["0.3", "1.1", "1.2", "1.1", "1.2", "1.1", "2.9", "2.9"]
        );
        assert!(queue.checks.is_empty() && queue.deadlines.is_empty());
        assert!(
            queue
                .lanes
                .iter()
                .all(|lane| lane.of.is_empty() && lane.turns.is_empty())
        );
    }

    #[test]
    fn what_is_given_up_leaves_nothing_behind() {
        let mut queue = Queue::default();
        let now = Instant::now();
        let early = queue.push(check(1, 1, now));
        let late = queue.push(check(1, 1, now + Duration::from_mins(1)));
        assert_eq!(queue.pop_overdue(now).unwrap().user, "1.1");
        assert!(queue.pop_overdue(now).is_none());
        assert!(queue.remove(early).is_none());
        assert!(queue.remove(late).is_some());
        assert!(queue.lanes[1].of.is_empty() && queue.lanes[1].turns.is_empty());
        assert!(queue.pop().is_none());
    }

    #[test]
    fn a_full_queue_makes_room_at_the_cost_of_who_has_most() {
        let mut queue = Queue::default();
        let soon = Instant::now() + Duration::from_mins(1);
        for _ in 0..5 {
            queue.push(check(1, 1, soon));
        }
        queue.push(check(1, 2, soon));
        let origin = |host| IpAddr::from([192, 0, 2, host]);
        assert!(queue.make_room(1, origin(1)).is_none(), "its own are most");
        assert_eq!(queue.make_room(1, origin(3)).unwrap().user, "1.1");
        assert!(queue.make_room(2, origin(3)).is_none(), "they come first");
        queue.push(check(2, 7, soon));
        assert_eq!(queue.make_room(0, origin(1)).unwrap().user, "2.7");
    }
}
