//! The shard's table of connections. Slots are in pages, so growth neither copies nor
//! over-allocates. Each slot has a generation, so an outdated identifier finds nothing.

use crate::ConnectionId;

/// A page of connections takes 10 KiB, which is a class of jemalloc's small ones: nothing is left over. Each block of
/// 16 KiB or more takes another page of 4 KiB.
const PAGE_SLOTS: usize = 64;

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    entry: Option<T>,
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Table<T> {
    pages: Vec<Box<[Slot<T>]>>,
    free: Vec<u32>,
    len: usize,
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self {
            pages: Vec::new(),
            free: Vec::new(),
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Number of slots, free ones included.
    pub(crate) fn slots(&self) -> usize {
        self.pages.len() * PAGE_SLOTS
    }

    /// Stores the value that `make` returns for its new identifier.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(ConnectionId) -> T) -> ConnectionId {
        if self.free.is_empty() {
            self.grow();
        }
        let slot = self.free.pop().unwrap_or_default();
        let place = &mut self.pages[slot as usize / PAGE_SLOTS][slot as usize % PAGE_SLOTS];
        let id = ConnectionId {
            slot,
            generation: place.generation,
        };
        debug_assert!(place.entry.is_none(), "a free slot is empty");
        place.entry = Some(make(id));
        self.len += 1;
        self.assert_slots();
        id
    }

    fn assert_slots(&self) {
        debug_assert_eq!(
            self.len + self.free.len(),
            self.pages.len() * PAGE_SLOTS,
            "a slot is free or in use"
        );
    }

    fn grow(&mut self) {
        let first = (self.pages.len() * PAGE_SLOTS) as u32;
        let page = (0..PAGE_SLOTS).map(|_| Slot {
            generation: 0,
            entry: None,
        });
        self.pages.push(page.collect());
        // Low slots are used first.
        self.free.extend((first..first + PAGE_SLOTS as u32).rev());
    }

    fn slot(&self, slot: u32) -> Option<&Slot<T>> {
        self.pages
            .get(slot as usize / PAGE_SLOTS)?
            .get(slot as usize % PAGE_SLOTS)
    }

    fn slot_mut(&mut self, slot: u32) -> Option<&mut Slot<T>> {
        self.pages
            .get_mut(slot as usize / PAGE_SLOTS)?
            .get_mut(slot as usize % PAGE_SLOTS)
    }

    pub(crate) fn get(&self, id: ConnectionId) -> Option<&T> {
        let slot = self.slot(id.slot)?;
        slot.entry
            .as_ref()
            .filter(|_| slot.generation == id.generation)
    }

    pub(crate) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut T> {
        let slot = self.slot_mut(id.slot)?;
        let generation = slot.generation;
        slot.entry.as_mut().filter(|_| generation == id.generation)
    }

    /// The identifier of a slot's present content.
    pub(crate) fn current(&self, slot: u32) -> Option<ConnectionId> {
        let place = self.slot(slot)?;
        place.entry.as_ref().map(|_| ConnectionId {
            slot,
            generation: place.generation,
        })
    }

    pub(crate) fn remove(&mut self, id: ConnectionId) -> Option<T> {
        let slot = self.slot_mut(id.slot)?;
        if slot.generation != id.generation {
            return None;
        }
        let entry = slot.entry.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.slot);
        self.len -= 1;
        self.assert_slots();
        Some(entry)
    }

    /// The identifiers of all entries.
    pub(crate) fn ids(&self) -> Vec<ConnectionId> {
        let slots = 0..(self.pages.len() * PAGE_SLOTS) as u32;
        slots.filter_map(|slot| self.current(slot)).collect()
    }
}

/// What a connection takes in the table.
#[cfg(test)]
pub(crate) const fn slot_bytes<T>() -> usize {
    size_of::<Slot<T>>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outdated_identifier_finds_nothing() {
        let mut table = Table::new();
        let first = table.insert_with(|_| "first");
        assert_eq!(table.get(first), Some(&"first"));
        assert_eq!(table.remove(first), Some("first"));
        assert_eq!(table.remove(first), None);
        let second = table.insert_with(|_| "second");
        assert_eq!(second.slot, first.slot, "the slot is used again");
        assert_eq!(table.get(first), None);
        assert_eq!(table.get_mut(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get(second), Some(&"second"));
        assert_eq!(table.current(second.slot), Some(second));
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn it_grows_page_by_page() {
        let mut table = Table::new();
        let ids: Vec<_> = (0..1_000)
            .map(|number| table.insert_with(|_| number))
            .collect();
        assert_eq!(table.len(), 1_000);
        for (number, id) in ids.iter().enumerate() {
            assert_eq!(table.get(*id), Some(&number));
        }
        assert_eq!(table.ids(), ids);
        assert_eq!(
            table.get(ConnectionId {
                slot: u32::MAX,
                generation: 0
            }),
            None
        );
    }
}
