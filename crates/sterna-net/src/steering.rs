//! Steers QUIC datagrams to the shard that owns the connection, from any address.
//!
//! The UDP sockets of all shards form one `SO_REUSEPORT` group. A classic BPF program picks the member by
//! one byte of the destination connection identifier, modulo the number of shards. That is the first byte,
//! or the one behind the node's server ID. A shard issues identifiers whose byte is congruent to its index.
//! Identifiers that a client chose for its first flight fall anywhere, and the receiving shard owns the
//! connection. So packets find their shard after NAT rebinding and migration, without privileges.
//!
//! Unsafe because neither the standard library nor socket2 has `SO_ATTACH_REUSEPORT_CBPF`.
#![allow(unsafe_code)]

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// Instruction codes of classic BPF (`linux/bpf_common.h`).
const LOAD_BYTE: u16 = 0x30; // A <- packet[k]
const JUMP_IF_SET: u16 = 0x45; // if A & k then skip `jt` else skip `jf`
const JUMP: u16 = 0x05; // skip k
const MODULO: u16 = 0x94; // A <- A % k
const RETURN_A: u16 = 0x16;

/// Offset of the connection identifier in a packet with a short header (RFC 9000, section 17.3).
const SHORT_ID_OFFSET: u32 = 1;
/// The same with a long header: after flags, version and identifier length (section 17.2).
const LONG_ID_OFFSET: u32 = 6;
/// The bit of the first byte that tells a long header.
const LONG_HEADER: u32 = 0x80;

fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// Attaches the program to the group that `member` belongs to. Members are selected by the order
/// in which they were bound, by the byte at `shard_offset` of the identifier.
pub(crate) fn attach(member: &UdpSocket, shards: usize, shard_offset: usize) -> io::Result<()> {
    let shards = u32::try_from(shards).map_err(io::Error::other)?;
    let shard_offset = u32::try_from(shard_offset).map_err(io::Error::other)?;
    let mut program = [
        instruction(LOAD_BYTE, 0, 0, 0),
        instruction(JUMP_IF_SET, 0, 2, LONG_HEADER),
        instruction(LOAD_BYTE, 0, 0, LONG_ID_OFFSET + shard_offset),
        instruction(JUMP, 0, 0, 1),
        instruction(LOAD_BYTE, 0, 0, SHORT_ID_OFFSET + shard_offset),
        instruction(MODULO, 0, 0, shards),
        instruction(RETURN_A, 0, 0, 0),
    ];
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the descriptor is open for the duration of the call. `filter` describes `program`,
    // which outlives it; the kernel copies the program.
    let result = unsafe {
        libc::setsockopt(
            member.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const filter).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use super::*;
    use crate::config::ShardConfig;

    #[test]
    fn datagrams_go_where_the_identifier_says() {
        const SHARDS: u8 = 3;
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        for offset in [0, 2] {
            let config = ShardConfig::default();
            let (address, group) =
                crate::sockets::bind_udp(any, usize::from(SHARDS), offset, &config).expect("bound");
            for socket in &group {
                socket.set_nonblocking(false).expect("blocking");
                socket
                    .set_read_timeout(Some(Duration::from_secs(60)))
                    .expect("timeout");
            }
            for byte in 0..24u8 {
                let mut identifier = [0xff; 8];
                identifier[offset] = byte;
                let short = [&[0x40][..], &identifier[..]].concat();
                let long = [&[0xc0, 0, 0, 0, 1, 8][..], &identifier[..]].concat();
                for datagram in [short, long] {
                    let client = UdpSocket::bind(any).expect("client");
                    client.send_to(&datagram, address).expect("sent");
                    let owner = &group[usize::from(byte % SHARDS)];
                    let mut buffer = [0; 16];
                    let (length, from) = owner.recv_from(&mut buffer).expect("steered");
                    assert_eq!(buffer[..length], datagram);
                    assert_eq!(from, client.local_addr().expect("address"));
                }
            }
        }
    }
}
