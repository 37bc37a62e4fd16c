//! Addresses, routes and devices by rtnetlink: the few messages that the lab needs.
//!
//! Values are in the machine's byte order, lengths without the padding to four bytes, as netlink(7)
//! has it.

use std::io;
use std::net::IpAddr;

use socket2::{Domain, Protocol, Socket, Type};

use super::Family;

/// Bytes of an answer that are looked at.
const ANSWER_BYTES: usize = 16 << 10;

const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_TXQLEN: u16 = 13;
const IFLA_OPERSTATE: u16 = 16;
const IF_OPER_UP: u8 = 6;
/// Bytes of the header of messages about devices.
const DEVICE_BYTES: usize = 16;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFF_UP: u32 = 1;
const IFF_NOARP: u32 = 0x80;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_F_NODAD: u8 = 2;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_PERMANENT: u16 = 0x80;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_METRICS: u16 = 8;
const RTAX_LOCK: u16 = 1;
const RTAX_RTO_MIN: u16 = 13;
const RTAX_CC_ALGO: u16 = 16;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_STATIC: u8 = 4;
const RT_SCOPE_LINK: u8 = 253;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;

/// An address as netlink has it: its bytes, and the number of its family.
fn octets(address: IpAddr) -> (Vec<u8>, u8) {
    match address {
        IpAddr::V4(address) => (address.octets().to_vec(), AF_INET),
        IpAddr::V6(address) => (address.octets().to_vec(), AF_INET6),
    }
}

/// A conversation with the network of the namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: Socket,
    sequence: u32,
}

/// A message under construction.
struct Message {
    bytes: Vec<u8>,
}

