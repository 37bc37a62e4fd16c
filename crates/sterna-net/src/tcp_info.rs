//! The kernel's knowledge of a TCP connection's path.
//!
//! Unsafe because neither the standard library nor socket2 reads `TCP_INFO`.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

use crate::PathStatistics;

/// 32-bit words of the kernel's structure that are read; later kernels append more.
const WORDS: usize = 38;
// Positions in it (include/uapi/linux/tcp.h), which never change. The C library's own declaration ends
// before the last three.
const SND_MSS: usize = 4;
const PMTU: usize = 15;
const RTT: usize = 17;
const RTT_VARIANCE: usize = 18;
const SND_CWND: usize = 20;
const TOTAL_RETRANS: usize = 25;
const SEGS_OUT: usize = 34;
const SEGS_IN: usize = 35;
const MIN_RTT: usize = 37;

/// The kernel's figures; bytes on the wire and payload are left at 0.
pub(crate) fn read(socket: &impl AsRawFd) -> io::Result<PathStatistics> {
    let mut words = [0u32; WORDS];
    let mut length = size_of_val(&words) as libc::socklen_t;
    // SAFETY: the descriptor is open for the duration of the call. The kernel writes at most
    // `length` bytes to `words`, which has as many, and any bytes are valid integers.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            words.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // Values that an old kernel does not know stay 0.
    let word = |at: usize| u64::from(words[at]);
    Ok(PathStatistics {
        rtt_us: word(RTT),
        // The kernel's word for "none yet".
        min_rtt_us: word(MIN_RTT) % u64::from(u32::MAX),
        rtt_variance_us: word(RTT_VARIANCE),
        lost_packets: word(TOTAL_RETRANS),
        congestion_window_bytes: word(SND_CWND) * word(SND_MSS),
        mtu_bytes: words[PMTU],
        received_datagrams: word(SEGS_IN),
        sent_datagrams: word(SEGS_OUT),
        open_streams: 1,
        ..PathStatistics::default()
    })
}
