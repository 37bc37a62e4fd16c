//! Functions of Linux that the lab needs and the standard library does not offer: network
//! namespaces, TUN devices, precise timers, priorities.
#![allow(unsafe_code)] // setns, unshare, ioctl, epoll, timerfd and scheduling have no safe wrapper in std

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::mem;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// TCP's state of a connection that stands (include/net/tcp_states.h).
const TCP_ESTABLISHED: u8 = 1;
/// Longest name of a network device, in bytes.
const MAX_DEVICE_NAME_BYTES: usize = libc::IFNAMSIZ - 1;

/// The result of a call that returns -1 on failure.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn owned(fd: libc::c_int) -> io::Result<OwnedFd> {
    let fd = check(fd)?;
    // SAFETY: the call that returned it has just opened it, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Nanoseconds of the monotonic clock, the same for all processes of the machine.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is valid for the call. This clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Moves this thread into a new network namespace.
pub(crate) fn unshare_network() -> io::Result<()> {
    // SAFETY: changes which network this thread sees, no memory.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) }).map(drop)
}

/// Moves this process into a user namespace of its own, in which it has root's rights on namespaces
/// that it makes. It must have one thread. Users and groups stay unchanged, so programs that it
/// executes later do not have these rights.
pub(crate) fn unshare_user() -> io::Result<()> {
    // SAFETY: both read a number.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    // SAFETY: changes the rights of this process, no memory.
    check(unsafe { libc::unshare(libc::CLONE_NEWUSER) })?;
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

/// Moves this thread into a network namespace.
pub(crate) fn enter_network(namespace: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: changes which network this thread sees, no memory.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }).map(drop)
}

/// Makes a command start in a network namespace, and end when the thread that started it ends.
///
/// The descriptor must be open when the command is spawned.
pub(crate) fn start_in_network(command: &mut Command, namespace: BorrowedFd<'_>) {
    let namespace = namespace.as_raw_fd();
    let parent = std::process::id();
    // SAFETY: between fork and exec only system calls are made, which is allowed there.
    unsafe {
        command.pre_exec(move || {
            check(libc::setns(namespace, libc::CLONE_NEWNET))?;
            check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
            // The parent may have ended before the line above.
            if libc::getppid().unsigned_abs() != parent {
                return Err(io::ErrorKind::Interrupted.into());
            }
            Ok(())
        });
    }
}

/// Lets a command have descriptors of this process, under their numbers.
///
/// They must be open when the command is spawned.
pub(crate) fn inherit(command: &mut Command, fds: [RawFd; 2]) {
    // SAFETY: between fork and exec only system calls are made, which is allowed there.
    unsafe {
        command.pre_exec(move || {
            for fd in fds {
                check(libc::fcntl(fd, libc::F_SETFD, 0))?;
            }
            Ok(())
        });
    }
}

/// Real-time priority of the programs that are measured: below the emulator's.
const ENDPOINT_PRIORITY: i32 = 1;

/// Makes a thread, and its later children, run before all others without real-time priority. On a
/// shared machine a device that waits for a core looks like a slow network.
///
/// # Errors
///
/// Without the right to it, or if there is no such thread.
pub(crate) fn prefer(thread: u32) -> io::Result<()> {
    let thread = libc::pid_t::try_from(thread).map_err(|_| io::ErrorKind::InvalidInput)?;
    let parameter = libc::sched_param {
        sched_priority: ENDPOINT_PRIORITY,
    };
    // SAFETY: the pointer is valid for the call.
    check(unsafe { libc::sched_setscheduler(thread, libc::SCHED_RR, &raw const parameter) })
        .map(drop)
}

/// Whether a thread has the real-time policy that `prefer` gives, by its `/proc/PID/task/TID/stat`.
#[must_use]
pub fn is_round_robin(stat: &str) -> bool {
    // Field 41, counted from behind the name, which may hold blanks.
    stat.rsplit_once(')')
        .and_then(|(_, fields)| fields.split_ascii_whitespace().nth(41 - 3))
        .and_then(|policy| policy.parse().ok())
        == Some(libc::SCHED_RR)
}

/// The congestion control of a TCP socket, as the kernel tells it.
///
/// # Errors
///
/// If it is no such socket.
pub(crate) fn congestion_control(socket: BorrowedFd<'_>) -> io::Result<String> {
    let mut name = [0_u8; 16];
    let mut length = name.len() as libc::socklen_t;
    // SAFETY: the kernel writes no more than `length` bytes to the buffer, and the length back.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_mut_ptr().cast(),
            &raw mut length,
        )
    })?;
    let text = name.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// The kernel's knowledge of a TCP connection.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TcpState {
    /// Its congestion control.
    pub congestion: String,
    /// Its smoothed round trip, in microseconds.
    pub rtt_us: u64,
    /// After which it sends again what is not acknowledged, in microseconds.
    pub rto_us: u64,
}

