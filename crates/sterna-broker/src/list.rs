//! A list with lookup by key that costs nothing while it is short.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

use crate::hash::KeyedState;

/// Above this length positions are indexed; below, a scan of neighbouring memory is as fast.
const SCAN_LEN: usize = 32;

/// Where each key's pair is.
#[derive(Debug)]
struct Positions<K>(HashMap<K, u32, KeyedState>);

/// Pairs in no particular order, each key once.
#[derive(Debug)]
pub(crate) struct KeyedList<K, V> {
    pairs: Vec<(K, V)>,
    index: Option<Box<Positions<K>>>,
}

impl<K, V> Default for KeyedList<K, V> {
    fn default() -> Self {
        Self {
            pairs: Vec::new(),
            index: None,
        }
    }
}

impl<K: Hash + Eq + Clone, V> KeyedList<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.pairs.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, (K, V)> {
        self.pairs.iter()
    }

    fn position<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<usize>
    where
        K: Borrow<Q>,
    {
        match &self.index {
            Some(index) => index.0.get(key).map(|&at| at as usize),
            None => self
                .pairs
                .iter()
                .position(|(other, _)| other.borrow() == key),
        }
    }

    pub(crate) fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        Some(&self.pairs[self.position(key)?].1)
    }

    pub(crate) fn get_pair<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&(K, V)>
    where
        K: Borrow<Q>,
    {
        Some(&self.pairs[self.position(key)?])
    }

    pub(crate) fn get_mut<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let at = self.position(key)?;
        Some(&mut self.pairs[at].1)
    }

    /// The pair at a position below [`len`](Self::len); its key is not to be changed.
    pub(crate) fn pair_at_mut(&mut self, at: usize) -> Option<(&K, &mut V)> {
        let (key, value) = self.pairs.get_mut(at)?;
        Some((key, value))
    }

    /// Adds or replaces; returns what was replaced.
    pub(crate) fn insert(&mut self, key: K, value: V, hashing: KeyedState) -> Option<V> {
        if let Some(at) = self.position(&key) {
            return Some(std::mem::replace(&mut self.pairs[at].1, value));
        }
        if self.pairs.capacity() == 0 {
            // Most lists never get a second pair.
            self.pairs.reserve_exact(1);
        }
        if let Some(index) = &mut self.index {
            index.0.insert(key.clone(), self.pairs.len() as u32);
        }
        self.pairs.push((key, value));
        if self.index.is_none() && self.pairs.len() > SCAN_LEN {
            let mut index = HashMap::with_capacity_and_hasher(self.pairs.len() * 2, hashing);
            for (at, (key, _)) in self.pairs.iter().enumerate() {
                index.insert(key.clone(), at as u32);
            }
            self.index = Some(Box::new(Positions(index)));
        }
        None
    }

    pub(crate) fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<(K, V)>
    where
        K: Borrow<Q>,
    {
        let at = self.position(key)?;
        let removed = self.pairs.swap_remove(at);
        if let Some(index) = &mut self.index {
            let index = &mut index.0;
            index.remove(key);
            if let Some((moved, _)) = self.pairs.get(at)
                && let Some(position) = index.get_mut(moved.borrow())
            {
                *position = at as u32;
            }
            if self.pairs.len() <= SCAN_LEN / 2 {
                self.index = None;
            } else if index.capacity() > 8 * self.pairs.len() {
                index.shrink_to_fit();
            }
        }
        if self.pairs.capacity() > 8 && self.pairs.capacity() > 4 * self.pairs.len() {
            self.pairs.shrink_to(self.pairs.len() * 2);
        }
        Some(removed)
    }

    /// Takes everything out.
    pub(crate) fn take(&mut self) -> Vec<(K, V)> {
        self.index = None;
        std::mem::take(&mut self.pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaves_like_a_map_around_the_index_threshold() {
        let hashing = KeyedState::new(7);
        let mut list = KeyedList::default();
        let mut model = HashMap::new();
        let mut random = 1_u64;
        for step in 0..20_000_u32 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            // The key range grows and shrinks, so the list crosses the threshold often.
            let range = 1 + u64::from(step / 100 % 80);
            let key = (random >> 33) % range;
            if random >> 63 == 0 {
                assert_eq!(list.insert(key, step, hashing), model.insert(key, step));
            } else {
                assert_eq!(
                    list.remove(&key).map(|(_, value)| value),
                    model.remove(&key)
                );
            }
            assert_eq!(list.len(), model.len());
            assert_eq!(list.get(&key), model.get(&key));
        }
        for (key, value) in list.iter() {
            assert_eq!(model.get(key), Some(value));
        }
    }
}
