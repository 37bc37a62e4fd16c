//! Connections of users that have a limit of them, counted over all doors and shards.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A user; `None` for clients without a name, who are one user.
type User = Option<Arc<str>>;

/// See the module.
#[derive(Debug, Default)]
pub struct Seats {
    /// For each user, the names of its clients, and the number of connections of each. Users choose the names, so
    /// the maps must not become slow by chosen ones.
    users: Mutex<HashMap<User, HashMap<Box<str>, u32>>>,
}

/// The seat of one connection, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    seats: Arc<Seats>,
    user: User,
    client: Box<str>,
}

impl Seats {
    /// A seat for a connection of a user; `None` where others have as many as there may be. Connections whose
    /// client has the same name have one seat together: the newer one takes the older one's place.
    pub(crate) fn take(
        self: &Arc<Self>,
        user: Option<&str>,
        client: &str,
        most: Option<u32>,
    ) -> Option<Seat> {
        let user: User = user.map(Arc::from);
        let mut users = self.users();
        let clients = users.entry(user.clone()).or_default();
        let is_full = most.is_some_and(|most| clients.len() >= most as usize);
        if is_full && !clients.contains_key(client) {
            if clients.is_empty() {
                users.remove(&user);
            }
            return None;
        }
        *clients.entry(client.into()).or_default() += 1;
        drop(users);
        Some(Seat {
            seats: Arc::clone(self),
            user,
            client: client.into(),
        })
    }

    fn users(&self) -> MutexGuard<'_, HashMap<User, HashMap<Box<str>, u32>>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// The user whose seat it is.
    pub(crate) fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// Whether it is the seat of this user's client of this name.
    pub(crate) fn is_of(&self, user: Option<&str>, client: &str) -> bool {
        self.user() == user && &*self.client == client
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut users = self.seats.users();
        let Some(clients) = users.get_mut(&self.user) else {
            return;
        };
        if let Some(count) = clients.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                clients.remove(&self.client);
            }
        }
        if clients.is_empty() {
            users.remove(&self.user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_so_many_seats_and_gets_them_back() {
        let seats = Arc::new(Seats::default());
        let take = |user, client| seats.take(user, client, Some(2));
        let first = take(Some("ann"), "a").expect("a seat");
        let _second = take(Some("ann"), "b").expect("a seat");
        assert!(take(Some("ann"), "c").is_none());
        let again = take(Some("ann"), "a").expect("the place of the older one");
        drop(first);
        assert!(take(Some("ann"), "c").is_none(), "the newer one is there");
        drop(again);
        assert!(take(Some("ann"), "c").is_some());
        let nobody = take(None, "a").expect("another user");
        assert!(seats.take(Some("bob"), "a", Some(0)).is_none());
        drop(nobody);
        assert_eq!(seats.users().len(), 1, "who is gone is forgotten");
    }
}
