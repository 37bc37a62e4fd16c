//! When which connection wants to be woken: one heap with at most one entry per connection.
//!
//! A deadline that moves back costs nothing: the entry stays, and the connection is asked again
//! when it comes up. Deadlines move back with every packet (idle, loss), so this is the common
//! case. A deadline that moves forward sifts its entry up, in O(log n).

/// Children per node: fewer levels and fewer cache lines than with two.
const ARITY: usize = 4;
/// Position of a slot without an entry.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    at_us: u64,
    slot: u32,
}

/// Deadlines by slot, in microseconds of a clock of the caller's choice.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: Vec<Entry>,
    /// Where the heap holds the entry of a slot.
    positions: Vec<u32>,
}

impl Timers {
    /// Sees to it that the slot comes up no later than at its deadline; none takes it out.
    pub(super) fn set(&mut self, slot: u32, at_us: Option<u64>) {
        let Some(at_us) = at_us else {
            self.remove(slot);
            return;
        };
        let index = slot as usize;
        if index >= self.positions.len() {
            self.positions.resize(index + 1, NONE);
        }
        let position = self.positions[index];
        if position == NONE {
            self.heap.push(Entry { at_us, slot });
            self.sift_up(self.heap.len() - 1);
        } else if at_us < self.heap[position as usize].at_us {
            self.heap[position as usize].at_us = at_us;
            self.sift_up(position as usize);
        }
    }

    /// The next deadline; it may be earlier than the present deadline of the slot's connection.
    pub(super) fn earliest_us(&self) -> Option<u64> {
        self.heap.first().map(|entry| entry.at_us)
    }

    /// Takes out one slot whose deadline is not after `now_us`.
    pub(super) fn pop_due(&mut self, now_us: u64) -> Option<u32> {
        let first = *self.heap.first()?;
        if first.at_us > now_us {
            return None;
        }
        self.remove(first.slot);
        Some(first.slot)
    }

    /// Number of slots with a deadline.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    fn remove(&mut self, slot: u32) {
        let Some(&position) = self.positions.get(slot as usize) else {
            return;
        };
        if position == NONE {
            return;
        }
        self.positions[slot as usize] = NONE;
        let position = position as usize;
        let last = self.heap.len() - 1;
        self.heap.swap_remove(position);
        if position < last {
            self.positions[self.heap[position].slot as usize] = position as u32;
            self.sift_up(position);
            self.sift_down(position);
        }
    }

    fn sift_up(&mut self, mut position: usize) {
        let entry = self.heap[position];
        while position > 0 {
            let parent = (position - 1) / ARITY;
            if self.heap[parent].at_us <= entry.at_us {
                break;
            }
            self.place(position, self.heap[parent]);
            position = parent;
        }
        self.place(position, entry);
    }

    fn sift_down(&mut self, mut position: usize) {
        let entry = self.heap[position];
        loop {
            let first = position * ARITY + 1;
            let children = first..(first + ARITY).min(self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.heap[child].at_us) else {
                break;
            };
            if self.heap[least].at_us >= entry.at_us {
                break;
            }
            self.place(position, self.heap[least]);
            position = least;
        }
        self.place(position, entry);
    }

    fn place(&mut self, position: usize, entry: Entry) {
        self.heap[position] = entry;
        self.positions[entry.slot as usize] = position as u32;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_deadline_that_moves_back_keeps_its_entry() {
        let mut timers = Timers::default();
        timers.set(7, Some(100));
        timers.set(7, Some(500));
        assert_eq!(timers.earliest_us(), Some(100));
        timers.set(7, Some(50));
        assert_eq!(timers.earliest_us(), Some(50));
        assert_eq!(timers.pop_due(49), None);
        assert_eq!(timers.pop_due(50), Some(7));
        assert_eq!(timers.pop_due(1_000), None);
        assert_eq!(timers.len(), 0);
    }

    proptest! {
        /// Every slot comes up no later than at its last deadline, and never without an entry.
        #[test]
        fn nothing_comes_up_late(steps in prop::collection::vec((0u32..40, prop::option::of(0u64..1_000)), 1..400)) {
            let mut timers = Timers::default();
            let mut wanted = std::collections::BTreeMap::new();
            for (slot, at) in steps {
                timers.set(slot, at);
                match at {
                    Some(at) => { wanted.insert(slot, at); }
                    None => { wanted.remove(&slot); }
                }
                prop_assert_eq!(timers.len(), wanted.len());
                for (position, entry) in timers.heap.iter().enumerate() {
                    prop_assert_eq!(timers.positions[entry.slot as usize] as usize, position);
                    prop_assert!(entry.at_us <= wanted[&entry.slot]);
                    prop_assert!(position == 0 || timers.heap[(position - 1) / ARITY].at_us <= entry.at_us);
                }
            }
            let mut last = 0;
            while let Some(at) = timers.earliest_us() {
                prop_assert!(at >= last);
                last = at;
                let slot = timers.pop_due(at).expect("due");
                prop_assert!(wanted.remove(&slot).expect("known") >= at);
            }
            prop_assert!(wanted.is_empty());
        }
    }
}
