//! Which shard has which client's session, and which user the session belongs to.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::locked;
use crate::hash::KeyedState;

/// A session's place, as registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner {
    pub(crate) shard: u16,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// What a claim found.
#[derive(Debug)]
pub(crate) enum Claimed {
    /// The shard itself has the session; nothing was changed.
    Here(Owner),
    /// Another shard has had it until now.
    Elsewhere {
        client_id: Arc<str>,
        old: Owner,
        new: Owner,
    },
    /// There was none.
    New { client_id: Arc<str> },
    /// There was none, and there may not be more.
    Full,
    /// There is one, and it belongs to another user; nothing was changed.
    Foreign,
}

/// Split so that shards that take in connections at the same time seldom meet.
const PARTS: usize = 16;

type Part = HashMap<Arc<str>, Entry, KeyedState>;

#[derive(Debug)]
struct Entry {
    owner: Owner,
    /// The user that the session belongs to; `None` for clients without a name. It is fixed for as long
    /// as there is a session.
    user: Option<Arc<str>>,
}

#[derive(Debug)]
pub(crate) struct Registry {
    hashing: KeyedState,
    parts: [Mutex<Part>; PARTS],
}

impl Registry {
    pub(crate) fn new(hashing: KeyedState) -> Self {
        let parts = std::array::from_fn(|_| Mutex::new(HashMap::with_hasher(hashing)));
        Self { hashing, parts }
    }

    fn part(&self, client_id: &str) -> &Mutex<Part> {
        // The lowest bits choose the bucket within a table; other bits choose the table.
        &self.parts[(self.hashing.hash_text(client_id) >> 32) as usize % PARTS]
    }

    pub(crate) fn owner(&self, client_id: &str) -> Option<Owner> {
        let part = locked(self.part(client_id));
        part.get(client_id).map(|entry| entry.owner)
    }

    /// The user that a session belongs to; `None` also where there is no session.
    pub(crate) fn user(&self, client_id: &str) -> Option<Arc<str>> {
        locked(self.part(client_id)).get(client_id)?.user.clone()
    }

    pub(crate) fn claim(
        &self,
        client_id: &str,
        user: Option<&str>,
        shard: u16,
        make: impl FnOnce() -> Owner,
        admit: impl FnOnce() -> bool,
    ) -> Claimed {
        let mut part = locked(self.part(client_id));
        let known = part
            .get_key_value(client_id)
            .map(|(known, _)| Arc::clone(known));
        if let Some(client_id) = known
            && let Some(entry) = part.get_mut(&client_id)
        {
            if entry.user.as_deref() != user {
                return Claimed::Foreign;
            }
            if entry.owner.shard == shard {
                return Claimed::Here(entry.owner);
            }
            let new = make();
            let old = std::mem::replace(&mut entry.owner, new);
            return Claimed::Elsewhere {
                client_id,
                old,
                new,
            };
        }
        if !admit() {
            return Claimed::Full;
        }
        let client_id = Arc::<str>::from(client_id);
        let entry = Entry {
            owner: make(),
            user: user.map(Arc::from),
        };
        part.insert(Arc::clone(&client_id), entry);
        Claimed::New { client_id }
    }

    /// Registers `new` in the place of `old`; false where `old` is not registered any more.
    pub(crate) fn replace(&self, client_id: &str, old: Owner, new: Owner) -> bool {
        match locked(self.part(client_id)).get_mut(client_id) {
            Some(entry) if entry.owner == old => {
                entry.owner = new;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn remove(&self, client_id: &str, owner: Owner) -> bool {
        let mut part = locked(self.part(client_id));
        if part.get(client_id).map(|entry| entry.owner) != Some(owner) {
            return false;
        }
        part.remove(client_id);
        if part.capacity() > 1024 && part.capacity() > 8 * part.len() {
            part.shrink_to_fit();
        }
        true
    }
}
