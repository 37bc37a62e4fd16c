//! What the kernel knows of a TCP connection's path.
//!
//! Unsafe because neither the standard library nor socket2 reads `TCP_INFO`.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

use crate::PathStatistics;

/// Round trip, losses and window; byte counts and migrations are left at 0.
pub(crate) fn read(socket: &impl AsRawFd) -> io::Result<PathStatistics> {
    // SAFETY: the structure consists of integers, for which zeroes are valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the descriptor is open for the duration of the call; the kernel writes at most
    // `length` bytes to `info`, which has as many.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(PathStatistics {
        rtt_us: u64::from(info.tcpi_rtt),
        lost_packets: u64::from(info.tcpi_total_retrans),
        congestion_window_bytes: u64::from(info.tcpi_snd_cwnd) * u64::from(info.tcpi_snd_mss),
        ..PathStatistics::default()
    })
}
