//! Questions that wait for the webhook, and the threads that ask.
//!
//! A thread is started when a question finds none that is idle. It ends after a while without work, so a
//! broker without questions has none.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::identity::Refusal;
use crate::identity::guesses::origin;

/// How long an idle thread waits for a question.
const IDLE: Duration = Duration::from_secs(10);

/// Work for a thread with the deadline of the question, or with the reason why it is not asked.
pub(super) type Work = Box<dyn FnOnce(Result<Instant, Refusal>) + Send>;

/// A question.
struct Question {
    number: u64,
    deadline: Instant,
    /// The address of the client. The address with the most questions gives way.
    origin: IpAddr,
    work: Work,
}

/// Questions that wait.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
    most_threads: usize,
    most_waiting: usize,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Question>,
    next: u64,
    threads: usize,
    idle: usize,
    under_way: usize,
    is_closed: bool,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("waiting", &self.waiting.len())
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

/// A question that waits or is under way; dropping it gives up one that waits.
#[derive(Debug)]
pub(crate) struct Ticket {
    queue: Arc<Queue>,
    number: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        let at = (state.waiting.iter()).position(|one| one.number == self.number);
        // The question is dropped when the lock is free again.
        let given_up = at.and_then(|at| state.waiting.remove(at));
        drop(state);
        drop(given_up);
    }
}

impl State {
    /// Takes out the latest question of the address that has most, if that has more than this one.
    fn make_room(&mut self, of: IpAddr) -> Option<Question> {
        let mut counts = HashMap::new();
        for question in &self.waiting {
            *counts.entry(origin(question.origin)).or_insert(0_usize) += 1;
        }
        let own = counts.get(&origin(of)).copied().unwrap_or(0);
        let (most, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        if count <= own + 1 {
            return None;
        }
        let mut waiting = self.waiting.iter();
        let at = waiting.rposition(|question| origin(question.origin) == most)?;
        self.waiting.remove(at)
    }
}

impl Queue {
    pub(super) fn new(most_threads: u16, most_waiting: u32) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            wake: Condvar::new(),
            most_threads: most_threads.into(),
            most_waiting: most_waiting as usize,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Questions that wait or are under way.
    pub(super) fn len(&self) -> usize {
        let state = self.state();
        state.waiting.len() + state.under_way
    }

    /// Enters a question of a client at an address. Where too many wait, the latest of the address that
    /// has most gives way.
    ///
    /// # Errors
    /// [`Refusal::Busy`] where that is the address itself, [`Refusal::Unavailable`] where no thread could be
    /// started; the question is dropped.
    pub(super) fn push(
        self: &Arc<Self>,
        deadline: Instant,
        origin: IpAddr,
        work: Work,
    ) -> Result<Ticket, Refusal> {
        let mut state = self.state();
        let mut given_way = None;
        if state.waiting.len() >= self.most_waiting {
            given_way = state.make_room(origin);
            if given_way.is_none() {
                return Err(Refusal::Busy);
            }
        }
        if state.idle <= state.waiting.len() && state.threads < self.most_threads {
            let queue = Arc::clone(self);
            let thread = std::thread::Builder::new().name("webhook".to_owned());
            match thread.spawn(move || queue.run()) {
                Ok(_) => state.threads += 1,
                Err(_) if state.threads == 0 => return Err(Refusal::Unavailable),
                Err(_) => {}
            }
        }
        state.next += 1;
        let number = state.next;
        state.waiting.push_back(Question {
            number,
            deadline,
            origin,
            work,
        });
        drop(state);
        self.wake.notify_one();
        if let Some(other) = given_way {
            (other.work)(Err(Refusal::Busy));
        }
        Ok(Ticket {
            queue: Arc::clone(self),
            number,
        })
    }

    /// Asks no more; waiting questions are told so.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.wake.notify_all();
        for question in waiting {
            (question.work)(Err(Refusal::Webhook));
        }
    }

    fn run(&self) {
        let mut state = self.state();
        loop {
            if let Some(question) = state.waiting.pop_front() {
                state.under_way += 1;
                drop(state);
                let Question { deadline, work, .. } = question;
                let is_overdue = Instant::now() >= deadline;
                let deadline = if is_overdue {
                    Err(Refusal::Webhook)
                } else {
                    Ok(deadline)
                };
                // A fault in one question is that client's, not everybody's who comes after it.
                if catch_unwind(AssertUnwindSafe(|| work(deadline))).is_err() {
                    tracing::error!("a question to the webhook panicked");
                }
                state = self.state();
                state.under_way -= 1;
                continue;
            }
            if state.is_closed {
                state.threads -= 1;
                return;
            }
            state.idle += 1;
            let (woken, waited) =
                (self.wake.wait_timeout(state, IDLE)).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if waited.timed_out() && state.waiting.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_address_gives_way() {
        let mut state = State::default();
        let address = |host: u8| IpAddr::from([192, 0, 2, host]);
        for (number, host) in [1, 1, 2, 1, 3].into_iter().enumerate() {
            state.waiting.push_back(Question {
                number: number as u64,
                deadline: Instant::now(),
                origin: address(host),
                work: Box::new(|_| {}),
            });
        }
        assert!(state.make_room(address(1)).is_none(), "its own are most");
        let given_way = state.make_room(address(4)).map(|question| question.number);
        assert_eq!(given_way, Some(3));
        assert_eq!(state.make_room(address(4)).map(|one| one.number), Some(1));
        assert!(state.make_room(address(4)).is_none(), "each has one");
    }
}
