//! Readers that hold publishers.
//!
//! A burst of QoS 1 or 2 may be more than a reader's queue has places, though the reader takes all of it at its pace. So
//! a reader whose queue is half full holds who publishes to it: front doors ask before each message, and look at no more of
//! a held client until the queue has drained to a quarter. Readers of the log hold nobody, for they fall behind instead.
//!
//! A shared subscription whose members are connected is such a reader, too. Its queue has a limit also where it is in the
//! log. One that is kept refuses messages instead, and in a cluster its root falls behind.
//!
//! A reader that takes too little of its queue for a while is *slow*. It holds nobody until it takes enough again, and
//! its queue drops by its rule meanwhile. The time in which its own client is held does not count.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use crate::far_group::ROOT_CONSUMER;
use crate::queues::{QueueKey, Queues};
use crate::route::Target;
use crate::session::{BrokerSession, NEVER_MS};

/// A reader whose queue holds publishers, on any shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CrowdedReader {
    pub(crate) shard: u16,
    pub(crate) queue: QueueKey,
    /// That of the session; 0 for a shared subscription, whose number is used once.
    pub(crate) generation: u32,
}

impl CrowdedReader {
    pub(crate) const fn session(shard: u16, slot: u32, generation: u32) -> Self {
        Self {
            shard,
            queue: QueueKey::Session(slot),
            generation,
        }
    }

    pub(crate) const fn group(shard: u16, id: u32) -> Self {
        Self {
            shard,
            queue: QueueKey::Group(id),
            generation: 0,
        }
    }

    /// The reader that a message of a shard goes to.
    pub(crate) const fn of(shard: u16, target: &Target) -> Self {
        if target.flags.is_group() {
            Self::group(shard, target.slot)
        } else {
            Self::session(shard, target.slot, target.generation)
        }
    }
}

/// Messages of each shard that a queue takes beyond its limit while its reader holds publishers, since these could not
/// wait. Those of other shards were on their way when the queue became half full. A shard reads no more of clients where
/// 1,024 are on their way, and what it has read by then may have some thousand more. Messages of a transaction go all at
/// its end, and wills when their clients do.
const MOST_ON_WAY: usize = 16_384;

/// Time between two readers of which the watcher is told the same, in milliseconds.
const TOLD_EVERY_MS: u64 = 10_000;

/// The most readers that hold each other's clients in a row, as far as it is looked at.
const LONGEST_ROW: usize = 32;

/// The readers of all shards that hold publishers. All shards share it.
#[derive(Debug)]
pub(crate) struct Holds {
    /// Their number, by shard.
    counts: Box<[AtomicUsize]>,
    /// The sum of that: each message asks.
    sum: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Each of them, and the shards that have clients which wait for it.
    holding: FxHashMap<CrowdedReader, Vec<u16>>,
    /// For readers whose clients are held: who holds those.
    held: FxHashMap<CrowdedReader, Held>,
}

/// The clients of a reader that are held. Several are where one has taken the session over, and the one before still waits.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// The reader that holds the newest of them.
    holder: CrowdedReader,
    /// How many this holder holds.
    clients: u32,
}

