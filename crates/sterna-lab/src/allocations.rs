//! Counts what a program allocates.
//!
//! Unsafe because the standard library's interface of allocators is. An allocation costs about 20 ns
//! more, so it is a feature of the program (`count-allocations`), and not in the one whose CPU time is
//! measured.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

static BYTES: AtomicU64 = AtomicU64::new(0);
static COUNT: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, counted.
#[derive(Debug)]
pub struct Counted;

fn note(bytes: usize) {
    BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
    COUNT.fetch_add(1, Ordering::Relaxed);
}

// SAFETY: everything is the system allocator's; counting touches none of its memory.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        note(new_bytes);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, new_bytes) }
    }
}

/// What was allocated since the program started, freed or not.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Allocated {
    /// Bytes; of memory that grew, all that it grew to.
    pub bytes: u64,
    /// Times.
    pub count: u64,
}

/// What was allocated so far; none where the program does not count.
#[must_use]
pub fn so_far() -> Option<Allocated> {
    let allocated = Allocated {
        bytes: BYTES.load(Ordering::Relaxed),
        count: COUNT.load(Ordering::Relaxed),
    };
    // No program gets as far as here without.
    (allocated.count > 0).then_some(allocated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_goes_through_the_counter_is_counted() {
        assert_eq!(so_far(), None);
        let layout = Layout::from_size_align(24, 8).unwrap();
        // SAFETY: the layout is of a size, and what is allocated is freed with it, grown once.
        unsafe {
            let memory = Counted.alloc(layout);
            let memory = Counted.realloc(memory, layout, 48);
            Counted.dealloc(memory, Layout::from_size_align(48, 8).unwrap());
        }
        assert_eq!(
            so_far(),
            Some(Allocated {
                bytes: 72,
                count: 2
            })
        );
    }
}
