//! What an idle connection costs in memory, counted by the allocator.
//!
//! A binary of its own, because the counting allocator serves the whole process.

#![allow(unsafe_code)] // a global allocator is unsafe by its nature; this one counts and forwards

#[path = "quic/world.rs"]
#[expect(dead_code, reason = "the other tests of QUIC use the rest")]
mod world;

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use quinn_proto::Dir;
use sterna_net::quic::QuicConfig;
use world::{Fate, World, echo};

/// Counts what is allocated while the server runs, by size.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

static ON: AtomicBool = AtomicBool::new(false);
static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The same as the system's allocator counts, with its own overhead.
static HELD_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Sizes of live allocations that the server made; allocates itself, hence only with `ON` off.
const CLASSES: usize = 1 << 14;
static SIZES: [AtomicUsize; CLASSES] = [const { AtomicUsize::new(0) }; CLASSES];

fn class(bytes: usize) -> usize {
    bytes.min(CLASSES - 1)
}

/// Owners of live allocations: a set of addresses, so that what the clients free isn't counted.
struct Owned {
    table: Vec<usize>,
}

static OWNED: Mutex<Owned> = Mutex::new(Owned { table: Vec::new() });

impl Owned {
    fn insert(&mut self, address: usize) {
        let mut at = (address >> 4).wrapping_mul(0x9E37_79B9_7F4A_7C15) % self.table.len();
        while self.table[at] > 1 {
            at = (at + 1) % self.table.len();
        }
        self.table[at] = address;
    }
    fn remove(&mut self, address: usize) -> bool {
        if self.table.is_empty() {
            return false;
        }
        let mut at = (address >> 4).wrapping_mul(0x9E37_79B9_7F4A_7C15) % self.table.len();
        loop {
            match self.table[at] {
                0 => return false,
                found if found == address => {
                    self.table[at] = 1; // a tombstone
                    return true;
                }
                _ => at = (at + 1) % self.table.len(),
            }
        }
    }
}

/// What an allocation takes of the heap: its room and the allocator's header.
fn held(pointer: *mut u8) -> usize {
    // SAFETY: the pointer comes from the system's allocator and is not freed yet.
    let room = unsafe { libc::malloc_usable_size(pointer.cast()) };
    room + size_of::<usize>()
}

