//! Network namespaces without names.
//!
//! A namespace here lives as long as a descriptor of it, a socket in it, or a process in it. So
//! nothing of the lab outlives the lab after any end. Only processes need to be removed, and those
//! die with the thread that started them.

mod netlink;

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::kernel;

pub(crate) use netlink::Netlink;

/// The client's address.
pub const CLIENT_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The server's address. Both are of the network that RFC 2544 keeps for benchmarks.
pub const SERVER_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// The client's address on a link of IPv6.
pub const CLIENT_ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1);
/// The server's. Both are of the network that RFC 5180 keeps for benchmarks.
pub const SERVER_ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 2);
/// Shortest longest packet of a link of IPv6 (RFC 8200, section 5). The kernel has no IPv6 on a device with
/// a shorter one.
const MIN_MTU_BYTES_V6: u32 = 1280;
/// The name of the device in either namespace.
pub const DEVICE: &str = "link0";
/// Packets that wait in the kernel until the emulator reads them. Within 4 ms a gigabit link fills the
/// default of 500, and further packets would be lost uncounted.
const DEVICE_QUEUE_PACKETS: u32 = 20_000;

/// Settings of the kernel that each namespace gets. IPv6 is off, since router solicitations would count
/// as packets of the experiment. TCP has no memory of earlier connections, which it would have over
/// QUIC. Fast Open is on for clients that ask for it (1), and for all listeners (2 and 0x400).
const SYSTEM_SETTINGS: [(&str, &str); 4] = [
    ("net/ipv4/tcp_fastopen", "1027"),
    ("net/ipv6/conf/all/disable_ipv6", "1"),
    ("net/ipv6/conf/default/disable_ipv6", "1"),
    ("net/ipv4/tcp_no_metrics_save", "1"),
];

/// The same for a device that has IPv6. It has no address but the given one, and does not wait until
/// nobody else answers to that (RFC 4862, section 5.4). It sends no packets that ask for routers or
/// announce anything.
const DEVICE_SETTINGS_V6: [(&str, &str); 6] = [
    ("addr_gen_mode", "1"),
    ("accept_dad", "0"),
    ("dad_transmits", "0"),
    ("accept_ra", "0"),
    ("router_solicitations", "0"),
    ("disable_ipv6", "0"),
];

/// The version of IP on a link.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Family {
    /// IPv4.
    #[default]
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// IPv6, or IPv4.
    #[must_use]
    pub const fn of(is_v6: bool) -> Self {
        if is_v6 { Self::V6 } else { Self::V4 }
    }

    /// Bytes of the header of a packet.
    #[must_use]
    pub const fn header_bytes(self) -> usize {
        match self {
            Self::V4 => 20,
            Self::V6 => 40,
        }
    }

    /// The address that means any of a host.
    #[must_use]
    pub const fn unspecified(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Self::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        }
    }

    /// The address of the loopback device.
    #[must_use]
    pub const fn localhost(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Self::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
        }
    }
}

impl From<IpAddr> for Family {
    fn from(address: IpAddr) -> Self {
        Self::of(address.is_ipv6())
    }
}

/// One side of the link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Side {
    /// Where the command runs.
    Client,
    /// The other.
    Server,
}

impl Side {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Client, Self::Server];

    /// `client` or `server`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }

    /// The Ethernet address of a TAP device there.
    pub(crate) const fn ethernet_address(self) -> [u8; 6] {
        match self {
            Self::Client => [2, 0, 0, 0, 0, 1],
            Self::Server => [2, 0, 0, 0, 0, 2],
        }
    }

    /// The side that a packet of this one goes to.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }

    /// Its address on a link of this version of IP.
    #[must_use]
    pub const fn address(self, family: Family) -> IpAddr {
        match (self, family) {
            (Self::Client, Family::V4) => IpAddr::V4(CLIENT_ADDRESS),
            (Self::Server, Family::V4) => IpAddr::V4(SERVER_ADDRESS),
            (Self::Client, Family::V6) => IpAddr::V6(CLIENT_ADDRESS_V6),
            (Self::Server, Family::V6) => IpAddr::V6(SERVER_ADDRESS_V6),
        }
    }
}

