//! A change of the client's address, as a NAT in front of the server makes it, or a move to another
//! network.
//!
//! Nothing changes at the client. Behind the link its address is replaced by another one. Packets
//! that the server still sends to an earlier one are lost.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::netns::{Family, Side};

/// Addresses beside those of the two sides, in the same networks for benchmarks (RFC 2544, RFC 5180).
const FIRST_ALIAS: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 1);
const FIRST_ALIAS_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 1, 0, 0, 0, 1);
/// Number of addresses until the first one is used again.
const ALIASES: u32 = 250;

const TCP: u8 = 6;
const UDP: u8 = 17;
/// The header of a fragment in IPv6 (RFC 8200, section 4.5), and its bytes.
const FRAGMENT: u8 = 44;
const FRAGMENT_BYTES: usize = 8;

/// Which address the client has for the server.
#[derive(Debug)]
pub(super) struct Addresses {
    family: Family,
    changes: u32,
    lost: u64,
}

/// One of the two addresses of a packet.
#[derive(Clone, Copy, Debug)]
enum End {
    Source,
    Destination,
}

impl Addresses {
    /// The client has its own.
    pub(super) const fn new(family: Family) -> Self {
        Self {
            family,
            changes: 0,
            lost: 0,
        }
    }

    /// Gives the client another address; returns it.
    pub(super) fn change(&mut self) -> IpAddr {
        self.changes += 1;
        self.current()
    }

    /// Packets of the server to addresses that are gone.
    pub(super) const fn lost(&self) -> u64 {
        self.lost
    }

    /// Number of changes of the address.
    pub(super) const fn changes(&self) -> u32 {
        self.changes
    }

    const fn own(&self) -> IpAddr {
        Side::Client.address(self.family)
    }

    fn current(&self) -> IpAddr {
        if self.changes == 0 {
            return self.own();
        }
        let number = (self.changes - 1) % ALIASES;
        match self.family {
            Family::V4 => Ipv4Addr::from(u32::from(FIRST_ALIAS) + number).into(),
            Family::V6 => Ipv6Addr::from(u128::from(FIRST_ALIAS_V6) + u128::from(number)).into(),
        }
    }

    /// Rewrites a packet that reaches the server.
    pub(super) fn towards_server(&self, packet: &mut [u8]) {
        if self.changes > 0 && address(packet, End::Source) == Some(self.own()) {
            replace(packet, End::Source, self.current());
        }
    }

    /// Rewrites a packet that the server has sent; false when it goes to an address that is gone.
    pub(super) fn towards_client(&mut self, packet: &mut [u8]) -> bool {
        if self.changes == 0 {
            return true;
        }
        if address(packet, End::Destination) == Some(self.current()) {
            replace(packet, End::Destination, self.own());
            return true;
        }
        self.lost += 1;
        false
    }
}

/// The version of a packet's header; none of what is no whole header.
fn family(packet: &[u8]) -> Option<Family> {
    let family = match packet.first()? >> 4 {
        4 => Family::V4,
        6 => Family::V6,
        _ => return None,
    };
    (packet.len() >= family.header_bytes()).then_some(family)
}

/// Where an address is in a header.
const fn place(family: Family, end: End) -> usize {
    match (family, end) {
        (Family::V4, End::Source) => 12,
        (Family::V4, End::Destination) => 16,
        (Family::V6, End::Source) => 8,
        (Family::V6, End::Destination) => 24,
    }
}

/// An address of a packet.
fn address(packet: &[u8], end: End) -> Option<IpAddr> {
    let family = family(packet)?;
    let bytes = packet.get(place(family, end)..)?;
    Some(match family {
        Family::V4 => IpAddr::from(*bytes.first_chunk::<4>()?),
        Family::V6 => IpAddr::from(*bytes.first_chunk::<16>()?),
    })
}

