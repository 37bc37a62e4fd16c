//! The server's side of session tickets: stateful, used once, bounded.
//!
//! A ticket is only a key: its session stays here, and leaves with its first use. So a replayed
//! first flight falls back to a full handshake (RFC 8446, section 8.1). One store serves all shards
//! and listeners, because a client may return to any of them.

use std::collections::hash_map::Entry as Slot;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;
use rustls::server::StoresServerSessions;

/// Length of the keys that rustls makes, in bytes: random, hence a cheap hash is safe.
const KEY_BYTES: usize = 32;
type Key = [u8; KEY_BYTES];

/// No neighbour in the list of age.
const NONE: u32 = u32::MAX;

/// Sessions that can be resumed. When it is full the oldest make room.
pub struct TicketStore {
    max_sessions: usize,
    max_bytes: usize,
    sessions: Mutex<Sessions>,
}

#[derive(Default)]
struct Sessions {
    index: FxHashMap<Key, u32>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    oldest: Option<u32>,
    newest: Option<u32>,
    bytes: usize,
    evicted: u64,
    unknown: u64,
}

struct Entry {
    key: Key,
    value: Box<[u8]>,
    older: u32,
    newer: u32,
}

/// Content of a [`TicketStore`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TicketStoreUse {
    /// Sessions that can be resumed.
    pub sessions: usize,
    /// Bytes of their state, without the index.
    pub bytes: usize,
    /// Sessions that made room for newer ones so far.
    pub evicted: u64,
    /// Number of shown tickets without a session. They were used before, as in a replay, pushed
    /// out, or older than the process.
    pub unknown: u64,
}

impl TicketStore {
    /// Typical state of a session without client certificates, in bytes.
    pub const TYPICAL_SESSION_BYTES: usize = 160;

    /// An empty store for at most N sessions. Its memory grows with the sessions: about 300 bytes
    /// each.
    #[must_use]
    pub fn new(max_sessions: usize) -> Self {
        // Sessions with client certificates are larger; they share the same budget.
        Self {
            max_sessions: max_sessions.min(NONE as usize),
            max_bytes: max_sessions.saturating_mul(2 * Self::TYPICAL_SESSION_BYTES),
            sessions: Mutex::default(),
        }
    }

    /// The store's present content.
    #[must_use]
    pub fn usage(&self) -> TicketStoreUse {
        let sessions = self.lock();
        TicketStoreUse {
            sessions: sessions.index.len(),
            bytes: sessions.bytes,
            evicted: sessions.evicted,
            unknown: sessions.unknown,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Sessions> {
        // No code below panics half-way, so a poisoned store is whole.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for TicketStore {
    /// An empty store for 100,000 sessions: about 30 MB when full.
    fn default() -> Self {
        const SESSIONS: usize = 100_000;
        Self::new(SESSIONS)
    }
}

impl fmt::Debug for TicketStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TicketStore")
            .field("max_sessions", &self.max_sessions)
            .field("usage", &self.usage())
            .finish_non_exhaustive()
    }
}

impl StoresServerSessions for TicketStore {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        let Ok(key) = Key::try_from(key) else {
            return false;
        };
        if self.max_sessions == 0 || value.len() > self.max_bytes {
            return false;
        }
        let mut sessions = self.lock();
        sessions.take(&key);
        while sessions.index.len() >= self.max_sessions
            || sessions.bytes + value.len() > self.max_bytes
        {
            sessions.evict_oldest();
        }
        sessions.insert(key, value.into_boxed_slice());
        true
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let key = Key::try_from(key).ok()?;
        let sessions = self.lock();
        let &at = sessions.index.get(&key)?;
        Some(sessions.entries[at as usize].value.to_vec())
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        let key = Key::try_from(key).ok()?;
        let mut sessions = self.lock();
        let session = sessions.take(&key);
        sessions.unknown += u64::from(session.is_none());
        session.map(Vec::from)
    }