/// The TCP connections of this process that stand, in the order of their descriptors.
#[must_use]
pub fn own_tcp_connections() -> Vec<TcpState> {
    let mut fds: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    fds.sort_unstable();
    fds.into_iter()
        .filter_map(|fd| {
            // SAFETY: if another thread closes the descriptor meanwhile, the calls below fail; they
            // only read. It is not closed here.
            let socket = unsafe { BorrowedFd::borrow_raw(fd) };
            let (round_trip_us, timeout_us) = tcp_timers_us(socket).ok()?;
            Some(TcpState {
                rtt_us: round_trip_us,
                rto_us: timeout_us,
                congestion: congestion_control(socket).ok()?,
            })
        })
        .collect()
}

/// The smoothed round trip and the timeout of an established TCP connection.
fn tcp_timers_us(socket: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    // SAFETY: the structure is of integers only, for which zero is a value.
    let mut info: libc::tcp_info = unsafe { mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes no more than `length` bytes to the structure, and the length back.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    })?;
    if info.tcpi_state != TCP_ESTABLISHED {
        return Err(io::ErrorKind::NotConnected.into());
    }
    Ok((info.tcpi_rtt.into(), info.tcpi_rto.into()))
}

/// Lets a TCP socket connect by Fast Open (RFC 7413). Where the kernel has a cookie of the server, the
/// SYN leaves with the first data. Linux 4.11.
///
/// # Errors
///
/// If the kernel does not know the option.
pub fn connect_by_fast_open(socket: BorrowedFd<'_>) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the kernel reads as many bytes as an integer has, and keeps nothing.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_FASTOPEN_CONNECT,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    })
    .map(drop)
}

/// Makes a command end when the thread that started it ends.
pub(crate) fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: between fork and exec only system calls are made, which is allowed there.
    unsafe {
        command.pre_exec(move || {
            check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
            if libc::getppid().unsigned_abs() != parent {
                return Err(io::ErrorKind::Interrupted.into());
            }
            Ok(())
        });
    }
}

/// Raises the limit of open files to the system's maximum; returns it.
pub(crate) fn raise_open_files() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is valid for the call.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the pointer is valid for the call.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })?;
    Ok(limit.rlim_cur)
}

/// Sends a signal to a process.
pub(crate) fn signal(pid: u32, signal: i32) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    if pid <= 1 {
        // 0 and -1 mean more than one process.
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: touches no memory of this process.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// Signals that ask another process to end, and end it.
pub(crate) const SIGTERM: i32 = libc::SIGTERM;
/// The same without asking.
pub(crate) const SIGKILL: i32 = libc::SIGKILL;

/// Gives this thread real-time priority, 1 to 99. Threads and processes that it starts do not
/// inherit it.
///
/// # Errors
///
/// Without the right to it.
pub fn set_real_time(priority: i32) -> io::Result<()> {
    let parameter = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the pointer is valid for the call; 0 is this thread.
    check(unsafe {
        libc::sched_setscheduler(
            0,
            libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK,
            &raw const parameter,
        )
    })
    .map(drop)
}

/// Keeps the processors from sleeping when they have nothing to do, until it is dropped.
///
/// Waking up takes up to milliseconds, above all in virtual machines, whose host has meanwhile given
/// the processor to others. It costs the power of processors that run all the time.
#[derive(Debug)]
pub struct Awake {
    _request: File,
}

impl Awake {
    /// From now on.
    ///
    /// # Errors
    ///
    /// Without the right to write to `/dev/cpu_dma_latency`, or where there is none.
    pub fn begin() -> io::Result<Self> {
        let mut request = OpenOptions::new()
            .write(true)
            .open("/dev/cpu_dma_latency")?;
        // The latency to be met, in microseconds; it holds as long as the file is open (kernel
        // documentation, PM Quality of Service).
        request.write_all(&0_i32.to_ne_bytes())?;
        Ok(Self { _request: request })
    }
}

/// Lets timers of this thread fire when they are due; the default is up to 50 us later.
///
/// # Errors
///
/// If the kernel refuses.
pub fn set_timer_slack_ns(slack_ns: u32) -> io::Result<()> {
    // SAFETY: takes a number.
    check(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, libc::c_ulong::from(slack_ns)) }).map(drop)
}

