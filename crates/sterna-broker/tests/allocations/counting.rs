//! An allocator that counts.

#![allow(unsafe_code)] // `GlobalAlloc` is an unsafe trait; all it does is to count and pass on

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    /// Other threads, such as the test runner's, allocate when they like.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    /// Begins in the midst of all numbers: a thread may free what another one allocated.
    static BYTES: Cell<usize> = const { Cell::new(usize::MAX / 2) };
}

fn count() {
    // At the end of a thread there is nothing left to count in, nor anybody who asks.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

fn add(bytes: usize) {
    let _ = BYTES.try_with(|sum| sum.set(sum.get() + bytes));
}

fn subtract(bytes: usize) {
    let _ = BYTES.try_with(|sum| sum.set(sum.get() - bytes));
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        add(cost(layout.size()));
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        subtract(cost(layout.size()));
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        add(cost(size));
        subtract(cost(layout.size()));
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

/// What this thread allocated less what it freed, in bytes, with the heap's own. Only a difference of two of these
/// figures says something.
pub(crate) fn allocated_bytes() -> usize {
    BYTES.get()
}
