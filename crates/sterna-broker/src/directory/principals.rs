//! The holders of memory: users, and where clients have no user, their networks.
//!
//! Nobody has a fixed part, for a fleet may have one user or one address. The bytes of each are counted, and where
//! memory is short, the *heavy* ones cannot grow: those that hold at least half of what the heaviest holds. So two that
//! outgrow each other in turn are both heavy.

use core::net::{IpAddr, Ipv6Addr};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use slab::Slab;

use super::locked;
use crate::hash::KeyedState;

/// The number of a principal in [`Principals`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Principal(pub(crate) u32);

impl Principal {
    /// The broker itself, which is never heavy.
    pub const BROKER: Self = Self(0);
    /// All that the table has no place for, together.
    pub const OTHERS: Self = Self(1);

    /// Whether its number is of a place in the table.
    pub(crate) const fn has_place(self) -> bool {
        self.0 >= FIRST
    }
}

/// The part of the ceiling that principals hold together, where what they hold is why memory is short: a quarter.
const EXPLAINED_PART: u64 = 4;
/// The part of the ceiling that a principal holds else, to be why: a 256th.
const BURDEN_PART: u64 = 256;

/// The lowest number of a principal with a place of its own.
const FIRST: u32 = 2;

/// The name of a principal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Name {
    User(Arc<str>),
    Network(IpAddr),
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(user) => write!(f, "user {user}"),
            Self::Network(IpAddr::V4(address)) => write!(f, "address {address}"),
            Self::Network(IpAddr::V6(address)) => write!(f, "network {address}/48"),
        }
    }
}

/// The network that an address stands for, which one site has: an IPv4 address is its own, an IPv6 address belongs to
/// a /48.
#[must_use]
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 80 << 80;
            IpAddr::V6(Ipv6Addr::from(network))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[derive(Debug)]
struct Table {
    users: HashMap<Arc<str>, u32, KeyedState>,
    networks: HashMap<IpAddr, u32, KeyedState>,
    /// With the number of holders of each.
    places: Slab<(Name, u32)>,
}

/// The principals that hold something now, and their bytes.
#[derive(Debug)]
pub struct Principals {
    most: usize,
    table: Mutex<Table>,
    /// By number.
    bytes: Box<[AtomicU64]>,
    /// Of all bytes those that last: sessions with what belongs to them.
    lasting_bytes: AtomicU64,
    /// Bytes that the heaviest held at the last [`judge`](Self::judge).
    heaviest_bytes: AtomicU64,
    /// Bytes below which a principal is no burden, however little the others hold.
    burden_bytes: AtomicU64,
}

impl Principals {
    pub(crate) fn new(most: usize, hashing: KeyedState) -> Self {
        let table = Table {
            users: HashMap::with_hasher(hashing),
            networks: HashMap::with_hasher(hashing),
            places: Slab::new(),
        };
        let numbers = most.saturating_add(FIRST as usize);
        Self {
            most,
            table: Mutex::new(table),
            bytes: (0..numbers).map(|_| AtomicU64::new(0)).collect(),
            lasting_bytes: AtomicU64::new(0),
            heaviest_bytes: AtomicU64::new(0),
            burden_bytes: AtomicU64::new(0),
        }
    }

    /// The principal of a client: its user; without one, the network of its address; without both, one of the others. It
    /// keeps its number until as many have [left](Self::leave) as have entered.
    pub fn enter(&self, user: Option<&str>, address: Option<IpAddr>) -> Principal {
        let mut table = locked(&self.table);
        let table = &mut *table;
        let network = address.map(network_of);
        let known = match (user, network) {
            (Some(user), _) => table.users.get(user),
            (None, Some(network)) => table.networks.get(&network),
            (None, None) => return Principal::OTHERS,
        };
        if let Some(&number) = known {
            table.places[number as usize].1 += 1;
            return Principal(number + FIRST);
        }
        if table.places.len() >= self.most {
            return Principal::OTHERS;
        }
        let place = table.places.vacant_entry();
        let number = place.key() as u32;
        if let Some(user) = user {
            let user = Arc::<str>::from(user);
            table.users.insert(Arc::clone(&user), number);
            place.insert((Name::User(user), 1));
        } else if let Some(network) = network {
            table.networks.insert(network, number);
            place.insert((Name::Network(network), 1));
        }
        Principal(number + FIRST)
    }

    /// Enters a principal once more.
    pub fn enter_again(&self, principal: Principal) {
        if let Some(number) = principal.0.checked_sub(FIRST)
            && let Some((_, holders)) = locked(&self.table).places.get_mut(number as usize)
        {
            *holders += 1;
        }
    }

    /// The principal of a client, if it has entered; others are light.
    #[must_use]
    pub fn find(&self, user: Option<&str>, address: Option<IpAddr>) -> Option<Principal> {
        let table = locked(&self.table);
        let number = match (user, address) {
            (Some(user), _) => table.users.get(user),
            (None, Some(address)) => table.networks.get(&network_of(address)),
            (None, None) => None,
        };
        number.map(|number| Principal(number + FIRST))
    }

