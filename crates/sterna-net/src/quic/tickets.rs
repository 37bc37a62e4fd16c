//! The server's side of session tickets: stateful, used once, bounded.
//!
//! A ticket is only a key: its session stays here, and leaves with its first use. So a replayed
//! first flight falls back to a full handshake (RFC 8446, section 8.1). One store serves all shards
//! and listeners, because a client may return to any of them.
//!
//! Where the store is full, the oldest session of the address that has most makes room. So whoever
//! connects all the time pushes out own sessions, and not the one that a sleeping device returns with.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::hash_map::Entry as Slot;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;
use rustls::server::StoresServerSessions;

use crate::peers::{Host, host_of};

/// Length of the keys that rustls makes, in bytes: random, hence a cheap hash is safe.
const KEY_BYTES: usize = 32;
type Key = [u8; KEY_BYTES];

/// No neighbour in the list of age.
const NONE: u32 = u32::MAX;

thread_local! {
    /// The address whose packet is handled on this thread: the TLS library does not tell the store.
    static PEER: Cell<Host> = const { Cell::new(0) };
}

/// Files sessions that are put from now on, on this thread, under this address.
pub(super) fn issue_to(peer: IpAddr) {
    PEER.set(host_of(peer));
}

/// Sessions that can be resumed.
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
    /// Peers choose the keys, so the map must not become slow by chosen keys.
    owners: HashMap<Host, Owned>,
    /// The owners by how much they have, then by the age of the oldest: the last one is to make room.
    ranks: BTreeMap<Rank, Host>,
    /// Sessions that were put so far.
    put: u64,
    bytes: usize,
    evicted: u64,
    unknown: u64,
}

/// Number of sessions, and the age of the oldest.
type Rank = (u32, Reverse<u64>);

struct Entry {
    key: Key,
    value: Box<[u8]>,
    owner: Host,
    /// As how many were put before it.
    age: u64,
    older: u32,
    newer: u32,
}

/// Sessions of one address; there is at least one.
struct Owned {
    count: u32,
    oldest: u32,
    newest: u32,
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
    /// each, and 100 for each address.
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
            sessions.evict();
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
        let owner = PEER.get();
        self.bytes += value.len();
        self.unrank(owner);
        let entry = Entry {
            key,
            value,
            owner,
            age: self.put,
            older: self.owners.get(&owner).map_or(NONE, |theirs| theirs.newest),
            newer: NONE,
        };
        self.put += 1;
        let at = if let Some(at) = self.free.pop() {
            self.entries[at as usize] = entry;
            at
        } else {
            self.entries.push(entry);
            (self.entries.len() - 1) as u32
        };
        let theirs = self.owners.entry(owner).or_insert(Owned {
            count: 0,
            oldest: at,
            newest: at,
        });
        if theirs.count > 0 {
            self.entries[theirs.newest as usize].newer = at;
        }
        theirs.newest = at;
        theirs.count += 1;
        self.rank(owner);
        self.index.insert(key, at);
    }

    fn take(&mut self, key: &Key) -> Option<Box<[u8]>> {
        let Slot::Occupied(slot) = self.index.entry(*key) else {
            return None;
        };
        let at = slot.remove();
        let owner = self.entries[at as usize].owner;
        self.unrank(owner);
        let Entry {
            value,
            older,
            newer,
            ..
        } = &mut self.entries[at as usize];
        let (value, older, newer) = (std::mem::take(value), *older, *newer);
        if older != NONE {
            self.entries[older as usize].newer = newer;
        }
        if newer != NONE {
            self.entries[newer as usize].older = older;
        }
        if let Some(theirs) = self.owners.get_mut(&owner) {
            theirs.count -= 1;
            if older == NONE {
                theirs.oldest = newer;
            }
            if newer == NONE {
                theirs.newest = older;
            }
            if theirs.count == 0 {
                self.owners.remove(&owner);
            }
        }
        self.rank(owner);
        self.bytes -= value.len();
        self.free.push(at);
        Some(value)
    }

    fn rank_of(&self, owner: Host) -> Option<Rank> {
        let theirs = self.owners.get(&owner)?;
        let age = self.entries[theirs.oldest as usize].age;
        Some((theirs.count, Reverse(age)))
    }

    fn rank(&mut self, owner: Host) {
        if let Some(rank) = self.rank_of(owner) {
            self.ranks.insert(rank, owner);
        }
    }

    fn unrank(&mut self, owner: Host) {
        if let Some(rank) = self.rank_of(owner) {
            self.ranks.remove(&rank);
        }
    }

    /// Makes room: the oldest session of the address that has most goes.
    fn evict(&mut self) {
        let last = self.ranks.last_key_value();
        let Some(theirs) = last.and_then(|(_, owner)| self.owners.get(owner)) else {
            return;
        };
        let key = self.entries[theirs.oldest as usize].key;
        self.take(&key);
        self.evicted += 1;
    }
}

#[cfg(test)]
mod tests {
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
        /// The store behaves as a list from which entries can be taken by key, and in which the oldest of whoever has most
        /// makes room.
        #[test]
        fn the_oldest_of_whoever_has_most_makes_room(
            steps in prop::collection::vec((any::<bool>(), 0u8..30, 1usize..600, 1u8..4), 1..300),
        ) {
            let store = TicketStore::new(10);
            let mut model: Vec<(u8, usize, u8)> = Vec::new();
            for (put, n, bytes, owner) in steps {
                let held = model.iter().position(|(key, ..)| *key == n).map(|at| model.remove(at));
                if put {
                    let sum = |model: &[(u8, usize, u8)]| model.iter().map(|(_, b, _)| b).sum::<usize>();
                    while model.len() >= 10 || sum(&model) + bytes > store.max_bytes {
                        let count = |owner| model.iter().filter(|(.., own)| *own == owner).count();
                        let most = model.iter().map(|(.., owner)| count(*owner)).max();
                        let at = model.iter().position(|(.., owner)| Some(count(*owner)) == most);
                        model.remove(at.expect("there is one"));
                    }
                    model.push((n, bytes, owner));
                    issue_to([10, 0, 0, owner].into());
                    prop_assert!(store.put(key(n), vec![n; bytes]));
                } else {
                    prop_assert_eq!(store.take(&key(n)), held.map(|(n, bytes, _)| vec![n; bytes]));
                }
                let usage = store.usage();
                prop_assert_eq!(usage.sessions, model.len());
                prop_assert_eq!(usage.bytes, model.iter().map(|(_, b, _)| b).sum::<usize>());
                let sessions = store.lock();
                prop_assert_eq!(sessions.ranks.len(), sessions.owners.len());
            }
            for (n, bytes, _) in model {
                prop_assert_eq!(store.take(&key(n)), Some(vec![n; bytes]));
            }
            let sessions = store.lock();
            prop_assert!(sessions.owners.is_empty() && sessions.ranks.is_empty());
        }
    }
}
