//! Letters from one thread to a shard: in batches, at most one wake-up per batch.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mio::Waker;

/// The receiving end, shared by the shard and all who write to it.
struct Inbox<M> {
    letters: Mutex<Vec<M>>,
    /// Number of waiting letters, for readers of the number only.
    waiting: AtomicUsize,
    /// Whether the shard sleeps, or is about to, and has to be woken for a letter.
    asleep: AtomicBool,
    /// `None` if no thread sleeps.
    waker: Option<Waker>,
}

/// The address of one shard: any thread may post to it. Clones write to the same shard.
pub struct Mailbox<M>(Arc<Inbox<M>>);

impl<M> Clone for Mailbox<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M> fmt::Debug for Mailbox<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox")
            .field("waiting", &self.backlog())
            .finish_non_exhaustive()
    }
}

impl<M> Mailbox<M> {
    pub(crate) fn new(waker: Waker) -> Self {
        Self::with(Some(waker))
    }

    /// A mailbox that is read without a wake-up, as in a simulation.
    pub(crate) fn unattended() -> Self {
        Self::with(None)
    }

    fn with(waker: Option<Waker>) -> Self {
        Self(Arc::new(Inbox {
            letters: Mutex::new(Vec::new()),
            waiting: AtomicUsize::new(0),
            asleep: AtomicBool::new(false),
            waker,
        }))
    }

    /// Delivers one letter. The shard sees it in its next turn.
    pub fn post(&self, letter: M) {
        self.deliver(|letters| letters.push(letter));
    }

    /// Delivers a batch in its order and leaves `batch` empty, its memory in place.
    pub fn post_all(&self, batch: &mut Vec<M>) {
        if !batch.is_empty() {
            self.deliver(|letters| letters.append(batch));
        }
    }

    /// Number of letters that the shard has not taken yet. A sender that sees it grow should slow
    /// down: letters are never dropped.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.0.waiting.load(Ordering::Relaxed)
    }

    /// Gives the shard an empty turn, for example to look at a flag that another thread has set.
    pub fn nudge(&self) {
        // Always a wake-up: a shard that is awake may have looked at the flag already.
        self.wake();
    }

    pub(crate) fn nudger(&self) -> Nudge
    where
        M: Send + 'static,
    {
        let mailbox = self.clone();
        Nudge(Arc::new(move || mailbox.nudge()))
    }

    fn wake(&self) {
        if let Some(waker) = &self.0.waker
            && let Err(error) = waker.wake()
        {
            tracing::error!(%error, "cannot wake a shard");
        }
    }

    fn deliver(&self, add: impl FnOnce(&mut Vec<M>)) {
        {
            let mut letters = self
                .0
                .letters
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            add(&mut letters);
            self.0.waiting.store(letters.len(), Ordering::Release);
        }
        // The shard announces its sleep before it looks into the inbox for the last time. If it
        // looked after the letters above, it will not sleep. If it looked before, the lock makes
        // its announcement visible here.
        if self.0.asleep.swap(false, Ordering::AcqRel) {
            self.wake();
        }
    }

    /// Announces sleep; returns false when there are letters, and the shard must not sleep.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.0.asleep.store(true, Ordering::Release);
        let letters = self
            .0
            .letters
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        letters.is_empty()
    }

    /// Takes the announcement back: letters that come now need no wake-up.
    pub(crate) fn wake_up(&self) {
        self.0.asleep.store(false, Ordering::Release);
    }

    /// Takes all letters; `into` must be empty and gives its memory to the inbox.
    pub(crate) fn collect(&self, into: &mut Vec<M>) {
        debug_assert!(into.is_empty(), "letters of the last turn were not handled");
        // The bytes that the shard has read prove that a letter posted before them is in the inbox.
        if self.0.waiting.load(Ordering::Acquire) == 0 {
            // A letter that is missed here was posted after the wake-up: the look before the
            // next sleep finds it.
            return;
        }
        let mut letters = self
            .0
            .letters
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut *letters, into);
        self.0.waiting.store(0, Ordering::Relaxed);
    }
}

/// One thread's way to all shards. Letters are kept per target until [`Courier::flush`]. That costs
/// one lock and at most one wake-up for each target with letters.
pub struct Courier<M> {
    targets: Vec<Target<M>>,
}

struct Target<M> {
    mailbox: Mailbox<M>,
    bag: Vec<M>,
}

impl<M> Clone for Courier<M> {
    /// Another courier to the same shards, with empty bags.
    fn clone(&self) -> Self {
        Self::new(self.targets.iter().map(|target| target.mailbox.clone()))
    }
}

impl<M> fmt::Debug for Courier<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Courier")
            .field("shards", &self.targets.len())
            .finish_non_exhaustive()
    }
}

impl<M> Courier<M> {
    /// A courier to these shards, numbered in this order.
    pub fn new(mailboxes: impl IntoIterator<Item = Mailbox<M>>) -> Self {
        Self {
            targets: mailboxes
                .into_iter()
                .map(|mailbox| Target {
                    mailbox,
                    bag: Vec::new(),
                })
                .collect(),
        }
    }

