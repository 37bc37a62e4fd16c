//! Which shard has which session, and how many each user has.

use std::collections::HashMap;
use std::sync::Mutex;

use super::locked;
use crate::hash::KeyedState;
use crate::name::SessionName;

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
        name: SessionName,
        old: Owner,
        new: Owner,
    },
    /// There was none.
    New { name: SessionName },
    /// There was none, and there may not be more, of all users or of this one.
    Full,
}

/// Split so that shards that take in connections at the same time seldom meet.
const PARTS: usize = 16;

#[derive(Debug)]
struct Part {
    /// There may be millions.
    sessions: HashMap<SessionName, Owner, KeyedState>,
    users: Users,
}

/// The number of sessions of each user.
#[derive(Debug)]
struct Users {
    /// Without sessions of the user's own name, which are found by that.
    sessions: HashMap<Box<str>, u32, KeyedState>,
    /// Number of sessions of clients without a name.
    nameless: u32,
}

impl Users {
    /// Counts a session.
    fn enter(&mut self, name: &SessionName) {
        match name.user() {
            None => self.nameless += 1,
            Some(_) if name.is_namesake() => {}
            Some(user) => match self.sessions.get_mut(user) {
                Some(sessions) => *sessions += 1,
                None => {
                    self.sessions.insert(user.into(), 1);
                }
            },
        }
    }

    /// Counts a session out.
    fn leave(&mut self, name: &SessionName) {
        let Some(user) = name.user() else {
            self.nameless -= 1;
            return;
        };
        let Some(sessions) = self.sessions.get_mut(user).filter(|_| !name.is_namesake()) else {
            return;
        };
        *sessions -= 1;
        if *sessions == 0 {
            self.sessions.remove(user);
            if self.sessions.capacity() > 1024 && self.sessions.capacity() > 8 * self.sessions.len()
            {
                self.sessions.shrink_to_fit();
            }
        }
    }
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
                    sessions: HashMap::with_hasher(hashing),
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

    fn part(&self, name: &str) -> &Mutex<Part> {
        // The lowest bits choose the bucket within a table; other bits choose the table.
        &self.parts[(self.hashing.hash_text(name) >> 32) as usize % PARTS]
    }

    pub(crate) fn owner(&self, name: &SessionName) -> Option<Owner> {
        locked(self.part(name.text())).sessions.get(name).copied()
    }

    /// The registry's own text of the name of a session, by that text.
    pub(crate) fn name(&self, name: &str) -> Option<SessionName> {
        let part = locked(self.part(name));
        let known = part.sessions.get_key_value(name);
        known.map(|(name, _)| name.clone())
    }

    /// Number of sessions of a user; without a name, of all clients without one.
    fn sessions_of(&self, user: Option<&str>) -> u32 {
        let parts = self.parts.iter().map(|part| {
            let part = locked(part);
            user.map_or(part.users.nameless, |user| {
                part.users.sessions.get(user).copied().unwrap_or(0)
            })
        });
        let namesake = user.map(|user| SessionName::new(Some(user), user));
        let has_namesake = namesake.is_some_and(|name| self.owner(&name).is_some());
        parts.sum::<u32>() + u32::from(has_namesake)
    }

    /// Registers a shard as the owner of a session; a new one only where its user has fewer than `most_of_user`, and
    /// `admit` says so.
    pub(crate) fn claim(
        &self,
        name: &SessionName,
        most_of_user: Option<u32>,
        shard: u16,
        make: impl FnOnce() -> Owner,
        admit: impl FnOnce() -> bool,
    ) -> Claimed {
        let counting = most_of_user.map(|most| (locked(&self.counting), most));
        let is_full = counting
            .as_ref()
            .is_some_and(|(_, most)| self.sessions_of(name.user()) >= *most);
        let mut part = locked(self.part(name.text()));
        let part = &mut *part;
        if let Some((name, &old)) = part.sessions.get_key_value(name) {
            if old.shard == shard {
                return Claimed::Here(old);
            }
            let name = name.clone();
            let new = make();
            if let Some(owner) = part.sessions.get_mut(&name) {
                *owner = new;
            }
            return Claimed::Elsewhere { name, old, new };
        }
        if is_full || !admit() {
            return Claimed::Full;
        }
        let name = name.clone();
        part.users.enter(&name);
        part.sessions.insert(name.clone(), make());
        Claimed::New { name }
    }

    /// Registers `new` in the place of `old`; false where `old` is not registered any more.
    pub(crate) fn replace(&self, name: &SessionName, old: Owner, new: Owner) -> bool {
        match locked(self.part(name.text())).sessions.get_mut(name) {
            Some(owner) if *owner == old => {
                *owner = new;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn remove(&self, name: &SessionName, owner: Owner) -> bool {
        let mut part = locked(self.part(name.text()));
        if part.sessions.get(name) != Some(&owner) {
            return false;
        }
        part.users.leave(name);
        let sessions = &mut part.sessions;
        sessions.remove(name);
        if sessions.capacity() > 1024 && sessions.capacity() > 8 * sessions.len() {
            sessions.shrink_to_fit();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_told_apart_and_forgotten_with_their_last_session() {
        let registry = Registry::new(KeyedState::new(7));
        let owner = Owner {
            shard: 0,
            slot: 1,
            generation: 1,
        };
        let claim = |user: Option<&str>, id: &str, most: Option<u32>| {
            let name = SessionName::new(user, id);
            registry.claim(&name, most, 0, || owner, || true)
        };
        let users = [None, Some(""), Some("a"), Some("fleet"), Some("self")];
        let ids = ["self", "a", "b"];
        for user in users {
            for id in ids {
                assert!(matches!(claim(user, id, Some(3)), Claimed::New { .. }));
                assert!(matches!(claim(user, id, Some(3)), Claimed::Here(_)));
            }
            assert!(matches!(claim(user, "c", Some(3)), Claimed::Full));
            assert_eq!(registry.sessions_of(user), 3, "{user:?}");
        }
        assert_eq!(registry.sessions_of(Some("nobody")), 0);
        for user in users {
            for id in ids {
                let name = SessionName::new(user, id);
                assert_eq!(registry.owner(&name), Some(owner));
                assert!(registry.remove(&name, owner) && !registry.remove(&name, owner));
                assert_eq!(registry.owner(&name), None);
            }
            assert_eq!(registry.sessions_of(user), 0, "{user:?}");
        }
        for part in &registry.parts {
            assert!(locked(part).users.sessions.is_empty());
        }
    }
}