/// Settings of a namespace.
#[derive(Clone, Debug, Default)]
pub struct NamespaceSettings {
    /// The version of IP on the link: there is no other.
    pub family: Family,
    /// Longest packet of the device, in bytes.
    pub mtu_bytes: Option<u32>,
    /// Congestion control of TCP in it; the system's default without one.
    pub congestion_control: Option<String>,
    /// The least time after which TCP in it sends again what is not acknowledged, in milliseconds; the
    /// kernel's 200 without one.
    pub rto_min_ms: Option<u32>,
}

/// A network namespace.
#[derive(Debug)]
pub struct Namespace {
    file: File,
}

impl Namespace {
    /// An empty one, with its loopback device on.
    ///
    /// # Errors
    ///
    /// Without the right to make one.
    pub fn new() -> io::Result<Self> {
        thread::scope(|scope| {
            let made = scope.spawn(|| {
                kernel::unshare_network()?;
                let file = File::open("/proc/thread-self/ns/net")?;
                for (name, value) in SYSTEM_SETTINGS {
                    // A kernel without IPv6 has no settings for it.
                    let _ = fs::write(format!("/proc/sys/{name}"), value);
                }
                let mut netlink = Netlink::open()?;
                let loopback = netlink.index("lo")?;
                netlink.up(loopback, None, None)?;
                Ok(Self { file })
            });
            joined(made.join())
        })
    }

