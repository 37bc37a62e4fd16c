//! Allocations of an append on its shard's thread.
#![allow(clippy::unwrap_used)] // it is all test

use std::sync::Arc;

use counting::{allocated_bytes, allocations};
use sterna_store::disk::{RealDisk, SimulatedDisk};
use sterna_store::{Draft, Engine, Settings};

/// Counts allocations of the current thread. An allocator cannot be written without `unsafe`.
mod counting {
    #![allow(unsafe_code)]

    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::Cell;

    thread_local! {
        static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
        static BYTES: Cell<isize> = const { Cell::new(0) };
    }

    struct Counting;

    #[global_allocator]
    static COUNTING: Counting = Counting;

    // SAFETY: everything is left to the system's allocator; the counter does not allocate.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            ALLOCATIONS.set(ALLOCATIONS.get() + 1);
            BYTES.set(BYTES.get() + taken(layout.size()));
            // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
            BYTES.set(BYTES.get() - taken(layout.size()));
            // SAFETY: the pointer came from `System` with this layout.
            unsafe { System.dealloc(pointer, layout) }
        }

        unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
            ALLOCATIONS.set(ALLOCATIONS.get() + 1);
            BYTES.set(BYTES.get() + taken(bytes) - taken(layout.size()));
            // SAFETY: the pointer came from `System` with this layout.
            unsafe { System.realloc(pointer, layout, bytes) }
        }
    }

    /// What a block takes with the C library, which has a word before it and multiples of 16.
    fn taken(bytes: usize) -> isize {
        (bytes + 8).next_multiple_of(16).max(32) as isize
    }

    /// Bytes that the current thread has allocated and not freed.
    pub(crate) fn allocated_bytes() -> isize {
        BYTES.get()
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

/// A session that was made and went away has three records that wait for their checkpoint: itself, a subscription, and
/// its cursor.
#[test]
fn records_of_a_session_that_wait_for_a_checkpoint_are_small() {
    const SESSIONS: usize = 50_000;
    /// With what the buffer has reserved, which a system does not give before it is used.
    const MOST_BYTES: usize = 224;
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(RealDisk::new(folder.path()));
    let mut engine = Engine::open(disk, Settings::default()).unwrap();
    let mut handle = engine.handle(Box::new(|| {}));
    let mut draft = Draft::default();
    let mut make = |handle: &mut sterna_store::Handle, number: usize| {
        draft.clear();
        let name = format!("away-{number:06}");
        for (kind, rest, value) in [
            ("s", "", &[9; 11][..]),
            ("u", "bench/news/00000000", &[9; 6][..]),
            ("c", "", &[9; 4][..]),
        ] {
            let key = format!("{kind}.{name}{rest}");
            // Twice: only the last counts.
            draft.change(key.as_bytes(), Some(b"before")).unwrap();
            draft.change(key.as_bytes(), Some(value)).unwrap();
        }
        handle.append(&draft).unwrap();
    };
    // The first checkpoint is made at once, and none within its interval afterwards.
    make(&mut handle, 0);
    while engine.turn(0, &mut || false) {}
    let before = allocated_bytes();
    for number in 1..=SESSIONS {
        make(&mut handle, number);
        if number % 16 == 0 {
            engine.turn(number as u64 / 16, &mut || false);
        }
    }
    engine.turn(4_000, &mut || false);
    let each = usize::try_from(allocated_bytes() - before).unwrap() / SESSIONS;
    println!("{each} bytes");
    assert!(each <= MOST_BYTES, "{each} bytes");
}