    /// Gives up what [`enter`](Self::enter) returned.
    pub fn leave(&self, principal: Principal) {
        let Some(number) = principal.0.checked_sub(FIRST) else {
            return;
        };
        let mut table = locked(&self.table);
        let Some((_, holders)) = table.places.get_mut(number as usize) else {
            debug_assert!(false, "who leaves has entered");
            return;
        };
        *holders -= 1;
        if *holders > 0 {
            return;
        }
        match table.places.remove(number as usize).0 {
            Name::User(user) => table.users.remove(&*user),
            Name::Network(network) => table.networks.remove(&network),
        };
    }

    /// Enters a client's principal, which leaves with what is returned.
    pub(crate) fn enter_briefly(&self, user: Option<&str>, address: Option<IpAddr>) -> Entered<'_> {
        self.entered(self.enter(user, address))
    }

    /// A principal that has entered, and leaves with what is returned.
    pub(crate) const fn entered(&self, principal: Principal) -> Entered<'_> {
        Entered {
            principal,
            principals: self,
        }
    }

    /// Changes a principal's bytes from one number to another.
    pub fn adjust(&self, principal: Principal, from: u64, to: u64) {
        // Addition wraps, so this takes away, too.
        let more = to.wrapping_sub(from);
        self.bytes[principal.0 as usize].fetch_add(more, Ordering::Relaxed);
    }

    /// The same for bytes that last.
    pub(crate) fn adjust_lasting(&self, principal: Principal, from: u64, to: u64) {
        if from == to {
            return;
        }
        self.adjust(principal, from, to);
        let more = to.wrapping_sub(from);
        self.lasting_bytes.fetch_add(more, Ordering::Relaxed);
    }

    /// Bytes of all principals and the broker that last.
    #[must_use]
    pub fn lasting_bytes(&self) -> u64 {
        self.lasting_bytes.load(Ordering::Relaxed)
    }

    /// A principal's bytes.
    #[must_use]
    pub fn bytes(&self, principal: Principal) -> u64 {
        self.bytes[principal.0 as usize].load(Ordering::Relaxed)
    }

    /// Finds the heaviest principal.
    pub fn judge(&self) {
        let heaviest = self.numbers().into_iter().map(|one| self.bytes(one)).max();
        (self.heaviest_bytes).store(heaviest.unwrap_or_default(), Ordering::Relaxed);
    }

    /// Whether a principal holds at least half of what the heaviest held when that was looked for.
    #[must_use]
    pub fn is_heavy(&self, principal: Principal) -> bool {
        let heaviest_bytes = self.heaviest_bytes.load(Ordering::Relaxed);
        principal != Principal::BROKER
            && heaviest_bytes > 0
            && self.bytes(principal) >= heaviest_bytes / 2
    }

    /// Finds the heaviest principal while memory is short, of which the process may take so many bytes.
    ///
    /// Where all principals together hold little, something else takes the memory, such as what those who are gone have left
    /// behind. Then who holds little is no [burden](Self::is_burden).
    pub fn judge_for(&self, ceiling_bytes: u64) {
        self.judge();
        let all_bytes: u64 = self.numbers().into_iter().map(|one| self.bytes(one)).sum();
        let is_explained = all_bytes >= ceiling_bytes / EXPLAINED_PART;
        let least_bytes = if is_explained {
            0
        } else {
            ceiling_bytes / BURDEN_PART
        };
        self.burden_bytes.store(least_bytes, Ordering::Relaxed);
    }

    /// Whether a principal is heavy, and memory is short because of what it holds.
    #[must_use]
    pub fn is_burden(&self, principal: Principal) -> bool {
        self.is_heavy(principal)
            && self.bytes(principal) >= self.burden_bytes.load(Ordering::Relaxed)
    }

    /// All principals and their bytes, the heaviest first.
    #[must_use]
    pub fn ranked(&self) -> Vec<(u64, Principal)> {
        let each = self.numbers().into_iter();
        let mut ranked: Vec<_> = each.map(|one| (self.bytes(one), one)).collect();
        ranked.sort_unstable_by(|one, other| other.cmp(one));
        ranked
    }

    fn numbers(&self) -> Vec<Principal> {
        let table = locked(&self.table);
        let numbers = (table.places.iter()).map(|(number, _)| Principal(number as u32 + FIRST));
        numbers.chain([Principal::OTHERS]).collect()
    }

    /// How many have a place of their own.
    #[must_use]
    pub fn len(&self) -> usize {
        locked(&self.table).places.len()
    }

    /// Whether nobody has.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A principal in words.
    #[must_use]
    pub fn describe(&self, principal: Principal) -> String {
        match self.name(principal) {
            Some(name) => name.to_string(),
            None if principal == Principal::BROKER => "the broker".to_owned(),
            None => "others".to_owned(),
        }
    }

    /// The network that a principal is: an IPv4 address, or the first address of a /48.
    #[must_use]
    pub fn network(&self, principal: Principal) -> Option<IpAddr> {
        match self.name(principal)? {
            Name::Network(network) => Some(network),
            Name::User(_) => None,
        }
    }

    /// The name of a principal that has a place of its own.
    pub(crate) fn name(&self, principal: Principal) -> Option<Name> {
        let number = principal.0.checked_sub(FIRST)?;
        let table = locked(&self.table);
        table
            .places
            .get(number as usize)
            .map(|(name, _)| name.clone())
    }
}