// SAFETY: every call goes to the system's allocator unchanged; the bookkeeping allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        let pointer = unsafe { System.alloc(layout) };
        if ON.load(Ordering::Relaxed) && !pointer.is_null() {
            LIVE_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
            HELD_BYTES.fetch_add(held(pointer), Ordering::Relaxed);
            SIZES[class(layout.size())].fetch_add(1, Ordering::Relaxed);
            if let Ok(mut owned) = OWNED.lock() {
                owned.insert(pointer as usize);
            }
        }
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if let Ok(mut owned) = OWNED.lock()
            && owned.remove(pointer as usize)
        {
            LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
            HELD_BYTES.fetch_sub(held(pointer), Ordering::Relaxed);
            SIZES[class(layout.size())].fetch_sub(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Runs a part of the server's work with counting on.
struct Counted;

impl Counted {
    fn start() -> Self {
        ON.store(true, Ordering::Relaxed);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        ON.store(false, Ordering::Relaxed);
    }
}

const CONNECTIONS: usize = 400;
/// What an idle connection may take of the heap, its session ticket included. The design asks for
/// no more than 18 to 20 kB. The three unidirectional streams that HTTP/3 has to be granted are in
/// it, and the 304 bytes of qlog that a build of the whole workspace adds to each connection. The
/// rest is room for the allocator, whose chunks differ by some bytes from run to run.
const BUDGET_BYTES: usize = 15_600;

/// One test counts at a time.
static COUNTS: Mutex<()> = Mutex::new(());

/// Begins to count from nothing.
fn count() -> MutexGuard<'static, ()> {
    let guard = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let table = vec![0; 1 << 20];
    // What was there is given back once the allocator may look again.
    let before = std::mem::replace(
        &mut OWNED.lock().expect("nothing panics there").table,
        table,
    );
    drop(before);
    LIVE_BYTES.store(0, Ordering::Relaxed);
    guard
}

#[test]
fn an_idle_connection_keeps_its_budget() {
    let _guard = count();
    let mut world = World::new(QuicConfig::default(), Duration::from_millis(20));
    world.around_server = Some(Box::new(|| Box::new(Counted::start())));
    world.reaction = Box::new(echo);
    let live = |world: &mut World, connections: usize| {
        for _ in 0..connections {
            let tls = std::sync::Arc::new(world.identity.client_tls(&[b"mqtt"]));
            let mut transport = World::transport();
            transport.max_idle_timeout(None);
            let client = world.connect_with(tls, transport);
            world.run_until(Duration::from_secs(1), |world| {
                world.clients[client].connected.is_some()
            });
            let stream = world.open(client, Dir::Bi, &[7; 64], false);
            world.run_until(Duration::from_secs(1), |world| {
                world.clients[client].received.contains_key(&stream.0)
            });
            world.log.clear();
        }
        world.run_for(Duration::from_secs(15));
        (
            LIVE_BYTES.load(Ordering::Relaxed),
            HELD_BYTES.load(Ordering::Relaxed),
        )
    };
    let before = live(&mut world, CONNECTIONS);
    let sizes: Vec<_> = SIZES.iter().map(|n| n.load(Ordering::Relaxed)).collect();
    let after = live(&mut world, CONNECTIONS);
    assert_eq!(world.server.len(), 2 * CONNECTIONS);
    let asked_for = (after.0 - before.0) / CONNECTIONS;
    let per_connection = (after.1 - before.1) / CONNECTIONS;
    println!("{asked_for} bytes asked for,");
    println!("{per_connection} bytes per idle connection, of which");
    let mut classes = BTreeMap::new();
    for (bytes, (now, before)) in SIZES.iter().zip(sizes).enumerate() {
        let more = now.load(Ordering::Relaxed).saturating_sub(before);
        if more * 10 > CONNECTIONS {
            classes.insert((more * bytes / CONNECTIONS, bytes), more);
        }
    }
    for ((total, bytes), more) in classes.iter().rev().take(30) {
        println!("{total:>8} = {more:>5} / {CONNECTIONS} x {bytes}");
    }
    assert!(
        per_connection <= BUDGET_BYTES,
        "{per_connection} bytes per connection"
    );
}

/// Data behind a gap leaves memory when its connection is closed, and when the client closes it: not only when the end is
/// over, which the client can draw out. Nothing that comes later stays.
#[test]
fn a_connection_that_ends_keeps_nothing_unread() {
    let _guard = count();
    for is_closed_by_the_client in [false, true] {
        let mut world = World::new(QuicConfig::default(), Duration::from_millis(20));
        world.around_server = Some(Box::new(|| Box::new(Counted::start())));
        let client = world.connect();
        world.run_for(Duration::from_secs(1));
        let own = world.open(client, Dir::Bi, b"CONNECT", false);
        world.run_for(Duration::from_secs(1));
        let key = world.opened()[0].1;
        // A word that the client never acknowledges keeps the connection waiting.
        let lossy = |world: &mut World, streams: usize| {
            let before = world.clients[client].up.0;
            world.rule = Box::new(move |crossing| {
                if crossing.to_server && crossing.number != before {
                    Fate::Deliver
                } else {
                    Fate::Drop
                }
            });
            let bytes = vec![7; 9_000 / streams];
            for _ in 0..streams {
                world.open(client, Dir::Bi, &bytes, false);
            }
            world.run_for(Duration::from_millis(22));
            LIVE_BYTES.load(Ordering::Relaxed)
        };
        let before = LIVE_BYTES.load(Ordering::Relaxed);
        let held = lossy(&mut world, 1) - before;
        assert!(held > 7_000, "{held} bytes wait behind the gap");
        if is_closed_by_the_client {
            let now = world.now;
            (world.clients[client].connection).close(now, 0_u32.into(), Bytes::new());
            world.run_for(Duration::from_millis(22));
        } else {
            world.server.send(key, own, b"DISCONNECT");
            world.server.close(key, 0);
            lossy(&mut world, 2);
        }
        assert_eq!(world.server.len(), 1, "its end is not over");
        let left = LIVE_BYTES.load(Ordering::Relaxed).saturating_sub(before);
        assert!(
            left < 3_000,
            "{left} bytes are left: {is_closed_by_the_client}"
        );
    }
}
