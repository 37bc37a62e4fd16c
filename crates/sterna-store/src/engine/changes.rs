//! Changes of records that wait for their checkpoint.
//!
//! A million sessions that come and go have some changes each, so they are in one buffer, one after the other. A
//! table finds the latest of a key. A change begins with the length of its key. The length of its value plus one
//! follows (zero for a removal), then the key and the value. Lengths take seven bits a byte. The buffer is copied
//! when a quarter of it is old.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::log::index::{put_number, take_number};

/// Where a change begins in the buffer, below [`PLACE_BITS`], and the upper bits of its key's hash.
type Place = u64;

const PLACE_BITS: u32 = 40;

/// A smaller buffer is not copied for what is old in it, in bytes.
const LEAST_COPIED_BYTES: usize = 1 << 16;

/// Memory of a place in the table, with the byte that the table adds.
const PLACE_BYTES: usize = size_of::<Place>() + 1;

/// Keys of records with their new values, or with none where they are removed.
#[derive(Clone, Default, Debug)]
pub(crate) struct Changes {
    buffer: Vec<u8>,
    places: HashTable<Place>,
    /// Bytes of changes that later ones have replaced.
    old_bytes: usize,
    /// Keyed, for clients choose names.
    hashing: RandomState,
}

/// A hash for the table, of what a place keeps of its key's hash.
const fn spread(kept: u64) -> u64 {
    (kept >> PLACE_BITS).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

const fn offset(place: Place) -> usize {
    (place & ((1 << PLACE_BITS) - 1)) as usize
}

/// A change in the buffer.
struct Change<'a> {
    key: &'a [u8],
    value: Option<&'a [u8]>,
    /// The bytes it takes in the buffer.
    bytes: usize,
}

/// The change that a part of the buffer begins with.
fn read(buffer: &[u8]) -> Option<Change<'_>> {
    let mut rest = buffer;
    let key_bytes = take_number(&mut rest)? as usize;
    let value_bytes = take_number(&mut rest)? as usize;
    let (key, rest) = rest.split_at_checked(key_bytes)?;
    let (value, rest) = rest.split_at_checked(value_bytes.saturating_sub(1))?;
    Some(Change {
        key,
        value: (value_bytes > 0).then_some(value),
        bytes: buffer.len() - rest.len(),
    })
}

