//! The UDP socket of one QUIC listener on one shard. It passes batches of datagrams between the
//! kernel and the driver, with GRO, GSO and ECN if the kernel has them.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::time::Instant;

use bytes::BytesMut;
use mio::net::UdpSocket;
use mio::{Interest, Registry, Token};
use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSockRef, UdpSocketState};

use crate::counters::ListenerCounters;
use crate::quic::{self, DatagramBatch, Driver, DriverEvent, EcnCodepoint, Flush, Key, Sent};
use crate::strays::{Siblings, Stray};
use crate::{ConnectionId, ConnectionInfo};

/// Room for one entry of a receive batch: GRO joins datagrams up to the largest UDP payload.
const ENTRY_BYTES: usize = 64 * 1024;

/// Bit of a connection's slot that tells QUIC from byte streams.
const QUIC: u32 = 1 << 31;
/// Below it: 7 bits for the socket, 24 for the driver's slot.
const SOCKET_SHIFT: u32 = 24;
/// Most UDP sockets of one shard.
pub(crate) const MOST_SOCKETS: usize = 1 << (31 - SOCKET_SHIFT);
const SLOT_MASK: u32 = (1 << SOCKET_SHIFT) - 1;
/// Most connections of one driver.
pub(crate) const MOST_CONNECTIONS: usize = 1 << SOCKET_SHIFT;

/// The identifier that handlers know a driver's connection by.
pub(crate) fn connection_id(socket: usize, key: Key) -> ConnectionId {
    debug_assert!(key.slot <= SLOT_MASK, "a driver's slots are small numbers");
    ConnectionId {
        slot: QUIC | (socket as u32) << SOCKET_SHIFT | key.slot & SLOT_MASK,
        generation: key.generation,
    }
}

/// The socket and the driver's key behind an identifier; `None` for byte streams.
pub(crate) fn key(id: ConnectionId) -> Option<(usize, Key)> {
    (id.slot & QUIC != 0).then(|| {
        let key = Key {
            slot: id.slot & SLOT_MASK,
            generation: id.generation,
        };
        (((id.slot & !QUIC) >> SOCKET_SHIFT) as usize, key)
    })
}

/// Buffers for receiving and sending, one set per shard.
pub(crate) struct UdpScratch {
    receive: Vec<u8>,
    transmit: Vec<u8>,
}

impl fmt::Debug for UdpScratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpScratch").finish_non_exhaustive()
    }
}

impl UdpScratch {
    /// Reserves address space; memory is taken as far as batches fill it.
    pub(crate) fn new(needed: bool) -> Self {
        Self {
            receive: vec![0; if needed { ENTRY_BYTES * BATCH_SIZE } else { 0 }],
            transmit: Vec::new(),
        }
    }
}

/// See the module's description.
pub(crate) struct UdpListener {
    pub(crate) socket: UdpSocket,
    state: UdpSocketState,
    pub(crate) driver: Driver,
    siblings: Siblings,
    /// Whether there may be datagrams to read.
    pub(crate) readable: bool,
    /// Whether the last transmission stopped because the socket's buffer was full.
    blocked: bool,
    /// Whether events for room in that buffer are asked for.
    watched: bool,
    /// Known facts of the connections, by the driver's slot.
    infos: Vec<Known>,
    received: Traffic,
    sent: Traffic,
}

/// Bytes and datagrams through a socket.
#[derive(Clone, Copy, Default)]
struct Traffic {
    bytes: u64,
    datagrams: u64,
}

impl Traffic {
    /// Counts a batch, cut into datagrams of `segment_bytes`; `None` for one datagram.
    fn add(&mut self, bytes: usize, segment_bytes: Option<usize>) {
        self.bytes += bytes as u64;
        self.datagrams += segment_bytes.map_or(1, |size| bytes.div_ceil(size.max(1))) as u64;
    }
}

/// An open connection of a driver.
#[derive(Default)]
struct Known {
    generation: u32,
    info: Option<Box<ConnectionInfo>>,
}

impl fmt::Debug for UdpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpListener")
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

