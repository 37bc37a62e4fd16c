//! Which shard has which client's session, and which user the session belongs to.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use slab::Slab;

use super::locked;
use crate::hash::KeyedState;

/// A session's place, as registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner {
    pub(crate) shard: u16,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// The result of a claim.
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
    /// There was none, and there may not be more, of all users or of this one.
    Full,
    /// There is one, and it belongs to another user; nothing was changed.
    Foreign,
}

/// Split so that shards that take in connections at the same time seldom meet.
const PARTS: usize = 16;

#[derive(Debug)]
struct Part {
    sessions: HashMap<Arc<str>, Entry, KeyedState>,
    users: Users,
}

/// There may be millions, so it has numbers only.
#[derive(Clone, Copy, Debug)]
struct Entry {
    owner: Owner,
    /// The user that the session belongs to. It is fixed for as long as there is a session.
    user: User,
}

/// The number of a user in [`Users`], or one of these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct User(u32);

impl User {
    /// Clients without a name.
    const NOBODY: Self = Self(u32::MAX);
    /// The user has the same name as the client.
    const NAMESAKE: Self = Self(u32::MAX - 1);
}

/// The names of users, each once.
#[derive(Debug)]
struct Users {
    numbers: HashMap<Arc<str>, u32, KeyedState>,
    /// With the number of sessions that belong to each.
    names: Slab<(Arc<str>, u32)>,
    /// Number of sessions of clients without a name.
    nameless: u32,
}

impl Users {
    /// Counts a session of a user.
    fn enter(&mut self, user: Option<&str>, client_id: &str) -> User {
        let Some(name) = user else {
            self.nameless += 1;
            return User::NOBODY;
        };
        if name == client_id {
            return User::NAMESAKE;
        }
        let number = if let Some(&number) = self.numbers.get(name) {
            number
        } else {
            let name = Arc::<str>::from(name);
            let number = self.names.insert((Arc::clone(&name), 0)) as u32;
            self.numbers.insert(name, number);
            number
        };
        self.names[number as usize].1 += 1;
        User(number)
    }

    /// Counts a session of a user out.
    fn leave(&mut self, user: User) {
        self.nameless -= u32::from(user == User::NOBODY);
        let Some((name, sessions)) = self.names.get_mut(user.0 as usize) else {
            return; // it has no number
        };
        *sessions -= 1;
        if *sessions == 0 {
            self.numbers.remove(name);
            self.names.remove(user.0 as usize);
            if self.names.capacity() > 1024 && self.names.capacity() > 8 * self.names.len() {
                self.names.shrink_to_fit();
                self.numbers.shrink_to_fit();
            }
        }
    }

    /// The name of a client's user.
    fn name<'a>(&'a self, user: User, client_id: &'a Arc<str>) -> Option<&'a Arc<str>> {
        match user {
            User::NOBODY => None,
            User::NAMESAKE => Some(client_id),
            User(number) => self.names.get(number as usize).map(|(name, _)| name),
        }
    }
}

/// The owner of the new session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owned<'a> {
    /// `None` for clients without a name, who are one user.
    pub(crate) user: Option<&'a str>,
    /// Sessions that the user may have; `None` for any number.
    pub(crate) most_of_user: Option<u32>,
}

#[derive(Debug)]
pub(crate) struct Registry {
    hashing: KeyedState,
    parts: [Mutex<Part>; PARTS],
    /// Held while the sessions of a user are counted, and one is added. Locked before any part.
    counting: Mutex<()>,
}

impl Registry {
    pub(crate) fn new(hashing: KeyedState) -> Self {
        let parts = std::array::from_fn(|_| {
            Mutex::new(Part {
                sessions: HashMap::with_hasher(hashing),
                users: Users {
                    numbers: HashMap::with_hasher(hashing),
                    names: Slab::new(),
                    nameless: 0,
                },
            })
        });
        Self {
            hashing,
            parts,
            counting: Mutex::new(()),
        }
    }

    fn part(&self, client_id: &str) -> &Mutex<Part> {
        // The lowest bits choose the bucket within a table; other bits choose the table.
        &self.parts[(self.hashing.hash_text(client_id) >> 32) as usize % PARTS]
    }

    pub(crate) fn owner(&self, client_id: &str) -> Option<Owner> {
        let part = locked(self.part(client_id));
        part.sessions.get(client_id).map(|entry| entry.owner)
    }

    /// The text of a registered client identifier.
    pub(crate) fn name(&self, client_id: &str) -> Option<Arc<str>> {
        let part = locked(self.part(client_id));
        let known = part.sessions.get_key_value(client_id);
        known.map(|(name, _)| Arc::clone(name))
    }

    /// The user that a session belongs to; `None` also where there is no session.
    pub(crate) fn user(&self, client_id: &str) -> Option<Arc<str>> {
        let part = locked(self.part(client_id));
        let (name, entry) = part.sessions.get_key_value(client_id)?;
        part.users.name(entry.user, name).cloned()
    }