impl Message {
    fn new(kind: u16, flags: u16) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((flags | NLM_F_REQUEST).to_ne_bytes());
        bytes.extend([0; 8]); // sequence, filled in later, and port
        Self { bytes }
    }

    /// The header of messages about devices.
    fn device(mut self, index: i32, flags: u32, change: u32) -> Self {
        self.bytes.extend([0; 4]);
        self.bytes.extend(index.to_ne_bytes());
        self.bytes.extend(flags.to_ne_bytes());
        self.bytes.extend(change.to_ne_bytes());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self
    }

    fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        self.bytes.extend((value.len() as u16 + 4).to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    fn text(self, kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(kind, &bytes)
    }

    fn nested(mut self, kind: u16, inside: impl FnOnce(Self) -> Self) -> Self {
        let start = self.bytes.len();
        self.bytes.extend([0; 4]);
        self = inside(self);
        let length = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.bytes[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
        self
    }
}

impl Netlink {
    /// Opens one in this thread's network namespace.
    pub(crate) fn open() -> io::Result<Self> {
        let socket = Socket::new(
            Domain::from(libc::AF_NETLINK),
            Type::RAW.cloexec(),
            Some(Protocol::from(libc::NETLINK_ROUTE)),
        )?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// Sends a message and waits for its answer, which for an acknowledgement is empty.
    fn ask(&mut self, message: Message) -> io::Result<Vec<u8>> {
        let mut bytes = message.bytes;
        self.sequence += 1;
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        self.socket.send(&bytes)?;
        let mut answer = vec![0; ANSWER_BYTES];
        let length = io::Read::read(&mut self.socket, &mut answer)?;
        answer.truncate(length);
        if length < 20 {
            return Err(io::Error::other("a short answer from netlink"));
        }
        if u16::from_ne_bytes([answer[4], answer[5]]) != NLMSG_ERROR {
            return Ok(answer.split_off(16));
        }
        match i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]) {
            0 => Ok(Vec::new()),
            error => Err(io::Error::from_raw_os_error(-error)),
        }
    }

    /// The number of a device.
    pub(crate) fn index(&mut self, name: &str) -> io::Result<i32> {
        let message = Message::new(RTM_GETLINK, 0)
            .device(0, 0, 0)
            .text(IFLA_IFNAME, name);
        let answer = self.ask(message)?;
        answer
            .get(4..8)
            .and_then(|index| index.try_into().ok())
            .map(i32::from_ne_bytes)
            .ok_or_else(|| io::Error::other("a short answer from netlink"))
    }

    /// Switches a device on, with a longest packet and a queue towards it when given.
    pub(crate) fn up(
        &mut self,
        index: i32,
        mtu_bytes: Option<u32>,
        queue_packets: Option<u32>,
    ) -> io::Result<()> {
        let mut message = Message::new(RTM_NEWLINK, NLM_F_ACK).device(index, IFF_UP, IFF_UP);
        if let Some(mtu) = mtu_bytes {
            message = message.attribute(IFLA_MTU, &mtu.to_ne_bytes());
        }
        if let Some(queue) = queue_packets {
            message = message.attribute(IFLA_TXQLEN, &queue.to_ne_bytes());
        }
        self.ask(message).map(drop)
    }

    /// Gives a device of Ethernet its address there, and disables its requests for those of others.
    pub(crate) fn without_arp(&mut self, index: i32, address: [u8; 6]) -> io::Result<()> {
        let message = Message::new(RTM_NEWLINK, NLM_F_ACK)
            .device(index, IFF_NOARP, IFF_NOARP)
            .attribute(IFLA_ADDRESS, &address);
        self.ask(message).map(drop)
    }

    /// Whether a device is on and has a carrier, and the kernel has taken note of it. Its flags say so of a
    /// new device, too, whose state is not known yet.
    pub(crate) fn is_running(&mut self, index: i32) -> io::Result<bool> {
        let answer = self.ask(Message::new(RTM_GETLINK, 0).device(index, 0, 0))?;
        let mut attributes = answer.get(DEVICE_BYTES..).unwrap_or_default();
        while let [a, b, c, d, rest @ ..] = attributes {
            let length = usize::from(u16::from_ne_bytes([*a, *b]));
            if u16::from_ne_bytes([*c, *d]) == IFLA_OPERSTATE {
                return Ok(rest.first() == Some(&IF_OPER_UP));
            }
            attributes = attributes
                .get(length.max(4).next_multiple_of(4)..)
                .unwrap_or_default();
        }
        Ok(false)
    }

    /// Whether packets to an address would come to this host. The kernel makes the route to a new IPv6
    /// address some time after the address. Until then it drops packets.
    pub(crate) fn is_own(&mut self, address: IpAddr) -> io::Result<bool> {
        let (octets, family) = octets(address);
        let message = Message::new(RTM_GETROUTE, 0)
            .bytes(&[family, octets.len() as u8 * 8, 0, 0, 0, 0, 0, 0])
            .bytes(&[0; 4])
            .attribute(RTA_DST, &octets);
        match self.ask(message) {
            Ok(answer) => Ok(answer.get(7) == Some(&RTN_LOCAL)),
            Err(error) if error.kind() == io::ErrorKind::NetworkUnreachable => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Gives a device an address, without a network around it. The kernel would make a route to that
    /// network, which would win over ours and know no congestion control. An IPv6 address does not wait
    /// for duplicate address detection.
    pub(crate) fn address(&mut self, index: i32, address: IpAddr) -> io::Result<()> {
        let (octets, family) = octets(address);
        let prefix_bits = octets.len() as u8 * 8;
        let flags = if family == AF_INET6 { IFA_F_NODAD } else { 0 };
        let message = Message::new(RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL)
            .bytes(&[family, prefix_bits, flags, 0])
            .bytes(&index.to_ne_bytes())
            .attribute(IFA_LOCAL, &octets)
            .attribute(IFA_ADDRESS, &octets);
        self.ask(message).map(drop)
    }

    /// Tells a device of Ethernet the address that another one has there, for ever.
    pub(crate) fn neighbour(
        &mut self,
        index: i32,
        address: IpAddr,
        ethernet_address: [u8; 6],
    ) -> io::Result<()> {
        let (octets, family) = octets(address);
        let message = Message::new(RTM_NEWNEIGH, NLM_F_ACK | NLM_F_CREATE)
            .bytes(&[family, 0, 0, 0])
            .bytes(&index.to_ne_bytes())
            .bytes(&NUD_PERMANENT.to_ne_bytes())
            .bytes(&[0, 0])
            .attribute(NDA_DST, &octets)
            .attribute(NDA_LLADDR, &ethernet_address);
        self.ask(message).map(drop)
    }

    /// Sends everything that has no other way through a device. TCP over this route uses the given
    /// congestion control, if any, whatever the system's default is and programs ask for. `rto_min_ms`
    /// is the least time after which TCP sends again.
    pub(crate) fn default_route(
        &mut self,
        index: i32,
        family: Family,
        congestion_control: Option<&str>,
        rto_min_ms: Option<u32>,
    ) -> io::Result<()> {
        let mut message = Message::new(RTM_NEWROUTE, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL)
            .bytes(&[
                match family {
                    Family::V4 => AF_INET,
                    Family::V6 => AF_INET6,
                },
                0,
                0,
                0,
                RT_TABLE_MAIN,
                RTPROT_STATIC,
                RT_SCOPE_LINK,
                RTN_UNICAST,
            ])
            .bytes(&[0; 4])
            .attribute(RTA_OIF, &index.to_ne_bytes());
        // A locked congestion control refuses setsockopt, and an RTO counts only if it is locked.
        let lock = congestion_control.map_or(0, |_| 1_u32 << RTAX_CC_ALGO)
            | rto_min_ms.map_or(0, |_| 1_u32 << RTAX_RTO_MIN);
        if lock != 0 {
            message = message.nested(RTA_METRICS, |mut metrics| {
                metrics = metrics.attribute(RTAX_LOCK, &lock.to_ne_bytes());
                if let Some(rto_min_ms) = rto_min_ms {
                    metrics = metrics.attribute(RTAX_RTO_MIN, &rto_min_ms.to_ne_bytes());
                }
                match congestion_control {
                    Some(name) => metrics.text(RTAX_CC_ALGO, name),
                    None => metrics,
                }
            });
        }
        self.ask(message).map(drop)
    }

    /// Makes two devices that are joined, the second one in another namespace.
    pub(crate) fn veth(&mut self, name: &str, peer: &str, peer_namespace: i32) -> io::Result<()> {
        let message = Message::new(RTM_NEWLINK, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL)
            .device(0, 0, 0)
            .text(IFLA_IFNAME, name)
            .nested(IFLA_LINKINFO, |info| {
                info.text(IFLA_INFO_KIND, "veth")
                    .nested(IFLA_INFO_DATA, |data| {
                        data.nested(VETH_INFO_PEER, |other| {
                            other
                                .device(0, 0, 0)
                                .text(IFLA_IFNAME, peer)
                                .attribute(IFLA_NET_NS_FD, &peer_namespace.to_ne_bytes())
                        })
                    })
            });
        self.ask(message).map(drop)
    }
}
