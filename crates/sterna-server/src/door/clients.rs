//! The clients of a door. A client is out of its place while a step works on it, since the step has the
//! door as well.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Clients<I, C>(FxHashMap<I, Option<Box<C>>>);

impl<I, C> Default for Clients<I, C> {
    fn default() -> Self {
        Self(FxHashMap::default())
    }
}

impl<I: Copy + Eq + Hash, C> Clients<I, C> {
    /// Number of clients.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no client.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there is such a client.
    pub(crate) fn has(&self, id: I) -> bool {
        self.0.contains_key(&id)
    }

    /// All clients.
    pub(crate) fn ids(&self) -> impl Iterator<Item = I> {
        self.0.keys().copied()
    }

    /// All clients that are in their places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &C> {
        self.0.values().filter_map(Option::as_deref)
    }

    /// A client in its place.
    pub(crate) fn get(&self, id: I) -> Option<&C> {
        self.0.get(&id)?.as_deref()
    }

    /// A client in its place.
    pub(crate) fn get_mut(&mut self, id: I) -> Option<&mut C> {
        self.0.get_mut(&id)?.as_deref_mut()
    }

    /// Adds a client.
    pub(crate) fn insert(&mut self, id: I, client: C) {
        let before = self.0.insert(id, Some(Box::new(client)));
        debug_assert!(before.is_none(), "a client comes once");
    }

    /// Takes a client out of its place for a step.
    pub(crate) fn take(&mut self, id: I) -> Option<Box<C>> {
        self.0.get_mut(&id)?.take()
    }

    /// Puts a client back into its place; false if that is gone.
    pub(crate) fn put_back(&mut self, id: I, client: Box<C>) -> bool {
        let place = self.0.get_mut(&id);
        let Some(place) = place else { return false };
        debug_assert!(place.is_none(), "a client comes back to its own place");
        *place = Some(client);
        true
    }

    /// Takes a client away for good.
    pub(crate) fn remove(&mut self, id: I) -> Option<Box<C>> {
        self.0.remove(&id)?
    }
}
