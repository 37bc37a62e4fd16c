//! A store in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sterna_broker::{
    Message, Phase, QueueName, Share, Store, Stored, StoredEntry, StoredSession, StoredSubscription,
};

/// Keeps what a broker stores in memory, for as long as a handle on it exists. Clones are handles
/// on the same state: each shard gets one.
///
/// What it holds is bounded by the broker's own limits: it has the broker's sessions, queues and
/// retained messages once more, sharing the messages themselves.
#[derive(Clone, Default, Debug)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
}

#[derive(Default, Debug)]
struct State {
    sessions: BTreeMap<Box<str>, MemorySession>,
    groups: BTreeMap<Box<str>, Queue>,
    retained: BTreeMap<Box<str>, Arc<Message>>,
}

#[derive(Default, Debug)]
struct MemorySession {
    user: Option<Box<str>>,
    expiry_s: u32,
    expires_at_ms: Option<u64>,
    subscriptions: BTreeMap<Box<str>, StoredSubscription>,
    queue: Queue,
    protocol: Option<Box<[u8]>>,
}

/// A queue's entries, those that were sent and those that wait, each in their order.
#[derive(Default, Debug)]
struct Queue {
    sent: BTreeMap<u64, StoredEntry>,
    pending: BTreeMap<i64, StoredEntry>,
    places: HashMap<u64, Place>,
    sent_so_far: u64,
    /// Positions of the first and behind the last pending entry.
    front: i64,
    back: i64,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Sent(u64),
    Pending(i64),
}

impl Queue {
    fn remove(&mut self, tag: u64) -> Option<StoredEntry> {
        match self.places.remove(&tag)? {
            Place::Sent(at) => self.sent.remove(&at),
            Place::Pending(at) => self.pending.remove(&at),
        }
    }

    fn get_mut(&mut self, tag: u64) -> Option<&mut StoredEntry> {
        match self.places.get(&tag)? {
            Place::Sent(at) => self.sent.get_mut(at),
            Place::Pending(at) => self.pending.get_mut(at),
        }
    }

    fn push_sent(&mut self, entry: StoredEntry) {
        self.sent_so_far += 1;
        self.places.insert(entry.tag, Place::Sent(self.sent_so_far));
        self.sent.insert(self.sent_so_far, entry);
    }

    fn push(&mut self, entry: StoredEntry) {
        if entry.phase != Phase::Pending {
            self.push_sent(entry);
            return;
        }
        self.places.insert(entry.tag, Place::Pending(self.back));
        self.pending.insert(self.back, entry);
        self.back += 1;
    }

    fn advance(&mut self, tag: u64, phase: Phase) {
        if let (Phase::HandedOver, Some(&Place::Sent(at))) = (phase, self.places.get(&tag)) {
            if let Some(entry) = self.sent.get_mut(&at) {
                entry.phase = Phase::HandedOver;
                entry.message = None;
            }
            return;
        }
        let Some(mut entry) = self.remove(tag) else {
            return;
        };
        entry.phase = phase;
        if phase == Phase::Pending {
            self.front -= 1;
            self.places.insert(tag, Place::Pending(self.front));
            self.pending.insert(self.front, entry);
        } else {
            self.push_sent(entry);
        }
    }

    fn entries(&self) -> Vec<StoredEntry> {
        self.sent
            .values()
            .chain(self.pending.values())
            .cloned()
            .collect()
    }
}

