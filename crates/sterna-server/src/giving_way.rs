//! Tables with one limit for all. Where one is full, the oldest entry of whoever has most gives way, and nobody else's.

use std::borrow::Borrow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::net::IpAddr;
use std::sync::LazyLock;

use sterna_broker::network_of;

/// The maker of an entry: a user, or an address where there is none. A digest by a secret of the process, so that a name
/// of any length takes as much.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Owner(u64);

impl Owner {
    /// A user, or who speaks from an address: an IPv4 address or the /48 of an IPv6 address. Without either, all who have
    /// neither are one.
    pub(crate) fn of(user: Option<&str>, address: Option<IpAddr>) -> Self {
        let address = address.filter(|_| user.is_none()).map(network_of);
        Self::by((user, address))
    }

    /// The owner that something tells from others.
    pub(crate) fn by(of: impl Hash) -> Self {
        static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        Self(HASHER.hash_one(of))
    }
}

/// The place of an entry: its owner, and a number that rises with time.
pub(crate) type Place = (Owner, u64);

/// The keys of a table by their owners and age. The weight says who has most.
#[derive(Debug)]
pub(crate) struct GivingWay<K> {
    owners: HashMap<Owner, Owned<K>>,
    ranks: BTreeSet<Rank>,
    next: u64,
}

/// See [`Owned::rank`].
type Rank = (usize, Reverse<u64>, Owner);

/// The keys of one owner, with their weights.
#[derive(Debug)]
struct Owned<K> {
    keys: BTreeMap<u64, (K, usize)>,
    weight: usize,
}

impl<K> Default for GivingWay<K> {
    fn default() -> Self {
        Self {
            owners: HashMap::new(),
            ranks: BTreeSet::new(),
            next: 0,
        }
    }
}

impl<K> Owned<K> {
    /// The last by this gives way: the owner with most, and of several the one with the oldest entry.
    fn rank(&self, owner: Owner) -> Rank {
        let oldest = self.keys.first_key_value();
        let oldest = oldest.map_or(u64::MAX, |(number, _)| *number);
        (self.weight, Reverse(oldest), owner)
    }
}

impl<K> GivingWay<K> {
    /// Enters a key as the owner's newest.
    pub(crate) fn add(&mut self, owner: Owner, key: K) -> Place {
        self.add_weighed(owner, key, 1)
    }

    /// The same, for one that is not as heavy as any other.
    pub(crate) fn add_weighed(&mut self, owner: Owner, key: K, weight: usize) -> Place {
        self.next += 1;
        let number = self.next;
        let of = self.owners.entry(owner).or_insert_with(|| Owned {
            keys: BTreeMap::new(),
            weight: 0,
        });
        self.ranks.remove(&of.rank(owner));
        of.keys.insert(number, (key, weight));
        of.weight += weight;
        self.ranks.insert(of.rank(owner));
        (owner, number)
    }

    /// An entry is heavier now.
    pub(crate) fn grow(&mut self, (owner, number): Place, more: usize) {
        if let Some(of) = self.owners.get_mut(&owner) {
            self.ranks.remove(&of.rank(owner));
            if let Some((_, weight)) = of.keys.get_mut(&number) {
                *weight += more;
                of.weight += more;
            }
            self.ranks.insert(of.rank(owner));
        }
    }

    /// Takes out the key of a place.
    pub(crate) fn remove(&mut self, (owner, number): Place) -> Option<K> {
        let of = self.owners.get_mut(&owner)?;
        self.ranks.remove(&of.rank(owner));
        let removed = of.keys.remove(&number);
        if let Some((_, weight)) = &removed {
            of.weight -= weight;
        }
        if of.keys.is_empty() {
            self.owners.remove(&owner);
        } else {
            self.ranks.insert(of.rank(owner));
        }
        removed.map(|(key, _)| key)
    }

    /// The place and the key of the oldest entry of whoever has most.
    pub(crate) fn first(&self) -> Option<(Place, &K)> {
        let (_, _, owner) = *self.ranks.last()?;
        let (number, (key, _)) = self.owners.get(&owner)?.keys.first_key_value()?;
        Some(((owner, *number), key))
    }

    /// Takes out that entry.
    pub(crate) fn pop(&mut self) -> Option<K> {
        let (place, _) = self.first()?;
        self.remove(place)
    }
}

/// A table in which each entry is its owner's newest when it is used.
#[derive(Debug)]
pub(crate) struct Table<K, V> {
    entries: HashMap<K, (Place, V)>,
    order: GivingWay<K>,
}

