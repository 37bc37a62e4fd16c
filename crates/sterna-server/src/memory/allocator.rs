//! Asks the C library for what the standard library cannot: to give memory that nobody uses back to the
//! system.
#![allow(unsafe_code)] // malloc_trim and sysconf have no safe counterpart in the standard library

/// Gives memory that nobody uses back to the system.
///
/// The GNU C library keeps what is freed below memory in use, in a heap of each thread. Other libraries give
/// it back by themselves.
pub(super) fn give_back() {
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
