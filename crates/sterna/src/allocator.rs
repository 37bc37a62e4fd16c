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
/// Hands what is kept for this thread over to its arena.
const FLUSH: &std::ffi::CStr = c"thread.tcache.flush";

/// Gives memory that nobody uses back to the system.
///
/// jemalloc does so by itself only in a thread that goes on asking for memory. A broker falls silent after a burst, so
/// a thread of the server calls this.
pub(crate) fn give_back(unused: Unused) {
    use std::ptr::null_mut;
    let control = match unused {
        Unused::All => PURGE_ALL,
        Unused::Aged => DECAY_ALL,
        Unused::OfThread => FLUSH,
    };
    // SAFETY: the name ends with a zero, and these controls take no value and return none.
    unsafe {
        tikv_jemalloc_sys::mallctl(control.as_ptr(), null_mut(), null_mut(), null_mut(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 3_450;
    /// Of so many blocks one stays: about as many as lie on one page of theirs.
    const ONE_OF: usize = 8;
    const STAYING: usize = 4_000;

    fn resident_bytes() -> usize {
        let pages = std::fs::read_to_string("/proc/self/statm").expect("it is there");
        let pages = pages.split(' ').nth(1).expect("a second number");
        4_096 * pages.parse::<usize>().expect("a number")
    }

    /// `Directory::gather_retained` counts on this.
    #[test]
    #[cfg(target_os = "linux")]
    fn blocks_that_are_moved_leave_the_pages_on_which_they_were_alone() {
        let block = |n| vec![n as u8; BYTES].into_boxed_slice();
        let mut staying: Vec<Box<[u8]>> = (0..STAYING * ONE_OF).map(block).collect();
        let mut number = 0;
        staying.retain(|_| {
            number += 1;
            number % ONE_OF == 0
        });
        give_back(Unused::All);
        let before_bytes = resident_bytes();
        for one in &mut staying {
            *one = one.clone();
            give_back(Unused::OfThread);
        }
        give_back(Unused::All);
        let freed_bytes = before_bytes.saturating_sub(resident_bytes());
        let alone_bytes = STAYING * (ONE_OF - 1) * BYTES;
        assert!(
            freed_bytes > alone_bytes / 2,
            "{freed_bytes} of {alone_bytes}"
        );
        assert_eq!(staying.len(), STAYING);
    }
}