impl<K: Clone + Eq + Hash, V> Table<K, V> {
    /// An empty table.
    pub(crate) fn new() -> Self {
        Self {
            entries: HashMap::new(),
            order: GivingWay::default(),
        }
    }

    pub(crate) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.entries.get(key).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.entries.get_mut(key).map(|(_, value)| value)
    }

    /// An entry, which is made where there is none, and is this owner's from now on; `most` are kept, and at least one.
    pub(crate) fn entry(&mut self, owner: Owner, key: K, most: usize) -> &mut V
    where
        V: Default,
    {
        let place = self.place(owner, &key, most);
        let entry = self.entries.entry(key);
        let (known, value) = entry.or_insert_with(|| (place, V::default()));
        *known = place;
        value
    }

    /// Enters a value in the place of the one before, as an owner's; `most` are kept, and at least one.
    pub(crate) fn insert(&mut self, owner: Owner, key: K, value: V, most: usize) {
        let place = self.place(owner, &key, most);
        self.entries.insert(key, (place, value));
    }

    /// Makes room for an entry, and has it be its owner's newest.
    fn place(&mut self, owner: Owner, key: &K, most: usize) -> Place {
        if let Some((place, _)) = self.entries.get(key) {
            self.order.remove(*place);
        }
        while !self.entries.contains_key(key) && self.entries.len() >= most.max(1) {
            let Some(oldest) = self.order.pop() else {
                break;
            };
            self.entries.remove(&oldest);
        }
        self.order.add(owner, key.clone())
    }

    pub(crate) fn remove(&mut self, key: &K) {
        if let Some((place, _)) = self.entries.remove(key) {
            self.order.remove(place);
        }
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_whoever_has_most_gives_way() {
        let (heavy, light) = (Owner::by("heavy"), Owner::by("light"));
        let mut table: Table<u32, u32> = Table::new();
        *table.entry(light, 0, 10) = 7;
        for key in 1..1_000 {
            *table.entry(heavy, key, 10) = key;
        }
        assert_eq!(table.len(), 10);
        assert_eq!(table.get(&0), Some(&7), "of somebody else");
        assert!(table.get(&990).is_none() && table.get(&991) == Some(&991));
        // What is used is new again.
        let _ = table.entry(heavy, 991, 10);
        let _ = table.entry(heavy, 1_000, 10);
        assert!(table.get(&991).is_some() && table.get(&992).is_none());
        // A newcomer comes in, and has most at last.
        for key in 2_000..2_100 {
            let _ = table.entry(Owner::by("new"), key, 10);
        }
        let mut owners: Vec<_> = table.entries.values().map(|(place, _)| place.0).collect();
        owners.sort_unstable();
        owners.dedup();
        assert_eq!(owners.len(), 3);
        table.remove(&0);
        assert_eq!((table.len(), table.order.ranks.len()), (9, 2));
    }

    #[test]
    fn of_several_with_as_much_the_oldest_entry_gives_way() {
        let mut order = GivingWay::default();
        let owners = ["a", "b", "c", "d"].map(Owner::by);
        let places = owners.map(|owner| order.add(owner, owner));
        order.remove(places[0]);
        order.add(owners[0], owners[0]);
        let popped: Vec<_> = std::iter::from_fn(|| order.pop()).collect();
        assert_eq!(popped, [owners[1], owners[2], owners[3], owners[0]]);
        assert!(order.owners.is_empty() && order.ranks.is_empty());
        let place = order.add_weighed(owners[0], owners[0], 5);
        order.add_weighed(owners[1], owners[1], 6);
        order.grow(place, 2);
        assert_eq!(order.pop(), Some(owners[0]), "7 are more than 6");
    }

    #[test]
    fn a_user_is_one_owner_from_everywhere_and_a_site_is_one_without() {
        let at = |text: &str| Some(text.parse::<IpAddr>().expect("an address"));
        let of = Owner::of;
        assert_eq!(of(Some("ann"), at("192.0.2.1")), of(Some("ann"), None));
        assert_ne!(of(Some("ann"), None), of(Some("bob"), None));
        assert_eq!(
            of(None, at("2001:db8:1::1")),
            of(None, at("2001:db8:1:2::3"))
        );
        assert_ne!(of(None, at("2001:db8:1::1")), of(None, at("2001:db8:2::1")));
        assert_ne!(of(None, at("192.0.2.1")), of(None, at("192.0.2.2")));
        assert_eq!(of(None, at("::ffff:192.0.2.1")), of(None, at("192.0.2.1")));
    }
}
