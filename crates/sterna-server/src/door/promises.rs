//! Acknowledgements that wait until the store has the appends that they promise.
//!
//! The acknowledgements of one client leave in the order in which they were made. One that waits for nothing
//! waits behind one that does ([MQTT-4.6.0-2], [MQTT-4.6.0-3], [MQTT-4.6.0-4]). Nothing else waits with them.
//! When the client is gone they are dropped, and it sends unacknowledged messages again.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use sterna_broker::{Committed, Keeping};

use crate::authorization::{MessageKind, Subject};
use crate::config::Durability;
use crate::context::Context;

/// The condition that an acknowledgement waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Promise {
    /// The append that it waits for; 0 for none.
    token: u64,
    durability: Durability,
    /// Whether it is about a session that another node may have by now, where this one is not sure.
    is_bound: bool,
}

impl Promise {
    /// The promise of an answer that waits for no append.
    pub(crate) const NOTHING: Self = Self {
        token: 0,
        durability: Durability::Memory,
        is_bound: false,
    };

    /// The promise that a listener asks for; for no append yet.
    pub(crate) fn on(cx: &Context<'_>, listener: u16) -> Self {
        Self {
            token: 0,
            durability: cx.policy.listener(listener).durability,
            is_bound: false,
        }
    }

    /// The promise for a message that a client of a listener publishes to a topic; for no append yet.
    pub(crate) fn of_message(
        cx: &Context<'_>,
        listener: u16,
        publisher: Subject<'_>,
        topic: &str,
        kind: MessageKind,
    ) -> Self {
        Self {
            token: 0,
            durability: cx.policy.durability(listener, publisher, topic, kind),
            is_bound: false,
        }
    }

    /// The promise for work that must not be done twice, also after a power cut. It waits for the disk, unless
    /// the listener waits for nothing. Otherwise a peer forgets its work, and a number that it uses again means
    /// something old here.
    pub(crate) fn once(cx: &Context<'_>, listener: u16) -> Self {
        let own = Self::on(cx, listener);
        Self {
            durability: own.durability.for_once(),
            ..own
        }
    }

    /// The promise for an answer to what may be a repetition, about all appends so far. An earlier connection may have
    /// been promised the first answer by another listener, rule or queue. So it waits as the strictest of them asks.
    pub(crate) fn again(cx: &Context<'_>) -> Self {
        Self {
            token: cx.broker.token(),
            durability: match cx.policy.exactly_once {
                Keeping::Nothing => Durability::Memory,
                Keeping::Written => Durability::Interval,
                Keeping::Synced => Durability::Commit,
            },
            is_bound: false,
        }
    }

    /// Waits until this node is sure of its sessions, if it is about one that outlives its connection.
    pub(crate) const fn bound(self, is_bound: bool) -> Self {
        Self { is_bound, ..self }
    }

    /// Waits for this append; 0 for none.
    pub(crate) const fn at(self, token: u64) -> Self {
        Self { token, ..self }
    }

    /// The append that it waits for; 0 for none.
    pub(crate) const fn token(self) -> u64 {
        self.token
    }

    /// Whether it waits for nothing.
    pub(crate) const fn is_empty(self) -> bool {
        self.token == 0
    }

    /// Waits for both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            token: self.token.max(other.token),
            durability: self.durability.max(other.durability),
            is_bound: self.is_bound || other.is_bound,
        }
    }

    /// How far appends have to come.
    const fn wanted(self) -> Committed {
        match self.durability {
            Durability::Commit => Committed {
                written: 0,
                synced: self.token,
            },
            Durability::Interval | Durability::Memory => Committed {
                written: self.token,
                synced: 0,
            },
        }
    }

    /// Whether it is kept. The shard is woken later otherwise.
    pub(crate) fn is_kept_now(self, cx: &mut Context<'_>) -> bool {
        let is_kept = self.is_empty() || self.is_kept(cx.broker.committed());
        if !is_kept {
            cx.broker.wake_at(self.wanted());
        }
        is_kept
    }

    fn is_kept(self, committed: Committed) -> bool {
        match self.durability {
            Durability::Memory => true,
            Durability::Interval => self.token <= committed.written,
            Durability::Commit => self.token <= committed.synced,
        }
    }
}

/// The acknowledgements of one client that wait, in order. A client that never had one has no memory
/// for them.
#[derive(Debug)]
pub(crate) struct Promises<A>(Option<Box<Waiting<A>>>);

#[derive(Debug)]
struct Waiting<A> {
    queue: VecDeque<(Promise, A)>,
    /// Whether the door looks at this client when the first of them can leave.
    is_awaited: bool,
}

impl<A> Default for Promises<A> {
    fn default() -> Self {
        Self(None)
    }
}

/// Entries that an empty queue keeps room for; more room is given back at once.
const KEPT_ENTRIES: usize = 32;

impl<A> Promises<A> {
    /// Takes an acknowledgement, and gives it back where it may leave at once.
    #[inline]
    pub(crate) fn make(
        &mut self,
        cx: &Context<'_>,
        promise: Promise,
        acknowledgement: A,
    ) -> Option<A> {
        let is_kept = promise.is_empty() || promise.is_kept(cx.broker.committed());
        let is_fenced = promise.is_bound && cx.is_fenced();
        if self.len() == 0 && is_kept && !is_fenced {
            return Some(acknowledgement);
        }
        self.wait(promise, acknowledgement);
        None
    }

    fn wait(&mut self, promise: Promise, acknowledgement: A) {
        let waiting = self.0.get_or_insert_with(|| {
            Box::new(Waiting {
                queue: VecDeque::new(),
                is_awaited: false,
            })
        });
        waiting.queue.push_back((promise, acknowledgement));
    }

    fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |waiting| waiting.queue.len())
    }

    /// Whether any waits.
    pub(crate) fn is_waiting(&self) -> bool {
        self.len() > 0
    }

    /// Whether the client is not read because too many wait.
    pub(crate) fn is_full(&self, cx: &Context<'_>) -> bool {
        self.len() >= cx.policy.waiting_acknowledgements
    }

    /// Drops those that are not to be kept.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&A) -> bool) {
        if let Some(waiting) = &mut self.0 {
            (waiting.queue).retain(|(_, acknowledgement)| keep(acknowledgement));
        }
    }

    /// Drops all of them.
    pub(crate) fn clear(&mut self) {
        drop(self.take());
    }

    /// Takes all of them out, in order; none of them leaves.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = A> + use<A> {
        let waiting = self.0.as_mut();
        let queue = waiting.map(|waiting| std::mem::take(&mut waiting.queue));
        let each = queue.into_iter().flatten();
        each.map(|(_, acknowledgement)| acknowledgement)
    }

    /// Looks at the answers that wait, of a client that the door waits with (`is_noted`) or not.
    ///
    /// # Panics
    /// Where nobody would send them.
    pub(super) fn check(&self, is_noted: bool) {
        if let Some(waiting) = &self.0 {
            assert!(
                waiting.queue.is_empty() || waiting.is_awaited,
                "answers that wait are looked at"
            );
            assert!(
                !waiting.is_awaited || is_noted,
                "the door knows whose answers wait"
            );
        }
    }

    /// The client is looked at now.
    pub(super) fn looked_at(&mut self) {
        if let Some(waiting) = &mut self.0 {
            waiting.is_awaited = false;
        }
    }

    /// The next that may leave.
    pub(super) fn next_kept(&mut self, cx: &Context<'_>, committed: Committed) -> Option<A> {
        let queue = &mut self.0.as_mut()?.queue;
        let (promise, _) = queue.front()?;
        if !promise.is_kept(committed) || (promise.is_bound && cx.is_fenced()) {
            return None;
        }
        let (_, acknowledgement) = queue.pop_front()?;
        if queue.is_empty() && queue.capacity() > KEPT_ENTRIES {
            *queue = VecDeque::new();
        }
        Some(acknowledgement)
    }
}

/// The clients of a door whose acknowledgements wait, by the append that the first of each waits for.
#[derive(Debug)]
pub(crate) struct Awaited<I> {
    written: BinaryHeap<Reverse<(u64, I)>>,
    synced: BinaryHeap<Reverse<(u64, I)>>,
    /// Those that wait until this node is sure of its sessions.
    fenced: Vec<I>,
}

impl<I: Ord> Default for Awaited<I> {
    fn default() -> Self {
        Self {
            written: BinaryHeap::new(),
            synced: BinaryHeap::new(),
            fenced: Vec::new(),
        }
    }
}

impl<I: Ord> Awaited<I> {
    /// Whether nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.written.is_empty() && self.synced.is_empty() && self.fenced.is_empty()
    }

    /// All that wait; some of them are gone.
    pub(super) fn ids(&self) -> impl Iterator<Item = I>
    where
        I: Copy,
    {
        let heaps = self.written.iter().chain(&self.synced);
        heaps
            .map(|Reverse((_, id))| *id)
            .chain(self.fenced.iter().copied())
    }

    /// Looks at a client when the first of its acknowledgements may leave.
    pub(super) fn note<A>(&mut self, cx: &mut Context<'_>, id: I, promises: &mut Promises<A>) {
        let Some(waiting) = promises.0.as_mut() else {
            return;
        };
        let Some((promise, _)) = waiting.queue.front() else {
            return;
        };
        if std::mem::replace(&mut waiting.is_awaited, true) {
            return;
        }
        if promise.is_bound
            && let Some(fence) = cx.fence
            && fence.is_shut()
        {
            fence.wake_when_open();
            return self.fenced.push(id);
        }
        cx.broker.wake_at(promise.wanted());
        let heap = match promise.durability {
            Durability::Commit => &mut self.synced,
            Durability::Interval | Durability::Memory => &mut self.written,
        };
        heap.push(Reverse((promise.token, id)));
    }

    /// Asks to be woken for the clients that still wait. The store keeps one wish, and it has come true.
    pub(super) fn ask_again(&self, cx: &mut Context<'_>) {
        let first = |heap: &BinaryHeap<Reverse<(u64, I)>>| {
            heap.peek().map_or(0, |Reverse((token, _))| *token)
        };
        if !self.is_empty() {
            cx.broker.wake_at(Committed {
                written: first(&self.written),
                synced: first(&self.synced),
            });
        }
    }

    /// Those that wait until this node is sure of its sessions, if it is; they are noted again where more waits.
    pub(super) fn take_fenced(&mut self, cx: &Context<'_>) -> Vec<I> {
        if self.fenced.is_empty() || cx.is_fenced() {
            return Vec::new();
        }
        std::mem::take(&mut self.fenced)
    }

    /// The next client of which something may leave; it is noted again where more waits.
    pub(super) fn next(&mut self, committed: Committed) -> Option<I> {
        for (heap, token) in [
            (&mut self.written, committed.written),
            (&mut self.synced, committed.synced),
        ] {
            if heap.peek().is_some_and(|Reverse((of, _))| *of <= token) {
                return heap.pop().map(|Reverse((_, id))| id);
            }
        }
        None
    }
}