/// Replaces an address of a packet by one of the same version, and makes its checksums right again.
fn replace(packet: &mut [u8], end: End, new: IpAddr) {
    let new = match new {
        IpAddr::V4(new) => new.octets().to_vec(),
        IpAddr::V6(new) => new.octets().to_vec(),
    };
    let Some(family) = family(packet) else {
        return;
    };
    let at = place(family, end);
    let old = packet[at..at + new.len()].to_vec();
    packet[at..at + new.len()].copy_from_slice(&new);
    if family == Family::V4 {
        adjust(packet, 10, &old, &new);
    }
    let Some((protocol, transport_at)) = transport(packet, family) else {
        return;
    };
    match protocol {
        TCP => adjust(packet, transport_at + 16, &old, &new),
        UDP => {
            let at = transport_at + 6;
            // Zero says that there is no checksum, which only IPv4 allows.
            if packet.get(at..at + 2).is_some_and(|sum| sum != [0, 0]) {
                adjust(packet, at, &old, &new);
                if packet[at..at + 2] == [0, 0] {
                    packet[at..at + 2].copy_from_slice(&[0xff, 0xff]);
                }
            }
        }
        _ => {}
    }
}

/// The protocol in a packet, and where its header begins. None of a later fragment, which has no such header.
fn transport(packet: &[u8], family: Family) -> Option<(u8, usize)> {
    let header_bytes = family.header_bytes();
    match family {
        Family::V4 => {
            let header_bytes = usize::from(packet[0] & 15) * 4;
            let is_first = (packet[6] & 0x1f, packet[7]) == (0, 0);
            (is_first && header_bytes >= family.header_bytes()).then_some((packet[9], header_bytes))
        }
        Family::V6 if packet[6] == FRAGMENT => {
            let fragment = packet.get(header_bytes..header_bytes + FRAGMENT_BYTES)?;
            let is_first = (fragment[2], fragment[3] & 0xf8) == (0, 0);
            is_first.then_some((fragment[0], header_bytes + FRAGMENT_BYTES))
        }
        Family::V6 => Some((packet[6], header_bytes)),
    }
}

