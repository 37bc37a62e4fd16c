//! A table of recent answers: its entries end, and the oldest give way.

use std::borrow::Borrow;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Entries by key: a limited number, each until a time.
#[derive(Debug)]
pub(crate) struct Recent<K, V, T> {
    entries: HashMap<K, Entry<V, T>>,
    /// Keys in the order of their entries; those of entries that were replaced are void.
    order: VecDeque<(u64, K)>,
    next: u64,
    most: usize,
}

#[derive(Debug)]
struct Entry<V, T> {
    number: u64,
    until: T,
    value: V,
}

impl<K: Clone + Eq + Hash, V, T: Copy + Ord> Recent<K, V, T> {
    /// An empty table of at most `most` entries.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            entries: HashMap::new(),
            order: VecDeque::new(),
            next: 0,
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
        let entry = self.entries.get(key)?;
        (now < entry.until).then_some((&entry.value, entry.until))
    }

    /// Enters a value until a time.
    pub(crate) fn add(&mut self, key: K, value: V, until: T) {
        self.next += 1;
        let number = self.next;
        self.order.push_back((number, key.clone()));
        let entry = Entry {
            number,
            until,
            value,
        };
        self.entries.insert(key, entry);
        // Void places go with the oldest.
        while self.entries.len() > self.most || self.order.len() > 2 * self.most {
            let Some((number, key)) = self.order.pop_front() else {
                return;
            };
            if self
                .entries
                .get(&key)
                .is_some_and(|entry| entry.number == number)
            {
                self.entries.remove(&key);
            }
        }
    }

    /// Entries, those whose time is over among them.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_end_and_the_oldest_give_way() {
        let mut recent: Recent<u32, char, u64> = Recent::new(3);
        for key in 0..5 {
            recent.add(key, 'a', 10);
        }
        assert_eq!(recent.len(), 3);
        assert_eq!(recent.get(&1, 0), None);
        assert_eq!(recent.get(&4, 9), Some(&'a'));
        assert_eq!(recent.get(&4, 10), None);
        recent.add(2, 'b', 20);
        recent.add(5, 'c', 20);
        assert_eq!((recent.get(&2, 0), recent.get(&3, 0)), (Some(&'b'), None));
        for _ in 0..100 {
            recent.add(2, 'd', 20);
        }
        assert!(recent.order.len() <= 6, "{}", recent.order.len());
        assert_eq!(recent.get(&2, 0), Some(&'d'));
    }
}