/// Makes a TUN device in this thread's network namespace. It goes when the descriptor is closed.
///
/// Plain packets without an additional header, and without offloads. The kernel divides segments
/// longer than the MTU before the packets come out here.
pub(crate) fn open_tun(name: &str) -> io::Result<OwnedFd> {
    open_device(name, libc::IFF_TUN)
}

/// Makes a TAP device, whose packets have an Ethernet header, in the network that this thread is in.
pub(crate) fn open_tap(name: &str) -> io::Result<OwnedFd> {
    open_device(name, libc::IFF_TAP)
}

fn open_device(name: &str, kind: libc::c_int) -> io::Result<OwnedFd> {
    if name.is_empty() || name.len() > MAX_DEVICE_NAME_BYTES {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")?;
    // SAFETY: an `ifreq` is names, numbers and a union of such, so all zeros is a value of it.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request.ifr_ifru.ifru_flags = (kind | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the kernel reads and writes an `ifreq` here, and the pointer is to one.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    Ok(file.into())
}

/// Features of a device that make packets longer than the wire's: `ETHTOOL_STXCSUM`, `_STSO`,
/// `_SUFO`, `_SGSO` and `_SGRO` of linux/ethtool.h.
const OFFLOADS: [u32; 5] = [0x17, 0x1f, 0x22, 0x24, 0x2c];

/// Argument of `ETHTOOL_S…`: `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// Switches segmentation and coalescing of a device of this thread's namespace off, as far as the
/// device has them.
pub(crate) fn switch_offloads_off(device: &str) -> io::Result<()> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    for command in OFFLOADS {
        let mut value = EthtoolValue { command, data: 0 };
        // SAFETY: an `ifreq` is names, numbers and a union of such, so all zeros is a value of it.
        let mut request: libc::ifreq = unsafe { mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
            *to = libc::c_char::from_ne_bytes([from]);
        }
        request.ifr_ifru.ifru_data = (&raw mut value).cast();
        // SAFETY: the request points to a value of the form that these commands take, and both
        // outlive the call.
        let result =
            check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) });
        match result {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
            other => {
                other?;
            }
        }
    }
    Ok(())
}

/// Reads one packet from a TUN device; nothing when there is none.
pub(crate) fn read_packet(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    // SAFETY: the buffer is valid for its length.
    let length = unsafe { libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
    match usize::try_from(length) {
        Ok(length) => Ok(Some(length)),
        Err(_) => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            error if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            error => Err(error),
        },
    }
}

/// Writes one packet to a TUN device.
pub(crate) fn write_packet(fd: BorrowedFd<'_>, packet: &[u8]) -> io::Result<()> {
    // SAFETY: the packet is valid for its length.
    let written = unsafe { libc::write(fd.as_raw_fd(), packet.as_ptr().cast(), packet.len()) };
    if written < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Waits for many descriptors.
#[derive(Debug)]
pub(crate) struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
}

/// Most descriptors that one wait reports.
const MAX_EVENTS: usize = 256;

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: takes a number and returns a new descriptor.
        let fd = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        Ok(Self {
            fd,
            events: Vec::with_capacity(MAX_EVENTS),
        })
    }

    fn control(&self, operation: libc::c_int, fd: RawFd, mask: u32, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: mask,
            u64: token,
        };
        // SAFETY: the pointer is valid for the call.
        check(unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), operation, fd, &raw mut event) })
            .map(drop)
    }

    /// Watches whether a descriptor is readable, and whether it is writable.
    pub(crate) fn add(
        &self,
        fd: BorrowedFd<'_>,
        token: u64,
        readable: bool,
        writable: bool,
    ) -> io::Result<()> {
        let mask = interest(readable, writable);
        self.control(libc::EPOLL_CTL_ADD, fd.as_raw_fd(), mask, token)
    }

    /// Watches something else of a descriptor.
    pub(crate) fn change(
        &self,
        fd: BorrowedFd<'_>,
        token: u64,
        readable: bool,
        writable: bool,
    ) -> io::Result<()> {
        let mask = interest(readable, writable);
        self.control(libc::EPOLL_CTL_MOD, fd.as_raw_fd(), mask, token)
    }

    /// Watches a descriptor no longer.
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd.as_raw_fd(), 0, 0)
    }

    /// Waits, and returns the ready tokens. Without `block`, it only looks.
    pub(crate) fn wait(&mut self, block: bool, ready: &mut Vec<u64>) -> io::Result<()> {
        ready.clear();
        let timeout_ms = if block { -1 } else { 0 };
        // SAFETY: the buffer has room for the number of events that is passed.
        let count = unsafe {
            libc::epoll_wait(
                self.fd.as_raw_fd(),
                self.events.as_mut_ptr(),
                MAX_EVENTS as libc::c_int,
                timeout_ms,
            )
        };
        let count = match check(count) {
            Ok(count) => count.unsigned_abs() as usize,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        // SAFETY: the kernel has filled this many, which are no more than the capacity.
        unsafe { self.events.set_len(count) };
        ready.extend(self.events.iter().map(|event| event.u64));
        Ok(())
    }
}

