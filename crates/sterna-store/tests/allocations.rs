//! Allocations of an append on its shard's thread.
#![allow(clippy::unwrap_used)] // it is all test

use std::sync::Arc;

use counting::{allocated_bytes, allocations, peak_bytes};
use sterna_broker::{LogNeeds, NeededFilter, ReaderNeeds};
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
        static PEAK: Cell<isize> = const { Cell::new(0) };
    }

    struct Counting;

    #[global_allocator]
    static COUNTING: Counting = Counting;

    // SAFETY: everything is left to the system's allocator; the counter does not allocate.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            ALLOCATIONS.set(ALLOCATIONS.get() + 1);
            add(taken(layout.size()));
            // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
            add(-taken(layout.size()));
            // SAFETY: the pointer came from `System` with this layout.
            unsafe { System.dealloc(pointer, layout) }
        }

        unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
            ALLOCATIONS.set(ALLOCATIONS.get() + 1);
            // Both are there while the one is copied into the other.
            add(taken(bytes));
            add(-taken(layout.size()));
            // SAFETY: the pointer came from `System` with this layout.
            unsafe { System.realloc(pointer, layout, bytes) }
        }
    }

    /// What a block takes with the C library, which has a word before it and multiples of 16.
    fn taken(bytes: usize) -> isize {
        (bytes + 8).next_multiple_of(16).max(32) as isize
    }

    fn add(bytes: isize) {
        BYTES.set(BYTES.get() + bytes);
        PEAK.set(PEAK.get().max(BYTES.get()));
    }

    /// Bytes that the current thread had allocated at most while `run` ran, beyond those before.
    pub(crate) fn peak_bytes(run: impl FnOnce()) -> usize {
        let before = BYTES.get();
        PEAK.set(before);
        run();
        usize::try_from(PEAK.get() - before).unwrap_or(0)
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

/// Ranges of one reader whose subscriptions were replaced often, and of many that sleep at different positions.
#[test]
fn a_look_at_a_segment_takes_little_for_a_topic_whatever_the_number_of_readers() {
    const TOPICS: u64 = 5_000;
    const READERS: u64 = 250;
    /// The index, and a number for each topic.
    const MOST_BYTES: usize = 120;
    let settings = Settings {
        segment_bytes: 1 << 20,
        minimum_free_bytes: 0,
        rewrite_interval_ms: 0,
        // It is looked at, and does not pay.
        rewrite_least_percent: 100,
        rewrite_bytes_per_s: u64::MAX,
        ..Settings::default()
    };
    let mut engine = Engine::open(Arc::new(SimulatedDisk::new(1)), settings).unwrap();
    let mut handle = engine.handle(Box::new(|| {}));
    let mut draft = Draft::default();
    let mut append = |handle: &mut sterna_store::Handle, topic: &str, bytes: usize| {
        draft.clear();
        let content = vec![7; bytes];
        draft
            .message(topic, |out| out.extend_from_slice(&content))
            .unwrap();
        draft.change(b"key", Some(topic.as_bytes())).unwrap();
        handle.append(&draft).unwrap();
    };
    for number in 0..TOPICS {
        append(&mut handle, &format!("d/{number:07}"), 100);
    }
    for number in 0..40_u64 {
        append(&mut handle, "f/x", 1 << 18);
        while engine.turn(number * 10_000, &mut || false) {}
    }
    let step = TOPICS / READERS;
    let replaced = ReaderNeeds {
        filters: (0..READERS)
            .map(|number| NeededFilter {
                filter: "d/#".into(),
                since: number * step,
                // A gap, so that the ranges are many.
                until: number * step + step / 2,
            })
            .collect(),
        from: 1,
        single: Vec::new(),
    };
    let asleep = (1..READERS).map(|number| ReaderNeeds {
        filters: vec![NeededFilter {
            filter: "d/#".into(),
            since: 0,
            until: u64::MAX,
        }],
        from: number * step,
        single: Vec::new(),
    });
    for readers in [vec![replaced], asleep.collect()] {
        let needs = LogNeeds {
            all_from: u64::MAX,
            readers,
        };
        let peak = peak_bytes(|| {
            handle.needs(needs);
            while engine.turn(500_000, &mut || false) {}
        });
        let each = peak / TOPICS as usize;
        println!("{each} bytes for a topic");
        assert!(each <= MOST_BYTES, "{each} bytes for a topic");
    }
}
