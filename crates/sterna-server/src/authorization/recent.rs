//! A table of recent answers: their times end, and the oldest of whoever has most give way.

use std::borrow::Borrow;
use std::hash::Hash;

use crate::giving_way::{Owner, Table};

/// Entries by key: a limited number, each until a time. The oldest of whoever has most give way.
#[derive(Debug)]
pub(crate) struct Recent<K, V, T> {
    /// Values, each with the end of its time.
    table: Table<K, (V, T)>,
    most: usize,
}

impl<K: Clone + Eq + Hash, V, T: Copy + Ord> Recent<K, V, T> {
    /// An empty table of at most `most` entries.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            table: Table::new(),
            most,
        }
    }

    /// The value of a key, if its time is not over.
    pub(crate) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q, now: T) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        Some(self.get_until(key, now)?.0)
    }

    /// The same, with the end of its time.
    pub(crate) fn get_until<Q: Eq + Hash + ?Sized>(&self, key: &Q, now: T) -> Option<(&V, T)>
    where
        K: Borrow<Q>,
    {
        let (value, until) = self.table.get(key)?;
        (now < *until).then_some((value, *until))
    }

    /// Enters a value of somebody's until a time.
    pub(crate) fn add(&mut self, owner: Owner, key: K, value: V, until: T) {
        self.table.insert(owner, key, (value, until), self.most);
    }

    /// Entries, those whose time is over among them.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_end_and_the_oldest_give_way() {
        let mut recent: Recent<u32, char, u64> = Recent::new(3);
        let one = Owner::by("one");
        for key in 0..5 {
            recent.add(one, key, 'a', 10);
        }
        assert_eq!(recent.len(), 3);
        assert_eq!(recent.get(&1, 0), None);
        assert_eq!(recent.get(&4, 9), Some(&'a'));
        assert_eq!(recent.get(&4, 10), None);
        recent.add(one, 2, 'b', 20);
        recent.add(one, 5, 'c', 20);
        assert_eq!((recent.get(&2, 0), recent.get(&3, 0)), (Some(&'b'), None));
        for _ in 0..100 {
            recent.add(one, 2, 'd', 20);
        }
        assert_eq!(recent.len(), 3);
        assert_eq!(recent.get(&2, 0), Some(&'d'));
        recent.add(Owner::by("another"), 9, 'x', 20);
        for key in 10..100 {
            recent.add(one, key, 'a', 20);
        }
        assert_eq!(recent.get(&9, 0), Some(&'x'), "not by somebody else's");
    }
}