    /// Runs something in the namespace, on a thread of its own. Sockets that it opens stay in the
    /// namespace, wherever they are used.
    ///
    /// # Errors
    ///
    /// The result of `work`.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let done = scope.spawn(|| {
                kernel::enter_network(self.file.as_fd())?;
                work()
            });
            joined(done.join())
        })
    }

    /// Makes a TUN device in it, with address and default route.
    pub(crate) fn tun(&self, side: Side, settings: &NamespaceSettings) -> io::Result<OwnedFd> {
        self.run(|| {
            let tun = kernel::open_tun(DEVICE)?;
            configure(side, settings)?;
            Ok(tun)
        })
    }

    /// Makes a TAP device in it, with address and default route. There is no ARP: packets go to the
    /// device's own Ethernet address, and must come to it.
    pub(crate) fn tap(&self, side: Side, settings: &NamespaceSettings) -> io::Result<OwnedFd> {
        self.run(|| {
            let tap = kernel::open_tap(DEVICE)?;
            let mut netlink = Netlink::open()?;
            let index = netlink.index(DEVICE)?;
            netlink.without_arp(index, side.ethernet_address())?;
            configure(side, settings)?;
            Ok(tap)
        })
    }

    /// Joins two namespaces by a pair of virtual Ethernet devices. Each knows the other's Ethernet address
    /// beforehand, so that no packet asks for it.
    pub(crate) fn join(
        client: &Self,
        server: &Self,
        settings: &NamespaceSettings,
    ) -> io::Result<()> {
        client.run(|| Netlink::open()?.veth(DEVICE, DEVICE, server.file.as_raw_fd()))?;
        for (side, namespace) in [(Side::Client, client), (Side::Server, server)] {
            namespace.run(|| {
                let mut netlink = Netlink::open()?;
                let index = netlink.index(DEVICE)?;
                netlink.without_arp(index, side.ethernet_address())?;
                configure(side, settings)?;
                let other = side.other();
                let address = other.address(settings.family);
                netlink.neighbour(index, address, other.ethernet_address())
            })?;
        }
        for namespace in [client, server] {
            namespace.run(|| {
                let mut netlink = Netlink::open()?;
                let index = netlink.index(DEVICE)?;
                // Until the kernel has seen the carrier it drops packets.
                await_kernel("a carrier", || netlink.is_running(index))
            })?;
        }
        Ok(())
    }

    /// Makes a command start in the namespace. It is killed when the thread that spawns it ends.
    pub fn adopt(&self, command: &mut Command) {
        kernel::start_in_network(command, self.file.as_fd());
    }

    /// The descriptor, for `setns`.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// A path by which programs such as nsenter find the namespace while this process runs.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// The processes in it. A process of this program that has only a thread there is not among
    /// them.
    ///
    /// # Errors
    ///
    /// If `/proc` cannot be read.
    pub fn processes(&self) -> io::Result<Vec<u32>> {
        let own = self.file.metadata()?;
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let Ok(entry) = entry else { continue };
            let Some(pid) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            // Processes end while one looks.
            if let Ok(theirs) = fs::metadata(entry.path().join("ns/net"))
                && (theirs.dev(), theirs.ino()) == (own.dev(), own.ino())
                && pid != std::process::id()
            {
                found.push(pid);
            }
        }
        Ok(found)
    }

    /// Whether something listens on a port: a TCP socket that accepts, or a UDP socket that is
    /// bound. Any port without one.
    ///
    /// # Errors
    ///
    /// If `/proc` cannot be read.
    pub fn has_listener(&self, port: Option<u16>) -> io::Result<bool> {
        self.run(|| {
            for (name, state) in [("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")] {
                let table = fs::read_to_string(format!("/proc/thread-self/net/{name}"));
                if table.is_ok_and(|table| lists(&table, state, port)) {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }

    /// Packets that the kernel could not queue for the emulator.
    ///
    /// # Errors
    ///
    /// If `/proc` cannot be read.
    pub fn overflows(&self) -> io::Result<u64> {
        self.run(|| {
            let table = fs::read_to_string("/proc/thread-self/net/dev")?;
            Ok(transmit_drops(&table).unwrap_or(0))
        })
    }
}

impl Namespace {
    /// TCP segments that were sent again in it; none where the kernel doesn't tell.
    ///
    /// # Errors
    ///
    /// If `/proc` cannot be read.
    pub fn tcp_retransmissions(&self) -> io::Result<Option<u64>> {
        self.run(|| {
            let table = fs::read_to_string("/proc/thread-self/net/snmp")?;
            Ok(counter(&table, "Tcp:", "RetransSegs"))
        })
    }

    /// TCP connections that it has accepted with data in their SYN (Fast Open); `None` where the kernel
    /// doesn't tell.
    ///
    /// # Errors
    ///
    /// If `/proc` cannot be read.
    pub fn tcp_fast_opens(&self) -> io::Result<Option<u64>> {
        self.run(|| {
            let table = fs::read_to_string("/proc/thread-self/net/netstat")?;
            Ok(counter(&table, "TcpExt:", "TCPFastOpenPassive"))
        })
    }

    /// Lets the kernel forget TCP connections without a process after one unanswered repetition, instead of
    /// eight.
    ///
    /// # Errors
    ///
    /// If the setting cannot be written.
    pub fn forget_orphans(&self) -> io::Result<()> {
        self.run(|| fs::write("/proc/sys/net/ipv4/tcp_orphan_retries", "1"))
    }

    /// Congestion control that a TCP connection from here to the other side's address would have.
    ///
    /// # Errors
    ///
    /// If there is no connection to be had.
    pub fn congestion_control_towards(&self, other: SocketAddr) -> io::Result<String> {
        self.run(|| {
            let stream = TcpStream::connect_timeout(&other, PROBE_TIMEOUT)?;
            kernel::congestion_control(stream.as_fd())
        })
    }
}

/// Longest wait for work that the kernel does some time after it was asked, and the interval of looks.
const KERNEL_LIMIT: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Longest wait for the connection that is asked for its congestion control.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// A counter of `/proc/net/snmp` or `netstat`: two lines that start alike, names and values.
fn counter(table: &str, prefix: &str, wanted: &str) -> Option<u64> {
    let mut lines = table.lines().filter_map(|line| line.strip_prefix(prefix));
    let (names, values) = (lines.next()?, lines.next()?);
    let index = names
        .split_ascii_whitespace()
        .position(|name| name == wanted)?;
    values.split_ascii_whitespace().nth(index)?.parse().ok()
}

/// Switches the device of a side on.
fn configure(side: Side, settings: &NamespaceSettings) -> io::Result<()> {
    let mut netlink = Netlink::open()?;
    let index = netlink.index(DEVICE)?;
    if settings.family == Family::V6 {
        if settings.mtu_bytes.is_some_and(|mtu| mtu < MIN_MTU_BYTES_V6) {
            return Err(io::Error::other(
                "a link of IPv6 has an MTU of 1280 bytes or more",
            ));
        }
        enable_v6()?;
    }
    netlink.up(index, settings.mtu_bytes, Some(DEVICE_QUEUE_PACKETS))?;
    let address = side.address(settings.family);
    netlink.address(index, address)?;
    await_kernel("a route to its own address", || netlink.is_own(address))?;
    netlink
        .default_route(
            index,
            settings.family,
            settings.congestion_control.as_deref(),
            settings.rto_min_ms,
        )
        .map_err(|error| match (&settings.congestion_control, error.kind()) {
            (Some(name), io::ErrorKind::InvalidInput) => {
                io::Error::other(format!("this kernel has no congestion control `{name}`"))
            }
            _ => error,
        })
}

/// Looks again and again until the kernel has done some work.
fn await_kernel(what: &str, mut is_done: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let until = Instant::now() + KERNEL_LIMIT;
    while !is_done()? {
        if Instant::now() > until {
            return Err(io::Error::other(format!("the device has not got {what}")));
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// Gives the device of this thread's namespace IPv6, and the loopback device, by which a host reaches its own
/// addresses.
fn enable_v6() -> io::Result<()> {
    let folder = |device: &str| format!("/proc/sys/net/ipv6/conf/{device}");
    let set = |path: String, value: &str| {
        fs::write(&path, value).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("this kernel has no IPv6: {path}: {error}"),
            )
        })
    };
    set(format!("{}/disable_ipv6", folder("lo")), "0")?;
    for (name, value) in DEVICE_SETTINGS_V6 {
        set(format!("{}/{name}", folder(DEVICE)), value)?;
    }
    Ok(())
}

/// The result of a thread; its panic is this one's.
fn joined<T>(result: thread::Result<io::Result<T>>) -> io::Result<T> {
    match result {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Whether a table of sockets in `/proc/net` has one in a state, and on a port if one is given.
fn lists(table: &str, state: &str, port: Option<u16>) -> bool {
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let local = fields.next().unwrap_or_default();
        let is_state = fields.nth(1) == Some(state);
        let local_port = local
            .rsplit_once(':')
            .and_then(|(_, port)| u16::from_str_radix(port, 16).ok());
        is_state && (port.is_none() || local_port == port)
    })
}

/// Field 12 of the device's line in `/proc/net/dev`.
fn transmit_drops(table: &str) -> Option<u64> {
    let line = table
        .lines()
        .find_map(|line| line.trim_start().strip_prefix(DEVICE)?.strip_prefix(':'))?;
    line.split_ascii_whitespace().nth(11)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_the_kernel_are_read() {
        let tcp = "  sl  local_address rem_address   st tx_queue rx_queue\n   \
                   0: 0100007F:075B 00000000:0000 0A 00000000:00000000 00:00000000\n   \
                   1: 0100007F:1F90 0100007F:9999 01 00000000:00000000 00:00000000\n";
        assert!(lists(tcp, "0A", None));
        assert!(lists(tcp, "0A", Some(1883)));
        assert!(!lists(tcp, "0A", Some(8080)));
        assert!(!lists("header\n", "0A", None));

        let snmp = "Ip: Forwarding\nIp: 1\nTcp: A RetransSegs B\nTcp: 1 42 3\n";
        assert_eq!(counter(snmp, "Tcp:", "RetransSegs"), Some(42));
        assert_eq!(counter(snmp, "Tcp:", "C"), None);
        assert_eq!(counter("Udp: A\n", "Tcp:", "A"), None);

        let devices = "Inter-|   Receive                                                |  Transmit\n \
             face |bytes    packets errs drop fifo frame compressed multicast|bytes ...\n    \
             lo:       1       2    0    0    0     0          0         0  1  2 0 9 0 0 0 0\n \
             link0:    10       2    0    0    0     0          0         0  5  6 0 7 0 0 0 0\n";
        assert_eq!(transmit_drops(devices), Some(7));
        assert_eq!(transmit_drops("lo: 1 2"), None);
    }
}
