//! The allocator of this program: jemalloc.
//!
//! The GNU C library hands freed blocks out again in the order in which they were freed. After many sessions have
//! gone to sleep, those lie all over the heap, and each message pays for it. `cargo xtask bench durable` shows that.
#![allow(unsafe_code)] // a call into jemalloc

use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// All arenas: `MALLCTL_ARENAS_ALL` of jemalloc.
const PURGE_ALL: &std::ffi::CStr = c"arena.4096.purge";

/// Gives memory that nobody uses back to the system, at once.
///
/// jemalloc does so by itself, some seconds late, and only in a thread that goes on asking for memory.
pub(crate) fn give_back() {
    use std::ptr::null_mut;
    // SAFETY: the name ends with a zero, and this control takes no value and returns none.
    unsafe {
        tikv_jemalloc_sys::mallctl(PURGE_ALL.as_ptr(), null_mut(), null_mut(), null_mut(), 0);
    }
}