    /// Number of sessions of a user; without a name, of all clients without one.
    fn sessions_of(&self, user: Option<&str>) -> u32 {
        let parts = self.parts.iter().map(|part| {
            let part = locked(part);
            let Some(name) = user else {
                return part.users.nameless;
            };
            let number = part.users.numbers.get(name);
            let known = number.and_then(|&number| part.users.names.get(number as usize));
            let namesake = part.sessions.get(name);
            let has_namesake = namesake.is_some_and(|entry| entry.user == User::NAMESAKE);
            known.map_or(0, |(_, sessions)| *sessions) + u32::from(has_namesake)
        });
        parts.sum()
    }

    pub(crate) fn claim(
        &self,
        client_id: &str,
        owned: Owned<'_>,
        shard: u16,
        make: impl FnOnce() -> Owner,
        admit: impl FnOnce() -> bool,
    ) -> Claimed {
        let counting = owned
            .most_of_user
            .map(|most| (locked(&self.counting), most));
        let is_full = counting
            .as_ref()
            .is_some_and(|(_, most)| self.sessions_of(owned.user) >= *most);
        let mut part = locked(self.part(client_id));
        let part = &mut *part;
        if let Some((
            client_id,
            &Entry {
                owner: old,
                user: known,
            },
        )) = part.sessions.get_key_value(client_id)
        {
            if part.users.name(known, client_id).map(|name| &**name) != owned.user {
                return Claimed::Foreign;
            }
            if old.shard == shard {
                return Claimed::Here(old);
            }
            let client_id = Arc::clone(client_id);
            let new = make();
            if let Some(entry) = part.sessions.get_mut(&client_id) {
                entry.owner = new;
            }
            return Claimed::Elsewhere {
                client_id,
                old,
                new,
            };
        }
        if is_full || !admit() {
            return Claimed::Full;
        }
        let client_id = Arc::<str>::from(client_id);
        let entry = Entry {
            owner: make(),
            user: part.users.enter(owned.user, &client_id),
        };
        part.sessions.insert(Arc::clone(&client_id), entry);
        Claimed::New { client_id }
    }

    /// Registers `new` in the place of `old`; false where `old` is not registered any more.
    pub(crate) fn replace(&self, client_id: &str, old: Owner, new: Owner) -> bool {
        match locked(self.part(client_id)).sessions.get_mut(client_id) {
            Some(entry) if entry.owner == old => {
                entry.owner = new;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn remove(&self, client_id: &str, owner: Owner) -> bool {
        let mut part = locked(self.part(client_id));
        let known = part.sessions.get(client_id).copied();
        let Some(entry) = known.filter(|entry| entry.owner == owner) else {
            return false;
        };
        part.users.leave(entry.user);
        let sessions = &mut part.sessions;
        sessions.remove(client_id);
        if sessions.capacity() > 1024 && sessions.capacity() > 8 * sessions.len() {
            sessions.shrink_to_fit();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names are compared, not numbers: a number is another user's when its own has gone.
    #[test]
    fn users_are_told_apart_and_forgotten_with_their_last_session() {
        let registry = Registry::new(KeyedState::new(7));
        let owner = Owner {
            shard: 0,
            slot: 1,
            generation: 1,
        };
        let claim = |client_id: &str, user: Option<&str>| {
            let whose = Owned {
                user,
                most_of_user: None,
            };
            registry.claim(client_id, whose, 0, || owner, || true)
        };
        let users = || {
            let parts = registry.parts.iter().map(|part| locked(part));
            parts
                .map(|part| (part.users.names.len(), part.users.numbers.len()))
                .fold((0, 0), |(names, numbers), part| {
                    (names + part.0, numbers + part.1)
                })
        };
        let sessions = [
            ("anonymous", None),
            ("self", Some("self")),
            ("a", Some("fleet")),
            ("b", Some("fleet")),
            ("c", Some("other")),
        ];
        for (client_id, user) in sessions {
            assert!(matches!(claim(client_id, user), Claimed::New { .. }));
        }
        for (client_id, user) in sessions {
            assert_eq!(registry.user(client_id).as_deref(), user);
            for other in [
                None,
                Some("self"),
                Some("fleet"),
                Some("other"),
                Some(client_id),
            ] {
                let claimed = claim(client_id, other);
                assert_eq!(
                    matches!(claimed, Claimed::Here(_)),
                    other == user,
                    "{client_id}"
                );
                assert_eq!(
                    matches!(claimed, Claimed::Foreign),
                    other != user,
                    "{client_id}"
                );
            }
        }
        let count = |user: Option<&str>| registry.sessions_of(user);
        assert_eq!([None, Some("self")].map(count), [1, 1]);
        assert_eq!([Some("fleet"), Some("nobody")].map(count), [2, 0]);
        for (client_id, _) in sessions {
            assert!(registry.remove(client_id, owner));
            assert_eq!(registry.user(client_id), None);
        }
        assert_eq!(users(), (0, 0));
        assert!(matches!(claim("a", Some("another")), Claimed::New { .. }));
        assert!(matches!(claim("a", Some("fleet")), Claimed::Foreign));
    }
}
