//! Opening the sockets of all shards.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

use crate::config::ShardConfig;

/// One listening TCP socket per shard on the same address. The system spreads incoming connections
/// over them by a hash of the addresses (`SO_REUSEPORT`).
pub(crate) fn listen(
    address: SocketAddr,
    shards: usize,
    config: &ShardConfig,
) -> io::Result<(SocketAddr, Vec<mio::net::TcpListener>)> {
    let mut bound = resolve(address, Type::STREAM, Protocol::TCP);
    let mut group = Vec::with_capacity(shards);
    if bound.port() != 0 {
        probe(bound, Type::STREAM, Protocol::TCP)?;
    }
    for _ in 0..shards {
        let socket = open(bound, Type::STREAM, Protocol::TCP)?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(true)?;
        // Accepted connections inherit these, which saves system calls for every one of them.
        socket.set_tcp_nodelay(true)?;
        if let Some(seconds) = config.tcp_keepalive_s {
            let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(seconds.into()));
            socket.set_tcp_keepalive(&keepalive)?;
        }
        if let Some(bytes) = config.send_buffer_bytes {
            socket.set_send_buffer_size(bytes)?;
        }
        if let Some(bytes) = config.receive_buffer_bytes {
            socket.set_recv_buffer_size(bytes)?;
        }
        socket.bind(&SockAddr::from(bound))?;
        bound = local_address(&socket)?;
        socket.listen(i32::try_from(config.backlog).unwrap_or(i32::MAX))?;
        group.push(mio::net::TcpListener::from_std(socket.into()));
    }
    Ok((bound, group))
}

/// One UDP socket per shard on the same address, in the order of the shards. [`crate::steering`] selects by
/// the position in the group. Connection identifiers have the shard at `shard_offset`.
pub(crate) fn bind_udp(
    address: SocketAddr,
    shards: usize,
    shard_offset: usize,
    config: &ShardConfig,
) -> io::Result<(SocketAddr, Vec<std::net::UdpSocket>)> {
    let mut bound = resolve(address, Type::DGRAM, Protocol::UDP);
    let mut group: Vec<std::net::UdpSocket> = Vec::with_capacity(shards);
    if bound.port() != 0 {
        probe(bound, Type::DGRAM, Protocol::UDP)?;
    }
    for _ in 0..shards {
        let socket = open(bound, Type::DGRAM, Protocol::UDP)?;
        if shards > 1 {
            socket.set_reuse_port(true)?;
        }
        // The system grants at most its own limit; a smaller buffer is no reason to fail.
        let _ = socket.set_send_buffer_size(config.udp_buffer_bytes);
        let _ = socket.set_recv_buffer_size(config.udp_buffer_bytes);
        socket.bind(&SockAddr::from(bound))?;
        bound = local_address(&socket)?;
        group.push(socket.into());
    }
    if let Some(first) = group.first()
        && shards > 1
        && config.kernel_steering
        && let Err(error) = crate::steering::attach(first, shards, shard_offset)
    {
        tracing::warn!(%bound, %error, "the kernel does not steer datagrams; the shards will");
    }
    Ok((bound, group))
}

/// The address that stands for all: where the system has no IPv6, `[::]` means `0.0.0.0`.
fn resolve(address: SocketAddr, kind: Type, protocol: Protocol) -> SocketAddr {
    if address.is_ipv6() && address.ip().is_unspecified() {
        let attempt = Socket::new(Domain::IPV6, kind, Some(protocol));
        if attempt.is_err_and(|error| error.raw_os_error() == Some(libc::EAFNOSUPPORT)) {
            return SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
        }
    }
    address
}

fn open(address: SocketAddr, kind: Type, protocol: Protocol) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
    socket.set_nonblocking(true)?;
    if let SocketAddr::V6(v6) = address {
        // A socket on [::] serves IPv4, too, with any default of the system.
        socket.set_only_v6(!v6.ip().is_unspecified())?;
    }
    Ok(socket)
}

/// Fails if another socket has the address. Sockets with `SO_REUSEPORT` of the same user join a
/// group silently. Without this check a second broker would take a share of the first one's
/// clients.
fn probe(address: SocketAddr, kind: Type, protocol: Protocol) -> io::Result<()> {
    let socket = open(address, kind, protocol)?;
    if kind == Type::STREAM {
        socket.set_reuse_address(true)?; // Connections in TIME_WAIT are no obstacle.
    }
    socket.bind(&SockAddr::from(address))
}

fn local_address(socket: &Socket) -> io::Result<SocketAddr> {
    socket
        .local_addr()?
        .as_socket()
        .ok_or_else(|| io::Error::other("the socket has no IP address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loopback() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    #[test]
    fn shards_share_the_port_that_the_first_one_got() {
        let config = ShardConfig::default();
        let (bound, group) = listen(loopback(), 3, &config).expect("bound");
        assert_ne!(bound.port(), 0);
        for listener in &group {
            assert_eq!(listener.local_addr().expect("address"), bound);
        }
        let (bound, group) = bind_udp(loopback(), 3, 0, &config).expect("bound");
        assert_ne!(bound.port(), 0);
        for socket in &group {
            assert_eq!(socket.local_addr().expect("address"), bound);
        }
    }

    #[test]
    fn accepted_connections_inherit_the_options() {
        let (bound, group) = listen(loopback(), 1, &ShardConfig::default()).expect("bound");
        let _client = std::net::TcpStream::connect(bound).expect("connected");
        let started = std::time::Instant::now();
        let accepted = loop {
            match group[0].accept() {
                Ok((socket, _)) => break socket,
                Err(_) if started.elapsed() < Duration::from_secs(60) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        };
        assert!(accepted.nodelay().expect("option"));
        let accepted = socket2::SockRef::from(&accepted);
        assert!(accepted.keepalive().expect("option"));
        assert_eq!(
            accepted.tcp_keepalive_time().expect("option"),
            Duration::from_secs(10 * 60)
        );
    }

    #[test]
    fn a_second_group_on_the_same_port_is_refused() {
        let config = ShardConfig::default();
        let (bound, _group) = listen(loopback(), 2, &config).expect("bound");
        let error = listen(bound, 2, &config).expect_err("taken");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let (bound, _group) = bind_udp(loopback(), 2, 0, &config).expect("bound");
        let error = bind_udp(bound, 2, 0, &config).expect_err("taken");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
