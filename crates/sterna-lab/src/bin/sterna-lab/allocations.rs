//! Counts of this process's allocations, on request.
#![allow(unsafe_code)] // an allocator cannot be written without it

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The system's allocator, which counts while it is asked to. Else it reads one flag that never
/// changes, which costs a broker nothing that can be measured.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static IS_COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);
static LARGEST: AtomicU64 = AtomicU64::new(0);

#[inline]
fn count(bytes: usize) {
    if IS_COUNTING.load(Ordering::Relaxed) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
        LARGEST.fetch_max(bytes as u64, Ordering::Relaxed);
    }
}

// SAFETY: everything is left to the system's allocator; the counters do not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `System` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(bytes);
        // SAFETY: the pointer came from `System` with this layout.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

/// Allocated bytes and calls, freed or not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocated {
    /// Times.
    pub(crate) count: u64,
    /// Bytes; of memory that grew, all that it grew to.
    pub(crate) bytes: u64,
    /// The largest single one, in bytes; 0 before the first.
    pub(crate) largest: u64,
}

/// Counts from now on. Each allocation then costs three atomic operations more, some nanoseconds.
pub(crate) fn start() {
    IS_COUNTING.store(true, Ordering::Relaxed);
}

/// Allocations since the start.
pub(crate) fn read() -> Allocated {
    Allocated {
        count: ALLOCATIONS.load(Ordering::Relaxed),
        bytes: BYTES.load(Ordering::Relaxed),
        largest: LARGEST.load(Ordering::Relaxed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_are_counted_once_that_is_wanted() {
        start();
        let before = read();
        let block = std::hint::black_box(vec![0_u8; 100_000]);
        let after = read();
        assert!(after.count > before.count);
        assert!(after.bytes >= before.bytes + block.len() as u64);
        assert!(after.largest >= block.len() as u64);
    }
}