impl Changes {
    /// Number of records that are changed.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Memory that they take, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.buffer.len() + self.places.capacity() * PLACE_BYTES
    }

    fn at(&self, place: Place) -> (&[u8], Option<&[u8]>) {
        let found = self.buffer.get(offset(place)..).and_then(read);
        debug_assert!(found.is_some(), "a place is that of a change");
        found.map_or((&[], None), |change| (change.key, change.value))
    }

    /// Puts a record, or removes it where there is no value.
    pub(crate) fn change(&mut self, key: &[u8], value: Option<&[u8]>) {
        let hash = self.hashing.hash_one(key) >> PLACE_BITS << PLACE_BITS;
        debug_assert!(
            self.buffer.len() >> PLACE_BITS == 0,
            "a place has room for the offset"
        );
        let place = hash | self.buffer.len() as u64;
        put_number(&mut self.buffer, key.len() as u64);
        put_number(
            &mut self.buffer,
            value.map_or(0, |value| value.len() as u64 + 1),
        );
        self.buffer.extend_from_slice(key);
        self.buffer.extend_from_slice(value.unwrap_or_default());
        let buffer = &self.buffer;
        let is_known = |known: &Place| {
            known >> PLACE_BITS == hash >> PLACE_BITS
                && read(&buffer[offset(*known)..]).is_some_and(|other| other.key == key)
        };
        match self
            .places
            .entry(spread(hash), is_known, |place| spread(*place))
        {
            Entry::Occupied(mut known) => {
                let replaced = std::mem::replace(known.get_mut(), place);
                let replaced = read(&buffer[offset(replaced)..]);
                self.old_bytes += replaced.map_or(0, |change| change.bytes);
            }
            Entry::Vacant(new) => {
                new.insert(place);
            }
        }
        if self.old_bytes > LEAST_COPIED_BYTES.max(self.buffer.len() / 4) {
            self.drop_old();
        }
    }

    fn drop_old(&mut self) {
        debug_assert!(
            self.old_bytes <= self.buffer.len(),
            "old changes are in the buffer"
        );
        let mut buffer = Vec::with_capacity(self.buffer.len() - self.old_bytes);
        for place in &mut self.places {
            let rest = &self.buffer[offset(*place)..];
            let bytes = read(rest).map_or(0, |change| change.bytes);
            *place = *place >> PLACE_BITS << PLACE_BITS | buffer.len() as u64;
            buffer.extend_from_slice(&rest[..bytes]);
        }
        self.buffer = buffer;
        self.old_bytes = 0;
    }

    /// Adds later changes.
    pub(crate) fn extend(&mut self, later: &Self) {
        for place in &later.places {
            let (key, value) = later.at(*place);
            self.change(key, value);
        }
    }

    /// # Panics
    /// Where the table or the sum does not agree with the buffer.
    pub(crate) fn check(&self) {
        let mut current_bytes = 0;
        let mut offsets = std::collections::HashSet::new();
        for &place in &self.places {
            assert!(
                offsets.insert(offset(place)),
                "each place is that of one change"
            );
            let Some(change) = self.buffer.get(offset(place)..).and_then(read) else {
                panic!("a place is that of a change");
            };
            let hash = self.hashing.hash_one(change.key);
            assert_eq!(
                place >> PLACE_BITS,
                hash >> PLACE_BITS,
                "a place has the hash of its key"
            );
            current_bytes += change.bytes;
        }
        assert_eq!(
            self.old_bytes + current_bytes,
            self.buffer.len(),
            "the bytes of old changes are those of no current one"
        );
    }

    /// The change of a record, as [`in_order`](Self::in_order) has it; `None` where it is not changed.
    pub(crate) fn of(&self, key: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
        let hash = self.hashing.hash_one(key) >> PLACE_BITS << PLACE_BITS;
        let is_it =
            |known: &Place| known >> PLACE_BITS == hash >> PLACE_BITS && self.at(*known).0 == key;
        let place = self.places.find(spread(hash), is_it)?;
        Some(self.at(*place))
    }

    /// All of them, in the order of their keys.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        let mut places: Vec<Place> = self.places.iter().copied().collect();
        places.sort_unstable_by_key(|place| self.at(*place).0);
        places.into_iter().map(|place| self.at(place))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn they_are_those_of_a_map() {
        let mut changes = Changes::default();
        let mut later = Changes::default();
        let mut expected = BTreeMap::new();
        let mut number = 1_u64;
        for step in 0..40_000_u64 {
            number = number
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(step);
            let key = format!("k{}", (number >> 33) % 3_000).into_bytes();
            let length = (number >> 50) as usize % 300;
            let value = (!length.is_multiple_of(7)).then(|| vec![step as u8; length - 1]);
            let into = if step < 30_000 {
                &mut changes
            } else {
                &mut later
            };
            into.change(&key, value.as_deref());
            if step.is_multiple_of(1_000) {
                into.check();
            }
            expected.insert(key, value);
        }
        changes.extend(&later);
        changes.check();
        assert_eq!(changes.len(), expected.len());
        let found = changes.in_order();
        let expected_bytes: usize = expected
            .iter()
            .map(|(key, value)| key.len() + value.as_ref().map_or(0, Vec::len))
            .sum();
        assert!(
            found.eq(expected
                .iter()
                .map(|(key, value)| (&**key, value.as_deref())))
        );
        // Replaced changes leave the buffer.
        assert!(changes.buffer.len() < 2 * expected_bytes + LEAST_COPIED_BYTES);
    }
}