    /// Number of shards.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.targets.len()
    }

    /// Puts a letter into the bag for a shard. A shard may write to itself; it gets the letter in
    /// its next turn.
    ///
    /// # Panics
    ///
    /// When the shard does not exist.
    pub fn post(&mut self, shard: usize, letter: M) {
        self.targets[shard].bag.push(letter);
    }

    /// Whether a bag has letters.
    #[must_use]
    pub fn has_letters(&self) -> bool {
        self.targets.iter().any(|target| !target.bag.is_empty())
    }

    /// Delivers all bags.
    pub fn flush(&mut self) {
        for target in &mut self.targets {
            target.mailbox.post_all(&mut target.bag);
        }
    }

    /// Letters that a shard has not taken yet, as [`Mailbox::backlog`].
    ///
    /// # Panics
    ///
    /// When the shard does not exist.
    #[must_use]
    pub fn backlog(&self, shard: usize) -> usize {
        self.targets[shard].mailbox.backlog()
    }
}

/// Wakes one shard, without a letter.
#[derive(Clone)]
pub(crate) struct Nudge(Arc<dyn Fn() + Send + Sync>);

impl Nudge {
    pub(crate) fn give(&self) {
        (self.0)();
    }
}

/// Stops taking new connections, on all shards of one [`crate::bind`] at once. Clones work on the
/// same shards.
#[derive(Clone)]
pub struct Gate {
    shut: Arc<AtomicBool>,
    nudges: Arc<[Nudge]>,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("shut", &self.is_shut())
            .finish_non_exhaustive()
    }
}

impl Gate {
    pub(crate) fn new(nudges: &[Nudge]) -> Self {
        Self {
            shut: Arc::new(AtomicBool::new(false)),
            nudges: nudges.into(),
        }
    }

    /// Closes the listening sockets and refuses new QUIC connections, on each shard with its next
    /// turn; established connections go on. There is no way back.
    pub fn shut(&self) {
        self.shut.store(true, Ordering::Release);
        self.nudges.iter().for_each(Nudge::give);
    }

    /// Whether the gate was shut.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.shut.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn fixture() -> (mio::Poll, Mailbox<u32>) {
        let poll = mio::Poll::new().expect("poll");
        let waker = Waker::new(poll.registry(), mio::Token(0)).expect("waker");
        (poll, Mailbox::new(waker))
    }

    fn wakeups(poll: &mut mio::Poll) -> usize {
        let mut events = mio::Events::with_capacity(8);
        poll.poll(&mut events, Some(Duration::ZERO)).expect("poll");
        events.iter().count()
    }

    #[test]
    fn a_sleeping_shard_is_woken_once_per_batch() {
        let (mut poll, mailbox) = fixture();
        let mut courier = Courier::new([mailbox.clone()]);
        assert!(mailbox.fall_asleep());
        for letter in 0..100 {
            courier.post(0, letter);
        }
        assert_eq!(mailbox.backlog(), 0, "still in the bag");
        courier.flush();
        courier.post(0, 100);
        courier.flush();
        assert_eq!(mailbox.backlog(), 101);
        assert_eq!(wakeups(&mut poll), 1);
        mailbox.wake_up();
        let mut letters = Vec::new();
        mailbox.collect(&mut letters);
        assert_eq!(letters, (0..=100).collect::<Vec<_>>());
    }

    #[test]
    fn a_shard_that_is_awake_is_not_woken_and_does_not_fall_asleep_over_letters() {
        let (mut poll, mailbox) = fixture();
        mailbox.post(7);
        assert_eq!(wakeups(&mut poll), 0);
        assert!(!mailbox.fall_asleep(), "there is a letter");
    }

    #[test]
    fn letters_of_many_threads_all_arrive_in_order_per_sender() {
        const EACH: u32 = 10_000;
        let (mut poll, mailbox) = fixture();
        let senders: Vec<_> = (0..4)
            .map(|sender| {
                let mut courier = Courier::new([mailbox.clone()]);
                std::thread::spawn(move || {
                    for letter in 0..EACH {
                        courier.post(0, sender * EACH + letter);
                        if letter % 7 == 0 {
                            courier.flush();
                        }
                    }
                    courier.flush();
                })
            })
            .collect();
        let mut next = [0u32; 4];
        let mut events = mio::Events::with_capacity(8);
        let mut letters = Vec::new();
        while next.iter().sum::<u32>() < 4 * EACH {
            if mailbox.fall_asleep() {
                poll.poll(&mut events, Some(Duration::from_secs(60)))
                    .expect("poll");
                assert!(!events.is_empty(), "a wake-up was lost");
            }
            mailbox.wake_up();
            mailbox.collect(&mut letters);
            for letter in std::mem::take(&mut letters) {
                let sender = (letter / EACH) as usize;
                assert_eq!(letter % EACH, next[sender]);
                next[sender] += 1;
            }
        }
        for sender in senders {
            sender.join().expect("sender");
        }
    }
}
