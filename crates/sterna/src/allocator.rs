//! The allocator of this program: jemalloc.
//!
//! The GNU C library hands freed blocks out again in the order in which they were freed. After many sessions have
//! gone to sleep, those lie all over the heap, and each message pays for it. `cargo xtask bench durable` shows that.
#![allow(unsafe_code)] // a call into jemalloc

use sterna_server::Unused;
use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Purges the unused pages of all arenas: 4096 is `MALLCTL_ARENAS_ALL` of jemalloc.
const PURGE_ALL: &std::ffi::CStr = c"arena.4096.purge";
/// Purges those that have been unused for long.
const DECAY_ALL: &std::ffi::CStr = c"arena.4096.decay";

/// Gives memory that nobody uses back to the system.
///
/// jemalloc does so by itself only in a thread that goes on asking for memory. A broker falls silent after a burst, so
/// a thread of the server calls this.
pub(crate) fn give_back(unused: Unused) {
    use std::ptr::null_mut;
    let control = match unused {
        Unused::All => PURGE_ALL,
        Unused::Aged => DECAY_ALL,
    };
    // SAFETY: the name ends with a zero, and both controls take no value and return none.
    unsafe {
        tikv_jemalloc_sys::mallctl(control.as_ptr(), null_mut(), null_mut(), null_mut(), 0);
    }
}