/// Changes a checksum for a change of bytes that it covers (RFC 1624, equation 3).
fn adjust(packet: &mut [u8], at: usize, old: &[u8], new: &[u8]) {
    let Some(sum) = packet.get_mut(at..at + 2) else {
        return;
    };
    let mut total = u32::from(!u16::from_be_bytes([sum[0], sum[1]]));
    for pair in old.chunks_exact(2) {
        total += u32::from(!u16::from_be_bytes([pair[0], pair[1]]));
    }
    for pair in new.chunks_exact(2) {
        total += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
    }
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    sum.copy_from_slice(&(!(total as u16)).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(words: &[u8]) -> u16 {
        let mut total = 0_u32;
        for pair in words.chunks(2) {
            total += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        }
        while total > 0xffff {
            total = (total & 0xffff) + (total >> 16);
        }
        !(total as u16)
    }

    /// Computes the checksums again: that of IPv4's header, and that of the transport, whose header follows
    /// the fixed one.
    fn checksums(packet: &[u8], transport_at: usize) -> (u16, u16) {
        let family = family(packet).unwrap();
        let header_bytes = family.header_bytes();
        let mut header = packet[..header_bytes].to_vec();
        let protocol = match family {
            Family::V4 => {
                header[10..12].fill(0);
                packet[9]
            }
            Family::V6 => packet[6],
        };
        let mut body = packet[place(family, End::Source)..header_bytes].to_vec();
        body.extend([0, protocol]);
        body.extend(((packet.len() - header_bytes) as u16).to_be_bytes());
        let mut transport = packet[header_bytes..].to_vec();
        transport[transport_at..transport_at + 2].fill(0);
        body.extend(transport);
        (sum(&header), sum(&body))
    }

    fn packet(family: Family, protocol: u8, transport_at: usize, payload: &[u8]) -> Vec<u8> {
        let mut packet = match family {
            Family::V4 => vec![0x45, 0, 0, 0, 1, 2, 0x40, 0, 64, protocol, 0, 0],
            Family::V6 => vec![0x60, 0, 0, 0, 0, 0, protocol, 64],
        };
        for side in Side::BOTH {
            match side.address(family) {
                IpAddr::V4(address) => packet.extend(address.octets()),
                IpAddr::V6(address) => packet.extend(address.octets()),
            }
        }
        let mut transport = vec![0; if protocol == TCP { 20 } else { 8 }];
        transport[..4].copy_from_slice(&[0x12, 0x34, 0x20, 0xfb]);
        transport.extend(payload);
        packet.extend(transport);
        let header_bytes = family.header_bytes();
        let (at, length) = match family {
            Family::V4 => (2, packet.len()),
            Family::V6 => (4, packet.len() - header_bytes),
        };
        packet[at..at + 2].copy_from_slice(&(length as u16).to_be_bytes());
        let (header, body) = checksums(&packet, transport_at);
        if family == Family::V4 {
            packet[10..12].copy_from_slice(&header.to_be_bytes());
        }
        let at = header_bytes + transport_at;
        packet[at..at + 2].copy_from_slice(&body.to_be_bytes());
        packet
    }

    fn assert_sums(packet: &[u8], transport_at: usize) {
        let family = family(packet).unwrap();
        let (header, body) = checksums(packet, transport_at);
        if family == Family::V4 {
            assert_eq!(packet[10..12], header.to_be_bytes());
        }
        let at = family.header_bytes() + transport_at;
        assert_eq!(packet[at..at + 2], body.to_be_bytes());
    }

    #[test]
    fn checksums_stay_right_there_and_back() {
        for family in [Family::V4, Family::V6] {
            for (protocol, at) in [(TCP, 16), (UDP, 6)] {
                for payload in [&b""[..], b"odd", b"even", &[0xff; 100]] {
                    there_and_back(&packet(family, protocol, at, payload), at);
                }
            }
        }
    }

    fn there_and_back(original: &[u8], at: usize) {
        let family = family(original).unwrap();
        let mut addresses = Addresses::new(family);
        let mut there = original.to_vec();
        addresses.towards_server(&mut there);
        assert_eq!(there, original, "nothing has changed yet");
        assert!(addresses.towards_client(&mut there));

        let alias = addresses.change();
        addresses.towards_server(&mut there);
        assert_eq!(address(&there, End::Source), Some(alias));
        assert_sums(&there, at);

        // The answer: the same with the addresses exchanged, which changes no sum.
        let mut back = there.clone();
        let (source, destination) = (place(family, End::Source), place(family, End::Destination));
        let bytes = destination - source;
        back[source..destination].copy_from_slice(&there[destination..destination + bytes]);
        back[destination..destination + bytes].copy_from_slice(&there[source..destination]);
        let mut late = back.clone();
        assert!(addresses.towards_client(&mut back));
        let own = Side::Client.address(family);
        assert_eq!(address(&back, End::Destination), Some(own));
        assert_sums(&back, at);

        addresses.change();
        assert!(!addresses.towards_client(&mut late));
        assert_eq!((addresses.lost(), addresses.changes()), (1, 2));
    }

    #[test]
    fn a_fragment_of_ipv6_has_its_transport_behind_another_header() {
        let whole = packet(Family::V6, UDP, 6, b"even");
        let fragment = |offset: u16| {
            let mut fragment = whole[..40].to_vec();
            fragment[6] = FRAGMENT;
            fragment.extend([UDP, 0]);
            fragment.extend((offset << 3).to_be_bytes());
            fragment.extend([0; 4]);
            fragment.extend(&whole[40..]);
            fragment
        };
        let mut addresses = Addresses::new(Family::V6);
        addresses.change();
        let mut expected = whole.clone();
        addresses.towards_server(&mut expected);
        let mut first = fragment(0);
        addresses.towards_server(&mut first);
        assert_eq!(first[48..], expected[40..]);
        let mut later = fragment(1);
        addresses.towards_server(&mut later);
        assert_eq!(later[48..], whole[40..]);
        assert_eq!(later[8..24], expected[8..24]);
    }

    #[test]
    fn what_is_no_whole_packet_is_left_alone() {
        for family in [Family::V4, Family::V6] {
            let mut addresses = Addresses::new(family);
            addresses.change();
            let whole = packet(family, UDP, 6, b"");
            for length in 0..whole.len() {
                let mut short = whole[..length].to_vec();
                addresses.towards_server(&mut short);
            }
            // Of the other version, or of none.
            for first in [0x40, 0x60, 0x00] {
                let mut other = vec![first; 40];
                addresses.towards_server(&mut other);
                assert_eq!(other, vec![first; 40]);
            }
        }
        let mut addresses = Addresses::new(Family::V4);
        addresses.change();
        let mut long_header = packet(Family::V4, TCP, 16, b"");
        long_header[0] = 0x4f;
        addresses.towards_server(&mut long_header);
    }
}