const fn interest(readable: bool, writable: bool) -> u32 {
    let readable = if readable { libc::EPOLLIN } else { 0 };
    let writable = if writable { libc::EPOLLOUT } else { 0 };
    // Without interest a hang-up is still reported: once, not for ever.
    let once = if readable | writable == 0 {
        libc::EPOLLONESHOT
    } else {
        0
    };
    (readable | writable | once).cast_unsigned()
}

/// A timer of the monotonic clock that makes a descriptor readable.
#[derive(Debug)]
pub(crate) struct Timer {
    fd: OwnedFd,
    armed_ns: Option<u64>,
}

impl Timer {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: takes numbers and returns a new descriptor.
        let fd = unsafe {
            libc::timerfd_create(
                libc::CLOCK_MONOTONIC,
                libc::TFD_NONBLOCK | libc::TFD_CLOEXEC,
            )
        };
        Ok(Self {
            fd: owned(fd)?,
            armed_ns: None,
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd as _;
        self.fd.as_fd()
    }

    /// Fires at a moment of [`monotonic_ns`]; never with nothing.
    pub(crate) fn arm(&mut self, at_ns: Option<u64>) -> io::Result<()> {
        if self.armed_ns == at_ns {
            return Ok(());
        }
        self.armed_ns = at_ns;
        // Zero would switch the timer off.
        let at_ns = at_ns.map_or(0, |at_ns| at_ns.max(1));
        let value = libc::itimerspec {
            it_interval: libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: libc::timespec {
                tv_sec: libc::time_t::try_from(at_ns / 1_000_000_000).unwrap_or(libc::time_t::MAX),
                tv_nsec: (at_ns % 1_000_000_000) as libc::c_long,
            },
        };
        // SAFETY: the pointer is valid for the call, and no old value is asked for.
        check(unsafe {
            libc::timerfd_settime(
                self.fd.as_raw_fd(),
                libc::TFD_TIMER_ABSTIME,
                &raw const value,
                std::ptr::null_mut(),
            )
        })
        .map(drop)
    }

    /// Notes that the timer has fired.
    pub(crate) fn fired(&mut self) {
        let mut count = [0; 8];
        // It is armed again in any case, so an error changes nothing.
        let _ = read_packet(self.fd(), &mut count);
        self.armed_ns = None;
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn policies_of_threads_are_read() {
        let fields: Vec<String> = (3..=52).map(|field| field.to_string()).collect();
        let stat = format!("1 (a) b) {}", fields.join(" "));
        assert!(!is_round_robin(&stat));
        assert!(is_round_robin(&stat.replace(" 41 ", " 2 ")));
        assert!(!is_round_robin(""));
    }

    #[test]
    fn own_connections_are_seen_and_listeners_are_not() {
        let before = own_tcp_connections().len();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stream = std::net::TcpStream::connect(address).unwrap();
        let found = own_tcp_connections();
        assert!(found.len() > before);
        let wanted = congestion_control(stream.as_fd()).unwrap();
        assert!(found.iter().any(|state| state.congestion == wanted));
    }

    #[test]
    fn a_timer_fires_at_its_moment_and_not_before() {
        let mut epoll = Epoll::new().unwrap();
        let mut timer = Timer::new().unwrap();
        epoll.add(timer.fd(), 7, true, false).unwrap();
        let mut ready = Vec::new();
        epoll.wait(false, &mut ready).unwrap();
        assert!(ready.is_empty());
        let due_ns = monotonic_ns() + 2_000_000;
        timer.arm(Some(due_ns)).unwrap();
        epoll.wait(true, &mut ready).unwrap();
        assert_eq!(ready, [7]);
        assert!(monotonic_ns() >= due_ns);
        timer.fired();
        epoll.wait(false, &mut ready).unwrap();
        assert!(ready.is_empty());
    }

    #[test]
    fn signals_go_to_one_process_only() {
        assert!(signal(0, SIGTERM).is_err());
        assert!(signal(u32::MAX, SIGTERM).is_err());
    }
}
