//! Limited use by users, counted over all doors and shards: connections and publications.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::pace::Pace;

/// A user; `None` for clients without a name, who are one user.
type User = Option<Arc<str>>;

/// Users that are kept before any is looked at again.
const LEAST_USERS: usize = 64;

/// Connections of limited users, over all shards.
#[derive(Debug, Default)]
pub struct Seats {
    users: Mutex<Users>,
}

#[derive(Debug, Default)]
struct Users {
    /// Users choose the names of their clients, so the maps must not become slow by chosen ones.
    accounts: HashMap<User, Account>,
    /// The number of accounts at which those that are away are looked at again.
    look_at: usize,
}

/// The use of one user.
#[derive(Debug, Default)]
struct Account {
    /// The names of its clients, and the number of connections of each.
    clients: HashMap<Arc<str>, u32>,
    /// It outlives the connections, so that a new one pays what an older one owes.
    pace: Arc<Pace>,
}

/// The seat of one connection, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    seats: Arc<Seats>,
    user: User,
    client: Arc<str>,
    pace: Arc<Pace>,
}

impl Users {
    /// Forgets users that are away and owe nothing; of those that are away and owe, it keeps
    /// `most`.
    fn forget(&mut self, now_ms: u64, most: u32) {
        if self.accounts.len() < self.look_at.max(LEAST_USERS) {
            return;
        }
        let mut away = 0;
        self.accounts.retain(|_, account| {
            if !account.clients.is_empty() {
                return true;
            }
            away += u32::from(account.pace.owes(now_ms));
            account.pace.owes(now_ms) && away <= most
        });
        self.look_at = 2 * self.accounts.len();
    }
}

impl Seats {
    /// A seat for a connection of a user; `None` where others have as many as there may be. Connections whose
    /// client has the same name have one seat together: the newer one takes the older one's place. `now_ms`
    /// comes with the number of users that may be remembered while they are away.
    pub(crate) fn take(
        self: &Arc<Self>,
        user: Option<&Arc<str>>,
        client: &Arc<str>,
        most: Option<u32>,
        (now_ms, away): (u64, u32),
    ) -> Option<Seat> {
        // Many connections have one: their texts are those that the door has anyway.
        let user: User = user.cloned();
        let mut users = self.users();
        users.forget(now_ms, away);
        let account = users.accounts.entry(user.clone()).or_default();
        let is_full = most.is_some_and(|most| account.clients.len() >= most as usize);
        if is_full && !account.clients.contains_key(client) {
            return None;
        }
        *account.clients.entry(Arc::clone(client)).or_default() += 1;
        let pace = Arc::clone(&account.pace);
        drop(users);
        Some(Seat {
            seats: Arc::clone(self),
            user,
            client: Arc::clone(client),
            pace,
        })
    }

    fn users(&self) -> MutexGuard<'_, Users> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// The user whose seat it is.
    pub(crate) fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The pace of its user's publications, on all connections.
    pub(crate) fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Whether it is the seat of this user's client of this name.
    pub(crate) fn is_of(&self, user: Option<&str>, client: &str) -> bool {
        self.user() == user && &*self.client == client
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut users = self.seats.users();
        let Some(account) = users.accounts.get_mut(&self.user) else {
            return;
        };
        if let Some(count) = account.clients.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                account.clients.remove(&self.client);
            }
        }
        if account.clients.is_empty() && account.pace.is_unused() {
            users.accounts.remove(&self.user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Limit;
    use crate::pace::Rates;

    #[test]
    fn a_user_has_so_many_seats_and_gets_them_back() {
        let seats = Arc::new(Seats::default());
        let take = |user: Option<&str>, client: &str| {
            let user: User = user.map(Arc::from);
            seats.take(user.as_ref(), &client.into(), Some(2), (0, 9))
        };
        let first = take(Some("ann"), "a").expect("a seat");
        let _second = take(Some("ann"), "b").expect("a seat");
        assert!(take(Some("ann"), "c").is_none());
        let again = take(Some("ann"), "a").expect("the place of the older one");
        drop(first);
        assert!(take(Some("ann"), "c").is_none(), "the newer one is there");
        drop(again);
        assert!(take(Some("ann"), "c").is_some());
        let nobody = take(None, "a").expect("another user");
        drop(nobody);
        assert_eq!(seats.users().accounts.len(), 1, "who is gone is forgotten");
    }

    #[test]
    fn who_owes_is_remembered_until_it_is_paid_and_only_so_many_are() {
        let rates = Rates::of(&Limit {
            messages_per_s: Some(1),
            ..Limit::default()
        });
        let seats = Arc::new(Seats::default());
        let come = |number: u32, now_ms| {
            let name = Arc::from(number.to_string());
            let seat = seats.take(Some(&name), &"c".into(), None, (now_ms, 100));
            let seat = seat.expect("a seat");
            seat.pace().take(&rates, now_ms, 0);
            seat
        };
        let debtor = come(0, 0);
        for _ in 0..10 {
            debtor.pace().take(&rates, 0, 0);
        }
        drop(debtor);
        let again = come(0, 1_000);
        assert!(
            again.pace().take(&rates, 1_000, 0) > 10_000,
            "it owes still"
        );
        drop(again);
        for number in 1..10_000 {
            drop(come(number, 1_000));
        }
        let most = seats.users().accounts.len();
        assert!(most <= 2 * 101 + LEAST_USERS, "{most}");
        for number in 0..1_000 {
            drop(come(number, 100_000 + 2_000 * u64::from(number)));
        }
        let left = seats.users().accounts.len();
        assert!(left <= 2 * LEAST_USERS, "{left}");
    }
}
