//! A list with lookup by key that costs nothing while it is short.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

use crate::hash::KeyedState;

/// Above this length positions are indexed; below, a scan of neighbouring memory is as fast.
const SCAN_LEN: usize = 32;

/// Pairs in no particular order, each key once.
#[derive(Debug)]
pub(crate) enum KeyedList<K, V> {
    /// Exactly as long as needed: most lists never get a second pair, and have two words for it.
    Short(Box<[(K, V)]>),
    Long(Box<Indexed<K, V>>),
}

/// See [`KeyedList`].
#[derive(Debug)]
pub(crate) struct Indexed<K, V> {
    pairs: Vec<(K, V)>,
    /// Where each key's pair is.
    positions: HashMap<K, u32, KeyedState>,
}

impl<K, V> Default for KeyedList<K, V> {
    fn default() -> Self {
        Self::Short(Box::default())
    }
}

impl<K: Hash + Eq + Clone, V> Indexed<K, V> {
    fn new(pairs: Vec<(K, V)>, hashing: KeyedState) -> Self {
        let mut positions = HashMap::with_capacity_and_hasher(pairs.len() * 2, hashing);
        for (at, (key, _)) in pairs.iter().enumerate() {
            positions.insert(key.clone(), at as u32);
        }
        Self { pairs, positions }
    }

    fn push(&mut self, key: K, value: V) {
        self.positions.insert(key.clone(), self.pairs.len() as u32);
        self.pairs.push((key, value));
    }

    fn remove<Q: Hash + Eq + ?Sized>(&mut self, at: usize, key: &Q) -> (K, V)
    where
        K: Borrow<Q>,
    {
        let removed = self.pairs.swap_remove(at);
        self.positions.remove(key);
        if let Some((moved, _)) = self.pairs.get(at)
            && let Some(position) = self.positions.get_mut(moved.borrow())
        {
            *position = at as u32;
        }
        if self.positions.capacity() > 8 * self.pairs.len() {
            self.positions.shrink_to_fit();
        }
        if self.pairs.capacity() > 4 * self.pairs.len() {
            self.pairs.shrink_to(self.pairs.len() * 2);
        }
        removed
    }
}

impl<K: Hash + Eq + Clone, V> KeyedList<K, V> {
    fn pairs(&self) -> &[(K, V)] {
        match self {
            Self::Short(pairs) => pairs,
            Self::Long(indexed) => &indexed.pairs,
        }
    }

    fn pairs_mut(&mut self) -> &mut [(K, V)] {
        match self {
            Self::Short(pairs) => pairs,
            Self::Long(indexed) => &mut indexed.pairs,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.pairs().len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pairs().is_empty()
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, (K, V)> {
        self.pairs().iter()
    }

    fn position<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<usize>
    where
        K: Borrow<Q>,
    {
        match self {
            Self::Short(pairs) => pairs.iter().position(|(other, _)| other.borrow() == key),
            Self::Long(indexed) => indexed.positions.get(key).map(|&at| at as usize),
        }
    }

    pub(crate) fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        Some(&self.get_pair(key)?.1)
    }

    pub(crate) fn get_pair<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&(K, V)>
    where
        K: Borrow<Q>,
    {
        Some(&self.pairs()[self.position(key)?])
    }

    pub(crate) fn get_mut<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let at = self.position(key)?;
        Some(&mut self.pairs_mut()[at].1)
    }

    /// The pair at a position below [`len`](Self::len); its key is not to be changed.
    pub(crate) fn pair_at_mut(&mut self, at: usize) -> Option<(&K, &mut V)> {
        let (key, value) = self.pairs_mut().get_mut(at)?;
        Some((key, value))
    }

    /// Adds or replaces; returns what was replaced.
    pub(crate) fn insert(&mut self, key: K, value: V, hashing: KeyedState) -> Option<V> {
        if let Some(known) = self.get_mut(&key) {
            return Some(std::mem::replace(known, value));
        }
        match self {
            Self::Short(pairs) => {
                let mut pairs = std::mem::take(pairs).into_vec();
                if pairs.len() < SCAN_LEN {
                    pairs.reserve_exact(1);
                    pairs.push((key, value));
                    *self = Self::Short(pairs.into());
                } else {
                    pairs.push((key, value));
                    *self = Self::Long(Box::new(Indexed::new(pairs, hashing)));
                }
            }
            Self::Long(indexed) => indexed.push(key, value),
        }
        None
    }

    pub(crate) fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<(K, V)>
    where
        K: Borrow<Q>,
    {
        let at = self.position(key)?;
        match self {
            Self::Short(pairs) => {
                let mut rest = std::mem::take(pairs).into_vec();
                let removed = rest.swap_remove(at);
                *pairs = rest.into();
                Some(removed)
            }
            Self::Long(indexed) => {
                let removed = indexed.remove(at, key);
                if indexed.pairs.len() <= SCAN_LEN / 2 {
                    *self = Self::Short(std::mem::take(&mut indexed.pairs).into());
                }
                Some(removed)
            }
        }
    }

    /// Takes everything out.
    pub(crate) fn take(&mut self) -> Vec<(K, V)> {
        match std::mem::take(self) {
            Self::Short(pairs) => pairs.into_vec(),
            Self::Long(indexed) => indexed.pairs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_list_is_two_words_and_its_pairs() {
        assert_eq!(size_of::<KeyedList<u64, u64>>(), 16);
    }

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