/// A principal that has entered, and leaves with this.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    pub(crate) principal: Principal,
    principals: &'a Principals,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.principals.leave(self.principal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principals(most: usize) -> Principals {
        Principals::new(most, KeyedState::new(7))
    }

    fn address(text: &str) -> Option<IpAddr> {
        text.parse().ok()
    }

    #[test]
    fn a_principal_is_a_user_or_a_network() {
        let table = principals(10);
        let user = table.enter(Some("u"), address("10.0.0.1"));
        assert_eq!(table.enter(Some("u"), address("10.0.0.2")), user);
        let four = table.enter(None, address("10.0.0.1"));
        assert_ne!(four, user);
        assert_eq!(table.enter(None, address("::ffff:10.0.0.1")), four);
        assert_ne!(table.enter(None, address("10.0.0.2")), four);
        let six = table.enter(None, address("2001:db8:1:2::3"));
        assert_eq!(table.enter(None, address("2001:db8:1:ffff::4")), six);
        assert_ne!(table.enter(None, address("2001:db8:2::")), six);
        assert_eq!(table.describe(six), "network 2001:db8:1::/48");
        assert_eq!(table.describe(user), "user u");
        assert_eq!(table.network(four), address("10.0.0.1"));
    }

    #[test]
    fn the_table_is_bounded_and_forgets_who_holds_nothing() {
        let table = principals(2);
        let [a, b] = ["a", "b"].map(|user| table.enter(Some(user), None));
        assert_eq!(table.enter(Some("c"), None), Principal::OTHERS);
        assert_eq!(table.enter(None, None), Principal::OTHERS);
        assert_eq!(table.enter(Some("a"), None), a);
        table.leave(Principal::OTHERS);
        table.leave(a);
        assert_eq!(table.find(Some("a"), None), Some(a));
        table.leave(a);
        assert_eq!((table.find(Some("a"), None), table.len()), (None, 1));
        assert_ne!(table.enter(Some("c"), None), b);
        assert_eq!(table.describe(Principal::OTHERS), "others");
    }

    #[test]
    fn those_are_heavy_that_hold_half_of_the_heaviest() {
        let table = principals(10);
        let [a, b, c] = ["a", "b", "c"].map(|user| table.enter(Some(user), None));
        assert!(!table.is_heavy(a), "nobody was looked for");
        table.adjust(a, 0, 100);
        table.adjust_lasting(b, 0, 50);
        table.adjust(c, 0, 49);
        table.adjust(Principal::BROKER, 0, 1_000);
        table.judge();
        assert_eq!(
            [a, b, c].map(|one| table.is_heavy(one)),
            [true, true, false]
        );
        assert!(!table.is_heavy(Principal::BROKER));
        assert_eq!(table.ranked()[0], (100, a));
        table.adjust(c, 49, 60);
        assert!(table.is_heavy(c), "it has grown since");
        assert_eq!(table.lasting_bytes(), 50);
        table.adjust_lasting(b, 50, 0);
        assert_eq!(table.lasting_bytes(), 0);
    }

    /// The heaviest of those who hold next to nothing is not why memory is short.
    #[test]
    fn who_holds_little_is_no_burden_where_all_together_hold_little() {
        const CEILING: u64 = 256_000;
        let table = principals(100);
        let [a, b] = ["a", "b"].map(|user| table.enter(Some(user), None));
        table.adjust(a, 0, 999);
        table.judge_for(CEILING);
        assert!(table.is_heavy(a) && !table.is_burden(a));
        table.adjust(a, 999, 1_000);
        table.judge_for(CEILING);
        assert!(table.is_burden(a), "a 256th of the ceiling");
        table.adjust(a, 1_000, 900);
        table.adjust(b, 0, 63_100);
        table.judge_for(CEILING);
        assert!(table.is_burden(b) && !table.is_burden(a));
        // A fleet of many who hold little fills memory as well.
        table.adjust(b, 63_100, 900);
        let fleet = (0..70).map(|user| table.enter(Some(&user.to_string()), None));
        let _ = fleet.map(|one| table.adjust(one, 0, 900)).count();
        table.judge_for(CEILING);
        assert!(table.is_burden(a));
    }
}