impl Holds {
    pub(crate) fn new(shards: u16) -> Self {
        Self {
            counts: (0..shards).map(|_| AtomicUsize::new(0)).collect(),
            sum: AtomicUsize::new(0),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a reader holds publishers.
    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        self.sum.load(Ordering::Relaxed) > 0
    }

    /// Whether a reader of a shard does.
    pub(crate) fn is_some_on(&self, shard: u16) -> bool {
        self.counts[usize::from(shard)].load(Ordering::Relaxed) > 0
    }

    fn begin(&self, holder: CrowdedReader) {
        self.state().holding.entry(holder).or_default();
        self.counts[usize::from(holder.shard)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends a hold. Returns the shards that have clients which wait for it.
    fn end(&self, holder: CrowdedReader) -> Vec<u16> {
        let waiting = self.state().holding.remove(&holder);
        self.counts[usize::from(holder.shard)].fetch_sub(1, Ordering::Relaxed);
        self.sum.fetch_sub(1, Ordering::Relaxed);
        waiting.unwrap_or_default()
    }

    /// The first of some readers of other shards that holds publishers.
    pub(crate) fn first_of(
        &self,
        mut readers: impl Iterator<Item = CrowdedReader>,
    ) -> Option<CrowdedReader> {
        let state = self.state();
        readers.find(|reader| state.holding.contains_key(reader))
    }

    /// Whether a reader still holds publishers. If so, the shard hears of the end.
    pub(crate) fn waits(&self, holder: CrowdedReader, shard: u16) -> bool {
        let mut state = self.state();
        let waiting = state.holding.get_mut(&holder);
        let Some(waiting) = waiting else {
            return false;
        };
        if !waiting.contains(&shard) {
            waiting.push(shard);
        }
        true
    }

    /// Holds a client with these readers of its own. False where the holder's client waits for one of them, over others
    /// or not: nobody of the row could take anything then.
    pub(crate) fn hold(&self, holder: CrowdedReader, own: &[CrowdedReader]) -> bool {
        let mut state = self.state();
        let mut at = holder;
        for _ in 0..LONGEST_ROW {
            if own.contains(&at) {
                return false;
            }
            let Some(next) = state.held.get(&at) else {
                for own in own {
                    let held = state
                        .held
                        .entry(*own)
                        .or_insert(Held { holder, clients: 0 });
                    if held.holder != holder {
                        *held = Held { holder, clients: 0 };
                    }
                    held.clients += 1;
                }
                return true;
            };
            at = next.holder;
        }
        false
    }

    /// Whether the clients of a reader wait themselves, all of so many. Their acknowledgements are not read meanwhile.
    fn are_held(&self, reader: CrowdedReader, clients: usize) -> bool {
        let state = self.state();
        (state.held.get(&reader)).is_some_and(|held| held.clients as usize >= clients)
    }

    /// A client with these readers waits for that holder no more. A client that has taken one of them over since may wait
    /// for another.
    pub(crate) fn let_go(&self, holder: CrowdedReader, own: &[CrowdedReader]) {
        let mut state = self.state();
        for own in own {
            if let Some(held) = state.held.get_mut(own)
                && held.holder == holder
            {
                held.clients -= 1;
                if held.clients == 0 {
                    state.held.remove(own);
                }
            }
        }
    }
}

/// Parts of [`reader_stall_ms`](crate::Limits::reader_stall_ms) after each of which a reader is looked at.
const PARTS: usize = 4;

/// A reader of this shard whose queue was half full, and has not drained since.
#[derive(Debug)]
pub(crate) struct Holding {
    /// See [`CrowdedReader`].
    generation: u32,
    /// When it was looked at last, in milliseconds.
    looked_ms: u64,
    /// How often that was, since it began to hold publishers or to be slow.
    looks: usize,
    /// The messages that it had [taken] at the last looks.
    taken: [u32; PARTS],
    /// Whether its queue was not drained since the publication that made it half full.
    is_fresh: bool,
    /// Whether it took less than its share, and so holds nobody.
    is_slow: bool,
}

/// The figures of a reader's queue that are looked at.
#[derive(Clone, Copy, Debug)]
struct Figures {
    generation: u32,
    /// Clients that take messages out of it.
    clients: usize,
    waiting: usize,
    /// All messages that were taken out of it so far, modulo 2^32: those that came, less those that wait.
    taken: u32,
    has_drained: bool,
}

impl Holding {
    const fn new(now_ms: u64, figures: Figures) -> Self {
        Self {
            generation: figures.generation,
            looked_ms: now_ms,
            looks: 1,
            taken: [figures.taken; PARTS],
            is_fresh: true,
            is_slow: false,
        }
    }

    /// Whether the reader has taken its share in the time that it has for that. It has as long at the beginning.
    fn has_taken(&self, figures: Figures, percent: usize) -> bool {
        let least = (figures.waiting * percent / 100).max(1);
        let before = self.taken[self.looks % PARTS];
        // Messages that its consumer gives back count out.
        let taken = figures.taken.wrapping_sub(before) as i32;
        i64::from(taken) >= least as i64
    }

    /// Notes a look.
    const fn look(&mut self, now_ms: u64, figures: Figures) {
        self.looked_ms = now_ms;
        self.taken[self.looks % PARTS] = figures.taken;
        self.looks += 1;
    }
}

impl<P> Queues<P> {
    const fn holder(&self, queue: QueueKey, generation: u32) -> CrowdedReader {
        CrowdedReader {
            shard: self.shard,
            queue,
            generation,
        }
    }

    /// The figures of a queue; `None` where there is no such queue.
    fn figures(&self, queue: QueueKey) -> Option<Figures> {
        match queue {
            QueueKey::Session(slot) => {
                let session = self.sessions.get(slot)?;
                let is_read = (session.consumer()).is_some_and(|reader| reader != ROOT_CONSUMER);
                let waiting = session.pending.len();
                Some(Figures {
                    generation: session.generation,
                    clients: usize::from(is_read),
                    waiting,
                    taken: session.next_sequence.wrapping_sub(waiting as u32),
                    has_drained: self.has_drained(session),
                })
            }
            QueueKey::Group(id) => {
                let group = self.groups.get(&id)?;
                let holds = !group.is_kept && !self.branches.is_on;
                let waiting = group.waiting();
                let has_drained = waiting <= self.limits.group_queued_messages / 4
                    && group.queued_bytes <= self.limits.group_queued_bytes as u64 / 4;
                Some(Figures {
                    generation: 0,
                    clients: if holds { group.attending } else { 0 },
                    waiting,
                    taken: (group.entered_count() as u32).wrapping_sub(waiting as u32),
                    has_drained: waiting == 0 || has_drained,
                })
            }
        }
    }

    /// A queue is half full, and takes another message: its reader holds publishers from now on.
    pub(crate) fn crowd(&mut self, now_ms: u64, queue: QueueKey) {
        self.is_crowded = true;
        if self.limits.reader_stall_ms == 0 {
            return;
        }
        let Some(figures) = self.figures(queue) else {
            return;
        };
        if let Some(holding) = self.holders.get(&queue) {
            if holding.is_slow && holding.has_taken(figures, self.limits.reader_share_percent) {
                self.begin_hold(now_ms, queue, figures);
            }
        } else if figures.clients > 0 {
            self.holders_due_ms = (self.holders_due_ms).min(now_ms + self.part_ms());
            self.begin_hold(now_ms, queue, figures);
        }
    }

    const fn part_ms(&self) -> u64 {
        self.limits.reader_stall_ms.div_ceil(PARTS as u64)
    }

    fn begin_hold(&mut self, now_ms: u64, queue: QueueKey, figures: Figures) {
        self.holders.insert(queue, Holding::new(now_ms, figures));
        self.counters.readers_holding += 1;
        self.counters.reader_holds += 1;
        self.holds.begin(self.holder(queue, figures.generation));
    }

    fn end_hold(&mut self, holder: CrowdedReader) {
        self.counters.readers_holding -= 1;
        let waiting = self.holds.end(holder);
        if !waiting.is_empty() {
            self.released.push((holder, waiting));
        }
    }

    /// A queue may have drained, or its reader gone: if so, it holds nobody any more.
    pub(crate) fn look_at_holder(&mut self, queue: QueueKey) {
        let Some(holding) = self.holders.get(&queue) else {
            return;
        };
        let generation = holding.generation;
        let figures = self.figures(queue).filter(|figures| {
            figures.generation == generation && figures.clients > 0 && !figures.has_drained
        });
        let Some(figures) = figures else {
            return self.forget_holder(queue);
        };
        if let Some(holding) = self.holders.get_mut(&queue)
            && std::mem::take(&mut holding.is_fresh)
        {
            // Messages that went at once were not taken in the time that begins.
            holding.taken = [figures.taken; PARTS];
        }
    }

    /// A reader is gone: it holds nobody any more.
    pub(crate) fn forget_holder(&mut self, queue: QueueKey) {
        if let Some(holding) = self.holders.remove(&queue)
            && !holding.is_slow
        {
            self.end_hold(self.holder(queue, holding.generation));
        }
    }

    fn has_drained(&self, session: &BrokerSession<P>) -> bool {
        session.pending.is_empty()
            || (session.pending.len() <= self.limits.queued_messages / 4
                && session.account.held_bytes() <= self.limits.queued_bytes as u64 / 4)
    }

    /// Whether a reader of this shard holds publishers.
    pub(crate) fn is_holding(&self, reader: CrowdedReader) -> bool {
        (self.holders.get(&reader.queue))
            .is_some_and(|holding| !holding.is_slow && holding.generation == reader.generation)
    }

    /// Whether a full queue takes a message all the same that could not wait. It comes from another shard, and was on its
    /// way before its publisher could be held, or its publisher cannot be held.
    pub(crate) fn takes_on_way(&self, queue: QueueKey) -> bool {
        let (waiting, bytes, most, most_bytes) = match queue {
            QueueKey::Session(slot) => {
                let session = &self.sessions[slot];
                let held_bytes = session.account.held_bytes();
                let (most, most_bytes) = (self.limits.queued_messages, self.limits.queued_bytes);
                (session.pending.len(), held_bytes, most, most_bytes)
            }
            QueueKey::Group(id) => {
                let Some(group) = self.groups.get(&id) else {
                    return false;
                };
                let limits = &self.limits;
                let (most, most_bytes) = (limits.group_queued_messages, limits.group_queued_bytes);
                (group.waiting(), group.queued_bytes, most, most_bytes)
            }
        };
        let shards = self.marks.len() + 1;
        let holds = |figures: Figures| self.is_holding(self.holder(queue, figures.generation));
        !self.is_over_memory
            && waiting < most + shards * MOST_ON_WAY
            && bytes < 2 * most_bytes as u64
            && self.figures(queue).is_some_and(holds)
    }

    /// Looks at readers that hold publishers, a few times in the time that they have to take their share: they may be
    /// slow, or slow no more.
    pub(crate) fn look_at_holders(&mut self, now_ms: u64) {
        if self.holders_due_ms > now_ms {
            return;
        }
        let queues: Vec<QueueKey> = self.holders.keys().copied().collect();
        let (part_ms, percent) = (self.part_ms(), self.limits.reader_share_percent);
        let mut due_ms = NEVER_MS;
        for queue in queues {
            self.look_at_holder(queue);
            let Some(figures) = self.figures(queue) else {
                continue;
            };
            let reader = self.holder(queue, figures.generation);
            let Some(holding) = self.holders.get_mut(&queue) else {
                continue;
            };
            if now_ms >= holding.looked_ms + part_ms {
                let was_slow = holding.is_slow;
                if !was_slow && self.holds.are_held(reader, figures.clients) {
                    // It could not take its share. Its time begins when its clients are read again.
                    *holding = Holding::new(now_ms, figures);
                    due_ms = due_ms.min(now_ms + part_ms);
                    continue;
                }
                let is_over = holding.looks >= PARTS;
                let has_taken = holding.has_taken(figures, percent);
                holding.look(now_ms, figures);
                if was_slow && has_taken {
                    self.begin_hold(now_ms, queue, figures);
                } else if !was_slow && is_over && !has_taken {
                    holding.is_slow = true;
                    self.counters.readers_slow += 1;
                    self.tell_of(now_ms, queue, true);
                    self.end_hold(reader);
                } else if !was_slow && is_over {
                    self.tell_of(now_ms, queue, false);
                }
            }
            if let Some(holding) = self.holders.get(&queue) {
                due_ms = due_ms.min(holding.looked_ms + part_ms);
            }
        }
        self.holders_due_ms = due_ms;
    }

    /// Tells the watcher of a reader, unless it was told of another a short time ago.
    fn tell_of(&mut self, now_ms: u64, queue: QueueKey, is_slow: bool) {
        let not_before_ms = &mut self.untold_ms[usize::from(is_slow)];
        if let Some(watcher) = &self.loss_watcher
            && *not_before_ms <= now_ms
        {
            *not_before_ms = now_ms + TOLD_EVERY_MS;
            let reader = match queue {
                QueueKey::Session(slot) => self.sessions[slot].name.text(),
                QueueKey::Group(id) => (self.groups.get(&id)).map_or("", |group| &group.filter),
            };
            if is_slow {
                watcher.slow(reader);
            } else {
                watcher.holds(reader);
            }
        }
    }

    /// Looks at all of that again, for tests.
    pub(crate) fn check_holders(&self) {
        let holding = self.holders.values().filter(|holding| !holding.is_slow);
        assert_eq!(
            holding.count() as u64,
            self.counters.readers_holding,
            "the readers that hold publishers are counted"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn reader(slot: u32) -> CrowdedReader {
        CrowdedReader::session(0, slot, 0)
    }

    /// The client that had the session before ends its own wait, be it for the same reader or not.
    #[test]
    fn a_client_that_took_a_session_over_still_waits_when_the_one_before_goes() {
        let [taken_over, first, second] = [0, 1, 2].map(reader);
        for second in [first, second] {
            let holds = Holds::new(1);
            assert!(holds.hold(first, &[taken_over]));
            assert!(holds.hold(second, &[taken_over]));
            holds.let_go(first, &[taken_over]);
            assert!(holds.are_held(taken_over, 1));
            assert!(!holds.hold(taken_over, &[second]), "that is a circle");
            holds.let_go(second, &[taken_over]);
            assert!(!holds.are_held(taken_over, 1));
            assert!(holds.hold(taken_over, &[second]));
        }
    }
}