    fn can_cache(&self) -> bool {
        self.max_sessions > 0
    }
}

impl Sessions {
    fn insert(&mut self, key: Key, value: Box<[u8]>) {
        self.bytes += value.len();
        let entry = Entry {
            key,
            value,
            older: self.newest.unwrap_or(NONE),
            newer: NONE,
        };
        let at = if let Some(at) = self.free.pop() {
            self.entries[at as usize] = entry;
            at
        } else {
            self.entries.push(entry);
            (self.entries.len() - 1) as u32
        };
        if let Some(newest) = self.newest {
            self.entries[newest as usize].newer = at;
        }
        self.newest = Some(at);
        self.oldest.get_or_insert(at);
        self.index.insert(key, at);
    }

    fn take(&mut self, key: &Key) -> Option<Box<[u8]>> {
        let Slot::Occupied(slot) = self.index.entry(*key) else {
            return None;
        };
        let at = slot.remove();
        let Entry {
            value,
            older,
            newer,
            ..
        } = &mut self.entries[at as usize];
        let (value, older, newer) = (std::mem::take(value), *older, *newer);
        match older {
            NONE => self.oldest = (newer != NONE).then_some(newer),
            older => self.entries[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = (older != NONE).then_some(older),
            newer => self.entries[newer as usize].older = older,
        }
        self.bytes -= value.len();
        self.free.push(at);
        Some(value)
    }

    fn evict_oldest(&mut self) {
        let Some(oldest) = self.oldest else { return };
        let key = self.entries[oldest as usize].key;
        self.take(&key);
        self.evicted += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn key(n: u8) -> Vec<u8> {
        vec![n; KEY_BYTES]
    }

    #[test]
    fn a_session_leaves_with_its_first_use() {
        let store = TicketStore::new(8);
        assert!(store.put(key(1), vec![7; 100]));
        assert_eq!(store.get(&key(1)), Some(vec![7; 100]));
        assert_eq!(store.take(&key(1)), Some(vec![7; 100]));
        assert_eq!(store.take(&key(1)), None);
        let usage = TicketStoreUse {
            unknown: 1,
            ..TicketStoreUse::default()
        };
        assert_eq!(store.usage(), usage);
    }

    #[test]
    fn a_store_for_nothing_takes_nothing() {
        let store = TicketStore::new(0);
        assert!(!store.can_cache());
        assert!(!store.put(key(1), vec![7; 100]));
        assert!(!TicketStore::new(4).put(vec![1; 3], vec![7]));
        assert!(!TicketStore::new(1).put(key(1), vec![7; 100_000]));
    }

    proptest! {
        /// The store behaves as a queue of bounded length from which entries can be taken by key.
        #[test]
        fn oldest_make_room(steps in prop::collection::vec((any::<bool>(), 0u8..30, 1usize..600), 1..300)) {
            let store = TicketStore::new(10);
            let mut model: VecDeque<(u8, usize)> = VecDeque::new();
            for (put, n, bytes) in steps {
                let held = model.iter().position(|(key, _)| *key == n);
                let held = held.and_then(|at| model.remove(at));
                if put {
                    while model.len() >= 10 || model.iter().map(|(_, b)| b).sum::<usize>() + bytes > store.max_bytes {
                        model.pop_front();
                    }
                    model.push_back((n, bytes));
                    prop_assert!(store.put(key(n), vec![n; bytes]));
                } else {
                    prop_assert_eq!(store.take(&key(n)), held.map(|(n, bytes)| vec![n; bytes]));
                }
                let usage = store.usage();
                prop_assert_eq!(usage.sessions, model.len());
                prop_assert_eq!(usage.bytes, model.iter().map(|(_, b)| b).sum::<usize>());
            }
            for (n, bytes) in model {
                prop_assert_eq!(store.take(&key(n)), Some(vec![n; bytes]));
            }
        }
    }
}
