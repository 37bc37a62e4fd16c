//! Asks the C library for what the standard library cannot: to give memory that nobody uses back to the
//! system.
#![allow(unsafe_code)] // malloc_trim and sysconf have no safe counterpart in the standard library

use std::sync::OnceLock;

/// How the program's allocator gives memory back. `None`: it is the C library's.
static GIVE_BACK: OnceLock<fn(Unused)> = OnceLock::new();

/// Which memory that nobody uses is given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unused {
    /// All of it.
    All,
    /// Memory that has been unused for a time that the allocator chooses; little work where there is none.
    Aged,
    /// Memory that the allocator keeps for the next demand of this thread. It is given to the allocator, not to the system.
    OfThread,
}

/// Says how memory that nobody uses is given back to the system, in a program with an allocator of its own.
///
/// `give_back` is called by a thread of the server, every 250 ms and more. The first call counts, others do nothing.
pub fn give_back_with(give_back: fn(Unused)) {
    GIVE_BACK.get_or_init(|| give_back);
}

/// Has the C library keep one heap for all threads, in a program with an allocator of its own.
///
/// Each heap reserves 64 MiB of addresses, and the library makes one for each thread that asks it for anything. To be
/// called before there are threads.
pub fn keep_one_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes two numbers, and no other thread asks for memory.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Gives memory that nobody uses back to the system.
///
/// The GNU C library keeps freed memory below memory in use, in a heap of each thread, and knows no age. Other
/// libraries give it back by themselves.
pub(super) fn give_back(unused: Unused) {
    if let Some(give_back) = GIVE_BACK.get() {
        return give_back(unused);
    }
    if unused != Unused::All {
        return;
    }
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes a number, and may be called by any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The size of a page of memory in bytes.
pub(super) fn page_bytes() -> u64 {
    #[cfg(unix)]
    {
        // SAFETY: it takes a number and returns one.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        u64::try_from(bytes).unwrap_or(4096)
    }
    #[cfg(not(unix))]
    4096
}