impl State {
    fn queue(&mut self, name: QueueName<'_>) -> Option<&mut Queue> {
        match name {
            QueueName::Session(client_id) => self
                .sessions
                .get_mut(client_id)
                .map(|session| &mut session.queue),
            QueueName::Group(filter) => Some(self.groups.entry(filter.into()).or_default()),
        }
    }
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sessions, messages in queues, and retained messages in the store.
    #[must_use]
    pub fn counts(&self) -> (usize, usize, usize) {
        let state = self.state();
        let in_sessions = state
            .sessions
            .values()
            .map(|session| session.queue.places.len());
        let in_groups = state.groups.values().map(|queue| queue.places.len());
        let queued = in_sessions.chain(in_groups).sum();
        (state.sessions.len(), queued, state.retained.len())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn session_opened(&mut self, client_id: &str, user: Option<&str>, expiry_s: u32) {
        let mut state = self.state();
        let session = state.sessions.entry(client_id.into()).or_default();
        session.user = user.map(Into::into);
        session.expiry_s = expiry_s;
        session.expires_at_ms = None;
    }

    fn session_closed(&mut self, client_id: &str, expiry_s: u32, expires_at_ms: Option<u64>) {
        if let Some(session) = self.state().sessions.get_mut(client_id) {
            session.expiry_s = expiry_s;
            session.expires_at_ms = expires_at_ms;
        }
    }

    fn session_ended(&mut self, client_id: &str) {
        self.state().sessions.remove(client_id);
    }

    fn subscribed(&mut self, client_id: &str, filter: &str, subscription: &StoredSubscription) {
        if let Some(session) = self.state().sessions.get_mut(client_id) {
            session.subscriptions.insert(filter.into(), *subscription);
        }
    }

    fn unsubscribed(&mut self, client_id: &str, filter: &str) {
        if let Some(session) = self.state().sessions.get_mut(client_id) {
            session.subscriptions.remove(filter);
        }
    }

    fn retained_set(&mut self, message: &Arc<Message>) {
        self.state()
            .retained
            .insert(message.topic().into(), Arc::clone(message));
    }

    fn retained_cleared(&mut self, topic: &str) {
        self.state().retained.remove(topic);
    }

    fn enqueued(&mut self, queue: QueueName<'_>, entry: StoredEntry) {
        if let Some(queue) = self.state().queue(queue) {
            queue.push(entry);
        }
    }

    fn advanced(&mut self, queue: QueueName<'_>, tag: u64, phase: Phase) {
        if let Some(queue) = self.state().queue(queue) {
            queue.advance(tag, phase);
        }
    }

    fn failed(&mut self, queue: QueueName<'_>, tag: u64, failures: u16) {
        if let Some(entry) = self
            .state()
            .queue(queue)
            .and_then(|queue| queue.get_mut(tag))
        {
            entry.failures = failures;
        }
    }

    fn settled(&mut self, queue: QueueName<'_>, tag: u64) {
        if let Some(queue) = self.state().queue(queue) {
            queue.remove(tag);
        }
    }

    fn group_ended(&mut self, filter: &str) {
        self.state().groups.remove(filter);
    }

    fn protocol_saved(&mut self, client_id: &str, snapshot: &[u8]) {
        if let Some(session) = self.state().sessions.get_mut(client_id) {
            session.protocol = Some(snapshot.into());
        }
    }

    fn load(&mut self, share: Share) -> Stored {
        let state = self.state();
        let sessions = state
            .sessions
            .iter()
            .filter(|(client_id, session)| share.holds(client_id) && session.expiry_s > 0)
            .map(|(client_id, session)| StoredSession {
                client_id: client_id.clone(),
                user: session.user.clone(),
                expiry_s: session.expiry_s,
                expires_at_ms: session.expires_at_ms,
                subscriptions: session
                    .subscriptions
                    .iter()
                    .map(|(filter, subscription)| (filter.clone(), *subscription))
                    .collect(),
                entries: session.queue.entries(),
                protocol: session.protocol.clone(),
            })
            .collect();
        // A group lives as long as it has members.
        let has_members = |filter: &str| {
            state
                .sessions
                .values()
                .any(|session| session.expiry_s > 0 && session.subscriptions.contains_key(filter))
        };
        let groups = state
            .groups
            .iter()
            .filter(|(filter, _)| share.holds(filter) && has_members(filter))
            .map(|(filter, queue)| (filter.clone(), queue.entries()))
            .collect();
        let retained = if share.holds_retained() {
            state.retained.values().cloned().collect()
        } else {
            Vec::new()
        };
        Stored {
            sessions,
            groups,
            retained,
        }
    }
}
