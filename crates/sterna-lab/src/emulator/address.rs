//! A change of the client's address, as a NAT in front of the server makes it, or a move to another
//! network.
//!
//! Nothing changes at the client. Behind the link its address is replaced by another one. Packets
//! that the server still sends to an earlier one are lost.

use std::net::Ipv4Addr;

use crate::netns::CLIENT_ADDRESS;

/// Addresses beside those of the two sides, in the same network for benchmarks (RFC 2544).
const FIRST_ALIAS: [u8; 4] = [198, 18, 1, 1];
/// Number of addresses until the first one is used again.
const ALIASES: u32 = 250;

const SOURCE: usize = 12;
const DESTINATION: usize = 16;
const MIN_HEADER_BYTES: usize = 20;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Which address the client has for the server.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    changes: u32,
    lost: u64,
}

impl Addresses {
    /// Gives the client another address; returns it.
    pub(super) fn change(&mut self) -> Ipv4Addr {
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

    fn current(&self) -> Ipv4Addr {
        if self.changes == 0 {
            return CLIENT_ADDRESS;
        }
        let first = u32::from_be_bytes(FIRST_ALIAS);
        Ipv4Addr::from(first + (self.changes - 1) % ALIASES)
    }

    /// Rewrites a packet that reaches the server.
    pub(super) fn towards_server(&self, packet: &mut [u8]) {
        if self.changes > 0 && address(packet, SOURCE) == Some(CLIENT_ADDRESS) {
            replace(packet, SOURCE, self.current());
        }
    }

    /// Rewrites a packet that the server has sent; false when it goes to an address that is gone.
    pub(super) fn towards_client(&mut self, packet: &mut [u8]) -> bool {
        if self.changes == 0 {
            return true;
        }
        if address(packet, DESTINATION) == Some(self.current()) {
            replace(packet, DESTINATION, CLIENT_ADDRESS);
            return true;
        }
        self.lost += 1;
        false
    }
}

/// An address of an IPv4 packet.
fn address(packet: &[u8], at: usize) -> Option<Ipv4Addr> {
    if packet.len() < MIN_HEADER_BYTES || packet[0] >> 4 != 4 {
        return None;
    }
    let bytes: [u8; 4] = packet[at..at + 4].try_into().ok()?;
    Some(Ipv4Addr::from(bytes))
}

/// Replaces an address of an IPv4 packet, and makes its checksums right again.
fn replace(packet: &mut [u8], at: usize, new: Ipv4Addr) {
    let header_bytes = usize::from(packet[0] & 15) * 4;
    let mut old = [0; 4];
    old.copy_from_slice(&packet[at..at + 4]);
    let new = new.octets();
    packet[at..at + 4].copy_from_slice(&new);
    adjust(packet, 10, old, new);
    // A later fragment has no header of the transport.
    let is_first = (packet[6] & 0x1f, packet[7]) == (0, 0);
    if !is_first || header_bytes < MIN_HEADER_BYTES {
        return;
    }
    match packet[9] {
        TCP => adjust(packet, header_bytes + 16, old, new),
        UDP => {
            let at = header_bytes + 6;
            // Zero says that there is no checksum.
            if packet.get(at..at + 2).is_some_and(|sum| sum != [0, 0]) {
                adjust(packet, at, old, new);
                if packet[at..at + 2] == [0, 0] {
                    packet[at..at + 2].copy_from_slice(&[0xff, 0xff]);
                }
            }
        }
        _ => {}
    }
}

/// Changes a checksum for a change of four bytes that it covers (RFC 1624, equation 3).
fn adjust(packet: &mut [u8], at: usize, old: [u8; 4], new: [u8; 4]) {
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
    use crate::netns::SERVER_ADDRESS;

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

    /// Computes the checksums again.
    fn checksums(packet: &[u8], transport_at: usize) -> (u16, u16) {
        let mut header = packet[..20].to_vec();
        header[10..12].fill(0);
        let mut body = packet[SOURCE..20].to_vec();
        body.extend([0, packet[9]]);
        body.extend(((packet.len() - 20) as u16).to_be_bytes());
        let mut transport = packet[20..].to_vec();
        transport[transport_at..transport_at + 2].fill(0);
        body.extend(transport);
        (sum(&header), sum(&body))
    }

    fn packet(protocol: u8, transport_at: usize, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 1, 2, 0x40, 0, 64, protocol, 0, 0];
        packet.extend(CLIENT_ADDRESS.octets());
        packet.extend(SERVER_ADDRESS.octets());
        let mut transport = vec![0; if protocol == TCP { 20 } else { 8 }];
        transport[..4].copy_from_slice(&[0x12, 0x34, 0x20, 0xfb]);
        transport.extend(payload);
        packet.extend(transport);
        let length = (packet.len() as u16).to_be_bytes();
        packet[2..4].copy_from_slice(&length);
        let (header, body) = checksums(&packet, transport_at);
        packet[10..12].copy_from_slice(&header.to_be_bytes());
        packet[20 + transport_at..22 + transport_at].copy_from_slice(&body.to_be_bytes());
        packet
    }

    #[test]
    fn checksums_stay_right_there_and_back() {
        for (protocol, at) in [(TCP, 16), (UDP, 6)] {
            for payload in [&b""[..], b"odd", b"even", &[0xff; 100]] {
                let mut addresses = Addresses::default();
                let original = packet(protocol, at, payload);
                let mut there = original.clone();
                addresses.towards_server(&mut there);
                assert_eq!(there, original, "nothing has changed yet");
                assert!(addresses.towards_client(&mut there));

                let alias = addresses.change();
                addresses.towards_server(&mut there);
                assert_eq!(address(&there, SOURCE), Some(alias));
                let (header, body) = checksums(&there, at);
                assert_eq!(there[10..12], header.to_be_bytes());
                assert_eq!(there[20 + at..22 + at], body.to_be_bytes());

                // The answer: the same with the addresses exchanged, which changes no sum.
                let mut back = there.clone();
                let (source, destination) = (back[12..16].to_vec(), back[16..20].to_vec());
                back[12..16].copy_from_slice(&destination);
                back[16..20].copy_from_slice(&source);
                let late = back.clone();
                assert!(addresses.towards_client(&mut back));
                assert_eq!(address(&back, DESTINATION), Some(CLIENT_ADDRESS));
                let (header, body) = checksums(&back, at);
                assert_eq!(back[10..12], header.to_be_bytes());
                assert_eq!(back[20 + at..22 + at], body.to_be_bytes());

                addresses.change();
                assert!(!addresses.towards_client(&mut late.clone()));
                assert_eq!((addresses.lost(), addresses.changes()), (1, 2));
            }
        }
    }

    #[test]
    fn what_is_no_whole_packet_is_left_alone() {
        let mut addresses = Addresses::default();
        addresses.change();
        for length in 0..28 {
            let mut short = packet(UDP, 6, b"")[..length].to_vec();
            addresses.towards_server(&mut short);
        }
        let mut six = vec![0x60; 40];
        addresses.towards_server(&mut six);
        assert_eq!(six, vec![0x60; 40]);
        let mut long_header = packet(TCP, 16, b"");
        long_header[0] = 0x4f;
        addresses.towards_server(&mut long_header);
    }
}
