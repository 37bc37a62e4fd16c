//! Unsettled deliveries of a session in one direction, by delivery-id.

use std::collections::VecDeque;

/// Tombstones that are kept at most beyond the number of entries.
const SPARE_TOMBSTONES: usize = 64;

/// Room for this many entries is kept when there are none.
const KEPT_ENTRIES: usize = 8;

/// Whether serial number `a` comes before `b` (RFC 1982, 32 bits).
pub(crate) const fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// Entries in the order of their delivery-ids, which are serial numbers and only grow.
///
/// Removing the oldest, which is the common case, and finding any are cheap. Removing from the
/// middle leaves a tombstone, until there are more tombstones than entries.
#[derive(Debug)]
pub(crate) struct Ledger<T> {
    entries: VecDeque<(u32, Option<T>)>,
    live: usize,
}

impl<T> Default for Ledger<T> {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            live: 0,
        }
    }
}

impl<T> Ledger<T> {
    /// Adds the entry of a new id. It usually comes after all others, but deliveries of several
    /// links may end in another order than they begin. `false` if the id exists, or is too far from
    /// the others to compare serial numbers.
    #[must_use]
    pub(crate) fn push(&mut self, id: u32, entry: T) -> bool {
        let (Some((first, _)), Some((last, _))) = (self.entries.front(), self.entries.back())
        else {
            self.entries.push_back((id, Some(entry)));
            self.live += 1;
            return true;
        };
        let (index, fits) = if before(*last, id) {
            (self.entries.len(), !before(id, *first))
        } else {
            let index = self.lower_bound(id);
            let is_there = self.entries.get(index).is_some_and(|(one, _)| *one == id);
            (index, !is_there)
        };
        if fits {
            self.entries.insert(index, (id, Some(entry)));
            self.live += 1;
            let (earlier, later) = (index.checked_sub(1), self.entries.get(index + 1));
            debug_assert!(
                earlier.is_none_or(|at| before(self.entries[at].0, id))
                    && later.is_none_or(|(later, _)| before(id, *later)),
                "delivery-ids are in order"
            );
        }
        fits
    }

    /// Index of the first entry whose id is not before `id`.
    fn lower_bound(&self, id: u32) -> usize {
        self.entries.partition_point(|(one, _)| before(*one, id))
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        let index = self.lower_bound(id);
        match self.entries.get_mut(index) {
            Some((found, entry)) if *found == id => entry.as_mut(),
            _ => None,
        }
    }

    pub(crate) fn remove(&mut self, id: u32) -> Option<T> {
        let index = self.lower_bound(id);
        let (found, entry) = self.entries.get_mut(index)?;
        if *found != id {
            return None;
        }
        let entry = entry.take()?;
        self.live -= 1;
        self.tidy();
        Some(entry)
    }

    fn tidy(&mut self) {
        while matches!(self.entries.front(), Some((_, None))) {
            self.entries.pop_front();
        }
        if self.entries.len() > 2 * self.live + SPARE_TOMBSTONES {
            self.entries.retain(|(_, entry)| entry.is_some());
        }
        debug_assert!(
            self.live <= self.entries.len() && (self.live > 0 || self.entries.is_empty()),
            "every live entry is there"
        );
        if self.live == 0 && self.entries.capacity() > KEPT_ENTRIES {
            // An idle session holds next to no memory, and one delivery after the other takes none.
            self.entries = VecDeque::new();
        }
    }

    /// Calls `keep` for every entry from `first` to `last`, both included, and removes those for
    /// which it returns `false`.
    pub(crate) fn retain_range(
        &mut self,
        first: u32,
        last: u32,
        mut keep: impl FnMut(u32, &mut T) -> bool,
    ) {
        let start = self.lower_bound(first);
        let mut removed = false;
        for (id, slot) in self.entries.range_mut(start..) {
            if before(last, *id) {
                break;
            }
            if let Some(entry) = slot
                && !keep(*id, entry)
            {
                *slot = None;
                self.live -= 1;
                removed = true;
            }
        }
        if removed {
            self.tidy();
        }
    }

    /// Takes out the first `count` entries that `take` chooses, in order.
    pub(crate) fn extract(&mut self, count: usize, mut take: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        for (_, slot) in &mut self.entries {
            if taken.len() == count {
                break;
            }
            if slot.as_ref().is_some_and(&mut take)
                && let Some(entry) = slot.take()
            {
                self.live -= 1;
                taken.push(entry);
            }
        }
        self.tidy();
        taken
    }

    /// All entries, in order.
    pub(crate) fn into_entries(self) -> impl Iterator<Item = T> {
        self.entries.into_iter().filter_map(|(_, entry)| entry)
    }

    pub(crate) const fn len(&self) -> usize {
        self.live
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_wrap_around() {
        let mut ledger = Ledger::default();
        for id in (u32::MAX - 2)..=u32::MAX {
            assert!(ledger.push(id, id));
        }
        assert!(ledger.push(0, 0));
        assert!(ledger.push(1, 1));
        assert!(!ledger.push(1, 1), "the same again");
        assert!(!ledger.push(u32::MAX, 1), "an earlier one again");
        let mut seen = Vec::new();
        ledger.retain_range(u32::MAX, 0, |id, _| {
            seen.push(id);
            false
        });
        assert_eq!(seen, [u32::MAX, 0]);
        assert_eq!(ledger.len(), 3);
        assert_eq!(ledger.remove(1), Some(1));
        assert_eq!(ledger.remove(1), None);
        assert_eq!(ledger.extract(2, |_| true).len(), 2);
        assert_eq!(ledger.len(), 0);
    }

    #[test]
    fn entries_are_in_order_whatever_comes_first() {
        let mut ledger = Ledger::default();
        for id in [1, 3, u32::MAX, 0, 2] {
            assert!(ledger.push(id, id), "{id}");
        }
        assert!(!ledger.push(1 << 31, 0), "too far from the first");
        assert_eq!(ledger.remove(0), Some(0));
        assert_eq!(ledger.extract(2, |_| true), [u32::MAX, 1]);
        let rest: Vec<u32> = ledger.into_entries().collect();
        assert_eq!(rest, [2, 3]);
    }

    #[test]
    fn tombstones_are_bounded() {
        let mut ledger = Ledger::default();
        assert!(ledger.push(0, ()));
        for id in 1..100_000 {
            assert!(ledger.push(id, ()));
            assert!(ledger.remove(id).is_some());
        }
        assert_eq!(ledger.len(), 1);
        assert!(ledger.entries.len() <= 2 + SPARE_TOMBSTONES + 1);
    }
}
