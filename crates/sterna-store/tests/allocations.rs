//! Allocations of an append on its shard's thread.
#![allow(clippy::unwrap_used)] // it is all test

use std::sync::Arc;

use counting::allocations;
use sterna_store::disk::SimulatedDisk;
use sterna_store::{Draft, Engine, Settings};

/// Counts allocations of the current thread. An allocator cannot be written without `unsafe`.
mod counting {
    #![allow(unsafe_code)]

    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::Cell;

    thread_local! {
        static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    }

    struct Counting;

    #[global_allocator]
    static COUNTING: Counting = Counting;

    // SAFETY: everything is left to the system's allocator; the counter does not allocate.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            ALLOCATIONS.set(ALLOCATIONS.get() + 1);
            // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
            // SAFETY: the pointer came from `System` with this layout.
            unsafe { System.dealloc(pointer, layout) }
        }

        unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
            ALLOCATIONS.set(ALLOCATIONS.get() + 1);
            // SAFETY: the pointer came from `System` with this layout.
            unsafe { System.realloc(pointer, layout, bytes) }
        }
    }

    /// Number of allocations while `run` runs.
    pub(crate) fn allocations(run: impl FnOnce()) -> usize {
        let before = ALLOCATIONS.get();
        run();
        ALLOCATIONS.get() - before
    }
}

#[test]
fn an_append_allocates_nothing_but_a_buffer_that_doubles() {
    let disk = Arc::new(SimulatedDisk::new(1));
    let engine = Engine::open(disk, Settings::default()).unwrap();
    let mut handle = engine.handle(Box::new(|| {}));
    let mut draft = Draft::default();
    let payload = [7; 1_000];
    let allocated = allocations(|| {
        for _ in 0..10_000 {
            draft.clear();
            draft
                .message("site/device/00000001", |out| {
                    out.extend_from_slice(b"head site/device/00000001");
                    out.extend_from_slice(&payload);
                })
                .unwrap();
            draft.change(b"key", Some(b"value")).unwrap();
            handle.append(&draft).unwrap();
            handle.flush();
        }
    });
    // 11 MB are reached by doubling some twenty times.
    assert!(allocated < 40, "{allocated}");
}
