//! The clients of a door, each of which is out of its place while a step works on it: the step has the
//! door as well.

use rustc_hash::FxHashMap;
use sterna_net::ConnectionId;

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Clients<C>(FxHashMap<ConnectionId, Option<Box<C>>>);

impl<C> Default for Clients<C> {
    fn default() -> Self {
        Self(FxHashMap::default())
    }
}

impl<C> Clients<C> {
    /// Number of clients.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no client.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a connection is a client's.
    pub(crate) fn has(&self, connection: ConnectionId) -> bool {
        self.0.contains_key(&connection)
    }

    /// The connections of all clients.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ConnectionId> {
        self.0.keys().copied()
    }

    /// A client in its place.
    pub(crate) fn get(&self, connection: ConnectionId) -> Option<&C> {
        self.0.get(&connection)?.as_deref()
    }

    /// A client in its place.
    pub(crate) fn get_mut(&mut self, connection: ConnectionId) -> Option<&mut C> {
        self.0.get_mut(&connection)?.as_deref_mut()
    }

    /// All clients in their places.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut C> {
        self.0.values_mut().flatten().map(|client| &mut **client)
    }

    /// Adds a client.
    pub(crate) fn insert(&mut self, connection: ConnectionId, client: C) {
        self.0.insert(connection, Some(Box::new(client)));
    }

    /// Takes a client out of its place for a step.
    pub(crate) fn take(&mut self, connection: ConnectionId) -> Option<Box<C>> {
        self.0.get_mut(&connection)?.take()
    }

    /// Puts a client back into its place, unless that is gone.
    pub(crate) fn put_back(&mut self, connection: ConnectionId, client: Box<C>) {
        if let Some(place) = self.0.get_mut(&connection) {
            *place = Some(client);
        }
    }

    /// Takes a client away for good.
    pub(crate) fn remove(&mut self, connection: ConnectionId) -> Option<Box<C>> {
        self.0.remove(&connection)?
    }
}