impl UdpListener {
    pub(crate) fn new(
        socket: std::net::UdpSocket,
        driver: Driver,
        siblings: Siblings,
    ) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        Ok(Self {
            socket: UdpSocket::from_std(socket),
            state,
            driver,
            siblings,
            readable: true,
            blocked: false,
            watched: false,
            infos: Vec::new(),
            received: Traffic::default(),
            sent: Traffic::default(),
        })
    }

    /// Asks for events, once at the beginning.
    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(&mut self.socket, token, Interest::READABLE)
    }

    /// Asks for events about room in the socket's buffer only while it is full. The kernel raises
    /// one for every datagram that has left, which would wake the shard after each of its turns.
    pub(crate) fn watch(&mut self, registry: &Registry, token: Token) {
        if self.watched == self.blocked {
            return;
        }
        let interest = if self.blocked {
            Interest::READABLE | Interest::WRITABLE
        } else {
            Interest::READABLE
        };
        match registry.reregister(&mut self.socket, token, interest) {
            Ok(()) => self.watched = self.blocked,
            Err(error) => tracing::error!(%error, "cannot watch a UDP socket"),
        }
    }

    /// Takes datagrams that siblings have forwarded.
    pub(crate) fn take_strays(&mut self, now: Instant) {
        for stray in self.siblings.take() {
            let Stray {
                local_ip,
                remote,
                ecn,
                bytes,
            } = stray;
            self.driver.datagram(now, local_ip, remote, ecn, bytes);
        }
    }

    /// Takes a batch from the socket. `readable` stays set if there may be more.
    pub(crate) fn receive(&mut self, now: Instant, scratch: &mut UdpScratch) {
        if !self.readable {
            return;
        }
        let mut metas = [RecvMeta::default(); BATCH_SIZE];
        let mut entries = scratch.receive.chunks_exact_mut(ENTRY_BYTES);
        let mut slices: [IoSliceMut<'_>; BATCH_SIZE] =
            std::array::from_fn(|_| IoSliceMut::new(entries.next().unwrap_or_default()));
        let socket = UdpSockRef::from(&self.socket);
        let count = match self.state.recv(socket, &mut slices, &mut metas) {
            Ok(count) => count,
            Err(error) => {
                // Any error except an empty queue is that of an earlier send (ICMP): the next
                // look may find datagrams.
                self.readable = error.kind() != io::ErrorKind::WouldBlock;
                return;
            }
        };
        // A batch that is not full has emptied the queue; a datagram that comes now raises
        // another event.
        self.readable = count == BATCH_SIZE;
        for (meta, slice) in metas.iter().zip(&slices).take(count) {
            self.take_in(now, meta, &slice[..meta.len]);
        }
    }

    fn take_in(&mut self, now: Instant, meta: &RecvMeta, bytes: &[u8]) {
        let segment_bytes = (meta.stride > 0).then_some(meta.stride);
        self.received.add(bytes.len(), segment_bytes);
        let ecn = meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8));
        for datagram in datagrams(bytes, meta.stride) {
            match self.siblings.owner(&datagram) {
                None => {
                    self.driver
                        .datagram(now, meta.dst_ip, meta.addr, ecn, datagram);
                }
                Some(owner) => {
                    let stray = Stray {
                        local_ip: meta.dst_ip,
                        remote: meta.addr,
                        ecn,
                        bytes: datagram,
                    };
                    self.siblings.forward(owner, stray);
                }
            }
        }
    }

    /// The next event, together with the identifier that the handler knows its connection by.
    pub(crate) fn poll_event(&mut self, socket: usize) -> Option<(ConnectionId, DriverEvent)> {
        let event = self.driver.poll_event()?;
        Some((connection_id(socket, event.connection), event))
    }

    /// The socket has room again.
    pub(crate) fn unblock(&mut self) {
        self.blocked = false;
    }

    /// Sends the driver's datagrams, unless the socket is known to be full. Whether more may be sent at once.
    pub(crate) fn transmit(&mut self, now: Instant, scratch: &mut UdpScratch) -> bool {
        if self.blocked {
            return false;
        }
        let (state, socket, sent) = (&self.state, &self.socket, &mut self.sent);
        let mut sink = |outgoing: &DatagramBatch<'_>| {
            let transmit = Transmit {
                destination: outgoing.destination,
                ecn: outgoing
                    .ecn
                    .and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
                contents: outgoing.bytes,
                segment_size: outgoing.segment_bytes,
                src_ip: outgoing.source_ip,
            };
            match state.send(socket.into(), &transmit) {
                Ok(()) => {
                    sent.add(outgoing.bytes.len(), outgoing.segment_bytes);
                    Sent::Done
                }
                Err(_) => Sent::Blocked, // `send` returns no other error than WouldBlock.
            }
        };
        let segments = state.max_gso_segments();
        let flush = self
            .driver
            .transmit(now, segments, &mut scratch.transmit, &mut sink);
        self.blocked = flush == Flush::Blocked;
        flush == Flush::Spent
    }

    /// Lets other threads see the figures; `published` are the driver's that they see now.
    pub(crate) fn publish(&self, to: &ListenerCounters, published: &mut quic::Counters) {
        to.connections.set(self.driver.len() as u64);
        to.received_bytes.set(self.received.bytes);
        to.received_datagrams.set(self.received.datagrams);
        to.sent_bytes.set(self.sent.bytes);
        to.sent_datagrams.set(self.sent.datagrams);
        let counters = self.driver.counters();
        if counters != *published {
            to.set_quic(&counters);
            *published = counters;
        }
    }

    /// Remembers a connection that has opened.
    pub(crate) fn remember(&mut self, key: Key, mut info: Box<ConnectionInfo>) {
        let slot = key.slot as usize;
        if slot >= self.infos.len() {
            self.infos.resize_with(slot + 1, Known::default);
        }
        info.peer = canonical(info.peer);
        self.infos[slot] = Known {
            generation: key.generation,
            info: Some(info),
        };
    }

    /// Known facts of an open connection.
    pub(crate) fn info(&self, key: Key) -> Option<&ConnectionInfo> {
        let known = self.infos.get(key.slot as usize)?;
        known
            .info
            .as_deref()
            .filter(|_| known.generation == key.generation)
    }

    pub(crate) fn moved(&mut self, key: Key, peer: SocketAddr) {
        if let Some(known) = self.infos.get_mut(key.slot as usize)
            && known.generation == key.generation
            && let Some(info) = &mut known.info
        {
            info.peer = canonical(peer);
        }
    }

    /// The handshake is complete: the peer reads at its address.
    pub(crate) fn proved(&mut self, key: Key) {
        if let Some(known) = self.infos.get_mut(key.slot as usize)
            && known.generation == key.generation
            && let Some(info) = &mut known.info
        {
            info.is_peer_proved = true;
        }
    }

    pub(crate) fn forget(&mut self, key: Key) {
        if let Some(known) = self.infos.get_mut(key.slot as usize)
            && known.generation == key.generation
        {
            known.info = None;
        }
    }
}

/// An IPv4 peer of a dual-stack socket appears with its IPv4 address.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The datagrams of a peer that came in one piece, each in an allocation of its own. So a datagram whose data waits for
/// a gap holds nothing of the others.
fn datagrams(bytes: &[u8], stride: usize) -> impl Iterator<Item = BytesMut> {
    let stride = if stride == 0 { bytes.len() } else { stride };
    bytes.chunks(stride.max(1)).map(BytesMut::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_that_waits_holds_nothing_of_those_that_came_with_it() {
        for (stride, lengths) in [(0, &[3_000][..]), (1_200, &[1_200, 1_200, 600])] {
            let all: Vec<_> = datagrams(&[7; 3_000], stride)
                .map(BytesMut::freeze)
                .collect();
            assert!(
                all.iter()
                    .map(bytes::Bytes::len)
                    .eq(lengths.iter().copied())
            );
            assert!(all.iter().all(bytes::Bytes::is_unique), "stride {stride}");
        }
        assert_eq!(datagrams(&[], 0).count(), 0);
    }
}
