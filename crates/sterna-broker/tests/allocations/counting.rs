//! An allocator that counts.

#![allow(unsafe_code)] // `GlobalAlloc` is an unsafe trait; all it does is to count and pass on

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Other threads, such as the test runner's, allocate when they like.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    // At the end of a thread there is nothing left to count in, nor anybody who asks.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        BYTES.fetch_add(cost(layout.size()), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(cost(layout.size()), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        BYTES.fetch_add(cost(size), Ordering::Relaxed);
        BYTES.fetch_sub(cost(layout.size()), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// What a block costs in glibc's heap: eight bytes more, in steps of sixteen, at least 32.
const fn cost(size: usize) -> usize {
    let rounded = (size + 8).next_multiple_of(16);
    if rounded < 32 { 32 } else { rounded }
}

/// This thread's allocations since it started.
pub(crate) fn allocations() -> usize {
    ALLOCATIONS.with(Cell::get)
}

/// Bytes allocated now, with the heap's own.
pub(crate) fn allocated_bytes() -> usize {
    BYTES.load(Ordering::Relaxed)
}
